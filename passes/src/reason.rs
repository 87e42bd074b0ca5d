//! Why the compiler did what it did: typed reasons for every accepted and refused decision, printed by `explain`.

use std::fmt;

use rustc_hash::FxHashMap;
use tlc_ir::plan::{LibraryEpilogue, SlotId};
use tlc_ir::{DType, NodeId, Precision};

use crate::emitters::EmitterReason;
use crate::weight_gradient::WeightGradientRefusal;

/// Why two values share a kernel, or do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FusionReason {
    /// Accepted: both run over the same index space.
    SameSpace,
    /// Accepted: a row's reduction and its uses stay in one pass over the row.
    RowLocal {
        /// Rows, printed.
        rows: String,
    },
    /// Merged: the rows of a GPU's blocks, which do not stay on chip.
    ReadAgain {
        /// Elements in one row.
        row: i64,
        /// Loops of the kernel that read them.
        times: usize,
    },
    /// Accepted: reductions along the columns and their uses stay in one pass over a tile of columns.
    ColumnLocal {
        /// Columns, printed.
        columns: String,
    },
    /// Accepted: independent values over one space share their loads.
    Siblings,
    /// Accepted: nothing else needs the producer, so it is computed where it is used.
    OnlyUse,
    /// Accepted: the producer only says which element is meant.
    Indices,
    /// Accepted: recomputing the producer costs less than storing it.
    Recompute {
        /// Scalar operations per element.
        ops: u32,
    },
    /// Accepted: computing the producer wherever it is read costs less than storing it once and loading it there.
    CheaperAgain {
        /// Operations of computing it wherever it is read, over all elements, an addition being 1; for typical sizes.
        computed: u64,
        /// Operations of computing, storing and loading it.
        stored: u64,
    },
    /// Accepted: the consumer runs in the step of the matrix product, on each line of the result as soon as it is complete.
    Epilogue {
        /// Elements of a line, printed.
        elements: String,
    },
    /// Accepted: the library computes the consumer with the matrix product.
    LibraryEpilogue(LibraryEpilogue),
    /// Accepted: scores, softmax and the contraction over it are one kernel, whose blocks of so many rows never write the scores.
    Attention {
        /// Rows of a block.
        rows: i64,
        /// What matrix instructions multiply, if they do: the dtype of operands, and how exactly.
        operands: Option<(DType, Precision)>,
        /// Whether four warps multiply together.
        groups: bool,
        /// Whether keys that a mask hides from all rows of a block are left out.
        horizon: bool,
        /// Parts of the keys, if several blocks share those of a row, and of how many multiprocessors a block for each of how many rows
        /// would leave most idle.
        parts: Option<[i64; 3]>,
    },
    /// Refused: what is an attention by its structure stays several kernels.
    NoAttention(AttentionRefusal),
    /// Accepted: blocks of a GPU have whole rows of the products, and compute what waits for all of a row where they have them.
    ProductRows {
        /// Rows of a block.
        rows: i64,
        /// Columns of a block.
        columns: i64,
    },
    /// Refused: rows of products are written and read again.
    NoProductRows(ProductRowsRefusal),
    /// Refused: a convolution's gradient by its weights is not summed by a kernel of its own.
    NoWeightGradient(WeightGradientRefusal),
    /// Accepted: the consumer is a matrix product in the step of the product behind which the producer runs, and takes its rows as they
    /// are complete. The producer is in no memory as a whole.
    Passed {
        /// Bytes of a row, printed.
        row_bytes: String,
    },
    /// Refused: what passes from product to product is needed by others too.
    PassedNeeded,
    /// Refused: the second matrix product does not take the rows of the first one's result, or they are not rewritten in place.
    PassedOtherRows,
    /// Refused: matrix instructions multiply the operands, which compute whole products alone.
    PassedMatrices,
    /// Refused: a right operand stays as it is from call to call, and is laid out once for whole products.
    PassedFixed,
    /// Refused: a kernel runs behind the second matrix product, which has one right operand for all rows.
    PassedFollowed,
    /// Refused: the right operands would be read again for each block of so many rows.
    PassedReadAgain {
        /// Rows.
        rows: i64,
    },
    /// Refused: too few rows for all threads.
    PassedFewRows {
        /// Rows.
        rows: i64,
    },
    /// Refused: the consumer does not go along a matrix product's result line by line.
    OtherLines,
    /// Refused: the consumer needs what is computed after the matrix product, or others need the product before.
    ProductOrder,
    /// Refused: another kernel runs in the step of the matrix product already.
    ProductTaken,
    /// Refused: the consumer needs the producer at other indices than the ones it computes at that moment.
    OtherIndices,
    /// Refused: a kernel of columns would ask of each element of a concatenation again which part it is of.
    ChoosesParts,
    /// Refused: the result would wait for itself.
    Cycle,
    /// Refused: the search for a cycle was cut short.
    SearchBudget,
    /// Refused: the kernel would grow beyond the limit of statements.
    KernelSize {
        /// Statements the merged kernel would have once it is legalized.
        statements: u32,
    },
    /// Refused: values needed at several places would be computed too often.
    Repeated {
        /// Operations the merged kernel would have.
        ops: u32,
        /// Operations without repetition.
        once: u32,
    },
    /// Refused: computing the producer wherever it is read would cost more than storing it once and loading it there.
    CheaperStored {
        /// Operations of computing it wherever it is read, over all elements, an addition being 1; for typical sizes.
        computed: u64,
        /// Operations of computing, storing and loading it.
        stored: u64,
    },
    /// Refused: the reduced axes are not the innermost of the consumer, so rows would be strided.
    StridedRows,
    /// Refused: too few rows to keep the machine busy.
    FewRows {
        /// Rows.
        rows: i64,
        /// Elements in one row.
        row: i64,
    },
    /// Refused: the consumer waits for other reductions, beside which this one runs.
    OtherReductions {
        /// Elements that it reduces to a number.
        elements: i64,
    },
    /// Refused: a row does not fit the cache, so it would be read again anyway.
    LongRows {
        /// Elements in one row.
        row: i64,
    },
    /// Refused: not even a narrow tile of columns is known to fit the second-level cache.
    TallColumns {
        /// Elements that a column may have.
        rows: i64,
        /// Elements of a column of the narrowest tile that fits.
        most: i64,
    },
    /// Refused: one of the two is constant, so it is computed once per executable.
    Once,
    /// Refused: the two are computed on different devices.
    OtherDevice,
    /// Refused: the producer has no vector form, and every row of the consumer would compute it again.
    ScalarInEveryRow,
    /// Refused: one of the two keeps a tile of a convolution's results in registers, and the other one sums up in its way.
    OwnTile,
    /// Refused: one of the two slides along windows or turns tiles of sums, and the other one looks bytes up, which kernels of that kind do for each element.
    LooksUp,
    /// Refused: each of the two sums up products in tiles, whose operands the threads of a GPU's block share. Of two sums in one kernel one at most
    /// would be, and each thread would load all that the other one multiplies.
    OwnProducts,
    /// Refused: no emitter that makes one of the two fast has what the other needs.
    OtherEmitter {
        /// Why the kernel of both would be made by the emitter that it would be.
        reason: EmitterReason,
        /// Nanoseconds that it would take more.
        lost_ns: u64,
        /// Nanoseconds that one kernel would save.
        saved_ns: u64,
    },
    /// Refused: only so many fusions were asked for.
    Limit,
    /// Refused: the producer is a step of its own.
    OwnStep {
        /// The kind of step.
        step: OwnStep,
    },
}

