//! The scratch that a stage of an attention works in.

use tlc_ir::DType;
use tlc_ir::kernel::{Memory, Scope};
use tlc_ir::target::WARP_THREADS;

use super::super::Lowerer;
use super::{Blocks, ROW_LANES, Stage, WARP_ROWS, constant, row};
use crate::partition::{Attention, AttentionForm, Matrices};

/// Memory that the threads of a block share, and what each has of its own.
pub(super) struct Memories {
    pub queries: Memory,
    /// Keys, and later values where these have no memory of their own.
    pub tile: Memory,
    pub values: Memory,
    /// Scores, and where weights are of the same dtype, these.
    pub weights: Memory,
    /// The weights as they are multiplied; of a single row parts of its result, and what each warp has of the maximum and of the sum.
    pub rounded: Memory,
    /// By row: what its result is scaled by.
    pub scale: Memory,
    /// A thread's part of the results, or a warp's.
    pub results: Memory,
    /// A thread's part of the scores, or a warp's.
    pub scores: Memory,
    /// By row of a lane: the largest so far, and the sum.
    pub most: Memory,
    pub sum: Memory,
    /// What each lane of a row has, and behind it what they combine; of a single row the other way round.
    pub lane: Memory,
}

impl Memories {
    /// The scratch of a stage: elements are of the dtype that is computed with, or of that which products take.
    pub(super) fn new(
        lo: &mut Lowerer<'_>,
        form: &Attention,
        (dtype, held): (DType, DType),
        [query, key, value, score, weight]: [i64; 5],
        stage: Stage,
    ) -> Memories {
        let mut new = |dtype, len: i64, scope| lo.kernel.new_scratch(dtype, constant(len), scope);
        if stage == Stage::Join {
            let [results, most, sum] = [(); 3].map(|()| new(dtype, 1, Scope::Thread));
            return Memories {
                results,
                most,
                sum,
                // Of keys and of scores there are none.
                queries: results,
                tile: results,
                values: results,
                weights: results,
                rounded: results,
                scale: results,
                scores: results,
                lane: results,
            };
        }
        let row_slots = match &form.form {
            AttentionForm::Row(_) => 1,
            _ => form.rows / Blocks::warps(form) / WARP_ROWS,
        };
        let queries_held = match &form.form {
            AttentionForm::Row(_) => dtype,
            _ => held,
        };
        let own_values = match &form.form {
            AttentionForm::Warps(m) => Some(m.keys * value),
            AttentionForm::Row(_) | AttentionForm::Threads => None,
        };
        let (queries, keys_or_values, weights) = (
            new(queries_held, form.rows * query, Scope::Shared),
            new(
                held,
                form.keys() * key.max(own_values.map_or(value, |_| 0)),
                Scope::Shared,
            ),
            new(dtype, form.rows * score, Scope::Shared),
        );
        let values = own_values.map_or(keys_or_values, |len| new(held, len, Scope::Shared));
        let (rounded, [result_part, score_part], scopes) = match &form.form {
            AttentionForm::Warps(m) => {
                let [_, result] = m.features;
                let part = [result, m.keys].map(|columns| Matrices::ROWS * columns / m.across);
                let rounded = new(held, form.rows * weight, Scope::Shared);
                (rounded, part, [Scope::WarpFragment; 2])
            }
            AttentionForm::Row(row) => {
                let warps = row.threads / WARP_THREADS;
                let parts = new(dtype, row.groups * form.features[1] + 2 * warps, Scope::Shared);
                (parts, [1, row::together(row, form.features)], [Scope::Thread; 2])
            }
            AttentionForm::Threads => {
                let part = [value / Attention::PART_THREADS, Blocks::score_columns()];
                let part = part.map(|columns| Attention::PART_ROWS * columns);
                (weights, part, [Scope::Thread, Scope::Register])
            }
        };
        Memories {
            queries,
            tile: keys_or_values,
            values,
            weights,
            rounded,
            scale: match &form.form {
                AttentionForm::Row(_) => new(dtype, 1, Scope::Thread),
                _ => new(dtype, form.rows, Scope::Shared),
            },
            results: new(dtype, result_part, scopes[0]),
            scores: new(dtype, score_part, scopes[1]),
            most: new(dtype, row_slots, Scope::Thread),
            sum: new(dtype, row_slots, Scope::Thread),
            lane: match &form.form {
                AttentionForm::Row(_) => new(dtype, 2, Scope::Thread),
                _ => new(dtype, form.keys() / ROW_LANES + 1, Scope::Thread),
            },
        }
    }
}
