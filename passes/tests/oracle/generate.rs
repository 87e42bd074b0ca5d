//! Random graphs whose values are exact: floats hold small integers, so every order of summation gives the same bits. A
//! bound on each value's magnitude keeps it so; transcendental results are marked inexact and kept away from whatever would
//! amplify a rounding.

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{Axes, ConstData, Labels, Monoid, Origin, ScatterOp, Semiring, Shape, TensorType, View};
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp};

/// A small generator of pseudo-random numbers (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) % n.max(1) as u64) as usize
    }
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A graph with inputs for it.
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<HostTensor>,
    pub symbols: Vec<i64>,
    /// Per output: `None` where bits must agree, else the absolute error allowed.
    pub tolerance: Vec<Option<f64>>,
}

#[derive(Clone, Copy)]
struct Known {
    id: NodeId,
    /// Largest magnitude, for floats.
    bound: f64,
    inexact: bool,
}

pub struct Builder {
    pub rng: Rng,
    graph: Graph,
    inputs: Vec<HostTensor>,
    symbols: Vec<i64>,
    pool: Vec<Known>,
    max_elements: usize,
}

fn limit(d: DType) -> f64 {
    match d {
        DType::F16 => 1024.0,
        DType::BF16 => 128.0,
        DType::F32 => 4.0e6,
        _ => 1.0e12,
    }
}

const DTYPES: [DType; 12] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::Bool,
    DType::F16,
    DType::BF16,
    DType::U8,
    DType::I16,
    DType::U64,
];

/// A random graph of about `nodes` operations.
pub fn graph(seed: u64, nodes: usize, max_elements: usize, symbolic: bool) -> Case {
    let mut b = Builder {
        rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        graph: Graph::new("random"),
        inputs: Vec::new(),
        symbols: Vec::new(),
        pool: Vec::new(),
        max_elements,
    };
    if symbolic {
        let value = b.rng.pick(&[1i64, 2, 5, 8, 33]);
        b.graph.add_symbol("n", 1, 4096);
        b.symbols.push(value);
    }
    for _ in 0..2 + b.rng.below(2) {
        b.input(None, None);
    }
    for _ in 0..nodes {
        b.step();
    }
    b.finish()
}

impl Builder {
    fn dim(&mut self) -> IndexExpr {
        if !self.symbols.is_empty() && self.rng.chance(35) {
            return tlc_ir::SymId(0).into();
        }
        let d = self.rng.pick(&[1i64, 2, 3, 4, 5, 8, 16, 17, 33, 64, 100]);
        d.into()
    }

    fn sizes(&self, shape: &[IndexExpr]) -> Vec<usize> {
        shape
            .iter()
            .map(|d| d.eval_symbols(&self.symbols).unwrap().max(0) as usize)
            .collect()
    }

    fn elements(&self, shape: &[IndexExpr]) -> usize {
        self.sizes(shape).iter().product()
    }

    fn shape(&mut self) -> Shape {
        loop {
            let rank = self.rng.pick(&[0usize, 1, 1, 2, 2, 2, 3, 3, 4]);
            let shape: Shape = (0..rank).map(|_| self.dim()).collect();
            if self.elements(&shape) <= self.max_elements {
                return shape;
            }
        }
    }

    fn data(&mut self, dtype: DType, sizes: &[usize], lo: i64, hi: i64) -> HostTensor {
        let mut t = HostTensor::zeros(dtype, sizes).unwrap();
        for i in 0..t.len() {
            let v = lo + self.rng.below((hi - lo + 1) as usize) as i64;
            t.set(i, Scalar::from_i64(dtype, v));
        }
        t
    }

    fn input(&mut self, dtype: Option<DType>, shape: Option<Shape>) -> Known {
        let dtype = dtype.unwrap_or_else(|| self.rng.pick(&DTYPES));
        let shape = shape.unwrap_or_else(|| self.shape());
        let sizes = self.sizes(&shape);
        let data = self.data(dtype, &sizes, -3, 3);
        let constant = self.rng.chance(15) && shape.iter().all(|d| d.as_const().is_some());
        let id = if constant {
            self.graph
                .add(NodeKind::Data(ConstData(data)), &[], Origin::Unknown)
                .unwrap()
        } else {
            let name = format!("x{}", self.inputs.len());
            self.inputs.push(data);
            self.graph
                .add_input(&name, TensorType { dtype, shape }, Origin::Unknown)
                .unwrap()
        };
        self.keep(id, 3.0, false)
    }

