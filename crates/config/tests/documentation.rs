//! `docs/configuration.md` is written from the table of keys, so that the two cannot disagree.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fmt::Write;
use std::path::Path;

use config::key::{Default, Key, Kind, Section, State};
use config::keys;

/// What stands before the tables, by hand.
const HEAD: &str = include_str!("data/configuration-head.md");

fn title(section: Section) -> &'static str {
    match section {
        Section::Broker => "Broker (`BrokerIdentity`, `BrokerConfig`)",
        Section::Store => "Store (`MessageStoreConfig`)",
        Section::Net => "Listening (`NettyServerConfig`)",
        Section::NetClient => "Calls of a broker (`NettyClientConfig`)",
        Section::Names => "Name server (`NamesrvConfig`)",
        Section::Machine => "TLS and other properties of the Java virtual machine",
        Section::Auth => "Access control (`AuthConfig`)",
        Section::Controller => "Controller (`ControllerConfig`, `JraftConfig`)",
        Section::Container => "Broker container (`BrokerContainerConfig`)",
        Section::Limits => "Limits of our own",
        Section::Journal => "The journal",
        Section::Old => "Keys of earlier versions, and keys that no version reads",
    }
}

fn default(key: &Key) -> String {
    match key.default {
        Default::Value("") => "–".to_owned(),
        Default::Value(value) => format!("`{value}`"),
        Default::Found(found) => found.to_owned(),
    }
}

fn values(key: &Key) -> String {
    match key.kind {
        Kind::Bool => "true, false".to_owned(),
        Kind::Text => "text".to_owned(),
        Kind::OneOf(words) => words.join(", "),
        Kind::Number { scaled: true, .. } => "number, K M G".to_owned(),
        Kind::Number { scaled: false, .. } => "number".to_owned(),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn table_of(keys: &[Key]) -> String {
    let mut page = format!("\n## {}\n", title(keys[0].section));
    let used: Vec<&Key> = keys.iter().filter(|key| key.state == State::Used).collect();
    if !used.is_empty() {
        page.push_str("\n| key | values | default | live | meaning |\n| --- | --- | --- | --- | --- |\n");
        for key in used {
            let live = if key.is_live { "yes" } else { "" };
            let (values, default, about) = (values(key), default(key), cell(key.about));
            writeln!(page, "| `{}` | {values} | {default} | {live} | {about} |", key.name).unwrap();
        }
    }
    // Many keys share one reason; a reason is a row.
    let mut reasons: Vec<(State, Vec<&str>)> = Vec::new();
    for key in keys.iter().filter(|key| key.state != State::Used) {
        match reasons.iter_mut().find(|(state, _)| *state == key.state) {
            Some((_, names)) => names.push(key.name),
            None => reasons.push((key.state, vec![key.name])),
        }
    }
    if !reasons.is_empty() {
        page.push_str("\n| known, without effect | answer at start |\n| --- | --- |\n");
    }
    for (state, names) in reasons {
        let answer = match state {
            State::Used => continue,
            State::Accepted(why) => format!("no effect: {why}"),
            State::NotNeeded(instead) => format!("not needed: {instead}"),
            State::Off(why) => format!("unless it is the default – no effect: {why}"),
            State::Refused(why) => format!("**refused** unless it is the default: {why}"),
        };
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        writeln!(page, "| {} | {} |", names.join(" "), cell(&answer)).unwrap();
    }
    page
}

#[test]
fn the_page_of_keys_says_what_the_table_says() {
    let mut page = HEAD.to_owned();
    for table in keys::TABLES {
        page.push_str(&table_of(table));
    }
    page.push_str("\n## Spellings that RocketMQ does not read\n\nIgnored as in RocketMQ, and named at start with their lines.\n\n| spelling | key |\n| --- | --- |\n");
    for (old, new) in keys::RENAMED {
        writeln!(page, "| `{old}` | `{new}` |").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is out of date: run `WRITE_DOCS=1 cargo test -p config --test documentation`"
    );
}
