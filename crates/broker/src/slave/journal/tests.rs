//! A master that is played: it gives the pieces of its journal one by one, when the test says so.

use std::net::Ipv4Addr;

use journal::{Change, TableId, write_change};
use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Service};
use protocol::request::{CopyJournal, CopyJournalReply};
use store::Store;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::{started, tables};

const DEADLINE: Duration = Duration::from_secs(30);

/// A piece, by what of it is not 0.
#[derive(Default)]
struct Piece {
    from: i64,
    piece: i64,
    position: i64,
    has_more: bool,
    begins_snapshot: bool,
    journal_end: i64,
    entries: Vec<u8>,
}

/// A request for a piece, as `life from piece`, and the way to its answer.
struct Question {
    asked: String,
    answer: oneshot::Sender<Option<Piece>>,
}

struct Played(mpsc::UnboundedSender<Question>);

impl Service for Played {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let Ok(fields) = CopyJournal::decode(&request.header.fields) else { return };
            let asked = format!("{} {} {}", fields.life, fields.from, fields.piece);
            let (answer, answered) = oneshot::channel();
            self.0.send(Question { asked, answer }).unwrap();
            let Ok(piece) = answered.await else { return };
            let Some(piece) = piece else {
                out.reply(request.reply_to(), ResponseCode::SystemBusy, Some("busy"), &(), &[]);
                continue;
            };
            let fields = CopyJournalReply {
                life: "7",
                from: piece.from,
                piece: piece.piece,
                position: piece.position,
                has_more: piece.has_more,
                begins_snapshot: piece.begins_snapshot,
                whole_from: 0,
                journal_end: piece.journal_end,
                log_end: 0,
            };
            out.reply(request.reply_to(), ResponseCode::Success, None, &fields, &piece.entries);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

/// A broker that follows a master's journal from position 5 of its life 7 on.
struct Following {
    broker: Arc<Broker>,
    store: Arc<Store>,
    address: Arc<str>,
    questions: mpsc::UnboundedReceiver<Question>,
    task: JoinHandle<(Ended, Option<Begun>)>,
    _dir: TempDir,
}

impl Following {
    async fn start() -> Following {
        let (asked, questions) = mpsc::unbounded_channel();
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::new(Played(asked))).unwrap();
        let address: Arc<str> = listener.local_addr().to_string().into();
        tokio::spawn(listener.run(std::future::pending()));
        let dir = tempfile::tempdir().unwrap();
        let (store, broker) = started::at(dir.path(), Vec::new()).await;
        broker.following.learnt(&address, None);
        broker.master_journal.reach(Place { life: 7, position: 5 });
        broker.master_journal.offer(Some(&address));
        let task = Following::follow(&broker, &address, None);
        Following { broker, store, address, questions, task, _dir: dir }
    }

    fn follow(
        broker: &Arc<Broker>,
        address: &Arc<str>,
        mut begun: Option<Begun>,
    ) -> JoinHandle<(Ended, Option<Begun>)> {
        let (broker, master) = (Arc::clone(broker), Arc::clone(address));
        tokio::spawn(async move {
            let Err(ended) = follow(&broker, &master, &mut begun).await;
            (ended, begun)
        })
    }

    /// The next request: what was answered before is taken by then.
    async fn next(&mut self, asked: &str) -> oneshot::Sender<Option<Piece>> {
        let next = timeout(DEADLINE, self.questions.recv()).await.expect("no request in time").unwrap();
        assert_eq!(next.asked, asked);
        next.answer
    }

    fn level(&self) -> Option<i64> {
        self.broker.delay.offsets().find(|(level, _)| *level == 3).map(|(_, offset)| offset)
    }

    async fn stop(self) {
        self.task.abort();
        self.broker.stop().await.unwrap();
        self.store.close().unwrap();
    }
}

fn row(table: TableId, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut entries = Vec::new();
    write_change(&mut entries, Change { table, key, value: Some(value) });
    entries
}

