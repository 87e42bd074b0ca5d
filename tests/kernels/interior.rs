//! Padding between elements, and that it undoes slices with steps: against loops that say what it is, on one thread and several.

use tlc::{CompileOptions, DType, Graph, HostTensor, Input, Scalar, Tensor, compile_ir};
use tlc_ir::interp::{self, interpret};
use tlc_ir::text::{no_data, parse_graph};

fn numbers(dtype: DType, shape: &[usize]) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..out.len() {
        out.set(i, Scalar::from_i64(dtype, 1 + (i as i64 * 29 + 7) % 97));
    }
    out
}

fn numbers_of<T: TryFrom<i64, Error: std::fmt::Debug>>(x: &HostTensor) -> Vec<T> {
    (0..x.len()).map(|i| x.get(i).as_i64().try_into().unwrap()).collect()
}

/// The definition: a tensor of fill values, in which each element is put in its place.
fn padded(x: &HostTensor, pads: &[(usize, usize)], interior: &[usize], fill: Scalar) -> HostTensor {
    let extent = |a: usize| match x.shape()[a] {
        0 => pads[a].0 + pads[a].1,
        d => pads[a].0 + d + (d - 1) * interior[a] + pads[a].1,
    };
    let shape: Vec<usize> = (0..pads.len()).map(extent).collect();
    let mut out = HostTensor::zeros(x.dtype(), &shape).unwrap();
    (0..out.len()).for_each(|i| out.set(i, fill));
    for i in 0..x.len() {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for a in (0..shape.len()).rev() {
            let index = rest % x.shape()[a];
            rest /= x.shape()[a];
            at += (pads[a].0 + index * (interior[a] + 1)) * stride;
            stride *= shape[a];
        }
        out.set(at, x.get(i));
    }
    out
}

fn run(graph: &tlc_ir::Graph, inputs: &[HostTensor], threads: usize) -> Vec<HostTensor> {
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    let executable = compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
    let outputs = executable.run(&given).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    outputs.iter().map(|o| o.to_host()).collect()
}

/// Compiled for some numbers of threads, and interpreted.
fn everywhere(graph: &tlc_ir::Graph, inputs: &[HostTensor]) -> HostTensor {
    let expected = interpret(graph, inputs, &interp::Options::default()).unwrap();
    for threads in [1, 2, 3] {
        assert_eq!(run(graph, inputs, threads), expected, "{threads} threads\n{graph}");
    }
    expected.into_iter().next().unwrap()
}

type Sides = [(usize, usize)];

#[test]
fn elements_stand_apart() {
    let cases: &[(&[usize], &Sides, &[usize])] = &[
        (&[5], &[(0, 0)], &[1]),
        (&[5], &[(2, 1)], &[3]),
        (&[1], &[(1, 2)], &[7]),
        (&[0], &[(1, 2)], &[7]),
        (&[0], &[(0, 0)], &[2]),
        (&[3, 4], &[(0, 1), (2, 0)], &[2, 0]),
        (&[3, 4], &[(1, 0), (0, 3)], &[0, 1]),
        (&[3, 0], &[(1, 0), (0, 3)], &[2, 4]),
        (&[1, 6], &[(0, 0), (0, 0)], &[5, 2]),
        (&[2, 3, 4], &[(1, 1), (0, 0), (2, 2)], &[1, 2, 3]),
        // Enough for lanes and threads.
        (&[4001], &[(0, 0)], &[1]),
        (&[4001], &[(3, 2)], &[2]),
        (&[61, 67], &[(1, 0), (0, 5)], &[1, 1]),
        (&[64, 64], &[(0, 0), (0, 0)], &[0, 3]),
        (&[1000, 3], &[(0, 0), (1, 1)], &[7, 0]),
    ];
    for &(shape, pads, interior) in cases {
        for dtype in [
            DType::F32,
            DType::F64,
            DType::I64,
            DType::U8,
            DType::BF16,
            DType::F8E4M3FN,
            DType::Bool,
        ] {
            let g = Graph::new("pad");
            let x = g.input("x", dtype, shape.to_vec());
            let fill = Scalar::from_i64(dtype, 1);
            g.output("y", &x.pad_interior(pads, interior, fill));
            let input = numbers(dtype, shape);
            let expected = padded(&input, pads, interior, fill);
            let found = everywhere(&g.finish().unwrap(), &[input]);
            assert_eq!(found, expected, "{dtype} {shape:?} {pads:?} {interior:?}");
        }
    }
}

