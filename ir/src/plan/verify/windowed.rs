//! Operands of products with windows over axes that end.

use super::{Checker, PlanRule};
use crate::index::IndexExpr;
use crate::plan::{DeviceId, Gemm, GemmOperand, Strides};

/// How an operand's elements across the sum follow each other, and how those along it do.
fn across_and_along<'o>(g: &'o Gemm, o: &'o GemmOperand) -> [&'o Strides; 2] {
    match std::ptr::eq(o, &g.rhs) {
        true => [&o.column, &o.row],
        false => [&o.row, &o.column],
    }
}

/// Stride and extent of all that an operand goes along in its slot beside its batch: of each dimension that is no place or element of a window, and of each
/// windowed axis.
pub(super) fn accessed(g: &Gemm, o: &GemmOperand) -> Vec<(IndexExpr, IndexExpr)> {
    let [across, along] = across_and_along(g, o);
    let place = |n: usize| o.windowed.iter().any(|w| w.place == n);
    let others = across.dims.iter().enumerate().filter(|(n, _)| !place(*n)).map(|d| d.1);
    let others = others.chain(along.dims.iter().skip(o.windowed.len()));
    let axes = o.windowed.iter().map(|w| (w.step.clone(), w.extent.clone()));
    others
        .map(|d| (d.stride.clone(), d.extent.clone()))
        .chain(axes)
        .collect()
}

impl Checker<'_> {
    /// The dimensions that windows are of are there and walk their axes, in an operand of floats on the host.
    pub(super) fn windowed(&mut self, g: &Gemm, o: &GemmOperand) {
        if o.windowed.is_empty() {
            return;
        }
        for e in o.windowed.iter().flat_map(|w| [&w.before, &w.extent, &w.step]) {
            self.symbolic(e);
        }
        let [across, along] = across_and_along(g, o);
        let walks =
            |stride: &IndexExpr, step: &IndexExpr, factor: i64| *stride == step.clone() * IndexExpr::Const(factor);
        let fits = o.windowed.iter().enumerate().all(|(n, w)| {
            let alone = o.windowed[..n].iter().all(|other| other.place != w.place);
            match (across.dims.get(w.place), along.dims.get(n)) {
                (Some(places), Some(elements)) => {
                    alone
                        && w.stride > 0
                        && w.dilation > 0
                        && walks(&places.stride, &w.step, w.stride)
                        && walks(&elements.stride, &w.step, w.dilation)
                }
                _ => false,
            }
        });
        let floats = matches!(g.dtype, crate::DType::F32 | crate::DType::F64);
        let host = self.plan.slots[o.slot.0 as usize].device == DeviceId(0);
        if !fits || !floats || !host || std::ptr::eq(o, &g.dst) {
            self.error(PlanRule::Windows(o.slot));
        }
    }
}
