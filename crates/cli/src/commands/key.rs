//! `quorate key`: the key that encrypts the secrets in ledgers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use quorate_control::key::KeySource;
use quorate_core::text::plural;
use serde::Serialize;

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::output;

#[derive(Serialize)]
struct Shown {
    /// The file, or the command that prints it.
    from: String,
    /// The public half of the current key; absent before the first secret is stored.
    public_key: Option<String>,
    /// Keys that only decrypt, during a rotation.
    also_opens: Vec<String>,
    /// By cluster: the public key that the ledger is encrypted to; absent where its secrets are not encrypted yet.
    clusters: BTreeMap<String, Option<String>>,
}

pub fn show(context: &Context, options: cli::KeyShow) -> Result<Exit, Error> {
    let keys = context.home.keys();
    let from = match keys.place()? {
        KeySource::File(path) => path.display().to_string(),
        KeySource::Command(command) => command.clone(),
    };
    let ring = keys.ring()?;
    let public: Vec<String> = ring.map(|ring| ring.recipients().to_vec()).unwrap_or_default();
    let sealed = |name: String| (name.clone(), context.home.store(&name).sealed_to());
    let shown = Shown {
        from,
        public_key: public.first().cloned(),
        also_opens: public.into_iter().skip(1).collect(),
        clusters: context.home.known_clusters().into_iter().map(sealed).collect(),
    };
    match options.output.format {
        Format::Json => output::print_json(&shown)?,
        Format::Text => output::print(&text(&shown))?,
    }
    Ok(Exit::Done)
}

fn text(shown: &Shown) -> String {
    let Shown { from, public_key, also_opens, clusters } = shown;
    let none = || String::from("none yet: it is created with the first secret");
    let mut text = format!("key         {from}\npublic key  {}\n", public_key.clone().unwrap_or_else(none));
    also_opens.iter().for_each(|key| text.push_str(&format!("also opens  {key}\n")));
    for (cluster, to) in clusters {
        let to = match to {
            Some(to) if Some(to) == public_key.as_ref() => String::from("encrypted to it"),
            Some(to) => format!("encrypted to {to}"),
            None => String::from("not encrypted: the next `quorate apply` encrypts it"),
        };
        text.push_str(&format!("cluster {cluster}: {to}\n"));
    }
    text
}

pub async fn rotate(context: &Context, options: cli::KeyRotate) -> Result<Exit, Error> {
    let keys = context.home.keys();
    if keys.ring()?.is_none() {
        let what = "there is no key yet, so there is nothing to rotate";
        return Err(Error::refused(what, "it is created with the first secret that `quorate apply` stores"));
    }
    let rotation = keys.begin_rotation()?;
    if rotation.continues {
        output::talk("resuming an unfinished rotation; no new key is created\n");
    }
    let clusters = context.home.known_clusters();
    seal_again(context, &clusters).await?;
    let public = rotation.ring().recipient();
    let are = if clusters.len() == 1 { "is" } else { "are" };
    output::talk(&format!("{} {are} encrypted to {public}\n", plural(clusters.len(), "ledger")));
    match rotation.shared_file(context.home.root()) {
        Some(path) if !options.drop_old => output::talk(&format!(
            "{} is outside {}, so other homes may need the old key: it is kept\n\
             run `quorate key rotate` for each home that uses this file, then `quorate key rotate --drop-old` for one of them\n",
            path.display(),
            context.home.root().display()
        )),
        _ => rotation.end()?,
    }
    if let KeySource::File(path) = keys.place()? {
        output::talk(&format!(
            "back up {} separately from the ledgers; the old key decrypts only older copies\n",
            path.display()
        ));
    }
    Ok(Exit::Done)
}

/// Encrypts every version of every ledger here to the first key.
async fn seal_again(context: &Context, clusters: &[String]) -> Result<(), Error> {
    let mut busy = Vec::new();
    for name in clusters {
        super::free_lapsed(context, name).await?;
        if !context.home.store(name).seal_again(Timestamp::now())? {
            busy.push(name.as_str());
        }
    }
    if busy.is_empty() {
        return Ok(());
    }
    let what =
        format!("a controller is running on {}, so its ledger is not encrypted to the new key yet", busy.join(", "));
    Err(Error::refused(what, "run `quorate key rotate` again when it has exited; until then both keys are kept"))
}
