//! Samples become stacks of addresses, and equal stacks are counted.

use std::collections::HashMap;

use framehop::{CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, Unwinder, UnwinderNative};

use super::events::Sample;
use super::files::Mapped;

/// The most functions of a stack.
const DEPTH_MAX: usize = 256;
/// The most different stacks; at 256 addresses each they take 128 MiB of this process.
const STACKS_MAX: usize = 65_536;

/// What a thread was doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The thread's name.
    pub thread: String,
    /// Addresses inside functions, the innermost first.
    pub addresses: Vec<u64>,
    /// Whether the innermost function waited for the kernel's work.
    pub is_in_kernel: bool,
    /// Whether its beginning was not reached.
    pub is_cut: bool,
}

/// How often each stack was seen.
pub struct Stacks {
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    counts: HashMap<Stack, u64>,
    samples: u64,
}

impl Stacks {
    /// Nothing yet, in a process that runs this code.
    pub fn new(mapped: &[Mapped]) -> Stacks {
        let mut unwinder = UnwinderNative::new();
        for file in mapped {
            let (eh_frame_svma, eh_frame) = file.eh_frame.clone().unzip();
            let (eh_frame_hdr_svma, eh_frame_hdr) = file.eh_frame_hdr.clone().unzip();
            let sections = ExplicitModuleSectionInfo {
                eh_frame_svma,
                eh_frame,
                eh_frame_hdr_svma,
                eh_frame_hdr,
                ..Default::default()
            };
            unwinder.add_module(Module::new(file.name.clone(), file.addresses.clone(), file.bias, sections));
        }
        Stacks { unwinder, cache: CacheNative::new(), counts: HashMap::new(), samples: 0 }
    }

    /// Counts one more sample.
    pub fn count(&mut self, sample: Sample<'_>) {
        self.samples += 1;
        let mut word = |address: u64| {
            let at = usize::try_from(address.checked_sub(sample.stack_start).ok_or(())?).map_err(|_| ())?;
            let bytes = sample.stack.get(at..).and_then(|rest| rest.first_chunk()).ok_or(())?;
            Ok(u64::from_le_bytes(*bytes))
        };
        let mut addresses = Vec::new();
        let mut frames = self.unwinder.iter_frames(sample.instruction, sample.registers, &mut self.cache, &mut word);
        let is_cut = loop {
            match frames.next() {
                Ok(Some(frame)) if addresses.len() < DEPTH_MAX => addresses.push(frame.address_for_lookup()),
                Ok(None) => break false,
                Ok(Some(_)) | Err(_) => break true,
            }
        };
        let mut stack =
            Stack { thread: sample.thread.to_owned(), addresses, is_in_kernel: sample.is_in_kernel, is_cut };
        if self.counts.len() >= STACKS_MAX && !self.counts.contains_key(&stack) {
            // Which thread it was is still known.
            stack.addresses.clear();
        }
        *self.counts.entry(stack).or_default() += 1;
    }

    /// Samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Each stack, and how often it was seen.
    pub fn all(&self) -> impl Iterator<Item = (&Stack, u64)> {
        self.counts.iter().map(|(stack, count)| (stack, *count))
    }
}
