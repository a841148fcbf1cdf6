//! A plain page for load balancers: whether this member can serve clients, and nothing else. Anyone can request it, so
//! it is small, rate-limited, and queries the service at most once a second.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::agent::Agent;
use crate::unauthenticated::Unauthenticated;

const HEADERS: Duration = Duration::from_secs(2);
const CONNECTION: Duration = Duration::from_secs(5);
/// A request takes milliseconds; slower clients only block others.
const VISITORS: usize = 128;
const FRESH: Duration = Duration::from_secs(1);

struct Page {
    agent: Arc<Agent>,
    /// Held during a query, so that many simultaneous requests cause one query.
    last: Mutex<Option<(Instant, Result<(), &'static str>)>>,
}

pub(crate) async fn serve(agent: Arc<Agent>, listener: TcpListener) {
    let page = Arc::new(Page { agent, last: Mutex::new(None) });
    let mut visitors = Unauthenticated::new(VISITORS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let page = page.clone();
        visitors.admit(Some(from.ip()), async move {
            let service = service_fn(move |request| answer(page.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .max_buf_size(8 << 10)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION, connection).await;
        });
    }
}

async fn answer(page: Arc<Page>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = if request.uri().path() != "/health" {
        (StatusCode::NOT_FOUND, String::new())
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        (StatusCode::METHOD_NOT_ALLOWED, String::new())
    } else {
        match page.health().await {
            Ok(()) => (StatusCode::OK, String::from(r#"{"health":"true"}"#)),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!(r#"{{"health":"false","reason":"{why}"}}"#)),
        }
    };
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Full::new(Bytes::from(body))).expect("the parts are constants"))
}

impl Page {
    async fn health(&self) -> Result<(), &'static str> {
        let mut last = self.last.lock().await;
        match *last {
            Some((at, health)) if at.elapsed() < FRESH => health,
            _ => {
                let health = self.agent.health().await;
                *last = Some((Instant::now(), health));
                health
            }
        }
    }
}
