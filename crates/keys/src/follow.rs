//! Translates a watch of v3 keys for a client that waits for a node. Pure.
//!
//! A write of this library either puts nodes or removes one. A removal also writes the log of the node's directory in the same
//! transaction. So a node that was deleted without it has expired, was below a removed directory, or was left from an expired one: etcd's
//! content at that revision and the one before shows which.

use quorate_etcd::{Change, Event};

use crate::node::{Action, Happening, Log, Node, View, index};
use crate::path::{Layout, Path, Stored};
use crate::request::Wait;

/// What one revision may mean to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    Happened {
        path: Path,
        happening: Happening,
    },
    /// It must be found out how. `previous` is missing if etcd has dropped it already.
    Vanished {
        path: Path,
        previous: Option<Node>,
    },
}

/// Reads all changes of one revision.
pub fn read(layout: &Layout, wait: &Wait, changes: &[Change]) -> Vec<Sign> {
    let removed: Vec<Sign> = changes.iter().filter_map(|change| removal(layout, changes, change)).collect();
    if !removed.is_empty() {
        let own = layout.node(&wait.path);
        let own_is_deleted = changes.iter().any(|change| is_deletion(change) && change.event.key() == own);
        return keep(removed, |path| concerns(wait, path) || own_is_deleted && path.holds(&wait.path));
    }
    let is_put = |change: &Change| !is_deletion(change) && node_at(layout, change).is_some();
    if changes.iter().any(is_put) {
        let put = changes.iter().filter_map(|change| put(layout, change)).collect();
        return keep(put, |path| concerns(wait, path));
    }
    let vanished = changes.iter().filter_map(|change| {
        let path = node_at(layout, change).filter(|_| is_deletion(change))?;
        Some(Sign::Vanished { path, previous: change.previous.clone().map(Node::read) })
    });
    keep(vanished.collect(), |path| concerns(wait, path) || path.holds(&wait.path))
}

fn keep(signs: Vec<Sign>, wanted: impl Fn(&Path) -> bool) -> Vec<Sign> {
    let path = |sign: &Sign| match sign {
        Sign::Happened { path, .. } | Sign::Vanished { path, .. } => path.clone(),
    };
    signs.into_iter().filter(|sign| wanted(&path(sign))).collect()
}

/// Whether the client waits for what happens at this path.
fn concerns(wait: &Wait, path: &Path) -> bool {
    wait.path == *path || wait.recursive && wait.path.holds(path)
}

fn is_deletion(change: &Change) -> bool {
    matches!(change.event, Event::Delete { .. })
}

fn node_at(layout: &Layout, change: &Change) -> Option<Path> {
    match layout.read(change.event.key())? {
        Stored::Node(path) => Some(path),
        Stored::Log(_) => None,
    }
}

fn removal(layout: &Layout, changes: &[Change], change: &Change) -> Option<Sign> {
    let Event::Put(pair) = &change.event else { return None };
    let Stored::Log(directory) = layout.read(&pair.key)? else { return None };
    let log = Log::decode(&pair.value).filter(|log| log.action != Action::Create)?;
    let path = directory.child(log.name());
    let key = layout.node(&path);
    let deleted = changes.iter().find(|change| is_deletion(change) && change.event.key() == key)?;
    let previous = deleted.previous.clone().map(Node::read);
    let happening = gone(log.action, &path, previous.as_ref(), pair.mod_revision);
    Some(Sign::Happened { path, happening })
}

fn put(layout: &Layout, change: &Change) -> Option<Sign> {
    let path = node_at(layout, change)?;
    let Event::Put(pair) = &change.event else { return None };
    let node = Node::read(pair.clone());
    let action = node.head.action.filter(|_| !node.head.refresh)?;
    let previous = change.previous.clone().filter(|_| !node.head.new).map(|pair| Node::read(pair).view(&path));
    let view = View { modified: index(pair.mod_revision), ..node.view(&path) };
    Some(Sign::Happened { path, happening: Happening { action, node: view, previous } })
}

/// A node that is no longer there.
pub fn gone(action: Action, path: &Path, previous: Option<&Node>, revision: i64) -> Happening {
    let view = previous.map(|node| node.view(path));
    let node = View {
        key: path.shown(),
        dir: previous.is_some_and(Node::is_dir),
        modified: index(revision),
        created: view.as_ref().map_or(0, |view| view.created),
        ..View::default()
    };
    Happening { action, node, previous: view }
}

/// What etcd held on the way to a node that vanished, and at the node.
pub struct Lineage {
    /// From the directory below the root to the node itself, before and after; and the log of each one's directory, after.
    pub before: Vec<Option<Node>>,
    pub after: Vec<Option<Node>>,
    pub logs: Vec<Option<(i64, Log)>>,
}

/// How a node vanished with this revision: `None` if nobody could see it before.
pub fn explain(path: &Path, lineage: &Lineage, revision: i64) -> Option<(Path, Happening)> {
    if lineage.before.iter().any(Option::is_none) {
        return None;
    }
    let at = lineage.after.iter().position(Option::is_none)?;
    let path = path.first(at + 1);
    let previous = lineage.before[at].as_ref()?;
    let logged = lineage.logs.get(at)?.as_ref().filter(|(when, log)| *when == revision && log.name() == path.name());
    let action = match logged {
        Some((_, log)) => log.action,
        None if previous.lease != 0 => Action::Expire,
        // Somebody has deleted the v3 key.
        None => Action::Delete,
    };
    let happening = gone(action, &path, Some(previous), revision);
    Some((path, happening))
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
