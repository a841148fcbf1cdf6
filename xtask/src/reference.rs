//! `cargo xtask reference`: writes docs/reference.md from the JSON schema of the spec. A section is a mapping of the
//! spec, headed by its path; a mapping that occurs at several paths has one section, at the first. A test fails
//! when the page is stale.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{host, lab};

const PAGE: &str = "docs/reference.md";

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask reference` from the schema of the spec. Do not edit. -->

# Reference

Every field of a spec. `quorate init` prints a commented spec, `quorate schema` the JSON schema for
your editor, and `quorate validate FILE` checks a file. A field with an empty value has its default.
Relative paths start at the directory of the spec.
";

/// Formats of the schema: the name of the type, and what a value looks like.
const FORMATS: [(&str, &str, &str); 17] = [
    ("size", "size", "A number with B, KiB, MiB, GiB, KB, MB or GB, or plain bytes: `8GiB`"),
    ("duration", "duration", "A number with ms, s, m or h: `100ms`, `5m`"),
    ("validity", "validity", "A number with h, d or y (365 days): `90d`"),
    ("retention", "retention", "A number, or a duration: `1000`, `30m`"),
    ("name", "name", "Lower case letters, digits and hyphens"),
    ("auth-name", "etcd name", "The name of an etcd user or role"),
    ("version", "version", "A release, such as `3.6.14`"),
    ("sha256", "SHA-256", "64 hexadecimal digits"),
    ("san", "host name or IP address", "A DNS name or an IP address, as in a certificate"),
    ("address-range", "address range", "An IP address, or a network: `10.0.0.0/8`"),
    ("ip", "IP address", "An IPv4 or IPv6 address"),
    ("mac", "MAC address", "`52:54:00:00:00:01`"),
    ("uuid", "UUID", "The id of a libvirt network"),
    ("volume", "volume", "`NAME` in the storage pool of the provider, or `POOL/NAME`"),
    ("uri", "URL", "An address that starts with http:// or https://"),
    ("age-recipient", "age public key", "`age1…`, as `age-keygen` prints it"),
    ("signer", "signing key", "`ed25519:…`, as `quorate backup list` prints it"),
];

pub fn run() -> Result<()> {
    let arguments = ["run", "--quiet", "--locked", "--bin", "quorate", "--", "schema"];
    let schema = serde_json::from_str(&host::read(host::cargo()?.args(arguments))?).context("the schema")?;
    let file = lab::workspace()?.join(PAGE);
    fs::write(&file, page(&schema)?).with_context(|| format!("cannot write {}", file.display()))
}

fn page(schema: &Value) -> Result<String> {
    let mut reference = Reference { schema, sections: Vec::new() };
    reference.collect("The file", schema)?;
    let mut page = String::from(INTRODUCTION);
    for (heading, section) in &reference.sections {
        reference.write_section(&mut page, heading, section)?;
    }
    page.push_str("\n## Types\n\n| type | value |\n| --- | --- |\n");
    for (_, name, value) in FORMATS {
        writeln!(page, "| {name} | {value} |")?;
    }
    Ok(page)
}

struct Reference<'a> {
    schema: &'a Value,
    /// Heading and schema of each mapping, in the order of the page.
    sections: Vec<(String, &'a Value)>,
}

impl<'a> Reference<'a> {
    /// Adds the section of a mapping, and those of its fields.
    fn collect(&mut self, heading: &str, mapping: &'a Value) -> Result<()> {
        if self.heading(mapping).is_some() {
            return Ok(());
        }
        self.sections.push((heading.to_owned(), mapping));
        let parent = if heading == "The file" { "" } else { heading };
        for (name, field) in fields(mapping) {
            let (suffix, below) = self.below(field)?;
            let path = if parent.is_empty() || parent == "clusters[]" {
                format!("{name}{suffix}")
            } else {
                format!("{parent}.{name}{suffix}")
            };
            for (variant, mapping) in below {
                let path = if variant.is_empty() { path.clone() } else { format!("{path}.{variant}") };
                self.collect(&path, mapping)?;
            }
        }
        Ok(())
    }

    fn heading(&self, mapping: &Value) -> Option<&str> {
        self.sections.iter().find(|(_, known)| std::ptr::eq(*known, mapping)).map(|(heading, _)| heading.as_str())
    }

    /// The mappings that a field holds, with what their path adds to the field's: `[]` for a list, `.*` for a map.
    /// A mapping that is one of several alternatives, such as a provider, has a name.
    fn below(&self, field: &'a Value) -> Result<(&'static str, Vec<(&'a str, &'a Value)>)> {
        let field = self.resolve(field)?;
        if let Some(items) = field.get("items") {
            return Ok(("[]", self.below(items)?.1));
        }
        if let Some(values) = field.get("additionalProperties").filter(|values| values.is_object()) {
            return Ok((".*", self.below(values)?.1));
        }
        let mut variants = Vec::new();
        for variant in alternatives(field) {
            for (name, settings) in fields(variant) {
                let settings = self.resolve(settings)?;
                if settings.get("properties").is_some() {
                    variants.push((name, settings));
                }
            }
        }
        if field.get("properties").is_some() {
            return Ok(("", vec![("", field)]));
        }
        Ok(("", variants))
    }

    /// Follows references, and takes the one alternative that is not null.
    fn resolve(&self, schema: &'a Value) -> Result<&'a Value> {
        if let Some(name) = schema["$ref"].as_str() {
            let pointer = name.trim_start_matches('#');
            let target = self.schema.pointer(pointer).with_context(|| format!("the schema has no {name}"))?;
            return self.resolve(target);
        }
        let not_null = |one: &&Value| one["type"] != "null";
        match schema["anyOf"].as_array().and_then(|all| all.iter().find(not_null)) {
            Some(one) => self.resolve(one),
            None => Ok(schema),
        }
    }

    fn write_section(&self, page: &mut String, heading: &str, mapping: &Value) -> Result<()> {
        let description = mapping["description"].as_str().unwrap_or_default();
        writeln!(page, "\n## {heading}\n")?;
        for line in wrapped(description) {
            writeln!(page, "{line}")?;
        }
        page.push_str("\n| field | type | default | |\n| --- | --- | --- | --- |\n");
        for (name, field) in fields(mapping) {
            let default = if is_required(mapping, name) { "required".to_owned() } else { default(field) };
            let meaning = self.meaning(name, field)?;
            writeln!(page, "| `{name}` | {} | {default} | {} |", self.kind(field)?, meaning.replace('|', "\\|"))?;
        }
        Ok(())
    }

    /// The type of a field, with a link to its section where it has one.
    fn kind(&self, field: &'a Value) -> Result<String> {
        let field = self.resolve(field)?;
        if let Some(heading) = self.heading(field) {
            return Ok(format!("[mapping](#{})", slug(heading)));
        }
        if let Some(items) = field.get("items") {
            return Ok(format!("list of {}", self.kind(items)?));
        }
        if let Some(values) = field.get("additionalProperties").filter(|values| values.is_object()) {
            return Ok(format!("map to {}", self.kind(values)?));
        }
        let values = self.values(field);
        if !values.is_empty() {
            return Ok(values.join(", "));
        }
        if let Some(format) =
            field["format"].as_str().filter(|format| !format.trim_start_matches("u").starts_with("int"))
        {
            let known = FORMATS.iter().find(|(known, ..)| *known == format);
            let (_, name, _) = known.with_context(|| format!("the reference does not know the format `{format}`"))?;
            return Ok((*name).to_owned());
        }
        let mut types: Vec<&str> = match &field["type"] {
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        types.retain(|name| *name != "null");
        if types.is_empty() {
            bail!("the reference cannot name the type of {field}");
        }
        Ok(types.join(" or "))
    }

    /// The values that a field may have, if there are only some: words, or names of mappings.
    fn values(&self, field: &Value) -> Vec<String> {
        let listed = field["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut values: Vec<String> = listed.map(|value| format!("`{value}`")).collect();
        for one in alternatives(field) {
            match one["const"].as_str() {
                Some(word) => values.push(format!("`{word}`")),
                None => values.extend(fields(one).map(|(name, _)| format!("`{{{name}: …}}`"))),
            }
        }
        values
    }

    /// The description of a field, followed by those of its values.
    fn meaning(&self, name: &str, field: &'a Value) -> Result<String> {
        let target = self.resolve(field)?;
        let own = field["description"].as_str().or(target["description"].as_str());
        let mut meaning = own.with_context(|| format!("`{name}` has no description"))?.replace('\n', " ");
        let field = self.resolve(target.get("items").unwrap_or(target))?;
        for one in alternatives(field) {
            let value = self.values(&serde_json::json!({ "oneOf": [one] })).join(" or ");
            let inner = fields(one).find_map(|(_, setting)| setting["description"].as_str());
            let section = fields(one).find_map(|(_, setting)| self.heading(self.resolve(setting).ok()?));
            let Some(text) = one["description"].as_str().or(inner) else { continue };
            write!(meaning, " {value}: {}", text.replace('\n', " "))?;
            if let Some(heading) = section {
                write!(meaning, " See [{heading}](#{}).", slug(heading))?;
            }
        }
        Ok(meaning)
    }
}

/// The alternatives of a value; not those of a mapping, which only say which of its fields go together.
fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let is_mapping = schema.get("properties").is_some();
    schema["oneOf"].as_array().filter(|_| !is_mapping).into_iter().flatten()
}

/// The fields of a mapping: required ones first, and the name before all.
fn fields(mapping: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let properties = mapping["properties"].as_object().into_iter().flatten();
    let mut fields: Vec<(&str, &Value)> = properties.map(|(name, field)| (name.as_str(), field)).collect();
    fields.sort_by_key(|(name, _)| (!is_required(mapping, name), *name != "name"));
    fields.into_iter()
}

fn is_required(mapping: &Value, name: &str) -> bool {
    mapping["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
}

fn default(field: &Value) -> String {
    match &field["default"] {
        Value::Null | Value::Object(_) => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// The anchor that a heading gets.
pub fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_that_of_the_schema() {
        let wanted = page(&quorate_core::spec::json_schema()).unwrap();
        let found = fs::read_to_string(lab::workspace().unwrap().join(PAGE)).unwrap();
        assert!(found == wanted, "{PAGE} is stale: run `cargo xtask reference`");
    }

    #[test]
    fn a_field_without_description_or_with_an_unknown_format_is_refused() {
        let schema = |field: &str| {
            let field: Value = serde_json::from_str(field).unwrap();
            serde_json::json!({"type": "object", "properties": {"a": field}})
        };
        let good = page(&schema(r#"{"type": "string", "format": "size", "description": "How much."}"#)).unwrap();
        assert!(good.contains("| `a` | size |  | How much. |"), "{good}");
        for wrong in [r#"{"type": "string"}"#, r#"{"type": "string", "format": "new", "description": "x"}"#] {
            assert!(page(&schema(wrong)).is_err(), "{wrong}");
        }
    }
}
