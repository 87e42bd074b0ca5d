//! How much a nest computes, and how much of its parameters it touches.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Access, Kernel, Memory, Op, Stmt};

/// Iterations of a loop; those of a block that is cut from a longer one are the first block's, which no other has more of.
fn iterations(kernel: &Kernel, var: VarId) -> IndexExpr {
    kernel.extents[var.0 as usize].replace_vars(&mut |_| Some(IndexExpr::ZERO))
}

/// Floating-point operations of a nest, a transcendental counting 20 and each value that is combined 1, and a product 2.
pub(super) fn flops(kernel: &Kernel) -> IndexExpr {
    fn of(kernel: &Kernel, body: &[Stmt], trips: &IndexExpr) -> IndexExpr {
        let mut total = IndexExpr::ZERO;
        for s in body {
            let own = match s {
                Stmt::Let {
                    value,
                    op: Op::Map(op, _),
                } if kernel.dtype(*value).is_float() => op.flops() as i64,
                Stmt::Accumulate { values, state, .. } => 1 + (values.len() - state.len()) as i64,
                Stmt::Contract(c) => {
                    let steps = c.vars.map(|v| iterations(kernel, v));
                    total = total + trips.clone() * IndexExpr::product(&steps) * IndexExpr::Const(2);
                    0
                }
                _ => 0,
            };
            total = total + trips.clone() * IndexExpr::Const(own);
            let trips = match s {
                Stmt::Loop { var, .. } => trips.clone() * iterations(kernel, *var),
                _ => trips.clone(),
            };
            total = total + of(kernel, s.body(), &trips);
        }
        total
    }
    of(kernel, &kernel.body, &IndexExpr::ONE)
}

/// Bytes that a nest moves to and from memory, each element that it touches once, or twice where it is read and written.
pub(crate) fn moved_bytes(kernel: &Kernel) -> IndexExpr {
    let params = kernel.params.iter().zip(touched(kernel));
    let bytes = params.map(|(p, touched)| {
        let times = if p.access == Access::ReadWrite { 2 } else { 1 };
        touched * IndexExpr::from(p.dtype.bytes() * times)
    });
    bytes.fold(IndexExpr::ZERO, |a, b| a + b)
}

/// Elements of each parameter that a nest touches, at most: no more than there are, and where data says which ones or all sizes are
/// constants, no more than there are accesses.
fn touched(kernel: &Kernel) -> Vec<IndexExpr> {
    /// Accesses of each parameter.
    fn accesses(kernel: &Kernel, body: &[Stmt], trips: &IndexExpr, total: &mut [IndexExpr]) {
        for s in body {
            for a in s.accesses() {
                if let Memory::Param(p) = a.memory {
                    let total = &mut total[p as usize];
                    *total = std::mem::replace(total, IndexExpr::ZERO) + trips.clone();
                }
            }
            match s {
                Stmt::Loop { var, body, .. } => {
                    let trips = trips.clone() * iterations(kernel, *var);
                    accesses(kernel, body, &trips, total);
                }
                s => accesses(kernel, s.body(), trips, total),
            }
        }
    }
    let mut all = vec![IndexExpr::ZERO; kernel.params.len()];
    accesses(kernel, &kernel.body, &IndexExpr::ONE, &mut all);
    let from_data: Vec<VarId> = walk(&kernel.body)
        .filter_map(|s| match s {
            Stmt::Clamp { var, .. } => Some(*var),
            _ => None,
        })
        .collect();
    // By parameter: whether data says which elements are touched.
    let mut by_data = vec![false; kernel.params.len()];
    if !from_data.is_empty() {
        for a in walk(&kernel.body).flat_map(|s| s.accesses()) {
            if let Memory::Param(p) = a.memory {
                by_data[p as usize] |= from_data.iter().any(|v| a.index.uses(*v));
            }
        }
    }
    let params = kernel.params.iter().zip(all).zip(by_data);
    let most = params.map(|((p, all), by_data)| match (all.as_const(), p.len.as_const()) {
        (Some(all), Some(len)) => IndexExpr::Const(all.min(len)),
        _ if by_data => IndexExpr::min(&all, &p.len),
        _ => p.len.clone(),
    });
    most.collect()
}
