use std::time::Duration;

use protocol::body::{ConsumerData, SubscriptionData};
use store::{StoreEnv, StoreOptions};
use tempfile::TempDir;

use super::*;
use crate::state::clients::{Beat, Client};

/// Conditions beside the clients whose heartbeats they come from.
struct Heard {
    clients: Clients<u64>,
    conditions: Conditions,
    store: Arc<Store>,
    dir: TempDir,
}

fn load(store: &Arc<Store>, now: i64) -> Conditions {
    Conditions::load(store, 20, 32, now).unwrap()
}

fn heard() -> Heard {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
    Heard { clients: Clients::new(), conditions: load(&store, 0), store, dir }
}

impl Heard {
    fn beat(&self, version: i64, kind: &str, expression: &str, now: i64) {
        let subscription = SubscriptionData {
            topic: "T".to_owned(),
            sub_version: version,
            expression_type: kind.to_owned(),
            sub_string: expression.to_owned(),
            ..SubscriptionData::default()
        };
        let data = ConsumerData {
            group_name: "GS".to_owned(),
            subscription_data_set: vec![subscription],
            ..ConsumerData::default()
        };
        let client = Client {
            connection: 1,
            connection_id: 1,
            peer: "10.0.0.1:1000".parse().unwrap(),
            client_id: "a".into(),
            language: "JAVA",
            version: 479,
        };
        let beat = Beat { data: &data, fingerprint: 0, without_sub: false, may_notify: true };
        self.clients.consume(&client, &beat, Duration::ZERO);
        self.conditions.hear(&self.clients.consumers("GS").unwrap(), now);
    }

    fn row(&self) -> ConsumerFilterRow {
        self.conditions.of("GS", "T").unwrap()
    }

    /// Closes the store and opens it again.
    fn restarted(self, now: i64) -> Heard {
        let Heard { store, dir, .. } = self;
        store.close().unwrap();
        drop(store);
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        Heard { clients: Clients::new(), conditions: load(&store, now), store, dir }
    }
}

/// The places recorded from Apache 5.5.0: group GS, topic T, default settings.
#[test]
fn a_condition_has_the_row_that_apache_gives_it() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    let row = r#"{"bloomFilterData":{"bitNum":112,"bitPos":[106,45,15]},"bornTime":100,"clientVersion":7,"consumerGroup":"GS","dead":false,"deadTime":0,"expression":"a = 1","expressionType":"SQL92","topic":"T"}"#;
    assert_eq!(serde_json::to_string(&heard.row()).unwrap(), row);
    let whole = format!(r#"{{"filterDataByTopic":{{"T":{{"groupFilterData":{{"GS":{row}}},"topic":"T"}}}}}}"#);
    assert_eq!(serde_json::to_string(&heard.conditions.table()).unwrap(), whole);
}

#[test]
fn a_group_by_tags_has_none() {
    let heard = heard();
    heard.beat(7, "TAG", "a || b", 100);
    assert_eq!(heard.conditions.of("GS", "T"), None);
    assert_eq!(heard.conditions.changes(), 0);
}

#[test]
fn a_row_is_born_anew_with_another_condition_only() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    heard.beat(8, SQL92, "a = 1", 200);
    assert_eq!((heard.row().born_time, heard.row().client_version), (100, 8));
    let changes = heard.conditions.changes();
    heard.beat(8, SQL92, "a = 1", 300);
    assert_eq!(heard.conditions.changes(), changes, "a heartbeat like the one before is no change");
    heard.beat(9, SQL92, "a = 2", 400);
    assert_eq!((heard.row().born_time, heard.row().client_version, &*heard.row().expression), (400, 9, "a = 2"));
    heard.beat(10, SQL92, "a = = 2", 500);
    assert_eq!(heard.conditions.of("GS", "T"), None, "what cannot be compiled has no row");
}

#[test]
fn a_group_that_leaves_is_remembered_for_a_while_and_goes_on_when_it_comes_back() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    heard.conditions.tend(&heard.clients, 150, 1000);
    assert!(!heard.row().dead, "it is there");
    heard.clients.closed(1);
    heard.conditions.tend(&heard.clients, 200, 1000);
    assert_eq!((heard.row().dead, heard.row().dead_time), (true, 200));
    heard.beat(7, SQL92, "a = 1", 300);
    assert_eq!((heard.row().dead, heard.row().dead_time, heard.row().born_time), (false, 0, 100));
    heard.clients.closed(1);
    heard.conditions.tend(&heard.clients, 400, 1000);
    heard.conditions.tend(&heard.clients, 1399, 1000);
    assert!(heard.row().dead);
    heard.conditions.tend(&heard.clients, 1400, 1000);
    assert_eq!(heard.conditions.of("GS", "T"), None);
}

#[test]
fn a_group_that_goes_over_to_tags_has_left_its_condition() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    heard.beat(8, "TAG", "a", 150);
    heard.conditions.tend(&heard.clients, 200, 1000);
    assert_eq!((heard.row().dead, heard.row().dead_time), (true, 200));
    heard.beat(9, SQL92, "a = 1", 300);
    heard.conditions.tend(&heard.clients, 400, 1000);
    assert!(!heard.row().dead);
}

#[test]
fn a_restart_keeps_rows_and_knows_that_nobody_is_connected() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    let heard = heard.restarted(500).restarted(900);
    assert_eq!((heard.row().born_time, heard.row().dead, heard.row().dead_time), (100, true, 500));
    heard.conditions.tend(&heard.clients, 600, 100);
    let heard = heard.restarted(900);
    assert_eq!(heard.conditions.of("GS", "T"), None, "forgotten is forgotten");
}

#[test]
fn rows_of_bitmaps_of_another_size_are_forgotten_when_the_setting_changes() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    let heard = heard.restarted(200);
    let other = Conditions::load(&heard.store, 20, 64, 300).unwrap();
    assert_eq!(other.of("GS", "T"), None);
    assert_eq!(load(&heard.store, 400).of("GS", "T"), None, "also once it is changed back");
    assert_eq!(Conditions::load(&heard.store, 0, 32, 0).err(), Some(BloomError::ErrorPercent(0)));
}

#[test]
fn a_table_of_apache_is_taken_but_for_rows_of_bitmaps_of_another_size() {
    let heard = heard();
    heard.beat(7, SQL92, "a = 1", 100);
    let row = |bits: u32, group: &str, dead_time: i64| {
        format!(
            r#""{group}":{{"bloomFilterData":{{"bitNum":{bits},"bitPos":[1,2,3]}},"bornTime":50,"clientVersion":3,"consumerGroup":"{group}","dead":{},"deadTime":{dead_time},"expression":"b = 1","expressionType":"SQL92","topic":"U"}}"#,
            dead_time >= 50
        )
    };
    let rows = [row(112, "G1", 0), row(112, "G2", 60), row(104, "G3", 0)].join(",");
    let text = format!(r#"{{"filterDataByTopic":{{"U":{{"groupFilterData":{{{rows}}},"topic":"U"}}}}}}"#);
    assert_eq!(heard.conditions.replace(serde_json::from_str(&text).unwrap(), 500), 2);
    assert_eq!(heard.conditions.of("GS", "T"), None);
    let dead = |group| heard.conditions.of(group, "U").map(|row| (row.born_time, row.dead, row.dead_time));
    assert_eq!((dead("G1"), dead("G2"), dead("G3")), (Some((50, true, 500)), Some((50, true, 60)), None));
}
