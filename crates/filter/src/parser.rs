//! Tokens into a tree: the grammar of the published `SelectorParser`, a function for each of its rules.
//!
//! The checks of operands are those that the published classes make while they build their own tree, in the same order, so that
//! the same expressions are refused. What follows a complete expression is not looked at, but for its first token.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a rule of the grammar names the tokens it takes; all others are for others"
)]

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::expression::{DEPTH_MAX, EXPRESSION_BYTES_MAX, NODES_MAX};
use crate::lexer::{Lexer, Placed, Token};
use crate::node::{Comparison, Constant, Node, Part, Slot};
use crate::syntax_error::{SyntaxError, SyntaxErrorKind};
use crate::value::{Value, compare};

const A_VALUE: &str = "a property, a literal, NOT, a sign or (";
const A_CONDITION: &str = "a condition";
const ORDERED: &str = "a number or a property: only those can be ordered";

/// A node, how deep it is, and the bytes of the expression that it covers.
struct Built {
    node: Node,
    depth: usize,
    start: usize,
    end: usize,
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    peeked: Option<Placed<'a>>,
    names: Vec<Box<str>>,
    /// Of each name, by its text: an expression may have thousands.
    slots: HashMap<&'a str, Slot>,
    nodes: usize,
    /// Parentheses and signs that are open at this point.
    nesting: usize,
}

/// What an expression says.
pub(crate) struct Parsed {
    /// Its tree.
    pub root: Node,
    /// The names of its properties in the order of their first appearance.
    pub names: Vec<Box<str>>,
    /// How many parts were counted.
    pub parts: usize,
}

