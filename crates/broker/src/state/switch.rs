//! Switches of masters: which role is in force, since when (epochs), and what the journal keeps of it.
//!
//! A role changes between two lives of the broker in one process. The journal says which role the next one has, so what decides is written and on
//! the device before the first one ends; whatever the file says, that role is in force until somebody edits `brokerRole` or `brokerId` in the file.
//!
//! Two masters at one epoch are impossible. The number of an epoch names the id of its holder ([`replica::epochs`]). A planned switch: the master
//! holds appends, writes "a slave with the successor's id, epoch E is handed to the successor" and takes no message from then on, in no life, as
//! the row is on the device before the successor hears of E; the successor writes E before it answers, and appends under E only after the row of
//! where E begins is on the device. If the master dies in between, its next start asks the successor to take over, with the same E. For a master that
//! is gone the successor takes a number with its own id in it, above all that it and the others know. If the old master lives, its epoch is lower:
//! it fences itself when it sees the higher one, and what it took since is cut off (`cut/`) before it follows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use config::{ConfigError, Origin, Settings};
use env::TimeMs;
use journal::{Change, Journal, Table};
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::body::MASTER_ID;
use replica::epochs::{self, Epoch, Epochs};
use serde::{Deserialize, Serialize};
use store::Store;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::state::role::Standing;
use crate::tables::{self, Keeper};

/// The row of [`tables::ROLE`] of a slave: its id, 8 bytes little-endian; nothing in older journals.
const SLAVE: &[u8] = b"slave";
/// The row of [`tables::ROLE`] with a [`Kept`], as JSON.
const KEPT: &[u8] = b"switch";
/// How long the device may take for the journal.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(2);
/// How long clients may have a route in which this broker is still the master, in milliseconds:
/// twice `pollNameServerInterval` of stock clients.
const OLD_ROUTES_MS: i64 = 60_000;
/// Addresses of other brokers of the set that are remembered.
const SEEN_MAX: usize = 64;

/// Roles of a master, as `brokerRole` has them.
pub(crate) const MASTER_ROLES: [&str; 2] = ["ASYNC_MASTER", "SYNC_MASTER"];

/// What the journal keeps of switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Kept {
    /// The highest epoch that this broker knows.
    pub(crate) epoch: u64,
    /// It is this broker's own: it is, or is about to be, the master of it.
    pub(crate) is_holder: bool,
    /// The role that a switch has given to this broker; none: that of the file.
    pub(crate) in_force: Option<InForce>,
    /// The id that a master had as a slave.
    pub(crate) former_id: Option<i64>,
    /// How the master of this slave acknowledged when it was asked last, as `brokerRole` has it.
    pub(crate) master_role: Option<String>,
    /// It was the master, and the successor is to be asked until it has taken over.
    pub(crate) handed: Option<Handed>,
    /// When it has handed the master over, in milliseconds since 1970.
    pub(crate) handed_at: Option<i64>,
}

/// A role that a switch has given, and what the file said then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InForce {
    /// As `brokerRole` has it.
    pub(crate) role: String,
    pub(crate) broker_id: i64,
    pub(crate) file_role: String,
    pub(crate) file_id: String,
}

/// To whom the master was handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Handed {
    /// Its main port.
    pub(crate) address: String,
    pub(crate) epoch: u64,
    /// Where the log ended.
    pub(crate) log_end: u64,
    /// How the master acknowledged, as `brokerRole` has it.
    pub(crate) broker_role: String,
}

/// What is to be done about the role, beside requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Let that broker be the master.
    HandOver { address: String, broker_id: i64 },
    /// The row of the next role is put: get what the old master still has, if it `is_there`, and begin anew.
    Begin { is_there: bool },
}

/// Whether messages are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// Sends wait: it is not decided whether this broker goes on as master.
    Held,
    /// It does not.
    Fenced,
}

