//! What the null server refuses, as a client hears it.

use client::{Admin, Client, ClientConfig, ClientError, MessageQueue, PullStatus};
use protocol::compression::{Compression, compress};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::workload::MESSAGE_BYTES_MAX;

const PATIENCE: Duration = Duration::from_secs(60);

/// A null server with a topic, a group, and a client of it.
struct Stage {
    at: String,
    client: Client,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Served>,
}

impl Stage {
    async fn with(room: Room) -> Stage {
        let sink = Sink::with_room("127.0.0.1:0".parse().unwrap(), room).unwrap();
        let at = sink.address().to_string();
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(sink.run(async move { drop(ended.await) }));
        let client = Client::start(ClientConfig::new(&at));
        let stage = Stage { at, client, end, serving };
        let topic = CreateTopic {
            topic: "t",
            default_topic: None,
            read_queue_nums: 1,
            write_queue_nums: 1,
            perm: perm::READ | perm::WRITE,
            topic_filter_type: "SINGLE_TAG",
            topic_sys_flag: None,
            order: false,
            attributes: None,
            force: false,
        };
        stage.admin().tell(&stage.at, request::UPDATE_AND_CREATE_TOPIC, &topic).await.unwrap();
        stage.create_group("g").await.unwrap();
        stage
    }

    fn admin(&self) -> Admin {
        self.client.admin().within(PATIENCE)
    }

    async fn create_group(&self, name: &str) -> Result<(), ClientError> {
        let group = SubscriptionGroupConfig { group_name: name.to_owned(), ..SubscriptionGroupConfig::default() };
        let code = request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP;
        self.admin().tell_json(&self.at, code, &(), &group).await.map(drop)
    }

    async fn send(&self, sys_flag: i32, body: Vec<u8>) -> Result<(), ClientError> {
        let fields = SendMessage { topic: "t", sys_flag, ..SendMessage::default() };
        self.admin().call(&self.at, request::SEND_MESSAGE_V2, &fields, body.into()).await.map(drop)
    }

    /// Pulls from the beginning, and waits if there is nothing.
    fn pull(&self) -> JoinHandle<Result<client::PulledRecords, ClientError>> {
        let consumer = self.client.pull_consumer("g");
        let queue = MessageQueue { topic: "t".to_owned(), broker_name: BROKER.to_owned(), queue_id: 0 };
        tokio::spawn(async move { consumer.pull_records(&queue, 0, 32, PATIENCE).await })
    }

    async fn end(self) {
        self.client.stop().await;
        self.end.send(()).unwrap();
        self.serving.await.unwrap();
    }
}

async fn until_held(room: &Room, held: usize) {
    let deadline = Instant::now() + PATIENCE;
    while room.held() != held {
        assert!(Instant::now() < deadline, "{} are held", room.held());
        tokio::task::yield_now().await;
    }
}

fn is(error: &ClientError, code: ResponseCode) -> bool {
    error.code() == Some(code.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_finds_no_room_to_wait_is_refused_and_those_that_wait_are_answered() {
    let room = Room::of(2, 2);
    let stage = Stage::with(room.clone()).await;
    let waiting = [stage.pull(), stage.pull()];
    until_held(&room, 2).await;
    let refused = stage.pull().await.unwrap().unwrap_err();
    assert!(is(&refused, ResponseCode::SystemBusy), "{refused}");
    assert!(refused.to_string().contains("2 pulls of this connection are held"), "{refused}");
    stage.send(0, vec![7; 100]).await.unwrap();
    for pull in waiting {
        assert_eq!(pull.await.unwrap().unwrap().status, PullStatus::Found);
    }
    // One more, now that there is something, needs no room.
    assert_eq!(stage.pull().await.unwrap().unwrap().status, PullStatus::Found);
    until_held(&room, 0).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_body_that_grows_beyond_a_message_is_refused_and_the_largest_comes_back() {
    let stage = Stage::with(Room::default()).await;
    let zeros = |bytes: usize| compress(Compression::Zstd, &vec![0; bytes], 1).unwrap();
    let flag = Compression::Zstd.bits();
    let refused = stage.send(flag, zeros(MESSAGE_BYTES_MAX + 1)).await.unwrap_err();
    assert!(is(&refused, ResponseCode::MessageIllegal), "{refused}");
    assert!(refused.to_string().contains("more than 15728640 bytes"), "{refused}");
    stage.send(flag, zeros(MESSAGE_BYTES_MAX)).await.unwrap();
    let pulled = stage.pull().await.unwrap().unwrap();
    assert!(pulled.records.len() > MESSAGE_BYTES_MAX, "{}", pulled.records.len());
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_name_no_broker_would_take_is_refused() {
    let stage = Stage::with(Room::default()).await;
    let refused = stage.create_group("a b").await.unwrap_err();
    assert!(is(&refused, ResponseCode::InvalidParameter), "{refused}");
    stage.end().await;
}
