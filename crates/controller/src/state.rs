//! What controllers keep of brokers: who is in which set, who is its master, and who is in sync.
//!
//! A pure state machine. Whether a [`Command`] may be is decided from the state alone, so that
//! every controller comes to the same end: what only the leader knows (who lives) is a part of the
//! command. Refusals have RocketMQ's codes and the words of 5.5.0.

use std::collections::{BTreeMap, BTreeSet};

use protocol::code::ResponseCode;
use serde::{Deserialize, Serialize};

use crate::machine::{Machine, RestoreError};

// Each controller looks at these limits when it carries a command out, so another release may have
// other ones only with another form of the state.

/// Sets that there may be.
pub(crate) const SETS_MAX: usize = 10_000;
/// Brokers of all sets together: with texts as long as they may be the state takes some 35 MiB.
const MEMBERS_MAX: usize = 20_000;
/// Brokers of one set.
pub(crate) const BROKERS_MAX: usize = 64;
/// Bytes of a name, an address or a check code.
const TEXT_BYTES_MAX: usize = 512;
/// The form of a snapshot.
const VERSION: u32 = 1;

/// A change that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Command {
    /// 1013: a broker takes an id. A set begins with it.
    ApplyId {
        /// Its cluster.
        cluster: String,
        /// Its set.
        broker_name: String,
        /// The id.
        broker_id: i64,
        /// Tells one broker from another that wants the same id.
        check_code: String,
    },
    /// 1003: a broker is to be reached there.
    Move {
        /// Its set.
        broker_name: String,
        /// Its id.
        broker_id: i64,
        /// Its main port.
        address: String,
    },
    /// 1001: the master says who is in sync.
    AlterSyncStateSet {
        /// The set.
        broker_name: String,
        /// The master, as it believes.
        master_id: i64,
        /// Its epoch.
        master_epoch: i32,
        /// The epoch of the set of those in sync that it knows.
        set_epoch: i32,
        /// Those in sync.
        replicas: BTreeSet<i64>,
        /// Those of them that do not live.
        dead: BTreeSet<i64>,
    },
    /// The leader has elected a master, or none. It chose from what held in these epochs.
    Elect {
        /// The set.
        broker_name: String,
        /// The epoch of the master before.
        after: i32,
        /// The epoch of the set of those in sync.
        set_epoch: i32,
        /// The epoch that begins.
        epoch: i32,
        /// The master; none: nobody can be.
        master: Option<i64>,
    },
    /// 1009: settings of all controllers.
    Configure {
        /// By RocketMQ's names.
        changes: BTreeMap<String, String>,
    },
    /// 1011: brokers are forgotten.
    Clean {
        /// The set.
        broker_name: String,
        /// Their ids; none: all.
        ids: Option<BTreeSet<i64>>,
    },
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{remark}")]
pub struct Refusal {
    /// One of RocketMQ's response codes.
    pub code: i32,
    /// What is said with it.
    pub remark: String,
}

impl Refusal {
    /// With one of RocketMQ's codes.
    pub fn new(code: ResponseCode, remark: impl Into<String>) -> Refusal {
        Refusal { code: code.into(), remark: remark.into() }
    }
}

/// A broker of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Member {
    /// Tells it from another one that wants its id.
    pub check_code: String,
    /// Its main port.
    pub address: String,
}

/// A set of brokers: those of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Set {
    /// Its cluster.
    pub cluster: String,
    /// The id that the next broker gets.
    pub next_id: i64,
    /// Its brokers by id.
    pub members: BTreeMap<i64, Member>,
    /// The master.
    pub master: Option<i64>,
    /// Grows with each election.
    pub master_epoch: i32,
    /// Those whose logs have all that is acknowledged.
    pub in_sync: BTreeSet<i64>,
    /// Grows with each change of those in sync; 0: there was no master yet.
    pub set_epoch: i32,
}

impl Set {
    /// Whether these brokers never had a master.
    pub fn is_new(&self) -> bool {
        self.set_epoch == 0
    }

    /// Where that broker is.
    pub fn address(&self, broker_id: i64) -> Option<&str> {
        self.members.get(&broker_id).map(|member| member.address.as_str())
    }

    /// Where the master is.
    pub fn master_address(&self) -> Option<&str> {
        self.master.and_then(|id| self.address(id))
    }

