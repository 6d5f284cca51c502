//! Files of `key: value` lines: the part of YAML that workload and driver files of the OpenMessaging benchmark use.
//!
//! Read here and not by a YAML crate because these files are flat: what is nested would only have to be refused afterwards, and the
//! refusal names the line. Later values win, so that a command line changes what a file says and is checked like it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use crate::error::BenchError;

/// A larger file is not one of settings.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What was given, by key.
#[derive(Clone, Debug)]
pub struct Fields {
    kind: &'static str,
    known: &'static [&'static str],
    given: BTreeMap<String, Given>,
}

#[derive(Clone, Debug)]
struct Given {
    value: String,
    /// A file's name, or what else said it.
    origin: String,
}

impl Fields {
    /// Nothing yet. `kind` is what errors call the file, `known` are its keys.
    pub fn new(kind: &'static str, known: &'static [&'static str]) -> Fields {
        Fields { kind, known, given: BTreeMap::new() }
    }

    /// Whether there is such a key.
    pub fn knows(&self, key: &str) -> bool {
        self.known.contains(&key)
    }

    /// Takes what a file says.
    pub fn read_file(&mut self, path: &Path) -> Result<(), BenchError> {
        let failed = |cause| BenchError::File { path: path.to_owned(), cause };
        let Some(bytes) = read_at_most(path, FILE_BYTES_MAX).map_err(failed)? else {
            let text = format!("{}: a {} has {FILE_BYTES_MAX} bytes at most", path.display(), self.kind);
            return Err(BenchError::Invalid(text));
        };
        let text = String::from_utf8(bytes).map_err(|error| failed(std::io::Error::other(error)))?;
        self.read(&text, &path.display().to_string())
    }

    /// Takes what a text says. A key may stand there once.
    pub fn read(&mut self, text: &str, origin: &str) -> Result<(), BenchError> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let syntax = |problem: String| BenchError::Syntax { origin: origin.to_owned(), line: index + 1, problem };
            let Some((key, value)) = entry(line).map_err(syntax)? else { continue };
            if let Some(before) = seen.insert(key.clone(), index + 1) {
                return Err(syntax(format!("{key} stands in line {before} already")));
            }
            self.set(&key, value, &format!("{origin} line {}", index + 1))?;
        }
        Ok(())
    }

    /// Takes one value. An empty one, `~` and `null` take back what was given before.
    pub fn set(&mut self, key: &str, value: Option<String>, origin: &str) -> Result<(), BenchError> {
        if !self.knows(key) {
            let known = self.known.join(", ");
            let (origin, key) = (origin.to_owned(), key.to_owned());
            return Err(BenchError::UnknownKey { origin, key, kind: self.kind, known });
        }
        match value {
            Some(value) => self.given.insert(key.to_owned(), Given { value, origin: origin.to_owned() }),
            None => self.given.remove(key),
        };
        Ok(())
    }

    /// A text, if there is one.
    pub fn text(&self, key: &str) -> Option<String> {
        self.given.get(key).map(|given| given.value.clone())
    }

    /// A number within limits.
    pub fn number<T>(&self, key: &str, usual: T, limits: RangeInclusive<T>) -> Result<T, BenchError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(given) = self.given.get(key) else { return Ok(usual) };
        // YAML allows `1_000_000`.
        let read: Option<T> = given.value.replace('_', "").parse().ok();
        match read {
            Some(value) if limits.contains(&value) => Ok(value),
            Some(_) | None => {
                Err(self.bad(key, format!("a number from {} to {} is expected", limits.start(), limits.end())))
            }
        }
    }

    /// True or false.
    pub fn truth(&self, key: &str, usual: bool) -> Result<bool, BenchError> {
        match self.given.get(key).map(|given| given.value.to_ascii_lowercase()).as_deref() {
            None => Ok(usual),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(self.bad(key, "true or false is expected".to_owned())),
        }
    }

    /// One of several words, in any case.
    pub fn choice<T: Copy>(&self, key: &str, usual: T, choices: &[(&str, T)]) -> Result<T, BenchError> {
        let Some(given) = self.given.get(key) else { return Ok(usual) };
        let found = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(&given.value));
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.bad(key, format!("{} is expected", words.join(" or ")))
        })
    }

    /// The error that says what is expected instead of what was given.
    pub fn bad(&self, key: &str, expected: String) -> BenchError {
        let (value, origin) = self
            .given
            .get(key)
            .map_or((String::new(), self.kind.to_owned()), |given| (given.value.clone(), given.origin.clone()));
        BenchError::BadValue { origin, key: key.to_owned(), value, expected }
    }
}

