//! Errors on a machine. Display says what was attempted; the cause is the source.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use quorate_core::kinds::etcd::OlderData;
use quorate_core::model::Program;
use quorate_core::text::with_causes;

use crate::api::Refusal;
use crate::kinds::etcd::binaries::BinaryError;

/// Why a configuration cannot be put into place on this machine, and what helps.
pub(crate) struct Obstacle {
    pub(crate) why: String,
    pub(crate) remedy: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not what it should be", path.display())]
    Unreadable { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} was written by a newer quorate (protocol {written}), and this is {ours}: start the machine's agent with the newer \
         program", path.display()
    )]
    NewerState { path: PathBuf, written: u32, ours: Program },
    #[error(
        "{} was not written by quorate: if nothing needs it any more, move it away; or set `tls.layout: standard`",
        path.display()
    )]
    NotOurs { path: PathBuf },
    #[error("another agent keeps {}", path.display())]
    AlreadyRunning { path: PathBuf },
    /// The seed disk's settings are impossible.
    #[error("{}: {field}: {why}", path.display())]
    Machine { path: PathBuf, field: String, why: String },
    #[error(
        "no disk with the label {label} has shown up within {seconds} s, so this machine has no configuration: attach its seed \
         disk and boot it again"
    )]
    NoSeedDisk { label: &'static str, seconds: u64 },
    #[error(
        "the metadata service at {address} has given no user data within {seconds} s ({why}); this machine has no \
         settings: check that the instance's metadata service is enabled and that DHCP works, and boot it again"
    )]
    NoMetadata { address: String, seconds: u64, why: String },
    #[error(
        "the user data of this instance cannot be used: {why}; the machine has no settings: set `seed: quorate` in the \
         spec, and let quorate create the instance again"
    )]
    UserData { why: String },
    #[error("the data disk {serial} is missing ({}); attach it and boot this machine again", path.display())]
    NoDataDisk { serial: String, path: PathBuf },
    #[error(
        "the data disk {} is not empty and has no file system for etcd's data: {found} was found. It is left unchanged; if \
         nothing on it is needed, clear it with `wipefs --all` and zeros over its first MiB, and boot this machine again", path.display()
    )]
    ForeignDisk { path: PathBuf, found: String },
    #[error(
        "the data disk {} holds etcd's data at its top (`member/`), of a cluster that quorate did not make. It is left \
         unchanged. To keep its keys, save a snapshot of that cluster, attach an empty disk, and run `quorate restore --snapshot`", path.display()
    )]
    OthersData { path: PathBuf },
    #[error(
        "{what_for} needs {program}, which this machine does not have; install the package {package} in its image, or let \
         `host.install_dependencies` be true"
    )]
    NoProgram { program: &'static str, package: &'static str, what_for: &'static str },
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the certificate or key cannot be used")]
    Pki(#[from] quorate_pki::Error),
    #[error("the certificate or key cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the control CA of the seed cannot be used: {why}")]
    ControlCa { why: String },
    #[error("cannot run {program}")]
    Spawn { program: String, source: io::Error },
    #[error("{command} failed: {said}")]
    Command { command: String, said: String },
    #[error("no controller connected while this agent ran on trial")]
    NoControllerCame,
    #[error("the runtime could not be set up")]
    Runtime(#[source] io::Error),
    #[error(
        "etcd (process {pid}) still runs {seconds} s after its manifest {} was removed, and the manifest is back: nothing but the \
         kubelet can stop this pod; check that it runs (`systemctl status kubelet`)", manifest.display()
    )]
    KubeletSilent { manifest: PathBuf, pid: i32, seconds: u64 },
    #[error(
        "no kubelet runs on this machine, and nothing else can stop its pod of etcd (process {pid}): start the kubelet"
    )]
    NoKubelet { pid: i32 },
    #[error("{} does not exist: no kubelet reads manifests there", path.display())]
    NoManifests { path: PathBuf },
    #[error(
        "{} was not written by quorate: if nothing needs that pod any more, move the file away; or set `etcd.run_as: service`",
        path.display()
    )]
    ForeignManifest { path: PathBuf },
    #[error("{name} runs already")]
    RunsAlready { name: String },
    /// Whether the disk failed or was swapped: etcd would begin from nothing, and forget what it had promised its peers.
    #[error("etcd's data is missing from {}: etcd is not started without it", path.display())]
    DataGone { path: PathBuf },
    #[error("cannot parse Patroni's configuration, at column {column}")]
    PatroniConfig { column: usize },
    #[error("Patroni does not answer: {why}")]
    Patroni { why: String },
    #[error("PostgreSQL's data is missing from {}: Patroni is not started without it", path.display())]
    PostgresDataGone { path: PathBuf },
    #[error(
        "{program} of an earlier Patroni still runs (process {pid}) and changes the data: Patroni is started when it has ended"
    )]
    StillAtWork { program: String, pid: i32 },
    #[error("etcd's log {} cannot be read: {why}", path.display())]
    BadLog { path: PathBuf, why: String },
    #[error(
        "etcd {version} cannot read entry {index} of the log, which a release before 3.6 wrote after the newest Raft snapshot: go \
         back to 3.6 first"
    )]
    OldEntry { index: u64, version: String },
    #[error(
        "etcd's data is older than it was: its log ends at {}, and {} remembers that this member had {}",
        .0.holds, .0.told_by, .0.acknowledged
    )]
    Older(OlderData),
    #[error("the data could not be rebuilt: {why}")]
    Recreation { why: String },
    #[error("{value} holds the control character {found:?}, which cannot be part of a unit of systemd")]
    ControlCharacter { value: String, found: char },
    #[error("there is no user {user:?} on this machine")]
    NoUser { user: String },
    #[error(transparent)]
    Binary(#[from] BinaryError),
    #[error("the order could not be carried out through etcd")]
    Etcd(#[from] quorate_etcd::Error),
}

impl AgentError {
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| AgentError::File { doing, path, source }
    }

    /// The error and its causes in one line.
    pub(crate) fn in_full(&self) -> String {
        with_causes(self)
    }
}

impl From<AgentError> for Refusal {
    fn from(error: AgentError) -> Self {
        Refusal::Failed { why: error.in_full() }
    }
}
