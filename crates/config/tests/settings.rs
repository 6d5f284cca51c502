//! Whole configurations: what holds in the end, who said so, and what is said about it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use config::key::{Role, Section, State};
use config::{
    BrokerRole, BrokerSettings, ClientTlsSettings, ConfigError, ControllerSettings, Finding, FlushDiskType, Machine,
    MemorySettings, MetricsSettings, NetSettings, Origin, Settings, SourceFile, Sources, StoreSettings, TlsMode,
    TlsSettings, Weight, keys,
};

fn machine() -> Machine {
    Machine {
        host_name: "box".to_owned(),
        address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)),
        home: PathBuf::from("/home/someone"),
    }
}

fn sources(role: Role, text: &str) -> Sources {
    let file = SourceFile { path: PathBuf::from("broker.conf"), text: text.to_owned() };
    Sources { file: Some(file), ..Sources::new(role, machine()) }
}

fn load(text: &str) -> Settings {
    Settings::load(sources(Role::Broker, text)).unwrap()
}

fn refusal(text: &str) -> String {
    Settings::load(sources(Role::Broker, text)).unwrap_err().to_string()
}

fn about<'a>(settings: &'a Settings, key: &str) -> &'a Finding {
    let found: Vec<&Finding> = settings.findings().iter().filter(|finding| finding.key == key).collect();
    assert_eq!(found.len(), 1, "{key}: {found:?}");
    found[0]
}

#[test]
fn a_broker_conf_from_the_field_loads_unchanged() {
    let settings = load(include_str!("data/take-over.conf"));
    let broker = settings.broker().unwrap();
    assert_eq!(broker.namesrv_addr, ["192.0.2.1:9876", "192.0.2.2:9876"]);
    assert_eq!((broker.broker_name.as_str(), broker.broker_ip1.as_str()), ("broker-a", "192.0.2.11"));
    assert_eq!(broker.default_topic_queue_nums, 4);
    assert!(!broker.auto_create_topic_enable && broker.trace_topic_enable);

    let store = settings.store().unwrap();
    assert_eq!(store.flush_disk_type, FlushDiskType::Async);
    assert_eq!(store.broker_role, BrokerRole::SyncMaster);
    assert_eq!(store.mapped_file_size_commit_log, 1 << 30);
    // Apache's broker does not read `mapedFileSizeConsumeQueue`, and would refuse a store with files of that size.
    assert_eq!(store.mapped_file_size_consume_queue, 6_000_000);
    assert_eq!((store.file_reserved_time, store.delete_when), (48, vec![4]));
    assert_eq!(store.max_transfer_count_on_message_in_memory, 2000);
    assert_eq!(store.max_message_size, 6_291_456);
    assert_eq!(store.store_path_root_dir, Path::new("/var/lib/rocketmq/store"));
}

#[test]
fn each_line_of_that_file_that_does_not_do_what_it_says_is_named_once() {
    let settings = load(include_str!("data/take-over.conf"));
    let mut named: Vec<&str> = settings.findings().iter().map(|finding| finding.key.as_str()).collect();
    named.sort_unstable();
    assert_eq!(
        named,
        [
            "abortFile",
            "brokerRole",
            "mapedFileSizeCommitLog",
            "mapedFileSizeConsumeQueue",
            "sendMessageThreadPoolNums",
            "storeCheckpoint",
            "storePathConsumeQueue",
            "storePathIndex",
            "useReentrantLockWhenPutMessage",
            "waitTimeMillsInSendQueue",
        ]
    );
    let queue = about(&settings, "mapedFileSizeConsumeQueue");
    assert_eq!((queue.weight, queue.line()), (Weight::Warning, Some(27)));
    assert!(queue.says.contains("ignored") && queue.says.contains("mappedFileSizeConsumeQueue"), "{queue}");
    assert!(queue.says.contains("is 6000000"), "{queue}");
    assert_eq!(about(&settings, "mapedFileSizeCommitLog").weight, Weight::Note);
    assert!(about(&settings, "brokerRole").says.contains("inSyncReplicas=1"));
    assert_eq!(about(&settings, "abortFile").weight, Weight::Note);
    assert_eq!(about(&settings, "sendMessageThreadPoolNums").line(), Some(33));
    assert!(about(&settings, "waitTimeMillsInSendQueue").says.contains("roomTimeoutMillis"));
}

#[test]
fn sizes_take_suffixes() {
    let settings = load(
        "maxTransferBytesOnMessageInMemory=256M\nmaxTransferCountOnMessageInMemory=32K\nmaxTransferBytesOnMessageInDisk=64M\n\
         maxTransferCountOnMessageInDisk=32K\nmappedFileSizeCommitLog=1G\n",
    );
    let store = settings.store().unwrap();
    assert_eq!(store.max_transfer_bytes_on_message_in_memory, 256 << 20);
    assert_eq!(store.max_transfer_count_on_message_in_disk, 32 << 10);
    assert_eq!(store.mapped_file_size_commit_log, 1 << 30);
    assert!(settings.findings().is_empty(), "{:?}", settings.findings());
}

