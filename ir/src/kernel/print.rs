//! The text form of kernels.
//!
//! ```text
//! kernel(p0: f32[s0] read, p1: f32[s0] write) where s0 in 1..=4096 {
//!   scratch r0: f32[4] register
//!   for i0 in 0..div(s0, 4) parallel {
//!     %0: f32 = load p0[4*i0]
//!     store p1[4*i0], %0
//!   }
//! }
//! ```
//!
//! Invariants: every value, variable, parameter and symbol prints with its number, so that text determines the kernel; table
//! entries that no statement defines print behind the statements, as `unused %3: f32` and `unused i2 in 0..4`. A value's
//! dtype stands at its definition, a variable's extent at its loop.

use std::fmt;

use crate::graph::Condition;
use crate::index::{IndexExpr, IndexNode, SymId, VarId};
use crate::kernel::{Access, CollectiveKind, Contract, Group, Kernel, Memory, Op, Scope, Stmt, ValueId};
use crate::precision::Precision;
use crate::scalar::ScalarOp;

impl Access {
    /// Every mode.
    pub const ALL: [Access; 3] = [Access::Read, Access::Write, Access::ReadWrite];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "readwrite",
        }
    }
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 6] = [
        Scope::Register,
        Scope::Cache,
        Scope::Shared,
        Scope::WarpFragment,
        Scope::BlockFragment,
        Scope::Thread,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::Register => "register",
            Scope::Cache => "cache",
            Scope::Shared => "shared",
            Scope::WarpFragment => "warp_fragment",
            Scope::BlockFragment => "block_fragment",
            Scope::Thread => "thread",
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Param(p) => write!(f, "p{p}"),
            Memory::Scratch(s) => write!(f, "r{s}"),
        }
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// An index expression with symbols as `s<n>` and variables as `i<n>`.
pub(crate) struct Positional<'a>(pub &'a IndexExpr);

impl fmt::Display for Positional<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display(&|s: SymId| format!("s{}", s.0)).fmt(f)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kernel(")?;
        for (i, p) in self.params.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(
                f,
                "{comma}p{i}: {}[{}] {}",
                p.dtype,
                Positional(&p.len),
                p.access.name()
            )?;
        }
        f.write_str(")")?;
        for (i, (lo, hi)) in self.symbols.iter().enumerate() {
            let lead = if i > 0 { ", " } else { " where " };
            write!(f, "{lead}s{i} in {lo}..={hi}")?;
        }
        for c in &self.requires {
            match c {
                Condition::Equal(a, b) => write!(f, " requires {} = {}", Positional(a), Positional(b))?,
                Condition::NonNegative(e) => write!(f, " requires {} not negative", Positional(e))?,
            }
        }
        if self.residents > 0 {
            write!(f, " residents {}", self.residents)?;
        }
        f.write_str(" {\n")?;
        for (i, s) in self.scratch.iter().enumerate() {
            writeln!(
                f,
                "  scratch r{i}: {}[{}] {}{}",
                s.dtype,
                Positional(&s.len),
                s.scope.name(),
                if s.swizzled { " swizzled" } else { "" }
            )?;
        }
        self.write_block(f, &self.body, 1)?;
        self.write_unused(f)?;
        f.write_str("}\n")
    }
}

