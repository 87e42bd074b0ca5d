//! Views: reshapes, transposes, padding, slices, windows.

use tlc_formats::onnx::write::Attribute;
use tlc_ir::graph::{NodeId, View};
use tlc_ir::index::{IndexExpr, NoBounds};
use tlc_ir::{DType, HostTensor};

use super::{Outcome, Writer, ints};

/// An end of a slice that runs backward through the first element: before every axis, and a number that programs take for a
/// size.
pub(super) const BEFORE_ALL: i64 = -(1 << 39);

/// Places of windows are a constant of at most this many elements, else computed in the model.
const MAX_PLACES: i64 = 1 << 14;

/// How ONNX says what a slice takes of an axis.
struct Taken {
    start: IndexExpr,
    end: IndexExpr,
    /// Start and end of a part that is cut out before.
    cut: Option<(IndexExpr, IndexExpr)>,
}

impl Writer<'_, '_> {
    pub(super) fn view(&mut self, id: NodeId, view: &View) -> Outcome<String> {
        let operand = self.operands(id)[0];
        let ty = self.ty(operand);
        let x = self.value(operand)?;
        match view {
            View::Reshape(shape) => self.reshape(&x, shape),
            View::Permute(axes) => Ok(self.transpose(&x, &axes.iter().map(|&a| a as usize).collect::<Vec<_>>())),
            View::Expand(_) => Ok(x),
            View::Pad {
                lo,
                hi,
                interior,
                value,
            } => {
                // The model does not tell the symbols' ranges, by which these may be known not to be negative.
                let sure = |d: &IndexExpr| match d.interval(&NoBounds).lo {
                    0.. => d.clone(),
                    _ => IndexExpr::max(d, &IndexExpr::ZERO),
                };
                let fill = self.scalar(*value);
                let x = self.spread(x, operand, interior, &fill)?;
                if lo.iter().chain(hi).all(|d| d.is(0)) {
                    return Ok(x);
                }
                let pads: Vec<IndexExpr> = lo.iter().chain(hi).map(sure).collect();
                let pads = self.shape(&pads)?;
                Ok(self.emit("Pad", &[&x, &pads, &fill]))
            }
            View::Slice { start, step, size } => {
                let (mut starts, mut ends, mut axes, mut steps) = (vec![], vec![], vec![], vec![]);
                // What is cut out before, along which axes.
                let (mut firsts, mut lasts, mut along) = (vec![], vec![], vec![]);
                for (axis, extent) in ty.shape.iter().enumerate() {
                    let (start, step, size) = (self.plain(&start[axis]), step[axis], self.plain(&size[axis]));
                    let extent = self.plain(extent);
                    if start.is(0) && step == 1 && size == extent {
                        continue;
                    }
                    let taken = self.ends(start, step, &size, &extent);
                    if let Some((first, last)) = taken.cut {
                        firsts.push(first);
                        lasts.push(last);
                        along.push(axis as i64);
                    }
                    starts.push(taken.start);
                    ends.push(taken.end);
                    axes.push(axis as i64);
                    steps.push(step);
                }
                if axes.is_empty() {
                    return Ok(x);
                }
                let cut = match along.is_empty() {
                    true => None,
                    false => Some([self.shape(&firsts)?, self.shape(&lasts)?, self.vector(&along)]),
                };
                let (starts, ends) = (self.shape(&starts)?, self.shape(&ends)?);
                let (axes, steps) = (self.vector(&axes), self.vector(&steps));
                let slice = |this: &mut Self, x: &[String]| {
                    let x = match &cut {
                        Some([first, last, along]) => this.emit("Slice", &[&x[0], first, last, along]),
                        None => x[0].clone(),
                    };
                    this.emit("Slice", &[&x, &starts, &ends, &axes, &steps])
                };
                Ok(self.carried(&[&x], ty.dtype, slice))
            }
            View::Window {
                axis, stride, dilation, ..
            } => self.window(id, &x, *axis as usize, (*stride, *dilation)),
        }
    }

    /// Padding between elements, which ONNX has not: each element becomes a row that is padded behind it, and what is behind
    /// the last element is cut off. Of an empty axis nothing is left either way.
    fn spread(&mut self, x: String, operand: NodeId, interior: &[i64], fill: &str) -> Outcome<String> {
        let axes: Vec<usize> = (0..interior.len()).filter(|&a| interior[a] > 0).collect();
        if axes.is_empty() {
            return Ok(x);
        }
        let ty = self.ty(operand);
        let (mut apart, mut merged, mut pads) = (vec![], vec![], vec![]);
        for (d, &p) in ty.shape.iter().zip(interior) {
            let d = self.plain(d);
            apart.push(d.clone());
            pads.push(0);
            if p > 0 {
                apart.push(IndexExpr::ONE);
                pads.push(p);
            }
            merged.push(d * IndexExpr::Const(p + 1));
        }
        let before = vec![0; pads.len()];
        let pads = self.vector(&[before, pads].concat());
        let rows = self.reshape(&x, &apart)?;
        let padded = self.emit("Pad", &[&rows, &pads, fill]);
        let flat = self.reshape(&padded, &merged)?;
        let starts = self.vector(&vec![0; axes.len()]);
        let ends = self.vector(&axes.iter().map(|&a| -interior[a]).collect::<Vec<_>>());
        let along = self.vector(&axes.iter().map(|&a| a as i64).collect::<Vec<_>>());
        let slice = |this: &mut Self, x: &[String]| this.emit("Slice", &[&x[0], &starts, &ends, &along]);
        Ok(self.carried(&[&flat], ty.dtype, slice))
    }

