//! The controllers' settings, read and changed while they run (1009, 1010).
//!
//! A change is one of all controllers, and outlives starts: it is part of what they agree on.

use std::collections::BTreeMap;

use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use tracing::info;

use crate::controller::{Controller, reply};
use crate::options::Setting;
use crate::state::{Command, Refusal};

/// Bytes of settings in one request.
const SETTINGS_BYTES_MAX: usize = 16 << 10;
/// Settings that name files, and the list of those that may not change.
const ALWAYS_BLACK_LISTED: [&str; 4] = ["configBlackList", "configStorePath", "controllerStorePath", "rocketmqHome"];
/// What may change while controllers run. Both are true or false.
const LIVE: [&str; 2] = [UNCLEAN, NOTIFIES];
const UNCLEAN: &str = "enableElectUncleanMaster";
const NOTIFIES: &str = "notifyBrokerRoleChanged";

impl Controller {
    /// Whether a broker that is not in sync may be elected where none that is lives.
    pub(crate) fn elects_unclean(&self) -> bool {
        self.is_set(UNCLEAN).unwrap_or(self.options.elects_unclean)
    }

    /// Whether brokers are told of elections.
    pub(crate) fn notifies(&self) -> bool {
        self.is_set(NOTIFIES).unwrap_or(self.options.notifies)
    }

    fn is_set(&self, key: &str) -> Option<bool> {
        self.group.read(|state| state.setting(key).map(|value| value.eq_ignore_ascii_case("true")))
    }
}

/// 1010: the settings in force, as the text of a property file.
pub(crate) fn get(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let mut text = String::new();
    for Setting { key, value, .. } in &controller.options.shown {
        let changed = controller.group.read(|state| state.setting(key).map(str::to_owned));
        let value = changed.as_ref().unwrap_or(value);
        text.push_str(&format!("{key}={value}\n"));
    }
    text.push_str(&format!("gantryVersion={}\n", env!("CARGO_PKG_VERSION")));
    reply(out, asked.reply_to(), &(), text.as_bytes())
}

/// 1009: settings change. Either all of them do or none.
pub(crate) async fn update(controller: &Controller, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let invalid = |remark| Refusal::new(ResponseCode::InvalidParameter, remark);
    if asked.body.len() > SETTINGS_BYTES_MAX {
        let bytes = asked.body.len();
        return Err(invalid(format!("body: {bytes} bytes of settings are more than the limit, {SETTINGS_BYTES_MAX}")));
    }
    let text = std::str::from_utf8(asked.body).map_err(|error| invalid(format!("body: {error}")))?;
    let lines = config::properties::parse(text)
        .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("string2Properties error: {error}")))?;
    let (mut changes, mut remarks) = (BTreeMap::new(), Vec::new());
    for config::properties::Line { key, value, .. } in lines {
        let value = value.trim();
        if is_black_listed(controller, &key) {
            return Err(Refusal::new(ResponseCode::NoPermission, "Can not update config in black list."));
        }
        if !LIVE.contains(&key.as_str()) {
            let known = controller.options.shown.iter().find(|setting| setting.key == key);
            if let Some(why) = known.and_then(|setting| setting.without_effect) {
                remarks.push(format!("{key} has no effect: {why}"));
                continue;
            }
            let why = if known.is_some() { "changes with a start only" } else { "is not a setting of a controller" };
            return Err(invalid(format!("{key} {why}; while controllers run, {} change", LIVE.join(" and "))));
        }
        if !["true", "false"].iter().any(|word| word.eq_ignore_ascii_case(value)) {
            return Err(invalid(format!("{key}={value} is neither true nor false")));
        }
        changes.insert(key, value.to_ascii_lowercase());
    }
    if !changes.is_empty() {
        info!(?changes, "settings are changed by request");
        controller.propose(Command::Configure { changes }).await?;
    }
    let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
    out.reply(asked.reply_to(), ResponseCode::Success, remark.as_deref(), &(), &[]);
    Ok(())
}

fn is_black_listed(controller: &Controller, key: &str) -> bool {
    let listed = &controller.options.black_list;
    ALWAYS_BLACK_LISTED.contains(&key) || listed.split(';').any(|listed| listed.trim() == key)
}
