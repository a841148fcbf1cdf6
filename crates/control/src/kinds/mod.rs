//! What only one kind of cluster has, one module per kind; and proxies, which any kind can have.

pub mod etcd;
pub mod postgres;
pub mod proxies;
