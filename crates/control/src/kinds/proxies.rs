//! The status of proxies: machines of a cluster that only forward clients to its members.

use quorate_core::model::{CertificateUse, Exit, Facts, Ledger, MachineSeen, MemberName, Observation, ServiceState};

use crate::kinds::status::{ProxyStatus, Verdict, is_proxy, machine_name, unseen};

/// Proxies on separate machines, including former ones while they exist: clients connect through all of them.
pub(crate) fn machines(ledger: &Ledger) -> impl Iterator<Item = MemberName> {
    let known = ledger.members.iter().filter(|(_, record)| record.proxy.is_some());
    known.flat_map(|(name, record)| {
        let former = (1..record.incarnation).map(|incarnation| name.former(incarnation));
        std::iter::once(name.clone()).chain(former)
    })
}

/// Those of the spec, and machines of others that are still there.
pub(crate) fn status(ledger: &Ledger, seen: &Observation) -> Vec<ProxyStatus> {
    let mut names: Vec<MemberName> = ledger.spec.proxies().map(|proxy| proxy.name.as_str().into()).collect();
    let wanted = names.len();
    let ours = |(_, machine): &(&MemberName, &MachineSeen)| machine.cluster_id == ledger.cluster_id;
    let machines = seen.machines.get().into_iter().flatten().filter(ours).map(|(name, _)| name);
    names.extend(machines.filter(|name| is_proxy(ledger, name) && !names.contains(name)).cloned().collect::<Vec<_>>());
    names.into_iter().enumerate().map(|(at, name)| one(ledger, seen, name, at >= wanted)).collect()
}

fn one(ledger: &Ledger, seen: &Observation, proxy: MemberName, leaving: bool) -> ProxyStatus {
    let machine = seen.machines.get().and_then(|machines| machines.get(&proxy));
    let facts = seen.facts(&proxy);
    let (health, why) = facts.map_or_else(|| unseen(seen, &proxy, machine), health);
    // The certificate that expires first. A member's certificate on a machine that became a proxy does not matter.
    let shown = [CertificateUse::Agent, CertificateUse::Front];
    let ends = shown.iter().filter_map(|of| Some(facts?.certificates.get(of)?.not_after)).min();
    ProxyStatus {
        machine: machine_name(ledger, &proxy, machine),
        address: machine.and_then(|machine| machine.address).map(|address| address.to_string()),
        leaving,
        health,
        why,
        certificate_left: ends.map(|ends| ends.duration_since(seen.now)),
        certificate_days_left: ends.map(|ends| quorate_pki::days_left(ends, seen.now)),
        agent: seen.program(&proxy).map(|program| program.runs.clone()),
        proxy,
    }
}

fn health(facts: &Facts) -> (&'static str, Option<String>) {
    if facts.node_config.is_none() {
        return ("stopped", Some(String::from("it has no configuration yet")));
    }
    let trouble = facts.services.iter().find_map(|(name, state)| match state {
        ServiceState::Running { .. } => None,
        ServiceState::Stopped => Some(("stopped", format!("{name} does not run"))),
        ServiceState::Unknown { why } => Some(("unknown", format!("cannot tell whether {name} is running: {why}"))),
        ServiceState::BackingOff { last_exit: Exit { how, last_words, .. }, .. } => {
            let words = if last_words.is_empty() { String::new() } else { format!(": {last_words}") };
            Some(("failing", format!("{name}: {how}{words}")))
        }
    });
    trouble.map_or(("healthy", None), |(health, why)| (health, Some(why)))
}

/// The number of proxies in the spec that serve, and their total.
pub(crate) fn serving(proxies: &[ProxyStatus]) -> (usize, usize) {
    let wanted = || proxies.iter().filter(|proxy| !proxy.leaving);
    (wanted().filter(|proxy| proxy.health == "healthy").count(), wanted().count())
}

/// The end of the verdict in one line.
pub(crate) fn summary(verdict: Verdict, serving: usize, all: usize) -> String {
    match verdict {
        Verdict::Off | Verdict::Unformed | Verdict::Unknown => String::new(),
        _ if all == 0 => String::new(),
        _ => format!("; {serving} of {all} {} clients", if all == 1 { "proxy serves" } else { "proxies serve" }),
    }
}
