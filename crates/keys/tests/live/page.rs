//! A tutorial page, line by line: planets and galaxies put, read, changed and deleted, and the leader.

use std::time::Duration;

use crate::http::ask;
use crate::stage::{Ours, run};

#[test]
fn the_page_works_again() {
    run(async {
        let ours = Ours::start().await;
        let form = "value=earth jupiter mars";
        let put = ask(ours.at, "PUT", "/v2/keys/planets", form).await;
        assert_eq!(put.status, 201);
        ask(ours.at, "PUT", "/v2/keys/galaxies", "value=milky way / Orion").await;
        let first = put.index();
        let read = ask(ours.at, "GET", "/v2/keys/planets", "").await;
        let node = format!(
            r#"{{"key":"/planets","value":"earth jupiter mars","modifiedIndex":{first},"createdIndex":{first}}}"#
        );
        assert_eq!(read.body, format!("{{\"action\":\"get\",\"node\":{node}}}\n"));
        assert_eq!(ask(ours.at, "GET", "/v2/keys/galaxies", "").await.json()["node"]["value"], "milky way / Orion");

        let value = "mercury/venus/saturn/jupiter/earth";
        let changed = ask(ours.at, "PUT", "/v2/keys/planets", &format!("value={value}")).await;
        let second = first + 2;
        let next =
            format!(r#"{{"key":"/planets","value":"{value}","modifiedIndex":{second},"createdIndex":{second}}}"#);
        assert_eq!(changed.body, format!("{{\"action\":\"set\",\"node\":{next},\"prevNode\":{node}}}\n"));

        let deleted = ask(ours.at, "DELETE", "/v2/keys/planets", "").await;
        let third = second + 1;
        let gone = format!(r#"{{"key":"/planets","modifiedIndex":{third},"createdIndex":{second}}}"#);
        assert_eq!(deleted.body, format!("{{\"action\":\"delete\",\"node\":{gone},\"prevNode\":{next}}}\n"));
        assert_eq!(ask(ours.at, "GET", "/v2/keys/planets", "").await.status, 404);
    });
}

#[test]
fn the_leader_its_members_and_counts_are_shown() {
    run(async {
        let ours = Ours::start().await;
        let status = ours.client.status().await.expect("a status");
        let leader = format!("{:x}", status.leader);
        ours.keys.probed(status.leader, Some(Duration::from_millis(1)));
        for _ in 0..3 {
            let body = ask(ours.at, "GET", "/v2/stats/leader", "").await.body;
            assert_eq!(body, format!(r#"{{"leader":"{leader}","followers":{{}}}}"#));
        }
        let own = ask(ours.at, "GET", "/v2/stats/self", "").await.json();
        assert_eq!((own["name"].as_str(), own["state"].as_str()), (Some("m1"), Some("StateLeader")));
        assert_eq!(own["leaderInfo"]["leader"], leader.as_str());
        let url = format!("https://{}:2379", ours.etcd.address);
        assert_eq!(ask(ours.at, "GET", "/v2/machines", "").await.body, url);
        let members = ask(ours.at, "GET", "/v2/members", "").await.json();
        assert_eq!(
            (&members["members"][0]["id"], &members["members"][0]["clientURLs"][0]),
            (&leader.into(), &url.into())
        );
        assert_eq!(ask(ours.at, "GET", "/v2/members/leader", "").await.json()["name"], "m1");
        for method in ["POST", "PUT", "DELETE"] {
            let refused = ask(ours.at, method, "/v2/members/1", "").await;
            assert_eq!(refused.status, 403);
            assert!(refused.body.contains("quorate apply"), "{}", refused.body);
        }
        assert_eq!(ask(ours.at, "GET", "/v2/leader", "").await.status, 404);
        assert_eq!(ask(ours.at, "GET", "/v2/auth/users", "").await.status, 403);
        assert_eq!(ask(ours.at, "POST", "/v2/machines", "").await.header("allow"), "GET,HEAD");
    });
}
