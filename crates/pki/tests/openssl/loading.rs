//! User-provided authorities: each error with its facts, and which parts of a chain are kept.

use jiff::Timestamp;
use quorate_pki::{Authority, AuthorityLack, Error, KeyAlgorithm, Secret, inspect, subject_key_id};

use crate::support::{DAY, OpenSsl, authority, now, p256, wish};

const CA: &str = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign";

/// A self-signed certificate `NAME.pem` with its key `NAME.key`, made by openssl.
fn self_signed(openssl: &OpenSsl, name: &str, extensions: &str) {
    openssl.write("empty.cnf", "[req]\ndistinguished_name=dn\n[dn]\n");
    openssl.run(&format!(
        "req -config empty.cnf -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
         -keyout {name}.key -out {name}.pem -subj /CN={name} {extensions}"
    ));
}

/// An intermediate CA `NAME.pem` with its key `NAME.key`, signed by `above`.
fn intermediate(openssl: &OpenSsl, name: &str, subject: &str, above: &str) {
    openssl.write(
        "ca.ext",
        "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n",
    );
    openssl.run(&format!(
        "req -config empty.cnf -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key \
         -out {name}.csr -subj {subject}"
    ));
    openssl.run(&format!(
        "x509 -req -in {name}.csr -CA {above}.pem -CAkey {above}.key -CAcreateserial -days 20 -extfile ca.ext -out {name}.pem"
    ));
}

fn load(openssl: &OpenSsl, name: &str, now: Timestamp) -> Result<Authority, Error> {
    Authority::load(&openssl.read(&format!("{name}.pem")), &openssl.secret(&format!("{name}.key")), now)
}

#[test]
fn a_ca_made_by_openssl_signs() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "corp", CA);
    let authority = load(&openssl, "corp", now()).unwrap();
    openssl.write("leaf.pem", &authority.sign(&p256().csr("x").unwrap(), &wish("etcd-1"), now()).unwrap());
    openssl.run("verify -purpose sslserver -CAfile corp.pem leaf.pem");
    assert_eq!(openssl.read("leaf.pem").matches("BEGIN CERTIFICATE").count(), 1);
    assert_eq!(authority.not_after(), inspect(&openssl.read("corp.pem")).unwrap().not_after);
}

#[test]
fn leaves_name_the_key_of_a_ca_that_has_no_identifier() {
    let openssl = OpenSsl::new();
    self_signed(
        &openssl,
        "old",
        &format!("{CA} -addext subjectKeyIdentifier=none -addext authorityKeyIdentifier=none"),
    );
    assert!(!openssl.run("x509 -in old.pem -noout -text").contains("Subject Key Identifier"));
    let authority = load(&openssl, "old", now()).unwrap();
    let leaf = authority.sign(&p256().csr("x").unwrap(), &wish("etcd-1"), now()).unwrap();
    assert_eq!(inspect(&leaf).unwrap().authority_key_id, subject_key_id(&openssl.read("old.pem")));
    openssl.write("leaf.pem", &leaf);
    openssl.run("verify -purpose sslserver -CAfile old.pem leaf.pem");
}

#[test]
fn text_that_holds_no_certificate_is_refused() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "corp", CA);
    let key = openssl.secret("corp.key");
    assert_eq!(Authority::load("nothing", &key, now()).unwrap_err(), Error::NotPem);
    assert_eq!(Authority::load(key.expose(), &key, now()).unwrap_err(), Error::NotPem);
    let garbage = pem::encode(&pem::Pem::new("CERTIFICATE", b"garbage".to_vec()));
    let refused = Authority::load(&garbage, &key, now()).unwrap_err();
    assert!(matches!(refused, Error::NotACertificate { position: 1, .. }), "{refused}");
    let refused = Authority::load(&(openssl.read("corp.pem") + &garbage), &key, now()).unwrap_err();
    assert!(matches!(refused, Error::NotACertificate { position: 2, .. }), "{refused}");
    let cut = &openssl.read("corp.pem")[..100];
    assert!(matches!(Authority::load(cut, &key, now()), Err(Error::NotACertificate { position: 1, .. })));
}

