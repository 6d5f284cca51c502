//! The text form of Prometheus (version 0.0.4): a head for each metric, a line for each of its values.

use std::fmt::{Display, Write};

/// What a metric is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// It only grows, and begins anew with the process.
    Counter,
    Gauge,
}

/// A page of metrics.
pub(super) struct Exposition {
    text: String,
    name: String,
    /// `a="b",c="d"`: on every line.
    common: String,
}

impl Exposition {
    pub(super) fn new(common: &[(&str, &str)]) -> Exposition {
        let mut labels = String::new();
        write_labels(&mut labels, common);
        Exposition { text: String::new(), name: String::new(), common: labels }
    }

    /// Begins a metric. `about` is a line.
    pub(super) fn metric(&mut self, name: &str, kind: Kind, about: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        name.clone_into(&mut self.name);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    /// A value of the metric that was begun last.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{{{}", self.name, self.common);
        if !self.common.is_empty() && !labels.is_empty() {
            self.text.push(',');
        }
        write_labels(&mut self.text, labels);
        let _ = writeln!(self.text, "}} {value}");
    }

    pub(super) fn into_text(self) -> String {
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
        let mut page = Exposition::new(&[("cluster", "c\"1\"")]);
        page.metric("a_total", Kind::Counter, "What");
        page.value(&[("topic", "back\\slash\nline")], 7);
        page.metric("b", Kind::Gauge, "Else");
        page.value(&[], 1.5);
        let expected = "# HELP a_total What\n# TYPE a_total counter\n\
            a_total{cluster=\"c\\\"1\\\"\",topic=\"back\\\\slash\\nline\"} 7\n\
            # HELP b Else\n# TYPE b gauge\nb{cluster=\"c\\\"1\\\"\"} 1.5\n";
        assert_eq!(page.into_text(), expected);
    }
}
