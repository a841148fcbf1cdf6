//! User data: all settings of a new instance, for cloud-init, for Ignition or for the agent itself. Every process on the instance can read
//! it, so the only secret in it is the enrolment token, which is bound to the first key and expires.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_agent::api::Seed;
use quorate_agent::api::boot::Machine;
use quorate_agent::boot::{PROGRAM, stock_unit};
use quorate_core::providers::aws::{AwsSettings, SeedFormat};
use serde_json::{Map, Value, json};

use super::error::AwsError;
use crate::seed_disk::cloud_config;
use crate::stock::{seed_files, start_agent, write_files};

/// What AWS takes, before it is encoded.
const MOST_BYTES: usize = 16 * 1024;
/// Every Flatcar and Fedora CoreOS of today knows it.
const IGNITION: &str = "3.3.0";
/// Where Ignition puts files that systemd lays over `/usr`, which is read-only on such systems.
const EXTENSION: &str = "var/lib/extensions/quorate";

pub(super) fn user_data(settings: &AwsSettings, seed: &Seed, machine: &Machine) -> Result<String, AwsError> {
    let text = match settings.seed {
        SeedFormat::CloudInit => cloud_init(settings, seed, machine),
        SeedFormat::Ignition => ignition(settings, seed, machine),
        SeedFormat::Quorate => quorate_agent::boot::user_data(seed, machine),
    };
    if text.len() > MOST_BYTES {
        let (member, bytes) = (seed.member.to_string(), text.len());
        return Err(AwsError::UserDataTooLong { member, bytes, most: MOST_BYTES });
    }
    Ok(text)
}

fn cloud_init(settings: &AwsSettings, seed: &Seed, machine: &Machine) -> String {
    let mut more = Map::new();
    more.insert(String::from("write_files"), write_files(seed, machine));
    more.insert(String::from("hostname"), json!(machine.hostname));
    let keeps_user = settings.key_name.is_some();
    cloud_config(machine.admin.as_ref(), keeps_user, vec![start_agent(settings.program.as_ref())], more)
}

