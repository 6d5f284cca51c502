//! Sends that travel together: small batches that leave for one broker at about the same time share a request (30001).
//!
//! That request is our own. A broker is sent it only on the connection on which it said that it takes it ([`Offers`](crate::offers::Offers)); RocketMQ's never say so.
//!
//! At each address a producer has a *hall*: what leaves is written into the hall's open load, and a *carrier*, a task, takes the load as it is
//! then, sends it, and brings the answers. What comes meanwhile gathers in the next load, until the answers come or until they are late
//! ([`HOLD`]). So loads grow with the traffic, as batches do, and with little traffic each send is a load of its own, at once.
//!
//! What holds: where a hall has a load with something in it, a carrier is counted that will come for it.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Response};
use parking_lot::Mutex;
use protocol::code::{ResponseCode, request};
use protocol::message_id::offset_message_ids;
use protocol::request::SendTogether;
use protocol::together::{self, Part};
use tokio::sync::oneshot;

use crate::error::ClientError;
use crate::producer::Producer;
use crate::producer::prepared::Prepared;

/// A send with more bytes travels alone: what a request of its own costs is little then.
const JOIN_BYTES_MAX: usize = 16 << 10;

/// A load with so many bytes waits for nobody.
const LOAD_BYTES_MAX: usize = 256 << 10;

/// Loads of a hall that are on their way while others gather behind them. With one, all that comes in the time of an answer shares the next
/// request.
const CARRIERS_MAX: usize = 1;

/// A load that has been on its way for so long holds nobody back.
const HOLD: Duration = Duration::from_micros(2_500);

/// Halls that a producer keeps, before those that nobody is in are given up.
const HALLS_KEPT: usize = 64;

/// To be called when a send lies on its connection.
pub(crate) type Left = Box<dyn FnOnce() + Send>;

/// What became of a send that was to travel with others.
pub(crate) enum Arrival {
    /// As if it had been sent alone.
    Answered(Result<Answer, ClientError>),
    /// It has not been sent: the broker does not take them together, or not any more.
    NotSent(Option<Left>),
}

/// The answer to one send.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) remark: Option<String>,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) offset_message_id: String,
}

/// The halls of a producer.
#[derive(Default)]
pub(crate) struct Halls {
    /// Guards the halls by address; held for a look or a change.
    by_address: Mutex<HashMap<Arc<str>, Arc<Hall>>>,
}

impl Halls {
    fn at(&self, address: &str) -> Arc<Hall> {
        let mut halls = self.by_address.lock();
        if let Some(known) = halls.get(address) {
            return Arc::clone(known);
        }
        if halls.len() >= HALLS_KEPT {
            // Whoever is in one, or about to enter, has it.
            halls.retain(|_, hall| Arc::strong_count(hall) > 1);
        }
        let address: Arc<str> = address.into();
        let hall = Arc::new(Hall { address: Arc::clone(&address), state: Mutex::default() });
        halls.insert(address, Arc::clone(&hall));
        hall
    }
}

struct Hall {
    address: Arc<str>,
    /// Guards what waits here; held while a send is written into the open load.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Loads that can take no more, oldest first. Older than the open one.
    full: VecDeque<Load>,
    open: Load,
    /// Those who will come for a load. One whose load is late is not counted.
    carriers: usize,
}

/// Sends that leave together.
#[derive(Default)]
struct Load {
    body: Vec<u8>,
    passengers: Vec<Passenger>,
}

/// Who waits for the answer to a send.
struct Passenger {
    left: Option<Left>,
    tell: oneshot::Sender<Arrival>,
}

impl Passenger {
    fn tell(self, arrival: Arrival) {
        // Nobody may wait any more.
        drop(self.tell.send(arrival));
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.open.passengers.is_empty()
    }

