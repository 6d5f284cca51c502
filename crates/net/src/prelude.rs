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

/// The first byte of every TLS handshake. A frame's is less, because none may be as long as 352 MiB.
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
    #[error(
        "a TLS handshake came, connection closed; this port takes none: connect without TLS, or set tls.server.mode=permissive"
    )]
    TlsDisabled,
    #[error(
        "plain bytes came, connection closed; this port takes TLS only: connect with TLS (tls.enable=true at the client), or set tls.server.mode=permissive"
    )]
    TlsOnly,
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("nothing came in time")]
    Late,
}

/// Reads the prelude. Waits `idle` (`None`: for ever) for the first byte and `handshake` from there on; between a PROXY header and what follows
/// it `idle` again, since a proxy may connect long before its client speaks.
pub(crate) async fn begin(
    mut tcp: TcpStream,
    mut peer: SocketAddr,
    tls: Option<&ServerTls>,
    idle: Option<Duration>,
    handshake: Duration,
) -> Result<Begun, NotBegun> {
    let mut read = first_within(idle, &tcp).await?;
    let mut local = tcp.local_addr()?;
    let proxied = timeout(handshake, proxied(&mut tcp, &mut read)).await.map_err(|_| NotBegun::Late)??;
    if let Some(addresses) = proxied {
        (peer, local) = addresses;
    }
    if read.is_empty() {
        read = first_within(idle, &tcp).await?;
    }
    let stream = timeout(handshake, recognize(tcp, tls, &mut read)).await.map_err(|_| NotBegun::Late)??;
    Ok(Begun { stream, peer, local, read })
}

async fn first_within(idle: Option<Duration>, tcp: &TcpStream) -> Result<BytesMut, NotBegun> {
    match idle {
        Some(idle) => timeout(idle, first(tcp)).await.map_err(|_| NotBegun::Late)?,
        None => first(tcp).await,
    }
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

/// Takes a PROXY header off the front, if there is one: the addresses of client and server that it names.
async fn proxied(tcp: &mut TcpStream, read: &mut BytesMut) -> Result<Option<(SocketAddr, SocketAddr)>, NotBegun> {
    loop {
        match proxy_protocol::parse(read)? {
            Found::Nothing => return Ok(None),
            // Ends: a header is 65,551 bytes at most.
            Found::Perhaps => more(tcp, read).await?,
            Found::Header { bytes, addresses } => {
                read.advance(bytes);
                return Ok(addresses);
            }
        }
    }
}

/// What the first byte begins; there is one.
async fn recognize(tcp: TcpStream, tls: Option<&ServerTls>, read: &mut BytesMut) -> Result<Stream, NotBegun> {
    let mode = tls.map_or(TlsMode::Disabled, ServerTls::mode);
    let stream = match (read[0] == TLS_HANDSHAKE, mode, tls) {
        (true, TlsMode::Permissive | TlsMode::Enforcing, Some(tls)) => {
            let acceptor = TlsAcceptor::from(tls.config()?);
            let rewound = Rewound::new(std::mem::take(read), tcp);
            Stream::Server(Box::new(acceptor.accept(rewound).await?))
        }
        (true, TlsMode::Disabled | TlsMode::Permissive | TlsMode::Enforcing, _) => return Err(NotBegun::TlsDisabled),
        (false, TlsMode::Enforcing, _) => return Err(NotBegun::TlsOnly),
        (false, TlsMode::Disabled | TlsMode::Permissive, _) => Stream::Plain(tcp),
    };
    Ok(stream)
}

async fn more(tcp: &mut TcpStream, read: &mut BytesMut) -> Result<(), NotBegun> {
    if tcp.read_buf(read).await? == 0 { Err(NotBegun::Gone) } else { Ok(()) }
}
