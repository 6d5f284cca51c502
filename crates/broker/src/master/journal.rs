//! 30002, our own: a slave copies the journal, piece by piece.
//!
//! The journal's files are read on a thread that may wait for the device, and while there is nothing new the request waits as a task, not
//! on the network worker. Where a slave has come to is kept between its requests (`state/journal_copies.rs`); where it is not, the files are
//! looked through from the position on that the slave names.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use disk::Watermark;
use env::Clock;
use journal::{FollowError, JournalCopier, Piece};
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use protocol::request::{CopyJournal, CopyJournalReply};
use store::Store;
use tokio::time::{Instant, sleep, timeout_at};

use super::members;
use crate::broker::Broker;
use crate::inbox::{Errand, Inbox};
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::journal_copies::{Asked, Given, JournalCopies};
use crate::state::switch::Switch;
use crate::{blocking, tables};

/// How long a request may wait for a change.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a piece may be, and how short at least.
const BYTES_MAX: usize = 1 << 20;
const BYTES_MIN: usize = 1 << 10;
/// A waiting request checks its connection this often.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Changes gather for so long before they are read: more of them share an answer.
const GATHER: Duration = Duration::from_millis(2);

/// What a request asks for.
struct Order {
    slave: i64,
    asked: Asked,
    /// Up to where the slave has all changes.
    written: Option<u64>,
    bytes_max: usize,
    wait: Duration,
}

/// 30002: a piece of the journal.
pub(crate) fn copy(broker: &Broker, session: &Session, request: &Request<'_>) -> Result<(), Refusal> {
    check_address(broker, session.connection.peer().ip().to_canonical())?;
    let order = Order::read(broker, &CopyJournal::decode(&request.header.fields)?)?;
    let copies = Arc::clone(&broker.journal_copies);
    copies.told(order.slave, order.written);
    let Some(permit) = copies.begin() else {
        return Err(Refusal::busy("[GANTRY]too many slaves ask for the journal at the same time", SOON));
    };
    let source = Source {
        store: Arc::downgrade(&broker.store),
        written: Arc::clone(broker.store.journal().written()),
        copies,
        switch: Arc::clone(&broker.switch),
        clock: broker.clock.clone(),
    };
    let (inbox, reply_to) = (Arc::clone(&session.inbox), request.reply_to());
    tokio::spawn(async move {
        let mut out = Outgoing::new();
        match source.answer(&order, &inbox).await {
            Ok(Some(given)) => {
                let life = source.copies.life().to_string();
                let fields = CopyJournalReply { life: &life, ..given.reply };
                out.reply(reply_to, ResponseCode::Success, None, &fields, &given.entries);
            }
            // Nobody waits for it any more.
            Ok(None) => return,
            Err(refusal) => out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
        }
        inbox.push(Errand::Frames(out.take()));
        drop(permit);
    });
    Ok(())
}

/// Refuses those that may not have the log either.
fn check_address(broker: &Broker, address: IpAddr) -> Result<(), Refusal> {
    if members::is_member(broker, address) {
        return Ok(());
    }
    let remark = format!(
        "{address} gets nothing of the journal: it is no broker of this set by what name servers say; add it to replicaAllow if it is one"
    );
    Err(Refusal::new(ResponseCode::NoPermission, remark))
}

impl Order {
    fn read(broker: &Broker, fields: &CopyJournal<'_>) -> Result<Order, Refusal> {
        let illegal = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
        let identity = broker.identity();
        let set = (fields.broker_cluster_name, fields.broker_name);
        if set != (&identity.cluster_name, &identity.broker_name) {
            return Err(illegal(format!(
                "brokerClusterName={} brokerName={}: this master is of the set {} {}",
                set.0, set.1, identity.cluster_name, identity.broker_name
            )));
        }
        if fields.broker_id <= 0 {
            return Err(illegal(format!("brokerId={}: that of a slave is above 0", fields.broker_id)));
        }
        let life: u64 = fields.life.parse().map_err(|_| {
            let shown: String = fields.life.chars().take(64).collect();
            illegal(format!("life={shown}: not a number from 0 to {}", u64::MAX))
        })?;
        let from = u64::try_from(fields.from).map_err(|_| illegal(format!("from={}: it is below 0", fields.from)))?;
        let piece =
            u64::try_from(fields.piece).map_err(|_| illegal(format!("piece={}: it is below 0", fields.piece)))?;
        let wait = u64::try_from(fields.wait_millis).ok().map(Duration::from_millis).filter(|wait| *wait <= WAIT_MAX);
        let wait =
            wait.ok_or_else(|| illegal(format!("waitMillis={}: 0 to {}", fields.wait_millis, WAIT_MAX.as_millis())))?;
        let bytes_max = usize::try_from(fields.max_bytes).ok().filter(|bytes| (BYTES_MIN..=BYTES_MAX).contains(bytes));
        let bytes_max =
            bytes_max.ok_or_else(|| illegal(format!("maxBytes={}: {BYTES_MIN} to {BYTES_MAX}", fields.max_bytes)))?;
        // Positions of another run say nothing here.
        let is_of_this_run = life == broker.journal_copies.life();
        let asked = if is_of_this_run { Asked { from, piece } } else { Asked { from: 0, piece: 0 } };
        let end = broker.store.journal().position();
        let written = fields.written.and_then(|written| u64::try_from(written).ok());
        let written = written.filter(|written| is_of_this_run && *written <= end);
        Ok(Order { slave: fields.broker_id, asked, written, bytes_max, wait })
    }
}

