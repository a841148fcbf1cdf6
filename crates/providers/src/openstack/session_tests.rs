//! Calls to a server with scripted answers.

use serde_json::json;

use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, PowerState};
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_core::spec;

use super::super::Openstack;
use super::super::script::{Then, script, serve, status};
use super::*;
use crate::Provider;
use crate::marks::{Mark, State};

fn post() -> Call {
    Call::new("create a thing", Service::Compute, Method::POST, "/things").json(json!({}))
}

async fn get(session: &Session) -> Result<Option<Value>, OpenstackError> {
    session.get("look", Service::Compute, "/things", None).await
}

#[tokio::test]
async fn temporary_errors_are_retried_and_permanent_ones_reported() {
    for passing in [status(500), status(503), status(429), status(413), Then::Cut] {
        let script = script([passing.clone(), passing]);
        let session = serve(script.clone()).await;
        assert_eq!(get(&session).await.unwrap(), Some(json!({ "done": true })));
        assert_eq!(script.lock().unwrap().seen.len(), 3);
    }
    let script = script((0..10).map(|_| status(503)));
    let session = serve(script.clone()).await;
    let said = get(&session).await.unwrap_err().to_string();
    assert_eq!(said, "OpenStack failed to look (503): told to");
    assert_eq!(script.lock().unwrap().seen.len(), 4, "within bounds");
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let script = script([status(403)]);
    let session = serve(script.clone()).await;
    assert_eq!(get(&session).await.unwrap_err().to_string(), "OpenStack refused to look (403): told to");
    assert_eq!(script.lock().unwrap().seen.len(), 1);
    script.lock().unwrap().then.push_back(status(404));
    assert_eq!(get(&session).await.unwrap(), None);
}

#[tokio::test]
async fn a_token_does_not_follow_a_redirect() {
    let script = script([Then::Redirect("/elsewhere")]);
    let session = serve(script.clone()).await;
    let said = get(&session).await.unwrap_err().to_string();
    assert!(said.contains("302"), "{said}");
    assert_eq!(script.lock().unwrap().seen, ["GET /v2.1/things t0ken1"]);
}

#[tokio::test]
async fn many_calls_share_a_token_until_it_expires_or_is_refused() {
    let script = script([]);
    let session = serve(script.clone()).await;
    let (first, second) = tokio::join!(get(&session), get(&session));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(script.lock().unwrap().tokens, 1);
    script.lock().unwrap().then.push_back(status(401));
    get(&session).await.unwrap();
    assert_eq!(script.lock().unwrap().tokens, 2);
    assert!(script.lock().unwrap().seen.last().unwrap().ends_with("t0ken2"));
    // Twice in a row is not about the token.
    script.lock().unwrap().then.extend([status(401), status(401)]);
    let said = get(&session).await.unwrap_err().to_string();
    assert!(said.contains("401") && !said.contains("t0ken"), "{said}");

    let script = super::super::script::script([]);
    script.lock().unwrap().good_for = 60;
    let session = serve(script.clone()).await;
    get(&session).await.unwrap();
    get(&session).await.unwrap();
    assert_eq!(script.lock().unwrap().tokens, 2, "one that is about to expire is replaced");
}

#[tokio::test]
async fn a_resource_whose_create_answer_was_lost_is_found_and_not_created_again() {
    for lost in [Then::Cut, status(500), status(504)] {
        let script = script([lost]);
        let session = serve(script.clone()).await;
        let find = async || Ok(Some(json!({ "found": true })));
        assert_eq!(session.create(post(), find).await.unwrap(), json!({ "found": true }));
        assert_eq!(script.lock().unwrap().seen.len(), 1);
    }
}

#[tokio::test]
async fn a_failed_creation_is_repeated_after_checking() {
    let script = script([Then::Cut, status(503)]);
    let session = serve(script.clone()).await;
    let looks = std::cell::Cell::new(0);
    let find = async || {
        looks.set(looks.get() + 1);
        Ok(None)
    };
    assert_eq!(session.create(post(), find).await.unwrap(), json!({ "done": true }));
    assert_eq!((looks.get(), script.lock().unwrap().seen.len()), (2, 3));
}

