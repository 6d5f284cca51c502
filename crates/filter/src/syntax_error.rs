//! What is wrong with an expression, and where.

use std::fmt::{Display, Formatter};

/// Longest quotation of an expression in an error, in characters.
const QUOTE_CHARS_MAX: usize = 40;

/// Why an expression was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxErrorKind {
    /// A character that begins no token, or a text or a comment without an end.
    NoToken,
    /// A token that cannot follow what stands before it.
    UnexpectedToken,
    /// A value where a condition is needed: `5 OR a = 1`.
    NotACondition,
    /// An operand that its operator does not take: `a > 'x'`, `a = NULL`, `5 IN ('5')`.
    OperandType,
    /// An integer beyond 64 bits.
    IntegerRange,
    /// A fraction that is zero or infinite as a double.
    FractionRange,
    /// Both limits of a BETWEEN are literals, and they are in the wrong order or cannot be ordered.
    BetweenLimits,
    /// Longer, deeper or larger than we accept. Apache has no such limit but its stack.
    Limit,
}

/// An expression that is refused: where, what was found there, and what was expected instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SyntaxError {
    /// Why.
    pub kind: SyntaxErrorKind,
    /// In bytes from the start of the expression.
    pub offset: usize,
    /// From 1. A line ends with `\n`, `\r` or both.
    pub line: usize,
    /// From 1, in characters of that line.
    pub column: usize,
    /// What stands there: at most 40 characters of it; empty at the end of the expression.
    pub found: String,
    /// What could stand there.
    pub expected: &'static str,
}

impl SyntaxError {
    pub(crate) fn new(
        kind: SyntaxErrorKind,
        text: &str,
        offset: usize,
        found: &str,
        expected: &'static str,
    ) -> SyntaxError {
        let before = &text[..offset];
        let breaks = before.matches('\n').count() + before.matches('\r').count() - before.matches("\r\n").count();
        let line_start = before.rfind(['\n', '\r']).map_or(0, |at| at + 1);
        SyntaxError {
            kind,
            offset,
            line: breaks + 1,
            column: before[line_start..].chars().count() + 1,
            found: quote(found),
            expected,
        }
    }

    /// The remark of a refused subscription (code 23, `SUBSCRIPTION_PARSE_FAILED`). Like Apache's, it begins with the Java
    /// class of what went wrong, which is what a Java client puts into its exception and what people search for.
    pub fn remark(&self) -> String {
        let class = match self.kind {
            SyntaxErrorKind::NoToken => "org.apache.rocketmq.filter.parser.TokenMgrError",
            SyntaxErrorKind::UnexpectedToken | SyntaxErrorKind::NotACondition => {
                "org.apache.rocketmq.filter.parser.ParseException"
            }
            SyntaxErrorKind::IntegerRange => "java.lang.NumberFormatException",
            SyntaxErrorKind::OperandType
            | SyntaxErrorKind::FractionRange
            | SyntaxErrorKind::BetweenLimits
            | SyntaxErrorKind::Limit => "java.lang.RuntimeException",
        };
        format!("{class}: {self}")
    }
}

impl Display for SyntaxError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let SyntaxError { line, column, found, expected, .. } = self;
        if found.is_empty() {
            write!(f, "Encountered the end at line {line}, column {column}, expected {expected}")
        } else {
            write!(f, "Encountered {found:?} at line {line}, column {column}, expected {expected}")
        }
    }
}

fn quote(found: &str) -> String {
    match found.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &found[..end]),
        None => found.to_owned(),
    }
}
