//! Where log lines go: standard error, for people or for programs. `RUST_LOG` sets the level; `info` without it. How many lines clients can
//! cause is bounded (`lines.rs`). Lines of openraft are left out unless `RUST_LOG` names it: it logs each step of its own, and
//! `crates/controller` says what an operator needs.

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
    let asked = std::env::var(EnvFilter::DEFAULT_ENV).ok();
    let lines = Subscriber::builder()
        .with_env_filter(filter(asked.as_deref()))
        .with_writer(std::io::stderr)
        .with_target(false)
        // A line that cannot be written would be told of by `eprintln!`, which panics when nobody reads standard error.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().with(Bounded(&LINES)).init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().with(Bounded(&LINES)).init(),
    }
}

/// What `RUST_LOG` asks for; `info` if it is not set, or not understood.
fn filter(asked: Option<&str>) -> EnvFilter {
    let filter = asked.and_then(|asked| EnvFilter::try_new(asked).ok()).unwrap_or_else(|| EnvFilter::new("info"));
    match "openraft=off".parse() {
        Ok(off) if !asked.is_some_and(|asked| asked.contains("openraft")) => filter.add_directive(off),
        Ok(_) | Err(_) => filter,
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing::{debug, info};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that are seen if `RUST_LOG` is `asked`.
    fn seen(asked: Option<&str>) -> String {
        let written = Written::default();
        let writer = written.clone();
        let lines = Subscriber::builder().with_env_filter(filter(asked)).with_writer(move || writer.clone());
        tracing::subscriber::with_default(lines.finish(), || {
            info!(target: "openraft::core", "raft-info");
            info!("own-info");
            debug!(target: "openraft::core", "raft-debug");
            debug!("own-debug");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let words = ["raft-info", "own-info", "raft-debug", "own-debug"];
        words.into_iter().filter(|word| text.contains(word)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn openraft_is_heard_only_if_it_is_asked_for() {
        assert_eq!(seen(None), "own-info");
        assert_eq!(seen(Some("no = level")), "own-info");
        assert_eq!(seen(Some("debug")), "own-info own-debug");
        assert_eq!(seen(Some("warn")), "");
        assert_eq!(seen(Some("info,openraft=debug")), "raft-info own-info raft-debug");
    }
}
