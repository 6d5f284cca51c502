use super::*;
use proptest::prelude::*;

fn offsets() -> Offsets {
    Offsets::new(Clock::manual(TimeMs(7)).0)
}

fn taken(offsets: &Offsets) -> BTreeMap<(String, String, i32), Option<i64>> {
    let mut changes = BTreeMap::new();
    offsets.take_changes(&mut |change, _| {
        changes.insert((change.topic.to_owned(), change.group.to_owned(), change.queue_id), change.offset);
        0
    });
    changes
}

#[test]
fn a_commit_may_go_back_but_not_below_zero() {
    let offsets = offsets();
    offsets.commit("G", "T", 3, 9);
    offsets.commit("G", "T", 3, 4);
    offsets.commit("G", "T", 3, -1);
    assert_eq!(offsets.committed("G", "T", 3), Some(4));
    assert_eq!(offsets.committed("G", "T", 2), None);
    assert_eq!(offsets.committed("G", "T", i32::MAX), None);
    assert_eq!(offsets.committed("H", "T", 3), None);
}

#[test]
fn only_news_travels_and_travels_once() {
    let offsets = offsets();
    offsets.commit("G", "T", 0, 5);
    offsets.commit("G", "T", 1, 6);
    assert_eq!(taken(&offsets).len(), 2);
    offsets.commit("G", "T", 1, 6);
    assert!(taken(&offsets).is_empty());
    offsets.commit("G", "T", 1, 7);
    assert_eq!(taken(&offsets).into_values().collect::<Vec<_>>(), [Some(7)]);
}

#[test]
fn a_reset_is_told_to_one_pull_and_nobody_undoes_it_before() {
    let offsets = offsets();
    offsets.commit("G", "T", 0, 50);
    offsets.pulled("G", "T", 0, 60);
    offsets.reset("G", "T", 0, 10);
    assert!(offsets.is_reset_pending("G", "T", 0));
    offsets.commit("G", "T", 0, 55);
    assert_eq!(offsets.committed("G", "T", 0), Some(10));
    assert_eq!(offsets.last_pulled("G", "T", 0), None);
    assert_eq!(offsets.take_reset("G", "T", 0), Some(10));
    assert_eq!(offsets.take_reset("G", "T", 0), None);
    offsets.commit("G", "T", 0, 11);
    assert_eq!(offsets.committed("G", "T", 0), Some(11));
}

#[test]
fn a_pull_alone_does_not_make_a_group_appear() {
    let offsets = offsets();
    offsets.pulled("G", "T", 0, 60);
    assert!(offsets.table().is_empty());
    assert!(offsets.groups_of("T").is_empty());
    assert_eq!(offsets.committed("G", "T", 0), None);
}

#[test]
fn what_is_forgotten_is_deleted_from_the_journal_and_may_begin_anew() {
    let offsets = offsets();
    offsets.commit("G", "T", 0, 1);
    offsets.commit("G", "U", 0, 2);
    offsets.commit("H", "T", 0, 3);
    taken(&offsets);
    offsets.forget_group("G");
    assert_eq!(taken(&offsets).into_values().collect::<Vec<_>>(), [None, None]);
    assert_eq!(offsets.committed("G", "T", 0), None);
    offsets.commit("G", "T", 0, 8);
    assert_eq!(taken(&offsets).into_values().collect::<Vec<_>>(), [Some(8)]);
    assert_eq!(offsets.groups_of("T").iter().map(|name| &**name).collect::<Vec<_>>(), ["G", "H"]);
}

#[test]
fn forgetting_and_committing_in_one_bundle_ends_with_the_commit() {
    let offsets = offsets();
    offsets.commit("G", "T", 0, 1);
    taken(&offsets);
    offsets.forget_topic("T");
    offsets.commit("G", "T", 0, 2);
    assert_eq!(taken(&offsets).into_values().collect::<Vec<_>>(), [Some(2)]);
}

