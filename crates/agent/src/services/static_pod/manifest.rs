//! The manifest of a static pod: what a kubelet is asked to run.
//!
//! A kubelet starts what is in its directory by itself, after a crash, a boot, or its own restart. So the manifest says under which
//! conditions it may: the directory `gate` must be there. It is a link to the write-ahead log, below a directory that no reboot survives.
//! Without data it leads nowhere, and after a boot the agent makes it again when it has looked at the data. At a first start it is an
//! empty directory; that pod is never started a second time by the kubelet, because its arguments would bootstrap a cluster once more.
//!
//! There is no liveness probe. One that asks for a quorum would kill members that wait for an election, and a kubelet can show no client
//! certificate. A process that ends is started again without a probe, and the agent reports an etcd that does not answer.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::files::Owner;
use crate::services::{Launch, Profile};

/// The first line. A file that begins otherwise is somebody else's.
pub(super) const HEADER: &str = "# Written by quorate; changes are undone by a restart of etcd.";
/// Variables by which the process of a pod is known: the start that it belongs to, and the digest of its inputs.
pub(super) const START: &str = "QUORATE_POD";
pub(super) const DIGEST: &str = "QUORATE_INPUTS";
/// In seconds. After this time the kubelet kills a service that was asked to end.
const GRACE: u64 = 10;
/// What kubeadm reserves for etcd.
const CPU: &str = "100m";
const MEMORY: &str = "100Mi";
/// The priority of the class, which a kubelet without an API server cannot look up.
const CLASS: (&str, u64) = ("system-node-critical", 2_000_001_000);

/// How a service is run by a kubelet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) image: String,
    /// The program in the image.
    pub(crate) command: String,
    /// The directory that the kubelet reads.
    pub(crate) manifests: PathBuf,
    /// Directories that the service reads.
    pub(crate) reads: Vec<PathBuf>,
    /// The argument that makes it write its log to a file too.
    pub(crate) log_argument: String,
}

/// One manifest.
pub(super) struct Manifest<'a> {
    pub(super) pod: &'a Pod,
    pub(super) launch: &'a Launch,
    pub(super) profile: &'a Profile,
    pub(super) owner: Owner,
    pub(super) gate: &'a Path,
    /// Differs at each start, so a kubelet takes no pod for one that it knows.
    pub(super) start: &'a str,
}

impl Manifest<'_> {
    pub(super) fn text(&self) -> String {
        let value = serde_json::to_string_pretty(&self.value()).expect("plain data serializes");
        format!("{HEADER}\n{value}\n")
    }

    fn value(&self) -> Value {
        let Manifest { pod, launch, profile, owner: (user, group), start, .. } = self;
        let (class, priority) = CLASS;
        let (volumes, mounts) = self.volumes();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": profile.name,
                "namespace": "kube-system",
                "labels": { "component": profile.name },
                "annotations": { "quorate/start": start },
            },
            "spec": {
                "hostNetwork": true,
                "priorityClassName": class,
                "priority": priority,
                "restartPolicy": if launch.first_args.is_empty() { "Always" } else { "Never" },
                "terminationGracePeriodSeconds": GRACE,
                "enableServiceLinks": false,
                "securityContext": {
                    "runAsUser": user,
                    "runAsGroup": group,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": profile.name,
                    "image": pod.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [pod.command],
                    "args": self.arguments(),
                    "env": self.variables(),
                    "resources": { "requests": { "cpu": CPU, "memory": MEMORY } },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        })
    }

    fn arguments(&self) -> Vec<String> {
        let all = self.profile.all_args(self.launch).into_iter().chain([self.pod.log_argument.clone()]);
        all.map(|word| literal(&word)).collect()
    }

    fn variables(&self) -> Vec<Value> {
        let own = [(DIGEST, self.launch.digest.as_str()), (START, self.start)];
        let given = self.launch.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        given.chain(own).map(|(name, value)| json!({ "name": name, "value": literal(value) })).collect()
    }

    /// Everything is mounted where it is on the machine, so flags name the same paths in either way of running.
    fn volumes(&self) -> (Vec<Value>, Vec<Value>) {
        let reads = self.pod.reads.iter().map(|path| (path.as_path(), "Directory", true));
        let all = [
            (self.profile.data.as_path(), "Directory", false),
            (self.profile.log.as_path(), "File", false),
            (self.gate, "Directory", true),
        ];
        let all = all.into_iter().chain(reads).enumerate();
        all.map(|(number, (path, kind, read_only))| {
            let name = format!("path-{number}");
            (
                json!({ "name": name, "hostPath": { "path": path, "type": kind } }),
                json!({ "name": name, "mountPath": path, "readOnly": read_only }),
            )
        })
        .unzip()
    }
}

