//! An SQL92 expression, compiled.

use std::fmt::{Display, Formatter};

use crate::eval::{self, EvalError, Evaluation, Steps};
use crate::node::{Node, Printed};
use crate::parser::{Parsed, parse};
use crate::properties::{fill, fill_many};
use crate::syntax_error::SyntaxError;

/// Longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 64 << 10;
/// Deepest expression: parentheses, signs and NOTs inside of each other, and operators on the results of operators. Chains of
/// AND or OR count once. Apache ends where its stack does.
pub const DEPTH_MAX: usize = 128;
/// Most parts of an expression: operators, properties, literals, texts of a list.
pub const NODES_MAX: usize = 8192;

/// Names whose values have their place on the stack. Beyond, each evaluation allocates once.
const SLOTS: usize = 16;

/// A condition on the properties of a message, checked and ready to be evaluated for any number of them.
#[derive(Clone, Debug)]
pub struct Expression {
    root: Node,
    /// Each name once; the nodes refer to them by index.
    names: Vec<Box<str>>,
    /// Their indexes in the order of the names, where they are more than [`SLOTS`].
    by_name: Vec<u16>,
    /// Of at most [`NODES_MAX`].
    parts: usize,
}

impl Expression {
    /// Compiles an expression. Whatever Apache accepts is accepted and whatever it refuses is refused, within
    /// [`EXPRESSION_BYTES_MAX`], [`DEPTH_MAX`] and [`NODES_MAX`].
    pub fn compile(text: &str) -> Result<Expression, SyntaxError> {
        let Parsed { root, names, parts } = parse(text)?;
        let mut by_name = Vec::new();
        if names.len() > SLOTS {
            by_name.extend((0..u16::MAX).take(names.len()));
            by_name.sort_by_key(|index| &*names[usize::from(*index)]);
        }
        Ok(Expression { root, names, by_name, parts })
    }

    /// How many operators, properties, literals and texts of lists it has: a message takes at most some steps for each of them, and
    /// more only by the bytes of its properties.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Whether a message with this property string is wanted. Null and an error are a no, as in Apache.
    pub fn matches(&self, properties: &[u8]) -> bool {
        self.eval(properties) == Ok(Some(true))
    }

    /// The same within these steps. `None`: they were spent before it was known.
    pub fn matches_within(&self, properties: &[u8], steps: &Steps) -> Option<bool> {
        match self.eval_within(properties, steps) {
            Ok(truth) => Some(truth == Some(true)),
            Err(EvalError::Spent) => None,
            Err(EvalError::NotANumber | EvalError::TextComparedWithBoolean) => Some(false),
        }
    }

    /// The result for a property string as it stands in a record (`name \x01 value \x02`, repeated): true, false, or `None` for
    /// null. Up to 16 different properties nothing is allocated.
    pub fn eval(&self, properties: &[u8]) -> Result<Option<bool>, EvalError> {
        self.eval_within(properties, &Steps::unbounded())
    }

    fn eval_within(&self, properties: &[u8], steps: &Steps) -> Result<Option<bool>, EvalError> {
        steps.take(eval::bytes(properties.len()))?;
        if self.names.len() > SLOTS {
            steps.take(eval::bytes(size_of::<Option<&[u8]>>() * self.names.len()))?;
            let mut slots = vec![None; self.names.len()];
            fill_many(properties, &self.names, &self.by_name, &mut slots, steps)?;
            return Evaluation { get: |slot: usize| slots[slot], steps }.truth(&self.root);
        }
        let mut slots = [None; SLOTS];
        fill(properties, &self.names, &mut slots, steps)?;
        Evaluation { get: |slot: usize| slots[slot], steps }.truth(&self.root)
    }

    /// The result for properties that are looked up by name.
    pub fn eval_with<'a>(&'a self, property: impl Fn(&str) -> Option<&'a [u8]>) -> Result<Option<bool>, EvalError> {
        Evaluation { get: |slot: usize| property(&self.names[slot]), steps: &Steps::unbounded() }.truth(&self.root)
    }

    /// The properties that it looks at, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

