//! The registry of a token, and what a registration does to it. Pure: no clock, no files, no network.
//!
//! Registrations are only ever added. Their order, by index, decides who belongs to the cluster: the first `size` do. So the current
//! registry answers every question about its past, and no history is needed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Clusters of more voters are slower and tolerate hardly more; etcd recommends at most 7.
pub const MAX_SIZE: u16 = 31;
pub const DEFAULT_SIZE: u16 = 3;
/// How many members beyond the size may register. They came at the same moment as others, and etcd itself reports to them that the cluster
/// is full.
pub const SURPLUS: usize = 8;
/// Enough for a name and a few URLs.
pub const MAX_VALUE: usize = 1024;

/// The name of a registry, and the only secret of the protocol: 128 random bits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    const DIGITS: usize = 32;

    pub fn random() -> Self {
        Token(quorate_pki::random_hex(Self::DIGITS / 2))
    }

    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == Self::DIGITS && is_hex(text)).then(|| Token(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Enough to recognize it in a log, and not enough to use it.
    pub fn short(&self) -> &str {
        &self.0[..8]
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}…)", self.short())
    }
}

/// A member's ID as etcd writes it: 64 bits in hexadecimal, without leading zeros.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(String);

impl MemberId {
    pub fn parse(text: &str) -> Option<Self> {
        ((1..=16).contains(&text.len()) && is_hex(text)).then(|| MemberId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    pub id: MemberId,
    /// `NAME=URL`, several separated by commas, as in etcd's `--initial-cluster`.
    pub value: String,
    pub index: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registry {
    pub size: u16,
    /// When it was created, as an index.
    pub index: u64,
    /// In the order of their indexes.
    pub members: Vec<Registration>,
}

/// The result of an allowed registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<'a> {
    /// It is there already, with the same value: the member asks again, because it was restarted or never got the answer.
    Known(&'a Registration),
    New,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "member {id} is registered with another value: use a new token, or start the member as it was started before"
    )]
    OtherValue { id: String },
    #[error("the name {name} is registered for other peer URLs: each member of a cluster needs a different name")]
    NameTaken { name: String },
    #[error("the peer URL {url} is registered for member {name}: each member of a cluster needs different URLs")]
    UrlTaken { url: String, name: String },
    #[error("the cluster is full: {members} members registered for {size} places")]
    Full { members: usize, size: u16 },
    #[error("{0}; expected NAME=URL, such as etcd-1=https://10.0.0.11:2380")]
    BadValue(&'static str),
}

impl Registry {
    pub fn new(size: u16, index: u64) -> Self {
        Registry { size, index, members: Vec::new() }
    }

    /// Judges a registration.
    pub fn judge(&self, id: &MemberId, value: &str) -> Result<Verdict<'_>, Refusal> {
        let peer = Peer::parse(value)?;
        if let Some(known) = self.member(id) {
            return match known.value == value {
                true => Ok(Verdict::Known(known)),
                false => Err(Refusal::OtherValue { id: id.as_str().to_owned() }),
            };
        }
        for other in self.members.iter().filter_map(|member| Peer::parse(&member.value).ok()) {
            if other.name == peer.name {
                return Err(Refusal::NameTaken { name: peer.name.to_owned() });
            }
            if let Some(url) = peer.urls.iter().find(|url| other.urls.contains(url)) {
                return Err(Refusal::UrlTaken { url: (*url).to_owned(), name: other.name.to_owned() });
            }
        }
        match self.members.len() {
            members if members >= usize::from(self.size) + SURPLUS => Err(Refusal::Full { members, size: self.size }),
            _ => Ok(Verdict::New),
        }
    }

    pub fn member(&self, id: &MemberId) -> Option<&Registration> {
        self.members.iter().find(|member| member.id == *id)
    }

    /// The first registration at or after an index, of one member or of any.
    pub fn first_from(&self, index: u64, id: Option<&MemberId>) -> Option<&Registration> {
        self.members.iter().find(|member| member.index >= index && id.is_none_or(|id| member.id == *id))
    }
}

/// What a registration says. A value that etcd could not read would keep every member of its cluster from starting.
#[derive(PartialEq, Eq, Debug)]
struct Peer<'a> {
    name: &'a str,
    urls: Vec<&'a str>,
}

impl<'a> Peer<'a> {
    fn parse(value: &'a str) -> Result<Self, Refusal> {
        let refuse = |why| Err(Refusal::BadValue(why));
        if value.len() > MAX_VALUE {
            return refuse("the value is longer than 1024 bytes");
        }
        if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("the value has spaces, control characters or letters outside of ASCII");
        }
        let mut peer = Peer { name: "", urls: Vec::new() };
        for part in value.split(',') {
            let Some((name, url)) = part.split_once('=') else { return refuse("the value has no `=`") };
            if name.is_empty() || (!peer.name.is_empty() && peer.name != name) {
                return refuse("the value does not have exactly one name");
            }
            if !is_peer_url(url) {
                return refuse("the value has a URL that is not http://HOST:PORT or https://HOST:PORT");
            }
            peer.name = name;
            peer.urls.push(url);
        }
        Ok(peer)
    }
}

