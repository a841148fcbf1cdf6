//! What clusters run, a room for each kind. What every cluster shares is in `spec`, `model` and `planner`.

pub mod etcd;
