//! The kinds of clusters, one folder each. This file has everything that the shared parts of the planner ask a kind, one match per
//! question; a new kind adds its arms. What all clusters share is in `spec`, `model` and `planner`.

pub mod etcd;
pub mod postgres;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{
    AGENT_PORT, Audience, Brought, Desired, DesiredMember, Destruction, Facts, Ledger, MemberName, NODE_EXPORTER_PORT,
    NodeConfig, Observation, Opening, ServiceLog,
};
use crate::planner::voters::{Voters, healthy_of, quorum};
use crate::planner::{Action, Decision, Loss, Step, Strength, UnsafeBecause, View, safety};
use crate::spec::{ClusterSpec, Kind, LogForwarding, MemberSpec};

/// What the ledger records of a member that joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joined<'a> {
    pub machine_id: &'a str,
    pub address: Option<IpAddr>,
    /// It does not count yet.
    pub learns: bool,
}

/// The machines that a cluster should have: those of its members, and proxies, which only forward clients to members.
impl ClusterSpec {
    /// The proxies in the spec, each with its place.
    fn proxy_entries(&self) -> (&'static str, &[MemberSpec]) {
        match self.kind {
            Kind::Etcd => {
                let machines = self.etcd.front.as_ref().and_then(|front| front.machines.as_deref());
                ("etcd.front.machines", machines.unwrap_or(&[]))
            }
            Kind::Postgres => {
                let haproxy = self.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref());
                ("postgres.haproxy.machines", haproxy.and_then(|haproxy| haproxy.machines.as_deref()).unwrap_or(&[]))
            }
        }
    }

    /// The spec of each machine, with its place in the cluster's section.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (String, &MemberSpec)> {
        let (place, proxies) = self.proxy_entries();
        let at = |place: &'static str| move |(index, entry)| (format!("{place}[{index}]"), entry);
        self.members.iter().enumerate().map(at("members")).chain(proxies.iter().enumerate().map(at(place)))
    }

    /// Proxies have no data, so they have no data disk.
    pub fn proxies(&self) -> impl Iterator<Item = MemberSpec> {
        self.proxy_entries().1.iter().map(MemberSpec::without_data)
    }

    /// Members and proxies.
    pub fn machines(&self) -> impl Iterator<Item = Cow<'_, MemberSpec>> {
        self.members.iter().map(Cow::Borrowed).chain(self.proxies().map(Cow::Owned))
    }

    pub fn machine(&self, name: &str) -> Option<Cow<'_, MemberSpec>> {
        self.machines().find(|machine| machine.name.as_str() == name)
    }
}

/// All open ports of a machine with this configuration, in the order of its firewall's rules. None if its firewall is off.
pub fn openings(config: &NodeConfig) -> Option<Vec<Opening>> {
    let host = config.host.as_deref()?;
    let firewall = host.firewall.as_ref()?;
    let kind = match config.patroni().is_some() || config.haproxy().is_some() {
        true => postgres::ports::openings(config, firewall),
        false => etcd::ports::openings(config, firewall),
    };
    let scrapers = if host.node_exporter { firewall.scrape_from.clone() } else { Vec::new() };
    let machine = [
        (Audience::Operators, 22, firewall.rules.ssh_from.clone()),
        (Audience::Operators, AGENT_PORT, firewall.rules.controller_from.clone()),
        (Audience::Monitoring, NODE_EXPORTER_PORT, Some(scrapers)),
    ];
    let machine = machine.into_iter().map(|(to, port, from)| Opening { to, ports: vec![port], from });
    Some(kind.into_iter().chain(machine).collect())
}

