//! The report: one page, with charts, that needs no other file and no network. The results themselves are in it as JSON.

use std::fmt::Write;

use crate::chart::{Chart, Line, escaped};
use crate::drops::Steadiness;
use crate::result::{Phase, RunResult, Window};
use crate::text;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-top:1px solid #ccc;padding-top:1em}\
pre{background:#f5f5f5;padding:.8em;overflow-x:auto;font-size:13px}figure{margin:1em 0}figcaption{font-weight:600}\
figcaption span{font-weight:400;margin-left:.8em}svg{width:100%;height:auto}svg text{font-size:11px;fill:#555}\
.grid{stroke:#ddd}.aside{fill:#eee}.drop{fill:#f9c7c0}polyline{fill:none;stroke-width:1.5}.problem{color:#b3261e;font-weight:600}";

/// A page about runs.
pub fn page(results: &[RunResult]) -> String {
    let title = match results {
        [only] => only.name.clone(),
        several => format!("{} runs", several.len()),
    };
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    if results.len() > 1 {
        let _ = writeln!(out, "<pre>{}</pre>", escaped(&text::table(results)));
    }
    results.iter().for_each(|result| section(&mut out, result));
    let json = serde_json::to_string(results).unwrap_or_default();
    // What a script may not hold as it is (its own end, the begin of a comment) begins with this, which JSON has in texts alone.
    let json = json.replace('<', "\\u003c");
    let _ = write!(out, "<script type=\"application/json\" id=\"results\">{json}</script>\n</body></html>\n");
    out
}

fn section(out: &mut String, result: &RunResult) {
    let _ = writeln!(out, "<h2>{}</h2>", escaped(&result.name));
    let problems = result.problems();
    for problem in &problems {
        let _ = writeln!(out, "<p class=\"problem\">{}</p>", escaped(problem));
    }
    if problems.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escaped(&result.verdict()));
    }
    charts(out, result);
    let _ = writeln!(out, "<pre>{}</pre>", escaped(&text::summary(result)));
    let settings = serde_json::to_string_pretty(&(&result.workload, &result.driver)).unwrap_or_default();
    let _ = writeln!(out, "<details><summary>Workload and driver</summary><pre>{}</pre></details>", escaped(&settings));
}

fn charts(out: &mut String, result: &RunResult) {
    let windows = &result.windows;
    let begin = windows.first().map_or(0.0, |window| window.at_seconds);
    let line = |name, colour, value: &dyn Fn(&Window) -> Option<f64>| {
        let point = |window: &Window| Some((window.at_seconds - begin, value(window)?));
        // What is left of a second says little about a rate.
        let whole = windows.iter().filter(|window| window.seconds > 0.5);
        Line { name, colour, points: whole.filter_map(point).collect() }
    };
    let span = |window: &Window| (window.at_seconds - begin, window.at_seconds - begin + window.seconds);
    let aside: Vec<(f64, f64)> = windows.iter().filter(|window| window.phase != Phase::Measure).map(span).collect();
    let measured: Vec<(f64, f64)> =
        windows.iter().filter(|window| window.phase == Phase::Measure && window.seconds > 0.5).map(span).collect();
    let summary = &result.summary;
    let mut marked = marks(&summary.produce_steadiness, &measured);
    marked.extend(marks(&summary.consume_steadiness, &measured));
    let chart = |title, lines, is_logarithmic| {
        Chart { title, lines, aside: aside.clone(), marked: marked.clone(), is_logarithmic }.svg()
    };
    out.push_str("<p>Grey: not measured. Red: ten seconds below 90 % of the median.</p>\n");
    let rates = vec![
        line("sent", "#1f6feb", &|window| Some(window.sent as f64 / window.seconds)),
        line("received", "#1a7f37", &|window| Some(window.received as f64 / window.seconds)),
        line("failed", "#b3261e", &|window| {
            Some(window.failed as f64 / window.seconds).filter(|_| summary.messages.failed > 0)
        }),
    ];
    out.push_str(&chart("Messages a second", rates, false));
    let publish = vec![
        line("p50", "#1f6feb", &|window| window.publish.map(|brief| brief.p50)),
        line("p99", "#bf8700", &|window| window.publish.map(|brief| brief.p99)),
        line("max", "#b3261e", &|window| window.publish.map(|brief| brief.max)),
    ];
    out.push_str(&chart("Publish latency, ms", publish, true));
    let end_to_end = vec![
        line("p50", "#1f6feb", &|window| window.end_to_end.map(|brief| brief.p50)),
        line("p99", "#bf8700", &|window| window.end_to_end.map(|brief| brief.p99)),
        line("max", "#b3261e", &|window| window.end_to_end.map(|brief| brief.max)),
    ];
    out.push_str(&chart("End-to-end latency, ms", end_to_end, true));
    out.push_str(&chart(
        "Acknowledged and not received yet",
        vec![line("open", "#8250df", &|window| Some(window.outstanding as f64))],
        false,
    ));
    let cores = vec![
        line("server", "#1f6feb", &|window| window.server_cpu_cores),
        line("load generator", "#888", &|window| Some(window.loader_cpu_cores)),
    ];
    out.push_str(&chart("Processor time, cores", cores, false));
    let resident = vec![line("server", "#1f6feb", &|window| {
        window.server_resident_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))
    })];
    out.push_str(&chart("Resident memory, MiB", resident, false));
}

/// Where the drops lie, in seconds of the whole run.
fn marks(steadiness: &Option<Steadiness>, measured: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let drops = steadiness.iter().flat_map(|steadiness| &steadiness.drops);
    let begin = measured.first().map_or(0.0, |(begin, _)| *begin);
    drops.map(|drop| (begin + drop.from as f64, begin + drop.to as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn a_drop_is_marked_where_it_was_and_a_page_without_one_says_so() {
        let steady = page(&[sample(&[1000; 60])]);
        assert!(steady.contains("falls of the sending rate") && !steady.contains("class=\"drop\""));
        let mut rates = [1000; 60];
        rates[30..34].fill(100);
        let page = page(&[sample(&rates)]);
        // From second 22 to 42 of 59: 74 + 22 / 59 × 872.
        assert!(page.contains("<rect class=\"drop\" x=\"399.2\"") && page.contains("class=\"problem\""), "{page}");
    }
}
