use super::*;
use crate::kinds::etcd::{Formation, FormingMember};
use crate::model::{ForwardSecrets, LogSecrets};

fn spec(host: &str) -> ClusterSpec {
    let text = format!("quorate: 1\nclusters:\n  - name: c\n    members: [{{name: etcd-1}}]\n    host: {host}\n");
    let document = spec::Document::parse("a.yaml", &text).expect("it is YAML");
    let checked = document.spec(&spec::HostFacts::default());
    checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0)
}

#[test]
fn a_spec_without_a_kind_of_token_keeps_what_the_cluster_was_created_with() {
    let spec = |etcd: &str, auth: &str| {
        let text = format!(
            "quorate: 1\nclusters:\n  - name: c\n    members: [{{name: etcd-1}}]\n    etcd: {etcd}\n    auth: {auth}\n"
        );
        let document = spec::Document::parse("a.yaml", &text).expect("it is YAML");
        document.spec(&spec::HostFacts::default()).spec.expect("it is valid").clusters.remove(0)
    };
    let password = spec("{client_auth: password}", "{}");
    let mut ledger = Ledger::new(String::from("c"), password.clone());
    assert_eq!(etcd::desire::token_kind(&spec("{}", "{}"), &ledger), TokenKind::Simple);
    assert_eq!(etcd::desire::token_kind(&password, &ledger), TokenKind::Jwt, "a new cluster");
    let mut formed = serde_json::to_value(etcd::desire::form_with(&password, &ledger)).unwrap();
    assert_eq!(formed["token"], "jwt");
    ledger.etcd.formed_with = Some(serde_json::from_value(formed.clone()).unwrap());
    assert_eq!(etcd::desire::token_kind(&password, &ledger), TokenKind::Jwt);
    // As ledgers have it that were written when `simple` was the default everywhere.
    formed.as_object_mut().unwrap().remove("token");
    ledger.etcd.formed_with = Some(serde_json::from_value(formed).unwrap());
    assert_eq!(etcd::desire::token_kind(&password, &ledger), TokenKind::Simple, "a living cluster is not changed");
    let wanted = spec("{client_auth: password}", "{token: jwt}");
    assert_eq!(etcd::desire::token_kind(&wanted, &ledger), TokenKind::Jwt);
}

#[test]
fn a_machine_rejects_other_sources_by_default() {
    let spec = spec("{}");
    let config = host::host_config(&spec, &spec.members[0], &Brought::default(), &BTreeSet::new());
    assert!(config.node_exporter && config.install_dependencies && config.chrony.is_none());
    assert!(config.firewall.is_some_and(|firewall| firewall.scrape_from.is_empty()));
    assert_eq!(
        host::config(&spec, &spec.members[0], &Brought::default(), &BTreeSet::new()),
        None,
        "a local machine is left alone"
    );
}

#[test]
fn only_members_reach_the_peer_port_by_default() {
    let text =
        "quorate: 1\nclusters:\n  - name: c\n    provider: {libvirt: {pool: p, image: {volume: i}}}\n    members:\n"
            .to_owned()
            + "      - {name: etcd-1, libvirt: {interfaces: [{network: n, address: 192.0.2.1, prefix: 24}]}}\n"
            + "      - {name: etcd-2, libvirt: {interfaces: [{network: n, address: 192.0.2.2, prefix: 24}]}}\n";
    let parse = |text: &str| {
        let document = spec::Document::parse("a.yaml", text).expect("it is YAML");
        let checked = document.spec(&spec::HostFacts::default());
        checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0)
    };
    let peers_from = |spec: &ClusterSpec, ledger: &Ledger| {
        let configs = Wish { spec, brought: &Brought::default(), arch: "amd64" }.configs(ledger);
        let host = configs.members["etcd-1"].config.host.clone().expect("a machine");
        let ranges = host.firewall.expect("a firewall").rules.peers_from.expect("a rule");
        ranges.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let spec = parse(&text);
    let mut ledger = Ledger::new(String::from("c1"), spec.clone());
    assert_eq!(peers_from(&spec, &ledger), ["192.0.2.1/32", "192.0.2.2/32"]);
    // One that is no longer declared is a member until etcd has removed it.
    let former = FormingMember {
        machine_id: String::from("m"),
        peer_url: String::from("https://192.0.2.3:2380"),
        learner: false,
    };
    let members = BTreeMap::from([(MemberName::from("etcd-3"), former)]);
    ledger.etcd.formation = Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members };
    assert_eq!(peers_from(&spec, &ledger), ["192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"]);
    let spec = parse(&(text + "    host: {firewall: {peers_from: [192.0.2.0/24]}}\n"));
    assert_eq!(peers_from(&spec, &ledger), ["192.0.2.0/24"]);
}

#[test]
fn nobody_may_ask_an_exporter_that_does_not_run() {
    let spec = spec("{node_exporter: {enabled: false, scrape_from: [10.0.0.0/8]}}");
    let config = host::host_config(&spec, &spec.members[0], &Brought::default(), &BTreeSet::new());
    assert!(!config.node_exporter && config.firewall.unwrap().scrape_from.is_empty());
}

