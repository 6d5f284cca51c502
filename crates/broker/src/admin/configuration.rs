//! Settings, read and changed while running: 25, 26.
//!
//! A change is all or nothing: one key that cannot be changed, and nothing is. What is changed also goes into the file that the broker was
//! started with, as Apache does it, so that it holds after a restart.

use std::fs;
use std::path::{Path, PathBuf};

use config::{BrokerSettings, ConfigError, Settings, StoreSettings, properties};
use net::{Outgoing, Request};
use parking_lot::Mutex;
use protocol::body::DataVersion;
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::GetBrokerConfigReply;

use crate::admin::reply_ok;
use crate::broker::Broker;
use crate::exchange::put_in_place;
use crate::refusal::Refusal;
use crate::session::Session;

/// Keys that nobody may change from afar, whatever the settings say: they say who may change what.
const ALWAYS_BLACK: [&str; 2] = ["configBlackList", "brokerConfigPath"];

/// The settings with their origins, and the file that they came from.
pub(crate) struct Configuration {
    /// Guards changes, from looking at the old value to having the new one. The file follows, in a task of its own.
    state: Mutex<State>,
    file: Option<PathBuf>,
}

struct State {
    settings: Settings,
    version: DataVersion,
}

impl Configuration {
    pub(crate) fn new(settings: Settings, file: Option<PathBuf>) -> Configuration {
        Configuration { state: Mutex::new(State { settings, version: DataVersion::default() }), file }
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
    if lines.iter().any(|line| is_black(&black_list, &line.key)) {
        return Err(Refusal::new(ResponseCode::NoPermission, "Can not update config in black list."));
    }
    let changes: Vec<(String, String)> = lines.into_iter().map(|line| (line.key, line.value)).collect();
    let (broker_settings, store_settings) = {
        let mut state = broker.configuration.state.lock();
        let changed = changed(&state.settings, &changes)
            .map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
        state.settings = changed.0;
        state.version.advance(broker.clock.now().0);
        (changed.1, changed.2)
    };
    tracing::info!(peer = %session.connection.peer(), keys = ?changes.iter().map(|(key, _)| key).collect::<Vec<_>>(), "settings changed by request");
    broker.groups.set_creates_missing(broker_settings.auto_create_subscription_group);
    broker.settings.store(broker_settings.into());
    broker.store.retain(crate::protect::retention(&store_settings));
    broker.store_settings.store(store_settings.into());
    if changes.iter().any(|(key, _)| key == "brokerPermission") {
        // Every topic looks different to clients now; a name server looks at topics only when their version is another one.
        let mut version = broker.topics.version();
        version.advance(broker.clock.now().0);
        session.durable_after(broker.topics.set_version(version));
        broker.registry.all_changed();
    }
    if let Some(file) = broker.configuration.file.clone() {
        tokio::task::spawn_blocking(move || {
            if let Err(error) = write_into(&file, &changes) {
                tracing::error!(file = %file.display(), %error, "changed settings not written; they hold until the next start");
            }
        });
    }
    reply_ok(request, out);
    Ok(())
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
    for line in text.lines() {
        let key = line.trim_start().split(['=', ':', ' ', '\t']).next().unwrap_or_default();
        match changes.iter().position(|(changed, _)| changed == key) {
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
    for (change, _) in changes.iter().zip(is_written).filter(|(_, is_written)| !is_written) {
        out.push_str(&setting(change));
    }
    out
}

fn setting((key, value): &(String, String)) -> String {
    format!("{key}={}\n", value.replace('\\', "\\\\").replace('\n', "\\n"))
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
    fn the_black_list_itself_is_always_on_it() {
        assert!(is_black(&[], "configBlackList"));
        assert!(is_black(&["brokerName".to_owned()], "brokerName"));
        assert!(!is_black(&["brokerName".to_owned()], "brokerNam"));
    }
}
