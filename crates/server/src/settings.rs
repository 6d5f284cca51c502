//! From the command line to an order: which processes to run, with which settings.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use config::file::FileError;
use config::{
    ClientAuth, FlushDiskType, Machine, MetricsExporter, Role, Settings, SourceFile, Sources, StoreSettings, TlsMode,
    Weight,
};
use net::{ClientOptions, ListenerOptions, ListenerTag, ServerCheck};
use protocol::delay::DelayLevels;
use store::{FlushMode, IndexOptions, LogDirs, RecoveryOptions, StoreOptions};
use tracing::{info, warn};

use crate::command_line::{Common, LogFormat, Serve};
use crate::memory::Memory;

/// Units of consume queues that wait to be written, in bytes, where there is memory for them.
const QUEUE_BUFFERED_BYTES: u64 = 4 << 20;

/// What to run.
#[derive(Debug)]
pub struct Order {
    /// All layers.
    pub settings: Settings,
    /// The file of `-c`: settings changed while running are written back into it.
    pub file: Option<PathBuf>,
    /// Where the name server listens, and who says so; only its own process takes the port from the settings.
    pub names_port: (u16, String),
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Print and end; whether only what somebody set.
    pub print: Option<bool>,
}

/// Reads files and environment and lays the layers over each other.
pub fn order(serve: Serve) -> anyhow::Result<Order> {
    let facts = Machine::read();
    let (mut sources, common, names_port, only_set) = match serve {
        Serve::Server(args) => {
            let mut sources = Sources::new(Role::Server, facts);
            sources.data = Some(args.data);
            say(&mut sources, "listenPort", args.broker_port, "--broker-port");
            say(&mut sources, "namesrvAddr", args.namesrv_addr, "-n");
            (sources, args.common, Some(args.namesrv_port), false)
        }
        Serve::Namesrv(args) => {
            let mut sources = Sources::new(Role::Names, facts);
            say(&mut sources, "listenPort", args.port, "--port");
            (sources, args.common, None, false)
        }
        Serve::Controller(args) => (Sources::new(Role::Controller, facts), args.common, None, false),
        Serve::Broker(args) => {
            let mut sources = Sources::new(Role::Broker, facts);
            say(&mut sources, "listenPort", args.port, "--port");
            say(&mut sources, "namesrvAddr", args.namesrv_addr, "-n");
            (sources, args.common, None, args.print_important)
        }
    };
    let Common { config: file, set, print_config, log_format } = common;
    for (key, value) in set {
        sources.command_line.push((key, value, "--set".to_owned()));
    }
    sources.environment = config::environment::read();
    if let Some(path) = &file {
        sources.file = Some(read(path)?);
    }
    sources.tls_file = tls_file(&sources)?;
    sources.changed_file = changed_file(&sources)?;
    if file.is_none() {
        // Nobody who starts this with no configuration has asked to be reachable from elsewhere.
        sources.machine.address = std::net::Ipv4Addr::LOCALHOST.into();
    }
    let settings = Settings::load(sources)?;
    let names_port = match names_port {
        Some(port) => (port, "--namesrv-port".to_owned()),
        None => (settings.net()?.listen_port, listen_port(&settings)),
    };
    let print = (print_config || only_set).then_some(only_set && !print_config);
    Ok(Order { settings, file, names_port, log_format, print })
}

/// Who says where to listen.
pub fn listen_port(settings: &Settings) -> String {
    format!("listenPort, {}", settings.origin("listenPort"))
}

/// The settings of a broker whose store is to be looked at: its property file, if there is one, and where the store is, if that is said.
pub fn of_store(file: Option<&Path>, store: Option<&Path>) -> anyhow::Result<Settings> {
    let mut sources = Sources::new(Role::Broker, Machine::read());
    say(&mut sources, "storePathRootDir", store.map(Path::display), "--store");
    if store.is_some() && file.is_none() {
        // A log elsewhere is a matter of the property file.
        say(
            &mut sources,
            "storePathCommitLog",
            store.map(|root| root.join("commitlog").display().to_string()),
            "--store",
        );
    }
    sources.environment = config::environment::read();
    sources.file = file.map(read).transpose()?;
    Ok(Settings::load(sources)?)
}

fn say(sources: &mut Sources, key: &str, value: Option<impl ToString>, option: &str) {
    if let Some(value) = value {
        sources.command_line.push((key.to_owned(), value.to_string(), option.to_owned()));
    }
}

fn read(path: &Path) -> Result<SourceFile, FileError> {
    let bytes = config::file::read(path)?;
    Ok(SourceFile { path: path.to_owned(), text: config::properties::text_of(bytes) })
}

