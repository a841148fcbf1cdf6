//! A former primary that has commits which no other member has. Patroni rewinds it; if that cannot work, it gets a new machine.

use std::fs;
use std::path::PathBuf;

use super::{Shop, Writer, assert_nothing_lost, psql};
use crate::common::{eventually, signal};

impl Shop {
    fn kill_machine(&self, member: &str) {
        let root = format!("/machines/shop/{member}/");
        for (pid, _) in self.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root)) {
            signal(pid, "KILL");
        }
    }

    fn root(&self, member: &str) -> PathBuf {
        self.sandbox.home().join(format!("machines/shop/{member}/root"))
    }

    /// The primary commits a number alone, and its machine dies before any standby has it. Another member becomes the primary.
    fn diverge(&self, number: i64) -> String {
        let former = self.primary();
        self.member_with("sync standby");
        let senders = psql(&self.env(&[]), "select pid from pg_stat_replication").ok().stdout;
        let senders: Vec<u32> = senders.lines().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(senders.len(), 2);
        senders.iter().for_each(|sender| signal(*sender, "STOP"));
        let mut alone = self.env(&["--user", "shop"]);
        alone.insert(String::from("PGOPTIONS"), String::from("-c synchronous_commit=local"));
        psql(&alone, &format!("insert into written values ({number})")).ok();
        self.kill_machine(&former);
        senders.iter().for_each(|sender| signal(*sender, "KILL"));
        eventually("another member is the primary", 60, || {
            let now = self.primary();
            !now.is_empty() && now != former
        });
        former
    }

    /// Every member answers, and none has that number.
    fn assert_nobody_has(&self, number: i64) {
        let superuser = self.env(&[]);
        for host in superuser["PGHOST"].split(',') {
            let mut one = superuser.clone();
            one.extend(
                [("PGHOST", host), ("PGTARGETSESSIONATTRS", "any"), ("PGDATABASE", "shop")]
                    .map(|(k, v)| (k.to_owned(), v.to_owned())),
            );
            let found = psql(&one, &format!("select count(*) from written where n = {number}")).ok().stdout;
            assert_eq!(found, "0\n", "{host}");
        }
    }
}

#[test]
fn a_former_primary_is_rewound_or_gets_a_new_machine() {
    let shop = Shop::up();
    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());

    let former = shop.diverge(-1);
    shop.apply().ok();
    assert_eq!(shop.status()["verdict"], "healthy");
    let log = fs::read_to_string(shop.root(&former).join("var/log/patroni.log")).expect("Patroni's log");
    assert!(log.contains("running pg_rewind"), "{log}");
    shop.assert_nobody_has(-1);

    // Without its log it can neither recover nor be rewound.
    let former = shop.diverge(-2);
    let log = shop.root(&former).join("var/lib/postgresql/data/pg_wal");
    for entry in fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        fs::remove_file(entry).unwrap();
    }
    let stuck = shop.sandbox.quorate(&["apply", "--yes", "shop.yaml"]).fails().text();
    assert!(stuck.contains(&format!("still waiting for PostgreSQL on {former} to be healthy")), "{stuck}");
    assert!(stuck.contains("`quorate logs shop MEMBER`"), "{stuck}");
    let status = shop.status();
    let unhealthy = status["members"].as_array().unwrap().iter().filter(|member| member["health"] != "healthy");
    assert_eq!(unhealthy.map(|member| member["member"].as_str().unwrap()).collect::<Vec<_>>(), [&former]);
    let log = shop.sandbox.quorate(&["logs", "shop", &former, "--lines", "1000"]).ok().stdout;
    assert!(log.contains(&format!("I am {former}")), "{log}");
    let replaced = shop.sandbox.quorate(&["replace", "shop", &former, "--yes"]).ok().text();
    assert!(replaced.contains(&format!("clone the data to {former} and start it as a replica")), "{replaced}");
    assert_eq!(shop.status()["verdict"], "healthy");
    shop.assert_nobody_has(-2);
    assert_nothing_lost(&user, &writer.stop());
}
