//! Arrows between our modules point down. This reads all imports of all crates and fails on one that runs up.
//!
//! ARCHITECTURE.md shows the same tables. A layer may use itself and those below it. What still runs up is listed by name: an arrow that is
//! not listed fails, and so does a listed one that is gone. The list only gets shorter.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use testing::circles;
use testing::imports::{self, Imports};

/// Crates, and which of ours each may use. An arrow includes what its target may use.
const CRATES: &[(&str, &[&str])] = &[
    ("env", &[]),
    ("protocol", &[]),
    ("filter", &[]),
    ("config", &["protocol", "env"]),
    ("net", &["protocol", "env"]),
    ("disk", &["env"]),
    ("journal", &["disk"]),
    ("store", &["journal", "disk", "protocol"]),
    ("replica", &["store", "net"]),
    ("controller", &["net", "journal", "config"]),
    ("names", &["net", "config"]),
    ("broker", &["replica", "store", "net", "filter", "config"]),
    ("client", &["net"]),
    ("operator", &["client"]),
    // `env` for its standard output, whose reader may go away.
    ("cli", &["operator", "client", "store", "config", "broker", "env"]),
    ("doctor", &["operator", "client", "store", "config", "env"]),
    ("bench", &["client", "net"]),
    ("sim", &["broker"]),
    ("server", &["names", "controller", "broker", "cli", "doctor", "bench"]),
    // Named by others under `[dev-dependencies]` only.
    ("testing", &["broker"]),
];

/// The layers of `broker`, lowest first: name, what is in it, modules. A module belongs to the longest path that covers it.
const BROKER: &[(&str, &str, &[&str])] = &[
    (
        "ground",
        "answers, refusals, hashes, clocks, threads",
        &[
            "answer",
            "blocking",
            "client_handle",
            "group_topic",
            "hashing",
            "ids",
            "per_queue",
            "put_times",
            "refusal",
            "schedule",
            "tables",
            "tasks",
            "oneway_refusals",
            "unreadable",
            "critical",
            "wall_time",
        ],
    ),
    ("waiting", "queues' lanes, parking and waking by numbers", &["waiting"]),
    (
        "state",
        "tables and what changes them",
        &[
            "delay::state",
            "config_files::state",
            "lite::state",
            "pop::state",
            "state",
            "static_topic::forward",
            "static_topic::order",
            "timer::agenda",
            "timer::state",
            "transaction::state",
        ],
    ),
    (
        "broker",
        "the struct, who asks, a connection's session, threads beside the workers",
        &["beside", "broker", "caller", "cold", "inbox", "journal", "limits", "parked", "parts", "sends", "session"],
    ),
    ("write", "from a checked message to its acknowledgement", &["minute_log", "write"]),
    (
        "promises",
        "what RocketMQ adds to a queue",
        &["delay", "lite", "pop", "retention_floor", "static_topic", "timer", "transaction"],
    ),
    ("client", "requests of clients", &["client"]),
    (
        "operators",
        "requests of operators, and what runs by itself",
        &["admin", "config_files", "metrics", "housekeeping", "master", "slave", "switch", "to_master"],
    ),
    ("serve", "the match on the request code, start and stop, and what the crate shows", &["", "duties", "serve"]),
];

/// Arrows of `broker` that still run up.
const UPWARD: &[(&str, &str)] = &[("broker", "write::acknowledgements")];

/// Modules in the largest circle of a crate, where that is more than [`CIRCLE_MAX`]. A crate whose circle has become smaller fails too, until its
/// line says so.
const CIRCLES: &[(&str, usize)] = &[];

/// Modules in the largest circle of a crate that has no line of its own.
const CIRCLE_MAX: usize = 7;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn imports_of(name: &str) -> Imports {
    let source = crates().join(name).join("src");
    let root = ["lib.rs", "main.rs"].map(|file| source.join(file)).into_iter().find(|file| file.exists());
    imports::of_crate(&root.unwrap()).unwrap()
}

/// Our crates that the manifest of one names under `[dependencies]`.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names = lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split(['.', ' ', '=']).next());
    names
        .filter(|name| crates().join(name).join("Cargo.toml").exists() && !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_use_those_below_them() {
    let table: BTreeMap<&str, &[&str]> = CRATES.iter().copied().collect();
    let all: BTreeSet<String> =
        fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(
        all,
        CRATES.iter().map(|(name, _)| (*name).to_owned()).collect(),
        "a crate without a row, or a row without one"
    );
    let mut wrong = Vec::new();
    for (name, may) in CRATES {
        let mut below = BTreeSet::new();
        let mut left = may.to_vec();
        while let Some(next) = left.pop() {
            if below.insert(next.to_owned()) {
                left.extend(table[next]);
            }
        }
        wrong.extend(dependencies(name).difference(&below).map(|used| format!("{name} uses {used}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Raft may come from elsewhere one day: what names its library is what is replaced then.
#[test]
fn only_the_consensus_of_the_controller_names_openraft() {
    let mut naming = BTreeSet::new();
    for (name, _) in CRATES {
        let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
        if manifest.contains("openraft") {
            naming.insert((*name).to_owned());
        }
    }
    let source = crates().join("controller/src");
    let mut left = vec![source.clone()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if fs::read_to_string(&path).unwrap().contains("openraft") {
            let module = path.strip_prefix(&source).unwrap().iter().next().unwrap();
            naming.insert(module.to_str().unwrap().to_owned());
        }
    }
    assert_eq!(naming, ["consensus", "consensus.rs", "controller"].map(str::to_owned).into());
}

/// The layer of a module: how many are below it.
fn layer(module: &str) -> usize {
    let covers = |path: &&str| {
        module == *path || (!path.is_empty() && module.strip_prefix(*path).is_some_and(|rest| rest.starts_with("::")))
    };
    let rows = BROKER.iter().enumerate().flat_map(|(at, (_, _, modules))| modules.iter().map(move |path| (at, path)));
    let longest = rows.filter(|(_, path)| covers(path)).max_by_key(|(_, path)| path.len());
    longest.unwrap_or_else(|| panic!("{module} belongs to no layer of `broker`")).0
}

#[test]
fn modules_of_the_broker_use_their_own_layer_and_those_below() {
    let imports = imports_of("broker");
    let all = imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.as_str(), to.as_str())));
    let up: BTreeSet<(&str, &str)> = all.filter(|(from, to)| layer(to) > layer(from)).collect();
    let known: BTreeSet<(&str, &str)> = UPWARD.iter().copied().collect();
    let new: Vec<_> = up.difference(&known).collect();
    let gone: Vec<_> = known.difference(&up).collect();
    assert!(new.is_empty(), "arrows that run up: {new:#?}");
    assert!(gone.is_empty(), "these do not run up any more, take them off the list: {gone:#?}");
}

#[test]
fn circles_of_modules_do_not_grow() {
    let mut wrong = Vec::new();
    for (name, _) in CRATES {
        let largest = circles::of(&imports_of(name)).first().map_or(0, BTreeSet::len);
        let known = CIRCLES.iter().find(|(known, _)| known == name);
        if known.map_or(largest > CIRCLE_MAX, |(_, known)| largest != *known) {
            wrong.push(format!(
                "{name}: {largest} modules in a circle; the table says {known:?}, and {CIRCLE_MAX} for the others"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