    fn keep(&mut self, id: NodeId, bound: f64, inexact: bool) -> Known {
        let known = Known { id, bound, inexact };
        self.pool.push(known);
        known
    }

    /// Adds a node if it types, stays small and keeps its values exact.
    fn add(&mut self, kind: NodeKind, operands: &[NodeId], bound: f64, inexact: bool) -> Option<Known> {
        let saved = self.graph.clone();
        let id = self.graph.add(kind, operands, Origin::Unknown).ok()?;
        let ty = self.graph.ty(id);
        let symbolic_guard = self.graph.guards().len() != saved.guards().len();
        let fits = self.elements(&ty.shape) <= self.max_elements && ty.rank() <= 5;
        let exact = !ty.dtype.is_float() || bound <= limit(ty.dtype);
        if !fits || !exact || symbolic_guard {
            self.graph = saved;
            return None;
        }
        Some(self.keep(id, bound, inexact))
    }

    fn any(&mut self) -> Known {
        // Recent values more often, so that chains get long.
        let n = self.pool.len();
        let at = if self.rng.chance(60) {
            n - 1 - self.rng.below(n.min(4))
        } else {
            self.rng.below(n)
        };
        self.pool[at]
    }

    fn ty(&self, k: Known) -> TensorType {
        self.graph.ty(k.id).clone()
    }

    /// A value of the given dtype and shape: one that exists, one broadcast to it, or a new input.
    fn like(&mut self, dtype: DType, shape: &Shape) -> Known {
        let same: Vec<Known> = self
            .pool
            .iter()
            .copied()
            .filter(|k| self.graph.ty(k.id).dtype == dtype && self.graph.ty(k.id).shape == *shape)
            .collect();
        if !same.is_empty() && self.rng.chance(70) {
            return self.rng.pick(&same);
        }
        let smaller: Vec<Known> = self
            .pool
            .iter()
            .copied()
            .filter(|k| self.graph.ty(k.id).dtype == dtype)
            .collect();
        for _ in 0..3 {
            if smaller.is_empty() {
                break;
            }
            let k = self.rng.pick(&smaller);
            if let Some(e) = self.add(NodeKind::View(View::Expand(shape.clone())), &[k.id], k.bound, k.inexact) {
                return e;
            }
        }
        if self.rng.chance(30) {
            let value = self.rng.below(7) as i64 - 3;
            let c = self
                .graph
                .add(NodeKind::Const(Scalar::from_i64(dtype, value)), &[], Origin::Unknown)
                .unwrap();
            if let Some(e) = self.add(NodeKind::View(View::Expand(shape.clone())), &[c], 3.0, false) {
                return e;
            }
        }
        self.input(Some(dtype), Some(shape.clone()))
    }

