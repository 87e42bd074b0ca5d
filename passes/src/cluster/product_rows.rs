//! Rows behind products on a GPU: a contraction, and what waits for whole rows of its results, as norms and softmax do, as one cluster.
//!
//! Two clusters become one where a tile of a block has all columns of its rows ([`crate::schedule`]'s `product_rows` has what becomes of it). That saves a launch, and
//! to write the products and read them again. It costs where the columns are so many, or the rows so few, that blocks which divide rows among
//! them would multiply sooner: then there are two kernels still.
//!
//! Invariants: the joined cluster has the place of the second one, and nothing before that reads the products; each element that the second one reads of
//! them is of the row that it is at.

use tlc_ir::graph::Semiring;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::contract::converts_exactly;
use tlc_ir::target::{Gpu, MatrixTile, WARP_GROUP_ROWS};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Precision, Target};

use super::{Demand, output_values};
use crate::access::space;
use crate::devices::Placement;
use crate::partition::{Cluster, ClusterKind, Clusters, LoopSpace, ProductRows, Role};
use crate::reason::{FusionDecision, FusionReason, FusionStage, ProductRowsRefusal};
use crate::tile::{LARGE_PRODUCT_SIDE, PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE};

/// Rows of a tile, the most first.
const ROWS: [i64; 3] = [64, 32, 16];
/// Columns of a tile.
const COLUMNS: [i64; 5] = [16, 32, 64, 128, 256];
/// Elements of a row that are looped over for it, at most.
const MOST_COLUMNS: i64 = COLUMNS[COLUMNS.len() - 1];
/// Rows of a tile where it is not known that there are many.
const FEW_ROWS: i64 = 32;
/// Elements of a tile without matrix instructions, at most: 16 for each of 512 threads.
const MOST_ELEMENTS: i64 = 8192;
/// What single warps reach of the rate at which four together multiply, where a device has instructions for that.
const OF_GROUPS: f64 = 0.6;
/// Products of a tile for each element that it brings to shared memory from which on it is multiplied at the full rate: those of the largest tile without
/// groups, 64 by 64.
const FULL_RATE: f64 = (PRODUCT_SIDE / 2) as f64;
/// Bytes of a row, or of a column, that a stage of the operands has at most, and how many stages a tile is sure to have room for.
const STAGE_BYTES: i64 = 128;
const STAGES: i64 = 2;
/// Steps of the shortest sums that four warps do not multiply together.
const SHORT_SUM: i64 = 32;

/// Joins clusters of products with clusters of their rows on GPUs. By root, `demands` are what it reads.
pub(super) fn join(graph: &Graph, placement: &Placement<'_>, demands: &[Vec<Demand>], clusters: &mut Clusters) {
    let mut outputs = None;
    let mut at = 0;
    while at < clusters.clusters.len() {
        let first = at;
        at += 1;
        let Some(product) = Product::of(graph, placement, &clusters.clusters[first]) else {
            continue;
        };
        let reads = |c: &Cluster| {
            let mut read = c.roots.iter().flat_map(|r| &demands[r.index()]);
            read.any(|d| d.source == product.value)
        };
        let mut readers = (first + 1..clusters.clusters.len()).filter(|&k| reads(&clusters.clusters[k]));
        let Some(second) = readers.next() else { continue };
        let needed = readers.next().is_some();
        let Some((consumer, rows)) = Rows::of(graph, placement, &product, &clusters.clusters[second]) else {
            continue;
        };
        let made = product.tile(graph, placement, &rows, demands);
        let reason = match made {
            Ok([rows, columns]) => FusionReason::ProductRows { rows, columns },
            Err(refusal) => FusionReason::NoProductRows(refusal),
        };
        clusters.ledger.record(FusionDecision {
            stage: FusionStage::ProductRows,
            producer: product.value,
            consumer,
            reason,
        });
        let Ok(tile) = made else { continue };
        let outputs = outputs.get_or_insert_with(|| output_values(graph, placement.products()));
        let kept = (needed || outputs.contains(&product.value)).then_some(product.value);
        let value = product.value;
        let before = clusters.clusters.remove(first);
        let joined = &mut clusters.clusters[second - 1];
        let (ClusterKind::Loops(columns), ClusterKind::Loops(along)) = (before.kind, &joined.kind) else {
            continue;
        };
        let kind = ProductRows {
            value,
            rows: (joined.roots.clone(), along.clone()),
            product: (before.roots.clone(), columns),
            tile,
        };
        joined.kind = ClusterKind::ProductRows(Box::new(kind));
        joined.roots.extend(before.roots);
        joined.stored.extend(kept);
        joined.roots.sort_unstable();
        joined.stored.sort_unstable();
        at = first;
    }
}

