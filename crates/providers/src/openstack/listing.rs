//! One list of servers for many clusters. When several clusters are only observed, the first one is listed by its tag, and the others by
//! one list of the whole project. A cluster that is being changed never uses it and makes its own requests.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::catalogue::Service::Compute;
use super::compute::VERSION;
use super::error::OpenstackError;
use super::server::Server;
use super::{Openstack, server};
use crate::marks::Mark;

/// How old a list may be. A command that takes longer makes another.
const FRESH: Duration = Duration::from_secs(30);

/// The list for observed clusters.
pub(super) struct Listing {
    begun: Instant,
    /// How often this program had changed anything by then.
    changes: u64,
    /// The clusters that have used it: a second observation needs a new list.
    used_by: BTreeSet<String>,
    /// None: the only one so far was listed by its tag.
    servers: Option<Found>,
    /// Those that were deleted and that the cloud still keeps, if a cluster lacked a machine.
    deleted: Option<Found>,
}

type Found = Rc<Vec<(Server, Mark)>>;

impl Openstack {
    /// Servers with a mark of this cluster's name, from a list that other clusters may share.
    pub(super) async fn marked_in_common(&self) -> Result<Vec<(Server, Mark)>, OpenstackError> {
        let session = self.session()?;
        // Held during the call: others wait for the same answer.
        let mut last = session.listing.lock().await;
        let (name, changes) = (self.spec.name.to_string(), session.changes.get());
        let of_now = last.take().filter(|listing| {
            listing.begun.elapsed() < FRESH && listing.changes == changes && !listing.used_by.contains(&name)
        });
        let Some(mut listing) = of_now else {
            let (begun, used_by) = (Instant::now(), BTreeSet::from([name]));
            let found = self.marked().await?;
            *last = Some(Listing { begun, changes, used_by, servers: None, deleted: None });
            return Ok(found);
        };
        let servers = match listing.servers.take() {
            Some(servers) => servers,
            None => {
                listing.begun = Instant::now();
                let all = session.list("list servers", Compute, "/servers/detail", "servers", Some(VERSION)).await?;
                Rc::new(all.iter().filter_map(server::marked).collect::<Vec<_>>())
            }
        };
        let mut found = self.of_this_name(servers.iter().cloned());
        if self.lacks_a_machine(&found) {
            let deleted = match listing.deleted.take() {
                Some(deleted) => deleted,
                None => Rc::new(session.soft_deleted("/servers/detail?").await?),
            };
            found.extend(self.of_this_name(deleted.iter().cloned()));
            listing.deleted = Some(deleted);
        }
        listing.used_by.insert(name);
        *last = Some(Listing { servers: Some(servers), ..listing });
        Ok(found)
    }
}
