//! A master that hands over to another broker, which is played here: what sends meet, and what a crash leaves.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Service};
use parking_lot::Mutex;
use protocol::body::MemberState;
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::request::{HandOverMaster, TakeOverMaster};
use tokio::time::{Instant, sleep};

use crate::slaves::Places;
use crate::support::{Running, Setup, from, start, start_on, to};
use crate::{DEADLINE, json};

/// A slave that is to be the master.
struct Successor {
    state: Mutex<MemberState>,
    /// Whether it becomes it.
    takes_over: AtomicBool,
    /// What it was asked for clients: the frames of their requests.
    for_clients: Mutex<Vec<Bytes>>,
    /// Epochs and ends of the log with which it was asked to.
    asked: Mutex<Vec<(i64, Option<i64>)>>,
}

impl Successor {
    /// A slave that has all of the master's log.
    fn of(master: &Running) -> (Arc<Successor>, String) {
        let identity = master.broker.identity();
        let state = MemberState {
            cluster_name: identity.cluster_name,
            broker_name: identity.broker_name,
            broker_id: 1,
            broker_role: "SLAVE".to_owned(),
            log_end: i64::try_from(master.store().end().0).unwrap(),
            is_following: true,
            ..MemberState::default()
        };
        let (takes_over, asked) = (AtomicBool::new(false), Mutex::default());
        let for_clients = Mutex::default();
        let successor = Arc::new(Successor { state: Mutex::new(state), takes_over, for_clients, asked });
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::clone(&successor)).unwrap();
        let address = listener.local_addr().to_string();
        tokio::spawn(listener.run(std::future::pending()));
        successor.state.lock().broker_addr.clone_from(&address);
        (successor, address)
    }

    /// Gets what the master appends, and is behind now and then, until it is asked to take over.
    async fn reaches(&self, master: &Running) {
        while self.asked.lock().is_empty() {
            sleep(std::time::Duration::from_millis(20)).await;
            self.state.lock().log_end = i64::try_from(master.store().end().0).unwrap();
        }
    }

    fn asked(&self) -> Vec<(i64, Option<i64>)> {
        self.asked.lock().clone()
    }
}

