//! An etcd that quorate does not manage: where it is, and how to log in.

use super::Findings;

/// The given parts of a login.
pub(crate) struct WayIn {
    /// The certificate, and its key.
    pub certificate: (bool, bool),
    /// The user, and the password.
    pub password: (bool, bool),
}

impl WayIn {
    /// Whether the parts are complete, and there is a login at all.
    pub(crate) fn check(&self, at: impl Fn(&str) -> String, found: &mut Findings) -> bool {
        let (what, hint) = match (self.certificate, self.password) {
            ((true, false) | (false, true), _) => {
                ("a certificate and its key go together", "name both `certificate` and `key`")
            }
            (_, (true, false) | (false, true)) => {
                ("a user and a password go together", "name both `username` and `password_file`")
            }
            ((false, false), (false, false)) => {
                ("there is no way to log in", "name `certificate` and `key`, or `username` and `password_file`")
            }
            ((true, true), _) | (_, (true, true)) => return true,
        };
        found.error(at(""), what, hint);
        false
    }

    pub(crate) fn has_both(&self) -> bool {
        self.certificate.0 && self.password.0
    }
}

pub(crate) fn endpoints(endpoints: &[String], at: impl Fn(&str) -> String, found: &mut Findings) {
    if endpoints.is_empty() {
        found.error(at(".endpoints"), "no endpoint is named", "name one, such as `[10.0.0.9:2379]`");
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        if !is_endpoint(endpoint) {
            found.error(
                at(&format!(".endpoints[{index}]")),
                format!("`{endpoint}` is not an endpoint"),
                "write HOST:PORT, such as `10.0.0.9:2379`; TLS is always spoken",
            );
        }
    }
}

fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host(host) && !host.contains(':'),
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

pub(super) fn is_host(text: &str) -> bool {
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    text.parse::<std::net::IpAddr>().is_ok()
        || (!text.is_empty() && text.chars().all(name) && !text.starts_with(['-', '.']))
}
