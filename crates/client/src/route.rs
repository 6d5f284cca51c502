//! Where the queues of a topic are.

use std::collections::{BTreeMap, HashMap};

use protocol::body::{MASTER_ID, MessageQueue, TopicRoute};
use protocol::names::is_logical_broker;
use protocol::sys_flag::perm;

use crate::logical;

/// Queues of a topic on one broker, and all that an order configuration names: more are not believed.
const QUEUES_MAX: i32 = 1 << 16;

/// A topic's route, as a client needs it.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// Queues that take messages: of brokers with a master. Of a static topic all, also those that nobody leads at the moment.
    pub writable: Vec<MessageQueue>,
    /// Queues that give messages; of a static topic all.
    pub readable: Vec<MessageQueue>,
    /// Addresses by broker name and broker id.
    pub addresses: HashMap<String, BTreeMap<i64, String>>,
    /// The brokers that lead the queues of a static topic, whose own broker name is none.
    leaders: HashMap<MessageQueue, String>,
}

impl Route {
    /// Reads what a name server said.
    pub fn new(topic: &str, found: TopicRoute) -> Route {
        let addresses: HashMap<_, _> =
            found.broker_datas.into_iter().map(|broker| (broker.broker_name, broker.broker_addrs)).collect();
        let queues = |count: i32, broker: &str| {
            let (topic, broker) = (topic.to_owned(), broker.to_owned());
            (0..count.min(QUEUES_MAX)).map(move |queue_id| MessageQueue {
                broker_name: broker.clone(),
                queue_id,
                topic: topic.clone(),
            })
        };
        let mut route = Route::default();
        for data in &found.queue_datas {
            let broker = addresses.get(&data.broker_name);
            if broker.is_some() && perm::is_readable(data.perm) {
                route.readable.extend(queues(data.read_queue_nums, &data.broker_name));
            }
            let has_master = broker.is_some_and(|broker| broker.contains_key(&MASTER_ID));
            if has_master && perm::is_writable(data.perm) {
                route.writable.extend(queues(data.write_queue_nums, &data.broker_name));
            }
        }
        // An order topic names its queues itself, so that they stay the same while brokers come and go: `a:4;b:8`. As in Java's
        // client they stay also while a broker has no master or takes no messages: another queue would break the order.
        if let Some(order) = found.order_topic_conf.filter(|text| !text.is_empty()) {
            let named = order.split(';').filter_map(|part| {
                let (broker, count) = part.split_once(':')?;
                Some((broker.to_owned(), count.trim().parse().ok()?))
            });
            route.writable = named
                .flat_map(|(broker, count): (String, i32)| queues(count, &broker))
                .take(QUEUES_MAX as usize)
                .collect();
        }
        let logical = logical::queues(topic, found.topic_queue_mapping_by_broker.unwrap_or_default(), QUEUES_MAX);
        if !logical.is_empty() {
            // As in Java's client, whatever the brokers' permissions are: a key's queue must stay the same.
            route.readable = logical.keys().cloned().collect();
            route.writable.clone_from(&route.readable);
            route.leaders = logical.into_iter().filter_map(|(queue, leader)| Some((queue, leader?))).collect();
        }
        route.readable.sort();
        route.addresses = addresses;
        route
    }

    /// As for another topic that the broker will make after this one's model, with `queues_max` queues on each broker.
    pub(crate) fn inherited(mut self, topic: &str, queues_max: i32) -> Route {
        for queues in [&mut self.writable, &mut self.readable] {
            queues.retain(|queue| queue.queue_id < queues_max);
            queues.iter_mut().for_each(|queue| topic.clone_into(&mut queue.topic));
        }
        self
    }

    /// The broker that a queue is on: the one in its name, or the one that leads it now if it is a static topic's.
    pub fn broker_of<'a>(&'a self, queue: &'a MessageQueue) -> Option<&'a str> {
        if is_logical_broker(&queue.broker_name) {
            return self.leaders.get(queue).map(String::as_str);
        }
        Some(&queue.broker_name)
    }

    /// A broker's master.
    pub fn master(&self, broker: &str) -> Option<&str> {
        self.addresses.get(broker)?.get(&MASTER_ID).map(String::as_str)
    }

    /// A broker's master, or else any of its replicas: enough to read from.
    pub fn any(&self, broker: &str) -> Option<&str> {
        self.master(broker).or_else(|| self.addresses.get(broker)?.values().next().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::{BrokerData, QueueData};

    fn found(order: Option<&str>) -> TopicRoute {
        let broker = |name: &str, id: i64| BrokerData {
            broker_name: name.into(),
            broker_addrs: [(id, format!("{name}:1"))].into(),
            ..BrokerData::default()
        };
        let queues = |name: &str, perm| QueueData {
            broker_name: name.into(),
            perm,
            read_queue_nums: 2,
            write_queue_nums: 3,
            topic_sys_flag: 0,
        };
        TopicRoute {
            broker_datas: vec![broker("a", 0), broker("slave-only", 1), broker("read-only", 0)],
            queue_datas: vec![queues("a", 6), queues("slave-only", 6), queues("read-only", 4), queues("unknown", 6)],
            order_topic_conf: order.map(str::to_owned),
            ..TopicRoute::default()
        }
    }

    fn brokers(queues: &[MessageQueue]) -> Vec<&str> {
        let mut names: Vec<&str> = queues.iter().map(|queue| queue.broker_name.as_str()).collect();
        names.dedup();
        names
    }

    #[test]
    fn one_writes_to_masters_and_reads_wherever_it_is_permitted() {
        let route = Route::new("t", found(None));
        assert_eq!((brokers(&route.writable), route.writable.len()), (vec!["a"], 3));
        assert_eq!((brokers(&route.readable), route.readable.len()), (vec!["a", "read-only", "slave-only"], 6));
        assert_eq!((route.master("slave-only"), route.any("slave-only")), (None, Some("slave-only:1")));
    }

    #[test]
    fn counts_of_queues_that_nobody_has_do_not_fill_our_memory() {
        let ordered = Route::new("t", found(Some("a:2000000000;b:2000000000")));
        assert_eq!(ordered.writable.len(), QUEUES_MAX as usize);
        let mut much = found(None);
        much.queue_datas.iter_mut().for_each(|data| data.read_queue_nums = i32::MAX);
        assert_eq!(Route::new("t", much).readable.len(), 3 * QUEUES_MAX as usize);
    }

    #[test]
    fn an_order_topic_names_its_queues_and_a_new_topic_gets_those_of_its_model() {
        let ordered = Route::new("t", found(Some("a:1;b:2")));
        assert_eq!((brokers(&ordered.writable), ordered.writable.len()), (vec!["a", "b"], 3));
        let inherited = Route::new("TBW102", found(None)).inherited("new", 2);
        assert_eq!(inherited.writable.len(), 2);
        assert!(inherited.writable.iter().all(|queue| queue.topic == "new"));
    }
}
