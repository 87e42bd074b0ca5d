//! Normalizations. f16 and bf16 inputs compute in f32 and round once at the end.

use tlc_ir::IndexExpr;

use crate::dim::{Axes, keep};
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, record, refuse, refuse_expecting};
use crate::ops::region::{Derivative, Known, region};
use crate::promotion::{float_of, promote};

/// A tensor made standard over axes.
struct Standard {
    /// `(x - mean) * inverse`.
    y: Tensor,
    mean: Tensor,
    /// The population variance.
    variance: Tensor,
    /// `1 / sqrt(variance + eps)`.
    inverse: Tensor,
}

impl Standard {
    fn new(x: &Tensor, axes: &Axes, eps: f64) -> Standard {
        let mean = x.mean(keep(axes));
        let centered = x - &mean;
        let variance = centered.square().mean(keep(axes));
        let inverse = (&variance + eps).rsqrt();
        let y = centered * &inverse;
        Standard {
            y,
            mean,
            variance,
            inverse,
        }
    }

    /// The cotangent of `x` from that of `y * scale`, where the scale is one along the axes: with the sums of the cotangent and of its
    /// product with `y`, which the derivatives of scales and offsets are as well, in place of the derivatives of each step (Ioffe and
    /// Szegedy, arXiv:1502.03167, section 3).
    fn cotangent(&self, d: &Tensor, axes: &Axes, scale: Option<&Tensor>) -> Tensor {
        let along = (d * &self.y).mean(keep(axes));
        let inner = d - d.mean(keep(axes)) - &self.y * along;
        match scale {
            Some(scale) => inner * (&self.inverse * scale),
            None => inner * &self.inverse,
        }
    }
}

impl Tensor {
    /// `(x - mean) / sqrt(var + eps)` over axes, of floats of at least 32 bits; the population variance.
    #[doc(hidden)]
    #[track_caller]
    pub fn standardize(&self, axes: impl Into<Axes>, eps: f64) -> Tensor {
        op("standardize", &[self], || self.standardized(&axes.into(), eps))
    }

