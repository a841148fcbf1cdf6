//! PostgreSQL's password verifiers: enough to check a password, not enough to log in with (RFC 5802, RFC 7677).

use std::num::NonZeroU32;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use quorate_core::Secret;
use ring::{digest, hmac, pbkdf2};

/// As PostgreSQL does it by default.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).expect("not zero");

/// The verifier of a password. The salt follows from password, user and cluster, so the same password always gives the same verifier:
/// otherwise nobody could tell whether PostgreSQL has it already. Nobody else has the same salt.
pub fn scram_verifier(cluster_id: &str, user: &str, password: &Secret) -> Secret {
    let key = hmac::Key::new(hmac::HMAC_SHA256, password.expose().as_bytes());
    let salt = &hmac::sign(&key, format!("salt of {user} in {cluster_id}").as_bytes()).as_ref()[..16].to_vec();
    let mut salted = [0; digest::SHA256_OUTPUT_LEN];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, salt, password.expose().as_bytes(), &mut salted);
    let salted = hmac::Key::new(hmac::HMAC_SHA256, &salted);
    let client_key = hmac::sign(&salted, b"Client Key");
    let stored_key = digest::digest(&digest::SHA256, client_key.as_ref());
    let server_key = hmac::sign(&salted, b"Server Key");
    Secret::new(format!(
        "SCRAM-SHA-256${ITERATIONS}:{}${}:{}",
        BASE64_STANDARD.encode(salt),
        BASE64_STANDARD.encode(stored_key),
        BASE64_STANDARD.encode(server_key)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_is_stable_and_differs_between_users_clusters_and_passwords() {
        let verifier = |cluster: &str, user: &str, password: &str| {
            scram_verifier(cluster, user, &Secret::new(password)).expose().to_owned()
        };
        let own = verifier("c", "shop", "secret");
        assert!(own.starts_with("SCRAM-SHA-256$4096:") && own == verifier("c", "shop", "secret"));
        for other in [verifier("d", "shop", "secret"), verifier("c", "shoq", "secret"), verifier("c", "shop", "secreT")]
        {
            assert_ne!(own, other);
        }
    }
}
