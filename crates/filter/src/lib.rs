//! Which messages a consumer wants: SQL92 [`Expression`]s over the properties of messages, and [`bloom`] filters. (Tags are in
//! `protocol::tags`.)
//!
//! # The language
//!
//! RocketMQ's, accident by accident: a consumer that comes over from Apache gets the messages that it got there. Each rule is
//! checked against answers that were recorded from the published classes.
//!
//! | rule | form |
//! | --- | --- |
//! | expression | `or`; what follows it is ignored, but its first token has to be one |
//! | or | `and` { OR `and` } |
//! | and | `equality` { AND `equality` } |
//! | equality | `comparison` { = `comparison` \| <> `comparison` \| IS \[NOT\] NULL } |
//! | comparison | `unary` { > >= < <= `unary` \| \[NOT\] BETWEEN `unary` AND `unary` \| \[NOT\] IN ( `text` {, `text`} ) \| \[NOT\] CONTAINS, STARTSWITH, ENDSWITH `text` } |
//! | unary | + `unary` \| - `unary` \| NOT `unary` \| `primary` |
//! | primary | name \| literal \| ( `or` ) |
//! | name | ASCII letters, digits, `_` and `$`, not beginning with a digit; upper and lower case differ |
//! | text | `'it''s'` |
//! | integer | `0`, or digits that do not begin with 0, perhaps with an `L`; up to 2^63 - 1. No hexadecimal, no octal: `0x10` is `0` and ignored rest |
//! | fraction | `5.` `.5` `5.5` `5e1` `5.5E-1`; neither zero nor infinite as a double |
//! | other literals | TRUE FALSE NULL; like all words in any case |
//! | comment | `--` up to and with an end of line; `/*` up to `*/` |
//!
//! NOT binds more tightly than a comparison: `NOT a = 5` compares the condition `NOT a` with 5, `NOT a > 5` is refused.
//!
//! # What it means
//!
//! | what | result |
//! | --- | --- |
//! | a property that a message lacks | null; it is never empty |
//! | a property that it has | text; as a condition false, even if it says `true` |
//! | text against a number | the text is read as that number's type: 32 bits if the number fits, else 64 bits, or a double. If it is none, evaluation fails: `a < 5` fails for `3.5` and for `3000000000` |
//! | text on both sides of `<` `<=` `>` `>=` | both as doubles, or it fails |
//! | text against TRUE, FALSE | `a = TRUE` reads the text; `TRUE = a` fails |
//! | another condition against a number | not equal |
//! | null on both sides of `=` | true |
//! | null left of another value | null |
//! | null right of `=` | false; right of `<` `<=` `>` `>=` null |
//! | IN of null | null |
//! | CONTAINS, STARTSWITH, ENDSWITH and their negations | false for null and for an empty text to look for |
//! | the negation of what is no number | null |
//! | AND, OR, NOT | three-valued; AND ends at the first false, OR at the first true |
//!
//! A message is delivered if the result is true. Null and failure are a no.
//!
//! # Limits
//!
//! Apache has none but its stack; ours are [`EXPRESSION_BYTES_MAX`], [`DEPTH_MAX`] and [`NODES_MAX`]. What a message costs is counted
//! in [`Steps`], which the caller may bound.

mod eval;
mod expression;
mod java_number;
mod lexer;
mod node;
mod parser;
mod properties;
mod syntax_error;
mod value;

pub mod bloom;

pub use eval::{EvalError, Steps};
pub use expression::{DEPTH_MAX, EXPRESSION_BYTES_MAX, Expression, NODES_MAX};
pub use syntax_error::{SyntaxError, SyntaxErrorKind};
