//! Settings of kubeadm and kube-apiserver as text. Every value is a URL, or was checked to need no quoting.

use std::fmt::Write as _;

use super::certificates::{APISERVER, CA};
use super::{PREFIX, Wish};

pub(super) const KUBEADM_V1BETA3: &str = "kubeadm-v1beta3.yaml";
pub(super) const KUBEADM_V1BETA4: &str = "kubeadm-v1beta4.yaml";
pub(super) const FLAGS: &str = "kube-apiserver.flags";
pub(super) const ENCRYPTION: &str = "encryption/config.yaml";
/// The directory is mounted, not the file: a file that is replaced would not be seen inside the pod.
const ENCRYPTION_DIRECTORY: &str = "encryption";

pub(super) struct Settings<'a> {
    pub(super) wish: &'a Wish,
    pub(super) endpoints: &'a [String],
    /// Of the cluster for events, where there is one.
    pub(super) events: &'a [String],
}

impl Settings<'_> {
    fn on_hosts(&self, file: &str) -> String {
        format!("{}/{file}", self.wish.on_hosts.trim_end_matches('/'))
    }

    /// The flags that kubeadm does not derive from `etcd.external`.
    fn extra_flags(&self) -> Vec<(&'static str, String)> {
        // etcd lets only root compact, so etcd does it by itself.
        let mut flags = vec![("etcd-compaction-interval", String::from("0"))];
        if self.wish.prefix != PREFIX {
            flags.push(("etcd-prefix", self.wish.prefix.trim_end_matches('/').to_owned()));
        }
        if !self.events.is_empty() {
            flags.push(("etcd-servers-overrides", format!("/events#{}", self.events.join(";"))));
        }
        if self.wish.encrypt_secrets {
            flags.push(("encryption-provider-config", self.on_hosts(ENCRYPTION)));
        }
        flags
    }

    fn external(&self) -> String {
        let mut text = String::from("etcd:\n  external:\n    endpoints:\n");
        for endpoint in self.endpoints {
            let _ = writeln!(text, "      - {endpoint:?}");
        }
        for (field, file) in [("caFile", CA), ("certFile", APISERVER.certificate), ("keyFile", APISERVER.key)] {
            let _ = writeln!(text, "    {field}: {:?}", self.on_hosts(file));
        }
        text
    }

    fn volumes(&self) -> String {
        if !self.wish.encrypt_secrets {
            return String::new();
        }
        let path = self.on_hosts(ENCRYPTION_DIRECTORY);
        format!(
            "  extraVolumes:\n    - name: encryption\n      hostPath: {path:?}\n      mountPath: {path:?}\n      readOnly: true\n      \
             pathType: Directory\n"
        )
    }

    fn cluster_configuration(&self, version: &str, since: &str, extra: &str) -> String {
        format!(
            "# For `kubeadm init --config`, {since}. Written by `quorate kubernetes`, which replaces it: copy what you need.\n\
             apiVersion: kubeadm.k8s.io/{version}\nkind: ClusterConfiguration\n{}apiServer:\n  extraArgs:\n{extra}{}",
            self.external(),
            self.volumes(),
        )
    }
}

pub(super) fn kubeadm_v1beta3(settings: &Settings<'_>) -> String {
    let extra: String = settings.extra_flags().iter().map(|(name, value)| format!("    {name}: {value:?}\n")).collect();
    settings.cluster_configuration("v1beta3", "for kubeadm before 1.31; 1.37 and later do not read it", &extra)
}

pub(super) fn kubeadm_v1beta4(settings: &Settings<'_>) -> String {
    let argument = |(name, value): &(&str, String)| format!("    - name: {name}\n      value: {value:?}\n");
    let extra: String = settings.extra_flags().iter().map(argument).collect();
    settings.cluster_configuration("v1beta4", "for kubeadm 1.31 and later", &extra)
}

/// One flag per line: `kube-apiserver $(cat kube-apiserver.flags) …`.
pub(super) fn flags(settings: &Settings<'_>) -> String {
    let files = [
        ("etcd-cafile", settings.on_hosts(CA)),
        ("etcd-certfile", settings.on_hosts(APISERVER.certificate)),
        ("etcd-keyfile", settings.on_hosts(APISERVER.key)),
    ];
    let servers = [("etcd-servers", settings.endpoints.join(","))];
    let flags = servers.into_iter().chain(files).chain(settings.extra_flags());
    flags.map(|(name, value)| format!("--{name}={value}\n")).collect()
}

