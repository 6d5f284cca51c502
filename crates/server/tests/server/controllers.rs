//! `gantry controller`: what brokers and operators are answered, also when controllers are killed.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::{CallError, Client, ClientOptions, Response};
use protocol::body::SyncStateSet;
use protocol::code::request;
use protocol::header::EncodeFields;
use protocol::request::{
    AlterSyncStateSet, ApplyBrokerId, BrokerHeartbeat, ElectMaster, GetControllerMetadataReply, GetNextBrokerId,
    GetNextBrokerIdReply, GetReplicaInfo, GetReplicaInfoReply, RegisterBrokerToController,
};
use tokio::task::JoinHandle;

use crate::support::{PATIENCE, Running, fails, gantry, until};
use crate::switching::port;

const SET: &str = "set";
const CLUSTER: &str = "cluster";
const NOT_LEADER: i32 = 2007;

/// A process of a group of controllers, which may be down.
struct Process {
    id: usize,
    address: String,
    folder: std::path::PathBuf,
    running: Option<Running>,
}

/// A group of controllers, on free ports.
struct Group {
    _folder: tempfile::TempDir,
    peers: String,
    processes: Vec<Process>,
}

impl Group {
    fn start(size: usize) -> Group {
        let folder = tempfile::tempdir().unwrap();
        let processes: Vec<Process> = (0..size)
            .map(|id| Process {
                id,
                address: format!("127.0.0.1:{}", port()),
                folder: folder.path().join(id.to_string()),
                running: None,
            })
            .collect();
        let peers: Vec<String> = processes.iter().map(|one| format!("n{}-{}", one.id, one.address)).collect();
        let mut group = Group { _folder: folder, peers: peers.join(";"), processes };
        (0..size).for_each(|id| group.begin(id));
        group
    }

    fn begin(&mut self, id: usize) {
        let process = &mut self.processes[id];
        process.running = Some(Running::start(&mut controller(&process.folder, &self.peers, &format!("n{id}"))));
    }

    fn kill(&mut self, id: usize) {
        self.processes[id].running.take().unwrap().end("-KILL");
    }

    fn addresses(&self) -> Vec<String> {
        self.processes.iter().map(|one| one.address.clone()).collect()
    }

    /// Which one leads, as one of those that run says, once they agree.
    async fn leader(&self, asker: &Asker) -> usize {
        let mut leader = None;
        until("the controllers have a leader", async || {
            let mut said = BTreeSet::new();
            for process in self.processes.iter().filter(|one| one.running.is_some()) {
                said.insert(asker.leader(&process.address).await);
            }
            let agreed = said.into_iter().collect::<Vec<_>>();
            leader = match &agreed[..] {
                [Some(address)] => self.processes.iter().position(|one| one.address == *address),
                _ => None,
            };
            leader.is_some_and(|id| self.processes[id].running.is_some())
        })
        .await;
        leader.unwrap()
    }
}

fn controller(folder: &Path, peers: &str, id: &str) -> std::process::Command {
    let set = [
        format!("controllerDLegerPeers={peers}"),
        format!("controllerDLegerSelfId={id}"),
        format!("controllerStorePath={}", folder.display()),
    ];
    let set: Vec<&str> = set.iter().flat_map(|line| ["--set", line.as_str()]).collect();
    gantry(&[&["controller"], &set[..]].concat())
}

/// Who is master, as 1004 says.
#[derive(Debug, PartialEq, Eq)]
struct Master {
    id: Option<i64>,
    epoch: i32,
    in_sync: BTreeSet<i64>,
}

/// Asks controllers.
struct Asker(Client);

impl Asker {
    fn new() -> Asker {
        Asker(Client::new(ClientOptions { back_off_max: Duration::ZERO, ..ClientOptions::default() }))
    }

