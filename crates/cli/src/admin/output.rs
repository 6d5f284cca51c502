//! What a command shows: sentences, facts and tables for people; the same as one JSON object for programs.
//!
//! Text is printed as it comes. JSON is gathered and printed at the end, or by [`Output::flush`] where a command goes on and on:
//! one object a line. In it, sentences stand in `messages`, a fact under its name, a table as an array of objects.

use std::cell::RefCell;
use std::io::{self, Write};

use env::{Stdout, sentence};
use serde::Serialize;
use serde_json::{Map, Value};

use super::time;

/// Where a command shows what it learned.
pub struct Output {
    /// `None`: text.
    json: Option<RefCell<Map<String, Value>>>,
}

impl Output {
    /// Text, or JSON.
    pub fn new(is_json: bool) -> Output {
        Output { json: is_json.then(RefCell::default) }
    }

    /// Whether programs read along.
    pub fn is_json(&self) -> bool {
        self.json.is_some()
    }

    /// A sentence.
    pub fn say(&self, sentence: impl Into<String>) -> io::Result<()> {
        let sentence = sentence.into();
        match &self.json {
            None => writeln!(Stdout, "{sentence}"),
            Some(json) => {
                let mut json = json.borrow_mut();
                let messages = json.entry("messages").or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(messages) = messages {
                    messages.push(Value::String(sentence));
                }
                Ok(())
            }
        }
    }

    /// Text that programs have no use for, such as a heading.
    pub fn note(&self, text: &str) -> io::Result<()> {
        if self.is_json() { Ok(()) } else { writeln!(Stdout, "{text}") }
    }

    /// Names and values, the values below each other.
    pub fn facts(&self, facts: &Facts) -> io::Result<()> {
        match &self.json {
            None => {
                let width = facts.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 1;
                let mut out = Stdout;
                for (name, cell) in &facts.0 {
                    let name = format!("{name}:");
                    writeln!(out, "{name:width$} {}", cell.text)?;
                }
                Ok(())
            }
            Some(json) => {
                json.borrow_mut().extend(facts.0.iter().map(|(name, cell)| (key(name), cell.value.clone())));
                Ok(())
            }
        }
    }

    /// A table; `name` is for programs.
    pub fn table(&self, name: &str, table: &Table) -> io::Result<()> {
        match &self.json {
            None => table.print(&mut Stdout),
            Some(json) => {
                let rows = table.rows.iter().map(|row| {
                    let cells = table.columns.iter().zip(row);
                    Value::Object(cells.map(|(column, cell)| (key(column), cell.value.clone())).collect())
                });
                let mut json = json.borrow_mut();
                let place = json.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(known) = place {
                    known.extend(rows);
                }
                Ok(())
            }
        }
    }

    /// Anything that has a shape of its own: indented JSON for people.
    pub fn value(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        match &self.json {
            None => writeln!(Stdout, "{}", serde_json::to_string_pretty(value)?),
            Some(json) => {
                json.borrow_mut().insert(name.to_owned(), serde_json::to_value(value)?);
                Ok(())
            }
        }
    }

    /// Ends a part that stands for itself: programs get it now, as one line.
    pub fn flush(&self) -> io::Result<()> {
        let mut out = Stdout;
        if let Some(json) = &self.json {
            let part = std::mem::take(&mut *json.borrow_mut());
            if !part.is_empty() {
                writeln!(out, "{}", Value::Object(part))?;
            }
        }
        out.flush()
    }

    /// Ends the command: programs get one object in any case, unless they got parts before. An error stands in `error`.
    pub fn end(&self, error: Option<&anyhow::Error>) -> io::Result<()> {
        if let (Some(json), Some(error)) = (&self.json, error) {
            json.borrow_mut().insert("error".to_owned(), Value::String(sentence(error.as_ref())));
        }
        self.flush()
    }
}

/// Names and values in their order.
#[derive(Default)]
pub struct Facts(Vec<(String, Cell)>);

impl Facts {
    /// None yet.
    pub fn new() -> Facts {
        Facts::default()
    }

    /// One more.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Cell>) -> Facts {
        self.0.push((name.into(), value.into()));
        self
    }
}

