//! The v2 API against real etcds: the newest one, without v2, behind this library, and an etcd with v2 to compare with.

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
