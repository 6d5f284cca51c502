//! The name server's own settings, read and changed while it runs (318, 319).
//!
//! A change is written to the settings file before it is acknowledged, and holds from the next request on.

use std::io;
use std::path::Path;
use std::sync::Arc;

use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use tracing::{info, warn};

use crate::kv::replace;
use crate::names::{Names, Refusal, ok};
use crate::options::SettingError;

impl From<SettingError> for Refusal {
    fn from(error: SettingError) -> Refusal {
        let code = match error {
            SettingError::BlackListed => ResponseCode::NoPermission,
            SettingError::Invalid { .. } => ResponseCode::SystemError,
        };
        Refusal::new(code, error.to_string())
    }
}

pub(crate) fn get(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    ok(out, asked.reply_to(), &(), names.options.load().print().as_bytes())
}

pub(crate) async fn update(names: &Names, asked: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let failed = |error: &dyn std::fmt::Display| Refusal::new(ResponseCode::SystemError, error.to_string());
    let text = std::str::from_utf8(asked.body).map_err(|error| failed(&error))?;
    let _turn = names.changing.lock().await;
    let (updated, unknown) = names.options.load().updated(text)?;
    store(&updated.config_store_path, updated.print()).await.map_err(|error| failed(&error))?;
    names.options.store(Arc::new(updated));
    info!(change = text, "settings changed by request");
    if !unknown.is_empty() {
        // Apache keeps such keys without a word; we say that they do nothing.
        warn!(keys = unknown.join(", "), "unknown settings in a change, without effect");
    }
    ok(out, asked.reply_to(), &(), &[])
}

async fn store(path: &Path, text: String) -> io::Result<()> {
    let path = path.to_owned();
    let written = tokio::task::spawn_blocking(move || replace(&path, text.as_bytes())).await;
    written.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}
