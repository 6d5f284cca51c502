//! Which part a broker plays among the brokers of its name. It is asked for where something depends on it.

use config::{BrokerRole, BrokerSettings};
use journal::Journal;
use protocol::body::MASTER_ID;
use protocol::code::{Family, RequestCode, ResponseCode};

use crate::refusal::{NOT_AVAILABLE, Refusal};
use crate::state::switch;

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
        match settings.broker_role {
            BrokerRole::AsyncMaster | BrokerRole::SyncMaster => Standing { role: Role::Master, broker_id: MASTER_ID },
            BrokerRole::Slave => Standing { role: Role::Slave, broker_id: settings.broker_id },
        }
    }

    /// Whether this broker is no slave and was one when it was started last. Before [`switch::Switch::begin`].
    pub(crate) fn is_promoted(self, journal: &Journal) -> bool {
        !self.is_slave() && switch::was_slave(journal).is_some()
    }

    /// Whether messages are sent to this broker.
    pub(crate) fn is_master(self) -> bool {
        self.role == Role::Master
    }

    /// Whether this broker's log is a copy, which nobody else appends to.
    pub(crate) fn is_slave(self) -> bool {
        self.role == Role::Slave
    }

    /// Refuses what only a master carries out, if this broker is none, and pulls of a slave that does not answer them. `reads`: whether it does
    /// (`slaveReadEnable`).
    #[inline]
    pub(crate) fn check(self, code: RequestCode, reads: impl FnOnce() -> bool) -> Result<(), Refusal> {
        if self.is_master() { Ok(()) } else { self.check_as_slave(code, reads()) }
    }

    fn check_as_slave(self, code: RequestCode, reads: bool) -> Result<(), Refusal> {
        let row = code.row();
        let may = if row.family == Family::Pull {
            reads
        } else {
            // While its master is gone, consumers that read from a slave commit there.
            !row.is_master_only || code == RequestCode::UPDATE_CONSUMER_OFFSET
        };
        if may { Ok(()) } else { Err(refused(self.role, code)) }
    }
}

/// A role as `brokerRole` has it.
pub(crate) fn text(role: BrokerRole) -> &'static str {
    match role {
        BrokerRole::AsyncMaster => "ASYNC_MASTER",
        BrokerRole::SyncMaster => "SYNC_MASTER",
        BrokerRole::Slave => "SLAVE",
    }
}

/// What sends hear that a broker does not take.
pub(crate) const BUSY: &str = "[REJECTREQUEST]system busy, start flow control for a while";

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
    if matches!(family, Family::Send | Family::Pull) && role == Role::Slave {
        return Refusal::new(ResponseCode::SystemBusy, BUSY);
    }
    if matches!(family, Family::Topics | Family::Groups) || code == RequestCode::INVOKE_BROKER_TO_RESET_OFFSET {
        let remark =
            "Can't modify topic or subscription group from slave broker, please execute it from master broker.";
        return Refusal::new(ResponseCode::SystemError, remark);
    }
    Refusal::new(ResponseCode::ServiceNotAvailable, format!("{NOT_AVAILABLE} This broker is no master"))
}

#[cfg(test)]
mod tests {
    use protocol::code::REQUESTS;

    use super::*;

    const A_SLAVE: Standing = Standing { role: Role::Slave, broker_id: 1 };

    #[test]
    fn a_slave_refuses_what_changes_something_with_the_codes_of_apache() {
        let code = |code: RequestCode| A_SLAVE.check(code, || false).err().map(|refusal| refusal.code);
        for send in [RequestCode::SEND_MESSAGE, RequestCode::SEND_MESSAGE_V2, RequestCode::SEND_BATCH_MESSAGE] {
            assert_eq!(code(send), Some(ResponseCode::SystemBusy));
        }
        assert_eq!(code(RequestCode::CONSUMER_SEND_MSG_BACK), Some(ResponseCode::SystemBusy));
        assert_eq!(code(RequestCode::END_TRANSACTION), Some(ResponseCode::SlaveNotAvailable));
        assert_eq!(code(RequestCode::RECALL_MESSAGE), Some(ResponseCode::SlaveNotAvailable));
        assert_eq!(code(RequestCode::UPDATE_AND_CREATE_TOPIC), Some(ResponseCode::SystemError));
        assert_eq!(code(RequestCode::INVOKE_BROKER_TO_RESET_OFFSET), Some(ResponseCode::SystemError));
        assert_eq!(code(RequestCode::POP_MESSAGE), Some(ResponseCode::ServiceNotAvailable));
        for read in [RequestCode::UPDATE_CONSUMER_OFFSET, RequestCode::QUERY_CONSUMER_OFFSET, RequestCode::HEART_BEAT] {
            assert_eq!(code(read), None);
        }
    }

    #[test]
    fn a_slave_answers_pulls_if_it_is_set_to_and_a_master_carries_out_all() {
        for pull in [RequestCode::PULL_MESSAGE, RequestCode::LITE_PULL_MESSAGE] {
            assert_eq!(A_SLAVE.check(pull, || false).err().map(|refusal| refusal.code), Some(ResponseCode::SystemBusy));
            assert!(A_SLAVE.check(pull, || true).is_ok());
        }
        let master = Standing { role: Role::Master, broker_id: MASTER_ID };
        let codes = REQUESTS.iter().filter_map(|row| RequestCode::from_i32(row.number));
        assert_eq!(codes.filter(|code| master.check(*code, || false).is_err()).count(), 0);
    }
}
