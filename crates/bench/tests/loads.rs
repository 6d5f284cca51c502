//! Loads on a name server and a broker in this process.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "a test that cannot go on fails")]

mod support;

use std::path::Path;

use bench::{BenchError, Options, Phase, RunResult, Served, Sink, Window};
use support::{Cluster, PATIENCE, Seen, run_at};
use tokio::sync::{oneshot, watch};

fn none_of_it_is_wrong(result: &RunResult, messages: u64, groups: u64) {
    let (summary, tally) = (&result.summary, &result.summary.messages);
    assert_eq!((tally.sent, tally.acknowledged, tally.failed), (messages, messages, 0), "{summary:?}");
    assert_eq!((tally.received, tally.lost, tally.duplicates), (messages * groups, 0, 0), "{summary:?}");
    assert_eq!((summary.stored, tally.foreign, tally.untraced), (Some(messages), 0, 0), "{summary:?}");
    assert!(summary.left_behind.is_empty(), "{:?}", summary.left_behind);
    assert_eq!(result.windows.iter().map(|window| window.sent).sum::<u64>(), messages);
    let measured = |count: fn(&Window) -> u64| -> u64 {
        result.windows.iter().filter(|window| window.phase == Phase::Measure).map(count).sum()
    };
    let expected = measured(|window| window.sent) * groups;
    let ratio = (expected > 0).then(|| measured(|window| window.received) as f64 / expected as f64);
    assert_eq!(summary.consume_per_produce, ratio, "{summary:?}");
    assert_eq!(summary.end_to_end.is_some(), expected > 0 && ratio > Some(0.0), "{summary:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_send_and_consume_delivers_each_message_once_to_each_group() {
    let cluster = Cluster::start().await;
    let modes: [&[(&str, &str)]; 9] = [
        &[("sendMode", "sync"), ("threads", "4"), ("consumeMode", "pull")],
        &[("sendMode", "async"), ("backpressureConcurrency", "50"), ("consumeMode", "push"), ("header", "binary")],
        &[("sendMode", "oneway"), ("threads", "2"), ("consumeMode", "pull"), ("keyDistributor", "KEY_ROUND_ROBIN")],
        &[
            ("sendMode", "sync"),
            ("batchSize", "30"),
            ("consumeMode", "pop"),
            ("consumeThreads", "2"),
            ("pullWaitMillis", "2000"),
        ],
        &[("sendMode", "async"), ("batchSize", "64"), ("batchCQ", "true"), ("consumeMode", "pull")],
        &[("sendMode", "sync"), ("messageSize", "5000"), ("compressOverBytes", "1000"), ("consumeMode", "pull")],
        &[("sendMode", "sync"), ("threads", "20"), ("autoBatch", "true"), ("consumeMode", "pull")],
        &[
            ("sendMode", "async"),
            ("autoBatch", "true"),
            ("batchCQ", "true"),
            ("batchMaxBytes", "2000"),
            ("backpressureConcurrency", "10"),
            ("consumeMode", "pull"),
        ],
        &[("sendMode", "oneway"), ("autoBatch", "true"), ("batchMaxDelayMs", "1"), ("consumeMode", "push")],
    ];
    for mode in modes {
        let shape = [
            ("messages", "2000"),
            ("topics", "2"),
            ("producersPerTopic", "2"),
            ("subscriptionsPerTopic", "2"),
            ("consumerPerSubscription", "2"),
        ];
        let result = cluster.run(&[&shape, mode].concat()).await;
        none_of_it_is_wrong(&result, 2000, 2);
        let summary = &result.summary;
        assert!(summary.publish.is_some(), "{mode:?}: {summary:?}");
        let is_ordered = mode[0] == ("sendMode", "sync") && mode.contains(&("consumeMode", "pull"));
        assert_eq!(summary.disordered, is_ordered.then_some(0), "{mode:?}");
        assert!(result.problems().is_empty(), "{mode:?}: {:?}", result.problems());
    }
    // Nor what brokers make for groups.
    assert_eq!(cluster.topics("bench-").await, Vec::<String>::new());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_null_server_every_way_to_send_comes_out_even_with_pulls() {
    let sink = Sink::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = sink.address();
    let (end, ended) = oneshot::channel::<()>();
    let serving = tokio::spawn(sink.run(async move { drop(ended.await) }));
    let modes: [&[(&str, &str)]; 6] = [
        &[("sendMode", "sync"), ("threads", "4"), ("pullWaitMillis", "500")],
        &[("sendMode", "async"), ("header", "binary"), ("topics", "2"), ("subscriptionsPerTopic", "2")],
        &[("sendMode", "oneway"), ("threads", "2"), ("pullWaitMillis", "0")],
        &[("sendMode", "async"), ("batchSize", "64"), ("batchCQ", "true"), ("consumerPerSubscription", "3")],
        &[("sendMode", "sync"), ("messageSize", "5000"), ("compressOverBytes", "1000")],
        &[("sendMode", "sync"), ("subscriptionsPerTopic", "0")],
    ];
    let mut all = Served::default();
    for mode in modes {
        let result = run_at(at, &[&[("messages", "2000")], mode].concat()).await;
        let groups = u64::from(result.workload.subscriptions_per_topic);
        none_of_it_is_wrong(&result, 2000, groups);
        assert!(result.problems().is_empty(), "{mode:?}: {:?}", result.problems());
        all = Served { taken: all.taken + 2000, given: all.given + 2000 * groups };
    }
    end.send(()).unwrap();
    let served = tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap();
    assert_eq!(served, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_held_and_shared_out_over_producers() {
    let cluster = Cluster::start().await;
    let values = [
        ("producerRate", "400"),
        ("producersPerTopic", "3"),
        ("testDurationMinutes", "0.06"),
        ("backpressureConcurrency", "64"),
    ];
    let result = cluster.run(&values).await;
    let summary = &result.summary;
    let all_seconds: f64 = result.windows.iter().map(|window| window.seconds).sum();
    // A busy machine ends late, and what is due until then is sent; a rate of each producer, or a third of the rate, is further off.
    let due = 400.0 * summary.measured_seconds * 0.95..=400.0 * all_seconds * 1.05;
    let sent = (summary.messages.sent + summary.due_and_never_sent) as f64;
    assert!(due.contains(&sent), "{sent} of {due:?}");
    assert!(summary.produce_rate < 420.0 && summary.asked_rate == 400.0, "{summary:?}");
    assert_eq!((summary.messages.lost, summary.messages.duplicates), (0, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_messages_at_a_rate_ends_with_its_last_message() {
    let cluster = Cluster::start().await;
    // More producers than one needs, batches that are not full, and far more lanes than messages.
    for more in [("producersPerTopic", "1"), ("producersPerTopic", "3"), ("batchSize", "7")] {
        let result = cluster.run(&[("messages", "200"), ("producerRate", "400"), more]).await;
        none_of_it_is_wrong(&result, 200, 1);
        // It could go on for two minutes.
        assert!((0.4..30.0).contains(&result.summary.measured_seconds), "{more:?}: {:?}", result.summary);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_our_own_connection_has_no_room_for_waits_and_is_no_failure() {
    let cluster = Cluster::start().await;
    let values = [("messages", "3000"), ("messageSize", "65536"), ("sendTimeoutMillis", "60000")];
    none_of_it_is_wrong(&cluster.run(&values).await, 3000, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_ends_in_its_warm_up_is_a_problem() {
    let cluster = Cluster::start().await;
    let result = cluster.run(&[("messages", "50"), ("warmupDurationMinutes", "1")]).await;
    assert_eq!(result.problems(), ["nothing was measured: the load ended before its warm-up did"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_backlog_after_an_interrupt_is_not_called_lost() {
    let cluster = Cluster::start().await;
    let values =
        [("consumerBacklogSizeGB", "0.01"), ("batchSize", "100"), ("partitionsPerTopic", "1"), ("pullBatch", "1")];
    let (workload, driver) = cluster.case(&values);
    let (stop, stopped) = watch::channel(false);
    let (mut seen, options) = (Seen { stop: Some(stop), ..Seen::default() }, Options::default());
    let running = bench::run(&workload, &driver, &options, &mut seen, stopped);
    let result = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    let tally = &result.summary.messages;
    assert!(result.was_interrupted && tally.received > 0 && tally.untraced > 0, "{tally:?}");
    assert_eq!((tally.lost, tally.duplicates, tally.received + tally.untraced), (0, 0, tally.acknowledged));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_sent_first_and_then_consumed() {
    let cluster = Cluster::start().await;
    let result = cluster.run(&[("consumerBacklogSizeGB", "0.001"), ("batchSize", "100")]).await;
    none_of_it_is_wrong(&result, 10_738, 1);
    let received =
        |phase| result.windows.iter().filter(|window| window.phase == phase).map(|window| window.received).sum::<u64>();
    assert_eq!((received(Phase::Fill), received(Phase::Measure)), (0, 10_738));
    assert!(result.summary.end_to_end.is_none() && result.summary.consume_rate > 0.0);
    // Members of a group have their queues before there is anything to hand over.
    let pushed = [("consumerBacklogSizeGB", "0.001"), ("consumeMode", "push"), ("consumerPerSubscription", "2")];
    none_of_it_is_wrong(&cluster.run(&pushed).await, 10_738, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_a_load_early_with_a_sound_result() {
    let cluster = Cluster::start().await;
    let (workload, driver) = cluster.case(&[("producerRate", "100"), ("testDurationMinutes", "60")]);
    let (stop, stopped) = watch::channel(false);
    let mut seen = Seen { stop: Some(stop), ..Seen::default() };
    let options = Options::default();
    let running = bench::run(&workload, &driver, &options, &mut seen, stopped);
    let result = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    let tally = &result.summary.messages;
    assert!(result.was_interrupted && tally.sent > 0, "{tally:?}");
    assert_eq!((tally.received, tally.lost, tally.duplicates), (tally.acknowledged, 0, 0));
    assert!(seen.windows.iter().any(|window| window.phase == Phase::Measure));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_measures_each_value_and_leaves_the_setting_as_it_was() {
    let cluster = Cluster::start().await;
    let (workload, driver) = cluster.case(&[("messages", "200")]);
    let key = "maxTransferCountOnMessageInMemory";
    let sweep = async |key: &str, values: &[&str], seen: &mut Seen| {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let (_stop, stopped) = watch::channel(false);
        bench::sweep((key, &values), &workload, &driver, &Options::default(), seen, stopped).await
    };
    let mut seen = Seen::default();
    let swept = sweep(key, &["7", "70"], &mut seen).await.unwrap();
    let results = swept.results;
    assert_eq!((swept.failures.len(), &seen.said[1..]), (0, &[format!("{key}=7"), format!("{key}=70")][..]));
    assert!(seen.said[0].starts_with(&format!("{key} is 1024 at 127.0.0.1:")), "{:?}", seen.said);
    let values: Vec<_> = results.iter().map(|result| result.setting.clone().unwrap().1).collect();
    assert_eq!(values, ["7", "70"]);
    results.iter().for_each(|result| none_of_it_is_wrong(result, 200, 1));
    let table = bench::table(&results);
    assert!(table.contains("unnamed, maxTransferCountOnMessageInMemory=70"), "{table}");
    assert_eq!(cluster.setting(key).await.as_deref(), Some("1024"));
    // What fails half way keeps what was measured, and is a failure all the same.
    let swept = sweep(key, &["7", "many"], &mut seen).await.unwrap();
    assert_eq!((swept.results.len(), swept.failures.len()), (1, 1), "{:?}", swept.failures);
    assert!(swept.failures[0].starts_with("the sweep ended at many: "), "{:?}", swept.failures);
    assert_eq!(cluster.setting(key).await.as_deref(), Some("1024"));
    // What needs a restart is told in the target's words, and so is a name that it does not know.
    let said = sweep("brokerName", &["b"], &mut seen).await.unwrap_err().to_string();
    assert!(said.starts_with("setting brokerName=b at 127.0.0.1:"), "{said}");
    let said = sweep("noSuchKey", &["b"], &mut seen).await.unwrap_err().to_string();
    assert!(said.ends_with("has no setting noSuchKey"), "{said}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_file_says_all_that_the_run_knew() {
    let cluster = Cluster::start().await;
    let result =
        cluster.run(&[("messages", "500"), ("sendMode", "sync"), ("name", "a </script> name <!--<script>")]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("result.json");
    RunResult::write(std::slice::from_ref(&result), &file).unwrap();
    let read = RunResult::read(&file).unwrap();
    assert_eq!(bench::summary(&read[0]), bench::summary(&result));
    let text = std::fs::read_to_string(&file).unwrap();
    for word in [
        "gantry-bench/1",
        "\"messageSize\": 100",
        "\"sendMode\": \"sync\"",
        "processors",
        "targetVersion",
        "windows",
        "units",
    ] {
        assert!(text.contains(word), "no {word}");
    }
    let server = result.summary.server.unwrap();
    assert!(server.resident_bytes_max > 1 << 20);
    let page = bench::page(&read);
    assert!(
        !page.contains("a </script>")
            && !page.contains("<!--")
            && page.contains("a &lt;/script&gt; name")
            && page.contains("id=\"results\"")
    );

    std::fs::write(&file, text.replace("gantry-bench/1", "gantry-bench/9")).unwrap();
    let said = RunResult::read(&file).unwrap_err().to_string();
    assert!(said.ends_with("its format is \"gantry-bench/9\"; gantry-bench/1 is expected"), "{said}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_loaded_is_told_with_a_reason() {
    let cluster = Cluster::start().await;
    let attempt = async |values: &[(&str, &str)], options: Options| -> BenchError {
        let (workload, driver) = cluster.case(values);
        let (_stop, stopped) = watch::channel(false);
        bench::run(&workload, &driver, &options, &mut Seen::default(), stopped).await.unwrap_err()
    };
    let usual = Options::default;
    let said = attempt(&[("clusterName", "other")], usual()).await.to_string();
    assert_eq!(said, "clusterName is \"other\"; the name server knows DefaultCluster");
    let said = attempt(&[("namesrvAddr", "127.0.0.1:1")], usual()).await.to_string();
    assert!(said.starts_with("the cluster at 127.0.0.1:1: "), "{said}");
    let said = attempt(&[("topicAttributes", "no.such=1")], usual()).await.to_string();
    assert!(said.starts_with("making topic bench-"), "{said}");
    for (server, why) in [
        ("4294967295", "4294967295; there is no process of that number here"),
        ("/nowhere/pid", "/nowhere/pid, a file that names no process of this machine"),
    ] {
        let said = attempt(&[], Options { server: server.parse().ok(), ..usual() }).await.to_string();
        assert_eq!(said, format!("--server-pid is {why}"));
    }
    let nowhere = Path::new("/nowhere/result.json");
    assert!(RunResult::read(nowhere).unwrap_err().to_string().starts_with("/nowhere/result.json: "));
    cluster.stop().await;
}
