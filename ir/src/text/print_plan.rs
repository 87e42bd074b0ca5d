//! The text form of plans: tables first, then the steps, one a line, then the kernels.
//!
//! ```text
//! plan @f where n in 1..=4096 {
//!   input x: f32[n] = $0
//!   output y: f32[n] = $1
//!   $0: f32[n] input 0 "x"
//!   $1: f32[n] output 0 "y"
//!   steps {
//!     launch kernel 0($0, $1) symbols [n] grain 1024 bytes 8*n flops n "neg"
//!   }
//!   kernel 0(p0: f32[s0] read, p1: f32[s0] write) where s0 in 1..=4096 {
//!     …
//!   }
//! }
//! ```
//!
//! A plan for more than the host alone names its devices and queues first, a slot that is not on the host says `on 1`, and a step that
//! is not the host's its queue and what it waits for:
//!
//! ```text
//!   device 1 gpu
//!   queue 1 on 1
//!   $2: f32[n] arena on 1 "z"
//!   steps {
//!     in 1 after [0, 3] copy $0 to $2
//!   }
//! ```
//!
//! Invariants: slots, kernels and constants print with their numbers, sizes with the symbols' names; names that are no
//! words print in quotes. The text determines the plan, but for the data of large constants, which it only names.

use std::fmt::{self, Write as _};

use crate::graph::{Condition, HostFunction};
use crate::index::{IndexExpr, SymId};
use crate::plan::{
    DeviceId, Gemm, GemmOperand, Launch, Plan, QueueId, Repeat, SlotId, Step, Storage, StridedDim, Strides, Turn,
    WindowedAxis, Work,
};
use crate::text::lexer::{quote, sigil_name, word_name};
use crate::text::{PrintOptions, Printed};

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.0)
    }
}

impl fmt::Display for Turn {
    /// The queue of a step and what it waits for, before the step; nothing for one that is simply the host's next.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.queue != QueueId::HOST {
            write!(f, "in {} ", self.queue.0)?;
        }
        if !self.waits.is_empty() {
            let waits: Vec<String> = self.waits.iter().map(u32::to_string).collect();
            write!(f, "after [{}] ", waits.join(", "))?;
        }
        Ok(())
    }
}

impl Plan {
    /// An extent with the names of the plan's symbols.
    pub(crate) fn dim(&self, e: &IndexExpr) -> String {
        let name = |s: SymId| {
            let known = self.symbols.get(s.0 as usize);
            known.map_or_else(|| format!("s{}", s.0), |s| word_name(&s.name))
        };
        e.display(&name).to_string()
    }

    fn dims(&self, all: &[IndexExpr]) -> String {
        let all: Vec<String> = all.iter().map(|e| self.dim(e)).collect();
        format!("[{}]", all.join(", "))
    }

    fn storage(&self, storage: &Storage) -> String {
        match storage {
            Storage::Input(k) => format!("input {k}"),
            Storage::Output(k) => format!("output {k}"),
            Storage::Constant(k) => format!("constant {k}"),
            Storage::State(k) => format!("state {k}"),
            Storage::Persistent => "persistent".into(),
            Storage::Arena => "arena".into(),
            Storage::Alias(of) => format!("alias {of}"),
            Storage::Part { of, at } => format!("part {of} at {}", self.dim(at)),
            Storage::Lines => "lines".into(),
        }
    }

    fn launch(&self, l: &Launch) -> String {
        let args: Vec<String> = l.args.iter().map(SlotId::to_string).collect();
        let mut text = format!("kernel {}({})", l.kernel.0, args.join(", "));
        if !l.symbols.is_empty() {
            text += &format!(" symbols {}", self.dims(&l.symbols));
        }
        text += &match &l.work {
            Work::Chunks { grain } => format!(" grain {}", self.dim(grain)),
            Work::Grid(g) => format!(
                " grid {} threads {} shared {}",
                self.dim(&g.blocks),
                g.threads,
                g.shared_bytes
            ),
        };
        let (bytes, flops) = (self.dim(&l.bytes), self.dim(&l.flops));
        text + &format!(" bytes {bytes} flops {flops} {}", quote(&l.label))
    }