#[test]
fn a_number_of_entries_where_bytes_are_meant_is_named() {
    let settings = load("mappedFileSizeConsumeQueue=300000");
    let queue = about(&settings, "mappedFileSizeConsumeQueue");
    assert!(queue.says.contains("15000 entries") && queue.says.contains("write 6000000"), "{queue}");
}

#[test]
fn a_queue_file_holds_whole_entries() {
    let settings = load("mappedFileSizeConsumeQueue=6000001");
    assert_eq!(settings.store().unwrap().mapped_file_size_consume_queue, 6_000_020);
    assert!(about(&settings, "mappedFileSizeConsumeQueue").says.contains("6000020"));
}

#[test]
fn places_that_differ_from_the_layout_are_a_warning() {
    let settings = load("storePathRootDir=/data\nabortFile=/elsewhere/abort\nstoreCheckpoint=/data/checkpoint\n");
    let abort = about(&settings, "abortFile");
    assert_eq!(abort.weight, Weight::Warning);
    assert!(abort.says.contains("/data/abort"), "{abort}");
    assert_eq!(about(&settings, "storeCheckpoint").weight, Weight::Note);
}

#[test]
fn what_cannot_be_served_stops_the_start_with_its_name_and_place() {
    for (text, key) in [
        ("brokerRole=SLAVE", "brokerRole"),
        ("brokerId=1", "brokerId"),
        ("enableDLegerCommitLog=true", "enableDLegerCommitLog"),
        ("enableControllerMode=true", "enableControllerMode"),
        ("aclEnable=true", "aclEnable"),
        ("authenticationEnabled=true", "authenticationEnabled"),
        ("storePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/b,/a", "storePathCommitLog"),
        ("messageStorePlugIn=org.example.Store", "messageStorePlugIn"),
        ("timerRocksDBEnable=true", "timerRocksDBEnable"),
        ("transRocksDBEnable=true", "transRocksDBEnable"),
        ("combineCQUseRocksdbForLmq=true", "combineCQUseRocksdbForLmq"),
        ("inBrokerContainer=true", "inBrokerContainer"),
    ] {
        let said = refusal(&format!("# one\n{text}\n"));
        assert!(said.starts_with(&format!("{key}=")) && said.contains("broker.conf:2"), "{said}");
    }
    // Their defaults are no news.
    let quiet = load(
        "enableDLegerCommitLog=false\naclEnable=false\nstoreType=default\ntimerRocksDBEnable=false\nbrokerRole=ASYNC_MASTER\ninSyncReplicas=1\n",
    );
    assert!(quiet.findings().is_empty(), "{:?}", quiet.findings());
}

#[test]
fn a_start_says_what_an_acknowledgement_waits_for() {
    let says = |lines: &str, key: &str| about(&load(lines), key).says.clone();
    let alone = says("brokerRole=SYNC_MASTER\n", "brokerRole");
    assert!(alone.contains("waits for one slave") && alone.contains("inSyncReplicas=1"), "{alone}");
    assert_eq!(load("").store().unwrap().in_sync_replicas, 2);
    assert!(says("brokerRole=SYNC_MASTER\ninSyncReplicas=1\n", "inSyncReplicas").contains("no slave is waited for"));
    for unused in ["inSyncReplicas=2", "minInSyncReplicas=2", "enableAutoInSyncReplicas=true"] {
        let says = says(&format!("{unused}\n"), unused.split_once('=').unwrap().0);
        assert!(says.contains("no effect with ASYNC_MASTER") && says.contains("brokerRole=SYNC_MASTER"), "{says}");
    }
    let least = says("brokerRole=SYNC_MASTER\ninSyncReplicas=2\nminInSyncReplicas=3\n", "minInSyncReplicas");
    assert!(least.contains("fewer than 3") && least.contains("inSyncReplicas=2"), "{least}");
    assert!(says("brokerRole=SYNC_MASTER\nslaveTimeout=3000\n", "slaveTimeout").contains("sendMsgTimeout=3000"));
    for quiet in [
        "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout=2000\n",
        "inSyncReplicas=1\nslaveTimeout=3000\n",
        "minInSyncReplicas=1\nenableAutoInSyncReplicas=false\n",
    ] {
        let settings = load(quiet);
        assert!(settings.findings().is_empty(), "{:?}", settings.findings());
    }
    for wrong in ["inSyncReplicas=65", "minInSyncReplicas=-1", "slaveTimeout=0"] {
        assert!(refusal(&format!("{wrong}\n")).contains(wrong));
    }
}

#[test]
fn a_master_turns_between_its_two_roles_while_running_and_into_nothing_else() {
    let mut settings = load("");
    settings.set("brokerRole", "SYNC_MASTER").unwrap();
    assert_eq!(settings.store().unwrap().broker_role, BrokerRole::SyncMaster);
    settings.set("inSyncReplicas", "3").unwrap();
    settings.set("brokerRole", "ASYNC_MASTER").unwrap();
    let said = settings.set("brokerRole", "SLAVE").unwrap_err().to_string();
    assert!(said.contains("brokerRole=SLAVE") && said.contains("start again"), "{said}");
    let mut slave = load("brokerRole=SLAVE\nbrokerId=1\n");
    assert!(slave.set("brokerRole", "SYNC_MASTER").is_err());
}

