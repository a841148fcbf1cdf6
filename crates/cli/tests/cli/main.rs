//! The real program on real clusters, as an operator or a script runs it: one binary, which links once. What boots machines is in
//! `machines`.

mod auth;
mod backup_crashes;
mod backups;
mod binaries;
mod certificates;
mod changes;
mod clusters;
mod common;
mod crashes;
mod drill;
mod history;
mod intruders;
mod life;
mod machine_refusals;
mod netns;
mod numbers;
mod offline;
mod plans;
mod point_in_time;
mod refusals;
mod renewal;
mod restore_clients;
mod verbs;
