//! Against a Route53 with several zones of one name, in memory.

use std::sync::{Arc, Mutex};

use quorate_core::model::{FixtureKind, FixtureSeen, MemberName};
use quorate_core::providers::aws::AwsSettings;
use serde_json::json;

use super::super::test_server::{Asked, aws_of, serve};
use super::*;
use crate::Provider;

type Answer = Option<(u16, String)>;

/// A zone: its id, whether it may be read, and its records, by name and type.
struct Zone {
    id: &'static str,
    name: &'static str,
    is_closed: bool,
    records: BTreeMap<(String, String), String>,
}

#[derive(Default)]
struct Route53 {
    zones: Vec<Zone>,
    /// Whether zones may be listed.
    lists: bool,
    /// Changes of zones, in their order.
    changed: Vec<String>,
}

impl Route53 {
    fn with(zones: &[(&'static str, &'static str)]) -> Arc<Mutex<Self>> {
        let zone =
            |(id, name): &(&'static str, &'static str)| Zone { id, name, is_closed: false, records: BTreeMap::new() };
        Arc::new(Mutex::new(Route53 { zones: zones.iter().map(zone).collect(), lists: true, changed: Vec::new() }))
    }

    fn answer(&mut self, asked: &Asked) -> Answer {
        let (method, path) = asked.what.split_once(' ').unwrap();
        let path = path.strip_prefix("/2013-04-01/").unwrap();
        let (path, _) = path.split_once('?').unwrap_or((path, ""));
        if path == "hostedzonesbyname" {
            if !self.lists {
                return refused(403, "AccessDenied");
            }
            let zones: String = self.zones.iter().map(shown).collect();
            return Some((200, format!("<R><HostedZones>{zones}</HostedZones></R>")));
        }
        let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
        let Some(zone) = self.zones.iter_mut().find(|zone| zone.id == parts[1]) else {
            return refused(404, "NoSuchHostedZone");
        };
        if zone.is_closed {
            return refused(403, "AccessDenied");
        }
        match (method, parts.get(2)) {
            ("GET", None) => Some((200, format!("<R>{}</R>", shown(zone)))),
            ("GET", _) => {
                let records: String = zone.records.values().map(String::as_str).collect();
                Some((200, format!("<R><ResourceRecordSets>{records}</ResourceRecordSets></R>")))
            }
            _ => {
                let id = zone.id.to_owned();
                let done = zone.change(&asked.body);
                self.changed.push(id);
                done
            }
        }
    }

    fn zone(&mut self, id: &str) -> &mut Zone {
        self.zones.iter_mut().find(|zone| zone.id == id).unwrap()
    }

    /// How many records each zone has.
    fn counts(&self) -> Vec<usize> {
        self.zones.iter().map(|zone| zone.records.len()).collect()
    }
}

impl Zone {
    fn change(&mut self, body: &str) -> Answer {
        let read = Xml::read(body).unwrap();
        let sets: Vec<&str> = body.split("<ResourceRecordSet>").skip(1).collect();
        for (change, text) in read.items("ChangeBatch/Changes").zip(sets) {
            let text = text.split("</ResourceRecordSet>").next().unwrap();
            let part = |field: &str| change.text(&format!("ResourceRecordSet/{field}")).unwrap();
            let key = (part("Name"), part("Type"));
            match change.text("Action").as_deref() {
                Some("DELETE") => drop(self.records.remove(&key).unwrap()),
                _ => {
                    let text = format!("<ResourceRecordSet>{text}</ResourceRecordSet>");
                    assert_eq!(self.records.insert(key, text), None, "it exists");
                }
            }
        }
        Some((200, String::from("<R/>")))
    }
}

fn shown(zone: &Zone) -> String {
    format!("<HostedZone><Id>/hostedzone/{}</Id><Name>{}.</Name></HostedZone>", zone.id, zone.name)
}

fn refused(status: u16, code: &str) -> Answer {
    Some((status, format!("<E><Error><Code>{code}</Code><Message>no</Message></Error></E>")))
}