#[tokio::test]
async fn a_late_resource_is_found_when_the_second_create_conflicts() {
    let script = script([Then::Cut, status(409)]);
    let session = serve(script.clone()).await;
    let looks = std::cell::Cell::new(0);
    let find = async || {
        looks.set(looks.get() + 1);
        Ok((looks.get() > 1).then(|| json!({ "found": true })))
    };
    assert_eq!(session.create(post(), find).await.unwrap(), json!({ "found": true }));
    assert_eq!(script.lock().unwrap().seen.len(), 2);
    // Without a lost answer a conflict is a refusal.
    let script = super::super::script::script([status(409)]);
    let session = serve(script.clone()).await;
    let refused = session.create(post(), async || panic!("nothing was lost")).await.unwrap_err();
    assert!(refused.is_conflict(), "{refused}");
}

#[tokio::test]
async fn pages_are_followed() {
    let page = |id: u64, next: bool| {
        let mut page = json!({ "servers": [{ "id": id }] });
        if next {
            page["servers_links"] = json!([{ "rel": "next", "href": "http://elsewhere/v2.1/servers/detail?marker=x" }]);
        }
        Then::Answer(200, page)
    };
    let script = script([page(1, true), page(2, false)]);
    let session = serve(script.clone()).await;
    let all = session.list("list", Service::Compute, "/servers/detail", "servers", None).await.unwrap();
    assert_eq!(all, [json!({ "id": 1 }), json!({ "id": 2 })]);
    assert_eq!(script.lock().unwrap().seen.len(), 2);
}

/// What is missing from a list may be removed as if it were gone.
#[tokio::test]
async fn a_list_that_may_be_cut_short_is_an_error() {
    let page = |href: Value| {
        let links = json!([{ "rel": "next", "href": href }]);
        Then::Answer(200, json!({ "servers": [{ "id": 1 }], "servers_links": links }))
    };
    let next = json!("http://elsewhere/v2.1/servers/detail?marker=x");
    let cases = [
        vec![status(404)],
        vec![page(next.clone()), status(404)],
        vec![page(json!("http://elsewhere/compute?marker=x"))],
        vec![page(json!(7))],
        vec![Then::Answer(200, json!({ "versions": [] }))],
        vec![Then::Answer(200, Value::Null)],
    ];
    for answers in cases {
        let shown = format!("{answers:?}");
        let session = serve(script(answers)).await;
        let all = session.list("list", Service::Compute, "/servers/detail", "servers", None).await;
        assert!(all.is_err(), "{shown}: {all:?}");
    }
    // Glance says that there is no next page in more than one way.
    let last = Then::Answer(200, json!({ "images": [{ "id": 1 }], "next": null }));
    let session = serve(script([last])).await;
    assert_eq!(session.list("list", Service::Image, "/images", "images", None).await.unwrap().len(), 1);
}

#[test]
fn pauses_grow_and_what_a_server_asks_for_is_bounded() {
    let second = Duration::from_secs(1);
    let retry = Retry { attempts: 9, first: second, longest: 8 * second };
    for _ in 0..50 {
        assert!((0.74..=1.26).contains(&retry.pause(1, None).as_secs_f64()));
        assert!((2.9..=5.1).contains(&retry.pause(3, None).as_secs_f64()));
        assert!(retry.pause(9, None) <= 11 * second);
        assert_eq!(retry.pause(1, Some(20 * second)), 20 * second);
        assert_eq!(retry.pause(1, Some(3600 * second)), 32 * second);
    }
}

