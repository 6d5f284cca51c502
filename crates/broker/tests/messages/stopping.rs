//! What connections are still owed when the broker stops.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use net::{CallError, Client, ClientOptions};
use protocol::code::request;
use store::DiskUse;
use store::disk::{DirEntry, Disk, DiskFile, OpenHow, RealDisk};

use crate::support::{DEADLINE, Setup, from, start, to, waiting};

/// While true, nothing reaches the device.
#[derive(Debug, Default)]
struct Stall {
    is_on: Mutex<bool>,
    changed: Condvar,
}

impl Stall {
    fn set(&self, is_on: bool) {
        *self.is_on.lock().unwrap() = is_on;
        self.changed.notify_all();
    }
}

/// The machine's files, on a device that can be held up.
#[derive(Debug, Default)]
struct StallingDisk {
    stall: Arc<Stall>,
}

#[derive(Debug)]
struct StallingFile {
    file: Arc<dyn DiskFile>,
    stall: Arc<Stall>,
}

impl Disk for StallingDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        RealDisk.list(dir)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        RealDisk.len(path)
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(StallingFile { file: RealDisk.open(path, how)?, stall: Arc::clone(&self.stall) }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        RealDisk.remove_tree(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn sync_file_system(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn space(&self, _: &Path) -> io::Result<DiskUse> {
        Ok(DiskUse { total: 100, available: 100 })
    }
}

impl DiskFile for StallingFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buffer, at)
    }
    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        self.file.read_cached_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn sync_data(&self) -> io::Result<()> {
        let is_on = self.stall.is_on.lock().unwrap();
        drop(self.stall.changed.wait_while(is_on, |is_on| *is_on).unwrap());
        self.file.sync_data()
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_send_that_was_stored_before_a_stop_is_answered_and_parked_pulls_hold_nothing_up() {
    const SENDS: usize = 200;
    let disk = Arc::new(StallingDisk::default());
    let mut running =
        start(Setup { is_sync: true, disk: Arc::clone(&disk) as Arc<dyn Disk>, ..Setup::default() }).await;
    let first = running.put("T", 0, "", "first").await;
    let consumer = Client::new(ClientOptions::default());
    let address = running.address.clone();
    let parked = tokio::spawn(async move {
        let pull = waiting(from("T", 1, 0), 60_000);
        consumer.call(&address, request::PULL_MESSAGE, &pull, bytes::Bytes::new(), DEADLINE).await
    });
    running.until_parked(1).await;

    disk.stall.set(true);
    let sends: Vec<_> = (0..SENDS)
        .map(|number| {
            let (client, address) = (running.client.clone(), running.address.clone());
            tokio::spawn(async move {
                let body = number.to_string().into_bytes().into();
                client.call(&address, request::SEND_MESSAGE_V2, &to("T", 0, ""), body, DEADLINE).await
            })
        })
        .collect();
    let queue = running.store().existing_queue("T", 0).unwrap();
    crate::support::until("all are stored", || queue.max_offset() == first.queue_offset as u64 + 1 + SENDS as u64)
        .await;

    running.begin_stop();
    // The consumer is let go while the producer's replies are still held up: the stop has begun and has not ended.
    let let_go = parked.await.unwrap();
    assert!(matches!(let_go, Err(CallError::Closed { .. })), "{let_go:?}");
    assert!(!running.is_quiet());
    disk.stall.set(false);
    for send in sends {
        let answer = send.await.unwrap();
        assert_eq!(answer.as_ref().map(|answer| answer.code).ok(), Some(0), "{answer:?}");
    }
    running.stop().await;
}
