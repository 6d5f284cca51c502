//! Metrics, where somebody asks for them: `GET /metrics` on a port of its own (`metricsExporterType=PROM`), or lines of the log (`LOG`).
//!
//! One page without parameters, so HTTP is a dozen lines here: a request's head is read, an answer is written, the connection ends.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use broker::{Broker, PageOptions, ProcessFigures};
use config::{MetricsExporter, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tracing::{debug, info};

use crate::ports;
use crate::threads::WORKER_NAME;

/// Who asks for the page sends some hundred bytes, at once.
const HEAD_BYTES_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that are answered at a time; others wait to be accepted.
const AT_ONCE: usize = 4;

/// A metric with very many values would be a line that nobody can read.
const LINE_BYTES_MAX: usize = 16 << 10;

/// How metrics are to be given out; nothing is yet.
pub struct Exporter {
    way: Way,
    options: PageOptions,
}

enum Way {
    Page(TcpListener),
    Log { every: Duration },
}

/// Metrics that are given out.
pub struct Exporting {
    task: JoinHandle<()>,
}

/// Listens, if the settings ask for that. Nobody is answered before [`Exporter::begin`].
pub async fn prepare(settings: &Settings) -> anyhow::Result<Option<Exporter>> {
    let asked = settings.metrics()?;
    let way = match asked.exporter {
        MetricsExporter::Prom => {
            let host = match asked.host {
                Some(host) => host,
                None => settings.net()?.bind_address.to_string(),
            };
            let listener = listen((host.as_str(), asked.port)).await.with_context(|| {
                let [host_from, port_from] = ["metricsPromExporterHost", "metricsPromExporterPort"].map(|key| settings.origin(key));
                let port = asked.port;
                format!(
                    "cannot listen on {host} port {port} (metricsPromExporterHost, {host_from}; metricsPromExporterPort, {port_from})"
                )
            })?;
            Way::Page(listener)
        }
        MetricsExporter::Log => Way::Log { every: Duration::from_millis(asked.log_every_ms) },
        MetricsExporter::Disable | MetricsExporter::OtlpGrpc => return Ok(None),
    };
    let options = PageOptions { labels: asked.labels.0, label_sets_max: asked.label_sets_max };
    Ok(Some(Exporter { way, options }))
}

/// Listens, as soon as a process that ends has given the port back.
async fn listen(address: (&str, u16)) -> io::Result<TcpListener> {
    let since = Instant::now();
    // Ends with the port, another error, or the patience.
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && since.elapsed() < ports::PATIENCE => {
                tokio::time::sleep(ports::LOOK_AGAIN).await;
            }
            bound => return bound,
        }
    }
}

impl Exporter {
    /// Gives them out from now on.
    pub fn begin(self, broker: &Arc<Broker>) -> anyhow::Result<Exporting> {
        let (broker, options) = (Arc::clone(broker), Arc::new(self.options));
        let task = match self.way {
            Way::Page(listener) => {
                let address = listener.local_addr()?;
                info!(%address, "metrics are served at /metrics");
                tokio::spawn(accept(listener, broker, options))
            }
            Way::Log { every } => tokio::spawn(log(every, broker, options)),
        };
        Ok(Exporting { task })
    }
}

impl Exporting {
    /// Gives out no more.
    pub async fn close(self) {
        self.task.abort();
        // Whatever it says, it has let go of the broker.
        let _ = self.task.await;
    }
}

/// A line for each metric, again and again.
async fn log(every: Duration, broker: Arc<Broker>, options: Arc<PageOptions>) {
    loop {
        tokio::time::sleep(every).await;
        match page(&broker, &options).await {
            Ok(page) => each_metric(&page, |metric, values, left_out| {
                if left_out > 0 {
                    info!(metric, %values, left_out, "metrics");
                } else if !values.is_empty() {
                    info!(metric, %values, "metrics");
                }
            }),
            // The runtime ends.
            Err(error) => debug!(%error, "metrics were not logged"),
        }
    }
}

/// Shows each metric of a page: its name, its values without the name, and how many of them are left out.
fn each_metric(page: &str, mut show: impl FnMut(&str, &str, usize)) {
    for block in page.split("# HELP ").skip(1) {
        let Some((name, _)) = block.split_once(' ') else { continue };
        let (mut values, mut left_out) = (String::new(), 0);
        // The first is what the metric is about, the second its type.
        for line in block.lines().skip(2) {
            let value = line.strip_prefix(name).unwrap_or(line);
            if values.len() + value.len() >= LINE_BYTES_MAX {
                left_out += 1;
                continue;
            }
            if !values.is_empty() {
                values.push(' ');
            }
            values.push_str(value);
        }
        show(name, &values, left_out);
    }
}

