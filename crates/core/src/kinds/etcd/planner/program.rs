//! Whether a machine has the etcd program that its configuration needs.

use std::collections::BTreeSet;

use crate::kinds::etcd::versions;
use crate::model::{
    BinarySeen, BinarySource, ConfigAttempt, DesiredMember, Facts, MemberName, Observation, ServiceState,
};
use crate::planner::{Action, Step, UnsafeBecause};
use crate::spec::ClusterSpec;
use crate::text::list;

/// A machine does not accept a configuration if its etcd program is missing, or if it is not ready for it; the previous one stays in force.
pub(crate) fn refused(member: &MemberName, wish: &DesiredMember, facts: &Facts) -> Option<UnsafeBecause> {
    match &facts.etcd.attempt {
        ConfigAttempt::WithoutProgram { digest, seen } if *digest == wish.digest => wrong(member, wish, seen),
        _ => not_ready(member, wish, facts),
    }
}

/// A machine of any kind that is not ready for its configuration, whatever its programs.
pub(crate) fn not_ready(member: &MemberName, wish: &DesiredMember, facts: &Facts) -> Option<UnsafeBecause> {
    match &facts.etcd.attempt {
        ConfigAttempt::NotReady { digest, why, remedy } if *digest == wish.digest => {
            Some(UnsafeBecause::NotReady { member: member.clone(), why: why.clone(), remedy: remedy.clone() })
        }
        _ => None,
    }
}

/// What follows if the configuration is in place: nothing; it is sent again, because the program may have been installed since; or a
/// refusal.
pub(crate) fn search_again(
    member: &MemberName,
    wish: &DesiredMember,
    facts: &Facts,
) -> Result<Option<String>, UnsafeBecause> {
    match wrong(member, wish, &facts.etcd.binary) {
        None => Ok(None),
        Some(because) if facts.etcd.attempt == ConfigAttempt::Untold => Err(because),
        Some(because) => Ok(Some(format!("{because}: it looks again"))),
    }
}

/// Machines report which etcd they find only when they have the configuration that asks for it, so the plan assumes that they will. One
/// that is not there stops `apply` before the first restart.
pub(crate) fn no_download(spec: &ClusterSpec, steps: &[Step], seen: &Observation) -> Option<String> {
    let wanted = spec.etcd.version;
    if spec.etcd.binary.is_some() || versions::is_download(wanted) {
        return None;
    }
    let finds_another = |member: &&MemberName| {
        let found = seen.facts(member).map(|facts| &facts.etcd.binary);
        matches!(found, Some(BinarySeen::Version(found)) if *found != wanted.to_string())
    };
    let restarts = steps.iter().filter_map(|step| match &step.action {
        Action::RestartEtcd { member } => Some(member),
        _ => None,
    });
    let members: BTreeSet<MemberName> = restarts.filter(finds_another).cloned().collect();
    (!members.is_empty()).then(|| {
        format!(
            "etcd {wanted} must be on the PATH of {}: this quorate knows no checksum with which it could download it",
            list(&members)
        )
    })
}

/// An image whose tag does not match its etcd. Only the running version shows that, and another restart would change nothing.
pub(crate) fn wrong_image(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> Option<UnsafeBecause> {
    let pod = wish.config.etcd()?.pod.as_ref()?;
    let facts = seen.facts(member)?;
    let wanted = &wish.etcd_version;
    let runs = facts.etcd.status.as_ref().map(|status| &status.version).filter(|runs| *runs != wanted)?;
    let ServiceState::Running { digest, .. } = &facts.etcd.service else { return None };
    (*digest == wish.service_digest).then(|| UnsafeBecause::WrongBinary {
        member: member.clone(),
        wanted: wanted.clone(),
        found: format!("its image {} has etcd {runs}", pod.image),
        remedy: format!("set `etcd.static_pod.image` to an image that has etcd {wanted}"),
    })
}

/// Why nothing was downloaded.
fn without_archive(wish: &DesiredMember) -> &'static str {
    match wish.config.etcd().map(|etcd| &etcd.binary) {
        Some(BinarySource::Search { otherwise: None }) => {
            " on its PATH, and this quorate knows no checksum with which it could download that release"
        }
        _ => "",
    }
}

fn wrong(member: &MemberName, wish: &DesiredMember, seen: &BinarySeen) -> Option<UnsafeBecause> {
    let wanted = &wish.etcd_version;
    let found = match seen {
        BinarySeen::Version(version) if version == wanted => return None,
        BinarySeen::Version(version) => format!("finds {version}{}", without_archive(wish)),
        BinarySeen::Missing { why } => format!("finds none: {why}{}", without_archive(wish)),
        BinarySeen::Unasked => return None,
    };
    let remedy = format!(
        "install etcd {wanted} on the PATH; or set `etcd.binary` to `{{path: …}}` or, with the checksum of its archive, to `{{archive: {{url: \
         …, sha256: …}}}}`; or set `etcd.version` to a release that is there{}",
        downloadable(wanted)
    );
    Some(UnsafeBecause::WrongBinary { member: member.clone(), wanted: wanted.clone(), found, remedy })
}

/// The newest release of the same minor that quorate can download, if it cannot download the wanted one.
fn downloadable(wanted: &str) -> String {
    let wanted = wanted.parse().ok().filter(|wanted| versions::release_checksum(*wanted, "amd64").is_none());
    let newest = wanted.and_then(versions::newest_download);
    newest.map(|newest| format!(" or can be downloaded, such as {newest}")).unwrap_or_default()
}
