//! A graph divided into clusters: what clustering decides, as data.

use tlc_ir::NodeId;
use tlc_ir::graph::Shape;

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
