//! The broker that is looked at: its settings, its store, its process, and where it answers.
//!
//! Said on the command line as to `gantry broker` or `gantry server`; or, if nothing is said and one server runs here, read from its own
//! command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::file::FileError;
use config::{ConfigError, Machine, Role, Settings, SourceFile, Sources, properties};

/// What a process was told, or will be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// With a name server in the process: `gantry server`.
    pub is_server: bool,
    /// `-c`
    pub file: Option<PathBuf>,
    /// `--data`
    pub data: Option<PathBuf>,
    /// Keys and values; ports among them.
    pub set: Vec<(String, String)>,
}

impl Order {
    /// What the words behind the program said, of a process that works in the folder `cwd`.
    ///
    /// Nothing for a name server alone, which has no store and no broker.
    pub fn of_words(words: &[String], cwd: &Path) -> Option<Order> {
        let mut words = words.iter().map(String::as_str);
        let is_server = match words.next()? {
            "server" => true,
            "broker" => false,
            _ => return None,
        };
        let mut order = Order { is_server, ..Order::default() };
        while let Some(word) = words.next() {
            let (option, value) = match word.split_once('=').filter(|_| word.starts_with("--")) {
                Some((option, value)) => (option, Some(value)),
                None => (word, None),
            };
            // These are all that take no value.
            if matches!(option, "-p" | "-m" | "--print-config" | "--printConfigItem" | "--print-important-config") {
                continue;
            }
            let Some(value) = value.or_else(|| words.next()) else { break };
            let mut set = |key: &str| order.set.push((key.to_owned(), value.to_owned()));
            match option {
                "-c" | "--config" | "--configFile" => order.file = Some(cwd.join(value)),
                "--data" => order.data = Some(cwd.join(value)),
                "--port" | "--broker-port" => set("listenPort"),
                "-n" | "--namesrv-addr" | "--namesrvAddr" => set("namesrvAddr"),
                "--set" => {
                    if let Some((key, value)) = value.split_once('=') {
                        order.set.push((key.trim().to_owned(), value.trim().to_owned()));
                    }
                }
                _ => {}
            }
        }
        if is_server && order.data.is_none() {
            order.data = Some(cwd.join("data"));
        }
        Some(order)
    }
}

/// Settings, and what of them would stop a start.
#[derive(Clone, Debug)]
pub struct Target {
    /// All layers, without the values that are refused.
    pub settings: Settings,
    /// What would stop a start.
    pub refused: Vec<Refused>,
    /// The file that could not be read, and why.
    pub unread: Option<(PathBuf, String)>,
    /// The file of `-c`.
    pub file: Option<PathBuf>,
    /// `storePathRootDir`, absolute.
    pub store: PathBuf,
}

impl Target {
    /// Reads files and lays the layers over each other, as a start does.
    pub fn read(order: &Order, environment: BTreeMap<String, String>, mut machine: Machine) -> Target {
        let role = if order.is_server { Role::Server } else { Role::Broker };
        let mut unread = None;
        let mut read = |path: &Path| match config::file::read(path) {
            Ok(bytes) => Some(SourceFile { path: path.to_owned(), text: properties::text_of(bytes) }),
            Err(error) => {
                let why = match &error {
                    FileError::Io { source, .. } => source.to_string(),
                    FileError::NeitherWay { .. } | FileError::Syntax { .. } | FileError::TooLong { .. } => {
                        error.to_string()
                    }
                };
                unread = Some((path.to_owned(), why));
                None
            }
        };
        let file = order.file.as_deref().and_then(&mut read);
        if order.file.is_none() {
            // As at a start: nobody who has no configuration has asked to be reachable from elsewhere.
            machine.address = std::net::Ipv4Addr::LOCALHOST.into();
        }
        let mut sources = Sources::new(role, machine);
        sources.file = file;
        sources.data = order.data.clone();
        sources.environment = environment;
        let command_line = order.set.iter().map(|(key, value)| (key.clone(), value.clone(), "--set".to_owned()));
        sources.command_line = command_line.collect();
        let (before, _) = Settings::read(sources.clone());
        let tls_path = PathBuf::from(before.text("tls.config.file"));
        if before.given("tls.config.file").is_some() || (sources.file.is_some() && tls_path.exists()) {
            sources.tls_file = read(&tls_path);
        }
        let (settings, refused) = Settings::read(sources);
        let refused = refused.into_iter().map(Refused::from).collect();
        let store = PathBuf::from(settings.text("storePathRootDir"));
        let store = std::path::absolute(&store).unwrap_or(store);
        Target { settings, refused, unread, file: order.file.clone(), store }
    }
}

