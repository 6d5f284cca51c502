//! Steps of a feed, with times and offsets that were recorded from Apache 5.5.0 where it is named.

use proptest::prelude::*;

use super::*;

const FILE: u64 = 1 << 20;

fn log(min: u64, end: u64) -> LogRange {
    LogRange { min, end, given: end, segment_bytes: FILE }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn feed() -> Feed {
    Feed::new(FeedOptions::default(), seconds(0))
}

fn hears(feed: &mut Feed, now: Duration, log: LogRange, reports: &[u64]) -> Result<Effects, Closed> {
    let bytes: Vec<u8> = reports.iter().flat_map(|report| report.to_be_bytes()).collect();
    feed.step(now, log, Event::Heard(&bytes))
}

/// A feed that has sent up to `next`, for a slave that began with `first`.
fn begun(first: u64, next: u64) -> Feed {
    let (mut feed, log) = (feed(), log(0, next));
    let effects = hears(&mut feed, seconds(0), log, &[first]).unwrap();
    if let Some(Outgoing::Frame { at, .. }) = effects.send {
        feed.step(seconds(0), log, Event::Read((next - at.0) as usize)).unwrap();
        feed.step(seconds(0), log, Event::Sent).unwrap();
    }
    feed
}

fn frame(at: u64) -> Option<Outgoing> {
    Some(Outgoing::Frame { at: LogOffset(at), max: BODY_BYTES })
}

#[test]
fn nothing_is_sent_before_the_first_report_and_its_place_is_where_the_transfer_begins() {
    let (mut feed, log) = (feed(), log(0, 300_000));
    assert_eq!(feed.step(seconds(1), log, Event::Due).unwrap(), Effects::default());
    assert_eq!((feed.waits_above(), feed.due()), (None, seconds(20)));
    let report = 245_u64.to_be_bytes();
    assert_eq!(feed.step(seconds(5), log, Event::Heard(&report[..3])).unwrap(), Effects::default());
    let effects = feed.step(seconds(5), log, Event::Heard(&report[3..])).unwrap();
    let begun = Some(LogOffset(245));
    assert_eq!(effects, Effects { begun, acknowledged: begun, send: frame(245), ..Effects::default() });
    // As recorded: frames at 245, 33,013, 65,781.
    for at in [33_013, 65_781] {
        assert_eq!(feed.step(seconds(5), log, Event::Read(BODY_BYTES)).unwrap().send, None);
        assert_eq!(feed.step(seconds(5), log, Event::Sent).unwrap().send, frame(at));
    }
}

#[test]
fn an_empty_slave_gets_all_of_the_log_or_its_last_file_as_from_apache() {
    let begins = |from_last_file, log| {
        let mut feed = Feed::new(FeedOptions { from_last_file, ..FeedOptions::default() }, seconds(0));
        let effects = hears(&mut feed, seconds(0), log, &[0]).unwrap();
        assert_eq!(effects.acknowledged, Some(LogOffset(0)));
        effects.begun.unwrap().0
    };
    // As recorded: the log ended in the fourth file.
    assert_eq!(begins(true, log(0, 3 * FILE + 700)), 3_145_728);
    assert_eq!(begins(true, log(0, 3 * FILE)), 3_145_728);
    assert_eq!(begins(true, log(0, 0)), 0);
    assert_eq!(begins(false, log(0, 3 * FILE + 700)), 0);
    assert_eq!(begins(false, log(2 * FILE, 3 * FILE + 700)), 2 * FILE);
}

#[test]
fn a_heartbeat_goes_out_where_nothing_was_sent_for_five_seconds() {
    let (mut feed, log) = (feed(), log(0, 0));
    assert_eq!(hears(&mut feed, seconds(1), log, &[0]).unwrap().send, None);
    assert_eq!(feed.due(), seconds(5));
    let heartbeat = Some(Outgoing::Heartbeat { at: LogOffset(0) });
    assert_eq!(feed.step(seconds(5), log, Event::Due).unwrap().send, heartbeat);
    assert_eq!(feed.step(seconds(5), log, Event::Due).unwrap().send, None, "it is going out");
    assert_eq!(feed.step(seconds(5), log, Event::Sent).unwrap().send, None);
    assert_eq!((feed.due(), feed.waits_above()), (seconds(10), Some(LogOffset(0))));
    let log = LogRange { end: 245, ..log };
    assert_eq!(feed.step(seconds(6), log, Event::Due).unwrap().send, frame(0));
}

#[test]
fn less_than_a_frame_waits_for_the_word_on_what_was_sent_but_not_for_long() {
    let (mut feed, at) = (begun(0, 1000), seconds(0));
    // What is less than a frame is not even woken for.
    assert_eq!((feed.waits_above(), feed.due()), (Some(LogOffset(1000 + BODY_BYTES as u64 - 1)), at + GATHERING));
    let grown = log(0, 1500);
    assert_eq!(feed.step(at, grown, Event::Due).unwrap().send, None);
    assert_eq!(hears(&mut feed, at, grown, &[500]).unwrap().send, None, "a part of it");
    assert_eq!(hears(&mut feed, at, grown, &[1000]).unwrap().send, frame(1000));
    feed.step(at, grown, Event::Read(500)).unwrap();
    assert_eq!(feed.step(at, log(0, 1600), Event::Sent).unwrap().send, None);
    // A slave that says nothing.
    assert_eq!(feed.step(at + GATHERING, log(0, 1600), Event::Due).unwrap().send, frame(1500));
    feed.step(at + GATHERING, grown, Event::Read(100)).unwrap();
    // A whole frame waits for nobody.
    let full = log(0, 1600 + BODY_BYTES as u64);
    assert_eq!(feed.step(at + GATHERING, full, Event::Sent).unwrap().send, frame(1600));
}

#[test]
fn nothing_waits_where_the_slave_has_all_that_was_sent() {
    let mut feed = begun(0, 1000);
    assert_eq!(hears(&mut feed, seconds(0), log(0, 1000), &[1000]).unwrap().send, None);
    assert_eq!(feed.waits_above(), Some(LogOffset(1000)));
    assert_eq!(feed.step(seconds(0), log(0, 1001), Event::Due).unwrap().send, frame(1000));
}

#[test]
fn acknowledgements_are_told_once_and_the_newest_of_a_read_counts() {
    let mut feed = begun(0, 1000);
    let acknowledged = |feed: &mut Feed, reports: &[u64]| {
        hears(feed, seconds(1), log(0, 1000), reports).unwrap().acknowledged.map(|end| end.0)
    };
    assert_eq!(acknowledged(&mut feed, &[0, 245, 735]), Some(735));
    assert_eq!(acknowledged(&mut feed, &[735, 735]), None);
    assert_eq!(acknowledged(&mut feed, &[1000]), Some(1000));
}

#[test]
fn false_reports_end_the_connection_and_acknowledge_nothing() {
    let first = |report| hears(&mut feed(), seconds(0), log(FILE, 2 * FILE), &[report]).unwrap_err();
    assert!(
        matches!(first(2 * FILE + 1), Closed::Ahead { report, given } if (report, given) == (2 * FILE + 1, 2 * FILE))
    );
    assert!(matches!(first(1 << 50), Closed::Ahead { .. }));
    assert!(matches!(first(u64::MAX), Closed::Misread(plain::Misread::Report(-1))));
    assert!(matches!(first(FILE - 1), Closed::Behind { min: FILE, .. }));
    let http = feed().step(seconds(0), log(0, FILE), Event::Heard(b"GET / HTTP/1.1\r\n")).unwrap_err();
    assert!(matches!(http, Closed::Ahead { .. }), "{http}");

    let later = |reports: &[u64]| {
        let mut feed = begun(0, 1000);
        hears(&mut feed, seconds(0), log(0, 5000), reports).unwrap_err()
    };
    assert!(
        matches!(later(&[1001]), Closed::Unsent { report: 1001, sent: 1000 }),
        "the log goes on, the frames do not"
    );
    assert!(matches!(later(&[1 << 50, 10]), Closed::Unsent { .. }), "each report is looked at");
    assert!(matches!(later(&[500, 499]), Closed::Back { report: 499, before: 500 }));
    // An empty slave whose log began in the middle.
    let (mut feed, log) = (feed(), log(FILE, FILE + 900));
    hears(&mut feed, seconds(0), log, &[0, 0]).unwrap();
    assert!(matches!(hears(&mut feed, seconds(0), log, &[7]), Err(Closed::Back { report: 7, before: FILE })));
}

/// The master has lost power and has less than its slave. What it appends then lies where the slave has other bytes.
#[test]
fn what_a_master_has_given_to_nobody_is_not_acknowledged_by_a_slave_that_comes() {
    let reports = |report, log, refused| hears(&mut feed().after(refused), seconds(0), log, &[report]);
    let grown = LogRange { given: 900, ..log(0, 1200) };
    for report in [901, 1000, 1200] {
        assert!(matches!(reports(report, grown, None), Err(Closed::Ahead { given: 900, .. })), "{report}");
    }
    // From before the start, also a part of a record.
    for report in [0, 450, 900] {
        assert_eq!(reports(report, grown, None).unwrap().acknowledged, Some(LogOffset(report)));
    }
    // A log without a record that begins with a file of ours: what was appended before that file is not acknowledged.
    let (mut empty, grown) = (feed(), LogRange { given: 900, ..log(0, FILE + 1000) });
    let effects = hears(&mut empty, seconds(0), grown, &[FILE, FILE]).unwrap();
    assert_eq!((effects.begun, effects.acknowledged), (Some(LogOffset(FILE)), Some(LogOffset(900))));
    assert_eq!(effects.send, frame(FILE));
    empty.step(seconds(0), grown, Event::Read(1000)).unwrap();
    let effects = hears(&mut empty, seconds(0), grown, &[FILE + 1000]).unwrap();
    assert_eq!(effects.acknowledged, Some(LogOffset(FILE + 1000)));
    // Another slave has got all of it since, and this one nothing.
    let (refused, given) = (Some(Refused { report: 1000, given: 900 }), log(0, 1200));
    assert!(matches!(reports(1000, given, refused), Err(Closed::Ahead { report: 1000, given: 900 })));
    // Its log was cut, or another one has come from there.
    for report in [0, 900, 1100] {
        assert!(reports(report, given, refused).is_ok(), "{report}");
    }
}

#[test]
fn what_is_going_out_may_be_acknowledged_in_part() {
    let (mut feed, log) = (feed(), log(0, 5000));
    hears(&mut feed, seconds(0), log, &[0]).unwrap();
    assert!(matches!(hears(&mut feed, seconds(0), log, &[0, 1]), Err(Closed::Unsent { sent: 0, .. })), "only read");
    feed.step(seconds(0), log, Event::Read(5000)).unwrap();
    assert_eq!(hears(&mut feed, seconds(0), log, &[245]).unwrap().acknowledged, Some(LogOffset(245)));
}

#[test]
fn a_slave_that_does_not_report_is_gone_after_twenty_seconds() {
    let mut silent = feed();
    assert!(silent.step(seconds(20), log(0, 0), Event::Due).is_ok());
    assert!(matches!(silent.step(seconds(21), log(0, 0), Event::Due), Err(Closed::Silent(_))));
    // One that reports and does not advance stays.
    let (mut feed, log) = (begun(0, 1000), log(0, 1000));
    for now in (5..60).step_by(5) {
        hears(&mut feed, seconds(now), log, &[0]).unwrap();
        feed.step(seconds(now), log, Event::Sent).unwrap();
    }
    assert!(matches!(feed.step(seconds(76), log, Event::Due), Err(Closed::Silent(silent)) if silent == seconds(21)));
}

#[test]
fn a_slave_that_retention_has_passed_is_told_to_copy_anew() {
    let mut feed = begun(0, 1000);
    let passed = feed.step(seconds(1), log(FILE, 2 * FILE), Event::Due);
    assert!(matches!(passed, Err(Closed::Behind { report: 1000, min: FILE })), "{passed:?}");
}

#[test]
fn bodies_stay_within_the_limit_of_a_second() {
    let per_second = 100_000;
    let options = FeedOptions { bytes_per_second: Some(per_second), ..FeedOptions::default() };
    let (mut feed, log) = (Feed::new(options, seconds(0)), log(0, 100 << 20));
    let mut now = Duration::ZERO;
    let mut effects = hears(&mut feed, now, log, &[0]).unwrap();
    let mut sent = 0;
    while now < seconds(10) {
        if let Some(Outgoing::Frame { max, .. }) = effects.send {
            assert!(max > 0);
            sent += max as u64;
            feed.step(now, log, Event::Read(max)).unwrap();
            effects = feed.step(now, log, Event::Sent).unwrap();
            continue;
        }
        assert_eq!(feed.waits_above(), None, "the log's end changes nothing");
        let due = feed.due();
        assert!(due > now, "{due:?} {now:?}");
        now = due;
        effects = hears(&mut feed, now, log, &[0]).unwrap();
    }
    assert!((per_second * 9..=per_second * 11 + BODY_BYTES as u64).contains(&sent), "{sent}");
}

fn member(broker_id: i64) -> Arc<Member> {
    let who = Identity { cluster: "c".into(), set: "s".into(), broker_id };
    Arc::new(Member { who, secret: None })
}

fn hello(broker_id: i64) -> Vec<u8> {
    let (min, end) = (LogOffset(0), LogOffset(0));
    let who = member(broker_id).who.clone();
    let greeting = own::Greeting { version: 1, who, segment_bytes: FILE, min, end, nonce: [1; 32] };
    own::Hello::new(greeting).unwrap().bytes
}

fn has(written: u64, flushed: u64) -> Vec<u8> {
    own::Note::Has { written: LogOffset(written), flushed: LogOffset(flushed) }.encode()
}

/// A feed that has answered the hello of broker 1.
fn greeted(log: LogRange) -> Feed {
    let mut feed = feed().greeting(member(0), [2; 32]);
    let effects = feed.step(seconds(0), log, Event::Heard(&hello(1))).unwrap();
    assert!(matches!(effects.send, Some(Outgoing::Answer(_))), "{effects:?}");
    feed.step(seconds(0), log, Event::Sent).unwrap();
    feed
}

#[test]
fn a_slave_of_gantry_says_first_who_it_is_and_gets_the_log_with_its_first_report() {
    let log = log(0, 5000);
    let mut feed = feed().greeting(member(0), [2; 32]);
    assert!(feed.who().is_none() && !feed.is_own());
    let hello = hello(1);
    for byte in &hello[..hello.len() - 1] {
        assert_eq!(feed.step(seconds(0), log, Event::Heard(&[*byte])).unwrap(), Effects::default());
    }
    // Nobody waits for what stands behind it.
    let rest = [&hello[hello.len() - 1..], &has(245, 100)].concat();
    let effects = feed.step(seconds(1), log, Event::Heard(&rest)).unwrap();
    assert_eq!((effects.begun, effects.flushed), (Some(LogOffset(245)), Some(LogOffset(100))));
    assert!(matches!(effects.send, Some(Outgoing::Answer(_))), "{effects:?}");
    assert_eq!(feed.who(), Some(&member(1).who));
    assert_eq!(feed.step(seconds(1), log, Event::Sent).unwrap().send, frame(245));
    assert_eq!(feed.header(LogOffset(245), 7, true).as_ref(), own::header(LogOffset(245), 7, true));
}

#[test]
fn a_slave_of_apache_is_fed_as_ever_by_a_master_that_also_speaks_the_other_stream() {
    let log = log(0, 5000);
    let mut feed = feed().greeting(member(0), [2; 32]);
    let effects = hears(&mut feed, seconds(0), log, &[245]).unwrap();
    assert_eq!((effects.begun, effects.flushed, effects.send), (Some(LogOffset(245)), None, frame(245)));
    assert_eq!(feed.header(LogOffset(245), 7, true).as_ref(), plain::header(LogOffset(245), 7));
    assert!(feed.farewell(&Closed::NotAllowed).is_none(), "it would take words for a frame");
    // It cannot go over to the other one.
    let ended = feed.step(seconds(0), log, Event::Heard(&hello(1))).unwrap_err();
    assert!(matches!(ended, Closed::Misread(_)), "{ended}");
}

#[test]
fn what_is_on_the_device_is_below_what_is_written_and_does_not_go_back() {
    let log = log(0, 5000);
    let begun = || {
        let mut feed = greeted(log);
        feed.step(seconds(0), log, Event::Heard(&has(0, 0))).unwrap();
        feed.step(seconds(0), log, Event::Read(5000)).unwrap();
        feed.step(seconds(0), log, Event::Sent).unwrap();
        feed
    };
    let mut feed = begun();
    let effects = feed.step(seconds(0), log, Event::Heard(&[has(245, 0), has(735, 245)].concat())).unwrap();
    assert_eq!((effects.acknowledged, effects.flushed), (Some(LogOffset(735)), Some(LogOffset(245))));
    let effects = feed.step(seconds(0), log, Event::Heard(&has(735, 700))).unwrap();
    assert_eq!((effects.acknowledged, effects.flushed), (None, Some(LogOffset(700))));
    for (note, is_unsent) in
        [(has(735, 736), true), (has(5001, 0), true), (has(735, 699), false), (has(734, 700), false)]
    {
        let mut feed = begun();
        feed.step(seconds(0), log, Event::Heard(&has(735, 700))).unwrap();
        let closed = feed.step(seconds(0), log, Event::Heard(&note)).unwrap_err();
        assert!(matches!(closed, Closed::Unsent { .. }) == is_unsent, "{closed}");
        assert!(matches!(closed, Closed::Back { .. }) != is_unsent, "{closed}");
    }
}

#[test]
fn a_hello_that_has_begun_has_to_be_over_soon_and_one_that_has_not_may_wait() {
    let log = log(0, 0);
    for (said, is_over) in [(&hello(1)[..1], false), (&hello(1)[..40], false), (&hello(1)[..], true)] {
        let mut feed = feed().greeting(member(0), [2; 32]);
        assert!(feed.step(seconds(10), log, Event::Due).is_ok());
        let sent = feed.step(seconds(10), log, Event::Heard(said)).unwrap().send;
        assert_eq!((sent.is_some(), feed.due()), (is_over, seconds(15)));
        // One byte at a time does not help.
        feed.step(seconds(14), log, Event::Heard(&[])).unwrap();
        assert!(matches!(feed.step(seconds(15), log, Event::Due), Err(Closed::HalfHello(_))));
    }
    let mut feed = greeted(log);
    feed.step(seconds(1), log, Event::Heard(&has(0, 0))).unwrap();
    assert!(feed.step(seconds(21), log, Event::Due).is_ok(), "it has reported");
}

/// A slave of Gantry has compared the logs.
#[test]
fn that_a_slave_of_this_address_was_ahead_matters_on_the_plain_stream_only() {
    let log = log(0, 1200);
    let refused = Some(Refused { report: 1000, given: 900 });
    let mut plain = feed().greeting(member(0), [2; 32]).after(refused);
    assert!(matches!(hears(&mut plain, seconds(0), log, &[1000]), Err(Closed::Ahead { .. })));
    let mut feed = greeted(log).after(refused);
    assert!(feed.step(seconds(0), log, Event::Heard(&has(1000, 0))).is_ok());
    // What no slave can have, nobody has.
    let mut feed = greeted(LogRange { given: 900, ..log });
    let ahead = feed.step(seconds(0), LogRange { given: 900, ..log }, Event::Heard(&has(1000, 0))).unwrap_err();
    assert!(matches!(ahead, Closed::Ahead { report: 1000, given: 900 }));
    let told = feed.farewell(&ahead).unwrap();
    assert!(String::from_utf8_lossy(&told).contains("1000"), "it is told");
}

#[test]
fn each_reason_has_a_name_of_its_own() {
    let mut names = CLOSED.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CLOSED.len());
    assert_eq!((CLOSED[Closed::Plain.kind()], CLOSED[Closed::Replaced.kind()]), ("plain", "replaced"));
    assert_eq!(CLOSED[Closed::Unproven("x").kind()], "unproven");
}

