//! Brings contractions into forms that the library multiplies well.
//!
//! An operand whose summed axes walk it with several strides, and which the library does not pack itself (see
//! [`Strides`](tlc_ir::plan::Strides)), is copied once in the order of the product. A result whose rows and columns are interleaved
//! is computed with each together, and permuted behind the product, where its users read it through the view.

use tlc_ir::graph::{GraphError, Labels, View};
use tlc_ir::{Graph, NodeKind};

use super::panels::{Budget, Fixed, in_blocks};
use super::sink_layout::add_canonical;
use super::{Context, Failure, Pass};
use crate::contraction::{operands_to_pack, result_order};

/// Operands of products copied so that their summed axes lie together, or constant ones so that they are never copied again.
pub struct Pack;

impl Pass for Pack {
    fn name(&self) -> &'static str {
        "pack"
    }

    fn run(&self, graph: &Graph, context: &mut Context<'_>) -> Result<Graph, Failure> {
        let width = if context.inside_loop { 0 } else { context.panel_elements };
        Ok(run(graph, width)?)
    }
}

/// Inserts the copies. `width` is that of panel blocks, in which constants are copied; 0 for none.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph, width: u32) -> Result<Graph, GraphError> {
    let (fixed, mut budget) = (Fixed::new(graph, &|_| false), Budget::default());
    super::rebuild(graph, &mut |re, id, node, operands| {
        let NodeKind::Einsum { inputs, output, .. } = &node.kind else {
            return re.add(node.kind.clone(), operands);
        };
        if let Some(new) = in_blocks(re, graph, (id, node), operands, width, (&fixed, &mut budget))? {
            return Ok(new);
        }
        let ordered = result_order(graph, id);
        let pack = operands_to_pack(graph, id, ordered.as_ref());
        if pack.is_empty() && ordered.is_none() {
            return re.add(node.kind.clone(), operands);
        }
        let (mut labels, mut values): (Vec<Labels>, Vec<_>) = (inputs.to_vec(), operands.to_vec());
        for (k, order) in pack {
            labels[k] = order.iter().map(|&a| inputs[k][a as usize]).collect();
            let view = re.add(NodeKind::View(View::Permute(order)), &[values[k]])?;
            values[k] = re.add(NodeKind::Copy, &[view])?;
        }
        let Some(ordered) = ordered else {
            return add_canonical(re, &node.kind, labels, output.clone(), &values);
        };
        let place = |l: &u16| ordered.iter().position(|x| x == l).expect("the same labels") as u8;
        let back = output.iter().map(place).collect();
        let product = add_canonical(re, &node.kind, labels, ordered.clone(), &values)?;
        re.add(NodeKind::View(View::Permute(back)), &[product])
    })
}
