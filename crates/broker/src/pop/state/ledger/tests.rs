use super::*;
use hashbrown::HashSet;
use proptest::collection::vec;
use proptest::prelude::*;
use testing::ending::ends_process;

const QUEUE: PopQueue = PopQueue(1);

fn id(pop_time: i64, start: u64) -> LeaseId {
    LeaseId { queue: QUEUE, pop_time, start }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.add(QueueName { group: "g".into(), topic: "t".into(), queue_id: 0 });
    ledger
}

fn lease(ledger: &mut Ledger, id: LeaseId, offsets: &[u64], until: i64) {
    ledger.lease(id, Lease::new(id.start, offsets, until, 3).unwrap(), 100).unwrap();
}

fn due(ledger: &mut Ledger, now: i64) -> Vec<LeaseId> {
    let mut due = Vec::new();
    ledger.take_due(now, usize::MAX, &mut due);
    due
}

#[test]
fn rows_of_a_master_take_the_place_of_what_was_there_under_their_keys() {
    let mut ledger = ledger();
    let name = |topic: &str| QueueName { group: "g".into(), topic: topic.into(), queue_id: 0 };
    lease(&mut ledger, id(5, 10), &[10, 11], 50);
    // One of its messages is done with, and its time has changed.
    let mut left = Lease::new(10, &[10, 11], 70, 3).unwrap();
    left.left = 2;
    assert!(ledger.take_lease(id(5, 10), Some(left.clone())));
    assert_eq!((ledger.open_messages(QUEUE), ledger.oldest_open(QUEUE), ledger.len()), (1, Some(11), 1));
    assert_eq!((due(&mut ledger, 60), ledger.next_due()), (vec![], Some(70)));
    assert!(ledger.take_lease(id(5, 10), None));
    assert!(ledger.take_lease(id(5, 10), None), "it is gone already");
    assert_eq!((ledger.open_messages(QUEUE), ledger.next_due(), ledger.len()), (0, None, 0));

    // Numbers are those of the master now.
    ledger.take_name(QUEUE, Some(name("other")));
    ledger.take_name(PopQueue(9), Some(name("t")));
    let find = |ledger: &Ledger, topic| ledger.find(QueueRef { group: "g", topic, queue_id: 0 });
    assert_eq!((find(&ledger, "other"), find(&ledger, "t")), (Some(QUEUE), Some(PopQueue(9))));
    ledger.take_name(PopQueue(9), Some(name("other")));
    ledger.take_name(QUEUE, None);
    assert_eq!((find(&ledger, "other"), find(&ledger, "t")), (Some(PopQueue(9)), None));
    assert!(!ledger.take_lease(id(5, 10), Some(left)), "of a queue that is not known");
    assert_eq!(ledger.add(name("new")), PopQueue(10));
}

#[test]
fn an_acknowledgement_counts_once_and_for_its_own_lease_only() {
    let mut ledger = ledger();
    lease(&mut ledger, id(10, 5), &[5, 6, 9], 100);
    assert!(!ledger.ack(id(11, 5), 5), "another pop");
    assert!(!ledger.ack(id(10, 5), 7), "an offset that was not popped");
    assert!(!ledger.ack(id(10, 5), 4), "an offset before the start");
    assert!(ledger.ack(id(10, 5), 9));
    assert!(!ledger.ack(id(10, 5), 9));
    assert_eq!(ledger.open_messages(QUEUE), 2);
    assert_eq!(ledger.oldest_open(QUEUE), Some(5));
    assert_eq!(ledger.get(id(10, 5)).unwrap().done(), 0b100);
    assert!(ledger.ack(id(10, 5), 5) && ledger.ack(id(10, 5), 6));
    assert_eq!((ledger.len(), ledger.open_messages(QUEUE), ledger.next_due()), (0, 0, None));
    assert_eq!(ledger.oldest_open(QUEUE), None);
}

