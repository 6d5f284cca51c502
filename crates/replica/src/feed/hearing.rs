//! What a slave says, on either stream: its first byte tells which one it speaks. On that of Gantry it says first who it is.

use std::fmt;
use std::sync::Arc;

use protocol::LogOffset;

use super::{Closed, LogRange};
use crate::wire::own::{self, Greeting, Hello, Identity, Leaves, Member, Note};
use crate::wire::plain;
use crate::wire::secret::{Nonce, Role};

const PROVES_NOTHING: &str = "it proves nothing: set replicaSecret there as here";

/// Something that a slave has said.
pub(super) enum Heard {
    /// It has greeted, and this is the answer.
    Greeted(Vec<u8>),
    /// How far it has the log. On the plain stream nothing is said of its device.
    Has { written: LogOffset, flushed: Option<LogOffset> },
}

/// Hears one slave.
pub(super) enum Hearing {
    /// Nothing has come. None: only the plain stream is spoken.
    Nothing(Option<Greeter>),
    Plain(plain::Reports),
    Own(Box<Own>),
}

impl Hearing {
    /// The next of what is said in `bytes`, which are shortened by it. None: the rest is less than that, and is kept.
    pub fn next(&mut self, bytes: &mut &[u8], log: LogRange) -> Result<Option<Heard>, Closed> {
        if let Hearing::Nothing(greeter) = self {
            let Some(first) = bytes.first() else { return Ok(None) };
            *self = match greeter.take() {
                Some(greeter) if own::begins_hello(*first) => Hearing::Own(Box::new(Own::of(greeter))),
                Some(greeter) if greeter.member.secret.is_some() => return Err(Closed::Plain),
                Some(_) | None => Hearing::Plain(plain::Reports::default()),
            };
        }
        match self {
            Hearing::Nothing(_) => Ok(None),
            Hearing::Plain(reports) => Ok(reports.next(bytes)?.map(|written| Heard::Has { written, flushed: None })),
            Hearing::Own(own) => own.next(bytes, log),
        }
    }

    pub fn is_own(&self) -> bool {
        matches!(self, Hearing::Own(_))
    }

    /// Which broker it is, once it has said and proved it.
    pub fn who(&self) -> Option<&Identity> {
        match self {
            Hearing::Own(own) if matches!(own.stage, Stage::Known) => own.who.as_ref(),
            Hearing::Own(_) | Hearing::Plain(_) | Hearing::Nothing(_) => None,
        }
    }
}

impl fmt::Debug for Hearing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hearing::Nothing(_) => "Nothing",
            Hearing::Plain(_) => "Plain",
            Hearing::Own(_) => "Own",
        })
    }
}

/// What a hello is answered with.
pub(super) struct Greeter {
    pub member: Arc<Member>,
    pub nonce: Nonce,
}

/// A slave that speaks the stream between brokers of Gantry.
pub(super) struct Own {
    greeter: Greeter,
    stage: Stage,
    who: Option<Identity>,
    notes: own::Notes,
}

enum Stage {
    Greets(own::Hellos),
    /// It has to prove that it has the secret.
    Proves {
        hello: Vec<u8>,
        answer: Vec<u8>,
    },
    Known,
}

impl Own {
    fn of(greeter: Greeter) -> Own {
        Own { greeter, stage: Stage::Greets(own::Hellos::default()), who: None, notes: own::Notes::default() }
    }

    fn next(&mut self, bytes: &mut &[u8], log: LogRange) -> Result<Option<Heard>, Closed> {
        if let Stage::Greets(hellos) = &mut self.stage {
            let Some(hello) = hellos.next(bytes)? else { return Ok(None) };
            return self.greeted(hello, log).map(Some);
        }
        while let Some(note) = self.notes.next(bytes)? {
            match (note, &self.stage) {
                (Note::Leaves(why), _) => return Err(left(why)),
                (Note::Proof(proof), Stage::Proves { hello, answer }) => {
                    let secret = self.greeter.member.secret.as_ref();
                    if !secret.is_some_and(|secret| secret.is_proved(Role::Slave, hello, answer, &proof)) {
                        return Err(Closed::Unproven("its proof is wrong: replicaSecret is another one there"));
                    }
                    self.stage = Stage::Known;
                }
                (Note::Has { .. }, Stage::Proves { .. }) => {
                    return Err(Closed::Unproven(PROVES_NOTHING));
                }
                (Note::Has { written, flushed }, _) => {
                    return Ok(Some(Heard::Has { written, flushed: Some(flushed) }));
                }
                // Nobody has asked for it.
                (Note::Proof(_), _) => {}
            }
        }
        Ok(None)
    }

    fn greeted(&mut self, hello: Hello, log: LogRange) -> Result<Heard, Closed> {
        let Greeter { member, nonce } = &self.greeter;
        let Greeting { version, who, segment_bytes, .. } = hello.greeting;
        check(&member.who, version, &who, segment_bytes, log.segment_bytes)?;
        let greeting = Greeting {
            version: version.min(own::VERSION),
            who: member.who.clone(),
            segment_bytes: log.segment_bytes,
            min: LogOffset(log.min),
            end: LogOffset(log.end),
            nonce: *nonce,
        };
        let said = greeting.encode()?;
        let proof = member.secret.as_ref().map(|secret| secret.prove(Role::Master, &hello.bytes, &said));
        let answer = own::answer(&said, proof.as_ref());
        self.stage = match proof {
            Some(_) => Stage::Proves { hello: hello.bytes, answer: said },
            None => Stage::Known,
        };
        self.who = Some(who);
        Ok(Heard::Greeted(answer))
    }
}

/// Whether a slave is one of ours.
fn check(
    ours: &Identity,
    version: u16,
    who: &Identity,
    segment_bytes: u64,
    segment_bytes_here: u64,
) -> Result<(), Closed> {
    if version == 0 {
        return Err(Closed::Version(version));
    }
    if (&who.cluster, &who.set) != (&ours.cluster, &ours.set) {
        return Err(Closed::OtherSet { theirs: Box::new(who.clone()), ours: Box::new(ours.clone()) });
    }
    if who.broker_id <= 0 || who.broker_id == ours.broker_id {
        return Err(Closed::BrokerId(who.broker_id));
    }
    if segment_bytes != segment_bytes_here {
        return Err(Closed::FileSize { theirs: segment_bytes, ours: segment_bytes_here });
    }
    Ok(())
}

fn left(why: Leaves) -> Closed {
    match why {
        Leaves::OtherSecret => {
            Closed::Unproven("it finds the proof of this master wrong: replicaSecret is another one there")
        }
        Leaves::NoSecret => Closed::Unproven(PROVES_NOTHING),
        Leaves::NoProof => Closed::Unproven("it has a replicaSecret, and this master has none: set it here as there"),
        Leaves::Other => Closed::Ended,
    }
}