#[test]
fn a_slave_has_an_id_above_0_and_keys_that_a_master_does_not_read() {
    let twin = "haMasterAddress=m:10912\nslaveReadEnable=true\ninSyncReplicas=2\nsyncFromLastFile=false\n";
    let slave = load(&format!("brokerRole=SLAVE\nbrokerId=1\n{twin}"));
    let named: Vec<&str> = slave.findings().iter().map(|finding| finding.key.as_str()).collect();
    assert_eq!(named, ["inSyncReplicas"]);
    let settings = slave.broker().unwrap();
    assert_eq!((settings.broker_role, settings.broker_id), (BrokerRole::Slave, 1));
    assert_eq!((settings.ha_master_address.as_deref(), settings.slave_read_enable), (Some("m:10912"), true));
    let master = load("haMasterAddress=m:10912\nslaveReadEnable=true\nsyncFromLastFile=false\n");
    assert!(about(&master, "haMasterAddress").says.contains("only a slave"));
    assert_eq!(master.findings().len(), 1, "{:?}", master.findings());
    assert!(master.broker().unwrap().slave_read_enable, "it sends readers to slaves");
    assert!(refusal("brokerId=0\nbrokerRole=SLAVE\n").contains("set brokerId=1"));
    for wrong in ["haMasterAddress=m", "haMasterAddress=m:10912;n:10912"] {
        assert!(refusal(&format!("brokerRole=SLAVE\nbrokerId=1\n{wrong}\n")).contains(wrong));
        // A master's file may have had it for years.
        let key = wrong.split('=').next().unwrap();
        assert!(about(&load(&format!("{wrong}\n")), key).says.contains("only a slave"));
    }
    assert!(refusal("enableSlaveActingMaster=true\n").contains("not part of this version"));
}

#[test]
fn a_master_says_where_slaves_get_its_log_and_who_may_have_it() {
    let port = |lines: &str| load(lines).broker().unwrap().ha_listen_port.0;
    assert_eq!(port("listenPort=20911\n"), 20912);
    // As in Apache, what is not above 0 is not set.
    assert_eq!((port("haListenPort=0\n"), port("haListenPort=-1\n"), port("haListenPort=7\n")), (10912, 10912, 7));
    assert!(refusal("listenPort=65535\n").contains("haListenPort"));
    let allow = load("replicaAllow=10.0.0.0/8,192.168.1.7\n").broker().unwrap().replica_allow;
    assert!(allow.contains([10, 9, 8, 7].into()) && !allow.contains([192, 168, 1, 8].into()));
    for (wrong, limit) in [
        ("replicaAllow=10.0.0.0/33", "32"),
        ("replicaAllow=host", "neither an IP address"),
        ("haListenPort=70000", "65535"),
        ("haHousekeepingInterval=0", "1"),
        ("haTransferBatchSize=100", "1024"),
        ("maxHaTransferByteInSecond=0", "1024"),
        ("replicaRetentionMax=101", "100"),
    ] {
        let said = refusal(&format!("{wrong}\n"));
        assert!(said.contains(wrong) && said.contains(limit), "{said}");
    }
    assert!(about(&load("haSlaveFallbehindMax=1\n"), "haSlaveFallbehindMax").says.contains("haMaxGapNotInSync"));
}

#[test]
fn a_secret_of_a_set_is_long_enough_and_shown_nowhere() {
    let secret = "known to this set only";
    let settings = load(&format!("replicaSecret={secret}\n"));
    let read = settings.broker().unwrap().replica_secret.unwrap();
    assert_eq!(read.0, secret);
    for shown in [settings.print(false), settings.print(true), format!("{read:?}"), settings.shown("replicaSecret")] {
        assert!(!shown.contains(secret) && shown.contains("******"), "{shown}");
    }
    assert!(load("replicaSecret=\n").broker().unwrap().replica_secret.is_none());
    let said = refusal("replicaSecret=guess-me\n");
    assert!(said.contains("too short: it has 8 bytes, and 16 are the least") && !said.contains("guess-me"), "{said}");
}

#[test]
fn the_file_of_a_broker_with_rocksdb_is_taken_as_it_is() {
    // What such a broker left is refused by the store, which knows whether there is any.
    let settings = load("storeType=defaultRocksDB\nconfigManagerVersion=v2\n");
    for key in ["storeType", "configManagerVersion"] {
        let about = about(&settings, key);
        assert!(about.weight == Weight::Warning && about.says.starts_with("no effect"), "{about}");
    }
}

#[test]
fn a_value_that_its_key_does_not_take_stops_the_start() {
    for text in [
        "listenPort=70000",
        "listenPort=eleven",
        "autoCreateTopicEnable=yes",
        "flushDiskType=SOMETIMES",
        "maxMessageSize=4T",
        "diskMaxUsedSpaceRatio=175",
        "com.rocketmq.remoting.frameMaxLength=0",
    ] {
        let said = refusal(text);
        assert!(said.starts_with(text) && said.contains("broker.conf:1"), "{said}");
    }
    // Where the value is not used it does not matter either.
    assert!(Settings::load(sources(Role::Broker, "sendMessageThreadPoolNums=many")).is_ok());
}

