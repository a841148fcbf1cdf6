//! Patroni's keys when their etcd is restored to an older state.
//!
//! Patroni trusts these keys. A member that finds its name in `leader` is promoted without comparing logs, and `sync` names the members
//! that may be promoted later. An older state names the members of that time, which may lack confirmed commits. Without these keys Patroni
//! promotes the most recent of the running members, although the only member with all commits may be down.
//!
//! Therefore the older keys are replaced. `leader` names no member, and `sync` allows only `NOBODY` to take over. A primary that is still
//! running has all commits; Patroni lets it become the leader again, because it checks `sync` only for standbys. If no primary runs, no
//! member is promoted until it is known which one has all commits (`planner/takeover.rs`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Formation, desire};
use crate::model::Ledger;

/// Not the name of a member: those have no spaces.
const NOBODY: &str = "nobody: etcd was restored";
/// The key that names the members that may be promoted.
const SYNCHRONY: [&str; 3] = ["synchronous_mode", "synchronous_mode_strict", "synchronous_node_count"];

/// Patroni's keys, without the prefix that they share.
pub type Keys = BTreeMap<String, String>;

/// The replacements for keys of an older state. `cluster` is the ledger of the PostgreSQL cluster, if there is one. None: the keys stay,
/// because that cluster has no data yet. No keys: it begins with restored or upgraded data on one member. Only that one runs, so no other
/// can be promoted, and the older state would prevent it from becoming the primary.
pub fn in_place_of(older: &Keys, cluster: Option<&Ledger>) -> Option<Keys> {
    let mut keys = Keys::new();
    let mut keep = |key: &str, value: Option<String>| value.map(|value| keys.insert(key.to_owned(), value));
    match cluster.map(|ledger| (&ledger.postgres.formation, ledger)) {
        Some((Formation::Formed { system_id, .. }, ledger)) => {
            keep("initialize", Some(system_id.clone()));
            keep("config", Some(config(older.get("config"), ledger)?.to_string()));
        }
        Some((Formation::Forming { .. }, ledger)) if begins_with_data(ledger) => return Some(keys),
        Some((Formation::Unformed | Formation::Forming { .. }, _)) => return None,
        None => {
            keep("initialize", older.get("initialize").cloned());
            keep("config", older.get("config").cloned());
        }
    }
    let is_synchronous = keys.get("config").and_then(|config| object(config)).is_some_and(is_synchronous);
    if is_synchronous {
        keys.insert(String::from("sync"), barrier());
    }
    Some(keys)
}

fn begins_with_data(ledger: &Ledger) -> bool {
    let record = &ledger.postgres;
    record.restore.is_some() || record.upgrade.is_some() || !record.replaced.is_empty()
}

/// The value of `sync` that prevents every promotion. Patroni 3.0 corrects a wrong leader there only together with wrong standbys.
pub fn barrier() -> String {
    json!({ "leader": NOBODY, "sync_standby": NOBODY }).to_string()
}

/// Whether `sync` has that value.
pub fn is_barrier(sync: &[u8]) -> bool {
    serde_json::from_slice::<Value>(sync).is_ok_and(|sync| sync["leader"] == NOBODY)
}

/// The value of `sync` with which Patroni promotes this member and no other, and waits for no other.
pub fn only(patroni_name: &str) -> String {
    json!({ "leader": patroni_name, "sync_standby": null }).to_string()
}

/// The previous shared configuration, because a change of it comes later; but with the settings on which `sync` depends.
fn config(older: Option<&String>, ledger: &Ledger) -> Option<Value> {
    let wanted = desire::dynamic_config(&ledger.spec, ledger.spec.postgres.as_ref()?);
    let Some(mut config) = older.and_then(|config| object(config)) else { return Some(wanted) };
    for name in SYNCHRONY {
        config.insert(name.to_owned(), wanted[name].clone());
    }
    Some(config.into())
}

fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

