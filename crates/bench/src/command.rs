//! The command line: `gantry bench run | sweep | presets | report | sink | echo`.

mod ceilings;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use env::{say_aside, sentence};
use tokio::sync::watch;

use crate::book::Watcher;
use crate::case::Case;
use crate::error::BenchError;
use crate::html;
use crate::presets;
use crate::process::{MeasureDisk, ServerProcess};
use crate::result::{RunResult, Window};
use crate::run::{self, Options};
use crate::sweep::{self, SweepWatcher};
use crate::team::Processes;
use crate::text;
use crate::worker;

/// Load a RocketMQ cluster, ours or Apache's, and report what it did
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Run a load
    Run(RunArgs),
    /// Run a load for each value of a broker's setting
    Sweep(SweepArgs),
    /// List the loads that have a name, or show one as workload and driver files
    Presets(PresetArgs),
    /// Show result files again, side by side
    Report(ReportArgs),
    /// Serve as a null server, to see how fast the load generator itself is
    Sink(ceilings::SinkArgs),
    /// Measure round trips of a plain echo, which is what the machine itself can do
    Echo(ceilings::EchoArgs),
    #[command(hide = true)]
    EchoServer(ceilings::EchoServerArgs),
    #[command(hide = true)]
    Worker,
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// A load that has a name; files and --set change it
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Workload file of the OpenMessaging benchmark
    #[arg(short, long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Driver file
    #[arg(short, long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Name servers, separated by semicolons
    #[arg(short = 'n', long = "namesrvAddr", env = "NAMESRV_ADDR", value_name = "HOST:PORT")]
    names: Option<String>,
    /// Set one key of the workload or the driver; may be repeated, and wins over files
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// How long to measure, in seconds, instead of testDurationMinutes
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// How long to warm up, in seconds, instead of warmupDurationMinutes
    #[arg(long, value_name = "SECONDS")]
    warmup: Option<f64>,
    /// The server's process on this machine, or a file that has its number and may come to have another: its processor time and memory go
    /// into the result
    #[arg(long, value_name = "PID|FILE")]
    server_pid: Option<ServerProcess>,
    /// Measure the disk of this folder before the load, as `gantry doctor disk` does; the figures go into the result. It takes five seconds
    /// and 200 MiB of room
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Let so many processes play the load, each its share of producers and consumers
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Leave the topics and groups of the run where they are
    #[arg(long)]
    keep_topics: bool,
    /// No line a second
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Output {
    /// Write everything that was found out
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a report with charts, in one file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Fail if anything was lost, duplicated, disordered or not sent, or a rate fell
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Args)]
struct SweepArgs {
    /// The setting
    key: String,
    /// Its values
    #[arg(required = true)]
    values: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Args)]
struct PresetArgs {
    /// One of them
    name: Option<String>,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Files that --json wrote; ratios are to the first
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        Some(_) | None => Err("KEY=VALUE is expected".to_owned()),
    }
}

