//! The device damages what is derived from the log, while nobody has the store open: units of consume queues, and their folders.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Run;

/// Bytes of a unit, and of its log offset and size, of which a flipped bit is noticed; behind them is its tag.
const UNIT_BYTES: usize = 20;
const NOTICED_BYTES: u32 = 12;

impl Run<'_> {
    /// Damages some of it, by dice of its own.
    pub(super) fn damage(&mut self) -> anyhow::Result<()> {
        let root = self.world.root().join("consumequeue");
        for topic in folders(&root)? {
            for queue in folders(&topic)? {
                match self.dice.below(8) {
                    0 => {
                        self.report.tell(|| format!("{} is lost", name(&queue, &root)));
                        fs::remove_dir_all(&queue)?;
                    }
                    1..4 => self.damage_units(&queue, &root)?,
                    _ => {}
                }
            }
        }
        // Else a folder that was lost would come back with the next loss of power.
        self.world.take_files()?;
        Ok(())
    }

    fn damage_units(&mut self, queue: &Path, root: &Path) -> anyhow::Result<()> {
        for path in entries(queue)? {
            let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            let mut bytes = fs::read(&path)?;
            let units = bytes.len() / UNIT_BYTES;
            for _ in 0..=self.dice.below(2) {
                let place = self.dice.below(units.max(1) as u32) as usize;
                let Some(unit) = bytes.get_mut(place * UNIT_BYTES..(place + 1) * UNIT_BYTES) else { continue };
                if unit.iter().all(|byte| *byte == 0) {
                    continue;
                }
                match self.dice.below(2) {
                    0 => unit.fill(0),
                    _ => unit[self.dice.below(NOTICED_BYTES) as usize] ^= 1 << self.dice.below(8),
                }
                self.report.tell(|| format!("unit {place} of {} is {unit:?}", name(&path, root)));
                file.write_all_at(unit, (place * UNIT_BYTES) as u64)?;
            }
        }
        Ok(())
    }
}

fn name(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// What is in a folder, in the order of names: a seed tells the same story each time.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    paths.sort();
    Ok(paths)
}

fn folders(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir()).collect())
}
