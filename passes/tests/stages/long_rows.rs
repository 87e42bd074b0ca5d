//! Rows that do not stay on the chip of a GPU: which kernels they are, and that pieces of them come to what rows do.

use std::sync::Arc;

use tlc_ir::interp::{Options as Meaning, interpret};
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{DType, Graph, HostTensor, Scalar};
use tlc_passes::devices::Devices;
use tlc_passes::reason::FusionReason;
use tlc_passes::rewrite::long_rows;
use tlc_passes::{Compiled, Options, compile};

fn parsed(text: &str) -> Graph {
    parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

/// A number of each row, for all of its elements.
fn spread(name: &str, of: &str, [rows, n]: [i64; 2]) -> String {
    format!(
        "%{name}_1 = reshape {of} : f32[{rows}, 1]
         %{name} = expand %{name}_1 : f32[{rows}, {n}]\n"
    )
}

/// A softmax of masked rows, and the logarithm of their sum beside a number that is finite in any case.
fn softmax(shape: [i64; 2]) -> String {
    let [rows, n] = shape;
    let all = format!("f32[{rows}, {n}]");
    let (m, s, f) = (
        spread("me", "%m", shape),
        spread("se", "%s", shape),
        spread("fe", "%f", shape),
    );
    format!(
        "graph @softmax(%g: {all}, %b: f32[{n}]) {{
           %be = expand %b : {all}
           %x = add %g, %be : {all}
           %m = reduce max %x {{axes=[1]}} : f32[{rows}]
           {m}
           %d = sub %x, %me : {all}
           %e = exp %d : {all}
           %s = reduce add %e {{axes=[1]}} : f32[{rows}]
           {s}
           %y = div %e, %se : {all}
           %inf = const inf : f32[]
           %infs = expand %inf : f32[{rows}]
           %zero = const 0.0 : f32[]
           %zeros = expand %zero : f32[{rows}]
           %size = abs %m : f32[{rows}]
           %is = eq %size, %infs : bool[{rows}]
           %f = select %is, %zeros, %m : f32[{rows}]
           {f}
           %df = sub %x, %fe : {all}
           %ef = exp %df : {all}
           %sf = reduce add %ef {{axes=[1]}} : f32[{rows}]
           %l = log %sf : f32[{rows}]
           %lse = add %l, %f : f32[{rows}]
           return %y, %lse
         }}"
    )
}

/// Rows less their mean, and the sum of the squares of that.
fn variance(shape: [i64; 2]) -> String {
    let [rows, n] = shape;
    let all = format!("f32[{rows}, {n}]");
    let m = spread("me", "%m", shape);
    format!(
        "graph @variance(%g: {all}, %b: f32[{n}]) {{
           %be = expand %b : {all}
           %x = add %g, %be : {all}
           %t = reduce add %x {{axes=[1]}} : f32[{rows}]
           %n = const {n}.0 : f32[]
           %ns = expand %n : f32[{rows}]
           %m = div %t, %ns : f32[{rows}]
           {m}
           %d = sub %x, %me : {all}
           %d2 = mul %d, %d : {all}
           %v = reduce add %d2 {{axes=[1]}} : f32[{rows}]
           return %d, %v
         }}"
    )
}

fn squares([rows, n]: [i64; 2]) -> String {
    let all = format!("f32[{rows}, {n}]");
    let k = spread("ke", "%k", [rows, n]);
    format!(
        "graph @squares(%x: {all}) {{
           %x2 = mul %x, %x : {all}
           %q = reduce add %x2 {{axes=[1]}} : f32[{rows}]
           %k = rsqrt %q : f32[{rows}]
           {k}
           %y = mul %x, %ke : {all}
           return %y
         }}"
    )
}

/// A device that may give a block 227 KiB.
fn large() -> Gpu {
    Gpu {
        opt_in_shared_bytes: Gpu::opt_in_of((9, 0)),
        ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
    }
}

