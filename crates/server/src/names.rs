//! From settings to the options of a name server: both know the keys by RocketMQ's names.

use anyhow::Context;
use config::Settings;
use names::Options;

/// The options that the settings say.
pub fn options(settings: &Settings) -> anyhow::Result<Options> {
    let mut options = Options::default();
    for line in Options::default().print().lines() {
        let Some((key, _)) = line.split_once('=') else { continue };
        let value = settings.text(key);
        if !value.is_empty() {
            options.set(key, &value).with_context(|| format!("{key} ({})", settings.origin(key)))?;
        }
    }
    Ok(options)
}
