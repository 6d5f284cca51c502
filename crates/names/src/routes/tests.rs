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

/// Registers with the rules and limits that hold by default.
fn put(table: &mut RouteTable, now: Duration, new: Registration) -> Registered {
    table.register(now, new, &Rules::default()).unwrap()
}

const T0: Duration = Duration::from_secs(1_000);

fn after(ms: u64) -> Duration {
    T0 + Duration::from_millis(ms)
}

#[test]
fn a_registered_master_serves_its_topics() {
    let mut table = RouteTable::default();
    assert_eq!(put(&mut table, T0, registration("m", 0, 1, &["A", "B"])), Registered::default());
    let route = table.route("A", false).unwrap();
    assert_eq!(route.broker_datas[0].broker_addrs[&0], "m");
    assert_eq!(route.queue_datas[0].perm, 6);
    assert_eq!(table.route("Z", false), None);
    assert_eq!(table.topics_of("C"), ["A", "B"]);
}

#[test]
fn registering_the_same_again_changes_no_route() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    let generation = table.generation();
    put(&mut table, after(1), registration("m", 0, 1, &["A", "B"]));
    assert_eq!(table.generation(), generation);
    put(&mut table, after(2), registration("m", 0, 2, &["A", "B", "C"]));
    assert!(table.generation() > generation);
    assert!(table.route("C", false).is_some());
}

#[test]
fn a_slave_learns_its_master_and_brings_no_topics() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    let learnt = put(&mut table, T0, registration("s", 1, 1, &["A", "X"]));
    assert_eq!((learnt.ha_address.as_deref(), learnt.master_address.as_deref()), (Some("m-ha"), Some("m")));
    assert_eq!(table.route("X", false), None);
    assert_eq!(table.route("A", false).unwrap().broker_datas[0].broker_addrs.len(), 2);
}

#[test]
fn a_slave_that_becomes_master_leaves_its_old_id() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    put(&mut table, T0, registration("s", 1, 1, &["A", "B"]));
    put(&mut table, T0, registration("s", 0, 1, &["A", "B"]));
    let addresses = &table.route("A", false).unwrap().broker_datas[0].broker_addrs;
    assert_eq!(addresses.iter().map(|(id, address)| (*id, address.as_str())).collect::<Vec<_>>(), [(0, "s")]);
}

#[test]
fn a_master_of_an_older_epoch_does_not_take_the_place_of_a_newer_one() {
    let mut table = RouteTable::default();
    let mut newer = registration("new", 0, 1, &["A", "B"]);
    newer.body.topics.data_version.state_version = 2;
    put(&mut table, T0, newer);
    let mut older = registration("old", 0, 9, &["A", "B"]);
    older.body.topics.data_version.state_version = 1;
    assert_eq!(put(&mut table, T0, older), Registered::default());
    assert_eq!(table.route("A", false).unwrap().broker_datas[0].broker_addrs[&0], "new");
}

#[test]
fn a_broker_that_has_only_one_topic_yet_is_turned_down() {
    let mut table = RouteTable::default();
    let refused = table.register(T0, registration("m", 0, 1, &["A"]), &Rules::default());
    assert_eq!(refused, Err(TurnedDown::OneTopic));
    assert!(table.cluster_info().broker_addr_table.is_empty());
    assert!(table.cluster_info().cluster_addr_table.is_empty());
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    // Known brokers register single topics.
    put(&mut table, T0, registration("m", 0, 2, &["C"]));
    assert!(table.route("A", false).is_some() && table.route("C", false).is_some());
}

#[test]
fn topics_missing_in_a_registration_go_only_when_asked() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    put(&mut table, T0, registration("m", 0, 2, &["B", "C"]));
    assert!(table.route("A", false).is_some());
    let forget = Rules { forget_missing: true, ..Rules::default() };
    table.register(T0, registration("m", 0, 3, &["B", "C"]), &forget).unwrap();
    assert!(table.route("A", false).is_none() && table.route("B", false).is_some());
}

#[test]
fn a_silent_broker_expires_with_its_topics() {
    let mut table = RouteTable::default();
    let mut brief = registration("m", 0, 1, &["A", "B"]);
    brief.life_ms = Some(10);
    put(&mut table, T0, brief);
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
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    put(&mut table, T0, registration("s", 1, 1, &["A", "B"]));
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
        put(&mut table, T0, new);
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
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    for cluster in ["Other", "C"] {
        let mut slave = registration("s", 1, 1, &["A", "B"]);
        (slave.at.cluster, slave.life_ms) = (cluster.to_owned(), Some(10));
        put(&mut table, T0, slave);
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
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    let mut slave = registration("s", 1, 1, &["A", "B"]);
    slave.at.cluster = "Other".to_owned();
    put(&mut table, T0, slave);
    table.unregister(&table.disconnected(1));
    assert_eq!(table.members("C", "b").broker_addrs.keys().copied().collect::<Vec<_>>(), [0]);
}

#[test]
fn the_members_of_a_broker_are_told_whichever_cluster_is_asked_for() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("s", 1, 1, &["A", "B"]));
    let mut master = registration("m", 0, 1, &["A", "B"]);
    master.at.cluster = "New".to_owned();
    put(&mut table, T0, master);
    for cluster in ["C", "New"] {
        let members = table.members(cluster, "b");
        assert_eq!((members.cluster.as_str(), members.broker_addrs.len()), (cluster, 2));
    }
    assert!(table.members("C", "nobody").broker_addrs.is_empty());
}

