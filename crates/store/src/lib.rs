//! Bytes on this machine: commit log, consume queues, key index.
//!
//! Synchronous: the store owns its threads and knows no socket. [`Store`] is the door. The way in: records are encoded into a
//! [`RecordBatch`] outside any lock, [`Store::append`] stamps and copies them under the log's one lock. The way out:
//! [`Store::read`] finds units in a [`ConsumeQueue`] and lends the records' bytes from the log's mapping. Who waits for
//! durability waits on a [`Watermark`](disk::Watermark).

mod again;
mod batch;
mod by_time;
mod checkpoint;
mod closed;
mod cold;
mod commit_log;
mod copy;
#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
mod copying;
mod cut;
mod damaged;
mod deleted;
mod error;
mod flush;
mod fold;
mod fullness;
mod governor;
mod heap;
mod index;
mod lock;
mod log_dirs;
pub mod look;
mod mend;
mod mending;
mod options;
mod pool;
mod prepare;
pub mod queue_log;
mod read;
mod record_at;
mod recovery;
mod resume;
mod retention;
mod rewrite;
mod rocksdb;
mod segment;
mod sound;
mod stage;
mod store;
mod stretch;
mod timer;

pub use batch::{Landed, RecordBatch, TagsCode};
pub use cold::{ColdRead, ColdReadRefused};
pub use copy::{BatchTopics, COPIED_RECORD_BYTES_MAX, CopyError, LogCopy, Misfit, TopicsUnknown};
pub use cut::CutError;
pub use error::{AppendError, Cold, NotWritable, StoreError};
pub use fold::{KeyKind, MessageKeys};
pub use governor::{GovernorOptions, MEMORY_LIMIT_MIN, MemoryFigures, Shares, resident_below};
pub use heap::keep_no_freed_pages;
pub use index::IndexOptions;
pub use index::query::{KeyAnswer, KeyMatch, KeyQuery};
pub use log_dirs::LogDirs;
pub use options::{
    DESCRIPTORS, FlushMode, HourOfDay, QUEUE_DESCRIPTORS, RecoveryOptions, Retention, StoreEnv, StoreOptions,
};
pub use pool::PoolOptions;
pub use queue_log::{Boundary, ConsumeQueue, QueueError, Span, Unit};
pub use read::{Read, ReadLimits, ReadStatus, RecordFilter};
pub use record_at::RecordAt;
pub use recovery::{CutOff, Recovered};
pub use rocksdb::{RocksDb, RocksDbKind, fetched_file, rocksdb_in, unfinished_repair};
pub use segment::{LogSlice, ReadMode, Segment};
pub use stage::{Stage, Stages};
pub use store::{QUEUES_MAX, RetentionFloor, Store};
pub use stretch::Copies;
pub use timer::{
    LogState, TIMER_MARKS_BYTES, TIMER_SLOTS_AHEAD, TimerCheckpoint, TimerFiles, TimerMarks, TimerOptions, TimerUnit,
    Turned, timer_magic,
};
