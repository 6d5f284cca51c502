//! What variables of the environment say, as people set them for containers.
//!
//! Those of RocketMQ and of its operator stand for one key each, and the file wins over them: RocketMQ's order for its own two. `GANTRY_SET_<key>`
//! sets any key and wins over the file. Variables that set up a Java machine are named as ignored: a heap size that seems to count is worse than
//! none.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use crate::finding::{Finding, Weight};
use crate::key::{Key, Role};
use crate::keys;
use crate::settings::{Given, Origin};

/// Variables that stand for a key: of RocketMQ (`NAMESRV_ADDR`, `ROCKETMQ_HOME`), and of the start script of its operator.
pub const OF_KEYS: [(&str, &str); 6] = [
    ("NAMESRV_ADDR", "namesrvAddr"),
    ("ROCKETMQ_HOME", "rocketmqHome"),
    ("BROKER_CLUSTER_NAME", "brokerClusterName"),
    ("BROKER_NAME", "brokerName"),
    ("BROKER_ID", "brokerId"),
    ("POD_IP", "brokerIP1"),
];

/// In front of the name of a key.
pub const PREFIX: &str = "GANTRY_SET_";

/// Variables by which the scripts of RocketMQ and of its images set up a Java machine.
pub const OF_JAVA: [&str; 6] =
    ["JAVA_OPT", "JAVA_OPT_EXT", "HEAP_OPTS", "JAVA_HEAP_SIZE", "MAX_HEAP_SIZE", "RMQ_NUMA_NODE"];

/// The variables of this process that mean something here.
pub fn read() -> BTreeMap<String, String> {
    of(std::env::vars_os())
}

/// Those of another process, by what `/proc/PID/environ` has: `NAME=VALUE`, each ended by a zero byte.
pub fn of_process(environ: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(environ);
    of(text.split('\0').filter_map(|one| one.split_once('=')).map(|(name, value)| (name.into(), value.into())))
}

/// Those of `variables` that mean something here, if they have a value. One that is not UTF-8 is kept with U+FFFD in the place of the bytes that
/// are not: no key takes that, so the start names it.
fn of(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let counts = |name: &str| {
        OF_KEYS.iter().any(|(of_key, _)| *of_key == name) || OF_JAVA.contains(&name) || name.starts_with(PREFIX)
    };
    variables
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| counts(name))
        .map(|(name, value)| (name, value.trim().to_owned()))
        // One that is to set a key and has no value is a mistake, which is named.
        .filter(|(name, value)| !value.is_empty() || name.starts_with(PREFIX))
        .collect()
}

/// Keys that RocketMQ's variables set. Without a file nobody but this machine is served, so `POD_IP` does not count then.
pub(crate) fn below_file(
    role: Role,
    environment: &BTreeMap<String, String>,
    has_file: bool,
) -> impl Iterator<Item = (&'static str, Given)> {
    OF_KEYS.into_iter().filter(move |(variable, _)| has_file || *variable != "POD_IP").filter_map(
        move |(variable, key)| {
            let value = environment.get(variable).filter(|value| !value.is_empty())?;
            keys::find(role, key).filter(|key| role.reads(key.section))?;
            Some((key, Given::new(value.clone(), Origin::Environment(variable.to_owned()))))
        },
    )
}

/// Variables over which a line of the file wins.
pub(crate) fn overridden(environment: &BTreeMap<String, String>, origin: impl Fn(&str) -> Origin) -> Vec<Finding> {
    let overridden = |(variable, key): (&str, &str)| {
        let by = origin(key);
        let is_so = environment.contains_key(variable) && matches!(by, Origin::File { .. });
        is_so.then(|| Finding {
            weight: Weight::Note,
            ..ignored(variable.to_owned(), format!("{key} stands in the property file too ({by}), which wins"))
        })
    };
    OF_KEYS.into_iter().filter_map(overridden).collect()
}

