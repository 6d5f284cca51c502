//! The words of the command line, put into the form that our parser knows.
//!
//! Apache's parser also takes a long option behind one dash (`-topic T`), and has letters of two (`-qn 8`). Both are common in
//! scripts; ours would read them as a bundle of single letters.

use std::ffi::{OsStr, OsString};

use clap::{Args, Command};

use super::AdminArgs;

/// `mqadmin …` (a link to our binary) and `gantry admin …`, with long options behind two dashes. Other lines stay as they are.
pub fn words(line: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = line.into_iter().collect();
    let program = words.first().and_then(|word| std::path::Path::new(word).file_stem()).unwrap_or_default();
    if program == "mqadmin" {
        words.insert(1, "admin".into());
    }
    if words.get(1).is_none_or(|word| word != "admin") {
        return words;
    }
    let admin = AdminArgs::augment_args(Command::new("admin"));
    let found = words[2..].iter().enumerate().find_map(|(at, word)| Some((at + 2, admin.find_subcommand(word)?)));
    let Some((at, command)) = found else { return words };
    let names: Vec<&str> = command.get_arguments().chain(admin.get_arguments()).flat_map(long_names).collect();
    for word in &mut words[at + 1..] {
        if let Some(long) = as_long(word, &names) {
            *word = long;
        }
    }
    words
}

/// All names that stand behind two dashes.
pub(super) fn long_names(option: &clap::Arg) -> impl Iterator<Item = &str> {
    option.get_long().into_iter().chain(option.get_all_aliases().unwrap_or_default())
}

fn as_long(word: &OsStr, names: &[&str]) -> Option<OsString> {
    let name = word.to_str()?.strip_prefix('-').filter(|name| name.len() > 1)?;
    let bare = name.split_once('=').map_or(name, |(bare, _)| bare);
    names.contains(&bare).then(|| format!("--{name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(line: &str) -> String {
        let words = words(line.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn long_options_behind_one_dash_and_letters_of_two_are_understood() {
        assert_eq!(put("gantry admin topicRoute -topic T -l"), "gantry admin topicRoute --topic T -l");
        assert_eq!(put("gantry admin -n a:1 updateStaticTopic -qn 8"), "gantry admin -n a:1 updateStaticTopic --qn 8");
        assert_eq!(put("gantry admin topicRoute -namesrvAddr=a:1"), "gantry admin topicRoute --namesrvAddr=a:1");
    }

    #[test]
    fn a_link_called_mqadmin_is_the_admin_command() {
        assert_eq!(put("/usr/bin/mqadmin topicList"), "/usr/bin/mqadmin admin topicList");
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in ["gantry server -data x", "gantry", "gantry admin", "gantry admin topicRoute -tT -x"] {
            assert_eq!(put(line), line);
        }
    }
}