/// The services of a kind on its machines.
impl Kind {
    /// The service that holds the data.
    pub fn service(self) -> &'static str {
        match self {
            Kind::Etcd => etcd::SERVICE,
            Kind::Postgres => postgres::SERVICE,
        }
    }

    /// What proxies run.
    pub fn proxy_service(self) -> &'static str {
        match self {
            Kind::Etcd => etcd::front::FRONT,
            Kind::Postgres => postgres::HAPROXY,
        }
    }

    /// The usual client, and the port that it connects to.
    pub(crate) fn client(self) -> (&'static str, u16) {
        match self {
            Kind::Etcd => ("etcdctl", crate::model::CLIENT_PORT),
            Kind::Postgres => ("psql", postgres::CLIENT_PORT),
        }
    }

    pub(crate) fn node_config(
        self,
        spec: &ClusterSpec,
        ledger: &Ledger,
        member: &MemberSpec,
        brought: &Brought,
        arch: &str,
    ) -> NodeConfig {
        match self {
            Kind::Etcd => etcd::desire::node_config(spec, ledger, member, etcd::desire::binary(spec, arch)),
            Kind::Postgres => postgres::desire::node_config(spec, ledger, member, brought),
        }
    }

    /// A release of its program that the steps need and that machines cannot download.
    pub(crate) fn no_download(self, spec: &ClusterSpec, steps: &[Step], seen: &Observation) -> Option<String> {
        match self {
            Kind::Etcd => etcd::planner::program::no_download(spec, steps, seen),
            // PostgreSQL and Patroni are always installed on machines; nothing is downloaded.
            Kind::Postgres => None,
        }
    }

    /// The services whose logs a machine sends; etcd's is not listed if it is the only one.
    pub(crate) fn logs(self, settings: &LogForwarding, spec: &ClusterSpec, member: &MemberSpec) -> Vec<ServiceLog> {
        match self {
            Kind::Etcd => etcd::front::logs(settings, spec, member),
            Kind::Postgres => postgres::desire::logs(settings, spec, member),
        }
    }

    /// The addresses from which clients connect to members indirectly: through a front or HAProxy, whose address they verify.
    pub(crate) fn proxied_addresses(self, spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<IpAddr> {
        match self {
            Kind::Etcd => etcd::front::proxied_addresses(spec, ledger),
            Kind::Postgres => postgres::desire::proxied_addresses(spec, ledger),
        }
    }

    /// The same for a proxy. Its certificates allow nothing but forwarding clients to members.
    pub(crate) fn proxy_config(self, spec: &ClusterSpec, ledger: &Ledger) -> NodeConfig {
        match self {
            Kind::Etcd => etcd::front::proxy_config(spec, ledger),
            Kind::Postgres => postgres::desire::proxy_config(spec, ledger),
        }
    }
}

/// What the ledger records of the cluster.
impl Desired {
    /// What a cluster of PostgreSQL has beyond what all have.
    pub(crate) fn postgres(&self) -> &postgres::Wish {
        self.postgres.as_ref().expect("a spec of this kind has such a section")
    }

    /// Whether its bootstrap never began.
    pub(crate) fn is_unformed(&self) -> bool {
        match self.kind {
            Kind::Etcd => self.etcd.formation == etcd::Formation::Unformed,
            Kind::Postgres => self.postgres().formation == postgres::Formation::Unformed,
        }
    }

    /// Whether clients can use it, or could before.
    pub(crate) fn is_formed(&self) -> bool {
        match self.kind {
            Kind::Etcd => self.etcd.formation.is_formed(),
            Kind::Postgres => self.postgres().formation.is_formed(),
        }
    }

    /// Whether a client can have written to it: before that, nothing is lost with a machine.
    pub(crate) fn may_hold_data(&self) -> bool {
        match self.kind {
            Kind::Etcd => !etcd::safety::may_wipe_leftover(&self.etcd.formation),
            Kind::Postgres => self.postgres().formation.is_formed(),
        }
    }

    /// Whether this member belongs to the formed cluster.
    pub(crate) fn belongs(&self, member: &MemberName) -> bool {
        match self.kind {
            Kind::Etcd => self.etcd.formation.has_member(member),
            Kind::Postgres => self.postgres().formation.is_formed() && self.joined(member).is_some(),
        }
    }