#[test]
fn an_acting_master_reads_but_does_not_write() {
    let mut table = RouteTable::default();
    put(&mut table, T0, acting(registration("m", 0, 1, &["A", "B"])));
    put(&mut table, T0, acting(registration("s", 1, 1, &["A", "B"])));
    let changes = table.unregister(&table.disconnected(0)).min_id_changes;
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
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    assert_eq!(table.set_writable("b", false), 2);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ);
    assert_eq!(table.set_writable("b", true), 2);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ | perm::WRITE);
    assert_eq!(table.set_writable("nobody", true), 0);
}

#[test]
fn a_topic_is_deleted_in_one_cluster_or_in_all() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
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
    put(&mut table, T0, registration("old", 0, 1, &["A", "B"]));
    let mut other = registration("new", 0, 1, &["A", "B"]);
    other.body.topics.topic_config_table.get_mut("A").unwrap().perm = perm::READ;
    other.connection = 7;
    put(&mut table, T0, other);
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ);
    let back = Registration { connection: 9, ..registration("old", 0, 1, &["A", "B"]) };
    let came = put(&mut table, T0, back);
    assert_eq!(came.displaced.map(|at| at.address).as_deref(), Some("new"));
    assert_eq!(table.route("A", false).unwrap().queue_datas[0].perm, perm::READ | perm::WRITE);
    assert_eq!(table.live.len(), 2, "the other one stands by");
}

#[test]
fn a_cluster_goes_with_the_last_replica_whichever_it_registered_under() {
    let mut table = RouteTable::default();
    put(&mut table, T0, registration("m", 0, 1, &["A", "B"]));
    let mut slave = registration("s", 1, 1, &["A", "B"]);
    slave.at.cluster = "Other".to_owned();
    put(&mut table, T0, slave);
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
        put(&mut table, T0, mapped(1));
        let mappings = table.route("A", false).unwrap().topic_queue_mapping_by_broker.unwrap();
        assert_eq!(mappings.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(table.route("B", false).unwrap().topic_queue_mapping_by_broker, None);
        table.delete_topic("A", cluster);
        put(&mut table, T0, registration("m", 0, 2, &["A", "B"]));
        assert_eq!(table.route("A", false).unwrap().topic_queue_mapping_by_broker, None, "{cluster:?}");
    }
}

/// A master of `b` that comes over a connection.
fn master(address: &str, connection: u64, topics: &[&str]) -> Registration {
    Registration { connection, ..registration(address, 0, 1, topics) }
}

fn address_of(table: &RouteTable, topic: &str) -> Option<String> {
    table.route(topic, false).map(|route| route.broker_datas[0].broker_addrs[&0].clone())
}

/// Pairs of topic and broker name, counted anew.
fn counted(table: &RouteTable) -> usize {
    table.topics.values().map(BTreeMap::len).sum()
}

#[test]
fn brokers_that_stand_by_have_the_place_back_the_latest_first() {
    let mut table = RouteTable::default();
    for (place, name) in ["x", "y", "z"].into_iter().enumerate() {
        let came = put(&mut table, T0, master(name, place as u64, &["A", name]));
        assert_eq!(came.displaced.is_some(), place > 0);
    }
    // One that stands by hears of it, and what it says counts when it is back.
    let heard = put(&mut table, after(1), Registration { ..master("y", 1, &["A", "y"]) });
    assert_eq!((heard.stands_by_for.as_deref(), heard.displaced), (Some("z"), None));
    let mut more = master("y", 1, &["A", "y", "more"]);
    more.body.topics.data_version.counter = 2;
    put(&mut table, after(2), more);
    assert_eq!((address_of(&table, "A").as_deref(), table.route("more", false)), (Some("z"), None));

    let back = table.unregister(&table.disconnected(2)).back;
    assert_eq!(back.iter().map(|one| one.at.address.as_str()).collect::<Vec<_>>(), ["y"]);
    assert_eq!(address_of(&table, "more").as_deref(), Some("y"));
    // The routes of a name have the topics of all that held it, as in Apache, until one has its place back.
    assert!(table.route("z", false).is_none() && table.route("x", false).is_some());
    table.unregister(&table.disconnected(1));
    assert_eq!(address_of(&table, "x").as_deref(), Some("x"));
    assert!(table.route("y", false).is_none());
    assert_eq!(table.routes, counted(&table));
    table.unregister(&table.disconnected(0));
    assert_eq!(table.size(), TableSize { brokers: 0, topics: 0, routes: 0 });
    assert!(table.standbys.is_empty() && table.clusters.is_empty());
}

