//! Pop consumption: the broker hands out messages on lease, and gives those that are not
//! acknowledged in time to the group again.
//!
//! `state.rs` keeps who has what. `take.rs` pops, `lite.rs` pops lite topics, `ack.rs` ends leases,
//! `look.rs` looks without a lease, `mode.rs` sets how groups get messages. `wait.rs` parks pops
//! that find nothing. `duty.rs` takes back what is over, and `apache.rs` takes check-points over
//! from Apache and hands them back.

mod ack;
mod apache;
mod claim;
mod collect;
mod duty;
mod give;
mod lite;
mod look;
pub(crate) mod mode;
mod state;
mod take;
mod trying;
pub(crate) mod wait;

pub use ack::{AckOrder, ChangeOrder, ChangeOutcome, Popped};
pub(crate) use ack::{ack, ack_batch, change};
pub(crate) use apache::hand_over;
pub(crate) use duty::{load, revive};
pub(crate) use lite::pop_lite;
pub use look::{NotifyOrder, NotifyOutcome, PeekOrder, PeekOutcome, PollingOrder};
pub(crate) use look::{notify, peek, polling_info, rollback};
pub(crate) use state::handle::{Origin, origin_topic, retry_topic};
pub(crate) use state::order::OrderTable;
pub(crate) use state::{Pops, attach};
pub(crate) use take::pop;
pub use take::{PopOrder, PopOutcome, PopStatus};
