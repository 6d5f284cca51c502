//! The line of a row: what was played, how often, and what came of it.

use std::io::Write;
use std::time::Duration;

/// What one run came to.
#[derive(Default)]
pub struct Outcome {
    pub acknowledged: usize,
    /// Acknowledged, and not there in the end.
    pub lost: usize,
    /// Seen by a consumer, and not there in the end.
    pub vanished: usize,
    /// How long sends were not acknowledged, or whatever else the row measures.
    pub time: Duration,
}

/// A row, before it is played.
pub struct Row {
    /// As `tests/ha` lists it.
    pub id: &'static str,
    /// Settings that decide what is promised.
    pub mode: &'static str,
    /// What [`Outcome::time`] is.
    pub time: &'static str,
    /// Whether what is acknowledged may be lost.
    pub may_lose: bool,
    /// Whether what was seen may be gone. A consumer of a plain set sees a message before slaves have it.
    pub may_vanish: bool,
}

impl Row {
    /// Plays it `REPEAT` times, prints its line, and fails if more was lost than the mode allows.
    pub async fn play(&self, mut run: impl AsyncFnMut() -> Outcome) {
        let runs: usize = std::env::var("REPEAT").map_or(1, |text| text.parse().unwrap());
        let mut sum = Outcome::default();
        let mut times = Vec::new();
        for _ in 0..runs {
            let Outcome { acknowledged, lost, vanished, time } = run().await;
            sum.acknowledged += acknowledged;
            sum.lost += lost;
            sum.vanished += vanished;
            times.push(time.as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let Row { id, mode, time, may_lose, may_vanish } = self;
        let Outcome { acknowledged, lost, vanished, .. } = sum;
        let (middle, most) = (times[runs / 2], times[runs - 1]);
        let line = format!(
            "{id:<4} {mode:<52} runs={runs} acknowledged={acknowledged} lost={lost} vanished={vanished} {time}={middle:.2}s most={most:.2}s"
        );
        println!("{line}");
        if let Ok(path) = std::env::var("HA_REPORT") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(file, "{line}").unwrap();
        }
        assert!(acknowledged > 0, "{id}: nothing was acknowledged");
        assert!(*may_lose || lost == 0, "{line}");
        assert!(*may_vanish || vanished == 0, "{line}");
    }
}