proptest! {
    /// Nothing was sent, so nothing above what slaves can have from before is acknowledged.
    #[test]
    fn whatever_a_stranger_says_acknowledges_nothing_that_it_cannot_have(
        said in prop::collection::vec(any::<u8>(), 0..300),
        (greets, size) in (any::<bool>(), 1_usize..50),
    ) {
        let log = LogRange { given: 900, ..log(0, 5000) };
        let mut feed = feed().greeting(member(0), [2; 32]);
        let stream = if greets { [hello(1), said].concat() } else { said };
        for part in stream.chunks(size) {
            let Ok(effects) = feed.step(seconds(0), log, Event::Heard(part)) else { break };
            prop_assert!(effects.acknowledged.is_none_or(|at| at.0 <= 900), "{effects:?}");
            prop_assert!(effects.flushed.is_none_or(|at| at.0 <= 900), "{effects:?}");
        }
    }
}

/// A part of what may come to a port.
fn said() -> impl Strategy<Value = Vec<u8>> {
    let any_bytes = prop::collection::vec(any::<u8>(), 0..60);
    (0..6_u8, 0..1200_u64, 0..1200_u64, any_bytes).prop_map(|(kind, one, other, any_bytes)| match kind {
        0 => any_bytes,
        1 => hello(1),
        2 => one.to_be_bytes().to_vec(),
        3 => own::Note::Proof([other as u8; 32]).encode(),
        _ => own::Note::Has { written: LogOffset(one), flushed: LogOffset(other) }.encode(),
    })
}

proptest! {
    /// The same with words that have their place, on either stream, and with a secret.
    #[test]
    fn whatever_words_come_acknowledge_nothing_that_a_slave_cannot_have(
        (has_secret, greets) in (any::<bool>(), any::<bool>()),
        parts in prop::collection::vec(said(), 0..20),
        size in 1_usize..200,
    ) {
        let secret = has_secret.then(|| crate::wire::secret::Secret::new("nobody knows this one"));
        let mut feed = feed().greeting(Arc::new(Member { secret, ..Member::clone(&member(0)) }), [2; 32]);
        let log = LogRange { given: 700, ..log(0, 1000) };
        let stream = [if greets { hello(1) } else { Vec::new() }, parts.concat()].concat();
        for part in stream.chunks(size) {
            let Ok(effects) = feed.step(seconds(0), log, Event::Heard(part)) else { break };
            prop_assert!(!has_secret || effects.begun.is_none(), "nobody has proved it: {effects:?}");
            prop_assert!(effects.acknowledged.is_none_or(|at| at.0 <= 700), "{effects:?}");
            prop_assert!(effects.flushed.is_none_or(|at| at.0 <= 700), "{effects:?}");
        }
    }
}
