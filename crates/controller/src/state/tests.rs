use super::*;

/// A set `a` with the brokers 1 and 2, whose master is 1, in epoch 1.
fn started() -> State {
    let mut state = State::default();
    for (broker_id, code) in [(1, "h:1;7"), (2, "h:2;8")] {
        state.apply(&apply_id(broker_id, code)).unwrap();
    }
    state.apply(&elect((0, 0), 1, Some(1))).unwrap();
    state
}

fn apply_id(broker_id: i64, check_code: &str) -> Command {
    Command::ApplyId {
        cluster: "c".to_owned(),
        broker_name: "a".to_owned(),
        broker_id,
        check_code: check_code.to_owned(),
    }
}

/// An election in the set whose epochs are those.
fn elect((after, set_epoch): (i32, i32), epoch: i32, master: Option<i64>) -> Command {
    Command::Elect { broker_name: "a".to_owned(), after, set_epoch, epoch, master }
}

fn alter(master_epoch: i32, set_epoch: i32, replicas: &[i64]) -> Command {
    Command::AlterSyncStateSet {
        broker_name: "a".to_owned(),
        master_id: 1,
        master_epoch,
        set_epoch,
        replicas: replicas.iter().copied().collect(),
        dead: [].into(),
    }
}

fn code(refused: Result<Set, Refusal>) -> i32 {
    refused.unwrap_err().code
}

#[test]
fn an_id_is_taken_by_one_broker() {
    let mut state = State::default();
    assert_eq!(code(state.apply(&apply_id(2, "h:1;7"))), 2014, "a set begins with 1");
    state.apply(&apply_id(1, "h:1;7")).unwrap();
    state.apply(&apply_id(1, "h:1;7")).unwrap();
    assert_eq!(code(state.apply(&apply_id(1, "h:2;7"))), 2014);
    let set = state.set("a").unwrap();
    assert_eq!((set.next_id, set.address(1), set.master_epoch), (2, Some("h:1"), 0));
    let long = "x".repeat(513);
    let refused = state.apply(&apply_id(2, &long)).unwrap_err();
    assert!(refused.remark.contains("registerCheckCode") && refused.remark.contains("512"), "{refused}");
}

#[test]
fn a_set_has_its_limit_of_brokers() {
    let mut state = State::default();
    state.apply(&apply_id(1, "h:1;7")).unwrap();
    assert_eq!(code(state.apply(&apply_id(67, "h:1;7"))), 2014, "far above the next one");
    assert_eq!(code(state.apply(&apply_id(i64::MAX, "h:1;7"))), 2014);
    for id in 2..=64 {
        state.apply(&apply_id(id, "h:1;7")).unwrap();
    }
    assert_eq!(code(state.apply(&apply_id(65, "h:1;7"))), 2014);
}

#[test]
fn an_election_leaves_the_master_alone_in_sync_and_holds_for_its_epoch_only() {
    let mut state = started();
    state.apply(&alter(1, 1, &[1, 2])).unwrap();
    assert_eq!(code(state.apply(&elect((0, 2), 2, Some(2)))), 2012, "another one was faster");
    assert_eq!(code(state.apply(&elect((1, 1), 2, Some(2)))), 2012, "others are in sync meanwhile");
    assert_eq!(code(state.apply(&elect((1, 2), 1, Some(2)))), 2012, "an epoch is above the one before");
    assert_eq!(code(state.apply(&elect((1, 2), 2, Some(3)))), 2012, "nobody of the set");
    // Nobody: those in sync stay it.
    state.apply(&elect((1, 2), 2, None)).unwrap();
    let set = state.set("a").unwrap();
    assert_eq!((set.master, set.master_epoch, set.set_epoch, set.in_sync.len()), (None, 2, 2, 2));
    let set = state.apply(&elect((2, 2), 9, Some(2))).unwrap();
    assert_eq!((set.master, set.master_epoch, set.set_epoch), (Some(2), 9, 3));
    assert_eq!(set.in_sync, [2].into());
}

