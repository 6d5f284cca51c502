//! What goes over the wire between a master and its slaves, a file a protocol. Pure: bytes in, values out.

pub mod plain;
