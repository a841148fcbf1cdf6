//! Ledgers that an earlier quorate has written. Format 2 has providers' settings in their old places, format 3 has etcd's. Format 4 does
//! not say which version wrote it.

use std::fs;
use std::path::Path;

use quorate_control::Home;
use quorate_control::ledger::{OpenWith, SealFor, Store, export, import};
use quorate_core::Secret;
use quorate_core::kinds::etcd::front::Prefer;
use quorate_core::model::{FixtureId, FixtureKind, FixtureRecord, LEDGER_FORMAT, Ledger, MemberName, Program};
use quorate_core::planner::safety::fixed_at_formation;
use quorate_core::providers::local::{LocalSettings, Network};
use quorate_core::spec::Provider;

fn home_of_format_2(cluster: &str, ledger: &str, version: u64) -> (tempfile::TempDir, Store) {
    home_of("format-2", cluster, ledger, version)
}

/// A home with one ledger of an older format, as it was written, and the key that opens it.
fn home_of(format: &str, cluster: &str, ledger: &str, version: u64) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a directory");
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control").join(format);
    let store = Home::new(directory.path()).store(cluster);
    fs::create_dir_all(store.directory()).expect("made");
    fs::copy(files.join("key"), directory.path().join("key")).expect("copied");
    fs::copy(files.join(ledger), store.directory().join(format!("{version:010}.json"))).expect("copied");
    (directory, store)
}

