//! The tries of a request about a queue that may have moved to another broker.

use protocol::body::MessageQueue;
use tokio::time::Instant;

use crate::error::ClientError;
use crate::logical::{LOOK_EVERY, is_elsewhere, which};
use crate::member::Member;

/// The tries of a request about a queue, which may have moved to another broker.
pub(crate) struct Tries<'a> {
    member: &'a Member,
    queue: &'a MessageQueue,
    /// Until when to look for the queue, once it was not where it was asked for.
    deadline: Option<Instant>,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(member: &'a Member, queue: &'a MessageQueue) -> Tries<'a> {
        Tries { member, queue, deadline: None }
    }

    /// Whether to ask again, where the route says now: the broker was not the queue's leader, or the name server knew of none, and there
    /// is time. A name server hears of a new static topic from one broker after the other, the leaders not before the rest.
    pub(crate) async fn go_on<T>(&mut self, answer: &Result<T, ClientError>) -> bool {
        let has_no_leader = |error: &ClientError| matches!(error, ClientError::NoLeader { .. });
        let is_to_be_found = answer.as_ref().is_err_and(|error| is_elsewhere(error) || has_no_leader(error));
        if !is_to_be_found || which(self.queue).is_none() {
            return false;
        }
        match self.deadline {
            None => self.deadline = Some(Instant::now() + self.member.config.timeout),
            Some(deadline) if Instant::now() >= deadline => return false,
            Some(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
        self.member.doubt_leaders(&self.queue.topic, LOOK_EVERY).await;
        true
    }
}
