//! What a call in this process adds to the log: one batch, whose stages the call waits for itself.

use protocol::LogOffset;
use protocol::code::ResponseCode;
use store::{Stage, Stages};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::sends::{Receipt, SendOutcome, Sends};
use crate::write::acknowledgements::{Limits, Missed, late, reached};
use crate::write::append::{self, Who};

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

    /// Appends it, wakes who waits for it, and waits until it has come to `stages`. It succeeds also
    /// if slaves are late or missing, as over a connection (`ReceiptKind::Plain`).
    pub(crate) async fn append(mut self, stages: Stages) -> Result<(), Refusal> {
        let Some(end) = self.store().await? else { return Ok(()) };
        let (broker, device) = (self.broker, stages.without_copies());
        let own = async {
            let late = late_for(broker, device, end, 0).await;
            late.map_or(Ok(()), |late| Err(Refusal::new(late.code, late.remark)))
        };
        let copied = async {
            let copied = stages.beyond(device);
            let _ = reached(&broker.store, &broker.copies, copied, end, 0, Limits::of(broker)).await;
            Ok(())
        };
        tokio::try_join!(own, copied).map(|_| ())
    }

    /// The same of one send, to the stages that its receipt asks for, with the journal up to
    /// `durable_after`. It is stored also if it is late for that.
    pub(crate) async fn outcome(mut self, durable_after: u64) -> Result<SendOutcome, Refusal> {
        let (broker, began) = (self.broker, self.broker.clock.elapsed());
        let end = self.store().await?;
        let late = match end {
            Some(end) => late_for(broker, self.sends.receipts.stages, end, durable_after).await,
            None => None,
        };
        let landed = self.sends.batch.landed();
        broker.stats.put_times.stored(landed.len(), broker.clock.elapsed().saturating_sub(began));
        // Others are told of what is late only if it is not stored.
        let tells = self.sends.receipts.list.first().is_none_or(Receipt::tells_what_is_late);
        let late = late.filter(|late| tells || !late.missed.is_stored());
        let (code, remark) = late.map_or((ResponseCode::Success, None), |late| (late.code, Some(late.remark)));
        broker.copies.note_unacknowledged(code, 1);
        let outcome = self.sends.receipts.first_outcome(landed, code, remark.as_deref());
        outcome.ok_or_else(|| Refusal::failed("the message is not stored: nothing was gathered"))
    }

    /// Says where the last record ends.
    async fn store(&mut self) -> Result<Option<LogOffset>, Refusal> {
        let (broker, sends) = (self.broker, &mut self.sends);
        let appended = broker.append_from(Who::Producers, &mut sends.batch).await;
        append::settle(broker, sends);
        append::count(broker, sends);
        let landed = sends.batch.landed();
        let end = landed.last().map(|record| record.end);
        if appended.is_err() {
            broker.stats.put_times.failed(sends.batch.len() - landed.len());
        }
        if let Some(end) = end {
            broker.wake(std::mem::take(&mut sends.lanes), sends.batch.light_queues(), end);
        }
        appended.map(|()| end)
    }
}

/// What is late, and what a client is told of it.
struct Late {
    missed: Missed,
    code: ResponseCode,
    remark: String,
}

/// Waits for stages, and says what is late.
async fn late_for(broker: &Broker, stages: Stages, end: LogOffset, durable_after: u64) -> Option<Late> {
    if stages.has(Stage::Flushed) {
        broker.store.want_flush();
    }
    let (store, copies, limits) = (&broker.store, &broker.copies, Limits::of(broker));
    let missed = reached(store, copies, stages, end, durable_after, limits).await.err()?;
    let (code, remark) = late(store, copies, stages, end, missed, limits);
    Some(Late { missed, code, remark })
}

impl Drop for LocalSends<'_> {
    fn drop(&mut self) {
        append::give_up(self.broker, &mut self.sends);
    }
}
