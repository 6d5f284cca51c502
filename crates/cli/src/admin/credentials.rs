//! Access keys, from the file that `mqadmin` reads them from: `conf/tools.yml` in the folder that `ROCKETMQ_HOME` names.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use client::Credentials;

/// Reads the file that is named, or else the usual one if it exists.
pub fn credentials(file: Option<&Path>, rocketmq_home: Option<OsString>) -> Result<Option<Credentials>> {
    let path = match (file, rocketmq_home) {
        (Some(file), _) => file.to_owned(),
        (None, Some(home)) => {
            let usual = PathBuf::from(home).join("conf/tools.yml");
            if !usual.exists() {
                return Ok(None);
            }
            usual
        }
        (None, None) => return Ok(None),
    };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    read(&text).with_context(|| format!("{} has no accessKey and secretKey", path.display())).map(Some)
}

/// The two lines that count; the rest of the file is for others.
fn read(text: &str) -> Option<Credentials> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix(':'))?;
        // A comment begins with a blank and a sharp; quotes are YAML's.
        let value = line.split(" #").next().unwrap_or_default().trim();
        let value = value.trim_matches('"').trim_matches('\'');
        (!value.is_empty()).then(|| value.to_owned())
    };
    Some(Credentials {
        access_key: value("accessKey")?,
        secret_key: value("secretKey")?,
        security_token: value("securityToken"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_as_apache_ships_it_is_read() {
        let text = "# licence\naccessKey: rocketmq2\nsecretKey: \"1234 5678\" # not so secret\n\n";
        let read = read(text).unwrap();
        assert_eq!((&*read.access_key, &*read.secret_key, read.security_token), ("rocketmq2", "1234 5678", None));
    }

    #[test]
    fn a_file_without_keys_is_an_error_and_no_file_is_none() {
        assert!(read("accessKey: a\n").is_none() && read("secretKey:\naccessKey: a").is_none());
        assert_eq!(credentials(None, None).unwrap(), None);
        assert_eq!(credentials(None, Some("/no/such/folder".into())).unwrap(), None);
        assert!(credentials(Some(Path::new("/no/such/file")), None).is_err());
    }
}
