//! Generated from etcd's public API definitions; see README.md in this directory. Private to the crate, except for what `wire` lists: other
//! types print passwords and tokens in their `Debug`, so nothing outside may hold one, and nothing inside may log one.
#![allow(clippy::all, dead_code)]

pub mod authpb;
pub mod etcdserverpb;
pub mod mvccpb;
