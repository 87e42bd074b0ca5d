//! Graphs of known shapes at every stage against a plain evaluation: what random graphs rarely build. The mix of forms,
//! products and in-place decisions that each must reach is part of the test.

use crate::oracle::generate::{Case, Rng};
use crate::oracle::stages::{check, cpu, describe, gpu, scattered};
use smallvec::smallvec;
use tlc_ir::graph::{Axes, Monoid, Origin, Semiring, Shape, TensorType, View};
use tlc_ir::plan::Step;
use tlc_ir::{DType, Graph, HostTensor, IndexExpr, NodeId, NodeKind, Scalar, ScalarOp};
use tlc_passes::Compiled;
use tlc_passes::memory::AliasReason;
use tlc_passes::pipeline::Pipeline;

struct Build {
    g: Graph,
    inputs: Vec<HostTensor>,
    rng: Rng,
}

impl Build {
    fn new() -> Build {
        Build {
            g: Graph::new("shape"),
            inputs: Vec::new(),
            rng: Rng(99),
        }
    }
    fn input(&mut self, shape: &[i64]) -> NodeId {
        let sizes: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
        let mut t = HostTensor::zeros(DType::F32, &sizes).unwrap();
        for i in 0..t.len() {
            let v = self.rng.below(7) as f64 - 3.0;
            t.set(i, Scalar::from_f64(DType::F32, v));
        }
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(t);
        let ty = TensorType::new(DType::F32, shape.iter().copied());
        self.g.add_input(&name, ty, Origin::Unknown).unwrap()
    }
    fn add(&mut self, kind: NodeKind, operands: &[NodeId]) -> NodeId {
        self.g.add(kind, operands, Origin::Unknown).unwrap()
    }
    fn map(&mut self, op: ScalarOp, operands: &[NodeId]) -> NodeId {
        self.add(NodeKind::Map(op), operands)
    }
    fn reduce(&mut self, monoid: Monoid, axes: &[u8], x: NodeId) -> NodeId {
        let axes: Axes = axes.into();
        self.add(NodeKind::Reduce { monoid, axes }, &[x])
    }
    fn expand(&mut self, x: NodeId, shape: &[i64]) -> NodeId {
        let shape: Shape = shape.iter().map(|&d| IndexExpr::from(d)).collect();
        self.add(NodeKind::View(View::Expand(shape)), &[x])
    }
    fn reshape(&mut self, x: NodeId, shape: &[i64]) -> NodeId {
        let shape: Shape = shape.iter().map(|&d| IndexExpr::from(d)).collect();
        self.add(NodeKind::View(View::Reshape(shape)), &[x])
    }
    fn einsum(&mut self, a: &[u16], b: &[u16], out: &[u16], x: NodeId, y: NodeId) -> NodeId {
        self.add(
            NodeKind::Einsum {
                inputs: smallvec![a.into(), b.into()],
                output: out.into(),
                semiring: Semiring::AddMul,
                accumulator: DType::F32,
                dtype: DType::F32,
            },
            &[x, y],
        )
    }
    /// Softmax along the last axis of a matrix.
    fn softmax(&mut self, x: NodeId, rows: i64, columns: i64) -> NodeId {
        let m = self.reduce(Monoid::Max, &[1], x);
        let m = self.reshape(m, &[rows, 1]);
        let m = self.expand(m, &[rows, columns]);
        let d = self.map(ScalarOp::Sub, &[x, m]);
        let e = self.map(ScalarOp::Exp, &[d]);
        let s = self.reduce(Monoid::Add, &[1], e);
        let s = self.reshape(s, &[rows, 1]);
        let s = self.expand(s, &[rows, columns]);
        self.map(ScalarOp::Div, &[e, s])
    }
    /// Compiles for several vector widths and checks each; the tolerance is per output.
    fn finish(mut self, outputs: &[(NodeId, Option<f64>)]) -> Compiled {
        outputs.iter().for_each(|o| self.g.add_output("", o.0));
        let case = Case {
            graph: self.g,
            inputs: self.inputs,
            symbols: Vec::new(),
            tolerance: outputs.iter().map(|o| o.1).collect(),
        };
        let mut last = None;
        for machine in [gpu(), scattered(0), scattered(1), cpu(128), cpu(256), cpu(512)] {
            match check(&case, &Pipeline::default(), machine.clone()) {
                Ok(c) => last = Some(c),
                Err(e) => panic!(
                    "{:?}, {:?}: {e}\n{}",
                    machine.place,
                    machine.devices.kinds(),
                    describe(&case.graph)
                ),
            }
        }
        last.unwrap()
    }
}

