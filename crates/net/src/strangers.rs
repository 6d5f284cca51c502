//! What comes to a port and is no frame of RocketMQ's: told by its first bytes, so that the log can say what it is and what to do.

use std::net::SocketAddr;

/// How TLS begins: a handshake record of version 3.x.
const TLS: &[u8] = &[0x16, 3];
/// How HTTP/2 begins, which gRPC runs on.
const HTTP_2: &[u8] = b"PRI * HTTP/2";
/// How a request of HTTP/1 begins. Of the shorter ones a frame's length word would be beyond every limit, too.
const HTTP_1: [&[u8]; 9] =
    [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];

/// Who speaks, if it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    Tls,
    Http1,
    Http2,
}

impl Stranger {
    /// By the first bytes that are no frame. `None`: it could be anybody.
    pub(crate) fn of(bytes: &[u8]) -> Option<Stranger> {
        // A frame is refused by its first four bytes; the rest of a word may not have come.
        let begins = |word: &[u8]| {
            let known = word.len().min(bytes.len());
            known >= 4 && bytes[..known] == word[..known]
        };
        if bytes.starts_with(TLS) {
            return Some(Stranger::Tls);
        }
        if begins(HTTP_2) {
            return Some(Stranger::Http2);
        }
        HTTP_1.into_iter().any(begins).then_some(Stranger::Http1)
    }

    /// Says what came, from where, and what to do about it. A line of its own for each: they are bounded one by one.
    pub(crate) fn tell(self, peer: SocketAddr, local: SocketAddr) {
        match self {
            Stranger::Tls => tracing::warn!(
                %peer,
                %local,
                "a TLS handshake came where frames were to come, connection closed; connect without TLS, or once, not \
                 through a second TLS tunnel"
            ),
            Stranger::Http1 => tracing::warn!(
                %peer,
                %local,
                "an HTTP request came, connection closed; this port speaks RocketMQ's remoting protocol: a health check \
                 opens a TCP connection only, metrics are at metricsPromExporterPort, and consoles connect as clients"
            ),
            Stranger::Http2 => tracing::warn!(
                %peer,
                %local,
                "HTTP/2 came, as gRPC clients (rocketmq-clients, rocketmq-client-java) and browsers speak it, connection \
                 closed; this port speaks RocketMQ's remoting protocol: use a remoting client (rocketmq-client)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_protocols_begin_with_is_told_by_name() {
        for verb in ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"] {
            assert_eq!(Stranger::of(format!("{verb} / HTTP/1.1\r\n").as_bytes()), Some(Stranger::Http1), "{verb}");
        }
        assert_eq!(Stranger::of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some(Stranger::Http2));
        assert_eq!(Stranger::of(b"\x16\x03\x01\x02\x00\x01"), Some(Stranger::Tls));
        let half = [&b"PRI "[..], b"DELE"].map(Stranger::of);
        assert_eq!(half, [Some(Stranger::Http2), Some(Stranger::Http1)], "the rest is still to come");
        for other in [&b""[..], b"GE", b"GETS", b"\0\0\0\x10\0\0\0\x10", b"\xff\xff\xff\xff", b"PRIX"] {
            assert_eq!(Stranger::of(other), None, "{other:?}");
        }
    }
}
