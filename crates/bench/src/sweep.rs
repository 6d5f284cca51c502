//! One load after the other, with a setting of the target changed in between.

use tokio::sync::watch;

use crate::book::Watcher;
use crate::driver::Driver;
use crate::error::BenchError;
use crate::result::RunResult;
use crate::run::{self, Options};
use crate::scene::Scene;
use crate::target::Target;
use crate::workload::Workload;

/// Values of a sweep.
const VALUES_MAX: usize = 100;

/// What is told of a sweep beside its seconds.
pub trait SweepWatcher: Watcher {
    /// A load with this value begins.
    fn value(&mut self, key: &str, value: &str);
    /// Something that a user should know.
    fn note(&mut self, text: &str);
}

/// What a sweep came to.
#[derive(Debug)]
pub struct Swept {
    /// Of each value that was measured.
    pub results: Vec<RunResult>,
    /// What went wrong, in words: why not all values were measured, and where the setting could not be put back.
    pub failures: Vec<String>,
}

/// Runs a load for each value of a setting, which is changed by request, without a restart. At the end the setting is what it was.
///
/// A setting that the target does not change while it runs is an error, in the target's words; so is one that it takes and does not
/// show afterwards. Apache's broker takes and shows any, also what it reads only when it starts: nobody tells those apart from outside.
pub async fn sweep(
    (key, values): (&str, &[String]),
    workload: &Workload,
    driver: &Driver,
    options: &Options,
    watcher: &mut dyn SweepWatcher,
    stop: watch::Receiver<bool>,
) -> Result<Swept, BenchError> {
    check(key, values)?;
    let scene = Scene::new(0, 0, workload.message_size);
    let target = Target::connect(&scene, driver).await?;
    let mut before = Vec::new();
    for address in &target.masters {
        let value = target.setting(address, key).await?;
        let text = || BenchError::Invalid(format!("{address} has no setting {key}"));
        let value = value.ok_or_else(text)?;
        if !is_plain(&value) {
            let text = format!("{address} has {key}={value:?}, which could not be put back as it is");
            return Err(BenchError::Invalid(text));
        }
        // Whoever ends the sweep at once has to put it back himself.
        watcher.note(&format!("{key} is {value} at {address} now, and will be again when the sweep ends"));
        before.push((address.clone(), value));
    }
    let mut results = Vec::new();
    let (mut failures, mut failure) = (Vec::new(), None);
    for value in values {
        if *stop.borrow() {
            break;
        }
        watcher.value(key, value);
        let options = Options { setting: Some((key.to_owned(), value.clone())), ..options.clone() };
        let done = match change(&target, key, value).await {
            Ok(()) => run::run(workload, driver, &options, watcher, stop.clone()).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(result) => results.push(result),
            Err(error) => {
                failures.push(format!("the sweep ended at {value}: {error}"));
                failure = Some(error);
                break;
            }
        }
    }
    // Also after a failure, and after the first interrupt.
    for (address, value) in &before {
        if let Err(error) = target.set(address, key, value).await {
            failures.push(format!("{key} could not be set back to {value} at {address}: {error}"));
        }
    }
    target.stop().await;
    match failure {
        // What was measured before is worth keeping, and a setting that stays changed worth telling.
        Some(error) if results.is_empty() && failures.len() == 1 => Err(error),
        Some(_) | None => Ok(Swept { results, failures }),
    }
}

/// Whether a value comes back from a file of properties as it went in: blanks at its ends and letters outside of ASCII do not.
fn is_plain(value: &str) -> bool {
    value.trim() == value && value.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic())
}

fn check(key: &str, values: &[String]) -> Result<(), BenchError> {
    let refuse = |text: String| Err(BenchError::Invalid(text));
    if key.is_empty() || key.contains(['=', ':', '\n', ' ']) {
        return refuse(format!("\"{key}\" cannot be the name of a setting"));
    }
    if values.is_empty() || values.len() > VALUES_MAX {
        return refuse(format!("a sweep has {} values; 1 to {VALUES_MAX} are expected", values.len()));
    }
    match values.iter().find(|value| !is_plain(value)) {
        Some(value) => {
            refuse(format!("{value:?} cannot be a value: ASCII letters without blanks at the ends are expected"))
        }
        None => Ok(()),
    }
}

/// Changes a setting on all masters, and looks whether it is in force.
async fn change(target: &Target, key: &str, value: &str) -> Result<(), BenchError> {
    for address in &target.masters {
        target.set(address, key, value).await?;
        let shown = target.setting(address, key).await?.unwrap_or_default();
        if shown != value {
            let text = format!(
                "{address} took {key}={value} and still shows {shown}: it may need a restart, so nothing is measured"
            );
            return Err(BenchError::Invalid(text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_that_would_make_other_lines_are_refused() {
        let one = || vec!["1".to_owned()];
        assert!(check("flushInterval", &one()).is_ok());
        for (key, values) in [
            ("a=b", one()),
            ("", one()),
            ("a", vec![]),
            ("a", vec!["1\nb=2".to_owned()]),
            ("a", vec![" 1".to_owned()]),
            ("a", vec!["é".to_owned()]),
            ("a", vec!["1".to_owned(); 101]),
        ] {
            assert!(check(key, &values).is_err(), "{key} {values:?}");
        }
    }
}
