//! `tlc opt`: graph to graph.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;
use tlc_ir::Graph;
use tlc_ir::text::{PrintOptions, print_graph};
use tlc_passes::pipeline::{Options, Pass, Pipeline, Ran, rewrite};

use crate::args::ModelArgs;
use crate::failure::{Code, Failure};
use crate::session::Session;

/// Arguments.
#[derive(Args, Debug)]
pub struct Opt {
    #[command(flatten)]
    model: ModelArgs,
    /// Passes to run, comma-separated, in this order [default: the compiler's pipeline]
    #[arg(long, value_name = "P")]
    passes: Option<String>,
    /// Print the graph after this pass too, or after `all`
    #[arg(long, value_name = "PASS")]
    print_after: Option<String>,
}

/// The text of a graph with all its data.
pub fn graph_text(graph: &Graph) -> String {
    print_graph(
        graph,
        &PrintOptions {
            inline_elements: usize::MAX,
            ..PrintOptions::default()
        },
    )
    .text
}

/// Runs the command.
pub fn run(session: &Session, args: &Opt) -> Result<(), Failure> {
    let usage = |e: tlc_passes::PassError| Failure::new(Code::Usage, e.to_string());
    let pipeline: Pipeline = match &args.passes {
        Some(names) => names.parse().map_err(usage)?,
        None => Pipeline::default(),
    };
    let pipeline = pipeline.first(session.stages.limit);
    if let Some(name) = &args.print_after
        && name != "all"
    {
        name.parse::<Pipeline>().map_err(usage)?;
    }
    let printed = |pass: &dyn Pass| {
        args.print_after
            .as_deref()
            .is_some_and(|p| p == "all" || p == pass.name())
    };
    let model = session.model(&args.model)?;
    let options = Options {
        pipeline: pipeline.clone(),
        ..session.pass_options()?
    };
    if session.stages.wants_passes() {
        session.stages.run_passes(&session.console, &model, &options)?;
    }
    let mut stages = Vec::new();
    let mut keep = |ran: Ran<'_>| {
        if printed(ran.pass) {
            stages.push((ran.pass.name(), graph_text(ran.after)));
        }
        ControlFlow::Continue(())
    };
    let graph = rewrite(&model.graph, &options, &mut Vec::new(), &mut keep)
        .map_err(|e| Failure::build(&model.file, &tlc::BuildError::Pass(e)))?;
    let last = graph_text(&graph);
    if session.console.json() {
        let stages: Vec<_> = stages
            .iter()
            .map(|(pass, text)| json!({ "after": pass, "graph": text }))
            .collect();
        return session
            .console
            .json_result(&json!({ "passes": pipeline.to_string(), "stages": stages, "graph": last }));
    }
    if stages.is_empty() {
        return session.console.result(&last);
    }
    for (pass, text) in stages {
        session.console.result(&format!("// after {pass}\n{text}\n"))?;
    }
    Ok(())
}
