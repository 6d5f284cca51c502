//! An SQL92 expression, compiled.

use std::fmt::{Display, Formatter};

use crate::eval::{EvalError, Evaluation};
use crate::node::{Node, Printed};
use crate::parser::parse;
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
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    root: Node,
    /// Each name once; the nodes refer to them by index.
    names: Vec<Box<str>>,
    /// Their indexes in the order of the names, where they are more than [`SLOTS`].
    by_name: Vec<u16>,
}

impl Expression {
    /// Compiles an expression. Whatever Apache accepts is accepted and whatever it refuses is refused, within
    /// [`EXPRESSION_BYTES_MAX`], [`DEPTH_MAX`] and [`NODES_MAX`].
    pub fn compile(text: &str) -> Result<Expression, SyntaxError> {
        let (root, names) = parse(text)?;
        let mut by_name = Vec::new();
        if names.len() > SLOTS {
            by_name.extend((0..u16::MAX).take(names.len()));
            by_name.sort_by_key(|index| &*names[usize::from(*index)]);
        }
        Ok(Expression { root, names, by_name })
    }

    /// Whether a message with this property string is wanted. Null and an error are a no, as in Apache.
    pub fn matches(&self, properties: &[u8]) -> bool {
        self.eval(properties) == Ok(Some(true))
    }

    /// The result for a property string as it stands in a record (`name \x01 value \x02`, repeated): true, false, or `None` for
    /// null. Up to 16 different properties nothing is allocated.
    pub fn eval(&self, properties: &[u8]) -> Result<Option<bool>, EvalError> {
        if self.names.len() > SLOTS {
            let mut slots = vec![None; self.names.len()];
            fill_many(properties, &self.names, &self.by_name, &mut slots);
            return Evaluation { get: |slot: usize| slots[slot] }.truth(&self.root);
        }
        let mut slots = [None; SLOTS];
        fill(properties, &self.names, &mut slots);
        Evaluation { get: |slot: usize| slots[slot] }.truth(&self.root)
    }

    /// The result for properties that are looked up by name.
    pub fn eval_with<'a>(&'a self, property: impl Fn(&str) -> Option<&'a [u8]>) -> Result<Option<bool>, EvalError> {
        Evaluation { get: |slot: usize| property(&self.names[slot]) }.truth(&self.root)
    }

    /// The properties that it looks at, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
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
