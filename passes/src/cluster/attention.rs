//! Attention on a GPU: a contraction, operations along its rows that end in a softmax, and a contraction over those rows, as one cluster.
//!
//! It is found by structure: weights `exp(x - max x) / sum exp(x - max x)` along the last axis, where `x` is computed element by element
//! from the first contraction (scales, masks, caps) and whatever else is read at the same place. A maximum of minus infinity may be
//! replaced by 0, and a sum of 0 by 1, so that rows of hidden keys are zero; or weights that are not numbers by 0, which is all of a row or none
//! of it. Blocks of rows then go along the columns
//! a tile at a time, with the maximum and the sum of what they have seen (Milakov and Gimelshein, arXiv:1805.02867), and the matrix of
//! scores is in no memory (Dao et al., arXiv:2205.14135).
//!
//! Invariant: nothing outside needs a value in between, so that a cluster that joins others has the last one's stored values alone.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use tlc_ir::graph::{Labels, Monoid, Semiring, Shape};
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::contract::converts_exactly;
use tlc_ir::target::{Gpu, MatrixTile, Support, WARP_GROUP, WARP_GROUP_ROWS};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Precision, ScalarOp, Target};

use super::roots::SECONDS_OF_A_KERNEL;
use super::{horizon, output_values};
use crate::access::{Index, Variables, repeats};
use crate::devices::Placement;
use crate::partition::{Attention, AttentionForm, ClusterKind, Clusters, Matrices, SingleRow};
use crate::reason::{AttentionRefusal, FusionDecision, FusionReason, FusionStage};

/// Rows of a block, the most first.
const ROWS: [i64; 3] = [64, 32, 16];
/// Rows of a block of warps that multiply by matrix instructions where there are blocks enough for all multiprocessors: each element of keys and values
/// that comes from shared memory is multiplied twice as often.
const MANY_ROWS: i64 = 128;
/// Elements of a row of the result up to which a warp has the registers for two rows of tiles.
const SHORT_ROW: i64 = 64;
/// Keys that a block of warps looks at together, the most first.
const KEYS: [i64; 2] = [64, 32];
/// Rows of a block whose four warps multiply together, and keys that it looks at together.
const GROUP_ROWS: i64 = WARP_GROUP * WARP_GROUP_ROWS;
const GROUP_KEYS: i64 = 128;
/// Tiles of keys up to which none of them is left out.
const FEW_TILES: i64 = 3;
/// Blocks of a multiprocessor at once, for which threads have the registers.
const RESIDENT_BLOCKS: i64 = 2;
/// What a thread executes for an element of an operand that is computed: the load, the operation, what rounds it, and addresses.
const INSTRUCTIONS: f64 = 6.0;
/// Features up to which a row of the result is in the registers of its threads.
const MOST_FEATURES: i64 = 256;

/// Joins the clusters of each attention of a GPU.
pub(super) fn join(graph: &Graph, placement: &Placement<'_>, clusters: &mut Clusters) {
    let results: Vec<NodeId> = clusters
        .clusters
        .iter()
        .filter(|c| may_join(&c.kind) && !c.once)
        .flat_map(|c| c.roots.iter().copied())
        .filter(|&r| matches!(graph.node(r).kind, NodeKind::Einsum { .. }))
        .collect();
    let mut users = None;
    for result in results {
        let device = placement.device(result);
        let Target::Gpu(gpu) = placement.devices().target(device) else {
            continue;
        };
        let Some(found) = Found::at(graph, result) else {
            continue;
        };
        let users = users.get_or_insert_with(|| readers(graph, placement));
        let made = found
            .form(graph, gpu, placement.precision().of_products())
            .and_then(|form| {
                let reason = FusionReason::Attention {
                    rows: form.rows,
                    operands: match &form.form {
                        AttentionForm::Warps(m) => Some((m.dtype, m.precision)),
                        AttentionForm::Threads | AttentionForm::Row(_) => None,
                    },
                    groups: matches!(&form.form, AttentionForm::Warps(m) if m.groups),
                    horizon: form.horizon.is_some(),
                    parts: match &form.form {
                        AttentionForm::Row(row) if row.parts > 1 => {
                            Some([row.parts, rows_of(graph, found.scores), gpu.multiprocessors])
                        }
                        _ => None,
                    },
                };
                found.merge(placement, clusters, users, form)?;
                Ok(reason)
            });
        let reason = made.unwrap_or_else(FusionReason::NoAttention);
        for (producer, consumer) in [(found.scores, found.most), (found.weights, result)] {
            clusters.ledger.record(FusionDecision {
                stage: FusionStage::Attention,
                producer,
                consumer,
                reason: reason.clone(),
            });
        }
    }
}

