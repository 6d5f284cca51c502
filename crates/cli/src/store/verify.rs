//! `gantry store verify`: whether a store is sound.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Args;
use env::{counted, print_aside, say, say_aside, sentence};
use serde_json::json;
use store::StoreOptions;
use store::look::{Finding, Look, Verified};

use super::{Configuration, Place, bytes, look_at};

/// It could not be looked at.
const COULD_NOT_LOOK: u8 = 2;

/// What can be said to it.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Which store.
    #[command(flatten)]
    pub place: Place,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(
    args: &VerifyArgs,
    options: StoreOptions,
    read: &dyn Fn(&Look) -> Configuration,
) -> anyhow::Result<ExitCode> {
    let mut findings = Vec::new();
    let is_json = args.json;
    let verified = look_at(options).map_err(anyhow::Error::from).and_then(|look| {
        check(&look, read, &mut |finding| {
            if is_json {
                findings.push(json!({
                    "file": finding.file, "at": finding.at, "what": finding.what, "effect": finding.effect, "remedy": finding.remedy,
                }));
            } else {
                print(&finding)?;
            }
            Ok(())
        })
    });
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => {
            if is_json {
                // What was found before it counts, and who reads it knows from the error that it is not all.
                let said = json!({ "findings": findings, "error": sentence(error.as_ref()) });
                say!("{}", serde_json::to_string_pretty(&said)?)?;
            }
            say_aside!("gantry: {}", sentence(error.as_ref()));
            return Ok(ExitCode::from(COULD_NOT_LOOK));
        }
    };
    let Verified { log_bytes, records, units, keys, timers, of_deleted, findings: count, notes } = &verified;
    if is_json {
        let said = json!({
            "findings": findings, "notes": notes, "logBytes": log_bytes, "records": records, "units": units, "keys": keys,
            "timers": timers, "recordsOfDeletedTopics": of_deleted,
        });
        say!("{}", serde_json::to_string_pretty(&said)?)?;
    } else {
        for note in notes {
            say!("note: {note}")?;
        }
        if *of_deleted > 0 {
            say!("note: of topics that are no more: {}", counted(*of_deleted, "record"))?;
        }
        let read = bytes(*log_bytes);
        say!(
            "{}; {} in {read} of the log, {} of queues, {}, {}",
            counted(*count, "finding"),
            counted(*records, "record"),
            counted(*units, "unit"),
            counted(*keys, "key"),
            counted(*timers, "timer unit")
        )?;
    }
    Ok(if *count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks a store, and shows what is wrong with it.
pub fn check(
    look: &Look,
    read: &dyn Fn(&Look) -> Configuration,
    tell: &mut dyn FnMut(Finding) -> io::Result<()>,
) -> anyhow::Result<Verified> {
    let configuration = read(look);
    let mut unread = 0;
    for file in &configuration.files {
        if let Err(why) = &file.entries {
            unread += 1;
            tell(Finding {
                file: file.path.clone(),
                at: None,
                what: why.clone(),
                effect: "no start, if it is not as Gantry wrote it",
                remedy: "repair it, or move it and its .bak away to start with what the journal has",
            })?;
        }
    }
    let mut told = Ok(());
    let mut tell_on = |finding: Finding| {
        if told.is_ok() {
            told = tell(finding);
        }
    };
    let mut shown = 0;
    let is_watched = std::io::stderr().is_terminal();
    let mut verified = look.verify(&configuration.known, &mut tell_on, &mut |done, all| {
        let percent = (done * 100).checked_div(all).unwrap_or(100);
        if is_watched && percent > shown {
            shown = percent;
            print_aside(format_args!("\r{percent} % of the log"));
        }
    })?;
    if shown > 0 {
        say_aside!("");
    }
    told?;
    verified.findings += unread;
    Ok(verified)
}

/// A finding in a few lines.
pub fn print(finding: &Finding) -> io::Result<()> {
    let place = finding.at.map_or_else(String::new, |at| format!(", byte {at}"));
    say!("{}{place}: {}", finding.file.display(), finding.what)?;
    say!("    effect: {}", finding.effect)?;
    say!("    remedy: {}", finding.remedy)
}
