//! What a start says about its configuration: one line a key.

use std::fmt;
use std::path::Path;

use crate::environment;
use crate::key::{Default, Kind, Role, Section, State};
use crate::keys;
use crate::properties::Line;
use crate::settings::{ConfigError, Origin, Settings, is_secret};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Nothing is lost.
    Note,
    /// Something is likely to be other than its writer thinks.
    Warning,
}

/// One line about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// As it stands in the file.
    pub key: String,
    /// Where it was said: a line of one of the files, an option, a variable.
    pub origin: Origin,
    /// What was said there; none if it is not to be shown: a password, or the value of a key that nobody knows, which may be one.
    pub value: Option<String>,
    /// How much it matters.
    pub weight: Weight,
    /// What is wrong, or what happens instead.
    pub says: String,
}

impl Finding {
    /// About a line of a file, whether or not it is in force.
    pub(crate) fn of_line(weight: Weight, path: &Path, line: &Line, says: String) -> Finding {
        let origin = Origin::File { path: path.to_owned(), line: line.number };
        Finding { key: line.key.clone(), origin, value: shown(&line.key, &line.value), weight, says }
    }

    /// About the value of `name` that is in force.
    pub(crate) fn in_force(weight: Weight, settings: &Settings, name: &str, says: String) -> Finding {
        let value = settings.given(name).and_then(|value| shown(name, value));
        Finding { key: name.to_owned(), origin: settings.origin(name), value, weight, says }
    }

    /// Line of the file, counted from 1; none if it is not from a file.
    pub fn line(&self) -> Option<usize> {
        match self.origin {
            Origin::File { line, .. } => Some(line),
            Origin::Default | Origin::Environment(_) | Origin::CommandLine(_) | Origin::Request | Origin::Switch => {
                None
            }
        }
    }
}

fn shown(name: &str, value: &str) -> Option<String> {
    (!is_secret(name)).then(|| value.to_owned())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line() {
            Some(line) => write!(f, "{} (line {line}): {}", self.key, self.says),
            None => write!(f, "{}: {}", self.key, self.says),
        }
    }
}

pub(crate) fn unknown(role: Role, path: &Path, line: &Line) -> Finding {
    let says = keys::says_unknown(role, &line.key);
    Finding { value: None, ..Finding::of_line(Weight::Warning, path, line, says) }
}

/// A line in a spelling that RocketMQ does not read: what is used instead.
pub(crate) fn old_spelling(settings: &Settings, path: &Path, line: &Line, new: &'static str) -> Finding {
    let key = keys::find(settings.role(), new);
    let default = settings.default_of(new);
    let weight = match key {
        Some(key) if key.kind.same(&line.value, &default) => Weight::Note,
        Some(_) | None => Weight::Warning,
    };
    let says = format!(
        "RocketMQ does not read this spelling; ignored. The key is {new}, which is {default} if no line says otherwise"
    );
    Finding::of_line(weight, path, line, says)
}

/// What the table says about each key that somebody set.
pub(crate) fn of_state(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for key in keys::TABLES.iter().flat_map(|table| table.iter()) {
        let is_this = keys::find(settings.role(), key.name).is_some_and(|found| found.section == key.section);
        let Some(value) = settings.given(key.name).filter(|_| is_this) else { continue };
        // Nothing is said of RocketMQ's own variables: people set the same ones for all processes.
        if matches!(settings.origin(key.name), Origin::Environment(variable) if !variable.starts_with(environment::PREFIX))
        {
            continue;
        }
        let is_default = matches!(key.default, Default::Value(default) if key.kind.same(value, default));
        if !settings.role().reads(key.section) {
            let process = match settings.role() {
                Role::Server | Role::Broker => "a broker",
                Role::Names => "a name server",
                Role::Controller => "a controller",
            };
            let says = format!("not read by {process}; ignored");
            findings.push(Finding::in_force(Weight::Note, settings, key.name, says));
            continue;
        }
        let (weight, says) = match key.state {
            State::Used | State::Refused(_) => continue,
            State::Off(_) if is_default => continue,
            State::Off(why) => (Weight::Warning, format!("no effect: {why}")),
            State::Accepted(why) => (Weight::Note, format!("no effect: {why}")),
            State::NotNeeded(instead) => (Weight::Note, format!("not needed: {instead}")),
        };
        findings.push(Finding::in_force(weight, settings, key.name, says));
    }
    findings
}

