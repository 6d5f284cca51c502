//! Steps of a slave.

use proptest::prelude::*;

use super::*;
use crate::wire::plain::header;

const FILE: u64 = 1 << 20;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn follow(has: u64) -> Follow {
    Follow::new(FollowOptions::default(), FILE, seconds(0), LogOffset(has), false)
}

fn frame(at: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = header(LogOffset(at), body.len() as u32).to_vec();
    frame.extend_from_slice(body);
    frame
}

fn hears(follow: &mut Follow, bytes: &[u8]) -> Result<Option<LogOffset>, Broken> {
    follow.step(seconds(1), Event::Heard(bytes))
}

#[test]
fn bodies_gather_in_order_and_what_the_log_has_is_reported_once() {
    let mut follow = follow(245);
    let stream = [frame(245, &[1; 100]), frame(345, &[]), frame(345, &[2; 50])].concat();
    for part in stream.chunks(7) {
        assert_eq!(hears(&mut follow, part), Ok(None));
    }
    let bytes = [[1; 100].as_slice(), &[2; 50]].concat();
    assert_eq!(follow.take_block(seconds(1), Vec::new()), Some(Block { at: 245, bytes }));
    assert_eq!((follow.take_block(seconds(1), Vec::new()), follow.next()), (None, LogOffset(395)));
    assert_eq!(follow.step(seconds(1), Event::Has(LogOffset(345))), Ok(Some(LogOffset(345))));
    assert_eq!(follow.step(seconds(1), Event::Has(LogOffset(345))), Ok(None));
    // The mode asks for more now, and a report is never taken back.
    assert_eq!(follow.step(seconds(1), Event::Has(LogOffset(245))), Ok(None));
    assert_eq!(follow.step(seconds(6), Event::Due), Ok(Some(LogOffset(345))));
    hears(&mut follow, &frame(395, &[3; 5])).unwrap();
    assert_eq!(follow.take_block(seconds(6), Vec::new()), Some(Block { at: 395, bytes: vec![3; 5] }));
}

#[test]
fn a_report_is_repeated_every_five_seconds_and_a_silent_master_is_gone_after_twenty() {
    let mut follow = follow(245);
    assert_eq!(follow.due(), seconds(5));
    for now in [5, 10, 15, 20] {
        assert_eq!(follow.step(seconds(now - 1), Event::Due), Ok(None));
        assert_eq!(follow.step(seconds(now), Event::Due), Ok(Some(LogOffset(245))));
    }
    assert_eq!(follow.due(), seconds(20));
    assert_eq!(follow.step(seconds(21), Event::Due), Err(Broken::Silent(seconds(21))));
    // Heartbeats keep it.
    let heartbeat = frame(245, &[]);
    assert!(follow.step(seconds(22), Event::Heard(&heartbeat)).is_ok());
    assert!(follow.step(seconds(42), Event::Due).is_ok());
}

#[test]
fn a_master_is_there_from_its_first_frame_on_and_until_it_misses_two_heartbeats() {
    let mut follow = follow(0);
    assert!(!follow.is_live());
    let heartbeat = frame(0, &[]);
    hears(&mut follow, &heartbeat[..11]).unwrap();
    assert!(!follow.is_live(), "this is no frame yet");
    hears(&mut follow, &heartbeat[11..]).unwrap();
    assert!(follow.is_live());
    for now in [6, 11] {
        follow.step(seconds(now), Event::Due).unwrap();
        assert!(follow.is_live());
    }
    let doubt = seconds(1) + Duration::from_millis(12_500);
    assert_eq!(follow.due(), doubt);
    follow.step(doubt, Event::Due).unwrap();
    assert!(!follow.is_live());
    assert_eq!(follow.due(), seconds(16), "no sooner than the next report");
    follow.step(seconds(16), Event::Heard(&heartbeat)).unwrap();
    assert!(follow.is_live());
    // The master is not listened to.
    follow.step(seconds(17), Event::Heard(&frame(0, &vec![1; BLOCK_BYTES]))).unwrap();
    follow.step(seconds(60), Event::Due).unwrap();
    assert!(follow.is_full() && follow.is_live());

    // While it is not, only its answers say something.
    follow.asked(false);
    follow.step(seconds(61), Event::Due).unwrap();
    assert!(!follow.is_live());
    follow.asked(true);
    follow.step(seconds(62), Event::Due).unwrap();
    assert!(follow.is_live());
}

