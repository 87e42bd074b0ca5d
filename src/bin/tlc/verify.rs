//! `tlc verify` and `tlc reduce`: is what was compiled right, and if not, which decision is wrong and which small graph shows
//! it. The work is done by [`tlc::verify`], in a process of its own (see `isolated.rs`): this one reports what crashes there.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tlc::explain::counted;
use tlc::verify::gradients::gradients;
use tlc::verify::guilty::graph_text;
use tlc::verify::{self, Budget, Case, Finding, GradientError, Guilty, Report, VerifyError};
use tlc::{CompileOptions, HostTensor};
use tlc_formats::npy;
use tlc_ir::NodeKind;
use tlc_ir::interp::InterpError;

use crate::args::ModelArgs;
use crate::bench::seconds;
use crate::data::{InputSpec, Source, declared, file_names, input_spec, inputs};
use crate::failure::{Code, Failure};
use crate::grad::{bounded, expected_of};
use crate::isolated::{self, End, Scratch, Told};
use crate::onnx::Purpose;
use crate::session::{Model, Session, display, is_stdin};
use crate::staging::write_file;

/// Arguments of `tlc verify`.
#[derive(Args, Debug)]
pub struct Verify {
    #[command(flatten)]
    what: What,
    /// Where to write the smallest graph that fails [default: NAME.reduced.tlir in the current directory]
    #[arg(long, short = 'o', value_name = "FILE.tlir")]
    output: Option<PathBuf>,
    /// Compare derivatives by all inputs and constants with finite differences in f64, instead of the compiled model with its meaning
    #[arg(long)]
    grad: bool,
    /// With --grad, the most iterations of a loop that a condition or an input ends, as for `tlc grad`
    #[arg(long, value_name = "N", requires = "grad", value_parser = clap::value_parser!(u32).range(1..))]
    max_iterations: Option<u32>,
    /// Only say what is wrong: no search for the wrong decision or a smaller graph
    #[arg(long)]
    no_reduce: bool,
}

/// Arguments of `tlc reduce`.
#[derive(Args, Debug)]
pub struct Reduce {
    #[command(flatten)]
    what: What,
    /// Where to write the graph [default: standard output]
    #[arg(long, short = 'o', value_name = "FILE.tlir")]
    output: Option<PathBuf>,
}

/// A model on data.
#[derive(Args, Debug)]
struct What {
    #[command(flatten)]
    model: ModelArgs,
    /// An input, as in x=x.npy or x=all.npz:KEY, or made up: x=zeros, x=ones [default: random]
    #[arg(long = "input", short = 'i', value_name = "NAME=SOURCE", value_parser = input_spec)]
    inputs: Vec<InputSpec>,
    /// The graph passes to compile with, comma-separated [default: the compiler's pipeline]
    #[arg(long, value_name = "P")]
    passes: Option<String>,
    /// How long to search for a smaller graph, in seconds
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    time: f64,
}

/// What is verified, and how.
struct Prepared {
    model: Model,
    case: Case,
    options: CompileOptions,
    report: Report,
    /// Where cases must run if they crash.
    apart: Option<Apart>,
}

/// What is reported while decisions and smaller graphs are tried.
const SEARCH: &str = "the search";

/// How the process of its own ended.
enum Watched {
    /// There is none, or this is it.
    Here,
    /// All was right.
    Done,
    /// The model crashes.
    Crashed(Box<Prepared>),
    /// The model crashes, and it cannot be read again.
    Unsearched(Finding),
    /// The model does not crash, but something smaller or something of it does.
    SearchCrashed {
        arguments: Vec<OsString>,
        input: Option<Vec<u8>>,
        scratch: Scratch,
        signal: &'static str,
    },
}

/// Runs cases in a process of their own.
struct Apart {
    scratch: Scratch,
    /// Where the last one crashed.
    last: RefCell<String>,
}

impl Apart {
    /// Whether a case crashes.
    fn crashes(&self, case: &Case, options: &CompileOptions) -> bool {
        match self.end(case, options) {
            Ok(End::Crashed { place, .. }) => {
                self.last.replace(place);
                true
            }
            // What cannot be tried is not known to crash.
            _ => false,
        }
    }