#[test]
fn acknowledgements_of_one_request_count_together_whatever_they_name() {
    let mut ledger = ledger();
    lease(&mut ledger, id(10, 5), &[5, 6, 7], 100);
    lease(&mut ledger, id(11, 5), &[5, 7, 600], 100);
    let far = [5 + 32, 5 + (1 << 32), u64::MAX];
    let of_run = ledger.ack_all(id(10, 5), [4, 5, 5, 8].into_iter().chain(far).chain([7]));
    assert_eq!(of_run, Counts { acked: 2, unknown: 6 });
    assert_eq!(ledger.get(id(10, 5)).unwrap().open().collect::<Vec<_>>(), [1]);
    let of_gaps = ledger.ack_all(id(11, 5), (0..65_536).chain(far));
    assert_eq!(of_gaps, Counts { acked: 3, unknown: 65_536 });
    assert_eq!((ledger.len(), ledger.open_messages(QUEUE)), (1, 1));
    assert_eq!(ledger.ack_all(id(11, 5), [5, 7].into_iter()), Counts { acked: 0, unknown: 2 });
}

#[test]
fn a_look_through_all_leases_misses_no_message_whose_lease_is_changed_after_the_clock_was_set_back() {
    let mut ledger = ledger();
    lease(&mut ledger, id(1000, 5), &[5, 6], 2000);
    let mut lowest = BTreeMap::new();
    lease(&mut ledger, id(500, 9), &[9], 2000);
    // The look has passed the first lease when the second one moves.
    let after = ledger.lowest_open(None, 1, &mut lowest);
    assert_eq!((after, lowest.get(&QUEUE)), (Some(id(500, 9)), Some(&9)));
    let change = Change { now: 100, invisible_ms: 60, is_suspended: false };
    let new = ledger.change(id(1000, 5), 5, &change, 100).unwrap();
    assert_eq!((new, ledger.get(new).unwrap().until), (id(1001, 5), 160));
    assert!(!ledger.ack(id(1000, 5), 5), "the old handle fits no more");
    ledger.lowest_open(after, 10, &mut lowest);
    assert_eq!(lowest.get(&QUEUE), Some(&5));
}

#[test]
fn messages_that_a_crash_has_taken_are_on_lease_no_more() {
    let mut ledger = ledger();
    let other = ledger.add(QueueName { group: "g".into(), topic: "other".into(), queue_id: 0 });
    lease(&mut ledger, id(10, 5), &[5, 6, 9], 100);
    lease(&mut ledger, id(11, 7), &[7, 8], 90);
    lease(&mut ledger, id(12, 2), &[2, 3], 100);
    lease(&mut ledger, LeaseId { queue: other, ..id(10, 5) }, &[5], 100);
    assert_eq!(ledger.cut(|name| (&*name.topic == "t").then_some(6)), [id(10, 5), id(11, 7)]);
    assert_eq!(ledger.get(id(10, 5)).unwrap().open().collect::<Vec<_>>(), [0]);
    assert_eq!((ledger.get(id(11, 7)), ledger.next_due()), (None, Some(100)));
    assert_eq!((ledger.open_messages(QUEUE), ledger.open_messages(other)), (3, 1));
}

#[test]
fn a_lease_that_is_over_is_given_up_once_and_not_acknowledged_meanwhile() {
    let mut ledger = ledger();
    lease(&mut ledger, id(10, 0), &[0, 1], 100);
    assert!(due(&mut ledger, 99).is_empty());
    assert_eq!(due(&mut ledger, 100), [id(10, 0)]);
    assert!(due(&mut ledger, 100).is_empty(), "somebody is at it");
    assert!(!ledger.ack(id(10, 0), 0), "too late");
    ledger.settle(id(10, 0), 0);
    ledger.put_off(id(10, 0), 200);
    assert!(ledger.ack(id(10, 0), 1), "it did not come again yet");
    assert_eq!(ledger.len(), 0);
}

