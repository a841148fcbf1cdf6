//! Calls to the services of a cloud: one token for all of them, endpoints from its catalogue, and retries after temporary failures.
//!
//! A request that creates something is not simply repeated: if its answer was lost, it may have been carried out. `create` first
//! looks for what it would have created.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::text::{cut, with_causes};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::catalogue::{Catalogue, Service};
use super::credentials::{Cloud, read_cas};
use super::error::OpenstackError;
use super::listing::Listing;
use crate::web::{RETRY, Retry};

const CONNECTING: Duration = Duration::from_secs(10);
/// Nova waits for other services before it answers.
const ANSWERING: Duration = Duration::from_secs(90);
/// An image over a slow line.
const UPLOADING: Duration = Duration::from_secs(3600);
/// A token is replaced this long before it expires.
const SPARE: SignedDuration = SignedDuration::from_secs(120);
/// How much of an answer that is not understood is shown.
const SHOWN: usize = 300;
const TOKEN: &str = "X-Auth-Token";
const NEW_TOKEN: &str = "X-Subject-Token";
const VERSION: &str = "OpenStack-API-Version";

/// A request. `doing` says in words what it is for.
#[derive(Clone, Debug)]
pub(super) struct Call {
    doing: String,
    service: Service,
    method: Method,
    path: String,
    body: Option<Value>,
    version: Option<&'static str>,
    /// Whether it does no harm if it is carried out twice.
    repeatable: bool,
}

impl Call {
    pub(super) fn new(doing: impl Into<String>, service: Service, method: Method, path: impl Into<String>) -> Self {
        let repeatable = method != Method::POST;
        Call { doing: doing.into(), service, method, path: path.into(), body: None, version: None, repeatable }
    }

    pub(super) fn json(self, body: Value) -> Self {
        Call { body: Some(body), ..self }
    }

    /// With a microversion.
    pub(super) fn at(self, version: &'static str) -> Self {
        Call { version: Some(version), ..self }
    }

    pub(super) fn repeatable(self) -> Self {
        Call { repeatable: true, ..self }
    }
}