    fn step(&mut self) -> Option<Known> {
        let x = self.any();
        let ty = self.ty(x);
        match self.rng.below(24) {
            0..=3 => self.unary(x, &ty),
            4..=8 => self.binary(x, &ty),
            9 => {
                let c = self.like(DType::Bool, &ty.shape);
                let y = self.like(ty.dtype, &ty.shape);
                let inexact = x.inexact || y.inexact;
                self.add(
                    NodeKind::Map(ScalarOp::Select),
                    &[c.id, x.id, y.id],
                    x.bound.max(y.bound),
                    inexact,
                )
            }
            10 => {
                let to = self.rng.pick(&DTYPES);
                if x.inexact && (!to.is_float() || to == DType::F16 || to == DType::BF16) {
                    return None;
                }
                // Integers beyond what the float holds would round: the same way everywhere, but sums of them would not.
                let bound = if ty.dtype.is_float() || ty.dtype == DType::Bool {
                    x.bound
                } else {
                    1e9
                };
                let bound = if to == DType::F64 { bound } else { x.bound.min(bound) };
                let big = !ty.dtype.is_float() && ty.dtype != DType::Bool && to.is_float() && to != DType::F64;
                let small = matches!(ty.dtype, DType::U8);
                if big && !(small && to == DType::F32) {
                    return None;
                }
                let bound = if small { 256.0 } else { bound };
                self.add(NodeKind::Convert(to), &[x.id], bound, x.inexact)
            }
            11..=13 => self.reduce(x, &ty),
            14..=15 => self.einsum(x, &ty),
            16..=19 => self.view(x, &ty),
            20 => self.gather(x, &ty),
            21 => self.scatter(x, &ty),
            22 => {
                if ty.rank() == 0 {
                    return None;
                }
                let axis = self.rng.below(ty.rank()) as u8;
                let monoids: &[Monoid] = match ty.dtype {
                    DType::Bool => &[Monoid::And, Monoid::Or, Monoid::Max],
                    _ => &[Monoid::Add, Monoid::Max, Monoid::Min],
                };
                let monoid = self.rng.pick(monoids);
                let n = self.sizes(&ty.shape)[axis as usize] as f64;
                let bound = if monoid == Monoid::Add { x.bound * n } else { x.bound };
                let (exclusive, reverse) = (self.rng.chance(40) && monoid == Monoid::Add, self.rng.chance(40));
                self.add(
                    NodeKind::Scan {
                        monoid,
                        axis,
                        exclusive,
                        reverse,
                    },
                    &[x.id],
                    bound,
                    x.inexact,
                )
            }
            _ => {
                let shape = self.shape();
                if self.rng.chance(50) && !shape.is_empty() {
                    let dtype = self.rng.pick(&[DType::F32, DType::I64, DType::I32, DType::F64]);
                    let axis = self.rng.below(shape.len()) as u8;
                    let n = self.sizes(&shape)[axis as usize] as f64;
                    let ty = TensorType { dtype, shape };
                    return self.add(NodeKind::Iota { ty, axis }, &[], n, false);
                }
                let key = self.like(DType::U64, &Shape::new());
                let stream = self.rng.below(5) as u32;
                self.add(NodeKind::Random { shape, stream }, &[key.id], 1e10, false)
            }
        }
    }

    fn unary(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        use ScalarOp::*;
        let d = ty.dtype;
        let op = if d == DType::Bool {
            Not
        } else if d.is_int() {
            self.rng.pick(&[Neg, Abs, Sign, Not])
        } else {
            self.rng
                .pick(&[Neg, Abs, Sign, Floor, Round, Exp, Tanh, Sin, Sqrt, Log1p, Erf])
        };
        let narrow = matches!(d, DType::F16 | DType::BF16);
        match op {
            Neg | Abs | Not => self.add(NodeKind::Map(op), &[x.id], x.bound, x.inexact),
            Sign | Floor | Round if x.inexact => None,
            Sign | Floor | Round => self.add(NodeKind::Map(op), &[x.id], x.bound.max(1.0), false),
            Exp if x.bound > 5.0 || narrow => None,
            Exp => self.add(NodeKind::Map(op), &[x.id], x.bound.exp(), true),
            Tanh | Sin | Erf if narrow || x.bound > 1000.0 => None,
            Tanh | Sin | Erf => self.add(NodeKind::Map(op), &[x.id], 1.0, true),
            Sqrt | Log1p if narrow || x.inexact => None,
            Sqrt | Log1p => {
                let a = self.add(NodeKind::Map(Abs), &[x.id], x.bound, false)?;
                self.add(NodeKind::Map(op), &[a.id], x.bound, true)
            }
            _ => None,
        }
    }

    fn binary(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        use ScalarOp::*;
        let y = self.like(ty.dtype, &ty.shape);
        let d = ty.dtype;
        let op = if d == DType::Bool {
            self.rng.pick(&[And, Or, Xor, Max, Min, Eq, Ne, Lt, Le])
        } else if d.is_int() {
            self.rng.pick(&[
                Add, Sub, Mul, Div, Rem, Mod, Max, Min, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le,
            ])
        } else {
            self.rng.pick(&[Add, Add, Sub, Mul, Mul, Max, Min, Eq, Lt, Le])
        };
        let inexact = x.inexact || y.inexact;
        let bound = match op {
            Add | Sub => x.bound + y.bound,
            Mul => x.bound * y.bound,
            Eq | Ne | Lt | Le if inexact => return None,
            Eq | Ne | Lt | Le => 1.0,
            _ => x.bound.max(y.bound),
        };
        let narrow = matches!(d, DType::F16 | DType::BF16) && inexact;
        let swap = self.rng.chance(50);
        let operands = if swap { [y.id, x.id] } else { [x.id, y.id] };
        if narrow {
            return None;
        }
        self.add(NodeKind::Map(op), &operands, bound, inexact)
    }

