//! Specs that quorate writes: the template, the generated spec, YAML that is written and read again, and the schema for editors.

use proptest::prelude::*;
use quorate_core::kinds::etcd::spec::{AutoCompaction, ClientAuth, Permission};
use quorate_core::kinds::etcd::versions;
use quorate_core::providers::TEMPLATES;
use quorate_core::spec::{self, Document, HostFacts, Severity, Spec, json_schema};
use serde_json::Value;

/// Reads a spec that must be without any problem, warnings included.
fn accepted(yaml: &str) -> Spec {
    let document = Document::parse("cluster.yaml", yaml).unwrap_or_else(|problems| panic!("{problems:?}\n{yaml}"));
    let checked = document.spec(&HostFacts::default());
    assert!(checked.problems.is_empty(), "{}\n{yaml}", checked.problems[0].render(yaml));
    checked.spec.expect("a spec without problems")
}

/// Uncomments settings as an editor does, which takes `# ` away and nothing else: all of them, or only those that show a default. An
/// example follows an explanation that ends with a colon.
fn uncommented(template: &str, examples: bool) -> String {
    let mut is_example = false;
    let mut spec = String::new();
    for line in template.lines() {
        let text = line.trim_start();
        is_example = match (text.strip_prefix("##"), text.strip_prefix('#')) {
            (Some(explanation), _) => explanation.ends_with(':'),
            (None, Some(_)) => is_example,
            // The members, of which the explanation stands above all.
            (None, None) => is_example && !text.is_empty(),
        };
        let is_setting = text.starts_with("# ") && !text.contains("quorate.schema.json");
        match is_setting && (examples || !is_example) {
            true => spec.push_str(&line.replacen("# ", "", 1)),
            false => spec.push_str(line),
        }
        spec.push('\n');
    }
    spec
}

fn with_defaults_written_out(template: &str) -> String {
    uncommented(template, false)
}

#[test]
fn every_setting_of_a_template_can_be_uncommented_and_no_two_exclude_each_other() {
    for (provider, _) in TEMPLATES {
        let template = spec::template(provider).unwrap();
        let long: Vec<&str> = template.lines().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, Vec::<&str>::new(), "lines that do not fit a terminal");
        let text = uncommented(&template, true);
        let commented = text.lines().filter(|line| line.trim_start().starts_with("# ")).count();
        assert_eq!(commented, 2, "the two lines about the schema alone:\n{text}");
        let checked = Document::parse("cluster.yaml", &text).unwrap().spec(&HostFacts::default());
        // It warns of backups without recipients, which a template cannot know, and of a host under the provider `local`.
        let errors = checked.problems.iter().filter(|problem| problem.severity == Severity::Error);
        let errors: Vec<String> = errors.map(|problem| problem.render(&text)).collect();
        assert_eq!(errors, Vec::<String>::new(), "{provider}");
        let cluster = &checked.spec.unwrap().clusters[0];
        assert!(cluster.backup.is_some() && cluster.host.is_some() && !cluster.auth.users.is_empty());
    }
}

