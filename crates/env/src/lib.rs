//! What the outside world decides: the time, the dice, and which rare branches are taken without need.
//!
//! Everything above receives these handles at construction and asks nobody else, so that the same code runs in production,
//! where the machine answers, and in a test, where a seed does.

mod buggify;
mod clock;
mod random;

pub use buggify::Buggify;
pub use clock::{Clock, ManualClock, TimeMs};
pub use random::Random;