struct Token {
    value: Secret,
    expires: Timestamp,
    catalogue: Catalogue,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

pub(super) struct Session {
    cloud: Cloud,
    client: Client,
    retry: Retry,
    /// Locked while a new one is asked for, so that many calls ask once.
    token: Mutex<Option<Rc<Token>>>,
    /// What clusters that are only looked at share.
    pub(super) listing: Mutex<Option<Listing>>,
    /// How often anything was changed.
    pub(super) changes: Cell<u64>,
}

/// Cloud and region, as a spec names them.
type Named = (Option<String>, Option<String>);

thread_local! {
    /// Clusters in the same cloud share a session, and so a token, also where one is looked at after the other.
    static SESSIONS: RefCell<BTreeMap<Named, Rc<Session>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Session {
    /// The session for a cloud in a region, as the spec names them.
    pub(super) fn of(cloud: Option<&str>, region: Option<&str>) -> Result<Rc<Self>, OpenstackError> {
        let key = (cloud.map(str::to_owned), region.map(str::to_owned));
        let open = SESSIONS.with_borrow(|all| all.get(&key).cloned());
        if let Some(session) = open {
            return Ok(session);
        }
        let session = Rc::new(Self::new(Cloud::find(cloud, region)?, RETRY)?);
        SESSIONS.with_borrow_mut(|all| all.insert(key, session.clone()));
        Ok(session)
    }

    /// With the credentials of this file, and other times.
    pub(super) fn of_file(
        clouds: &Path,
        cloud: Option<&str>,
        region: Option<&str>,
        attempts: u32,
        pause: Duration,
    ) -> Result<Self, OpenstackError> {
        let mut cloud = Cloud::of_file(clouds, cloud)?;
        cloud.region = region.map(str::to_owned).or(cloud.region);
        Self::new(cloud, Retry { attempts, first: pause, longest: pause * 2 })
    }

    pub(super) fn new(cloud: Cloud, retry: Retry) -> Result<Self, OpenstackError> {
        Self::within(cloud, retry, ANSWERING)
    }

    /// An answer may take so long.
    pub(super) fn within(cloud: Cloud, retry: Retry, answering: Duration) -> Result<Self, OpenstackError> {
        // Fails where one is installed already, which does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A redirect would carry the token to wherever it leads.
        let mut client = Client::builder().connect_timeout(CONNECTING).timeout(answering).redirect(Policy::none());
        if let Some(path) = &cloud.ca_file {
            client = client.tls_certs_only(read_cas(path)?);
        }
        let unusable =
            |error: reqwest::Error| OpenstackError::Unsupported { cloud: cloud.name.clone(), why: with_causes(&error) };
        let client = client.build().map_err(unusable)?;
        Ok(Session { cloud, client, retry, token: Mutex::new(None), listing: Mutex::new(None), changes: Cell::new(0) })
    }

    /// The project that the credentials are for, by id.
    pub(super) async fn project(&self) -> Result<String, OpenstackError> {
        Ok(self.token().await?.catalogue.project.clone())
    }

    /// None if it does not exist.
    pub(super) async fn get(
        &self,
        doing: &str,
        service: Service,
        path: &str,
        version: Option<&'static str>,
    ) -> Result<Option<Value>, OpenstackError> {
        let call = Call { version, ..Call::new(doing, service, Method::GET, path) };
        match self.send(&call).await {
            Err(error) if error.is_absent() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Everything in a list, which may come in pages. `field` has the items. Whatever could make it look shorter than it is, such as a 404, is
    /// an error: what is not in a list may be removed as if it were gone.
    pub(super) async fn list(
        &self,
        doing: &str,
        service: Service,
        path: &str,
        field: &str,
        version: Option<&'static str>,
    ) -> Result<Vec<Value>, OpenstackError> {
        /// More would be an endless list.
        const MOST_PAGES: usize = 1000;
        let mut items: Vec<Value> = Vec::new();
        let mut next = Some(path.to_owned());
        for _ in 0..MOST_PAGES {
            let Some(path) = next.take() else { return Ok(items) };
            let call = Call { version, ..Call::new(doing, service, Method::GET, path) };
            let mut page = self.send(&call).await?;
            let found = page.get_mut(field).and_then(Value::as_array_mut).map(std::mem::take);
            let found = found.ok_or_else(|| unreadable(doing, format!("it has no list of {field}")))?;
            if found.is_empty() {
                return Ok(items);
            }
            items.extend(found);
            next = next_page(&page, field, service)
                .map_err(|link| unreadable(doing, format!("it leads to the next page by {link}")))?;
        }
        Err(unreadable(doing, format!("the list has more than {MOST_PAGES} pages")))
    }

    /// Changes something.
    pub(super) async fn change(&self, call: Call) -> Result<Value, OpenstackError> {
        self.send(&call).await
    }

    /// Deletes something; one that does not exist is deleted.
    pub(super) async fn delete(&self, doing: &str, service: Service, path: &str) -> Result<(), OpenstackError> {
        match self.send(&Call::new(doing, service, Method::DELETE, path)).await {
            Err(error) if error.is_absent() => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Creates something, once: if the answer is lost, or says that it exists, what `find` finds by its marks is the answer.
    pub(super) async fn create(
        &self,
        call: Call,
        find: impl AsyncFn() -> Result<Option<Value>, OpenstackError>,
    ) -> Result<Value, OpenstackError> {
        for tried in 1.. {
            let error = match self.send(&call).await {
                Err(error) if error.is_unsure() || (tried > 1 && error.is_conflict()) => error,
                answer => return answer,
            };
            sleep(self.retry.pause(tried, None)).await;
            if let Some(found) = find().await? {
                return Ok(found);
            }
            if tried >= self.retry.attempts || !error.is_unsure() {
                return Err(error);
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Sends a file, once: what became of it must be looked at if there is no good answer.
    pub(super) async fn upload(
        &self,
        doing: &str,
        service: Service,
        path: &str,
        content: Bytes,
    ) -> Result<(), OpenstackError> {
        let token = self.token().await?;
        let url = format!("{}{path}", token.catalogue.endpoint(&self.cloud, service)?);
        let request = self.client.put(&url).header(TOKEN, token.value.expose()).timeout(UPLOADING);
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(content);
        let answer = read(doing, &url, request).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            self.drop_token(&token).await;
            let (doing, code, said) = (doing.to_owned(), 401, said(&answer.body));
            return Err(OpenstackError::Failed { doing, code, said });
        }
        if answer.status.is_success() { Ok(()) } else { Err(refusal(doing, &answer)) }
    }

    /// Repeats what may be repeated, a few times.
    async fn send(&self, call: &Call) -> Result<Value, OpenstackError> {
        if call.method != Method::GET {
            self.changes.set(self.changes.get() + 1);
        }
        let mut renewed = false;
        for tried in 1.. {
            let token = self.token().await?;
            let (error, told) = match self.send_once(call, &token).await {
                Ok(answer) if answer.status.is_success() => return Ok(answer.body),
                Ok(answer) if answer.status == StatusCode::UNAUTHORIZED && !renewed => {
                    // It may have been revoked, or the identity service may have new keys. Nothing was done.
                    renewed = true;
                    self.drop_token(&token).await;
                    continue;
                }
                Ok(answer) => (refusal(&call.doing, &answer), retry_after(&answer.headers)),
                Err(error) => (error, None),
            };
            if tried >= self.retry.attempts || !may_repeat(call, &error) {
                return Err(error);
            }
            sleep(self.retry.pause(tried, told)).await;
        }
        unreachable!("the last attempt returns")
    }

    async fn send_once(&self, call: &Call, token: &Token) -> Result<Answer, OpenstackError> {
        let base = token.catalogue.endpoint(&self.cloud, call.service)?;
        let mut headers = vec![(TOKEN, token.value.expose().to_owned())];
        headers.extend(call.version.map(|version| (VERSION, format!("{} {version}", call.service.version_name()))));
        let url = format!("{base}{}", call.path);
        self.exchange(&call.doing, call.method.clone(), &url, &headers, call.body.as_ref()).await
    }

    async fn exchange(
        &self,
        doing: &str,
        method: Method,
        url: &str,
        headers: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Answer, OpenstackError> {
        let mut request = self.client.request(method, url).header("Accept", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        read(doing, url, request).await
    }

    async fn token(&self) -> Result<Rc<Token>, OpenstackError> {
        let mut kept = self.token.lock().await;
        if let Some(token) = kept.as_ref().filter(|token| token.expires > Timestamp::now() + SPARE) {
            return Ok(token.clone());
        }
        let token = Rc::new(self.log_in().await?);
        *kept = Some(token.clone());
        Ok(token)
    }

    /// Unless somebody has replaced it already.
    async fn drop_token(&self, used: &Rc<Token>) {
        let mut kept = self.token.lock().await;
        if kept.as_ref().is_some_and(|kept| Rc::ptr_eq(kept, used)) {
            *kept = None;
        }
    }

    async fn log_in(&self) -> Result<Token, OpenstackError> {
        const DOING: &str = "log in";
        let url = format!("{}/auth/tokens", self.cloud.auth_url);
        for tried in 1.. {
            let asked = self.exchange(DOING, Method::POST, &url, &[], Some(&self.cloud.login.request())).await;
            let (error, told) = match asked {
                Ok(answer) if answer.status.is_success() => return self.read_token(&answer),
                Ok(answer) if answer.status == StatusCode::UNAUTHORIZED => {
                    let said = said(&answer.body);
                    return Err(OpenstackError::NotAccepted { cloud: self.cloud.name.clone(), said });
                }
                Ok(answer) => (refusal(DOING, &answer), retry_after(&answer.headers)),
                Err(error) => (error, None),
            };
            // Another token does no harm.
            let passes = error.is_unsure() || is_busy(&error) || matches!(error, OpenstackError::Unreachable { .. });
            if tried >= self.retry.attempts || !passes {
                return Err(error);
            }
            sleep(self.retry.pause(tried, told)).await;
        }
        unreachable!("the last attempt returns")
    }

    fn read_token(&self, answer: &Answer) -> Result<Token, OpenstackError> {
        let unreadable = |why: &str| unreadable("log in", why.to_owned());
        let value = answer.headers.get(NEW_TOKEN).and_then(|value| value.to_str().ok());
        let value = value.ok_or_else(|| unreadable("it has no token"))?;
        let token = answer.body.get("token").unwrap_or(&Value::Null);
        let expires = token.get("expires_at").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let expires = expires.ok_or_else(|| unreadable("it does not say when the token expires"))?;
        Ok(Token { value: Secret::new(value), expires, catalogue: Catalogue::read(token) })
    }
}

/// Sends a request and reads the whole answer.
async fn read(doing: &str, url: &str, request: RequestBuilder) -> Result<Answer, OpenstackError> {
    let lost = |error: reqwest::Error| OpenstackError::Unreachable {
        doing: doing.to_owned(),
        url: url.split('?').next().unwrap_or_default().to_owned(),
        sent: !error.is_connect(),
        why: with_causes(&error.without_url()),
    };
    let answer = request.send().await.map_err(lost)?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let bytes = answer.bytes().await.map_err(lost)?;
    let body = match serde_json::from_slice(&bytes) {
        Ok(value) => value,
        Err(_) if bytes.is_empty() => Value::Null,
        Err(_) if !status.is_success() => Value::String(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => return Err(unreadable(doing, error.to_string())),
    };
    Ok(Answer { status, headers, body })
}

fn unreadable(doing: &str, why: String) -> OpenstackError {
    OpenstackError::Unreadable { doing: doing.to_owned(), why }
}

/// Whether another attempt may succeed and can do no harm.
fn may_repeat(call: &Call, error: &OpenstackError) -> bool {
    match error {
        OpenstackError::Unreachable { sent: false, .. } => true,
        error if is_busy(error) => true,
        error => call.repeatable && error.is_unsure(),
    }
}

/// Too many requests: this one was not carried out.
fn is_busy(error: &OpenstackError) -> bool {
    matches!(error, OpenstackError::Refused { code: 429 | 413, .. })
}

fn refusal(doing: &str, answer: &Answer) -> OpenstackError {
    let (doing, code, said) = (doing.to_owned(), answer.status.as_u16(), said(&answer.body));
    if answer.status.is_server_error() {
        OpenstackError::Failed { doing, code, said }
    } else {
        OpenstackError::Refused { doing, code, said }
    }
}

/// What a service says of its refusal. Each wraps it in another key.
fn said(body: &Value) -> String {
    let message = |value: &Value| value.get("message").and_then(Value::as_str).map(str::to_owned);
    let wrapped = || body.as_object().and_then(|body| body.values().find_map(message));
    let text = message(body).or_else(wrapped);
    let text = text.or_else(|| body.as_str().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")));
    let text = text.filter(|text| !text.is_empty()).unwrap_or_else(|| String::from("it does not say why"));
    cut(&text, SHOWN).into_owned()
}

/// In seconds; dates are not used by OpenStack.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The path of the next page of a list: everything after the endpoint. Services link to it in different ways. An error is a link that is not
/// understood.
fn next_page<'a>(page: &'a Value, field: &str, service: Service) -> Result<Option<String>, &'a Value> {
    let links = page.get(format!("{field}_links")).and_then(Value::as_array).into_iter().flatten();
    let mut next = links.filter(|link| link.get("rel").and_then(Value::as_str) == Some("next"));
    let link = next.next().map(|link| link.get("href").unwrap_or(link)).or_else(|| page.get("next"));
    match link.filter(|link| !link.is_null()) {
        None => Ok(None),
        Some(link) => link.as_str().and_then(|text| service.path_in(text)).map(Some).ok_or(link),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
