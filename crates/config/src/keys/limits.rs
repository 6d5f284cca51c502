//! Limits of our own. Request 28 (`mqadmin brokerStatus`) shows each with how close the broker is to it.

use super::kinds::{BOOL, TEXT};
use super::table::table;
use crate::key::{Key, Kind, Section};

/// Parked pulls take a few hundred bytes each.
const PULLS: Kind = Kind::Number { min: 1, max: 10_000_000, scaled: true };
const BURSTS: Kind = Kind::Number { min: 1, max: 65_536, scaled: true };
/// Less than a look at the room takes would refuse at once; clients wait for minutes at most.
const ROOM: Kind = Kind::Number { min: 100, max: 600_000, scaled: false };
/// In less a turn of the machine's scheduler is seen; an hour has no five minutes before it.
const THROUGHPUT: Kind = Kind::Number { min: 100, max: 600_000, scaled: false };
/// Beyond an hour nobody sends again by himself.
const WINDOW: Kind = Kind::Number { min: 0, max: 3_600_000, scaled: false };
const SENDS: Kind = Kind::Number { min: 1, max: 100_000_000, scaled: true };
/// More than batches of one client leave at about the same time.
const PARTS: Kind = Kind::Number { min: 0, max: 4096, scaled: false };
const CONNECTIONS: Kind = Kind::Number { min: 1, max: 10_000_000, scaled: true };
/// Less would close clients that wait for their first turn on a busy machine; 0: as long as any connection may be idle.
const FIRST_FRAME: Kind = Kind::Number { min: 0, max: 3_600, scaled: false };
/// 0: as if it were idle.
const UNREAD: Kind = Kind::Number { min: 0, max: 86_400, scaled: false };
/// 0: any number.
const OF_ADDRESS: Kind = Kind::Number { min: 0, max: 10_000_000, scaled: true };
/// A frame of the usual largest size finds room; a larger one is let in when no other request holds any.
const REQUEST_BYTES: Kind = Kind::Number { min: 16 << 20, max: 1 << 40, scaled: true };

/// A hundred years; 0: as files.
const HOURS: Kind = Kind::Number { min: 0, max: 876_000, scaled: false };

/// At 100 slaves keep the log until the disk is too full for them.
const SHARE: Kind = Kind::Number { min: 0, max: 100, scaled: false };

/// 0: however long it is.
const LOG_BYTES: Kind = Kind::Number { min: 0, max: 1 << 50, scaled: true };

/// A lease takes some 300 bytes.
const LEASES: Kind = Kind::Number { min: 1, max: 100_000_000, scaled: true };

/// 0 is found out; anything else is looked at by the start, which knows the least that will do.
const MEMORY: Kind = Kind::Number { min: 0, max: 1 << 50, scaled: true };
/// A pass costs some system calls; a minute without one fills any machine.
const RECLAIM: Kind = Kind::Number { min: 10, max: 60_000, scaled: false };
const WEIGHT: Kind = Kind::Number { min: 1, max: 65_536, scaled: false };

