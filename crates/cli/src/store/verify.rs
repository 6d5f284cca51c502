//! `gantry store verify`: whether a store is sound.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args;
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
                print(&finding);
            }
        })
    });
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => {
            if is_json {
                // What was found before it counts, and who reads it knows from the error that it is not all.
                let said = json!({ "findings": findings, "error": format!("{error:#}") });
                println!("{}", serde_json::to_string_pretty(&said)?);
            }
            eprintln!("gantry: {error:#}");
            return Ok(ExitCode::from(COULD_NOT_LOOK));
        }
    };
    let Verified { log_bytes, records, units, keys, timers, of_deleted, findings: count, notes } = &verified;
    if is_json {
        let said = json!({
            "findings": findings, "notes": notes, "logBytes": log_bytes, "records": records, "units": units, "keys": keys,
            "timers": timers, "recordsOfDeletedTopics": of_deleted,
        });
        println!("{}", serde_json::to_string_pretty(&said)?);
    } else {
        for note in notes {
            println!("note: {note}");
        }
        if *of_deleted > 0 {
            println!("note: {of_deleted} records are of topics that there are no more");
        }
        let read = bytes(*log_bytes);
        println!(
            "{count} findings; {records} records in {read} of the log, {units} units of queues, {keys} keys, {timers} timer units"
        );
    }
    Ok(if *count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks a store, and shows what is wrong with it.
pub fn check(
    look: &Look,
    read: &dyn Fn(&Look) -> Configuration,
    tell: &mut dyn FnMut(Finding),
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
            });
        }
    }
    let mut shown = 0;
    let is_watched = std::io::stderr().is_terminal();
    let mut verified = look.verify(&configuration.known, tell, &mut |done, all| {
        let percent = (done * 100).checked_div(all).unwrap_or(100);
        if is_watched && percent > shown {
            shown = percent;
            eprint!("\r{percent} % of the log");
        }
    })?;
    if shown > 0 {
        eprintln!();
    }
    verified.findings += unread;
    Ok(verified)
}

/// A finding in a few lines.
pub fn print(finding: &Finding) {
    let place = finding.at.map_or_else(String::new, |at| format!(", byte {at}"));
    println!("{}{place}: {}", finding.file.display(), finding.what);
    println!("    effect: {}", finding.effect);
    println!("    remedy: {}", finding.remedy);
}
