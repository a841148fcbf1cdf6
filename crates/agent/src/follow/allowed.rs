//! What a configuration of fluent-bit from another etcd may contain. Its author is not root on this machine: it may read what fluent-bit's
//! own user can read and send it over the network. It may not run programs, load code, or write files other than fluent-bit's own state.
//!
//! Only listed items are accepted (`options`), and only the part of fluent-bit's grammar that all its versions read in the same way:
//! fluent-bit must read exactly what was checked here. The comments below describe its parser; see flb_cf_fluentbit.c and, before 1.9,
//! mk_rconf.c.

mod options;

use std::collections::BTreeMap;

/// The directory of included files. fluent-bit resolves a relative path in its working directory first.
const OWN: &str = "/etc/fluent-bit-customization/";
/// Brought by fluent-bit's package.
const PACKAGED_PARSERS: &str = "/etc/fluent-bit/parsers.conf";
/// The only place where fluent-bit's user can keep anything.
const STATE: &str = "/var/lib/quorate-logs/";
/// Files with this ending are read as configuration, and no others can be included.
const CONFIGURATION: &str = ".conf";
/// Of fluent-bit's line buffer, in versions where it does not grow.
const LONGEST_LINE: usize = 4000;

/// Every file of a configuration, as each may be included by another. Files that cannot be included are data, such as certificates.
pub(crate) fn check(files: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    for (name, content) in files {
        let said = |what: String| format!("{name}: {what}");
        let lower = name.to_ascii_lowercase();
        if [".yaml", ".yml"].iter().any(|ending| lower.ends_with(ending)) {
            return Err(said(String::from("YAML is not accepted; write it in fluent-bit's classic format")));
        }
        if name.ends_with(CONFIGURATION) {
            let text = std::str::from_utf8(content).map_err(|_| said(String::from("it is not UTF-8 text")))?;
            check_text(text).map_err(said)?;
        }
    }
    Ok(())
}

/// A section as it was read: what it is, and its entries with the lines on which they are.
struct Section {
    line: usize,
    kind: String,
    entries: Vec<Entry>,
}

struct Entry {
    line: usize,
    key: String,
    value: String,
}

/// What one line says.
enum Line<'a> {
    Nothing,
    Command(&'a str),
    Header(&'a str),
    Entry { key: &'a str, value: &'a str },
}

fn check_text(text: &str) -> Result<(), String> {
    let mut section: Option<Section> = None;
    for (at, line) in text.lines().enumerate() {
        let at = at + 1;
        let on_this_line = |what: String| format!("line {at}: {what}");
        match read_line(line).map_err(on_this_line)? {
            Line::Nothing => {}
            Line::Command(command) => {
                check_command(command).map_err(on_this_line)?;
                // Versions differ in which section continues after an included file.
                section.take().map_or(Ok(()), |section| check_section(&section))?;
            }
            Line::Header(name) => {
                section.take().map_or(Ok(()), |section| check_section(&section))?;
                let kind = options::section(name).map_err(on_this_line)?;
                section = Some(Section { line: at, kind, entries: Vec::new() });
            }
            Line::Entry { key, value } => {
                let Some(section) = &mut section else {
                    return Err(on_this_line(String::from(
                        "an entry must be in a section: put a line such as `[INPUT]` before it, below every line that begins with `@`",
                    )));
                };
                section.entries.push(Entry { line: at, key: key.to_ascii_lowercase(), value: value.to_owned() });
            }
        }
    }
    section.map_or(Ok(()), |section| check_section(&section))
}

/// fluent-bit takes the first column for what a line is, and a space for what ends a key. Where the first entry is not indented, it
/// takes that entry's first letter for the indentation; a bracket further right begins a group, after which the section continues.
fn read_line(line: &str) -> Result<Line<'_>, String> {
    if line.len() > LONGEST_LINE {
        return Err(format!("it has {} bytes; at most {LONGEST_LINE} are accepted", line.len()));
    }
    let text = line.trim_start_matches([' ', '\t']);
    if let Some(control) = text.chars().find(|c| c.is_control()) {
        return Err(format!("the character `{}` is not accepted here; use spaces", control.escape_default()));
    }
    let is_indented = text.len() < line.len();
    if text.is_empty() || text.starts_with('#') {
        return Ok(Line::Nothing);
    }
    if text.starts_with('[') {
        let name = text.strip_prefix('[').and_then(|rest| rest.trim_end_matches(' ').strip_suffix(']'));
        return match name {
            _ if is_indented => {
                Err(String::from("a section must begin in the first column, and groups are not accepted"))
            }
            Some(name) => Ok(Line::Header(name)),
            None => Err(String::from("a section is one word in brackets, such as `[INPUT]`")),
        };
    }
    match (is_indented, text.strip_prefix('@')) {
        (false, Some(command)) => Ok(Line::Command(command)),
        (false, None) => Err(String::from("an entry must be indented by spaces")),
        (true, _) => {
            let (key, value) = text.split_once(' ').unwrap_or((text, ""));
            Ok(Line::Entry { key, value: value.trim_matches(' ') })
        }
    }
}

