//! Rows of pops that come from the journal of a master: a slave keeps them as if they were its own, and pops nothing.

use journal::Change;

use super::ledger::{Lease, LeaseId};
use super::{HANDED_OVER, Pops, REVIVING_FROM, parse_queue};
use crate::state::offsets::{Offsets, rows};
use crate::tables;

impl Pops {
    /// Takes over queues, leases and committed offsets, of which a crash must leave all or none: a message that is not done with is on one lease
    /// or ahead of its group. `counts` says of an offset (topic, group, queue, offset) whether it counts here. Says how many rows are not understood.
    pub(crate) fn take_rows(
        &self,
        offsets: &Offsets,
        counts: &dyn Fn(&str, &str, i32, i64) -> bool,
        changes: &[Change<'_>],
    ) -> usize {
        let carrier = offsets.carry();
        let mut ledger = self.ledger.lock();
        let (mut taken, mut strange) = (Vec::with_capacity(changes.len()), 0);
        for change in changes {
            let is_taken = match change.table {
                tables::POP_QUEUES => {
                    let row = change.value.map(|value| parse_queue(change.key, value));
                    let number = change.key.try_into().ok().map(u32::from_be_bytes).map(super::PopQueue);
                    match (number, row) {
                        (_, Some(Some((queue, name)))) => Some(ledger.take_name(queue, Some(name))),
                        (Some(queue), None) => Some(ledger.take_name(queue, None)),
                        _ => None,
                    }
                }
                tables::POP_LEASES => {
                    let lease = change.value.map(Lease::read);
                    match (LeaseId::of_bytes(change.key), lease) {
                        (Some(id), Some(Some(lease))) => ledger.take_lease(id, Some(lease)).then_some(()),
                        (Some(id), None) => Some(_ = ledger.take_lease(id, None)),
                        _ => None,
                    }
                }
                tables::OFFSETS => match rows::parse(change.key, change.value) {
                    Some((topic, group, queue_id, row)) => {
                        if row.is_some_and(|(offset, _)| !counts(topic, group, queue_id, offset)) {
                            continue;
                        }
                        Some(carrier.take(topic, group, queue_id, row))
                    }
                    None => None,
                },
                _ => None,
            };
            match is_taken {
                Some(()) => taken.push(*change),
                None => strange += 1,
            }
        }
        self.keeper.put_together(&taken);
        strange
    }

    /// Takes over what a start has to know. False if it is not understood.
    pub(crate) fn take_state(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        match (key, value) {
            (REVIVING_FROM, value) => {
                let from = value.map(|value| value.try_into().map(u64::from_be_bytes));
                match from.transpose() {
                    Ok(from) => _ = self.set_reviving_from(from),
                    Err(_) => return false,
                }
            }
            (HANDED_OVER, value) => _ = self.set_handed_over(value.map(<[u8]>::to_vec)),
            (_, _) => return false,
        }
        true
    }
}
