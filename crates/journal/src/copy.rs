//! A journal in pieces of bounded length, for a second machine that asks for them one by one.
//!
//! A piece has the entries of several bundles, or of a part of a snapshot. A bundle that is longer
//! than a piece comes in several: only behind the last of them is its position reached.

use crate::bundle;
use crate::change::TableId;
use crate::entries::write_change;
use crate::follow::{FollowError, Follower, PartOf};
use crate::{Change, Journal};

/// Bytes of entries that one piece looks at: those of tables that are left out take time, too.
const LOOKED_AT_BYTES_MAX: usize = 8 << 20;

/// What a piece is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// It is of a snapshot, which takes the place of all that came before its first piece.
    pub is_of_snapshot: bool,
    /// It is the first of the snapshot.
    pub begins_snapshot: bool,
    /// More pieces of the same bundle or snapshot follow.
    pub is_open: bool,
    /// Where the copy is behind this piece; with `is_open`, behind the last of its kind.
    pub position: u64,
}

/// Copies a journal in pieces.
pub struct JournalCopier {
    follower: Follower,
    keep: fn(TableId) -> bool,
    /// The part of which something is yet to be copied, and the byte at which that begins.
    part: Option<(PartOf, u64, usize)>,
}

impl Journal {
    /// Copies the changes behind position `from`, without those of tables that `keep` refuses. As
    /// [`Journal::follow`].
    pub fn copier(&self, from: u64, keep: fn(TableId) -> bool) -> Result<JournalCopier, FollowError> {
        Ok(JournalCopier { follower: self.follow(from)?, keep, part: None })
    }
}

impl JournalCopier {
    /// The end of what was copied, and of a bundle or snapshot of which only a part was.
    pub fn position(&self) -> u64 {
        self.follower.position()
    }

    /// See [`Follower::whole_from`].
    pub fn whole_from(&self) -> u64 {
        self.follower.whole_from()
    }

    /// Adds entries of up to `bytes_max` bytes to `out`, and one at least however long it is. None
    /// if all that is safe was copied. May wait for the device.
    ///
    /// # Errors
    /// As [`Follower::next_part`]. What `out` has then is no piece.
    pub fn next_piece(&mut self, bytes_max: usize, out: &mut Vec<u8>) -> Result<Option<Piece>, FollowError> {
        let mut piece: Option<Piece> = None;
        let mut looked_at = 0;
        // Ends with the first part that is not to be copied, or not to its end: each other turn
        // copies one.
        loop {
            let (of, position, at) = match self.part.take() {
                Some(part) => part,
                None => match self.follower.step()? {
                    Some((of, position)) => (of, position, 0),
                    None => return Ok(piece),
                },
            };
            let (is_of_snapshot, begins_snapshot, ends) = match of {
                PartOf::Bundle => (false, false, true),
                PartOf::Snapshot { is_first, is_last } => (true, is_first && at == 0, is_last),
            };
            // A piece is of bundles, or of one snapshot.
            if piece.is_some_and(|piece| piece.is_of_snapshot != is_of_snapshot || begins_snapshot) {
                self.part = Some((of, position, at));
                return Ok(piece);
            }
            let (copied_to, looked) = self.copy_from(at, bytes_max, LOOKED_AT_BYTES_MAX.saturating_sub(looked_at), out);
            looked_at += looked;
            let is_whole = copied_to == self.follower.entries.len();
            if !is_whole {
                self.part = Some((of, position, copied_to));
            }
            let begins_snapshot = begins_snapshot || piece.is_some_and(|piece| piece.begins_snapshot);
            let before = piece;
            piece = Some(Piece { is_of_snapshot, begins_snapshot, is_open: !(is_whole && ends), position });
            if !is_whole {
                // What was copied of this bundle leaves the one before it where it ended.
                let nothing = copied_to == at && before.is_some();
                return Ok(if nothing { before } else { piece });
            }
            if out.len() >= bytes_max || looked_at >= LOOKED_AT_BYTES_MAX {
                return Ok(piece);
            }
        }
    }

    /// Copies entries from a byte of the part on. Says where it has come to, and how many bytes it has looked at.
    fn copy_from(&self, from: usize, bytes_max: usize, looked_at_max: usize, out: &mut Vec<u8>) -> (usize, usize) {
        let entries = &self.follower.entries;
        let mut at = from;
        // All were looked at before.
        for entry in bundle::entries(&entries[from..]).flatten() {
            let bytes = bundle::ENTRY_HEADER_BYTES + entry.key.len() + entry.value.map_or(0, <[u8]>::len);
            let is_kept = (self.keep)(entry.table);
            let is_too_long = is_kept && !out.is_empty() && out.len() + bytes > bytes_max;
            if is_too_long || at - from >= looked_at_max.max(1) {
                break;
            }
            if is_kept {
                write_change(out, Change { table: entry.table, key: entry.key, value: entry.value });
            }
            at += bytes;
        }
        (at, at - from)
    }
}