impl Kernel {
    /// Table entries without a definition; a variable behind those that its extent mentions.
    fn write_unused(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values = vec![false; self.values.len()];
        let mut vars = vec![false; self.extents.len()];
        for s in self.statements() {
            s.defined_value().into_iter().for_each(|v| values[v.0 as usize] = true);
            s.defined_vars().iter().for_each(|v| vars[v.0 as usize] = true);
        }
        for i in (0..values.len()).filter(|&i| !values[i]) {
            writeln!(f, "  unused %{i}: {}", self.values[i])?;
        }
        let mut waiting: Vec<usize> = (0..vars.len()).filter(|&i| !vars[i]).collect();
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut later = Vec::new();
            for i in waiting {
                let mut ready = true;
                self.extents[i].visit_atoms(&mut |a| {
                    ready &= !matches!(a, IndexNode::Var(v) if !vars.get(v.0 as usize).is_some_and(|&d| d));
                });
                if ready {
                    vars[i] = true;
                    writeln!(f, "  unused i{i} in 0..{}", Positional(&self.extents[i]))?;
                } else {
                    later.push(i);
                }
            }
            if later.len() == before {
                break; // A cycle: no kernel that verifies.
            }
            waiting = later;
        }
        Ok(())
    }

    fn write_block(&self, f: &mut fmt::Formatter<'_>, body: &[Stmt], depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        for s in body {
            f.write_str(&indent)?;
            match s {
                Stmt::Let { value, op } => {
                    write!(f, "{value}: {} = ", self.dtype(*value))?;
                    self.write_op(f, op)?;
                    f.write_str("\n")?;
                }
                Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                } => {
                    write!(f, "store {memory}[{}], {value}", Positional(index))?;
                    write_mask(f, *mask)?;
                    f.write_str("\n")?;
                }
                Stmt::Loop { var, bind, body } => {
                    let extent = &self.extents[var.0 as usize];
                    writeln!(f, "for i{} in 0..{} {} {{", var.0, Positional(extent), bind.name())?;
                    self.write_block(f, body, depth + 1)?;
                    writeln!(f, "{indent}}}")?;
                }
                Stmt::If { cond, body } => {
                    writeln!(f, "if {cond} {{")?;
                    self.write_block(f, body, depth + 1)?;
                    writeln!(f, "{indent}}}")?;
                }
                Stmt::Clamp { var, value } => {
                    let extent = &self.extents[var.0 as usize];
                    writeln!(f, "clamp i{} in 0..{} = {value}", var.0, Positional(extent))?;
                }
                Stmt::Accumulate { monoid, state, values } => {
                    write!(f, "accumulate {} ", monoid.name())?;
                    for (i, (memory, index)) in state.iter().enumerate() {
                        let comma = if i > 0 { ", " } else { "" };
                        write!(f, "{comma}{memory}[{}]", Positional(index))?;
                    }
                    f.write_str(" with ")?;
                    for (i, value) in values.iter().enumerate() {
                        write!(f, "{}{value}", if i > 0 { ", " } else { "" })?;
                    }
                    f.write_str("\n")?;
                }
                Stmt::Contract(c) => {
                    self.write_contract(f, c)?;
                    f.write_str("\n")?;
                }
                Stmt::Collective(c) => {
                    match c.kind {
                        CollectiveKind::Reduce(monoid) => write!(f, "reduce {}", monoid.name())?,
                        CollectiveKind::Scan(monoid) => write!(f, "scan {}", monoid.name())?,
                        CollectiveKind::Broadcast(from) => write!(f, "broadcast {from}")?,
                        CollectiveKind::Shift(monoid) => write!(f, "shift {}", monoid.name())?,
                    }
                    match c.group {
                        Group::Warp => f.write_str(" warp ")?,
                        Group::Part(threads) => write!(f, " part {threads} ")?,
                        Group::Block(threads) => write!(f, " block {threads} ")?,
                    }
                    writeln!(f, "{}[{}]", c.memory, Positional(&c.index))?;
                }
                Stmt::FoldRows(fold) => {
                    let [m, n] = fold.vars;
                    let extent = |v: VarId| Positional(&self.extents[v.0 as usize]);
                    let (rows, columns) = (extent(m), extent(n));
                    let monoid = fold.monoid.name();
                    write!(f, "fold {monoid} i{} in 0..{rows}, i{} in 0..{columns} ", m.0, n.0)?;
                    write!(f, "{}[{}] with ", fold.to, Positional(&fold.to_index))?;
                    writeln!(f, "{}[{}]", fold.from, Positional(&fold.from_index))?;
                }
                Stmt::Each {
                    vars: [m, n],
                    memory,
                    body,
                } => {
                    let extent = |v: &VarId| Positional(&self.extents[v.0 as usize]);
                    let (rows, columns) = (extent(m), extent(n));
                    writeln!(f, "each i{} in 0..{rows}, i{} in 0..{columns} of {memory} {{", m.0, n.0)?;
                    self.write_block(f, body, depth + 1)?;
                    writeln!(f, "{indent}}}")?;
                }
                Stmt::CopyAsync(c) => {
                    let extent = Positional(&self.extents[c.var.0 as usize]);
                    write!(f, "copy_async i{} in 0..{extent} ", c.var.0)?;
                    write!(f, "{}[{}] ", c.to, Positional(&c.to_index))?;
                    write!(f, "from {}[{}]", c.from, Positional(&c.from_index))?;
                    write_mask(f, c.mask)?;
                    f.write_str("\n")?;
                }
                Stmt::Prefetch { memory, index } => writeln!(f, "prefetch {memory}[{}]", Positional(index))?,
                Stmt::Commit => f.write_str("commit\n")?,
                Stmt::Wait(pending) => writeln!(f, "wait {pending}")?,
                Stmt::Barrier => f.write_str("barrier\n")?,
            }
        }
        Ok(())
    }

    /// `contract i0 in 0..4, i1 in 0..8 over i2 in 0..s0 by 16 r0[8*i0 + i1] with p0[...] if i2 in 0..s1, p1[...]`.
    fn write_contract(&self, f: &mut fmt::Formatter<'_>, c: &Contract) -> fmt::Result {
        let lead = ["contract ", ", ", " over "];
        for (var, lead) in c.vars.iter().zip(lead) {
            let extent = &self.extents[var.0 as usize];
            write!(f, "{lead}i{} in 0..{}", var.0, Positional(extent))?;
        }
        write!(f, " by {}", c.k_block)?;
        if c.precision != Precision::Exact {
            write!(f, " {}", c.precision)?;
        }
        if c.words {
            write!(f, " {}", ScalarOp::Dot4)?;
        }
        write!(f, " {}[{}]", c.dst, Positional(&c.dst_index))?;
        for (operand, lead) in c.operands().into_iter().zip([" with ", ", "]) {
            write!(f, "{lead}{}[{}]", operand.memory, Positional(&operand.index))?;
            for (i, r) in operand.ranges.iter().enumerate() {
                let lead = if i > 0 { "and" } else { "if" };
                write!(f, " {lead} {} in 0..{}", Positional(&r.index), Positional(&r.limit))?;
            }
        }
        Ok(())
    }

    fn write_op(&self, f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
        match op {
            Op::Const(value) => write!(f, "const {value}"),
            Op::Index(e, _) => write!(f, "index {}", Positional(e)),
            Op::Load { memory, index, mask } => {
                write!(f, "load {memory}[{}]", Positional(index))?;
                write_mask(f, *mask)
            }
            Op::Map(op, args) => {
                f.write_str(op.name())?;
                write_operands(f, args)
            }
            Op::Convert(_, value) => write!(f, "convert {value}"),
            Op::Bitcast(_, value) => write!(f, "bitcast {value}"),
            Op::ShortExp2(value) => write!(f, "short_exp2 {value}"),
            Op::Scale([x, n]) => write!(f, "scale {x}, {n}"),
            Op::Approximate(op, args) => {
                write!(f, "approximate {}", op.name())?;
                write_operands(f, args)
            }
        }
    }
}

fn write_operands(f: &mut fmt::Formatter<'_>, operands: &[ValueId]) -> fmt::Result {
    for (i, a) in operands.iter().enumerate() {
        write!(f, "{} {a}", if i > 0 { "," } else { "" })?;
    }
    Ok(())
}

fn write_mask(f: &mut fmt::Formatter<'_>, mask: Option<ValueId>) -> fmt::Result {
    match mask {
        Some(m) => write!(f, " if {m}"),
        None => Ok(()),
    }
}