#[test]
fn a_value_that_is_brought_into_bounds_is_named() {
    let text = "registerNameServerPeriod=5000\nflushConsumerOffsetInterval=0\ndiskMaxUsedSpaceRatio=99\nsplitRegistrationSize=800\n";
    let settings = load(text);
    let says = |key| about(&settings, key).says.clone();
    assert_eq!(says("registerNameServerPeriod"), "5000 is outside 10000 to 60000; 10000 is used");
    assert_eq!(says("flushConsumerOffsetInterval"), "0 is below 100, which is used");
    assert_eq!(says("diskMaxUsedSpaceRatio"), "99 is outside 10 to 95; 95 is used");
    assert!(settings.findings().iter().all(|finding| finding.key != "splitRegistrationSize"));
}

#[test]
fn whatever_rocketmq_can_set_is_in_the_table() {
    let lines = include_str!("data/setters-5.5.0.txt").lines();
    let setters: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '['])).collect();
    assert!(setters.len() > 500, "{}", setters.len());
    let missing: Vec<&str> = setters.into_iter().filter(|name| keys::find(Role::Broker, name).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_finding_says_where_its_line_stands_and_what_it_says() {
    let mut layers = sources(Role::Broker, "listenPort=10911\nstoreType=default\n");
    let text = "# one\nlistenPort=1\nkeystore.secret=hunter2\n".to_owned();
    layers.tls_file = Some(SourceFile { path: "tls.properties".into(), text });
    layers.command_line.push(("storeType".to_owned(), "defaultRocksDB".to_owned(), "--set".to_owned()));
    let settings = Settings::load(layers).unwrap();
    let said = |key| {
        let finding = about(&settings, key);
        (finding.origin.to_string(), finding.value.as_deref(), finding.line())
    };
    assert_eq!(said("listenPort"), ("tls.properties:2".to_owned(), Some("1"), Some(2)));
    assert_eq!(said("storeType"), ("option --set".to_owned(), Some("defaultRocksDB"), None));
    // What may be a password stays where it is.
    assert_eq!(said("keystore.secret"), ("tls.properties:3".to_owned(), None, Some(3)));
    let secret = load("tls.client.keyPassword=secret\ntls.client.keyPasword=secret\n");
    assert!(secret.findings().len() == 2 && secret.findings().iter().all(|finding| finding.value.is_none()));
}

#[test]
fn queues_with_extension_files_are_a_warning_that_says_how_they_are_read() {
    let settings = load("enableConsumeQueueExt=true\n");
    let finding = about(&settings, "enableConsumeQueueExt");
    assert!(finding.weight == Weight::Warning && finding.says.contains("the log says the tags"), "{finding}");
    assert!(load("enableConsumeQueueExt=false\n").findings().is_empty());
}

#[test]
fn a_key_that_nobody_knows_is_named_with_the_one_that_was_meant() {
    let settings = load("brokerNmae=a\nfileReservedTme=3\nxyzzy=1\n");
    assert!(about(&settings, "brokerNmae").says.contains("brokerName"));
    assert!(about(&settings, "fileReservedTme").says.contains("fileReservedTime"));
    assert_eq!(about(&settings, "xyzzy").says, "not a key of RocketMQ; ignored");
}

#[test]
fn the_last_of_several_lines_counts_and_is_named_once() {
    let settings = load("listenPort=1\nlistenPort=2\nlistenPort=3\n");
    assert_eq!(settings.broker().unwrap().listen_port, 3);
    assert!(about(&settings, "listenPort").says.contains("3 times"));
}

#[test]
fn a_spelling_that_rocketmq_does_not_read_is_ignored_and_named_with_its_line() {
    let settings = load("# one\nmapedFileSizeCommitLog=4096\nwarmMappedFileEnable=true\n");
    assert_eq!(settings.store().unwrap().mapped_file_size_commit_log, 1 << 30);
    for (key, new, line) in
        [("mapedFileSizeCommitLog", "mappedFileSizeCommitLog", 2), ("warmMappedFileEnable", "warmMapedFileEnable", 3)]
    {
        let finding = about(&settings, key);
        assert_eq!((finding.weight, finding.line()), (Weight::Warning, Some(line)));
        assert!(finding.says.contains("ignored") && finding.says.contains(new), "{finding}");
    }
    let settings = load("mappedFileSizeCommitLog=8192\nmapedFileSizeCommitLog=4096\n");
    assert_eq!(settings.store().unwrap().mapped_file_size_commit_log, 8192);
    let mut layers = sources(Role::Broker, "");
    layers.command_line.push(("mapedFileSizeCommitLog".to_owned(), "4096".to_owned(), "--set".to_owned()));
    let said = Settings::load(layers).unwrap_err().to_string();
    assert!(said.contains("mapedFileSizeCommitLog") && said.contains("mappedFileSizeCommitLog"), "{said}");
}

#[test]
fn everything_that_stops_a_start_is_said_at_once_with_name_and_line() {
    let text = "brokerIP1=change me\nmessageDelayLevel=1s,5s\nmappedFileSizeCommitLog=10\nnamesrvAddr=127.0.0.1\n\
                brokerRole=SLAVE\nlistenPort=x\ndeleteWhen=25\naclEnable=true\nstorePathRootDir=/s\n";
    let said = refusal(text);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 9, "{said}");
    for (line, setting) in text.lines().take(8).enumerate() {
        let expected = format!("  {setting} (broker.conf:{})", line + 1);
        assert!(lines[line + 1].starts_with(&expected), "{said}");
    }
    let (settings, refused) = Settings::read(sources(Role::Broker, text));
    assert_eq!((settings.text("storePathRootDir").as_str(), refused.len()), ("/s", 8));
    assert_eq!(settings.broker().unwrap().listen_port, 10911);
    let mut layers = sources(Role::Broker, "");
    layers.command_line.push(("namesrvAddr".to_owned(), "10.0.0.1".to_owned(), "-n".to_owned()));
    let said = Settings::load(layers).unwrap_err().to_string();
    assert!(said.starts_with("namesrvAddr=10.0.0.1 (option -n)") && said.contains("10.0.0.1:9876"), "{said}");
}

