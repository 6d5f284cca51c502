//! What the leader does by itself: it looks whether masters live, and has others elected.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use protocol::body::{BrokerMemberGroup, SyncStateSet};
use protocol::code::request;
use protocol::request::NotifyBrokerRoleChanged;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::controller::Controller;
use crate::elect::{self, Health};
use crate::live::Who;
use crate::state::{Command, Refusal, Set};

/// Pause between two looks at all sets.
const LOOK: Duration = Duration::from_millis(100);
/// How often in a row a port refuses before its broker counts as dead.
const REFUSALS: u32 = 2;
/// Pause between two attempts, which grows while the port answers.
const TRY_AGAIN: Duration = Duration::from_millis(50);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(1);
/// A longer pause between two looks says nothing about the silence of brokers.
const STANDSTILL: Duration = Duration::from_secs(1);
/// How long a port may take to say yes or no.
const ANSWER: Duration = Duration::from_secs(1);

/// Why there is an election, as the log output says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// A broker wants to be the master of a set without one.
    Asked,
    /// An operator wants that broker to be it.
    Designated,
    /// The master is dead.
    Dead,
    /// The master has begun anew: its log may have lost what others have.
    Restarted,
    /// Nobody could be it when the last one died.
    None,
}

impl Why {
    fn said(self) -> &'static str {
        match self {
            Why::Asked => "a broker asked",
            Why::Designated => "an operator designated it",
            Why::Dead => "the master is dead",
            Why::Restarted => "the master has started anew",
            Why::None => "there was no master",
        }
    }
}

/// Looks after all sets for as long as the controller runs. Ends only with the consensus, which is a
/// fault.
pub(crate) async fn run(controller: &Controller) {
    let mut changes = controller.group.leader_changes();
    let mut led = None;
    let mut looked_at = controller.clock.elapsed();
    let mut failed = BTreeMap::new();
    loop {
        // That the leader is another one is a reason to look at once.
        if let Ok(Err(_)) = timeout(LOOK, changes.changed()).await {
            return;
        }
        let now = controller.clock.elapsed();
        let stood_still = now.saturating_sub(looked_at) > STANDSTILL;
        looked_at = now;
        if !controller.group.is_leader() {
            led = None;
            continue;
        }
        let term = controller.group.term();
        if led != Some(term) {
            // It may have to carry out what the one before it has begun.
            if controller.group.confirm_leader().await.is_err() {
                continue;
            }
            info!(group = controller.options.group, term, "this controller leads");
            led = Some(term);
            controller.live.lock().begin(now);
        } else if stood_still {
            // What brokers have sent meanwhile is not read yet.
            warn!("this controller stood still for a while: the silence of brokers counts from now on");
            controller.live.lock().begin(now);
        }
        look(controller, &mut failed).await;
        looked_at = controller.clock.elapsed();
    }
}

/// Has masters elected where there is none that lives. `failed`: the epoch of each set in which that
/// was tried in vain, and has been said.
async fn look(controller: &Controller, failed: &mut BTreeMap<String, i32>) {
    let now = controller.clock.elapsed();
    let wanting: Vec<String> = controller.group.read(|state| {
        let live = controller.live.lock();
        // Before the first election a broker has to ask.
        let sets = state.sets().filter(|(_, set)| !set.is_new());
        let wanting = sets.filter(|(name, set)| set.master.is_none_or(|id| live.is_dead(name, id, now)));
        wanting.map(|(name, _)| name.to_owned()).collect()
    });
    for broker_name in wanting {
        // The election of another set may have taken a while.
        let Some(set) = controller.group.read(|state| state.set(&broker_name).cloned()) else { continue };
        let health = |id| controller.health(&broker_name, id);
        let is_dead = set.master.is_none_or(|id| health(id) == Health::Dead);
        let chosen = elect::choose(&set, health, None, controller.elects_unclean());
        // That nobody can be it is written down once.
        if !is_dead || (chosen.is_none() && set.master.is_none()) {
            continue;
        }
        let why = if set.master.is_some() { Why::Dead } else { Why::None };
        if let Err(refusal) = install(controller, &broker_name, &set, chosen, why).await
            && failed.insert(broker_name.clone(), set.master_epoch) != Some(set.master_epoch)
        {
            warn!(broker = broker_name, why = refusal.remark, "no master elected; this goes on");
        }
    }
}

