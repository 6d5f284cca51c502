//! Which tasks a broker has in which role, in what order they start and stop, and what a start loads before.

use std::future::ready;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use config::{BrokerSettings, StoreSettings};
use env::{Clock, Random};
use journal::Table;
use net::{ClientOptions, Port};
use parking_lot::Mutex;
use protocol::delay::DelayLevels;
use replica::lag::Slaves;
use store::{Store, StoreError};
use tokio::sync::watch;

use crate::beside::{self, Beside};
use crate::broker::Broker;
use crate::client::register;
use crate::config_files::{ConfigFiles, ConfigFilesError, When};
use crate::delay::{self, Delay};
use crate::ids::Ids;
use crate::limits::Limits;
use crate::lite::{self, Lite};
use crate::master;
use crate::oneway_refusals::OnewayRefusals;
use crate::pop::{self, Pops};
use crate::refusal::Refusal;
use crate::state::clients::Clients;
use crate::state::cold_limits::ColdLimits;
use crate::state::conditions::Conditions;
use crate::state::configuration::Configuration;
use crate::state::copies::{self, Copies};
use crate::state::filters::Filters;
use crate::state::following::Following;
use crate::state::groups::Groups;
use crate::state::journal_copies::JournalCopies;
use crate::state::log_port::{LogPort, feed_options, follow_options};
use crate::state::master_journal::MasterJournal;
use crate::state::members::Members;
use crate::state::needs::Needs;
use crate::state::offsets::{Offsets, after_loss, rows};
use crate::state::order_locks::OrderLocks;
use crate::state::owed::Owed;
use crate::state::placement::Placement;
use crate::state::registry::Registry;
use crate::state::repeats::Repeats;
use crate::state::role::{Role, Standing};
use crate::state::slave_places::SlavePlaces;
use crate::state::stats::Stats;
use crate::state::switch::Switch;
use crate::state::to_master::ToMaster;
use crate::state::topics::Topics;
use crate::state::topics::of_another::OfAnother;
use crate::static_topic::clean;
use crate::static_topic::forward::Forward;
use crate::tasks::{Stop, Tasks};
use crate::timer::{self, Timers};
use crate::transaction::{self, Transactions};
use crate::unreadable::Unreadable;
use crate::waiting::hold::Hold;
use crate::write::acknowledgements::acknowledge;
use crate::write::placement;
use crate::{housekeeping, retention_floor, slave, switch, tables, to_master};

/// Longer than a batch of delayed messages waits for room in the log.
const LAST_DELIVERY: Duration = Duration::from_secs(10);
/// Longer than a last export, a last good-bye, and a step of a request that nobody waits for any more take.
const LAST_WORK: Duration = Duration::from_secs(5);

/// What a broker is started with.
pub struct Start {
    /// `broker.conf`, the broker's part.
    pub settings: BrokerSettings,
    /// `broker.conf`, the store's part: limits that requests are checked against.
    pub store_settings: StoreSettings,
    /// Opened and recovered.
    pub store: Arc<Store>,
    /// `brokerIP1:listenPort`, resolved: it stands in every record as the store host and in every
    /// message id.
    pub advertised: SocketAddr,
    /// Where to register; may be empty.
    pub name_servers: Vec<String>,
    /// How the name servers are called.
    pub calls: ClientOptions,
    /// All settings with their origins, for requests that show or change them.
    pub configuration: config::Settings,
    /// The file that changed settings are written to, if there is one.
    pub config_file: Option<PathBuf>,
    /// Where a master gives its log to slaves (`haListenPort`), bound; none: nowhere. A slave does not use it.
    pub log_port: Option<Port>,
    /// The time.
    pub clock: Clock,
    /// Chance.
    pub random: Random,
}

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// RocketMQ's JSON files.
    #[error(transparent)]
    Exchange(#[from] ConfigFilesError),
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// Another broker of the set is master with a later epoch. The journal says that this one is a slave: start again, with the role that is in force.
    #[error("the broker at {master} is the master of this set, in epoch {epoch}")]
    Deposed {
        /// Its main port.
        master: String,
        /// Its epoch.
        epoch: u64,
    },
    /// What has to be written before anybody is served cannot be written.
    #[error("{}", .0.remark)]
    Refused(Refusal),
}

