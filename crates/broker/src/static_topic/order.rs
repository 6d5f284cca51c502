//! In which order commits of logical queues count: that in which they came, however long other brokers take over them.
//!
//! A commit that is all this broker's is done as it comes. One that changes something elsewhere takes a number and has its turn: one at a time
//! is under way for a queue of a group, and what a later one has done is not undone by it.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::refusal::{Refusal, SOON};

/// Commits of one group that wait for other brokers about one queue. Clients commit every five seconds. A turn takes up to three for each
/// broker that has to be told and does not answer, and as long for each name server that does not say where it is.
const WAITING_MAX: usize = 16;

/// A logical queue, as a group reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LogicalQueueKey {
    group: Box<str>,
    topic: Box<str>,
    queue_id: i32,
}

impl LogicalQueueKey {
    fn new(group: &str, topic: &str, queue_id: i32) -> LogicalQueueKey {
        LogicalQueueKey { group: group.into(), topic: topic.into(), queue_id }
    }
}

#[derive(Default)]
struct Line {
    /// The number of the last commit that came.
    last: u64,
    /// That of the last one that is done.
    done: u64,
    /// Commits that have a number and are not at an end.
    waiting: usize,
    /// Held across waits for other brokers on purpose.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The commits that are under way to other brokers.
#[derive(Default)]
pub(crate) struct CommitsUnderWay {
    /// Also held while a commit is done here, so that none is done between another one's look and its deed.
    lines: Mutex<HashMap<LogicalQueueKey, Line>>,
}

impl CommitsUnderWay {
    /// Does at once what needs no other broker. What came before and is still under way does not count any more.
    pub(crate) fn at_once(&self, group: &str, topic: &str, queue_id: i32, commit: impl FnOnce()) {
        let mut lines = self.lines.lock();
        commit();
        if !lines.is_empty()
            && let Some(line) = lines.get_mut(&LogicalQueueKey::new(group, topic, queue_id))
        {
            line.last += 1;
            line.done = line.last;
        }
    }

    /// Gives a commit its number.
    pub(crate) fn join(self: &Arc<Self>, group: &str, topic: &str, queue_id: i32) -> Result<Number, Refusal> {
        let key = LogicalQueueKey::new(group, topic, queue_id);
        let mut lines = self.lines.lock();
        let line = lines.entry(key.clone()).or_default();
        if line.waiting >= WAITING_MAX {
            let what = format_args!(
                "[GANTRY]system busy, start flow control for a while: {WAITING_MAX} commits of group {group} in queue {queue_id} of {topic} wait for other brokers"
            );
            return Err(Refusal::busy(what, SOON));
        }
        line.last += 1;
        line.waiting += 1;
        Ok(Number { order: Arc::clone(self), number: line.last, turn: Arc::clone(&line.turn), key })
    }
}

/// A commit that came, and is not at an end.
pub(crate) struct Number {
    order: Arc<CommitsUnderWay>,
    key: LogicalQueueKey,
    number: u64,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Number {
    /// Waits until no other commit of the queue is under way.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Whether a later commit is done already.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.order.lines.lock().get(&self.key).is_some_and(|line| line.done > self.number)
    }

    /// Does what remains to be done here, unless a later commit is done already.
    pub(crate) fn finish(&self, commit: impl FnOnce()) {
        let mut lines = self.order.lines.lock();
        let Some(line) = lines.get_mut(&self.key).filter(|line| line.done <= self.number) else { return };
        line.done = self.number;
        commit();
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut lines = self.order.lines.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            line.waiting -= 1;
            if line.waiting == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::code::ResponseCode;

    use super::*;

    #[test]
    fn what_came_later_is_not_undone_by_what_took_longer() {
        let order = Arc::new(CommitsUnderWay::default());
        let slow = order.join("g", "t", 0).unwrap();
        order.at_once("g", "t", 1, || ());
        assert!(!slow.is_overtaken(), "that was another queue");
        let quick = order.join("g", "t", 0).unwrap();
        let mut done = Vec::new();
        quick.finish(|| done.push("quick"));
        slow.finish(|| done.push("slow"));
        assert!(slow.is_overtaken() && !quick.is_overtaken());
        order.at_once("g", "t", 0, || done.push("at once"));
        quick.finish(|| done.push("quick again"));
        assert_eq!(done, ["quick", "at once"]);
        drop((slow, quick));
        assert!(order.lines.lock().is_empty(), "nobody waits, and nothing is kept");
    }

    #[test]
    fn a_queue_whose_holder_does_not_answer_keeps_few_commits_waiting() {
        let order = Arc::new(CommitsUnderWay::default());
        let waiting: Vec<Number> = (0..WAITING_MAX).map(|_| order.join("g", "t", 0).unwrap()).collect();
        assert_eq!(order.join("g", "t", 0).map(drop).unwrap_err().code, ResponseCode::SystemBusy);
        assert!(order.join("g", "t", 1).is_ok());
        drop(waiting);
        assert!(order.join("g", "t", 0).is_ok());
    }

    #[tokio::test]
    async fn one_commit_of_a_queue_is_under_way_at_a_time() {
        let order = Arc::new(CommitsUnderWay::default());
        let (first, second) = (order.join("g", "t", 0).unwrap(), order.join("g", "t", 0).unwrap());
        let turn = first.turn().await;
        let waiting = second.turn();
        tokio::pin!(waiting);
        assert!(now_or_never(&mut waiting).await.is_none());
        drop(turn);
        assert!(now_or_never(&mut waiting).await.is_some());
    }

    /// What a future has come to, if it has.
    async fn now_or_never<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        std::future::poll_fn(|cx| {
            let polled = std::pin::Pin::new(&mut *future).poll(cx);
            std::task::Poll::Ready(match polled {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
