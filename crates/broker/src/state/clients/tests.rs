use super::*;

fn client(connection_id: u64, id: &str) -> Client<u64> {
    Client {
        connection: connection_id,
        connection_id,
        peer: "10.0.0.1:1000".parse().unwrap(),
        client_id: id.into(),
        language: "JAVA",
        version: 479,
    }
}

fn subscription(topic: &str, version: i64, expression: &str, codes: &[i32]) -> SubscriptionData {
    SubscriptionData {
        topic: topic.to_owned(),
        sub_version: version,
        sub_string: expression.to_owned(),
        code_set: codes.to_vec(),
        ..SubscriptionData::default()
    }
}

fn data(topics: &[SubscriptionData]) -> ConsumerData {
    ConsumerData { group_name: "G".to_owned(), subscription_data_set: topics.to_vec(), ..ConsumerData::default() }
}

fn beat(data: &ConsumerData) -> Beat<'_> {
    Beat { data, fingerprint: 0, without_sub: false, may_notify: true }
}

fn told(notice: Option<Notice<u64>>) -> Vec<u64> {
    notice.map(|notice| notice.members.iter().map(|member| member.client.connection_id).collect()).unwrap_or_default()
}

const NOW: Duration = Duration::from_secs(1);

fn after(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn everybody_is_told_when_a_member_comes_or_leaves_and_nobody_when_it_only_lives() {
    let clients = Clients::new();
    let data = data(&[subscription("T", 1, "*", &[])]);
    assert_eq!(told(clients.consume(&client(1, "a"), &beat(&data), NOW).notice), [1]);
    assert_eq!(told(clients.consume(&client(2, "b"), &beat(&data), NOW).notice), [1, 2]);
    assert_eq!(told(clients.consume(&client(1, "a"), &beat(&data), NOW + after(30_000)).notice), Vec::<u64>::new());
    assert_eq!(clients.consumers("G").unwrap().client_ids(), ["a", "b"]);
    assert_eq!(told(clients.leave(1, None, Some("G"), true)), [2]);
    assert_eq!(told(clients.leave(1, None, Some("G"), true)), Vec::<u64>::new(), "it had left already");
    assert!(clients.closed(2).is_empty(), "nobody is left to be told");
    assert!(clients.consumers("G").is_none());
    assert!(clients.changing.lock().is_empty());
}

#[test]
fn other_topics_are_news_and_another_expression_is_not() {
    let clients = Clients::new();
    let me = client(1, "a");
    clients.consume(&me, &beat(&data(&[subscription("T", 1, "A", &[65])])), NOW);
    let changed = clients.consume(&me, &beat(&data(&[subscription("T", 2, "B", &[66])])), NOW);
    assert!(!changed.is_news);
    assert!(wants(&clients.subscription("G", "T").unwrap(), 66));
    let older = clients.consume(&me, &beat(&data(&[subscription("T", 1, "A", &[65])])), NOW);
    assert!(!older.is_news);
    assert_eq!(clients.subscription("G", "T").unwrap().version, 2);
    let more =
        clients.consume(&me, &beat(&data(&[subscription("T", 2, "B", &[66]), subscription("U", 2, "*", &[])])), NOW);
    assert_eq!(told(more.notice), [1]);
    let less = clients.consume(&me, &beat(&data(&[subscription("U", 2, "*", &[])])), NOW);
    assert_eq!(told(less.notice), [1]);
    assert!(clients.subscription("G", "T").is_none());
}

#[test]
fn what_a_member_says_between_heartbeats_replaces_what_is_older_and_nothing_else() {
    let clients = Clients::new();
    let data = data(&[subscription("T", 5, "a", &[97]), subscription("U", 5, "a", &[97])]);
    clients.consume(&client(1, "a"), &beat(&data), NOW);
    let said =
        || vec![subscription("T", 6, "b", &[98]), subscription("U", 4, "b", &[98]), subscription("V", 9, "*", &[])];
    clients.subscribe("G", 2, said());
    assert_eq!(clients.subscription("G", "T").unwrap().version, 5, "a stranger's word counts for nothing");
    clients.subscribe("G", 1, said());
    let (newer, older) = (clients.subscription("G", "T").unwrap(), clients.subscription("G", "U").unwrap());
    assert!(newer.version == 6 && wants(&newer, 98) && !wants(&newer, 97));
    assert!(older.version == 5 && wants(&older, 97), "it knows less than we do");
    assert!(clients.subscription("G", "V").is_none(), "topics come with heartbeats");
    assert_eq!(clients.consumers("G").unwrap().client_ids(), ["a"]);
}

#[test]
fn a_group_that_broadcasts_or_does_not_want_to_is_not_told() {
    let clients = Clients::new();
    let mut data = data(&[subscription("T", 1, "*", &[])]);
    let quiet = Beat { may_notify: false, ..beat(&data) };
    assert!(clients.consume(&client(1, "a"), &quiet, NOW).notice.is_none());
    data.message_model = MessageModel::Broadcasting;
    assert!(clients.consume(&client(2, "b"), &beat(&data), NOW).notice.is_none());
    assert!(clients.closed(2).is_empty());
}

#[test]
fn a_short_heartbeat_keeps_the_subscriptions_and_an_unknown_fingerprint_asks_for_them() {
    let clients = Clients::new();
    let (full, short) = (data(&[subscription("T", 1, "*", &[])]), data(&[]));
    let with = |data, fingerprint, without_sub| Beat { data, fingerprint, without_sub, may_notify: true };
    assert!(!clients.consume(&client(1, "a"), &with(&full, 7, false), NOW).must_resend);
    assert!(!clients.consume(&client(1, "a"), &with(&short, 7, true), NOW).must_resend);
    assert!(clients.subscription("G", "T").is_some());
    assert!(
        clients.consume(&client(1, "a"), &with(&short, 8, true), NOW).must_resend,
        "it subscribes to something else"
    );
    let restarted = Clients::new();
    assert!(restarted.consume(&client(1, "a"), &with(&short, 7, true), NOW).must_resend);
    assert!(restarted.consume(&client(1, "a"), &with(&short, 7, true), NOW).must_resend, "until it has sent them");
    assert!(!restarted.consume(&client(1, "a"), &with(&full, 7, false), NOW).must_resend);
}

#[test]
fn a_client_that_reconnects_counts_once() {
    let clients = Clients::new();
    let data = data(&[subscription("T", 1, "*", &[])]);
    clients.consume(&client(1, "a"), &beat(&data), NOW);
    clients.consume(&client(2, "a"), &beat(&data), NOW);
    assert_eq!(clients.consumers("G").unwrap().client_ids(), ["a"]);
    clients.closed(1);
    assert_eq!(clients.consumers("G").unwrap().client_ids(), ["a"]);
}

#[test]
fn who_is_silent_for_too_long_is_found_once_whatever_groups_it_is_in() {
    let clients = Clients::new();
    clients.consume(&client(1, "a"), &beat(&data(&[])), NOW);
    clients.produce(&client(1, "a"), "P", NOW);
    clients.produce(&client(2, "b"), "P", NOW + after(10_000));
    assert_eq!(clients.silent(NOW + after(120_000), after(120_000)), Vec::<u64>::new());
    assert_eq!(clients.silent(NOW + after(120_001), after(120_000)), [1]);
    clients.produce(&client(1, "a"), "P", NOW + after(120_000));
    assert_eq!(clients.silent(NOW + after(120_001), after(120_000)), [1], "its consumer is silent still");
}

#[test]
fn producers_come_and_go() {
    let clients = Clients::new();
    clients.produce(&client(1, "a"), "P", NOW);
    clients.produce(&client(1, "a"), "P", NOW + after(1));
    clients.produce(&client(2, "b"), "P", NOW);
    let members = clients.producers("P").unwrap();
    assert_eq!(members.len(), 2);
    assert_eq!(members[0].heard_at(), NOW + after(1));
    clients.leave(1, Some("P"), None, true);
    clients.closed(2);
    assert!(clients.producers("P").is_none());
}

#[test]
fn an_expression_without_codes_is_compiled_here() {
    let compiled = ClientSubscription::new(subscription("T", 1, "A || B", &[]), &SubscriptionBytes::default());
    assert_eq!([64, 65, 66].map(|code| wants(&compiled, code)), [false, true, true]);
    assert!(ClientSubscription::new(subscription("T", 1, "*", &[5]), &SubscriptionBytes::default()).want().is_none());
}

fn wants(subscription: &ClientSubscription, code: i64) -> bool {
    let (want, effort) = (subscription.want().map(|want| &**want), crate::state::message_filter::At::Worker.effort());
    store::RecordFilter::wants_unit(
        &mut crate::state::message_filter::Reader { want, effort: &effort, copies: None },
        code,
    )
}

#[test]
fn a_reply_finds_the_producer_that_came_last_under_an_id_until_it_leaves() {
    let clients = Clients::new();
    assert_eq!(clients.producer("a"), None);
    clients.produce(&client(1, "a"), "P", NOW);
    clients.produce(&client(1, "a"), "Q", NOW);
    assert_eq!(clients.producer("a"), Some(1));
    clients.leave(1, Some("P"), None, true);
    assert_eq!(clients.producer("a"), Some(1), "it produces in Q still");
    clients.produce(&client(2, "a"), "P", NOW);
    assert_eq!(clients.producer("a"), Some(2));
    clients.leave(1, Some("Q"), None, true);
    assert_eq!(clients.producer("a"), Some(2), "its namesake stays");
    clients.closed(2);
    assert_eq!(clients.producer("a"), None);
    assert!(clients.changing.lock().is_empty());
}

#[test]
fn a_producer_whose_namesake_has_left_is_found_again_with_its_next_heartbeat() {
    let clients = Clients::new();
    clients.produce(&client(1, "a"), "P", NOW);
    clients.produce(&client(2, "a"), "P", NOW);
    clients.closed(2);
    assert_eq!(clients.producer("a"), None);
    clients.produce(&client(1, "a"), "P", NOW);
    assert_eq!(clients.producer("a"), Some(1));
}

#[test]
fn a_connection_that_changes_its_id_leaves_none_behind() {
    let clients = Clients::new();
    for id in ["a", "b", "c"] {
        clients.produce(&client(1, id), "P", NOW);
    }
    assert_eq!([clients.producer("a"), clients.producer("b"), clients.producer("c")], [None, None, Some(1)]);
    clients.closed(1);
    assert_eq!(clients.by_id.len(), 0);
}

#[test]
fn a_client_that_only_consumes_is_asked_for_no_reply() {
    let clients = Clients::new();
    clients.consume(&client(1, "a"), &beat(&data(&[])), NOW);
    assert_eq!(clients.producer("a"), None);
}

#[test]
fn a_client_that_names_another_group_each_time_is_remembered_for_so_many() {
    let clients = Clients::new();
    for number in 0..=PRODUCES_MAX {
        clients.produce(&client(1, "a"), &format!("G{number}"), NOW);
    }
    assert_eq!(clients.all_producers().len(), PRODUCES_MAX);
    clients.closed(1);
    assert!(clients.all_producers().is_empty());
}

#[test]
fn a_connection_consumes_in_a_bounded_number_of_groups_over_all_its_heartbeats() {
    let clients = Clients::new();
    let (me, other) = (client(1, "a"), client(2, "b"));
    let named = |number: usize| ConsumerData { group_name: format!("G{number}"), ..data(&[]) };
    for number in 0..CONSUMES_MAX {
        assert!(!clients.consume(&me, &beat(&named(number)), NOW).is_full);
    }
    let one_more = named(CONSUMES_MAX);
    assert!(clients.consume(&me, &beat(&one_more), NOW).is_full);
    assert!(clients.consumers(&one_more.group_name).is_none());
    // What it is in goes on, and others have their own.
    assert!(!clients.consume(&me, &beat(&named(0)), NOW).is_full);
    assert!(!clients.consume(&other, &beat(&one_more), NOW).is_full);
    clients.leave(1, None, Some("G0"), true);
    assert!(!clients.consume(&me, &beat(&one_more), NOW).is_full);
}

#[test]
fn subscriptions_beyond_what_all_clients_may_have_are_not_taken_and_known_ones_live_on() {
    let clients = Clients::new();
    let known = data(&[subscription("T", 1, "A", &[65])]);
    assert!(!clients.consume(&client(1, "a"), &beat(&known), NOW).is_full);
    let others = clients.subscribed.count(SUBSCRIPTION_BYTES_MAX - clients.subscription_bytes());
    let newer = data(&[subscription("T", 2, "B", &[66])]);
    assert!(clients.consume(&client(1, "a"), &beat(&newer), NOW).is_full);
    assert_eq!(clients.subscription("G", "T").unwrap().version, 1);
    assert!(!clients.consume(&client(2, "b"), &beat(&known), NOW).is_full, "it brings nothing new");
    drop(others);
    assert!(!clients.consume(&client(1, "a"), &beat(&newer), NOW).is_full);
}
