//! Stories of clusters on real machines that libvirt, Incus or OpenStack boots, told at the command line. `cargo xtask lab NAME` brings the
//! daemon, the image and the patience for it; elsewhere they are passed over.

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
mod reboots;
mod seed_disk;
mod writer;