/// A task of the broker, which can be started, told to end and started again.
struct Duty {
    /// It is known by that in the log, too.
    name: &'static str,
    /// In which roles it runs.
    roles: &'static [Role],
    ends: Ends,
    /// Reads from the log and the journal what the task needs. All that start together are loaded before the first of them runs.
    load: fn(Arc<Broker>) -> Loading,
    run: fn(Arc<Broker>, Stop) -> Working,
}

type Loading = Pin<Box<dyn Future<Output = Result<(), StartError>> + Send>>;
type Working = Pin<Box<dyn Future<Output = ()> + Send>>;

/// In what order duties end. Those of one step end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Connections have ended by now, and with them what their requests still do.
    WithRequests,
    /// They append until they end.
    WithPromises,
    /// They answer those that wait for an append.
    WithWaits,
    /// Clients look for another broker from then on.
    WithRegistration,
    /// Nobody changes anything any more.
    Last,
    /// Nothing is appended any more. Slaves get what they have not.
    WithLog,
}

impl Ends {
    /// All but [`Ends::WithLog`], which is the last.
    const BEFORE_LOG: [Ends; 5] =
        [Ends::WithRequests, Ends::WithPromises, Ends::WithWaits, Ends::WithRegistration, Ends::Last];

    /// How long a stop waits for them.
    fn limit(self) -> Duration {
        match self {
            Ends::WithPromises => LAST_DELIVERY,
            Ends::WithRequests | Ends::WithWaits | Ends::WithRegistration | Ends::Last | Ends::WithLog => LAST_WORK,
        }
    }
}

const ALL: &[Role] = &[Role::Master, Role::ActingMaster, Role::Slave];
/// What waits is delivered, and clients commit and pop.
const DELIVERING: &[Role] = &[Role::Master, Role::ActingMaster];
const MASTER: &[Role] = &[Role::Master];
const SLAVE: &[Role] = &[Role::Slave];

/// A duty that loads nothing.
const fn duty(name: &'static str, roles: &'static [Role], ends: Ends, run: fn(Arc<Broker>, Stop) -> Working) -> Duty {
    Duty { name, roles, ends, load: |_| Box::pin(ready(Ok(()))), run }
}