/// Something that would stop a start.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The key, if it is about one.
    pub key: Option<String>,
    /// Where it was said.
    pub from: String,
    /// What was said there; none if that is in the sentence only.
    pub value: Option<String>,
    /// What a start says.
    pub sentence: String,
}

impl From<ConfigError> for Refused {
    fn from(error: ConfigError) -> Refused {
        let sentence = error.to_string();
        let (key, from, value) = match error {
            ConfigError::Invalid { key, value, origin, .. }
            | ConfigError::TwoReadings { key, value, origin, .. }
            | ConfigError::Refused { key, value, origin, .. } => (Some(key), origin.to_string(), Some(value)),
            ConfigError::Unknown(key) | ConfigError::NotLive(key) | ConfigError::OldSpelling { old: key, .. } => {
                (Some(key), "command line".to_owned(), None)
            }
            ConfigError::Syntax { path, .. } | ConfigError::NotProperties { path, .. } => {
                (None, path.display().to_string(), None)
            }
        };
        Refused { key, from, value, sentence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            host_name: "host".to_owned(),
            address: std::net::IpAddr::V4([192, 0, 2, 7].into()),
            home: PathBuf::from("/home/one"),
        }
    }

    fn target(text: &str) -> Target {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broker.conf");
        std::fs::write(&file, text).unwrap();
        Target::read(&Order { file: Some(file), ..Order::default() }, BTreeMap::new(), machine())
    }

    #[test]
    fn every_value_that_would_stop_a_start_is_found_at_once_and_the_rest_is_read() {
        let target = target("listenPort=x\nbrokerRole=SLAVE\nmappedFileSizeConsumeQueue=y\nstorePathRootDir=/s\n");
        let keys: Vec<&str> = target.refused.iter().map(|refused| refused.key.as_deref().unwrap()).collect();
        assert_eq!(keys.len(), 3, "{:?}", target.refused);
        for key in ["listenPort", "brokerRole", "mappedFileSizeConsumeQueue"] {
            assert!(keys.contains(&key), "{keys:?}");
        }
        assert_eq!(target.store, Path::new("/s"));
        assert_eq!(target.settings.broker().unwrap().listen_port, 10911);
    }

    #[test]
    fn a_file_that_is_not_there_is_said_and_defaults_are_looked_at() {
        let order = Order { file: Some("/no/such/file".into()), ..Order::default() };
        let target = Target::read(&order, BTreeMap::new(), machine());
        assert_eq!(target.unread.unwrap().0, Path::new("/no/such/file"));
        assert_eq!(target.store, Path::new("/home/one/store"));
    }

    #[test]
    fn a_running_server_is_read_from_its_command_line() {
        let order = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Order::of_words(&words, Path::new("/srv"))
        };
        let broker = order("broker -c conf/b.conf -n a:1;b:2 --port=7 --set k=v --log-format json -m").unwrap();
        assert_eq!(broker.file.as_deref(), Some(Path::new("/srv/conf/b.conf")));
        let set = [("namesrvAddr", "a:1;b:2"), ("listenPort", "7"), ("k", "v")];
        assert_eq!(broker.set, set.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert!(!broker.is_server && broker.data.is_none());
        let server = order("server").unwrap();
        assert!(server.is_server && server.data.as_deref() == Some(Path::new("/srv/data")));
        assert_eq!(order("namesrv"), None);
        assert_eq!(order("broker -c").unwrap().file, None);
    }
}
