//! The queues of ordered topics, as operators set them (100, namespace `ORDER_TOPIC_CONFIG`): `broker:queues;broker:queues`.
//!
//! Clients take the value apart with each route of the topic, and one that they cannot read leaves them without the route. So it is refused here.

use protocol::code::ResponseCode;

use crate::kv::ORDER_TOPICS;
use crate::names::Refusal;

/// Queues of one broker; a topic has no more.
const QUEUES_MAX: i64 = 65_535;

/// Whether a small setting may have this value.
pub(crate) fn check(namespace: &str, topic: &str, value: &str) -> Result<(), Refusal> {
    if namespace != ORDER_TOPICS {
        return Ok(());
    }
    let illegal = |what: String| {
        let remark = format!(
            "{ORDER_TOPICS} of topic {topic}: {what}; the value is \"{}\", it must be like broker-a:4;broker-b:4",
            value.chars().take(200).collect::<String>()
        );
        Err(Refusal::new(ResponseCode::InvalidParameter, remark))
    };
    // As Java splits: what is empty at the end does not count.
    let parts = value.trim_end_matches(';');
    if parts.is_empty() {
        return illegal("no broker is named".to_owned());
    }
    for part in parts.split(';') {
        let Some((broker, queues)) = part.split_once(':').filter(|(broker, _)| !broker.trim().is_empty()) else {
            return illegal(format!("\"{part}\" is no broker with its number of queues"));
        };
        if !queues.parse::<i64>().is_ok_and(|queues| (1..=QUEUES_MAX).contains(&queues)) {
            return illegal(format!(
                "broker {broker} has \"{queues}\" queues, which is no number from 1 to {QUEUES_MAX}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_a_topic_is_taken_as_clients_can_read_it() {
        for value in ["broker-a:4", "broker-a:4;broker-b:8", "broker-a:4;"] {
            assert!(check(ORDER_TOPICS, "T", value).is_ok(), "{value}");
        }
        assert!(check("else", "T", "anything").is_ok());
    }

    #[test]
    fn an_order_that_would_cost_clients_their_route_is_refused_by_name() {
        for value in
            ["", ";", "broker-a", "broker-a:", "broker-a:x", "broker-a:0", "broker-a:-1", ":4", "a:4;;b:4", "a:4:5"]
        {
            let Err(refusal) = check(ORDER_TOPICS, "T", value) else { panic!("{value} is taken") };
            assert_eq!(refusal.code, ResponseCode::InvalidParameter);
            assert!(refusal.remark.contains("of topic T") && refusal.remark.contains(value), "{}", refusal.remark);
        }
    }
}
