//! Services by name, next to etcd.

use std::collections::{BTreeMap, BTreeSet};

use quorate_agent::api::{LogOf, LogRequest, Order, Refusal, ServiceCommand};
use quorate_agent::client::AgentClient;
use quorate_agent::process;
use quorate_core::model::{Exit, NodeConfig, ProgramService, Runs, ServiceConfig, ServiceState};
use rustix::process::Signal;

use crate::common::{Machine, config, facts, file, order, until};

const NAME: &str = "greeter";
const INPUT: &str = "etc/greeter/words";

/// A config with a second service, which prints the file that it reads when it starts, and runs on.
fn with_service(words: &str) -> NodeConfig {
    let mut config = config();
    config.files.push(file(INPUT, words));
    let script =
        "read words < {root}/etc/greeter/words; echo \"$GREETING $words from {address}\"; while :; do sleep 0.2; done";
    config.services.push(ServiceConfig {
        name: NAME.to_owned(),
        user: String::from("nobody"),
        runs: Runs::Program(ProgramService {
            path: String::from("/bin/sh"),
            args: vec![String::from("-c"), script.to_owned()],
            env: BTreeMap::from([(String::from("GREETING"), String::from("hello"))]),
        }),
        inputs: BTreeSet::from([INPUT.to_owned()]),
    });
    config
}

async fn command(client: &AgentClient, command: ServiceCommand) -> Result<(), Refusal> {
    order(client, 1, Order::Service { name: NAME.to_owned(), command }).await
}

async fn service(client: &AgentClient) -> ServiceState {
    facts(client).await.services[NAME].clone()
}

async fn log(client: &AgentClient) -> String {
    let of = LogOf::Service(NAME.to_owned());
    client.logs(&LogRequest { of, from: None, lines: 100 }).await.unwrap().text
}

async fn said(client: &AgentClient, words: &str) {
    until(words, async || log(client).await.contains(words).then_some(())).await;
}

/// The processes of the service, found without asking the agent.
fn processes(machine: &Machine) -> Vec<u32> {
    let mark = format!("{}:{NAME}", machine.root().display());
    process::with_environment("QUORATE_SERVICE", &mark).into_iter().map(|found| found.pid).collect()
}

/// The one that was started, without what it started itself. Numbers begin again at some point, so the lowest need not be the first.
fn main_process(machine: &Machine) -> u32 {
    let all = processes(machine);
    let is_first = |pid: &&u32| parent(**pid).is_some_and(|parent| !all.contains(&parent));
    *all.iter().find(is_first).expect("the service runs")
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[tokio::test]
async fn a_second_service_is_started_restarted_for_its_inputs_kept_and_stopped_while_etcd_runs_on() {
    let (mut machine, client) = Machine::ready_with(&with_service("one")).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    let etcd = machine.etcds();
    assert_eq!(service(&client).await, ServiceState::Stopped);
    assert!(command(&client, ServiceCommand::Restart).await.is_err(), "it is not meant to run");

    command(&client, ServiceCommand::Start).await.unwrap();
    said(&client, &format!("hello one from {}", machine.address)).await;
    let first = with_service("one").service_digests();
    assert!(
        matches!(service(&client).await, ServiceState::Running { digest, restarts: 0, .. } if digest == first[NAME])
    );
    let pid = main_process(&machine);
    for again in [ServiceCommand::Start, ServiceCommand::Restart] {
        command(&client, again).await.unwrap();
        assert_eq!(main_process(&machine), pid, "nothing has changed");
    }

    // Another input: it runs on with the old one until it is asked to restart. etcd has the same inputs as before.
    let second = with_service("two").service_digests();
    assert!(second[NAME] != first[NAME] && second["etcd"] == first["etcd"]);
    order(&client, 1, Order::converge(2, with_service("two"), None)).await.unwrap();
    assert!(matches!(service(&client).await, ServiceState::Running { digest, .. } if digest == first[NAME]));
    assert!(command(&client, ServiceCommand::Start).await.is_err(), "it runs with other inputs");
    command(&client, ServiceCommand::Restart).await.unwrap();
    said(&client, "hello two").await;
    assert!(matches!(service(&client).await, ServiceState::Running { digest, .. } if digest == second[NAME]));
    assert!(!processes(&machine).contains(&pid));

    // It outlives its agent, and is brought back when it ends.
    let pid = main_process(&machine);
    machine.stop_agent();
    machine.start_agent().await;
    assert!(matches!(service(&client).await, ServiceState::Running { restarts: 0, .. }));
    assert_eq!(main_process(&machine), pid);
    let killed = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(killed, Signal::KILL).unwrap();
    let ended = until("its end is reported", async || match service(&client).await {
        ServiceState::BackingOff { last_exit, .. } => Some(last_exit),
        _ => None,
    });
    let Exit { last_words, .. } = ended.await;
    assert!(last_words.starts_with("hello two"), "{last_words}");
    until("it is back", async || {
        matches!(service(&client).await, ServiceState::Running { restarts: 1, .. }).then_some(())
    })
    .await;

    command(&client, ServiceCommand::Stop).await.unwrap();
    assert_eq!((service(&client).await, processes(&machine)), (ServiceState::Stopped, Vec::new()));
    machine.stop_agent();
    machine.start_agent().await;
    assert_eq!(service(&client).await, ServiceState::Stopped, "what was stopped stays so");

    // One that the config no longer has is stopped with it, and its log is nobody's.
    command(&client, ServiceCommand::Start).await.unwrap();
    order(&client, 1, Order::converge(3, config(), None)).await.unwrap();
    assert_eq!(processes(&machine), Vec::<u32>::new());
    let facts = machine.healthy(&client).await;
    assert!(facts.services.is_empty());
    assert!(matches!(facts.etcd.service, ServiceState::Running { restarts: 0, .. }));
    assert_eq!(machine.etcds(), etcd, "the same process all along");
    let of = LogOf::Service(NAME.to_owned());
    assert!(client.logs(&LogRequest { of, from: None, lines: 1 }).await.is_err());
}

#[tokio::test]
async fn a_config_with_duplicate_or_invalid_service_names_is_refused() {
    let (_machine, client) = Machine::ready().await;
    for name in ["", "etcd", "agent", "../up", "Upper", "a.b"] {
        let mut config = with_service("one");
        config.services[1].name = name.to_owned();
        let refused = order(&client, 1, Order::converge(2, config, None)).await;
        assert!(matches!(refused, Err(Refusal::Failed { .. })), "{name:?}: {refused:?}");
    }
    let mut twice = with_service("one");
    twice.services.push(twice.services[1].clone());
    assert!(order(&client, 1, Order::converge(2, twice, None)).await.is_err());
    let of_etcd = order(&client, 1, Order::Service { name: String::from("etcd"), command: ServiceCommand::Stop }).await;
    assert!(matches!(of_etcd, Err(Refusal::Failed { why }) if why.contains("its own orders")));
}
