//! Checks the tree of a file against the schema of the types, and converts it to JSON. The schema is reduced once to
//! the few shapes that the types use; rules that involve several fields are elsewhere. Parts with the wrong shape are
//! left out of the JSON, so the rest can be checked in the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::problem::{Problem, Severity, Span, nearest};
use super::tree::{Content, Entry, Node};
use super::units::check_format;
use super::{Document, json_schema};

/// What a place in the spec may contain.
#[derive(Debug)]
enum Shape {
    Text {
        not_empty: bool,
    },
    /// Text with a special form, which may look like a number: `8GiB`, `3.6.14`.
    Formatted(String),
    /// A whole number, not below the smallest.
    Whole(i64),
    Truth,
    /// Anything but a collection; kept as it was written.
    Scalar,
    Choice(Vec<String>),
    /// One of these words, or a mapping.
    WordOr(Vec<String>, Fields),
    List(Box<Shape>),
    /// Free keys.
    Map(Box<Shape>),
    Fields(Fields),
}

#[derive(Debug)]
struct Fields {
    known: BTreeMap<String, Shape>,
    required: Vec<String>,
    /// When not empty: exactly one of these groups of fields must be there, and all of it.
    one_of: Vec<Vec<String>>,
}

static SPEC: LazyLock<Shape> = LazyLock::new(|| {
    let schema = json_schema();
    shape_of(&schema, &schema)
});

/// Reduces a schema. The types are quorate's own, so an unknown form is a mistake that every test finds.
fn shape_of(schema: &Value, root: &Value) -> Shape {
    if let Some(reference) = schema["$ref"].as_str() {
        return shape_of(root.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null), root);
    }
    if let Some(present) = schema["anyOf"].as_array().and_then(|any| any.iter().find(|one| one["type"] != "null")) {
        return shape_of(present, root);
    }
    if let Some(format) = schema["format"].as_str().filter(|_| names_type(schema, "string")) {
        return Shape::Formatted(format.to_owned());
    }
    let choices = choices(schema);
    let variants = schema["oneOf"].as_array().into_iter().flatten().filter(|one| one["properties"].is_object());
    let variants: Vec<Fields> = variants.map(|one| fields_of(one, root)).collect();
    match (choices.is_empty(), variants.is_empty()) {
        (true, true) => {}
        (true, false) => return Shape::Fields(one_of_them(variants)),
        (false, true) => return Shape::Choice(choices),
        (false, false) => return Shape::WordOr(choices, one_of_them(variants)),
    }
    if names_type(schema, "string") && names_type(schema, "boolean") {
        Shape::Scalar
    } else if names_type(schema, "string") {
        Shape::Text { not_empty: schema["minLength"].as_u64() > Some(0) }
    } else if names_type(schema, "integer") {
        Shape::Whole(schema["minimum"].as_i64().unwrap_or(0).min(0))
    } else if names_type(schema, "boolean") {
        Shape::Truth
    } else if names_type(schema, "array") {
        Shape::List(Box::new(shape_of(&schema["items"], root)))
    } else if schema["properties"].is_object() {
        Shape::Fields(fields_of(schema, root))
    } else if names_type(schema, "object") {
        Shape::Map(Box::new(shape_of(&schema["additionalProperties"], root)))
    } else {
        panic!("no shape for the schema {schema}")
    }
}

fn names_type(schema: &Value, name: &str) -> bool {
    match &schema["type"] {
        Value::String(single) => single == name,
        Value::Array(several) => several.iter().any(|one| one == name),
        _ => false,
    }
}

/// The values of an enum: listed, or one by one with their descriptions.
fn choices(schema: &Value) -> Vec<String> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"].as_array().into_iter().flatten();
    let described = described.flat_map(|one| one["enum"].as_array().into_iter().flatten().chain(one.get("const")));
    listed.chain(described).filter_map(Value::as_str).map(str::to_owned).collect()
}

fn fields_of(schema: &Value, root: &Value) -> Fields {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let groups = schema["oneOf"].as_array().into_iter().flatten();
    Fields {
        known: properties.map(|(name, field)| (name.clone(), shape_of(field, root))).collect(),
        required: names(&schema["required"]),
        one_of: groups.map(|group| names(&group["required"])).collect(),
    }
}

