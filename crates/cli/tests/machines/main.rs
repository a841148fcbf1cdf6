//! Clusters on real machines of libvirt, Incus or OpenStack, at the command line. `cargo xtask lab NAME` provides the daemon, the image and
//! longer timeouts; elsewhere these tests are skipped.

mod aws;
mod cloud_init;
#[path = "../cli/common/mod.rs"]
mod common;
mod data_volumes;
mod foreign_disk;
mod ground;
mod incus;
mod macvtap;
mod one_network;
mod openstack;
mod postgres;
mod reboots;
mod seed_disk;
mod writer;
