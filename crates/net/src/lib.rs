//! Connections: the one loop, listeners, TLS, PROXY protocol, outgoing calls.
