//! Host functions under concrete symbol values.

use tlc_ir::DType;
use tlc_ir::binding::most_under;
use tlc_ir::graph::HostFunction;
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{HostCall, Plan, SlotId};

use super::{Sizes, is_open, overflow};
use crate::error::RunError;

/// The rows of a tensor: `outer * inner` of them, each of `extent` elements that are `inner` apart.
pub struct Sort {
    /// Element type.
    pub dtype: DType,
    /// Elements of the axes before the sorted one.
    pub outer: usize,
    /// Elements of a row.
    pub extent: usize,
    /// Elements of the axes behind it.
    pub inner: usize,
    /// How many elements are kept of each row; at most `extent`.
    pub count: usize,
    /// Whether the largest come first.
    pub descending: bool,
}

/// A host function whose sizes are known. What is not said otherwise is the number of a slot.
pub enum BoundCall {
    /// Sorts rows.
    Sort {
        /// What is sorted.
        x: usize,
        /// The sorted elements.
        values: usize,
        /// Where they were.
        places: usize,
        /// Memory to work in.
        workspace: usize,
        /// Rows whose keys the workspace has room for.
        rows_at_once: usize,
        /// How.
        sort: Sort,
    },
    /// Makes results whose size data decides.
    Counted(Counted),
}

/// A function whose result's size data decides.
pub struct Counted {
    /// Which.
    pub function: HostFunction,
    /// The symbol that it binds.
    pub symbol: usize,
    /// The largest value that its buffers have room for.
    pub most: i64,
    /// Slot, dtype, extents.
    pub operands: Vec<(usize, DType, Vec<usize>)>,
    /// Slot and bytes.
    pub results: Vec<(usize, usize)>,
}

impl BoundCall {
    /// Evaluates its sizes.
    pub(super) fn bind(c: &HostCall, plan: &Plan, sizes: &Sizes) -> Result<BoundCall, RunError> {
        let (symbols, slot_bytes) = (&sizes.symbols, &sizes.slot_bytes);
        let misfit = || overflow(&c.label);
        // As large as it may get, until a call before this one says how large it is.
        let size = |e: &IndexExpr| {
            let value = match is_open(plan, e, &sizes.decided) {
                true => most_under(&plan.symbols, e, symbols),
                false => e.eval_symbols(symbols),
            };
            value.and_then(|v| usize::try_from(v).ok())
        };
        // What waits for a size is bound again, and checked, before it runs.
        let mut all = c.shapes.iter().flatten();
        let waits = all.any(|e| is_open(plan, e, &sizes.decided));
        let has = |slot: SlotId, elements: Option<usize>, width: usize| {
            let bytes = elements.and_then(|n| n.checked_mul(width)).ok_or_else(misfit)?;
            match waits || slot_bytes[slot.0 as usize] >= bytes as u64 {
                true => Ok(slot.0 as usize),
                false => Err(misfit()),
            }
        };
        let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if let Some(symbol) = c.function.binds() {
            let mut operands = Vec::new();
            for (slot, shape) in c.operands.iter().zip(&c.shapes) {
                let dtype = plan.slots[slot.0 as usize].dtype;
                let shape: Option<Vec<usize>> = shape.iter().map(size).collect();
                let shape = shape.ok_or_else(misfit)?;
                operands.push((has(*slot, product(&shape), dtype.bytes())?, dtype, shape));
            }
            let results = c
                .results
                .iter()
                .map(|s| (s.0 as usize, slot_bytes[s.0 as usize] as usize));
            let upper = plan.symbols.get(symbol.0 as usize).and_then(|s| s.upper.as_ref());
            return Ok(BoundCall::Counted(Counted {
                function: c.function.clone(),
                symbol: symbol.0 as usize,
                most: (upper.and_then(|e| most_under(&plan.symbols, e, symbols))).ok_or_else(misfit)?,
                operands,
                results: results.collect(),
            }));
        }
        match &c.function {
            HostFunction::Sort {
                axis,
                count,
                descending,
            } => {
                let ([x], [values, places], [shape]) = (&c.operands[..], &c.results[..], &c.shapes[..]) else {
                    return Err(misfit());
                };
                let shape: Option<Vec<usize>> = shape.iter().map(size).collect();
                let (shape, axis) = (shape.ok_or_else(misfit)?, *axis as usize);
                let extent = *shape.get(axis).ok_or_else(misfit)?;
                let kept = match size(count).ok_or_else(misfit)? {
                    kept if kept <= extent => kept,
                    _ if waits || is_open(plan, count, &sizes.decided) => extent,
                    _ => return Err(misfit()),
                };
                let dtype = plan.slots[x.0 as usize].dtype;
                if plan.slots[values.0 as usize].dtype != dtype {
                    return Err(misfit());
                }
                let mut result = shape.clone();
                result[axis] = kept;
                // At least one row's; each pair of words is a key and a position.
                let workspace = has(c.workspace, extent.checked_mul(2), 8)?;
                let rows_at_once = slot_bytes[workspace] / (16 * extent.max(1) as u64);
                Ok(BoundCall::Sort {
                    x: has(*x, product(&shape), dtype.bytes())?,
                    values: has(*values, product(&result), dtype.bytes())?,
                    places: has(*places, product(&result), 8)?,
                    workspace,
                    rows_at_once: usize::try_from(rows_at_once).unwrap_or(1).max(1),
                    sort: Sort {
                        dtype,
                        outer: product(&shape[..axis]).ok_or_else(misfit)?,
                        extent,
                        inner: product(&shape[axis + 1..]).ok_or_else(misfit)?,
                        count: kept,
                        descending: *descending,
                    },
                })
            }
            // The others bind a symbol.
            _ => Err(misfit()),
        }
    }
}
