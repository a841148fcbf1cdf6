//! Checks of etcd as a static pod: the image must name its etcd version, and etcd must be able to read every file that its flags name.

use std::path::Path;

use crate::kinds::etcd::pki;
use crate::kinds::etcd::pod::{self, RunAs, StaticPod};
use crate::providers::MachineKind;
use crate::spec::check::{Cluster, Findings};

/// The machine's directories that the pod can access, in addition to data and log.
const CONFIGURATION: &str = "/etc/etcd";

pub(crate) fn check(cluster: &Cluster, found: &mut Findings) {
    let etcd = &cluster.spec.etcd;
    match (etcd.run_as, &etcd.static_pod) {
        (RunAs::StaticPod, Some(pod)) => {
            image(cluster, pod, found);
            manifests(cluster, pod, found);
            files(cluster, found);
            firewall(cluster, found);
        }
        (RunAs::StaticPod, None) => found.error(
            cluster.at("etcd.run_as"),
            "a static pod needs an image",
            format!("add `static_pod: {{image: registry.k8s.io/etcd:{}-0}}`, or an image of your own", etcd.version),
        ),
        (RunAs::Service, Some(_)) => found.warning(
            cluster.at("etcd.static_pod"),
            "`static_pod` has no effect: etcd runs as a service",
            "set `run_as: static_pod`, or leave `static_pod` out",
        ),
        (RunAs::Service, None) => {}
    }
}

fn image(cluster: &Cluster, pod: &StaticPod, found: &mut Findings) {
    let (at, version) = (cluster.at("etcd.static_pod.image"), cluster.spec.etcd.version);
    match pod::image_version(&pod.image) {
        Ok(named) if named == version => {}
        Ok(named) => found.error(
            at,
            format!("the image has etcd {named}, and `version` is {version}"),
            "change both together: versions decide in which order members are restarted, and whether they may be",
        ),
        Err(why) => found.error(
            at,
            why,
            format!("use a tag with the version, such as `registry.k8s.io/etcd:{version}-0`; a digest may follow it"),
        ),
    }
}

fn manifests(cluster: &Cluster, pod: &StaticPod, found: &mut Findings) {
    let at = || cluster.at("etcd.static_pod.manifests");
    if pod.manifests.to_string_lossy().chars().any(char::is_control) || !pod::is_plain(&pod.manifests) {
        let message = "the directory of manifests must be an absolute path without `.` and `..`";
        found.error(at(), message, "use the kubelet's `staticPodPath`; kubeadm has /etc/kubernetes/manifests");
    }
}

/// A machine with a kubelet serves more than etcd.
fn firewall(cluster: &Cluster, found: &mut Findings) {
    let enabled = cluster.spec.host.as_ref().is_none_or(|host| host.firewall.enabled);
    if enabled && cluster.spec.provider.settings().machines() != MachineKind::Process {
        found.warning(
            cluster.at("etcd.run_as"),
            "quorate's firewall on the machine rejects connections to the kubelet (port 10250) and to other pods of the host's network, \
             such as kube-apiserver",
            "set `host: {firewall: {enabled: false}}` if anything but etcd is to be reached there",
        );
    }
}

/// etcd in a pod can read only mounted files of its machine.
fn files(cluster: &Cluster, found: &mut Findings) {
    let kubeadm = format!("/{}", pki::KUBEADM_DIRECTORY);
    for (name, value) in &cluster.spec.etcd.flags {
        let path = Path::new(&value.0);
        if path.is_absolute() && !path.starts_with(CONFIGURATION) && !path.starts_with(&kubeadm) {
            found.error(
                cluster.at(&format!("etcd.flags.{name}")),
                format!("etcd runs as a static pod, which does not see {}", path.display()),
                format!("put the file into {CONFIGURATION}, which is mounted"),
            );
        }
    }
}