table! {
    /// Limits.
    LIMITS: Section::Limits;

    live "parkedPullsMax"                  PULLS         = "1000000" "pulls that wait for a message, some 800 bytes each; more are refused; if nobody sets it, it is less where memoryLimit is below 7G";
    live "parkedPullsPerConnectionMax"     PULLS         = "100000"  "the same for one connection; a consumer parks one a queue";
    live "popLeasesMax"                    LEASES        = "1000000" "pops whose messages are neither acknowledged nor over, some 300 bytes each; above it nothing is popped; if nobody sets it, it is less where memoryLimit is below 4G";
    live "openHalfMessagesMax"             SENDS         = "1000000" "half messages that wait for their end, some 100 bytes each; more are refused; if nobody sets it, it is less where memoryLimit is below 4G";
    live "roomTimeoutMillis"               ROOM          = "2500"    "how long a send waits for room in the log before it is refused; less than the 3 s that clients wait for an answer";
    live "throughputWindowMillis"          THROUGHPUT    = "10000"   "how long messages that are stored are counted, and waits, before both are compared with the windows before; a fall of a tenth is named with its cause";
    used "repeatedSendWindowMillis"        WINDOW        = "0"       "a message of the same topic and UNIQ_KEY that comes again within so many ms is answered with the place of the first and not stored twice (batches and retries excepted); 0: off";
    used "repeatedSendsMax"                SENDS         = "100000"  "sends that this window remembers, some 300 bytes each; above it the oldest are forgotten";
    used "unflushedBurstsPerConnectionMax" BURSTS        = "256"     "SYNC_FLUSH, SYNC_MASTER: bursts of one connection that wait for the device or for slaves; above it the connection is not read";
    live "sendTogetherPartsMax"            PARTS         = "256"     "sends of several topics and queues that a client may put into one request (30001, our own) once its heartbeat has asked, 4096 at most; 0: clients are not told of it";
    used "connectionsMax"                  CONNECTIONS   = "100000"  "connections of one port; for one more, and for one more than `ulimit -n` less 600 of all ports together, the oldest that has said nothing yet is closed; if all have spoken, the new one";
    used "connectionsPerAddressMax"        OF_ADDRESS    = "0"       "connections of one address, all ports together; more are closed as they come; a proxy is one address; 0: any number";
    used "firstFrameTimeoutSeconds"        FIRST_FRAME   = "15"      "a connection whose first request has not come by then is closed; 0: after serverChannelMaxIdleTimeSeconds, as others";
    used "unreadTimeoutSeconds"            UNREAD        = "60"      "a connection that takes nothing of the answers that wait for it for so long is closed, though it may send; 0: only when it is idle";
    used "requestBytesMax"                 REQUEST_BYTES = "256M"    "what large requests and replies of all connections may hold together, apart from 64 KiB of requests and as much of replies that each has anyway (of those in its output, of those on their way there, and of those that are kept back); above it large requests are not read; while replies hold more than half of it, or with requests more than all, a connection that has its 64 KiB of them is not read until its peer has taken some; if nobody sets it, it is less where memoryLimit is below 2G";
    live "commitLogBytesMax"               LOG_BYTES     = "0"       "bytes of the log from its oldest file to its end, 1048576G at most; above it the oldest files are expired and go at any hour, but not what an active group has not consumed, and not the file that is written; 0: no limit";
    live "replicaAllow"                    TEXT          = ""        "addresses that may have the log of this master, besides this machine and the brokers of its set that name servers list: IP addresses, also with a prefix (10.0.0.0/8), joined by commas; `none` or nothing: no others";
    live "forwardToMaster"                 BOOL          = "true"    "a slave of a Gantry master, and a master that was replaced, ask the master in the client's name for what only a master may do; a broker that has handed the master over answers pulls for 60 s; false: they refuse, as Apache's do";
    used "replicaSecret"                   TEXT          = ""        "a secret of 16 bytes at least that the master and the slaves of a set have: a slave that proves it may have the log, from any address, and one that does not, or speaks Apache's plain stream, may not; a slave that has it follows only a master that proves it; never shown; nothing: addresses are looked at (replicaAllow)";
    live "replicaRetentionMax"             SHARE         = "20"      "how far behind a slave may be for files of the log to be kept until it has them, in percent of the log's file system; it counts while it is connected, and for 5 minutes more; 0: nothing is kept for slaves";
    live "activeGroupHours"                HOURS         = "0"       "hours after its last commit in a topic for which a group that is not connected keeps what it has not consumed there; 0: as many as fileReservedTime has";
    used "checkCRCOnRead"                  BOOL          = "true"    "check the body of each message that comes from the device and not from memory; one that is damaged is named in the log and passed over; false: it is given out as it is";
    used "memoryLimit"                     MEMORY        = "0"       "what the process may occupy: heap, mapped files, and the page cache of its own files; 64M at least; 0: three quarters of the memory cgroup's limit, or half of the machine's memory where there is none";
    used "cacheReclaimEnable"              BOOL          = "true"    "keep the page cache of the store's files within memoryLimit (like cache_reclaim_enable of kernels that have it); false: leave it to the kernel";
    used "cacheReclaimMillis"              RECLAIM       = "100"     "pause between two passes that give pages of the log back (like cache_reclaim_s), in ms; shorter when senders wait for room";
    used "cacheReclaimWeight"              WEIGHT        = "64"      "32 pages for each processor and unit of weight go in one pass (like cache_reclaim_weight); never fewer than were written since the last one";
}
