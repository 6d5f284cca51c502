//! `gantry admin`: the commands of `mqadmin` 5.5.0 with its names, letters and long options.
//!
//! `commands.rs` lists them; each family of commands has a file. A command asks through the crate `operator`, which has a file of the same
//! name for most families, and shows what it learned through `Output`, as aligned text or, with `--json`, as one JSON object.

mod acl;
mod broker;
mod check;
mod cluster;
mod cold_data;
mod commands;
pub(crate) mod configuration;
mod connection;
mod consume;
mod consumer;
mod container;
mod controller;
pub(crate) mod credentials;
mod export;
mod group;
mod ha;
mod lite;
mod message;
mod message_view;
mod monitor;
mod namesrv;
mod offset;
mod order;
pub(crate) mod output;
mod print;
mod progress;
mod queue;
mod rocksdb;
mod send;
pub(crate) mod session;
mod static_topic;
mod stats;
mod switch;
mod target;
mod time;
mod topic;
mod trace;
mod user;
mod words;

use std::path::PathBuf;

use clap::Args;
use client::ClientError;
use commands::AdminCommand;
use operator::OperatorError;
use output::Output;
use session::Session;

pub use words::words;

/// The help lists the commands by family; the parser's own list would be one of a hundred lines.
const HELP: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Of all commands:\n{options}\n\n\
    `gantry admin COMMAND --help` shows the options of a command.";
/// The name server of `gantry server` on this machine.
const DEFAULT_NAMES: &str = "127.0.0.1:9876";
/// Where the help shows what every command takes.
const FOR_ALL: &str = "Of all commands";

/// Manage topics, groups, brokers and name servers; takes the commands and letters of mqadmin
#[derive(Debug, Args)]
#[command(
    infer_long_args = true,
    subcommand_value_name = "COMMAND",
    help_template = HELP,
    before_help = commands::families(),
)]
pub struct AdminArgs {
    /// Name servers, separated by semicolons; without it and the variable, 127.0.0.1:9876
    #[arg(
        short = 'n',
        long = "namesrvAddr",
        alias = "nameserverAddr",
        env = "NAMESRV_ADDR",
        value_name = "HOST:PORT",
        global = true,
        help_heading = FOR_ALL
    )]
    names: Option<String>,
    /// File with accessKey and secretKey; without it, conf/tools.yml in the folder ROCKETMQ_HOME if it is there
    #[arg(long, value_name = "FILE", global = true, help_heading = FOR_ALL)]
    credentials: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long, global = true, help_heading = FOR_ALL)]
    json: bool,
    #[command(subcommand)]
    command: AdminCommand,
}

/// Runs one command.
///
/// The error is one sentence with its causes. What was shown before it stays shown.
pub fn run(args: AdminArgs) -> anyhow::Result<()> {
    let AdminArgs { names, credentials, json, command } = args;
    let credentials = credentials::credentials(credentials.as_deref(), std::env::var_os("ROCKETMQ_HOME"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let names = names.filter(|names| !names.trim().is_empty());
    runtime.block_on(async {
        let session = Session::start(names.as_deref().unwrap_or(DEFAULT_NAMES), credentials, Output::new(json));
        let done = command.run(&session).await;
        let done = if names.is_none() { done.map_err(default_named) } else { done };
        // What a command has said before it failed is worth as much as before.
        let told = session.out.end(done.as_ref().err());
        done.and(told.map_err(Into::into))
    })
}

/// An error of the name server that nobody named says how it came to be asked.
fn default_named(error: anyhow::Error) -> anyhow::Error {
    let is_unreached = |cause: &(dyn std::error::Error + 'static)| {
        let asked = cause.downcast_ref::<OperatorError>().and_then(OperatorError::client);
        asked.is_some_and(|error| matches!(error, ClientError::Call(_)) && error.to_string().contains(DEFAULT_NAMES))
    };
    if error.chain().any(is_unreached) {
        return error.context(format!(
            "neither -n HOST:PORT nor NAMESRV_ADDR names a name server, so {DEFAULT_NAMES} was asked"
        ));
    }
    error
}

/// Reads true or false in any case, as Java does; unlike Java, nothing else.
fn truth(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("true or false is expected".to_owned()),
    }
}
