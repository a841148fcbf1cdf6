//! Metadata services. That of EC2 in version 2 of its protocol: first a token, then user data with it. That of OpenStack has user data alone.
//! The agent uses only what quorate has written there. The server may be slow, endless or something else: time and size are limited, redirects
//! and proxies are not followed, and the content is checked like a seed disk.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder, StatusCode, redirect};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::With;
use super::seed::Told;
use crate::AgentError;
use crate::api::Seed;
use crate::api::boot::Machine;

/// The same on every instance.
pub(super) const ADDRESS: &str = "http://169.254.169.254";
/// For how long the token is good, in seconds: it is used at once.
const TOKEN_LASTS: &str = "60";
/// The service is next to the instance.
const CONNECTING: Duration = Duration::from_secs(2);
/// A whole answer.
const ANSWERING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);
/// AWS accepts at most this much user data, and Nova this much when it is encoded.
const MOST_OF_EC2: usize = 16 * 1024;
const MOST_OF_NOVA: usize = 65_535 / 4 * 3;
const LONGEST_TOKEN: usize = 1024;
const NO_USER_DATA: &str = "this instance has no user data";

/// Whose metadata service it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Ec2,
    Nova,
}

impl Service {
    /// The one that an image reads.
    pub(super) fn of(with: With) -> Option<Self> {
        match with {
            With::Ec2 => Some(Service::Ec2),
            With::Nova => Some(Service::Nova),
            With::Nothing | With::CloudInit => None,
        }
    }
}

/// What an instance with `seed: quorate` gets as user data. Every process on it can read that, so the only secret is the enrolment token.
pub fn user_data(seed: &Seed, machine: &Machine) -> String {
    json!({ "quorate": { "seed": seed, "machine": machine } }).to_string()
}

/// Why a machine cannot read its settings.
enum Failed {
    /// No answer, or no network: during boot it may not be up yet.
    NotYet(String),
    /// There is no user data.
    Absent,
    /// The service has answered, and another attempt would give the same answer.
    Wrong(String),
}

/// Reads the instance's user data, within this time.
pub(super) fn read(service: Service, address: &str, within: Duration) -> Result<Told, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Runtime)?;
    runtime.block_on(async {
        let reader = Reader::new(address)?;
        let begun = Instant::now();
        loop {
            let answer = match service {
                Service::Ec2 => reader.of_ec2().await,
                Service::Nova => reader.of_nova().await,
            };
            let why = match answer {
                Ok(text) => return told(&text),
                // Nova says so too while it does not know the server's address.
                Err(Failed::Absent) if service == Service::Nova => NO_USER_DATA.to_owned(),
                Err(Failed::Absent) => return Err(AgentError::UserData { why: NO_USER_DATA.to_owned() }),
                Err(Failed::Wrong(why)) => return Err(AgentError::UserData { why }),
                Err(Failed::NotYet(why)) => why,
            };
            if begun.elapsed() >= within {
                return Err(AgentError::NoMetadata { address: reader.address, seconds: within.as_secs(), why });
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

struct Reader {
    client: Client,
    address: String,
}

impl Reader {
    fn new(address: &str) -> Result<Self, AgentError> {
        // Fails if a provider is installed already, which is fine too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().redirect(redirect::Policy::none());
        let client = client.connect_timeout(CONNECTING).timeout(ANSWERING).build();
        let failed = |error: reqwest::Error| AgentError::UserData { why: error.to_string() };
        Ok(Reader { client: client.map_err(failed)?, address: address.to_owned() })
    }

    async fn of_ec2(&self) -> Result<Vec<u8>, Failed> {
        let token = self.client.put(format!("{}/latest/api/token", self.address));
        let token = ask(token.header("X-aws-ec2-metadata-token-ttl-seconds", TOKEN_LASTS), LONGEST_TOKEN).await?;
        let token = String::from_utf8(token).ok().filter(|token| is_token(token));
        let token = token.ok_or_else(|| Failed::Wrong(String::from("the metadata service gave no token")))?;
        let data = self.client.get(format!("{}/latest/user-data", self.address));
        ask(data.header("X-aws-ec2-metadata-token", token), MOST_OF_EC2).await
    }

    /// Nova knows a server by its address, so there is no token.
    async fn of_nova(&self) -> Result<Vec<u8>, Failed> {
        let data = self.client.get(format!("{}/openstack/latest/user_data", self.address));
        ask(data, MOST_OF_NOVA).await
    }
}

/// A valid header value.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reads at most this many bytes of an answer; a longer one is refused as soon as that shows.
async fn ask(request: RequestBuilder, most: usize) -> Result<Vec<u8>, Failed> {
    let not_yet = |error: reqwest::Error| Failed::NotYet(quorate_core::text::with_causes(&error.without_url()));
    let mut answer = request.send().await.map_err(not_yet)?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(Failed::Absent),
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            return Err(Failed::NotYet(format!("it answered {status}")));
        }
        status => return Err(Failed::Wrong(format!("the metadata service answered {status}"))),
    }
    let mut whole = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(not_yet)? {
        if whole.len() + chunk.len() > most {
            return Err(Failed::Wrong(format!("the metadata service answered with more than {most} bytes")));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}

fn told(text: &[u8]) -> Result<Told, AgentError> {
    let wrong = |why: String| AgentError::UserData { why };
    let mut found: Value = serde_json::from_slice(text).unwrap_or_default();
    let mut take = |field: &str| found.get_mut("quorate").and_then(|ours| ours.get_mut(field)).map(Value::take);
    let (Some(seed), Some(machine)) = (take("seed"), take("machine")) else {
        return Err(wrong(String::from("it was not written by quorate for `seed: quorate`")));
    };
    let seed_text = serde_json::to_vec(&seed).expect("plain data serializes");
    let (seed, machine) = (of(seed, "seed").map_err(wrong)?, of(machine, "machine").map_err(wrong)?);
    Ok(Told { seed, seed_text, machine, from: PathBuf::from("user data"), program: None })
}

fn of<T: DeserializeOwned>(value: Value, field: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("quorate.{field}: {error}"))
}

#[cfg(test)]
#[path = "metadata_tests.rs"]
mod tests;
