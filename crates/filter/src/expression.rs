//! An SQL92 expression, compiled.

use std::fmt::{Display, Formatter};

use crate::eval::{EvalError, Evaluation};
use crate::node::{Node, Printed};
use crate::parser::parse;
use crate::properties::{fill, get};
use crate::syntax_error::SyntaxError;

/// Longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 64 << 10;
/// Deepest expression: parentheses, signs and NOTs inside of each other, and operators on the results of operators. Chains of
/// AND or OR count once. Apache ends where its stack does.
pub const DEPTH_MAX: usize = 128;
/// Most parts of an expression: operators, properties, literals, texts of a list.
pub const NODES_MAX: usize = 8192;

/// Names whose values are found in one pass over the properties. Beyond, each use of a property is a pass of its own.
const SLOTS: usize = 16;

/// A condition on the properties of a message, checked and ready to be evaluated for any number of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    root: Node,
    /// Each name once; the nodes refer to them by index.
    names: Vec<Box<str>>,
}

impl Expression {
    /// Compiles an expression. Whatever Apache accepts is accepted and whatever it refuses is refused, within
    /// [`EXPRESSION_BYTES_MAX`], [`DEPTH_MAX`] and [`NODES_MAX`].
    pub fn compile(text: &str) -> Result<Expression, SyntaxError> {
        let (root, names) = parse(text)?;
        Ok(Expression { root, names })
    }

    /// Whether a message with this property string is wanted. Null and an error are a no, as in Apache.
    pub fn matches(&self, properties: &[u8]) -> bool {
        self.eval(properties) == Ok(Some(true))
    }

    /// The result for a property string as it stands in a record (`name \x01 value \x02`, repeated): true, false, or `None` for
    /// null. Nothing is allocated.
    pub fn eval(&self, properties: &[u8]) -> Result<Option<bool>, EvalError> {
        if self.names.len() > SLOTS {
            return self.eval_with(|name| get(properties, name));
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
