//! All settings of a process, in layers, each value with its origin.
//!
//! Layers, each winning over those before: defaults, RocketMQ's variables of the environment, the file, the TLS file, what operators
//! changed at the name server, `GANTRY_SET_<key>`, the command line. That the file wins over RocketMQ's variables is RocketMQ's order. Loading is pure:
//! what the machine knows (its name, its address) comes in through [`Machine`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use crate::environment;
use crate::finding::{self, Finding, Weight};
use crate::key::{Default, Key, Kind, Role, Section, State};
use crate::keys;
use crate::machine::Machine;
use crate::properties;
use crate::values;

/// A file of settings, read into memory.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Where it came from, for messages.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// Everything that a configuration is made of.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Which process reads it.
    pub role: Role,
    /// The file given with `-c`.
    pub file: Option<SourceFile>,
    /// The file that `tls.config.file` names, if it is there. Its `tls.*` lines win over those of `file`; it has no others.
    pub tls_file: Option<SourceFile>,
    /// The file that `configStorePath` names, if it is there: live keys of the name server that operators changed.
    pub changed_file: Option<SourceFile>,
    /// Variables of the environment that mean something here ([`environment::read`](crate::environment::read)).
    pub environment: BTreeMap<String, String>,
    /// Key, value, and the option that said so.
    pub command_line: Vec<(String, String, String)>,
    /// The folder that `gantry server` keeps everything in; without it, RocketMQ's folders in the home directory are taken.
    pub data: Option<PathBuf>,
    /// What the machine knows about itself.
    pub machine: Machine,
}

impl Sources {
    /// Nothing but defaults.
    pub fn new(role: Role, machine: Machine) -> Sources {
        Sources {
            role,
            file: None,
            tls_file: None,
            changed_file: None,
            environment: BTreeMap::new(),
            command_line: Vec::new(),
            data: None,
            machine,
        }
    }
}

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody.
    Default,
    /// A variable of the environment.
    Environment(String),
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// An option.
    CommandLine(String),
    /// A request of an administrator, while running.
    Request,
    /// A switch of masters, kept in the journal.
    Switch,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Environment(variable) => write!(f, "environment {variable}"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::CommandLine(option) => write!(f, "option {option}"),
            Origin::Request => f.write_str("set while running"),
            Origin::Switch => f.write_str("by a switch of masters, kept in the journal"),
        }
    }
}

/// Everything for which a configuration is not taken; at least one reason.
#[derive(Debug, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [alone] = self.0.as_slice() {
            return alone.fmt(f);
        }
        write!(f, "the configuration is refused for {} reasons:", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// Why a configuration is not taken. Each is one sentence that names the key and where it stands.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that is something else. Taken for one, it would start a broker with defaults, open to all.
    #[error("{} is not a property file: {why}", path.display())]
    NotProperties {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        why: String,
    },
    /// A name or a place with letters that Java reads as others.
    #[error(
        "{key}={value} ({origin}) is {of_java:?} to an Apache broker, which reads property files as ISO 8859-1. Write {} to mean {value}, \
         or {} to go on with what an Apache broker has",
        properties::one_line(key, value),
        properties::one_line(key, of_java)
    )]
    TwoReadings {
        /// The key.
        key: String,
        /// What it says in UTF-8.
        value: String,
        /// By whom.
        origin: Origin,
        /// What it says to Java.
        of_java: String,
    },
    /// A change or an option by a spelling that RocketMQ does not read.
    #[error("RocketMQ does not read {old}: the key is {new}")]
    OldSpelling {
        /// As it was said.
        old: String,
        /// As it is read.
        new: &'static str,
    },
    /// A file breaks the rules of property files.
    #[error("{}: {bad}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        bad: properties::BadEscape,
    },
    /// A value is not one that its key takes.
    #[error("{key}={value} ({origin}) is {objection}")]
    Invalid {
        /// The key.
        key: String,
        /// What it was given.
        value: String,
        /// By whom.
        origin: Origin,
        /// The end of the sentence "… is".
        objection: String,
    },
    /// A value asks for something that this version cannot do and must not do without.
    #[error("{key}={value} ({origin}) cannot be served: {why}")]
    Refused {
        /// The key.
        key: String,
        /// What it was given.
        value: String,
        /// By whom.
        origin: Origin,
        /// Why.
        why: String,
    },
    /// A change while running names a key that does not exist.
    #[error("there is no key {0}")]
    Unknown(String),
    /// A change while running names a key that is read at start only.
    #[error("{0} is read at start only: write it into the file and start again")]
    NotLive(String),
}

