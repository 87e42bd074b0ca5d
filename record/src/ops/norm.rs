//! Normalizations. f16 and bf16 inputs compute in f32 and round once at the end.

use tlc_ir::IndexExpr;

use crate::dim::{Axes, keep};
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};
use crate::promotion::{float_of, promote};

impl Tensor {
    /// `(x - mean) / sqrt(var + eps)` over axes; the population variance.
    fn standardized(&self, axes: &Axes, eps: f64) -> Step {
        let centered = self - self.mean(keep(axes));
        let variance = centered.square().mean(keep(axes));
        Ok(centered * (variance + eps).rsqrt())
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
    /// channels, ..]` (Ioffe and Szegedy, arXiv:1502.03167; inference).
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
