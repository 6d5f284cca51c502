//! Old files go while the run goes on: which of them may, and what has to be true of what is left.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::LogOffset;
use store::{ReadStatus, Retention, Store};

use super::{Message, Run, TOPICS, TURNS_MAX};
use crate::reading::LIMITS;
use crate::verdict::Verdict;

/// In front of every file.
const NO_FLOOR: u64 = u64::MAX;

/// What is known of files that go.
pub(super) struct Ageing {
    /// Below it nobody needs messages any more.
    floor: Arc<AtomicU64>,
    used_percent: u8,
    /// It was above the level at which nothing is taken, and the store may not know of a change.
    was_full: bool,
    /// Somebody asked for expired files to go in this life: one look at least does not ask what hour it is.
    is_asked: bool,
    /// What has gone until now, or may have, ends here at most.
    pub may_be_gone: u64,
    /// The log began here once. After a loss of power files may be there again, with all that was in them.
    pub gone: u64,
}

impl Ageing {
    /// So full that nothing is taken, or was a moment ago.
    pub fn is_nearly_full(&self) -> bool {
        self.was_full
    }
}

impl Default for Ageing {
    fn default() -> Ageing {
        let floor = Arc::new(AtomicU64::new(NO_FLOOR));
        Ageing { floor, used_percent: 10, was_full: false, is_asked: false, may_be_gone: 0, gone: 0 }
    }
}

