//! How much a nest computes, and how much of its parameters it touches.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Access, Kernel, Memory, Op, Stmt};

/// Iterations of a loop; those of a block that is cut from a longer one are the first block's, which no other has more of.
fn iterations(kernel: &Kernel, var: VarId) -> IndexExpr {
    kernel.extents[var.0 as usize].replace_vars(&mut |_| Some(IndexExpr::ZERO))
}

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
    let params = kernel.params.iter().enumerate();
    let bytes = params.map(|(k, p)| {
        let times = if p.access == Access::ReadWrite { 2 } else { 1 };
        touched(kernel, k as u32) * IndexExpr::from(p.dtype.bytes() * times)
    });
    bytes.fold(IndexExpr::ZERO, |a, b| a + b)
}

/// Elements of a parameter that a nest touches, at most: no more than there are, and where data says which ones or all sizes are
/// constants, no more than there are accesses.
fn touched(kernel: &Kernel, param: u32) -> IndexExpr {
    fn accesses(kernel: &Kernel, body: &[Stmt], memory: Memory, trips: &IndexExpr) -> IndexExpr {
        let mut total = IndexExpr::ZERO;
        for s in body {
            let own = s.accesses().filter(|a| a.memory == memory).count() as i64;
            total = total + trips.clone() * IndexExpr::Const(own);
            let trips = match s {
                Stmt::Loop { var, .. } => trips.clone() * iterations(kernel, *var),
                _ => trips.clone(),
            };
            total = total + accesses(kernel, s.body(), memory, &trips);
        }
        total
    }
    let memory = Memory::Param(param);
    let len = &kernel.params[param as usize].len;
    let all = accesses(kernel, &kernel.body, memory, &IndexExpr::ONE);
    if let (Some(all), Some(len)) = (all.as_const(), len.as_const()) {
        return IndexExpr::Const(all.min(len));
    }
    let by_data: Vec<VarId> = walk(&kernel.body)
        .filter_map(|s| match s {
            Stmt::Clamp { var, .. } => Some(*var),
            _ => None,
        })
        .collect();
    let mut indices = walk(&kernel.body)
        .flat_map(|s| s.accesses())
        .filter(|a| a.memory == memory);
    match indices.any(|a| by_data.iter().any(|v| a.index.uses(*v))) {
        true => IndexExpr::min(&all, len),
        false => len.clone(),
    }
}