/// What is in a file; nothing if that is more than `max` bytes. A device tells no length and may have no end.
pub fn read_at_most(path: &Path, max: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= max))
}

/// Key and value of a line; nothing of an empty one, a comment, or the marks around a document.
fn entry(line: &str) -> Result<Option<(String, Option<String>)>, String> {
    let line = line.trim_end();
    if line.trim_start().is_empty() || line.trim_start().starts_with('#') || line == "---" || line == "..." {
        return Ok(None);
    }
    if line.starts_with([' ', '\t', '-']) {
        return Err("lists and nested values have no meaning here; `key: value` is expected".to_owned());
    }
    let found = line.split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with([' ', '\t']));
    let Some((key, rest)) = found else { return Err("`key: value` is expected".to_owned()) };
    Ok(Some((key.trim().to_owned(), scalar(rest.trim())?)))
}

/// The value behind a colon, without its comment and quotes.
fn scalar(text: &str) -> Result<Option<String>, String> {
    if let Some(quote) = text.chars().next().filter(|first| ['"', '\''].contains(first)) {
        let (value, rest) = text[1..].split_once(quote).ok_or("the quotation mark is not closed")?;
        if value.contains('\\') && quote == '"' {
            return Err("a backslash has no meaning here".to_owned());
        }
        let rest = rest.trim_start();
        if !rest.is_empty() && !rest.starts_with('#') {
            return Err(format!("\"{rest}\" stands behind the quotation mark"));
        }
        return Ok(Some(value.to_owned()));
    }
    let value = text.split_once(" #").map_or(text, |(value, _)| value).trim_end();
    match value {
        "" | "~" | "null" => Ok(None),
        value if value.starts_with('#') => Ok(None),
        value if value.starts_with(['[', '{', '&', '*', '!', '|', '>', '%', '@', '`']) => {
            Err(format!("\"{value}\" is no plain value; lists, references and blocks have no meaning here"))
        }
        value => Ok(Some(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        Fields::new("workload", &["name", "rate", "on"])
    }

    #[test]
    fn comments_quotes_and_document_marks_are_read_as_yaml_means_them() {
        let mut read = fields();
        read.read("# head\n---\nname: \"a # b\" # why\nrate: 1_000 # a second\non: ~\n...\n", "w").unwrap();
        assert_eq!(read.text("name").as_deref(), Some("a # b"));
        assert_eq!(read.number("rate", 1, 0..=2000).unwrap(), 1000);
        assert!(read.truth("on", true).unwrap());
    }

    #[test]
    fn what_is_not_flat_is_refused_with_its_line() {
        for (text, words) in [
            ("name: a\n  rate: 1", "w line 2: lists and nested"),
            ("- name", "w line 1: lists and nested"),
            ("name: [a, b]", "\"[a, b]\" is no plain value"),
            ("name: a\nname: b", "w line 2: name stands in line 1 already"),
            ("name", "`key: value` is expected"),
            ("name: \"a", "not closed"),
            ("name: 'a' b", "stands behind the quotation mark"),
            ("naem: a", "naem is no key of a workload; known are name, rate, on"),
        ] {
            let said = fields().read(text, "w").unwrap_err().to_string();
            assert!(said.contains(words), "{text:?}: {said}");
        }
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let said = fields().read_file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(said, "/dev/zero: a workload has 1048576 bytes at most");
    }

    #[test]
    fn a_bad_value_is_told_with_its_place_and_the_limits() {
        let mut read = fields();
        read.read("rate: many\non: maybe", "w").unwrap();
        let said = read.number("rate", 1, 0..=9).unwrap_err().to_string();
        assert_eq!(said, "w line 1: rate is \"many\"; a number from 0 to 9 is expected");
        read.set("rate", Some("10".to_owned()), "--set").unwrap();
        let said = read.number("rate", 1, 0..=9).unwrap_err().to_string();
        assert_eq!(said, "--set: rate is \"10\"; a number from 0 to 9 is expected");
        let said = read.truth("on", true).unwrap_err().to_string();
        assert_eq!(said, "w line 2: on is \"maybe\"; true or false is expected");
    }
}
