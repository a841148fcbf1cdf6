//! The effect of a write, decided from what was read: an error, or one transaction that succeeds only if nothing it depends on
//! has changed. Pure.

use quorate_etcd::{Condition, KeyRange, Op, RangeQuery};

use crate::error::{Code, Refusal};
use crate::node::{Action, Happening, Head, Log, Node, View, index};
use crate::path::{Layout, Path};
use crate::request::{Expected, Kind, Write};

/// What was read, at one revision.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The directories on the way to the node, from the one below the root on.
    pub way: Vec<Option<Node>>,
    pub node: Option<Node>,
    pub has_children: bool,
    /// When the log of the directory was written last, zero for never.
    pub logged: i64,
    pub revision: i64,
}

/// What must be read before a write can be decided, and again if the transaction does not hold.
pub fn reads(layout: &Layout, write: &Write) -> Vec<Op> {
    let mut ops: Vec<Op> = way(write).iter().map(|directory| get(layout.node(directory))).collect();
    if write.kind == Kind::Post {
        ops.push(get(layout.log(&write.path)));
    } else if !write.path.is_root() {
        ops.push(get(layout.node(&write.path)));
        let children = layout.children(&write.path);
        ops.push(Op::Range(RangeQuery { limit: 1, keys_only: true, ..RangeQuery::new(children) }));
    }
    ops
}

pub fn get(key: Vec<u8>) -> Op {
    Op::Range(RangeQuery::new(KeyRange::key(key)))
}

/// The directories that must exist, or are created.
pub fn way(write: &Write) -> Vec<Path> {
    let last = write.path.depth() + usize::from(write.kind == Kind::Post);
    (1..last).map(|depth| write.path.first(depth)).collect()
}

/// One transaction, and what it means.
#[derive(Clone, Debug)]
pub struct Plan {
    pub conditions: Vec<Condition>,
    pub path: Path,
    action: Action,
    puts: Vec<Put>,
    deletes: Vec<KeyRange>,
    /// Of the node; `None` if it is removed.
    head: Option<Head>,
    value: Vec<u8>,
    previous: Option<Node>,
    /// Whether `previous` is shown.
    shows_previous: bool,
}

#[derive(Clone, Debug)]
struct Put {
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether the key is deleted with the lease of the write.
    leased: bool,
}

impl Plan {
    pub fn ops(&self, lease: i64) -> Vec<Op> {
        let put = |put: &Put| Op::Put {
            key: put.key.clone(),
            value: put.value.clone(),
            lease: if put.leased { lease } else { 0 },
        };
        let deletes = self.deletes.iter().cloned().map(Op::Delete);
        self.puts.iter().map(put).chain(deletes).collect()
    }

    /// What a client learns when the transaction was made with this revision.
    pub fn happening(&self, revision: i64) -> Happening {
        let modified = index(revision);
        let created = match (&self.head, &self.previous) {
            (Some(head), _) => head.created.unwrap_or(modified),
            (None, previous) => previous.as_ref().map_or(modified, Node::created),
        };
        let dir = match &self.head {
            Some(head) => head.dir,
            None => self.previous.as_ref().is_some_and(Node::is_dir),
        };
        let node = View {
            key: self.path.shown(),
            value: (self.head.is_some() && !dir).then(|| self.value.clone()),
            dir,
            expires: self.head.as_ref().and_then(|head| head.expires),
            nodes: Vec::new(),
            modified,
            created,
        };
        let previous = self.previous.as_ref().filter(|_| self.shows_previous).map(|node| node.view(&self.path));
        Happening { action: self.action, node, previous }
    }

    /// What the node's lease was. No key has it any more once the transaction is made.
    pub fn former_lease(&self) -> Option<i64> {
        self.previous.as_ref().map(|node| node.lease).filter(|lease| *lease != 0)
    }
}

/// Decides.
pub fn plan(layout: &Layout, write: &Write, state: &State) -> Result<Plan, Refusal> {
    let judged = match &write.kind {
        Kind::Set => set(layout, write, state),
        Kind::Create => create(layout, write, state),
        Kind::Post => post(layout, write, state),
        Kind::Update => update(layout, write, state),
        Kind::CompareAndSwap(expected) => swap(layout, write, expected, state),
        Kind::Delete { recursive } => delete(layout, write, *recursive, state),
        Kind::CompareAndDelete(expected) => compare_and_delete(layout, write, expected, state),
    };
    judged.map_err(|refusal| refusal.at(index(state.revision)))
}

fn not_root(path: &Path) -> Result<(), Refusal> {
    if path.is_root() { Err(Refusal::new(Code::RootReadOnly, "/")) } else { Ok(()) }
}

/// How many of the directories exist: all, or all before the first that is missing.
fn existing(path: &Path, way: &[Option<Node>]) -> Result<usize, Refusal> {
    for (at, directory) in way.iter().enumerate() {
        match directory {
            None => return Ok(at),
            Some(node) if !node.is_dir() => return Err(Refusal::new(Code::NotDir, path.first(at + 1).shown())),
            Some(_) => {}
        }
    }
    Ok(way.len())
}