#[test]
fn what_a_pop_carries_to_the_journal_is_not_deleted_by_what_was_forgotten_before_it() {
    let offsets = offsets();
    offsets.commit("G", "T", 0, 1);
    offsets.commit("G", "T", 1, 7);
    taken(&offsets);
    offsets.forget_group("G");
    let mut journal = BTreeMap::new();
    offsets.carry().commit(&offsets.progress("G", "T"), 0, 5, |change| {
        journal.insert((change.topic.to_owned(), change.group.to_owned(), change.queue_id), change.offset);
        0
    });
    journal.extend(taken(&offsets));
    assert_eq!(journal.into_values().collect::<Vec<_>>(), [Some(5), None]);
}

#[test]
fn what_is_noted_of_a_life_that_is_over_reaches_neither_the_next_one_nor_the_journal() {
    let offsets = offsets();
    offsets.commit("G", "T", 0, 1);
    taken(&offsets);
    let old = offsets.progress("G", "T");
    offsets.forget_topic("T");
    offsets.commit("G", "T", 0, 5);
    let mut journal = BTreeMap::new();
    for (offset, queue_id) in [(2, 0), (3, 1)] {
        offsets.commit_in(&old, queue_id, offset);
        assert_eq!(old.committed(queue_id), Some(offset));
        offsets.carry().commit(&old, queue_id, offset + 10, |change| {
            journal.insert((change.topic.to_owned(), change.group.to_owned(), change.queue_id), change.offset);
            0
        });
        journal.extend(taken(&offsets));
    }
    assert_eq!(offsets.of("G", "T"), BTreeMap::from([(0, 5)]));
    assert_eq!(journal.into_values().collect::<Vec<_>>(), [Some(5), None]);
}

#[test]
fn a_pull_of_a_light_queue_leaves_nothing_where_the_group_has_committed_nothing() {
    let offsets = offsets();
    offsets.pulled("G", "%LMQ%a", 0, 60);
    assert_eq!((offsets.table.len(), offsets.last_pulled("G", "%LMQ%a", 0)), (0, None));
    offsets.commit("G", "%LMQ%a", 0, 50);
    offsets.pulled("G", "%LMQ%a", 0, 60);
    assert_eq!((offsets.table.len(), offsets.last_pulled("G", "%LMQ%a", 0)), (1, Some(60)));
}

#[test]
fn the_version_advances_with_many_commits() {
    let offsets = offsets();
    for offset in 0..COMMITS_PER_VERSION as i64 {
        offsets.commit("G", "T", 0, offset);
        taken(&offsets);
    }
    assert_eq!(offsets.version(), DataVersion { counter: 1, state_version: 0, timestamp: 7 });
}

#[derive(Clone, Debug)]
enum Step {
    Commit(u8, u8, i32, i64),
    Carry(u8, u8, i32, i64),
    /// By what was taken in hand at the first such step.
    CommitInHand(u8, u8, i32, i64),
    CarryInHand(u8, u8, i32, i64),
    ForgetGroup(u8),
    ForgetTopic(u8),
    Replace(Vec<(u8, u8, i32, i64)>),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..3u8, 0..3u8, 0..4i32, 0..100i64);
    prop_oneof![
        6 => place().prop_map(|(g, t, q, o)| Step::Commit(g, t, q, o)),
        2 => place().prop_map(|(g, t, q, o)| Step::Carry(g, t, q, o)),
        2 => place().prop_map(|(g, t, q, o)| Step::CommitInHand(g, t, q, o)),
        2 => place().prop_map(|(g, t, q, o)| Step::CarryInHand(g, t, q, o)),
        1 => (0..3u8).prop_map(Step::ForgetGroup),
        1 => (0..3u8).prop_map(Step::ForgetTopic),
        1 => proptest::collection::vec(place(), 0..6).prop_map(Step::Replace),
        3 => Just(Step::Take),
    ]
}

fn table_of(places: &[(u8, u8, i32, i64)]) -> OffsetTable {
    let mut table = OffsetTable::new();
    for (group, topic, queue_id, offset) in places {
        table.entry(format!("t{topic}@g{group}")).or_default().insert(*queue_id, *offset);
    }
    table
}