impl Service for Successor {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(asked) = burst.next() {
            let (code, body) = match asked.header.code {
                request::GET_MEMBER_STATE => (ResponseCode::Success, json(&*self.state.lock())),
                request::TAKE_OVER_MASTER => {
                    let order = TakeOverMaster::decode(&asked.header.fields).unwrap();
                    self.asked.lock().push((order.epoch, order.log_end));
                    if self.takes_over.load(Ordering::Relaxed) {
                        let mut state = self.state.lock();
                        (state.epoch, state.broker_role) = (order.epoch, "ASYNC_MASTER".to_owned());
                        (ResponseCode::Success, json(&()))
                    } else {
                        (ResponseCode::SystemError, json(&()))
                    }
                }
                request::ASK_FOR_CLIENT => {
                    self.for_clients.lock().push(asked.body.clone());
                    (ResponseCode::Success, Bytes::new())
                }
                _ => (ResponseCode::RequestCodeNotSupported, json(&())),
            };
            out.reply(asked.reply_to(), code, None, &(), &body);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

fn setup(names: &Arc<Places>) -> Setup {
    Setup { name_servers: vec![names.listen()], ..Setup::default() }
}

async fn state(running: &Running) -> MemberState {
    fastjson::from_slice(&running.call(request::GET_MEMBER_STATE, &(), "").await.body).unwrap()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn hand_over(master: &Running, address: &str) {
    let order = HandOverMaster { broker_addr: address, broker_id: 1 };
    let answer = master.call(request::HAND_OVER_MASTER, &order, "").await;
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_when_it_has_handed_over_asks_its_successor_again() {
    let names = Arc::new(Places::default());
    let master = start(setup(&names)).await;
    master.put("T", 0, "", "first").await;
    let (successor, address) = Successor::of(&master);
    let end = successor.state.lock().log_end;
    hand_over(&master, &address).await;
    until("the successor is asked", async || !successor.asked().is_empty()).await;
    // What it has written is on the device: this is what a kill leaves.
    let image = master.image();
    let refused = master.send(&to("T", 0, ""), "late").await;
    assert_eq!((refused.code, master.store().end().0), (2, u64::try_from(end).unwrap()));
    master.stop().await;
    successor.asked.lock().clear();

    let again = start_on(setup(&names), image).await;
    assert_eq!(again.broker.identity().broker_id, 1, "it is a slave, with the id of its successor");
    assert_eq!(again.send(&to("T", 0, ""), "late").await.code, 2);
    // Consumers with an old route go on, though it is a slave that answers no pulls as such.
    assert_eq!(again.all("T", 0).await[0].body, "first");
    assert_eq!(again.call(request::UPDATE_BROKER_CONFIG, &(), "forwardToMaster=false").await.code, 0);
    assert_eq!(again.pull(&from("T", 0, 0)).await.code, 2);
    until("the successor is asked again", async || !successor.asked().is_empty()).await;
    assert!(successor.asked().iter().all(|asked| *asked == (101, Some(end))), "{:?}", successor.asked());
    assert_eq!(state(&again).await.handed_to.as_deref(), Some(&*address));
    successor.takes_over.store(true, Ordering::Relaxed);
    until("it has nothing to ask any more", async || state(&again).await.handed_to.is_none()).await;
    assert_eq!(state(&again).await.epoch, 101);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_with_an_old_route_go_on_at_a_broker_that_is_to_be_the_master_once_more() {
    let names = Arc::new(Places::default());
    let master = start(setup(&names)).await;
    master.put("T", 0, "", "first").await;
    let (successor, address) = Successor::of(&master);
    successor.takes_over.store(true, Ordering::Relaxed);
    hand_over(&master, &address).await;
    until("it has handed over", async || state(&master).await.last_switch.is_some()).await;
    let again = start_on(setup(&names), master.stop().await).await;
    assert_eq!(again.all("T", 0).await[0].body, "first");
    let order = TakeOverMaster { epoch: 201, log_end: None, broker_role: None };
    assert_eq!(again.call(request::TAKE_OVER_MASTER, &order, "").await.code, 0);
    // It is a slave until it begins anew.
    assert_eq!(state(&again).await.broker_role, "SLAVE");
    assert_eq!(again.pull(&from("T", 0, 0)).await.code, 0);
    again.broker.begins_anew().await;
    assert_eq!(again.pull(&from("T", 0, 0)).await.code, 0);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_that_a_master_holds_when_it_hands_over_are_asked_of_its_successor() {
    let names = Arc::new(Places::default());
    let master = start(setup(&names)).await;
    master.put("T", 0, "", "first").await;
    let (successor, address) = Successor::of(&master);
    successor.takes_over.store(true, Ordering::Relaxed);
    // Not all of the log is there yet: sends are held.
    successor.state.lock().log_end -= 1;
    let end = master.store().end();
    hand_over(&master, &address).await;
    let sends = async {
        let (mut codes, deadline) = (Vec::new(), Instant::now() + DEADLINE);
        // Ends when one of them was asked of the successor.
        while successor.for_clients.lock().is_empty() {
            assert!(Instant::now() < deadline, "the master is not handed over");
            codes.push(master.send(&to("T", 0, ""), "held").await.code);
        }
        codes
    };
    let (codes, ()) = tokio::join!(sends, successor.reaches(&master));
    assert!(codes.iter().all(|code| *code == 0), "{codes:?}");
    let held = successor.for_clients.lock().clone();
    assert!(held.iter().all(|frame| frame.ends_with(b"held")), "{held:?}");
    let stored = master.all("T", 0).await.len() - 1;
    assert_eq!(stored + held.len(), codes.len(), "each of them once; the log ended at {end}");
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_of_one_connection_keep_their_order_when_the_master_is_replaced() {
    let names = Arc::new(Places::default());
    let master = start(setup(&names)).await;
    master.put("T", 0, "", "first").await;
    let (successor, address) = Successor::of(&master);
    successor.takes_over.store(true, Ordering::Relaxed);
    successor.state.lock().log_end -= 1;
    let connection = master.client.connect(&master.address).await.unwrap();
    hand_over(&master, &address).await;
    let sends = async {
        let (mut sent, deadline) = (Vec::new(), Instant::now() + DEADLINE);
        while successor.for_clients.lock().len() < 4 {
            assert!(Instant::now() < deadline, "the master is not handed over");
            let waits = format!("{:04}", sent.len());
            let begun = connection.begin(request::SEND_MESSAGE_V2, &to("T", 0, ""), &waits.clone().into()).unwrap();
            // Nobody answers this one, and it stands behind the other.
            let oneway = format!("{:04}", sent.len() + 1);
            assert!(connection.oneway(request::SEND_MESSAGE_V2, &to("T", 0, ""), &oneway.clone().into()));
            sent.extend([waits, oneway]);
            assert_eq!(begun.response(DEADLINE).await.unwrap().code, 0);
        }
        sent
    };
    let (sent, ()) = tokio::join!(sends, successor.reaches(&master));
    let stored = master.all("T", 0).await.len() - 1;
    let asked = successor.for_clients.lock().clone();
    let asked: Vec<&[u8]> = asked.iter().map(|frame| &frame[frame.len() - 4..]).collect();
    let rest: Vec<&[u8]> = sent[stored..].iter().map(|text| text.as_bytes()).collect();
    assert!(rest.starts_with(&asked), "{stored} are stored, then {asked:?} of {rest:?}");
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_goes_on_if_its_successor_does_not_come_up_and_no_send_is_refused() {
    let names = Arc::new(Places::default());
    let master = start(setup(&names)).await;
    master.put("T", 0, "", "first").await;
    let (successor, address) = Successor::of(&master);
    successor.state.lock().log_end -= 1;
    hand_over(&master, &address).await;
    let mut sent = 0;
    until("the master has given it up", async || {
        assert_eq!(master.send(&to("T", 0, ""), "meanwhile").await.code, 0);
        sent += 1;
        state(&master).await.last_switch.is_some()
    })
    .await;
    let said = state(&master).await.last_switch.unwrap();
    assert!(said.contains("not handed over") && said.contains(&address), "{said}");
    assert_eq!((master.all("T", 0).await.len(), successor.asked().len()), (sent + 1, 0));

    // Neither to one that does not follow, nor to one of another set.
    let right = successor.state.lock().clone();
    for (wrong, words) in [
        (MemberState { is_following: false, ..right.clone() }, "does not get the log"),
        (MemberState { awaits_journal: true, ..right.clone() }, "has not all of this master's journal yet"),
        (MemberState { broker_name: "another".to_owned(), ..right.clone() }, "is broker another"),
        (MemberState { broker_id: 2, ..right.clone() }, "has id 2"),
        (MemberState { log_end: -(1 << 30), ..right.clone() }, "bytes behind"),
    ] {
        *successor.state.lock() = wrong;
        hand_over(&master, &address).await;
        until(words, async || state(&master).await.last_switch.is_some_and(|said| said.contains(words))).await;
    }
    assert_eq!(master.send(&to("T", 0, ""), "after").await.code, 0);
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_is_taken_by_the_broker_that_it_is_for_and_only_once() {
    let names = Arc::new(Places::default());
    let slave = [("brokerRole", "SLAVE"), ("brokerId", "2")];
    let slave_setup = || Setup { more: Vec::from(slave).leak(), ..setup(&names) };
    let slave = start(slave_setup()).await;
    until("a slave tells no epoch", async || *names.epoch.lock() == Some(0)).await;
    let take = async |running: &Running, epoch: i64, log_end: Option<i64>| {
        let order = TakeOverMaster { epoch, log_end, broker_role: Some("SYNC_MASTER") };
        let answer = running.call(request::TAKE_OVER_MASTER, &order, "").await;
        (answer.code, answer.remark.unwrap_or_default())
    };
    let (code, remark) = take(&slave, 101, None).await;
    assert!(code == 1 && remark.contains("its next one is 102"), "{remark}");
    let (code, remark) = take(&slave, 102, Some(7)).await;
    assert!(code == 1 && remark.contains("not whole here"), "{remark}");
    assert_eq!(take(&slave, 102, None).await.0, 0);
    assert_eq!(take(&slave, 102, None).await.0, 0, "the same once more");
    let (code, remark) = take(&slave, 202, None).await;
    assert!(code == 1 && remark.contains("under way"), "{remark}");
    slave.broker.begins_anew().await;
    let dir = slave.stop().await;

    let master = start_on(slave_setup(), dir).await;
    let of = state(&master).await;
    assert_eq!((of.broker_id, &*of.broker_role, of.epoch, of.former_id), (0, "SYNC_MASTER", 102, Some(2)));
    assert_eq!(of.epochs.iter().map(|one| (one.epoch, one.start)).collect::<Vec<_>>(), [(102, 0)]);
    assert_eq!(take(&master, 102, None).await.0, 0, "it is the master of it");
    // So a name server that has lost its routes sends nobody to a master before it.
    until("name servers know the epoch", async || *names.epoch.lock() == Some(102)).await;
    master.stop().await;
}
