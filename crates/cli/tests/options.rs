//! The commands and options of `mqadmin`, compared with the list that was read from the real one.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use clap::{Arg, Args, Command};
use cli::admin::{AdminArgs, words};

const LIST: &str = include_str!("data/mqadmin-5.5.0.txt");

/// Where we differ on purpose: command, option, and what is different.
const DIFFERENT: &[(&str, &str, &str)] = &[
    // Without it there is nothing to do, and mqadmin prints its help.
    ("resetMasterFlushOffset", "brokerAddr", "required"),
    ("resetMasterFlushOffset", "offset", "required"),
    ("dumpCompactionLog", "file", "required"),
    // The name servers are those of -n, as with every other command.
    ("checkRocksdbCqWriteProgress", "nameserverAddr", "optional"),
];

#[derive(Debug)]
struct Listed<'a> {
    command: &'a str,
    short: Option<&'a str>,
    long: &'a str,
    takes_value: bool,
    is_required: bool,
    is_either: bool,
}

fn list() -> (Vec<&'static str>, Vec<Listed<'static>>) {
    let (mut commands, mut options) = (Vec::new(), Vec::new());
    for line in LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let Some(option) = line.strip_prefix("  ") else {
            commands.push(line);
            continue;
        };
        let words: Vec<&str> = option.split(' ').collect();
        options.push(Listed {
            command: commands.last().unwrap(),
            short: words[0].strip_prefix('-').filter(|letter| !letter.is_empty()),
            long: words[1].strip_prefix("--").unwrap(),
            takes_value: words.contains(&"VALUE"),
            is_required: words.contains(&"required"),
            is_either: words.contains(&"either"),
        });
    }
    (commands, options)
}

fn admin() -> Command {
    AdminArgs::augment_args(Command::new("admin"))
}

/// All names behind two dashes; `_` stands for a blank in Apache's name.
fn long_names(option: &Arg) -> Vec<String> {
    let aliases = option.get_all_aliases().unwrap_or_default();
    option.get_long().into_iter().chain(aliases).map(|name| name.replace(' ', "_")).collect()
}

fn ours<'a>(admin: &'a Command, listed: &Listed<'_>) -> Option<&'a Arg> {
    let command = admin.find_subcommand(listed.command)?;
    let has = |option: &&Arg| long_names(option).iter().any(|name| name == listed.long);
    // -n is the same for all commands.
    command.get_arguments().find(has).or_else(|| admin.get_arguments().find(has))
}