/// What a request reads from. It does not keep the store.
struct Source {
    store: Weak<Store>,
    written: Arc<Watermark>,
    copies: Arc<JournalCopies>,
    switch: Arc<Switch>,
    clock: Clock,
}

impl Source {
    /// The next piece; none if nobody waits for it any more.
    async fn answer(&self, order: &Order, inbox: &Inbox) -> Result<Option<Arc<Given>>, Refusal> {
        let until = Instant::now() + order.wait;
        // Given back when this ends, behind what it leaves for the next one. A request that the slave has given up may still be under way.
        let mut taken = loop {
            if let Some(taken) = self.copies.take(order.slave, order.asked, self.clock.elapsed()) {
                break taken;
            }
            if inbox.is_gone() {
                return Ok(None);
            }
            if Instant::now() >= until + LOOK_EVERY {
                return Err(Refusal::busy("[GANTRY]another request of this slave for the journal is under way", SOON));
            }
            sleep(GATHER).await;
        };
        if let Some(given) = taken.given.take() {
            return Ok(Some(given));
        }
        let mut copier = taken.copier.take();
        if copier.is_none() && order.asked.piece > 0 {
            let Asked { from, piece } = order.asked;
            let remark = format!("piece={piece}: the pieces behind from={from} are not at hand any more, begin with 0");
            return Err(Refusal::new(ResponseCode::QueryNotFound, remark));
        }
        // Behind changes that the slave does not get.
        let mut position = order.asked.from;
        // Ends with a piece, or when there is none in time.
        loop {
            let Some(store) = self.store.upgrade() else { return Ok(None) };
            let read = read(&store, copier.take(), order.asked.from, order.bytes_max).await?;
            let (mut piece, entries) = (read.piece, read.entries);
            if let Some(empty) = piece.filter(|piece| entries.is_empty() && !piece.is_open && !piece.is_of_snapshot) {
                position = empty.position;
                piece = None;
            }
            // The successor of a master that is fenced waits for the last changes, which may be none that it gets. So may those be of which an answer here
            // waits until the slave has them.
            let is_last =
                (self.switch.is_fenced() || self.copies.is_awaited(order.slave)) && position > order.asked.from;
            if piece.is_some() || is_last || Instant::now() >= until {
                let ended = Piece { is_of_snapshot: false, begins_snapshot: false, is_open: false, position };
                let piece = piece.unwrap_or(ended);
                let reply = CopyJournalReply {
                    life: "",
                    from: signed(order.asked.from),
                    piece: signed(order.asked.piece),
                    position: signed(piece.position),
                    has_more: piece.is_open,
                    begins_snapshot: piece.begins_snapshot,
                    whole_from: signed(read.copier.whole_from()),
                    journal_end: signed(self.written.get().max(piece.position)),
                    // Behind the changes: what they speak of was appended before they were put.
                    log_end: signed(store.end().0),
                };
                let next = if piece.is_open {
                    Asked { from: order.asked.from, piece: order.asked.piece + 1 }
                } else {
                    Asked { from: piece.position, piece: 0 }
                };
                let is_of_several = piece.is_open || order.asked.piece > 0;
                let given = Arc::new(Given { reply, entries });
                let last = is_of_several.then(|| (order.asked, Arc::clone(&given)));
                self.copies.keep(order.slave, read.copier, next, last, self.clock.elapsed());
                return Ok(Some(given));
            }
            drop(store);
            let next = read.copier.position() + 1;
            copier = Some(read.copier);
            // Ends with a change, with the time, or with the connection.
            while self.written.get() < next && Instant::now() < until {
                if inbox.is_gone() {
                    return Ok(None);
                }
                let look = until.min(Instant::now() + LOOK_EVERY);
                let _ = timeout_at(look, self.written.reached(next)).await;
            }
            sleep(GATHER).await;
        }
    }
}

struct Read {
    copier: JournalCopier,
    piece: Option<Piece>,
    entries: Vec<u8>,
}

/// Reads a piece, by the copier if there is one, on a thread that may wait.
async fn read(store: &Arc<Store>, copier: Option<JournalCopier>, from: u64, bytes_max: usize) -> Result<Read, Refusal> {
    let store = Arc::clone(store);
    let reading = blocking::spawn(move || {
        let mut copier = match copier {
            Some(copier) => copier,
            None => store.journal().copier(from, tables::is_copied)?,
        };
        let mut entries = Vec::new();
        let piece = copier.next_piece(bytes_max, &mut entries)?;
        Ok(Read { copier, piece, entries })
    });
    match reading.await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error @ FollowError::Ahead { .. })) => {
            Err(Refusal::new(ResponseCode::InvalidParameter, format!("from={from}: {error}")))
        }
        Ok(Err(error @ FollowError::Journal(_))) => {
            tracing::error!(%error, "the journal cannot be read for a slave");
            Err(Refusal::failed(error))
        }
        Err(_) => Err(Refusal::failed("the journal is not read: the broker ends")),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::started;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_address_that_may_not_have_the_log_gets_nothing_of_the_journal_either() {
        let dir = tempfile::tempdir().unwrap();
        let (store, broker) = started::at(dir.path(), Vec::new()).await;
        assert!(check_address(&broker, [127, 0, 0, 1].into()).is_ok());
        let refused = check_address(&broker, [10, 0, 0, 5].into()).unwrap_err();
        assert_eq!(refused.code, ResponseCode::NoPermission);
        assert!(refused.remark.contains("10.0.0.5") && refused.remark.contains("replicaAllow"), "{}", refused.remark);
        broker.stop().await.unwrap();
        store.close().unwrap();
    }
}
