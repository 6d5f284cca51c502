//! What goes over the wire between a master and its slaves, a file a protocol. Pure: bytes in, values out.
//!
//! Both streams are at the same port. The first byte that a slave sends tells them apart: a report of the plain stream is a log offset, which is not
//! negative, so its first byte is below 0x80; that of a hello is not ([`own::MAGIC`]).

pub mod own;
pub mod plain;
pub mod secret;

/// Bytes of a fixed length, in whatever parts they come.
#[derive(Debug)]
pub(crate) struct Gathered<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Gathered<N> {
    pub(crate) fn new() -> Gathered<N> {
        Gathered { bytes: [0; N], len: 0 }
    }

    /// Takes what is missing from `bytes`; all of it, when it is whole.
    pub(crate) fn take(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (taken, rest) = bytes.split_at((N - self.len).min(bytes.len()));
        self.bytes[self.len..][..taken.len()].copy_from_slice(taken);
        self.len += taken.len();
        *bytes = rest;
        if self.len < N {
            return None;
        }
        self.len = 0;
        Some(self.bytes)
    }
}
