//! The client with real etcd processes, in every version that the lab has.

mod auth;
mod cluster;
mod connection;
mod data;
// The tests of other crates use it too.
#[allow(dead_code)]
mod lab;
