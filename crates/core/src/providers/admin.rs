//! The user who may log in to machines, for every provider except `local`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::check::Findings;

/// Who may log in to the machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSettings {
    /// Name of a user who may become root.
    #[schemars(length(min = 1))]
    pub user: String,
    /// Public keys with which that user may log in by ssh.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Hash of a password for the console, as `openssl passwd -6` makes it; it never opens ssh.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub console_password_hash: Option<String>,
}

impl Default for AdminSettings {
    fn default() -> Self {
        Self { user: String::from("ubuntu"), ssh_keys: Vec::new(), console_password_hash: None }
    }
}

impl AdminSettings {
    /// `within` is where these settings are in the file.
    pub(super) fn check(&self, within: &str, found: &mut Findings) {
        let at = |field: &str| format!("{within}.{field}");
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        let begins_well = self.user.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        if !begins_well || self.user.len() > 32 || !self.user.bytes().all(plain) {
            let message = format!("`{}` is not a user name", self.user);
            found.error(at("user"), message, "use lower case letters, digits, `-` and `_`, 32 at most");
        } else if self.user == "root" {
            found.error(
                at("user"),
                "root does not log in to machines",
                "name another user, who may become root by sudo",
            );
        }
        for (index, key) in self.ssh_keys.iter().enumerate() {
            if !is_public_key(key) {
                // What stands there may be a private key.
                found.error(
                    at(&format!("ssh_keys[{index}]")),
                    "this is not a public key as ssh writes it",
                    "give one line such as `ssh-ed25519 AAAA… name`, the content of a .pub file",
                );
            }
        }
        if self.console_password_hash.as_ref().is_some_and(|hash| !is_crypt_hash(hash)) {
            found.error(
                at("console_password_hash"),
                "this is not the hash of a password",
                "make one with `openssl passwd -6`; it begins with `$6$`",
            );
        }
    }
}

fn is_public_key(key: &str) -> bool {
    let mut words = key.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let known = kind.starts_with("ssh-") || kind.starts_with("ecdsa-sha2-") || kind.starts_with("sk-");
    let base64 =
        |word: &str| word.starts_with("AAAA") && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
    known && !key.contains('\n') && words.next().is_some_and(base64)
}

fn is_crypt_hash(hash: &str) -> bool {
    let fields: Vec<&str> = hash.split('$').collect();
    fields.len() >= 4
        && fields[0].is_empty()
        && fields[1..].iter().all(|field| !field.is_empty())
        && !hash.contains([':', '\n'])
}
