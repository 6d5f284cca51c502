//! The port at which slaves get the log (`haListenPort`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use net::Port;
use parking_lot::Mutex;
use replica::feed::{Allowed, FeedPort, PortOptions};

use crate::broker::Broker;
use crate::tasks::Stop;

/// Pause before a port that could not be listened at is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

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

    /// The port, bound anew if it was given back.
    fn take(&self) -> std::io::Result<Port> {
        let bound = self.bound.lock().take();
        bound.map_or_else(|| Port::bind(self.address), Ok)
    }
}

/// Gives the log to slaves until it is told to stop. Nothing to do for a broker without the port.
pub(crate) async fn serve(broker: Arc<Broker>, mut stop: Stop) {
    let Some(log_port) = &broker.log_port else { return };
    let mut has_complained = false;
    // Ends with the port, or the stop.
    while !stop.is_asked() {
        match listen(&broker, log_port) {
            Ok(port) => {
                tracing::info!(address = %port.local_addr(), "slaves get the log");
                return port.run(async move { stop.asked().await }).await;
            }
            Err(error) if !has_complained => {
                tracing::error!(address = %log_port.address, %error, "cannot listen for slaves (haListenPort), trying again");
                has_complained = true;
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}

fn listen(broker: &Arc<Broker>, log_port: &LogPort) -> std::io::Result<FeedPort> {
    let options = PortOptions::new(Allowed::new(|address| address.is_loopback()));
    let (store, clock, slaves) = (Arc::clone(&broker.store), broker.clock.clone(), Arc::clone(&broker.slaves));
    FeedPort::on(log_port.take()?, store, clock, options, slaves)
}
