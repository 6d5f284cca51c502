//! What a call in this process adds to the log: one batch, whose stage the call waits for itself.

use std::time::Duration;

use store::Stage;
use tokio::time::timeout;

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::sends::Sends;
use crate::write::acknowledgements::late;
use crate::write::append;

/// Records that are gathered and not appended yet. Dropped, they are given up.
pub(crate) struct LocalSends<'b> {
    broker: &'b Broker,
    sends: Sends,
}

impl LocalSends<'_> {
    pub(crate) fn new(broker: &Broker) -> LocalSends<'_> {
        LocalSends { broker, sends: Sends::new(0) }
    }

    /// For gathering.
    pub(crate) fn sends(&mut self) -> &mut Sends {
        &mut self.sends
    }

    /// Appends it, wakes who waits for it, and waits until it has come to `stage`.
    pub(crate) async fn append(mut self, stage: Stage) -> Result<(), Refusal> {
        let broker = self.broker;
        let appended = broker.append(&mut self.sends.batch).await;
        let sends = &mut self.sends;
        let landed = sends.batch.landed();
        broker.transactions.settle(&broker.store, &mut sends.endings, landed);
        for (_, counted) in sends.counts.drain(..).filter(|(records, _)| *records <= landed.len()) {
            counted.note(&broker.stats, &broker.clock);
        }
        let Some(end) = landed.last().map(|record| record.end) else { return appended };
        broker.wake(std::mem::take(&mut sends.lanes), sends.batch.light_queues(), end);
        appended?;
        if stage == Stage::Flushed {
            broker.store.want_flush();
        }
        let limit = Duration::from_millis(broker.store_settings.load().sync_flush_timeout);
        timeout(limit, broker.store.mark(stage).reached(end.0)).await.map_err(|_| {
            let (code, remark) = late(&broker.store, stage, end, limit);
            Refusal::new(code, remark)
        })
    }
}

impl Drop for LocalSends<'_> {
    fn drop(&mut self) {
        append::give_up(self.broker, &mut self.sends);
    }
}
