//! Settings, read and changed while running: 25, 26.
//!
//! A change is all or nothing: one key that cannot be changed, and nothing is. What is changed also goes into the file that the broker was
//! started with, as Apache does it, so that it holds after a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::key::State as KeyState;
use config::{BrokerSettings, ConfigError, FlushDiskType, Role, Settings, StoreSettings, keys, properties};
use net::{Outgoing, Request};
use parking_lot::Mutex;
use protocol::body::DataVersion;
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::GetBrokerConfigReply;
use store::FlushMode;

use crate::blocking;
use crate::broker::Broker;
use crate::exchange::put_in_place;
use crate::refusal::Refusal;
use crate::session::Session;

/// Keys that nobody may change from afar, whatever the settings say: they say who may change what.
const ALWAYS_BLACK: [&str; 2] = ["configBlackList", "brokerConfigPath"];

/// The settings with their origins, and the file that they came from.
pub(crate) struct Configuration {
    /// Guards changes, from looking at the old value until the new one is in force. The file follows, in a task of its own.
    state: Mutex<State>,
    file: Option<Arc<SettingsFile>>,
}

/// The file, and changes on their way to it.
struct SettingsFile {
    path: PathBuf,
    /// In the order in which they came into force.
    pending: Mutex<Vec<(String, String)>>,
    /// Held while the file is written, by threads that may wait.
    writing: Mutex<()>,
}

impl SettingsFile {
    /// Writes what is pending. Of two that come at once, one finds nothing left to do.
    fn write(&self) {
        let _writing = self.writing.lock();
        let changes = std::mem::take(&mut *self.pending.lock());
        if changes.is_empty() {
            return;
        }
        if let Err(error) = write_into(&self.path, &changes) {
            tracing::error!(file = %self.path.display(), %error, "changed settings not written; they hold until the next start");
        }
    }
}

struct State {
    settings: Settings,
    version: DataVersion,
}

impl Configuration {
    pub(crate) fn new(settings: Settings, file: Option<PathBuf>) -> Configuration {
        let file =
            file.map(|path| Arc::new(SettingsFile { path, pending: Mutex::default(), writing: Mutex::default() }));
        Configuration { state: Mutex::new(State { settings, version: DataVersion::default() }), file }
    }

    /// The text of a setting, given or by default.
    pub(crate) fn text(&self, key: &str) -> String {
        self.state.lock().settings.text(key)
    }
}

/// 25: changes settings. The body is a property file.
pub(crate) fn update(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let text = std::str::from_utf8(request.body)
        .map_err(|_| Refusal::new(ResponseCode::SystemError, "the body is not UTF-8"))?;
    let lines = properties::parse(text)
        .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("string2Properties error: {error}")))?;
    let black_list = broker.settings.load().config_black_list.clone();
    let changes = meant(lines)?;
    if changes.iter().any(|(key, _)| is_black(&black_list, key)) {
        return Err(Refusal::new(ResponseCode::NoPermission, "Can not update config in black list."));
    }
    let (told, remark) = {
        let mut state = broker.configuration.state.lock();
        let (settings, broker_settings, store_settings) = changed(&state.settings, &changes)
            .map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
        let before = std::mem::replace(&mut state.settings, settings);
        state.version.advance(broker.clock.now().0);
        broker.groups.set_creates_missing(broker_settings.auto_create_subscription_group);
        broker.settings.store(broker_settings.into());
        let retention = crate::protect::retention(&store_settings);
        broker.store.tune_journal(crate::journal::options(&store_settings));
        broker.store.limit_light_queues(store_settings.max_lmq_consume_queue_num);
        broker.store.set_flush(match store_settings.flush_disk_type {
            FlushDiskType::Async => FlushMode::Async,
            FlushDiskType::Sync => FlushMode::Sync,
        });
        broker.store_settings.store(store_settings.into());
        // Looks at once, and asks who is active by the settings that are there.
        broker.store.retain(retention);
        // It looks at them when it wakes, and may sleep for as long as nothing comes.
        broker.topics.timer_bell().notify_one();
        if let Some(file) = &broker.configuration.file {
            file.pending.lock().extend(changes.iter().cloned());
        }
        let tell = |key: &str| format!("{key}={} (was {})", state.settings.shown(key), before.shown(key));
        let told: Vec<String> = changes.iter().map(|(key, _)| tell(key)).collect();
        (told, otherwise_than_asked(&state.settings, &changes))
    };
    tracing::info!(peer = %session.connection.peer(), changes = told.join(", "), "settings changed by request");
    if changes.iter().any(|(key, _)| key == "brokerPermission") {
        // Every topic looks different to clients now; a name server looks at topics only when their version is another one.
        let mut version = broker.topics.version();
        version.advance(broker.clock.now().0);
        session.durable_after(broker.topics.set_version(version));
        broker.registry.all_changed();
    }
    if let Some(file) = broker.configuration.file.clone() {
        blocking::spawn(move || file.write());
    }
    out.reply(request.reply_to(), ResponseCode::Success, remark.as_deref(), &(), &[]);
    Ok(())
}