    async fn ask(
        &self,
        at: &str,
        code: i32,
        fields: &(dyn EncodeFields + Sync),
        body: &str,
    ) -> Result<Response, CallError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.0.call(at, code, fields, Bytes::copy_from_slice(body.as_bytes()), PATIENCE).await?;
            // A leader that does not get its turn in time does not lead for a moment.
            if answer.code != NOT_LEADER || Instant::now() > deadline {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The code of the answer.
    async fn code(&self, at: &str, code: i32, fields: &(dyn EncodeFields + Sync), body: &str) -> i32 {
        self.ask(at, code, fields, body).await.unwrap().code
    }

    async fn leader(&self, at: &str) -> Option<String> {
        let answer = self.ask(at, request::CONTROLLER_GET_METADATA_INFO, &(), "").await.ok()?;
        let fields = answer.fields.as_fields();
        GetControllerMetadataReply::decode(&fields).unwrap().controller_leader_address.map(str::to_owned)
    }

    async fn master(&self, at: &str) -> Option<Master> {
        let asked = GetReplicaInfo { broker_name: SET };
        let answer = self.ask(at, request::CONTROLLER_GET_REPLICA_INFO, &asked, "").await.ok()?;
        let set: SyncStateSet = serde_json::from_slice(&answer.body).ok()?;
        let fields = answer.fields.as_fields();
        let reply = GetReplicaInfoReply::decode(&fields).unwrap();
        Some(Master { id: reply.master_broker_id, epoch: reply.master_epoch.unwrap(), in_sync: set.sync_state_set })
    }

    async fn elect(&self, at: &str, broker_id: i64) -> i32 {
        let fields = ElectMaster {
            cluster_name: CLUSTER,
            broker_name: SET,
            broker_id,
            designate_elect: false,
            invoke_time: Some(0),
        };
        self.code(at, request::CONTROLLER_ELECT_MASTER, &fields, "").await
    }

    async fn alter(&self, at: &str, master: &Master, set_epoch: i32, ids: &str) -> i32 {
        let fields = AlterSyncStateSet {
            broker_name: SET,
            master_broker_id: master.id.unwrap(),
            master_epoch: master.epoch,
            invoke_time: Some(0),
        };
        let body = format!("{{\"syncStateSet\":[{ids}],\"syncStateSetEpoch\":{set_epoch}}}");
        self.code(at, request::CONTROLLER_ALTER_SYNC_STATE_SET, &fields, &body).await
    }
}

/// Stands for a broker: a port, and heartbeats by a connection of its own to each controller.
struct Pretended {
    id: i64,
    address: String,
    _port: TcpListener,
    beating: JoinHandle<()>,
}

impl Pretended {
    /// It takes the next id at `at`, and registers there.
    async fn start(asker: &Asker, at: &str, controllers: Vec<String>) -> Pretended {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap().to_string();
        let next = GetNextBrokerId { cluster_name: CLUSTER, broker_name: SET };
        let answer = asker.ask(at, request::CONTROLLER_GET_NEXT_BROKER_ID, &next, "").await.unwrap();
        let fields = answer.fields.as_fields();
        let id = GetNextBrokerIdReply::decode(&fields).unwrap().next_broker_id.unwrap();
        let code = format!("{address};{id}");
        let apply = ApplyBrokerId {
            cluster_name: CLUSTER,
            broker_name: SET,
            applied_broker_id: id,
            register_check_code: &code,
        };
        assert_eq!(asker.code(at, request::CONTROLLER_APPLY_BROKER_ID, &apply, "").await, 0);
        let beating = tokio::spawn(beat(id, address.clone(), controllers));
        let broker = Pretended { id, address, _port: port, beating };
        assert_eq!(broker.register(asker, at).await, 0);
        broker
    }

    async fn register(&self, asker: &Asker, at: &str) -> i32 {
        let fields = RegisterBrokerToController {
            cluster_name: CLUSTER,
            broker_name: SET,
            broker_id: self.id,
            broker_address: &self.address,
            invoke_time: Some(now_ms()),
        };
        asker.code(at, request::CONTROLLER_REGISTER_BROKER, &fields, "").await
    }

    /// Its connections end, and its port refuses others.
    async fn end(self) {
        self.beating.abort();
        assert!(self.beating.await.is_err());
    }
}

fn now_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
}