/// Reads an expression. What it takes grows with the text, and not faster.
pub(crate) fn parse(text: &str) -> Result<Parsed, SyntaxError> {
    let lexer = Lexer::new(text);
    let mut parser = Parser { lexer, peeked: None, names: Vec::new(), slots: HashMap::new(), nodes: 0, nesting: 0 };
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(parser.limit(EXPRESSION_BYTES_MAX, "no more than 65536 bytes"));
    }
    let whole = parser.or()?;
    let whole = parser.condition(whole)?;
    Ok(Parsed { root: whole.node, names: parser.names, parts: parser.nodes })
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Result<Token<'a>, SyntaxError> {
        Ok(self.peek_placed()?.token)
    }

    fn peek_placed(&mut self) -> Result<Placed<'a>, SyntaxError> {
        match self.peeked {
            Some(placed) => Ok(placed),
            None => Ok(*self.peeked.insert(self.lexer.next()?)),
        }
    }

    fn take(&mut self) -> Result<Placed<'a>, SyntaxError> {
        let placed = self.peek_placed()?;
        self.peeked = None;
        Ok(placed)
    }

    fn take_if(&mut self, token: Token<'_>) -> Result<bool, SyntaxError> {
        let is_there = self.peek()? == token;
        if is_there {
            self.take()?;
        }
        Ok(is_there)
    }

    /// Takes this token and says where it ends.
    fn expect(&mut self, token: Token<'_>, expected: &'static str) -> Result<usize, SyntaxError> {
        let placed = self.take()?;
        if placed.token == token { Ok(placed.end) } else { Err(self.unexpected(placed, expected)) }
    }

    fn unexpected(&self, placed: Placed<'_>, expected: &'static str) -> SyntaxError {
        let found = &self.lexer.text()[placed.start..placed.end];
        SyntaxError::new(SyntaxErrorKind::UnexpectedToken, self.lexer.text(), placed.start, found, expected)
    }

    fn refuse(&self, kind: SyntaxErrorKind, built: &Built, expected: &'static str) -> SyntaxError {
        let found = &self.lexer.text()[built.start..built.end];
        SyntaxError::new(kind, self.lexer.text(), built.start, found, expected)
    }

    fn limit(&self, offset: usize, expected: &'static str) -> SyntaxError {
        let text = self.lexer.text();
        let offset = text.floor_char_boundary(offset);
        SyntaxError::new(SyntaxErrorKind::Limit, text, offset, &text[offset..], expected)
    }

    fn count_node(&mut self, at: usize) -> Result<(), SyntaxError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX { Err(self.limit(at, "no more than 8192 parts")) } else { Ok(()) }
    }

    fn built(&mut self, node: Node, depth: usize, start: usize, end: usize) -> Result<Built, SyntaxError> {
        self.count_node(start)?;
        if depth > DEPTH_MAX { Err(self.too_deep(start)) } else { Ok(Built { node, depth, start, end }) }
    }

    fn too_deep(&self, at: usize) -> SyntaxError {
        self.limit(at, "no more than 128 levels")
    }

    /// `JmsSelector` and every operand of NOT, AND and OR: a property becomes a condition, another value is refused.
    fn condition(&self, built: Built) -> Result<Built, SyntaxError> {
        if let Node::Property(slot) = built.node {
            return Ok(Built { node: Node::Condition(slot), ..built });
        }
        if built.node.is_condition() {
            return Ok(built);
        }
        Err(self.refuse(SyntaxErrorKind::NotACondition, &built, A_CONDITION))
    }

    /// `orExpression`.
    fn or(&mut self) -> Result<Built, SyntaxError> {
        self.chain(Token::Or, Parser::and, Node::Or)
    }

    /// `andExpression`.
    fn and(&mut self) -> Result<Built, SyntaxError> {
        self.chain(Token::And, Parser::equality, Node::And)
    }

    /// Operands with the same word between them, side by side in one node: a long chain is not a deep tree.
    fn chain(
        &mut self,
        word: Token<'static>,
        operand: fn(&mut Parser<'a>) -> Result<Built, SyntaxError>,
        node: fn(Vec<Node>) -> Node,
    ) -> Result<Built, SyntaxError> {
        let mut first = operand(self)?;
        if self.peek()? != word {
            return Ok(first);
        }
        let (start, mut end, mut depth) = (first.start, first.end, first.depth);
        let mut operands = Vec::new();
        while self.take_if(word)? {
            let next = operand(self)?;
            if operands.is_empty() {
                first = self.condition(first)?;
                operands.push(std::mem::replace(&mut first.node, Node::Constant(Constant::Null)));
            }
            let next = self.condition(next)?;
            (end, depth) = (next.end, depth.max(next.depth));
            operands.push(next.node);
        }
        self.built(node(operands), depth + 1, start, end)
    }

    /// `equalityExpression`.
    fn equality(&mut self) -> Result<Built, SyntaxError> {
        let mut left = self.comparison()?;
        loop {
            left = match self.peek()? {
                Token::Equal => self.equal(left, Comparison::Equal)?,
                Token::NotEqual => self.equal(left, Comparison::NotEqual)?,
                Token::Is => {
                    self.take()?;
                    let is_negated = self.take_if(Token::Not)?;
                    let end = self.expect(Token::Null, if is_negated { "NULL" } else { "NULL or NOT NULL" })?;
                    let (start, depth) = (left.start, left.depth + 1);
                    self.built(Node::IsNull { is_negated, value: Box::new(left.node) }, depth, start, end)?
                }
                _ => return Ok(left),
            };
        }
    }

    fn equal(&mut self, left: Built, comparison: Comparison) -> Result<Built, SyntaxError> {
        self.take()?;
        let right = self.comparison()?;
        for operand in [&left, &right] {
            if operand.node == Node::Constant(Constant::Null) {
                let expected = "a value: only IS NULL and IS NOT NULL look for null";
                return Err(self.refuse(SyntaxErrorKind::OperandType, operand, expected));
            }
        }
        let is_literal = |built: &Built| matches!(built.node, Node::Constant(_));
        if is_literal(&left) && left.node.is_condition() && is_literal(&right) && !right.node.is_condition() {
            return Err(self.refuse(SyntaxErrorKind::OperandType, &right, "a condition, as on the left"));
        }
        self.compare(comparison, left, right)
    }

    fn compare(&mut self, comparison: Comparison, left: Built, right: Built) -> Result<Built, SyntaxError> {
        let depth = left.depth.max(right.depth) + 1;
        let operands = Box::new([left.node, right.node]);
        self.built(Node::Compare { comparison, operands }, depth, left.start, right.end)
    }

    /// `comparisonExpression`.
    fn comparison(&mut self) -> Result<Built, SyntaxError> {
        let mut left = self.unary()?;
        loop {
            left = match self.peek()? {
                Token::Greater => self.ordered(left, Comparison::Greater)?,
                Token::GreaterOrEqual => self.ordered(left, Comparison::GreaterOrEqual)?,
                Token::Less => self.ordered(left, Comparison::Less)?,
                Token::LessOrEqual => self.ordered(left, Comparison::LessOrEqual)?,
                Token::Not => {
                    self.take()?;
                    self.word(left, true)?
                }
                Token::Between | Token::In | Token::Contains | Token::StartsWith | Token::EndsWith => {
                    self.word(left, false)?
                }
                _ => return Ok(left),
            };
        }
    }

    fn ordered(&mut self, left: Built, comparison: Comparison) -> Result<Built, SyntaxError> {
        self.take()?;
        let right = self.unary()?;
        self.check_ordered(&left)?;
        self.check_ordered(&right)?;
        self.compare(comparison, left, right)
    }

    fn check_ordered(&self, operand: &Built) -> Result<(), SyntaxError> {
        if operand.node.is_condition() || matches!(operand.node, Node::Constant(Constant::Text(_))) {
            return Err(self.refuse(SyntaxErrorKind::OperandType, operand, ORDERED));
        }
        Ok(())
    }

    /// The operators that are words and can stand behind NOT.
    fn word(&mut self, left: Built, is_negated: bool) -> Result<Built, SyntaxError> {
        let operator = self.take()?;
        let part = match operator.token {
            Token::Between => return self.between(left, is_negated),
            Token::In => return self.is_in(left, is_negated),
            Token::Contains => Part::Anywhere,
            Token::StartsWith => Part::Start,
            Token::EndsWith => Part::End,
            _ => return Err(self.unexpected(operator, "IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")),
        };
        let (text, end) = self.text()?;
        let (start, depth) = (left.start, left.depth + 1);
        self.built(Node::Match { part, is_negated, value: Box::new(left.node), text }, depth, start, end)
    }

    fn between(&mut self, value: Built, is_negated: bool) -> Result<Built, SyntaxError> {
        let low = self.unary()?;
        self.expect(Token::And, "AND and the upper limit")?;
        let high = self.unary()?;
        // Only the plain form compares its limits, and only if both are literals: -1 is the negation of one.
        if !is_negated && let (Node::Constant(least), Node::Constant(most)) = (&low.node, &high.node) {
            let (least, most) = (Value::of_constant(least), Value::of_constant(most));
            let is_ordered = !matches!((least, most), (Value::Null, _) | (_, Value::Null))
                && compare(most, least).is_ok_and(|ordering| ordering != Ordering::Less);
            if !is_ordered {
                return Err(self.refuse(
                    SyntaxErrorKind::BetweenLimits,
                    &high,
                    "a limit that is not less than the lower one",
                ));
            }
        }
        for operand in [&value, &low, &high] {
            self.check_ordered(operand)?;
        }
        let (start, end) = (value.start, high.end);
        let depth = value.depth.max(low.depth).max(high.depth) + 1;
        let operands = Box::new([value.node, low.node, high.node]);
        self.built(Node::Between { is_negated, operands }, depth, start, end)
    }

    fn is_in(&mut self, left: Built, is_negated: bool) -> Result<Built, SyntaxError> {
        self.expect(Token::Open, "( and a list of texts")?;
        let mut list = Vec::new();
        loop {
            let (text, end) = self.text()?;
            self.count_node(end)?;
            list.push(text);
            if !self.take_if(Token::Comma)? {
                break;
            }
        }
        let end = self.expect(Token::Close, ", or )")?;
        let Node::Property(slot) = left.node else {
            return Err(self.refuse(SyntaxErrorKind::OperandType, &left, "a property before IN"));
        };
        list.sort_unstable();
        list.dedup();
        self.built(Node::In { is_negated, slot, list }, 1, left.start, end)
    }

    /// `unaryExpr`.
    fn unary(&mut self) -> Result<Built, SyntaxError> {
        match self.peek()? {
            Token::Plus => {
                let sign = self.take()?;
                let value = self.nested(sign.start, Parser::unary)?;
                Ok(Built { start: sign.start, ..value })
            }
            Token::Minus => {
                let sign = self.take()?;
                let value = self.nested(sign.start, Parser::unary)?;
                self.built(Node::Negate(Box::new(value.node)), value.depth + 1, sign.start, value.end)
            }
            Token::Not => {
                let word = self.take()?;
                let value = self.nested(word.start, Parser::unary)?;
                let value = self.condition(value)?;
                self.built(Node::Not(Box::new(value.node)), value.depth + 1, word.start, value.end)
            }
            _ => self.primary(),
        }
    }

    /// Parses something inside of something else, as long as the stack is known to suffice.
    fn nested(
        &mut self,
        at: usize,
        inner: fn(&mut Parser<'a>) -> Result<Built, SyntaxError>,
    ) -> Result<Built, SyntaxError> {
        if self.nesting == DEPTH_MAX {
            return Err(self.too_deep(at));
        }
        self.nesting += 1;
        let built = inner(self)?;
        self.nesting -= 1;
        Ok(built)
    }

    /// `primaryExpr`, `literal` and `variable`.
    fn primary(&mut self) -> Result<Built, SyntaxError> {
        let placed = self.take()?;
        let node = match placed.token {
            Token::Open => {
                let inner = self.nested(placed.start, Parser::or)?;
                let end = self.expect(Token::Close, "an operator or )")?;
                return Ok(Built { start: placed.start, end, ..inner });
            }
            Token::Name(name) => Node::Property(self.slot(name)),
            Token::Text(text) => Node::Constant(Constant::Text(unquoted(text))),
            Token::Decimal(digits) => Node::Constant(self.integer(placed, digits)?),
            Token::Float(digits) => Node::Constant(self.fraction(placed, digits)?),
            Token::True => Node::Constant(Constant::Bool(true)),
            Token::False => Node::Constant(Constant::Bool(false)),
            Token::Null => Node::Constant(Constant::Null),
            _ => return Err(self.unexpected(placed, A_VALUE)),
        };
        self.built(node, 1, placed.start, placed.end)
    }

    fn slot(&mut self, name: &'a str) -> Slot {
        *self.slots.entry(name).or_insert_with(|| {
            self.names.push(name.into());
            self.names.len() - 1
        })
    }

    /// The narrower of two integer types that holds the number. There is no literal for -2^63, since 2^63 is none.
    fn integer(&self, placed: Placed<'_>, digits: &str) -> Result<Constant, SyntaxError> {
        let number: i64 = digits.trim_end_matches(['l', 'L']).parse().map_err(|_| SyntaxError {
            kind: SyntaxErrorKind::IntegerRange,
            ..self.unexpected(placed, "an integer of no more than 9223372036854775807")
        })?;
        Ok(i32::try_from(number).map_or(Constant::Long(number), Constant::Int))
    }

    fn fraction(&self, placed: Placed<'_>, digits: &str) -> Result<Constant, SyntaxError> {
        match digits.parse() {
            Ok(number) if f64::is_finite(number) && number > 0.0 => Ok(Constant::Double(number)),
            _ => Err(SyntaxError {
                kind: SyntaxErrorKind::FractionRange,
                ..self.unexpected(placed, "a fraction between 4.9E-324 and 1.7976931348623157E308; write zero as 0")
            }),
        }
    }

    /// `stringLitteral`: the text and where it ends.
    fn text(&mut self) -> Result<(Box<str>, usize), SyntaxError> {
        let placed = self.take()?;
        match placed.token {
            Token::Text(text) => Ok((unquoted(text), placed.end)),
            _ => Err(self.unexpected(placed, "a text: 'text'")),
        }
    }
}

fn unquoted(text: &str) -> Box<str> {
    text.replace("''", "'").into()
}