/// Used keys with nothing behind them, for which the default counts. Apache's broker does the same only where its setter fails: a number or a
/// word. An empty switch is false to it, and an empty text is a text.
pub(crate) fn without_value(settings: &mut Settings) {
    for key in keys::TABLES.iter().flat_map(|table| table.iter()) {
        let is_this = keys::find(settings.role(), key.name).is_some_and(|found| found.section == key.section);
        let is_used = key.state == State::Used && settings.role().reads(key.section);
        if !is_this || !is_used || !settings.is_without_value(key.name) {
            continue;
        }
        let default = settings.text(key.name);
        let is_apaches = !matches!(key.section, Section::Machine | Section::Limits | Section::Journal | Section::Old);
        let (weight, beside) = match key.kind {
            Kind::Text if default.is_empty() => continue,
            // The machine's memory may lower the default of a limit.
            Kind::Number { .. } | Kind::Bool | Kind::OneOf(_) | Kind::Text if !is_apaches => {
                (Weight::Note, String::new())
            }
            Kind::Number { .. } | Kind::OneOf(_) => (Weight::Note, format!(", {default}, as by Apache")),
            Kind::Bool if default.eq_ignore_ascii_case("false") => (Weight::Note, ", false, as by Apache".to_owned()),
            Kind::Bool => (Weight::Warning, format!(", {default}; Apache reads it as false")),
            Kind::Text => (Weight::Warning, format!(", {default}; Apache takes the empty text")),
        };
        let says = format!("has no value: its default is used{beside}");
        let finding = Finding::in_force(weight, settings, key.name, says);
        settings.add_finding(finding);
    }
}

/// Values that are taken and yet deserve a sentence; answers with those that must not be taken.
pub(crate) fn lint(settings: &mut Settings) -> Vec<ConfigError> {
    certificate_without_use(settings);
    check_without_effect(settings);
    if !settings.role().has_broker() {
        return Vec::new();
    }
    let mut refused = role_of_broker(settings);
    queue_file_bytes(settings);
    refused.extend(log_directories(settings));
    layout(settings);
    limited(settings);
    labels_of_metrics(settings);
    refused
}

/// What no metric can have is left out, as in Apache.
fn labels_of_metrics(settings: &mut Settings) {
    let name = "metricsLabel";
    for (part, why) in crate::labels::parse(&settings.text(name)).wrong {
        let says = format!("\"{part}\" is left out: {why}");
        warn(settings, name, says);
    }
}

/// Test mode is RocketMQ's default, so the files of somebody who does not know it would be set and not used.
fn certificate_without_use(settings: &mut Settings) {
    if settings.text("tls.test.mode.enable").eq_ignore_ascii_case("true")
        && settings.given("tls.server.certPath").is_some()
    {
        let says = "not used: tls.test.mode.enable is true, so a certificate made at start is shown; set it to false";
        warn(settings, "tls.server.certPath", says.to_owned());
    }
}

/// A check of name servers that somebody asked for and that does not happen must not go without a word.
fn check_without_effect(settings: &mut Settings) {
    let is = |name: &str| settings.text(name).eq_ignore_ascii_case("true");
    let name = "tls.client.authServer";
    if !settings.role().has_broker() || !is(name) {
        return;
    }
    let says = if !is("useTLS") {
        "no effect: name servers are called without TLS; set tls.enable to true"
    } else if is("tls.test.mode.enable") {
        "no effect: tls.test.mode.enable is true, so any name server is trusted; set it to false"
    } else {
        return;
    };
    warn(settings, name, says.to_owned());
}

fn warn(settings: &mut Settings, name: &str, says: String) {
    let finding = Finding::in_force(Weight::Warning, settings, name, says);
    settings.add_finding(finding);
}