    /// Lays a send into the open load. True: somebody has to be made who comes for it, and is counted already.
    fn add(
        &mut self,
        prepared: &Prepared,
        queue_id: i32,
        parts_max: usize,
        passenger: Passenger,
    ) -> Result<bool, Passenger> {
        let Prepared { topic, properties, body, .. } = prepared;
        let bytes = together::part_bytes(topic, properties, body.len());
        let count = self.open.passengers.len();
        if count > 0 && (count >= parts_max || self.open.body.len() + bytes > LOAD_BYTES_MAX) {
            self.full.push_back(std::mem::take(&mut self.open));
        }
        let part = Part {
            queue_id,
            sys_flag: prepared.sys_flag,
            flag: prepared.flag,
            is_batch: prepared.is_batch,
            topic,
            properties,
            body: 0..0,
        };
        if together::put_part(&mut self.open.body, &part, body).is_err() {
            return Err(passenger);
        }
        self.open.passengers.push(passenger);
        // A load that is full waits for nobody.
        let is_needed = self.carriers < CARRIERS_MAX + self.full.len();
        self.carriers += usize::from(is_needed);
        Ok(is_needed)
    }

    /// The load that leaves next.
    fn next(&mut self) -> Option<Load> {
        self.full.pop_front().or_else(|| {
            let is_empty = self.open.passengers.is_empty();
            (!is_empty).then(|| std::mem::take(&mut self.open))
        })
    }
}

impl Producer {
    /// Lets a send travel with others to the broker at this address, if it takes that, and waits for its answer.
    pub(crate) async fn join(&self, address: &str, prepared: &Prepared, queue_id: i32, left: Option<Left>) -> Arrival {
        let is_small = prepared.body.len() + prepared.properties.len() <= JOIN_BYTES_MAX;
        let offer = if prepared.joins && is_small { self.inner.member.offers.at(address) } else { None };
        let Some(offer) = offer else { return Arrival::NotSent(left) };
        let hall = self.inner.halls.at(address);
        let (tell, told) = oneshot::channel();
        let added = hall.state.lock().add(prepared, queue_id, offer.parts_max, Passenger { left, tell });
        match added {
            Err(Passenger { left, .. }) => return Arrival::NotSent(left),
            Ok(true) => drop(tokio::spawn(Carrier { producer: self.clone(), hall, is_counted: true }.run())),
            Ok(false) => {}
        }
        // The carrier was cut off.
        told.await.unwrap_or(Arrival::Answered(Err(ClientError::GivenUp)))
    }
}

/// Takes loads out of a hall, one after the other, and brings their answers. Cut off, by the end of the runtime or a bug, it gives up what
/// waits, if nobody else would come for it.
struct Carrier {
    producer: Producer,
    hall: Arc<Hall>,
    is_counted: bool,
}

impl Carrier {
    async fn run(mut self) {
        // Ends when nothing waits, or when a load is late.
        while self.is_counted {
            // Whoever is ready now comes along.
            tokio::task::yield_now().await;
            let load = {
                let mut state = self.hall.state.lock();
                let load = state.next();
                if load.is_none() {
                    state.carriers -= 1;
                    self.is_counted = false;
                }
                load
            };
            let Some(load) = load else { return };
            self.carry(load).await;
        }
    }

    async fn carry(&mut self, Load { body, mut passengers }: Load) {
        let (hall, producer) = (Arc::clone(&self.hall), self.producer.clone());
        let (member, config, address) = (&producer.inner.member, &producer.inner.config, &*hall.address);
        let Some(offer) = member.offers.at(address) else {
            return turn_back(passengers);
        };
        let fields = SendTogether {
            producer_group: &config.group,
            default_topic: protocol::names::AUTO_CREATE_TOPIC,
            default_topic_queue_nums: config.new_topic_queues,
            born_timestamp: member.config.clock.now().0,
            // As many as a broker says that it takes, which is an i32.
            parts: passengers.len() as i32,
            broker_name: None,
        };
        let body = Bytes::from(body);
        let code = request::SEND_TOGETHER;
        let call = match member.begin_on(address, offer.connection, code, &fields, &body, config.timeout) {
            Some(Ok(call)) => call,
            Some(Err(error)) => return fail(passengers, &error.into()),
            None => {
                // It says it again on the connection that there will be.
                member.doubt_offer(address);
                return turn_back(passengers);
            }
        };
        passengers.iter_mut().filter_map(|one| one.left.take()).for_each(|left| left());
        let mut response = pin!(call.response());
        let response = tokio::select! {
            biased;
            response = &mut response => response,
            () = tokio::time::sleep(HOLD) => {
                self.step_aside();
                response.await
            }
        };
        self.arrived(passengers, response);
    }

