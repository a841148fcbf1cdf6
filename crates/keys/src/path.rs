//! Names of nodes, and their place among the v3 keys. Pure.
//!
//! The node `/a/b/c` is stored under `PREFIX/a/b//c`: the path of its directory, an empty segment, its name. The direct children of
//! a directory are therefore one range of keys, and everything below it is another. No name is empty, so the key `PREFIX/a/b//` is
//! not a node: it is the log of that directory, which records the last removal.

use quorate_etcd::{KeyRange, prefix_end};

/// etcd takes at most 128 operations in a transaction; creating a node this deep needs two for each level, and a few.
pub const MAX_DEPTH: usize = 60;
pub const MAX_LENGTH: usize = 4096;

/// The name of a node: its segments from the root on, none of them empty. Bytes, because v2 takes any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(Vec<Vec<u8>>);

impl Path {
    pub fn root() -> Self {
        Path::default()
    }

    /// Reads what follows `/v2/keys` in an unescaped path, as Go's `path.Join` would.
    pub fn parse(text: &[u8]) -> Self {
        let mut segments: Vec<Vec<u8>> = Vec::new();
        for segment in text.split(|byte| *byte == b'/') {
            match segment {
                b"" | b"." => {}
                b".." => {
                    segments.pop();
                }
                name => segments.push(name.to_vec()),
            }
        }
        Path(segments)
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// In bytes, as shown.
    pub fn length(&self) -> usize {
        self.0.iter().map(|segment| segment.len() + 1).sum()
    }

    pub fn name(&self) -> &[u8] {
        self.0.last().map_or(b"", Vec::as_slice)
    }

    /// The root is its own parent.
    pub fn parent(&self) -> Path {
        self.first(self.depth().saturating_sub(1))
    }

    pub fn child(&self, name: &[u8]) -> Path {
        let mut segments = self.0.clone();
        segments.push(name.to_vec());
        Path(segments)
    }

    /// The ancestor at this depth.
    pub fn first(&self, depth: usize) -> Path {
        Path(self.0[..depth.min(self.0.len())].to_vec())
    }

    /// From the one below the root to the parent.
    pub fn ancestors(&self) -> Vec<Path> {
        (1..self.depth()).map(|depth| self.first(depth)).collect()
    }

    /// Whether this is `other`, or one of its ancestors.
    pub fn holds(&self, other: &Path) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Whether a watch here must not see `other`: a segment below this path begins with an underscore.
    pub fn hides(&self, other: &Path) -> bool {
        self.holds(other) && other.0[self.depth()..].iter().any(|segment| segment.starts_with(b"_"))
    }

    /// As clients see it: empty for the root.
    pub fn shown(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.length());
        for segment in &self.0 {
            text.push(b'/');
            text.extend_from_slice(segment);
        }
        text
    }
}

/// Translates between paths and v3 keys.
#[derive(Clone, Debug)]
pub struct Layout {
    prefix: Vec<u8>,
}

/// What a v3 key below the prefix stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    Node(Path),
    /// The log of this directory.
    Log(Path),
}

impl Layout {
    pub fn new(prefix: &str) -> Self {
        Layout { prefix: prefix.trim_end_matches('/').as_bytes().to_vec() }
    }

    fn inside(&self, directory: &Path) -> Vec<u8> {
        [&self.prefix, directory.shown().as_slice(), b"/"].concat()
    }

    /// Where a node is stored. The root is not.
    pub fn node(&self, path: &Path) -> Vec<u8> {
        [&self.log(&path.parent()), path.name()].concat()
    }

    pub fn log(&self, directory: &Path) -> Vec<u8> {
        let mut key = self.inside(directory);
        key.push(b'/');
        key
    }

    pub fn children(&self, directory: &Path) -> KeyRange {
        let log = self.log(directory);
        let range_end = prefix_end(&log);
        // The log itself is left out.
        KeyRange { key: [log.as_slice(), &[0]].concat(), range_end }
    }

    /// Everything below a directory, its log included.
    pub fn below(&self, directory: &Path) -> KeyRange {
        KeyRange::prefix(self.inside(directory))
    }

    /// What `below` has without these keys, which must be sorted.
    pub fn below_without(&self, directory: &Path, keys: &[Vec<u8>]) -> Vec<KeyRange> {
        let KeyRange { mut key, range_end } = self.below(directory);
        let mut ranges = Vec::new();
        for hole in keys {
            if *hole < key || *hole >= range_end {
                continue;
            }
            if key < *hole {
                ranges.push(KeyRange { key, range_end: hole.clone() });
            }
            key = [hole.as_slice(), &[0]].concat();
        }
        ranges.push(KeyRange { key, range_end });
        ranges
    }

    /// What a watch must see to know of every event at and, if `recursive`, below a path: the node's siblings and the log of its
    /// directory come first in the order of keys, then what is below it.
    pub fn watched(&self, path: &Path, recursive: bool) -> KeyRange {
        if path.is_root() {
            return self.below(path);
        }
        let log = self.log(&path.parent());
        let range_end = if recursive { self.below(path).range_end } else { prefix_end(&log) };
        KeyRange { key: log, range_end }
    }