/// Keys and values of an attention that are computed element by element, if that takes longer for each block of rows than to write them once and to
/// read them.
pub(super) fn computed_once(graph: &Graph, gpu: &Gpu, result: NodeId) -> SmallVec<[NodeId; 2]> {
    let found = Found::at(graph, result);
    let products = found.as_ref().and_then(|f| {
        let products = (Product::of(graph, f.scores)?, Product::of(graph, f.result)?);
        Some((f, products))
    });
    let Some((found, (first, second))) = products else {
        return SmallVec::new();
    };
    let key = usize::from(first.output.last().is_some_and(|keys| first.inputs[1].contains(keys)));
    let of_query = |l: &&u16| first.inputs[1 - key].contains(l) && !first.inputs[key].contains(l);
    let row = first.output.iter().rev().find(of_query);
    let rows = row.and_then(|l| first.extent(graph, *l)).and_then(|n| n.as_const());
    let blocks = rows.unwrap_or(1) as f64 / ROWS[0] as f64;
    let computed = |operand: NodeId| {
        let mut at = operand;
        loop {
            let node = graph.node(at);
            match &node.kind {
                NodeKind::View(view) if view.fill().is_none() => at = node.operands[0],
                NodeKind::Convert(to) if converts_exactly(graph.ty(node.operands[0]).dtype, *to) => {
                    at = node.operands[0];
                }
                NodeKind::Map(_) | NodeKind::Convert(_) => break,
                _ => return None,
            }
        }
        let ty = graph.ty(at);
        let extents: Option<f64> = ty.shape.iter().map(|e| e.as_const().map(|n| n as f64)).product();
        let (elements, bytes) = (extents?, ty.dtype.bytes() as f64);
        // Of two operations of a multiply-add every instruction is one, and half of them wait.
        let again = blocks * elements * INSTRUCTIONS * 4.0 / gpu.f32_flops_per_second;
        let once = 2.0 * elements * bytes / gpu.bytes_per_second + SECONDS_OF_A_KERNEL;
        (again > once).then_some(at)
    };
    [first.operands[key], second.operands[1 - found.side]]
        .into_iter()
        .filter_map(computed)
        .collect()
}

/// How many rows scores have at most.
fn rows_of(graph: &Graph, scores: NodeId) -> i64 {
    let shape = &graph.ty(scores).shape;
    IndexExpr::product(&shape[..shape.len() - 1]).interval(graph).hi
}

/// Whether a cluster can be part of an attention: a library's product as well, for it would write the scores.
fn may_join(kind: &ClusterKind) -> bool {
    matches!(kind, ClusterKind::Loops(_) | ClusterKind::Gemm(_))
}

/// By node: those that read it; `None` of an output, which the caller reads.
fn readers(graph: &Graph, placement: &Placement<'_>) -> Vec<Option<SmallVec<[NodeId; 4]>>> {
    let mut users = vec![Some(SmallVec::new()); graph.len()];
    for (id, node) in graph.nodes() {
        for o in &node.operands {
            if let Some(of) = &mut users[o.index()] {
                of.push(id);
            }
        }
    }
    for value in output_values(graph, placement.products()) {
        users[value.index()] = None;
    }
    users
}

/// The values of an attention.
struct Found {
    /// The first contraction.
    scores: NodeId,
    /// What the softmax is taken of.
    masked: NodeId,
    /// The maximum of each row.
    most: NodeId,
    /// The softmax, as it is multiplied: it may be rounded.
    weights: NodeId,
    /// Which operand of the second contraction it is.
    side: usize,
    /// The second contraction.
    result: NodeId,
    /// Whether rows of hidden keys are zero.
    guarded: bool,
    /// Whether weights that are not numbers are zero.
    cleaned: bool,
    /// All of these and what is between them.
    between: FxHashSet<NodeId>,
}

