//! The bodies and keys of messages.

use bytes::Bytes;
use env::Random;

use crate::error::BenchError;
use crate::fields::read_at_most;
use crate::stamp::Stamp;
use crate::workload::{KeyDistributor, Workload};

/// Keys that messages share, as in the OpenMessaging benchmark.
const KEYS: u64 = 10_000;

/// Bodies made before the run; each message gets a copy of one, with its stamp.
pub struct Payloads {
    bodies: Vec<Vec<u8>>,
    keys: KeyDistributor,
}

impl Payloads {
    /// As the workload says.
    pub fn new(workload: &Workload, random: &Random) -> Result<Payloads, BenchError> {
        let size = workload.message_size;
        let bodies = match &workload.payload_file {
            Some(path) => {
                let read = read_at_most(path, size as u64);
                match read.map_err(|cause| BenchError::File { path: path.clone(), cause })? {
                    Some(body) if body.len() == size => vec![body],
                    other => {
                        let bytes = other.map_or("more".to_owned(), |body| format!("{} bytes", body.len()));
                        let text = format!("payloadFile {} has {bytes}, and messageSize is {size}", path.display());
                        return Err(BenchError::Invalid(text));
                    }
                }
            }
            None if workload.use_randomized_payloads => {
                let random_bytes = (size as f64 * workload.random_bytes_ratio).round() as usize;
                (0..workload.randomized_payload_pool_size).map(|_| partly_random(size, random_bytes, random)).collect()
            }
            None => vec![vec![0; size]],
        };
        Ok(Payloads { bodies, keys: workload.key_distributor })
    }

    /// The body of a message.
    pub fn body(&self, stamp: &Stamp) -> Bytes {
        let mut body = self.bodies[(stamp.sequence % self.bodies.len() as u64) as usize].clone();
        stamp.write(&mut body);
        body.into()
    }

    /// The key of a message, if it has one.
    pub fn key(&self, stamp: &Stamp) -> Option<String> {
        let which = match self.keys {
            KeyDistributor::NoKey => return None,
            KeyDistributor::KeyRoundRobin => stamp.sequence % KEYS,
            KeyDistributor::RandomNano => stamp.due_ns % KEYS,
        };
        Some(format!("key-{which}"))
    }
}

fn partly_random(size: usize, random_bytes: usize, random: &Random) -> Vec<u8> {
    let mut body = Vec::with_capacity(size + 8);
    while body.len() < random_bytes {
        body.extend_from_slice(&random.next_u64().to_ne_bytes());
    }
    body.truncate(random_bytes);
    body.resize(size, 0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;

    #[test]
    fn half_of_a_body_is_random_where_half_was_asked_for_and_all_have_their_stamp() {
        let mut case = Case::new();
        for (key, value) in [
            ("messageSize", "1000"),
            ("useRandomizedPayloads", "true"),
            ("randomBytesRatio", "0.5"),
            ("keyDistributor", "KEY_ROUND_ROBIN"),
        ] {
            case.set(key, value, "test").unwrap();
        }
        let payloads = Payloads::new(&case.finish().unwrap().0, &Random::seeded(1)).unwrap();
        let stamp = Stamp { lane: 1, producer: 2, run: 3, sequence: 20_001, due_ns: 5 };
        let body = payloads.body(&stamp);
        assert_eq!(
            (body.len(), Stamp::read(&body), payloads.key(&stamp).as_deref()),
            (1000, Some(stamp), Some("key-1"))
        );
        assert!(body[32..500].iter().filter(|byte| **byte != 0).count() > 400);
        assert!(body[500..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_payload_file_has_the_size_of_a_message() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("body");
        std::fs::write(&file, [7; 64]).unwrap();
        let mut case = Case::new();
        case.set("payloadFile", file.to_str().unwrap(), "test").unwrap();
        case.set("messageSize", "64", "test").unwrap();
        let payloads = Payloads::new(&case.finish().unwrap().0, &Random::seeded(1)).unwrap();
        let stamp = Stamp { lane: 0, producer: 0, run: 0, sequence: 0, due_ns: 0 };
        assert_eq!(payloads.body(&stamp)[32..], [7; 32]);
        case.set("messageSize", "65", "test").unwrap();
        let said = Payloads::new(&case.finish().unwrap().0, &Random::seeded(1)).err().unwrap().to_string();
        assert!(said.ends_with("has 64 bytes, and messageSize is 65"), "{said}");
    }
}
