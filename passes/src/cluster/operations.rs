//! What the kernel of a group does, and what a merge would take from it.

use rustc_hash::FxHashSet;
use tlc_ir::graph::View;
use tlc_ir::index::IndexExpr;
use tlc_ir::target::{AccessKind, CpuEmitter, EmitterId, Target};
use tlc_ir::{NodeId, NodeKind, ScalarOp};

use super::Clusterer;
use crate::access::{is_source, space};
use crate::emitters::{Operation, Operations, choose, fastest};
use crate::reason::FusionReason;

impl Clusterer<'_> {
    /// What computing an element of a root does, down to other roots and sources.
    pub(super) fn operations_of(&self, root: NodeId) -> Operations {
        let mut out = vec![Operation::Access(AccessKind::SideBySide)];
        let mut seen: FxHashSet<NodeId> = FxHashSet::default();
        let mut work = vec![root];
        while let Some(n) = work.pop() {
            let node = self.graph.node(n);
            out.push(Operation::Convert(node.ty.dtype, node.ty.dtype));
            if n != root && (self.is_root[n.index()] || is_source(&node.kind)) {
                out.push(Operation::Access(AccessKind::SideBySide));
                continue;
            }
            let operand = |k: usize| self.graph.ty(node.operands[k]).dtype;
            match &node.kind {
                NodeKind::Map(op) => out.push(Operation::Map(*op, operand(node.operands.len() - 1))),
                NodeKind::Convert(to) if operand(0) != *to => out.push(Operation::Convert(operand(0), *to)),
                NodeKind::Reduce { monoid, .. } | NodeKind::Scan { monoid, .. } => {
                    out.push(Operation::Map(monoid.combine(), operand(0).accumulator()));
                }
                NodeKind::Einsum {
                    semiring, accumulator, ..
                } => {
                    let to = node.operands.iter().map(|o| self.graph.ty(*o).dtype);
                    out.extend(
                        to.filter(|d| d != accumulator)
                            .map(|d| Operation::Convert(d, *accumulator)),
                    );
                    out.push(Operation::Map(semiring.product(), *accumulator));
                    out.push(Operation::Map(semiring.sum().combine(), accumulator.accumulator()));
                }
                NodeKind::Scatter { op, .. } => {
                    out.push(Operation::Access(AccessKind::Apart));
                    out.extend(op.combine().map(|op| Operation::Map(op, node.ty.dtype)));
                }
                NodeKind::Gather { .. } => out.push(Operation::Access(AccessKind::Indexed)),
                NodeKind::View(View::Pad { .. }) => {
                    out.push(Operation::Access(AccessKind::Masked));
                    out.push(Operation::Map(ScalarOp::Select, node.ty.dtype));
                }
                NodeKind::Random { .. } => {
                    use ScalarOp::{Add, Or, Shl, Shr, Xor};
                    out.extend([Add, Or, Shl, Shr, Xor].map(|op| Operation::Map(op, node.ty.dtype)));
                }
                NodeKind::Input { .. }
                | NodeKind::Const(_)
                | NodeKind::Data(_)
                | NodeKind::Iota { .. }
                | NodeKind::Convert(_)
                | NodeKind::Bitcast(_)
                | NodeKind::View(_)
                | NodeKind::Copy
                | NodeKind::Loop(_)
                | NodeKind::Call(_)
                | NodeKind::Region(_)
                | NodeKind::Project(_) => {}
            }
            work.extend(node.operands.iter().filter(|o| seen.insert(**o)));
        }
        out.into_iter().collect()
    }

    /// Why two groups should not be one kernel: no emitter that makes one of them fast has what the other needs, and that costs
    /// more than to store and to load what lies between them.
    pub(super) fn loses_emitter(&mut self, a: usize, b: usize) -> Option<FusionReason> {
        let target = self.placement.target(self.groups[a].roots[0]);
        let Target::Cpu(cpu) = target else {
            return None;
        };
        if cpu.emitters.len() < 2 {
            return None;
        }
        let together = self.groups[a].operations.with(&self.groups[b].operations);
        let chosen = fastest(&cpu.emitters, &together);
        let own = [a, b].map(|g| self.emitter_of(g, &cpu.emitters));
        // Nothing is lost where both have their own emitter.
        if own == [chosen; 2] {
            return None;
        }
        let mut lost = 0.0;
        for (g, own) in [a, b].into_iter().zip(own) {
            let operations = &self.groups[g].operations;
            let (Some(fast), Some(slow)) = (
                operations.picoseconds(cpu.emitter(own)),
                operations.picoseconds(cpu.emitter(chosen)),
            ) else {
                continue;
            };
            lost += (slow - fast).max(0.0) * self.elements(g);
        }
        let bytes: f64 = (self.groups[b].roots.iter())
            .chain(&self.groups[a].roots)
            .flat_map(|r| &self.demands[r.index()])
            .map(|d| d.source)
            .filter(|s| {
                let group = self.group_of[s.index()];
                group == Some(a) || group == Some(b)
            })
            .collect::<FxHashSet<NodeId>>()
            .into_iter()
            .map(|s| {
                // An output is stored in any case.
                let times = if self.is_output[s.index()] { 1.0 } else { 2.0 };
                let ty = self.graph.ty(s);
                self.typical(&ty.elements()) as f64 * ty.dtype.bytes() as f64 * times
            })
            .sum();
        let saved = bytes * 1e12 / cpu.bytes_per_second[1].max(1.0) + KERNEL_PICOSECONDS;
        (lost > saved).then(|| FusionReason::OtherEmitter {
            reason: choose(target, &together).reason,
            lost_ns: (lost / 1e3) as u64,
            saved_ns: (saved / 1e3) as u64,
        })
    }

    /// What would make the kernel of a group alone.
    fn emitter_of(&mut self, group: usize, emitters: &[CpuEmitter]) -> EmitterId {
        let group = &mut self.groups[group];
        *group
            .emitter
            .get_or_insert_with(|| fastest(emitters, &group.operations))
    }

    /// Elements that the largest root of a group goes through.
    fn elements(&self, group: usize) -> f64 {
        let roots = self.groups[group].roots.iter();
        let all = roots.map(|&r| {
            self.typical(
                &space(self.graph, r)
                    .extents
                    .iter()
                    .fold(IndexExpr::ONE, |n, d| n * d.clone()),
            )
        });
        all.max().unwrap_or(1).max(1) as f64
    }
}

/// What one more launch takes, about.
const KERNEL_PICOSECONDS: f64 = 1e6;
