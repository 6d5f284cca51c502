//! `gantry doctor`: what this machine, its disk, the settings and a running broker have to say, with evidence, effect and remedy.
//!
//! `checks.rs` is the table of checks, `patient.rs` what they look at. A check reads and judges; it changes nothing. `fix.rs` writes
//! what findings name, if it is told to. What the kernel tells is read below a root folder (`host.rs`), so that tests bring a machine
//! of files. `watch` shows rates on one screen. [`profile`] is `gantry profile`: where a running
//! server spends its processor time.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic when their reader has gone: env::say")]

mod address;
mod checks;
mod configuration;
mod contents;
mod disk;
mod disk_test;
mod finding;
mod fix;
mod host;
mod listener;
mod machine;
mod names;
mod patient;
pub mod profile;
mod report;
mod server;
mod store;
mod target;
mod watch;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use config::Machine;
pub use disk_test::{DiskFigures, measure_disk};
use env::{Stdout, say, say_aside, sentence};

use finding::Severity;
use host::Host;
use patient::Patient;
use report::Report;
use target::{Order, Target};
use watch::WatchArgs;

/// Look for what could make a broker slow, unsafe or unreachable; each finding with evidence, effect and fix
#[derive(Debug, Args)]
#[command(after_help = "Exit code: 0 nothing but notes, 1 warnings, 2 errors, 3 something could not be looked at. \
    Without -c, --data and --pid the one server that runs here is looked at, or else what `gantry server` would use.")]
pub struct DoctorArgs {
    /// Families (machine, disk, configuration, address, store, server) or ids of checks; all without any
    #[arg(value_name = "CHECK")]
    checks: Vec<String>,
    #[command(flatten)]
    of: OfArgs,
    /// The same as CHECK, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "CHECK")]
    only: Vec<String>,
    /// Leave these out
    #[arg(long, value_delimiter = ',', value_name = "CHECK")]
    skip: Vec<String>,
    /// Do not measure the disks: otherwise up to 200 MiB are written to each file system of the log and the store, for up to five seconds
    #[arg(long)]
    no_disk_test: bool,
    /// List the checks, and end
    #[arg(long)]
    list: bool,
    /// Show evidence also of what is well
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object; with watch, one a line
    #[arg(long, global = true)]
    json: bool,
    /// Show which settings of the kernel would be changed, and change them if you agree
    #[arg(long, conflicts_with_all = ["list", "json"])]
    fix: bool,
    /// With --fix: change them without a question
    #[arg(long, requires = "fix")]
    yes: bool,
    #[command(subcommand)]
    command: Option<DoctorCommand>,
}

#[derive(Debug, Subcommand)]
enum DoctorCommand {
    Watch(WatchArgs),
}

/// Which broker is meant.
#[derive(Debug, Args)]
struct OfArgs {
    /// Property file; read as `gantry broker` reads it, and with --data as `gantry server` does
    #[arg(short = 'c', long = "config", visible_alias = "configFile", value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Folder of `gantry server`
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// Set one key of the property file; may be repeated, and wins over the file
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value, global = true)]
    set: Vec<(String, String)>,
    /// Name servers, separated by semicolons
    #[arg(short = 'n', long = "namesrv-addr", visible_alias = "namesrvAddr", value_name = "HOST:PORT", global = true)]
    namesrv_addr: Option<String>,
    /// A broker that runs; without it, the port of the settings is asked
    #[arg(long, value_name = "HOST:PORT", global = true)]
    server: Option<String>,
    /// Process of the broker; not needed if it has the store open, or is the only one here
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..), global = true)]
    pid: Option<i32>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        Some(_) | None => Err("KEY=VALUE is expected".to_owned()),
    }
}

/// Looks, tells, and says how bad it is: see [`DoctorArgs`] for the exit codes.
pub fn run(args: DoctorArgs) -> ExitCode {
    match look(args) {
        Ok(worst) => ExitCode::from(worst.exit_code()),
        Err(error) => {
            say_aside!("gantry: {}", sentence(error.as_ref()));
            ExitCode::from(Severity::Unknown.exit_code())
        }
    }
}

