//! What can be said on the command line. `namesrv` and `broker` take the letters of Apache's `mqnamesrv` and `mqbroker`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand, ValueEnum};
use config::keys;
use env::say_aside;

/// The first line of the help.
const ABOUT: &str = "A message broker for RocketMQ clients";

/// A command line.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, about = ABOUT, max_term_width = 110)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
}

impl CommandLine {
    /// Reads the words of a command line; ends the process with a message if they make no sense.
    ///
    /// What serves is read without the commands of `admin`: their hundreds of options take megabytes, which a server would hold on
    /// to as long as it lives.
    pub fn read(words: Vec<OsString>) -> Command {
        let serves = words.get(1).and_then(|word| word.to_str()).is_some_and(Serve::has_subcommand);
        if serves {
            match ServeLine::try_parse_from(words) {
                Ok(line) => Command::Serve(line.command),
                Err(error) => {
                    // Where it goes, and with which exit code, depends on its kind: help is no error.
                    let _ = error.print();
                    if let Some(instead) = instead(&error) {
                        say_aside!("\n{instead}");
                    }
                    std::process::exit(error.exit_code());
                }
            }
        } else {
            CommandLine::parse_from(words).command
        }
    }
}

/// What to write instead of a word that people write for Apache's scripts.
fn instead(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = word.split_once('=').map_or(word.as_str(), |(option, _)| option);
    if PROXY_OPTIONS.contains(&option) {
        return Some(format!(
            "{option} starts Apache's gRPC proxy beside the broker. This version has no proxy: leave the option out, and let clients of the remoting \
             protocol connect; clients that speak gRPC (rocketmq-clients 5.x) need a proxy of Apache's"
        ));
    }
    let key = keys::find(config::Role::Broker, option)?.name;
    Some(format!(
        "{key} is a key of the property file, which Apache's scripts ignore in this place: write --set {word}, or a line in the file of -c"
    ))
}

/// Of Apache's `mqbroker`.
const PROXY_OPTIONS: [&str; 5] = ["--enable-proxy", "-pc", "--proxyConfigPath", "-pm", "--proxyMode"];

/// A command line that serves.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, about = ABOUT, max_term_width = 110)]
struct ServeLine {
    #[command(subcommand)]
    command: Serve,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Serve(Serve),
    Admin(cli::admin::AdminArgs),
    Bench(bench::BenchArgs),
    Completion(cli::pages::CompletionArgs),
    Doctor(doctor::DoctorArgs),
    Man(cli::pages::ManArgs),
    Profile(doctor::profile::ProfileArgs),
    Store(cli::store::StoreArgs),
}

/// What runs until it is stopped.
#[derive(Debug, Subcommand)]
pub enum Serve {
    /// Name server and broker in one process; needs no configuration
    Server(ServerArgs),
    /// A name server alone
    Namesrv(NamesArgs),
    /// A broker alone
    Broker(BrokerArgs),
    /// A controller alone, which elects the masters of brokers in controller mode
    Controller(ControllerArgs),
}

/// What all of them take.
#[derive(Debug, Args)]
pub struct Common {
    /// Property file, as Apache's: broker.conf or namesrv.conf
    #[arg(short = 'c', long = "config", visible_alias = "configFile", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key of the property file; may be repeated, and wins over the file
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Print the settings in force and where each came from, say of them what a start says, and end
    #[arg(short = 'p', long = "print-config", visible_alias = "printConfigItem")]
    pub print_config: bool,
    /// How log lines are written
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    #[command(flatten)]
    pub common: Common,
    /// Folder of everything that the property file does not place elsewhere
    #[arg(long, default_value = "./data", value_name = "DIR")]
    pub data: PathBuf,
    /// Port of the name server; 0 takes a free one
    #[arg(long, default_value_t = 9876, value_name = "PORT")]
    pub namesrv_port: u16,
    /// Port of the broker (listenPort, 10911); 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub broker_port: Option<u16>,
    /// Further name servers to register at, separated by semicolons
    #[arg(short = 'n', long = "namesrv-addr", visible_alias = "namesrvAddr", value_name = "HOST:PORT")]
    pub namesrv_addr: Option<String>,
}

#[derive(Debug, Args)]
pub struct NamesArgs {
    #[command(flatten)]
    pub common: Common,
    /// Port to listen on; 0 takes a free one. Without it, listenPort of the property file, or 9876
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

#[derive(Debug, Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Args)]
pub struct BrokerArgs {
    #[command(flatten)]
    pub common: Common,
    /// Port to listen on; 0 takes a free one. Without it, listenPort of the property file, or 10911
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Name servers to register at, separated by semicolons
    #[arg(short = 'n', long = "namesrv-addr", visible_alias = "namesrvAddr", value_name = "HOST:PORT")]
    pub namesrv_addr: Option<String>,
    /// Print the settings that somebody set and where each came from, and end
    #[arg(short = 'm', long = "print-important-config", visible_alias = "printImportantConfig")]
    pub print_important: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        Some(_) | None => Err("KEY=VALUE is expected".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
        ServeLine::command().debug_assert();
    }

    #[test]
    fn the_help_begins_with_what_it_is() {
        for mut command in [CommandLine::command(), ServeLine::command()] {
            let help = command.render_help().to_string();
            assert!(help.starts_with(ABOUT), "{help}");
        }
    }

    #[test]
    fn words_of_compose_files_are_refused_with_what_to_write_instead() {
        let said = |words: &[&str]| {
            let words = ["gantry", "broker"].iter().chain(words);
            instead(&ServeLine::try_parse_from(words).unwrap_err()).unwrap_or_default()
        };
        let key = said(&["-n", "namesrv:9876", "autoCreateTopicEnable=true"]);
        assert!(key.contains("--set autoCreateTopicEnable=true"), "{key}");
        for words in [&["-n", "a:9876", "--enable-proxy"][..], &["--enable-proxy", "-c", "broker.conf"]] {
            assert!(said(words).contains("--enable-proxy") && said(words).contains("no proxy"), "{}", said(words));
        }
        assert_eq!(said(&["whatever"]), "");
    }

    #[test]
    fn apaches_letters_are_taken() {
        let parsed =
            CommandLine::try_parse_from(["gantry", "broker", "-c", "broker.conf", "-n", "a:9876;b:9876", "-m"])
                .unwrap();
        let Command::Serve(Serve::Broker(broker)) = parsed.command else { panic!("not a broker") };
        assert_eq!(broker.namesrv_addr.as_deref(), Some("a:9876;b:9876"));
        assert!(broker.print_important && broker.common.config.is_some());
        assert!(CommandLine::try_parse_from(["gantry", "namesrv", "-c", "namesrv.conf", "-p"]).is_ok());
    }
}
