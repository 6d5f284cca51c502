//! Which part a broker plays among the brokers of its name. It is asked for where something depends on it.

use config::{BrokerRole, BrokerSettings};
use protocol::body::MASTER_ID;
use protocol::code::{Family, RequestCode, ResponseCode};

use crate::refusal::Refusal;

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

    /// Whether messages are sent to this broker.
    pub(crate) fn is_master(self) -> bool {
        self.role == Role::Master
    }

    /// Whether this broker's log is a copy, which nobody else appends to.
    pub(crate) fn is_slave(self) -> bool {
        self.role == Role::Slave
    }

    /// How a slave refuses a request, in the words of Apache's where it has some; none if it carries it out. `reads`: whether it answers pulls
    /// (`slaveReadEnable`).
    pub(crate) fn refuses(self, code: RequestCode, reads: bool) -> Option<Refusal> {
        if !self.is_slave() {
            return None;
        }
        let row = code.row();
        // While its master is gone, consumers that read from a slave commit there.
        let is_commit = code == RequestCode::UPDATE_CONSUMER_OFFSET;
        let is_pull = row.family == Family::Pull;
        if is_pull && reads || !is_pull && !row.is_master_only || is_commit {
            return None;
        }
        Some(match row.family {
            Family::Send | Family::Pull => {
                Refusal::new(ResponseCode::SystemBusy, "[REJECTREQUEST]system busy, start flow control for a while")
            }
            Family::Transaction | Family::Timer => Refusal::new(
                ResponseCode::SlaveNotAvailable,
                "this broker is a slave, which ends no transaction and takes no message back; ask the master",
            ),
            Family::Topics | Family::Groups | Family::Offsets | Family::Auth => Refusal::new(
                ResponseCode::SystemError,
                "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
            ),
            Family::Reply
            | Family::Pop
            | Family::Lite
            | Family::Query
            | Family::Clients
            | Family::Routes
            | Family::Settings
            | Family::Replication
            | Family::Controller
            | Family::Container
            | Family::Admin => Refusal::new(
                ResponseCode::ServiceNotAvailable,
                "service not available now: this broker is a slave; ask the master",
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::code::REQUESTS;

    use super::*;

    const SLAVE: Standing = Standing { role: Role::Slave, broker_id: 1 };

    #[test]
    fn a_slave_refuses_what_changes_something_with_the_codes_of_apache() {
        let code = |code: RequestCode| SLAVE.refuses(code, false).map(|refusal| refusal.code);
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
            assert_eq!(SLAVE.refuses(pull, false).map(|refusal| refusal.code), Some(ResponseCode::SystemBusy));
            assert_eq!(SLAVE.refuses(pull, true), None);
        }
        let master = Standing { role: Role::Master, broker_id: MASTER_ID };
        let codes = REQUESTS.iter().filter_map(|row| RequestCode::from_i32(row.number));
        assert_eq!(codes.filter(|code| master.refuses(*code, false).is_some()).count(), 0);
    }
}
