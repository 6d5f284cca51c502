//! What the checks look at: the machine, the settings, and what the broker answers.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::ClientConfig;
use env::Clock;
use operator::Operator;
use operator::configuration::Server;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use tokio::runtime::Runtime;

use super::host::Host;
use super::listener;
use super::target::Target;

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A broker and its machine.
pub struct Patient {
    /// The machine.
    pub host: Host,
    /// The settings.
    pub target: Target,
    /// Is the disk measured?
    pub is_disk_tested: bool,
    /// The time.
    pub clock: Clock,
    /// `--server`
    pub server: Option<String>,
    /// `--pid`, or the process that was found.
    pub pid: Option<i32>,
    runtime: Runtime,
    answer: OnceCell<Result<BTreeMap<String, String>, String>>,
    lock: OnceCell<Lock>,
}

/// Who has a store open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Nobody.
    Free,
    /// This process, or one that cannot be seen from here.
    Held(Option<i32>),
}

impl Patient {
    /// Nothing is looked at before it is asked for.
    pub fn new(host: Host, target: Target, server: Option<String>, pid: Option<i32>) -> anyhow::Result<Patient> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Patient {
            host,
            target,
            is_disk_tested: true,
            clock: Clock::real(),
            server,
            pid,
            runtime,
            answer: OnceCell::new(),
            lock: OnceCell::new(),
        })
    }

    /// Waits for `doing`, which is handed an operator.
    pub fn ask<T, F: Future<Output = T>>(&self, doing: impl FnOnce(Operator) -> F) -> T {
        self.runtime.block_on(async {
            let config = ClientConfig { timeout: PATIENCE, clock: self.clock.clone(), ..ClientConfig::new("") };
            let operator = Operator::with(config);
            let done = doing(operator.clone()).await;
            operator.stop().await;
            done
        })
    }

    /// Waits for `doing`.
    pub fn wait_for<T>(&self, doing: impl Future<Output = T>) -> T {
        self.runtime.block_on(doing)
    }

    /// Where the broker answers from this machine: as said, or the port of its settings.
    pub fn server(&self) -> String {
        self.server.clone().unwrap_or_else(|| {
            let settings = &self.target.settings;
            let bind = settings.text("bindAddress");
            let host = match bind.parse::<std::net::IpAddr>() {
                Ok(ip) if ip.is_unspecified() => "127.0.0.1".to_owned(),
                Ok(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
                Ok(_) | Err(_) => bind,
            };
            format!("{host}:{}", settings.text("listenPort"))
        })
    }

    /// What the broker tells about itself (request 28); or why it does not. What another broker tells is none of it.
    pub fn runtime_info(&self) -> Result<&BTreeMap<String, String>, &str> {
        match self.is_anothers() {
            true => Err("the broker that answers there has not this store open"),
            false => self.asked(),
        }
    }

    /// Whether another broker answers at the port of the settings: one that has not the store of the settings open, since nobody has.
    pub fn is_anothers(&self) -> bool {
        let is_named = self.server.is_some() || self.pid.is_some();
        !is_named && self.lock() == Lock::Free && is_lock_seen(&self.target.store) && self.asked().is_ok()
    }

    /// What the broker that answers there calls itself (request 26), if it says so.
    pub fn name_there(&self) -> Option<String> {
        let server = self.server();
        let asked = self.ask(|operator| async move { operator.settings(Server::Broker, &server).await });
        asked.ok()?.remove("brokerName")
    }

    /// Request 28, asked once.
    fn asked(&self) -> Result<&BTreeMap<String, String>, &str> {
        let server = self.server();
        let asked = self.answer.get_or_init(|| {
            let asked = self.ask(|operator| async move { operator.runtime_info(&server).await });
            asked.map_err(|error| error.to_string())
        });
        asked.as_ref().map_err(String::as_str)
    }

    /// Who has the store open.
    pub fn lock(&self) -> Lock {
        *self.lock.get_or_init(|| lock_of(&self.target.store))
    }

    /// The broker's process, if it runs here.
    pub fn broker_pid(&self) -> Option<i32> {
        self.broker_process().ok()
    }

    /// Whose folder below `/proc` tells what the broker may have: its own, or, as long as it does not run, that of who looks, as whom it may
    /// be started.
    pub fn process(&self) -> String {
        self.broker_pid().map_or("self".to_owned(), |pid| pid.to_string())
    }

    /// The broker's process: as said, or who has the store open, or who listens where the broker is said to answer. Or why it is not
    /// known. It is looked for anew each time: a broker that was started again is another process.
    pub fn broker_process(&self) -> Result<i32, String> {
        if let Some(pid) = self.pid {
            return Ok(pid);
        }
        match lock_of(&self.target.store) {
            Lock::Held(Some(pid)) => Ok(pid),
            // Who has the store open is in a container, or elsewhere.
            Lock::Held(None) => listener::of(&self.host, &self.server()),
            // Whoever has the port of the settings need not be their broker.
            Lock::Free if self.server.is_none() => Err(format!("nobody has {} open", self.target.store.display())),
            Lock::Free => listener::of(&self.host, &self.server()),
        }
    }

    /// A figure of request 28, if the broker answers and tells it.
    pub fn told(&self, name: &str) -> Option<f64> {
        self.runtime_info().ok()?.get(name)?.parse().ok()
    }

    /// Folders that new files of the log go into, absolute; and those that hold files and get no more.
    pub fn log_dirs(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let Ok(store) = self.target.settings.store() else {
            return (vec![self.target.store.join("commitlog")], Vec::new());
        };
        let read_only: Vec<PathBuf> = store.read_only_commit_log_store_paths.iter().map(absolute).collect();
        let mut taking: Vec<PathBuf> = store.store_path_commit_log.iter().map(absolute).collect();
        taking.retain(|dir| !read_only.contains(dir));
        taking.sort();
        (taking, read_only)
    }

    /// Where the log is, then the other file systems that the broker writes to: a folder on each, which exists.
    pub fn places(&self) -> Vec<PathBuf> {
        let mut devices = Vec::new();
        let mut places = Vec::new();
        for folder in self.log_dirs().0.iter().chain([&self.target.store]) {
            let place = nearest(folder);
            let device = std::fs::metadata(&place).map(|about| about.st_dev()).ok();
            if !devices.contains(&device) {
                devices.push(device);
                places.push(place);
            }
        }
        places
    }

    /// Where the log is, or its first folder of several: one that exists.
    pub fn place(&self) -> PathBuf {
        self.log_dirs().0.first().map_or_else(|| nearest(&self.target.store), |dir| nearest(dir))
    }

    /// The block device of the log, or of its first folder of several.
    pub fn device(&self) -> Option<String> {
        self.device_of(&self.place())
    }

    /// The block device of a folder, `major:minor`: as the mount says, or the file's own where the mount has none (btrfs).
    pub fn device_of(&self, place: &Path) -> Option<String> {
        let mount = self.host.mount_of(place)?;
        if !mount.device.starts_with("0:") {
            return Some(mount.device);
        }
        let number = std::fs::metadata(place).ok()?.st_dev();
        let device = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        self.host.has(&format!("/sys/dev/block/{device}")).then_some(device)
    }
}

