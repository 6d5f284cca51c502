//! `gantry bench sink` and `gantry bench echo`: how fast the load generator is, and how fast the machine.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use super::say;
use crate::driver::HeaderKind;
use crate::echo::{self, Echo};
use crate::error::BenchError;
use crate::process;
use crate::sink::Sink;
use crate::text;
use crate::workload::MESSAGE_BYTES_MAX;

#[derive(Debug, Args)]
pub(super) struct SinkArgs {
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    port: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
}

#[derive(Debug, Args)]
pub(super) struct EchoArgs {
    /// Connections, with one request on its way on each
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Threads of each side; half of the processors if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Requests and replies are as large as those of a send of a message with a body of so many bytes
    #[arg(long, default_value_t = 1024, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=MESSAGE_BYTES_MAX as i64))]
    message_size: u32,
    /// How the headers of such a send are written
    #[arg(long, value_enum, default_value = "json", value_name = "KIND")]
    header: Header,
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    seconds: f64,
    /// How long to warm up, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    warmup: f64,
    /// Write everything that was found out
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The side of an echo that answers, started by the one that asks.
#[derive(Debug, Args)]
pub(super) struct EchoServerArgs {
    request: usize,
    reply: usize,
    connections: usize,
    threads: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Header {
    Json,
    Binary,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        Ok(_) | Err(_) => Err("a number of seconds from 0 to 86400 is expected".to_owned()),
    }
}

/// Serves until somebody ends it; then says what was served.
pub(super) fn sink(args: &SinkArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let sink = Sink::bind((args.host, args.port).into())?;
        let mut terminate = signal(SignalKind::terminate()).context("signals cannot be waited for")?;
        // For programs, as the server's own line: whoever reads it may begin.
        say(&format!("gantry bench sink: ready {}\n", sink.address()))?;
        let end = async move {
            tokio::select! {
                // Without a handler for the one the other still ends it.
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        };
        anyhow::Ok(sink.run(end).await)
    })?;
    let taken = process::taken(std::process::id()).unwrap_or_default();
    let (messages, given) = (text::grouped(served.taken as f64), text::grouped(served.given as f64));
    say(&format!("{messages} messages taken, {given} given, {:.2} CPU-s\n", taken.cpu_seconds))?;
    Ok(ExitCode::SUCCESS)
}

/// Measures, and shows.
pub(super) fn echo(args: &EchoArgs) -> anyhow::Result<ExitCode> {
    let half = std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2));
    let connections = args.connections as usize;
    let wanted = Echo {
        connections,
        // A thread without a connection would do nothing.
        threads: args.threads.map_or(half, |threads| threads as usize).min(connections),
        message_size: args.message_size as usize,
        header: match args.header {
            Header::Json => HeaderKind::Json,
            Header::Binary => HeaderKind::Binary,
        },
        warmup: Duration::from_secs_f64(args.warmup),
        time: Duration::from_secs_f64(args.seconds),
    };
    let mut server = Command::new(std::env::current_exe().context("our own program is not known")?);
    server.args(["bench", "echo-server"]);
    let echoed = echo::run(&wanted, server)?;
    say(&text::echo(&echoed))?;
    if let Some(path) = &args.json {
        let failed = |cause| BenchError::File { path: path.clone(), cause };
        let mut written = serde_json::to_string_pretty(&echoed)?;
        written.push('\n');
        std::fs::write(path, written).map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers until the side that asks has ended.
pub(super) fn echo_server(args: &EchoServerArgs) -> anyhow::Result<ExitCode> {
    echo::serve(args.request, args.reply, args.connections, args.threads)?;
    Ok(ExitCode::SUCCESS)
}
