//! Exact-output filetests: graphs in `filetests/*.tlir`, what passes make of them, and what was decided about them; kernels there,
//! and what directives make of them.
//!
//! A file begins with comments, holds one graph or kernel or more, and ends with what is expected of them in order:
//!
//! ```text
//! // run: canonicalize,cse
//! graph @name(…) { … }
//! // expect:
//! // graph @name(…) { … }
//! ```
//!
//! - `// run:` names passes. Optional passes and `own-outputs` rewrite the graph, `default` is the default pipeline. The
//!   reports `cluster`, `plan` and `memory` come last and print what was decided about the rewritten graph, in which inputs
//!   have their names and other nodes their numbers, as in its text; without a report the rewritten graph is printed.
//! - `// run: schedule` applies directives to each kernel, which `// apply:` names, one a line. One that refuses prints why,
//!   and those behind it are applied all the same.
//! - `// limit:` is the most bytes of an einsum's intermediate.
//! - A pass that fails prints `error:` and its message.
//!
//! `TLC_BLESS=1` rewrites the expectations. A file without a run line or without an expectation fails.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tlc_ir::kernel::Kernel;
use tlc_ir::kernel::verify::verify;
use tlc_ir::plan::{Launch, Step};
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{Graph, NodeId, NodeKind};
use tlc_passes::cluster::{ClusterKind, Clusters, cluster};
use tlc_passes::pipeline::{Options, Pass, Pipeline, run_pass};
use tlc_passes::planner::{Planned, plan};
use tlc_passes::rewrite::own_outputs;
use tlc_passes::schedule::{Directive, apply};

const EXPECT: &str = "// expect:\n";

/// One entry of a run line.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Entry {
    Rewrite(&'static dyn Pass),
    OwnOutputs,
    Cluster,
    Plan,
    Memory,
    Schedule,
}

/// A parsed file: its source up to the expectation, and the expected lines.
struct FileTest<'t> {
    source: &'t str,
    entries: Vec<Entry>,
    limit: Option<u64>,
    directives: Vec<Directive>,
    expected: Option<String>,
}

fn entries(line: &str) -> Result<Vec<Entry>, String> {
    let mut out = Vec::new();
    for name in line.split(',').map(str::trim) {
        match name {
            "own-outputs" => out.push(Entry::OwnOutputs),
            "cluster" => out.push(Entry::Cluster),
            "plan" => out.push(Entry::Plan),
            "memory" => out.push(Entry::Memory),
            "schedule" => out.push(Entry::Schedule),
            "default" => out.extend(Pipeline::default().0.into_iter().map(Entry::Rewrite)),
            "" => return Err("an empty name in the run line".into()),
            name => {
                let pipeline: Pipeline = name.parse().map_err(|e| format!("{e}"))?;
                out.extend(pipeline.0.into_iter().map(Entry::Rewrite));
            }
        }
    }
    let reports = |e: &Entry| matches!(e, Entry::Cluster | Entry::Plan | Entry::Memory);
    let first = out.iter().position(reports).unwrap_or(out.len());
    match out[first..].iter().all(reports) {
        true => Ok(out),
        false => Err("a pass behind a report in the run line".into()),
    }
}

fn read(text: &str) -> Result<FileTest<'_>, String> {
    let (source, expected) = match text.find(EXPECT) {
        Some(at) => (&text[..at], Some(&text[at + EXPECT.len()..])),
        None => (text, None),
    };
    let directive = |name: &str| source.lines().find_map(|l| l.strip_prefix("// ")?.strip_prefix(name));
    let run = directive("run:").ok_or("no `// run:` line")?;
    let limit = directive("limit:").map(|l| l.trim().parse().map_err(|e| format!("limit: {e}")));
    let applied = source.lines().filter_map(|l| l.strip_prefix("// apply:"));
    let applied = applied.map(|l| l.parse().map_err(|e| format!("`{}`: {e}", l.trim())));
    let uncomment = |l: &str| match l.strip_prefix("// ") {
        Some(rest) => Ok(rest.to_string()),
        None if l == "//" => Ok(String::new()),
        None => Err(format!("an expectation ends the file, but behind it stands `{l}`")),
    };
    let expected = match expected {
        Some(e) => Some(e.lines().map(uncomment).collect::<Result<Vec<_>, _>>()?.join("\n")),
        None => None,
    };
    Ok(FileTest {
        source,
        entries: entries(run.trim())?,
        limit: limit.transpose()?,
        directives: applied.collect::<Result<_, String>>()?,
        expected: expected.filter(|e| !e.trim().is_empty()),
    })
}

