//! Who may have the log of a master without `replicaSecret`: nobody from an address that neither name servers nor `replicaAllow` list.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use bytes::Bytes;
use protocol::code::{ResponseCode, request};
use protocol::request::CopyJournal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::asking::Asking;
use crate::support::{PATIENCE, Running, until};

/// An address of this machine that others reach, if it has one. Who connects to it comes from it.
fn outside() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Of the addresses for documentation: nothing is sent.
    socket.connect("198.51.100.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

/// Says this, and what comes first; nothing if it is closed.
async fn first_bytes(port: SocketAddr, said: &[u8]) -> usize {
    let mut stream = TcpStream::connect(port).await.unwrap();
    // It may be closed by then.
    let _ = stream.write_all(said).await;
    timeout(PATIENCE, stream.read(&mut [0; 512])).await.expect("it is neither fed nor closed").unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_nobody_lists_gets_neither_the_log_nor_the_journal_until_it_is_allowed() {
    let Some(outside) = outside() else {
        eprintln!("this machine has no address but its loopback: nobody is outside");
        return;
    };
    let data = tempfile::tempdir().unwrap();
    let settings = ["--set", "bindAddress=0.0.0.0", "--set", "brokerIP1=127.0.0.1", "--set", "brokerName=broker-a"];
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    assert_eq!(asking.send("T", 0, "", "secret").await.unwrap().code, 0);
    let main: SocketAddr = asking.broker.parse().unwrap();
    let [inside, port] = [main.ip(), outside].map(|ip| SocketAddr::new(ip, main.port() + 1));
    // A report of an empty slave of Apache's, and the begin of a hello.
    for said in [&[0; 8][..], b"\x9fGantry\n"] {
        assert_eq!(first_bytes(port, said).await, 0, "{said:?}");
    }
    assert!(first_bytes(inside, &[0; 8]).await > 0, "this machine may have it");
    let journal = CopyJournal {
        broker_name: "broker-a",
        broker_cluster_name: "DefaultCluster",
        broker_id: 7,
        life: "0",
        from: 0,
        written: None,
        piece: 0,
        wait_millis: 0,
        max_bytes: 1 << 20,
    };
    let main_port = SocketAddr::new(outside, main.port()).to_string();
    let ask =
        async || asking.client.call(&main_port, request::COPY_JOURNAL, &journal, Bytes::new(), PATIENCE).await.unwrap();
    let refused = ask().await;
    let remark = refused.remark.unwrap_or_default();
    assert_eq!(refused.code, ResponseCode::NoPermission as i32, "{remark}");
    assert!(remark.contains(&outside.to_string()) && remark.contains("replicaAllow"), "{remark}");

    let allow = format!("replicaAllow={outside}\n");
    let call = asking.client.call(&asking.broker, request::UPDATE_BROKER_CONFIG, &(), allow.into(), PATIENCE);
    assert_eq!(call.await.unwrap().code, 0);
    until("it gets the log", async || first_bytes(port, &[0; 8]).await > 0).await;
    assert_eq!(ask().await.code, 0);
    assert_eq!(running.end("-TERM").0, Some(0));
}
