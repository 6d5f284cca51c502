//! Light queues: a message can stand in queues beside its own, which are named in its property `INNER_MULTI_DISPATCH`; its number in
//! each of them is in `INNER_MULTI_QUEUE_OFFSET`, in the same order. A light queue is queue 0 of a topic `%LMQ%…` that nobody registers.
//!
//! The numbers are known only under the log's lock. So a record is encoded with room for the longest ones at its end ([`room`]), and
//! [`write_offsets`] fills that in and says where the record ends.

use crate::names;
use crate::properties::{NAME_VALUE, PROPERTY_END, name};
use crate::record::{RecordView, at};

/// Between the names, and between the numbers.
pub const SEPARATOR: char = ',';
/// The only queue of a light queue's topic.
pub const QUEUE_ID: u32 = 0;
/// Longest name in bytes: it is a folder's.
pub const NAME_MAX: usize = 255;
/// Light queues that one message may stand in: as many as have room in its properties, with names of usual length.
pub const QUEUES_PER_MESSAGE_MAX: usize = 1000;
/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Why a message cannot stand in the light queues that it names. The text says which name is meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LightError {
    /// No light queue.
    #[error("INNER_MULTI_DISPATCH names \"{0}\", which is no light queue: they begin with %LMQ%")]
    Prefix(String),
    /// No folder can have this name.
    #[error("INNER_MULTI_DISPATCH names a light queue of {bytes} bytes, \"{name}\"; the limit is {NAME_MAX}")]
    Long {
        /// Its beginning.
        name: String,
        /// All of it.
        bytes: usize,
    },
    /// No folder can have this name either.
    #[error(
        "INNER_MULTI_DISPATCH names \"{0}\": a light queue's name is a folder's, so it has no / and no control character"
    )]
    Character(String),
    /// Which of its two numbers would be the right one?
    #[error("INNER_MULTI_DISPATCH names \"{0}\" twice")]
    Twice(String),
    /// A light queue that the message is sent to anyway.
    #[error("INNER_MULTI_DISPATCH names \"{0}\", which is the topic of the message itself")]
    Itself(String),
    /// Too many.
    #[error("INNER_MULTI_DISPATCH names {0} light queues, the limit for a message is {QUEUES_PER_MESSAGE_MAX}")]
    Many(usize),
}

/// Characters of a name that an error shows.
const SHOWN: usize = 80;

/// The names in `INNER_MULTI_DISPATCH`.
pub fn queues(list: &str) -> impl Iterator<Item = &str> {
    list.split(SEPARATOR)
}

/// Whether a light queue may have this name.
pub fn check_name(name: &str) -> Result<(), LightError> {
    let shown = || name.chars().take(SHOWN).collect();
    if !names::is_lmq(name) || name.len() == names::LMQ_PREFIX.len() {
        return Err(LightError::Prefix(shown()));
    }
    if name.len() > NAME_MAX {
        return Err(LightError::Long { name: shown(), bytes: name.len() });
    }
    if name.bytes().any(|byte| byte == b'/' || byte == b',' || byte.is_ascii_control()) {
        return Err(LightError::Character(shown()));
    }
    Ok(())
}

/// Whether a message of `topic` may stand in all of them.
pub fn check(list: &str, topic: &str) -> Result<(), LightError> {
    let count = queues(list).count();
    if count > QUEUES_PER_MESSAGE_MAX {
        return Err(LightError::Many(count));
    }
    let mut seen = Vec::with_capacity(count);
    for queue in queues(list) {
        check_name(queue)?;
        if queue == topic {
            return Err(LightError::Itself(queue.to_owned()));
        }
        seen.push(queue);
    }
    seen.sort_unstable();
    match seen.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(LightError::Twice(pair[0].to_owned())),
        None => Ok(()),
    }
}

/// Bytes that the numbers in so many light queues take at most, with what stands between and behind them.
pub const fn room(queues: usize) -> usize {
    queues * (DIGITS_MAX + 1)
}

/// Adds the property of the numbers to a property string, with room instead of them. It must stay the last one.
pub fn put_room(properties: &mut Vec<u8>, queues: usize) {
    properties.extend_from_slice(name::INNER_MULTI_QUEUE_OFFSET.as_bytes());
    properties.push(NAME_VALUE);
    properties.resize(properties.len() + room(queues), b'0');
}

