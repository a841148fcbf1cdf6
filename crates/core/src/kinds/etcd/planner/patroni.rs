//! The certificates with which Patroni of PostgreSQL clusters connects to this etcd, besides its password. Those that are missing are
//! secrets like the others; here they are renewed.

use crate::model::SecretKind;
use crate::planner::certificates::{is_due, why_due};
use crate::planner::{Action, Decision, View};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let (wish, now) = (&view.desired.certificates, view.seen.now);
    let mut certificates = view.desired.etcd.patroni_certificates.iter();
    let due = certificates.find(|(_, valid)| is_due(valid, wish.client_authority_ends, wish.renew_before, now));
    if let Some((cluster, valid)) = due {
        let why = format!("that of Patroni of {cluster} {}", why_due(valid, wish.renew_before, now));
        decision.step(Action::MakeSecrets { kinds: [SecretKind::PatroniCertificates].into() }, why);
    }
}
