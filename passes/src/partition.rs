//! A graph divided into clusters: what clustering decides, as data.

use tlc_ir::graph::Shape;
use tlc_ir::kernel::SHARED_ALIGNMENT;
use tlc_ir::target::GPU_ACCESS_BYTES;
use tlc_ir::{DType, NodeId, Precision};

use crate::contraction::MatrixProduct;
use crate::emitters::EmitterChoice;
use crate::reason::FusionLedger;

/// What an axis of a root is in its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The cluster's parallel axis of that number.
    Parallel(usize),
    /// The root's own inner axis of that number.
    Inner(usize),
    /// An axis of one element: always at 0, so no loop.
    Unit,
}

/// The parallel axes of a loop cluster, and how each root's axes map to them.
#[derive(Clone, PartialEq, Debug)]
pub struct LoopSpace {
    /// Extents of the parallel axes, outermost first.
    pub parallel: Shape,
    /// Per root (in the order of [`Cluster::roots`]): the role of each axis of its space.
    pub roles: Vec<Vec<Role>>,
}

impl LoopSpace {
    /// Whether a root has parallel axes inside of inner ones: what it needs lies in a tile of columns.
    pub fn is_column_local(&self) -> bool {
        self.roles.iter().any(|roles| {
            let mut inner = false;
            roles.iter().any(|r| {
                inner |= matches!(r, Role::Inner(_));
                inner && matches!(r, Role::Parallel(_))
            })
        })
    }
}

/// How a cluster runs.
#[derive(Clone, PartialEq, Debug)]
pub enum ClusterKind {
    /// One fused loop nest.
    Loops(LoopSpace),
    /// A matrix product by the library.
    Gemm(Box<MatrixProduct>),
    /// A contraction, a softmax along its rows, and a contraction over those, in blocks of a GPU.
    Attention(Box<Attention>),
    /// A serial loop along an axis, or one in each of its blocks.
    Scan(Option<Blocks>),
    /// A copy of the base and loops over the updates.
    Scatter(Updates),
    /// A loop over a plan of its own.
    Loop,
    /// A function of the runtime.
    Call,
}

/// Which values are an attention, and how blocks share it out.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// The first contraction, whose last axis is that of the keys.
    pub scores: NodeId,
    /// What the softmax is taken of, along its last axis.
    pub masked: NodeId,
    /// The second contraction.
    pub result: NodeId,
    /// Which operand of the first contraction has the rows; the other one has the keys.
    pub query: usize,
    /// Which operand of the second contraction the softmax is; the other one has the values.
    pub weights: usize,
    /// The axis of the scores whose positions are the rows of a block.
    pub row_axis: usize,
    /// Elements that the first contraction sums, and elements of a row of the result.
    pub features: [i64; 2],
    /// Rows of a block.
    pub rows: i64,
    /// How warps multiply, if they do by matrix instructions: both contractions then.
    pub matrices: Option<Matrices>,
}

/// How the warps of an attention multiply: a warp has 16 rows of a block's tiles, and of their columns all or one of two halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrices {
    /// Dtype of all operands, in shared memory as well.
    pub dtype: DType,
    /// How exactly they are multiplied.
    pub precision: Precision,
    /// Warps side by side.
    pub across: i64,
    /// Elements that the first contraction sums, and elements of a row of the result, with what fills up the last instruction.
    pub features: [i64; 2],
}

impl Matrices {
    /// Rows of a warp, and steps that go with one instruction or two.
    pub const ROWS: i64 = 16;

    /// The form for such features.
    pub fn new(dtype: DType, precision: Precision, [summed, width]: [i64; 2]) -> Matrices {
        let whole = |n: i64, of: i64| (n + of - 1) / of * of;
        let across = if width > Self::ROWS { 2 } else { 1 };
        Matrices {
            dtype,
            precision,
            across,
            features: [whole(summed, Self::ROWS), whole(width, Self::ROWS * across)],
        }
    }

    /// Elements that one access moves.
    pub fn together(&self) -> i64 {
        GPU_ACCESS_BYTES / self.dtype.bytes() as i64
    }

    /// Distance between the rows of queries, of keys, of values, of scores and of weights in shared memory, each so that what warps read
    /// or write together lies in different banks: rows of `ldmatrix` an odd number of 16 bytes apart, those of 32-bit elements that
    /// are read across, and of scores, which a warp writes in pairs, an odd number of 32 bytes.
    pub fn strides(&self) -> [i64; 5] {
        let gap = self.together();
        let [summed, width] = self.features;
        [
            summed + gap,
            summed + gap,
            width + 8,
            Attention::KEYS + 8,
            Attention::KEYS + gap,
        ]
    }

