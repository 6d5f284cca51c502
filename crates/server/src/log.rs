//! Where log lines go: standard error, for people or for programs. `RUST_LOG` sets the level; `info` without it. How many lines clients can
//! cause is bounded (`lines.rs`).

mod lines;

use std::io::IsTerminal;
use std::sync::LazyLock;

use lines::{Bounded, Lines, PERIOD};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::command_line::LogFormat;

static LINES: LazyLock<Lines> = LazyLock::new(Lines::default);

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
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().with(Bounded(&LINES)).init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().with(Bounded(&LINES)).init(),
    }
}

/// The task that says now and then how many lines were left out.
pub async fn sum_up() {
    loop {
        tokio::time::sleep(PERIOD).await;
        LINES.begin_anew();
    }
}

/// Says it for the last time.
pub fn end() {
    LINES.begin_anew();
}
