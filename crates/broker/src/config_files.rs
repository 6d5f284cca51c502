//! RocketMQ's `config/*.json`: read when another broker has written them, and written so that another broker can take over.
//!
//! The state lives in the journal. A file that we did not write wins for its table: then Apache ran here in between, or this is its store
//! and we start on it for the first time. What we wrote is known by its hash, which the device has in the journal before the file is in its place;
//! so a crash between the two never makes our own file win. Members that we do not know are kept beside the state and written back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use store::Store;

use crate::broker::Broker;
use crate::caller::JOURNAL_TIMEOUT;
use crate::timer::Timers;
use crate::{admin, blocking, tables};

mod files;
mod look;
mod place;
mod state;
mod text;

use files::{FileTables, used};
pub use look::{ConfigFile, ConfigLook, Writer};
use place::{BACKUP, backup, put_in_place};
use state::Json;
pub(crate) use state::{ConfigFiles, Exports, Extras};

/// Why the files cannot be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFilesError {
    /// The world.
    #[error("cannot {what} {}: {cause}", .path.display())]
    Io {
        /// read, write …
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file that is a mount of its own.
    #[error(transparent)]
    Mounted(#[from] config::file::FileError),
    /// The journal, which has to know of a file before it is there.
    #[error("cannot write {}: the journal, which has to know of it first, is not written in time", .path.display())]
    Journal {
        /// Which file.
        path: PathBuf,
    },
    /// Not what the file should hold.
    #[error("{} is not readable ({cause}); repair it, or move {} away to start with what this broker remembers", .path.display(), to_move(.path))]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// What has to go before a start reads neither a file nor the backup that stands in for it.
fn to_move(path: &Path) -> String {
    if path.extension().is_some_and(|extension| extension == BACKUP) {
        return "it".to_owned();
    }
    format!("it and {} (if that is there)", backup(path).display())
}

/// When files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// If their state has changed.
    Changed,
    /// The same, but no sooner than what users have written since the start pays for it, or the file's credit does: they are written whole, with
    /// each change.
    Paid,
}

/// Where Apache counts on from. We only write it: a start of ours counts what the timer log holds.
const TIMER_COUNTS: &str = "timermetrics";

impl ConfigFiles {
    /// Takes over the files that others have written. Says what was taken over, a sentence each.
    pub(crate) fn import(&self, broker: &Broker) -> Result<Vec<String>, ConfigFilesError> {
        let (mut report, held) = (Vec::new(), FileTables::of(broker));
        for json in used(&broker.store) {
            let Some((path, bytes)) = self.read(json)? else { continue };
            let is_first = {
                let mut known = self.known.lock();
                let known = &mut known[json as usize];
                if known.hashes.contains(&hash(&bytes)) {
                    known.note_in_place(hashes_of(&self.folder.join(json.file())));
                    continue;
                }
                known.hashes.is_empty()
            };
            if !is_first {
                held.refuse_empty(json, &path, &bytes)?;
            }
            let count = self.take(held, json, &path, &bytes)?;
            let who = if is_first { "found" } else { "changed by another broker" };
            report.push(format!("{} {who}: {count} entries taken over from it", path.display()));
        }
        Ok(report)
    }

    /// The file, or its backup where the file is missing or empty, as Apache does it.
    fn read(&self, json: Json) -> Result<Option<(PathBuf, Vec<u8>)>, ConfigFilesError> {
        let main = self.folder.join(json.file());
        for path in [main.clone(), backup(&main)] {
            match fs::read(&path) {
                Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                Ok(bytes) => return Ok(Some((path, bytes))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(ConfigFilesError::Io { what: "read", path, cause }),
            }
        }
        Ok(None)
    }

    fn take(&self, into: FileTables<'_>, json: Json, path: &Path, bytes: &[u8]) -> Result<usize, ConfigFilesError> {
        let (count, extras) = into.take(json, path, bytes)?;
        let value = serde_json::to_vec(&extras).unwrap_or_default();
        self.known.lock()[json as usize].extras = extras;
        self.keeper.put(tables::EXTRAS, json.file().as_bytes(), &value);
        self.remember(json, hash(bytes));
        self.known.lock()[json as usize].note_in_place(vec![hash(bytes)]);
        Ok(count)
    }

    /// Whether what was written beside what users write is within `journalMaintenancePercent` of that: files, and the journal's snapshots.
    fn is_paid(&self, store: &Store) -> bool {
        let journal = store.journal();
        let (stats, percent) = (journal.stats(), journal.options().maintenance_percent);
        let spent = u128::from(self.written()) + u128::from(stats.maintenance_bytes);
        spent * 100 <= u128::from(stats.foreground_bytes) * u128::from(percent)
    }

    /// Writes the files whose state has changed since they were last written. Called by one task at a time. One that cannot be replaced does
    /// not hold up the others; the first error is returned. Without the journal none can be.
    pub(crate) async fn export(&self, broker: &Broker, when: When) -> Result<(), ConfigFilesError> {
        let (mut first_error, held) = (None, FileTables::of(broker));
        for json in used(&broker.store) {
            let stamp = held.stamp(json);
            let now = broker.clock.elapsed();
            let unpaid_time = Duration::from_millis(broker.store_settings.load().journal_unpaid_millis);
            let (extras, is_paid) = {
                let known = self.known.lock();
                let known = &known[json as usize];
                if known.stamp == Some(stamp) {
                    continue;
                }
                let is_paid = self.is_paid(&broker.store);
                // The first one lets others in, whatever it costs.
                let is_due = is_paid || known.bytes == 0 || known.credit.covers(known.bytes, now, unpaid_time);
                if when == When::Paid && !is_due {
                    continue;
                }
                (known.extras.clone(), is_paid)
            };
            let text = held.render(json, &extras);
            let bytes = text.len();
            let new = hash(text.as_bytes());
            let position = self.remember(json, new);
            let before = self.known.lock()[json as usize].in_place.first().copied();
            let path = self.folder.join(json.file());
            let journal = broker.store.journal();
            journal.want_sync();
            // The device, not only the kernel: a loss of power must not leave a file that the journal does not know. It would count as another
            // broker's, and offsets would be taken over from it without the leases of the messages before them.
            if tokio::time::timeout(JOURNAL_TIMEOUT, journal.synced().reached(position)).await.is_err() {
                return Err(ConfigFilesError::Journal { path });
            }
            let written = blocking::spawn(move || {
                let written = put_in_place(&path, text.as_bytes());
                // One that failed may have come as far as to replace either of the two.
                let in_place =
                    if written.is_ok() { Vec::from_iter([new].into_iter().chain(before)) } else { hashes_of(&path) };
                (written, in_place)
            });
            // The task cannot be cancelled here, and a panic in it would be ours.
            if let Ok((written, in_place)) = written.await {
                self.known.lock()[json as usize].note_in_place(in_place);
                if let Err(error) = written {
                    first_error.get_or_insert(error);
                    continue;
                }
            }
            self.written.fetch_add(bytes as u64, Ordering::Relaxed);
            let known = &mut self.known.lock()[json as usize];
            (known.stamp, known.bytes) = (Some(stamp), bytes);
            if !is_paid {
                self.unpaid.fetch_add(bytes as u64, Ordering::Relaxed);
                known.credit.spend(bytes, now, unpaid_time);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Writes how many timer messages wait, which matters to whoever takes over and changes with each message: at the stop.
    pub(crate) async fn export_timer_counts(&self, timers: Option<&Timers>) -> Result<(), ConfigFilesError> {
        let Some(timers) = timers else { return Ok(()) };
        let text = text::text(&admin::timers::counts(timers), &Value::Null);
        let path = self.folder.join(TIMER_COUNTS);
        let written = blocking::spawn(move || put_in_place(&path, text.as_bytes()));
        // As above.
        written.await.unwrap_or(Ok(()))
    }
}

/// FNV-1a: tells whether somebody has changed a file; nobody gains from forging one.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The hashes of a file and of its backup, of those that can be read. Waits for the device.
fn hashes_of(path: &Path) -> Vec<u64> {
    [path.to_owned(), backup(path)].iter().filter_map(|path| fs::read(path).ok()).map(|bytes| hash(&bytes)).collect()
}
