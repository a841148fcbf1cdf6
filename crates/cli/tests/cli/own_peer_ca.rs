//! Clusters that were created before peers had a separate CA: `apply` gives them one, while clients write.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::common::trio::{Login, MEMBERS, NAME, Trio, VERSION};
use crate::common::{Sandbox, arguments, eventually, signal};
use crate::peer_port::{intruder, members};

/// A cluster as an older program would have made it: with a ledger that knows one CA for peers and clients.
fn with_a_shared_ca() -> Trio {
    let trio = Trio::new(Login::Certificate);
    let mut run = trio.spawn_apply();
    run.until("create the machine");
    run.kill();
    let newest = fs::read_dir(trio.ledger_directory()).expect("a ledger").flatten().map(|entry| entry.path()).max();
    let newest = newest.expect("a version");
    let mut ledger = trio.ledger();
    let without = |ledger: &mut Value, part: &str, field: &str| {
        let part = ledger[part].as_object_mut().expect("a part of the ledger");
        assert!(part.remove(field).is_some(), "{field}");
    };
    without(&mut ledger, "authorities", "peer");
    without(&mut ledger, "issued", "client_crl");
    without(&mut ledger, "issued", "peer_crl");
    fs::write(&newest, serde_json::to_vec(&ledger).expect("JSON")).expect("written");
    // Whatever that run had begun was made for another ledger.
    trio.destroy_machines_by_hand();
    let mut run = trio.spawn_apply();
    run.until("record that the cluster is bootstrapped");
    run.kill();
    trio
}

fn peer_port(trio: &Trio, member: &str) -> SocketAddr {
    SocketAddr::new(trio.address(member), 2380)
}

/// Whether root's certificate, which the CA of clients signed, is good at each peer port.
fn clients_are_let_in(trio: &Trio) -> Vec<bool> {
    let root = intruder(&trio.root("etcd-1").join("etc/etcd/pki"), "root");
    MEMBERS.iter().map(|member| members(&root, peer_port(trio, member)).is_ok()).collect()
}

#[test]
fn a_cluster_with_one_ca_gets_another_for_its_peers_while_clients_write() {
    let trio = with_a_shared_ca();
    eventually("it serves", 20, || trio.etcdctl(&["put", "/w", "0"]).code == Some(0));
    assert_eq!(clients_are_let_in(&trio), [true; 3], "else there is nothing to mend");

    let stop = Arc::new(AtomicBool::new(false));
    let environment = trio.sandbox.environment(NAME);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&trio.sandbox, &environment, &stop));
        let told = trio.apply();
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().expect("a writer");
        (told.ok(), written)
    });
    let (told, acknowledged) = written;
    // etcdctl does not repeat a put that a stopping member cut off, so that one may have been written without an answer.
    let last = trio.etcdctl(&["get", "/w", "--print-value-only"]).ok().stdout;
    let last: u64 = last.trim().parse().expect("a number");
    assert!((acknowledged..=acknowledged + 1).contains(&last), "{last} is there, {acknowledged} was acknowledged");
    assert!(acknowledged > 10, "{acknowledged} writes came through");
    for step in ["sign the certificates of peers with CA 2", "drop CA 1 from those trusted for peers"] {
        assert!(told.text().contains(step), "{step}: {}", told.text());
    }

    assert_eq!(clients_are_let_in(&trio), [false; 3]);
    for member in MEMBERS {
        let pki = trio.root(member).join("etc/etcd");
        let bundle = fs::read_to_string(pki.join("peer-ca.crt")).expect("the peers' CA");
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 1, "{member}");
        members(&intruder(&pki.join("pki"), "peer"), peer_port(&trio, "etcd-1")).expect("a peer is let in");
    }
    let peers = &trio.ledger()["authorities"]["peer"];
    assert_eq!((peers["signs"].as_u64(), peers["trusted"].as_array().map(Vec::len)), (Some(2), Some(1)));
    trio.assert_settled();
}

/// Puts growing numbers until told to stop, each until it is acknowledged. Tells the last one.
fn write_on(sandbox: &Sandbox, environment: &BTreeMap<String, String>, stop: &AtomicBool) -> u64 {
    let mut acknowledged = 0;
    while !stop.load(Ordering::Relaxed) {
        let next = acknowledged + 1;
        if sandbox.etcdctl_with(VERSION, environment, &["put", "/w", &next.to_string()]).code == Some(0) {
            acknowledged = next;
        }
    }
    acknowledged
}

#[test]
fn an_agent_of_an_older_program_is_started_again_and_etcd_runs_on() {
    let trio = Trio::up(Login::Certificate);
    let (agent, etcd) = (trio.agent_of("etcd-2").expect("an agent"), trio.etcd_of("etcd-2"));
    let line = arguments(agent);
    signal(agent, "KILL");
    eventually("it has ended", 5, || trio.agent_of("etcd-2").is_none());
    // As an older program would have started it, without a check of what it knows.
    let words: Vec<&str> = line[1..].iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    let mut older = trio.sandbox.command(&words);
    older.env("QUORATE_MACHINE", trio.root("etcd-2")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut older = older.spawn().expect("an agent starts");
    eventually("it serves", 10, || trio.sandbox.quorate(&["status", NAME]).code == Some(0));

    let told = trio.apply().ok().text();
    assert!(told.contains("the agent of etcd-2 is an older program"), "{told}");
    assert!(older.wait().is_ok(), "it was ended");
    assert_ne!(trio.agent_of("etcd-2"), Some(agent));
    assert_eq!(trio.etcd_of("etcd-2"), etcd, "etcd ran on");
    trio.assert_settled();
}
