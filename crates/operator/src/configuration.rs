//! The configuration of brokers, name servers and controllers.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::code::request;

use crate::error::{Result, ensure};
use crate::handle::Operator;

/// Keys and values of a property file.
pub type Settings = BTreeMap<String, String>;

/// One line of a property file.
#[derive(Clone, Debug)]
pub struct Setting(pub(crate) Bytes);

impl Setting {
    /// A key and its value. Backslashes are doubled, because property files give them a meaning.
    pub fn new(key: &str, value: &str) -> Result<Setting> {
        let (key, value) = (key.trim(), value.trim());
        let is_line = !key.is_empty() && !key.contains(['\n', '=', ':']) && !value.contains('\n');
        ensure!(is_line, Invalid, "\"{key}\" and \"{value}\" do not make a line of a property file");
        Ok(Setting(format!("{key}={}\n", value.replace('\\', "\\\\")).into()))
    }
}

/// What is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// A broker.
    Broker,
    /// A name server.
    NameServer,
    /// A controller.
    Controller,
}

impl Operator {
    /// The configuration of a server.
    pub async fn settings(&self, server: Server, address: &str) -> Result<Settings> {
        let code = match server {
            Server::Broker => request::GET_BROKER_CONFIG,
            Server::NameServer => request::GET_NAMESRV_CONFIG,
            Server::Controller => request::GET_CONTROLLER_CONFIG,
        };
        let response = self.admin.tell(address, code, &()).await?;
        Ok(read(&String::from_utf8_lossy(&response.body)))
    }

    /// Changes a setting while the server runs. Returns what it says beside success, such as that the change has no effect.
    pub async fn set(&self, server: Server, address: &str, setting: &Setting) -> Result<Option<String>> {
        let code = match server {
            Server::Broker => request::UPDATE_BROKER_CONFIG,
            Server::NameServer => request::UPDATE_NAMESRV_CONFIG,
            Server::Controller => request::UPDATE_CONTROLLER_CONFIG,
        };
        let response = self.admin.call(address, code, &(), setting.0.clone()).await?;
        Ok(response.remark.filter(|remark| !remark.is_empty()))
    }
}

fn read(text: &str) -> Settings {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_value_through_a_property_file() {
        let line = |key, value| Setting::new(key, value).map(|setting| setting.0);
        assert_eq!(line(" k ", r"C:\store").unwrap(), "k=C:\\\\store\n");
        assert!(line("a=b", "c").is_err() && line("", "c").is_err() && line("a", "b\nc=d").is_err());
    }

    #[test]
    fn a_configuration_is_read_line_by_line() {
        let settings = read("# comment\nbrokerName=a\nnamesrvAddr=h:1;i:2\nempty=\nrocketmqHome = /x=y\n");
        assert_eq!(settings.get("rocketmqHome").map(String::as_str), Some("/x=y"));
        assert_eq!(settings.len(), 4);
    }
}
