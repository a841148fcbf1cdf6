//! The end of a run: the state of the cluster, its endpoints, what to type next, and when `apply` is due again.

use quorate_control::kinds::status::{Status, Verdict};
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::model::Ledger;
use quorate_core::spec::Kind;
use quorate_core::text::plural;

use super::page::{Page, Style};
use super::status::verdict_style;
use crate::commands::Context;

pub fn page(context: &Context, ledger: &Ledger, status: &Status) -> Page {
    let name = &status.cluster;
    let mut page = Page::new();
    page.blank();
    let summary = (verdict_style(status.verdict), status.summary.as_str());
    page.line(2, [(Style::Plain, "cluster "), (Style::Bold, name.as_str()), (Style::Plain, " is "), summary]);
    match status.verdict {
        Verdict::Off => {
            let start = context.command(&format!("start {name}"));
            page.whole(Style::Plain, &format!("  start it with: {start}"));
            return page;
        }
        Verdict::Unformed | Verdict::Unknown => return page,
        // No client is served, and nothing is renewed.
        Verdict::Down => {
            listed(&mut page, "next", &[&context.command(&format!("status {name}"))]);
            return page;
        }
        Verdict::Healthy | Verdict::Degraded => {}
    }
    let endpoints: Vec<&str> = status.members.iter().filter_map(|m| m.endpoint.as_deref()).collect();
    listed(&mut page, "endpoints", &endpoints);
    let env = context.command(&format!("env {name}"));
    let see = context.command(&format!("status {name}"));
    listed(&mut page, "next", &[&format!("eval \"$({env})\""), &client(ledger), &see]);
    for (what, line) in [("password", password(context, ledger)), ("due", due(context, ledger, status))] {
        if let Some(line) = line {
            page.plain(13, &format!("  {what:9}  {line}"));
        }
    }
    page
}

fn client(ledger: &Ledger) -> String {
    let client = match ledger.spec.kind {
        Kind::Etcd => "etcdctl member list",
        Kind::Postgres => "psql -c 'select pg_is_in_recovery()'",
    };
    format!("{}{client}", ledger.spec.provider.settings().clients_start_with())
}

/// Each line stays whole, so it can be copied.
fn listed(page: &mut Page, what: &str, lines: &[&str]) {
    for (index, line) in lines.iter().enumerate() {
        page.whole(Style::Plain, &format!("  {:9}  {line}", if index == 0 { what } else { "" }));
    }
}

fn password(context: &Context, ledger: &Ledger) -> Option<String> {
    let of_etcd = ledger.spec.kind == Kind::Etcd && ledger.spec.etcd.client_auth == ClientAuth::Password;
    if !of_etcd || !ledger.spec.auth.bootstrap {
        return None;
    }
    let name = &ledger.spec.name;
    Some(match &ledger.spec.auth.root_password_file {
        Some(file) => format!("root's is the one in {}", file.display()),
        None => format!("root's was generated: `{}` prints it", context.command(&format!("env {name}"))),
    })
}

fn due(context: &Context, ledger: &Ledger, status: &Status) -> Option<String> {
    let apply = context.command(&format!("apply {}", ledger.spec.name));
    if let Some(by) = status.renew_by {
        return Some(format!("`{apply}` by {}, to renew certificates", by.strftime("%Y-%m-%d %H:%M UTC")));
    }
    let first = status.members.iter().filter_map(|m| m.certificate_days_left).min()?;
    Some(format!(
        "the first certificate expires in {}: provide new ones and run `{apply}` before then",
        plural(first, "day")
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use quorate_control::Home;
    use quorate_control::kinds::summarize;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::kinds::etcd::{Formation, FormingMember};
    use quorate_core::model::{Observation, Power, Seen};
    use quorate_core::planner::Decision;
    use quorate_core::spec::generated;

    use super::super::page::Look;
    use super::*;

    fn ledger(auth: ClientAuth) -> Ledger {
        let mut spec = generated("demo", 1, DEFAULT, auth).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        let member = FormingMember { machine_id: String::new(), peer_url: String::new(), learner: false };
        let members = BTreeMap::from([("etcd-1".into(), member)]);
        ledger.etcd.formation = Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members };
        ledger
    }

    fn shown(ledger: &Ledger, context: &Context) -> String {
        shown_as(Verdict::Healthy, ledger, context)
    }

    fn shown_as(verdict: Verdict, ledger: &Ledger, context: &Context) -> String {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let machines = Seen::At(now, Default::default());
        let fixtures = Seen::At(now, Vec::new());
        let seen = Observation { now, machines, agents: Default::default(), fixtures };
        let mut status = summarize(ledger, &seen, &Decision::default());
        status.members[0].endpoint = Some(String::from("https://127.64.0.1:2379"));
        if ledger.power == Power::On {
            status.renew_by = Some("2026-09-01T10:00:00Z".parse().unwrap());
            (status.verdict, status.summary) = (verdict, String::from("as it is"));
        }
        page(context, ledger, &status).render(Look::default())
    }

    #[test]
    fn the_block_has_endpoints_commands_and_the_next_date() {
        let context = Context::new(Home::new("/h"), false);
        let expected = "
cluster demo is as it is
  endpoints  https://127.64.0.1:2379
  next       eval \"$(quorate env demo)\"
             etcdctl member list
             quorate status demo
  due        `quorate apply demo` by 2026-09-01 10:00 UTC, to renew certificates
";
        assert_eq!(shown(&ledger(ClientAuth::Certificate), &context), expected);
    }

    #[test]
    fn a_given_home_is_part_of_each_command_and_passwords_are_not_printed() {
        let context = Context::new(Home::new("/my home"), true);
        let mut ledger = ledger(ClientAuth::Password);
        let text = shown(&ledger, &context);
        assert!(text.contains("root's was generated: `quorate --home '/my home' env demo` prints it"), "{text}");
        ledger.spec.auth.root_password_file = Some(PathBuf::from("/p"));
        assert!(shown(&ledger, &context).contains("root's is the one in /p"));
    }

    #[test]
    fn of_a_cluster_that_is_down_nothing_is_promised() {
        let context = Context::new(Home::new("/h"), false);
        let text = shown_as(Verdict::Down, &ledger(ClientAuth::Certificate), &context);
        assert_eq!(text, "\ncluster demo is as it is\n  next       quorate status demo\n");
    }

    #[test]
    fn a_cluster_that_is_off_has_one_way_on() {
        let context = Context::new(Home::new("/h"), false);
        let mut ledger = ledger(ClientAuth::Certificate);
        ledger.power = Power::Off;
        assert!(shown(&ledger, &context).ends_with("  start it with: quorate start demo\n"));
    }
}
