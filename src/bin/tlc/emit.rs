//! `tlc emit`: the stages of the compiler, printed.

use std::fmt::Write;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tlc::Device;
use tlc_codegen::clif::EmitText;
use tlc_codegen::cuda::{
    COMPILE_FLAGS, CudaError, CudaOptions, capability, emit_launch_group, emit_sequence, identifier,
};
use tlc_ir::graph::Condition;
use tlc_ir::index::{IndexExpr, SymId};
use tlc_ir::plan::{Launch, Step, Work};
use tlc_ir::target::{EmitterId, Gpu, Multiprocessor};
use tlc_ir::text::{PrintOptions, print_plan};
use tlc_ir::{Kernel, NodeId, NodeKind, Plan};
use tlc_passes::Compiled;
use tlc_passes::cluster::{Cluster, ClusterKind};
use tlc_passes::planner::{LaunchReport, Planned};
use tlc_runtime::cpu::jit;
use tlc_runtime::cuda::arch_name;
use tlc_runtime::error::Unavailable;
use tlc_runtime::nvrtc::Nvrtc;
use tlc_runtime::target;

use crate::args::ModelArgs;
use crate::disassembler::Disassembler;
use crate::failure::{Code, Failure};
use crate::opt::graph_text;
use crate::session::{Model, Session, any_gpu, gpu_here};

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum What {
    /// The graph after all passes
    Graph,
    /// Which nodes run together
    Clusters,
    /// What was done to each loop nest, a directive a line, and why
    Schedule,
    /// Loop nests, scheduled and legalized
    Kernel,
    /// The program that the runtime executes
    Plan,
    /// The lowered form under every emitter
    Flat,
    /// Cranelift's intermediate form
    Clif,
    /// Machine code of this CPU
    Asm,
    /// CUDA C++
    Cuda,
    /// What NVRTC makes of it, for --arch
    Ptx,
    /// The GPU's instructions, for --arch, by NVIDIA's nvdisasm
    Sass,
    /// The graph for Graphviz, a box for each cluster
    Dot,
}

/// Arguments.
#[derive(Args, Debug)]
pub struct Emit {
    #[command(flatten)]
    model: ModelArgs,
    /// What to print
    #[arg(long, value_enum)]
    what: What,
    /// Only this kernel, for schedule, kernel, flat, clif, asm, cuda, ptx and sass
    #[arg(long, value_name = "N")]
    kernel: Option<usize>,
    /// The GPU architecture that is compiled for, with --device cuda or --what cuda, ptx or sass [default: that of the GPU if it is
    /// here, else sm_90a]
    #[arg(long)]
    arch: Option<String>,
}

/// What is compiled for where neither `--arch` nor a GPU says it.
const USUAL_ARCH: &str = "sm_90a";

/// A kernel as text.
pub fn kernel_text(kernel: &Kernel) -> String {
    kernel.to_string()
}

/// A plan as text, with all its constants.
fn whole_plan_text(plan: &Plan) -> String {
    let options = PrintOptions {
        inline_elements: usize::MAX,
        ..PrintOptions::default()
    };
    print_plan(plan, &options).text
}

/// A plan as text; data of large constants is only named.
pub fn plan_text(plan: &Plan) -> String {
    plan.to_string()
}

fn node_text(compiled: &Compiled, node: NodeId) -> String {
    let n = compiled.graph.node(node);
    let name = match &n.kind {
        NodeKind::Reduce { monoid, .. } => format!("reduce {}", monoid.name()),
        NodeKind::Input { name, .. } => format!("input {name}"),
        NodeKind::Const(value) => format!("const {value}"),
        kind => kind.name().to_string(),
    };
    let value = compiled.graph.value_name(node);
    format!("{value} {name} : {}", compiled.graph.type_text(&n.ty))
}

fn cluster_title(compiled: &Compiled, cluster: &Cluster) -> String {
    match &cluster.kind {
        ClusterKind::Loops(space) => format!("loops over {}", compiled.graph.shape_text(&space.parallel)),
        ClusterKind::Gemm(_) => "library matmul".into(),
        ClusterKind::Attention(a) => format!("attention, {} rows a block", a.rows),
        ClusterKind::ProductRows(p) => format!("rows of a product, tiles of {} by {}", p.tile[0], p.tile[1]),
        ClusterKind::WeightGradient(w) => format!("weight gradient, tiles of {} by {}", w.rows(), w.columns),
        ClusterKind::Scan(form) => form.text(),
        ClusterKind::Scatter(updates) => format!("copy and {}", updates.text()),
        ClusterKind::Join(parts) => format!("concatenation of {} parts in place", parts.len()),
        ClusterKind::Loop => "loop over a plan".into(),
        ClusterKind::Call => "function of the runtime".into(),
    }
}