    /// Whether this machine is needed by a cluster that was formed, or is being formed again.
    pub(crate) fn counts_on(&self, member: &MemberName) -> bool {
        match self.kind {
            Kind::Etcd => self.etcd.formation.counts_on(member),
            Kind::Postgres => self.belongs(member),
        }
    }

    pub fn joined(&self, member: &MemberName) -> Option<Joined<'_>> {
        match self.kind {
            Kind::Etcd => self.etcd.formation.members()?.get(member).map(etcd::FormingMember::joined),
            Kind::Postgres => self.postgres().formation.members()?.get(member).map(postgres::Known::joined),
        }
    }

    /// All machines in the ledger, including those that are about to leave.
    pub(crate) fn all_joined(&self) -> impl Iterator<Item = &MemberName> {
        let etcd = (self.kind == Kind::Etcd).then(|| self.etcd.formation.members()).flatten();
        let postgres = (self.kind == Kind::Postgres).then(|| self.postgres().formation.members()).flatten();
        etcd.into_iter()
            .flat_map(|members| members.keys())
            .chain(postgres.into_iter().flat_map(|members| members.keys()))
    }

    /// Whether the operator confirmed that all data is replaced by other data.
    pub(crate) fn replaces_data(&self) -> bool {
        match self.kind {
            Kind::Etcd => self.etcd.restore.is_some(),
            // The way back from an upgrade depends on data that a member keeps.
            Kind::Postgres => self.postgres().restore.as_ref().is_some_and(|restore| restore.target.is_some()),
        }
    }

    /// Fixed settings of an existing cluster of the kind: the field, its value at creation, and the spec's value now.
    pub(crate) fn settings_of_kind(&self) -> Vec<(&'static str, &String, &String)> {
        match self.kind {
            Kind::Etcd => etcd::safety::fixed_at_formation(&self.etcd),
            Kind::Postgres => postgres::safety::fixed_at_formation(self.postgres()),
        }
    }

    /// The name of what its machines run, for people.
    pub(crate) fn program_name(&self) -> &'static str {
        match self.kind {
            Kind::Etcd => "etcd",
            Kind::Postgres => "PostgreSQL",
        }
    }

    /// Whether the member on this machine trusts this CA for its peers.
    pub(crate) fn trusts(&self, facts: &Facts, key_id: &str) -> bool {
        match self.kind {
            Kind::Etcd => etcd::safety::trusts(facts, key_id),
            Kind::Postgres => postgres::safety::trusts(facts, key_id),
        }
    }

    /// The section of the spec that only this kind has.
    pub(crate) fn section(&self) -> &'static str {
        match self.kind {
            Kind::Etcd => "etcd.",
            Kind::Postgres => "postgres.",
        }
    }
}

