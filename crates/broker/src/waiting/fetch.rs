//! Reading for the broker's own tasks: what is in memory at once, the rest by way of the cold-read threads.

use std::sync::Arc;
use std::time::Duration;

use protocol::LogOffset;
use store::queue_log::UnitsRead;
use store::{ColdReadRefused, ConsumeQueue, NotWritable, RecordAt, Store, StoreError, Unit};
use tokio::sync::oneshot;

/// Fills `units` with up to `max` units of a queue from `from` on. Those that are damaged are mended; see [`Store::units`].
pub(crate) async fn units(
    store: &Arc<Store>,
    queue: &Arc<ConsumeQueue>,
    from: u64,
    max: usize,
    units: &mut Vec<Unit>,
) -> Result<(), StoreError> {
    units.clear();
    if let UnitsRead::Units(_) = store.units(queue, from, max, false, units)? {
        return Ok(());
    }
    if !units.is_empty() {
        return Ok(());
    }
    let queue = Arc::clone(queue);
    let read = in_the_cold(store, move |store| {
        let mut units = Vec::new();
        store.units(&queue, from, max, true, &mut units).map(|_| units)
    });
    if let Some(read) = read.await {
        *units = read?;
    }
    Ok(())
}

/// A record that a queue, or a file of ours, says lies at this place: from memory, or by way of the cold-read threads.
///
/// One that is damaged stays so: whoever tries again waits for ever, and all that is behind it too. It has been named with its topic and place;
/// what becomes of it is for the caller to say.
pub(crate) async fn record(store: &Arc<Store>, at: LogOffset) -> Result<RecordAt, StoreError> {
    match store.record_at(at) {
        Ok(found) => Ok(found.map_or(RecordAt::Gone, RecordAt::Record)),
        Err(_) => {
            let read = in_the_cold(store, move |store| store.stored_record_cold(at)).await;
            // A store that closes says nothing about the record, least of all that it is gone.
            read.unwrap_or(Err(NotWritable::Closed.into()))
        }
    }
}

/// Runs `read` on a cold-read thread. `None` when the store is closing.
async fn in_the_cold<T: Send + 'static>(
    store: &Arc<Store>,
    read: impl FnOnce(&Store) -> T + Clone + Send + 'static,
) -> Option<T> {
    loop {
        let (give, take) = oneshot::channel();
        let (reader, read) = (Arc::clone(store), read.clone());
        let job = Box::new(move || {
            // Nobody waits any more only when the broker stops.
            let _ = give.send(read(&reader));
        });
        match store.cold_read(job) {
            Ok(()) => return take.await.ok(),
            Err(ColdReadRefused::Closed) => return None,
            Err(ColdReadRefused::Full { .. }) => {}
        }
        // Many consumers read cold data; a delayed message can wait for its turn.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
