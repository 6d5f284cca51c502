//! Records on their way into their consume queues.
//!
//! A queue on disk may be older or newer than the records that a scan shows: its topic may have been deleted and made again, and
//! its numbers begin anew with each life. The log decides. A unit is true if the record that it points at says so; of two records
//! with one number in one queue, the one that lies further on in the log is of the newer life.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use protocol::LogOffset;
use protocol::record::RECORD_BYTES_MIN;

use super::blocks::Block;
use super::files::LogFiles;
use super::gap::Gap;
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::fold::{QueuePlace, says};
use crate::queue_log::{ConsumeQueue, PushedAt, QueueError, QueueLogs, Span, Unit};

/// Puts units into queues, in the order of their records.
pub(crate) struct Rebuild<'a> {
    files: &'a LogFiles,
    queues: &'a QueueLogs,
    deleted: &'a Deleted,
    /// Topics whose records may hold batches, as whoever knows the topics says. What is on disk says it too.
    batch_topics: &'a HashSet<String>,
    known: KnownUnits,
    /// The store is open: the thread `queues` writes units. Otherwise nobody else does.
    pub is_live: bool,
    /// The queues of the block whose places are put.
    queues_of_block: Vec<InBlock>,
    /// Units that queues lacked.
    pub added: u64,
    /// Up to this store time, the check-point says that queues are on the device.
    checkpointed: i64,
    /// Queues were changed where the check-point has passed: it does not wait for that to be on the device.
    pub has_overtaken: bool,
    /// Queues that were not what the records say.
    pub suspects: Suspects,
    /// A queue of which there is no file, and whose first record here is not its first one.
    pub lacking: Option<String>,
    /// By the queue's address, its last true unit where untrue ones follow: number, and where its record lies. Until the queue changes.
    last_true: HashMap<usize, (u64, LogOffset), FixedState>,
    /// Stretches of the log that were lost, and how much that was.
    gaps_of_log: Vec<Gap>,
    lost_bytes: u64,
    /// Records without a place in their queue, and what the first of them was told.
    gaps: (u64, Option<String>),
    /// Queues begun anew, and the first of them.
    begun_anew: (u64, Option<String>),
}

/// A queue that records of a block belong to, looked for once.
#[derive(Default)]
struct InBlock {
    /// Below this log offset records of its topic are of a life that is over.
    deleted_to: Option<u64>,
    queue: Option<Arc<ConsumeQueue>>,
}

/// How a record stands to what its queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It belongs to the queue.
    Same,
    /// The queue is of a newer life, as a record at that log offset says.
    Older(LogOffset),
    /// The queue is of an older life, or lacks what came before its first unit.
    Newer,
}