/// The decisions and rules of a kind, for the observed cluster.
impl View<'_> {
    /// Asks the concerns of the kind, including those that all kinds share. `as_formed` says whether the spec agrees with the settings that
    /// were fixed at creation.
    pub(crate) fn decide_for_kind(&self, as_formed: bool, decision: &mut Decision) {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::decide(self, as_formed, decision),
            Kind::Postgres => postgres::planner::decide(self, as_formed, decision),
        }
    }

    /// Whether a new member could join now.
    pub(crate) fn takes_members(&self) -> bool {
        match self.desired.kind {
            Kind::Etcd => self.cluster().is_some(),
            Kind::Postgres => postgres::safety::primary(self).is_some(),
        }
    }

    /// Whether this member has joined and does not count yet.
    pub(crate) fn learns(&self, member: &MemberName) -> bool {
        match self.desired.kind {
            Kind::Etcd => {
                self.cluster().and_then(|cluster| cluster.get(member)).is_some_and(|listed| listed.is_learner)
            }
            Kind::Postgres => false,
        }
    }

    /// Whether this member counts, according to the cluster or, without a report, the ledger.
    pub(crate) fn counts(&self, member: &MemberName) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::loss::votes(self, member),
            Kind::Postgres => self.desired.belongs(member),
        }
    }

    /// The members that clients connect to, by name, with their addresses: those that count and are wanted, and a former machine while
    /// its successor does not count. `None` while that is unknown, or there is none yet.
    pub(crate) fn serving(&self) -> Option<BTreeMap<MemberName, IpAddr>> {
        match self.desired.kind {
            Kind::Etcd => etcd::cluster::serving(self.desired, self.cluster()?),
            // Clients find a primary in other ways (`docs/postgres.md`).
            Kind::Postgres => None,
        }
    }

    /// Whether the cluster is known to authenticate clients. Before that, a certificate without a name would give full access.
    pub(crate) fn authenticates(&self) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::authenticates(self),
            Kind::Postgres => true,
        }
    }

    /// Whether this member is healthy.
    pub(crate) fn is_well(&self, member: &MemberName) -> bool {
        if self.desired.is_proxy(member) {
            return safety::serves(self, member);
        }
        match self.desired.kind {
            Kind::Etcd => self.seen.facts(member).is_some_and(etcd::safety::is_healthy_voter),
            Kind::Postgres => postgres::safety::is_well(self, member),
        }
    }

    pub(crate) fn leads(&self, member: &MemberName) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::restart::leads(self.seen, member),
            Kind::Postgres => postgres::safety::leads(self, member),
        }
    }

    /// The number of members that count, and of healthy ones among them.
    pub(crate) fn voters(&self) -> Voters {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::voters(self),
            Kind::Postgres => postgres::safety::members(self),
        }
    }

    /// The same, including members that are only stopped; `None` while the operator wants a cluster that has lost too many members to
    /// continue.
    pub(crate) fn able(&self) -> Option<Voters> {
        match self.desired.kind {
            Kind::Etcd => (!self.desired.etcd.recovery).then(|| etcd::safety::able(self)),
            Kind::Postgres => Some(postgres::safety::able(self)),
        }
    }

    /// Why a member needs another machine although this one answers: because of the data that it holds or has lost.
    pub(crate) fn loss(&self, member: &MemberName, facts: &Facts) -> Option<Loss> {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::loss::of_member(self, member, facts),
            Kind::Postgres => None,
        }
    }

    /// The same for a machine whose owner is not a member but in the spec.
    pub(crate) fn loss_of_new(&self, member: &MemberName) -> Option<Loss> {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::loss::of_new(self, member),
            Kind::Postgres => None,
        }
    }

    /// The members left without this one, if they suffice. Otherwise the decision says what is missing.
    pub(crate) fn others_can_do_without(&self, member: &MemberName, decision: &mut Decision) -> Option<String> {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::loss::others_can_do_without(self, member, decision),
            Kind::Postgres => postgres::planner::membership::others_can_do_without(self, member, decision),
        }
    }

    /// Whether any machine may be replaced now.
    pub(crate) fn may_exchange_machines(&self) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::renewal::is_open(self),
            Kind::Postgres => self.desired.is_formed() && !self.desired.replaces_data(),
        }
    }

    /// Whether this member may get another machine now, with its data.
    pub(crate) fn may_renew(&self, member: &MemberName) -> Result<(), UnsafeBecause> {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::may_renew(self, member),
            Kind::Postgres => postgres::safety::may_disturb(self, member),
        }
    }

    /// Whether this healthy member may be given up for another machine, without its data. `None` while that is unknown.
    pub(crate) fn may_replace(&self, member: &MemberName) -> Option<Result<(), UnsafeBecause>> {
        match self.desired.kind {
            Kind::Etcd => {
                let cluster = self.cluster()?;
                Some(etcd::safety::may_replace(self.desired, cluster, cluster.get(member)?))
            }
            Kind::Postgres => Some(postgres::safety::may_disturb(self, member)),
        }
    }

    /// Steps before the machine of a member is removed. Returns whether others must come first.
    pub(crate) fn hand_over(&self, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::renewal::hand_over(self, member, why, decision),
            Kind::Postgres => postgres::planner::machine::let_go(self, member, why, decision),
        }
    }

    /// Disturbs the next of these members, as `disturb` says, if the rules of a restart allow it now.
    pub(crate) fn disturb_one(
        &self,
        decision: &mut Decision,
        members: &[&MemberName],
        disturb: impl Fn(&MemberName) -> (Action, String),
    ) {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::restart::disturb_one(self, decision, members, disturb),
            Kind::Postgres => postgres::planner::machine::disturb_one(self, decision, members, disturb),
        }
    }

    /// The cluster's fault tolerance now, for people.
    pub(crate) fn numbers(&self) -> String {
        let Voters { all, healthy } = self.voters();
        match self.desired.kind {
            Kind::Etcd => format!("{}, quorum is {}", healthy_of(healthy, all), quorum(all)),
            Kind::Postgres => format!("{healthy} of {all} members are healthy"),
        }
    }

    /// A reason, with the numbers that make it safe.
    pub(crate) fn with_numbers(&self, member: &MemberName, why: &str) -> String {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::restart::told_with_numbers(self, member, why),
            Kind::Postgres => postgres::planner::restart::with_numbers(self, member, why),
        }
    }

    pub(crate) fn may_clear_away(&self, member: &MemberName) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::may_clear_away(self, member),
            Kind::Postgres => postgres::safety::may_clear_away(self, member),
        }
    }

    pub(crate) fn may_destroy(&self, word: &Destruction) -> Result<(), UnsafeBecause> {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::may_destroy(self, word),
            Kind::Postgres => postgres::safety::may_destroy(self, word),
        }
    }

    /// Whether a member can report the end of its data, and was not asked.
    pub(crate) fn can_tell_more(&self) -> bool {
        match self.desired.kind {
            Kind::Etcd => false,
            Kind::Postgres => postgres::safety::can_tell_more(self),
        }
    }

    /// Data that this ledger does not know belongs to an unknown cluster, although it has the same name.
    pub(crate) fn data_is_known(&self, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::formation_is_known(self.desired, member, facts),
            Kind::Postgres => postgres::safety::formation_is_known(self.desired, member, facts),
        }
    }

    /// Whether the configurations of the spec may be sent. Else the decision says why not.
    pub(crate) fn may_configure(&self, decision: &mut Decision) -> bool {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::version::may_configure(self, decision),
            Kind::Postgres => postgres::planner::may_configure(self, decision),
        }
    }

    /// Why this machine did not accept its configuration.
    pub(crate) fn refused_config(
        &self,
        member: &MemberName,
        wish: &DesiredMember,
        facts: &Facts,
    ) -> Option<UnsafeBecause> {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::program::refused(member, wish, facts),
            Kind::Postgres => postgres::planner::formation::refused_config(self.desired, member, wish, facts)
                .or_else(|| etcd::planner::program::not_ready(member, wish, facts)),
        }
    }

    /// Whether a configuration that is in place is sent again, and why.
    pub(crate) fn same_config_again(
        &self,
        member: &MemberName,
        wish: &DesiredMember,
        facts: &Facts,
    ) -> Result<Option<String>, UnsafeBecause> {
        match self.desired.kind {
            Kind::Etcd => etcd::planner::program::search_again(member, wish, facts),
            Kind::Postgres => Ok(postgres::planner::formation::searches_again(self.desired, wish, facts)),
        }
    }

    /// The cluster's fault tolerance while a step runs. `None` before it is bootstrapped.
    pub(crate) fn strength_during(&self, action: &Action) -> Option<Strength> {
        match self.desired.kind {
            Kind::Etcd => etcd::safety::strength_during(self, action),
            Kind::Postgres => postgres::safety::strength_during(self, action),
        }
    }
}