    fn end(&self, case: &Case, options: &CompileOptions) -> io::Result<End> {
        let failed = |e: tlc_formats::FormatError| io::Error::other(e.to_string());
        let text = self.scratch.path("case.tlir");
        let printed = tlc::tlir::print(&case.graph);
        std::fs::write(&text, &printed.text)?;
        if !printed.externals.is_empty() {
            let mut file = io::BufWriter::new(std::fs::File::create(tlc::tlir::weights_path(&text))?);
            tlc::tlir::write_weights(&printed, &mut file).map_err(failed)?;
            io::Write::flush(&mut file)?;
        }
        let mut arguments: Vec<OsString> = vec!["verify".into(), text.into(), "--no-reduce".into()];
        for (i, ((name, _), tensor)) in declared(&case.graph).iter().zip(&case.inputs).enumerate() {
            let path = self.scratch.path(&format!("{i}.npy"));
            std::fs::write(&path, npy_bytes(tensor))?;
            let mut argument = OsString::from(format!("--input={name}="));
            argument.push(path);
            arguments.push(argument);
        }
        if let Some(tuned) = &options.tuned {
            let path = self.scratch.path("tuned.json");
            std::fs::write(&path, tuned.to_json())?;
            let mut argument = OsString::from("--tuned=");
            argument.push(path);
            arguments.push(argument);
        }
        let numbers = [
            ("--threads", options.threads.map(|n| n as u64)),
            ("--max-memory", options.max_memory_bytes),
        ];
        for (option, number) in numbers {
            arguments.extend(number.map(|n| format!("{option}={n}").into()));
        }
        arguments.push(format!("--device={}", options.device).into());
        arguments.extend(options.beside.iter().map(|d| format!("--beside={d}").into()));
        arguments.push(format!("--precision={}", options.precision).into());
        arguments.push(format!("--products={}", options.products).into());
        arguments.extend(options.passes.iter().map(|p| format!("--passes={p}").into()));
        isolated::run(&self.scratch, &arguments, None, true)
    }
}

impl What {
    fn load(&self, session: &Session, purpose: Purpose) -> Result<(Model, Case, CompileOptions), Failure> {
        let mut options = session.compile_options()?;
        if let Some(names) = &self.passes {
            let parsed: Result<tlc_passes::pipeline::Pipeline, _> = names.parse();
            parsed.map_err(|e: tlc_passes::PassError| Failure::new(Code::Usage, e.to_string()))?;
            options.passes = Some(names.clone());
        }
        options.max_memory_bytes = Some(session.memory_limit());
        let model = session.imported_model(&self.model, &self.inputs, purpose)?;
        let tensors = inputs(session, &model.file, &model.graph, &self.inputs, Some(Source::Random))?;
        let case = Case {
            graph: model.graph.clone(),
            inputs: tensors,
            symbols: vec![],
        };
        Ok((model, case, options))
    }

    fn prepare(&self, session: &Session) -> Result<Prepared, Failure> {
        let (model, case, options) = self.load(session, Purpose::Values)?;
        let told = Told::of_this_process();
        let mut tell = |place: &str| told.iter().for_each(|t| t.tell(place));
        let report = verify::verify_telling(&case, &options, &mut tell);
        let report = report.map_err(|e| interpreter(&model.file, &e))?;
        tell(SEARCH);
        Ok(Prepared {
            model,
            case,
            options,
            report,
            apart: None,
        })
    }

    /// Has a process of its own do what the command line says.
    fn watched(&self, session: &Session) -> Result<Watched, Failure> {
        let failed = |e: io::Error| {
            let code = match e.kind() {
                io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock | io::ErrorKind::StorageFull => Code::Limit,
                _ => Code::Bug,
            };
            Failure::new(code, format!("a process of its own could not be run: {e}"))
        };
        // That process makes no folder of its own: it may be killed at any time, and then nobody would remove it.
        if Told::of_this_process().is_some() {
            return Ok(Watched::Here);
        }
        // Where there is no room for its files, the work is done here.
        let Ok(scratch) = Scratch::new() else {
            return Ok(Watched::Here);
        };
        let (arguments, input) = isolated::own_arguments().map_err(failed)?;
        let end = isolated::run(&scratch, &arguments, input.as_deref(), false).map_err(failed)?;
        if let Some(outcome) = end.outcome() {
            return outcome.map(|()| Watched::Done);
        }
        let End::Crashed { signal, place } = end else {
            return Ok(Watched::Done);
        };
        if place == SEARCH {
            return Ok(Watched::SearchCrashed {
                arguments,
                input,
                scratch,
                signal,
            });
        }
        let first = Finding::Crashed(format!("{signal} in {place}"));
        if input.is_some() {
            return Ok(Watched::Unsearched(first));
        }
        let (model, case, options) = self.load(session, Purpose::Values)?;
        Ok(Watched::Crashed(Box::new(Prepared {
            model,
            case,
            options,
            report: Report {
                findings: vec![first],
                ..Report::default()
            },
            apart: Some(Apart {
                scratch,
                last: RefCell::default(),
            }),
        })))
    }