impl Found {
    /// The attention that ends in a contraction, if one does.
    fn at(graph: &Graph, result: NodeId) -> Option<Found> {
        let node = graph.node(result);
        if node.operands.len() != 2 {
            return None;
        }
        (0..2).find_map(|side| Found::with(graph, result, side))
    }

    fn with(graph: &Graph, result: NodeId, side: usize) -> Option<Found> {
        let weights = graph.node(result).operands[side];
        let mut between: FxHashSet<NodeId> = [result, weights].into_iter().collect();
        let mut cleaned = false;
        let mut clean = |at: NodeId, between: &mut FxHashSet<NodeId>| match without_nan(graph, at) {
            Some((value, comparison)) if !cleaned => {
                cleaned = true;
                between.extend([value, comparison]);
                value
            }
            _ => at,
        };
        // Exporters of 16-bit models compute a softmax in f32 and round it.
        let mut divided = clean(weights, &mut between);
        if let NodeKind::Convert(_) = &graph.node(divided).kind {
            divided = graph.node(divided).operands[0];
            between.insert(divided);
            divided = clean(divided, &mut between);
        }
        let operands = |id: NodeId, op: ScalarOp| match &graph.node(id).kind {
            NodeKind::Map(found) if *found == op => Some(&graph.node(id).operands),
            _ => None,
        };
        let last = graph.ty(weights).rank().checked_sub(1)? as u8;
        let reduced = |id: NodeId, of: NodeId, wanted: Monoid| match &graph.node(id).kind {
            NodeKind::Reduce { monoid, axes } => {
                *monoid == wanted && axes[..] == [last] && graph.node(id).operands[0] == of
            }
            _ => false,
        };
        // Divided by the sum, or multiplied by what one divided by it is.
        let (powers, (sum, of_nothing)) = match (operands(divided, ScalarOp::Div), operands(divided, ScalarOp::Mul)) {
            (Some(of), _) => (of[0], row_value(graph, of[1], false, NO_SUM, &mut between)?),
            (_, Some(of)) => (0..2).find_map(|k| {
                let sum = row_value(graph, of[1 - k], true, NO_SUM, &mut between)?;
                Some((of[k], sum))
            })?,
            _ => return None,
        };
        let shifted = operands(powers, ScalarOp::Exp)?[0];
        let of_shift = operands(shifted, ScalarOp::Sub)?;
        let masked = of_shift[0];
        let (most, of_hidden) = row_value(graph, of_shift[1], false, NO_MAXIMUM, &mut between)?;
        if !reduced(sum, powers, Monoid::Add) || !reduced(most, masked, Monoid::Max) {
            return None;
        }
        between.extend([powers, sum, shifted, most]);
        let scores = below(graph, masked, &mut between)?;
        Some(Found {
            scores,
            masked,
            most,
            weights,
            side,
            result,
            // One without the other leaves zero by zero, or infinity less infinity: NaN, as without them.
            guarded: of_nothing && of_hidden || cleaned,
            cleaned,
            between,
        })
    }