/// A level of delays that has come to an offset.
fn level(offset: u64) -> Vec<u8> {
    row(tables::DELAYS, &3u32.to_be_bytes(), &offset.to_be_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_asked_for_before_all_rows_are_to_come_again_is_not_taken() {
    let mut following = Following::start().await;
    let answer = following.next("7 5 0").await;
    let journal = &following.broker.master_journal;
    journal.offer(None);
    journal.forget_place();
    journal.offer(Some(&following.address));
    answer.send(Some(Piece { from: 5, position: 6, journal_end: 6, entries: level(9), ..Piece::default() })).ok();
    tokio::select! {
        ended = &mut following.task => assert!(matches!(ended.unwrap().0, Ended::NotOffered)),
        next = following.questions.recv() => panic!("it goes on with {}", next.unwrap().asked),
        () = tokio::time::sleep(DEADLINE) => panic!("it does not end"),
    }
    assert_eq!((following.broker.master_journal.place(), following.level()), (None, None));
    following.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_changes_does_not_say_either_that_the_tables_are_those_of_a_place_that_was_forgotten() {
    let mut following = Following::start().await;
    let answer = following.next("7 5 0").await;
    let journal = &following.broker.master_journal;
    journal.offer(None);
    journal.forget_place();
    journal.offer(Some(&following.address));
    answer.send(Some(Piece { from: 5, position: 5, journal_end: 5, ..Piece::default() })).ok();
    tokio::select! {
        ended = &mut following.task => assert!(matches!(ended.unwrap().0, Ended::NotOffered)),
        next = following.questions.recv() => panic!("it goes on with {}", next.unwrap().asked),
        () = tokio::time::sleep(DEADLINE) => panic!("it does not end"),
    }
    assert!(!following.broker.master_journal.is_followed());
    following.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_whose_rows_are_gathered_anew_is_not_followed_until_all_are_here() {
    let mut following = Following::start().await;
    let answer = following.next("7 5 0").await;
    answer.send(Some(Piece { from: 5, position: 6, journal_end: 6, entries: level(1), ..Piece::default() })).ok();
    let answer = following.next("7 6 0").await;
    assert!(following.broker.master_journal.is_followed() && following.level() == Some(1));
    // A snapshot has passed it: its rows are no changes of those here.
    let first =
        Piece { from: 6, position: 20, has_more: true, begins_snapshot: true, journal_end: 20, ..Piece::default() };
    answer.send(Some(Piece { entries: level(2), ..first })).ok();
    let answer = following.next("7 6 1").await;
    let journal = &following.broker.master_journal;
    assert!(!journal.is_followed() && journal.gathered() == Some(1) && following.level() == Some(1));
    answer.send(Some(Piece { from: 6, piece: 1, position: 20, journal_end: 20, ..Piece::default() })).ok();
    let answer = following.next("7 20 0").await;
    let journal = &following.broker.master_journal;
    assert!(journal.is_followed() && journal.gathered().is_none() && following.level() == Some(2));
    drop(answer);
    following.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_gathered_go_on_where_they_were_when_the_master_did_not_answer_in_time() {
    let mut following = Following::start().await;
    let answer = following.next("7 5 0").await;
    let first =
        Piece { from: 5, position: 20, has_more: true, begins_snapshot: true, journal_end: 20, ..Piece::default() };
    answer.send(Some(Piece { entries: level(2), ..first })).ok();
    let answer = following.next("7 5 1").await;
    answer.send(None).ok();
    let (ended, begun) = (&mut following.task).await.unwrap();
    assert!(matches!(ended, Ended::Master(MasterError::Refused { code: BUSY, .. })), "{ended}");
    assert_eq!(following.broker.master_journal.gathered(), Some(1));
    following.task = Following::follow(&following.broker, &following.address, begun);
    let answer = following.next("7 5 1").await;
    answer.send(Some(Piece { from: 5, piece: 1, position: 20, journal_end: 20, ..Piece::default() })).ok();
    drop(following.next("7 20 0").await);
    assert!(following.broker.master_journal.is_followed() && following.level() == Some(2));
    following.stop().await;
}
