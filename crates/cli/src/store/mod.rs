//! `gantry store`: a store that no broker has open, looked at, checked, mended, and written out; and what a broker of Apache's keeps in
//! RocksDB, fetched while it runs.
//!
//! Inspect, verify and export of messages change nothing. What the broker keeps in its tables is no business of this crate: whoever
//! wires the command says it ([`Configuration`]).

mod fetch;
mod fetched;
mod inspect;
mod messages;
mod repair;
mod replay;
mod verify;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use env::say;
pub use replay::replay;
use store::look::{KnownTables, Look};
use store::{Recovered, StoreError, StoreOptions};

/// Look at a store that no broker has open, check it, mend it, write it out
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// The commands, a file each.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Say what is there, on one screen; reads heads and ends of files only, and writes nothing
    Inspect(inspect::InspectArgs),
    /// Read all of the log and hold everything else against it; writes nothing. Ends with 0 if it is sound, 1 if not, 2 if it could not look
    Verify(verify::VerifyArgs),
    /// Ask an Apache broker, while it runs, for what it keeps in RocksDB, and write config/*.json
    Fetch(fetch::FetchArgs),
    /// Do what a start does to mend a store, build queues or index again, move RocksDB aside
    Repair(repair::RepairArgs),
    /// Write config/*.json for an Apache broker, or messages
    Export(ExportArgs),
    /// Send messages again that were cut off a log (the folder cut of a store), to the master of their set
    Replay(replay::ReplayArgs),
}

/// Where a store is.
#[derive(Debug, Args)]
pub struct Place {
    /// Folder of the store (storePathRootDir)
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    pub store: Option<PathBuf>,
    /// Property file of the broker: where the store is, and how its files are laid out
    #[arg(short = 'c', long = "config", visible_alias = "configFile", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// What is written out.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Of which store.
    #[command(flatten)]
    pub place: Place,
    /// Write messages into this file instead, a JSON object a line; - is standard output
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// Only messages of this topic
    #[arg(long, requires = "messages")]
    pub topic: Option<String>,
}

impl StoreCommand {
    /// Where the store is, if the command is about one.
    pub fn place(&self) -> Option<&Place> {
        Some(match self {
            StoreCommand::Inspect(args) => &args.place,
            StoreCommand::Verify(args) => &args.place,
            StoreCommand::Fetch(args) => &args.place,
            StoreCommand::Repair(args) => &args.place,
            StoreCommand::Export(args) => &args.place,
            StoreCommand::Replay(_) => return None,
        })
    }
}

/// A file of the folder `config`.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// The file.
    pub path: PathBuf,
    /// Whether its text counts at the next start, and not the journal: another broker wrote it.
    pub wins: bool,
    /// Its `dataVersion`: counter, time in ms.
    pub version: Option<[i64; 2]>,
    /// How many entries it has, or why it cannot be read.
    pub entries: Result<usize, String>,
}

/// What the broker's tables say.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The files that there are.
    pub files: Vec<ConfigFile>,
    /// Names of topics, if there is a journal or a file to say them, and committed offsets.
    pub known: KnownTables,
    /// How many groups.
    pub groups: usize,
    /// Offset of the first half message that is not done with.
    pub half_offset: Option<u64>,
}

/// Runs a command; `read` says what the tables of the store say that is looked at. Export without messages is not done here.
pub fn run(
    command: StoreCommand,
    options: StoreOptions,
    read: &dyn Fn(&Look) -> Configuration,
) -> anyhow::Result<ExitCode> {
    if !options.root.is_dir() {
        anyhow::bail!("there is no store in {}", options.root.display());
    }
    match command {
        StoreCommand::Inspect(args) => inspect::run(&args, options, read).map(|()| ExitCode::SUCCESS),
        StoreCommand::Verify(args) => verify::run(&args, options, read),
        StoreCommand::Fetch(args) => fetch::run(&args, &options.root).map(|()| ExitCode::SUCCESS),
        StoreCommand::Repair(args) => repair::run(&args, options, read),
        StoreCommand::Export(args) => {
            let file = args.messages.context("--messages says where they go")?;
            messages::run(&file, args.topic.as_deref(), options, read)
        }
        StoreCommand::Replay(args) => replay(&args).map(|()| ExitCode::SUCCESS),
    }
}

/// Says what opening a store has mended and what not, and whether nothing is left to be mended. `has_built`: the queues were built again.
///
/// # Errors
/// Standard output cannot be written.
pub fn tell_mended(found: &Recovered, has_built: bool) -> io::Result<bool> {
    for finding in &found.findings {
        say!("mended: {finding}")?;
    }
    let remedy = if has_built { "" } else { ": gantry store repair --queues builds the queues again from the log" };
    for what in &found.not_mended {
        say!("not mended: {what}{remedy}")?;
    }
    Ok(found.not_mended.is_empty())
}

/// Looks at a store that no broker has open. Bodies are checked whatever `checkCRCOnRecover` says: that is about starts.
fn look_at(options: StoreOptions) -> Result<Look, StoreError> {
    Look::stopped(StoreOptions { check_crc_on_recover: true, ..options })
}

/// A time in ms as people read it, in UTC.
fn time(ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(time) if ms > 0 => time.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string(),
        Ok(_) | Err(_) => "never".to_owned(),
    }
}

/// Bytes as people read them.
fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.into_iter().find(|(_, size)| count >= *size);
    unit.map_or_else(|| format!("{count} bytes"), |(name, size)| format!("{:.1} {name}", count as f64 / size as f64))
}
