//! Machines with stock images, whose user data cloud-init reads: how the agent's program gets there, what starts it, and its seed where there
//! is no disk for it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_agent::api::Seed;
use quorate_agent::api::boot::{MACHINE_FILE, Machine, SEED_FILE};
use quorate_agent::boot::{PLACED_SEED, PROGRAM};
use quorate_core::providers::program::ProgramSource;
use serde_json::{Value, json};

/// A command for cloud-init's `runcmd`. Without a program, the image has the agent.
pub(crate) fn start_agent(program: Option<&ProgramSource>) -> Value {
    let boot = format!("/{PROGRAM} agent boot --beside-cloud-init");
    let script = match program {
        Some(program) => format!("{} && {boot}", download(program)),
        None => boot,
    };
    json!(["sh", "-c", script])
}

/// The files of the seed: path, and content.
pub(crate) fn seed_files(seed: &Seed, machine: &Machine) -> [(String, Vec<u8>); 2] {
    let pack = |name: &str, content: Vec<u8>| (format!("/{PLACED_SEED}/{name}"), content);
    [
        pack(SEED_FILE, serde_json::to_vec(seed).expect("plain data serializes")),
        pack(MACHINE_FILE, serde_json::to_vec(machine).expect("plain data serializes")),
    ]
}

/// The same for cloud-init's `write_files`.
pub(crate) fn write_files(seed: &Seed, machine: &Machine) -> Value {
    let file = |(path, content): (String, Vec<u8>)| {
        let content = STANDARD.encode(content);
        json!({ "path": path, "permissions": "0600", "encoding": "b64", "content": content })
    };
    seed_files(seed, machine).into_iter().map(file).collect()
}

/// A command of the shell that fetches the program, compares it, and puts it in place.
fn download(program: &ProgramSource) -> String {
    let url = format!("'{}'", program.url.replace('\'', r"'\''"));
    let (place, sum) = (format!("/{PROGRAM}"), program.sha256.to_string());
    let fetch = format!("{{ curl -fsSL -o {place}.new {url} || wget -qO {place}.new {url}; }}");
    format!(
        "mkdir -p /usr/lib/quorate && for n in 1 2 3 4 5 6 7 8 9; do {fetch} && break; sleep $n; done; \
         echo '{sum}  {place}.new' | sha256sum -c - && chmod 0755 {place}.new && mv {place}.new {place}"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use quorate_core::text::hex;
    use quorate_pki::Sha256;

    use super::*;

    fn program(url: &str, sum: &str) -> ProgramSource {
        serde_json::from_value(json!({ "url": url, "sha256": sum })).unwrap()
    }

    /// With tools that stand in for those of a machine: what has another digest is never run.
    #[test]
    fn only_the_program_with_that_digest_is_started() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("usr/lib/quorate/quorate");
        let content = b"#!/bin/sh\ntouch \"$0.ran\"\n";
        for (sum, runs) in [(hex(&Sha256::digest(content)), true), (hex(&Sha256::digest(b"other")), false)] {
            let _ = std::fs::remove_dir_all(directory.path().join("usr"));
            let source = directory.path().join("source");
            std::fs::write(&source, content).unwrap();
            let script = download(&program(&format!("file://{}", source.display()), &sum));
            let script = script.replace("/usr/lib", &format!("{}/usr/lib", directory.path().display()));
            let script = format!("{script} && {}", place.display());
            let done = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(done.status.success(), runs, "{done:?}");
            assert_eq!(place.with_extension("ran").exists(), runs);
        }
    }

    #[test]
    fn an_address_with_a_quote_in_it_stays_one_word_of_the_shell() {
        let sum = hex(&Sha256::digest(b""));
        let command = start_agent(Some(&program("https://x.example/it's;reboot", &sum)));
        let script = command[2].as_str().unwrap();
        assert!(Command::new("sh").args(["-n", "-c", script]).status().unwrap().success(), "{script}");
        assert!(script.contains(r"-o /usr/lib/quorate/quorate.new 'https://x.example/it'\''s;reboot' ||"), "{script}");
        assert!(script.ends_with(" && /usr/lib/quorate/quorate agent boot --beside-cloud-init"), "{script}");
        assert_eq!(start_agent(None)[2], "/usr/lib/quorate/quorate agent boot --beside-cloud-init");
    }
}
