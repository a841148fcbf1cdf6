//! YAML as a tree with positions. Reading is bounded: nesting has a limit, and anchors, aliases and tags are refused,
//! so a small file never becomes a large tree. Knows nothing about the spec's fields.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::Value;

use super::problem::Span;

/// Much deeper than any spec, and safe for recursive functions.
const DEEPEST: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub span: Span,
    pub content: Content,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    /// Plain scalars may mean a number, a truth value or nothing; quoted ones are always text.
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
    /// A refused value; its problem is already reported.
    Refused,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub key: String,
    pub key_span: Span,
    pub value: Node,
}

/// What reading the YAML itself found, before anything is known of the spec.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub span: Span,
    pub message: String,
    pub hint: Option<&'static str>,
}

impl Node {
    /// Nothing was written: `key:`, `~` or `null`.
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.content {
            Content::Mapping(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    pub fn is_collection(&self) -> bool {
        matches!(self.content, Content::Sequence(_) | Content::Mapping(_))
    }
}

/// The best position to show for a value: its own, or for a block of several lines that of its key.
pub(super) fn shown_at(entry: &Entry) -> Span {
    if entry.value.is_collection() || entry.value.is_null() { entry.key_span } else { entry.value.span }
}

/// Where a path leads.
#[derive(Clone, Copy)]
pub(super) struct Located {
    /// Of the key that names the value, or of the value itself where none does.
    pub key: Span,
    /// Where the value is best shown.
    pub shown: Span,
}

/// The place that a path such as `clusters[0].tls.ca` names, or that of its deepest part that is there.
pub(super) fn locate(root: &Node, path: &str) -> Located {
    let beginning = Span { end_line: root.span.line, end_column: root.span.column + 1, ..root.span };
    let (mut node, mut place) = (root, Located { key: beginning, shown: beginning });
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        let index = part.strip_suffix(']').and_then(|index| index.parse::<usize>().ok());
        match (&node.content, index) {
            (Content::Sequence(items), Some(index)) if index < items.len() => {
                node = &items[index];
                place = Located { key: node.span, shown: node.span };
            }
            _ => match node.entry(part) {
                Some(entry) => {
                    node = &entry.value;
                    place = Located { key: entry.key_span, shown: shown_at(entry) };
                }
                None => break,
            },
        }
    }
    place
}

/// A collection that is not closed yet.
struct Open {
    node: Node,
    key: Option<(String, Span)>,
}

/// Builds the tree from the parser's events.
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    findings: Vec<Finding>,
}

/// The content of another program's YAML file, in which every scalar counts as text. `Err` says what is wrong with it.
pub fn read_plain_yaml(text: &str) -> Result<Value, String> {
    let (root, findings) = read(text).map_err(|finding| finding.message)?;
    match findings.into_iter().next() {
        Some(Finding { span, message, .. }) => Err(format!("line {}: {message}", span.line)),
        None => Ok(plain(&root)),
    }
}

fn plain(node: &Node) -> Value {
    match &node.content {
        Content::Scalar { .. } if node.is_null() => Value::Null,
        Content::Scalar { text, .. } => Value::String(text.clone()),
        Content::Sequence(items) => items.iter().map(plain).collect(),
        Content::Mapping(entries) => entries.iter().map(|entry| (entry.key.clone(), plain(&entry.value))).collect(),
        Content::Refused => Value::Null,
    }
}

/// Reads a file of one document. `Err` when it is not YAML or cannot be a spec at all; findings that leave the rest
/// readable come with the tree.
pub(super) fn read(text: &str) -> Result<(Node, Vec<Finding>), Finding> {
    let mut builder = Builder { open: Vec::new(), root: None, findings: Vec::new() };
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let marker = *error.marker();
            refusal(point(marker.line(), marker.col()), format!("this is not YAML: {}", error.info()), None)
        })?;
        let span = Span {
            line: span.start.line(),
            column: span.start.col() + 1,
            end_line: span.end.line(),
            end_column: span.end.col() + 1,
        };
        if let Event::DocumentStart(_) = event {
            documents += 1;
            if documents > 1 {
                return Err(refusal(
                    span,
                    "a second YAML document begins here".to_owned(),
                    Some("a file holds one document; list several clusters under `clusters`"),
                ));
            }
        }
        builder.on_event(event, span)?;
    }
    let root = builder.root.unwrap_or_else(|| scalar(point(1, 0), String::new(), true));
    Ok((root, builder.findings))
}

