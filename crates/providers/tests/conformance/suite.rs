//! The suite, and what a provider's ground must offer to run it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use libtest_mimic::Trial;
use quorate_core::Secret;
use quorate_core::model::{MachineId, MachineSeen, MemberName, PowerState};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm};
use quorate_providers::{Data, Directories, NewMachine, Provider, ProviderError};

/// A place of one provider that belongs to one test alone: a cluster, another of the same name, and other people's things.
#[async_trait(?Send)]
pub trait Ground {
    fn cluster_id(&self) -> &str;

    /// The provider of the cluster, as the next run of quorate would have it.
    fn provider(&self) -> Rc<dyn Provider>;

    /// The provider of another cluster that has the same name.
    fn stranger(&self) -> (Rc<dyn Provider>, String);

    /// The address that the spec pins for a member, where the provider needs that.
    fn pinned(&self, member: &str) -> Option<IpAddr>;

    /// All that there is in this place, by name, no matter who made it.
    async fn inventory(&self) -> BTreeSet<String>;

    /// Begins to make a machine and is killed after so many of the things that it does; `false` when that was all.
    async fn interrupt_create(&self, new: &NewMachine<'_>, after: usize) -> bool;

    /// The same for removing one.
    async fn interrupt_destroy(&self, machine: &str, member: &MemberName, incarnation: u64, after: usize) -> bool;

    /// Puts something of somebody else's where a machine of this name would be.
    async fn plant(&self, machine: &str);

    /// Writes into a machine's data, as etcd would.
    async fn write_data(&self, machine: &str, text: &str);

    /// What was written there.
    async fn read_data(&self, machine: &str) -> Option<String>;

    /// A provider of the same cluster whose machines are larger than the place, if it has a bound.
    fn greedy(&self) -> Option<Rc<dyn Provider>>;
}

type Case = (&'static str, fn(Rc<dyn Ground>) -> futures_util::future::LocalBoxFuture<'static, ()>);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), |ground| Box::pin($name(ground)))),*]
    };
}

const CASES: [Case; 12] = cases![
    a_machine_is_made_found_and_removed,
    every_call_may_be_repeated,
    a_machine_is_switched_off_and_on,
    machines_stand_side_by_side,
    a_missing_machine_fails_to_start_and_is_ignored_by_stop_and_destroy,
    a_crash_while_a_machine_is_made_leaves_nothing_unfound,
    a_crash_while_a_machine_is_removed_leaves_nothing_unfound,
    resources_of_others_are_not_touched,
    an_address_that_is_taken_is_refused,
    a_successor_gets_the_same_address,
    data_stays_when_it_is_to_stay_and_goes_when_not,
    a_machine_that_does_not_fit_is_refused_and_leaves_nothing,
];

/// The suite for one provider. Each case gets a separate ground.
pub fn trials<G: Ground + 'static>(provider: &str, ground: fn() -> G) -> Vec<Trial> {
    // Where there is no bound, there is nothing that does not fit.
    let bounded = ground().greedy().is_some();
    let applies = |(name, _): &Case| bounded || !name.starts_with("a_machine_that_does_not_fit");
    let trial = |(name, case): Case| {
        Trial::test(format!("{provider}::{name}"), move || {
            runtime().block_on(case(Rc::new(ground())));
            Ok(())
        })
    };
    CASES.into_iter().filter(applies).map(trial).collect()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// As a home at this place would have them.
pub fn directories(home: &Path) -> Directories {
    let cache = home.join("cache");
    Directories { machines: home.join("machines"), programs: cache.join("etcd"), cache }
}

const MEMBER: &str = "etcd-1";

fn id(member: &MemberName, incarnation: u64) -> MachineId {
    MachineId::new(member, incarnation)
}

/// What a machine of this incarnation is called.
fn machine(member: &str, incarnation: u64) -> String {
    if incarnation == 1 { member.to_owned() } else { format!("{member}.{incarnation}") }
}

