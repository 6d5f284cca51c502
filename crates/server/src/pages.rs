//! The HTTP port (`metricsPromExporterPort`): metrics for Prometheus, and for probes whether the process lives, is ready, and what it is.
//!
//! It answers from before the store is opened, which may take minutes after a crash: a probe of life must not end a start that goes on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use broker::{Broker, PageOptions};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use crate::{metrics, ports};

/// How long a connection has for its request and the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request's head: hyper takes no smaller limit.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request's head may take.
const HEAD_PATIENCE: Duration = Duration::from_secs(2);
/// Connections at a time; one more takes the place of one that says nothing, or waits.
const AT_ONCE: usize = 64;
/// Pages of metrics that are written at a time.
const METRICS_AT_ONCE: usize = 4;

/// What there is to find, for an address that is none of the pages.
const INDEX: &str = "GET /metrics, /healthz/live, /healthz/ready, /role or /role/master\n";

/// What the pages tell of.
#[derive(Clone)]
pub enum Told {
    /// A store that is being opened.
    Opening,
    /// A broker that serves.
    Serving(Arc<Serving>),
    /// A broker that ends.
    Stopping,
}

/// A broker that serves, and how its metrics are written.
pub struct Serving {
    /// The broker.
    pub broker: Arc<Broker>,
    /// Labels and limits of its metrics.
    pub options: PageOptions,
}

impl Told {
    /// The broker, or why there is none to tell of.
    fn serving(&self) -> Result<&Arc<Serving>, Unavailable> {
        match self {
            Told::Serving(serving) => Ok(serving),
            Told::Opening => Err(Unavailable("the store is being opened\n")),
            Told::Stopping => Err(Unavailable("the broker stops\n")),
        }
    }
}

/// Listens, as soon as a process that ends has given the port back.
pub async fn listen(address: (&str, u16)) -> io::Result<TcpListener> {
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

/// Answers everybody, until it is dropped.
pub async fn serve(listener: TcpListener, told: watch::Receiver<Told>) {
    serve_within(listener, told, HEAD_PATIENCE, PATIENCE).await;
}

/// A connection that is served.
struct Open {
    task: AbortHandle,
    /// Its request's head has come. Relaxed: it stands alone.
    has_asked: Arc<AtomicBool>,
}

/// The same with `head` for a request's head, and `whole` for the request and its answer.
async fn serve_within(listener: TcpListener, told: watch::Receiver<Told>, head: Duration, whole: Duration) {
    let pages = TowerToHyperService::new(router(told));
    let (mut answers, mut open) = (JoinSet::new(), Vec::new());
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                make_room(&mut answers, &mut open).await;
                let has_asked = Arc::new(AtomicBool::new(false));
                let (note, pages) = (Arc::clone(&has_asked), pages.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    note.store(true, Ordering::Relaxed);
                    pages.call(request)
                });
                let answer = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(head)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .title_case_headers(true)
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service);
                let task = answers.spawn(async move {
                    if let Ok(Err(error)) = tokio::time::timeout(whole, answer).await {
                        debug!(%from, %error, "a page was not read");
                    }
                });
                open.push(Open { task, has_asked });
            }
            // No descriptor is left, as a rule: there will be one.
            Err(error) => {
                debug!(%error, "cannot accept a connection for a page");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Waits until fewer than [`AT_ONCE`] connections are served. Of those that have not asked for anything the oldest gives up its place: a probe has
/// less patience than they.
async fn make_room(answers: &mut JoinSet<()>, open: &mut Vec<Open>) {
    while answers.try_join_next().is_some() {}
    open.retain(|one| !one.task.is_finished());
    if answers.len() < AT_ONCE {
        return;
    }
    if let Some(silent) = open.iter().find(|one| !one.has_asked.load(Ordering::Relaxed)) {
        silent.task.abort();
    }
    // That one, or one that has its answer.
    answers.join_next().await;
}

/// What the pages are made from.
#[derive(Clone)]
struct Source {
    told: watch::Receiver<Told>,
    turns: Arc<Semaphore>,
}

fn router(told: watch::Receiver<Told>) -> Router {
    let source = Source { told, turns: Arc::new(Semaphore::new(METRICS_AT_ONCE)) };
    Router::new()
        .route("/metrics", get(page_of_metrics))
        .route("/healthz", get(ready))
        .route("/healthz/live", get(async || "live\n"))
        .route("/healthz/ready", get(ready))
        .route("/role", get(role))
        .route("/role/master", get(master))
        .fallback(async || (StatusCode::NOT_FOUND, INDEX))
        .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, INDEX))
        .with_state(source)
}

/// Why a page cannot be given now.
struct Unavailable(&'static str);

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, self.0).into_response()
    }
}

