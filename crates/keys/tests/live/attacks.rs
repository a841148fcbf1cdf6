//! Malicious requests, and what a killed process may leave behind.

use std::time::Duration;

use quorate_etcd::{Client, Condition, ConnectOptions, KeyRange, Op, PermissionKind, RangeQuery, Room, Txn};
use quorate_keys::{Keys, Settings};

use crate::http::{ask, begin, next};
use crate::lab::{Authority, Etcd, Setup, Version, enable_auth, on_every_version};
use crate::stage::{Ours, run, serve};

async fn all_keys(ours: &Ours) -> Vec<String> {
    let all = ours.client.range(RangeQuery::new(KeyRange::prefix(""))).await.expect("all keys");
    all.pairs.into_iter().map(|pair| String::from_utf8_lossy(&pair.key).into_owned()).collect()
}

#[test]
fn no_path_leads_out_of_the_prefix() {
    run(async {
        let ours = Ours::start().await;
        for path in ["/../../etc", "/%2e%2e/%2e%2e/x", "/..%2f..%2fx", "//x", "/./x", "/a/%2e%2e/%2e%2e/%2e%2e/b"] {
            let answer = ask(ours.at, "PUT", &format!("/v2/keys{path}"), "value=x").await;
            assert_eq!(answer.status, 301, "{path}");
            assert!(answer.header("location").starts_with('/'), "{path}");
        }
        for path in ["/%00", "/a%0d%0aSet-Cookie:%20x", "/%f0%9f%98%80", "/%ff%fe", "/a%2f%2fb"] {
            ask(ours.at, "PUT", &format!("/v2/keys{path}"), "value=x").await;
        }
        let keys = all_keys(&ours).await;
        assert!(keys.len() >= 4 && keys.iter().all(|key| key.starts_with("/v2/")), "{keys:?}");
        let deep = "/a".repeat(61);
        assert_eq!(ask(ours.at, "PUT", &format!("/v2/keys{deep}"), "value=x").await.status, 414);
        let deepest = "/a".repeat(60);
        assert_eq!(ask(ours.at, "PUT", &format!("/v2/keys{deepest}"), "value=x").await.status, 201);
        assert_eq!(ask(ours.at, "POST", &format!("/v2/keys{}", "/b".repeat(59)), "value=x").await.status, 201);
    });
}

#[test]
fn sizes_and_times_are_bounded() {
    run(async {
        let ours = Ours::start().await;
        let large = format!("value={}", "x".repeat(1 << 20));
        let refused = ask(ours.at, "PUT", "/v2/keys/large", &large).await;
        assert_eq!((refused.status, refused.json()["errorCode"].as_u64()), (413, Some(210)));
        let fits = format!("value={}", "x".repeat((1 << 20) - 6));
        assert_eq!(ask(ours.at, "PUT", "/v2/keys/large", &fits).await.status, 201);
        for ttl in ["9000000001", "18446744073709551615", "99999999999999999999", "-1", "1e3"] {
            let refused = ask(ours.at, "PUT", "/v2/keys/t", &format!("value=x&ttl={ttl}")).await;
            assert_eq!((refused.status, refused.json()["errorCode"].as_u64()), (400, Some(202)), "{ttl}");
        }
        let longest = ask(ours.at, "PUT", "/v2/keys/t", "value=x&ttl=9000000000").await;
        assert_eq!((longest.status, longest.json()["node"]["ttl"].as_u64()), (201, Some(9_000_000_000)));
        assert_eq!(ask(ours.at, "PUT", "/v2/keys/zero", "value=x&ttl=0").await.status, 201);
        let answer = ask(ours.at, "PUT", "/v2/keys/t?prevIndex=18446744073709551615", "value=y").await;
        assert_eq!(answer.status, 412);
    });
}

#[test]
fn no_lease_stays_without_its_key() {
    run(async {
        let ours = Ours::start().await;
        let leases = async || ours.client.leases().await.expect("leases").len();
        ask(ours.at, "PUT", "/v2/keys/f", "value=x&ttl=1000").await;
        assert_eq!(leases().await, 1);
        for refused in ["/v2/keys/f?prevValue=y", "/v2/keys/f?prevExist=false", "/v2/keys/f/g", "/v2/keys/"] {
            assert!(ask(ours.at, "PUT", refused, "value=z&ttl=500").await.status >= 400, "{refused}");
        }
        assert_eq!(leases().await, 1, "a refused write has none");
        ask(ours.at, "PUT", "/v2/keys/f", "ttl=2000&refresh=true").await;
        assert_eq!(leases().await, 1, "the former one is revoked");
        ask(ours.at, "PUT", "/v2/keys/f?prevExist=true", "value=x&ttl=").await;
        assert_eq!((leases().await, ask(ours.at, "GET", "/v2/keys/f", "").await.status), (0, 200));
        ask(ours.at, "PUT", "/v2/keys/f", "value=x&ttl=1000").await;
        ask(ours.at, "DELETE", "/v2/keys/f", "").await;
        assert_eq!(leases().await, 0);
    });
}

