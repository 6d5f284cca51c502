//! The Rust client: producer and consumers.
