//! What operators do from a terminal. [`admin`] takes the commands and letters of RocketMQ's `mqadmin`.

pub mod admin;
