//! PostgreSQL and the etcd that Patroni keeps its state in, on servers with data volumes: replaced, deleted and changed while a client
//! writes. No commit that was confirmed is lost, and no data is cloned whose volume is still there.

use std::collections::BTreeSet;

use super::bodies::{Bodies, address, provider};
use super::{Servers, flavors, names, openstack};
use crate::common::{OLDEST, eventually};
use crate::ground::{chapter, incarnation};
use crate::shop::{self, MEMBERS, psql};
use crate::writer::while_storing;

const NAME: &str = "lab-shop";
const ETCD: &str = "lab-shop-dcs";
/// In the data directory: a file that a clone would not have.
const MARK: &str = "postgresql/data/lab-mark";

fn spec(flavor: &str) -> String {
    let member = |(at, name): (usize, &&str)| format!("      - {{name: {name}, address: {}}}\n", address(at + 2));
    let members: String = MEMBERS.iter().enumerate().map(member).collect();
    format!(
        "quorate: 1
clusters:
  - name: {ETCD}
{}    members: [{{name: e-1, address: {}}}]
    etcd: {{version: {OLDEST}, client_auth: password, grpc_gateway: true}}
  - name: {NAME}
    replace_after: 10s
{}        data_size: 1GiB
    members:
{members}    postgres:
      version: 15
      dcs: {{cluster: {ETCD}}}
      parameters: {{max_connections: 50}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop}}]
      patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}
",
        provider("record"),
        address(1),
        provider(flavor)
    )
}

struct Shop {
    servers: Servers,
    bodies: Bodies,
    /// Of the data volumes.
    volumes: BTreeSet<String>,
}

impl Shop {
    #[track_caller]
    fn quorate(&self, arguments: &[&str]) {
        self.servers.sandbox.quorate(arguments).ok();
        shop::assert_healthy(&self.servers.sandbox, NAME);
    }

    #[track_caller]
    fn apply(&self) {
        self.quorate(&["apply", "--yes", "cluster.yaml"]);
    }

    fn primary(&self) -> String {
        shop::primary(&self.servers.sandbox, NAME)
    }

    fn incarnation(&self, member: &str) -> u64 {
        incarnation(&self.servers.sandbox.ledger(NAME), member)
    }

    fn disk(&self, member: &str) -> std::path::PathBuf {
        let at = MEMBERS.iter().position(|name| *name == member).expect("a member");
        self.bodies.at(at + 2).disk()
    }

    /// The member has another server, the same volume, and data that was not cloned.
    #[track_caller]
    fn assert_kept(&self, member: &str, incarnation: u64) {
        assert_eq!((self.incarnation(member), names("volume")), (incarnation, self.volumes.clone()), "{member}");
        assert!(self.disk(member).join(MARK).exists(), "the data of {member} was cloned");
    }
}

#[test]
#[ignore = "needs OpenStack: `cargo xtask lab openstack` runs it"]
fn three_members_of_postgresql_keep_their_data_while_their_servers_change_under_a_writer() {
    let bodies = Bodies::new(4, OLDEST);
    let servers = Servers::new(NAME, &spec("record"));
    let mut shop = Shop { servers, bodies, volumes: BTreeSet::new() };
    chapter("one server of etcd and three of PostgreSQL, from apply to healthy", || shop.apply());
    shop.volumes = names("volume");
    assert_eq!(shop.volumes.len(), 3, "{:?}", shop.volumes);
    for member in MEMBERS {
        std::fs::write(shop.disk(member).join(MARK), "").expect("a mark");
    }
    let user = shop::env(&shop.servers.sandbox, NAME, &["--user", "shop"]);
    psql(&user, "create table written (key text primary key)").ok();
    let store = |key: &str| psql(&user, &format!("insert into written values ('{key}')")).code == Some(0);
    let ((), written) = while_storing(store, || life(&shop));
    let there = psql(&user, "select key from written").ok().stdout;
    written.assert_all_in(&there.lines().collect());
    chapter("everything is destroyed, and nothing is left", || {
        for name in [NAME, ETCD] {
            shop.servers.sandbox.quorate(&["destroy", "--yes", "--without-backup", name]).ok();
        }
        assert_eq!((names("server"), names("volume")), (BTreeSet::new(), BTreeSet::new()), "left behind");
    });
}

fn life(shop: &Shop) {
    chapter("a replica gets another server, and keeps its data", || {
        let replica = shop::replica(&shop.servers.sandbox, NAME);
        shop.quorate(&["replace", "--yes", NAME, &replica]);
        shop.assert_kept(&replica, 2);
    });
    chapter(
        "the server of the primary is deleted behind our back: Patroni fails over, and the next one gets its data",
        || {
            let primary = shop.primary();
            let next = shop.incarnation(&primary) + 1;
            let server = names("server").into_iter().find(|name| name.contains(&format!("{NAME}-{primary}")));
            openstack(&["server", "delete", "--wait", &server.expect("its server")]).ok();
            eventually("another primary", 60, || !["", primary.as_str()].contains(&shop.primary().as_str()));
            shop.apply();
            shop.assert_kept(&primary, next);
        },
    );
    chapter("another flavor for all: an edit, and apply", || {
        let next = MEMBERS.map(|member| shop.incarnation(member) + 1);
        shop.servers.want(&spec("record-2"));
        shop.apply();
        for (member, next) in MEMBERS.into_iter().zip(next) {
            shop.assert_kept(member, next);
        }
        let larger = flavors().into_iter().filter(|flavor| flavor == "record-2").count();
        assert_eq!(larger, 3, "etcd has its own");
    });
}