async fn page_of_metrics(State(Source { told, turns }): State<Source>) -> Response {
    // Never closed.
    let _turn = turns.acquire().await;
    let told = told.borrow().clone();
    let serving = match told.serving() {
        Ok(serving) => serving,
        Err(unavailable) => return unavailable.into_response(),
    };
    match metrics::page(serving).await {
        Ok(page) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response(),
        // The runtime ends.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Ready to be sent to: the store is open, the ports are served, and a name server has told clients so. A name server that goes later makes no broker
/// unready: clients go on with what they know.
async fn ready(State(Source { told, .. }): State<Source>) -> Response {
    let told = told.borrow().clone();
    match told.serving() {
        Ok(serving) if serving.broker.has_registered() => "ready\n".into_response(),
        Ok(_) => Unavailable("no name server has registered the broker yet\n").into_response(),
        Err(unavailable) => unavailable.into_response(),
    }
}

async fn role(State(Source { told, .. }): State<Source>) -> Response {
    let told = told.borrow().clone();
    match told.serving() {
        Ok(serving) => {
            let own = serving.broker.identity();
            let role = if own.broker_id == 0 { "master" } else { "slave" };
            let said = serde_json::json!({
                "role": role,
                "clusterName": own.cluster_name,
                "brokerName": own.broker_name,
                "brokerId": own.broker_id,
            });
            ([(header::CONTENT_TYPE, "application/json")], format!("{said}\n")).into_response()
        }
        Err(unavailable) => unavailable.into_response(),
    }
}

/// For whoever sends clients to the master by an address that moves with it.
async fn master(State(Source { told, .. }): State<Source>) -> Response {
    let told = told.borrow().clone();
    match told.serving() {
        Ok(serving) if serving.broker.is_master() => "master\n".into_response(),
        Ok(_) => Unavailable("this broker is not the master of its set\n").into_response(),
        Err(unavailable) => unavailable.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn asked(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said
    }

    #[tokio::test]
    async fn a_broker_that_opens_its_store_or_ends_lives_and_is_not_ready() {
        let listener = listen(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = watch::channel(Told::Opening);
        let serving = tokio::spawn(serve(listener, told));
        let get = async |path: &str| asked(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        for (state, why) in [(Told::Opening, "being opened"), (Told::Stopping, "stops")] {
            tell.send_replace(state);
            assert!(get("/healthz/live").await.starts_with("HTTP/1.1 200"));
            for path in ["/healthz", "/healthz/ready", "/role", "/role/master", "/metrics"] {
                let said = get(path).await;
                assert!(said.starts_with("HTTP/1.1 503") && said.contains(why), "{path}: {said}");
            }
        }
        let said = get("/nothing").await;
        assert!(said.starts_with("HTTP/1.1 404") && said.ends_with(INDEX), "{said}");
        // What is no request, and one whose head never ends, cost their connection.
        assert!(asked(address, "\0\0\0\0\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        let head = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(2 * HEAD_BYTES_MAX));
        assert!(asked(address, &head).await.starts_with("HTTP/1.1 431"));
        serving.abort();
    }

    #[tokio::test]
    async fn connections_that_say_nothing_do_not_keep_a_probe_from_its_answer() {
        let listener = listen(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_tell, told) = watch::channel(Told::Opening);
        // So much patience that none of them ends by itself.
        let hour = Duration::from_secs(3600);
        let serving = tokio::spawn(serve_within(listener, told, hour, hour));
        // More than are served at a time; one of them has begun a request and does not go on.
        let mut silent = Vec::new();
        for _ in 0..AT_ONCE + 8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        silent[AT_ONCE - 1].write_all(b"GET /healthz/live HTTP/1.1\r\n").await.unwrap();
        let probe = asked(address, "GET /healthz/live HTTP/1.1\r\nHost: x\r\n\r\n");
        let said = tokio::time::timeout(Duration::from_secs(60), probe).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("live\n"), "{said}");
        // The oldest made room, and the newest did not have to.
        assert!(!matches!(silent[0].read(&mut [0]).await, Ok(1..)), "it is closed");
        let newest = silent[AT_ONCE + 7].try_read(&mut [0]);
        assert!(newest.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        serving.abort();
    }

    #[tokio::test]
    async fn the_port_is_ours_as_soon_as_a_process_that_ends_has_given_it_back() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let ending = tokio::spawn(async move {
            tokio::time::sleep(3 * ports::LOOK_AGAIN).await;
            drop(holder);
        });
        assert_eq!(listen(("127.0.0.1", port)).await.unwrap().local_addr().unwrap().port(), port);
        ending.await.unwrap();
    }
}
