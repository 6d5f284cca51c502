//! The text form of Prometheus (version 0.0.4): a head for each metric, a line for each of its values.

use std::fmt::{Display, Write};

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetricKind {
    /// It only grows, and begins anew with the process.
    Counter,
    Gauge,
    /// Counts by classes, each with what is in those below it.
    Histogram,
}

/// A page of metrics.
pub(super) struct Exposition {
    text: String,
    name: String,
    /// `a="b",c="d"`: on every line.
    common: String,
    /// Sets of labels that a metric may have, and how many the present one has.
    sets_max: usize,
    sets: usize,
    /// Metrics that had more, and by how many.
    left_out: Vec<(String, usize)>,
}

impl Exposition {
    pub(super) fn new(common: &[(&str, &str)], sets_max: usize) -> Exposition {
        let mut labels = String::new();
        write_labels(&mut labels, common);
        Exposition { text: String::new(), name: String::new(), common: labels, sets_max, sets: 0, left_out: Vec::new() }
    }

    /// Begins a metric. `about` is a line.
    pub(super) fn metric(&mut self, name: &str, kind: MetricKind, about: &str) {
        self.end_metric();
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        name.clone_into(&mut self.name);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    /// A value of the metric that was begun last.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: impl Display) {
        if self.has_room() {
            self.line("", labels, value);
        }
    }

    /// Values of the histogram that was begun last: `counts` by class, one more than `bounds`, and the sum of what was counted. Bounds are
    /// written as Java writes doubles, since dashboards name them.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], bounds: &[f64], counts: &[u64], sum: impl Display) {
        if !self.has_room() {
            return;
        }
        let mut below = 0;
        let last = "+Inf".to_owned();
        for (bound, count) in bounds.iter().map(|bound| format!("{bound:?}")).chain([last]).zip(counts) {
            below += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.line("_bucket", &labels, below);
        }
        self.line("_sum", labels, sum);
        self.line("_count", labels, below);
    }

    /// Counts one more set of labels.
    fn has_room(&mut self) -> bool {
        self.sets += 1;
        self.sets <= self.sets_max
    }

    fn end_metric(&mut self) {
        let more = std::mem::take(&mut self.sets).saturating_sub(self.sets_max);
        if more > 0 {
            self.left_out.push((self.name.clone(), more));
        }
    }

    fn line(&mut self, end: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{end}{{{}", self.name, self.common);
        if !self.common.is_empty() && !labels.is_empty() {
            self.text.push(',');
        }
        write_labels(&mut self.text, labels);
        let _ = writeln!(self.text, "}} {value}");
    }

    pub(super) fn into_text(mut self) -> String {
        self.end_metric();
        let left_out = std::mem::take(&mut self.left_out);
        if !left_out.is_empty() {
            self.metric(
                "gantry_metric_values_left_out",
                MetricKind::Gauge,
                "Values beyond metricsOtelCardinalityLimit",
            );
            for (metric, values) in &left_out {
                self.line("", &[("metric", metric)], *values);
            }
        }
        self.text
    }
}

fn write_labels(out: &mut String, labels: &[(&str, &str)]) {
    for (place, (name, value)) in labels.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        let _ = write!(out, "{name}=\"");
        for letter in value.chars() {
            match letter {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                other => out.push(other),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_all_labels_and_what_is_in_them_cannot_end_them() {
        let mut page = Exposition::new(&[("cluster", "c\"1\"")], 10);
        page.metric("a_total", MetricKind::Counter, "What");
        page.value(&[("topic", "back\\slash\nline")], 7);
        page.metric("b", MetricKind::Gauge, "Else");
        page.value(&[], 1.5);
        let expected = "# HELP a_total What\n# TYPE a_total counter\n\
            a_total{cluster=\"c\\\"1\\\"\",topic=\"back\\\\slash\\nline\"} 7\n\
            # HELP b Else\n# TYPE b gauge\nb{cluster=\"c\\\"1\\\"\"} 1.5\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn a_metric_has_so_many_values_and_what_is_left_out_is_said() {
        let mut page = Exposition::new(&[], 2);
        page.metric("a", MetricKind::Gauge, "What");
        ["x", "y", "z"].iter().for_each(|topic| page.value(&[("topic", topic)], 1));
        page.metric("b", MetricKind::Histogram, "Else");
        (0..4).for_each(|_| page.histogram(&[], &[], &[1], 1));
        let text = page.into_text();
        assert!(text.contains("a{topic=\"y\"} 1\n# HELP b"), "{text}");
        assert_eq!(text.matches("b_count").count(), 2, "{text}");
        let said = "gantry_metric_values_left_out{metric=\"a\"} 1\ngantry_metric_values_left_out{metric=\"b\"} 2\n";
        assert!(text.ends_with(said), "{text}");
    }

    #[test]
    fn a_class_of_a_histogram_holds_what_is_in_those_below_it() {
        let mut page = Exposition::new(&[("cluster", "c")], 1);
        page.metric("h", MetricKind::Histogram, "Sizes");
        page.histogram(&[("topic", "t")], &[1024.0, 0.5], &[2, 0, 3], 9000);
        let expected = "# HELP h Sizes\n# TYPE h histogram\n\
            h_bucket{cluster=\"c\",topic=\"t\",le=\"1024.0\"} 2\n\
            h_bucket{cluster=\"c\",topic=\"t\",le=\"0.5\"} 2\n\
            h_bucket{cluster=\"c\",topic=\"t\",le=\"+Inf\"} 5\n\
            h_sum{cluster=\"c\",topic=\"t\"} 9000\nh_count{cluster=\"c\",topic=\"t\"} 5\n";
        assert_eq!(page.into_text(), expected);
    }
}