    /// Bytes that the threads of a block share.
    pub fn shared_bytes(&self, rows: i64) -> i64 {
        let [query, key, value, score, weight] = self.strides();
        let held = rows * query + Attention::KEYS * key.max(value) + rows * weight;
        // Scores and what rows are scaled by are f32.
        held * self.dtype.bytes() as i64 + (rows * score + rows) * 4 + 5 * SHARED_ALIGNMENT
    }
}

impl Attention {
    /// Keys that a block looks at together: one for each thread of a warp.
    pub const KEYS: i64 = 32;
    /// Rows of a thread's part of a tile.
    pub const PART_ROWS: i64 = 4;
    /// Threads that share the rows of a part.
    pub const PART_THREADS: i64 = 16;

    /// Distance between the rows of queries, of keys, of values and of weights in shared memory. They are chosen so that no two threads of
    /// a warp wait for each other: odd where threads read one column of many rows.
    pub fn strides([summed, width]: [i64; 2]) -> [i64; 4] {
        let wide = (width + Self::PART_THREADS - 1) / Self::PART_THREADS * Self::PART_THREADS;
        [summed | 1, summed | 1, wide, Self::KEYS + Self::PART_ROWS]
    }

    /// Elements that the threads of a block share: rows of queries, then those of keys or of values, weights, and a number for each row.
    pub fn shared_elements(rows: i64, features: [i64; 2]) -> i64 {
        let [query, key, value, weights] = Self::strides(features);
        rows * query + Self::KEYS * key.max(value) + rows * weights + rows
    }
}

/// Blocks of a scan: each is scanned by itself, then their totals, which are added to the elements of the blocks behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Elements of a block along the axis.
    pub elements: i64,
    /// Blocks that are scanned side by side in one loop.
    pub chains: i64,
}

impl Blocks {
    /// What a report says of a scan.
    pub fn text(blocks: Option<Blocks>) -> String {
        blocks.map_or("a serial scan".into(), |b| {
            format!(
                "a scan of each block of {} elements, one of the blocks' totals, and their addition to what is behind them",
                b.elements
            )
        })
    }
}

/// Who applies which updates of a scatter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Updates {
    /// One loop applies all.
    Serial,
    /// The axes before the first indexed one are parallel: each of their positions has elements and updates of its own.
    Outer,
    /// One of these axes is cut into so many blocks of equal length, whose owners go through all indices and apply to each the
    /// updates of their positions.
    OuterBlocks {
        /// The axis of the result.
        axis: usize,
        /// How many blocks; it divides the extent.
        blocks: i64,
    },
    /// The first axis is cut into so many ranges. The owner of each looks at all indices and applies the updates that lie in
    /// its range.
    Owners(i64),
    /// As [`Updates::Owners`], where the extent of the first axis is not known: of so many owners, each has every position that
    /// leaves its number as the remainder.
    Turns(i64),
}

impl Updates {
    /// What a report says of it.
    pub fn text(self) -> String {
        match self {
            Updates::Serial => "serial updates".into(),
            Updates::Outer => "updates, apart along the first axes".into(),
            Updates::OuterBlocks { axis, blocks } => format!("updates, apart in {blocks} blocks of axis {axis}"),
            Updates::Owners(n) => format!("updates by the owners of {n} ranges of the first axis"),
            Updates::Turns(n) => format!("updates by {n} owners, which take turns along the first axis"),
        }
    }
}

/// Values that are computed together.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// Roots, ascending.
    pub roots: Vec<NodeId>,
    /// The roots that something outside needs.
    pub stored: Vec<NodeId>,
    /// How it runs.
    pub kind: ClusterKind,
    /// What makes its kernels, if it has any.
    pub emitter: EmitterChoice,
    /// True if no input reaches it: it runs once per executable.
    pub once: bool,
}

/// The result of clustering.
#[derive(Clone, Debug, Default)]
pub struct Clusters {
    /// Clusters in execution order.
    pub clusters: Vec<Cluster>,
    /// Every decision about a fusion; planning appends its own.
    pub ledger: FusionLedger,
    /// True for each node that is a root.
    pub is_root: Vec<bool>,
}