/// Patroni also accepts numbers and words as true.
fn is_synchronous(config: Map<String, Value>) -> bool {
    config.get("synchronous_mode").is_some_and(|mode| !matches!(mode, Value::Null | Value::Bool(false)))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::kinds::postgres::{RestoreWish, Upgrade};
    use crate::model::Consent;
    use crate::spec::{Document, HostFacts};

    fn cluster(synchronous: &str, formation: Formation) -> Ledger {
        let text = format!(
            "quorate: 1\nclusters:\n  - name: shop\n    members: [{{name: pg-1}}, {{name: pg-2}}]\n    postgres: {{version: 15, dcs: \
             {{cluster: orders}}, synchronous: {synchronous}}}\n"
        );
        let checked = Document::parse("shop.yaml", &text).expect("it is YAML").spec(&HostFacts::default());
        let spec = checked.draft.or(checked.spec).expect("a spec").clusters.remove(0);
        let mut ledger = Ledger::new(String::from("c"), spec);
        ledger.postgres.formation = formation;
        ledger
    }

    fn formed() -> Formation {
        Formation::Formed { token: String::from("t"), system_id: String::from("77"), members: BTreeMap::new() }
    }

    fn older() -> Keys {
        let keys = [
            ("leader", "pg-1"),
            ("sync", r#"{"leader":"pg-1","sync_standby":"pg-2"}"#),
            ("failover", r#"{"member":"pg-1"}"#),
            ("failsafe", "{}"),
            ("status", "{}"),
            ("members/pg-1", "{}"),
            ("initialize", "76"),
            ("config", r#"{"ttl":20,"synchronous_mode":false}"#),
        ];
        keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn no_member_of_the_older_state_may_take_over() {
        let keys = in_place_of(&older(), Some(&cluster("{nodes: 1}", formed()))).unwrap();
        assert_eq!(keys.keys().collect::<Vec<_>>(), ["config", "initialize", "sync"]);
        assert_eq!(keys["initialize"], "77", "an upgrade has changed it since");
        assert!(is_barrier(keys["sync"].as_bytes()) && !is_barrier(older()["sync"].as_bytes()));
        // `sync` would not count without it.
        let config: Value = serde_json::from_str(&keys["config"]).unwrap();
        assert_eq!((&config["synchronous_mode"], &config["ttl"]), (&json!(true), &json!(20)));
        assert_eq!(config["synchronous_mode_strict"], true);
    }

    #[test]
    fn a_state_from_before_the_cluster_gets_its_configuration() {
        let keys = in_place_of(&Keys::new(), Some(&cluster("{nodes: 1}", formed()))).unwrap();
        let config: Value = serde_json::from_str(&keys["config"]).unwrap();
        assert_eq!((&config["synchronous_mode"], &config["failsafe_mode"]), (&json!(true), &json!(true)));
        assert!(is_barrier(keys["sync"].as_bytes()));
    }

    #[test]
    fn the_most_recent_member_may_take_over_if_commits_do_not_wait() {
        let keys = in_place_of(&older(), Some(&cluster("{nodes: 0}", formed()))).unwrap();
        assert_eq!(keys.keys().collect::<Vec<_>>(), ["config", "initialize"]);
    }

    #[test]
    fn a_cluster_that_begins_with_restored_data_finds_nothing_of_the_data_before() {
        let forming = || {
            let (token, first, members) = (String::from("r"), "pg-1".into(), BTreeMap::new());
            cluster("{nodes: 1}", Formation::Forming { token, first, members })
        };
        assert_eq!(in_place_of(&older(), Some(&forming())), None, "its data is created");
        let consent = Consent { at: Timestamp::UNIX_EPOCH, by: String::new(), shown: String::new() };
        let restore = RestoreWish { consent, token: String::from("r"), target: None, source: String::new() };
        let mut restored = forming();
        restored.postgres.restore = Some(restore);
        assert_eq!(in_place_of(&older(), Some(&restored)), Some(Keys::new()));
        let (token, from, to) = (String::from("r"), String::from("14"), String::from("15"));
        let mut upgraded = forming();
        upgraded.postgres.upgrade = Some(Upgrade { token, from, to, source: None, was: None });
        assert_eq!(in_place_of(&older(), Some(&upgraded)), Some(Keys::new()));
    }

    #[test]
    fn keys_of_a_cluster_without_data_stay_and_those_of_an_unknown_one_are_cut_down() {
        assert_eq!(in_place_of(&older(), Some(&cluster("{nodes: 1}", Formation::Unformed))), None);
        let unknown = in_place_of(&older(), None).unwrap();
        assert_eq!(unknown.keys().collect::<Vec<_>>(), ["config", "initialize"], "commits waited for nobody");
        let mut synchronous = older();
        synchronous.insert(String::from("config"), String::from(r#"{"synchronous_mode":true}"#));
        assert!(is_barrier(in_place_of(&synchronous, None).unwrap()["sync"].as_bytes()));
    }
}