impl Run<'_> {
    /// Rules by which files go within minutes.
    pub(super) fn age(&mut self) {
        let pick = |from: &[u64]| from[self.dice.below(from.len() as u32) as usize];
        let hour = self.options.retention.hour_of_day.at(self.world.clock.now());
        let delete_when = [vec![], vec![hour, (hour + 1) % 24], (0..24).collect()];
        self.options.retention = Retention {
            file_reserved: Duration::from_secs(pick(&[0, 1, 30, 3600])),
            delete_when: delete_when[self.dice.below(3) as usize].clone(),
            delete_batch_max: pick(&[0, 1, 3, 10]) as usize,
            clean_forcibly: self.dice.below(3) > 0,
            ..Retention::default()
        };
        self.options.clean_interval = Duration::from_millis(pick(&[10, 1_000, 10_000]));
        self.options.segment_bytes = 16 << 10;
    }

    /// In a new life.
    pub(super) fn ages_from_now(&mut self, store: &Store) {
        self.ageing.is_asked = false;
        self.knows_how_full();
        self.world.disk.fill(self.ageing.used_percent);
        let floor = Arc::clone(&self.ageing.floor);
        store.protect(Box::new(move || {
            let floor = floor.load(Ordering::SeqCst);
            (floor != NO_FLOOR).then_some(LogOffset(floor))
        }));
    }

    /// The store has looked at the device since that changed.
    pub(super) fn knows_how_full(&mut self) {
        self.ageing.was_full = self.ageing.used_percent > self.options.retention.disk_warning_percent;
    }

    pub(super) fn step_of_ageing(&mut self, store: &Arc<Store>) {
        let pick = |from: &[u64]| from[self.dice.below(from.len() as u32) as usize];
        match self.dice.below(24) {
            0 | 1 => {
                self.ageing.used_percent = pick(&[10, 50, 76, 80, 86, 95]) as u8;
                self.ageing.was_full |= self.ageing.used_percent > self.options.retention.disk_warning_percent;
                self.world.disk.fill(self.ageing.used_percent);
                self.report.tell(|| format!("{} % of the device are in use", self.ageing.used_percent));
            }
            2 => {
                let floor = if self.dice.below(2) == 0 { NO_FLOOR } else { self.somewhere(store) };
                self.ageing.floor.store(floor, Ordering::SeqCst);
                self.report.tell(|| format!("what lies from {floor} on is needed"));
            }
            3 => {
                self.report.tell(|| "expired files are to go".to_owned());
                self.ageing.is_asked = true;
                store.delete_expired();
            }
            4 | 5 => {
                self.pass(pick(&[2_000, 31_000, 600_000, 3_601_000]));
                let turns = self.dice.below(60);
                self.world.give(turns);
            }
            6 => self.all_that_is_expired_goes(store),
            _ => return,
        }
        self.see(store);
    }

    fn somewhere(&self, store: &Store) -> u64 {
        let (min, end) = (store.min_offset().0, store.end().0);
        min + u64::from(self.dice.below(u32::try_from(end - min).unwrap_or(u32::MAX).max(1)))
    }

    /// Takes note of the files that may have gone by now. Between two calls of it either time passes, or something else changes.
    pub(super) fn note_ageing(&mut self, log_end: u64) {
        if self.plan.ages {
            self.ageing.may_be_gone = self.ageing.may_be_gone.max(self.expired_end(log_end));
        }
    }

    /// Up to which file everything may go at this moment.
    fn expired_end(&self, log_end: u64) -> u64 {
        let (rules, now) = (&self.options.retention, self.world.clock.now());
        let used = self.ageing.used_percent;
        let file_of = |at: u64| at / self.options.segment_bytes * self.options.segment_bytes;
        if used > rules.disk_clean_forcibly_percent && rules.clean_forcibly {
            return file_of(log_end);
        }
        let is_time = self.ageing.is_asked || rules.delete_when.contains(&rules.hour_of_day.at(now));
        if !is_time && used <= rules.disk_max_used_percent {
            return 0;
        }
        let floor = self.ageing.floor.load(Ordering::SeqCst);
        let reserved = rules.file_reserved.as_millis() as i64;
        let is_there = |message: &&Message| message.end > self.ageing.gone;
        let is_young = |message: &&Message| now.since(env::TimeMs(message.stored_ms)) <= reserved;
        let young = self.messages.values().filter(is_there).find(is_young);
        let young = young.map_or(log_end, |message| message.end - 1);
        file_of(young.min(log_end).min(floor))
    }

    /// Up to which file everything has to go: how old the end of a file is, the store tells by what stands in the next one.
    fn surely_expired_end(&self, log_end: u64) -> u64 {
        let (rules, now) = (&self.options.retention, self.world.clock.now());
        let end = self.expired_end(log_end);
        if self.ageing.used_percent > rules.disk_clean_forcibly_percent && rules.clean_forcibly {
            return end;
        }
        if self.ageing.is_asked
            && !rules.delete_when.contains(&rules.hour_of_day.at(now))
            && self.ageing.used_percent <= rules.disk_max_used_percent
        {
            // That was one look.
            return 0;
        }
        let reserved = rules.file_reserved.as_millis() as i64;
        let old = self.messages.values().rev().find(|message| now.since(env::TimeMs(message.stored_ms)) > reserved);
        let file = old.map_or(0, |message| (message.end - 1) / self.options.segment_bytes * self.options.segment_bytes);
        end.min(file)
    }

    /// A while later nothing is there that may go.
    fn all_that_is_expired_goes(&mut self, store: &Arc<Store>) {
        if self.world.disk.failure().is_some() {
            return;
        }
        let end = self.surely_expired_end(store.end().0);
        self.report.tell(|| format!("files below {end} go"));
        for turn in 0..TURNS_MAX {
            if store.min_offset().0 >= end || self.world.disk.has_crashed() {
                return;
            }
            self.world.give(1);
            if turn % 10 == 9 {
                self.pass(200);
            }
        }
        let min = store.min_offset().0;
        self.report.find(Verdict::Late, format!("the log begins at {min}, all up to {end} is expired"));
    }

    /// The log begins no higher than it may, in any run.
    pub(super) fn check_lower_end(&mut self, store: &Store) {
        let (min, may_be_gone) = (store.min_offset().0, self.ageing.may_be_gone);
        if min > may_be_gone {
            self.report.find(Verdict::Lost, format!("the log begins at {min}, what may be gone ends at {may_be_gone}"));
        }
    }

    /// What has to be true of the lower ends, whenever no thread has its turn.
    pub(super) fn check_lower_ends(&mut self, store: &Arc<Store>, left_max: usize) {
        let min = store.min_offset().0;
        let root = self.world.root();
        for (name, base) in numbered(&root.join("commitlog")) {
            if base < min {
                self.report.find(Verdict::Late, format!("the log begins at {min}, and {name} is still there"));
            }
        }
        for topic in TOPICS {
            for (id, queue) in store.queues_of(topic) {
                let (from, to) = (queue.min_offset(), queue.max_offset());
                let first = self.messages.values().find(|message| {
                    (TOPICS[message.topic], message.queue) == (topic, id)
                        && message.end > min
                        && message.end <= store.confirmed().get()
                        && message.generation == self.deleted[message.topic].generation
                });
                if let Some(first) = first.filter(|first| first.offset < from) {
                    let what = format!("{topic}/{id} begins at {from}, and {first:?} is in the log");
                    self.report.find(Verdict::Lost, what);
                }
                if from == to {
                    continue;
                }
                let mut slices = Vec::new();
                let read = store.read(&queue, from as i64, &LIMITS, &mut |_| true, &mut slices);
                // With SYNC_FLUSH it may not be shown yet.
                if read.status != ReadStatus::Found && first.is_some() {
                    let what = format!("{topic}/{id} begins at {from}, and a read there says {:?}", read.status);
                    self.report.find(Verdict::Lost, what);
                }
                let files = numbered(&root.join("consumequeue").join(topic).join(id.to_string()));
                // One may stay: that which was the last one then, and remembers the offset. It goes with those that are due next. So do those of
                // units that had gone before they were written, and those that could not be removed.
                let below = files.iter().filter(|(_, start)| (start + self.options.queue_file_bytes) / 20 <= from);
                let left = below.count();
                if left > left_max {
                    let what = format!("{topic}/{id} begins at {from}, and {left} files below that are still there");
                    self.report.find(Verdict::Late, what);
                }
            }
        }
    }
}