/// Why an attention stays several kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionRefusal {
    /// The axes of its contractions are not those of queries, keys, values and heads.
    Contraction,
    /// A value in between is of a type that the one kernel would not round to.
    Dtype,
    /// Vectors of queries or values whose length is unknown, or for which a block has no room.
    Features,
    /// Too few rows to share what is read.
    FewRows {
        /// Rows.
        rows: i64,
    },
    /// A value in between is needed elsewhere.
    Needed,
    /// Something else is computed in one kernel with a value in between.
    Beside,
}

impl fmt::Display for AttentionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contraction => f.write_str("its axes are not those of queries, keys, values and heads"),
            Self::Dtype => f.write_str("a value in between is rounded to another type"),
            Self::Features => f.write_str("its vectors are of unknown length, or do not fit a block's shared memory"),
            Self::FewRows { rows } => write!(f, "{rows} rows are too few to share what is read"),
            Self::Needed => f.write_str("a value in between is needed elsewhere"),
            Self::Beside => f.write_str("something else is computed with a value in between"),
        }
    }
}

/// Why what waits for whole rows of products is another kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProductRowsRefusal {
    /// No tile has all columns.
    Columns {
        /// The most columns that there may be.
        columns: i64,
    },
    /// Too few rows for a tile.
    FewRows {
        /// Rows.
        rows: i64,
    },
    /// Rows of the one are not those of the other, or something else is looped over for each.
    OtherRows,
    /// Others need the products before.
    Order,
    /// Tiles of whole rows would take so much longer to multiply.
    Slower {
        /// Nanoseconds of one kernel.
        together_ns: u64,
        /// Nanoseconds of two.
        apart_ns: u64,
    },
}

