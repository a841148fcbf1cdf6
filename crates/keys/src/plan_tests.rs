use super::*;
use crate::request::Ttl;

fn layout() -> Layout {
    Layout::new("/v2")
}

fn write(kind: Kind, path: &str) -> Write {
    let path = Path::parse(path.as_bytes());
    Write { path, kind, value: b"new".to_vec(), dir: false, ttl: None, refresh: false, no_value: false }
}

fn node(dir: bool, revision: i64) -> Option<Node> {
    let head = Head { dir, ..Head::default() };
    let value = if dir { Vec::new() } else { b"old".to_vec() };
    Some(Node { head, value, create_revision: revision, mod_revision: revision, lease: 0 })
}

fn state(way: Vec<Option<Node>>, node: Option<Node>) -> State {
    State { way, node, has_children: false, logged: 0, revision: 20 }
}

fn refused(write: &Write, state: &State) -> (u16, String, u64) {
    let refusal = plan(&layout(), write, state).unwrap_err();
    (refusal.code as u16, String::from_utf8(refusal.cause).unwrap(), refusal.index)
}

fn put_keys(plan: &Plan) -> Vec<String> {
    plan.puts.iter().map(|put| String::from_utf8(put.key.clone()).unwrap()).collect()
}

/// etcd refuses a transaction that puts and deletes one key, or has more operations than this.
fn is_acceptable(plan: &Plan) {
    assert!(plan.ops(0).len() <= 128 && plan.conditions.len() <= 128);
    for put in &plan.puts {
        let deletes = |range: &&KeyRange| match range.range_end.as_slice() {
            b"" => range.key == put.key,
            end => range.key <= put.key && put.key.as_slice() < end,
        };
        assert!(!plan.deletes.iter().any(|range| deletes(&range)), "{:?}", put.key);
    }
}

#[test]
fn missing_directories_are_created_on_the_way() {
    let plan = plan(&layout(), &write(Kind::Set, "/a/b/c"), &state(vec![None, None], None)).unwrap();
    assert_eq!(put_keys(&plan), ["/v2//a", "/v2/a//b", "/v2/a/b//c"]);
    assert_eq!(plan.conditions.len(), 1, "the first missing one is still missing");
    is_acceptable(&plan);
    let happening = plan.happening(21);
    assert!(happening.is_created() && happening.previous.is_none());
    assert_eq!((happening.node.created, happening.node.modified), (21, 21));
}

#[test]
fn leftovers_of_an_expired_directory_are_neither_visible_nor_kept() {
    let orphans = state(vec![None, node(true, 5)], node(false, 6));
    let set = plan(&layout(), &write(Kind::Set, "/a/b/c"), &orphans).unwrap();
    assert!(set.happening(21).previous.is_none());
    is_acceptable(&set);
    assert!(plan(&layout(), &write(Kind::Create, "/a/b/c"), &orphans).is_ok());
    assert_eq!(refused(&write(Kind::Update, "/a/b/c"), &orphans), (100, "/a".into(), 20));
}

#[test]
fn a_set_replaces_a_file_and_begins_its_life_again() {
    let plan = plan(&layout(), &write(Kind::Set, "/a"), &state(vec![], node(false, 9))).unwrap();
    let happening = plan.happening(21);
    assert_eq!((happening.node.created, happening.node.modified), (21, 21));
    assert_eq!(happening.previous.unwrap().value.unwrap(), b"old");
    assert_eq!(refused(&write(Kind::Set, "/a"), &state(vec![], node(true, 9))), (102, "/a".into(), 20));
}

#[test]
fn an_update_keeps_when_it_was_created() {
    let before = state(vec![], node(false, 9));
    for kind in [Kind::Update, Kind::CompareAndSwap(Expected { value: b"old".to_vec(), index: 9 })] {
        let happening = plan(&layout(), &write(kind, "/a"), &before).unwrap().happening(21);
        assert_eq!((happening.node.created, happening.node.modified), (9, 21));
    }
    let directory = Write { value: Vec::new(), ..write(Kind::Update, "/a") };
    let plan = plan(&layout(), &directory, &state(vec![], node(true, 9))).unwrap();
    assert_eq!((plan.happening(21).node.modified, plan.head.unwrap().modified), (21, Some(9)));
}

