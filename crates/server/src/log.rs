//! Where log lines go: standard error, for people or for programs. `RUST_LOG` sets the level; `info` without it.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::Subscriber;

use crate::command_line::LogFormat;

/// Everything logged from here on is seen.
pub fn begin(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = Subscriber::builder()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // A line that cannot be written would be told of by `eprintln!`, which panics when nobody reads standard error.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