/// All tasks of the broker, in the order in which they start.
const DUTIES: &[Duty] = &[
    duty("acknowledgements", ALL, Ends::WithWaits, |broker, stop| Box::pin(acknowledge(broker, stop))),
    duty("copies", MASTER, Ends::WithWaits, |broker, stop| {
        Box::pin(copies::keep_judging(Arc::clone(&broker.copies), stop))
    }),
    duty("parked pulls", ALL, Ends::WithWaits, |broker, stop| Box::pin(Arc::clone(&broker.hold).expire(stop))),
    Duty {
        name: "delayed delivery",
        roles: DELIVERING,
        ends: Ends::WithPromises,
        load: |broker| Box::pin(async move { Ok(delay::load(&broker).await?) }),
        run: |broker, stop| Box::pin(delay::deliver(broker, stop)),
    },
    Duty {
        name: "timer messages",
        roles: DELIVERING,
        ends: Ends::WithPromises,
        load: |broker| Box::pin(async move { Ok(timer::load(&broker).await?) }),
        run: |broker, stop| Box::pin(timer::deliver(broker, stop)),
    },
    duty("waiting pops", ALL, Ends::WithWaits, |broker, stop| Box::pin(Arc::clone(&broker.hold.pops).expire(stop))),
    Duty {
        name: "leases",
        roles: DELIVERING,
        ends: Ends::WithPromises,
        load: |broker| Box::pin(async move { Ok(pop::load(&broker).await?) }),
        run: |broker, stop| Box::pin(pop::revive(broker, stop)),
    },
    Duty {
        name: "transactions",
        roles: DELIVERING,
        ends: Ends::WithPromises,
        load: |broker| {
            Box::pin(async move {
                transaction::load(&broker).await?;
                transaction::mend(&broker).await.map_err(StartError::Refused)
            })
        },
        run: |broker, stop| Box::pin(transaction::ask(broker, stop)),
    },
    duty("requests for the master", ALL, Ends::WithWaits, |broker, stop| Box::pin(to_master::run(broker, stop))),
    duty("requests beside", ALL, Ends::WithRequests, |broker, stop| Box::pin(beside::serve(broker, stop))),
    duty("offsets", ALL, Ends::Last, |broker, stop| Box::pin(housekeeping::keep_offsets(broker, stop))),
    duty("throughput", ALL, Ends::Last, |broker, stop| Box::pin(housekeeping::watch_throughput(broker, stop))),
    duty("housekeeping", ALL, Ends::Last, |broker, stop| Box::pin(housekeeping::keep_house(broker, stop))),
    duty("configuration files", ALL, Ends::Last, |broker, stop| Box::pin(housekeeping::keep_files(broker, stop))),
    duty("lite topics", MASTER, Ends::Last, |broker, stop| Box::pin(lite::keep(broker, stop))),
    duty("events of lite topics", DELIVERING, Ends::Last, |broker, stop| Box::pin(lite::dispatch(broker, stop))),
    duty("mappings of static topics", MASTER, Ends::Last, |broker, stop| Box::pin(clean::keep(broker, stop))),
    duty("placement of topics", MASTER, Ends::Last, |broker, stop| Box::pin(placement::run(broker, stop))),
    duty("places of slaves", MASTER, Ends::Last, |broker, stop| {
        Box::pin(retention_floor::keep_slave_places(broker, stop))
    }),
    duty("members of the set", MASTER, Ends::Last, |broker, stop| Box::pin(master::keep_members(broker, stop))),
    duty("masters with a later epoch", MASTER, Ends::Last, |broker, stop| {
        Box::pin(switch::rivals::watch(broker, stop))
    }),
    duty("switches of masters", ALL, Ends::Last, |broker, stop| Box::pin(switch::run(broker, stop))),
    duty("log for slaves", MASTER, Ends::WithLog, |broker, stop| Box::pin(master::serve(broker, stop))),
    duty("copy of the log", SLAVE, Ends::WithPromises, |broker, stop| Box::pin(slave::follow(broker, stop))),
    duty("readers of the copy", SLAVE, Ends::WithWaits, |broker, stop| Box::pin(slave::wake_readers(broker, stop))),
    duty("journal of the master", SLAVE, Ends::WithPromises, |broker, stop| {
        Box::pin(slave::follow_journal(broker, stop))
    }),
    duty("tables of the master", SLAVE, Ends::WithPromises, |broker, stop| Box::pin(slave::keep_tables(broker, stop))),
    duty("registration", ALL, Ends::WithRegistration, |broker, stop| Box::pin(register::keep_registered(broker, stop))),
];

impl Broker {
    /// Loads what the journal holds, creates the system topics, and starts the tasks. Needs a
    /// running runtime.
    pub async fn start(start: Start) -> Result<Arc<Broker>, StartError> {
        let broker = Broker::load(start)?;
        if let Some(rival) = switch::rivals::at_start(&broker).await {
            return Err(StartError::Deposed { master: rival.address, epoch: rival.epoch });
        }
        broker.cut_after_loss().await;
        let begun = broker.switch.begin(broker.store.journal(), broker.store.end()).await;
        begun.map_err(|error| StartError::Setting(format!("the role of this broker is {error}")))?;
        let registry = Arc::clone(&broker.registry);
        broker.topics.on_change(Box::new(move |config| registry.topic_changed(&config.topic_name)));
        broker.begin_duties().await?;
        // Behind what is loaded: files of the log that a scan reads stay.
        retention_floor::begin(&broker);
        Ok(broker)
    }