#[test]
fn a_change_makes_a_lease_of_its_own_that_the_old_handle_does_not_fit() {
    let mut ledger = ledger();
    lease(&mut ledger, id(10, 5), &[5, 6], 100);
    let change = Change { now: 10, invisible_ms: 50, is_suspended: false };
    let new = ledger.change(id(10, 5), 5, &change, 100).unwrap();
    assert_eq!(new, id(11, 5), "10 and 5 are taken by the pop itself");
    assert_eq!(ledger.get(new).unwrap().until, 60);
    assert!(!ledger.ack(id(10, 5), 5));
    assert_eq!(ledger.change(id(10, 5), 5, &change, 100), Err(NoChange::Unknown));
    assert_eq!(due(&mut ledger, 60), [new]);
    assert!(ledger.ack(id(10, 5), 6));
}

#[test]
fn there_are_no_more_leases_than_there_may_be() {
    let mut ledger = ledger();
    let one = |start: u64| Lease::new(start, &[start], 9, 0).unwrap();
    assert_eq!(ledger.lease(id(1, 0), one(0), 2), Ok(()));
    assert_eq!(ledger.lease(id(1, 0), one(0), 2), Err(NoLease::Taken));
    assert_eq!(ledger.lease(id(1, 1), one(1), 2), Ok(()));
    assert_eq!(ledger.lease(id(1, 2), one(2), 2), Err(NoLease::Full));
}

#[test]
fn a_changed_time_makes_no_lease_too_many() {
    let mut ledger = ledger();
    lease(&mut ledger, id(1, 0), &[0, 1], 9);
    lease(&mut ledger, id(2, 2), &[2], 9);
    let change = Change { now: 3, invisible_ms: 50, is_suspended: false };
    assert_eq!(ledger.change(id(1, 0), 0, &change, 2), Err(NoChange::Full));
    assert_eq!(ledger.get(id(1, 0)).unwrap().open().collect::<Vec<_>>(), [0, 1], "nothing has moved");
    assert_eq!(ledger.change(id(2, 2), 2, &change, 2), Ok(id(3, 2)), "it leaves no lease behind");
    assert!(ledger.ack(id(1, 0), 1));
    assert_eq!(ledger.change(id(1, 0), 0, &change, 2), Ok(id(3, 0)));
    assert_eq!(ledger.len(), 2);
}

#[test]
fn whoever_misses_a_turn_is_told_when_it_ends() {
    let mut ledger = ledger();
    assert!(!ledger.miss(QUEUE), "nobody has it");
    assert!(ledger.claim(QUEUE) && !ledger.claim(QUEUE));
    assert_eq!(ledger.release(QUEUE), None, "nobody waits for it");
    assert!(ledger.claim(QUEUE) && ledger.miss(QUEUE));
    assert_eq!(ledger.release(QUEUE), Some(QueueName { group: "g".into(), topic: "t".into(), queue_id: 0 }));
    assert!(ledger.claim(QUEUE));
    assert_eq!(ledger.release(QUEUE), None, "it was told once");
}

#[test]
fn a_group_that_is_gone_takes_its_leases_along() {
    let mut ledger = ledger();
    let other = ledger.add(QueueName { group: "h".into(), topic: "t".into(), queue_id: 0 });
    lease(&mut ledger, id(1, 0), &[0], 9);
    lease(&mut ledger, LeaseId { queue: other, pop_time: 1, start: 0 }, &[0], 9);
    let (queues, ids) = ledger.forget(|name| &*name.group == "g");
    assert_eq!((queues, ids), (vec![QUEUE], vec![id(1, 0)]));
    assert_eq!(due(&mut ledger, 9).len(), 1);
    assert_eq!(ledger.find(QueueRef { group: "g", topic: "t", queue_id: 0 }), None);
    // Somebody may have looked up the number before.
    assert_eq!(ledger.lease(id(2, 1), Lease::new(1, &[1], 9, 0).unwrap(), 100), Err(NoLease::Gone));
    assert_eq!(ledger.len(), 1);
}

