//! The adjoint of a contraction is a contraction; its tangent is a sum of them.

use tlc_ir::graph::{Axes, Labels, NodeKind, Semiring, Shape};
use tlc_ir::{DType, ScalarOp};

use super::combine::{mean, share};
use super::node::{At, Cotangents, Linearized, positions, repeated, sum};
use crate::graph::Tensor;
use crate::graph::scope::Step;
use crate::ops::linalg::contract_over;

/// A contraction that is differentiated.
struct Contraction<'a> {
    operands: &'a [Tensor],
    inputs: &'a [Labels],
    output: &'a Labels,
    semiring: Semiring,
    accumulator: DType,
}

/// The cotangents of the operands of a contraction.
pub(super) fn rule(
    inputs: &[Labels],
    output: &Labels,
    semiring: Semiring,
    accumulator: DType,
    at: &At<'_>,
) -> Step<Cotangents> {
    // Operands that become whole numbers first are constant wherever that has a derivative.
    if !accumulator.is_float() {
        return Ok(at.zero());
    }
    let it = Contraction {
        operands: at.operands,
        inputs,
        output,
        semiring,
        accumulator,
    };
    match semiring {
        Semiring::AddMul => at.each(|k| it.factor(k, at.cotangent, output)),
        Semiring::MaxAdd | Semiring::MinAdd | Semiring::MaxMul => {
            let terms = it.shares(at.cotangent)?;
            at.each(|k| it.through(&terms, k))
        }
        Semiring::OrAnd | Semiring::AddDot4 => Ok(at.zero()),
    }
}

/// The tangent of a contraction.
pub(super) fn tangent(
    inputs: &[Labels],
    output: &Labels,
    semiring: Semiring,
    accumulator: DType,
    at: &Linearized<'_>,
) -> Step<Option<Tensor>> {
    if !accumulator.is_float() {
        return Ok(None);
    }
    let it = Contraction {
        operands: at.operands,
        inputs,
        output,
        semiring,
        accumulator,
    };
    match semiring {
        Semiring::AddMul => it.in_turn(at),
        Semiring::MaxAdd | Semiring::MinAdd | Semiring::MaxMul => it.mean(at.tangents),
        Semiring::OrAnd | Semiring::AddDot4 => Ok(None),
    }
}

/// The labels of an operand, each once.
fn distinct(labels: &Labels) -> Labels {
    let mut once = Labels::new();
    labels.iter().for_each(|l| {
        if !once.contains(l) {
            once.push(*l);
        }
    });
    once
}

/// What is compared, with an axis for each label.
struct Terms {
    terms: Tensor,
    /// The axes that the output lacks.
    axes: Axes,
    /// Which terms are the extremum along these; all of them if there are none.
    chosen: Option<Tensor>,
}