    fn budget(&self) -> Budget {
        Budget {
            time: Duration::from_secs_f64(self.time),
            ..Budget::default()
        }
    }
}

fn interpreter(file: &str, error: &VerifyError) -> Failure {
    let code = match error {
        VerifyError::Device(e) => return Failure::run(file, e),
        VerifyError::Interpreter(InterpError::Memory { .. } | InterpError::Tensor { .. }) => Code::Limit,
        _ => Code::Invalid,
    };
    Failure::at(code, file, error.to_string())
}

/// The smallest case that was found to fail as the first one does.
struct Smallest {
    case: Case,
    /// Whether random inputs of the session's seed show it, so that the graph is all there is to keep.
    made_up: bool,
    guilty: Option<Guilty>,
}

impl Prepared {
    fn smallest(&self, session: &Session, first: &Finding, budget: Budget) -> Smallest {
        let mut fails = |case: &Case| match &self.apart {
            Some(apart) => apart.crashes(case, &self.options),
            None => {
                let report = verify::verify(case, &self.options);
                report.is_ok_and(|r| r.findings.first().is_some_and(|f| f.is_like(first)))
            }
        };
        let case = verify::reduce(&self.case, budget, &mut fails);
        let made_up = verify::reduce::with_random_inputs(&case, session.global.seed);
        let (mut case, made_up) = match made_up.filter(|c| fails(c)) {
            Some(made_up) => (made_up, true),
            None => (case, false),
        };
        // It is written to a file of its own, whose numbers reports use.
        case.graph.forget_names();
        let guilty = match &self.apart {
            // Once more, to know where that one crashes.
            Some(apart) if apart.crashes(&case, &self.options) => {
                let place = apart.last.borrow();
                verify::guilty::find_crash(&case, &self.options, &place, &first.to_string())
            }
            Some(_) => None,
            None => verify::guilty::find(&case, &self.options),
        };
        Smallest { case, made_up, guilty }
    }
}

/// Writes the graph, and its inputs beside it where they matter. Returns the files of the inputs.
fn write(smallest: &Smallest, path: &Path, text: &str) -> Result<Vec<(String, PathBuf)>, Failure> {
    write_file(path, text.as_bytes())?;
    if smallest.made_up {
        return Ok(vec![]);
    }
    let all = declared(&smallest.case.graph);
    let files = file_names(all.iter().map(|(name, _)| *name));
    let mut out = Vec::new();
    for (((name, _), file), tensor) in all.iter().zip(files).zip(&smallest.case.inputs) {
        let path = path.with_extension(file);
        write_file(&path, &npy_bytes(tensor))?;
        out.push((name.to_string(), path));
    }
    Ok(out)
}

fn npy_bytes(tensor: &HostTensor) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = npy::write(tensor, &mut bytes);
    bytes
}

/// The text of a reduced graph, with what is wrong with it in front.
fn annotated(smallest: &Smallest, first: &Finding) -> String {
    let mut out = String::new();
    let mut comment = |text: &str| {
        for line in text.lines() {
            out += &format!("// {line}\n");
        }
    };
    // What a panic says may go on for pages, with the graph that this one was reduced from.
    let first = first.to_string();
    comment(&format!("wrong: {}", first.lines().next().unwrap_or_default()));
    if let Some(guilty) = &smallest.guilty {
        comment(&format!("guilty: {guilty}"));
    }
    out + &graph_text(&smallest.case.graph)
}

fn finding_json(finding: &Finding) -> Value {
    let kind = match finding {
        Finding::Refused(_) => "refused",
        Finding::Panicked(_) => "panicked",
        Finding::Crashed(_) => "crashed",
        Finding::Plan(_) => "plan",
        Finding::Value(..) => "value",
        Finding::Overwritten(..) => "overwritten",
        Finding::Meaning(..) => "meaning",
        Finding::Output(..) => "output",
        Finding::Again(_) => "again",
        Finding::Threads(_) => "threads",
        Finding::Donation { .. } => "donation",
    };
    json!({ "kind": kind, "message": finding.to_string() })
}

fn guilty_json(guilty: &Guilty) -> Value {
    json!({
        "stage": guilty.stage.to_string(),
        "decision": guilty.decision,
        "reason": guilty.reason,
        "effect": guilty.effect,
    })
}

