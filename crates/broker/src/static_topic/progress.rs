//! Where a logical queue begins and ends, and where it was at a time: 29 to 32.
//!
//! What another broker holds is asked for; what is here may lie on the disk, so a cold-read thread looks.

use std::sync::Arc;

use protocol::body::LogicQueueMappingItem;
use protocol::code::request;
use protocol::header::EncodeFields;
use protocol::request::{
    EarliestStoreTimeReply, GetEarliestStoreTime, GetMaxOffset, GetMinOffset, OffsetReply, SearchOffset,
};
use store::{Boundary, Store};
use tokio::sync::oneshot;

use crate::refusal::{Refusal, SOON};
use crate::state::topics::mapping::{Mapping, PhysicalQueues, end, find, is_decided, logical, logical_or_unknown};
use crate::static_topic::forward::Forward;
use crate::static_topic::replies::Asking;

/// The physical queues of one logical queue, wherever they are.
pub(crate) struct Queues {
    store: Arc<Store>,
    forward: Arc<Forward>,
    places: PhysicalQueues,
}

impl Queues {
    pub(crate) fn of(
        store: &Arc<Store>,
        forward: &Arc<Forward>,
        mapping: &Mapping,
        queue_id: i32,
    ) -> Result<Queues, Refusal> {
        let places = mapping.places(queue_id)?;
        Ok(Queues { store: Arc::clone(store), forward: Arc::clone(forward), places })
    }

    fn is_here(&self, item: &LogicQueueMappingItem) -> bool {
        self.places.is_here(item)
    }

    fn topic(&self) -> &str {
        self.places.topic()
    }

    /// The place of a logical offset.
    fn place(&self, logical: i64) -> Result<usize, Refusal> {
        find(&self.places, logical).ok_or_else(|| self.places.not_led())
    }

    /// Runs a read on a cold-read thread.
    async fn read<T: Send + 'static>(
        &self,
        item: &LogicQueueMappingItem,
        read: impl FnOnce(&Store, &store::ConsumeQueue) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Option<T>, Refusal> {
        let queue = u32::try_from(item.queue_id).ok().and_then(|id| self.store.existing_queue(self.topic(), id));
        let Some(queue) = queue else { return Ok(None) };
        let (sender, receiver) = oneshot::channel();
        let store = Arc::clone(&self.store);
        // Whoever waits may have gone meanwhile; then nobody misses the result.
        let job = move || drop(sender.send(read(&store, &queue)));
        self.store.cold_read(Box::new(job)).map_err(|full| Refusal::busy(full, SOON))?;
        receiver
            .await
            .unwrap_or_else(|_| Err(Refusal::failed("the read failed by a bug, which is in the log")))
            .map(Some)
    }

    async fn ask_offset(
        &self,
        item: &LogicQueueMappingItem,
        code: i32,
        fields: &(impl EncodeFields + Sync),
    ) -> Result<i64, Refusal> {
        let read = |answer: &net::Response| {
            OffsetReply::decode(&answer.fields.as_fields()).map(|reply| reply.offset).map_err(|error| error.to_string())
        };
        self.forward.ask_for(&item.bname, code, fields, read).await
    }

    /// The physical offset behind the last message. `committed`: that consumers see.
    async fn max(&self, item: &LogicQueueMappingItem, committed: bool) -> Result<i64, Refusal> {
        if self.is_here(item) {
            let queue = u32::try_from(item.queue_id).ok().and_then(|id| self.store.existing_queue(self.topic(), id));
            let end =
                queue.map_or(0, |queue| if committed { self.store.visible_end(&queue) } else { queue.max_offset() });
            return Ok(end as i64);
        }
        let fields = GetMaxOffset { topic: self.topic(), queue_id: item.queue_id, committed };
        self.ask_offset(item, request::GET_MAX_OFFSET, &fields).await
    }

    async fn min(&self, item: &LogicQueueMappingItem) -> Result<i64, Refusal> {
        if self.is_here(item) {
            let queue = u32::try_from(item.queue_id).ok().and_then(|id| self.store.existing_queue(self.topic(), id));
            return Ok(queue.map_or(0, |queue| queue.min_offset()) as i64);
        }
        let fields = GetMinOffset { topic: self.topic(), queue_id: item.queue_id };
        self.ask_offset(item, request::GET_MIN_OFFSET, &fields).await
    }

