//! What operators and tools ask for, a file for each subject.
//!
//! Handlers run on the connection's task like any other; what they read are snapshots. A change goes to the journal first, and its
//! answer leaves when the journal is written.

pub(crate) mod attributes;
pub(crate) mod cleaning;
pub(crate) mod configuration;
pub(crate) mod connections;
pub(crate) mod groups;
pub(crate) mod progress;
pub(crate) mod relay;
pub(crate) mod reset;
pub(crate) mod runtime;
pub(crate) mod topics;

use net::{Outgoing, Request};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// The JSON body of a request.
pub(crate) fn body<T: DeserializeOwned>(request: &Request<'_>) -> Result<T, Refusal> {
    if request.body.is_empty() {
        return Err(Refusal::new(ResponseCode::InvalidParameter, "the request has no body"));
    }
    fastjson::from_slice(request.body).map_err(|error| {
        Refusal::new(ResponseCode::InvalidParameter, format!("the body is not what it should be: {error}"))
    })
}

/// Success, nothing else.
pub(crate) fn reply_ok(request: &Request<'_>, out: &mut Outgoing) {
    out.reply(request.reply_to(), ResponseCode::Success, None, &(), &[]);
}

/// Success with a JSON body, in the dialect that Java tools read.
pub(crate) fn reply_json<T: Serialize>(request: &Request<'_>, out: &mut Outgoing, body: &T) {
    out.reply(request.reply_to(), ResponseCode::Success, None, &(), &fastjson::to_vec(body, Dialect::FastJson));
}