/// What every machine of a run is told.
pub struct Enrolment {
    control_ca: String,
    token: Secret,
    token_expires: Timestamp,
}

impl Enrolment {
    pub fn new() -> Self {
        let subject = AuthoritySubject { common_name: String::from("control"), organization: None };
        let year = SignedDuration::from_hours(24 * 365);
        let authority = Authority::generate(&subject, KeyAlgorithm::P256, year, Timestamp::now()).expect("a CA");
        Enrolment {
            control_ca: authority.certificate_pem().to_owned(),
            token: Secret::new("token"),
            token_expires: Timestamp::now() + SignedDuration::from_hours(1),
        }
    }

    pub fn machine<'a>(
        &'a self,
        name: &'a str,
        id: MachineId,
        address: Option<IpAddr>,
        data: Data,
        fence: u64,
    ) -> NewMachine<'a> {
        let (control_ca, token, token_expires) = (self.control_ca.as_str(), &self.token, self.token_expires);
        NewMachine { name, id, address, data, fence, control_ca, token, token_expires }
    }
}

/// A controller's doings, in short.
struct Run {
    ground: Rc<dyn Ground>,
    provider: Rc<dyn Provider>,
    fence: u64,
    enrolment: Enrolment,
}

/// A machine that was made.
#[derive(Clone)]
struct Made {
    cluster_id: String,
    member: MemberName,
    incarnation: u64,
    address: IpAddr,
}

impl Run {
    async fn begin(ground: &Rc<dyn Ground>, fence: u64) -> Self {
        let enrolment = Enrolment::new();
        let run = Run { ground: ground.clone(), provider: ground.provider(), fence, enrolment };
        run.provider.admit(fence).await.expect("admitted");
        run
    }

    /// Creates a machine, and returns how it is seen then.
    async fn create(&self, member: &str, incarnation: u64, data: Data) -> Made {
        self.create_at(member, incarnation, self.ground.pinned(member), data).await.expect("a machine");
        let made =
            self.ours().await.into_iter().find(|(m, seen)| m.as_str() == member && seen.incarnation == incarnation);
        let (member, seen) = made.expect("it is shown");
        Made { cluster_id: seen.cluster_id, member, incarnation, address: seen.address.expect("an address") }
    }

    async fn create_at(
        &self,
        member: &str,
        incarnation: u64,
        address: Option<IpAddr>,
        data: Data,
    ) -> Result<(), ProviderError> {
        let name = machine(member, incarnation);
        let id = id(&member.into(), incarnation);
        self.provider.create(&self.enrolment.machine(&name, id, address, data, self.fence)).await
    }

    async fn destroy(&self, member: &str, incarnation: u64, data: Data) {
        self.provider.destroy(&id(&member.into(), incarnation), data).await.expect("destroyed");
    }

    async fn machines(&self) -> Vec<(MemberName, MachineSeen)> {
        let mut machines = self.provider.machines().await.expect("a look").found;
        // What each was made of is told in words of its provider's own.
        machines.iter_mut().for_each(|(_, machine)| {
            (machine.build, machine.data, machine.place) = (None, None, None);
        });
        machines.sort_by(|a, b| (&a.0, a.1.incarnation).cmp(&(&b.0, b.1.incarnation)));
        machines
    }

    async fn ours(&self) -> Vec<(MemberName, MachineSeen)> {
        let mut machines = self.machines().await;
        machines.retain(|(_, machine)| machine.cluster_id == self.ground.cluster_id());
        machines
    }

    /// Ends the run, and the cluster with it.
    async fn forget(&self) {
        self.provider.dismiss(self.fence).await.expect("dismissed");
        self.provider.forget().await.expect("forgotten");
    }
}

fn seen(made: &Made, power: PowerState) -> (MemberName, MachineSeen) {
    let Made { cluster_id, member, incarnation, address } = made.clone();
    (
        member,
        MachineSeen {
            cluster_id,
            incarnation,
            power,
            headless: false,
            outdated: false,
            address: Some(address),
            build: None,
            data: None,
            place: None,
        },
    )
}

