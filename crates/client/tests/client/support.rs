//! A name server and broker in one that answers as a test tells it, and remembers what it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Client, ClientConfig};
use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, ReplyTo, Service};
use protocol::body::{BrokerData, ConsumerIdList, LockBatch, LockBatchReply, MessageQueue, QueueData, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::header::Fields;
use protocol::record::{RecordDraft, stamp};
use tokio::time::Instant;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a request says.
#[derive(Clone, Debug)]
pub struct Asked {
    pub code: i32,
    pub is_oneway: bool,
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn number(&self, field: &str) -> i64 {
        self.fields[field].parse().unwrap()
    }
}

/// An answer: the code, the header's fields, the body.
pub type Answer = (ResponseCode, Vec<(&'static str, String)>, Vec<u8>);

/// Where an answer goes, and what it is.
type Held = (Connection<()>, ReplyTo, Answer);

type Script = Box<dyn Fn(&Asked) -> Option<Answer> + Send + Sync>;

/// Answers what `script` does not: a route with one queue for each topic, and a group of everybody who sent a heartbeat.
pub struct Fake {
    script: Script,
    asked: Mutex<Vec<Asked>>,
    client_id: Mutex<String>,
    address: Mutex<Option<SocketAddr>>,
    /// Answers to sends that wait to be let go; `None`: none waits.
    held: Mutex<Option<Vec<Held>>>,
    /// All that there were.
    connections: Mutex<Vec<Connection<()>>>,
}

impl Fake {
    pub fn start(script: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) -> Arc<Fake> {
        let fake = Arc::new(Fake {
            script: Box::new(script),
            asked: Mutex::default(),
            client_id: Mutex::default(),
            address: Mutex::default(),
            held: Mutex::default(),
            connections: Mutex::default(),
        });
        let options = ListenerOptions::default();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options, Arc::clone(&fake)).unwrap();
        *fake.address.lock().unwrap() = Some(listener.local_addr());
        tokio::spawn(listener.run(std::future::pending()));
        fake
    }

    pub fn client(&self) -> Client {
        self.client_with(ClientConfig::new(&self.address()))
    }

    pub fn client_with(&self, config: ClientConfig) -> Client {
        let client = Client::start(config);
        *self.client_id.lock().unwrap() = client.id().to_owned();
        client
    }

    pub fn address(&self) -> String {
        self.address.lock().unwrap().unwrap().to_string()
    }

    /// Answers no send until [`Fake::release`].
    pub fn hold(&self) {
        self.held.lock().unwrap().get_or_insert_default();
    }

    /// Answers the sends that were held back, and those to come.
    pub fn release(&self) {
        let held = self.held.lock().unwrap().take().unwrap_or_default();
        for (connection, to, answer) in held {
            let mut out = Outgoing::new();
            reply(&mut out, to, &answer);
            connection.send(out.take());
        }
    }

    /// Closes all connections; new ones may come.
    pub fn hang_up(&self) {
        self.connections.lock().unwrap().iter().for_each(Connection::close);
    }

    /// The sends so far, of a message or of a batch, or of several of either.
    pub fn sends(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().filter(|asked| is_send(asked.code)).cloned().collect()
    }

    /// The requests with this code so far.
    pub fn asked(&self, code: i32) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().filter(|asked| asked.code == code).cloned().collect()
    }

    fn usual(&self, asked: &Asked) -> Answer {
        let json = |body: Vec<u8>| (ResponseCode::Success, Vec::new(), body);
        match asked.code {
            request::GET_ROUTEINFO_BY_TOPIC => json(fastjson::to_vec(&self.route(), Dialect::FastJson)),
            request::GET_CONSUMER_LIST_BY_GROUP => {
                let list = ConsumerIdList { consumer_id_list: vec![self.client_id.lock().unwrap().clone()] };
                json(fastjson::to_vec(&list, Dialect::FastJson))
            }
            request::QUERY_CONSUMER_OFFSET | request::GET_MAX_OFFSET | request::GET_MIN_OFFSET => {
                (ResponseCode::Success, vec![("offset", "0".to_owned())], Vec::new())
            }
            request::PULL_MESSAGE => nothing_new(asked),
            _ => json(Vec::new()),
        }
    }

    pub fn route(&self) -> TopicRoute {
        TopicRoute {
            broker_datas: vec![BrokerData {
                broker_name: "b".to_owned(),
                broker_addrs: [(0, self.address())].into(),
                ..BrokerData::default()
            }],
            queue_datas: vec![QueueData {
                broker_name: "b".to_owned(),
                perm: 6,
                read_queue_nums: 1,
                write_queue_nums: 1,
                topic_sys_flag: 0,
            }],
            ..TopicRoute::default()
        }
    }
}

impl Service for Fake {
    type Session = Connection<()>;
    type Work = ();

    fn open(&self, connection: &Connection<()>) -> Connection<()> {
        self.connections.lock().unwrap().push(connection.clone());
        connection.clone()
    }

    async fn serve(&self, session: &mut Connection<()>, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let fields = owned(request.header.fields);
            let (code, is_oneway) = (request.header.code, request.header.is_oneway());
            let asked = Asked { code, is_oneway, fields, body: request.body.to_vec() };
            self.asked.lock().unwrap().push(asked.clone());
            let answer = (self.script)(&asked).unwrap_or_else(|| self.usual(&asked));
            let mut held = self.held.lock().unwrap();
            match &mut *held {
                Some(held) if is_send(code) => held.push((session.clone(), request.reply_to(), answer)),
                Some(_) | None => reply(out, request.reply_to(), &answer),
            }
        }
    }

    async fn resume(&self, _: &mut Connection<()>, (): (), _: &mut Outgoing) {}

    fn close(&self, _: Connection<()>) {}
}

