//! The first bytes of a connection: who the client is (PROXY protocol) and what it speaks (TLS or frames).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::proxy_protocol::{self, Found, Malformed};
use crate::stream::{Rewound, Stream};
use crate::tls::{ServerTls, TlsError, TlsMode};

/// The first byte of every TLS handshake. A frame's is 0, because none is longer than 16 MiB.
const TLS_HANDSHAKE: u8 = 0x16;

/// The first read: all of a PROXY header, most of a small request.
const FIRST_READ_BYTES: usize = 1 << 10;

pub(crate) struct Begun {
    pub stream: Stream,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// What was read beyond the prelude.
    pub read: BytesMut,
}

/// Why a connection did not come to its first frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBegun {
    #[error("closed by the peer")]
    Gone,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Proxy(#[from] Malformed),
    #[error("TLS is disabled here")]
    TlsDisabled,
    #[error("only TLS is served here")]
    TlsOnly,
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("nothing came in time")]
    Late,
}

/// Reads the prelude. Waits `idle` for the first byte, and `handshake` from there on.
pub(crate) async fn begin(
    tcp: TcpStream,
    peer: SocketAddr,
    tls: Option<&ServerTls>,
    idle: Duration,
    handshake: Duration,
) -> Result<Begun, NotBegun> {
    let read = timeout(idle, first(&tcp)).await.map_err(|_| NotBegun::Late)??;
    timeout(handshake, recognize(tcp, peer, tls, read)).await.map_err(|_| NotBegun::Late)?
}

/// The first bytes. There is no buffer before them: a connection that only exists costs its task.
async fn first(tcp: &TcpStream) -> Result<BytesMut, NotBegun> {
    // Ends with the first byte. Readiness may be claimed when there is none.
    loop {
        tcp.readable().await?;
        let mut start = [0; FIRST_READ_BYTES];
        match tcp.try_read(&mut start) {
            Ok(0) => return Err(NotBegun::Gone),
            Ok(bytes) => return Ok(BytesMut::from(&start[..bytes])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn recognize(
    mut tcp: TcpStream,
    mut peer: SocketAddr,
    tls: Option<&ServerTls>,
    mut read: BytesMut,
) -> Result<Begun, NotBegun> {
    let mut local = tcp.local_addr()?;
    loop {
        match proxy_protocol::parse(&read)? {
            Found::Nothing => break,
            // Ends: a header is 65,551 bytes at most.
            Found::Perhaps => more(&mut tcp, &mut read).await?,
            Found::Header { bytes, addresses } => {
                read.advance(bytes);
                if let Some((client, server)) = addresses {
                    (peer, local) = (client, server);
                }
                break;
            }
        }
    }
    while read.is_empty() {
        more(&mut tcp, &mut read).await?;
    }
    let mode = tls.map_or(TlsMode::Disabled, ServerTls::mode);
    let stream = match (read[0] == TLS_HANDSHAKE, mode, tls) {
        (true, TlsMode::Permissive | TlsMode::Enforcing, Some(tls)) => {
            let acceptor = TlsAcceptor::from(tls.config()?);
            let rewound = Rewound::new(std::mem::take(&mut read), tcp);
            Stream::Server(Box::new(acceptor.accept(rewound).await?))
        }
        (true, TlsMode::Disabled | TlsMode::Permissive | TlsMode::Enforcing, _) => return Err(NotBegun::TlsDisabled),
        (false, TlsMode::Enforcing, _) => return Err(NotBegun::TlsOnly),
        (false, TlsMode::Disabled | TlsMode::Permissive, _) => Stream::Plain(tcp),
    };
    Ok(Begun { stream, peer, local, read })
}

async fn more(tcp: &mut TcpStream, read: &mut BytesMut) -> Result<(), NotBegun> {
    if tcp.read_buf(read).await? == 0 { Err(NotBegun::Gone) } else { Ok(()) }
}