async fn page(broker: &Arc<Broker>, options: &Arc<PageOptions>) -> anyhow::Result<String> {
    let (broker, options) = (Arc::clone(broker), Arc::clone(options));
    // The oldest message, and `/proc`, are read there.
    Ok(tokio::task::spawn_blocking(move || broker.metrics(process_figures(), &options)).await?)
}

async fn accept(listener: TcpListener, broker: Arc<Broker>, options: Arc<PageOptions>) {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut answers = tokio::task::JoinSet::new();
    loop {
        // Never closed.
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let (broker, options) = (Arc::clone(&broker), Arc::clone(&options));
                answers.spawn(async move {
                    let answered = tokio::time::timeout(PATIENCE, answer(stream, &broker, &options)).await;
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

async fn answer(mut stream: TcpStream, broker: &Arc<Broker>, options: &Arc<PageOptions>) -> anyhow::Result<()> {
    let Some(path) = path_of(&mut stream).await? else {
        return write(&mut stream, "400 Bad Request", "GET /metrics\n").await;
    };
    if path != "/metrics" {
        return write(&mut stream, "404 Not Found", "GET /metrics\n").await;
    }
    write(&mut stream, "200 OK", &page(broker, options).await?).await
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

/// Threads that append, besides tokio's workers: that of the write pool.
const POOL_THREAD: &str = "commit";

/// The most that the threads that append have had so far: one that cannot be looked at for once is no reason to count backwards. Relaxed: it
/// stands alone.
static APPENDING_MAJOR_FAULTS: AtomicU64 = AtomicU64::new(0);

/// From `/proc`; 0 where that is not there.
fn process_figures() -> ProcessFigures {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    // Those of threads that have ended are in it.
    let all = faults(&read(Path::new("/proc/self/stat"))).map_or(0, |(_, faults)| faults);
    let process = std::process::id().to_string();
    let mut appending = 0;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        // The first thread has the program's name, which is that of the workers, and starts and stops the others.
        if task.file_name() == *process {
            continue;
        }
        // The threads that append end with the process, so their sum grows only.
        if let Some((WORKER_NAME | POOL_THREAD, faults)) = faults(&read(&task.path().join("stat"))) {
            appending += faults;
        }
    }
    let before = APPENDING_MAJOR_FAULTS.fetch_max(appending, Ordering::Relaxed);
    ProcessFigures { major_faults: all, network_major_faults: appending.max(before) }
}

/// Whose these are, and how often he waited for a device, by the line that `/proc` has of a thread or a process.
fn faults(stat: &str) -> Option<(&str, u64)> {
    // The name stands in brackets, and may hold anything.
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    // State first; the tenth behind the name is what waited for a device.
    Some((name, rest.split(' ').nth(9)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_page_has_its_port_as_soon_as_a_process_that_ends_has_given_it_back() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let ending = tokio::spawn(async move {
            tokio::time::sleep(3 * ports::LOOK_AGAIN).await;
            drop(holder);
        });
        assert_eq!(listen(("127.0.0.1", port)).await.unwrap().local_addr().unwrap().port(), port);
        ending.await.unwrap();
    }

    #[test]
    fn a_threads_line_says_whose_it_is_and_how_often_he_waited_for_a_device() {
        let line = "77 (a) b (c) S 1 77 77 0 -1 4194560 1500 0 23 0 9 3 0 0 20 0 8 0 100 1 1";
        assert_eq!(faults(line), Some(("a) b (c", 23)));
        assert_eq!(faults("77 (gantry"), None);
    }

    #[test]
    fn a_metric_is_a_line_of_the_log_and_no_line_is_endless() {
        let page = "# HELP a What it is\n# TYPE a counter\na{x=\"1\"} 7\na{x=\"2\"} 8\n# HELP b Else\n# TYPE b gauge\n";
        let mut shown = Vec::new();
        each_metric(page, |name, values, left_out| shown.push((name.to_owned(), values.to_owned(), left_out)));
        let expected = [("a", "{x=\"1\"} 7 {x=\"2\"} 8"), ("b", "")];
        assert_eq!(shown, expected.map(|(name, values)| (name.to_owned(), values.to_owned(), 0)));
        let many: String = (0..10_000).map(|number| format!("c{{x=\"{number}\"}} 1\n")).collect();
        each_metric(&format!("# HELP c Many\n# TYPE c gauge\n{many}"), |_, values, left_out| {
            assert!(
                values.len() <= LINE_BYTES_MAX && left_out > 0 && values.matches("} 1").count() + left_out == 10_000
            );
        });
    }
}
