//! `quorate v2`: data of etcd's v2 API, on top of the v3 store.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_control::kinds::etcd::clients::{self, Environment};
use quorate_core::text::{plural, with_causes};
use quorate_etcd::{Client, ConnectOptions, Login, Sockets};
use quorate_keys::{ImportError, Imported, Keys, Settings};
use serde::Serialize;

use super::Context;
use crate::cli::{Format, V2, V2Import};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

const ANSWERING: Duration = Duration::from_secs(30);

pub async fn run(context: &Context, verb: V2) -> Result<Exit, Error> {
    match verb {
        V2::Import(options) => import(context, &options).await,
    }
}

#[derive(Serialize)]
struct Report {
    written: usize,
    skipped: usize,
    replaced: usize,
}

async fn import(context: &Context, options: &V2Import) -> Result<Exit, Error> {
    let ledger = load::etcd_ledger(&context.home, &options.name)?;
    let documents = options.files.iter().map(|file| read(file).map(Into::into)).collect::<Result<Vec<_>, _>>()?;
    let brought = load::brought_files(&ledger)?;
    let client = connect(&clients::environment(&context.home, &ledger, &brought).await?).await?;
    let imported = Keys::new(Settings::default()).import(&documents, &client).await;
    let imported = imported.map_err(|error| explained(error, &options.files))?;
    let Imported { written, skipped, replaced } = imported;
    match options.output.format {
        Format::Json => output::print_json(&Report { written, skipped, replaced })?,
        Format::Text => output::print(&text(&options.name, &imported))?,
    }
    Ok(Exit::Done)
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    if file.as_os_str() != "-" {
        return fs::read(file).map_err(Error::file("read", file));
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).map_err(Error::file("read", Path::new("stdin")))?;
    Ok(bytes)
}

/// To the first member that answers, as root.
async fn connect(environment: &Environment) -> Result<Client, Error> {
    let read = |path: &PathBuf| fs::read_to_string(path).map_err(Error::file("read", path));
    let ca = read(&environment.ca)?;
    let identity = match &environment.certificate {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let password = environment.password.as_ref().map(|password| password.expose().to_owned());
    let mut last = String::from("the cluster has no members");
    for endpoint in &environment.endpoints {
        let dial = environment.dial.clone();
        let options = ConnectOptions {
            identity: identity.clone(),
            login: password.clone().map(|password| Login { user: String::from("root"), password }),
            sockets: Some(Sockets::new(move |to| dial.socket(to))),
            request_timeout: ANSWERING,
            ..ConnectOptions::new(endpoint, &ca)
        };
        let client = Client::connect(options).map_err(|error| with_causes(&error));
        match client {
            Ok(client) => match client.status().await {
                Ok(_) => return Ok(client),
                Err(error) => last = format!("{endpoint}: {}", with_causes(&error)),
            },
            Err(error) => last = format!("{endpoint}: {error}"),
        }
    }
    Err(Error::refused(format!("no member of the cluster answers: {last}"), "`quorate status` shows what is wrong"))
}

fn explained(error: ImportError, files: &[PathBuf]) -> Error {
    match error {
        ImportError::Document { number, why } => Error::refused(
            format!("{}: not an answer of /v2/keys: {why}", files[number - 1].display()),
            "expected the answer to GET /v2/keys/?recursive=true&quorum=true of an etcd with --enable-v2. If you have only a data \
             directory or a snapshot of it, start etcd 3.4 on it and ask that; docs/v2.md has the commands",
        ),
        error @ ImportError::Exists { .. } => {
            Error::refused(error.to_string(), "delete them through the v2 API, or leave them out of the file")
        }
        other => Error::refused(with_causes(&other), "nodes that were written are skipped when you import again"),
    }
}

fn text(name: &str, imported: &Imported) -> String {
    let Imported { written, skipped, replaced } = imported;
    let mut text =
        format!("cluster {name}: {} written, {skipped} skipped because they already exist\n", plural(*written, "node"));
    if *replaced > 0 {
        text.push_str(&format!(
            "warning: {replaced} values contain U+FFFD: the v2 API shows it in place of bytes that are not UTF-8; compare them with their \
             source\n"
        ));
    }
    text
}
