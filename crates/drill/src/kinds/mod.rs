//! What only one kind of cluster has: its scenarios, its workload, the history that its clients record, and its checker.

pub mod etcd;
pub mod postgres;