    /// Takes offsets, leases and delays back to what a crash has left of their queues.
    async fn cut_after_loss(&self) {
        let Broker { standing, store, topics, offsets, pops, delay, .. } = self;
        let cut = after_loss::cut(*standing, store, topics, offsets, pops, delay);
        if cut.is_some() || self.store.may_have_lost() {
            // Of a slave: the master's journal has what was taken back, and what rows say of lost messages is not so, and it does not tell it again.
            self.master_journal.forget_place();
        }
        if let Some(position) = cut {
            self.store.journal().mark_of(position, true).reached(position).await;
        }
    }

    /// Starts the duties of the broker's role that do not run.
    pub async fn begin_duties(self: &Arc<Broker>) -> Result<(), StartError> {
        let role = self.standing.role;
        let is_due = |duty: &&Duty| duty.roles.contains(&role) && !self.tasks.has(duty.name);
        let starting: Vec<&Duty> = DUTIES.iter().filter(is_due).collect();
        for duty in &starting {
            (duty.load)(Arc::clone(self)).await?;
        }
        self.store.journal().written().reached(self.store.journal().position()).await;
        for duty in starting {
            self.tasks.run(duty.name, |stop| (duty.run)(Arc::clone(self), stop));
        }
        Ok(())
    }

    /// Ends all duties, one step of [`Ends`] after the other. [`Broker::begin_duties`] starts them again, from what the log and the journal say then.
    pub async fn end_duties(&self) {
        self.end_duties_before_log().await;
        self.end_step(Ends::WithLog).await;
    }

    async fn end_duties_before_log(&self) {
        for step in Ends::BEFORE_LOG {
            self.end_step(step).await;
        }
    }

    async fn end_step(&self, step: Ends) {
        let names: Vec<&'static str> = DUTIES.iter().filter(|duty| duty.ends == step).map(|duty| duty.name).collect();
        self.tasks.end(&names, step.limit()).await;
    }

    /// Writes `config/*.json` as the journal has them, after taking over what another broker has written there, and ends. After a crash
    /// offsets go no further than what is left of their queues, as at a start. Nothing is served or delivered. Needs a running runtime.
    pub async fn write_configuration(start: Start) -> Result<(), StartError> {
        let broker = Broker::load(start)?;
        // What lies behind the end of its queue now, a broker that takes over would believe.
        broker.cut_after_loss().await;
        rows::put(&broker.store, &broker.offsets);
        broker.store.journal().written().reached(broker.store.journal().position()).await;
        broker.config_files.export(&broker, When::Changed).await?;
        Ok(broker.config_files.export_timer_counts(broker.timers.as_deref()).await?)
    }