/// By what they say: a part that is written twice and kept once makes no difference.
impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.root == other.root && self.names == other.names
    }
}

/// The expression in its shortest spelling; compiled again, it is the same expression.
impl Display for Expression {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Printed { node: &self.root, names: &self.names }.fmt(f)
    }
}

const _: () = assert!(NODES_MAX < u16::MAX as usize, "an index of a name fits `by_name`");

#[cfg(test)]
mod tests {
    use super::*;

    /// `a CONTAINS 'x0' OR a CONTAINS 'x1' …`
    fn long(terms: usize) -> Expression {
        let terms: Vec<String> = (0..terms).map(|n| format!("a CONTAINS 'x{n}'")).collect();
        Expression::compile(&terms.join(" OR ")).unwrap()
    }

    fn steps(expression: &Expression, properties: &[u8]) -> u64 {
        let steps = Steps::unbounded();
        assert!(expression.matches_within(properties, &steps).is_some());
        u64::MAX - steps.left()
    }

    #[test]
    fn an_evaluation_is_counted_by_its_terms_and_by_the_bytes_that_they_compare() {
        let (few, many) = (long(10), long(2500));
        let short = b"a\x01nothing of it\x02".as_slice();
        let of_one = (steps(&many, short) - steps(&few, short)) / 2490;
        assert_eq!(steps(&many, short) - steps(&few, short), of_one * 2490, "each term takes as much as the next");
        assert!((2..20).contains(&of_one), "{of_one}");
        let value = "y".repeat(16_000);
        let long_value = steps(&many, format!("a\x01{value}\x02").as_bytes());
        assert!(long_value > 2500 * 1000, "a search through 16,000 bytes is not one step: {long_value}");
        // What is not evaluated costs nothing.
        assert!(steps(&many, b"a\x01x0\x02") < 20);
        for text in ["a = 'yyyyyyyy'", "a > 5", "a IN ('yyyyyyyyy')", "a ENDSWITH 'yyyyy'"] {
            assert!(steps(&Expression::compile(text).unwrap(), b"a\x01yyyyyyyyy\x02") < 20, "{text}");
        }
    }

    #[test]
    fn an_evaluation_stops_where_its_steps_are_spent_and_says_neither_yes_nor_no() {
        let many = long(2500);
        let needed = steps(&many, b"a\x01x2499\x02");
        let within = |given: u64| {
            let steps = Steps::new(given);
            (many.matches_within(b"a\x01x2499\x02", &steps), steps.left())
        };
        assert_eq!(within(needed), (Some(true), 0));
        assert_eq!(within(needed - 1), (None, 0));
        assert_eq!(within(0), (None, 0));
        // An evaluation that fails is a no, as always.
        let text = Expression::compile("a > 5").unwrap();
        assert_eq!(text.matches_within(b"a\x01x\x02", &Steps::new(100)), Some(false));
    }

    #[test]
    fn many_properties_are_found_as_few_are() {
        // Two parts each; of two properties with one name the last counts.
        let parts: Vec<String> = (0..200).rev().map(|n| format!("p{n} = '{n}' AND p{n} IS NOT NULL")).collect();
        let all = Expression::compile(&parts.join(" AND ")).unwrap();
        assert_eq!(all.names().count(), 200);
        let properties = |skipped: usize| -> Vec<u8> {
            let own = (0..200).filter(|n| *n != skipped).map(|n| format!("p{n}\u{1}{n}\u{2}"));
            std::iter::once("p7\u{1}first\u{2}other\u{1}x\u{2}".to_owned()).chain(own).collect::<String>().into_bytes()
        };
        assert_eq!(all.eval(&properties(usize::MAX)), Ok(Some(true)));
        assert_eq!(all.eval(&properties(150)), Ok(Some(false)), "p150 IS NOT NULL is false");
        assert_eq!(all.eval(&properties(7)), Ok(Some(false)), "p7 is 'first'");
    }
}
