//! RocketMQ's `config/*.json`: read when another broker has written them, and written so that another broker can take over.
//!
//! The state lives in the journal. A file that we did not write wins for its table: then Apache ran here in between, or this is its store
//! and we start on it for the first time. What we wrote is known by its hash, which the device has in the journal before the file is in its place;
//! so a crash between the two never makes our own file win. Members that we do not know are kept beside the state and written back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use journal::Table;
use parking_lot::Mutex;
use serde_json::Value;
use store::Store;

use crate::admin;
use crate::blocking;
use crate::broker::Broker;
use crate::session::JOURNAL_TIMEOUT;
use crate::tables::{self, Keeper};

mod credit;
mod files;
mod look;
mod place;
mod text;

use credit::Credit;
use files::{ALL, Json, named, render, stamp, used};
pub use look::{ConfigFile, ConfigLook, Writer};
use place::{BACKUP, backup, put_in_place};

/// Hashes that are remembered of writes that may have been cut short, beside those of the file in place and of its backup.
const ATTEMPTS_KEPT: usize = 4;

/// Why the files cannot be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
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

#[derive(Clone, Debug, Default)]
struct Known {
    /// Newest first.
    hashes: Vec<u64>,
    /// Of these, the file in place and its backup: never forgotten, however often replacing them fails.
    in_place: Vec<u64>,
    extras: Value,
    /// What the state looked like when it was last written.
    stamp: Option<(i64, i64, u64)>,
    /// How long the file was that was written last; 0 before the first.
    bytes: usize,
    credit: Credit,
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

impl Known {
    /// What lies in place now. One that could not be read is as it was.
    fn note_in_place(&mut self, hashes: Vec<u64>) {
        if !hashes.is_empty() {
            self.in_place = hashes;
            self.in_place.retain(|hash| self.hashes.contains(hash));
        }
    }
}

/// Where Apache counts on from. We only write it: a start of ours counts what the timer log holds.
const TIMER_COUNTS: &str = "timermetrics";

/// The exchange of one broker with the folder `config`.
pub(crate) struct Exchange {
    folder: PathBuf,
    known: Mutex<[Known; ALL.len()]>,
    keeper: Keeper,
    /// Bytes of files written since the start, and of these the ones that nothing had paid. Relaxed: each stands alone.
    written: AtomicU64,
    unpaid: AtomicU64,
}

impl Exchange {
    /// What the journal remembers of the files.
    pub(crate) fn load(folder: PathBuf, store: &Arc<Store>) -> Exchange {
        let mut known: [Known; ALL.len()] = Default::default();
        store.journal().load(tables::EXPORTS, |file, value| {
            if let Some(json) = named(file) {
                known[json as usize].hashes = serde_json::from_slice(value).unwrap_or_default();
            }
        });
        store.journal().load(tables::EXTRAS, |file, value| {
            if let Some(json) = named(file) {
                known[json as usize].extras = serde_json::from_slice(value).unwrap_or_default();
            }
        });
        Exchange {
            folder,
            known: Mutex::new(known),
            keeper: Keeper::of(store),
            written: AtomicU64::new(0),
            unpaid: AtomicU64::new(0),
        }
    }

    /// Takes over the files that others have written. Says what was taken over, a sentence each.
    pub(crate) fn import(&self, broker: &Broker) -> Result<Vec<String>, ExchangeError> {
        let mut report = Vec::new();
        for json in used(broker) {
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
                files::refuse_empty(broker, json, &path, &bytes)?;
            }
            let count = self.take(broker, json, &path, &bytes)?;
            let who = if is_first { "found" } else { "changed by another broker" };
            report.push(format!("{} {who}: {count} entries taken over from it", path.display()));
        }
        Ok(report)
    }