/// A folder, or the one above it that there is, without links: a first start would make the rest.
pub fn nearest(folder: &Path) -> PathBuf {
    let mut place = folder;
    while !place.exists() {
        let Some(above) = place.parent() else { break };
        place = above;
    }
    std::fs::canonicalize(place).unwrap_or_else(|_| place.to_owned())
}

/// Who has the lock of a store. The system knows: what the file says may be left from long ago.
fn lock_of(store: &Path) -> Lock {
    let Ok(file) = std::fs::File::open(store.join("lock")) else { return Lock::Free };
    match fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)) {
        Ok(Some(held)) => Lock::Held(held.pid.map(|pid| pid.as_raw_pid())),
        Ok(None) | Err(_) => Lock::Free,
    }
}

/// Whether who asks may see who has the lock of a store. A store that is not there is nobody's.
fn is_lock_seen(store: &Path) -> bool {
    match std::fs::File::open(store.join("lock")) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// A patient for tests: a folder that looks like a machine, and settings of this text with the store below that folder.
#[cfg(test)]
pub mod fake {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::target::Order;
    use config::Machine;

    /// With the settings `text`; `STORE` in it stands for a folder below the fake's root.
    pub fn patient(fake: &FakeHost, text: &str) -> Patient {
        patient_with(fake, text, &[])
    }

    /// The same with options `--set`.
    pub fn patient_with(fake: &FakeHost, text: &str, set: &[(&str, &str)]) -> Patient {
        let store = fake.root().join("store");
        let file = fake.root().join("broker.conf");
        let text = format!("storePathRootDir={}\n{}", store.display(), text.replace("STORE", store.to_str().unwrap()));
        std::fs::write(&file, text).unwrap();
        let machine = Machine {
            host_name: "host".to_owned(),
            address: std::net::IpAddr::V4([192, 0, 2, 7].into()),
            home: fake.root().to_owned(),
        };
        let set = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let order = Order { file: Some(file), set, ..Order::default() };
        // The port that is below all that anybody may listen on.
        let target = Target::read(&order, BTreeMap::new(), machine);
        Patient::new(fake.host(), target, Some("127.0.0.1:1".to_owned()), None).unwrap()
    }

    /// The same, of a broker that tells these figures.
    pub fn told_by(fake: &FakeHost, figures: &[(&str, &str)]) -> Patient {
        let patient = patient(fake, "");
        let table = figures.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        patient.answer.set(Ok(table)).unwrap();
        patient
    }
}
