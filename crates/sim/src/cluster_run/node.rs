//! A broker of the cluster: its store, and what it does as a master or as a slave.

use std::sync::Arc;

use env::Random;
use replica::follow::FollowOptions;
use replica::lag::Slaves;
use replica::wire::own::Member;

use super::feeding::Feeding;
use super::following::Following;
use super::links::Link;
use crate::side::Side;

/// See the module's head.
pub(super) struct Node {
    pub number: usize,
    /// The first fields, so that they let go of the store before it is closed.
    pub following: Option<Following>,
    pub feeds: Vec<Feeding>,
    pub slaves: Arc<Slaves>,
    pub side: Side,
    /// As whom it shows itself, where the brokers speak the stream of Gantry.
    pub member: Option<Arc<Member>>,
    /// Counts its processes.
    pub life: u32,
    /// It is down until then.
    pub down_until: Option<u64>,
    /// Thousandths of a ms that its clock goes in a ms.
    pub rate: u64,
    micros: u64,
    /// The log began here once. After a loss of power files may be there again, and what was in them is not in the queues.
    pub gone: u64,
    /// Below this its log is that of the master, whatever else may be in it: the master has lost more, or is another one.
    pub common: u64,
    /// The connection on which it follows.
    pub began: Option<Link>,
    /// The connection on which it was agreed that the logs are the same, and up to where they were compared.
    pub agreed: Option<(Link, u64)>,
}

impl Node {
    pub fn new(number: usize, side: Side, rate: u64) -> Node {
        Node {
            number,
            following: None,
            feeds: Vec::new(),
            slaves: Arc::default(),
            side,
            member: None,
            life: 0,
            down_until: None,
            rate,
            micros: 0,
            gone: 0,
            common: u64::MAX,
            began: None,
            agreed: None,
        }
    }

    /// Its bit among those that have a message.
    pub fn bit(&self) -> u32 {
        1 << self.number
    }

    pub fn is_up(&self) -> bool {
        self.side.store.is_some()
    }

    /// Takes note of what its store promises, and where its log begins.
    pub fn see(&mut self) {
        self.side.see();
        if let Some(store) = self.side.store.as_ref().filter(|_| !self.side.has_crashed()) {
            self.gone = self.gone.max(store.min_offset().0);
        }
    }

    /// Lets time pass for it, by its own clock.
    pub fn pass(&mut self, ms: u64) {
        self.micros += ms * self.rate;
        self.side.world.pass(self.micros / 1000);
        self.micros %= 1000;
    }

    /// Follows a master from now on.
    pub fn follow(&mut self, master: usize, options: FollowOptions) {
        let random = Random::seeded(self.side.world.dice.next_u64());
        let member = self.member.clone();
        self.following = Some(Following::new(self.number, master, options, member, random));
    }

    /// Its process is gone: all that was in its memory.
    pub fn forget(&mut self) {
        (self.following, self.feeds) = (None, Vec::new());
        (self.began, self.agreed) = (None, None);
        self.slaves = Arc::default();
        self.life += 1;
    }
}
