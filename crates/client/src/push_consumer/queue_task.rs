//! The task of one queue that a consumer owns: pull, hand out, note what is finished, commit.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::body::{ConsumeFromWhere, MessageModel, MessageQueue, SubscriptionData};
use protocol::names::is_retry_topic;
use protocol::request::PullMessage;
use protocol::sys_flag::pull as flag;
use protocol::tags;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::error::ClientError;
use crate::logical::{LOOK_EVERY, is_elsewhere};
use crate::message::Received;
use crate::pull_consumer::{PullStatus, Pulled, is_wanted, pull_fields};
use crate::push_consumer::progress::Progress;
use crate::push_consumer::{Group, Handler, Outcome};

/// After something failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A pull that brings nothing and comes back sooner was not held by the broker: without a pause the next one would follow at once.
const HELD_MIN: Duration = Duration::from_millis(200);

/// Before messages that the broker did not take back are handled here again. As in RocketMQ's client.
const GIVE_BACK_PAUSE: Duration = Duration::from_secs(5);

/// From the first unfinished to the last pulled offset, at most: a message that hangs holds the commit back, and a restart
/// would repeat everything behind it.
const SPAN_MAX: i64 = 2000;

/// Longer than a held pull by the way there and back.
const WAY: Duration = Duration::from_secs(15);

/// Reads a queue until told to stop.
pub(crate) async fn consume<H: Handler>(
    group: Arc<Group<H>>,
    queue: MessageQueue,
    subscription: SubscriptionData,
    stopping: watch::Receiver<bool>,
) {
    let mut tick = tokio::time::interval(group.config.commit_every.min(group.config.lock_every));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reader = Reader {
        wanted: tags::Subscription::parse(&subscription.sub_string).unwrap_or_else(tags::Subscription::all),
        group,
        queue,
        subscription,
        stopping,
        tick,
        progress: Arc::new(Mutex::new(Progress::new(0))),
        finished: Arc::new(Notify::new()),
        sent: None,
        confirmed: None,
        locked: None,
        handlers: JoinSet::new(),
    };
    // `None` means that it was told to stop; either way it ends here.
    let _: Option<()> = reader.run().await;
    reader.end().await;
}

struct Reader<H> {
    group: Arc<Group<H>>,
    queue: MessageQueue,
    subscription: SubscriptionData,
    wanted: tags::Subscription,
    stopping: watch::Receiver<bool>,
    tick: Interval,
    /// Guards what is unfinished; held for a look by this task and its handlers.
    progress: Arc<Mutex<Progress>>,
    finished: Arc<Notify>,
    /// The offset of the last commit that is on its way, and of the last one that the broker said it has.
    sent: Option<i64>,
    confirmed: Option<i64>,
    /// When the broker last said that the queue is ours alone (orderly only).
    locked: Option<Instant>,
    handlers: JoinSet<()>,
}

impl<H: Handler> Reader<H> {
    async fn run(&mut self) -> Option<()> {
        let mut next = self.begin(None).await?;
        loop {
            if self.has_lost_lock() {
                let reached = self.progress.lock().committable();
                next = self.begin(Some(reached)).await?;
            }
            self.wait_for_room().await?;
            let asked = Instant::now();
            let pulled = self.pull(next).await?;
            let is_stuck = pulled.as_ref().is_ok_and(|pulled| pulled.messages.is_empty() && pulled.next_offset == next);
            if is_stuck && asked.elapsed() < HELD_MIN {
                self.during(tokio::time::sleep(HELD_MIN)).await?;
            }
            match pulled {
                Ok(Pulled { status: PullStatus::OffsetOutOfRange, next_offset, .. }) => {
                    tracing::warn!(
                        topic = self.queue.topic,
                        queue = self.queue.queue_id,
                        from = next,
                        to = next_offset,
                        "the offset is not in the queue any more, going on where it is"
                    );
                    self.wait_for_handlers().await?;
                    *self.progress.lock() = Progress::new(next_offset);
                    next = next_offset;
                }
                Ok(pulled) => {
                    next = pulled.next_offset;
                    self.hand_out(pulled).await?;
                }
                Err(error) if is_elsewhere(&error) => self.follow().await?,
                Err(error) => {
                    tracing::warn!(topic = self.queue.topic, queue = self.queue.queue_id, %error, "pull failed");
                    self.group.member.doubt_route(&self.queue.topic, &error);
                    self.during(tokio::time::sleep(PAUSE)).await?;
                }
            }
        }
    }