fn report_json(report: &Report) -> Value {
    json!({
        "right": report.is_right(),
        "steps": report.steps,
        "values": report.values,
        "elements": report.elements,
        "uncertain": report.uncertain,
        "regrouped": report.regrouped,
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
    })
}

fn right_text(report: &Report) -> String {
    let mut text = format!(
        "right: {}, {}, {} within their bounds",
        counted(report.steps, "step"),
        counted(report.values, "value"),
        counted(report.elements as usize, "element"),
    );
    if report.uncertain > 0 {
        text += &format!(", {} of them uncertain", report.uncertain);
    }
    if report.regrouped {
        text += "; contractions in another order differ where infinities, NaN or empty sums meet, as they may";
    }
    text + "\n"
}

/// Directions that derivatives are compared along.
const DIRECTIONS: usize = 4;

/// Compares derivatives with differences. The interpreter does it all, so nothing can crash.
fn derivatives(session: &Session, what: &What, max_iterations: Option<u32>) -> Result<(), Failure> {
    let (model, mut case, _) = what.load(session, Purpose::Derivatives)?;
    case.graph = bounded(&model, max_iterations)?.into_owned();
    let found = gradients(&case, DIRECTIONS, session.global.seed).map_err(|e| match e {
        GradientError::Interpreter(e) => interpreter(&model.file, &VerifyError::Interpreter(e)),
        GradientError::Refused(problem) => {
            let expected = expected_of(&problem).map_or(String::new(), |expected| format!("; expected {expected}"));
            Failure::at(Code::Unsupported, &model.file, problem + &expected)
        }
        other => Failure::at(Code::Invalid, &model.file, other.to_string()),
    })?;
    let wrong = found.wrong.as_ref();
    let value = json!({
        "right": wrong.is_none(),
        "of": found.of,
        "by": found.by,
        "left": found.left,
        "directions": found.right,
        "open": found.open,
        "wrong": wrong.map(|w| json!({ "forward": w.forward, "found": w.found, "expected": w.expected, "rule": w.rule })),
        "region": found.region,
    });
    if let Some(wrong) = wrong {
        let rule = wrong
            .rule
            .as_ref()
            .map_or(String::new(), |r| format!("; the first wrong rule is that of {r}"));
        let message = format!(
            "the derivatives are wrong: {} along a direction{}, {} by differences{rule}",
            wrong.found,
            if wrong.forward { " in forward mode" } else { "" },
            wrong.expected
        );
        return Err(Failure::at(Code::Failed, &model.file, message).with_result(value));
    }
    if session.console.json() {
        return session.console.json_result(&value);
    }
    let mut text = format!(
        "right: derivatives of {} by {} along {}",
        counted(found.of, "output"),
        counted(found.by, "tensor"),
        counted(found.right, "direction"),
    );
    if found.open > 0 {
        text += &format!("; {} more end at a corner and say nothing", found.open);
    }
    if found.left > 0 {
        text += &format!("; {} in regions stayed as they are", counted(found.left, "constant"));
    }
    if let Some(region) = &found.region {
        text += &format!("; without the derivatives that regions have of their own: that of {region} is another");
    }
    session.console.result(&(text + "\n"))
}

