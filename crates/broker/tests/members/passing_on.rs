//! To whom a slave passes requests on, and in which order, while masters change. The masters are
//! played here: each takes requests, and answers them when the test says so.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use net::{Begun, Burst, Connection, Listener, ListenerOptions, Outgoing, ReplyTo, Service};
use parking_lot::Mutex;
use protocol::body::MemberState;
use protocol::code::{ResponseCode, request};
use protocol::request::{NOT_MASTER, TakeOverMaster};

use tokio::time::Instant;

use crate::slaves::{Places, figure, slave_by, until};
use crate::support::{self, to};
use crate::{DEADLINE, Running, json};

/// No broker gives its log there.
const NOWHERE: &str = "127.0.0.1:2";

/// A broker of the set.
struct Played {
    /// How it says that it stands.
    state: Mutex<MemberState>,
    /// How often it was asked that.
    looks: AtomicUsize,
    /// What it was asked for clients.
    asked: Mutex<Vec<Asked>>,
    /// It carries that out at once, as a master. A slave says at once that it is none.
    answers: AtomicBool,
}

/// A request of a client that was passed on.
struct Asked {
    connection: Connection<Answer>,
    reply_to: ReplyTo,
    /// The end of the client's frame, which is the body of its message.
    body: String,
}

/// That a request was carried out, or that this broker is no master.
struct Answer {
    reply_to: ReplyTo,
    is_master: bool,
}

impl Played {
    /// One of the slave's set, in epoch 0.
    fn of(slave: &Running, broker_role: &str) -> (Arc<Played>, String) {
        let identity = slave.broker.identity();
        let state = MemberState {
            cluster_name: identity.cluster_name,
            broker_name: identity.broker_name,
            broker_role: broker_role.to_owned(),
            ..MemberState::default()
        };
        let (looks, asked, answers) = (AtomicUsize::new(0), Mutex::default(), AtomicBool::new(false));
        let played = Arc::new(Played { state: Mutex::new(state), looks, asked, answers });
        let options = ListenerOptions { tls: None, ..ListenerOptions::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), options, Arc::clone(&played)).unwrap();
        let address = listener.local_addr().to_string();
        tokio::spawn(listener.run(std::future::pending()));
        (played, address)
    }

    fn is_now(&self, broker_role: &str) {
        self.state.lock().broker_role = broker_role.to_owned();
    }

    /// The messages that it was asked to take, in the order in which they came.
    fn bodies(&self) -> Vec<String> {
        self.asked.lock().iter().map(|asked| asked.body.clone()).collect()
    }

    /// Takes requests of the client until one has been answered: from then on the slave has a
    /// connection to this broker. None is left here.
    async fn is_found(&self, client: &Connection<()>) {
        self.answers.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + DEADLINE;
        while begin(client, "0000").response(DEADLINE).await.unwrap().code != 0 {
            assert!(Instant::now() < deadline, "the slave does not find it");
        }
        self.answers.store(false, Ordering::Relaxed);
        self.asked.lock().clear();
    }

    async fn until_asked(&self, count: usize) {
        support::until("the requests are passed on", || self.asked.lock().len() >= count).await;
    }

    /// False if the connection is closed.
    fn answer(&self, place: usize, is_master: bool) -> bool {
        let asked = self.asked.lock();
        let Asked { connection, reply_to, .. } = &asked[place];
        connection.post(Answer { reply_to: *reply_to, is_master })
    }
}

impl Service for Played {
    type Session = Connection<Answer>;
    type Work = Answer;

    fn open(&self, connection: &Connection<Answer>) -> Connection<Answer> {
        connection.clone()
    }

    async fn serve(&self, connection: &mut Connection<Answer>, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(asked) = burst.next() {
            let reply_to = asked.reply_to();
            match asked.header.code {
                request::GET_MEMBER_STATE => {
                    self.looks.fetch_add(1, Ordering::Relaxed);
                    let state = json(&*self.state.lock());
                    out.reply(reply_to, ResponseCode::Success, None, &(), &state);
                }
                request::ASK_FOR_CLIENT => {
                    let body = String::from_utf8_lossy(&asked.body[asked.body.len() - 4..]).into_owned();
                    self.asked.lock().push(Asked { connection: connection.clone(), reply_to, body });
                    if self.state.lock().broker_role == "SLAVE" {
                        reply(reply_to, false, out);
                    } else if self.answers.load(Ordering::Relaxed) {
                        reply(reply_to, true, out);
                    }
                }
                _ => out.reply(reply_to, ResponseCode::RequestCodeNotSupported, None, &(), &[]),
            }
        }
    }

