//! A node as stored and as clients see it. Pure.
//!
//! A stored value is one line of JSON, the head, followed by the value itself, byte for byte. The revision of a write is not
//! known in advance, so the head contains an index only where it differs from the revision of the v3 key.

use jiff::Timestamp;
use quorate_etcd::KeyValue;
use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::path::Path;

/// What every stored head begins with.
const FORMAT: u8 = 1;
const NANOSECONDS: i128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Get,
    Create,
    Set,
    Update,
    Delete,
    CompareAndSwap,
    CompareAndDelete,
    Expire,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Get => "get",
            Action::Create => "create",
            Action::Set => "set",
            Action::Update => "update",
            Action::Delete => "delete",
            Action::CompareAndSwap => "compareAndSwap",
            Action::CompareAndDelete => "compareAndDelete",
            Action::Expire => "expire",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub v2: u8,
    /// What wrote it; `None` for a directory that was created on the way to another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub dir: bool,
    /// Whether it replaced nothing that a client could see.
    #[serde(default, skip_serializing_if = "is_false")]
    pub new: bool,
    /// Whether it only extended the TTL, which no watch sees.
    #[serde(default, skip_serializing_if = "is_false")]
    pub refresh: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Default for Head {
    fn default() -> Self {
        Head {
            v2: FORMAT,
            action: None,
            dir: false,
            new: false,
            refresh: false,
            created: None,
            modified: None,
            expires: None,
        }
    }
}

impl Head {
    pub fn encode(&self, value: &[u8]) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("plain data serializes");
        bytes.push(b'\n');
        bytes.extend_from_slice(value);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(Head, &[u8])> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        (head.v2 == FORMAT).then_some((head, &bytes[end + 1..]))
    }
}

/// A node that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub head: Head,
    pub value: Vec<u8>,
    pub create_revision: i64,
    pub mod_revision: i64,
    pub lease: i64,
}

impl Node {
    /// What something else than this library has put there is a file with these bytes.
    pub fn read(pair: KeyValue) -> Self {
        let (head, value) = match Head::decode(&pair.value) {
            Some((head, value)) => (head, value.to_vec()),
            None => (Head { action: Some(Action::Set), ..Head::default() }, pair.value),
        };
        let KeyValue { create_revision, mod_revision, lease, .. } = pair;
        Node { head, value, create_revision, mod_revision, lease }
    }

    pub fn created(&self) -> u64 {
        self.head.created.unwrap_or_else(|| index(self.mod_revision))
    }

    pub fn modified(&self) -> u64 {
        self.head.modified.unwrap_or_else(|| index(self.mod_revision))
    }

    pub fn is_dir(&self) -> bool {
        self.head.dir
    }

    /// Without what is in it.
    pub fn view(&self, path: &Path) -> View {
        View {
            key: path.shown(),
            value: (!self.is_dir()).then(|| self.value.clone()),
            dir: self.is_dir(),
            expires: self.head.expires,
            nodes: Vec::new(),
            modified: self.modified(),
            created: self.created(),
        }
    }
}

pub fn index(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// A node as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    pub dir: bool,
    pub expires: Option<Timestamp>,
    pub nodes: Vec<View>,
    pub modified: u64,
    pub created: u64,
}

impl View {
    /// What is empty or zero is left out, as Go does.
    fn write(&self, json: &mut Json, now: Timestamp) {
        json.object(|json| {
            if !self.key.is_empty() {
                json.field("key").text(&self.key);
            }
            if let Some(value) = &self.value {
                json.field("value").text(value);
            }
            if self.dir {
                json.field("dir").flag(true);
            }
            if let Some(expires) = self.expires {
                json.field("expiration").text(expires.to_string().as_bytes());
                match seconds_left(expires, now) {
                    0 => {}
                    ttl => json.field("ttl").number(ttl),
                }
            }
            if !self.nodes.is_empty() {
                json.field("nodes").array(|json| self.nodes.iter().for_each(|node| node.write(json, now)));
            }
            for (name, index) in [("modifiedIndex", self.modified), ("createdIndex", self.created)] {
                if index > 0 {
                    json.field(name).number(index);
                }
            }
        });
    }
}

/// Rounded up. Zero for a key that etcd is about to delete.
fn seconds_left(expires: Timestamp, now: Timestamp) -> u64 {
    let left = expires.as_nanosecond() - now.as_nanosecond();
    u64::try_from((left + NANOSECONDS - 1).div_euclid(NANOSECONDS)).unwrap_or(0)
}