#[test]
fn members_may_reach_each_others_agents_regardless_of_who_else_may() {
    let mut spec = spec("{firewall: {controller_from: [10.1.2.3], peers_from: [10.0.0.0/24]}}");
    spec.members[0].address = Some("10.0.0.1".parse().unwrap());
    let of = |spec: &ClusterSpec| {
        let config = host::host_config(spec, &spec.members[0], &Brought::default(), &BTreeSet::new());
        let from = config.firewall.unwrap().rules.controller_from;
        from.map(|ranges| ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let expected = ["10.1.2.3/32", "10.0.0.0/24", "10.0.0.1/32"].map(str::to_owned);
    assert_eq!(of(&spec), Some(expected.to_vec()));
    spec.host.as_mut().unwrap().firewall.controller_from = None;
    assert_eq!(of(&spec), None, "all may");
}

#[test]
fn metrics_have_a_separate_port_if_wanted() {
    let mut spec = spec("{}");
    assert_eq!(etcd::desire::metrics_url(&spec), None);
    spec.etcd.metrics = Some(etcd::spec::Metrics { port: 9379, scrape_from: vec!["10.9.0.0/16".parse().unwrap()] });
    assert_eq!(etcd::desire::metrics_url(&spec).as_deref(), Some("http://{address}:9379"));
    let firewall = host::host_config(&spec, &spec.members[0], &Brought::default(), &BTreeSet::new()).firewall.unwrap();
    assert_eq!(firewall.metrics, spec.etcd.metrics);
}

#[test]
fn logs_are_forwarded_with_user_provided_files() {
    let spec = spec("{log_forwarding: {forward: {host: logs, shared_key_file: key, ca: ca.pem}}}");
    let forward = ForwardSecrets { shared_key: Secret::new(String::from("s")), ca: String::from("pem") };
    let secrets = LogSecrets { forward: Some(forward), source: None };
    let brought = Brought { log_forwarding: Some(secrets), ..Brought::default() };
    let config = host::host_config(&spec, &spec.members[0], &brought, &BTreeSet::new()).log_forwarding.unwrap();
    let forward = config.forward.unwrap();
    assert_eq!((forward.hostname.as_str(), forward.port, forward.ca.as_str()), ("etcd-1", 24224, "pem"));
    assert_eq!(config.from_etcd, None);
}

#[test]
fn the_logs_of_a_machine_are_those_of_what_runs_on_it() {
    let mut spec = spec("{log_forwarding: {patroni_tag: pg, forward: {host: logs, shared_key_file: key, ca: ca.pem}}}");
    let secrets = LogSecrets {
        forward: Some(ForwardSecrets { shared_key: Secret::new(String::from("s")), ca: String::from("pem") }),
        source: None,
    };
    let brought = Brought { log_forwarding: Some(secrets), ..Brought::default() };
    let logs = |spec: &ClusterSpec| {
        let config = host::host_config(spec, &spec.members[0], &brought, &BTreeSet::new());
        let services = config.log_forwarding.unwrap().services;
        services.into_iter().map(|log| (log.service, log.tag)).collect::<Vec<_>>()
    };
    assert_eq!(logs(&spec), [], "etcd has its own tag");
    let dcs = "orders".parse().unwrap();
    (spec.kind, spec.postgres) = (spec::Kind::Postgres, Some(postgres::spec::PostgresSettings::new(15, dcs)));
    let patroni = (String::from("patroni"), String::from("pg"));
    assert_eq!(logs(&spec), std::slice::from_ref(&patroni));
    let haproxy = postgres::spec::Haproxy::default();
    spec.postgres.as_mut().unwrap().haproxy = Some(haproxy.clone());
    assert_eq!(logs(&spec), [patroni.clone(), (String::from("haproxy"), String::from("haproxy"))]);
    let elsewhere = postgres::spec::Haproxy { members: Some(Vec::new()), ..haproxy };
    spec.postgres.as_mut().unwrap().haproxy = Some(elsewhere);
    assert_eq!(logs(&spec), [patroni]);
}

#[test]
fn a_cloud_opens_the_port_of_backups_before_there_is_a_passphrase_for_them() {
    let text = "quorate: 1\nclusters:\n  - name: shop\n    kind: postgres\n    \
                provider: {libvirt: {pool: p, image: {volume: i}}}\n    \
                members: [{name: pg-1, libvirt: {interfaces: [{network: n, address: 192.0.2.1, prefix: 24}]}}]\n    \
                postgres: {version: 15, dcs: {cluster: orders}, synchronous: {nodes: 0}}\n";
    let ports = |backup: &str| {
        let document = spec::Document::parse("a.yaml", &format!("{text}{backup}")).expect("it is YAML");
        let checked = document.spec(&spec::HostFacts::default());
        let spec = checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0);
        let ledger = Ledger::new(String::from("c"), spec);
        assert!(ledger.postgres.passwords.is_none());
        openings(&ledger).into_iter().flat_map(|opening| opening.ports).collect::<BTreeSet<u16>>()
    };
    let backup = "    backup:\n      recipients: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]\n      \
                  to: {s3: {endpoint: https://s3.example.org, bucket: backups, credentials: {file: keys}}}\n";
    assert!(ports("").contains(&postgres::CLIENT_PORT) && !ports("").contains(&postgres::BACKUP_PORT));
    assert!(ports(backup).contains(&postgres::BACKUP_PORT));
}
