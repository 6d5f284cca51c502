//! RocketMQ's hashes of keys.

use protocol::record::{self, Scanned};

use super::keys::{self, KeyKind};

/// The hashes that the index has of an encoded record; none if it is no record.
pub(crate) fn hashes_in(record: &[u8]) -> Vec<u32> {
    let mut hashes = Vec::new();
    if let Ok(Scanned::Record(view)) = record::scan(record, false) {
        keys::all_of(&view, &mut |kind, key| hashes.push(hash_of(view.topic(), kind, key)));
    }
    hashes
}

/// RocketMQ's hash of a key in a topic.
pub(super) fn hash_of(topic: &str, kind: KeyKind, key: &str) -> u32 {
    TopicHash::of(topic).of_key(kind, key)
}

/// The part of the hash that all keys of a topic share.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopicHash(i32);

impl TopicHash {
    pub fn of(topic: &str) -> TopicHash {
        TopicHash(java_hash(0, topic))
    }

    pub fn of_key(self, kind: KeyKind, key: &str) -> u32 {
        let between = match kind {
            KeyKind::Key => "#",
            KeyKind::Tag => "#T#",
        };
        let hash = java_hash(java_hash(self.0, between), key);
        hash.checked_abs().unwrap_or(0).unsigned_abs()
    }
}

/// Goes on with Java's `String.hashCode`.
fn java_hash(hash: i32, text: &str) -> i32 {
    const P: [i32; 5] = [1, 31, 31 * 31, 31 * 31 * 31, 31 * 31 * 31 * 31];
    if !text.is_ascii() {
        return text.encode_utf16().fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    }
    // Four at a time, so that not every step waits for the multiplication of the one before.
    let (fours, rest) = text.as_bytes().as_chunks::<4>();
    let hash = fours.iter().fold(hash, |hash, four| {
        let [a, b, c, d] = four.map(i32::from);
        hash.wrapping_mul(P[4]).wrapping_add(a * P[3] + b * P[2] + c * P[1] + d)
    });
    rest.iter().fold(hash, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_javas() {
        let by_steps =
            |text: &str| text.encode_utf16().fold(0i32, |h, u| h.wrapping_mul(31).wrapping_add(i32::from(u)));
        // "hello".hashCode() in Java.
        assert_eq!(java_hash(0, "hello"), 99_162_322);
        for length in 0..40 {
            let text: String = ('!'..).take(length).collect();
            assert_eq!(java_hash(0, &text), by_steps(&text));
            assert_eq!(java_hash(java_hash(0, "topic"), &text), by_steps(&format!("topic{text}")));
            let wide = format!("{text}ü𝄞");
            assert_eq!(java_hash(java_hash(0, "topic"), &wide), by_steps(&format!("topic{wide}")));
        }
        assert_eq!(hash_of("topic", KeyKind::Tag, "a"), by_steps("topic#T#a").unsigned_abs());
        assert_eq!(hash_of("topic", KeyKind::Key, "a"), by_steps("topic#a").unsigned_abs());
    }
}