/// A mapping with the fields of exactly one of these.
fn one_of_them(mut variants: Vec<Fields>) -> Fields {
    if let [_] = variants[..] {
        return variants.remove(0);
    }
    let one_of = variants.iter().map(|variant| variant.required.clone()).collect();
    Fields { known: variants.into_iter().flat_map(|variant| variant.known).collect(), required: Vec::new(), one_of }
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A file's content for the types.
pub(super) struct Reading {
    /// As JSON, without what has the wrong shape. None: too little is left.
    pub value: Option<Value>,
    /// Every way in which its shape is wrong.
    pub problems: Vec<Problem>,
    /// The paths that were left out, or that a misspelt field probably means.
    pub left_out: Vec<String>,
    /// Those of them that are items of lists.
    pub places: Positions,
}

/// Where the items of lists are in the file. Items of the wrong shape are left out, so those after them have a lower index in what was
/// read.
#[derive(Debug, Clone, Default)]
pub struct Positions {
    left_out: BTreeSet<String>,
}

impl Positions {
    /// The path in the file of a path in what was read.
    pub fn in_file(&self, path: &str) -> String {
        if self.left_out.is_empty() {
            return path.to_owned();
        }
        let mut whole = String::new();
        for part in path.split_inclusive(']') {
            let item = part.strip_suffix(']').and_then(|part| part.rsplit_once('['));
            let Some((list, Ok(index))) = item.map(|(list, index)| (list, index.parse())) else {
                whole.push_str(part);
                continue;
            };
            whole.push_str(list);
            let was_read = |place: &usize| !self.left_out.contains(&format!("{whole}[{place}]"));
            let place = (0..).filter(was_read).nth(index).unwrap_or(index);
            whole.push_str(&format!("[{place}]"));
        }
        whole
    }
}

pub(super) fn read(document: &Document) -> Reading {
    let mut walk = Walk {
        document,
        path: String::new(),
        problems: Vec::new(),
        left_out: Vec::new(),
        places: Positions::default(),
    };
    let mut value = None;
    if document.root.is_null() {
        let hint = "`quorate init` prints a spec to start from";
        walk.report(document.root.span, "the file is empty", Some(hint.to_owned()));
    } else {
        value = walk.node(&document.root, document.root.span, &SPEC);
    }
    Reading { value, problems: walk.problems, left_out: walk.left_out, places: walk.places }
}

struct Walk<'a> {
    document: &'a Document,
    /// Of the node at hand; grows and shrinks along the way.
    path: String,
    problems: Vec<Problem>,
    left_out: Vec<String>,
    places: Positions,
}

