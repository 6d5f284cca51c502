//! From what was read of a queue to the basket: who has it now, and the bytes of the answer.

use std::sync::Arc;

use net::SharedSlice;
use protocol::light;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, PROPERTIES_MAX, RecordView, Scanned};
use store::{LogSlice, Read};

use super::Claim;
use super::collect::{Basket, Shelf};
use super::handle::{self, Handle, Origin};
use super::ledger::{Lease, LeaseId, NoLease, QueueRef};
use super::order::OrderPop;
use super::take::PopOrder;
use crate::facts;
use crate::topics::Topic;

impl Shelf {
    /// Makes what was read the open batch of a queue that is popped in order: the offsets that are not acknowledged.
    pub(super) fn hand_out(
        &self,
        order: &PopOrder,
        name: QueueRef<'_>,
        from: i64,
        read: &Read,
        slices: &mut Vec<LogSlice>,
        basket: &mut Basket,
    ) -> Option<Vec<u64>> {
        let QueueRef { group, topic, queue_id } = name;
        let read_offsets: Vec<u64> = slices.iter().filter_map(|slice| queue_offset(slice, topic)).collect();
        let acked = self.pops.orders.acked(name);
        slices.retain(|slice| queue_offset(slice, topic).is_some_and(|offset| !acked.contains(&offset)));
        let offsets: Vec<u64> = slices.iter().filter_map(|slice| queue_offset(slice, topic)).collect();
        if offsets.is_empty() {
            self.offsets.commit(group, topic, queue_id, read.next);
            return None;
        }
        let pop = OrderPop {
            attempt_id: order.attempt_id.as_deref(),
            pop_time: basket.pop_time,
            invisible_ms: order.invisible_ms,
            offsets: &read_offsets,
        };
        basket.position = basket.position.max(self.pops.orders.take(name, &pop, &mut basket.count_info));
        self.offsets.commit(group, topic, queue_id, from);
        Some(offsets)
    }

    /// Leases what was read.
    #[allow(clippy::too_many_arguments, reason = "one step of `visit`, split off to be read at a sitting")]
    pub(super) fn lease(
        &self,
        order: &PopOrder,
        name: QueueRef<'_>,
        claim: &Claim,
        from: i64,
        read: &Read,
        slices: &[LogSlice],
        basket: &mut Basket,
    ) -> Option<Vec<u64>> {
        let start = from.max(0) as u64;
        let offsets: Vec<u64> = slices.iter().filter_map(|slice| queue_offset(slice, name.topic)).collect();
        let until = basket.pop_time.saturating_add(order.invisible_ms);
        let lease = Lease::new(start, &offsets, until, basket.revive_qid as u16)?;
        let id = LeaseId { queue: claim.queue, pop_time: basket.pop_time, start };
        match self.pops.lease((id, lease), self.settings.pop_leases_max, &self.offsets, name, read.next) {
            Ok(position) => basket.position = basket.position.max(position),
            Err(NoLease::Full) => {
                basket.is_ledger_full = true;
                return None;
            }
            // The queue was set back a moment ago; the next try has another time.
            Err(NoLease::Taken) => return None,
        }
        Some(offsets)
    }

    /// Puts what a group has now into the basket.
    #[allow(clippy::too_many_arguments, reason = "one step of `visit`, split off to be read at a sitting")]
    pub(super) fn lay(
        &self,
        order: &PopOrder,
        topic: &Arc<Topic>,
        name: QueueRef<'_>,
        from: i64,
        offsets: &[u64],
        slices: Vec<LogSlice>,
        basket: &mut Basket,
    ) {
        let start = from.max(0) as u64;
        let QueueRef { topic: topic_name, queue_id, .. } = name;
        let origin = Origin::of(topic_name);
        handle::add_start(&mut basket.start_info, origin, queue_id, start);
        handle::add_offsets(&mut basket.offset_info, origin, queue_id, offsets);
        let bytes_before = basket.bytes;
        let is_renamed = origin != Origin::Topic
            && !Arc::ptr_eq(topic, &order.topic)
            && !self.settings.pop_response_return_actual_retry_topic;
        for (slice, offset) in slices.into_iter().zip(offsets) {
            let part = if is_renamed {
                let handle = Handle {
                    start,
                    pop_time: basket.pop_time,
                    invisible_ms: order.invisible_ms,
                    revive_qid: basket.revive_qid,
                };
                let mut text = String::new();
                handle.write(&mut text, origin, &self.settings.broker_name, queue_id, *offset);
                renamed(slice, order.topic.name(), &text)
            } else {
                let (owner, range) = slice.into_parts();
                SharedSlice { owner, range }
            };
            basket.bytes += part.range.len();
            basket.parts.push(part);
        }
        basket.count += offsets.len();
        basket.got.push((Arc::clone(topic), queue_id, offsets.len(), basket.bytes - bytes_before));
    }
}

fn queue_offset(slice: &LogSlice, topic: &str) -> Option<u64> {
    if !names::is_lmq(topic) {
        // A scan would bring the whole head of each message into the processor's cache, and we send them without looking.
        return record::queue_offset(slice.as_ref());
    }
    view(slice).and_then(|view| light::offset_in(&view, topic))
}

fn view(slice: &LogSlice) -> Option<RecordView<'_>> {
    match record::scan(slice.as_ref(), false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(_) | Err(_) => None,
    }
}

/// A message of a retry topic as its consumers see it: under the topic that it came from, with its handle.
fn renamed(slice: LogSlice, topic: &str, handle: &str) -> SharedSlice {
    let mut bytes = Vec::with_capacity(slice.as_ref().len() + handle.len() + 16);
    let is_written = view(&slice).is_some_and(|view| {
        let mut properties = Vec::with_capacity(view.properties_bytes().len() + handle.len() + 16);
        facts::put(&mut properties, name::POP_CK, handle);
        let ours = properties.len();
        facts::copy_except(&mut properties, &view.properties(), |key| key == name::POP_CK);
        // Behind the handle: what does not fit is cut off there, for a message without a handle cannot be acknowledged.
        if properties.len() > PROPERTIES_MAX {
            let end = properties[..PROPERTIES_MAX].iter().rposition(|byte| *byte == protocol::properties::PROPERTY_END);
            properties.truncate(end.map_or(ours, |end| end + 1));
        }
        let mut draft = view.to_draft();
        draft.topic = topic;
        draft.properties = &properties;
        let is_encoded = draft.encode(&mut bytes).is_ok();
        if is_encoded {
            record::stamp(&mut bytes, view.queue_offset(), view.log_offset(), view.store_timestamp());
        }
        is_encoded
    });
    if !is_written {
        let (owner, range) = slice.into_parts();
        return SharedSlice { owner, range };
    }
    let range = 0..bytes.len();
    SharedSlice { owner: Arc::new(bytes), range }
}
