//! The bits of a message's `sysFlag`, of a pull's `sysFlag`, of topics and groups, and of permissions.

/// The body is compressed.
pub const COMPRESSED: i32 = 0x1;
/// `TAGS` holds several tags.
pub const MULTI_TAGS: i32 = 0x2;
/// Both bits of the transaction state.
pub const TRANSACTION_MASK: i32 = 0xc;
/// No transaction.
pub const TRANSACTION_NONE: i32 = 0x0;
/// A half message.
pub const TRANSACTION_PREPARED: i32 = 0x4;
/// Committed.
pub const TRANSACTION_COMMIT: i32 = 0x8;
/// Rolled back.
pub const TRANSACTION_ROLLBACK: i32 = 0xc;
/// The born host takes 20 bytes, not 8.
pub const BORN_HOST_V6: i32 = 0x10;
/// The store host takes 20 bytes, not 8.
pub const STORE_HOST_V6: i32 = 0x20;
/// The body is a batch that the consumer unwraps.
pub const NEED_UNWRAP: i32 = 0x40;
/// The record is a batch.
pub const INNER_BATCH: i32 = 0x80;
/// The bits of the compression kind.
pub const COMPRESSION_MASK: i32 = 0x700;
/// LZ4 frame.
pub const COMPRESSION_LZ4: i32 = 0x100;
/// Zstandard frame.
pub const COMPRESSION_ZSTD: i32 = 0x200;
/// zlib, said explicitly; 0 means zlib too.
pub const COMPRESSION_ZLIB: i32 = 0x300;

/// The transaction state alone.
pub fn transaction(flag: i32) -> i32 {
    flag & TRANSACTION_MASK
}

/// The same flag with another transaction state.
pub fn with_transaction(flag: i32, state: i32) -> i32 {
    flag & !TRANSACTION_MASK | state & TRANSACTION_MASK
}

/// Bits of the `sysFlag` of a pull request.
pub mod pull {
    /// `commitOffset` is to be stored.
    pub const COMMIT_OFFSET: i32 = 0x1;
    /// The request may be parked.
    pub const SUSPEND: i32 = 0x2;
    /// `subscription` is present.
    pub const SUBSCRIPTION: i32 = 0x4;
    /// A class filter of old.
    pub const CLASS_FILTER: i32 = 0x8;
    /// From a lite pull consumer.
    pub const LITE_PULL: i32 = 0x10;
}

/// Bits of `topicSysFlag`.
pub mod topic {
    /// The topic belongs to a unit.
    pub const UNIT: i32 = 0x1;
    /// A unit subscribes to the topic.
    pub const UNIT_SUB: i32 = 0x2;
}

/// Bits of a permission.
pub mod perm {
    /// New topics inherit from this one.
    pub const INHERIT: i32 = 0x1;
    /// May be written.
    pub const WRITE: i32 = 0x2;
    /// May be read.
    pub const READ: i32 = 0x4;
    /// Read first.
    pub const PRIORITY: i32 = 0x8;

    /// Whether a permission allows reading.
    pub fn is_readable(perm: i32) -> bool {
        perm & READ != 0
    }

    /// Whether a permission allows writing.
    pub fn is_writable(perm: i32) -> bool {
        perm & WRITE != 0
    }

    /// Whether new topics inherit.
    pub fn is_inherited(perm: i32) -> bool {
        perm & INHERIT != 0
    }

    /// As Apache prints it: `RWX`, with a dash for what is missing.
    pub fn to_text(perm: i32) -> String {
        let letter = |bit, letter| if perm & bit != 0 { letter } else { '-' };
        [letter(READ, 'R'), letter(WRITE, 'W'), letter(INHERIT, 'X')].iter().collect()
    }
}
