//! The log read a block at a time, by several threads: what follows from its records comes in the log's order, whoever read them.
//!
//! A record's length stands in it, so where one begins is known from the one before. But it also says at which log offset it belongs:
//! so a thread takes the next stretch of the log, looks for the first record in it that says so, and checks and parses from there to
//! the end of the last record that begins in the stretch, beside the others. The thread that opens the store applies blocks in order, and
//! reads one itself when the next is not there yet. Where a block does not begin where the one before it ended (a body may hold
//! what looks like a record in its place), it reads that block again, from the right place.
//!
//! Only whole records are taken. Whatever else there is (damage, a blank, the log's end, a page that the device does not give) ends
//! the reading. Who asked looks at that place himself, when no other thread reads any more, as if he had come there alone.

use disk::worker;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use protocol::record::{RecordView, at};

use super::damage::{MAGIC, MAGIC_AT};
use crate::error::StoreError;
use crate::fold::{Fold, Follower, QueuePlace, whole_at};
use crate::options::StoreOptions;
use crate::segment::{SCAN_STRETCH, Segment, Walk};

/// Places that one block may have, 4.5 MiB of them: more than 4 MiB of the shortest records. Records that stand in a thousand light
/// queues each have more; their block is read in parts, by the thread that applies it.
const PLACES_MAX: usize = 64 << 10;
/// What one thread alone reads before it applies it: that is still in the processor's cache then.
const PIECE_BYTES: u64 = 256 << 10;
/// Blocks read, or being read, that are not applied: so many for each thread.
const BLOCKS_PER_THREAD: usize = 2;

/// What follows from records that lie one behind the other.
#[derive(Default)]
pub(crate) struct Block<'a> {
    /// Their places in queues, in the order of the log, each with the number of its queue among those of the block.
    pub places: Vec<(u32, QueuePlace<'a>)>,
    /// Queues among them.
    pub queues: usize,
    pub records: u64,
    /// Store time of the last record.
    pub last_timestamp: i64,
    /// Where the first record begins.
    pub from: u64,
    /// Where the last record ends.
    pub to: u64,
}

/// Shows the whole records of a segment from the log offset `from` on, block by block, and says where they end: at the segment's end, or
/// where something else begins.
///
/// Threads run only as long as it does, and only where there is more than a block.
pub(crate) fn whole_records<'a>(
    segment: &'a Segment,
    from: u64,
    options: &StoreOptions,
    apply: &mut dyn FnMut(&Block<'a>) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let block_bytes = options.recovery.block_bytes.max(1);
    let threads = options.recovery.threads;
    let alone_to = if threads > 1 { from.saturating_add(block_bytes) } else { u64::MAX };
    let alone_to = alone_to.min(segment.end());
    let mut parser = Parser::new(options);
    let mut walk = Walk::new(segment, SCAN_STRETCH);
    let mut block = Block { to: from, ..Block::default() };
    // Each turn goes on by a record at least.
    while block.to < alone_to {
        let from = block.to;
        parser.read(&mut walk, from, alone_to.min(from.saturating_add(PIECE_BYTES.min(block_bytes))), &mut block);
        if block.records == 0 {
            return Ok(from);
        }
        apply(&block)?;
    }
    if block.to >= segment.end() {
        return Ok(block.to);
    }
    let line = Line::new(segment, block.to, block_bytes, threads);
    std::thread::scope(|scope| {
        // Dropped before the threads are waited for, also by a panic.
        let _stop = Stop(&line);
        for number in 1..threads {
            worker::spawn_scoped(scope, &format!("recover-{number}"), || line.run(&mut Parser::new(options)))?;
        }
        line.run_and_apply(&mut parser, apply)
    })
}

/// Turns records into their places.
pub(crate) struct Parser<'a, 'o> {
    check_crc: bool,
    fold: Fold<'o>,
    /// Queues of the block that is read.
    queues: HashMap<(&'a str, u32), u32, FixedState>,
}

/// Takes the places of a record into a block.
struct PlaceCollector<'b, 'a> {
    queues: &'b mut HashMap<(&'a str, u32), u32, FixedState>,
    places: &'b mut Vec<(u32, QueuePlace<'a>)>,
}

