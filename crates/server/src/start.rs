//! Puts the crates together, runs until a signal, takes them apart again.
//!
//! Order of start: ports are checked, then the store is opened (the slow part), then doors open. Order of stop: doors close and
//! connections finish, the broker stops its tasks, the store goes to the device; the process ends within seconds.

use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use broker::Broker;
use config::{FlushDiskType, NetSettings, Role, Settings, StoreSettings, TlsSettings, Weight};
use env::{Clock, Random};
use names::Names;
use net::{Listener, ListenerOptions, ListenerTag, Service};
use protocol::delay::DelayLevels;
use store::disk::RealDisk;
use store::{FlushMode, Store, StoreEnv, StoreOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::options::{Command, Common, Options};
use crate::{log, machine, names as name_server, ports, settings};

/// Share of memory, in percent, in which recent messages are expected (`accessMessageInMemoryMaxRatio` of Apache's).
const HOT_PERCENT: u64 = 40;

/// What a process is asked to run.
struct Plan {
    settings: Settings,
    config_file: Option<PathBuf>,
    /// The name server's port, if one is to run here.
    names_port: Option<u16>,
    has_broker: bool,
}

/// Runs what the command line asks for, until it is done or told to stop.
pub fn run(options: Options) -> anyhow::Result<()> {
    let (common, plan, important_only) = plan(options.command)?;
    if common.print_config || important_only {
        print!("{}", plan.settings.print(important_only));
        return Ok(());
    }
    log::start(common.log_format);
    for finding in plan.settings.findings() {
        match finding.weight {
            Weight::Note => info!("{finding}"),
            Weight::Warning => warn!("{finding}"),
        }
    }
    machine::raise_open_files();
    runtime()?.block_on(serve(plan))
}

/// The worker layout: one shared pool, a thread a core.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("gantry")
        .enable_all()
        .build()
        .context("cannot start the runtime's threads")
}

fn plan(command: Command) -> anyhow::Result<(Common, Plan, bool)> {
    let option = |key: &str, value: Option<String>, name: &str| {
        value.map(|value| (key.to_owned(), value, name.to_owned()))
    };
    let port = |port: Option<u16>| port.map(|port| port.to_string());
    match command {
        Command::Server(server) => {
            let given = option("listenPort", port(server.broker_port), "--broker-port");
            let file = server.common.config.as_deref();
            let settings = settings::load(Role::Server, file, Some(&server.data), given.into_iter().collect())?;
            let config_file = server.common.config.clone();
            let plan = Plan { settings, config_file, names_port: Some(server.namesrv_port), has_broker: true };
            Ok((server.common, plan, false))
        }
        Command::Namesrv(namesrv) => {
            let given = option("listenPort", port(namesrv.port), "--port");
            let file = namesrv.common.config.as_deref();
            let settings = settings::load(Role::Names, file, None, given.into_iter().collect())?;
            let names_port = Some(settings.net()?.listen_port);
            let config_file = namesrv.common.config.clone();
            Ok((namesrv.common, Plan { settings, config_file, names_port, has_broker: false }, false))
        }
        Command::Broker(broker) => {
            let given = [
                option("namesrvAddr", broker.namesrv, "-n"),
                option("listenPort", port(broker.port), "--port"),
            ];
            let file = broker.common.config.as_deref();
            let settings = settings::load(Role::Broker, file, None, given.into_iter().flatten().collect())?;
            let config_file = broker.common.config.clone();
            let plan = Plan { settings, config_file, names_port: None, has_broker: true };
            Ok((broker.common, plan, broker.print_important))
        }
    }
}

/// The doors that are open, and how to close them.
struct Doors {
    close: watch::Sender<bool>,
    open: Vec<JoinHandle<()>>,
}

impl Doors {
    fn new() -> Doors {
        Doors { close: watch::channel(false).0, open: Vec::new() }
    }

