//! Follows fluent-bit's configuration in another etcd: keys below a prefix become files, and fluent-bit restarts when they change. This
//! is a separate process, so that an agent that follows nothing does not need its memory. While that etcd is unavailable, or has a
//! configuration that fluent-bit refuses, the last good one stays.

pub(crate) mod allowed;
mod set;

use std::path::Path;
use std::time::Duration;

use quorate_core::model::{LogSourceConfig, SourceLogin};
use quorate_core::text::with_causes;
use quorate_etcd::{Client, ConnectOptions, Error, KeyRange, KeyValue, Login, RangeQuery};

use crate::layout::Layout;
use crate::{AgentError, files};
use set::Set;

pub(crate) use set::{DIRECTORY, INDEX, forget, start_over};

/// Several changed keys should not restart fluent-bit several times.
const SETTLING: Duration = Duration::from_millis(300);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Follows until it is killed.
pub async fn follow(root: &Path) -> Result<(), AgentError> {
    let layout = Layout::new(root).map_err(AgentError::file("find", root))?;
    let path = layout.log_source();
    let text = std::fs::read(&path).map_err(AgentError::file("read", &path))?;
    let source = serde_json::from_slice(&text).map_err(|source| AgentError::Unreadable { path, source })?;
    Follower { layout, source, said: None }.run().await;
    Ok(())
}

/// Why the configuration cannot be followed now.
pub(crate) fn trouble(layout: &Layout) -> Option<String> {
    std::fs::read_to_string(layout.log_source_trouble()).ok()
}

struct Follower {
    layout: Layout,
    source: LogSourceConfig,
    said: Option<String>,
}

impl Follower {
    /// One endpoint after the other, and a pause after the last one has failed too.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut any = false;
            let mut troubles = Vec::new();
            for endpoint in self.source.endpoints.clone() {
                let (read, why) = self.follow(&endpoint).await;
                any |= read;
                troubles.push(why);
                if read {
                    break;
                }
            }
            // A watch that worked and then ended is not a problem yet.
            pause = if any { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            if !any {
                self.say(Some(troubles.join("; ")));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Whether the keys could be read there, and how it ended.
    async fn follow(&mut self, endpoint: &str) -> (bool, String) {
        let mut read = false;
        let why = match self.connect(endpoint) {
            Ok(client) => self.read_and_watch(&client, &mut read).await,
            Err(error) => error,
        };
        (read, explain(endpoint, &self.source, &why))
    }

    fn connect(&self, endpoint: &str) -> Result<Client, Error> {
        let mut options = ConnectOptions::new(format!("https://{endpoint}"), &self.source.ca);
        match &self.source.login {
            SourceLogin::Certificate { chain, key } => {
                options.identity = Some((chain.clone(), key.expose().to_owned()));
            }
            SourceLogin::Password { user, password } => {
                options.login = Some(Login { user: user.clone(), password: password.expose().to_owned() });
            }
        }
        Client::connect(options)
    }

    /// Ends only with an error. Every change is read completely, at one revision, so no partial change is applied.
    async fn read_and_watch(&mut self, client: &Client, read: &mut bool) -> Error {
        let keys = KeyRange::prefix(self.source.prefix.as_bytes());
        loop {
            let found = match client.range(RangeQuery::new(keys.clone())).await {
                Ok(found) => found,
                Err(error) => return error,
            };
            *read = true;
            let trouble = self.take(found.pairs).await.err();
            self.say(trouble);
            let mut watch = match client.watch(keys.clone(), found.revision + 1, false).await {
                Ok(watch) => watch,
                Err(error) => return error,
            };
            if let Err(error) = watch.next().await {
                return error;
            }
            tokio::time::sleep(SETTLING).await;
        }
    }

    async fn take(&self, pairs: Vec<KeyValue>) -> Result<(), String> {
        let set = Set::of(&self.source.prefix, pairs)?;
        set.put(self.layout.root()).await.map_err(|error| error.in_full())
    }

    /// In the log, and to the agent; once.
    fn say(&mut self, trouble: Option<String>) {
        if self.said == trouble {
            return;
        }
        let path = self.layout.log_source_trouble();
        let told = match &trouble {
            Some(trouble) => {
                tracing::warn!(trouble, "the configuration for forwarding logs is not followed; the last one stays");
                files::write(&path, trouble.as_bytes(), 0o644, None)
            }
            None => {
                tracing::info!("the configuration for forwarding logs is followed");
                files::remove(&path)
            }
        };
        if let Err(error) = told {
            tracing::warn!(error = error.in_full(), "the agent cannot be notified");
        }
        self.said = trouble;
    }
}

fn explain(endpoint: &str, source: &LogSourceConfig, why: &Error) -> String {
    let who = match &source.login {
        SourceLogin::Password { user, .. } => format!("the user {user}"),
        SourceLogin::Certificate { .. } => String::from("the certificate's user"),
    };
    match why {
        Error::PermissionDenied => {
            format!("the etcd at {endpoint} does not let {who} read below {}: grant a role that may", source.prefix)
        }
        Error::Unauthenticated(refusal) => {
            format!("the etcd at {endpoint} does not know {who}: {refusal}; see `host.log_forwarding.from_etcd`")
        }
        other => with_causes(other),
    }
}