fn is_send(code: i32) -> bool {
    [request::SEND_MESSAGE_V2, request::SEND_BATCH_MESSAGE, request::SEND_TOGETHER].contains(&code)
}

fn reply(out: &mut Outgoing, to: ReplyTo, (code, fields, body): &Answer) {
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    out.reply(to, *code, None, &&fields[..], body);
}

fn owned(fields: Fields<'_>) -> BTreeMap<String, String> {
    fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Nothing at the offset that was asked for, at once.
pub fn nothing_new(asked: &Asked) -> Answer {
    (ResponseCode::PullNotFound, pulled(asked.number("queueOffset")), Vec::new())
}

/// These bodies, from the offset on that was asked for.
pub fn found(asked: &Asked, topic: &str, bodies: &[&[u8]]) -> Answer {
    let host = "127.0.0.1:10911".parse().unwrap();
    let (mut next, mut records) = (asked.number("queueOffset"), Vec::new());
    for body in bodies {
        let mut record = Vec::new();
        let draft = RecordDraft { body, ..RecordDraft::plain(topic, host) };
        draft.encode(&mut record).unwrap();
        stamp(&mut record, next as u64, next as u64 * 1_000, 0);
        records.extend(record);
        next += 1;
    }
    (ResponseCode::Success, pulled(next), records)
}

fn pulled(next: i64) -> Vec<(&'static str, String)> {
    let number = |number: i64| number.to_string();
    vec![
        ("suggestWhichBrokerId", number(0)),
        ("nextBeginOffset", number(next)),
        ("minOffset", number(0)),
        ("maxOffset", number(100)),
    ]
}

/// The queues that a request locks.
pub fn to_lock(asked: &Asked) -> Vec<MessageQueue> {
    fastjson::from_slice::<LockBatch>(&asked.body).unwrap().mq_set
}

/// These queues are the asking member's now.
pub fn locked(lock_ok_mq_set: Vec<MessageQueue>) -> Answer {
    let reply = LockBatchReply { lock_ok_mq_set };
    (ResponseCode::Success, Vec::new(), fastjson::to_vec(&reply, Dialect::FastJson))
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