/// Makes `master` the master of a set that is still as `before`, or leaves it without one, and
/// tells the brokers that live. Says how the set is then.
pub(crate) async fn install(
    controller: &Controller,
    broker_name: &str,
    before: &Set,
    master: Option<i64>,
    why: Why,
) -> Result<Set, Refusal> {
    let epoch = elect::next_epoch(before, |id| controller.health(broker_name, id));
    let (broker, after, set_epoch) = (broker_name.to_owned(), before.master_epoch, before.set_epoch);
    let set = controller.propose(Command::Elect { broker_name: broker, after, set_epoch, epoch, master }).await?;
    let why = why.said();
    match master {
        Some(id) => {
            let address = set.address(id);
            info!(broker = broker_name, master = id, address, epoch, before = ?before.master, why, "master elected");
        }
        None => warn!(
            broker = broker_name,
            epoch,
            before = ?before.master,
            in_sync = ?before.in_sync,
            why,
            "no master: none of the brokers in sync lives"
        ),
    }
    if controller.notifies() {
        notify(controller, broker_name, &set);
    }
    Ok(set)
}

/// A broker registers, by a request of that time. If it is the master and has started anew, its log
/// may have lost what others have of its epoch, so that ends.
pub(crate) async fn came_back(
    controller: &Controller,
    broker_name: &str,
    broker_id: i64,
    connection: u64,
    invoked_at: i64,
) -> Result<(), Refusal> {
    let who = (broker_name.to_owned(), broker_id);
    let has_started = controller.live.lock().registers(&who, connection, invoked_at);
    let Some(set) = controller.group.read(|state| state.set(broker_name).cloned()) else { return Ok(()) };
    if set.master != Some(broker_id) || !has_started {
        return Ok(());
    }
    let others = |id: i64| match id == broker_id {
        true => Health::Dead,
        false => controller.health(broker_name, id),
    };
    let chosen = elect::choose(&Set { master: None, ..set.clone() }, others, None, false);
    install(controller, broker_name, &set, chosen, Why::Restarted).await.map(drop)
}

/// Tells the brokers of a set that live who is master now (1008).
fn notify(controller: &Controller, broker_name: &str, set: &Set) {
    let Some(master) = set.master else { return };
    let body = SyncStateSet { sync_state_set: set.in_sync.clone(), sync_state_set_epoch: set.set_epoch };
    // Of numbers only.
    let body = Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
    for (id, member) in &set.members {
        if !controller.lives(broker_name, *id) {
            continue;
        }
        let (client, address, body, set) =
            (controller.client.clone(), member.address.clone(), body.clone(), set.clone());
        tokio::spawn(async move {
            let fields = NotifyBrokerRoleChanged {
                master_address: set.master_address(),
                master_epoch: Some(set.master_epoch),
                sync_state_set_epoch: Some(set.set_epoch),
                master_broker_id: Some(master),
            };
            if let Err(error) = client.oneway(&address, request::NOTIFY_BROKER_ROLE_CHANGED, &fields, body).await {
                warn!(address, %error, "could not tell a broker who is master: it will ask");
            }
        });
    }
}

/// Looks whether the port of that broker, whose connection has ended, refuses others. A process that
/// is killed may lose its connections before its ports, so an answer is not the last word: the next
/// heartbeat is, or silence.
pub(crate) async fn probe(controller: &Controller, who: &Who, connection: u64, address: &str) {
    // Once: looking up a name may occupy a thread for long.
    let Ok(mut found) = tokio::net::lookup_host(address).await else { return };
    let Some(at) = found.next() else { return };
    let (mut refusals, mut pause) = (0, TRY_AGAIN);
    while refusals < REFUSALS {
        if !controller.live.lock().awaits(who, connection, controller.clock.elapsed()) {
            return;
        }
        match timeout(ANSWER, TcpStream::connect(at)).await {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                refusals += 1;
                pause = TRY_AGAIN;
            }
            // It is there, or nobody can say so.
            Ok(Ok(_) | Err(_)) | Err(_) => refusals = 0,
        }
        sleep(pause).await;
        pause = (pause * 2).min(TRY_AGAIN_MAX);
    }
    if controller.live.lock().refused(who, connection) {
        warn!(broker = who.0, id = who.1, address, "its connection has ended and its port refuses others: dead");
    }
}

/// Where the brokers of a set are.
pub(crate) fn members(broker_name: &str, set: &Set) -> BrokerMemberGroup {
    BrokerMemberGroup {
        broker_addrs: set.members.iter().map(|(id, member)| (*id, member.address.clone())).collect(),
        broker_name: broker_name.to_owned(),
        cluster: set.cluster.clone(),
    }
}