/// Clusters with their roots and members.
pub fn clusters_text(compiled: &Compiled) -> String {
    let members = members(compiled);
    let mut out = String::new();
    for (number, cluster) in compiled.clusters.clusters.iter().enumerate() {
        // Writing to a String cannot fail.
        let once = if cluster.once { ", once per executable" } else { "" };
        let _ = writeln!(out, "cluster {number}: {}{once}", cluster_title(compiled, cluster));
        for (node, _) in compiled
            .graph
            .nodes()
            .filter(|(id, _)| members[id.index()] == Some(number))
        {
            let role = if cluster.stored.contains(&node) {
                "  (stored)"
            } else if cluster.roots.contains(&node) {
                "  (root)"
            } else {
                ""
            };
            let _ = writeln!(out, "  {}{role}", node_text(compiled, node));
        }
    }
    out
}

/// The cluster that a node is shown in: that of the first root that needs it.
fn members(compiled: &Compiled) -> Vec<Option<usize>> {
    let graph = &compiled.graph;
    let mut of: Vec<Option<usize>> = vec![None; graph.len()];
    for (number, cluster) in compiled.clusters.clusters.iter().enumerate() {
        cluster.roots.iter().for_each(|r| of[r.index()] = Some(number));
    }
    for i in (0..graph.len()).rev() {
        let Some(cluster) = of[i] else { continue };
        for o in &graph.node(NodeId(i as u32)).operands {
            if !matches!(graph.node(*o).kind, NodeKind::Input { .. }) {
                of[o.index()].get_or_insert(cluster);
            }
        }
    }
    of
}

fn quoted(text: &str) -> String {
    format!(
        "\"{}\"",
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    )
}

fn dot_text(compiled: &Compiled) -> String {
    let graph = &compiled.graph;
    let members = members(compiled);
    let mut out = format!(
        "digraph {} {{\n  node [shape=box, fontname=monospace];\n",
        quoted(&graph.name)
    );
    let node = |id: NodeId| format!("n{} [label={}];", id.0, quoted(&node_text(compiled, id)));
    // Writing to a String cannot fail.
    for (number, cluster) in compiled.clusters.clusters.iter().enumerate() {
        let title = quoted(&format!("cluster {number}: {}", cluster_title(compiled, cluster)));
        let _ = writeln!(out, "  subgraph cluster_{number} {{\n    label={title};");
        for (id, _) in graph.nodes().filter(|(id, _)| members[id.index()] == Some(number)) {
            let _ = writeln!(out, "    {}", node(id));
        }
        out += "  }\n";
    }
    for (id, _) in graph.nodes().filter(|(id, _)| members[id.index()].is_none()) {
        let _ = writeln!(out, "  {}", node(id));
    }
    for (id, n) in graph.nodes() {
        for o in &n.operands {
            let _ = writeln!(out, "  n{} -> n{};", o.0, id.0);
        }
    }
    for (i, o) in graph.outputs().iter().enumerate() {
        let _ = writeln!(
            out,
            "  out{i} [label={}, shape=ellipse];\n  n{} -> out{i};",
            quoted(&o.name),
            o.node.0
        );
    }
    out + "}\n"
}

/// The plan's guards as conditions on the symbols of a kernel, where each launch gives the kernel what they are about.
fn requirements(plan: &Plan, kernel: usize) -> Vec<Condition> {
    let steps = plan.init.iter().chain(&plan.steps);
    let launches: Vec<&Launch> = steps
        .flat_map(Step::launches)
        .filter(|l| l.kernel.0 as usize == kernel)
        .collect();
    let Some(first) = launches.first() else {
        return Vec::new();
    };
    let symbol = |s: SymId| {
        let at = first.symbols.iter().position(|e| *e == IndexExpr::from(s))?;
        let same = launches.iter().all(|l| l.symbols.get(at) == first.symbols.get(at));
        same.then(|| SymId(at as u32).into())
    };
    plan.guards.iter().filter_map(|g| g.condition.over(&symbol)).collect()
}

/// A kernel of a plan, or of the body of one of its loops.
struct Made<'c> {
    planned: &'c Planned,
    /// Its number there.
    number: usize,
}

