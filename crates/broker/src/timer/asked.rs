//! What a producer asks for: the three properties that name a time, and what becomes of them.

use config::StoreSettings;
use env::Random;
use protocol::code::ResponseCode;
use protocol::properties::name;

use super::state::Timers;
use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::write::send_properties::SendProperties;

/// When a message is to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// As soon as it is stored: it names no time, or one that is past.
    Now,
    /// Behind this slot, in ms: `TIMER_OUT_MS`.
    Behind(i64),
}

impl When {
    /// The slot of a message that waits.
    pub(crate) fn slot(self) -> Option<i64> {
        match self {
            When::Now => None,
            When::Behind(slot) => Some(slot),
        }
    }
}

/// When this message is to be delivered, in Apache's order of checks.
pub(crate) fn when(broker: &Broker, facts: &SendProperties<'_>) -> Result<When, Refusal> {
    if facts.has_timer_out {
        return Ok(When::Now);
    }
    let Some((field, text)) = facts.timer() else { return Ok(When::Now) };
    let settings = broker.store_settings.load();
    let Some(timers) = &broker.timers else {
        return Err(Refusal::new(
            ResponseCode::SystemError,
            format!(
                "accurate timer message is not enabled, timerWheelEnable is false: property {field} asks for a delivery time"
            ),
        ));
    };
    let now = broker.clock.now().0;
    let when = decide(field, text, facts.is_timer_delete, now, timers.precision, &settings)?;
    if let When::Behind(slot) = when {
        check_crowd(&broker.random, timers, slot, settings.timer_congest_num_each_slot)?;
    }
    Ok(when)
}

fn decide(
    field: &str,
    text: &str,
    is_delete: bool,
    now: i64,
    precision: i64,
    settings: &StoreSettings,
) -> Result<When, Refusal> {
    let max_ms = settings.timer_max_delay_sec.saturating_mul(1000);
    let illegal = |why: String| {
        Err(Refusal::new(
            ResponseCode::MessageIllegal,
            format!(
                "timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; or if set del msg, the delay \
                 time should be bigger than the current time: {why}"
            ),
        ))
    };
    let Ok(number) = text.parse::<i64>() else {
        return illegal(format!("{field} \"{text}\" is not a number"));
    };
    let due = match field {
        name::TIMER_DELIVER_MS => Some(number),
        name::TIMER_DELAY_SEC => number.checked_mul(1000).and_then(|ms| now.checked_add(ms)),
        _ => now.checked_add(number),
    };
    let too_late = || {
        let limit = settings.timer_max_delay_sec;
        illegal(format!("{field} is {number}, further away than {limit} s (timerMaxDelaySec); now is {now}"))
    };
    // A negative number that is too large for the clock is as much in the past as any.
    let Some(due) = due.or((number < 0).then_some(i64::MIN)) else { return too_late() };
    if due <= now {
        return if is_delete {
            illegal(format!("{field} is {number}, which is past (now is {now}): nothing is left to be taken back"))
        } else {
            Ok(When::Now)
        };
    }
    if due - now > max_ms {
        return too_late();
    }
    // A time on the border of two slots belongs to the earlier one, which is delivered until the border.
    Ok(When::Behind((due - 1) / precision * precision))
}

fn check_crowd(random: &Random, timers: &Timers, slot: i64, most: i64) -> Result<(), Refusal> {
    match timers.is_crowded(slot, most, || random.below(1000)) {
        None => Ok(()),
        Some(count) => Err(Refusal::new(
            ResponseCode::SystemError,
            format!(
                "timer message is under flow control, max num limit is {} or the current value is greater than {most} and less than {}, \
                 trigger random flow control: {count} messages are due in the slot of {slot} (timerCongestNumEachSlot)",
                most.saturating_mul(2),
                most.saturating_mul(2),
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_500;

    fn settings() -> StoreSettings {
        let machine = config::Machine {
            host_name: "localhost".into(),
            address: std::net::IpAddr::from([127, 0, 0, 1]),
            home: "/".into(),
        };
        config::Settings::load(config::Sources::new(config::Role::Broker, machine)).unwrap().store().unwrap()
    }

    fn decided(field: &str, text: &str, is_delete: bool) -> Result<When, String> {
        decide(field, text, is_delete, NOW, 1000, &settings()).map_err(|refusal| {
            assert_eq!(refusal.code, ResponseCode::MessageIllegal);
            refusal.remark
        })
    }

    #[test]
    fn a_time_belongs_to_the_slot_that_ends_with_or_behind_it() {
        assert_eq!(decided("TIMER_DELIVER_MS", "1001000", false), Ok(When::Behind(1_000_000)));
        assert_eq!(decided("TIMER_DELIVER_MS", "1001001", false), Ok(When::Behind(1_001_000)));
        assert_eq!(decided("TIMER_DELAY_MS", "500", false), Ok(When::Behind(1_000_000)));
        assert_eq!(decided("TIMER_DELAY_SEC", "2", false), Ok(When::Behind(1_002_000)));
    }

    #[test]
    fn what_is_past_is_delivered_at_once_and_takes_nothing_back() {
        for (field, text) in [
            ("TIMER_DELIVER_MS", "1000500"),
            ("TIMER_DELIVER_MS", "-9223372036854775808"),
            ("TIMER_DELAY_MS", "0"),
            ("TIMER_DELAY_SEC", "-1"),
            ("TIMER_DELAY_SEC", "-9223372036854775808"),
        ] {
            assert_eq!(decided(field, text, false), Ok(When::Now), "{field} {text}");
            assert!(decided(field, text, true).unwrap_err().contains("is past"));
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_field_value_and_limit() {
        for text in ["259201", "9223372036854775807", "9223372036854776"] {
            let remark = decided("TIMER_DELAY_SEC", text, false).unwrap_err();
            assert!(remark.contains(&format!("TIMER_DELAY_SEC is {text}")) && remark.contains("259200 s"), "{remark}");
        }
        assert!(decided("TIMER_DELIVER_MS", "9223372036854775807", false).is_err());
        for text in ["", "x", "1.5", "9223372036854775808", " 1"] {
            let remark = decided("TIMER_DELAY_MS", text, false).unwrap_err();
            assert!(remark.contains(&format!("TIMER_DELAY_MS \"{text}\" is not a number")), "{remark}");
        }
        assert_eq!(decided("TIMER_DELAY_SEC", "259200", false), Ok(When::Behind(260_200_000)));
    }
}