/// A cluster that computes one contraction, and what of it is needed.
struct Product {
    value: NodeId,
    contraction: NodeId,
    /// The axes of the value that are loops: number and extent.
    axes: Vec<(usize, IndexExpr)>,
}

impl Product {
    fn of(graph: &Graph, placement: &Placement<'_>, c: &Cluster) -> Option<Product> {
        let (ClusterKind::Loops(space), &[value]) = (&c.kind, &c.stored[..]) else {
            return None;
        };
        if c.once || !matches!(placement.target(value), Target::Gpu(_)) {
            return None;
        }
        let mut summed = c.roots.iter().filter(|&&r| super::merge::sums_up(&graph.node(r).kind));
        let (Some(&contraction), None) = (summed.next(), summed.next()) else {
            return None;
        };
        let node = graph.node(contraction);
        let NodeKind::Einsum {
            semiring: Semiring::AddMul,
            ..
        } = node.kind
        else {
            return None;
        };
        let place = c.roots.iter().position(|&r| r == value)?;
        let shape = &graph.ty(value).shape;
        let axes: Vec<(usize, IndexExpr)> = shape.iter().cloned().enumerate().filter(|a| !a.1.is(1)).collect();
        let roles = space.roles[place].iter().filter(|r| **r != Role::Unit);
        let result = roles.clone().take(axes.len());
        let in_order = result.clone().enumerate().all(|(k, r)| *r == Role::Parallel(k));
        let all = axes.iter().map(|a| &a.1).eq(&space.parallel) && result.count() == axes.len();
        (node.operands.len() == 2 && in_order && all).then_some(Product {
            value,
            contraction,
            axes,
        })
    }

    /// Rows and columns of the tile that a block is to have.
    fn tile(
        &self,
        graph: &Graph,
        placement: &Placement<'_>,
        rows: &Rows<'_>,
        demands: &[Vec<Demand>],
    ) -> Result<[i64; 2], ProductRowsRefusal> {
        let Target::Gpu(gpu) = placement.target(self.value) else {
            return Err(ProductRowsRefusal::OtherRows);
        };
        let (along, across) = self.axes.split_at(rows.space.parallel.len().min(self.axes.len()));
        if !along.iter().map(|a| &a.1).eq(&rows.space.parallel) || along.is_empty() {
            return Err(ProductRowsRefusal::OtherRows);
        }
        let columns = across
            .iter()
            .fold(1i64, |n, a| n.saturating_mul(a.1.interval(graph).hi));
        let known = across.iter().all(|a| a.1.as_const().is_some());
        let side = COLUMNS.into_iter().find(|c| columns <= *c);
        let Some(side) = side.filter(|side| known && 2 * columns >= *side) else {
            return Err(ProductRowsRefusal::Columns { columns });
        };
        if !rows.are_of(graph, self, along, demands) {
            return Err(ProductRowsRefusal::OtherRows);
        }
        let most = |e: &IndexExpr| e.interval(graph).hi;
        let Some((last, around)) = along.split_last() else {
            return Err(ProductRowsRefusal::OtherRows);
        };
        let (m, exact) = (most(&last.1), last.1.as_const().is_some());
        if m < SMALLEST_PRODUCT_SIDE {
            return Err(ProductRowsRefusal::FewRows { rows: m });
        }
        let of = space(graph, self.contraction);
        let length = of.extents[of.result_rank..]
            .iter()
            .map(most)
            .fold(1i64, i64::saturating_mul);
        let around = around.iter().map(|a| most(&a.1)).fold(1i64, i64::saturating_mul);
        let operands = Operands::of(graph, self.contraction, gpu, placement.precision().of_products());
        let work = Work {
            gpu,
            operands,
            rows: (m, exact),
            columns,
            length,
            around,
        };
        let element = graph.ty(self.value).dtype.bytes() as i64;
        work.choose(side, element)
    }
}