#[test]
fn the_template_is_accepted_and_the_defaults_it_shows_are_the_defaults() {
    let template = spec::template("local").unwrap();
    assert!(template.starts_with("# yaml-language-server: $schema="));
    let plain = accepted(&template);
    let written_out = with_defaults_written_out(&template);
    assert_ne!(template, written_out);
    let mut explicit = accepted(&written_out);
    let compaction = &mut explicit.clusters[0].etcd.auto_compaction;
    assert_eq!(compaction.retention.take(), Some(AutoCompaction::default().retention()));
    assert_eq!(plain, explicit);
    // Not the name that `up` uses: the spec is for another cluster.
    assert_eq!(plain, spec::generated("orders", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap());
}

#[test]
fn the_template_for_libvirt_differs_from_the_defaults_in_nothing_but_what_must_be_said() {
    let template = spec::template("libvirt").unwrap();
    let plain = accepted(&template);
    let mut explicit = accepted(&with_defaults_written_out(&template));
    explicit.clusters[0].etcd.auto_compaction.retention = None;
    assert_eq!(plain, explicit);
    assert_eq!(
        plain.clusters[0].provider.settings().pinned(&plain.clusters[0].members[0]),
        "192.168.122.11".parse().ok()
    );
}

#[test]
fn the_template_of_postgres_is_valid_as_it_is_and_uncommented() {
    let template = spec::postgres_template();
    assert_eq!(template.lines().find(|line| line.chars().count() > 80), None, "it does not fit a terminal");
    for text in [template.clone(), uncommented(&template, true)] {
        let checked = Document::parse("shop.yaml", &text).unwrap().spec(&HostFacts::default());
        assert!(checked.problems.is_empty(), "{:?}\n{text}", checked.problems);
        assert_eq!(checked.spec.unwrap().clusters[1].kind, spec::Kind::Postgres);
    }
}

#[test]
fn the_template_shows_every_field_that_has_a_default() {
    let local = spec::template("local").unwrap();
    let shown: Value = serde_json::to_value(accepted(&with_defaults_written_out(&local))).unwrap();
    let default: Value = serde_json::to_value(accepted(&local)).unwrap();
    // What belongs to one provider is shown by its own template.
    let template: String = TEMPLATES.iter().map(|(provider, _)| spec::template(provider).unwrap()).collect();
    let template = template + &spec::postgres_template();
    fn keys(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                found.push(key.clone());
                keys(value, found);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }
    let mut fields = Vec::new();
    keys(&default, &mut fields);
    keys(&shown, &mut fields);
    visit_properties(&json_schema(), &mut |name, _| fields.push(name.to_owned()));
    for field in fields {
        assert!(template.contains(&format!("{field}:")), "the template lacks `{field}`");
    }
}

fn visit_properties(schema: &Value, act: &mut dyn FnMut(&str, &Value)) {
    if let Some(properties) = schema["properties"].as_object() {
        properties.iter().for_each(|(name, property)| act(name, property));
    }
    match schema {
        Value::Object(map) => map.values().for_each(|value| visit_properties(value, act)),
        Value::Array(items) => items.iter().for_each(|item| visit_properties(item, act)),
        _ => {}
    }
}

#[test]
fn every_field_of_the_schema_is_described_and_settings_have_defaults() {
    let schema = json_schema();
    let mut count = 0;
    visit_properties(&schema, &mut |name, property| {
        count += 1;
        let meant = property["$ref"].as_str().and_then(|at| schema.pointer(at.trim_start_matches('#')));
        let description = property.get("description").or_else(|| meant?.get("description"));
        let described = description.and_then(Value::as_str).is_some_and(|text| text.len() > 8);
        assert!(described, "`{name}` has no description");
    });
    assert!(count > 40, "{count} fields");
    assert_eq!(schema["$defs"]["EtcdSettings"]["properties"]["quota"]["default"], "8GiB");
    assert_eq!(schema["$defs"]["EtcdSettings"]["additionalProperties"], false);
}

const FULL: &str = r#"
quorate: 1
clusters:
  - name: full
    namespace: dev
    initial_token: "0123"
    members: [{name: etcd-1, address: 127.0.10.1}, {name: "2"}, {name: "0x1f"}]
    etcd:
      version: 3.6.14
      binary: {archive: "https://example.org/etcd.tar.gz", sha256: ffe840ff9295808e88cce2794a18a5ac87f12a5203c8314d0bf6aa119b41bac5}
      auto_compaction: {mode: periodic, retention: 90m}
      quota: 1500MB
      client_auth: password
      heartbeat: 150ms
      election: 1500ms
      flags: {max-txn-ops: 256, enable-pprof: True, log-level: "", max-request-bytes: "0x1000"}
    tls:
      ca: {certificate: /etc/ca.pem, key: "ca key.pem"}
      leaf_validity: 36h
      renew_before: 5h
      key_algorithm: ed25519
      organization: "yes: 'quoted' \"twice\" # no comment"
      extra_sans: ["*.example.org", 192.0.2.7, "::1"]
    auth:
      token: jwt
      root_password_file: root.password
      roles:
        - {name: all, permissions: [{prefix: "", access: readwrite}, {key: "null", access: read}, {key: "- a\tb", access: write}]}
        - name: none
      users: [{name: app, roles: [all], password_file: "~/app.password"}]
    backup:
      to: {s3: {endpoint: "https://s3.example.org:9000", region: eu-1, bucket: my.bucket, prefix: a/b, path_style: false, credentials: {file: "store keys"}}}
      also_to: {directory: /srv/second}
      schedule: 90m
      keep: {last: 0, hourly: 24, monthly: 1}
      recipients: [age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj]
      compression: 19
      bandwidth: 1500KB
  - name: "1"
    members: [{name: a}]
    etcd: {binary: {path: /usr/bin/etcd}}
    tls: {given: {ca: ca.pem, members: {a: {certificate: a.pem, key: a.key}}, root: {certificate: r.pem, key: r.key}}}
  - {name: d, members: [{name: a}], backup: {to: {s3: {bucket: aaa, credentials: machine_role}}, recipients: [age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj]}}
  - name: l
    provider:
      libvirt:
        uri: "qemu+ssh://host/system"
        pool: etcd
        image: {volume: images/debian.qcow2, root_size: 30GiB, has_agent: true}
        data_size: 20GiB
        vcpus: 4
        memory: 16GiB
        acceleration: kvm
        cloud_init: {pool: seeds, name: "<name>.img"}
        admin: {user: ada, ssh_keys: ["ssh-ed25519 AAAAC3Nza ada"], console_password_hash: "$6$a$b"}
    members:
      - name: a
        libvirt:
          root_volume: own.qcow2
          data_volume: disks/a
          interfaces:
            - {network: default, address: 192.168.122.11, prefix: 24, gateway: 192.168.122.1, dns: [192.168.122.1], mac: "52:54:00:DE:E3:64"}
            - {network_id: 6e1e2b0c-1f5d-4a57-9c1e-0a4f6a1d2b3c, address: "fd00::2", prefix: 64}
            - {macvtap: ens3, address: 192.168.21.200, prefix: 24}
  - {name: p, members: [{name: a}], etcd: {binary: {package: debian}}, auth: {bootstrap: false}}
  - {name: m, members: [{name: a}], etcd: {binary: {mirror: "http://mirror.example.org/etcd"}}}
"#;

#[test]
fn a_spec_with_everything_reads_back_equal() {
    let spec = accepted(FULL);
    let yaml = spec.to_yaml();
    assert_eq!(accepted(&yaml), spec, "{yaml}");
    assert!(yaml.starts_with("quorate: 1\nclusters:\n  - name: full\n    members:\n      - name: etcd-1\n"), "{yaml}");
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
    let flags = &spec.clusters[0].etcd.flags;
    assert_eq!((flags["enable-pprof"].0.as_str(), flags["max-txn-ops"].0.as_str()), ("true", "256"));
    assert_eq!(spec.clusters[0].machine_name("etcd-1", 1), "etcd-1-dev");
}

/// Under the provider `local` it is read, and warned about.
#[test]
fn host_settings_read_back_equal() {
    let text = r#"
quorate: 1
clusters:
  - name: full
    members: [{name: etcd-1}]
    host:
      chrony: {servers: [{address: 192.0.2.1, options: [iburst, "maxpoll 10"]}], makestep: {threshold: 50ms, always: true}}
      node_exporter: {enabled: false}
      firewall: {peers_from: [127.0.0.0/8], clients_from: [], ssh_from: ["fd00::/8", 10.0.0.1]}
      install_dependencies: false
      log_forwarding: {etcd_tag: e, forward: {host: logs, port: 1, hostname: h, shared_key_file: "a b", ca: ca.pem, buffer: 1GiB},
        from_etcd: {prefix: /logs/, endpoints: ["10.0.0.9:2379", "[fd00::9]:2379"], ca: ca.pem, username: u, password_file: p}}
"#;
    let read = |text: &str| Document::parse("a.yaml", text).unwrap().spec(&HostFacts::default()).spec.unwrap();
    let spec = read(text);
    assert_eq!(read(&spec.to_yaml()), spec, "{}", spec.to_yaml());
    let host = spec.clusters[0].host.as_ref().unwrap();
    assert!(host.firewall.enabled && host.firewall.clients_from.as_ref().unwrap().is_empty());
    assert_eq!(host.log_forwarding.as_ref().unwrap().node_exporter_tag, "node-exporter");
}

#[test]
fn a_generated_spec_is_accepted_and_a_bad_name_is_not() {
    for client_auth in [ClientAuth::Certificate, ClientAuth::Password] {
        let spec = spec::generated("demo", 5, versions::DEFAULT, client_auth).unwrap();
        assert_eq!(accepted(&spec.to_yaml()), spec);
        assert_eq!(spec.clusters[0].members.len(), 5);
    }
    assert!(spec::generated("No Name", 3, versions::DEFAULT, ClientAuth::Certificate).is_err());
}

/// What only etcd has is not written for PostgreSQL, unless it says something.
#[test]
fn a_generated_spec_of_postgresql_is_accepted_and_says_nothing_of_etcd() {
    let spec = spec::generated_postgres("shop", 3, 15, versions::DEFAULT).unwrap();
    let yaml = spec.to_yaml();
    assert_eq!(accepted(&yaml), spec, "{yaml}");
    let (etcd, postgres) = yaml.split_once("\n  - name: shop\n").expect("a second cluster");
    for key in ["    etcd:\n", "    auth:\n", "    initial_token:"] {
        assert!(etcd.contains(key) && !postgres.contains(key), "{key}\n{yaml}");
    }
    let mut named = spec.clone();
    named.clusters[1].initial_token = String::from("mine");
    assert_eq!(accepted(&named.to_yaml()), named);
}

#[test]
fn a_permission_with_both_key_and_prefix_is_refused_by_the_types_too() {
    let both = r#"{"key": "/a", "prefix": "/b", "access": "read"}"#;
    assert!(serde_json::from_str::<Permission>(both).is_err());
}

#[test]
fn paths_lead_to_lines_and_columns() {
    let text = "quorate: 1\nclusters:\n  - name: demo\n    members:\n      - name: etcd-1\n    tls:\n      ca:\n        key: ca.key\n";
    let document = Document::parse("cluster.yaml", text).unwrap();
    let at = |path: &str| (document.locate(path).line, document.locate(path).column);
    assert_eq!(at("clusters[0].tls.ca.key"), (8, 14));
    assert_eq!(at("clusters[0].tls.ca"), (7, 7));
    assert_eq!(at("clusters[0].members[0]"), (5, 9));
    assert_eq!(at("clusters[0].tls.given.root"), (6, 5), "the deepest part that is there");
    assert_eq!(at("clusters[7].name"), (2, 1));
    assert_eq!(at(""), (1, 1));
    let problem = document.problem(Severity::Error, "clusters[0].tls.ca.key", "it does not fit its certificate", None);
    assert_eq!(problem.to_string(), "cluster.yaml:8:14: error: it does not fit its certificate");
    let json = serde_json::to_value(&problem).unwrap();
    assert_eq!(
        (&json["line"], &json["column"], &json["end_column"], &json["severity"]),
        (&8.into(), &14.into(), &20.into(), &"error".into())
    );
}

#[test]
fn deep_nesting_is_refused_early() {
    let problems = Document::parse("deep.yaml", &"- ".repeat(100)).unwrap_err();
    assert!(problems[0].message.contains("nested deeper"), "{}", problems[0]);
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "[a-z:{}\\[\\]\\-\"'&*!|>#%~, \n\tü0-9]{0,80}") {
        let texts = [text.clone(), format!("quorate: 1\nclusters:\n  - {text}"), format!("quorate: 1\nclusters: [{{name: {text}}}]")];
        for text in texts {
            let problems = match Document::parse("any.yaml", &text) {
                Ok(document) => document.spec(&HostFacts::default()).problems,
                Err(problems) => problems,
            };
            problems.iter().for_each(|problem| drop(problem.render(&text)));
        }
    }

    #[test]
    fn any_text_of_a_spec_reads_back(organization in "\\PC{1,20}", password in "[ -~]{1,12}") {
        let mut spec = spec::generated("demo", 3, versions::DEFAULT, ClientAuth::Password).unwrap();
        spec.clusters[0].tls.organization = Some(organization);
        spec.clusters[0].auth.root_password_file = Some(password.into());
        prop_assert_eq!(accepted(&spec.to_yaml()), spec);
    }
}
