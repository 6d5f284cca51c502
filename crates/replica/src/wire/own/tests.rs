//! Bytes of the stream, in any parts, cut and damaged.

use proptest::prelude::*;

use super::greeting::ANSWER_BYTES_MAX;
use super::*;

fn identity(cluster: &str, set: &str, broker_id: i64) -> Identity {
    Identity { cluster: cluster.to_owned(), set: set.to_owned(), broker_id }
}

fn greeting() -> Greeting {
    Greeting {
        version: VERSION,
        who: identity("DefaultCluster", "broker-a", 1),
        segment_bytes: 1 << 30,
        min: LogOffset(1 << 30),
        end: LogOffset((1 << 30) + 245),
        nonce: [7; 32],
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// The hello that comes in parts of such a size, and how much of `stream` is left.
fn hello(stream: &[u8], size: usize) -> Result<Option<(Hello, usize)>, Misread> {
    let mut hellos = Hellos::default();
    for (number, mut part) in stream.chunks(size).enumerate() {
        let taken = number * size;
        let length = part.len();
        if let Some(hello) = hellos.next(&mut part)? {
            return Ok(Some((hello, stream.len() - taken - (length - part.len()))));
        }
    }
    Ok(None)
}

fn answered(stream: &[u8], size: usize) -> Result<Option<Answered>, Misread> {
    let mut answers = Answers::default();
    for mut part in stream.chunks(size) {
        if let Some(answered) = answers.next(&mut part)? {
            return Ok(Some(answered));
        }
    }
    Ok(None)
}

fn notes(stream: &[u8], size: usize) -> Result<Vec<Note>, Misread> {
    let (mut notes, mut all) = (Notes::default(), Vec::new());
    for mut part in stream.chunks(size) {
        while let Some(note) = notes.next(&mut part)? {
            all.push(note);
        }
        assert!(part.is_empty(), "what is not whole is kept");
    }
    Ok(all)
}

/// A frame of the log: place, body, whether the device is asked for. An end has no place.
type Frame = (Option<u64>, Vec<u8>, bool);

fn frames(stream: &[u8], size: usize) -> Result<Vec<Frame>, Misread> {
    let (mut frames, mut all): (_, Vec<Frame>) = (Frames::default(), Vec::new());
    for mut part in stream.chunks(size) {
        while let Some(piece) = frames.next(&mut part)? {
            match piece {
                Piece::Header { at, asks_for_device, .. } => all.push((Some(at.0), Vec::new(), asks_for_device)),
                Piece::Body(body) => all.last_mut().unwrap().1.extend_from_slice(body),
                Piece::End(why) => all.push((None, why.into_bytes(), false)),
            }
        }
        assert!(part.is_empty(), "what is not whole is kept");
    }
    Ok(all)
}

/// The next version has to read these.
#[test]
fn the_bytes_of_version_1() {
    let hello = Hello::new(Greeting { who: identity("c", "set", 2), nonce: [0xAB; 32], ..greeting() }).unwrap();
    let nonce = "ab".repeat(32);
    let said = format!(
        "0001 0048 0000000000000002 0000000040000000 0000000040000000 00000000400000f5 {nonce} 0001 63 0003 736574"
    );
    assert_eq!(hello.bytes, bytes(&format!("9f47616e7472790a {said}")));
    assert!(begins_hello(hello.bytes[0]) && !begins_hello(0x7F));
    let said = hello.greeting.encode().unwrap();
    assert_eq!(answer(&said, None)[..HEADER_BYTES], bytes("04 00 0000000000000000 0000004d"));
    assert_eq!(answer(&said, Some(&[9; 32]))[HEADER_BYTES + said.len()..], [&[32][..], &[9; 32]].concat());
    assert_eq!(header(LogOffset(245), 0, false).to_vec(), bytes("02 00 00000000000000f5 00000000"));
    assert_eq!(header(LogOffset(245), 700, true).to_vec(), bytes("01 01 00000000000000f5 000002bc"));
    assert_eq!(end("why"), bytes("03 00 0000000000000000 00000003 776879"));
    let has = Note::Has { written: LogOffset(245), flushed: LogOffset(1) };
    assert_eq!(has.encode(), bytes("02 10 00000000000000f5 0000000000000001"));
    assert_eq!(Note::Proof([5; 32]).encode(), [&[1, 32][..], &[5; 32]].concat());
    assert_eq!(Note::Leaves(Leaves::NoProof).encode(), [3, 1, 2]);
}

#[test]
fn a_hello_is_read_in_any_parts_and_not_before_it_is_whole() {
    let sent = Hello::new(greeting()).unwrap();
    let stream = [sent.bytes.as_slice(), b"behind"].concat();
    for size in 1..=stream.len() {
        assert_eq!(hello(&stream, size), Ok(Some((sent.clone(), 6))), "{size}");
    }
    for length in 0..sent.bytes.len() {
        assert_eq!(hello(&sent.bytes[..length], 11), Ok(None), "{length}");
    }
}

#[test]
fn lengths_that_are_not_what_is_there_are_refused() {
    let sent = Hello::new(greeting()).unwrap().bytes;
    // The whole, and each of the two names: states another length than it has.
    for stated in 0..=u16::MAX {
        let mut other = sent.clone();
        other[10..12].copy_from_slice(&stated.to_be_bytes());
        match hello(&other, 4096) {
            Ok(read) if usize::from(stated) >= sent.len() - 12 => {
                assert_eq!(read.is_some(), usize::from(stated) == sent.len() - 12, "{stated}");
            }
            Ok(read) => panic!("{stated}: {read:?}"),
            Err(Misread::Length { limit: GREETING_BYTES_MAX, bytes, .. }) => assert!(bytes > GREETING_BYTES_MAX),
            Err(why) => assert!(matches!(why, Misread::Short { .. }), "{stated}: {why}"),
        }
    }
    let cluster_at = 12 + 64;
    for stated in 0..=u16::MAX {
        let mut other = sent.clone();
        other[cluster_at..][..2].copy_from_slice(&stated.to_be_bytes());
        match hello(&other, 4096) {
            Ok(read) => assert_eq!(read.unwrap().0.greeting.who.cluster.len(), usize::from(stated)),
            Err(Misread::Length { bytes, limit, .. }) => assert!(bytes > limit && limit == NAME_BYTES_MAX),
            Err(why) => assert!(matches!(why, Misread::Short { .. }), "{stated}: {why}"),
        }
    }
    let long = Greeting { who: identity(&"x".repeat(513), "s", 1), ..greeting() };
    assert!(matches!(long.encode(), Err(Misread::Length { bytes: 513, limit: 512, .. })));
    let longest = Greeting { who: identity(&"x".repeat(512), &"y".repeat(512), 1), ..greeting() };
    let read = hello(&Hello::new(longest.clone()).unwrap().bytes, 4096).unwrap().unwrap().0;
    assert_eq!(read.greeting, longest);
}

#[test]
fn what_is_no_hello_is_refused_with_its_first_wrong_byte() {
    let sent = Hello::new(greeting()).unwrap().bytes;
    for at in 1..MAGIC.len() {
        let mut other = sent.clone();
        other[at] ^= 1;
        assert_eq!(hello(&other[..=at], 1), Err(Misread::Magic), "{at}");
    }
    let mut other = sent.clone();
    other[12 + 24] = 0x80;
    assert!(matches!(hello(&other, 4096), Err(Misread::Offset { .. })), "the end of the log");
    let mut other = sent.clone();
    let last = other.len() - 1;
    other[last] = 0xFF;
    assert_eq!(hello(&other, 4096), Err(Misread::Name("set")));
}

#[test]
fn what_a_later_version_adds_is_passed_over() {
    let mut sent = Hello::new(Greeting { version: 7, ..greeting() }).unwrap().bytes;
    let more = b"and more";
    let length = u16::from_be_bytes([sent[10], sent[11]]) + more.len() as u16;
    sent[10..12].copy_from_slice(&length.to_be_bytes());
    sent.extend_from_slice(more);
    let (read, left) = hello(&sent, 5).unwrap().unwrap();
    assert_eq!((read.greeting, left), (Greeting { version: 7, ..greeting() }, 0));
    assert_eq!(read.bytes, sent, "proofs are of all of it");

    let passed = [head(200, 0, LogOffset(1), 3).as_slice(), b"abc"].concat();
    let log = [header(LogOffset(9), 2, false).as_slice(), b"de"].concat();
    let flags = head(HEARTBEAT, 0xFE, LogOffset(11), 0);
    let stream = [passed.as_slice(), &log, &passed, &flags].concat();
    for size in [1, 3, 100] {
        let read = frames(&stream, size).unwrap();
        assert_eq!(read, [(Some(9), b"de".to_vec(), false), (Some(11), vec![], false)]);
    }
    let has = Note::Has { written: LogOffset(3), flushed: LogOffset(2) };
    let longer = [&[HAS, 18][..], &has.encode()[2..], b"xx"].concat();
    let stream = [&[222, 4][..], b"more", &longer, &[255, 0], &[LEAVES, 1, 77]].concat();
    for size in [1, 3, 100] {
        assert_eq!(notes(&stream, size).unwrap(), [has, Note::Leaves(Leaves::Other)]);
    }
}

#[test]
fn an_answer_is_read_in_any_parts_with_a_proof_and_without() {
    let said = greeting().encode().unwrap();
    for proof in [None, Some([3; 32])] {
        let stream = answer(&said, proof.as_ref());
        let read = Answered::Goes(Answer { greeting: greeting(), bytes: said.clone(), proof });
        for size in 1..=stream.len() {
            assert_eq!(answered(&stream, size), Ok(Some(read.clone())), "{size}");
        }
        for length in 0..stream.len() {
            assert_eq!(answered(&stream[..length], 7), Ok(None), "{length}");
        }
    }
    // Half of a proof is none.
    let half = framed(ANSWER, &[&said[..], &[16], &[3; 16]].concat());
    assert!(matches!(answered(&half, 9), Err(Misread::Length { bytes: 16, .. })));
    let cut = framed(ANSWER, &[&said[..], &[32], &[3; 31]].concat());
    assert!(matches!(answered(&cut, 9), Err(Misread::Short { field: "the proof", .. })));
    let long = head(ANSWER, 0, LogOffset(0), u32::MAX);
    assert!(matches!(answered(&long, 9), Err(Misread::Length { limit: ANSWER_BYTES_MAX, .. })));
    let log = header(LogOffset(0), 4, false);
    assert!(matches!(answered(&log, 9), Err(Misread::Kind { kind: LOG, .. })));
}

#[test]
fn the_words_of_an_end_are_short_and_one_line() {
    let stream = end(&format!("first\nsecond\u{7}{}", "ä".repeat(2000)));
    assert_eq!(stream.len(), HEADER_BYTES + WORDS_BYTES_MAX - 1, "a letter is not cut");
    for size in [1, 100, 4096] {
        let Ok(Some(Answered::Ends(why))) = answered(&stream, size) else { panic!("{size}") };
        assert!(why.starts_with("first second ä"), "{why}");
        assert_eq!(frames(&stream, size).unwrap(), [(None, why.into_bytes(), false)]);
    }
    let no_text = framed(END, &[0xFF, 0xFE, b'a']);
    assert!(matches!(answered(&no_text, 4), Ok(Some(Answered::Ends(why))) if why.ends_with('a')));
    let long = head(END, 0, LogOffset(0), 1025);
    assert!(matches!(frames(&long, 9), Err(Misread::Length { limit: 1024, .. })));
}

#[test]
fn frames_and_notes_that_have_no_place_are_refused() {
    let refused = |frame: [u8; HEADER_BYTES]| frames(&frame, 5).unwrap_err();
    let over = BODY_BYTES_MAX as u32 + 1;
    assert!(matches!(refused(header(LogOffset(1), over, false)), Misread::Length { limit: BODY_BYTES_MAX, .. }));
    assert!(frames(&header(LogOffset(1), over - 1, false), 5).is_ok());
    assert!(matches!(refused(head(HEARTBEAT, 0, LogOffset(1), 1)), Misread::Length { limit: 0, .. }));
    assert!(matches!(refused(header(LogOffset(1 << 63), 1, false)), Misread::Offset { .. }));
    for kind in [0, ANSWER, 5, 127] {
        assert_eq!(refused(head(kind, 0, LogOffset(1), 1)), Misread::Kind { what: "a frame", kind });
    }
    assert!(matches!(refused(head(255, 0, LogOffset(1), u32::MAX)), Misread::Length { .. }));
    for kind in [0, 4, 127] {
        assert_eq!(notes(&[kind, 1, 9], 2), Err(Misread::Kind { what: "a note", kind }));
    }
    let has = Note::Has { written: LogOffset(1), flushed: LogOffset(1) }.encode();
    for bytes in 0..16_u8 {
        let cut = [&[HAS, bytes][..], &has[2..][..usize::from(bytes)]].concat();
        assert!(matches!(notes(&cut, 3), Err(Misread::Short { .. })), "{bytes}");
    }
    assert!(matches!(notes(&[PROOF, 31, 0, 0], 9), Ok(all) if all.is_empty()));
    assert!(matches!(notes(&[&[PROOF, 31][..], &[0; 31]].concat(), 9), Err(Misread::Short { .. })));
    let negative = Note::Has { written: LogOffset(u64::MAX), flushed: LogOffset(0) }.encode();
    assert!(matches!(notes(&negative, 9), Err(Misread::Offset { number: u64::MAX, .. })));
}

proptest! {
    #[test]
    fn any_frames_in_any_parts_come_out_as_they_went_in(
        sent in prop::collection::vec((0..1_u64 << 62, prop::collection::vec(any::<u8>(), 0..60), any::<bool>()), 0..20),
        size in 1_usize..80,
    ) {
        let mut stream = Vec::new();
        for (at, body, asks) in &sent {
            stream.extend_from_slice(&header(LogOffset(*at), body.len() as u32, *asks));
            stream.extend_from_slice(body);
        }
        let sent: Vec<_> = sent.into_iter().map(|(at, body, asks)| (Some(at), body, asks)).collect();
        prop_assert_eq!(frames(&stream, size).unwrap(), sent);
    }

    #[test]
    fn any_greeting_comes_out_as_it_went_in(
        (version, broker_id, segment_bytes) in (any::<u16>(), any::<i64>(), any::<u64>()),
        (min, end) in (0..1_u64 << 63, 0..1_u64 << 63),
        nonce in any::<[u8; 32]>(),
        (cluster, set) in ("\\PC{0,120}", "\\PC{0,120}"),
        size in 1_usize..300,
    ) {
        let who = Identity { cluster, set, broker_id };
        let (min, end) = (LogOffset(min), LogOffset(end));
        let sent = Hello::new(Greeting { version, who, segment_bytes, min, end, nonce }).unwrap();
        prop_assert_eq!(hello(&sent.bytes, size).unwrap(), Some((sent.clone(), 0)));
        let said = sent.greeting.encode().unwrap();
        let answer = answered(&answer(&said, Some(&nonce)), size).unwrap();
        let read = Answer { greeting: sent.greeting, bytes: said, proof: Some(nonce) };
        prop_assert_eq!(answer, Some(Answered::Goes(read)));
    }

    #[test]
    fn any_bytes_are_read_or_refused(stream in prop::collection::vec(any::<u8>(), 0..400), size in 1_usize..50) {
        drop(frames(&stream, size));
        drop(notes(&stream, size));
        drop(answered(&stream, size));
        drop(hello(&stream, size));
        drop(hello(&[&MAGIC[..], &stream].concat(), size));
        drop(answered(&[&head(ANSWER, 0, LogOffset(0), stream.len() as u32)[..], &stream].concat(), size));
    }
}