#[test]
fn an_answer_stands_for_the_first_heartbeat_only() {
    let mut follow = Follow::new(FollowOptions::default(), FILE, seconds(0), LogOffset(245), true);
    assert!(follow.is_live() && !follow.has_heard());
    assert_eq!(follow.step(seconds(5), Event::Due), Ok(Some(LogOffset(245))));
    assert!(follow.is_live());
    assert_eq!(follow.due(), seconds(6));
    follow.step(seconds(6), Event::Heard(&frame(245, &[])[..11])).unwrap();
    assert!(!follow.is_live() && !follow.has_heard(), "this is no frame yet");
    follow.step(seconds(7), Event::Heard(&frame(245, &[])[11..])).unwrap();
    assert!(follow.is_live() && follow.has_heard());
}

#[test]
fn a_slave_that_cannot_take_more_does_not_blame_its_master() {
    let mut follow = follow(0);
    hears(&mut follow, &frame(0, &vec![1; BLOCK_BYTES])).unwrap();
    assert!(follow.is_full());
    // It goes on reporting, so that the master does not take it for gone.
    assert_eq!(follow.step(seconds(60), Event::Due), Ok(Some(LogOffset(0))));
    assert_eq!(follow.due(), seconds(65));
    assert!(follow.take_block(seconds(60), Vec::new()).is_some());
    assert!(follow.step(seconds(79), Event::Due).is_ok());
    assert!(matches!(follow.step(seconds(81), Event::Due), Err(Broken::Silent(_))));
}

#[test]
fn what_does_not_follow_ends_the_connection() {
    let broken = |has, bytes: &[u8]| hears(&mut follow(has), bytes).unwrap_err();
    assert_eq!(broken(245, &frame(244, &[])), Broken::Elsewhere { at: 244, expected: 245 });
    assert_eq!(broken(245, &frame(500, &[0; 9])), Broken::Elsewhere { at: 500, expected: 245 });
    assert_eq!(broken(0, &frame(FILE, &[])), Broken::BeginsAt { at: FILE });
    let two = [frame(0, &[1; 10]), frame(11, &[])].concat();
    assert_eq!(broken(0, &two), Broken::Elsewhere { at: 11, expected: 10 });
    let across = Broken::AcrossFiles { at: FILE - 5, bytes: 6, segment_bytes: FILE };
    assert_eq!(broken(FILE - 5, &frame(FILE - 5, &[0; 6])), across);
    assert!(hears(&mut follow(FILE - 5), &frame(FILE - 5, &[0; 5])).is_ok());
    assert!(matches!(broken(0, &[0xFF; 12]), Broken::Misread(_)));
}

#[test]
fn a_record_that_is_not_whole_by_the_second_heartbeat_is_asked_for_again() {
    let mut follow = follow(245);
    hears(&mut follow, &frame(245, &[1; 100])).unwrap();
    let heartbeat = frame(345, &[]);
    hears(&mut follow, &heartbeat).unwrap();
    hears(&mut follow, &heartbeat).unwrap();
    assert_eq!(follow.settled(LogOffset(245)), Ok(()), "the log has not been given it yet");
    follow.take_block(seconds(1), Vec::new()).unwrap();
    assert_eq!(follow.settled(LogOffset(345)), Ok(()));
    assert_eq!(follow.settled(LogOffset(245)), Err(Broken::Unfinished { at: 245, next: 345 }));
    // More of it comes.
    hears(&mut follow, &frame(345, &[1; 10])).unwrap();
    follow.take_block(seconds(1), Vec::new()).unwrap();
    hears(&mut follow, &frame(355, &[])).unwrap();
    assert_eq!(follow.settled(LogOffset(245)), Ok(()));
}

