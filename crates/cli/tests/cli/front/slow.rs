//! Clients that request much and do not read it.

use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::{AUTH, Front, PASSWORDS, base64, curl, v2};
use crate::common::{eventually, newest};

struct Slow(Child);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn unread_answers_use_bounded_memory() {
    let front = Front::up(&newest(), "", AUTH, &[]);
    let (ca, app) = (front.ca(), front.user("app"));
    let flags = ["--cert", &app["ETCDCTL_CERT"], "--key", &app["ETCDCTL_KEY"]];
    for number in 0..20 {
        let put = json!({"key": base64(&format!("/a/large/{number}")), "value": "dmFs".repeat(350_000)});
        let file = format!("@{}", front.sandbox.file("put.json", &put.to_string()).display());
        let flags = [&flags[..], &["--data-binary", &file]].concat();
        assert_eq!(curl(&ca, &flags, &front.url("/v3/kv/put"), None).0, 200);
    }
    let all = json!({"key": base64("/a/large/"), "range_end": base64("/a/large0")});
    let url = front.url("/v3/kv/range");
    let slow = || {
        let mut command = Command::new("curl");
        command.args([
            "-sS",
            "--limit-rate",
            "1000",
            "--max-time",
            "55",
            "--cacert",
            &ca,
            "-d",
            &all.to_string(),
            &url,
        ]);
        Slow(command.args(flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("curl runs"))
    };
    let ask = || curl(&ca, &flags, &url, Some(&all)).0;
    assert_eq!(ask(), 200);
    // Each is about 27 MiB as JSON, which takes a busy machine seconds to make.
    let clients: Vec<Slow> = (0..12).map(|_| slow()).collect();
    eventually("there is no room for another", 45, || ask() == 503);
    let small = json!({"key": base64("/a/large/1"), "keys_only": true});
    assert_eq!(curl(&ca, &flags, &url, Some(&small)).0, 200, "what is small is answered all the same");
    drop(clients);
    eventually("there is room again", 20, || ask() == 200);
}

/// curl stops reading when the pipe behind it is full.
fn unread(front: &Front, flags: &[&str], path: &str) -> Slow {
    let mut command = Command::new("curl");
    command.args(["-sSN", "--cacert", &front.ca(), "-u", "app:correct horse"]).args(flags).arg(front.url(path));
    Slow(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("curl runs"))
}

#[test]
fn watchers_that_do_not_read_delay_no_others_and_are_ended() {
    let front = Front::up(&newest(), "client_auth: password", &PASSWORDS.replace("/a/", "/v2/"), &[]);
    let watch = json!({"create_request": {"key": base64("/v2/"), "range_end": base64("/v20")}}).to_string();
    let mut watchers = Vec::new();
    for _ in 0..8 {
        watchers.push(unread(&front, &[], "/v2/keys/?wait=true&recursive=true&stream=true"));
        watchers.push(unread(&front, &["-d", &watch], "/v3/watch"));
    }
    let waiting = || v2(&front, "/v2/stats/store", &[]).1["watchers"].as_u64();
    eventually("they wait", 30, || waiting() == Some(8));
    let large = format!("@{}", front.sandbox.file("large", &format!("value={}", "x".repeat(1_000_000))).display());
    for number in 0..20 {
        let (status, answer) = v2(&front, &format!("/v2/keys/large/{number}"), &["-XPUT", "--data-binary", &large]);
        assert_eq!(status, 201, "{answer}");
    }
    // The same user, over the connections that the front's own probes use.
    eventually("watchers that do not read are ended", 120, || {
        let (status, answer) = v2(&front, "/v2/keys/large/1", &[]);
        assert_eq!(status, 200, "{answer}");
        waiting() == Some(0)
    });
    let log = front.log();
    assert!(!log.contains("does not serve"), "{log}");
    drop(watchers);
}
