//! A push consumer against a broker that refuses, repeats itself and falls silent.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::support::{Asked, Fake, found, locked, to_lock, until};
use client::{ClientError, ConsumeFromWhere, MessageModel, Outcome, PushConfig, Received};
use protocol::body::{BrokerData, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use tokio::sync::Semaphore;
use tokio::time::Instant;

fn config() -> PushConfig {
    let from = ConsumeFromWhere::ConsumeFromFirstOffset;
    PushConfig { from, ..PushConfig::new("g") }.subscribe("t", "*").unwrap()
}

/// Whether this is the first pull of the topic: later ones find nothing.
fn is_first_pull(asked: &Asked) -> bool {
    asked.code == request::PULL_MESSAGE && asked.fields["topic"] == "t" && asked.number("queueOffset") == 0
}

#[tokio::test]
async fn a_message_that_the_broker_does_not_take_back_is_handled_again_and_keeps_nobody_from_a_handler() {
    let fake = Fake::start(|asked| match asked.code {
        request::PULL_MESSAGE if is_first_pull(asked) => Some(found(asked, "t", &[b"bad", b"good"])),
        request::CONSUMER_SEND_MSG_BACK => Some((ResponseCode::SystemError, Vec::new(), Vec::new())),
        _ => None,
    });
    let (bad, good) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen_bad, seen_good) = (Arc::clone(&bad), Arc::clone(&good));
    let handler = move |messages: Arc<[Received]>| {
        let is_bad = messages[0].body == "bad";
        let count = if is_bad { &seen_bad } else { &seen_good };
        count.fetch_add(1, Ordering::SeqCst);
        let is_over = messages[0].reconsume_times > 0;
        async move { if is_bad && !is_over { Outcome::Again { delay_level: 0 } } else { Outcome::Done } }
    };
    let client = fake.client();
    let consumer = client.push_consumer(PushConfig { concurrency: 1, ..config() }, handler).await.unwrap();
    until("the message behind is handled", || good.load(Ordering::SeqCst) == 1).await;
    until("the message is handled again", || bad.load(Ordering::SeqCst) == 2).await;
    consumer.stop().await;
    let commits = fake.asked(request::UPDATE_CONSUMER_OFFSET);
    assert_eq!(commits.last().unwrap().number("commitOffset"), 2);
}

#[tokio::test]
async fn the_last_commit_is_one_that_the_broker_confirms() {
    let fake = Fake::start(|asked| is_first_pull(asked).then(|| found(asked, "t", &[b"one"])));
    let client = fake.client();
    let config = PushConfig { commit_every: Duration::from_millis(20), ..config() };
    let consumer = client.push_consumer(config, |_: Arc<[Received]>| async { Outcome::Done }).await.unwrap();
    let commits = || fake.asked(request::UPDATE_CONSUMER_OFFSET);
    let is_on_its_way = |asked: &Asked| asked.is_oneway && asked.number("commitOffset") == 1;
    until("the offset is committed on the way", || commits().iter().any(is_on_its_way)).await;
    consumer.stop().await;
    let last = commits().pop().unwrap();
    assert_eq!((last.is_oneway, last.number("commitOffset")), (false, 1));
}

#[tokio::test]
async fn an_orderly_broadcast_locks_nothing() {
    let fake = Fake::start(|asked| is_first_pull(asked).then(|| found(asked, "t", &[b"one"])));
    let client = fake.client();
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let handler = move |_: Arc<[Received]>| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Outcome::Done }
    };
    let config = PushConfig { is_orderly: true, model: MessageModel::Broadcasting, ..config() };
    let consumer = client.push_consumer(config, handler).await.unwrap();
    until("the message is handled", || handled.load(Ordering::SeqCst) == 1).await;
    consumer.stop().await;
    assert!(fake.asked(request::LOCK_BATCH_MQ).is_empty());
}