impl Made<'_> {
    fn kernel(&self) -> &Kernel {
        &self.planned.plan.kernels[self.number]
    }

    fn emitter(&self) -> EmitterId {
        self.planned.emitters[self.number]
    }
}

/// What a plan launches.
#[derive(Default)]
struct Launched<'c> {
    /// The kernels of the plan, and behind them those of its loops' bodies.
    kernels: Vec<Made<'c>>,
    /// The launches that are one, each such list once.
    joined: Vec<Joined>,
}

impl<'c> Launched<'c> {
    fn add(&mut self, planned: &'c Planned) {
        let first = self.kernels.len();
        let plan = &planned.plan;
        self.kernels
            .extend((0..plan.kernels.len()).map(|number| Made { planned, number }));
        for step in plan.init.iter().chain(&plan.steps) {
            let in_turn = matches!(step, Step::Sequence(_));
            let all = step.launches();
            let on_gpu = all.iter().any(|l| matches!(l.work, Work::Grid(_)));
            let beside = on_gpu && matches!(step, Step::Group(_));
            if !in_turn && !beside {
                continue;
            }
            let order = all.iter().map(|l| first + l.kernel.0 as usize).collect();
            let joined = Joined { in_turn, order };
            if !self.joined.contains(&joined) {
                self.joined.push(joined);
            }
        }
        for body in &planned.bodies {
            self.add(&body.planned);
        }
    }
}

/// Launches that are one.
#[derive(Clone, PartialEq, Eq)]
struct Joined {
    /// Whether one block does them in turn; else each has its blocks in one grid.
    in_turn: bool,
    /// Their kernels, by their places among all.
    order: Vec<usize>,
}

/// What a text is of.
enum Of {
    /// All that was compiled.
    All,
    /// The kernel of that number.
    Kernel(usize),
    /// Launches that are one.
    Joined(Joined),
}

impl Of {
    /// What stands in front of its text, among others.
    fn heading(&self) -> Option<String> {
        match self {
            Of::All => None,
            Of::Kernel(number) => Some(format!("kernel {number}")),
            Of::Joined(Joined { in_turn, order }) => {
                let each: Vec<String> = distinct(order).iter().map(usize::to_string).collect();
                let (count, each) = (order.len(), each.join(", "));
                Some(match in_turn {
                    true => format!("one launch that does {count} in turn, of kernels {each}"),
                    false => format!("one launch with the blocks of {count}, of kernels {each}"),
                })
            }
        }
    }

    fn json(&self, text: &str) -> Value {
        match self {
            Of::All => json!({ "kernel": null, "text": text }),
            Of::Kernel(number) => json!({ "kernel": number, "text": text }),
            Of::Joined(Joined { in_turn, order }) => {
                let how = if *in_turn { "sequence" } else { "group" };
                json!({ "kernel": null, (how): order, "text": text })
            }
        }
    }
}

/// Each number of a list once, as they first appear.
fn distinct(order: &[usize]) -> Vec<usize> {
    let mut each = Vec::new();
    for &number in order {
        if !each.contains(&number) {
            each.push(number);
        }
    }
    each
}

/// Texts of the asked kernels with a heading each.
fn chosen<T>(
    all: &[T],
    only: Option<usize>,
    file: &str,
    text: impl Fn(usize, &T) -> Result<String, Failure>,
) -> Result<Vec<(Of, String)>, Failure> {
    if let Some(n) = only
        && n >= all.len()
    {
        let expected = if all.is_empty() {
            "none: the plan has no kernels".into()
        } else {
            format!("0 to {}", all.len() - 1)
        };
        return Err(Failure::at(
            Code::Usage,
            file,
            format!("no kernel {n}; expected {expected}"),
        ));
    }
    let picked = all.iter().enumerate().filter(|(i, _)| only.is_none_or(|n| n == *i));
    picked.map(|(i, k)| Ok((Of::Kernel(i), text(i, k)?))).collect()
}

