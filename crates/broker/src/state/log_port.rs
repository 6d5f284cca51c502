//! Where a master gives its log to slaves (`haListenPort`), how they are fed, and how a slave follows. `master/port.rs` serves it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use config::BrokerSettings;
use net::Port;
use parking_lot::Mutex;
use replica::feed::FeedOptions;
use replica::follow::FollowOptions;

/// The port, held while nobody listens at it. Nobody is let in by a broker that does not serve yet.
pub(crate) struct LogPort {
    address: SocketAddr,
    /// Bound before the store was opened; taken by the first that listens. Guards itself only.
    bound: Mutex<Option<Port>>,
}

impl LogPort {
    pub(crate) fn new(port: Port) -> LogPort {
        LogPort { address: port.local_addr(), bound: Mutex::new(Some(port)) }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port, bound anew if it was taken before.
    pub(crate) fn take(&self) -> io::Result<Port> {
        let bound = self.bound.lock().take();
        bound.map_or_else(|| Port::bind(self.address), Ok)
    }
}

/// How the settings say that slaves are fed.
pub(crate) fn feed_options(settings: &BrokerSettings) -> FeedOptions {
    FeedOptions {
        body_bytes: settings.ha_transfer_batch_size,
        heartbeat: Duration::from_millis(settings.ha_send_heartbeat_interval),
        silence: Duration::from_millis(settings.ha_housekeeping_interval),
        from_last_file: settings.sync_from_last_file,
        bytes_per_second: settings.ha_flow_control_enable.then_some(settings.max_ha_transfer_byte_in_second),
    }
}

/// How the settings say that a slave follows.
pub(crate) fn follow_options(settings: &BrokerSettings) -> FollowOptions {
    FollowOptions {
        heartbeat: Duration::from_millis(settings.ha_send_heartbeat_interval),
        silence: Duration::from_millis(settings.ha_housekeeping_interval),
        from_last_file: settings.sync_from_last_file,
    }
}
