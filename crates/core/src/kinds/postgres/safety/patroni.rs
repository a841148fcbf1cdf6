//! The features of Patroni that a cluster needs. Patroni silently ignores settings that it does not know.

use serde_json::Value;

use crate::kinds::postgres::{Dcs, PostgresFacts};
use crate::model::{BinarySeen, DesiredMember, MemberName, PatroniService, Version};
use crate::planner::UnsafeBecause;

/// The first that keeps its primary while etcd is away.
const WITH_FAILSAFE_MODE: Version = Version::new(3, 0, 0);
const WITH_FAILOVER_PRIORITY: Version = Version::new(3, 2, 0);
/// The first that logs in to etcd again when its token has expired, whatever it asked for.
const WITH_NEW_LOGINS: Version = Version::new(4, 1, 1);
/// The first release of each etcd line that requires a valid token for every request.
const STRICTER_ETCD: [Version; 4] =
    [Version::new(3, 4, 42), Version::new(3, 5, 28), Version::new(3, 6, 9), Version::new(3, 7, 0)];

/// Whether the Patroni of this machine can do what its configuration says, on this etcd.
pub(crate) fn patroni_can(
    member: &MemberName,
    wish: &DesiredMember,
    dcs: &Result<Dcs, String>,
    found: &PostgresFacts,
) -> Result<(), UnsafeBecause> {
    let BinarySeen::Version(text) = &found.patroni else { return Ok(()) };
    let Ok(version) = text.parse::<Version>() else { return Ok(()) };
    let too_old = |needed: Version, why: String| {
        let remedy = format!("install Patroni {needed} or newer on the machine");
        Err(UnsafeBecause::NotReady { member: member.clone(), why, remedy })
    };
    if version < WITH_FAILSAFE_MODE {
        return too_old(WITH_FAILSAFE_MODE, format!("Patroni {version} does not know `failsafe_mode`"));
    }
    if version < WITH_FAILOVER_PRIORITY && wish.config.patroni().is_some_and(has_priority) {
        let why = format!("Patroni {version} does not know the tag `failover_priority`, and would ignore it");
        return too_old(WITH_FAILOVER_PRIORITY, why);
    }
    let etcd = dcs.as_ref().ok().and_then(|dcs| dcs.version).filter(|etcd| is_strict(*etcd));
    match etcd {
        Some(etcd) if version < WITH_NEW_LOGINS => {
            let why = format!("Patroni {version} loses its lease in etcd {etcd} when its token expires");
            too_old(WITH_NEW_LOGINS, why)
        }
        _ => Ok(()),
    }
}

fn is_strict(etcd: Version) -> bool {
    let of_line = STRICTER_ETCD.into_iter().find(|first| (first.major, first.minor) == (etcd.major, etcd.minor));
    of_line.map_or(etcd > STRICTER_ETCD[3], |first| etcd >= first)
}

fn has_priority(service: &PatroniService) -> bool {
    let config: Result<Value, _> = serde_json::from_str(service.config.expose());
    config.is_ok_and(|config| !config["tags"]["failover_priority"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_is_strict_from_one_release_of_each_line_on() {
        let strict = |text: &str| is_strict(text.parse().unwrap());
        assert!(["3.4.42", "3.5.28", "3.5.30", "3.6.9", "3.7.0", "3.8.1"].into_iter().all(strict));
        assert!(!["3.3.27", "3.4.23", "3.5.16", "3.5.27", "3.6.8"].into_iter().any(strict));
    }
}
