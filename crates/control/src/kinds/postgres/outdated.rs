//! PostgreSQL clusters that follow an etcd cluster only when they are applied: what a run changed of the way to it is not in the
//! configuration of their members yet. Nothing is changed here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use quorate_core::desire::Wish;
use quorate_core::kinds::postgres::Dcs;
use quorate_core::model::{Ledger, MemberName, Power};

use super::dcs::{look, users_of};
use crate::brought;
use crate::home::Home;
use crate::run::controller::arch;

/// By PostgreSQL cluster, how Patroni of it reaches an etcd cluster.
pub type Ways = BTreeMap<String, Dcs>;

/// How those of this home reach it now. One that cannot yet, or whose ledger cannot be read, is left out.
pub fn ways(home: &Home, etcd: &str) -> Ways {
    let Ok(Some(ledger)) = home.store(etcd).read() else { return Ways::new() };
    let way = |name: String| {
        let user = home.store(&name).read().ok()??;
        // Its version is no part of the way to it.
        let way = Dcs { version: None, ..look(home, &user.spec)?.ok()? };
        Some((name, way))
    };
    users_of(home, &ledger).into_iter().filter_map(way).collect()
}

/// Those to which another way leads than `before`, and whose members have a configuration without it.
pub fn outdated(home: &Home, etcd: &str, before: &Ways) -> Vec<String> {
    let other = ways(home, etcd).into_iter().filter(|(name, way)| before.get(name) != Some(way));
    let lacks_it = |name: &String| {
        let ledger = home.store(name).read().ok().flatten();
        ledger.is_some_and(|ledger| gets_another_configuration(home, &ledger))
    };
    other.map(|(name, _)| name).filter(lacks_it).collect()
}

/// A cluster that is off gets it when it is started.
fn gets_another_configuration(home: &Home, ledger: &Ledger) -> bool {
    if ledger.power == Power::Off || ledger.destroy.is_some() {
        return false;
    }
    let wanted = digests(home, ledger);
    let has = ledger.members.iter().filter(|(_, record)| !record.digest.is_empty());
    let mut has = has.filter_map(|(name, record)| Some((&record.digest, wanted.get(name)?)));
    has.any(|(has, wanted)| has != wanted)
}