    /// Where a slice of an axis starts and ends, as ONNX counts: a number below 0 from the end.
    fn ends(&self, start: IndexExpr, step: i64, size: &IndexExpr, extent: &IndexExpr) -> Taken {
        let plain = |start, end| Taken { start, end, cut: None };
        let span = size.clone() * IndexExpr::Const(step);
        if step > 0 {
            // Where nothing is taken both are the same, whatever they are.
            let end = start.clone() + span;
            return plain(start, end);
        }
        let before = IndexExpr::Const(BEFORE_ALL);
        // All of the axis from its last element on, though there be none.
        let whole = extent.ceil_div(-step) - size.clone();
        if whole.is(0) && (extent.clone() - start.clone()).is(1) {
            return plain(IndexExpr::Const(-1), before);
        }
        // Where nothing is taken the start may be before the axis: there it is the first element, and so is the end.
        let start = match start.interval(self.graph).lo {
            0.. => start,
            _ => IndexExpr::max(&start, &IndexExpr::ZERO),
        };
        let end = start.clone() + span;
        let range = end.interval(self.graph);
        match (range.lo, range.hi) {
            (0.., _) => plain(start, end),
            (_, ..0) => plain(start, before),
            // An end that may be before the first element would count from the end there: the part is cut out first, and all of that
            // turned around.
            _ => {
                let first = IndexExpr::max(&(end - IndexExpr::Const(step)), &IndexExpr::ZERO);
                Taken {
                    start: IndexExpr::Const(-1),
                    end: before,
                    cut: Some((first, start + IndexExpr::ONE)),
                }
            }
        }
    }

    pub(super) fn reshape(&mut self, x: &str, shape: &[IndexExpr]) -> Outcome<String> {
        let target = self.shape(shape)?;
        // An extent of 0 is one: else it means the operand's.
        let zero = |d: &IndexExpr| self.constant(d).is_none_or(|n| n == 0);
        let kept = shape.iter().any(zero);
        let attributes = if kept {
            vec![("allowzero", Attribute::Int(1))]
        } else {
            vec![]
        };
        Ok(self.with("Reshape", &[x, &target], attributes))
    }

    pub(super) fn transpose(&mut self, x: &str, axes: &[usize]) -> String {
        if axes.iter().enumerate().all(|(i, &a)| i == a) {
            return x.to_string();
        }
        self.with("Transpose", &[x], vec![("perm", ints(axes.iter().copied()))])
    }

    /// `result[.., o, .., k] = x[.., o * stride + k * dilation, ..]`: a gather of those places.
    fn window(&mut self, id: NodeId, x: &str, axis: usize, (stride, dilation): (i64, i64)) -> Outcome<String> {
        let shape = &self.ty(id).shape;
        let rank = shape.len();
        let (count, size) = (self.plain(&shape[axis]), self.plain(&shape[rank - 1]));
        let places = match (count.as_const(), size.as_const()) {
            (Some(o), Some(k)) if o.saturating_mul(k) <= MAX_PLACES => {
                let all: Vec<i64> = (0..o)
                    .flat_map(|o| (0..k).map(move |k| o * stride + k * dilation))
                    .collect();
                let data = HostTensor::from_slice(&[o as usize, k as usize], &all).map_err(|e| e.to_string())?;
                self.shared.initializer("places", data)
            }
            _ => {
                let scaled = |this: &mut Self, n: &IndexExpr, by: i64| -> Outcome<String> {
                    let range = this.range(n)?;
                    let by = this.scalar(tlc_ir::Scalar::from_i64(DType::I64, by));
                    Ok(this.emit("Mul", &[&range, &by]))
                };
                let (rows, columns) = (scaled(self, &count, stride)?, scaled(self, &size, dilation)?);
                let axes = self.vector(&[1]);
                let rows = self.emit("Unsqueeze", &[&rows, &axes]);
                self.emit("Add", &[&rows, &columns])
            }
        };
        let along = vec![("axis", Attribute::Int(axis as i64))];
        let gather = |this: &mut Self, x: &[String]| this.with("Gather", &[&x[0], &places], along);
        let gathered = self.carried(&[x], self.ty(id).dtype, gather);
        let mut order: Vec<usize> = (0..rank).collect();
        order.remove(axis + 1);
        order.push(axis + 1);
        Ok(self.transpose(&gathered, &order))
    }
}
