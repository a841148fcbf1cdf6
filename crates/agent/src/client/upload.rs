//! Sends a file to a machine: a snapshot, or a new program. The file is sent in small pieces, and only after the agent has accepted
//! it.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::ext::on_informational;
use hyper::{Request, header};
use tokio::io::AsyncRead;
use tokio::sync::oneshot;
use tokio_util::io::ReaderStream;

use super::{AgentClient, ClientError, ORDER};
use crate::api::{self, UploadRequest, path};

const PIECE: usize = 1 << 20;
/// In bytes per second. Anything slower counts as stalled.
const SLOWEST: u64 = 1 << 20;

impl AgentClient {
    /// Sends a snapshot, which the agent keeps if length and SHA-256 are as announced. An existing one is not sent again.
    pub async fn stage(
        &self,
        request: &UploadRequest,
        content: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), ClientError> {
        self.upload(path::STAGE, request, content).await
    }

    /// Sends a new program, which the agent tries before it gives up its own.
    pub async fn upgrade(
        &self,
        request: &UploadRequest,
        content: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), ClientError> {
        let sent = self.upload(path::PROGRAM, request, content).await;
        // Another process answers from now on.
        self.idle.lock().expect("no holder panics").clear();
        sent
    }

    async fn upload(
        &self,
        to: &str,
        request: &UploadRequest,
        content: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), ClientError> {
        let (agreed, go) = oneshot::channel();
        let upload = Upload { agent: Agent::Asked(go), content: ReaderStream::with_capacity(content, PIECE) };
        let mut announced = Request::put(to)
            .header(header::HOST, self.address.to_string())
            .header(header::EXPECT, "100-continue")
            .header(api::header::FENCE, request.fence)
            .header(api::header::SHA256, &request.sha256)
            .header(api::header::BYTES, request.bytes)
            .body(upload.boxed_unsync())
            .map_err(|error| self.protocol(&error.to_string()))?;
        let agreed = Mutex::new(Some(agreed));
        on_informational(&mut announced, move |_| {
            if let Some(agreed) = agreed.lock().expect("no holder panics").take() {
                let _ = agreed.send(());
            }
        });
        let mut connection = self.connect_to_ours().await?;
        let time = ORDER + Duration::from_secs(request.bytes / SLOWEST);
        self.exchange(&mut connection, announced, time).await
    }
}

struct Upload<R> {
    agent: Agent,
    content: ReaderStream<R>,
}

enum Agent {
    Asked(oneshot::Receiver<()>),
    Agreed,
    /// Its answer says why.
    Refused,
}

impl<R: AsyncRead + Unpin> Body for Upload<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Agent::Asked(go) = &mut self.agent {
            self.agent = ready!(Pin::new(go).poll(context)).map_or(Agent::Refused, |()| Agent::Agreed);
        }
        if matches!(self.agent, Agent::Refused) {
            return Poll::Pending;
        }
        let piece = ready!(Pin::new(&mut self.content).poll_next(context));
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}
