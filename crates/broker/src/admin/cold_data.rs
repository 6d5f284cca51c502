//! Cold reads: how much of them groups may have (2001 to 2003), and how the kernel reads for them (2004).
//!
//! No group is held back here, because cold reads run on threads of their own. The limits of groups are kept and shown, as Apache does
//! while `coldDataFlowControlEnable` is off; each answer says that they have no effect.

use std::collections::BTreeMap;

use config::properties;
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::SetCommitLogReadMode;
use serde_json::json;
use store::{ReadMode, Store};

use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::cold_limits::ColdLimits;
use crate::state::configuration::Configuration;

/// Groups that may have a limit of their own.
const GROUPS_MAX: usize = 10_000;
/// Bytes of a request: more is not a list of limits.
const BODY_MAX: usize = 1 << 20;
const NO_EFFECT: &str = "kept, without effect: cold reads run on their own threads and no group is held back";

fn text<'a>(request: &Request<'a>) -> Result<&'a str, Refusal> {
    if request.body.len() > BODY_MAX {
        let remark = format!("the body has {} bytes, more than {BODY_MAX}", request.body.len());
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    std::str::from_utf8(request.body).map_err(|_| Refusal::new(ResponseCode::InvalidParameter, "the body is not UTF-8"))
}

/// 2001: limits of groups, as a property file; all or none.
pub(crate) fn update(cold_limits: &ColdLimits, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    let lines = properties::parse(text(request)?)
        .map_err(|error| Refusal::new(ResponseCode::SystemError, format!("string2Properties error: {error}")))?;
    let mut wanted = BTreeMap::new();
    for line in lines {
        names::check_group(&line.key).map_err(|error| invalid(error.to_string()))?;
        let shown: String = line.value.chars().take(64).collect();
        let limit = line.value.trim().parse::<i64>();
        let limit = limit.map_err(|_| invalid(format!("limit of group {}: \"{shown}\" is not an i64", line.key)))?;
        wanted.insert(line.key, limit);
    }
    let mut limits = cold_limits.0.lock();
    let more = wanted.keys().filter(|group| !limits.contains_key(*group)).count();
    if limits.len() + more > GROUPS_MAX {
        return Err(invalid(format!("{} groups would have a limit, more than {GROUPS_MAX}", limits.len() + more)));
    }
    limits.extend(wanted);
    drop(limits);
    out.reply(request.reply_to(), ResponseCode::Success, Some(NO_EFFECT), &(), &[]);
    Ok(())
}

/// 2002: a group has no limit of its own any more. The body is its name; one that has none is a success, as in Apache.
pub(crate) fn remove(cold_limits: &ColdLimits, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    cold_limits.0.lock().remove(text(request)?);
    out.reply(request.reply_to(), ResponseCode::Success, None, &(), &[]);
    Ok(())
}

/// 2003: the limits. Nothing is counted, so `runtimeTable` is empty.
pub(crate) fn show(
    configuration: &Configuration,
    cold_limits: &ColdLimits,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let number = |key| configuration.text(key).parse::<i64>().unwrap_or_default();
    let info = json!({
        "runtimeTable": {},
        "configTable": *cold_limits.0.lock(),
        "cgColdReadThreshold": number("cgColdReadThreshold"),
        "globalColdReadThreshold": number("globalColdReadThreshold"),
        "globalAcc": 0,
    });
    out.reply(request.reply_to(), ResponseCode::Success, None, &(), info.to_string().as_bytes());
    Ok(())
}

/// 2004: how the kernel reads pages of the log that are not in memory: 0 with those around them, 1 alone. Until the next start.
pub(crate) fn set_read_mode(
    store: &Store,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let text = SetCommitLogReadMode::decode(&request.header.fields)?.read_ahead_mode;
    let mode = match text {
        "0" => ReadMode::Ahead,
        "1" => ReadMode::Random,
        _ => {
            let shown: String = text.chars().take(64).collect();
            let remark = format!(
                "set commitlog readahead mode param value error: READ_AHEAD_MODE is \"{shown}\", 0 (normal) and 1 (random) are known"
            );
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
    };
    store.set_read_mode(mode).map_err(Refusal::failed)?;
    tracing::info!(?mode, peer = %session.connection.peer(), "read mode of the log set by request");
    let remark = format!("set commitlog readahead mode success, mode: {text}");
    out.reply(request.reply_to(), ResponseCode::Success, Some(&remark), &(), &[]);
    Ok(())
}