    /// Goes on at the broker to which the queue has moved. That one knows nothing of our lock, and may have given its own to
    /// another member.
    async fn follow(&mut self) -> Option<()> {
        tracing::info!(topic = self.queue.topic, queue = self.queue.queue_id, "the queue has moved to another broker");
        // The broker before may have refused the last commit, which nobody answers.
        (self.sent, self.confirmed) = (None, None);
        let (group, topic) = (Arc::clone(&self.group), self.queue.topic.clone());
        self.during(async move {
            tokio::time::sleep(LOOK_EVERY).await;
            group.member.doubt_leaders(&topic, LOOK_EVERY).await;
        })
        .await?;
        if self.group.config.needs_lock() {
            self.locked = None;
            self.try_lock().await;
        }
        Some(())
    }

    /// Locks the queue where that is needed, then asks where the group is. While the lock was not ours another member may have
    /// consumed on and committed, so nothing that was known before counts: it would be consumed again, out of order, and the
    /// group taken back by its commit. Only where the group has committed nothing we go on from what we `reached`.
    async fn begin(&mut self, reached: Option<i64>) -> Option<i64> {
        *self.progress.lock() = Progress::new(0);
        (self.sent, self.confirmed) = (None, None);
        if self.group.config.needs_lock() {
            self.lock().await?;
        }
        let next = self.first_offset(reached).await?;
        *self.progress.lock() = Progress::new(next);
        Some(next)
    }

    /// Whether the queue may be another member's by now. What is in hand is not handled any more then, and nothing is committed.
    fn has_lost_lock(&self) -> bool {
        self.group.config.needs_lock() && self.locked.is_none()
    }