    fn open<S: Service>(&mut self, at: SocketAddr, options: ListenerOptions, service: &Arc<S>) -> anyhow::Result<SocketAddr> {
        let listener = Listener::bind(at, options, Arc::clone(service)).with_context(|| format!("cannot listen on {at}"))?;
        let local = listener.local_addr();
        let mut closing = self.close.subscribe();
        self.open.push(tokio::spawn(listener.run(async move {
            // An error means that nobody is left who could close: that is a reason to close too.
            let _ = closing.wait_for(|is_closing| *is_closing).await;
        })));
        Ok(local)
    }

    /// Returns when every connection has written what it owes.
    async fn close(self) {
        self.close.send_replace(true);
        for door in self.open {
            if let Err(error) = door.await {
                warn!(%error, "a listener ended badly");
            }
        }
    }
}

async fn serve(plan: Plan) -> anyhow::Result<()> {
    // Before anything is opened: a signal during start must not be lost.
    let stop = stop_signal()?;
    let clock = Clock::real();
    let net = plan.settings.net()?;
    let listener_options = listener_options(&net, &plan.settings.tls()?);
    let ip = net.bind_address;
    let names_port = plan.names_port.map(|port| ports::check(ip, port, "name server")).transpose()?;
    let mut doors = Doors::new();
    let mut ready = String::from("gantry: ready");

    let mut broker = None;
    let broker_port = match plan.has_broker {
        true => Some(ports::check_pair(ip, net.listen_port, "broker")?),
        false => None,
    };
    if !ip.is_loopback() {
        warn!(address = %ip, "everybody who reaches this address may read, write and administer: there is no access control");
    }
    if let Some(port) = names_port {
        let names = Names::new(name_server::options(&plan.settings)?, clock.clone())?;
        let local = doors.open(SocketAddr::new(ip, port), listener_options.clone(), &names)?;
        tokio::spawn(Arc::clone(&names).expire());
        ready.push_str(&format!(" namesrv={}", reachable(local)));
    }
    if let Some(port) = broker_port {
        let (running, store) = start_broker(&plan, ip, port, names_port, clock).await?;
        let at = SocketAddr::new(ip, port);
        doors.open(at, listener_options.clone(), &running)?;
        if let Some(vip) = ports::vip_of(port) {
            let options = ListenerOptions { tag: ListenerTag::VIP, ..listener_options };
            doors.open(SocketAddr::new(ip, vip), options, &running)?;
        }
        ready.push_str(&format!(" broker={}", reachable(at)));
        broker = Some((running, store));
    }
    // For scripts that wait for it: standard output carries this line and nothing else.
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{ready}").and_then(|()| stdout.flush());
    info!("{}", ready.trim_start_matches("gantry: "));

    let why = stop.await;
    info!(signal = why, "stopping");
    doors.close().await;
    if let Some((broker, store)) = broker {
        broker.stop().await;
        tokio::task::spawn_blocking(move || store.close()).await.context("closing the store")??;
    }
    info!("stopped");
    Ok(())
}

/// An address that a client on this machine can use.
fn reachable(at: SocketAddr) -> SocketAddr {
    if at.ip().is_unspecified() { SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port()) } else { at }
}

async fn start_broker(
    plan: &Plan,
    ip: IpAddr,
    port: u16,
    names_port: Option<u16>,
    clock: Clock,
) -> anyhow::Result<(Arc<Broker>, Arc<Store>)> {
    let store_settings = plan.settings.store()?;
    let mut broker_settings = plan.settings.broker()?;
    broker_settings.listen_port = port;
    let options = store_options(&store_settings)?;
    let random = Random::from_entropy();
    let env = StoreEnv { clock: clock.clone(), random: random.clone(), disk: Arc::new(RealDisk) };
    let (store, found) =
        tokio::task::spawn_blocking(move || Store::open(options, env)).await.context("opening the store")??;
    if found.was_abnormal {
        info!(records = found.records_scanned, units = found.units_added, "the store was not closed; recovered");
    }
    for finding in &found.findings {
        warn!("{finding}");
    }
    let mut name_servers = broker_settings.namesrv_addr.clone();
    if let Some(port) = names_port {
        name_servers.push(reachable(SocketAddr::new(ip, port)).to_string());
    }
    let advertised = resolve(&broker_settings.broker_ip1, port)?;
    let broker = Broker::start(broker::Start {
        settings: broker_settings,
        store_settings,
        store: Arc::clone(&store),
        advertised,
        name_servers,
        configuration: plan.settings.clone(),
        config_file: plan.config_file.clone(),
        clock,
        random,
    })
    .await?;
    Ok((broker, store))
}