fn products(c: &Compiled) -> usize {
    let steps = c.planned.plan.steps.iter();
    steps.filter(|s| matches!(s, Step::Gemm(_))).count()
}

#[test]
fn two_layers_run_as_products_with_an_in_place_activation() {
    let mut b = Build::new();
    let (x, w, v) = (b.input(&[40, 30]), b.input(&[30, 50]), b.input(&[50, 20]));
    let bias = b.input(&[50]);
    let y = b.einsum(&[0, 1], &[1, 2], &[0, 2], x, w);
    let bias = b.expand(bias, &[40, 50]);
    let y = b.map(ScalarOp::Add, &[y, bias]);
    let y = b.map(ScalarOp::Abs, &[y]);
    let z = b.einsum(&[0, 1], &[1, 2], &[0, 2], y, v);
    let z = b.map(ScalarOp::Neg, &[z]);
    let c = b.finish(&[(z, None)]);
    assert_eq!(products(&c), 2);
    assert!(c.planned.aliases.iter().any(|a| a.reason == AliasReason::InPlace));
}

#[test]
fn batched_and_transposed_products_read_strides() {
    let mut b = Build::new();
    let (x, y) = (b.input(&[3, 33, 40]), b.input(&[3, 21, 40]));
    let z = b.einsum(&[0, 1, 2], &[0, 3, 2], &[0, 3, 1], x, y);
    let c = b.finish(&[(z, None)]);
    assert_eq!(products(&c), 1);
}

#[test]
fn softmax_and_layer_norm_are_rows() {
    for (rows, columns) in [(7, 129), (3, 1000), (40, 16)] {
        let mut b = Build::new();
        let x = b.input(&[rows, columns]);
        let p = b.softmax(x, rows, columns);
        let total = b.reduce(Monoid::Add, &[1], x);
        let square = b.map(ScalarOp::Mul, &[x, x]);
        let squares = b.reduce(Monoid::Add, &[1], square);
        b.finish(&[(p, Some(1e-5)), (total, None), (squares, None)]);
    }
}

#[test]
fn attention_keeps_its_result() {
    let mut b = Build::new();
    let (q, k, v) = (b.input(&[24, 32]), b.input(&[20, 32]), b.input(&[20, 32]));
    let scores = b.einsum(&[0, 1], &[2, 1], &[0, 2], q, k);
    let p = b.softmax(scores, 24, 20);
    let out = b.einsum(&[0, 1], &[1, 2], &[0, 2], p, v);
    b.finish(&[(out, Some(1e-4))]);
}

#[test]
fn long_reductions_split_and_wide_columns_tile() {
    let mut b = Build::new();
    let x = b.input(&[70_000]);
    let sum = b.reduce(Monoid::Add, &[0], x);
    let most = b.reduce(Monoid::Max, &[0], x);
    let first = b.reduce(Monoid::ArgMax, &[0], x);
    let y = b.input(&[37, 1100]);
    let columns = b.reduce(Monoid::Add, &[0], y);
    let rows = b.reduce(Monoid::ArgMin, &[1], y);
    b.finish(&[(sum, None), (most, None), (first, None), (columns, None), (rows, None)]);
}

#[test]
fn transpositions_tile_with_ragged_edges() {
    for (m, n) in [(100, 70), (33, 257), (64, 64)] {
        let mut b = Build::new();
        let x = b.input(&[2, m, n]);
        let y = b.input(&[2, n, m]);
        let t = b.add(NodeKind::View(View::Permute(smallvec![0, 2, 1])), &[x]);
        let z = b.map(ScalarOp::Add, &[t, y]);
        b.finish(&[(z, None)]);
    }
}

#[test]
fn long_chains_block_with_ragged_ends() {
    for n in [8191, 8192, 10_001] {
        let mut b = Build::new();
        let (x, y) = (b.input(&[n]), b.input(&[n]));
        let z = b.map(ScalarOp::Mul, &[x, y]);
        let z = b.map(ScalarOp::Add, &[z, x]);
        let zero = b.add(NodeKind::Const(DType::F32.zero()), &[]);
        let zero = b.expand(zero, &[n]);
        let z = b.map(ScalarOp::Max, &[z, zero]);
        b.finish(&[(z, None)]);
    }
}
