//! The copy of the master's log, as a task.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::body::DataVersion;
use protocol::names;
use replica::asking::{self, AskError, AskMaster};
use replica::follow::{FollowEnd, Follower};
use store::TopicsUnknown;
use tokio::runtime::Handle;

use super::check::check_log;
use super::epochs;
use super::master::MasterError;
use super::tables;
use crate::broker::Broker;
use crate::state::registry::Identity;
use crate::state::topics::has_batch_queues;
use crate::tasks::Stop;

/// Topics of records that the master does not have any more, and is not asked about again.
const GONE_MAX: usize = 100_000;

/// How long it is believed that the master does not have them: it may make one of them anew.
const GONE_FOR: Duration = Duration::from_secs(10);

/// Topics that the master did not have when it told them last.
#[derive(Default)]
struct Gone {
    topics: HashSet<String>,
    /// The version of the topics here.
    version: DataVersion,
    since: Duration,
}

impl Gone {
    /// Without what was found out before the topics here changed, or too long ago.
    fn of(&mut self, broker: &Broker) -> &mut HashSet<String> {
        let (version, now) = (broker.topics.version(), broker.clock.elapsed());
        if version != self.version || now.saturating_sub(self.since) >= GONE_FOR {
            *self = Gone { topics: HashSet::new(), version, since: now };
        }
        &mut self.topics
    }
}

/// Follows the master until it is told to stop, or the store has to begin anew.
pub(crate) async fn follow(broker: Arc<Broker>, mut stop: Stop) {
    let (deriving, runtime, asking_stop) = (Arc::clone(&broker), Handle::current(), stop.clone());
    let (of_extent, of_record, of_stream) = (Arc::clone(&broker), Arc::clone(&broker), Arc::clone(&broker));
    let gone = Mutex::new(Gone::default());
    let follower = Follower {
        store: Arc::clone(&broker.store),
        clock: broker.clock.clone(),
        random: broker.random.clone(),
        options: broker.copying.subscribe(),
        batch_topics: Arc::new(move |new| batch_topics(&deriving, &runtime, &gone, &asking_stop, new)),
        asking: AskMaster::new(
            move || {
                let broker = Arc::clone(&of_extent);
                Box::pin(async move {
                    let master = known_master(&broker)?;
                    epochs::agree(&broker, &master).await
                })
            },
            move |at| {
                let broker = Arc::clone(&of_record);
                Box::pin(async move {
                    let master = known_master(&broker)?;
                    asking::record(&broker.registry.records, &master, at).await
                })
            },
        )
        .with_streams(move || {
            let broker = Arc::clone(&of_stream);
            Box::pin(async move {
                let master = known_master(&broker)?;
                asking::is_own(&broker.registry.client, &master).await
            })
        }),
        member: Some(Arc::new(broker.member())),
        status: Arc::clone(&broker.following.status),
    };
    let end = tokio::select! {
        end = follower.run(broker.following.masters(), async move { stop.asked().await }) => end,
        never = use_news(&broker) => match never {},
    };
    match end {
        FollowEnd::Stopped | FollowEnd::StoreClosed => {}
        FollowEnd::BeginAt(at) => broker.following.begin_at(at),
    }
}

/// The main port of the master.
fn known_master(broker: &Broker) -> Result<Arc<str>, AskError> {
    broker.following.master().ok_or_else(|| {
        let Identity { broker_name: set, cluster_name: cluster, .. } = broker.identity();
        AskError::NoMaster { set, cluster }
    })
}

/// Goes to the master that name servers have named meanwhile, whenever the log does not come from the one before any more.
async fn use_news(broker: &Broker) -> Infallible {
    let mut connection = broker.following.connection();
    // Ends with the task.
    loop {
        if connection.changed().await.is_err() {
            return pending().await;
        }
        if !*connection.borrow_and_update() {
            broker.following.lost();
        }
    }
}

/// Which of these topics, of which the log has no queue, have queues of batches. A topic is made before its first message, so a master that is
/// asked when the message is here knows it. If it does not answer, that is an error: a queue of the wrong kind would stay. Runs on a thread
/// that may wait.
fn batch_topics(
    broker: &Arc<Broker>,
    runtime: &Handle,
    gone: &Mutex<Gone>,
    stop: &Stop,
    new: &[&str],
) -> Result<HashSet<String>, TopicsUnknown> {
    let is_gone = |topic: &str| gone.lock().of(broker).contains(topic);
    let is_unknown =
        |topic: &str| broker.topics.get(topic).is_none() && !names::is_system_topic(topic) && !is_gone(topic);
    let ordinary = || new.iter().copied().filter(|topic| !names::is_lmq(topic));
    if ordinary().any(is_unknown) {
        let mut stop = stop.clone();
        let asking = async {
            tokio::select! {
                biased;
                () = stop.asked() => Err(TopicsUnknown("this broker is stopping".to_owned())),
                asked = ask_topics(broker) => asked.map_err(|error| TopicsUnknown(error.to_string())),
            }
        };
        runtime.block_on(asking)?;
        let left: Vec<String> = ordinary().filter(|topic| is_unknown(topic)).map(str::to_owned).collect();
        let mut gone = gone.lock();
        let gone = gone.of(broker);
        if gone.len() + left.len() > GONE_MAX {
            gone.clear();
        }
        gone.extend(left);
    }
    let has_batches = |topic: &&str| broker.topics.get(topic).is_some_and(|topic| has_batch_queues(&topic.settings()));
    Ok(ordinary().filter(has_batches).map(str::to_owned).collect())
}

async fn ask_topics(broker: &Arc<Broker>) -> Result<(), MasterError> {
    let address = broker.following.master().ok_or(MasterError::Unknown)?;
    check_log(broker, &address).await?;
    tables::topics(broker, &address).await
}
