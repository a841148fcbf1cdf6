//! A cluster whose backups go to SeaweedFS, encrypted, and what tests ask of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use age::secrecy::ExposeSecret;
use age::x25519;
use serde_json::Value;

use crate::common::store::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY, object_store};
use crate::common::{Run, Sandbox, lab};

pub const V35: &str = "3.5.30";

/// The file of the operator's identity, which opens backups.
pub const OPERATOR: &str = "operator.key";

/// A role and a user whom the spec declares.
const DECLARED: &str = "\
auth:
  roles:
    - {name: reader, permissions: [{prefix: /a/, access: read}]}
  users:
    - {name: app, roles: [reader]}
";

pub struct Backed {
    pub sandbox: Sandbox,
    pub version: String,
    members: usize,
    /// Tests share a bucket; each has a part of it.
    pub prefix: String,
    pub recipient: String,
    /// As the spec has them.
    credentials: &'static str,
}

impl Backed {
    /// Written down, and not made yet.
    pub fn new(prefix: &str, members: usize, version: &str) -> Self {
        // Of 3.5, for its etcdutl: the one that restores the data of 3.4 too.
        Self::in_sandbox(Sandbox::new(V35), prefix, members, version)
    }

    fn in_sandbox(sandbox: Sandbox, prefix: &str, members: usize, version: &str) -> Self {
        let recipient = make_identity(&sandbox, OPERATOR);
        let (prefix, version) = (format!("{prefix}-{}", std::process::id()), version.to_owned());
        let backed = Backed { sandbox, version, members, prefix, recipient, credentials: "{file: store.keys}" };
        backed.write_keys("store.keys", SECRET_KEY);
        backed.edit(&[&backed.recipient], "");
        backed
    }

    /// One that runs, holds something, and has users whom the spec does not know.
    pub fn up(prefix: &str, members: usize, version: &str) -> Self {
        Self::new(prefix, members, version).filled()
    }

    /// One whose credentials are in the environment.
    pub fn up_by_environment(prefix: &str, members: usize, version: &str) -> Self {
        let backed = Backed { credentials: "environment", ..Self::new(prefix, members, version) };
        backed.edit(&[&backed.recipient], "");
        backed.filled()
    }

    /// One with nothing but its own version's programs at hand.
    pub fn without_other_programs(prefix: &str, version: &str) -> Self {
        Self::in_sandbox(Sandbox::new(version), prefix, 1, version).filled()
    }

    fn filled(self) -> Self {
        self.apply().ok();
        self.put_numbered(1..=10, "first");
        self.etcdctl(&["role", "add", "by-hand"]).ok();
        self.etcdctl(&["role", "grant-permission", "by-hand", "readwrite", "/hand/", "--prefix=true"]).ok();
        self.etcdctl(&["user", "add", "visitor", "--no-password"]).ok();
        self.etcdctl(&["user", "grant-role", "visitor", "by-hand"]).ok();
        self
    }

    /// Writes the spec again with these recipients; `rest` are further lines below `backup`.
    pub fn edit(&self, recipients: &[&str], rest: &str) {
        self.edit_with(&self.s3(BUCKET, self.credentials), recipients, rest);
    }

    pub fn s3(&self, bucket: &str, credentials: &str) -> String {
        let endpoint = object_store().endpoint();
        let prefix = &self.prefix;
        format!(
            "s3: {{endpoint: \"{endpoint}\", region: {REGION}, bucket: {bucket}, prefix: {prefix}/, path_style: true, credentials: {credentials}}}"
        )
    }

    pub fn edit_with(&self, destination: &str, recipients: &[&str], rest: &str) {
        let binary = lab(&self.version).display().to_string();
        let members: Vec<String> = (1..=self.members).map(|n| format!("{{name: etcd-{n}}}")).collect();
        let (version, members, recipients) = (&self.version, members.join(", "), recipients.join(", "));
        let backup = format!("backup:\n  to: {{{destination}}}\n  recipients: [{recipients}]\n{rest}");
        let below: String = DECLARED.lines().chain(backup.lines()).map(|line| format!("    {line}\n")).collect();
        let text = format!(
            "quorate: 1\nclusters:\n  - name: c\n    members: [{members}]\n    etcd: {{version: {version}, binary: {{path: {binary}}}}}\n{below}"
        );
        self.sandbox.file("c.yaml", &text);
    }

