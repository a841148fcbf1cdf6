//! Snapshots uploaded to machines, and clusters restored from them, on real etcd processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use quorate_agent::api::{EtcdOrder, Order, Refusal, UploadRequest};
use quorate_agent::client::{AgentClient, ClientError};
use quorate_core::kinds::etcd::Staged;
use quorate_core::model::{DataSeen, Stamp};
use quorate_etcd::{KeyRange, RangeQuery};
use rustix::process::Signal;
use tokio::io::{AsyncRead, ReadBuf};

use crate::common::{Machine, config, config_of, facts, order, turn_auth_on, until};

const VERSIONS: [&str; 3] = ["3.4.23", "3.5.30", "3.7.3"];
const KEYS: usize = 50;
const BUMP: u64 = 1_000_000_000;

async fn snapshot(client: &AgentClient) -> Vec<u8> {
    let mut stream = client.snapshot().await.unwrap();
    let mut all = Vec::new();
    while let Some(chunk) = stream.next().await {
        all.extend_from_slice(&chunk.unwrap());
    }
    all
}

/// By the checksum that it ends with.
fn announce(fence: u64, bytes: &[u8]) -> UploadRequest {
    let sha256 = bytes[bytes.len() - 32..].iter().map(|byte| format!("{byte:02x}")).collect();
    UploadRequest { fence, sha256, bytes: bytes.len() as u64 }
}

