//! Calls to AWS: the query protocol of EC2, signed, and repeated after temporary failures.
//!
//! Every call can be repeated: calls that create something have a client token by which AWS recognizes the repetition. Where AWS
//! accepts no token, the caller first looks for what an earlier attempt may have created.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_core::providers::aws::AwsSettings;
use quorate_core::text::{cut, with_causes};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::credentials::Chain;
use super::error::AwsError;
use super::profile::{Profiles, Variable};
use super::sign::{Credentials, Request, signed};
use super::xml::Xml;
use crate::web::{self, RETRY, Retry, Unread, escaped};

const CONNECTING: Duration = Duration::from_secs(10);
const ANSWERING: Duration = Duration::from_secs(60);
/// Credentials are replaced this long before they expire.
const SPARE: SignedDuration = SignedDuration::from_secs(300);
/// How much of an answer that is not understood is shown.
const SHOWN: usize = 300;
/// Far more than the largest page of a list has.
const LONGEST_ANSWER: usize = 32 << 20;
/// Services of the query protocol, with their versions.
const EC2: (&str, &str) = ("ec2", "2016-11-15");
const BALANCING: (&str, &str) = ("elasticloadbalancing", "2015-12-01");
const ROUTE53: &str = "route53";
const ROUTE53_VERSION: &str = "2013-04-01";
/// How many items a page of a list has.
const PAGE: &str = "500";
/// More would be an endless list.
const MOST_PAGES: usize = 1000;
/// Too many requests: this one was not carried out.
const BUSY: [&str; 8] = [
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "TooManyRequestsException",
    "SlowDown",
];
/// Credentials that were good once.
const EXPIRED: [&str; 3] = ["ExpiredToken", "ExpiredTokenException", "RequestExpired"];

const ENDPOINT_VARIABLE: &str = "AWS_ENDPOINT_URL";

/// Where the API is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) region: String,
    /// In place of the endpoints of the region.
    endpoint: Option<String>,
}

impl Place {
    pub(super) fn find(settings: &AwsSettings, variable: Variable<'_>) -> Result<Self, AwsError> {
        let profiles = Profiles::find(variable)?;
        let name =
            settings.profile.clone().or_else(|| variable("AWS_PROFILE")).unwrap_or_else(|| String::from("default"));
        let region = settings.region.clone().or_else(|| variable("AWS_REGION"));
        let region = region.or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.or_else(|| profiles.get(&name)?.get("region").cloned());
        let region = region.ok_or(AwsError::NoRegion)?;
        let of_spec = settings.endpoint.clone().map(|url| ("provider.aws.endpoint", url));
        let found = of_spec.or_else(|| Some(ENDPOINT_VARIABLE).zip(variable(ENDPOINT_VARIABLE)));
        let Some((setting, endpoint)) = found else { return Ok(Place { region, endpoint: None }) };
        check_endpoint(setting, &endpoint)?;
        Ok(Place { region, endpoint: Some(endpoint.trim_end_matches('/').to_owned()) })
    }

    pub(super) fn domain(region: &str) -> &'static str {
        if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
    }

    pub(super) fn url(&self, service: &str) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{endpoint}/"),
            None if service == ROUTE53 => format!("https://{service}.{}/", Self::domain(&self.region)),
            None => format!("https://{service}.{}.{}/", self.region, Self::domain(&self.region)),
        }
    }

    /// A request with a form as its body.
    pub(super) fn signed(&self, client: &Client, service: &str, body: String, who: &Credentials) -> RequestBuilder {
        let kind = ("content-type", String::from("application/x-www-form-urlencoded; charset=utf-8"));
        self.sign(client, ("POST", "", ""), service, body, vec![kind], who)
    }

    /// Route53 is the same for all regions, and yet signed for one.
    fn signs_for(&self, service: &str) -> &str {
        match service {
            ROUTE53 if self.region.starts_with("cn-") => "cn-northwest-1",
            ROUTE53 => "us-east-1",
            _ => &self.region,
        }
    }

    fn sign(
        &self,
        client: &Client,
        (method, below, query): (&str, &str, &str),
        service: &str,
        body: String,
        mut headers: Vec<(&'static str, String)>,
        who: &Credentials,
    ) -> RequestBuilder {
        let url = self.url(service);
        let host = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let (host, path) = host.split_once('/').unwrap_or((host, ""));
        headers.push(("host", host.to_owned()));
        let path = format!("/{path}{below}");
        let request = Request { method, path: &path, query, headers, body: body.as_bytes() };
        let all = signed(request, who, (self.signs_for(service), service), Timestamp::now());
        let url = if query.is_empty() { format!("{url}{below}") } else { format!("{url}{below}?{query}") };
        let request = if method == "GET" { client.get(url) } else { client.post(url).body(body) };
        // The client says itself which host it asks.
        all.into_iter()
            .filter(|(name, _)| *name != "host")
            .fold(request, |request, (name, value)| request.header(name, value))
    }
}