impl<'a> Follower<'a> for PlaceCollector<'_, 'a> {
    const TAKES_PLACES: bool = true;

    fn place(&mut self, place: QueuePlace<'a>) {
        let next = self.queues.len() as u32;
        let queue = *self.queues.entry((place.topic, place.queue_id)).or_insert(next);
        self.places.push((queue, place));
    }
}

impl<'a, 'o> Parser<'a, 'o> {
    pub fn new(options: &'o StoreOptions) -> Parser<'a, 'o> {
        Parser { check_crc: options.check_crc_on_recover, fold: options.fold(), queues: HashMap::default() }
    }

    /// Reads the whole records that begin at `from` and further on, below `to`, into an empty block. Ends early at what is none, and when the
    /// block is full.
    fn read(&mut self, walk: &mut Walk<'a>, from: u64, to: u64, block: &mut Block<'a>) {
        let check_crc = self.check_crc;
        self.fill(from, to, block, |at| whole_at(walk.record_at(at).ok()?, at, check_crc));
    }

    /// The same of records that `record_at` shows, each by its log offset.
    pub fn fill(
        &mut self,
        from: u64,
        to: u64,
        block: &mut Block<'a>,
        mut record_at: impl FnMut(u64) -> Option<RecordView<'a>>,
    ) {
        self.queues.clear();
        block.begin_at(from);
        while block.to < to && !block.is_full() {
            let Some(view) = record_at(block.to).filter(|view| view.log_offset() == block.to) else { break };
            self.fold.show(&view, &mut PlaceCollector { queues: &mut self.queues, places: &mut block.places });
            block.last_timestamp = view.store_timestamp();
            block.records += 1;
            block.to += view.total_size() as u64;
        }
        block.queues = self.queues.len();
    }
}

impl<'a> Block<'a> {
    /// That of one record.
    pub fn of(record: RecordView<'a>, options: &StoreOptions) -> Block<'a> {
        let (mut block, at) = (Block::default(), record.log_offset());
        Parser::new(options).fill(at, at.saturating_add(1), &mut block, |_| Some(record));
        block
    }

    /// Empties it.
    fn begin_at(&mut self, from: u64) {
        self.places.clear();
        (self.queues, self.records) = (0, 0);
        (self.from, self.to) = (from, from);
    }

    fn is_full(&self) -> bool {
        self.places.len() >= PLACES_MAX
    }
}

/// Blocks on their way from the log to who applies them.
struct Line<'a> {
    segment: &'a Segment,
    from: u64,
    block_bytes: u64,
    /// Guards who does what next. Nothing is taken inside it, and nobody waits for the device under it.
    state: Mutex<BlockRing<'a>>,
    changed: Condvar,
}

/// Blocks have numbers: the one with number `n` has the records that begin in the `n`th stretch of `block_bytes`.
struct BlockRing<'a> {
    /// Blocks that a thread has taken.
    taken: u64,
    /// Blocks that are applied, or are being applied.
    applied: u64,
    /// Those that are read and not applied, by their number: the ring's length is how many there may be.
    read: Vec<Option<Block<'a>>>,
    /// What is applied, to be used again.
    spare: Vec<Block<'a>>,
    is_stopped: bool,
}

