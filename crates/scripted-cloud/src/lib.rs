//! A scripted cloud for tests and the bench: the paths of Nova, Neutron, Cinder, Glance and Keystone that quorate uses, on a port of
//! the loopback interface. It keeps records of what is created, refuses what a real cloud refuses, and counts what it is asked. Nothing
//! runs in its servers. What it does apart from that is set by the test: how servers are built, answers that come late or not at all,
//! and a call at which everything stands still.

mod calls;
mod cloud;
mod http;
mod network;
mod query;
mod server;
mod servers;
mod volumes;

pub use calls::Calls;
pub use cloud::{Answer, Cloud, FLAVOR, IMAGE, NETWORK, PROJECT, REGION};
pub use http::Request;
pub use server::{Conditions, Halt, Server};
pub use servers::Building;
