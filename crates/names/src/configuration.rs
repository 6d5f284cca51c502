//! The name server's own settings, read and changed while it runs (318, 319).
//!
//! A change is written into the settings file before it is acknowledged, and holds from the next request on. Of that file only the
//! changed keys change: it may be the one that the process was started with.

use std::io;
use std::path::Path;
use std::sync::Arc;

use config::properties;
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use tracing::{info, warn};

use crate::kv::replace;
use crate::names::{Names, Refusal, ok};
use crate::options::{SettingError, Updated};

impl From<SettingError> for Refusal {
    fn from(error: SettingError) -> Refusal {
        let code = match error {
            SettingError::BlackListed => ResponseCode::NoPermission,
            SettingError::Syntax(_) | SettingError::Invalid { .. } => ResponseCode::SystemError,
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
    let text = std::str::from_utf8(asked.body).map_err(|error| failed(&error))?;
    let _turn = names.changing.lock().await;
    let Updated { options, changes, unknown } = names.options.load().updated(text)?;
    if !changes.is_empty() {
        store(&options.config_store_path, changes).await.map_err(|error| failed(&error))?;
        names.options.store(Arc::new(options));
        // Routes look different now. Whoever sees the new generation sees the new settings.
        names.table.write().look_again();
    }
    info!(change = text, "settings changed by request");
    if !unknown.is_empty() {
        // Apache keeps such keys without a word; we say that they do nothing.
        warn!(keys = unknown.join(", "), "unknown settings in a change, without effect");
    }
    ok(out, asked.reply_to(), &(), &[])
}

async fn store(path: &Path, changes: Vec<(String, String)>) -> io::Result<()> {
    let path = path.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        let before = match std::fs::read(&path) {
            Ok(bytes) => properties::text_of(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        replace(&path, properties::with_changes(&before, &changes).map_err(io::Error::other)?.as_bytes())
    })
    .await;
    written.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}
