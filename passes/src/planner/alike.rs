//! Clusters of which lowering makes equal nests, found before it has made them.
//!
//! What lowering looks at is a cluster's loops and what its roots are made of, down to values in memory, of which it sees the type. Names, the data of
//! constants and how nodes are numbered are nothing to it. So two clusters that are equal in all this, node by node as they are come by from the roots,
//! have equal nests over the values at the same places: a layer's kernels are decided on once, however many layers there are. Hashes only find them;
//! what is shared was compared.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use tlc_ir::plan::DeviceId;
use tlc_ir::target::EmitterId;
use tlc_ir::{Graph, NodeId, NodeKind};

use crate::access::is_source;
use crate::cluster::{Cluster, ClusterKind, LoopSpace};
use crate::lower::Arg;

use super::nests::Ready;

/// What lowering comes by of a cluster of loops.
pub(super) struct Outline {
    device: DeviceId,
    emitter: EmitterId,
    space: LoopSpace,
    /// The roots in their order, then what is below them as it is come by.
    nodes: Vec<NodeId>,
    /// How many roots there are and whether each is stored; then for each node 0 if it is in memory, else one more than it has operands, and the places
    /// of these among the nodes.
    links: Vec<u32>,
    /// Of all but the loops.
    hash: u64,
}

impl Outline {
    /// The outline of a cluster that is one nest of loops; `None` for others, and where an index is taken from data: what bounds it may be
    /// looked for in what is in memory, and beyond.
    pub(super) fn of(
        graph: &Graph,
        cluster: &Cluster,
        is_root: &[bool],
        device: DeviceId,
        places: &mut Places,
    ) -> Option<Outline> {
        let ClusterKind::Loops(space) = &cluster.kind else {
            return None;
        };
        let in_memory = |id: NodeId| {
            let is_stored = is_root[id.index()] && cluster.roots.binary_search(&id).is_err();
            is_stored || is_source(&graph.node(id).kind)
        };
        let mut nodes = cluster.roots.clone();
        let mut links = vec![nodes.len() as u32];
        links.extend(nodes.iter().map(|r| u32::from(cluster.stored.binary_search(r).is_ok())));
        let emitter = cluster.emitter.emitter;
        let mut hasher = FxHasher::default();
        (device, emitter).hash(&mut hasher);
        places.0.clear();
        places.0.extend(nodes.iter().copied().zip(0..));
        let mut at = 0;
        while let Some(&id) = nodes.get(at) {
            at += 1;
            let node = graph.node(id);
            if in_memory(id) {
                links.push(0);
                node.ty.hash(&mut hasher);
                continue;
            }
            if let NodeKind::Gather { .. } = node.kind {
                return None;
            }
            hasher.write_u64(node.hash_of_kind());
            links.push(node.operands.len() as u32 + 1);
            for &operand in &node.operands {
                let place = *places.0.entry(operand).or_insert(nodes.len() as u32);
                if place as usize == nodes.len() {
                    nodes.push(operand);
                }
                links.push(place);
            }
        }
        links.hash(&mut hasher);
        Some(Outline {
            device,
            emitter,
            space: space.clone(),
            nodes,
            links,
            hash: hasher.finish(),
        })
    }

    /// Each node, and whether it is computed.
    fn parts(&self) -> impl Iterator<Item = (NodeId, bool)> {
        let mut at = 1 + self.links[0] as usize;
        self.nodes.iter().map(move |&id| {
            let head = self.links[at];
            at += head.max(1) as usize;
            (id, head > 0)
        })
    }

    /// Whether lowering comes by the same of both: of what is in memory, types alone.
    fn is_like(&self, other: &Outline, graph: &Graph) -> bool {
        let same_node = |((a, computed), (b, _)): ((NodeId, bool), (NodeId, bool))| {
            graph.ty(a) == graph.ty(b) && (!computed || graph.node(a).kind == graph.node(b).kind)
        };
        (self.device, self.emitter) == (other.device, other.emitter)
            && self.links == other.links
            && self.nodes.len() == other.nodes.len()
            && self.space == other.space
            && self.parts().zip(other.parts()).all(same_node)
    }
}

/// The places of a cluster's nodes, while its outline is made; kept between clusters for its memory.
#[derive(Default)]
pub(super) struct Places(FxHashMap<NodeId, u32>);

/// A cluster's outline, with what was made of it.
struct Done {
    outline: Outline,
    ready: Ready,
    /// For each argument that is a value, its place among the nodes.
    places: SmallVec<[u32; 8]>,
}

/// Clusters whose kernels are known, by the hashes of their outlines.
#[derive(Default)]
pub(super) struct Alike {
    done: FxHashMap<u64, SmallVec<[Done; 1]>>,
}

