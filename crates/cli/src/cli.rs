//! The command line as types. What `quorate help` prints is written here, and nowhere else.

mod backup;
mod ledger;
mod machine;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use quorate_core::spec::ClientAuth;
use quorate_core::versions::Version;

pub use backup::*;
pub use ledger::*;
pub use machine::*;

const EXIT_CODES: &str = "\
Exit codes:
  0  done; `status`: healthy, or off as wished
  1  error
  2  wrong usage
  3  something is refused as unsafe; what, by which rule, and the way out are told;
     `apply --plan`: something else would be done than was planned
  4  `plan --detailed-exitcode`: there is something to do
  5  `status`: degraded
  6  `status`: down, or not formed yet
  7  another controller holds the lock, or took over
  8  `drill`: a scenario failed, or had too little traffic to tell
  9  `backup create`, `backup verify`: a backup is damaged, or does not restore to what it should
  130, 143  stopped by Ctrl-C or SIGTERM; nothing is half done

Data goes to stdout, talk to stderr. State is kept in $QUORATE_HOME, by default quorate in the XDG data directory.
Its secrets are encrypted to the key in $QUORATE_KEY, by default $QUORATE_HOME/key, or to the one that the command in
$QUORATE_KEY_COMMAND prints.";

/// Brings up highly available etcd clusters and keeps them well.
///
/// Every verb looks at what is there, decides the next safe steps, does them and looks again. So each can be
/// interrupted at any time and given again.
#[derive(Parser, Debug)]
#[command(name = "quorate", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Args, Debug)]
pub struct Global {
    /// Keep state in DIR instead of $QUORATE_HOME
    #[arg(long, global = true, value_name = "DIR", display_order = 900)]
    pub home: Option<PathBuf>,
    /// Tell more about what is going on, on stderr
    #[arg(short, long, global = true, display_order = 901)]
    pub verbose: bool,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Make a cluster on this machine, with no file at all
    ///
    /// Its members are real etcd processes with addresses of their own in 127.0.0.0/8, TLS and authentication on. A
    /// cluster that exists already is brought up again with the settings it has.
    Up(Up),
    /// Print a commented spec to start from
    Init(Init),
    /// Check a spec, and tell every problem with its line and column
    ///
    /// The files that it names, such as a CA or a password, are read and checked too. Exits with 1 when something is an
    /// error; warnings alone are no reason to fail.
    Validate(Validate),
    /// Show what would be done, step by step, each with its reason
    ///
    /// Nothing is touched. The steps come from the same function that `apply` follows, run against an imagined world until
    /// it settles; below them stands what is waited for, and what is refused, by which rule and with which way out.
    ///
    /// A plan that is saved can be reviewed, and is later done with `quorate apply --plan`.
    Plan(Plan),
    /// Show what is to be done, ask, and do it
    ///
    /// Safe to kill at any time and to run again: it looks at what is there and goes on. Of several clusters all are tried,
    /// and the worst end decides the exit code.
    ///
    /// With a saved plan nothing is asked, and it begins only if the steps are still those of the plan. Once begun, it looks
    /// before each step as always: what becomes necessary meanwhile, as when a member dies, is done too.
    Apply(Apply),
    /// Give a member another machine, without anyone noticing
    ///
    /// A member whose data outlives its machine (a data volume, or `keep_data`) keeps it and its seat, and only restarts. Else the new
    /// machine joins, catches up and votes before the old one leaves, where addresses allow. Given again after an interruption, it
    /// goes on with the replacement that is under way.
    Replace(Replace),
    /// Make a cluster again of what is left, when its majority is lost for good
    ///
    /// Shows who is seen, who holds data and how far, and what may be lost; asks for the cluster's name. Then the survivor
    /// whose log goes furthest is rebuilt as a cluster of one, and the others come back as new members. Refused while the
    /// cluster has its quorum, and when nothing survives.
    Recover(Recover),
    /// Show every step that was ever done: when, by whom, why, and how it ended
    History(History),
    /// Show how clusters are
    ///
    /// With a name, or when only one cluster is known: its members with role, health, version, size, raft index and lag, days
    /// left of the certificate, and generation; alarms; one line of verdict. Else a line for each cluster.
    Status(Status),
    /// Print what etcdctl must be told, as lines for eval
    ///
    /// eval "$(quorate env NAME)" lets etcdctl be root on that cluster. Root's certificate is good for a day and is made anew
    /// when it is asked for again.
    Env(Env),
    /// Client certificates
    #[command(subcommand)]
    Cert(Cert),
    /// Show the log of a member's etcd, or of its agent
    Logs(Logs),
    /// Rehearse faults on a running cluster, and tell whether clients could rely on it
    ///
    /// Clients put, get, swap, delete and watch below a prefix of their own, through every endpoint, while faults strike; then
    /// the cluster is brought back by `apply`. What they saw must be linearizable with no acknowledged write lost, and the
    /// cluster must be as its spec says. This disturbs the cluster: `--scenario list` tells what each scenario does.
    Drill(Drill),
    /// Stop the machines of a cluster; its data is kept
    ///
    /// It stays off, whatever else is applied, until `quorate start` or `quorate up`.
    Down(Named),
    /// Start the machines of a cluster again
    Start(Named),
    /// Remove a cluster and its data
    ///
    /// Its machines, its data, its keys and the memory of it go. Asks for the cluster's name. A cluster that clients may have
    /// written to also needs the word that no backup is wanted.
    Destroy(Destroy),
    /// Backups that are proven by restoring them: make, list, verify, prune, record changes, export
    ///
    /// Where they go, how often, for how long and for whom they are encrypted is in the spec's `backup` section. The cluster is
    /// given by name, and the settings are those that were applied last; or by its spec, where nothing is known of it here.
    #[command(subcommand)]
    Backup(Backup),
    /// Make a cluster begin anew from a backup or a snapshot
    ///
    /// Makes what is wanted ready here, proves it in a throwaway etcd, shows what will be done and what is lost, and asks for the
    /// cluster's name. A cluster that does not exist is made; the data of one that lives is replaced, on all members or on none. Where
    /// nothing is known of the cluster here, its ledger with its CA keys comes back from beside the backup. Clients never see an
    /// older revision than before: watches end as compacted, and begin anew.
    ///
    /// Given again, or followed by `quorate apply`, it goes on where it was interrupted.
    Restore(Restore),
    /// Move or keep the whole memory of a cluster, encrypted
    #[command(subcommand)]
    Ledger(Ledger),
    /// Show or rotate the key that encrypts the secrets in ledgers
    #[command(subcommand)]
    Key(Key),
    /// Break the lock of a controller that is gone
    ///
    /// The lock of a dead process on this host is free at once. Any other lock is watched for 10 seconds by the next command that needs it,
    /// and freed if nobody renews it. This is for the rest. A controller that still lives finds out at its next step and stops; its orders are refused from then on.
    Unlock(Unlock),
    /// Make images for machines
    #[command(subcommand)]
    Image(Image),
    /// Print the JSON schema of the spec, for editors
    Schema,
    /// Print completions for a shell
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
    /// Run the agent of a machine; providers start it, people need not
    #[command(hide = true)]
    Agent(Agent),
    /// Make this machine what its seed disk says; on machines, as `quorate agent boot`
    #[command(hide = true)]
    AgentBoot(AgentBoot),
    /// Follow a machine's configuration for forwarding logs; on machines, as `quorate agent follow`
    #[command(hide = true)]
    AgentFollow(AgentFollow),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For scripts; docs/json.md describes the shape
    Json,
}