/// Requests carry tokens and user data, which anybody on the way could read. Loopback and link-local addresses are next
/// to this process: a test server, or a proxy of the host.
pub(super) fn check_endpoint(setting: &'static str, endpoint: &str) -> Result<(), AwsError> {
    let wrong = |why: &str| AwsError::Endpoint { setting, url: endpoint.to_owned(), why: why.to_owned() };
    let url = Url::parse(endpoint).map_err(|error| wrong(&error.to_string()))?;
    let is_link_local = web::address_of(&url).is_some_and(|address| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    });
    match url.scheme() {
        "https" => Ok(()),
        "http" if web::is_loopback(&url) || is_link_local => Ok(()),
        "http" => Err(wrong("without TLS, credentials are only sent to loopback and link-local addresses; use https")),
        _ => Err(wrong("it must begin with https://")),
    }
}

/// A body of names and values.
pub(super) fn form<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<String> =
        fields.into_iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    pairs.join("&")
}

/// A call of EC2 or of Elastic Load Balancing. `doing` says in words what it is for.
#[derive(Clone, Debug)]
pub(super) struct Call {
    doing: String,
    service: (&'static str, &'static str),
    action: &'static str,
    fields: Vec<(String, String)>,
    filters: usize,
    tagged: usize,
}

impl Call {
    pub(super) fn new(doing: impl Into<String>, action: &'static str) -> Self {
        Call { doing: doing.into(), service: EC2, action, fields: Vec::new(), filters: 0, tagged: 0 }
    }

    /// Of Elastic Load Balancing, where the items of a list are members.
    pub(super) fn balancing(doing: impl Into<String>, action: &'static str) -> Self {
        Call { service: BALANCING, ..Self::new(doing, action) }
    }

    /// `NAME.member.1`, `NAME.member.2` and so on.
    pub(super) fn members<S: ToString>(self, name: &str, values: impl IntoIterator<Item = S>) -> Self {
        self.list(&format!("{name}.member"), values)
    }

    /// Pairs, such as tags, in such a list.
    pub(super) fn pairs<K: ToString, V: ToString>(self, name: &str, pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        pairs.into_iter().enumerate().fold(self, |call, (at, (key, value))| {
            let one = format!("{name}.member.{}", at + 1);
            call.with(format!("{one}.Key"), key).with(format!("{one}.Value"), value)
        })
    }

    pub(super) fn with(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.fields.push((name.into(), value.to_string()));
        self
    }

    pub(super) fn maybe(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// `NAME.1`, `NAME.2` and so on.
    pub(super) fn list<S: ToString>(self, name: &str, values: impl IntoIterator<Item = S>) -> Self {
        let numbered = values.into_iter().enumerate();
        numbered.fold(self, |call, (at, value)| call.with(format!("{name}.{}", at + 1), value))
    }

    pub(super) fn filter<S: ToString>(mut self, name: &str, values: impl IntoIterator<Item = S>) -> Self {
        self.filters += 1;
        let number = self.filters;
        self.with(format!("Filter.{number}.Name"), name).list(&format!("Filter.{number}.Value"), values)
    }

    /// Tags that what it creates has from the beginning.
    pub(super) fn tagged(mut self, kind: &str, tags: &BTreeMap<String, String>) -> Self {
        self.tagged += 1;
        let within = format!("TagSpecification.{}", self.tagged);
        let call = self.with(format!("{within}.ResourceType"), kind);
        tags.iter().enumerate().fold(call, |call, (at, (key, value))| {
            let tag = format!("{within}.Tag.{}", at + 1);
            call.with(format!("{tag}.Key"), key).with(format!("{tag}.Value"), value)
        })
    }

    /// By which AWS knows that it is the same call again.
    pub(super) fn once(self) -> Self {
        self.with("ClientToken", quorate_pki::random_hex(16))
    }

    fn body(&self, next: Option<&str>) -> String {
        let fixed = [("Action", self.action), ("Version", self.service.1)];
        let given = self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        form(fixed.into_iter().chain(given).chain(next.map(|next| ("NextToken", next))))
    }
}

/// A request of Route53, whose answers are XML too. `path` is below the version.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    pub(super) doing: String,
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: String,
}

