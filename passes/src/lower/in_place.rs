//! Which results of a nest may take the place of which operands.
//!
//! Decided on the naive nest, by matching accesses. The schedule keeps the order of an iteration's loads and stores; the
//! planner lets the plan verifier's own rule judge the scheduled kernel before it relies on a pair.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::visit::Effect;
use tlc_ir::kernel::{Access, Kernel, Memory, Op, Stmt};

/// A load or store of a parameter, in program order.
struct Touch {
    param: u32,
    store: bool,
    masked: bool,
    index: IndexExpr,
    /// Loops inside the parallel ones, outermost first.
    loops: Vec<VarId>,
}

/// `(read, written)` pairs: every load of the one is at the index of the only store of the other and comes before it, in the
/// same iteration of all loops or in an earlier pass over the same row.
pub(super) fn pairs(kernel: &Kernel, parallel: &[VarId]) -> Vec<(u32, u32)> {
    let mut touches = Vec::new();
    collect(&kernel.body, parallel, &mut Vec::new(), &mut touches);
    // By parameter, in program order: kernels of many results have many pairs.
    let mut loads: Vec<Vec<(usize, &Touch)>> = kernel.params.iter().map(|_| Vec::new()).collect();
    let mut stores = loads.clone();
    for (at, t) in touches.iter().enumerate() {
        let of = if t.store { &mut stores } else { &mut loads };
        of[t.param as usize].push((at, t));
    }
    let params = |access: Access| {
        let of = kernel.params.iter().enumerate();
        of.filter(move |(_, p)| p.access == access)
    };
    let mut out = Vec::new();
    for (w, written) in params(Access::Write) {
        let [(at, store)] = stores[w][..] else {
            continue;
        };
        for (r, read) in params(Access::Read) {
            let same_size = read.dtype.bytes() == written.dtype.bytes() && read.len == written.len;
            let loads = &loads[r];
            let mut before = loads.iter().map(|(n, l)| *n < at && same_element(kernel, l, store));
            if same_size && !loads.is_empty() && before.all(|b| b) {
                out.push((r as u32, w as u32));
            }
        }
    }
    out
}

/// Whether a kernel of two parameters does nothing but copy each element of the first to its place in the second.
pub(super) fn is_copy(kernel: &Kernel) -> bool {
    let [from, to] = &kernel.params[..] else {
        return false;
    };
    let types = (from.access, to.access, from.dtype) == (Access::Read, Access::Write, to.dtype) && from.len == to.len;
    let mut body = &kernel.body[..];
    while let [Stmt::Loop { body: inner, .. }] = body {
        body = inner;
    }
    let [
        Stmt::Let {
            value: loaded,
            op:
                Op::Load {
                    memory: Memory::Param(0),
                    index: read,
                    mask: None,
                },
        },
        Stmt::Store {
            memory: Memory::Param(1),
            index: written,
            value,
            mask: None,
        },
    ] = body
    else {
        return false;
    };
    types && loaded == value && read == written
}

/// True if the load walks the elements that the store walks: in the same loops, or in loops of its own over the same extents.
fn same_element(kernel: &Kernel, load: &Touch, store: &Touch) -> bool {
    if load.masked {
        return false;
    }
    if load.loops == store.loops {
        return load.index == store.index;
    }
    let apart = load.loops.iter().all(|v| !store.loops.contains(v));
    let extents =
        |t: &Touch| -> Vec<IndexExpr> { t.loops.iter().map(|v| kernel.extents[v.0 as usize].clone()).collect() };
    apart
        && extents(load) == extents(store)
        && store.index
            == load.index.replace_vars(&mut |v| {
                let at = load.loops.iter().position(|&l| l == v)?;
                Some(store.loops[at].into())
            })
}

fn collect(body: &[Stmt], parallel: &[VarId], loops: &mut Vec<VarId>, out: &mut Vec<Touch>) {
    for s in body {
        // An accumulator in a parameter is no result of such a nest.
        for a in s.accesses().filter(|a| a.effect != Effect::Accumulate) {
            if let Memory::Param(param) = a.memory {
                out.push(Touch {
                    param,
                    store: a.effect.writes(),
                    masked: a.is_conditional(),
                    index: a.index.clone(),
                    loops: loops.clone(),
                });
            }
        }
        let inner = match s {
            Stmt::Loop { var, .. } => Some(*var).filter(|v| !parallel.contains(v)),
            _ => None,
        };
        loops.extend(inner);
        collect(s.body(), parallel, loops, out);
        loops.truncate(loops.len() - usize::from(inner.is_some()));
    }
}