/// Keys that `GANTRY_SET_<key>` sets, and what there is to say of the variables that do nothing.
pub(crate) fn above_file(
    role: Role,
    environment: &BTreeMap<String, String>,
    has_file: bool,
) -> (HashMap<&'static str, Given>, Vec<Finding>) {
    let (mut given, mut findings) = (HashMap::new(), Vec::new());
    let set = |(variable, value): (&String, &String)| Some((variable.strip_prefix(PREFIX)?.to_owned(), value.clone()));
    let (exact, loose): (Vec<_>, Vec<_>) =
        environment.iter().filter_map(set).partition(|(name, _)| keys::find(role, name).is_some());
    // The spelling of the property file wins over another one of the same key.
    for (name, value) in loose.into_iter().chain(exact) {
        let variable = format!("{PREFIX}{name}");
        if value.is_empty() {
            findings.push(ignored(variable, "has no value; ignored".to_owned()));
            continue;
        }
        match keys::find(role, &name).or_else(|| almost(role, &name)) {
            Some(key) => drop(given.insert(key.name, Given::new(value, Origin::Environment(variable)))),
            None => findings.push(ignored(variable, keys::says_unknown(role, &name))),
        }
    }
    if !has_file && role.has_broker() && environment.contains_key("POD_IP") {
        let says = "counts with a property file (-c) only: without one nobody but this machine is served; ignored";
        findings.push(ignored("POD_IP".to_owned(), says.to_owned()));
    }
    for variable in OF_JAVA {
        let Some(value) = environment.get(variable) else { continue };
        let mut says = "sets up a Java machine, and there is none; ignored".to_owned();
        if value.contains("-Drocketmq.") {
            says.push_str(". Settings in it (-Drocketmq…) go into the property file, or behind --set");
        }
        findings.push(ignored(variable.to_owned(), says));
    }
    (given, findings)
}

/// The value is not shown: an option of a Java machine may be a password.
fn ignored(variable: String, says: String) -> Finding {
    let origin = Origin::Environment(variable.clone());
    Finding { key: variable, origin, value: None, weight: Weight::Warning, says }
}

/// The one key that is written so but for its case, dots and underscores: many shells take no dot in the name of a variable.
fn almost(role: Role, name: &str) -> Option<&'static Key> {
    let bare = |name: &str| name.replace(['_', '.', '-'], "").to_ascii_lowercase();
    let wanted = bare(name);
    keys::of(role).find(|key| bare(key.name) == wanted)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn only_variables_that_mean_something_are_kept() {
        let given = [("PATH", "/bin"), ("BROKER_ID", "1"), ("GANTRY_SET_brokerName", "a"), ("JAVA_OPT", " ")];
        let read = of(given.iter().map(|(name, value)| (name.into(), value.into())));
        assert_eq!(read.keys().collect::<Vec<_>>(), ["BROKER_ID", "GANTRY_SET_brokerName"]);
        assert_eq!(
            of_process(b"POD_IP=10.0.0.7\0HOME=/root\0"),
            BTreeMap::from([("POD_IP".into(), "10.0.0.7".into())])
        );
    }

    #[test]
    fn a_variable_that_is_not_utf_8_is_named_and_not_passed_over() {
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let environment = of([
            (text(b"GANTRY_SET_brokerName"), text(b"a\xff")),
            (text(b"GANTRY_SET_broker\xffName"), text(b"a")),
            (text(b"BROKER_CLUSTER_NAME"), text(b"\xe4")),
        ]
        .into_iter());
        let machine = crate::Machine { host_name: "a".into(), address: [127, 0, 0, 1].into(), home: "/".into() };
        let sources = crate::Sources { environment, ..crate::Sources::new(Role::Broker, machine) };
        let (settings, refused) = crate::Settings::read(sources);
        let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        for variable in ["GANTRY_SET_brokerName", "BROKER_CLUSTER_NAME"] {
            let named = |line: &String| line.contains(&format!("(environment {variable}) is not UTF-8"));
            assert!(refused.iter().any(named), "{variable}: {refused:?}");
        }
        let unknown = |finding: &Finding| finding.key.starts_with("GANTRY_SET_broker\u{fffd}Name");
        assert!(settings.findings().iter().any(unknown), "{:?}", settings.findings());
    }

    #[test]
    fn a_key_is_found_without_its_dots_and_case_and_no_two_keys_are_alike_then() {
        for key in keys::of(Role::Broker) {
            assert_eq!(almost(Role::Broker, key.name).map(|found| found.name), Some(key.name));
        }
        for (name, key) in [("TLS_SERVER_MODE", "tls.server.mode"), ("BROKER_IP1", "brokerIP1")] {
            assert_eq!(almost(Role::Broker, name).map(|key| key.name), Some(key));
        }
        assert!(almost(Role::Broker, "brokerNames").is_none());
    }
}