#[test]
fn on_the_stream_of_gantry_a_report_also_says_what_is_on_the_device() {
    let has = |written, flushed| Note::Has { written: LogOffset(written), flushed: LogOffset(flushed) }.encode();
    let own =
        |at, bytes: &[u8], asks| [own::header(LogOffset(at), bytes.len() as u32, asks).as_slice(), bytes].concat();
    let mut follow = follow(245).on_own();
    assert_eq!(follow.report(LogOffset(100)), has(245, 100));
    assert_eq!(hears(&mut follow, &own(245, &[1; 100], false)), Ok(None));
    assert!(follow.take_block(seconds(1), Vec::new()).is_some());
    assert_eq!(follow.step(seconds(1), Event::Has(LogOffset(345))), Ok(Some(LogOffset(345))));
    // The device is behind, and nobody waits for it.
    assert_eq!((follow.report(LogOffset(245)), follow.waits_for_device()), (has(345, 245), None));
    assert_eq!(follow.step(seconds(1), Event::Flushed(LogOffset(345))), Ok(None));
    // The master asks for it from now on.
    assert_eq!(hears(&mut follow, &own(345, &[], true)), Ok(None));
    assert_eq!(follow.waits_for_device(), Some(LogOffset(245)));
    assert_eq!(follow.step(seconds(1), Event::Flushed(LogOffset(300))), Ok(Some(LogOffset(345))));
    assert_eq!(follow.report(LogOffset(300)), has(345, 300));
    // More than is reported as written is nothing to be told yet, and nothing is taken back.
    assert_eq!(follow.step(seconds(1), Event::Flushed(LogOffset(900))), Ok(Some(LogOffset(345))));
    assert_eq!((follow.report(LogOffset(900)), follow.waits_for_device()), (has(345, 345), None));
    assert_eq!(follow.report(LogOffset(200)), has(345, 345));

    assert_eq!(hears(&mut follow, &own::end("enough")), Err(Broken::Ended("enough".to_owned())));
    let mut follow = self::follow(245).on_own();
    assert_eq!(hears(&mut follow, &own(244, &[], false)).unwrap_err(), Broken::Elsewhere { at: 244, expected: 245 });
    assert!(matches!(hears(&mut self::follow(245).on_own(), &[77; 14]), Err(Broken::MisreadOwn(_))));
}

/// A part of what a master may send: bytes of any kind, or a frame near the place that is wanted.
fn sent(is_own: bool) -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(any::<u8>(), 0..40);
    let any_bytes = prop::collection::vec(any::<u8>(), 0..60);
    (0..4_u8, 240..300_u64, body, any_bytes).prop_map(move |(kind, at, body, any_bytes)| match kind {
        0 => any_bytes,
        _ if is_own => [&own::header(LogOffset(at), body.len() as u32, kind == 1)[..], &body].concat(),
        _ => frame(at, &body),
    })
}

proptest! {
    /// Duplicates and gaps as well: what gathers is in order, or the connection ends.
    #[test]
    fn whatever_a_master_sends_gathers_in_order_or_ends_the_connection(
        (is_own, stream) in any::<bool>().prop_flat_map(|is_own| (Just(is_own), prop::collection::vec(sent(is_own), 0..30))),
        size in 1_usize..90,
    ) {
        let mut follow = if is_own { follow(245).on_own() } else { follow(245) };
        let mut end = 245;
        for part in stream.concat().chunks(size) {
            let is_over = hears(&mut follow, part).is_err();
            if let Some(block) = follow.take_block(seconds(1), Vec::new()) {
                prop_assert_eq!(block.at, end);
                end += block.bytes.len() as u64;
            }
            prop_assert_eq!(follow.next().0, end);
            prop_assert_eq!(follow.reported().0, 245, "nothing of it is in the log");
            if is_over {
                break;
            }
        }
    }
}
