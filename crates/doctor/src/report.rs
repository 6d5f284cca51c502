//! What was found, as text for people and as one JSON object for programs.

use std::io::{self, Write};

use env::counted;
use serde_json::{Map, Value, json};

use super::checks::{Check, Family};
use super::finding::{Finding, Severity};

/// Where lines of text are broken.
const WIDTH: usize = 110;
/// What effects and fixes are moved in by.
const INDENT: &str = "             ";

/// All findings, in the order of the checks.
pub struct Report {
    /// Each with the check that made it.
    pub rows: Vec<(&'static Check, Finding)>,
}

impl Report {
    /// The severity of the worst finding.
    pub fn worst(&self) -> Severity {
        self.rows.iter().map(|(_, finding)| finding.severity).max().unwrap_or(Severity::Ok)
    }

    fn count(&self, severity: Severity) -> usize {
        self.rows.iter().filter(|(_, finding)| finding.severity == severity).count()
    }

    /// One object: `{"version", "timeMillis", "findings": [{"id", "family", "subject", "severity", "title", "evidence": [{"from", "value"}],
    /// "effect", "fix", "figures"}], "counts": {…}, "exitCode"}`.
    pub fn json(&self, now_ms: i64) -> Value {
        let findings: Vec<Value> =
            self.rows.iter().map(|(check, finding)| finding.json(check.id, check.family.name())).collect();
        let counts: Map<String, Value> = Severity::ALL
            .into_iter()
            .map(|severity| (severity.name().to_owned(), Value::from(self.count(severity))))
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "timeMillis": now_ms,
            "findings": findings,
            "counts": counts,
            "exitCode": self.worst().exit_code(),
        })
    }

    /// A line for what is well, everything for what is not; everything for all if `is_verbose`.
    pub fn print(&self, out: &mut impl Write, is_verbose: bool) -> io::Result<()> {
        for family in Family::ALL {
            let rows: Vec<_> = self.rows.iter().filter(|(check, _)| check.family == family).collect();
            if rows.is_empty() {
                continue;
            }
            writeln!(out, "{}", family.name())?;
            for (check, finding) in rows {
                let head = format!("  {:<9}", finding.severity.name());
                let what = named(check.id, finding);
                if finding.severity == Severity::Ok && !is_verbose {
                    let from = finding.evidence.first().map_or(String::new(), |seen| format!(" [{}]", seen.from));
                    let why = if finding.effect.is_empty() { String::new() } else { format!("; {}", finding.effect) };
                    wrapped(out, &head, &format!("{what}{from}{why}"))?;
                    continue;
                }
                wrapped(out, &head, &what)?;
                for seen in &finding.evidence {
                    wrapped(out, &format!("{INDENT}seen    "), &format!("{}: {}", seen.from, seen.value))?;
                }
                if !finding.effect.is_empty() {
                    wrapped(out, &format!("{INDENT}effect  "), &finding.effect)?;
                }
                if let Some(fix) = &finding.fix {
                    wrapped(out, &format!("{INDENT}fix     "), fix)?;
                }
            }
            writeln!(out)?;
        }
        let counts = Severity::ALL.into_iter().rev().map(|severity| match severity {
            Severity::Ok | Severity::Unknown => format!("{} {}", self.count(severity), severity.name()),
            Severity::Note | Severity::Warning | Severity::Error => counted(self.count(severity), severity.name()),
        });
        writeln!(out, "{}", counts.collect::<Vec<_>>().join(", "))
    }
}

/// The title with the check's id and subject before it, unless it says them itself.
fn named(id: &str, finding: &Finding) -> String {
    let title = &finding.title;
    match &finding.subject {
        Some(subject) if !title.contains(subject.as_str()) => match title.strip_prefix(id) {
            Some(rest) => format!("{id} ({subject}){rest}"),
            None => format!("{id} ({subject}): {title}"),
        },
        _ if title.starts_with(id) => title.clone(),
        Some(_) | None => format!("{id}: {title}"),
    }
}

/// A text behind a head, broken between words; what follows stands below where it began. Control characters are shown as blanks.
fn wrapped(out: &mut impl Write, head: &str, text: &str) -> io::Result<()> {
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let indent = head.chars().count();
    let mut line = head.to_owned();
    let mut length = indent;
    for word in text.split(' ') {
        let letters = word.chars().count();
        if length > indent && length + 1 + letters > WIDTH {
            writeln!(out, "{line}")?;
            line = " ".repeat(indent);
            length = indent;
        }
        if length > indent {
            line.push(' ');
            length += 1;
        }
        line.push_str(word);
        length += letters;
    }
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::CHECKS;

    fn report() -> Report {
        let check = |id: &str| CHECKS.iter().find(|check| check.id == id).unwrap();
        Report {
            rows: vec![
                (
                    check("vm.dirty_ratio"),
                    Finding::ok("vm.dirty_ratio is 20").seen("/proc/sys/vm/dirty_ratio", 20).effect("not needed"),
                ),
                (
                    check("configuration"),
                    Finding::warning("brokerNam: not a key")
                        .of("brokerNam")
                        .seen("a.conf:3", "brokerNam=x")
                        .effect("ignored")
                        .fix("brokerName"),
                ),
            ],
        }
    }

    #[test]
    fn programs_get_every_part_and_stable_names() {
        let json = report().json(7);
        assert_eq!(json["exitCode"], 1);
        assert_eq!(json["counts"], json!({ "ok": 1, "note": 0, "warning": 1, "unknown": 0, "error": 0 }));
        let expected = json!({
            "id": "configuration", "family": "configuration", "subject": "brokerNam", "severity": "warning",
            "title": "brokerNam: not a key", "evidence": [{ "from": "a.conf:3", "value": "brokerNam=x" }],
            "effect": "ignored", "fix": "brokerName",
        });
        assert_eq!(json["findings"][1], expected);
        assert!(json["findings"][0].get("fix").is_none() && json["findings"][0].get("subject").is_none());
    }

    #[test]
    fn people_get_a_line_for_what_is_well_and_all_of_what_is_not() {
        let mut out = Vec::new();
        report().print(&mut out, false).unwrap();
        let expected = "machine\n  ok       vm.dirty_ratio is 20 [/proc/sys/vm/dirty_ratio]; not needed\n\n\
            configuration\n  warning  configuration: brokerNam: not a key\n\
            \x20            seen    a.conf:3: brokerNam=x\n\
            \x20            effect  ignored\n\
            \x20            fix     brokerName\n\n\
            0 errors, 0 unknown, 1 warning, 0 notes, 1 ok\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_title_has_the_check_and_the_subject_once() {
        let finding = |title: &str, subject: &str| Finding::ok(title).of(subject);
        assert_eq!(named("read-ahead", &finding("read-ahead: 128 KiB", "/a")), "read-ahead (/a): 128 KiB");
        assert_eq!(named("disk-space", &finding("20 % are used", "/a")), "disk-space (/a): 20 % are used");
        assert_eq!(named("swap", &finding("swap on /a", "/a")), "swap on /a");
        assert_eq!(named("swap", &Finding::ok("none")), "swap: none");
    }

    #[test]
    fn long_texts_are_broken_between_words_and_cannot_play_with_the_terminal() {
        let mut out = Vec::new();
        wrapped(&mut out, "  a  ", &"word ".repeat(40)).unwrap();
        wrapped(&mut out, "  b  ", "\x1b[31mred").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH) && text.lines().count() == 3, "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with("     word") && !text.contains('\x1b'));
    }
}