async fn stage(client: &AgentClient, request: &UploadRequest, bytes: &[u8]) -> Result<(), Refusal> {
    match client.stage(request, io::Cursor::new(bytes.to_vec())).await {
        Ok(()) => Ok(()),
        Err(ClientError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

fn kept(request: &UploadRequest) -> Option<Staged> {
    Some(Staged { sha256: request.sha256.clone(), bytes: request.bytes })
}

/// What is in the directory for snapshots.
fn here(machine: &Machine) -> Vec<String> {
    let entries = fs::read_dir(machine.root().join("var/lib/etcd.staged")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Gives what it has, and then fails, or never gives anything again.
struct Cut {
    first: io::Cursor<Vec<u8>>,
    hangs: bool,
}

impl AsyncRead for Cut {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.position() < self.first.get_ref().len() as u64 {
            return Pin::new(&mut self.first).poll_read(cx, to);
        }
        if self.hangs { Poll::Pending } else { Poll::Ready(Err(io::Error::other("cut"))) }
    }
}

#[tokio::test]
async fn a_snapshot_counts_only_when_all_of_it_is_here() {
    let mut machine = Machine::new().await;
    let client = machine.client();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let request = announce(5, &bytes);
    assert_eq!(stage(&client, &request, &bytes).await, Err(Refusal::NotEnrolled));
    machine.enrol(&client).await;
    assert_eq!(facts(&client).await.etcd.staged, None);

    let half = || io::Cursor::new(bytes[..bytes.len() / 2].to_vec());
    let cut = client.stage(&request, Cut { first: half(), hangs: false }).await;
    assert!(matches!(cut, Err(ClientError::Unreachable { .. })), "{cut:?}");
    until("nothing is left of it", async || here(&machine).is_empty().then_some(())).await;
    let short = stage(&client, &request, &bytes[1..]).await;
    assert!(matches!(short, Err(Refusal::NotAsExpected { .. })), "{short:?}");
    let long = stage(&client, &UploadRequest { bytes: request.bytes - 1, ..request.clone() }, &bytes).await;
    assert!(matches!(long, Err(Refusal::NotAsExpected { .. })), "{long:?}");
    let mut other = bytes.clone();
    *other.last_mut().unwrap() ^= 1;
    let wrong = stage(&client, &request, &other).await.unwrap_err().to_string();
    assert!(wrong.contains(&request.sha256) && wrong.contains(&announce(5, &other).sha256), "{wrong}");
    assert_eq!((facts(&client).await.etcd.staged, here(&machine).len()), (None, 0));

    stage(&client, &request, &bytes).await.unwrap();
    assert_eq!(facts(&client).await.etcd.staged, kept(&request));
    let file = machine.root().join("var/lib/etcd.staged").join(format!("{}.db", request.sha256));
    assert_eq!(fs::read(&file).unwrap(), bytes);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    // It is there, so nobody asks for its bytes.
    client.stage(&request, Cut { first: io::Cursor::default(), hangs: false }).await.unwrap();

    let overtaken = stage(&client, &UploadRequest { fence: 4, ..request.clone() }, &bytes).await;
    assert_eq!(overtaken, Err(Refusal::StaleFence { obeyed: 5, carried: 4 }));
    let late = order(&client, 4, Order::Etcd(EtcdOrder::DropStaged)).await;
    assert_eq!(late, Err(Refusal::StaleFence { obeyed: 5, carried: 4 }));
    let huge = UploadRequest { bytes: 1 << 60, ..announce(5, &other) };
    let no_room = stage(&client, &huge, b"other").await.unwrap_err().to_string();
    assert!(no_room.contains("2199023255680 MiB free") && no_room.contains("found "), "{no_room}");

    let next = announce(6, &other);
    stage(&client, &next, &other).await.unwrap();
    assert_eq!((facts(&client).await.etcd.staged, here(&machine).len()), (kept(&next), 1), "only one is kept");
    machine.stop_agent();
    fs::write(machine.root().join("var/lib/etcd.staged/upload-killed"), "half").unwrap();
    machine.start_agent().await;
    assert_eq!((facts(&client).await.etcd.staged, here(&machine).len()), (kept(&next), 1));
    for _ in 0..2 {
        order(&client, 6, Order::Etcd(EtcdOrder::DropStaged)).await.unwrap();
        assert_eq!((facts(&client).await.etcd.staged, here(&machine).len()), (None, 0));
    }
}

#[tokio::test]
async fn a_newer_controller_is_not_kept_waiting_by_the_upload_of_one_that_hangs() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let bytes = vec![7; 1_000_000];
    let (old, new) = (announce(1, &bytes), announce(2, &bytes));
    let half = Cut { first: io::Cursor::new(bytes[..500_000].to_vec()), hangs: true };
    let hanging = machine.client();
    let request = old.clone();
    let hanging = tokio::spawn(async move { hanging.stage(&request, half).await });
    until("it has begun", async || (here(&machine).len() == 1).then_some(())).await;
    let begun = Instant::now();
    stage(&client, &new, &bytes).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((facts(&client).await.etcd.staged, here(&machine).len()), (kept(&new), 1));
    assert!(hanging.await.unwrap().is_err());
    assert!(matches!(stage(&client, &old, &bytes).await, Err(Refusal::StaleFence { .. })));
}

struct Restore {
    initial_cluster: BTreeMap<quorate_core::model::MemberName, String>,
    sha256: String,
}

impl Restore {
    fn order(&self, machine: &Machine, was: DataSeen) -> Order {
        Order::Etcd(EtcdOrder::RestoreData {
            was,
            stamp: machine.stamp("t-2"),
            initial_cluster: self.initial_cluster.clone(),
            peer_url: machine.peer_url(),
            sha256: self.sha256.clone(),
            bump_revision: BUMP,
        })
    }
}

fn was(machine: &Machine) -> DataSeen {
    DataSeen::Stamped(machine.stamp("t-1"))
}

async fn put_keys(machine: &Machine) -> u64 {
    let etcd = machine.root_client();
    for number in 0..KEYS - 1 {
        etcd.put(format!("key-{number:03}"), format!("value {number}")).await.unwrap();
    }
    etcd.put(format!("key-{:03}", KEYS - 1), "last").await.unwrap() as u64
}

/// As if the agent had been killed with the result complete, the old data put aside or not yet.
async fn interrupt(machine: &mut Machine, put_aside: bool) {
    machine.stop_agent();
    let var = machine.root().join("var/lib");
    let (data, place, stamp) = (var.join("etcd"), var.join("etcd.renewal"), var.join("etcd.stamp"));
    fs::create_dir_all(&place).unwrap();
    fs::rename(&data, place.join("new")).unwrap();
    fs::rename(&stamp, place.join("ready.json")).unwrap();
    fs::write(&stamp, serde_json::to_vec(&machine.stamp("t-1")).unwrap()).unwrap();
    if !put_aside {
        fs::rename(var.join("etcd.before-b1ad9ff6eb8dad4a"), &data).unwrap();
    }
    machine.start_agent().await;
}

#[tokio::test]
async fn three_members_are_restored_from_the_same_bytes_however_often_they_are_interrupted() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let mut all = Machine::three(&config_of(version)).await;
        turn_auth_on(&all[0].1, None).await;
        let revision = put_keys(&all[0].0).await;
        // Once the second member has them too.
        all[1].0.root_client().get("key-000").await.unwrap();
        let bytes = snapshot(&all[1].1).await;
        // Not in the snapshot, and therefore gone afterwards.
        all[0].0.root_client().put("late", "x").await.unwrap();
        let before = facts(&all[0].1).await.etcd.status.unwrap();
        let urls = all.iter().map(|(machine, _)| (machine.member.clone(), machine.peer_url())).collect();
        let request = announce(1, &bytes);
        let restore = Restore { initial_cluster: urls, sha256: request.sha256.clone() };
        for (machine, client) in &all {
            if version.starts_with("3.4.") {
                // Refused while everything still runs, and not when the old data is given up already.
                let without = stage(client, &request, &bytes).await;
                let named = |found: &str| found.contains("no etcdutl 3.5 (at least 3.5.10)");
                assert!(matches!(&without, Err(Refusal::NotAsExpected { found, .. }) if named(found)), "{without:?}");
            }
            machine.lend_etcdutl();
            let unstaged = order(client, 1, restore.order(machine, was(machine))).await;
            assert!(matches!(unstaged, Err(Refusal::NotAsExpected { .. })), "it runs: {unstaged:?}");
            stage(client, &request, &bytes).await.unwrap();
        }
        for (_, client) in &all {
            order(client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
        }
        for (machine, client) in &all {
            let other = order(client, 1, restore.order(machine, DataSeen::Empty)).await;
            assert!(matches!(other, Err(Refusal::NotAsExpected { .. })), "{other:?}");
            for _ in 0..2 {
                order(client, 1, restore.order(machine, was(machine))).await.unwrap();
            }
        }
        interrupt(&mut all[0].0, true).await;
        interrupt(&mut all[1].0, false).await;
        for (machine, client) in &all {
            order(client, 1, restore.order(machine, was(machine))).await.unwrap();
            let etcd = facts(client).await.etcd;
            let stamp: Stamp = machine.stamp("t-2");
            assert_eq!((etcd.data, etcd.last_started), (DataSeen::Stamped(stamp.clone()), Some(stamp)));
            let var = machine.root().join("var/lib");
            assert!(var.join("etcd.before-b1ad9ff6eb8dad4a/member/wal").exists() && !var.join("etcd.renewal").exists());
        }
        for (machine, client) in &all {
            let expects = DataSeen::Stamped(machine.stamp("t-2"));
            order(client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() }))
                .await
                .unwrap();
        }
        for (machine, client) in &all {
            let after = machine.healthy(client).await.etcd.status.unwrap();
            assert_eq!((after.members.len(), after.version.as_str()), (3, version));
            assert_ne!(after.cluster_id, before.cluster_id);
            check_restored(machine, revision).await;
            order(client, 1, restore.order(machine, was(machine))).await.unwrap();
            order(client, 1, Order::Etcd(EtcdOrder::DropStaged)).await.unwrap();
        }
        all[0].0.root_client().put("after", "it").await.unwrap();
        all[2].0.signal_etcd(Signal::KILL);
        all[2].0.healthy(&all[2].1).await;
    }
}