    /// What is which axis, and the size of blocks.
    fn form(&self, graph: &Graph, gpu: &Gpu, precision: Precision) -> Result<Attention, AttentionRefusal> {
        let first = Product::of(graph, self.scores).ok_or(AttentionRefusal::Contraction)?;
        let second = Product::of(graph, self.result).ok_or(AttentionRefusal::Contraction)?;
        let dtype = graph.ty(self.masked).dtype;
        let float = matches!(dtype, DType::F32 | DType::F64);
        if !float || first.accumulator != dtype || second.accumulator != dtype {
            return Err(AttentionRefusal::Dtype);
        }
        let operands = first.operands.iter().chain(second.operands).map(|o| graph.ty(*o).dtype);
        let multiplied = by_matrices(&operands.collect::<Vec<_>>(), dtype, precision);
        // Threads multiply what the softmax is of, and do not round it before.
        let rounded = first.dtype != dtype || graph.ty(self.weights).dtype != dtype;
        let (axes, keys) = (
            first.output.len(),
            *first.output.last().ok_or(AttentionRefusal::Contraction)?,
        );
        // The operand with the last axis of the scores is that of the keys.
        let key = usize::from(first.inputs[1].contains(&keys));
        let query = 1 - key;
        let is_rows = |l: &u16| first.inputs[query].contains(l) && !first.inputs[key].contains(l);
        let row_axis = first.output[..axes - 1].iter().rposition(is_rows);
        let summed: Vec<u16> = first.summed();
        let both = |l: &u16| first.inputs.iter().all(|i| i.contains(l));
        if first.inputs[query].contains(&keys) || summed.len() != 1 || !summed.iter().all(both) {
            return Err(AttentionRefusal::Contraction);
        }
        // Of the second contraction: one label is summed, the last of the weights; one is the values' own.
        let (weights, values) = (&second.inputs[self.side], &second.inputs[1 - self.side]);
        let [column] = second.summed()[..] else {
            return Err(AttentionRefusal::Contraction);
        };
        let own: Vec<u16> = values.iter().copied().filter(|l| !weights.contains(l)).collect();
        let [feature] = own[..] else {
            return Err(AttentionRefusal::Contraction);
        };
        let kept = weights[..weights.len() - 1].iter().all(|l| second.output.contains(l));
        if weights.last() != Some(&column)
            || !values.contains(&column)
            || row_axis.is_some_and(|axis| values.contains(&weights[axis]))
            || !second.output.contains(&feature)
            || !kept
        {
            return Err(AttentionRefusal::Contraction);
        }
        let constant = |e: Option<IndexExpr>| e.and_then(|e| e.as_const()).filter(|n| (1..=MOST_FEATURES).contains(n));
        let extent = |product: &Product<'_>, l: u16| product.extent(graph, l);
        let features = [
            constant(extent(&first, summed[0])).ok_or(AttentionRefusal::Features)?,
            constant(extent(&second, feature)).ok_or(AttentionRefusal::Features)?,
        ];
        let shape = &graph.ty(self.scores).shape;
        let most_keys = shape[shape.len() - 1].interval(graph).hi;
        let horizon = row_axis.and_then(|axis| horizon::find(graph, [self.scores, self.masked], axis, features[0]));
        let found = |row_axis, rows, form| Attention {
            scores: self.scores,
            masked: self.masked,
            result: self.result,
            query,
            weights: self.side,
            row_axis,
            features,
            rows,
            guarded: self.guarded,
            cleaned: self.cleaned,
            horizon: match form {
                // Of few tiles there is not much to leave out.
                AttentionForm::Warps(m) => horizon.clone().filter(|_| most_keys > FEW_TILES * m.keys),
                AttentionForm::Threads | AttentionForm::Row(_) => None,
            },
            form,
        };
        let most = row_axis.map_or(1, |axis| shape[axis].interval(graph).hi);
        if most == 1 {
            // Keys and values go to shared memory as they are stored, if that is as one type.
            let [key, value] = [first.operands[key], second.operands[1 - self.side]].map(|o| graph.ty(o).dtype);
            let stored = if key == value && converts_exactly(key, dtype) {
                key
            } else {
                dtype
            };
            let limits = [gpu.shared_bytes, gpu.opt_in_shared_bytes];
            let form = limits.iter().find_map(|most| SingleRow::new(stored, features, *most));
            let form = form.ok_or(AttentionRefusal::Features)?;
            let keys = shape[shape.len() - 1].interval(graph).hi;
            let form = form.in_parts(rows_of(graph, self.scores), keys, gpu.multiprocessors);
            return Ok(found(None, 1, AttentionForm::Row(form)));
        }
        let fewest = if multiplied.is_some() { 2 } else { ROWS[ROWS.len() - 1] };
        if most < fewest {
            return Err(AttentionRefusal::FewRows { rows: most });
        }
        let wanted = |rows: &&i64| **rows == ROWS[ROWS.len() - 1] || **rows <= most;
        let of_rows = |bytes: &dyn Fn(i64) -> i64, most: i64| {
            let fits = |rows: &i64| bytes(*rows) <= most;
            ROWS.iter().filter(wanted).copied().find(fits)
        };
        // Where their number is not known there may be few.
        let counted = IndexExpr::product(&shape[..shape.len() - 1]).as_const();
        let fills = counted.is_some_and(|n| n >= MANY_ROWS * RESIDENT_BLOCKS * gpu.multiprocessors);
        let native = |m: &Matrices| {
            let [summed, width] = m.features;
            [[m.keys, summed], [width, m.keys]].iter().all(|[columns, steps]| {
                let extents = [m.rows, *columns, Matrices::ROWS];
                let whole = steps % Matrices::ROWS == 0;
                whole && gpu.emitter.contract([m.dtype; 2], dtype, m.precision, extents) == Support::Native
            })
        };
        // Four warps that multiply together read keys and values once for all of their rows.
        let in_groups = |operands: (DType, Precision)| {
            let m = Matrices::new(operands, [Matrices::ROWS, GROUP_KEYS], features).in_groups(features)?;
            let [summed, width] = m.features;
            let native = [[m.keys, summed], [width, m.keys]].iter().all(|[columns, steps]| {
                let tile = MatrixTile {
                    operands: [m.dtype; 2],
                    accumulator: dtype,
                    precision: m.precision,
                    extents: [m.rows, *columns, Matrices::ROWS],
                };
                steps % Matrices::ROWS == 0 && gpu.emitter.contracts_in_groups(&tile)
            });
            let fits = m.shared_bytes(GROUP_ROWS) <= gpu.opt_in_shared_bytes.max(gpu.shared_bytes);
            (native && fits && most >= GROUP_ROWS).then_some((GROUP_ROWS, AttentionForm::Warps(m)))
        };
        // More rows share what is read; more keys at a time are less to be combined.
        let in_warps = |most: i64| {
            let operands = multiplied?;
            let many = fills.then_some(MANY_ROWS);
            let rows = many.iter().chain(&ROWS).filter(wanted).copied();
            let form = |rows, keys| {
                let twice = rows == MANY_ROWS && features[1] <= SHORT_ROW;
                let part = if twice { 2 * Matrices::ROWS } else { Matrices::ROWS };
                Matrices::new(operands, [part, keys], features)
            };
            let mut forms = rows.flat_map(|rows| KEYS.map(|keys| (rows, form(rows, keys))));
            let found = forms.find(|(rows, m)| native(m) && m.shared_bytes(*rows) <= most);
            found.map(|(rows, m)| (rows, AttentionForm::Warps(m)))
        };
        // Keys and values are read once for the rows of a block: where more of them fit if the driver is asked, it is.
        let asked = |form: &dyn Fn(i64) -> Option<(i64, AttentionForm)>| {
            let usual = form(gpu.shared_bytes);
            let more = form(gpu.opt_in_shared_bytes);
            let rows = |f: &Option<(i64, AttentionForm)>| f.as_ref().map_or(0, |f| f.0);
            if rows(&more) > rows(&usual) { more } else { usual }
        };
        let by_warps = asked(&in_warps);
        // So are more keys at a time, where a multiprocessor has room for as many blocks as its registers have.
        let each = gpu.multiprocessor.shared_bytes / RESIDENT_BLOCKS - gpu.multiprocessor.reserved_bytes;
        let roomy = in_warps(gpu.opt_in_shared_bytes.min(each));
        let size = |f: &Option<(i64, AttentionForm)>| match f {
            Some((rows, AttentionForm::Warps(m))) => (*rows, m.keys),
            _ => (0, 0),
        };
        let by_warps = if size(&roomy) > size(&by_warps) {
            roomy
        } else {
            by_warps
        };
        let by_warps = multiplied.and_then(in_groups).or(by_warps);
        if by_warps.is_none() && rounded {
            return Err(AttentionRefusal::Dtype);
        }
        if by_warps.is_none() && most < ROWS[ROWS.len() - 1] {
            return Err(AttentionRefusal::FewRows { rows: most });
        }
        let by_threads = || {
            let bytes = |rows| Attention::shared_elements(rows, features) * dtype.bytes() as i64;
            asked(&|most| Some((of_rows(&bytes, most)?, AttentionForm::Threads)))
        };
        let (rows, form) = by_warps.or_else(by_threads).ok_or(AttentionRefusal::Features)?;
        Ok(found(row_axis, rows, form))
    }

