//! A service under systemd, on machines. The unit is rewritten at each start and is not enabled: after a boot the agent
//! starts it. If a service creates data at its first start, systemd itself refuses to start it where that data is missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::process::start_ticks;
use jiff::Timestamp;
use quorate_core::model::{Exit, ServiceState};
use tokio::process::Command;

use super::{Doing, Gate, Launch, Profile, Service, give_away};
use crate::AgentError;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::units::{SHUT_IN, one_line, quote, quote_value};

const PROPERTIES: &str = "ActiveState,SubState,MainPID,NRestarts,ExecMainStartTimestamp,ExecMainExitTimestamp,ExecMainCode,\
                          ExecMainStatus,Environment,Job";
/// Variables of the unit: the digest of the inputs, and what differs between the first start and later ones.
const DIGEST: &str = "QUORATE_INPUTS";
const FORMATION: &str = "QUORATE_FORMATION";

/// Shorter than controllers wait for facts.
const ANSWER: Duration = Duration::from_secs(4);

pub(crate) struct Systemd {
    layout: Layout,
    profile: Profile,
    seen: Mutex<Option<Running>>,
}

/// The process that was last seen running, and as what: as long as it lives, systemd knows no more.
struct Running {
    pid: i32,
    start: u64,
    state: ServiceState,
}

impl Running {
    fn of(shown: &str, state: &ServiceState) -> Option<Self> {
        let says = |line: &str| shown.lines().any(|found| found == line);
        let pid = shown.lines().find_map(|line| line.strip_prefix("MainPID=")?.parse().ok())?;
        if !says("ActiveState=active") || !matches!(state, ServiceState::Running { .. }) {
            return None;
        }
        Some(Running { pid, start: start_ticks(pid)?, state: state.clone() })
    }

    fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start)
    }
}

impl Systemd {
    /// Makes the user that the service runs as, where the image has none.
    pub(crate) async fn new(layout: Layout, profile: Profile) -> Result<Self, AgentError> {
        if find_owner(&profile.user)?.is_none() {
            add_user(&profile.user, &profile.data).await?;
        }
        Ok(Systemd { layout, profile, seen: Mutex::default() })
    }

    fn unit_file(&self) -> PathBuf {
        self.layout.root().join("etc/systemd/system").join(&self.profile.unit)
    }

    async fn put_unit(&self, launch: &Launch) -> Result<(), AgentError> {
        let first = first_args_file(&self.layout, &self.profile.name);
        if launch.first_args.is_empty() {
            files::remove(&first)?;
        } else {
            let line = format!("{FORMATION}={}\n", quote_value(&launch.first_args.join(" "))?);
            files::write(&first, line.as_bytes(), 0o644, None)?;
        }
        files::ensure(&self.unit_file(), unit(launch, &self.profile, &self.layout)?.as_bytes(), 0o644, None)?;
        give_away(&self.profile, self.owner()?)?;
        // systemd reads a unit that is not loaded by itself, and reading all of them takes it a while.
        let known = systemctl(&["show", "--property", "FragmentPath,NeedDaemonReload", &self.profile.unit]).await?;
        if is_current(&known, &self.unit_file()) { Ok(()) } else { systemctl(&["daemon-reload"]).await.map(drop) }
    }

    fn still_running(&self) -> Option<ServiceState> {
        let seen = self.seen.lock().expect("no holder panics");
        seen.as_ref().filter(|running| running.is_alive()).map(|running| running.state.clone())
    }
}

