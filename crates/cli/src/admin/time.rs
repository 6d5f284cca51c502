//! Times as `mqadmin` writes and reads them, in the zone of this machine.

use anyhow::{Context, Result};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// How times are written where an option takes one: `2026-11-20#15:04:05:678`.
const OPTION_FORMAT: &str = "%Y-%m-%d#%H:%M:%S";

fn zoned(ms: i64) -> Option<Zoned> {
    Timestamp::from_millisecond(ms).ok().map(|time| time.to_zoned(TimeZone::system()))
}

/// `2026-11-20 15:04:05,678`; the number itself if it is no time.
pub fn to_text(ms: i64) -> String {
    zoned(ms).map_or_else(|| ms.to_string(), |time| time.strftime("%Y-%m-%d %H:%M:%S,%3f").to_string())
}

/// `2026-11-20 15:04:05`; the number itself if it is no time.
pub fn to_seconds(ms: i64) -> String {
    zoned(ms).map_or_else(|| ms.to_string(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Reads milliseconds, or `yyyy-MM-dd#HH:mm:ss:SSS`.
pub fn parse(text: &str) -> Result<i64> {
    let text = text.trim();
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    let read = || -> Option<i64> {
        let (seconds, ms) = text.rsplit_once(':')?;
        let ms: i64 = ms.parse().ok().filter(|ms| (0..1000).contains(ms))?;
        let time = DateTime::strptime(OPTION_FORMAT, seconds).ok()?;
        Some(time.to_zoned(TimeZone::system()).ok()?.timestamp().as_millisecond() + ms)
    };
    read().with_context(|| format!("\"{text}\" is not a time: milliseconds or yyyy-MM-dd#HH:mm:ss:SSS is expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_or_a_date_with_milliseconds() {
        assert_eq!(parse("1700000000123").unwrap(), 1_700_000_000_123);
        assert_eq!(parse(" -1 ").unwrap(), -1);
        let text = to_text(1_700_000_000_123).replace(' ', "#").replace(',', ":");
        assert_eq!(parse(&text).unwrap(), 1_700_000_000_123);
        for wrong in ["", "yesterday", "2026-11-20#15:04:05", "2026-11-20#15:04:05:1000", "2026-13-20#15:04:05:000"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