fn ignition(settings: &AwsSettings, seed: &Seed, machine: &Machine) -> String {
    let inline = |path: String, mode: u32, content: &[u8]| {
        let source = format!("data:;base64,{}", STANDARD.encode(content));
        json!({ "path": path, "mode": mode, "overwrite": true, "contents": { "source": source } })
    };
    let mut all: Vec<Value> =
        seed_files(seed, machine).into_iter().map(|(path, content)| inline(path, 0o600, &content)).collect();
    all.push(inline(String::from("/etc/hostname"), 0o644, format!("{}\n", machine.hostname).as_bytes()));
    if let Some(program) = &settings.program {
        let verification = json!({ "hash": format!("sha256-{}", program.sha256) });
        all.push(json!({
            "path": format!("/{EXTENSION}/{PROGRAM}"), "mode": 0o755,
            "contents": { "source": program.url, "verification": verification },
        }));
        let release = format!("/{EXTENSION}/usr/lib/extension-release.d/extension-release.quorate");
        all.push(inline(release, 0o644, b"ID=_any\n"));
    }
    let (name, unit) = stock_unit();
    let units = json!([
        { "name": "systemd-sysext.service", "enabled": true },
        { "name": name, "enabled": true, "contents": unit },
    ]);
    let mut config = json!({
        "ignition": { "version": IGNITION },
        "storage": { "files": all },
        "systemd": { "units": units },
    });
    if let Some(admin) = &machine.admin {
        let user = json!({ "name": admin.user, "groups": ["sudo", "wheel"], "sshAuthorizedKeys": admin.ssh_keys });
        config["passwd"] = json!({ "users": [user] });
    }
    serde_json::to_string(&config).expect("plain data serializes")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use jiff::Timestamp;
    use quorate_agent::api::boot::{Admin, Interface};
    use quorate_core::Secret;

    use super::*;

    /// Where the lab has Ignition's own validator.
    const VALIDATOR: &str = "QUORATE_LAB_IGNITION_VALIDATE";
    const SUM: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn seed() -> Seed {
        Seed {
            cluster: String::from("demo"),
            cluster_id: String::from("c"),
            member: "etcd-1".into(),
            incarnation: 1,
            address: "10.0.0.11".parse().unwrap(),
            control_ca: String::from("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            token: Secret::new("the-token"),
            token_expires: Timestamp::UNIX_EPOCH,
        }
    }

    fn machine(keys: usize) -> Machine {
        let key = |n: usize| format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{n:0>60} ada");
        let ssh_keys = (0..keys).map(key).collect();
        let interface = Interface {
            mac: String::from("52:54:00:00:00:01"),
            address: "10.0.0.11".parse().unwrap(),
            prefix: 24,
            gateway: "10.0.0.1".parse().ok(),
            dns: Vec::new(),
            more_addresses: Vec::new(),
        };
        Machine {
            hostname: String::from("etcd-1"),
            interfaces: vec![interface],
            admin: Some(Admin { user: String::from("ada"), ssh_keys, console_password_hash: None }),
            data_disk: None,
            channel: false,
        }
    }

    fn settings(seed: &str, url: &str) -> AwsSettings {
        let settings = json!({
            "instance_types": ["m7i.large"], "image": { "id": "ami-1" }, "seed": seed, "key_name": "ops",
            "program": { "url": url, "sha256": SUM },
        });
        serde_json::from_value(settings).unwrap()
    }

    fn unpacked(value: &Value, field: &str) -> Vec<u8> {
        let text = value[field].as_str().unwrap();
        STANDARD.decode(text.strip_prefix("data:;base64,").unwrap_or(text)).unwrap()
    }

    #[test]
    fn cloud_init_gets_the_seed_and_compares_the_program() {
        let text = user_data(&settings("cloud_init", "https://x.example/it's"), &seed(), &machine(1)).unwrap();
        let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        let files = config["write_files"].as_array().unwrap();
        let found: Seed = serde_json::from_slice(&unpacked(&files[0], "content")).unwrap();
        assert_eq!((found.member, files[0]["permissions"].as_str()), ("etcd-1".into(), Some("0600")));
        let read: Machine = serde_json::from_slice(&unpacked(&files[1], "content")).unwrap();
        assert_eq!((read, files[1]["path"].as_str()), (machine(1), Some("/var/lib/quorate/seed/machine.json")));
        assert_eq!(config["users"][0], "default", "the key pair is for that user");
        let script = config["runcmd"][0][2].as_str().unwrap();
        assert!(Command::new("sh").args(["-n", "-c", script]).status().unwrap().success(), "{script}");
        assert!(
            script.contains(&format!("echo '{SUM}  /usr/lib/quorate/quorate.new' | sha256sum -c - &&")),
            "{script}"
        );
    }

    #[test]
    fn ignition_gets_the_same_and_lays_the_program_over_usr() {
        let text = user_data(&settings("ignition", "https://x.example/quorate"), &seed(), &machine(1)).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        let files = config["storage"]["files"].as_array().unwrap();
        let file = |path: &str| files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}"));
        let found: Seed =
            serde_json::from_slice(&unpacked(&file("/var/lib/quorate/seed/seed.json")["contents"], "source")).unwrap();
        assert_eq!(
            (found.token.expose(), file("/var/lib/quorate/seed/seed.json")["mode"].as_u64()),
            ("the-token", Some(384))
        );
        let program = file("/var/lib/extensions/quorate/usr/lib/quorate/quorate");
        assert_eq!(program["contents"]["verification"]["hash"], format!("sha256-{SUM}"));
        let unit = config["systemd"]["units"][1]["contents"].as_str().unwrap();
        assert!(unit.contains("ExecStart=/usr/lib/quorate/quorate agent boot --beside-cloud-init\n"), "{unit}");
        assert_eq!(config["passwd"]["users"][0]["name"], "ada");
    }

    #[test]
    #[ignore = "needs Ignition's validator: `cargo xtask lab aws` runs it"]
    fn ignitions_own_validator_accepts_it() {
        let program = std::env::var_os(VALIDATOR).expect("the validator: use `cargo xtask lab aws`");
        let config = user_data(&settings("ignition", "https://x.example/quorate"), &seed(), &machine(1)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let run = |text: &str| {
            let path = directory.path().join("config.ign");
            std::fs::write(&path, text).unwrap();
            Command::new(Path::new(&program)).arg(&path).output().expect("the validator runs")
        };
        let done = run(&config);
        assert!(
            done.status.success(),
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        let broken = config.replace("\"mode\":384", "\"mode\":99999");
        assert!(!run(&broken).status.success(), "it refuses what is wrong");
    }

    #[test]
    fn user_data_larger_than_aws_accepts_is_refused() {
        for format in ["cloud_init", "ignition"] {
            let refused = user_data(&settings(format, "https://x.example/q"), &seed(), &machine(200));
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("the user data of etcd-1 has ") && said.contains("AWS takes 16384"), "{said}");
        }
    }
}
