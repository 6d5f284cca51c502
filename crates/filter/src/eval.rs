//! A tree and the properties of a message, evaluated to true, false or null.
//!
//! An evaluation counts what it costs in steps, so that its caller can bound it: see [`Steps`].

use std::cell::Cell;
use std::cmp::Ordering;

use crate::node::{Comparison, Node, Part, Slot};
use crate::value::{Value, equal, order};

/// Why an expression has no result for a message. Apache logs it and does not deliver the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// What is compared with a number, or ordered, is no number of that type: `"3.5"` against `5`, `"x"` against `1.5`.
    #[error("a text is compared with a number, and is none of that type")]
    NotANumber,
    /// TRUE, FALSE or another condition stands left of a text in a comparison. The other way round works.
    #[error("a text stands right of a condition in a comparison")]
    TextComparedWithBoolean,
    /// The evaluation takes more [`Steps`] than were left; the message is neither wanted nor unwanted.
    #[error("the steps that the evaluation may take are spent")]
    Spent,
}

/// What evaluations may still cost. A step is about 10 ns of a processor of today: a part of the expression takes one, and more
/// by the bytes that it compares.
///
/// It counts work, not time, so the same condition and the same messages always stop at the same place.
#[derive(Debug)]
pub struct Steps {
    left: Cell<u64>,
}

impl Steps {
    /// So many.
    pub const fn new(steps: u64) -> Steps {
        Steps { left: Cell::new(steps) }
    }

    /// As many as an evaluation takes.
    pub const fn unbounded() -> Steps {
        Steps::new(u64::MAX)
    }

    /// How many are left.
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// Takes so many. With fewer left none is left, and the answer is `Spent`.
    pub fn take(&self, steps: u64) -> Result<(), EvalError> {
        let left = self.left.get();
        self.left.set(left.saturating_sub(steps));
        if left < steps { Err(EvalError::Spent) } else { Ok(()) }
    }
}

/// Bytes that are compared, searched or copied in one step.
const BYTES_A_STEP: usize = 16;
/// Characters of a number that are read in one step.
const DIGITS_A_STEP: usize = 4;
/// A search for a text in a value prepares itself first.
const SEARCH_STEPS: u64 = 8;

/// What it costs to go through so many bytes once.
pub(crate) fn bytes(length: usize) -> u64 {
    (length / BYTES_A_STEP) as u64
}

/// What it costs to read a value as a number.
fn digits(value: Value<'_>) -> u64 {
    match value {
        Value::Text(text) => (text.len() / DIGITS_A_STEP) as u64,
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Long(_) | Value::Double(_) => 0,
    }
}

/// Whether an operator is content with the order of its operands.
type IsWanted = fn(Ordering) -> bool;

/// Evaluates with `get` for properties. Recursion is as deep as the tree, which the parser has bounded.
pub(crate) struct Evaluation<'s, G> {
    pub get: G,
    pub steps: &'s Steps,
}