impl Service for Systemd {
    /// systemd starts it again by itself, and asks nobody: only a boot comes by here.
    fn start(&self, launch: Launch, _: Gate) -> Doing<'_, Result<(), AgentError>> {
        Box::pin(async move {
            // Of a unit that never ran, systemd knows nothing that could be reset.
            let has_run = self.unit_file().exists();
            self.put_unit(&launch).await?;
            if has_run {
                let _ = systemctl(&["reset-failed", &self.profile.unit]).await;
            }
            // Until it has begun: anyone who looks before would take it for one that has ended.
            systemctl(&["start", &self.profile.unit]).await.map(drop)
        })
    }

    fn adopt(&self, _: Gate) -> Doing<'_, bool> {
        Box::pin(async { matches!(self.look().await, ServiceState::Running { .. } | ServiceState::BackingOff { .. }) })
    }

    fn stop(&self, patience: Duration) -> Doing<'_, Result<(), AgentError>> {
        Box::pin(async move {
            // Without a unit nothing was ever started, and systemctl would complain.
            if !self.unit_file().exists() {
                return Ok(());
            }
            if let Ok(stopped) = tokio::time::timeout(patience, systemctl(&["stop", &self.profile.unit])).await {
                return stopped.map(drop);
            }
            // It is being stopped already, so that systemd does not start it again. One that has ended meanwhile cannot be killed.
            if let Err(error) = systemctl(&["kill", "--signal=SIGKILL", &self.profile.unit]).await {
                tracing::debug!(error = error.in_full(), "the service was not killed");
            }
            systemctl(&["stop", &self.profile.unit]).await.map(drop)
        })
    }

    fn look(&self) -> Doing<'_, ServiceState> {
        Box::pin(async {
            // Nothing of ours was ever started. Looks come often while a machine is made, and a process each time adds up.
            if !self.unit_file().exists() {
                return ServiceState::Stopped;
            }
            if let Some(state) = self.still_running() {
                return state;
            }
            match asked(ANSWER, systemctl(&["show", "--timestamp=unix", "--property", PROPERTIES, &self.profile.unit]))
                .await
            {
                Ok(shown) => {
                    let state = state_in(&shown, || (self.profile.last_words)(&self.profile.log));
                    *self.seen.lock().expect("no holder panics") = Running::of(&shown, &state);
                    state
                }
                Err(error) => {
                    let why = error.in_full();
                    tracing::warn!(why, "systemd does not answer");
                    ServiceState::Unknown { why }
                }
            }
        })
    }

    fn first_start_succeeded(&self) {
        if let Err(error) = files::remove(&first_args_file(&self.layout, &self.profile.name)) {
            tracing::warn!(error = error.in_full(), "the arguments of the first start are still there");
        }
    }

    fn owner(&self) -> Result<Option<Owner>, AgentError> {
        find_owner(&self.profile.user)?.map(Some).ok_or_else(|| AgentError::NoUser { user: self.profile.user.clone() })
    }
}

/// In a place that no reboot survives.
fn first_args_file(layout: &Layout, name: &str) -> PathBuf {
    layout.root().join(format!("run/quorate/{name}-first-start"))
}

pub(crate) fn find_owner(user: &str) -> Result<Option<Owner>, AgentError> {
    let path = Path::new("/etc/passwd");
    let users = fs::read_to_string(path).map_err(AgentError::file("read", path))?;
    Ok(owner_in(&users, user))
}