async fn a_machine_is_made_found_and_removed(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let run = Run::begin(&ground, 1).await;
    assert_eq!(run.machines().await, []);
    let made = run.create(MEMBER, 1, Data::Goes).await;
    assert_eq!(run.machines().await, [seen(&made, PowerState::On)]);
    assert_ne!(ground.inventory().await, before);
    run.destroy(MEMBER, 1, Data::Goes).await;
    assert_eq!(run.machines().await, []);
    run.forget().await;
    assert_eq!(ground.inventory().await, before);
}

async fn every_call_may_be_repeated(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let run = Run::begin(&ground, 1).await;
    run.provider.admit(1).await.expect("admitted again");
    let made = run.create(MEMBER, 1, Data::Goes).await;
    let there = ground.inventory().await;
    let again = async || run.create_at(MEMBER, 1, ground.pinned(MEMBER), Data::Goes).await;
    again().await.expect("made again");
    assert_eq!(ground.inventory().await, there);
    for _ in 0..2 {
        run.provider.stop(&id(&made.member, 1)).await.expect("stopped");
        assert_eq!(run.machines().await, [seen(&made, PowerState::Off)]);
    }
    for _ in 0..2 {
        run.provider.start(&id(&made.member, 1)).await.expect("started");
        assert_eq!(run.machines().await, [seen(&made, PowerState::On)]);
    }
    run.provider.stop(&id(&made.member, 1)).await.expect("stopped");
    again().await.expect("one that is off is switched on");
    assert_eq!(run.machines().await, [seen(&made, PowerState::On)]);
    run.destroy(MEMBER, 1, Data::Goes).await;
    run.destroy(MEMBER, 1, Data::Goes).await;
    run.forget().await;
    run.forget().await;
    assert_eq!(ground.inventory().await, before);
}