/// The same of a file that need not be there.
fn read_if_there(path: &Path) -> Result<Option<SourceFile>, FileError> {
    match read(path) {
        Err(FileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// The file that `tls.config.file` names. Its default place may be empty; a place that somebody names may not.
fn tls_file(sources: &Sources) -> anyhow::Result<Option<SourceFile>> {
    // What is to be refused is refused below, with what this file says.
    let (settings, _) = Settings::read(sources.clone());
    let path = PathBuf::from(settings.text("tls.config.file"));
    match settings.given("tls.config.file") {
        None if sources.file.is_none() => Ok(None),
        None => Ok(read_if_there(&path)?),
        Some(_) => Ok(Some(read(&path).map_err(|error| settings.refused("tls.config.file", error.to_string()))?)),
    }
}

/// The file of what operators changed at the name server. The file of `-c`, where changes go there, is read already.
fn changed_file(sources: &Sources) -> anyhow::Result<Option<SourceFile>> {
    if !sources.role.has_names() || are_changes_in_file(sources.role, sources.file.is_some()) {
        return Ok(None);
    }
    let (settings, _) = Settings::read(sources.clone());
    let path = PathBuf::from(settings.text("configStorePath"));
    Ok(read_if_there(&path).map_err(|error| settings.refused("configStorePath", error.to_string()))?)
}

/// Whether changes of a name server go into the file of `-c`, as in Apache. The file of a process with a broker is the broker's.
fn are_changes_in_file(role: Role, has_file: bool) -> bool {
    has_file && !role.has_broker()
}

/// What a start finds out of the settings besides what [`Settings::load`] does, before it touches anything: so that printing them says it too.
pub fn check(order: &Order, memory: &Memory) -> anyhow::Result<()> {
    let settings = &order.settings;
    if settings.role().has_names() {
        names_options(order)?;
    }
    if settings.role().has_broker() {
        store_options(&settings.store()?, memory)?;
    }
    if settings.has_controller() {
        crate::controller::options(settings)?;
    }
    client_options(settings)?;
    if let Some(tls) = &listener_options(settings, ListenerTag::MAIN)?.tls {
        tls.check_files().with_context(|| {
            format!(
                "cannot take TLS connections ({})",
                said(settings, &["tls.server.certPath", "tls.server.keyPath", "tls.server.trustCertPath"])
            )
        })?;
    }
    Ok(())
}

/// Which of these keys somebody set, to what, and where.
fn said(settings: &Settings, keys: &[&str]) -> String {
    let given = keys.iter().filter(|key| settings.given(key).is_some());
    let lines: Vec<String> =
        given.map(|key| format!("{key}={}, {}", settings.shown(key), settings.origin(key))).collect();
    lines.join("; ")
}

/// Says what is to be known about the settings: a line a key, and whether the world can reach us.
pub fn tell(order: &Order) {
    let settings = &order.settings;
    if let Some((file, copy)) = order.file.as_ref().and_then(|file| Some((file, config::file::cut_short(file)?))) {
        warn!(
            file = %file.display(),
            copy = %copy.display(),
            "a change of the property file was cut short, and it may be damaged: the copy is the file before it; put it back, or remove it"
        );
    }
    for finding in settings.findings() {
        match finding.weight {
            Weight::Note => info!("{finding}"),
            Weight::Warning => warn!("{finding}"),
        }
    }
    if settings.store().is_ok_and(|store| store.enable_lmq != store.enable_multi_dispatch) {
        warn!("light queues are off: they need enableLmq and enableMultiDispatch, and one of them is false");
    }
    let exporter = settings.metrics().map(|metrics| metrics.exporter);
    if matches!(exporter, Ok(MetricsExporter::OtlpGrpc)) {
        warn!("metricsExporterType: metrics are not pushed; PROM serves them at /metrics, LOG logs them");
    }
    if settings.net().is_ok_and(|net| !net.bind_address.is_loopback()) {
        warn!(
            bind = settings.text("bindAddress"),
            "reachable from other machines without access control: whoever reaches the port can read and write everything"
        );
    }
}

/// The name server's options: it keeps its own table, which is fed with the settings that it knows.
pub fn names_options(order: &Order) -> anyhow::Result<names::Options> {
    let settings = &order.settings;
    let mut options = names::Options { above_file: settings.above_file().clone(), ..names::Options::default() };
    for key in config::keys::TABLES.iter().flat_map(|table| table.iter()) {
        if key.section != config::key::Section::Names || key.state != config::key::State::Used {
            continue;
        }
        // In one process with a broker this name means the broker's list; the name server guards its own files by itself.
        if key.name == "configBlackList" && settings.role().has_broker() {
            continue;
        }
        if !options.set(key.name, &settings.text(key.name))? {
            bail!("{} is in the table of keys and unknown to the name server", key.name);
        }
    }
    if let Some(file) = order.file.as_ref().filter(|_| are_changes_in_file(settings.role(), true)) {
        options.config_store_path.clone_from(file);
    }
    Ok(options)
}

/// How the store is opened.
pub fn store_options(settings: &StoreSettings, memory: &Memory) -> anyhow::Result<StoreOptions> {
    let delay_levels = DelayLevels::parse(&settings.message_delay_level)
        .map_err(|error| anyhow::anyhow!("messageDelayLevel={}: {error}", settings.message_delay_level))?;
    let log_dirs = LogDirs::new(&settings.store_path_commit_log, &settings.read_only_commit_log_store_paths)
        .context("storePathCommitLog names no folder that takes new files")?;
    Ok(StoreOptions {
        log_dirs,
        segment_bytes: settings.mapped_file_size_commit_log,
        queue_file_bytes: settings.mapped_file_size_consume_queue,
        batch_queue_file_bytes: settings.mapper_file_size_batch_consume_queue,
        batch_topics: Some(broker::batch_topics),
        flush: match settings.flush_disk_type {
            FlushDiskType::Async => FlushMode::Async,
            FlushDiskType::Sync => FlushMode::Sync,
        },
        flush_interval: Duration::from_millis(settings.flush_interval_commit_log),
        pool: memory.pool,
        check_crc_on_recover: settings.check_crc_on_recover,
        check_crc_on_read: settings.check_crc_on_read,
        delay_levels,
        retention: broker::retention(settings),
        is_protected: true,
        clean_interval: Duration::from_millis(settings.clean_resource_interval),
        index: settings.message_index_enable.then(|| IndexOptions {
            slots: settings.max_hash_slot_num,
            entries: settings.max_index_num,
            ..IndexOptions::at(settings.store_path_root_dir.join("index"))
        }),
        light_queues_max: (settings.enable_lmq && settings.enable_multi_dispatch)
            .then_some(settings.max_lmq_consume_queue_num),
        hot_bytes: memory.shares.hot,
        queue_buffered_bytes: QUEUE_BUFFERED_BYTES.min(memory.limit / 64),
        recovery: RecoveryOptions::within(memory.shares.cold),
        governor: memory.governor(),
        journal: broker::journal_options(settings),
        ..StoreOptions::at(&settings.store_path_root_dir)
    })
}

/// How ports treat their connections.
pub fn listener_options(settings: &Settings, tag: ListenerTag) -> anyhow::Result<ListenerOptions> {
    let net = settings.net()?;
    let tls = settings.tls()?;
    // In test mode RocketMQ shows a certificate made at start, and looks at no file and no client.
    let real = |path: Option<PathBuf>| path.filter(|_| !tls.test_mode);
    let nonzero = |bytes: usize| Some(bytes).filter(|bytes| *bytes > 0);
    let seconds = |seconds: u64| Some(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs);
    Ok(ListenerOptions {
        tag,
        tls: Some(net::TlsSettings {
            mode: match tls.mode {
                TlsMode::Disabled => net::TlsMode::Disabled,
                TlsMode::Permissive => net::TlsMode::Permissive,
                TlsMode::Enforcing => net::TlsMode::Enforcing,
            },
            cert_path: real(tls.cert_path.clone()),
            key_path: real(tls.key_path.clone()),
            client_auth: match tls.need_client_auth {
                _ if tls.test_mode => net::ClientAuth::None,
                ClientAuth::None => net::ClientAuth::None,
                ClientAuth::Optional => net::ClientAuth::Optional,
                ClientAuth::Require => net::ClientAuth::Require,
            },
            verify_client: tls.auth_client && !tls.test_mode,
            trust_path: real(tls.trust_cert_path.clone()),
        }),
        frame_bytes_max: net.frame_max_length,
        // 0 is Netty's word for never.
        idle_timeout: seconds(net.server_channel_max_idle_time_seconds),
        first_frame_timeout: seconds(net.first_frame_timeout_seconds),
        unread_timeout: seconds(net.unread_timeout_seconds),
        send_buffer_bytes: nonzero(net.server_socket_snd_buf_size),
        receive_buffer_bytes: nonzero(net.server_socket_rcv_buf_size),
        connections_max: net.connections_max,
        go_away_time: match net.enable_shutdown_gracefully {
            true => Duration::from_secs(net.shutdown_wait_time_seconds),
            false => Duration::ZERO,
        },
        ..ListenerOptions::default()
    })
}

/// How the broker calls its name servers, and a name server its brokers.
pub fn client_options(settings: &Settings) -> anyhow::Result<ClientOptions> {
    let tls = settings.client_tls()?;
    // As on our own port: in test mode nobody is asked for a proof, and none is shown.
    let real = |path: Option<PathBuf>| path.filter(|_| !tls.test_mode);
    let client_tls = net::ClientTls {
        check: match tls.auth_server && !tls.test_mode {
            true => ServerCheck::Authority,
            false => ServerCheck::None,
        },
        trust_path: real(tls.trust_cert_path.clone()),
        cert_path: real(tls.cert_path.clone()),
        key_path: real(tls.key_path.clone()),
    };
    if !tls.use_tls {
        return Ok(ClientOptions::default());
    }
    client_tls.check_files().with_context(|| {
        let keys = ["tls.enable", "useTLS", "tls.client.trustCertPath", "tls.client.certPath", "tls.client.keyPath"];
        format!("cannot call others with TLS ({})", said(settings, &keys))
    })?;
    Ok(ClientOptions { tls: Some(client_tls), ..ClientOptions::default() })
}

/// What clients are told to connect to, as an address: it stands in every record.
pub async fn advertised(settings: &Settings, port: u16) -> anyhow::Result<SocketAddr> {
    let host = settings.text("brokerIP1");
    let found = tokio::net::lookup_host((host.as_str(), port)).await;
    let cannot = |why: String| settings.refused("brokerIP1", why);
    let mut addresses: Vec<SocketAddr> =
        found.map_err(|error| cannot(format!("the name cannot be looked up: {error}")))?.collect();
    // Records of version 4 addresses are shorter, and every client knows them.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    Ok(addresses.first().copied().ok_or_else(|| cannot("the name has no address".to_owned()))?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::command_line::{Command, CommandLine};
    use clap::Parser;

    fn serve(line: &[&str]) -> Serve {
        match CommandLine::parse_from(line).command {
            Command::Serve(serve) => serve,
            Command::Admin(_)
            | Command::Bench(_)
            | Command::Completion(_)
            | Command::Doctor(_)
            | Command::Man(_)
            | Command::Profile(_)
            | Command::Store(_) => panic!("not a server"),
        }
    }

    #[test]
    fn the_name_server_knows_each_key_that_is_called_used() {
        let order = order(serve(&["gantry", "namesrv", "--set", "waitSecondsForService=7"])).unwrap();
        assert_eq!(names_options(&order).unwrap().wait_seconds_for_service, 7);
    }

    #[test]
    fn a_tls_file_that_is_named_is_read_without_another_and_for_tls_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "tls.server.mode=enforcing\nlistenPort=1\n").unwrap();
        let named = format!("tls.config.file={}", file.path().display());
        let order = order(serve(&["gantry", "server", "--set", &named])).unwrap();
        assert_eq!(order.settings.text("tls.server.mode"), "enforcing");
        assert_eq!(order.settings.broker().unwrap().listen_port, 10911);
        let said: Vec<String> = order.settings.findings().iter().map(ToString::to_string).collect();
        let path = file.path().to_str().unwrap();
        assert!(said.iter().any(|line| line.starts_with("listenPort (line 2)") && line.contains(path)), "{said:?}");
    }

    #[test]
    fn changes_at_a_name_server_go_where_the_next_start_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gantry.conf");
        fs::write(&file, "").unwrap();
        let (file_text, data) = (file.to_str().unwrap(), folder.path().to_str().unwrap());
        let alone = order(serve(&["gantry", "namesrv", "-c", file_text])).unwrap();
        assert_eq!(names_options(&alone).unwrap().config_store_path, file);
        let changed = folder.path().join("namesrv/namesrv.properties");
        fs::create_dir(changed.parent().unwrap()).unwrap();
        fs::write(&changed, "orderMessageEnable=true\nlistenPort=1\nkvConfigPath=/nowhere\n").unwrap();
        let both = order(serve(&["gantry", "server", "-c", file_text, "--data", data])).unwrap();
        let options = names_options(&both).unwrap();
        assert_eq!((&options.config_store_path, options.order_message_enable), (&changed, true));
        assert_eq!(both.settings.text("listenPort"), "10911");
        assert_eq!(options.kv_config_path, folder.path().join("namesrv/kvConfig.json"));
    }

    #[test]
    fn without_a_configuration_only_this_machine_is_served() {
        let order = order(serve(&["gantry", "server"])).unwrap();
        let broker = order.settings.broker().unwrap();
        assert_eq!((broker.broker_ip1.as_str(), broker.listen_port), ("127.0.0.1", 10911));
        assert!(order.settings.net().unwrap().bind_address.is_loopback());
        let store = order.settings.store().unwrap();
        assert_eq!(store.store_path_root_dir, Path::new("./data/store"));
        let memory = Memory::of(&order.settings, crate::machine::Memory::Machine(1 << 30)).unwrap();
        assert_eq!(store_options(&store, &memory).unwrap().segment_bytes, 1 << 30);
    }
}
