//! The text form of plans: tables first, then the steps, one a line.
//!
//! Invariants: slots, kernels and constants print with their numbers; sizes print with the symbols' names. Constants print
//! by type, not by value.

use std::fmt;

use crate::index::{IndexExpr, SymId};
use crate::plan::{GemmOperand, Launch, Plan, SlotId, Step, Storage};

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.0)
    }
}

impl Plan {
    fn dim(&self, e: &IndexExpr) -> String {
        let name = |s: SymId| {
            let known = self.symbols.get(s.0 as usize);
            known.map_or_else(|| format!("s{}", s.0), |s| s.name.clone())
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
            Storage::Persistent => "persistent".into(),
            Storage::Arena => "arena".into(),
            Storage::Alias(of) => format!("alias {of}"),
        }
    }

    fn launch(&self, l: &Launch) -> String {
        let args: Vec<String> = l.args.iter().map(SlotId::to_string).collect();
        let mut text = format!("kernel {}({})", l.kernel.0, args.join(", "));
        if !l.symbols.is_empty() {
            text += &format!(" symbols {}", self.dims(&l.symbols));
        }
        let (bytes, flops) = (self.dim(&l.bytes), self.dim(&l.flops));
        text + &format!(" grain {} bytes {bytes} flops {flops} \"{}\"", l.grain, l.label)
    }

    fn operand(&self, o: &GemmOperand) -> String {
        let (offset, batch) = (self.dim(&o.offset), self.dims(&o.batch));
        format!(
            "{} + {offset} strides {batch} {} {}",
            o.slot,
            self.dim(&o.row),
            self.dim(&o.column)
        )
    }

    fn write_step(&self, f: &mut fmt::Formatter<'_>, step: &Step) -> fmt::Result {
        match step {
            Step::Launch(l) => writeln!(f, "    launch {}", self.launch(l)),
            Step::Group(all) => {
                f.write_str("    group {\n")?;
                for l in all {
                    writeln!(f, "      launch {}", self.launch(l))?;
                }
                f.write_str("    }\n")
            }
            Step::Gemm(g) => {
                let [m, n, k] = [&g.m, &g.n, &g.k].map(|e| self.dim(e));
                let batch = self.dims(&g.batch);
                writeln!(f, "    gemm {} batch {batch} {m} x {n} x {k} \"{}\"", g.dtype, g.label)?;
                writeln!(f, "      lhs {}", self.operand(&g.lhs))?;
                writeln!(f, "      rhs {}", self.operand(&g.rhs))?;
                writeln!(f, "      dst {}", self.operand(&g.dst))
            }
            Step::Copy { src, dst } => writeln!(f, "    copy {src} to {dst}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan @{}", self.name)?;
        for (i, s) in self.symbols.iter().enumerate() {
            let lead = if i > 0 { ", " } else { " where " };
            write!(f, "{lead}{} in {}..={}", s.name, s.lo, s.hi)?;
        }
        f.write_str(" {\n")?;
        for i in &self.inputs {
            let slot = i.slot.map_or("unused".into(), |s| s.to_string());
            writeln!(
                f,
                "  input {}: {}{} = {slot}",
                i.name,
                i.ty.dtype,
                self.dims(&i.ty.shape)
            )?;
        }
        for o in &self.outputs {
            writeln!(
                f,
                "  output {}: {}{} = {}",
                o.name,
                o.ty.dtype,
                self.dims(&o.ty.shape),
                o.slot
            )?;
        }
        for (i, c) in self.constants.iter().enumerate() {
            writeln!(f, "  constant {i}: {}{:?}", c.dtype(), c.shape())?;
        }
        for (i, s) in self.slots.iter().enumerate() {
            let id = SlotId(i as u32);
            let storage = self.storage(&s.storage);
            writeln!(f, "  {id}: {}[{}] {storage} \"{}\"", s.dtype, self.dim(&s.len), s.name)?;
        }
        for (input, output) in &self.donations {
            writeln!(f, "  donate input {input} to output {output}")?;
        }
        for (name, steps) in [("init", &self.init), ("steps", &self.steps)] {
            if !steps.is_empty() {
                writeln!(f, "  {name} {{")?;
                steps.iter().try_for_each(|s| self.write_step(f, s))?;
                f.write_str("  }\n")?;
            }
        }
        for (i, k) in self.kernels.iter().enumerate() {
            write!(f, "  {i}: ")?;
            let text = k.to_string();
            for (n, line) in text.lines().enumerate() {
                writeln!(f, "{}{line}", if n > 0 { "  " } else { "" })?;
            }
        }
        f.write_str("}\n")
    }
}