    /// Makes one cluster of those that compute the values.
    fn merge(
        &self,
        placement: &Placement<'_>,
        clusters: &mut Clusters,
        users: &[Option<SmallVec<[NodeId; 4]>>],
        form: Attention,
    ) -> Result<(), AttentionRefusal> {
        let only_inside = |n: &NodeId| {
            let of = users[n.index()].as_ref();
            of.is_some_and(|of| of.iter().all(|u| self.between.contains(u)))
        };
        if !self.between.iter().filter(|n| **n != self.result).all(only_inside) {
            return Err(AttentionRefusal::Needed);
        }
        let inside = |c: &crate::partition::Cluster| c.roots.iter().any(|r| self.between.contains(r));
        let device = placement.device(self.result);
        let own = |c: &crate::partition::Cluster| {
            !c.once
                && may_join(&c.kind)
                && c.roots
                    .iter()
                    .all(|r| self.between.contains(r) && placement.device(*r) == device)
        };
        let parts: Vec<usize> = (0..clusters.clusters.len())
            .filter(|&k| inside(&clusters.clusters[k]))
            .collect();
        if !parts.iter().all(|&k| own(&clusters.clusters[k])) {
            return Err(AttentionRefusal::Beside);
        }
        let Some(&last) = parts.last() else {
            return Err(AttentionRefusal::Beside);
        };
        let mut roots: Vec<NodeId> = parts.iter().flat_map(|&k| clusters.clusters[k].roots.clone()).collect();
        roots.sort();
        let joined = &mut clusters.clusters[last];
        joined.roots = roots;
        joined.stored = vec![self.result];
        joined.kind = ClusterKind::Attention(Box::new(form));
        let mut number = 0..;
        clusters.clusters.retain(|_| {
            let k: usize = number.next().unwrap_or(0);
            k == last || !parts.contains(&k)
        });
        Ok(())
    }
}