/// Switches, as a running broker sees them.
pub(crate) struct Switch {
    keeper: Keeper,
    standing: Standing,
    /// Held while its row is put.
    kept: Mutex<Kept>,
    /// Held while their rows are put.
    epochs: Mutex<Epochs>,
    gate: watch::Sender<Gate>,
    /// What [`Gate::Fenced`] says, for each request. Relaxed: the store refuses appends by itself.
    is_fenced: AtomicBool,
    /// This broker is to be stopped and started again.
    begins_anew: watch::Sender<bool>,
    order: Mutex<Option<Order>>,
    ordered: Notify,
    /// How the last one went.
    said: Mutex<Option<String>>,
    /// `brokerRole` and `brokerId` as the file has them. Guards itself only.
    file: Mutex<[String; 2]>,
    /// Other brokers of the set by their main ports, and whether they are ours.
    seen: Mutex<BTreeMap<String, bool>>,
}

/// Lets the role be in force that a switch has given to this broker, if one has, in place of what the file says. A sentence says so.
///
/// # Errors
/// The role in the journal is none.
pub fn role_in_force(journal: &Journal, settings: &mut Settings) -> Result<Option<String>, ConfigError> {
    let kept = load(journal);
    let Some(InForce { role, broker_id, file_role, file_id }) = kept.in_force else { return Ok(None) };
    let [now_role, now_id] = ["brokerRole", "brokerId"].map(|key| settings.text(key));
    if is_slave(&now_role) != is_slave(&file_role) || now_id != file_id {
        return Ok(Some(format!(
            "a switch of masters had made this broker {role} with id {broker_id}; brokerRole or brokerId were changed in the file since, so the file \
             counts: {now_role} with id {now_id}"
        )));
    }
    // A master acknowledges as the old one did, unless its file says otherwise since.
    let is_edited = !now_role.eq_ignore_ascii_case(&file_role);
    let role = if is_slave(&role) || is_slave(&now_role) || !is_edited { role } else { now_role.clone() };
    if role.eq_ignore_ascii_case(&now_role) && broker_id.to_string() == now_id {
        return Ok(None);
    }
    settings.switch_role(&role, broker_id)?;
    Ok(Some(format!(
        "a switch of masters has made this broker {role} with id {broker_id} (epoch {}), which is in force; the file says {now_role} with id {now_id}: \
         to let the file count, change brokerRole or brokerId in it",
        kept.epoch
    )))
}

fn is_slave(role: &str) -> bool {
    role.eq_ignore_ascii_case("SLAVE")
}

/// The id that this broker had at its last start, if it was a slave; 0 if that is not known.
pub(crate) fn was_slave(journal: &Journal) -> Option<i64> {
    let mut id = None;
    journal.load(tables::ROLE, |key, value| {
        if key == SLAVE {
            id = Some(value.try_into().map_or(MASTER_ID, i64::from_le_bytes));
        }
    });
    id
}

fn load(journal: &Journal) -> Kept {
    let mut kept = Kept::default();
    journal.load(tables::ROLE, |key, value| {
        if key == KEPT {
            match serde_json::from_slice(value) {
                Ok(found) => kept = found,
                Err(error) => {
                    tracing::error!(%error, "what the journal keeps of a switch of masters is not understood")
                }
            }
        }
    });
    kept
}

fn load_epochs(journal: &Journal) -> Epochs {
    let mut list = Vec::new();
    journal.load(tables::EPOCHS, |key, value| {
        if let (Ok(number), Ok(start)) = (key.try_into(), value.try_into()) {
            list.push(Epoch { number: u64::from_be_bytes(number), start: LogOffset(u64::from_be_bytes(start)) });
        }
    });
    Epochs::of(list).unwrap_or_else(|| {
        tracing::error!("the epochs in the journal are not those of one log");
        Epochs::default()
    })
}

/// The device does not have the journal in time.
#[derive(Debug, thiserror::Error)]
#[error("not written into the journal within {} ms: the disk is full or does not keep up", JOURNAL_PATIENCE.as_millis())]
pub(crate) struct JournalIsLate;

