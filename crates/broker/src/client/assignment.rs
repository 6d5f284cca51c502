//! Which queues a client consumes, when the broker divides them (400).
//!
//! The division is a pure function of the sorted queues and the sorted client ids, and the same as the clients' own, so that groups may
//! mix clients that divide by themselves with clients that ask.

use std::collections::BTreeSet;
use std::sync::Arc;

use config::BrokerSettings;
use net::{Outgoing, Request};
use protocol::body::{
    MessageModel, MessageQueue, MessageQueueAssignment, MessageRequestMode, QueryAssignment, QueryAssignmentReply,
};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};

use crate::answer::{body, reply_json};
use crate::broker::Broker;
use crate::inbox::Errand;
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::state::routes::Waiter;
use crate::state::topics::Topics;

/// How queues are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Neighbours together.
    Average,
    /// One by one.
    Circle,
}

impl Strategy {
    fn named(name: Option<&str>) -> Result<Strategy, Refusal> {
        match name {
            None | Some("AVG") => Ok(Strategy::Average),
            Some("AVG_BY_CIRCLE") => Ok(Strategy::Circle),
            Some(other) => {
                let remark = format!("allocate strategy {other} is not known, known are AVG and AVG_BY_CIRCLE");
                Err(Refusal::new(ResponseCode::SystemError, remark))
            }
        }
    }

    /// The places of the queues that the client at `at` of `clients` gets, out of `queues`.
    fn share(self, queues: usize, clients: usize, at: usize) -> Vec<usize> {
        match self {
            Strategy::Average => {
                let (each, more) = (queues / clients, queues % clients);
                let start = at * each + at.min(more);
                let count = each + usize::from(at < more);
                (start..start + count).collect()
            }
            Strategy::Circle => (at..queues).step_by(clients).collect(),
        }
    }
}

/// 400: which queues are mine?
pub(crate) fn query(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let (inbox, reply_to) = (Arc::clone(&session.inbox), request.reply_to());
    // Through the inbox, which loses no reply: without one the client would keep the queues that it
    // has.
    let later = move |division: Division, queues: Arc<Vec<MessageQueue>>| {
        inbox.push(Errand::then(move |_, _, out| {
            let reply = fastjson::to_vec(&division.of(&queues), Dialect::FastJson);
            out.reply(reply_to, ResponseCode::Success, None, &(), &reply);
        }));
    };
    if let Some(reply) = assign(broker, body(request)?, later)? {
        reply_json(request, out, &reply);
    }
    Ok(())
}

/// The queues that a client is to consume. `None` if name servers have to be asked: `later` gets
/// the topic's queues then.
///
/// A topic may lie on several brokers, and the client asks only one of them; so the queues come
/// from the name servers, unless there are none. Asking them takes a while: one task a topic does
/// it, for all clients that wait for it.
pub(crate) fn assign(
    broker: &Broker,
    order: QueryAssignment,
    later: impl FnOnce(Division, Arc<Vec<MessageQueue>>) + Send + 'static,
) -> Result<Option<QueryAssignmentReply>, Refusal> {
    let settings = broker.settings.load();
    if !settings.server_load_balancer_enable {
        let remark = "server load balancer is off (serverLoadBalancerEnable=false)";
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    }
    let strategy = Strategy::named(order.strategy_name.as_deref())?;
    let mode = broker.pops.modes.of(&settings, &order.consumer_group, &order.topic);
    let ids = broker.clients.consumers(&order.consumer_group).map(|group| group.client_ids()).unwrap_or_default();
    let division = Division { order, strategy, mode, ids };
    let (topic, now) = (division.order.topic.clone(), broker.clock.now());
    let own = || own_queues(&settings, &broker.topics, &topic);
    if broker.registry.addresses().next().is_none() {
        return Ok(Some(division.of(&own())));
    }
    if let Some(queues) = broker.routes.fresh(&topic, now) {
        return Ok(Some(division.of(&queues)));
    }
    let own = own();
    let waiter: Waiter = Box::new(move |found| later(division, found.unwrap_or_else(|| Arc::new(own))));
    let has_to_ask = broker.routes.join(&topic, waiter);
    if has_to_ask.map_err(|error| Refusal::busy(error, SOON))? {
        tokio::spawn(Arc::clone(&broker.routes).ask(Arc::clone(&broker.registry), topic, now));
    }
    Ok(None)
}

/// How the queues of a topic are divided, whatever they are.
pub(crate) struct Division {
    order: QueryAssignment,
    strategy: Strategy,
    /// How the group consumes the topic, and how many members share a queue.
    mode: (MessageRequestMode, i32),
    /// The members of the group, sorted.
    ids: Vec<String>,
}