fn compiled(text: &str) -> Compiled {
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let options = Options::new(Devices::new(host, [large()]));
    compile(&parsed(text), &options).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The kernels of a graph, and how often those with whole rows are said to read them.
fn kernels(text: &str) -> (usize, Vec<(i64, usize)>) {
    let compiled = compiled(text);
    let entries = compiled.clusters.ledger.entries().iter();
    let said = entries.filter_map(|d| match d.reason {
        FusionReason::ReadAgain { row, times } => Some((row, times)),
        _ => None,
    });
    let mut said: Vec<_> = said.collect();
    said.dedup();
    (compiled.planned.launches.len(), said)
}

#[test]
fn many_long_rows_are_two_kernels_which_read_them_once_each() {
    assert_eq!(kernels(&softmax([512, 65_536])), (2, vec![(65_536, 1)]));
    assert_eq!(kernels(&variance([512, 65_536])), (2, vec![(65_536, 1)]));
    // Without a result that waits for another, one that reads them twice.
    assert_eq!(kernels(&squares([512, 65_536])), (1, vec![(65_536, 2)]));
}

#[test]
fn few_long_rows_have_blocks_for_their_pieces() {
    for text in [softmax([4, 100_000]), variance([4, 100_000])] {
        let compiled = compiled(&text);
        let blocks = compiled
            .planned
            .plan
            .launches()
            .into_iter()
            .filter_map(|l| match &l.work {
                tlc_ir::plan::Work::Grid(grid) => grid.blocks.as_const(),
                tlc_ir::plan::Work::Chunks { .. } => None,
            });
        let blocks: Vec<i64> = blocks.collect();
        assert!(blocks.len() == 3 && blocks[0] >= 108 && blocks[2] >= 108, "{blocks:?}");
        assert!(blocks[1] <= 4, "what pieces come to is little: {blocks:?}");
    }
}

/// Rows of random lengths, some of whose elements are none, infinite or all the same: pieces of them by the interpreter, beside the rows.
#[test]
fn pieces_come_to_what_rows_do() {
    let mut rng = Rng::new(11);
    let gpu = Gpu {
        shared_bytes: 2048,
        opt_in_shared_bytes: 2048,
        multiprocessors: 2,
        ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
    };
    let mut cut = 0;
    for round in 0..60 {
        let n = [1024, 1025, 2048, 3000, 4096, 5001, 8192, 9973][rng.below(8)];
        let shape = [1 + rng.below(5) as i64, n];
        let text = match rng.below(2) {
            0 => softmax(shape),
            _ => variance(shape),
        };
        let graph = parsed(&text);
        let made = long_rows::run(&graph, &gpu).expect("it types");
        cut += usize::from(made.to_string() != graph.to_string());
        let mut x = HostTensor::zeros(DType::F32, &[shape[0] as usize, n as usize]).expect("a tensor");
        let special = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN, -0.0, 1e4, -1e4];
        let (kind, often) = (rng.below(7), [1, 3, 500][rng.below(3)]);
        for k in 0..x.len() {
            let plain = rng.below(1000) as f64 / 100.0 - 5.0;
            let value = match special.get(kind) {
                Some(&value) if rng.below(often) == 0 => value,
                _ => plain,
            };
            x.set(k, Scalar::from_f64(DType::F32, value));
        }
        let mut b = HostTensor::zeros(DType::F32, &[n as usize]).expect("a tensor");
        let hidden = rng.below(n as usize + 1);
        (0..hidden).for_each(|k| {
            b.set(
                k,
                Scalar::from_f64(DType::F32, special[usize::from(round % 3 == 0) * 3]),
            )
        });
        let inputs = [x, b];
        let [rows, pieces] = [&graph, &made].map(|g| interpret(g, &inputs, &Meaning::default()).expect("results"));
        for (a, b) in rows.iter().zip(&pieces) {
            for k in 0..a.len() {
                let [a, b] = [a, b].map(|t| t.get(k).as_f64());
                let near = (a - b).abs() <= 1e-3 * a.abs().max(1e-30);
                assert!(
                    a == b || a.is_nan() && b.is_nan() || near,
                    "{k}: {a} and {b} of\n{text}\n{made}"
                );
            }
        }
    }
    assert!(cut > 50, "{cut}");
}

/// Short rows, rows on a host, and sums that wait for nothing of their row stay whole.
#[test]
fn other_rows_stay_as_they_are() {
    let stays = |text: &str| {
        let graph = parsed(text);
        long_rows::run(&graph, &large()).expect("it types").to_string() == graph.to_string()
    };
    assert!(stays(&softmax([512, 50_000])) && stays(&squares([512, 65_536])));
    assert!(!stays(&softmax([512, 60_000])) && !stays(&softmax([4, 20_000])));
}
