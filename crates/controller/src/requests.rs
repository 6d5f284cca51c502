//! What brokers and operators ask: 1001 to 1006, 1011 to 1013, and heartbeats (904).
//!
//! Answers as those of RocketMQ 5.5.0, field by field. The body of 1002 has what its `electMaster`
//! command looks for besides, where 5.5.0's own controller makes that command fail.

use std::collections::{BTreeMap, BTreeSet};

use net::{Outgoing, Request};
use protocol::body::{
    BrokerMemberGroup, BrokerReplicasInfo, ElectMasterReplyBody, ReplicaIdentity, ReplicasInfo, SyncStateSet,
};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::{
    AlterSyncStateSet, AlterSyncStateSetReply, ApplyBrokerId, ApplyBrokerIdReply, BrokerHeartbeat, CleanBrokerData,
    ElectMaster, ElectMasterReply, FieldError, GetControllerMetadataReply, GetNextBrokerId, GetNextBrokerIdReply,
    GetReplicaInfo, GetReplicaInfoReply, RegisterBrokerToController, RegisterBrokerToControllerReply,
};
use serde::Serialize;
use tracing::{info, warn};

use crate::controller::{Controller, Session, refuse, reply};
use crate::duty::{self, Why};
use crate::elect::{self, Health};
use crate::live::Report;
use crate::state::{BROKERS_MAX, Command, Refusal, Set, unregistered};

/// Nobody's id: 1002 of a controller, or of an operator who designates nobody.
const NOBODY: i64 = -1;
/// Sets that one request may ask for (1006): the answer has to fit into a frame.
const NAMES_MAX: usize = 1_000;
/// Epochs that brokers may have: there has to be room for those of elections.
const EPOCH_MAX: i32 = i32::MAX / 2;

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Refusal {
        Refusal::new(ResponseCode::SystemError, error.to_string())
    }
}

/// 1001: the master says who is in sync.
pub(crate) async fn alter_in_sync(
    controller: &Controller,
    asked: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let header = AlterSyncStateSet::decode(&asked.header.fields)?;
    let told: SyncStateSet = read(asked.body, "the set of replicas in sync")?;
    not_too_many("syncStateSet", told.sync_state_set.len(), BROKERS_MAX)?;
    let broker_name = header.broker_name.to_owned();
    let dead = told.sync_state_set.iter().copied().filter(|id| !controller.lives(&broker_name, *id)).collect();
    let command = Command::AlterSyncStateSet {
        broker_name: broker_name.clone(),
        master_id: header.master_broker_id,
        master_epoch: header.master_epoch,
        set_epoch: told.sync_state_set_epoch,
        replicas: told.sync_state_set,
        dead,
    };
    // As this change has left it: an election behind it is told by its own request.
    let set = match controller.propose(command).await {
        Ok(set) => set,
        Err(refusal) => {
            refuse(asked, out, &refusal, &AlterSyncStateSetReply { new_sync_state_set_epoch: 0 });
            return Ok(());
        }
    };
    info!(broker = broker_name, in_sync = ?set.in_sync, epoch = set.set_epoch, "replicas in sync");
    let fields = AlterSyncStateSetReply { new_sync_state_set_epoch: set.set_epoch };
    reply(out, asked.reply_to(), &fields, &body(&in_sync(&set)))
}