const ZONE: &str = "example.com";
const PUBLIC: &str = "Z0PUBLIC";
const PRIVATE: &str = "Z0PRIVATE";
/// Those of one member, and the text next to them.
const ALL: usize = 5;

struct Stage {
    there: Arc<Mutex<Route53>>,
    url: String,
}

impl Stage {
    async fn new(zones: &[(&'static str, &'static str)]) -> Self {
        let there = Route53::with(zones);
        let served = there.clone();
        let (url, _) = serve(move |asked| served.lock().unwrap().answer(asked)).await;
        Stage { there, url }
    }

    /// The provider of a run. `recorded`: what the ledger has, by place.
    fn run(&self, dns: Option<serde_json::Value>, recorded: &[&str]) -> Aws {
        let settings = json!({
            "region": "eu-west-2", "endpoint": self.url, "instance_types": ["m7i.large"], "image": { "id": "ami-1" }, "dns": dns,
        });
        let settings: AwsSettings = serde_json::from_value(settings).unwrap();
        aws_of(&settings, |ledger| {
            let recorded = recorded.iter().map(|place| (records(place), Default::default()));
            ledger.fixtures.0.extend(recorded);
        })
    }

    /// With the id of a zone in the spec.
    fn by_id(&self, id: &str, recorded: &[&str]) -> Aws {
        self.run(Some(json!({ "zone": ZONE, "name": "orders", "zone_id": id })), recorded)
    }

    fn by_name(&self, recorded: &[&str]) -> Aws {
        self.run(Some(json!({ "zone": ZONE, "name": "orders" })), recorded)
    }

    fn counts(&self) -> Vec<usize> {
        self.there.lock().unwrap().counts()
    }
}

fn records(place: &str) -> FixtureId {
    FixtureId { kind: FixtureKind::Records, place: place.to_owned() }
}

const PLACE: &str = "example.com/orders.example.com";

fn members() -> BTreeMap<MemberName, std::net::IpAddr> {
    BTreeMap::from([(MemberName::from("etcd-1"), "10.0.0.1".parse().unwrap())])
}

async fn put(aws: &Aws) {
    aws.put_fixture(&records(PLACE), &members()).await.unwrap();
}

