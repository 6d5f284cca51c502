//! The name server's own settings, read and changed while it runs (318, 319).
//!
//! A change holds from the next request on. It is acknowledged when the settings file has it; one that cannot be written is in force all the
//! same, and the answer says so. Of that file only the changed keys change: it may be the one that the process was started with.

use std::path::PathBuf;
use std::sync::Arc;

use config::file::{self, FileError};
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use tracing::{error, info, warn};

use crate::names::{Names, Refusal, ok};
use crate::options::{SettingError, Updated};

/// Settings of one change. All that there are fit in; more would occupy a thread that serves connections, and be repeated in the log.
const SETTINGS_BYTES_MAX: usize = 16 << 10;

/// Changes that are in force and not in the file yet, each key once.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Vec<(String, String)>);

impl Unwritten {
    fn add(&mut self, changes: &[(String, String)]) {
        for change in changes {
            self.0.retain(|(key, _)| *key != change.0);
            self.0.push(change.clone());
        }
    }
}

impl From<SettingError> for Refusal {
    fn from(error: SettingError) -> Refusal {
        let code = match error {
            SettingError::BlackListed => ResponseCode::NoPermission,
            SettingError::Syntax(_) | SettingError::Invalid { .. } => ResponseCode::SystemError,
            // As the broker answers it (25).
            SettingError::NotTaken(_) => ResponseCode::InvalidParameter,
        };
        Refusal::new(code, error.to_string())
    }
}

pub(crate) fn get(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let text = names.options.load().print() + &names.figures();
    ok(out, asked.reply_to(), &(), text.as_bytes())
}

pub(crate) async fn update(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let failed = |error: &dyn std::fmt::Display| Refusal::new(ResponseCode::SystemError, error.to_string());
    if asked.body.len() > SETTINGS_BYTES_MAX {
        let remark =
            format!("body: {} bytes of settings are more than the limit, {SETTINGS_BYTES_MAX}", asked.body.len());
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    let text = std::str::from_utf8(asked.body).map_err(|error| failed(&error))?;
    // Held until the file is written, so that two changes come into force and into the file in one order.
    let mut unwritten = names.changing.lock().await;
    let Updated { options, changes, mut remarks, overridden } = names.options.load().updated(text)?;
    let path = options.config_store_path.clone();
    let keys: Vec<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
    let keys = keys.join(", ");
    info!(keys, "settings changed by request");
    if !changes.is_empty() {
        names.options.store(Arc::new(options));
        {
            let _entry = names.entry.write().await;
            // Routes depend on the settings, so kept ones are made again. A reader of the new generation has the new settings.
            names.table.write().look_again();
        }
        unwritten.add(&changes);
        if let Err(why) = store(path, unwritten.0.clone()).await {
            error!(error = why, keys, "changed settings are in force, and not written");
            let remark = format!("{keys}: in force until the name server stops, not written: {why}");
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
        unwritten.0.clear();
    }
    if !overridden.is_empty() {
        warn!(reason = overridden.join("; "), keys, "changed settings do not hold after the next start");
        remarks.extend(overridden);
    }
    let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
    out.reply(asked.reply_to(), ResponseCode::Success, remark.as_deref(), &(), &[]);
    Ok(())
}

async fn store(path: PathBuf, changes: Vec<(String, String)>) -> Result<(), String> {
    let written = tokio::task::spawn_blocking(move || file::change(&path, &changes)).await;
    written.map_err(|panicked| panicked.to_string())?.map_err(|error: FileError| error.to_string())
}
