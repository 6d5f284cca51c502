//! How long requests took, from the last byte of their burst until the socket had taken their answers: by what was asked, and how it ended.
//!
//! RocketMQ's `rocketmq_rpc_latency_milliseconds`. The connection's task looks at the clock with each read and each write anyway, and answers of one kind in
//! one burst are counted together.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use net::Answered;
use parking_lot::RwLock;
use protocol::code::{RequestCode, ResponseCode};
use tokio::time::Instant;

/// Upper bounds of the classes in ms: Apache's, in `RemotingMetricsManager`.
pub(crate) const LATENCIES_MS: [u64; 9] = [1, 3, 5, 7, 10, 100, 1000, 2000, 3000];

/// Answers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RpcKind {
    /// None: a code that RocketMQ does not have. All of those are one kind, since a client may send any number.
    request: Option<RequestCode>,
    response: ResponseCode,
    is_held: bool,
}

#[derive(Debug, Default)]
struct Cell {
    /// By class, one more than bounds.
    by_ms: [AtomicU64; LATENCIES_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Cell {
    /// Relaxed: each figure stands alone, and a page may show one of them without the other.
    fn count(&self, us: u64, count: u64) {
        let class = LATENCIES_MS.partition_point(|bound| us > bound * 1000);
        self.by_ms[class].fetch_add(count, Ordering::Relaxed);
        self.sum_us.fetch_add(us.saturating_mul(count), Ordering::Relaxed);
    }
}

/// What was counted of one kind of answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RpcCounted {
    /// RocketMQ's name of the request; none if it has none.
    pub request: Option<&'static str>,
    pub response: ResponseCode,
    /// Held until there was something to answer.
    pub is_held: bool,
    /// How many of each class.
    pub by_ms: [u64; LATENCIES_MS.len() + 1],
    /// All together.
    pub sum_ms: f64,
}

/// Requests that were answered.
#[derive(Debug, Default)]
pub(crate) struct Rpcs {
    /// As many as there are codes of requests and of answers, at most. Read by who writes to a socket, once for all that it has taken; written
    /// when a kind comes for the first time.
    cells: RwLock<HashMap<RpcKind, Cell>>,
}

impl Rpcs {
    /// The socket has taken these answers at that time.
    pub(crate) fn answered(&self, answered: &[Answered], at: Instant) {
        let mut cells = self.cells.read();
        for run in answered {
            let us = u64::try_from(run.came.until(at).as_micros()).unwrap_or(u64::MAX);
            let request = RequestCode::from_i32(run.request);
            let kind = RpcKind { request, response: run.response, is_held: run.is_held };
            match cells.get(&kind) {
                Some(cell) => cell.count(us, run.count),
                None => {
                    drop(cells);
                    self.cells.write().entry(kind).or_default().count(us, run.count);
                    cells = self.cells.read();
                }
            }
        }
    }

    /// All kinds, in the order of their codes.
    pub(crate) fn all(&self) -> Vec<RpcCounted> {
        let cells = self.cells.read();
        let mut kinds: Vec<(&RpcKind, &Cell)> = cells.iter().collect();
        kinds.sort_unstable_by_key(|(kind, _)| {
            (kind.request.map(RequestCode::number), i32::from(kind.response), kind.is_held)
        });
        let counted = kinds.into_iter().map(|(kind, cell)| RpcCounted {
            request: kind.request.map(RequestCode::name),
            response: kind.response,
            is_held: kind.is_held,
            by_ms: cell.by_ms.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_ms: cell.sum_us.load(Ordering::Relaxed) as f64 / 1000.0,
        });
        counted.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use net::Arrival;
    use protocol::code::request;

    use super::*;

    #[test]
    fn answers_are_counted_by_kind_and_by_how_long_they_took() {
        let (rpcs, first) = (Rpcs::default(), Instant::now());
        assert_eq!(Arrival::at(first).until(first), Duration::ZERO);
        let at = first + Duration::from_secs(3600);
        let run = |request: i32, ms: u64, count: u64| Answered {
            request,
            response: ResponseCode::Success,
            came: Arrival::at(first + Duration::from_secs(3600) - Duration::from_millis(ms)),
            is_held: false,
            count,
            end: 0,
        };
        rpcs.answered(
            &[run(request::SEND_MESSAGE, 1, 3), run(request::SEND_MESSAGE, 2, 1), run(7_000_001, 4000, 1)],
            at,
        );
        rpcs.answered(&[run(7_000_002, 0, 1), Answered { is_held: true, ..run(request::PULL_MESSAGE, 15_000, 2) }], at);
        let all = rpcs.all();
        let told: Vec<_> = all.iter().map(|kind| (kind.request, kind.is_held, kind.by_ms, kind.sum_ms)).collect();
        assert_eq!(
            told,
            [
                (None, false, [1, 0, 0, 0, 0, 0, 0, 0, 0, 1], 4000.0),
                (Some("SEND_MESSAGE"), false, [3, 1, 0, 0, 0, 0, 0, 0, 0, 0], 5.0),
                (Some("PULL_MESSAGE"), true, [0, 0, 0, 0, 0, 0, 0, 0, 0, 2], 30_000.0),
            ]
        );
    }
}
