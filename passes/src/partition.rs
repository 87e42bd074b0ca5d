//! A graph divided into clusters: what clustering decides, as data.

use tlc_ir::graph::Shape;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{SHARED_ALIGNMENT, SWIZZLE_PERIOD_BYTES, SWIZZLED_ROW_BYTES};
use tlc_ir::target::{GPU_ACCESS_BYTES, WARP_GROUP_ROWS, WARP_THREADS};
use tlc_ir::{DType, NodeId, Precision, Scalar, ScalarOp};

use crate::contraction::MatrixProduct;
use crate::emitters::EmitterChoice;
use crate::reason::FusionLedger;
use crate::weight_gradient::WeightGradient;

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
    /// A contraction, and what waits for whole rows of its results, in blocks of a GPU.
    ProductRows(Box<ProductRows>),
    /// A sum over all positions of windows, as tiles of channels by the windows' elements.
    WeightGradient(Box<WeightGradient>),
    /// A recurrence along an axis.
    Scan(ScanForm),
    /// A copy of the base and loops over the updates.
    Scatter(Updates),
    /// A concatenation of parts that are stored where it has them. What else becomes part of it is copied there.
    Join(Vec<Part>),
    /// A loop over a plan of its own.
    Loop,
    /// A function of the runtime.
    Call,
}

/// A contraction, which the first of two loop nests computes, and what the second computes of rows of its results.
#[derive(Clone, PartialEq, Debug)]
pub struct ProductRows {
    /// The value that the first nest stores: the contraction, or what is computed of it element by element.
    pub value: NodeId,
    /// Roots of the first nest, ascending, and its loops: those along rows, then those along columns.
    pub product: (Vec<NodeId>, LoopSpace),
    /// Roots of the second nest, ascending, and its loops, which are those along rows.
    pub rows: (Vec<NodeId>, LoopSpace),
    /// Rows and columns of a block's tile. The columns are at least those of the result.
    pub tile: [i64; 2],
}

/// A part of a concatenation, the elements of which lie together there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The value.
    pub value: NodeId,
    /// The element of the whole where it begins.
    pub at: IndexExpr,
    /// Whether it is stored somewhere else, and copied.
    pub copied: bool,
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
    /// The axis of the scores whose positions are the rows of a block; `None` of blocks of one row.
    pub row_axis: Option<usize>,
    /// Elements that the first contraction sums, and elements of a row of the result.
    pub features: [i64; 2],
    /// Rows of a block.
    pub rows: i64,
    /// Whether the result of a row of which every key is hidden is zero, and not NaN.
    pub guarded: bool,
    /// Whether weights that are not numbers are zero: all of a row whose largest score is none or infinite. Such rows are guarded too.
    pub cleaned: bool,
    /// The last keys that rows see, if a mask hides those behind them.
    pub horizon: Option<Horizon>,
    /// How a block computes them.
    pub form: AttentionForm,
}

/// The last key that each row of an attention sees, where all others are hidden from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// The last one that the first row sees, which there may not be; each further row sees one more.
    pub last: IndexExpr,
    /// What the softmax is taken of where a key is seen, step by step from its score on.
    pub seen: Vec<OfScore>,
    /// Whether a hidden key has minus infinity in place of its score, whatever that is: then it weighs nothing whatever queries and
    /// keys are, or all of its row is no number, and only values decide what nothing times them is.
    pub replaced: bool,
}

/// A step from a score to what the softmax is taken of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfScore {
    /// Converts it.
    Convert(DType),
    /// Computes with a constant.
    Map(ScalarOp, Scalar),
}

/// How the threads of a block compute an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionForm {
    /// Each has a part of both contractions.
    Threads,
    /// Warps multiply by matrix instructions.
    Warps(Matrices),
    /// They share the keys of one row.
    Row(SingleRow),
}

/// How the threads of a block share one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SingleRow {
    /// Dtype of keys and values in shared memory.
    pub dtype: DType,
    /// Threads of the block.
    pub threads: i64,
    /// Keys that they look at together, each of another thread; a power of two.
    pub keys: i64,
    /// Threads that add up the same element of the result, each of other keys; a power of two.
    pub groups: i64,
    /// Parts of the keys, each of a block of its own; another kernel puts several together.
    pub parts: i64,
}

impl SingleRow {
    /// Threads of a block, the fewest first, so that each has an element of the result.
    const THREADS: [i64; 2] = [128, 256];
    /// The most keys at a time, and the fewest.
    const KEYS: [i64; 3] = [128, 64, 32];
    /// Keys from which on a row has parts: of fewer, the launch that puts parts together takes longer than they save.
    const SHARED_KEYS: i64 = 512;
    /// Keys of a part at least.
    const PART_KEYS: i64 = 128;
    /// The most parts of a row.
    const MOST_PARTS: i64 = 64;

