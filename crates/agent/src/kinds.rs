//! What only one kind of cluster has on its machines: one module per kind.

pub mod etcd;
