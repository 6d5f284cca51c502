//! The name server's own settings, read and changed while it runs (318, 319).
//!
//! The text is Java properties, as Apache's tools send and print it. A change is written to the settings file before it is
//! acknowledged, and holds from the next request on.

use std::path::Path;
use std::str::FromStr;

use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use tracing::info;

use crate::kv::replace;
use crate::names::{Names, Options, Refusal, ok};

/// Lets one change at a time through to the file.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    changing: tokio::sync::Mutex<()>,
}

/// The settings as `key=value` lines.
fn print(options: &Options) -> String {
    let pairs = [
        ("configBlackList", options.config_black_list.join(";")),
        ("configStorePath", options.config_store_path.display().to_string()),
        ("deleteTopicWithBrokerRegistration", options.delete_topic_with_broker_registration.to_string()),
        ("enableAllTopicList", options.enable_all_topic_list.to_string()),
        ("enableTopicList", options.enable_topic_list.to_string()),
        ("kvConfigPath", options.kv_config_path.display().to_string()),
        ("needWaitForService", options.need_wait_for_service.to_string()),
        ("notifyMinBrokerIdChanged", options.notify_min_broker_id_changed.to_string()),
        ("orderMessageEnable", options.order_message_enable.to_string()),
        ("returnOrderTopicConfigToBroker", options.return_order_topic_config_to_broker.to_string()),
        ("scanNotActiveBrokerInterval", options.scan_not_active_broker_interval.as_millis().to_string()),
        ("supportActingMaster", options.support_acting_master.to_string()),
        ("waitSecondsForService", options.wait_for_service.as_secs().to_string()),
    ];
    pairs.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

/// Changes one setting; keys that we do not have are refused by name.
fn set(options: &mut Options, key: &str, value: &str) -> Result<(), Refusal> {
    match key {
        "deleteTopicWithBrokerRegistration" => options.delete_topic_with_broker_registration = parse(key, value)?,
        "enableAllTopicList" => options.enable_all_topic_list = parse(key, value)?,
        "enableTopicList" => options.enable_topic_list = parse(key, value)?,
        "needWaitForService" => options.need_wait_for_service = parse(key, value)?,
        "notifyMinBrokerIdChanged" => options.notify_min_broker_id_changed = parse(key, value)?,
        "orderMessageEnable" => options.order_message_enable = parse(key, value)?,
        "returnOrderTopicConfigToBroker" => options.return_order_topic_config_to_broker = parse(key, value)?,
        "supportActingMaster" => options.support_acting_master = parse(key, value)?,
        "scanNotActiveBrokerInterval" => {
            options.scan_not_active_broker_interval = std::time::Duration::from_millis(parse::<u64>(key, value)?.max(1));
        }
        "waitSecondsForService" => options.wait_for_service = std::time::Duration::from_secs(parse(key, value)?),
        _ => {
            let remark = format!("{key}: not a setting of this name server that can be changed while it runs");
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
    }
    Ok(())
}

fn parse<T: FromStr>(key: &str, value: &str) -> Result<T, Refusal> {
    value.trim().parse().map_err(|_| {
        let remark = format!("{key}: \"{value}\" is not a {}", std::any::type_name::<T>());
        Refusal::new(ResponseCode::SystemError, remark)
    })
}

pub(crate) fn get(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    ok(out, asked.reply_to(), &(), print(&names.options.load()).as_bytes())
}

pub(crate) async fn update(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let bad = |error: &dyn std::fmt::Display| Refusal::new(ResponseCode::SystemError, error.to_string());
    let text = std::str::from_utf8(asked.body).map_err(|error| bad(&error))?;
    let changes = config::properties::parse(text);
    let _turn = names.configuration.changing.lock().await;
    let mut options = Options::clone(&names.options.load());
    for change in &changes {
        if options.config_black_list.iter().any(|key| *key == change.key) || change.key == "rocketmqHome" {
            return Err(Refusal::new(ResponseCode::NoPermission, "Can not update config in black list."));
        }
        set(&mut options, &change.key, &change.value)?;
    }
    store(&options.config_store_path, print(&options)).await.map_err(|error| bad(&error))?;
    for change in &changes {
        info!(key = change.key, value = change.value, "setting changed by request");
    }
    names.options.store(std::sync::Arc::new(options));
    ok(out, asked.reply_to(), &(), &[])
}

async fn store(path: &Path, text: String) -> std::io::Result<()> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || replace(&path, text.as_bytes())).await.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked)))
}
