//! The test binaries of the workspace: built once by cargo, then run by this program.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::host;

/// Packages whose tests start no cluster and wait for nothing.
const PURE: [&str; 5] = ["quorate-core", "quorate-fuzz", "quorate-pki", "quorate-scripted-cloud", "xtask"];

/// A program that cargo built to run tests.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    pub package: String,
    pub target: String,
    /// From a `tests` directory, as opposed to the unit tests of a library or program.
    pub integration: bool,
    pub program: PathBuf,
    /// Of its package. Tests run there, as under `cargo test`.
    pub directory: PathBuf,
}

impl Binary {
    /// Its tests compute and do not wait. A rule that failed once is wrong, so they get no second try.
    pub fn is_pure(&self) -> bool {
        PURE.contains(&self.package.as_str())
    }

    /// `quorate::cli`, or `quorate-core` for unit tests.
    pub fn label(&self) -> String {
        if self.integration { format!("{}::{}", self.package, self.target) } else { self.package.clone() }
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }

    /// The names of the tests that `words` select, without those that are ignored unless the words ask for them.
    pub fn list(&self, words: &[String]) -> Result<Vec<String>> {
        let listed = |more: &[&str]| -> Result<Vec<String>> {
            let mut command = self.command();
            command.args(words).args(["--list", "--format", "terse"]).args(more);
            Ok(test_names(&host::read(&mut command)?))
        };
        let all = listed(&[])?;
        if words.iter().any(|word| word == "--ignored" || word == "--include-ignored") {
            return Ok(all);
        }
        let ignored = listed(&["--ignored"])?;
        Ok(all.into_iter().filter(|name| !ignored.contains(name)).collect())
    }
}

/// Reads lines such as `crashes::agents_die: test`.
pub fn test_names(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Set for the steps of `cargo xtask ci`, which builds once: what cargo reported then is in [`messages_file`]. To ask cargo again would
/// mean to wait for clippy, because both use the same directory.
pub const BUILT: &str = "QUORATE_XTASK_BUILT";

/// Runs in place of rustc for our own packages.
const RUSTC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/test/rustc.sh");
/// Tells it to have clippy compile, and to fail on warnings. What is linted need not be compiled a second time then.
pub const LINT: &str = "QUORATE_LINT";

/// Compiles every test of the workspace, and with them the program `quorate` and the examples. Everything that is built without
/// optimization comes from here: to build one package alone would build its dependencies a second time, with fewer features.
/// What cargo says of it goes to stderr as it comes.
pub fn build() -> Result<Vec<Binary>> {
    let file = messages_file()?;
    if std::env::var_os(BUILT).is_none() {
        compile(&file)?;
    }
    let messages = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut binaries: Vec<Binary> = messages.lines().filter_map(binary).collect();
    binaries.sort_by_key(Binary::label);
    Ok(binaries)
}

/// The same, for commands that need some of it: the binary of this label, such as `quorate::cli`.
pub fn find(label: &str) -> Result<Binary> {
    let found = build()?.into_iter().find(|binary| binary.label() == label);
    found.with_context(|| format!("there is no test binary {label}"))
}

/// The programs and examples of the same build.
pub fn programs() -> Result<PathBuf> {
    build()?;
    host::debug_directory()
}

fn compile(messages: &Path) -> Result<()> {
    let mut cargo = host::cargo()?;
    cargo.args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    let directory = messages.parent().context("no directory for what cargo reports")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let draft = messages.with_extension("draft");
    let file = File::create(&draft).with_context(|| format!("cannot write {}", draft.display()))?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", RUSTC).env("QUORATE_COMPILATION", note()?);
    if std::env::var_os(LINT).is_some() {
        // Clippy notes what it was told, and cargo compiles again where it is told something else itself.
        cargo.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    }
    host::run(cargo.stdout(file)).context("the tests do not compile")?;
    fs::rename(&draft, messages).with_context(|| format!("cannot write {}", messages.display()))
}

/// How the program was compiled: what rustc was told, and in a file with `.env` at its end the environment.
pub fn note() -> Result<PathBuf> {
    Ok(host::target_directory()?.join("tests/compilation"))
}

fn messages_file() -> Result<PathBuf> {
    Ok(host::target_directory()?.join("tests/cargo.json"))
}

/// The test binary that a message of cargo is about.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    Some(Binary {
        package: package_name(message["package_id"].as_str()?)?.to_owned(),
        target: target["name"].as_str()?.to_owned(),
        integration: target["kind"][0] == "test",
        program: PathBuf::from(message["executable"].as_str()?),
        directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
    })
}

/// In an id such as `path+file:///src/crates/core#quorate-core@0.1.0`, or `…/xtask#0.1.0` where the directory has the same name.
fn package_name(id: &str) -> Option<&str> {
    let (place, rest) = id.rsplit_once('#')?;
    match rest.split_once('@') {
        Some((name, _)) => Some(name),
        None => place.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_in_what_cargo_reports() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///src/crates/cli#quorate@0.1.0",
            "manifest_path":"/src/crates/cli/Cargo.toml","target":{"kind":["test"],"name":"cli"},
            "profile":{"test":true},"executable":"/src/target/debug/deps/cli-1"}"#;
        let found = binary(message).unwrap();
        assert_eq!((found.label().as_str(), found.is_pure()), ("quorate::cli", false));
        assert_eq!(found.directory, Path::new("/src/crates/cli"));
        assert_eq!(binary(&message.replace("\"test\":true", "\"test\":false")), None, "the program itself");
        let library = binary(&message.replace("[\"test\"]", "[\"lib\"]").replace("quorate@", "quorate-core@")).unwrap();
        assert_eq!((library.label().as_str(), library.is_pure()), ("quorate-core", true));
        assert_eq!(binary("no JSON"), None);
        assert_eq!(package_name("path+file:///src/xtask#0.1.0"), Some("xtask"));
    }

    #[test]
    fn only_tests_are_listed() {
        assert_eq!(test_names("a::b: test\nspeed: benchmark\nc: test\n"), ["a::b", "c"]);
    }
}