/// The one fixture that is found.
async fn only(aws: &Aws) -> FixtureSeen {
    let mut found = aws.fixtures().await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn what(fixture: &FixtureSeen) -> String {
    fixture.obstacle.as_ref().map(|obstacle| obstacle.what.clone()).unwrap_or_default()
}

#[tokio::test]
async fn an_id_for_the_zone_makes_no_other_records() {
    let stage = Stage::new(&[(PUBLIC, ZONE)]).await;
    put(&stage.by_name(&[])).await;
    assert_eq!(stage.counts(), [ALL]);
    // Ledgers of older versions have the id in place of the name.
    let old = "Z0PUBLIC/orders.example.com";
    for recorded in [&[PLACE][..], &[old], &[PLACE, old]] {
        let found = only(&stage.by_id(PUBLIC, recorded)).await;
        assert_eq!((found.id, found.is_ours, found.fault, found.obstacle), (records(PLACE), true, None, None));
        let found = only(&stage.by_name(recorded)).await;
        assert_eq!((found.id, found.is_ours, found.fault, found.obstacle), (records(PLACE), true, None, None));
    }
    // Without the setting, what an older version recorded is found and removed.
    let found = only(&stage.run(None, &[old])).await;
    assert!(found.is_ours && found.id == records(old), "{found:?}");
    stage.run(None, &[old]).drop_fixture(&records(old)).await.unwrap();
    assert_eq!(stage.counts(), [0]);
}

#[tokio::test]
async fn a_second_zone_of_the_name_hides_nothing() {
    let stage = Stage::new(&[(PUBLIC, ZONE)]).await;
    put(&stage.by_name(&[])).await;
    let private = Route53::with(&[(PRIVATE, ZONE)]);
    stage.there.lock().unwrap().zones.append(&mut private.lock().unwrap().zones);
    // The records are in one of them: that is the one which is meant.
    let found = only(&stage.by_name(&[PLACE])).await;
    assert_eq!((found.is_ours, found.fault, found.obstacle, found.leads_to.len()), (true, None, None, 1));
    let found = only(&stage.by_id(PUBLIC, &[PLACE])).await;
    assert_eq!((found.is_ours, found.fault, found.obstacle), (true, None, None));
    // The other one is meant: they move there, and are never in none.
    let run = stage.by_id(PRIVATE, &[PLACE]);
    let found = only(&run).await;
    assert_eq!(found.fault.as_deref(), Some("its records are in the hosted zone Z0PUBLIC, and belong in Z0PRIVATE"));
    assert_eq!((found.is_ours, found.leads_to.len()), (true, 1));
    stage.there.lock().unwrap().changed.clear();
    put(&run).await;
    assert_eq!(stage.there.lock().unwrap().changed, [PRIVATE, PUBLIC]);
    assert_eq!(stage.counts(), [0, ALL]);
    assert_eq!(only(&run).await.fault, None);
    // All of it goes, also from a zone that they were to leave.
    put(&stage.by_name(&[PLACE])).await;
    stage.by_name(&[PLACE]).drop_fixture(&records(PLACE)).await.unwrap();
    assert_eq!(stage.counts(), [0, 0]);
    let found = only(&stage.by_name(&[PLACE])).await;
    assert!(!found.is_ours && what(&found).contains("name one in `dns.zone_id`"), "{found:?}");
}

#[tokio::test]
async fn an_interrupted_move_continues() {
    let stage = Stage::new(&[(PUBLIC, ZONE), (PRIVATE, ZONE)]).await;
    put(&stage.by_id(PUBLIC, &[])).await;
    let copy = stage.there.lock().unwrap().zone(PUBLIC).records.clone();
    stage.there.lock().unwrap().zone(PRIVATE).records = copy;
    let run = stage.by_id(PRIVATE, &[PLACE]);
    assert!(only(&run).await.fault.unwrap().contains("belong in Z0PRIVATE"));
    put(&run).await;
    assert_eq!(stage.counts(), [0, ALL]);
    // Without a zone that can be used, they are seen all the same, and a cluster that is destroyed takes them along.
    let run = stage.by_id("Z0NOWHERE", &[PLACE]);
    let found = only(&run).await;
    assert!(found.is_ours && what(&found) == "AWS has no hosted zone Z0NOWHERE", "{found:?}");
    run.drop_fixture(&records(PLACE)).await.unwrap();
    assert_eq!(stage.counts(), [0, 0]);
}

#[tokio::test]
async fn zones_that_may_not_be_read_hinder_nothing_elsewhere() {
    let stage = Stage::new(&[(PUBLIC, ZONE), (PRIVATE, ZONE), ("Z0OTHER", "example.org")]).await;
    stage.there.lock().unwrap().zone(PRIVATE).is_closed = true;
    put(&stage.by_id(PUBLIC, &[])).await;
    assert_eq!(only(&stage.by_id(PUBLIC, &[PLACE])).await.fault, None);
    // They may be there: that is no reason to say that there are none.
    stage.there.lock().unwrap().zone(PUBLIC).records.clear();
    let said = stage.by_name(&[PLACE]).fixtures().await.unwrap_err().to_string();
    assert!(said.contains("refused to list the records of orders.example.com (AccessDenied)"), "{said}");
    let said = stage.run(None, &[PLACE]).fixtures().await.unwrap_err().to_string();
    assert!(said.contains("(AccessDenied)"), "{said}");
    // A policy may allow what belongs to one zone alone.
    stage.there.lock().unwrap().lists = false;
    let run = stage.by_id(PUBLIC, &[PLACE]);
    put(&run).await;
    assert_eq!((only(&run).await.fault, stage.counts()), (None, vec![ALL, 0, 0]));
    let said = what(&only(&stage.by_id("Z0OTHER", &[])).await);
    assert!(said.starts_with("the hosted zone Z0OTHER is that of example.org, not of example.com: "), "{said}");
}
