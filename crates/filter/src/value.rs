//! What the parts of an expression amount to for one message, and how two of them compare.

use std::cmp::Ordering;

use crate::eval::EvalError;
use crate::java_number;
use crate::node::Constant;

/// A value, of one of the Java types that the published classes tell apart. A property is always text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn of_constant(constant: &'a Constant) -> Value<'a> {
        match constant {
            Constant::Null => Value::Null,
            Constant::Bool(value) => Value::Bool(*value),
            Constant::Int(value) => Value::Int(*value),
            Constant::Long(value) => Value::Long(*value),
            Constant::Double(value) => Value::Double(*value),
            Constant::Text(value) => Value::Text(value.as_bytes()),
        }
    }

    pub fn of_truth(truth: Option<bool>) -> Value<'a> {
        truth.map_or(Value::Null, Value::Bool)
    }

    /// The value with the other sign; nothing but a number has one.
    pub fn negated(self) -> Value<'a> {
        match self {
            Value::Int(value) => Value::Int(value.wrapping_neg()),
            Value::Long(value) => Value::Long(value.wrapping_neg()),
            Value::Double(value) => Value::Double(-value),
            Value::Null | Value::Bool(_) | Value::Text(_) => Value::Null,
        }
    }
}

/// `left = right`: null when only the left is null, false when only the right is.
pub(crate) fn equal(left: Value<'_>, right: Value<'_>) -> Result<Option<bool>, EvalError> {
    match (left, right) {
        (Value::Null, Value::Null) => Ok(Some(true)),
        (Value::Null, _) => Ok(None),
        (_, Value::Null) => Ok(Some(false)),
        (left, right) => Ok(Some(compare(left, right)? == Ordering::Equal)),
    }
}

/// For `<`, `<=`, `>` and `>=`. Two texts are ordered as doubles or not at all.
pub(crate) fn order(left: Value<'_>, right: Value<'_>) -> Result<Ordering, EvalError> {
    if let (Value::Text(left), Value::Text(right)) = (left, right) {
        return Ok(compare_doubles(double(left)?, double(right)?));
    }
    compare(left, right)
}

/// What the published `ComparisonExpression.__compare` answers. Text is read as the type of the other side. A boolean and a
/// number have no order: they are unequal, which the classes express as "less".
pub(crate) fn compare(left: Value<'_>, right: Value<'_>) -> Result<Ordering, EvalError> {
    Ok(match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => left.cmp(&right),
        // The classes cast the boolean to text here, where they mean the other side.
        (Value::Bool(_), Value::Text(_)) => return Err(EvalError::TextComparedWithBoolean),
        (Value::Text(left), Value::Bool(right)) => left.eq_ignore_ascii_case(b"true").cmp(&right),
        (Value::Text(left), Value::Text(right)) => left.cmp(right),

        (Value::Int(left), Value::Int(right)) => left.cmp(&right),
        (Value::Int(left), Value::Long(right)) => i64::from(left).cmp(&right),
        (Value::Int(left), Value::Double(right)) => compare_doubles(f64::from(left), right),
        (Value::Int(left), Value::Text(right)) => left.cmp(&int(right)?),
        (Value::Text(left), Value::Int(right)) => int(left)?.cmp(&right),

        (Value::Long(left), Value::Int(right)) => left.cmp(&i64::from(right)),
        (Value::Long(left), Value::Long(right)) => left.cmp(&right),
        (Value::Long(left), Value::Double(right)) => compare_doubles(left as f64, right),
        (Value::Long(left), Value::Text(right)) => left.cmp(&long(right)?),
        (Value::Text(left), Value::Long(right)) => long(left)?.cmp(&right),

        (Value::Double(left), Value::Int(right)) => compare_doubles(left, f64::from(right)),
        (Value::Double(left), Value::Long(right)) => compare_doubles(left, right as f64),
        (Value::Double(left), Value::Double(right)) => compare_doubles(left, right),
        (Value::Double(left), Value::Text(right)) => compare_doubles(left, double(right)?),
        (Value::Text(left), Value::Double(right)) => compare_doubles(double(left)?, right),

        (Value::Bool(_), Value::Null | Value::Int(_) | Value::Long(_) | Value::Double(_))
        | (Value::Null | Value::Int(_) | Value::Long(_) | Value::Double(_), Value::Bool(_))
        | (Value::Null, Value::Null | Value::Int(_) | Value::Long(_) | Value::Double(_) | Value::Text(_))
        | (Value::Int(_) | Value::Long(_) | Value::Double(_) | Value::Text(_), Value::Null) => Ordering::Less,
    })
}

/// `Double.compare`: minus zero is less than zero, and NaN equals itself and is greater than everything else.
fn compare_doubles(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

fn int(text: &[u8]) -> Result<i32, EvalError> {
    java_number::int(text).ok_or(EvalError::NotANumber)
}

fn long(text: &[u8]) -> Result<i64, EvalError> {
    java_number::long(text).ok_or(EvalError::NotANumber)
}

fn double(text: &[u8]) -> Result<f64, EvalError> {
    java_number::double(text).ok_or(EvalError::NotANumber)
}