    fn axes(&mut self, rank: usize) -> Axes {
        let keep = self.rng.pick(&[30usize, 50, 100]);
        let mut axes: Axes = (0..rank as u8).filter(|_| self.rng.chance(keep)).collect();
        if axes.is_empty() {
            axes.push(self.rng.below(rank) as u8);
        }
        axes
    }

    fn reduce(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        if ty.rank() == 0 {
            return None;
        }
        use Monoid::*;
        let mut axes = self.axes(ty.rank());
        let monoid = match ty.dtype {
            DType::Bool => self.rng.pick(&[And, Or, Max, Min, ArgMax]),
            d if d.is_int() => self.rng.pick(&[Add, Mul, Max, Min, And, Or, ArgMax, ArgMin]),
            _ => self.rng.pick(&[Add, Add, Max, Min, ArgMax, ArgMin]),
        };
        if monoid.is_arg() {
            axes.truncate(1);
            if x.inexact {
                return None;
            }
        }
        let sizes = self.sizes(&ty.shape);
        let n: usize = axes.iter().map(|&a| sizes[a as usize]).product();
        if n == 0 && !matches!(monoid, Add) {
            return None;
        }
        let bound = match monoid {
            Add => x.bound * n as f64,
            ArgMax | ArgMin => n as f64,
            _ => x.bound,
        };
        self.add(NodeKind::Reduce { monoid, axes }, &[x.id], bound, x.inexact)
    }

    fn einsum(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        if ty.rank() == 0 {
            return None;
        }
        let y = if self.rng.chance(80) {
            // A partner that shares some axes and brings some of its own.
            let mut shape: Shape = ty.shape.iter().filter(|_| self.rng.chance(60)).cloned().collect();
            if self.rng.chance(70) {
                shape.push(self.dim());
            }
            if self.rng.chance(30) {
                shape.reverse();
            }
            if self.elements(&shape) > self.max_elements {
                return None;
            }
            Some(self.like(ty.dtype, &shape))
        } else {
            None
        };
        let mut labels: Vec<Labels> = vec![(0..ty.rank() as u16).collect()];
        let mut extents: Vec<IndexExpr> = ty.shape.to_vec();
        if let Some(y) = y {
            let mut own = Labels::new();
            for d in &self.ty(y).shape {
                let free: Vec<u16> = (0..extents.len() as u16)
                    .filter(|&l| extents[l as usize] == *d && !own.contains(&l))
                    .collect();
                if !free.is_empty() && self.rng.chance(80) {
                    own.push(self.rng.pick(&free));
                } else {
                    own.push(extents.len() as u16);
                    extents.push(d.clone());
                }
            }
            labels.push(own);
        }
        let mut output: Vec<u16> = (0..extents.len() as u16).filter(|_| self.rng.chance(55)).collect();
        if self.rng.chance(40) {
            output.reverse();
        }
        let (semiring, inexact) = match ty.dtype {
            DType::Bool => (Semiring::OrAnd, false),
            // Sums that wrap do not distribute over maxima.
            d if d.is_unsigned_int() => (Semiring::AddMul, false),
            _ => (
                self.rng.pick(&[
                    Semiring::AddMul,
                    Semiring::AddMul,
                    Semiring::AddMul,
                    Semiring::MaxAdd,
                    Semiring::MinAdd,
                ]),
                x.inexact || y.is_some_and(|y| y.inexact),
            ),
        };
        let sizes = self.sizes(&extents);
        let summed: usize = (0..extents.len())
            .filter(|l| !output.contains(&(*l as u16)))
            .map(|l| sizes[l])
            .product();
        if sizes.iter().product::<usize>() > self.max_elements * 16 {
            return None;
        }
        let other = y.map_or(1.0, |y| y.bound);
        let bound = match semiring {
            Semiring::AddMul => x.bound * other * summed.max(1) as f64,
            _ => x.bound + other,
        };
        let operands: SmallVec<[NodeId; 2]> = std::iter::once(x.id).chain(y.map(|y| y.id)).collect();
        self.add(
            NodeKind::Einsum {
                inputs: labels.into_iter().collect(),
                output: output.into_iter().collect(),
                semiring,
                accumulator: ty.dtype.accumulator(),
                dtype: ty.dtype,
            },
            &operands,
            bound,
            inexact,
        )
    }