async fn beat(id: i64, address: String, controllers: Vec<String>) {
    let asker = Asker::new();
    loop {
        for controller in &controllers {
            let fields = BrokerHeartbeat {
                cluster_name: CLUSTER,
                broker_addr: &address,
                broker_name: SET,
                broker_id: Some(id),
                epoch: Some(0),
                max_offset: Some(id),
                confirm_offset: Some(0),
                heartbeat_timeout_mills: Some(60_000),
                election_priority: None,
            };
            // A controller that is down does not hear it.
            let _ = asker.0.oneway(controller, request::BROKER_HEARTBEAT, &fields, Bytes::new()).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_master(asker: &Asker, at: &str, what: &str, wanted: Master) {
    until(what, async || asker.master(at).await.is_some_and(|master| master == wanted)).await;
}

#[tokio::test]
async fn three_controllers_go_on_without_the_one_that_leads_and_know_what_was_answered() {
    let (mut group, asker) = (Group::start(3), Asker::new());
    let leader = group.leader(&asker).await;
    // One that does not lead passes requests on.
    let other = group.processes[(leader + 1) % 3].address.clone();
    let first = Pretended::start(&asker, &other, group.addresses()).await;
    let second = Pretended::start(&asker, &other, group.addresses()).await;
    assert_eq!((first.id, second.id), (1, 2));
    assert_eq!(asker.elect(&other, first.id).await, 0);
    let alone = Master { id: Some(1), epoch: 1, in_sync: [1].into() };
    assert_eq!(asker.master(&other).await.as_ref(), Some(&alone));
    until("the second broker is in sync", async || asker.alter(&other, &alone, 1, "1,2").await == 0).await;

    // Nobody is deposed by the end of a controller.
    group.kill(leader);
    let next = group.leader(&asker).await;
    assert_ne!(next, leader);
    let at = group.processes[next].address.clone();
    let both = || Master { id: Some(1), epoch: 1, in_sync: [1, 2].into() };
    assert_eq!(asker.master(&at).await, Some(both()));

    first.end().await;
    let taken_over = || Master { id: Some(2), epoch: 2, in_sync: [2].into() };
    until_master(&asker, &at, "the second broker is the master", taken_over()).await;

    // The one that comes back makes a majority with the one that never led.
    group.begin(leader);
    until("it has caught up", async || asker.leader(&group.processes[leader].address).await.as_ref() == Some(&at))
        .await;
    group.kill(next);
    let last = group.leader(&asker).await;
    assert_ne!(last, next);
    assert_eq!(asker.master(&group.processes[last].address).await, Some(taken_over()));
    second.end().await;
}

#[tokio::test]
async fn a_controller_that_was_killed_knows_what_it_answered() {
    let (mut group, asker) = (Group::start(1), Asker::new());
    assert_eq!(group.leader(&asker).await, 0);
    let at = group.processes[0].address.clone();
    let broker = Pretended::start(&asker, &at, group.addresses()).await;
    assert_eq!(asker.elect(&at, broker.id).await, 0);
    let first = Master { id: Some(1), epoch: 1, in_sync: [1].into() };
    // 2006 until its first heartbeat has come.
    until("there is no broker 2", async || asker.alter(&at, &first, 1, "1,2").await == 2003).await;
    let configure = "enableElectUncleanMaster=true\nscanNotActiveBrokerInterval=1";
    let answer = asker.ask(&at, request::UPDATE_CONTROLLER_CONFIG, &(), configure).await.unwrap();
    assert!(answer.code == 0 && answer.remark.unwrap().contains("scanNotActiveBrokerInterval has no effect"));
    for (refused, code) in [
        ("controllerDLegerPeers=n0-127.0.0.1:1", 29),
        ("strange=1", 29),
        ("enableElectUncleanMaster=perhaps", 29),
        ("controllerStorePath=/elsewhere", 16),
        ("configBlackList=", 16),
    ] {
        assert_eq!(asker.code(&at, request::UPDATE_CONTROLLER_CONFIG, &(), refused).await, code, "{refused}");
    }

    group.kill(0);
    group.begin(0);
    assert_eq!(group.leader(&asker).await, 0);
    assert_eq!(asker.master(&at).await, Some(first));
    let settings = asker.ask(&at, request::GET_CONTROLLER_CONFIG, &(), "").await.unwrap();
    let settings = String::from_utf8(settings.body.to_vec()).unwrap();
    assert!(settings.contains("enableElectUncleanMaster=true\n"), "{settings}");

    // A master that registers by another connection than its heartbeats come by has started anew.
    assert_eq!(broker.register(&asker, &at).await, 0);
    let again = Master { id: Some(1), epoch: 3, in_sync: [1].into() };
    until_master(&asker, &at, "it is the master of another epoch", again).await;
    assert_eq!(asker.elect(&at, 1).await, 2011, "it is the master");
    assert_eq!(asker.elect(&at, 7).await, 2011, "whoever asks");
    let unknown = asker.ask(&at, 10, &(), "").await.unwrap();
    assert_eq!((unknown.code, unknown.remark.as_deref()), (3, Some(" request type 10 not supported")));
    broker.end().await;

    let (code, said) = group.processes[0].running.take().unwrap().end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    // Its folder is not that of another group.
    let folder = &group.processes[0].folder;
    let other = controller(folder, &format!("n0-{at};n1-127.0.0.1:1"), "n0").output().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(other.status.code() == Some(1) && said.contains("was begun with the nodes"), "{said}");
}

#[tokio::test]
async fn a_master_that_has_started_anew_gives_way_to_a_broker_that_is_in_sync() {
    let (group, asker) = (Group::start(1), Asker::new());
    assert_eq!(group.leader(&asker).await, 0);
    let at = group.processes[0].address.clone();
    let first = Pretended::start(&asker, &at, group.addresses()).await;
    let second = Pretended::start(&asker, &at, group.addresses()).await;
    assert_eq!(asker.elect(&at, first.id).await, 0);
    let alone = Master { id: Some(1), epoch: 1, in_sync: [1].into() };
    until("the second broker is in sync", async || asker.alter(&at, &alone, 1, "1,2").await == 0).await;
    // By another connection than its heartbeats: what it has may be less than it had.
    assert_eq!(first.register(&asker, &at).await, 0);
    until_master(&asker, &at, "the second one is the master", Master { id: Some(2), epoch: 2, in_sync: [2].into() })
        .await;
    first.end().await;
    second.end().await;
}

#[test]
fn what_names_no_controller_is_refused_with_its_key() {
    for (setting, key) in [
        ("controllerDLegerSelfId=n7", "controllerDLegerSelfId=n7"),
        ("controllerDLegerPeers=127.0.0.1:9878", "controllerDLegerPeers=127.0.0.1:9878"),
        ("controllerDLegerPeers=n0-a:1;n0-b:1", "controllerDLegerPeers="),
        ("controllerType=raft", "controllerType=raft"),
    ] {
        let said = fails(&["controller", "--set", setting]);
        assert!(said.contains(key), "{said}");
    }
    let said = fails(&["controller", "--set", "controllerType=jRaft", "--set", "jRaftServerId=elsewhere:1"]);
    assert!(said.contains("jRaftServerId=elsewhere:1") && said.contains("jRaftInitConf"), "{said}");
}
