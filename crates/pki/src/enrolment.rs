//! The proof in an enrolment: an HMAC under the enrolment token over the controller's nonce, the machine's public key and
//! its id. It shows that the owner of the key has the token, without sending the token.

use ring::hmac;

use crate::Secret;

const CONTEXT: &[u8] = b"quorate enrolment 1";

pub fn enrolment_proof(token: &Secret, nonce: &[u8], public_key_der: &[u8], machine_id: &str) -> [u8; 32] {
    let tag = hmac::sign(&key(token), &message(nonce, public_key_der, machine_id));
    tag.as_ref().try_into().expect("an HMAC-SHA256 has 32 bytes")
}

/// Compares in constant time, so that a proof cannot be guessed byte by byte.
pub fn verify_enrolment_proof(
    token: &Secret,
    nonce: &[u8],
    public_key_der: &[u8],
    machine_id: &str,
    proof: &[u8],
) -> bool {
    hmac::verify(&key(token), &message(nonce, public_key_der, machine_id), proof).is_ok()
}

fn key(token: &Secret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.expose().as_bytes())
}

/// Each field follows its length, so that no two triples give the same message.
fn message(nonce: &[u8], public_key_der: &[u8], machine_id: &str) -> Vec<u8> {
    let mut message = Vec::new();
    for field in [CONTEXT, nonce, public_key_der, machine_id.as_bytes()] {
        message.extend((field.len() as u64).to_be_bytes());
        message.extend(field);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_exactly_what_it_was_made_for() {
        let token = Secret::new("token");
        let proof = enrolment_proof(&token, b"nonce", b"key", "machine");
        assert!(verify_enrolment_proof(&token, b"nonce", b"key", "machine", &proof));
        assert!(!verify_enrolment_proof(&Secret::new("other"), b"nonce", b"key", "machine", &proof));
        assert!(!verify_enrolment_proof(&token, b"other", b"key", "machine", &proof));
        assert!(!verify_enrolment_proof(&token, b"nonce", b"other", "machine", &proof));
        assert!(!verify_enrolment_proof(&token, b"nonce", b"key", "other", &proof));
        assert!(!verify_enrolment_proof(&token, b"nonce", b"key", "machine", &proof[..31]));
        assert!(!verify_enrolment_proof(&token, b"nonce", b"key", "machine", b""));
    }

    #[test]
    fn bytes_moved_from_one_field_to_the_next_change_the_proof() {
        let token = Secret::new("token");
        let proof = enrolment_proof(&token, b"ab", b"c", "d");
        assert_ne!(proof, enrolment_proof(&token, b"a", b"bc", "d"));
        assert_ne!(proof, enrolment_proof(&token, b"ab", b"", "cd"));
        assert_ne!(proof, enrolment_proof(&token, b"abc", b"", "d"));
    }
}