/// What the ledger records.
impl Ledger {
    /// The known addresses of the cluster's members.
    pub fn addresses(&self) -> BTreeMap<MemberName, IpAddr> {
        match self.spec.kind {
            Kind::Etcd => {
                let members = self.etcd.formation.members().into_iter().flatten();
                members.filter_map(|(name, member)| Some((name.clone(), member.address()?))).collect()
            }
            Kind::Postgres => {
                let members = self.postgres.formation.members().into_iter().flatten();
                members.filter_map(|(name, known)| Some((name.clone(), known.address?))).collect()
            }
        }
    }

    /// The members that belong to the cluster, former machines too.
    pub fn joined(&self) -> impl Iterator<Item = &MemberName> {
        let etcd = self.etcd.formation.members().filter(|_| self.spec.kind == Kind::Etcd);
        let postgres = self.postgres.formation.members().filter(|_| self.spec.kind == Kind::Postgres);
        let (etcd, postgres) = (etcd.into_iter().flatten(), postgres.into_iter().flatten());
        etcd.map(|(name, _)| name).chain(postgres.map(|(name, _)| name))
    }

    /// The bootstrap of this member's data, if the cluster depends on it.
    pub(crate) fn token_with(&self, member: &MemberName) -> Option<String> {
        let token = match self.spec.kind {
            Kind::Etcd => self.etcd.formation.token().filter(|_| self.etcd.formation.counts_on(member)),
            Kind::Postgres => {
                let joined = self.postgres.formation.members().is_some_and(|members| members.contains_key(member));
                self.postgres.formation.token().filter(|_| joined && self.postgres.formation.is_formed())
            }
        };
        token.map(str::to_owned)
    }