fn refusal(span: Span, message: String, hint: Option<&'static str>) -> Finding {
    Finding { span, message, hint }
}

fn point(line: usize, column_from_zero: usize) -> Span {
    Span { line, column: column_from_zero + 1, end_line: line, end_column: column_from_zero + 2 }
}

fn scalar(span: Span, text: String, plain: bool) -> Node {
    Node { span, content: Content::Scalar { text, plain } }
}

impl Builder {
    fn on_event(&mut self, event: Event<'_>, span: Span) -> Result<(), Finding> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_decoration(anchor, tag.is_some(), span);
                self.place(scalar(span, text.into_owned(), style == ScalarStyle::Plain));
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_decoration(anchor, tag.is_some(), span);
                self.begin(Content::Sequence(Vec::new()), span)?;
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_decoration(anchor, tag.is_some(), span);
                self.begin(Content::Mapping(Vec::new()), span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            Event::Alias(_) => {
                self.findings.push(refusal(span, "aliases are not read in a spec".to_owned(), Some("write it out")));
                self.place(Node { span, content: Content::Refused });
            }
            _ => {}
        }
        Ok(())
    }

    fn refuse_decoration(&mut self, anchor: usize, tagged: bool, span: Span) {
        if anchor > 0 {
            self.findings.push(refusal(span, "anchors are not read in a spec".to_owned(), Some("write it out")));
        }
        if tagged {
            self.findings.push(refusal(span, "tags are not read in a spec".to_owned(), Some("remove the tag")));
        }
    }

    fn begin(&mut self, content: Content, span: Span) -> Result<(), Finding> {
        if self.open.len() == DEEPEST {
            return Err(refusal(span, format!("nested deeper than {DEEPEST} levels"), None));
        }
        self.open.push(Open { node: Node { span, content }, key: None });
        Ok(())
    }

    fn end(&mut self, span: Span) {
        let Some(Open { mut node, .. }) = self.open.pop() else { return };
        (node.span.end_line, node.span.end_column) = (span.end_line, span.end_column);
        if let Content::Mapping(entries) = &node.content {
            self.findings.extend(repeated_keys(entries));
        }
        self.place(node);
    }

    /// Puts a finished node where it belongs: as the root, an item, a key, or the value of the key before it.
    fn place(&mut self, node: Node) {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match (&mut open.node.content, open.key.take()) {
            (Content::Mapping(entries), Some((key, key_span))) => entries.push(Entry { key, key_span, value: node }),
            (Content::Mapping(_), None) => {
                let key_span = node.span;
                let key = match node.content {
                    Content::Scalar { text, .. } => text,
                    _ => {
                        self.findings.push(refusal(key_span, "a key must be plain text".to_owned(), None));
                        String::new()
                    }
                };
                open.key = Some((key, key_span));
            }
            (Content::Sequence(items), _) => items.push(node),
            (Content::Scalar { .. } | Content::Refused, _) => {}
        }
    }
}

fn repeated_keys(entries: &[Entry]) -> Vec<Finding> {
    let mut first_line = HashMap::with_capacity(entries.len());
    let mut findings = Vec::new();
    for Entry { key, key_span, .. } in entries {
        match first_line.get(key.as_str()) {
            Some(line) => {
                let message = format!("`{key}` is given twice; the first is in line {line}");
                findings.push(refusal(*key_span, message, Some("keep one of them")));
            }
            None => drop(first_line.insert(key.as_str(), key_span.line)),
        }
    }
    findings
}