/// Keys by the names that our table has for them, and their values. What is not in it changes nothing, and must not get into the file: a key
/// may hold the end of a line.
fn meant(lines: Vec<properties::Line>) -> Result<Vec<(String, String)>, Refusal> {
    let name_of = |key: &str| {
        let renamed = keys::RENAMED.iter().find(|(old, _)| *old == key).map_or(key, |(_, new)| *new);
        keys::find(Role::Broker, renamed).map(|key| key.name.to_owned())
    };
    let meant = lines.into_iter().map(|line| match name_of(&line.key) {
        Some(name) => Ok((name, line.value)),
        None => Err(Refusal::new(ResponseCode::InvalidParameter, ConfigError::Unknown(line.key).to_string())),
    });
    meant.collect()
}

/// What is said beside success of settings that are RocketMQ's and change nothing here, and of values that are brought into bounds.
fn otherwise_than_asked(settings: &Settings, changes: &[(String, String)]) -> Option<String> {
    let sentences: Vec<String> = changes
        .iter()
        .filter_map(|(key, _)| match keys::find(Role::Broker, key)?.state {
            KeyState::Used => settings.limited(key).map(|says| format!("{key}: {says}")),
            KeyState::Accepted(why) | KeyState::NotNeeded(why) | KeyState::Off(why) | KeyState::Refused(why) => {
                Some(format!("{key} has no effect: {why}"))
            }
        })
        .collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// The settings after the changes, if all of them are possible.
fn changed(
    settings: &Settings,
    changes: &[(String, String)],
) -> Result<(Settings, BrokerSettings, StoreSettings), ConfigError> {
    let mut settings = settings.clone();
    for (key, value) in changes {
        if settings.text(key) != *value {
            settings.set(key, value)?;
        }
    }
    let (broker, store) = (settings.broker()?, settings.store()?);
    Ok((settings, broker, store))
}

fn is_black(black_list: &[String], key: &str) -> bool {
    ALWAYS_BLACK.contains(&key) || black_list.iter().any(|black| black == key)
}

/// 26: all settings, as a property file, and their version.
pub(crate) fn all(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let state = broker.configuration.state.lock();
    let version = fastjson::to_vec(&state.version, Dialect::FastJson);
    let version = String::from_utf8_lossy(&version);
    let mut body = String::new();
    for line in state.settings.print(false).lines() {
        // `print` adds where each value came from; tools read the line up to its end.
        let (setting, _) = line.split_once(" # ").unwrap_or((line, ""));
        body.push_str(setting.trim_end());
        body.push('\n');
    }
    drop(state);
    let fields = GetBrokerConfigReply { version: &version };
    out.reply(request.reply_to(), ResponseCode::Success, None, &fields, body.as_bytes());
    Ok(())
}

fn write_into(file: &Path, changes: &[(String, String)]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let before = fs::read_to_string(file)?;
    put_in_place(file, with_changes(&before, changes).as_bytes())?;
    Ok(())
}

/// A property file with other values: lines that set a changed key are replaced where they stand, the rest follows at the end.
fn with_changes(text: &str, changes: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_written = vec![false; changes.len()];
    // What stands before goes on in this line; and belongs to a setting that was replaced.
    let (mut is_continued, mut is_replaced) = (false, false);
    for line in text.lines() {
        let is_comment = !is_continued && line.trim_start().starts_with(['#', '!']);
        let backslashes = line.bytes().rev().take_while(|byte| *byte == b'\\').count();
        let was_continued = std::mem::replace(&mut is_continued, !is_comment && backslashes % 2 == 1);
        if was_continued {
            if !is_replaced {
                out.push_str(line);
                out.push('\n');
            }
            continue;
        }
        let key = line.trim_start().split(['=', ':', ' ', '\t']).next().unwrap_or_default();
        let place = changes.iter().rposition(|(changed, _)| changed == key);
        is_replaced = place.is_some();
        match place {
            Some(at) if is_written[at] => {}
            Some(at) => {
                out.push_str(&setting(&changes[at]));
                is_written[at] = true;
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    for (place, change) in changes.iter().enumerate() {
        let is_last = changes.iter().rposition(|(key, _)| *key == change.0) == Some(place);
        if is_last && !is_written[place] {
            out.push_str(&setting(change));
        }
    }
    out
}

fn setting((key, value): &(String, String)) -> String {
    let mut text = format!("{key}=");
    for (place, c) in value.char_indices() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            // Java ends a line here too.
            '\r' => text.push_str("\\r"),
            // Not a part of the separator.
            ' ' if place == 0 => text.push_str("\\ "),
            c => text.push(c),
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_key_keeps_its_place_and_a_new_one_follows() {
        let changes = [("b".to_owned(), "9".to_owned()), ("c".to_owned(), "x\\y".to_owned())];
        assert_eq!(with_changes("# note\na=1\n b = 2\nb:3\nbb=4\n", &changes), "# note\na=1\nb=9\nbb=4\nc=x\\\\y\n");
        assert_eq!(with_changes("", &changes[..1]), "b=9\n");
    }

    #[test]
    fn a_setting_over_several_lines_is_replaced_as_a_whole_and_others_are_left_alone() {
        let changes = [("a".to_owned(), "1".to_owned())];
        let text = "# a comment \\\na=x,\\\n  y,\\\n  z\nb=p\\\n  a=q\nc=d\\\\\na=twice\n";
        assert_eq!(with_changes(text, &changes), "# a comment \\\na=1\nb=p\\\n  a=q\nc=d\\\\\n");
    }

    #[test]
    fn of_several_changes_of_one_key_the_last_is_written() {
        let changes = [("a", "1"), ("b", "2"), ("a", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(with_changes("a=0\n", &changes), "a=3\nb=2\n");
        assert_eq!(with_changes("", &changes), "b=2\na=3\n");
    }

    #[test]
    fn settings_that_change_nothing_are_named() {
        let changes =
            ["autoCreateTopicEnable", "sendThreadPoolQueueCapacity"].map(|key| (key.to_owned(), "1".to_owned()));
        let settings = settings();
        assert_eq!(otherwise_than_asked(&settings, &changes[..1]), None);
        let said = otherwise_than_asked(&settings, &changes).unwrap();
        assert!(said.starts_with("sendThreadPoolQueueCapacity has no effect: "), "{said}");
    }

    fn settings() -> Settings {
        let machine = config::Machine { host_name: "a".into(), address: [127, 0, 0, 1].into(), home: "/".into() };
        Settings::load(config::Sources::new(Role::Broker, machine)).unwrap()
    }

    #[test]
    fn a_value_that_is_brought_into_bounds_is_named_and_shown_as_what_it_became() {
        let change = |value: &str| [("diskSpaceWarningLevelRatio".to_owned(), value.to_owned())];
        let (settings, _, store) = changed(&settings(), &change("97")).unwrap();
        let said = otherwise_than_asked(&settings, &change("97")).unwrap();
        assert_eq!(said, "diskSpaceWarningLevelRatio: 97 is outside 35 to 90; 90 is used");
        assert_eq!(
            (settings.shown("diskSpaceWarningLevelRatio").as_str(), store.disk_space_warning_level_ratio),
            ("90", 90)
        );
        assert!(settings.print(true).contains("diskSpaceWarningLevelRatio=90 "));
        let (settings, ..) = changed(&settings, &change("80")).unwrap();
        assert_eq!(otherwise_than_asked(&settings, &change("80")), None);
        assert_eq!(settings.shown("diskSpaceWarningLevelRatio"), "80");
    }

    fn meant_by(text: &str) -> Result<Vec<(String, String)>, String> {
        meant(properties::parse(text).unwrap()).map_err(|refusal| refusal.remark.to_string())
    }

    #[test]
    fn a_key_that_nobody_knows_is_refused_whatever_its_value() {
        for text in ["nobodyKnows=1", "nobodyKnows=", "a\\nconfigBlackList\\=none=", "a\\rb="] {
            assert!(meant_by(text).is_err(), "{text:?}");
        }
        assert_eq!(meant_by("brokerName=a").unwrap(), [("brokerName".to_owned(), "a".to_owned())]);
    }

    #[test]
    fn a_value_is_read_back_from_the_file_as_it_was_meant() {
        for value in ["x", " x", "a\nconfigBlackList=none", "a\rb=c", "a\\", "tab\tin"] {
            let text = with_changes("", &[("brokerName".to_owned(), value.to_owned())]);
            let lines = properties::parse(&text).unwrap();
            assert_eq!(lines.len(), 1, "{text:?}");
            assert_eq!(lines[0].value, value);
            assert!(!text.trim_end().contains(['\n', '\r']), "Java reads one line too: {text:?}");
        }
    }

    #[test]
    fn the_black_list_itself_is_always_on_it() {
        assert!(is_black(&[], "configBlackList"));
        assert!(is_black(&["brokerName".to_owned()], "brokerName"));
        assert!(!is_black(&["brokerName".to_owned()], "brokerNam"));
    }
}