    /// What the journal and `config/*.json` say, without a task.
    fn load(start: Start) -> Result<Arc<Broker>, StartError> {
        let Start {
            settings,
            store_settings,
            store,
            advertised,
            name_servers,
            calls,
            configuration,
            config_file,
            log_port,
            clock,
            random,
        } = start;
        let delay_levels = delay_levels_of(&store_settings)?;
        let topics = Arc::new(Topics::load(&store, clock.clone()));
        let names = OfAnother::before(&topics, &settings);
        topics.create_system_topics(&settings, &delay_levels);
        let groups = Groups::load(&store, clock.clone(), settings.auto_create_subscription_group);
        let offsets = Offsets::new(clock.clone());
        rows::load(&store, &offsets, clock.now());
        let timers = store_settings
            .timer_wheel_enable
            .then(|| Timers::load(&store, &topics, &store_settings, clock.now().0).map(Arc::new))
            .transpose()?;
        let (error_percent, consumers) =
            (settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter);
        let conditions = Conditions::load(&store, error_percent, consumers, clock.now().0)
            .map_err(|error| StartError::Setting(error.to_string()))?;
        let hold = Arc::new(Hold::new(clock.clone()));
        let to_master = ToMaster::new(calls.clone(), frame_bytes_max(&configuration)?);
        let registry = Arc::new(Registry::new(&name_servers, calls));
        let lite = Arc::new(Lite::new(&hold, clock.clone(), random.clone()));
        let (slaves, slave_places) = slaves_before(&store, &clock);
        let broker = Arc::new(Broker {
            transactions: Arc::new(Transactions::new(&store, &topics)),
            timers,
            groups: Arc::new(groups),
            offsets: Arc::new(offsets),
            clients: Clients::new(),
            conditions: Arc::new(conditions),
            filters: Filters::default(),
            untold: Mutex::default(),
            lite,
            order_locks: OrderLocks::new(settings.rebalance_lock_max_live_time, clock.clone()),
            stats: Stats::new(clock.clone(), store.has_light_queues() && !settings.enable_lmq_stats),
            switch: Arc::new(Switch::load(&store, &configuration, Standing::of(&settings))),
            configuration: Configuration::new(configuration, config_file),
            config_files: Arc::new(ConfigFiles::load(store.options().root.join("config"), &store)),
            forward: Arc::new(Forward::new(Arc::clone(&registry), clock.clone())),
            commits: Arc::default(),
            owed: Arc::new(Owed::load(&store, Standing::of(&settings).is_slave())),
            to_master,
            standing: Standing::of(&settings),
            following: Following::new(&settings),
            master_journal: Arc::new(MasterJournal::load(&store, Standing::of(&settings).is_slave())),
            registry,
            routes: Arc::default(),
            placement: Placement::default(),
            ha_address: format!("{}:{}", settings.broker_ip2, settings.ha_listen_port.0),
            log_port: log_port.map(LogPort::new),
            copies: Copies::new(&store, &slaves, clock.clone(), &store_settings),
            slaves,
            slave_places,
            feeding: watch::Sender::new(feed_options(&settings)),
            copying: watch::Sender::new(follow_options(&settings)),
            members: Members::default(),
            limits: Limits::default(),
            unreadable: Unreadable::default(),
            needs: Needs::default(),
            oneway_refusals: OnewayRefusals::default(),
            cold_limits: ColdLimits::default(),
            log_end_at_start: store.end(),
            repeats: Repeats::new(settings.repeated_send_window_millis, settings.repeated_sends_max),
            beside: Beside::new(),
            tasks: Tasks::default(),
            pops: Arc::new(Pops::load(&store, &topics)),
            hold,
            ids: Ids::new(advertised.ip(), clock.clone(), &random),
            delay: Arc::new(Delay::load(&store, &topics, delay_levels.max_level() as usize)?),
            journal_copies: Arc::new(JournalCopies::new(&random, clock.now())),
            settings: ArcSwap::from_pointee(settings),
            store_settings: ArcSwap::from_pointee(store_settings),
            store,
            advertised,
            clock,
            random,
            delay_levels,
            topics,
            acknowledgements: Arc::default(),
        });
        broker.attach_tables();
        for sentence in broker.config_files.import(&broker)? {
            tracing::info!("{sentence}");
            // What another broker has made of the tables is not what the master's journal had.
            broker.master_journal.forget_place();
        }
        for sentence in names.found(&broker.topics) {
            tracing::warn!("{sentence}");
        }
        rows::put(&broker.store, &broker.offsets);
        Ok(broker)
    }

    /// From here on the journal asks the owners for the rows of a snapshot.
    fn attach_tables(&self) {
        let journal = self.store.journal();
        journal.attach(tables::TOPICS, Arc::clone(&self.topics) as Arc<dyn Table>);
        journal.attach(tables::DELAYS, Arc::clone(&self.delay) as Arc<dyn Table>);
        journal.attach(tables::CHECKS, Arc::clone(&self.transactions) as Arc<dyn Table>);
        if let Some(timers) = &self.timers {
            journal.attach(tables::TIMERS, Arc::clone(timers) as Arc<dyn Table>);
        }
        journal.attach(tables::MASTER_JOURNAL, Arc::clone(&self.master_journal) as Arc<dyn Table>);
        journal.attach(tables::SLAVE_PLACES, Arc::clone(&self.slave_places) as Arc<dyn Table>);
        pop::attach(journal, &self.pops);
        housekeeping::attach(self);
    }

