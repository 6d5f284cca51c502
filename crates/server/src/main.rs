//! The `gantry` binary: command line, settings, wiring, signals.
//!
//! Everything that can stop a start is told in one sentence on standard error, with a non-zero exit. Standard output carries one
//! line, for programs: `gantry: ready namesrv=HOST:PORT broker=HOST:PORT`.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic when their reader has gone: env::say")]

mod beginning;
mod command_line;
mod controller;
mod log;
mod lookout;
mod machine;
mod memory;
mod metrics;
mod notify;
mod pages;
mod ports;
mod run;
mod settings;
mod store_command;
mod threads;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use command_line::{Command, CommandLine};
use env::{say_aside, sentence};

/// What is still being written after the end has this long.
const LAST_FILES: Duration = Duration::from_secs(5);

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match start(CommandLine::read(cli::admin::words(std::env::args_os()))) {
        Ok(code) => code,
        Err(error) => {
            say_aside!("gantry: {}", sentence(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// The disk of a folder, measured before a load of `gantry bench`.
fn disk_of(folder: &Path) -> anyhow::Result<bench::Disk> {
    let measured = doctor::measure_disk(folder)?;
    Ok(bench::Disk {
        folder: folder.display().to_string(),
        sequential_write_mib_per_second: measured.write_mib_per_second,
        sequential_read_mib_per_second: measured.read_mib_per_second,
        flush_p50_millis: measured.flush_p50_ms,
        flush_p99_millis: measured.flush_p99_ms,
        flush_max_millis: measured.flush_max_ms,
    })
}

fn start(command: Command) -> anyhow::Result<ExitCode> {
    let serve = match command {
        Command::Admin(admin) => {
            return cli::admin::run(admin).map(|()| ExitCode::SUCCESS);
        }
        Command::Bench(bench) => {
            machine::raise_open_files();
            return bench::execute(bench, disk_of);
        }
        Command::Completion(completion) => {
            return cli::pages::completion(completion, CommandLine::command()).map(|()| ExitCode::SUCCESS);
        }
        Command::Man(man) => return cli::pages::man(man, CommandLine::command()).map(|()| ExitCode::SUCCESS),
        Command::Doctor(doctor) => return Ok(doctor::run(doctor)),
        Command::Profile(profile) => {
            machine::raise_open_files();
            return doctor::profile::run(profile).map(|()| ExitCode::SUCCESS);
        }
        Command::Store(store) => {
            machine::raise_open_files();
            return store_command::run(store);
        }
        Command::Serve(serve) => serve,
    };
    let mut order = settings::order(serve)?;
    let memory = memory::Memory::of(&order.settings, machine::memory())?;
    memory.lower_defaults(&mut order.settings);
    settings::check(&order, &memory)?;
    if let Some(only_set) = order.print {
        // On standard error, so that what is printed can be taken for a file.
        log::begin(order.log_format);
        settings::tell(&order);
        env::print(format_args!("{}", order.settings.print(only_set)))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything has a thread.
    let gives_back = store::keep_no_freed_pages();
    log::begin(order.log_format);
    if !gives_back {
        tracing::warn!("the allocator keeps memory that was freed for a second");
    }
    settings::tell(&order);
    machine::raise_open_files();
    machine::use_small_pages();
    let runtime = threads::runtime()?;
    let ended = runtime.block_on(run::run(order, memory));
    // In good order nothing is left but a settings file being replaced, or a look-up that nobody waits for. After a failure, or a
    // second signal, a store that waits for a dead device must not hold up the end.
    runtime.shutdown_timeout(if ended.is_ok() { LAST_FILES } else { Duration::ZERO });
    log::end();
    ended.map(|()| ExitCode::SUCCESS)
}
