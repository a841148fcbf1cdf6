//! Framing of a read call's answers: a type, a length and that many bytes. The last frame says how the call ended, so a broken
//! connection is never mistaken for the end.

use std::time::Duration;

use hyper::body::Bytes;
use quorate_etcd::LONGEST_MESSAGE;

/// How often the agent reports that it still waits for etcd.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);
pub(crate) const HEAD: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One of etcd's messages, as etcd sent it.
    Message,
    /// `ReadEnd`, in JSON.
    End,
    /// Nothing yet.
    Heartbeat,
}

pub(crate) fn head(kind: Kind, length: usize) -> Bytes {
    let kind = match kind {
        Kind::Message => b'm',
        Kind::End => b'e',
        Kind::Heartbeat => b'h',
    };
    let length = u32::try_from(length).expect("longer messages are refused before");
    let mut head = vec![kind];
    head.extend(length.to_be_bytes());
    head.into()
}

/// `None` for an unknown type.
pub(crate) fn parse_head(head: [u8; HEAD]) -> Option<(Kind, usize)> {
    let [kind, length @ ..] = head;
    let kind = match kind {
        b'm' => Kind::Message,
        b'e' => Kind::End,
        b'h' => Kind::Heartbeat,
        _ => return None,
    };
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    (length <= LONGEST_MESSAGE).then_some((kind, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for (kind, length) in [(Kind::Message, 0), (Kind::End, 300), (Kind::Message, LONGEST_MESSAGE)] {
            let head: [u8; HEAD] = head(kind, length).as_ref().try_into().unwrap();
            assert_eq!(parse_head(head), Some((kind, length)));
        }
        assert_eq!(parse_head(*b"GET /"), None);
        assert_eq!(parse_head(*b"m\xff\xff\xff\xff"), None);
    }
}
