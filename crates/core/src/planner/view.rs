//! The view that one decision uses. It is derived once from the desired state and the observation; every concern and every rule gets the
//! same one.

use crate::kinds::etcd::cluster::Cluster;
use crate::model::{Desired, Observation};

#[derive(Clone, Debug)]
pub struct View<'a> {
    pub desired: &'a Desired,
    pub seen: &'a Observation,
    /// The members as etcd itself lists them. `None` if no observed voter has a quorum.
    cluster: Option<Cluster<'a>>,
}

impl<'a> View<'a> {
    pub fn new(desired: &'a Desired, seen: &'a Observation) -> Self {
        View { desired, seen, cluster: Cluster::see(desired, seen) }
    }

    pub fn cluster(&self) -> Option<&Cluster<'a>> {
        self.cluster.as_ref()
    }
}
