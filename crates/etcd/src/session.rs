//! Sends requests: with the login token, within the deadline, and once more if the token had expired. If a token led to no answer at all,
//! the next request logs in again. There is one login at a time, shared by all callers. It continues after its caller gives up: checking
//! a password takes etcd long, and on a busy machine a login that restarts with each call would never complete.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Response, Status};

use crate::connect::{Client, Login};
use crate::error::{Error, LoginRefusal};
use crate::generated::etcdserverpb::AuthenticateRequest;
use crate::generated::etcdserverpb::auth_client::AuthClient;
use crate::room::Channel;

/// The token of a request: none if the client has no login, or etcd's authentication is off.
pub(crate) type Token = Option<MetadataValue<Ascii>>;

/// After this a login is given up, for the next caller to begin another: longer than any caller waits.
const LOGIN: Duration = Duration::from_secs(30);

/// After a doubt that led to a new login, the next one is not for a while: an etcd that is merely slow has enough to do.
const BETWEEN_DOUBTS: Duration = Duration::from_secs(5);

/// What comes of a login; `None` while it is under way.
type Outcome = Option<Result<Token, Error>>;

pub(crate) struct Session {
    /// `None` where somebody else has logged in, and only the token is known.
    login: Option<Login>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until etcd was asked.
    known: Option<Token>,
    under_way: Option<watch::Receiver<Outcome>>,
    doubted: Option<Instant>,
}

impl Session {
    pub(crate) fn new(login: Login) -> Self {
        Self { login: Some(login), state: Mutex::default() }
    }