    fn replace_in_sync(&mut self, replicas: BTreeSet<i64>) {
        self.in_sync = replicas;
        self.set_epoch = self.set_epoch.saturating_add(1);
    }
}

/// All that controllers agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Of one without brokers, all of which were forgotten, the epoch is kept.
    sets: BTreeMap<String, Set>,
    /// Settings that were changed by request.
    settings: BTreeMap<String, String>,
}

/// A [`State`] on disk or on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    version: u32,
    sets: BTreeMap<String, Set>,
    settings: BTreeMap<String, String>,
}

impl State {
    /// The set of that name.
    pub fn set(&self, broker_name: &str) -> Option<&Set> {
        self.sets.get(broker_name).filter(|set| !set.members.is_empty())
    }

    /// All sets by name.
    pub fn sets(&self) -> impl Iterator<Item = (&str, &Set)> {
        self.sets.iter().map(|(name, set)| (name.as_str(), set)).filter(|(_, set)| !set.members.is_empty())
    }

    /// A setting that was changed by request, since controllers have this store.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    /// Whether `command` may be, as things are. Nothing changes.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, command: &Command) -> Result<(), Refusal> {
        match command {
            Command::ApplyId { cluster, broker_name, broker_id, check_code } => {
                for (field, text) in
                    [("clusterName", cluster), ("brokerName", broker_name), ("registerCheckCode", check_code)]
                {
                    fits(field, text)?;
                }
                self.check_id(broker_name, *broker_id, check_code)
            }
            Command::Move { broker_name, broker_id, address } => {
                fits("brokerAddress", address)?;
                self.member(broker_name, *broker_id).map(drop)
            }
            Command::AlterSyncStateSet { broker_name, .. } => match self.set(broker_name) {
                Some(set) => check_in_sync(set, command),
                None => {
                    Err(Refusal::new(ResponseCode::ControllerAlterSyncStateSetFailed, "Broker metadata is not existed"))
                }
            },
            Command::Elect { broker_name, after, set_epoch, epoch, master } => {
                let Some(set) = self.set(broker_name) else { return Err(unregistered()) };
                let is_member = master.is_none_or(|id| set.members.contains_key(&id));
                let is_as_before = (set.master_epoch, set.set_epoch) == (*after, *set_epoch);
                match is_as_before && epoch > after && is_member {
                    true => Ok(()),
                    false => Err(Refusal::new(
                        ResponseCode::ControllerElectMasterFailed,
                        "Failed to elect a new master: the set has changed meanwhile",
                    )),
                }
            }
            // The request's handler has checked keys and values.
            Command::Configure { .. } => Ok(()),
            Command::Clean { broker_name, ids } => self.check_clean(broker_name, ids.as_ref()),
        }
    }

    /// Carries `command` out. Says how its set is then; an empty one if there is none.
    ///
    /// # Errors
    /// It may not be, and nothing has changed.
    pub fn apply(&mut self, command: &Command) -> Result<Set, Refusal> {
        self.check(command)?;
        let name = match command {
            Command::ApplyId { broker_name, .. }
            | Command::Move { broker_name, .. }
            | Command::AlterSyncStateSet { broker_name, .. }
            | Command::Elect { broker_name, .. }
            | Command::Clean { broker_name, .. } => broker_name.as_str(),
            Command::Configure { .. } => "",
        };
        self.carry_out(command.clone());
        Ok(self.set(name).cloned().unwrap_or_default())
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::ApplyId { cluster, broker_name, broker_id, check_code } => {
                let set = self.sets.entry(broker_name).or_default();
                if set.members.is_empty() {
                    set.cluster = cluster;
                }
                set.next_id = set.next_id.max(broker_id.saturating_add(1));
                // It is said where it is in the check code already: `address;ms`.
                let address = check_code.split(';').next().unwrap_or_default().to_owned();
                set.members.entry(broker_id).or_insert(Member { check_code, address });
            }
            Command::Move { broker_name, broker_id, address } => {
                if let Some(member) = self.member_mut(&broker_name, broker_id) {
                    member.address = address;
                }
            }
            Command::AlterSyncStateSet { broker_name, replicas, .. } => {
                if let Some(set) = self.sets.get_mut(&broker_name) {
                    set.replace_in_sync(replicas);
                }
            }
            Command::Elect { broker_name, epoch, master, .. } => {
                if let Some(set) = self.sets.get_mut(&broker_name) {
                    (set.master, set.master_epoch) = (master, epoch);
                    // Without a master one of those that were in sync may still become it.
                    if let Some(id) = master {
                        set.replace_in_sync([id].into());
                    }
                }
            }
            Command::Configure { changes } => self.settings.extend(changes),
            Command::Clean { broker_name, ids } => self.clean(&broker_name, ids),
        }
    }

    fn member_mut(&mut self, broker_name: &str, broker_id: i64) -> Option<&mut Member> {
        self.sets.get_mut(broker_name)?.members.get_mut(&broker_id)
    }

    /// The member of that id.
    ///
    /// # Errors
    /// There is none.
    pub fn member(&self, broker_name: &str, broker_id: i64) -> Result<&Member, Refusal> {
        let refused = |remark| Err(Refusal::new(ResponseCode::ControllerBrokerNeedToBeRegistered, remark));
        let Some(set) = self.set(broker_name) else {
            return refused(format!("Broker-set: {broker_name} hasn't been registered in controller"));
        };
        match set.members.get(&broker_id) {
            Some(member) => Ok(member),
            None => refused(format!("BrokerId: {broker_id} hasn't been registered in broker-set: {broker_name}")),
        }
    }

    fn check_id(&self, broker_name: &str, broker_id: i64, check_code: &str) -> Result<(), Refusal> {
        let refused = |remark| Err(Refusal::new(ResponseCode::ControllerBrokerIdInvalid, remark));
        let Some(set) = self.set(broker_name) else {
            if broker_id != 1 {
                return refused(format!(
                    "Broker-set: {broker_name} hasn't been registered in controller, but broker try to apply brokerId: {broker_id}"
                ));
            }
            if self.sets.len() >= SETS_MAX {
                return refused(format!("brokerName: {broker_name} would be one set more than the limit, {SETS_MAX}"));
            }
            return self.check_room(broker_id);
        };
        let taken = || refused(format!("Fail to apply brokerId: {broker_id} in broker-set: {broker_name}"));
        match set.members.get(&broker_id) {
            Some(member) if member.check_code == check_code => Ok(()),
            Some(_) => taken(),
            None if broker_id <= 0 => taken(),
            None if set.members.len() >= BROKERS_MAX => refused(format!(
                "appliedBrokerId: {broker_id} would be one broker more in {broker_name} than the limit, {BROKERS_MAX}"
            )),
            // Else there might be no id for the next one.
            None if broker_id - set.next_id > BROKERS_MAX as i64 => refused(format!(
                "appliedBrokerId: {broker_id} is more than {BROKERS_MAX} above the next one, {}",
                set.next_id
            )),
            None => self.check_room(broker_id),
        }
    }

    fn check_room(&self, broker_id: i64) -> Result<(), Refusal> {
        match self.sets.values().map(|set| set.members.len()).sum::<usize>() < MEMBERS_MAX {
            true => Ok(()),
            false => Err(Refusal::new(
                ResponseCode::ControllerBrokerIdInvalid,
                format!(
                    "appliedBrokerId: {broker_id} would be one broker more than the limit of all sets, {MEMBERS_MAX}"
                ),
            )),
        }
    }

    fn check_clean(&self, broker_name: &str, ids: Option<&BTreeSet<i64>>) -> Result<(), Refusal> {
        let refused = |remark| Err(Refusal::new(ResponseCode::ControllerInvalidCleanBrokerMetadata, remark));
        let Some(set) = self.set(broker_name) else {
            return refused(format!("Broker {broker_name} is not existed,clean broker data failure."));
        };
        let Some(ids) = ids else { return Ok(()) };
        let is_last = !set.in_sync.is_empty() && set.in_sync.is_subset(ids);
        if is_last && !set.members.keys().all(|id| ids.contains(id)) {
            return refused(format!(
                "Broker {broker_name}: without {ids:?} no broker is in sync, and none can be elected. Have another one elected first \
                 (enableElectUncleanMaster=true), or forget the whole set"
            ));
        }
        Ok(())
    }

    fn clean(&mut self, broker_name: &str, ids: Option<BTreeSet<i64>>) {
        let Some(set) = self.sets.get_mut(broker_name) else { return };
        for id in ids.unwrap_or_else(|| set.members.keys().copied().collect()) {
            set.members.remove(&id);
            if set.in_sync.remove(&id) {
                set.set_epoch = set.set_epoch.saturating_add(1);
            }
            if set.master == Some(id) {
                (set.master, set.master_epoch) = (None, set.master_epoch.saturating_add(1));
            }
        }
        if set.members.is_empty() {
            // They may still run: the next brokers of this name have no epoch that these have.
            *set = Set { master_epoch: set.master_epoch, ..Set::default() };
        }
    }
}

