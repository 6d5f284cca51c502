//! A parsed expression as a tree, and its text.

use std::fmt::{Display, Formatter, Write};

/// Which property: an index into the names of the expression.
pub(crate) type Slot = usize;

/// A part of an expression. The parser has checked the types: what stands where a condition is needed is a condition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Constant(Constant),
    Property(Slot),
    /// A property where a condition is needed.
    Condition(Slot),
    Negate(Box<Node>),
    Not(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Compare {
        comparison: Comparison,
        operands: Box<[Node; 2]>,
    },
    IsNull {
        is_negated: bool,
        value: Box<Node>,
    },
    /// Value, lower limit, upper limit.
    Between {
        is_negated: bool,
        operands: Box<[Node; 3]>,
    },
    /// The list is sorted and without doubles.
    In {
        is_negated: bool,
        slot: Slot,
        list: Vec<Box<str>>,
    },
    Match {
        part: Part,
        is_negated: bool,
        value: Box<Node>,
        text: Box<str>,
    },
}

/// A literal. A negative number is the negation of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    Null,
    Bool(bool),
    Int(i32),
    /// What does not fit into an `Int`: the type decides how a property is read.
    Long(i64),
    Double(f64),
    Text(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Where a text has to stand in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Anywhere,
    Start,
    End,
}

impl Comparison {
    pub fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "=",
            Comparison::NotEqual => "<>",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        }
    }

    pub fn is_equality(self) -> bool {
        matches!(self, Comparison::Equal | Comparison::NotEqual)
    }
}

/// How tightly a node binds: what binds less than its place needs stands in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Equality,
    Comparison,
    Unary,
    Primary,
}

impl Node {
    /// Whether the published classes take it for a `BooleanExpression`.
    pub fn is_condition(&self) -> bool {
        match self {
            Node::Constant(constant) => matches!(constant, Constant::Null | Constant::Bool(_)),
            Node::Property(_) | Node::Negate(_) => false,
            Node::Condition(_)
            | Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Compare { .. }
            | Node::IsNull { .. }
            | Node::Between { .. }
            | Node::In { .. }
            | Node::Match { .. } => true,
        }
    }

    fn binding(&self) -> Binding {
        match self {
            Node::Constant(_) | Node::Property(_) | Node::Condition(_) => Binding::Primary,
            Node::Negate(_) | Node::Not(_) => Binding::Unary,
            Node::Compare { comparison, .. } if comparison.is_equality() => Binding::Equality,
            Node::IsNull { .. } => Binding::Equality,
            Node::Compare { .. } | Node::Between { .. } | Node::In { .. } | Node::Match { .. } => Binding::Comparison,
            Node::And(_) => Binding::And,
            Node::Or(_) => Binding::Or,
        }
    }
}

/// Writes a node with as few parentheses as its reader needs.
pub(crate) struct Printed<'a> {
    pub node: &'a Node,
    pub names: &'a [Box<str>],
}

impl Printed<'_> {
    fn child(&self, f: &mut Formatter<'_>, node: &Node, at_least: Binding) -> std::fmt::Result {
        let printed = Printed { node, names: self.names };
        if node.binding() < at_least { write!(f, "({printed})") } else { printed.fmt(f) }
    }

    fn chain(&self, f: &mut Formatter<'_>, nodes: &[Node], word: &str, at_least: Binding) -> std::fmt::Result {
        for (index, node) in nodes.iter().enumerate() {
            if index > 0 {
                f.write_str(word)?;
            }
            self.child(f, node, at_least)?;
        }
        Ok(())
    }
}

impl Display for Printed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.node {
            Node::Constant(constant) => constant.fmt(f),
            Node::Property(slot) | Node::Condition(slot) => f.write_str(&self.names[*slot]),
            Node::Negate(value) => {
                // Two minus signs side by side could begin a comment.
                f.write_str(if matches!(**value, Node::Negate(_)) { "- " } else { "-" })?;
                self.child(f, value, Binding::Unary)
            }
            Node::Not(value) => {
                f.write_str("NOT ")?;
                self.child(f, value, Binding::Unary)
            }
            Node::And(nodes) => self.chain(f, nodes, " AND ", Binding::Equality),
            Node::Or(nodes) => self.chain(f, nodes, " OR ", Binding::And),
            Node::Compare { comparison, operands } => {
                let (left, right) = if comparison.is_equality() {
                    (Binding::Equality, Binding::Comparison)
                } else {
                    (Binding::Comparison, Binding::Unary)
                };
                self.child(f, &operands[0], left)?;
                write!(f, " {} ", comparison.symbol())?;
                self.child(f, &operands[1], right)
            }
            Node::IsNull { is_negated, value } => {
                self.child(f, value, Binding::Equality)?;
                f.write_str(if *is_negated { " IS NOT NULL" } else { " IS NULL" })
            }
            Node::Between { is_negated, operands } => {
                self.child(f, &operands[0], Binding::Comparison)?;
                f.write_str(if *is_negated { " NOT BETWEEN " } else { " BETWEEN " })?;
                self.child(f, &operands[1], Binding::Unary)?;
                f.write_str(" AND ")?;
                self.child(f, &operands[2], Binding::Unary)
            }
            Node::In { is_negated, slot, list } => {
                write!(f, "{}{}", self.names[*slot], if *is_negated { " NOT IN (" } else { " IN (" })?;
                for (index, text) in list.iter().enumerate() {
                    if index > 0 {
                        f.write_str(", ")?;
                    }
                    write_text(f, text)?;
                }
                f.write_char(')')
            }
            Node::Match { part, is_negated, value, text } => {
                self.child(f, value, Binding::Comparison)?;
                f.write_str(if *is_negated { " NOT " } else { " " })?;
                f.write_str(match part {
                    Part::Anywhere => "CONTAINS ",
                    Part::Start => "STARTSWITH ",
                    Part::End => "ENDSWITH ",
                })?;
                write_text(f, text)
            }
        }
    }
}

impl Display for Constant {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Constant::Null => f.write_str("NULL"),
            Constant::Bool(true) => f.write_str("TRUE"),
            Constant::Bool(false) => f.write_str("FALSE"),
            Constant::Int(number) => number.fmt(f),
            Constant::Long(number) => number.fmt(f),
            // The shortest form that reads back as the same double, always with a point or an exponent.
            Constant::Double(number) => write!(f, "{number:?}"),
            Constant::Text(text) => write_text(f, text),
        }
    }
}

fn write_text(f: &mut Formatter<'_>, text: &str) -> std::fmt::Result {
    f.write_char('\'')?;
    for (index, part) in text.split('\'').enumerate() {
        if index > 0 {
            f.write_str("''")?;
        }
        f.write_str(part)?;
    }
    f.write_char('\'')
}

#[cfg(test)]
mod tests;
