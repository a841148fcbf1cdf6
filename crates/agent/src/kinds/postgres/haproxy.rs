//! HAProxy on this machine: one port for the primary and one for replicas, chosen by Patroni's REST API over TLS. It has no data, so it
//! runs wherever the configuration says, without orders.
//!
//! A reload applies changed servers and settings. The previous process keeps its connections until they end. No server counts as healthy
//! before it was checked: a start reads a state file in which all servers are down, and a reload reads the state of the previous process.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_core::kinds::postgres::desire::{PEER_LIST_FILE, PEER_TRUST_FILE};
use quorate_core::kinds::postgres::{CLIENT_PORT, HAPROXY, REST_PORT};
use quorate_core::model::{Exit, HaproxyService, ProgramService, ServiceState};
use quorate_core::text::hex;
use quorate_pki::Sha256;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::holding::Queue;
use super::tools;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::process::Process;
use crate::services::Service;
use crate::{AgentError, logs};

pub(super) const CONFIG_FILE: &str = "etc/haproxy/haproxy.cfg";
/// In the directory that it works in: the path of a socket has room for about 100 characters.
const SOCKET: &str = "haproxy.sock";
const SERVERS_FILE: &str = "servers";
/// The configuration that the process was started or reloaded with.
const LOADED_FILE: &str = "loaded";
const DRAFT_FILE: &str = "draft.cfg";
const USUAL_PLACES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
const ANSWERING: Duration = Duration::from_secs(3);
/// From the start of its process to its first answer. A request for facts waits for it.
const STARTING: Duration = Duration::from_secs(1);
const RELOADING: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// The first two lines of a file with the state of servers.
const SERVERS_HEAD: &str = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
    srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state \
    bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr \
    srv_agent_port\n";
/// The fields of that state for the health check, and their values.
const CHECK_STATE: usize = 13;
const CHECKED: &str = "6";
const PORTS: [&str; 2] = ["primary", "replica"];
const LAST_BYTES: u64 = 16 << 10;

impl Agent {
    /// What is started: a master, which starts workers and gives them new settings.
    pub(crate) fn haproxy_program(
        &self,
        haproxy: &HaproxyService,
        search: Option<&str>,
    ) -> Result<ProgramService, Refusal> {
        let path = match &haproxy.program {
            Some(path) => path.clone(),
            None => find(HAPROXY, search)
                .ok_or_else(|| Refusal::failed("there is no program `haproxy` on the PATH, nor in /usr/sbin"))?,
        };
        let place = self.layout.service_data(HAPROXY).display().to_string();
        let config = self.layout.haproxy_config().display().to_string();
        let args = [String::from("-W"), String::from("-C"), place, String::from("-f"), config].into();
        Ok(ProgramService { path, args, env: BTreeMap::new() })
    }

    /// Runs HAProxy as the configuration says, or records why it does not run.
    pub(crate) async fn keep_haproxy(&self) {
        let state = self.state.get();
        let wanted = state.node_config.as_ref().and_then(|in_place| in_place.config.haproxy().cloned());
        let Some(wanted) = wanted else { return };
        let kept = self.put_haproxy(&wanted).await;
        if let Err(error) = &kept {
            tracing::error!(%error, "HAProxy does not run as it should");
        }
        self.services.note_failure(HAPROXY, kept.err().map(|error| error.to_string()));
    }

