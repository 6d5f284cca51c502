//! Which part a broker plays among the brokers of its name. It is asked for where something depends on it.

use config::BrokerSettings;
use protocol::body::MASTER_ID;
use protocol::code::{Family, RequestCode, ResponseCode};

use crate::refusal::{NOT_AVAILABLE, Refusal};

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

    /// Refuses what only a master carries out, if this broker is none.
    #[inline]
    pub(crate) fn check(self, code: RequestCode) -> Result<(), Refusal> {
        if self.is_master() || !code.row().is_master_only { Ok(()) } else { Err(refused(self.role, code)) }
    }
}

/// The answer of a slave of RocketMQ 5.5.0, where it has one: it carries out some of these requests, and passes others on.
fn refused(role: Role, code: RequestCode) -> Refusal {
    let family = code.row().family;
    if code == RequestCode::END_TRANSACTION {
        let remark = "message store is slave mode, so end transaction is forbidden";
        return Refusal::new(ResponseCode::SlaveNotAvailable, remark);
    }
    if code == RequestCode::RECALL_MESSAGE {
        return Refusal::new(ResponseCode::SlaveNotAvailable, "recall failed, broker service not available");
    }
    if family == Family::Send && role == Role::Slave {
        let remark = "[REJECTREQUEST]system busy, start flow control for a while";
        return Refusal::new(ResponseCode::SystemBusy, remark);
    }
    if matches!(family, Family::Topics | Family::Groups) || code == RequestCode::INVOKE_BROKER_TO_RESET_OFFSET {
        let remark =
            "Can't modify topic or subscription group from slave broker, please execute it from master broker.";
        return Refusal::new(ResponseCode::SystemError, remark);
    }
    Refusal::new(ResponseCode::ServiceNotAvailable, format!("{NOT_AVAILABLE} This broker is no master"))
}
