//! Random products of dequantized bytes, as quantized networks have them.
//!
//! Bytes less a zero point, times a scale, are multiplied by others such: rows by a matrix, or windows of an image by weights, in groups or each
//! channel alone. A bias may follow, and what makes bytes of the result. Of scales and zero points there may be one, one for each index of any
//! axis, the summed ones among them, and few of them are such that the distributive law does not hold of them.

use smallvec::{SmallVec, smallvec};

use super::products::canonical;
use super::{Generator, LARGE};
use crate::dtype::{DType, Scalar};
use crate::graph::{ConstData, Labels, NodeId, NodeKind, Semiring, Shape, TensorType, View};
use crate::index::IndexExpr;
use crate::scalar::ScalarOp;
use crate::tensor::HostTensor;

/// Rows, summed extents and columns.
const MATRICES: [[i64; 3]; 5] = [[16, 32, 16], [24, 17, 24], [3, 100, 15], [40, 40, 6], [1, 300, 16]];
/// Images: their channels, height and width, and the height and width of windows.
const IMAGES: [[i64; 5]; 6] = [
    [8, 5, 5, 3, 3],
    [17, 4, 6, 1, 1],
    [4, 7, 9, 3, 3],
    [6, 3, 8, 2, 5],
    [2, 12, 17, 3, 3],
    [32, 4, 4, 1, 1],
];
/// Axes of windows with their groups.
const MAX_RANK: usize = 7;
/// The largest difference of a byte from a zero point.
const LARGEST: f64 = 383.0;

/// A product before its operands are there.
struct Form {
    /// Shapes of the bytes, of the left and the right.
    shapes: [Shape; 2],
    /// Labels of the operands.
    inputs: [Labels; 2],
    output: Labels,
    /// Windows of the left.
    windows: Option<Windows>,
    /// Products of a result.
    terms: f64,
}

/// Windows of an image, and what is made of them.
struct Windows {
    size: [i64; 2],
    groups: i64,
}

