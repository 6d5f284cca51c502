//! What `gantry admin` says of names that there are and names that there are not, and how it ends.

use crate::support::{Running, gantry};

/// A server, and the commands that are put to it.
struct Asked {
    server: Running,
    folder: tempfile::TempDir,
}

impl Asked {
    fn start() -> Asked {
        let folder = tempfile::tempdir().unwrap();
        let server = Running::server(&folder.path().join("data"));
        Asked { server, folder }
    }

    /// Exit code, and what was said.
    fn ask(&self, line: &str) -> (i32, String) {
        let words: Vec<&str> = ["admin"].into_iter().chain(line.split(' ')).collect();
        let output = gantry(&words).env("NAMESRV_ADDR", self.server.address("namesrv")).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    }

    /// The command ends well and says all of these.
    fn says(&self, line: &str, words: &[&str]) -> String {
        let (code, said) = self.ask(line);
        assert_eq!(code, 0, "{line}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{line} does not say {words:?}: {said}");
        said
    }

    /// The command fails and says this.
    fn refuses(&self, line: &str, word: &str) {
        let (code, said) = self.ask(line);
        assert_ne!(code, 0, "{line}: {said}");
        assert!(said.contains(word), "{line} does not say {word:?}: {said}");
        assert!(!said.contains("success"), "{line}: {said}");
    }
}

#[test]
fn what_is_not_there_is_not_deleted_with_success() {
    let asked = Asked::start();
    asked.refuses("deleteTopic -t nobody -c DefaultCluster", "knows topic nobody: nothing is deleted");
    asked.refuses("deleteSubGroup -g nobody -c DefaultCluster", "no group nobody");
    asked.refuses("deleteKvConfig -s space -k nothing", "no name server has key nothing of namespace space");
    asked.refuses("updateOrderConf -t nobody -m delete", "no name server has an order of topic nobody");
    asked.refuses("wipeWritePerm -b nobody", "knows no broker nobody");
    asked.refuses("statsAll -t nobody", "knows no topic nobody");
    asked.refuses("updateTopic -c DefaultCluster -t wrong -p 9", "9 is not in 0..=7");
    // Other tools ask without looking, and the broker looks itself.
    let file = asked.folder.path().join("topics.json");
    std::fs::write(&file, r#"[{"topicName":"wrong","perm":9}]"#).unwrap();
    let list = format!("updateTopicList -c DefaultCluster -f {}", file.display());
    asked.refuses(&list, "perm=9 of topic wrong is not between 0 and 7");
    asked.refuses("topicRoute -t wrong", "no topic wrong");
    // And what is there goes.
    asked.says("updateTopic -c DefaultCluster -t made", &["success"]);
    asked.says("deleteTopic -t made -c DefaultCluster", &["from NameServer success"]);
    asked.refuses("deleteTopic -t made -c DefaultCluster", "nothing is deleted");
    asked.says("updateSubGroup -c DefaultCluster -g group", &["success"]);
    asked.says("deleteSubGroup -g group -c DefaultCluster", &["success"]);
    assert_eq!(asked.server.end("-TERM").0, Some(0));
}

#[test]
fn a_group_that_has_offsets_and_no_retry_topic_is_known_everywhere() {
    let asked = Asked::start();
    asked.refuses("consumerStatus -g tool", "nothing is known of group tool");
    asked.refuses("consumerConnection -g tool", "nothing is known of group tool");
    asked.refuses("consumerProgress -g tool", "nothing is known of group tool");
    asked.says("updateTopic -c DefaultCluster -t orders -r 1 -w 1", &["success"]);
    asked.says("updateSubGroup -c DefaultCluster -g tool", &["success"]);
    asked.refuses("consumerStatus -g tool", "no consumer of group tool is online, and it has committed no offset");
    asked.refuses("cloneGroupOffset -s nobody -d other -t orders", "nothing is known of group nobody");
    asked.refuses("consumerProgress -g nobody -t orders", "nothing is known of group nobody");
    for body in ["a", "b"] {
        asked.says(&format!("sendMessage -t orders -p {body}"), &["SEND_OK"]);
    }
    asked.says("resetOffsetByTimeOld -g tool -t orders -s 0", &["rollbackOffset"]);
    asked.says("consumerProgress -g tool", &["Consume Diff Total:     2"]);
    let all = asked.says("consumerProgress", &["tool"]);
    let row = all.lines().find(|line| line.starts_with("tool ")).unwrap();
    assert!(row.contains("OFFLINE") && row.ends_with('2'), "{all}");
    assert!(!all.contains("TOOLS_CONSUMER"), "a group of RocketMQ's own: {all}");
    asked.refuses("consumerStatus -g tool", "no consumer of group tool is online; its offsets of 1 queue are known");
    // Nothing was consumed yet, so there is no time of the last message, and yet two messages wait.
    let broker = asked.server.address("broker").to_owned();
    let stats = asked.says(&format!("brokerConsumeStats -b {broker}"), &["Diff Total:     2"]);
    let row = stats.lines().find(|line| line.starts_with("orders ")).unwrap_or_else(|| panic!("{stats}"));
    assert!(row.contains("tool") && row.contains("N/A"), "{stats}");
    assert_eq!(asked.server.end("-TERM").0, Some(0));
}

#[test]
fn a_list_of_one_is_said_in_the_singular() {
    let asked = Asked::start();
    let file = asked.folder.path().join("groups.json");
    std::fs::write(&file, r#"[{"groupName":"one"}]"#).unwrap();
    asked.says(&format!("updateSubGroupList -c DefaultCluster -f {}", file.display()), &["submit 1 group to "]);
    assert_eq!(asked.server.end("-TERM").0, Some(0));
}

#[test]
fn without_a_name_server_that_of_this_machine_is_asked() {
    // Somebody may run a server here.
    let output = gantry(&["admin", "clusterList"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "neither -n HOST:PORT nor NAMESRV_ADDR names a name server, so 127.0.0.1:9876 was asked: ";
    assert!(output.status.success() || said.contains(expected), "{said}");
    // A broker that is named is asked without one.
    let output = gantry(&["admin", "brokerStatus", "-b", "127.0.0.1:1"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "gantry: cannot connect to 127.0.0.1:1: Connection refused (os error 111)\n");
}