    /// As `watched`, and its ancestors too, which precede it in the order of keys.
    pub fn watched_with_ancestors(&self, path: &Path, recursive: bool) -> KeyRange {
        KeyRange { key: self.log(&Path::root()), ..self.watched(path, recursive) }
    }

    /// `None` for a key that this layout never writes.
    pub fn read(&self, key: &[u8]) -> Option<Stored> {
        let rest = key.strip_prefix(self.prefix.as_slice())?;
        let at = rest.windows(2).position(|pair| pair == b"//")?;
        let (directory, name) = (&rest[..at], &rest[at + 2..]);
        if !directory.is_empty() && !directory.starts_with(b"/") || name.contains(&b'/') {
            return None;
        }
        let directory = Path::parse(directory);
        Some(if name.is_empty() { Stored::Log(directory) } else { Stored::Node(directory.child(name)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path::parse(text.as_bytes())
    }

    fn layout() -> Layout {
        Layout::new("/v2")
    }

    fn is_in(range: &KeyRange, key: &[u8]) -> bool {
        range.key.as_slice() <= key && key < range.range_end.as_slice()
    }

    #[test]
    fn paths_are_cleaned_as_go_does() {
        for (text, shown) in [
            ("", ""),
            ("/", ""),
            ("//a//b/", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/../../a", "/a"),
            ("/..", ""),
        ] {
            assert_eq!(path(text).shown(), shown.as_bytes(), "{text}");
        }
        assert_eq!(path("/a/b").parent(), path("/a"));
        assert_eq!(path("/a/b/c").ancestors(), [path("/a"), path("/a/b")]);
        assert!(path("/a").holds(&path("/a/b")) && !path("/a").holds(&path("/ab")) && Path::root().holds(&path("/a")));
        assert!(path("/a").hides(&path("/a/_b/c")) && !path("/a/_b").hides(&path("/a/_b/c")));
    }

    #[test]
    fn a_key_is_read_as_what_was_written() {
        for text in ["/a", "/a/b", "/a/b/c", "/ä/\u{1}/ "] {
            let node = layout().node(&path(text));
            assert_eq!(layout().read(&node), Some(Stored::Node(path(text))), "{text}");
            let log = layout().log(&path(text));
            assert_eq!(layout().read(&log), Some(Stored::Log(path(text))));
        }
        assert_eq!(layout().node(&path("/a/b")), b"/v2/a//b");
        assert_eq!(layout().node(&path("/a")), b"/v2//a");
        for stranger in ["/v2", "/v2/", "/v2/a", "/v3//a", "/v2x//a", "/v2//a/b"] {
            assert_eq!(layout().read(stranger.as_bytes()), None, "{stranger}");
        }
    }

    #[test]
    fn children_and_descendants_are_ranges() {
        let (children, below) = (layout().children(&path("/a")), layout().below(&path("/a")));
        for (text, child, descendant) in [
            ("/a", false, false),
            ("/a/b", true, true),
            ("/a/b/c", false, true),
            ("/ab", false, false),
            ("/ab/c", false, false),
        ] {
            let key = layout().node(&path(text));
            assert_eq!((is_in(&children, &key), is_in(&below, &key)), (child, descendant), "{text}");
        }
        assert!(!is_in(&children, &layout().log(&path("/a"))) && is_in(&below, &layout().log(&path("/a"))));
    }

    #[test]
    fn holes_are_left_out_of_what_is_deleted() {
        let (b, c) = (layout().node(&path("/a/b")), layout().node(&path("/a/b/c")));
        let ranges = layout().below_without(&path("/a"), &[b.clone(), c.clone()]);
        assert_eq!(ranges.len(), 3);
        for key in [&b, &c] {
            assert!(!ranges.iter().any(|range| is_in(range, key)));
        }
        for text in ["/a/a", "/a/b0", "/a/b/b", "/a/b/d", "/a/z/z"] {
            let key = layout().node(&path(text));
            assert_eq!(ranges.iter().filter(|range| is_in(range, &key)).count(), 1, "{text}");
        }
        assert_eq!(layout().below_without(&path("/a"), &[layout().node(&path("/z"))]).len(), 1);
    }

    #[test]
    fn a_watch_sees_the_node_its_log_and_what_is_below() {
        let watched = layout().watched(&path("/a/b"), true);
        for key in [layout().log(&path("/a")), layout().node(&path("/a/b")), layout().node(&path("/a/b/c/d"))] {
            assert!(is_in(&watched, &key));
        }
        assert!(!is_in(&watched, &layout().node(&path("/a"))));
        assert!(is_in(&layout().watched_with_ancestors(&path("/a/b"), true), &layout().node(&path("/a"))));
        assert!(!is_in(&layout().watched(&path("/a/b"), false), &layout().node(&path("/a/b/c"))));
    }
}
