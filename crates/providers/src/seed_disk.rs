//! The seed disk: all settings of a new machine, on a small FAT disk that both quorate's own boot and cloud-init find by its
//! label. The only secret on it is the enrolment token, which is bound to the first key and expires.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use quorate_agent::api::Seed;
use quorate_agent::api::boot::{Admin, MACHINE_FILE, Machine, PROGRAM_FILE, SEED_FILE, SEED_LABEL};
use serde_json::{Map, Value, json};

use super::ProviderError;
use super::fat::{self, Drive};
use super::stock::start_agent;

/// Names the program that is put on seed disks, where the one that runs is not fit for it.
pub(super) const PROGRAM_VARIABLE: &str = "QUORATE_AGENT_PROGRAM";

/// `program`: the agent, for images that do not carry it.
pub(super) fn seed_disk(seed: &Seed, machine: &Machine, program: Option<&[u8]>, drive: Drive) -> Vec<u8> {
    let pretty = |value: &Value| serde_json::to_vec_pretty(value).expect("plain data serializes");
    let seed_file = serde_json::to_vec_pretty(seed).expect("plain data serializes");
    let machine_file = serde_json::to_vec_pretty(machine).expect("plain data serializes");
    let user_data = user_data(machine.admin.as_ref(), program.is_some());
    // YAML reads JSON, and nothing in JSON needs care with indentation.
    let network_config = pretty(&network_config(machine));
    let meta_data = pretty(&json!({
        "instance-id": format!("quorate-{}-{}-{}", seed.cluster_id, seed.member, seed.incarnation),
        "local-hostname": machine.hostname,
    }));
    let mut files: Vec<(&str, &[u8])> = vec![
        (SEED_FILE, &seed_file),
        (MACHINE_FILE, &machine_file),
        ("user-data", user_data.as_bytes()),
        ("meta-data", &meta_data),
        ("network-config", &network_config),
    ];
    files.extend(program.map(|program| (PROGRAM_FILE, program)));
    fat::disk(SEED_LABEL, &files, drive)
}

/// For stock images: has cloud-init let the admin in, and hand over to the agent.
fn user_data(admin: Option<&Admin>, brings_program: bool) -> String {
    let mut commands = Vec::new();
    if brings_program {
        let copy = format!(
            "mkdir -p /run/quorate-seed /usr/lib/quorate && \
             mount -o ro /dev/disk/by-label/{SEED_LABEL} /run/quorate-seed && \
             install -m 0755 /run/quorate-seed/{PROGRAM_FILE} /usr/lib/quorate/quorate; \
             umount /run/quorate-seed"
        );
        commands.push(json!(["sh", "-c", copy]));
    }
    commands.push(start_agent(None));
    cloud_config(admin, false, commands, Map::new())
}

/// What cloud-init does: `commands`, once, and `more`. `keeps_user`: the image's default user stays.
pub(super) fn cloud_config(
    admin: Option<&Admin>,
    keeps_user: bool,
    commands: Vec<Value>,
    more: Map<String, Value>,
) -> String {
    // The agent says who may log in, and the same is said here, for the case that it does not come up. cloud-init's own ways in stay shut.
    let users: Vec<Value> = keeps_user.then(|| json!("default")).into_iter().chain(admin.map(cloud_user)).collect();
    let mut config = json!({
        "ssh_pwauth": false,
        "disable_root": true,
        "users": users,
        // Or the machine does not know its own name, which sudo asks for.
        "manage_etc_hosts": "localhost",
        "runcmd": commands,
    });
    config.as_object_mut().expect("an object").extend(more);
    format!("#cloud-config\n{}\n", serde_json::to_string_pretty(&config).expect("plain data serializes"))
}

fn cloud_user(admin: &Admin) -> Value {
    let sudo = "ALL=(ALL:ALL) NOPASSWD:ALL";
    let mut user = json!({ "name": admin.user, "shell": "/bin/bash", "sudo": sudo, "lock_passwd": true });
    if !admin.ssh_keys.is_empty() {
        user["ssh_authorized_keys"] = json!(admin.ssh_keys);
    }
    user
}