proptest! {
    #[test]
    fn a_lease_is_read_as_it_was_written(
        start in 0..u64::MAX / 2,
        gaps in vec(0..1000u64, 1..=LEASE_MESSAGES_MAX),
        acked in vec(0..LEASE_MESSAGES_MAX, 0..8),
        until: i64,
        revive_qid: u16,
    ) {
        let offsets: Vec<u64> = gaps.iter().scan(start, |next, gap| {
            let offset = *next + gap;
            *next = offset + 1;
            Some(offset)
        }).collect();
        let mut ledger = ledger();
        let id = id(7, start);
        ledger.lease(id, Lease::new(start, &offsets, until, revive_qid).unwrap(), 1).unwrap();
        for place in acked {
            if let Some(offset) = offsets.get(place) {
                ledger.ack(id, *offset);
            }
        }
        if let Some(lease) = ledger.get(id) {
            let mut row = Vec::new();
            lease.write(&mut row);
            prop_assert_eq!(Lease::read(&row), Some(lease.clone()));
            let open: Vec<u64> = lease.open().map(|distance| id.offset(distance)).collect();
            prop_assert!(open.iter().all(|offset| offsets.contains(offset)));
        }
        prop_assert_eq!(LeaseId::of_bytes(&id.to_bytes()), Some(id));
    }

    #[test]
    fn any_row_is_read_or_refused(row in vec(any::<u8>(), 0..200)) {
        if let Some(lease) = Lease::read(&row) {
            prop_assert!(lease.distances().count() <= LEASE_MESSAGES_MAX);
            let _ = (lease.open().count(), lease.done());
        }
        let _ = LeaseId::of_bytes(&row);
    }
}

/// What may happen, each with a number to choose by.
#[derive(Clone, Debug)]
enum Event {
    Send(u8),
    Pop(u8),
    Ack(u16),
    AckBatch(u16),
    Change(u16, u8),
    Wait(u8),
    Revive(bool),
    /// The process dies; the journal has everything, or all but the last so many changes.
    Crash(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any::<u8>().prop_map(|count| Event::Send(count % 40)),
        4 => any::<u8>().prop_map(Event::Pop),
        4 => any::<u16>().prop_map(Event::Ack),
        2 => any::<u16>().prop_map(Event::AckBatch),
        2 => (any::<u16>(), any::<u8>()).prop_map(|(place, ms)| Event::Change(place, ms)),
        3 => any::<u8>().prop_map(Event::Wait),
        3 => any::<bool>().prop_map(Event::Revive),
        1 => any::<u8>().prop_map(Event::Crash),
    ]
}

/// One journal change, as the broker puts it.
#[derive(Clone, Debug)]
enum Row {
    Lease(LeaseId, Option<Vec<u8>>),
    Cursor(u64),
}

/// A queue, its retries, and the handles that clients hold: what the broker does around the ledger, without the broker.
#[derive(Default)]
struct World {
    ledger: Ledger,
    /// Message numbers: by queue offset. A retry is a new offset of the same number.
    log: Vec<u32>,
    cursor: u64,
    rows: Vec<Row>,
    /// Rows up to here are written: whoever did them has his answer.
    written: usize,
    now: i64,
    /// Handles that were given out: lease, offset, and whether the journal had them when the client got them.
    handles: Vec<(LeaseId, u64)>,
    /// Offsets whose acknowledgement was answered.
    acked: HashSet<u64>,
    /// Who has an offset, until when.
    owner: HashMap<u64, (LeaseId, i64)>,
    /// Offsets that came again, by their new offset.
    revived: HashMap<u64, u64>,
    sent: u32,
}

impl World {
    fn new() -> World {
        World { ledger: ledger(), ..World::default() }
    }