/// Rows below a head.
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Without rows yet.
    pub fn new<const N: usize>(columns: [&str; N]) -> Table {
        Table { columns: columns.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    /// A row; missing cells at its end are empty.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The same without a column.
    pub fn without(mut self, column: &str) -> Table {
        if let Some(at) = self.columns.iter().position(|known| known == column) {
            self.columns.remove(at);
            self.rows.iter_mut().filter(|row| at < row.len()).for_each(|row| drop(row.remove(at)));
        }
        self
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Heads begin with `#`, as those of `mqadmin`, so that a script can drop them; numbers stand on the right.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let heads: Vec<String> = self.columns.iter().map(|column| format!("#{column}")).collect();
        let cell = |row: &Vec<Cell>, at: usize| row.get(at).map_or(0, |cell| cell.text.chars().count());
        let widths: Vec<usize> = (0..heads.len())
            .map(|at| self.rows.iter().map(|row| cell(row, at)).max().unwrap_or(0).max(heads[at].chars().count()))
            .collect();
        let is_right: Vec<bool> = (0..heads.len())
            .map(|at| {
                !self.rows.is_empty() && self.rows.iter().all(|row| row.get(at).is_some_and(|cell| cell.is_number))
            })
            .collect();
        let mut line = |texts: &mut dyn Iterator<Item = &str>| -> io::Result<()> {
            let mut text = String::new();
            for (at, cell) in texts.enumerate() {
                let (width, gap) = (widths[at], if at == 0 { "" } else { "  " });
                text += gap;
                text += &if is_right[at] { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            }
            writeln!(out, "{}", text.trim_end())
        };
        line(&mut heads.iter().map(String::as_str))?;
        for row in &self.rows {
            line(&mut row.iter().map(|cell| cell.text.as_str()))?;
        }
        Ok(())
    }
}

/// One value: what people read and what programs read.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    text: String,
    value: Value,
    is_number: bool,
}

impl Cell {
    /// A time in milliseconds: a date for people, the number for programs; nothing if it is 0 or less.
    pub fn time(ms: i64) -> Cell {
        let text = if ms > 0 { time::to_text(ms) } else { String::new() };
        Cell { text, value: ms.into(), is_number: false }
    }

    /// Text for people and something else for programs.
    pub fn of(text: impl Into<String>, value: impl Into<Value>) -> Cell {
        Cell { text: text.into(), value: value.into(), is_number: false }
    }

    /// Several names in one cell.
    pub fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Cell {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        Cell::of(names.join(","), names)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::of(text, text)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::of(text.clone(), text)
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Cell {
        Cell::from(text.as_str())
    }
}

impl From<bool> for Cell {
    fn from(answer: bool) -> Cell {
        Cell::of(answer.to_string(), answer)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell { text: format!("{number:.2}"), value: number.into(), is_number: true }
    }
}

macro_rules! whole_numbers {
    ($($number:ty)*) => { $(
        impl From<$number> for Cell {
            fn from(number: $number) -> Cell {
                Cell { text: number.to_string(), value: number.into(), is_number: true }
            }
        }
    )* };
}
whole_numbers!(i32 i64 u64 usize);

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or_else(|| Cell::of("", Value::Null), Into::into)
    }
}

/// `Broker Name` is `brokerName` for programs: letters and digits only, as Java spells members.
fn key(name: &str) -> String {
    let mut key = String::new();
    for word in name.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let is_spelled_out = !word.chars().all(|letter| letter.is_uppercase() || letter.is_numeric());
        let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        if key.is_empty() {
            key += &first.to_lowercase();
            key += &if is_spelled_out { rest.to_owned() } else { rest.to_lowercase() };
        } else {
            key += &first.to_uppercase();
            key += rest;
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_java_members() {
        for (name, expected) in [
            ("Broker Name", "brokerName"),
            ("QID", "qid"),
            ("InTPS(LOAD)", "inTPSLOAD"),
            ("Consume Diff Total", "consumeDiffTotal"),
            ("brokerName", "brokerName"),
        ] {
            assert_eq!(key(name), expected);
        }
    }

    #[test]
    fn columns_stand_below_their_heads_and_numbers_on_the_right() {
        let mut table = Table::new(["Topic", "QID", "Last"]);
        table.row(["a-long-topic".into(), 3.into(), "".into()]);
        table.row(["b".into(), 12.into(), "x".into()]);
        let mut text = Vec::new();
        table.print(&mut text).unwrap();
        let expected = "#Topic        #QID  #Last\na-long-topic     3\nb               12  x\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_column_that_nobody_asked_for_goes_with_its_cells() {
        let mut table = Table::new(["a", "b", "c"]);
        table.row([1.into(), 2.into(), 3.into()]);
        let mut text = Vec::new();
        table.without("b").print(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "#a  #c\n 1   3\n");
    }

    #[test]
    fn programs_get_numbers_where_people_get_dates() {
        let cell = Cell::time(1_700_000_000_123);
        assert!(cell.text.ends_with(",123"), "{}", cell.text);
        assert_eq!(cell.value, Value::from(1_700_000_000_123_i64));
        assert_eq!(Cell::time(0).text, "");
    }
}