/// Runs `tlc verify`.
pub fn run(session: &Session, args: &Verify) -> Result<(), Failure> {
    if args.grad {
        return derivatives(session, &args.what, args.max_iterations);
    }
    let prepared = match args.what.watched(session)? {
        Watched::Done => return Ok(()),
        Watched::Here => args.what.prepare(session)?,
        Watched::Crashed(prepared) => *prepared,
        Watched::Unsearched(finding) => {
            let file = display(&args.what.model.model);
            let report = Report {
                findings: vec![finding.clone()],
                ..Report::default()
            };
            return wrong(session, &file, &finding, &wrong_text(&finding), &report_json(&report));
        }
        Watched::SearchCrashed {
            mut arguments,
            input,
            scratch,
            signal,
        } => {
            let note = format!("note: the search for the wrong decision and a smaller graph crashed ({signal})");
            session.console.note(&note);
            let options_end = arguments.iter().position(|a| a == "--").unwrap_or(arguments.len());
            arguments.insert(options_end, "--no-reduce".into());
            let end = isolated::run(&scratch, &arguments, input.as_deref(), false);
            let outcome = end.ok().and_then(|e| e.outcome());
            return outcome.unwrap_or_else(|| Err(Failure::new(Code::Bug, "it crashes now and then")));
        }
    };
    let report = &prepared.report;
    let file = &prepared.model.file;
    let mut value = report_json(report);
    let Some(first) = report.findings.first() else {
        return match session.console.json() {
            true => session.console.json_result(&value),
            false => session.console.result(&right_text(report)),
        };
    };
    let mut text = wrong_text(first);
    if report.findings.len() > 1 {
        text += &format!("  and {} more\n", counted(report.findings.len() - 1, "finding"));
    }
    if !args.no_reduce {
        let smallest = prepared.smallest(session, first, args.what.budget());
        let path = args
            .output
            .clone()
            .unwrap_or_else(|| default_output(&args.what.model.model));
        let files = write(&smallest, &path, &annotated(&smallest, first))?;
        if let Some(guilty) = &smallest.guilty {
            text += &format!("guilty: {guilty}\n  {}\n", guilty.effect);
            value["guilty"] = guilty_json(guilty);
        }
        let nodes = operations(&smallest.case);
        let given: Vec<String> = files
            .iter()
            .map(|(name, file)| format!(" --input '{name}={}'", file.display()))
            .collect();
        text += &format!(
            "smallest: {}, in {}; tlc verify {}{}\n",
            counted(nodes, "operation"),
            path.display(),
            path.display(),
            given.concat()
        );
        let files: Vec<Value> = files.iter().map(|(n, f)| json!({ "input": n, "file": f })).collect();
        value["reduced"] = json!({ "file": path, "operations": nodes, "inputs": files });
    }
    wrong(session, file, first, &text, &value)
}

fn wrong_text(first: &Finding) -> String {
    format!("wrong: {first}\n")
}

/// Reports what is wrong.
fn wrong(session: &Session, file: &str, first: &Finding, text: &str, value: &Value) -> Result<(), Failure> {
    if !session.console.json() {
        session.console.result(text)?;
    }
    let message = format!("the compiled graph is wrong: {first}");
    Err(Failure::at(Code::Failed, file, message).with_result(value.clone()))
}

fn operations(case: &Case) -> usize {
    let leaf = |k: &NodeKind| matches!(k, NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Data(_));
    case.graph.nodes().filter(|(_, n)| !leaf(&n.kind)).count()
}

fn default_output(model: &Path) -> PathBuf {
    let stem = match is_stdin(model) {
        true => None,
        false => model.file_stem(),
    };
    let mut name = stem.map_or_else(|| "graph".into(), |s| s.to_os_string());
    name.push(".reduced.tlir");
    name.into()
}

/// Runs `tlc reduce`.
pub fn reduce(session: &Session, args: &Reduce) -> Result<(), Failure> {
    let file = || display(&args.what.model.model);
    let prepared = match args.what.watched(session)? {
        Watched::Done => return Ok(()),
        Watched::Here => args.what.prepare(session)?,
        Watched::Crashed(prepared) => *prepared,
        Watched::Unsearched(finding) => {
            let message = format!("{finding}; expected a file, which can be read again, for a smaller graph of it");
            return Err(Failure::at(Code::Failed, &file(), message));
        }
        Watched::SearchCrashed { signal, .. } => {
            let message = format!("the search for a smaller graph crashed ({signal}); `tlc verify` says what is wrong");
            return Err(Failure::at(Code::Failed, &file(), message));
        }
    };
    let Some(first) = prepared.report.findings.first() else {
        let message = "nothing is wrong with it, so that there is nothing to reduce; expected a model that `tlc verify` finds wrong";
        return Err(Failure::at(Code::Failed, &prepared.model.file, message));
    };
    let smallest = prepared.smallest(session, first, args.what.budget());
    let text = annotated(&smallest, first);
    let files = match &args.output {
        Some(path) => write(&smallest, path, &text)?,
        None => vec![],
    };
    if session.console.json() {
        let files: Vec<Value> = files.iter().map(|(n, f)| json!({ "input": n, "file": f })).collect();
        return session.console.json_result(&json!({
            "finding": finding_json(first),
            "guilty": smallest.guilty.as_ref().map(guilty_json),
            "operations": operations(&smallest.case),
            "random_inputs": smallest.made_up,
            "graph": text,
            "inputs": files,
        }));
    }
    if args.output.is_none() {
        if !smallest.made_up {
            session
                .console
                .note("note: random inputs do not show it; --output FILE.tlir writes its inputs beside it");
        }
        return session.console.result(&text);
    }
    Ok(())
}
