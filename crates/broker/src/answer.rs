//! How requests are read and answered, whatever they are about: bodies of JSON, success, and what each answer to a send brings.

use config::BrokerSettings;
use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::request::SendReplyExtra;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// The JSON body of a request.
pub(crate) fn body<T: DeserializeOwned>(request: &Request<'_>) -> Result<T, Refusal> {
    read_body(request.body)
}

/// The same of a body that is not on the network worker any more.
pub(crate) fn read_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    if body.is_empty() {
        return Err(Refusal::new(ResponseCode::InvalidParameter, "the request has no body"));
    }
    fastjson::from_slice(body).map_err(|error| {
        Refusal::new(ResponseCode::InvalidParameter, format!("the body is not what it should be: {error}"))
    })
}

/// Success, nothing else.
pub(crate) fn reply_ok(request: &Request<'_>, out: &mut Outgoing) {
    out.reply(request.reply_to(), ResponseCode::Success, None, &(), &[]);
}

/// Success with a JSON body, in the dialect that Java tools read.
pub(crate) fn reply_json<T: Serialize>(request: &Request<'_>, out: &mut Outgoing, body: &T) {
    out.reply_owned(request.reply_to(), ResponseCode::Success, None, &(), fastjson::to_vec(body, Dialect::FastJson));
}

/// What stands in every answer to a send.
pub(crate) fn reply_extra(settings: &BrokerSettings) -> SendReplyExtra<'_> {
    SendReplyExtra { trace_on: Some(if settings.trace_on { "true" } else { "false" }), ..recall_extra(settings) }
}

/// What stands in every answer to a recall.
pub(crate) fn recall_extra(settings: &BrokerSettings) -> SendReplyExtra<'_> {
    SendReplyExtra { msg_region: &settings.region_id, trace_on: None }
}