/// Node names as the printer writes them.
fn names(graph: &Graph) -> Vec<String> {
    let mut number = 0;
    let name = |(_, n): (NodeId, &tlc_ir::Node)| match &n.kind {
        NodeKind::Input { name, .. } => format!("%{name}"),
        _ => {
            number += 1;
            format!("%{}", number - 1)
        }
    };
    graph.nodes().map(name).collect()
}

fn report_clusters(out: &mut String, graph: &Graph, clusters: &Clusters) {
    let names = names(graph);
    let name = |id: &NodeId| {
        let node = graph.node(*id);
        let kind = match &node.kind {
            NodeKind::Reduce { monoid, .. } => format!("reduce {}", monoid.name()),
            kind => kind.name().to_string(),
        };
        format!("{} {kind}", names[id.index()])
    };
    let list = |ids: &[NodeId]| ids.iter().map(name).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "clusters: {}", clusters.clusters.len());
    for c in &clusters.clusters {
        let kind = match &c.kind {
            ClusterKind::Loops(space) => format!("loop over {}", graph.shape_text(&space.parallel)),
            ClusterKind::Gemm(_) => "library product".into(),
            ClusterKind::Attention(a) => format!("attention, {} rows a block", a.rows),
            ClusterKind::ProductRows(p) => format!("rows of a product, tiles of {} by {}", p.tile[0], p.tile[1]),
            ClusterKind::WeightGradient(w) => format!("weight gradient, tiles of {} by {}", w.rows(), w.columns),
            ClusterKind::Scan(_) => "scan".into(),
            ClusterKind::Scatter(_) => "scatter".into(),
            ClusterKind::Join(parts) => format!("concatenation of {} parts", parts.len()),
            ClusterKind::Loop => "loop over a plan".into(),
            ClusterKind::Call => "function of the runtime".into(),
        };
        let once = if c.once { "once, " } else { "" };
        let _ = writeln!(out, "  {once}{kind}: {}; stores {}", list(&c.roots), list(&c.stored));
    }
    for edge in clusters.ledger.edges() {
        let Some(d) = edge.last() else { continue };
        let verdict = if d.reason.accepted() { "fused" } else { "apart" };
        let (from, into) = (name(&d.producer), name(&d.consumer));
        let _ = writeln!(out, "  {verdict}: {from} -> {into}: {}", d.reason);
    }
}

fn report_plan(out: &mut String, planned: &Planned) {
    let count = |k: usize, what: &str| format!("{k} {what}{}", if k == 1 { "" } else { "s" });
    let steps = &planned.plan.steps;
    let groups = steps.iter().filter(|s| matches!(s, Step::Group(_))).count();
    let (kernels, steps) = (planned.plan.kernels.len(), steps.len());
    let all = [count(kernels, "kernel"), count(steps, "step"), count(groups, "group")];
    let _ = writeln!(out, "plan: {}", all.join(", "));
    report_steps(out, &planned.plan.steps, "  ");
}

