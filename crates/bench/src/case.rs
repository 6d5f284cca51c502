//! A case: workload and driver, from a preset, files, and single values, the later winning.

use std::path::Path;

use crate::driver::{self, Driver};
use crate::error::BenchError;
use crate::fields::Fields;
use crate::presets;
use crate::workload::{self, Workload};

/// What has been said so far.
#[derive(Clone, Debug)]
pub struct Case {
    workload: Fields,
    driver: Fields,
}

impl Default for Case {
    fn default() -> Case {
        Case::new()
    }
}

impl Case {
    /// Everything as usual.
    pub fn new() -> Case {
        Case { workload: Fields::new("workload", workload::KEYS), driver: Fields::new("driver", driver::KEYS) }
    }

    /// Takes a preset.
    pub fn preset(&mut self, name: &str) -> Result<(), BenchError> {
        let Some(preset) = presets::find(name) else {
            let names: Vec<String> = presets::all().into_iter().map(|preset| preset.name).collect();
            return Err(BenchError::Invalid(format!("there is no preset {name}; there are {}", names.join(", "))));
        };
        self.workload.read(&preset.workload, &format!("preset {name}"))?;
        self.driver.read(&preset.driver, &format!("preset {name}"))
    }

    /// Takes a workload file. Without a `name` in it the file's own name is taken.
    pub fn workload_file(&mut self, path: &Path) -> Result<(), BenchError> {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        self.workload.set("name", stem, "the file's name")?;
        self.workload.read_file(path)
    }

    /// Takes a driver file.
    pub fn driver_file(&mut self, path: &Path) -> Result<(), BenchError> {
        self.driver.read_file(path)
    }

    /// Takes one value, of the workload or the driver; `name` is the workload's.
    pub fn set(&mut self, key: &str, value: &str, origin: &str) -> Result<(), BenchError> {
        let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        if self.workload.knows(key) {
            return self.workload.set(key, value, origin);
        }
        if self.driver.knows(key) {
            return self.driver.set(key, value, origin);
        }
        let known = [workload::KEYS, driver::KEYS].concat().join(", ");
        let (origin, key) = (origin.to_owned(), key.to_owned());
        Err(BenchError::UnknownKey { origin, key, kind: "workload or driver", known })
    }

    /// Checks it all.
    pub fn finish(&self) -> Result<(Workload, Driver), BenchError> {
        Ok((Workload::from_fields(&self.workload)?, Driver::from_fields(&self.driver)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_a_preset_and_single_values_change_files() {
        let dir = tempfile::tempdir().unwrap();
        let (workload, driver) = (dir.path().join("mine.yaml"), dir.path().join("driver.yaml"));
        std::fs::write(&workload, "messageSize: 200\npartitionsPerTopic: 8\n").unwrap();
        std::fs::write(&driver, "namesrvAddr: a:1;b:2\nthreads: 5\n").unwrap();
        let mut case = Case::new();
        case.preset("sync-64").unwrap();
        case.workload_file(&workload).unwrap();
        case.driver_file(&driver).unwrap();
        case.set("partitionsPerTopic", "4", "--set").unwrap();
        let (workload, driver) = case.finish().unwrap();
        assert_eq!((workload.name.as_str(), workload.message_size, workload.partitions_per_topic), ("mine", 200, 4));
        assert_eq!((workload.messages, driver.in_flight, driver.namesrv_addr.as_str()), (1_000_000, 5, "a:1;b:2"));
        let said = case.set("treads", "4", "--set").unwrap_err().to_string();
        assert!(said.starts_with("--set: treads is no key of a workload or driver; known are name, topics"), "{said}");
        let said = case.preset("none").unwrap_err().to_string();
        assert!(said.starts_with("there is no preset none; there are batch-16"), "{said}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let said = Case::new().workload_file(Path::new("/nowhere/w.yaml")).unwrap_err().to_string();
        assert!(said.starts_with("/nowhere/w.yaml: "), "{said}");
    }
}