#[test]
fn what_is_computed_around_is_masked_as_well() {
    for shape in [[3, 5], [40, 129], [1, 1]] {
        let g = Graph::new("fused");
        let x = g.input("x", DType::I32, shape.to_vec());
        let apart = (&x * 3 + 1).pad_interior(&[(1, 2), (0, 3)], &[1, 2], 5);
        g.output("doubled", &(&apart + &apart));
        g.output("sums", &apart.sum(1));
        g.output("columns", &apart.permute([1, 0]).sum(-1));
        g.output("twice", &apart.pad_interior(&[(0, 1), (2, 0)], &[2, 1], 9));
        let input = numbers(DType::I32, &shape);
        let mut inner = input.clone();
        for i in 0..inner.len() {
            inner.set(i, Scalar::from_i64(DType::I32, inner.get(i).as_i64() * 3 + 1));
        }
        let inner = padded(&inner, &[(1, 2), (0, 3)], &[1, 2], Scalar::from_i64(DType::I32, 5));
        let (rows, columns) = (inner.shape()[0], inner.shape()[1]);
        let at = |r: usize, c: usize| inner.get(r * columns + c).as_i64() as i32;
        let graph = g.finish().unwrap();
        everywhere(&graph, std::slice::from_ref(&input));
        let outputs = run(&graph, &[input], 2);
        let all: Vec<i32> = (0..rows * columns).map(|i| 2 * at(i / columns, i % columns)).collect();
        assert_eq!(numbers_of::<i32>(&outputs[0]), all);
        let sums: Vec<i32> = (0..rows).map(|r| (0..columns).map(|c| at(r, c)).sum()).collect();
        assert_eq!(numbers_of::<i32>(&outputs[1]), sums);
        let sums: Vec<i32> = (0..columns).map(|c| (0..rows).map(|r| at(r, c)).sum()).collect();
        assert_eq!(numbers_of::<i32>(&outputs[2]), sums);
        let twice = padded(&inner, &[(0, 1), (2, 0)], &[2, 1], Scalar::from_i64(DType::I32, 9));
        assert_eq!(outputs[3], twice);
    }
}

/// The adjoint of a slice: what stands at `start + i * step` gets element `i`, everything else 0. For a negative step the
/// elements are turned around first.
fn adjoint_of_slice(y: &Tensor, extent: usize, start: usize, step: i64, size: usize) -> Tensor {
    let apart = step.unsigned_abs() as usize;
    let span = if size == 0 { 0 } else { (size - 1) * apart + 1 };
    let (y, first) = match step > 0 || size == 0 {
        true => (y.clone(), if size == 0 { 0 } else { start }),
        false => (y.flip([0]), start + 1 - span),
    };
    y.pad_interior(&[(first, extent - first - span)], &[apart - 1], 0)
}

#[test]
fn interior_padding_is_the_adjoint_of_a_stepped_slice() {
    for (extent, start, step, size) in [
        (10, 1, 3, 3),
        (10, 9, -3, 3),
        (10, 9, -1, 10),
        (10, 0, 2, 5),
        (10, 4, 7, 1),
        (10, 4, -7, 1),
        (10, 3, 2, 0),
        (10, 3, -2, 0),
        (5000, 4999, -3, 1600),
        (5000, 2, 3, 1600),
    ] {
        let g = Graph::new("adjoint");
        let y = g.input("y", DType::I64, vec![size]);
        g.output("x", &adjoint_of_slice(&y, extent, start, step, size));
        let input = numbers(DType::I64, &[size]);
        let mut expected = vec![0i64; extent];
        for i in 0..size {
            expected[(start as i64 + i as i64 * step) as usize] = input.get(i).as_i64();
        }
        let found = everywhere(&g.finish().unwrap(), &[input]);
        assert_eq!(numbers_of::<i64>(&found), expected, "{extent} {start} {step} {size}");
    }
}

#[test]
fn symbolic_extents_may_be_nothing() {
    let text = "graph @g(%x: f32[n, m]) where n in 0..=50, m in 1..=50 {
  %0 = pad %x {lo=[m, 0], hi=[0, n], interior=[2, 1], value=-1.0} : f32[m + max(0, 3*n - 2), n + 2*m - 1]
  %1 = reduce add %0 {axes=[0]} : f32[n + 2*m - 1]
  return %0, %1
}
";
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]));
    assert_eq!(graph.to_string(), text);
    let fill = Scalar::from_f64(DType::F32, -1.0);
    for (n, m) in [(0, 1), (1, 1), (2, 5), (7, 3), (50, 50)] {
        let input = numbers(DType::F32, &[n, m]);
        let expected = padded(&input, &[(m, 0), (0, n)], &[2, 1], fill);
        assert_eq!(everywhere(&graph, &[input]), expected, "{n} {m}");
    }
}

#[test]
fn what_makes_no_padding_is_refused_or_goes() {
    let g = Graph::new("refused");
    let x = g.input("x", DType::F32, vec![2, 3]);
    let refused = |interior: &[usize]| {
        let g = Graph::new("refused");
        let x = g.input("x", DType::F32, vec![2, 3]);
        g.output("y", &x.pad_interior(&[(0, 0), (0, 0)], interior, 0.0));
        g.finish().unwrap_err().to_string()
    };
    assert!(refused(&[1]).contains("interior padding for 1 axes; expected one number per axis, 2"));
    assert!(refused(&[0, usize::MAX]).contains("expected 0 to 2147483647 between two elements"));
    assert!(refused(&[1 << 31, 0]).contains("interior padding 2147483648"));
    // No neighbours, nothing between them.
    let one = x.sum(0).reshape([3, 1]).pad_interior(&[(0, 0), (0, 0)], &[0, 9], 4.0);
    g.output("y", &one);
    let executable = g.compile(&CompileOptions::default()).unwrap();
    assert!(
        !executable.decisions().graph.to_string().contains("pad"),
        "{}",
        executable.decisions().graph
    );
}
