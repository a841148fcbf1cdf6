//! `quorate plan`: what would be done. Clusters are planned and printed one after another, whatever their number.

use std::io::{BufWriter, Write};

use quorate_control::controller;

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output::plan::{self, Summary};

pub async fn run(context: &Context, options: cli::Plan) -> Result<Exit, Error> {
    let clusters = load::clusters(&context.home, &options.target)?;
    let json = options.output.format == Format::Json;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut summary = Summary::default();
    if json {
        out.write_all(b"{\"clusters\":[").map_err(Error::Output)?;
    }
    for cluster in &clusters {
        let name = cluster.spec.name.as_str();
        let plan =
            controller::plan(&context.home, &cluster.spec, &cluster.brought, |ledger| ledger.downtime = None).await?;
        let piece = match json {
            true => {
                let comma = if summary.clusters > 0 { ",\n" } else { "\n" };
                format!("{comma}{}", to_json(&plan::json(name, &plan)))
            }
            false => plan::text(name, &plan),
        };
        summary.add(&plan);
        out.write_all(piece.as_bytes()).map_err(Error::Output)?;
    }
    let end = if json { format!("\n],\"summary\":{}}}\n", to_json(&summary)) } else { summary.line() };
    out.write_all(end.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)?;
    Ok(match (summary.blocked, summary.steps + summary.waiting) {
        (0, 0) => Exit::Done,
        (0, _) if options.detailed_exitcode => Exit::ChangesPending,
        (0, _) => Exit::Done,
        _ => Exit::Blocked,
    })
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data serializes")
}
