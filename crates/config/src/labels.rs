//! `metricsLabel`: labels that every metric has besides its own, written `name:value,name:value`.

/// Labels of our own metrics, which nobody may set for all of them.
pub const OWN: [&str; 25] = [
    "cause",
    "cluster",
    "consume_mode",
    "consumer_group",
    "is_long_polling",
    "is_retry",
    "is_system",
    "language",
    "le",
    "message_type",
    "metric",
    "node_id",
    "node_type",
    "part",
    "protocol_type",
    "reason",
    "request_code",
    "response_code",
    "result",
    "storage_medium",
    "storage_type",
    "threads",
    "topic",
    "version",
    "waits_for",
];

/// More would only make each line longer.
const LABELS_MAX: usize = 32;

/// What a text says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Names and values.
    pub(crate) labels: Vec<(String, String)>,
    /// Parts that are no labels, and why they are left out.
    pub(crate) wrong: Vec<(String, &'static str)>,
}

/// Reads names and values, and leaves out what is none.
pub(crate) fn parse(text: &str) -> Parsed {
    let Parsed { mut labels, mut wrong } = Parsed::default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((name, value)) = part.split_once(':').map(|(name, value)| (name.trim(), value.trim())) else {
            wrong.push((part.to_owned(), "it is not name:value"));
            continue;
        };
        let objection = if !is_name(name) {
            Some("the name of a label has letters, digits and _, no digit first, and does not begin with __")
        } else if OWN.contains(&name) {
            Some("metrics have that label themselves")
        } else if labels.iter().any(|(known, _)| known == name) {
            Some("that label is there before")
        } else if value.is_empty() {
            Some("a label without a value is none")
        } else if labels.len() >= LABELS_MAX {
            Some("there are 32 labels before it, which is the limit")
        } else {
            None
        };
        match objection {
            Some(why) => wrong.push((part.to_owned(), why)),
            None => labels.push((name.to_owned(), value.to_owned())),
        }
    }
    Parsed { labels, wrong }
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
        && !name.starts_with("__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_as_rocketmq_reads_them() {
        let Parsed { labels, wrong } = parse("zone:a, team:orders,,url:http://x");
        let expected = [("zone", "a"), ("team", "orders"), ("url", "http://x")];
        assert_eq!(labels, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(wrong, []);
        assert_eq!(parse(""), Parsed::default());
    }

    #[test]
    fn what_prometheus_could_not_read_is_left_out() {
        let Parsed { labels, wrong } = parse("a-b:1,9a:1,__a:1,topic:x,zone:a,zone:b,plain,empty:,:x");
        assert_eq!(labels, [("zone".to_owned(), "a".to_owned())]);
        let parts: Vec<_> = wrong.iter().map(|(part, _)| part.as_str()).collect();
        assert_eq!(parts, ["a-b:1", "9a:1", "__a:1", "topic:x", "zone:b", "plain", "empty:", ":x"]);
        let many: Vec<String> = (0..40).map(|number| format!("l{number}:v")).collect();
        let Parsed { labels, wrong } = parse(&many.join(","));
        assert_eq!((labels.len(), wrong.len()), (LABELS_MAX, 8));
    }
}