#[test]
fn refusals_name_what_is_in_the_way() {
    let files = state(vec![node(false, 3)], None);
    for kind in [Kind::Set, Kind::Create, Kind::Update, Kind::Delete { recursive: true }] {
        assert_eq!(refused(&write(kind, "/f/x"), &files), (104, "/f".into(), 20));
    }
    let root = state(vec![], None);
    for kind in [Kind::Set, Kind::Create, Kind::Update, Kind::Delete { recursive: true }] {
        assert_eq!(refused(&write(kind, "/"), &root), (107, "/".into(), 20));
    }
    assert_eq!(refused(&write(Kind::CompareAndDelete(Expected::default()), "/"), &root), (102, "".into(), 20));
    assert_eq!(refused(&write(Kind::Create, "/a"), &state(vec![], node(true, 3))), (105, "/a".into(), 20));
    let refresh = Write { refresh: true, ..write(Kind::Set, "/a") };
    assert_eq!(refused(&refresh, &root), (100, "/a".into(), 20));
    let into_directory = write(Kind::CompareAndSwap(Expected { value: b"x".to_vec(), index: 0 }), "/a");
    assert_eq!(refused(&into_directory, &state(vec![], node(true, 3))), (102, "/a".into(), 20));
}

#[test]
fn a_failed_comparison_says_what_differs() {
    let before = state(vec![], node(false, 9));
    for (value, index, cause) in [
        ("x", 0, "[x != old]"),
        ("", 8, "[8 != 9]"),
        ("old", 8, "[8 != 9]"),
        ("x", 9, "[x != old]"),
        ("x", 8, "[x != old] [8 != 9]"),
    ] {
        let expected = Expected { value: value.into(), index };
        for kind in [Kind::CompareAndSwap(expected.clone()), Kind::CompareAndDelete(expected)] {
            assert_eq!(refused(&write(kind, "/a"), &before), (101, cause.into(), 20));
        }
    }
}

#[test]
fn a_directory_is_deleted_when_asked_for_and_empty_or_recursively() {
    let directory = |has_children| State { has_children, ..state(vec![], node(true, 9)) };
    let empty = Write { dir: true, ..write(Kind::Delete { recursive: false }, "/d") };
    assert_eq!(refused(&write(Kind::Delete { recursive: false }, "/d"), &directory(false)), (102, "/d".into(), 20));
    assert_eq!(refused(&empty, &directory(true)), (108, "/d".into(), 20));
    let plan_empty = plan(&layout(), &empty, &directory(false)).unwrap();
    assert!(plan_empty.conditions.iter().any(|condition| !condition.range_end.is_empty()), "it is still empty");
    let recursive = plan(&layout(), &write(Kind::Delete { recursive: true }, "/d"), &directory(true)).unwrap();
    assert!(recursive.conditions.iter().all(|condition| condition.range_end.is_empty()));
    is_acceptable(&recursive);
    let happening = recursive.happening(21);
    assert_eq!((happening.node.dir, happening.node.modified, happening.node.created), (true, 21, 9));
    assert_eq!(happening.node.value, None);
}

#[test]
fn names_in_order_follow_the_revision_and_the_log() {
    let exists = plan(&layout(), &write(Kind::Post, "/q"), &State { logged: 17, ..state(vec![node(true, 9)], None) });
    let exists = exists.unwrap();
    assert_eq!(put_keys(&exists), ["/v2/q//00000000000000000021", "/v2/q//"]);
    assert_eq!(exists.conditions.len(), 3, "same directory, free name, same log");
    let missing = plan(&layout(), &write(Kind::Post, "/p/q"), &state(vec![None, None], None)).unwrap();
    assert_eq!(put_keys(&missing).len(), 4);
    for plan in [&exists, &missing, &plan(&layout(), &write(Kind::Post, "/"), &state(vec![], None)).unwrap()] {
        is_acceptable(plan);
    }
}

#[test]
fn the_deepest_key_fits_into_one_transaction() {
    let deepest = "/a".repeat(crate::path::MAX_DEPTH);
    let way = vec![None; crate::path::MAX_DEPTH - 1];
    is_acceptable(&plan(&layout(), &write(Kind::Set, &deepest), &state(way.clone(), None)).unwrap());
    let directory = "/a".repeat(crate::path::MAX_DEPTH - 1);
    is_acceptable(&plan(&layout(), &write(Kind::Post, &directory), &state(way, None)).unwrap());
}

#[test]
fn only_the_node_itself_expires() {
    let expires: jiff::Timestamp = "2026-01-01T00:00:05Z".parse().unwrap();
    let timed = Write { ttl: Some(Ttl { seconds: 5, expires }), ..write(Kind::Set, "/a/b") };
    let plan = plan(&layout(), &timed, &state(vec![None], None)).unwrap();
    let leases: Vec<i64> =
        plan.ops(7).iter().filter_map(|op| if let Op::Put { lease, .. } = op { Some(*lease) } else { None }).collect();
    assert_eq!(leases, [0, 7]);
    assert_eq!(plan.happening(21).node.expires, Some(expires));
}