/// 1002: a broker wants to be the master, or an operator wants one to be it.
pub(crate) async fn elect(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = ElectMaster::decode(&asked.header.fields)?;
    let broker_name = header.broker_name.to_owned();
    let set_before = set(controller, &broker_name).ok_or_else(unregistered)?;
    let asks = Some(header.broker_id).filter(|id| *id != NOBODY);
    let first = asks.filter(|_| set_before.is_new());
    let designated = asks.filter(|_| header.designate_elect);
    let chosen = match first {
        // The set had no master under controllers: the broker that comes first is it, as with RocketMQ's.
        Some(id) => Some(id).filter(|id| set_before.members.contains_key(id)),
        None => {
            let health = |id| controller.health(&broker_name, id);
            elect::choose(&set_before, health, designated, controller.elects_unclean())
        }
    };
    let Some(master) = chosen else {
        return Err(match asks {
            Some(_) => Refusal::new(ResponseCode::ControllerElectMasterFailed, "Failed to elect a new master"),
            None => Refusal::new(
                ResponseCode::ControllerMasterNotAvailable,
                "Old master has down and failed to elect a new broker master",
            ),
        });
    };
    if set_before.master == Some(master) {
        let remark =
            format!("The old master {master} is still alive, not need to elect new master for broker {broker_name}");
        let to = asked.reply_to();
        let body = body(&ElectMasterReplyBody {
            sync_state_set: Some(set_before.in_sync.clone()),
            ..ElectMasterReplyBody::default()
        });
        out.reply(to, ResponseCode::ControllerMasterStillExist, Some(&remark), &elected(&set_before), &body);
        return Ok(());
    }
    let why = if designated.is_some() { Why::Designated } else { Why::Asked };
    let set = duty::install(controller, &broker_name, &set_before, Some(master), why).await?;
    reply(out, asked.reply_to(), &elected(&set), &body(&ElectedBody::of(&broker_name, &set)))
}

/// 1003: a broker says where it is, and asks who is master.
pub(crate) async fn register(
    controller: &Controller,
    session: &Session,
    asked: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let header = RegisterBrokerToController::decode(&asked.header.fields)?;
    let (broker_name, broker_id) = (header.broker_name, header.broker_id);
    let named = RegisterBrokerToControllerReply {
        cluster_name: Some(header.cluster_name),
        broker_name: Some(broker_name),
        master_broker_id: None,
        master_address: None,
        master_epoch: None,
        sync_state_set_epoch: None,
    };
    let set = match registered(controller, session, &header).await {
        Ok(set) => set,
        Err(refusal) => {
            refuse(asked, out, &refusal, &named);
            return Ok(());
        }
    };
    // A dead master is not followed.
    let master = set.master.filter(|id| controller.health(broker_name, *id) != Health::Dead);
    let fields = RegisterBrokerToControllerReply {
        master_broker_id: master,
        master_address: master.and_then(|id| set.address(id)),
        master_epoch: master.map(|_| set.master_epoch),
        sync_state_set_epoch: master.map(|_| set.set_epoch),
        ..named
    };
    info!(broker = broker_name, id = broker_id, address = header.broker_address, master, "broker registers");
    reply(out, asked.reply_to(), &fields, &body(&in_sync(&set)))
}

/// The set of a broker that is known to be there now.
async fn registered(
    controller: &Controller,
    session: &Session,
    header: &RegisterBrokerToController<'_>,
) -> Result<Set, Refusal> {
    if session.connection.is_closed() {
        let gone = "the broker has given up waiting";
        return Err(Refusal::new(ResponseCode::ControllerInvalidRequest, gone));
    }
    let (broker_name, broker_id) = (header.broker_name, header.broker_id);
    let address =
        controller.group.read(|state| state.member(broker_name, broker_id).map(|member| member.address.clone()))?;
    if address != header.broker_address {
        let (broker_name, address) = (broker_name.to_owned(), header.broker_address.to_owned());
        controller.propose(Command::Move { broker_name, broker_id, address }).await?;
    }
    let invoked_at = header.invoke_time.unwrap_or(i64::MAX);
    duty::came_back(controller, broker_name, broker_id, session.connection.id(), invoked_at).await?;
    set(controller, broker_name).ok_or_else(unregistered)
}

/// 1004: who is master.
pub(crate) fn replica_info(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = GetReplicaInfo::decode(&asked.header.fields)?;
    let set = set(controller, header.broker_name).ok_or_else(unknown)?;
    let fields = GetReplicaInfoReply {
        master_broker_id: set.master,
        master_address: set.master_address(),
        master_epoch: Some(set.master_epoch),
    };
    reply(out, asked.reply_to(), &fields, &body(&in_sync(&set)))
}

/// 1005: who leads. Every controller answers it.
pub(crate) fn metadata(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let options = &controller.options;
    let leader = controller.leader();
    let peers = options.peers.iter().map(|peer| match options.has_ids {
        true => format!("{}:{};", peer.id, peer.address),
        false => format!("{};", peer.address),
    });
    let peers: String = peers.collect();
    let fields = GetControllerMetadataReply {
        group: Some(&options.group),
        controller_leader_id: leader.map(|peer| peer.id.as_str()),
        controller_leader_address: leader.map(|peer| peer.address.as_str()),
        is_leader: Some(controller.group.is_leader()),
        peers: Some(&peers),
    };
    reply(out, asked.reply_to(), &fields, &[])
}

