//! `quorate replace`: writes into the ledger that the member gets another machine, with its data where that can stay, and runs the
//! same loop as `apply`. A replacement that is under way is gone on with; one that could not be brought to its end is not begun.

use quorate_control::controller;
use quorate_control::observe::Sight;
use quorate_core::model::{Consent, Formation, Ledger, MemberName, Observation, Power, kept_data};
use quorate_core::planner::{Plan, UnsafeBecause, remember};

use super::{Context, agree, conclude, consent, refuse_if_being_destroyed, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;
use crate::output::plan::Detail;

pub async fn run(context: &Context, options: cli::Replace) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    refuse_if_being_destroyed(context, Some(&ledger))?;
    let member = member(&ledger, &options.member)?;
    refuse_unless_it_runs(context, &ledger)?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let seen = Sight::new(context.home.provider(&ledger)).glance(&ledger, None).await?;
    let wish = if is_under_way(&ledger, &seen, &member) {
        output::talk(&format!("{member} is being replaced already; going on with that\n"));
        Wish::GoOn
    } else {
        let has = incarnation(&ledger, &member);
        match keeps_data(&ledger, &seen, &member) && !options.new_data {
            true => Wish::Renew { member: &member, has },
            false => Wish::Replace { member: &member, has },
        }
    };
    let wish = if options.allow_downtime {
        let without = plan(context, &cluster, &Asked { wish, downtime: None }).await?;
        let shown: Vec<String> = without.end.blocked.iter().map(ToString::to_string).collect();
        Asked { wish, downtime: Some(consent(shown.join("; "))) }
    } else {
        Asked { wish, downtime: None }
    };
    let plan = plan(context, &cluster, &wish).await?;
    if !matches!(wish.wish, Wish::GoOn) {
        let anyway = self::plan(context, &cluster, &Asked { wish: Wish::GoOn, downtime: None }).await?;
        let new: Vec<UnsafeBecause> = new_refusals(&anyway, &plan);
        if !new.is_empty() {
            return Ok(refused(&new));
        }
    }
    output::print(&output::plan::text(&options.name, &plan, Detail::Reasons))?;
    agree(options.yes, plan.steps.len())?;
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "replace", |ledger| wish.write(ledger)).await?;
    conclude(context, outcome)
}

#[derive(Clone, Copy)]
enum Wish<'a> {
    /// The seat is filled anew.
    Replace {
        member: &'a MemberName,
        has: u64,
    },
    /// The data stays, and with it the seat.
    Renew {
        member: &'a MemberName,
        has: u64,
    },
    GoOn,
}

struct Asked<'a> {
    wish: Wish<'a>,
    downtime: Option<Consent>,
}

impl Asked<'_> {
    /// Asks for the next incarnation, unless somebody else did so since it was shown.
    fn write(&self, ledger: &mut Ledger) {
        ledger.downtime.clone_from(&self.downtime);
        ledger.without_grace = None;
        match self.wish {
            Wish::Replace { member, has } if incarnation(ledger, member) == has => {
                remember::raise_incarnation(ledger, member);
            }
            Wish::Renew { member, has } => drop(remember::renew(ledger, member, has + 1)),
            Wish::Replace { .. } | Wish::GoOn => {}
        }
    }
}

/// Whether the member's data outlives the machine that it has, or had.
fn keeps_data(ledger: &Ledger, seen: &Observation, member: &MemberName) -> bool {
    let mut members = ledger.spec.members.iter();
    let wanted = members.find(|m| m.name.as_str() == member.as_str()).and_then(|m| kept_data(&ledger.spec, m));
    let machine = seen.machines.get().and_then(|machines| machines.get(member));
    wanted.is_some() && machine.is_none_or(|machine| machine.data == wanted)
}

async fn plan(context: &Context, cluster: &Cluster, wish: &Asked<'_>) -> Result<Plan, Error> {
    let change = |ledger: &mut Ledger| wish.write(ledger);
    Ok(controller::plan(&context.home, &cluster.spec, &cluster.brought, change).await?)
}

/// What is refused only because of the replacement.
fn new_refusals(before: &Plan, with: &Plan) -> Vec<UnsafeBecause> {
    with.end.blocked.iter().filter(|because| !before.end.blocked.contains(because)).cloned().collect()
}

fn member(ledger: &Ledger, name: &str) -> Result<MemberName, Error> {
    let members: Vec<String> = ledger.spec.members.iter().map(|m| m.name.to_string()).collect();
    match members.iter().any(|member| member == name) {
        true => Ok(name.into()),
        false => {
            let cluster = ledger.spec.name.to_string();
            Err(Error::UnknownMember { cluster, member: name.to_owned(), members })
        }
    }
}

fn refuse_unless_it_runs(context: &Context, ledger: &Ledger) -> Result<(), Error> {
    let name = &ledger.spec.name;
    let refuse = |what: &str, verb: &str, why: &str| {
        let way = context.command(&format!("{verb} {name}"));
        Err(Error::refused(
            format!("cluster {name} {what}, so that no member of it can be replaced"),
            format!("`{way}` {why}"),
        ))
    };
    if ledger.power == Power::Off {
        return refuse("is off", "start", "switches it on");
    }
    match &ledger.formation {
        Formation::Formed { .. } => Ok(()),
        Formation::Recovering { .. } => refuse("is being recovered", "recover", "goes on with that"),
        Formation::Restoring { .. } => refuse("is being restored", "apply", "goes on with that"),
        _ => refuse("is not formed yet", "apply", "forms it"),
    }
}

fn incarnation(ledger: &Ledger, member: &MemberName) -> u64 {
    ledger.members.get(member).map_or(1, |record| record.incarnation.max(1))
}