async fn check_restored(machine: &Machine, revision: u64) {
    let etcd = machine.root_client();
    let all = etcd.range(RangeQuery::new(KeyRange::prefix(""))).await.unwrap();
    assert_eq!(all.count as usize, KEYS);
    assert_eq!(all.pairs[KEYS - 1].value, b"last");
    assert!(all.revision as u64 >= revision + BUMP, "{}", all.revision);
    let old = RangeQuery { revision: revision as i64, ..RangeQuery::new(KeyRange::key("key-000")) };
    assert!(matches!(etcd.range(old).await, Err(quorate_etcd::Error::Compacted { .. })));
    let watch = etcd.watch(KeyRange::key("key-000"), revision as i64, false).await;
    let told = match watch {
        Ok(mut watch) => watch.next().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(told, Err(quorate_etcd::Error::Compacted { .. })), "{told:?}");
    assert_eq!(etcd.user_list().await.unwrap(), ["root"]);
}

#[tokio::test]
async fn an_empty_machine_is_restored_and_damage_on_disk_is_found() {
    let (source, client) = Machine::ready_with(&config()).await;
    source.start_etcd(&client, "t-1").await.unwrap();
    source.healthy(&client).await;
    let revision = put_keys(&source).await;
    turn_auth_on(&client, None).await;
    let bytes = snapshot(&client).await;
    drop(source);

    let (machine, client) = Machine::ready_with(&config()).await;
    let request = announce(1, &bytes);
    let restore = Restore {
        initial_cluster: BTreeMap::from([(machine.member.clone(), machine.peer_url())]),
        sha256: request.sha256.clone(),
    };
    let none = order(&client, 1, restore.order(&machine, DataSeen::Empty)).await.unwrap_err().to_string();
    assert!(none.contains(&request.sha256) && none.contains("none"), "{none}");
    stage(&client, &request, &bytes).await.unwrap();
    let not_among = Restore { initial_cluster: BTreeMap::new(), sha256: request.sha256.clone() };
    let refused = order(&client, 1, not_among.order(&machine, DataSeen::Empty)).await;
    assert!(matches!(refused, Err(Refusal::NotAsExpected { .. })), "{refused:?}");

    let file = machine.root().join("var/lib/etcd.staged").join(format!("{}.db", request.sha256));
    let mut damaged = bytes.clone();
    damaged[5000] ^= 1;
    fs::write(&file, &damaged).unwrap();
    let found = order(&client, 1, restore.order(&machine, DataSeen::Empty)).await.unwrap_err().to_string();
    assert!(found.contains("damaged on disk"), "{found}");
    assert_eq!(facts(&client).await.etcd.staged, None, "it must be brought again");
    stage(&client, &request, &bytes).await.unwrap();
    order(&client, 1, restore.order(&machine, DataSeen::Empty)).await.unwrap();
    assert!(!machine.root().join("var/lib/etcd.before-b1ad9ff6eb8dad4a").exists(), "there was nothing to keep");
    let expects = DataSeen::Stamped(machine.stamp("t-2"));
    order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() }))
        .await
        .unwrap();
    machine.healthy(&client).await;
    check_restored(&machine, revision).await;
}

#[tokio::test]
async fn a_database_without_etcds_checksum_is_not_restored() {
    let (machine, client) = Machine::ready_with(&config()).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    put_keys(&machine).await;
    let mut bytes = snapshot(&client).await;
    bytes.truncate(bytes.len() - 32);
    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let request = announce(1, &bytes);
    stage(&client, &request, &bytes).await.unwrap();
    let restore = Restore {
        initial_cluster: BTreeMap::from([(machine.member.clone(), machine.peer_url())]),
        sha256: request.sha256.clone(),
    };
    let refused = order(&client, 1, restore.order(&machine, was(&machine))).await.unwrap_err().to_string();
    assert!(refused.contains("does not agree with its checksum"), "{refused}");
    assert_eq!(facts(&client).await.etcd.staged, None);
    let expects = was(&machine);
    order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() }))
        .await
        .unwrap();
    machine.healthy(&client).await;
    let kept = machine.root_client().range(RangeQuery::new(KeyRange::prefix(""))).await.unwrap();
    assert_eq!(kept.count as usize, KEYS, "the data from before is untouched");
}