/// Runs the command.
pub fn run(session: &Session, args: &Emit) -> Result<(), Failure> {
    let model = session.model(&args.model)?;
    let device = session.global.device.unwrap_or(match args.what {
        What::Cuda | What::Ptx | What::Sass => Device::cuda(0),
        _ => Device::cpu(),
    });
    // No GPU is needed to print what is decided for one.
    let for_gpu = device != Device::Cpu;
    let of_cpu = matches!(args.what, What::Clif | What::Asm);
    let of_gpu = matches!(args.what, What::Cuda | What::Ptx | What::Sass);
    if of_cpu && for_gpu || of_gpu && !for_gpu {
        return Err(Failure::new(
            Code::Usage,
            "--device does not go with this --what; clif and asm are of the cpu, cuda, ptx and sass are of cuda",
        ));
    }
    let gpu = for_gpu.then(|| gpu_of(device, args.arch.as_deref()));
    // The executable lives as long as its decisions are looked at.
    let (executable, planned);
    let compiled = match &gpu {
        None => {
            executable = session.compile(&model)?;
            executable.decisions()
        }
        Some((gpu, _)) => {
            planned = session.plan_for(&model, session.devices([gpu.clone()])?)?;
            &planned
        }
    };
    let mut launched = Launched::default();
    launched.add(&compiled.planned);
    let kernels = &launched.kernels[..];
    let arch = gpu.as_ref().map_or(USUAL_ARCH, |(_, arch)| arch.as_str());
    let whole = |text: String| -> Vec<(Of, String)> { vec![(Of::All, text)] };
    let one = args.kernel;
    let per_kernel = matches!(
        args.what,
        What::Schedule | What::Kernel | What::Flat | What::Clif | What::Asm | What::Cuda | What::Ptx | What::Sass
    );
    if one.is_some() && !per_kernel {
        return Err(Failure::new(
            Code::Usage,
            "--kernel does not go with this --what; expected schedule, kernel, flat, clif, asm, cuda, ptx or sass",
        ));
    }
    let texts = match args.what {
        What::Graph => whole(graph_text(&compiled.graph)),
        What::Clusters => whole(clusters_text(compiled)),
        What::Plan => whole(whole_plan_text(&compiled.planned.plan)),
        What::Dot => whole(dot_text(compiled)),
        What::Schedule => chosen(kernels, one, &model.file, |_, k| {
            let of = |l: &&LaunchReport| l.kernel.0 as usize == k.number;
            let report = k.planned.launches.iter().find(of);
            Ok(report.map_or_else(String::new, |l| l.schedule.to_string()))
        })?,
        What::Kernel => chosen(kernels, one, &model.file, |_, k| {
            let requires = requirements(&k.planned.plan, k.number);
            Ok(kernel_text(&Kernel {
                requires,
                ..k.kernel().clone()
            }))
        })?,
        What::Flat => chosen(kernels, one, &model.file, |i, k| flat_text(&model, device, arch, i, k))?,
        What::Clif | What::Asm => {
            let failed = |e: jit::JitError| Failure::build(&model.file, &e.into());
            let options = jit::JitOptions {
                text: EmitText {
                    listing: true,
                    disasm: true,
                },
                ..jit::JitOptions::default()
            };
            chosen(kernels, one, &model.file, |_, k| {
                let compiled = jit::compile_by(&[(k.kernel(), k.emitter())], &options).map_err(failed)?;
                let text = compiled
                    .into_iter()
                    .next()
                    .and_then(|c| if args.what == What::Clif { c.listing } else { c.disasm });
                let none = || "; no CLIF: another emitter makes this kernel, as TLC_CPU=sse prevents".into();
                Ok(text.map_or_else(none, |t| t.to_string()))
            })?
        }
        What::Cuda => cuda(&model, &launched, one, arch)?,
        What::Ptx | What::Sass => built(&model, cuda(&model, &launched, one, arch)?, arch, args.what)?,
    };
    if session.console.json() {
        let all: Vec<Value> = texts.iter().map(|(of, text)| of.json(text)).collect();
        let what = args.what.to_possible_value().map(|v| v.get_name().to_string());
        return session.console.json_result(&json!({ "what": what, "texts": all }));
    }
    let comment = if args.what == What::Clif || args.what == What::Asm {
        ";"
    } else {
        "//"
    };
    let mut out = String::new();
    for (i, (of, text)) in texts.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if let (Some(heading), None) = (of.heading(), one) {
            out += &format!("{comment} {heading}\n");
        }
        out += text.trim_end_matches('\n');
        out.push('\n');
    }
    session.console.result(&out)
}

