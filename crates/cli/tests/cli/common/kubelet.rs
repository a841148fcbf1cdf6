//! Settings of a kubelet and its containerd, for tests with static pods.

use std::path::{Path, PathBuf};

/// Where a machine's kubelet looks, below the machine's root.
pub const MANIFESTS: &str = "etc/kubernetes/manifests";

/// The directory with the kubelet and the images.
pub fn place() -> PathBuf {
    std::env::var_os("QUORATE_LAB_STATIC_POD").expect("`cargo xtask lab static-pod` and `lab incus` name it").into()
}

/// Files of a kubelet that has everything in this directory, on a machine with this root. There is no API server, and nothing that only
/// version 2 of control groups has.
pub fn settings(directory: &Path, root: &Path) -> [(&'static str, String); 2] {
    let (at, manifests) = (directory.display(), root.join(MANIFESTS));
    let containerd = format!(
        "version = 2
root = \"{at}/containerd\"
state = \"{at}/state\"
[grpc]
  address = \"{at}/containerd.sock\"
[plugins.\"io.containerd.grpc.v1.cri\"]
  sandbox_image = \"lab.invalid/pause:1\"
  restrict_oom_score_adj = true
  [plugins.\"io.containerd.grpc.v1.cri\".containerd]
    snapshotter = \"native\"
"
    );
    let kubelet = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {manifests}
podLogsDir: {at}/logs
containerRuntimeEndpoint: unix://{at}/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
enableServer: false
healthzPort: 0
readOnlyPort: 0
authentication: {{webhook: {{enabled: false}}, anonymous: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
",
        manifests = manifests.display()
    );
    [("containerd.toml", containerd), ("kubelet.yaml", kubelet)]
}
