//! In what order the parts of a broker start and stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwap;
use config::{BrokerSettings, StoreSettings};
use env::{Clock, Random};
use journal::Table;
use net::ClientOptions;
use parking_lot::Mutex;
use protocol::delay::DelayLevels;
use store::{Store, StoreError};

use crate::beside::Beside;
use crate::broker::Broker;
use crate::client::register;
use crate::delay::{self, Delay};
use crate::exchange::{Exchange, ExchangeError, When};
use crate::ids::Ids;
use crate::limits::Limits;
use crate::lite::Lite;
use crate::pop::{self, Pops};
use crate::refusal::Refusal;
use crate::state::clients::Clients;
use crate::state::cold_limits::ColdLimits;
use crate::state::conditions::Conditions;
use crate::state::configuration::Configuration;
use crate::state::filters::Filters;
use crate::state::groups::Groups;
use crate::state::offsets::{Offsets, after_loss, rows};
use crate::state::order_locks::OrderLocks;
use crate::state::placement::Placement;
use crate::state::registry::Registry;
use crate::state::repeats::Repeats;
use crate::state::role::Standing;
use crate::state::stats::Stats;
use crate::state::topics::Topics;
use crate::state::topics::of_another::OfAnother;
use crate::static_topic::forward::Forward;
use crate::tasks::Tasks;
use crate::timer::{self, Timers};
use crate::transaction::{self, Transactions};
use crate::unheard::Unheard;
use crate::unreadable::Unreadable;
use crate::vital::vital;
use crate::waiting::hold::Hold;
use crate::write::acknowledgements::acknowledge;
use crate::{protect, tables, upkeep};

/// Longer than a batch of delayed messages waits for room in the log.
const LAST_DELIVERY: Duration = Duration::from_secs(10);

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
    /// How the name servers are called.
    pub calls: ClientOptions,
    /// All settings with their origins, for requests that show or change them.
    pub configuration: config::Settings,
    /// The file that changed settings are written to, if there is one.
    pub config_file: Option<PathBuf>,
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
    Exchange(#[from] ExchangeError),
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// What has to be written before anybody is served cannot be written.
    #[error("{}", .0.remark)]
    Refused(Refusal),
}

impl Broker {
    /// Loads what the journal holds, creates the system topics, and starts the tasks. Needs a running runtime.
    pub async fn start(start: Start) -> Result<Arc<Broker>, StartError> {
        let broker = Broker::load(start)?;
        after_loss::cut(&broker);
        let timeout_ms = broker.settings.load().transaction_time_out;
        let kept_ms = transaction::kept_ms(&broker.store_settings.load());
        broker.transactions.load(&broker.store, &broker.offsets, timeout_ms, kept_ms, broker.clock.now().0)?;
        pop::settle_revived(&broker)?;
        pop::take_over(&broker).await?;
        broker.pops.begin(broker.clock.now().0);
        transaction::mend(&broker).await.map_err(StartError::Refused)?;
        let registry = Arc::clone(&broker.registry);
        broker.topics.on_change(Box::new(move |config| registry.topic_changed(&config.topic_name)));
        protect::begin(&broker);
        broker.store.journal().written().reached(broker.store.journal().position()).await;
        tokio::spawn(vital("acknowledgements", acknowledge(Arc::clone(&broker))));
        tokio::spawn(vital("parked pulls", Arc::clone(&broker.hold).expire()));
        tokio::spawn(vital("delayed delivery", delay::deliver(Arc::clone(&broker))));
        tokio::spawn(vital("timer messages", timer::deliver(Arc::clone(&broker))));
        tokio::spawn(vital("waiting pops", Arc::clone(&broker.hold.rooms).expire()));
        tokio::spawn(vital("leases", pop::revive(Arc::clone(&broker))));
        tokio::spawn(vital("transactions", transaction::ask(Arc::clone(&broker))));
        broker.beside.start(&broker);
        upkeep::start(&broker);
        Ok(broker)
    }

