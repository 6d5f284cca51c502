//! A producer: sends one message after the other, each until it is answered or given up.

use protocol::body::{Heartbeat, ProducerData};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{Dialect, to_vec};
use protocol::properties::{PropertiesWriter, name};
use protocol::request::SendMessage;

use super::line::{Event, Line};
use super::{Around, HEARTBEAT_MS, QUEUES, TOPIC};
use crate::log_run::body;
use crate::verdict::Verdict;

/// Tries of one message, after which its producer gives it up.
const TRIES_MAX: u32 = 12;
/// Answers that say no, of a message that is stored.
const IS_STORED: [i32; 3] = [
    ResponseCode::FlushDiskTimeout as i32,
    ResponseCode::SlaveNotAvailable as i32,
    ResponseCode::FlushSlaveTimeout as i32,
];

enum Asked {
    Heartbeat,
    Send,
}

/// A message on its way.
struct Draft {
    id: u64,
    queue: i32,
    bytes: usize,
    tries: u32,
}

/// See the module.
pub struct Producer {
    pub name: String,
    number: u16,
    line: Line<Asked>,
    draft: Option<Draft>,
    next_at: i64,
    heartbeat_at: i64,
    /// Sends no new ones.
    pub rests: bool,
}

impl Producer {
    pub fn new(number: u16) -> Producer {
        let (line, name) = (Line::new(number), format!("10.0.1.{number}@1"));
        Producer { name, number, line, draft: None, next_at: 0, heartbeat_at: 0, rests: false }
    }

    /// The connection it has.
    pub fn link(&self) -> Option<crate::network::Link> {
        self.line.link()
    }

    /// Whether nothing is open.
    pub fn is_idle(&self) -> bool {
        self.draft.is_none()
    }

    pub fn step(&mut self, around: &mut Around<'_>) {
        for event in self.line.step(around) {
            match event {
                Event::Connected => self.heartbeat_at = around.now + i64::from(around.dice.below(1_000)),
                Event::Told(_) | Event::Lost(Asked::Heartbeat) => {}
                Event::Answered(Asked::Heartbeat, answer) => {
                    if answer.code != 0 {
                        around.refused(format!("a heartbeat of {}: {} {}", self.name, answer.code, answer.remark));
                    }
                }
                Event::Answered(Asked::Send, answer) => {
                    let Some(draft) = &self.draft else { continue };
                    if answer.code == ResponseCode::Success as i32 {
                        let (id, at) = (draft.id, answer.number("queueOffset"));
                        around.report.tell(|| format!("message {id} is stored as {TOPIC}/{} at {at}", draft.queue));
                        around.history.stored(id, around.end);
                        (self.draft, self.next_at) = (None, around.now + around.rules.send_every(around.dice));
                    } else {
                        let (id, queue) = (draft.id, draft.queue);
                        around.report.tell(|| format!("message {id} to {queue}: {} {}", answer.code, answer.remark));
                        if draft.tries >= TRIES_MAX {
                            let what = format!("message {id}: {} {}", answer.code, answer.remark);
                            around.report.find(Verdict::Refused, what);
                        }
                        if IS_STORED.contains(&answer.code) {
                            around.history.may_be_stored(id);
                        }
                        self.next_at = around.now + 200;
                    }
                }
                Event::Lost(Asked::Send) => {
                    let Some(draft) = &self.draft else { continue };
                    let id = draft.id;
                    around.report.tell(|| format!("message {id} is not answered"));
                    around.history.may_be_stored(id);
                    if draft.tries >= TRIES_MAX {
                        around.history.given_up(id);
                        self.draft = None;
                    }
                    self.next_at = around.now + 50;
                }
            }
        }
        if self.line.is_waiting() || self.line.link().is_none() {
            return;
        }
        if around.now >= self.heartbeat_at {
            self.heartbeat_at = around.now + HEARTBEAT_MS;
            let producer_data_set = vec![ProducerData { group_name: "shops".to_owned() }];
            let said = Heartbeat { client_id: self.name.clone(), producer_data_set, ..Heartbeat::default() };
            let body = to_vec(&said, Dialect::FastJson);
            let _ = self.line.ask(around, request::HEART_BEAT, &(), &body, Asked::Heartbeat);
        } else if around.now >= self.next_at {
            self.send(around);
        }
    }

    fn send(&mut self, around: &mut Around<'_>) {
        if self.draft.is_none() {
            if self.rests {
                return;
            }
            let queue = around.dice.below(QUEUES) as i32;
            self.begin(around, queue);
        }
        let Some(draft) = &mut self.draft else { return };
        draft.tries += 1;
        let mut properties = PropertiesWriter::new();
        properties.put(name::UNIQ_KEY, &format!("id-{}", draft.id));
        let fields = SendMessage {
            producer_group: "shops",
            topic: TOPIC,
            default_topic: "TBW102",
            default_topic_queue_nums: QUEUES as i32,
            queue_id: draft.queue,
            born_timestamp: around.now,
            properties: Some(properties.as_str()),
            ..SendMessage::default()
        };
        let (id, queue, tries) = (draft.id, draft.queue, draft.tries);
        let (at, name) = (around.now, &self.name);
        around.report.tell(|| format!("at {at} {name} sends {id} to {TOPIC}/{queue}, try {tries}"));
        let body = body(draft.id, draft.bytes);
        let _ = self.line.ask(around, request::SEND_MESSAGE_V2, &fields, &body, Asked::Send);
    }

    /// Takes up a new message.
    pub fn begin(&mut self, around: &mut Around<'_>, queue: i32) -> u64 {
        let picks = [8, 60, 400, 1_500, 5_000];
        let bytes = picks[around.dice.below(picks.len() as u32) as usize];
        let id = around.history.begin(self.number, queue, bytes);
        around.report.messages += 1;
        self.draft = Some(Draft { id, queue, bytes, tries: 0 });
        id
    }

    /// Takes up one that was begun before others.
    #[cfg(test)]
    pub fn take_up(&mut self, id: u64, queue: i32, bytes: usize) {
        self.draft = Some(Draft { id, queue, bytes, tries: 0 });
    }
}
