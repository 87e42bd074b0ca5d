//! How much a nest computes.

use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Kernel, Op, Stmt};

/// Floating-point operations of a nest, a transcendental counting 20 and each value that is combined 1.
pub(super) fn flops(kernel: &Kernel) -> IndexExpr {
    fn of(kernel: &Kernel, body: &[Stmt], trips: &IndexExpr) -> IndexExpr {
        let mut total = IndexExpr::ZERO;
        for s in body {
            let own = match s {
                Stmt::Let {
                    value,
                    op: Op::Map(op, _),
                } if kernel.dtype(*value).is_float() => op.flops() as i64,
                Stmt::Accumulate { .. } => 1,
                _ => 0,
            };
            total = total + trips.clone() * IndexExpr::Const(own);
            let trips = match s {
                Stmt::Loop { var, .. } => trips.clone() * kernel.extents[var.0 as usize].clone(),
                _ => trips.clone(),
            };
            total = total + of(kernel, s.body(), &trips);
        }
        total
    }
    of(kernel, &kernel.body, &IndexExpr::ONE)
}
