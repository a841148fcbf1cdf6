//! Backups of real etcds, in directories and in a real S3 store.

mod attacks;
mod backup;
mod choose;
mod common;
mod damage;
mod fuzz;
mod point_in_time;
mod s3;
