//! The `gantry` binary: command line, settings, wiring, signals.
//!
//! Everything that can stop a start is told in one sentence on standard error, with a non-zero exit. Standard output carries one
//! line, for programs: `gantry: ready namesrv=HOST:PORT broker=HOST:PORT`.

mod command_line;
mod log;
mod machine;
mod ports;
mod run;
mod settings;
mod threads;

use std::process::ExitCode;

use clap::CommandFactory;
use command_line::{Command, CommandLine};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match start(CommandLine::read(cli::admin::words(std::env::args_os()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `{:#}`: the sentence and its causes, on one line.
            eprintln!("gantry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(command: Command) -> anyhow::Result<()> {
    let serve = match command {
        Command::Admin(admin) => return cli::admin::run(admin, CommandLine::command()),
        Command::Serve(serve) => serve,
    };
    let order = settings::order(serve)?;
    if let Some(only_set) = order.print {
        print!("{}", order.settings.print(only_set));
        return Ok(());
    }
    log::begin(order.log_format);
    settings::tell(&order);
    machine::raise_open_files();
    machine::use_small_pages();
    threads::runtime()?.block_on(run::run(order))
}
