//! Why a schedule is what it is: the reason of every directive, and the text of both for `explain`.

use std::fmt;

use tlc_ir::Precision;

use crate::directive::{Directive, DirectiveRefusal};

/// Why a directive was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleReason {
    /// Neighbouring loops walk memory as one, without a division.
    OneWalk,
    /// Loops become one range for the threads to share.
    OneRange,
    /// A thread's turn: a piece of a loop.
    Pieces {
        /// Elements of a piece.
        elements: i64,
    },
    /// Whole vectors.
    Vectors {
        /// Elements of a vector.
        lanes: i64,
    },
    /// Independent vectors side by side hide the latency of each other.
    SideBySide {
        /// How many.
        vectors: i64,
    },
    /// What whole vectors leave over.
    Rest,
    /// An accumulator for each vector in flight hides the latency of the combination.
    Accumulators,
    /// A running sum over many terms rounds with each: blocks of them, and blocks of these, round less often.
    SumsInBlocks {
        /// Iterations of a block.
        iterations: i64,
    },
    /// Loads walk one axis and stores another: tiles keep both in cache.
    Tiles {
        /// Rows of what a tile becomes.
        rows: i64,
        /// Elements of such a row.
        columns: i64,
    },
    /// Tiles follow each other along the rows that are loaded.
    AlongLoads,
    /// A result is too large for the caches: pieces of it are copied past them.
    PastCaches {
        /// Bytes of the last cache, of which the result has at least half.
        last_cache: u64,
    },
    /// Phases of a row compute it, and to keep it takes less than to compute it again.
    ComputedOnce,
    /// There is no room for both of what a phase reads and what it keeps.
    InPlace,
    /// Phases meet the same elements of a tile of columns, of which each row lies elsewhere in memory.
    LoadedOnce,
    /// Memory is walked along the rows of a tile of columns.
    ColumnTile {
        /// Columns.
        columns: i64,
    },
    /// Rows are added up in registers before the accumulators in memory are touched.
    RowsInRegisters {
        /// How many.
        rows: i64,
    },
    /// The rows of a matrix that was turned are added up as they were.
    RowsTurned,
    /// Rows of a matrix that lie apart are multiplied with a vector together, each a stream of its own.
    DistantRows {
        /// How many.
        rows: i64,
        /// How far apart.
        apart: i64,
    },
    /// Several vectors are combined at once, and tested for NaN in pairs.
    TestedTogether {
        /// How many.
        vectors: i64,
    },
    /// Rows shorter than a few vectors fill the lanes side by side.
    RowsInLanes {
        /// Rows at once.
        rows: i64,
    },
    /// The rows of a window and their elements are one loop.
    Window,
    /// Neighbouring results, each of a small window, fill the lanes.
    ResultsInLanes {
        /// Results at once.
        lanes: i64,
    },
    /// Windows of neighbouring rows meet the same elements and weights.
    WindowsTogether {
        /// Rows at once.
        rows: i64,
    },
    /// Windows are multiplied where they lie: a tile of results stays in registers for the whole sum.
    DirectConvolution {
        /// Neighbouring pixels of a tile.
        rows: i64,
        /// Channels of a tile.
        columns: i64,
    },
    /// Words of bytes are multiplied with weights in blocks: a tile of results stays in registers for the whole sum.
    DirectProduct {
        /// Rows of a tile.
        rows: i64,
        /// Columns of a tile.
        columns: i64,
    },
    /// So many channels of an image are added up for all of its pixels before the next ones.
    ChannelsAtOnce {
        /// Channels.
        channels: i64,
    },
    /// Weights that the next tiles need come from memory while these are computed.
    Ahead,
    /// Windows of several rows slide over the image, each of whose elements is loaded once for them.
    Slide,
    /// Channels of an image that another core may have written come from its cache while those before them are multiplied.
    ChannelsAhead,
    /// Rows that the second cache does not hold come from memory while those before them are added up.
    RowsAhead,
    /// What is loaded with masks, which prefetchers do not follow, is asked for ahead.
    MasksAhead,
    /// What is conditional at the edges is not in the middle.
    Edges,
    /// A row's elements are all those of one part of what is put together.
    Cases,
    /// The position of an extremum costs more than the extremum, so that only one block is searched for it.
    BestBlock {
        /// Elements of a block.
        elements: i64,
    },
    /// A GPU block takes a piece, its threads the parts of it.
    BlocksAndThreads,
    /// Sums of products in a tile of rows and columns load each element of their operands for all of them.
    Products {
        /// Rows of a tile.
        rows: i64,
        /// Columns of a tile.
        columns: i64,
    },
    /// The warps of a GPU block multiply such a tile by matrix instructions.
    MatrixInstructions {
        /// Rows of a tile.
        rows: i64,
        /// Columns of a tile.
        columns: i64,
        /// How exactly they multiply.
        precision: Precision,
    },
    /// Rows of shared memory begin in different banks.
    Banks,
    /// What the next iterations need is copied beside the threads.
    Beside {
        /// Iterations whose operands shared memory holds: the one that uses its own, and those that are copied for.
        stages: i64,
    },
    /// What the threads of a GPU block share lies in shared memory.
    SharedMemory,
    /// A warp takes a row: its threads combine what they have without waiting for others.
    RowsByWarps,
    /// A block takes a tile of so many rows and columns of sums of products, all columns of its rows, of which its warps compute what waits for whole
    /// rows.
    ProductRows {
        /// Rows of the tile.
        rows: i64,
        /// Columns of the tile.
        columns: i64,
    },
    /// So many threads of a warp take a row, which is too short for all of them.
    RowsByParts {
        /// How many.
        threads: i64,
    },
    /// A column whose rows several threads share is added up sooner.
    SharedRows {
        /// How many.
        groups: i64,
    },
    /// A thread alone touches elements of it.
    Registers,
    /// Blocks of a GPU are on a multiprocessor together.
    Residents {
        /// How many.
        blocks: i64,
    },
    /// Threads of a GPU block wait for each other where one uses what another wrote.
    Order,
}

