//! The controller of this process: its settings, and the thread that it runs on.
//!
//! It has a thread and a runtime of its own: what it elects by are heartbeats, and neither they nor
//! what other controllers say wait behind requests to a name server or a broker. How many connections
//! there may be, and how much memory their requests take, is limited for the process as a whole.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, anyhow, bail};
use config::key::{Default as KeyDefault, Section, State};
use config::{ControllerType, Settings};
use controller::{Controller, Options, Peer, Setting, read_addresses, read_peers};
use env::Clock;
use net::{Closing, Listener, ListenerOptions, ListenerTag};
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tracing::{error, info};

use crate::ports;
use crate::run::Shared;
use crate::settings::client_options;

/// What the thread is called.
const THREAD_NAME: &str = "controller";
/// Of RocketMQ's names.
const GROUP_BYTES_MAX: usize = 127;
/// What blocks runs outside it: looking up names, and the end of the journal.
const BLOCKING_THREADS: usize = 4;

/// What the controller of this process is started with.
pub fn options(settings: &Settings) -> anyhow::Result<Options> {
    let read = settings.controller()?;
    let (group, peers, self_id) = match read.controller_type {
        ControllerType::DLedger => {
            let peers = read_peers(&read.peers)
                .map_err(|error| settings.refused("controllerDLegerPeers", error.to_string()))?;
            (read.group, peers, read.self_id)
        }
        ControllerType::JRaft => {
            let peers = read_addresses(&read.jraft_addresses)
                .map_err(|error| settings.refused("jRaftControllerRPCAddr", error.to_string()))?;
            let servers: Vec<&str> = read.jraft_servers.split(',').map(str::trim).collect();
            if servers.len() != peers.len() {
                let (servers, peers) = (servers.len(), peers.len());
                let why = format!("it names {servers} controllers, and jRaftControllerRPCAddr {peers}");
                return Err(settings.refused("jRaftInitConf", why).into());
            }
            let own = servers.iter().position(|server| *server == read.jraft_server.trim());
            let why = "it is not in jRaftInitConf";
            let own = own.ok_or_else(|| settings.refused("jRaftServerId", why))?;
            let id = peers.get(own).map(|peer| peer.id.clone()).unwrap_or_default();
            (read.jraft_group, peers, id)
        }
    };
    let group_key = match read.controller_type {
        ControllerType::DLedger => "controllerDLegerGroup",
        ControllerType::JRaft => "jRaftGroupId",
    };
    if !(1..=GROUP_BYTES_MAX).contains(&group.trim().len()) {
        let why = format!("a group has a name of 1 to {GROUP_BYTES_MAX} bytes");
        return Err(settings.refused(group_key, why).into());
    }
    if !peers.iter().any(|peer| peer.id == self_id) {
        return Err(settings.refused("controllerDLegerSelfId", "it is not in controllerDLegerPeers").into());
    }
    Ok(Options {
        group,
        peers,
        self_id,
        has_ids: read.controller_type == ControllerType::DLedger,
        dir: read.store_path,
        elects_unclean: read.enable_elect_unclean_master,
        notifies: read.notify_broker_role_changed,
        black_list: read.config_black_list,
        shown: shown(settings),
    })
}

/// All settings of a controller, as 1010 shows them.
fn shown(settings: &Settings) -> Vec<Setting> {
    let keys = config::keys::TABLES.iter().flat_map(|table| table.iter());
    let keys = keys.filter(|key| key.section == Section::Controller);
    keys.map(|key| Setting {
        key: key.name,
        // In one process with a name server some names mean that one's.
        value: match (settings.given(key.name), key.default) {
            (None, KeyDefault::Value(value)) => value.to_owned(),
            (Some(_), _) | (None, KeyDefault::Found(_)) => settings.shown(key.name),
        },
        without_effect: match key.state {
            State::Used => None,
            State::Accepted(why) | State::NotNeeded(why) | State::Off(why) | State::Refused(why) => Some(why),
        },
    })
    .collect()
}