impl Machine for State {
    type Command = Command;
    type Reply = Result<Set, Refusal>;

    fn apply(&mut self, command: &Command) -> Result<Set, Refusal> {
        State::apply(self, command)
    }

    fn snapshot(&self) -> Vec<u8> {
        let State { sets, settings } = self.clone();
        let written = Written { version: VERSION, sets, settings };
        // Texts and numbers, with texts for keys: there is no state that JSON does not have.
        serde_json::to_vec(&written).unwrap_or_default()
    }

    /// Fields of a later program that only say more are passed over.
    fn restore(bytes: &[u8]) -> Result<State, RestoreError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let malformed = |error: serde_json::Error| RestoreError { what: error.to_string() };
        let Head { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if version != VERSION {
            return Err(RestoreError { what: format!("it is in form {version}, and this program reads {VERSION}") });
        }
        let Written { sets, settings, .. } = serde_json::from_slice(bytes).map_err(malformed)?;
        Ok(State { sets, settings })
    }
}

/// 1002 of a set that there is not.
pub(crate) fn unregistered() -> Refusal {
    Refusal::new(ResponseCode::ControllerBrokerNeedToBeRegistered, "Broker hasn't been registered")
}

fn fits(field: &str, text: &str) -> Result<(), Refusal> {
    match text.len() {
        0 => Err(Refusal::new(ResponseCode::ControllerInvalidRequest, format!("field {field} is empty"))),
        bytes if bytes > TEXT_BYTES_MAX => Err(Refusal::new(
            ResponseCode::ControllerInvalidRequest,
            format!("field {field}: {bytes} bytes are more than the limit, {TEXT_BYTES_MAX}"),
        )),
        _ => Ok(()),
    }
}