pub(super) struct Session {
    place: Place,
    profile: Option<String>,
    client: Client,
    retry: Retry,
    variable: Variables,
    /// Locked while they are asked for, so that many calls ask once.
    credentials: Mutex<Option<Rc<Credentials>>>,
}

/// Finds a variable of the environment.
type Variables = Rc<dyn Fn(&str) -> Option<String>>;

/// Profile, region and endpoint, as a spec names them.
type Named = [Option<String>; 3];

thread_local! {
    /// Clusters in the same region share a session, and so credentials.
    static SESSIONS: RefCell<BTreeMap<Named, Weak<Session>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Session {
    pub(super) fn of(settings: &AwsSettings) -> Result<Rc<Self>, AwsError> {
        let key = [settings.profile.clone(), settings.region.clone(), settings.endpoint.clone()];
        let open = SESSIONS.with_borrow(|all| all.get(&key).and_then(Weak::upgrade));
        if let Some(session) = open {
            return Ok(session);
        }
        let session = Rc::new(Self::new(settings, Rc::new(|name| std::env::var(name).ok()), RETRY)?);
        SESSIONS.with_borrow_mut(|all| all.insert(key, Rc::downgrade(&session)));
        Ok(session)
    }

    pub(super) fn new(settings: &AwsSettings, variable: Variables, retry: Retry) -> Result<Self, AwsError> {
        // Fails where one is installed already, which does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A redirect would carry signatures and tokens to wherever it leads.
        let client = Client::builder().connect_timeout(CONNECTING).timeout(ANSWERING).redirect(Policy::none()).build();
        let unusable =
            |error: reqwest::Error| AwsError::Unreadable { doing: String::from("begin"), why: with_causes(&error) };
        let place = Place::find(settings, variable.as_ref())?;
        let (client, credentials) = (client.map_err(unusable)?, Mutex::new(None));
        Ok(Session { place, profile: settings.profile.clone(), client, retry, variable, credentials })
    }

    pub(super) fn region(&self) -> &str {
        &self.place.region
    }

    /// Carries out a call.
    pub(super) async fn call(&self, call: &Call) -> Result<Xml, AwsError> {
        self.page(call, None).await
    }

    /// The same for something that may not exist: then there is nothing to be done.
    pub(super) async fn unless_absent(&self, call: &Call) -> Result<Option<Xml>, AwsError> {
        match self.page(call, None).await {
            Err(error) if error.is_absent() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Everything in a list, which comes in pages. `set` has the items.
    pub(super) async fn list(&self, call: Call, set: &str) -> Result<Vec<Xml>, AwsError> {
        let call = call.with("MaxResults", PAGE);
        let mut items: Vec<Xml> = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let page = self.page(&call, next.as_deref()).await?;
            items.extend(page.items(set).cloned());
            next = page.text("nextToken");
            if next.is_none() {
                break;
            }
        }
        Ok(items)
    }

    async fn page(&self, call: &Call, next: Option<&str>) -> Result<Xml, AwsError> {
        let send = async |who: &Credentials| {
            let (service, _) = call.service;
            let request = self.place.signed(&self.client, service, call.body(next), who);
            let (status, text) = self.exchange(&call.doing, service, request).await?;
            understood(&call.doing, status, &text)
        };
        self.repeat(send).await
    }

    /// A request of Route53. One with a body changes something.
    pub(super) async fn route53(&self, request: &Rest) -> Result<Xml, AwsError> {
        let query: BTreeMap<&str, &str> = request.query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (path, query) = (format!("{ROUTE53_VERSION}/{}", request.path), form(query));
        let send = async |who: &Credentials| {
            let method = if request.body.is_empty() { "GET" } else { "POST" };
            let headers = match method {
                "POST" => vec![("content-type", String::from("text/xml"))],
                _ => Vec::new(),
            };
            let what = (method, path.as_str(), query.as_str());
            let sent = self.place.sign(&self.client, what, ROUTE53, request.body.clone(), headers, who);
            let (status, text) = self.exchange(&request.doing, ROUTE53, sent).await?;
            understood(&request.doing, status, &text)
        };
        self.repeat(send).await
    }

    /// The value of a parameter of Systems Manager.
    pub(super) async fn parameter(&self, doing: &str, path: &str) -> Result<String, AwsError> {
        let body = json!({ "Name": path }).to_string();
        let send = async |who: &Credentials| {
            let headers = vec![
                ("content-type", String::from("application/x-amz-json-1.1")),
                ("x-amz-target", String::from("AmazonSSM.GetParameter")),
            ];
            let request = self.place.sign(&self.client, ("POST", "", ""), "ssm", body.clone(), headers, who);
            let (status, text) = self.exchange(doing, "ssm", request).await?;
            let value: Value = serde_json::from_str(&text).unwrap_or_default();
            let field = |name: &str| value[name].as_str().map(str::to_owned);
            if !status.is_success() {
                let code = field("__type").map(|code| code.rsplit('#').next().unwrap_or_default().to_owned());
                let message = field("message").or_else(|| field("Message")).unwrap_or_default();
                return Err(refusal(doing, status, code.map(|code| (code, message)), &text));
            }
            let found = value["Parameter"]["Value"].as_str().map(str::to_owned);
            found.ok_or_else(|| AwsError::Unreadable { doing: doing.to_owned(), why: String::from("it has no value") })
        };
        self.repeat(send).await
    }

    /// Repeats a call a few times where another attempt may succeed.
    async fn repeat<T>(&self, send: impl AsyncFn(&Credentials) -> Result<T, AwsError>) -> Result<T, AwsError> {
        let mut renewed = false;
        for tried in 1.. {
            let who = self.credentials().await?;
            let error = match send(&who).await {
                Err(error) if error.has_code(&EXPIRED) && !renewed => {
                    renewed = true;
                    self.drop_credentials(&who).await;
                    continue;
                }
                Err(error) => error,
                answer => return answer,
            };
            let passes =
                matches!(error, AwsError::Unreachable { .. } | AwsError::Failed { .. }) || error.has_code(&BUSY);
            if tried >= self.retry.attempts || !passes {
                return Err(error);
            }
            sleep(self.retry.pause(tried, None)).await;
        }
        unreachable!("the last attempt returns")
    }

    async fn exchange(
        &self,
        doing: &str,
        service: &str,
        request: RequestBuilder,
    ) -> Result<(StatusCode, String), AwsError> {
        let lost = |why: String| AwsError::Unreachable { doing: doing.to_owned(), url: self.place.url(service), why };
        let answer = request.send().await.map_err(|error| lost(with_causes(&error.without_url())))?;
        let status = answer.status();
        let body = web::read(answer, LONGEST_ANSWER).await.map_err(|unread| match unread {
            Unread::Lost(why) => lost(why),
            Unread::TooLong(why) => AwsError::Unreadable { doing: doing.to_owned(), why },
        })?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn credentials(&self) -> Result<Rc<Credentials>, AwsError> {
        let mut kept = self.credentials.lock().await;
        let lasts = |found: &&Rc<Credentials>| found.expires.is_none_or(|at| at > Timestamp::now() + SPARE);
        if let Some(found) = kept.as_ref().filter(lasts) {
            return Ok(found.clone());
        }
        let (client, variable, profile) = (&self.client, self.variable.as_ref(), self.profile.as_deref());
        let chain = Chain { client, variable, place: &self.place, profile };
        let found = Rc::new(chain.credentials().await?);
        *kept = Some(found.clone());
        Ok(found)
    }

    /// Unless somebody has replaced them already.
    async fn drop_credentials(&self, used: &Rc<Credentials>) {
        let mut kept = self.credentials.lock().await;
        if kept.as_ref().is_some_and(|kept| Rc::ptr_eq(kept, used)) {
            *kept = None;
        }
    }
}

fn understood(doing: &str, status: StatusCode, text: &str) -> Result<Xml, AwsError> {
    match Xml::read(text) {
        Ok(xml) if status.is_success() => Ok(xml),
        Ok(xml) => Err(refusal(doing, status, xml.error(), text)),
        Err(_) if !status.is_success() => Err(refusal(doing, status, None, text)),
        Err(why) => Err(AwsError::Unreadable { doing: doing.to_owned(), why }),
    }
}

/// A lack of capacity has the status of a failure, and yet nothing failed.
fn refusal(doing: &str, status: StatusCode, error: Option<(String, String)>, text: &str) -> AwsError {
    let shown = || cut(&text.split_whitespace().collect::<Vec<_>>().join(" "), SHOWN).into_owned();
    let (code, said) = error.unwrap_or_else(|| (status.as_u16().to_string(), shown()));
    let (doing, said) = (doing.to_owned(), cut(&said, SHOWN).into_owned());
    let is_answer = code.starts_with("Insufficient") || BUSY.contains(&code.as_str());
    if status.is_server_error() && !is_answer {
        AwsError::Failed { doing, code, said }
    } else {
        AwsError::Refused { doing, code, said }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