/// A process that was killed between grant and put has left a lease; one of somebody else is none of our business.
#[test]
fn a_sweep_keeps_foreign_and_fresh_leases_and_removes_remains_of_expired_directories() {
    run(async {
        let ours = Ours::start().await;
        let long = Duration::from_secs(100_000);
        let foreign = ours.client.lease_grant(long).await.expect("a lease").id;
        let left = ours.client.lease_grant_as(0x7632 << 48 | 7, long).await.expect("a lease").id;
        ask(ours.at, "PUT", "/v2/keys/f", "value=x&ttl=100000").await;
        let swept = ours.keys.sweep(&ours.client).await.expect("a sweep");
        assert_eq!(swept.leases, 0, "its write may be under way");
        let leases = ours.client.leases().await.expect("leases");
        assert!(leases.contains(&foreign) && leases.contains(&left) && leases.len() == 3);

        // What an expired directory leaves.
        ask(ours.at, "PUT", "/v2/keys/d/e/f?value=x", "").await;
        let gone = Op::Delete(KeyRange::key("/v2//d"));
        ours.client.txn(Txn { then: vec![gone], ..Txn::default() }).await.expect("a deletion");
        assert!(all_keys(&ours).await.contains(&"/v2/d/e//f".to_owned()));
        assert_eq!(ours.keys.sweep(&ours.client).await.expect("a sweep").directories, 1);
        assert_eq!(all_keys(&ours).await, ["/v2//f"]);
    });
}

/// However much is stored, one request takes a bounded part of the memory.
#[test]
fn an_answer_is_bounded_and_so_are_all_together() {
    run(async {
        let ours = Ours::start().await;
        let options = ConnectOptions { longest_answer: 3 << 20, ..ours.etcd.options() };
        let room = Room::new(8 << 20);
        let keys = Keys::new(Settings { room: Some(room.clone()), ..Settings::default() });
        let at = serve(keys, Client::connect(options).expect("good options")).await;
        let value = format!("value={}", "x".repeat(1_000_000));
        let mut first = 0;
        for path in ["/l/1", "/l/2", "/l/3", "/l/4", "/m/1", "/m/2"] {
            let put = ask(at, "PUT", &format!("/v2/keys{path}"), &value).await;
            assert_eq!(put.status, 201);
            first = if first == 0 { put.index() } else { first };
        }
        for all in ["/v2/keys/?recursive=true", "/v2/keys/l"] {
            let refused = ask(at, "GET", all, "").await;
            assert_eq!((refused.status, refused.json()["errorCode"].as_u64()), (400, Some(209)), "{all}");
            let cause = refused.json()["cause"].to_string();
            assert!(cause.contains("larger than 3 MiB; ask for less"), "{cause}");
        }
        assert_eq!(ask(at, "GET", "/v2/keys/?recursive=false", "").await.status, 200);
        assert_eq!(ask(at, "GET", "/v2/keys/m", "").await.status, 200);
        let others = room.take(4 << 20).expect("room");
        assert_eq!(ask(at, "GET", "/v2/keys/m", "").await.status, 503);
        drop(others);
        assert_eq!(ask(at, "GET", "/v2/keys/m", "").await.status, 200);
        assert!(room.is_empty());

        // Past events are sent in parts, and a waiting client gets all of them.
        let wait = format!("/v2/keys/?wait=true&recursive=true&stream=true&waitIndex={first}");
        let (mut waiting, mut events) = (begin(at, "GET", &wait, "").await, String::new());
        while events.matches("\"action\"").count() < 6 {
            events += &next(&mut waiting, Duration::from_secs(20)).await.expect("an event");
        }
    });
}

#[test]
fn remains_of_many_expired_directories_are_removed() {
    run(async {
        let ours = Ours::start().await;
        ask(ours.at, "PUT", "/v2/keys/kept/a?value=x", "").await;
        for part in 0..50 {
            let left =
                |number: i32| Op::Put { key: format!("/v2/gone//{part}-{number}").into(), value: vec![], lease: 0 };
            let then = (0..110).map(left).collect();
            ours.client.txn(Txn { then, ..Txn::default() }).await.expect("a write");
        }
        assert_eq!(ours.keys.sweep(&ours.client).await.expect("a sweep").directories, 1);
        assert_eq!(all_keys(&ours).await, ["/v2//kept", "/v2/kept//a"]);
    });
}

