//! User-provided certificates and keys: all problems are found at once.

use jiff::Timestamp;
use quorate_pki::{
    Authority, GivenLeafProblem, GivenPart, KeyAlgorithm, KeyPair, LeafNeed, LeafWish, Secret, Usage,
    check_given_client, check_given_leaf, inspect,
};

use crate::support::{DAY, OpenSsl, YEAR, addresses, authority, now, p256, wish};

struct Given {
    authority: Authority,
    key: KeyPair,
    chain: String,
}

fn given(wish: &LeafWish) -> Given {
    let (authority, key) = (authority(KeyAlgorithm::P256), p256());
    let chain = authority.sign(&key.csr("x").unwrap(), wish, now()).unwrap();
    Given { authority, key, chain }
}

impl Given {
    fn problems(&self, need: &LeafNeed, now: Timestamp) -> Vec<GivenLeafProblem> {
        check_given_leaf(&self.chain, &self.key.to_pem(), self.authority.certificate_pem(), need, now)
    }
}

fn need() -> LeafNeed {
    LeafNeed { addresses: addresses(&["127.0.0.1"]), dns: vec!["localhost".into()], server: true, client: true }
}

const LEAF: &str = "O=Example, CN=etcd-1";

#[test]
fn a_good_leaf_has_no_problem() {
    assert_eq!(given(&wish("etcd-1")).problems(&need(), now()), []);
}

#[test]
fn every_missing_address_name_and_usage_is_named() {
    let given = given(&LeafWish { server: false, ..wish("etcd-1") });
    let need =
        LeafNeed { addresses: addresses(&["127.0.0.1", "10.0.0.1", "fd00::2"]), dns: vec!["b.c".into()], ..need() };
    let [v4, v6] = addresses(&["10.0.0.1", "fd00::2"])[..] else { unreachable!() };
    let expected = [
        GivenLeafProblem::LacksAddress { address: v4 },
        GivenLeafProblem::LacksAddress { address: v6 },
        GivenLeafProblem::LacksName { name: "b.c".into() },
        GivenLeafProblem::LacksUsage { certificate: LEAF.into(), usage: Usage::Server },
    ];
    assert_eq!(given.problems(&need, now()), expected);
    let words: Vec<_> = expected.iter().map(ToString::to_string).collect();
    assert_eq!(words[0], "the certificate lacks the address 10.0.0.1 among its subjectAltNames");
    assert_eq!(words[3], "the extendedKeyUsage of O=Example, CN=etcd-1 lacks serverAuth");
}

#[test]
fn a_client_usage_is_asked_for_separately() {
    let given = given(&LeafWish { client: false, ..wish("etcd-1") });
    let lacks = GivenLeafProblem::LacksUsage { certificate: LEAF.into(), usage: Usage::Client };
    assert_eq!(given.problems(&need(), now()), [lacks]);
    assert_eq!(given.problems(&LeafNeed { client: false, ..need() }, now()), []);
}

#[test]
fn dates_are_checked_along_the_whole_path() {
    let given = given(&wish("etcd-1"));
    let facts = inspect(&given.chain).unwrap();
    let leaf_expired = GivenLeafProblem::Expired { certificate: LEAF.into(), not_after: facts.not_after };
    assert_eq!(given.problems(&need(), now() + YEAR * 2), std::slice::from_ref(&leaf_expired));

    let not_after = given.authority.not_after();
    let ca_expired = GivenLeafProblem::Expired { certificate: "O=Example, CN=etcd CA".into(), not_after };
    assert_eq!(given.problems(&need(), now() + YEAR * 20), [leaf_expired, ca_expired]);

    let early = GivenLeafProblem::NotYetValid { certificate: LEAF.into(), not_before: facts.not_before };
    assert_eq!(given.problems(&need(), now() - DAY * 2)[0], early);
}

