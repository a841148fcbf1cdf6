//! The agent with real etcds, one machine or several per test.

mod binaries;
mod common;
mod enrolment;
mod etcd;
mod follow;
mod fuzz;
mod life;
mod logs_on_disk;
mod membership;
mod orders;
mod postgres;
mod read;
mod rebuild;
mod restore;
mod services;
mod slow_orders;
mod trial;
