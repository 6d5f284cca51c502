//! The master's side: a request that a slave has passed on is carried out as if its client had sent
//! it here.

use std::net::SocketAddr;

use bytes::Bytes;
use net::{ListenerTag, Outgoing, ReplyTo, Request};
use protocol::code::{RequestCode, ResponseCode};
use protocol::frame;
use protocol::header::{self, HeaderScratch};
use protocol::request::{AskForClient, NOT_MASTER};

use crate::broker::Broker;
use crate::master;
use crate::refusal::Refusal;
use crate::session::Session;

/// The request of a client, while it is carried out.
#[derive(Default)]
pub(crate) struct Inner {
    scratch: Option<HeaderScratch>,
    head: Bytes,
    body: Bytes,
}

impl Inner {
    /// Takes the client's request out of one that came from a slave. What is answered to it answers
    /// the slave's.
    pub(crate) fn open<'a>(
        &'a mut self,
        broker: &Broker,
        session: &mut Session,
        asked: &Request<'_>,
    ) -> Result<(RequestCode, Request<'a>), Refusal> {
        if session.connection.listener() == ListenerTag::VIP {
            return Err(Refusal::not_registered(asked.header.code));
        }
        let client: SocketAddr = {
            let said = AskForClient::decode(&asked.header.fields)?.client;
            said.parse().map_err(|_| illegal(format!("client={said}: not an address and a port")))?
        };
        let unreadable = |why: &dyn std::fmt::Display| illegal(format!("the body is no request: {why}"));
        // That around it has been checked.
        let layout = frame::peek(asked.body, usize::MAX)
            .map_err(|error| unreadable(&error))?
            .filter(|layout| layout.frame_bytes == asked.body.len())
            .ok_or_else(|| unreadable(&"it is not one whole frame"))?;
        self.head = asked.body.slice(layout.header);
        self.body = if layout.body.is_empty() { Bytes::new() } else { asked.body.slice(layout.body) };
        let scratch = self.scratch.insert(HeaderScratch::new());
        let mut header =
            header::decode(&self.head, layout.serialization, scratch).map_err(|error| unreadable(&error))?;
        let code = RequestCode::from_i32(header.code).filter(|code| is_passed_on(*code));
        let code = code.ok_or_else(|| illegal(format!("request {} is not passed on by slaves", header.code)))?;
        if header.is_response() || header.is_oneway() != asked.header.is_oneway() {
            return Err(unreadable(&"its flag does not agree with that of the request around it"));
        }
        header.opaque = asked.header.opaque;
        // Who is not known to be of this set speaks for itself only.
        if master::is_member(broker, session.connection.peer().ip().to_canonical()) {
            session.stand_for(Some(client));
            if code == RequestCode::SEND_TOGETHER {
                // The slave has told its client that it may.
                session.parts_max = session.parts_max.max(broker.settings.load().send_together_parts_max);
            }
        }
        let request = Request {
            header,
            head: &self.head,
            serialization: layout.serialization,
            body: &self.body,
            came: asked.came,
        };
        Ok((code, request))
    }
}

/// Whether a slave asks its master for this.
pub(super) fn is_passed_on(code: RequestCode) -> bool {
    code.row().is_passed_on
}

fn illegal(remark: String) -> Refusal {
    Refusal::new(ResponseCode::InvalidParameter, remark)
}

/// The answer of a broker that is no master to one that takes it for the master.
pub(crate) fn refuse_asked(broker: &Broker, asked: ReplyTo, out: &mut Outgoing) {
    let master = broker.following.master();
    let remark = format!(
        "this broker is no master, and passes on nothing that another broker has passed on; its master: {}",
        master.as_deref().unwrap_or("not known")
    );
    if asked.is_oneway {
        let refusal = Refusal::new(ResponseCode::ServiceNotAvailable, remark);
        return broker.oneway_refusals.note(&refusal, broker.clock.now().0);
    }
    let fields = [(NOT_MASTER, "true")];
    out.reply(asked, ResponseCode::ServiceNotAvailable, Some(&remark), &fields, &[]);
}

#[cfg(test)]
mod tests {
    use protocol::code::{REQUESTS, ServedBy};

    use super::*;

    #[test]
    fn what_clients_ask_of_a_master_is_passed_on_and_what_operators_and_brokers_ask_is_not() {
        for code in [
            RequestCode::SEND_MESSAGE,
            RequestCode::SEND_MESSAGE_V2,
            RequestCode::SEND_BATCH_MESSAGE,
            RequestCode::SEND_TOGETHER,
            RequestCode::CONSUMER_SEND_MSG_BACK,
            RequestCode::END_TRANSACTION,
            RequestCode::LOCK_BATCH_MQ,
            RequestCode::UNLOCK_BATCH_MQ,
            RequestCode::SEND_REPLY_MESSAGE_V2,
            RequestCode::RECALL_MESSAGE,
            RequestCode::POP_MESSAGE,
            RequestCode::ACK_MESSAGE,
            RequestCode::BATCH_ACK_MESSAGE,
            RequestCode::CHANGE_MESSAGE_INVISIBLETIME,
        ] {
            assert!(is_passed_on(code), "{code:?}");
        }
        for code in [
            RequestCode::PULL_MESSAGE,
            RequestCode::HEART_BEAT,
            RequestCode::UPDATE_CONSUMER_OFFSET,
            RequestCode::UPDATE_AND_CREATE_TOPIC,
            RequestCode::DELETE_SUBSCRIPTIONGROUP,
            RequestCode::INVOKE_BROKER_TO_RESET_OFFSET,
            RequestCode::SET_MESSAGE_REQUEST_MODE,
            RequestCode::COPY_JOURNAL,
            RequestCode::ASK_FOR_CLIENT,
            RequestCode::TAKE_OVER_MASTER,
        ] {
            assert!(!is_passed_on(code), "{code:?}");
        }
        let passed = || REQUESTS.iter().filter(|row| row.is_passed_on);
        assert!(passed().all(|row| row.is_master_only && row.served_by == ServedBy::Broker));
    }
}
