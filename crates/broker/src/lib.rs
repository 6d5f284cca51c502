//! What RocketMQ promises, a file for each promise.
