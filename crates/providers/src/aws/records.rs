//! Records of Route53: one name for the load balancer, or names for members, with the SRV records of etcd's `--discovery-srv`.
//!
//! Records have no tags. A TXT record next to them names their owner and lists them. Route53 carries out all changes of one request or
//! none: the TXT record changes with the others, a new record must not exist yet, and a deleted one must be as it was read. So records of
//! other owners are never overwritten, whatever happens between reading and writing, and an interruption leaves no partial change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use quorate_core::model::{CLIENT_PORT, FixtureId, FixtureSeen, MemberName, Obstacle, PEER_PORT};

use super::Aws;
use super::error::AwsError;
use super::session::Rest;
use super::xml::{REFUSED_CHANGE, Xml};
use super::zones::Found;
use crate::marks::key;

/// The name of the TXT record, below the cluster's name.
const MARK: &str = "_quorate";
const MARK_TTL: u32 = 300;
const CLIENTS: &str = "_etcd-client-ssl._tcp";
const SERVERS: &str = "_etcd-server-ssl._tcp";
/// How many records a page has.
const PAGE: &str = "300";
/// More would be an endless list.
const MOST_PAGES: usize = 100;

/// Name and type.
type Key = (String, String);

/// The records of one name and type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Record {
    name: String,
    kind: String,
    leads: Leads,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Leads {
    Values {
        ttl: u32,
        values: BTreeSet<String>,
    },
    /// To a name of AWS, in its zone.
    Alias {
        zone: String,
        name: String,
    },
    /// By weight, region or health, which quorate does not do.
    Otherwise,
}

impl Record {
    fn of(name: &str, kind: &str, ttl: u32, values: impl IntoIterator<Item = String>) -> Self {
        let leads = Leads::Values { ttl, values: values.into_iter().collect() };
        Record { name: name.to_owned(), kind: kind.to_owned(), leads }
    }

    fn read(value: &Xml) -> Option<Self> {
        let alias = || {
            let zone = value.text("AliasTarget/HostedZoneId")?;
            Some(Leads::Alias { zone, name: plain(&value.text("AliasTarget/DNSName")?) })
        };
        let values = || {
            let ttl = value.text("TTL")?.parse().ok()?;
            let values = value.items("ResourceRecords").filter_map(|one| one.text("Value")).collect();
            Some(Leads::Values { ttl, values })
        };
        let leads = match value.text("SetIdentifier") {
            Some(_) => Leads::Otherwise,
            None => alias().or_else(values).unwrap_or(Leads::Otherwise),
        };
        Some(Record { name: plain(&value.text("Name")?), kind: value.text("Type")?, leads })
    }

    fn key(&self) -> Key {
        (self.name.clone(), self.kind.clone())
    }

    fn values(&self) -> impl Iterator<Item = &String> {
        match &self.leads {
            Leads::Values { values, .. } => Some(values),
            _ => None,
        }
        .into_iter()
        .flatten()
    }

    fn change(&self, action: &str) -> String {
        let mut text = format!("<Change><Action>{action}</Action><ResourceRecordSet>");
        let _ = write!(text, "<Name>{}.</Name><Type>{}</Type>", self.name, self.kind);
        match &self.leads {
            Leads::Values { ttl, values } => {
                let _ = write!(text, "<TTL>{ttl}</TTL><ResourceRecords>");
                for value in values {
                    let value = value.replace('&', "&amp;").replace('<', "&lt;");
                    let _ = write!(text, "<ResourceRecord><Value>{value}</Value></ResourceRecord>");
                }
                text.push_str("</ResourceRecords>");
            }
            Leads::Alias { zone, name } => {
                let _ = write!(
                    text,
                    "<AliasTarget><HostedZoneId>{zone}</HostedZoneId><DNSName>{name}.</DNSName>\
                     <EvaluateTargetHealth>false</EvaluateTargetHealth></AliasTarget>"
                );
            }
            Leads::Otherwise => {}
        }
        text + "</ResourceRecordSet></Change>"
    }
}

/// As Route53 compares names.
pub(super) fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_lowercase()
}

/// What a zone has at a name and below it.
#[derive(Default)]
pub(super) struct Family {
    name: String,
    records: BTreeMap<Key, Record>,
    /// Their owner, according to the TXT record.
    pub(super) owner: Option<String>,
    owned: BTreeSet<Key>,
}

impl Family {
    fn mark_key(name: &str) -> Key {
        (format!("{MARK}.{name}"), String::from("TXT"))
    }