impl<'a> Rebuild<'a> {
    pub(crate) fn new(
        files: &'a LogFiles,
        queues: &'a QueueLogs,
        deleted: &'a Deleted,
        batch_topics: &'a HashSet<String>,
        checkpointed: i64,
        known: KnownUnits,
    ) -> Rebuild<'a> {
        Rebuild {
            files,
            queues,
            deleted,
            batch_topics,
            known,
            is_live: false,
            queues_of_block: Vec::new(),
            added: 0,
            checkpointed,
            has_overtaken: false,
            suspects: Suspects::default(),
            lacking: None,
            last_true: HashMap::default(),
            gaps_of_log: Vec::new(),
            lost_bytes: 0,
            gaps: (0, None),
            begun_anew: (0, None),
        }
    }

    /// Takes the units of the next records.
    pub(crate) fn put_all(&mut self, block: &Block<'_>) -> Result<(), StoreError> {
        let mut queues = std::mem::take(&mut self.queues_of_block);
        queues.clear();
        queues.resize_with(block.queues, InBlock::default);
        for (number, place) in &block.places {
            self.put_in(&mut queues[*number as usize], place)?;
        }
        self.queues_of_block = queues;
        Ok(())
    }

    fn put_in(&mut self, known: &mut InBlock, place: &QueuePlace<'_>) -> Result<(), StoreError> {
        let deleted_to = *known.deleted_to.get_or_insert_with(|| self.deleted.end_of(place.topic));
        if place.unit.at.0 < deleted_to {
            return Ok(());
        }
        let queue =
            known.queue.get_or_insert_with(|| match place.is_batch || self.batch_topics.contains(place.topic) {
                true => self.queues.get_or_create_batch(place.topic, place.queue_id),
                false => self.queues.get_or_create(place.topic, place.queue_id),
            });
        let span = queue.span_of(place);
        if place.offset > 0 && queue.is_unknown() && !queue.is_batch() {
            self.lacking.get_or_insert_with(|| format!("{}/{}", place.topic, place.queue_id));
        }
        if self.known.has(queue, span) {
            return Ok(());
        }
        match self.standing(queue, place)? {
            Standing::Same => {}
            Standing::Older(newer) => {
                self.suspects.note(queue).is_misled(place.offset, newer);
                return Ok(());
            }
            Standing::Newer => {
                queue.begin_at(place.offset)?;
                self.last_true.remove(&(Arc::as_ptr(queue) as usize));
                self.has_overtaken = true;
                self.begun_anew.0 += 1;
                self.begun_anew.1.get_or_insert_with(|| {
                    format!(
                        "consume queue {}/{} begins anew with the record at {}",
                        place.topic, place.queue_id, place.unit.at
                    )
                });
            }
        }
        self.bridge(queue, place.offset);
        match queue.push_record_at(span.base, span.unit, span.count, place.store_time) {
            Ok(PushedAt::Already) => {}
            Ok(pushed @ (PushedAt::Added | PushedAt::Mended)) => {
                self.added += 1;
                self.has_overtaken |= pushed == PushedAt::Mended || place.store_time <= self.checkpointed;
                if pushed == PushedAt::Mended {
                    self.suspects.note(queue);
                    self.last_true.remove(&(Arc::as_ptr(queue) as usize));
                }
            }
            Err(error @ QueueError::Gap { .. }) => {
                self.gaps.0 += 1;
                self.gaps.1.get_or_insert_with(|| error.to_string());
            }
            Err(
                error @ (QueueError::Disk { .. }
                | QueueError::Unsure { .. }
                | QueueError::Waits { .. }
                | QueueError::FileLength { .. }),
            ) => {
                return Err(error.into());
            }
        }
        if !self.is_live && self.queues.is_backlogged() {
            self.queues.flush_all()?;
        }
        Ok(())
    }

    /// A stretch of the log is lost, with the records in it.
    pub(super) fn lose(&mut self, gap: Gap) {
        self.lost_bytes += gap.to - gap.from;
        self.gaps_of_log.push(gap);
    }

    /// Lets what queues have of lost records point nowhere else.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        if self.gaps_of_log.is_empty() {
            return Ok(());
        }
        for queue in self.queues.queues() {
            for gap in &self.gaps_of_log {
                self.added += queue.lose(LogOffset(gap.from), LogOffset(gap.to), gap.unit)?;
                self.has_overtaken = true;
            }
        }
        Ok(())
    }

    /// Keeps the numbers of messages that were lost just before this one: without them, nothing of the queue could be served from here on.
    fn bridge(&mut self, queue: &Arc<ConsumeQueue>, offset: u64) {
        if queue.is_batch() {
            // Its units say themselves which messages they hold, and may leave some out.
            return;
        }
        let next = queue.max_offset();
        let Some(gap) = self.gaps_of_log.last() else { return };
        let is_plausible = offset.saturating_sub(next) <= self.lost_bytes / RECORD_BYTES_MIN as u64;
        if queue.min_offset() < next && queue.log_end().0 <= gap.from && is_plausible {
            for _ in next..offset {
                queue.push(gap.unit);
                self.added += 1;
                self.has_overtaken = true;
            }
        }
    }

    fn standing(&mut self, queue: &ConsumeQueue, place: &QueuePlace<'_>) -> Result<Standing, StoreError> {
        let (min, next, at) = (queue.min_offset(), queue.max_offset(), place.unit.at);
        if place.offset < min {
            // The queue was trimmed to what the log has, so this record should be in it. What follows is scanned too.
            return Ok(Standing::Newer);
        }
        let other = match place.offset < next {
            true => queue.span_at(place.offset)?,
            // It lies before the queue's last record, and is not in the queue.
            false if min < next && at < queue.log_end() => queue.span_at(next - 1)?,
            false => None,
        };
        let Some(Span { unit, base, .. }) = other.filter(|other| other.unit.at != at) else {
            return Ok(Standing::Same);
        };
        if is_true(self.files, unit, base, queue)? {
            return Ok(if unit.at > at { Standing::Older(unit.at) } else { Standing::Newer });
        }
        // Another life may have had that number, and the log has lost it: what it has left of that one lies before.
        Ok(match self.last_true(queue, min..place.offset.min(next))? {
            Some(newer) if newer > at => Standing::Older(newer),
            Some(_) | None => Standing::Same,
        })
    }

    /// Where the record of the last true unit lies among those with such numbers, if untrue ones follow true ones there: an end of the log that is
    /// lost leaves it so.
    fn last_true(&mut self, queue: &ConsumeQueue, numbers: Range<u64>) -> Result<Option<LogOffset>, StoreError> {
        let address = std::ptr::from_ref(queue) as usize;
        if let Some((number, at)) = self.last_true.get(&address)
            && numbers.contains(number)
        {
            return Ok(Some(*at));
        }
        let (mut low, mut high, mut last) = (numbers.start, numbers.end, None);
        // Halves what is left each time.
        while low < high {
            let middle = low + (high - low) / 2;
            match queue.span_at(middle)? {
                Some(Span { unit, base, .. }) if is_true(self.files, unit, base, queue)? => {
                    (low, last) = (middle + 1, Some(unit.at));
                    self.last_true.insert(address, (middle, unit.at));
                }
                Some(_) | None => high = middle,
            }
        }
        Ok(last)
    }

    /// What there is to say when all records are in: what was mended, and what was not.
    pub(crate) fn findings(self) -> (impl Iterator<Item = String>, impl Iterator<Item = String>) {
        let Rebuild { gaps: (gaps, gap), begun_anew: (begun_anew, first), .. } = self;
        let gaps = (gaps > 1).then(|| format!("{gaps} records in all have no place in their consume queue"));
        let others = (begun_anew > 1).then(|| format!("{begun_anew} beginnings anew of consume queues in all"));
        ([first, others].into_iter().flatten(), [gap, gaps].into_iter().flatten())
    }
}

