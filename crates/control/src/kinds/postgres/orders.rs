//! From steps that concern PostgreSQL to orders for agents.

use quorate_agent::api::{Order, PostgresOrder};
use quorate_core::kinds::postgres::CatalogOp;
use quorate_core::model::{DataSeen, Ledger};
use quorate_core::planner::{Action, Precondition, Step};

use super::passwords;

/// What the agent of a member is told to do; none for steps of other kinds.
pub(crate) fn order(ledger: &Ledger, step: &Step) -> Option<Order> {
    let expects = match &step.expects {
        Precondition::Data(data) => data.clone(),
        Precondition::Nothing | Precondition::Membership(_) => DataSeen::Empty,
    };
    let order = match &step.action {
        Action::InitializePostgres { stamp, .. } => {
            let settings = ledger.spec.postgres.iter().flat_map(|postgres| &postgres.parameters);
            let parameters = settings.map(|(name, value)| (name.clone(), value.0.clone())).collect();
            PostgresOrder::Initialize { stamp: stamp.clone(), parameters }
        }
        Action::StartPatroni { .. } => PostgresOrder::Start { expects, join: None },
        Action::JoinPostgres { stamp, .. } => PostgresOrder::Start { expects, join: Some(stamp.clone()) },
        Action::StopPatroni { .. } => PostgresOrder::Stop,
        Action::RestartPatroni { .. } => PostgresOrder::Restart,
        Action::RestartPostgres { .. } => PostgresOrder::RestartPostgres,
        Action::PrepareRepository { place, .. } => PostgresOrder::PrepareRepository { place: place.clone() },
        Action::RestoreBackup { stamp, target, .. } => {
            PostgresOrder::RestoreBackup { stamp: stamp.clone(), target: target.clone() }
        }
        Action::PutRestored { was, stamp, .. } => PostgresOrder::PutRestored { was: was.clone(), stamp: stamp.clone() },
        Action::SetAside { stamp, .. } => PostgresOrder::SetAside { stamp: stamp.clone() },
        Action::WipePostgres { stamp, .. } => PostgresOrder::WipeData { stamp: stamp.clone() },
        Action::Switchover { to, .. } => PostgresOrder::Switchover { to: patroni_name(ledger, to) },
        Action::ConfigurePatroni { config, .. } => PostgresOrder::SetConfig { config: config.clone() },
        Action::Catalog { op, .. } => {
            let verifier = match op {
                CatalogOp::SetUser { user } => passwords::verifiers(ledger).remove(user),
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

/// What Patroni calls the machine of a member.
fn patroni_name(ledger: &Ledger, member: &quorate_core::model::MemberName) -> quorate_core::model::MemberName {
    let incarnation = ledger.members.get(member).map_or(1, |record| record.incarnation);
    quorate_core::kinds::postgres::desire::patroni_name(member.as_str(), incarnation).as_str().into()
}