fn look(args: DoctorArgs) -> anyhow::Result<Severity> {
    let DoctorArgs { checks, of, only, skip, no_disk_test, list, verbose, json, fix, yes, command } = args;
    let words: Vec<String> = checks.into_iter().chain(only).collect();
    let chosen = checks::chosen(&words, &skip).map_err(|error| anyhow!(error))?;
    if list {
        for check in chosen {
            say!("{:<14} {:<28} {}", check.family.name(), check.id, check.about)?;
        }
        return Ok(Severity::Ok);
    }
    let mut patient = patient(of)?;
    if let Some(DoctorCommand::Watch(watch)) = command {
        watch::run(&patient, &watch, json)?;
        return Ok(Severity::Ok);
    }
    patient.is_disk_tested = !no_disk_test;
    let look = |check: &'static checks::Check| (check.look)(&patient).into_iter().map(move |finding| (check, finding));
    let report = Report { rows: chosen.into_iter().flat_map(look).collect() };
    if json {
        say!("{}", report.json(patient.clock.now().0))?;
    } else {
        let mut text = Vec::new();
        report.print(&mut text, verbose)?;
        Stdout.write_all(&text)?;
    }
    if fix && !fix::run(&patient.host, &report.rows, yes)? {
        return Ok(Severity::Unknown);
    }
    Ok(report.worst())
}

/// Puts together what is looked at: as said, or as a server that runs here was told.
fn patient(of: OfArgs) -> anyhow::Result<Patient> {
    let OfArgs { config, data, set, namesrv_addr, server, pid } = of;
    let mut pid = pid;
    let mut order = if config.is_some() || data.is_some() {
        Order { is_server: data.is_some(), file: config, data, set: Vec::new() }
    } else {
        let found = match pid {
            Some(pid) => Some(order_of(pid).with_context(|| format!("--pid {pid}"))?),
            // A broker that is named may be anywhere.
            None if server.is_some() => None,
            None => match crate::profile::running()?.as_slice() {
                [(only, _)] => order_of(*only).ok().inspect(|_| pid = Some(*only)),
                _ => None,
            },
        };
        found.unwrap_or_else(|| Order { is_server: true, data: Some(PathBuf::from("data")), ..Order::default() })
    };
    order.set.extend(set);
    order.set.extend(namesrv_addr.map(|servers| ("namesrvAddr".to_owned(), servers)));
    let target = Target::read(&order, environment(pid), Machine::read());
    Patient::new(Host::real(), target, server, pid)
}

/// What a running server was told.
fn order_of(pid: i32) -> anyhow::Result<Order> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).context("its command line cannot be read")?;
    let line = String::from_utf8_lossy(&line);
    let words: Vec<String> = line.trim_end_matches('\0').split('\0').skip(1).map(str::to_owned).collect();
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| Path::new("/").to_owned());
    match Order::of_words(&words, &cwd) {
        Some(order) => Ok(order),
        None => bail!("it is no broker: {}", words.join(" ")),
    }
}

/// Variables that a running server was started with; without one, those that a start would read here.
fn environment(pid: Option<i32>) -> BTreeMap<String, String> {
    let Some(pid) = pid else { return config::environment::read() };
    match std::fs::read(format!("/proc/{pid}/environ")) {
        Ok(environ) => config::environment::of_process(&environ),
        Err(error) => {
            env::say_aside!(
                "the environment of process {pid} cannot be read, so settings from it are left out: {error}"
            );
            BTreeMap::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::checks::CHECKS;

    #[test]
    fn every_check_is_listed_in_its_page() {
        let page = include_str!("../../../docs/doctor.md");
        for check in CHECKS {
            assert!(page.contains(&format!("`{}`", check.id)), "{} is not in docs/doctor.md", check.id);
        }
    }
}
