//! How a slave of Gantry greets its master, without socket and clock: it says who it is, checks what the master proves, and proves the same.

use crate::wire::own::{self, Answer, Answered, Answers, Greeting, Hello, Identity, Leaves, Member, Note};
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
    /// The master is another set's.
    #[error(
        "the master is of the set {:?} of the cluster {:?}, and this slave of the set {:?} of the cluster {:?}: set brokerName and brokerClusterName \
         as there, or have it follow another master", .theirs.set, .theirs.cluster, .ours.set, .ours.cluster
    )]
    OtherSet {
        /// As it says.
        theirs: Box<Identity>,
        /// This slave.
        ours: Box<Identity>,
    },
    /// Files of the two logs have different sizes.
    #[error(
        "files of the master's log have {theirs} bytes, and those of the log here {ours}: set mappedFileSizeCommitLog as there and copy the log anew"
    )]
    FileSize {
        /// As it says.
        theirs: u64,
        /// Here.
        ours: u64,
    },
    /// The master has a secret, and this slave none.
    #[error("the master has a replicaSecret, and this slave has none: set replicaSecret here as there")]
    NoSecret,
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
            NotGreeted::NoSecret => Some(Note::Leaves(Leaves::NoSecret)),
            NotGreeted::Misread(_)
            | NotGreeted::Version { .. }
            | NotGreeted::OtherSet { .. }
            | NotGreeted::FileSize { .. } => Some(Note::Leaves(Leaves::Other)),
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
        // The master has looked at the same. It may be one that does not.
        let (theirs, ours) = (&answer.greeting, &self.hello.greeting);
        if (&theirs.who.cluster, &theirs.who.set) != (&ours.who.cluster, &ours.who.set) {
            return Err(NotGreeted::OtherSet { theirs: theirs.who.clone().into(), ours: ours.who.clone().into() });
        }
        if theirs.segment_bytes != ours.segment_bytes {
            return Err(NotGreeted::FileSize { theirs: theirs.segment_bytes, ours: ours.segment_bytes });
        }
        let (secret, proof) = match (&self.secret, &answer.proof) {
            (None, None) => return Ok(Vec::new()),
            (None, Some(_)) => return Err(NotGreeted::NoSecret),
            (Some(_), None) => return Err(NotGreeted::NoProof),
            (Some(secret), Some(proof)) => (secret, proof),
        };
        if !secret.is_proved(Role::Master, &self.hello.bytes, &answer.bytes, proof) {
            return Err(NotGreeted::OtherSecret);
        }
        Ok(Note::Proof(secret.prove(Role::Slave, &self.hello.bytes, &answer.bytes)).encode())
    }
}