#[test]
fn a_leaf_of_another_ca_does_not_chain_even_if_the_names_agree() {
    let given = given(&wish("etcd-1"));
    let namesake = authority(KeyAlgorithm::P256);
    let problems = check_given_leaf(&given.chain, &given.key.to_pem(), namesake.certificate_pem(), &need(), now());
    assert_eq!(problems, [GivenLeafProblem::DoesNotChain { issuer: "O=Example, CN=etcd CA".into() }]);

    let both = namesake.certificate_pem().to_owned() + given.authority.certificate_pem();
    assert_eq!(check_given_leaf(&given.chain, &given.key.to_pem(), &both, &need(), now()), []);
}

#[test]
fn a_different_key_and_an_unreadable_one_have_different_errors() {
    let given = given(&wish("etcd-1"));
    let with_key =
        |key: Secret| check_given_leaf(&given.chain, &key, given.authority.certificate_pem(), &need(), now());
    assert_eq!(with_key(p256().to_pem()), [GivenLeafProblem::KeyDoesNotMatch]);
    let problems = with_key(Secret::new("hunter2"));
    assert!(matches!(&problems[..], [GivenLeafProblem::Unusable { part: GivenPart::Key, .. }]));
    assert!(!format!("{problems:?} {}", problems[0]).contains("hunter2"));
}

#[test]
fn unreadable_certificates_have_different_errors() {
    let given = given(&wish("etcd-1"));
    let key = given.key.to_pem();
    let parts = |chain: &str, ca: &str| -> Vec<_> {
        let problems = check_given_leaf(chain, &key, ca, &need(), now());
        problems
            .into_iter()
            .map(|problem| match problem {
                GivenLeafProblem::Unusable { part, .. } => part,
                other => panic!("{other}"),
            })
            .collect()
    };
    let ca = given.authority.certificate_pem();
    assert_eq!(parts("", ca), [GivenPart::Certificate]);
    assert_eq!(parts(&given.chain, ""), [GivenPart::Ca]);
    assert_eq!(parts("", ""), [GivenPart::Certificate, GivenPart::Ca]);
}

#[test]
fn a_client_must_have_the_expected_name() {
    let given = given(&LeafWish { server: false, ..wish("root") });
    let check = |expected| {
        check_given_client(&given.chain, &given.key.to_pem(), given.authority.certificate_pem(), expected, now())
    };
    assert_eq!(check("root"), []);
    let wrong = GivenLeafProblem::WrongCommonName { expected: "alice".into(), found: Some("root".into()) };
    assert_eq!(wrong.to_string(), "the certificate has the common name \"root\", expected \"alice\"");
    assert_eq!(check("alice"), [wrong]);
}

#[test]
fn a_server_certificate_without_a_name_is_no_client() {
    let given = given(&LeafWish { client: false, organization: None, ..wish("") });
    let problems =
        check_given_client(&given.chain, &given.key.to_pem(), given.authority.certificate_pem(), "root", now());
    let [lacks, wrong] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(*lacks, GivenLeafProblem::LacksUsage { certificate: "(no name)".into(), usage: Usage::Client });
    assert_eq!(*wrong, GivenLeafProblem::WrongCommonName { expected: "root".into(), found: None });
    assert_eq!(wrong.to_string(), "the certificate has no common name, expected \"root\"");
}

/// root → middle → leaf by openssl; `middle` is an extension file's text for the intermediate.
fn three_levels(openssl: &OpenSsl, middle: &str) {
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl.write("empty.cnf", "[req]\ndistinguished_name=dn\n[dn]\n").write("middle.ext", middle);
    openssl.write("leaf.ext", "subjectAltName=IP:127.0.0.1,DNS:localhost\n");
    openssl.run(&format!(
        "req -config empty.cnf -x509 {ec} -days 9 -keyout root.key -out root.pem -subj /CN=root \
         -addext basicConstraints=critical,CA:TRUE,pathlen:1"
    ));
    for (name, above) in [("middle", "root"), ("leaf", "middle")] {
        openssl.run(&format!("req -config empty.cnf -new {ec} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl.run(&format!(
            "x509 -req -in {name}.csr -CA {above}.pem -CAkey {above}.key -CAcreateserial -days 8 -extfile {name}.ext \
             -out {name}.pem"
        ));
    }
}