/// A cluster that has loops over rows of a product.
struct Rows<'c> {
    roots: &'c [NodeId],
    space: &'c LoopSpace,
}

impl<'c> Rows<'c> {
    /// The cluster's loops, and the first of its values that sums up rows, which decisions name.
    fn of(graph: &Graph, placement: &Placement<'_>, product: &Product, c: &'c Cluster) -> Option<(NodeId, Rows<'c>)> {
        let ClusterKind::Loops(space) = &c.kind else {
            return None;
        };
        let device = placement.device(product.value);
        let here = !c.once && !space.is_column_local() && c.roots.iter().all(|r| placement.device(*r) == device);
        let sums = |r: &&NodeId| matches!(graph.node(**r).kind, NodeKind::Reduce { .. });
        let first = c.roots.iter().find(sums).filter(|_| here)?;
        let roots = &c.roots;
        Some((*first, Rows { roots, space }))
    }

    /// Whether whatever the cluster reads of the product is of the row that it is at, and it loops over no more than a row has.
    fn are_of(&self, graph: &Graph, product: &Product, along: &[(usize, IndexExpr)], demands: &[Vec<Demand>]) -> bool {
        self.roots.iter().zip(&self.space.roles).all(|(&root, roles)| {
            let extents = space(graph, root).extents;
            let inner = roles.iter().zip(&extents).filter(|a| matches!(a.0, Role::Inner(_)));
            let looped = inner.fold(1i64, |n, a| n.saturating_mul(a.1.interval(graph).hi));
            let mut read = demands[root.index()].iter().filter(|d| d.source == product.value);
            looped <= MOST_COLUMNS
                && read.all(|d| {
                    along.iter().enumerate().all(|(number, (axis, _))| {
                        let role = d.index[*axis].as_var().and_then(|v| roles.get(v.0 as usize));
                        role == Some(&Role::Parallel(number))
                    })
                })
        })
    }
}

/// What a contraction multiplies, and how fast.
struct Operands {
    bytes: i64,
    /// Whether by matrix instructions, and whether four warps may do that together.
    matrices: bool,
    groups: bool,
    /// Operations a second, of four warps together where that may be.
    rate: f64,
}

impl Operands {
    fn of(graph: &Graph, contraction: NodeId, gpu: &Gpu, precision: Precision) -> Operands {
        // As they are before conversions that keep every value.
        let stored = graph.node(contraction).operands.iter().map(|&o| {
            let node = graph.node(o);
            let below = || graph.ty(node.operands[0]).dtype;
            match node.kind {
                NodeKind::Convert(to) if converts_exactly(below(), to) => below(),
                _ => node.ty.dtype,
            }
        });
        let widest = stored.max_by_key(|d| d.bytes()).unwrap_or(DType::F32);
        let (matrices, rate, precision) = match widest {
            DType::F16 | DType::BF16 => (true, gpu.matrix_flops_per_second, Precision::Exact),
            DType::F32 if precision == Precision::Tf32 => (true, gpu.matrix_flops_per_second / 2.0, precision),
            _ => (false, gpu.f32_flops_per_second, precision),
        };
        let together = MatrixTile {
            operands: [widest; 2],
            accumulator: DType::F32,
            precision,
            extents: [WARP_GROUP_ROWS, LARGE_PRODUCT_SIDE, SMALLEST_PRODUCT_SIDE],
        };
        Operands {
            bytes: widest.bytes() as i64,
            matrices,
            groups: matrices && gpu.emitter.contracts_in_groups(&together),
            rate,
        }
    }
}

/// Sums of products of so many rows, and whether their number is known, columns and products, so many times.
struct Work<'g> {
    gpu: &'g Gpu,
    operands: Operands,
    rows: (i64, bool),
    columns: i64,
    length: i64,
    around: i64,
}