async fn a_machine_is_switched_off_and_on(ground: Rc<dyn Ground>) {
    let run = Run::begin(&ground, 1).await;
    let made = run.create(MEMBER, 1, Data::Goes).await;
    let words = || async { run.provider.console(&id(&made.member, 1)).await.expect("a console") };
    for _ in 0..100 {
        if !words().await.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(!words().await.is_empty(), "it said nothing on its console");
    run.provider.stop(&id(&made.member, 1)).await.expect("stopped");
    // Another run finds it as it is.
    let next = Run::begin(&ground, 2).await;
    assert_eq!(next.machines().await, [seen(&made, PowerState::Off)]);
    next.provider.start(&id(&made.member, 1)).await.expect("started");
    assert_eq!(next.machines().await, [seen(&made, PowerState::On)]);
    next.destroy(MEMBER, 1, Data::Goes).await;
    next.forget().await;
}

async fn machines_stand_side_by_side(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let run = Run::begin(&ground, 1).await;
    let first = run.create(MEMBER, 1, Data::Goes).await;
    let second = run.create("etcd-2", 1, Data::Goes).await;
    assert_ne!(first.address, second.address);
    assert_eq!(run.machines().await, [seen(&first, PowerState::On), seen(&second, PowerState::On)]);
    run.destroy(MEMBER, 1, Data::Goes).await;
    assert_eq!(run.machines().await, [seen(&second, PowerState::On)]);
    run.destroy("etcd-2", 1, Data::Goes).await;
    run.forget().await;
    assert_eq!(ground.inventory().await, before);
}

async fn a_missing_machine_fails_to_start_and_is_ignored_by_stop_and_destroy(ground: Rc<dyn Ground>) {
    let run = Run::begin(&ground, 1).await;
    let member = MemberName::from(MEMBER);
    let missing = run.provider.start(&id(&member, 1)).await;
    assert!(matches!(missing, Err(ProviderError::NoSuchMachine { .. })), "{missing:?}");
    run.provider.stop(&id(&member, 1)).await.expect("nothing to stop");
    let made = run.create(MEMBER, 2, Data::Goes).await;
    // Another incarnation is another machine.
    run.destroy(MEMBER, 1, Data::Goes).await;
    run.provider.stop(&id(&member, 1)).await.expect("nothing to stop");
    assert_eq!(run.machines().await, [seen(&made, PowerState::On)]);
    assert_eq!(run.provider.console(&id(&member, 1)).await.expect("no console"), "");
    run.destroy(MEMBER, 2, Data::Goes).await;
    run.forget().await;
}

async fn a_crash_while_a_machine_is_made_leaves_nothing_unfound(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let mut cut_short = true;
    for after in 0.. {
        if !cut_short {
            assert!(after > 3, "nothing was ever interrupted");
            break;
        }
        let fence = 2 * after as u64 + 1;
        let run = Run::begin(&ground, fence).await;
        let (name, id) = (machine(MEMBER, 1), id(&MEMBER.into(), 1));
        let new = run.enrolment.machine(&name, id, ground.pinned(MEMBER), Data::Goes, fence);
        cut_short = ground.interrupt_create(&new, after).await;
        let next = Run::begin(&ground, fence + 1).await;
        if next.machines().await.is_empty() {
            next.provider.dismiss(fence + 1).await.expect("dismissed");
            assert_eq!(ground.inventory().await, before, "after {after}");
            next.provider.admit(fence + 1).await.expect("admitted");
        }
        let made = next.create(MEMBER, 1, Data::Goes).await;
        assert_eq!(next.machines().await, [seen(&made, PowerState::On)], "after {after}");
        next.destroy(MEMBER, 1, Data::Goes).await;
        next.forget().await;
        assert_eq!(ground.inventory().await, before, "after {after}");
    }
}

async fn a_crash_while_a_machine_is_removed_leaves_nothing_unfound(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let mut cut_short = true;
    for after in 0.. {
        if !cut_short {
            assert!(after > 1, "nothing was ever interrupted");
            break;
        }
        let fence = 2 * after as u64 + 1;
        let run = Run::begin(&ground, fence).await;
        let made = run.create(MEMBER, 1, Data::Goes).await;
        cut_short = ground.interrupt_destroy(&machine(MEMBER, 1), &made.member, 1, after).await;
        let next = Run::begin(&ground, fence + 1).await;
        let left = next.machines().await;
        assert!(left.is_empty() || left[0].1.incarnation == 1, "after {after}: {left:?}");
        next.destroy(MEMBER, 1, Data::Goes).await;
        assert_eq!(next.machines().await, [], "after {after}");
        next.forget().await;
        assert_eq!(ground.inventory().await, before, "after {after}");
    }
}

async fn resources_of_others_are_not_touched(ground: Rc<dyn Ground>) {
    let (stranger, strange_id) = ground.stranger();
    stranger.admit(7).await.expect("admitted");
    let enrolment = Enrolment::new();
    let theirs = id(&"etcd-2".into(), 1);
    let new = enrolment.machine("etcd-2", theirs.clone(), ground.pinned("etcd-2"), Data::Goes, 7);
    stranger.create(&new).await.expect("a machine");
    let (_, shown) = stranger.machines().await.expect("a look").found.remove(0);
    let address = shown.address.expect("an address");
    let theirs = Made { cluster_id: strange_id, member: theirs.member, incarnation: 1, address };
    ground.plant("etcd-3").await;
    let before = ground.inventory().await;

    let run = Run::begin(&ground, 1).await;
    assert_eq!(run.machines().await, [seen(&theirs, PowerState::On)], "a look shows whose it is");
    run.create(MEMBER, 1, Data::Goes).await;
    for member in ["etcd-2", "etcd-3"] {
        let refused = run.create_at(member, 1, ground.pinned(member), Data::Goes).await;
        assert!(refused.is_err(), "{member} is somebody else's");
        let member = MemberName::from(member);
        let _ = run.provider.stop(&id(&member, 1)).await;
        let _ = run.provider.destroy(&id(&member, 1), Data::Goes).await;
    }
    run.destroy(MEMBER, 1, Data::Goes).await;
    run.forget().await;
    assert_eq!(ground.inventory().await, before);
    assert_eq!(run.machines().await, [seen(&theirs, PowerState::On)]);
    stranger.destroy(&id(&theirs.member, 1), Data::Goes).await.expect("destroyed");
    stranger.dismiss(7).await.expect("dismissed");
    stranger.forget().await.expect("forgotten");
}

async fn an_address_that_is_taken_is_refused(ground: Rc<dyn Ground>) {
    let run = Run::begin(&ground, 1).await;
    let made = run.create(MEMBER, 1, Data::Goes).await;
    // A machine that is off keeps its address.
    for _ in 0..2 {
        match run.create_at("etcd-2", 1, Some(made.address), Data::Goes).await {
            Err(ProviderError::AddressTaken { address, by: Some(by), .. }) => {
                assert!(address == made.address && by.contains(MEMBER), "{by}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(run.ours().await.len(), 1);
        run.provider.stop(&id(&made.member, 1)).await.expect("stopped");
    }
    run.destroy(MEMBER, 1, Data::Goes).await;
    run.forget().await;
}

async fn a_successor_gets_the_same_address(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let run = Run::begin(&ground, 1).await;
    let first = run.create(MEMBER, 1, Data::Goes).await;
    run.destroy(MEMBER, 1, Data::Goes).await;
    run.create_at(MEMBER, 2, Some(first.address), Data::Goes).await.expect("a machine");
    let second = Made { incarnation: 2, ..first };
    assert_eq!(run.machines().await, [seen(&second, PowerState::On)]);
    run.destroy(MEMBER, 2, Data::Goes).await;
    run.forget().await;
    assert_eq!(ground.inventory().await, before);
}

async fn data_stays_when_it_is_to_stay_and_goes_when_not(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let run = Run::begin(&ground, 1).await;
    let write = async |incarnation| {
        run.provider.stop(&id(&MEMBER.into(), incarnation)).await.expect("stopped");
        ground.write_data(&machine(MEMBER, incarnation), "precious").await;
    };
    run.create(MEMBER, 1, Data::Goes).await;
    write(1).await;
    // From a machine that runs, as from one that does not.
    run.provider.start(&id(&MEMBER.into(), 1)).await.expect("started");
    run.destroy(MEMBER, 1, Data::Stays).await;
    run.destroy(MEMBER, 1, Data::Stays).await;
    assert_eq!(run.ours().await, []);
    // The next controller does not take it for a leftover.
    let next = Run::begin(&ground, 2).await;
    next.create(MEMBER, 2, Data::Stays).await;
    assert_eq!(ground.read_data(&machine(MEMBER, 2)).await.as_deref(), Some("precious"));
    next.destroy(MEMBER, 2, Data::Stays).await;
    next.create(MEMBER, 3, Data::Goes).await;
    assert_eq!(ground.read_data(&machine(MEMBER, 3)).await, None);
    write(3).await;
    next.destroy(MEMBER, 3, Data::Goes).await;
    next.create(MEMBER, 4, Data::Stays).await;
    assert_eq!(ground.read_data(&machine(MEMBER, 4)).await, None, "what went does not come back");
    next.destroy(MEMBER, 4, Data::Stays).await;
    next.forget().await;
    assert_eq!(ground.inventory().await, before, "a cluster that is forgotten keeps no data");
}

async fn a_machine_that_does_not_fit_is_refused_and_leaves_nothing(ground: Rc<dyn Ground>) {
    let before = ground.inventory().await;
    let greedy = ground.greedy().expect("a bound");
    let run = Run { provider: greedy, ..Run::begin(&ground, 1).await };
    let refused = run.create_at(MEMBER, 1, ground.pinned(MEMBER), Data::Goes).await;
    let refused = refused.expect_err("there is no room").to_string();
    assert!(refused.contains(" left, and ") && refused.contains(MEMBER), "{refused}");
    run.forget().await;
    assert_eq!(ground.inventory().await, before);
}
