//! Fence, generations, files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use quorate_agent::api::{Certificate, EtcdOrder, FactsRequest, LogOf, LogRequest, Order, Refusal};
use quorate_agent::client::Look;
use quorate_core::model::{BinarySeen, BinarySource, CertificateUse};

use crate::common::{Machine, config, facts, file, order};

#[tokio::test]
async fn a_controller_that_was_overtaken_is_not_obeyed_even_by_an_agent_that_came_back() {
    let mut machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    order(&client, 7, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let stale = Err(Refusal::StaleFence { obeyed: 7, carried: 6 });
    assert_eq!(order(&client, 6, Order::Etcd(EtcdOrder::Stop)).await, stale);
    let look = client.look(&FactsRequest { fence: Some(6), auth: false, reach: Default::default() }).await;
    assert!(look.unwrap_err().obeyed().is_some());
    client.look(&FactsRequest { fence: Some(8), auth: false, reach: Default::default() }).await.unwrap();
    machine.stop_agent();
    machine.start_agent().await;
    assert_eq!(
        order(&client, 7, Order::Etcd(EtcdOrder::Stop)).await,
        Err(Refusal::StaleFence { obeyed: 8, carried: 7 })
    );
    assert_eq!(facts(&client).await.fence, 8);
    order(&client, 8, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
}

#[tokio::test]
async fn an_older_configuration_is_refused() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let converge = |generation, config| order(&client, 1, Order::converge(generation, config, None));
    converge(5, config()).await.unwrap();
    converge(5, config()).await.unwrap();
    let mut other = config();
    other.files.push(file("etc/quorate/more", "two"));
    assert_eq!(converge(4, other.clone()).await, Err(Refusal::StaleGeneration { in_place: 5, carried: 4 }));
    assert_eq!(converge(5, other.clone()).await, Err(Refusal::ChangedContent { generation: 5 }));
    assert!(!machine.root().join("etc/quorate/more").exists());
    converge(6, other.clone()).await.unwrap();
    let facts = facts(&client).await;
    assert_eq!(facts.node_config, Some((6, other.digest())));
    assert_eq!(facts.etcd.binary, BinarySeen::Version(crate::common::VERSION.to_owned()));
}

#[tokio::test]
async fn files_are_made_kept_put_right_and_removed() {
    let mut machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let mut first = config();
    first.files = vec![file("etc/quorate/stays", "s3cret"), file("etc/quorate/goes", "x")];
    order(&client, 1, Order::converge(1, first.clone(), None)).await.unwrap();
    let (stays, goes) = (machine.root().join("etc/quorate/stays"), machine.root().join("etc/quorate/goes"));
    let made = fs::metadata(&stays).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o600);
    assert!(goes.exists());

    let mut second = first.clone();
    second.files.pop();
    order(&client, 1, Order::converge(2, second, None)).await.unwrap();
    assert!(!goes.exists());
    assert_eq!(fs::metadata(&stays).unwrap().ino(), made.ino(), "an equal file is not written again");

    machine.stop_agent();
    fs::write(&stays, "tampered").unwrap();
    machine.start_agent().await;
    facts(&client).await;
    assert_eq!(fs::read_to_string(&stays).unwrap(), "s3cret");

    let mut outside = first;
    outside.files.push(file("../outside", "x"));
    let refused = order(&client, 1, Order::converge(3, outside, None)).await;
    assert!(matches!(refused, Err(Refusal::Failed { .. })), "{refused:?}");
    assert!(!machine.directory.path().join("outside").exists());
}

#[tokio::test]
async fn a_missing_or_other_etcd_is_a_fact_and_no_failure() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let mut missing = config();
    missing.etcd_mut().unwrap().binary = BinarySource::Path(String::from("/nowhere/etcd"));
    order(&client, 1, Order::converge(1, missing, None)).await.unwrap();
    let BinarySeen::Missing { why } = facts(&client).await.etcd.binary else { panic!("it is not missing") };
    assert!(why.contains("/nowhere/etcd"), "{why}");
    let mut other = config();
    other.etcd_mut().unwrap().version = String::from("3.6.0");
    order(&client, 1, Order::converge(2, other, None)).await.unwrap();
    assert_eq!(facts(&client).await.etcd.binary, BinarySeen::Version(crate::common::VERSION.to_owned()));
}

#[tokio::test]
async fn a_new_set_of_certificates_replaces_the_old_at_once_and_keys_stay_private() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    machine.install_certificates(&client).await;
    let link = machine.root().join("etc/etcd/pki");
    let first = fs::read_link(&link).unwrap();
    for key in ["member.key", "root.key"] {
        assert_eq!(fs::metadata(link.join(key)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let before = facts(&client).await.certificates;
    machine.install_certificates(&client).await;
    assert_ne!(fs::read_link(&link).unwrap(), first);
    let sets = fs::read_dir(machine.root().join("etc/etcd")).unwrap().count();
    assert_eq!(sets, 2, "the link and the set it points at");
    let after = facts(&client).await.certificates;
    assert_ne!(before[&CertificateUse::Member].fingerprint, after[&CertificateUse::Member].fingerprint);
    assert_eq!(after[&CertificateUse::Member].key_algorithm, "p256");
    assert!(after[&CertificateUse::Member].sans.contains("127.0.0.1"));
    let state = machine.root().join("var/lib/quorate");
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(state.join("state.json")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn user_provided_keys_are_installed_and_removed_with_their_certificates() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let install = |chain: String, key| {
        let certificates = BTreeMap::from([(CertificateUse::Member, Certificate { chain, key })]);
        let trust = machine.etcd.certificate_pem().to_owned();
        order(&client, 1, Order::InstallCertificates { trust, certificates })
    };
    let (chain, key) = machine.leaf(&machine.etcd, "etcd-1", true, true);
    let refused = install(chain.clone(), None).await.unwrap_err().to_string();
    assert!(refused.contains("another key"), "{refused}");
    install(chain, Some(key.clone())).await.unwrap();
    let file = machine.root().join("etc/etcd/pki/member.key");
    assert_eq!(fs::read_to_string(&file).unwrap(), key.expose());
    machine.install_certificates(&client).await;
    assert_ne!(fs::read_to_string(&file).unwrap(), key.expose(), "the machine's own key again");
}

#[tokio::test]
async fn logs_are_for_the_enrolled_alone() {
    let machine = Machine::new().await;
    let client = machine.client();
    let request = LogRequest { of: LogOf::Service(String::from("etcd")), from: None, lines: 10 };
    assert!(client.logs(&request).await.is_err());
    machine.enrol(&client).await;
    assert_eq!(client.logs(&request).await.unwrap().text, "");
    fs::create_dir_all(machine.root().join("var/log")).unwrap();
    fs::write(machine.root().join("var/log/etcd.log"), "one\ntwo\n").unwrap();
    let answer = client.logs(&LogRequest { lines: 1, ..request.clone() }).await.unwrap();
    assert_eq!((answer.text.as_str(), answer.next), ("two\n", 8));
}

#[tokio::test]
async fn an_agent_says_which_machines_it_reaches() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let (there, gone) = (Machine::new().await, Machine::off());
    let reach = BTreeSet::from([there.address, gone.address]);
    let Look::Facts(facts) = client.look(&FactsRequest { fence: None, auth: false, reach }).await.unwrap() else {
        panic!("the agent is not enrolled")
    };
    assert_eq!(facts.reaches, BTreeMap::from([(there.address, true), (gone.address, false)]));
}
