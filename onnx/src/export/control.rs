//! Loops, and functions that a library has: sorting, and what has as many results as data decides.

use rustc_hash::FxHashMap;
use tlc_formats::onnx::write::{self, Attribute, Dimension, ValueInfo};
use tlc_ir::graph::{HostFunction, Loop, NodeId, TensorType};
use tlc_ir::index::IndexExpr;
use tlc_ir::{DType, Scalar};

use super::size::Known;
use super::view::BEFORE_ALL;
use super::{Outcome, Writer, input_name, storage};

impl Writer<'_, '_> {
    /// ONNX's Loop. What is sliced is picked in the body; what is stacked is stacked along the first axis and moved, and
    /// zeros follow where the loop ended early.
    pub(super) fn repeat(&mut self, id: NodeId, l: &Loop) -> Outcome<Vec<String>> {
        let operands = self.operands(id);
        let mut names = vec![];
        for &o in operands {
            names.push(self.value(o)?);
        }
        let count = l.counted.then(|| names[0].clone());
        let condition = l.condition_operand().map(|k| names[k].clone());
        let (carried, rest) = names[l.leading()..].split_at(l.carried);
        let (sliced, captures) = rest.split_at(l.slices.len());

        // A count that comes with a bound is a condition: stacked results have room for the bound.
        let (most, counted) = match (&l.trip, count) {
            (Some(trip), count) => (self.count(trip)?, count),
            (None, Some(count)) => (count, None),
            (None, None) => (String::new(), None),
        };
        let mut first = condition;
        if let Some(count) = &counted {
            let zero = self.number(0.0, DType::I64);
            let some = self.emit("Less", &[&zero, count]);
            first = Some(match first {
                None => some,
                Some(first) => self.emit("And", &[&first, &some]),
            });
        }
        let early = first.is_some();
        let first = match first {
            Some(first) => first,
            None => self.scalar(Scalar::from_bool(true)),
        };

        let mut lengths = vec![];
        let slice_operands = &operands[l.leading() + l.carried..];
        for (along, &o) in l.slices.iter().zip(slice_operands) {
            lengths.push(self.ty(o).shape[along.axis as usize].clone());
        }
        let mut ends = vec![];
        for (along, length) in l.slices.iter().zip(&lengths) {
            ends.push(match along.reverse {
                true => Some(self.count(length)?),
                false => None,
            });
        }
        let body = self.body(l, (carried, sliced, captures), &ends, counted.as_deref())?;

        let mut inputs = vec![most.as_str(), first.as_str()];
        inputs.extend(carried.iter().map(String::as_str));
        let mut results: Vec<String> = vec![];
        for _ in 0..l.results() {
            results.push(self.shared.name("loop"));
        }
        let attributes = vec![("body", Attribute::Graph(Box::new(body)))];
        self.push("Loop", &inputs, results.clone(), attributes);
        let types = &self.graph.node(id).results;
        for (k, along) in l.stacks.iter().enumerate() {
            let place = l.carried + k;
            results[place] = self.stacked(
                &results[place],
                &types[place],
                along.axis as usize,
                along.reverse,
                early,
            )?;
        }
        Ok(results)
    }

    /// What a loop stacked along the first axis, where it belongs.
    fn stacked(&mut self, made: &str, ty: &TensorType, axis: usize, reverse: bool, early: bool) -> Outcome<String> {
        let rank = ty.rank();
        let mut made = made.to_string();
        if early {
            let whole = self.size(&ty.shape[axis])?;
            let ran = self.extent(&made, 0);
            let (missing, zero) = (self.emit("Sub", &[&whole, &ran]), self.vector(&[0]));
            let missing = self.emit("Max", &[&missing, &zero]);
            let (before, behind) = (self.vector(&vec![0; rank]), self.vector(&vec![0; rank - 1]));
            let mut parts = vec![before.as_str(), missing.as_str()];
            if rank > 1 {
                parts.push(&behind);
            }
            let pads = self.with("Concat", &parts, vec![("axis", Attribute::Int(0))]);
            let zero = self.scalar(ty.dtype.zero());
            made = self.emit("Pad", &[&made, &pads, &zero]);
        }
        if reverse {
            let (start, end) = (self.vector(&[-1]), self.vector(&[BEFORE_ALL]));
            let (axes, step) = (self.vector(&[0]), self.vector(&[-1]));
            let slice = |this: &mut Self, x: &[String]| this.emit("Slice", &[&x[0], &start, &end, &axes, &step]);
            made = self.carried(&[&made], ty.dtype, slice);
        }
        let mut order: Vec<usize> = (1..rank).collect();
        order.insert(axis, 0);
        Ok(self.transpose(&made, &order))
    }

