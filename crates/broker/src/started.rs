//! A broker of its own for tests of this crate's insides, without a port.

use std::path::Path;
use std::sync::Arc;

use config::{Machine, Role, Settings, Sources};
use env::{Clock, Random};
use net::ClientOptions;
use store::{Retention, Store, StoreEnv, StoreOptions};

use crate::broker::Broker;
use crate::duties::Start;

/// Its store lies in `dir`.
pub(crate) async fn at(dir: &Path, name_servers: Vec<String>) -> (Arc<Store>, Arc<Broker>) {
    let machine = Machine { host_name: "localhost".into(), address: [127, 0, 0, 1].into(), home: dir.into() };
    let configuration =
        Settings::load(Sources { data: Some(dir.into()), ..Sources::new(Role::Broker, machine) }).unwrap();
    let (clock, random) = (Clock::real(), Random::seeded(1));
    // However full the machine's disk is.
    let retention = Retention { disk_warning_percent: 100, ..Retention::default() };
    let options = StoreOptions { retention, segment_bytes: 16 << 20, ..StoreOptions::at(dir) };
    let env = StoreEnv { clock: clock.clone(), random: random.clone(), ..StoreEnv::real() };
    let (store, _) = Store::open(options, env).unwrap();
    let start = Start {
        settings: configuration.broker().unwrap(),
        store_settings: configuration.store().unwrap(),
        store: Arc::clone(&store),
        advertised: ([127, 0, 0, 1], 10911).into(),
        name_servers,
        configuration,
        config_file: None,
        log_port: None,
        calls: ClientOptions::default(),
        clock,
        random,
    };
    let broker = Broker::start(start).await.unwrap();
    (store, broker)
}
