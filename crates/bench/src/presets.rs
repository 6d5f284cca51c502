//! Loads by name: those of the published tests that Gantry is held against, as workload and driver files.

use std::fmt::Write;

/// A load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: String,
    /// What it does.
    pub about: String,
    /// A workload file.
    pub workload: String,
    /// What is added to a driver file.
    pub driver: String,
}

/// Queues of a topic, from few to many.
const QUEUES: [u32; 5] = [16, 72, 100, 600, 10_000];

/// Sends that a thread with callbacks may have in flight.
const CREDITS: u32 = 64;

/// Four producers, four consumers, at full speed.
const BOTH_WAYS: &str = "producersPerTopic: 4\nsubscriptionsPerTopic: 1\nconsumerPerSubscription: 4\nwarmupDurationMinutes: 0.25\n\
     testDurationMinutes: 1\n";

/// All of them.
pub fn all() -> Vec<Preset> {
    let mut all = vec![
        batch(16),
        batch(32),
        callback(16, 1_000_000),
        callback(64, 30_000),
        sync(16),
        sync(64),
        oneway("oneway-16", 16, 1_000_000),
        oneway("oneway-64", 64, 2_000_000),
        oneway("oneway-64-long", 64, 3_000_000),
        oneway("oneway-64-burst", 64, 80_000),
        consume(1),
        consume(2),
        openmessaging(),
    ];
    all.extend(QUEUES.map(both));
    all.extend(QUEUES.map(single_sends));
    all.extend([16, 10_000].map(topics));
    all.extend(QUEUES.map(auto_batch));
    all.push(chosen_queues());
    all.extend([1000, 10_000].map(at_a_rate));
    all.push(journal());
    all.extend([1, 64].map(connections));
    for (bytes, word, in_flight) in [(1024, "1kb", 4096), (100, "100b", 16_384)] {
        all.extend([16, 100].map(|queues| batch_queues(bytes, word, queues, in_flight)));
    }
    all
}

/// The preset of a name.
pub fn find(name: &str) -> Option<Preset> {
    all().into_iter().find(|preset| preset.name == name)
}

fn batch(threads: u32) -> Preset {
    Preset {
        name: format!("batch-{threads}"),
        about: format!("{threads} threads send 60,000 batches of 1000 × 100 B"),
        workload: counted(&format!("batch-{threads}"), 60_000_000),
        driver: format!("sendMode: sync\nthreads: {threads}\nbatchSize: 1000\n"),
    }
}

/// A thread that sends with callbacks waits for none of them; credits take the place of its memory as the bound.
fn callback(threads: u32, messages: u64) -> Preset {
    let in_flight = threads * CREDITS;
    Preset {
        name: format!("callback-{threads}"),
        about: format!("{messages} single sends of 100 B with a callback, {in_flight} in flight"),
        workload: counted(&format!("callback-{threads}"), messages),
        driver: format!("sendMode: async\nbackpressureConcurrency: {in_flight}\n"),
    }
}

fn sync(threads: u32) -> Preset {
    Preset {
        name: format!("sync-{threads}"),
        about: format!("{threads} threads send a million × 100 B, each waiting for the answer"),
        workload: counted(&format!("sync-{threads}"), 1_000_000),
        driver: format!("sendMode: sync\nthreads: {threads}\n"),
    }
}

fn oneway(name: &str, threads: u32, messages: u64) -> Preset {
    Preset {
        name: name.to_owned(),
        about: format!(
            "{threads} threads send {messages} × 100 B that nobody answers; what arrives is consumed and counted"
        ),
        workload: counted(name, messages),
        driver: format!("sendMode: oneway\nthreads: {threads}\n"),
    }
}

fn consume(consumers: u32) -> Preset {
    let mut workload = one_topic(&format!("consume-{consumers}"), 16, 100);
    let _ = writeln!(
        workload,
        "producersPerTopic: 1\nsubscriptionsPerTopic: 1\nconsumerPerSubscription: {consumers}\nconsumerBacklogSizeGB: 1\n\
         warmupDurationMinutes: 0\ntestDurationMinutes: 10"
    );
    Preset {
        name: format!("consume-{consumers}"),
        about: format!("a backlog of 1 GiB in bodies of 100 B is sent, and then consumed by {consumers} of a group"),
        workload,
        driver: "sendMode: sync\nthreads: 16\nbatchSize: 1000\n".to_owned(),
    }
}