/// What NVRTC makes of kernels: PTX, or machine code, disassembled.
fn built(model: &Model, texts: Vec<(Of, String)>, arch: &str, what: What) -> Result<Vec<(Of, String)>, Failure> {
    let nvrtc = Nvrtc::load().map_err(|e| {
        let missing = Unavailable::Compiler { message: e.to_string() };
        Failure::new(Code::Unsupported, missing.to_string())
    })?;
    let virtual_arch = arch.replace("sm_", "compute_");
    let disassembler = Disassembler::find(&nvrtc);
    let compiled = texts.into_iter().map(|(of, text)| {
        let refused = |e| {
            let message = format!("{}: {e}", of.heading().unwrap_or_default());
            Failure::at(Code::Unsupported, &model.file, message)
        };
        let made = match what {
            What::Sass => {
                let cubin = nvrtc.compile(&text, "tlc.cu", arch, &COMPILE_FLAGS).map_err(refused)?;
                disassembler.disassemble(&cubin.bytes)?
            }
            _ => nvrtc
                .compile_to_ptx(&text, "tlc.cu", &virtual_arch, &COMPILE_FLAGS)
                .map_err(refused)?,
        };
        Ok((of, made))
    });
    compiled.collect()
}

/// A kernel as its emitter takes it.
fn flat_text(model: &Model, device: Device, arch: &str, number: usize, made: &Made<'_>) -> Result<String, Failure> {
    let placed;
    let flat = match device {
        Device::Cpu => {
            let failed = |e: jit::JitError| Failure::build(&model.file, &e.into());
            jit::flatten(made.kernel(), made.emitter()).map_err(failed)?
        }
        Device::Cuda(_) => {
            placed = tlc_codegen::cuda::with_fragments_placed(made.kernel());
            tlc_codegen::cuda::flatten(&placed, arch)
        }
    };
    match flat {
        Ok(flat) => Ok(flat.to_string()),
        Err(e) => {
            let message = format!("kernel {number}: {e}");
            Err(Failure::at(Code::Bug, &model.file, message))
        }
    }
}

/// The GPU that is compiled for, and its architecture: one of the architecture that is asked for, which need not be here; else the device, if it
/// is; else a usual one. An architecture that is not known is refused where its text is made.
fn gpu_of(device: Device, arch: Option<&str>) -> (Gpu, String) {
    let here = arch.is_none().then(|| gpu_here(device)).flatten();
    if let Some(properties) = here {
        return (target::gpu(&properties), arch_name(properties.capability));
    }
    let arch = arch.unwrap_or(USUAL_ARCH);
    let any = any_gpu();
    let gpu = Gpu {
        opt_in_shared_bytes: capability(arch).map_or(any.opt_in_shared_bytes, Gpu::opt_in_of),
        multiprocessor: capability(arch).map_or(any.multiprocessor, Multiprocessor::of),
        emitter: Arc::new(tlc_codegen::cuda::emitter_for(arch)),
        ..any
    };
    (gpu, arch.to_string())
}

/// What a graph launches on a GPU as CUDA C++: its kernels, each once, and behind them those that are one launch.
fn cuda(model: &Model, launched: &Launched<'_>, one: Option<usize>, arch: &str) -> Result<Vec<(Of, String)>, Failure> {
    let options = |may_alias| CudaOptions {
        arch: arch.into(),
        may_alias,
    };
    let failed = |what: &str, e: CudaError| {
        let code = match e {
            CudaError::Arch(_) => Code::Usage,
            // The kernel was made for the emitter's table.
            CudaError::Kernel(_) => Code::Bug,
            _ => Code::Unsupported,
        };
        Failure::at(code, &model.file, format!("{what}: {e}"))
    };
    let kernels = &launched.kernels;
    let mut texts = chosen(kernels, one, &model.file, |i, k| {
        let name = identifier(&format!("{}_{i}", model.graph.name));
        let made = tlc_codegen::cuda::emit(k.kernel(), &name, &options(false));
        made.map(|c| c.source).map_err(|e| failed(&format!("kernel {i}"), e))
    })?;
    if one.is_some() {
        return Ok(texts);
    }
    for (number, joined) in launched.joined.iter().enumerate() {
        let order = &joined.order;
        let each = distinct(order);
        let bodies: Vec<&Kernel> = each.iter().map(|&k| kernels[k].kernel()).collect();
        let places: Vec<usize> = order.iter().filter_map(|k| each.iter().position(|e| e == k)).collect();
        let how = if joined.in_turn { "in_turn" } else { "beside" };
        let name = identifier(&format!("{}_{how}_{number}", model.graph.name));
        let of = Of::Joined(joined.clone());
        let made = match joined.in_turn {
            true => emit_sequence(&bodies, &places, &name, &options(true)),
            false => emit_launch_group(&bodies, &vec![false; bodies.len()], &places, &name, &options(true)),
        };
        let made = made.map_err(|e| failed(&of.heading().unwrap_or_default(), e))?;
        texts.push((of, made.source));
    }
    Ok(texts)
}
