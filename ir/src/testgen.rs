//! Random graphs, inputs and symbol values: for tests and fuzzing, not for programs.
//!
//! Invariants:
//! - Everything is a function of the seed and the options: the same on every machine and run.
//! - A generated graph was built by [`Graph::add`], so it is valid; it has at least one input and one output.
//! - [`Case::binding`] gives every symbol a value in its range under which all guards hold, all extents are at least 0, and
//!   no argmax or argmin meets an empty axis. Under every value in range a node has at most [`GenOptions::max_elements`]
//!   elements.
//! - With inputs from [`Case::input_data`] values stay moderate: operations with a limited domain get operands inside it
//!   most of the time, and a value that could grow large is squashed by tanh first. NaN and infinities still occur.

mod control;
mod counted;
mod dequantized;
mod kinds;
mod products;
mod structures;

use crate::dtype::{DType, Scalar};
use crate::graph::control::mentions;
use crate::graph::{Condition, ConstData, Graph, NodeId, NodeKind, Origin, Shape, TensorType, View, ViewKind, infer};
use crate::index::{IndexExpr, IndexNode, SymId};
use crate::rng::Rng;
use crate::scalar::ScalarOp;
use crate::tensor::HostTensor;

/// The node kinds that can be generated. `Product` is an einsum that a library computes, over views of computed values, or one of dequantized
/// bytes, and what is made of it; it may have more axes than [`GenOptions::max_rank`]. `Rows` normalizes rows, `Join` is a concatenation, and
/// `Windows` are pools and convolutions: each is several nodes, as they are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each variant is the node kind of its name")]
pub enum GenKind {
    Input,
    Const,
    Data,
    Iota,
    Random,
    Map,
    Convert,
    Bitcast,
    Einsum,
    Product,
    Rows,
    Join,
    Windows,
    Reduce,
    View(ViewKind),
    Gather,
    Scatter,
    Scan,
    Copy,
}

impl GenKind {
    /// Every kind.
    pub fn all() -> Vec<GenKind> {
        let mut all = vec![
            GenKind::Input,
            GenKind::Const,
            GenKind::Data,
            GenKind::Iota,
            GenKind::Random,
            GenKind::Map,
            GenKind::Convert,
            GenKind::Bitcast,
            GenKind::Einsum,
            GenKind::Product,
            GenKind::Rows,
            GenKind::Join,
            GenKind::Windows,
            GenKind::Reduce,
        ];
        all.extend(ViewKind::ALL.map(GenKind::View));
        all.extend([GenKind::Gather, GenKind::Scatter, GenKind::Scan, GenKind::Copy]);
        all
    }
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenOptions {
    /// About how many nodes; helper nodes (constants, expands) may exceed it by a few.
    pub max_nodes: usize,
    /// Dtypes of inputs and conversions. Masks (bool) and indices (i64) may occur besides.
    pub dtypes: Vec<DType>,
    /// Kinds to choose from, each as often as it is listed. Helper nodes may be of other kinds (const, expand, convert,
    /// iota, data, map).
    pub kinds: Vec<GenKind>,
    /// Scalar operations to choose from.
    pub ops: Vec<ScalarOp>,
    /// Whether extents may be symbols and expressions over them.
    pub symbolic: bool,
    /// Whether nodes may assume relations between symbols.
    pub guards: bool,
    /// The most elements of a node.
    pub max_elements: usize,
    /// The most axes of a node.
    pub max_rank: usize,
    /// Extents to choose from, each as often as it is listed. 0 occurs besides.
    pub extents: Vec<i64>,
    /// Least and most of symbols to choose from.
    pub ranges: Vec<(i64, i64)>,
    /// The most products of elements that an einsum sums up,
    pub max_terms: usize,
    /// Whether there may be loops and host functions.
    pub control: bool,
    /// Whether data may decide sizes.
    pub counted: bool,
    /// Whether bodies of loops and regions hold whatever graphs do: regions, loops of loops, products, normalized rows, joins, windows, sorts.
    pub deep: bool,
    /// Whether names may be strange (spaces, digits, quotes, unicode, empty), and NaN payloads occur in constants.
    pub strange: bool,
}

impl Default for GenOptions {
    fn default() -> GenOptions {
        let mut kinds = GenKind::all();
        // Elementwise operations are most of any real graph.
        kinds.extend([GenKind::Map; 8]);
        GenOptions {
            max_nodes: 24,
            dtypes: DType::ALL.to_vec(),
            kinds,
            ops: ScalarOp::ALL.to_vec(),
            symbolic: true,
            guards: true,
            max_elements: 2000,
            max_rank: 6,
            extents: vec![1, 2, 3, 4, 5, 1, 2, 3, 8],
            ranges: vec![(0, 4), (3, 3), (2, 7), (1, 5)],
            max_terms: 20_000,
            control: true,
            counted: false,
            deep: false,
            strange: false,
        }
    }
}

/// A graph and a way to run it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The graph.
    pub graph: Graph,
    /// A value per symbol under which all guards hold; the most that one may be which data decides.
    pub binding: Vec<i64>,
}

