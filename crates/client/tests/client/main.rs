//! Producers and consumers against a fake broker: one binary, since all of them share it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod auto_batch;
mod consuming;
mod routes;
mod support;
mod together;
