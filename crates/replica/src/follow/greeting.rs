//! How a slave of Gantry greets its master, without socket and clock: it says who it is, checks what the master proves, and proves the same.

use crate::wire::own::{self, Answer, Answered, Answers, Greeting, Hello, Leaves, Member, Note};
use crate::wire::secret::{Role, Secret};

/// Why a master is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotGreeted {
    /// The master ends the connection.
    #[error("the master does not let this slave in: {0}")]
    Refused(String),
    /// Bytes that are no answer.
    #[error("the master's answer to the hello is not readable: {0}")]
    Misread(#[from] own::Misread),
    /// The master speaks a version that was not asked for.
    #[error("the master answers in version {theirs} of the stream, and this slave speaks {ours}")]
    Version {
        /// As it says.
        theirs: u16,
        /// Here.
        ours: u16,
    },
    /// The master has another secret.
    #[error("the master's proof is wrong: replicaSecret is another one there, or it is not this set's master")]
    OtherSecret,
    /// The master proves nothing.
    #[error("the master proves nothing: set replicaSecret there as here")]
    NoProof,
    /// The master only speaks the stream on which nothing is proved.
    #[error(
        "replicaSecret is set, and the master does not have the stream on which it could prove that it has it: set it there as here; remove it here \
         to follow a master of Apache"
    )]
    Plain,
}

impl NotGreeted {
    /// What the master is told.
    pub fn told(&self) -> Option<Note> {
        match self {
            NotGreeted::OtherSecret => Some(Note::Leaves(Leaves::OtherSecret)),
            NotGreeted::NoProof => Some(Note::Leaves(Leaves::NoProof)),
            NotGreeted::Misread(_) | NotGreeted::Version { .. } => Some(Note::Leaves(Leaves::Other)),
            NotGreeted::Refused(_) | NotGreeted::Plain => None,
        }
    }
}

/// The hello of a connection, and what becomes of it.
#[derive(Debug)]
pub struct Greeter {
    hello: Hello,
    secret: Option<Secret>,
    answers: Answers,
}

impl Greeter {
    /// Greets as `member`. [`Greeter::hello`] goes out first.
    pub fn new(member: &Member, greeting: Greeting) -> Result<Greeter, NotGreeted> {
        Ok(Greeter { hello: Hello::new(greeting)?, secret: member.secret.clone(), answers: Answers::default() })
    }

    /// What is to be sent.
    pub fn hello(&self) -> &[u8] {
        &self.hello.bytes
    }

    /// Takes bytes of the master, which are shortened by what belongs to its answer. Once that is whole: what is to be sent in front of the first report.
    pub fn heard(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, NotGreeted> {
        match self.answers.next(bytes)? {
            None => Ok(None),
            Some(Answered::Ends(why)) => Err(NotGreeted::Refused(why)),
            Some(Answered::Goes(answer)) => self.answered(&answer).map(Some),
        }
    }

    fn answered(&self, answer: &Answer) -> Result<Vec<u8>, NotGreeted> {
        let (theirs, ours) = (answer.greeting.version, self.hello.greeting.version);
        if theirs == 0 || theirs > ours {
            return Err(NotGreeted::Version { theirs, ours });
        }
        // A master that asks for a proof says so when none comes.
        let Some(secret) = &self.secret else { return Ok(Vec::new()) };
        let proof = answer.proof.as_ref().ok_or(NotGreeted::NoProof)?;
        if !secret.is_proved(Role::Master, &self.hello.bytes, &answer.bytes, proof) {
            return Err(NotGreeted::OtherSecret);
        }
        Ok(Note::Proof(secret.prove(Role::Slave, &self.hello.bytes, &answer.bytes)).encode())
    }
}
