//! The bytes of the journal's files: entries, and bundles of them.
//!
//! Each file is a row of bundles; a bundle is written by one call and valid as a whole or not at all:
//! ```text
//! magic u32 | crc u32 (of all that follows) | payload bytes u32 | kind u32 | previous u64 | last u64 | synced u64 | payload
//! ```
//! `previous` and `last` are the positions of the newest entry before and in the bundle, so that a missing bundle shows;
//! `synced` is the position that was on the device when the bundle was written, so that what a loss of power may take is told
//! from what only damage can take. Entries: `table u8 | has value u8 | key bytes u32 | value bytes u32 | key | value`. Little-endian.

use std::collections::BTreeMap;

use crate::change::TableId;

pub const HEADER_BYTES: usize = 40;
/// A bundle's payload at most; a length beyond it is damage, not a reason to allocate.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 30;
pub const ENTRY_HEADER_BYTES: usize = 10;
const MAGIC: u32 = u32::from_le_bytes(*b"GJB1");

/// What a bundle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleKind {
    /// Begins a file of changes; no entries.
    JournalHead,
    /// Begins a snapshot; no entries.
    SnapshotHead,
    /// Entries.
    Entries,
    /// Ends a snapshot, or a journal that was closed; no entries.
    End,
}

impl BundleKind {
    fn number(self) -> u32 {
        match self {
            BundleKind::JournalHead => 1,
            BundleKind::SnapshotHead => 2,
            BundleKind::Entries => 3,
            BundleKind::End => 4,
        }
    }

    fn from_number(number: u32) -> Option<BundleKind> {
        [BundleKind::JournalHead, BundleKind::SnapshotHead, BundleKind::Entries, BundleKind::End]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// A bundle's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: BundleKind,
    pub previous: u64,
    pub last: u64,
    pub synced: u64,
}

/// One change.
pub struct BundleEntry<'a> {
    pub table: TableId,
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

pub fn put_entry(out: &mut Vec<u8>, table: TableId, key: &[u8], value: Option<&[u8]>) {
    let bytes = value.unwrap_or_default();
    assert!(key.len() + bytes.len() < PAYLOAD_BYTES_MAX / 4, "an entry of {} bytes", key.len() + bytes.len());
    out.push(table.0);
    out.push(u8::from(value.is_some()));
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(bytes);
}

/// The entries of a payload; stops early, with `None`, at one that does not add up.
pub fn entries(mut payload: &[u8]) -> impl Iterator<Item = Option<BundleEntry<'_>>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let entry = take_entry(&mut payload);
        if entry.is_none() {
            payload = &[];
        }
        Some(entry)
    })
}

fn take_entry<'a>(payload: &mut &'a [u8]) -> Option<BundleEntry<'a>> {
    let (header, rest) = payload.split_at_checked(ENTRY_HEADER_BYTES)?;
    let key_bytes = u32_at(header, 2) as usize;
    let value_bytes = u32_at(header, 6) as usize;
    let (key, rest) = rest.split_at_checked(key_bytes)?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    *payload = rest;
    Some(BundleEntry { table: TableId(header[0]), key, value: (header[1] == 1).then_some(value) })
}

/// The entries of payloads that follow each other, without those that a later one of the same key makes void.
pub fn fold(payloads: &[&[u8]]) -> Vec<u8> {
    let mut newest = BTreeMap::new();
    for entry in payloads.iter().flat_map(|payload| entries(payload)).flatten() {
        newest.insert((entry.table, entry.key), entry.value);
    }
    let mut folded = Vec::new();
    for ((table, key), value) in newest {
        put_entry(&mut folded, table, key, value);
    }
    folded
}

/// A header for `payload`; the two are one bundle when written one behind the other.
pub fn seal(head: Head, payload: &[u8]) -> [u8; HEADER_BYTES] {
    // A start would cut it off as a torn end, with what was acknowledged.
    assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a bundle of {} bytes", payload.len());
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&head.kind.number().to_le_bytes());
    bytes[16..24].copy_from_slice(&head.previous.to_le_bytes());
    bytes[24..32].copy_from_slice(&head.last.to_le_bytes());
    bytes[32..40].copy_from_slice(&head.synced.to_le_bytes());
    let crc = crc_of(&bytes, payload);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// How long the bundle at the start of `bytes` is by its header, if there is one.
pub fn bytes(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_BYTES)?;
    let payload_bytes = u32_at(header, 8) as usize;
    (u32_at(header, 0) == MAGIC && payload_bytes <= PAYLOAD_BYTES_MAX).then_some(HEADER_BYTES + payload_bytes)
}

/// The bundle at the start of `bytes`, if there is a whole valid one.
pub fn open(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let (header, payload) = bytes.get(..self::bytes(bytes)?)?.split_at_checked(HEADER_BYTES)?;
    if u32_at(header, 4) != crc_of(header, payload) {
        return None;
    }
    let kind = BundleKind::from_number(u32_at(header, 12))?;
    Some((Head { kind, previous: u64_at(header, 16), last: u64_at(header, 24), synced: u64_at(header, 32) }, payload))
}

/// Looks for valid bundles behind the start of `bytes`, where there is none, and says up to which position the device had
/// everything by what they tell: how damage is told from a torn end. `None` if nothing valid follows.
pub fn synced_by_later(bytes: &[u8]) -> Option<u64> {
    let magic = MAGIC.to_le_bytes();
    let starts = bytes.windows(magic.len()).enumerate().skip(1).filter(|(_, window)| *window == magic);
    starts.filter_map(|(at, _)| open(&bytes[at..])).map(|(head, _)| head.synced).max()
}

fn crc_of(header: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[8..HEADER_BYTES]);
    crc.update(payload);
    crc.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
