//! What the outside world decides: the time and the dice.
//!
//! Everything above receives these handles at construction and asks nobody else, so that the same code runs in production,
//! where the machine answers, and in a test, where a seed does.

mod clock;
mod random;

pub use clock::{Clock, ManualClock, TimeMs};
pub use random::Random;