    async fn put_haproxy(&self, wanted: &HaproxyService) -> Result<(), Refusal> {
        let state = self.state.get();
        let Some(in_place) = &state.node_config else { return Ok(()) };
        let Some(service) = in_place.config.service(HAPROXY) else { return Ok(()) };
        let kept = self.services.with(self.plain_profile(service)).await?;
        let wanted_digest = in_place.service_digest(HAPROXY);
        let runs = matches!(kept.look().await, ServiceState::Running { digest, .. } if digest == wanted_digest);
        let place = Place { owner: kept.owner()?, ..Place::new(&self.layout) };
        files::make_dir(&place.directory, 0o700)?;
        let read = |path: &str| fs::read_to_string(self.layout.root().join(path)).ok();
        let (trust, list) = (read(PEER_TRUST_FILE).unwrap_or_default(), read(PEER_LIST_FILE));
        let text = self.layout.fill_in(&config(wanted, &trust, list.as_deref()), state.address);
        let program = self.haproxy_program(wanted, state.search.as_deref())?.path;
        place.check(&program, &text).await?;
        files::ensure(&place.config, text.as_bytes(), files::PRIVATE, place.owner)?;
        let loaded = hex(&Sha256::digest(&text));
        let is_loaded = fs::read_to_string(place.directory.join(LOADED_FILE)).is_ok_and(|found| found == loaded);
        if runs && !is_loaded {
            let known = place.ask("show servers state").await?;
            place.put(SERVERS_FILE, &states(wanted, &known))?;
            let reloaded = place.reload().await;
            place.put(SERVERS_FILE, &states(wanted, ""))?;
            reloaded?;
        } else if !runs {
            place.put(SERVERS_FILE, &states(wanted, ""))?;
            self.state.update(|state| _ = state.services.insert(HAPROXY.to_owned())).await?;
            self.restart_service(HAPROXY).await?;
        }
        Ok(place.put(LOADED_FILE, &loaded)?)
    }

    /// Its process may run and end a moment later, because a port is taken: it counts once it answers.
    pub(crate) async fn look_at_haproxy(&self, kept: &dyn Service) -> ServiceState {
        let place = Place::new(&self.layout);
        let answered = async {
            loop {
                let state = kept.look().await;
                if !matches!(state, ServiceState::Running { .. }) || place.worker().await.is_ok() {
                    return state;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(STARTING, answered).await.unwrap_or_else(|_| {
            let how = String::from("it does not answer");
            let last_exit = Exit { at: Timestamp::now(), how, last_words: String::new() };
            ServiceState::BackingOff { restarts: 0, last_exit }
        })
    }

    /// Holds new clients of this server in HAProxy's queue. When the time is up, they are released, whatever has happened to the
    /// controller.
    pub(super) async fn hold_clients(self: &Arc<Self>, server: &str, time: Duration) -> Result<(), Refusal> {
        self.queue().hold(server, time).await
    }

    /// Whether clients wait here until a switchover is over.
    pub(crate) fn holds_clients(&self) -> bool {
        self.postgres.held.lock().expect("no holder panics").anybody()
    }

    pub(super) async fn release_clients(self: &Arc<Self>, server: &str, to: Option<&str>) -> Result<(), Refusal> {
        self.queue().release(server, to).await
    }

    fn queue(self: &Arc<Self>) -> Arc<Queue> {
        let agent = self.clone();
        let most = move || {
            let state = agent.state.get();
            Some(state.node_config.as_ref()?.config.haproxy()?.max_connections)
        };
        let held = self.postgres.held.clone();
        Arc::new(Queue { place: Place::new(&self.layout), layout: self.layout.clone(), held, most: Box::new(most) })
    }

    /// Called once, when the agent starts: releases clients that a previous agent held.
    pub(crate) async fn resume_haproxy(self: &Arc<Self>) {
        let state = self.state.get();
        let Some(haproxy) = state.node_config.as_ref().and_then(|in_place| in_place.config.haproxy()) else { return };
        for server in haproxy.servers.keys() {
            if let Err(error) = self.release_clients(server, None).await {
                tracing::debug!(%error, server, "HAProxy was not notified");
            }
        }
        self.keep_haproxy().await;
    }
}

/// Why HAProxy has not confirmed a command.
#[derive(Debug)]
pub(super) enum Untold {
    NotRunning,
    NoSuchServer,
    /// It may have obeyed all the same.
    Failed(String),
}

impl Untold {
    pub(super) fn into_refusal(self) -> Refusal {
        complain(self.to_string()).into()
    }
}

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untold::NotRunning => f.write_str("it does not run"),
            Untold::NoSuchServer => f.write_str("it has no such server"),
            Untold::Failed(why) => f.write_str(why),
        }
    }
}

