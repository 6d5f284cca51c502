//! A socket with or without TLS, or a stream that is none, behind the two calls that the loop makes.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::outgoing::{Outgoing, WRITE_SLICES};

/// What a resting TLS connection is read into, on the stack.
const TLS_PROBE_BYTES: usize = 1 << 10;

/// A stream of bytes in both directions.
pub trait Bytewise: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytewise for T {}

pub(crate) enum Stream {
    Plain(TcpStream),
    /// No socket: of a network that is simulated.
    Given(Box<dyn Bytewise>),
    Server(Box<tokio_rustls::server::TlsStream<Rewound>>),
    Client(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Stream {
    /// Waits for bytes without a buffer to read them into, and reserves `bytes` once there are some.
    ///
    /// So a connection at rest holds no read buffer. Others than a socket cannot tell that something has come from what has come (TLS knows
    /// whole records only), so a little is read into the stack first.
    pub(crate) fn poll_first(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(tcp) => {
                ready!(tcp.poll_read_ready(cx))?;
                buffer.reserve(bytes);
                self.poll_read(cx, buffer)
            }
            Stream::Given(_) | Stream::Server(_) | Stream::Client(_) => {
                let mut space = [0; TLS_PROBE_BYTES];
                let mut probe = ReadBuf::new(&mut space);
                ready!(self.poll_read_buf(cx, &mut probe))?;
                buffer.reserve(bytes);
                buffer.put_slice(probe.filled());
                Poll::Ready(Ok(probe.filled().len()))
            }
        }
    }

    /// Reads into the spare room of `buffer`; 0 means that the peer has finished.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        let spare = buffer.spare_capacity_mut();
        let mut read = ReadBuf::uninit(spare);
        let start = read.filled().as_ptr();
        ready!(self.poll_read_buf(cx, &mut read))?;
        assert_eq!(start, read.filled().as_ptr(), "the reader exchanged the buffer");
        let bytes = read.filled().len();
        // SAFETY: `ReadBuf` counts as filled only what it initialised, from the start of the spare room on, and the assertion
        // above says that it is still our room.
        unsafe { buffer.advance_mut(bytes) };
        Poll::Ready(Ok(bytes))
    }

    fn poll_read_buf(&mut self, cx: &mut Context<'_>, read: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, read),
            Stream::Given(given) => Pin::new(given).poll_read(cx, read),
            Stream::Server(tls) => Pin::new(tls).poll_read(cx, read),
            Stream::Client(tls) => Pin::new(tls).poll_read(cx, read),
        }
    }

    /// Writes as much of `out` as the socket takes now, and says how much that was.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, out: &mut Outgoing) -> Poll<io::Result<usize>> {
        let bytes = {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
            let filled = out.fill(&mut slices);
            let slices = &slices[..filled];
            ready!(match self {
                Stream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
                Stream::Given(given) => Pin::new(given).poll_write_vectored(cx, slices),
                Stream::Server(tls) => Pin::new(tls).poll_write_vectored(cx, slices),
                Stream::Client(tls) => Pin::new(tls).poll_write_vectored(cx, slices),
            })?
        };
        if bytes == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        out.advance(bytes);
        Poll::Ready(Ok(bytes))
    }

    /// Pushes out what TLS keeps back.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            // The kernel sends by itself.
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Given(given) => Pin::new(given).poll_flush(cx),
            Stream::Server(tls) => Pin::new(tls).poll_flush(cx),
            Stream::Client(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    /// Tells the peer that no more will come.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Given(given) => Pin::new(given).poll_shutdown(cx),
            Stream::Server(tls) => Pin::new(tls).poll_shutdown(cx),
            Stream::Client(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// A socket of which something was read already, to find out what is spoken on it.
pub(crate) struct Rewound {
    read: BytesMut,
    tcp: TcpStream,
}

impl Rewound {
    pub(crate) fn new(read: BytesMut, tcp: TcpStream) -> Rewound {
        Rewound { read, tcp }
    }
}

impl AsyncRead for Rewound {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.tcp).poll_read(cx, out);
        }
        let bytes = self.read.len().min(out.remaining());
        out.put_slice(&self.read[..bytes]);
        self.read.advance(bytes);
        if self.read.is_empty() {
            self.read = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
