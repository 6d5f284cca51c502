//! Which brokers take several sends in one request (30001).

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;

/// Which brokers take sends together, as they said last.
#[derive(Default)]
pub(crate) struct Offers {
    /// Guards the offers by address; held for a look or a change.
    known: Mutex<HashMap<String, Offer>>,
}

/// What a broker said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Where it said so: another connection to the same address may lead to another broker.
    pub(crate) connection: u64,
    /// Sends in one request, one at least.
    pub(crate) parts_max: usize,
}

impl Offers {
    /// Takes note of what the broker at an address said last; nothing: it said nothing, or not that it takes them.
    pub(crate) fn note(&self, address: &str, offer: Option<Offer>) {
        let mut known = self.known.lock();
        match offer {
            Some(offer) => drop(known.insert(address.to_owned(), offer)),
            None => drop(known.remove(address)),
        }
    }

    /// Forgets who is at none of these addresses.
    pub(crate) fn keep_only(&self, addresses: &BTreeSet<String>) {
        self.known.lock().retain(|address, _| addresses.contains(address));
    }

    pub(crate) fn at(&self, address: &str) -> Option<Offer> {
        self.known.lock().get(address).copied()
    }
}