/// 1006: who is in sync in these sets. One that there is not is left out.
pub(crate) fn sync_states(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let names: BTreeSet<String> = read(asked.body, "the list of broker names")?;
    not_too_many("brokerNames", names.len(), NAMES_MAX)?;
    if names.is_empty() {
        return Err(Refusal::new(ResponseCode::SystemError, "body: the list of broker names is empty"));
    }
    let mut info = BrokerReplicasInfo::default();
    for broker_name in names {
        let Some(set) = set(controller, &broker_name) else { continue };
        let replica = |(id, member): (&i64, &crate::state::Member)| ReplicaIdentity {
            alive: Some(controller.lives(&broker_name, *id)),
            broker_address: Some(member.address.clone()),
            broker_id: Some(*id),
            broker_name: Some(broker_name.clone()),
        };
        let (inside, outside): (Vec<_>, Vec<_>) = set.members.iter().partition(|(id, _)| set.in_sync.contains(id));
        let replicas = ReplicasInfo {
            in_sync_replicas: inside.into_iter().map(replica).collect(),
            master_address: set.master_address().map(str::to_owned),
            master_broker_id: set.master,
            master_epoch: Some(set.master_epoch),
            not_in_sync_replicas: outside.into_iter().map(replica).collect(),
            sync_state_set_epoch: Some(set.set_epoch),
        };
        info.replicas_info_table.insert(broker_name, replicas);
    }
    reply(out, asked.reply_to(), &(), &body(&info))
}

/// 1011: brokers are forgotten. Those that live are not, unless it is said.
pub(crate) async fn clean(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = CleanBrokerData::decode(&asked.header.fields)?;
    let (broker_name, ids) = (header.broker_name, header.broker_controller_ids_to_clean);
    let ids = ids.map(str::trim).filter(|ids| !ids.is_empty());
    let refused = |remark| Err(Refusal::new(ResponseCode::ControllerInvalidCleanBrokerMetadata, remark));
    let mut listed: Option<BTreeSet<i64>> = None;
    if let Some(ids) = ids {
        match ids.split(';').map(|id| id.trim().parse().map_err(|_| id)).collect::<Result<_, _>>() {
            Ok(ids) => listed = Some(ids),
            Err(wrong) => {
                return refused(format!(
                    "Please set the option <brokerControllerIdsToClean> according to the format, exception: java.lang.NumberFormatException: For input string: \"{wrong}\""
                ));
            }
        }
    }
    not_too_many("brokerControllerIdsToClean", listed.as_ref().map_or(0, BTreeSet::len), BROKERS_MAX)?;
    if !header.is_clean_living_broker {
        match &listed {
            None => {
                let master = set(controller, broker_name).and_then(|set| set.master);
                if master.is_some() {
                    return refused(format!("Broker {broker_name} is still alive, clean up failure"));
                }
            }
            Some(ids) => {
                if let Some(id) = ids.iter().find(|id| controller.lives(broker_name, **id)) {
                    return refused(format!("Broker [{broker_name},  {id}] is still alive, clean up failure"));
                }
            }
        }
    }
    controller.propose(Command::Clean { broker_name: broker_name.to_owned(), ids: listed.clone() }).await?;
    warn!(broker = broker_name, ids = ?listed, "brokers are forgotten by request");
    controller.forget_unknown();
    reply(out, asked.reply_to(), &(), &[])
}

/// 1012: which id a new broker would get.
pub(crate) fn next_id(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = GetNextBrokerId::decode(&asked.header.fields)?;
    let next = set(controller, header.broker_name).map_or(1, |set| set.next_id);
    let fields = GetNextBrokerIdReply {
        cluster_name: Some(header.cluster_name),
        broker_name: Some(header.broker_name),
        next_broker_id: Some(next),
    };
    reply(out, asked.reply_to(), &fields, &[])
}

