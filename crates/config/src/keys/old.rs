//! Spellings and keys of earlier versions, and lines that files carry along although no version reads them.

use super::kinds::{BOOL, INT, TEXT};
use super::table::table;
use crate::key::{Key, Section};

/// Spellings that files carry along, and the names by which RocketMQ reads these keys. It has no setter for the others, so it ignores them
/// (`mapedFileSize…` since 4.5.2, `haSlaveFallbehindMax` since 5.0): so do we, and name them at start. A store with files of other
/// sizes than the present settings say keeps its sizes.
pub const RENAMED: &[(&str, &str)] = &[
    ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
    ("mapedFileSizeConsumeQueue", "mappedFileSizeConsumeQueue"),
    ("mapedFileSizeConsumeQueueExt", "mappedFileSizeConsumeQueueExt"),
    ("mappedFileSizeBatchConsumeQueue", "mapperFileSizeBatchConsumeQueue"),
    ("flushLeastPagesWhenWarmMappedFile", "flushLeastPagesWhenWarmMapedFile"),
    ("destroyMappedFileIntervalForcibly", "destroyMapedFileIntervalForcibly"),
    ("warmMappedFileEnable", "warmMapedFileEnable"),
    ("haSlaveFallbehindMax", "haMaxGapNotInSync"),
    ("memTableFlushInterval", "memTableFlushIntervalMs"),
    ("isEnableBatchPush", "enableBatchPush"),
];

const BILLING: &str = "gone from RocketMQ: it counted messages for bills";
const FILTER_SERVERS: &str = "gone from RocketMQ: filter servers ran classes of the consumers";
const SLOW_DELAY: &str = "gone from RocketMQ, and nothing read it";
/// These have to agree with the layout under `storePathRootDir`; when they do not, the start says so.
const LAYOUT: &str = "not a key of RocketMQ 5: the place follows from storePathRootDir";

table! {
    /// What a present broker does not read.
    OLD: Section::Old;

    not_needed(BILLING)        "commercialEnable"      BOOL = "true"   "bill for messages";
    not_needed(BILLING)        "commercialBigCount"    INT  = "1"      "billing factor";
    not_needed(BILLING)        "commercialTimerCount"  INT  = "1"      "billing factor";
    not_needed(BILLING)        "commercialTransCount"  INT  = "1"      "billing factor";
    not_needed(FILTER_SERVERS) "filterServerNums"      INT  = "0"      "filter server processes";
    not_needed(SLOW_DELAY)     "maxDelayTime"          INT  = "40"     "unused";
    not_needed(LAYOUT)         "storePathConsumeQueue" TEXT = ""       "consume queues";
    not_needed(LAYOUT)         "storePathIndex"        TEXT = ""       "key index";
    not_needed(LAYOUT)         "storeCheckpoint"       TEXT = ""       "check-point file";
    not_needed(LAYOUT)         "abortFile"             TEXT = ""       "abort file";
}