/// With a new key. `identity` reads what was written before encryption was turned on.
pub(super) fn encryption_configuration() -> String {
    let key = base64(&hex_bytes(&quorate_pki::random_hex(32)));
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n  - resources: [secrets]\n    providers:\n      \
         - secretbox:\n          keys:\n            - name: key1\n              secret: {key}\n      - identity: {{}}\n"
    )
}

fn hex_bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_default();
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let letter = |at: usize| char::from(ALPHABET[(bits >> (18 - 6 * at) & 63) as usize]);
        (0..4).map(move |at| if at <= three.len() { letter(at) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd::kubernetes::wish;

    fn endpoints(third: std::ops::RangeInclusive<u8>) -> Vec<String> {
        third.map(|n| format!("https://10.0.0.{n}:2379")).collect()
    }

    #[test]
    fn a_plain_cluster() {
        let (wish, endpoints) = (wish(), endpoints(11..=13));
        let settings = Settings { wish: &wish, endpoints: &endpoints, events: &[] };
        assert_eq!(
            kubeadm_v1beta4(&settings),
            "\
# For `kubeadm init --config`, for kubeadm 1.31 and later. Written by `quorate kubernetes`, which replaces it: copy what you need.
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
etcd:
  external:
    endpoints:
      - \"https://10.0.0.11:2379\"
      - \"https://10.0.0.12:2379\"
      - \"https://10.0.0.13:2379\"
    caFile: \"/etc/kubernetes/pki/etcd/ca.crt\"
    certFile: \"/etc/kubernetes/pki/apiserver-etcd-client.crt\"
    keyFile: \"/etc/kubernetes/pki/apiserver-etcd-client.key\"
apiServer:
  extraArgs:
    - name: etcd-compaction-interval
      value: \"0\"
"
        );
        let older = kubeadm_v1beta3(&settings);
        assert!(older.contains("kubeadm.k8s.io/v1beta3\n"), "{older}");
        assert!(older.ends_with("apiServer:\n  extraArgs:\n    etcd-compaction-interval: \"0\"\n"), "{older}");
        assert_eq!(
            flags(&settings),
            "\
--etcd-servers=https://10.0.0.11:2379,https://10.0.0.12:2379,https://10.0.0.13:2379
--etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt
--etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt
--etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key
--etcd-compaction-interval=0
"
        );
    }

    #[test]
    fn another_prefix_events_and_encryption() {
        let wish =
            Wish { prefix: String::from("/k8s/"), encrypt_secrets: true, on_hosts: String::from("/srv/k/"), ..wish() };
        let (main, events) = (endpoints(11..=11), endpoints(21..=22));
        let settings = Settings { wish: &wish, endpoints: &main, events: &events };
        assert_eq!(
            flags(&settings),
            "\
--etcd-servers=https://10.0.0.11:2379
--etcd-cafile=/srv/k/pki/etcd/ca.crt
--etcd-certfile=/srv/k/pki/apiserver-etcd-client.crt
--etcd-keyfile=/srv/k/pki/apiserver-etcd-client.key
--etcd-compaction-interval=0
--etcd-prefix=/k8s
--etcd-servers-overrides=/events#https://10.0.0.21:2379;https://10.0.0.22:2379
--encryption-provider-config=/srv/k/encryption/config.yaml
"
        );
        let document = kubeadm_v1beta4(&settings);
        let events = "    - name: etcd-servers-overrides\n      value: \"/events#https://10.0.0.21:2379;https://10.0.0.22:2379\"\n";
        assert!(document.contains(events), "{document}");
        let volume = "  extraVolumes:\n    - name: encryption\n      hostPath: \"/srv/k/encryption\"\n";
        assert!(document.contains(volume) && kubeadm_v1beta3(&settings).contains(volume), "{document}");
    }

    #[test]
    fn a_key_for_encryption_is_new_each_time_and_has_32_bytes() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob", "\u{ff}"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "w78="]
        );
        let key = |text: &str| text.split_once("secret: ").unwrap().1.lines().next().unwrap().to_owned();
        let (one, other) = (key(&encryption_configuration()), key(&encryption_configuration()));
        assert_ne!(one, other);
        assert!(one.len() == 44 && one.ends_with('=') && !one.ends_with("=="), "{one}");
    }
}