    fn view(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        let rank = ty.rank();
        let view = match self.rng.below(7) {
            0 => {
                let mut p: Axes = (0..rank as u8).collect();
                for i in (1..rank).rev() {
                    let j = self.rng.below(i + 1);
                    p.swap(i, j);
                }
                View::Permute(p)
            }
            1 => {
                // Merge two neighbours or split one axis.
                let mut shape = ty.shape.clone();
                if rank >= 2 && self.rng.chance(60) {
                    let a = self.rng.below(rank - 1);
                    shape[a] = shape[a].clone() * shape[a + 1].clone();
                    shape.remove(a + 1);
                } else if rank >= 1 {
                    let a = self.rng.below(rank);
                    let n = shape[a].as_const()?;
                    let f = (2..=8).find(|f| n % f == 0)?;
                    shape[a] = (n / f).into();
                    shape.insert(a + 1, f.into());
                }
                View::Reshape(shape)
            }
            2 => {
                let mut shape = ty.shape.clone();
                if rank == 0 || self.rng.chance(60) {
                    let d = self.dim();
                    shape.insert(0, d);
                }
                for d in shape.iter_mut() {
                    if d.is(1) && self.rng.chance(60) {
                        *d = self.dim();
                    }
                }
                View::Expand(shape)
            }
            3 => {
                let pads: Vec<(i64, i64)> = (0..rank)
                    .map(|_| (self.rng.below(3) as i64, self.rng.below(3) as i64))
                    .collect();
                let apart = self.rng.chance(30);
                let interior = (0..rank).map(|_| if apart { self.rng.below(3) as i64 } else { 0 });
                let interior = interior.collect();
                View::Pad {
                    lo: pads.iter().map(|p| IndexExpr::from(p.0)).collect(),
                    hi: pads.iter().map(|p| IndexExpr::from(p.1)).collect(),
                    interior,
                    value: Scalar::from_i64(ty.dtype, self.rng.below(3) as i64),
                }
            }
            4 => {
                let (mut start, mut step, mut size) = (Vec::new(), Vec::new(), Vec::new());
                for d in &ty.shape {
                    match d.as_const() {
                        Some(n) if n > 0 && self.rng.chance(70) => {
                            let k = self.rng.pick(&[1i64, 2, 3, -1, -2]);
                            let s = self.rng.below(n as usize) as i64;
                            let most = if k > 0 { (n - 1 - s) / k + 1 } else { s / -k + 1 };
                            start.push(s.into());
                            step.push(k);
                            size.push((1 + self.rng.below(most as usize) as i64).into());
                        }
                        None if self.rng.chance(40) => {
                            start.push(d.clone() - IndexExpr::ONE);
                            step.push(-1);
                            size.push(d.clone());
                        }
                        _ => {
                            start.push(0.into());
                            step.push(1);
                            size.push(d.clone());
                        }
                    }
                }
                View::Slice {
                    start: start.into(),
                    step: step.into(),
                    size: size.into(),
                }
            }
            5 => {
                let axis = self.rng.below(rank);
                let n = ty.shape.get(axis)?.as_const()?;
                let (size, stride, dilation) = (
                    1 + self.rng.below(3) as i64,
                    1 + self.rng.below(2) as i64,
                    1 + self.rng.below(2) as i64,
                );
                if (size - 1) * dilation + 1 > n {
                    return None;
                }
                View::Window {
                    axis: axis as u8,
                    size: size.into(),
                    stride,
                    dilation,
                }
            }
            _ => return self.add(NodeKind::Copy, &[x.id], x.bound, x.inexact),
        };
        self.add(NodeKind::View(view), &[x.id], x.bound.max(2.0), x.inexact)
    }