impl ConfigError {
    /// The line of the file that it is about.
    fn line(&self) -> Option<usize> {
        match self {
            ConfigError::TwoReadings { origin: Origin::File { line, .. }, .. }
            | ConfigError::Invalid { origin: Origin::File { line, .. }, .. }
            | ConfigError::Refused { origin: Origin::File { line, .. }, .. } => Some(*line),
            ConfigError::TwoReadings { .. }
            | ConfigError::Invalid { .. }
            | ConfigError::Refused { .. }
            | ConfigError::NotProperties { .. }
            | ConfigError::OldSpelling { .. }
            | ConfigError::Syntax { .. }
            | ConfigError::Unknown(_)
            | ConfigError::NotLive(_) => None,
        }
    }

    /// The key whose value is refused.
    fn key(&self) -> Option<&str> {
        match self {
            ConfigError::TwoReadings { key, .. }
            | ConfigError::Invalid { key, .. }
            | ConfigError::Refused { key, .. } => Some(key),
            ConfigError::NotProperties { .. }
            | ConfigError::OldSpelling { .. }
            | ConfigError::Syntax { .. }
            | ConfigError::Unknown(_)
            | ConfigError::NotLive(_) => None,
        }
    }
}

/// A change of a live setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: &'static str,
    /// What held before.
    pub before: String,
    /// What holds now.
    pub after: String,
}

/// Which keys are taken from a file.
#[derive(Clone, Copy)]
enum Takes {
    Everything,
    Tls,
    LiveOfNames,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    value: String,
    origin: Origin,
    /// What it says to Java, if that is something else.
    of_java: Option<String>,
}

impl Given {
    pub(crate) fn new(value: String, origin: Origin) -> Given {
        Given { value, origin, of_java: None }
    }
}

/// What options and `GANTRY_SET_` variables say. Each start takes it whatever the file says, so a change that goes into the file loses to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AboveFile(HashMap<&'static str, Given>);

impl AboveFile {
    /// Why the next start does not take `value` of `key` from the file, and what to do; none if it comes to the same value.
    pub fn overrides(&self, key: &Key, value: &str) -> Option<String> {
        let above = self.0.get(key.name).filter(|above| !key.kind.same(&above.value, value))?;
        let (name, origin) = (key.name, &above.origin);
        let what = match is_secret(name) {
            true => "its value".to_owned(),
            false => format!("\"{}\"", above.value),
        };
        Some(format!(
            "{name}: the next start takes {what} from {origin}, which overrides the file; change or remove it there to keep this change"
        ))
    }
}

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    role: Role,
    given: HashMap<&'static str, Given>,
    /// Defaults of this process that are not the table's.
    lowered: HashMap<&'static str, String>,
    above_file: AboveFile,
    findings: Vec<Finding>,
    /// `brokerRole` and `brokerId` without the switch of masters that has given others, if one has.
    before_switch: Option<[Option<Given>; 2]>,
    pub(crate) has_file: bool,
    pub(crate) data: Option<PathBuf>,
    pub(crate) machine: Machine,
}

impl Settings {
    /// Lays the layers over each other and checks what came out.
    ///
    /// # Errors
    /// Everything that must stop a start, at once.
    pub fn load(sources: Sources) -> Result<Settings, ConfigErrors> {
        let (settings, refused) = Settings::read(sources);
        if refused.is_empty() { Ok(settings) } else { Err(ConfigErrors(refused)) }
    }

