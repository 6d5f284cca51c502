//! Numbers of epochs: a master's time among the brokers of a set, without a controller. The last two digits are the id that its holder had before.

/// From one number of a broker to its next.
const STEP: u64 = 100;

/// The number for the epoch of a broker with this id, above all that are known.
pub fn next(known: u64, broker_id: i64) -> u64 {
    let digits = broker_id.unsigned_abs() % STEP;
    let this = known - known % STEP + digits;
    // The first is 1xx: 0 is the time before all changes.
    if this > known && this >= STEP { this } else { (known / STEP + 1) * STEP + digits }
}

/// The same where nobody hands over: above each number that a master may have handed over from this one, and nobody has heard of.
pub fn next_unheard(known: u64, broker_id: i64) -> u64 {
    next(known - known % STEP + 2 * STEP - 1, broker_id)
}

/// Whether a broker with this id may have an epoch of this number.
pub fn is_for(number: u64, broker_id: i64) -> bool {
    number >= STEP && number % STEP == broker_id.unsigned_abs() % STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_different_brokers_have_different_numbers() {
        assert_eq!((next(0, 1), next(0, 2), next(0, 0)), (101, 102, 100));
        assert_eq!((next(101, 1), next(101, 2), next(102, 1), next(203, 103)), (201, 102, 201, 303));
        for known in [0, 1, 99, 100, 101, 199, 250, 1_000] {
            for id in [0, 1, 7, 99, 100, 123] {
                let next = next(known, id);
                assert!(next > known && is_for(next, id), "{known} {id} {next}");
            }
        }
        assert_eq!((next_unheard(0, 1), next_unheard(101, 2), next_unheard(250, 0)), (201, 302, 400));
        for known in [0, 1, 99, 100, 101, 199, 250, 1_000] {
            let handed = [0, 1, 7, 99].map(|id| next(known, id));
            assert!(handed.iter().all(|handed| *handed < next_unheard(known, 0)), "{known}");
        }
        assert!(!is_for(0, 0) && !is_for(1, 1) && !is_for(102, 1));
    }
}
