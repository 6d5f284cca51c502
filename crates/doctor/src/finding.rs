//! What a check has to say: what was seen, what it does to a broker, and what helps.

use serde_json::{Map, Value, json};

/// How much a finding matters. The later one is the worse one, as far as the exit code goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be, or not needed.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// Something is slower, or less safe, than it could be.
    Warning,
    /// It was asked for, and could not be looked at.
    Unknown,
    /// Something does not work, or will not.
    Error,
}

impl Severity {
    /// All of them, best first.
    pub const ALL: [Severity; 5] =
        [Severity::Ok, Severity::Note, Severity::Warning, Severity::Unknown, Severity::Error];

    /// Its name, for programs and people.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Unknown => "unknown",
            Severity::Error => "error",
        }
    }

    /// The exit code of a run whose worst finding this is.
    pub fn exit_code(self) -> u8 {
        match self {
            Severity::Ok | Severity::Note => 0,
            Severity::Warning => 1,
            Severity::Error => 2,
            Severity::Unknown => 3,
        }
    }
}

/// One thing that was read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// A file, a request, a call.
    pub from: String,
    /// What it said.
    pub value: String,
}

/// A file of the kernel, what it says, and what would be better: `--fix` writes that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub file: String,
    /// What it says.
    pub now: String,
    /// What is written.
    pub wanted: String,
}

/// What a check has to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// Which of several alike it is about: a key, a name server. Together with the check's id it names the finding.
    pub subject: Option<String>,
    /// What is, in a few words.
    pub title: String,
    /// What was read.
    pub evidence: Vec<Evidence>,
    /// What it does to this broker, or why it does nothing.
    pub effect: String,
    /// A command or a setting that helps.
    pub fix: Option<String>,
    /// The same as a change that can be made while the machine runs, and taken back.
    pub change: Option<Change>,
    /// Numbers, for programs.
    pub figures: Map<String, Value>,
}

impl Finding {
    /// Of this severity.
    pub fn new(severity: Severity, title: impl Into<String>) -> Finding {
        Finding {
            severity,
            subject: None,
            title: title.into(),
            evidence: Vec::new(),
            effect: String::new(),
            fix: None,
            change: None,
            figures: Map::new(),
        }
    }

    /// As it should be.
    pub fn ok(title: impl Into<String>) -> Finding {
        Finding::new(Severity::Ok, title)
    }

    /// Worth knowing.
    pub fn note(title: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, title)
    }

    /// Slower or less safe.
    pub fn warning(title: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, title)
    }

    /// Does not work.
    pub fn error(title: impl Into<String>) -> Finding {
        Finding::new(Severity::Error, title)
    }

    /// Could not be looked at.
    pub fn unknown(title: impl Into<String>) -> Finding {
        Finding::new(Severity::Unknown, title)
    }

    /// Which of several alike it is about.
    pub fn of(mut self, subject: impl Into<String>) -> Finding {
        self.subject = Some(subject.into());
        self
    }

    /// What was read, and where.
    pub fn seen(mut self, from: impl Into<String>, value: impl ToString) -> Finding {
        self.evidence.push(Evidence { from: from.into(), value: value.to_string().trim().to_owned() });
        self
    }

    /// What it does to this broker.
    pub fn effect(mut self, effect: impl Into<String>) -> Finding {
        self.effect = effect.into();
        self
    }

    /// What helps.
    pub fn fix(mut self, fix: impl Into<String>) -> Finding {
        self.fix = Some(fix.into());
        self
    }

    /// What helps, as a value for a file of the kernel.
    pub fn change(mut self, file: impl Into<String>, now: impl ToString, wanted: impl ToString) -> Finding {
        self.change = Some(Change { file: file.into(), now: now.to_string(), wanted: wanted.to_string() });
        self
    }

    /// A number for programs.
    pub fn figure(mut self, name: &str, value: impl Into<Value>) -> Finding {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    /// As programs read it.
    pub fn json(&self, id: &str, family: &str) -> Value {
        let evidence: Vec<Value> =
            self.evidence.iter().map(|seen| json!({ "from": seen.from, "value": seen.value })).collect();
        let mut object = Map::new();
        object.insert("id".to_owned(), id.into());
        object.insert("family".to_owned(), family.into());
        if let Some(subject) = &self.subject {
            object.insert("subject".to_owned(), subject.as_str().into());
        }
        object.insert("severity".to_owned(), self.severity.name().into());
        object.insert("title".to_owned(), self.title.as_str().into());
        object.insert("evidence".to_owned(), evidence.into());
        object.insert("effect".to_owned(), self.effect.as_str().into());
        if let Some(fix) = &self.fix {
            object.insert("fix".to_owned(), fix.as_str().into());
        }
        if let Some(change) = &self.change {
            object.insert(
                "change".to_owned(),
                json!({ "file": change.file, "now": change.now, "wanted": change.wanted }),
            );
        }
        if !self.figures.is_empty() {
            object.insert("figures".to_owned(), Value::Object(self.figures.clone()));
        }
        Value::Object(object)
    }
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut size, mut unit) = (bytes as f64, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{size:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_and_an_error_outranks_what_could_not_be_looked_at() {
        let worst = |all: &[Severity]| all.iter().max().unwrap().exit_code();
        assert_eq!(worst(&[Severity::Ok, Severity::Note]), 0);
        assert_eq!(worst(&[Severity::Warning, Severity::Note]), 1);
        assert_eq!(worst(&[Severity::Warning, Severity::Unknown]), 3);
        assert_eq!(worst(&[Severity::Error, Severity::Unknown, Severity::Warning]), 2);
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!([0, 1023, 1536, 5 << 30].map(size), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
    }
}
