//! Values that their key's kind takes and that can never work: what a start would find out later, and without the line.

use std::net::IpAddr;

use protocol::delay::DelayLevels;

use crate::networks::Networks;

/// Why a value can never work, as the end of the sentence "… is".
type Objection = fn(&str) -> Option<String>;

/// The keys that look closer at their values than their kind does.
const CLOSER: [(&str, Objection); 11] = [
    ("brokerIP1", host),
    ("brokerIP2", host),
    ("metricsPromExporterHost", host),
    ("bindAddress", address),
    ("haMasterAddress", log_of_master),
    ("namesrvAddr", name_servers),
    ("replicaAllow", networks),
    ("replicaSecret", secret),
    ("messageDelayLevel", delay_levels),
    ("mappedFileSizeCommitLog", file_of_log),
    ("mappedFileSizeTimerLog", file_of_timer_log),
];

/// The least that a file of the log can hold, as `store` has it.
const LOG_FILE_BYTES_MIN: i64 = 4096;
/// A unit and the end of a file.
const TIMER_FILE_BYTES_MIN: i64 = 52 + 16;
/// Of a secret.
const SECRET_BYTES_MIN: usize = 16;
/// Of a name in DNS, and of a part of it.
const HOST_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Why this value of the key `name` can never work.
pub(crate) fn objection(name: &str, value: &str) -> Option<String> {
    if value.contains(char::REPLACEMENT_CHARACTER) {
        return Some("not UTF-8: U+FFFD stands for bytes that are no letter".to_owned());
    }
    if let Some(c) = value.chars().find(|c| c.is_ascii_control() && *c != '\t') {
        return Some(format!("no text: it holds the control character U+{:04X}", u32::from(c)));
    }
    let (_, objection) = CLOSER.iter().find(|(key, _)| *key == name)?;
    objection(value)
}

fn host(value: &str) -> Option<String> {
    (!is_host(value)).then(|| "neither an address nor the name of a host".to_owned())
}

fn address(value: &str) -> Option<String> {
    value.parse::<IpAddr>().is_err().then(|| "not an IP address".to_owned())
}

fn networks(value: &str) -> Option<String> {
    Networks::parse(value).err()
}

/// Whoever connects gets a proof with which a short secret can be found by trying.
fn secret(value: &str) -> Option<String> {
    let bytes = value.len();
    (bytes < SECRET_BYTES_MIN).then(|| format!("too short: it has {bytes} bytes, and {SECRET_BYTES_MIN} are the least"))
}

fn is_host(value: &str) -> bool {
    if value.parse::<IpAddr>().is_ok() {
        return true;
    }
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = value.strip_suffix('.').unwrap_or(value);
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    name.len() <= HOST_BYTES_MAX && !is_number && name.split('.').all(is_label)
}

fn name_servers(value: &str) -> Option<String> {
    let mut each = value.split(';').map(str::trim).filter(|one| !one.is_empty());
    let wrong = each.find_map(|one| no_host_and_port(one, 9876));
    wrong.map(|wrong| format!("no list of HOST:PORT, joined by semicolons: {wrong}"))
}

/// One, unlike the name servers.
fn log_of_master(value: &str) -> Option<String> {
    no_host_and_port(value, 10912).map(|wrong| format!("no HOST:PORT: {wrong}"))
}

fn no_host_and_port(one: &str, usual_port: u16) -> Option<String> {
    let Some((host, port)) = one.rsplit_once(':').filter(|_| one.parse::<IpAddr>().is_err()) else {
        return Some(format!("{one} has no port; write {one}:{usual_port} if it is the usual one"));
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match port.parse::<u16>() {
        Ok(1..) if is_host(host) => None,
        Ok(1..) => Some(format!("\"{host}\" is neither an address nor the name of a host")),
        Ok(0) | Err(_) => Some(format!("\"{port}\" is no port")),
    }
}

fn delay_levels(value: &str) -> Option<String> {
    DelayLevels::parse(value).err().map(|error| format!("no list of delays, joined by blanks: {error}"))
}

fn file_of_log(value: &str) -> Option<String> {
    below(value, LOG_FILE_BYTES_MIN)
}

fn file_of_timer_log(value: &str) -> Option<String> {
    below(value, TIMER_FILE_BYTES_MIN)
}

fn below(value: &str, min: i64) -> Option<String> {
    let bytes = crate::key::parse_number(value, true)?;
    (bytes < min).then(|| format!("below {min} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_work_is_taken_and_what_cannot_is_not() {
        for (name, value) in [
            ("brokerIP1", "192.0.2.1"),
            ("brokerIP1", "2001:db8::1"),
            ("brokerIP1", "mq_1.example.org."),
            ("namesrvAddr", "a:9876;192.0.2.1:9876; [2001:db8::1]:9876;"),
            ("namesrvAddr", ""),
            ("haMasterAddress", "[2001:db8::1]:10912"),
            ("messageDelayLevel", "1s 5s  1m 1h 1d"),
            ("mappedFileSizeCommitLog", "4k"),
            ("brokerName", "经纪人"),
        ] {
            assert_eq!(objection(name, value), None, "{name}={value}");
        }
        for (name, value) in [
            ("brokerIP1", "change me"),
            ("brokerIP1", "192.0.2.1:10911"),
            ("brokerIP2", "192.0.2.300"),
            ("brokerIP1", "a..b"),
            ("namesrvAddr", "127.0.0.1"),
            ("namesrvAddr", "a:9876,b:9876"),
            ("namesrvAddr", "a:9876;b:0"),
            ("namesrvAddr", "2001:db8::1"),
            ("namesrvAddr", "http://a:9876"),
            ("haMasterAddress", "a:10912;b:10912"),
            ("haMasterAddress", "a:10912;"),
            ("haMasterAddress", "a"),
            ("messageDelayLevel", "1s,5s"),
            ("mappedFileSizeCommitLog", "10"),
            ("mappedFileSizeTimerLog", "1"),
            ("bindAddress", "localhost"),
            ("storePathRootDir", "/data\u{0}/store"),
        ] {
            assert!(objection(name, value).is_some(), "{name}={value:?}");
        }
    }
}