impl Switch {
    /// `settings`: those in force ([`role_in_force`]).
    pub(crate) fn load(store: &Arc<Store>, settings: &Settings, standing: Standing) -> Switch {
        let mut kept = load(store.journal());
        let file = settings.without_switch();
        let is_by_switch = settings.origin("brokerRole") == Origin::Switch;
        // If the file says the same as the switch, or has been edited, it is as if no switch had been made.
        kept.in_force = kept.in_force.filter(|_| is_by_switch);
        if let Some(in_force) = &mut kept.in_force {
            // A master may have been told in its file to acknowledge otherwise.
            in_force.role = settings.text("brokerRole");
            [in_force.file_role, in_force.file_id] = file.clone();
        }
        Switch {
            keeper: Keeper::of(store),
            standing,
            file: Mutex::new(file),
            kept: Mutex::new(kept),
            epochs: Mutex::new(load_epochs(store.journal())),
            gate: watch::Sender::new(Gate::Open),
            is_fenced: AtomicBool::new(false),
            begins_anew: watch::Sender::new(false),
            order: Mutex::default(),
            ordered: Notify::new(),
            said: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// At a start, before anybody is served: lets the next start know what this one is, and has a new master's epoch begin where its log ends. What is
    /// put is on the device when this returns.
    pub(crate) async fn begin(self: &Arc<Switch>, journal: &Journal, end: LogOffset) -> Result<(), JournalIsLate> {
        let (was_slave, in_force) = (was_slave(journal), load(journal).in_force);
        journal.attach(tables::ROLE, Arc::clone(self) as Arc<dyn Table>);
        journal.attach(tables::EPOCHS, Arc::new(Rows(Arc::clone(self))));
        let mut position = None;
        // What was edited in the file is known then: to edit it back is another edit.
        if in_force != self.kept().in_force {
            position = Some(self.put(|_| ()));
        }
        if self.standing.is_slave() {
            let id = self.standing.broker_id.to_le_bytes();
            if was_slave != Some(self.standing.broker_id) {
                journal.put(tables::ROLE, SLAVE, &id);
            }
            if self.kept().is_holder {
                // The file has made a slave of the master.
                self.put(|kept| (kept.is_holder, kept.former_id) = (false, None));
            }
            return Ok(());
        }
        let kept = self.kept();
        if !kept.is_holder && (was_slave.is_some() || kept.epoch > self.epochs().last()) {
            // The file has made a master of it: that is a switch as well.
            let id = was_slave.or(kept.in_force.map(|before| before.broker_id)).unwrap_or(MASTER_ID);
            let epoch = epochs::next_unheard(kept.epoch, id);
            let next = Kept { epoch, is_holder: true, former_id: Some(id), ..Kept::default() };
            position = Some(self.put(|kept| *kept = next));
        }
        let Kept { epoch, is_holder, .. } = self.kept();
        if is_holder {
            let mut epochs = self.epochs.lock();
            let gone: Vec<_> = epochs.cut(end).into_iter().map(|one| one.number.to_be_bytes()).collect();
            let (key, start) = (epoch.to_be_bytes(), end.0.to_be_bytes());
            let mut changes: Vec<Change<'_>> =
                gone.iter().map(|key| Change { table: tables::EPOCHS, key, value: None }).collect();
            if epochs.begin(epoch, end) {
                changes.push(Change { table: tables::EPOCHS, key: &key, value: Some(&start) });
                tracing::info!(epoch, %end, "an epoch of this broker as master begins");
            }
            if !changes.is_empty() {
                position = Some(journal.put_together(&changes));
            }
        }
        // Another start would begin the epoch where the log ends then.
        if let Some(position) = position {
            self.is_on_device(position).await?;
        }
        if was_slave.is_some() {
            journal.delete(tables::ROLE, SLAVE);
        }
        Ok(())
    }

    pub(crate) fn kept(&self) -> Kept {
        self.kept.lock().clone()
    }

    /// Whether this broker has handed the master over so lately that clients still take it for the
    /// master.
    pub(crate) fn is_in_old_routes(&self, now: TimeMs) -> bool {
        self.kept.lock().handed_at.is_some_and(|at| (0..OLD_ROUTES_MS).contains(&now.0.saturating_sub(at)))
    }

    pub(crate) fn epochs(&self) -> Epochs {
        self.epochs.lock().clone()
    }

    /// Changes what is kept. Says up to where the journal has to be for it.
    pub(crate) fn put(&self, change: impl FnOnce(&mut Kept)) -> u64 {
        let mut kept = self.kept.lock();
        change(&mut kept);
        self.keeper.put(tables::ROLE, KEPT, &row(&kept))
    }

    /// The next life has this role, and keeps what `next` says besides.
    pub(crate) fn next_is(&self, role: &str, broker_id: i64, next: Kept) -> u64 {
        let [file_role, file_id] = self.file.lock().clone();
        let in_force = Some(InForce { role: role.to_owned(), broker_id, file_role, file_id });
        self.put(|kept| *kept = Kept { in_force, ..next })
    }

    /// How a master acknowledges has been changed while it runs. Says whether that goes into the file, which it does not if that is a slave's, and up to where
    /// the journal has to be for it.
    pub(crate) fn keeps_role(&self, role: &str) -> (bool, u64) {
        let is_for_file = {
            let mut file = self.file.lock();
            let is_for_file = !is_slave(&file[0]);
            if is_for_file {
                role.clone_into(&mut file[0]);
            }
            is_for_file
        };
        if self.kept.lock().in_force.is_none() {
            return (true, 0);
        }
        let position = self.put(|kept| {
            if let Some(in_force) = &mut kept.in_force {
                role.clone_into(&mut in_force.role);
            }
        });
        (is_for_file, position)
    }

    /// The master of this slave acknowledges so. This broker will as well, if it has to take over from a master that is gone.
    pub(crate) fn note_master_role(&self, role: &str) {
        let is_news = self.kept.lock().master_role.as_deref() != Some(role);
        if is_news && MASTER_ROLES.contains(&role) {
            self.put(|kept| kept.master_role = Some(role.to_owned()));
        }
    }

    /// The highest epoch that this broker knows.
    pub(crate) fn epoch(&self) -> u64 {
        self.kept.lock().epoch
    }

    /// The epoch of which this broker is, or is about to be, the master; 0: of none.
    pub(crate) fn own_epoch(&self) -> u64 {
        let kept = self.kept();
        if kept.is_holder { kept.epoch } else { 0 }
    }

    /// The epochs of a master whose log is about to be copied.
    pub(crate) async fn take_epochs(&self, epoch: u64, epochs: Epochs) -> Result<(), JournalIsLate> {
        let position = {
            let mut own = self.epochs.lock();
            let mut changes: Vec<(u64, Option<u64>)> = Vec::new();
            let is_there = |of: &Epochs, one: &Epoch| of.list().contains(one);
            changes.extend(own.list().iter().filter(|one| !is_there(&epochs, one)).map(|one| (one.number, None)));
            changes.extend(
                epochs.list().iter().filter(|one| !is_there(&own, one)).map(|one| (one.number, Some(one.start.0))),
            );
            let is_known = epoch <= self.kept().epoch;
            if changes.is_empty() && is_known {
                return Ok(());
            }
            let changes: Vec<_> = changes
                .into_iter()
                .map(|(number, start)| (number.to_be_bytes(), start.map(u64::to_be_bytes)))
                .collect();
            *own = epochs;
            if !changes.is_empty() {
                let changes: Vec<Change<'_>> = changes
                    .iter()
                    .map(|(key, value)| Change {
                        table: tables::EPOCHS,
                        key,
                        value: value.as_ref().map(|value| &value[..]),
                    })
                    .collect();
                self.keeper.put_together(&changes);
            }
            self.put(|kept| {
                kept.epoch = kept.epoch.max(epoch);
                kept.is_holder = false;
            })
        };
        self.is_on_device(position).await
    }

    /// Waits until the device has the journal so far.
    pub(crate) async fn is_on_device(&self, position: u64) -> Result<(), JournalIsLate> {
        let Some(store) = self.keeper.store() else { return Ok(()) };
        let synced = Arc::clone(store.journal().synced());
        store.journal().want_sync();
        drop(store);
        timeout(JOURNAL_PATIENCE, synced.reached(position)).await.map_err(|_| JournalIsLate)
    }

    /// Holds sends until it is decided whether this broker goes on as master. Says where the log ends.
    pub(crate) fn hold(&self, store: &Store) -> LogOffset {
        self.gate.send_if_modified(|gate| {
            let was_open = *gate == Gate::Open;
            if was_open {
                *gate = Gate::Held;
            }
            was_open
        });
        store.hold_appends(true)
    }

    /// This broker goes on as master, unless it was fenced meanwhile.
    pub(crate) fn release(&self, store: &Store) {
        self.gate.send_if_modified(|gate| {
            let was_held = *gate == Gate::Held;
            if was_held {
                store.hold_appends(false);
                *gate = Gate::Open;
            }
            was_held
        });
    }

    /// This broker takes no message any more.
    pub(crate) fn fence(&self, store: &Store) {
        self.is_fenced.store(true, Ordering::Relaxed);
        // The gate first: `release` looks at it before it allows appends.
        self.gate.send_replace(Gate::Fenced);
        store.hold_appends(true);
    }

    #[inline]
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// While the log is held: waits until it is decided, and says whether this broker goes on as master.
    pub(crate) async fn goes_on(&self) -> bool {
        let mut gate = self.gate.subscribe();
        let decided = gate.wait_for(|gate| *gate != Gate::Held).await;
        decided.is_ok_and(|gate| *gate == Gate::Open)
    }

    /// This broker is to be stopped and started again, with the role that the journal says.
    pub(crate) fn begin_anew(&self) {
        self.begins_anew.send_replace(true);
    }

    /// Waits for that.
    pub(crate) async fn begins_anew(&self) {
        if self.begins_anew.subscribe().wait_for(|begins| *begins).await.is_err() {
            // The sender lives as long as this does.
            std::future::pending::<()>().await;
        }
    }

    /// Orders something. False if something else is under way.
    pub(crate) fn order(&self, order: Order) -> bool {
        let mut ordered = self.order.lock();
        if ordered.as_ref().is_some_and(|before| *before != order) {
            return false;
        }
        *ordered = Some(order);
        *self.said.lock() = None;
        self.ordered.notify_one();
        true
    }

    /// What is ordered, as soon as there is something. It stays until it is [`done`](Switch::done).
    pub(crate) async fn ordered(&self) -> Order {
        // Ends with an order.
        loop {
            let order = self.order.lock().clone();
            if let Some(order) = order {
                return order;
            }
            self.ordered.notified().await;
        }
    }

    /// The order is carried out, or cannot be.
    pub(crate) fn done(&self, said: String) {
        *self.order.lock() = None;
        *self.said.lock() = Some(said);
    }

    pub(crate) fn said(&self) -> Option<String> {
        self.said.lock().clone()
    }

    /// Brokers of the set that were seen, and whether they are ours, with those that are there now.
    pub(crate) fn see(&self, addresses: impl IntoIterator<Item = String>) -> BTreeMap<String, bool> {
        let mut seen = self.seen.lock();
        for address in addresses {
            if seen.len() < SEEN_MAX {
                seen.entry(address).or_insert(false);
            }
        }
        seen.clone()
    }

    /// The broker there is one of ours, or does not answer.
    pub(crate) fn is_ours(&self, address: &str, is_ours: bool) {
        if let Some(seen) = self.seen.lock().get_mut(address) {
            *seen = is_ours;
        }
    }
}

fn row(kept: &Kept) -> Vec<u8> {
    // A struct of numbers and texts: it has no value that JSON does not have.
    serde_json::to_vec(kept).unwrap_or_default()
}

impl Table for Switch {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        if self.standing.is_slave() {
            f(SLAVE, &self.standing.broker_id.to_le_bytes());
        }
        let kept = self.kept();
        if kept != Kept::default() {
            f(KEPT, &row(&kept));
        }
    }
}

/// The rows of [`tables::EPOCHS`].
struct Rows(Arc<Switch>);

impl Table for Rows {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for epoch in self.0.epochs().list() {
            f(&epoch.number.to_be_bytes(), &epoch.start.0.to_be_bytes());
        }
    }
}

