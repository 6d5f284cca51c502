//! Samples, as the kernel takes them: one event and one ring of memory for each thread.
//!
//! A thread that runs is interrupted by the kernel's own timer, and the kernel copies its registers and the top of its stack into the
//! ring. The thread notices nothing; a system call is not cut short.

use std::collections::HashMap;
use std::io;

use anyhow::{Context, anyhow, bail};
use framehop::UnwindRegsNative;
use perf_event::data::{Record, Sample as Taken};
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use rustix::io::Errno;

use super::server::Server;

/// What is copied of a stack, in bytes. Stacks that are deeper lose the functions at their beginning.
const STACK_BYTES: u32 = 16 << 10;
/// Memory for the samples of a thread, in bytes: seven of them. A user without rights may lock some 8 MiB, so that 60 threads find room.
const RING_BYTES: usize = 128 << 10;
/// What a sample's header says about where it was taken, and its value for the kernel (`PERF_RECORD_MISC_CPUMODE_MASK`, `…_KERNEL`).
const MODE: (u16, u16) = (7, 1);

/// Which registers are copied, in the kernel's numbering (`asm/perf_regs.h`), and in ascending order in a sample.
#[cfg(target_arch = "x86_64")]
const REGISTERS: [u32; 3] = [6, 7, 8]; // bp, sp, ip
#[cfg(target_arch = "aarch64")]
const REGISTERS: [u32; 4] = [29, 30, 31, 32]; // fp, lr, sp, pc

/// A thread at one moment.
pub struct Sample<'a> {
    /// The name of the thread.
    pub thread: &'a str,
    /// Whether the kernel was at work for it.
    pub is_in_kernel: bool,
    /// The next instruction outside the kernel.
    pub instruction: u64,
    /// What unwinding begins with.
    pub registers: UnwindRegsNative,
    /// The address of the first byte of `stack`.
    pub stack_start: u64,
    /// The top of the stack.
    pub stack: &'a [u8],
}

/// A thread that is looked at.
struct Watched {
    name: String,
    ring: Sampler,
}

/// All threads of a process that are looked at. Ends with it.
pub struct Events {
    frequency: u64,
    threads: HashMap<i32, Watched>,
    /// Those without memory for their samples.
    unwatched: Vec<i32>,
    sees_the_kernel: bool,
    lost: u64,
}

impl Events {
    /// Begins to look at all threads of the process.
    pub fn of(server: &Server, frequency: u64) -> anyhow::Result<Events> {
        let mut events =
            Events { frequency, threads: HashMap::new(), unwatched: Vec::new(), sees_the_kernel: true, lost: 0 };
        events.look(server)?;
        if events.threads.is_empty() {
            bail!("no thread of process {} can be looked at", server.pid);
        }
        Ok(events)
    }

    /// Looks at the threads that came, and forgets those that have gone. To be called after [`Events::fetch`]: what a thread left behind
    /// goes with it.
    pub fn look(&mut self, server: &Server) -> anyhow::Result<()> {
        let found = server.threads();
        self.threads.retain(|id, _| found.iter().any(|(found, _)| found == id));
        for (id, name) in found {
            if let Some(watched) = self.threads.get_mut(&id) {
                // A thread gets its name a moment after it began.
                watched.name = name;
            } else if !self.unwatched.contains(&id) {
                self.watch(server.pid, id, name)?;
            }
        }
        Ok(())
    }

    fn watch(&mut self, pid: i32, id: i32, name: String) -> anyhow::Result<()> {
        let mut opened = self.event(id).build();
        if self.sees_the_kernel && opened.as_ref().is_err_and(is_forbidden) {
            self.sees_the_kernel = false;
            opened = self.event(id).build();
        }
        let event = match opened {
            Ok(event) => event,
            // It has ended.
            Err(error) if is(&error, Errno::SRCH) => return Ok(()),
            Err(error) if is_forbidden(&error) => {
                return Err(anyhow!(error)).with_context(|| {
                    format!(
                        "the kernel does not let this user look at process {pid}: it takes the server's user and \
                         kernel.perf_event_paranoid of at most 2, or CAP_PERFMON; a container also needs a seccomp profile that \
                         allows perf_event_open"
                    )
                });
            }
            Err(error) => {
                return Err(anyhow!(error)).with_context(|| format!("cannot look at thread {id} of process {pid}"));
            }
        };
        match event.sampled(RING_BYTES) {
            Ok(ring) => {
                self.threads.insert(id, Watched { name, ring });
            }
            // More than a user may lock.
            Err(error) if is_forbidden(&error) || is(&error, Errno::NOMEM) => self.unwatched.push(id),
            Err(error) => return Err(anyhow!(error)).context("cannot map memory for samples"),
        }
        Ok(())
    }

    /// The clock of a thread's processor time: it needs no counter of the processor, so that virtual machines have it too.
    fn event(&self, thread: i32) -> Builder<'static> {
        let mut event = Builder::new(Software::CPU_CLOCK);
        event
            .observe_pid(thread)
            .any_cpu()
            .sample_frequency(self.frequency)
            .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
            .sample_regs_user(REGISTERS.iter().fold(0, |mask, register| mask | 1 << register))
            .sample_stack_user(STACK_BYTES)
            .exclude_kernel(!self.sees_the_kernel)
            .enabled(true);
        event
    }

    /// Hands on all samples that have come.
    pub fn fetch(&mut self, mut take: impl FnMut(Sample<'_>)) {
        for watched in self.threads.values_mut() {
            while let Some(record) = watched.ring.next_record() {
                let is_in_kernel = record.misc() & MODE.0 == MODE.1;
                match record.parse_record() {
                    Ok(Record::Sample(taken)) => {
                        if let Some(sample) = sample(&watched.name, is_in_kernel, &taken) {
                            take(sample);
                        }
                    }
                    Ok(Record::Lost(lost)) => self.lost = self.lost.saturating_add(lost.lost),
                    // A rate that the kernel has throttled, or something newer than this program.
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }

    /// Whether samples were also taken inside the kernel.
    pub fn sees_the_kernel(&self) -> bool {
        self.sees_the_kernel
    }

    /// Samples for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Threads that were not looked at.
    pub fn unwatched(&self) -> usize {
        self.unwatched.len()
    }
}

/// Nothing if the thread was not in a state to be looked at: about to end, say.
fn sample<'a>(thread: &'a str, is_in_kernel: bool, taken: &'a Taken<'_>) -> Option<Sample<'a>> {
    let (instruction, stack_start, registers) = registers(&taken.regs_user()?.regs)?;
    Some(Sample { thread, is_in_kernel, instruction, registers, stack_start, stack: taken.stack_user()? })
}

#[cfg(target_arch = "x86_64")]
fn registers(values: &[u64]) -> Option<(u64, u64, UnwindRegsNative)> {
    let [bp, sp, ip] = *values else { return None };
    Some((ip, sp, UnwindRegsNative::new(ip, sp, bp)))
}

#[cfg(target_arch = "aarch64")]
fn registers(values: &[u64]) -> Option<(u64, u64, UnwindRegsNative)> {
    let [fp, lr, sp, pc] = *values else { return None };
    Some((pc, sp, UnwindRegsNative::new(lr, sp, fp)))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn is_forbidden(error: &io::Error) -> bool {
    is(error, Errno::ACCESS) || is(error, Errno::PERM) || is(error, Errno::NOSYS)
}