impl fmt::Display for ProductRowsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Columns { columns } => write!(f, "no tile has all of {columns} columns"),
            Self::FewRows { rows } => write!(f, "{rows} rows are too few for a tile"),
            Self::OtherRows => f.write_str("they are not its rows alone"),
            Self::Order => f.write_str("others need the products before"),
            Self::Slower { together_ns, apart_ns } => write!(
                f,
                "tiles of whole rows would take {together_ns} ns in one kernel, and {apart_ns} ns in two that divide rows among blocks"
            ),
        }
    }
}

/// What is a step of its own, so that nothing shares a kernel with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum OwnStep {
    /// A loop over a plan.
    Loop,
    /// A function of the runtime.
    Call,
    /// A matrix product by the library.
    MatrixProduct,
    /// A convolution's gradient by its weights.
    WeightGradient,
    /// A concatenation of parts that are stored where it has them.
    Join,
    /// A scan.
    Scan,
    /// A scatter.
    Scatter,
}

impl fmt::Display for OwnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loop => "loop",
            Self::Call => "function of the runtime",
            Self::MatrixProduct => "matrix product",
            Self::WeightGradient => "convolution's gradient by its weights",
            Self::Join => "concatenation of parts in place",
            Self::Scan => "scan",
            Self::Scatter => "scatter",
        })
    }
}

impl FusionReason {
    /// True if the decision was to fuse.
    pub fn accepted(&self) -> bool {
        matches!(
            self,
            Self::SameSpace
                | Self::RowLocal { .. }
                | Self::ReadAgain { .. }
                | Self::ColumnLocal { .. }
                | Self::Siblings
                | Self::OnlyUse
                | Self::Indices
                | Self::Recompute { .. }
                | Self::CheaperAgain { .. }
                | Self::Epilogue { .. }
                | Self::LibraryEpilogue(_)
                | Self::Passed { .. }
                | Self::Attention { .. }
                | Self::ProductRows { .. }
        )
    }
}

