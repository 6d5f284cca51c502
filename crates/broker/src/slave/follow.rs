//! The copy of the master's log, as a task.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::names;
use replica::beginning::{self, AskBeginning, AskError};
use replica::follow::{FollowEnd, FollowOptions, Follower};
use tokio::runtime::Handle;

use super::tables;
use crate::broker::Broker;
use crate::state::topics::has_batch_queues;
use crate::tasks::Stop;

/// Topics of records that the master does not have any more, and is not asked about again.
const GONE_MAX: usize = 100_000;
/// How often the master is asked about a topic that nobody here knows.
const TRIES: usize = 3;

/// Follows the master until it is told to stop, or the store has to begin anew.
pub(crate) async fn follow(broker: Arc<Broker>, mut stop: Stop) {
    let settings = broker.settings.load_full();
    let (asking, deriving, runtime) = (Arc::clone(&broker), Arc::clone(&broker), Handle::current());
    let gone = Mutex::new(HashSet::new());
    let follower = Follower {
        store: Arc::clone(&broker.store),
        clock: broker.clock.clone(),
        random: broker.random.clone(),
        options: FollowOptions {
            heartbeat: Duration::from_millis(settings.ha_send_heartbeat_interval),
            silence: Duration::from_millis(settings.ha_housekeeping_interval),
            from_last_file: settings.sync_from_last_file,
        },
        batch_topics: Arc::new(move |new| batch_topics(&deriving, &runtime, &gone, new)),
        beginning: AskBeginning::new(move || {
            let broker = Arc::clone(&asking);
            Box::pin(async move {
                let master = broker.following.master().ok_or(AskError::NoMaster)?;
                beginning::ask(&broker.registry.client, &master).await
            })
        }),
        status: Arc::clone(&broker.following.status),
    };
    match follower.run(broker.following.masters(), async move { stop.asked().await }).await {
        FollowEnd::Stopped | FollowEnd::StoreClosed => {}
        FollowEnd::BeginAt(at) => broker.following.begin_at(at),
    }
}

/// Which of these topics, of which the log has no queue, have queues of batches. A topic is made before its first message, so a master that is
/// asked when the message is here knows it. Runs on a thread that may wait.
fn batch_topics(
    broker: &Arc<Broker>,
    runtime: &Handle,
    gone: &Mutex<HashSet<String>>,
    new: &[&str],
) -> HashSet<String> {
    let is_unknown = |topic: &str| {
        broker.topics.get(topic).is_none() && !names::is_system_topic(topic) && !gone.lock().contains(topic)
    };
    let ordinary = || new.iter().copied().filter(|topic| !names::is_lmq(topic));
    if ordinary().any(is_unknown) {
        let asked = (0..TRIES).any(|_| match runtime.block_on(tables::topics(broker)) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the master does not tell its topics, of which its log has new ones");
                false
            }
        });
        if asked {
            let left: Vec<String> = ordinary().filter(|topic| is_unknown(topic)).map(str::to_owned).collect();
            let mut gone = gone.lock();
            if gone.len() + left.len() > GONE_MAX {
                gone.clear();
            }
            gone.extend(left);
        }
    }
    let has_batches = |topic: &&str| broker.topics.get(topic).is_some_and(|topic| has_batch_queues(&topic.settings()));
    ordinary().filter(has_batches).map(str::to_owned).collect()
}