fn is_peer_url(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else { return false };
    let Some((host, port)) = rest.rsplit_once(':') else { return false };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(plain),
    };
    is_host && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> MemberId {
        MemberId::parse(text).unwrap()
    }

    fn registry(values: &[(&str, &str)]) -> Registry {
        let mut registry = Registry::new(3, 10);
        for (at, (name, value)) in values.iter().enumerate() {
            assert_eq!(registry.judge(&id(name), value), Ok(Verdict::New));
            registry.members.push(Registration { id: id(name), value: (*value).to_owned(), index: 11 + at as u64 });
        }
        registry
    }

    #[test]
    fn tokens_and_ids_are_plain_hexadecimal_and_nothing_else() {
        assert!(Token::parse(Token::random().as_str()).is_some());
        assert_ne!(Token::random(), Token::random());
        let good = "9a69d64726338dabf0a279d4fa7e803e";
        assert!(Token::parse(good).is_some());
        for bad in [
            "",
            "..",
            "9a69",
            &good.to_uppercase(),
            &format!("{good}0"),
            "9a69d64726338dabf0a279d4fa7e80/.",
            &good.replace('9', "é"),
        ] {
            assert!(Token::parse(bad).is_none(), "{bad}");
        }
        assert!(!format!("{:?}", Token::parse(good)).contains(good), "a log must not have the whole token");
        assert!(MemberId::parse("39beec7eb77a8a4").is_some());
        for bad in ["", "..", "_config", "38cebe7031d3d5190", "G", "38CE"] {
            assert!(MemberId::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_same_registration_again_is_known_and_another_value_is_refused() {
        let registry = registry(&[("a1", "m1=https://10.0.0.1:2380")]);
        assert_eq!(registry.judge(&id("a1"), "m1=https://10.0.0.1:2380"), Ok(Verdict::Known(&registry.members[0])));
        let other = registry.judge(&id("a1"), "m9=https://10.0.0.1:2380");
        assert_eq!(other, Err(Refusal::OtherValue { id: String::from("a1") }));
    }

    #[test]
    fn names_and_urls_are_taken_once() {
        let registry = registry(&[("a1", "m1=https://10.0.0.1:2380,m1=https://10.1.0.1:2380")]);
        let taken = registry.judge(&id("a2"), "m1=https://10.0.0.2:2380");
        assert_eq!(taken, Err(Refusal::NameTaken { name: String::from("m1") }));
        let taken = registry.judge(&id("a2"), "m2=https://10.1.0.1:2380");
        assert!(matches!(taken, Err(Refusal::UrlTaken { .. })), "{taken:?}");
        assert_eq!(registry.judge(&id("a2"), "m2=https://10.0.0.2:2380"), Ok(Verdict::New));
    }

    #[test]
    fn a_few_more_than_the_size_may_register_and_those_who_have_may_ask_again() {
        let mut registry = registry(&[]);
        let value = |n: usize| format!("m{n}=http://10.0.0.1:{}", 1000 + n);
        for n in 0..3 + SURPLUS {
            let id = id(&format!("{n:x}"));
            assert_eq!(registry.judge(&id, &value(n)), Ok(Verdict::New));
            registry.members.push(Registration { id, value: value(n), index: 20 + n as u64 });
        }
        assert_eq!(registry.judge(&id("ff"), &value(99)), Err(Refusal::Full { members: 11, size: 3 }));
        assert!(matches!(registry.judge(&id("0"), &value(0)), Ok(Verdict::Known(_))));
    }

    #[test]
    fn only_values_that_etcd_can_read_are_accepted() {
        let judge = |value: &str| registry(&[]).judge(&id("a"), value).is_ok();
        for good in ["m=http://h:1", "m=https://[::1]:2380", "a.b-c=https://node_1.example.com:65535,a.b-c=http://h:2"]
        {
            assert!(judge(good), "{good}");
        }
        let long = format!("{}=http://h:1", "m".repeat(MAX_VALUE));
        let bad = [
            "",
            "m",
            "=http://h:1",
            "m=",
            "m=ftp://h:1",
            "m=http://h",
            "m=http://h:0",
            "m=http://h:65536",
            "m=http://h:+1",
            "m=http://h:1/path",
            "m=http://:1",
            "m=http://u@h:1",
            "m=http://h:1,n=http://h:2",
            "m=http://h:1,",
            "m=http://[::1:2",
            "m=http://h:1\n",
            "m\u{1b}[2J=http://h:1",
            "ü=http://h:1",
            &long,
        ];
        for bad in bad {
            assert!(!judge(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_wait_finds_the_first_registration_from_its_index_on() {
        let registry = registry(&[("a1", "m1=http://h:1"), ("a2", "m2=http://h:2"), ("a3", "m3=http://h:3")]);
        let found = |index, of: Option<&str>| Some(registry.first_from(index, of.map(id).as_ref())?.index);
        assert_eq!(found(0, None), Some(11));
        assert_eq!(found(12, None), Some(12));
        assert_eq!(found(12, Some("a1")), None);
        assert_eq!(found(11, Some("a3")), Some(13));
        assert_eq!(found(14, None), None);
    }
}