/// Files whose names are numbers, in their order.
fn numbered(dir: &Path) -> Vec<(String, u64)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let number = name.parse().ok()?;
            Some((name, number))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use store::ConsumeQueue;

    use super::super::tests::found_by;
    use super::super::{Message, Plan};
    use super::*;

    /// Has a store of small files, of which none may go before `doctor` says so.
    fn found(doctor: impl FnOnce(&mut Run<'_>, &Arc<Store>)) -> Vec<Verdict> {
        let rule = |run: &mut Run<'_>| {
            let (file_reserved, delete_when) = (Duration::ZERO, (0..24).collect());
            run.options.retention = Retention { file_reserved, delete_when, ..Retention::default() };
            (run.options.segment_bytes, run.options.queue_file_bytes) = (16 << 10, 20 * 4);
            run.options.clean_interval = Duration::from_secs(1);
            run.ageing.floor.store(0, Ordering::SeqCst);
        };
        found_by(Plan { ages: true, ..Plan::default() }, rule, doctor)
    }

    /// Has all files go that may.
    fn let_go(run: &mut Run<'_>, store: &Arc<Store>) {
        run.ageing.floor.store(NO_FLOOR, Ordering::SeqCst);
        run.see(store);
        run.all_that_is_expired_goes(store);
        run.settle(store);
        run.check_living(store);
        assert_eq!(run.report.findings, []);
        assert!(store.min_offset().0 > 0);
    }

    /// A queue that begins at this offset or behind it, and has a message.
    fn queue_from(store: &Store, least: u64) -> (usize, u32) {
        let of = |topic: usize| store.queues_of(TOPICS[topic]).into_iter().map(move |(id, queue)| (topic, id, queue));
        let fits = |queue: &ConsumeQueue| (least..queue.max_offset()).contains(&queue.min_offset());
        let (topic, id, _) = (0..TOPICS.len()).flat_map(of).find(|(.., queue)| fits(queue)).unwrap();
        (topic, id)
    }

    #[test]
    fn what_is_expired_and_does_not_go_is_late() {
        let found = found(|run, store| {
            // The store is told by the old one that everything is needed.
            run.ageing.floor = Arc::new(AtomicU64::new(NO_FLOOR));
            run.all_that_is_expired_goes(store);
        });
        assert_eq!(found, [Verdict::Late]);
    }

    #[test]
    fn what_goes_before_it_may_is_lost() {
        let found = found(|run, store| {
            let_go(run, store);
            run.ageing.may_be_gone = 0;
            run.check_lower_end(store);
        });
        assert_eq!(found, [Verdict::Lost]);
    }

    #[test]
    fn a_file_of_the_log_or_of_a_queue_below_its_beginning_is_late() {
        let log = found(|run, store| {
            let_go(run, store);
            std::fs::write(run.world.root().join("commitlog/00000000000000000000"), b"").unwrap();
            run.check_lower_ends(store, usize::MAX);
        });
        assert_eq!(log, [Verdict::Late]);
        let queue = found(|run, store| {
            let_go(run, store);
            // So far that a whole file lies below it.
            let (topic, id) = queue_from(store, run.options.queue_file_bytes / 20);
            let dir = run.world.root().join("consumequeue").join(TOPICS[topic]).join(id.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            // It may be the one that stays.
            let path = dir.join("00000000000000000000");
            std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            run.check_lower_ends(store, 0);
        });
        assert!(!queue.is_empty() && queue.iter().all(|verdict| *verdict == Verdict::Late), "{queue:?}");
    }

    #[test]
    fn a_queue_that_begins_behind_a_message_that_the_log_has_lost_it() {
        let found = found(|run, store| {
            let_go(run, store);
            let (topic, queue) = queue_from(store, 1);
            let generation = run.deleted[topic].generation;
            let end = store.end().0;
            run.messages.insert(0, Message { topic, queue, offset: 0, end, bytes: 8, generation, stored_ms: 0 });
            run.check_lower_ends(store, usize::MAX);
        });
        assert_eq!(found, [Verdict::Lost]);
    }

    #[test]
    fn a_queue_whose_lowest_offset_cannot_be_read_lost_it() {
        let found = found(|run, store| {
            let mut generation = 0;
            // Until a queue begins with a message that is not shown, since the device has not got it yet.
            loop {
                generation += 1;
                for (topic, deleted) in TOPICS.iter().zip(&mut run.deleted) {
                    store.delete_topic(topic);
                    deleted.generation = generation;
                }
                run.send(store);
                let flushed = store.flushed().get();
                if run.messages.values().all(|message| message.generation < generation || message.end > flushed) {
                    break;
                }
            }
            // It is said to be older than that.
            run.messages
                .values_mut()
                .filter(|message| message.generation == generation)
                .for_each(|message| message.end = 1);
            run.check_lower_ends(store, usize::MAX);
        });
        assert_eq!(found, [Verdict::Lost]);
    }
}
