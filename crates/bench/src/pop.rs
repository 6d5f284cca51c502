//! Popping: the broker gives out messages, and is told which are done with.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use client::admin::Response;
use client::{Client, ClientError, Route};
use protocol::body::{BatchAck, BatchAckBody, MASTER_ID};
use protocol::code::{ResponseCode, request};
use protocol::names::is_retry_topic;
use protocol::record::{Scanned, scan};
use protocol::request::{PopMessage, PopReply};
use tokio::task::JoinSet;

use crate::driver::Driver;
use crate::produce::reason;
use crate::reader::Reader;

/// After a pop that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Beyond the time that the broker may hold a pop: the way there and back.
const WAY: Duration = Duration::from_secs(15);

/// All queues of the topic.
const ANY_QUEUE: i32 = -1;

/// A new group begins at the first message.
const FROM_FIRST: i32 = 0;

/// Starts the tasks of one consumer, spread over the brokers.
pub fn spawn(tasks: &mut JoinSet<()>, reader: &Reader, client: &Client, driver: &Driver, group: &str, route: &Route) {
    let Some(topic) = route.readable.first().map(|queue| queue.topic.clone()) else { return };
    let masters = route.addresses.iter().filter_map(|(name, addresses)| Some((name, addresses.get(&MASTER_ID)?)));
    let mut masters: Vec<(&String, &String)> = masters.collect();
    masters.sort();
    let count = driver.consume_threads.max(masters.len());
    for (broker_name, address) in masters.into_iter().cycle().take(count) {
        let popper = Popper {
            reader: reader.clone(),
            client: client.clone(),
            topic: topic.clone(),
            group: group.to_owned(),
            broker_name: broker_name.clone(),
            address: address.clone(),
            max: driver.pull_batch,
            invisible_ms: driver.pop_invisible_millis,
            wait: Duration::from_millis(driver.pull_wait_millis),
        };
        tasks.spawn(popper.work());
    }
}

struct Popper {
    reader: Reader,
    client: Client,
    topic: String,
    group: String,
    broker_name: String,
    address: String,
    max: i32,
    invisible_ms: i64,
    wait: Duration,
}

impl Popper {
    async fn work(self) {
        self.reader.scene.gate().await;
        loop {
            let failure = match self.pop().await {
                Ok(Some(response)) => match self.take(&response).await {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                Ok(None) => continue,
                Err(error) => reason(&error),
            };
            self.reader.scene.consumed.failed(self.reader.who, 1, &failure);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Nothing if there was nothing.
    async fn pop(&self) -> Result<Option<Response>, ClientError> {
        let fields = PopMessage {
            consumer_group: &self.group,
            topic: &self.topic,
            queue_id: ANY_QUEUE,
            max_msg_nums: self.max,
            invisible_time: self.invisible_ms,
            poll_time: i64::try_from(self.wait.as_millis()).unwrap_or(i64::MAX),
            born_time: env::Clock::real().now().0,
            init_mode: FROM_FIRST,
            exp_type: Some("TAG"),
            exp: Some("*"),
            order: false,
            attempt_id: None,
        };
        let admin = self.client.admin().within(self.wait + WAY);
        match admin.tell(&self.address, request::POP_MESSAGE, &fields).await {
            Ok(response) => Ok(Some(response)),
            Err(error) if error.code() == Some(ResponseCode::PollingTimeout as i32) => Ok(None),
            Err(error) if error.code() == Some(ResponseCode::PullNotFound as i32) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Counts the messages, and says that they are done with.
    async fn take(&self, response: &Response) -> Result<(), String> {
        let fields = response.fields.as_fields();
        let reply = PopReply::decode(&fields).map_err(|error| format!("cannot read the answer to a pop: {error}"))?;
        let acks = self.acks(&response.body, &reply)?;
        self.reader.take_records(&response.body, i64::MIN, None)?;
        if acks.is_empty() {
            return Ok(());
        }
        let body = BatchAckBody { acks, broker_name: self.broker_name.clone() };
        let told = self.client.admin().tell_json(&self.address, request::BATCH_ACK_MESSAGE, &(), &body).await;
        told.map(|_| ()).map_err(|error| format!("acknowledgement: {}", reason(&error)))
    }

    /// An acknowledgement for each queue that messages came from.
    fn acks(&self, records: &[u8], reply: &PopReply<'_>) -> Result<Vec<BatchAck>, String> {
        let starts = starts(reply.start_offset_info.unwrap_or_default());
        let mut acks: BTreeMap<(String, i32), BatchAck> = BTreeMap::new();
        let mut rest = records;
        // Each turn takes at least a record's length off.
        while !rest.is_empty() {
            let Ok(Scanned::Record(view)) = scan(rest, false) else {
                return Err("popped records cannot be read".to_owned());
            };
            rest = &rest[view.total_size()..];
            let (mark, queue_id) = (mark(view.topic()), view.queue_id());
            let Some(start) = starts.get(&(mark.to_owned(), queue_id)) else {
                return Err("the answer to a pop does not say where its queues begin".to_owned());
            };
            let Some(distance) = usize::try_from(view.queue_offset() as i64 - start).ok().filter(|bit| *bit < 1 << 20)
            else {
                return Err("a popped message lies outside of its pop".to_owned());
            };
            let ack = acks.entry((mark.to_owned(), queue_id)).or_insert_with(|| BatchAck {
                bit_set: Vec::new(),
                consumer_group: self.group.clone(),
                invisible_time: reply.invisible_time,
                pop_time: reply.pop_time,
                queue_id,
                retry: mark.to_owned(),
                revive_queue_id: reply.revive_qid,
                start_offset: *start,
                topic: self.topic.clone(),
            });
            if ack.bit_set.len() <= distance / 8 {
                ack.bit_set.resize(distance / 8 + 1, 0);
            }
            ack.bit_set[distance / 8] |= 1 << (distance % 8);
        }
        Ok(acks.into_values().collect())
    }
}

/// How a pop's answer and its acknowledgement call a topic: itself, or its retry topic of either form.
fn mark(topic: &str) -> &'static str {
    match (is_retry_topic(topic), topic.contains('+')) {
        (false, _) => "0",
        (true, false) => "1",
        (true, true) => "2",
    }
}

/// Reads `mark queue start;…`.
fn starts(text: &str) -> HashMap<(String, i32), i64> {
    let one = |part: &str| {
        let mut words = part.split(' ');
        let (mark, queue, start) = (words.next()?, words.next()?, words.next()?);
        Some(((mark.to_owned(), queue.parse().ok()?), start.parse().ok()?))
    };
    text.split(';').filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_queues_begin_is_read_by_kind_of_topic_and_queue() {
        let starts = starts("0 3 17;1 0 5;2 0 6;broken");
        assert_eq!(starts.len(), 3);
        assert_eq!(starts.get(&("0".to_owned(), 3)), Some(&17));
        assert_eq!((mark("t"), mark("%RETRY%g_t"), mark("%RETRY%g+t")), ("0", "1", "2"));
    }
}
