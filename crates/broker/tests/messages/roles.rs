//! A broker that is no master refuses what only a master does, as a slave of RocketMQ 5.5.0 does where that refuses it.

use protocol::code::request;

use crate::support::*;

const SLAVE: &[(&str, &str)] =
    &[("brokerRole", "SLAVE"), ("brokerId", "1"), ("slaveReadEnable", "true"), ("forwardToMaster", "false")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_refuses_what_only_a_master_does_and_serves_the_rest() {
    let running = start(Setup { more: SLAVE, ..Setup::default() }).await;
    let busy = "[REJECTREQUEST]system busy, start flow control for a while";
    let modify = "Can't modify topic or subscription group from slave broker, please execute it from master broker.";
    let not_available = "service not available now. It may be caused by one of the following reasons: the broker's disk is full, \
                         messages are put to the slave, message store has been shut down, etc. This broker is no master";
    let rows = [
        (request::SEND_MESSAGE_V2, 2, busy),
        (request::SEND_BATCH_MESSAGE, 2, busy),
        (request::SEND_TOGETHER, 2, busy),
        (request::CONSUMER_SEND_MSG_BACK, 2, busy),
        (request::UPDATE_AND_CREATE_TOPIC, 1, modify),
        (request::DELETE_SUBSCRIPTIONGROUP, 1, modify),
        (request::INVOKE_BROKER_TO_RESET_OFFSET, 1, modify),
        (request::END_TRANSACTION, 11, "message store is slave mode, so end transaction is forbidden"),
        (request::RECALL_MESSAGE, 11, "recall failed, broker service not available"),
        (request::SEND_REPLY_MESSAGE_V2, 14, not_available),
        (request::POP_MESSAGE, 14, not_available),
        (request::CLEAN_UNUSED_TOPIC, 14, not_available),
    ];
    for (code, answer, remark) in rows {
        let refused = running.call(code, &(), "").await;
        assert_eq!((code, refused.code, refused.remark.as_deref()), (code, answer, Some(remark)));
    }
    assert_eq!(running.pull(&from("Orders", 0, 0)).await.code, 17, "there is no such topic, and none is made");
    running.stop().await;
}