    fn new(name: &str, records: Vec<Record>) -> Self {
        let records: BTreeMap<Key, Record> = records.into_iter().map(|record| (record.key(), record)).collect();
        let mut family = Family { name: name.to_owned(), records, ..Family::default() };
        let said: Vec<String> =
            family.records.get(&Self::mark_key(name)).into_iter().flat_map(Record::values).cloned().collect();
        for text in said.iter().map(|text| text.trim_matches('"')) {
            if let Some(owner) = text.strip_prefix(&format!("{}=", key("cluster_id"))) {
                family.owner = Some(owner.to_owned());
            } else if let Some((kind, name)) = text.split_once(' ') {
                family.owned.insert((name.to_owned(), kind.to_owned()));
            }
        }
        family
    }

    /// The text for these.
    fn mark(&self, cluster_id: &str, records: &[Record]) -> Record {
        let owner = format!("\"{}={cluster_id}\"", key("cluster_id"));
        let list = records.iter().map(|record| format!("\"{} {}\"", record.kind, record.name));
        let (name, kind) = Self::mark_key(&self.name);
        Record::of(&name, &kind, MARK_TTL, [owner].into_iter().chain(list))
    }

    /// The existing records in the TXT record's list.
    fn own(&self) -> impl Iterator<Item = &Record> {
        self.owned.iter().filter_map(|key| self.records.get(key))
    }

    /// Which of these names belong to others. A name with a CNAME has no other records.
    fn taken<'a>(&'a self, wanted: &BTreeSet<Key>) -> Option<&'a Record> {
        let blocks = |record: &&Record| {
            let key = record.key();
            let is_alias = record.kind == "CNAME" && wanted.iter().any(|(name, _)| *name == record.name);
            !self.owned.contains(&key) && (wanted.contains(&key) || is_alias)
        };
        self.records.values().find(blocks)
    }

    /// The members that it points to.
    fn members(&self) -> BTreeMap<IpAddr, Option<MemberName>> {
        let below = format!(".{}", self.name);
        let mut found = BTreeMap::new();
        for record in self.own().filter(|record| record.kind == "A") {
            let member = record.name.strip_suffix(&below).map(MemberName::from);
            for address in record.values().filter_map(|value| value.parse().ok()) {
                let known: &mut Option<MemberName> = found.entry(address).or_default();
                *known = known.take().or_else(|| member.clone());
            }
        }
        found
    }

    /// The changes to the desired state. All of them are carried out, or none.
    fn changes(&self, mark: Option<Record>, wanted: Vec<Record>) -> String {
        let mark_there = self.records.get(&Self::mark_key(&self.name)).filter(|_| self.owner.is_some());
        let there: BTreeSet<&Record> = self.own().chain(mark_there).collect();
        let wanted: BTreeSet<Record> = wanted.into_iter().chain(mark).collect();
        let deleted = there.iter().filter(|record| !wanted.contains(**record)).map(|record| record.change("DELETE"));
        let created = wanted.iter().filter(|record| !there.contains(record)).map(|record| record.change("CREATE"));
        deleted.chain(created).collect()
    }
}

/// The records for a name that leads to members. An address that several of them had would be one too many of the same.
fn to_members(name: &str, ttl: u32, members: &BTreeMap<MemberName, IpAddr>) -> Vec<Record> {
    let own = |(member, address): (&MemberName, &IpAddr)| {
        Record::of(&format!("{member}.{name}"), "A", ttl, [address.to_string()])
    };
    let service = |service: &str, port: u16| {
        let targets = members.keys().map(|member| format!("0 0 {port} {member}.{name}."));
        Record::of(&format!("{service}.{name}"), "SRV", ttl, targets)
    };
    let all = Record::of(name, "A", ttl, members.values().map(ToString::to_string));
    let services = [service(CLIENTS, CLIENT_PORT), service(SERVERS, PEER_PORT)];
    [all].into_iter().chain(members.iter().map(own)).chain(services).collect()
}

fn to_balancer(name: &str, (dns, zone): (String, String)) -> Vec<Record> {
    let leads = Leads::Alias { zone, name: plain(&dns) };
    vec![Record { name: name.to_owned(), kind: String::from("A"), leads }]
}