/// Whether the former machine is still there, or the new one does not vote yet, or has not shown its data.
fn is_under_way(ledger: &Ledger, seen: &Observation, member: &MemberName) -> bool {
    let recorded = ledger.members.get(member).is_some_and(|record| record.renewing.is_some());
    let renewed = recorded && keeps_data(ledger, seen, member);
    let former = |name: &MemberName| name.is_former() && name.seat() == member.as_str();
    let listed = ledger.formation.members().is_some_and(|members| members.keys().any(former));
    let machines = seen.machines.get().is_some_and(|machines| machines.keys().any(former));
    let learns = seen.facts(member).and_then(|f| f.etcd.status.as_ref()).is_some_and(|status| status.is_learner);
    renewed || listed || machines || learns || !ledger.formation.has_member(member)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use quorate_control::Home;
    use quorate_core::model::{FormingMember, LOCAL_DATA, MachineSeen, Seen};
    use quorate_core::spec::{ClientAuth, generated};
    use quorate_core::versions::DEFAULT;

    use super::*;

    fn ledger() -> Ledger {
        let mut spec = generated("demo", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        let known = || FormingMember { machine_id: String::new(), peer_url: String::new(), learner: false };
        let members = ["etcd-1", "etcd-2", "etcd-3"].map(|name| (name.into(), known()));
        ledger.formation = Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members: members.into() };
        ledger
    }

    fn seen(machines: &[&str]) -> Observation {
        let now = Timestamp::UNIX_EPOCH;
        let machine = |name: &&str| {
            let address = "127.0.0.1".parse().unwrap();
            let cluster_id = String::from("c");
            (
                MemberName::from(*name),
                MachineSeen {
                    cluster_id,
                    incarnation: 1,
                    power: Power::On,
                    headless: false,
                    outdated: false,
                    address,
                    build: None,
                    data: Some(LOCAL_DATA.to_owned()),
                },
            )
        };
        Observation { now, machines: Seen::At(now, machines.iter().map(machine).collect()), agents: BTreeMap::new() }
    }

    #[test]
    fn a_replacement_is_under_way_until_the_former_machine_is_gone_and_the_new_one_votes() {
        let member = MemberName::from("etcd-2");
        let mut ledger = ledger();
        assert!(!is_under_way(&ledger, &seen(&["etcd-2"]), &member));
        assert!(is_under_way(&ledger, &seen(&["etcd-2", "etcd-2#1"]), &member));
        assert!(!is_under_way(&ledger, &seen(&["etcd-2", "etcd-1#1"]), &member));
        remember::raise_incarnation(&mut ledger, &member);
        assert!(is_under_way(&ledger, &seen(&[]), &member));
        let Formation::Formed { members, .. } = &mut ledger.formation else { unreachable!() };
        members.remove(&member.former(1));
        assert!(is_under_way(&ledger, &seen(&["etcd-2"]), &member));
    }

    #[test]
    fn an_incarnation_is_raised_once_whoever_else_asked_meanwhile() {
        let (mut ledger, member) = (ledger(), MemberName::from("etcd-2"));
        let asked = |wish| Asked { wish, downtime: None };
        let replace = asked(Wish::Replace { member: &member, has: 1 });
        replace.write(&mut ledger);
        replace.write(&mut ledger);
        assert_eq!(incarnation(&ledger, &member), 2);
        asked(Wish::GoOn).write(&mut ledger);
        asked(Wish::Renew { member: &member, has: 1 }).write(&mut ledger);
        assert_eq!((incarnation(&ledger, &member), ledger.members[&member].renewing), (2, None));
        asked(Wish::Renew { member: &member, has: 2 }).write(&mut ledger);
        assert_eq!((incarnation(&ledger, &member), ledger.members[&member].renewing), (2, Some(3)));
    }

    #[test]
    fn data_stays_where_the_spec_says_so_and_the_machine_has_it_apart() {
        let (mut ledger, member) = (ledger(), MemberName::from("etcd-2"));
        assert!(!keeps_data(&ledger, &seen(&["etcd-2"]), &member));
        remember::renew(&mut ledger, &member, 2);
        assert!(!is_under_way(&ledger, &seen(&["etcd-2"]), &member), "it cannot stay any more");
        ledger.spec.keep_data = true;
        assert!(is_under_way(&ledger, &seen(&["etcd-2"]), &member));
        assert!(keeps_data(&ledger, &seen(&["etcd-2"]), &member) && keeps_data(&ledger, &seen(&[]), &member));
        let mut elsewhere = seen(&["etcd-2"]);
        let Seen::At(_, machines) = &mut elsewhere.machines else { unreachable!() };
        machines.get_mut(&member).unwrap().data = None;
        assert!(!keeps_data(&ledger, &elsewhere, &member));
    }

    #[test]
    fn who_is_no_member_and_what_does_not_run_is_refused() {
        let context = Context::new(Home::new("/h"), false);
        let mut ledger = ledger();
        assert!(member(&ledger, "etcd-1").is_ok());
        let told = member(&ledger, "etcd-9").unwrap_err().render(None);
        assert!(told.contains("no member `etcd-9`") && told.contains("etcd-1, etcd-2, etcd-3"), "{told}");
        assert!(refuse_unless_it_runs(&context, &ledger).is_ok());
        ledger.power = Power::Off;
        let told = refuse_unless_it_runs(&context, &ledger).unwrap_err().render(None);
        assert!(told.contains("is off") && told.contains("`quorate start demo`"), "{told}");
        ledger.power = Power::On;
        ledger.formation = Formation::Unformed;
        assert!(refuse_unless_it_runs(&context, &ledger).is_err());
    }
}
