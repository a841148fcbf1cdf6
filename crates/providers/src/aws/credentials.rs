//! Credentials, from the usual sources of AWS tools: a profile that the spec names; otherwise variables, a token of another identity, the
//! profile of the environment, a container, or the instance that quorate runs on.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::Secret;
use quorate_core::text::{cut, hex, with_causes};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use ring::digest;
use serde_json::Value;
use tokio::process::Command;

use super::error::AwsError;
use super::profile::{Profiles, Section, Variable};
use super::session::{Place, check_endpoint, form};
use super::sign::Credentials;
use super::xml::Xml;
use crate::web;

/// How many roles may be taken on, one from another.
const MOST_ROLES: usize = 5;
/// The metadata service of an instance is next to it, or nowhere.
const NEAR: Duration = Duration::from_secs(2);
const SHOWN: usize = 200;
/// Credentials have a few kilobytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// Where containers of ECS and pods of EKS find credentials, over plain http: next to them, like an address of loopback.
const NEAR_CONTAINERS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];
const PROCESS: &str = "credential_process";
const RELATIVE: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const FULL: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const SSO_ENDPOINT: &str = "AWS_ENDPOINT_URL_SSO";

/// Where credentials come from.
pub(super) struct Chain<'a> {
    pub(super) client: &'a Client,
    pub(super) variable: Variable<'a>,
    pub(super) place: &'a Place,
    /// That of the spec.
    pub(super) profile: Option<&'a str>,
}