impl Alike {
    /// What was made of a cluster of which this one's nest is equal, over this one's values.
    pub(super) fn find(&self, graph: &Graph, outline: &Outline) -> Option<Ready> {
        let mut done = self.done.get(&outline.hash)?.iter();
        let done = done.find(|done| done.outline.is_like(outline, graph))?;
        let mut ready = done.ready.clone();
        let values = ready.args.iter_mut().filter_map(|arg| match arg {
            Arg::Value(id) => Some(id),
            Arg::Temporary(_) => None,
        });
        for (id, &place) in values.zip(&done.places) {
            *id = outline.nodes[place as usize];
        }
        Some(ready)
    }

    /// Keeps what was made of a cluster, of which none was like it.
    pub(super) fn keep(&mut self, outline: Outline, ready: &Ready) {
        let place = |id: NodeId| outline.nodes.iter().position(|&n| n == id).map(|at| at as u32);
        let values = ready.args.iter().filter_map(|arg| match arg {
            Arg::Value(id) => Some(*id),
            Arg::Temporary(_) => None,
        });
        let Some(places) = values.map(place).collect() else {
            debug_assert!(false, "a nest over values that its cluster does not read");
            return;
        };
        let same_hash = self.done.entry(outline.hash).or_default();
        same_hash.push(Done {
            ready: ready.clone(),
            places,
            outline,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tlc_ir::graph::{ConstData, Monoid, Origin, Semiring, Shape, View};
    use tlc_ir::target::Cpu;
    use tlc_ir::{DType, HostTensor, IndexExpr, Scalar, ScalarOp, SymId, TensorType};

    use super::*;
    use crate::cluster::{Clusters, cluster_at_most};
    use crate::devices::{Devices, Place, place};

    fn add(g: &mut Graph, kind: NodeKind, operands: &[NodeId]) -> NodeId {
        g.add(kind, operands, Origin::Unknown).expect("a node that types")
    }

    fn shape(extents: [IndexExpr; 2]) -> Shape {
        extents.into_iter().collect()
    }

    /// What a block may be in another way.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Detail {
        Same,
        /// Nothing that lowering sees.
        Name,
        Data,
        InputOrder,
        /// What it does see.
        Constant,
        SignOfZero,
        Nan,
        Operation,
        OperandOrder,
        SameOperand,
        Dtype,
        Extent,
        Symbol,
        OtherSymbol,
        Start,
        Fill,
        CountedAxis,
        Stream,
        Transposed,
        Monoid,
        SummedAxis,
        Labels,
        Stored,
        InMemory,
    }

    use Detail::*;

    const UNSEEN: [Detail; 4] = [Same, Name, Data, InputOrder];
    const SEEN: [Detail; 20] = [
        Constant,
        SignOfZero,
        Nan,
        Operation,
        OperandOrder,
        SameOperand,
        Dtype,
        Extent,
        Symbol,
        OtherSymbol,
        Start,
        Fill,
        CountedAxis,
        Stream,
        Transposed,
        Monoid,
        SummedAxis,
        Labels,
        Stored,
        InMemory,
    ];

    /// Values of all kinds that loops compute, with a reduction and a contraction behind them.
    fn block(g: &mut Graph, name: &str, detail: Detail) {
        let rows: IndexExpr = match detail {
            Extent => 9.into(),
            Symbol => SymId(0).into(),
            OtherSymbol => SymId(1).into(),
            _ => 8.into(),
        };
        let square = shape([rows.clone(), rows.clone()]);
        let dtype = if detail == Dtype { DType::BF16 } else { DType::F16 };
        let name = if detail == Name {
            format!("another {name}")
        } else {
            name.to_string()
        };
        let input = |g: &mut Graph, which: &str| {
            let ty = TensorType::new(dtype, square.iter().cloned());
            g.add_input(&format!("{name}.{which}"), ty, Origin::Unknown)
                .expect("an input")
        };
        let (x, y) = match detail {
            InputOrder => {
                let y = input(g, "y");
                (input(g, "x"), y)
            }
            _ => (input(g, "x"), input(g, "y")),
        };
        let convert = |g: &mut Graph, x| add(g, NodeKind::Convert(DType::F32), &[x]);
        let [x, y] = [x, y].map(|v| convert(g, v));
        let number = match detail {
            Constant => 2.0,
            SignOfZero => -0.0,
            Nan => f64::NAN,
            _ => 0.0,
        };
        let splat = add(g, NodeKind::Const(Scalar::from_f64(DType::F32, number)), &[]);
        let splat = add(g, NodeKind::View(View::Expand(square.clone())), &[splat]);
        let operation = if detail == Operation {
            ScalarOp::Max
        } else {
            ScalarOp::Sub
        };
        let operands = match detail {
            OperandOrder => [y, x],
            SameOperand => [x, x],
            _ => [x, y],
        };
        let mut value = add(g, NodeKind::Map(operation), &operands);
        if detail == InMemory {
            value = add(g, NodeKind::Copy, &[value]);
        }
        value = add(g, NodeKind::Map(ScalarOp::Mul), &[value, splat]);
        // What tells the operands from each other.
        value = add(g, NodeKind::Map(ScalarOp::Add), &[value, x]);
        let axis = u8::from(detail == CountedAxis);
        let ty = TensorType::new(DType::F32, square.iter().cloned());
        let counted = add(g, NodeKind::Iota { ty, axis }, &[]);
        value = add(g, NodeKind::Map(ScalarOp::Add), &[value, counted]);
        let stream = u32::from(detail == Stream);
        // Bits that no input decides would be computed once, for both blocks.
        let key = TensorType::new(DType::U64, [0i64; 0]);
        let key = g
            .add_input(&format!("{name}.key"), key, Origin::Unknown)
            .expect("an input");
        let kind = NodeKind::Random {
            shape: square.clone(),
            stream,
        };
        let bits = add(g, kind, &[key]);
        let bits = convert(g, bits);
        value = add(g, NodeKind::Map(ScalarOp::Add), &[value, bits]);
        let of_detail = |is: bool| IndexExpr::from(usize::from(is));
        let fill = Scalar::from_f64(DType::F32, if detail == Fill { 1.0 } else { 0.0 });
        let pad = View::Pad {
            lo: [1.into(), 1.into()].into(),
            hi: [1.into(), 1.into()].into(),
            interior: [0, 0].into(),
            value: fill,
        };
        value = add(g, NodeKind::View(pad), &[value]);
        let slice = View::Slice {
            start: [IndexExpr::ZERO, of_detail(detail == Start)].into(),
            step: [1, 1].into(),
            size: square[..].into(),
        };
        value = add(g, NodeKind::View(slice), &[value]);
        if detail == Transposed {
            value = add(g, NodeKind::View(View::Permute([1, 0].into_iter().collect())), &[value]);
        }
        // Of each block in memory of its own.
        let data = [if detail == Data { 2.0f32 } else { 1.0 }];
        let data = HostTensor::from_slice(&[1], &data).expect("memory");
        let data = add(g, NodeKind::Data(ConstData(data)), &[]);
        let data = add(g, NodeKind::View(View::Reshape(Shape::new())), &[data]);
        let data = add(g, NodeKind::View(View::Expand(square.clone())), &[data]);
        value = add(g, NodeKind::Map(ScalarOp::Mul), &[value, data]);
        if detail == Stored {
            g.add_output(&format!("{name}.value"), value);
        }
        let monoid = if detail == Monoid { Monoid::Max } else { Monoid::Add };
        let axes = [u8::from(detail != SummedAxis)].into_iter().collect();
        let sum = add(g, NodeKind::Reduce { monoid, axes }, &[value]);
        let labels = |of: &[u16]| of.iter().copied().collect();
        let einsum = NodeKind::Einsum {
            inputs: [labels(&[0, 1]), labels(if detail == Labels { &[0] } else { &[1] })]
                .into_iter()
                .collect(),
            output: labels(if detail == Labels { &[1] } else { &[0] }),
            semiring: Semiring::MaxMul,
            accumulator: DType::F32,
            dtype: DType::F32,
        };
        let product = add(g, einsum, &[y, sum]);
        g.add_output(&name, product);
    }

    /// How many clusters two blocks are, and how many of these are not like one before.
    fn clusters_of(details: [Detail; 2]) -> (usize, usize) {
        let mut g = Graph::new("two");
        g.add_symbol("n", 1, 64);
        g.add_symbol("m", 1, 64);
        block(&mut g, "first", details[0]);
        block(&mut g, "second", details[1]);
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        let devices = Devices::new(host, []);
        let placement = place(&g, &devices, Place::On(DeviceId::HOST));
        // Merged, both blocks would be one.
        let Clusters { clusters, is_root, .. } = cluster_at_most(&g, &placement, 0);
        let mut places = Places::default();
        let outline = |c: &Cluster| Outline::of(&g, c, &is_root, DeviceId::HOST, &mut places);
        let outlines: Vec<Outline> = clusters.iter().filter_map(outline).collect();
        let new = (0..outlines.len()).filter(|&k| !outlines[..k].iter().any(|o| o.is_like(&outlines[k], &g)));
        (outlines.len(), new.count())
    }

    #[test]
    fn what_lowering_does_not_see_makes_no_difference() {
        for detail in UNSEEN {
            let (all, new) = clusters_of([Same, detail]);
            assert!(all >= 4 && all == 2 * new, "{detail:?}: {new} of {all}");
        }
    }

    #[test]
    fn blocks_that_differ_in_one_detail_are_not_alike() {
        for detail in SEEN {
            let (all, new) = clusters_of([Same, detail]);
            assert!(2 * new > all, "{detail:?}: {new} of {all}");
            let (all, new) = clusters_of([detail, detail]);
            assert_eq!(2 * new, all, "{detail:?} twice");
        }
        let (all, new) = clusters_of([Symbol, OtherSymbol]);
        assert!(2 * new > all, "two symbols: {new} of {all}");
    }
}