impl Division {
    /// The client's part of these queues.
    pub(crate) fn of(&self, queues: &[MessageQueue]) -> QueryAssignmentReply {
        let &Division { order: ref asked, strategy, mode: (mode, sharers), ref ids } = self;
        if ids.is_empty() && asked.message_model == MessageModel::Clustering {
            // The group's heartbeats are still to come. As in Apache.
            return QueryAssignmentReply { message_queue_assignments: None };
        }
        let mine: Vec<MessageQueue> = match asked.message_model {
            MessageModel::Broadcasting => queues.to_vec(),
            MessageModel::Clustering if mode == MessageRequestMode::Pop => {
                let at = ids.iter().position(|id| *id == asked.client_id);
                share_pops(strategy, queues, ids.len(), at, sharers)
            }
            MessageModel::Clustering => {
                // A client that has not sent a heartbeat yet has no share; it asks again.
                let share = ids
                    .iter()
                    .position(|id| *id == asked.client_id)
                    .map(|at| strategy.share(queues.len(), ids.len(), at));
                share.unwrap_or_default().into_iter().filter_map(|at| queues.get(at).cloned()).collect()
            }
        };
        let assignments =
            mine.into_iter().map(|message_queue| MessageQueueAssignment { attachments: None, message_queue, mode });
        QueryAssignmentReply { message_queue_assignments: Some(assignments.collect()) }
    }
}

/// The queues that a client of a group pops from: its own and those of so many members that follow it. Where every member shares with
/// every other, or the number is not positive, it pops from each broker whatever comes, which queue -1 means.
fn share_pops(
    strategy: Strategy,
    queues: &[MessageQueue],
    clients: usize,
    at: Option<usize>,
    sharers: i32,
) -> Vec<MessageQueue> {
    // A group without members has nobody to ask for; a client that is about to join it asks again.
    if clients == 0 {
        return Vec::new();
    }
    let sharers = usize::try_from(sharers).unwrap_or(0);
    if sharers == 0 || sharers >= clients.saturating_sub(1) {
        let brokers: BTreeSet<&str> = queues.iter().map(|queue| queue.broker_name.as_str()).collect();
        let topic = queues.first().map(|queue| queue.topic.clone()).unwrap_or_default();
        let any = |name: &str| MessageQueue { broker_name: name.to_owned(), queue_id: -1, topic: topic.clone() };
        return brokers.into_iter().map(any).collect();
    }
    let Some(at) = at else { return Vec::new() };
    // With more clients than queues each still gets one.
    if clients > queues.len() {
        let own = queues.len().checked_sub(1).and_then(|_| queues.get(at % queues.len()));
        return own.cloned().into_iter().collect();
    }
    let mut places: BTreeSet<usize> = BTreeSet::new();
    for member in at..=at + sharers {
        places.extend(strategy.share(queues.len(), clients, member % clients));
    }
    places.into_iter().filter_map(|place| queues.get(place).cloned()).collect()
}

/// The read queues that a topic has here, in the order in which every client sorts them. Permissions are not looked at: a pull says
/// what is forbidden.
fn own_queues(settings: &BrokerSettings, topics: &Topics, topic: &str) -> Vec<MessageQueue> {
    let Some(found) = topics.get(topic) else { return Vec::new() };
    let count = found.config().read_queue_nums;
    (0..count)
        .map(|queue_id| MessageQueue { broker_name: settings.broker_name.clone(), queue_id, topic: topic.to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert_eq, proptest};

    #[test]
    fn shares_are_those_of_the_java_client() {
        // AllocateMessageQueueAveragely and …ByCircle with 8 queues and 3 clients.
        let shares = |strategy: Strategy| (0..3).map(|at| strategy.share(8, 3, at)).collect::<Vec<_>>();
        assert_eq!(shares(Strategy::Average), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(shares(Strategy::Circle), [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5]]);
        assert_eq!(Strategy::Average.share(2, 4, 3), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn every_queue_has_exactly_one_owner(queues in 0..200usize, clients in 1..50usize) {
            for strategy in [Strategy::Average, Strategy::Circle] {
                let mut owned: Vec<usize> = (0..clients).flat_map(|at| strategy.share(queues, clients, at)).collect();
                owned.sort_unstable();
                prop_assert_eq!(owned, (0..queues).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn members_that_pop_share_queues_as_in_java() {
        let queues: Vec<MessageQueue> =
            (0..4).map(|queue_id| MessageQueue { broker_name: "b".into(), queue_id, topic: "t".into() }).collect();
        let ids = |clients: usize, at: Option<usize>, sharers: i32| -> Vec<i32> {
            let shared = share_pops(Strategy::Average, &queues, clients, at, sharers);
            shared.into_iter().map(|queue| queue.queue_id).collect()
        };
        for sharers in [-1, 0, 3, 9] {
            assert_eq!(ids(4, Some(1), sharers), [-1], "everybody shares with everybody");
        }
        assert_eq!(ids(4, Some(3), 1), [0, 3], "its own queue and that of the next member");
        assert_eq!(ids(4, None, 1), Vec::<i32>::new(), "it is no member");
        assert_eq!(ids(8, Some(6), 2), [2], "more members than queues");
        assert_eq!(ids(0, None, 0), Vec::<i32>::new());
    }

    #[test]
    fn an_unknown_strategy_is_refused_by_name() {
        assert!(Strategy::named(Some("ROOM")).unwrap_err().remark.contains("ROOM"));
        assert_eq!(Strategy::named(None), Ok(Strategy::Average));
    }
}
