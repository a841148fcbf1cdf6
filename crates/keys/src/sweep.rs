//! Removes data that no client can see any more. Only the size of the database depends on it.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_etcd::{Client, Condition, Error, KeyRange, Op, RangeQuery, Txn};

use crate::path::{Layout, Path, Stored};
use crate::store::is_ours;

/// A lease without a key is left alone for this long: its write may be under way.
const UNDER_WAY: Duration = Duration::from_secs(120);
/// How many keys are read at a time.
const AT_ONCE: i64 = 5000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Expired directories below which something was left.
    pub directories: usize,
    pub leases: usize,
}

pub async fn sweep(client: &Client, layout: &Layout) -> Result<Swept, Error> {
    let directories = sweep_nodes(client, layout).await?;
    Ok(Swept { directories, leases: sweep_leases(client).await? })
}

pub async fn sweep_nodes(client: &Client, layout: &Layout) -> Result<usize, Error> {
    let mut swept = 0;
    for directory in missing(layout, &keys(client, layout).await?) {
        let conditions = vec![Condition::absent(layout.node(&directory))];
        let then = vec![Op::Delete(layout.below(&directory))];
        swept += usize::from(client.txn(Txn { conditions, then, otherwise: Vec::new() }).await?.succeeded);
    }
    Ok(swept)
}

/// All keys, in answers that are never long. What changes meanwhile may be missed, and nothing is removed before it was looked at again.
async fn keys(client: &Client, layout: &Layout) -> Result<Vec<Vec<u8>>, Error> {
    let all = layout.below(&Path::root());
    let (mut keys, mut from) = (Vec::<Vec<u8>>::new(), all.key);
    loop {
        let range = KeyRange { key: from, range_end: all.range_end.clone() };
        let query = RangeQuery { keys_only: true, limit: AT_ONCE, ..RangeQuery::new(range) };
        let part = client.range(query).await?;
        keys.extend(part.pairs.into_iter().map(|pair| pair.key));
        match keys.last().filter(|_| part.more) {
            Some(last) => from = [last, &[0][..]].concat(),
            None => return Ok(keys),
        }
    }
}

/// The directories that do not exist, though something is stored below them; of nested ones the outermost.
fn missing(layout: &Layout, keys: &[Vec<u8>]) -> BTreeSet<Path> {
    let stored: Vec<Stored> = keys.iter().filter_map(|key| layout.read(key)).collect();
    let nodes: BTreeSet<&Path> =
        stored.iter().filter_map(|stored| if let Stored::Node(path) = stored { Some(path) } else { None }).collect();
    let outermost = |stored: &Stored| {
        let directory = match stored {
            Stored::Node(path) => path.parent(),
            Stored::Log(directory) => directory.clone(),
        };
        (1..=directory.depth()).map(|depth| directory.first(depth)).find(|ancestor| !nodes.contains(ancestor))
    };
    stored.iter().filter_map(outermost).collect()
}

async fn sweep_leases(client: &Client) -> Result<usize, Error> {
    let mut swept = 0;
    for lease in client.leases().await?.into_iter().filter(|lease| is_ours(*lease)) {
        let Some(state) = client.lease_state(lease).await? else { continue };
        if state.keys == 0 && state.granted.saturating_sub(state.remaining) > UNDER_WAY {
            match client.lease_revoke(lease).await {
                Ok(()) => swept += 1,
                // Another process was faster.
                Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directories_are_found() {
        let layout = Layout::new("/v2");
        let path = |text: &str| Path::parse(text.as_bytes());
        let nodes = ["/a", "/a/b", "/x/y", "/x/y/z", "/a/c/d"].map(|text| layout.node(&path(text)));
        let mut keys = nodes.to_vec();
        keys.extend([
            layout.log(&path("/")),
            layout.log(&path("/a")),
            layout.log(&path("/gone")),
            b"/v2/stranger".to_vec(),
        ]);
        assert_eq!(missing(&layout, &keys), BTreeSet::from([path("/x"), path("/a/c"), path("/gone")]));
    }
}
