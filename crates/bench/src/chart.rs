//! Lines over time, as SVG that stands in a page without anything else.

use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// More points than this are drawn as the averages, or the highest, of neighbours.
const POINTS_MAX: usize = 900;

/// A line.
pub struct Line<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its colour, as CSS has it.
    pub colour: &'a str,
    /// Time in seconds, and value.
    pub points: Vec<(f64, f64)>,
}

/// A picture.
pub struct Chart<'a> {
    /// What stands above it.
    pub title: &'a str,
    /// The lines.
    pub lines: Vec<Line<'a>>,
    /// From second to second: what is shown in grey, because it was not measured.
    pub aside: Vec<(f64, f64)>,
    /// From second to second: what is marked.
    pub marked: Vec<(f64, f64)>,
    /// Whether each ten times has the same height.
    pub is_logarithmic: bool,
}

impl Chart<'_> {
    /// The picture; nothing if no line has a point.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let end = points().map(|(at, _)| *at).fold(0.0, f64::max);
        let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
        if end <= 0.0 || most <= 0.0 {
            return String::new();
        }
        let least = points().map(|(_, value)| *value).filter(|value| *value > 0.0).fold(most, f64::min);
        let scale = if self.is_logarithmic { Scale::logarithmic(least, most) } else { Scale::linear(most) };
        let x = |at: f64| LEFT + at / end * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| TOP + (1.0 - scale.place(value)) * (HEIGHT - TOP - BOTTOM);
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = write!(out, "<figure><figcaption>{}", escaped(self.title));
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let _ = write!(out, " <span style=\"color:{}\">■ {}</span>", line.colour, escaped(line.name));
        }
        let _ = write!(out, "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        for (class, spans) in [("aside", &self.aside), ("drop", &self.marked)] {
            for (from, to) in spans {
                let (left, right) = (x(from.min(end)), x(to.min(end)));
                let (width, height) = (right - left, HEIGHT - TOP - BOTTOM);
                let _ = write!(
                    out,
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"/>"
                );
            }
        }
        for value in &scale.ticks {
            let at = y(*value);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                short(*value)
            );
        }
        for at in ticks(end, 10.0) {
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                x(at),
                HEIGHT - BOTTOM + 16.0,
                short(at)
            );
        }
        let _ = write!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">seconds</text>", WIDTH - RIGHT, HEIGHT - 4.0);
        for line in &self.lines {
            let drawn = thinned(&line.points, self.is_logarithmic);
            let text: Vec<String> = drawn.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
            let _ = write!(out, "<polyline style=\"stroke:{}\" points=\"{}\"/>", line.colour, text.join(" "));
        }
        out.push_str("</svg></figure>\n");
        out
    }
}

/// Where values lie between the bottom, 0, and the top, 1.
struct Scale {
    bottom: f64,
    top: f64,
    is_logarithmic: bool,
    ticks: Vec<f64>,
}

impl Scale {
    fn linear(most: f64) -> Scale {
        let ticks = ticks(most, 5.0);
        let step = ticks.get(1).copied().unwrap_or(most);
        let top = (most / step).ceil() * step;
        Scale { bottom: 0.0, top, is_logarithmic: false, ticks: ticks.into_iter().chain([top]).collect() }
    }

    fn logarithmic(least: f64, most: f64) -> Scale {
        let (low, high) =
            (least.log10().floor() as i32, (most.log10().ceil() as i32).max(least.log10().floor() as i32 + 1));
        let ticks = (low..=high).map(|power| 10_f64.powi(power)).collect();
        Scale { bottom: f64::from(low), top: f64::from(high), is_logarithmic: true, ticks }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic { value.max(1e-9).log10() } else { value };
        ((value - self.bottom) / (self.top - self.bottom)).clamp(0.0, 1.0)
    }
}

/// Round numbers from 0 to below `most`, about `count` of them.
fn ticks(most: f64, count: f64) -> Vec<f64> {
    let rough = most / count;
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    (0..).map(|index| f64::from(index) * step).take_while(|value| *value < most).take(50).collect()
}

/// Neighbours together, so that a day does not make a page of megabytes. The highest of latencies is what must not get lost.
fn thinned(points: &[(f64, f64)], keeps_highest: bool) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    points
        .chunks(each)
        .map(|chunk| {
            let values = chunk.iter().map(|(_, value)| *value);
            let value =
                if keeps_highest { values.fold(0.0, f64::max) } else { values.sum::<f64>() / chunk.len() as f64 };
            (chunk[0].0, value)
        })
        .collect()
}

/// A number in few characters.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        value if value >= 1e4 => format!("{} k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text that a page shows as it is.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, is_logarithmic: bool) -> String {
        let line = Line { name: "sent", colour: "#000", points };
        Chart { title: "a < b", lines: vec![line], aside: vec![], marked: vec![(2.0, 4.0)], is_logarithmic }.svg()
    }

    #[test]
    fn a_line_lies_within_its_frame_and_a_drop_is_marked() {
        let svg = chart((0..10).map(|at| (f64::from(at), 100.0 * f64::from(at))).collect(), false);
        assert!(svg.contains("a &lt; b") && svg.contains("class=\"drop\""), "{svg}");
        let (_, points) = svg.split_once("points=\"").unwrap();
        let first = points.split([' ', '"']).next().unwrap();
        assert_eq!(first, "74.0,196.0");
    }

    #[test]
    fn long_runs_are_drawn_with_few_points_that_keep_the_highest_latency() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|at| (f64::from(at), 1.0)).collect();
        points[5003].1 = 70.0;
        let drawn = thinned(&points, true);
        assert!(drawn.len() <= POINTS_MAX && drawn.iter().any(|(_, value)| *value == 70.0));
        assert!(thinned(&points, false).iter().all(|(_, value)| *value < 10.0));
        assert!(!chart(points, true).is_empty());
    }

    #[test]
    fn nothing_makes_no_picture() {
        assert_eq!(chart(Vec::new(), false), "");
        assert_eq!(chart(vec![(0.0, 0.0), (1.0, 0.0)], true), "");
    }
}
