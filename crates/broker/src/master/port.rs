//! The port at which slaves get the log (`haListenPort`).

use std::sync::Arc;
use std::time::Duration;

use replica::feed::{Allowed, FeedPort, PortOptions};

use super::members;
use crate::broker::Broker;
use crate::state::log_port::LogPort;
use crate::tasks::Stop;

/// Pause before a port that could not be listened at is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

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
                tracing::error!(address = %log_port.address(), %error, "cannot listen for slaves (haListenPort), trying again");
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
    let (feed, member) = (broker.feeding.subscribe(), Some(Arc::new(broker.member())));
    let options = PortOptions { feed, member, ..PortOptions::new(allowed(broker)) };
    let (store, clock, slaves) = (Arc::clone(&broker.store), broker.clock.clone(), Arc::clone(&broker.slaves));
    FeedPort::on(log_port.take()?, store, clock, options, slaves)
}

fn allowed(broker: &Arc<Broker>) -> Allowed {
    let of = Arc::downgrade(broker);
    // Nobody may once the broker is gone.
    let may = move |address| of.upgrade().is_some_and(|broker| members::may(&broker, address));
    let of = Arc::downgrade(broker);
    let is_member = move |address| of.upgrade().is_some_and(|broker| members::is_listed(&broker, address));
    Allowed::changing(may, broker.members.changes()).with_members(is_member)
}