impl Aws {
    /// What a zone, by id, has at a name and below it.
    pub(super) async fn family(&self, zone: &str, name: &str) -> Result<Family, AwsError> {
        // Route53 lists names by their labels from the last to the first.
        let backwards = |name: &str| name.split('.').rev().collect::<Vec<_>>().join(".");
        let (first, below) = (backwards(name), format!(".{name}"));
        let mut next = vec![("name", format!("{name}."))];
        let mut records = Vec::new();
        'pages: for _ in 0..MOST_PAGES {
            let mut query = next.clone();
            query.push(("maxitems", PAGE.to_owned()));
            let request = Rest {
                doing: format!("list the records of {name}"),
                path: format!("hostedzone/{zone}/rrset"),
                query,
                body: String::new(),
            };
            let page = self.session()?.route53(&request).await?;
            for record in page.items("ResourceRecordSets").filter_map(Record::read) {
                if record.name == name || record.name.ends_with(&below) {
                    records.push(record);
                } else if !backwards(&record.name).starts_with(&first) {
                    break 'pages;
                }
            }
            let part = |field: &str| page.text(field);
            next = [("name", "NextRecordName"), ("type", "NextRecordType"), ("identifier", "NextRecordIdentifier")]
                .into_iter()
                .filter_map(|(parameter, field)| Some((parameter, part(field)?)))
                .collect();
            if part("IsTruncated").as_deref() != Some("true") || next.is_empty() {
                break;
            }
        }
        Ok(Family::new(name, records))
    }

    pub(super) async fn see_records(&self, fixture: &FixtureId) -> Result<Option<FixtureSeen>, AwsError> {
        let found = self.find_records(fixture).await?;
        let obstacle = match (&found.home, found.at_home()) {
            // Only the operator can correct it.
            (Some(Err(error)), _) => {
                let remedy = String::from("correct `dns.zone` or `dns.zone_id`, or create the hosted zone");
                Some(Obstacle { what: error.to_string(), remedy })
            }
            (_, family) => family.and_then(|family| self.obstacle(family)),
        };
        let ours: Vec<&Family> = found.ours(&self.cluster_id).map(|(_, family)| family).collect();
        let is_home = |family: &&Family| family.owner.as_ref() == Some(&self.cluster_id);
        let at_home = found.at_home().filter(is_home);
        let Some(leading) = at_home.or(ours.first().copied()) else {
            return Ok(obstacle.is_some().then(|| FixtureSeen { obstacle, ..unseen(fixture) }));
        };
        let to_balancer = leading.own().any(|record| matches!(record.leads, Leads::Alias { .. }));
        let fault = match (&found.home, found.astray(&self.cluster_id).next(), at_home) {
            (Some(Ok(home)), Some((zone, _)), _) => {
                Some(format!("its records are in the hosted zone {zone}, and belong in {home}"))
            }
            (Some(Ok(_)), None, Some(family)) => self.fault(family, to_balancer).await?,
            _ => None,
        };
        let leads_to = leading.members();
        Ok(Some(FixtureSeen { is_ours: true, obstacle, leads_to, to_balancer, fault, ..unseen(fixture) }))
    }

    /// Records of others where the spec wants some.
    fn obstacle(&self, family: &Family) -> Option<Obstacle> {
        let name = &family.name;
        let remedy = "choose another `dns.name`, or delete the existing records if they are not needed";
        if let Some(owner) = family.owner.as_ref().filter(|owner| **owner != self.cluster_id) {
            let what = format!("the records of {name} are marked as those of another cluster ({owner})");
            return Some(Obstacle { what, remedy: remedy.to_owned() });
        }
        let placeholder = IpAddr::from([0, 0, 0, 0]);
        let members: BTreeMap<MemberName, IpAddr> =
            self.spec.members.iter().map(|member| (member.name.as_str().into(), placeholder)).collect();
        let wanted = match self.settings.load_balancer {
            Some(_) => to_balancer(name, Default::default()),
            None => to_members(name, 0, &members),
        };
        let mut wanted: BTreeSet<Key> = wanted.iter().map(Record::key).collect();
        if family.owner.is_none() {
            wanted.insert(Family::mark_key(name));
        } else {
            wanted.remove(&Family::mark_key(name));
        }
        let taken = family.taken(&wanted)?;
        let what = format!("there is a record {} of type {} that quorate did not make", taken.name, taken.kind);
        Some(Obstacle { what, remedy: remedy.to_owned() })
    }

    /// What somebody changed.
    async fn fault(&self, family: &Family, is_alias: bool) -> Result<Option<String>, AwsError> {
        let wanted = match (is_alias, &self.settings.load_balancer) {
            (true, Some(_)) => match self.balancer_alias().await? {
                Some(alias) => to_balancer(&family.name, alias),
                None => return Ok(None),
            },
            (false, None) => {
                let members = family.members().into_iter().filter_map(|(address, member)| Some((member?, address)));
                to_members(&family.name, self.ttl(), &members.collect())
            }
            // It points somewhere else entirely, which is handled elsewhere.
            _ => return Ok(None),
        };
        let differs = |record: &&Record| family.records.get(&record.key()) != Some(*record);
        if let Some(record) = wanted.iter().find(differs) {
            return Ok(Some(format!("its record {} of type {} is not as quorate made it", record.name, record.kind)));
        }
        let mark = family.mark(&self.cluster_id, &wanted);
        Ok((family.records.get(&mark.key()) != Some(&mark))
            .then(|| String::from("the list of its records is another one")))
    }

    fn ttl(&self) -> u32 {
        self.settings.dns.as_ref().map_or(MARK_TTL, |dns| dns.ttl)
    }

    /// Where they were in another zone of the name, they go from there once they are where they belong.
    pub(super) async fn put_records(
        &self,
        fixture: &FixtureId,
        members: &BTreeMap<MemberName, IpAddr>,
    ) -> Result<(), AwsError> {
        let found = self.find_records(fixture).await?;
        let astray: Vec<String> = found.astray(&self.cluster_id).map(|(zone, _)| zone.clone()).collect();
        let Found { home, mut families } = found;
        // The spec has none there.
        let Some(zone) = home else { return Ok(()) };
        let zone = zone?;
        let family = families.remove(&zone).unwrap_or_else(|| Family::new(fixture.name(), Vec::new()));
        self.refuse_others(&family)?;
        let wanted = if self.settings.load_balancer.is_some() {
            let missing =
                || AwsError::Missing { what: "load balancer of", name: self.spec.name.to_string(), names: Vec::new() };
            to_balancer(&family.name, self.balancer_alias().await?.ok_or_else(missing)?)
        } else {
            to_members(&family.name, self.ttl(), members)
        };
        let mark = family.mark(&self.cluster_id, &wanted);
        self.change(&zone, family, Some(mark), wanted).await?;
        self.remove(families, &astray).await
    }

    /// From all zones.
    pub(super) async fn drop_records(&self, fixture: &FixtureId) -> Result<(), AwsError> {
        let found = self.find_records(fixture).await?;
        let ours: Vec<String> = found.ours(&self.cluster_id).map(|(zone, _)| zone.clone()).collect();
        self.remove(found.families, &ours).await
    }

    async fn remove(&self, mut families: BTreeMap<String, Family>, zones: &[String]) -> Result<(), AwsError> {
        for zone in zones {
            if let Some(family) = families.remove(zone) {
                self.change(zone, family, None, Vec::new()).await?;
            }
        }
        Ok(())
    }

    fn refuse_others(&self, family: &Family) -> Result<(), AwsError> {
        match self.obstacle(family) {
            Some(Obstacle { what, .. }) => Err(AwsError::RecordsTaken { name: family.name.clone(), said: what }),
            None => Ok(()),
        }
    }

    async fn change(
        &self,
        zone: &str,
        family: Family,
        mark: Option<Record>,
        wanted: Vec<Record>,
    ) -> Result<(), AwsError> {
        let changes = family.changes(mark.clone(), wanted.clone());
        if changes.is_empty() {
            return Ok(());
        }
        let name = family.name;
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
             <ChangeResourceRecordSetsRequest xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><ChangeBatch>\
             <Comment>quorate {}</Comment><Changes>{changes}</Changes></ChangeBatch></ChangeResourceRecordSetsRequest>",
            self.spec.name
        );
        let doing = format!("change the records of {name}");
        let request = Rest { doing, path: format!("hostedzone/{zone}/rrset/"), query: Vec::new(), body };
        match self.session()?.route53(&request).await {
            // An earlier attempt may have been carried out: then nothing is left to do.
            Err(AwsError::Refused { code, said, .. }) if code == REFUSED_CHANGE => {
                let now = self.family(zone, &name).await?;
                let is_done = now.changes(mark, wanted).is_empty();
                if is_done { Ok(()) } else { Err(AwsError::RecordsTaken { name, said }) }
            }
            changed => changed.map(drop),
        }
    }
}

