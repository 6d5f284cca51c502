//! Orders that come by no wire: no request, no session, no frame.

use net::{Arrival, ReplyTo};
use protocol::LogOffset;
use protocol::body::{LockBatch, MessageQueue};
use protocol::code::ResponseCode;
use protocol::frame::Serialization;
use protocol::properties::name;
use protocol::record::{self, RecordDraft, RecordView, Scanned};
use protocol::sys_flag::perm;
use store::{Boundary, KeyKind, KeyQuery, LogSlice, RecordBatch, TagsCode};
use tokio::time::Instant;

use super::eventual::Eventual;
use super::offsets::{CommitOrder, Committed, Progress, ProgressOrder};
use super::retry::SendBackOrder;
use super::view::{Bounds, TimeOrder, record_at};
use super::{order_lock, query};
use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::sends::Sends;
use crate::started;
use crate::state::order_locks::OrderLocks;
use crate::state::topics::plain;
use crate::static_topic::NamedQueue;
use crate::write::append;

const QUEUE: NamedQueue<'_> = NamedQueue { topic: "T", queue_id: 0, is_physical: false };
const CONNECTION: u64 = 1;

fn now<T>(outcome: Result<Eventual<T>, Refusal>) -> T {
    match outcome {
        Ok(Eventual::Now(outcome)) => outcome,
        Ok(Eventual::OnDisk(_) | Eventual::Elsewhere(_)) => panic!("there is a step left"),
        Err(refusal) => panic!("{}", refusal.remark),
    }
}

/// Stores a message in queue 0 of topic T.
async fn store_one(broker: &Broker) -> LogOffset {
    let topic = broker.topics.create(plain("T", 1, perm::READ | perm::WRITE)).topic;
    let lane = topic.lane(&broker.store, 0).unwrap();
    let mut batch = RecordBatch::new();
    let draft = RecordDraft { body: b"body", ..RecordDraft::plain("T", broker.advertised) };
    append::push(&mut batch, &lane, TagsCode::Code(0), &draft);
    broker.append(&mut batch).await.unwrap();
    batch.landed()[0].at
}

fn stored(broker: &Broker, at: LogOffset) -> LogSlice {
    now(record_at(&broker.store, at.0 as i64))
}

fn view(slice: &LogSlice) -> RecordView<'_> {
    let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), true) else { panic!("no record") };
    view
}

#[tokio::test]
async fn offsets_are_committed_and_asked_for_without_a_wire() {
    let dir = tempfile::tempdir().unwrap();
    let (store, broker) = started::at(dir.path(), Vec::new()).await;
    let commit = |group, offset| CommitOrder { group, queue: QUEUE, offset }.run(&broker, CONNECTION);
    let ask =
        |group, may_begin_at_zero| ProgressOrder { group, queue: QUEUE, may_begin_at_zero }.run(&broker, CONNECTION);
    let code = |refused: Option<Refusal>| refused.map(|refusal| refusal.code);
    assert_eq!(code(commit("G", 7).err()), Some(ResponseCode::SubscriptionGroupNotExist));
    broker.groups.find("G").unwrap();
    assert_eq!(code(commit("G", 7).err()), Some(ResponseCode::TopicNotExist));

    let bounds = Bounds::of(&broker);
    assert_eq!(now(bounds.max_offset(&QUEUE, false)), 0, "there is no such queue");
    store_one(&broker).await;
    assert_eq!((now(bounds.min_offset(&QUEUE)), now(bounds.max_offset(&QUEUE, false))), (0, 1));
    let at_time = TimeOrder { queue: QUEUE, timestamp: 0, boundary: Boundary::Lower, lite_topic: None };
    let Ok(Eventual::OnDisk(look)) = bounds.offset_by_time(&at_time) else { panic!("it was not looked up") };
    assert_eq!(look(&store), Ok(0));
    let asked = KeyQuery { topic: "T".into(), key: "k".into(), kind: KeyKind::Key, max: 1, begin: 0, end: i64::MAX };
    let refused = query::look_up(&store, &broker.store_settings.load(), asked).unwrap_err();
    assert_eq!(refused.remark, "messages cannot be looked up by key: messageIndexEnable is false");

    assert_eq!(now(commit("G", 1)), Committed::Noted);
    let Progress { offset, written_at } = now(ask("G", true));
    assert_eq!(offset, 1);
    assert!(written_at.is_some_and(|position| position <= store.journal().position()));
    assert_eq!(code(ask("H", false).err()), Some(ResponseCode::QueryNotFound));
    let Ok(Eventual::OnDisk(look)) = ask("H", true) else { panic!("the queue's age was not looked up") };
    assert_eq!(look(&store), Ok(Progress { offset: 0, written_at: None }), "the topic is young");

    broker.stop().await.unwrap();
    store.close().unwrap();
}

#[tokio::test]
async fn a_message_becomes_a_dead_letter_without_a_wire() {
    let dir = tempfile::tempdir().unwrap();
    let (store, broker) = started::at(dir.path(), Vec::new()).await;
    let at = store_one(&broker).await;
    let order = SendBackOrder { group: "G", offset: at.0 as i64, delay_level: -1, unit_mode: false, retry_max: None };
    let came = Arrival::at(Instant::now());
    let (serialization, opaque) = (Serialization::Json, 1);
    let reply_to = ReplyTo { code: 36, opaque, serialization, is_oneway: false, came, is_held: false };

    let mut sends = Sends::new(1);
    let mut given_back = order.admit(&broker).unwrap();
    let refused = given_back.gather(&broker, None, reply_to, &mut sends).unwrap_err();
    assert_eq!(refused.remark, format!("look message by offset failed, {}", at.0));
    assert!(sends.is_empty());

    given_back.gather(&broker, Some(stored(&broker, at)), reply_to, &mut sends).unwrap();
    assert!(given_back.written_at > 0, "its topics were made");
    broker.append(&mut sends.batch).await.unwrap();
    let slice = stored(&broker, sends.batch.landed()[0].at);
    let dead = view(&slice);
    assert_eq!((dead.topic(), dead.property(name::DLQ_ORIGIN_TOPIC)), ("%DLQ%G", Some("T")));
    assert_eq!(sends.receipts.list.len(), 1);

    drop(slice);
    broker.stop().await.unwrap();
    store.close().unwrap();
}

#[test]
fn queues_are_locked_without_a_broker() {
    let locks = OrderLocks::new(60_000, env::Clock::real());
    let queue = |queue_id| MessageQueue { broker_name: "b".into(), queue_id, topic: "T".into() };
    let order = |client: &str, mq_set| LockBatch {
        client_id: client.into(),
        consumer_group: "G".into(),
        mq_set,
        only_this_broker: true,
    };
    assert_eq!(order_lock::lock_queues(&locks, order("a", vec![queue(0)])), Ok(vec![queue(0)]));
    assert_eq!(order_lock::lock_queues(&locks, order("b", vec![queue(0), queue(1)])), Ok(vec![queue(1)]));
    assert!(order_lock::lock_queues(&locks, order(&"c".repeat(1 << 16), Vec::new())).is_err());
}