/// Pause between two attempts to reach another broker about a switch.
pub(crate) const TRY_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::{Machine, Role, Sources};
    use store::{StoreEnv, StoreOptions};

    use super::*;

    fn settings(role: &str, id: &str) -> Settings {
        let machine =
            Machine { host_name: "h".into(), address: [127, 0, 0, 1].into(), home: Path::new("/nowhere").into() };
        let given = [("brokerRole", role), ("brokerId", id), ("namesrvAddr", "n:9876")];
        let command_line = given.map(|(key, value)| (key.to_owned(), value.to_owned(), "test".to_owned()));
        Settings::load(Sources { command_line: command_line.into(), ..Sources::new(Role::Broker, machine) }).unwrap()
    }

    /// A start with these settings, up to the role; then `then`, and the end.
    async fn start<T>(dir: &Path, settings: Settings, then: impl AsyncFnOnce(&Arc<Switch>, Standing) -> T) -> T {
        start_as(dir, settings, async |switch, settings| then(switch, Standing::of(&settings.broker().unwrap())).await)
            .await
    }

    /// The same with the settings in force.
    async fn start_as<T>(
        dir: &Path,
        mut settings: Settings,
        then: impl AsyncFnOnce(&Arc<Switch>, &Settings) -> T,
    ) -> T {
        let (store, _) = Store::open(StoreOptions::at(dir), StoreEnv::real()).unwrap();
        role_in_force(store.journal(), &mut settings).unwrap();
        let standing = Standing::of(&settings.broker().unwrap());
        let switch = Arc::new(Switch::load(&store, &settings, standing));
        switch.begin(store.journal(), store.end()).await.unwrap();
        let got = then(&switch, &settings).await;
        store.close().unwrap();
        got
    }

    /// The role with which a start begins.
    async fn role(dir: &Path, settings: Settings) -> String {
        start_as(dir, settings, async |_, settings| settings.text("brokerRole")).await
    }

    #[tokio::test]
    async fn a_role_that_a_switch_has_given_outlives_starts_until_the_file_is_edited() {
        let dir = tempfile::tempdir().unwrap();
        let handed = Handed { address: "t:1".into(), epoch: 101, log_end: 7, broker_role: "SYNC_MASTER".into() };
        let next = Kept { epoch: 101, handed: Some(handed), handed_at: Some(1_000), ..Kept::default() };
        start(dir.path(), settings("ASYNC_MASTER", "0"), async |switch, standing| {
            assert!(standing.is_master());
            switch.is_on_device(switch.next_is("SLAVE", 1, next.clone())).await.unwrap();
        })
        .await;
        for _ in 0..2 {
            // A master that acknowledges otherwise is not another role.
            start(dir.path(), settings("SYNC_MASTER", "0"), async |switch, standing| {
                assert!(standing.is_slave() && standing.broker_id == 1);
                assert_eq!(switch.kept().handed, next.handed);
                let times = [999, 1_000, 60_999, 61_000].map(|now| switch.is_in_old_routes(TimeMs(now)));
                assert_eq!(times, [false, true, true, false]);
            })
            .await;
        }
        start(dir.path(), settings("SLAVE", "3"), async |switch, standing| {
            assert!(standing.is_slave() && standing.broker_id == 3, "the file was edited");
            assert_eq!(switch.kept().epoch, 101);
        })
        .await;
    }

    /// The settings of another life in the process: those of the first, and what was changed in the life before.
    fn with(mut settings: Settings, requested: Vec<(&'static str, String)>) -> Settings {
        requested.into_iter().for_each(|(key, value)| _ = settings.set(key, &value));
        settings
    }

    #[tokio::test]
    async fn how_a_master_acknowledges_that_was_set_while_it_ran_counts_behind_switches_and_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = || settings("ASYNC_MASTER", "0");
        let slave = Kept { epoch: 101, ..Kept::default() };
        // It goes into the file, too.
        let requested = start_as(dir.path(), file(), async |switch, settings| {
            let settings = with(settings.clone(), vec![("brokerRole", "SYNC_MASTER".to_owned())]);
            assert!(switch.keeps_role("SYNC_MASTER").0, "the file is a master's");
            switch.is_on_device(switch.next_is("SLAVE", 1, slave)).await.unwrap();
            settings.requested()
        })
        .await;
        let requested = start_as(dir.path(), with(file(), requested), async |switch, settings| {
            assert_eq!(settings.text("brokerRole"), "SLAVE");
            let next = Kept { epoch: 201, is_holder: true, former_id: Some(1), ..Kept::default() };
            switch.is_on_device(switch.next_is("SYNC_MASTER", 0, next)).await.unwrap();
            settings.requested()
        })
        .await;
        start_as(dir.path(), with(file(), requested), async |switch, settings| {
            assert_eq!(settings.text("brokerRole"), "SYNC_MASTER");
            switch.keeps_role("ASYNC_MASTER");
            switch.is_on_device(switch.keeper.store().unwrap().journal().position()).await.unwrap();
        })
        .await;
        assert_eq!(role(dir.path(), settings("ASYNC_MASTER", "0")).await, "ASYNC_MASTER");
    }

    #[tokio::test]
    async fn a_role_in_the_file_that_is_changed_and_changed_back_is_changed_twice() {
        let dir = tempfile::tempdir().unwrap();
        start(dir.path(), settings("ASYNC_MASTER", "0"), async |switch, _| {
            let next = Kept { epoch: 101, ..Kept::default() };
            switch.is_on_device(switch.next_is("SLAVE", 1, next)).await.unwrap();
        })
        .await;
        assert_eq!(role(dir.path(), settings("ASYNC_MASTER", "0")).await, "SLAVE");
        assert_eq!(role(dir.path(), settings("SLAVE", "3")).await, "SLAVE");
        assert_eq!(role(dir.path(), settings("ASYNC_MASTER", "0")).await, "ASYNC_MASTER");
    }

    #[tokio::test]
    async fn how_a_master_acknowledges_can_be_changed_in_its_file_and_changed_back() {
        let dir = tempfile::tempdir().unwrap();
        start(dir.path(), settings("ASYNC_MASTER", "0"), async |switch, _| {
            let next = Kept { epoch: 101, is_holder: true, former_id: Some(1), ..Kept::default() };
            switch.is_on_device(switch.next_is("SYNC_MASTER", 0, next)).await.unwrap();
        })
        .await;
        assert_eq!(role(dir.path(), settings("ASYNC_MASTER", "0")).await, "SYNC_MASTER");
        assert_eq!(role(dir.path(), settings("SYNC_MASTER", "0")).await, "SYNC_MASTER");
        assert_eq!(role(dir.path(), settings("ASYNC_MASTER", "0")).await, "ASYNC_MASTER");
    }

    #[tokio::test]
    async fn a_new_master_has_its_epoch_begin_once() {
        let dir = tempfile::tempdir().unwrap();
        start(dir.path(), settings("SLAVE", "2"), async |switch, _| {
            let next = Kept { epoch: 102, is_holder: true, former_id: Some(2), ..Kept::default() };
            switch.is_on_device(switch.next_is("SYNC_MASTER", 0, next)).await.unwrap();
        })
        .await;
        for _ in 0..2 {
            start(dir.path(), settings("SLAVE", "2"), async |switch, standing| {
                assert!(standing.is_master());
                assert_eq!(switch.epochs().list(), [Epoch { number: 102, start: LogOffset(0) }]);
                assert!(!switch.keeps_role("ASYNC_MASTER").0, "the file is a slave's");
            })
            .await;
        }
        // By the file: that is another epoch, and only the first start of it.
        start(dir.path(), settings("SLAVE", "4"), async |switch, standing| {
            assert!(standing.is_slave() && !switch.kept().is_holder);
        })
        .await;
        for _ in 0..2 {
            start(dir.path(), settings("ASYNC_MASTER", "0"), async |switch, standing| {
                assert!(standing.is_master());
                assert_eq!((switch.epochs().last(), switch.kept().former_id), (304, Some(4)));
            })
            .await;
        }
    }

    #[tokio::test]
    async fn the_epochs_of_a_master_replace_those_that_were_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let of = |list: &[(u64, u64)]| {
            Epochs::of(list.iter().map(|(number, start)| Epoch { number: *number, start: LogOffset(*start) }).collect())
                .unwrap()
        };
        start(dir.path(), settings("SLAVE", "1"), async |switch, _| {
            switch.take_epochs(202, of(&[(101, 5), (202, 9)])).await.unwrap();
            switch.take_epochs(303, of(&[(101, 5), (303, 7)])).await.unwrap();
        })
        .await;
        start(dir.path(), settings("SLAVE", "1"), async |switch, _| {
            assert_eq!((switch.epochs(), switch.kept().epoch), (of(&[(101, 5), (303, 7)]), 303));
        })
        .await;
    }
}