fn unseen(fixture: &FixtureId) -> FixtureSeen {
    FixtureSeen {
        id: fixture.clone(),
        is_ours: false,
        obstacle: None,
        fixed: BTreeMap::new(),
        leads_to: BTreeMap::new(),
        to_balancer: false,
        names: BTreeSet::new(),
        fault: None,
        pending: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "orders.example.com";

    fn members(all: &[(&str, &str)]) -> BTreeMap<MemberName, IpAddr> {
        all.iter().map(|(member, address)| ((*member).into(), address.parse().unwrap())).collect()
    }

    fn family(records: &[Record]) -> Family {
        let mark = Family { name: NAME.to_owned(), ..Family::default() }.mark("c1", records);
        Family::new(NAME, records.iter().cloned().chain([mark]).collect())
    }

    #[test]
    fn members_have_names_and_services_list_them() {
        let records = to_members(NAME, 60, &members(&[("etcd-1", "10.0.0.1"), ("etcd-2", "10.0.0.2")]));
        let shown: Vec<String> = records.iter().map(|record| format!("{} {}", record.kind, record.name)).collect();
        let expected = [
            "A orders.example.com",
            "A etcd-1.orders.example.com",
            "A etcd-2.orders.example.com",
            "SRV _etcd-client-ssl._tcp.orders.example.com",
            "SRV _etcd-server-ssl._tcp.orders.example.com",
        ];
        assert_eq!(shown, expected);
        let services: Vec<&String> = records[3].values().collect();
        assert_eq!(services, ["0 0 2379 etcd-1.orders.example.com.", "0 0 2379 etcd-2.orders.example.com."]);
        let found = family(&records);
        assert_eq!(found.owner.as_deref(), Some("c1"));
        assert_eq!(found.members()[&"10.0.0.2".parse::<IpAddr>().unwrap()], Some("etcd-2".into()));
    }

    #[test]
    fn changes_delete_what_was_read_and_create_what_must_not_exist() {
        let before = to_members(NAME, 60, &members(&[("etcd-1", "10.0.0.1")]));
        let there = family(&before);
        assert_eq!(there.changes(Some(there.mark("c1", &before)), before.clone()), "");
        let after = to_members(NAME, 60, &members(&[("etcd-1", "10.0.0.7")]));
        let changes = there.changes(Some(there.mark("c1", &after)), after);
        let count = |action: &str| changes.matches(&format!("<Action>{action}</Action>")).count();
        // Both services and the text stay as they are.
        assert_eq!((count("DELETE"), count("CREATE"), count("UPSERT")), (2, 2, 0), "{changes}");
        let gone = there.changes(None, Vec::new());
        assert_eq!(gone.matches("<Action>DELETE</Action>").count(), before.len() + 1, "{gone}");
    }

    #[test]
    fn records_that_the_txt_record_does_not_list_belong_to_others() {
        let ours = to_members(NAME, 60, &members(&[("etcd-1", "10.0.0.1")]));
        let mut there = family(&ours);
        let wanted: BTreeSet<Key> = to_members(NAME, 60, &members(&[("etcd-1", "10.0.0.1"), ("etcd-2", "10.0.0.2")]))
            .iter()
            .map(Record::key)
            .collect();
        assert_eq!(there.taken(&wanted), None);
        let foreign = Record::of("etcd-2.orders.example.com", "CNAME", 60, [String::from("elsewhere.")]);
        there.records.insert(foreign.key(), foreign.clone());
        assert_eq!(there.taken(&wanted), Some(&foreign));
    }

    #[test]
    fn records_are_read_as_route53_has_them() {
        let text = "<ResourceRecordSet><Name>Orders.example.com.</Name><Type>A</Type><AliasTarget>\
                    <HostedZoneId>ZD4D7Y8KGAS4G</HostedZoneId><DNSName>Q-1.elb.amazonaws.com.</DNSName>\
                    <EvaluateTargetHealth>false</EvaluateTargetHealth></AliasTarget></ResourceRecordSet>";
        let read = Record::read(&Xml::read(text).unwrap()).unwrap();
        let alias = (String::from("q-1.elb.amazonaws.com"), String::from("ZD4D7Y8KGAS4G"));
        assert_eq!([read], to_balancer(NAME, alias)[..]);
        let weighted = "<ResourceRecordSet><Name>a.</Name><Type>A</Type><SetIdentifier>x</SetIdentifier><TTL>1</TTL></ResourceRecordSet>";
        assert_eq!(Record::read(&Xml::read(weighted).unwrap()).unwrap().leads, Leads::Otherwise);
    }
}
