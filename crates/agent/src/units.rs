//! What quorate's units have in common: how each program is sandboxed, and the check that a unit contains no injected
//! line break.

use crate::AgentError;

/// For programs that need nothing of the machine but files, network and their own user: etcd and fluent-bit.
pub(crate) const SHUT_IN: &str = "\
    NoNewPrivileges=yes\n\
    CapabilityBoundingSet=\n\
    AmbientCapabilities=\n\
    ProtectSystem=strict\n\
    ProtectHome=yes\n\
    PrivateTmp=yes\n\
    PrivateDevices=yes\n\
    ProtectProc=invisible\n\
    ProtectClock=yes\n\
    ProtectHostname=yes\n\
    ProtectKernelLogs=yes\n\
    ProtectKernelTunables=yes\n\
    ProtectKernelModules=yes\n\
    ProtectControlGroups=yes\n\
    RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n\
    RestrictNamespaces=yes\n\
    RestrictRealtime=yes\n\
    RestrictSUIDSGID=yes\n\
    LockPersonality=yes\n\
    MemoryDenyWriteExecute=yes\n\
    RemoveIPC=yes\n\
    UMask=0077\n\
    SystemCallArchitectures=native\n\
    SystemCallFilter=@system-service\n\
    SystemCallFilter=~@privileged\n\
    SystemCallErrorNumber=EPERM\n";

/// For one that is root because it writes root's files and starts units, and does nothing else.
pub(crate) const ROOT_SHUT_IN: &str = "\
    NoNewPrivileges=yes\n\
    ProtectSystem=strict\n\
    ProtectHome=yes\n\
    PrivateTmp=yes\n\
    PrivateDevices=yes\n\
    ProtectClock=yes\n\
    ProtectHostname=yes\n\
    ProtectKernelLogs=yes\n\
    ProtectKernelTunables=yes\n\
    ProtectKernelModules=yes\n\
    ProtectControlGroups=yes\n\
    RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n\
    RestrictNamespaces=yes\n\
    RestrictRealtime=yes\n\
    RestrictSUIDSGID=yes\n\
    LockPersonality=yes\n\
    UMask=0077\n\
    SystemCallArchitectures=native\n\
    SystemCallFilter=@system-service\n\
    SystemCallErrorNumber=EPERM\n";

/// For the agent itself. It installs packages, whose scripts may do anything that root does, so that only what no script of a
/// package needs is taken from it. `ProtectClock` and `PrivateDevices` would take its line to the host.
pub(crate) const AGENT: &str = "\
    ProtectHome=yes\n\
    ProtectKernelLogs=yes\n\
    ProtectKernelTunables=yes\n\
    ProtectKernelModules=yes\n\
    ProtectControlGroups=yes\n\
    RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n\
    RestrictRealtime=yes\n\
    LockPersonality=yes\n\
    UMask=0077\n\
    SystemCallArchitectures=native\n";

/// A unit is read line by line: one value with a line's end in it would be two settings.
pub(crate) fn one_line(value: &str) -> Result<&str, AgentError> {
    match value.chars().find(|c| c.is_control()) {
        Some(found) => Err(AgentError::ControlCharacter { value: value.escape_debug().to_string(), found }),
        None => Ok(value),
    }
}

/// One word of a command line as units have it, where `%` and `$` would be expanded.
pub(crate) fn quote(word: &str) -> Result<String, AgentError> {
    let word = one_line(word)?;
    Ok(format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$")))
}

/// A value in a file of variables.
pub(crate) fn quote_value(value: &str) -> Result<String, AgentError> {
    let value = one_line(value)?;
    Ok(format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\"").replace('$', r"\$")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_ends_a_line_gets_into_a_unit() {
        assert_eq!(quote("a \"b\" 5%$").unwrap(), "\"a \\\"b\\\" 5%%$$\"");
        for value in ["a\nUser=root", "a\rb", "a\0b", "\u{1b}[2J", "a\u{85}b"] {
            let refused = quote(value).unwrap_err().to_string();
            assert!(!refused.contains(char::is_control), "{refused:?}");
            assert!(quote_value(value).is_err());
        }
    }

    #[test]
    fn settings_are_one_to_a_line() {
        for settings in [SHUT_IN, ROOT_SHUT_IN, AGENT] {
            assert!(settings.lines().all(|line| line.split_once('=').is_some_and(|(name, _)| !name.contains(' '))));
        }
    }
}
