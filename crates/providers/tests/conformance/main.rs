//! The conformance suite of providers: what every provider must do, written against the trait alone. `local` is tested here;
//! the others are tested in their lab (`cargo xtask lab NAME`), which sets environment variables.
//!
//! Local machines run the agent of the program that creates them, so this program contains one.

mod aws;
mod incus;
mod libvirt;
mod local;
mod openstack;
mod suite;

use std::path::PathBuf;

use libtest_mimic::Arguments;
use quorate_agent::{Options, Supervisor};

/// Serves the proxy that is as strict as AWS, for stories of clusters, until it is killed. Prints its address.
const PROXY_OF_AWS: &str = "aws-proxy";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [agent, root_flag, root, seed_flag, seed, ..] = &words[..]
        && (agent.as_str(), root_flag.as_str(), seed_flag.as_str()) == ("agent", "--root", "--seed")
    {
        return run_agent(root.into(), seed.into());
    }
    if words == [PROXY_OF_AWS] {
        println!("{}", aws::proxy());
        loop {
            std::thread::park();
        }
    }
    let arguments = Arguments::from_args();
    let mut trials = suite::trials("local", local::Place::new);
    if libvirt::is_there() {
        trials.extend(suite::trials("libvirt", libvirt::Place::new));
        trials.extend(libvirt::trials());
    }
    if incus::is_there() {
        trials.extend(suite::trials("incus", incus::Place::new));
    }
    if openstack::is_there() {
        trials.extend(suite::trials("openstack", openstack::Place::new));
        trials.extend(openstack::trials());
    }
    if aws::is_there() {
        trials.extend(suite::trials("aws", aws::Place::new));
        trials.extend(aws::trials());
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn run_agent(root: PathBuf, seed: PathBuf) {
    // Its console.
    eprintln!("an agent begins");
    let _ = quorate_agent::detach();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = suite::runtime();
    let options = Options { root, seed, cache: None, supervisor: Supervisor::Child, channel: None, on_trial: false };
    runtime.block_on(quorate_agent::serve(options, None)).expect("the agent runs until it is killed");
}
