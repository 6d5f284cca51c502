//! What the broker does while its journal cannot be written: messages go on, changes are refused, nothing hangs.

use std::sync::Arc;

use bytes::Bytes;
use net::{Listener, ListenerOptions};
use protocol::code::{ResponseCode, request};
use protocol::request::{
    CloneGroupOffset, CreateTopic, DeleteTopic, OffsetReply, PopMessage, QueryConsumerOffset, ResetOffset,
    UpdateConsumerOffset,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::popping;
use crate::support::*;

async fn make_group(running: &Running) {
    let group = r#"{"groupName":"CG"}"#;
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group).await.code, 0);
}

async fn commit(running: &Running, commit_offset: i64) {
    let fields = UpdateConsumerOffset { consumer_group: "CG", topic: "Orders", queue_id: 0, commit_offset };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code, 0);
}

async fn committed(running: &Running) -> i64 {
    let fields =
        QueryConsumerOffset { consumer_group: "CG", topic: "Orders", queue_id: 0, set_zero_if_not_found: Some(false) };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    assert_eq!(answer.code, 0);
    OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset
}

fn create(topic: &str) -> CreateTopic<'_> {
    CreateTopic {
        topic,
        default_topic: None,
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_go_on_and_changes_are_refused_while_the_journal_cannot_be_written() {
    let setup = Setup { device: Device::to_be_filled(), ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    running.put("Orders", 0, "", "one").await;
    make_group(&running).await;
    commit(&running, 0).await;
    assert_eq!(committed(&running).await, 0);

    device.fill_journal(true);
    commit(&running, 1).await;
    assert_eq!(committed(&running).await, 1, "an offset that is not written down yet is told all the same");
    running.put("Orders", 0, "", "two").await;
    assert_eq!(running.all("Orders", 0).await.len(), 2);

    let refused = running.call(request::UPDATE_AND_CREATE_TOPIC, &create("New"), "").await;
    assert_eq!(refused.code, 2);
    assert!(refused.remark.unwrap().contains("journal"));
    // The topic is there, but would not be after a crash.
    assert_eq!(running.send(&to("New", 0, ""), "x").await.code, 2);

    device.fill_journal(false);
    assert_eq!(running.call(request::UPDATE_AND_CREATE_TOPIC, &create("Newer"), "").await.code, 0);
    running.put("New", 0, "", "y").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_topic_stay_as_long_as_its_deletion_is_not_written_down() {
    let setup = Setup { device: Device::to_be_filled(), ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    running.put("Orders", 0, "", "one").await;
    let files = running.dir().join("consumequeue/Orders/0");
    until("the queue has its file", || files.is_dir()).await;
    device.fill_journal(true);
    let asked = DeleteTopic { topic: "Orders" };
    assert_eq!(running.call(request::DELETE_TOPIC_IN_BROKER, &asked, "").await.code, 2);
    assert!(files.is_dir());
    device.fill_journal(false);
    until("the files are gone", || !files.exists()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_requests_of_a_connection_are_answered_while_one_waits_for_the_journal() {
    let setup = Setup { device: Device::to_be_filled(), ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    running.put("Orders", 0, "", "one").await;
    device.fill_journal(true);
    {
        let (fields, pull) = (create("New"), from("Orders", 0, 0));
        let change = running.call(request::UPDATE_AND_CREATE_TOPIC, &fields, "");
        tokio::pin!(change);
        // The one that is polled first is sent first.
        tokio::select! {
            biased;
            _ = &mut change => panic!("a change was answered before a pull that needs no journal"),
            found = running.pull(&pull) => assert_eq!(found.messages.len(), 1),
        }
        device.fill_journal(false);
        assert_eq!(change.await.code, 0, "a change that is written down in time is answered as ever");
    }
    running.stop().await;
}

async fn leases(running: &Running) -> usize {
    let response = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    body["table"]["popLeases"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_pops_whose_answers_wait_for_the_journal_only_so_many_are_carried_out_as_may_be_kept_back() {
    const POPS: usize = 40;
    const IN_POP: usize = 32;
    let setup = Setup { device: Device::to_be_filled(), ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    // Of answers of some 35 KB these are eight at most.
    let options = ListenerOptions { tls: None, out_bytes_max: 256 << 10, ..ListenerOptions::default() };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options, Arc::clone(&running.broker)).unwrap();
    let address = listener.local_addr().to_string();
    let port = tokio::spawn(listener.run(std::future::pending()));
    // Neighbours in the queue are not neighbours in the log, so that answers are copied.
    for number in 0..=POPS * IN_POP {
        running.put("Orders", 0, "", &format!("{number:<1000}")).await;
        running.put("Orders", 1, "", "between").await;
    }
    let order = PopMessage { queue_id: 0, ..popping::from("Orders", 600_000) };
    let first = popping::pop(&running, &PopMessage { max_msg_nums: 1, ..order.clone() }).await;
    assert_eq!((first.code, leases(&running).await), (0, 1));

    device.fill_journal(true);
    let mut answers = JoinSet::new();
    for _ in 0..POPS {
        let (client, address, order) = (running.client.clone(), address.clone(), order.clone());
        answers.spawn(async move {
            client.call(&address, request::POP_MESSAGE, &order, Bytes::new(), DEADLINE).await.unwrap().code
        });
    }
    // What is refused first makes room for as many again, which have two seconds more.
    assert_eq!(answers.join_next().await.unwrap().unwrap(), ResponseCode::SystemBusy as i32);
    let carried_out = leases(&running).await;
    assert!(carried_out < POPS * 3 / 4, "{carried_out} pops of {POPS} wait for the journal");
    device.fill_journal(false);
    let (mut found, mut refused) = (0, 1);
    while let Some(answer) = answers.join_next().await {
        match answer.unwrap() {
            0 => found += 1,
            code => {
                assert_eq!(code, ResponseCode::SystemBusy as i32);
                refused += 1;
            }
        }
    }
    assert_eq!(found + refused, POPS, "all are answered");
    assert!(found > 0, "those that come when the journal can be written have their messages");
    port.abort();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_stops_though_its_journal_cannot_be_written() {
    let setup = Setup { device: Device::to_be_filled(), ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    running.put("Orders", 0, "", "one").await;
    make_group(&running).await;
    device.fill_journal(true);
    commit(&running, 1).await;
    let stopped = timeout(DEADLINE, running.broker.stop()).await.unwrap();
    let said = stopped.unwrap_err().to_string();
    assert!(said.contains("config") && said.contains("the journal"), "another broker must not go on with it: {said}");
    device.fill_journal(false);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_and_a_copy_of_offsets_are_not_answered_before_they_are_written_down() {
    let setup = Setup { device: Device::to_be_filled(), ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    running.put("Orders", 0, "", "one").await;
    make_group(&running).await;
    commit(&running, 1).await;
    assert_eq!(committed(&running).await, 1);

    device.fill_journal(true);
    let reset =
        ResetOffset { group: "CG", topic: "Orders", queue_id: 0, offset: Some(0), timestamp: -1, is_force: true };
    let copy = CloneGroupOffset { src_group: "CG", dest_group: "Copy", topic: Some("Orders"), offline: true };
    assert_eq!(running.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &reset, "").await.code, 2);
    let to_the_end = ResetOffset { offset: None, ..reset };
    assert_eq!(running.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &to_the_end, "").await.code, 2);
    assert_eq!(running.call(request::CLONE_GROUP_OFFSET, &copy, "").await.code, 2);
    device.fill_journal(false);
    assert_eq!(running.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &reset, "").await.code, 0);
    let again = start_on(Setup::default(), running.image()).await;
    assert_eq!(committed(&again).await, 0);
}