fn role_of_broker(settings: &mut Settings) -> Vec<ConfigError> {
    let mut refused = Vec::new();
    let id = crate::key::parse_number(&settings.text("brokerId"), true).unwrap_or(0);
    if settings.is_slave() {
        if id <= 0 {
            let why = "a slave has a brokerId above 0, the master has 0: set brokerId=1, or the next one that is free";
            refused.push(settings.refused("brokerRole", why));
        }
        if settings.given("inSyncReplicas").is_some_and(|copies| copies != "1") {
            warn(settings, "inSyncReplicas", "no effect: a slave acknowledges no send".to_owned());
        }
        return refused;
    }
    if id != 0 {
        let why = "a master has brokerId=0: remove the line, or set brokerRole=SLAVE if this is to be a copy";
        refused.push(settings.refused("brokerId", why));
    }
    for name in OF_A_SLAVE {
        let key = keys::find(settings.role(), name);
        let is_default = |value: &str| {
            key.is_some_and(|key| matches!(key.default, Default::Value(default) if key.kind.same(value, default)))
        };
        let Some(value) = settings.given(name).filter(|value| !is_default(value)) else { continue };
        let can_be_read = key.is_none_or(|key| key.kind.objection(value).is_none());
        warn(settings, name, "no effect: only a slave (brokerRole=SLAVE) reads it".to_owned());
        if !can_be_read {
            settings.leave_out(name);
        }
    }
    waiting_for_copies(settings);
    refused
}

/// A stock client hears nothing of an answer that comes later (`sendMsgTimeout`).
const CLIENT_TIMEOUT_MS: i64 = 3000;

/// What a master waits for before it acknowledges a send, where the file may mean something else.
fn waiting_for_copies(settings: &mut Settings) {
    let number = |name: &str| crate::key::parse_number(&settings.text(name), true).unwrap_or(0);
    let (copies, least, limit) = (number("inSyncReplicas"), number("minInSyncReplicas"), number("slaveTimeout"));
    let is_given = |name: &str| settings.given(name).is_some();
    let (has_copies, has_limit) = (is_given("inSyncReplicas"), is_given("slaveTimeout"));
    if !settings.text("brokerRole").eq_ignore_ascii_case("SYNC_MASTER") {
        let by_word = "no effect with ASYNC_MASTER, but for topics and messages with replica.ack; set brokerRole=SYNC_MASTER to have \
                       all sends wait for slaves";
        let by_none =
            "no effect with ASYNC_MASTER; set brokerRole=SYNC_MASTER to have sends refused with fewer copies in sync";
        let is_auto = settings.text("enableAutoInSyncReplicas") == "true";
        for (name, is_unused, says) in [
            ("inSyncReplicas", has_copies && copies > 1, by_word),
            ("minInSyncReplicas", is_given("minInSyncReplicas") && least > 1, by_none),
            ("enableAutoInSyncReplicas", is_given("enableAutoInSyncReplicas") && is_auto, by_word),
        ] {
            if is_unused {
                warn(settings, name, says.to_owned());
            }
        }
        return;
    }
    if !has_copies {
        let says = "an acknowledgement waits for one slave, as in RocketMQ 4.x; without a slave sends are stored and answered with \
                    SLAVE_NOT_AVAILABLE. Without this line RocketMQ 5.x waits for none: write inSyncReplicas=1 to have that, \
                    or inSyncReplicas=2 to keep this";
        warn(settings, "brokerRole", says.to_owned());
    } else if copies <= 1 {
        let says = "no slave is waited for: an acknowledged message may be on this broker alone; inSyncReplicas=2 waits for one";
        warn(settings, "inSyncReplicas", says.to_owned());
    }
    if least > copies {
        let says = format!(
            "sends are refused with fewer than {least} copies in sync, and acknowledged with inSyncReplicas={copies} of them; set both to the \
             same to have them wait for all"
        );
        warn(settings, "minInSyncReplicas", says);
    }
    if has_limit && limit >= CLIENT_TIMEOUT_MS {
        let says = format!(
            "RocketMQ's clients give up after sendMsgTimeout={CLIENT_TIMEOUT_MS} ms, and never see that a slave is late; 2500 or less, \
             or a longer sendMsgTimeout, lets them"
        );
        warn(settings, "slaveTimeout", says);
    }
}

/// What a master does not read.
pub(crate) const OF_A_SLAVE: [&str; 1] = ["haMasterAddress"];

/// A consume queue entry has 20 bytes, and a file holds whole ones.
pub(crate) const QUEUE_ENTRY_BYTES: i64 = 20;

fn queue_file_bytes(settings: &mut Settings) {
    let name = "mappedFileSizeConsumeQueue";
    if settings.given(name).is_none() {
        return;
    }
    let bytes = crate::key::parse_number(&settings.text(name), true).unwrap_or(0);
    let rounded = round_up(bytes);
    let entries = rounded / QUEUE_ENTRY_BYTES;
    let mut says = Vec::new();
    if bytes != rounded {
        says.push(format!("{bytes} is rounded up to {rounded}, a multiple of {QUEUE_ENTRY_BYTES}"));
    }
    // The samples that go around say "300 000 entries" and write 300000, which is bytes.
    if (10_000..=1_000_000).contains(&bytes) {
        says.push(format!(
            "{bytes} looks like a number of entries, but it counts bytes: a file holds {entries} entries; for {bytes} entries write {}",
            bytes * QUEUE_ENTRY_BYTES
        ));
    }
    if !says.is_empty() {
        warn(settings, name, says.join("; "));
    }
}