#[test]
fn a_silent_broker_does_not_keep_the_place_from_one_that_stands_by() {
    let mut table = RouteTable::default();
    put(&mut table, T0, master("x", 1, &["A", "B"]));
    put(&mut table, T0, master("y", 2, &["A", "B"]));
    put(&mut table, after(75_000), master("x", 1, &["A", "B"]));
    assert_eq!(address_of(&table, "A").as_deref(), Some("y"));
    put(&mut table, after(75_001), master("x", 1, &["A", "B"]));
    assert_eq!(address_of(&table, "A").as_deref(), Some("x"));
}

#[test]
fn a_master_that_a_failover_replaces_does_not_stand_by() {
    let mut table = RouteTable::default();
    put(&mut table, T0, master("x", 1, &["A", "B"]));
    let mut newer = master("y", 2, &["A", "B"]);
    newer.body.topics.data_version.state_version = 1;
    assert_eq!(put(&mut table, T0, newer).displaced, None);
    table.unregister(&table.disconnected(2));
    assert_eq!(table.route("A", false), None);
}

#[test]
fn no_more_brokers_stand_by_than_may() {
    let mut table = RouteTable::default();
    for number in 0..20 {
        put(&mut table, T0, master(&format!("m{number}"), number, &["A", "B"]));
    }
    assert_eq!((table.live.len(), table.standbys["b"].len(), table.routes), (5, 4, 10));
}

#[test]
fn a_route_table_has_as_much_as_its_limits_allow() {
    let limits = Limits { brokers: 2, topics: 3, routes: 4, ..Limits::default() };
    let rules = Rules { limits, ..Rules::default() };
    let mut table = RouteTable::default();
    let mut register = |name: &str, address: &str, topics: &[&str]| {
        let new = registration(address, 0, 1, topics);
        table.register(T0, Registration { broker_name: name.to_owned(), ..new }, &rules)
    };
    let full = |count, topic: &str, limit: &str, max| {
        let why = Unfit::full("topicName", &topic, limit, max);
        LeftOut { count, first: Some((topic.to_owned(), why)) }
    };
    assert_eq!(register("b", "x", &["A", "B", "C", "D", "E"]).unwrap().left_out, full(2, "D", "topicsMax", 3));
    assert_eq!(register("c", "y", &["A", "B"]).unwrap().left_out, full(1, "B", "topicRoutesMax", 4));
    assert_eq!(register("b", "x", &["A", "B", "C"]).unwrap().left_out, LeftOut::default(), "what is there may stay");
    for (name, address, field) in [("d", "z", "brokerAddr"), ("d", "x", "brokerName")] {
        let refused = register(name, address, &["A", "B"]).unwrap_err().to_string();
        assert!(refused.starts_with(field) && refused.contains("brokersMax"), "{refused}");
    }
    assert_eq!(table.size(), TableSize { brokers: 2, topics: 3, routes: 4 });
    table.delete_topic("A", None);
    assert_eq!(table.routes, counted(&table));
}

#[test]
fn a_name_stands_in_a_few_clusters_only() {
    let mut table = RouteTable::default();
    for number in 0..100 {
        let mut new = master("m", 1, &["A", "B"]);
        new.at.cluster = format!("C{number}");
        let taken = table.register(T0, new, &Rules::default());
        assert_eq!(taken.is_ok(), number < CLUSTERS_OF_NAME_MAX, "{number}");
    }
    assert_eq!(table.clusters.len(), CLUSTERS_OF_NAME_MAX);
    table.unregister(&table.disconnected(1));
    table.forget_disconnected(1);
    assert!(table.clusters.is_empty() && table.live.is_empty());
}

#[test]
fn a_mapping_of_another_broker_or_of_no_topic_is_not_taken() {
    let mut table = RouteTable::default();
    let info = |bname: &str, topic: &str| {
        let info = TopicQueueMappingInfo { bname: bname.to_owned(), topic: topic.to_owned(), ..Default::default() };
        (topic.to_owned(), info)
    };
    let mut new = registration("m", 0, 1, &["A", "B"]);
    new.body.topics.topic_queue_mapping_info_map = Some([info("other", "A"), info("b", "nowhere")].into());
    assert_eq!(put(&mut table, T0, new).left_out.count, 1);
    assert!(table.mappings.is_empty());
}
