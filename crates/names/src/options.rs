//! What an operator can set, and change while we run (318), by Apache's names.

use std::path::PathBuf;

use config::key::{Default as KeyDefault, Section, State};
use config::{AboveFile, ConfigError, Role, keys, properties};

/// How a value is written in a property file.
trait Setting: Sized {
    const KIND: &'static str;

    fn parse(text: &str) -> Option<Self>;
    fn print(&self) -> String;
}

impl Setting for bool {
    const KIND: &'static str = "true or false";

    fn parse(text: &str) -> Option<bool> {
        match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Setting for u64 {
    const KIND: &'static str = "a number";

    fn parse(text: &str) -> Option<u64> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Setting for String {
    const KIND: &'static str = "a text";

    fn parse(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn print(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    const KIND: &'static str = "a path";

    fn parse(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    fn print(&self) -> String {
        self.display().to_string()
    }
}

/// Why a change of the settings is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// On the black list.
    #[error("Can not update config in black list.")]
    BlackListed,
    /// Not a property file.
    #[error("string2Properties error: {0}")]
    Syntax(#[from] properties::BadEscape),
    /// Of no effect here, or not while the name server runs.
    #[error("{0}")]
    NotTaken(String),
    /// Not of its kind.
    #[error("{key}: \"{value}\" is not {kind}")]
    Invalid {
        /// Which.
        key: String,
        /// As given.
        value: String,
        /// As it should be.
        kind: &'static str,
    },
}

macro_rules! options {
    ($( $(#[$doc:meta])* $field:ident: $kind:ty = $key:literal, $default:expr; )*) => {
        /// The settings of a name server.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            $( $(#[$doc])* pub $field: $kind, )*
            /// What each start takes whatever the file says.
            pub above_file: AboveFile,
        }

        impl Default for Options {
            fn default() -> Options {
                Options { $( $field: $default, )* above_file: AboveFile::default() }
            }
        }

        impl Options {
            /// Every setting, as the text of a property file.
            pub fn print(&self) -> String {
                let mut text = String::new();
                $(
                    text.push_str(concat!($key, "="));
                    text.push_str(&self.$field.print());
                    text.push('\n');
                )*
                text
            }

            /// Sets one value; whether the key is one of ours.
            pub fn set(&mut self, key: &str, value: &str) -> Result<bool, SettingError> {
                match key {
                    $( $key => {
                        let parsed = <$kind>::parse(value.trim());
                        self.$field = parsed.ok_or_else(|| SettingError::Invalid {
                            key: key.to_owned(),
                            value: value.to_owned(),
                            kind: <$kind>::KIND,
                        })?;
                        Ok(true)
                    } )*
                    _ => Ok(false),
                }
            }
        }
    };
}

options! {
    /// Where the KV configuration is kept.
    kv_config_path: PathBuf = "kvConfigPath", PathBuf::from("namesrv/kvConfig.json");
    /// The file that changes from afar are written into. Whoever makes these options reads it at start.
    config_store_path: PathBuf = "configStorePath", PathBuf::from("namesrv/namesrv.properties");
    /// Routes carry the order of a topic.
    order_message_enable: bool = "orderMessageEnable", false;
    /// Brokers are told the order of topics when they register.
    return_order_topic_config_to_broker: bool = "returnOrderTopicConfigToBroker", true;
    /// How often silent brokers are looked for.
    scan_not_active_broker_interval: u64 = "scanNotActiveBrokerInterval", 5000;
    /// Without a master, the replica with the smallest id is published in its place.
    support_acting_master: bool = "supportActingMaster", false;
    /// 206 is answered.
    enable_all_topic_list: bool = "enableAllTopicList", true;
    /// 224 and the unit lists are answered.
    enable_topic_list: bool = "enableTopicList", true;
    /// Brokers are told when the smallest id of their name changes.
    notify_min_broker_id_changed: bool = "notifyMinBrokerIdChanged", false;
    /// A controller runs in this process, which the binary starts.
    enable_controller_in_namesrv: bool = "enableControllerInNamesrv", false;
    /// No route is told before brokers had the time to register.
    need_wait_for_service: bool = "needWaitForService", false;
    /// That time, in seconds.
    wait_seconds_for_service: u64 = "waitSecondsForService", 45;
    /// A topic that a broker does not name any more is gone from it.
    delete_topic_with_broker_registration: bool = "deleteTopicWithBrokerRegistration", false;
    /// Brokers that may be registered, by address and by name; more are refused.
    brokers_max: u64 = "brokersMax", 10_000;
    /// Names of topics that may be registered; more are left out.
    topics_max: u64 = "topicsMax", 1_000_000;
    /// Topics that all broker names together may serve, each counted once for each name; more are left out.
    topic_routes_max: u64 = "topicRoutesMax", 2_000_000;
    /// Queues that a topic may have at one broker.
    topic_queues_max: u64 = "topicQueuesMax", 65_536;
    /// Bytes of a name (of a cluster, a broker, a topic, a namespace, a key) or an address.
    name_bytes_max: u64 = "nameBytesMax", 512;
    /// Key-value settings; more are refused.
    kv_entries_max: u64 = "kvEntriesMax", 100_000;
    /// Bytes of the value of one.
    kv_value_bytes_max: u64 = "kvValueBytesMax", 131_072;
    /// Bytes of all of them, with their namespaces and keys.
    kv_bytes_max: u64 = "kvBytesMax", 8_388_608;
    /// Keys that cannot be changed from afar, separated by semicolons.
    config_black_list: String = "configBlackList", "configBlackList;configStorePath;kvConfigPath".to_owned();
}

/// Keys that cannot be changed from afar whatever the list says, since they name files and the list itself.
const ALWAYS_BLACK_LISTED: [&str; 4] = ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"];

/// What a change from afar comes to.
#[derive(Debug, PartialEq)]
pub struct Updated {
    /// The settings after it.
    pub options: Options,
    /// Keys and values that hold now.
    pub changes: Vec<(String, String)>,
    /// What is to be said beside success.
    pub remarks: Vec<String>,
    /// The same of changes that the next start does not take from the file.
    pub overridden: Vec<String>,
}

impl Options {
    /// The settings after a change from afar, a property file. Either all of it holds or none.
    pub fn updated(&self, text: &str) -> Result<Updated, SettingError> {
        let mut options = self.clone();
        let (mut changes, mut remarks, mut overridden) = (Vec::new(), Vec::new(), Vec::new());
        for properties::Line { key, value, .. } in properties::parse(text)? {
            let name = key.as_str();
            if ALWAYS_BLACK_LISTED.contains(&name)
                || self.config_black_list.split(';').any(|listed| listed.trim() == name)
            {
                return Err(SettingError::BlackListed);
            }
            match may_change(name, &value)? {
                None => {
                    options.set(name, &value)?;
                    let key = keys::find(Role::Names, name);
                    overridden.extend(key.and_then(|key| self.above_file.overrides(key, value.trim())));
                }
                Some(why) => remarks.push(format!("{name} has no effect: {why}")),
            }
            changes.push((key, value));
        }
        Ok(Updated { options, changes, remarks, overridden })
    }
}

/// Whether this key of RocketMQ may change while a name server runs; and why it changes nothing, if so.
fn may_change(name: &str, value: &str) -> Result<Option<&'static str>, SettingError> {
    let not_taken = |error: ConfigError| Err(SettingError::NotTaken(error.to_string()));
    if let Some(new) = keys::present_spelling(name) {
        return not_taken(ConfigError::OldSpelling { old: name.to_owned(), new });
    }
    let Some(key) = keys::find(Role::Names, name) else { return not_taken(ConfigError::Unknown(name.to_owned())) };
    if !Role::Names.reads(key.section) {
        return Err(SettingError::NotTaken(format!("{name} is not read by a name server")));
    }
    match key.state {
        State::Used if key.section != Section::Names || !key.is_live => {
            not_taken(ConfigError::NotLive(name.to_owned()))
        }
        // A start would refuse the file with it.
        State::Used => match key.kind.objection(value.trim()) {
            Some(objection) if !value.trim().is_empty() => {
                Err(SettingError::NotTaken(format!("{name}={value} is {objection}")))
            }
            Some(_) => Err(SettingError::NotTaken(format!("{name}= is empty: say the value that it is to have"))),
            None => Ok(None),
        },
        State::Refused(why) => match key.default {
            KeyDefault::Value(default) if key.kind.same(value.trim(), default) => Ok(Some(why)),
            KeyDefault::Value(_) | KeyDefault::Found(_) => {
                Err(SettingError::NotTaken(format!("{name}={value} cannot be served: {why}")))
            }
        },
        State::Accepted(why) | State::NotNeeded(why) | State::Off(why) => Ok(Some(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_holds_whole_or_not_at_all() {
        let options = Options::default();
        let updated = options.updated("# why\norderMessageEnable : true\n defaultThreadPoolNums = 1\n").unwrap();
        assert!(updated.options.order_message_enable && !options.order_message_enable);
        let change = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(updated.changes, [change("orderMessageEnable", "true"), change("defaultThreadPoolNums", "1")]);
        assert!(updated.remarks[0].starts_with("defaultThreadPoolNums has no effect"), "{:?}", updated.remarks);
        for refused in [
            "orderMessageEnable=true\nstrange=1",
            "waitSecondsForService=soon",
            "waitSecondsForService=9999999999",
            "waitSecondsForService=",
            "enableControllerInNamesrv=true",
            "brokerName=a",
            "listenPort=1",
        ] {
            assert!(matches!(options.updated(refused), Err(SettingError::NotTaken(_))), "{refused}");
        }
        assert_eq!(options.updated("enableTopicList=false\nkvConfigPath=/etc/passwd"), Err(SettingError::BlackListed));
    }

    #[test]
    fn a_change_that_an_option_overrides_at_the_next_start_says_so() {
        let machine = config::Machine { host_name: "a".into(), address: [127, 0, 0, 1].into(), home: "/".into() };
        let mut sources = config::Sources::new(Role::Names, machine);
        sources.command_line.push(("orderMessageEnable".to_owned(), "false".to_owned(), "--set".to_owned()));
        let above_file = config::Settings::load(sources).unwrap().above_file().clone();
        let options = Options { above_file, ..Options::default() };
        let updated = options.updated("orderMessageEnable=true\nneedWaitForService=true").unwrap();
        assert_eq!(updated.overridden.len(), 1, "{:?}", updated.overridden);
        let said = &updated.overridden[0];
        assert!(said.starts_with("orderMessageEnable: the next start takes \"false\" from option --set"), "{said}");
        // It is as true of the next change, and not of one to the same value.
        let again = updated.options.updated("orderMessageEnable=true").unwrap();
        assert_eq!(again.overridden.len(), 1);
        assert!(again.options.updated("orderMessageEnable=FALSE").unwrap().overridden.is_empty());
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let mut options = Options::default();
        let changed = Options { wait_seconds_for_service: 7, ..Options::default() };
        for line in changed.print().lines() {
            let (key, value) = line.split_once('=').unwrap();
            assert_eq!(options.set(key, value), Ok(true));
        }
        assert_eq!(options.wait_seconds_for_service, 7);
    }
}
