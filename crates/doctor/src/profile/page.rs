//! The picture: a frame is as wide as it was seen often, and stands on its caller. A click makes a frame as wide as the picture.

use std::fmt::Write;

use super::graph::{Frame, Graph, KERNEL};

/// Width of the picture, of its margins, and height of a row, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 16.0;
/// Room above the flames for the title and the name of what the pointer is on.
const HEAD: f64 = 44.0;
/// Width of a letter.
const LETTER: f64 = 6.6;
/// What is narrower is left out, with all that stands on it.
const NARROWEST: f64 = 0.1;
/// What a click does.
const CLICKS: &str = include_str!("page.js");

/// Draws the graph.
pub fn svg(graph: &Graph, title: &str) -> String {
    let height = HEAD + depth(&graph.root) as f64 * ROW + MARGIN;
    let mut page = Page { out: String::new(), whole: graph.samples().max(1), bottom: height - MARGIN };
    let out = &mut page.out;
    // Writing to a string does not fail, here and below.
    let _ = write!(
        out,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"11\">\n\
         <style>rect{{stroke:#fff;stroke-width:.5}} g:hover rect{{stroke:#000}} text{{pointer-events:none}} g{{cursor:pointer}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN}\" y=\"18\" font-size=\"14\">{}</text>\n<text x=\"{MARGIN}\" y=\"36\" id=\"told\"></text>\n",
        escaped(title)
    );
    page.draw("all", &graph.root, 0, 0);
    let _ = write!(page.out, "<script><![CDATA[\n{CLICKS}]]></script>\n</svg>\n");
    page.out
}

struct Page {
    out: String,
    /// All samples.
    whole: u64,
    /// Where the lowest row ends.
    bottom: f64,
}

impl Page {
    /// Draws a frame and what stands on it. Its depth is bounded by that of the stacks.
    fn draw(&mut self, name: &str, frame: &Frame, before: u64, row: usize) {
        let scale = (WIDTH - 2.0 * MARGIN) / self.whole as f64;
        let width = frame.samples as f64 * scale;
        if width < NARROWEST {
            return;
        }
        let (x, y) = (MARGIN + before as f64 * scale, self.bottom - (row + 1) as f64 * ROW);
        let share = frame.samples as f64 / self.whole as f64 * 100.0;
        let name_shown = escaped(name);
        let _ = writeln!(
            self.out,
            "<g data-b=\"{before}\" data-n=\"{}\"><title>{name_shown} ({} samples, {share:.2} %)</title>\
             <rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{ROW}\" fill=\"{}\"/>\
             <text x=\"{:.2}\" y=\"{:.1}\">{}</text></g>",
            frame.samples,
            frame.samples,
            colour(name, row),
            x + 3.0,
            y + ROW - 4.0,
            escaped(&short(name, width)),
        );
        let mut before = before;
        for (name, call) in &frame.calls {
            self.draw(name, call, before, row + 1);
            before += call.samples;
        }
    }
}

fn depth(frame: &Frame) -> usize {
    1 + frame.calls.values().map(depth).max().unwrap_or(0)
}

/// As much of a name as finds room.
fn short(name: &str, width: f64) -> String {
    let room = ((width - 6.0) / LETTER).max(0.0) as usize;
    if name.chars().count() <= room {
        name.to_owned()
    } else if room < 3 {
        String::new()
    } else {
        name.chars().take(room - 2).chain("..".chars()).collect()
    }
}

/// Threads and the kernel are grey; functions of one crate have one colour.
fn colour(name: &str, row: usize) -> String {
    if row <= 1 || name == KERNEL {
        return "#d0d0d0".to_owned();
    }
    // An inlined function stands before its file: `append [store/src/commit_log.rs]`.
    let of = match name.split_once(" [") {
        Some((_, file)) => file.split('/').next(),
        None => name.trim_start_matches(['<', '&']).split("::").next(),
    };
    // FNV-1a: the same colour in each picture.
    let hash = of
        .unwrap_or_default()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("hsl({},{}%,72%)", hash % 360, 55 + hash / 360 % 30)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        let mut graph = Graph::default();
        graph.add(["gantry", "<a::B as c::D<&str>>::e"].map(str::to_owned), 3);
        graph.add(["flush", "sync", KERNEL].map(str::to_owned), 1);
        graph
    }

    /// The value of an attribute of the frame with this title.
    fn number(page: &str, title: &str, attribute: &str) -> f64 {
        let line = page.lines().find(|line| line.contains(&format!("<title>{title}"))).unwrap();
        let (_, rest) = line.split_once(&format!("{attribute}=\"")).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_frame_is_as_wide_as_it_was_seen_often_and_stands_on_its_caller() {
        let page = svg(&graph(), "3 < 4");
        assert!(page.contains("3 &lt; 4") && page.starts_with("<?xml") && page.trim_end().ends_with("</svg>"));
        let (all, flush, gantry) = ("all", "flush", "gantry");
        assert_eq!(number(&page, gantry, "width"), 3.0 * number(&page, flush, "width"));
        assert_eq!(number(&page, all, "width"), WIDTH - 2.0 * MARGIN);
        assert_eq!(number(&page, gantry, " x"), number(&page, flush, " x") + number(&page, flush, "width"));
        assert_eq!(number(&page, "sync", " y"), number(&page, flush, " y") - ROW);
        assert!(page.contains("&lt;a::B as c::D&lt;&amp;str&gt;&gt;::e (3 samples, 75.00 %)"));
        assert!(number(&page, KERNEL, " y") >= HEAD - ROW);
    }

    #[test]
    fn names_are_cut_to_their_room() {
        assert_eq!(short("commit_log", 400.0), "commit_log");
        assert_eq!(short("commit_log", 6.0 + 5.0 * LETTER + 1.0), "com..");
        assert_eq!(short("commit_log", 1.0), "");
    }
}