/// What a thread does next.
enum BlockTurn<'a> {
    Read(u64, Block<'a>),
    Apply(u64, Block<'a>),
    End,
}

impl<'a> Line<'a> {
    fn new(segment: &'a Segment, from: u64, block_bytes: u64, threads: usize) -> Line<'a> {
        let state = BlockRing {
            taken: 0,
            applied: 0,
            read: std::iter::repeat_with(|| None).take(threads * BLOCKS_PER_THREAD).collect(),
            spare: Vec::new(),
            is_stopped: false,
        };
        Line { segment, from, block_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Reads blocks until there is none left.
    fn run(&self, parser: &mut Parser<'a, '_>) {
        while let BlockTurn::Read(number, block) = self.turn(false) {
            self.read(number, block, parser);
        }
    }

    /// Applies blocks in the order of the log, and says where that ended.
    fn run_and_apply(
        &self,
        parser: &mut Parser<'a, '_>,
        apply: &mut dyn FnMut(&Block<'a>) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let mut reached = self.from;
        loop {
            match self.turn(true) {
                BlockTurn::Read(number, block) => self.read(number, block, parser),
                BlockTurn::Apply(number, mut block) => {
                    reached = self.apply(reached, self.begin_of(number + 1), &mut block, parser, apply)?;
                    if reached < self.begin_of(number + 1) {
                        return Ok(reached);
                    }
                    self.state.lock().spare.push(block);
                }
                BlockTurn::End => return Ok(reached),
            }
        }
    }

    /// Applies the records that begin at `from` and further on, below `end`, and says where the last one ends: below `end` if something
    /// else begins there. They are in the block, if whoever read it has found where they begin.
    fn apply(
        &self,
        from: u64,
        end: u64,
        block: &mut Block<'a>,
        parser: &mut Parser<'a, '_>,
        apply: &mut dyn FnMut(&Block<'a>) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        if from >= end {
            // A long record covers the stretch.
            return Ok(from);
        }
        let mut walk = Walk::new(self.segment, SCAN_STRETCH);
        if block.from != from {
            parser.read(&mut walk, from, end, block);
        }
        apply(block)?;
        // Each turn goes on by a record, or is the last.
        while block.to < end && block.is_full() {
            parser.read(&mut walk, block.to, end, block);
            apply(block)?;
        }
        Ok(block.to)
    }

    /// Waits until there is something to do.
    fn turn(&self, is_applier: bool) -> BlockTurn<'a> {
        let mut state = self.state.lock();
        // Ends because a block that is taken gets read by whoever has taken it, and that makes room.
        loop {
            if state.is_stopped {
                return BlockTurn::End;
            }
            let ring = state.read.len() as u64;
            if is_applier {
                if self.begin_of(state.applied) >= self.segment.end() {
                    return BlockTurn::End;
                }
                let next = (state.applied % ring) as usize;
                if let Some(block) = state.read[next].take() {
                    state.applied += 1;
                    self.changed.notify_all();
                    return BlockTurn::Apply(state.applied - 1, block);
                }
            }
            if self.begin_of(state.taken) < self.segment.end() {
                if state.taken < state.applied + ring {
                    state.taken += 1;
                    let block = state.spare.pop().unwrap_or_default();
                    return BlockTurn::Read(state.taken - 1, block);
                }
            } else if !is_applier {
                return BlockTurn::End;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Where the stretch of a block begins, and the one before it ends.
    fn begin_of(&self, number: u64) -> u64 {
        self.from.saturating_add(number.saturating_mul(self.block_bytes)).min(self.segment.end())
    }

    fn read(&self, number: u64, mut block: Block<'a>, parser: &mut Parser<'a, '_>) {
        let (begin, end) = (self.begin_of(number), self.begin_of(number + 1));
        // Where none begins, or the device does not give all of it, there is nothing in the block.
        block.begin_at(end);
        if let Ok((mut walk, bytes)) = Walk::ahead(self.segment, begin, end) {
            let from = if number == 0 { Some(begin) } else { first_record(bytes, begin) };
            if let Some(from) = from {
                parser.read(&mut walk, from, end, &mut block);
            }
        }
        let mut state = self.state.lock();
        let place = (number % state.read.len() as u64) as usize;
        state.read[place] = Some(block);
        self.changed.notify_all();
    }
}

/// Where the first record begins in these bytes, which stand at the log offset `begin`: it says so itself.
fn first_record(bytes: &[u8], begin: u64) -> Option<u64> {
    memchr::memmem::find_iter(bytes, &MAGIC).find_map(|magic| {
        let place = magic.checked_sub(MAGIC_AT)?;
        let stated = bytes.get(place + at::LOG_OFFSET..)?.first_chunk()?;
        let is_its_own = u64::from_be_bytes(*stated) == begin + place as u64;
        is_its_own.then_some(begin + place as u64)
    })
}

/// Ends the threads of a line when it goes.
struct Stop<'l, 'a>(&'l Line<'a>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.state.lock().is_stopped = true;
        self.0.changed.notify_all();
    }
}
