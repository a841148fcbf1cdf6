//! The client against real etcd processes, on every version that the lab holds.

mod auth;
mod cluster;
mod connection;
mod data;
// The tests of other crates use it too.
#[allow(dead_code)]
mod lab;