#[test]
fn certificates_that_are_not_cas_are_refused() {
    let openssl = OpenSsl::new();
    let lack = |name: &str, extensions: &str| {
        self_signed(&openssl, name, extensions);
        match load(&openssl, name, now()) {
            Err(Error::NotAnAuthority { subject, lack }) => {
                assert_eq!(subject, format!("CN={name}"));
                lack
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(lack("leaf", "-addext basicConstraints=CA:FALSE"), AuthorityLack::BasicConstraints);
    assert_eq!(lack("bare", "-addext keyUsage=keyCertSign"), AuthorityLack::BasicConstraints);
    let no_signing = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=digitalSignature";
    assert_eq!(lack("no-signing", no_signing), AuthorityLack::KeyCertSign);

    self_signed(&openssl, "unrestricted", "-addext basicConstraints=critical,CA:TRUE");
    load(&openssl, "unrestricted", now()).unwrap();
}

#[test]
fn a_ca_outside_of_its_dates_is_refused_with_the_dates() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "corp", CA);
    let facts = inspect(&openssl.read("corp.pem")).unwrap();

    let late = facts.not_after + DAY;
    let expired = Error::Expired { subject: "CN=corp".into(), not_after: facts.not_after, now: late };
    assert_eq!(load(&openssl, "corp", late).unwrap_err(), expired);
    assert!(expired.to_string().contains(&facts.not_after.to_string()));

    let early = facts.not_before - DAY;
    let not_yet = Error::NotYetValid { subject: "CN=corp".into(), not_before: facts.not_before, now: early };
    assert_eq!(load(&openssl, "corp", early).unwrap_err(), not_yet);
}

#[test]
fn a_key_that_is_not_the_authoritys_is_refused() {
    let made = authority(KeyAlgorithm::P256);
    let refused = |key: Secret| Authority::load(made.certificate_pem(), &key, now()).unwrap_err();
    let mismatch = Error::KeyDoesNotMatch { subject: "O=Example, CN=etcd CA".into() };
    assert_eq!(refused(p256().to_pem()), mismatch);
    assert_eq!(refused(authority(KeyAlgorithm::Ed25519).key_pem().clone()), mismatch);
    assert_eq!(refused(Secret::new(made.certificate_pem())), Error::KeyNotPem);
}

#[test]
fn an_intermediate_signs_and_its_leaves_carry_the_way_to_the_root() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "root", CA);
    intermediate(&openssl, "upper", "/CN=upper", "root");
    intermediate(&openssl, "lower", "/CN=lower", "upper");
    self_signed(&openssl, "unrelated", CA);

    let bundle = ["lower.pem", "unrelated.pem", "root.pem", "upper.pem"].map(|name| openssl.read(name)).concat();
    let authority = Authority::load(&bundle, &openssl.secret("lower.key"), now()).unwrap();
    assert_eq!(authority.certificate_pem(), bundle);

    let chain = authority.sign(&p256().csr("x").unwrap(), &wish("etcd-1"), now()).unwrap();
    assert!(chain.ends_with(&(openssl.read("lower.pem") + &openssl.read("upper.pem"))), "{chain}");
    assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 3);
    openssl.write("chain.pem", &chain);
    openssl.run("verify -purpose sslserver -CAfile root.pem -untrusted chain.pem chain.pem");
    openssl.attempt("verify -purpose sslserver -CAfile unrelated.pem -untrusted chain.pem chain.pem").unwrap_err();
}

#[test]
fn an_intermediate_without_its_root_still_signs() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "root", CA);
    intermediate(&openssl, "lower", "/CN=lower", "root");
    let authority = load(&openssl, "lower", now()).unwrap();
    let chain = authority.sign(&p256().csr("x").unwrap(), &wish("etcd-1"), now()).unwrap();
    openssl.write("chain.pem", &chain);
    openssl.run("verify -CAfile root.pem -untrusted chain.pem chain.pem");
    openssl.run("verify -partial_chain -CAfile lower.pem chain.pem");
}

#[test]
fn a_name_with_repeated_and_combined_attributes_is_copied_byte_for_byte() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "root", CA);
    for subject in
        ["/DC=com/DC=example/OU=a/OU=b/CN=Corp", "/O=Example/CN=Corp+OU=Ops", "/C=DE/emailAddress=ca@example.com"]
    {
        intermediate(&openssl, "corp", subject, "root");
        let authority = load(&openssl, "corp", now()).unwrap();
        openssl.write("chain.pem", &authority.sign(&p256().csr("x").unwrap(), &wish("etcd-1"), now()).unwrap());
        openssl.run("verify -purpose sslclient -CAfile root.pem -untrusted chain.pem chain.pem");
    }
}

#[test]
fn comments_around_the_certificate_are_dropped() {
    let openssl = OpenSsl::new();
    self_signed(&openssl, "corp", CA);
    let wordy = openssl.run("x509 -in corp.pem -text");
    let authority = Authority::load(&wordy, &openssl.secret("corp.key"), now()).unwrap();
    assert_eq!(authority.certificate_pem(), openssl.read("corp.pem"));
}