    /// Writes `config/*.json` as the journal has them, after taking over what another broker has written there, and ends. After a crash
    /// offsets go no further than what is left of their queues, as at a start. Nothing is served or delivered. Needs a running runtime.
    pub async fn write_configuration(start: Start) -> Result<(), StartError> {
        let broker = Broker::load(start)?;
        // What lies behind the end of its queue now, a broker that takes over would believe.
        after_loss::cut(&broker);
        rows::put(&broker.store, &broker.offsets);
        broker.store.journal().written().reached(broker.store.journal().position()).await;
        broker.exchange.export(&broker, When::Changed).await?;
        Ok(broker.exchange.export_timer_counts(&broker).await?)
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
            clock,
            random,
        } = start;
        let delay_levels = DelayLevels::parse(&store_settings.message_delay_level)
            .map_err(|error| StartError::Setting(format!("messageDelayLevel: {error}")))?;
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
        let registry = Arc::new(Registry::new(&name_servers, calls));
        let lite = Arc::new(Lite::new(&hold, clock.clone(), random.clone()));
        let config_folder = store.options().root.join("config");
        let broker = Arc::new(Broker {
            transactions: Arc::new(Transactions::new(&topics)),
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
            configuration: Configuration::new(configuration, config_file),
            exchange: Arc::new(Exchange::load(config_folder, &store)),
            forward: Arc::new(Forward::new(Arc::clone(&registry), clock.clone())),
            commits: Arc::default(),
            standing: Standing::of(&settings),
            registry,
            routes: Arc::default(),
            placement: Placement::default(),
            ha_address: format!("{}:{}", settings.broker_ip2, settings.ha_listen_port),
            limits: Limits::default(),
            unreadable: Unreadable::default(),
            has_told_of_unknown_needs: AtomicBool::new(false),
            unheard: Unheard::default(),
            cold_limits: ColdLimits::default(),
            log_end_at_start: store.end(),
            repeats: Repeats::new(settings.repeated_send_window_millis, settings.repeated_sends_max),
            beside: Beside::new(),
            upkeep: Tasks::new(),
            registering: Tasks::new(),
            pops: Arc::new(Pops::load(&store, &topics)),
            hold,
            ids: Ids::new(advertised.ip(), clock.clone(), &random),
            delay: Arc::new(Delay::load(&store, &topics, delay_levels.max_level() as usize)?),
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
        for sentence in broker.exchange.import(&broker)? {
            tracing::info!("{sentence}");
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
        pop::attach(journal, &self.pops);
        upkeep::attach(self);
    }

    /// Leaves the name servers, while everybody is served on. `stop` does it if nobody did.
    pub async fn unregister(&self) {
        register::unregister(self).await;
    }

    /// Stops the tasks, answers what is parked, and writes down how far delayed delivery got. Listeners stop before. An error if
    /// `config/*.json` could not be written as the journal has them; all else is done then, too.
    pub async fn stop(&self) -> Result<(), ExchangeError> {
        self.beside.stop().await;
        let delivery = async {
            self.delay.stop().await;
            if let Some(timers) = &self.timers {
                timers.stop().await;
            }
            self.transactions.stop().await;
            self.pops.stop().await;
        };
        if tokio::time::timeout(LAST_DELIVERY, delivery).await.is_err() {
            tracing::warn!(
                "delivery of delayed messages, or the task of transactions or leases, does not end, going on without"
            );
        }
        self.acknowledgements.stop();
        self.hold.stop();
        match tokio::time::timeout(LAST_DELIVERY, pop::hand_over(self)).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => {
                tracing::warn!(remark = refusal.remark, "leases are not handed over; the journal holds them")
            }
            Err(_) => tracing::warn!("handing over leases does not end, going on without; the journal holds them"),
        }
        upkeep::stop(self).await
    }
}