fn complain(said: String) -> AgentError {
    AgentError::Command { command: HAPROXY.to_owned(), said }
}

/// HAProxy's directory and sockets.
pub(super) struct Place {
    directory: PathBuf,
    config: PathBuf,
    owner: Option<Owner>,
}

impl Place {
    pub(super) fn new(layout: &Layout) -> Self {
        Place { directory: layout.service_data(HAPROXY), config: layout.haproxy_config(), owner: None }
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    fn put(&self, name: &str, content: &str) -> Result<(), AgentError> {
        files::ensure(&self.directory.join(name), content.as_bytes(), files::PRIVATE, self.owner)
    }

    /// A reload with a faulty configuration would leave the old one in force, and a start would fail for ever.
    async fn check(&self, program: &str, text: &str) -> Result<(), AgentError> {
        self.put(DRAFT_FILE, text)?;
        let mut command = Command::new(program);
        command.args(["-c", "-q", "-C"]).arg(&self.directory).args(["-f", DRAFT_FILE]);
        tools::run(command, "", ANSWERING).await?;
        files::remove(&self.directory.join(DRAFT_FILE))
    }

    async fn ask(&self, commands: &str) -> Result<String, AgentError> {
        self.answer(commands).await.map_err(|error| complain(error.to_string()))
    }

    async fn answer(&self, commands: &str) -> io::Result<String> {
        let asked = async {
            // By the number of its directory, because the whole path may be too long for a socket.
            let directory = fs::File::open(&self.directory)?;
            let mut socket = UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())).await?;
            socket.write_all(format!("{commands}\n").as_bytes()).await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            Ok::<_, io::Error>(answer)
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time");
        timeout(ANSWERING, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// For commands to which HAProxy has nothing to say: it ends the answer to each with an empty line, and any other word is a complaint.
    pub(super) async fn tell(&self, commands: &[String]) -> Result<(), Untold> {
        let answer = self.answer(&commands.join(";")).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Untold::NotRunning,
            _ => Untold::Failed(error.to_string()),
        })?;
        let complaints: Vec<&str> = answer.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match complaints.as_slice() {
            [] if answer.lines().count() < commands.len() => {
                Err(Untold::Failed(String::from("it ended the connection before it had answered")))
            }
            [] => Ok(()),
            all if all.iter().all(|complaint| complaint.starts_with("No such server")) => Err(Untold::NoSuchServer),
            all => Err(Untold::Failed(all.join("; "))),
        }
    }

    /// The current worker process.
    async fn worker(&self) -> Result<u32, AgentError> {
        let shown = self.ask("show info").await?;
        let pid = shown.lines().find_map(|line| line.strip_prefix("Pid: ")?.trim().parse().ok());
        pid.ok_or_else(|| AgentError::Command { command: HAPROXY.to_owned(), said: String::from("it has no process") })
    }

    async fn reload(&self) -> Result<(), AgentError> {
        let failed = |said: &str| AgentError::Command { command: HAPROXY.to_owned(), said: said.to_owned() };
        let before = self.worker().await?;
        let master = parent(before).and_then(Process::of).filter(|master| master.is_called_with_last(&self.config));
        master.ok_or_else(|| failed("its master is not found"))?.signal(Signal::USR2);
        let deadline = Instant::now() + RELOADING;
        while Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
            if self.worker().await.is_ok_and(|now| now != before) {
                return Ok(());
            }
        }
        Err(failed("it does not take up its configuration"))
    }
}

