//! Why a key has no effect: the sentences that a start prints, each in one place.

pub(super) const ACCESS: &str = "access control is not part of this version";
pub(super) const ACTING: &str =
    "a slave that takes duties of its master while that is gone is not part of this version";
pub(super) const ADDRESS_SERVER: &str =
    "name servers are given by namesrvAddr, -n or NAMESRV_ADDR, not by an address server";
pub(super) const BACKLOG: &str = "1024 connections may wait to be accepted";
pub(super) const BITMAPS: &str =
    "conditions are evaluated at once, in a fraction of a microsecond a message, so nothing is computed ahead";
pub(super) const BROADCAST: &str =
    "broadcast offsets stay with the clients: the proxy that would use them is not part of this version";
pub(super) const CLUSTER_TEST: &str =
    "a topic that no broker has is unknown; it is not looked up at another name server";
pub(super) const COLD_READS: &str =
    "cold reads run on their own threads and cannot slow a producer, so no group has to be held back";
pub(super) const COMMIT: &str =
    "the thread commit writes what has gathered as soon as there is something, however little; meanwhile more gathers";
pub(super) const COMPACTION: &str = "compacted topics are not part of this version";
pub(super) const CONTAINER: &str = "broker containers are not supported: start one `gantry broker` for each broker";
pub(super) const CONTROLLER: &str = "a broker of Gantry in controller mode is not part of this version";
pub(super) const CONTROLLER_METRICS: &str = "a controller serves no metrics";
pub(super) const CONTROLLER_SETTINGS: &str =
    "what is changed by request is kept by the controllers themselves, in controllerStorePath";
pub(super) const DELIVERY: &str = "delayed messages are delivered by one task for all levels, up to 64 with one append, so none waits for the one before";
pub(super) const DISK_USE: &str =
    "the file systems that hold the log and storePathRootDir are measured, with whatever else is on them";
pub(super) const DLEDGER: &str = "DLedger is not supported";
pub(super) const EXPIRY: &str = "expiry deletes one file at a time and spreads the work";
pub(super) const EXTENSIONS: &str = "the files of extensions are neither written nor read: of messages that Apache's broker stored with them the log says the tags, so whoever filters by tags has all of these read; gantry store repair --queues -c FILE builds the queues without them";
pub(super) const FAST_FAILURE: &str = "requests do not queue for thread pools, so none has to be thrown out of a queue: a connection that sends faster than the disk takes is read more slowly";
pub(super) const FILE_PATH: &str = "the path is the one given with -c";
pub(super) const FLUSH: &str =
    "a flush takes what has gathered while the one before it ran, so there is nothing to tune";
pub(super) const FOLD: &str = "queue entries are made together with the record, so nothing has to be dispatched later";
pub(super) const GUARD: &str = "this version has no access control, and a broker that is meant to be guarded is not started open: remove the line if the network is closed";
pub(super) const HALF_LEDGER: &str =
    "each end of a transaction is written with its message, and what is open is counted in memory";
pub(super) const HOME: &str = "nothing is read from the installation directory";
pub(super) const INDEX: &str = "the key index follows the log by itself, and after a crash from where it was safe";
pub(super) const INDEX_FILES: &str = "messageIndexEnable alone says whether there is a key index, and it is in files";
pub(super) const IN_ROCKSDB: &str = "consume queues are kept in files, topics, groups and offsets in the journal; a store that has them in RocksDB is not opened, and says how it is taken over";
pub(super) const JRAFT_OBJECT: &str = "the keys that begin with jRaft are read by themselves";
pub(super) const LEADER_READS: &str = "the leader answers from what a majority of the controllers has";
pub(super) const LOOKS: &str =
    "the leader looks ten times a second whether masters live, and tries again as long as there is none";
pub(super) const RAFT_LOG: &str = "what controllers agree on is kept in a journal, of a few kilobytes";
pub(super) const RAFT_TIMES: &str =
    "a leader is heard of every 200 ms, and another one is elected 1.3 to 1.6 s after it is gone";
pub(super) const JOURNAL: &str = "each change of a topic, group or offset goes into the journal at once";
pub(super) const KEY_PASSWORD: &str = "an encrypted key cannot be opened: decrypt it once with `openssl pkcs8 -in KEY -out PLAIN_KEY` and remove this line";
pub(super) const LABEL: &str = "a label that nothing reads";
pub(super) const LIGHT_IN_ROCKSDB: &str = "light queues are in RocksDB only then, which is not read here, and their messages would not be found: remove the line, and before the first start have all queues built from the log: gantry store repair --queues -c FILE";
pub(super) const LITE_EVENTS: &str = "whoever pops lite topics is always told which of them have something";
pub(super) const LITE_LAG: &str =
    "how far groups are behind in lite topics is not measured all the time; getLiteGroupInfo looks it up";
