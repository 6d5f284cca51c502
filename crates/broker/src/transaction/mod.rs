//! Transaction messages: half messages that nobody sees until their producer commits them.
//!
//! On disk as in Apache: a half message lies in queue 0 of `RMQ_SYS_TRANS_HALF_TOPIC`, and its end, commit or rollback, is a message in
//! `RMQ_SYS_TRANS_OP_HALF_TOPIC` whose body lists half queue offsets. The offsets that group `CID_RMQ_SYS_TRANS` has committed on both say
//! from where a start has to read. A committed message and its end are appended as one group, so that no crash separates them but one that
//! cuts the log between the two; the start finds that message at the end of the log and writes its end again.
//!
//! Unlike in Apache, a half message is not stored again each time its producer is asked: how often that was is in the journal.

mod duty;
mod requests;
mod state;

pub(crate) use duty::{ask, load, mend, needed_from};
pub use requests::EndOrder;
pub(crate) use requests::{end, resume};
pub(crate) use state::Transactions;
