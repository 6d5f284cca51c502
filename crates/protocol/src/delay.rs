//! The table of delay levels (`messageDelayLevel`).

/// Apache's default table: levels 1 to 18.
pub const DEFAULT: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// No table needs more; each level is a queue of the schedule topic.
pub const LEVELS_MAX: usize = 1024;

/// The delays by level, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels {
    delays_ms: Vec<i64>,
}

/// Why a table of delay levels is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DelayLevelsError {
    /// One entry is not a number with a unit.
    #[error("delay level \"{0}\" is not a number followed by s, m, h or d")]
    BadLevel(String),
    /// Nothing in it.
    #[error("the table of delay levels is empty")]
    Empty,
    /// More than any table needs.
    #[error("{0} delay levels are more than {LEVELS_MAX}")]
    TooMany(usize),
}

impl DelayLevels {
    /// Reads `"1s 5s 1m 2h 1d"`.
    pub fn parse(text: &str) -> Result<DelayLevels, DelayLevelsError> {
        let mut delays_ms = Vec::new();
        for level in text.split_whitespace() {
            delays_ms.push(delay_of(level).ok_or_else(|| DelayLevelsError::BadLevel(level.to_owned()))?);
        }
        if delays_ms.is_empty() {
            return Err(DelayLevelsError::Empty);
        }
        if delays_ms.len() > LEVELS_MAX {
            return Err(DelayLevelsError::TooMany(delays_ms.len()));
        }
        Ok(DelayLevels { delays_ms })
    }

    /// How long a level waits. A level that does not exist waits one second, as in Apache.
    pub fn delay_ms(&self, level: i32) -> i64 {
        let index = usize::try_from(level).ok().and_then(|level| level.checked_sub(1));
        index.and_then(|index| self.delays_ms.get(index)).copied().unwrap_or(1000)
    }

    /// The highest level; messages that ask for more get this one.
    pub fn max_level(&self) -> i32 {
        self.delays_ms.len() as i32
    }
}

impl Default for DelayLevels {
    fn default() -> Self {
        let (s, m, h) = (1000, 60_000, 3_600_000);
        let minutes = (1..=10).map(|n| n * m);
        let delays_ms =
            [s, 5 * s, 10 * s, 30 * s].into_iter().chain(minutes).chain([20 * m, 30 * m, h, 2 * h]).collect();
        DelayLevels { delays_ms }
    }
}

fn delay_of(level: &str) -> Option<i64> {
    let unit = match level.bytes().last()? {
        b's' => 1000,
        b'm' => 60_000,
        b'h' => 3_600_000,
        b'd' => 86_400_000,
        _ => return None,
    };
    level[..level.len() - 1].parse::<i64>().ok().filter(|count| *count >= 0)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_apaches_table() {
        assert_eq!(DelayLevels::parse(DEFAULT), Ok(DelayLevels::default()));
        assert_eq!(DelayLevels::default().max_level(), 18);
        assert_eq!(DelayLevels::default().delay_ms(3), 10_000);
        assert_eq!(DelayLevels::default().delay_ms(18), 7_200_000);
    }

    #[test]
    fn a_level_outside_of_the_table_waits_one_second() {
        for level in [0, -1, 19, i32::MIN, i32::MAX] {
            assert_eq!(DelayLevels::default().delay_ms(level), 1000);
        }
    }

    #[test]
    fn a_bad_level_is_named() {
        assert_eq!(DelayLevels::parse("1s 5x"), Err(DelayLevelsError::BadLevel("5x".into())));
        assert_eq!(DelayLevels::parse("1s ü"), Err(DelayLevelsError::BadLevel("ü".into())));
        assert!(DelayLevels::parse("9223372036854775807d").is_err());
        assert_eq!(DelayLevels::parse("  "), Err(DelayLevelsError::Empty));
    }
}