/// Queues that may have units which point beyond the log's end, in front of others: where that is, is known when all is read.
#[derive(Default)]
pub(crate) struct Suspects {
    /// By the queue's address.
    queues: HashMap<usize, Suspect, FixedState>,
}

/// Such a queue.
pub(crate) struct Suspect {
    pub queue: Arc<ConsumeQueue>,
    /// The lowest number of a record that was passed over, since the queue seemed to be of a newer life, and the log offset of the furthest record
    /// that spoke for that one.
    misled: Option<(u64, LogOffset)>,
}

impl Suspects {
    pub fn note(&mut self, queue: &Arc<ConsumeQueue>) -> &mut Suspect {
        let suspect = || Suspect { queue: Arc::clone(queue), misled: None };
        self.queues.entry(Arc::as_ptr(queue) as usize).or_insert_with(suspect)
    }

    /// In the order of their names: by their addresses no two starts would go the same way.
    pub fn iter(&self) -> impl Iterator<Item = &Suspect> {
        let mut all: Vec<&Suspect> = self.queues.values().collect();
        all.sort_unstable_by_key(|suspect| (suspect.queue.topic(), suspect.queue.id()));
        all.into_iter()
    }
}

impl Suspect {
    fn is_misled(&mut self, number: u64, newer: LogOffset) {
        let (least, furthest) = self.misled.unwrap_or((number, newer));
        self.misled = Some((least.min(number), furthest.max(newer)));
    }

