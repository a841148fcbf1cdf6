//! Translates PostgreSQL's steps into orders for agents.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quorate_agent::api::{FactsRequest, Order, PostgresOrder};
use quorate_agent::client::{AgentClient, Look};
use quorate_core::kinds::postgres::desire::server_name;
use quorate_core::kinds::postgres::spec::Haproxy;
use quorate_core::kinds::postgres::{CatalogOp, Role};
use quorate_core::model::{DataSeen, Ledger, MemberName};
use quorate_core::planner::{Action, Precondition, Step};
use tokio::time::sleep;

use super::passwords;
use crate::kinds::proxies;

/// The order for a member's agent; none for steps of other kinds.
pub(crate) fn order(ledger: &Ledger, step: &Step) -> Option<Order> {
    let expects = match &step.expects {
        Precondition::Data(data) => data.clone(),
        Precondition::Nothing | Precondition::Membership(_) | Precondition::Replica => DataSeen::Empty,
    };
    let order = match &step.action {
        Action::InitializePostgres { stamp, .. } => {
            let settings = ledger.spec.postgres.iter().flat_map(|postgres| &postgres.parameters);
            let parameters = settings.map(|(name, value)| (name.clone(), value.0.clone())).collect();
            PostgresOrder::Initialize { stamp: stamp.clone(), parameters }
        }
        Action::StartPatroni { .. } => PostgresOrder::Start { expects, join: None },
        Action::JoinPostgres { stamp, .. } => PostgresOrder::Start { expects, join: Some(stamp.clone()) },
        Action::StopPatroni { .. } if step.expects == Precondition::Replica => PostgresOrder::StopReplica,
        Action::StopPatroni { .. } => PostgresOrder::Stop,
        Action::RestartPatroni { .. } => PostgresOrder::Restart,
        Action::RestartPostgres { .. } => PostgresOrder::RestartPostgres,
        Action::PrepareRepository { place, .. } => PostgresOrder::PrepareRepository { place: place.clone() },
        Action::RestoreBackup { stamp, target, .. } => {
            PostgresOrder::RestoreBackup { stamp: stamp.clone(), target: target.clone() }
        }
        Action::PutRestored { was, stamp, .. } => PostgresOrder::PutRestored { was: was.clone(), stamp: stamp.clone() },
        Action::RehearseUpgrade { id, .. } => PostgresOrder::RehearseUpgrade { id: id.clone() },
        Action::UpgradeData { stamp, .. } => PostgresOrder::UpgradeData { expects, stamp: stamp.clone() },
        Action::AnalyzePostgres { id, .. } => PostgresOrder::Analyze { id: id.clone() },
        Action::TakeBack { was, stamp, .. } => PostgresOrder::TakeBack { was: was.clone(), stamp: stamp.clone() },
        Action::DiscardReplaced { stamp, .. } => PostgresOrder::DiscardReplaced { stamp: stamp.clone() },
        Action::SetAside { stamp, .. } => PostgresOrder::SetAside { stamp: stamp.clone() },
        Action::WipePostgres { stamp, .. } => PostgresOrder::WipeData { stamp: stamp.clone() },
        Action::Switchover { to, .. } => PostgresOrder::Switchover {
            to: patroni_name(ledger, to),
            drain_ms: haproxy(ledger).map_or(0, |h| h.drain.0),
        },
        Action::LetTakeOver { end, .. } => PostgresOrder::LetTakeOver { end: *end },
        Action::ConfigurePatroni { config, .. } => PostgresOrder::SetConfig { config: config.clone() },
        Action::Catalog { op, .. } => {
            let verifier = match op {
                CatalogOp::SetUser { user } => {
                    let next = passwords::next_verifiers(ledger).remove(user).map(|(_, verifier)| verifier);
                    next.or_else(|| passwords::verifiers(ledger).remove(user))
                }
                CatalogOp::CreateDatabase { .. } | CatalogOp::SetOwner { .. } | CatalogOp::CreateExtension { .. } => {
                    None
                }
            };
            PostgresOrder::Catalog { op: op.clone(), verifier }
        }
        _ => return None,
    };
    Some(Order::Postgres(order))
}

fn haproxy(ledger: &Ledger) -> Option<&Haproxy> {
    ledger.spec.postgres.as_ref()?.haproxy.as_ref()
}

/// Longer than a switchover takes once no transaction is waited for. If the clients are not released by then, each agent releases them.
const SWITCHING: u64 = 30_000;

/// The machines whose HAProxy holds new clients during a switchover, and the orders for each agent before and after it. After a failed one,
/// clients are only released.
pub(crate) fn holding(
    ledger: &Ledger,
    from: &MemberName,
    to: &MemberName,
) -> Option<(Vec<MemberName>, Order, impl Fn(bool) -> Order)> {
    let haproxy = haproxy(ledger)?;
    let members = ledger.spec.members.iter().filter(|member| haproxy.runs_on(member.name.as_str()));
    let members = members.map(|member| member.name.as_str().into());
    let proxies = members.chain(proxies::machines(ledger)).collect();
    let (server, successor) = (server_name(from), server_name(to));
    let hold = PostgresOrder::HoldClients { server: server.clone(), for_ms: haproxy.drain.0 + SWITCHING };
    let release = move |succeeded: bool| {
        let to = succeeded.then(|| successor.clone());
        Order::Postgres(PostgresOrder::ReleaseClients { server: server.clone(), to })
    };
    Some((proxies, Order::Postgres(hold), release))
}

/// How long a new leader may take until it is writable.
const PROMOTION: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until this member is writable. Patroni calls a switchover done when another member has the lead, and that one is promoted afterwards:
/// until then it refuses every write.
pub(crate) async fn is_promoted(agent: &AgentClient, fence: u64) -> bool {
    let request = FactsRequest { fence: Some(fence), auth: false, reach: BTreeSet::new() };
    let deadline = Instant::now() + PROMOTION;
    loop {
        if let Ok(Look::Facts(facts)) = agent.look(&request).await
            && let Some(status) = facts.postgres.as_ref().and_then(|found| found.status.as_ref())
            && status.role == Role::Primary
        {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        sleep(PAUSE).await;
    }
}

/// Patroni's name of a member's machine.
fn patroni_name(ledger: &Ledger, member: &MemberName) -> MemberName {
    let incarnation = ledger.members.get(member).map_or(1, |record| record.incarnation);
    ledger.postgres.formation.patroni_name(member, incarnation).as_str().into()
}
