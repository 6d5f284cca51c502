//! Which part a broker plays among the brokers of its name. It is asked for where something depends on it.

use config::BrokerSettings;
use protocol::body::MASTER_ID;

/// The part that a broker plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes messages, and keeps what RocketMQ promises of them.
    Master,
    /// It has a copy of what the master has.
    Slave,
    /// A slave that delivers what waits, in place of a master that is gone.
    ActingMaster,
}

/// The role and the id of this broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) role: Role,
    /// Which of the brokers of its name it is; [`MASTER_ID`] is the master.
    pub(crate) broker_id: i64,
}

impl Standing {
    /// As the settings say.
    pub(crate) fn of(settings: &BrokerSettings) -> Standing {
        let role = if settings.broker_id == MASTER_ID { Role::Master } else { Role::Slave };
        Standing { role, broker_id: settings.broker_id }
    }

    /// Whether messages are sent to this broker.
    pub(crate) fn is_master(self) -> bool {
        self.role == Role::Master
    }
}
