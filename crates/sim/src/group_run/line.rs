//! A client's connection: it is opened when there is none, requests go out by it, and each of them has an answer or is lost.

use std::collections::BTreeMap;

use bytes::BytesMut;
use protocol::header::{EncodeFields, FLAG_ONEWAY, Head};

use super::Around;
use crate::network::Link;
use crate::served::{Answer, read_frames, write_request};

/// Requests that were not answered in a row, after which a client takes its connection for dead.
const UNANSWERED_MAX: u32 = 3;

/// What a client's connection brought. `A` is what it asked.
pub enum Event<A> {
    /// There is a new one.
    Connected,
    /// The answer to a request.
    Answered(A, Answer),
    /// A request that will not be answered; the broker may have done it, or may do it yet.
    Lost(A),
    /// The broker says something of its own accord: its code, and the fields.
    Told(Answer),
}

/// See the module.
pub struct Line<A> {
    /// By which the broker's end is known.
    number: u16,
    link: Option<Link>,
    connect_at: i64,
    came: Vec<u8>,
    opaque: i32,
    /// Until when each of them waits.
    waiting: BTreeMap<i32, (i64, A)>,
    unanswered: u32,
}

impl<A> Line<A> {
    pub fn new(number: u16) -> Line<A> {
        let (came, waiting) = (Vec::new(), BTreeMap::new());
        Line { number, link: None, connect_at: 0, came, opaque: 0, waiting, unanswered: 0 }
    }

    /// By which connection it goes now.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// Takes what has come, and connects if there is no connection.
    pub fn step(&mut self, around: &mut Around<'_>) -> Vec<Event<A>> {
        let mut events = Vec::new();
        let Some(link) = self.link else {
            if around.now >= self.connect_at {
                self.connect_at = around.now + 100 + i64::from(around.dice.below(400));
                self.link = around.connect(self.number);
                if self.link.is_some() {
                    self.unanswered = 0;
                    events.push(Event::Connected);
                }
            }
            return events;
        };
        let received = around.network.receive(link);
        self.came.extend_from_slice(&received.bytes);
        let mut answers = Vec::new();
        let read = read_frames(&self.came, |came| answers.push(came));
        let is_broken = read.is_err();
        self.came.drain(..read.unwrap_or(self.came.len()));
        for came in answers {
            if !came.is_answer {
                events.push(Event::Told(came.answer));
            } else if let Some((_, asked)) = self.waiting.remove(&came.opaque) {
                self.unanswered = 0;
                events.push(Event::Answered(asked, came.answer));
            }
        }
        let late: Vec<i32> = self.waiting.iter().filter(|(_, (at, _))| *at <= around.now).map(|(it, _)| *it).collect();
        for opaque in late {
            self.unanswered += 1;
            events.extend(self.waiting.remove(&opaque).map(|(_, asked)| Event::Lost(asked)));
        }
        if received.is_over || is_broken || self.unanswered >= UNANSWERED_MAX {
            events.extend(self.drop_link(around).into_iter().map(Event::Lost));
        }
        events
    }

    /// Lets go of the connection. What is not answered yet never will be.
    fn drop_link(&mut self, around: &mut Around<'_>) -> Vec<A> {
        if let Some(link) = self.link.take() {
            around.network.forget(link);
        }
        self.came.clear();
        self.connect_at = around.now + i64::from(around.dice.below(400));
        std::mem::take(&mut self.waiting).into_values().map(|(_, asked)| asked).collect()
    }

    /// Sends a request, whose answer may take as long as the rules say. Gives `asked` back if there is no connection.
    pub fn ask(
        &mut self,
        around: &mut Around<'_>,
        code: i32,
        fields: &dyn EncodeFields,
        body: &[u8],
        asked: A,
    ) -> Result<(), A> {
        let timeout_ms = around.rules.rpc_ms;
        self.ask_within(around, (code, timeout_ms), fields, body, asked)
    }

    /// The same, with how long the answer may take.
    pub fn ask_within(
        &mut self,
        around: &mut Around<'_>,
        (code, timeout_ms): (i32, i64),
        fields: &dyn EncodeFields,
        body: &[u8],
        asked: A,
    ) -> Result<(), A> {
        let Some(link) = self.link else { return Err(asked) };
        self.opaque += 1;
        let mut out = BytesMut::new();
        write_request(&mut out, &Head { code, opaque: self.opaque, ..Head::default() }, fields, body);
        around.network.send(link, out.to_vec());
        self.waiting.insert(self.opaque, (around.now + timeout_ms, asked));
        Ok(())
    }

    /// Sends a request that nobody answers. False: there is no connection.
    pub fn tell(&mut self, around: &mut Around<'_>, code: i32, fields: &dyn EncodeFields) -> bool {
        let Some(link) = self.link else { return false };
        self.opaque += 1;
        let mut out = BytesMut::new();
        write_request(&mut out, &Head { code, opaque: self.opaque, flag: FLAG_ONEWAY, ..Head::default() }, fields, &[]);
        around.network.send(link, out.to_vec());
        true
    }

    /// Whether something is not answered yet.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Ends the connection in order.
    pub fn close(&mut self, around: &mut Around<'_>) {
        if let Some(link) = self.link.take() {
            around.network.close(link);
        }
    }
}
