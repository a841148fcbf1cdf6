//! What only one kind of cluster has: its scenarios, its workload, the history that its clients record, and the checker of it.

pub mod etcd;
pub mod postgres;
