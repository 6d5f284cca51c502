//! What peers say: its bytes, and what is refused.

use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, Membership, StoredMembership};

use super::*;

fn peers() -> BTreeMap<u64, String> {
    (1..=3).map(|id| (id, format!("127.0.0.1:{id}"))).collect()
}

fn member(id: u64) -> Member {
    Member { group: "group".to_owned(), id, members: member::text(&peers()) }
}

fn place(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 2), index)
}

fn append(term: u64, previous: Option<LogId<u64>>, indexes: &[u64]) -> AppendEntriesRequest<Types> {
    let entry = |index: &u64| Entry { log_id: place(term, *index), payload: EntryPayload::Normal("\"x\"".to_owned()) };
    AppendEntriesRequest {
        vote: Vote::new_committed(term, 2),
        prev_log_id: previous,
        entries: indexes.iter().map(entry).collect(),
        leader_commit: Some(place(term, 3)),
    }
}

fn snapshot(offset: u64, data: &[u8]) -> InstallSnapshotRequest<Types> {
    let nodes = BTreeMap::from([(1, BasicNode::new("a:1"))]);
    let membership = Membership::new(vec![std::collections::BTreeSet::from([1])], nodes);
    let last_membership = StoredMembership::new(Some(place(1, 0)), membership);
    let meta = Meta { last_log_id: Some(place(7, 30)), last_membership, snapshot_id: "7-30@2".to_owned() };
    InstallSnapshotRequest { vote: Vote::new_committed(7, 2), meta, offset, data: data.to_vec(), done: true }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Nodes of the release before read them: a change here is a new version.
#[test]
fn messages_have_these_bytes() {
    let envelope = r#"{"v":1,"body":{"from":{"group":"group","id":2,"members":"1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3"},"to":1,"message":"#;
    let said = |message: &str| format!("{envelope}{message}}}}}");
    let vote = VoteRequest::new(Vote::new(7, 2), Some(place(6, 20)));
    assert_eq!(
        text(member(2).write(1, &vote).unwrap()),
        said(concat!(
            r#"{"vote":{"leader_id":{"term":7,"node_id":2},"committed":false},"#,
            r#""last_log_id":{"leader_id":{"term":6,"node_id":2},"index":20}}"#
        ))
    );
    assert_eq!(
        text(member(2).write(1, &append(7, Some(place(6, 20)), &[21])).unwrap()),
        said(concat!(
            r#"{"vote":{"leader_id":{"term":7,"node_id":2},"committed":true},"#,
            r#""prev_log_id":{"leader_id":{"term":6,"node_id":2},"index":20},"#,
            r#""entries":[{"log_id":{"leader_id":{"term":7,"node_id":2},"index":21},"payload":{"Normal":"\"x\""}}],"#,
            r#""leader_commit":{"leader_id":{"term":7,"node_id":2},"index":3}}"#
        ))
    );
    assert_eq!(
        text(member(2).write(1, &snapshot(0, &[])).unwrap()),
        said(concat!(
            r#"{"vote":{"leader_id":{"term":7,"node_id":2},"committed":true},"#,
            r#""meta":{"last_log_id":{"leader_id":{"term":7,"node_id":2},"index":30},"#,
            r#""last_membership":{"log_id":{"leader_id":{"term":1,"node_id":2},"index":0},"#,
            r#""membership":{"configs":[[1]],"nodes":{"1":{"addr":"a:1"}}}},"snapshot_id":"7-30@2"},"#,
            r#""offset":0,"data":[],"done":true}"#
        ))
    );
}

#[test]
fn fields_that_are_not_known_are_skipped_and_a_later_version_is_refused() {
    let written = text(member(2).write(1, &VoteRequest::new(Vote::new(7, 2), None)).unwrap());
    let more =
        written.replacen("{\"v\":1,", "{\"new\":[1],\"v\":1,", 1).replacen("\"from\":{", "\"from\":{\"new\":2,", 1);
    assert_ne!(more, written);
    let (from, vote, _): (_, VoteRequest<u64>, _) = member(1).read(more.as_bytes()).unwrap();
    assert_eq!((from, vote.vote), (2, Vote::new(7, 2)));
    let later = written.replacen("\"v\":1", "\"v\":2", 1);
    let error = member(1).read::<VoteRequest<u64>>(later.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("format version 2, and this release reads versions up to 1"), "{error}");
}

#[tokio::test]
async fn messages_that_are_not_for_this_node_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(ConsensusOptions::new("group", 1, peers(), dir.path())).await;
    let vote = VoteRequest::new(Vote::new(7, 2), None);
    let from = |member: Member, to| member.write(to, &vote).unwrap();
    let other_group = Member { group: "theirs".to_owned(), ..member(2) };
    let other_peers = Member { members: "2=b:1".to_owned(), ..member(2) };
    let append = |message: &AppendEntriesRequest<Types>| member(2).write(1, message).unwrap();
    let part =
        |message: &InstallSnapshotRequest<Types>, data: &[u8]| format::join(member(2).write(1, message).unwrap(), data);
    for (code, body, expected) in [
        (
            request::RAFT_VOTE,
            from(other_group, 1),
            "of the group group, and the message of node 2 is of the group theirs",
        ),
        (request::RAFT_VOTE, from(member(2), 3), "this controller is node 1, and node 2 takes it for node 3"),
        (request::RAFT_VOTE, from(member(1), 1), "this controller is node 1, and node 1 takes it for node 1"),
        (request::RAFT_VOTE, from(other_peers, 1), "127.0.0.1:3, and node 2 has 2=b:1"),
        (request::RAFT_VOTE, from(member(9), 1), "its sender is none of the peers"),
        (request::RAFT_VOTE, from(member(3), 1), "its vote is for another node"),
        (request::RAFT_VOTE, b"\0\xff".to_vec(), "cannot be read"),
        (request::RAFT_VOTE, Vec::new(), "cannot be read"),
        (request::RAFT_VOTE, vec![b'['; 1 << 20], "cannot be read"),
        (request::RAFT_VOTE, vec![b' '; member::MESSAGE_BYTES_MAX + 1], "8388608 at most"),
        (request::RAFT_APPEND_ENTRIES, from(member(2), 1), "cannot be read"),
        (request::RAFT_APPEND_ENTRIES, append(&follow(TERM_MAX + 1, &[])), "its term is above 2^48"),
        (request::RAFT_APPEND_ENTRIES, append(&follow(7, &[1, 3])), "do not follow each other"),
        (request::RAFT_INSTALL_SNAPSHOT, part(&snapshot(SNAPSHOT_BYTES_MAX, &[]), b"x"), "more than 64 MiB"),
        (request::RAFT_INSTALL_SNAPSHOT, part(&snapshot(u64::MAX, &[]), b"x"), "more than 64 MiB"),
        (request::PULL_MESSAGE, from(member(2), 1), "request 11 is none of controllers to each other"),
    ] {
        let error = node.handle(code, &body).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // And it goes on.
    let taken = node.handle(request::RAFT_VOTE, &from(member(2), 1)).await;
    assert!(taken.is_ok());
    node.stop().await;
    let error = node.handle(request::RAFT_VOTE, &from(member(2), 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "this controller is stopping");
}

fn follow(term: u64, indexes: &[u64]) -> AppendEntriesRequest<Types> {
    append(term, Some(place(term, 0)), indexes)
}

#[tokio::test]
async fn every_cut_and_changed_byte_of_a_message_is_an_answer_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(ConsensusOptions::new("group", 1, peers(), dir.path())).await;
    let whole = [
        (request::RAFT_VOTE, member(2).write(1, &VoteRequest::new(Vote::new(7, 2), Some(place(6, 2)))).unwrap()),
        (request::RAFT_INSTALL_SNAPSHOT, member(2).write(1, &snapshot(5, &[])).unwrap()),
    ];
    for (code, bytes) in whole {
        for at in 0..bytes.len() {
            assert!(node.handle(code, &bytes[..at]).await.is_err());
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let _ = node.handle(code, &changed).await;
        }
    }
    assert!(node.raft.metrics().borrow().running_state.is_ok());
    node.stop().await;
}
