//! The name server's state, and the one match on the request code.
//!
//! One lock guards the route table; it is held for a look-up or a change in memory, never while waiting. In a large table that takes long,
//! so it is done on threads that serve no connection, and `entry` lets network workers await its end. A task expires silent
//! brokers. A broker's registration ends with the connection that it came by, unless we end that because we stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use env::Clock;
use net::{Burst, Client, ClientOptions, Connection, Outgoing, ReplyTo, Request, Service};
use parking_lot::RwLock;
use protocol::code::{RequestCode, ResponseCode, request};
use protocol::header::EncodeFields;
use protocol::request::NotifyMinBrokerIdChange;
use protocol::requests_of;
use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::configuration::Unwritten;
use crate::kv::{KvConfig, KvError, KvSize};
use crate::limits::{Limits, Unfit};
use crate::options::Options;
use crate::route::RouteCache;
use crate::routes::{Departure, MinBrokerIdChange, RouteTable, TableSize, Unregistration};
use crate::{beside, lists, register, route};

/// A table with more rows takes longer to look through than a thread that serves connections may be occupied.
const FEW_ROWS: usize = 2_000;

/// A running name server.
pub struct Names {
    /// Live: request 318 replaces it.
    pub(crate) options: ArcSwap<Options>,
    /// Lets one change of the settings at a time through to their file.
    pub(crate) changing: tokio::sync::Mutex<Unwritten>,
    /// The turn of requests that are carried out beside the network workers.
    pub(crate) beside: Arc<tokio::sync::Mutex<()>>,
    /// For work that outlives the call that begins it.
    pub(crate) myself: Weak<Names>,
    /// Lets one compressed registration at a time unfold.
    pub(crate) unfolding: Arc<tokio::sync::Mutex<()>>,
    pub(crate) clock: Clock,
    pub(crate) table: RwLock<RouteTable>,
    /// Taken before `table`, shared for a look and alone for a change: by all that may hold the table for long, and by requests
    /// that a network worker carries out. So a worker that has it does not block on the table.
    pub(crate) entry: Arc<tokio::sync::RwLock<()>>,
    pub(crate) routes: RouteCache,
    pub(crate) kv: Arc<KvConfig>,
    /// Calls brokers, to tell them of an acting master: they answer that on the port where they listen.
    client: Client,
    /// See [`Names::stop`]. Relaxed: the word that closes the connections comes after it, and brings it along.
    is_stopping: AtomicBool,
}

/// What is remembered about one connection.
pub struct Session {
    pub(crate) connection: Connection<()>,
    /// A broker registered through it.
    pub(crate) is_broker: bool,
}

/// The answer of a name server that will not do what it was asked.
pub(crate) struct Refusal {
    pub code: ResponseCode,
    pub remark: String,
}

impl Refusal {
    pub fn new(code: ResponseCode, remark: impl Into<String>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }
}

impl From<protocol::request::FieldError> for Refusal {
    fn from(error: protocol::request::FieldError) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }
}

impl From<KvError> for Refusal {
    fn from(error: KvError) -> Refusal {
        match error {
            KvError::Unfit(unfit) => unfit.into(),
            KvError::Io { .. } | KvError::Unwritten(_) | KvError::Malformed { .. } => {
                Refusal::new(ResponseCode::SystemError, error.to_string())
            }
        }
    }
}

impl From<Unfit> for Refusal {
    fn from(unfit: Unfit) -> Refusal {
        // Code 1, as Apache's name server answers all that it does not take: clients of any version know it.
        Refusal::new(ResponseCode::SystemError, unfit.to_string())
    }
}

impl Names {
    /// Reads the key-value settings. `calls` says how brokers are called. [`Names::expire`] has to be run beside.
    pub fn new(options: Options, calls: ClientOptions, clock: Clock) -> Result<Arc<Names>, KvError> {
        let kv = Arc::new(KvConfig::load(&options.kv_config_path, &Limits::of(&options))?);
        Ok(Arc::new_cyclic(|myself| Names {
            beside: Arc::default(),
            myself: Weak::clone(myself),
            changing: tokio::sync::Mutex::default(),
            unfolding: Arc::default(),
            options: ArcSwap::from_pointee(options),
            clock,
            table: RwLock::new(RouteTable::default()),
            entry: Arc::default(),
            routes: RouteCache::default(),
            kv,
            client: Client::new(calls),
            is_stopping: AtomicBool::new(false),
        }))
    }

    /// The limits that are in force.
    pub(crate) fn limits(&self) -> Limits {
        Limits::of(&self.options.load())
    }

