//! What operators do from a terminal. [`admin`] takes the commands and letters of RocketMQ's `mqadmin`; [`profile`] shows where a
//! running server spends its processor time.

pub mod admin;
pub mod profile;
