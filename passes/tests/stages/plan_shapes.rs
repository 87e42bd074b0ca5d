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

/// A library of a GPU is given products that are large and stand alone, unless all are asked for; and memory of the plan's to work in.
#[test]
fn a_library_of_a_gpu_is_given_what_it_is_taken_to_be_faster_at() {
    use tlc_ir::target::{Gpu, LibraryShare, ProductLibrary};
    use tlc_ir::text::{no_data, parse_graph};
    let plain = LibraryShare::Plain {
        least_extent: 64,
        gain: None,
    };
    let given = |text: &str, share: LibraryShare| -> (usize, usize) {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
        let library = ProductLibrary {
            share,
            narrow: true,
            workspace_bytes: 512,
        };
        let gpu = Gpu {
            products: Some(library),
            ..Gpu::any(tlc_codegen::cuda::emitter().into())
        };
        let host = tlc_ir::target::Cpu::modest(tlc_codegen::clif::emitter(true).into());
        let devices = tlc_passes::devices::Devices::new(host, [gpu]);
        let compiled = tlc_passes::compile(&graph, &tlc_passes::Options::new(devices)).expect("it compiles");
        let plan = &compiled.planned.plan;
        let workspaces = plan
            .slots
            .iter()
            .filter(|s| s.name.ends_with(".workspace") && s.len.is(512));
        (products(&compiled), workspaces.count())
    };
    let matmul = |[m, k, n]: [&str; 3], dtype: &str, behind: &str| {
        let acc = if dtype == "bf16" { "; acc=f32" } else { "" };
        format!(
            "graph @g(%x: {dtype}[{m}, {k}], %y: {dtype}[{k}, {n}]) where s in 1..=900 {{
               %0 = einsum %x, %y {{ab,bc->ac{acc}}} : {dtype}[{m}, {n}]
               {behind}
             }}"
        )
    };
    let alone = "return %0";
    for dtype in ["f32", "bf16"] {
        assert_eq!(given(&matmul(["64", "80", "96"], dtype, alone), plain), (1, 1));
    }
    // Too small along one side, of a size that may be, with something behind it, in front of it, or of integers.
    let behind = "%1 = tanh %0 : f32[64, 96]\n return %1";
    let in_front = "graph @g(%x: f32[64, 80], %y: f32[80, 96]) {
      %0 = tanh %x : f32[64, 80]
      %1 = einsum %0, %y {ab,bc->ac} : f32[64, 96]
      return %1
    }";
    for text in [
        matmul(["63", "80", "96"], "f32", alone),
        matmul(["s", "80", "96"], "f32", alone),
        matmul(["64", "80", "96"], "f32", behind),
        in_front.to_string(),
    ] {
        assert_eq!(given(&text, plain), (0, 0), "{text}");
        assert_eq!(given(&text, LibraryShare::All), (1, 1), "{text}");
    }
    let integers = matmul(["64", "80", "96"], "i32", alone);
    assert_eq!(given(&integers, LibraryShare::All), (0, 0));
    // Rows of windows overlap, which no leading dimension says.
    let windows = "graph @g(%x: f32[200], %y: f32[64, 96]) {
      %0 = window %x {axis=0, size=64, stride=1, dilation=1} : f32[137, 64]
      %1 = einsum %0, %y {ab,bc->ac} : f32[137, 96]
      return %1
    }";
    assert_eq!(given(windows, LibraryShare::All), (0, 0));
}