impl fmt::Display for FusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameSpace => f.write_str("same index space"),
            Self::RowLocal { rows } => write!(f, "row-local: {rows} rows, each held in cache"),
            Self::ReadAgain { row, times } => {
                write!(f, "row-local: rows of {row} elements do not stay on chip: ")?;
                match times {
                    1 => f.write_str("read once more, behind what pieces of them come to"),
                    2 => f.write_str("read twice"),
                    n => write!(f, "read {n} times"),
                }
            }
            Self::ColumnLocal { columns } => write!(f, "column-local: {columns} columns, a tile of them held in cache"),
            Self::Siblings => f.write_str("siblings over one space share their loads"),
            Self::OnlyUse => f.write_str("nothing else uses it"),
            Self::Indices => f.write_str("it only says which element is meant"),
            Self::Recompute { ops } => write!(f, "recomputing {ops} cheap operations beats storing"),
            Self::CheaperAgain { computed, stored } => write!(
                f,
                "computing it wherever it is read takes {computed} operations, storing and loading it {stored}"
            ),
            Self::CheaperStored { computed, stored } => write!(
                f,
                "storing and loading it takes {stored} operations, computing it wherever it is read {computed}"
            ),
            Self::ScalarInEveryRow => f.write_str("it has no vector form, and every row would compute it again"),
            Self::LooksUp => f.write_str("what slides along windows would look bytes up one by one"),
            Self::OwnProducts => {
                f.write_str("the threads of a block share what one sum of products loads, and not what two do")
            }
            Self::OwnTile => f.write_str("a tile of a convolution's results has all registers while it sums up"),
            Self::Epilogue { elements } => {
                write!(
                    f,
                    "behind the matrix product in its step, on each line of {elements} elements when it is complete"
                )
            }
            Self::LibraryEpilogue(what) => write!(f, "{what}: the library computes it with the matrix product"),
            Self::Passed { row_bytes } => write!(
                f,
                "passed on to the matrix product behind it in one step, in rows of {row_bytes} bytes: it is in no memory as a whole"
            ),
            Self::Attention {
                parts: Some([parts, rows, multiprocessors]),
                ..
            } => write!(
                f,
                "an attention of single rows in two kernels: {parts} blocks share the keys of each, for {rows} would leave most of \
                 {multiprocessors} multiprocessors idle; the second puts their parts together, and the scores are in no memory"
            ),
            Self::Attention {
                rows,
                operands,
                groups,
                horizon,
                parts: None,
            } => {
                write!(
                    f,
                    "an attention in one kernel: blocks of {rows} rows go along the keys, and the scores are in no memory"
                )?;
                let warps = if *groups { "four warps together" } else { "warps" };
                match operands {
                    None => {}
                    Some((dtype, Precision::Exact)) => write!(f, "; {warps} multiply {dtype} by matrix instructions")?,
                    Some((_, precision)) => {
                        write!(f, "; {warps} multiply by matrix instructions, operands rounded to {precision}")?;
                    }
                }
                match horizon {
                    true => f.write_str(
                        "; tiles of keys that the mask hides from all rows of a block are left out, unless a kernel before this one finds an \
                         element that is no number of moderate size",
                    ),
                    false => Ok(()),
                }
            }
            Self::NoAttention(refusal) => write!(f, "an attention in several kernels: {refusal}"),
            Self::ProductRows { rows, columns } => write!(
                f,
                "whole rows of the products, {rows} by {columns} of a block, stay in its shared memory, and its warps take them from there"
            ),
            Self::NoProductRows(refusal) => write!(f, "rows of the products are written and read again: {refusal}"),
            Self::NoWeightGradient(refusal) => write!(f, "no kernel of its own for the gradient by weights: {refusal}"),
            Self::PassedNeeded => f.write_str("not passed on within a step: others need it, or what it is made of"),
            Self::PassedOtherRows => {
                f.write_str("not passed on within a step: the products' rows differ, or are not rewritten in place")
            }
            Self::PassedMatrices => f.write_str("not passed on within a step: matrix instructions compute whole products alone"),
            Self::PassedFixed => {
                f.write_str("not passed on within a step: an operand that stays as it is, is laid out once for whole products")
            }
            Self::PassedFollowed => {
                f.write_str("not passed on within a step: a kernel runs behind the second product, of one right operand for all rows")
            }
            Self::PassedReadAgain { rows } => write!(
                f,
                "not passed on within a step: the right operands would be read again for each {rows} rows"
            ),
            Self::PassedFewRows { rows } => {
                write!(f, "not passed on within a step: {rows} rows are too few for all threads")
            }
            Self::OtherLines => f.write_str("it does not go along the matrix product's result line by line"),
            Self::ProductOrder => f.write_str("what lies between the matrix product and it must stay between them"),
            Self::ProductTaken => f.write_str("another kernel runs behind the matrix product already"),
            Self::OtherDevice => f.write_str("another device computes it"),
            Self::OtherIndices => f.write_str("the consumer reads it at other indices"),
            Self::ChoosesParts => {
                f.write_str("each element of a concatenation would be asked again which part it is of")
            }
            Self::Cycle => f.write_str("the merged kernel would depend on itself"),
            Self::SearchBudget => f.write_str("the search for a dependency cycle was cut short"),
            Self::Repeated { ops, once } => {
                write!(
                    f,
                    "what is read at several places would be computed again: {ops} operations, {once} without"
                )
            }
            Self::KernelSize { statements } => write!(f, "the kernel would have {statements} statements"),
            Self::StridedRows => f.write_str("the reduced axes are not the consumer's innermost"),
            Self::FewRows { rows, row } => write!(f, "only {rows} rows of {row} elements: it would run on one thread"),
            Self::OtherReductions { elements } => {
                write!(
                    f,
                    "what reads the sum of {elements} elements waits for others, beside which it runs"
                )
            }
            Self::LongRows { row } => write!(f, "rows of {row} elements do not stay in cache"),
            Self::TallColumns { rows: i64::MAX, most } => {
                write!(
                    f,
                    "columns are not bounded, and beyond {most} elements no tile of them stays in cache"
                )
            }
            Self::TallColumns { rows, most } => {
                write!(
                    f,
                    "columns of up to {rows} elements: beyond {most} no tile of them stays in cache"
                )
            }
            Self::Once => f.write_str("a constant: it is computed once per executable"),
            Self::OtherEmitter {
                reason,
                lost_ns,
                saved_ns,
            } => write!(
                f,
                "one kernel would have another emitter ({reason}), which takes {lost_ns} ns more and saves {saved_ns} ns"
            ),
            Self::Limit => f.write_str("no more fusions were asked for"),
            Self::OwnStep { step } => write!(f, "a {step} is a step of its own"),
        }
    }
}

