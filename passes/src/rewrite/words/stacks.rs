//! Products of stacks of matrices of bytes, and of values that each call brings: words of both are made, and those of the second are laid out in blocks of
//! columns, in each call.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::{GraphError, Labels, Shape, View};
use tlc_ir::index::IndexExpr;
use tlc_ir::{DType, NodeId, NodeKind, ScalarOp};

use super::bytes::{Bytes, Zero, before_expansion};
use super::{Product, added_up_words, lengthened, map, missing, over_i32, part, splat, with_number, words};
use crate::rewrite::Rebuilder;
use crate::rewrite::sink_layout::add_canonical;

impl Product {
    /// The sum of a stack of matrices, or of values that each call brings: the einsum is of three axes at most each, with that of the stack the first one.
    /// What each row and each column adds up to, for zero points, is added up over words as well, once for all results that it is taken off.
    pub(super) fn sum_of_stack(
        &self,
        re: &mut Rebuilder,
        image_bytes: NodeId,
        [flip_image, flip_weights]: [bool; 2],
        unit: i64,
    ) -> Result<NodeId, GraphError> {
        let [of_image, of_weights] = &self.labels;
        let output = self.output.iter().copied();
        let stack: Labels = output
            .clone()
            .filter(|l| of_image.contains(l) && of_weights.contains(l))
            .collect();
        let rows: Labels = output.filter(|l| !of_weights.contains(l)).collect();
        let summed: Labels = of_weights
            .iter()
            .copied()
            .filter(|l| !self.output.contains(l))
            .collect();
        let columns: Labels = [self.columns].into_iter().collect();
        // Words of the image are stored in the order of the product; those of weights as their bytes lie, of which a copy in blocks is made.
        let image = in_order(re, image_bytes, of_image, &[&stack, &rows, &summed])?;
        let order = [&stack[..], &rows, &summed].concat();
        let axis = order.iter().position(|l| *l == of_image[self.axes[0]]).unwrap_or(0);
        let image = words(re, image, axis, flip_image)?;
        let weights = self.words_as_they_lie(re, flip_weights)?;
        let weights = in_order(re, weights, of_weights, &[&stack, &summed, &columns])?;
        let extent = |re: &Rebuilder, n: NodeId, axes: Range<usize>| {
            let shape = &re.graph.ty(n).shape;
            IndexExpr::product(shape[axes].iter())
        };
        let (stacked, counted) = (stack.len(), stack.len() + rows.len());
        let b = extent(re, image, 0..stacked);
        let (m, k) = (
            extent(re, image, stacked..counted),
            extent(re, image, counted..order.len()),
        );
        let all_columns = of_weights.len() - 1;
        let n = extent(re, weights, all_columns..all_columns + 1);
        let shape_of = |dims: [&IndexExpr; 2]| -> Shape { [&b].into_iter().chain(dims).cloned().collect() };
        let image = re.reshape(image, &shape_of([&m, &k]))?;
        let weights = re.reshape(weights, &shape_of([&k, &n]))?;
        let sum = self.of_matrices(re, [image, weights], unit, !stack.is_empty())?;
        let sum = self.less_zeros(re, sum, [image, weights], [flip_image, flip_weights])?;
        let made = [&stack[..], &rows, &columns].concat();
        let mut whole = Shape::new();
        for l in &made {
            let side = usize::from(*l == self.columns);
            let operand = [self.image_operand, self.weights_less][side];
            let axis = self.labels[side].iter().position(|x| x == l).unwrap_or(0);
            whole.push(re.graph.ty(operand).shape[axis].clone());
        }
        let sum = re.reshape(sum, &whole)?;
        in_order(re, sum, &made, &[&self.output])
    }

    /// The sums less what zero points add to them: `z` times what the words of each column add up to, but for the zero point `v` of each of their bytes, and
    /// `v` times what those of each row add up to. `v` is that of signed weights, and `z` that of an unsigned image.
    fn less_zeros(
        &self,
        re: &mut Rebuilder,
        mut sum: NodeId,
        [image, weights]: [NodeId; 2],
        [flip_image, flip_weights]: [bool; 2],
    ) -> Result<NodeId, GraphError> {
        let of_image = self.zero_point(re, self.image_zero, if flip_image { 128 } else { 0 })?;
        let of_weights = self.zero_point(re, self.weights_zero, if flip_weights { -128 } else { 0 })?;
        if let Some(z) = of_image {
            let mut columns = added_up_words(re, weights, 1, false)?;
            if let Some(v) = of_weights {
                let all = with_number(re, ScalarOp::Mul, v, self.bytes_of_a_sum(re))?;
                let all = expanded_like(re, all, columns)?;
                columns = map(re, ScalarOp::Sub, columns, all)?;
            }
            sum = less_each(re, sum, columns, z)?;
        }
        if let Some(v) = of_weights {
            let rows = added_up_words(re, image, 2, true)?;
            sum = less_each(re, sum, rows, v)?;
        }
        Ok(sum)
    }

