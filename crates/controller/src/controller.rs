//! A running controller: what it holds, and the one match on the request code.
//!
//! The leader answers. Another controller passes a request on to it and its answer back, so that a
//! broker need not know which one leads; it answers 2007 where there is no leader.
//! Heartbeats (904) go to all of them, and each keeps its own table of those who live.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use disk::{Disk, RealDisk};
use env::Clock;
use net::{Burst, Client, ClientOptions, Connection, Outgoing, ReplyTo, Request, Service};
use parking_lot::Mutex;
use protocol::code::{RequestCode, ResponseCode};
use protocol::header::EncodeFields;
use protocol::requests_of;
use tracing::warn;

use crate::consensus::{Consensus, ConsensusError, ConsensusOptions, ProposeError};
use crate::duty;
use crate::elect::Health;
use crate::live::{Live, Who};
use crate::options::{Options, Peer};
use crate::requests;
use crate::state::{Command, Refusal, Set, State};

/// How long the leader may take for a request that was passed on.
const PASSED_ON: Duration = Duration::from_secs(5);
/// A controller that comes back is found at once.
const BACK_OFF_MAX: Duration = Duration::from_millis(200);
/// A field of a request that another controller has passed on, so that it goes no further.
const PASSED: &str = "gantryPassed";

/// A running controller.
pub struct Controller {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) live: Mutex<Live>,
    pub(crate) group: Arc<Consensus<State>>,
    /// Calls brokers, and the leader about what was asked here. The consensus has another one: what
    /// controllers say to each other does not wait behind it.
    pub(crate) client: Client,
    /// For work that outlives the call that begins it.
    pub(crate) myself: Weak<Controller>,
}

/// What is remembered about one connection.
pub struct Session {
    pub(crate) connection: Connection<()>,
    /// A heartbeat came by it.
    pub(crate) is_broker: bool,
}

impl Controller {
    /// Opens the store of the controller and joins the others. [`Controller::look_after`] has to be
    /// run beside. `calls` says how brokers and other controllers are called.
    ///
    /// # Errors
    /// The store cannot be opened, or is that of another group.
    pub async fn start(
        options: Options,
        calls: ClientOptions,
        clock: Clock,
    ) -> Result<Arc<Controller>, ConsensusError> {
        let calls = ClientOptions { back_off_max: BACK_OFF_MAX.min(calls.back_off_max), ..calls };
        let (client, to_peers) = (Client::new(calls.clone()), Client::new(calls));
        let mut peers = options.peers.clone();
        peers.sort_unstable();
        let number = |id: &str| peers.iter().position(|peer| peer.id == id).map_or(u64::MAX, |at| at as u64);
        let addresses = peers.iter().map(|peer| (number(&peer.id), peer.address.clone())).collect();
        let consensus = ConsensusOptions::new(&options.group, number(&options.self_id), addresses, &options.dir);
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let group = Consensus::start(consensus, State::default(), to_peers, clock.clone(), disk).await?;
        let mut live = Live::default();
        live.begin(clock.elapsed());
        Ok(Arc::new_cyclic(|myself| Controller {
            options,
            clock,
            live: Mutex::new(live),
            group,
            client,
            myself: Weak::clone(myself),
        }))
    }

    /// Elects masters in the place of dead ones. Ends only if the consensus does, which is a fault.
    pub async fn look_after(self: Arc<Controller>) {
        duty::run(&self).await;
    }

    /// Ends the controller's part in the group. What it has is on the device.
    pub async fn stop(&self) {
        self.group.stop().await;
    }

    /// The controller that leads.
    pub(crate) fn leader(&self) -> Option<&Peer> {
        let address = self.group.peers().get(&self.group.leader()?)?;
        self.options.peers.iter().find(|peer| peer.address == *address)
    }

