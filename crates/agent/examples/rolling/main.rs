//! One sample of `cargo xtask bench rolling`: a three-member TLS cluster with authentication is formed, writers write to it, and while
//! they do it is changed, by quorate or manually in the best way. The writers and what is measured are the same for both.
//!
//! `rolling by-hand|QUORATE CHANGE BEFORE AFTER`, where QUORATE is the program, CHANGE is `restart`, `upgrade` or `replace` (of the
//! leader), and BEFORE and AFTER are specs. It prints milliseconds: the longest gap between two acknowledged writes of one writer, the
//! time until all members were well again, and the time until the change had ended. What it makes manually is below the temporary
//! directory and is gone when it ends; the cluster that quorate made is left to quorate's home.

mod by_hand;
mod by_quorate;
#[path = "../hand/mod.rs"]
mod hand;
mod writers;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use quorate_core::kinds::etcd::spec::Binary;
use quorate_core::spec::{ClusterSpec, Document, HostFacts};
use quorate_etcd::{Client, ConnectOptions, Member};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use writers::Writers;

/// Writers write for this long before the change begins, and again after it has ended.
const WARM_UP: Duration = Duration::from_millis(1500);
const COOL_DOWN: Duration = Duration::from_millis(1000);
/// Between two questions whether a member is well, and for how long one may go unanswered: a port that is open but not served yet
/// keeps the asker waiting, and asking again costs less.
const PAUSE: Duration = Duration::from_millis(5);
const ANSWER: Duration = Duration::from_millis(500);
/// Between two looks at the storage version, and how long it may take: etcd looks after it every few seconds.
const NEXT_LOOK: Duration = Duration::from_millis(100);
const FOLLOWS: Duration = Duration::from_secs(30);
/// For the whole sample.
const PATIENCE: Duration = Duration::from_secs(120);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Clone, Copy, PartialEq)]
enum Change {
    Restart,
    Upgrade,
    Replace,
}

struct Sample {
    gap: Duration,
    well: Duration,
    ended: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()).await {
        Ok(Sample { gap, well, ended }) => {
            let [gap, well, ended] = [gap, well, ended].map(|time| time.as_secs_f64() * 1000.0);
            println!("{gap:.1} {well:.1} {ended:.1}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Vec<String>) -> Result<Sample> {
    let [who, change, before, after] = &arguments[..] else {
        return Err("usage: rolling by-hand|QUORATE CHANGE BEFORE AFTER".into());
    };
    let change = match change.as_str() {
        "restart" => Change::Restart,
        "upgrade" => Change::Upgrade,
        "replace" => Change::Replace,
        other => return Err(format!("no such change: {other}").into()),
    };
    let sample = async {
        match who.as_str() {
            "by-hand" => by_hand::sample(change, &read_spec(before)?, &read_spec(after)?).await,
            quorate => by_quorate::sample(Path::new(quorate), change, before, after).await,
        }
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        sample = timeout(PATIENCE, sample) => sample.unwrap_or_else(|_| Err(format!("not finished within {PATIENCE:?}").into())),
        _ = interrupt.recv() => Err("interrupted".into()),
        _ = terminate.recv() => Err("interrupted".into()),
    }
}

fn read_spec(file: &str) -> Result<ClusterSpec> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let told = |problems: &[quorate_core::spec::Problem]| format!("{file} is no spec: {problems:?}");
    let checked = Document::parse(file, &text).map_err(|problems| told(&problems))?.spec(&HostFacts::default());
    let mut spec = checked.spec.ok_or_else(|| told(&checked.problems))?;
    Ok(spec.clusters.remove(0))
}

/// The program that a spec of this bench names.
fn program(spec: &ClusterSpec) -> Result<&Path> {
    match &spec.etcd.binary {
        Some(Binary::Path(path)) => Ok(path),
        _ => Err("the spec names no etcd by its path".into()),
    }
}

/// Changes the cluster while writers write. With `version`, all is well when every member runs it; else when the change has ended.
async fn measure(
    members: &[ConnectOptions],
    version: Option<&str>,
    change: impl Future<Output = Result<()>>,
) -> Result<Sample> {
    let writers = Writers::begin(members).await?;
    sleep(WARM_UP).await;
    let begun = Instant::now();
    let change = async {
        change.await?;
        Ok::<_, Box<dyn Error>>(begun.elapsed())
    };
    let well = async {
        match version {
            Some(version) => Ok(Some(all_run(members, version, begun).await?)),
            None => Ok(None),
        }
    };
    let (ended, well) = tokio::try_join!(change, well)?;
    if let Some(version) = version {
        timeout(FOLLOWS, storage_follows(members, version))
            .await
            .map_err(|_| "the storage version does not follow")??;
    }
    sleep(COOL_DOWN).await;
    let gap = writers.end(begun).await?;
    eprintln!("the longest gap: {gap}");
    Ok(Sample { gap: gap.length, well: well.unwrap_or(ended), ended })
}

/// Makes the last member lead. Writers that flee from followers in turn end up with different members depending on who leads, and only
/// one that writes through a follower loses a write when the leader hands over: samples compare only with the same leader.
async fn let_the_last_lead(members: &[ConnectOptions]) -> Result<Member> {
    let connect = |options: Option<&ConnectOptions>| {
        Ok::<_, Box<dyn Error>>(Client::connect(options.ok_or("no members")?.clone())?)
    };
    let status = connect(members.last())?.status().await?;
    let (wanted, mut leader) = (status.member_id, status.leader);
    for member in members {
        let client = connect(Some(member))?;
        if leader != wanted && client.status().await?.member_id == leader {
            client.move_leader(wanted).await?;
            leader = wanted;
        }
    }
    let listed = connect(members.last())?.members(true).await?;
    Ok(listed.into_iter().find(|member| member.id == leader).ok_or("there is no leader")?)
}

/// When the last member was seen to run this version and to have a quorum behind it.
async fn all_run(members: &[ConnectOptions], version: &str, begun: Instant) -> Result<Duration> {
    let mut waiting: Vec<Client> =
        members.iter().cloned().map(Client::connect).collect::<std::result::Result<_, _>>()?;
    while let Some(client) = waiting.last() {
        let status = timeout(ANSWER, client.status()).await;
        if matches!(status, Ok(Ok(status)) if status.version == version) && is_well(client).await {
            waiting.pop();
        } else {
            sleep(PAUSE).await;
        }
    }
    Ok(begun.elapsed())
}

/// Some seconds after an upgrade, members agree on what they speak and store, which may disturb writers too. Anyone who made the upgrade,
/// it is part of what they go through.
async fn storage_follows(members: &[ConnectOptions], version: &str) -> Result<()> {
    let line = |version: &str| version.rsplit_once('.').map(|(line, _)| line.to_owned());
    for member in members {
        let client = Client::connect(member.clone())?;
        while client.status().await?.storage_version.as_deref().and_then(line) != line(version) {
            sleep(NEXT_LOOK).await;
        }
    }
    Ok(())
}

async fn is_well(client: &Client) -> bool {
    matches!(timeout(ANSWER, client.linearizable_read_ok()).await, Ok(Ok(())))
}