    /// Words of the weights, seen through their views, but stored in the order in which their bytes lie.
    fn words_as_they_lie(&self, re: &mut Rebuilder, flip: bool) -> Result<NodeId, GraphError> {
        let is_permuted = |v: &NodeId| matches!(re.graph.node(*v).kind, NodeKind::View(View::Permute(_)));
        let first = self
            .weights
            .views
            .iter()
            .rposition(|v| !is_permuted(v))
            .map_or(0, |i| i + 1);
        let (below, above) = self.weights.views.split_at(first);
        let mut axis = self.axes[1];
        for v in above.iter().rev() {
            if let NodeKind::View(View::Permute(order)) = &re.graph.node(*v).kind {
                axis = usize::from(order[axis]);
            }
        }
        let through = |views: &[NodeId]| Bytes {
            views: views.iter().copied().collect(),
            ..self.weights
        };
        let bytes = through(below).through_views(re, 0)?;
        let made = words(re, bytes, axis, flip)?;
        through(above).above(re, made, DType::I32.zero())
    }

    /// The einsum over words of matrices, or of a stack of one, with columns filled up to a multiple of `unit`.
    fn of_matrices(
        &self,
        re: &mut Rebuilder,
        mut operands: [NodeId; 2],
        unit: i64,
        is_stack: bool,
    ) -> Result<NodeId, GraphError> {
        let n = re.graph.ty(operands[1]).shape[2].clone();
        let missing = missing(&n, unit);
        operands[1] = lengthened(re, operands[1], 2, missing)?;
        let label = |of: [u16; 2]| -> Labels { is_stack.then_some(0).into_iter().chain(of).collect() };
        let mut shape: Shape = re.graph.ty(operands[0]).shape.clone();
        shape[2] = re.graph.ty(operands[1]).shape[2].clone();
        if !is_stack {
            for o in &mut operands {
                let matrix: Shape = re.graph.ty(*o).shape[1..].into();
                *o = re.reshape(*o, &matrix)?;
            }
        }
        let sum = add_canonical(
            re,
            &over_i32(),
            vec![label([1, 2]), label([2, 3])],
            label([1, 3]),
            &operands,
        )?;
        let sum = re.reshape(sum, &shape)?;
        match n.as_const() {
            Some(n) if missing > 0 => part(re, sum, 2, 0, n),
            _ => Ok(sum),
        }
    }

    /// A zero point of rank 3 and one element, with a number added; `None` if that is zero.
    fn zero_point(&self, re: &mut Rebuilder, zero: Zero, more: i64) -> Result<Option<NodeId>, GraphError> {
        let one: Shape = smallvec![IndexExpr::ONE; 3];
        match zero {
            Zero::Known(z) if z + more == 0 => Ok(None),
            Zero::Known(z) => splat(re, z + more, &one).map(Some),
            Zero::Value(z) => {
                let z = before_expansion(&re.graph, z);
                let z = re.reshape(z, &one)?;
                match more {
                    0 => Ok(Some(z)),
                    more => with_number(re, ScalarOp::Add, z, more).map(Some),
                }
            }
        }
    }

    /// How many bytes a sum adds up; sums wrap, and so may this.
    fn bytes_of_a_sum(&self, re: &Rebuilder) -> i64 {
        let shape = &re.graph.ty(self.weights_less).shape;
        let summed = self.labels[1]
            .iter()
            .zip(shape)
            .filter(|(l, _)| !self.output.contains(l));
        let count = summed.fold(1i64, |n, (_, d)| n.wrapping_mul(d.as_const().unwrap_or(1)));
        i64::from(count as i32)
    }
}

/// A value of one element for each element of another.
fn expanded_like(re: &mut Rebuilder, one: NodeId, other: NodeId) -> Result<NodeId, GraphError> {
    let shape = re.graph.ty(other).shape.clone();
    re.add(NodeKind::View(View::Expand(shape)), &[one])
}

/// A sum less a number times what is the same along one of its axes, which is stored: many results take it off.
fn less_each(re: &mut Rebuilder, sum: NodeId, each: NodeId, times: NodeId) -> Result<NodeId, GraphError> {
    let times = expanded_like(re, times, each)?;
    let each = map(re, ScalarOp::Mul, each, times)?;
    let each = re.add(NodeKind::Copy, &[each])?;
    let each = expanded_like(re, each, sum)?;
    map(re, ScalarOp::Sub, sum, each)
}

/// A value whose axes have labels, with its axes in another order of them.
fn in_order(re: &mut Rebuilder, x: NodeId, labels: &[u16], order: &[&[u16]]) -> Result<NodeId, GraphError> {
    let place = |l: &u16| labels.iter().position(|x| x == l).map(|axis| axis as u8);
    let axes: SmallVec<[u8; 4]> = order.iter().copied().flatten().filter_map(place).collect();
    match axes.is_sorted() {
        true => Ok(x),
        false => re.add(NodeKind::View(View::Permute(axes)), &[x]),
    }
}
