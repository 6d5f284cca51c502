//! The binary as a process: what it prints, how it fails to start, how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::net::{TcpListener, TcpStream};

use support::{Running, fails, gantry};

#[test]
fn it_says_where_it_is_and_ends_in_good_order() {
    for signal in ["-TERM", "-INT"] {
        let data = tempfile::tempdir().unwrap();
        let running = Running::server(data.path());
        assert!(running.ready.starts_with("gantry: ready namesrv=127.0.0.1:"), "{}", running.ready);
        for of in ["namesrv", "broker"] {
            TcpStream::connect(running.address(of)).unwrap();
        }
        let (host, port) = running.address("broker").rsplit_once(':').unwrap();
        TcpStream::connect((host, port.parse::<u16>().unwrap() - 2)).expect("the VIP port");
        let store = data.path().join("store");
        assert!(store.join("abort").exists());
        let (code, said) = running.end(signal);
        assert_eq!(code, Some(0), "{said}");
        assert!(!store.join("abort").exists() && store.join("checkpoint").exists(), "{said}");
        assert!(store.join("config/topics.json").exists());
        assert!(said.contains("unregistered"), "{said}");
    }
}

#[test]
fn a_second_process_on_the_same_store_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let said = fails(&["server", "--data", data.path().to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]);
    assert!(said.contains("is locked"), "{said}");
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_taken_port_is_named_before_the_store_is_touched() {
    let data = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let data_text = data.path().to_str().unwrap();
    let said = fails(&["server", "--data", data_text, "--namesrv-port", &port, "--broker-port", "0"]);
    assert!(said.contains(&format!("127.0.0.1:{port} for the name server")), "{said}");
    let said = fails(&["server", "--data", data_text, "--namesrv-port", "0", "--broker-port", &port]);
    assert!(said.contains(&format!("127.0.0.1:{port} for the broker")), "{said}");
    assert!(!data.path().join("store").exists());
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let said = fails(&["server", "--data", file.path().to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]);
    assert!(said.contains(file.path().to_str().unwrap()), "{said}");
}

#[test]
fn a_file_that_asks_for_a_slave_or_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    std::fs::write(&path, "brokerRole=SLAVE\n").unwrap();
    let said = fails(&["broker", "-c", path.to_str().unwrap()]);
    assert!(said.contains("brokerRole=SLAVE") && said.contains("broker.conf:1"), "{said}");
    let said = fails(&["broker", "-c", "/nowhere/broker.conf"]);
    assert!(said.contains("cannot read /nowhere/broker.conf"), "{said}");
    let said = fails(&["namesrv", "--set", "xyzzy=1"]);
    assert!(said.contains("there is no key xyzzy"), "{said}");
}

#[test]
fn the_settings_in_force_are_printed_with_their_origins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    std::fs::write(&path, "# a\nbrokerName=broker-a\n").unwrap();
    let run = |arguments: &[&str]| {
        let output = gantry(arguments).env("NAMESRV_ADDR", "ns:9876").output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let path = path.to_str().unwrap();
    let all = run(&["broker", "-c", path, "--print-config", "--set", "listenPort=12345"]);
    let origin = |line: &str| {
        all.lines().find(|printed| printed.starts_with(line)).unwrap_or_else(|| panic!("{all}")).to_owned()
    };
    assert!(origin("brokerName=broker-a ").ends_with("broker.conf:2"));
    assert!(origin("namesrvAddr=ns:9876 ").ends_with("environment NAMESRV_ADDR"));
    assert!(origin("listenPort=12345 ").ends_with("option --set"));
    assert!(origin("maxMessageSize=4194304 ").ends_with("default"));
    assert_eq!(run(&["broker", "-c", path, "-m"]).lines().count(), 2);
}

#[test]
fn broker_and_name_server_run_apart_and_log_json() {
    let folder = tempfile::tempdir().unwrap();
    let names = Running::start(&mut gantry(&["namesrv", "--set", "listenPort=0"]));
    let conf = folder.path().join("broker.conf");
    let root = folder.path().join("store");
    std::fs::write(
        &conf,
        format!("brokerIP1=localhost\nlistenPort=0\nstorePathRootDir={}\nunheardOf=1\n", root.display()),
    )
    .unwrap();
    let broker = Running::start(&mut gantry(&[
        "broker",
        "-c",
        conf.to_str().unwrap(),
        "-n",
        names.address("namesrv"),
        "--log-format",
        "json",
    ]));
    assert!(broker.ready.starts_with("gantry: ready broker=localhost:"), "{}", broker.ready);
    let (code, said) = broker.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{said}");
    assert!(said.contains("unheardOf (line 4): not a key of RocketMQ"), "{said}");
    assert!(said.contains("without access control"), "{said}");
    assert!(root.join("commitlog").exists());
    assert_eq!(names.end("-INT").0, Some(0));
}
