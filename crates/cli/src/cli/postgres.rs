//! Arguments of commands for PostgreSQL clusters only.

use clap::{Args, Subcommand};

use crate::completion;

#[derive(Args, Debug)]
pub struct Switchover {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// The member that becomes the primary
    #[arg(long, value_name = "MEMBER", add = completion::members())]
    pub to: Option<String>,
    /// Switch over even if another member does not stream
    #[arg(long)]
    pub allow_downtime: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct Discard {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Subcommand, Debug)]
pub enum Passwords {
    /// Change the passwords of a PostgreSQL cluster without downtime
    ///
    /// Without --user all of them: those of the superuser, of replication and of pg_rewind, and of declared users. No
    /// connection ends and replication continues. New connections of a declared user need the new password, which
    /// `quorate env` shows. After an interruption, `quorate apply` continues.
    Rotate(RotatePasswords),
}

#[derive(Args, Debug)]
pub struct RotatePasswords {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Only the password of this user; can be repeated
    #[arg(long = "user", value_name = "USER")]
    pub users: Vec<String>,
    /// Only the password with which Patroni logs in to etcd
    #[arg(long, conflicts_with = "users")]
    pub dcs: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}
