//! Converts flat v3 pairs to nested directories. Pure.

use std::collections::BTreeMap;

use quorate_etcd::KeyValue;

use crate::node::{Node, View};
use crate::path::{Layout, Path, Stored};

/// The nodes in `directory`, sorted by name, hidden ones left out, with what is in them if the pairs have it. What is stored below a
/// directory that does not exist is left out: the directory has expired, and nobody has removed the rest yet.
pub fn listing(layout: &Layout, directory: &Path, pairs: Vec<KeyValue>) -> Vec<View> {
    let mut by_parent: BTreeMap<Path, Vec<(Path, Node)>> = BTreeMap::new();
    for pair in pairs {
        if let Some(Stored::Node(path)) = layout.read(&pair.key)
            && !path.name().starts_with(b"_")
        {
            by_parent.entry(path.parent()).or_default().push((path, Node::read(pair)));
        }
    }
    fill(directory, &mut by_parent)
}

fn fill(directory: &Path, by_parent: &mut BTreeMap<Path, Vec<(Path, Node)>>) -> Vec<View> {
    let mut nodes = by_parent.remove(directory).unwrap_or_default();
    nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let view = |(path, node): (Path, Node)| {
        let mut view = node.view(&path);
        if node.is_dir() {
            view.nodes = fill(&path, by_parent);
        }
        view
    };
    nodes.into_iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Head;

    fn pairs(nodes: &[(&str, bool)]) -> Vec<KeyValue> {
        let layout = Layout::new("/v2");
        let pair = |(path, dir): &(&str, bool)| KeyValue {
            key: layout.node(&Path::parse(path.as_bytes())),
            value: Head { dir: *dir, ..Head::default() }.encode(b""),
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            lease: 0,
        };
        nodes.iter().map(pair).collect()
    }

    fn names(views: &[View]) -> Vec<String> {
        let mut names = Vec::new();
        for view in views {
            names.push(String::from_utf8(view.key.clone()).unwrap());
            names.extend(self::names(&view.nodes));
        }
        names
    }

    #[test]
    fn directories_are_nested_and_hidden_nodes_and_orphans_left_out() {
        let mut all = pairs(&[
            ("/d/z", false),
            ("/d/e", true),
            ("/d/e/2", false),
            ("/d/e/1", false),
            ("/d/_h", true),
            ("/d/_h/x", false),
            ("/d/gone/x", false),
            ("/d/e/_y", false),
        ]);
        all.push(KeyValue { key: b"/v2/d//".to_vec(), ..all[0].clone() });
        let views = listing(&Layout::new("/v2"), &Path::parse(b"/d"), all);
        assert_eq!(names(&views), ["/d/e", "/d/e/1", "/d/e/2", "/d/z"]);
    }
}
