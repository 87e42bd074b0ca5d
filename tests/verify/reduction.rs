//! What the shrinker keeps: the case is a graph that verifies, it still has the property, and it is small.

use tlc::verify::{Budget, Case, reduce};
use tlc_ir::graph::verify::verify;
use tlc_ir::testgen::GenOptions;
use tlc_ir::text::parse_graph;
use tlc_ir::{HostTensor, NodeKind, ScalarOp};

use crate::right::random;

/// Whether an output needs such an operation: what none needs goes with the first change.
fn has(case: &Case, op: ScalarOp) -> bool {
    let graph = &case.graph;
    let mut live = vec![false; graph.len()];
    graph.outputs().iter().for_each(|o| live[o.node.index()] = true);
    for i in (0..graph.len()).rev() {
        let node = graph.node(tlc_ir::NodeId(i as u32));
        if live[i] && node.kind == NodeKind::Map(op) {
            return true;
        }
        if live[i] {
            node.operands.iter().for_each(|o| live[o.index()] = true);
        }
    }
    false
}

fn case(text: &str, inputs: &[(&[usize], f32)]) -> Case {
    let tensor = |(shape, value): &(&[usize], f32)| {
        let data = vec![*value; shape.iter().product()];
        HostTensor::from_slice(shape, &data).unwrap()
    };
    Case {
        graph: parse_graph(text, &mut tlc_ir::text::no_data).unwrap(),
        inputs: inputs.iter().map(tensor).collect(),
        symbols: vec![],
    }
}

#[test]
fn a_reduced_graph_is_valid_and_has_the_property() {
    let mut reduced = 0;
    for seed in 0..120 {
        let first = random(seed, &GenOptions::default());
        for op in [ScalarOp::Tanh, ScalarOp::Mul, ScalarOp::Select] {
            if !has(&first, op) {
                continue;
            }
            let budget = Budget {
                tests: 400,
                ..Budget::default()
            };
            let small = reduce(&first, budget, &mut |c| has(c, op));
            let found = verify(&small.graph);
            assert!(found.is_empty(), "seed {seed}: {}\n{}", found[0], small.graph);
            assert!(has(&small, op), "seed {seed}");
            assert_eq!(small.graph.inputs().len(), small.inputs.len());
            assert!(small.graph.len() <= first.graph.len());
            // The operation, and no more than an input for each of its operands.
            let operands = 3;
            assert!(small.graph.len() <= 1 + operands, "seed {seed}:\n{}", small.graph);
            reduced += 1;
        }
    }
    assert!(reduced > 20, "{reduced} cases");
}

#[test]
fn sizes_shrink_to_the_smallest_that_has_the_property() {
    let first = case(
        "graph @g(%x: f32[n, 48], %w: f32[48]) where n in 1..=64 {
  %0 = exp %x : f32[n, 48]
  %1 = reshape %0 : f32[n, 6, 8]
  %2 = reduce add %1 {axes=[2]} : f32[n, 6]
  %3 = neg %w : f32[48]
  return %2 as y, %3 as z
}",
        &[(&[5, 48], 0.5), (&[48], 1.0)],
    );
    let small = reduce(&first, Budget::default(), &mut |c| {
        let graph = &c.graph;
        graph.nodes().any(|(_, n)| {
            matches!(n.kind, NodeKind::Reduce { .. }) && graph.ty(n.operands[0]).shape[2].as_const() >= Some(3)
        })
    });
    let shape = small.graph.ty(small.graph.inputs()[0]).const_shape().unwrap();
    assert_eq!((small.graph.inputs().len(), shape), (1, vec![1, 1, 3]));
    assert_eq!(small.inputs[0].shape(), [1, 1, 3]);
    assert!(small.graph.symbols().is_empty(), "sizes became numbers");
}

#[test]
fn values_stay_where_the_property_needs_them() {
    let first = case(
        "graph @g(%x: f32[4]) {
  %0 = exp %x : f32[4]
  %1 = log %0 : f32[4]
  %2 = sqrt %1 : f32[4]
  return %2 as y
}",
        &[(&[4], -2.0)],
    );
    // A NaN that comes out: the cut operand keeps its value.
    let nan = |c: &Case| {
        let out = tlc_ir::interp::interpret(&c.graph, &c.inputs, &tlc_ir::interp::Options::default());
        out.is_ok_and(|o| o.iter().any(|t| t.get(0).is_nan()))
    };
    let small = reduce(&first, Budget::default(), &mut |c| nan(c) && has(c, ScalarOp::Sqrt));
    assert!(nan(&small));
    assert_eq!(small.graph.len(), 2);
}

#[test]
fn a_spent_budget_answers_the_best_case_so_far() {
    let first = random(3, &GenOptions::default());
    let budget = Budget {
        tests: 0,
        ..Budget::default()
    };
    let same = reduce(&first, budget, &mut |_| true);
    assert_eq!(same.graph.len(), first.graph.len());
}
