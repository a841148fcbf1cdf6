//! Proves that `core` stays pure: no dependency does I/O, and its own code uses no file, socket, process, clock or
//! randomness. The scan understands Rust's comments, strings and `use` groups, not its types: it finds mistakes, not
//! deliberate evasion. Code under `#[cfg(test)]` is exempt.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{host, lab};

/// Crates that must not be below core, by what they would bring in.
const DENIED_CRATES: [(&str, &[&str]); 7] = [
    (
        "an event loop",
        &["tokio", "async-std", "async-io", "async-executor", "smol", "futures-executor", "mio", "polling"],
    ),
    ("the network", &["hyper", "reqwest", "tonic", "axum", "h2", "ureq", "curl", "isahc", "socket2", "quinn"]),
    ("TLS", &["rustls", "tokio-rustls", "native-tls", "openssl"]),
    ("system calls", &["rustix", "nix"]),
    ("files", &["tempfile", "fs-err", "walkdir", "notify", "memmap2", "object_store"]),
    ("processes", &["async-process", "process-wrap", "duct", "subprocess", "xshell"]),
    ("randomness, which core is given", &["rand", "getrandom", "fastrand", "uuid"]),
];

/// Paths that must not occur in core's code, by what they reach.
const DENIED_PATHS: [(&str, &[&str]); 6] = [
    ("files", &["std::fs", "std::io::stdin", "std::io::stdout", "std::io::stderr", "println", "eprintln"]),
    (
        "the network (addresses as values are fine)",
        &["TcpStream", "TcpListener", "UdpSocket", "ToSocketAddrs", "unix::net", "std::net::*"],
    ),
    ("processes and their surroundings", &["std::process", "std::env", "std::os"]),
    (
        "the clock, which core is given",
        &["SystemTime", "time::Instant", "std::time::*", "Timestamp::now", "Zoned::now"],
    ),
    ("threads and async", &["std::thread", "thread::sleep", "thread::spawn", "async"]),
    ("randomness, which core is given", &["rand", "getrandom", "fastrand", "RandomState"]),
];

pub fn dependencies() -> Result<()> {
    let arguments = ["tree", "-p", "quorate-core", "-e", "normal", "--prefix", "none", "--locked"];
    let offences = denied_crates(&host::read(host::cargo()?.args(arguments))?);
    if !offences.is_empty() {
        bail!(
            "below quorate-core are {}\n\nhint: `cargo tree -p quorate-core -i CRATE` shows by which way",
            offences.join(", ")
        );
    }
    Ok(())
}

fn denied_crates(tree: &str) -> Vec<String> {
    let below = |name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let reasons = DENIED_CRATES.iter().flat_map(|(reason, crates)| crates.iter().map(move |name| (name, reason)));
    reasons.filter(|(name, _)| below(name)).map(|(name, reason)| format!("{name} ({reason})")).collect()
}

pub fn sources() -> Result<()> {
    let root = lab::workspace()?;
    let mut offences = Vec::new();
    for file in rust_files(&root.join("crates/core/src"))? {
        let source = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let shown = file.strip_prefix(&root).unwrap_or(&file).display();
        offences.extend(denied_paths(&source).into_iter().map(|offence| format!("\n  {shown}:{offence}")));
    }
    if !offences.is_empty() {
        bail!("core reaches outside:{}", offences.concat());
    }
    Ok(())
}

/// Product code only: test modules in files of their own are left out.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// One line per offence: `LINE: PATH reaches REASON`.
fn denied_paths(source: &str) -> Vec<String> {
    let rules = || DENIED_PATHS.iter().flat_map(|(reason, paths)| paths.iter().map(move |path| (path, reason)));
    let matches = |found: &[&str], rule: &str| {
        let rule: Vec<&str> = rule.split("::").collect();
        found.windows(rule.len()).any(|part| part == rule)
    };
    let code = without_tests(&without_text(source));
    let mut offences = Vec::new();
    for (line, path) in paths(&code) {
        if let Some((_, reason)) = rules().find(|(rule, _)| matches(&path, rule)) {
            offences.push(format!("{line}: {} reaches {reason}", path.join("::")));
        }
    }
    offences
}

/// The code with comments and the insides of strings turned into blanks, line breaks kept.
fn without_text(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let in_word = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let length = text_length(rest, in_word);
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// How many bytes of comment or literal stand at the beginning.
fn text_length(rest: &str, in_word: bool) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if rest.starts_with('"') {
        return quoted_length(rest, '"');
    }
    if let Some(quoted) = rest.strip_prefix('\'') {
        // A quote that is not closed after one character begins a lifetime.
        let mut inside = quoted.chars();
        let is_character = inside.next() == Some('\\') || inside.next() == Some('\'');
        return if is_character { quoted_length(rest, '\'') } else { 0 };
    }
    if !in_word && let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    0
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let here = &rest[at..];
        if here.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += here.chars().next().map_or(0, char::len_utf8);
        }
        if depth == 0 || at >= rest.len() {
            return at;
        }
    }
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + quote.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// The code with every item under `#[cfg(test)]` turned into blanks, line breaks kept.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(begin) = rest.find(MARK) {
        let item = &rest[begin..];
        let end = item_length(item);
        kept.push_str(&rest[..begin]);
        kept.extend(item[..end].chars().filter(|character| *character == '\n'));
        rest = &item[end..];
    }
    kept + rest
}

