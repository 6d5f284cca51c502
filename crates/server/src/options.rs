//! What may be asked on the command line. Letters are those of Apache's start scripts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A message broker that takes the place of Apache RocketMQ.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, disable_help_subcommand = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs name server and broker in one process, on ./data, with no configuration needed.
    Server(Server),
    /// Runs a name server, as `mqnamesrv` does.
    Namesrv(Namesrv),
    /// Runs a broker, as `mqbroker` does.
    Broker(Broker),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Args)]
pub struct Common {
    /// A property file of RocketMQ's (broker.conf, namesrv.conf).
    #[arg(short = 'c', long = "configFile", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Prints every setting in force and where it came from, and exits.
    #[arg(short = 'p', long = "print-config", visible_alias = "printConfigItem")]
    pub print_config: bool,
    /// How log lines on standard error are written.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

#[derive(Debug, Args)]
pub struct Server {
    #[command(flatten)]
    pub common: Common,
    /// Where everything is kept. Paths in the property file win.
    #[arg(long, value_name = "DIR", default_value = "data")]
    pub data: PathBuf,
    /// The name server's port; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 9876)]
    pub namesrv_port: u16,
    /// The broker's port; 0 takes a free one. Without it, listenPort of the property file, or 10911.
    #[arg(long, value_name = "PORT")]
    pub broker_port: Option<u16>,
}

#[derive(Debug, Args)]
pub struct Namesrv {
    #[command(flatten)]
    pub common: Common,
    /// The port; 0 takes a free one. Without it, listenPort of the property file, or 9876.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

#[derive(Debug, Args)]
pub struct Broker {
    #[command(flatten)]
    pub common: Common,
    /// Name servers, with semicolons between.
    #[arg(short = 'n', long = "namesrvAddr", value_name = "HOST:PORT;…")]
    pub namesrv: Option<String>,
    /// As -p, but only what somebody set.
    #[arg(short = 'm', long = "printImportantConfig")]
    pub print_important: bool,
    /// The port; 0 takes a free one. Without it, listenPort of the property file, or 10911.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}
