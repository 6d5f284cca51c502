//! What operators ask of a cluster and change in it, as data.
//!
//! [`Operator`] is the handle; each family of questions has a file, which adds methods to it. A question takes typed parameters and gives
//! typed answers, bodies of [`protocol::body`] where one broker's answer is all there is to say. Nothing is printed and no command line is
//! read here: `gantry admin` does both, and other front ends show the same data.
//!
//! A change is a method for one broker, so that its caller can say after each what is done; [`Target`] and [`Operator::masters`] give the
//! brokers.

pub mod acl;
pub mod broker;
pub mod check;
pub mod cluster;
pub mod cold_data;
pub mod configuration;
pub mod connection;
pub mod consumer;
pub mod container;
pub mod controller;
mod error;
pub mod group;
pub mod ha;
mod handle;
pub mod lite;
pub mod mapping;
pub mod message;
pub mod monitor;
pub mod namesrv;
pub mod offset;
pub mod order;
pub mod pieces;
pub mod progress;
pub mod queue;
pub mod replay;
pub mod rocksdb;
pub mod send;
pub mod static_topic;
pub mod stats;
pub mod switch;
pub mod topic;
pub mod trace;
pub mod unique_id;
pub mod user;

pub use cluster::{Broker, Target};
pub use error::{OperatorError, Result};
pub use handle::Operator;