impl Chain<'_> {
    pub(super) async fn credentials(&self) -> Result<Credentials, AwsError> {
        let profiles = Profiles::find(self.variable)?;
        if let Some(name) = self.profile {
            return self.of_profile(&profiles, name, 0).await;
        }
        if let Some(found) = self.of_variables() {
            return Ok(found);
        }
        let set = |name: &str| (self.variable)(name).filter(|value| !value.is_empty());
        if let Some((file, role)) = set("AWS_WEB_IDENTITY_TOKEN_FILE").zip(set("AWS_ROLE_ARN")) {
            return self.with_web_identity(&file, &role, set("AWS_ROLE_SESSION_NAME")).await;
        }
        let named = set("AWS_PROFILE");
        match named.as_deref().or_else(|| profiles.get("default").map(|_| "default")) {
            // One that only says a region leads no further.
            Some(name) if named.is_some() || leads_on(profiles.get(name)) => {
                return self.of_profile(&profiles, name, 0).await;
            }
            _ => {}
        }
        if let Some(found) = self.of_container().await? {
            return Ok(found);
        }
        match self.of_instance().await? {
            Some(found) => Ok(found),
            None => {
                let files = profiles.looked.iter().map(|path| path.display().to_string());
                let looked = std::iter::once(String::from("AWS_* variables")).chain(files);
                let looked = looked.chain([String::from("the metadata service of an instance")]).collect();
                Err(AwsError::NoCredentials { looked })
            }
        }
    }

    fn of_variables(&self) -> Option<Credentials> {
        let set = |name: &str| (self.variable)(name).filter(|value| !value.is_empty());
        let (access_key, secret_key) = set("AWS_ACCESS_KEY_ID").zip(set("AWS_SECRET_ACCESS_KEY"))?;
        let session_token = set("AWS_SESSION_TOKEN").map(Secret::new);
        Some(Credentials { access_key, secret_key: Secret::new(secret_key), session_token, expires: None })
    }

    /// `depth`: how many roles lead here.
    async fn of_profile(&self, profiles: &Profiles, name: &str, depth: usize) -> Result<Credentials, AwsError> {
        let profile = profiles.get(name).ok_or_else(|| profiles.missing(name))?;
        let wrong = |why: String| AwsError::Credentials { from: format!("the profile `{name}`"), why };
        let get = |field: &str| profile.get(field).cloned();
        if let Some(role) = get("role_arn") {
            if let Some(file) = get("web_identity_token_file") {
                return self.with_web_identity(&file, &role, get("role_session_name")).await;
            }
            if get("mfa_serial").is_some() {
                return Err(wrong(String::from("its role asks for a code each time (`mfa_serial`): use SSO instead")));
            }
            if depth >= MOST_ROLES {
                return Err(wrong(format!("more than {MOST_ROLES} roles lead to it")));
            }
            let source = match (get("source_profile"), get("credential_source").as_deref()) {
                // One that is its own source has keys next to the role.
                (Some(source), _) if source == name => {
                    keys(profile).ok_or_else(|| wrong(String::from("it has no keys")))?
                }
                (Some(source), _) => Box::pin(self.of_profile(profiles, &source, depth + 1)).await?,
                (None, Some("Ec2InstanceMetadata")) => {
                    let found = self.of_instance().await?;
                    found.ok_or_else(|| wrong(String::from("there is no metadata service of an instance")))?
                }
                (None, Some("EcsContainer")) => {
                    self.of_container().await?.ok_or_else(|| wrong(String::from("this is not a container of ECS")))?
                }
                (None, Some("Environment")) => {
                    self.of_variables().ok_or_else(|| wrong(String::from("AWS_ACCESS_KEY_ID is not set")))?
                }
                _ => return Err(wrong(String::from("its role has no `source_profile`"))),
            };
            return self.with_role(source, &role, profile).await;
        }
        if let Some(found) = keys(profile) {
            return Ok(found);
        }
        if let Some(command) = get(PROCESS) {
            return self.of_process(profiles, name, &command).await;
        }
        if get("sso_session").or_else(|| get("sso_start_url")).is_some() {
            return self.of_sso(profiles, name, profile).await;
        }
        Err(wrong(String::from("it has neither keys, nor a role, nor `credential_process`, nor SSO")))
    }

    async fn with_role(&self, source: Credentials, role: &str, profile: &Section) -> Result<Credentials, AwsError> {
        let session = profile.get("role_session_name").cloned().unwrap_or_else(session_name);
        let mut fields = vec![("Action", "AssumeRole"), ("Version", "2011-06-15"), ("RoleArn", role)];
        fields.push(("RoleSessionName", &session));
        if let Some(id) = profile.get("external_id") {
            fields.push(("ExternalId", id));
        }
        let duration = profile.get("duration_seconds").cloned().unwrap_or_default();
        if !duration.is_empty() {
            fields.push(("DurationSeconds", &duration));
        }
        let body = form(fields.iter().map(|(name, value)| (*name, *value)));
        let request = self.place.signed(self.client, "sts", body, &source);
        self.of_sts(&format!("the role {role}"), request, "AssumeRoleResult").await
    }

    async fn with_web_identity(
        &self,
        file: &str,
        role: &str,
        session: Option<String>,
    ) -> Result<Credentials, AwsError> {
        let path = PathBuf::from(file);
        let token = std::fs::read_to_string(&path);
        let token = token.map_err(|error| AwsError::Config { path, why: error.to_string() })?;
        let session = session.unwrap_or_else(session_name);
        let fields = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role),
            ("RoleSessionName", &session),
            ("WebIdentityToken", token.trim()),
        ];
        // The token itself proves who asks.
        let request =
            self.client.post(self.place.url("sts")).header("content-type", "application/x-www-form-urlencoded");
        self.of_sts(&format!("the role {role}"), request.body(form(fields)), "AssumeRoleWithWebIdentityResult").await
    }

    async fn of_sts(&self, from: &str, request: RequestBuilder, result: &str) -> Result<Credentials, AwsError> {
        let wrong = |why: String| AwsError::Credentials { from: from.to_owned(), why };
        let (_, body) = exchange(request).await.map_err(&wrong)?;
        let text = String::from_utf8_lossy(&body);
        let xml = Xml::read(&text).map_err(|_| wrong(cut(&text, SHOWN).into_owned()))?;
        if let Some((code, said)) = xml.error() {
            return Err(wrong(format!("{said} ({code})")));
        }
        let get = |field: &str| xml.text(&format!("{result}/Credentials/{field}"));
        let found = get("AccessKeyId").zip(get("SecretAccessKey")).zip(get("SessionToken"));
        let ((access_key, secret_key), token) = found.ok_or_else(|| wrong(String::from("the answer has no keys")))?;
        let expires = get("Expiration").and_then(|text| text.parse().ok());
        let (secret_key, session_token) = (Secret::new(secret_key), Some(Secret::new(token)));
        Ok(Credentials { access_key, secret_key, session_token, expires })
    }

    /// The rest of its command line may hold secrets, so errors have the program alone.
    async fn of_process(&self, profiles: &Profiles, name: &str, command: &str) -> Result<Credentials, AwsError> {
        let file = profiles.file_of(name, PROCESS).map(|path| format!(" in {}", path.display())).unwrap_or_default();
        let from = format!("the profile `{name}`{file}");
        let program = format!("its `{PROCESS}` (`{}`)", program_of(command));
        let wrong = |why: String| AwsError::Credentials { from: from.clone(), why: format!("{program} {why}") };
        let mut process = Command::new("sh");
        process.args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let done = process.output().await.map_err(|error| wrong(format!("cannot be started: {error}")))?;
        if !done.status.success() {
            // The shell repeats the line that it does not understand.
            let said = String::from_utf8_lossy(&done.stderr).replace(command, "…");
            return Err(wrong(format!("ended with {}: {}", done.status, cut(said.trim(), SHOWN))));
        }
        let value: Value = serde_json::from_slice(&done.stdout).map_err(|_| wrong(String::from("printed no JSON")))?;
        read(&value, "AccessKeyId", "SessionToken").ok_or_else(|| wrong(String::from("printed no keys")))
    }

    /// With the token that `aws sso login` has left.
    async fn of_sso(&self, profiles: &Profiles, name: &str, profile: &Section) -> Result<Credentials, AwsError> {
        let wrong = |why: String| AwsError::Credentials { from: format!("the profile `{name}`"), why };
        let session = profile.get("sso_session");
        let settings = match session {
            Some(session) => {
                profiles.session(session).ok_or_else(|| wrong(format!("there is no [sso-session {session}]")))?
            }
            None => profile,
        };
        let of = |section: &Section, field: &str| {
            section.get(field).cloned().ok_or_else(|| wrong(format!("it lacks `{field}`")))
        };
        let (url, region) = (of(settings, "sso_start_url")?, of(settings, "sso_region")?);
        let (account, role) = (of(profile, "sso_account_id")?, of(profile, "sso_role_name")?);
        let key = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, session.unwrap_or(&url).as_bytes());
        let home = (self.variable)("HOME").map(PathBuf::from).unwrap_or_default();
        let path = home.join(".aws/sso/cache").join(format!("{}.json", hex(key.as_ref())));
        let log_in = || wrong(format!("nobody is logged in: run `aws sso login --profile {name}`"));
        let text = std::fs::read(&path).map_err(|_| log_in())?;
        let kept: Value = serde_json::from_slice(&text).map_err(|_| log_in())?;
        let expires = kept["expiresAt"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let token = kept["accessToken"].as_str().filter(|_| expires.is_some_and(|at| at > Timestamp::now()));
        let token = token.ok_or_else(log_in)?;
        let query = form([("account_id", account.as_str()), ("role_name", &role)]);
        let base = match (self.variable)(SSO_ENDPOINT) {
            Some(base) => {
                check_endpoint(SSO_ENDPOINT, &base)?;
                base
            }
            None => format!("https://portal.sso.{region}.{}", Place::domain(&region)),
        };
        let request = self.client.get(format!("{base}/federation/credentials?{query}"));
        let (status, bytes) = exchange(request.header("x-amz-sso_bearer_token", token)).await.map_err(&wrong)?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match read(&value["roleCredentials"], "accessKeyId", "sessionToken") {
            Some(found) => Ok(found),
            None if status.as_u16() == 401 => Err(log_in()),
            None => Err(wrong(format!("{status}: {}", value["message"].as_str().unwrap_or("it does not say why")))),
        }
    }

    /// Of a container of ECS or a pod of EKS.
    async fn of_container(&self) -> Result<Option<Credentials>, AwsError> {
        let wrong = |why: String| AwsError::Credentials { from: String::from("the container"), why };
        let Some(url) = self.container_url().map_err(&wrong)? else { return Ok(None) };
        let file = (self.variable)("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from);
        let token = match file {
            Some(path) => {
                let text = std::fs::read_to_string(&path);
                Some(text.map_err(|error| AwsError::Config { path, why: error.to_string() })?.trim().to_owned())
            }
            None => (self.variable)("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        };
        let mut request = self.client.get(url).timeout(NEAR);
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let (_, bytes) = exchange(request).await.map_err(&wrong)?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        read(&value, "AccessKeyId", "Token").map(Some).ok_or_else(|| wrong(String::from("the answer has no keys")))
    }

    /// Where the token is sent to, and credentials come from. AWS' own tools accept the same addresses.
    fn container_url(&self) -> Result<Option<Url>, String> {
        if let Some(path) = (self.variable)(RELATIVE) {
            if !path.starts_with('/') {
                return Err(format!("{RELATIVE} does not begin with a slash"));
            }
            let url = format!("http://{}{path}", NEAR_CONTAINERS[0]);
            return Url::parse(&url).map(Some).map_err(|error| format!("{RELATIVE} is not a path: {error}"));
        }
        let Some(text) = (self.variable)(FULL) else { return Ok(None) };
        let url = Url::parse(&text).map_err(|error| format!("{FULL} is not a URL: {error}"))?;
        let is_near =
            web::address_of(&url).is_some_and(|address| NEAR_CONTAINERS.contains(&address.to_string().as_str()));
        match url.scheme() {
            "https" => Ok(Some(url)),
            "http" if is_near || web::is_loopback(&url) => Ok(Some(url)),
            _ => Err(format!(
                "{FULL} names {}, and without https only loopback addresses and those of ECS and EKS ({}) are used",
                url.host_str().unwrap_or("no host"),
                NEAR_CONTAINERS.join(", ")
            )),
        }
    }

    /// Of the instance's role. None: there is no such service, or the instance has no role.
    async fn of_instance(&self) -> Result<Option<Credentials>, AwsError> {
        if (self.variable)("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let base = (self.variable)("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        let base = base.unwrap_or_else(|| String::from("http://169.254.169.254"));
        let base = format!("{}/latest", base.trim_end_matches('/'));
        let asked = self.client.put(format!("{base}/api/token")).timeout(NEAR);
        let asked = asked.header("x-aws-ec2-metadata-token-ttl-seconds", "300").send().await;
        let Ok(answer) = asked else { return Ok(None) };
        let is_there = answer.status().is_success();
        let (true, Ok(token)) = (is_there, web::read(answer, LONGEST_ANSWER).await) else { return Ok(None) };
        let token = String::from_utf8_lossy(&token);
        let wrong = |why: String| AwsError::Credentials { from: String::from("the instance's role"), why };
        let get = async |path: &str| {
            let request = self.client.get(format!("{base}/meta-data/iam/security-credentials/{path}")).timeout(NEAR);
            let request = request.header("x-aws-ec2-metadata-token", &*token);
            let (status, body) = exchange(request).await.map_err(&wrong)?;
            Ok::<_, AwsError>(status.is_success().then(|| String::from_utf8_lossy(&body).into_owned()))
        };
        let Some(role) = get("").await? else { return Ok(None) };
        let Some(role) = role.lines().next().filter(|role| !role.is_empty()) else { return Ok(None) };
        let text = get(role).await?.ok_or_else(|| wrong(format!("there are none for {role}")))?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        read(&value, "AccessKeyId", "Token").map(Some).ok_or_else(|| wrong(format!("those of {role} have no keys")))
    }
}

/// The status and the body of an answer, or what went wrong.
async fn exchange(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), String> {
    let answer = request.send().await.map_err(|error| with_causes(&error.without_url()))?;
    let status = answer.status();
    let body = web::read(answer, LONGEST_ANSWER).await.map_err(web::Unread::why)?;
    Ok((status, body))
}

/// The first word of a command line that is not a variable for it.
fn program_of(command: &str) -> &str {
    let mut rest = command.trim_start();
    loop {
        let (word, after) = match rest.strip_prefix(['"', '\'']) {
            Some(quoted) => quoted.split_once(['"', '\'']).unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        if !word.contains('=') {
            return word;
        }
        // Its value may be quoted, and then ends at another quote.
        rest = match word.find(['"', '\'']) {
            Some(at) => rest[at + 1..].split_once(['"', '\'']).map_or("", |(_, after)| after).trim_start(),
            None => after.trim_start(),
        };
    }
}

fn leads_on(profile: Option<&Section>) -> bool {
    let fields = ["role_arn", "aws_access_key_id", "credential_process", "sso_session", "sso_start_url"];
    profile.is_some_and(|profile| fields.iter().any(|field| profile.contains_key(*field)))
}

fn keys(profile: &Section) -> Option<Credentials> {
    Some(Credentials {
        access_key: profile.get("aws_access_key_id")?.clone(),
        secret_key: Secret::new(profile.get("aws_secret_access_key")?.clone()),
        session_token: profile.get("aws_session_token").cloned().map(Secret::new),
        expires: None,
    })
}

fn session_name() -> String {
    format!("quorate-{}", quorate_pki::random_hex(4))
}

/// From JSON. The names of fields differ by their first letter, and in the name of the token.
fn read(value: &Value, access_key: &str, token: &str) -> Option<Credentials> {
    let is_small = access_key.starts_with('a');
    let (secret, expiration) =
        if is_small { ("secretAccessKey", "expiration") } else { ("SecretAccessKey", "Expiration") };
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    let expires = match &value[expiration] {
        Value::Number(millis) => millis.as_i64().and_then(|millis| Timestamp::from_millisecond(millis).ok()),
        other => other.as_str().and_then(|text| text.parse().ok()),
    };
    Some(Credentials {
        access_key: text(access_key)?,
        secret_key: Secret::new(text(secret)?),
        session_token: text(token).map(Secret::new),
        expires,
    })
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