impl Case {
    /// The values of the symbols by name, of those that no data decides.
    pub fn symbols(&self) -> Vec<(String, i64)> {
        let all = self.graph.symbols().iter().zip(&self.binding);
        let given = all.filter(|(s, _)| s.upper.is_none());
        given.map(|(s, &v)| (s.name.clone(), v)).collect()
    }

    /// Data for the inputs, in order, under [`Case::binding`].
    pub fn input_data(&self, seed: u64) -> Vec<HostTensor> {
        self.data(seed ^ 0x5eed, &mut random_tensor)
    }

    /// As [`Case::input_data`], and among the floats and integers those at the ends of what their dtypes have: NaN, infinities, negative
    /// zero, subnormals, the least and the greatest. How many a tensor has differs: none, a few, about half.
    pub fn edge_data(&self, seed: u64) -> Vec<HostTensor> {
        self.data(seed ^ 0xed6e, &mut |rng, dtype, shape| {
            let mut data = random_tensor(rng, dtype, shape);
            let among = [0, 24, 6, 2][rng.below(4)];
            let edges = edges(dtype);
            for i in 0..data.len() {
                if among > 0 && !edges.is_empty() && rng.chance(1, among) {
                    data.set(i, edges[rng.below(edges.len())]);
                }
            }
            data
        })
    }

    fn data(&self, seed: u64, make: &mut dyn FnMut(&mut Rng, DType, &[usize]) -> HostTensor) -> Vec<HostTensor> {
        let mut rng = Rng::new(seed);
        let inputs = self.graph.inputs().iter().map(|&i| {
            let ty = self.graph.ty(i);
            let extent = |d: &IndexExpr| d.eval_symbols(&self.binding).and_then(|d| usize::try_from(d).ok());
            let shape: Vec<usize> = ty.shape.iter().map(|d| extent(d).expect("the binding fits")).collect();
            make(&mut rng, ty.dtype, &shape)
        });
        inputs.collect()
    }
}

/// The seeds of a run of tests: the one of `TLC_SEED=n`, those of `TLC_SEEDS=from..to`, or else these.
///
/// # Panics
/// If a variable is set to something else.
pub fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(one) = std::env::var("TLC_SEED") {
        return number(&one)..number(&one) + 1;
    }
    match std::env::var("TLC_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("TLC_SEEDS is a range");
            number(from)..number(to)
        }
        Err(_) => default,
    }
}

/// Data of moderate size: floats in [-4, 4] with some zeros and halves, integers mostly in -9..=9 (0..=9 if unsigned).
///
/// # Panics
/// If memory for the data is refused.
pub fn random_tensor(rng: &mut Rng, dtype: DType, shape: &[usize]) -> HostTensor {
    let mut data = HostTensor::zeros(dtype, shape).expect("a small tensor");
    for i in 0..data.len() {
        data.set(i, random_scalar(rng, dtype));
    }
    data
}

