//! What a broker counts: messages in and out, backlog, and its busiest queues.

use std::collections::BTreeMap;
use std::time::Duration;

use operator::Operator;
use protocol::names::{is_dlq_topic, is_retry_topic, is_system_topic};
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::patient::PATIENCE;

/// Between two looks at queues and groups: they cost a broker with many of them more than the rest.
const QUEUES_EVERY: Duration = Duration::from_secs(2);
/// Topics whose queues are looked at.
const TOPICS_MAX: usize = 32;
/// Queues that are shown.
const SHOWN: usize = 8;

/// A queue: topic and number.
type Queue = (String, i32);

/// What a broker told at one moment.
#[derive(Clone, Debug, Default)]
pub struct Told {
    at: Duration,
    figures: BTreeMap<String, String>,
    queues: Option<Queues>,
    /// How the broker's queues moved between the two latest looks at them.
    moved: Vec<QueueRates>,
}

#[derive(Clone, Debug, Default)]
struct Queues {
    at: Duration,
    /// Where each ends.
    ends: BTreeMap<Queue, i64>,
    /// What groups have committed, together; and how far the slowest is behind.
    consumed: BTreeMap<Queue, (i64, i64)>,
    backlog: i64,
    /// There are more topics than are looked at.
    is_cut: bool,
}

/// What happened between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerRates {
    /// Messages stored a second.
    pub in_per_second: f64,
    /// Messages given to consumers a second.
    pub out_per_second: f64,
    /// Messages stored since the broker started.
    pub in_total: f64,
    /// Messages given out since the broker started.
    pub out_total: f64,
    /// Sends refused between the two moments.
    pub refused: f64,
    /// What all groups are behind, together; nothing where it is not known yet.
    pub backlog: Option<i64>,
    /// What is not on the device, as the broker writes it.
    pub unflushed: String,
    /// The 99th percentile of a send, in ms.
    pub put_latency99_millis: f64,
    /// Connections of clients.
    pub connections: f64,
    /// The busiest queues.
    pub queues: Vec<QueueRates>,
    /// Only the first topics by name were looked at.
    pub are_topics_cut: bool,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRates {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub queue_id: i32,
    /// Messages a second.
    pub in_per_second: f64,
    /// Messages a second that groups have committed, together.
    pub out_per_second: f64,
    /// How far the slowest group is behind.
    pub backlog: i64,
}

/// Asks one broker.
pub struct Questions {
    operator: Operator,
    server: String,
    queues: Option<Queues>,
    moved: Vec<QueueRates>,
}

impl Questions {
    /// To the broker at `server`.
    pub fn to(operator: Operator, server: String) -> Questions {
        Questions { operator, server, queues: None, moved: Vec::new() }
    }

    /// Asks for everything; or says why there is no answer.
    pub async fn ask(&mut self, at: Duration) -> Result<Told, String> {
        let figures = self.operator.runtime_info(&self.server).await.map_err(|error| error.to_string())?;
        let is_time = self.queues.as_ref().is_none_or(|last| at.saturating_sub(last.at) >= QUEUES_EVERY);
        if is_time && let Ok(queues) = self.look_at_queues(at).await {
            if let Some(before) = &self.queues {
                self.moved = moved(before, &queues);
            }
            self.queues = Some(queues);
        }
        Ok(Told { at, figures, queues: self.queues.clone(), moved: self.moved.clone() })
    }

    async fn look_at_queues(&self, at: Duration) -> operator::Result<Queues> {
        let mut queues = Queues { at, ..Queues::default() };
        let (_, topics) = self.operator.topics_at::<IgnoredAny>(&self.server).await?;
        let is_users = |topic: &&String| !is_system_topic(topic) && !is_retry_topic(topic) && !is_dlq_topic(topic);
        let users: Vec<&String> = topics.keys().filter(is_users).collect();
        queues.is_cut = users.len() > TOPICS_MAX;
        for topic in users.into_iter().take(TOPICS_MAX) {
            // A topic may go meanwhile, and one that was never sent to has nothing to tell.
            let Ok(stats) = self.operator.topic_stats_at(&self.server, topic).await else { continue };
            for (queue, offsets) in stats.offset_table.iter() {
                queues.ends.insert((queue.topic.clone(), queue.queue_id), offsets.max_offset);
            }
        }
        let groups = self.operator.broker_consume_stats(&self.server, false, PATIENCE).await?;
        queues.backlog = groups.total_diff;
        for stats in groups.consume_stats_list.iter().flat_map(BTreeMap::values).flatten() {
            for (queue, offset) in stats.offset_table.iter() {
                let behind = offset.broker_offset.saturating_sub(offset.consumer_offset).max(0);
                let (consumed, worst) = queues.consumed.entry((queue.topic.clone(), queue.queue_id)).or_default();
                *consumed = consumed.saturating_add(offset.consumer_offset.max(0));
                *worst = (*worst).max(behind);
            }
        }
        Ok(queues)
    }
}