    fn put(&mut self, id: LeaseId) {
        let row = self.ledger.get(id).map(|lease| {
            let mut row = Vec::new();
            lease.write(&mut row);
            row
        });
        self.rows.push(Row::Lease(id, row));
    }

    fn pop(&mut self, count: u64, invisible: i64) {
        let end = (self.log.len() as u64).min(self.cursor + count);
        let offsets: Vec<u64> = (self.cursor..end).collect();
        let Some(first) = offsets.first().copied() else { return };
        let id = id(self.now, first);
        let lease = Lease::new(first, &offsets, self.now + invisible, 0).unwrap();
        if self.ledger.lease(id, lease, 64).is_err() {
            return;
        }
        self.put(id);
        self.cursor = end;
        self.rows.push(Row::Cursor(end));
        self.written = self.rows.len();
        for offset in offsets {
            let before = self.owner.insert(offset, (id, self.now + invisible));
            assert_eq!(before, None, "offset {offset} was given out twice");
            assert!(!self.acked.contains(&offset), "offset {offset} came again though it was acknowledged");
            self.handles.push((id, offset));
        }
    }

    fn ack(&mut self, place: u16, is_written: bool) {
        let Some((id, offset)) = self.handles.get(usize::from(place) % self.handles.len().max(1)).copied() else {
            return;
        };
        let is_owner = self.owner.get(&offset).is_some_and(|(owner, _)| *owner == id);
        let did = self.ledger.ack(id, offset);
        assert!(!did || is_owner, "offset {offset} was acknowledged by a handle that it was taken from");
        if did {
            self.put(id);
            self.owner.remove(&offset);
            // Without the answer the client knows nothing, and neither may we claim.
            if is_written {
                self.written = self.rows.len();
                self.acked.insert(offset);
            }
        }
    }

    fn change(&mut self, place: u16, ms: i64) {
        let Some((id, offset)) = self.handles.get(usize::from(place) % self.handles.len().max(1)).copied() else {
            return;
        };
        let change = Change { now: self.now, invisible_ms: ms, is_suspended: false };
        if let Ok(new) = self.ledger.change(id, offset, &change, 64) {
            assert_eq!(self.owner.get(&offset).map(|(owner, _)| *owner), Some(id));
            self.put(new);
            self.put(id);
            self.written = self.rows.len();
            self.owner.insert(offset, (new, self.now + ms));
            self.handles.push((new, offset));
        }
    }

    /// The log first, then the leases: with a crash in between the log says what came again.
    fn revive(&mut self, is_settled: bool) {
        for id in due(&mut self.ledger, self.now) {
            let open: Vec<u64> = self.ledger.get(id).unwrap().open().map(|distance| id.offset(distance)).collect();
            for offset in open {
                let (owner, until) = self.owner.remove(&offset).expect("somebody had it");
                assert!(owner == id && until <= self.now, "offset {offset} was taken from its owner too early");
                self.log.push(self.log[offset as usize]);
                self.revived.insert(offset, self.log.len() as u64 - 1);
                if is_settled {
                    self.ledger.settle(id, offset);
                }
            }
            if is_settled {
                self.put(id);
            }
        }
        if !is_settled {
            self.crash(0);
        }
    }

    fn crash(&mut self, lost: usize) {
        let kept = self.rows.len().saturating_sub(lost).max(self.written);
        self.rows.truncate(kept);
        let mut leases: BTreeMap<LeaseId, Vec<u8>> = BTreeMap::new();
        self.cursor = 0;
        for row in &self.rows {
            match row {
                Row::Lease(id, Some(bytes)) => drop(leases.insert(*id, bytes.clone())),
                Row::Lease(id, None) => drop(leases.remove(id)),
                Row::Cursor(cursor) => self.cursor = *cursor,
            }
        }
        self.ledger = ledger();
        self.owner.clear();
        for (id, bytes) in leases {
            self.ledger.restore(id, Lease::read(&bytes).unwrap());
            let Some(lease) = self.ledger.get(id) else { continue };
            let until = lease.until;
            let open: Vec<u64> = lease.open().map(|distance| id.offset(distance)).collect();
            for offset in open {
                // What came again before the crash is settled from the log.
                if self.revived.contains_key(&offset) {
                    self.ledger.settle(id, offset);
                    self.put(id);
                } else {
                    assert_eq!(self.owner.insert(offset, (id, until)), None);
                }
            }
        }
    }