    fn indices(&mut self, shape: &Shape, extent: usize) -> NodeId {
        let dtype = self.rng.pick(&[DType::I64, DType::I32, DType::U8]);
        let sizes = self.sizes(shape);
        let lo = if dtype == DType::U8 { 0 } else { -1 };
        let data = self.data(dtype, &sizes, lo, (extent as i64).min(100));
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(data);
        let ty = TensorType {
            dtype,
            shape: shape.clone(),
        };
        self.graph.add_input(&name, ty, Origin::Unknown).unwrap()
    }

    fn index_shape(&mut self) -> Shape {
        let rank = self.rng.below(3);
        (0..rank)
            .map(|_| IndexExpr::from(self.rng.pick(&[1i64, 2, 3, 5, 9])))
            .collect()
    }

    fn gather(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        if ty.rank() == 0 {
            return None;
        }
        let mut axes: Axes = smallvec![self.rng.below(ty.rank()) as u8];
        if ty.rank() > 1 && self.rng.chance(30) {
            let other = (axes[0] as usize + 1) % ty.rank();
            axes.push(other as u8);
        }
        let shape = self.index_shape();
        let sizes = self.sizes(&ty.shape);
        let mut operands = vec![x.id];
        for &a in &axes {
            operands.push(self.indices(&shape, sizes[a as usize]));
        }
        self.add_or_forget(NodeKind::Gather { axes }, &operands, x.bound, x.inexact)
    }

    fn scatter(&mut self, x: Known, ty: &TensorType) -> Option<Known> {
        if ty.rank() == 0 {
            return None;
        }
        let axis = self.rng.below(ty.rank());
        let shape = self.index_shape();
        let mut updates_shape = shape.clone();
        updates_shape.extend((0..ty.rank()).filter(|&a| a != axis).map(|a| ty.shape[a].clone()));
        if self.elements(&updates_shape) > self.max_elements {
            return None;
        }
        let updates = self.like(ty.dtype, &updates_shape);
        let sizes = self.sizes(&ty.shape);
        let index = self.indices(&shape, sizes[axis]);
        let ops: &[ScatterOp] = match ty.dtype {
            DType::Bool => &[ScatterOp::Set, ScatterOp::Max],
            _ => &[ScatterOp::Set, ScatterOp::Add, ScatterOp::Max, ScatterOp::Min],
        };
        let op = self.rng.pick(ops);
        let n = self.elements(&updates_shape) as f64;
        let bound = if op == ScatterOp::Add {
            x.bound + updates.bound * n
        } else {
            x.bound.max(updates.bound)
        };
        let axes = smallvec![axis as u8];
        let inexact = x.inexact || updates.inexact;
        self.add_or_forget(
            NodeKind::Scatter { axes, op },
            &[x.id, updates.id, index],
            bound,
            inexact,
        )
    }

    /// As `add`, for nodes whose index inputs stay behind unused when they do not fit.
    fn add_or_forget(&mut self, kind: NodeKind, operands: &[NodeId], bound: f64, inexact: bool) -> Option<Known> {
        self.add(kind, operands, bound, inexact)
    }

    fn finish(mut self) -> Case {
        let used = self.graph.use_counts();
        let mut outputs: Vec<Known> = Vec::new();
        for k in self.pool.clone().into_iter().rev() {
            let unused = used[k.id.index()] == 0;
            if (outputs.len() < 3 && unused) || outputs.is_empty() || (outputs.len() < 4 && self.rng.chance(10)) {
                outputs.push(k);
            }
        }
        let mut tolerance = Vec::new();
        for k in outputs {
            let d = self.graph.ty(k.id).dtype;
            self.graph.add_output("", k.id);
            let epsilon = if d == DType::F64 { 1e-10 } else { 3e-5 };
            tolerance.push((k.inexact && d.is_float()).then_some(epsilon * (1.0 + k.bound)));
        }
        Case {
            graph: self.graph,
            inputs: self.inputs,
            symbols: self.symbols,
            tolerance,
        }
    }
}
