//! What a broker asks others of its set about a switch.

use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Client};
use protocol::LogOffset;
use protocol::body::{EpochStart, MemberState};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, JsonError};
use protocol::request::TakeOverMaster;
use replica::epochs::{Epoch, Epochs};

use crate::state::switch::Handed;

/// Why another broker does not say or do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemberError {
    /// It does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It answers that it will not.
    #[error("it refuses request {request}: {code} {remark}")]
    Refused { request: i32, code: i32, remark: String },
    /// Its answer is not understood.
    #[error("its state is not readable: {0}")]
    Body(#[from] JsonError),
}

/// 30003: how a broker of ours stands. Not for others, which do not know it.
pub(crate) async fn member(client: &Client, address: &str, patience: Duration) -> Result<MemberState, MemberError> {
    let code = request::GET_MEMBER_STATE;
    let answer = client.call(address, code, &(), Bytes::new(), patience).await?;
    if answer.code != ResponseCode::Success as i32 {
        let remark = answer.remark.unwrap_or_default();
        return Err(MemberError::Refused { request: code, code: answer.code, remark });
    }
    Ok(fastjson::from_slice(&answer.body)?)
}

/// 30005: it is to be the master to which this log was handed over.
pub(super) async fn take_over(client: &Client, handed: &Handed, patience: Duration) -> Result<(), MemberError> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let fields = TakeOverMaster {
        epoch: signed(handed.epoch),
        log_end: Some(signed(handed.log_end)),
        broker_role: Some(&handed.broker_role),
    };
    let code = request::TAKE_OVER_MASTER;
    let answer = client.call(&handed.address, code, &fields, Bytes::new(), patience).await?;
    if answer.code != ResponseCode::Success as i32 {
        let remark = answer.remark.unwrap_or_default();
        return Err(MemberError::Refused { request: code, code: answer.code, remark });
    }
    Ok(())
}

/// The epochs that a broker tells; none if they are not those of one log.
pub(crate) fn epochs(told: &[EpochStart]) -> Option<Epochs> {
    let one = |told: &EpochStart| {
        Some(Epoch { number: u64::try_from(told.epoch).ok()?, start: LogOffset(u64::try_from(told.start).ok()?) })
    };
    Epochs::of(told.iter().map(one).collect::<Option<_>>()?)
}