    /// The same, with everything that must stop a start beside. What is refused is left to its default.
    pub fn read(sources: Sources) -> (Settings, Vec<ConfigError>) {
        let Sources { role, file, tls_file, changed_file, environment, command_line, data, machine } = sources;
        let has_file = file.is_some();
        let (given, lowered, findings) = (HashMap::new(), HashMap::new(), Vec::new());
        let above_file = AboveFile::default();
        let mut settings =
            Settings { role, given, lowered, above_file, findings, before_switch: None, has_file, data, machine };
        let mut refused = Vec::new();
        settings.given.extend(environment::below_file(role, &environment, has_file));
        let files = [(file, Takes::Everything), (tls_file, Takes::Tls), (changed_file, Takes::LiveOfNames)];
        for (file, takes) in files {
            if let Some(file) = file
                && let Err(error) = settings.take_file(file, takes)
            {
                refused.push(error);
            }
        }
        let overridden = environment::overridden(&environment, |key| settings.origin(key));
        settings.findings.extend(overridden);
        let (mut above, ignored) = environment::above_file(role, &environment, has_file);
        settings.findings.extend(ignored);
        for (name, value, option) in command_line {
            match find(role, &name) {
                Ok(key) => drop(above.insert(key.name, Given::new(value, Origin::CommandLine(option)))),
                Err(error) => refused.push(error),
            }
        }
        settings.given.extend(above.iter().map(|(name, given)| (*name, given.clone())));
        settings.above_file = AboveFile(above);
        for error in settings.check() {
            settings.put_aside(error, &mut refused);
        }
        settings.findings.extend(finding::of_state(&settings));
        finding::without_value(&mut settings);
        for error in finding::lint(&mut settings) {
            settings.put_aside(error, &mut refused);
        }
        // A round finds one value at least that a struct cannot be made of.
        while let Err(error) = settings.typed() {
            if error.key().is_none_or(|key| !settings.given.contains_key(key)) {
                refused.push(error);
                break;
            }
            settings.put_aside(error, &mut refused);
        }
        settings.findings.sort_by_key(Finding::line);
        refused.sort_by_key(ConfigError::line);
        (settings, refused)
    }

    /// Leaves what is refused to its default.
    fn put_aside(&mut self, error: ConfigError, refused: &mut Vec<ConfigError>) {
        if let Some(key) = error.key() {
            self.given.remove(key);
            let key = key.to_owned();
            self.findings.retain(|finding| finding.key != key);
        }
        refused.push(error);
    }

    fn take_file(&mut self, file: SourceFile, takes: Takes) -> Result<(), ConfigError> {
        let SourceFile { path, text } = &file;
        let not_properties = |why| ConfigError::NotProperties { path: path.clone(), why };
        if let Some(why) = properties::is_binary(text) {
            return Err(not_properties(why));
        }
        let lines = properties::parse(text).map_err(|bad| ConfigError::Syntax { path: path.clone(), bad })?;
        if matches!(takes, Takes::Everything) && !lines.is_empty() && !lines.iter().any(|line| self.knows(&line.key)) {
            let first = lines.first().map_or("", |line| line.key.as_str());
            return Err(not_properties(format!(
                "none of its {} lines with a key (the first is \"{first}\") has one that RocketMQ knows",
                lines.len()
            )));
        }
        let has_mark = text.starts_with('\u{feff}');
        let mut last: HashMap<&str, usize> = HashMap::new();
        for line in &lines {
            last.insert(&line.key, line.number);
        }
        for line in &lines {
            // Java keeps the last of several lines with one key; the earlier ones are a sign of a mistake, told once below.
            if last.get(line.key.as_str()) != Some(&line.number) {
                continue;
            }
            match takes {
                Takes::Everything => {}
                Takes::Tls if line.key.starts_with("tls.") => {}
                Takes::Tls => {
                    let says = format!("only tls.* is read from {}; ignored", path.display());
                    let mut finding = Finding::of_line(Weight::Warning, path, line, says);
                    if keys::find(self.role, &line.key).is_none() {
                        // It may be a password, whatever it is called.
                        finding.value = None;
                    }
                    self.findings.push(finding);
                    continue;
                }
                // Apache's name server writes all its settings there, and reads none of them again.
                Takes::LiveOfNames => {
                    let key = keys::find(self.role, &line.key);
                    if key.is_none_or(|key| key.section != Section::Names || !key.is_live) {
                        continue;
                    }
                }
            }
            let times = lines.iter().filter(|other| other.key == line.key).count();
            if let Some(new) = keys::present_spelling(&line.key) {
                self.findings.push(finding::old_spelling(self, path, line, new));
                continue;
            }
            let Some(key) = keys::find(self.role, &line.key) else {
                self.findings.push(finding::unknown(self.role, path, line));
                continue;
            };
            let origin = Origin::File { path: path.clone(), line: line.number };
            let given = Given { value: line.value.clone(), origin, of_java: line.of_java.clone() };
            self.given.insert(key.name, given);
            if times > 1 {
                let says = format!("stands {times} times in the file; this, the last, counts");
                self.findings.push(Finding::of_line(Weight::Warning, path, line, says));
            } else if has_mark && line.number == 1 {
                let says = "taken; an Apache broker does not see this line, for the byte order mark in front of it";
                self.findings.push(Finding::of_line(Weight::Warning, path, line, says.to_owned()));
            }
        }
        Ok(())
    }

