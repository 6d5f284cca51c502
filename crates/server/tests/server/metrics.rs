//! The page for Prometheus, as somebody who scrapes it sees it.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::support::asking::Asking;
use crate::support::prometheus::{ask, value};
use crate::support::{PATIENCE, Running, fails, gantry, prometheus, until};
use bytes::Bytes;
use config::labels::OWN;
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::SendMessage;

/// A user to whom nothing belongs.
const NOBODY: u32 = 65534;

#[test]
fn prometheus_reads_what_was_sent_and_what_memory_is_for() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let data = tempfile::tempdir().unwrap();
    let running = Running::server_with(
        data.path(),
        &[
            "--set",
            "metricsExporterType=PROM",
            "--set",
            "metricsPromExporterPort=0",
            "--set",
            "memoryLimit=200M",
            "--set",
            "brokerName=counter",
            "--set",
            "metricsLabel=zone:a:b,topic:mine",
        ],
    );
    let broker = running.address("broker").to_owned();
    let port = runtime.block_on(async {
        let client = Client::new(ClientOptions::default());
        for _ in 0..7 {
            let message = SendMessage {
                producer_group: "PG",
                topic: "counted",
                default_topic: "TBW102",
                default_topic_queue_nums: 1,
                queue_id: 0,
                ..SendMessage::default()
            };
            let body = Bytes::from_static(&[b'x'; 100]);
            let answer = client.call(&broker, request::SEND_MESSAGE_V2, &message, body, PATIENCE).await.unwrap();
            assert_eq!(answer.code, 0, "{:?}", answer.remark);
        }
        // The port was the kernel's to choose.
        let line = running.logged("metrics are served at /metrics").await;
        line.rsplit_once(':').unwrap().1.parse().unwrap()
    });
    runtime.block_on(until("memory is counted", async || {
        value(&ask(port, "GET /metrics").1, "gantry_memory_occupied_bytes{", "node_id=\"counter\"") > 0.0
    }));
    let (head, page) = ask(port, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", page.len())), "{head}");
    assert_eq!(value(&page, "rocketmq_messages_in_total{", "topic=\"counted\""), 7.0);
    assert!(value(&page, "rocketmq_throughput_in_total{", "topic=\"counted\"") >= 700.0);
    assert_eq!(value(&page, "gantry_memory_limit_bytes{", ""), (200 << 20) as f64);
    assert!(value(&page, "rocketmq_storage_size_bytes{", "storage_type=\"local\"") >= 700.0);
    assert!(value(&page, "gantry_memory_occupied_bytes{", "node_id=\"counter\"") > 0.0);
    assert!(value(&page, "gantry_major_faults_total{", "threads=\"network\"") >= 0.0);
    assert_eq!(value(&page, "rocketmq_broker_permission{", "cluster=\"DefaultCluster\""), 6.0);
    let families = prometheus::read(&page);
    // Whatever is not ours to choose is told apart by a label; there are no others.
    for (name, (labels, _)) in families.values().flat_map(|family| &family.samples) {
        let known = |label: &String| OWN.contains(&label.as_str()) || label == "zone";
        assert!(labels.keys().all(known) && labels["zone"] == "a:b", "{name} {labels:?}");
    }
    let sizes = &families["rocketmq_message_size"];
    assert_eq!((sizes.kind.as_str(), sizes.samples.len()), ("histogram", 9));
    assert!(sizes.samples.iter().all(|(_, (labels, _))| labels["message_type"] == "normal"));
    assert_eq!(value(&page, "rocketmq_message_size_count{", "topic=\"counted\""), 7.0);
    runtime.block_on(until("the broker is registered", async || ask(port, "GET /healthz/ready").0.contains(" 200 ")));
    assert_eq!(ask(port, "GET /healthz/live").1, "live\n");
    let role: serde_json::Value = serde_json::from_str(&ask(port, "GET /role").1).unwrap();
    let own =
        serde_json::json!({"role": "master", "clusterName": "DefaultCluster", "brokerName": "counter", "brokerId": 0});
    assert_eq!(role, own);
    assert!(ask(port, "GET /role/master").0.contains(" 200 "));
    assert!(ask(port, "GET /other").0.starts_with("HTTP/1.1 404"));
    assert!(ask(port, "POST /metrics").0.starts_with("HTTP/1.1 405"));
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("metricsLabel: \"topic:mine\" is left out: metrics have that label themselves"), "{said}");
}

