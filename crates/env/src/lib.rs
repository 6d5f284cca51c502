//! What the outside world decides: the time, the dice, which rare branches are taken without need, and whether somebody
//! reads what a command writes. Also the few words that all commands share.
//!
//! Everything above receives these handles at construction and asks nobody else, so that the same code runs in production,
//! where the machine answers, and in a test, where a seed does.

mod buggify;
mod clock;
mod random;
mod stdio;
mod words;

pub use buggify::Buggify;
pub use clock::{Clock, ManualClock, TimeMs};
pub use random::Random;
pub use stdio::{Stdout, print, print_aside};
pub use words::{counted, sentence};