    /// Waits for something, and commits and keeps the lock meanwhile. `None`: told to stop.
    async fn during<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                () = told_to_stop(&mut self.stopping) => return None,
                value = &mut future => return Some(value),
                Some(ended) = self.handlers.join_next(), if !self.handlers.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a handler's task ended by a bug");
                    }
                }
                _ = self.tick.tick() => {
                    self.commit(true).await;
                    self.renew_lock().await;
                }
            }
        }
    }

    async fn pull(&mut self, offset: i64) -> Option<Result<Pulled, ClientError>> {
        let (group, queue) = (Arc::clone(&self.group), self.queue.clone());
        let subscription = self.subscription.clone();
        self.during(async move {
            let (member, config) = (&group.member, &group.config);
            let address = member.address(&queue).await?;
            let wait = config.pull_wait;
            // The subscription is what the heartbeat said: no flag, and the broker looks it up.
            let fields = PullMessage {
                sys_flag: flag::SUSPEND,
                sub_version: subscription.sub_version,
                subscription: None,
                ..pull_fields(&config.group, &queue, offset, config.pull_batch, "", wait)
            };
            member.pull(&address, &fields, &queue, wait + WAY).await
        })
        .await
    }

    /// Where this group goes on, or where it begins.
    async fn first_offset(&mut self, reached: Option<i64>) -> Option<i64> {
        loop {
            let (group, queue) = (Arc::clone(&self.group), self.queue.clone());
            let found = self.during(async move { first_offset(&group, &queue, reached).await }).await?;
            match found {
                Ok(offset) => return Some(offset),
                Err(error) => tracing::warn!(topic = self.queue.topic, queue = self.queue.queue_id, %error,
                    "cannot find out where to begin"),
            }
            self.during(tokio::time::sleep(PAUSE)).await?;
        }
    }

    async fn wait_for_room(&mut self) -> Option<()> {
        loop {
            {
                let (progress, config) = (self.progress.lock(), &self.group.config);
                if progress.unfinished() < config.queue_messages_max
                    && progress.unfinished_bytes() < config.queue_bytes_max
                    && progress.span() < SPAN_MAX
                {
                    return Some(());
                }
            }
            let finished = Arc::clone(&self.finished);
            self.during(finished.notified()).await?;
        }
    }

    async fn wait_for_handlers(&mut self) -> Option<()> {
        while self.progress.lock().unfinished() > 0 {
            let finished = Arc::clone(&self.finished);
            self.during(finished.notified()).await?;
        }
        Some(())
    }

    async fn hand_out(&mut self, pulled: Pulled) -> Option<()> {
        let Pulled { mut messages, next_offset, .. } = pulled;
        messages.retain(|message| is_wanted(&self.wanted, message));
        {
            let mut progress = self.progress.lock();
            messages.iter().for_each(|message| progress.begin(message.queue_offset, message.body.len()));
            progress.advance(next_offset);
        }
        let batch = self.group.config.batch;
        while !messages.is_empty() && !self.has_lost_lock() {
            let rest = messages.split_off(batch.min(messages.len()));
            let now: Arc<[Received]> = std::mem::replace(&mut messages, rest).into();
            if self.group.config.is_orderly {
                self.handle_in_order(now).await?;
            } else {
                self.handle_beside(now).await?;
            }
        }
        Some(())
    }

    /// Starts a handler as soon as there is one free.
    async fn handle_beside(&mut self, messages: Arc<[Received]>) -> Option<()> {
        let running = Arc::clone(&self.group.running);
        let Ok(permit) = self.during(Arc::clone(&running).acquire_owned()).await? else { return None };
        let (group, queue) = (Arc::clone(&self.group), self.queue.clone());
        let (progress, finished) = (Arc::clone(&self.progress), Arc::clone(&self.finished));
        self.handlers.spawn(async move {
            let mut messages = messages;
            let mut permit = Some(permit);
            // Ends when all are consumed or taken back; when the queue is given up, the task is dropped and they come again by
            // themselves.
            loop {
                let outcome = run_handler(&group, &messages).await;
                // Others have their turn while this waits for a broker.
                drop(permit.take());
                let rest = match outcome {
                    Outcome::Done => Vec::new(),
                    Outcome::Again { delay_level } => give_back(&group, &queue, &messages, delay_level).await,
                };
                let is_kept = |message: &Received| rest.iter().any(|kept| kept.queue_offset == message.queue_offset);
                {
                    let mut progress = progress.lock();
                    let done = messages.iter().filter(|message| !is_kept(message));
                    done.for_each(|message| progress.finish(message.queue_offset));
                }
                finished.notify_one();
                if rest.is_empty() {
                    return;
                }
                messages = rest.into();
                tokio::time::sleep(GIVE_BACK_PAUSE).await;
                let Ok(again) = Arc::clone(&running).acquire_owned().await else { return };
                permit = Some(again);
            }
        });
        Some(())
    }

    /// Handles messages before any later one of the queue: again and again until they are consumed or given up, or the lock is lost.
    async fn handle_in_order(&mut self, mut messages: Arc<[Received]>) -> Option<()> {
        let mut tries: i32 = 0;
        loop {
            if self.has_lost_lock() {
                return Some(());
            }
            let group = Arc::clone(&self.group);
            let now = Arc::clone(&messages);
            let mut handling = pin!(run_handler(&group, &now));
            let Some(outcome) = self.during(&mut handling).await else {
                // Told to stop with messages half consumed: the lock must not go before the handler is done with them.
                if tokio::time::timeout(group.config.stop_timeout, handling).await == Ok(Outcome::Done) {
                    self.note_finished(&messages);
                }
                return None;
            };
            match outcome {
                Outcome::Done => break,
                Outcome::Again { .. } => {
                    tries = tries.saturating_add(1);
                    if tries > self.group.config.redeliveries_max() {
                        let (group, queue, given) =
                            (Arc::clone(&self.group), self.queue.clone(), Arc::clone(&messages));
                        let rest = self.during(async move { give_back(&group, &queue, &given, -1).await }).await?;
                        let is_kept =
                            |message: &Received| rest.iter().any(|kept| kept.queue_offset == message.queue_offset);
                        let taken = messages.iter().filter(|message| !is_kept(message));
                        taken.for_each(|message| self.progress.lock().finish(message.queue_offset));
                        if rest.is_empty() {
                            break;
                        }
                        messages = rest.into();
                    }
                    self.during(tokio::time::sleep(PAUSE)).await?;
                }
            }
        }
        self.note_finished(&messages);
        Some(())
    }

    fn note_finished(&self, messages: &[Received]) {
        let mut progress = self.progress.lock();
        messages.iter().for_each(|message| progress.finish(message.queue_offset));
    }

    async fn commit(&mut self, is_oneway: bool) {
        if self.group.config.model == MessageModel::Broadcasting || self.has_lost_lock() {
            return;
        }
        let offset = self.progress.lock().committable();
        // Before the first pull there is nothing to say.
        if self.sent.is_none() && offset == 0 {
            return;
        }
        // A commit that nobody answers may be lost: it counts for the next one of its kind, not for the last of all.
        let known = if is_oneway { self.sent } else { self.confirmed };
        if known == Some(offset) {
            return;
        }
        match self.group.member.commit(&self.group.config.group, &self.queue, offset, is_oneway).await {
            Ok(()) => {
                self.sent = Some(offset);
                if !is_oneway {
                    self.confirmed = Some(offset);
                }
            }
            Err(error) => {
                tracing::warn!(topic = self.queue.topic, queue = self.queue.queue_id, offset, %error, "commit failed");
            }
        }
    }

    async fn lock(&mut self) -> Option<()> {
        loop {
            self.try_lock().await;
            if self.locked.is_some() {
                return Some(());
            }
            self.during(tokio::time::sleep(PAUSE)).await?;
        }
    }

    async fn renew_lock(&mut self) {
        if self.locked.is_some_and(|at| at.elapsed() >= self.group.config.lock_every) {
            self.try_lock().await;
        }
    }

    async fn try_lock(&mut self) {
        let asked = Instant::now();
        match self.group.member.lock(&self.group.config.group, std::slice::from_ref(&self.queue)).await {
            Ok(ours) => self.locked = ours.contains(&self.queue).then_some(asked),
            // The broker may be back before the lock it gave is over.
            Err(error) => {
                tracing::warn!(topic = self.queue.topic, queue = self.queue.queue_id, %error, "cannot lock the queue");
                self.locked = self.locked.filter(|at| at.elapsed() < self.group.config.lock_every * 2);
            }
        }
    }

    /// Lets handlers finish, commits what is finished, and gives the lock back.
    async fn end(mut self) {
        let deadline = Instant::now() + self.group.config.stop_timeout;
        while let Ok(Some(_)) = tokio::time::timeout_at(deadline, self.handlers.join_next()).await {}
        self.commit(false).await;
        if self.locked.is_some()
            && let Err(error) = self.group.member.unlock(&self.group.config.group, &self.queue).await
        {
            tracing::debug!(%error, "the queue's lock was not given back, it will expire");
        }
    }
}

