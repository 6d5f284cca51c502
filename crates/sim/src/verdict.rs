//! What a run may never show, and the story of one.

use std::collections::BTreeMap;
use std::fmt;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What was promised to survive is gone, or gone without any crash.
    Lost,
    /// One message is there twice, or given to two at a time.
    Duplicate,
    /// A queue's messages are in another order than they were sent, or under other numbers.
    Unordered,
    /// A message shows before its time, or a half message before its commit.
    Early,
    /// What was deleted, rolled back or acknowledged for good is there again.
    Resurrected,
    /// A state went back behind what was promised.
    WentBack,
    /// Bytes that nobody sent.
    Foreign,
    /// Two copies of one log are not the same, as far as both have it.
    Differs,
    /// A start, a stop or a request that should succeed did not.
    Refused,
    /// Something that should happen by itself did not.
    Late,
    /// The process goes on though it cannot know what is on the device.
    WentOn,
    /// An assertion of the store or the broker does not hold.
    Panicked,
}

/// A verdict and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub verdict: Verdict,
    /// In words.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", format!("{:?}", self.verdict).to_lowercase(), self.what)
    }
}

/// What a run found and did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Empty if all is well.
    pub findings: Vec<Finding>,
    /// What was done, a line each, if that was asked for.
    pub story: Vec<String>,
    /// A number for all that happened: equal for two runs that did the same.
    pub trace: u64,
    /// Crashes that the run went through.
    pub crashes: u32,
    /// Messages that were sent.
    pub messages: u64,
    /// How often each rare branch was taken without need.
    pub rare: BTreeMap<&'static str, u64>,
    tells: bool,
}

/// Further ones say little.
const FINDINGS_MAX: usize = 8;

impl Report {
    /// An empty one; whether it is to keep the story.
    pub fn new(tells: bool) -> Report {
        Report { tells, ..Report::default() }
    }

    /// Notes what is wrong.
    pub fn find(&mut self, verdict: Verdict, what: impl Into<String>) {
        let finding = Finding { verdict, what: what.into() };
        self.tell(|| format!("FOUND {finding}"));
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Notes what is done.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.tells {
            self.story.push(line());
        }
    }

    /// Makes the trace depend on a number.
    pub fn mix(&mut self, number: u64) {
        self.trace = (self.trace.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// What is wrong, without words.
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.findings.iter().map(|finding| finding.verdict).collect()
    }

    /// Whether to go on.
    pub fn is_well(&self) -> bool {
        self.findings.is_empty()
    }
}
