//! `gantry profile`: where a running server spends its processor time, as a flame graph.
//!
//! The kernel takes the samples, and this process reads them, unwinds the stacks and finds the names of the functions. The server is no
//! part of it: no signal reaches it, no thread of it runs, and it needs no memory for it, before, meanwhile or afterwards.

mod events;
mod files;
mod graph;
mod names;
mod page;
mod server;
mod stacks;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use env::{counted, say, say_aside};
use events::Events;
use files::Mapped;
use graph::Graph;
use names::Names;
pub(crate) use server::running;
use server::{Server, Turn};
use stacks::Stacks;

/// How often samples are fetched. At the highest frequency two or three of a thread have come by then, and there is room for seven.
const FETCH: Duration = Duration::from_millis(5);
/// How often the server is asked for new threads.
const LOOK: Duration = Duration::from_millis(100);
/// The longest profile, in seconds.
const SECONDS_MAX: u64 = 60;
/// The most samples a second of each thread. At more, unwinding would take more of the processors than what it looks at.
const FREQUENCY_MAX: u64 = 499;

/// Show where a running server spends its processor time, as a flame graph; the server is not disturbed
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// How long to look
    #[arg(short, long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Samples a second of each thread that runs
    #[arg(short, long, default_value_t = 99, value_name = "HZ", value_parser = clap::value_parser!(u64).range(1..=FREQUENCY_MAX))]
    frequency: u64,
    /// Process of the server; not needed if only one runs here
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Where the flame graph goes: a picture for a browser
    #[arg(short, long, default_value = "gantry-profile.svg", value_name = "FILE")]
    output: PathBuf,
    /// Also write the stacks as text, a line each, as other programs read them
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

/// Takes one profile.
///
/// The error is one sentence with its causes.
pub fn run(args: ProfileArgs) -> anyhow::Result<()> {
    let server = args.pid.map_or_else(Server::only, Server::of)?;
    let _turn = Turn::take(server.pid)?;
    let mapped = Mapped::all(server.pid)?;
    let (mut stacks, mut names) = (Stacks::new(&mapped), Names::new(&mapped));
    let mut events = Events::of(&server, args.frequency)?;
    // Now, not after a minute: whether it can be written is known before anybody waits.
    let mut picture = File::create(&args.output).with_context(|| format!("cannot write {}", args.output.display()))?;
    say_aside!("looking at process {} for {} s", server.pid, args.seconds);

    let begun = Instant::now();
    let whole = Duration::from_secs(args.seconds);
    let mut looked = begun;
    loop {
        let has_ended = server.ends_within(FETCH)?;
        events.fetch(|sample| stacks.count(sample));
        if has_ended || begun.elapsed() >= whole {
            break;
        }
        if looked.elapsed() >= LOOK {
            events.look(&server)?;
            looked = Instant::now();
        }
    }
    let took = begun.elapsed();
    if stacks.samples() == 0 {
        // An empty picture would be taken for an answer.
        drop(picture);
        let _ = fs::remove_file(&args.output);
        bail!(
            "process {} did not run in {:.1} s: put some load on it, or look longer (--seconds)",
            server.pid,
            took.as_secs_f64()
        );
    }

    let graph = Graph::of(&stacks, &mut names);
    let title = format!(
        "gantry {}, {:.1} s at {} Hz, {}",
        server.pid,
        took.as_secs_f64(),
        args.frequency,
        counted(graph.samples(), "sample")
    );
    picture
        .write_all(page::svg(&graph, &title).as_bytes())
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    if let Some(path) = &args.folded {
        fs::write(path, graph.folded()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    tell(&args, &graph, &events, took)?;
    Ok(())
}

/// Says on standard output what was seen, and what not.
fn tell(args: &ProfileArgs, graph: &Graph, events: &Events, took: Duration) -> io::Result<()> {
    let seconds = took.as_secs_f64();
    say!("{}: {} in {seconds:.1} s", args.output.display(), counted(graph.samples(), "sample"))?;
    for (name, samples) in graph.threads() {
        let busy = samples as f64 / args.frequency as f64 / seconds * 100.0;
        say!("  {name:<16} {samples:>7} samples, {busy:.1} % of one processor")?;
    }
    if !events.sees_the_kernel() {
        say!("time inside the kernel is not in it: this user may not see it (kernel.perf_event_paranoid is above 1)")?;
    }
    if events.lost() > 0 {
        say!("{} lost: not read in time", counted(events.lost(), "sample"))?;
    }
    if events.unwatched() > 0 {
        say!(
            "{} left out: no memory for their samples may be locked (kernel.perf_event_mlock_kb, ulimit -l)",
            counted(events.unwatched(), "thread")
        )?;
    }
    Ok(())
}
