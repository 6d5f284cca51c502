//! One life of the process: start what was ordered, say so, wait for a signal, and end in the order that loses nothing.
//!
//! End: the broker unregisters; ports stop accepting and finish what they hold; the broker writes its state down; the name server
//! goes; the store is flushed, check-pointed and closed.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use broker::{Broker, StartError};
use config::{BrokerRole, BrokerSettings, HaPort, Origin, Settings, StoreSettings};
use env::{Clock, Random, say};
use names::Names;
use net::{Budget, Closing, ConnectionSlots, Listener, ListenerOptions, ListenerTag, Port, Service};
use protocol::LogOffset;
use store::{LogCopy, Recovered, Store, StoreEnv, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{error, info, warn};

use crate::beginning::Beginning;
use crate::controller;
use crate::machine::Descriptors;
use crate::memory::Memory;
use crate::metrics::{self, Exporter, Exporting};
use crate::notify;
use crate::ports::{self, ForBroker, LogPort};
use crate::settings::{self, Order};

/// A file system with less room than this cannot take the first messages.
const ROOM_BYTES_MIN: u64 = 16 << 20;

/// Topics of which messages were cut off, by the log output; the rest is in the folder `cut`.
const TOPICS_TOLD: usize = 100;

/// Answers that wait for the device come within the time of a flush; this is for writing them, and for a last word.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Runs until a signal says stop.
pub async fn run(order: Order, memory: Memory) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut stop = StopSignals::listen()?;
    memory.tell();
    tokio::spawn(crate::log::sum_up());
    let descriptors = Descriptors::ours();
    let shared = Shared {
        budget: Arc::new(Budget::new(memory.request_bytes_max)),
        places: Arc::new(
            ConnectionSlots::new(descriptors.connections)
                .per_address(order.settings.net()?.connections_per_address_max),
        ),
    };
    let role = order.settings.role();
    let bind = order.settings.net()?.bind_address;
    let names_port = match role.has_names() {
        true => Some(ports::for_names(bind, order.names_port.0, &order.names_port.1)?),
        false => None,
    };
    let ports = match role.has_broker() {
        true => Some(BrokerPorts::bind(&order, order.settings.net()?.listen_port).await?),
        false => None,
    };

    let mut names = match names_port {
        Some(port) => Some(RunningNames::start(&order, port, &shared)?),
        None => None,
    };
    let mut controller = match order.settings.has_controller() {
        true => Some(controller::Running::start(&order.settings, &shared).await?),
        false => None,
    };
    let own_names = names.as_ref().map(|names| names.at);
    let life = Life { order: &order, own_names, shared: &shared, memory: &memory, descriptors };
    let mut broker = match ports {
        Some(ports) => Some(RunningBroker::begin(&life, ports, &[]).await?),
        None => None,
    };

    say_ready(
        names.as_ref().map(|names| names.at),
        controller.as_ref().map(|controller| controller.at),
        broker.as_ref().map(|broker| broker.advertised.as_str()),
    );
    let store = broker.as_ref().map(|broker| broker.beginning.to_string());
    info!(took_ms = began.elapsed().as_millis() as u64, version = env!("CARGO_PKG_VERSION"), store, "ready");
    notify::tell("READY=1");

    // A port that nobody serves any more looks like a broker that hangs: better to end, and be started again.
    let bug = loop {
        let running = broker.as_ref().map(|running| Arc::clone(&running.broker));
        let at = tokio::select! {
            why = stop.next() => {
                info!(signal = why, "stopping");
                break None;
            }
            bug = bug_in(names.as_mut(), controller.as_mut(), broker.as_mut()) => {
                error!(bug, "stopping");
                break Some(bug);
            }
            at = begins_anew(running) => at,
        };
        if let Some(running) = broker.take() {
            broker = Some(running.begin_anew(&life, at).await?);
        }
    };
    notify::tell("STOPPING=1");
    let ending = async {
        let ended = match broker {
            Some(broker) => broker.stop().await,
            None => Ok(()),
        };
        let controller_ended = match controller {
            Some(controller) => controller.stop().await,
            None => Ok(()),
        };
        if let Some(names) = names {
            names.stop().await;
        }
        ended.and(controller_ended)
    };
    tokio::select! {
        ended = ending => ended?,
        again = stop.next() => bail!("{again} came again before everything was written down: the next start recovers"),
    }
    info!("stopped");
    match bug {
        Some(bug) => bail!("{bug}: ended for it, in good order"),
        None => Ok(()),
    }
}

