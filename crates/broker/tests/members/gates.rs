//! The ports of a master behind gates, which tests shut and open. A slave knows the gates: they stay bound, so nobody else gets their ports.

use std::net::SocketAddr;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::Running;
use crate::slaves::{Places, slave_by_on};

/// Stands before one port.
struct Gate {
    address: SocketAddr,
    /// Where it leads to; none: it is shut, and what came through it is cut off.
    to: watch::Sender<Option<SocketAddr>>,
}

impl Gate {
    async fn new() -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (to, leads_to) = watch::channel(None);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, leads_to.clone()));
            }
        });
        Gate { address, to }
    }
}

async fn pass(mut stream: TcpStream, mut leads_to: watch::Receiver<Option<SocketAddr>>) {
    let Some(to) = *leads_to.borrow_and_update() else { return };
    let Ok(mut master) = TcpStream::connect(to).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut stream, &mut master) => {}
        _ = leads_to.changed() => {}
    }
}

/// Those of a master, with the name server that tells of them.
pub(crate) struct Gates {
    main: Gate,
    log: Gate,
    names: Arc<Places>,
}

impl Gates {
    /// Open, before this master.
    pub(crate) async fn before(master: &Running) -> Gates {
        let (main, log) = (Gate::new().await, Gate::new().await);
        let names = Arc::new(Places::default());
        *names.master.lock() = Some((main.address.to_string(), log.address.to_string()));
        let gates = Gates { main, log, names };
        gates.lead_to(master);
        gates
    }

    /// The master is away.
    pub(crate) fn shut(&self) {
        // A slave that has lost the log finds nobody at the main port.
        self.main.to.send_replace(None);
        self.log.to.send_replace(None);
    }

    /// This is the master, or is there again.
    pub(crate) fn lead_to(&self, master: &Running) {
        self.main.to.send_replace(Some(master.address.parse().unwrap()));
        self.log.to.send_replace(Some(master.log.unwrap()));
    }

    /// Requests go through this address.
    pub(crate) fn lead_by(&self, main: &str) {
        self.main.to.send_replace(Some(main.parse().unwrap()));
    }

    /// A slave on what another one has left.
    pub(crate) async fn slave(&self, dir: Arc<TempDir>) -> Running {
        slave_by_on(&self.names, dir).await
    }
}
