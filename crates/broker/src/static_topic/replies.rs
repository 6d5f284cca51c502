//! Answers to requests that wait for the brokers that hold older queues of a static topic.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use net::{Outgoing, ReplyTo, Request};

use crate::broker::Broker;
use crate::inbox::Errand;
use crate::refusal::{Refusal, SOON};
use crate::session::Session;
use crate::static_topic::forward::Forward;

/// How long one request may wait for them, however many it has to ask; its client waits no longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A look at other brokers' queues. It ends by itself or is dropped.
pub(crate) type Asking<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;

/// Answers a request by a task that may wait for others. `answer` writes the reply.
///
/// Until the connection takes it the reply counts among those that its peer has not taken. Where
/// there are too many of them it is refused instead: such replies come however little the peer
/// takes.
pub(crate) fn answer_later(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    answer: impl Future<Output = Result<Outgoing, Refusal>> + Send + 'static,
) -> Result<(), Refusal> {
    let permit = broker.forward.may_wait()?;
    let (inbox, connection, reply_to) = (Arc::clone(&session.inbox), session.connection.clone(), request.reply_to());
    let debt = inbox.owe();
    tokio::spawn(async move {
        let frames = in_time(answer).await.unwrap_or_else(|refusal| refused(reply_to, &refusal)).take();
        match connection.lay_aside(frames.memory_bytes()) {
            Ok(aside) => inbox.push(Errand::then(move |_, _, out| {
                out.extend(frames);
                drop(aside);
            })),
            Err(error) => {
                let what = format_args!(
                    "[GANTRY]system busy, start flow control for a while: {error} (requestBytesMax), and this client has not taken what other brokers of \
                     static topics have answered before"
                );
                let instead = refused(reply_to, &Refusal::busy(what, SOON)).take();
                // What is as small as that, such as the answer to a commit, takes no more memory
                // than its refusal.
                inbox.push(Errand::Frames(if frames.bytes() <= instead.bytes() { frames } else { instead }));
            }
        }
        drop((debt, permit));
    });
    Ok(())
}

/// For a call in this process: waits for other brokers.
pub(crate) async fn wait_for<T>(
    forward: &Forward,
    answer: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let _permit = forward.may_wait()?;
    in_time(answer).await
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| {
        let seconds = ANSWER_TIMEOUT.as_secs();
        Err(Refusal::failed(format!("other brokers of the static topic did not answer within {seconds} s")))
    })
}

fn refused(reply_to: ReplyTo, refusal: &Refusal) -> Outgoing {
    let mut out = Outgoing::new();
    out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
    out
}
