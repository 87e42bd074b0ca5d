//! The typing rules of nodes of several results: loops, whose bodies are graphs, and host functions.

use smallvec::smallvec;

use super::{Refusal, Rule, computed_in, element_product, refuse, refuse_expecting};
use crate::dtype::DType;
use crate::graph::control::MAX_LOOP_DEPTH;
use crate::graph::region::{outside, type_outside};
use crate::graph::{Condition, Graph, HostFunction, Loop, NodeId, Region, Rule as RegionRule, TensorType};
use crate::index::{IndexExpr, SymId};

impl Rule<'_> {
    /// Records that an expression is not negative; returns whether it can be.
    pub(super) fn not_negative(&mut self, e: IndexExpr) -> bool {
        if e.interval(self.graph).hi < 0 {
            return false;
        }
        if !e.proves_nonnegative(self.graph) {
            self.conditions.push(Condition::NonNegative(e));
        }
        true
    }

    /// An operand must be of that type; `what` names it.
    fn expect(&mut self, what: &str, found: &TensorType, expected: &TensorType) -> Result<(), Refusal> {
        let fits = found.dtype == expected.dtype
            && found.rank() == expected.rank()
            && found.shape.iter().zip(&expected.shape).all(|(a, b)| self.agree(a, b));
        match fits {
            true => Ok(()),
            false => refuse_expecting(
                format!("{what} {}", self.graph.type_text(found)),
                self.graph.type_text(expected),
            ),
        }
    }

    /// Whether a body may stand here, with those values of its symbols.
    fn fits_around(&mut self, body: &Graph, symbols: &[IndexExpr]) -> Result<(), Refusal> {
        if 1 + body.depth() > MAX_LOOP_DEPTH {
            return refuse_expecting(
                "loops and regions inside each other",
                format!("at most {MAX_LOOP_DEPTH}"),
            );
        }
        if body.symbols().iter().any(|s| s.upper.is_some()) {
            return refuse("a body whose data decides a size");
        }
        if symbols.len() != body.symbols().len() {
            let problem = format!("{} symbol values", symbols.len());
            return refuse_expecting(problem, format!("one for each of {}", body.symbols().len()));
        }
        for (value, s) in symbols.iter().zip(body.symbols()) {
            let low = value.clone() - IndexExpr::Const(s.lo);
            let high = IndexExpr::Const(s.hi) - value.clone();
            if !self.not_negative(low) || !self.not_negative(high) {
                let problem = format!("symbol {} = {}", s.name, self.text(value));
                return refuse_expecting(problem, format!("{}..={}", s.lo, s.hi));
            }
        }
        for guard in body.guards() {
            let holds = match &guard.condition {
                Condition::Equal(a, b) => self.agree(&outside(symbols, a), &outside(symbols, b)),
                Condition::NonNegative(a) => self.not_negative(outside(symbols, a)),
            };
            if !holds {
                return refuse("the body assumes what cannot hold");
            }
        }
        if let Some(o) = body.outputs().iter().find(|o| body.node(o.node).kind.is_tuple()) {
            return refuse(format!("the body's output {} has several results", o.name));
        }
        Ok(())
    }

    /// The types of a region's results.
    pub(super) fn region(&mut self, r: &Region, types: &[&TensorType]) -> Result<Vec<TensorType>, Refusal> {
        for body in r.bodies() {
            self.fits_around(&body.0, &r.symbols)?;
        }
        let own = |of: &[NodeId], body: &Graph| -> Vec<TensorType> {
            of.iter().map(|&id| type_outside(&r.symbols, body.ty(id))).collect()
        };
        let outputs = |body: &Graph| body.outputs().iter().map(|o| o.node).collect::<Vec<_>>();
        let body = &*r.body.0;
        let (inputs, results) = (own(body.inputs(), body), own(&outputs(body), body));
        self.expect_all("operand", types, &inputs)?;
        if let RegionRule::Custom(derivative) = &r.rule {
            let derivative = &*derivative.0;
            let is_float = |ty: &&TensorType| ty.dtype.is_float();
            let given: Vec<TensorType> = own(derivative.inputs(), derivative);
            let expected = inputs.iter().chain(&results).chain(results.iter().filter(is_float));
            self.expect_all(
                "input of the derivative",
                &given.iter().collect::<Vec<_>>(),
                &expected.cloned().collect::<Vec<_>>(),
            )?;
            let made: Vec<TensorType> = own(&outputs(derivative), derivative);
            let expected: Vec<TensorType> = inputs.iter().filter(is_float).cloned().collect();
            self.expect_all("output of the derivative", &made.iter().collect::<Vec<_>>(), &expected)?;
        }
        Ok(results)
    }

    /// As [`Rule::expect`], of several.
    fn expect_all(&mut self, what: &str, found: &[&TensorType], expected: &[TensorType]) -> Result<(), Refusal> {
        if found.len() != expected.len() {
            return refuse_expecting(format!("{} times {what}", found.len()), format!("{}", expected.len()));
        }
        for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
            self.expect(&format!("{what} {k} of"), found, expected)?;
        }
        Ok(())
    }

    /// The types of a loop's results.
    pub(super) fn repeated(&mut self, l: &Loop, types: &[&TensorType]) -> Result<Vec<TensorType>, Refusal> {
        let body = &*l.body.0;
        self.fits_around(body, &l.symbols)?;
        if l.trip.is_none() && !l.conditional && !l.counted {
            return refuse_expecting("no end", "a trip count, a count or a condition");
        }
        if let Some(trip) = &l.trip
            && !self.not_negative(trip.clone())
        {
            return refuse(format!("trip count {} is negative", self.text(trip)));
        }
        let lead = l.leading();
        let inputs: Vec<TensorType> = body.inputs().iter().map(|&i| l.outer_type(body.ty(i))).collect();
        if lead + inputs.len() != types.len() + 1 || inputs.len() < 1 + l.carried + l.slices.len() {
            let problem = format!("{} operands for a body of {} inputs", types.len(), inputs.len());
            return refuse_expecting(problem, "the iteration number and one operand for each input");
        }
        let scalar = |dtype| TensorType::new(dtype, [0i64; 0]);
        self.expect("the body's first input", &inputs[0], &scalar(DType::I64))?;
        if l.counted {
            self.expect("count", types[0], &scalar(DType::I64))?;
        }
        if let Some(k) = l.condition_operand() {
            self.expect("condition", types[k], &scalar(DType::Bool))?;
        }
        if body.outputs().len() != l.first_carried_output() + l.results() {
            let problem = format!("a body of {} outputs", body.outputs().len());
            return refuse_expecting(problem, format!("{}", l.first_carried_output() + l.results()));
        }
        let output = |k: usize| body.ty(body.outputs()[k].node);
        if l.conditional {
            self.expect("the body's condition", &l.outer_type(output(0)), &scalar(DType::Bool))?;
        }
        let mut results = Vec::new();
        for k in 0..l.carried {
            let ty = &inputs[1 + k];
            self.expect(&format!("carried value {k} of"), types[lead + k], ty)?;
            let (from, to) = (body.ty(body.inputs()[1 + k]), output(l.first_carried_output() + k));
            let same = |(a, b): (&IndexExpr, &IndexExpr)| {
                let apart = (a.clone() - b.clone()).interval(body);
                apart.lo == 0 && apart.hi == 0
            };
            let keeps =
                from.dtype == to.dtype && from.rank() == to.rank() && from.shape.iter().zip(&to.shape).all(same);
            if !keeps {
                let problem = format!("carried value {k} becomes {}", body.type_text(to));
                return refuse_expecting(problem, body.type_text(from));
            }
            results.push(ty.clone());
        }
        for (k, along) in l.slices.iter().enumerate() {
            let found = types[lead + l.carried + k];
            let Some(trip) = &l.trip else {
                return refuse_expecting("slices without a trip count", "a trip count");
            };
            let axis = along.axis as usize;
            if axis >= found.rank() {
                return refuse(format!("axis {axis} of a tensor of rank {}", found.rank()));
            }
            let mut ty = inputs[1 + l.carried + k].clone();
            if axis > ty.rank() {
                return refuse(format!("axis {axis} for slices of rank {}", ty.rank()));
            }
            ty.shape.insert(axis, trip.clone());
            self.expect(&format!("sliced operand {k} of"), found, &ty)?;
        }
        let first = l.carried + l.slices.len();
        for (k, ty) in inputs[1 + first..].iter().enumerate() {
            self.expect(&format!("capture {k} of"), types[lead + first + k], ty)?;
        }
        for (k, along) in l.stacks.iter().enumerate() {
            let Some(trip) = &l.trip else {
                return refuse_expecting("stacked results without a trip count", "a trip count");
            };
            let mut ty = l.outer_type(output(l.first_carried_output() + l.carried + k));
            if along.axis as usize > ty.rank() {
                return refuse(format!("axis {} for elements of rank {}", along.axis, ty.rank()));
            }
            ty.shape.insert(along.axis as usize, trip.clone());
            results.push(ty);
        }
        Ok(results)
    }

    /// The types of a host function's results.
    pub(super) fn call(&mut self, function: &HostFunction, types: &[&TensorType]) -> Result<Vec<TensorType>, Refusal> {
        for t in types {
            computed_in(t.dtype)?;
        }
        match function {
            HostFunction::Sort { axis, count, .. } => {
                let x = types[0];
                let Some(extent) = x.shape.get(*axis as usize) else {
                    return refuse(format!("axis {axis} of a tensor of rank {}", x.rank()));
                };
                if !self.not_negative(count.clone()) || !self.not_negative(extent.clone() - count.clone()) {
                    let problem = format!("{} of {} elements", self.text(count), self.text(extent));
                    return refuse_expecting(problem, "as many as there are, or fewer");
                }
                let mut values = x.clone();
                values.shape[*axis as usize] = count.clone();
                let places = TensorType {
                    dtype: DType::I64,
                    shape: values.shape.clone(),
                };
                Ok(vec![values, places])
            }
            HostFunction::NonZero { count } => {
                let x = types[0];
                let count = self.counted(*count, &element_product(&x.shape)?)?;
                let rank = IndexExpr::from(x.rank());
                Ok(vec![TensorType::new(DType::I64, [rank, count]), scalar_i64()])
            }
            HostFunction::Unique { axis, count, .. } => {
                let x = types[0];
                let all = match axis {
                    None => element_product(&x.shape)?,
                    Some(axis) => match x.shape.get(*axis as usize) {
                        Some(extent) => extent.clone(),
                        None => return refuse(format!("axis {axis} of a tensor of rank {}", x.rank())),
                    },
                };
                let count = self.counted(*count, &all)?;
                let mut values = x.clone();
                match axis {
                    Some(axis) => values.shape[*axis as usize] = count.clone(),
                    None => values.shape = smallvec![count.clone()],
                }
                let list = |n: &IndexExpr| TensorType::new(DType::I64, [n.clone()]);
                Ok(vec![values, list(&count), list(&all), list(&count), scalar_i64()])
            }
            HostFunction::Suppress { count, .. } => {
                let (boxes, scores) = (types[0], types[1]);
                let scalars = [(2, DType::I64), (3, DType::F32), (4, DType::F32)];
                for (k, dtype) in scalars {
                    self.expect(&format!("operand {k}"), types[k], &TensorType::new(dtype, [0i64; 0]))?;
                }
                if boxes.rank() != 3 || scores.rank() != 3 {
                    return refuse_expecting("boxes or scores of another rank", "rank 3 for both");
                }
                let (batch, classes, n) = (&scores.shape[0], &scores.shape[1], &scores.shape[2]);
                let expected = TensorType::new(DType::F32, [batch.clone(), n.clone(), IndexExpr::Const(4)]);
                self.expect("boxes", boxes, &expected)?;
                if scores.dtype != DType::F32 {
                    return refuse_expecting(format!("scores of {}", scores.dtype), "f32");
                }
                let most = element_product(&[batch.clone(), classes.clone(), n.clone()])?;
                let count = self.counted(*count, &most)?;
                Ok(vec![
                    TensorType::new(DType::I64, [count, IndexExpr::Const(3)]),
                    scalar_i64(),
                ])
            }
        }
    }

    /// A symbol that a call binds, which may take any value up to `most`.
    fn counted(&mut self, count: SymId, most: &IndexExpr) -> Result<IndexExpr, Refusal> {
        match self.graph.symbols().get(count.0 as usize).map(|s| &s.upper) {
            Some(Some(upper)) if self.not_negative(upper.clone() - most.clone()) => Ok(count.into()),
            Some(Some(upper)) => {
                let problem = format!("a count of at most {}", self.text(upper));
                refuse_expecting(problem, self.text(most))
            }
            _ => refuse_expecting("a count that data does not decide", "a symbol with an upper bound"),
        }
    }
}

fn scalar_i64() -> TensorType {
    TensorType::new(DType::I64, [0i64; 0])
}