    /// Records before a step of the kind. Returns whether the ledger changed.
    pub(crate) fn record_before(&mut self, desired: &Desired, action: &Action, now: jiff::Timestamp) -> bool {
        match self.spec.kind {
            Kind::Etcd => etcd::remember::before(self, desired, action, now),
            Kind::Postgres => postgres::remember::before(self, desired, action),
        }
    }

    /// Records after a step of the kind. Returns whether the ledger changed.
    pub(crate) fn record_after(&mut self, desired: &Desired, action: &Action, now: jiff::Timestamp) -> bool {
        match self.spec.kind {
            Kind::Etcd => etcd::remember::after(self, desired, action, now),
            Kind::Postgres => postgres::remember::after(self, desired, action),
        }
    }

    /// Records what an observation of the kind shows.
    pub(crate) fn record_sighting(&mut self, desired: &Desired, seen: &Observation) {
        match self.spec.kind {
            Kind::Etcd => etcd::remember::sighting(self, desired, seen),
            Kind::Postgres => postgres::remember::sighting(self, desired, seen),
        }
    }

    /// A machine of this member is a former one from now on.
    pub(crate) fn record_former(&mut self, member: &MemberName, incarnation: u64) {
        match self.spec.kind {
            Kind::Etcd => etcd::remember::former(self, member, incarnation),
            Kind::Postgres => postgres::remember::former(self, member, incarnation),
        }
    }

    /// Removes the kind's requests that are done, because nothing is left to do or to wait for.
    pub(crate) fn close_requests_of_kind(&mut self) {
        match self.spec.kind {
            Kind::Etcd => etcd::remember::answered(self),
            Kind::Postgres => self.postgres.switchover = None,
        }
    }

    /// Removes the kind's requests that are no longer valid.
    pub(crate) fn drop_stale_requests_of_kind(&mut self, counts: impl Fn(&crate::model::Consent) -> bool) {
        match self.spec.kind {
            Kind::Etcd => self.etcd.drop_stale(counts),
            Kind::Postgres => self.postgres.drop_stale(counts),
        }
    }
}