/// Ends when somebody says so, and also when whoever could say so is gone.
pub(crate) async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    // Either outcome means to stop; what matters is that nothing of the channel is borrowed any longer.
    drop(stopping.wait_for(|stop| *stop).await);
}

async fn first_offset<H: Handler>(
    group: &Group<H>,
    queue: &MessageQueue,
    reached: Option<i64>,
) -> Result<i64, ClientError> {
    let (member, config) = (&group.member, &group.config);
    // What to answer for a queue of which the group has no offset is left to the broker, as RocketMQ's client leaves it: of one
    // that has only just begun it says 0, so that what was sent before the group noticed the queue is not passed over.
    if config.model == MessageModel::Clustering
        && let Some(committed) = member.committed(&config.group, queue, None).await?
    {
        return Ok(committed);
    }
    if let Some(reached) = reached {
        return Ok(reached);
    }
    if is_retry_topic(&queue.topic) {
        // What is to be delivered again was sent to this group: none of it may be passed over.
        return member.min_offset(queue).await;
    }
    match config.from {
        ConsumeFromWhere::ConsumeFromFirstOffset | ConsumeFromWhere::ConsumeFromMinOffset => {
            member.min_offset(queue).await
        }
        ConsumeFromWhere::ConsumeFromLastOffset
        | ConsumeFromWhere::ConsumeFromMaxOffset
        | ConsumeFromWhere::ConsumeFromLastOffsetAndFromMinWhenBootFirst => member.max_offset(queue).await,
        ConsumeFromWhere::ConsumeFromTimestamp => member.offset_by_time(queue, config.from_timestamp).await,
    }
}

/// In a task of its own, so that a panic is an outcome.
async fn run_handler<H: Handler>(group: &Arc<Group<H>>, messages: &Arc<[Received]>) -> Outcome {
    let (group, messages) = (Arc::clone(group), Arc::clone(messages));
    // What a handler does before it returns its future may panic too.
    let handled = tokio::spawn(async move { group.handler.handle(messages).await }).await;
    handled.unwrap_or_else(|error| {
        tracing::error!(%error, "a handler panicked, its messages will come again");
        Outcome::Again { delay_level: 0 }
    })
}

/// Gives messages back to the broker, each once. Returns those that it did not take: nothing is finished that it does not have
/// again, so they are handled here another time, one time nearer to their last.
async fn give_back<H: Handler>(
    group: &Group<H>,
    queue: &MessageQueue,
    messages: &[Received],
    delay_level: i32,
) -> Vec<Received> {
    if group.config.model == MessageModel::Broadcasting {
        // As in RocketMQ: each consumer gets a message once, and nobody remembers who failed.
        tracing::warn!(messages = messages.len(), "messages of a broadcast failed and are dropped");
        return Vec::new();
    }
    let mut kept = Vec::new();
    for message in messages {
        let (config, times) = (&group.config, group.config.redeliveries_max());
        if let Err(error) = group.member.send_back(&config.group, queue, message, delay_level, times).await {
            tracing::warn!(message = message.message_id, %error, "cannot give a message back, it is handled here again");
            kept.push(Received { reconsume_times: message.reconsume_times.saturating_add(1), ..message.clone() });
        }
    }
    kept
}