/// Whether the master may say who is in sync, in the order in which Apache's controller looks.
fn check_in_sync(set: &Set, command: &Command) -> Result<(), Refusal> {
    let Command::AlterSyncStateSet { master_id, master_epoch, set_epoch, replicas, dead, .. } = command else {
        return Ok(());
    };
    let rejected =
        |code, why: String| Err(Refusal::new(code, format!("Rejecting alter syncStateSet request because {why}")));
    if set.in_sync == *replicas {
        return Err(Refusal::new(
            ResponseCode::ControllerAlterSyncStateSetFailed,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        ));
    }
    if set.master != Some(*master_id) {
        let master = set.master.map_or("null".to_owned(), |id| id.to_string());
        return rejected(
            ResponseCode::ControllerInvalidMaster,
            format!("the current leader is:{{{master}}}, not {{{master_id}}}"),
        );
    }
    if set.master_epoch != *master_epoch {
        return rejected(
            ResponseCode::ControllerFencedMasterEpoch,
            format!("the current master epoch is:{{{}}}, not {{{master_epoch}}}", set.master_epoch),
        );
    }
    if set.set_epoch != *set_epoch {
        return rejected(
            ResponseCode::ControllerFencedSyncStateSetEpoch,
            format!("the current syncStateSet epoch is:{{{}}}, not {{{set_epoch}}}", set.set_epoch),
        );
    }
    for id in replicas {
        if !set.members.contains_key(id) {
            return rejected(ResponseCode::ControllerInvalidReplicas, format!("the replicas {{{id}}} don't exist"));
        }
        if dead.contains(id) {
            return rejected(ResponseCode::ControllerBrokerNotAlive, format!("the replicas {{{id}}} don't alive"));
        }
    }
    if !replicas.contains(master_id) {
        return rejected(
            ResponseCode::ControllerAlterSyncStateSetFailed,
            format!("the newSyncStateSet don't contains origin leader {{{master_id}}}"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
