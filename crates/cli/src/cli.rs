//! The command line as types. The text of `quorate help` is here and nowhere else.

mod backup;
mod clients;
mod discovery;
mod front;
mod kubernetes;
mod ledger;
mod machine;
mod postgres;
mod up;
mod v2;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use quorate_core::providers::TEMPLATES;

use crate::completion;
pub use crate::output::terminal::Colour;
pub use backup::*;
pub use clients::*;
pub use discovery::*;
pub use front::*;
pub use kubernetes::*;
pub use ledger::*;
pub use machine::*;
pub use postgres::*;
pub use up::*;
pub use v2::*;

/// Laid out for 80 columns, because clap does not indent what it wraps here.
const EXIT_CODES: &str = "\
Exit codes:
  0  done; `status`: healthy, or off as requested
  1  error
  2  wrong usage
  3  something is refused as unsafe; the message says why and what to do;
     `apply --plan`: other steps are needed than planned
  4  `plan --detailed-exitcode`: there is something to do
  5  `status`: degraded
  6  `status`: down, not bootstrapped yet, or unknown
  7  another controller holds the lock, or took over
  8  `drill`: a scenario failed, or had too little traffic
  9  `backup create`, `backup verify`: a backup is damaged, or does not
     restore to the expected data
  130, 143  stopped by Ctrl-C or SIGTERM; no step is half done

Data goes to stdout, messages to stderr.
State is kept in $QUORATE_HOME, by default ~/.local/share/quorate. Its secrets
are encrypted with the key in the file $QUORATE_KEY, by default
$QUORATE_HOME/key, or with the key that $QUORATE_KEY_COMMAND prints.";