#[derive(Args, Debug)]
pub struct Output {
    /// How to print
    #[arg(long = "output", value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Args, Debug)]
pub struct Up {
    /// Name of the cluster
    #[arg(default_value = "demo")]
    pub name: String,
    /// How many members; 3 unless the cluster exists already
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    pub members: Option<u16>,
    /// Do not ask whether more than 9 members are meant
    #[arg(long, short)]
    pub yes: bool,
    /// Which etcd; by default that on PATH, else 3.6.14
    #[arg(long, value_name = "VERSION")]
    pub etcd_version: Option<Version>,
    /// How clients prove who they are; certificate unless the cluster exists already
    #[arg(long, value_enum, value_name = "HOW")]
    pub client_auth: Option<Login>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Login {
    /// By a client certificate, whose common name is the user
    Certificate,
    /// By user and password
    Password,
    /// By both: a certificate that names nobody, and user and password
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

#[derive(Args, Debug)]
pub struct Init {
    /// Where the machines of the spec are to be made
    #[arg(long, value_enum, value_name = "PROVIDER", default_value_t = Provider::Local)]
    pub provider: Provider,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Provider {
    /// On this machine
    Local,
    /// As virtual machines of libvirt
    Libvirt,
}

#[derive(Args, Debug)]
pub struct Validate {
    /// The spec, `-` for stdin
    #[arg(value_name = "FILE")]
    pub file: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Plan {
    /// A spec, `-` for stdin, or the name of a known cluster
    #[arg(value_name = "FILE|NAME")]
    pub target: String,
    /// Exit with 4 when there is something to do
    #[arg(long)]
    pub detailed_exitcode: bool,
    /// Under each step, tell how many voters are healthy while it runs and how many failures are still survived
    #[arg(long)]
    pub explain: bool,
    /// Also write the plan to FILE (JSON), for `quorate apply --plan`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    #[command(flatten)]
    pub words: Words,
    #[command(flatten)]
    pub output: Output,
}

/// What may be said for one run, beyond the spec.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Words {
    /// For this run, a restart may interrupt a cluster that cannot bridge it
    #[arg(long)]
    pub allow_downtime: bool,
    /// For this run, a machine that is not seen counts as dead at once
    #[arg(long)]
    pub now: bool,
}

#[derive(Args, Debug)]
pub struct Apply {
    /// A spec, `-` for stdin, or the name of a known cluster
    #[arg(value_name = "FILE|NAME")]
    pub target: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Do what the plan in FILE says, without asking; refused when other steps are needed by now
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    #[command(flatten)]
    pub words: Words,
    /// Go on with a ledger older than what the agents remember; the newer one is gone for good
    #[arg(long)]
    pub accept_older_ledger: bool,
    /// Of the file, only this cluster; can be given several times
    #[arg(long = "cluster", value_name = "NAME")]
    pub clusters: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Replace {
    /// The cluster
    pub name: String,
    /// The member that gets another machine
    pub member: String,
    /// Begin with empty data, which is copied from the other members, also where the data could stay
    #[arg(long)]
    pub new_data: bool,
    /// Let the service be interrupted, where the others cannot go on without the member
    #[arg(long)]
    pub allow_downtime: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct Recover {
    /// The cluster
    pub name: String,
    /// Machines that do not answer count as dead at once
    #[arg(long)]
    pub now: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct History {
    /// The cluster
    pub name: String,
    /// Only the last N steps
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Status {
    /// The cluster; all that are known when absent
    pub name: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Env {
    /// The cluster
    pub name: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum Cert {
    /// Make a client certificate for a declared user
    ///
    /// For root, or a user that the spec declares. The key is made here and written to a file that only you can read, unless a
    /// signing request is given.
    Issue(CertIssue),
}

#[derive(Args, Debug)]
pub struct CertIssue {
    /// The cluster
    pub name: String,
    /// Who the certificate is for
    #[arg(long)]
    pub user: String,
    /// Sign this request (PEM) instead of making a key
    #[arg(long, value_name = "FILE")]
    pub csr: Option<PathBuf>,
    /// Write to DIR instead of the cluster's directory in $QUORATE_HOME
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Logs {
    /// The cluster
    pub name: String,
    /// The member
    pub member: String,
    /// The agent's log instead of etcd's
    #[arg(long)]
    pub agent: bool,
    /// Go on printing what is added
    #[arg(short, long)]
    pub follow: bool,
    /// How many of the last lines to begin with
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub lines: usize,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Drill {
    /// The cluster
    #[arg(required_unless_present_any = ["scenarios", "check"])]
    pub name: Option<String>,
    /// What to rehearse; can be given several times, and `list` lists them. By default a few that are harmless
    #[arg(long = "scenario", value_name = "SCENARIO")]
    pub scenarios: Vec<String>,
    /// Let this scenario happen before the change begins, with the clients at work: one that is over at once and leaves the
    /// cluster something to deal with, such as `wipe-follower` or `lose-majority`
    #[arg(long, value_name = "SCENARIO")]
    pub first: Option<String>,
    /// Let the fault strike during this command of quorate, such as "apply new.yaml"
    #[arg(long, value_name = "COMMAND")]
    pub during: Option<String>,
    /// How long the traffic goes on at least, in each scenario
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub seconds: u64,
    /// How many clients write and read
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub clients: u32,
    /// How long each client pauses between two operations, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 15)]
    pub pause: u64,
    /// Repeat the choices of an earlier drill
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Write a report with timelines (HTML) to FILE
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write all that was recorded (JSON lines) to FILE
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Do not rehearse; judge what an earlier drill recorded in FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "scenarios", "first", "during", "history"])]
    pub check: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Named {
    /// The cluster
    pub name: String,
}

#[derive(Args, Debug)]
pub struct Destroy {
    /// A spec, `-` for stdin, or the name of a known cluster
    #[arg(value_name = "FILE|NAME")]
    pub target: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// The data may go although there is no verified backup of it
    #[arg(long)]
    pub without_backup: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_default_version_in_the_help_is_the_true_one() {
        let help = super::Cli::command().find_subcommand_mut("up").unwrap().render_help().to_string();
        assert!(help.contains(&quorate_core::versions::DEFAULT.to_string()), "{help}");
    }

    #[test]
    fn the_command_line_is_sound_and_every_option_is_explained() {
        let mut command = super::Cli::command();
        command.build();
        command.clone().debug_assert();
        let mut open = vec![command];
        while let Some(command) = open.pop() {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{}: {}", command.get_name(), argument.get_id());
            }
            assert!(command.get_about().is_some(), "{}", command.get_name());
            open.extend(command.get_subcommands().cloned());
        }
    }
}