/// Runs the command. Results go to standard output, what happens meanwhile to standard error.
pub fn execute(args: BenchArgs, measure_disk: MeasureDisk) -> anyhow::Result<ExitCode> {
    match args.command {
        BenchCommand::Run(RunArgs { load }) => {
            let (workload, driver, options) = load.read(measure_disk)?;
            load.output.prepare()?;
            let mut teller = Teller { is_quiet: load.quiet };
            let result =
                on_runtime(|stop| async move { run::run(&workload, &driver, &options, &mut teller, stop).await })?;
            load.output.show(&[result])
        }
        BenchCommand::Sweep(SweepArgs { key, values, load }) => {
            let (workload, driver, options) = load.read(measure_disk)?;
            load.output.prepare()?;
            let mut teller = Teller { is_quiet: load.quiet };
            let (key, values) = (&key, &values);
            let watcher = &mut teller;
            let swept = on_runtime(|stop| async move {
                sweep::sweep((key, values), &workload, &driver, &options, watcher, stop).await
            })?;
            let shown = load.output.show(&swept.results)?;
            swept.failures.iter().for_each(|failure| teller.tell(failure));
            Ok(if swept.failures.is_empty() { shown } else { ExitCode::FAILURE })
        }
        BenchCommand::Presets(PresetArgs { name }) => {
            say(&show_presets(name.as_deref())?)?;
            Ok(ExitCode::SUCCESS)
        }
        BenchCommand::Report(ReportArgs { files, output }) => {
            let mut results = Vec::new();
            for file in &files {
                results.extend(RunResult::read(file)?);
            }
            output.show(&results)
        }
        BenchCommand::Sink(args) => ceilings::sink(&args),
        BenchCommand::Echo(args) => ceilings::echo(&args),
        BenchCommand::EchoServer(args) => ceilings::echo_server(&args),
        BenchCommand::Worker => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let worked = runtime.block_on(worker::work());
            // The thread that reads standard input waits for a line for ever.
            runtime.shutdown_background();
            worked?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl LoadArgs {
    fn read(&self, measure_disk: MeasureDisk) -> Result<(crate::Workload, crate::Driver, Options), BenchError> {
        if self.preset.is_none() && self.workload.is_none() && self.set.is_empty() {
            let text = "nothing says what to send: give --preset, --workload or --set (`gantry bench presets` lists what has a name)";
            return Err(BenchError::Invalid(text.to_owned()));
        }
        let mut case = Case::new();
        if let Some(preset) = &self.preset {
            case.preset(preset)?;
        }
        if let Some(file) = &self.workload {
            case.workload_file(file)?;
        }
        if let Some(file) = &self.driver {
            case.driver_file(file)?;
        }
        if let Some(names) = &self.names {
            case.set("namesrvAddr", names, "--namesrvAddr")?;
        }
        for (key, value) in &self.set {
            case.set(key, value, "--set")?;
        }
        for (option, key, seconds) in
            [("--seconds", "testDurationMinutes", self.seconds), ("--warmup", "warmupDurationMinutes", self.warmup)]
        {
            if let Some(seconds) = seconds {
                case.set(key, &(seconds / 60.0).to_string(), option)?;
            }
        }
        let (workload, driver) = case.finish()?;
        let disk = self.disk.as_deref().map(measure_disk).transpose();
        let options = Options {
            server: self.server_pid.clone(),
            disk: disk.map_err(|error| BenchError::Invalid(format!("--disk: {}", sentence(error.as_ref()))))?,
            keeps_topics: self.keep_topics,
            setting: None,
            processes: self.processes()?,
        };
        Ok((workload, driver, options))
    }
}

impl LoadArgs {
    /// Each is this very program.
    fn processes(&self) -> Result<Option<Processes>, BenchError> {
        if self.processes == 1 {
            return Ok(None);
        }
        let unknown = |cause| BenchError::Invalid(format!("our own program is not known: {cause}"));
        let program = std::env::current_exe().map_err(unknown)?;
        Ok(Some(Processes { count: usize::from(self.processes), program }))
    }
}

impl Output {
    /// Sees to it that files can be written before a load runs for an hour. What they hold stays until there is something better.
    fn prepare(&self) -> Result<(), BenchError> {
        for path in [&self.json, &self.html].into_iter().flatten() {
            let failed = |cause| BenchError::File { path: path.clone(), cause };
            std::fs::OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
        }
        Ok(())
    }

    /// Files first: nobody reads a terminal that is full or gone. The text comes also if they cannot be written.
    fn show(&self, results: &[RunResult]) -> anyhow::Result<ExitCode> {
        let written = self.write(results);
        for result in results {
            say(&format!("{}\n", text::summary(result)))?;
        }
        if results.len() > 1 {
            say(&text::table(results))?;
        }
        written?;
        let is_well = results.iter().all(|result| result.problems().is_empty());
        Ok(if self.check && !is_well { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn write(&self, results: &[RunResult]) -> Result<(), BenchError> {
        if let Some(path) = &self.json {
            RunResult::write(results, path)?;
        }
        if let Some(path) = &self.html {
            let failed = |cause| BenchError::File { path: path.clone(), cause };
            std::fs::write(path, html::page(results)).map_err(failed)?;
        }
        Ok(())
    }
}

/// Several lines, each with its end.
fn say(text: &str) -> std::io::Result<()> {
    env::print(format_args!("{text}"))
}

fn show_presets(name: Option<&str>) -> Result<String, BenchError> {
    match name {
        Some(name) => {
            let mut case = Case::new();
            // For its error, which names all that there are.
            case.preset(name)?;
            let preset = presets::find(name);
            Ok(preset.map_or_else(String::new, |preset| {
                format!("# {}\n# workload file\n{}\n# driver file\n{}", preset.about, preset.workload, preset.driver)
            }))
        }
        None => {
            let rows: Vec<String> =
                presets::all().iter().map(|preset| format!("{:<20} {}\n", preset.name, preset.about)).collect();
            Ok(rows.concat())
        }
    }
}

/// Runs a load on all processors. The first interrupt ends it early, the second at once.
fn on_runtime<T, F>(load: impl FnOnce(watch::Receiver<bool>) -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, BenchError>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (stop, stopped) = watch::channel(false);
        let interrupts = tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if stop.send_replace(true) {
                    std::process::exit(130);
                }
                say_aside!("ending: what is on its way is waited for; once more ends it at once");
            }
        });
        let done = load(stopped).await;
        interrupts.abort();
        Ok(done?)
    })
}

/// A line a second, to standard error.
struct Teller {
    is_quiet: bool,
}

impl Teller {
    fn tell(&self, text: &str) {
        say_aside!("{text}");
    }
}

impl Watcher for Teller {
    fn second(&mut self, window: &Window) {
        if !self.is_quiet {
            self.tell(&text::progress(window));
        }
    }
}

impl SweepWatcher for Teller {
    fn value(&mut self, key: &str, value: &str) {
        self.tell(&format!("{key}={value}"));
    }

    fn note(&mut self, text: &str) {
        self.tell(text);
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn no_disk(_: &std::path::Path) -> anyhow::Result<crate::Disk> {
        anyhow::bail!("no disk")
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn load(words: &[&str]) -> LoadArgs {
        let words = [&["bench", "run"], words].concat();
        let BenchCommand::Run(run) = Line::parse_from(words).bench.command else { panic!("no run") };
        run.load
    }

    #[test]
    fn the_command_line_is_sound() {
        Line::command().debug_assert();
    }

    #[test]
    fn seconds_and_single_values_win_over_a_preset() {
        let words = [
            "--preset",
            "sync-16",
            "--seconds",
            "30",
            "--warmup",
            "5",
            "--set",
            "threads=3",
            "-n",
            "h:1",
            "--server-pid",
            "7",
        ];
        let (workload, driver, options) = load(&words).read(no_disk).unwrap();
        assert!(
            (workload.test_duration_minutes - 0.5).abs() < 1e-9 && workload.warmup_duration_minutes * 60.0 - 5.0 < 1e-9
        );
        assert_eq!(
            (driver.in_flight, driver.namesrv_addr.as_str(), options.server),
            (3, "h:1", Some(ServerProcess::Pid(7)))
        );
        let said = load(&["--preset", "sync-16", "--seconds", "0"]).read(no_disk).unwrap_err().to_string();
        assert_eq!(said, "--seconds: testDurationMinutes is \"0\"; a number from 0.001 to 10080 is expected");
        assert!(load(&[]).read(no_disk).unwrap_err().to_string().starts_with("nothing says what to send"));
    }
}
