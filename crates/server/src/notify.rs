//! Tells the service manager how the process gets on, by systemd's protocol: one datagram of `NAME=VALUE` to the socket that `NOTIFY_SOCKET`
//! names (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::warn;

/// How long a service manager may take to read what it was told before.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells it, if there is one that wants to know; on a thread of its own, since its queue may be full.
pub fn tell(what: &'static str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    drop(tokio::task::spawn_blocking(move || {
        if let Err(error) = send(socket.as_encoded_bytes(), what) {
            warn!(%error, what, "the service manager was not told: it does not see that the start, or the stop, goes on");
        }
    }));
}

fn send(socket: &[u8], what: &str) -> std::io::Result<()> {
    let address = match socket.split_first() {
        // A name that is in no folder.
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        Some(_) | None => SocketAddr::from_pathname(String::from_utf8_lossy(socket).as_ref())?,
    };
    let told = UnixDatagram::unbound()?;
    told.set_write_timeout(Some(PATIENCE))?;
    told.send_to_addr(what.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_is_told_by_a_path_and_by_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("gantry-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (listener, socket) in [(by_path, path.display().to_string()), (by_name, format!("@{name}"))] {
            send(socket.as_bytes(), "READY=1").unwrap();
            let mut heard = [0; 64];
            let count = listener.recv(&mut heard).unwrap();
            assert_eq!(&heard[..count], b"READY=1");
        }
        assert!(send(b"/no/such/socket", "READY=1").is_err());
    }
}
