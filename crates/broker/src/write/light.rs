//! Light queues: queues beside its own that a message stands in, named in its property
//! `INNER_MULTI_DISPATCH` (`enableLmq`, `enableMultiDispatch`).
//!
//! Each looks to clients like a topic with one queue; `topics/light.rs` has the topics of those
//! that are in use.

use std::sync::Arc;

use protocol::batch::InnerMessage;
use protocol::light;
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use store::{ConsumeQueue, RecordBatch, Store, TagsCode};

use crate::refusal::Refusal;
use crate::waiting::hold::Lane;
use crate::write::append;
use crate::write::send_properties::{self, SendProperties};

/// The light queues that a message names, if there are such things and its topic takes any.
pub(crate) fn wanted<'a>(store: &Store, list: Option<&'a str>, topic: &str) -> Result<Option<&'a str>, Refusal> {
    let Some(list) = list.filter(|_| store.has_light_queues() && names::takes_light_queues(topic)) else {
        return Ok(None);
    };
    light::check(list, topic).map_err(|error| Refusal::illegal(error.to_string()))?;
    Ok(Some(list))
}

/// Opens the light queues of a list, refusing one too many, and adds room for the numbers there to the properties.
pub(crate) fn open(
    store: &Store,
    list: &str,
    properties: &mut Vec<u8>,
    into: &mut Vec<Arc<ConsumeQueue>>,
) -> Result<(), Refusal> {
    into.clear();
    for queue in light::queues(list) {
        into.push(store.queue(queue, light::QUEUE_ID).map_err(Refusal::failed)?);
    }
    light::put_room(properties, into.len());
    Ok(())
}

/// May a message of a batch stand in the light queues that it names, and has it room for its numbers there?
pub(crate) fn check_inner(
    store: &Store,
    inner: &InnerMessage<'_>,
    facts: &SendProperties<'_>,
    place: usize,
    topic: &str,
) -> Result<(), Refusal> {
    let of_batch =
        |refusal: Refusal| Refusal { remark: format!("message {place} of the batch: {}", refusal.remark), ..refusal };
    let list = wanted(store, facts.light, topic).map_err(of_batch)?;
    let Some(list) = list else { return Ok(()) };
    let mut properties = Vec::new();
    open(store, list, &mut properties, &mut Vec::new()).map_err(of_batch)?;
    let bytes = inner.properties.len() + 1 + properties.len();
    if bytes > PROPERTIES_MAX {
        return Err(Refusal::illegal(format!(
            "message {place} of the batch has properties of {bytes} bytes, with room for its numbers in light queues; the limit is \
             {PROPERTIES_MAX}"
        )));
    }
    Ok(())
}

/// Adds a message to a batch, in its queue and in the light queues that [`open`] opened.
pub(crate) fn push(
    batch: &mut RecordBatch,
    lane: &Lane,
    tags: TagsCode,
    queues: &mut Vec<Arc<ConsumeQueue>>,
    draft: &RecordDraft<'_>,
) {
    batch.push_light(&lane.queue, tags, queues, draft.properties.len(), |out| append::encode(draft, out));
}

/// Makes the queue of a message that was stored before, if that is a light queue: the message was taken, so there is room for it, whatever
/// came since. A name that no light queue has (another broker took it) is left to whoever opens the queue.
pub(crate) fn make_room(store: &Store, topic: &str) {
    if store.has_light_queues() && light::check_name(topic).is_ok() {
        store.light_queue(topic);
    }
}

/// Adds a message that was stored before to a batch, under its new topic: in the light queues that it names now that it is to be seen,
/// and without numbers that it had elsewhere. That they are not too many was found out when it was taken.
pub(crate) fn push_again(store: &Store, batch: &mut RecordBatch, lane: &Lane, tags: TagsCode, draft: &RecordDraft<'_>) {
    let text = std::str::from_utf8(draft.properties).unwrap_or_default();
    let list = properties::get(text, name::INNER_MULTI_DISPATCH);
    let takes_any = store.has_light_queues() && names::takes_light_queues(draft.topic);
    let list = list.filter(|list| takes_any && light::check(list, draft.topic).is_ok());
    let has_numbers = properties::get(text, name::INNER_MULTI_QUEUE_OFFSET).is_some();
    if list.is_none() && !has_numbers {
        return append::push(batch, lane, tags, draft);
    }
    let mut copy = Vec::with_capacity(draft.properties.len());
    send_properties::copy_except(&mut copy, text, |key| key == name::INNER_MULTI_QUEUE_OFFSET);
    let Some(list) = list else {
        return append::push(batch, lane, tags, &RecordDraft { properties: &copy, ..*draft });
    };
    let bytes = copy.len();
    let mut queues: Vec<_> = light::queues(list).map(|queue| store.light_queue(queue)).collect();
    light::put_room(&mut copy, queues.len());
    if copy.len() > PROPERTIES_MAX {
        // Another broker took it, without thinking of this.
        tracing::warn!(
            topic = draft.topic,
            queues = queues.len(),
            "a message has no room for its numbers in light queues"
        );
        copy.truncate(bytes);
        return append::push(batch, lane, tags, &RecordDraft { properties: &copy, ..*draft });
    }
    push(batch, lane, tags, &mut queues, &RecordDraft { properties: &copy, ..*draft });
}