pub(super) const LMQ_QUOTA: &str = "maxLmqConsumeQueueNum is always kept to";
pub(super) const LOCK: &str = "one short lock guards the end of the log, whatever the number of threads";
pub(super) const LEASES: &str = "leases of popped messages are kept in the journal; there are no check-points to buffer and no revive queues to scan";
pub(super) const LOGGING: &str = "one log, on standard error; its level is set by RUST_LOG";
pub(super) const LOOK_UP: &str = "the name of a name server is looked up again at each new connection";
pub(super) const MAPPING: &str =
    "the pages ahead of the log are made ready and those far behind are let go without being told";
pub(super) const METRICS: &str = "metrics are read at /metrics (metricsExporterType=PROM) or logged (LOG), all of them and since the start; they are not pushed";
pub(super) const NETTY: &str =
    "connections are shared out over the worker threads; there are no pools or permits to size";
pub(super) const NOTIFICATIONS: &str = "who waits for messages is told of each that comes, whether he wants it or not";
pub(super) const NO_WAIT: &str = "no answer is held back after a start";
pub(super) const OFFLINE: &str = "a broker that is offline leaves the route when its lease at the name server ends";
pub(super) const PLUG_IN: &str = "store plug-ins are Java classes; none can be loaded";
pub(super) const POOLS: &str = "requests run where they arrive, on the network threads, so there is no pool to size";
pub(super) const PROPERTY_CRC: &str = "property checksums are neither written nor asked for";
pub(super) const QUEUES: &str = "requests do not queue between threads, so there is no queue to bound";
pub(super) const RECALLS: &str = "a recall is understood with the topic before its key and without";
pub(super) const RECORD_VERSION: &str = "the version of a record follows from the length of its topic";
pub(super) const RECOVERY: &str = "recovery starts at the check-point and reads no more than it must";
pub(super) const REGISTRATION: &str = "the broker registers in full each time, which every name server understands";
pub(super) const REPLICAS: &str = "of copies this version has slaves that follow a master (brokerRole=SLAVE), and masters that wait for them (brokerRole=SYNC_MASTER)";
pub(super) const RETRY_QUEUES: &str =
    "popped messages that come again go to the first queue of the retry topic; all of its queues are read";
pub(super) const ROCKSDB: &str = "nothing is kept in RocksDB";
pub(super) const SEARCH: &str = "queues are found by binary search in the files that exist";
pub(super) const SEND_WAIT: &str = "sends do not queue for a thread pool; how long one waits for room in the log before it is refused is roomTimeoutMillis";
pub(super) const SOCKETS: &str =
    "give the key of the same meaning: serverSocketSndBufSize, serverSocketRcvBufSize or serverSocketBacklog";
pub(super) const SOCKS: &str = "outgoing connections are made without a SOCKS proxy";
pub(super) const STATIC_SUBSCRIPTIONS: &str = "subscriptions come from heartbeats and from pops";
pub(super) const STATS: &str = "statistics are kept without it";
pub(super) const SUBSCRIPTIONS: &str =
    "a subscription ends with the last client that has it; RocketMQ keeps those that proxies report for so long";
pub(super) const SYSTEM_GROUPS: &str = "the system groups are always there";
pub(super) const TIMER_COUNTS: &str =
    "what waits is counted as it comes and goes, so there is nothing to put right at night";
pub(super) const TIMER_TASK: &str = "one task takes in and delivers in batches, tries again what fails, and holds the messages of the next seconds in memory";
pub(super) const TRANSFER: &str = "replies leave the log without a copy where that is faster";
pub(super) const UNREAD: &str = "nothing reads it in RocketMQ either";
pub(super) const WAITING: &str = "which timer messages and half messages wait is in RocksDB (rocksdbstore) then, which is not read here, and they would be lost: let Apache's broker deliver or end them all while nobody sends new ones, then remove the line";
pub(super) const WHEEL: &str =
    "the file timerwheel is written slot by slot, and made anew from timerlog where it is not up to date";
pub(super) const WITHOUT_MMAP: &str =
    "the log is read through mapped files; with transientStorePoolEnable=true nothing is written through them";