    /// Whether a line with this key belongs into a file of RocketMQ, perhaps with a typing error.
    fn knows(&self, key: &str) -> bool {
        keys::find(self.role, key).is_some()
            || keys::present_spelling(key).is_some()
            || keys::nearest(self.role, key).is_some()
    }

    /// Values that a used key does not take, and features that must not be missing without a word.
    fn check(&self) -> Vec<ConfigError> {
        let mut given: Vec<_> = self.given.iter().collect();
        given.sort_by_key(|(name, _)| **name);
        let mut refused = Vec::new();
        for (name, given) in given {
            let Some(key) = keys::find(self.role, name).filter(|key| self.role.reads(key.section)) else { continue };
            // A file that a master has had for years may have anything there.
            if finding::OF_A_SLAVE.contains(name) && !self.is_slave() {
                continue;
            }
            refused.extend(check_value(key, &given.value, &given.origin).err());
            // A secret is told in no message, and Apache reads none of ours.
            if let (State::Used, Kind::Text, Some(of_java)) = (key.state, key.kind, &given.of_java)
                && !is_secret(key.name)
            {
                let (value, origin) = (given.value.clone(), given.origin.clone());
                let of_java = of_java.clone();
                refused.push(ConfigError::TwoReadings { key: key.name.to_owned(), value, origin, of_java });
            }
        }
        refused
    }

    /// Makes all the structs.
    fn typed(&self) -> Result<(), ConfigError> {
        if self.role.has_broker() {
            self.broker()?;
            self.store()?;
            self.memory()?;
            self.metrics()?;
            self.client_tls()?;
        }
        if self.has_controller() {
            self.controller()?;
        }
        self.net()?;
        self.tls()?;
        Ok(())
    }

    /// Does a controller run in this process?
    pub fn has_controller(&self) -> bool {
        match self.role {
            Role::Controller => true,
            Role::Server | Role::Names => self.text("enableControllerInNamesrv").eq_ignore_ascii_case("true"),
            Role::Broker => false,
        }
    }

    /// Do they make a slave?
    pub(crate) fn is_slave(&self) -> bool {
        is_role_of_slave(&self.text("brokerRole"))
    }

    /// Goes on as if nobody had set `name`.
    pub(crate) fn leave_out(&mut self, name: &str) {
        self.given.remove(name);
    }

    /// Why the value of `name` that is in force cannot be served, with its place.
    pub fn refused(&self, name: &str, why: impl Into<String>) -> ConfigError {
        let (key, value, origin) = (name.to_owned(), self.text(name), self.origin(name));
        ConfigError::Refused { key, value, origin, why: why.into() }
    }