/// Where a fusion is decided. The order is that of compilation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum FusionStage {
    /// Which values are computed where they are used, and which get a kernel.
    Inlining,
    /// Which kernels merge along an edge.
    Merging,
    /// Which kernels merge because they read the same.
    Siblings,
    /// Which contractions with a softmax between them are one kernel.
    Attention,
    /// Which kernels of rows are parts of the kernels of products that they read.
    ProductRows,
    /// Which kernels run in the steps of the matrix products that they read.
    Epilogues,
}

impl FusionStage {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inlining => "inlining",
            Self::Merging => "merging",
            Self::Siblings => "siblings",
            Self::Attention => "attention",
            Self::ProductRows => "rows of products",
            Self::Epilogues => "epilogues",
        }
    }

    /// True for decisions that two kernels become one: what [`crate::cluster::cluster_at_most`] counts.
    pub const fn merges_kernels(self) -> bool {
        match self {
            Self::Merging | Self::Siblings => true,
            Self::Inlining | Self::Attention | Self::ProductRows | Self::Epilogues => false,
        }
    }
}

/// One fusion decision about an edge of the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FusionDecision {
    /// Where it was made.
    pub stage: FusionStage,
    /// The value that is produced.
    pub producer: NodeId,
    /// The value that needs it (for siblings, the other one).
    pub consumer: NodeId,
    /// What was decided, and why.
    pub reason: FusionReason,
}

