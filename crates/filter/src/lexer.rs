//! Expression text, cut into tokens as the published `SelectorParserTokenManager` cuts it.
//!
//! A token is read when the parser asks for it, never earlier: what lies behind a complete expression is ignored, and so it
//! may be something that is no token at all.

use crate::syntax_error::{SyntaxError, SyntaxErrorKind};

/// One token. Words and literals borrow the text of the expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
    /// Digits, perhaps with an `L` behind them.
    Decimal(&'a str),
    Float(&'a str),
    /// What stands between the quotes, with quotes inside still doubled.
    Text(&'a str),
    Name(&'a str),
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Open,
    Comma,
    Close,
    Plus,
    Minus,
    End,
}

/// Reserved in any mixture of cases.
const KEYWORDS: [(&str, Token<'static>); 12] = [
    ("NOT", Token::Not),
    ("AND", Token::And),
    ("OR", Token::Or),
    ("BETWEEN", Token::Between),
    ("IN", Token::In),
    ("TRUE", Token::True),
    ("FALSE", Token::False),
    ("NULL", Token::Null),
    ("IS", Token::Is),
    ("CONTAINS", Token::Contains),
    ("STARTSWITH", Token::StartsWith),
    ("ENDSWITH", Token::EndsWith),
];

/// A token and the bytes of the expression that it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub token: Token<'a>,
    pub start: usize,
    pub end: usize,
}

#[derive(Debug)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0 }
    }

    /// The whole expression.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The next token; `End` at the end, as often as it is asked for.
    pub fn next(&mut self) -> Result<Placed<'a>, SyntaxError> {
        self.skip()?;
        let start = self.at;
        let token = self.token()?;
        Ok(Placed { token, start, end: self.at })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips blanks and comments.
    fn skip(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = self.rest();
            let skipped = match rest.as_bytes() {
                [b' ' | b'\t' | b'\n' | b'\r' | 0x0c, ..] => 1,
                // A comment ends with its line. Without an end of line these are two minus signs.
                [b'-', b'-', ..] => match rest.find(['\n', '\r']) {
                    Some(end) if rest[end..].starts_with("\r\n") => end + 2,
                    Some(end) => end + 1,
                    None => return Ok(()),
                },
                [b'/', b'*', ..] => match rest[2..].find("*/") {
                    Some(end) => end + 4,
                    None => return Err(self.refuse(rest, "the end of the comment: */")),
                },
                _ => return Ok(()),
            };
            self.at += skipped;
        }
    }

    fn token(&mut self) -> Result<Token<'a>, SyntaxError> {
        let rest = self.rest();
        let (token, bytes) = match rest.as_bytes() {
            [] => (Token::End, 0),
            [b'=', ..] => (Token::Equal, 1),
            [b'<', b'>', ..] => (Token::NotEqual, 2),
            [b'<', b'=', ..] => (Token::LessOrEqual, 2),
            [b'<', ..] => (Token::Less, 1),
            [b'>', b'=', ..] => (Token::GreaterOrEqual, 2),
            [b'>', ..] => (Token::Greater, 1),
            [b'(', ..] => (Token::Open, 1),
            [b',', ..] => (Token::Comma, 1),
            [b')', ..] => (Token::Close, 1),
            [b'+', ..] => (Token::Plus, 1),
            [b'-', ..] => (Token::Minus, 1),
            [b'\'', ..] => {
                let bytes = text_bytes(rest).ok_or_else(|| self.refuse(rest, "the end of the text: '"))?;
                (Token::Text(&rest[1..bytes - 1]), bytes)
            }
            [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => number(rest),
            [first, ..] if is_name_byte(*first) => {
                let bytes = count(rest, is_name_byte);
                let word = &rest[..bytes];
                let keyword = KEYWORDS.iter().find(|(keyword, _)| keyword.eq_ignore_ascii_case(word));
                (keyword.map_or(Token::Name(word), |(_, token)| *token), bytes)
            }
            _ => {
                let character = rest.chars().next().map_or(0, char::len_utf8);
                return Err(self.refuse(&rest[..character], "a name, a literal or an operator"));
            }
        };
        self.at += bytes;
        Ok(token)
    }

    fn refuse(&self, found: &str, expected: &'static str) -> SyntaxError {
        SyntaxError::new(SyntaxErrorKind::NoToken, self.text, self.at, found, expected)
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

fn count(text: &str, is_counted: fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| is_counted(*byte)).count()
}

fn digits(text: &str) -> usize {
    count(text, |byte| byte.is_ascii_digit())
}

/// The length of a text literal with its quotes; two quotes inside stand for one.
fn text_bytes(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    loop {
        at += memchr::memchr(b'\'', bytes.get(at..)?)? + 1;
        if bytes.get(at) != Some(&b'\'') {
            return Some(at);
        }
        at += 1;
    }
}

/// The longest number at the start of the text, which begins with a digit or with a point and a digit.
fn number(rest: &str) -> (Token<'_>, usize) {
    let whole = digits(rest);
    let mut end = whole;
    if rest[end..].starts_with('.') {
        end += 1 + digits(&rest[end + 1..]);
    }
    end += exponent_bytes(&rest[end..]);
    if end > whole {
        return (Token::Float(&rest[..end]), end);
    }
    // A leading zero is a number of its own, so there is neither octal nor hexadecimal.
    let bytes = if rest.starts_with('0') { 1 } else { whole + usize::from(rest[whole..].starts_with(['l', 'L'])) };
    (Token::Decimal(&rest[..bytes]), bytes)
}

fn exponent_bytes(text: &str) -> usize {
    if !text.starts_with(['e', 'E']) {
        return 0;
    }
    let sign = usize::from(text[1..].starts_with(['+', '-']));
    match digits(&text[1 + sign..]) {
        0 => 0,
        digits => 1 + sign + digits,
    }
}