/// Fills the room at the end of an encoded record, whose property string has `properties_bytes`. Returns the bytes that the record has
/// now; what lies behind them is no part of it any more.
///
/// # Panics
/// If the record is shorter than the room: the caller passes what was encoded with [`put_room`].
pub fn write_offsets(record: &mut [u8], properties_bytes: usize, offsets: impl ExactSizeIterator<Item = u64>) -> usize {
    let whole = record.len();
    let mut end = whole - room(offsets.len());
    for (place, offset) in offsets.enumerate() {
        if place > 0 {
            record[end] = SEPARATOR as u8;
            end += 1;
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(offset).as_bytes();
        record[end..end + digits.len()].copy_from_slice(digits);
        end += digits.len();
    }
    record[end] = PROPERTY_END;
    end += 1;
    let length_at = whole - properties_bytes - 2;
    let length = (properties_bytes - (whole - end)) as u16;
    record[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    record[at::TOTAL_SIZE..at::TOTAL_SIZE + 4].copy_from_slice(&(end as u32).to_be_bytes());
    end
}

/// The light queues that a stored record stands in, and its numbers there. As in Apache, lists of different lengths say nothing.
pub fn places<'a>(record: &RecordView<'a>) -> impl Iterator<Item = (&'a str, u64)> {
    let lists = record.property(name::INNER_MULTI_QUEUE_OFFSET).zip(record.property(name::INNER_MULTI_DISPATCH));
    // Java's `split` drops what is empty at the end.
    let lists = lists.map(|(offsets, names)| (offsets.trim_end_matches(SEPARATOR), names.trim_end_matches(SEPARATOR)));
    let lists = lists.filter(|(offsets, names)| {
        names::takes_light_queues(record.topic()) && queues(offsets).count() == queues(names).count()
    });
    lists.into_iter().flat_map(|(offsets, names)| {
        queues(names).zip(queues(offsets)).filter_map(|(queue, offset)| {
            let offset = offset.parse::<i64>().ok().and_then(|offset| u64::try_from(offset).ok())?;
            check_name(queue).is_ok().then_some((queue, offset))
        })
    })
}

/// The number of a record in a queue of this topic: its own, or one of the light queues that it stands in.
pub fn offset_in(record: &RecordView<'_>, topic: &str) -> Option<u64> {
    if !names::is_lmq(topic) || record.topic() == topic {
        return Some(record.queue_offset());
    }
    places(record).find(|(queue, _)| *queue == topic).map(|(_, offset)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::{PropertiesWriter, get};
    use crate::record::{self, RecordDraft, Scanned};

    fn encoded(topic: &str, list: &str, offsets: &[u64]) -> Vec<u8> {
        let mut properties =
            PropertiesWriter::new().put("a", "b").put(name::INNER_MULTI_DISPATCH, list).as_bytes().to_vec();
        put_room(&mut properties, offsets.len());
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft {
            queue_id: 3,
            born_timestamp: 1,
            body: b"body",
            properties: &properties,
            ..RecordDraft::plain(topic, host)
        };
        let mut out = vec![9; 5];
        draft.encode(&mut out).unwrap();
        let end = write_offsets(&mut out[5..], properties.len(), offsets.iter().copied());
        out[5..5 + end].to_vec()
    }

    #[test]
    fn numbers_of_any_length_make_a_whole_record() {
        for offsets in [&[0, 7][..], &[i64::MAX as u64, 1 << 40, 12], &[5]] {
            let list: Vec<String> = (0..offsets.len()).map(|place| format!("%LMQ%q{place}")).collect();
            let bytes = encoded("T", &list.join(","), offsets);
            let Ok(Scanned::Record(view)) = record::scan(&bytes, true) else { panic!("no record") };
            assert_eq!(view.total_size(), bytes.len());
            let expected: Vec<String> = offsets.iter().map(u64::to_string).collect();
            assert_eq!(get(&view.properties(), name::INNER_MULTI_QUEUE_OFFSET), Some(expected.join(",").as_str()));
            let found: Vec<_> = places(&view).collect();
            let expected: Vec<_> = list.iter().map(String::as_str).zip(offsets.iter().copied()).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_longest_number_fits_the_room() {
        let bytes = encoded("T", "%LMQ%a,%LMQ%b", &[u64::MAX, u64::MAX]);
        let Ok(Scanned::Record(view)) = record::scan(&bytes, true) else { panic!("no record") };
        let text = format!("{0},{0}", u64::MAX);
        assert_eq!(view.property(name::INNER_MULTI_QUEUE_OFFSET), Some(text.as_str()));
        assert_eq!(places(&view).count(), 0, "Java has no such number");
    }

    #[test]
    fn retries_and_topics_of_the_system_stand_in_no_light_queue() {
        for topic in ["%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC"]
        {
            let bytes = encoded(topic, "%LMQ%a", &[1]);
            let Ok(Scanned::Record(view)) = record::scan(&bytes, true) else { panic!("no record") };
            assert_eq!(places(&view).count(), 0, "{topic}");
        }
    }

    #[test]
    fn lists_that_do_not_fit_each_other_say_nothing() {
        let bytes = encoded("T", "%LMQ%a,%LMQ%b", &[1]);
        let Ok(Scanned::Record(view)) = record::scan(&bytes, true) else { panic!("no record") };
        assert_eq!(places(&view).count(), 0);
        let bytes = encoded("T", "plain,%LMQ%b", &[1, 2]);
        let Ok(Scanned::Record(view)) = record::scan(&bytes, true) else { panic!("no record") };
        assert_eq!(places(&view).collect::<Vec<_>>(), [("%LMQ%b", 2)]);
    }

    #[test]
    fn a_list_that_no_folder_or_number_could_follow_is_refused_by_name() {
        let long = format!("%LMQ%{}", "x".repeat(NAME_MAX));
        let many = vec!["%LMQ%q"; 10_000].join(",");
        let says = |list: &str| check(list, "%LMQ%self").err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(check("%LMQ%a,%LMQ%$parent$lite,%LMQ%GID@@@device", "T"), Ok(()));
        assert!(says("%LMQ%a,orders").contains("\"orders\""));
        assert!(
            says("").contains("\"\"") && says("%LMQ%a,").contains("\"\"") && says("%LMQ%").contains("no light queue")
        );
        assert!(says(&long).contains("260 bytes") && says(&long).contains("limit is 255"));
        assert!(says("%LMQ%a/b").contains("no /") && says("%LMQ%a\u{3}b").contains("control"));
        assert!(says("%LMQ%a,%LMQ%b,%LMQ%a").contains("\"%LMQ%a\" twice"));
        assert!(says("%LMQ%self").contains("itself"));
        assert!(says(&many).contains("10000 light queues") && says(&many).contains("1000"));
    }
}
