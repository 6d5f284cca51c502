//! The scripts of RocketMQ's names, as somebody else's scripts call them.

use std::path::Path;
use std::process::Command;

use crate::support::{Running, without_environment};

fn script(name: &str) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/bin").join(name));
    without_environment(&mut command);
    command.env("GANTRY", env!("CARGO_BIN_EXE_gantry")).env_remove("GANTRY_CONF_FOLDER");
    command
}

/// Exit code, and all that was said.
fn ended(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_broker_and_a_name_server_run_by_rocketmqs_names_with_its_options_and_end_by_its_signal() {
    let folder = tempfile::tempdir().unwrap();
    let names_file = folder.path().join("namesrv.conf");
    std::fs::write(&names_file, "listenPort=0\n").unwrap();
    let home = folder.path().to_str().unwrap();
    let names = Running::start(script("mqnamesrv").args(["-c", names_file.to_str().unwrap()]).env("HOME", home));
    let file = folder.path().join("broker.conf");
    let lines = "brokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\nbrokerName=named\n";
    std::fs::write(&file, format!("{lines}storePathRootDir={home}/store\n")).unwrap();
    let mut command = script("mqbroker");
    command.args(["-c", file.to_str().unwrap(), "-n", names.address("namesrv")]);
    command.env("JAVA_OPT", "-Xms8g -Xmx8g -Drocketmq.namesrv.domain=x").env("HOME", home);
    let broker = Running::start(&mut command);
    // It is the process that was started, not a child of it.
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", broker.pid())).unwrap();
    assert_eq!(comm.trim(), "gantry");
    let list = ended(script("mqadmin").args(["clusterList", "-n", names.address("namesrv")]));
    assert!(list.0 == Some(0) && list.1.contains("named"), "{list:?}");
    let (code, said) = broker.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("JAVA_OPT: sets up a Java machine, and there is none; ignored"), "{said}");
    assert!(said.contains("-Drocketmq…) go into the property file"), "{said}");
    let (code, said) = names.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("ignored"), "{said}");
}

#[test]
fn what_is_set_is_printed_as_by_rocketmqs_letters() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.conf");
    std::fs::write(&file, "brokerName=printed\n").unwrap();
    let (code, said) = ended(script("mqbroker").args(["-c", file.to_str().unwrap(), "-m"]));
    assert!(code == Some(0) && said.contains("printed"), "{said}");
}

#[test]
fn what_this_version_does_not_have_is_refused_and_a_program_that_is_not_there_is_named() {
    let (code, said) = ended(script("mqbroker").arg("--enable-proxy"));
    assert!(code == Some(2) && said.contains("--enable-proxy: this version has no proxy"), "{said}");
    let (code, said) = ended(&mut script("mqproxy"));
    assert!(code == Some(2) && said.contains("this version has no proxy"), "{said}");
    let (code, said) = ended(script("mqbroker").env("GANTRY", "/no/such/program").env("PATH", "/usr/bin:/bin"));
    assert!(code == Some(127) && said.contains("set GANTRY"), "{said}");
}

#[test]
fn a_command_of_mqadmin_is_found_whatever_its_case() {
    let (code, said) = ended(script("mqadmin").args(["updatetopic", "--help"]));
    assert!(code == Some(0) && said.contains("Usage: gantry admin updateTopic"), "{said}");
    let (code, said) = ended(script("mqadmin").arg("noSuchCommand"));
    assert!(code != Some(0) && said.contains("noSuchCommand"), "{said}");
    let (code, said) = ended(&mut script("mqadmin"));
    assert!(code != Some(0) && said.contains("Usage: gantry admin"), "{said}");
}

#[test]
fn a_folder_of_files_is_used_where_no_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broker.conf"), "brokerName=by-the-folder\n").unwrap();
    let folder_name = folder.path().to_str().unwrap();
    let (code, said) = ended(script("mqbroker").arg("-m").env("GANTRY_CONF_FOLDER", folder_name));
    assert!(code == Some(0) && said.contains("by-the-folder"), "{said}");
    let other = folder.path().join("other.conf");
    std::fs::write(&other, "brokerName=by-name\n").unwrap();
    let (code, said) =
        ended(script("mqbroker").args(["-c", other.to_str().unwrap(), "-m"]).env("GANTRY_CONF_FOLDER", folder_name));
    assert!(code == Some(0) && said.contains("by-name") && !said.contains("by-the-folder"), "{said}");
}

#[test]
fn an_installation_has_the_program_its_names_pages_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("usr");
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/install");
    let (code, said) = ended(Command::new(install).arg(env!("CARGO_BIN_EXE_gantry")).arg(&prefix));
    assert_eq!(code, Some(0), "{said}");
    let mut command = Command::new(prefix.join("bin/mqadmin"));
    without_environment(&mut command);
    let (code, said) = ended(command.env_remove("GANTRY").args(["topicList", "--help"]));
    assert!(code == Some(0) && said.contains("Usage: gantry admin topicList"), "{said}");
    let page = std::fs::read_to_string(prefix.join("share/man/man1/gantry-admin-topicList.1")).unwrap();
    assert!(page.contains("topicList"), "{page}");
    let completions =
        ["bash-completion/completions/gantry", "zsh/site-functions/_gantry", "fish/vendor_completions.d/gantry.fish"];
    for file in completions {
        let script = std::fs::read_to_string(prefix.join("share").join(file)).unwrap();
        assert!(script.contains("updateTopic"), "{file}");
    }
}