/// The dtype and the precision that matrix instructions would multiply operands with, of a softmax of that dtype.
fn by_matrices(operands: &[DType], softmax: DType, precision: Precision) -> Option<(DType, Precision)> {
    let all = |dtype: DType| operands.iter().all(|d| *d == dtype).then_some(dtype);
    let exact = [DType::F16, DType::BF16].into_iter().find_map(all);
    let rounded = all(DType::F32).filter(|_| precision == Precision::Tf32);
    let found = exact.map(|d| (d, Precision::Exact)).or(rounded.map(|d| (d, precision)));
    found.filter(|_| softmax == DType::F32)
}

/// A value that is replaced where a row has nothing to weigh, and by what.
type Guard = [f64; 2];
const NO_MAXIMUM: Guard = [f64::NEG_INFINITY, 0.0];
const NO_SUM: Guard = [0.0, 1.0];

/// The value of each row that a value repeats along its last axis, or, if `inverse`, of which it repeats what one divided by it is; and
/// whether it is guarded so. What lies between is added to `between`.
fn row_value(
    graph: &Graph,
    mut at: NodeId,
    inverse: bool,
    guard: Guard,
    between: &mut FxHashSet<NodeId>,
) -> Option<(NodeId, bool)> {
    let mut vars = Variables::new(graph);
    let shape: &Shape = &graph.ty(at).shape;
    let mut index: Index = shape.iter().map(|d| vars.push(d.clone()).into()).collect();
    let row: Index = index[..index.len().checked_sub(1)?].into();
    let mut passed = Vec::new();
    let (mut inverted, mut guarded) = (false, false);
    loop {
        let node = graph.node(at);
        match &node.kind {
            NodeKind::View(view) if view.fill().is_none() => {
                passed.push(at);
                let from = &graph.ty(node.operands[0]).shape;
                index = view.operand_index(from, &node.ty.shape, &index, &vars).index;
                at = node.operands[0];
            }
            NodeKind::Map(ScalarOp::Div) if inverse && !inverted && is_everywhere(graph, node.operands[0], 1.0) => {
                inverted = true;
                passed.push(at);
                at = node.operands[1];
            }
            NodeKind::Map(ScalarOp::Select) if !guarded && is_guard(graph, &node.operands, guard) => {
                guarded = true;
                passed.extend([at, node.operands[0]]);
                at = node.operands[2];
            }
            _ => break,
        }
    }
    // Along an axis of one element every index is 0.
    let same = |(d, (a, b)): (&IndexExpr, (&IndexExpr, &IndexExpr))| {
        d.is(1) || a.clone().simplify(&vars) == b.clone().simplify(&vars)
    };
    let found = &graph.ty(at).shape;
    if inverted != inverse || index.len() != row.len() || !found.iter().zip(index.iter().zip(&row)).all(same) {
        return None;
    }
    between.extend(passed);
    between.insert(at);
    Some((at, guarded))
}

