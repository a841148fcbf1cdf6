//! Files that are written into a container before its first start.

use bytes::Bytes;
use hyper::Method;
use quorate_agent::api::Seed;
use quorate_agent::api::boot::{MACHINE_FILE, Machine, SEED_FILE};
use quorate_agent::boot::{PLACED_SEED, PROGRAM, With, image_units};

use super::error::IncusError;
use super::instance::path;
use super::server::{Call, Server, escaped};

/// Started with the machine.
const WANTS: &str = "etc/systemd/system/multi-user.target.wants";

enum Content {
    Directory,
    File(Bytes),
    Link(String),
}

struct File {
    /// Below the root.
    at: String,
    mode: u32,
    content: Content,
}

impl File {
    fn directory(at: &str, mode: u32) -> Self {
        File { at: at.to_owned(), mode, content: Content::Directory }
    }

    fn new(at: impl Into<String>, mode: u32, content: impl Into<Bytes>) -> Self {
        File { at: at.into(), mode, content: Content::File(content.into()) }
    }
}

/// In the order in which they are written: parents first. `program` is the agent, for images that do not contain it.
fn files(seed: &Seed, machine: &Machine, program: Option<Vec<u8>>) -> Vec<File> {
    let seed = serde_json::to_vec_pretty(seed).expect("plain data serializes");
    let machine = serde_json::to_vec_pretty(machine).expect("plain data serializes");
    let (state, _) = PLACED_SEED.rsplit_once('/').expect("it is below another");
    let mut files = vec![
        File::directory(state, 0o700),
        File::directory(PLACED_SEED, 0o700),
        File::new(format!("{PLACED_SEED}/{SEED_FILE}"), 0o600, seed),
        File::new(format!("{PLACED_SEED}/{MACHINE_FILE}"), 0o600, machine),
    ];
    if let Some(program) = program {
        let (directory, _) = PROGRAM.rsplit_once('/').expect("it is below another");
        files.push(File::directory(directory, 0o755));
        files.push(File::new(PROGRAM, 0o755, program));
        files.push(File::directory(WANTS, 0o755));
        for (at, text) in image_units(With::Nothing) {
            let (_, name) = at.rsplit_once('/').expect("it is below another");
            let link =
                File { at: format!("{WANTS}/{name}"), mode: 0o777, content: Content::Link(format!("../{name}")) };
            files.extend([File::new(at, 0o644, text), link]);
        }
    }
    files
}

impl Server {
    pub(super) async fn push_files(
        &self,
        instance: &str,
        seed: &Seed,
        machine: &Machine,
        program: Option<Vec<u8>>,
    ) -> Result<(), IncusError> {
        for file in files(seed, machine, program) {
            self.push(instance, file).await?;
        }
        Ok(())
    }

    async fn push(&self, instance: &str, file: File) -> Result<(), IncusError> {
        let File { at, mode, content } = file;
        let doing = format!("write /{at} into {instance}");
        let call = Call::new(doing, Method::POST, format!("{}/files?path=%2F{}", path(instance), escaped(&at)))
            .with("X-Incus-uid", "0")
            .with("X-Incus-gid", "0")
            .with("X-Incus-mode", format!("{mode:04o}"));
        self.change(match content {
            Content::Directory => call.with("X-Incus-type", "directory"),
            Content::File(bytes) => call.with("X-Incus-type", "file").bytes(bytes),
            Content::Link(to) => call.with("X-Incus-type", "symlink").bytes(to.into()),
        })
        .await
    }
}
