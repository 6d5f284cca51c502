//! Logical queues over two brokers.

use std::sync::atomic::{AtomicUsize, Ordering};

use broker::{Caller, LocalClient, PullOrder, PullStatus, PullSubscription};
use bytes::BytesMut;
use net::Budget;
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::PullReply;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::support::{DEADLINE, messages};

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_at_another_broker_is_asked_for_there() {
    let names = Arc::new(Names::default());
    let name_servers = vec![listen(&names)];
    let a = start(Setup { name_servers: name_servers.clone(), ..Setup::default() }).await;
    let b = start(Setup { name_servers, more: OF_B, ..Setup::default() }).await;
    let (first, second) = (item(0, "broker-a", 0, 0), item(1, "broker-b", 0, 10_000));
    assert_eq!(map(&a, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for body in ["a", "b"] {
        put(&a, 0, body).await;
    }
    for running in [&a, &b] {
        make_group(running, "CG", 1).await;
    }
    assert_eq!(commit(&a, 0, 1).await, 0);
    let moved = [first, second];
    assert_eq!(map(&a, &detail("broker-a", 2, &[(0, &moved)]), false).await.0, 0);
    let lost = [item(0, "broker-c", 0, 0), item(1, "broker-b", 1, 10_000)];
    assert_eq!(map(&b, &detail("broker-b", 2, &[(0, &moved), (1, &lost)]), false).await.0, 0);
    names.0.lock().insert("broker-a".to_owned(), a.address.clone());
    let unknown = b.pull(&from(T, 1, 0)).await;
    assert_eq!((unknown.code, unknown.remark.as_deref()), (1, Some("cannot find addr for broker broker-c")));

    assert_eq!(put(&b, 0, "c").await, (0, 10_000));
    assert_eq!(bodies(&read(&b, 0, 0).await), [(0, "a"), (1, "b"), (10_000, "c")]);
    assert_eq!(bounds(&b, 0).await, (0, 10_001));
    assert_eq!(committed(&b, 0).await, Ok(1), "as it was committed at the broker before");
    assert_eq!((commit(&b, 0, 2).await, committed(&b, 0).await), (0, Ok(2)));
    assert_eq!((commit(&b, 0, 10_000).await, committed(&b, 0).await), (0, Ok(10_000)));
    assert_eq!((commit(&b, 0, 1).await, committed(&b, 0).await), (0, Ok(1)), "back where the other broker holds it");
    let nobody = UpdateConsumerOffset { consumer_group: "nobody", topic: T, queue_id: 0, commit_offset: 1 };
    assert_eq!(b.call(request::UPDATE_CONSUMER_OFFSET, &nobody, "").await.code, 26, "whoever holds the place");
    // A tool resets the group at the broker that holds the place; the consumer hears of it here.
    let fields = ResetOffset { group: "CG", topic: T, queue_id: 0, offset: Some(0), timestamp: -1, is_force: true };
    assert_eq!(a.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &fields, "").await.code, 0);
    let reset = b.pull(&from(T, 0, 2)).await;
    assert_eq!((reset.code, reset.next, reset.remark.as_deref()), (21, 0, Some("OFFSET_RESET")));
    assert_eq!(at_time(&b, 0, 0, "LOWER").await, 0);
    assert_eq!(at_time(&b, 0, i64::MAX / 2, "LOWER").await, 10_001);
    let answer = b.call(request::GET_EARLIEST_MSG_STORETIME, &GetEarliestStoreTime { topic: T, queue_id: 0 }, "").await;
    assert!(EarliestStoreTimeReply::decode(&answer.fields.as_fields()).unwrap().timestamp > 0);
    a.stop().await;
    let gone = b.pull(&from(T, 0, 0)).await;
    assert_eq!(gone.code, 1, "{:?}", gone.remark);
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_in_this_process_gets_what_lies_at_another_broker() {
    let names = Arc::new(Names::default());
    let name_servers = vec![listen(&names)];
    let a = start(Setup { name_servers: name_servers.clone(), ..Setup::default() }).await;
    let b = start(Setup { name_servers, more: OF_B, ..Setup::default() }).await;
    let moved = [item(0, "broker-a", 0, 0), item(1, "broker-b", 0, 10_000)];
    assert_eq!(map(&a, &detail("broker-a", 1, &[(0, &moved[..1])]), false).await.0, 0);
    put(&a, 0, "a").await;
    assert_eq!(map(&a, &detail("broker-a", 2, &[(0, &moved)]), false).await.0, 0);
    assert_eq!(map(&b, &detail("broker-b", 2, &[(0, &moved)]), false).await.0, 0);
    names.0.lock().insert("broker-a".to_owned(), a.address.clone());
    for running in [&a, &b] {
        make_group(running, "CG", 1).await;
    }
    let client = LocalClient::new("127.0.0.1:8081".parse().unwrap(), Box::new(|_, _| false));
    let mut caller = Caller::local(client, None);
    let order = PullOrder {
        group: "CG",
        topic: T,
        queue_id: 0,
        is_physical: false,
        offset: 0,
        count_max: 32,
        bytes_max: None,
        wait_ms: Some(20_000),
        commit_offset: None,
        subscription: Some(PullSubscription { expression: "*", expression_type: None }),
        subscription_version: 0,
        lite_topic: None,
        is_lite_consumer: false,
    };
    let (found, told) = (order.call(&b.broker, &mut caller).await.unwrap(), b.pull(&from(T, 0, 0)).await);
    assert_eq!((found.status(), told.code), (PullStatus::Found, 0));
    assert_eq!((found.next(), found.min(), found.max()), (told.next, told.min, told.max));
    assert_eq!(messages(&found.pieces().collect::<Vec<_>>().concat()), told.messages);
    a.stop().await;
    let gone = order.call(&b.broker, &mut caller).await.map(|found| found.status()).unwrap_err();
    assert_eq!(gone.code, ResponseCode::SystemError, "{}", gone.remark);
    b.stop().await;
}

/// A broker that has 100 KB for each pull, and counts them.
#[derive(Default)]
struct Holder(AtomicUsize);

impl Service for Holder {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let fields = PullReply {
                suggest_which_broker_id: 0,
                next_begin_offset: 1,
                min_offset: 0,
                max_offset: 100,
                offset_delta: None,
                topic_sys_flag: None,
                group_sys_flag: None,
                forbidden_type: None,
            };
            out.reply(request.reply_to(), ResponseCode::Success, None, &fields, &[7; 100_000]);
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

/// The header of the next answer.
async fn next_header(stream: &mut TcpStream) -> Value {
    let mut frame = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut frame).await.unwrap();
    // Of JSON the length is all that these bytes say.
    let header_bytes = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
    serde_json::from_slice(&frame[4..4 + header_bytes]).unwrap()
}

#[tokio::test]
async fn of_what_another_broker_answers_a_client_that_does_not_read_has_so_much_kept_for_it_and_the_rest_refused() {
    const PULLS: usize = 16;
    let (names, holder) = (Arc::new(Names::default()), Arc::new(Holder::default()));
    names.0.lock().insert("broker-c".to_owned(), listen(&holder));
    let running = start(Setup { name_servers: vec![listen(&names)], ..Setup::default() }).await;
    let moved = [item(0, "broker-c", 0, 0), item(1, "broker-a", 0, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, &moved)]), false).await.0, 0);
    let budget = Arc::new(Budget::new(1 << 20));
    let options = ListenerOptions {
        tls: None,
        budget: Arc::clone(&budget),
        send_buffer_bytes: Some(16 << 10),
        ..ListenerOptions::default()
    };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options, Arc::clone(&running.broker)).unwrap();
    let address = listener.local_addr();
    let port = tokio::spawn(listener.run(std::future::pending()));

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut silent = socket.connect(address).await.unwrap();
    let mut asked = BytesMut::new();
    for opaque in 0..PULLS as i32 {
        let head = Head { code: request::PULL_MESSAGE, opaque, ..Head::default() };
        write_frame(&mut asked, Serialization::Json, &head, &from(T, 0, 0), 0);
    }
    silent.write_all(&asked).await.unwrap();
    until("all are answered by the other broker", || holder.0.load(Ordering::SeqCst) == PULLS).await;
    // Of another client, on another port. When its answer is there, those that came before it are.
    assert_eq!(running.try_pull(&from(T, 0, 0)).await.unwrap().code, 0);
    assert!(budget.reply_bytes() > budget.reply_bytes_max(), "they count");
    let mut codes = Vec::new();
    for _ in 0..PULLS {
        let header = timeout(DEADLINE, next_header(&mut silent)).await.unwrap();
        let code = header["code"].as_i64().unwrap();
        assert_eq!(code != 0, header["remark"].as_str().is_some_and(|remark| remark.contains("requestBytesMax")));
        codes.push(code);
    }
    let refused = codes.iter().filter(|code| **code == ResponseCode::SystemBusy as i64).count();
    assert!((1..PULLS).contains(&refused) && codes.iter().filter(|code| **code == 0).count() == PULLS - refused);
    drop(silent);
    until("what was kept is given back", || budget.used_bytes() == 0).await;
    port.abort();
    running.stop().await;
}
