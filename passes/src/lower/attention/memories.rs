//! The scratch that a stage of an attention works in.

use tlc_ir::DType;
use tlc_ir::kernel::{Memory, Scope};
use tlc_ir::target::WARP_THREADS;

use super::super::Lowerer;
use super::{Blocks, ROW_LANES, Stage, WARP_ROWS, constant, row, tame};
use crate::partition::{Attention, AttentionForm};

/// Memory that the threads of a block share, and what each, or each warp, has of its own. What a form does not need is the memory of the results.
pub(super) struct Memories {
    pub queries: Memory,
    /// Keys, and later values where these have no memory of their own.
    pub tile: Memory,
    pub values: Memory,
    /// Scores and then weights, as they are multiplied.
    pub weights: Memory,
    /// Of a single row: parts of its result, and what each warp has of the maximum and of the sum.
    pub parts: Memory,
    /// By row: what its result is scaled by.
    pub scale: Memory,
    /// A thread's part of the results, or a warp's.
    pub results: Memory,
    /// A thread's part of the scores, or a warp's.
    pub scores: Memory,
    /// By row of a lane, or of a warp: the largest so far, and the sum.
    pub most: Memory,
    pub sum: Memory,
    /// By row of a warp: what is subtracted from the scores of a tile.
    pub base: Memory,
    /// By row of a warp: what scores are multiplied with.
    pub rate: Memory,
    /// What each lane of a row has, and behind it what they combine; of a single row the other way round.
    pub lane: Memory,
}

impl Memories {
    /// The scratch of a stage: elements are of the dtype that is computed with, or of that which products take.
    pub(super) fn new(
        lo: &mut Lowerer<'_>,
        form: &Attention,
        (dtype, held): (DType, DType),
        [query, key, value, weight]: [i64; 4],
        stage: Stage,
    ) -> Memories {
        let mut new = |dtype, len: i64, scope| lo.kernel.new_scratch(dtype, constant(len), scope);
        let only = |results| Memories {
            queries: results,
            tile: results,
            values: results,
            weights: results,
            parts: results,
            scale: results,
            results,
            scores: results,
            most: results,
            sum: results,
            base: results,
            rate: results,
            lane: results,
        };
        if stage == Stage::Join {
            // Of keys and of scores there are none.
            let [results, most, sum] = [(); 3].map(|()| new(dtype, 1, Scope::Thread));
            return Memories {
                most,
                sum,
                ..only(results)
            };
        }
        if stage == Stage::Tame {
            // The largest of what a thread looks at together; then that of each warp.
            let results = new(DType::F32, tame::LANES, Scope::Thread);
            return Memories {
                parts: new(DType::F32, tame::WARPS, Scope::Shared),
                ..only(results)
            };
        }
        match &form.form {
            AttentionForm::Warps(m) => {
                let results = new(dtype, m.rows * m.features[1], Scope::WarpFragment);
                let scores = new(dtype, m.rows * m.keys, Scope::WarpFragment);
                let [scale, most, sum, base] = [(); 4].map(|()| new(dtype, m.rows, Scope::WarpFragment));
                let rate = match held {
                    DType::BF16 => new(dtype, m.rows, Scope::WarpFragment),
                    _ => base,
                };
                let operands = [form.rows * query, m.keys * key, m.keys * value];
                let [queries, tile, values] = operands.map(|len| new(held, len, Scope::Shared));
                let weights = match held == dtype {
                    true => scores,
                    false => new(held, m.rows * m.keys, Scope::WarpFragment),
                };
                for memory in [queries, tile, values] {
                    if let Memory::Scratch(i) = memory {
                        lo.kernel.scratch[i as usize].swizzled = m.groups;
                    }
                }
                Memories {
                    queries,
                    tile,
                    values,
                    weights,
                    scale,
                    scores,
                    most,
                    sum,
                    base,
                    rate,
                    ..only(results)
                }
            }
            AttentionForm::Row(row) => {
                let queries = new(dtype, form.rows * query, Scope::Shared);
                let tile = new(held, form.keys() * key.max(value), Scope::Shared);
                let weights = new(dtype, form.rows * weight, Scope::Shared);
                let warps = row.threads / WARP_THREADS;
                let parts = new(dtype, row.groups * form.features[1] + 2 * warps, Scope::Shared);
                let [scale, results] = [(); 2].map(|()| new(dtype, 1, Scope::Thread));
                let scores = new(dtype, row::together(row, form.features), Scope::Thread);
                let [most, sum] = [(); 2].map(|()| new(dtype, 1, Scope::Thread));
                Memories {
                    queries,
                    tile,
                    values: tile,
                    weights,
                    parts,
                    scale,
                    scores,
                    most,
                    sum,
                    lane: new(dtype, 2, Scope::Thread),
                    ..only(results)
                }
            }
            AttentionForm::Threads => {
                let queries = new(held, form.rows * query, Scope::Shared);
                let tile = new(held, form.keys() * key.max(value), Scope::Shared);
                let weights = new(dtype, form.rows * weight, Scope::Shared);
                let scale = new(dtype, form.rows, Scope::Shared);
                let columns = [value / Attention::PART_THREADS, Blocks::score_columns()];
                let [result_part, score_part] = columns.map(|columns| Attention::PART_ROWS * columns);
                let results = new(dtype, result_part, Scope::Thread);
                let scores = new(dtype, score_part, Scope::Register);
                let row_slots = form.rows / Blocks::warps(form) / WARP_ROWS;
                let [most, sum] = [(); 2].map(|()| new(dtype, row_slots, Scope::Thread));
                Memories {
                    queries,
                    tile,
                    values: tile,
                    weights,
                    scale,
                    scores,
                    most,
                    sum,
                    lane: new(dtype, form.keys() / ROW_LANES + 1, Scope::Thread),
                    ..only(results)
                }
            }
        }
    }
}