/// The ends of what a dtype has; storage types are random bits already.
fn edges(dtype: DType) -> Vec<Scalar> {
    let float = |v: f64| Scalar::from_f64(dtype, v);
    // The least subnormal, the least normal, the greatest number.
    let (tiny, normal, most) = match dtype {
        DType::F64 => (f64::from_bits(1), f64::MIN_POSITIVE, f64::MAX),
        DType::F32 => (f32::from_bits(1).into(), f32::MIN_POSITIVE.into(), f32::MAX.into()),
        DType::F16 => (2f64.powi(-24), 2f64.powi(-14), 65504.0),
        DType::BF16 => (2f64.powi(-133), 2f64.powi(-126), (2.0 - 2f64.powi(-7)) * 2f64.powi(127)),
        d if d == DType::Bool || d.is_storage() => return vec![],
        d => {
            let bits = d.bytes() as u32 * 8;
            let (low, high) = match d.is_signed_int() {
                true => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
                false => (0, (u64::MAX >> (64 - bits)) as i64),
            };
            return [
                low,
                high,
                low.wrapping_add(1),
                high.wrapping_sub(1),
                -1,
                0,
                i64::from(bits),
            ]
            .map(|v| Scalar::from_bits(d, v as u64))
            .to_vec();
        }
    };
    let numbers = [tiny, 3.0 * tiny, normal - tiny, normal, most, f64::INFINITY, 0.0];
    let both = numbers.into_iter().flat_map(|v| [v, -v]).chain([f64::NAN]);
    both.map(float).collect()
}

fn random_scalar(rng: &mut Rng, dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::from_bool(rng.chance(1, 2)),
        d if d.is_float() && rng.chance(1, 4) => Scalar::from_f64(d, rng.range(-8, 8) as f64 / 2.0),
        d if d.is_float() => Scalar::from_f64(d, rng.unit() * 8.0 - 4.0),
        d if d.is_storage() => Scalar::from_bits(d, rng.bits()),
        d if d.is_signed_int() => Scalar::from_i64(d, rng.range(-9, 9)),
        d => Scalar::from_i64(d, rng.range(0, 9)),
    }
}

/// A random valid graph. The same seed and options give the same graph.
pub fn random_graph(seed: u64, options: &GenOptions) -> Graph {
    random_case(seed, options).graph
}

/// A random valid graph with symbol values to run it.
pub fn random_case(seed: u64, options: &GenOptions) -> Case {
    let mut g = Generator {
        rng: Rng::new(seed),
        options,
        graph: Graph::new("random"),
        binding: Vec::new(),
        bounds: Vec::new(),
        dims: options.extents.iter().copied().map(IndexExpr::Const).collect(),
        inputs: 0,
        counted: Vec::new(),
        alike: Vec::new(),
        depth: 0,
        max_rank: options.max_rank,
    };
    g.run();
    Case {
        graph: g.graph,
        binding: g.binding,
    }
}

struct Generator<'o> {
    rng: Rng,
    options: &'o GenOptions,
    graph: Graph,
    binding: Vec<i64>,
    /// About the largest magnitude of each node's values; infinite if unknown.
    bounds: Vec<f64>,
    /// Extents to choose from.
    dims: Vec<IndexExpr>,
    inputs: usize,
    /// By symbol: whether data decides it.
    counted: Vec<bool>,
    /// Sizes that data decides, with another that is always the same.
    alike: Vec<(SymId, SymId)>,
    /// Loops around it.
    depth: usize,
    /// The most axes of the next node.
    max_rank: usize,
}

/// Magnitudes beyond are squashed before they are used.
const LARGE: f64 = 100.0;