fn difference(listed: &Listed<'_>) -> Option<&'static str> {
    let found = DIFFERENT.iter().find(|(command, long, _)| *command == listed.command && *long == listed.long);
    found.map(|(_, _, what)| *what)
}

#[test]
fn every_command_of_mqadmin_is_there() {
    let admin = admin();
    let missing: Vec<_> = list()
        .0
        .into_iter()
        .filter(|name| !admin.get_subcommands().any(|command| command.get_name() == *name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_option_has_mqadmins_names_and_takes_a_value_if_mqadmins_does() {
    let admin = admin();
    let mut wrong = Vec::new();
    for listed in list().1 {
        let Some(option) = ours(&admin, &listed) else {
            wrong.push(format!("{} --{} is missing", listed.command, listed.long));
            continue;
        };
        let letter = match listed.short {
            // A letter of two is another name behind two dashes; `words` puts it there.
            Some(letter) if letter.len() > 1 => long_names(option).iter().any(|name| name == letter),
            Some(letter) => option.get_short().map(String::from).as_deref() == Some(letter),
            None => option.get_short().is_none(),
        };
        if !letter {
            wrong.push(format!("{} --{} has another letter than {:?}", listed.command, listed.long, listed.short));
        }
        if option.get_action().takes_values() != listed.takes_value {
            wrong.push(format!("{} --{} takes a value: {}", listed.command, listed.long, !listed.takes_value));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_mqadmin_requires_is_required_and_nothing_else_is() {
    let admin = admin();
    let mut wrong = Vec::new();
    for listed in list().1 {
        let Some(option) = ours(&admin, &listed) else { continue };
        let expected = match difference(&listed) {
            Some(what) => what == "required",
            None => listed.is_required,
        };
        if option.is_required_set() != expected {
            wrong.push(format!("{} --{} is required: {}", listed.command, listed.long, !expected));
        }
        let command = admin.find_subcommand(listed.command).unwrap();
        let is_either = command
            .get_groups()
            .any(|group| group.is_required_set() && group.get_args().any(|member| member == option.get_id()));
        if listed.is_either && !is_either {
            wrong.push(format!("{} --{} is not one of several that are required", listed.command, listed.long));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_documentation_names_every_command() {
    let documentation = include_str!("../../../docs/admin.md");
    let missing: Vec<_> =
        list().0.into_iter().filter(|name| !documentation.contains(&format!("| `{name}` |"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_help_lists_each_command_once_below_the_head_of_its_family() {
    let help = admin().render_help().to_string();
    let mut family = "";
    for name in list().0 {
        let rows: Vec<&str> = help
            .lines()
            .filter(|line| line.starts_with("  ") && line.split_whitespace().next() == Some(name))
            .collect();
        assert_eq!(rows.len(), 1, "{name}: {rows:?}");
    }
    let mut families = Vec::new();
    for line in help.lines() {
        match line.strip_suffix(':') {
            Some(head) if !line.starts_with(' ') => family = head,
            _ if line.starts_with("  update") || line.starts_with("  query") => families.push((family, line)),
            _ => {}
        }
    }
    let family_of =
        |name: &str| families.iter().find(|(_, line)| line.split_whitespace().next() == Some(name)).unwrap().0;
    assert_eq!(
        ["updateTopic", "updateSubGroup", "queryMsgById", "updateUser"].map(family_of),
        ["Topics", "Groups and offsets", "Messages and queues", "Users and access"]
    );
}

#[test]
fn a_number_that_nothing_can_have_is_refused_before_anything_is_asked() {
    use clap::builder::ValueParser;
    use clap::error::ErrorKind;
    let numbers = [
        ValueParser::from(clap::value_parser!(i32)).type_id(),
        ValueParser::from(clap::value_parser!(i64)).type_id(),
        ValueParser::from(clap::value_parser!(u32)).type_id(),
        ValueParser::from(clap::value_parser!(u64)).type_id(),
        ValueParser::from(clap::value_parser!(usize)).type_id(),
    ];
    let mut wrong = Vec::new();
    let mut seen = 0;
    for command in admin().get_subcommands() {
        for option in command.get_arguments().filter(|option| numbers.contains(&option.get_value_parser().type_id())) {
            let (name, long) = (command.get_name(), option.get_long().unwrap());
            seen += 1;
            let parsed = command.clone().try_get_matches_from([name, &format!("--{long}=-2147483648")]);
            if parsed.is_ok() || parsed.is_err_and(|error| error.kind() != ErrorKind::ValueValidation) {
                wrong.push(format!("{name} --{long}"));
            }
        }
    }
    assert!(wrong.is_empty() && seen > 40, "{seen} numbers, of which these may be anything: {}", wrong.join(", "));
    let perm = |value: &str| {
        let words = words(["mqadmin", "updateTopic", "-c", "C", "-t", "T", "-p", value].map(Into::into));
        Command::new("gantry").subcommand(admin()).try_get_matches_from(words).is_ok()
    };
    assert_eq!(
        ["0", "2", "4", "6", "7", "8", "9", "-1"].map(perm),
        [true, true, true, true, true, false, false, false]
    );
}

#[test]
fn the_parser_itself_finds_nothing_wrong() {
    admin().debug_assert();
}

#[test]
fn commands_that_scripts_are_full_of_are_understood() {
    for line in [
        "mqadmin updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t TopicTest -r 8 -w 8 -p 6 -o true",
        "mqadmin updateTopic -b 127.0.0.1:10911 -t T -a +message.type=FIFO",
        "mqadmin updateSubGroup -clusterName DefaultCluster -groupName g -s TRUE -q 1 -r 16",
        "mqadmin resetOffsetByTime -g g -t t -s -1 -n a:9876;b:9876",
        "mqadmin resetOffsetByTime -g g -t t -s 2026-11-20#00:00:00:000 -f false",
        "mqadmin updateBrokerConfig -c C -a true -k flushDiskType -v SYNC_FLUSH",
        "mqadmin updateStaticTopic -t T -qn 8 -c C -fr true",
        "mqadmin electMaster -a 127.0.0.1:9878 -b 2 -bn broker-a -c C",
        "mqadmin printMsgByQueue -t T -a broker-a -i 0 -p true -d true -f true",
        "mqadmin consumeMessage -t T -c 10",
        "mqadmin topicList -c --json",
        "mqadmin checkRocksdbCqWriteProgress -n a:1 -c C -cf 1700000000000",
    ] {
        let words = words(line.split(' ').map(Into::into));
        let parsed = Command::new("gantry").subcommand(admin()).try_get_matches_from(words);
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for line in [
        "mqadmin updateTopic -t T",
        "mqadmin updateTopic -t T -c C -b 127.0.0.1:10911",
        "mqadmin updateTopic -t T -c C -r many",
        "mqadmin setConsumeMode -c C -t T -g g -m PUSH",
        "mqadmin sendMessage -t T -p body -i 1",
        "mqadmin clusterList -i 0",
        "mqadmin noSuchCommand",
    ] {
        let words = words(line.split(' ').map(Into::into));
        let parsed = Command::new("gantry").subcommand(admin()).try_get_matches_from(words);
        assert!(parsed.is_err(), "{line}");
    }
}
