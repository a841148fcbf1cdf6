//! `quorate up`.

use clap::{Args, ValueEnum};
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::model::Version;

use crate::completion;

#[derive(Args, Debug)]
pub struct Up {
    /// Name of the cluster
    #[arg(default_value = "demo", add = completion::clusters())]
    pub name: String,
    /// Number of members; 3 unless the cluster already exists
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    pub members: Option<u16>,
    /// What the cluster runs; etcd unless the cluster already exists. A PostgreSQL cluster comes with an etcd cluster NAME-etcd
    #[arg(long, value_enum, value_name = "KIND")]
    pub kind: Option<Runs>,
    /// Do not ask for confirmation of more than 9 members
    #[arg(long, short)]
    pub yes: bool,
    /// The etcd version; by default that on PATH, else 3.6.14
    #[arg(long, value_name = "VERSION")]
    pub etcd_version: Option<Version>,
    /// How clients of etcd authenticate; certificate, or password for PostgreSQL, unless the cluster already exists
    #[arg(long, value_enum, value_name = "HOW")]
    pub client_auth: Option<Login>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Runs {
    Etcd,
    Postgres,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Login {
    /// With a client certificate; its common name is the user
    Certificate,
    /// With user and password
    Password,
    /// With both: a client certificate that names no user, and user and password
    #[value(name = "certificate_and_password")]
    CertificateAndPassword,
}

impl From<Login> for ClientAuth {
    fn from(login: Login) -> Self {
        match login {
            Login::Certificate => ClientAuth::Certificate,
            Login::Password => ClientAuth::Password,
            Login::CertificateAndPassword => ClientAuth::CertificateAndPassword,
        }
    }
}
