//! Stacks laid over each other: who called whom, and how often it was seen.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::names::Names;
use super::stacks::Stacks;

/// What stands for all that the kernel does.
pub const KERNEL: &str = "[kernel]";
/// What stands for the functions at the beginning of a stack that was not read to its beginning.
const CUT: &str = "[deeper]";

/// A function, or a thread, as it was called in one way.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Samples in it and in all that it called.
    pub samples: u64,
    /// What it called, by name.
    pub calls: BTreeMap<String, Frame>,
}

/// All threads of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// Calls the threads.
    pub root: Frame,
}

impl Graph {
    /// Lays all stacks over each other. Threads of one name are one.
    pub fn of(stacks: &Stacks, names: &mut Names<'_>) -> Graph {
        let mut graph = Graph::default();
        for (stack, samples) in stacks.all() {
            let mut path = vec![stack.thread.clone()];
            path.extend(stack.is_cut.then(|| CUT.to_owned()));
            for address in stack.addresses.iter().rev() {
                path.extend(names.at(*address).iter().cloned());
            }
            path.extend(stack.is_in_kernel.then(|| KERNEL.to_owned()));
            graph.add(path, samples);
        }
        graph
    }

    /// Adds what was seen of one stack; the thread comes first.
    pub fn add(&mut self, path: impl IntoIterator<Item = String>, samples: u64) {
        let mut frame = &mut self.root;
        frame.samples += samples;
        for name in path {
            frame = frame.calls.entry(name).or_default();
            frame.samples += samples;
        }
    }

    /// All samples.
    pub fn samples(&self) -> u64 {
        self.root.samples
    }

    /// Threads and their samples, the busiest first.
    pub fn threads(&self) -> Vec<(&str, u64)> {
        let mut threads: Vec<_> = self.root.calls.iter().map(|(name, frame)| (name.as_str(), frame.samples)).collect();
        threads.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        threads
    }

    /// A line for each stack: its functions, the thread first, between semicolons, and its samples.
    pub fn folded(&self) -> String {
        let mut out = String::new();
        fold(&self.root, &mut String::new(), &mut out);
        out
    }
}

/// Its depth is bounded by that of the stacks.
fn fold(frame: &Frame, path: &mut String, out: &mut String) {
    let own = frame.samples - frame.calls.values().map(|call| call.samples).sum::<u64>();
    if own > 0 {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{path} {own}");
    }
    for (name, call) in &frame.calls {
        let length = path.len();
        if length > 0 {
            path.push(';');
        }
        path.push_str(&name.replace(';', ","));
        fold(call, path, out);
        path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> impl Iterator<Item = String> {
        text.split('/').map(str::to_owned)
    }

    #[test]
    fn stacks_with_the_same_beginning_share_it() {
        let mut graph = Graph::default();
        graph.add(path("flush/sync/[kernel]"), 2);
        graph.add(path("gantry/serve/send"), 3);
        graph.add(path("gantry/serve/pull"), 1);
        graph.add(path("gantry/serve"), 4);
        assert_eq!(graph.samples(), 10);
        assert_eq!(graph.threads(), [("gantry", 8), ("flush", 2)]);
        assert_eq!(graph.folded(), "flush;sync;[kernel] 2\ngantry;serve 4\ngantry;serve;pull 1\ngantry;serve;send 3\n");
    }
}
