//! Clusters that are alike share what was made of one of them: random graphs twice over, the second time as they are or with one node another. In
//! debug builds the planner compares whatever it shares with what lowering makes; here that is run into, and counted.

use crate::oracle::generate::{Case, Rng, graph};
use crate::oracle::stages::{check, cpu, describe, gpu, scattered, two_emitters};
use tlc_ir::graph::{Monoid, Origin};
use tlc_ir::{Graph, NodeId, NodeKind, Scalar, ScalarOp};
use tlc_passes::pipeline::Pipeline;
use tlc_passes::{Options, compile};

/// The node in another way that types as it does, over such operands.
fn other(rng: &mut Rng, kind: &NodeKind, operands: &[NodeId]) -> (NodeKind, Vec<NodeId>) {
    let mut operands = operands.to_vec();
    let kind = match kind {
        NodeKind::Const(value) => NodeKind::Const(Scalar::from_i64(value.dtype(), 1 + rng.below(3) as i64)),
        NodeKind::Map(op) if operands.len() == 2 && rng.chance(50) => {
            match rng.below(3) {
                0 => operands.swap(0, 1),
                n => operands[n - 1] = operands[2 - n],
            }
            NodeKind::Map(*op)
        }
        NodeKind::Map(_) if operands.len() == 2 => {
            let ops = [
                ScalarOp::Add,
                ScalarOp::Sub,
                ScalarOp::Min,
                ScalarOp::Lt,
                ScalarOp::Le,
                ScalarOp::Eq,
            ];
            NodeKind::Map(rng.pick(&ops))
        }
        NodeKind::Map(_) if operands.len() == 1 => {
            NodeKind::Map(rng.pick(&[ScalarOp::Neg, ScalarOp::Abs, ScalarOp::Tanh]))
        }
        NodeKind::Reduce { axes, .. } => NodeKind::Reduce {
            monoid: rng.pick(&[Monoid::Add, Monoid::Min, Monoid::Max]),
            axes: axes.clone(),
        },
        NodeKind::Random { shape, stream } => NodeKind::Random {
            shape: shape.clone(),
            stream: stream + 1,
        },
        NodeKind::Iota { ty, axis } if ty.rank() > 1 => NodeKind::Iota {
            ty: ty.clone(),
            axis: (axis + 1) % ty.rank() as u8,
        },
        kind => kind.clone(),
    };
    (kind, operands)
}

/// Appends the nodes of a graph over inputs of their own, the one of that number in another way if it can be. Also makes outputs of its outputs, and
/// of the values of those numbers.
fn append(g: &mut Graph, of: &Graph, prefix: &str, changed: Option<(usize, &mut Rng)>, also: &[usize]) {
    let mut changed = changed;
    let mut map: Vec<NodeId> = Vec::new();
    for (id, node) in of.nodes() {
        let operands: Vec<NodeId> = node.operands.iter().map(|o| map[o.index()]).collect();
        let instead = match &mut changed {
            Some((at, rng)) if *at == id.index() => {
                let (kind, operands) = other(rng, &node.kind, &operands);
                let mut attempt = g.clone();
                let made = attempt.add(kind.clone(), &operands, Origin::Unknown).ok();
                made.filter(|&new| attempt.ty(new) == &node.ty)
                    .map(|_| (kind, operands))
            }
            _ => None,
        };
        let (kind, operands) = instead.unwrap_or((node.kind.clone(), operands));
        map.push(match kind {
            NodeKind::Input { name, ty, .. } => g.add_input(&format!("{prefix}.{name}"), ty, Origin::Unknown).unwrap(),
            kind => g.add(kind, &operands, Origin::Unknown).unwrap(),
        });
    }
    for output in of.outputs() {
        g.add_output(&format!("{prefix}.{}", output.name), map[output.node.index()]);
    }
    for &at in also {
        g.add_output(&format!("{prefix}.also.{at}"), map[at]);
    }
}

