//! `gantry store export --messages`: the messages of the log as JSON, a line each.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use protocol::record::RecordView;
use serde_json::{Value, json};
use store::StoreOptions;
use store::look::Look;

/// Digits of base64.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn run(file: &Path, topic: Option<&str>, options: StoreOptions) -> anyhow::Result<()> {
    let look = Look::stopped(options)?;
    let failed = || format!("cannot write {}", file.display());
    let mut out: Box<dyn Write> = match file.to_str() {
        Some("-") => Box::new(std::io::stdout().lock()),
        Some(_) | None => Box::new(BufWriter::new(File::create(file).with_context(failed)?)),
    };
    let mut written = 0_u64;
    let mut error = None;
    let end = look.records(|view| {
        if topic.is_some_and(|topic| topic != view.topic()) {
            return true;
        }
        let line = serde_json::to_writer(&mut out, &line(view)).map_err(anyhow::Error::from);
        error = line.and_then(|()| Ok(out.write_all(b"\n")?)).err();
        written += 1;
        error.is_none()
    })?;
    if let Some(error) = error {
        return Err(error).with_context(failed);
    }
    out.flush().with_context(failed)?;
    eprintln!("{written} records written; the log was read up to {end}");
    Ok(())
}

/// A record. The body is text if it is UTF-8, else base64; it is as stored, so it may be compressed, or a batch (`sysFlag`).
fn line(view: &RecordView<'_>) -> Value {
    let (body, encoding) = match std::str::from_utf8(view.body()) {
        Ok(text) => (text.to_owned(), "utf-8"),
        Err(_) => (base64(view.body()), "base64"),
    };
    json!({
        "topic": view.topic(),
        "queue": view.queue_id(),
        "offset": view.queue_offset(),
        "logOffset": view.log_offset(),
        "keys": view.property("KEYS"),
        "tags": view.property("TAGS"),
        "msgId": view.property("UNIQ_KEY"),
        "storeTime": view.store_timestamp(),
        "bornTime": view.born_timestamp(),
        "sysFlag": view.sys_flag(),
        "properties": properties(&view.properties()),
        "body": body,
        "bodyEncoding": encoding,
    })
}

fn properties(text: &str) -> Value {
    let pairs = text.split('\u{2}').filter_map(|pair| pair.split_once('\u{1}'));
    Value::Object(pairs.map(|(name, value)| (name.to_owned(), Value::from(value))).collect())
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let pairs = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        assert!(pairs.iter().all(|(plain, text)| base64(plain.as_bytes()) == *text));
    }
}