/// Of the configurations that members would get now. None if files that the spec names cannot be read: `apply` says so.
fn digests(home: &Home, ledger: &Ledger) -> BTreeMap<MemberName, String> {
    let Ok(files) = brought::read(&ledger.spec, Timestamp::now()) else { return BTreeMap::new() };
    let brought = files.fingerprints(home, ledger);
    let wish = Wish { spec: &ledger.spec, brought: &brought, arch: arch() };
    wish.desire(ledger, "").members.into_iter().map(|(name, member)| (name, member.digest)).collect()
}

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::kinds::etcd::{Formation, FormingMember, OwnedUser};
    use quorate_core::model::MemberRecord;
    use quorate_core::spec::{ClusterSpec, Kind, generated_postgres};

    use super::super::{dcs, passwords};
    use super::*;

    struct Scene {
        home: Home,
        _directory: tempfile::TempDir,
    }

    impl Scene {
        /// A PostgreSQL cluster that was applied after its etcd cluster.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let scene = Scene { home: Home::at(directory.path().to_owned()), _directory: directory };
            let spec = |kind| {
                let specs = generated_postgres("shop", 3, 15, DEFAULT).unwrap().clusters;
                specs.into_iter().find(|spec: &ClusterSpec| spec.kind == kind).unwrap()
            };
            let mut etcd = Ledger::new(String::from("e"), spec(Kind::Etcd));
            dcs::register(&mut etcd, &spec(Kind::Postgres));
            etcd.etcd.auth.users.insert(String::from("patroni-shop"), Default::default());
            etcd.etcd.formation = formation(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
            scene.home.store("shop-etcd").write(&mut etcd).unwrap();
            let mut shop = Ledger::new(String::from("s"), spec(Kind::Postgres));
            let spec = shop.spec.clone();
            passwords::make(&mut shop, &spec, &Default::default());
            scene.home.store("shop").write(&mut shop).unwrap();
            scene.apply();
            scene
        }

        fn change(&self, cluster: &str, change: impl FnOnce(&mut Ledger)) {
            let store = self.home.store(cluster);
            let mut ledger = store.read().unwrap().unwrap();
            change(&mut ledger);
            store.write(&mut ledger).unwrap();
        }

        fn apply(&self) {
            let wanted = digests(&self.home, &self.home.store("shop").read().unwrap().unwrap());
            assert_eq!(wanted.len(), 3);
            let record = |digest| MemberRecord { digest, ..MemberRecord::default() };
            self.change("shop", |shop| {
                shop.members = wanted.into_iter().map(|(name, digest)| (name, record(digest))).collect();
            });
        }

        fn outdated(&self, before: &Ways) -> Vec<String> {
            outdated(&self.home, "shop-etcd", before)
        }
    }

    fn formation(addresses: &[&str]) -> Formation {
        let member = |(number, address): (usize, &&str)| {
            let peer_url = format!("https://{address}:2380");
            let known = FormingMember { machine_id: format!("m-{address}"), peer_url, learner: false };
            (MemberName::from(format!("etcd-{}", number + 1)), known)
        };
        let members = addresses.iter().enumerate().map(member).collect();
        Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members }
    }

    #[test]
    fn patroni_of_a_cluster_lacks_the_address_of_a_replaced_member_until_it_is_applied() {
        let scene = Scene::new();
        let before = ways(&scene.home, "shop-etcd");
        assert_eq!(before["shop"].hosts.len(), 3);
        assert_eq!(scene.outdated(&before), [""; 0]);
        let moved = formation(&["192.0.2.1", "192.0.2.9", "192.0.2.3"]);
        scene.change("shop-etcd", |etcd| etcd.etcd.formation = moved);
        assert_eq!(scene.outdated(&before), ["shop"]);
        let now = ways(&scene.home, "shop-etcd");
        assert_eq!(scene.outdated(&now), [""; 0], "a run that changes nothing of it has nothing to say");
        scene.apply();
        assert_eq!(scene.outdated(&before), [""; 0]);
    }

    #[test]
    fn a_login_that_was_not_seen_since_it_was_to_be_added_is_not_used() {
        let scene = Scene::new();
        assert_eq!(ways(&scene.home, "shop-etcd").len(), 1);
        let unconfirmed = OwnedUser { unconfirmed: true, ..OwnedUser::default() };
        scene.change("shop-etcd", |etcd| drop(etcd.etcd.auth.users.insert(String::from("patroni-shop"), unconfirmed)));
        assert_eq!(ways(&scene.home, "shop-etcd"), Ways::new(), "`apply` of it then begins with the etcd cluster");
    }

    #[test]
    fn a_cluster_that_is_off_or_was_never_configured_follows_by_itself() {
        let scene = Scene::new();
        let before = ways(&scene.home, "shop-etcd");
        scene.change("shop-etcd", |etcd| etcd.etcd.formation = formation(&["192.0.2.1"]));
        scene.change("shop", |shop| shop.power = Power::Off);
        assert_eq!(scene.outdated(&before), [""; 0]);
        scene.change("shop", |shop| shop.power = Power::On);
        assert_eq!(scene.outdated(&before), ["shop"]);
        scene.change("shop", |shop| shop.members.clear());
        assert_eq!(scene.outdated(&before), [""; 0]);
        scene.apply();
        scene.change("shop-etcd", |etcd| etcd.etcd.formation = formation(&["192.0.2.2"]));
        assert_eq!(scene.outdated(&before), ["shop"]);
        scene.change("shop", |shop| shop.members.values_mut().for_each(|record| record.digest.clear()));
        assert_eq!(scene.outdated(&before), [""; 0]);
    }
}
