//! Hosted zones of Route53: several can have one name, such as a private and a public one. The records of a cluster at
//! one name are one fixture, in whichever of these zones they are. So all of them are searched for the cluster's mark,
//! even if the spec names one by its id: records in another zone move there, and none are left behind.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::model::FixtureId;

use super::Aws;
use super::error::AwsError;
use super::records::{Family, plain};
use super::session::Rest;
use super::xml::Xml;

/// An account may use other zones of the name, and not these.
const CLOSED: [&str; 2] = ["AccessDenied", "AccessDeniedException"];
/// Somebody deleted a zone after it was listed.
const NO_ZONE: [&str; 1] = ["NoSuchHostedZone"];

/// What is at a name, in all zones that may have it.
pub(super) struct Found {
    /// The zone where the spec wants it, by id, or why there is none. None: the spec no longer wants it.
    pub(super) home: Option<Result<String, AwsError>>,
    pub(super) families: BTreeMap<String, Family>,
}

impl Found {
    pub(super) fn at_home(&self) -> Option<&Family> {
        self.families.get(self.home.as_ref()?.as_ref().ok()?)
    }

    /// What has this cluster's mark, by the id of its zone.
    pub(super) fn ours<'a>(&'a self, cluster_id: &str) -> impl Iterator<Item = (&'a String, &'a Family)> {
        self.families.iter().filter(move |(_, family)| family.owner.as_deref() == Some(cluster_id))
    }

    /// The same without what is where it belongs.
    pub(super) fn astray<'a>(&'a self, cluster_id: &str) -> impl Iterator<Item = (&'a String, &'a Family)> {
        let home = self.home.as_ref().and_then(|home| home.as_ref().ok());
        self.ours(cluster_id).filter(move |(zone, _)| Some(*zone) != home)
    }
}

/// The place of a fixture. Its zone has a name; ledgers of older versions may have an id instead.
enum Place<'a> {
    Named { zone: &'a str, name: &'a str },
    ById { id: &'a str, name: &'a str },
}

fn place(fixture: &FixtureId) -> Place<'_> {
    let (zone, name) = fixture.place.split_once('/').unwrap_or(("", &fixture.place));
    let is_within = name.strip_suffix(zone).is_some_and(|before| before.ends_with('.'));
    if is_within { Place::Named { zone, name } } else { Place::ById { id: zone, name } }
}

impl Aws {
    pub(super) fn is_wished(&self, fixture: &FixtureId) -> bool {
        self.settings.records(&self.spec).is_some_and(|wish| wish == *fixture)
    }

    /// Looks at a name in every zone that may have it.
    pub(super) async fn find_records(&self, fixture: &FixtureId) -> Result<Found, AwsError> {
        let (zones, name) = match place(fixture) {
            Place::Named { zone, name } => (self.zones_named(zone).await?, name),
            Place::ById { id, name } => {
                let is_covered = self.is_covered(id, name).await?;
                (Some(id.to_owned()).filter(|_| !is_covered).into_iter().collect(), name)
            }
        };
        let wanted = self.settings.dns.as_ref().filter(|_| self.is_wished(fixture));
        let mut home = match wanted {
            None => None,
            Some(dns) => match &dns.zone_id {
                Some(id) if zones.contains(id) => Some(Ok(id.clone())),
                Some(id) => Some(self.zone_by_id(id, &dns.zone()).await?),
                None if zones.len() == 1 => zones.first().cloned().map(Ok),
                None => Some(Err(no_single(dns.zone(), &zones))),
            },
        };
        let first = home.as_ref().and_then(|home| home.as_ref().ok()).cloned();
        let (mut families, mut closed) = (BTreeMap::new(), None);
        for zone in zones.into_iter().chain(first.clone()).collect::<BTreeSet<String>>() {
            let is_home = first.as_ref() == Some(&zone);
            if !is_home && self.empty_zones.borrow().contains(&(zone.clone(), name.to_owned())) {
                continue;
            }
            match self.family(&zone, name).await {
                Err(error) if error.has_code(&NO_ZONE) => {
                    self.zones.borrow_mut().clear();
                    if is_home {
                        home = Some(Err(missing(&zone)));
                    }
                }
                Err(error) if !is_home && error.has_code(&CLOSED) => closed = Some(error),
                family => drop(families.insert(zone, family?)),
            }
        }
        let mut found = Found { home, families };
        let ours: Vec<String> = found.ours(&self.cluster_id).map(|(zone, _)| zone.clone()).collect();
        if let (Some(Err(AwsError::SeveralZones { .. })), [only]) = (&found.home, &ours[..]) {
            // They were made before there was another zone of the name.
            found.home = Some(Ok(only.clone()));
        }
        // They may be exactly there.
        if let Some(error) = closed
            && ours.is_empty()
            && !matches!(found.home, Some(Ok(_)))
        {
            return Err(error);
        }
        self.note_empty(&found, name);
        Ok(found)
    }