    /// With a token that somebody got from etcd. When it dies, there is no other. `None` if it cannot be sent.
    pub(crate) fn of_token(token: &str) -> Option<Self> {
        let mut token: MetadataValue<Ascii> = token.parse().ok()?;
        token.set_sensitive(true);
        Some(Self { login: None, state: Mutex::new(State { known: Some(Some(token)), ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether etcd has accepted the login, or is being asked right now.
    fn is_in_use(&self) -> bool {
        let state = self.state();
        state.known.is_some() || state.under_way.as_ref().is_some_and(|outcome| outcome.has_changed().is_ok())
    }

    /// The next request logs in again, unless somebody has done so since.
    fn doubt(&self, token: &Token) {
        if self.login.is_none() {
            return;
        }
        let mut state = self.state();
        let is_in_use = token.is_some() && state.known.as_ref() == Some(token);
        if is_in_use && state.doubted.is_none_or(|at| at.elapsed() >= BETWEEN_DOUBTS) {
            (state.known, state.doubted) = (None, Some(Instant::now()));
        }
    }
}

/// Doubts the token when a request ends without an answer. A simple token names an index of etcd's log: an etcd whose data was replaced has
/// not come that far, and waits for it instead of refusing the token.
struct Unanswered<'a> {
    session: &'a Session,
    token: &'a Token,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.session.doubt(self.token);
        }
    }
}

impl Client {
    /// Whether etcd has accepted this client's password, or is checking it right now: another request costs it no further check.
    pub fn is_logged_in(&self) -> bool {
        self.inner.session.as_ref().is_some_and(Session::is_in_use)
    }

    /// One call with one answer, within the request timeout.
    pub(crate) async fn call<Q, R, F>(&self, message: Q, send: impl Fn(Channel, Request<Q>) -> F) -> Result<R, Error>
    where
        Q: Clone,
        F: Future<Output = Result<Response<R>, Status>>,
    {
        self.in_time(self.call_for_long(message, send)).await
    }

    /// A call whose work grows with the database, and which therefore has no deadline of its own. If the member vanishes meanwhile, the
    /// connection's keepalive ends it.
    pub(crate) async fn call_for_long<Q, R, F>(
        &self,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<R, Error>
    where
        Q: Clone,
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let attempt = |token| {
            let answer = send(self.inner.channel.clone(), with_token(message.clone(), token));
            async { answer.await.map(Response::into_inner).map_err(|status| self.error(status)) }
        };
        self.logged_in(attempt, |error| matches!(error, Error::Unauthenticated(_))).await
    }

    /// Makes the attempt, and if it failed as it would with a dead token, makes it once more with a new one.
    pub(crate) async fn logged_in<R, F>(
        &self,
        attempt: impl Fn(Token) -> F,
        token_may_be_dead: fn(&Error) -> bool,
    ) -> Result<R, Error>
    where
        F: Future<Output = Result<R, Error>>,
    {
        let Some(session) = &self.inner.session else { return attempt(None).await };
        let token = self.token(session, None).await?;
        let mut unanswered = Unanswered { session, token: &token, answered: false };
        let answer = attempt(token.clone()).await;
        unanswered.answered = !matches!(answer, Err(Error::Timeout));
        drop(unanswered);
        match answer {
            Err(error) if token_may_be_dead(&error) => attempt(self.token(session, Some(&token)).await?).await,
            answer => answer,
        }
    }

    pub(crate) async fn in_time<R>(&self, work: impl Future<Output = Result<R, Error>>) -> Result<R, Error> {
        tokio::time::timeout(self.inner.request_timeout, work).await.unwrap_or(Err(Error::Timeout))
    }

    pub(crate) fn error(&self, status: Status) -> Error {
        Error::from_status(&self.inner.endpoint, &status)
    }

    /// The token in use, or a new one if that is the `dead` one. Many callers whose token died at once lead to one login.
    async fn token(&self, session: &Session, dead: Option<&Token>) -> Result<Token, Error> {
        if dead.is_some() && session.login.is_none() {
            return Err(Error::Unauthenticated(LoginRefusal::DeadToken));
        }
        let mut coming = {
            let mut state = session.state();
            if let Some(token) = &state.known
                && Some(token) != dead
            {
                return Ok(token.clone());
            }
            // One whose task was dropped with its runtime never ends.
            let under_way = state.under_way.take().filter(|outcome| outcome.has_changed().is_ok());
            state.under_way.insert(under_way.unwrap_or_else(|| self.begin_login())).clone()
        };
        match coming.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            Ok(None) | Err(_) => Err(Error::Timeout),
        }
    }

    /// Logs in, no matter who waits for it.
    fn begin_login(&self) -> watch::Receiver<Outcome> {
        let (tell, coming) = watch::channel(None);
        let client = self.clone();
        tokio::spawn(async move {
            let Some(session) = &client.inner.session else { return };
            let Some(login) = &session.login else { return };
            let answer = tokio::time::timeout(LOGIN, client.authenticate(login)).await;
            let outcome = match answer.unwrap_or(Err(Error::Timeout)) {
                Ok(token) => Ok(Some(token)),
                Err(Error::AuthNotEnabled) => Ok(None),
                Err(error) => Err(error),
            };
            let mut state = session.state();
            state.under_way = None;
            match &outcome {
                Ok(token) => state.known = Some(token.clone()),
                // A password that was changed meanwhile: the token of before is of no use either.
                Err(Error::Unauthenticated(_)) => state.known = None,
                Err(_) => {}
            }
            drop(state);
            // A learner logs nobody in, yet may answer a few calls without a login.
            let for_callers = if let Err(Error::NotForLearner) = outcome { Ok(None) } else { outcome };
            let _ = tell.send(Some(for_callers));
        });
        coming
    }

    pub(crate) async fn authenticate(&self, login: &Login) -> Result<MetadataValue<Ascii>, Error> {
        let Login { user, password } = login.clone();
        let request = AuthenticateRequest { name: user, password };
        let answer = AuthClient::new(self.inner.channel.clone()).authenticate(request).await;
        let token = answer.map_err(|status| self.error(status))?.into_inner().token;
        let mut token: MetadataValue<Ascii> =
            token.parse().map_err(|_| Error::Unauthenticated(LoginRefusal::DeadToken))?;
        token.set_sensitive(true);
        Ok(token)
    }
}

pub(crate) fn with_token<Q>(message: Q, token: Token) -> Request<Q> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// Makes etcd refuse at once where it has no leader, instead of letting the caller wait for one.
pub(crate) fn only_with_leader<Q>(mut request: Request<Q>) -> Request<Q> {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}
