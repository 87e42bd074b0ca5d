//! Signals: windows of time and discrete Fourier transforms.
//!
//! A complex tensor has a last axis of two: real and imaginary parts. A transform is one contraction with a matrix of
//! cosines and sines, which the graph computes once, in f64, from whole numbers of turns: so every root of unity is as exact
//! as the dtype can say.

use std::f64::consts::TAU;

use tlc_ir::{DType, IndexExpr};

use super::linalg::contract;
use crate::dim::Dim;
use crate::graph::Graph;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, record, refuse_expecting};

/// The most elements that a transform's matrix may have.
const MAX_MATRIX: i64 = 1 << 26;
/// Longer transforms are two shorter ones, where the length has a divisor.
const LONG: i64 = 1024;

impl Graph {
    /// `a - b cos(2πi / m) + c cos(4πi / m)` for the `n` elements `i`, where `m` is `n` if periodic, else `n - 1`: the sum
    /// of cosines that most windows are. A symmetric window of one element is 1.
    fn cosines(&self, n: &Dim, periodic: bool, [a, b, c]: [f64; 3], dtype: DType) -> Step {
        if !dtype.is_float() {
            return refuse_expecting(format!("a window of {dtype}"), "floats");
        }
        let count = self.dim_value(n, DType::F64)?;
        let period = if periodic { count.clone() } else { &count - 1.0 };
        let angle = self.iota_1d(n.expr(), DType::F64)? * TAU / period;
        let window = a - b * angle.cos() + c * (angle * 2.0).cos();
        let whole = match (periodic, n.as_const()) {
            (false, Some(1)) => window.ones_like(),
            (false, None) => count.eq(1.0).select(1.0, window),
            _ => window,
        };
        whole.to(dtype)
    }

    /// The Hann window of `n` elements (NumPy's `hanning` where symmetric): `0.5 - 0.5 cos`.
    #[track_caller]
    pub fn hann_window(&self, n: impl Into<Dim>, periodic: bool, dtype: DType) -> Tensor {
        let n = n.into();
        let body = || self.cosines(&n, periodic, [0.5, 0.5, 0.0], dtype);
        record(self, "hann_window", &[], &[], body, |p| p)
    }

    /// The Hamming window of `n` elements with the coefficient 25/46 (Hamming, "Digital filters", 1977; the rounded 0.54 is
    /// NumPy's).
    #[track_caller]
    pub fn hamming_window(&self, n: impl Into<Dim>, periodic: bool, dtype: DType) -> Tensor {
        let n = n.into();
        let body = || self.cosines(&n, periodic, [25.0 / 46.0, 21.0 / 46.0, 0.0], dtype);
        record(self, "hamming_window", &[], &[], body, |p| p)
    }

    /// The Blackman window of `n` elements (NumPy's `blackman` where symmetric): `0.42 - 0.5 cos + 0.08 cos`.
    #[track_caller]
    pub fn blackman_window(&self, n: impl Into<Dim>, periodic: bool, dtype: DType) -> Tensor {
        let n = n.into();
        let body = || self.cosines(&n, periodic, [0.42, 0.5, 0.08], dtype);
        record(self, "blackman_window", &[], &[], body, |p| p)
    }

    /// `[elements, parts, results, result's parts]`: what element `i` of a signal of `length` adds to result `k`.
    fn fourier(&self, elements: &IndexExpr, parts: usize, how: &Fourier, dtype: DType) -> Step {
        let results = how.results();
        let size = [elements, results.expr()].map(|d| d.as_const().unwrap_or(1));
        if size[0].saturating_mul(size[1]).saturating_mul(4) > MAX_MATRIX {
            return refuse_expecting(
                format!("a transform of {} to {} elements", size[0], size[1]),
                "a shorter one: it is computed as a matrix product",
            );
        }
        let length = self.dim_value(&how.length, DType::I64)?;
        let i = self.iota_1d(elements, DType::I64)?.unsqueeze(1);
        let k = self.iota_1d(results.expr(), DType::I64)?.unsqueeze(0);
        let turns = (&i * k).remainder(&length).to(DType::F64)?;
        let period = length.to(DType::F64)?;
        let angle = turns * TAU / &period;
        let (mut cos, mut sin) = (angle.cos(), angle.sin());
        if how.inverse {
            (cos, sin) = (cos / &period, -sin / &period);
            if how.onesided {
                // The other half of the spectrum is the conjugate of this one, but for the ends.
                let once = i.eq(0).logical_or((&i * 2).eq(&length));
                let times = once.select(1.0, 2.0).to(DType::F64)?;
                (cos, sin) = (cos * &times, sin * &times);
            }
        }
        // e^(-iθ) (a + ib) = (a cos + b sin) + i (b cos - a sin); the inverse has the other sign.
        let parts_of = |real: &Tensor, imaginary: &Tensor| match how.inverse && how.onesided {
            true => real.unsqueeze(-1),
            false => crate::stack(&[real, imaginary], -1),
        };
        let from_real = parts_of(&cos, &-&sin);
        match parts {
            1 => from_real.unsqueeze(1).to(dtype),
            _ => crate::stack(&[&from_real, &parts_of(&sin, &cos)], 1).to(dtype),
        }
    }
}