    /// What 319 shows besides the settings: which program this is, and how close it is to its limits.
    pub(crate) fn figures(&self) -> String {
        let TableSize { brokers, topics, routes } = self.table.read().size();
        let KvSize { entries, bytes } = self.kv.size();
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "gantryVersion={version}\nbrokers={brokers}\ntopics={topics}\ntopicRoutes={routes}\nkvEntries={entries}\nkvBytes={bytes}\n"
        )
    }

    /// To be called before the connections are closed. That a broker's connection ends says nothing about the broker from now on: it
    /// stays in the routes, and no slave is told that its master is gone.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Takes out silent brokers, and kept routes of topics that are gone, for as long as the name server runs.
    pub async fn expire(self: Arc<Names>) {
        loop {
            let pause = Duration::from_millis(self.options.load().scan_not_active_broker_interval.max(1));
            tokio::time::sleep(pause).await;
            // It looks through the table, which may be large.
            let names = Arc::clone(&self);
            let entry = Arc::clone(&self.entry).write_owned().await;
            let work = move || {
                let _entry = entry;
                names.tidy();
            };
            if let Err(error) = tokio::task::spawn_blocking(work).await
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Does once what [`Names::expire`] does again and again.
    pub(crate) fn tidy(&self) {
        let now = self.clock.elapsed();
        let is_due = self.table.read().has_silent(now);
        if is_due {
            self.take_out("silent for too long", |table| table.expired(now));
            self.table.write().forget_silent(now);
        }
        self.routes.sweep(&self.table.read());
    }

    /// Takes out the brokers that `find` finds, under the same lock: one that registers meanwhile is not among them.
    pub(crate) fn take_out(&self, why: &str, find: impl FnOnce(&RouteTable) -> Vec<Unregistration>) {
        let (leaving, Departure { min_id_changes, back }) = {
            let mut table = self.table.write();
            let leaving = find(&table);
            let departure = table.unregister(&leaving);
            (leaving, departure)
        };
        for one in leaving {
            info!(broker = one.broker_name, id = one.broker_id, address = one.at.address, why, "broker leaves");
        }
        for one in back {
            let what = "the broker that had this name and id before is in the routes again";
            warn!(broker = one.broker_name, id = one.broker_id, address = one.at.address, "{what}");
        }
        for change in min_id_changes {
            self.notify(&change);
        }
    }

    /// Whether the table is small and free: then a network worker may do what looks through all of it.
    pub(crate) fn is_small(&self) -> bool {
        self.table.try_read().is_some_and(|table| {
            let TableSize { brokers, topics, routes } = table.size();
            brokers.max(topics).max(routes) <= FEW_ROWS
        })
    }

    /// Takes out the brokers that registered through a connection which is gone.
    fn disconnect(&self, connection: u64) {
        self.take_out("connection closed", |table| table.disconnected(connection));
        self.table.write().forget_disconnected(connection);
    }

    /// Tells the replicas of a name who has the smallest id (905).
    pub(crate) fn notify(&self, change: &MinBrokerIdChange) {
        if !self.options.load().notify_min_broker_id_changed {
            return;
        }
        for address in change.addresses.clone() {
            let (client, change) = (self.client.clone(), change.clone());
            tokio::spawn(async move {
                let fields = NotifyMinBrokerIdChange {
                    min_broker_id: Some(change.min_broker_id),
                    broker_name: Some(&change.broker_name),
                    min_broker_addr: Some(&change.min_broker_address),
                    offline_broker_addr: change.offline_address.as_deref(),
                    ha_broker_addr: change.ha_address.as_deref(),
                };
                let told = client.oneway(&address, request::NOTIFY_MIN_BROKER_ID_CHANGE, &fields, Bytes::new()).await;
                if let Err(error) = told {
                    warn!(address, broker = change.broker_name, %error, "could not tell of the new smallest id");
                }
            });
        }
    }

    async fn answer(&self, session: &mut Session, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
        let code = RequestCode::from_i32(asked.header.code).ok_or_else(|| unsupported(asked.header.code))?;
        #[allow(clippy::wildcard_enum_match_arm, reason = "answer_here names them all")]
        match code {
            RequestCode::REGISTER_BROKER => register::broker(self, session, asked, out).await,
            RequestCode::PUT_KV_CONFIG => lists::put_kv(self, asked, out).await,
            RequestCode::DELETE_KV_CONFIG => lists::delete_kv(self, asked, out).await,
            RequestCode::UPDATE_NAMESRV_CONFIG => crate::configuration::update(self, asked, out).await,
            RequestCode::GET_ROUTEINFO_BY_TOPIC => route::of_topic(self, asked, out).await,
            code if beside::is_wanted_for(code, asked) => beside::answer(self, session, code, asked, out).await,
            code if beside::changes(code) => {
                let _entry = self.entry.write().await;
                self.answer_here(code, asked, out)
            }
            RequestCode::GET_BROKER_MEMBER_GROUP | RequestCode::GET_NAMESRV_CONFIG => {
                let _entry = self.entry.read().await;
                self.answer_here(code, asked, out)
            }
            code => self.answer_here(code, asked, out),
        }
    }

    /// Answers what waits for nothing, on the thread that its row in [`protocol::code::REQUESTS`]
    /// names.
    pub(crate) fn answer_here(
        &self,
        code: RequestCode,
        asked: &Request<'_>,
        out: &mut Outgoing,
    ) -> Result<(), Refusal> {
        match code {
            RequestCode::GET_BROKER_CLUSTER_INFO => route::clusters(self, asked, out),
            RequestCode::GET_BROKER_MEMBER_GROUP => route::members(self, asked, out),
            RequestCode::UNREGISTER_BROKER => register::unregister(self, asked, out),
            RequestCode::BROKER_HEARTBEAT => register::heartbeat(self, asked, out),
            RequestCode::QUERY_DATA_VERSION => register::data_version(self, asked, out),
            RequestCode::REGISTER_TOPIC_IN_NAMESRV => register::topic(self, asked, out),
            RequestCode::DELETE_TOPIC_IN_NAMESRV => register::delete_topic(self, asked, out),
            RequestCode::WIPE_WRITE_PERM_OF_BROKER => register::wipe_write_perm(self, asked, out),
            RequestCode::ADD_WRITE_PERM_OF_BROKER => register::add_write_perm(self, asked, out),
            RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            | RequestCode::GET_TOPICS_BY_CLUSTER
            | RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS
            | RequestCode::GET_UNIT_TOPIC_LIST
            | RequestCode::GET_HAS_UNIT_SUB_TOPIC_LIST
            | RequestCode::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => lists::topics(self, asked, out),
            RequestCode::GET_KV_CONFIG => lists::get_kv(self, asked, out),
            RequestCode::GET_KVLIST_BY_NAMESPACE => lists::list_kv(self, asked, out),
            RequestCode::GET_NAMESRV_CONFIG => crate::configuration::get(self, asked, out),
            // Answered before, because they wait.
            RequestCode::REGISTER_BROKER
            | RequestCode::PUT_KV_CONFIG
            | RequestCode::DELETE_KV_CONFIG
            | RequestCode::UPDATE_NAMESRV_CONFIG
            | RequestCode::GET_ROUTEINFO_BY_TOPIC
            // Of other programs.
            | requests_of!(Broker)
            | requests_of!(Controller)
            | requests_of!(Container)
            | requests_of!(Client)
            | requests_of!(Nobody) => Err(unsupported(code.number())),
        }
    }
}

/// Code 3 in Apache's words, leading blank included.
fn unsupported(code: i32) -> Refusal {
    Refusal::new(ResponseCode::RequestCodeNotSupported, format!(" request type {code} not supported"))
}

/// Success, with a header and a body.
pub(crate) fn ok(out: &mut Outgoing, to: ReplyTo, fields: &dyn EncodeFields, body: &[u8]) -> Result<(), Refusal> {
    out.reply(to, ResponseCode::Success, None, fields, body);
    Ok(())
}

impl Service for Names {
    type Session = Session;
    type Work = ();

    fn open(&self, connection: &Connection<()>) -> Session {
        Session { connection: connection.clone(), is_broker: false }
    }

    async fn serve(&self, session: &mut Session, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while !out.is_full()
            && let Some(asked) = burst.next()
        {
            if let Err(refusal) = self.answer(session, &asked, out).await {
                out.reply(asked.reply_to(), refusal.code, Some(&refusal.remark), &(), &[]);
            }
        }
    }

    async fn resume(&self, _session: &mut Session, _work: (), _out: &mut Outgoing) {}

    fn close(&self, session: Session) {
        if !session.is_broker || self.is_stopping.load(Ordering::Relaxed) {
            return;
        }
        let id = session.connection.id();
        if self.is_small()
            && let Ok(_entry) = self.entry.try_write()
        {
            return self.disconnect(id);
        }
        let (Some(names), Ok(runtime)) = (self.myself.upgrade(), Handle::try_current()) else {
            return self.disconnect(id);
        };
        // All topics are looked through for those that it served.
        runtime.spawn(async move {
            let entry = Arc::clone(&names.entry).write_owned().await;
            let work = move || {
                let _entry = entry;
                names.disconnect(id);
            };
            // A panic is in the log.
            let _ = tokio::task::spawn_blocking(work).await;
        });
    }
}

#[cfg(test)]
pub(crate) mod tests;