/// A controller that runs.
pub struct Running {
    /// Where it listens.
    pub at: SocketAddr,
    stop: watch::Sender<bool>,
    thread: thread::JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl Running {
    /// Binds the port, opens the store, and serves.
    pub async fn start(settings: &Settings, shared: &Shared) -> anyhow::Result<Running> {
        let options = options(settings)?;
        let own = own_peer(&options)?;
        let port = own.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port: u16 = port.with_context(|| format!("{} has no port", own.address))?;
        let key = if options.has_ids { "controllerDLegerPeers" } else { "jRaftControllerRPCAddr" };
        let from = format!("{key}, {}", settings.origin(key));
        let bind = settings.net()?.bind_address;
        let listening = shared.listener_options(settings, ListenerTag::MAIN)?;
        let calls = client_options(settings)?;
        let (stop, stopped) = watch::channel(false);
        let (said, ready) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let work = move || {
            // Dropped when the thread ends, however it does.
            let _end: oneshot::Sender<()> = end;
            let runtime = Builder::new_current_thread()
                .max_blocking_threads(BLOCKING_THREADS)
                .thread_name("controller-blocking")
                .enable_all()
                .build();
            let runtime = match runtime.context("cannot start the controller's runtime") {
                Ok(runtime) => runtime,
                Err(error) => {
                    // Nobody waits for it if the start was given up.
                    let _ = said.send(Err(error));
                    return;
                }
            };
            runtime.block_on(async move {
                let begun = async {
                    let port = ports::for_controller(bind, port, &from)?;
                    let controller = Controller::start(options, calls, Clock::real()).await?;
                    let listener = listen(port, listening, &controller)?;
                    anyhow::Ok((controller, listener))
                };
                match begun.await {
                    Ok((controller, listener)) => {
                        let _ = said.send(Ok(listener.local_addr()));
                        serve(controller, listener, stopped).await;
                    }
                    Err(error) => _ = said.send(Err(error)),
                }
            });
        };
        let thread = thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(work);
        let thread = thread.context("cannot start the controller's thread")?;
        let at = ready.await.map_err(|_| anyhow!("the controller's thread ended at its start"))??;
        info!(address = %at, "controller listens");
        Ok(Running { at, stop, thread, ended })
    }

    /// Ends only when the thread does, which it should not.
    pub async fn bug(&mut self) -> String {
        // It never says anything: that its other half is gone is the word.
        let _ = (&mut self.ended).await;
        "the controller's thread ended".to_owned()
    }

    /// Ends the connections and closes the store.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        match joined {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => bail!("the controller's thread ended by a bug"),
        }
    }
}

fn own_peer(options: &Options) -> anyhow::Result<&Peer> {
    let own = options.peers.iter().find(|peer| peer.id == options.self_id);
    own.with_context(|| format!("{} is none of the controllers", options.self_id))
}

fn listen(
    port: net::Port,
    options: ListenerOptions,
    controller: &Arc<Controller>,
) -> anyhow::Result<Listener<Controller>> {
    let at = port.local_addr();
    Listener::on(port, options, Arc::clone(controller)).with_context(|| format!("cannot listen on {at}"))
}

async fn serve(controller: Arc<Controller>, listener: Listener<Controller>, mut stopped: watch::Receiver<bool>) {
    let mut duty = tokio::spawn(Arc::clone(&controller).look_after());
    let stop = async move {
        // An error means that the other half is gone, which is the end as well.
        _ = stopped.wait_for(|stopped| *stopped).await;
        Closing::Ends
    };
    tokio::select! {
        () = listener.run_until(stop) => duty.abort(),
        // Without it masters that die are replaced by nobody. The end of the thread says so.
        ended = &mut duty => error!(?ended, "the controller does not elect any more"),
    }
    controller.stop().await;
}