fn twice(case: &Case, changed: Option<(usize, &mut Rng)>, also: &[usize]) -> Case {
    let mut g = Graph::new("twice");
    g.adopt_symbols(&case.graph);
    append(&mut g, &case.graph, "a", None, &[]);
    append(&mut g, &case.graph, "b", changed, also);
    let both = |all: &[_]| all.iter().chain(all).cloned().collect();
    Case {
        graph: g,
        inputs: both(&case.inputs),
        symbols: case.symbols.clone(),
        tolerance: case.tolerance.iter().chain(&case.tolerance).copied().collect(),
    }
}

fn machine(seed: u64) -> Options {
    match seed % 5 {
        0 => cpu(128),
        1 => two_emitters(),
        2 => cpu(512),
        3 => gpu(),
        _ => scattered(seed),
    }
}

#[test]
fn graphs_twice_over_mean_what_they_say() {
    let (mut launches, mut lowered) = (0, 0);
    for seed in 0..60 {
        let case = twice(&graph(seed, 12, 400, seed % 2 == 0), None, &[]);
        let compiled = check(&case, &Pipeline::default(), machine(seed));
        let compiled = compiled.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", describe(&case.graph)));
        launches += compiled.planned.launches.len();
        lowered += compiled.planned.lowered;
    }
    assert!(lowered < launches * 9 / 10, "{lowered} nests of {launches} launches");
}

/// What is wrongly shared the planner itself finds.
#[test]
fn what_differs_in_one_node_is_not_shared() {
    for seed in 0..400u64 {
        let case = graph(seed, 10, 400, seed % 2 == 0);
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let count = case.graph.len();
        let also = rng.below(count);
        let is_value = !case.graph.node(NodeId(also as u32)).kind.is_tuple();
        let also = [also];
        let also = if is_value && rng.chance(30) { &also[..] } else { &[] };
        let at = rng.below(count);
        let changed = also.is_empty().then_some((at, &mut rng));
        let case = twice(&case, changed, also);
        let made = std::panic::catch_unwind(|| compile(&case.graph, &machine(seed)).map(|_| ()));
        assert!(
            matches!(made, Ok(Ok(()))),
            "seed {seed}: {made:?}\n{}",
            describe(&case.graph)
        );
    }
}

/// A layer more is no nest more.
#[test]
fn layers_are_lowered_once() {
    let layers = |count: usize| {
        let mut text = String::from("graph @layers(%x: f32[64, 96]");
        (0..count).for_each(|k| text += &format!(", %w{k}: f32[96, 96], %b{k}: f32[96]"));
        text += ") {\n";
        let mut at = 0;
        let mut line = |text: &mut String, what: String| {
            *text += &format!("  %{at} = {what}\n");
            at += 1;
            at - 1
        };
        let mut x = "%x".to_string();
        for k in 0..count {
            let sum = line(&mut text, format!("reduce add {x} {{axes=[1]}} : f32[64]"));
            let sum = line(&mut text, format!("reshape %{sum} : f32[64, 1]"));
            let sum = line(&mut text, format!("expand %{sum} : f32[64, 96]"));
            let apart = line(&mut text, format!("sub {x}, %{sum} : f32[64, 96]"));
            let product = line(&mut text, format!("einsum %{apart}, %w{k} {{ab,bc->ac}} : f32[64, 96]"));
            let bias = line(&mut text, format!("expand %b{k} : f32[64, 96]"));
            let biased = line(&mut text, format!("add %{product}, %{bias} : f32[64, 96]"));
            x = format!("%{}", line(&mut text, format!("tanh %{biased} : f32[64, 96]")));
        }
        text += &format!("  return {x}\n}}");
        let graph = tlc_ir::text::parse_graph(&text, &mut tlc_ir::text::no_data).unwrap();
        let planned = compile(&graph, &cpu(256)).unwrap().planned;
        (planned.launches.len(), planned.lowered)
    };
    let (few, many) = (layers(4), layers(12));
    assert!(many.0 >= few.0 + 8, "{few:?} and {many:?}");
    assert_eq!(many.1, few.1, "{few:?} and {many:?}");
}
