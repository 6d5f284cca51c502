//! A tree and the properties of a message, evaluated to true, false or null.

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
}

/// Whether an operator is content with the order of its operands.
type IsWanted = fn(Ordering) -> bool;

/// Evaluates with `get` for properties. Recursion is as deep as the tree, which the parser has bounded.
pub(crate) struct Evaluation<G> {
    pub get: G,
}

impl<'a, G: Fn(Slot) -> Option<&'a [u8]>> Evaluation<G> {
    /// The result of a condition.
    pub fn truth(&self, node: &'a Node) -> Result<Option<bool>, EvalError> {
        match node {
            // A property is text, never a boolean: this is how the published classes see it, even for "true".
            Node::Condition(slot) => Ok((self.get)(*slot).map(|_| false)),
            Node::Not(value) => Ok(self.truth(value)?.map(|truth| !truth)),
            Node::And(nodes) => self.chain(nodes, false),
            Node::Or(nodes) => self.chain(nodes, true),
            Node::Compare { comparison, operands } => self.compare(*comparison, operands),
            Node::IsNull { is_negated, value } => Ok(Some(matches!(self.value(value)?, Value::Null) != *is_negated)),
            Node::Between { is_negated, operands } => self.between(*is_negated, operands),
            Node::In { is_negated, slot, list } => Ok((self.get)(*slot).map(|value| {
                let is_in = list.binary_search_by(|text| text.as_bytes().cmp(value)).is_ok();
                is_in != *is_negated
            })),
            Node::Match { part, is_negated, value, text } => self.is_match(*part, *is_negated, value, text),
            Node::Constant(_) | Node::Property(_) | Node::Negate(_) => match self.value(node)? {
                Value::Bool(truth) => Ok(Some(truth)),
                Value::Null | Value::Int(_) | Value::Long(_) | Value::Double(_) | Value::Text(_) => Ok(None),
            },
        }
    }

    fn value(&self, node: &'a Node) -> Result<Value<'a>, EvalError> {
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
            Comparison::Equal => return equal(self.value(left)?, self.value(right)?),
            Comparison::NotEqual => {
                return Ok(equal(self.value(left)?, self.value(right)?)?.map(|is_equal| !is_equal));
            }
            Comparison::Less => Ordering::is_lt,
            Comparison::LessOrEqual => Ordering::is_le,
            Comparison::Greater => Ordering::is_gt,
            Comparison::GreaterOrEqual => Ordering::is_ge,
        };
        self.ordered(self.value(left)?, right, is_wanted)
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
        let is_found = match part {
            Part::Anywhere => memchr::memmem::find(value, text).is_some(),
            Part::Start => value.starts_with(text),
            Part::End => value.ends_with(text),
        };
        Ok(Some(is_found != is_negated))
    }
}
