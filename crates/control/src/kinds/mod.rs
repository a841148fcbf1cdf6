//! What only one kind of cluster has: one module per kind.

pub mod etcd;
pub mod postgres;
