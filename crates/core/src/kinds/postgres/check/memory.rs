//! Checks of the memory that PostgreSQL takes.

use super::super::parameters;
use super::super::spec::PostgresSettings;
use super::USUAL_CONNECTIONS;
use crate::spec::check::{Cluster, Findings};
use crate::spec::{HostFacts, Size};

/// The defaults of PostgreSQL: 4MB in kB, and 128MB in pages.
const USUAL_WORK_MEM: f64 = 4096.0;
const USUAL_BUFFERS: f64 = 16384.0;

/// PostgreSQL does not start if it cannot have this memory.
pub(super) fn check(cluster: &Cluster, postgres: &PostgresSettings, host: &HostFacts, found: &mut Findings) {
    let at = |name: &str| cluster.at(&format!("postgres.parameters.{name}"));
    let value = |name: &str| postgres.parameters.get(name).map(|value| value.0.as_str());
    let buffers = value("shared_buffers").and_then(|text| parameters::number(text, "8kB"));
    match (buffers, cluster.memory(host)) {
        (Some(buffers), Some((machine, _))) if buffers * 8192.0 >= machine as f64 => {
            let machine = mebibytes(machine);
            let message =
                format!("`shared_buffers` is more than the memory of the machine, {machine}: PostgreSQL cannot start");
            found.error(at("shared_buffers"), message, "a quarter of the memory is usual");
        }
        (_, Some(machine)) => memory_of_connections(cluster, postgres, machine, found),
        (_, None) => {}
    }
    if value("huge_pages").is_some_and(|value| value.eq_ignore_ascii_case("on")) {
        let message = "with `huge_pages` `on` PostgreSQL does not start where the machine has too few huge pages";
        let hint = "reserve them on the machines (`vm.nr_hugepages`), or use `try`, which continues without";
        found.warning(at("huge_pages"), message, hint);
    } else if value("huge_page_size").is_some() && value("huge_pages").is_some_and(|value| value == "off") {
        let message = "`huge_page_size` has no effect while `huge_pages` is `off`";
        found.warning(at("huge_page_size"), message, "leave one of them out");
    }
}

/// Connections seldom take all of it at once, so it is not refused. When they do, the kernel ends PostgreSQL.
fn memory_of_connections(
    cluster: &Cluster,
    postgres: &PostgresSettings,
    (machine, whose): (u64, &str),
    found: &mut Findings,
) {
    let names = ["work_mem", "max_connections", "shared_buffers"];
    let set = |name: &str| postgres.parameters.get(name).map(|value| value.0.as_str());
    // A refused value says nothing about the memory.
    let is_refused =
        |name: &str| set(name).is_some_and(|text| parameters::wrong(postgres.version, name, text).is_some());
    let Some(first) = names.into_iter().find(|name| set(name).is_some()) else { return };
    if names.into_iter().any(is_refused) {
        return;
    }
    let value =
        |name: &str, unit: &str, usual: f64| set(name).and_then(|text| parameters::number(text, unit)).unwrap_or(usual);
    let connections = value("max_connections", "", f64::from(USUAL_CONNECTIONS));
    let (work, buffers) = (value("work_mem", "kB", USUAL_WORK_MEM), value("shared_buffers", "8kB", USUAL_BUFFERS));
    let (work, buffers) = (work * 1024.0, buffers * 8192.0);
    let all = connections * work + buffers;
    if all <= machine as f64 {
        return;
    }
    let message = format!(
        "{connections} connections with `work_mem` {} and {} of `shared_buffers` may take {}, and the memory of {whose} is {}",
        Size(work as u64),
        Size(buffers as u64),
        Size::rounded_up(all as u64),
        mebibytes(machine)
    );
    let hint = "lower `work_mem`, which a query can use several times, `max_connections` or `shared_buffers`";
    found.warning(cluster.at(&format!("postgres.parameters.{first}")), message, hint);
}

/// In a unit that people can read.
fn mebibytes(bytes: u64) -> Size {
    Size((bytes >> 20) << 20)
}
