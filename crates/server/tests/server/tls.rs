//! TLS between a broker and its name server, each a process of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Running, fails, gantry};
use bytes::Bytes;
use net::{Client, ClientOptions, ClientTls};
use protocol::body::TopicRoute;
use protocol::code::request;
use protocol::fastjson;
use protocol::request::GetRouteInfo;

/// An authority, and a server certificate of it that names a host which nobody calls.
fn authority(folder: &Path, name: &str) -> PathBuf {
    let mut params = rcgen::CertificateParams::new(vec!["authority".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["names.example".to_owned()]).unwrap();
    let folder = folder.join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
    fs::write(folder.join("server.pem"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
    folder
}

/// A name server that takes TLS only and shows the certificate of `authority`.
fn name_server(authority: &Path) -> Running {
    let file = |name: &str| authority.join(name).display().to_string();
    Running::start(&mut gantry(&[
        "namesrv",
        "--port",
        "0",
        "--set",
        "tls.server.mode=enforcing",
        "--set",
        "tls.test.mode.enable=false",
        "--set",
        &format!("tls.server.certPath={}", file("server.pem")),
        "--set",
        &format!("tls.server.keyPath={}", file("server.key")),
    ]))
}

/// A broker that trusts `authority` only.
fn broker(folder: &Path, names: &Running, authority: &Path) -> Running {
    let settings = [
        "brokerName=broker-a".to_owned(),
        "listenPort=0".to_owned(),
        "brokerIP1=127.0.0.1".to_owned(),
        format!("storePathRootDir={}", folder.join("store").display()),
        "tls.enable=true".to_owned(),
        "tls.test.mode.enable=false".to_owned(),
        "tls.client.authServer=true".to_owned(),
        format!("tls.client.trustCertPath={}", authority.join("ca.pem").display()),
    ];
    let mut arguments = vec!["broker", "-n", names.address("namesrv")];
    for setting in &settings {
        arguments.extend(["--set", setting]);
    }
    Running::start(&mut gantry(&arguments))
}

/// Waits for the route of the topic that every broker has.
async fn is_routed(names: &str, deadline: Instant) -> bool {
    let client = Client::new(ClientOptions { tls: Some(ClientTls::default()), ..ClientOptions::default() });
    let fields =
        GetRouteInfo { topic: "TBW102", accept_standard_json_only: Some(true), zone_mode: None, zone_name: None };
    loop {
        let asked = client.call(names, request::GET_ROUTEINFO_BY_TOPIC, &fields, Bytes::new(), PATIENCE).await;
        if let Ok(answer) = asked
            && answer.code == 0
        {
            let route: TopicRoute = fastjson::from_slice(&answer.body).unwrap();
            return route.broker_datas.iter().any(|broker| broker.broker_name == "broker-a");
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_broker_registers_with_a_name_server_that_takes_tls_only() {
    let folder = tempfile::tempdir().unwrap();
    let ours = authority(folder.path(), "ours");
    let names = name_server(&ours);
    let broker = broker(folder.path(), &names, &ours);
    assert!(is_routed(names.address("namesrv"), Instant::now() + PATIENCE).await, "not registered");
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert_eq!(names.end("-TERM").0, Some(0));
}

#[tokio::test]
async fn a_broker_does_not_register_with_a_name_server_of_another_authority() {
    let folder = tempfile::tempdir().unwrap();
    let names = name_server(&authority(folder.path(), "theirs"));
    let broker = broker(folder.path(), &names, &authority(folder.path(), "ours"));
    let line = broker.logged("not registered").await;
    assert!(!is_routed(names.address("namesrv"), Instant::now()).await);
    assert!(line.contains("invalid peer certificate") && line.contains(names.address("namesrv")), "{line}");
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert_eq!(names.end("-TERM").0, Some(0));
}

#[tokio::test]
async fn one_process_that_takes_tls_only_registers_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let running = Running::start(&mut gantry(&[
        "server",
        "--data",
        data,
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--set",
        "tls.server.mode=enforcing",
        "--set",
        "brokerName=broker-a",
    ]));
    assert!(is_routed(running.address("namesrv"), Instant::now() + PATIENCE).await, "not registered");
    // And the Rust client finds its way with the same option.
    let mut config = client::ClientConfig::new(running.address("namesrv"));
    config.net.tls = Some(ClientTls::default());
    let client = client::Client::start(config);
    let sent = client.producer("P").send(client::Message::new("T", "over TLS")).await.unwrap();
    assert_eq!(sent.status, client::SendStatus::Ok);
    client.stop().await;
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_trust_file_that_is_not_there_is_named_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let said = fails(&[
        "server",
        "--data",
        data,
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--set",
        "tls.enable=true",
        "--set",
        "tls.test.mode.enable=false",
        "--set",
        "tls.client.authServer=true",
        "--set",
        "tls.client.trustCertPath=/nowhere/ca.pem",
    ]);
    assert!(said.contains("/nowhere/ca.pem") && said.contains("tls.enable"), "{said}");
}