fn check_files(openssl: &OpenSsl, chain: &[&str], ca: &str) -> Vec<GivenLeafProblem> {
    let chain: String = chain.iter().map(|name| openssl.read(name)).collect();
    check_given_leaf(&chain, &openssl.secret("leaf.key"), &openssl.read(ca), &need(), now())
}

#[test]
fn a_chain_is_followed_up_to_the_ca() {
    let openssl = OpenSsl::new();
    three_levels(&openssl, "basicConstraints=critical,CA:TRUE\n");
    let broken = [GivenLeafProblem::DoesNotChain { issuer: "CN=middle".into() }];
    assert_eq!(check_files(&openssl, &["leaf.pem", "middle.pem"], "root.pem"), []);
    assert_eq!(check_files(&openssl, &["leaf.pem", "root.pem", "middle.pem"], "root.pem"), []);
    assert_eq!(check_files(&openssl, &["leaf.pem"], "middle.pem"), []);
    assert_eq!(check_files(&openssl, &["leaf.pem"], "root.pem"), broken);
    assert_eq!(check_files(&openssl, &["leaf.pem", "middle.pem"], "leaf.pem"), broken);
}

#[test]
fn an_intermediate_that_is_not_a_ca_leads_nowhere() {
    let openssl = OpenSsl::new();
    let broken = [GivenLeafProblem::DoesNotChain { issuer: "CN=middle".into() }];
    for extensions in ["basicConstraints=CA:FALSE\n", "basicConstraints=CA:TRUE\nkeyUsage=digitalSignature\n"] {
        three_levels(&openssl, extensions);
        assert_eq!(check_files(&openssl, &["leaf.pem", "middle.pem"], "root.pem"), broken, "{extensions}");
    }
}

#[test]
fn a_path_longer_than_a_ca_allows_leads_nowhere() {
    let openssl = OpenSsl::new();
    three_levels(&openssl, "basicConstraints=critical,CA:TRUE,pathlen:0\n");
    // middle may sign leaves only, so what it signs as a CA has no one to vouch for it.
    openssl.write("lower.ext", "basicConstraints=critical,CA:TRUE\n");
    openssl.run(
        "req -config empty.cnf -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout lower.key \
                 -out lower.csr -subj /CN=lower",
    );
    openssl.run(
        "x509 -req -in lower.csr -CA middle.pem -CAkey middle.key -CAcreateserial -extfile lower.ext -out lower.pem",
    );
    openssl
        .run("x509 -req -in leaf.csr -CA lower.pem -CAkey lower.key -CAcreateserial -extfile leaf.ext -out leaf.pem");
    let broken = [GivenLeafProblem::DoesNotChain { issuer: "CN=lower".into() }];
    assert_eq!(check_files(&openssl, &["leaf.pem", "lower.pem", "middle.pem"], "root.pem"), broken);
}

#[test]
fn a_usage_that_an_intermediate_forbids_is_found() {
    let openssl = OpenSsl::new();
    three_levels(&openssl, "basicConstraints=critical,CA:TRUE\nextendedKeyUsage=clientAuth\n");
    let lacks = GivenLeafProblem::LacksUsage { certificate: "CN=middle".into(), usage: Usage::Server };
    assert_eq!(check_files(&openssl, &["leaf.pem", "middle.pem"], "root.pem"), [lacks]);
}

#[test]
fn problems_survive_being_written_down() {
    let problem = GivenLeafProblem::LacksUsage { certificate: LEAF.into(), usage: Usage::Server };
    let json = serde_json::to_string(&problem).unwrap();
    assert_eq!(serde_json::from_str::<GivenLeafProblem>(&json).unwrap(), problem);
    let facts = inspect(&given(&wish("etcd-1")).chain).unwrap();
    let json = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<quorate_pki::CertificateFacts>(&json).unwrap(), facts);
}
