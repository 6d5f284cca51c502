//! The settings in force, with their origins, and the file that changes of them go to.
//! `admin/configuration.rs` has the requests.

use std::path::PathBuf;
use std::sync::Arc;

use config::Settings;
use config::file::{self, FileError};
use parking_lot::Mutex;
use protocol::body::DataVersion;

/// The settings with their origins, and the file that they came from.
pub(crate) struct Configuration {
    /// Guards changes, from looking at the old value until the new one is in force. The file
    /// follows, on a thread that may wait.
    pub(crate) now: Mutex<InForce>,
    pub(crate) file: Option<Arc<SettingsFile>>,
}

/// The file, and changes on their way to it.
pub(crate) struct SettingsFile {
    path: PathBuf,
    /// In the order in which they came into force, each key once; what could not be written stays,
    /// and is written with the next change.
    pending: Mutex<Vec<(String, String)>>,
    /// Held while the file is written, by threads that may wait.
    writing: Mutex<()>,
}

impl SettingsFile {
    pub(crate) fn add(&self, changes: &[(String, String)]) {
        let mut pending = self.pending.lock();
        for change in changes {
            pending.retain(|(key, _)| *key != change.0);
            pending.push(change.clone());
        }
    }

    /// Writes what is pending, and returns when the device has it. Of two that come at once, one
    /// finds nothing left to do.
    pub(crate) fn write(&self) -> Result<(), FileError> {
        let _writing = self.writing.lock();
        let changes = self.pending.lock().clone();
        if changes.is_empty() {
            return Ok(());
        }
        file::change(&self.path, &changes)?;
        self.pending.lock().retain(|change| !changes.contains(change));
        Ok(())
    }
}

/// What is in force.
pub(crate) struct InForce {
    pub(crate) settings: Settings,
    pub(crate) version: DataVersion,
}

impl Configuration {
    pub(crate) fn new(settings: Settings, file: Option<PathBuf>) -> Configuration {
        let file =
            file.map(|path| Arc::new(SettingsFile { path, pending: Mutex::default(), writing: Mutex::default() }));
        Configuration { now: Mutex::new(InForce { settings, version: DataVersion::default() }), file }
    }

    /// The text of a setting, given or by default.
    pub(crate) fn text(&self, key: &str) -> String {
        self.now.lock().settings.text(key)
    }
}