fn names(store: &Store) -> Vec<String> {
    let entries = fs::read_dir(store.directory()).expect("a directory");
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_ledger_of_format_2_is_migrated_and_its_old_file_is_kept() {
    let (_directory, store) = home_of_format_2("old", "local.json", 11);
    let original = fs::read(store.directory().join("0000000011.json")).unwrap();
    let mut ledger = store.read().expect("it is read").expect("it exists");
    assert_eq!(ledger.format, 2);
    let settings = LocalSettings { network: Network::Loopback, keep_data: true };
    assert_eq!(ledger.spec.provider, Provider::Local(settings));
    assert!(ledger.authorities.control.as_ref().is_some_and(|a| a.key.is_some()), "its secrets are opened");
    assert_eq!(ledger.formed_with.as_ref().unwrap().machines["provider.local.network"], "loopback");

    assert!(ledger.etcd.formation.is_formed() && ledger.issued.machines.len() == 3);

    store.write(&mut ledger).expect("it is written");
    assert_eq!(names(&store), ["0000000011.format-2.json", "0000000011.json", "0000000012.json"]);
    assert_eq!(fs::read(store.directory().join("0000000011.format-2.json")).unwrap(), original);
    let again = store.read().unwrap().unwrap();
    assert_eq!((again.format, &again.spec), (LEDGER_FORMAT, &ledger.spec));
    // Written once more, there is nothing older to be kept.
    store.write(&mut ledger).expect("it is written");
    assert_eq!(names(&store).iter().filter(|name| name.contains("format-")).count(), 1);
}

/// Records of Route53 were called by the id of their zone where the spec had it. To call them by both would delete them.
#[test]
fn fixtures_have_the_ids_of_now_when_a_ledger_is_read() {
    let (_directory, store) = home_of_format_2("old", "local.json", 11);
    let mut ledger = store.read().expect("it is read").expect("it exists");
    let settings = serde_json::json!({
        "instance_types": ["m7i.large"], "image": { "id": "ami-1" },
        "dns": { "zone": "example.com", "zone_id": "Z0A1", "name": "orders" },
    });
    ledger.spec.provider = Provider::Aws(serde_json::from_value(settings).expect("settings"));
    let records = |place: &str| FixtureId { kind: FixtureKind::Records, place: place.to_owned() };
    ledger.fixtures.0.insert(records("Z0A1/orders.example.com"), FixtureRecord::default());
    store.write(&mut ledger).expect("it is written");
    let again = store.read().expect("it is read").expect("it exists");
    assert_eq!(again.fixtures.0.keys().collect::<Vec<_>>(), [&records("example.com/orders.example.com")]);
}

#[test]
fn settings_fixed_at_the_bootstrap_of_a_format_2_cluster_stay_fixed() {
    let (_directory, store) = home_of_format_2("old", "local.json", 11);
    let ledger = store.read().unwrap().unwrap();
    let refused = |ledger: &Ledger| {
        let brought = quorate_core::model::Brought::default();
        let desired =
            quorate_core::desire::Wish { spec: &ledger.spec, brought: &brought, arch: "amd64" }.desire(ledger, "");
        fixed_at_formation(&desired).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(refused(&ledger), Vec::<String>::new());
    let mut moved = ledger.clone();
    moved.spec.provider = Provider::Local(LocalSettings { network: Network::Netns, keep_data: true });
    let told = refused(&moved);
    assert!(told.len() == 1 && told[0].contains("provider.local.network"), "{told:?}");
}

#[test]
fn members_of_format_2_get_a_section_of_their_provider() {
    let (_directory, store) = home_of_format_2("machines", "libvirt.json", 3);
    let spec = store.read().expect("it is read").expect("it exists").spec;
    let settings = spec.provider.settings();
    assert_eq!(settings.name(), "libvirt");
    let pinned: Vec<_> = spec.members.iter().map(|m| settings.pinned(m).unwrap().to_string()).collect();
    assert_eq!(pinned, ["192.0.2.11", "192.0.2.12", "192.0.2.13"]);
    let data: Vec<_> = spec.members.iter().map(|m| settings.kept_data(m).unwrap()).collect();
    assert_eq!(data, ["own", "20GiB", "20GiB"], "data volumes are the same to the planner as before");
    assert!(settings.build(&spec.members[1]).is_some_and(|build| format!("{build:?}").contains("own-root")));
}

#[test]
fn a_ledger_of_format_3_gets_a_section_for_etcd() {
    let (_directory, store) = home_of("format-3", "today", "local.json", 11);
    let original = fs::read(store.directory().join("0000000011.json")).unwrap();
    let mut ledger = store.read().expect("it is read").expect("it exists");
    assert_eq!(ledger.format, 3);
    let formed = ledger.formed_with.as_ref().unwrap();
    assert_eq!((formed.namespace.as_str(), formed.machines.len()), ("x", 1));
    let etcd = &ledger.etcd;
    assert_eq!(etcd.formation.token(), Some("etcd-cluster-2ce0ef5a98a2"));
    let settled = etcd.formed_with.as_ref().unwrap();
    let settled = [&settled.version, &settled.client_auth, &settled.bootstrap, &settled.token];
    assert_eq!(settled, ["3.6.16", "certificate_and_password", "true", "jwt"]);
    assert!(etcd.auth.users["app"].password.is_some() && etcd.auth.roles.contains("reader"));
    assert!(etcd.auth.jwt.as_ref().is_some_and(|keys| keys.private.expose().contains("PRIVATE KEY")), "it is opened");
    assert!(ledger.authorities.client.as_ref().is_some_and(|a| a.key.is_some()));
    assert_eq!(ledger.issued.machines.len(), 3);
    assert!(ledger.issued.client_crl.is_some() && ledger.issued.peer_crl.is_some());

    store.write(&mut ledger).expect("it is written");
    assert_eq!(fs::read(store.directory().join("0000000011.format-3.json")).unwrap(), original);
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(store.directory().join("0000000012.json")).unwrap()).unwrap();
    assert!(["formation", "auth", "highest_revision"].iter().all(|moved| written.get(moved).is_none()), "{written}");
    assert_eq!(store.read().unwrap().unwrap(), ledger);
}

#[test]
fn a_ledger_of_format_4_is_read_as_it_is_and_its_old_file_is_kept() {
    let (_directory, store) = home_of("format-4", "today", "local.json", 13);
    let original = fs::read(store.directory().join("0000000013.json")).unwrap();
    let mut ledger = store.read().expect("it is read").expect("it exists");
    assert_eq!((ledger.format, ledger.written_by.as_str()), (4, ""));
    assert_eq!(ledger.etcd.formation.token(), Some("etcd-cluster-2ce0ef5a98a2"));
    assert!(
        ledger.etcd.auth.jwt.as_ref().is_some_and(|keys| keys.private.expose().contains("PRIVATE KEY")),
        "it is opened"
    );

    store.write(&mut ledger).expect("it is written");
    assert_eq!(fs::read(store.directory().join("0000000013.format-4.json")).unwrap(), original);
    let again = store.read().unwrap().unwrap();
    assert_eq!((again.format, &again.written_by), (LEDGER_FORMAT, &Program::this().version));
    assert_eq!(again, ledger);
}

#[test]
fn fields_added_during_format_4_are_kept() {
    let (_directory, store) = home_of("format-4", "cloud", "aws.json", 7);
    let ledger = store.read().expect("it is read").expect("it exists");
    assert_eq!(ledger.spec.provider.settings().name(), "aws");
    assert_eq!(ledger.spec.etcd.front.as_ref().map(|front| front.prefer), Some(Prefer::Leader));
    assert_eq!(ledger.members[&MemberName::from("etcd-1")].place.as_deref(), Some("eu-west-2a"));
    assert_eq!(ledger.fixtures.0.len(), 1);
}

/// `ledger export` reads the ledger and writes nothing, so the ledger may still be of an older format.
#[test]
fn an_export_of_a_ledger_of_an_older_format_has_the_present_one() {
    for (format, version) in [("format-2", 11), ("format-3", 11), ("format-4", 13)] {
        let (_directory, store) = home_of(format, "today", "local.json", version);
        let ledger = store.read().unwrap().unwrap();
        let passphrase = Secret::new("battery staple");
        let sealed = export(&ledger, "", &SealFor::Passphrase(passphrase.clone())).unwrap();
        let opened = import(&sealed, &OpenWith::Passphrase(passphrase)).expect("it is read").ledger;
        assert_eq!(opened, Ledger { lock: None, ..ledger.as_written_here() }, "{format}");
    }
}
