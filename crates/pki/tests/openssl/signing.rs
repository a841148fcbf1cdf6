//! Authorities that quorate creates and the certificates they sign, as OpenSSL sees them.

use jiff::SignedDuration;
use quorate_pki::{
    Authority, AuthoritySubject, Error, KeyAlgorithm, KeyPair, LeafWish, Secret, inspect, list_to_pem, subject_key_id,
};

use crate::support::{DAY, OpenSsl, YEAR, addresses, authority, now, p256, wish};

fn issue(authority: &Authority, key: &KeyPair, wish: &LeafWish) -> String {
    authority.sign(&key.csr("asked-for").unwrap(), wish, now()).unwrap()
}

#[test]
fn openssl_accepts_leaves_of_every_algorithm_under_every_other() {
    use KeyAlgorithm::{Ed25519, P256, P384, Rsa};
    let openssl = OpenSsl::new();
    openssl.run("genrsa -out rsa.pem 2048"); // in a moment, where ours takes long without optimization
    let rsa = (Rsa, KeyPair::from_pem(&openssl.secret("rsa.pem")).unwrap());
    let made = [P256, P384, Ed25519].map(|algorithm| (algorithm, KeyPair::generate(algorithm).unwrap()));
    let keys: Vec<_> = made.into_iter().chain([rsa]).collect();
    for authority_algorithm in [P256, P384, Ed25519] {
        let authority = authority(authority_algorithm);
        openssl.write("ca.pem", authority.certificate_pem());
        for (algorithm, key) in &keys {
            assert_eq!(key.algorithm(), *algorithm);
            openssl.write("leaf.pem", &issue(&authority, key, &wish("etcd-1"))).write("key.pem", key.to_pem().expose());
            for purpose in ["sslserver", "sslclient"] {
                let said = openssl.run(&format!("verify -x509_strict -purpose {purpose} -CAfile ca.pem leaf.pem"));
                assert_eq!(said.trim(), "leaf.pem: OK");
            }
            openssl.run("verify -verify_ip 127.0.0.1 -CAfile ca.pem leaf.pem");
            openssl.run("verify -verify_ip fd00::1 -CAfile ca.pem leaf.pem");
            openssl.run("verify -verify_hostname etcd-1.example.com -CAfile ca.pem leaf.pem");
            openssl.attempt("verify -verify_ip 127.0.0.2 -CAfile ca.pem leaf.pem").unwrap_err();
            assert_eq!(openssl.run("pkey -in key.pem -pubout"), openssl.run("x509 -in leaf.pem -noout -pubkey"));
            let encipherment = openssl.run("x509 -in leaf.pem -noout -text").contains("Key Encipherment");
            assert_eq!(encipherment, *algorithm == Rsa);
        }
    }
}

#[test]
fn an_rsa_authority_signs_and_is_read_back() {
    let openssl = OpenSsl::new();
    let made = authority(KeyAlgorithm::Rsa);
    let authority = Authority::load(made.certificate_pem(), made.key_pem(), now()).unwrap();
    assert_eq!(authority.fingerprint(), made.fingerprint());
    openssl
        .write("ca.pem", authority.certificate_pem())
        .write("leaf.pem", &issue(&authority, &p256(), &wish("etcd-1")));
    openssl.run("verify -x509_strict -purpose sslserver -CAfile ca.pem leaf.pem");
    assert!(openssl.run("x509 -in ca.pem -noout -text").contains("(3072 bit)"));
}

