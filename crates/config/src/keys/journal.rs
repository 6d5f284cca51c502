//! The journal of topics, groups, offsets and whatever else is not in the log. Request 28 shows each with its effect.

use super::table::table;
use crate::key::{Key, Kind, Section};

/// Clients wait for seconds at most; 0 is the pace of the device.
const DELAY: Kind = Kind::Number { min: 0, max: 1000, scaled: false };
/// A snapshot costs two syncs and a new file.
const THRESHOLD: Kind = Kind::Number { min: 4096, max: 1 << 40, scaled: true };
const RATIO: Kind = Kind::Number { min: 0, max: 100_000, scaled: false };
/// At 100 a snapshot may be as large as all that was written since the last one.
const SHARE: Kind = Kind::Number { min: 1, max: 100, scaled: false };
const IDLE: Kind = Kind::Number { min: 100, max: 86_400_000, scaled: false };
/// Not more than the journal writes together.
const PENDING: Kind = Kind::Number { min: 64 << 10, max: 256 << 20, scaled: true };
/// Up to a day.
const UNPAID: Kind = Kind::Number { min: 0, max: 86_400_000, scaled: false };
/// A kill costs a group what it committed in that time.
const GATHER: Kind = Kind::Number { min: 0, max: 10_000, scaled: false };
/// Within what `journal` makes ready.
const ROOM: Kind = Kind::Number { min: 64 << 10, max: 4 << 20, scaled: true };

table! {
    /// The journal.
    JOURNAL: Section::Journal;

    live "journalBundleDelayMillis"     DELAY     = "0"     "how long changes wait for others before they are written together, while nobody waits for one of them, in ms; if this or the next is not 0, a thread writes each";
    live "journalCompleteDelayMillis"   DELAY     = "0"     "the same when somebody waits: a pop, an acknowledgement, a new topic";
    live "journalOffsetsMillis"         GATHER    = "5"     "how long committed offsets gather before the newest of each queue goes into the journal, in ms; a kill costs a group what it committed meanwhile";
    live "journalSnapshotMinBytes"      THRESHOLD = "4M"    "a snapshot is taken when the journal has grown by more than this …";
    live "journalSnapshotRatioPercent"  RATIO     = "200"   "… and by more than this share of the last snapshot …";
    live "journalMaintenancePercent"    SHARE     = "2"     "… and the last snapshot was at most this share of the bytes (journal and log) written since it began; config/*.json are written as far as it leaves room";
    live "journalUnpaidMillis"          UNPAID    = "600000" "how long a change that it leaves no room for waits at most until it is in config/*.json, in ms: each file has 16 KiB for that, which come back in this time; 0: it waits for the room, or for the stop";
    live "journalIdleMillis"            IDLE      = "10000" "when nothing changed for so long, a quarter of the first two will do";
    live "journalPendingBytesMax"       PENDING   = "4M"    "changes that wait for a device that stands still; above it only the newest of each key is kept";
    live "journalRoomBytes"             ROOM      = "256K"  "bytes of the file made ready at a time, into which changes are copied without a thread";
}