    /// Leaves the name servers, while everybody is served on. `stop` does it if nobody did.
    pub async fn unregister(&self) {
        self.end_step(Ends::WithRegistration).await;
    }

    /// Stops the tasks, answers what is parked, and writes down how far delayed delivery got.
    /// Listeners stop before. An error if `config/*.json` could not be written as the journal has
    /// them; all else is done then, too.
    pub async fn stop(&self) -> Result<(), ConfigFilesError> {
        self.end_duties_before_log().await;
        let handed_over = async {
            // It would append to a copy.
            if self.standing.is_slave() || self.switch.is_fenced() { Ok(()) } else { pop::hand_over(self).await }
        };
        match tokio::time::timeout(LAST_DELIVERY, handed_over).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => {
                tracing::warn!(remark = refusal.remark, "leases are not handed over; the journal holds them")
            }
            Err(_) => tracing::warn!("handing over leases does not end, going on without; the journal holds them"),
        }
        self.end_step(Ends::WithLog).await;
        housekeeping::finish(self).await
    }
}

/// The slaves that a master had before, with their places in its log.
fn slaves_before(store: &Arc<Store>, clock: &Clock) -> (Arc<Slaves>, Arc<SlavePlaces>) {
    let (slaves, places) = (Slaves::of(store.end()), SlavePlaces::load(store));
    slaves.remember(&places.kept(), clock.elapsed());
    (Arc::new(slaves), Arc::new(places))
}

/// What the frame of a request may have here, and at the other brokers of the set.
fn frame_bytes_max(configuration: &config::Settings) -> Result<usize, StartError> {
    configuration.net().map(|net| net.frame_max_length).map_err(|error| StartError::Setting(error.to_string()))
}

/// The levels of `messageDelayLevel`.
fn delay_levels_of(settings: &StoreSettings) -> Result<DelayLevels, StartError> {
    DelayLevels::parse(&settings.message_delay_level)
        .map_err(|error| StartError::Setting(format!("messageDelayLevel: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Files below `folder` that say `what`, without their tests.
    fn files_with(folder: &Path, what: &str, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_with(&path, what, found);
            } else if fs::read_to_string(&path).unwrap().split("mod tests {").next().unwrap().contains(what) {
                found.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn each_task_of_the_broker_is_in_the_table() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let with = |what| {
            let mut found = BTreeSet::new();
            files_with(&source, what, &mut found);
            Vec::from_iter(found)
        };
        assert_eq!(with("tasks.run("), ["duties"]);
        // `beside/mod.rs` and `register.rs` share a duty among several tasks, which end with it.
        assert_eq!(with("run_critical("), ["critical", "mod", "register", "tasks"]);
        let names: BTreeSet<&str> = DUTIES.iter().map(|duty| duty.name).collect();
        assert_eq!(names.len(), DUTIES.len(), "two of one name");
    }

    #[test]
    fn a_slave_delivers_nothing_and_an_acting_master_delivers_what_waits() {
        let of = |role| DUTIES.iter().filter(move |duty| duty.roles.contains(&role)).map(|duty| duty.name);
        let of_a_slave: Vec<&str> =
            of(Role::Slave).filter(|name| !of(Role::Master).any(|other| other == *name)).collect();
        assert_eq!(
            of_a_slave,
            ["copy of the log", "readers of the copy", "journal of the master", "tables of the master"]
        );
        assert_eq!(of(Role::Master).count() + of_a_slave.len(), DUTIES.len());
        let more: Vec<&str> =
            of(Role::ActingMaster).filter(|name| !of(Role::Slave).any(|other| other == *name)).collect();
        let delivering = ["delayed delivery", "timer messages", "leases", "transactions", "events of lite topics"];
        assert_eq!(more, delivering);
    }
}
