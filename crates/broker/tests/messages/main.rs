//! A broker on a real port, asked by `net`'s own client: what messages go through.

mod refusals;
mod restarting;
mod support;
mod taking_and_giving;
mod waiting;
