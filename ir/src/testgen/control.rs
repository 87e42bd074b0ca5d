//! Random loops and host functions, over nodes that exist.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{GenKind, GenOptions, Generator, LARGE, Rng};
use crate::dtype::{DType, Scalar};
use crate::graph::{
    Along, Body, Graph, HostFunction, Loop, NodeId, NodeKind, Operands, Origin, Region, Rule, TensorType,
};
use crate::index::{IndexExpr, SymId};
use crate::scalar::ScalarOp;

impl Generator<'_> {
    /// Some loops or calls, and projections of all their results.
    pub(super) fn control(&mut self) {
        for _ in 0..1 + self.rng.below(2) {
            let added = match self.rng.chance(1, 3) {
                true => self.grow_sort(),
                false if self.rng.chance(1, 3) => self.grow_region(),
                false => self.grow_loop(),
            };
            if added.is_none() {
                continue;
            }
            for _ in 0..self.rng.below(4) {
                let kind = self.rng.pick(&self.options.kinds);
                let _ = self.grow(kind);
            }
        }
    }

    /// Projections of the results of a node, in any order; some may be left out.
    pub(super) fn project_all(&mut self, tuple: NodeId, bounds: &[f64]) -> Option<NodeId> {
        let mut last = None;
        for (k, bound) in bounds.iter().enumerate() {
            if !self.rng.chance(1, 8) || last.is_none() {
                last = self.add(NodeKind::Project(k as u32), &[tuple], *bound);
            }
        }
        last
    }

    fn grow_sort(&mut self) -> Option<NodeId> {
        let x = self.any_where(|t| t.rank() > 0)?;
        let axis = self.rng.below(self.ty(x).rank());
        let extent = self.ty(x).shape[axis].clone();
        let count = match (extent.as_const(), self.rng.chance(1, 2)) {
            (Some(n), true) if n > 0 => IndexExpr::Const(self.rng.range(0, n)),
            (None, true) if self.options.counted => IndexExpr::min(&extent, &IndexExpr::Const(3)),
            _ => extent,
        };
        let kind = NodeKind::Call(HostFunction::Sort {
            axis: axis as u8,
            count,
            descending: self.rng.chance(1, 2),
        });
        let bound = self.bound(x);
        let tuple = self.add(kind, &[x], 0.0)?;
        self.project_all(tuple, &[bound, 10.0])
    }

    /// The most loops and regions around one.
    fn most_around(&self) -> usize {
        if self.options.deep { 2 } else { 1 }
    }

    fn grow_loop(&mut self) -> Option<NodeId> {
        if self.depth > self.most_around() {
            return None;
        }
        let mut trip = Some(self.dim());
        let mut operands = Operands::new();
        let scalar = |dtype| TensorType::new(dtype, [0i64; 0]);
        let counted = self.rng.chance(1, 5);
        if counted {
            // Whatever computes it, few: random bits may be billions.
            let most = self.splat(Scalar::from_i64(DType::I64, 6), &scalar(DType::I64).shape)?;
            let count = self.of_type(&scalar(DType::I64))?;
            operands.push(self.map(ScalarOp::Min, &[count, most], 6.0)?);
        }
        let conditional = self.rng.chance(1, 5);
        if conditional {
            let value = Scalar::from_bool(!self.rng.chance(1, 5));
            operands.push(self.splat(value, &scalar(DType::Bool).shape)?);
        }
        let mut inputs: Vec<TensorType> = vec![scalar(DType::I64)];
        let carried = self.rng.pick(&[0, 1, 1, 2, 2, 3, 4]);
        for _ in 0..carried {
            let x = self.any();
            let x = self.tame(x);
            inputs.push(self.ty(x));
            operands.push(x);
        }
        let mut slices: SmallVec<[Along; 2]> = SmallVec::new();
        for _ in 0..self.rng.below(3) {
            let extent = trip.clone();
            let Some(x) = self.any_where(|t| t.shape.iter().any(|d| Some(d) == extent.as_ref())) else {
                continue;
            };
            let mut ty = self.ty(x);
            let axis = ty.shape.iter().position(|d| Some(d) == extent.as_ref())?;
            ty.shape.remove(axis);
            slices.push(Along {
                axis: axis as u8,
                reverse: self.rng.chance(1, 2),
            });
            inputs.push(ty);
            operands.push(x);
        }
        for _ in 0..self.rng.below(3) {
            let x = self.any();
            inputs.push(self.ty(x));
            operands.push(x);
        }
        let (body, stacks, bounds) = self.body(&inputs, conditional, carried)?;
        if slices.is_empty() && stacks.is_empty() && counted && self.rng.chance(1, 2) {
            trip = None;
        }
        let symbols = (0..self.graph.symbols().len() as u32)
            .map(|s| SymId(s).into())
            .collect();
        let kind = NodeKind::Loop(Arc::new(Loop {
            body: Body(Arc::new(body)),
            symbols,
            trip,
            counted,
            conditional,
            carried,
            slices,
            stacks,
        }));
        let tuple = self.add(kind, &operands, 0.0)?;
        self.project_all(tuple, &bounds)
    }

    fn grow_region(&mut self) -> Option<NodeId> {
        if self.depth > self.most_around() {
            return None;
        }
        // The first input of bodies is a small number.
        let number = TensorType::new(DType::I64, [0i64; 0]);
        let mut operands = Operands::new();
        operands.push(self.splat(Scalar::from_i64(DType::I64, 3), &number.shape)?);
        for _ in 0..1 + self.rng.below(3) {
            operands.push(self.any());
        }
        let inputs: Vec<TensorType> = operands.iter().map(|&x| self.ty(x)).collect();
        let (body, _, bounds) = self.body(&inputs, false, 0)?;
        let rule = match self.rng.below(4) {
            0 | 1 => Rule::Opaque,
            2 => Rule::Checkpoint,
            // A cotangent has the type of its operand: so has the operand.
            _ => {
                let mut derivative = Graph::new("derivative");
                derivative.adopt_symbols(&self.graph);
                let results: Vec<TensorType> = body.outputs().iter().map(|o| body.ty(o.node).clone()).collect();
                let cotangents = results.iter().filter(|t| t.dtype.is_float());
                for (k, ty) in inputs.iter().chain(&results).chain(cotangents).enumerate() {
                    let input = derivative
                        .add_input(&format!("a{k}"), ty.clone(), Origin::Unknown)
                        .ok()?;
                    if k < inputs.len() && ty.dtype.is_float() {
                        derivative.add_output("", input);
                    }
                }
                Rule::Custom(Body(Arc::new(derivative)))
            }
        };
        let symbols = (0..self.graph.symbols().len() as u32)
            .map(|s| SymId(s).into())
            .collect();
        let body = Body(Arc::new(body));
        let kind = NodeKind::Region(Arc::new(Region { body, symbols, rule }));
        let tuple = self.add(kind, &operands, 0.0)?;
        self.project_all(tuple, &bounds)
    }

    /// What few bodies hold otherwise: structures, and loops and regions, of which one reads what another does.
    fn deepen(&mut self) {
        for _ in 0..self.rng.below(3) {
            let _ = match self.rng.below(8) {
                0 => self.grow_region(),
                1 => self.grow_loop(),
                2 => self.grow_sort(),
                3 => self.grow(GenKind::Product),
                4 => self.grow(GenKind::Rows),
                5 => self.grow(GenKind::Join),
                6 => self.grow(GenKind::Windows),
                _ => self.grow(GenKind::Scan),
            };
            if self.rng.chance(1, 2) {
                let kind = self.rng.pick(&self.options.kinds);
                let _ = self.grow(kind);
            }
        }
    }

    /// A body over inputs of those types, how its results are stacked, and about how large the loop's results get.
    #[allow(clippy::type_complexity, reason = "three things that belong together once")]
    fn body(
        &mut self,
        inputs: &[TensorType],
        conditional: bool,
        carried: usize,
    ) -> Option<(Graph, SmallVec<[Along; 2]>, Vec<f64>)> {
        let options = GenOptions {
            guards: false,
            ..self.options.clone()
        };
        let mut graph = Graph::new("body");
        for s in self.graph.symbols() {
            graph.add_symbol(&s.name, s.lo, s.hi);
        }
        let mut g = Generator {
            rng: Rng::new(self.rng.bits()),
            options: &options,
            graph,
            binding: self.binding.clone(),
            bounds: Vec::new(),
            dims: self.dims.clone(),
            inputs: 0,
            counted: self.counted.clone(),
            alike: Vec::new(),
            depth: self.depth + 1,
            max_rank: self.options.max_rank,
        };
        for (i, ty) in inputs.iter().enumerate() {
            g.graph.add_input(&format!("a{i}"), ty.clone(), Origin::Unknown).ok()?;
            // What is carried around is tamed below.
            g.bounds.push(if i == 0 { 10.0 } else { LARGE });
        }
        // Inputs beyond those given would be operands.
        g.inputs = usize::MAX;
        let target = g.graph.len() + 1 + g.rng.below(6);
        for _ in 0..target * 2 {
            if g.graph.len() >= target {
                break;
            }
            let kind = g.rng.pick(&g.options.kinds);
            let _ = g.grow(kind);
        }
        if g.options.deep {
            g.deepen();
        }
        if g.depth < 2 && g.rng.chance(1, 6) {
            let _ = g.grow_loop();
        }
        if g.rng.chance(1, 12) {
            let _ = g.grow_sort();
        }
        let mut outputs = Vec::new();
        if conditional {
            outputs.push(g.of_type(&TensorType::new(DType::Bool, [0i64; 0]))?);
        }
        let mut bounds = Vec::new();
        for ty in &inputs[1..1 + carried] {
            let x = g.of_type(ty)?;
            let x = g.tame(x);
            bounds.push(g.bound(x).max(LARGE));
            outputs.push(x);
        }
        let mut stacks: SmallVec<[Along; 2]> = SmallVec::new();
        for _ in 0..usize::from(carried == 0) + g.rng.below(2) {
            let x = g.any();
            bounds.push(g.bound(x));
            stacks.push(Along {
                axis: g.rng.below(g.ty(x).rank() + 1) as u8,
                reverse: g.rng.chance(1, 3),
            });
            outputs.push(x);
        }
        outputs.into_iter().for_each(|o| g.graph.add_output("", o));
        Some((g.graph, stacks, bounds))
    }
}
