//! The protocol of `--discovery-token`, used by members of etcd 3.6 and later: a few calls of version 3 of etcd's API, on the keys of one
//! token. Pure: interprets keys and renders answers.
//!
//! The token of a request may also be the whole discovery URL, as in version 2. etcd derives the IDs of a cluster from it, so members of
//! both protocols form one cluster only if they are given the same text.

use quorate_etcd::prefix_end;
use quorate_etcd::wire::{Event, EventType, KeyValue, RangeResponse, ResponseHeader, WatchResponse};

use crate::registry::{MemberId, Registration, Registry, Token};
use crate::v2::PREFIX;

/// What a key or a range of keys stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub token: Token,
    /// The keys of this token begin so. Members expect their own words back.
    base: String,
    pub what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    Size,
    Members,
    Member(MemberId),
}

impl Place {
    /// None for what is not part of discovery.
    pub fn parse(key: &[u8], range_end: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(key).ok()?;
        let below = text.strip_prefix(PREFIX)?.strip_prefix('/')?;
        let (rest, what) = match below.strip_suffix("/_config/size") {
            Some(rest) if range_end.is_empty() => (rest, What::Size),
            Some(_) => return None,
            None => match below.strip_suffix("/members").or_else(|| below.strip_suffix("/members/")) {
                Some(rest) if range_end == prefix_end(key) => (rest, What::Members),
                Some(_) => return None,
                None if range_end.is_empty() => {
                    let (rest, id) = below.rsplit_once('/')?;
                    (rest.strip_suffix("/members")?, What::Member(MemberId::parse(id)?))
                }
                None => return None,
            },
        };
        let token = Token::parse(rest.rsplit('/').next()?)?;
        Some(Place { token, base: format!("{PREFIX}/{rest}"), what })
    }

    pub fn range(&self, registry: &Registry, index: u64) -> RangeResponse {
        let mut kvs: Vec<KeyValue> = match &self.what {
            What::Size => {
                vec![pair(format!("{}/_config/size", self.base), &registry.size.to_string(), registry.index)]
            }
            What::Members => registry.members.iter().map(|member| self.member(member)).collect(),
            What::Member(id) => registry.member(id).map(|member| self.member(member)).into_iter().collect(),
        };
        kvs.sort_by(|a, b| a.key.cmp(&b.key));
        RangeResponse { header: Some(header(index)), count: kvs.len() as i64, kvs, more: false }
    }

    pub fn member(&self, member: &Registration) -> KeyValue {
        pair(format!("{}/members/{}", self.base, member.id.as_str()), &member.value, member.index)
    }

    pub fn event(&self, member: &Registration, index: u64) -> WatchResponse {
        let event = Event { r#type: EventType::Put.into(), kv: Some(self.member(member)), prev_kv: None };
        WatchResponse { header: Some(header(index)), events: vec![event], ..Default::default() }
    }
}

/// A registration is never changed, so it was created when it was written last.
fn pair(key: String, value: &str, index: u64) -> KeyValue {
    let revision = index.cast_signed();
    KeyValue {
        key: key.into_bytes(),
        value: value.as_bytes().to_vec(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: 0,
    }
}

pub fn header(index: u64) -> ResponseHeader {
    ResponseHeader { revision: index.cast_signed(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "9a69d64726338dabf0a279d4fa7e803e";

    fn place(key: &str, range_end: &str) -> Option<Place> {
        Place::parse(key.replace("TOKEN", TOKEN).as_bytes(), range_end.replace("TOKEN", TOKEN).as_bytes())
    }

    fn what(key: &str, range_end: &str) -> Option<What> {
        place(key, range_end).map(|place| place.what)
    }

    #[test]
    fn the_keys_of_discovery_and_no_others() {
        let id = MemberId::parse("a1").unwrap();
        assert_eq!(what("/_etcd/registry/TOKEN/_config/size", ""), Some(What::Size));
        assert_eq!(what("/_etcd/registry/TOKEN/members", "/_etcd/registry/TOKEN/membert"), Some(What::Members));
        assert_eq!(what("/_etcd/registry/TOKEN/members/", "/_etcd/registry/TOKEN/members0"), Some(What::Members));
        assert_eq!(what("/_etcd/registry/TOKEN/members/a1", ""), Some(What::Member(id)));
        let others = [
            ("/_etcd/registry/", "/_etcd/registry0"),
            ("/_etcd/registry/TOKEN/members", ""),
            ("/_etcd/registry/TOKEN/members", "\0"),
            ("/_etcd/registry/TOKEN/members", "/_etcd/registryz"),
            ("/_etcd/registry/TOKEN/members/a1", "\0"),
            ("/_etcd/registry/TOKEN/members/../../x", ""),
            ("/_etcd/registry/TOKEN/_config/size", "z"),
            ("/_etcd/registry/TOKEN/a1", ""),
            ("/_etcd/registry/members/a1", ""),
            ("/_etcd/registry/short/members/a1", ""),
            ("/etc/TOKEN/members/a1", ""),
            ("\0", "\0"),
            ("", ""),
        ];
        for (key, range_end) in others {
            assert_eq!(what(key, range_end), None, "{key:?} {range_end:?}");
        }
    }

    #[test]
    fn a_discovery_url_is_a_token_too_and_answers_have_the_words_of_the_request() {
        // etcd joins the parts of the key as a path, so one slash of the URL is lost.
        let place = place("/_etcd/registry/https:/h:8087/TOKEN/_config/size", "").unwrap();
        assert_eq!(place.token.as_str(), TOKEN);
        let answer = place.range(&Registry::new(3, 7), 9);
        assert_eq!(answer.kvs[0].key, format!("/_etcd/registry/https:/h:8087/{TOKEN}/_config/size").as_bytes());
        assert_eq!((answer.kvs[0].value.as_slice(), answer.kvs[0].create_revision), (&b"3"[..], 7));
        assert_eq!(answer.header.unwrap().revision, 9);
    }

    #[test]
    fn members_come_in_the_order_of_their_keys_with_the_index_that_decides() {
        let mut registry = Registry::new(3, 7);
        for (id, index) in [("f", 8), ("a", 9)] {
            let id = MemberId::parse(id).unwrap();
            registry.members.push(Registration { id, value: String::from("m=http://h:1"), index });
        }
        let place = place("/_etcd/registry/TOKEN/members", "/_etcd/registry/TOKEN/membert").unwrap();
        let answer = place.range(&registry, 9);
        assert_eq!(answer.kvs.iter().map(|kv| kv.create_revision).collect::<Vec<_>>(), [9, 8]);
        assert_eq!(place.event(&registry.members[0], 9).events[0].kv.as_ref().unwrap().mod_revision, 8);
    }

    #[test]
    fn fuzz_keys() {
        let samples = ["/_etcd/registry/TOKEN/_config/size", "/_etcd/registry/http:/h/TOKEN/members/a1"];
        let samples = samples.map(|sample| sample.replace("TOKEN", TOKEN).into_bytes());
        quorate_fuzz::campaign(&samples, |key| {
            for range_end in [Vec::new(), prefix_end(key)] {
                if let Some(place) = Place::parse(key, &range_end) {
                    assert!(place.base.starts_with("/_etcd/registry/") && place.base.ends_with(place.token.as_str()));
                }
            }
        });
    }
}
