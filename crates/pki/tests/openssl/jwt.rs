//! The keys for etcd's JSON web tokens, in the forms that etcd 3.4's Go library requires.

use quorate_pki::{JwtAlgorithm, jwt_keypair};

use crate::support::OpenSsl;

fn check(algorithm: JwtAlgorithm, label: &str, sign_method: &str, kind: &str) {
    let openssl = OpenSsl::new();
    let (private, public) = jwt_keypair(algorithm).unwrap();
    assert!(private.expose().starts_with(&format!("-----BEGIN {label}-----\n")));
    assert!(public.starts_with("-----BEGIN PUBLIC KEY-----\n"));
    openssl.write("private.pem", private.expose()).write("public.pem", &public);
    assert_eq!(openssl.run("pkey -in private.pem -pubout"), public);
    let text = openssl.run("pkey -pubin -in public.pem -noout -text");
    assert!(text.contains(kind), "{text}");
    assert_eq!(algorithm.sign_method(), sign_method);
}

#[test]
fn es256_is_a_sec1_key_that_names_its_curve() {
    check(JwtAlgorithm::Es256, "EC PRIVATE KEY", "ES256", "NIST CURVE: P-256");
    let openssl = OpenSsl::new();
    openssl.write("key.pem", jwt_keypair(JwtAlgorithm::Es256).unwrap().0.expose());
    assert!(openssl.run("asn1parse -in key.pem").contains("prime256v1"));
}

#[test]
fn rs256_is_a_pkcs8_key_of_2048_bits() {
    check(JwtAlgorithm::Rs256, "PRIVATE KEY", "RS256", "(2048 bit)");
}