impl<'a, G: Fn(Slot) -> Option<&'a [u8]>> Evaluation<'_, G> {
    /// The result of a condition.
    pub fn truth(&self, node: &'a Node) -> Result<Option<bool>, EvalError> {
        self.steps.take(1)?;
        match node {
            // A property is text, never a boolean: this is how the published classes see it, even for "true".
            Node::Condition(slot) => Ok((self.get)(*slot).map(|_| false)),
            Node::Not(value) => Ok(self.truth(value)?.map(|truth| !truth)),
            Node::And(nodes) => self.chain(nodes, false),
            Node::Or(nodes) => self.chain(nodes, true),
            Node::Compare { comparison, operands } => self.compare(*comparison, operands),
            Node::IsNull { is_negated, value } => Ok(Some(matches!(self.value(value)?, Value::Null) != *is_negated)),
            Node::Between { is_negated, operands } => self.between(*is_negated, operands),
            Node::In { is_negated, slot, list } => {
                let Some(value) = (self.get)(*slot) else { return Ok(None) };
                let halvings = u64::from(list.len().checked_ilog2().unwrap_or(0)) + 1;
                self.steps.take(halvings * (1 + bytes(value.len())))?;
                let is_in = list.binary_search_by(|text| text.as_bytes().cmp(value)).is_ok();
                Ok(Some(is_in != *is_negated))
            }
            Node::Match { part, is_negated, value, text } => self.is_match(*part, *is_negated, value, text),
            Node::Constant(_) | Node::Property(_) | Node::Negate(_) => match self.value(node)? {
                Value::Bool(truth) => Ok(Some(truth)),
                Value::Null | Value::Int(_) | Value::Long(_) | Value::Double(_) | Value::Text(_) => Ok(None),
            },
        }
    }

    fn value(&self, node: &'a Node) -> Result<Value<'a>, EvalError> {
        self.steps.take(1)?;
        match node {
            Node::Constant(constant) => Ok(Value::of_constant(constant)),
            Node::Property(slot) => Ok((self.get)(*slot).map_or(Value::Null, Value::Text)),
            Node::Negate(value) => Ok(self.value(value)?.negated()),
            Node::Condition(_)
            | Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Compare { .. }
            | Node::IsNull { .. }
            | Node::Between { .. }
            | Node::In { .. }
            | Node::Match { .. } => Ok(Value::of_truth(self.truth(node)?)),
        }
    }

    /// AND ends at the first false, OR at the first true. What stands behind that is not evaluated and cannot fail.
    fn chain(&self, nodes: &'a [Node], end: bool) -> Result<Option<bool>, EvalError> {
        let mut result = Some(!end);
        for node in nodes {
            match self.truth(node)? {
                Some(truth) if truth == end => return Ok(Some(end)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    }

    fn compare(&self, comparison: Comparison, operands: &'a [Node; 2]) -> Result<Option<bool>, EvalError> {
        let [left, right] = operands;
        let is_wanted: IsWanted = match comparison {
            Comparison::Equal => return self.equal(left, right),
            Comparison::NotEqual => return Ok(self.equal(left, right)?.map(|is_equal| !is_equal)),
            Comparison::Less => Ordering::is_lt,
            Comparison::LessOrEqual => Ordering::is_le,
            Comparison::Greater => Ordering::is_gt,
            Comparison::GreaterOrEqual => Ordering::is_ge,
        };
        self.ordered(self.value(left)?, right, is_wanted)
    }

    fn equal(&self, left: &'a Node, right: &'a Node) -> Result<Option<bool>, EvalError> {
        let (left, right) = (self.value(left)?, self.value(right)?);
        self.steps.take(match (left, right) {
            (Value::Text(left), Value::Text(right)) => bytes(left.len().min(right.len())),
            (left, right) => digits(left) + digits(right),
        })?;
        equal(left, right)
    }

    /// Null without a look at the right side if the left is null.
    fn ordered(&self, left: Value<'a>, right: &'a Node, is_wanted: IsWanted) -> Result<Option<bool>, EvalError> {
        if matches!(left, Value::Null) {
            return Ok(None);
        }
        let right = self.value(right)?;
        if matches!(right, Value::Null) {
            return Ok(None);
        }
        self.steps.take(digits(left) + digits(right))?;
        Ok(Some(is_wanted(order(left, right)?)))
    }

    /// `value >= low AND value <= high`; negated, `value < low OR value > high`.
    fn between(&self, is_negated: bool, operands: &'a [Node; 3]) -> Result<Option<bool>, EvalError> {
        let [value, low, high] = operands;
        let (at_low, at_high): (IsWanted, IsWanted) =
            if is_negated { (Ordering::is_lt, Ordering::is_gt) } else { (Ordering::is_ge, Ordering::is_le) };
        let value = self.value(value)?;
        let low = self.ordered(value, low, at_low)?;
        if low == Some(is_negated) {
            return Ok(low);
        }
        let high = self.ordered(value, high, at_high)?;
        Ok(if high == Some(is_negated) { high } else { low.and(high) })
    }

    /// Never null: what is no text, or an empty text to look for, makes both forms false.
    fn is_match(&self, part: Part, is_negated: bool, value: &'a Node, text: &str) -> Result<Option<bool>, EvalError> {
        let text = text.as_bytes();
        if text.is_empty() {
            return Ok(Some(false));
        }
        let Value::Text(value) = self.value(value)? else { return Ok(Some(false)) };
        let (preparing, compared) = match part {
            Part::Anywhere => (SEARCH_STEPS, value.len() + text.len()),
            Part::Start | Part::End => (0, text.len()),
        };
        self.steps.take(preparing + bytes(compared))?;
        let is_found = match part {
            Part::Anywhere => memchr::memmem::find(value, text).is_some(),
            Part::Start => value.starts_with(text),
            Part::End => value.ends_with(text),
        };
        Ok(Some(is_found != is_negated))
    }
}
