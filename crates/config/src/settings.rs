//! All settings of a process, in layers, each value with its origin.
//!
//! Layers, each winning over those before: defaults, environment (`NAMESRV_ADDR`, `ROCKETMQ_HOME`), the file, the TLS file, what
//! operators changed at the name server, the command line. That the file wins over the environment is RocketMQ's order. Loading is pure: what the machine knows (its name,
//! its address) comes in through [`Machine`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use crate::finding::{self, Finding, Weight};
use crate::key::{Default, Key, Role, Section, State};
use crate::keys;
use crate::machine::Machine;
use crate::properties;

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
    /// Variables of the environment that RocketMQ reads.
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
    Environment(&'static str),
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
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Environment(variable) => write!(f, "environment {variable}"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::CommandLine(option) => write!(f, "option {option}"),
            Origin::Request => f.write_str("set while running"),
        }
    }
}

/// Why a configuration is not taken. Each is one sentence that names the key and where it stands.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
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

#[derive(Clone, Debug)]
struct Given {
    value: String,
    origin: Origin,
}

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    role: Role,
    given: HashMap<&'static str, Given>,
    /// Defaults of this process that are not the table's.
    lowered: HashMap<&'static str, String>,
    findings: Vec<Finding>,
    pub(crate) has_file: bool,
    pub(crate) data: Option<PathBuf>,
    pub(crate) machine: Machine,
}

impl Settings {
    /// Lays the layers over each other and checks what came out.
    pub fn load(sources: Sources) -> Result<Settings, ConfigError> {
        let Sources { role, file, tls_file, changed_file, environment, command_line, data, machine } = sources;
        let has_file = file.is_some();
        let (given, lowered, findings) = (HashMap::new(), HashMap::new(), Vec::new());
        let mut settings = Settings { role, given, lowered, findings, has_file, data, machine };
        for (variable, key) in [("NAMESRV_ADDR", "namesrvAddr"), ("ROCKETMQ_HOME", "rocketmqHome")] {
            if let Some(value) = environment.get(variable).filter(|value| !value.is_empty()) {
                settings.given.insert(key, Given { value: value.clone(), origin: Origin::Environment(variable) });
            }
        }
        let files = [(file, Takes::Everything), (tls_file, Takes::Tls), (changed_file, Takes::LiveOfNames)];
        for (file, takes) in files {
            if let Some(file) = file {
                settings.take_file(file, takes)?;
            }
        }
        for (name, value, option) in command_line {
            let key = keys::find(role, &name).ok_or(ConfigError::Unknown(name))?;
            settings.given.insert(key.name, Given { value, origin: Origin::CommandLine(option) });
        }
        settings.check()?;
        settings.findings.extend(finding::of_state(&settings));
        finding::lint(&mut settings)?;
        settings.findings.sort_by_key(Finding::line);
        Ok(settings)
    }

    fn take_file(&mut self, file: SourceFile, takes: Takes) -> Result<(), ConfigError> {
        let lines =
            properties::parse(&file.text).map_err(|bad| ConfigError::Syntax { path: file.path.clone(), bad })?;
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
                    let says = format!("only tls.* is read from {}; ignored", file.path.display());
                    let mut finding = Finding::of_line(Weight::Warning, &file.path, line, says);
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
            let renamed = keys::RENAMED.iter().find(|(old, _)| *old == line.key).map(|(_, new)| *new);
            let Some(key) = keys::find(self.role, renamed.unwrap_or(&line.key)) else {
                self.findings.push(finding::unknown(self.role, &file.path, line));
                continue;
            };
            if renamed.is_some() && last.contains_key(key.name) {
                let says = format!("old spelling of {}, which is set too and wins", key.name);
                self.findings.push(Finding::of_line(Weight::Note, &file.path, line, says));
                continue;
            }
            let origin = Origin::File { path: file.path.clone(), line: line.number };
            self.given.insert(key.name, Given { value: line.value.clone(), origin });
            if renamed.is_some() {
                let says = format!("old spelling of {}; taken", key.name);
                self.findings.push(Finding::of_line(Weight::Note, &file.path, line, says));
            } else if times > 1 {
                let says = format!("stands {times} times in the file; this, the last, counts");
                self.findings.push(Finding::of_line(Weight::Warning, &file.path, line, says));
            }
        }
        Ok(())
    }

    /// Refuses values that a used key does not take, and features that must not be missing without a word.
    fn check(&self) -> Result<(), ConfigError> {
        let mut given: Vec<_> = self.given.iter().collect();
        given.sort_by_key(|(name, _)| **name);
        for (name, given) in given {
            let Some(key) = keys::find(self.role, name) else { continue };
            if self.role.reads(key.section) {
                check_value(key, &given.value, &given.origin)?;
            }
        }
        Ok(())
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
        let name = keys::RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| *new);
        let key = keys::find(self.role, name).ok_or_else(|| ConfigError::Unknown(name.to_owned()))?;
        check_value(key, value, &Origin::Request)?;
        if !key.is_live && key.state == State::Used {
            return Err(ConfigError::NotLive(name.to_owned()));
        }
        let before = self.text(key.name);
        self.given.insert(key.name, Given { value: value.to_owned(), origin: Origin::Request });
        Ok(Change { key: key.name, before, after: value.to_owned() })
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

/// Is its value not to be shown?
pub(crate) fn is_secret(name: &str) -> bool {
    name.contains("Password") || name.contains("Credentials") || name == "initAuthenticationUser"
}

fn check_value(key: &Key, value: &str, origin: &Origin) -> Result<(), ConfigError> {
    let name = key.name.to_owned();
    if value.is_empty() {
        return Ok(());
    }
    match key.state {
        State::Used => match key.kind.objection(value) {
            None => Ok(()),
            Some(objection) => {
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