    /// Has all controllers do something. Says how the set is behind it that it is about.
    ///
    /// # Errors
    /// It may not be; or this controller does not lead, or does not know what became of it (2007).
    pub(crate) async fn propose(&self, command: Command) -> Result<Set, Refusal> {
        // What may not be needs no entry in the log of the group.
        self.group.read(|state| state.check(&command))?;
        match self.group.propose(command).await {
            Ok(done) => done,
            Err(error @ ProposeError::Busy) => Err(Refusal::new(ResponseCode::SystemBusy, error.to_string())),
            Err(error @ (ProposeError::TooLong { .. } | ProposeError::Unreadable(_))) => {
                Err(Refusal::new(ResponseCode::ControllerInvalidRequest, error.to_string()))
            }
            Err(error @ (ProposeError::NotLeader { .. } | ProposeError::Late | ProposeError::Stopped)) => {
                Err(not_leader(Some(&error)))
            }
        }
    }

    /// What this controller knows of a broker.
    pub(crate) fn health(&self, broker_name: &str, broker_id: i64) -> Health {
        let (live, now) = (self.live.lock(), self.clock.elapsed());
        match live.report(broker_name, broker_id, now) {
            Some(report) => Health::Lives(report),
            None if live.is_dead(broker_name, broker_id, now) => Health::Dead,
            None => Health::Unknown,
        }
    }

    /// Whether a broker lives.
    pub(crate) fn lives(&self, broker_name: &str, broker_id: i64) -> bool {
        matches!(self.health(broker_name, broker_id), Health::Lives(_))
    }

    /// Takes those brokers out of the table that are in no set any more.
    pub(crate) fn forget_unknown(&self) {
        self.group.read(|state| self.live.lock().keep(|name, id| state.member(name, id).is_ok()));
    }

    async fn answer(&self, session: &mut Session, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
        let code = RequestCode::from_i32(asked.header.code).ok_or_else(|| unsupported(asked.header.code))?;
        if session.is_broker {
            self.live.lock().touch(session.connection.id(), self.clock.elapsed());
        }
        match code {
            RequestCode::BROKER_HEARTBEAT => requests::heartbeat(self, session, asked, out),
            RequestCode::CONTROLLER_GET_METADATA_INFO => requests::metadata(self, asked, out),
            RequestCode::GET_CONTROLLER_CONFIG => crate::settings::get(self, asked, out),
            RequestCode::RAFT_APPEND_ENTRIES | RequestCode::RAFT_VOTE | RequestCode::RAFT_INSTALL_SNAPSHOT => {
                self.of_group(asked, out).await
            }
            requests_of!(Controller) if !self.group.is_leader() => self.pass_on(asked, out).await,
            requests_of!(Controller) => {
                // One that has just become the leader may have to carry out what the last one answered.
                self.group.confirm_leader().await.map_err(|error| not_leader(Some(&error)))?;
                self.answer_as_leader(code, session, asked, out).await
            }
            // Of other programs.
            requests_of!(Broker)
            | requests_of!(NameServer)
            | requests_of!(Container)
            | requests_of!(Client)
            | requests_of!(Nobody) => Err(unsupported(code.number())),
        }
    }

    /// Answers what the leader alone may.
    async fn answer_as_leader(
        &self,
        code: RequestCode,
        session: &Session,
        asked: &Request<'_>,
        out: &mut Outgoing,
    ) -> Result<(), Refusal> {
        #[allow(clippy::wildcard_enum_match_arm, reason = "`answer` names those of other programs")]
        match code {
            RequestCode::CONTROLLER_ALTER_SYNC_STATE_SET => requests::alter_in_sync(self, asked, out).await,
            RequestCode::CONTROLLER_ELECT_MASTER => requests::elect(self, asked, out).await,
            RequestCode::CONTROLLER_REGISTER_BROKER => requests::register(self, session, asked, out).await,
            RequestCode::CONTROLLER_GET_REPLICA_INFO => requests::replica_info(self, asked, out),
            RequestCode::CONTROLLER_GET_SYNC_STATE_DATA => requests::sync_states(self, asked, out),
            RequestCode::UPDATE_CONTROLLER_CONFIG => crate::settings::update(self, asked, out).await,
            RequestCode::CLEAN_BROKER_DATA => requests::clean(self, asked, out).await,
            RequestCode::CONTROLLER_GET_NEXT_BROKER_ID => requests::next_id(self, asked, out),
            RequestCode::CONTROLLER_APPLY_BROKER_ID => requests::apply_id(self, asked, out).await,
            _ => Err(unsupported(code.number())),
        }
    }