#[test]
fn a_generated_authority_says_what_it_is_and_signs_no_further_authority() {
    let openssl = OpenSsl::new();
    let authority = authority(KeyAlgorithm::P256);
    openssl.write("ca.pem", authority.certificate_pem());
    let text = openssl.run("x509 -in ca.pem -noout -text");
    for part in [
        "Subject: O = Example, CN = etcd CA",
        "CA:TRUE, pathlen:0",
        "Certificate Sign, CRL Sign",
        "Subject Key Identifier",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let fingerprint = openssl.run("x509 -in ca.pem -noout -fingerprint -sha256").replace(':', "").to_lowercase();
    assert!(fingerprint.trim().ends_with(&authority.fingerprint()));
    assert!(inspect(authority.certificate_pem()).unwrap().is_ca);
    assert_eq!(format!("{authority:?}").matches("PRIVATE").count(), 0);
}

#[test]
fn a_leaf_contains_what_was_wished_and_nothing_from_the_request() {
    let openssl = OpenSsl::new();
    openssl.run(
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out csr.pem -subj /CN=root/O=Evil \
         -addext subjectAltName=DNS:evil.example.com,IP:10.6.6.6 -addext basicConstraints=CA:TRUE \
         -addext keyUsage=keyCertSign -addext extendedKeyUsage=codeSigning -addext nsComment=ignored",
    );
    let authority = authority(KeyAlgorithm::P256);
    let now = now();
    let mut wish = wish("etcd-1");
    wish.server = false;
    wish.dns.push("localhost".into());
    let facts = inspect(&authority.sign(&openssl.read("csr.pem"), &wish, now).unwrap()).unwrap();
    assert_eq!(facts.subject_common_name.as_deref(), Some("etcd-1"));
    assert_eq!(facts.dns, ["localhost", "etcd-1.example.com"]);
    assert_eq!(facts.addresses, addresses(&["127.0.0.1", "fd00::1"]));
    assert_eq!((facts.server, facts.client, facts.is_ca), (false, true, false));
    assert_eq!(facts.authority_key_id, subject_key_id(authority.certificate_pem()));
    assert!(facts.authority_key_id.is_some());
    assert!(facts.not_before < now && now.duration_since(facts.not_before) < DAY * 2);
    assert_eq!(facts.not_after.as_second(), (now + YEAR).as_second());

    openssl.write("leaf.pem", &authority.sign(&openssl.read("csr.pem"), &wish, now).unwrap());
    let text = openssl.run("x509 -in leaf.pem -noout -text");
    for part in ["CA:FALSE", "Digital Signature", "Subject Key Identifier", "Authority Key Identifier"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for part in ["Evil", "evil", "Code Signing", "Certificate Sign", "ignored"] {
        assert!(!text.contains(part), "{part} is in {text}");
    }
}

#[test]
fn every_leaf_has_a_unique_serial_number() {
    let openssl = OpenSsl::new();
    let (authority, key) = (authority(KeyAlgorithm::P256), p256());
    let serials: std::collections::BTreeSet<_> = (0..4)
        .map(|_| {
            openssl.write("leaf.pem", &issue(&authority, &key, &wish("etcd-1")));
            openssl.run("x509 -in leaf.pem -noout -serial")
        })
        .collect();
    assert_eq!(serials.len(), 4);
}

#[test]
fn a_leaf_never_outlives_its_authority() {
    let subject = AuthoritySubject { common_name: "short".into(), organization: None };
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, DAY * 30, now()).unwrap();
    let leaf = inspect(&issue(&authority, &p256(), &wish("etcd-1"))).unwrap();
    assert_eq!(leaf.not_after, authority.not_after());

    let later = authority.not_after() + DAY;
    let refused = authority.sign(&p256().csr("x").unwrap(), &wish("etcd-1"), later);
    assert!(matches!(refused, Err(Error::Expired { not_after, .. }) if not_after == authority.not_after()));
}

#[test]
fn a_leaf_without_a_name_has_an_empty_subject_and_critical_alternatives() {
    let openssl = OpenSsl::new();
    let authority = authority(KeyAlgorithm::P256);
    openssl.write("leaf.pem", &issue(&authority, &p256(), &wish("")));
    assert_eq!(openssl.run("x509 -in leaf.pem -noout -subject").trim(), "subject=O = Example");
    let chain = issue(&authority, &p256(), &LeafWish { organization: None, ..wish("") });
    assert_eq!(inspect(&chain).unwrap().subject_common_name, None);
    openssl.write("ca.pem", authority.certificate_pem()).write("leaf.pem", &chain);
    assert_eq!(openssl.run("x509 -in leaf.pem -noout -subject").trim(), "subject=");
    assert!(openssl.run("x509 -in leaf.pem -noout -text").contains("Subject Alternative Name: critical"));
    openssl.run("verify -x509_strict -purpose sslclient -CAfile ca.pem leaf.pem");

    let bare = LeafWish { organization: None, dns: vec![], addresses: vec![], server: false, ..wish("") };
    openssl.write("leaf.pem", &issue(&authority, &p256(), &bare));
    openssl.run("verify -purpose sslclient -CAfile ca.pem leaf.pem");
    openssl.attempt("verify -purpose sslserver -CAfile ca.pem leaf.pem").unwrap_err();
}

#[test]
fn a_request_that_does_not_prove_its_key_is_refused() {
    let authority = authority(KeyAlgorithm::P256);
    let mut forged = pem::parse(p256().csr("etcd-1").unwrap()).unwrap().into_contents();
    let end = forged.len() - 1;
    forged[end] ^= 1;
    let forged = pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", forged));
    assert_eq!(authority.sign(&forged, &wish("etcd-1"), now()), Err(Error::RequestNotProven));

    let garbage = pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", b"garbage".to_vec()));
    for text in ["", "not PEM", &garbage, authority.certificate_pem()] {
        assert_eq!(authority.sign(text, &wish("etcd-1"), now()), Err(Error::RequestUnreadable), "{text}");
    }
    let openssl = OpenSsl::new();
    openssl.run("req -new -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -keyout k.pem -out csr.pem -subj /CN=x");
    assert_eq!(authority.sign(&openssl.read("csr.pem"), &wish("x"), now()), Err(Error::RequestKeyUnsupported));
}

#[test]
fn wishes_that_no_certificate_can_carry_are_refused() {
    let authority = authority(KeyAlgorithm::P256);
    let csr = p256().csr("x").unwrap();
    for name in ["", "two words", "ünïcode", "a..b", "-a", ".a", &"a".repeat(64)] {
        let wish = LeafWish { dns: vec![name.into()], ..wish("x") };
        assert_eq!(authority.sign(&csr, &wish, now()), Err(Error::BadDnsName { name: name.into() }));
    }
    for validity in [SignedDuration::ZERO, -DAY] {
        assert_eq!(
            authority.sign(&csr, &LeafWish { validity, ..wish("x") }, now()),
            Err(Error::BadValidity { validity })
        );
    }
}

#[test]
fn keys_are_read_in_every_form_that_openssl_writes() {
    let openssl = OpenSsl::new();
    openssl.run("ecparam -name prime256v1 -genkey -out sec1.pem");
    openssl.run("ecparam -name secp384r1 -genkey -out sec1-384.pem");
    openssl.run("genrsa -traditional -out pkcs1.pem 2048");
    openssl.run("genpkey -algorithm ed25519 -out pkcs8.pem");
    for (name, algorithm) in [
        ("sec1.pem", KeyAlgorithm::P256),
        ("sec1-384.pem", KeyAlgorithm::P384),
        ("pkcs1.pem", KeyAlgorithm::Rsa),
        ("pkcs8.pem", KeyAlgorithm::Ed25519),
    ] {
        let key = KeyPair::from_pem(&openssl.secret(name)).unwrap();
        assert_eq!(key.algorithm(), algorithm);
        assert_eq!(openssl.run(&format!("pkey -in {name} -pubout")), key.public_key_pem());
        openssl.write("again.pem", key.to_pem().expose());
        assert_eq!(openssl.run("pkey -in again.pem -pubout"), key.public_key_pem());
        assert_eq!(format!("{key:?}"), format!("KeyPair({algorithm:?})"));
    }
}

#[test]
fn keys_that_cannot_be_used_are_refused_and_not_quoted() {
    let openssl = OpenSsl::new();
    openssl.run("genrsa -aes128 -passout pass:secret -out encrypted.pem 2048");
    openssl.run("genrsa -traditional -aes128 -passout pass:secret -out old-encrypted.pem 2048");
    openssl.run("genrsa -out weak.pem 1024");
    let refusal = |secret: &Secret| KeyPair::from_pem(secret).unwrap_err();
    assert_eq!(refusal(&openssl.secret("encrypted.pem")), Error::KeyEncrypted);
    assert_eq!(refusal(&openssl.secret("old-encrypted.pem")), Error::KeyEncrypted);
    assert_eq!(refusal(&openssl.secret("weak.pem")), Error::KeyUnsupported);
    assert_eq!(refusal(&Secret::new("hunter2")), Error::KeyNotPem);
    let broken = Secret::new("-----BEGIN PRIVATE KEY-----\nhunter2 ! \n-----END PRIVATE KEY-----\n");
    assert!(!format!("{0} {0:?}", refusal(&broken)).contains("hunter2"));
}

/// Of a leaf, as it is in a list.
fn serial(leaf: &str) -> Vec<u8> {
    let digits = inspect(leaf).unwrap().serial;
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn openssl_refuses_what_is_on_a_list_and_nothing_else_as_long_as_the_authority_lives() {
    let openssl = OpenSsl::new();
    let (old, new) = (authority(KeyAlgorithm::P256), authority(KeyAlgorithm::Ed25519));
    let [gone, stays] = ["gone", "stays"].map(|name| issue(&old, &p256(), &wish(name)));
    let other = issue(&new, &p256(), &wish("other"));
    // Both have the same name, as they do while one takes the place of the other, and one was used with a clock that is a month ahead.
    let refused = [serial(&gone)];
    let lists = [&old, &new].map(|authority| list_to_pem(&authority.revoke(&refused, now() + DAY * 30).unwrap()));
    openssl.write("ca.pem", &[old.certificate_pem(), new.certificate_pem()].concat());
    openssl.write("both.pem", &lists.concat()).write("one.pem", &lists[0]);
    openssl.write("gone.pem", &gone).write("stays.pem", &stays).write("other.pem", &other);
    let last_day = (now() + YEAR * 10 - DAY).as_second();
    let verify = |list: &str, leaf: &str| {
        openssl.attempt(&format!("verify -x509_strict -crl_check_all -CRLfile {list} -CAfile ca.pem {leaf}"))
    };
    assert!(verify("both.pem", "gone.pem").unwrap_err().contains("certificate revoked"));
    verify("both.pem", "stays.pem").unwrap();
    verify("both.pem", "other.pem").unwrap();
    assert!(verify("one.pem", "other.pem").unwrap_err().contains("unable to get certificate CRL"));
    // The list is still good when the leaf is not any more.
    let late = openssl
        .attempt(&format!("verify -attime {last_day} -crl_check_all -CRLfile both.pem -CAfile ca.pem stays.pem"));
    let late = late.unwrap_err();
    assert!(late.contains("certificate has expired") && !late.contains("CRL has expired"), "{late}");
}
