//! Which broker of a set is the master, changed by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::body::{MASTER_ID, MemberState};
use protocol::code::request;
use protocol::epoch;
use protocol::request::{HandOverMaster, TakeOverMaster};

use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;

/// How long an old master is asked whether it is there.
const OLD_PATIENCE: Duration = Duration::from_secs(2);
/// For one question about how it goes.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a switch is watched. Brokers go on without this.
const WATCHED: Duration = Duration::from_secs(30);
/// How long the old master is waited for once the new one is there.
const FOLLOWS: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a switch has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// Where the master is.
    pub master: String,
    /// Its epoch.
    pub epoch: i64,
    /// Where the old master is, if it was there.
    pub old_master: Option<String>,
    /// It follows the new one by now.
    pub is_following: bool,
    /// Brokers of the set that could not be asked how far they are.
    pub not_asked: Vec<String>,
}

/// The brokers of a set.
struct Set {
    name: String,
    addresses: BTreeMap<i64, String>,
}

impl Operator {
    /// How a broker of Gantry stands in its set.
    pub async fn member(&self, address: &str) -> Result<MemberState> {
        let info = self.runtime_info(address).await?;
        ensure!(info.contains_key("gantryVersion"), Unfit, "the broker at {address} is none of Gantry");
        Ok(self.admin.ask(address, request::GET_MEMBER_STATE, &()).await?)
    }

    /// Makes the broker with this id the master of its set, in place of a master that is there.
    pub async fn switch_master(&self, cluster: Option<&str>, broker_name: &str, to: i64) -> Result<Switched> {
        let set = self.brokers_of_set(cluster, broker_name).await?;
        let new = set.address(to)?;
        let before = self.member(new).await?;
        let old = match set.addresses.get(&MASTER_ID) {
            Some(old) => old.clone(),
            // A name server may not have heard of it yet.
            None => before.master_addr.clone().unwrap_or_default(),
        };
        ensure!(
            !old.is_empty(),
            Unfit,
            "the name server knows no master of broker {broker_name}: if it is down for good, --old-master-is-down lets {new} take its place"
        );
        ensure!(old != *new, Unfit, "the broker at {new} is the master already");
        self.member(&old).await?;
        let fields = HandOverMaster { broker_addr: new, broker_id: to };
        self.admin.tell(&old, request::HAND_OVER_MASTER, &fields).await?;
        self.watch(new, Some(&old), before.epoch + 1).await
    }

    /// The same where the old master is gone.
    pub async fn replace_master(&self, cluster: Option<&str>, broker_name: &str, to: i64) -> Result<Switched> {
        let set = self.brokers_of_set(cluster, broker_name).await?;
        let new = set.address(to)?;
        let before = self.member(new).await?;
        let old = [set.addresses.get(&MASTER_ID), before.master_addr.as_ref()];
        for old in old.into_iter().flatten().filter(|old| *old != new) {
            let answers = self.within(OLD_PATIENCE).runtime_info(old).await.is_ok();
            ensure!(
                !answers,
                Unfit,
                "the old master at {old} answers: without --old-master-is-down it hands over, and nothing is lost"
            );
        }
        let (mut known, mut not_asked) = (before.epoch, Vec::new());
        for (id, address) in &set.addresses {
            if address == new || *id == MASTER_ID || Some(address) == before.master_addr.as_ref() {
                continue;
            }
            let Ok(other) = self.within(OLD_PATIENCE).member(address).await else {
                not_asked.push(address.clone());
                continue;
            };
            known = known.max(other.epoch);
            let more = other.log_end - before.log_end;
            ensure!(
                more <= 0 || other.epoch < before.epoch,
                Unfit,
                "the broker at {address} (id {id}) has {more} bytes more of the log than {new}: --to {id} loses less"
            );
        }
        let number = epoch::next_unheard(u64::try_from(known).unwrap_or(0), before.broker_id);
        let epoch = i64::try_from(number).unwrap_or(i64::MAX);
        let fields = TakeOverMaster { epoch, log_end: None, broker_role: None };
        self.admin.tell(new, request::TAKE_OVER_MASTER, &fields).await?;
        Ok(Switched { not_asked, ..self.watch(new, None, epoch).await? })
    }

    async fn brokers_of_set(&self, cluster: Option<&str>, broker_name: &str) -> Result<Set> {
        let mut info = self.cluster().await?;
        let broker = info.broker_addr_table.remove(broker_name);
        let broker = broker.filter(|broker| cluster.is_none_or(|cluster| broker.cluster == cluster));
        let unknown = || OperatorError::NotFound(format!("the name server knows no broker {broker_name}"));
        Ok(Set { name: broker_name.to_owned(), addresses: broker.ok_or_else(unknown)?.broker_addrs })
    }

    /// Waits until the new master is there, and for a moment until the old one follows it.
    async fn watch(&self, new: &str, old: Option<&str>, epoch: i64) -> Result<Switched> {
        let asked = self.within(PATIENCE);
        let since = self.elapsed();
        let mut is_there_since = None;
        let mut last = None;
        // Ends with what is waited for, or with the time for it.
        loop {
            let state: Option<MemberState> = asked.admin.ask(new, request::GET_MEMBER_STATE, &()).await.ok();
            let master = state.filter(|state| state.broker_role != "SLAVE" && state.epoch >= epoch && !state.is_fenced);
            let mut is_following = false;
            if let Some(old) = old {
                let state: Option<MemberState> = asked.admin.ask(old, request::GET_MEMBER_STATE, &()).await.ok();
                if let Some(state) = state {
                    let goes_on = state.broker_role != "SLAVE" && !state.is_fenced;
                    if let Some(said) = state.last_switch.filter(|_| goes_on && master.is_none()) {
                        return Err(OperatorError::Unfit(format!("{old} is the master still: {said}")));
                    }
                    is_following = state.is_following;
                    last = state.handed_to.map(|to| {
                        format!("{old} has handed the master over to {to}, and goes on asking it to take over")
                    });
                }
            }
            let now = self.elapsed();
            if let Some(master) = master {
                let waited = now.saturating_sub(*is_there_since.get_or_insert(now));
                if old.is_none() || is_following || waited > FOLLOWS {
                    let (master, epoch) = (new.to_owned(), master.epoch);
                    let old_master = old.map(str::to_owned);
                    return Ok(Switched { master, epoch, old_master, is_following, not_asked: Vec::new() });
                }
            } else if now.saturating_sub(since) > WATCHED {
                let why = last.unwrap_or_else(|| "its log output says why".to_owned());
                return Err(OperatorError::Unfit(format!(
                    "{new} is not the master after {} s: {why}",
                    WATCHED.as_secs()
                )));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Set {
    fn address(&self, id: i64) -> Result<&String> {
        let known: Vec<String> = self.addresses.iter().map(|(id, address)| format!("{id} ({address})")).collect();
        let unknown = || {
            let known = known.join(", ");
            OperatorError::NotFound(format!(
                "the name server knows no broker {} with id {id}: it knows {known}",
                self.name
            ))
        };
        self.addresses.get(&id).ok_or_else(unknown)
    }
}
