use quorate_etcd::KeyValue;

use super::*;
use crate::node::Head;

fn layout() -> Layout {
    Layout::new("/v2")
}

fn path(text: &str) -> Path {
    Path::parse(text.as_bytes())
}

fn waits(text: &str, recursive: bool) -> Wait {
    Wait { path: path(text), recursive, stream: false, since: 0 }
}

fn pair(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
    KeyValue { key, value, create_revision: 1, mod_revision: revision, version: 1, lease: 0 }
}

fn put(text: &str, action: Option<Action>) -> Change {
    let head = Head { action, dir: action.is_none(), ..Head::default() };
    let key = layout().node(&path(text));
    let previous = Some(pair(key.clone(), Head::default().encode(b"old"), 4));
    Change { event: Event::Put(pair(key, head.encode(b"new"), 9)), previous }
}

fn deleted(text: &str) -> Change {
    let key = layout().node(&path(text));
    let previous = Some(pair(key.clone(), Head::default().encode(b"old"), 4));
    Change { event: Event::Delete { key, revision: 9 }, previous }
}

fn logged(text: &str) -> Change {
    let path = path(text);
    let log = Log::encode(Action::Delete, path.name());
    Change { event: Event::Put(pair(layout().log(&path.parent()), log, 9)), previous: None }
}

/// The paths of what is read, with a question mark where more must be found out.
fn signs(wait: &Wait, changes: &[Change]) -> Vec<String> {
    let shown = |path: &Path| String::from_utf8(path.shown()).unwrap();
    let sign = |sign: Sign| match sign {
        Sign::Happened { path, happening } => format!("{} {}", happening.action.name(), shown(&path)),
        Sign::Vanished { path, .. } => format!("? {}", shown(&path)),
    };
    read(&layout(), wait, changes).into_iter().map(sign).collect()
}

#[test]
fn a_put_is_reported_by_its_head_and_parent_directories_are_not() {
    let changes = [put("/a", None), put("/a/b", Some(Action::Create))];
    assert_eq!(signs(&waits("/", true), &changes), ["create /a/b"]);
    assert_eq!(signs(&waits("/a", true), &changes), ["create /a/b"]);
    assert_eq!(signs(&waits("/a/b", false), &changes), ["create /a/b"]);
    assert!(signs(&waits("/a", false), &changes).is_empty());
    assert!(signs(&waits("/a/c", true), &changes).is_empty());
}

#[test]
fn a_put_shows_what_was_there_unless_it_is_new() {
    let Sign::Happened { happening, .. } =
        read(&layout(), &waits("/a", false), &[put("/a", Some(Action::Set))]).remove(0)
    else {
        panic!()
    };
    assert_eq!(happening.previous.unwrap().value.unwrap(), b"old");
    let mut new = put("/a", Some(Action::Set));
    let head = Head { action: Some(Action::Set), new: true, ..Head::default() };
    new.event = Event::Put(pair(layout().node(&path("/a")), head.encode(b""), 9));
    let Sign::Happened { happening, .. } = read(&layout(), &waits("/a", false), &[new]).remove(0) else { panic!() };
    assert_eq!(happening.previous, None);
}

#[test]
fn a_refresh_and_a_log_of_names_in_order_tell_nothing() {
    let head = Head { action: Some(Action::Set), refresh: true, ..Head::default() };
    let refresh = Change { event: Event::Put(pair(b"/v2//a".to_vec(), head.encode(b""), 9)), previous: None };
    assert!(signs(&waits("/", true), &[refresh]).is_empty());
    let log = Log::encode(Action::Create, b"00000000000000000009");
    let log = Change { event: Event::Put(pair(b"/v2/q//".to_vec(), log, 9)), previous: None };
    assert!(signs(&waits("/", true), &[log]).is_empty());
}

#[test]
fn one_removal_is_reported_whatever_it_includes() {
    let changes = [deleted("/a/d"), deleted("/a/d/x"), deleted("/a/d/y"), logged("/a/d")];
    assert_eq!(signs(&waits("/a", true), &changes), ["delete /a/d"]);
    assert_eq!(signs(&waits("/a/d/x", false), &changes), ["delete /a/d"], "it was there");
    assert!(signs(&waits("/a/d/z", false), &changes).is_empty());
    assert!(signs(&waits("/a", false), &changes).is_empty());
}

#[test]
fn deletions_without_a_log_must_be_explained() {
    assert_eq!(signs(&waits("/a", true), &[deleted("/a/b")]), ["? /a/b"]);
    assert_eq!(signs(&waits("/a/b/c", false), &[deleted("/a")]), ["? /a"]);
    let orphan = [put("/a", Some(Action::Create)), deleted("/a/b")];
    assert_eq!(signs(&waits("/", true), &orphan), ["create /a"], "left from an expired directory");
}

#[test]
fn stored_nodes_and_logs_explain_how_a_node_vanished() {
    let node = |lease| Some(Node { lease, ..Node::read(pair(Vec::new(), Head::default().encode(b"v"), 4)) });
    let lineage = |before: &[Option<Node>], after: &[Option<Node>]| Lineage {
        before: before.to_vec(),
        after: after.to_vec(),
        logs: vec![None; before.len()],
    };
    let told = |lineage: &Lineage| {
        let (path, happening) = explain(&path("/a/b"), lineage, 9)?;
        Some((String::from_utf8(path.shown()).unwrap(), happening.action))
    };
    let expired = lineage(&[node(0), node(7)], &[node(0), None]);
    assert_eq!(told(&expired), Some(("/a/b".into(), Action::Expire)));
    let by_hand = lineage(&[node(0), node(0)], &[node(0), None]);
    assert_eq!(told(&by_hand), Some(("/a/b".into(), Action::Delete)));
    let orphan = lineage(&[None, node(7)], &[None, None]);
    assert_eq!(told(&orphan), None);
    let log = |revision| Some((revision, Log::decode(&Log::encode(Action::Delete, b"a")).unwrap()));
    let above = Lineage { logs: vec![log(9), None], ..lineage(&[node(7), node(7)], &[None, None]) };
    assert_eq!(told(&above), Some(("/a".into(), Action::Delete)));
    let earlier = Lineage { logs: vec![log(8), None], ..lineage(&[node(7), node(7)], &[None, None]) };
    assert_eq!(told(&earlier), Some(("/a".into(), Action::Expire)));
}
