use std::time::Duration;

use super::meter::DAY_EVERY_MS;
use super::*;

fn topic(name: &str) -> Arc<str> {
    name.into()
}

#[test]
fn a_meter_shows_the_last_minute_hour_and_day() {
    let meter = Meter::new(TimeMs(0));
    let mut now = 0;
    // Ten messages of two each every ten seconds, for two hours.
    for _ in 0..720 {
        (0..10).for_each(|_| meter.add(2));
        now += SAMPLE_MS;
        meter.sample(TimeMs(now));
    }
    let read = meter.read(TimeMs(now));
    assert_eq!(read.stats_minute, BrokerStatsItem { avgpt: 2.0, sum: 120, tps: 2.0 });
    assert_eq!(read.stats_hour.sum, 7200);
    assert_eq!(read.stats_hour.tps, 2.0);
    assert_eq!(read.stats_day.sum, 14_400);
}

#[test]
fn a_meter_is_right_before_its_first_sample() {
    let meter = Meter::new(TimeMs(1000));
    meter.add(5);
    let read = meter.read(TimeMs(2000));
    assert_eq!(read.stats_minute, BrokerStatsItem { avgpt: 5.0, sum: 5, tps: 5.0 });
    meter.sample(TimeMs(3000));
    assert_eq!(meter.read(TimeMs(3000)).stats_day.sum, 5);
}

#[test]
fn a_meter_that_counts_nothing_holds_no_samples_and_one_that_stopped_is_idle_after_a_day() {
    let meter = Meter::new(TimeMs(0));
    meter.sample(TimeMs(SAMPLE_MS));
    assert!(meter.windows.lock().is_none());
    meter.add(1);
    for hour in 1..=25 {
        assert!(!meter.is_idle());
        meter.sample(TimeMs(hour * DAY_EVERY_MS));
    }
    assert!(meter.is_idle());
}

#[test]
fn a_group_that_only_sent_back_is_forgotten_when_it_stops_and_not_before() {
    let (clock, hand) = Clock::manual(TimeMs(0));
    let stats = Stats::new(clock, false);
    stats.sent_back("Stops", "T");
    stats.sent_back("Goes on", "T");
    for _ in 0..26 {
        stats.group(&topic("Goes on"), &topic("T")).get_nums.add(1);
        hand.advance(Duration::from_millis(DAY_EVERY_MS as u64));
        stats.sample();
    }
    assert!(stats.window(Stat::SndbckPutNums, "T@Stops").is_none());
    assert!(stats.window(Stat::SndbckPutNums, "T@Goes on").is_some());
}

#[test]
fn totals_of_all_threads_add_up_and_mornings_follow_the_calendar() {
    let (clock, hand) = Clock::manual(TimeMs(0));
    let stats = Stats::new(clock, false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| stats.put_messages.add(1)));
        }
    });
    assert_eq!(stats.totals().put_messages, 4000);
    hand.advance(Duration::from_secs(10));
    assert_eq!(stats.rates(|totals| totals.put_messages)[0], 400.0);
    let day = jiff::civil::date(2026, 3, 1);
    stats.sample_totals(TimeMs(10_000), day);
    assert_eq!(stats.mornings(), Mornings::default());
    stats.sample_totals(TimeMs(20_000), day.tomorrow().unwrap());
    assert_eq!(stats.mornings(), Mornings { put_today: 4000, ..Mornings::default() });
}

#[test]
fn consumption_is_held_against_what_was_stored_in_the_last_minute() {
    let (clock, hand) = Clock::manual(TimeMs(0));
    let stats = Stats::new(clock, false);
    let pass = |stored: u64, got: u64| {
        stats.put_user_messages.add(stored);
        stats.got_user_messages.add(got);
        hand.advance(Duration::from_millis(SAMPLE_MS as u64));
        stats.sample();
        stats.consumed_per_produced()
    };
    assert_eq!(pass(0, 0), None);
    assert_eq!(pass(100, 50), Some(0.5));
    assert_eq!(pass(0, 50), Some(1.0));
    (0..6).for_each(|_| {
        pass(0, 0);
    });
    // What was consumed of older messages is nothing that was stored in this minute.
    assert_eq!(pass(0, 50), None);
    assert_eq!(pass(25, 0), Some(2.0));
}

#[test]
fn figures_are_found_by_rocketmqs_keys() {
    let (clock, hand) = Clock::manual(TimeMs(0));
    let stats = Stats::new(clock, false);
    let group = stats.group(&topic("G"), &topic("T"));
    group.get_nums.add(7);
    group.queues.add(3, 7, 70, || TimeMs(0));
    stats.topic(&topic("T")).queues.add(2, 1, 10, || TimeMs(0));
    hand.advance(Duration::from_secs(1));
    let sum = |stat, key: &str| stats.window(stat, key).map(|window| window.stats_minute.sum);
    assert_eq!(sum(Stat::GroupGetNums, "T@G"), Some(7));
    assert_eq!(sum(Stat::QueueGetSize, "T@3@G"), Some(70));
    assert_eq!(sum(Stat::QueuePutNums, "T@2"), Some(1));
    assert_eq!(sum(Stat::QueuePutNums, "T@9"), None);
    assert_eq!(sum(Stat::TopicPutNums, "U"), None);
    stats.forget_group("G");
    assert_eq!(sum(Stat::GroupGetNums, "T@G"), None);
}
