//! The HTTP port (`metricsPromExporterPort`): metrics for Prometheus, and for probes whether the process lives, is ready, and what it is.
//!
//! It answers from before the store is opened, which may take minutes after a crash: a probe of life must not end a start that goes on.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use broker::{Broker, PageOptions};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use crate::{metrics, ports};

/// How long a connection has for its request and the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request's head: hyper takes no smaller limit.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request's head may take: silent connections must not keep a probe waiting.
const HEAD_PATIENCE: Duration = Duration::from_secs(2);
/// Connections at a time; others wait to be accepted.
const AT_ONCE: usize = 64;
/// Pages of metrics that are written at a time.
const METRICS_AT_ONCE: usize = 4;

/// What there is to find, for an address that is none of the pages.
const INDEX: &str = "GET /metrics, /healthz/live, /healthz/ready or /role\n";

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
    let service = TowerToHyperService::new(router(told));
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut answers = tokio::task::JoinSet::new();
    loop {
        // Never closed.
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let answer = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_PATIENCE)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .title_case_headers(true)
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service.clone());
                answers.spawn(async move {
                    if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, answer).await {
                        debug!(%from, %error, "a page was not read");
                    }
                    drop(turn);
                });
                while answers.try_join_next().is_some() {}
            }
            // No descriptor is left, as a rule: there will be one.
            Err(error) => {
                debug!(%error, "cannot accept a connection for a page");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
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
            for path in ["/healthz", "/healthz/ready", "/role", "/metrics"] {
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
        let serving = tokio::spawn(serve(listener, told));
        // More than are served at a time; one of them has begun a request and does not go on.
        let mut silent = Vec::new();
        for _ in 0..AT_ONCE + 8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        silent[AT_ONCE - 1].write_all(b"GET /healthz/live HTTP/1.1\r\n").await.unwrap();
        let probe = asked(address, "GET /healthz/live HTTP/1.1\r\nHost: x\r\n\r\n");
        let said = tokio::time::timeout(Duration::from_secs(60), probe).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("live\n"), "{said}");
        // All were still held by their clients then.
        drop(silent);
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