/// Up to the next whole entry, as Apache does.
pub(crate) fn round_up(bytes: i64) -> i64 {
    let entries = bytes.max(QUEUE_ENTRY_BYTES).saturating_add(QUEUE_ENTRY_BYTES - 1) / QUEUE_ENTRY_BYTES;
    entries * QUEUE_ENTRY_BYTES
}

/// New files of the log have to go somewhere.
fn log_directories(settings: &Settings) -> Option<ConfigError> {
    let list = |name: &str| -> Vec<String> {
        settings.text(name).split(',').map(|dir| dir.trim().to_owned()).filter(|dir| !dir.is_empty()).collect()
    };
    let read_only = list("readOnlyCommitLogStorePaths");
    let why = "no folder is left that takes new files: each is in readOnlyCommitLogStorePaths too";
    let is_none_left = list("storePathCommitLog").iter().all(|dir| read_only.contains(dir));
    is_none_left.then(|| settings.refused("storePathCommitLog", why))
}

/// Keys of folklore that name a place: harmless where they agree with the layout, a misunderstanding where they do not.
fn layout(settings: &mut Settings) {
    let root = settings.text("storePathRootDir");
    for (name, leaf) in [
        ("storePathConsumeQueue", "consumequeue"),
        ("storePathIndex", "index"),
        ("storeCheckpoint", "checkpoint"),
        ("abortFile", "abort"),
    ] {
        let Some(given) = settings.given(name) else { continue };
        let place = Path::new(&root).join(leaf);
        let (weight, says) = if Path::new(given) == place {
            let says = "not a key of RocketMQ 5: the place follows from storePathRootDir, and agrees".to_owned();
            (Weight::Note, says)
        } else {
            let says = format!("not a key of RocketMQ 5: {} is used, from storePathRootDir", place.display());
            (Weight::Warning, says)
        };
        let finding = Finding::in_force(weight, settings, name, says);
        settings.add_finding(finding);
    }
}

/// Values that Apache takes, or that a file may hold, and that are brought into bounds.
fn limited(settings: &mut Settings) {
    for (name, ..) in RATIO_LIMITS.into_iter().chain(OTHER_LIMITS) {
        if let Some((_, says)) = settings.given(name).and_then(|given| brought_into_bounds(name, given)) {
            warn(settings, name, says);
        }
    }
}

/// What is used in the place of this value, and the sentence about it; none if it is used as it is.
pub(crate) fn brought_into_bounds(name: &str, given: &str) -> Option<(i64, String)> {
    let mut limits = RATIO_LIMITS.into_iter().chain(OTHER_LIMITS);
    let (_, low, high) = limits.find(|(limited, ..)| *limited == name)?;
    let given = crate::key::parse_number(given, true).unwrap_or(low);
    let taken = given.clamp(low, high);
    let says = match high {
        i64::MAX => format!("{given} is below {low}, which is used"),
        _ => format!("{given} is outside {low} to {high}; {taken} is used"),
    };
    (given != taken).then_some((taken, says))
}

/// What holds on whoever uses the value: Apache's bounds of a registration's period in ms, and the least that does anything.
const OTHER_LIMITS: [(&str, i64, i64); 5] = [
    ("registerNameServerPeriod", 10_000, 60_000),
    ("flushConsumerOffsetInterval", 100, i64::MAX),
    ("splitRegistrationSize", 1, i64::MAX),
    ("deleteFileBatchMax", 1, i64::MAX),
    ("maxHashSlotNum", 1, i64::MAX),
];

/// Apache's limits, in percent: the order in which a filling disk is answered is expire, then delete by force, then refuse writes.
pub(crate) const RATIO_LIMITS: [(&str, i64, i64); 3] = [
    ("diskMaxUsedSpaceRatio", 10, 95),
    ("diskSpaceCleanForciblyRatio", 30, 85),
    ("diskSpaceWarningLevelRatio", 35, 90),
];