    /// Which process these are for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// One line for each key that is unknown, out of date, without effect, or likely to be a mistake.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(crate) fn add_finding(&mut self, finding: Finding) {
        // One line a key: what is said last is said in full, so it replaces what a table said in general.
        self.findings.retain(|other| other.key != finding.key);
        self.findings.push(finding);
    }

    /// What somebody set `name` to; nothing if it is left to its default or set to nothing.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(|given| given.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Does `name` stand there with nothing behind it?
    pub(crate) fn is_without_value(&self, name: &str) -> bool {
        self.given.get(name).is_some_and(|given| given.value.is_empty())
    }

    /// What overrides the file at each start.
    pub fn above_file(&self) -> &AboveFile {
        &self.above_file
    }

    /// Who set `name`.
    pub fn origin(&self, name: &str) -> Origin {
        self.given.get(name).map_or(Origin::Default, |given| given.origin.clone())
    }

    /// What `name` is where nobody sets it, because the table's default is too much for this process.
    pub fn lower_default(&mut self, name: &'static str, value: u64) {
        self.lowered.insert(name, value.to_string());
    }

    /// The value in force as text; empty for one that nobody set and that has no default.
    pub fn text(&self, name: &str) -> String {
        if let Some(given) = self.given(name) {
            return given.to_owned();
        }
        if let Some(lowered) = self.lowered.get(name) {
            return lowered.clone();
        }
        self.default_of(name)
    }

    /// What `name` would be if nobody had set it.
    pub fn default_of(&self, name: &str) -> String {
        match keys::find(self.role, name).map(|key| key.default) {
            Some(Default::Value(value)) => value.to_owned(),
            Some(Default::Found(_)) => self.found(name).unwrap_or_default(),
            None => String::new(),
        }
    }

    /// The same for people to see: what is used in the place of a value that is out of bounds, and no passwords.
    pub fn shown(&self, name: &str) -> String {
        let Some(given) = self.given(name) else { return self.text(name) };
        if is_secret(name) {
            return "******".to_owned();
        }
        finding::brought_into_bounds(name, given).map_or_else(|| given.to_owned(), |(taken, _)| taken.to_string())
    }

    /// What is to be said of a value that is out of bounds and is brought into them.
    pub fn limited(&self, name: &str) -> Option<String> {
        self.given(name).and_then(|given| finding::brought_into_bounds(name, given)).map(|(_, says)| says)
    }

    /// Changes a live setting. Nothing is changed when it answers with an error.
    pub fn set(&mut self, name: &str, value: &str) -> Result<Change, ConfigError> {
        let key = find(self.role, name)?;
        if value.is_empty() && key.state == State::Used && key.kind != Kind::Text {
            let (key, value) = (key.name.to_owned(), String::new());
            let objection = "empty: say the value that it is to have".to_owned();
            return Err(ConfigError::Invalid { key, value, origin: Origin::Request, objection });
        }
        check_value(key, value, &Origin::Request)?;
        if !key.is_live && key.state == State::Used {
            return Err(ConfigError::NotLive(name.to_owned()));
        }
        if key.name == "brokerRole" && (self.is_slave() || is_role_of_slave(value)) {
            let (key, value) = (key.name.to_owned(), value.to_owned());
            let objection = "not for a change while running, in which a master turns between ASYNC_MASTER and SYNC_MASTER: \
                             write it into the file and start again";
            return Err(ConfigError::Invalid { key, value, origin: Origin::Request, objection: objection.to_owned() });
        }
        let before = self.text(key.name);
        self.given.insert(key.name, Given::new(value.to_owned(), Origin::Request));
        Ok(Change { key: key.name, before, after: value.to_owned() })
    }

    /// What administrators have set while running, by key.
    pub fn requested(&self) -> Vec<(&'static str, String)> {
        // A role that was set and that a switch has replaced stands in the file all the same.
        let replaced = self.before_switch.iter().flat_map(|[role, _]| role).map(|role| (&"brokerRole", role));
        let replaced = replaced.filter(|_| self.origin("brokerRole") == Origin::Switch);
        let requested = self.given.iter().chain(replaced).filter(|(_, given)| given.origin == Origin::Request);
        requested.map(|(key, given)| (*key, given.value.clone())).collect()
    }

    /// The role and the id, as text, that this broker would have if no switch of masters had given it others.
    pub fn without_switch(&self) -> [String; 2] {
        let keys = ["brokerRole", "brokerId"];
        let Some(before) = &self.before_switch else { return keys.map(|key| self.text(key)) };
        let given = before.each_ref().map(|given| given.as_ref().map(|given| given.value.clone()));
        let [role, id] = given.map(|value| value.filter(|value| !value.is_empty()));
        [role.unwrap_or_else(|| self.default_of(keys[0])), id.unwrap_or_else(|| self.default_of(keys[1]))]
    }

    /// Lets a role be in force that a switch of masters has given to this broker, whatever the file says. `role` as in the file, `broker_id` 0 for
    /// a master. A fixed address of the master (`haMasterAddress`) is left out: it may be that of any broker of the set by now.
    ///
    /// # Errors
    /// `role` is none.
    pub fn switch_role(&mut self, role: &str, broker_id: i64) -> Result<(), ConfigError> {
        check_value(find(self.role, "brokerRole")?, role, &Origin::Switch)?;
        let before = ["brokerRole", "brokerId"].map(|key| self.given.get(key).cloned());
        self.before_switch.get_or_insert(before);
        self.given.insert("brokerRole", Given::new(role.to_owned(), Origin::Switch));
        self.given.insert("brokerId", Given::new(broker_id.to_string(), Origin::Switch));
        self.leave_out("haMasterAddress");
        Ok(())
    }

    /// The settings in force as lines of a property file, each with its origin. With `only_set`, those that somebody set.
    pub fn print(&self, only_set: bool) -> String {
        let mut out = String::new();
        for key in keys::TABLES.iter().flat_map(|table| table.iter()) {
            let is_this = keys::find(self.role, key.name).is_some_and(|found| found.section == key.section);
            let is_given = self.given.contains_key(key.name);
            if !is_this || !self.role.reads(key.section) || (only_set && !is_given) {
                continue;
            }
            if !is_given && key.state != State::Used {
                continue;
            }
            let value = self.shown(key.name);
            let no_effect = match key.state {
                State::Used => "",
                State::Accepted(_) | State::NotNeeded(_) | State::Off(_) | State::Refused(_) => ", no effect",
            };
            out.push_str(&format!("{:<50} # {}{no_effect}\n", format!("{}={value}", key.name), self.origin(key.name)));
        }
        out
    }
}

