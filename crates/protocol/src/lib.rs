//! The RocketMQ language: frames, headers, records, bodies.
