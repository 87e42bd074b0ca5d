//! What runs backward, in sizes that are symbols: slices with negative steps, loops that take or give their parts from the end on.

use tlc::{DType, HostTensor, einsum};
use tlc_ir::Graph;
use tlc_ir::text::{no_data, parse_graph};

use crate::same::{same, through_onnx};

/// A graph with the sizes of its symbol `n` that it is tried for.
pub struct Reversed {
    pub name: &'static str,
    pub graph: Graph,
    pub sizes: Vec<i64>,
}

impl Reversed {
    /// Inputs of that size.
    pub fn inputs(&self, n: i64) -> Vec<HostTensor> {
        let shape = |ty: &tlc_ir::graph::TensorType| -> Vec<usize> {
            let extents = ty.shape.iter().map(|d| d.eval_symbols(&[n]).expect("a size"));
            extents.map(|d| d as usize).collect()
        };
        let mut all = vec![];
        for (k, &id) in self.graph.inputs().iter().enumerate() {
            let shape = shape(self.graph.ty(id));
            let count: usize = shape.iter().product();
            let data: Vec<f32> = (0..count)
                .map(|i| ((i * 37 + k * 11) % 101) as f32 / 50.0 - 1.0)
                .collect();
            all.push(HostTensor::from_slice(&shape, &data).expect("a tensor"));
        }
        all
    }
}

/// A slice of `x`, whose first axis is `n`.
fn slice(name: &'static str, range: &str, slice: &str, shape: &str, sizes: &[i64]) -> Reversed {
    let text = format!(
        "graph @f(%x: f32[n, 6]) where n in {range} {{\n  %0 = slice %x {{{slice}}} : f32[{shape}]\n  return %0 as y\n}}"
    );
    Reversed {
        name,
        graph: parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0])),
        sizes: sizes.to_vec(),
    }
}

/// A recurrence over `x: f32[n, 3]`, whose steps come and go backward where that is asked.
fn recurrence(name: &'static str, (from_end, to_start): (bool, bool)) -> Reversed {
    let g = tlc::Graph::new("recurrence");
    let n = g.symbol("n", 0..=1000);
    let (x, w) = (g.input("x", DType::F32, (&n, 3)), g.input("w", DType::F32, [3, 3]));
    let l = g.repeat(&n).carry(&g.zeros([3], DType::F32));
    let l = match from_end {
        true => l.slice_reversed(&x, 0),
        false => l.slice(&x, 0),
    };
    let results = l.record(|i| {
        let w = i.capture(&w);
        let h = (&i.slices[0] + einsum("i,ji->j", &[&i.carried[0], &w])).tanh();
        match to_start {
            true => i.stack_reversed(&h, 0),
            false => i.stack(&h, 0),
        }
        vec![h]
    });
    g.output("last", &results[0]);
    g.output("all", &results[1]);
    Reversed {
        name,
        graph: g.finish().expect("recorded"),
        sizes: vec![0, 1, 2, 5],
    }
}

pub fn all() -> Vec<Reversed> {
    let whole = "0..=100";
    vec![
        slice("turned", whole, "start=[n - 1, 0], step=[-1, 1]", "n, 6", &[0, 1, 2, 7]),
        slice(
            "by-2",
            whole,
            "start=[n - 1, 0], step=[-2, 1]",
            "div(n + 1, 2), 6",
            &[0, 1, 2, 7],
        ),
        slice(
            "both-axes",
            whole,
            "start=[n - 1, 5], step=[-3, -2]",
            "div(n + 2, 3), 3",
            &[0, 1, 4, 7],
        ),
        // Of one element nothing is left, and the start is before it.
        slice(
            "but-the-last",
            whole,
            "start=[n - 2, 0], step=[-1, 1]",
            "max(0, n - 1), 6",
            &[0, 1, 2, 7],
        ),
        slice(
            "but-the-first",
            whole,
            "start=[n - 1, 0], step=[-1, 1]",
            "max(0, n - 1), 6",
            &[0, 1, 2, 7],
        ),
        slice(
            "half",
            "1..=100",
            "start=[div(n, 2), 0], step=[-1, 1]",
            "div(n, 2) + 1, 6",
            &[2, 3, 8],
        ),
        slice(
            "down-to-2",
            "3..=100",
            "start=[n - 1, 0], step=[-1, 1]",
            "n - 2, 6",
            &[3, 4, 9],
        ),
        slice(
            "maybe-all",
            "5..=100",
            "start=[4, 0], step=[-1, 1]",
            "min(5, n - 3), 6",
            &[5, 7, 8, 20],
        ),
        recurrence("from-the-end", (true, false)),
        recurrence("to-the-start", (false, true)),
        recurrence("backward", (true, true)),
    ]
}

#[test]
fn what_runs_backward_comes_back_again_and_again() {
    let mut wrong = vec![];
    for case in all() {
        let mut graph = case.graph.clone();
        for round in 1..=3 {
            graph = match through_onnx(&graph) {
                Ok(graph) => graph,
                Err(e) => {
                    wrong.push(format!("{} round {round}: {e}", case.name));
                    break;
                }
            };
            for &n in &case.sizes {
                if let Err(e) = same(&case.graph, &graph, &case.inputs(n), &[]) {
                    wrong.push(format!("{} round {round}, n={n}: {e}", case.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_axis_turned_around_is_one_slice_of_constants() {
    for case in &all()[..3] {
        let model = tlc::onnx::export(&case.graph).expect("exported");
        let operators: Vec<&str> = model.graph.nodes.iter().map(|n| n.op).collect();
        assert_eq!(operators, ["Slice"], "{}", case.name);
    }
}
