//! Clients that ask for much and do not read it.

use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::{AUTH, Front, base64, curl};
use crate::common::{eventually, newest};

struct Slow(Child);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn answers_that_nobody_reads_take_a_bounded_part_of_the_memory() {
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