/// The largest divisor of a long transform's length up to its root, if it has one.
fn divisor(n: i64) -> Option<i64> {
    let root = (n as f64).sqrt() as i64;
    (n > LONG)
        .then(|| (2..=root.min(1 << 16)).rev().find(|d| n % d == 0))
        .flatten()
}

/// A discrete Fourier transform over an axis of that length.
struct Fourier {
    length: Dim,
    inverse: bool,
    onesided: bool,
}

impl Fourier {
    fn results(&self) -> Dim {
        match self.onesided && !self.inverse {
            true => &self.length / 2 + 1,
            false => self.length.clone(),
        }
    }

    /// How many elements of the operand count.
    fn taken(&self) -> Dim {
        match self.onesided && self.inverse {
            true => &self.length / 2 + 1,
            false => self.length.clone(),
        }
    }
}

impl Tensor {
    /// One or two parts: whether a signal is real or complex.
    fn parts(&self) -> Step<usize> {
        match self.dim(-1).as_const() {
            Some(n @ (1 | 2)) if self.rank() >= 2 && self.dtype().is_float() => Ok(n as usize),
            _ => refuse_expecting(
                self.graph().type_text(self.ty()),
                "floats with a last axis of one (real) or two (complex)",
            ),
        }
    }

    /// The discrete Fourier transform along an axis: `self` has a last axis of one (real) or two (complex), the result of
    /// two. The axis is cut or padded with zeros to `length`. `onesided`: only the first `length / 2 + 1` frequencies; of an
    /// inverse transform, these are what is given, and the result is real, with a last axis of one. An inverse transform
    /// divides by the length.
    ///
    /// # Errors
    /// Other dtypes and last axes, the last axis itself, a one-sided transform of complex numbers.
    #[track_caller]
    pub fn dft(&self, axis: i64, length: impl Into<Dim>, inverse: bool, onesided: bool) -> Tensor {
        let how = Fourier {
            length: length.into(),
            inverse,
            onesided,
        };
        op("dft", &[self], || {
            let (axis, parts) = (self.axis(axis)?, self.parts()?);
            if axis + 1 == self.rank() {
                return refuse_expecting(
                    "a transform along the last axis",
                    "another axis: the last one is the real and imaginary part",
                );
            }
            if onesided && !inverse && parts == 2 {
                return refuse_expecting("a one-sided transform of complex numbers", "real numbers");
            }
            if how.length.as_const().is_some_and(|n| n < 1) {
                return refuse_expecting(format!("length {:?}", how.length.as_const()), "1 or more");
            }
            if let Some(n) = how.length.as_const().filter(|&n| divisor(n).is_some()) {
                return self.long_dft(axis, n, &how);
            }
            let extent = self.dim(axis as i64);
            let taken = Dim(self.graph().simplify(extent.min(how.taken()).expr()));
            let x = match taken == extent {
                true => self.clone(),
                false => self.narrow(axis as i64, 0, taken.clone()),
            };
            x.multiplied_dft(axis, &how)
        })
    }

    /// The transform of all elements along an axis, as one contraction.
    fn multiplied_dft(&self, axis: usize, how: &Fourier) -> Step {
        let wide = self.dtype().accumulator();
        let matrix = self.graph().fourier(&self.extents()[axis], self.parts()?, how, wide)?;
        let rank = self.rank() as u16;
        let labels: Vec<u16> = (0..rank).collect();
        let (n, c, k, o) = (axis as u16, rank - 1, rank, rank + 1);
        let mut output = labels.clone();
        (output[axis], output[self.rank() - 1]) = (k, o);
        contract(
            &[(self, &labels), (&matrix, &[n, c, k, o])],
            &output,
            Some(self.dtype()),
        )
    }