fn report_steps(out: &mut String, steps: &[Step], indent: &str) {
    let launch = |l: &Launch| format!("launch kernel {}: {}", l.kernel.0, l.label);
    let dim = |d: &tlc_ir::IndexExpr| d.as_const().map_or("?".into(), |d| d.to_string());
    for step in steps {
        let _ = match step {
            Step::Launch(l) => writeln!(out, "{indent}{}", launch(l)),
            Step::Gemm(g) => {
                let batch: String = g.batch.iter().map(|d| format!("{} x ", dim(d))).collect();
                writeln!(
                    out,
                    "{indent}library product: {batch}{} x {} x {}",
                    dim(&g.m),
                    dim(&g.n),
                    dim(&g.k)
                )
                .and_then(|()| match &g.epilogue {
                    Some(e) => writeln!(
                        out,
                        "{indent}  epilogue, lines of {}: {}",
                        dim(&e.lines.elements),
                        launch(&e.launch)
                    )
                    .and_then(|()| match &e.product {
                        Some(p) => writeln!(out, "{indent}  then x {} x {}", dim(&p.n), dim(&p.k)),
                        None => Ok(()),
                    }),
                    None => Ok(()),
                })
            }
            Step::Group(all) | Step::Sequence(all) => {
                let s = if all.len() == 1 { "" } else { "s" };
                let what = if matches!(step, Step::Group(_)) {
                    "group"
                } else {
                    "sequence"
                };
                let _ = writeln!(out, "{indent}{what} of {} member{s}", all.len());
                all.iter()
                    .for_each(|l| out.push_str(&format!("{indent}  {}\n", launch(l))));
                Ok(())
            }
            Step::Loop(l) => {
                let trip = l.trip.as_ref().map_or("?".into(), dim);
                let _ = writeln!(out, "{indent}{} of {trip} iterations:", l.label);
                report_steps(out, &l.body.steps, &format!("{indent}  "));
                Ok(())
            }
            Step::Call(c) => writeln!(out, "{indent}call {}", c.label),
            other => writeln!(out, "{indent}{other:?}"),
        };
    }
}

fn report_memory(out: &mut String, graph: &Graph, planned: &Planned) {
    let names = names(graph);
    let _ = writeln!(out, "memory:");
    let slot = |id: tlc_ir::plan::SlotId| {
        // Slots in the arena are called after their node's id.
        let name = &planned.plan.slots[id.0 as usize].name;
        let node = graph.nodes().find(|(n, _)| n.to_string() == *name);
        node.map_or(name.clone(), |(n, _)| names[n.index()].clone())
    };
    for a in &planned.aliases {
        let _ = writeln!(out, "  {} over {}: {}", slot(a.slot), slot(a.of), a.reason);
    }
    let _ = match &planned.layout {
        Some(l) => writeln!(
            out,
            "  arena {} bytes, lower bound {}, naive {}",
            l.host().bytes,
            l.host().lower_bound_bytes,
            l.host().naive_bytes
        ),
        None => writeln!(out, "  arena packed when symbols are bound"),
    };
}

/// What the run line makes of one graph.
fn run_graph(graph: &Graph, test: &FileTest<'_>) -> Result<String, String> {
    let options = Options {
        max_memory_bytes: test.limit,
        ..Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true))))
    };
    let own = |g: &Graph| own_outputs::run(g).map_err(|e| e.to_string());
    let mut graph = graph.clone();
    let mut reports = Vec::new();
    for entry in &test.entries {
        match entry {
            Entry::Schedule => return Err("schedule is for kernels, alone in its run line".into()),
            Entry::Rewrite(pass) => {
                graph = run_pass(*pass, &graph, &options, &mut Vec::new()).map_err(|e| e.to_string())?;
            }
            Entry::OwnOutputs => graph = own(&graph)?,
            report => reports.push(*report),
        }
    }
    if reports.is_empty() {
        return Ok(graph.to_string());
    }
    let graph = own(&graph)?;
    let placement = options.placement(&graph);
    let mut clusters = cluster(&graph, &placement, &[]);
    let planned = plan(&graph, &mut clusters, &placement, &[], &[], &|_, _, _| {});
    let mut out = format!("@{}\n", graph.name);
    for report in reports {
        match report {
            Entry::Cluster => report_clusters(&mut out, &graph, &clusters),
            Entry::Plan => report_plan(&mut out, &planned),
            _ => report_memory(&mut out, &graph, &planned),
        }
    }
    Ok(out)
}

/// What directives make of a kernel, which is verified then: between some of them threads race.
fn schedule_kernel(kernel: &Kernel, directives: &[Directive]) -> Result<String, String> {
    let mut kernel = kernel.clone();
    let mut out = String::new();
    for d in directives {
        if let Err(refusal) = apply(&mut kernel, d) {
            let _ = writeln!(out, "refused: {d}: {refusal}");
        }
    }
    match verify(&kernel).errors.first() {
        Some(e) => Err(format!("{e}\n{kernel}")),
        None => Ok(out + &kernel.to_string()),
    }
}