impl fmt::Display for ScheduleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneWalk => f.write_str("the loops walk memory as one"),
            Self::OneRange => f.write_str("one range for the threads to share"),
            Self::Pieces { elements } => write!(f, "pieces of {elements} elements for a thread at a time"),
            Self::Vectors { lanes } => write!(f, "vectors of {lanes}"),
            Self::SideBySide { vectors } => write!(f, "{vectors} vectors side by side hide each other's latency"),
            Self::Rest => f.write_str("what whole vectors leave over"),
            Self::Accumulators => f.write_str("an accumulator for each vector in flight"),
            Self::SumsInBlocks { iterations } => write!(
                f,
                "long sums are added up in blocks of {iterations} iterations, and these in turn, so that they round less often"
            ),
            Self::Tiles { rows, columns } => write!(
                f,
                "loads walk one axis and stores another: tiles of {rows} by {columns} keep both in cache"
            ),
            Self::AlongLoads => {
                f.write_str("tiles follow each other along what is loaded, which is read from end to end")
            }
            Self::PastCaches { last_cache } => write!(
                f,
                "the result has more bytes than the last cache ({last_cache}): it is written past the caches"
            ),
            Self::InPlace => f.write_str("a row is needed no longer once it is read: what is kept goes where it was"),
            Self::ComputedOnce => f.write_str("phases of a row need it: it is computed once and kept"),
            Self::LoadedOnce => f.write_str("phases need it and its rows lie apart: it is loaded once and kept"),
            Self::ColumnTile { columns } => write!(f, "tiles of {columns} columns, walked along their rows"),
            Self::RowsTurned => {
                f.write_str("rows that were turned are added up as rows are: lane by lane, and the lanes by halves")
            }
            Self::RowsInRegisters { rows } => {
                write!(f, "{rows} rows are added up in registers before memory is touched")
            }
            Self::DistantRows { rows, apart } => write!(
                f,
                "{rows} rows, {apart} apart, are multiplied with the vector together, each read as a stream of its own"
            ),
            Self::TestedTogether { vectors } => write!(f, "{vectors} vectors are combined and tested for NaN together"),
            Self::RowsInLanes { rows } => write!(f, "a row is short: {rows} of them side by side fill the lanes"),
            Self::Cases => f.write_str("which part a row is of is asked once for it"),
            Self::Ahead => f.write_str("the next channels' weights are fetched while these are multiplied"),
            Self::Slide => f.write_str("an element of the image is loaded once for the rows whose windows meet it"),
            Self::ChannelsAhead => f.write_str(
                "the next channels of the image are fetched while these are multiplied: they lie far apart, or another core holds them",
            ),
            Self::MasksAhead => {
                f.write_str("what is loaded with masks is fetched ahead: this processor does not foresee it")
            }
            Self::RowsAhead => f.write_str("the next rows are fetched while these are added up"),
            Self::Edges => f.write_str("what is conditional at the edges is not in the middle"),
            Self::Window => f.write_str("a window is small: its rows and their elements are one loop"),
            Self::ResultsInLanes { lanes } => write!(
                f,
                "{lanes} neighbouring results, each of a small window, fill the lanes"
            ),
            Self::WindowsTogether { rows } => {
                write!(f, "windows of {rows} rows share what each of their elements loads")
            }
            Self::BestBlock { elements } => {
                write!(
                    f,
                    "the extremum of each {elements} elements, then its position in the best of these"
                )
            }
            Self::ChannelsAtOnce { channels } => write!(
                f,
                "all pixels take {channels} channels of the image before the next ones, whose cache lines they share"
            ),
            Self::DirectConvolution { rows, columns } => write!(
                f,
                "windows are multiplied where they lie: {rows} pixels by {columns} channels stay in registers"
            ),
            Self::DirectProduct { rows, columns } => write!(
                f,
                "words of four bytes are multiplied in tiles: {rows} rows by {columns} columns stay in registers"
            ),
            Self::BlocksAndThreads => f.write_str("a block of threads for each piece"),
            Self::Products { rows, columns } => {
                write!(f, "{rows} by {columns} sums of products share what they load")
            }
            Self::MatrixInstructions {
                rows,
                columns,
                precision,
            } => {
                write!(
                    f,
                    "warps multiply {rows} by {columns} sums of products by matrix instructions"
                )?;
                match precision {
                    Precision::Exact => Ok(()),
                    other => write!(f, ", operands rounded to {other}"),
                }
            }
            Self::Banks => f.write_str("rows of shared memory begin in different banks"),
            Self::Beside { stages: 2 } => f.write_str("the next block of a sum is copied while this one is multiplied"),
            Self::Beside { stages } => {
                write!(
                    f,
                    "the next {} blocks of a sum are copied while one is multiplied",
                    stages - 1
                )
            }
            Self::SharedMemory => f.write_str("threads of a block share it"),
            Self::ProductRows { rows, columns } => write!(
                f,
                "whole rows of sums of products, {rows} by {columns} of a block, stay in shared memory for what waits for all of a row"
            ),
            Self::RowsByWarps => f.write_str("a warp for each row: its threads wait for no others"),
            Self::RowsByParts { threads } => write!(
                f,
                "{threads} threads of a warp for each row, which is short: they wait for no others"
            ),
            Self::SharedRows { groups } => write!(f, "there are few columns: {groups} threads share the rows of each"),
            Self::Registers => f.write_str("a thread alone touches its elements: they stay in registers"),
            Self::Residents { blocks } => write!(f, "a multiprocessor has registers for {blocks} blocks at a time"),
            Self::Order => f.write_str("threads wait for what others write"),
        }
    }
}

/// A directive of a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// What was done.
    pub directive: Directive,
    /// Why.
    pub reason: ScheduleReason,
}

/// A directive that was tried in vain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// What was tried.
    pub directive: Directive,
    /// What for.
    pub reason: ScheduleReason,
    /// Why it does not apply.
    pub refusal: DirectiveRefusal,
}

/// The text of a schedule: a directive a line, each reason as a comment above the directives that it stands for, and what was
/// tried in vain as comments. [`crate::directive::parse`] reads it.
impl fmt::Display for super::Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in self.applied.chunk_by(|a, b| a.reason == b.reason) {
            writeln!(f, "// {}", run[0].reason)?;
            run.iter().try_for_each(|a| writeln!(f, "{}", a.directive))?;
        }
        for r in &self.refused {
            writeln!(f, "// refused ({}): {}: {}", r.reason, r.directive, r.refusal)?;
        }
        Ok(())
    }
}