    /// [`Tensor::dft`] of a long signal: one-sided ones are cut from, or made, two-sided ones.
    fn long_dft(&self, axis: usize, n: i64, how: &Fourier) -> Step {
        let axis_number = axis as i64;
        let given = how.taken();
        let extent = self.dim(axis_number);
        let taken = Dim(self.graph().simplify(extent.min(&given).expr()));
        let mut each = vec![(Dim::from(0), Dim::from(0)); self.rank()];
        each[axis].1 = Dim(self.graph().simplify((given - &extent).max(0).expr()));
        let mut x = self.narrow(axis_number, 0, taken).pad(&each, self.dtype().zero());
        if how.inverse && how.onesided {
            let rest = x.narrow(axis_number, 1, (n - 1) / 2).flip(axis_number);
            let sign = self.graph().constant([1.0, -1.0]).to(self.dtype())?;
            x = crate::concat(&[&x, &(rest * sign)], axis_number);
        }
        let y = x.move_axis(axis_number, -2).split_dft(n, how.inverse)?;
        let y = match (how.onesided, how.inverse) {
            (true, true) => y.narrow(-1, 0, 1),
            (true, false) => y.narrow(-2, 0, n / 2 + 1),
            (false, _) => y,
        };
        Ok(y.move_axis(-2, axis_number))
    }

    /// The transform along the axis before the last, of `n = a b` elements as `a` transforms of `b` and `b` of `a`, with a
    /// turn for each element between them (Cooley and Tukey, "An algorithm for the machine calculation of complex Fourier
    /// series", 1965).
    fn split_dft(&self, n: i64, inverse: bool) -> Step {
        let axis = self.rank() - 2;
        let Some(a) = divisor(n) else {
            let how = Fourier {
                length: n.into(),
                inverse,
                onesided: false,
            };
            return self.multiplied_dft(axis, &how);
        };
        let b = n / a;
        // [.., a, b, parts]: element b i + j.
        let first = self.unflatten(-2, [a, b]).swap_axes(-3, -2).split_dft(a, inverse)?;
        // [.., b, a, 2]: the results k of each column j, turned by j k.
        let wide = self.dtype().accumulator();
        let graph = self.graph();
        let (j, k) = (
            graph.iota_1d(&b.into(), DType::F64)?.unsqueeze(1),
            graph.iota_1d(&a.into(), DType::F64)?.unsqueeze(0),
        );
        let angle = j * k * (TAU / n as f64);
        let (cos, mut sin) = (angle.cos().to(wide)?, angle.sin().to(wide)?);
        if inverse {
            sin = -sin;
        }
        let first = first.to(wide)?;
        let (real, imaginary) = (first.select_index(-1, 0), first.select_index(-1, 1));
        let turned = crate::stack(
            &[&(&real * &cos + &imaginary * &sin), &(&imaginary * &cos - &real * &sin)],
            -1,
        );
        // [.., a, b, 2] to results k + a l.
        let second = turned.to(self.dtype())?.swap_axes(-3, -2).split_dft(b, inverse)?;
        Ok(second.swap_axes(-3, -2).flatten_axes(-3, -2))
    }

    /// The short-time Fourier transform: `self` is `[batch, time, 1 or 2]`; frames of `length` elements, `step` apart, each
    /// multiplied with `window`, are transformed. The result is `[batch, frames, frequencies, 2]`.
    ///
    /// # Errors
    /// Another rank, a window of another length, frames longer than the signal, a step of 0, a one-sided transform
    /// of complex numbers.
    #[track_caller]
    pub fn stft(&self, step: usize, length: impl Into<Dim>, window: Option<&Tensor>, onesided: bool) -> Tensor {
        let mut operands = vec![self];
        operands.extend(window);
        let how = Fourier {
            length: length.into(),
            inverse: false,
            onesided,
        };
        op("stft", &operands, || {
            self.exactly_rank("a signal", 3)?;
            let parts = self.parts()?;
            if onesided && parts == 2 {
                return refuse_expecting("a one-sided transform of complex numbers", "real numbers");
            }
            // [batch, frames, parts, length]
            let frames = self.window(1, how.length.clone(), step, 1);
            let wide = self.dtype().accumulator();
            let mut matrix = self.graph().fourier(how.length.expr(), parts, &how, wide)?;
            if let Some(window) = window {
                window.exactly_rank("a window", 1)?;
                window.extent_is("the window", 0, how.length.expr())?;
                matrix *= window.to(wide)?.reshape([window.dim(0), 1.into(), 1.into(), 1.into()]);
            }
            contract(
                &[(&frames, &[0, 1, 2, 3]), (&matrix, &[3, 2, 4, 5])],
                &[0, 1, 4, 5],
                Some(self.dtype()),
            )
        })
    }
}