/// Whether a choice is between a value and what replaces it.
fn is_guard(graph: &Graph, operands: &[NodeId], [of, by]: Guard) -> bool {
    let &[condition, replaced, value] = operands else {
        return false;
    };
    let NodeKind::Map(ScalarOp::Eq) = &graph.node(condition).kind else {
        return false;
    };
    let compared = &graph.node(condition).operands;
    let same = (0..2).any(|k| compared[k] == value && is_everywhere(graph, compared[1 - k], of));
    same && is_everywhere(graph, replaced, by)
}

/// The value that is replaced by 0 where it is not a number, and the comparison that says where, if a value is that.
fn without_nan(graph: &Graph, at: NodeId) -> Option<(NodeId, NodeId)> {
    let NodeKind::Map(ScalarOp::Select) = &graph.node(at).kind else {
        return None;
    };
    let &[condition, replaced, value] = &graph.node(at).operands[..] else {
        return None;
    };
    let itself = graph.node(condition).operands.iter().all(|o| *o == value);
    let differs = matches!(&graph.node(condition).kind, NodeKind::Map(ScalarOp::Ne));
    (differs && itself && is_everywhere(graph, replaced, 0.0)).then_some((value, condition))
}

/// Whether a value is that number everywhere.
fn is_everywhere(graph: &Graph, mut at: NodeId, number: f64) -> bool {
    while let NodeKind::View(view) = &graph.node(at).kind
        && view.fill().is_none()
    {
        at = graph.node(at).operands[0];
    }
    matches!(&graph.node(at).kind, NodeKind::Const(value) if value.as_f64() == number)
}

/// The one contraction that a value is computed from element by element. What lies between is added to `between`.
fn below(graph: &Graph, masked: NodeId, between: &mut FxHashSet<NodeId>) -> Option<NodeId> {
    let shape = &graph.ty(masked).shape;
    let mut found: Option<NodeId> = None;
    let mut seen = FxHashSet::default();
    let mut work = vec![masked];
    while let Some(id) = work.pop() {
        if !seen.insert(id) {
            continue;
        }
        match &graph.node(id).kind {
            NodeKind::Einsum { .. } if graph.ty(id).shape == *shape && graph.node(id).operands.len() == 2 => {
                // Of several the latest: what adds another to its scores reads that one as a mask.
                found = found.max(Some(id));
            }
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Copy => {
                work.extend(graph.node(id).operands.iter().copied())
            }
            _ => {}
        }
    }
    let scores = found?;
    // What is on the way from the scores up to what the softmax is taken of; operands come before who reads them.
    let mut way: Vec<NodeId> = seen.into_iter().filter(|id| *id > scores).collect();
    way.sort_unstable();
    between.insert(scores);
    let through = |id: NodeId| {
        matches!(
            graph.node(id).kind,
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Copy
        )
    };
    for id in way {
        if through(id) && graph.node(id).operands.iter().any(|o| between.contains(o)) {
            between.insert(id);
        }
    }
    between.contains(&masked).then_some(scores)
}

/// A sum of products of two operands.
struct Product<'g> {
    operands: &'g [NodeId],
    inputs: &'g [Labels],
    output: &'g Labels,
    accumulator: DType,
    dtype: DType,
}

impl<'g> Product<'g> {
    fn of(graph: &'g Graph, id: NodeId) -> Option<Product<'g>> {
        let node = graph.node(id);
        let NodeKind::Einsum {
            semiring: Semiring::AddMul,
            inputs,
            output,
            accumulator,
            dtype,
        } = &node.kind
        else {
            return None;
        };
        (inputs.len() == 2 && !inputs.iter().any(repeats)).then_some(Product {
            operands: &node.operands,
            inputs,
            output,
            accumulator: *accumulator,
            dtype: *dtype,
        })
    }

    /// The labels that the result lacks, each once.
    fn summed(&self) -> Vec<u16> {
        let mut all: Vec<u16> = self.inputs.iter().flatten().copied().collect();
        all.retain(|l| !self.output.contains(l));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The extent of a label.
    fn extent(&self, graph: &Graph, label: u16) -> Option<IndexExpr> {
        let of = |(operand, labels): (&NodeId, &Labels)| {
            let axis = labels.iter().position(|&l| l == label)?;
            Some(graph.ty(*operand).shape[axis].clone())
        };
        self.operands.iter().zip(self.inputs).find_map(of)
    }
}
