//! Checks `machine.json` before anything of it is written into files that other programs read.

use std::path::Path;

use crate::AgentError;
use crate::api::boot::{Admin, Interface, Machine};

type Checked = Result<(), (String, String)>;

pub(super) fn check(machine: &Machine, file: &Path) -> Result<(), AgentError> {
    let checked = host_name(&machine.hostname)
        .and_then(|()| interfaces(&machine.interfaces))
        .and_then(|()| machine.admin.as_ref().map_or(Ok(()), admin))
        .and_then(|()| machine.data_disk.as_ref().map_or(Ok(()), |disk| serial(&disk.serial)));
    checked.map_err(|(field, why)| AgentError::Machine { path: file.to_owned(), field, why })
}

fn wrong(field: impl Into<String>, expected: &str, found: &str) -> Checked {
    Err((field.into(), format!("expected {expected}, found {found:?}; let the provider write the seed disk again")))
}

fn host_name(name: &str) -> Checked {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let edges = name.bytes().next().into_iter().chain(name.bytes().last()).all(|byte| byte.is_ascii_alphanumeric());
    if (1..=64).contains(&name.len()) && name.bytes().all(letters) && edges {
        return Ok(());
    }
    wrong("hostname", "1 to 64 lower case letters, digits, hyphens and dots", name)
}

fn interfaces(interfaces: &[Interface]) -> Checked {
    if interfaces.is_empty() {
        return wrong("interfaces", "at least one interface", "none");
    }
    for (at, interface) in interfaces.iter().enumerate() {
        let field = |name: &str| format!("interfaces[{at}].{name}");
        if !is_mac(&interface.mac) {
            return wrong(field("mac"), "a MAC address such as 52:54:00:12:34:56", &interface.mac);
        }
        if interfaces[..at].iter().any(|other| other.mac == interface.mac) {
            return wrong(field("mac"), "a MAC address that no other interface has", &interface.mac);
        }
        let longest = if interface.address.is_ipv4() { 32 } else { 128 };
        if !(1..=longest).contains(&interface.prefix) {
            return wrong(field("prefix"), &format!("1 to {longest}"), &interface.prefix.to_string());
        }
        if let Some(gateway) = interface.gateway.filter(|gateway| gateway.is_ipv4() != interface.address.is_ipv4()) {
            return wrong(field("gateway"), "an address of the same kind as the interface's", &gateway.to_string());
        }
    }
    Ok(())
}

fn is_mac(text: &str) -> bool {
    let pairs: Vec<&str> = text.split(':').collect();
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    pairs.len() == 6 && pairs.iter().all(|pair| pair.len() == 2 && pair.bytes().all(hex))
}

fn admin(admin: &Admin) -> Checked {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let first = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let user = &admin.user;
    if user.is_empty() || user.len() > 32 || !user.bytes().all(letters) || !user.bytes().next().is_some_and(first) {
        return wrong("admin.user", "a user name of lower case letters, digits, - and _", user);
    }
    if user == "root" || user == "etcd" {
        return wrong("admin.user", "a user that is neither root nor etcd", user);
    }
    for (at, key) in admin.ssh_keys.iter().enumerate() {
        let words = key.split_whitespace().count();
        if key.chars().any(char::is_control) || words < 2 || key.trim_start().starts_with('#') {
            return wrong(
                format!("admin.ssh_keys[{at}]"),
                "one line of a public key, such as `ssh-ed25519 AAAA… me`",
                key,
            );
        }
    }
    // The hash itself is not printed, because it would be on the console.
    let is_hash =
        |hash: &String| hash.starts_with('$') && !hash.contains([':', ' ']) && !hash.chars().any(char::is_control);
    if admin.console_password_hash.as_ref().is_some_and(|hash| !is_hash(hash)) {
        return wrong(
            "admin.console_password_hash",
            "a hash as `mkpasswd` makes it, beginning with $",
            "something else",
        );
    }
    Ok(())
}

