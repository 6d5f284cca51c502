//! Properties that RocketMQ takes from the command line of its virtual machine (`-Dname=value`) or from `tls.properties`.
//! There is no virtual machine here: they are taken from the same file as all others, under the same names.

use super::kinds::{BOOL, BYTES, CLIENT_AUTH, COUNT, SPAN, TEXT, TLS_MODE};
use super::reasons::{KEY_PASSWORD, NETTY, SOCKETS};
use super::table::table;
use crate::key::{Key, Kind, Section};

/// Shorter than a header may be, none would be served; the length of one of 352 MiB looks like the first byte of TLS.
const FRAME: Kind = Kind::Number { min: 64 << 10, max: 256 << 20, scaled: true };

table! {
    /// TLS, frames, and a few numbers that have no key of their own.
    JVM: Section::Machine;

    used                  "tls.config.file"                          TEXT        = "/etc/rocketmq/tls.properties" "file whose tls.* lines win over those of broker.conf; read with -c if it is there, and always when it is named";
    used                  "tls.server.mode"                          TLS_MODE    = "permissive" "disabled: plain only; permissive: both on one port; enforcing: TLS only";
    used                  "tls.test.mode.enable"                     BOOL        = "true"   "use a certificate made at start, and ask no client for one";
    used                  "tls.server.need.client.auth"              CLIENT_AUTH = "none"   "must clients show a certificate";
    used                  "tls.server.keyPath"                       TEXT        = ""       "private key, PEM";
    refused(KEY_PASSWORD) "tls.server.keyPassword"                   TEXT        = ""       "password of the private key";
    used                  "tls.server.certPath"                      TEXT        = ""       "certificate chain, PEM";
    used                  "tls.server.authClient"                    BOOL        = "false"  "check the certificates of clients against tls.server.trustCertPath";
    used                  "tls.server.trustCertPath"                 TEXT        = ""       "certificates that clients are checked against, PEM";
    used                  "tls.enable"                               BOOL        ~ "true if tls.server.mode is enforcing" "use TLS towards name servers";
    used                  "tls.client.keyPath"                       TEXT        = ""       "own private key towards name servers, PEM";
    off(KEY_PASSWORD)     "tls.client.keyPassword"                   TEXT        = ""       "password of it";
    used                  "tls.client.certPath"                      TEXT        = ""       "own certificate chain towards name servers, PEM";
    used                  "tls.client.authServer"                    BOOL        = "false"  "check the certificates of name servers against tls.client.trustCertPath, not for their host";
    used                  "tls.client.trustCertPath"                 TEXT        = ""       "certificates that name servers are checked against, PEM";
    used                  "com.rocketmq.remoting.frameMaxLength"     FRAME       = "16777216" "longest frame";
    used                  "rocketmq.broker.rebalance.lockMaxLiveTime" SPAN        = "60000"  "ms after which a queue lock that is not renewed is free";
    not_needed(SOCKETS)   "com.rocketmq.remoting.socket.sndbuf.size" BYTES       = "0"      "serverSocketSndBufSize";
    not_needed(SOCKETS)   "com.rocketmq.remoting.socket.rcvbuf.size" BYTES       = "0"      "serverSocketRcvBufSize";
    not_needed(SOCKETS)   "com.rocketmq.remoting.socket.backlog"     COUNT       = "1024"   "serverSocketBacklog";
    not_needed(NETTY)     "com.rocketmq.remoting.nettyPooledByteBufAllocatorEnable" BOOL        = "false"  "pooled buffers";
    not_needed(NETTY)     "com.rocketmq.remoting.write.buffer.high.water.mark" BYTES       = "0"      "netty's water mark";
    not_needed(NETTY)     "com.rocketmq.remoting.write.buffer.low.water.mark" BYTES       = "0"      "netty's water mark";
}