    /// The physical offset of a time.
    async fn at(&self, item: &LogicQueueMappingItem, timestamp: i64, boundary: Boundary) -> Result<i64, Refusal> {
        if self.is_here(item) {
            let found = self.read(item, move |store, queue| {
                store.offset_by_time(queue, timestamp, boundary).map_err(Refusal::failed)
            });
            return Ok(found.await?.unwrap_or(0) as i64);
        }
        let fields = SearchOffset {
            topic: self.topic(),
            queue_id: item.queue_id,
            timestamp,
            boundary_type: matches!(boundary, Boundary::Upper).then_some("UPPER"),
            lite_topic: None,
        };
        self.ask_offset(item, request::SEARCH_OFFSET_BY_TIMESTAMP, &fields).await
    }

    /// The logical offset of the first message stored at a time or later; the end where there is none.
    async fn first_since(&self, timestamp: i64) -> Result<i64, Refusal> {
        let mut offset = 0;
        for (place, item) in self.places.iter().enumerate().take_while(|(_, item)| is_decided(item)) {
            let end = end(&self.places, place);
            let found = self.at(item, timestamp, Boundary::Lower).await?;
            offset = logical(item, found.min(end));
            if place + 1 == self.places.len() || found < self.max(item, false).await?.min(end) {
                break;
            }
        }
        Ok(offset)
    }

    /// The logical offset of the last message stored at a time or earlier; the beginning where there is none.
    async fn last_until(&self, timestamp: i64) -> Result<i64, Refusal> {
        let mut offset = 0;
        let decided = self.places.iter().enumerate().filter(|(_, item)| is_decided(item));
        for (place, item) in decided.rev() {
            let first = self.min(item).await?.max(item.start_offset);
            let has_earlier = place == 0 || self.at(item, timestamp.saturating_add(1), Boundary::Lower).await? > first;
            if has_earlier {
                let last = end(&self.places, place).saturating_sub(1);
                offset = logical(item, self.at(item, timestamp, Boundary::Upper).await?.min(last));
                break;
            }
        }
        Ok(offset)
    }

    async fn earliest(&self, item: &LogicQueueMappingItem) -> Result<i64, Refusal> {
        if self.is_here(item) {
            let found =
                self.read(item, |store, queue| match queue.unit_at(queue.min_offset()).map_err(Refusal::failed)? {
                    Some(unit) => store.store_time_of(&unit).map_err(Refusal::failed),
                    None => Ok(None),
                });
            return Ok(found.await?.flatten().unwrap_or(-1));
        }
        let fields = GetEarliestStoreTime { topic: self.topic(), queue_id: item.queue_id };
        let read = |answer: &net::Response| {
            let reply = EarliestStoreTimeReply::decode(&answer.fields.as_fields());
            reply.map(|reply| reply.timestamp).map_err(|error| error.to_string())
        };
        self.forward.ask_for(&item.bname, request::GET_EARLIEST_MSG_STORETIME, &fields, read).await
    }
}

/// 29: the logical offset of a time.
pub(crate) fn offset_by_time(queues: Queues, timestamp: i64, boundary: Boundary) -> Asking<i64> {
    Box::pin(async move {
        match boundary {
            Boundary::Lower => queues.first_since(timestamp).await,
            Boundary::Upper => queues.last_until(timestamp).await,
        }
    })
}

/// 30: the logical offset behind the last message.
pub(crate) fn max_offset(queues: Queues, committed: bool) -> Result<Asking<i64>, Refusal> {
    let place = queues.place(i64::MAX)?;
    Ok(Box::pin(async move {
        let item = &queues.places[place];
        Ok(logical(item, queues.max(item, committed).await?.min(end(&queues.places, place))))
    }))
}

/// 31: the logical offset of the first message.
pub(crate) fn min_offset(queues: Queues) -> Result<Asking<i64>, Refusal> {
    let place = queues.place(0)?;
    Ok(Box::pin(async move {
        let item = &queues.places[place];
        Ok(logical_or_unknown(item, queues.min(item).await?.min(end(&queues.places, place))))
    }))
}

/// 32: when the first message was stored; -1 when there is none in the oldest physical queue.
pub(crate) fn earliest_store_time(queues: Queues) -> Result<Asking<i64>, Refusal> {
    let place = queues.place(0)?;
    Ok(Box::pin(async move { queues.earliest(&queues.places[place]).await }))
}