    /// From which number on the queue may be wrong in a log that ends there. What it has of a newer life that is in the log comes again when the
    /// log is read once more.
    pub fn wrong_from(&self, log_end: LogOffset) -> Option<u64> {
        self.misled.filter(|(_, newer)| *newer >= log_end).map(|(number, _)| number)
    }
}

/// Whether the record that a unit points at has that number in the queue.
fn is_true(files: &LogFiles, unit: Unit, number: u64, queue: &ConsumeQueue) -> Result<bool, StoreError> {
    Ok(files.record_at(unit.at.0)?.is_some_and(|view| says(&view, queue.topic(), queue.id(), number)))
}

/// Units of consume queues, read a stretch at a time: a scan after a crash finds nearly all of them in their place, and one
/// system call for each would cost more than all the rest of it.
pub(crate) struct KnownUnits {
    /// By the queue's address, which the queue beside it keeps its own.
    stretches: HashMap<usize, Stretch, FixedState>,
    /// Units of a stretch.
    units: usize,
    /// By the queue's address, its last unit, where all before it are known to be those of the log: then no file is read for them.
    ends: HashMap<usize, Span, FixedState>,
}

struct Stretch {
    _queue: Arc<ConsumeQueue>,
    units: Vec<Span>,
}

impl KnownUnits {
    /// Units of a stretch at most: a page's worth.
    const UNITS_MAX: usize = 204;
    /// And where there are very many queues.
    const UNITS_MIN: usize = 8;
    /// Units remembered, 40 MiB of them.
    const REMEMBERED: usize = 1 << 20;

    /// For so many queues. Records of all of them may come in turn, so that each is to keep its stretch: the more there are, the shorter.
    pub fn of(queues: usize) -> KnownUnits {
        let units = (Self::REMEMBERED / queues.max(1)).clamp(Self::UNITS_MIN, Self::UNITS_MAX);
        KnownUnits { stretches: HashMap::default(), units, ends: HashMap::default() }
    }

    /// The same for queues that are as a process left them which was killed, and whose last units are these, for records from the log offset `from`
    /// on. It wrote the units of a queue in the order of their records, and the kernel has all that it wrote; the last one may be torn. One that its
    /// record does not know is of a log before that, and says nothing of those in front of it.
    pub fn handed_over(
        queues: usize,
        files: &LogFiles,
        from: u64,
        ends: &[(Arc<ConsumeQueue>, Span)],
    ) -> Result<KnownUnits, StoreError> {
        let mut known = KnownUnits::of(queues);
        for (queue, last) in ends.iter().filter(|(_, last)| last.unit.at.0 >= from) {
            if is_true(files, last.unit, last.base, queue)? {
                known.ends.insert(Arc::as_ptr(queue) as usize, *last);
            }
        }
        Ok(known)
    }

    /// Whether the queue has that unit for those messages. Where it cannot be told, it has not.
    pub fn has(&mut self, queue: &Arc<ConsumeQueue>, span: Span) -> bool {
        if span.base < queue.min_offset() || span.base >= queue.max_offset() {
            return false;
        }
        let key = Arc::as_ptr(queue) as usize;
        if let Some(last) = self.ends.get(&key)
            && span.base <= last.base
            && span.unit.at <= last.unit.at
        {
            return span.base < last.base && span.unit.at < last.unit.at || span == *last;
        }
        if self.stretches.len() >= Self::REMEMBERED / self.units && !self.stretches.contains_key(&key) {
            self.stretches.clear();
        }
        let stretch =
            self.stretches.entry(key).or_insert_with(|| Stretch { _queue: Arc::clone(queue), units: Vec::new() });
        let covered = stretch.units.first().zip(stretch.units.last());
        if !covered.is_some_and(|(first, last)| (first.base..last.next()).contains(&span.base)) {
            stretch.units.clear();
            stretch.units.reserve_exact(self.units);
            if queue.read_spans(span.base, self.units, true, &mut stretch.units).is_err() {
                return false;
            }
        }
        let found = stretch.units.binary_search_by_key(&span.base, |known| known.base);
        found.is_ok_and(|found| stretch.units[found] == span)
    }
}
