//! `kubernetes`: writes what a control plane needs to use a cluster as its external etcd, and delivers it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use quorate_control::kinds::etcd::kubernetes::push::{self, Delivered, Delivery, Remote};
use quorate_control::kinds::etcd::kubernetes::{self, Clusters, KubernetesError, Wish, Written};
use serde::Serialize;

use super::{Context, quoted};
use crate::cli::{self, Format, KubernetesAction, KubernetesFiles, KubernetesPush};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub fn run(context: &Context, options: cli::Kubernetes) -> Result<Exit, Error> {
    match options.action {
        Some(KubernetesAction::Push(options)) => deliver(context, options),
        None => files(context, options.files),
    }
}

fn files(context: &Context, options: KubernetesFiles) -> Result<Exit, Error> {
    let written = write(context, &options)?;
    match options.output.format {
        Format::Json => output::print_json(&written)?,
        Format::Text => {
            output::print(&table(&written))?;
            advise(&written, &next(context, &written));
        }
    }
    Ok(Exit::Done)
}

fn write(context: &Context, options: &KubernetesFiles) -> Result<Written, Error> {
    let name = options.name.as_deref().expect("clap requires it");
    let main = load::etcd_ledger(&context.home, name)?;
    let events = options.events.as_deref().map(|events| load::etcd_ledger(&context.home, events)).transpose()?;
    let out = options.out.clone().unwrap_or_else(|| context.home.clients(name).join("kubernetes"));
    let wish = Wish {
        user: options.user.clone(),
        health_user: options.health_user.clone(),
        prefix: format!("{}/", options.prefix.trim_end_matches('/')),
        on_hosts: options.dir.clone(),
        out,
        new_keys: options.new_keys,
        encrypt_secrets: options.encrypt_secrets,
    };
    let clusters = Clusters { main: &main, events: events.as_ref() };
    Ok(kubernetes::write(&context.home, clusters, &wish)?)
}

fn table(written: &Written) -> String {
    let mut text = String::new();
    for file in &written.files {
        let path = written.directory.join(file.path);
        let _ = writeln!(text, "{:9}  {}", file.change.name(), path.display());
    }
    for certificate in &written.certificates {
        let _ = writeln!(
            text,
            "{} is valid until {} (user {}); renewed from {} on",
            certificate.path,
            certificate.not_after.strftime("%Y-%m-%d"),
            certificate.user,
            certificate.renew_after.strftime("%Y-%m-%d"),
        );
    }
    text
}

fn next(context: &Context, written: &Written) -> String {
    let directory = quoted(&written.directory.to_string_lossy());
    let push = context.command(&format!("kubernetes push {} --out {directory} --to HOST", written.cluster));
    format!(
        "copy pki/ to each control plane host: `{push}`\n\
         first control plane: `kubeadm init --config` with kubeadm-v1beta4.yaml; without kubeadm: kube-apiserver.flags\n\
         re-run either command from a timer: it renews certificates before they expire"
    )
}

/// Recommendations and next steps. For people, so not on stdout.
fn advise(written: &Written, next: &str) {
    let mut text: String = written.notes.iter().map(|note| format!("note: {note}\n")).collect();
    if written.changed {
        for line in next.lines() {
            let _ = writeln!(text, "next: {line}");
        }
    }
    output::talk(&text);
}

/// What was written here and to each host.
#[derive(Debug, Serialize)]
struct Pushed<'a> {
    #[serde(flatten)]
    written: &'a Written,
    hosts: Vec<Delivery>,
}

fn deliver(context: &Context, options: KubernetesPush) -> Result<Exit, Error> {
    options.to.iter().try_for_each(|host| push::check_host(host))?;
    let mut known = BTreeSet::new();
    let hosts: Vec<&String> = options.to.iter().filter(|host| known.insert(host.as_str())).collect();
    let mut written = write(context, &options.files)?;
    let way = Remote { ssh: options.ssh, sudo: options.sudo, directory: options.files.dir.clone() };
    let text = matches!(options.files.output.format, Format::Text);
    let mut deliveries = Vec::new();
    for host in hosts {
        let delivery = push::deliver(&written.directory, host, &way)?;
        if text {
            output::print(&line(&delivery))?;
        }
        deliveries.push(delivery);
    }
    let failed = deliveries.iter().filter(|delivery| delivery.result == Delivered::Failed).count();
    let (all, restarts) = (deliveries.len(), restarts(&deliveries));
    written.changed |= deliveries.iter().any(|delivery| delivery.result == Delivered::Updated);
    if text {
        advise(&written, &restarts);
    } else {
        output::print_json(&Pushed { written: &written, hosts: deliveries })?;
    }
    if failed == 0 {
        return Ok(Exit::Done);
    }
    let what = format!("{failed} of {all} hosts failed: every file there is whole, but may still be the old one");
    Err(Error::refused(what, "re-run the same command: hosts that have everything are left alone"))
}

fn line(delivery: &Delivery) -> String {
    match (delivery.result, &delivery.error) {
        (Delivered::Failed, error) => format!("{}: failed: {}\n", delivery.host, error.as_deref().unwrap_or_default()),
        (Delivered::Unchanged, _) => format!("{}: unchanged\n", delivery.host),
        (Delivered::Updated, _) => format!("{}: updated {}\n", delivery.host, delivery.files.join(", ")),
    }
}

fn restarts(deliveries: &[Delivery]) -> String {
    let hosts: Vec<&str> = deliveries.iter().filter(|d| d.restart_needed).map(|d| d.host.as_str()).collect();
    if hosts.is_empty() {
        return String::new();
    }
    let hosts = hosts.join(", ");
    format!("restart kube-apiserver on {hosts}: the CA changed, and kube-apiserver reads it only when it starts")
}

impl From<KubernetesError> for Error {
    fn from(error: KubernetesError) -> Self {
        match error {
            KubernetesError::Refused { what, hint } => Error::refused(what, hint),
            KubernetesError::Client(error) => Error::Client(error),
            KubernetesError::Pki(error) => Error::Client(error.into()),
            KubernetesError::File { what, path, source } => Error::file(what, path)(source),
        }
    }
}
