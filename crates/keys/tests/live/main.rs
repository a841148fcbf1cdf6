//! The v2 API on real etcd processes: the newest one, without v2, behind this library, and one with v2 for comparison.

mod attacks;
mod http;
mod import;
#[allow(dead_code)]
#[path = "../../../etcd/tests/live/lab.rs"]
mod lab;
mod page;
mod same;
mod sequence;
mod stage;
mod suite;
mod waits;
mod writers;
