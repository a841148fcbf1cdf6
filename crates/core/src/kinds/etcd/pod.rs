//! etcd as a static pod of a kubelet: its settings in the spec, and the etcd version that an image's name shows.

use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Version;

/// The directory in kubeadm's configuration of the kubelet.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// What runs etcd on its machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunAs {
    /// A unit of systemd; with the provider `local`, a process.
    #[default]
    Service,
    /// A static pod of the kubelet on the machine, which the operator provides together with a container runtime.
    StaticPod,
}

/// How etcd runs as a static pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticPod {
    /// Image of etcd with a tag that names `version`, such as `registry.k8s.io/etcd:3.6.14-0` or `…/etcd:v3.6.14`. A digest may follow.
    #[schemars(length(min = 1))]
    pub image: String,
    /// The directory that the kubelet reads static pods from (its `staticPodPath`). With the provider `local`, below the machine's root.
    #[serde(default = "manifests")]
    #[schemars(default = "manifests")]
    pub manifests: PathBuf,
}

fn manifests() -> PathBuf {
    PathBuf::from(MANIFESTS)
}

/// The version of etcd that the tag of an image names. Only the tag says it before the image runs.
pub fn image_version(image: &str) -> Result<Version, String> {
    if let Some(odd) = image.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(format!("the image has the character {odd:?}, which no image has in its name"));
    }
    let (tagged, digest) = image.split_once('@').map_or((image, None), |(tagged, digest)| (tagged, Some(digest)));
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(String::from("what follows `@` is not `sha256:` and 64 hexadecimal digits"));
    }
    // The part before the last slash may have a port.
    let (_, last) = tagged.rsplit_once('/').unwrap_or(("", tagged));
    let Some((_, tag)) = last.split_once(':').filter(|(name, tag)| !name.is_empty() && !tag.is_empty()) else {
        return Err(String::from("the image has no tag, so its version of etcd is unknown"));
    };
    let path = &tagged[..tagged.len() - tag.len() - 1];
    if path.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(format!("the name of an image is lower-case, not `{path}`"));
    }
    version_in(tag).ok_or_else(|| format!("the tag `{tag}` does not name a release of etcd"))
}

fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit())
}

/// `3.6.14`, `v3.6.14`, and with a build behind it `3.6.14-0`. A preview such as `3.6.0-rc.1` is no release.
fn version_in(tag: &str) -> Option<Version> {
    let (version, build) = tag.split_once('-').unwrap_or((tag, ""));
    let is_preview = ["alpha", "beta", "rc"].iter().any(|preview| build.starts_with(preview));
    if is_preview { None } else { version.strip_prefix('v').unwrap_or(version).parse().ok() }
}

/// Whether a path is absolute and has no `.` or `..`.
pub(crate) fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_names_the_version() {
        let of = |image: &str| image_version(image).map(|version| version.to_string());
        let digest = format!("@sha256:{}", "ab".repeat(32));
        for image in [
            "registry.k8s.io/etcd:3.6.14-0",
            "localhost:5000/etcd:v3.6.14",
            "etcd:3.6.14",
            &format!("registry.k8s.io/etcd:3.6.14-0{digest}"),
        ] {
            assert_eq!(of(image).as_deref(), Ok("3.6.14"), "{image}");
        }
        for (image, why) in [
            ("registry.k8s.io/etcd", "no tag"),
            ("localhost:5000/etcd", "no tag"),
            ("etcd:latest", "`latest`"),
            ("etcd:3.6", "`3.6`"),
            ("etcd:3.6.0-rc.1", "`3.6.0-rc.1`"),
            ("etcd:3.6.14@sha256:12", "hexadecimal"),
            (&format!("registry.k8s.io/etcd{digest}"), "no tag"),
            ("etcd:3.6.14\n", "character"),
            ("Registry/etcd:3.6.14", "lower-case"),
            ("/:3.6.14", "no tag"),
        ] {
            assert!(of(image).unwrap_err().contains(why), "{image}: {:?}", of(image));
        }
    }
}