#[test]
fn letters_that_an_apache_broker_reads_as_others_are_refused_with_both_readings() {
    let text = "# 中文 in a comment is nobody's matter\nbrokerName=经纪人\nstorePathRootDir=/data/消息/store\n";
    let said = refusal(text);
    for part in [
        "brokerName=经纪人 (broker.conf:2)",
        "storePathRootDir=/data/消息/store (broker.conf:3)",
        "brokerName=\\u7ecf\\u7eaa\\u4eba ",
        "storePathRootDir=/data/\\u6d88\\u606f/store ",
        "storePathRootDir=/data/\\u00e6\\u00b6\\u0088\\u00e6\\u0081\\u00af/store ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Both of what it offers are taken, and are what it says.
    let settings = load("brokerName=\\u7ecf\\u7eaa\\u4eba\nstorePathRootDir=/data/\\u00e6\\u00b6\\u0088/store\n");
    assert_eq!(settings.text("brokerName"), "经纪人");
    assert_eq!(settings.text("storePathRootDir"), "/data/æ¶\u{88}/store");
    // Where it says nothing here it does not matter, and an option is no file.
    assert!(Settings::load(sources(Role::Broker, "productEnvName=生产\nbrokerName=a\n")).is_ok());
    let mut layers = sources(Role::Broker, "");
    layers.command_line.push(("brokerName".to_owned(), "经纪人".to_owned(), "--set".to_owned()));
    assert_eq!(Settings::load(layers).unwrap().text("brokerName"), "经纪人");
}

#[test]
fn a_file_that_is_something_else_is_refused_with_its_name() {
    let acl = "globalWhiteRemoteAddresses:\n- 10.10.103.*\naccounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n  admin: false\n";
    for text in
        [acl, "{ \"rocketMQClusterName\": \"DefaultCluster\" }", "\u{7f}ELF\u{2}\u{1}\u{0}\u{0}", "a\0=\x001\0\n\0"]
    {
        let said = refusal(text);
        assert!(said.starts_with("broker.conf is not a property file: "), "{said}");
    }
    // Nothing in it, or lines of another version, with a typing error, or of the other process, is something else again.
    for text in
        ["", "# only a comment\n", "mapedFileSizeCommitLog=1\n", "brokrName=a\n", "orderMessageEnable=true\nxyzzy=1\n"]
    {
        assert!(Settings::load(sources(Role::Broker, text)).is_ok(), "{text}");
    }
}

#[test]
fn a_byte_order_mark_does_not_hide_the_first_line_and_that_it_does_for_apache_is_said() {
    let settings = load("\u{feff}storePathRootDir=/data\nbrokerName=a\n");
    assert_eq!(settings.text("storePathRootDir"), "/data");
    let finding = about(&settings, "storePathRootDir");
    assert!(finding.weight == Weight::Warning && finding.says.contains("byte order mark"), "{finding}");
    assert!(load("\u{feff}# first\nbrokerName=a\n").findings().is_empty());
}

#[test]
fn the_file_wins_over_the_environment_and_the_command_line_over_both() {
    let mut layers = sources(Role::Broker, "brokerName=file\n");
    layers.environment.insert("NAMESRV_ADDR".to_owned(), "env:9876".to_owned());
    let settings = Settings::load(layers.clone()).unwrap();
    assert_eq!(settings.broker().unwrap().namesrv_addr, ["env:9876"]);
    assert_eq!(settings.origin("namesrvAddr"), Origin::Environment("NAMESRV_ADDR".to_owned()));

    layers.file.as_mut().unwrap().text.push_str("namesrvAddr=file:9876\n");
    let settings = Settings::load(layers.clone()).unwrap();
    assert_eq!(settings.broker().unwrap().namesrv_addr, ["file:9876"]);

    layers.command_line.push(("namesrvAddr".to_owned(), "here:9876".to_owned(), "-n".to_owned()));
    let settings = Settings::load(layers).unwrap();
    assert_eq!(settings.broker().unwrap().namesrv_addr, ["here:9876"]);
    let printed = settings.print(true);
    assert!(printed.contains("namesrvAddr=here:9876") && printed.contains("# option -n"), "{printed}");
    assert!(printed.contains("brokerName=file") && printed.contains("# broker.conf:1"), "{printed}");
}

#[test]
fn variables_of_containers_set_keys_and_what_does_nothing_is_named() {
    let mut layers = sources(Role::Broker, "brokerName=file\nbrokerIP1=192.0.2.1\n");
    let variables = [
        ("BROKER_NAME", "operator"),
        ("BROKER_ID", "0"),
        ("BROKER_CLUSTER_NAME", "its-cluster"),
        ("POD_IP", "10.0.0.7"),
        ("GANTRY_SET_brokerIP1", "10.0.0.8"),
        ("GANTRY_SET_TLS_SERVER_MODE", "disabled"),
        ("GANTRY_SET_brokerNam", "x"),
        ("JAVA_OPT_EXT", "-Xmx8g -Drocketmq.broker.diskSpaceWarningLevelRatio=0.9"),
    ];
    layers.environment.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let settings = Settings::load(layers.clone()).unwrap();
    let from = |name: &str| (settings.text(name), settings.origin(name).to_string());
    assert_eq!(from("brokerName"), ("file".to_owned(), "broker.conf:1".to_owned()));
    assert_eq!(from("brokerClusterName"), ("its-cluster".to_owned(), "environment BROKER_CLUSTER_NAME".to_owned()));
    assert_eq!(from("brokerIP1"), ("10.0.0.8".to_owned(), "environment GANTRY_SET_brokerIP1".to_owned()));
    assert_eq!(from("tls.server.mode").0, "disabled");
    let unknown = about(&settings, "GANTRY_SET_brokerNam");
    assert!(unknown.weight == Weight::Warning && unknown.says.contains("did you mean brokerName?"), "{unknown}");
    let heap = about(&settings, "JAVA_OPT_EXT");
    let file_wins = about(&settings, "BROKER_NAME");
    assert!(file_wins.weight == Weight::Note && file_wins.says.contains("(broker.conf:1), which wins"), "{file_wins}");
    assert!(heap.says.contains("ignored") && heap.says.contains("-Drocketmq…") && heap.value.is_none(), "{heap}");

    layers.command_line.push(("brokerIP1".to_owned(), "10.0.0.9".to_owned(), "--set".to_owned()));
    assert_eq!(Settings::load(layers.clone()).unwrap().text("brokerIP1"), "10.0.0.9");
    layers.environment.insert("BROKER_ID".to_owned(), "one".to_owned());
    let refused = Settings::load(layers).unwrap_err().to_string();
    assert!(refused.contains("brokerId=one") && refused.contains("environment BROKER_ID"), "{refused}");

    // The same variables beside a name server, and where nobody else is to be served.
    let mut layers = sources(Role::Names, "listenPort=9876\n");
    layers.environment.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    layers.environment.insert("GANTRY_SET_BROKER_NAME".to_owned(), "x".to_owned());
    let settings = Settings::load(layers).unwrap();
    assert!(settings.origin("namesrvAddr") == Origin::Default);
    assert!(about(&settings, "brokerName").says.contains("not read by a name server"));
    let mut layers = Sources { data: Some("./data".into()), ..Sources::new(Role::Server, machine()) };
    layers.environment.insert("POD_IP".to_owned(), "10.0.0.7".to_owned());
    layers.environment.insert("GANTRY_SET_namesrvAddr".to_owned(), String::new());
    let settings = Settings::load(layers).unwrap();
    assert_eq!(settings.text("brokerIP1"), "127.0.0.1");
    assert!(about(&settings, "POD_IP").says.contains("-c"));
    assert!(about(&settings, "GANTRY_SET_namesrvAddr").says.contains("no value"));
}

#[test]
fn without_a_file_nobody_else_is_served_and_with_one_the_machines_address_is_told() {
    let alone =
        Settings::load(Sources { data: Some("./data".into()), ..Sources::new(Role::Server, machine()) }).unwrap();
    assert!(alone.net().unwrap().bind_address.is_loopback());
    assert_eq!(alone.broker().unwrap().broker_ip1, "127.0.0.1");
    assert_eq!(alone.store().unwrap().store_path_commit_log, [Path::new("./data/store/commitlog")]);

    let settings = load("");
    assert!(settings.net().unwrap().bind_address.is_unspecified());
    assert_eq!(settings.broker().unwrap().broker_ip1, "10.0.0.7");
    assert_eq!(settings.broker().unwrap().broker_name, "box");
    assert_eq!(settings.store().unwrap().store_path_root_dir, Path::new("/home/someone/store"));
    assert_eq!(load("brokerIP1=mq.example.org").broker().unwrap().broker_ip1, "mq.example.org");
    assert_eq!(load("bindAddress=10.1.1.1").broker().unwrap().broker_ip1, "10.1.1.1");
}

#[test]
fn a_name_server_has_its_own_port_and_says_which_keys_are_a_brokers() {
    let settings = Settings::load(sources(Role::Names, "brokerName=a\norderMessageEnable=true\n")).unwrap();
    assert_eq!(settings.net().unwrap().listen_port, 9876);
    assert_eq!(settings.text("configBlackList"), "configBlackList;configStorePath;kvConfigPath");
    assert_eq!(about(&settings, "brokerName").says, "not read by a name server; ignored");
    assert_eq!(settings.findings().len(), 1);
}

#[test]
fn a_controller_has_its_own_store_and_a_name_server_has_one_if_it_is_said() {
    let alone = Settings::load(sources(Role::Controller, "brokerName=a\ncontrollerDLegerGroup=g\n")).unwrap();
    let controller = alone.controller().unwrap();
    assert_eq!((controller.group.as_str(), controller.self_id.as_str()), ("g", "n0"));
    assert_eq!(controller.peers, "n0-10.0.0.7:9878");
    assert_eq!(controller.store_path, Path::new("/home/someone/DledgerController"));
    assert_eq!(about(&alone, "brokerName").says, "not read by a controller; ignored");
    assert!(alone.has_controller());
    let names = |text| Settings::load(sources(Role::Names, text)).unwrap();
    assert!(names("enableControllerInNamesrv=true").has_controller() && !names("").has_controller());
    let broker = load("controllerDLegerGroup=g");
    assert_eq!(about(&broker, "controllerDLegerGroup").says, "not read by a broker; ignored");
}

#[test]
fn tls_lines_may_stand_in_the_same_file_and_the_tls_file_wins() {
    let mut layers = sources(Role::Broker, "tls.server.mode=enforcing\ntls.test.mode.enable=false\n");
    assert_eq!(Settings::load(layers.clone()).unwrap().tls().unwrap().mode, TlsMode::Enforcing);
    layers.tls_file = Some(SourceFile {
        path: "tls.properties".into(),
        text: "tls.server.mode=disabled\ntls.server.certPath=/c.pem".to_owned(),
    });
    let tls = Settings::load(layers).unwrap().tls().unwrap();
    assert_eq!(tls.mode, TlsMode::Disabled);
    assert_eq!(tls.cert_path.as_deref(), Some(Path::new("/c.pem")));
    assert!(!tls.test_mode);
    assert!(about(&load("tls.server.certPath=/c.pem"), "tls.server.certPath").says.contains("tls.test.mode.enable"));
}

#[test]
fn a_live_setting_changes_and_others_say_why_not() {
    let mut settings = load("maxMessageSize=1024\n");
    let change = settings.set("maxMessageSize", "2M").unwrap();
    assert_eq!((change.before.as_str(), change.after.as_str()), ("1024", "2M"));
    assert_eq!(settings.store().unwrap().max_message_size, 2 << 20);
    assert_eq!(settings.origin("maxMessageSize"), Origin::Request);
    assert!(matches!(settings.set("storePathRootDir", "/x"), Err(ConfigError::NotLive(_))));
    assert!(matches!(settings.set("xyzzy", "1"), Err(ConfigError::Unknown(_))));
    assert!(matches!(settings.set("maxMessageSize", "much"), Err(ConfigError::Invalid { .. })));
    let said = settings.set("maxMessageSize", "").unwrap_err().to_string();
    assert!(said.starts_with("maxMessageSize= ") && said.contains("empty"), "{said}");
    assert!(matches!(settings.set("mapedFileSizeCommitLog", "1"), Err(ConfigError::OldSpelling { .. })));
    assert_eq!(settings.store().unwrap().max_message_size, 2 << 20);
}

#[test]
fn a_change_that_the_next_start_takes_from_elsewhere_than_the_file_says_from_where() {
    let mut layers = sources(Role::Broker, "maxMessageSize=1024\nbrokerPermission=6\n");
    layers.environment.insert("GANTRY_SET_MAX_MESSAGE_SIZE".to_owned(), "2048".to_owned());
    layers.environment.insert("NAMESRV_ADDR".to_owned(), "env:9876".to_owned());
    layers.command_line.push(("transactionTimeOut".to_owned(), "6000".to_owned(), "--set".to_owned()));
    layers.command_line.push(("tls.client.keyPassword".to_owned(), "secret".to_owned(), "--set".to_owned()));
    let mut settings = Settings::load(layers).unwrap();
    let said = |settings: &Settings, name: &str, value: &str| {
        settings.above_file().overrides(keys::find(Role::Broker, name).unwrap(), value)
    };
    let origin = "environment GANTRY_SET_MAX_MESSAGE_SIZE";
    for _ in 0..2 {
        let told = said(&settings, "maxMessageSize", "4096").unwrap();
        assert!(told.contains("\"2048\"") && told.contains(origin), "{told}");
        settings.set("maxMessageSize", "4096").unwrap();
    }
    assert!(said(&settings, "transactionTimeOut", "7000").unwrap().contains("option --set"));
    // The same value is kept, and what stands below the file or in it alone does not override it.
    assert_eq!(said(&settings, "maxMessageSize", "2K"), None);
    assert_eq!(said(&settings, "brokerPermission", "4"), None);
    assert_eq!(said(&settings, "namesrvAddr", "other:9876"), None);
    let secret = said(&settings, "tls.client.keyPassword", "other").unwrap();
    assert!(!secret.contains("secret") && secret.contains("its value"), "{secret}");
}

#[test]
fn a_used_key_without_a_value_is_named_with_its_line_and_what_counts() {
    let settings = load(
        "# one\nlistenPort=\nflushDiskType=\nautoCreateTopicEnable=\nreadOnlyCommitLogStorePaths=\nbrokerName= \n\
         namesrvAddr=\nsendMessageThreadPoolNums=\nparkedPullsMax=\nrejectTransactionMessage=\n",
    );
    assert_eq!(settings.broker().unwrap().listen_port, 10911);
    let said = |key| {
        let finding = about(&settings, key);
        (finding.line(), finding.weight, finding.says.as_str())
    };
    let by_apache = "has no value: its default is used, 10911, as by Apache";
    assert_eq!(said("listenPort"), (Some(2), Weight::Note, by_apache));
    assert_eq!(said("flushDiskType").1, Weight::Note);
    let switch = "has no value: its default is used, true; Apache reads it as false";
    assert_eq!(said("autoCreateTopicEnable"), (Some(4), Weight::Warning, switch));
    let text = "has no value: its default is used, box; Apache takes the empty text";
    assert_eq!(said("brokerName"), (Some(6), Weight::Warning, text));
    assert!(said("parkedPullsMax").2.ends_with(" is used"));
    assert_eq!(said("rejectTransactionMessage").1, Weight::Note);
    // Empty is what these are by default, and the last is not used.
    let named = |key: &str| settings.findings().iter().any(|finding| finding.key == key);
    for key in ["readOnlyCommitLogStorePaths", "namesrvAddr", "sendMessageThreadPoolNums"] {
        assert!(!named(key), "{key}: {:?}", settings.findings());
    }
    let mut layers = sources(Role::Broker, "");
    layers.command_line.push(("haListenPort".to_owned(), String::new(), "--set".to_owned()));
    let settings = Settings::load(layers).unwrap();
    assert!(about(&settings, "haListenPort").says.contains("its default is used, 10912"));
}

#[test]
fn a_key_is_called_used_exactly_if_a_struct_is_made_from_it() {
    let mut read: Vec<&str> = [
        BrokerSettings::KEYS,
        StoreSettings::KEYS,
        NetSettings::KEYS,
        MemorySettings::KEYS,
        ControllerSettings::KEYS,
        MetricsSettings::KEYS,
        TlsSettings::KEYS,
        ClientTlsSettings::KEYS,
    ]
    .concat();
    read.sort_unstable();
    // `listenPort` is read twice: to listen, and to tell others. TLS has its test mode on both sides.
    read.dedup();
    let mut used: Vec<&str> = keys::TABLES
        .iter()
        .flat_map(|table| table.iter())
        .filter(|key| key.state == State::Used && key.section != Section::Names)
        .map(|key| key.name)
        .collect();
    used.sort_unstable();
    // `configBlackList` is a broker's, and a controller's.
    used.dedup();
    assert_eq!(read, used);
}

#[test]
fn a_broker_that_takes_tls_only_speaks_it_too_unless_told_otherwise() {
    let client_tls = |text: &str| load(text).client_tls().unwrap();
    assert!(!client_tls("").use_tls);
    assert!(client_tls("tls.enable=true").use_tls);
    assert!(client_tls("tls.server.mode=enforcing").use_tls);
    assert!(!client_tls("tls.server.mode=enforcing\ntls.enable=false").use_tls);
    assert!(!client_tls("tls.server.mode=enforcing\nuseTLS=false").use_tls);
    assert!(client_tls("useTLS=true").use_tls);
}

#[test]
fn a_check_of_name_servers_that_does_not_happen_is_named() {
    let skipped = load("tls.enable=true\ntls.client.authServer=true\ntls.client.trustCertPath=/ca.pem");
    assert!(about(&skipped, "tls.client.authServer").says.contains("tls.test.mode.enable"));
    let plain = load("tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath=/ca.pem");
    assert!(about(&plain, "tls.client.authServer").says.contains("tls.enable"));
    let real = load(
        "tls.enable=true\ntls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath=/ca.pem",
    );
    assert!(real.findings().is_empty(), "{:?}", real.findings());
    let tls = real.client_tls().unwrap();
    assert!(tls.auth_server && !tls.test_mode);
    assert_eq!(tls.trust_cert_path.as_deref(), Some(Path::new("/ca.pem")));
}

#[test]
fn a_password_is_not_printed() {
    let printed = load(
        "tls.client.keyPassword=secret\ninitAuthenticationUser={\"username\":\"a\",\"password\":\"secret\"}\n\
         innerClientAuthenticationCredentials={\"accessKey\":\"a\",\"secretKey\":\"secret\"}\n",
    )
    .print(false);
    assert!(!printed.contains("secret"), "{printed}");
}
