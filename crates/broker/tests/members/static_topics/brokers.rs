//! Logical queues over two brokers.

use super::*;

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
