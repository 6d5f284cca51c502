//! Metrics, where somebody asks for them: a page of the HTTP port (`metricsExporterType=PROM`, `pages.rs`), or lines of the log (`LOG`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use broker::{Broker, PageOptions, ProcessFigures};
use config::{MetricsExporter, Settings};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info};

use crate::pages::{self, Serving, Told};
use crate::threads::WORKER_NAME;

/// A metric with very many values would be a line that nobody can read.
const LINE_BYTES_MAX: usize = 16 << 10;

/// How metrics are to be given out; nothing is yet.
pub struct Exporter {
    way: Way,
    options: PageOptions,
}

enum Way {
    Page { address: SocketAddr, pages: Pages },
    Log { every: Duration },
}

/// The pages, and what they tell of.
pub struct Pages {
    told: watch::Sender<Told>,
    task: JoinHandle<()>,
}

/// Metrics that are given out.
pub enum Exporting {
    /// By pages.
    Page(Pages),
    /// By lines of the log.
    Log(JoinHandle<()>),
}

/// Listens, if the settings ask for that. Until [`Exporter::begin`] the pages say that the store is being opened.
pub async fn prepare(settings: &Settings) -> anyhow::Result<Option<Exporter>> {
    let asked = settings.metrics()?;
    let way = match asked.exporter {
        MetricsExporter::Prom => {
            let host = match asked.host {
                Some(host) => host,
                None => settings.net()?.bind_address.to_string(),
            };
            let listener = pages::listen((host.as_str(), asked.port)).await.with_context(|| {
                let [host_from, port_from] = ["metricsPromExporterHost", "metricsPromExporterPort"].map(|key| settings.origin(key));
                let port = asked.port;
                format!(
                    "cannot listen on {host} port {port} (metricsPromExporterHost, {host_from}; metricsPromExporterPort, {port_from})"
                )
            })?;
            let (address, (told, seen)) = (listener.local_addr()?, watch::channel(Told::Opening));
            Way::Page { address, pages: Pages { told, task: tokio::spawn(pages::serve(listener, seen)) } }
        }
        MetricsExporter::Log => Way::Log { every: Duration::from_millis(asked.log_every_ms) },
        MetricsExporter::Disable | MetricsExporter::OtlpGrpc => return Ok(None),
    };
    let options = PageOptions { labels: asked.labels.0, label_sets_max: asked.label_sets_max };
    Ok(Some(Exporter { way, options }))
}

impl Exporter {
    /// Gives them out from now on.
    pub fn begin(self, broker: &Arc<Broker>) -> Exporting {
        let serving = Arc::new(Serving { broker: Arc::clone(broker), options: self.options });
        match self.way {
            Way::Page { address, pages } => {
                pages.told.send_replace(Told::Serving(serving));
                info!(%address, "metrics are served at /metrics");
                Exporting::Page(pages)
            }
            Way::Log { every } => Exporting::Log(tokio::spawn(log(every, serving))),
        }
    }
}

impl Exporting {
    /// The pages answer 503 from now on: the broker stops.
    pub fn stops(&self) {
        match self {
            Exporting::Page(pages) => drop(pages.told.send_replace(Told::Stopping)),
            Exporting::Log(_) => {}
        }
    }

    /// Gives out no more.
    pub async fn close(self) {
        let (Exporting::Page(Pages { task, .. }) | Exporting::Log(task)) = self;
        task.abort();
        // A page that is being written may hold on to the broker for a moment, which does no harm.
        let _ = task.await;
    }
}

/// A line for each metric, again and again.
async fn log(every: Duration, serving: Arc<Serving>) {
    loop {
        tokio::time::sleep(every).await;
        match page(&serving).await {
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

/// The page.
pub async fn page(serving: &Arc<Serving>) -> Result<String, tokio::task::JoinError> {
    let serving = Arc::clone(serving);
    // The oldest message, and `/proc`, are read there.
    tokio::task::spawn_blocking(move || serving.broker.metrics(process_figures(), &serving.options)).await
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