    /// A credentials file for the owner alone.
    pub fn write_keys(&self, name: &str, secret: &str) {
        let text = format!("access_key_id={ACCESS_KEY}\nsecret_access_key={secret}\n");
        let path = self.sandbox.file(name, &text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        if self.credentials == "environment" {
            command.envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]);
        }
        command
    }

    pub fn quorate(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().expect("quorate runs").into()
    }

    pub fn apply(&self) -> Run {
        self.quorate(&["apply", "c.yaml", "--yes"])
    }

    /// `quorate backup VERB c …`
    pub fn backup(&self, verb: &str, more: &[&str]) -> Run {
        self.quorate(&[&["backup", verb, "c"], more].concat())
    }

    pub fn verify(&self, more: &[&str]) -> Run {
        self.backup("verify", &[more, &["--identity", OPERATOR]].concat())
    }

    /// `quorate restore c.yaml …`, with the operator's confirmation and key.
    pub fn restore(&self, more: &[&str]) -> Run {
        self.quorate(&[&["restore", "c.yaml", "--yes", "--identity", OPERATOR], more].concat())
    }

    /// The key that signs its backups, as the ledger has it.
    pub fn signer(&self) -> String {
        self.sandbox.ledger("c")["backup_signing"]["public"].as_str().expect("a key").to_owned()
    }

    pub fn list(&self) -> Vec<Value> {
        let listed = self.backup("list", &["--output", "json"]).ok().json();
        listed["backups"].as_array().unwrap_or_else(|| panic!("{listed:#}")).clone()
    }

    /// Takes one and names it.
    #[track_caller]
    pub fn create(&self) -> String {
        let created = self.backup("create", &["--output", "json"]).ok().json();
        created["id"].as_str().expect("an id").to_owned()
    }

    pub fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.sandbox.etcdctl(&self.version, "c", arguments)
    }

    pub fn put_numbered(&self, numbers: impl Iterator<Item = u32>, value: &str) {
        let root = self.sandbox.environment("c");
        for number in numbers {
            self.sandbox.etcdctl_with(&self.version, &root, &["put", &format!("/a/{number:02}"), value]).ok();
        }
    }

    /// What etcd holds, by key.
    #[track_caller]
    pub fn contents(&self) -> BTreeMap<String, String> {
        let text = self.etcdctl(&["get", "", "--prefix"]).ok().stdout;
        let lines: Vec<&str> = text.lines().collect();
        lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
    }

    #[track_caller]
    pub fn revision(&self) -> i64 {
        let answer = self.etcdctl(&["get", "nothing", "--write-out=json"]).ok().json();
        answer["header"]["revision"].as_i64().expect("a revision")
    }

    /// Users and roles, with what each of those made manually may do.
    #[track_caller]
    pub fn users_and_roles(&self) -> String {
        let calls: [&[&str]; 6] = [
            &["user", "list"],
            &["role", "list"],
            &["user", "get", "visitor"],
            &["role", "get", "by-hand"],
            &["user", "get", "app"],
            &["role", "get", "reader"],
        ];
        let root = self.sandbox.environment("c");
        calls.iter().map(|call| self.sandbox.etcdctl_with(&self.version, &root, call).ok().stdout).collect()
    }

    /// Every process of the cluster: the same ones later mean that nobody was touched.
    pub fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.sandbox.processes().into_iter().map(|(pid, _)| pid).collect();
        pids.sort_unstable();
        pids
    }

    #[track_caller]
    pub fn assert_settled(&self) {
        let status = self.sandbox.status("c");
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        assert_eq!(status["voters"], self.members, "{status:#}");
        assert_eq!(self.sandbox.etcds().len(), self.members, "{:#?}", self.sandbox.processes());
        assert_eq!(self.sandbox.agents().len(), self.members, "{:#?}", self.sandbox.processes());
        self.sandbox.assert_nothing_to_do("c.yaml");
    }
}

/// The object of a backup of the test's cluster.
pub fn object(prefix: &str, path: &str) -> String {
    format!("{prefix}/c/{path}")
}

/// Makes an identity as `age-keygen` does, for the owner alone, and gives its recipient.
pub fn make_identity(sandbox: &Sandbox, name: &str) -> String {
    let identity = x25519::Identity::generate();
    let path = sandbox.file(name, &format!("# for a test\n{}\n", identity.to_string().expose_secret()));
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
    identity.to_public().to_string()
}

/// etcd's own program for snapshot files: `etcdutl`, or `etcdctl` of 3.4.
pub fn snapshot_tool(version: &str, arguments: &[&str]) -> Run {
    let name = if version.starts_with("3.4.") { "etcdctl" } else { "etcdutl" };
    let mut command = Command::new(lab(version).join(name));
    command.env("ETCDCTL_API", "3").args(arguments).output().expect("it runs").into()
}