    fn body(
        &mut self,
        l: &Loop,
        (carried, sliced, captures): (&[String], &[String], &[String]),
        ends: &[Option<String>],
        counted: Option<&str>,
    ) -> Outcome<write::Graph> {
        let graph = &*l.body.0;
        let mut symbols = vec![];
        for e in &l.symbols {
            symbols.push(match self.constant(e) {
                Some(n) => Known::Number(n),
                // A size that nothing determines may be one that the body does not ask for.
                None => self.size(e).map_or(Known::Nothing, Known::Value),
            });
        }
        symbols.resize_with(graph.symbols().len(), || Known::Nothing);
        let mut body = Writer::new(self.shared, graph, symbols);
        body.at = graph.inputs().first().copied().unwrap_or(NodeId(0));
        let (iteration, going) = (body.shared.name("iteration"), body.shared.name("condition"));
        let scalar = |name: &str, dtype: DType| ValueInfo {
            name: name.to_string(),
            dtype,
            shape: vec![],
        };
        let mut inputs = vec![scalar(&iteration, DType::I64), scalar(&going, DType::Bool)];
        let mut formal = graph.inputs().iter().copied();
        if let Some(id) = formal.next() {
            body.set(id, iteration.clone());
        }
        for _ in carried {
            let Some(id) = formal.next() else { break };
            let name = body.shared.name(input_name(graph, id));
            inputs.push(body.info(&name, graph.ty(id)));
            body.set(id, name);
        }
        for (k, source) in sliced.iter().enumerate() {
            let Some(id) = formal.next() else { break };
            let place = match &ends[k] {
                Some(end) => {
                    let one = body.number(1.0, DType::I64);
                    let next = body.emit("Add", &[&iteration, &one]);
                    body.emit("Sub", &[end, &next])
                }
                None => iteration.clone(),
            };
            let axis = vec![("axis", Attribute::Int(l.slices[k].axis.into()))];
            let gather = |this: &mut Writer, x: &[String]| this.with("Gather", &[&x[0], &place], axis);
            let name = body.carried(&[source], graph.ty(id).dtype, gather);
            body.set(id, name);
        }
        for (capture, id) in captures.iter().zip(formal) {
            body.set(id, capture.clone());
        }
        body.nodes_of(&FxHashMap::default())
            .map_err(|e| format!("in its body: {e}"))?;

        let mut results = vec![];
        let mut all = graph.outputs().iter();
        let mut goes_on = match l.conditional {
            true => {
                let output = all.next().ok_or("a body without a condition; a bug")?;
                body.value(output.node)?
            }
            false => going,
        };
        if let Some(count) = counted {
            let one = body.number(1.0, DType::I64);
            let next = body.emit("Add", &[&iteration, &one]);
            let more = body.emit("Less", &[&next, count]);
            goes_on = body.emit("And", &[&goes_on, &more]);
        }
        results.push((goes_on, TensorType::new(DType::Bool, [0i64; 0])));
        for output in all {
            results.push((body.value(output.node)?, graph.ty(output.node).clone()));
        }
        let mut outputs = vec![];
        for (value, ty) in results {
            // Each output is a value of its own, made in the body.
            let name = body.emit("Identity", &[&value]);
            outputs.push(body.info(&name, &ty));
        }
        let nodes = std::mem::take(&mut body.nodes);
        Ok(write::Graph {
            name: body.shared.name("body"),
            nodes,
            initializers: vec![],
            inputs,
            outputs,
        })
    }

    /// A value inside a body: its extents are said where they are numbers.
    fn info(&mut self, name: &str, ty: &TensorType) -> ValueInfo {
        self.shared.see(ty.dtype);
        let dimension = |d: &IndexExpr| self.constant(d).map_or(Dimension::Unknown, Dimension::Value);
        ValueInfo {
            name: name.to_string(),
            dtype: ty.dtype,
            shape: ty.shape.iter().map(dimension).collect(),
        }
    }

    pub(super) fn call(&mut self, id: NodeId, function: &HostFunction) -> Outcome<Vec<String>> {
        let operands = self.operands(id);
        let mut names = vec![];
        for &o in operands {
            names.push(self.value(o)?);
        }
        let ty = self.ty(operands[0]);
        let x = names[0].clone();
        Ok(match function {
            HostFunction::Sort {
                axis,
                count,
                descending,
            } => {
                storage(ty.dtype, "TopK")?;
                let wide = if ty.dtype == DType::Bool { DType::U8 } else { ty.dtype };
                if wide == DType::BF16 {
                    self.shared.needs(24);
                }
                let x = self.cast(&x, ty.dtype, wide);
                let k = self.size(count)?;
                let (values, places) = (self.shared.name("values"), self.shared.name("places"));
                let attributes = vec![
                    ("axis", Attribute::Int((*axis).into())),
                    ("largest", Attribute::Int((*descending).into())),
                ];
                self.push("TopK", &[&x, &k], vec![values.clone(), places.clone()], attributes);
                vec![self.cast(&values, wide, ty.dtype), places]
            }
            HostFunction::NonZero { count } => {
                storage(ty.dtype, "NonZero")?;
                if ty.rank() == 0 {
                    return Err("ONNX's NonZero of a scalar has another shape".into());
                }
                let places = self.emit("NonZero", &[&x]);
                let n = self.bound(count.0, &places, 1);
                vec![places, n]
            }
            HostFunction::Unique { axis, sorted, count } => {
                storage(ty.dtype, "Unique")?;
                if ty.dtype == DType::BF16 {
                    return Err("ONNX's Unique takes no bf16".into());
                }
                let mut attributes = vec![("sorted", Attribute::Int((*sorted).into()))];
                attributes.extend(axis.map(|a| ("axis", Attribute::Int(a.into()))));
                let all: Vec<String> = ["values", "first", "inverse", "counts"]
                    .iter()
                    .map(|n| self.shared.name(n))
                    .collect();
                self.push("Unique", &[&x], all.clone(), attributes);
                let n = self.bound(count.0, &all[3], 0);
                [all, vec![n]].concat()
            }
            HostFunction::Suppress { center, count } => {
                let all: Vec<&str> = names.iter().map(String::as_str).collect();
                let attributes = match center {
                    true => vec![("center_point_box", Attribute::Int(1))],
                    false => vec![],
                };
                let taken = self.with("NonMaxSuppression", &all, attributes);
                let n = self.bound(count.0, &taken, 0);
                vec![taken, n]
            }
        })
    }

    /// Remembers that a symbol is that extent of a value; returns it, `i64[]`.
    fn bound(&mut self, symbol: u32, value: &str, axis: usize) -> String {
        let size = self.extent(value, axis);
        if let Some(known) = self.symbols.get_mut(symbol as usize) {
            *known = Known::Value(size.clone());
        }
        self.as_scalar(&size)
    }
}
