//! The broker: its state, and the one match on the request code.
//!
//! Requests come from `net` in bursts, one task a connection; handlers are synchronous and never block. What has to be waited
//! for (room in the log, the journal, a flush) is waited for in `serve`, after the handlers, so that a burst waits once.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use config::{BrokerSettings, StoreSettings};
use env::{Clock, Random};
use net::{Burst, Connection, Outgoing, Request, Service};
use protocol::code::{ResponseCode, request};
use protocol::delay::DelayLevels;
use store::journal::Table;
use store::{Store, StoreError};

use crate::delay::Delay;
use crate::hold::{Errand, Hold};
use crate::ids::Ids;
use crate::refusal::Refusal;
use crate::session::{Session, Work};
use crate::tables::{self, Rows};
use crate::topics::Topics;
use crate::{append, pull, retry, send, view};

/// What a broker is started with.
pub struct Start {
    /// `broker.conf`, the broker's part.
    pub settings: BrokerSettings,
    /// `broker.conf`, the store's part: limits that requests are checked against.
    pub store_settings: StoreSettings,
    /// Opened and recovered.
    pub store: Arc<Store>,
    /// `brokerIP1:listenPort`, resolved: it stands in every record as the store host and in every message id.
    pub advertised: SocketAddr,
    /// Where to register; may be empty.
    pub name_servers: Vec<String>,
    /// The time.
    pub clock: Clock,
    /// Chance.
    pub random: Random,
}

/// A running broker.
pub struct Broker {
    /// Live: request 25 replaces it. Load it once per request.
    pub(crate) settings: ArcSwap<BrokerSettings>,
    pub(crate) store_settings: ArcSwap<StoreSettings>,
    pub(crate) store: Arc<Store>,
    pub(crate) advertised: SocketAddr,
    pub(crate) name_servers: Vec<String>,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) delay_levels: DelayLevels,
    pub(crate) topics: Arc<Topics>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) delay: Arc<Delay>,
    pub(crate) ids: Ids,
}

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting.
    #[error("{0}")]
    Setting(String),
}

impl Broker {
    /// Loads what the journal holds, creates the system topics, and starts the tasks. Needs a running runtime.
    pub async fn start(start: Start) -> Result<Arc<Broker>, StartError> {
        let Start { settings, store_settings, store, advertised, name_servers, clock, random } = start;
        let delay_levels = DelayLevels::parse(&store_settings.message_delay_level)
            .map_err(|error| StartError::Setting(format!("messageDelayLevel: {error}")))?;
        let topics = Arc::new(Topics::load(Arc::clone(&store), clock.clone())?);
        topics.create_system_topics(&settings, &delay_levels);
        let broker = Arc::new(Broker {
            hold: Arc::new(Hold::new(clock.clone())),
            ids: Ids::new(advertised.ip(), clock.clone(), &random),
            delay: Arc::new(Delay::load(&store, &topics, delay_levels.max_level() as usize)?),
            settings: ArcSwap::from_pointee(settings),
            store_settings: ArcSwap::from_pointee(store_settings),
            store,
            advertised,
            name_servers,
            clock,
            random,
            delay_levels,
            topics,
        });
        broker.attach_tables();
        broker.store.journal().written().reached(broker.store.journal().position()).await;
        tokio::spawn(Arc::clone(&broker.hold).expire());
        tokio::spawn(crate::delay::deliver(Arc::clone(&broker)));
        Ok(broker)
    }

    /// From here on the journal asks the owners for the rows of a snapshot.
    fn attach_tables(&self) {
        let journal = self.store.journal();
        journal.attach(tables::TOPICS, Arc::clone(&self.topics) as Arc<dyn Table>);
        journal.attach(tables::DELAYS, Arc::clone(&self.delay) as Arc<dyn Table>);
        let topics = Arc::clone(&self.topics);
        let versions = Rows(move |f: &mut dyn FnMut(&[u8], &[u8])| {
            // Three numbers always serialise.
            f(tables::TOPICS_VERSION, &serde_json::to_vec(&topics.version()).unwrap_or_default());
        });
        journal.attach(tables::VERSIONS, Arc::new(versions));
    }

