//! Pauses between attempts to follow a master.

use std::time::Duration;

use env::Random;

/// After the first attempt that failed.
const FIRST: Duration = Duration::from_millis(200);
/// At most.
const LONGEST: Duration = Duration::from_secs(5);

/// Doubles with each attempt that brought nothing, up to 5 s, and is spread over half of that.
#[derive(Debug)]
pub struct BackOff {
    random: Random,
    failures: u32,
}

impl BackOff {
    /// The pauses are spread by this.
    pub fn new(random: Random) -> BackOff {
        BackOff { random, failures: 0 }
    }

    /// An attempt brought bytes of the log.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The pause after an attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = u32::try_from(pause.as_millis() / 2).unwrap_or(u32::MAX);
        pause - Duration::from_millis(u64::from(self.random.below(half)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_seconds_and_begin_again_after_a_success() {
        let mut back_off = BackOff::new(Random::seeded(1));
        let mut longest = FIRST;
        for _ in 0..40 {
            let pause = back_off.pause();
            assert!(pause <= longest && pause >= longest / 2, "{pause:?} of {longest:?}");
            longest = (longest * 2).min(LONGEST);
        }
        back_off.succeeded();
        assert!(back_off.pause() <= FIRST);
    }
}