    /// Nobody else makes records of this cluster during a run, and this run makes them in one zone alone.
    fn note_empty(&self, found: &Found, name: &str) {
        let Some(Ok(home)) = &found.home else { return };
        let is_empty =
            |(zone, family): &(&String, &Family)| *zone != home && family.owner.as_ref() != Some(&self.cluster_id);
        let empty = found.families.iter().filter(is_empty).map(|(zone, _)| (zone.clone(), name.to_owned()));
        self.empty_zones.borrow_mut().extend(empty);
    }

    /// Whether what an older version recorded under the id of a zone is what the spec has now: it is looked at once.
    async fn is_covered(&self, id: &str, name: &str) -> Result<bool, AwsError> {
        let Some(dns) = self.settings.dns.as_ref().filter(|dns| dns.full_name(&self.spec) == name) else {
            return Ok(false);
        };
        Ok(dns.zone_id.as_deref() == Some(id) || self.zones_named(&dns.zone()).await?.contains(id))
    }

    /// The ids of all zones with this name. A policy may not allow to list them: then the one that the spec names by its
    /// id is found all the same.
    async fn zones_named(&self, zone: &str) -> Result<BTreeSet<String>, AwsError> {
        if let Some(ids) = self.zones.borrow().get(zone) {
            return Ok(ids.clone());
        }
        let request = Rest {
            doing: format!("find the hosted zone {zone}"),
            path: String::from("hostedzonesbyname"),
            query: vec![("dnsname", zone.to_owned()), ("maxitems", String::from("100"))],
            body: String::new(),
        };
        let has_id = self.settings.dns.as_ref().is_some_and(|dns| dns.zone() == zone && dns.zone_id.is_some());
        let answer = match self.session()?.route53(&request).await {
            Err(error) if has_id && error.has_code(&CLOSED) => Xml::default(),
            answer => answer?,
        };
        let named = |one: &&Xml| one.text("Name").is_some_and(|name| plain(&name) == zone);
        let id = |one: &Xml| Some(one.text("Id")?.trim_start_matches("/hostedzone/").to_owned());
        let ids: BTreeSet<String> = answer.items("HostedZones").filter(named).filter_map(id).collect();
        // What is not as it should be may be corrected while a run waits.
        if ids.len() == 1 || has_id {
            self.zones.borrow_mut().insert(zone.to_owned(), ids.clone());
        }
        Ok(ids)
    }

    /// The zone of an id, which must be that of the name. What is wrong with it is for the operator to correct.
    async fn zone_by_id(&self, id: &str, wanted: &str) -> Result<Result<String, AwsError>, AwsError> {
        let doing = format!("read the hosted zone {id}");
        let request = Rest { doing, path: format!("hostedzone/{id}"), ..Rest::default() };
        let found = match self.session()?.route53(&request).await {
            Err(error) if error.has_code(&NO_ZONE) => return Ok(Err(missing(id))),
            answer => plain(&answer?.text("HostedZone/Name").unwrap_or_default()),
        };
        if found != wanted {
            return Ok(Err(AwsError::OtherZone { id: id.to_owned(), found, wanted: wanted.to_owned() }));
        }
        self.zones.borrow_mut().entry(wanted.to_owned()).or_default().insert(id.to_owned());
        Ok(Ok(id.to_owned()))
    }
}

fn missing(zone: &str) -> AwsError {
    AwsError::Missing { what: "hosted zone", name: zone.to_owned(), names: Vec::new() }
}

fn no_single(name: String, zones: &BTreeSet<String>) -> AwsError {
    if zones.is_empty() {
        missing(&name)
    } else {
        AwsError::SeveralZones { name, ids: zones.iter().cloned().collect() }
    }
}

#[cfg(test)]
#[path = "zones_tests.rs"]
mod tests;
