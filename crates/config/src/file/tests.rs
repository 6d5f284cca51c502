use std::os::unix::fs::symlink;

use super::*;

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_file_is_replaced_by_one_with_the_same_mode_and_attributes_and_nothing_is_left_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    fs::write(&path, "a=1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let takes_attributes = rustix::fs::setxattr(&path, "user.note", b"kept", XattrFlags::empty()).is_ok();
    let before = fs::metadata(&path).unwrap();
    change(&path, &[pair("a", "2")]).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "a=2\n");
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "a crash leaves one of two whole files");
    if takes_attributes {
        assert_eq!(attribute(&File::open(&path).unwrap(), b"user.note").unwrap(), b"kept");
    }
    assert_eq!(names_in(folder.path()), ["broker.conf"]);
}

#[test]
fn links_stay_links_and_other_names_stay_names_of_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let (real, other) = (folder.path().join("real/broker.conf"), folder.path().join("real/other.conf"));
    let (link, chain) = (folder.path().join("link.conf"), folder.path().join("chain.conf"));
    fs::create_dir(folder.path().join("real")).unwrap();
    fs::write(&real, "a=1\n").unwrap();
    symlink("real/broker.conf", &link).unwrap();
    symlink("link.conf", &chain).unwrap();
    change(&chain, &[pair("a", "2")]).unwrap();
    assert!(chain.is_symlink() && link.is_symlink() && !real.is_symlink());
    assert_eq!(fs::read_to_string(&real).unwrap(), "a=2\n");

    fs::hard_link(&real, &other).unwrap();
    change(&link, &[pair("a", "a longer value"), pair("b", "new")]).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "a=a longer value\nb=new\n");
    change(&link, &[pair("a", "3")]).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "a=3\nb=new\n");
    assert_eq!(fs::metadata(&real).unwrap().nlink(), 2);
    assert_eq!(names_in(&folder.path().join("real")), ["broker.conf", "other.conf"]);
}

#[test]
fn a_file_that_is_not_there_is_made_also_behind_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names/namesrv.properties");
    change(&path, &[pair("a", "1")]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "a=1\n");
    let link = folder.path().join("link");
    symlink("names/other.properties", &link).unwrap();
    change(&link, &[pair("a", "1")]).unwrap();
    assert!(link.is_symlink() && folder.path().join("names/other.properties").is_file());
}

#[test]
fn what_a_crash_left_beside_it_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.conf");
    fs::write(&path, "a=1\n").unwrap();
    let place = Place::of(&path).unwrap();
    fs::write(place.beside("new"), "half").unwrap();
    change(&path, &[pair("a", "2")]).unwrap();
    assert_eq!(names_in(folder.path()), ["broker.conf"]);
    assert_eq!(cut_short(&path), None);
    fs::write(place.beside("before"), "a=1\n").unwrap();
    assert_eq!(cut_short(&path), Some(place.beside("before")));
}

#[test]
fn what_is_no_file_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let said = write(folder.path(), b"a=1\n").unwrap_err().to_string();
    assert!(said.contains(folder.path().to_str().unwrap()) && said.contains("not a regular file"), "{said}");
    let round = folder.path().join("round");
    symlink("round", &round).unwrap();
    assert!(write(&round, b"a=1\n").unwrap_err().to_string().contains("round"));
}

#[test]
fn bytes_are_written_in_place_longer_and_shorter_and_back() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "one\ntwo\n").unwrap();
    let mut now = b"one\ntwo\n".to_vec();
    for next in ["one\nother and longer\n", "one\n", "", "one\ntwo\n"] {
        overwrite(file.as_file(), &now, next.as_bytes()).unwrap();
        now = next.as_bytes().to_vec();
        assert_eq!(fs::read(file.path()).unwrap(), now);
    }
}
