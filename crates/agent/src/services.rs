//! Supervision of services, each known by its name: as child processes under the local provider, by systemd on machines, and by the
//! machine's kubelet if the configuration says so. Whether a service may run is decided elsewhere; a supervisor keeps running what it
//! was ordered to start, and reports its state.

pub(crate) mod child;
mod choice;
pub(crate) mod static_pod;
pub(crate) mod systemd;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_core::model::ServiceState;
use serde::{Deserialize, Serialize};

use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::{AgentError, Supervisor};
use child::Children;
use choice::Choice;
use static_pod::manifest::Pod;
use systemd::Systemd;

pub(crate) type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// For what a service closes and hands over when it is asked to end.
pub(crate) const PATIENT: Duration = Duration::from_secs(10);
/// For one whose data is given up. A follower ends well within this; a leader whose followers are gone would find no successor.
pub(crate) const HURRIED: Duration = Duration::from_millis(500);

/// Asked before a service is started again by itself, in this way.
pub(crate) type Gate = Arc<dyn Fn(Launch) -> Doing<'static, Result<(), AgentError>> + Send + Sync>;

/// How a service is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Further arguments until its first start has succeeded. Never stored, because a later agent cannot know whether it has.
    #[serde(skip)]
    pub(crate) first_args: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Of the inputs that it is started with.
    pub(crate) digest: String,
    /// What the program must be. Not known of a service that an older agent started.
    #[serde(default)]
    pub(crate) version: Option<String>,
    /// Set where the kubelet of this machine runs it.
    #[serde(default)]
    pub(crate) pod: Option<Pod>,
}

/// What a supervisor knows of a service besides how it is started. It is the same at every start.
#[derive(Clone)]
pub(crate) struct Profile {
    pub(crate) name: String,
    /// Of systemd.
    pub(crate) unit: String,
    /// As whom it runs on a machine.
    pub(crate) user: String,
    /// The directory that it may write to.
    pub(crate) data: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) first_start: Option<FirstStart>,
    /// Variables that begin so are settings to it, and none of the agent's are passed on.
    pub(crate) variables: &'static [&'static str],
    /// Whether a kubelet may run it.
    pub(crate) may_be_pod: bool,
    /// Further settings of its unit, one to a line.
    pub(crate) settings: &'static str,
    /// A process that does this service's work and that nobody keeps.
    pub(crate) find_stray: Arc<dyn Fn() -> Option<i32> + Send + Sync>,
    /// Why it ended, as far as its log says.
    pub(crate) last_words: fn(&Path) -> String,
}

/// Of a service whose first start differs from all others: it makes its data then, and must never do so again by itself.
#[derive(Clone)]
pub(crate) struct FirstStart {
    /// Said at every other start.
    pub(crate) otherwise: &'static str,
    /// There from the first start on.
    pub(crate) leaves: PathBuf,
    /// Refuses a start that is not the first where there is no data.
    pub(crate) check: Arc<dyn Fn() -> Result<(), AgentError> + Send + Sync>,
}

impl Profile {
    fn is_setting(&self, variable: &str) -> bool {
        self.variables.iter().any(|prefix| variable.starts_with(prefix))
    }

    fn all_args(&self, launch: &Launch) -> Vec<String> {
        let mut args = launch.args.clone();
        if let (Some(first), true) = (&self.first_start, launch.first_args.is_empty()) {
            args.push(first.otherwise.to_owned());
        }
        args.extend(launch.first_args.iter().cloned());
        args
    }
}

pub(crate) trait Service: Send + Sync {
    /// Starts the service and from then on keeps it running.
    fn start(&self, launch: Launch, gate: Gate) -> Doing<'_, Result<(), AgentError>>;

    /// Takes over a service that an earlier agent started, if it still runs.
    fn adopt(&self, gate: Gate) -> Doing<'_, bool>;

    /// Ends the service, or what is left of it, and keeps it ended. One that takes longer than this is killed.
    fn stop(&self, patience: Duration) -> Doing<'_, Result<(), AgentError>>;

    fn look(&self) -> Doing<'_, ServiceState>;