/// What others have put below the prefix breaks nothing.
#[test]
fn strange_keys_below_the_prefix_do_no_harm() {
    run(async {
        let ours = Ours::start().await;
        for (key, value) in [
            ("/v2", "x"),
            ("/v2/", "x"),
            ("/v2/x", ""),
            ("/v2//raw", "{\"v2\":1"),
            ("/v2//", "junk"),
            ("/v2/raw//", "{}"),
        ] {
            ours.client.put(key, value).await.expect("a put");
        }
        let listed = ask(ours.at, "GET", "/v2/keys/?recursive=true", "").await;
        assert_eq!(listed.json()["node"]["nodes"].as_array().map(Vec::len), Some(1), "{}", listed.body);
        assert_eq!(listed.json()["node"]["nodes"][0]["value"], "{\"v2\":1");
        assert_eq!(ask(ours.at, "DELETE", "/v2/keys/raw", "").await.status, 200);
        assert_eq!(ask(ours.at, "POST", "/v2/keys/", "value=x").await.status, 201);
    });
}

/// The condition on a range, which no other part of quorate uses, on every version.
#[test]
fn an_empty_range_is_a_condition_on_every_version() {
    on_every_version(async |version: &Version| {
        let etcd = Etcd::start(version, &Authority::new(), Setup::password());
        let client = quorate_etcd::Client::connect(etcd.options()).expect("good options");
        etcd.ready(&client).await;
        let holds = async || {
            let conditions = vec![Condition::none_in(KeyRange::prefix("a/"))];
            client.txn(Txn { conditions, ..Txn::default() }).await.expect("a transaction").succeeded
        };
        assert!(holds().await);
        client.put("a/b", "x").await.expect("a put");
        assert!(!holds().await);
        let keys = Keys::new(Settings::default());
        let at = serve(keys, client.clone()).await;
        assert_eq!(ask(at, "PUT", "/v2/keys/d/e?value=x&ttl=100", "").await.status, 201);
        assert_eq!(ask(at, "DELETE", "/v2/keys/d?dir=true", "").await.status, 403);
        assert_eq!(ask(at, "DELETE", "/v2/keys/d?recursive=true", "").await.status, 200);
    });
}

/// The permissions of v3 are those of v2.
#[test]
fn users_may_do_what_their_roles_allow() {
    on_every_version(async |version: &Version| {
        let etcd = Etcd::start(version, &Authority::new(), Setup::password());
        let plain = quorate_etcd::Client::connect(etcd.options()).expect("good options");
        etcd.ready(&plain).await;
        plain.user_add("app", Some("secret")).await.expect("a user");
        plain.role_add("app").await.expect("a role");
        plain.role_grant_permission("app", permission("/v2/app/", true)).await.expect("a grant");
        plain.role_grant_permission("app", permission("/v2//app", false)).await.expect("a grant");
        plain.user_grant_role("app", "app").await.expect("a grant");
        enable_auth(&plain, Some("root")).await;
        let serve = async |user: &str, password: &str| {
            serve(Keys::new(Settings::default()), etcd.client_with(user, password)).await
        };
        let (root, app) = (serve("root", "root").await, serve("app", "secret").await);
        assert_eq!(ask(root, "PUT", "/v2/keys/other?value=x", "").await.status, 201);
        assert_eq!(ask(root, "PUT", "/v2/keys/app?dir=true", "").await.status, 201);
        assert_eq!(ask(app, "PUT", "/v2/keys/app/x?value=1&ttl=100", "").await.status, 201);
        assert_eq!(ask(app, "PUT", "/v2/keys/app/x?value=2", "").await.status, 200);
        assert_eq!(ask(app, "GET", "/v2/keys/app?recursive=true", "").await.status, 200);
        for (method, path) in [
            ("GET", "/other"),
            ("PUT", "/other?value=y"),
            ("DELETE", "/app?recursive=true"),
            ("GET", "/"),
            ("GET", "/?wait=true"),
        ] {
            let refused = ask(app, method, &format!("/v2/keys{path}"), "").await;
            assert_eq!((refused.status, refused.json()["errorCode"].as_u64()), (401, Some(110)), "{method} {path}");
        }
        assert_eq!(ask(serve("app", "wrong").await, "GET", "/v2/keys/app", "").await.status, 401);
    });
}

fn permission(prefix: &str, write: bool) -> quorate_etcd::Permission {
    let KeyRange { key, range_end } = if write { KeyRange::prefix(prefix) } else { KeyRange::key(prefix) };
    let kind = if write { PermissionKind::ReadWrite } else { PermissionKind::Read };
    quorate_etcd::Permission { key, range_end, kind }
}
