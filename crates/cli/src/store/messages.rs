//! `gantry store export --messages`: the messages of the log as JSON, a line each.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use env::{Stdout, counted, say_aside};
use protocol::record::RecordView;
use serde_json::{Value, json};
use store::StoreOptions;
use store::look::{Look, Lost, Part};

use super::{Configuration, look_at};

/// Digits of base64.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes those of `topic`, or all. A topic of which neither the tables nor the log know is an error, and writes nothing. What is damaged is
/// passed over and named; that is a failure too, once all the rest is written.
pub fn run(
    file: &Path,
    topic: Option<&str>,
    options: StoreOptions,
    read: &dyn Fn(&Look) -> Configuration,
) -> anyhow::Result<ExitCode> {
    let look = look_at(options)?;
    let root = look.options().root.clone();
    let failed = || format!("cannot write {}", file.display());
    let to_stdout = file.to_str() == Some("-");
    let open = || -> anyhow::Result<Box<dyn Write>> {
        Ok(if to_stdout { Box::new(BufWriter::new(Stdout)) } else { Box::new(BufWriter::new(File::create(file)?)) })
    };
    let is_known = topic.is_none_or(|topic| read(&look).known.topics.is_some_and(|topics| topics.contains(topic)));
    // The log may hold messages of a topic that was deleted: one that is not known is opened for with the first of them.
    let mut out = if is_known { Some(open().with_context(failed)?) } else { None };
    let mut written = 0_u64;
    let mut write = |view: &RecordView<'_>| -> anyhow::Result<()> {
        let out = match &mut out {
            Some(out) => out,
            None => out.insert(open()?),
        };
        serde_json::to_writer(&mut *out, &line(view))?;
        out.write_all(b"\n")?;
        written += 1;
        Ok(())
    };
    let mut error = None;
    let mut damages = 0_u64;
    let mut damaged = |what: String| {
        damages += 1;
        say_aside!("passed over: {what}");
    };
    let is_meant = |view: &RecordView<'_>| topic.is_none_or(|topic| topic == view.topic());
    let end = look.records(|part| {
        match part {
            Part::Record(view) if is_meant(view) => error = write(view).err(),
            Part::Bruised(view, why) if is_meant(view) => damaged(format!(
                "message {} of {}/{}, at log offset {}: {why}",
                view.queue_offset(),
                view.topic(),
                view.queue_id(),
                view.log_offset()
            )),
            Part::Record(_) | Part::Bruised(..) => {}
            Part::Lost(Lost { file, from, to, why }) => {
                let to = to.map_or_else(|| "on; no record follows".to_owned(), |to| format!("to {to}"));
                damaged(format!("log offset {from} {to} ({}): {why}", file.display()));
            }
        }
        // The rest would go nowhere.
        error.is_none() && !(to_stdout && Stdout::is_closed())
    })?;
    if to_stdout && Stdout::is_closed() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(error) = error {
        return Err(error).with_context(failed);
    }
    match (&mut out, topic) {
        (Some(out), _) => out.flush().with_context(failed)?,
        (None, topic) => anyhow::bail!(
            "there is no topic {} in {}: neither do its tables name it, nor has the log, read up to {end}, a message of it",
            topic.unwrap_or_default(),
            root.display()
        ),
    }
    say_aside!("{} written; the log was read up to {end}", counted(written, "record"));
    if damages > 0 {
        say_aside!("passed over: {}; what was there is not in {}", counted(damages, "damaged place"), file.display());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
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