/// A kubelet expands `$(NAME)` in arguments and variables.
fn literal(text: &str) -> String {
    text.replace("$(", "$$(")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd;
    use crate::layout::Layout;
    use std::collections::BTreeMap;

    fn manifest(first_args: &[&str], args: &[&str]) -> String {
        let profile = etcd::profile(&Layout::new(Path::new("/")).unwrap());
        let pod = Pod {
            image: String::from("registry.k8s.io/etcd:3.6.14-0"),
            command: String::from("etcd"),
            manifests: PathBuf::from("/etc/kubernetes/manifests"),
            reads: vec![PathBuf::from("/etc/etcd")],
            log_argument: String::from("--log-outputs=stderr,/var/log/etcd.log"),
        };
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let launch = Launch {
            program: PathBuf::from("/opt/etcd/etcd"),
            args: owned(args),
            first_args: owned(first_args),
            env: BTreeMap::new(),
            digest: String::from("abc123"),
            version: None,
            pod: Some(pod.clone()),
        };
        let gate = Path::new("/run/quorate/etcd-pod");
        Manifest { pod: &pod, launch: &launch, profile: &profile, owner: (998, 997), gate, start: "s1" }.text()
    }

    fn parsed(text: &str) -> Value {
        let (header, rest) = text.split_once('\n').unwrap();
        assert_eq!(header, HEADER);
        serde_json::from_str(rest).unwrap()
    }

    #[test]
    fn only_the_first_start_may_bootstrap_and_no_kubelet_repeats_it() {
        let first = parsed(&manifest(&["--initial-cluster-state=new"], &["--name=etcd-1"]));
        assert_eq!(first["spec"]["restartPolicy"], "Never");
        let first_args = first["spec"]["containers"][0]["args"].to_string();
        assert!(first_args.contains("=new") && !first_args.contains("=existing"), "{first_args}");
        let later = parsed(&manifest(&[], &["--name=etcd-1"]));
        assert_eq!(later["spec"]["restartPolicy"], "Always");
        let args = later["spec"]["containers"][0]["args"].to_string();
        assert!(args.contains("--initial-cluster-state=existing") && !args.contains("=new"), "{args}");
    }

    #[test]
    fn without_its_gate_a_kubelet_starts_nothing() {
        let pod = parsed(&manifest(&[], &[]));
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let gate = volumes.iter().find(|volume| volume["hostPath"]["path"] == "/run/quorate/etcd-pod").unwrap();
        assert_eq!(gate["hostPath"]["type"], "Directory");
        // A volume that no container mounts is not looked at.
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
        assert!(mounts.iter().any(|mount| mount["name"] == gate["name"] && mount["readOnly"] == true));
        assert_eq!(mounts.len(), volumes.len());
    }

    #[test]
    fn it_runs_as_etcds_user_with_no_more_rights_than_it_needs() {
        let pod = parsed(&manifest(&[], &[]));
        let spec = &pod["spec"];
        assert_eq!((&spec["hostNetwork"], &spec["priorityClassName"]), (&json!(true), &json!("system-node-critical")));
        assert_eq!(
            (&spec["securityContext"]["runAsUser"], &spec["securityContext"]["runAsGroup"]),
            (&json!(998), &json!(997))
        );
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert!(container["livenessProbe"].is_null());
        let writable = container["volumeMounts"].as_array().unwrap().iter().filter(|mount| mount["readOnly"] == false);
        assert_eq!(
            writable.map(|mount| &mount["mountPath"]).collect::<Vec<_>>(),
            ["/var/lib/etcd", "/var/log/etcd.log"]
        );
    }

    #[test]
    fn nothing_in_a_flag_reaches_beyond_it() {
        let text = manifest(&[], &["--log-level=a\n\"b\": $(HOME) $1"]);
        let pod = parsed(&text);
        assert_eq!(pod["spec"]["containers"][0]["args"][0], "--log-level=a\n\"b\": $$(HOME) $1");
    }
}