impl Walk<'_> {
    fn report(&mut self, span: Span, message: impl Into<String>, hint: Option<String>) {
        self.problems.push(Problem {
            severity: Severity::Error,
            file: self.document.file.clone(),
            span,
            path: self.path.clone(),
            message: message.into(),
            hint,
        });
    }

    /// `shown` is the position for an error about the whole node. None: it has the wrong shape, which is reported.
    fn node(&mut self, node: &Node, shown: Span, shape: &Shape) -> Option<Value> {
        match (&node.content, shape) {
            (Content::Refused, _) => None,
            (Content::Scalar { text, plain }, _) if !node.is_null() => self.scalar(text, *plain, node, shape),
            (Content::Sequence(items), Shape::List(item_shape)) => {
                let items = items.iter().enumerate();
                Some(Value::Array(items.filter_map(|(index, item)| self.item(index, item, item_shape)).collect()))
            }
            (Content::Mapping(entries), Shape::Map(value_shape)) => {
                let value = |entry: &Entry| Some((entry.key.clone(), self.entry(entry, value_shape)?));
                Some(Value::Object(entries.iter().filter_map(value).collect()))
            }
            (Content::Mapping(entries), Shape::Fields(fields) | Shape::WordOr(_, fields)) => {
                self.fields(entries, fields, shown)
            }
            _ => self.wrong_type(node, shown, shape),
        }
    }

    fn item(&mut self, index: usize, item: &Node, shape: &Shape) -> Option<Value> {
        let outer = self.path.len();
        self.path.push_str(&format!("[{index}]"));
        let value = self.node(item, item.span, shape);
        if value.is_none() {
            self.left_out.push(self.path.clone());
            self.places.left_out.insert(self.path.clone());
        }
        self.path.truncate(outer);
        value
    }

    fn entry(&mut self, entry: &Entry, shape: &Shape) -> Option<Value> {
        self.inside(&entry.key, |walk| {
            let value = walk.node(&entry.value, super::tree::shown_at(entry), shape);
            if value.is_none() {
                walk.left_out.push(walk.path.clone());
            }
            value
        })
    }

    fn inside<T>(&mut self, key: &str, act: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.path.len();
        if outer > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        let result = act(self);
        self.path.truncate(outer);
        result
    }

    fn fields(&mut self, entries: &[Entry], fields: &Fields, shown: Span) -> Option<Value> {
        let mut object = Map::new();
        for entry in entries {
            match fields.known.get(&entry.key) {
                // A key with nothing after it counts as absent, so that everything below it may be commented out.
                Some(_) if entry.value.is_null() => {}
                Some(shape) => object.extend(self.entry(entry, shape).map(|value| (entry.key.clone(), value))),
                None => self.unknown_field(entry, fields),
            }
        }
        let is_given = |name: &String| entries.iter().any(|entry| entry.key == *name && !entry.value.is_null());
        for name in fields.required.iter().filter(|name| !is_given(name)) {
            let empty = entries.iter().find(|entry| entry.key == **name);
            let span = empty.map_or(start_of(shown), |entry| entry.key_span);
            let message = match section(&self.path) {
                Some(section) => format!("`{name}` is missing in `{section}`"),
                None => format!("`{name}` is missing"),
            };
            self.inside(name, |walk| walk.report(span, message, hint_for_missing(name)));
        }
        for name in &fields.required {
            if !object.contains_key(name)
                && let Some(value) = stand_in(name, &fields.known[name], shown)
            {
                self.inside(name, |walk| walk.left_out.push(walk.path.clone()));
                object.insert(name.clone(), value);
            }
        }
        let chosen = self.one_of(is_given, &fields.one_of, shown)?;
        let complete = fields.required.iter().chain(chosen).all(|name| object.contains_key(name));
        complete.then_some(Value::Object(object))
    }

    fn unknown_field(&mut self, entry: &Entry, fields: &Fields) {
        let known = fields.known.keys().map(String::as_str);
        if let Some(meant) = nearest(&entry.key, known.clone()) {
            self.inside(meant, |walk| walk.left_out.push(walk.path.clone()));
        }
        let hint = suggestion(&entry.key, known, "valid fields are");
        self.inside(&entry.key, |walk| {
            let (message, hint) = match crate::providers::moved(&walk.path) {
                Some(place) => (format!("`{}` was moved to `{place}`", entry.key), String::from("write it there")),
                None => (format!("unknown field `{}`", entry.key), hint),
            };
            walk.report(entry.key_span, message, Some(hint));
        });
    }

    /// The fields of the one group that is given. None: that is not exactly one.
    fn one_of<'g>(
        &mut self,
        is_given: impl Fn(&String) -> bool,
        groups: &'g [Vec<String>],
        shown: Span,
    ) -> Option<&'g [String]> {
        let present: Vec<&String> = groups.iter().flatten().filter(|name| is_given(name)).collect();
        let fits =
            |group: &&Vec<String>| group.len() == present.len() && group.iter().all(|name| present.contains(&name));
        if groups.is_empty() {
            return Some(&[]);
        }
        if let Some(group) = groups.iter().find(fits) {
            return Some(group);
        }
        let mut wanted: Vec<String> = groups.iter().map(|group| format!("`{}`", group.join("` with `"))).collect();
        let last = wanted.pop().unwrap_or_default();
        let wanted = if wanted.is_empty() { last } else { format!("{} or {last}", wanted.join(", ")) };
        let found = match present.as_slice() {
            [] => "none of them".to_owned(),
            several => several.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" and "),
        };
        self.report(start_of(shown), format!("expected {wanted}, found {found}"), None);
        None
    }

    fn scalar(&mut self, text: &str, plain: bool, node: &Node, shape: &Shape) -> Option<Value> {
        let meaning = if plain { plain_meaning(text) } else { Meaning::Text };
        match shape {
            Shape::Formatted(format) => {
                if let Err(message) = check_format(format, text) {
                    self.report(node.span, message, None);
                    return None;
                }
            }
            Shape::Text { not_empty: true } if text.is_empty() => {
                self.report(node.span, "this must not be empty", None);
                return None;
            }
            Shape::Text { .. } if meaning == Meaning::Text => {}
            Shape::Text { .. } => {
                let hint = Some(format!("put it in quotes: \"{text}\""));
                self.report(node.span, format!("expected text, found {}", found(node)), hint);
                return None;
            }
            Shape::Choice(known) | Shape::WordOr(known, _) if known.iter().any(|choice| choice == text) => {}
            Shape::WordOr(_, fields) if fields.known.contains_key(text) => {
                let hint = format!("give them below it: `{text}: …`");
                self.report(node.span, format!("`{text}` needs settings"), Some(hint));
                return None;
            }
            Shape::Choice(known) | Shape::WordOr(known, _) => {
                let mappings = match shape {
                    Shape::WordOr(_, fields) => Some(fields.known.keys()),
                    _ => None,
                };
                let known = known.iter().chain(mappings.into_iter().flatten()).map(String::as_str);
                let hint = suggestion(text, known, "use one of");
                self.report(node.span, format!("unknown value `{text}`"), Some(hint));
                return None;
            }
            Shape::Whole(least) => {
                match text.parse::<i64>().ok().filter(|number| meaning == Meaning::Number && number >= least) {
                    Some(number) => return Some(number.into()),
                    None => return self.wrong_type(node, node.span, shape),
                }
            }
            Shape::Truth => match meaning {
                Meaning::Truth(truth) => return Some(truth.into()),
                _ => return self.wrong_type(node, node.span, shape),
            },
            Shape::Scalar => {
                if let Meaning::Truth(truth) = meaning {
                    return Some(truth.to_string().into());
                }
            }
            Shape::List(_) | Shape::Map(_) | Shape::Fields(_) => return self.wrong_type(node, node.span, shape),
        }
        Some(text.into())
    }

    fn wrong_type(&mut self, node: &Node, shown: Span, shape: &Shape) -> Option<Value> {
        let (expected, hint) = match shape {
            Shape::Text { .. } | Shape::Formatted(_) => ("text", None),
            Shape::Choice(known) => ("text", Some(format!("use one of {}", known.join(", ")))),
            Shape::WordOr(known, fields) => {
                let fields: Vec<_> = fields.known.keys().map(String::as_str).collect();
                let hint = format!("use one of {}, or a mapping with {}", known.join(", "), fields.join(", "));
                ("a word or a mapping", Some(hint))
            }
            Shape::Whole(least) if *least < 0 => ("a whole number of -1 or more", None),
            Shape::Whole(_) => {
                ("a whole number of 0 or more", is_quoted_number(node).then(|| "without quotes".to_owned()))
            }
            Shape::Truth => ("true or false", Some("without quotes".to_owned())),
            Shape::Scalar => ("text, a number, true or false", None),
            Shape::List(_) => ("a list", Some("begin each item with `- `".to_owned())),
            Shape::Map(_) => ("a mapping of names to values", None),
            Shape::Fields(fields) => {
                let known: Vec<_> = fields.known.keys().map(String::as_str).collect();
                ("a mapping", Some(format!("valid fields are {}", known.join(", "))))
            }
        };
        self.report(shown, format!("expected {expected}, found {}", found(node)), hint);
        None
    }
}