/// Creates and operates highly available etcd clusters, and PostgreSQL clusters on top of them
///
/// Every command observes the cluster, decides on the next safe steps, carries them out and observes again. Every command
/// can be interrupted and safely re-run.
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
    /// Print more detail on stderr
    #[arg(short, long, global = true, display_order = 901)]
    pub verbose: bool,
    /// When to use colour: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_possible_values = true,
        display_order = 902
    )]
    pub color: Colour,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Create a cluster on this machine, without a spec
    ///
    /// Its members are real etcd processes with addresses in 127.0.0.0/8, with TLS and authentication; with `--kind postgres`
    /// PostgreSQL and Patroni, on an etcd cluster. A cluster that exists already is started again with the settings it has.
    Up(Up),
    /// Print a commented spec to start from
    Init(Init),
    /// Print the spec that was applied last, to continue with a file
    ///
    /// All defaults are written out. To continue with a file after `up`: quorate spec NAME > cluster.yaml
    Spec(Named),
    /// Check a spec and report every problem with its line and column
    ///
    /// Reads and checks the files that it names too, such as a CA or a password. Exits with 1 if there is an error; warnings
    /// alone do not fail.
    Validate(Validate),
    /// Show what would be done, step by step, each with its reason
    ///
    /// Changes nothing. The steps come from the same function that `apply` uses, run against a simulated cluster until nothing
    /// is left to do. Below them is what quorate waits for, and what it refuses: by which rule, and what to do.
    ///
    /// A saved plan can be reviewed and later carried out with `quorate apply --plan`.
    Plan(Plan),
    /// Show the plan, ask for confirmation, and carry it out
    ///
    /// Can be killed at any time and re-run: it observes what is there and continues. With several clusters all are tried, and
    /// the worst result decides the exit code.
    ///
    /// With a saved plan it does not ask, and begins only if the steps are still those of the plan. It observes before each
    /// step as always: what becomes necessary on the way is done too. A step that destroys something and was not in the plan
    /// needs another confirmation: it asks, or stops if there is no terminal. With --yes it does such steps without asking.
    Apply(Apply),
    /// Move a member to a new machine without downtime
    ///
    /// A member whose data outlives its machine (a data volume, or `keep_data`) keeps its data and its membership, and only
    /// restarts. Otherwise the new machine joins, catches up and votes before the old one leaves, if addresses allow. After an
    /// interruption, re-run it to continue the same replacement.
    Replace(Replace),
    /// Reboot the machines of a cluster, one after another
    ///
    /// The leader moves away from a machine before it reboots, and the next machine follows when the member is healthy
    /// again. Refused if the cluster could not serve clients during it. With --upgrade-packages apt-get upgrades the packages
    /// of each machine first; if that fails, the machine is not rebooted and no other one is touched. After an
    /// interruption, `quorate apply` continues within 15 minutes.
    Reboot(Reboot),
    /// Make another member of a PostgreSQL cluster the primary
    ///
    /// Patroni does it; the former primary follows as a standby. Without --to, the standby with the least lag takes over.
    /// Refused if the standby could lack a confirmed commit or lags too far. After an interruption, `quorate apply`
    /// continues within 15 minutes.
    Switchover(Switchover),
    /// Change the passwords of a PostgreSQL cluster
    #[command(subcommand)]
    Passwords(Passwords),
    /// Rebuild an etcd cluster after permanent quorum loss
    ///
    /// Shows which members are reachable, which have data and where their logs end, and what may be lost; asks for the
    /// cluster's name. Then the survivor with the most recent log is rebuilt as a cluster of one, and the others rejoin as new
    /// members. Refused while the cluster has a quorum, and when no member has data.
    Recover(Recover),
    /// Show all steps ever taken: when, by whom, why and how they ended
    History(History),
    /// Show cluster health
    ///
    /// With a name, or if only one cluster is known: its members with role, health, version, size, lag, days left of the
    /// certificate, and the version of its agent; alarms; a one-line verdict. Otherwise one line per cluster.
    Status(Status),
    /// Print environment variables for etcdctl, psql or patronictl
    ///
    /// eval "$(quorate env NAME)" makes them connect to that cluster as its superuser. The certificate is valid for a day; run
    /// it again for a new one.
    Env(Env),
    /// Print a cluster's endpoints and CA, for scripts and Terraform
    ///
    /// Contains no secrets: for a login see `env` and `cert issue`.
    Output(OutputValues),
    /// Issue client certificates
    #[command(subcommand)]
    Cert(Cert),
    /// Write the files with which a Kubernetes control plane uses etcd
    ///
    /// Certificates in kubeadm's layout, the `etcd.external` part of kubeadm's configuration, and the flags of
    /// kube-apiserver. The spec must declare the users; if it does not, the lines to add are printed. Re-run it at any
    /// time: it changes only what differs, and renews certificates before they expire.
    Kubernetes(Kubernetes),
    /// Serve discovery to etcd members that quorate did not create
    ///
    /// Does what discovery.etcd.io does, on your own host. Clusters that quorate creates do not need it.
    #[command(subcommand)]
    Discovery(Discovery),
    /// Serve a cluster at one address, over gRPC and REST
    ///
    /// Runs until SIGINT or SIGTERM. gRPC is passed through to a member that serves, with TLS from end to end. Clients
    /// that speak HTTP/1.1, such as curl, get REST: /health, /version, and etcd's v3 API as JSON below /v3, with a
    /// client certificate or user and password. Members are probed every second, and one that a command is about to
    /// restart gets no new connections. Several fronts can serve one cluster.
    Front(Front),
    /// Import v2 data, which `quorate front` serves
    #[command(subcommand)]
    V2(V2),
    /// Show the log of a member's etcd or PostgreSQL, or of its agent
    Logs(Logs),
    /// Cause faults in a running cluster and check what clients see
    ///
    /// Clients read and write through every endpoint while faults happen; then `apply` repairs the cluster. No acknowledged
    /// write may be lost, and what clients saw must be linearizable (etcd), or fit one primary and SERIALIZABLE transactions
    /// (PostgreSQL). This disturbs the cluster: `--scenario list` shows what each scenario does.
    Drill(Drill),
    /// Stop the machines of a cluster; its data is kept
    ///
    /// It stays off, whatever else is applied, until `quorate start` or `quorate up`.
    Down(Down),
    /// Start the machines of a cluster again
    ///
    /// If Patroni's etcd cluster is off, it is started before the PostgreSQL cluster.
    Start(Named),
    /// Delete a cluster and its data
    ///
    /// Deletes its machines, data, keys and ledger. Asks for the cluster's name. If clients may have written to the cluster and
    /// no verified backup covers all data, it also requires --without-backup.
    Destroy(Destroy),
    /// Take, list, verify, prune, record and export backups
    ///
    /// The `backup` section of the spec says where they are stored, how often, for how long, and to whom they are encrypted.
    /// Name the cluster, and the settings that were applied last are used; or give its spec, if it is not known here.
    #[command(subcommand)]
    Backup(Backup),
    /// Restore a cluster from a backup or a snapshot
    ///
    /// Prepares the snapshot here, verifies it in a temporary etcd, shows what will be done and what is lost, and asks for the
    /// cluster's name. Creates the cluster if it does not exist; otherwise replaces the data of all members or of none. If the
    /// cluster is not known here, its ledger with the CA keys is restored from the backup. Clients never see an older revision
    /// than before: watches end as compacted and must start again.
    ///
    /// After an interruption, re-run it, or run `quorate apply`.
    Restore(Restore),
    /// Delete data that a PostgreSQL restore or upgrade has replaced
    ///
    /// Each machine keeps it until then, and it is the way back from an upgrade (`quorate restore --before-upgrade`).
    /// Asks for the cluster's name. Deletes nothing while a member is not healthy.
    Discard(Discard),
    /// Export or import a cluster's state (ledger), encrypted
    #[command(subcommand)]
    Ledger(Ledger),
    /// Show or rotate the key that encrypts the secrets in ledgers
    #[command(subcommand)]
    Key(Key),
    /// List requests that are not carried out yet, or withdraw one
    ///
    /// A run that was interrupted leaves what was confirmed in the ledger, and the next run continues it. A request that has not
    /// begun can be withdrawn while no controller is running.
    Requests(Requests),
    /// Break the lock of a dead controller
    ///
    /// Rarely needed. The lock of a dead process on this host is free at once. Any other lock is watched for 10 seconds by the
    /// next command that needs it, and freed if nobody renews it. A controller that is still alive notices at its next step and
    /// stops; its orders are refused from then on.
    Unlock(Unlock),
    /// Build machine images, and import them into Incus or OpenStack
    #[command(subcommand)]
    Image(Image),
    /// Print the JSON schema of the spec, for editors
    Schema,
    /// Print completions for a shell
    ///
    /// They also complete the names of clusters and members. For bash: source <(quorate completions bash)
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
    /// Write the man pages
    #[command(hide = true)]
    Manual {
        /// Where to write them
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Run the agent of a machine; providers start it
    #[command(hide = true)]
    Agent(Agent),
    /// Set this machine up from its seed disk; on machines, as `quorate agent boot`
    #[command(hide = true)]
    AgentBoot(AgentBoot),
    /// Follow a machine's configuration for forwarding logs; on machines, as `quorate agent follow`
    #[command(hide = true)]
    AgentFollow(AgentFollow),
    /// Serve the front of a machine with the settings from its agent; on machines, as `quorate agent front`
    #[command(hide = true)]
    AgentFront(AgentFront),
    /// Print what this program is, if it can be this machine's agent; on machines, as `quorate agent check`
    #[command(hide = true)]
    AgentCheck(AgentCheck),
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
    /// Output format
    #[arg(long = "output", value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Args, Debug)]
pub struct Init {
    /// What the cluster of the spec runs
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Runs::Etcd)]
    pub kind: Runs,
    /// Where the machines of the spec are created
    #[arg(long, value_name = "PROVIDER", default_value = "local", value_parser = TEMPLATES.map(|(name, _)| name))]
    pub provider: String,
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
    #[arg(value_name = "FILE|NAME", add = completion::clusters_or_files())]
    pub target: String,
    /// Exit with 4 when there is something to do
    #[arg(long)]
    pub detailed_exitcode: bool,
    /// Show the health and fault tolerance of the cluster during each step
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