    async fn resume(&self, _: &mut Connection<Answer>, answer: Answer, out: &mut Outgoing) {
        reply(answer.reply_to, answer.is_master, out);
    }

    fn close(&self, _: Connection<Answer>) {}
}

fn reply(reply_to: ReplyTo, is_master: bool, out: &mut Outgoing) {
    if is_master {
        out.reply(reply_to, ResponseCode::Success, None, &(), &[]);
    } else {
        out.reply(reply_to, ResponseCode::ServiceNotAvailable, None, &[(NOT_MASTER, "true")], &[]);
    }
}

/// A slave that hears from a name server where its master is, which gives no log.
async fn slave() -> (Running, Arc<Places>) {
    let names = Arc::new(Places::default());
    (slave_by(&names).await, names)
}

async fn until_master_is(slave: &Running, names: &Places, address: &str) {
    *names.master.lock() = Some((address.to_owned(), NOWHERE.to_owned()));
    until("the slave knows its master", || async { figure(slave, "masterAddress").await.as_deref() == Some(address) })
        .await;
}

fn begin(connection: &Connection<()>, body: &'static str) -> Begun<()> {
    connection.begin(request::SEND_MESSAGE_V2, &to("T", 0, ""), &body.into()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_a_deposed_master_gives_back_come_to_the_next_one_in_the_order_of_their_client() {
    let (slave, names) = slave().await;
    let connection = slave.client.connect(&slave.address).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    // Ends when no request has waited for so long that the slave has given it up.
    while !are_given_back(&slave, &names, &connection).await {
        assert!(Instant::now() < deadline, "requests are given up each time");
    }
    slave.stop().await;
}

/// Whether all requests that the old master gave back came to the new one. In what order those came
/// that did, it looks itself.
async fn are_given_back(slave: &Running, names: &Places, connection: &Connection<()>) -> bool {
    let (old, old_address) = Played::of(slave, "ASYNC_MASTER");
    let (new, new_address) = Played::of(slave, "SLAVE");
    until_master_is(slave, names, &old_address).await;
    old.is_found(connection).await;
    // The slave goes on with the connection that it has.
    until_master_is(slave, names, &new_address).await;
    let mut sent = Vec::from(["0001", "0002", "0003"].map(|body| begin(connection, body)));
    old.until_asked(3).await;
    old.is_now("SLAVE");
    new.is_now("ASYNC_MASTER");
    new.answers.store(true, Ordering::Relaxed);
    // The answer to the first one is still to come: it may be the old master's.
    assert!(old.answer(2, false) && old.answer(1, false));
    sent.push(begin(connection, "0004"));
    support::until("the slave has looked for another master", || new.looks.load(Ordering::Relaxed) > 0).await;
    for _ in 0..5 {
        figure(slave, "masterAddress").await;
    }
    assert_eq!(new.bodies(), [""; 0]);
    assert!(old.answer(0, false));
    let (mut codes, all) = (Vec::new(), ["0001", "0002", "0003", "0004"]);
    for begun in sent {
        codes.push(begun.response(DEADLINE).await.unwrap().code);
    }
    let are_carried_out = codes.iter().zip(all).filter(|(code, _)| **code == 0).map(|(_, body)| body);
    assert_eq!(new.bodies(), Vec::from_iter(are_carried_out), "in this order");
    // The last one may have been under way to it when it gave the others back.
    assert_eq!(old.bodies()[..3], all[..3]);
    codes == [0; 4]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_passed_on_to_a_master_whose_epoch_is_over() {
    let (slave, names) = slave().await;
    let (old, address) = Played::of(&slave, "ASYNC_MASTER");
    let connection = slave.client.connect(&slave.address).await.unwrap();
    until_master_is(&slave, &names, &address).await;
    old.is_found(&connection).await;
    let under_way = begin(&connection, "0001");
    old.until_asked(1).await;
    // It has not begun anew, so it passes requests on, and the old master still says that it is one.
    let order = TakeOverMaster { epoch: 101, log_end: None, broker_role: None };
    assert_eq!(slave.call(request::TAKE_OVER_MASTER, &order, "").await.code, 0);
    assert_eq!(begin(&connection, "0002").response(DEADLINE).await.unwrap().code, 2, "there is no other master");
    // What it answers now is not passed on: its connection is closed.
    old.answer(0, true);
    let answer = under_way.response(DEADLINE).await.unwrap();
    let remark = answer.remark.unwrap_or_default();
    assert!(answer.code == 2 && remark.contains("the master may have carried it out"), "{} {remark}", answer.code);
    assert_eq!(old.bodies(), ["0001"]);
    slave.stop().await;
}