    /// The form for such features, if a block has room for so many bytes.
    pub fn new(dtype: DType, [summed, width]: [i64; 2], most_bytes: i64) -> Option<SingleRow> {
        let threads = Self::THREADS.into_iter().find(|n| width <= *n)?;
        let forms = Self::KEYS.into_iter().map(|keys| {
            let fits = |n: &i64| *n <= keys && n * width <= threads;
            let groups = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(fits);
            SingleRow {
                dtype,
                threads,
                keys,
                groups: groups.last().unwrap_or(1),
                parts: 1,
            }
        });
        let mut fitting = forms.filter(|form| {
            let rows = form.keys * (summed.max(width) + GPU_ACCESS_BYTES / dtype.bytes() as i64) * dtype.bytes() as i64;
            // The query, weights, parts of results, and what the warps of a block combine, of at most 8 bytes each.
            let numbers = (summed + form.keys + form.groups * width + WARP_THREADS) * 8;
            rows + numbers + 6 * SHARED_ALIGNMENT <= most_bytes
        });
        fitting.next()
    }

    /// With as many parts as there are multiprocessors for each of so many rows, of at most so many keys.
    pub fn in_parts(self, rows: i64, keys: i64, multiprocessors: i64) -> SingleRow {
        let most = match keys >= Self::SHARED_KEYS {
            true => (keys / Self::PART_KEYS).min(Self::MOST_PARTS),
            false => 1,
        };
        let parts = (multiprocessors / rows.max(1)).min(most).max(1);
        SingleRow { parts, ..self }
    }
}

/// How the warps of an attention multiply: a warp has 16 rows of a block's tiles, and of their columns all or one of two halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrices {
    /// Dtype of all operands, in shared memory as well.
    pub dtype: DType,
    /// How exactly they are multiplied.
    pub precision: Precision,
    /// Rows of a warp, a multiple of those of an instruction.
    pub rows: i64,
    /// Keys that a block looks at together.
    pub keys: i64,
    /// Elements that the first contraction sums, and elements of a row of the result, with what fills up the last instruction.
    pub features: [i64; 2],
    /// Whether four warps multiply together, of operands in swizzled memory.
    pub groups: bool,
}

/// How rows of an operand lie in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lines {
    /// Elements from one row to the next.
    pub stride: i64,
    /// Elements from one stretch of so many columns as rows are apart to the next one, if all columns are more.
    pub stretch: Option<i64>,
}

impl Lines {
    /// Rows that begin so many elements apart.
    pub fn apart(stride: i64) -> Lines {
        Lines { stride, stretch: None }
    }

    /// Where an element is.
    pub fn at(&self, row: &IndexExpr, column: &IndexExpr) -> IndexExpr {
        let stride = IndexExpr::Const(self.stride);
        let row = row.clone() * stride.clone();
        match self.stretch {
            None => row + column.clone(),
            Some(stretch) => {
                let whole = IndexExpr::floor_div(column, &stride) * IndexExpr::Const(stretch);
                whole + row + IndexExpr::modulo(column, &stride)
            }
        }
    }
}

impl Matrices {
    /// Rows of an instruction, and steps that go with one or two.
    pub const ROWS: i64 = 16;

    /// The form for such features.
    pub fn new((dtype, precision): (DType, Precision), [rows, keys]: [i64; 2], [summed, width]: [i64; 2]) -> Matrices {
        let whole = |n: i64| (n + Self::ROWS - 1) / Self::ROWS * Self::ROWS;
        Matrices {
            dtype,
            precision,
            rows,
            keys,
            features: [whole(summed), whole(width)],
            groups: false,
        }
    }

    /// The same where four warps multiply together, each its rows: that is if elements of a row fill rows of swizzled memory.
    pub fn in_groups(self, features: [i64; 2]) -> Option<Matrices> {
        let row = self.swizzled_row();
        let whole = features.iter().all(|n| n % row == 0);
        (whole && self.rows == WARP_GROUP_ROWS && self.dtype.bytes() == 2).then_some(Matrices { groups: true, ..self })
    }

    /// Elements of a row of swizzled memory.
    fn swizzled_row(&self) -> i64 {
        SWIZZLED_ROW_BYTES / self.dtype.bytes() as i64
    }

    /// How rows of so many elements lie in shared memory, of which there are so many and which are as far apart as [`Self::strides`] says.
    pub fn lines(&self, rows: i64, stride: i64) -> Lines {
        match self.groups {
            false => Lines::apart(stride),
            true => {
                let row = self.swizzled_row();
                let stretch = (stride > row).then_some(rows * row);
                Lines { stride: row, stretch }
            }
        }
    }

