//! `quorate plan`: what would be done. Clusters are planned and printed one at a time, so any number fits in memory.

use std::io::{BufWriter, Write};

use quorate_control::verbs::apply::{Allowed, Apply};

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;
use crate::output::plan::{self, Detail, Summary};
use crate::saved_plan::{self, SavedCluster};

pub async fn run(context: &Context, options: cli::Plan) -> Result<Exit, Error> {
    let clusters = load::clusters(&context.home, &options.target)?;
    load::tell_left_out(context, &options.target, &clusters);
    let clusters = load::with_their_etcd(&context.home, clusters)?;
    let json = options.output.format == Format::Json;
    let detail = if options.explain { Detail::Explained } else { Detail::Reasons };
    let look = output::terminal::of_stdout();
    let mut out = BufWriter::new(output::Data::open());
    let mut summary = Summary::default();
    let mut saved = Vec::new();
    let allowed = Allowed { downtime: options.words.allow_downtime, now: options.words.now, ..Allowed::default() };
    if json {
        out.write_all(b"{\"clusters\":[").map_err(Error::Output)?;
    }
    for cluster in &clusters {
        let name = cluster.spec.name.as_str();
        let plan = Apply::assumed(allowed).plan(&context.home, cluster).await?;
        let piece = match json {
            true => {
                let comma = if summary.clusters > 0 { ",\n" } else { "\n" };
                format!("{comma}{}", to_json(&plan::json(name, &plan)))
            }
            false => plan::page(name, &plan, detail).render(look),
        };
        summary.add(&plan);
        out.write_all(piece.as_bytes()).map_err(Error::Output)?;
        if options.save.is_some() {
            let known = load::remembered(&context.home, name)?;
            saved.push(SavedCluster::new(&cluster.spec, known.as_ref().map(|l| l.cluster_id.as_str()), &plan));
        }
    }
    let end = match json {
        true => format!("\n],\"summary\":{}}}\n", to_json(&summary)),
        // A single cluster's output already begins with these numbers.
        false if summary.clusters == 1 => String::new(),
        false => summary.line(),
    };
    out.write_all(end.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)?;
    if let Some(path) = &options.save {
        saved_plan::write(path, saved)?;
        let apply =
            format!("apply --plan {} {}", super::quoted(&path.to_string_lossy()), super::quoted(&options.target));
        output::talk(&format!("the plan is in {}; do it with `{}`\n", path.display(), context.command(&apply)));
    }
    Ok(match (summary.blocked, summary.steps + summary.waiting) {
        (0, 0) => Exit::Done,
        (0, _) if options.detailed_exitcode => Exit::ChangesPending,
        (0, _) => Exit::Done,
        _ => Exit::Blocked,
    })
}

fn to_json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).expect("plain data serializes");
    output::plain::json(&text).into_owned()
}