#[test]
fn who_is_in_sync_is_for_the_master_of_the_epoch_to_say() {
    let mut state = started();
    let refused = |command: &Command| code(state.clone().apply(command));
    assert_eq!(refused(&alter(1, 1, &[1])), 2013, "the same");
    assert_eq!(refused(&alter(2, 1, &[1, 2])), 2000, "another epoch");
    assert_eq!(refused(&alter(1, 2, &[1, 2])), 2001, "another epoch of the set");
    assert_eq!(refused(&alter(1, 1, &[1, 3])), 2003, "no broker of the set");
    assert_eq!(refused(&alter(1, 1, &[2])), 2013, "without the master");
    let mut command = alter(1, 1, &[1, 2]);
    let Command::AlterSyncStateSet { dead, .. } = &mut command else { unreachable!() };
    dead.insert(2);
    assert_eq!(refused(&command), 2006);
    let Command::AlterSyncStateSet { master_id, .. } = &mut command else { unreachable!() };
    *master_id = 2;
    let said = state.clone().apply(&command).unwrap_err();
    assert_eq!(said.remark, "Rejecting alter syncStateSet request because the current leader is:{1}, not {2}");
    state.apply(&alter(1, 1, &[1, 2])).unwrap();
    assert_eq!(state.set("a").unwrap().set_epoch, 2);
}

#[test]
fn a_master_that_is_forgotten_leaves_its_epoch_behind() {
    let mut state = started();
    let clean = |ids: Option<&[i64]>| Command::Clean {
        broker_name: "a".to_owned(),
        ids: ids.map(|ids| ids.iter().copied().collect()),
    };
    let refused = state.clone().apply(&clean(Some(&[1]))).unwrap_err();
    assert!(refused.code == 2009 && refused.remark.contains("no broker is in sync"), "{refused}");
    state.apply(&alter(1, 1, &[1, 2])).unwrap();
    state.apply(&clean(Some(&[1]))).unwrap();
    let set = state.set("a").unwrap();
    assert_eq!((set.master, set.master_epoch, set.members.len()), (None, 2, 1));
    assert_eq!(set.in_sync, [2].into());
    // Its id is not given to another one.
    assert_eq!(set.next_id, 3);
    assert_eq!(set.set_epoch, 3, "a master that is still there has to learn of it");
    state.apply(&clean(Some(&[2]))).unwrap();
    assert!(state.set("a").is_none(), "nobody is left");
    assert_eq!(code(state.apply(&clean(None))), 2009);
    // A broker of the set may still run: no epoch comes again.
    let again = state.apply(&apply_id(1, "h:1;7")).unwrap();
    assert!(again.is_new() && again.master_epoch == 2 && again.next_id == 2);
    state.apply(&elect((2, 0), 3, Some(1))).unwrap();
}

#[test]
fn a_state_is_read_as_it_was_written() {
    let mut state = started();
    state.apply(&Command::Configure { changes: [("k".to_owned(), "v".to_owned())].into() }).unwrap();
    state
        .apply(&Command::Move { broker_name: "a".to_owned(), broker_id: 2, address: "elsewhere:3".to_owned() })
        .unwrap();
    let bytes = state.snapshot();
    let again = State::restore(&bytes).unwrap();
    assert_eq!(again, state);
    assert_eq!((again.setting("k"), again.set("a").unwrap().address(2)), (Some("v"), Some("elsewhere:3")));
    // A later program may say more.
    let text = String::from_utf8(bytes).unwrap();
    let more = text.replace("\"nextId\"", "\"unheardOf\":{\"x\":1},\"nextId\"");
    assert_eq!(State::restore(more.as_bytes()).unwrap(), state);
    let other = text.replace("\"version\":1", "\"version\":2");
    let said = State::restore(other.as_bytes()).unwrap_err().to_string();
    assert!(said.contains("form 2"), "{said}");
    State::restore(b"[1").unwrap_err();
}