fn run(test: &FileTest<'_>) -> Result<String, String> {
    let module = parse_module(test.source, &mut no_data).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    if test.entries == [Entry::Schedule] {
        let each = |(_, k): &(Option<String>, Kernel)| schedule_kernel(k, &test.directives);
        let all: Vec<String> = module.kernels.iter().map(each).collect::<Result<_, _>>()?;
        return match all.is_empty() {
            true => Err("no kernel".into()),
            false => Ok(all.join("\n").trim_end().to_string()),
        };
    }
    if module.graphs.is_empty() {
        return Err("no graph".into());
    }
    let each = |g| run_graph(g, test).unwrap_or_else(|e| format!("error: {e}\n"));
    let all: Vec<String> = module.graphs.iter().map(each).collect();
    Ok(all.join("\n").trim_end().to_string())
}

/// Checks one file's text. `Ok` holds the file as blessing writes it.
fn check(text: &str, bless: bool) -> Result<String, String> {
    let test = read(text)?;
    let found = run(&test)?;
    match &test.expected {
        _ if bless => {}
        None => return Err("no expectation; run with TLC_BLESS=1 and review it".into()),
        Some(expected) => {
            let (mut e, mut f) = (expected.lines(), found.lines());
            let mut line = test.source.lines().count() + 1;
            loop {
                line += 1;
                match (e.next(), f.next()) {
                    (None, None) => break,
                    (e, f) if e == f => {}
                    (e, f) => {
                        let show = |l: Option<&str>| l.map_or("the end".into(), |l| format!("`{l}`"));
                        return Err(format!("line {line}:\n  expected {}\n  found    {}", show(e), show(f)));
                    }
                }
            }
        }
    }
    let mut out = format!("{}{EXPECT}", test.source);
    for line in found.lines() {
        let _ = writeln!(out, "{}", format!("// {line}").trim_end());
    }
    Ok(out)
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let entries = std::fs::read_dir(folder).expect("the folder of filetests");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn every_file_gives_its_expected_output() {
    let bless = std::env::var("TLC_BLESS").is_ok_and(|v| v == "1");
    let mut failures = Vec::new();
    let files = files();
    assert!(!files.is_empty(), "no filetests");
    for path in &files {
        let text = std::fs::read_to_string(path).expect("a readable file");
        match check(&text, bless) {
            Ok(blessed) if bless && blessed != text => std::fs::write(path, blessed).expect("a writable file"),
            Ok(_) => {}
            Err(e) => failures.push(format!("{}: {e}", path.file_name().unwrap_or_default().display())),
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} files:\n{}",
        failures.len(),
        files.len(),
        failures.join("\n")
    );
}

#[test]
fn a_file_without_run_line_or_expectation_fails() {
    let graph = "graph @g(%x: f32[2]) {\n  return %x\n}\n";
    let refused = |text: String| check(&text, false).expect_err("the file is incomplete");
    assert!(refused(graph.into()).contains("no `// run:` line"));
    assert!(refused(format!("// run: dce\n{graph}")).contains("no expectation"));
    assert!(refused(format!("// run: dce\n{graph}{EXPECT}")).contains("no expectation"));
    assert!(refused(format!("// run: dce\n{EXPECT}// graph")).contains("no graph"));
    assert!(refused(format!("// run: decease\n{graph}")).contains("unknown pass `decease`"));
    assert!(refused(format!("// run: plan,dce\n{graph}")).contains("a pass behind a report"));
}

#[test]
fn the_first_differing_line_is_named() {
    let text = "// run: dce\ngraph @g(%x: f32[2]) {\n  return %x\n}\n// expect:\n// graph @g(%x: f32[2]) {\n//   return %y\n// }\n";
    let error = check(text, false).expect_err("the output differs");
    assert_eq!(error, "line 7:\n  expected `  return %y`\n  found    `  return %x`");
}
