//! Where groups are in logical queues.

use tokio::sync::watch;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_goes_back_to_an_older_place_begins_there() {
    let running = start(Setup::default()).await;
    let moved = [item(0, "broker-a", 0, 0), item(1, "broker-a", 1, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, &moved)]), false).await.0, 0);
    make_group(&running, "CG", 1).await;
    assert_eq!((commit(&running, 0, 10_050).await, committed(&running, 0).await), (0, Ok(10_050)));
    assert_eq!((commit(&running, 0, 2).await, committed(&running, 0).await), (0, Ok(2)));
    let left = running.stop().await;
    let running = start_on(Setup::default(), left).await;
    assert_eq!(committed(&running, 0).await, Ok(2));
    running.stop().await;
}

/// Where a group is in a physical queue of a broker.
async fn committed_there(running: &Running, queue_id: i32) -> Result<i64, i32> {
    let fields = QueryConsumerOffset { consumer_group: "CG", topic: T, queue_id, set_zero_if_not_found: Some(false) };
    let physical = WhichQueue { lo: false, broker_name: "" };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &(fields, physical), "").await;
    if answer.code != 0 {
        return Err(answer.code);
    }
    Ok(OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset)
}

/// A broker that holds an older place. It notes what it is asked, and answers when it is let to.
struct Holder {
    asked: Mutex<Vec<(i32, Option<i64>)>>,
    may_answer: watch::Sender<bool>,
    code: ResponseCode,
}

impl Holder {
    fn answering(code: ResponseCode) -> Arc<Holder> {
        Arc::new(Holder { asked: Mutex::default(), may_answer: watch::Sender::new(true), code })
    }

    /// The offsets that were committed here.
    fn commits(&self) -> Vec<i64> {
        self.asked.lock().iter().filter_map(|(_, offset)| *offset).collect()
    }
}

impl Service for Holder {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let offset = request.header.fields.get("commitOffset").and_then(|offset| offset.parse().ok());
            self.asked.lock().push((request.header.code, offset));
            self.may_answer.subscribe().wait_for(|may| *may).await.unwrap();
            out.reply(request.reply_to(), self.code, None, &(), &[]);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

/// A broker `broker-a` that leads queue 0, whose first place `broker-h` holds: the holder.
async fn behind(holder: &Arc<Holder>) -> Running {
    let names = Arc::new(Names::default());
    names.0.lock().insert("broker-h".to_owned(), listen(holder));
    let running = start(Setup { name_servers: vec![listen(&names)], ..Setup::default() }).await;
    make_group(&running, "CG", 1).await;
    let places = [item(0, "broker-h", 0, 0), item(1, "broker-a", 0, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, &places)]), false).await, (0, None));
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_commit_is_not_undone_by_an_earlier_one_that_took_longer() {
    let holder = Holder::answering(ResponseCode::Success);
    let leader = behind(&holder).await;
    holder.may_answer.send_replace(false);
    let slow = commit(&leader, 0, 1);
    let quick = async {
        until("the first has come to the holder", || holder.commits() == [1]).await;
        let code = commit(&leader, 0, 10_005).await;
        holder.may_answer.send_replace(true);
        code
    };
    assert_eq!(tokio::join!(slow, quick), (0, 0));
    assert_eq!(committed(&leader, 0).await, Ok(10_005));
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_come_to_another_broker_in_their_order() {
    let holder = Holder::answering(ResponseCode::Success);
    let leader = behind(&holder).await;
    holder.may_answer.send_replace(false);
    let release = async {
        until("the first has come to the holder", || !holder.commits().is_empty()).await;
        holder.may_answer.send_replace(true);
    };
    let commit = async |offset| commit(&leader, 0, offset).await;
    let codes = tokio::join!(commit(1), commit(2), commit(3), commit(4), commit(5), release);
    assert_eq!(codes, (0, 0, 0, 0, 0, ()));
    let commits = holder.commits();
    assert!(commits.is_sorted() && commits.last() == Some(&5), "{commits:?}");
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_its_holder_refuses_commits_nothing() {
    let holder = Holder::answering(ResponseCode::SubscriptionGroupNotExist);
    let leader = behind(&holder).await;
    let sys_flag = bits::SUBSCRIPTION | bits::COMMIT_OFFSET;
    let pull = PullMessage { commit_offset: 10_000, sys_flag, ..from(T, 0, 0) };
    let refused = leader.pull(&PullMessage { consumer_group: "CG", ..pull }).await;
    assert_eq!(refused.code, 1, "{:?}", refused.remark);
    assert_eq!(committed_there(&leader, 0).await, Err(22));
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_goes_back_leaves_no_offset_in_younger_places_of_other_brokers() {
    let names = Arc::new(Names::default());
    let name_servers = vec![listen(&names)];
    let a = start(Setup { name_servers: name_servers.clone(), ..Setup::default() }).await;
    let b = start(Setup { name_servers, more: OF_B, ..Setup::default() }).await;
    names.0.lock().insert("broker-b".to_owned(), b.address.clone());
    let places = [item(0, "broker-a", 0, 0), item(1, "broker-b", 0, 10_000), item(2, "broker-a", 1, 20_000)];
    assert_eq!(map(&a, &detail("broker-a", 1, &[(0, &places)]), false).await, (0, None));
    assert_eq!(map(&b, &detail("broker-b", 1, &[(0, &places)]), false).await, (0, None));
    for running in [&a, &b] {
        make_group(running, "CG", 1).await;
    }
    assert_eq!((commit(&a, 0, 10_005).await, committed(&a, 0).await), (0, Ok(10_005)));
    assert_eq!(committed_there(&b, 0).await, Ok(5));
    assert_eq!((commit(&a, 0, 2).await, committed(&a, 0).await), (0, Ok(2)));
    assert_eq!(committed_there(&b, 0).await, Err(22));
    // What another broker forgets it has forgotten after a restart too; a topic that is not static keeps what it has.
    let b = start_on(Setup { more: OF_B, ..Setup::default() }, b.stop().await).await;
    assert_eq!(committed_there(&b, 0).await, Err(22));
    // A broker that is away is told of: the group is where it was, and its client hears that it did not go back for good.
    b.stop().await;
    assert_eq!(commit(&a, 0, 3).await, 1);
    a.stop().await;
}