/// The node, or which part of its path is missing.
pub fn find<'a>(path: &Path, way: &[Option<Node>], node: Option<&'a Node>) -> Result<&'a Node, Refusal> {
    let existing = existing(path, way)?;
    let found = node.filter(|_| existing == way.len());
    found.ok_or_else(|| Refusal::new(Code::KeyNotFound, path.first(existing + 1).shown()))
}

fn found<'a>(write: &Write, state: &'a State) -> Result<&'a Node, Refusal> {
    find(&write.path, &state.way, state.node.as_ref())
}

fn set(layout: &Layout, write: &Write, state: &State) -> Result<Plan, Refusal> {
    let previous = match found(write, state) {
        _ if write.path.is_root() => return Err(Refusal::new(Code::RootReadOnly, "/")),
        Ok(node) => Some(node),
        Err(refusal) if refusal.code == Code::KeyNotFound && !write.refresh => None,
        Err(refusal) => return Err(refusal),
    };
    let head = Head { action: Some(Action::Set), dir: write.dir, new: previous.is_none(), ..head(write) };
    match previous {
        None => created(layout, write, state, write.path.clone(), head),
        Some(node) if node.is_dir() => Err(Refusal::new(Code::NotFile, write.path.shown())),
        Some(node) => {
            let value = if write.refresh { node.value.clone() } else { write.value.clone() };
            Ok(changed(layout, write, state, node, head, value))
        }
    }
}

fn create(layout: &Layout, write: &Write, state: &State) -> Result<Plan, Refusal> {
    not_root(&write.path)?;
    if existing(&write.path, &state.way)? == state.way.len() && state.node.is_some() {
        return Err(Refusal::new(Code::NodeExist, write.path.shown()));
    }
    let head = Head { action: Some(Action::Create), dir: write.dir, new: true, refresh: false, ..head(write) };
    created(layout, write, state, write.path.clone(), head)
}

pub fn name_in_order(revision: i64) -> String {
    format!("{:020}", index(revision) + 1)
}

/// The name is the next index if nobody else writes before, and smaller otherwise. The log of the directory, which every such write
/// replaces, keeps names in the order of the writes.
fn post(layout: &Layout, write: &Write, state: &State) -> Result<Plan, Refusal> {
    let name = name_in_order(state.revision);
    let path = write.path.child(name.as_bytes());
    let head = Head { action: Some(Action::Create), dir: write.dir, new: true, refresh: false, ..head(write) };
    let mut plan = created(layout, write, state, path, head)?;
    let log = layout.log(&write.path);
    let is_new = existing(&write.path, &state.way)? < state.way.len();
    if !is_new {
        plan.conditions.push(Condition::unchanged_since(log.clone(), state.logged));
    }
    plan.puts.push(Put { key: log.clone(), value: Log::encode(Action::Create, name.as_bytes()), leased: false });
    if is_new {
        plan.deletes = plan.deletes.iter().flat_map(|range| without(range, &log)).collect();
    }
    Ok(plan)
}

/// A put and a delete of one key must not be in one transaction.
fn without(range: &KeyRange, key: &[u8]) -> Vec<KeyRange> {
    if range.key.as_slice() > key || key >= range.range_end.as_slice() {
        return vec![range.clone()];
    }
    let before = KeyRange { key: range.key.clone(), range_end: key.to_vec() };
    let after = KeyRange { key: [key, &[0]].concat(), range_end: range.range_end.clone() };
    [before, after].into_iter().filter(|part| part.key < part.range_end).collect()
}

fn update(layout: &Layout, write: &Write, state: &State) -> Result<Plan, Refusal> {
    not_root(&write.path)?;
    let node = found(write, state)?;
    if node.is_dir() && !write.value.is_empty() {
        return Err(Refusal::new(Code::NotFile, write.path.shown()));
    }
    let keeps = Head { action: Some(Action::Update), dir: node.is_dir(), created: Some(node.created()), ..head(write) };
    // etcd shows another index of a directory in the answer alone.
    let head = Head { modified: node.is_dir().then(|| node.modified()), ..keeps };
    let value = if write.refresh { node.value.clone() } else { write.value.clone() };
    Ok(changed(layout, write, state, node, head, value))
}

fn swap(layout: &Layout, write: &Write, expected: &Expected, state: &State) -> Result<Plan, Refusal> {
    not_root(&write.path)?;
    let node = found(write, state)?;
    if node.is_dir() {
        return Err(Refusal::new(Code::NotFile, write.path.shown()));
    }
    compare(node, expected)?;
    let head = Head { action: Some(Action::CompareAndSwap), created: Some(node.created()), ..head(write) };
    let value = if write.refresh { node.value.clone() } else { write.value.clone() };
    Ok(changed(layout, write, state, node, head, value))
}