fn active(offsets: &Offsets, since: i64, connected: bool) -> usize {
    let mut count = 0;
    offsets.for_each_active(TimeMs(since), &|_, topic| connected && topic == "T", &mut |_| count += 1);
    count
}

#[test]
fn a_start_makes_no_group_active_again_and_forgets_none_that_is() {
    let offsets = offsets();
    offsets.restore("T", "Dead", 0, 5, TimeMs(3));
    offsets.restore("T", "Away", 0, 5, TimeMs(6));
    assert_eq!(active(&offsets, 5, false), 1);
    offsets.commit("Dead", "T", 0, 6);
    assert_eq!(active(&offsets, 5, false), 2);
    // What a group only asked for is no commit.
    offsets.pulled("Reader", "T", 0, 5);
    offsets.restore("T", "Reader", 0, 5, TimeMs(3));
    assert_eq!(active(&offsets, 5, false), 2);
}

#[test]
fn a_connected_group_is_active_in_the_topics_that_it_reads() {
    let offsets = offsets();
    offsets.restore("T", "G", 0, 5, TimeMs(3));
    offsets.restore("Left", "G", 0, 5, TimeMs(3));
    assert_eq!(active(&offsets, 5, true), 1);
}

proptest! {
    /// Whatever happens, the journal holds what memory holds once the changes are taken.
    #[test]
    fn the_journal_follows(steps in proptest::collection::vec(step(), 0..60)) {
        let offsets = offsets();
        let mut journal: BTreeMap<(String, i32), i64> = BTreeMap::new();
        let note = |journal: &mut BTreeMap<(String, i32), i64>, change: Change<'_>| {
            let key = (format!("{}@{}", change.topic, change.group), change.queue_id);
            match change.offset {
                Some(offset) => journal.insert(key, offset),
                None => journal.remove(&key),
            };
            0
        };
        let mut hand: BTreeMap<(u8, u8), Progress> = BTreeMap::new();
        for step in steps.into_iter().chain([Step::Take]) {
            match step {
                Step::Commit(g, t, q, o) => offsets.commit(&format!("g{g}"), &format!("t{t}"), q, o),
                Step::Carry(g, t, q, o) => {
                    let (group, topic) = (format!("g{g}"), format!("t{t}"));
                    let progress = offsets.progress(&group, &topic);
                    offsets.carry().commit(&progress, q, o, |change| note(&mut journal, change));
                }
                Step::CommitInHand(g, t, q, o) => {
                    let in_hand = || offsets.progress(&format!("g{g}"), &format!("t{t}"));
                    offsets.commit_in(hand.entry((g, t)).or_insert_with(in_hand), q, o);
                }
                Step::CarryInHand(g, t, q, o) => {
                    let in_hand = || offsets.progress(&format!("g{g}"), &format!("t{t}"));
                    let progress = hand.entry((g, t)).or_insert_with(in_hand);
                    offsets.carry().commit(progress, q, o, |change| note(&mut journal, change));
                }
                Step::ForgetGroup(g) => offsets.forget_group(&format!("g{g}")),
                Step::ForgetTopic(t) => offsets.forget_topic(&format!("t{t}")),
                Step::Replace(places) => {
                    let table = table_of(&places);
                    offsets.replace(&table);
                    prop_assert_eq!(offsets.table(), table);
                }
                Step::Take => {
                    offsets.take_changes(&mut |change, _| note(&mut journal, change));
                }
            }
        }
        let mut held = BTreeMap::new();
        for (key, queues) in offsets.table() {
            for (queue_id, offset) in queues {
                held.insert((key.clone(), queue_id), offset);
            }
        }
        prop_assert_eq!(journal, held);
    }
}

#[test]
fn offsets_of_what_is_not_there_end_at_a_limit() {
    assert!(check_rows(ROWS_MAX - 1, "group g").is_ok());
    let refused = check_rows(ROWS_MAX, "group g").unwrap_err();
    assert!(refused.remark.contains("group g is not there") && refused.remark.contains("the limit is 1000000"));
}
