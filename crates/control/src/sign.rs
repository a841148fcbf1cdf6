//! Certificates that a CA of the ledger signs.

use jiff::Timestamp;
use quorate_core::model::{AuthorityRecord, Desired};
use quorate_pki::{Authority, LeafWish};

use crate::run::error::ControlError;

/// A certificate for a client that logs in as `user`.
pub(crate) fn client_wish(user: &str, desired: &Desired) -> LeafWish {
    LeafWish {
        common_name: user.to_owned(),
        organization: desired.certificates.organization.clone(),
        dns: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: true,
        validity: desired.certificates.validity,
    }
}

pub(crate) fn sign(
    authority: Option<&AuthorityRecord>,
    request: &str,
    wish: &LeafWish,
) -> Result<String, ControlError> {
    let unable = || ControlError::Enrolment(String::from("the ledger holds no CA key to sign with"));
    let authority = authority.ok_or_else(unable)?;
    let key = authority.key.as_ref().ok_or_else(unable)?;
    let now = Timestamp::now();
    Ok(Authority::load(&authority.certificate, key, now)?.sign(request, wish, now)?)
}
