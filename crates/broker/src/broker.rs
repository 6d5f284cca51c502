//! The broker: what it holds. `duties.rs` says in what order its parts start and stop.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use config::{BrokerSettings, StoreSettings};
use env::{Clock, Random};
use net::Budget;
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::delay::DelayLevels;
use replica::feed::FeedOptions;
use replica::follow::FollowOptions;
use replica::lag::Slaves;
use replica::wire::own::{self, Member};
use replica::wire::secret::Secret;
use store::Store;
use tokio::sync::watch;

use crate::beside::Beside;
use crate::client_handle::ClientHandle;
use crate::config_files::ConfigFiles;
use crate::delay::Delay;
use crate::ids::Ids;
use crate::limits::Limits;
use crate::lite::Lite;
use crate::oneway_refusals::OnewayRefusals;
use crate::pop::Pops;
use crate::state::clients::Clients;
use crate::state::cold_limits::ColdLimits;
use crate::state::conditions::Conditions;
use crate::state::configuration::Configuration;
use crate::state::copies::Copies;
use crate::state::filters::Filters;
use crate::state::following::Following;
use crate::state::groups::Groups;
use crate::state::journal_copies::JournalCopies;
use crate::state::log_port::LogPort;
use crate::state::master_journal::MasterJournal;
use crate::state::members::Members;
use crate::state::needs::Needs;
use crate::state::offsets::Offsets;
use crate::state::order_locks::OrderLocks;
use crate::state::owed::Owed;
use crate::state::placement::Placement;
use crate::state::registry::{Identity, Registry};
use crate::state::repeats::Repeats;
use crate::state::role::Standing;
use crate::state::routes::Routes;
use crate::state::slave_places::SlavePlaces;
use crate::state::stats::Stats;
use crate::state::switch::Switch;
use crate::state::to_master::ToMaster;
use crate::state::topics::Topics;
use crate::static_topic::forward::Forward;
use crate::static_topic::order::CommitsUnderWay;
use crate::tasks::Tasks;
use crate::timer::Timers;
use crate::transaction::Transactions;
use crate::unreadable::Unreadable;
use crate::waiting::hold::Hold;
use crate::write::acknowledgements::Acknowledgements;

/// A running broker.
pub struct Broker {
    /// Live: request 25 replaces it. Load it once per request.
    pub(crate) settings: ArcSwap<BrokerSettings>,
    pub(crate) store_settings: ArcSwap<StoreSettings>,
    pub(crate) store: Arc<Store>,
    pub(crate) advertised: SocketAddr,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) delay_levels: DelayLevels,
    pub(crate) topics: Arc<Topics>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    pub(crate) delay: Arc<Delay>,
    pub(crate) transactions: Arc<Transactions>,
    /// None with `timerWheelEnable=false`.
    pub(crate) timers: Option<Arc<Timers>>,
    pub(crate) pops: Arc<Pops>,
    pub(crate) ids: Ids,
    pub(crate) groups: Arc<Groups>,
    pub(crate) offsets: Arc<Offsets>,
    pub(crate) clients: Clients<ClientHandle>,
    pub(crate) conditions: Arc<Conditions>,
    pub(crate) filters: Filters,
    /// Groups whose members are told of a change with the next housekeeping. Guards nothing else.
    pub(crate) untold: Mutex<BTreeSet<Arc<str>>>,
    pub(crate) order_locks: OrderLocks,
    pub(crate) lite: Arc<Lite<ClientHandle>>,
    pub(crate) stats: Stats,
    pub(crate) configuration: Configuration,
    pub(crate) config_files: Arc<ConfigFiles>,
    pub(crate) standing: Standing,
    /// What becomes of that by hand.
    pub(crate) switch: Arc<Switch>,
    /// The master, if this is a slave.
    pub(crate) following: Following,
    /// What is known of that one's journal.
    pub(crate) master_journal: Arc<MasterJournal>,
    /// Offsets that clients have committed at this slave and that its master is still to have.
    pub(crate) owed: Arc<Owed>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) placement: Placement,
    pub(crate) forward: Arc<Forward>,
    /// Requests of clients that this broker passes on to the master of its set.
    pub(crate) to_master: ToMaster,
    /// The order of commits in logical queues.
    pub(crate) commits: Arc<CommitsUnderWay>,
    /// `brokerIP2:haListenPort`, told to name servers.
    pub(crate) ha_address: String,
    /// Where a master gives its log; none: nowhere.
    pub(crate) log_port: Option<LogPort>,
    /// The slaves of a master. A slave has none.
    pub(crate) slaves: Arc<Slaves>,
    /// The copies that slaves make of the journal.
    pub(crate) journal_copies: Arc<JournalCopies>,
    /// What acknowledgements of a master wait for on slaves.
    pub(crate) copies: Arc<Copies>,
    /// How they are fed. Changes with the settings.
    pub(crate) feeding: watch::Sender<FeedOptions>,
    /// How a slave follows. Changes with the settings.
    pub(crate) copying: watch::Sender<FollowOptions>,
    /// Which files the next start keeps for slaves.
    pub(crate) slave_places: Arc<SlavePlaces>,
    /// The brokers of this set, of which slaves may have the log.
    pub(crate) members: Members,
    pub(crate) limits: Limits,
    pub(crate) unreadable: Unreadable,
    pub(crate) needs: Needs,
    pub(crate) oneway_refusals: OnewayRefusals,
    pub(crate) cold_limits: ColdLimits,
    /// Where the log ended when this process began to serve it.
    pub(crate) log_end_at_start: LogOffset,
    pub(crate) repeats: Repeats,
    pub(crate) beside: Beside,
    /// What runs of `duties.rs`.
    pub(crate) tasks: Tasks,
}

