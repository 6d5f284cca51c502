//! A store whose journal is gone: a start that finds nothing where something was says so, and does not begin anew in silence.

use std::path::Path;

use journal::TableId;
use store::look::{KnownTables, Look};

use crate::support::*;

const TABLE: TableId = TableId(7);

/// A store with a message and an entry of a table, closed or killed; its journal is one file.
fn left(is_closed: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..10);
    store.journal().put(TABLE, b"group", b"7");
    eventually("the entry in its file", || store.journal().written().get() > 0);
    if is_closed {
        store.close().unwrap();
        return dir;
    }
    image(dir.path())
}

fn journal_files(root: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(root.join("journal")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn findings_of_verify(root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    let look = Look::stopped(options(root)).unwrap();
    look.verify(&KnownTables::default(), &mut |finding| findings.push(finding.what), &mut |_, _| {}).unwrap();
    // Queues may lack what was just stored.
    findings.retain(|what| what.contains("journal"));
    findings
}

#[test]
fn a_journal_without_its_only_file_is_a_refusal_with_a_remedy_and_found_by_verify() {
    for is_closed in [true, false] {
        for loss in ["removed", "empty", "zeros"] {
            let dir = left(is_closed);
            assert_eq!(findings_of_verify(dir.path()), Vec::<String>::new());
            for file in journal_files(dir.path()) {
                match loss {
                    "removed" => std::fs::remove_file(file).unwrap(),
                    "empty" => std::fs::write(file, "").unwrap(),
                    _zeros => std::fs::write(file, [0; 40]).unwrap(),
                }
            }
            for _ in 0..2 {
                let refused = try_open(options(dir.path())).map(|_| ()).unwrap_err().to_string();
                for part in ["journal", "no file of it", "from a copy", "move it away", "config/*.json"] {
                    assert!(refused.contains(part), "{loss}: {refused}");
                }
            }
            let findings = findings_of_verify(dir.path());
            assert!(
                findings.iter().any(|what| what.contains("had a journal, and no file of it")),
                "{loss}: {findings:?}"
            );
            // As the refusal says.
            std::fs::rename(dir.path().join("journal"), dir.path().join("journal.lost")).unwrap();
            let (store, found) = open(dir.path());
            assert!(found.findings.iter().any(|what| what.contains("config/*.json")), "{:?}", found.findings);
            assert_run(&store, 0..10);
            store.close().unwrap();
        }
    }
}

#[test]
fn a_folder_that_is_gone_with_the_journal_is_said_once() {
    for is_closed in [true, false] {
        let dir = left(is_closed);
        std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
        assert!(findings_of_verify(dir.path()).iter().any(|what| what.contains("its folder is not here")));
        let (store, found) = open(dir.path());
        let says = |what: &String| what.contains("journal is not there") && what.contains("config/*.json");
        assert!(found.findings.iter().any(says), "{:?}", found.findings);
        store.close().unwrap();
        drop(store);
        let (store, found) = open(dir.path());
        assert_eq!(found, Default::default());
        assert_run(&store, 0..10);
    }
}

#[test]
fn a_store_that_never_had_a_journal_opens_in_silence() {
    // As a broker of Apache's leaves it.
    let dir = left(true);
    forget_journal(dir.path());
    let (store, found) = open(dir.path());
    assert_eq!(found, Default::default());
    assert_run(&store, 0..10);
}