/// A cluster of this name that is only looked at, with this session.
fn observed(name: &str, session: &Rc<Session>) -> Openstack {
    let spec = spec::generated(name, 1, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
    let settings = json!({ "image": "m", "flavor": "f", "network": "n" });
    let settings: OpenstackSettings = serde_json::from_value(settings).unwrap();
    let ledger = Ledger::new(format!("id-{name}"), spec);
    let mut observed = Openstack::new(&ledger, &settings).only_looking();
    observed.session = session.clone().into();
    observed
}

fn server(cluster: &str) -> Value {
    let mark = Mark {
        cluster: cluster.to_owned(),
        cluster_id: format!("id-{cluster}"),
        member: "etcd-1".into(),
        incarnation: 1,
        address: "10.0.0.1".parse().unwrap(),
        fence: 1,
        state: State::Whole,
        port: None,
        data: None,
        build: None,
        flavor: None,
    };
    json!({ "id": cluster, "status": "ACTIVE", "OS-EXT-STS:power_state": 1, "metadata": mark.parts() })
}

#[tokio::test]
async fn clusters_that_are_only_observed_share_a_list() {
    let names: Vec<String> = (0..100).map(|n| format!("c{n}")).collect();
    let all: Vec<Value> = names.iter().map(|name| server(name)).collect();
    let list = |servers: Vec<Value>| Then::Answer(200, json!({ "servers": servers }));
    let script = script([list(vec![server("c0")]), list(all)]);
    let session = Rc::new(serve(script.clone()).await);
    for name in &names {
        let found = observed(name, &session).machines().await.unwrap().found;
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].1.cluster_id, format!("id-{name}"));
    }
    let (calls, tokens) = {
        let script = script.lock().unwrap();
        (script.seen.len(), script.tokens)
    };
    assert_eq!((calls, tokens), (2, 1), "one by tag, one for all, one token");
    // Who looks again sees what is new, and asks for deleted servers if its own is missing.
    script.lock().unwrap().then.extend([list(Vec::new()), list(Vec::new())]);
    assert_eq!(observed("c5", &session).machines().await.unwrap().found.len(), 0);
    // So does everybody after this program has changed anything.
    let nothing = || list(Vec::new());
    let again = [nothing(), nothing(), list(vec![server("c7")]), status(200), nothing(), nothing()];
    script.lock().unwrap().then.extend(again);
    assert_eq!(observed("c5", &session).machines().await.unwrap().found.len(), 0);
    assert_eq!(observed("c7", &session).machines().await.unwrap().found.len(), 1);
    session.change(post()).await.unwrap();
    assert_eq!(observed("c8", &session).machines().await.unwrap().found.len(), 0);
    assert_eq!(script.lock().unwrap().seen.len(), 10);
    // A cluster that acts never takes what was listed for others.
    let acting = Openstack { only_looks: false, ..observed("c9", &session) };
    script.lock().unwrap().then.extend([nothing(), nothing()]);
    acting.machines().await.unwrap();
    assert_eq!(script.lock().unwrap().seen.len(), 12);
}

#[tokio::test]
async fn servers_that_were_deleted_and_are_kept_are_machines_that_are_off() {
    let kept = |name: &str| {
        let mut server = server(name);
        server["status"] = json!("SOFT_DELETED");
        server
    };
    let script = script([]);
    let session = Rc::new(serve(script.clone()).await);
    let lists = [
        ("?tags=quorate.c0", vec![]),
        ("?tags=quorate.c0&status=SOFT_DELETED&changes-since=1970-01-01T00:00:00Z", vec![kept("c0")]),
        ("", vec![server("c3")]),
        // Somebody else has restored the last one since.
        ("?status=SOFT_DELETED&changes-since=1970-01-01T00:00:00Z", vec![kept("c1"), kept("c2"), server("c4")]),
    ];
    for (query, servers) in lists {
        let answer = Then::Answer(200, json!({ "servers": servers }));
        script.lock().unwrap().always.insert(format!("GET /v2.1/servers/detail{query}"), answer);
    }
    let (on, off) = (Some(PowerState::On), Some(PowerState::Off));
    for (name, expected) in [("c0", off), ("c1", off), ("c2", off), ("c3", on), ("c4", None)] {
        let found = observed(name, &session).machines().await.unwrap().found;
        assert_eq!(found.first().map(|(_, machine)| machine.power), expected, "{name}");
    }
    assert_eq!(script.lock().unwrap().seen.len(), 4, "each list was asked for once");
}