/// cloud-init's network configuration, version 2.
fn network_config(machine: &Machine) -> Value {
    let mut interfaces = Map::new();
    for (number, interface) in machine.interfaces.iter().enumerate() {
        let name = format!("quorate{number}");
        let mut config = json!({
            "match": { "macaddress": interface.mac },
            // Where cloud-init writes for ifupdown or networkd, it does so by name, and an interface of another name gets nothing.
            "set-name": name,
            "dhcp4": false,
            "dhcp6": false,
            "addresses": [format!("{}/{}", interface.address, interface.prefix)],
        });
        if let Some(gateway) = interface.gateway {
            let to = if matches!(gateway, IpAddr::V4(_)) { "0.0.0.0/0" } else { "::/0" };
            config["routes"] = json!([{ "to": to, "via": gateway }]);
        }
        if !interface.dns.is_empty() {
            config["nameservers"] = json!({ "addresses": interface.dns });
        }
        interfaces.insert(name, config);
    }
    json!({ "version": 2, "ethernets": interfaces })
}

/// The program that is put on seed disks: this very one if it is statically linked, so that it starts on any Linux, or the one
/// that the environment names.
pub(super) fn static_program() -> Result<Vec<u8>, ProviderError> {
    let named = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
    let path = match named {
        Some(path) => path,
        None => std::env::current_exe().map_err(|source| unread(Path::new("quorate"), source))?,
    };
    if !is_static(&path).map_err(|source| unread(&path, source))? {
        return Err(ProviderError::NotStatic { path });
    }
    let program = fs::read(&path).map_err(|source| unread(&path, source))?;
    // The other files are small.
    if program.len() > fat::MOST_BYTES - (1 << 20) {
        return Err(ProviderError::ProgramTooLarge { path, bytes: program.len() });
    }
    Ok(program)
}

fn unread(path: &Path, source: io::Error) -> ProviderError {
    ProviderError::Io { what: "read", path: path.to_owned(), source }
}

/// Whether an ELF program of 64 bits asks for no interpreter, as those do that are linked at run time.
fn is_static(path: &Path) -> io::Result<bool> {
    const INTERPRETER: u32 = 3;
    let mut file = File::open(path)?;
    let mut header = [0; 64];
    if file.read_exact(&mut header).is_err() || !header.starts_with(b"\x7fELF\x02") {
        return Ok(false);
    }
    let word = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let offset = u64::from_le_bytes(header[32..40].try_into().expect("eight bytes"));
    let (size, count) = (word(&header[54..]), word(&header[56..]));
    let mut table = vec![0; size * count];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut table)?;
    let kinds = table.chunks(size.max(4)).map(|entry| u32::from_le_bytes(entry[..4].try_into().expect("four bytes")));
    Ok(!kinds.into_iter().any(|kind| kind == INTERPRETER))
}

#[cfg(test)]
mod tests {
    use quorate_agent::api::boot::Interface;

    use super::*;

    fn machine() -> Machine {
        let interface = Interface {
            mac: String::from("52:54:00:00:00:01"),
            address: "192.168.122.11".parse().unwrap(),
            prefix: 24,
            gateway: "192.168.122.1".parse().ok(),
            dns: vec!["192.168.122.1".parse().unwrap()],
            more_addresses: Vec::new(),
        };
        Machine {
            hostname: String::from("etcd-1"),
            interfaces: vec![interface],
            admin: None,
            data_disk: None,
            channel: true,
        }
    }

    #[test]
    fn cloud_init_gets_addresses_by_mac() {
        let config = network_config(&machine());
        let first = &config["ethernets"]["quorate0"];
        assert_eq!(first["match"]["macaddress"], "52:54:00:00:00:01");
        assert_eq!(first["set-name"], "quorate0");
        assert_eq!(first["addresses"][0], "192.168.122.11/24");
        assert_eq!(first["routes"][0]["via"], "192.168.122.1");
    }

    #[test]
    fn user_data_names_the_program_only_where_it_is_brought() {
        let text = |brings_program: bool| user_data(None, brings_program);
        assert!(text(true).starts_with("#cloud-config\n{"));
        assert!(text(true).contains("install -m 0755") && !text(false).contains("install"));
    }

    #[test]
    fn user_data_names_the_admin_and_nobody_else() {
        let admin = Admin {
            user: String::from("ada"),
            ssh_keys: vec![String::from("ssh-ed25519 AAAA ada")],
            console_password_hash: Some(String::from("$6$secret")),
        };
        let text = user_data(Some(&admin), true);
        let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        let users = config["users"].as_array().unwrap();
        assert_eq!(users.len(), 1);
        assert_eq!(
            (&users[0]["name"], &users[0]["ssh_authorized_keys"][0]),
            (&json!("ada"), &json!("ssh-ed25519 AAAA ada"))
        );
        assert!(!text.contains("$6$"), "user data is there for every process to read");
    }

    #[test]
    fn a_program_that_is_linked_at_run_time_is_known() {
        assert!(!is_static(Path::new("/bin/sh")).unwrap());
        assert!(!is_static(Path::new("/etc/passwd")).unwrap());
    }
}