/// Ends only when something that should run as long as the process does not.
async fn bug_in(
    names: Option<&mut RunningNames>,
    controller: Option<&mut controller::Running>,
    broker: Option<&mut RunningBroker>,
) -> String {
    let in_names = async {
        match names {
            Some(names) => tokio::select! {
                bug = names.ports.bug() => bug,
                ended = &mut names.expiry => format!("the task that expires silent brokers ended: {ended:?}"),
            },
            None => pending().await,
        }
    };
    let in_broker = async {
        match broker {
            Some(broker) => broker.ports.bug().await,
            None => pending().await,
        }
    };
    let in_controller = async {
        match controller {
            Some(controller) => controller.bug().await,
            None => pending().await,
        }
    };
    tokio::select! {
        bug = in_names => bug,
        bug = in_controller => bug,
        bug = in_broker => bug,
    }
}

/// Waits until the broker is to be stopped and started again: the log of a slave is to begin elsewhere, or the role is another one.
async fn begins_anew(broker: Option<Arc<Broker>>) -> Option<LogOffset> {
    match broker {
        Some(broker) => tokio::select! {
            at = broker.begins_at() => Some(at),
            () = broker.begins_anew() => None,
        },
        None => pending().await,
    }
}

/// The one line for programs. A reader that went away is no reason to end.
fn say_ready(names: Option<SocketAddr>, controller: Option<SocketAddr>, broker: Option<&str>) {
    let mut line = "gantry: ready".to_owned();
    if let Some(at) = names {
        line.push_str(&format!(" namesrv={}", reachable(at)));
    }
    if let Some(at) = controller {
        line.push_str(&format!(" controller={}", reachable(at)));
    }
    if let Some(at) = broker {
        line.push_str(&format!(" broker={at}"));
    }
    let _ = say!("{line}");
}

/// All interfaces are reached through loopback from this machine.
fn reachable(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        ip if !ip.is_unspecified() => at,
        IpAddr::V4(_) => (Ipv4Addr::LOCALHOST, at.port()).into(),
        IpAddr::V6(_) => (std::net::Ipv6Addr::LOCALHOST, at.port()).into(),
    }
}

/// The two signals that mean "end in good order".
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<StopSignals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(StopSignals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Ports in use, and the word that ends them.
struct Ports {
    close: watch::Sender<Option<Closing>>,
    tasks: JoinSet<()>,
}

impl Ports {
    fn new() -> Ports {
        Ports { close: watch::Sender::new(None), tasks: JoinSet::new() }
    }

    /// Serves a port.
    fn serve<S: Service>(&mut self, listener: Listener<S>) {
        let mut close = self.close.subscribe();
        self.tasks.spawn(async move {
            listener
                .run_until(async move {
                    // An error means that the sender is gone, which is the end as well.
                    close.wait_for(Option::is_some).await.ok().and_then(|closing| *closing).unwrap_or(Closing::Ends)
                })
                .await;
        });
    }

    /// Ends only when a port is not served any more.
    async fn bug(&mut self) -> String {
        match self.tasks.join_next().await {
            Some(ended) => format!("a listener ended: {ended:?}"),
            None => pending().await,
        }
    }

    /// Stops accepting, and waits until all connections have finished or their time is over.
    async fn close(mut self, closing: Closing) {
        self.close.send_replace(Some(closing));
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a listener ended by a bug");
            }
        }
    }
}

/// What is bounded for all ports together, whichever of them something came by.
pub struct Shared {
    /// Everything that is in flight.
    budget: Arc<Budget>,
    /// Connections.
    places: Arc<ConnectionSlots>,
}

impl Shared {
    pub fn listener_options(&self, settings: &Settings, tag: ListenerTag) -> anyhow::Result<ListenerOptions> {
        Ok(ListenerOptions {
            budget: Arc::clone(&self.budget),
            places: Arc::clone(&self.places),
            ..settings::listener_options(settings, tag)?
        })
    }
}

struct RunningNames {
    at: SocketAddr,
    names: Arc<Names>,
    ports: Ports,
    expiry: JoinHandle<()>,
}

