//! What a controller is started with.

use std::path::PathBuf;

/// A controller of the group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its name in `controllerDLegerPeers`, as `n0`; with JRaft's keys its address.
    pub id: String,
    /// Where brokers and other controllers reach it, as `HOST:PORT`.
    pub address: String,
}

/// What a controller is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The group's name.
    pub group: String,
    /// Its controllers, this one among them.
    pub peers: Vec<Peer>,
    /// Which of them this one is.
    pub self_id: String,
    /// How 1005 tells the peers: with their ids, or addresses alone.
    pub has_ids: bool,
    /// Its folder.
    pub dir: PathBuf,
    /// A broker that is not in sync may be elected where none that is lives
    /// (`enableElectUncleanMaster`).
    pub elects_unclean: bool,
    /// Brokers are told of elections (`notifyBrokerRoleChanged`).
    pub notifies: bool,
    /// Keys that cannot be changed from afar, separated by semicolons (`configBlackList`).
    pub black_list: String,
    /// All settings, for 1010.
    pub shown: Vec<Setting>,
}

/// A setting as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// RocketMQ's name for it.
    pub key: &'static str,
    /// Its value at the start.
    pub value: String,
    /// Why it changes nothing here, if it does not.
    pub without_effect: Option<&'static str>,
}

/// What is wrong with a list of peers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeersError {
    /// Not of the form `ID-HOST:PORT`.
    #[error("\"{0}\" is not of the form ID-HOST:PORT, as n0-10.0.0.1:9878")]
    Form(String),
    /// An id or an address stands there twice.
    #[error("\"{0}\" stands there twice")]
    Twice(String),
    /// More than a group may have.
    #[error("{0} controllers are more than the limit, {PEERS_MAX}")]
    TooMany(usize),
    /// No controller.
    #[error("there is no controller in it")]
    None,
}

/// Controllers of one group.
const PEERS_MAX: usize = 9;

/// Reads `controllerDLegerPeers`: `n0-HOST:PORT;n1-HOST:PORT`.
///
/// # Errors
/// It is none, or names somebody twice.
pub fn read_peers(text: &str) -> Result<Vec<Peer>, PeersError> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    let read = |part: &str| {
        let (id, address) = part.split_once('-').filter(|(id, address)| !id.is_empty() && is_address(address))?;
        Some(Peer { id: id.to_owned(), address: address.to_owned() })
    };
    let peers: Vec<Peer> =
        parts.map(|part| read(part).ok_or_else(|| PeersError::Form(part.to_owned()))).collect::<Result<_, _>>()?;
    checked(peers)
}

/// Reads `jRaftControllerRPCAddr`: `HOST:PORT,HOST:PORT`. The id of each is its address.
///
/// # Errors
/// It is none, or names somebody twice.
pub fn read_addresses(text: &str) -> Result<Vec<Peer>, PeersError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let read = |part: &str| match is_address(part) {
        true => Ok(Peer { id: part.to_owned(), address: part.to_owned() }),
        false => Err(PeersError::Form(part.to_owned())),
    };
    checked(parts.map(read).collect::<Result<_, _>>()?)
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn checked(peers: Vec<Peer>) -> Result<Vec<Peer>, PeersError> {
    if peers.is_empty() {
        return Err(PeersError::None);
    }
    if peers.len() > PEERS_MAX {
        return Err(PeersError::TooMany(peers.len()));
    }
    for (at, peer) in peers.iter().enumerate() {
        if let Some(before) = peers[..at].iter().find(|one| one.id == peer.id || one.address == peer.address) {
            let twice = if before.id == peer.id { &peer.id } else { &peer.address };
            return Err(PeersError::Twice(twice.clone()));
        }
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_as_apache_writes_them() {
        let peers = read_peers("n0-127.0.0.1:9878;n1-[::1]:9879; n2-host-b:9880;").unwrap();
        let pairs: Vec<_> = peers.iter().map(|peer| (peer.id.as_str(), peer.address.as_str())).collect();
        assert_eq!(pairs, [("n0", "127.0.0.1:9878"), ("n1", "[::1]:9879"), ("n2", "host-b:9880")]);
        for (text, said) in [
            ("", "there is no controller in it"),
            ("127.0.0.1:9878", "\"127.0.0.1:9878\" is not of the form"),
            ("n0-host", "\"n0-host\" is not of the form"),
            ("n0-a:1;n0-b:1", "\"n0\" stands there twice"),
            ("n0-a:1;n1-a:1", "\"a:1\" stands there twice"),
        ] {
            let error = read_peers(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(matches!(
            read_peers(&(0..10).map(|id| format!("n{id}-a:{}", id + 1)).collect::<Vec<_>>().join(";")),
            Err(PeersError::TooMany(10))
        ));
        assert_eq!(read_addresses("a:1,b:2").unwrap().len(), 2);
    }
}
