//! Products of products: where a kernel behind a product leaves rows that a second product takes as its left operand, the three are one
//! step, and the value between the products is in no memory as a whole. Attention is the case that matters: scores, softmax, values.
//!
//! It is decided by what the steps touch, not by what they compute ([`Gemm::passes_rows`]): nobody else needs the value, in either form,
//! and the kernel goes along its rows. Whether it pays is a matter of bytes: the value is neither written nor read, but the right operands
//! are read again for each block of rows that a worker has room for.

use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{DeviceId, Epilogue, Gemm, Plan, SlotId, Step, Storage};
use tlc_ir::target::Cpu;

use crate::contraction::library_dtype;
use crate::reason::FusionReason;

/// Rows that a block has at least, however long they are.
const LEAST_ROWS: i64 = 24;
/// For each row of a block, so many vectors of the right operands may be read again by the block. A vector that is read again comes from a
/// cache of this core or the next one, and is shared by the block's rows; a row of the value in between would be written to memory and read.
const READ_AGAIN: i64 = 8;
/// Right operands of an entry are at most so many times as large as the second-level cache: larger ones come from further away for
/// each block of rows.
const MOST_CACHES: i64 = 2;
/// Rows that a thread should get at least.
const ROWS_PER_THREAD: i64 = 16;

/// Why a product runs in the step of the product whose rows it takes, or does not.
pub(crate) enum ChainReason {
    /// It does: such a step has so many bytes of the value between at most in each worker's memory.
    Rows {
        /// Bytes of a row.
        row_bytes: IndexExpr,
    },
    /// The value between them is needed elsewhere, or its old form when the new one is there.
    Needed,
    /// The kernel does not write the rows that the second product takes over those that it reads.
    OtherRows,
    /// The right operand of one stays as it is from call to call, so that it is laid out once for whole products.
    Fixed,
    /// The right operands would be read again for blocks of too few rows.
    ReadAgain {
        /// Rows of a block.
        rows: i64,
    },
    /// A kernel runs behind the second product, and there is one right operand for all rows.
    Followed,
    /// Matrix instructions compute whole products alone.
    Matrices,
    /// There are too few rows for all threads.
    FewRows {
        /// Rows.
        rows: i64,
    },
    /// Something between must stay between.
    Order,
}

impl ChainReason {
    /// As a fusion of the kernel with the second product.
    pub(crate) fn fusion_reason(self, text: &dyn Fn(&IndexExpr) -> String) -> FusionReason {
        match self {
            Self::Rows { row_bytes } => FusionReason::Passed {
                row_bytes: text(&row_bytes),
            },
            Self::Needed => FusionReason::PassedNeeded,
            Self::OtherRows => FusionReason::PassedOtherRows,
            Self::Matrices => FusionReason::PassedMatrices,
            Self::Fixed => FusionReason::PassedFixed,
            Self::Followed => FusionReason::PassedFollowed,
            Self::ReadAgain { rows } => FusionReason::PassedReadAgain { rows },
            Self::FewRows { rows } => FusionReason::PassedFewRows { rows },
            Self::Order => FusionReason::ProductOrder,
        }
    }
}

/// How often the steps of a plan read and write each slot; outputs and what states are set to count once more.
pub(crate) fn touches(plan: &Plan) -> Vec<u32> {
    let mut touches = vec![0; plan.slots.len()];
    for step in plan.init.iter().chain(&plan.steps) {
        step.visit_slots(&mut |s, _| touches[s.0 as usize] += 1, &plan.kernels);
    }
    let kept = plan.outputs.iter().map(|o| o.slot);
    for slot in kept.chain(plan.states.iter().filter_map(|s| s.set)) {
        touches[slot.0 as usize] += 1;
    }
    touches
}

/// By slot: whether a kernel on the host reads it.
pub(crate) fn read_by_kernels(plan: &Plan) -> Vec<bool> {
    let mut read = vec![false; plan.slots.len()];
    for step in &plan.steps {
        if let Step::Launch(l) = step {
            l.args.iter().for_each(|s| read[s.0 as usize] = true);
        }
    }
    read
}

