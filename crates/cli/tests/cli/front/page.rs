//! The page of a Terraform module that put an etcd cluster behind one URL, line by line, through a front of an etcd without the v2 API.
//! Only the URL, the CA and the user are added; they come from a file that curl reads, so the lines are unchanged. Hosts of members speak
//! TLS alone, so their URLs begin with `https`.

use std::process::Command;

use serde_json::{Value, json};

use super::{Front, PASSWORDS};
use crate::common::{Run, address, eventually, newest};
use crate::discovery::{self, Service};

const URL: &str = "<<load-balancer-url>>";

/// Runs a line of the page in a shell.
fn line(front: &Front, line: &str) -> Value {
    let line = line.replace(URL, &front.at);
    let mut shell = Command::new("sh");
    let run: Run = shell.args(["-c", &line]).env("CURL_HOME", front.sandbox.path()).output().expect("a shell").into();
    let said = run.ok().stdout;
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{line}: {said}"))
}

#[test]
fn every_line_of_the_modules_page_works_through_one_url() {
    let front = Front::up(&newest(), "client_auth: password", &PASSWORDS.replace("/a/", "/v2/"), &["--insecure-http"]);
    let curl =
        format!("cacert = \"{}\"\nuser = \"app:correct horse\"\nsilent\nshow-error\nmax-time = 20\n", front.ca());
    front.sandbox.file(".curlrc", &curl);
    let line = |text: &str| line(&front, text);
    let url = format!("  without TLS:  http://{}", front.at);
    eventually("the URL is printed", 10, || front.log().contains(&url));

    let hosts = front.sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone();
    let hosts: Vec<&str> = hosts.split(',').filter_map(|url| url.strip_suffix(":2379")).collect();
    assert_eq!(hosts.len(), 3);
    for host in hosts {
        assert_eq!(line(&format!("curl {host}:2379/health"))["health"], "true");
        assert_eq!(line(&format!("curl {host}:2379/version"))["etcdserver"], newest());
    }

    assert_eq!(line("curl http://<<load-balancer-url>>/health")["health"], "true");
    assert_eq!(line("curl http://<<load-balancer-url>>/version")["etcdserver"], newest());

    line("curl http://<<load-balancer-url>>/v2/keys/planets -XPUT -d value=\"earth jupiter mars\"");
    line("curl http://<<load-balancer-url>>/v2/keys/galaxies -XPUT -d value=\"milky way / Orion\"");
    let planets = line("curl http://<<load-balancer-url>>/v2/keys/planets");
    let first = planets["node"]["createdIndex"].as_u64().expect("an index");
    let node = |value: &str, modified: u64, created: u64| json!({"key": "/planets", "value": value, "modifiedIndex": modified, "createdIndex": created});
    let earth = node("earth jupiter mars", first, first);
    assert_eq!(planets, json!({"action": "get", "node": earth}));
    let galaxies = line("curl http://<<load-balancer-url>>/v2/keys/galaxies");
    assert_eq!(galaxies["node"]["value"], "milky way / Orion");

    let changed =
        line("curl http://<<load-balancer-url>>/v2/keys/planets -XPUT -d value=\"mercury/venus/saturn/jupiter/earth\"");
    let mercury = node("mercury/venus/saturn/jupiter/earth", first + 2, first + 2);
    assert_eq!(changed, json!({"action": "set", "node": mercury, "prevNode": earth}));
    let gone = json!({"key": "/planets", "modifiedIndex": first + 3, "createdIndex": first + 2});
    let deleted = line("curl http://<<load-balancer-url>>/v2/keys/planets -XDELETE");
    assert_eq!(deleted, json!({"action": "delete", "node": gone, "prevNode": mercury}));

    // "Keep clicking refresh": wherever a request lands, the leader and its two followers are shown, with what the page shows of them.
    let shown: Vec<Value> = (0..6).map(|_| line("curl http://<<load-balancer-url>>/v2/stats/leader")).collect();
    for stats in &shown {
        assert_eq!(stats["leader"], shown[0]["leader"], "{stats}");
        let followers = stats["followers"].as_object().expect("followers");
        assert_eq!(followers.len(), 2, "{stats}");
        for follower in followers.values() {
            for figure in ["current", "average", "standardDeviation", "minimum", "maximum"] {
                assert!(follower["latency"][figure].is_number(), "{figure}: {stats}");
            }
            assert!(follower["counts"]["fail"].is_u64() && follower["counts"]["success"].is_u64(), "{stats}");
        }
    }
}

/// The page's "Discovery URL JSON", with the names and addresses of these members.
#[test]
fn the_discovery_url_shows_who_has_registered_as_on_the_modules_page() {
    let service = Service::start();
    let url = service.token(3);
    let empty = service.registry(&url)["node"].clone();
    let members = [1, 2, 3].map(|number| service.member_v2(&discovery::version("3.5"), number, &url));
    discovery::all_healthy(&members);
    let shown = service.registry(&url);

    let key = format!("/_etcd/registry/{}", discovery::token(&url));
    let nodes = shown["node"]["nodes"].as_array().expect("members");
    let of_directory = json!({
        "key": key, "dir": true, "nodes": nodes,
        "modifiedIndex": empty["modifiedIndex"], "createdIndex": empty["createdIndex"],
    });
    assert_eq!(shown, json!({"action": "get", "node": of_directory}));
    let mut values = Vec::new();
    for node in nodes {
        let (name, value, index) = (node["key"].as_str(), node["value"].as_str(), node["createdIndex"].as_u64());
        let (name, value) = (name.expect("a key"), value.expect("a value"));
        let id = name.strip_prefix(&format!("{key}/")).expect("in the directory");
        assert!(u64::from_str_radix(id, 16).is_ok(), "{id}");
        assert!(index > empty["createdIndex"].as_u64(), "{shown}");
        assert_eq!(*node, json!({"key": name, "value": value, "modifiedIndex": index, "createdIndex": index}));
        values.push(value.to_owned());
    }
    values.sort();
    let peer = |number: u8| format!("m{number}=http://{}:2380", address(100 + number));
    assert_eq!(values, [peer(1), peer(2), peer(3)]);
}