impl RunningNames {
    fn start(order: &Order, port: Port, shared: &Shared) -> anyhow::Result<RunningNames> {
        let calls = settings::client_options(&order.settings)?;
        let names = Names::new(settings::names_options(order)?, calls, Clock::real())?;
        let options = shared.listener_options(&order.settings, ListenerTag::MAIN)?;
        let mut ports = Ports::new();
        let listener = listen(port, options, &names)?;
        let at = listener.local_addr();
        ports.serve(listener);
        let expiry = tokio::spawn(Arc::clone(&names).expire());
        info!(address = %at, "name server listens");
        Ok(RunningNames { at, names, ports, expiry })
    }

    async fn stop(self) {
        self.expiry.abort();
        self.names.stop();
        self.ports.close(Closing::Ends).await;
    }
}

/// Where a broker is to be reached: bound, and listened at by nobody yet.
struct BrokerPorts {
    main: Port,
    vip: Option<Port>,
    log: Option<Port>,
    metrics: Option<Exporter>,
}

/// The ports at which clients are served, held from one life of a broker to the next: connections
/// that come meanwhile wait to be accepted.
struct HeldPorts {
    main: Port,
    vip: Option<Port>,
}

impl HeldPorts {
    fn of(main: &Port, vip: Option<&Port>) -> anyhow::Result<HeldPorts> {
        Ok(HeldPorts { main: main.again()?, vip: vip.map(Port::again).transpose()? })
    }

    fn again(&self) -> anyhow::Result<HeldPorts> {
        HeldPorts::of(&self.main, self.vip.as_ref())
    }

    /// With the others that a broker needs, bound anew.
    async fn with_others(self, order: &Order) -> anyhow::Result<BrokerPorts> {
        let settings = order.settings.broker()?;
        let port = self.main.local_addr().port();
        let log = port_in_force(None, &order.settings, &settings, port)?;
        Ok(BrokerPorts { main: self.main, vip: self.vip, log, metrics: metrics::prepare(&order.settings).await? })
    }
}

impl BrokerPorts {
    async fn bind(order: &Order, port: u16) -> anyhow::Result<BrokerPorts> {
        let from = settings::listen_port(&order.settings);
        let log_from = format!("haListenPort, {}", order.settings.origin("haListenPort"));
        let (bind, log) = (order.settings.net()?.bind_address, log_port(&order.settings.broker()?));
        let ForBroker { main, vip, log } = ports::for_broker(bind, port, &from, log, &log_from)?;
        Ok(BrokerPorts { main, vip, log, metrics: metrics::prepare(&order.settings).await? })
    }
}

/// Where a broker with these settings gives its log. Nobody asks a slave for it.
fn log_port(settings: &BrokerSettings) -> LogPort {
    match settings.broker_role {
        BrokerRole::Slave => LogPort::Nowhere,
        BrokerRole::AsyncMaster | BrokerRole::SyncMaster if is_next(settings) => LogPort::Next,
        BrokerRole::AsyncMaster | BrokerRole::SyncMaster => LogPort::At(settings.ha_listen_port.0),
    }
}

/// The port for slaves of a broker whose role is not that of its file, perhaps: a master has one, a slave has none.
fn port_in_force(
    bound: Option<Port>,
    settings: &Settings,
    broker: &BrokerSettings,
    main_port: u16,
) -> anyhow::Result<Option<Port>> {
    let wanted = match log_port(broker) {
        LogPort::Nowhere => return Ok(None),
        LogPort::Next => {
            main_port.checked_add(1).with_context(|| format!("no port is behind {main_port}: set haListenPort"))?
        }
        LogPort::At(port) => port,
    };
    if bound.is_some() {
        return Ok(bound);
    }
    let from = format!("haListenPort, {}", settings.origin("haListenPort"));
    ports::for_slaves(settings.net()?.bind_address, wanted, &from).map(Some)
}

/// The port for slaves that name servers are told.
fn told_port(log: Option<&Port>, broker: &BrokerSettings, main_port: u16) -> HaPort {
    match log {
        Some(log) => HaPort(log.local_addr().port()),
        // A slave tells it, too.
        None if is_next(broker) => HaPort(main_port.saturating_add(1)),
        None => broker.ha_listen_port,
    }
}