    fn operand(&self, o: &GemmOperand) -> String {
        let batch = o.batch.iter().map(|s| self.dim(s));
        let strides: Vec<String> = batch.chain([self.strides(&o.row), self.strides(&o.column)]).collect();
        let (offset, strides) = (self.dim(&o.offset), strides.join(", "));
        let windows = match o.is_windowed() {
            true => format!(
                " windows [{}]",
                o.windowed
                    .iter()
                    .map(|w| self.windowed(w))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            false => String::new(),
        };
        format!("{} offset {offset} strides [{strides}]{windows}", o.slot)
    }

    fn windowed(&self, w: &WindowedAxis) -> String {
        let WindowedAxis {
            place,
            stride,
            dilation,
            ..
        } = w;
        let [before, extent, step] = [&w.before, &w.extent, &w.step].map(|e| self.dim(e));
        format!("place {place} stride {stride} dilation {dilation} before {before} extent {extent} step {step}")
    }

    fn strides(&self, w: &Strides) -> String {
        if let [dim] = &w.dims[..] {
            return self.dim(&dim.stride);
        }
        let dim = |l: &StridedDim| format!("{} by {}", self.dim(&l.extent), self.dim(&l.stride));
        format!("[{}]", w.dims.iter().map(dim).collect::<Vec<_>>().join(", "))
    }

    fn write_step(&self, f: &mut String, step: &Step, turn: &str) -> fmt::Result {
        match step {
            Step::Launch(l) => writeln!(f, "    {turn}launch {}", self.launch(l)),
            Step::Group(all) | Step::Sequence(all) => {
                let word = match step {
                    Step::Group(_) => "group",
                    _ => "sequence",
                };
                writeln!(f, "    {turn}{word} {{")?;
                for l in all {
                    writeln!(f, "      launch {}", self.launch(l))?;
                }
                f.push_str("    }\n");
                Ok(())
            }
            Step::Gemm(g) => {
                write!(f, "    {turn}")?;
                self.write_product(f, g)
            }
            Step::Copy { src, dst } => writeln!(f, "    {turn}copy {src} to {dst}"),
            Step::Call(c) => {
                let slots = |all: &[SlotId]| all.iter().map(SlotId::to_string).collect::<Vec<_>>().join(", ");
                let shapes: Vec<String> = c.shapes.iter().map(|s| self.dims(s)).collect();
                writeln!(
                    f,
                    "    {turn}call {} shapes [{}] ({}) to ({}) workspace {} {}",
                    self.function(&c.function),
                    shapes.join(", "),
                    slots(&c.operands),
                    slots(&c.results),
                    c.workspace,
                    quote(&c.label)
                )
            }
            // Loops hold plans, which may hold data: they have a function of their own.
            Step::Loop(_) => Ok(()),
        }
    }

    /// A product and what is behind it, from its first word on.
    fn write_product(&self, f: &mut String, g: &Gemm) -> fmt::Result {
        let [m, n, k] = [&g.m, &g.n, &g.k].map(|e| self.dim(e));
        let batch = self.dims(&g.batch);
        let label = quote(&g.label);
        writeln!(f, "gemm {} batch {batch} {m} x {n} x {k} {label}", g.dtype)?;
        writeln!(f, "      lhs {}", self.operand(&g.lhs))?;
        writeln!(f, "      rhs {}", self.operand(&g.rhs))?;
        writeln!(f, "      dst {}", self.operand(&g.dst))?;
        if let Some(workspace) = g.workspace {
            writeln!(f, "      workspace {workspace}")?;
        }
        let Some(e) = &g.epilogue else { return Ok(()) };
        let [iterations, elements] = [&e.lines.iterations, &e.lines.elements].map(|e| self.dim(e));
        let launch = self.launch(&e.launch);
        writeln!(f, "      epilogue lines {iterations} by {elements} launch {launch}")?;
        if let Some(l) = &e.library {
            let bias = l.bias.map_or(String::new(), |b| format!(" bias {b}"));
            let relu = if l.rectified { " relu" } else { "" };
            writeln!(f, "      library{bias}{relu} result {}", l.result)?;
        }
        let Some(p) = &e.product else { return Ok(()) };
        write!(f, "      then ")?;
        self.write_product(f, p)
    }

    /// A host function with its settings.
    fn function(&self, function: &HostFunction) -> String {
        match function {
            HostFunction::Sort {
                axis,
                count,
                descending,
            } => {
                let descending = if *descending { " descending" } else { "" };
                format!("sort axis {axis} count {}{descending}", self.dim(count))
            }
            HostFunction::NonZero { count } => format!("nonzero count {}", self.dim(&(*count).into())),
            HostFunction::Unique { axis, sorted, count } => {
                let axis = axis.map_or(String::new(), |a| format!(" axis {a}"));
                let sorted = if *sorted { " sorted" } else { "" };
                format!("unique{axis} count {}{sorted}", self.dim(&(*count).into()))
            }
            HostFunction::Suppress { center, count } => {
                let center = if *center { " center" } else { "" };
                format!("suppress count {}{center}", self.dim(&(*count).into()))
            }
        }
    }

    /// A loop and its body.
    fn write_loop(&self, out: &mut Printed, l: &Repeat, turn: &str, options: &PrintOptions) -> fmt::Result {
        let f = &mut out.text;
        write!(f, "    {turn}loop")?;
        if let Some(trip) = &l.trip {
            write!(f, " trip {}", self.dim(trip))?;
        }
        if let Some(count) = l.count {
            write!(f, " count {count}")?;
        }
        if let Some(condition) = l.condition {
            write!(f, " while {condition}")?;
        }
        if let Some(follows) = l.follows {
            write!(f, " then {follows}")?;
        }
        if !l.symbols.is_empty() {
            write!(f, " symbols {}", self.dims(&l.symbols))?;
        }
        writeln!(f, " number {} {}", l.number, quote(&l.label))?;
        for c in &l.carried {
            writeln!(f, "      carried {} to {} spare {}", c.first, c.last, c.spare)?;
        }
        for (word, all) in [("slice", &l.slices), ("stack", &l.stacks)] {
            for w in all {
                let reverse = if w.along.reverse { " reverse" } else { "" };
                write!(f, "      {word} {} axis {}{reverse}", w.slot, w.along.axis)?;
                if let Some(element) = w.element {
                    write!(f, " element {element}")?;
                }
                f.push('\n');
            }
        }
        for c in &l.captures {
            writeln!(f, "      capture {c}")?;
        }
        // Data of the body is numbered on.
        let before = std::mem::take(&mut out.text);
        l.body.write(out, options)?;
        let inner = std::mem::replace(&mut out.text, before);
        for (i, line) in inner.lines().enumerate() {
            let line = if i == 0 {
                line.replacen("plan", "body", 1)
            } else {
                line.into()
            };
            writeln!(out.text, "      {line}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    /// The canonical text with the default options; data beyond their limit is only named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Printed::default();
        self.write(&mut out, &PrintOptions::default())?;
        f.write_str(&out.text)
    }
}

impl Plan {
    /// Appends the plan's text.
    pub(crate) fn write(&self, out: &mut Printed, options: &PrintOptions) -> fmt::Result {
        write!(out.text, "plan @{}", sigil_name(&self.name))?;
        for (i, s) in self.symbols.iter().enumerate() {
            let lead = if i > 0 { ", " } else { " where " };
            match &s.upper {
                Some(upper) => write!(out.text, "{lead}{} upto {}", word_name(&s.name), self.dim(upper))?,
                None => write!(out.text, "{lead}{} in {}..={}", word_name(&s.name), s.lo, s.hi)?,
            }
        }
        out.text.push_str(" {\n");
        let f = &mut out.text;
        for (i, kind) in self.devices.iter().enumerate().skip(1) {
            writeln!(f, "  device {i} {}", kind.name())?;
        }
        for (i, device) in self.queues.iter().enumerate().skip(1) {
            writeln!(f, "  queue {i} on {}", device.0)?;
        }
        for i in &self.inputs {
            let slot = i.slot.map_or("unused".into(), |s| s.to_string());
            let (name, dims) = (word_name(&i.name), self.dims(&i.ty.shape));
            writeln!(f, "  input {name}: {}{dims} = {slot}", i.ty.dtype)?;
        }
        for o in &self.outputs {
            let (name, dims) = (word_name(&o.name), self.dims(&o.ty.shape));
            writeln!(f, "  output {name}: {}{dims} = {}", o.ty.dtype, o.slot)?;
        }
        for s in &self.states {
            let (name, dims, slot) = (word_name(&s.name), self.dims(&s.ty.shape), s.slot);
            write!(f, "  state {name}: {}{dims} = {slot}", s.ty.dtype)?;
            if s.read {
                f.push_str(" read");
            }
            if let Some(set) = s.set {
                write!(f, " set {set}")?;
            }
            f.push('\n');
        }
        for g in &self.guards {
            match &g.condition {
                Condition::Equal(a, b) => write!(f, "  guard {} = {}", self.dim(a), self.dim(b))?,
                Condition::NonNegative(e) => write!(f, "  guard {} not negative", self.dim(e))?,
            }
            write!(f, " at node {}", g.node.0)?;
            if !g.needed_by.is_empty() {
                write!(f, " for {}", quote(&g.needed_by))?;
            }
            f.push('\n');
        }
        for (i, c) in self.constants.iter().enumerate() {
            write!(out.text, "  constant {i}: {}{:?} = ", c.dtype(), c.shape())?;
            out.data(c, options, None, false);
            out.text.push('\n');
        }
        let f = &mut out.text;
        for (i, s) in self.slots.iter().enumerate() {
            let id = SlotId(i as u32);
            let (storage, name) = (self.storage(&s.storage), quote(&s.name));
            let device = match s.device {
                DeviceId::HOST => String::new(),
                device => format!(" on {}", device.0),
            };
            writeln!(f, "  {id}: {}[{}] {storage}{device} {name}", s.dtype, self.dim(&s.len))?;
        }
        for (input, output) in &self.donations {
            writeln!(f, "  donate input {input} to output {output}")?;
        }
        for (name, steps) in [("init", &self.init), ("steps", &self.steps)] {
            if !steps.is_empty() {
                writeln!(out.text, "  {name} {{")?;
                for (number, s) in steps.iter().enumerate() {
                    let turn = match name {
                        "steps" => self.turns.get(number).map_or(String::new(), Turn::to_string),
                        _ => String::new(),
                    };
                    match s {
                        Step::Loop(l) => self.write_loop(out, l, &turn, options)?,
                        s => self.write_step(&mut out.text, s, &turn)?,
                    }
                }
                out.text.push_str("  }\n");
            }
        }
        let f = &mut out.text;
        for (i, k) in self.kernels.iter().enumerate() {
            let text = k.to_string();
            let mut lines = text.lines();
            let first = lines.next().unwrap_or_default();
            let first = first.strip_prefix("kernel").unwrap_or(first);
            writeln!(f, "  kernel {i}{first}")?;
            for line in lines {
                writeln!(f, "  {line}")?;
            }
        }
        f.push_str("}\n");
        Ok(())
    }
}
