//! Which files there are, and what the journal and this process know of each.

mod token_bucket;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use journal::Table;
use parking_lot::Mutex;
use serde_json::Value;
use store::Store;

use crate::tables::{self, Keeper};
use token_bucket::TokenBucket;

/// Hashes that are remembered of writes that may have been cut short, beside those of the file in
/// place and of its backup.
const ATTEMPTS_KEPT: usize = 4;

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Json {
    Topics,
    Groups,
    Offsets,
    /// With light queues Apache reads and writes this one in the place of the one before.
    LightOffsets,
    Delays,
    Modes,
    Orders,
    Mappings,
    Conditions,
}

/// In the order in which they are taken over: of two files with offsets, the later one counts; a
/// mapping needs its topic.
pub(super) const ALL: [Json; 9] = [
    Json::Topics,
    Json::Mappings,
    Json::Groups,
    Json::Offsets,
    Json::LightOffsets,
    Json::Delays,
    Json::Modes,
    Json::Orders,
    Json::Conditions,
];

impl Json {
    pub(super) fn file(self) -> &'static str {
        match self {
            Json::Topics => "topics.json",
            Json::Groups => "subscriptionGroup.json",
            Json::Offsets => "consumerOffset.json",
            Json::LightOffsets => "lmqConsumerOffset.json",
            Json::Delays => "delayOffset.json",
            Json::Modes => "messageRequestMode.json",
            Json::Orders => "consumerOrderInfo.json",
            Json::Mappings => "topicQueueMapping.json",
            Json::Conditions => "consumerFilter.json",
        }
    }
}

/// The file of that name.
pub(super) fn named(file: &[u8]) -> Option<Json> {
    ALL.into_iter().find(|json| json.file().as_bytes() == file)
}

/// What is known of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownFile {
    /// Newest first.
    pub(super) hashes: Vec<u64>,
    /// Of these, the file in place and its backup: never forgotten, however often replacing them
    /// fails.
    pub(super) in_place: Vec<u64>,
    pub(super) extras: Value,
    /// What the state looked like when it was last written.
    pub(super) stamp: Option<(i64, i64, u64)>,
    /// How long the file was that was written last; 0 before the first.
    pub(super) bytes: usize,
    pub(super) credit: TokenBucket,
}

impl KnownFile {
    /// What lies in place now. One that could not be read is as it was.
    pub(super) fn note_in_place(&mut self, hashes: Vec<u64>) {
        if !hashes.is_empty() {
            self.in_place = hashes;
            self.in_place.retain(|hash| self.hashes.contains(hash));
        }
    }
}

/// The exchange of one broker with the folder `config`.
pub(crate) struct ConfigFiles {
    pub(super) folder: PathBuf,
    pub(super) known: Mutex<[KnownFile; ALL.len()]>,
    pub(super) keeper: Keeper,
    /// Bytes of files written since the start, and of these the ones that nothing had paid.
    /// Relaxed: each stands alone.
    pub(super) written: AtomicU64,
    pub(super) unpaid: AtomicU64,
}

impl ConfigFiles {
    /// What the journal remembers of the files.
    pub(crate) fn load(folder: PathBuf, store: &Arc<Store>) -> ConfigFiles {
        let mut known: [KnownFile; ALL.len()] = Default::default();
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
        ConfigFiles {
            folder,
            known: Mutex::new(known),
            keeper: Keeper::of(store),
            written: AtomicU64::new(0),
            unpaid: AtomicU64::new(0),
        }
    }

    /// Bytes of files that were written since the start.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Of these, what nothing had paid.
    pub(crate) fn unpaid(&self) -> u64 {
        self.unpaid.load(Ordering::Relaxed)
    }

    pub(super) fn remember(&self, json: Json, hash: u64) -> u64 {
        let mut known = self.known.lock();
        let KnownFile { hashes, in_place, .. } = &mut known[json as usize];
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

    fn show(&self, value: impl Fn(&KnownFile) -> Vec<u8>, f: &mut dyn FnMut(&[u8], &[u8])) {
        let known = self.known.lock().clone();
        for json in ALL {
            f(json.file().as_bytes(), &value(&known[json as usize]));
        }
    }
}

/// The hashes, for the journal's snapshots.
pub(crate) struct Exports(pub(crate) Arc<ConfigFiles>);

impl Table for Exports {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.show(|known| serde_json::to_vec(&known.hashes).unwrap_or_default(), f);
    }
}

/// The members that we do not know, for the journal's snapshots.
pub(crate) struct Extras(pub(crate) Arc<ConfigFiles>);

impl Table for Extras {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.show(|known| serde_json::to_vec(&known.extras).unwrap_or_default(), f);
    }
}
