//! What one configuration key is: its name, what it takes, and what becomes of it here.

/// One line of the table of keys.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// RocketMQ's name for it, or ours where RocketMQ has nothing like it.
    pub name: &'static str,
    /// Which of RocketMQ's configuration classes has it.
    pub section: Section,
    /// Which values it takes.
    pub kind: Kind,
    /// What holds when nobody says anything.
    pub default: Default,
    /// What becomes of it here.
    pub state: State,
    /// May it change while the broker runs?
    pub is_live: bool,
    /// What it means.
    pub about: &'static str,
}

/// Where RocketMQ keeps a key. The same name may stand in several sections with different defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `BrokerIdentity` and `BrokerConfig`.
    Broker,
    /// `MessageStoreConfig`.
    Store,
    /// `NettyServerConfig`.
    Net,
    /// `NettyClientConfig`.
    NetClient,
    /// `NamesrvConfig`.
    Names,
    /// `AuthConfig`.
    Auth,
    /// `ControllerConfig` and `JraftConfig`.
    Controller,
    /// `BrokerContainerConfig`.
    Container,
    /// Properties of the Java virtual machine, which RocketMQ takes from its command line or from `tls.properties`.
    Machine,
    /// None of them: limits that only this broker has.
    Limits,
    /// None of them: the journal, in which this broker keeps what Apache keeps in `config/*.json`.
    Journal,
    /// Keys of earlier versions, and keys that no version ever read but that files carry along.
    Old,
}

/// Which values a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`, in any case of letters.
    Bool,
    /// A whole number. With `scaled`, it may end in K, M or G, each 1024 times the one before.
    Number {
        /// The smallest that is taken.
        min: i64,
        /// The largest that is taken.
        max: i64,
        /// May it end in K, M or G?
        scaled: bool,
    },
    /// Anything.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// What holds when nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// This value; empty for "not set".
    Value(&'static str),
    /// Found out at start; described here.
    Found(&'static str),
}

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does what it does in RocketMQ.
    Used,
    /// It is taken and changes nothing; why.
    Accepted(&'static str),
    /// What it tunes does not exist here; what happens instead.
    NotNeeded(&'static str),
    /// It belongs to a feature that this version does not have. Its default says nothing; another value is named at start.
    Off(&'static str),
    /// A value other than its default stops the start: going on without it would be wrong or unsafe.
    Refused(&'static str),
}

/// Which process reads the configuration. It decides which section a name is looked for in first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Name server and broker in one process.
    Server,
    /// A broker.
    Broker,
    /// A name server.
    Names,
    /// A controller alone.
    Controller,
}

impl Role {
    /// Does this process hold a broker?
    pub fn has_broker(self) -> bool {
        match self {
            Role::Server | Role::Broker => true,
            Role::Names | Role::Controller => false,
        }
    }

    /// Does this process hold a name server?
    pub fn has_names(self) -> bool {
        match self {
            Role::Server | Role::Names => true,
            Role::Broker | Role::Controller => false,
        }
    }

    /// Does this process read the keys of `section`?
    pub fn reads(self, section: Section) -> bool {
        match section {
            Section::Broker | Section::Store | Section::Journal | Section::NetClient | Section::Auth => {
                self.has_broker()
            }
            Section::Names => self.has_names(),
            Section::Controller => self != Role::Broker,
            Section::Net | Section::Machine | Section::Limits | Section::Old | Section::Container => true,
        }
    }
}

impl Kind {
    /// Why `text` is not a value of this kind, as the end of the sentence "… is"; `None` if it is one.
    pub fn objection(&self, text: &str) -> Option<String> {
        match *self {
            Kind::Text => None,
            Kind::Bool => parse_bool(text).is_none().then(|| "neither true nor false".to_owned()),
            Kind::OneOf(words) => (!words.iter().any(|word| word.eq_ignore_ascii_case(text)))
                .then(|| format!("none of {}", words.join(", "))),
            Kind::Number { min, max, scaled } => match parse_number(text, scaled) {
                None if scaled => Some("not a whole number (K, M or G may follow)".to_owned()),
                None => Some("not a whole number".to_owned()),
                Some(number) if number < min => Some(format!("below {min}")),
                Some(number) if number > max => Some(format!("above {max}")),
                Some(_) => None,
            },
        }
    }

    /// Do two texts say the same value? Texts that this kind does not take are compared as they stand.
    pub fn same(&self, one: &str, other: &str) -> bool {
        match *self {
            Kind::Text => one == other,
            Kind::OneOf(_) => one.eq_ignore_ascii_case(other),
            Kind::Bool => match (parse_bool(one), parse_bool(other)) {
                (Some(one), Some(other)) => one == other,
                _ => one == other,
            },
            Kind::Number { .. } => match (parse_number(one, true), parse_number(other, true)) {
                (Some(one), Some(other)) => one == other,
                _ => one == other,
            },
        }
    }
}

/// `true` or `false` in any case of letters. Java reads every other word as false, which turns a typing error into a setting.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// A whole number; with `scaled` also `256M`, `32k`, `1 G`, `64KB`.
pub(crate) fn parse_number(text: &str, scaled: bool) -> Option<i64> {
    let text = text.trim();
    if !scaled {
        return text.parse().ok();
    }
    let upper = text.to_ascii_uppercase();
    let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: i64 = match &upper[digits.len()..] {
        "" => 1,
        "K" | "KB" => 1 << 10,
        "M" | "MB" => 1 << 20,
        "G" | "GB" => 1 << 30,
        _ => return None,
    };
    digits.trim_end().parse::<i64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_and_plain_numbers_do_not() {
        assert_eq!(parse_number("256M", true), Some(256 << 20));
        assert_eq!(parse_number("32k", true), Some(32 << 10));
        assert_eq!(parse_number("1 GB", true), Some(1 << 30));
        assert_eq!(parse_number("262144", true), Some(262_144));
        assert_eq!(parse_number("-1", true), Some(-1));
        for wrong in ["", "M", "1T", "1.5G", "9999999999G", "M1"] {
            assert_eq!(parse_number(wrong, true), None, "{wrong}");
        }
        assert_eq!(parse_number("4K", false), None);
    }

    #[test]
    fn a_word_that_is_not_a_boolean_is_an_error_and_not_false() {
        assert_eq!(parse_bool("TRUE"), Some(true));
        assert_eq!(parse_bool("yes"), None);
        assert!(Kind::Bool.objection("yes").is_some());
    }
}