fn openmessaging() -> Preset {
    let mut workload = one_topic("1-topic-100-partitions-1kb-4p-4c-1000k", 100, 1024);
    workload.push_str(
        "useRandomizedPayloads: true\nrandomBytesRatio: 0.5\nrandomizedPayloadPoolSize: 1000\nsubscriptionsPerTopic: 1\n\
         consumerPerSubscription: 4\nproducersPerTopic: 4\nproducerRate: 1000000\nconsumerBacklogSizeGB: 0\ntestDurationMinutes: 5\n",
    );
    Preset {
        name: "openmessaging-1kb".to_owned(),
        about: "1-topic-100-partitions-1kb-4p-4c-1000k: a million 1 KiB messages a second are asked for".to_owned(),
        workload,
        driver: "sendMode: async\nbackpressureConcurrency: 1024\n".to_owned(),
    }
}

fn both(queues: u32) -> Preset {
    let mut workload = one_topic(&format!("queues-{queues}"), queues, 1024);
    workload.push_str(BOTH_WAYS);
    Preset {
        name: format!("queues-{queues}"),
        about: format!("4 producers and 4 consumers of 1 KiB messages at full speed over {queues} queues"),
        workload,
        driver: "sendMode: async\nbackpressureConcurrency: 256\n".to_owned(),
    }
}

/// What a number of queues costs whoever only writes them.
fn single_sends(queues: u32) -> Preset {
    let name = format!("produce-{queues}");
    let mut workload = one_topic(&name, queues, 1024);
    workload.push_str(
        "producersPerTopic: 4\nsubscriptionsPerTopic: 0\nwarmupDurationMinutes: 0.25\ntestDurationMinutes: 1\n",
    );
    Preset {
        about: format!("4 producers of single 1 KiB messages at full speed over {queues} queues; nobody consumes"),
        name,
        workload,
        driver: "sendMode: async\nbackpressureConcurrency: 256\n".to_owned(),
    }
}

/// What a number of topics costs whoever only writes them: with any number four clients, and as many sends in flight.
fn topics(count: u32) -> Preset {
    let (clients, in_flight) = (4, 10_000);
    let name = format!("topics-{count}");
    let workload = format!(
        "name: {name}\ntopics: {count}\npartitionsPerTopic: 1\nmessageSize: 1024\nkeyDistributor: \"NO_KEY\"\nproducersPerTopic: 1\n\
         subscriptionsPerTopic: 0\nwarmupDurationMinutes: 0.25\ntestDurationMinutes: 1\n"
    );
    Preset {
        about: format!("a producer of single 1 KiB messages for each of {count} topics of a queue; nobody consumes"),
        name,
        workload,
        driver: format!(
            "sendMode: async\nbackpressureConcurrency: {}\ntopicsPerClient: {}\n",
            in_flight / count,
            count / clients
        ),
    }
}

/// With the client's own settings, as the OpenMessaging benchmark's driver has them.
fn auto_batch(queues: u32) -> Preset {
    let name = format!("auto-batch-{queues}");
    let mut workload = one_topic(&name, queues, 1024);
    workload.push_str(BOTH_WAYS);
    Preset {
        about: format!("4 producers and 4 consumers of 1 KiB messages over {queues} queues; the client makes batches"),
        name,
        workload,
        driver: "sendMode: async\nbackpressureConcurrency: 1024\nautoBatch: true\n".to_owned(),
    }
}

/// Each queue is a place of its own where messages gather, so that batches are small.
fn chosen_queues() -> Preset {
    let Preset { workload, driver, .. } = auto_batch(100);
    Preset {
        name: "auto-batch-chosen-100".to_owned(),
        about:
            "4 producers and 4 consumers of 1 KiB messages, each for one of 100 chosen queues; the client makes batches"
                .to_owned(),
        workload: workload.replace("name: auto-batch-100", "name: auto-batch-chosen-100"),
        driver: format!("{driver}chosenQueues: true\n"),
    }
}