    /// Its load is late: another one comes for those that wait, and for those to come.
    fn step_aside(&mut self) {
        let mut state = self.hall.state.lock();
        self.is_counted = false;
        if state.is_empty() {
            state.carriers -= 1;
            return;
        }
        drop(state);
        let next = Carrier { producer: self.producer.clone(), hall: Arc::clone(&self.hall), is_counted: true };
        tokio::spawn(next.run());
    }

    /// Tells everybody.
    fn arrived(&self, passengers: Vec<Passenger>, response: Result<Response, CallError>) {
        let address = &*self.hall.address;
        let response = match response {
            Err(error) => return fail(passengers, &error.into()),
            Ok(response) if response.code == ResponseCode::RequestCodeNotSupported as i32 => {
                // Nothing is stored. It should not have been asked, on this connection; it is not again.
                self.producer.inner.member.offers.note(address, None);
                return turn_back(passengers);
            }
            Ok(response) if response.code != ResponseCode::Success as i32 => {
                return fail(passengers, &ClientError::refused(address, response));
            }
            Ok(response) => response,
        };
        let mut passengers: Vec<Option<Passenger>> = passengers.into_iter().map(Some).collect();
        let error = tell_each(&mut passengers, &response.body).err();
        // Whoever is left was not answered.
        let error = error.unwrap_or_else(|| ClientError::malformed(WHAT, "it does not answer each of the sends"));
        fail(passengers.into_iter().flatten().collect(), &error);
    }
}

/// What cannot be read.
const WHAT: &str = "the answer to sends that travel together";

fn tell_each(passengers: &mut [Option<Passenger>], body: &[u8]) -> Result<(), ClientError> {
    let malformed = |error| ClientError::malformed(WHAT, error);
    let (host, answers) = together::answers(body).map_err(malformed)?;
    for answer in answers {
        let answer = answer.map_err(malformed)?;
        let Some(passenger) = passengers.get_mut(answer.number).and_then(Option::take) else {
            return Err(ClientError::malformed(
                WHAT,
                format!("it answers send {} twice, or never asked", answer.number),
            ));
        };
        let mut offset_message_id = String::new();
        offset_message_ids(&mut offset_message_id, host, answer.places());
        passenger.tell(Arrival::Answered(Ok(Answer {
            code: answer.code,
            remark: answer.remark.map(str::to_owned),
            queue_id: answer.queue_id,
            queue_offset: answer.queue_offset,
            offset_message_id,
        })));
    }
    Ok(())
}

/// Tells everybody that nothing was stored, and to travel alone.
fn turn_back(passengers: Vec<Passenger>) {
    for mut one in passengers {
        let left = one.left.take();
        one.tell(Arrival::NotSent(left));
    }
}

fn fail(passengers: Vec<Passenger>, error: &ClientError) {
    passengers.into_iter().for_each(|one| one.tell(Arrival::Answered(Err(error.clone()))));
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if !std::mem::take(&mut self.is_counted) {
            return;
        }
        let left_behind = {
            let mut state = self.hall.state.lock();
            state.carriers -= 1;
            if state.carriers > 0 {
                None
            } else {
                Some((std::mem::take(&mut state.full), std::mem::take(&mut state.open)))
            }
        };
        // Outside the lock: whoever is told so may do anything.
        drop(left_behind);
    }
}
