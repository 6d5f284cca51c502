//! From what was read of a queue to the basket: who has it now, and the bytes of the answer.

use std::ops::Range;
use std::sync::Arc;

use net::{COPIED_BELOW_BYTES, SharedSlice};
use protocol::light;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, PROPERTIES_MAX, RecordView, Scanned};
use store::{LogSlice, Read};

use super::claim::Claim;
use super::collect::{PopFound, PopSources, Visit};
use super::state::handle::{self, Handle, Origin};
use super::state::ledger::{Lease, LeaseId, NoLease, QueueRef};
use super::state::order::OrderPop;
use super::take::CheckedPop;
use crate::write::send_properties;

impl PopSources {
    /// Makes what was read the open batch of a queue that is popped in order, from the first message on that is not acknowledged: as in Apache, those
    /// behind it come again though they were acknowledged, so that each consumer sees them in order.
    pub(super) fn hand_out(
        &self,
        order: &CheckedPop,
        visit: &Visit<'_>,
        from: i64,
        read: &Read,
        slices: &mut Vec<LogSlice>,
        basket: &mut PopFound,
    ) -> Option<Vec<u64>> {
        let QueueRef { topic, queue_id, .. } = visit.name;
        slices.retain(|slice| queue_offset(slice, topic).is_some());
        let mut offsets: Vec<u64> = slices.iter().filter_map(|slice| queue_offset(slice, topic)).collect();
        if offsets.is_empty() {
            self.offsets.commit_in(&visit.progress, queue_id, read.next);
            return None;
        }
        let pop = OrderPop {
            attempt_id: order.attempt_id.as_deref(),
            pop_time: basket.pop_time,
            invisible_ms: order.invisible_ms,
            offsets: &offsets,
        };
        let taken = self.pops.orders.take(visit.name, &pop, &mut basket.count_info, || visit.is_gone(&self.pops))?;
        basket.position = basket.position.max(taken.position);
        slices.drain(..taken.done);
        offsets.drain(..taken.done);
        let from = if taken.done > 0 { offsets.first().map_or(from, |first| *first as i64) } else { from };
        self.offsets.commit_in(&visit.progress, queue_id, from);
        Some(offsets)
    }

    /// Leases what was read.
    #[allow(clippy::too_many_arguments, reason = "one step of `visit`, split off to be read at a sitting")]
    pub(super) fn lease(
        &self,
        order: &CheckedPop,
        visit: &Visit<'_>,
        claim: &Claim,
        from: i64,
        read: &Read,
        slices: &[LogSlice],
        basket: &mut PopFound,
    ) -> Option<Vec<u64>> {
        let start = from.max(0) as u64;
        let offsets: Vec<u64> = slices.iter().filter_map(|slice| queue_offset(slice, visit.name.topic)).collect();
        let until = basket.pop_time.saturating_add(order.invisible_ms);
        let lease = Lease::new(start, &offsets, until, basket.revive_qid as u16)?;
        let id = LeaseId { queue: claim.queue, pop_time: basket.pop_time, start };
        let place = (&visit.progress, visit.name.queue_id);
        match self.pops.lease((id, lease), self.settings.pop_leases_max, &self.offsets, place, read.next) {
            Ok(position) => basket.position = basket.position.max(position),
            Err(NoLease::Full) => {
                basket.is_ledger_full = true;
                return None;
            }
            // The queue was set back a moment ago; the next try has another time. Or it is gone.
            Err(NoLease::Taken | NoLease::Gone) => return None,
        }
        Some(offsets)
    }

    /// Puts what a group has now into the basket.
    pub(super) fn lay(
        &self,
        order: &CheckedPop,
        visit: &Visit<'_>,
        from: i64,
        offsets: &[u64],
        slices: Vec<LogSlice>,
        basket: &mut PopFound,
    ) {
        let start = from.max(0) as u64;
        let Visit { name: QueueRef { topic: topic_name, queue_id, .. }, topic, .. } = *visit;
        let origin = Origin::of(topic_name);
        handle::add_start(&mut basket.start_info, origin, queue_id, start);
        handle::add_offsets(&mut basket.offset_info, origin, queue_id, offsets);
        let (bytes_before, parts_before) = (basket.bytes, basket.parts.len());
        let is_renamed = origin != Origin::Topic
            && !Arc::ptr_eq(topic, &order.topic)
            && !self.settings.pop_response_return_actual_retry_topic;
        for (slice, offset) in slices.into_iter().zip(offsets) {
            let (owner, range) = slice.into_parts();
            let message = SharedSlice { owner, range };
            if is_renamed {
                let handle = Handle {
                    start,
                    pop_time: basket.pop_time,
                    invisible_ms: order.invisible_ms,
                    revive_qid: basket.revive_qid,
                };
                let mut text = String::new();
                handle.write(&mut text, origin, &self.settings.broker_name, queue_id, *offset);
                put_renamed(message, order.topic.name(), &text, &mut basket.parts);
            } else {
                basket.parts.push(message);
            }
        }
        basket.bytes += basket.parts[parts_before..].iter().map(|part| part.range.len()).sum::<usize>();
        basket.count += offsets.len();
        basket.got.push((Arc::clone(topic), queue_id, offsets.len(), basket.bytes - bytes_before));
    }
}