/// Every fusion decision in the order made. A later stage may decide about an edge again, and what it decides holds; what was
/// decided before stays on record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FusionLedger {
    entries: Vec<FusionDecision>,
}

impl FusionLedger {
    /// Appends a decision.
    pub(crate) fn record(&mut self, decision: FusionDecision) {
        debug_assert!(
            self.entries.last().is_none_or(|last| last.stage <= decision.stage),
            "stages decide one after the other"
        );
        self.entries.push(decision);
    }

    /// Every decision, in the order made.
    pub fn entries(&self) -> &[FusionDecision] {
        &self.entries
    }

    /// The decisions about each edge, oldest first, of which the last holds; edges in the order in which they were first
    /// decided about.
    pub fn edges(&self) -> Vec<Vec<&FusionDecision>> {
        let mut number: FxHashMap<(NodeId, NodeId), usize> = FxHashMap::default();
        let mut edges: Vec<Vec<&FusionDecision>> = Vec::new();
        for d in &self.entries {
            let at = *number.entry((d.producer, d.consumer)).or_insert(edges.len());
            match edges.get_mut(at) {
                Some(edge) => edge.push(d),
                None => edges.push(vec![d]),
            }
        }
        edges
    }
}

/// One aliasing decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AliasDecision {
    /// The slot that is written.
    pub slot: SlotId,
    /// The slot whose bytes it takes, or would have.
    pub of: SlotId,
    /// What was decided, and why.
    pub reason: AliasReason,
}

/// Why a result is, or is not, written in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AliasReason {
    /// The operand dies here and each element is read where it is written.
    InPlace,
    /// The operand moves into the output's buffer, which is free until then.
    IntoOutput,
    /// The operand moves to where a concatenation has the result, which is free until then.
    IntoWhole,
    /// The result is part of a concatenation, and is computed where that has it.
    PartOfWhole,
    /// The result is part of a concatenation, and is copied to where that has it.
    CopiedToWhole,
    /// The operand is needed later.
    StillLive,
    /// The operand is an input that the caller may give away.
    IfGiven,
    /// The operand is a state of the caller, and this is its new value.
    UpdatesState,
    /// The new value of a state is copied to it when the call ends, because something reads the old one after the new one is begun.
    StateCopied,
    /// The operand's bytes belong to the caller or are constant.
    NotOurs,
}

impl fmt::Display for AliasReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => "in place: the operand dies here",
            Self::IntoOutput => "computed in the output's buffer",
            Self::IntoWhole => "computed where the concatenation has the result",
            Self::PartOfWhole => "computed in place of the concatenation",
            Self::CopiedToWhole => "copied to the concatenation",
            Self::StillLive => "not in place: the operand is needed later",
            Self::IfGiven => "in place if the caller gives the operand away",
            Self::UpdatesState => "in place: the state's new value",
            Self::StateCopied => "copied to the state at the end: its old value is needed until then",
            Self::NotOurs => "not in place: the operand's bytes are the caller's",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_decision_about_an_edge_holds_and_the_others_stay() {
        let decision = |stage, producer: u32, consumer: u32, reason| FusionDecision {
            stage,
            producer: NodeId(producer),
            consumer: NodeId(consumer),
            reason,
        };
        let own = FusionReason::OwnStep {
            step: OwnStep::MatrixProduct,
        };
        let mut ledger = FusionLedger::default();
        ledger.record(decision(FusionStage::Inlining, 0, 1, FusionReason::OnlyUse));
        ledger.record(decision(FusionStage::Merging, 1, 2, own.clone()));
        ledger.record(decision(FusionStage::Siblings, 2, 3, FusionReason::Siblings));
        ledger.record(decision(FusionStage::Epilogues, 1, 2, FusionReason::OtherLines));
        let edges = ledger.edges();
        assert_eq!(edges.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(edges[1][0].reason, own);
        assert_eq!(edges[1][1].reason, FusionReason::OtherLines);
        assert_eq!(ledger.entries().len(), 4);
    }
}
