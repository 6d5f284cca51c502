//! What became of a message that was handed over.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::error::ClientError;
use crate::producer::sent::{SendResult, SendStatus};

/// A message that was handed over. It is sent whether or not somebody awaits this; awaited, it says where the message is.
#[derive(Debug)]
#[must_use = "only this says whether the message is stored"]
pub struct Pending {
    results: Arc<Results>,
    /// The message's place in its batch.
    place: usize,
}

impl Pending {
    pub(crate) fn new(results: Arc<Results>, place: usize) -> Pending {
        Pending { results, place }
    }

    /// Waits for the answer, and says only how safe the message is: cheaper than to await its place and ids.
    pub async fn status(self) -> Result<SendStatus, ClientError> {
        std::future::poll_fn(|context| self.results.poll(self.place, context).map(Answer::status)).await
    }
}

impl Future for Pending {
    type Output = Result<SendResult, ClientError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.results.poll(self.place, context).map(|answer| answer.of(self.place))
    }
}

/// What all who wait for a batch look at.
#[derive(Debug, Default)]
pub(crate) struct Results {
    answer: OnceLock<Answer>,
    /// Guards who waits, by place in the batch.
    waiting: Mutex<Vec<Option<Waker>>>,
}

impl Results {
    /// Takes note of the answer, and wakes who waits for it. The first one counts.
    pub(crate) fn settle(&self, answer: Result<Stored, ClientError>) {
        if self.answer.set(Answer(answer)).is_err() {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    fn poll(&self, place: usize, context: &mut Context<'_>) -> Poll<&Answer> {
        if let Some(answer) = self.answer.get() {
            return Poll::Ready(answer);
        }
        let mut waiting = self.waiting.lock();
        // `settle` may have run between the look and the lock; look again under it.
        if let Some(answer) = self.answer.get() {
            return Poll::Ready(answer);
        }
        if waiting.len() <= place {
            waiting.resize_with(place + 1, || None);
        }
        match &mut waiting[place] {
            Some(waker) => waker.clone_from(context.waker()),
            free @ None => *free = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[derive(Debug)]
struct Answer(Result<Stored, ClientError>);

impl Answer {
    fn status(&self) -> Result<SendStatus, ClientError> {
        match &self.0 {
            Ok(stored) => Ok(stored.whole.status),
            Err(error) => Err(error.clone()),
        }
    }

    fn of(&self, place: usize) -> Result<SendResult, ClientError> {
        match &self.0 {
            Ok(stored) => Ok(stored.of(place)),
            Err(error) => Err(error.clone()),
        }
    }
}

/// A batch that is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    /// As it was answered.
    whole: SendResult,
    ids: Ids,
    records: Records,
}

/// What a batch has become.
#[derive(Clone, Copy, Debug)]
enum Records {
    /// One record, as in a BatchCQ topic, or a message that was alone.
    One,
    /// A record a message; all ids have so many characters.
    Each { id_chars: usize },
    /// A record a message; ids are of different lengths.
    EachOther,
}

impl Stored {
    fn of(&self, place: usize) -> SendResult {
        let SendResult { status, offset_message_id, queue, broker_name, queue_offset, .. } = &self.whole;
        let offset_message_id = match self.records {
            Records::One => offset_message_id,
            Records::Each { id_chars } => {
                let begin = place * (id_chars + 1);
                offset_message_id.get(begin..begin + id_chars).unwrap_or_default()
            }
            Records::EachOther => offset_message_id.split(ID_SEPARATOR).nth(place).unwrap_or_default(),
        };
        SendResult {
            status: *status,
            message_id: self.ids.get(place).to_owned(),
            offset_message_id: offset_message_id.to_owned(),
            queue: queue.clone(),
            broker_name: broker_name.clone(),
            // -1 stands for one that is not known.
            queue_offset: if *queue_offset < 0 { *queue_offset } else { queue_offset.saturating_add(place as i64) },
        }
    }
}

/// Between the ids of a batch's messages.
const ID_SEPARATOR: char = ',';

/// The ids of a batch's messages, in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    text: String,
    ends: Vec<usize>,
}

impl Ids {
    /// Adds one, and says which it is.
    pub(crate) fn push(&mut self, id: &str) -> usize {
        self.text.push_str(id);
        self.ends.push(self.text.len());
        self.ends.len() - 1
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, place: usize) -> &str {
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin..self.ends[place]]
    }

    /// What the answer to the batch says about its messages. As in Java's client: one id for all of them stands for one record.
    pub(crate) fn answer(self, whole: SendResult) -> Result<Stored, ClientError> {
        let mut parts = whole.offset_message_id.split(ID_SEPARATOR).map(str::len);
        let id_chars = parts.next().unwrap_or_default();
        let (mut count, mut is_even) = (1, true);
        for chars in parts {
            count += 1;
            is_even &= chars == id_chars;
        }
        let records = match (count, is_even) {
            (1, _) => Records::One,
            (count, _) if count != self.len() => {
                let cause = format!("it has {count} ids for a batch of {} messages", self.len());
                return Err(ClientError::malformed("the answer to a batch", cause));
            }
            (_, true) => Records::Each { id_chars },
            (_, false) => Records::EachOther,
        };
        Ok(Stored { whole, ids: self, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::MessageQueue;

    fn whole(offset_message_id: &str, queue_offset: i64) -> SendResult {
        SendResult {
            status: SendStatus::Ok,
            message_id: String::new(),
            offset_message_id: offset_message_id.to_owned(),
            queue: MessageQueue { broker_name: "b".into(), queue_id: 2, topic: "t".into() },
            broker_name: "b".to_owned(),
            queue_offset,
        }
    }

    fn split(ids: &[&str], whole: SendResult) -> Vec<(String, String, i64)> {
        let mut all = Ids::default();
        for id in ids {
            all.push(id);
        }
        let stored = all.answer(whole).unwrap();
        let parts = (0..ids.len()).map(|place| stored.of(place));
        parts.map(|sent| (sent.message_id, sent.offset_message_id, sent.queue_offset)).collect()
    }

    #[test]
    fn each_message_gets_its_own_id_place_and_offset() {
        let expected =
            |parts: [(&str, &str, i64); 3]| parts.map(|(a, b, at)| (a.to_owned(), b.to_owned(), at)).to_vec();
        let parts = split(&["A", "BB", "C"], whole("X1,X2,X3", 7));
        assert_eq!(parts, expected([("A", "X1", 7), ("BB", "X2", 8), ("C", "X3", 9)]));
        // Of different lengths, as from a host with two addresses.
        let parts = split(&["A", "B", "C"], whole("X,YYYY,ZZ", 7));
        assert_eq!(parts, expected([("A", "X", 7), ("B", "YYYY", 8), ("C", "ZZ", 9)]));
        // One record, in a BatchCQ topic.
        let parts = split(&["A", "B", "C"], whole("X1", 0));
        assert_eq!(parts, expected([("A", "X1", 0), ("B", "X1", 1), ("C", "X1", 2)]));
        // A queue of a static topic that moves.
        let parts = split(&["A", "B", "C"], whole("X1,X2,X3", -1));
        assert_eq!(parts, expected([("A", "X1", -1), ("B", "X2", -1), ("C", "X3", -1)]));
    }

    #[test]
    fn an_answer_with_another_number_of_ids_is_not_read() {
        let mut ids = Ids::default();
        for id in ["A", "B", "C"] {
            ids.push(id);
        }
        let error = ids.answer(whole("X1,X2", 7)).unwrap_err().to_string();
        assert!(error.contains("2 ids for a batch of 3 messages"), "{error}");
    }

    #[tokio::test]
    async fn who_waits_is_woken_once_the_first_answer_is_there_and_it_stays() {
        let results = Arc::new(Results::default());
        let waiting = [0, 1].map(|place| tokio::spawn(Pending::new(Arc::clone(&results), place)));
        tokio::task::yield_now().await;
        let mut ids = Ids::default();
        for id in ["A", "B"] {
            ids.push(id);
        }
        results.settle(ids.answer(whole("X1,X2", 7)));
        results.settle(Err(ClientError::GivenUp));
        for (place, waiting) in waiting.into_iter().enumerate() {
            assert_eq!(waiting.await.unwrap().unwrap().queue_offset, 7 + place as i64);
        }
        assert_eq!(Pending::new(results, 1).status().await.unwrap(), SendStatus::Ok);
    }
}