/// The settings of the process, with those that were changed in the life before.
fn with_requested(settings: &Settings, requested: &[(&'static str, String)]) -> Settings {
    let mut settings = settings.clone();
    for (key, value) in requested {
        // The mode of a master is not for a file that is a slave's: the journal has it.
        if let Err(error) = settings.set(key, value).map(drop)
            && *key != "brokerRole"
        {
            warn!(key, %error, "a setting that was changed while running is as in the file again");
        }
    }
    settings
}

/// Whether the port for slaves is the one behind the broker's, also where that is a free one.
fn is_next(settings: &BrokerSettings) -> bool {
    settings.ha_listen_port.0.checked_sub(1) == Some(settings.listen_port)
}

/// What each life of the broker in this process has.
struct Life<'a> {
    order: &'a Order,
    own_names: Option<SocketAddr>,
    shared: &'a Shared,
    memory: &'a Memory,
    descriptors: Descriptors,
}

struct RunningBroker {
    broker: Arc<Broker>,
    store: Arc<Store>,
    ports: Ports,
    metrics: Option<Exporting>,
    advertised: String,
    held: HeldPorts,
    beginning: Beginning,
}

impl RunningBroker {
    /// Starts the broker, again if it turns out that another one is the master.
    /// `requested`: settings that were changed in the life before.
    async fn begin(
        life: &Life<'_>,
        ports: BrokerPorts,
        requested: &[(&'static str, String)],
    ) -> anyhow::Result<RunningBroker> {
        let held = HeldPorts::of(&ports.main, ports.vip.as_ref())?;
        let error = match RunningBroker::start(life, ports, requested).await {
            Err(error) if matches!(error.downcast_ref(), Some(StartError::Deposed { .. })) => error,
            started => return started,
        };
        info!(reason = format!("{error:#}"), "this broker starts as its slave");
        RunningBroker::start(life, held.with_others(life.order).await?, requested).await
    }

    async fn start(
        life: &Life<'_>,
        BrokerPorts { main, vip, mut log, metrics }: BrokerPorts,
        requested: &[(&'static str, String)],
    ) -> anyhow::Result<RunningBroker> {
        let Life { order, own_names, shared, memory, descriptors } = *life;
        let mut settings = with_requested(&order.settings, requested);
        let store_settings = settings.store()?;
        let main_port = main.local_addr().port();
        let held = HeldPorts::of(&main, vip.as_ref())?;
        let calls = settings::client_options(&order.settings)?;
        let advertised = settings::advertised(&order.settings, main_port).await?;

        if let Some(why) = store::unfinished_repair(&store_settings.store_path_root_dir) {
            bail!(why);
        }
        // Before anything is made.
        let beginning = Beginning::of(&store_settings);
        beginning.refuse_unmounted(&order.settings)?;
        beginning.tell(&order.settings);
        check_room_for_start(&store_settings, &order.settings)?;
        let mut options = settings::store_options(&store_settings, memory)?;
        options.queue_descriptors_max = descriptors.queues;
        let answers_wait = store_settings.sync_flush_timeout.max(store_settings.slave_timeout);
        let answers_wait = Duration::from_millis(answers_wait);
        let clock = Clock::real();
        let random = Random::from_entropy();
        let store_env = StoreEnv { clock: clock.clone(), random: random.clone(), ..StoreEnv::real() };
        let (store, found) = tokio::task::spawn_blocking(move || Store::open(options, store_env)).await??;
        tell_found(&found);
        let root = store_settings.store_path_root_dir.display().to_string();
        info!(
            root,
            end = store.end().0,
            after_crash = found.was_abnormal,
            records_read = found.records_scanned,
            is_new = beginning.is_new(),
            "store opened"
        );

        let started = async {
            if let Some(sentence) = broker::role_in_force(store.journal(), &mut settings)? {
                warn!("{sentence}");
            }
            let store_settings = settings.store()?;
            let mut broker_settings = settings.broker()?;
            log = port_in_force(log, &settings, &broker_settings, main_port).or_else(|error| {
                // A master by a switch serves clients all the same: there is no other one.
                let is_by_switch = matches!(settings.origin("brokerRole"), Origin::Switch);
                if !is_by_switch {
                    return Err(error);
                }
                error!("slaves get nothing from this master until its next start: {error:#}");
                Ok(None)
            })?;
            broker_settings.ha_listen_port = told_port(log.as_ref(), &broker_settings, main_port);
            broker_settings.listen_port = main_port;
            let broker = Broker::start(broker::Start {
                name_servers: name_servers(own_names, &broker_settings.namesrv_addr),
                calls,
                settings: broker_settings.clone(),
                store_settings,
                store: Arc::clone(&store),
                advertised,
                configuration: settings.clone(),
                config_file: order.file.clone(),
                log_port: log,
                clock,
                random,
            })
            .await?;
            broker.show(Arc::clone(&shared.budget), Arc::clone(&shared.places));
            let mut listeners = Vec::new();
            for (port, tag) in [(Some(main), ListenerTag::MAIN), (vip, ListenerTag::VIP)] {
                let Some(port) = port else { continue };
                let mut options = shared.listener_options(&order.settings, tag)?;
                options.drain_timeout = options.drain_timeout.max(answers_wait + LAST_ANSWERS);
                listeners.push((listen(port, options, &broker)?, tag));
            }
            let metrics = metrics.map(|exporter| exporter.begin(&broker));
            // All of them are listened at by now: nobody is served by a broker that does not come to be.
            let mut ports = Ports::new();
            for (listener, tag) in listeners {
                info!(address = %listener.local_addr(), channel = tag.0, "broker listens");
                ports.serve(listener);
            }
            anyhow::Ok((broker, ports, metrics, broker_settings.broker_ip1))
        };
        match started.await {
            Ok((broker, ports, metrics, host)) => {
                let advertised = match host.parse::<IpAddr>() {
                    Ok(ip) => SocketAddr::from((ip, main_port)).to_string(),
                    Err(_) => format!("{host}:{}", main_port),
                };
                Ok(RunningBroker { broker, store, ports, metrics, advertised, held, beginning })
            }
            Err(error) => {
                // Nothing was served: leave the store as if nobody had opened it, also if it was not closed before.
                end(move || store.close_as_found()).await?;
                Err(error)
            }
        }
    }

    /// The same broker once more: with the role that its journal says, or on a store that begins at a file of its master's. That one has no message,
    /// so nobody misses it meanwhile. Clients that connect meanwhile wait for it.
    async fn begin_anew(self, life: &Life<'_>, at: Option<LogOffset>) -> anyhow::Result<RunningBroker> {
        let (held, requested) = (self.held.again()?, self.broker.requested_settings());
        match at {
            Some(at) => info!(%at, "the log of this slave begins anew, where that of its master does"),
            None => info!("this broker begins anew"),
        }
        self.end(Closing::GoesOn).await?;
        if let Some(at) = at {
            let options = settings::store_options(&life.order.settings.store()?, life.memory)?;
            tokio::task::spawn_blocking(move || LogCopy::begin_at(&options, &StoreEnv::real(), at)).await??;
        }
        RunningBroker::begin(life, held.with_others(life.order).await?, &requested).await
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.end(Closing::Ends).await
    }

    /// `closing`: what becomes of the ports.
    async fn end(self, closing: Closing) -> anyhow::Result<()> {
        let RunningBroker { broker, store, ports, metrics, held, .. } = self;
        let began = Instant::now();
        drop(held);
        if let Some(metrics) = &metrics {
            metrics.stops();
        }
        // First, so that clients look elsewhere while their last requests are answered.
        broker.unregister().await;
        ports.close(closing).await;
        let written = broker.stop().await;
        if let Some(metrics) = metrics {
            metrics.close().await;
        }
        drop(broker);
        end(move || store.close()).await?;
        info!(took_ms = began.elapsed().as_millis() as u64, "store closed");
        written.context("config/*.json are behind the journal: `gantry store export` before another broker takes over")
    }
}

fn listen<S: Service>(port: Port, options: ListenerOptions, service: &Arc<S>) -> anyhow::Result<Listener<S>> {
    let at = port.local_addr();
    Listener::on(port, options, Arc::clone(service)).with_context(|| format!("cannot listen on {at}"))
}

/// What the opening of the store has found, mended and cut off.
fn tell_found(found: &Recovered) {
    for finding in &found.findings {
        warn!("{finding}");
    }
    for what in &found.not_mended {
        error!("{what}: gantry store repair --queues builds the queues again from the log");
    }
    let topics = found.cut_off.iter().flat_map(|off| &off.topics);
    for (topic, messages) in topics.take(TOPICS_TOLD) {
        warn!(topic, messages, "messages that the new master does not have are cut off");
    }
}

/// Ends the store in this way, on a thread that may wait.
async fn end(how: impl FnOnce() -> Result<(), StoreError> + Send + 'static) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(how).await?.context("the store did not close well; the next start recovers")
}

/// Our own name server first, then those that the settings name.
fn name_servers(own: Option<SocketAddr>, others: &[String]) -> Vec<String> {
    let mut all: Vec<String> = own.map(|at| reachable(at).to_string()).into_iter().collect();
    for other in others {
        if !all.contains(other) {
            all.push(other.clone());
        }
    }
    if all.is_empty() {
        warn!("no name server is given (namesrvAddr, -n or NAMESRV_ADDR): clients will not find this broker");
    }
    all
}

/// Whether there is a file of the log.
fn has_log(dirs: &[PathBuf]) -> bool {
    let is_of_log = |name: &std::ffi::OsStr| name.len() == 20 && name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    dirs.iter().flat_map(std::fs::read_dir).any(|entries| entries.flatten().any(|entry| is_of_log(&entry.file_name())))
}

/// Refuses a start without room for the first file. A log that is there is served in any case.
fn check_room_for_start(store_settings: &StoreSettings, settings: &Settings) -> anyhow::Result<()> {
    let Err(full) = check_room(store_settings, settings) else { return Ok(()) };
    if !has_log(&store_settings.store_path_commit_log) {
        return Err(full);
    }
    // What was made ahead before a kill is given back by the start, and messages are read in any case.
    warn!(reason = format!("{full:#}"), "a start on a full disk: messages are read, and taken when there is room");
    Ok(())
}

/// A new store on a full disk would open, and fail its first producer. Of several folders of the log one with room is enough.
fn check_room(settings: &StoreSettings, said: &Settings) -> anyhow::Result<()> {
    let free_bytes = |dir: &Path, key: &str| free_bytes(dir, &format!("{key}, {}", said.origin(key)));
    let root = &settings.store_path_root_dir;
    has_room(root, "storePathRootDir", free_bytes(root, "storePathRootDir")?)?;
    let mut roomiest: Option<(&Path, u64)> = None;
    for dir in &settings.store_path_commit_log {
        if settings.read_only_commit_log_store_paths.contains(dir) {
            continue;
        }
        let free = free_bytes(dir, "storePathCommitLog")?;
        if roomiest.is_none_or(|(_, most)| free > most) {
            roomiest = Some((dir, free));
        }
    }
    roomiest.map_or(Ok(()), |(dir, free)| has_room(dir, "storePathCommitLog", free))
}

fn free_bytes(dir: &Path, said: &str) -> anyhow::Result<u64> {
    let failed = || format!("cannot use {} as a folder of the store ({said})", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    let disk = rustix::fs::statvfs(dir).with_context(failed)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn has_room(dir: &Path, setting: &str, free: u64) -> anyhow::Result<()> {
    if free < ROOM_BYTES_MIN {
        bail!(
            "the disk of {} ({setting}) is full: {free} bytes are free, a start needs {ROOM_BYTES_MIN}. Free space there (the oldest files of the \
             log may be removed by hand while the broker is down), make the disk larger, or move the folder and set {setting}",
            dir.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_stops_a_start_only_where_there_is_no_log_to_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("commitlog");
        let dirs = [dir.path().join("not there"), log.clone()];
        assert!(!has_log(&dirs));
        std::fs::create_dir(&log).unwrap();
        std::fs::write(log.join("lost+found"), "").unwrap();
        assert!(!has_log(&dirs));
        std::fs::write(log.join("00000000001073741824"), "").unwrap();
        assert!(has_log(&dirs));
    }

    #[test]
    fn a_name_server_is_asked_once_even_if_it_is_named_twice() {
        let own: SocketAddr = "0.0.0.0:9876".parse().unwrap();
        let others = ["127.0.0.1:9876".to_owned(), "b:9876".to_owned()];
        assert_eq!(name_servers(Some(own), &others), ["127.0.0.1:9876", "b:9876"]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let said = format!("{:#}", free_bytes(&file.path().join("store"), "storePathRootDir").unwrap_err());
        assert!(said.contains("storePathRootDir") && said.contains(file.path().to_str().unwrap()), "{said}");
    }
    #[test]
    fn a_full_disk_is_refused_with_its_folder_what_is_free_what_is_needed_and_what_to_do() {
        let said = has_room(Path::new("/log"), "storePathCommitLog", 12 << 20).unwrap_err().to_string();
        for part in [
            "/log (storePathCommitLog)",
            "12582912 bytes are free",
            "needs 16777216",
            "Free space",
            "set storePathCommitLog",
        ] {
            assert!(said.contains(part), "{said}");
        }
        has_room(Path::new("/log"), "storePathCommitLog", 16 << 20).unwrap();
    }
}