    /// How many pulls wait for a message.
    pub fn parked_pulls(&self) -> usize {
        self.hold.parked()
    }

    /// Stops the tasks, answers what is parked, and writes down how far delayed delivery got. Listeners stop before.
    pub async fn stop(&self) {
        self.delay.stop().await;
        self.hold.stop();
    }

    /// Does what others have laid into the connection's inbox.
    async fn run_errands(&self, session: &mut Session, out: &mut Outgoing) {
        for errand in session.inbox.take() {
            match errand {
                Errand::Pull(order, wake) => pull::resume(self, session, order, wake, out),
                Errand::Frames(frames) => out.extend(frames),
                Errand::Then(then) => then(self, session, out),
            }
        }
        if !session.sends.is_empty() {
            append::append(self, session, out).await;
        }
    }

    /// Answers one request. Sends are not seen here: `serve` gathers them.
    fn answer(&self, session: &mut Session, request: &Request<'_>, out: &mut Outgoing) {
        let answered = match request.header.code {
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => pull::pull(self, session, request, out),
            request::CONSUMER_SEND_MSG_BACK => retry::send_back(self, session, request, out),
            request::VIEW_MESSAGE_BY_ID => view::message_by_id(self, session, request, out),
            request::SEARCH_OFFSET_BY_TIMESTAMP => view::offset_by_time(self, session, request, out),
            request::GET_MAX_OFFSET => view::max_offset(self, session, request, out),
            request::GET_MIN_OFFSET => view::min_offset(self, session, request, out),
            request::GET_EARLIEST_MSG_STORETIME => view::earliest_store_time(self, session, request, out),
            code => Err(unsupported(code)),
        };
        if let Err(refusal) = answered {
            out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &(), &[]);
        }
    }
}

/// Code 3. What exists in RocketMQ and not yet here says so; the rest gets Apache's sentence, leading blank included.
fn unsupported(code: i32) -> Refusal {
    let feature = match code {
        request::END_TRANSACTION | request::CHECK_TRANSACTION_STATE => Some("transaction messages"),
        request::POP_MESSAGE
        | request::ACK_MESSAGE
        | request::BATCH_ACK_MESSAGE
        | request::PEEK_MESSAGE
        | request::CHANGE_MESSAGE_INVISIBLETIME
        | request::NOTIFICATION
        | request::POLLING_INFO => Some("pop consumption"),
        request::RECALL_MESSAGE => Some("timer messages"),
        request::SEND_REPLY_MESSAGE | request::SEND_REPLY_MESSAGE_V2 => Some("request-reply messages"),
        _ => None,
    };
    let remark = match feature {
        Some(feature) => format!(" request type {code} not supported: this broker has no {feature} yet"),
        None => format!(" request type {code} not supported"),
    };
    Refusal::new(ResponseCode::RequestCodeNotSupported, remark)
}

impl Service for Broker {
    type Session = Session;
    type Work = Work;

    fn open(&self, connection: &Connection<Work>) -> Session {
        Session::open(connection)
    }

    async fn serve(&self, session: &mut Session, burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            match request.header.code {
                request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
                    if let Err(refusal) = send::gather(self, session, &request) {
                        send::refuse(self, &request, &refusal, out);
                    }
                    if session.sends.is_full() {
                        append::append(self, session, out).await;
                    }
                }
                _ => {
                    // A request that follows a send on its connection sees what the send did.
                    if !session.sends.is_empty() {
                        append::append(self, session, out).await;
                    }
                    self.answer(session, &request, out);
                }
            }
        }
        if !session.sends.is_empty() {
            append::append(self, session, out).await;
        }
        self.run_errands(session, out).await;
        session.durable(self).await;
    }

    async fn resume(&self, session: &mut Session, work: Work, out: &mut Outgoing) {
        match work {
            Work::Errands => self.run_errands(session, out).await,
        }
        session.durable(self).await;
    }

    fn close(&self, session: Session) {
        session.close(self);
    }
}