#[tokio::test]
async fn a_slave_says_that_it_is_not_the_master() {
    let store = tempfile::tempdir().unwrap();
    let store = format!("storePathRootDir={}", store.path().display());
    let settings =
        ["metricsExporterType=PROM", "metricsPromExporterPort=0", "brokerRole=SLAVE", "brokerId=1", store.as_str()];
    let more: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    // No name server and no master are there.
    let running = Running::start(&mut gantry(&[&["broker", "--port", "0", "-n", "127.0.0.1:1"], &more[..]].concat()));
    let line = running.logged("metrics are served at /metrics").await;
    let (head, said) = ask(line.rsplit_once(':').unwrap().1.parse().unwrap(), "GET /role/master");
    assert!(head.contains(" 503 ") && said.contains("not the master"), "{head} {said}");
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[tokio::test]
async fn a_metric_has_as_many_values_as_it_may_and_the_rest_is_counted() {
    let data = tempfile::tempdir().unwrap();
    let settings = ["metricsExporterType=PROM", "metricsPromExporterPort=0", "metricsOtelCardinalityLimit=2"];
    let more: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let running = Running::server_with(data.path(), &more);
    let asking = Asking::of(&running);
    for topic in ["a", "b", "c"] {
        assert_eq!(asking.send(topic, 0, "", "body").await.unwrap().code, 0);
    }
    let line = running.logged("metrics are served at /metrics").await;
    let page = ask(line.rsplit_once(':').unwrap().1.parse().unwrap(), "GET /metrics").1;
    let families = prometheus::read(&page);
    assert_eq!(families["rocketmq_messages_in_total"].samples.len(), 2, "{page}");
    assert_eq!(value(&page, "gantry_metric_values_left_out{", "metric=\"rocketmq_messages_in_total\""), 1.0);
    assert_eq!(value(&page, "gantry_metric_values_left_out{", "metric=\"rocketmq_message_size\""), 1.0);
    assert_eq!(running.end("-TERM").0, Some(0));
}

/// The usual service: the program belongs to root, and the process to somebody else.
#[tokio::test]
async fn a_broker_whose_program_is_somebody_elses_counts_what_is_there() {
    // On a disk: what is in a file system in memory is never on its way to a device.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = data.path().to_str().unwrap();
    let arguments =
        ["server", "--data", path, "--namesrv-port", "0", "--broker-port", "0", "--set", "memoryLimit=200M"];
    let exported = ["--set", "metricsExporterType=PROM", "--set", "metricsPromExporterPort=0"];
    let is_root = rustix::process::geteuid().is_root();
    let may_run = || gantry(&["--version"]).uid(NOBODY).gid(NOBODY).output().is_ok_and(|ended| ended.status.success());
    if !is_root || !may_run() {
        println!("not looked at: only root can start a process of somebody else, who must reach the program");
        return;
    }
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    let running = Running::start(gantry(&[&arguments[..], &exported].concat()).uid(NOBODY).gid(NOBODY));
    let asking = Asking::of(&running);
    let port = running.logged("metrics are served at /metrics").await.rsplit_once(':').unwrap().1.parse().unwrap();
    // Kernels below 6.5 say of nobody's pages that they were changed.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_told = numbers.next().zip(numbers.next()) >= Some((6, 5));
    let body = "x".repeat(64 << 10);
    // What was found first: a later count finds more, and is to know as much of it as the first.
    let mut found = None::<f64>;
    until("more of the log is found than at first, and what of it is dirty", async || {
        assert_eq!(asking.send("counted", 0, "", &body).await.unwrap().code, 0);
        let page = ask(port, "GET /metrics").1;
        let log = value(&page, "gantry_memory_bytes{", "part=\"log\"");
        let is_later = found.is_some_and(|found| log > found);
        if log > 0.0 {
            found.get_or_insert(log);
        }
        is_later && (!is_told || value(&page, "gantry_log_dirty_bytes{", "") > 0.0)
    })
    .await;
    let page = ask(port, "GET /metrics").1;
    assert_eq!(page.contains("gantry_log_dirty_bytes{"), is_told);
    assert_eq!(page.contains("gantry_log_writeback_bytes{"), is_told);
    assert!(value(&page, "gantry_memory_bytes{", "part=\"journal\"") > 0.0);
    // Not all that is mapped, some of which nobody has ever read.
    let (program, of_files) = (value(&page, "gantry_memory_bytes{", "part=\"program\""), running.of_files_kib() << 10);
    assert!(program > 0.0 && program <= of_files as f64, "{program} of the {of_files} that are mapped and in memory");
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[tokio::test]
async fn what_memory_leaves_for_tables_is_shown_as_settings_that_nobody_set() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server_with(data.path(), &["--set", "memoryLimit=128M", "--set", "parkedPullsMax=777"]);
    let asking = Asking::of(&running);
    let settings = asking.settings().await;
    let of = |key: &str| settings.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap();
    for key in ["popLeasesMax", "openHalfMessagesMax"] {
        let rows: u64 = of(key).parse().unwrap();
        assert!((1_000..100_000).contains(&rows), "{key}={rows}");
        assert_eq!(asking.figure(key).await, rows, "and they are in force");
        assert!(running.has_logged(&format!("key=\"{key}\" rows={rows}")), "{key}={rows}");
    }
    assert_eq!(of("parkedPullsMax"), "777");
    assert_eq!(of("requestBytesMax"), asking.status("requestBytesMax").await.unwrap());
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[tokio::test]
async fn metrics_are_logged_where_somebody_asks_for_that_and_not_pushed_anywhere() {
    let data = tempfile::tempdir().unwrap();
    let settings = ["metricsExporterType=LOG", "metricLoggingExporterIntervalInMills=200", "metricsLabel=zone:a"];
    let more: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let running = Running::server_with(data.path(), &more);
    assert_eq!(Asking::of(&running).send("logged", 0, "", "body").await.unwrap().code, 0);
    let line = running.logged("topic=\"logged\",message_type").await;
    assert!(line.contains("metrics metric=\"rocketmq_messages_in_total\"") && line.contains("zone=\"a\""), "{line}");
    assert!(line.contains("message_type=\"normal\",is_system=\"false\"} 1"), "{line}");
    assert_eq!(running.end("-TERM").0, Some(0));

    let settings = ["--set", "metricsExporterType=OTLP_GRPC", "--set", "metricsGrpcExporterTarget=http://x:4317"];
    let running = Running::server_with(data.path(), &settings);
    running.logged("metrics are not pushed; PROM serves them at /metrics, LOG logs them").await;
    assert_eq!(running.end("-TERM").0, Some(0));
}

#[test]
fn a_port_of_metrics_that_somebody_has_stops_the_start_and_is_named() {
    let data = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("metricsPromExporterPort={}", taken.local_addr().unwrap().port());
    let data = data.path().to_str().unwrap();
    let last = fails(&[
        "server",
        "--data",
        data,
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--set",
        "metricsExporterType=PROM",
        "--set",
        &at,
    ]);
    assert!(last.contains("metricsPromExporterPort"), "{last}");
    assert!(!Path::new(data).join("store").exists(), "a start that cannot be begins nothing");
}