/// A user that nobody logs in as.
pub(crate) async fn add_user(name: &str, home: &Path) -> Result<(), AgentError> {
    let mut command = Command::new("useradd");
    command.args(["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "--home-dir"]);
    run(command.arg(home).arg(name)).await.map(drop)
}

/// A user and its group, in a file such as /etc/passwd.
pub(crate) fn owner_in(users: &str, name: &str) -> Option<Owner> {
    let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find_map(|fields| match fields[..] {
        [found, _, user, group, ..] if found == name => Some((user.parse().ok()?, group.parse().ok()?)),
        _ => None,
    })
}

/// The unit. Where the first start differs, at least one of two conditions must hold: there is data, or this is the first start.
fn unit(launch: &Launch, profile: &Profile, layout: &Layout) -> Result<String, AgentError> {
    let words = [launch.program.display().to_string()];
    let mut command = words.iter().chain(&launch.args).map(|word| quote(word)).collect::<Result<Vec<_>, _>>()?;
    let mut conditions = String::new();
    let mut variables = format!("Environment={DIGEST}={}\n", one_line(&launch.digest)?);
    for (variable, value) in &launch.env {
        variables.push_str(&format!("Environment={}\n", quote(&format!("{variable}={value}"))?));
    }
    if let Some(first) = &profile.first_start {
        let file = first_args_file(layout, &profile.name);
        for path in [&first.leaves, &file] {
            conditions.push_str(&format!("ConditionPathExists=|{}\n", path.display()));
        }
        variables.push_str(&format!("Environment={FORMATION}={}\n", first.otherwise));
        variables.push_str(&format!("EnvironmentFile=-{}\n", file.display()));
        command.push(format!("${FORMATION}"));
    }
    Ok(format!(
        "# Written by quorate at each start of {name}; changes are lost.\n\
         [Unit]\n\
         Description={name}, kept by quorate\n\
         After=network.target\n\
         StartLimitIntervalSec=0\n\
         {conditions}\
         \n\
         [Service]\n\
         Type=exec\n\
         User={user}\n\
         {variables}\
         ExecStart={command}\n\
         Restart=always\n\
         RestartSec=500ms\n\
         RestartSteps=6\n\
         RestartMaxDelaySec=30s\n\
         TimeoutStopSec=10s\n\
         StandardOutput=append:{log}\n\
         StandardError=inherit\n\
         {SHUT_IN}\
         {settings}\
         ReadWritePaths={data}\n",
        name = profile.name,
        user = one_line(&profile.user)?,
        command = command.join(" "),
        log = profile.log.display(),
        settings = profile.settings,
        data = profile.data.display(),
    ))
}

fn state_in(shown: &str, last_words: impl FnOnce() -> String) -> ServiceState {
    let properties: BTreeMap<&str, &str> = shown.lines().filter_map(|line| line.split_once('=')).collect();
    let get = |name: &str| properties.get(name).copied().unwrap_or_default();
    let at = |name: &str| {
        let seconds = get(name).strip_prefix('@').and_then(|text| text.parse().ok());
        seconds.and_then(|seconds| Timestamp::from_second(seconds).ok())
    };
    // Systemd has heard that it is to run, and comes to it when it can, which takes its time on a slow machine.
    let is_coming = !["", "0"].contains(&get("Job"));
    let restarts = get("NRestarts").parse().unwrap_or_default();
    match (get("ActiveState"), get("SubState")) {
        (_, "auto-restart" | "auto-restart-queued" | "dead-before-auto-restart" | "failed-before-auto-restart") => {
            let how = match get("ExecMainCode") {
                "1" => format!("exit status: {}", get("ExecMainStatus")),
                _ => format!("signal: {}", get("ExecMainStatus")),
            };
            let last_exit = Exit { at: at("ExecMainExitTimestamp").unwrap_or_default(), how, last_words: last_words() };
            ServiceState::BackingOff { restarts, last_exit }
        }
        (state, _) if is_coming || ["active", "activating", "reloading", "deactivating"].contains(&state) => {
            let variables = get("Environment").split_whitespace().filter_map(|one| one.split_once('='));
            let digest = variables.into_iter().find(|(name, _)| *name == DIGEST).map(|(_, value)| value.to_owned());
            let started = at("ExecMainStartTimestamp").filter(|_| state != "inactive");
            let since = started.unwrap_or_else(Timestamp::now);
            ServiceState::Running { since, digest: digest.unwrap_or_default(), restarts }
        }
        _ => ServiceState::Stopped,
    }
}

/// One that does not answer in time does not answer.
async fn asked(time: Duration, answer: impl Future<Output = Result<String, AgentError>>) -> Result<String, AgentError> {
    let silent = || AgentError::Command {
        command: String::from("systemctl show"),
        said: format!("no answer within {} s", time.as_secs()),
    };
    tokio::time::timeout(time, answer).await.unwrap_or_else(|_| Err(silent()))
}

/// Whether systemd knows the unit as it is there.
fn is_current(shown: &str, unit_file: &Path) -> bool {
    let path = format!("FragmentPath={}", unit_file.display());
    shown.lines().any(|line| line == path) && shown.lines().any(|line| line == "NeedDaemonReload=no")
}

pub(crate) async fn systemctl(args: &[&str]) -> Result<String, AgentError> {
    run(Command::new("systemctl").args(args)).await
}

pub(crate) async fn run(command: &mut Command) -> Result<String, AgentError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let output = command.kill_on_drop(true).output().await;
    let output = output.map_err(|source| AgentError::Spawn { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let args: Vec<_> = command.as_std().get_args().map(|arg| arg.to_string_lossy()).collect();
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(AgentError::Command { command: format!("{program} {}", args.join(" ")), said })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd;

    const UNIT: &str = "etcd.service";
    const USER: &str = "etcd";

    fn layout() -> Layout {
        Layout::new(Path::new("/")).unwrap()
    }

    fn launch() -> Launch {
        Launch {
            program: PathBuf::from("/opt/etcd/etcd"),
            args: vec![String::from("--name=etcd-1"), String::from("--log-level=a \"b\" 5%")],
            first_args: Vec::new(),
            env: BTreeMap::new(),
            digest: String::from("abc123"),
            version: None,
            pod: None,
        }
    }

    #[test]
    fn the_unit_never_bootstraps_a_cluster_without_an_order() {
        let unit = unit(&launch(), &etcd::profile(&layout()), &layout()).unwrap();
        let has = |line: &str| assert!(unit.lines().any(|l| l == line), "{line} is not in\n{unit}");
        has("ExecStart=\"/opt/etcd/etcd\" \"--name=etcd-1\" \"--log-level=a \\\"b\\\" 5%%\" $QUORATE_FORMATION");
        has("Environment=QUORATE_FORMATION=--initial-cluster-state=existing");
        has("EnvironmentFile=-/run/quorate/etcd-first-start");
        has("ConditionPathExists=|/var/lib/etcd/member/wal");
        has("ConditionPathExists=|/run/quorate/etcd-first-start");
        has("Environment=QUORATE_INPUTS=abc123");
        has("Restart=always");
        has("ProtectSystem=strict");
        has("SystemCallFilter=@system-service");
        has("MemoryDenyWriteExecute=yes");
        has("ReadWritePaths=/var/lib/etcd");
        has("LimitNOFILE=65536");
        assert!(!unit.contains("[Install]"), "the agent starts it, not the boot");
    }

    #[test]
    fn a_flag_cannot_add_a_line_to_the_unit() {
        let args = vec![String::from("--log-level=info\nExecStartPre=/bin/sh -c id")];
        let refused = unit(&Launch { args, ..launch() }, &etcd::profile(&layout()), &layout()).unwrap_err().to_string();
        assert!(refused.contains(r"info\nExecStartPre") && refused.contains("control character"), "{refused}");
    }

    #[test]
    fn a_running_unit_is_known_with_its_inputs() {
        let shown = "ActiveState=active\nSubState=running\nNRestarts=2\nExecMainStartTimestamp=@1700000000\n\
                     Environment=QUORATE_INPUTS=abc QUORATE_FORMATION=--initial-cluster-state=existing\n";
        let since = Timestamp::from_second(1_700_000_000).unwrap();
        let expected = ServiceState::Running { since, digest: String::from("abc"), restarts: 2 };
        assert_eq!(state_in(shown, String::new), expected);
    }

    #[test]
    fn a_process_is_known_by_its_pid_for_as_long_as_it_lives() {
        let state = ServiceState::Running { since: Timestamp::default(), digest: String::from("abc"), restarts: 0 };
        let (own, nobody) = (std::process::id(), u32::MAX >> 1);
        let shown = |active: &str, pid: u32| format!("ActiveState={active}\nSubState=running\nMainPID={pid}\n");
        let running = Running::of(&shown("active", own), &state).unwrap();
        assert!(running.is_alive() && running.state == state);
        let another = Running { start: running.start + 1, ..running };
        assert!(!another.is_alive(), "the number was given out again");
        assert!(Running::of(&shown("active", nobody), &state).is_none());
        assert!(Running::of(&shown("deactivating", own), &state).is_none(), "it is about to end");
        assert!(Running::of(&shown("active", own), &ServiceState::Stopped).is_none());
    }

    #[tokio::test]
    async fn a_failing_or_silent_systemd_does_not_mean_that_etcd_is_stopped() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path()).unwrap();
        let systemd = Systemd { profile: etcd::profile(&layout), layout, seen: Mutex::default() };
        assert_eq!(systemd.look().await, ServiceState::Stopped, "nothing was ever started");
        files::write(&systemd.unit_file(), b"", 0o644, None).unwrap();
        // Without a running systemd every question fails, as it does here.
        if systemctl(&["show", UNIT]).await.is_err() {
            assert!(matches!(systemd.look().await, ServiceState::Unknown { .. }));
        }
        let silent = asked(Duration::ZERO, std::future::pending()).await.unwrap_err().to_string();
        assert_eq!(silent, "systemctl show failed: no answer within 0 s");
    }

    #[test]
    fn settings_of_a_service_come_last_in_its_unit() {
        let profile = Profile { settings: "RemoveIPC=no\n", ..etcd::profile(&layout()) };
        let unit = unit(&launch(), &profile, &layout()).unwrap();
        let last = unit.lines().rfind(|line| line.starts_with("RemoveIPC="));
        assert_eq!(last, Some("RemoveIPC=no"), "{unit}");
    }

    #[test]
    fn systemd_reads_units_again_only_when_it_knows_another() {
        let file = Path::new("/etc/systemd/system/etcd.service");
        assert!(is_current("FragmentPath=/etc/systemd/system/etcd.service\nNeedDaemonReload=no\n", file));
        assert!(!is_current("FragmentPath=/etc/systemd/system/etcd.service\nNeedDaemonReload=yes\n", file));
        assert!(!is_current("FragmentPath=/lib/systemd/system/etcd.service\nNeedDaemonReload=no\n", file));
    }

    #[test]
    fn a_unit_that_systemd_has_not_come_to_yet_is_one_that_just_starts() {
        let queued = "ActiveState=inactive\nSubState=dead\nExecMainStartTimestamp=@1700000000\nJob=77\n";
        let starting = "ActiveState=activating\nSubState=start\nExecMainStartTimestamp=\n";
        for shown in [queued, starting] {
            let ServiceState::Running { since, .. } = state_in(shown, String::new) else { panic!("{shown}") };
            assert!(Timestamp::now().duration_since(since).as_secs() < 60, "{shown}: since {since}");
        }
    }

    #[test]
    fn a_unit_that_ended_says_how() {
        let shown = "ActiveState=activating\nSubState=auto-restart\nNRestarts=7\nExecMainCode=2\nExecMainStatus=9\n\
                     ExecMainExitTimestamp=@1700000000\n";
        let ServiceState::BackingOff { restarts: 7, last_exit } = state_in(shown, || String::from("bye")) else {
            panic!("not backing off")
        };
        assert_eq!((last_exit.how.as_str(), last_exit.last_words.as_str()), ("signal: 9", "bye"));
        // Newer ones are dead for a moment before they are started again.
        let between =
            "ActiveState=failed\nSubState=failed-before-auto-restart\nNRestarts=1\nExecMainCode=1\nExecMainStatus=1\n";
        assert!(matches!(state_in(between, String::new), ServiceState::BackingOff { restarts: 1, .. }));
        assert_eq!(state_in("ActiveState=inactive\nSubState=dead\n", String::new), ServiceState::Stopped);
        assert_eq!(state_in("", String::new), ServiceState::Stopped);
    }

    #[test]
    fn etcds_user_is_found_among_others() {
        let users = "root:x:0:0:root:/root:/bin/sh\netcd:x:998:997::/var/lib/etcd:/usr/sbin/nologin\n";
        assert_eq!(owner_in(users, USER), Some((998, 997)));
        assert_eq!(owner_in("root:x:0:0:root:/root:/bin/sh\n", USER), None);
    }
}
