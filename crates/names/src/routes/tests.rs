use super::*;

fn topic(name: &str, perm: i32) -> (String, TopicConfig) {
    (name.to_owned(), TopicConfig { topic_name: name.to_owned(), perm, ..TopicConfig::default() })
}

fn registration(address: &str, id: i64, counter: i64, topics: &[&str]) -> Registration {
    let mut body = RegisterBrokerBody::default();
    body.topics.data_version = DataVersion { counter, state_version: 0, timestamp: 1 };
    body.topics.topic_config_table = topics.iter().map(|name| topic(name, perm::READ | perm::WRITE)).collect();
    Registration {
        at: BrokerAddress { cluster: "C".to_owned(), address: address.to_owned() },
        broker_name: "b".to_owned(),
        broker_id: id,
        ha_address: format!("{address}-ha"),
        zone_name: None,
        life_ms: None,
        acting_master: Some(false),
        connection: u64::try_from(id).unwrap(),
        body,
    }
}

fn acting(mut registration: Registration) -> Registration {
    registration.acting_master = Some(true);
    registration
}

const T0: Duration = Duration::from_secs(1_000);

fn after(ms: u64) -> Duration {
    T0 + Duration::from_millis(ms)
}

#[test]
fn a_registered_master_serves_its_topics() {
    let mut table = RouteTable::default();
    assert_eq!(table.register(T0, registration("m", 0, 1, &["A", "B"]), false), Some(Registered::default()));
    let route = table.route("A", false).unwrap();
    assert_eq!(route.broker_datas[0].broker_addrs[&0], "m");
    assert_eq!(route.queue_datas[0].perm, 6);
    assert_eq!(table.route("Z", false), None);
    assert_eq!(table.topics_of("C"), ["A", "B"]);
}

#[test]
fn registering_the_same_again_changes_no_route() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    let generation = table.generation();
    table.register(after(1), registration("m", 0, 1, &["A", "B"]), false);
    assert_eq!(table.generation(), generation);
    table.register(after(2), registration("m", 0, 2, &["A", "B", "C"]), false);
    assert!(table.generation() > generation);
    assert!(table.route("C", false).is_some());
}

#[test]
fn a_slave_learns_its_master_and_brings_no_topics() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    let learnt = table.register(T0, registration("s", 1, 1, &["A", "X"]), false).unwrap();
    assert_eq!((learnt.ha_address.as_deref(), learnt.master_address.as_deref()), (Some("m-ha"), Some("m")));
    assert_eq!(table.route("X", false), None);
    assert_eq!(table.route("A", false).unwrap().broker_datas[0].broker_addrs.len(), 2);
}

#[test]
fn a_slave_that_becomes_master_leaves_its_old_id() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    table.register(T0, registration("s", 1, 1, &["A", "B"]), false);
    table.register(T0, registration("s", 0, 1, &["A", "B"]), false);
    let addresses = &table.route("A", false).unwrap().broker_datas[0].broker_addrs;
    assert_eq!(addresses.iter().map(|(id, address)| (*id, address.as_str())).collect::<Vec<_>>(), [(0, "s")]);
}

#[test]
fn a_master_of_an_older_epoch_does_not_take_the_place_of_a_newer_one() {
    let mut table = RouteTable::default();
    let mut newer = registration("new", 0, 1, &["A", "B"]);
    newer.body.topics.data_version.state_version = 2;
    table.register(T0, newer, false);
    let mut older = registration("old", 0, 9, &["A", "B"]);
    older.body.topics.data_version.state_version = 1;
    assert_eq!(table.register(T0, older, false), Some(Registered::default()));
    assert_eq!(table.route("A", false).unwrap().broker_datas[0].broker_addrs[&0], "new");
}

#[test]
fn a_broker_that_has_only_one_topic_yet_is_turned_down() {
    let mut table = RouteTable::default();
    assert_eq!(table.register(T0, registration("m", 0, 1, &["A"]), false), None);
    assert!(table.cluster_info().broker_addr_table.is_empty());
    assert!(table.cluster_info().cluster_addr_table.is_empty());
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    assert!(
        table.register(T0, registration("m", 0, 2, &["C"]), false).is_some(),
        "known brokers register single topics"
    );
    assert!(table.route("A", false).is_some() && table.route("C", false).is_some());
}

