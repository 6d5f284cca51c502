//! What operators and slaves ask about timer messages: 60, 61, 5001, and their figures in 28.

use std::sync::atomic::Ordering;

use env::Clock;
use net::{Outgoing, Request};
use protocol::body::{DataVersion, TimerMetrics, TopicTimers};
use protocol::code::ResponseCode;
use protocol::request::SwitchTimerEngine;
use store::Store;

use crate::answer::reply_json;
use crate::refusal::Refusal;
use crate::state::stats::Stats;
use crate::timer::Timers;

/// 60: the check-point, as the 56 bytes of its file.
pub(crate) fn marks(timers: Option<&Timers>, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let Some(timers) = timers else {
        return Err(Refusal::new(ResponseCode::SystemError, "The checkpoint is null (timerWheelEnable is false)"));
    };
    out.reply(request.reply_to(), ResponseCode::Success, None, &(), &timers.marks().encode());
    Ok(())
}

/// How many messages of each topic wait, as 61 says it and `config/timermetrics` holds it.
pub(crate) fn counts(timers: &Timers) -> TimerMetrics {
    let timing_count = timers
        .counts()
        .into_iter()
        .map(|(topic, count, time_stamp)| (topic.into(), TopicTimers { count: count.max(0), time_stamp }));
    TimerMetrics { data_version: DataVersion::default(), timing_count: timing_count.collect() }
}

/// 61: how many messages of each topic wait.
pub(crate) fn metrics(timers: Option<&Timers>, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let Some(timers) = timers else {
        let remark = "The timer message store is null (timerWheelEnable is false)";
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    };
    reply_json(request, out, &counts(timers));
    Ok(())
}

/// 5001. There is one engine, that of files; asked for it, we have it already.
pub(crate) fn switch_engine(timers: Option<&Timers>, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let wrong = |remark: &str| Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    if timers.is_none() {
        return wrong("broker timerWheelEnable is false");
    }
    let asked = SwitchTimerEngine::decode(&request.header.fields);
    match asked.map(|asked| asked.engine_type) {
        Ok("R") => wrong("timerRocksDBEnable must be configured true when broker start"),
        Ok("F") => {
            out.reply(request.reply_to(), ResponseCode::Success, Some("switch timer engine success"), &(), &[]);
            Ok(())
        }
        Ok(other) => wrong(&format!("param error: E_T is \"{other}\", neither R nor F")),
        Err(error) => wrong(&format!("param error: {error}")),
    }
}

/// The part of 28 that is about timer messages.
pub(crate) fn figures(
    timers: Option<&Timers>,
    store: &Store,
    clock: &Clock,
    stats: &Stats,
) -> Vec<(&'static str, String)> {
    let mut values = [0i64; 3];
    if let Some(timers) = timers {
        let pending = timers.figures.pending.load(Ordering::Relaxed).max(0);
        let behind = i64::try_from(timers.behind(store)).unwrap_or(i64::MAX);
        let late_ms = clock.now().0.saturating_sub(timers.figures.read_time.load(Ordering::Relaxed));
        // While nothing waits, the time of the next slot does not move.
        values = [if pending > 0 { late_ms / 1000 } else { 0 }, behind, pending];
    }
    let [read_behind, offset_behind, pending] = values;
    let rate = |rates: [f64; 3]| format!("{:?}", rates[0]);
    vec![
        ("timerReadBehind", read_behind.to_string()),
        ("timerOffsetBehind", offset_behind.to_string()),
        ("timerCongestNum", pending.to_string()),
        ("timerEnqueueTps", rate(stats.rates(|totals| totals.timers_taken_in))),
        ("timerDequeueTps", rate(stats.rates(|totals| totals.timers_dealt_with))),
    ]
}
