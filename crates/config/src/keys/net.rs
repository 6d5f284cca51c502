//! Keys of RocketMQ's `NettyServerConfig` and `NettyClientConfig`.

use super::kinds::{BOOL, BYTES, COUNT, INT, LONG, PORT, SPAN, TEXT};
use super::reasons::*;
use super::table::table;
use crate::key::{Key, Section};

table! {
    /// Listening.
    SERVER_SIDE: Section::Net;

    used                "bindAddress"                        TEXT  ~ "0.0.0.0; 127.0.0.1 without a file" "listen address";
    used                "listenPort"                         PORT  ~ "10911 for a broker, 9876 for a name server" "NettyServerConfig: service port (broker 10911, namesrv 9876); BrokerConfig copy (6888) is for container brokers only";
    not_needed(NETTY)   "serverWorkerThreads"                INT   = "8"      "codec/handler threads";
    not_needed(NETTY)   "serverCallbackExecutorThreads"      INT   = "0"      "default processor pool (0→4)";
    not_needed(NETTY)   "serverSelectorThreads"              INT   = "3"      "I/O threads";
    not_needed(NETTY)   "serverOnewaySemaphoreValue"         INT   = "256"    "concurrent one-way sends";
    not_needed(NETTY)   "serverAsyncSemaphoreValue"          INT   = "64"     "concurrent async sends";
    used                "serverChannelMaxIdleTimeSeconds"    SPAN  = "120"    "idle close; 0: never";
    used                "serverSocketSndBufSize"             BYTES = "0"      "0 = OS default";
    used                "serverSocketRcvBufSize"             BYTES = "0"      "0 = OS default";
    not_needed(NETTY)   "writeBufferHighWaterMark"           INT   = "0"      "0 = unset";
    not_needed(NETTY)   "writeBufferLowWaterMark"            INT   = "0"      "0 = unset";
    not_needed(BACKLOG) "serverSocketBacklog"                COUNT = "1024"   "listen backlog (1024)";
    not_needed(NETTY)   "serverNettyWorkerGroupEnable"       BOOL  = "true"   "separate handler group";
    not_needed(NETTY)   "serverPooledByteBufAllocatorEnable" BOOL  = "true"   "pooled buffers";
    used                "enableShutdownGracefully"           BOOL  = "false"  "at a stop, first answer clients that know it with GO_AWAY for a while, and serve the others";
    used                "shutdownWaitTimeSeconds"            SPAN  = "30"     "for so long; shorter when nobody is connected any more";
    not_needed(NETTY)   "useEpollNativeSelector"             BOOL  = "false"  "native epoll";
}

table! {
    /// Calls that a broker makes.
    CLIENT_SIDE: Section::NetClient;

    not_needed(NETTY) "clientWorkerThreads"                INT  = "4"      "";
    not_needed(NETTY) "clientCallbackExecutorThreads"      INT  ~ "cpu"    "";
    not_needed(NETTY) "clientOnewaySemaphoreValue"         INT  = "65535"  "";
    not_needed(NETTY) "clientAsyncSemaphoreValue"          INT  = "65535"  "";
    not_needed(NETTY) "connectTimeoutMillis"               SPAN = "3000"   "";
    not_needed(NETTY) "channelNotActiveInterval"           LONG = "60000"  "";
    not_needed(NETTY) "isScanAvailableNameSrv"             BOOL = "true"   "";
    not_needed(NETTY) "scanAvailableNameSrv"               BOOL = "true"   "";
    not_needed(NETTY) "clientChannelMaxIdleTimeSeconds"    INT  = "120"    "";
    not_needed(NETTY) "clientSocketSndBufSize"             INT  = "0"      "";
    not_needed(NETTY) "clientSocketRcvBufSize"             INT  = "0"      "";
    not_needed(NETTY) "clientPooledByteBufAllocatorEnable" BOOL = "false"  "";
    not_needed(NETTY) "clientCloseSocketIfTimeout"         BOOL = "true"   "";
    used              "useTLS"                             BOOL ~ "tls.enable" "use TLS towards name servers";
    off(SOCKS)        "socksProxyConfig"                   TEXT = "{}"     "";
    not_needed(NETTY) "disableCallbackExecutor"            BOOL = "false"  "";
    not_needed(NETTY) "disableNettyWorkerGroup"            BOOL = "false"  "";
    not_needed(NETTY) "maxReconnectIntervalTimeSeconds"    LONG = "60"     "";
    not_needed(NETTY) "enableReconnectForGoAway"           BOOL = "true"   "";
}