/// The queues that moved most, or are furthest behind, between two looks.
fn moved(before: &Queues, now: &Queues) -> Vec<QueueRates> {
    let seconds = now.at.saturating_sub(before.at).as_secs_f64().max(0.001);
    let rate = |now: i64, before: i64| now.saturating_sub(before).max(0) as f64 / seconds;
    let mut rows: Vec<QueueRates> = now
        .ends
        .iter()
        .map(|(queue, end)| {
            // One that is new began empty.
            let end_before = before.ends.get(queue).copied().unwrap_or(0);
            let (consumed, backlog) = now.consumed.get(queue).copied().unwrap_or_default();
            let consumed_before = before.consumed.get(queue).map_or(consumed, |(consumed, _)| *consumed);
            QueueRates {
                topic: queue.0.clone(),
                queue_id: queue.1,
                in_per_second: rate(*end, end_before),
                out_per_second: rate(consumed, consumed_before),
                backlog,
            }
        })
        .filter(|row| row.in_per_second > 0.0 || row.out_per_second > 0.0 || row.backlog > 0)
        .collect();
    let weight = |row: &QueueRates| row.in_per_second + row.out_per_second;
    rows.sort_by(|one, other| weight(other).total_cmp(&weight(one)).then(other.backlog.cmp(&one.backlog)));
    rows.truncate(SHOWN);
    rows
}

impl Told {
    fn number(&self, name: &str) -> f64 {
        self.figures.get(name).and_then(|value| value.parse().ok()).unwrap_or(0.0)
    }

    /// What happened since `before`. A broker that was started anew counts from 0 again.
    pub fn since(&self, before: &Told) -> BrokerRates {
        let seconds = self.at.saturating_sub(before.at).as_secs_f64().max(0.001);
        let more = |name: &str| (self.number(name) - before.number(name)).max(0.0);
        BrokerRates {
            in_per_second: more("msgPutTotalTodayNow") / seconds,
            out_per_second: more("msgGetTotalTodayNow") / seconds,
            in_total: self.number("msgPutTotalTodayNow"),
            out_total: self.number("msgGetTotalTodayNow"),
            refused: more("putMessageFailedTimes"),
            backlog: self.queues.as_ref().map(|queues| queues.backlog),
            unflushed: self.figures.get("remainHowManyDataToFlush").cloned().unwrap_or_default(),
            put_latency99_millis: self.number("putLatency99"),
            connections: self.number("connections"),
            queues: self.moved.clone(),
            are_topics_cut: self.queues.as_ref().is_some_and(|queues| queues.is_cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(seconds: u64, figures: &[(&str, &str)]) -> Told {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Told { at: Duration::from_secs(seconds), figures, ..Told::default() }
    }

    #[test]
    fn totals_become_rates_and_a_broker_that_began_anew_is_no_rate_below_nothing() {
        let before = told(1, &[("msgPutTotalTodayNow", "100"), ("putMessageFailedTimes", "5")]);
        let now = told(3, &[("msgPutTotalTodayNow", "300"), ("putMessageFailedTimes", "6")]);
        let rates = now.since(&before);
        assert_eq!((rates.in_per_second, rates.in_total, rates.refused), (100.0, 300.0, 1.0));
        assert_eq!(before.since(&now).in_per_second, 0.0);
    }

    #[test]
    fn the_busiest_queues_come_first_and_silent_ones_not_at_all() {
        let queue = |topic: &str, id: i32| (topic.to_owned(), id);
        let before = Queues {
            at: Duration::from_secs(1),
            ends: BTreeMap::from([(queue("a", 0), 10), (queue("a", 1), 10), (queue("b", 0), 5)]),
            consumed: BTreeMap::from([(queue("a", 1), (0, 10))]),
            ..Queues::default()
        };
        let now = Queues {
            at: Duration::from_secs(3),
            ends: BTreeMap::from([(queue("a", 0), 30), (queue("a", 1), 110), (queue("b", 0), 5)]),
            consumed: BTreeMap::from([(queue("a", 1), (40, 70))]),
            ..Queues::default()
        };
        let rows = moved(&before, &now);
        let shown: Vec<_> =
            rows.iter().map(|row| (row.queue_id, row.in_per_second, row.out_per_second, row.backlog)).collect();
        assert_eq!(shown, [(1, 50.0, 20.0, 70), (0, 10.0, 0.0, 0)]);
    }
}