    /// Its first start has succeeded: arguments for that alone are dropped.
    fn first_start_succeeded(&self);

    /// To whom its files must belong, where not to the agent's own user.
    fn owner(&self) -> Result<Option<Owner>, AgentError>;
}

/// The services of this machine, by name.
pub(crate) struct Services {
    layout: Layout,
    supervisor: Supervisor,
    known: Mutex<BTreeMap<String, Arc<dyn Service>>>,
    /// Why those that should run could not be started.
    failures: Mutex<BTreeMap<String, String>>,
}

impl Services {
    pub(crate) fn new(layout: Layout, supervisor: Supervisor) -> Self {
        Services { layout, supervisor, known: Mutex::default(), failures: Mutex::default() }
    }

    /// The service of this profile. On a machine its user is made, where the image has none.
    pub(crate) async fn with(&self, profile: Profile) -> Result<Arc<dyn Service>, AgentError> {
        if let Some(known) = self.named(&profile.name) {
            return Ok(known);
        }
        let (name, layout) = (profile.name.clone(), self.layout.clone());
        let usual: Arc<dyn Service> = match self.supervisor {
            Supervisor::Child => Arc::new(Children::new(layout, profile.clone())),
            Supervisor::Systemd => Arc::new(Systemd::new(layout, profile.clone()).await?),
        };
        let service: Arc<dyn Service> =
            if profile.may_be_pod { Arc::new(Choice::new(self.layout.clone(), profile, usual)) } else { usual };
        self.known.lock().expect("no holder panics").insert(name, service.clone());
        Ok(service)
    }

    pub(crate) fn named(&self, name: &str) -> Option<Arc<dyn Service>> {
        self.known.lock().expect("no holder panics").get(name).cloned()
    }

    /// Its profile may be another next time.
    pub(crate) fn forget(&self, name: &str) {
        self.known.lock().expect("no holder panics").remove(name);
        self.note_failure(name, None);
    }

    pub(crate) fn note_failure(&self, name: &str, why: Option<String>) {
        let mut failures = self.failures.lock().expect("no holder panics");
        match why {
            Some(why) => drop(failures.insert(name.to_owned(), why)),
            None => drop(failures.remove(name)),
        }
    }

    pub(crate) fn failure(&self, name: &str) -> Option<String> {
        self.failures.lock().expect("no holder panics").get(name).cloned()
    }

    pub(crate) async fn stop_all(&self) -> Result<(), AgentError> {
        let all: Vec<_> = self.known.lock().expect("no holder panics").values().cloned().collect();
        let mut stopped = Ok(());
        for service in all {
            stopped = stopped.and(service.stop(PATIENT).await);
        }
        stopped
    }
}

/// Data directory and log must belong to the user that the service runs as, where that is not the agent's own.
fn give_away(profile: &Profile, owner: Option<Owner>) -> Result<(), AgentError> {
    let Profile { data, log, .. } = profile;
    files::make_dir(data, 0o700)?;
    files::open_log(log)?;
    let Some(owner) = owner else { return Ok(()) };
    give(log, owner)?;
    // For the group, which anyone who forwards logs is in.
    let readable = fs::set_permissions(log, fs::Permissions::from_mode(0o640));
    readable.map_err(AgentError::file("make readable", log))?;
    // Data that came with its disk from another machine may be another user's there.
    let is_foreign = fs::metadata(data).is_ok_and(|found| (found.uid(), found.gid()) != owner);
    if is_foreign { give_all(data, owner) } else { Ok(()) }
}

fn give(path: &Path, (user, group): Owner) -> Result<(), AgentError> {
    lchown(path, Some(user), Some(group)).map_err(AgentError::file("give to its user", path))
}

/// The directory itself last: as long as it is another's, the rest may be too.
fn give_all(directory: &Path, owner: Owner) -> Result<(), AgentError> {
    for entry in fs::read_dir(directory).map_err(AgentError::file("list", directory))?.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => give_all(&entry.path(), owner)?,
            _ => give(&entry.path(), owner)?,
        }
    }
    give(directory, owner)
}
