//! A broker on a real port, asked by `net`'s own client: what messages go through.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it is surprised, its helpers included")]

mod batch_queues;
mod copies;
mod copies_of_kinds;
mod durability;
mod duties;
mod filtering;
mod full_journal;
mod in_process;
mod in_process_pulls;
mod in_process_sends;
mod journal;
mod keeping;
mod leases;
mod light;
mod limits;
mod metrics;
mod pop_kinds;
mod popping;
mod refusals;
mod repeating;
mod restarting;
mod roles;
mod stages;
mod stopping;
mod taking_and_giving;
mod timers;
mod together;
mod transactions;
mod unreadable;
mod waiting;
mod write_pool;

use testing::running as support;