    /// Every offset is before the reader, with somebody, done with, or there again.
    fn check(&self) {
        for offset in 0..self.log.len() as u64 {
            let is_waiting = offset >= self.cursor;
            let is_held = self.owner.contains_key(&offset);
            let is_again = self.revived.contains_key(&offset);
            let is_acked = self.acked.contains(&offset);
            let states = [is_waiting, is_held, is_again, is_acked];
            let count = states.iter().filter(|is_so| **is_so).count();
            assert!(count <= 1, "offset {offset}: {states:?}");
        }
        assert_eq!(self.ledger.open_messages(QUEUE), self.owner.len());
    }
}

proptest! {
    #[test]
    fn no_message_is_lost_or_given_to_two_or_comes_after_its_acknowledgement(events in vec(event(), 0..120)) {
        let mut world = World::new();
        let mut unanswered: HashSet<u64> = HashSet::new();
        for event in events {
            match event {
                Event::Send(count) => {
                    for _ in 0..count {
                        world.log.push(world.sent);
                        world.sent += 1;
                    }
                }
                Event::Pop(choice) => world.pop(u64::from(choice % 32) + 1, i64::from(choice) % 50),
                Event::Ack(place) => world.ack(place, true),
                Event::AckBatch(place) => {
                    for step in 0..8 {
                        world.ack(place.wrapping_add(step), step == 7);
                    }
                }
                Event::Change(place, ms) => world.change(place, i64::from(ms)),
                Event::Wait(ms) => world.now += i64::from(ms % 64),
                Event::Revive(is_settled) => {
                    world.now += 1;
                    world.revive(is_settled);
                }
                Event::Crash(lost) => {
                    world.now += 1;
                    world.crash(usize::from(lost % 8));
                }
            }
            world.check();
            let done = |offset: &u64| {
                *offset < world.cursor
                    && !world.owner.contains_key(offset)
                    && !world.revived.contains_key(offset)
                    && !world.acked.contains(offset)
            };
            unanswered = (0..world.log.len() as u64).filter(done).collect();
        }
        // Everybody goes away: whatever was not acknowledged comes again.
        for _ in 0..64 {
            world.now += 1000;
            world.revive(true);
            while world.cursor < world.log.len() as u64 {
                let before = world.handles.len();
                world.now += 1;
                world.pop(32, 0);
                for place in before..world.handles.len() {
                    world.ack(place as u16, true);
                }
                if world.handles.len() == before {
                    break;
                }
            }
        }
        // An acknowledgement that was carried out and not answered may count or not.
        let numbers = |offsets: &HashSet<u64>| offsets.iter().map(|offset| world.log[*offset as usize]).collect::<HashSet<_>>();
        let mut known = numbers(&world.acked);
        known.extend(numbers(&unanswered));
        prop_assert_eq!(known.len(), world.sent as usize);
    }
}

#[test]
fn a_lease_with_bits_of_messages_that_it_has_not_ends_the_process_before_it_is_written() {
    let write = |lease: &Lease| lease.write(&mut Vec::new());
    for messages in [1, 31, 32] {
        let lease = Lease::new(0, &(0..messages).collect::<Vec<_>>(), 100, 3).unwrap();
        assert!(!ends_process(|| write(&lease)));
    }
    let lease = Lease::new(0, &[0, 1, 2], 100, 3).unwrap();
    assert!(ends_process(|| write(&Lease { left: 0b1111, ..lease.clone() })));
    assert!(ends_process(|| write(&Lease { count: 33, ..lease.clone() })));
}
