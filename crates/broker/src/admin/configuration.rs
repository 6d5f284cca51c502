//! Settings, read and changed while running: 25, 26.
//!
//! A change is all or nothing: one key that cannot be changed, and nothing is. What is changed also goes into the file that the broker was
//! started with, as Apache does it, so that it holds after a restart. Success means that the device has the file. Where it cannot be written,
//! the change is in force all the same, and the answer is an error that says both.

use std::sync::Arc;

use config::key::State as KeyState;
use config::{BrokerSettings, ConfigError, FlushDiskType, Origin, Role, Settings, StoreSettings, keys, properties};
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::GetBrokerConfigReply;
use store::FlushMode;

use crate::blocking;
use crate::broker::Broker;
use crate::cold::Unanswered;
use crate::inbox::Errand;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::configuration::Configuration;
use crate::state::log_port::{feed_options, follow_options};
use crate::state::switch::MASTER_ROLES;

/// Keys that nobody may change from afar, whatever the settings say: they say who may change what.
const ALWAYS_BLACK: [&str; 2] = ["configBlackList", "brokerConfigPath"];

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
    let (told, remark, overridden) = {
        let mut state = broker.configuration.now.lock();
        let (settings, broker_settings, store_settings) = changed(&state.settings, &changes)
            .map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
        let before = std::mem::replace(&mut state.settings, settings);
        state.version.advance(broker.clock.now().0);
        broker.groups.set_creates_missing(broker_settings.auto_create_subscription_group);
        broker.feeding.send_replace(feed_options(&broker_settings));
        let follow = follow_options(&broker_settings);
        broker.copying.send_if_modified(|before| std::mem::replace(before, follow) != follow);
        broker.settings.store(broker_settings.into());
        broker.members.changed();
        let retention = crate::retention_floor::retention(&store_settings);
        broker.store.tune_journal(crate::journal::options(&store_settings));
        broker.store.limit_light_queues(store_settings.max_lmq_consume_queue_num);
        broker.store.set_flush(match store_settings.flush_disk_type {
            FlushDiskType::Async => FlushMode::Async,
            FlushDiskType::Sync => FlushMode::Sync,
        });
        broker.copies.follow(&store_settings);
        broker.store_settings.store(store_settings.into());
        // Looks at once, and asks who is active by the settings that are there.
        broker.store.retain(retention);
        // It looks at them when it wakes, and may sleep for as long as nothing comes.
        broker.topics.timer_bell().notify_one();
        let of_role = changes.iter().find(|(key, _)| key == "brokerRole");
        let kept = of_role.map(|(_, role)| broker.switch.keeps_role(role));
        if let Some(file) = &broker.configuration.file {
            // The file of a slave that a switch has made a master stays that of a slave.
            let is_for_file =
                |(key, _): &&(String, String)| key != "brokerRole" || kept.is_none_or(|(is_for_file, _)| is_for_file);
            let changes: Vec<_> = changes.iter().filter(is_for_file).cloned().collect();
            file.add(&changes);
        }
        session.durable_after(kept.map_or(0, |(_, position)| position));
        let tell = |key: &str| format!("{key}={} (was {})", state.settings.shown(key), before.shown(key));
        let told: Vec<String> = changes.iter().map(|(key, _)| tell(key)).collect();
        (told, otherwise_than_asked(&state.settings, &changes), overridden(&state.settings, &changes))
    };
    tracing::info!(peer = %session.connection.peer(), changes = told.join(", "), "settings changed by request");
    let mut position = 0;
    if changes.iter().any(|(key, _)| key == "brokerPermission") {
        // Every topic looks different to clients now; a name server looks at topics only when their version is another one.
        let mut version = broker.topics.version();
        version.advance(broker.clock.now().0);
        position = broker.topics.set_version(version);
        broker.registry.all_changed();
    }
    let keys: Vec<String> = changes.into_iter().map(|(key, _)| key).collect();
    let keys = keys.join(", ");
    let reply_to = request.reply_to();
    let Some(file) = broker.configuration.file.clone() else {
        tracing::warn!(
            keys,
            "changed settings are forgotten when the broker stops: it was started without a property file (-c)"
        );
        let forgotten = format!(
            "{keys}: in force until the broker stops; it was started without a property file (-c) to write it to"
        );
        let remark = remark.map_or_else(|| forgotten.clone(), |remark| format!("{remark}; {forgotten}"));
        session.durable_after(position);
        out.reply(reply_to, ResponseCode::Success, Some(&remark), &(), &[]);
        return Ok(());
    };
    let remark = match overridden {
        None => remark,
        Some(overridden) => {
            tracing::warn!(reason = overridden, keys, "changed settings do not hold after the next start");
            Some(remark.map_or_else(|| overridden.clone(), |remark| format!("{remark}; {overridden}")))
        }
    };
    let (inbox, asked) = (Arc::clone(&session.inbox), session.asked());
    let debt = inbox.owe();
    blocking::spawn(move || {
        let unanswered = Unanswered::new(&inbox, asked);
        let (code, remark) = match file.write() {
            Ok(()) => (ResponseCode::Success, remark),
            Err(error) => {
                tracing::error!(%error, keys, "changed settings are in force, and not written");
                let said = format!("{keys}: in force until the broker stops, not written: {error}");
                (ResponseCode::SystemError, Some(said))
            }
        };
        drop(unanswered);
        inbox.push(Errand::then(move |broker, session, out| {
            session.answering(broker, asked, out, |session, out| {
                session.durable_after(position);
                out.reply(reply_to, code, remark.as_deref(), &(), &[]);
            });
        }));
        drop(debt);
    });
    Ok(())
}

/// Keys by the names that our table has for them, and their values. What is not in it changes nothing, and must not get into the file: a key
/// may hold the end of a line.
fn meant(lines: Vec<properties::Line>) -> Result<Vec<(String, String)>, Refusal> {
    let refused = |error: ConfigError| Err(Refusal::new(ResponseCode::InvalidParameter, error.to_string()));
    let meant = lines.into_iter().map(|line| match (keys::find(Role::Broker, &line.key), line.key) {
        (Some(key), _) => Ok((key.name.to_owned(), line.value)),
        (None, old) => match keys::present_spelling(&old) {
            Some(new) => refused(ConfigError::OldSpelling { old, new }),
            None => refused(ConfigError::Unknown(old)),
        },
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

/// What is said beside success of settings that the next start does not take from the file.
fn overridden(settings: &Settings, changes: &[(String, String)]) -> Option<String> {
    let sentences: Vec<String> = changes
        .iter()
        .filter_map(|(key, value)| {
            let key = keys::find(Role::Broker, key).filter(|key| key.state == KeyState::Used)?;
            settings.above_file().overrides(key, value)
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
        // A role that a switch has given is one that nobody has set yet.
        let is_by_switch = settings.origin(key) == Origin::Switch && MASTER_ROLES.contains(&value.as_str());
        if settings.text(key) != *value || is_by_switch {
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
pub(crate) fn all(configuration: &Configuration, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let state = configuration.now.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(meant_by("mapedFileSizeCommitLog=1").unwrap_err().contains("mappedFileSizeCommitLog"));
    }

    #[test]
    fn the_black_list_itself_is_always_on_it() {
        assert!(is_black(&[], "configBlackList"));
        assert!(is_black(&["brokerName".to_owned()], "brokerName"));
        assert!(!is_black(&["brokerName".to_owned()], "brokerNam"));
    }
}
