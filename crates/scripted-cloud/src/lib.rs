//! A scripted cloud for tests and the bench: the paths of Nova, Neutron, Cinder, Glance and Keystone that quorate uses, on a port of
//! the loopback interface. It keeps records of what is created, refuses what a real cloud refuses, and counts requests. Nothing runs in
//! its servers. A test controls the rest: how servers are built, late or missing answers, and a call at which everything stops.

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