    /// Distance between the rows of queries, of keys and of values in shared memory, each so that what warps read together lies in different
    /// banks: an odd number of 16 bytes, for `ldmatrix` and for elements of 32 bits of every other row. Of swizzled memory it is what they are
    /// long.
    pub fn strides(&self) -> [i64; 3] {
        let gap = match self.groups {
            true => 0,
            false => GPU_ACCESS_BYTES / self.dtype.bytes() as i64,
        };
        let [summed, width] = self.features;
        [summed + gap, summed + gap, width + gap]
    }

    /// Bytes that the threads of a block share.
    pub fn shared_bytes(&self, rows: i64) -> i64 {
        let [query, key, value] = self.strides();
        let held = rows * query + self.keys * (key + value);
        let alignment = match self.groups {
            true => SWIZZLE_PERIOD_BYTES,
            false => SHARED_ALIGNMENT,
        };
        held * self.dtype.bytes() as i64 + 3 * alignment
    }
}

impl Attention {
    /// Keys that the threads of a block look at together: one for each thread of a warp.
    pub const KEYS: i64 = 32;
    /// Rows of a thread's part of a tile.
    pub const PART_ROWS: i64 = 4;
    /// Threads that share the rows of a part.
    pub const PART_THREADS: i64 = 16;

    /// Keys that a block looks at together.
    pub fn keys(&self) -> i64 {
        match &self.form {
            AttentionForm::Threads => Self::KEYS,
            AttentionForm::Warps(m) => m.keys,
            AttentionForm::Row(row) => row.keys,
        }
    }

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

/// How a scan runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanForm {
    /// A serial loop along the axis.
    Serial,
    /// One in each block of it.
    Blocks(Blocks),
    /// A warp for each row of the last axis, whose threads combine neighbours.
    Warps,
    /// A block for each row of the last axis, whose warps share it and its threads hold all of it at once; or as [`ScanForm::Chunks`] where what is scanned
    /// takes too many statements for that.
    ByBlocks {
        /// Elements of a chunk then.
        chunk: i64,
    },
    /// A warp for each so many elements of a row of the last axis: first for their total, then, behind a scan of these, for the results.
    Chunks(i64),
}

impl ScanForm {
    /// What a report says of a scan.
    pub fn text(self) -> String {
        match self {
            ScanForm::Serial => "a serial scan".into(),
            ScanForm::Blocks(b) => format!(
                "a scan of each block of {} elements, one of the blocks' totals, and their addition to what is behind them",
                b.elements
            ),
            ScanForm::Warps => "a scan of each row by a warp".into(),
            ScanForm::ByBlocks { .. } => {
                "a scan of each row by the warps of a block, each of which begins with what those before it have".into()
            }
            ScanForm::Chunks(elements) => format!(
                "the totals of each {elements} elements, each by a warp, a scan of these, and one of each such part by a warp that begins with what is before"
            ),
        }
    }
}

/// Blocks of a scan: each is scanned by itself, then their totals, which are added to the elements of the blocks behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Elements of a block along the axis.
    pub elements: i64,
    /// Blocks that are scanned side by side in one loop.
    pub chains: i64,
    /// Whether parallel iterations side by side take neighbours behind the axis, as threads of a GPU should, and not the next block.
    pub neighbours: bool,
}

/// Who applies which updates of a scatter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Updates {
    /// One loop applies all.
    Serial,
    /// The axes before the first indexed one are parallel: each of their positions has elements and updates of its own.
    Outer,
    /// An axis that no index is of is cut into so many blocks of equal length, whose owners go through all indices and apply to each
    /// the updates of their positions.
    Blocks {
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
    /// As [`Updates::Owners`] or [`Updates::Turns`], where each position along the axes that no index is of has owners of its own, so many: for
    /// devices of many threads, of which those side by side apply neighbours of an update.
    Apart(i64),
}

impl Updates {
    /// What a report says of it.
    pub fn text(self) -> String {
        match self {
            Updates::Serial => "serial updates".into(),
            Updates::Outer => "updates, apart along the first axes".into(),
            Updates::Blocks { axis, blocks } => format!("updates, apart in {blocks} blocks of axis {axis}"),
            Updates::Owners(n) => format!("updates by the owners of {n} ranges of the first axis"),
            Updates::Turns(n) => format!("updates by {n} owners, which take turns along the first axis"),
            Updates::Apart(1) => "updates, apart along axes that no index is of".into(),
            Updates::Apart(n) => {
                format!("updates, apart along axes that no index is of, each by {n} owners of the first indexed axis")
            }
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