pub(super) fn find(name: &str, search: Option<&str>) -> Option<String> {
    let own = std::env::var("PATH").unwrap_or_default();
    let paths = search.into_iter().chain([own.as_str()]).flat_map(|paths| paths.split(':'));
    let mut paths = paths.chain(USUAL_PLACES).map(|directory| Path::new(directory).join(name));
    paths.find(|path| path.is_file()).map(|path| path.display().to_string())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// The configuration, with `{root}` and `{address}` in it. Connections are passed through, so TLS and passwords are PostgreSQL's.
fn config(haproxy: &HaproxyService, trust: &str, list: Option<&str>) -> String {
    let HaproxyService { max_connections, check_every_ms, servers, .. } = haproxy;
    let mut text = format!(
        "# Written by quorate; changes are lost. CA {ca}, refused {refused}\n\
         global\n    maxconn {all}\n    log stdout format raw daemon notice\n\
         \x20   stats socket unix@{SOCKET} mode 600 level admin expose-fd listeners\n\
         \x20   server-state-file {SERVERS_FILE}\n\
         defaults\n    mode tcp\n    log global\n    load-server-state-from-file global\n\
         \x20   option clitcpka\n    option srvtcpka\n    option redispatch\n    retries 3\n\
         \x20   timeout connect 4s\n    timeout check 4s\n    timeout queue 60s\n\
         \x20   timeout client 24d\n    timeout server 24d\n\
         \x20   default-server inter {check_every_ms} fastinter {fast} downinter {down} fall 2 rise 1 maxconn {max_connections} \
         on-marked-down shutdown-sessions check port {REST_PORT} check-ssl verify required ca-file {{root}}/{PEER_TRUST_FILE}{crl}\n",
        ca = hex(&Sha256::digest(trust)),
        refused = hex(&Sha256::digest(list.unwrap_or_default())),
        crl = list.map(|_| format!(" crl-file {{root}}/{PEER_LIST_FILE}")).unwrap_or_default(),
        all = max_connections * 2 + 20,
        fast = (check_every_ms / 4).max(100),
        down = (check_every_ms / 2).max(100),
    );
    for (name, port) in PORTS.into_iter().zip([haproxy.primary_port, haproxy.replica_port]) {
        let _ = write!(
            text,
            "listen {name}\n    bind {{address}}:{port}\n    maxconn {max_connections}\n    balance leastconn\n\
             \x20   option httpchk OPTIONS /{name}\n    http-check expect status 200\n"
        );
        for (server, address) in servers {
            let address = std::net::SocketAddr::new(*address, CLIENT_PORT);
            let _ = writeln!(text, "    server {server} {address}");
        }
    }
    text
}

/// The state of servers, for the next process: as the previous one knew it, and down where it did not know the server.
fn states(haproxy: &HaproxyService, known: &str) -> String {
    let mut text = SERVERS_HEAD.to_owned();
    let listed = PORTS.into_iter().flat_map(|port| haproxy.servers.iter().map(move |server| (port, server)));
    for (number, (port, (server, address))) in listed.enumerate() {
        let is_it = |line: &&str| {
            let mut words = line.split(' ');
            (words.nth(1), words.nth(1)) == (Some(port), Some(server.as_str()))
        };
        match known.lines().find(is_it).filter(|line| line.split(' ').nth(4) == Some(address.to_string().as_str())) {
            Some(line) => text.push_str(&checked(line)),
            None => {
                let id = number + 1;
                let _ = write!(
                    text,
                    "{id} {port} {id} {server} {address} 0 0 1 1 0 1 0 0 {CHECKED} 0 0 0 - {CLIENT_PORT} - 0 {REST_PORT} - - {REST_PORT}"
                );
            }
        }
        text.push('\n');
    }
    text
}

/// The same server, whose health is asked for: that it was not is no property of the server, and the next process would not ask either.
fn checked(line: &str) -> String {
    let words = line.split(' ').enumerate();
    words.map(|(number, word)| if number == CHECK_STATE { CHECKED } else { word }).collect::<Vec<_>>().join(" ")
}

/// The last alert that says what is wrong; the ones after it only say that it ends.
pub(crate) fn complaint(log: &Path) -> String {
    complaint_in(&logs::last_bytes(log, LAST_BYTES))
}

fn complaint_in(text: &str) -> String {
    let is_alert = |line: &&str| line.contains("[ALERT]");
    let says_nothing = |line: &&str| {
        ["Some protocols failed", "exit-on-failure", "Current worker", "Fatal errors"].iter().any(|s| line.contains(s))
    };
    let alert = text.lines().rfind(|line| is_alert(line) && !says_nothing(line));
    alert.or_else(|| text.lines().next_back()).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(servers: &[(&str, &str)]) -> HaproxyService {
        HaproxyService {
            program: None,
            primary_port: 5000,
            replica_port: 5001,
            max_connections: 100,
            check_every_ms: 2000,
            servers: servers.iter().map(|(name, at)| ((*name).to_owned(), at.parse().unwrap())).collect(),
        }
    }

    #[test]
    fn a_server_that_is_not_known_to_be_healthy_is_down() {
        let known = format!(
            "{SERVERS_HEAD}3 primary 1 pg-1 10.0.0.1 2 0 1 1 1 15 3 2 6 0 0 0 - 5432 - 0 8008 - - 8008\n\
             3 primary 2 pg-2 10.0.0.2 2 0 1 1 1 15 3 2 6 0 0 0 - 5432 - 0 8008 - - 8008\n"
        );
        let text = states(&service(&[("pg-1", "10.0.0.1"), ("pg-2", "10.0.0.7"), ("pg-3", "10.0.0.3")]), &known);
        let up: Vec<&str> = text.lines().skip(2).filter(|line| line.split(' ').nth(5) == Some("2")).collect();
        assert_eq!(up.len(), 1, "{text}");
        assert!(up[0].contains("pg-1 10.0.0.1"), "{text}");
        assert_eq!(text.lines().count(), 2 + 6, "each server is listed for each port: {text}");
    }

    #[test]
    fn the_next_process_asks_for_the_health_of_a_server_whose_clients_wait() {
        let held = "3 primary 1 pg-1 10.0.0.1 2 0 1 1 1 15 3 2 2 0 0 0 - 5432 - 0 8008 - - 8008";
        let text = states(&service(&[("pg-1", "10.0.0.1")]), held);
        assert!(
            text.contains("3 primary 1 pg-1 10.0.0.1 2 0 1 1 1 15 3 2 6 0 0 0 - 5432 - 0 8008 - - 8008\n"),
            "{text}"
        );
    }

    #[test]
    fn health_is_asked_for_over_tls_and_clients_tls_is_passed_through() {
        let config = |ca: &str, list| config(&service(&[("pg-1", "fd00::1")]), ca, list);
        let text = config("ca", None);
        assert!(text.contains("check-ssl verify required ca-file {root}/etc/patroni/peer-ca.crt"), "{text}");
        assert!(text.contains("mode tcp") && !text.contains(" ssl "), "{text}");
        assert!(text.contains("bind {address}:5000") && text.contains("server pg-1 [fd00::1]:5432"), "{text}");
        assert_ne!(text, config("another ca", None), "another CA is a reason to reload");
        let list = config("ca", Some("list"));
        assert!(list.contains("peer-ca.crt crl-file {root}/etc/patroni/peer.crl\n"), "{list}");
        assert_ne!(list, config("ca", Some("another list")), "another list is a reason to reload");
    }

    #[test]
    fn the_last_words_name_the_port_that_is_taken() {
        let log = "[NOTICE]   (1) : path to executable is /usr/sbin/haproxy\n\
            [ALERT]    (1) : [haproxy.main()] Starting proxy primary: cannot bind socket (Address already in use) [127.0.0.1:5000]\n\
            [ALERT]    (1) : [haproxy.main()] Some protocols failed to start their listeners! Exiting.\n";
        assert!(complaint_in(log).ends_with("[127.0.0.1:5000]"));
    }
}