#[test]
fn topics_missing_in_a_registration_go_only_when_asked() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    table.register(T0, registration("m", 0, 2, &["B", "C"]), false);
    assert!(table.route("A", false).is_some());
    table.register(T0, registration("m", 0, 3, &["B", "C"]), true);
    assert!(table.route("A", false).is_none() && table.route("B", false).is_some());
}

#[test]
fn a_silent_broker_expires_with_its_topics() {
    let mut table = RouteTable::default();
    let mut brief = registration("m", 0, 1, &["A", "B"]);
    brief.life_ms = Some(10);
    table.register(T0, brief, false);
    assert!(table.expired(after(10)).is_empty());
    table.touch(&BrokerAddress { cluster: "C".to_owned(), address: "m".to_owned() }, after(5));
    assert!(table.expired(after(15)).is_empty());
    let expired = table.expired(after(16));
    assert_eq!(expired.len(), 1);
    table.unregister(&expired);
    assert_eq!(table.route("A", false), None);
    assert!(table.cluster_info().broker_addr_table.is_empty());
    assert_eq!(table.topics().count(), 0);
}

#[test]
fn a_lost_connection_takes_its_broker_along_and_no_other() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    table.register(T0, registration("s", 1, 1, &["A", "B"]), false);
    let gone = table.disconnected(0);
    table.unregister(&gone);
    let addresses = &table.route("A", false).unwrap().broker_datas[0].broker_addrs;
    assert_eq!(addresses.keys().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_broker_of_another_cluster_with_the_same_address_stays() {
    let mut table = RouteTable::default();
    for (name, cluster, connection, topics) in [("x", "C1", 1, ["A", "B"]), ("y", "C2", 2, ["Y", "Z"])] {
        let mut new = registration("a", 0, 1, &topics);
        (new.broker_name, new.at.cluster, new.connection) = (name.to_owned(), cluster.to_owned(), connection);
        table.register(T0, new, false);
    }
    let gone = table.disconnected(1);
    assert_eq!(gone.iter().map(|one| one.broker_name.as_str()).collect::<Vec<_>>(), ["x"]);
    table.unregister(&gone);
    assert!(table.route("A", false).is_none() && table.route("Y", false).is_some());
    table.unregister(&table.disconnected(2));
    assert!(table.route("Y", false).is_none() && table.live.is_empty());
}

#[test]
fn a_replica_that_has_come_back_with_the_cluster_of_its_broker_is_not_kept_under_the_former_one() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    for cluster in ["Other", "C"] {
        let mut slave = registration("s", 1, 1, &["A", "B"]);
        (slave.at.cluster, slave.life_ms) = (cluster.to_owned(), Some(10));
        table.register(T0, slave, false);
    }
    table.touch(&BrokerAddress { cluster: "C".to_owned(), address: "s".to_owned() }, after(15));
    assert!(table.has_silent(after(15)) && table.expired(after(15)).is_empty());
    table.forget_silent(after(15));
    assert_eq!((table.has_silent(after(15)), table.live.len()), (false, 2));
    assert_eq!(table.members("C", "b").broker_addrs.len(), 2);
}

#[test]
fn a_replica_that_came_with_another_cluster_goes_with_its_connection() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    let mut slave = registration("s", 1, 1, &["A", "B"]);
    slave.at.cluster = "Other".to_owned();
    table.register(T0, slave, false);
    table.unregister(&table.disconnected(1));
    assert_eq!(table.members("C", "b").broker_addrs.keys().copied().collect::<Vec<_>>(), [0]);
}

#[test]
fn the_members_of_a_broker_are_told_whichever_cluster_is_asked_for() {
    let mut table = RouteTable::default();
    table.register(T0, registration("s", 1, 1, &["A", "B"]), false);
    let mut master = registration("m", 0, 1, &["A", "B"]);
    master.at.cluster = "New".to_owned();
    table.register(T0, master, false);
    for cluster in ["C", "New"] {
        let members = table.members(cluster, "b");
        assert_eq!((members.cluster.as_str(), members.broker_addrs.len()), (cluster, 2));
    }
    assert!(table.members("C", "nobody").broker_addrs.is_empty());
}

