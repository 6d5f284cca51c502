//! The kinds of values that the tables name.

use crate::key::Kind;

pub(super) const BOOL: Kind = Kind::Bool;
pub(super) const TEXT: Kind = Kind::Text;
/// Java's `int` and `long`.
pub(super) const INT: Kind = Kind::Number { min: i32::MIN as i64, max: i32::MAX as i64, scaled: false };
pub(super) const LONG: Kind = Kind::Number { min: i64::MIN, max: i64::MAX, scaled: false };
/// 0 lets the system choose a free one.
pub(super) const PORT: Kind = Kind::Number { min: 0, max: u16::MAX as i64, scaled: false };
/// Apache takes what is not above 0 for "not set".
pub(super) const HA_PORT: Kind = Kind::Number { min: i32::MIN as i64, max: u16::MAX as i64, scaled: false };
/// Less is more header than log; more would not go into the buffer of Apache's slave (4 MiB with the header).
pub(super) const HA_FRAME: Kind = Kind::Number { min: 1024, max: 4_000_000, scaled: true };
/// With less a slave of a busy master would never catch up.
pub(super) const HA_RATE: Kind = Kind::Number { min: 1024, max: i64::MAX, scaled: true };
pub(super) const PERCENT: Kind = Kind::Number { min: 0, max: 100, scaled: false };
/// Read 4, write 2.
pub(super) const PERMISSION: Kind = Kind::Number { min: 0, max: 7, scaled: false };
/// A length of time in the unit that the name says.
pub(super) const SPAN: Kind = Kind::Number { min: 0, max: i32::MAX as i64, scaled: false };
/// The same where Java has a `long`.
pub(super) const LONG_SPAN: Kind = Kind::Number { min: 0, max: i64::MAX, scaled: false };
/// A `SPAN` where nothing happens without a pause.
pub(super) const PERIOD: Kind = Kind::Number { min: 1, max: i32::MAX as i64, scaled: false };
/// Copies of the log, a broker's own included: as many slaves as may be connected, and itself.
pub(super) const COPIES: Kind = Kind::Number { min: 0, max: 64, scaled: false };
/// All metrics are written then, which takes time.
pub(super) const LOG_PERIOD: Kind = Kind::Number { min: 100, max: i32::MAX as i64, scaled: false };
pub(super) const CARDINALITY: Kind = Kind::Number { min: 1, max: i32::MAX as i64, scaled: false };
pub(super) const BYTES: Kind = Kind::Number { min: 0, max: i32::MAX as i64, scaled: true };
pub(super) const COUNT: Kind = Kind::Number { min: 0, max: i32::MAX as i64, scaled: true };
pub(super) const FLUSH_TYPE: Kind = Kind::OneOf(&["ASYNC_FLUSH", "SYNC_FLUSH"]);
pub(super) const CONTROLLER_TYPE: Kind = Kind::OneOf(&["DLedger", "jRaft"]);
pub(super) const EXPORTER: Kind = Kind::OneOf(&["DISABLE", "OTLP_GRPC", "PROM", "LOG"]);
pub(super) const ROLE: Kind = Kind::OneOf(&["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]);
pub(super) const REQUEST_MODE: Kind = Kind::OneOf(&["PULL", "POP"]);
pub(super) const TLS_MODE: Kind = Kind::OneOf(&["disabled", "permissive", "enforcing"]);
pub(super) const CLIENT_AUTH: Kind = Kind::OneOf(&["none", "optional", "require"]);
/// What Apache makes bloom filters for, up to `filter::bloom::CONSUMERS_MAX`, and with which percentage of false hits.
pub(super) const CONSUMERS: Kind = Kind::Number { min: 1, max: 1_000_000, scaled: false };
pub(super) const ERROR_RATE: Kind = Kind::Number { min: 1, max: 99, scaled: false };
/// Apache keeps a thread for each.
pub(super) const REVIVE_QUEUES: Kind = Kind::Number { min: 1, max: 998, scaled: false };