/// The section that a path leads to, unless it leads to an item of a list, or to the file.
fn section(path: &str) -> Option<&str> {
    path.rsplit('.').next().filter(|last| !last.is_empty() && !last.ends_with(']'))
}

/// A value for a required field that is missing or has the wrong shape, so the rest around it is checked too. What depends on the value
/// is not reported.
fn stand_in(name: &str, shape: &Shape, of: Span) -> Option<Value> {
    match shape {
        Shape::List(_) => Some(Value::Array(Vec::new())),
        _ if name == "quorate" => Some(super::FORMAT.into()),
        // No other item begins there.
        _ if name == "name" => Some(format!("unnamed-{}-{}", of.line, of.column).into()),
        _ => None,
    }
}

fn start_of(span: Span) -> Span {
    if span.end_line == span.line { span } else { Span { end_line: span.line, end_column: span.column + 1, ..span } }
}

fn hint_for_missing(name: &str) -> Option<String> {
    match name {
        "quorate" => Some(format!("begin the file with `quorate: {}`", super::FORMAT)),
        "to" => Some(String::from("say where backups go: `to: {directory: PATH}` or `to: {s3: {bucket: NAME}}`")),
        _ => None,
    }
}

fn suggestion<'a>(wrong: &str, known: impl Iterator<Item = &'a str> + Clone, otherwise: &str) -> String {
    match nearest(wrong, known.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("{otherwise} {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// The value of a plain scalar in YAML's core schema.
#[derive(Clone, Copy, PartialEq)]
enum Meaning {
    Text,
    Number,
    Truth(bool),
}

fn plain_meaning(text: &str) -> Meaning {
    match text {
        "true" | "True" | "TRUE" => Meaning::Truth(true),
        "false" | "False" | "FALSE" => Meaning::Truth(false),
        // Rust reads "inf" and "nan" as numbers; YAML wants a dot before them.
        _ if text.parse::<f64>().is_ok() && text.bytes().any(|byte| byte.is_ascii_digit()) => Meaning::Number,
        _ => Meaning::Text,
    }
}

fn is_quoted_number(node: &Node) -> bool {
    matches!(&node.content, Content::Scalar { text, plain: false } if text.parse::<u64>().is_ok())
}

fn found(node: &Node) -> String {
    match &node.content {
        _ if node.is_null() => "nothing".to_owned(),
        Content::Scalar { text, plain } => match if *plain { plain_meaning(text) } else { Meaning::Text } {
            Meaning::Text => format!("the text `{text}`"),
            Meaning::Number => format!("the number {text}"),
            Meaning::Truth(truth) => truth.to_string(),
        },
        Content::Sequence(_) => "a list".to_owned(),
        Content::Mapping(_) | Content::Refused => "a mapping".to_owned(),
    }
}