fn queue_offset(slice: &LogSlice, topic: &str) -> Option<u64> {
    if !names::is_lmq(topic) {
        // A scan would bring the whole head of each message into the processor's cache, and we send them without looking.
        return record::queue_offset(slice.as_ref());
    }
    view(slice.as_ref()).and_then(|view| light::offset_in(&view, topic))
}

fn view(record: &[u8]) -> Option<RecordView<'_>> {
    match record::scan(record, false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(_) | Err(_) => None,
    }
}

/// Adds a message of a retry topic as its consumers see it: under the topic that it came from, with its handle.
///
/// Its body is written from where it lies. What is new around it goes in pieces that are copied into the answer, where they count: lent, they would
/// be memory of which nobody knows.
fn put_renamed(message: SharedSlice, topic: &str, handle: &str, parts: &mut Vec<SharedSlice>) {
    let Some(Renamed { bytes, body, from }) = renamed(message.bytes(), topic, handle) else {
        parts.push(message);
        return;
    };
    put_copied(&bytes[..body.start], parts);
    let start = message.range.start;
    parts.push(SharedSlice { owner: message.owner, range: start + from.start..start + from.end });
    put_copied(&bytes[body.end..], parts);
}

/// Each piece has an owner of its own, so that they do not become one.
fn put_copied(bytes: &[u8], parts: &mut Vec<SharedSlice>) {
    for piece in bytes.chunks(COPIED_BELOW_BYTES - 1) {
        parts.push(SharedSlice { owner: Arc::new(piece.to_vec()), range: 0..piece.len() });
    }
}

/// A record under another topic.
struct Renamed {
    bytes: Vec<u8>,
    /// Where the body lies in it.
    body: Range<usize>,
    /// And where in the record that it was.
    from: Range<usize>,
}

fn renamed(record: &[u8], topic: &str, handle: &str) -> Option<Renamed> {
    let old = view(record)?;
    let mut properties = Vec::with_capacity(old.properties_bytes().len() + handle.len() + 16);
    send_properties::put(&mut properties, name::POP_CK, handle);
    let ours = properties.len();
    send_properties::copy_except(&mut properties, &old.properties(), |key| key == name::POP_CK);
    // Behind the handle: what does not fit is cut off there, for a message without a handle cannot be acknowledged.
    if properties.len() > PROPERTIES_MAX {
        let end = properties[..PROPERTIES_MAX].iter().rposition(|byte| *byte == protocol::properties::PROPERTY_END);
        properties.truncate(end.map_or(ours, |end| end + 1));
    }
    let mut draft = old.to_draft();
    draft.topic = topic;
    draft.properties = &properties;
    let mut bytes = Vec::new();
    draft.encode(&mut bytes).ok()?;
    record::stamp(&mut bytes, old.queue_offset(), old.log_offset(), old.store_timestamp());
    let body = place_of_body(&view(&bytes)?);
    Some(Renamed { bytes, body, from: place_of_body(&old) })
}

fn place_of_body(record: &RecordView<'_>) -> Range<usize> {
    let start = record.body().as_ptr().addr() - record.bytes().as_ptr().addr();
    start..start + record.body().len()
}

#[cfg(test)]
mod tests {
    use protocol::record::RecordDraft;

    use super::*;

    #[test]
    fn of_a_renamed_message_the_body_is_lent_and_the_rest_is_copied_into_the_answer() {
        let (body, note) = ("b".repeat(9_000), "n".repeat(5_000));
        let properties = format!("note\u{1}{note}\u{2}POP_CK\u{1}old\u{2}");
        let plain = RecordDraft::plain("%RETRY%CG_orders", ([127, 0, 0, 1], 10911).into());
        let draft = RecordDraft { body: body.as_bytes(), properties: properties.as_bytes(), ..plain };
        let mut log = b"what stands before it".to_vec();
        let start = log.len();
        draft.encode(&mut log).unwrap();
        record::stamp(&mut log[start..], 7, 8, 9);
        let log: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(log);
        let range = start..(*log).as_ref().len();

        let mut parts = Vec::new();
        put_renamed(SharedSlice { owner: Arc::clone(&log), range }, "orders", "the handle", &mut parts);
        let (lent, copied): (Vec<_>, Vec<_>) =
            parts.iter().partition(|part| std::ptr::addr_eq(Arc::as_ptr(&part.owner), Arc::as_ptr(&log)));
        assert_eq!(lent.len(), 1);
        assert_eq!(lent[0].bytes(), body.as_bytes());
        assert!(copied.iter().all(|part| part.range.len() < COPIED_BELOW_BYTES));

        let whole: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        let Ok(Scanned::Record(found)) = record::scan(&whole, true) else { panic!("no record") };
        assert_eq!((found.total_size(), found.topic(), found.body()), (whole.len(), "orders", body.as_bytes()));
        assert_eq!((found.queue_offset(), found.log_offset(), found.store_timestamp()), (7, 8, 9));
        assert_eq!(found.property(name::POP_CK), Some("the handle"));
        assert_eq!(found.property("note"), Some(note.as_str()));
    }

    #[test]
    fn what_is_no_record_stays_as_it_is() {
        let message = SharedSlice { owner: Arc::new(vec![7u8; 100]), range: 10..60 };
        let mut parts = Vec::new();
        put_renamed(message, "orders", "the handle", &mut parts);
        assert_eq!((parts.len(), parts[0].range.clone()), (1, 10..60));
    }
}
