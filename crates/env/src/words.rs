//! Words that every command needs: an error with its causes, and numbers of things.

use std::error::Error;
use std::fmt;

/// An error and its causes in one line: what happened, why, and why that.
///
/// Many errors name their cause in their own sentence. Such a cause is said once.
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.contains(&text) {
            said.push_str(": ");
            said.push_str(&text);
        }
        next = cause.source();
    }
    said
}

/// A number of things, in the singular if it is one: `1 finding`, `2 entries`.
pub fn counted(count: impl fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" {
        return format!("1 {noun}");
    }
    // The last word alone changes: "2 consume queues".
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{count} {stem}ies"),
        _ if noun.ends_with(['s', 'x']) || noun.ends_with("ch") || noun.ends_with("sh") => format!("{count} {noun}es"),
        Some(_) | None => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
            text.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|layer| layer as &(dyn Error + 'static))
        }
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let mut rest = None;
        for text in texts.iter().rev() {
            rest = Some(Box::new(Layer(text, rest)));
        }
        *rest.unwrap()
    }

    #[test]
    fn a_cause_that_its_effect_has_named_is_said_once() {
        let said = |texts: &[&'static str]| sentence(&layers(texts));
        assert_eq!(said(&["cannot open a", "permission denied"]), "cannot open a: permission denied");
        assert_eq!(said(&["bad address", "bad address"]), "bad address");
        assert_eq!(said(&["no start", "cannot map f: no room", "no room"]), "no start: cannot map f: no room");
        assert_eq!(said(&["a: c", "b", "c"]), "a: c: b");
    }

    #[test]
    fn one_thing_is_in_the_singular() {
        let said = |count: u64, noun: &str| counted(count, noun);
        assert_eq!(
            [said(0, "finding"), said(1, "finding"), said(2, "finding")],
            ["0 findings", "1 finding", "2 findings"]
        );
        assert_eq!([said(1, "entry"), said(3, "entry"), said(2, "key")], ["1 entry", "3 entries", "2 keys"]);
        assert_eq!([said(1, "process"), said(2, "process")], ["1 process", "2 processes"]);
        assert_eq!(counted("1,000", "message"), "1,000 messages");
    }
}
