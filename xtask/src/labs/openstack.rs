//! A control plane of OpenStack without systemd, in separate namespaces for processes, mounts and network: keystone, glance, placement, nova,
//! neutron and cinder from Debian's packages, with RabbitMQ and MariaDB below them. They run in a root file system of their own, which the lab
//! keeps between runs together with databases that are set up. What a run changes is in memory, and when the first process of the namespace
//! ends, all the others do and nothing is left.
//!
//! Nova has four hosts. The guests of `fake1` to `fake3` (zone `fake`) are records, for tests of the API. Those of `real1` (zone `real`) are
//! emulated machines, on a network whose gateway is the lab.

mod cache;
mod cloud;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::image;
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::postgres;
use crate::static_build::lab_program;
use crate::test::build;
use crate::weed;
use cache::Cache;
use cloud::{Cloud, With};

const NEEDS: [Need; 3] = [
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "ip", package: "iproute2" },
    Need::Command { name: "nsenter", package: "util-linux" },
];
/// Where the suites look for the cloud's addresses and users.
const CLOUDS_VARIABLE: &str = "QUORATE_LAB_OPENSTACK_CLOUDS";
/// And for a client, as the user that quorate is.
const CLIENT_VARIABLE: &str = "QUORATE_LAB_OPENSTACK_CLIENT";
/// Says to what runs inside which image its machines have.
const IMAGE_VARIABLE: &str = "QUORATE_LAB_OPENSTACK_IMAGE";
const IMAGE: &str = "machine.qcow2";
/// The story on emulated machines.
const STORY: &str = "openstack::nova_boots_three_machines_one_is_deleted_one_is_replaced_and_all_are_destroyed";
/// The core of the suite: a machine, its power, its address, its volume and its image.
const CORE: [&str; 6] = [
    "openstack::a_machine_is_made_found_and_removed",
    "openstack::a_machine_is_switched_off_and_on",
    "openstack::a_machine_that_does_not_fit_is_refused_and_leaves_nothing",
    "openstack::an_address_that_is_taken_is_refused",
    "openstack::an_image_is_uploaded_once",
    "openstack::data_stays_when_it_is_to_stay_and_goes_when_not",
];

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
    /// Run six tests of the conformance suite, and boot no machine
    #[arg(long, conflicts_with = "filter")]
    core: bool,
    /// Run this command of a shell next to the cloud, and no suite; with --core, next to one that boots no machine
    #[arg(long, value_name = "COMMAND", conflicts_with = "filter")]
    run: Option<String>,
}

impl Options {
    /// The same in words of the command line.
    fn words(&self) -> impl Iterator<Item = &str> {
        let run = self.run.as_deref().map(|command| ["--run", command]);
        self.filter.as_deref().into_iter().chain(run.into_iter().flatten()).chain(self.core.then_some("--core"))
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let (cache, image) = prepare(lab, options)?;
    if options.run.is_none() {
        suites(options)?;
    }
    eprintln!("prepared in {:.0} s", begun.elapsed().as_secs_f64());
    let words: Vec<&str> = ["lab", "openstack", "--inside"].into_iter().chain(options.words()).collect();
    super::enter(&words, |inside| {
        cache.tell(inside);
        inside.envs(image.iter().map(|image| (IMAGE_VARIABLE, image)));
    })?;
    eprintln!("all of it in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Packages, databases, and where machines boot the programs and their image: inside there is no network.
pub fn prepare(lab: &Lab, options: &Options) -> Result<(Cache, Option<PathBuf>)> {
    if fs::metadata("/proc/self").context("cannot tell which user this is")?.uid() != 0 {
        bail!("the lab of OpenStack needs root: its namespaces are made with `unshare` and `mount`");
    }
    host::install_missing(&NEEDS)?;
    let cache = Cache::ensure(lab, |cache| {
        super::enter(&["lab", "openstack", "--inside", "--set-up"], |inside| cache.tell(inside))
    })?;
    if !options.core {
        etcd::run(lab, false)?;
        weed::run(lab)?;
        postgres::ensure(lab)?;
    }
    let image = boots(options).then(|| machine_image(lab)).transpose()?;
    Ok((cache, image))
}

/// Whether anything that is to run needs an emulated machine. The other stories give bodies to records.
fn boots(options: &Options) -> bool {
    !options.core && options.filter.as_ref().is_none_or(|filter| STORY.contains(filter.as_str()))
}

fn machine_image(lab: &Lab) -> Result<PathBuf> {
    let program = lab_program::build()?;
    image::build(lab, &program, IMAGE, &[])
}

/// In the namespaces.
pub fn inside(options: &Options, set_up: bool) -> Result<()> {
    let cache = Cache::told()?;
    if set_up {
        return Cloud::set_up(&cache);
    }
    let cloud = Cloud::start(&cache, With { machines: boots(options), keeping: !options.core })?;
    cloud.upload(std::env::var_os(IMAGE_VARIABLE).as_deref().map(Path::new))?;
    let client = cloud.client()?;
    let tell = |mut command: Command| {
        command.env(CLOUDS_VARIABLE, cloud.clouds()).env(CLIENT_VARIABLE, &client);
        command
    };
    if let Some(command) = &options.run {
        return host::run(tell(Command::new("sh")).args(["-c", command]));
    }
    for (arguments, suite) in suites(options)? {
        let mut suite = tell(suite);
        if options.core {
            super::leave_out_all_but(&CORE, &mut suite)?;
        }
        let outcome = host::run(suite.args(arguments));
        outcome.and_then(|()| cloud.nothing_is_left()).inspect_err(|_| cloud.show_troubles())?;
    }
    Ok(())
}

/// The provider's conformance suite, on hosts whose guests are records, and the story of a cluster on emulated machines. With each, the
/// arguments for its tests.
fn suites(options: &Options) -> Result<Vec<(Vec<String>, Command)>> {
    let test = |label: &str| Ok::<Command, anyhow::Error>(build::find(label)?.command());
    let filter = options.filter.clone().unwrap_or_else(|| String::from("openstack::"));
    let conformance = (vec![filter.clone(), String::from("--test-threads=3")], test("quorate-providers::conformance")?);
    if options.core {
        return Ok(vec![conformance]);
    }
    let stories = ["--ignored", "--nocapture", "--test-threads=1"].map(String::from);
    Ok(vec![conformance, (stories.into_iter().chain([filter]).collect(), test("quorate::machines")?)])
}
