//! Two brokers that are configured alike, and a name server that starts again: clients keep a route.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientConfig};
use protocol::body::KvTable;
use protocol::code::request;

use crate::support::{Running, gantry, until};

/// Brokers that register again only when they have a reason: no route comes back by the mere passing of time.
const PERIOD: &str = "registerNameServerPeriod=60000";

/// Less than that.
const SOON: Duration = Duration::from_secs(40);

fn broker(folder: &std::path::Path, store: &str, names: &str) -> Running {
    let file = folder.join(format!("{store}.conf"));
    let root = folder.join(store);
    let text =
        format!("brokerName=alike\nbrokerIP1=127.0.0.1\nlistenPort=0\n{PERIOD}\nstorePathRootDir={}\n", root.display());
    std::fs::write(&file, text).unwrap();
    Running::start(&mut gantry(&["broker", "-c", file.to_str().unwrap(), "-n", names]))
}

fn names(folder: &std::path::Path, port: &str) -> Running {
    let (port, kv) = (format!("listenPort={port}"), folder.join("kvConfig.json"));
    let kv = format!("kvConfigPath={}", kv.display());
    Running::start(&mut gantry(&["namesrv", "--set", &port, "--set", &kv]))
}

/// The address that a name server tells for the broker, within a time that is shorter than the brokers' period.
async fn until_master_is(client: &Client, address: &str) {
    let is_told = until("the broker is in the routes", async || {
        let route = client.admin().route("alike").await;
        route.is_ok_and(|route| route.broker_datas[0].broker_addrs.get(&0).is_some_and(|told| told == address))
    });
    tokio::time::timeout(SOON, is_told).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_alike_are_named_on_both_sides_and_the_first_is_back_when_the_second_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let names = names(folder.path(), "0");
    let at = names.address("namesrv").to_owned();
    let client = Client::start(ClientConfig::new(&at));
    let first = broker(folder.path(), "first", &at);
    until_master_is(&client, first.address("broker")).await;
    let second = broker(folder.path(), "second", &at);
    until_master_is(&client, second.address("broker")).await;

    let said = names.logged("the newest takes its place in the routes").await;
    assert!(said.contains("WARN") && said.contains(first.address("broker")) && said.contains(second.address("broker")));
    let said = second.logged("this one takes its place").await;
    assert!(said.contains("WARN") && said.contains(first.address("broker")), "{said}");
    // It looks before it registers everything, as it does once a period, and now for a reason.
    let change = Bytes::from_static(b"brokerPermission=6");
    client.admin().call(first.address("broker"), request::UPDATE_BROKER_CONFIG, &(), change).await.unwrap();
    let said = first.logged("has taken this one's place in the routes").await;
    assert!(said.contains("WARN") && said.contains(second.address("broker")), "{said}");
    assert_eq!(client.admin().route("alike").await.unwrap().broker_datas[0].broker_addrs[&0], second.address("broker"));

    let seen: KvTable =
        client.admin().ask(first.address("broker"), request::GET_BROKER_RUNTIME_INFO, &()).await.unwrap();
    assert_eq!(seen.table.get("gantryVersion").map(String::as_str), Some(env!("CARGO_PKG_VERSION")));

    second.end("-KILL");
    until_master_is(&client, first.address("broker")).await;
    names.until_logged("is in the routes again");
    first.end("-TERM");
    names.end("-TERM");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_server_that_starts_again_has_its_routes_back_before_the_next_registration_is_due() {
    let folder = tempfile::tempdir().unwrap();
    let before = names(folder.path(), "0");
    let at = before.address("namesrv").to_owned();
    let broker = broker(folder.path(), "store", &at);
    let client = Client::start(ClientConfig::new(&at));
    until_master_is(&client, broker.address("broker")).await;
    before.end("-KILL");
    broker.until_logged("the connection ended");
    let after = names(folder.path(), at.rsplit_once(':').unwrap().1);
    until_master_is(&client, broker.address("broker")).await;
    broker.end("-TERM");
    after.end("-TERM");
}
