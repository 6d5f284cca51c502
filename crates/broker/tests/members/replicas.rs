//! What operators hear of replicas from a master that has none.

use protocol::body::HaRuntimeInfo;
use protocol::code::request;
use protocol::fastjson;
use protocol::request::ResetMasterFlushOffset;

use crate::make_topic;
use crate::support::{Setup, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_master_without_slaves_says_so_and_where_its_log_ends() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    running.put("T", 0, "", "x").await;
    let answer = running.call(request::GET_BROKER_HA_STATUS, &(), "").await;
    let info: HaRuntimeInfo = fastjson::from_slice(&answer.body).unwrap();
    assert!(info.master && info.ha_connection_info.is_empty());
    assert_eq!((answer.code, info.in_sync_slave_nums), (0, 0));
    assert_eq!(info.master_commit_log_max_offset, running.store().end().0 as i64);

    let fields = ResetMasterFlushOffset { master_flush_offset: 7 };
    assert_eq!(running.call(request::RESET_MASTER_FLUSH_OFFSET, &fields, "").await.code, 0);
    assert_ne!(running.call(request::RESET_MASTER_FLUSH_OFFSET, &(), "").await.code, 0, "the offset is missing");
    running.stop().await;
}