/// As our broker and Apache's answer while the queue still begins at 0.
#[tokio::test]
async fn messages_that_were_sent_before_the_group_noticed_the_queue_are_not_passed_over() {
    let fake = Fake::start(|asked| match asked.code {
        request::QUERY_CONSUMER_OFFSET if asked.fields.get("setZeroIfNotFound").is_some_and(|zero| zero == "false") => {
            Some((ResponseCode::QueryNotFound, Vec::new(), Vec::new()))
        }
        request::GET_MAX_OFFSET => Some((ResponseCode::Success, vec![("offset", "10".to_owned())], Vec::new())),
        _ => None,
    });
    let client = fake.client();
    let config = PushConfig { from: ConsumeFromWhere::ConsumeFromLastOffset, ..config() };
    let consumer = client.push_consumer(config, |_: Arc<[Received]>| async { Outcome::Done }).await.unwrap();
    let pulls = || fake.asked(request::PULL_MESSAGE).into_iter().filter(|asked| asked.fields["topic"] == "t");
    until("it pulls", || pulls().next().is_some()).await;
    assert_eq!(pulls().next().unwrap().number("queueOffset"), 0);
    consumer.stop().await;
}

#[tokio::test]
async fn a_handler_that_panics_before_its_first_await_gets_its_messages_again() {
    for is_orderly in [false, true] {
        let fake = Fake::start(|asked| match asked.code {
            request::CONSUMER_SEND_MSG_BACK => Some((ResponseCode::SystemError, Vec::new(), Vec::new())),
            request::LOCK_BATCH_MQ => Some(locked(to_lock(asked))),
            _ => is_first_pull(asked).then(|| found(asked, "t", &[b"one"])),
        });
        let times = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&times);
        let handler = move |_: Arc<[Received]>| {
            assert!(count.fetch_add(1, Ordering::SeqCst) > 0, "a bug, on purpose");
            async { Outcome::Done }
        };
        let client = fake.client();
        let consumer = client.push_consumer(PushConfig { is_orderly, ..config() }, handler).await.unwrap();
        until("the message is handled again", || times.load(Ordering::SeqCst) == 2).await;
        consumer.stop().await;
        assert_eq!(fake.asked(request::UPDATE_CONSUMER_OFFSET).last().unwrap().number("commitOffset"), 1);
    }
}

#[tokio::test]
async fn a_consumer_whose_lock_was_lost_goes_on_where_the_group_has_come_to_meanwhile() {
    let locks = Arc::new(AtomicUsize::new(0));
    let asked_for = Arc::clone(&locks);
    // The second time another member has the queue; by the third it has committed 50.
    let fake = Fake::start(move |asked| match asked.code {
        request::LOCK_BATCH_MQ if to_lock(asked)[0].topic == "t" => {
            let is_ours = asked_for.fetch_add(1, Ordering::SeqCst) != 1;
            Some(locked(if is_ours { to_lock(asked) } else { Vec::new() }))
        }
        request::QUERY_CONSUMER_OFFSET if asked.fields["topic"] == "t" && asked_for.load(Ordering::SeqCst) > 1 => {
            Some((ResponseCode::Success, vec![("offset", "50".to_owned())], Vec::new()))
        }
        _ => is_first_pull(asked).then(|| found(asked, "t", &[b"one", b"two"])),
    });
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    // "one" is consumed, "two" is not: it is tried again until the lock is gone.
    let handler = move |messages: Arc<[Received]>| {
        let is_one = messages[0].body == "one";
        count.fetch_add(1, Ordering::SeqCst);
        async move { if is_one { Outcome::Done } else { Outcome::Again { delay_level: 0 } } }
    };
    let soon = Duration::from_millis(200);
    let config = PushConfig { is_orderly: true, commit_every: soon, lock_every: soon, ..config() };
    let client = fake.client();
    let consumer = client.push_consumer(config, handler).await.unwrap();
    let is_behind = |asked: &Asked| asked.fields["topic"] == "t" && asked.number("queueOffset") == 50;
    until("it goes on behind the other member", || fake.asked(request::PULL_MESSAGE).iter().any(is_behind)).await;
    let tried = tries.load(Ordering::SeqCst);
    consumer.stop().await;
    assert_eq!(tries.load(Ordering::SeqCst), tried, "what was in hand is the other member's");
    let commits = fake.asked(request::UPDATE_CONSUMER_OFFSET);
    let after = commits.iter().map(|asked| asked.number("commitOffset")).skip_while(|offset| *offset < 50);
    assert!(after.clone().all(|offset| offset >= 50) && commits.iter().all(|asked| asked.number("commitOffset") != 2));
}