/// Whether a product may and should run behind the kernel behind another one, as far as the two say; `in_place` are the pairs of slots of
/// the first step that may share bytes. `Err` says why not.
pub(crate) fn chains(
    plan: &Plan,
    cpu: &Cpu,
    (first, epilogue, in_place): (&Gemm, &Epilogue, &[(SlotId, SlotId)]),
    second: &Gemm,
    (touches, followed): (&[u32], bool),
) -> Result<ChainReason, ChainReason> {
    let (before, after) = (first.dst.slot, second.lhs.slot);
    let slot = |s: SlotId| &plan.slots[s.0 as usize];
    let launch = &epilogue.launch;
    let of = |s: SlotId| launch.args.iter().filter(|a| **a == s).count() as u32;
    let only = |s: SlotId, beside: u32| touches[s.0 as usize] == of(s) + beside && slot(s).storage == Storage::Arena;
    if !only(before, 1) || !only(after, 1) || second.rhs.slot == after {
        return Err(ChainReason::Needed);
    }
    let kernel = &plan.kernels[launch.kernel.0 as usize];
    let extent = launch.outer(&kernel.parallel_extent());
    let lines = &epilogue.lines;
    if launch.args.len() > Epilogue::MOST_ARGUMENTS
        || !in_place.contains(&(before, after))
        || slot(before).len != slot(after).len
        || !first.passes_rows(second, [&lines.iterations, &lines.elements, &extent])
    {
        return Err(ChainReason::OtherRows);
    }
    if ![first.dtype, second.dtype].into_iter().all(library_dtype) {
        return Err(ChainReason::Matrices);
    }
    let fixed = |s: SlotId| match slot(plan.root(s)).storage {
        Storage::Constant(_) | Storage::Persistent => true,
        Storage::State(k) => plan.states[k as usize].set.is_none(),
        _ => false,
    };
    if fixed(first.rhs.slot) || fixed(second.rhs.slot) {
        return Err(ChainReason::Fixed);
    }
    // With one right operand for all rows the first product is no larger in blocks, and the kernel behind the second one is close.
    if followed && IndexExpr::product(&first.batch).is(1) {
        return Err(ChainReason::Followed);
    }
    let row_bytes = first.n.clone() * IndexExpr::from(first.dtype.bytes());
    if let (Some(row), Some(k), Some(n)) = (row_bytes.as_const(), first.k.as_const(), second.n.as_const()) {
        let rows = (cpu.resident_bytes() / row.max(1)).max(LEAST_ROWS);
        let rows = first.m.as_const().map_or(rows, |m| rows.min(m));
        let again = k.saturating_add(n);
        let cache = MOST_CACHES.saturating_mul(i64::try_from(cpu.l2_bytes).unwrap_or(i64::MAX));
        if again > rows.saturating_mul(READ_AGAIN) || again.saturating_mul(row) > cache {
            return Err(ChainReason::ReadAgain { rows });
        }
    }
    let all = IndexExpr::product(&first.batch) * first.m.clone();
    if let Some(rows) = all.as_const().filter(|_| cpu.threads > 1)
        && rows < ROWS_PER_THREAD.saturating_mul(cpu.threads as i64)
    {
        return Err(ChainReason::FewRows { rows });
    }
    Ok(ChainReason::Rows { row_bytes })
}

/// Has the value between the products of a step be in the memory of workers alone, in one form's bytes.
pub(crate) fn pass_on(plan: &mut Plan, first: SlotId, second: SlotId) {
    plan.slots[first.0 as usize].storage = Storage::Lines;
    plan.slots[second.0 as usize].storage = Storage::Alias(first);
}

/// The product of a step on the host, if it is one with a kernel behind it and nothing behind that.
pub(crate) fn open(plan: &Plan, step: &Step) -> bool {
    let Step::Gemm(g) = step else { return false };
    plan.slots[g.dst.slot.0 as usize].device == DeviceId::HOST
        && g.epilogue.as_ref().is_some_and(|e| e.product.is_none())
}