fn compare(node: &Node, Expected { value, index }: &Expected) -> Result<(), Refusal> {
    let pair = |wanted: &[u8], found: &[u8]| [b"[", wanted, b" != ", found, b"]"].concat();
    let values = pair(value, &node.value);
    let indexes = pair(index.to_string().as_bytes(), node.modified().to_string().as_bytes());
    let cause = match (value.is_empty() || *value == node.value, *index == 0 || *index == node.modified()) {
        (true, true) => return Ok(()),
        (true, false) => indexes,
        (false, true) => values,
        (false, false) => [values, indexes].join(&b' '),
    };
    Err(Refusal::new(Code::TestFailed, cause))
}

fn delete(layout: &Layout, write: &Write, recursive: bool, state: &State) -> Result<Plan, Refusal> {
    not_root(&write.path)?;
    let node = found(write, state)?;
    if node.is_dir() && !write.dir && !recursive {
        return Err(Refusal::new(Code::NotFile, write.path.shown()));
    }
    if node.is_dir() && !recursive && state.has_children {
        return Err(Refusal::new(Code::DirNotEmpty, write.path.shown()));
    }
    let mut plan = removed(layout, write, state, node, Action::Delete);
    if node.is_dir() {
        plan.deletes.push(layout.below(&write.path));
        if !recursive {
            plan.conditions.push(Condition::none_in(layout.children(&write.path)));
        }
    }
    Ok(plan)
}

fn compare_and_delete(layout: &Layout, write: &Write, expected: &Expected, state: &State) -> Result<Plan, Refusal> {
    if write.path.is_root() {
        return Err(Refusal::new(Code::NotFile, ""));
    }
    let node = found(write, state)?;
    if node.is_dir() {
        return Err(Refusal::new(Code::NotFile, write.path.shown()));
    }
    compare(node, expected)?;
    Ok(removed(layout, write, state, node, Action::CompareAndDelete))
}

fn head(write: &Write) -> Head {
    Head { expires: write.ttl.map(|ttl| ttl.expires), refresh: write.refresh, ..Head::default() }
}

/// The directories that exist are still the same ones.
fn same_way(layout: &Layout, path: &Path, way: &[Option<Node>]) -> Vec<Condition> {
    let exist = way.iter().map_while(Option::as_ref).enumerate();
    exist.map(|(at, node)| Condition::created_at(layout.node(&path.first(at + 1)), node.create_revision)).collect()
}

/// A node that did not exist, and the directories on the way to it that did not. Whatever is still stored below the first of them is
/// left from a directory that has expired, and is deleted.
fn created(layout: &Layout, write: &Write, state: &State, path: Path, head: Head) -> Result<Plan, Refusal> {
    let existing = existing(&path, &state.way)?;
    let top = path.first(existing + 1);
    let mut conditions = same_way(layout, &path, &state.way[..existing]);
    conditions.push(Condition::absent(layout.node(&top)));
    let implied = Head { dir: true, ..Head::default() }.encode(b"");
    let directories = path.ancestors().split_off(existing);
    let mut puts: Vec<Put> = directories
        .iter()
        .map(|directory| Put { key: layout.node(directory), value: implied.clone(), leased: false })
        .collect();
    let value = if head.dir { Vec::new() } else { write.value.clone() };
    puts.push(Put { key: layout.node(&path), value: head.encode(&value), leased: true });
    let mut keys: Vec<Vec<u8>> = puts.iter().map(|put| put.key.clone()).collect();
    keys.sort();
    let deletes = layout.below_without(&top, &keys);
    let action = head.action.unwrap_or(Action::Create);
    let (head, previous) = (Some(head), None);
    Ok(Plan { conditions, path, action, puts, deletes, head, value, previous, shows_previous: false })
}

/// A node that existed, and keeps existing.
fn changed(layout: &Layout, write: &Write, state: &State, node: &Node, head: Head, value: Vec<u8>) -> Plan {
    let value = if head.dir { Vec::new() } else { value };
    let key = layout.node(&write.path);
    let mut conditions = same_way(layout, &write.path, &state.way);
    conditions.push(Condition::unchanged_since(key.clone(), node.mod_revision));
    Plan {
        conditions,
        path: write.path.clone(),
        action: head.action.unwrap_or(Action::Set),
        puts: vec![Put { key, value: head.encode(&value), leased: true }],
        deletes: Vec::new(),
        head: Some(head),
        value,
        previous: Some(node.clone()),
        shows_previous: true,
    }
}

fn removed(layout: &Layout, write: &Write, state: &State, node: &Node, action: Action) -> Plan {
    let key = layout.node(&write.path);
    let mut conditions = same_way(layout, &write.path, &state.way);
    conditions.push(Condition::unchanged_since(key.clone(), node.mod_revision));
    let log = Log::encode(action, write.path.name());
    Plan {
        conditions,
        path: write.path.clone(),
        action,
        puts: vec![Put { key: layout.log(&write.path.parent()), value: log, leased: false }],
        deletes: vec![KeyRange::key(key)],
        head: None,
        value: Vec::new(),
        previous: Some(node.clone()),
        shows_previous: true,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