impl Generator<'_> {
    /// Whether bytes are multiplied next, and not floats.
    pub(super) fn multiplies_bytes(&self) -> bool {
        use ScalarOp::*;
        let ops = [Add, Sub, Mul, Div, Round];
        let dtypes = &self.options.dtypes;
        // Without a draw, so that graphs without bytes are what they would be.
        self.graph.len() % 3 == 1
            && dtypes.contains(&DType::F32)
            && [DType::U8, DType::I8].iter().any(|d| dtypes.contains(d))
            && ops.iter().all(|op| self.options.ops.contains(op))
    }

    /// A product of dequantized bytes.
    pub(super) fn grow_dequantized(&mut self) -> Option<NodeId> {
        let before = std::mem::replace(&mut self.max_rank, MAX_RANK);
        let product = self.dequantized_product();
        self.max_rank = before;
        product
    }

    fn dequantized_product(&mut self) -> Option<NodeId> {
        let form = match self.rng.below(3) {
            0 => self.form_of_matrices(),
            _ => self.form_of_windows(),
        };
        let mut operands: SmallVec<[NodeId; 2]> = smallvec![];
        // The right one never changes, or neither does, or both do.
        let fixed = self.rng.pick(&[
            [false, true],
            [false, true],
            [false, true],
            [true, true],
            [false, false],
        ]);
        for (shape, fixed) in form.shapes.iter().zip(fixed) {
            let bytes = self.bytes_of(shape, fixed)?;
            operands.push(self.dequantized(bytes)?);
        }
        if let Some(windows) = &form.windows {
            operands[0] = self.windows_of(operands[0], windows)?;
            operands[1] = self.weights_of(operands[1], windows)?;
        }
        let mut inputs: SmallVec<[Labels; 2]> = form.inputs.into_iter().collect();
        if self.rng.chance(1, 4) {
            operands.swap(0, 1);
            inputs.swap(0, 1);
        }
        let bound = self.bound(operands[0]) * self.bound(operands[1]) * form.terms;
        let (inputs, output) = canonical(inputs, &form.output);
        let kind = NodeKind::Einsum {
            inputs,
            output,
            semiring: Semiring::AddMul,
            accumulator: DType::F32,
            dtype: DType::F32,
        };
        let mut sum = self.add(kind, &operands, if bound.is_nan() { f64::INFINITY } else { bound })?;
        if let Some(windows) = &form.windows
            && windows.groups > 1
        {
            let mut shape = self.ty(sum).shape;
            let channels = shape.remove(2);
            shape[1] = shape[1].clone() * channels;
            sum = self.add(NodeKind::View(View::Reshape(shape)), &[sum], self.bound(sum))?;
        }
        self.behind_product(sum)
    }

    fn form_of_matrices(&mut self) -> Form {
        let mut sizes = self.rng.pick(&MATRICES).map(IndexExpr::Const);
        if !self.graph.symbols().is_empty() && self.rng.chance(1, 3) {
            sizes[0] = self.dim();
        }
        let [rows, summed, columns] = sizes;
        let terms = self.most(&summed);
        let (mut left, mut right): ([Labels; 1], [Labels; 1]) = ([smallvec![0, 1]], [smallvec![1, 2]]);
        left[0] = self.shuffled(left[0].clone());
        right[0] = self.shuffled(right[0].clone());
        let [left, right] = [left[0].clone(), right[0].clone()];
        let output = self.shuffled(smallvec![0, 2]);
        let extent = |l: &u16| [&rows, &summed, &columns][usize::from(*l)].clone();
        Form {
            shapes: [left.iter().map(extent).collect(), right.iter().map(extent).collect()],
            inputs: [left, right],
            output,
            windows: None,
            terms,
        }
    }

    fn form_of_windows(&mut self) -> Form {
        let [channels, height, width, rows, columns] = self.rng.pick(&IMAGES);
        let batch = match !self.graph.symbols().is_empty() && self.rng.chance(1, 3) {
            true => self.dim(),
            false => IndexExpr::Const(1),
        };
        let halves = if channels % 2 == 0 { 2 } else { 1 };
        let groups = self.rng.pick(&[1, 1, channels, channels, halves]);
        // Of each group as many, so that products stay of about one size.
        let results = match groups == channels {
            true => channels * self.rng.pick(&[1, 1, 2]),
            false => groups * self.rng.pick(&[5, 8, 16]),
        };
        let of_group = channels / groups;
        let all = |d: [i64; 4]| -> Shape { d.into_iter().map(IndexExpr::Const).collect() };
        let mut image = all([1, channels, height, width]);
        image[0] = batch;
        // Images, groups, channels, rows, columns, and those of the window; groups only where there are some.
        let labels = |of: &[u16]| -> Labels { of.iter().copied().filter(|l| *l != 1 || groups > 1).collect() };
        Form {
            shapes: [image, all([results, of_group, rows, columns])],
            inputs: [labels(&[0, 1, 2, 3, 4, 5, 6]), labels(&[1, 7, 2, 5, 6])],
            output: labels(&[0, 1, 7, 3, 4]),
            windows: Some(Windows {
                size: [rows, columns],
                groups,
            }),
            terms: (of_group * rows * columns) as f64,
        }
    }

    /// Windows of an image, whose channels are in groups if there are several.
    fn windows_of(&mut self, mut x: NodeId, windows: &Windows) -> Option<NodeId> {
        if self.rng.chance(2, 3) {
            let most = [0, 0, windows.size[0] - 1, windows.size[1] - 1];
            let mut sides: [Vec<IndexExpr>; 2] = Default::default();
            for side in &mut sides {
                for &n in &most {
                    side.push(IndexExpr::Const(self.rng.range(0, n.min(2))));
                }
            }
            let value = self.rng.pick(&[0.0, 0.0, 0.0, 0.0, 0.0, -0.0, 1.0]);
            let [lo, hi] = sides;
            let pad = View::Pad {
                lo: lo.into(),
                hi: hi.into(),
                interior: [0; 4].into(),
                value: Scalar::from_f64(DType::F32, value),
            };
            x = self.add(NodeKind::View(pad), &[x], self.bound(x).max(1.0))?;
        }
        for (k, size) in windows.size.into_iter().enumerate() {
            let window = View::Window {
                axis: 2 + k as u8,
                size: IndexExpr::Const(size),
                stride: self.rng.pick(&[1, 1, 2]),
                dilation: 1,
            };
            x = self.add(NodeKind::View(window), &[x], self.bound(x))?;
        }
        self.in_groups(x, 1, windows.groups)
    }

    fn weights_of(&mut self, w: NodeId, windows: &Windows) -> Option<NodeId> {
        self.in_groups(w, 0, windows.groups)
    }

    /// An axis in groups.
    fn in_groups(&mut self, x: NodeId, axis: usize, groups: i64) -> Option<NodeId> {
        if groups == 1 {
            return Some(x);
        }
        let mut shape = self.ty(x).shape;
        shape[axis] = IndexExpr::floor_div(&shape[axis], &IndexExpr::Const(groups));
        shape.insert(axis, IndexExpr::Const(groups));
        self.add(NodeKind::View(View::Reshape(shape)), &[x], self.bound(x))
    }

    fn byte(&mut self) -> DType {
        let bytes = [DType::U8, DType::I8].into_iter();
        let bytes: SmallVec<[DType; 2]> = bytes.filter(|d| self.options.dtypes.contains(d)).collect();
        self.rng.pick(&bytes)
    }

    /// Bytes of a shape, of their whole range.
    fn bytes_of(&mut self, shape: &Shape, fixed: bool) -> Option<NodeId> {
        let dtype = self.byte();
        let ty = TensorType {
            dtype,
            shape: shape.clone(),
        };
        if fixed && let Some(extents) = ty.const_shape() {
            let mut data = HostTensor::zeros(dtype, &extents).ok()?;
            for i in 0..data.len() {
                data.set(i, Scalar::from_bits(dtype, self.rng.bits() & 0xff));
            }
            return self.add(NodeKind::Data(ConstData(data)), &[], 255.0);
        }
        let x = match self.inputs < 6 && self.rng.chance(2, 3) {
            true => {
                let before = self.inputs;
                self.input_of(ty);
                (self.inputs > before).then(|| self.graph.inputs().last().copied())??
            }
            false => self.of_type(&ty)?,
        };
        if self.rng.chance(1, 4) {
            return Some(x);
        }
        // The inputs are small numbers.
        let factor = self.splat(Scalar::from_i64(dtype, 29), shape)?;
        self.map(ScalarOp::Mul, &[x, factor], 255.0)
    }

    /// A constant that is the same everywhere, or along all axes but one of them.
    fn broadcast(&mut self, dtype: DType, shape: &Shape, each: &mut dyn FnMut(&mut Self) -> Scalar) -> Option<NodeId> {
        let axis = self.rng.below(shape.len());
        let along = shape[axis].as_const().filter(|n| *n > 0 && self.rng.chance(1, 2));
        let Some(n) = along else {
            let value = each(self);
            return self.splat(value, shape);
        };
        let mut data = HostTensor::zeros(dtype, &[n as usize]).ok()?;
        let mut most = 0f64;
        for i in 0..data.len() {
            let value = each(self);
            most = most.max(value.as_f64().abs());
            data.set(i, value);
        }
        let mut x = self.add(NodeKind::Data(ConstData(data)), &[], most)?;
        if axis + 1 < shape.len() {
            let mut apart: Shape = smallvec![IndexExpr::ONE; shape.len() - axis];
            apart[0] = n.into();
            x = self.add(NodeKind::View(View::Reshape(apart)), &[x], most)?;
        }
        self.add(NodeKind::View(View::Expand(shape.clone())), &[x], most)
    }

    /// A zero point in i32: mostly one of the bytes' type.
    fn zero_point(&mut self, dtype: DType, shape: &Shape) -> Option<NodeId> {
        if self.rng.chance(1, 6) {
            let z = self.of_type(&TensorType::new(dtype, [0i64; 0]))?;
            let z = self.add(NodeKind::Convert(DType::I32), &[z], 255.0)?;
            return self.add(NodeKind::View(View::Expand(shape.clone())), &[z], 255.0);
        }
        let most = if dtype == DType::U8 { 255 } else { 127 };
        let numbers = [0, 0, 1, 7, most - 127, most, most - 255, 3, 300];
        self.broadcast(DType::I32, shape, &mut |g| {
            Scalar::from_i64(DType::I32, g.rng.pick(&numbers))
        })
    }

    /// Bytes less a zero point, times a scale.
    fn dequantized(&mut self, bytes: NodeId) -> Option<NodeId> {
        let TensorType { dtype, shape } = self.ty(bytes);
        let mut x = self.add(NodeKind::Convert(DType::I32), &[bytes], 255.0)?;
        if self.rng.chance(3, 4) {
            let zero = self.zero_point(dtype, &shape)?;
            x = self.map(ScalarOp::Sub, &[x, zero], LARGEST)?;
        }
        let x = self.add(NodeKind::Convert(DType::F32), &[x], LARGEST)?;
        let scale = match self.rng.chance(1, 10) {
            true => self.of_type(&TensorType {
                dtype: DType::F32,
                shape: shape.clone(),
            })?,
            false => {
                let odd = self.rng.chance(1, 12);
                self.broadcast(DType::F32, &shape, &mut |g| {
                    let value = match odd && g.rng.chance(1, 3) {
                        true => g.rng.pick(&[0.0, f64::INFINITY, f64::NAN, 1e-40, 1e30]),
                        false => (0.1 + g.rng.unit()) / 128.0 * g.rng.pick(&[1.0, 1.0, 1.0, -1.0]),
                    };
                    Scalar::from_f64(DType::F32, value)
                })?
            }
        };
        let scale = self.tame(scale);
        let factors = if self.rng.chance(1, 3) { [scale, x] } else { [x, scale] };
        let bound = self.bound(x) * self.bound(scale);
        self.map(
            ScalarOp::Mul,
            &factors,
            if bound.is_nan() { f64::INFINITY } else { bound },
        )
    }

    /// What follows on a product: a bias, and bytes.
    fn behind_product(&mut self, mut y: NodeId) -> Option<NodeId> {
        let shape = self.ty(y).shape;
        if self.rng.chance(1, 2) {
            let bias = self.broadcast(DType::F32, &shape, &mut |g| {
                Scalar::from_f64(DType::F32, g.rng.unit() * 8.0 - 4.0)
            })?;
            y = self.map(ScalarOp::Add, &[y, bias], self.bound(y) + 4.0)?;
        }
        if self.rng.chance(1, 2) {
            return Some(y);
        }
        let number = |g: &mut Self, x: f64| g.splat(Scalar::from_f64(DType::F32, x), &shape);
        // Mostly as many steps as bytes have.
        let most = match self.bound(y) {
            bound if bound >= 1.0 => bound.min(LARGE * LARGE),
            _ => 1.0,
        };
        let step = most / self.rng.pick(&[8.0, 64.0, 1024.0]);
        let scale = number(self, step)?;
        y = self.map(ScalarOp::Div, &[y, scale], self.bound(y) / step)?;
        y = self.map(ScalarOp::Round, &[y], self.bound(y) + 1.0)?;
        let dtype = self.byte();
        if self.rng.chance(1, 2) {
            let zero = number(self, if dtype == DType::U8 { 128.0 } else { 5.0 })?;
            y = self.map(ScalarOp::Add, &[y, zero], self.bound(y) + 128.0)?;
        }
        let bytes = self.add(NodeKind::Convert(dtype), &[y], 255.0)?;
        match self.rng.chance(1, 3) {
            true => self.dequantized(bytes),
            false => Some(bytes),
        }
    }
}
