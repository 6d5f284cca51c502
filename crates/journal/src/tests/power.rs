//! A loss of power at every step of a snapshot: what the files may be then, and that each of it opens.

use super::device::Lost;
use super::*;

/// The files of a journal: names and bytes.
type Image = BTreeMap<String, Vec<u8>>;

fn image_of(dir: &Path) -> Image {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// What a start finds in such files; and it can be written on, and opened again.
fn opened(image: &Image) -> State {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in image {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let journal = try_open(dir.path(), options()).unwrap_or_else(|error| {
        let files: Vec<_> = image.iter().map(|(name, bytes)| (name, bytes.len())).collect();
        panic!("{error}: {files:?}")
    });
    let found = state(&journal);
    journal.put(TABLE, b"written on", b"");
    assert!(journal.close());
    assert_eq!(state(&open(dir.path())).len(), found.len() + 1);
    found
}

/// Files before a snapshot of ten changes that follow an earlier one, files after it, and the state.
fn around_a_snapshot() -> (Image, Image, State) {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    for n in 0..10u8 {
        journal.put(TABLE, &[n], &[n; 20]);
    }
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    for n in 5..15u8 {
        journal.put(TABLE, &[n], b"again");
    }
    assert!(journal.close());
    let before = image_of(dir.path());
    let journal = open(dir.path());
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    let state = state(&journal);
    assert!(journal.close());
    (before, image_of(dir.path()), state)
}

#[test]
fn a_new_file_whose_head_is_cut_at_any_byte_is_one_that_was_not_begun() {
    let (before, after, state) = around_a_snapshot();
    let (name, bytes) = after.iter().find(|(name, _)| name.ends_with(".journal")).unwrap();
    assert!(!before.contains_key(name));
    for cut in 0..=bundle::HEADER_BYTES {
        let mut image = before.clone();
        image.insert(name.clone(), bytes[..cut].to_vec());
        assert_eq!(opened(&image), state, "{cut} bytes");
    }
}

/// Neither its head could be written then, nor could it be removed.
#[test]
fn a_file_that_was_not_begun_is_passed_over_wherever_it_stands() {
    let (before, after, state) = around_a_snapshot();
    let name = |position| files::journal_path(Path::new(""), position).display().to_string();
    let (last, head) = after.iter().find(|(name, _)| name.ends_with(".journal")).unwrap();
    assert!(before.contains_key(&name(10)) && *last == name(20));
    for cut in 0..=bundle::HEADER_BYTES - 1 {
        for at in [15, 20] {
            let mut image = before.clone();
            image.insert(name(15), head[..cut].to_vec());
            image.insert(name(20), head[..if at == 15 { head.len() } else { cut }].to_vec());
            assert_eq!(opened(&image), state, "{cut} bytes of the one at {at}");
        }
    }
    // What was written on in the one before may be torn.
    let mut image = before.clone();
    image.insert(name(15), Vec::new());
    let bytes = image.get_mut(&name(10)).unwrap();
    let whole = bytes.len();
    bytes.extend_from_slice(&head[..bundle::HEADER_BYTES - 1]);
    assert_eq!(opened(&image), state, "{whole} bytes, and a torn end");
    // One that was begun and is missing leaves a gap, whatever stands in it.
    for empty in [10, 15] {
        let mut image = before.clone();
        image.remove(&name(10));
        image.insert(name(empty), Vec::new());
        image.insert(name(20), head.clone());
        let dir = tempfile::tempdir().unwrap();
        image.iter().for_each(|(name, bytes)| std::fs::write(dir.path().join(name), bytes).unwrap());
        assert!(matches!(try_open(dir.path(), options()), Err(JournalError::Missing { .. })), "{empty}");
        assert_eq!(image_of(dir.path()), image, "nothing goes");
    }
}

#[test]
fn an_unfinished_snapshot_cut_at_any_byte_says_nothing() {
    let (before, after, state) = around_a_snapshot();
    let (name, bytes) = after.iter().find(|(name, _)| name.ends_with(".snapshot")).unwrap();
    let (next, head) = after.iter().find(|(name, _)| name.ends_with(".journal")).unwrap();
    for cut in 0..=bytes.len() {
        let mut image = before.clone();
        image.insert(next.clone(), head[..bundle::HEADER_BYTES].to_vec());
        image.insert(name.replace(".snapshot", ".tmp"), bytes[..cut].to_vec());
        assert_eq!(opened(&image), state, "{cut} bytes");
    }
}

#[test]
fn both_generations_of_files_give_the_newer_whichever_of_the_old_ones_are_gone() {
    let (before, after, state) = around_a_snapshot();
    let old: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
    assert!(old.len() >= 2, "{old:?}");
    for gone in 0..1u32 << old.len() {
        let mut image: Image = before.clone().into_iter().chain(after.clone()).collect();
        for (_, name) in old.iter().enumerate().filter(|(place, _)| gone >> place & 1 == 1) {
            image.remove(*name);
        }
        assert_eq!(opened(&image), state, "{gone:b} of {old:?} gone");
    }
}

#[test]
fn a_loss_of_power_at_any_step_of_a_snapshot_keeps_what_the_device_has_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let late = JournalOptions { sync: JournalSync::Every(Duration::from_secs(3_600)), ..options() };
    let journal = Journal::open(dir.path(), late, Clock::real(), device.disk()).unwrap();
    for round in 1..=3u8 {
        let mut last = 0;
        for n in 0..20 {
            last = journal.put(TABLE, &[n], &[round; 100]);
        }
        wait(&journal, last);
        let lost = [Lost::All, Lost::Some(u32::from(round)), Lost::Some(u32::from(round) + 100)];
        let images = device.images_of_each_step(&lost, || {
            journal.snapshot();
            until(|| journal.stats().snapshots == u64::from(round));
        });
        // A new file, its head, two syncs of it, the snapshot's own, its name, and what goes.
        assert!(images.len() >= 8 * lost.len(), "{} images", images.len());
        for image in images {
            let found = opened(&image_of(image.path()));
            // What a round put is on the device before the first step of its snapshot, or is as the round before left it.
            let rounds: Vec<u8> = found.values().map(|value| value[0]).collect();
            assert!(rounds.iter().all(|of| *of == round || *of + 1 == round), "{rounds:?} in round {round}");
            assert!(round == 1 || found.len() == 20, "{} of 20 in round {round}", found.len());
        }
    }
}
