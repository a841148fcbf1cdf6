//! Members, leaders and learners.

use quorate_etcd::{Client, Error, LoginRefusal, Thing};

use crate::lab::{Authority, Etcd, Setup, Version, enable_auth, on_every_version};

fn connect(etcd: &Etcd) -> Client {
    Client::connect(etcd.options()).expect("good options")
}

async fn start_three(version: &Version, authority: &Authority) -> Vec<Etcd> {
    let names = ["m1", "m2", "m3"];
    let mut members: Vec<_> =
        names.iter().map(|name| Etcd::prepare(version, authority, name, &Setup::password())).collect();
    let initial: Vec<_> = members.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
    for member in &mut members {
        member.spawn(&[format!("--initial-cluster={}", initial.join(","))]);
    }
    for member in &members {
        member.ready(&connect(member)).await;
    }
    members
}

#[test]
fn a_member_reports_its_state() {
    on_every_version(async |version| {
        let etcd = Etcd::start(version, &Authority::new(), Setup::password());
        let client = connect(&etcd);
        etcd.ready(&client).await;
        client.put("key", "value").await.expect("a write");

        let status = client.status().await.expect("a status");
        assert!(status.version.starts_with("3."), "{status:?}");
        assert_eq!((status.leader, status.is_learner, status.revision), (status.member_id, false, 2));
        assert!(status.cluster_id != 0 && status.raft_term > 0 && status.raft_applied_index > 0, "{status:?}");
        assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0, "{status:?}");
        assert!(status.errors.is_empty(), "{status:?}");
        assert_eq!(status.db_quota.is_some(), version.at_least(6));

        for linearizable in [false, true] {
            let members = client.members(linearizable).await.expect("members");
            let [member] = &members[..] else { panic!("{members:?}") };
            assert_eq!((member.id, member.name.as_str(), member.is_learner), (status.member_id, "m1", false));
            assert_eq!(member.peer_urls, [etcd.peer_url()]);
            assert_eq!(member.client_urls, [client.endpoint()]);
        }
    });
}

#[test]
fn a_downgrade_is_enabled_followed_and_cancelled() {
    on_every_version(async |version| {
        let etcd = Etcd::start(version, &Authority::new(), Setup::password());
        let client = connect(&etcd);
        etcd.ready(&client).await;
        if !version.at_least(5) {
            let refused = client.downgrade_cancel().await;
            assert!(matches!(refused, Err(Error::Unimplemented)), "{refused:?}");
            return;
        }
        if !version.at_least(6) {
            // 3.5 reports nothing about a downgrade that could be followed.
            return;
        }
        let minor = |text: &str| text.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()).expect("a minor");
        let newer = minor(&client.status().await.expect("a status").version);
        let (lower, lowest) = (format!("3.{}", newer - 1), format!("3.{}", newer - 2));
        let storage_is = async |minor: u32| match client.status().await?.storage_version {
            Some(storage) if storage == format!("3.{minor}.0") => Ok(()),
            _ => Err(Error::Timeout),
        };

        let refused = client.downgrade_validate(&lowest).await;
        assert!(matches!(refused, Err(Error::Other { .. })), "{refused:?}");
        // The version of a new cluster is settled a moment after it serves.
        etcd.eventually(async || client.downgrade_validate(&lower).await).await;
        assert_eq!(client.status().await.expect("a status").downgrade_target, None);

        client.downgrade_enable(&lower).await.expect("enabled");
        let told = client.status().await.expect("a status").downgrade_target;
        assert_eq!(told, Some(format!("{lower}.0")));
        let refused = client.downgrade_enable(&lower).await;
        assert!(matches!(refused, Err(Error::Other { .. })), "{refused:?}");
        etcd.eventually(async || storage_is(newer - 1).await).await;

        client.downgrade_cancel().await.expect("cancelled");
        assert_eq!(client.status().await.expect("a status").downgrade_target, None);
        etcd.eventually(async || storage_is(newer).await).await;
    });
}

