//! The rules as their users see them: specs, flags, the planner, the ledger. Stories and the model are separate binaries.

mod declarations;
mod flags_match_etcd;
mod fuzz;
mod ledger;
mod pages;
mod planner;
mod remarks;
mod rooms;
#[path = "../common/scene.rs"]
mod scene;
mod shape;
mod spec_cases;
mod spec_files;
#[path = "../common/story.rs"]
mod story;
mod wire;