impl Generator<'_> {
    fn run(&mut self) {
        if self.options.symbolic {
            for i in 0..self.rng.below(4) {
                let (lo, hi) = self.rng.pick(&self.options.ranges);
                let names = if self.options.strange {
                    ["n", "i0", "min", "a b"]
                } else {
                    ["n", "m", "t", "k"]
                };
                let value = self.rng.range(lo, hi);
                let s = IndexExpr::from(self.graph.add_symbol(names[i], lo, hi));
                self.binding.push(value);
                self.dims.extend([s.clone(), s.clone(), s.clone() + IndexExpr::ONE]);
                self.dims.push(s * IndexExpr::Const(2));
            }
            if let [first, others @ ..] = self.graph.symbols() {
                let last = IndexExpr::from(SymId(others.len() as u32));
                let first = (IndexExpr::from(SymId(0)), first.lo);
                self.dims.push(first.0.ceil_div(2));
                self.dims.push(IndexExpr::min(&first.0, &IndexExpr::Const(3)));
                self.dims.push(first.0.clone() + last);
                if first.1 > 0 {
                    self.dims.push(first.0 - IndexExpr::ONE);
                }
            }
        }
        for _ in 0..1 + self.rng.below(3) {
            self.input();
        }
        if self.inputs == 0 {
            // Every try was too large; a scalar never is.
            let dtype = self.rng.pick(&self.options.dtypes);
            self.input_of(TensorType::new(dtype, [0i64; 0]));
        }
        let target = 2 + self.rng.below(self.options.max_nodes.max(3) - 1);
        if self.options.counted && self.rng.chance(2, 3) {
            let _ = self.grow_counted();
        }
        for _ in 0..target * 4 {
            if self.graph.len() >= target {
                break;
            }
            if self.options.counted && self.rng.chance(1, 10) {
                let _ = self.grow_counted();
            }
            if self.options.control && self.rng.chance(1, 80) {
                // What is behind it grows as everything does.
                self.control();
            }
            let kind = self.rng.pick(&self.options.kinds);
            let _ = self.grow(kind);
        }
        if self.options.control && self.rng.chance(1, 4) {
            self.control();
        }
        self.outputs();
    }

    fn outputs(&mut self) {
        let counts = self.graph.use_counts();
        let mut outputs: Vec<NodeId> = self.graph.nodes().map(|(id, _)| id).collect();
        outputs.retain(|o| counts[o.index()] == 0 && !self.graph.node(*o).kind.is_tuple());
        while outputs.len() > 6 {
            let drop = self.rng.below(outputs.len());
            outputs.remove(drop);
        }
        // Inner values as well, now and then one that is an output already. What a view shows, and the view, more often: that
        // a value is stored in both forms, one, or none is decided in several places.
        let inner = |g: &Self, id: NodeId| !g.graph.node(id).kind.is_tuple();
        let view = |g: &Self, id: NodeId| matches!(g.graph.node(id).kind, NodeKind::View(_));
        if self.rng.chance(1, 16) {
            // All of them: many stored values of many shapes in one cluster.
            let all = self.graph.nodes().map(|n| n.0);
            outputs = all.filter(|&id| inner(self, id)).collect();
        }
        for _ in 0..self.rng.pick(&[0, 0, 1, 1, 2, 4]) {
            let any = NodeId(self.rng.below(self.graph.len()) as u32);
            let chosen = match self.rng.below(3) {
                0 if view(self, any) => self.graph.node(any).operands[0],
                _ => any,
            };
            let known = outputs.contains(&chosen);
            if inner(self, chosen) && (!known || self.rng.chance(1, 4)) {
                outputs.push(chosen);
            }
        }
        if self.rng.chance(1, 3) {
            let views: Vec<NodeId> = self.graph.nodes().map(|n| n.0).filter(|&n| view(self, n)).collect();
            if !views.is_empty() {
                let chosen = self.rng.pick(&views);
                outputs.push(chosen);
            }
        }
        for (i, id) in outputs.into_iter().enumerate() {
            let name = match self.rng.below(4) {
                0 if self.options.strange => format!("out \"{i}\"\\ \u{e9}\n"),
                1 => format!("y{i}"),
                _ => String::new(),
            };
            self.graph.add_output(&name, id);
        }
    }

    /// The value of an extent under the binding.
    fn value(&self, d: &IndexExpr) -> Option<i64> {
        d.eval_symbols(&self.binding)
    }

    /// True if a type keeps the promises about size.
    fn small(&self, ty: &TensorType) -> bool {
        let most = |d: &IndexExpr| d.interval(&self.graph).hi.clamp(0, 1 << 20);
        let elements = ty.shape.iter().map(most).try_fold(1i64, |n, d| n.checked_mul(d));
        ty.rank() <= self.max_rank
            && elements.is_some_and(|n| n <= self.options.max_elements as i64)
            && ty
                .shape
                .iter()
                .all(|d| d.size() <= 24 && self.value(d).is_some_and(|v| v >= 0) && self.never_negative(d))
    }

    /// Whether an extent is at least 0 whatever data decides.
    fn never_negative(&self, d: &IndexExpr) -> bool {
        !mentions(d, &self.counted) || d.interval(&self.graph).lo >= 0
    }

    /// Whether two sizes are equal whatever data decides.
    fn same_size(&self, a: &IndexExpr, b: &IndexExpr) -> bool {
        let first = |e: &IndexExpr| {
            e.replace(&mut |n| match n {
                IndexNode::Sym(s) => self
                    .alike
                    .iter()
                    .find(|(again, _)| again == s)
                    .map(|(_, of)| (*of).into()),
                _ => None,
            })
        };
        match mentions(a, &self.counted) || mentions(b, &self.counted) {
            true => first(a) == first(b),
            false => self.value(a).is_some() && self.value(a) == self.value(b),
        }
    }

    /// Adds a node if it is valid and small, and what it assumes holds under the binding.
    fn add(&mut self, kind: NodeKind, operands: &[NodeId], bound: f64) -> Option<NodeId> {
        let mut conditions = Vec::new();
        let ty = infer::infer(&self.graph, &kind, operands, &mut conditions).ok()?;
        let holds = |c: &Condition| match c {
            Condition::Equal(a, b) => self.same_size(a, b),
            Condition::NonNegative(e) => self.value(e).is_some_and(|v| v >= 0) && self.never_negative(e),
        };
        let results = infer::results(&self.graph, &kind, operands, &mut Vec::new()).ok()?;
        let guards_fit = conditions.is_empty() || (self.options.guards && conditions.iter().all(holds));
        if !guards_fit || !self.small(&ty) || !results.iter().all(|t| self.small(t)) {
            return None;
        }
        let id = self.graph.add(kind, operands, Origin::Unknown).ok()?;
        if id.index() == self.bounds.len() {
            self.bounds.push(bound);
        }
        Some(id)
    }

    fn input_of(&mut self, ty: TensorType) {
        if !self.small(&ty) || ty.shape.iter().any(|d| mentions(d, &self.counted)) {
            return;
        }
        let i = self.inputs;
        let strange = [
            "",
            "7",
            "a b",
            "x.y",
            "\u{4f60}\u{597d}",
            "q\"\\\n",
            "in",
            "%x",
            "..",
            "0x1",
        ];
        let name = match strange.get(i) {
            Some(name) if self.options.strange && self.rng.chance(1, 2) => name.to_string(),
            _ => format!("x{i}"),
        };
        if self.graph.add_input(&name, ty, Origin::Unknown).is_ok() {
            self.bounds.push(9.0);
            self.inputs += 1;
        }
    }

    fn input(&mut self) -> Option<NodeId> {
        let dtype = self.rng.pick(&self.options.dtypes);
        let shape = self.shape();
        self.input_of(TensorType { dtype, shape });
        self.graph.inputs().last().copied()
    }

    fn dim(&mut self) -> IndexExpr {
        if self.rng.chance(1, 25) {
            return IndexExpr::ZERO;
        }
        let i = self.rng.below(self.dims.len());
        self.dims[i].clone()
    }

    fn shape(&mut self) -> Shape {
        let rank = self
            .rng
            .pick(&[0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6])
            .min(self.options.max_rank);
        (0..rank).map(|_| self.dim()).collect()
    }

    /// Some node; recent ones more often, so that graphs get deep.
    fn any(&mut self) -> NodeId {
        let n = self.graph.len();
        let recent = if self.rng.chance(1, 2) { n.min(4) } else { n };
        let mut id = NodeId((n - 1 - self.rng.below(recent)) as u32);
        while self.graph.node(id).kind.is_tuple() {
            // The first node is an input or a constant.
            id.0 -= 1;
        }
        id
    }

    fn any_where(&mut self, accept: impl Fn(&TensorType) -> bool) -> Option<NodeId> {
        for _ in 0..8 {
            let id = self.any();
            if accept(self.graph.ty(id)) {
                return Some(id);
            }
        }
        None
    }

    fn ty(&self, id: NodeId) -> TensorType {
        self.graph.ty(id).clone()
    }

    fn bound(&self, id: NodeId) -> f64 {
        self.bounds[id.index()]
    }

    /// Some bool: one that exists, or whether some value is not zero.
    fn mask(&mut self) -> Option<NodeId> {
        let bools = |t: &TensorType| t.dtype == DType::Bool;
        if let Some(mask) = self.any_where(bools) {
            return Some(mask);
        }
        let x = self.any();
        self.add(NodeKind::Convert(DType::Bool), &[x], 1.0)
    }

    /// `id`, or its tanh if it is a float that may be large.
    fn tame(&mut self, id: NodeId) -> NodeId {
        if self.ty(id).dtype.is_float() && self.bound(id) > LARGE {
            return self.add(NodeKind::Map(ScalarOp::Tanh), &[id], 1.0).unwrap_or(id);
        }
        id
    }

    fn map(&mut self, op: ScalarOp, operands: &[NodeId], bound: f64) -> Option<NodeId> {
        self.add(NodeKind::Map(op), operands, bound)
    }

    /// A constant of a type.
    fn splat(&mut self, value: Scalar, shape: &Shape) -> Option<NodeId> {
        let bound = value.as_f64().abs();
        let c = self.add(NodeKind::Const(value), &[], bound)?;
        if shape.is_empty() {
            return Some(c);
        }
        self.add(NodeKind::View(View::Expand(shape.clone())), &[c], bound)
    }

    /// A node of that type: one that exists, or a new one. Its extents may be other ones that are equal under the binding.
    fn of_type(&mut self, ty: &TensorType) -> Option<NodeId> {
        if self.rng.chance(3, 4) {
            let start = self.rng.below(self.graph.len());
            let loose = self.options.guards && self.rng.chance(1, 4);
            let values = |shape: &Shape| shape.iter().map(|d| self.value(d)).collect::<Vec<_>>();
            let wanted = values(&ty.shape);
            let equal = |shape: &Shape| shape.iter().zip(&ty.shape).all(|(a, b)| self.same_size(a, b));
            let fits = |shape: &Shape| *shape == ty.shape || (loose && values(shape) == wanted && equal(shape));
            let same: Vec<NodeId> = self
                .graph
                .nodes()
                .filter(|(_, n)| fits(&n.ty.shape) && !n.kind.is_tuple())
                .map(|(id, _)| id)
                .collect();
            if !same.is_empty() {
                let id = same[start % same.len()];
                let found = self.ty(id);
                return if found == *ty {
                    Some(id)
                } else {
                    self.convert(id, ty.dtype)
                };
            }
        }
        match (self.rng.below(3), ty.const_shape()) {
            (0, Some(shape)) => self.data(ty.dtype, &shape),
            (1, _) if (ty.dtype.is_int() || ty.dtype.is_float()) && ty.rank() > 0 => self.iota(ty.clone()),
            _ => {
                let value = random_scalar(&mut self.rng, ty.dtype);
                self.splat(value, &ty.shape)
            }
        }
    }

    fn convert(&mut self, x: NodeId, dtype: DType) -> Option<NodeId> {
        let x = self.tame(x);
        let bound = if dtype.is_float() { self.bound(x) } else { f64::INFINITY };
        self.add(NodeKind::Convert(dtype), &[x], bound)
    }

    fn data(&mut self, dtype: DType, shape: &[usize]) -> Option<NodeId> {
        let extents = shape.iter().map(|&d| IndexExpr::Const(d as i64)).collect();
        if !self.small(&TensorType { dtype, shape: extents }) {
            return None;
        }
        let mut data = random_tensor(&mut self.rng, dtype, shape);
        if self.options.strange && dtype.is_float() && !data.is_empty() {
            let i = self.rng.below(data.len());
            data.set(i, Scalar::from_bits(dtype, self.rng.bits()));
        }
        let bound = if dtype.is_storage() { f64::INFINITY } else { 9.0 };
        self.add(NodeKind::Data(ConstData(data)), &[], bound)
    }

    fn iota(&mut self, ty: TensorType) -> Option<NodeId> {
        let axis = self.rng.below(ty.rank()) as u8;
        self.add(NodeKind::Iota { ty, axis }, &[], 32.0)
    }
}
