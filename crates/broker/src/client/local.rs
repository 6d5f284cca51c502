//! A client of this process comes and goes, as one on a connection does by its heartbeats and by its end.

use protocol::header::Language;

use crate::broker::Broker;
use crate::caller::{Caller, ended};
use crate::client::heartbeat;
use crate::client_handle::ClientHandle;
use crate::refusal::Refusal;
use crate::state::clients::{Client, check_client_id};

impl Broker {
    /// A client of this process produces for a group, and may be asked about the group's transactions until it ends. As a heartbeat it is to be
    /// said again within `channelExpiredTimeout`.
    pub fn produces(&self, caller: &Caller, client_id: &str, group: &str) -> Result<(), Refusal> {
        check_client_id(client_id)?;
        let connection = caller.client().clone();
        let client = Client {
            connection_id: connection.id(),
            peer: connection.peer(),
            connection,
            client_id: client_id.into(),
            language: Language::Other.name(),
            version: 0,
        };
        self.clients.produce(&client, group, self.clock.elapsed());
        // After that, so that one which ends meanwhile is found here or there.
        if client.connection.is_over() {
            heartbeat::closed(self, client.connection_id);
            return Err(ended());
        }
        Ok(())
    }

    /// A client of this process ends: it leaves its groups, and is asked nothing more.
    pub fn ended(&self, client: &ClientHandle) {
        client.close();
        heartbeat::closed(self, client.id());
    }
}