#[test]
fn an_acting_master_reads_but_does_not_write() {
    let mut table = RouteTable::default();
    table.register(T0, acting(registration("m", 0, 1, &["A", "B"])), false);
    table.register(T0, acting(registration("s", 1, 1, &["A", "B"])), false);
    let changes = table.unregister(&table.disconnected(0));
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].min_broker_id, changes[0].offline_address.as_deref()), (1, Some("m")));
    let route = table.route("A", true).unwrap();
    assert_eq!(route.queue_datas[0].perm, perm::READ);
    assert_eq!(route.broker_datas[0].broker_addrs[&0], "s");
    assert_eq!(table.route("A", false).unwrap().broker_datas[0].broker_addrs[&1], "s");
}

#[test]
fn the_right_to_write_is_wiped_and_given_back() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    assert_eq!(table.set_writable("b", false), 2);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ);
    assert_eq!(table.set_writable("b", true), 2);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ | perm::WRITE);
    assert_eq!(table.set_writable("nobody", true), 0);
}

#[test]
fn a_topic_is_deleted_in_one_cluster_or_in_all() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    table.delete_topic("A", Some("other"));
    assert!(table.route("A", false).is_some());
    table.delete_topic("A", Some("C"));
    assert!(table.route("A", false).is_none());
    table.delete_topic("B", None);
    assert!(table.route("B", false).is_none());
}

#[test]
fn a_broker_that_came_back_under_its_old_address_after_another_one_brings_its_topics() {
    let mut table = RouteTable::default();
    table.register(T0, registration("old", 0, 1, &["A", "B"]), false);
    let mut other = registration("new", 0, 1, &["A", "B"]);
    other.body.topics.topic_config_table.get_mut("A").unwrap().perm = perm::READ;
    other.connection = 7;
    table.register(T0, other, false);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ);
    table.register(T0, registration("old", 0, 1, &["A", "B"]), false);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ | perm::WRITE);
    assert_eq!(table.live.len(), 1);
}

#[test]
fn a_cluster_goes_with_the_last_replica_whichever_it_registered_under() {
    let mut table = RouteTable::default();
    table.register(T0, registration("m", 0, 1, &["A", "B"]), false);
    let mut slave = registration("s", 1, 1, &["A", "B"]);
    slave.at.cluster = "Other".to_owned();
    table.register(T0, slave, false);
    let leaving = |address: &str, cluster: &str, broker_id| Unregistration {
        at: BrokerAddress { cluster: cluster.to_owned(), address: address.to_owned() },
        broker_name: "b".to_owned(),
        broker_id,
    };
    table.unregister(&[leaving("m", "C", 0), leaving("s", "Other", 1)]);
    let clusters = table.cluster_info().cluster_addr_table;
    assert!(clusters.is_empty(), "{clusters:?}");
}

#[test]
fn a_topic_that_is_deleted_and_made_anew_is_not_static_any_more() {
    let mut table = RouteTable::default();
    let mapped = |counter| {
        let mut registration = registration("m", 0, counter, &["A", "B"]);
        let info = TopicQueueMappingInfo { bname: "b".to_owned(), topic: "A".to_owned(), ..Default::default() };
        registration.body.topics.topic_queue_mapping_info_map = Some([("A".to_owned(), info)].into());
        registration
    };
    for cluster in [None, Some("C")] {
        table.register(T0, mapped(1), false);
        let mappings = table.route("A", false).unwrap().topic_queue_mapping_by_broker.unwrap();
        assert_eq!(mappings.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(table.route("B", false).unwrap().topic_queue_mapping_by_broker, None);
        table.delete_topic("A", cluster);
        table.register(T0, registration("m", 0, 2, &["A", "B"]), false);
        assert_eq!(table.route("A", false).unwrap().topic_queue_mapping_by_broker, None, "{cluster:?}");
    }
}
