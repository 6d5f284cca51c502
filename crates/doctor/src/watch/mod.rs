//! `gantry doctor watch`: disk, network, processors, memory and the broker's rates, looked at again and again (R1.31).
//!
//! On a terminal one screen that is drawn anew; otherwise a line a look. Nothing is kept but the counters of the look before.

mod broker;
mod kernel;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use client::ClientConfig;
use env::Stdout;
use operator::Operator;
use serde::Serialize;

use super::patient::{PATIENCE, Patient};
use broker::{BrokerRates, Questions};
use kernel::{Counters, KernelRates};

/// Show disk, network, processors, memory and the broker's rates on one screen, until interrupted
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// What happened between two looks, a second each for what is a rate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Look {
    /// When, in milliseconds since 1970.
    pub time_millis: i64,
    /// How long it is since the look before.
    pub seconds: f64,
    /// What the kernel counts.
    #[serde(flatten)]
    pub kernel: KernelRates,
    /// Why the broker's process is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_error: Option<String>,
    /// What the broker counts; nothing if it does not answer.
    pub broker: Option<BrokerRates>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_error: Option<String>,
}

/// Looks until the time is over, or nobody reads on.
///
/// # Errors
/// Only of writing to standard output.
pub fn run(patient: &Patient, args: &WatchArgs, is_json: bool) -> io::Result<()> {
    let server = patient.server();
    let (device, mut process) = (patient.device(), patient.broker_process());
    let is_screen = io::stdout().is_terminal() && !is_json;
    let place = patient.place().display().to_string();
    patient.wait_for(async {
        let config = ClientConfig { timeout: PATIENCE, clock: patient.clock.clone(), ..ClientConfig::new("") };
        let operator = Operator::with(config);
        let mut questions = Questions::to(operator.clone(), server.clone());
        let mut before = Counters::read(patient, device.as_deref(), process.as_ref().ok().copied());
        let mut broker_before = questions.ask(before.at).await;
        let began = before.at;
        let mut ticks = tokio::time::interval(Duration::from_secs(args.interval));
        // The first one comes at once, and there is nothing to compare with.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if !before.has_process() {
                process = patient.broker_process();
            }
            let now = Counters::read(patient, device.as_deref(), process.as_ref().ok().copied());
            let seconds = now.at.saturating_sub(before.at).as_secs_f64().max(0.001);
            let broker_now = questions.ask(now.at).await;
            let rates = match (&broker_before, &broker_now) {
                (Ok(before), Ok(now)) => Some(now.since(before)),
                _ => None,
            };
            let look = Look {
                time_millis: patient.clock.now().0,
                seconds,
                kernel: now.since(&before, seconds),
                process_error: unseen(&process, &before, &now),
                broker: rates,
                broker_error: broker_now.as_ref().err().cloned(),
            };
            let mut out = Stdout;
            if is_json {
                writeln!(out, "{}", serde_json::to_string(&look)?)?;
            } else if is_screen {
                write!(out, "{}", screen::screen(&look, &place, &server))?;
            } else {
                writeln!(out, "{}", screen::line(&look))?;
            }
            out.flush()?;
            let is_over =
                args.seconds.is_some_and(|seconds| now.at.saturating_sub(began) >= Duration::from_secs(seconds))
                    || Stdout::is_closed();
            (before, broker_before) = (now, broker_now);
            if is_over {
                operator.stop().await;
                return Ok(());
            }
        }
    })
}

/// Why there are no rates of the broker's process, if there are none.
fn unseen(process: &Result<i32, String>, before: &Counters, now: &Counters) -> Option<String> {
    match process {
        Err(why) => Some(why.clone()),
        Ok(pid) if !now.has_process() => Some(format!("/proc/{pid}/stat cannot be read")),
        Ok(pid) if !before.has_process() => Some(format!("process {pid}: a moment")),
        Ok(_) => None,
    }
}