#[test]
fn leadership_moves_and_its_loss_is_reported_at_once() {
    on_every_version(async |version| {
        let mut members = start_three(version, &Authority::new()).await;
        let leader_id = connect(&members[0]).status().await.expect("a status").leader;
        let mut followers = Vec::new();
        let mut leader = None;
        for member in &members {
            let client = connect(member);
            match client.status().await.expect("a status").member_id {
                id if id == leader_id => leader = Some(client),
                id => followers.push((id, client)),
            }
        }
        let leader = leader.expect("the leader is one of the members");
        let (successor, follower) = &followers[0];
        let refused = follower.move_leader(*successor).await;
        assert!(matches!(refused, Err(Error::NotLeader)), "{refused:?}");
        leader.move_leader(*successor).await.expect("moved");
        assert_eq!(follower.status().await.expect("a status").leader, *successor);

        let survivor = connect(&members[0]);
        survivor.linearizable_read_ok().await.expect("healthy");
        members[1].kill();
        members[2].kill();
        let told = async || match survivor.linearizable_read_ok().await {
            Err(Error::NoLeader) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(Error::Timeout),
        };
        members[0].eventually(told).await;
        assert!(survivor.members(false).await.is_ok(), "a member alone still tells what it knows");
    });
}

#[test]
fn a_learner_is_added_refused_and_removed() {
    on_every_version(async |version| {
        let etcd = Etcd::start(version, &Authority::new(), Setup::password());
        let client = connect(&etcd);
        etcd.ready(&client).await;
        let urls = vec!["http://127.200.255.1:2380".to_owned()];

        let learner = client.member_add(urls.clone(), true).await.expect("a learner");
        assert!(learner.is_learner && learner.name.is_empty() && learner.peer_urls == urls);
        let twice = client.member_add(urls.clone(), true).await;
        // Within the same second, the new member's id is the same as well.
        assert!(matches!(twice, Err(Error::AlreadyExists(Thing::PeerUrl | Thing::Member))), "{twice:?}");
        let other = vec!["http://127.200.255.2:2380".to_owned()];
        let second = client.member_add(other.clone(), true).await;
        assert!(matches!(second, Err(Error::TooManyLearners)), "{second:?}");
        let voter = client.status().await.expect("a status").member_id;
        assert!(matches!(client.member_promote(voter).await, Err(Error::NotLearner)));
        client.member_remove(learner.id).await.expect("removed");
        assert!(matches!(client.member_remove(learner.id).await, Err(Error::NotFound(Thing::Member))));
        assert!(matches!(client.member_promote(learner.id).await, Err(Error::NotFound(Thing::Member))));

        client.member_update(voter, other.clone()).await.expect("updated");
        assert_eq!(client.members(true).await.expect("members")[0].peer_urls, other);
    });
}

#[test]
fn a_learner_logs_nobody_in_and_becomes_a_voter() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let first = Etcd::start(version, &authority, Setup::password());
        let root = first.client_with("root", "secret");
        first.ready(&root).await;
        enable_auth(&root, Some("secret")).await;

        let mut second = Etcd::prepare(version, &authority, "m2", &Setup::password());
        let learner = root.member_add(vec![second.peer_url()], true).await.expect("a learner");
        let initial = format!("--initial-cluster=m1={},m2={}", first.peer_url(), second.peer_url());
        second.spawn(&[initial, "--initial-cluster-state=existing".to_owned()]);
        let there = second.client_with("root", "secret");
        // The version decides whether a status needs a login; a learner grants none.
        let asked = async || match there.status().await {
            Ok(status) => Ok(status.is_learner),
            Err(Error::Unauthenticated(LoginRefusal::NoLogin)) => Ok(true),
            Err(error) => Err(error),
        };
        assert!(second.eventually(asked).await);
        let refused = there.put("key", "value").await;
        assert!(matches!(refused, Err(Error::NotForLearner)), "{refused:?}");

        first.eventually(async || root.member_promote(learner.id).await).await;
        second.eventually(async || there.put("key", "value").await).await;
        assert_eq!(there.user_list().await.expect("a login"), ["root"]);
    });
}