#[tokio::test]
async fn a_client_has_one_consumer_of_a_group_at_a_time() {
    let fake = Fake::start(|_| None);
    let client = fake.client();
    let handler = |_: Arc<[Received]>| async { Outcome::Done };
    let first = client.push_consumer(config(), handler).await.unwrap();
    let second = client.push_consumer(config(), handler).await;
    assert!(matches!(second, Err(ClientError::Invalid(_))));
    first.stop().await;
    client.push_consumer(config(), handler).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_queue_whose_unfinished_messages_are_large_is_not_pulled_on() {
    let fake = Fake::start(|asked| match asked.code {
        request::PULL_MESSAGE if asked.fields["topic"] == "t" && asked.number("queueOffset") < 4 => {
            Some(found(asked, "t", &[&[7; 1_000]]))
        }
        _ => None,
    });
    let (gate, started) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, count) = (Arc::clone(&gate), Arc::clone(&started));
    let handler = move |_: Arc<[Received]>| {
        count.fetch_add(1, Ordering::SeqCst);
        let open = Arc::clone(&open);
        async move {
            open.acquire().await.unwrap().forget();
            Outcome::Done
        }
    };
    let client = fake.client();
    let config = PushConfig { queue_bytes_max: 1_500, commit_every: Duration::from_millis(20), ..config() };
    let consumer = client.push_consumer(config, handler).await.unwrap();
    let pulled_to = || fake.asked(request::PULL_MESSAGE).iter().filter(|asked| asked.fields["topic"] == "t").count();
    until("two are handled", || started.load(Ordering::SeqCst) == 2).await;
    assert_eq!(pulled_to(), 2);
    gate.add_permits(1);
    // With one finished there is room for one more.
    until("a third is handled", || started.load(Ordering::SeqCst) == 3).await;
    assert_eq!(pulled_to(), 3);
    gate.add_permits(3);
    until("the last is handled", || started.load(Ordering::SeqCst) == 4).await;
    consumer.stop().await;
}

#[tokio::test]
async fn a_broker_that_does_not_hold_pulls_is_not_asked_without_a_pause() {
    // Nothing new, at once, however long the pull may be held.
    let fake = Fake::start(|_| None);
    let client = fake.client();
    let handler = |_: Arc<[Received]>| async { Outcome::Done };
    let begun = Instant::now();
    let consumer = client.push_consumer(config(), handler).await.unwrap();
    let pulls = || fake.asked(request::PULL_MESSAGE).len();
    until("it is asked some times", || pulls() >= 4).await;
    consumer.stop().await;
    // Of two queues, that of the topic and that of the retry topic; each waits 200 ms between two pulls.
    let most = 2 * (begun.elapsed().as_millis() as usize / 200 + 1);
    assert!(pulls() <= most, "{} pulls, {most} at most", pulls());
}

/// Twenty of them, one after the other, would take a minute.
#[tokio::test]
async fn brokers_that_do_not_answer_keep_no_other_from_hearing_of_us() {
    let silent: Vec<_> = (0..20).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<String> = silent.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
    let live = Arc::new(OnceLock::new());
    let known = Arc::clone(&live);
    let fake = Fake::start(move |asked| {
        let live: &String = known.get().filter(|_| asked.code == request::GET_ROUTEINFO_BY_TOPIC)?;
        let broker = |(id, address): (usize, &String)| BrokerData {
            broker_name: format!("b{id}"),
            broker_addrs: [(0, address.clone())].into(),
            ..BrokerData::default()
        };
        let broker_datas = addresses.iter().chain([live]).enumerate().map(broker).collect();
        let route = TopicRoute { broker_datas, ..TopicRoute::default() };
        Some((ResponseCode::Success, Vec::new(), fastjson::to_vec(&route, Dialect::FastJson)))
    });
    // The last in the order of addresses.
    live.set(fake.address().replace("127.0.0.1", "localhost")).unwrap();
    let client = fake.client();
    let handler = |_: Arc<[Received]>| async { Outcome::Done };
    let starting = tokio::spawn(async move { client.push_consumer(config(), handler).await });
    until("the live broker hears", || !fake.asked(request::HEART_BEAT).is_empty()).await;
    starting.abort();
}
