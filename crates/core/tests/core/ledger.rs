//! Conflicts between the ledger and the spec or the cluster: an older ledger, and settings that a running cluster cannot change.

use jiff::{SignedDuration, Timestamp};
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{FixtureId, FixtureKind, FixtureRecord, Issued, IssuedCertificate, Ledger, MemberName};
use quorate_core::planner::remember;
use quorate_core::spec::{Provider, Size, generated};
use serde_json::json;

use crate::scene::Scene;

/// One that the older ledger does not know counts too: a former machine to it, that a later controller made.
#[test]
fn the_numbers_of_former_machines_are_exceeded_too() {
    let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).expect("a fine name").clusters;
    let mut scene = Scene::nothing(spec.remove(0));
    scene.settle();
    scene.facts_mut(&"etcd-2".into()).fence = 9;
    scene.rename(&"etcd-2".into(), &MemberName::from("etcd-2").former(2));
    remember::resume_above(&mut scene.ledger, &scene.seen);
    assert_eq!(scene.ledger.fence, 9);
}

#[test]
fn an_older_ledger_continues_above_what_agents_remember() {
    let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).expect("a fine name").clusters;
    let mut scene = Scene::nothing(spec.remove(0));
    scene.settle();
    let saved = scene.ledger.clone();
    scene.spec.etcd.quota = Size::gibibytes(4);
    scene.settle();
    for member in ["etcd-1", "etcd-2", "etcd-3"] {
        scene.facts_mut(&member.into()).fence = 7;
    }

    scene.ledger = saved;
    let refused = scene.decide();
    assert!(refused.steps.is_empty(), "{refused:?}");
    assert!(refused.blocked.iter().all(|b| b.kind() == "older-ledger"), "{refused:?}");

    remember::resume_above(&mut scene.ledger, &scene.seen);
    assert_eq!(scene.ledger.fence, 7);
    assert!(scene.decide().settled(), "{:?}", scene.decide());
    let again = scene.ledger.clone();
    remember::resume_above(&mut scene.ledger, &scene.seen);
    assert_eq!(scene.ledger, again, "a ledger that is current stays as it is");
}

#[test]
fn expired_certificates_are_dropped_unless_only_one_clock_says_so_or_they_are_revoked() {
    let begin = Timestamp::UNIX_EPOCH;
    let day = |number: i64| begin + SignedDuration::from_hours(24 * number);
    let certificate = |serial: &str, now: i64| IssuedCertificate {
        user: String::from("app"),
        serial: serial.to_owned(),
        not_after: day(now + 10),
        recorded: None,
        revoked: false,
    };
    let mut issued = Issued::default();
    let mut record = |serial: &str, now: i64, revoked: bool| {
        issued.record(IssuedCertificate { revoked, ..certificate(serial, now) }, day(now));
        issued.users.iter().map(|known| known.serial.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(record("01", 0, false), "01");
    assert_eq!(record("02", 1, true), "01 02");
    // A clock that is ahead for one run.
    assert_eq!(record("03", 400, false), "01 02 03");
    assert_eq!(record("04", 2, false), "01 02 03 04");
    // Time has really passed.
    assert_eq!(record("05", 20, false), "02 03 05");
}

#[test]
fn records_that_were_named_by_the_id_of_their_zone_are_the_same_ones() {
    let records = |place: &str| FixtureId { kind: FixtureKind::Records, place: place.to_owned() };
    let (old, now) = (records("Z0A1/orders.example.com"), records("example.com/orders.example.com"));
    let other = records("Z0A2/sales.example.com");
    let dns = |zone_id: Option<&str>| {
        let dns = json!({ "zone": "Example.com.", "zone_id": zone_id, "name": "orders" });
        let settings = json!({
            "subnets": ["subnet-0a1b2c3d"], "instance_types": ["m7i.large"], "image": { "id": "ami-1" }, "dns": dns,
        });
        Provider::Aws(Box::new(serde_json::from_value(settings).expect("settings")))
    };
    let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).expect("a fine name").clusters;
    let mut ledger = Ledger::new(String::from("c1"), spec.remove(0));
    ledger.spec.provider = dns(Some("Z0A1"));
    ledger.fixtures.0.extend([old.clone(), other.clone()].map(|id| (id, FixtureRecord::default())));
    // Between two specs, the one before is what made them.
    let mut next = ledger.spec.clone();
    next.provider = dns(None);
    ledger.take_spec(&next);
    ledger.rename_fixtures();
    assert_eq!(ledger.fixtures.0.keys().collect::<Vec<_>>(), [&other, &now]);
    assert_eq!(ledger.url().as_deref(), Some("https://orders.example.com:2379"));
}