/// How long a message takes to its consumer where nothing is scarce.
fn at_a_rate(rate: u32) -> Preset {
    let name = format!("rate-{rate}");
    let mut workload = one_topic(&name, 16, 1024);
    let _ = writeln!(
        workload,
        "producersPerTopic: 1\nsubscriptionsPerTopic: 1\nconsumerPerSubscription: 1\nproducerRate: {rate}\nwarmupDurationMinutes: 0.25\n\
         testDurationMinutes: 1"
    );
    Preset {
        about: format!("{rate} single 1 KiB messages a second, consumed as they come"),
        name,
        workload,
        driver: "sendMode: async\nbackpressureConcurrency: 1024\n".to_owned(),
    }
}

/// Two changes a message: the pop and its acknowledgement. By hundreds a second, as in the table that the journal is held against.
fn journal() -> Preset {
    let mut workload = one_topic("journal-300", 1, 1024);
    workload.push_str(
        "producersPerTopic: 1\nsubscriptionsPerTopic: 1\nconsumerPerSubscription: 1\nproducerRate: 300\nwarmupDurationMinutes: 0\n\
         testDurationMinutes: 1\n",
    );
    Preset {
        name: "journal-300".to_owned(),
        about: "300 single 1 KiB messages a second to one queue, each popped and acknowledged".to_owned(),
        workload,
        driver: "sendMode: async\nbackpressureConcurrency: 256\nconsumeMode: pop\nconsumeThreads: 1\npullBatch: 1\n"
            .to_owned(),
    }
}

/// Each producer has a connection of its own, as those of `gantry bench echo` do.
fn connections(count: u32) -> Preset {
    let name = format!("connections-{count}");
    let mut workload = one_topic(&name, 16, 1024);
    let _ = writeln!(
        workload,
        "producersPerTopic: {count}\nsubscriptionsPerTopic: 0\nwarmupDurationMinutes: 0.25\ntestDurationMinutes: 1"
    );
    Preset {
        about: format!("{count} connections send 1 KiB messages, each waiting for the answer; nobody consumes"),
        name,
        workload,
        driver: "sendMode: sync\nthreads: 1\n".to_owned(),
    }
}

/// With batches of the size that Kafka's is loaded with, in topics that keep them whole.
fn batch_queues(bytes: u32, word: &str, queues: u32, in_flight: u32) -> Preset {
    let name = format!("batch-cq-{word}-{queues}");
    let mut workload = one_topic(&name, queues, bytes);
    workload.push_str(BOTH_WAYS);
    Preset {
        about: format!(
            "4 producers and 4 consumers of {bytes} B messages over {queues} BatchCQ queues; the client makes batches of 128 KiB"
        ),
        name,
        workload,
        driver: format!(
            "sendMode: async\nbackpressureConcurrency: {in_flight}\nautoBatch: true\nbatchMaxBytes: 131072\nbatchCQ: true\n"
        ),
    }
}

fn one_topic(name: &str, queues: u32, message_size: u32) -> String {
    format!(
        "name: {name}\ntopics: 1\npartitionsPerTopic: {queues}\nmessageSize: {message_size}\nkeyDistributor: \"NO_KEY\"\n"
    )
}

/// A number of 100 B messages to 16 queues, consumed as they come, so that what is lost is known.
fn counted(name: &str, messages: u64) -> String {
    let mut workload = one_topic(name, 16, 100);
    let _ = writeln!(
        workload,
        "producersPerTopic: 1\nsubscriptionsPerTopic: 1\nconsumerPerSubscription: 1\nwarmupDurationMinutes: 0\n\
         testDurationMinutes: 30\nmessages: {messages}"
    );
    workload
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::case::Case;

    #[test]
    fn every_preset_is_a_sound_case_with_a_name_of_its_own() {
        let mut names = BTreeSet::new();
        for preset in all() {
            let mut case = Case::new();
            case.preset(&preset.name).unwrap();
            let (workload, _) = case.finish().unwrap();
            assert!(names.insert(preset.name.clone()), "{} twice", preset.name);
            assert!(workload.messages > 0 || workload.test_duration_minutes > 0.0);
        }
        assert_eq!(names.len(), 40);
    }
}