    /// What another controller sends, as its consensus says.
    async fn of_group(&self, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
        let answered = self.group.handle(asked.header.code, asked.body).await;
        let body = answered.map_err(|error| Refusal::new(ResponseCode::SystemError, error.to_string()))?;
        reply(out, asked.reply_to(), &(), &body)
    }

    /// Asks the leader, and answers what it answers.
    async fn pass_on(&self, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
        let is_passed = asked.header.fields.get(PASSED).is_some();
        let leader = self.leader().filter(|leader| leader.id != self.options.self_id && !is_passed);
        let Some(leader) = leader else { return Err(not_leader(None)) };
        let fields = (asked.header.fields, [(PASSED, "true")]);
        let body = Bytes::copy_from_slice(asked.body);
        match self.client.call(&leader.address, asked.header.code, &fields, body, PASSED_ON).await {
            Ok(answer) => {
                let code = ResponseCode::from_i32(answer.code).unwrap_or(ResponseCode::SystemError);
                out.reply(asked.reply_to(), code, answer.remark.as_deref(), &answer.fields.as_fields(), &answer.body);
                Ok(())
            }
            Err(error) => {
                warn!(leader = leader.address, code = asked.header.code, %error, "the leader does not answer");
                Err(not_leader(None))
            }
        }
    }

    /// A connection by which heartbeats came has ended: a broker whose port refuses another one is dead.
    fn probe(&self, connection: u64) {
        let whom: Vec<Who> = self.live.lock().disconnected(connection);
        for who in whom {
            let address = self.group.read(|state| state.member(&who.0, who.1).map(|member| member.address.clone()));
            let (Some(controller), Ok(address)) = (self.myself.upgrade(), address) else { continue };
            tokio::spawn(async move {
                duty::probe(&controller, &who, connection, &address).await;
            });
        }
    }
}

/// Code 3 in Apache's words, leading blank included.
fn unsupported(code: i32) -> Refusal {
    Refusal::new(ResponseCode::RequestCodeNotSupported, format!(" request type {code} not supported"))
}

/// 2007 in Apache's words, and why, where that is known.
fn not_leader(why: Option<&ProposeError>) -> Refusal {
    let said = "The controller is not in leader state";
    let remark = match why {
        Some(error) => format!("{said}: {error}"),
        None => said.to_owned(),
    };
    Refusal::new(ResponseCode::ControllerNotLeader, remark)
}

/// Refused, with the fields that RocketMQ's controller gives along.
pub(crate) fn refuse(asked: &Request<'_>, out: &mut Outgoing, refusal: &Refusal, fields: &dyn EncodeFields) {
    let code = ResponseCode::from_i32(refusal.code).unwrap_or(ResponseCode::SystemError);
    out.reply(asked.reply_to(), code, Some(&refusal.remark), fields, &[]);
}

/// Success, with a header and a body.
pub(crate) fn reply(out: &mut Outgoing, to: ReplyTo, fields: &dyn EncodeFields, body: &[u8]) -> Result<(), Refusal> {
    out.reply(to, ResponseCode::Success, None, fields, body);
    Ok(())
}

impl Service for Controller {
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
                refuse(&asked, out, &refusal, &());
            }
        }
    }

    async fn resume(&self, _session: &mut Session, _work: (), _out: &mut Outgoing) {}

    fn close(&self, session: Session) {
        if session.is_broker {
            self.probe(session.connection.id());
        }
    }
}