fn check_command(command: &str) -> Result<(), String> {
    let (name, value) = command.split_once(' ').unwrap_or((command, ""));
    match name.to_ascii_lowercase().as_str() {
        "include" => check_configuration(value.trim_end_matches(' ')),
        "set" => Ok(()),
        other => Err(format!("the command `@{}` is not allowed; allowed are @INCLUDE and @SET", other.escape_debug())),
    }
}

fn check_section(section: &Section) -> Result<(), String> {
    let names: Vec<&Entry> = section.entries.iter().filter(|entry| entry.key == "name").collect();
    let plugin = match names.as_slice() {
        _ if section.entries.is_empty() => return Ok(()),
        _ if !options::is_plugin(&section.kind) => None,
        [name] => Some(name),
        [] => return Err(format!("line {}: this section has no Name", section.line)),
        [_, second, ..] => return Err(format!("line {}: this section has a second Name", second.line)),
    };
    let said = |entry: &Entry, what: String| format!("line {}: {what}", entry.line);
    let allowed = match plugin {
        Some(name) => options::of_plugin(&section.kind, &name.value).map_err(|what| said(name, what))?,
        None => options::of_section(&section.kind),
    };
    for entry in &section.entries {
        allowed
            .check(&entry.key)
            .and_then(|()| check_value(&entry.key, &entry.value))
            .map_err(|what| said(entry, what))?;
    }
    Ok(())
}

/// The files that an entry may name. fluent-bit replaces `${…}` in values, so none of these may contain any.
fn check_value(key: &str, value: &str) -> Result<(), String> {
    match key {
        "parsers_file" if value == PACKAGED_PARSERS => Ok(()),
        "parsers_file" | "streams_file" | "upstream" => check_configuration(value),
        "db" | "storage.path" => check_state(value),
        // Names of inputs become names of files below `storage.path`.
        "alias" | "emitter_name" if !is_plain(value) => {
            Err(format!("`{}` may only have letters, digits, `.`, `-` and `_`", value.escape_debug()))
        }
        _ => Ok(()),
    }
}

/// A name that stays in the directory: neither `..` nor a pattern that matches it, such as `.*`.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

/// Files of this configuration, and quorate's own files.
fn check_configuration(path: &str) -> Result<(), String> {
    let below = path.strip_prefix(OWN).filter(|below| below.ends_with(CONFIGURATION));
    let is_inside = |below: &str| below.split('/').all(|part| is_plain(&part.replace('*', "x")));
    if below.is_some_and(is_inside) {
        return Ok(());
    }
    Err(format!(
        "`{}` is not read: a file to include is given by its whole path, below {OWN}, and ends in {CONFIGURATION}",
        path.escape_debug()
    ))
}

fn check_state(path: &str) -> Result<(), String> {
    if path.strip_prefix(STATE).is_some_and(is_plain) {
        return Ok(());
    }
    Err(format!("`{}` is not written: fluent-bit keeps its state directly below {STATE}", path.escape_debug()))
}

#[cfg(test)]
mod tests;
