//! quorate's X.509: authorities, keys, signing requests and leaf certificates, the checks of user-provided ones, and the
//! proof of enrolment. It reads no file and no clock (`now` is an argument); only key generation, serial numbers and tokens
//! use the system's randomness. Private keys leave it only as [`Secret`] and never appear in an error.

mod authority;
mod certificate;
mod der;
mod digest;
mod enrolment;
mod error;
mod given;
mod inspect;
mod jwt;
mod key;
mod random;
mod scram;
mod signing;

pub use authority::{Authority, AuthoritySubject, LeafWish, request_key_sha256};
pub use certificate::list_to_pem;
pub use digest::Sha256;
pub use enrolment::{enrolment_proof, verify_enrolment_proof};
pub use error::{AuthorityLack, Error};
pub use given::{GivenLeafProblem, GivenPart, LeafNeed, Usage, check_given_client, check_given_leaf};
pub use inspect::{CertificateFacts, days_left, inspect, key_fits, subject_key_id, subject_key_ids};
pub use jwt::{JwtAlgorithm, is_pair, jwt_keypair};
pub use key::{KeyAlgorithm, KeyPair};
pub use quorate_core::Secret;
pub use random::{random_hex, random_token};
pub use scram::scram_verifier;
pub use signing::{SigningKey, is_signed_by};