    fn standardized(&self, axes: &Axes, eps: f64) -> Step {
        let function = |x: &[Tensor]| vec![Standard::new(&x[0], axes, eps).y];
        let derivative = |known: &Known| {
            let standard = Standard::new(&known.operands[0], axes, eps);
            vec![standard.cotangent(&known.cotangents[0], axes, None)]
        };
        let mut results = region("standardize", &[self], function, Derivative::Custom(derivative));
        results.pop().map_or_else(|| refuse("no result"), Ok)
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias`, the mean and the variance over axes, of which the parameters have one element
    /// each. Mean and variance, with the axes kept, are constants to derivatives.
    fn scaled_standard(
        &self,
        axes: &Axes,
        weight: Option<Tensor>,
        bias: Option<Tensor>,
        eps: f64,
    ) -> Step<[Tensor; 3]> {
        let operands: Vec<&Tensor> = [Some(self), weight.as_ref(), bias.as_ref()]
            .into_iter()
            .flatten()
            .collect();
        let scale = |of: &[Tensor]| weight.as_ref().map(|_| of[1].clone());
        let function = |of: &[Tensor]| {
            let Standard {
                mut y, mean, variance, ..
            } = Standard::new(&of[0], axes, eps);
            if let Some(w) = scale(of) {
                y *= w;
            }
            if bias.is_some() {
                y += &of[of.len() - 1];
            }
            vec![y, mean, variance]
        };
        let derivative = |known: &Known| {
            let (x, d) = (&known.operands[0], &known.cotangents[0]);
            let standard = Standard::new(x, axes, eps);
            let mut found = vec![standard.cotangent(d, axes, scale(&known.operands).as_ref())];
            let parameter = |sum: Tensor| sum.reshape(known.operands[1].shape());
            if weight.is_some() {
                found.push(parameter((d * &standard.y).sum(axes)));
            }
            if bias.is_some() {
                found.push(parameter(d.sum(axes)));
            }
            found
        };
        let results = region("standardize", &operands, function, Derivative::Custom(derivative));
        results.try_into().or_else(|_| refuse("no results"))
    }

    /// The float dtype of the result of a normalization with these parameters, and the tensor in at least f32.
    fn widened(&self, parameters: &[Option<&Tensor>]) -> Step<(tlc_ir::DType, Tensor)> {
        let all = parameters.iter().flatten().map(|t| t.dtype());
        let dtype = float_of(all.fold(self.dtype(), promote));
        Ok((dtype, self.to(dtype.accumulator())?))
    }

    /// Normalization over the last axis, then `* weight + bias` (Ba et al., arXiv:1607.06450). `weight` and `bias` are
    /// `[features]`, or broadcast against the input.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32, 3.0]]);
    /// assert_eq!(x.layer_norm(None, None, 0.0).eval()?.as_slice::<f32>()?, [-1.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn layer_norm(&self, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Tensor {
        let operands: Vec<&Tensor> = [Some(self), weight, bias].into_iter().flatten().collect();
        op("layer_norm", &operands, || {
            self.at_least_rank(1)?;
            let (dtype, x) = self.widened(&[weight, bias])?;
            let y = x.standardized(&Axes::from(-1), eps)?;
            self.affine(y, weight, bias)?.to(dtype)
        })
    }

    /// `y * weight + bias`, which must keep the shape.
    fn affine(&self, mut y: Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Step {
        let rank = y.rank();
        if let Some(w) = weight {
            y *= w;
        }
        if let Some(b) = bias {
            y += b;
        }
        if y.rank() != rank
            || y.extents()
                .iter()
                .zip(self.extents())
                .any(|(a, b)| self.graph().differ(a, b))
        {
            let fits = self.graph().shape_text(&self.extents()[self.rank() - 1..]);
            return refuse_expecting("weight or bias enlarge the input", fits);
        }
        Ok(y)
    }

    /// `x / sqrt(mean(x²) + eps) * weight` over the last axis (Zhang and Sennrich, arXiv:1910.07467).
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[2.0f32, -2.0]]);
    /// assert_eq!(x.rms_norm(None, 0.0).eval()?.as_slice::<f32>()?, [1.0, -1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn rms_norm(&self, weight: Option<&Tensor>, eps: f64) -> Tensor {
        let operands: Vec<&Tensor> = [Some(self), weight].into_iter().flatten().collect();
        op("rms_norm", &operands, || {
            self.at_least_rank(1)?;
            let (dtype, x) = self.widened(&[weight])?;
            let y = &x * (x.square().mean(keep(-1)) + eps).rsqrt();
            self.affine(y, weight, None)?.to(dtype)
        })
    }

    /// A vector `[channels]` as a column that broadcasts along axis 1.
    pub(crate) fn per_channel(&self, what: &str, like: &Tensor) -> Step {
        self.exactly_rank(what, 1)?;
        self.extent_is(what, 0, &like.extents()[1])?;
        let mut shape = vec![IndexExpr::ONE; like.rank() - 1];
        shape[0] = self.extents()[0].clone();
        self.reshaped(&shape)
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias` with recorded statistics, all `[channels]`; `self` is `[batch,
    /// channels, ..]` (Ioffe and Szegedy, arXiv:1502.03167; inference). [`Tensor::batch_norm_train`] is for training.
    #[track_caller]
    pub fn batch_norm(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let operands: Vec<&Tensor> = [Some(self), Some(mean), Some(var), weight, bias]
            .into_iter()
            .flatten()
            .collect();
        op("batch_norm", &operands, || {
            self.at_least_rank(2)?;
            let (dtype, x) = self.widened(&[Some(mean), Some(var), weight, bias])?;
            let wide = x.dtype();
            let mut scale = (var.per_channel("a variance", self)?.to(wide)? + eps).rsqrt();
            if let Some(w) = weight {
                scale *= w.per_channel("a weight", self)?;
            }
            let mut y = (x - mean.per_channel("a mean", self)?) * scale;
            if let Some(b) = bias {
                y += b.per_channel("a bias", self)?;
            }
            y.to(dtype)
        })
    }

    /// Batch normalization while training: `(x - mean) / sqrt(var + eps) * weight + bias` with the statistics of the batch over all axes
    /// but 1, and the running statistics behind it, for [`Tensor::batch_norm`]; `self` is `[batch, channels, ..]`, all else `[channels]`
    /// (Ioffe and Szegedy, arXiv:1502.03167).
    ///
    /// As in PyTorch the population variance normalizes, and the sample variance goes into the running one; the running statistics
    /// become `(1 - momentum) * running + momentum * batch`, keep their dtype, and are constants to derivatives. Statistics of f16 and bf16
    /// are computed in f32. Where a call gives a channel one value, its sample variance counts as 0.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1.0f32], [3.0]]);
    /// let (mean, var) = (g.zeros(1, DType::F32), g.ones(1, DType::F32));
    /// let (y, mean, var) = x.batch_norm_train(&mean, &var, None, None, 0.1, 0.0);
    /// assert_eq!(y.eval()?.as_slice::<f32>()?, [-1.0, 1.0]);
    /// assert_eq!(mean.eval()?.as_slice::<f32>()?, [0.2]);
    /// assert_eq!(var.eval()?.as_slice::<f32>()?, [1.1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// One value for each channel, or none; a momentum outside 0 to 1; parameters and statistics that are not `[channels]`.
    #[track_caller]
    pub fn batch_norm_train(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        momentum: f64,
        eps: f64,
    ) -> (Tensor, Tensor, Tensor) {
        let operands: Vec<&Tensor> = [Some(self), Some(mean), Some(var), weight, bias]
            .into_iter()
            .flatten()
            .collect();
        let body = || {
            self.at_least_rank(2)?;
            if !(0.0..=1.0).contains(&momentum) {
                return refuse_expecting(format!("momentum {momentum}"), "a number from 0 to 1");
            }
            if let Some(t) = [mean, var].iter().find(|t| !t.dtype().is_float()) {
                return refuse_expecting(format!("running statistics {}", t.type_text()), "floats");
            }
            let axes: Vec<i64> = (0..self.rank() as i64).filter(|axis| *axis != 1).collect();
            let count = axes.iter().map(|&axis| self.extents()[axis as usize].clone());
            let count = IndexExpr::product(&count.collect::<Vec<_>>());
            if let Some(n @ ..2) = count.as_const() {
                return refuse_expecting(format!("{n} values for each channel"), "at least 2");
            }
            let (dtype, x) = self.widened(&[weight, bias])?;
            let parameter =
                |what: &str, of: Option<&Tensor>| of.map(|t| t.per_channel(what, self)?.to(x.dtype())).transpose();
            let (weight, bias) = (parameter("a weight", weight)?, parameter("a bias", bias)?);
            let [y, batch_mean, batch_var] = x.scaled_standard(&axes.into(), weight, bias, eps)?;
            let n = self.graph().dim_value(&count.into(), x.dtype())?;
            let sample_var = batch_var * (&n / (&n - 1.0).maximum(1.0));
            let moved = |what: &str, running: &Tensor, batch: Tensor| {
                running.exactly_rank(what, 1)?;
                running.extent_is(what, 0, &self.extents()[1])?;
                let dtype = promote(running.dtype().accumulator(), batch.dtype());
                let batch = batch.reshaped(running.extents())?.to(dtype)?;
                let next = running.to(dtype)? * (1.0 - momentum) + batch * momentum;
                Ok(next.to(running.dtype())?.stop_gradient())
            };
            let mean = moved("a running mean", mean, batch_mean)?;
            let var = moved("a running variance", var, sample_var)?;
            Ok((y.to(dtype)?, mean, var))
        };
        let poison = |p: Tensor| (p.clone(), p.clone(), p);
        record(self.graph(), "batch_norm_train", &operands, &[], body, poison)
    }

    /// Normalization of each of `groups` groups of channels over channels and space, then `* weight + bias`, both
    /// `[channels]`; `self` is `[batch, channels, ..]` (Wu and He, arXiv:1803.08494). As many groups as channels give
    /// instance normalization.
    ///
    /// # Errors
    /// A channel count that is symbolic or that `groups` does not divide.
    #[track_caller]
    pub fn group_norm(&self, groups: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Tensor {
        let operands: Vec<&Tensor> = [Some(self), weight, bias].into_iter().flatten().collect();
        op("group_norm", &operands, || {
            self.at_least_rank(2)?;
            let channels = self.const_extent(1)?;
            if groups == 0 || channels % groups != 0 {
                return refuse_expecting(format!("{channels} channels in {groups} groups"), "a divisor");
            }
            let (dtype, x) = self.widened(&[weight, bias])?;
            let mut shape = vec![self.extents()[0].clone(), groups.into(), (channels / groups).into()];
            shape.extend_from_slice(&self.extents()[2..]);
            let axes: Vec<i64> = (2..shape.len() as i64).collect();
            let y = x.reshaped(&shape)?.standardized(&axes.into(), eps)?;
            let mut y = y.reshaped(self.extents())?;
            if let Some(w) = weight {
                y *= w.per_channel("a weight", self)?;
            }
            if let Some(b) = bias {
                y += b.per_channel("a bias", self)?;
            }
            y.to(dtype)
        })
    }
}
