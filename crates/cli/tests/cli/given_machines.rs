//! User-provided certificates, for machines whose addresses are those of their interfaces.

use crate::common::{OLDEST, Sandbox};

const BOTH: &str = "extendedKeyUsage=serverAuth,clientAuth\n";

fn spec(leaf: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: c
    provider: {{libvirt: {{pool: etcd, image: {{volume: debian-12.qcow2}}}}}}
    members:
      - {{name: etcd-1, libvirt: {{interfaces: [{{network: default, address: 192.0.2.11, prefix: 24, gateway: 192.0.2.1}}]}}}}
    tls:
      given:
        ca: ca.crt
        members:
          etcd-1: {{certificate: {leaf}.crt, key: {leaf}.key}}
        root: {{certificate: root.crt, key: root.key}}
"
    )
}

#[test]
fn a_given_certificate_is_for_the_address_of_the_first_interface() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.make_ca("ca", "ec");
    sandbox.make_certificate("root", "root", "ca", "extendedKeyUsage=clientAuth\n");
    for (leaf, address) in [("good", "192.0.2.11"), ("elsewhere", "192.0.2.12")] {
        sandbox.make_certificate(leaf, "etcd-1", "ca", &format!("subjectAltName=IP:{address},IP:127.0.0.1\n{BOTH}"));
    }
    sandbox.file("c.yaml", &spec("good"));
    sandbox.quorate(&["validate", "c.yaml"]).ok();
    sandbox.file("c.yaml", &spec("elsewhere"));
    let told = sandbox.quorate(&["validate", "c.yaml"]).fails().text();
    assert!(told.contains("lacks the address 192.0.2.11 among its subjectAltNames"), "{told}");
}