fn serial(serial: &str) -> Checked {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=20).contains(&serial.len()) && serial.bytes().all(letters) {
        return Ok(());
    }
    wrong("data_disk.serial", "1 to 20 letters, digits, hyphens, dots and underscores", serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::boot::DataDisk;

    fn machine() -> Machine {
        serde_json::from_str(
            r#"{"hostname": "etcd-1", "interfaces": [{"mac": "52:54:00:00:00:01", "address": "10.0.0.1", "prefix": 24}],
                "admin": {"user": "ubuntu", "ssh_keys": ["ssh-ed25519 AAAA me"], "console_password_hash": "$6$a$b"}}"#,
        )
        .unwrap()
    }

    fn message(change: impl FnOnce(&mut Machine)) -> String {
        let mut machine = machine();
        change(&mut machine);
        check(&machine, Path::new("machine.json")).map_or_else(|error| error.to_string(), |()| String::from("fine"))
    }

    #[test]
    fn boot_values_that_could_inject_into_files_are_refused() {
        assert_eq!(message(|_| {}), "fine");
        let said = message(|machine| machine.hostname = String::from("etcd-1\n10.0.0.1 bank"));
        assert!(said.starts_with("machine.json: hostname: expected 1 to 64 lower case letters"), "{said}");
        let said = message(|machine| machine.interfaces[0].mac = String::from("52:54:00:00:00:01\n[Network]"));
        assert!(said.starts_with("machine.json: interfaces[0].mac: expected a MAC address"), "{said}");
        let said = message(|machine| machine.admin.as_mut().unwrap().user = String::from("me ALL"));
        assert!(said.starts_with("machine.json: admin.user: "), "{said}");
        let said = message(|machine| machine.admin.as_mut().unwrap().ssh_keys.push(String::from("a b\nc d")));
        assert!(said.starts_with("machine.json: admin.ssh_keys[1]: "), "{said}");
        let said = message(|machine| machine.data_disk = Some(DataDisk { serial: String::from("../sda") }));
        assert!(said.starts_with("machine.json: data_disk.serial: "), "{said}");
    }

    #[test]
    fn impossible_boot_values_are_refused() {
        let said = message(|machine| machine.interfaces.clear());
        assert!(said.contains("at least one interface"), "{said}");
        let said = message(|machine| machine.interfaces.push(machine.interfaces[0].clone()));
        assert!(said.starts_with("machine.json: interfaces[1].mac: expected a MAC address that no other"), "{said}");
        let said = message(|machine| machine.interfaces[0].prefix = 33);
        assert!(said.contains("expected 1 to 32, found \"33\""), "{said}");
        let said = message(|machine| machine.interfaces[0].gateway = Some("fd00::1".parse().unwrap()));
        assert!(said.starts_with("machine.json: interfaces[0].gateway: "), "{said}");
        let hash = String::from("secret");
        let said = message(|machine| machine.admin.as_mut().unwrap().console_password_hash = Some(hash));
        assert!(said.contains("console_password_hash") && !said.contains("secret"), "{said}");
    }

    /// What passes is safe in a line of a file.
    #[test]
    fn fuzz_machines() {
        quorate_fuzz::campaign(&[serde_json::to_vec(&machine()).unwrap()], |input| {
            let Ok(machine) = serde_json::from_slice::<Machine>(input) else { return };
            if check(&machine, Path::new("machine.json")).is_err() {
                return;
            }
            let admin = machine.admin.iter().flat_map(|admin| admin.ssh_keys.iter().chain([&admin.user]));
            let disk = machine.data_disk.iter().map(|disk| &disk.serial);
            let macs = machine.interfaces.iter().map(|interface| &interface.mac);
            let texts = [&machine.hostname].into_iter().chain(admin).chain(disk).chain(macs);
            texts.for_each(|text| assert!(!text.chars().any(char::is_control), "{text:?}"));
        });
    }
}
