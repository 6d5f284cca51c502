//! Why the connection of a slave ends: for people, for metrics, and for the slave if its stream has words.

use std::time::Duration;

use crate::wire::own::{self, Identity};
use crate::wire::plain::Misread;

/// Why a slave's connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// It is no slave of ours.
    #[error("the address is no member's: list it with replicaAllow, or let it register as a broker of this set")]
    NotAllowed,
    /// Bytes that are no report.
    #[error(transparent)]
    Misread(#[from] Misread),
    /// The same on the stream of Gantry.
    #[error(transparent)]
    MisreadOwn(#[from] own::Misread),
    /// A version that there is not.
    #[error("the slave speaks version {0} of the stream, which there is not")]
    Version(u16),
    /// The slave is another set's.
    #[error(
        "the slave is of the set {:?} of the cluster {:?}, and this master of the set {:?} of the cluster {:?}: set brokerName and \
         brokerClusterName as here, or have it follow another master", .theirs.set, .theirs.cluster, .ours.set, .ours.cluster
    )]
    OtherSet {
        /// As it says.
        theirs: Box<Identity>,
        /// This master.
        ours: Box<Identity>,
    },
    /// The slave has an id that a slave cannot have beside this master.
    #[error("the slave has brokerId {0}: a slave needs one above 0, and another one than its master")]
    BrokerId(i64),
    /// Files of the two logs have different sizes.
    #[error(
        "files of the slave's log have {theirs} bytes, and those of this master's {ours}: set mappedFileSizeCommitLog there as here and copy the \
         log anew"
    )]
    FileSize {
        /// As it says.
        theirs: u64,
        /// Here.
        ours: u64,
    },
    /// One of the two has not proved that it has the secret.
    #[error("the slave is not let in, as {0}")]
    Unproven(&'static str),
    /// A slave on the plain stream, which can prove nothing.
    #[error("the slave speaks Apache's plain stream, on which it cannot prove that it has replicaSecret")]
    Plain,
    /// The slave did not say in time who it is.
    #[error("its hello was not over after {} ms", .0.as_millis())]
    HalfHello(Duration),
    /// The same broker has connected again.
    #[error("the same broker has connected again: it has lost this connection, or two slaves have the same brokerId")]
    Replaced,
    /// The slave's log is longer than what was given of ours.
    #[error(
        "the slave reports {report}, and of this master's log no slave can have more than {given}: it has what this master does not have; cut its log, or move its store away"
    )]
    Ahead {
        /// As reported.
        report: u64,
        /// As [`LogRange::given`](super::LogRange::given) was when a slave of this address reported this first.
        given: u64,
    },
    /// What the slave needs next is gone.
    #[error("the slave reports {report} and the log begins at {min}: it has to copy the log anew, move its store away")]
    Behind {
        /// As reported.
        report: u64,
        /// Where our log begins.
        min: u64,
    },
    /// An acknowledgement of what was never sent.
    #[error("{report} was acknowledged and {sent} was sent: the report is false")]
    Unsent {
        /// As reported.
        report: u64,
        /// The end of what was sent.
        sent: u64,
    },
    /// An acknowledgement that takes back an earlier one.
    #[error("{report} was acknowledged after {before}: the report is false, or the slave's log was cut")]
    Back {
        /// As reported.
        report: u64,
        /// The least that can be reported now.
        before: u64,
    },
    /// No report for too long.
    #[error("no report for {} ms (haHousekeepingInterval)", .0.as_millis())]
    Silent(Duration),
    /// There are as many connections as there may be.
    #[error("there are too many connections")]
    Full,
    /// The connection made way for others before its first report.
    #[error("it made way for other connections before its first report")]
    MadeWay,
    /// The slave has closed the connection.
    #[error("the slave has closed the connection")]
    Ended,
    /// The socket.
    #[error("the connection has failed: {0}")]
    Socket(std::io::Error),
    /// The log cannot be read.
    #[error("the log cannot be read for the slave: {0}")]
    Log(#[from] store::StoreError),
    /// The master stops.
    #[error("the master stops")]
    Stopping,
}

/// The names of [`Closed`], as they are counted.
pub const CLOSED: [&str; 21] = [
    "notAllowed",
    "misread",
    "ahead",
    "behind",
    "unsent",
    "back",
    "silent",
    "madeWay",
    "ended",
    "socket",
    "log",
    "stopping",
    "full",
    "version",
    "otherSet",
    "brokerId",
    "fileSize",
    "unproven",
    "plain",
    "halfHello",
    "replaced",
];

impl Closed {
    /// Its place in [`CLOSED`].
    pub fn kind(&self) -> usize {
        match self {
            Closed::NotAllowed => 0,
            Closed::Misread(_) | Closed::MisreadOwn(_) => 1,
            Closed::Ahead { .. } => 2,
            Closed::Behind { .. } => 3,
            Closed::Unsent { .. } => 4,
            Closed::Back { .. } => 5,
            Closed::Silent(_) => 6,
            Closed::MadeWay => 7,
            Closed::Ended => 8,
            Closed::Socket(_) => 9,
            Closed::Log(_) => 10,
            Closed::Stopping => 11,
            Closed::Full => 12,
            Closed::Version(_) => 13,
            Closed::OtherSet { .. } => 14,
            Closed::BrokerId(_) => 15,
            Closed::FileSize { .. } => 16,
            Closed::Unproven(_) => 17,
            Closed::Plain => 18,
            Closed::HalfHello(_) => 19,
            Closed::Replaced => 20,
        }
    }

    /// Whether a connection that has not reported ends so every day: a scanner's, or one that was not needed.
    pub(super) fn is_common(&self) -> bool {
        matches!(
            self,
            Closed::Ended
                | Closed::Silent(_)
                | Closed::Socket(_)
                | Closed::MadeWay
                | Closed::Stopping
                | Closed::HalfHello(_)
        )
    }

    /// Whether the slave can be told, and does not know it.
    pub(super) fn is_news(&self) -> bool {
        !matches!(self, Closed::Ended | Closed::Socket(_) | Closed::MadeWay)
    }
}