impl Contraction<'_> {
    /// The cotangent of a factor: that of the sum, of labels `labels`, times the other factors.
    fn factor(&self, k: usize, d: &Tensor, labels: &Labels) -> Step {
        let own = distinct(&self.inputs[k]);
        let dtype = self.operands[k].dtype();
        let others = (0..self.inputs.len()).filter(|&j| j != k);
        let mut factors: Vec<(&Tensor, &[u16])> = vec![(d, labels)];
        factors.extend(others.map(|j| (&self.operands[j], &self.inputs[j][..])));
        let has = |label: &u16| factors.iter().any(|(_, labels)| labels.contains(label));
        let found: Labels = own.iter().copied().filter(has).collect();
        let product = match factors.len() {
            1 => {
                let order = found.iter().filter_map(|l| labels.iter().position(|o| o == l));
                d.permuted(&order.collect::<Vec<_>>())?.to(dtype)?
            }
            _ => contract_over(Semiring::AddMul, &factors, &found, self.accumulator, dtype)?,
        };
        self.spread(&product, &found, k)
    }

    /// `t`, of some of the labels of operand `k`, each once, as a cotangent of the operand: repeated along labels that only
    /// the operand has, and on its diagonal if the operand is read on that.
    fn spread(&self, t: &Tensor, found: &Labels, k: usize) -> Step {
        let x = &self.operands[k];
        let labels = &self.inputs[k];
        let first = |axis: usize| labels.iter().position(|l| *l == labels[axis]).unwrap_or(axis);
        let is_new = |axis: &usize| first(*axis) != *axis || !found.contains(&labels[*axis]);
        let new: Vec<usize> = (0..labels.len()).filter(is_new).collect();
        let mut all = repeated(t, &new, x.extents())?;
        for axis in (0..labels.len()).filter(|&a| first(a) != a) {
            let diagonal = positions(x, first(axis))?.eq(positions(x, axis)?);
            all = diagonal.select(&all, 0.0);
        }
        Ok(all)
    }

    /// The tangent of a sum of products: with each factor in turn replaced by its tangent.
    fn in_turn(&self, at: &Linearized<'_>) -> Step<Option<Tensor>> {
        let several = at.tangents.iter().flatten().count() > 1;
        let dtype = if several { self.accumulator } else { at.result.dtype() };
        let mut parts = vec![];
        for (k, t) in at.tangents.iter().enumerate() {
            let Some(t) = t else { continue };
            let factor = |j: usize| (if j == k { t } else { &self.operands[j] }, &self.inputs[j][..]);
            let factors: Vec<(&Tensor, &[u16])> = (0..self.inputs.len()).map(factor).collect();
            parts.push(contract_over(
                Semiring::AddMul,
                &factors,
                self.output,
                self.accumulator,
                dtype,
            )?);
        }
        sum(&parts, at.result.dtype())
    }

    fn labels(&self) -> usize {
        let all = self.inputs.iter().flatten();
        all.map(|&l| usize::from(l) + 1).max().unwrap_or(0)
    }

    /// By label, its extent.
    fn extents(&self) -> Shape {
        let mut extents = Shape::from_elem(tlc_ir::IndexExpr::ONE, self.labels());
        for (labels, x) in self.inputs.iter().zip(self.operands) {
            for (&label, d) in labels.iter().zip(x.extents()) {
                let known = &mut extents[usize::from(label)];
                if known.is(1) {
                    *known = d.clone();
                }
            }
        }
        extents
    }

    /// An operand in the accumulator, with an axis for each label of the contraction.
    fn over_all(&self, k: usize) -> Step {
        self.like_operand(&self.operands[k], k)
    }

    /// As [`Contraction::over_all`], of a tensor with the axes of operand `k`.
    fn like_operand(&self, t: &Tensor, k: usize) -> Step {
        let mut own = distinct(&self.inputs[k]);
        own.sort_unstable();
        let factors: [(&Tensor, &[u16]); 1] = [(t, &self.inputs[k])];
        let once = contract_over(self.semiring, &factors, &own, self.accumulator, self.accumulator)?;
        self.aligned(&once, &own)
    }

    /// `t`, of ascending labels, repeated along all others.
    fn aligned(&self, t: &Tensor, labels: &Labels) -> Step {
        let missing = (0..self.labels()).filter(|l| !labels.contains(&(*l as u16)));
        repeated(t, &missing.collect::<Vec<_>>(), &self.extents())
    }

    /// All terms that are compared, and what is chosen among them. The extremum is taken again, of the terms as they are computed here,
    /// so that one of them equals it.
    fn terms(&self) -> Step<Terms> {
        let mut terms = self.over_all(0)?;
        for k in 1..self.inputs.len() {
            terms = terms.map2(self.semiring.product(), &self.over_all(k)?)?;
        }
        let is_summed = |l: &usize| !self.output.contains(&(*l as u16));
        let summed: Vec<usize> = (0..self.labels()).filter(is_summed).collect();
        let axes: Axes = summed.iter().map(|&a| a as u8).collect();
        let chosen = match summed.is_empty() {
            true => None,
            false => {
                let extremum = terms.node(NodeKind::Reduce {
                    monoid: self.semiring.sum(),
                    axes: axes.clone(),
                })?;
                let chosen = terms.eq(repeated(&extremum, &summed, terms.extents())?);
                Some(chosen.logical_or(terms.is_nan()))
            }
        };
        Ok(Terms { terms, axes, chosen })
    }

    /// By label of the output in ascending order: which axis of the output it is. Without the axes that are compared, these are the
    /// terms' axes.
    fn ascending(&self) -> Vec<usize> {
        let mut ascending = self.output.clone();
        ascending.sort_unstable();
        let axis = |l: &u16| self.output.iter().position(|o| o == l);
        ascending.iter().filter_map(axis).collect()
    }

    /// The cotangents of all terms that are compared: in equal parts to those that are the extremum.
    fn shares(&self, d: &Tensor) -> Step {
        let it = self.terms()?;
        let d = d.to(self.accumulator)?.permuted(&self.ascending())?;
        match &it.chosen {
            None => Ok(d),
            Some(chosen) => share(chosen, &d, &it.axes, &it.terms),
        }
    }

    /// The tangent of the result: the mean of those of the terms that are the extremum, which are sums over the operands.
    fn mean(&self, tangents: &[Option<Tensor>]) -> Step<Option<Tensor>> {
        let it = self.terms()?;
        let mut parts = vec![];
        for (k, t) in tangents.iter().enumerate() {
            let Some(t) = t else { continue };
            let mut part = self.like_operand(t, k)?;
            if self.semiring.product() == ScalarOp::Mul {
                for j in (0..self.inputs.len()).filter(|&j| j != k) {
                    part *= self.over_all(j)?;
                }
            }
            parts.push(part);
        }
        let Some(all) = sum(&parts, self.accumulator)? else {
            return Ok(None);
        };
        let all = match &it.chosen {
            None => all,
            Some(chosen) => mean(chosen, &all, &it.axes)?,
        };
        let back = self
            .output
            .iter()
            .map(|l| self.output.iter().filter(|o| *o < l).count());
        all.permuted(&back.collect::<Vec<_>>()).map(Some)
    }

    /// The cotangent of operand `k` from those of the terms.
    fn through(&self, terms: &Tensor, k: usize) -> Step {
        let all: Labels = (0..self.labels() as u16).collect();
        match self.semiring {
            Semiring::AddMul | Semiring::MaxMul => self.factor(k, terms, &all),
            Semiring::MaxAdd | Semiring::MinAdd | Semiring::OrAnd | Semiring::AddDot4 => {
                let own = distinct(&self.inputs[k]);
                let dtype = self.operands[k].dtype();
                let factors: [(&Tensor, &[u16]); 1] = [(terms, &all)];
                let sum = contract_over(Semiring::AddMul, &factors, &own, self.accumulator, dtype)?;
                self.spread(&sum, &own, k)
            }
        }
    }
}