impl Broker {
    /// How many pulls wait for a message.
    pub fn parked_pulls(&self) -> usize {
        self.hold.parked()
    }

    /// How many pops, and questions for something to pop, wait.
    pub fn waiting_pops(&self) -> usize {
        self.hold.pops.waiting()
    }

    /// Lets request 28 show what requests hold, and how many connections there are. For whoever opens the ports.
    pub fn show(&self, budget: Arc<Budget>, places: Arc<net::ConnectionSlots>) {
        self.limits.show(budget, places);
    }

    /// Whether clients may have heard of this broker: one name server at least has registered it since its start, or there are none.
    pub fn has_registered(&self) -> bool {
        self.registry.has_registered()
    }

    /// The slaves that are connected to this master, and how far they have come.
    pub fn slaves(&self) -> &Arc<Slaves> {
        &self.slaves
    }

    /// Waits until the log of this slave, which is empty, is to begin at a file of the master's. Then the broker is to be stopped and its store
    /// closed, let begin there ([`store::LogCopy::begin_at`]) and opened again.
    pub async fn begins_at(&self) -> LogOffset {
        self.following.begins_at().await
    }

    /// As whom it shows itself to the brokers of its set, between which the log goes.
    pub(crate) fn member(&self) -> Member {
        let Identity { cluster_name, broker_name, broker_id } = self.identity();
        let who = own::Identity { cluster: cluster_name, set: broker_name, broker_id };
        let secret = self.settings.load().replica_secret.as_ref().map(|secret| Secret::new(&secret.0));
        Member { who, secret }
    }

    /// What administrators have set since the process began, by key: for the next life of this broker in the process.
    pub fn requested_settings(&self) -> Vec<(&'static str, String)> {
        self.configuration.now.lock().settings.requested()
    }

    /// Waits until this broker is to be stopped, its store closed, and both started again: with another role ([`crate::role_in_force`]), or without the end of
    /// its log ([`Store::cut_on_reopen`]).
    pub async fn begins_anew(&self) {
        self.switch.begins_anew().await;
    }

    /// Whether this is the master of its set and has not given that up.
    pub fn is_master(&self) -> bool {
        self.standing.is_master() && !self.switch.is_fenced()
    }

    /// The identity that is registered at name servers.
    pub fn identity(&self) -> Identity {
        let settings = self.settings.load();
        Identity {
            cluster_name: settings.broker_cluster_name.clone(),
            broker_name: settings.broker_name.clone(),
            broker_id: self.standing.broker_id,
        }
    }
}
