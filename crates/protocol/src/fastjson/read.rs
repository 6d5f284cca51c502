//! Reading: standard JSON goes straight through; what only fastjson accepts is rewritten first.

use serde::de::DeserializeOwned;

use super::JsonError;

/// Deeper than any body of RocketMQ.
const DEPTH_MAX: usize = 64;

/// Reads a body in either dialect.
pub fn from_slice<T: DeserializeOwned>(body: &[u8]) -> Result<T, JsonError> {
    // Nearly every body is standard JSON, and those that are not fail at their first odd key.
    let first = match serde_json::from_slice(body) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let standard = to_standard(body)?;
    if standard == body {
        return Err(first.into());
    }
    Ok(serde_json::from_slice(&standard)?)
}

/// Rewrites fastjson's dialect as standard JSON: every key becomes a string, and members that are null are left out (fastjson
/// takes null for a missing number or list; Go writes null for an empty one). Anything else that is wrong stays wrong.
fn to_standard(body: &[u8]) -> Result<Vec<u8>, JsonError> {
    let mut rewriter = Rewriter { body, at: 0, is_in_key: false, out: Vec::with_capacity(body.len() + body.len() / 8) };
    rewriter.value(0)?;
    let rest = rewriter.at;
    rewriter.out.extend_from_slice(&body[rest..]);
    Ok(rewriter.out)
}

struct Rewriter<'a> {
    body: &'a [u8],
    at: usize,
    /// Whether an object or a list that stands for a key is being read.
    is_in_key: bool,
    out: Vec<u8>,
}

impl Rewriter<'_> {
    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn white(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(JsonError::TooDeep(DEPTH_MAX));
        }
        self.white();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(_) | None => {
                self.scalar();
                Ok(())
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        self.out.push(b'{');
        self.at += 1;
        let mut is_first = true;
        // Each round consumes at least one byte or leaves.
        loop {
            self.white();
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    self.out.push(b'}');
                    return Ok(());
                }
                Some(b',') => {
                    self.at += 1;
                    continue;
                }
                Some(_) => {}
                None => return Ok(()),
            }
            let member = self.out.len();
            let before = self.at;
            if !is_first {
                self.out.push(b',');
            }
            self.key(depth)?;
            self.white();
            if self.peek() != Some(b':') {
                // Not an object at all: leave the rest for the parser to complain about.
                return Ok(());
            }
            self.at += 1;
            self.out.push(b':');
            let value = self.out.len();
            self.value(depth + 1)?;
            if self.out[value..] == *b"null" {
                self.out.truncate(member);
            } else {
                is_first = false;
            }
            if self.at == before {
                return Ok(());
            }
        }
    }

    fn key(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.scalar(),
            // A key within a key would be escaped once more at each level, and so double its length: real keys hold scalars.
            Some(b'{' | b'[') if self.is_in_key => return Err(JsonError::KeyInKey),
            Some(b'{' | b'[') => {
                let start = self.out.len();
                self.is_in_key = true;
                self.value(depth + 1)?;
                self.is_in_key = false;
                let text = String::from_utf8_lossy(&self.out[start..]).into_owned();
                self.out.truncate(start);
                self.out.extend_from_slice(serde_json::Value::String(text).to_string().as_bytes());
            }
            Some(_) | None => {
                self.out.push(b'"');
                self.scalar();
                self.out.push(b'"');
            }
        }
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.out.push(b'[');
        self.at += 1;
        loop {
            self.white();
            match self.peek() {
                Some(b']') => {
                    self.at += 1;
                    self.out.push(b']');
                    return Ok(());
                }
                Some(b',') => {
                    self.at += 1;
                    self.out.push(b',');
                }
                Some(_) => {
                    let before = self.at;
                    self.value(depth + 1)?;
                    if self.at == before {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            }
        }
    }

    /// Copies a string, a number or a word as it stands.
    fn scalar(&mut self) {
        let start = self.at;
        if self.peek() == Some(b'"') {
            self.at += 1;
            while let Some(byte) = self.peek() {
                self.at += 1;
                match byte {
                    b'"' => break,
                    b'\\' => self.at = (self.at + 1).min(self.body.len()),
                    _ => {}
                }
            }
        } else {
            while self.peek().is_some_and(|byte| !b",:{}[]\" \t\r\n".contains(&byte)) {
                self.at += 1;
            }
        }
        self.out.extend_from_slice(&self.body[start..self.at]);
    }
}