/// Up to the semicolon or the closing brace that ends the item.
fn item_length(item: &str) -> usize {
    let mut depth = 0;
    for (at, character) in item.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(character, ';' | '}') {
            return at + 1;
        }
    }
    item.len()
}

/// Every path in the code with its line; the groups of a `use` are spelled out.
fn paths(code: &str) -> Vec<(usize, Vec<&str>)> {
    let mut found = Vec::new();
    let mut groups: Vec<Vec<&str>> = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    let mut after_colons = false;
    for (number, line) in code.lines().enumerate() {
        for token in tokens(line) {
            let joined = std::mem::take(&mut after_colons);
            match token {
                "::" => after_colons = true,
                // Only `path::{` opens a group; any other brace inherits nothing.
                "{" => groups.push(if joined { std::mem::take(&mut path) } else { Vec::new() }),
                "}" => drop(groups.pop()),
                _ if token == "*" && !joined => {}
                _ if token == "*" || token.starts_with(|first: char| first.is_alphabetic() || first == '_') => {
                    if !joined {
                        path = groups.last().cloned().unwrap_or_default();
                    }
                    path.push(token);
                    found.push((number + 1, path.clone()));
                }
                _ => {}
            }
        }
    }
    longest(found)
}

/// Leaves out the beginnings of a path that continues: `std`, `std::fs` before `std::fs::read`.
fn longest(found: Vec<(usize, Vec<&str>)>) -> Vec<(usize, Vec<&str>)> {
    let goes_on = |at: usize| found.get(at + 1).is_some_and(|(_, next)| next.starts_with(&found[at].1));
    (0..found.len()).filter(|at| !goes_on(*at)).map(|at| found[at].clone()).collect()
}

/// Words, `::`, and single other characters.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let word = rest.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(rest.len());
        let length = match word {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            word => word,
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_denied(source: &str) -> Vec<usize> {
        let number = |offence: &String| offence.split(':').next().unwrap().parse().unwrap();
        denied_paths(source).iter().map(number).collect()
    }

    #[test]
    fn crates_are_matched_by_whole_name() {
        let tree = "quorate-core v0.1.0 (/src)\nserde v1.0.0\ntokio v1.54.0\nrandom-thing v1.0.0\ntokio v1.54.0 (*)\n";
        assert_eq!(denied_crates(tree), ["tokio (an event loop)"]);
    }

    #[test]
    fn every_way_to_write_a_path_is_found() {
        assert_eq!(denied_paths("use std::fs;"), ["1: std::fs reaches files"]);
        for source in [
            "fn f() { std::fs::read(p) }",
            "use std::{collections::BTreeMap, fs};",
            "use std::{\n  fmt,\n  fs::{self, File},\n};",
            "use std::fs as files;",
            "let s = std :: net :: TcpStream::connect(a);",
            "use std::{net::{IpAddr, UdpSocket}};",
            "use std::time::{Duration, Instant};",
            "use std::time; fn f() { time::Instant::now() }",
            "use std::time::*;",
            "let t = jiff::Timestamp::now();",
            "let n = Zoned::now();",
            "std::thread::sleep(d)",
            "let r: u8 = rand::random();",
            "async fn f() {}",
            "println!(\"{x}\")",
        ] {
            assert!(!denied_paths(source).is_empty(), "{source}");
        }
    }

    #[test]
    fn values_durations_and_look_alikes_are_fine() {
        for source in [
            "use std::net::{IpAddr, Ipv4Addr, SocketAddr};",
            "use std::time::Duration;",
            "pub fn decide(now: Timestamp) -> Decision { operand(now) }",
            "struct Instantly; let processes = 1; mod fs_names {}",
            "use std::fmt; mod a { fn fs() {} }",
            "let x = a * b; let y = &*std::ptr::from_ref(&x);",
        ] {
            assert!(denied_paths(source).is_empty(), "{source}: {:?}", denied_paths(source));
        }
    }

    #[test]
    fn comments_strings_and_tests_are_not_code() {
        let source = r##"
// std::fs
/* std::fs /* nested */ std::process */
const A: &str = "std::fs \" std::env";
const B: &str = r#"std::fs " std::env"#;
const C: char = '"';
fn lifetimes<'a>(x: &'a str) -> char { '\'' }
#[cfg(test)]
mod tests { use std::fs; fn f() { std::process::exit(1) } }
use std::env;
"##;
        assert_eq!(lines_denied(source), [10]);
    }
}
