//! A look at all groups: which fall behind, and which members fail.

use crate::error::Result;
use crate::handle::Operator;
use crate::static_topic::ByPhysicalQueue;

/// A topic in which a group is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Messages in all queues.
    pub sum: i64,
    /// Messages in the queue that has most.
    pub max: i64,
    /// When the last message before the oldest of them was stored; 0 if that is not known.
    pub oldest: i64,
}

/// A member that fails to consume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The group.
    pub group: String,
    /// The member.
    pub client_id: String,
    /// The topic.
    pub topic: String,
    /// Messages that it failed to consume in the last hour.
    pub in_hour: i64,
}

/// What a look at all groups brought.
#[derive(Debug, Default)]
pub struct Look {
    /// Groups that are behind.
    pub behind: Vec<Behind>,
    /// Members that fail.
    pub failing: Vec<Failing>,
    /// Groups whose progress was told by physical queue.
    pub by_physical_queue: Vec<ByPhysicalQueue>,
}

impl Operator {
    /// Looks at every group once: which are `least` messages behind in one queue. A group that cannot be asked now is left out.
    pub async fn look(&self, least: i64) -> Result<Look> {
        let mut look = Look::default();
        for group in self.groups().await? {
            let Ok(progress) = self.progress(&group, None, None).await else { continue };
            look.by_physical_queue.extend(progress.by_physical_queue);
            let stats = progress.stats;
            let mut topics: Vec<&str> = stats.offset_table.keys().map(|queue| queue.topic.as_str()).collect();
            topics.sort_unstable();
            topics.dedup();
            for topic in topics {
                let queues = stats.offset_table.iter().filter(|(queue, _)| queue.topic == topic);
                let diffs =
                    queues.map(|(_, offset)| (offset.broker_offset - offset.consumer_offset, offset.last_timestamp));
                let (mut sum, mut max, mut oldest) = (0, 0, i64::MAX);
                for (diff, at) in diffs {
                    sum += diff;
                    max = max.max(diff);
                    oldest = if diff > 0 && at > 0 { oldest.min(at) } else { oldest };
                }
                if max >= least {
                    let oldest = if oldest == i64::MAX { 0 } else { oldest };
                    look.behind.push(Behind { group: group.clone(), topic: topic.to_owned(), sum, max, oldest });
                }
            }
            let Ok(members) = self.consumers(&group, None).await else { continue };
            for member in members.connection_set {
                let Ok(info) = self.running_info(&group, &member.client_id, false).await else { continue };
                let failing = info.status_table.into_iter().filter(|(_, status)| status.consume_failed_msgs > 0);
                look.failing.extend(failing.map(|(topic, status)| Failing {
                    group: group.clone(),
                    client_id: member.client_id.clone(),
                    topic,
                    in_hour: status.consume_failed_msgs,
                }));
            }
        }
        Ok(look)
    }
}
