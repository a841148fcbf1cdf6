//! `quorate replace`: raises the member's incarnation in the ledger, and runs the same loop as `apply`. A replacement that is
//! under way is gone on with; one that could not be brought to its end is not begun.

use quorate_control::controller;
use quorate_control::observe::Sight;
use quorate_control::providers;
use quorate_core::model::{Formation, Ledger, MemberName, Observation, Power};
use quorate_core::planner::{Plan, UnsafeBecause, remember};

use super::{Context, agree, conclude, refuse_if_being_destroyed, refused, run_loop};
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
    let seen = Sight::new(providers::provider(&ledger, &context.home)).glance(&ledger, None).await?;
    let wish = if is_under_way(&ledger, &seen, &member) {
        output::talk(&format!("{member} is being replaced already; going on with that\n"));
        Wish::GoOn
    } else {
        Wish::Replace { member: &member, has: incarnation(&ledger, &member) }
    };
    let plan = plan(context, &cluster, wish).await?;
    if matches!(wish, Wish::Replace { .. }) {
        let anyway = self::plan(context, &cluster, Wish::GoOn).await?;
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
    Replace { member: &'a MemberName, has: u64 },
    GoOn,
}

impl Wish<'_> {
    /// Raises the incarnation, unless somebody else did so since it was shown.
    fn write(self, ledger: &mut Ledger) {
        ledger.downtime = None;
        ledger.without_grace = None;
        if let Wish::Replace { member, has } = self
            && incarnation(ledger, member) == has
        {
            remember::raise_incarnation(ledger, member);
        }
    }
}

async fn plan(context: &Context, cluster: &Cluster, wish: Wish<'_>) -> Result<Plan, Error> {
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

/// Whether the former machine is still there, or the new one does not vote yet.
fn is_under_way(ledger: &Ledger, seen: &Observation, member: &MemberName) -> bool {
    let former = |name: &MemberName| name.is_former() && name.seat() == member.as_str();
    let listed = ledger.formation.members().is_some_and(|members| members.keys().any(former));
    let machines = seen.machines.get().is_some_and(|machines| machines.keys().any(former));
    let learns = seen.facts(member).and_then(|f| f.etcd.status.as_ref()).is_some_and(|status| status.is_learner);
    listed || machines || learns || !ledger.formation.has_member(member)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use quorate_control::Home;
    use quorate_core::model::{FormingMember, MachineSeen, Seen};
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
                MachineSeen { cluster_id, incarnation: 1, power: Power::On, headless: false, address },
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
        let wish = Wish::Replace { member: &member, has: 1 };
        wish.write(&mut ledger);
        wish.write(&mut ledger);
        assert_eq!(incarnation(&ledger, &member), 2);
        Wish::GoOn.write(&mut ledger);
        assert_eq!(incarnation(&ledger, &member), 2);
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
