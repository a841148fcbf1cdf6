//! Stories of clusters on real machines that libvirt boots, told at the command line. `cargo xtask lab libvirt` brings the libvirt, the
//! image and the patience for it; elsewhere they are passed over.

#[path = "machines/cloud_init.rs"]
mod cloud_init;
mod common;
#[path = "machines/data_volumes.rs"]
mod data_volumes;
#[path = "machines/foreign_disk.rs"]
mod foreign_disk;
#[path = "machines/ground.rs"]
mod ground;
#[path = "machines/macvtap.rs"]
mod macvtap;
#[path = "machines/one_network.rs"]
mod one_network;
#[path = "machines/seed_disk.rs"]
mod seed_disk;