fn is_role_of_slave(role: &str) -> bool {
    role.eq_ignore_ascii_case("SLAVE")
}

/// Is its value not to be shown?
pub(crate) fn is_secret(name: &str) -> bool {
    name.contains("Password")
        || name.contains("Credentials")
        || name == "initAuthenticationUser"
        || name == "replicaSecret"
}

/// The key called `name`, in its present spelling.
fn find(role: Role, name: &str) -> Result<&'static Key, ConfigError> {
    if let Some(new) = keys::present_spelling(name) {
        return Err(ConfigError::OldSpelling { old: name.to_owned(), new });
    }
    keys::find(role, name).ok_or_else(|| ConfigError::Unknown(name.to_owned()))
}

fn check_value(key: &Key, value: &str, origin: &Origin) -> Result<(), ConfigError> {
    let name = key.name.to_owned();
    if value.is_empty() {
        return Ok(());
    }
    match key.state {
        State::Used => match key.kind.objection(value).or_else(|| values::objection(key.name, value)) {
            None => Ok(()),
            Some(objection) => {
                let value = if is_secret(key.name) { "******" } else { value };
                Err(ConfigError::Invalid { key: name, value: value.to_owned(), origin: origin.clone(), objection })
            }
        },
        State::Refused(why) => match key.default {
            Default::Value(default) if key.kind.same(value, default) => Ok(()),
            Default::Value(_) | Default::Found(_) => {
                let (value, why) = (value.to_owned(), why.to_owned());
                Err(ConfigError::Refused { key: name, value, origin: origin.clone(), why })
            }
        },
        State::Accepted(_) | State::NotNeeded(_) | State::Off(_) => Ok(()),
    }
}