/// What happened to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    pub action: Action,
    pub node: View,
    pub previous: Option<View>,
}

impl Happening {
    pub fn is_created(&self) -> bool {
        self.action == Action::Create || self.action == Action::Set && self.previous.is_none()
    }

    pub fn json(&self, now: Timestamp) -> String {
        let mut json = Json::default();
        json.object(|json| {
            json.field("action").text(self.action.name().as_bytes());
            self.node.write(json.field("node"), now);
            if let Some(previous) = &self.previous {
                previous.write(json.field("prevNode"), now);
            }
        });
        json.line()
    }

    /// With `noValueOnSuccess`, which has no effect on reading and deleting.
    pub fn json_without_nodes(&self, now: Timestamp) -> String {
        match self.action {
            Action::Set | Action::CompareAndSwap | Action::Create | Action::Update => {
                format!("{{\"action\":\"{}\"}}\n", self.action.name())
            }
            _ => self.json(now),
        }
    }
}

/// The log of a directory: what was removed from it, or added in order, last. Stored like a node, with the name as its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub action: Action,
    name: Vec<u8>,
}

impl Log {
    pub fn encode(action: Action, name: &[u8]) -> Vec<u8> {
        Head { action: Some(action), ..Head::default() }.encode(name)
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, name) = Head::decode(bytes)?;
        Some(Log { action: head.action?, name: name.to_vec() })
    }

    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(value: Vec<u8>) -> KeyValue {
        KeyValue { key: b"/v2//a".to_vec(), value, create_revision: 5, mod_revision: 9, version: 1, lease: 0 }
    }

    #[test]
    fn a_node_is_stored_and_read() {
        let head = Head { action: Some(Action::CompareAndSwap), created: Some(7), ..Head::default() };
        let stored = head.encode(b"line\nline\0\xff");
        assert!(stored.starts_with(b"{\"v2\":1,\"action\":\"compareAndSwap\",\"created\":7}\nline\n"));
        let node = Node::read(pair(stored));
        assert_eq!((node.created(), node.modified(), node.value.as_slice()), (7, 9, &b"line\nline\0\xff"[..]));
    }

    #[test]
    fn foreign_values_are_read_as_files() {
        for stranger in ["", "plain", "{}\n", "{\"v2\":2}\nx", "{\"v2\":1}", "\n"] {
            let node = Node::read(pair(stranger.into()));
            assert_eq!((node.value.as_slice(), node.is_dir(), node.created()), (stranger.as_bytes(), false, 9));
        }
    }

    #[test]
    fn a_happening_looks_like_etcds() {
        let now: Timestamp = "2013-12-04T12:01:21.1Z".parse().unwrap();
        let path = Path::parse(b"/a");
        let head = Head { expires: Some("2013-12-04T12:01:26.874888581Z".parse().unwrap()), ..Head::default() };
        let node = Node::read(pair(head.encode(b"bar"))).view(&path);
        let previous = View { expires: None, ..node.clone() };
        let happening = Happening { action: Action::Set, node, previous: Some(previous) };
        assert_eq!(
            happening.json(now),
            concat!(
                r#"{"action":"set","node":{"key":"/a","value":"bar","expiration":"2013-12-04T12:01:26.874888581Z","#,
                r#""ttl":6,"modifiedIndex":9,"createdIndex":9},"#,
                r#""prevNode":{"key":"/a","value":"bar","modifiedIndex":9,"createdIndex":9}}"#,
                "\n"
            )
        );
        assert_eq!(happening.json_without_nodes(now), "{\"action\":\"set\"}\n");
        let late: Timestamp = "2013-12-04T12:02:00Z".parse().unwrap();
        assert!(!happening.json(late).contains("ttl"));
        let root = Happening { action: Action::Get, node: View { dir: true, ..View::default() }, previous: None };
        assert_eq!(root.json(now), "{\"action\":\"get\",\"node\":{\"dir\":true}}\n");
    }

    #[test]
    fn a_log_is_read_as_written() {
        let log = Log::decode(&Log::encode(Action::Delete, b"n\xff")).unwrap();
        assert_eq!((log.action, log.name()), (Action::Delete, &b"n\xff"[..]));
        assert_eq!(Log::decode(b"{}"), None);
    }
}
