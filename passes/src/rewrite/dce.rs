//! Dead code elimination: what no output needs is not rebuilt.

use tlc_ir::Graph;
use tlc_ir::graph::GraphError;

use super::{Context, Failure, Pass};

/// Dead code.
pub struct Dce;

impl Pass for Dce {
    fn name(&self) -> &'static str {
        "dce"
    }

    fn run(&self, graph: &Graph, _: &mut Context<'_>) -> Result<Graph, Failure> {
        Ok(run(graph)?)
    }
}

/// Removes dead nodes.
///
/// # Errors
/// Never for a verified graph.
pub fn run(graph: &Graph) -> Result<Graph, GraphError> {
    super::rebuild_of(graph, &|_| false, &mut |re, _, node, operands| re.keep(node, operands))
}