impl Work<'_> {
    /// Whether four warps multiply a tile together.
    fn in_groups(&self, [rows, columns]: [i64; 2]) -> bool {
        self.operands.groups && columns == LARGE_PRODUCT_SIDE && rows % PRODUCT_SIDE == 0 && self.length > SHORT_SUM
    }

    /// How long blocks of such tiles take: as many at a time as there are multiprocessors, and the longer the more a tile brings to shared memory for what
    /// it multiplies.
    fn seconds(&self, tile: [i64; 2]) -> f64 {
        let [rows, columns] = tile;
        let parts = |n: i64, side: i64| n / side + i64::from(n % side != 0);
        let tiles = parts(self.rows.0, rows)
            .saturating_mul(parts(self.columns, columns))
            .saturating_mul(self.around);
        let rounds = parts(tiles, self.gpu.multiprocessors) as f64;
        let [r, c] = [rows as f64, columns as f64];
        let brought = (FULL_RATE * (r + c) / (r * c)).max(1.0);
        let slower = match self.operands.groups && !self.in_groups(tile) {
            true => OF_GROUPS,
            false => 1.0,
        };
        let each = self.operands.rate * slower / self.gpu.multiprocessors as f64;
        rounds * 2.0 * r * c * self.length as f64 * brought / each
    }

    /// The tile whose blocks would take the least time, if that is less than in two kernels: of results of so many bytes each.
    fn choose(&self, columns: i64, element: i64) -> Result<[i64; 2], ProductRowsRefusal> {
        let (m, exact) = self.rows;
        let gpu = self.gpu;
        let most = gpu.opt_in_shared_bytes.max(gpu.shared_bytes);
        let stage = match self.operands.matrices {
            true => STAGE_BYTES,
            false => SMALLEST_PRODUCT_SIDE * self.operands.bytes,
        };
        let fits = |rows: &i64| {
            if !self.operands.matrices && rows * columns > MOST_ELEMENTS {
                return false;
            }
            let results = rows * (columns + SMALLEST_PRODUCT_SIDE) * element;
            results + STAGES * (rows + columns) * stage <= most
        };
        let large = Some(LARGE_PRODUCT_SIDE).filter(|rows| self.in_groups([*rows, columns]) && (m >= *rows));
        let usual = ROWS.into_iter().filter(|rows| match exact {
            true => *rows == SMALLEST_PRODUCT_SIDE || *rows < 2 * m,
            false => *rows <= FEW_ROWS,
        });
        let tiles = large.into_iter().chain(usual).filter(fits).map(|rows| [rows, columns]);
        let timed = tiles.map(|tile| (tile, self.seconds(tile)));
        let Some((tile, together)) = timed.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return Err(ProductRowsRefusal::Columns { columns });
        };
        let elements = (m as f64) * self.columns as f64 * self.around as f64;
        let passed = 2.0 * elements * element as f64 / gpu.bytes_per_second + gpu.launch_seconds;
        let apart = self.apart() + passed;
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        match together <= apart {
            true => Ok(tile),
            false => Err(ProductRowsRefusal::Slower {
                together_ns: ns(together),
                apart_ns: ns(apart),
            }),
        }
    }

    /// How long a kernel takes that only multiplies.
    fn apart(&self) -> f64 {
        let (m, exact) = self.rows;
        let side = |n: i64, most: i64| {
            ROWS.into_iter()
                .find(|s| *s <= n.min(most))
                .unwrap_or(SMALLEST_PRODUCT_SIDE)
        };
        let rows = side(m, if exact { PRODUCT_SIDE } else { FEW_ROWS });
        let usual = self.seconds([rows, side(self.columns, PRODUCT_SIDE)]);
        let large = [LARGE_PRODUCT_SIDE; 2];
        match self.in_groups(large) && self.columns >= LARGE_PRODUCT_SIDE && m >= LARGE_PRODUCT_SIDE {
            true => usual.min(self.seconds(large)),
            false => usual,
        }
    }
}