/// What can be allowed for one run, beyond the spec.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Words {
    /// Allow restarts that cause downtime, for this run
    #[arg(long)]
    pub allow_downtime: bool,
    /// Treat unreachable machines as dead, for this run
    #[arg(long)]
    pub now: bool,
}

#[derive(Args, Debug)]
pub struct Apply {
    /// A spec, `-` for stdin, or the name of a known cluster
    #[arg(value_name = "FILE|NAME", add = completion::clusters_or_files())]
    pub target: String,
    /// Do not ask, not even before steps that become necessary on the way
    #[arg(long, short)]
    pub yes: bool,
    /// Carry out the plan in FILE without asking; refused if other steps are needed now
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    #[command(flatten)]
    pub words: Words,
    /// Continue with a ledger older than what the agents remember, because the newer one is lost
    #[arg(long)]
    pub accept_older_ledger: bool,
    /// Only this cluster of the file; can be repeated
    #[arg(long = "cluster", value_name = "NAME")]
    pub clusters: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Replace {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// The member to move to a new machine
    #[arg(add = completion::members())]
    pub member: String,
    /// Start with an empty disk and copy the data from the other members, even if the data could stay
    #[arg(long)]
    pub new_data: bool,
    /// Allow downtime if the others cannot serve without the member
    #[arg(long)]
    pub allow_downtime: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct Reboot {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Only the machine of this member; can be repeated
    #[arg(long = "member", value_name = "MEMBER", add = completion::members())]
    pub members: Vec<String>,
    /// Upgrade the packages of each machine before it reboots
    #[arg(long)]
    pub upgrade_packages: bool,
    /// Allow downtime if the others cannot serve without the member
    #[arg(long)]
    pub allow_downtime: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Recover {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Treat unreachable machines as dead
    #[arg(long)]
    pub now: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct History {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Only the last N steps
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Status {
    /// The cluster; without it, all clusters known here
    #[arg(add = completion::clusters())]
    pub name: Option<String>,
    /// Refresh every 2 seconds, until Ctrl-C
    #[arg(long, short, conflicts_with = "format")]
    pub watch: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Logs {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// The member
    #[arg(add = completion::members())]
    pub member: String,
    /// Show the agent's log instead
    #[arg(long)]
    pub agent: bool,
    /// Keep printing new lines
    #[arg(short, long)]
    pub follow: bool,
    /// How many of the last lines to show first
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub lines: usize,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Drill {
    /// The cluster
    #[arg(required_unless_present_any = ["scenarios", "check"], add = completion::clusters())]
    pub name: Option<String>,
    /// The fault to cause; can be repeated, and `list` lists them. By default a few that three members tolerate
    #[arg(long = "scenario", value_name = "SCENARIO")]
    pub scenarios: Vec<String>,
    /// Cause this fault under traffic before the command of --during starts: one that is over at once and leaves something to
    /// repair, such as `wipe-follower` or `lose-majority`
    #[arg(long, value_name = "SCENARIO")]
    pub first: Option<String>,
    /// Cause the fault during this quorate command, such as "apply new.yaml"
    #[arg(long, value_name = "COMMAND")]
    pub during: Option<String>,
    /// Connect clients to this URL of a `quorate front` instead of the members; can be repeated. etcd only
    #[arg(long, value_name = "URL")]
    pub through: Vec<String>,
    /// Minimum duration of the traffic in each scenario
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub seconds: u64,
    /// Number of clients that write and read
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub clients: u32,
    /// How long each client pauses between two operations, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 15)]
    pub pause: u64,
    /// Repeat the random choices of the drill with this seed
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Write a report with timelines (HTML) to FILE
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write everything recorded (JSON lines) to FILE
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Cause no faults; check what an earlier drill recorded in FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "scenarios", "first", "during", "history"])]
    pub check: Option<PathBuf>,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Down {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct Named {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
}

#[derive(Args, Debug)]
pub struct Destroy {
    /// A spec, `-` for stdin, or the name of a known cluster
    #[arg(value_name = "FILE|NAME", add = completion::clusters_or_files())]
    pub target: String,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    /// Delete the data even if no verified backup covers it
    #[arg(long)]
    pub without_backup: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_default_version_in_the_help_is_the_true_one() {
        let help = super::Cli::command().find_subcommand_mut("up").unwrap().render_help().to_string();
        assert!(help.contains(&quorate_core::kinds::etcd::versions::DEFAULT.to_string()), "{help}");
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

    #[test]
    fn lists_of_commands_have_one_line_for_each_at_80_columns() {
        let mut open = vec![super::Cli::command().term_width(80)];
        while let Some(mut command) = open.pop() {
            command.build();
            let help = command.render_help().to_string();
            let commands: Vec<_> = command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned().collect();
            let listed =
                help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
            assert_eq!(listed.count(), commands.len(), "{help}");
            open.extend(commands.into_iter().map(|inner| inner.term_width(80)));
        }
    }
}
