//! A bound for lines that clients cause: of each place in the code so many a minute, then one line that says how many were left out.
//!
//! It is kept for whole crates, so no line that somebody adds there can fill a disk. Lines of the start, of settings and of the process
//! itself are not bounded: they come once.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one place in the code within a [`PERIOD`].
pub const LINES_MAX: u64 = 60;
/// After each of these it is said how many were left out, and all places begin anew.
pub const PERIOD: Duration = Duration::from_secs(60);
/// Crates whose lines requests can cause.
const CRATES: [&str; 7] = ["broker", "disk", "journal", "names", "net", "replica", "store"];
/// How much of a line stands in the one that says how many were left out.
const LIKE_MAX: usize = 120;

/// What was logged of each place in this period. Places are those of the code, so there are not many.
#[derive(Debug, Default)]
pub struct Lines {
    by_place: Mutex<HashMap<Identifier, Place>>,
}

#[derive(Debug)]
struct Place {
    level: Level,
    lines: u64,
    /// The text of the first that was left out.
    like: String,
}

impl Lines {
    /// Counts a line; false if it is to be left out.
    fn has_room(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if !is_bounded(metadata) {
            return true;
        }
        let mut by_place = self.by_place.lock().unwrap_or_else(PoisonError::into_inner);
        let place = by_place.entry(metadata.callsite()).or_insert_with(|| Place {
            level: *metadata.level(),
            lines: 0,
            like: String::new(),
        });
        place.lines += 1;
        if place.lines <= LINES_MAX {
            return true;
        }
        if place.like.is_empty() {
            event.record(&mut Text(&mut place.like));
        }
        false
    }

    /// Says what was left out, and begins anew.
    pub fn begin_anew(&self) {
        let by_place = std::mem::take(&mut *self.by_place.lock().unwrap_or_else(PoisonError::into_inner));
        // Without the lock: these are lines, too.
        for Place { level, lines, like } in by_place.into_values().filter(|place| place.lines > LINES_MAX) {
            let left_out = lines - LINES_MAX;
            let what = "lines were left out, which were like the ones before";
            match level {
                Level::ERROR => tracing::error!(left_out, like, "{what}"),
                Level::WARN => tracing::warn!(left_out, like, "{what}"),
                _ => tracing::info!(left_out, like, "{what}"),
            }
        }
    }
}

/// What somebody turned on to look for something is not bounded.
fn is_bounded(metadata: &Metadata<'_>) -> bool {
    let of_crate = metadata.target().split("::").next().unwrap_or_default();
    *metadata.level() <= Level::INFO && CRATES.contains(&of_crate)
}

/// The text of a line, without its values.
struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(Begin(self.0), "{value:?}");
        }
    }
}

/// Keeps the beginning of what is written.
struct Begin<'a>(&'a mut String);

impl Write for Begin<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LIKE_MAX.saturating_sub(self.0.len());
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        Ok(())
    }
}

/// The bound, in front of whoever writes lines.
pub struct Bounded(pub &'static Lines);

impl<S: Subscriber> Layer<S> for Bounded {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.0.has_room(event)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

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

    #[test]
    fn of_each_place_so_many_lines_are_written_and_then_how_many_more_there_were() {
        let (written, lines): (_, &'static Lines) = (Written::default(), Box::leak(Box::default()));
        let to = written.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish().with(Bounded(lines));
        tracing::subscriber::with_default(subscriber, || {
            let some = |count: u64| {
                for number in 0..count {
                    tracing::warn!(target: "net::task", number, "connection closed");
                    tracing::info!(target: "broker::groups", number, "group created");
                    tracing::info!(target: "gantry::settings", number, "a line of the start");
                }
            };
            some(1000);
            lines.begin_anew();
            some(LINES_MAX);
            lines.begin_anew();
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count() as u64;
        assert_eq!(count("net::task: connection closed"), 2 * LINES_MAX);
        assert_eq!(count("broker::groups: group created"), 2 * LINES_MAX);
        assert_eq!(count("a line of the start"), 1000 + LINES_MAX);
        assert_eq!((count("left_out=940 like=\"connection closed\""), count("left_out=")), (1, 2), "{text}");
        assert!(text.lines().any(|line| line.contains("WARN") && line.contains("like=\"connection closed\"")));
    }
}