    /// The file, or its backup where the file is missing or empty, as Apache does it.
    fn read(&self, json: Json) -> Result<Option<(PathBuf, Vec<u8>)>, ExchangeError> {
        let main = self.folder.join(json.file());
        for path in [main.clone(), backup(&main)] {
            match fs::read(&path) {
                Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                Ok(bytes) => return Ok(Some((path, bytes))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(ExchangeError::Io { what: "read", path, cause }),
            }
        }
        Ok(None)
    }

    fn take(&self, broker: &Broker, json: Json, path: &Path, bytes: &[u8]) -> Result<usize, ExchangeError> {
        let (count, extras) = files::take(broker, json, path, bytes)?;
        let value = serde_json::to_vec(&extras).unwrap_or_default();
        self.known.lock()[json as usize].extras = extras;
        self.keeper.put(tables::EXTRAS, json.file().as_bytes(), &value);
        self.remember(json, hash(bytes));
        self.known.lock()[json as usize].note_in_place(vec![hash(bytes)]);
        Ok(count)
    }

    /// Bytes of files that were written since the start.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Of these, what nothing had paid.
    pub(crate) fn unpaid(&self) -> u64 {
        self.unpaid.load(Ordering::Relaxed)
    }

    /// Whether what was written beside what users write is within `journalMaintenancePercent` of that: files, and the journal's snapshots.
    fn is_paid(&self, broker: &Broker) -> bool {
        let journal = broker.store.journal();
        let (stats, percent) = (journal.stats(), journal.options().maintenance_percent);
        let spent = u128::from(self.written()) + u128::from(stats.maintenance_bytes);
        spent * 100 <= u128::from(stats.foreground_bytes) * u128::from(percent)
    }

    /// Writes the files whose state has changed since they were last written. Called by one task at a time. One that cannot be replaced does
    /// not hold up the others; the first error is returned. Without the journal none can be.
    pub(crate) async fn export(&self, broker: &Broker, when: When) -> Result<(), ExchangeError> {
        let mut first_error = None;
        for json in used(broker) {
            let stamp = stamp(broker, json);
            let now = broker.clock.elapsed();
            let unpaid_time = Duration::from_millis(broker.store_settings.load().journal_unpaid_millis);
            let (extras, is_paid) = {
                let known = self.known.lock();
                let known = &known[json as usize];
                if known.stamp == Some(stamp) {
                    continue;
                }
                let is_paid = self.is_paid(broker);
                // The first one lets others in, whatever it costs.
                let is_due = is_paid || known.bytes == 0 || known.credit.covers(known.bytes, now, unpaid_time);
                if when == When::Paid && !is_due {
                    continue;
                }
                (known.extras.clone(), is_paid)
            };
            let text = render(broker, json, &extras);
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
                return Err(ExchangeError::Journal { path });
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
    pub(crate) async fn export_timer_counts(&self, broker: &Broker) -> Result<(), ExchangeError> {
        let Some(timers) = &broker.timers else { return Ok(()) };
        let text = text::text(&admin::timers::counts(timers), &Value::Null);
        let path = self.folder.join(TIMER_COUNTS);
        let written = blocking::spawn(move || put_in_place(&path, text.as_bytes()));
        // As above.
        written.await.unwrap_or(Ok(()))
    }

    fn remember(&self, json: Json, hash: u64) -> u64 {
        let mut known = self.known.lock();
        let Known { hashes, in_place, .. } = &mut known[json as usize];
        hashes.retain(|other| *other != hash);
        hashes.insert(0, hash);
        let mut attempts = 0;
        hashes.retain(|hash| {
            attempts += usize::from(!in_place.contains(hash));
            in_place.contains(hash) || attempts <= ATTEMPTS_KEPT
        });
        let value = serde_json::to_vec(hashes).unwrap_or_default();
        self.keeper.put(tables::EXPORTS, json.file().as_bytes(), &value)
    }

    fn show(&self, value: impl Fn(&Known) -> Vec<u8>, f: &mut dyn FnMut(&[u8], &[u8])) {
        let known = self.known.lock().clone();
        for json in ALL {
            f(json.file().as_bytes(), &value(&known[json as usize]));
        }
    }
}

/// The hashes, for the journal's snapshots.
pub(crate) struct Exports(pub(crate) Arc<Exchange>);

impl Table for Exports {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.show(|known| serde_json::to_vec(&known.hashes).unwrap_or_default(), f);
    }
}

/// The members that we do not know, for the journal's snapshots.
pub(crate) struct Extras(pub(crate) Arc<Exchange>);

impl Table for Extras {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.show(|known| serde_json::to_vec(&known.extras).unwrap_or_default(), f);
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
