//! Rows of pops that come from the journal of a master: a slave keeps them as if they were its own, and pops nothing.

use journal::Change;

use super::ledger::{Lease, LeaseId, Ledger, PopQueue};
use super::{HANDED_OVER, Pops, REVIVING_FROM, parse_queue};
use crate::state::offsets::{Carrier, Offsets, rows};
use crate::tables;

/// Says of an offset (topic, group, queue, offset) whether it counts here.
type Counts<'a> = &'a dyn Fn(&str, &str, i32, i64) -> bool;

/// What became of a row.
enum Taken {
    Yes,
    /// It does not count here.
    LeftOut,
    /// It is not understood.
    Strange,
}

impl Taken {
    fn if_so(is_taken: bool) -> Taken {
        if is_taken { Taken::Yes } else { Taken::Strange }
    }
}

impl Pops {
    /// Takes over queues, leases and committed offsets, of which a crash must leave all or none: a message that is not done with is on one lease
    /// or ahead of its group. Says how many rows are not understood.
    pub(crate) fn take_rows(&self, offsets: &Offsets, counts: Counts<'_>, changes: &[Change<'_>]) -> usize {
        let carrier = offsets.carry();
        let mut ledger = self.ledger.lock();
        let (mut taken, mut strange) = (Vec::with_capacity(changes.len()), 0);
        for change in changes {
            let is_taken = match change.table {
                tables::POP_QUEUES => take_queue(&mut ledger, change.key, change.value),
                tables::POP_LEASES => take_lease(&mut ledger, change.key, change.value),
                tables::OFFSETS => take_offset(&carrier, counts, change.key, change.value),
                _ => Taken::Strange,
            };
            match is_taken {
                Taken::Yes => taken.push(*change),
                Taken::LeftOut => {}
                Taken::Strange => strange += 1,
            }
        }
        self.keeper.put_together(&taken);
        strange
    }

    /// Takes over what a start has to know. False if it is not understood.
    pub(crate) fn take_state(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        match key {
            REVIVING_FROM => {
                let Ok(from) = value.map(|value| value.try_into().map(u64::from_be_bytes)).transpose() else {
                    return false;
                };
                self.set_reviving_from(from);
            }
            HANDED_OVER => _ = self.set_handed_over(value.map(<[u8]>::to_vec)),
            _ => return false,
        }
        true
    }
}

fn take_queue(ledger: &mut Ledger, key: &[u8], value: Option<&[u8]>) -> Taken {
    let (queue, name) = match value {
        Some(value) => match parse_queue(key, value) {
            Some((queue, name)) => (queue, Some(name)),
            None => return Taken::Strange,
        },
        None => match key.try_into() {
            Ok(number) => (PopQueue(u32::from_be_bytes(number)), None),
            Err(_) => return Taken::Strange,
        },
    };
    ledger.take_name(queue, name);
    Taken::Yes
}

fn take_lease(ledger: &mut Ledger, key: &[u8], value: Option<&[u8]>) -> Taken {
    let Some(id) = LeaseId::of_bytes(key) else { return Taken::Strange };
    match value.map(Lease::read) {
        Some(Some(lease)) => Taken::if_so(ledger.take_lease(id, Some(lease))),
        Some(None) => Taken::Strange,
        None => Taken::if_so(ledger.take_lease(id, None)),
    }
}

fn take_offset(carrier: &Carrier<'_>, counts: Counts<'_>, key: &[u8], value: Option<&[u8]>) -> Taken {
    let Some((topic, group, queue_id)) = rows::parse_key(key) else { return Taken::Strange };
    let row = match value.map(rows::parse_value) {
        Some(Some((offset, at))) if offset >= 0 => Some((offset, at)),
        Some(_) => return Taken::Strange,
        None => None,
    };
    // What clients have committed here counts also where the master has nothing.
    let offset = row.map_or(-1, |(offset, _)| offset);
    if !counts(topic, group, queue_id, offset) {
        return Taken::LeftOut;
    }
    carrier.take(topic, group, queue_id, row);
    Taken::Yes
}
