//! The page for Prometheus: `GET /metrics` on a port of its own, where somebody asks for it (`metricsExporterType=PROM`).
//!
//! One page without parameters, so HTTP is a dozen lines here: a request's head is read, an answer is written, the connection ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use broker::{Broker, ProcessFigures};
use config::{MetricsExporter, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::{debug, info};

/// Who asks for the page sends some hundred bytes, at once.
const HEAD_BYTES_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that are answered at a time; others wait to be accepted.
const AT_ONCE: usize = 4;

/// A page that is served.
pub struct Page {
    serving: JoinHandle<()>,
}

/// Listens, if the settings ask for it. Nobody is answered before [`Page::serve`].
pub async fn listen(settings: &Settings) -> anyhow::Result<Option<TcpListener>> {
    let asked = settings.metrics()?;
    match asked.exporter {
        MetricsExporter::Prom => {}
        MetricsExporter::Disable | MetricsExporter::OtlpGrpc | MetricsExporter::Log => return Ok(None),
    }
    let host = match asked.host {
        Some(host) => host,
        None => settings.net()?.bind_address.to_string(),
    };
    let listener = TcpListener::bind((host.as_str(), asked.port)).await.with_context(|| {
        format!("cannot listen on {host} port {} (metricsPromExporterHost, metricsPromExporterPort)", asked.port)
    })?;
    Ok(Some(listener))
}

impl Page {
    /// Answers who asks there.
    pub fn serve(listener: TcpListener, broker: &Arc<Broker>) -> anyhow::Result<Page> {
        let address = listener.local_addr()?;
        info!(%address, "metrics are served at /metrics");
        let broker = Arc::clone(broker);
        Ok(Page { serving: tokio::spawn(accept(listener, broker)) })
    }

    /// Serves it no more.
    pub async fn close(self) {
        self.serving.abort();
        // Whatever it says, it has let go of the broker.
        let _ = self.serving.await;
    }
}

async fn accept(listener: TcpListener, broker: Arc<Broker>) {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut answers = tokio::task::JoinSet::new();
    loop {
        // Never closed.
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let broker = Arc::clone(&broker);
                answers.spawn(async move {
                    let answered = tokio::time::timeout(PATIENCE, answer(stream, broker)).await;
                    if let Ok(Err(error)) = answered {
                        debug!(%from, %error, "metrics were not read");
                    }
                    drop(turn);
                });
                while answers.try_join_next().is_some() {}
            }
            // No descriptor is left, as a rule: there will be one.
            Err(error) => {
                debug!(%error, "cannot accept a connection for metrics");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, broker: Arc<Broker>) -> anyhow::Result<()> {
    let Some(path) = path_of(&mut stream).await? else {
        return write(&mut stream, "400 Bad Request", "GET /metrics\n").await;
    };
    if path != "/metrics" {
        return write(&mut stream, "404 Not Found", "GET /metrics\n").await;
    }
    // The oldest message, and `/proc`, are read there.
    let page = tokio::task::spawn_blocking(move || broker.metrics(process_figures())).await?;
    write(&mut stream, "200 OK", &page).await
}

/// What is asked for; none if that is no whole request for a page.
async fn path_of(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let path = (words.next() == Some("GET")).then(|| words.next()).flatten();
    Ok(path.map(|path| path.split('?').next().unwrap_or_default().to_owned()))
}

async fn write(stream: &mut TcpStream, status: &str, body: &str) -> anyhow::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// From `/proc`; 0 where that is not there.
fn process_figures() -> ProcessFigures {
    let faults = |stat: &str| -> Option<(bool, u64)> {
        // The name stands in brackets, and may hold anything.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        // State first; the tenth behind the name is what waited for a device.
        Some((name == crate::threads::WORKER_NAME, rest.split(' ').nth(9)?.parse().ok()?))
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let major_faults = faults(&read("/proc/self/stat")).map_or(0, |(_, faults)| faults);
    let mut figures = ProcessFigures { major_faults, ..ProcessFigures::default() };
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        if let Some((true, faults)) = faults(&stat) {
            figures.network_major_faults += faults;
        }
    }
    figures
}