/// `brokerIP1` may be a name; records and message ids carry an address.
fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let found = (host, port).to_socket_addrs().with_context(|| format!("brokerIP1={host} cannot be resolved"))?;
    found
        .min_by_key(SocketAddr::is_ipv6)
        .with_context(|| format!("brokerIP1={host} has no address"))
}

fn store_options(settings: &StoreSettings) -> anyhow::Result<StoreOptions> {
    let percent = |ratio: u32| u8::try_from(ratio).unwrap_or(100);
    let defaults = StoreOptions::at(&settings.store_path_root_dir);
    Ok(StoreOptions {
        commit_log_dir: settings.store_path_commit_log.clone(),
        segment_bytes: settings.mapped_file_size_commit_log,
        queue_file_bytes: settings.mapped_file_size_consume_queue,
        flush: match settings.flush_disk_type {
            FlushDiskType::Async => FlushMode::Async,
            FlushDiskType::Sync => FlushMode::Sync,
        },
        flush_interval: Duration::from_millis(settings.flush_interval_commit_log),
        check_crc_on_recover: settings.check_crc_on_recover,
        delay_levels: DelayLevels::parse(&settings.message_delay_level)
            .with_context(|| format!("messageDelayLevel={}", settings.message_delay_level))?,
        file_reserved: Duration::from_secs(settings.file_reserved_time.saturating_mul(3600)),
        delete_when: settings.delete_when.clone(),
        clean_interval: Duration::from_millis(settings.clean_resource_interval),
        disk_max_used_percent: percent(settings.disk_max_used_space_ratio),
        disk_clean_forcibly_percent: percent(settings.disk_space_clean_forcibly_ratio),
        disk_warning_percent: percent(settings.disk_space_warning_level_ratio),
        clean_forcibly: settings.clean_file_forcibly_enable,
        hot_bytes: machine::memory_bytes() / 100 * HOT_PERCENT,
        ..defaults
    })
}

fn listener_options(net: &NetSettings, tls: &TlsSettings) -> ListenerOptions {
    let size = |bytes: usize| Some(bytes).filter(|bytes| *bytes > 0);
    ListenerOptions {
        tls: Some(net::TlsSettings {
            mode: match tls.mode {
                config::TlsMode::Disabled => net::TlsMode::Disabled,
                config::TlsMode::Permissive => net::TlsMode::Permissive,
                config::TlsMode::Enforcing => net::TlsMode::Enforcing,
            },
            // RocketMQ's test mode, its default, takes a self-signed certificate whatever the paths say.
            cert_path: tls.cert_path.clone().filter(|_| !tls.test_mode),
            key_path: tls.key_path.clone().filter(|_| !tls.test_mode),
            client_auth: match tls.need_client_auth {
                config::ClientAuth::None => net::ClientAuth::None,
                config::ClientAuth::Optional => net::ClientAuth::Optional,
                config::ClientAuth::Require => net::ClientAuth::Require,
            },
            verify_client: tls.auth_client,
            trust_path: tls.trust_cert_path.clone(),
        }),
        frame_bytes_max: net.frame_max_length,
        idle_timeout: Duration::from_secs(net.server_channel_max_idle_time_seconds),
        send_buffer_bytes: size(net.server_socket_snd_buf_size),
        receive_buffer_bytes: size(net.server_socket_rcv_buf_size),
        ..ListenerOptions::default()
    }
}

/// Ends when the process is told to stop; says by what.
fn stop_signal() -> anyhow::Result<impl Future<Output = &'static str>> {
    let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    })
}
