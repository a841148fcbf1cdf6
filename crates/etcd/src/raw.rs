//! Any call of etcd's API, passed through as bytes, for a program between etcd and its clients. Each request carries its own login or
//! token, so one connection can serve several clients. Errors keep etcd's code and text.

use prost::bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status, Streaming};

use crate::connect::{Client, Inner, Login};
use crate::error::{Error, LoginRefusal};
use crate::read::{AsItIs, LONGEST_MESSAGE};
use crate::room::Channel;
use crate::session::{Session, Token, with_token};
use crate::watch::requests_until_dropped;

/// Why a call failed, in etcd's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Of gRPC.
    pub code: i32,
    pub message: String,
    /// How far the request came.
    pub reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// etcd has answered.
    Answered,
    /// No connection could be made, so etcd never saw the request.
    NotSent,
    /// Whether etcd carried it out is unknown.
    Unknown,
}

/// The answers of a call whose first request was sent. Dropping it ends the call.
#[derive(Debug)]
pub struct Answers {
    answers: Streaming<Bytes>,
    _held: oneshot::Sender<()>,
    _place: OwnedSemaphorePermit,
}

impl Client {
    /// The same connection, for somebody who logs in by password.
    pub fn with_login(&self, login: Login) -> Self {
        self.with_session(Session::new(login))
    }

    /// The same connection, for somebody who has logged in and sends this token. `None` if it cannot be one.
    pub fn with_token(&self, token: &str) -> Option<Self> {
        Some(self.with_session(Session::of_token(token)?))
    }

    fn with_session(&self, session: Session) -> Self {
        let Inner { endpoint, channel, for_long, streams, sockets, request_timeout, session: _ } = &*self.inner;
        Self {
            inner: std::sync::Arc::new(Inner {
                endpoint: endpoint.clone(),
                channel: channel.clone(),
                for_long: for_long.clone(),
                streams: streams.clone(),
                sockets: sockets.clone(),
                request_timeout: *request_timeout,
                session: Some(session),
            }),
        }
    }

    /// One request, one answer. The path is `/PACKAGE.SERVICE/METHOD`.
    pub async fn call_raw(&self, path: &'static str, request: Bytes) -> Result<Bytes, Refusal> {
        let attempt = |token: Token| async {
            let mut call = self.grpc(self.inner.channel.clone()).await?;
            let answer = call.unary(with_token(request.clone(), token), PathAndQuery::from_static(path), AsItIs).await;
            self.judged(answer)
        };
        self.in_time(self.logged_in(attempt, is_login)).await.map_err(|error| refusal(&error))?
    }

    /// One request, and answers until either side ends the call.
    pub async fn stream_raw(&self, path: &'static str, request: Bytes) -> Result<Answers, Refusal> {
        let attempt = |token: Token| async {
            let (channel, place) = self.channel_for_watch();
            let mut call = self.grpc(channel).await?;
            let (held, dropped) = oneshot::channel();
            let requests = with_token(requests_until_dropped(request.clone(), dropped), token);
            let answers = call.streaming(requests, PathAndQuery::from_static(path), AsItIs).await;
            Ok(self.judged(answers)?.map(|answers| Answers { answers, _held: held, _place: place }))
        };
        self.in_time(self.logged_in(attempt, is_login)).await.map_err(|error| refusal(&error))?
    }

    async fn grpc(&self, channel: Channel) -> Result<Grpc<Channel>, Error> {
        let mut call = Grpc::new(channel).max_decoding_message_size(LONGEST_MESSAGE);
        call.ready().await.map_err(|error| self.error(Status::from_error(error.into())))?;
        Ok(call)
    }

    /// A login that died is the session's matter; every other refusal is the caller's.
    fn judged<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<Result<T, Refusal>, Error> {
        match answer {
            Ok(answer) => Ok(Ok(answer.into_inner())),
            Err(status) => match self.error(status.clone()) {
                login @ Error::Unauthenticated(LoginRefusal::DeadToken | LoginRefusal::Outdated) => Err(login),
                unreachable @ Error::Unreachable { .. } => Err(unreachable),
                _ => Ok(Err(answered(&status))),
            },
        }
    }
}

impl Answers {
    /// `None` when etcd has ended the call.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        self.answers.message().await.map_err(|status| answered(&status))
    }
}

fn is_login(error: &Error) -> bool {
    matches!(error, Error::Unauthenticated(_))
}

fn answered(status: &Status) -> Refusal {
    Refusal { code: status.code() as i32, message: status.message().to_owned(), reach: Reach::Answered }
}

/// As etcd would say it.
fn refusal(error: &Error) -> Refusal {
    let (code, message) = match error {
        Error::Unauthenticated(LoginRefusal::WrongPassword) => {
            (Code::InvalidArgument, String::from("etcdserver: authentication failed, invalid user ID or password"))
        }
        Error::Unauthenticated(LoginRefusal::NoLogin) => {
            (Code::InvalidArgument, String::from("etcdserver: user name is empty"))
        }
        Error::Unauthenticated(LoginRefusal::DeadToken) => {
            (Code::Unauthenticated, String::from("etcdserver: invalid auth token"))
        }
        Error::Unauthenticated(LoginRefusal::Outdated) => {
            (Code::InvalidArgument, String::from("etcdserver: revision of auth store is old"))
        }
        Error::Timeout => (Code::Unavailable, String::from("etcdserver: request timed out")),
        Error::NotForLearner => (Code::Unavailable, String::from("etcdserver: rpc not supported for learner")),
        other => (Code::Unavailable, other.to_string()),
    };
    let reach = match error {
        Error::Unreachable { source, .. } if source.to_string().starts_with("Connection refused") => Reach::NotSent,
        Error::Unreachable { .. } | Error::Timeout => Reach::Unknown,
        _ => Reach::Answered,
    };
    Refusal { code: code as i32, message, reach }
}