/// 1013: a broker takes an id.
pub(crate) async fn apply_id(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let header = ApplyBrokerId::decode(&asked.header.fields)?;
    let command = Command::ApplyId {
        cluster: header.cluster_name.to_owned(),
        broker_name: header.broker_name.to_owned(),
        broker_id: header.applied_broker_id,
        check_code: header.register_check_code.to_owned(),
    };
    let fields = ApplyBrokerIdReply { cluster_name: Some(header.cluster_name), broker_name: Some(header.broker_name) };
    if let Err(refusal) = controller.propose(command).await {
        refuse(asked, out, &refusal, &fields);
        return Ok(());
    }
    info!(broker = header.broker_name, id = header.applied_broker_id, "a broker has its id");
    reply(out, asked.reply_to(), &fields, &[])
}

/// 904: a broker lives.
pub(crate) fn heartbeat(
    controller: &Controller,
    session: &mut Session,
    asked: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let header = BrokerHeartbeat::decode(&asked.header.fields)?;
    let Some(broker_id) = header.broker_id else {
        return Err(Refusal::new(ResponseCode::ControllerInvalidRequest, "Heart beat with empty brokerId"));
    };
    // One that is in no set is of no use, and there may be any number of them. Of a copy of a broker, at
    // another address, nothing counts.
    let is_member = controller.group.read(|state| {
        state.member(header.broker_name, broker_id).is_ok_and(|member| member.address == header.broker_addr)
    });
    if is_member && header.epoch.is_none_or(|epoch| epoch <= EPOCH_MAX) {
        let default = Report::default();
        let report = Report {
            epoch: header.epoch.unwrap_or(default.epoch),
            max_offset: header.max_offset.unwrap_or(default.max_offset),
            election_priority: header.election_priority.unwrap_or(default.election_priority),
        };
        session.is_broker = true;
        let (who, silence) = ((header.broker_name.to_owned(), broker_id), header.heartbeat_timeout_mills);
        let now = controller.clock.elapsed();
        controller.live.lock().beat(who, session.connection.id(), silence, report, now);
    }
    out.reply(asked.reply_to(), ResponseCode::Success, Some("Heart beat success"), &(), &[]);
    Ok(())
}

fn not_too_many(field: &str, count: usize, limit: usize) -> Result<(), Refusal> {
    match count > limit {
        true => Err(Refusal::new(
            ResponseCode::ControllerInvalidRequest,
            format!("{field}: {count} are more than the limit, {limit}"),
        )),
        false => Ok(()),
    }
}

fn set(controller: &Controller, broker_name: &str) -> Option<Set> {
    controller.group.read(|state| state.set(broker_name).cloned())
}

fn unknown() -> Refusal {
    Refusal::new(ResponseCode::ControllerBrokerMetadataNotExist, "Broker metadata is not existed")
}

fn in_sync(set: &Set) -> SyncStateSet {
    SyncStateSet { sync_state_set: set.in_sync.clone(), sync_state_set_epoch: set.set_epoch }
}

fn elected(set: &Set) -> ElectMasterReply<'_> {
    ElectMasterReply {
        master_broker_id: set.master,
        master_address: set.master_address(),
        master_epoch: Some(set.master_epoch),
        sync_state_set_epoch: Some(set.set_epoch),
    }
}

/// The body of the answer to 1002. Brokers read the first two; `electMaster` of 5.5.0 reads the
/// whole as a [`BrokerMemberGroup`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ElectedBody {
    broker_member_group: BrokerMemberGroup,
    sync_state_set: BTreeSet<i64>,
    broker_addrs: BTreeMap<i64, String>,
    broker_name: String,
    cluster: String,
}

impl ElectedBody {
    fn of(broker_name: &str, set: &Set) -> ElectedBody {
        let group = duty::members(broker_name, set);
        ElectedBody {
            sync_state_set: set.in_sync.clone(),
            broker_addrs: group.broker_addrs.clone(),
            broker_name: group.broker_name.clone(),
            cluster: group.cluster.clone(),
            broker_member_group: group,
        }
    }
}

/// JSON with quoted keys: fastjson2 of 5.5.0's tools takes no others.
fn body(value: &impl Serialize) -> Vec<u8> {
    fastjson::to_vec(value, Dialect::Standard)
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8], what: &str) -> Result<T, Refusal> {
    fastjson::from_slice(body)
        .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("body: {what} is not understood: {error}")))
}
