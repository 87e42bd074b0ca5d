//! Sizes that data decides: from recording to a run, and through everything that depends on them.

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input, concat, outputs};
use tlc_ir::graph::verify::verify;
use tlc_ir::interp::{Options, interpret};
use tlc_ir::text::{difference, no_data, parse_graph, parse_module};

fn compiled(g: &Graph, threads: usize) -> Executable {
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap()
}

/// Runs several inputs through one executable of one thread and one of two: the interpreter's results each time. Text forms
/// of graph and plan survive.
fn check(g: &Graph, all: &[Vec<HostTensor>]) -> Vec<Vec<HostTensor>> {
    let graph = g.finish().unwrap();
    assert!(verify(&graph).is_empty(), "{:?}", verify(&graph));
    let again = parse_graph(&graph.to_string(), &mut no_data).unwrap_or_else(|e| panic!("{graph}\n{e:?}"));
    assert_eq!(difference(&graph, &again), None);
    let executables = [compiled(g, 1), compiled(g, 2)];
    let plan = executables[0].plan().to_string();
    let read = parse_module(&plan, &mut no_data).unwrap_or_else(|e| panic!("{plan}\n{e:?}"));
    assert_eq!(read.plans[0].to_string(), plan);
    let report = tlc_ir::plan::verify::verify(executables[0].plan());
    assert!(report.errors.is_empty(), "{:?}\n{plan}", report.errors);
    let mut out = Vec::new();
    for inputs in all {
        let right = interpret(&graph, inputs, &Options::default()).unwrap();
        for e in &executables {
            let found = e.run(&inputs.iter().map(Input::from).collect::<Vec<_>>()).unwrap();
            for (found, right) in found.iter().zip(&right) {
                assert_eq!(found.to_host(), *right, "output {}", found.name);
            }
        }
        let planned = tlc_ir::plan::interp::interpret(executables[0].plan(), None, inputs).unwrap();
        let layout = executables[0].layout(&given(inputs)).unwrap();
        assert_eq!(planned, right);
        let placed = tlc_ir::plan::interp::interpret(executables[0].plan(), Some(&layout), inputs).unwrap();
        assert_eq!(placed, right);
        out.push(right);
    }
    out
}

fn given(inputs: &[HostTensor]) -> Vec<Input<'_>> {
    inputs.iter().map(Input::from).collect()
}

fn f32s(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).unwrap()
}

#[test]
fn everything_behind_a_nonzero_has_its_actual_size() {
    let g = Graph::new("picked");
    let n = g.symbol("n", 0..=64);
    let x = g.input("x", DType::F32, [n, 3.into()]);
    let keep = x.sum(-1).gt(0.0);
    let places = keep.nonzero();
    let rows = x.take(&places.select_index(0, 0), 0);
    g.output("places", &places);
    g.output("rows", &rows);
    // Elementwise, a reduction over the unknown axis, a product, something of that size that no data reaches.
    g.output("scaled", &(&rows * 2.0 + 1.0));
    g.output("sum", &rows.sum(0));
    g.output("gram", &rows.matmul(&rows.transpose()));
    let count = rows.dim(0);
    g.output("numbers", &g.range(&count, DType::I64));
    g.output("joined", &concat(&[&rows, &x], 0));
    let inputs = |rows: usize, seed: usize| {
        let data: Vec<f32> = (0..rows * 3).map(|i| ((i * 7 + seed) % 5) as f32 - 2.0).collect();
        vec![f32s(&[rows, 3], &data)]
    };
    let all: Vec<Vec<HostTensor>> = [(5, 0), (5, 1), (0, 0), (64, 3), (1, 0), (5, 0), (33, 2)]
        .into_iter()
        .map(|(n, s)| inputs(n, s))
        .collect();
    check(&g, &all);
}

#[test]
fn two_unknown_sizes_that_must_agree_are_checked_when_both_are_known() {
    let g = Graph::new("pairs");
    let (a, b) = (g.input("a", DType::F32, [6]), g.input("b", DType::F32, [6]));
    let pick = |x: &tlc::Tensor| x.take(&x.nonzero().select_index(0, 0), 0);
    g.output("sum", &(pick(&a) + pick(&b)));
    let x = f32s(&[6], &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0]);
    let y = f32s(&[6], &[0.0, 5.0, 0.0, 6.0, 0.0, 7.0]);
    let found = check(&g, &[vec![x.clone(), y]]);
    assert_eq!(found[0][0], f32s(&[3], &[6.0, 8.0, 10.0]));
    let other = f32s(&[6], &[1.0; 6]);
    let e = compiled(&g, 1);
    let error = e.run(&[(&x).into(), (&other).into()]).unwrap_err().to_string();
    assert!(error.contains("which the inputs' shapes do not satisfy"), "{error}");
    // The executable goes on.
    assert!(e.run(&[(&x).into(), (&x).into()]).is_ok());
}

#[test]
fn unique_is_numpy_s() {
    let data = [3.0, 1.0, f32::NAN, 1.0, -0.0, 0.0, f32::NAN, 3.0];
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
        for sorted in [false, true] {
            let g = Graph::new("distinct");
            let x = g.input("x", DType::F32, [8]).cast(dtype);
            let u = x.unique(None, sorted);
            for (name, t) in [
                ("values", &u.values),
                ("first", &u.first),
                ("inverse", &u.inverse),
                ("counts", &u.counts),
            ] {
                g.output(name, t);
            }
            let graph = g.finish().unwrap();
            let right = interpret(&graph, &[f32s(&[8], &data)], &Options::default()).unwrap();
            let found = compiled(&g, 1).run(&[(&f32s(&[8], &data)).into()]).unwrap();
            for (f, r) in found.iter().zip(&right) {
                assert_eq!(f.bytes(), r.bytes());
            }
            if dtype == DType::F32 && sorted {
                // np.unique(x, True, True, True)
                assert_eq!(right[1].as_slice::<i64>(), Some(&[4, 1, 0, 2][..]));
                assert_eq!(right[2].as_slice::<i64>(), Some(&[2, 1, 3, 1, 0, 0, 3, 2][..]));
                assert_eq!(right[3].as_slice::<i64>(), Some(&[2, 2, 2, 2][..]));
            }
        }
    }
}

#[test]
fn distinct_rows_and_columns() {
    for axis in [0, 1] {
        let g = Graph::new("rows");
        let x = g.input("x", DType::I32, [4, 4]);
        let u = x.unique(Some(axis), true);
        g.output("values", &u.values);
        g.output("back", &u.values.take(&u.inverse, axis));
        let data = [1, 0, 1, 0, 1, 0, 1, 0, 2, 3, 2, 3, 1, 0, 1, 0];
        let x = HostTensor::from_slice(&[4, 4], &data).unwrap();
        let found = check(&g, &[vec![x.clone()]]);
        assert_eq!(found[0][1], x);
        assert_eq!(found[0][0].shape()[axis as usize], 2);
    }
}

#[test]
fn buffers_of_the_caller_have_room_for_the_largest() {
    let g = Graph::new("into");
    let x = g.input("x", DType::I64, [4]);
    g.output("places", &x.nonzero());
    let e = compiled(&g, 1);
    let x = HostTensor::from_slice(&[4], &[0i64, 5, 0, 7]).unwrap();
    let given = given(std::slice::from_ref(&x));
    assert_eq!(e.output_shapes(&given).unwrap(), [vec![1, 4]]);
    // Room for four places.
    let mut places = [0i64; 4];
    let shapes = e.run_into_shaped(&given, &mut outputs![&mut places]).unwrap();
    assert_eq!(shapes, [vec![1, 2]]);
    assert_eq!(places[..2], [1, 3]);
}

#[test]
fn a_size_that_data_decides_cannot_be_used_before_it_is_known() {
    let text = "graph @early(%x: f32[k]) where k upto 4 {
  return %x
}
";
    assert!(parse_graph(text, &mut no_data).is_err() || !verify(&parse_graph(text, &mut no_data).unwrap()).is_empty());
}

#[test]
fn no_input_or_state_is_as_large_as_data_decides() {
    let recorded = |f: &dyn Fn(&Graph, &tlc::Dim)| {
        let g = Graph::new("found");
        let count = g.input("x", DType::I64, [6]).nonzero().dim(1);
        f(&g, &count);
        g.errors().first().map(ToString::to_string).unwrap_or_default()
    };
    let input = recorded(&|g, n| drop(g.input("y", DType::F32, [n.clone()])));
    assert!(input.contains("data decides an extent"), "{input}");
    let state = recorded(&|g, n| drop(g.state("y", DType::F32, [n * 2])));
    assert!(state.contains("data decides an extent"), "{state}");

    let mut g = tlc_ir::Graph::new("found");
    let ty = |d: tlc_ir::IndexExpr| tlc_ir::TensorType::new(DType::I64, [d]);
    let x = g.add_input("x", ty(4.into()), tlc_ir::graph::Origin::Unknown).unwrap();
    let count = g.add_data_symbol("k", 4.into());
    let call = tlc_ir::NodeKind::Call(tlc_ir::graph::HostFunction::NonZero { count });
    g.add(call, &[x], tlc_ir::graph::Origin::Unknown).unwrap();
    let y = g
        .add_input("y", ty(count.into()), tlc_ir::graph::Origin::Unknown)
        .unwrap();
    g.add_output("y", y);
    let errors: Vec<String> = verify(&g).iter().map(ToString::to_string).collect();
    assert!(
        errors.len() == 1 && errors[0].contains("data decides an extent of an input"),
        "{errors:?}"
    );
}

/// Sizes that are 0 whatever happens, by which places are divided where there is none.
#[test]
fn sizes_that_are_always_zero() {
    let g = Graph::new("nothing");
    let x = g.input("x", DType::U16, [4, 0]);
    let places = x.nonzero();
    let count = places.dim(1);
    g.output("flat", &places.reshape([&count * 2]));
    g.output("sum", &places.sum(1));
    let none = HostTensor::zeros(DType::U16, &[4, 0]).unwrap();
    let found = check(&g, &[vec![none]]);
    assert_eq!(found[0][0].shape(), [0]);
    assert_eq!(found[0][1].as_slice::<i64>(), Some(&[0i64, 0][..]));

    let g = Graph::new("no row");
    let n = g.symbol("n", 0..=0);
    let x = -g.input("x", DType::I32, [4.into(), n.clone()]);
    g.output("flat", &x.reshape([&n * 4]));
    g.output("columns", &x.transpose().reshape([&n * 2, 2.into()]));
    // Rows of columns that are added up.
    let rows = g.input("rows", DType::F32, [n, 64.into()]);
    g.output("none", &rows.sum(0));
    let none = HostTensor::zeros(DType::I32, &[4, 0]).unwrap();
    let found = check(&g, &[vec![none, f32s(&[0, 64], &[])]]);
    assert_eq!(found[0][0].shape(), [0]);
    assert_eq!(found[0][1].shape(), [0, 2]);
    assert_eq!(found[0][2], f32s(&[64], &[0.0; 64]));
}

/// A remainder of a size may be larger than that of the most.
#[test]
fn a_size_within_one_that_grows_where_data_finds_less() {
    let text = "graph @rest(%x: i64[n]) where n in 0..=9, k upto n, d upto mod(k, 4) {
  %0 = call nonzero %x {count=k} : (i64[1, k], i64[])
  %1 = iota {axis=0} : i64[mod(k, 4)]
  %2 = call unique %1 {sorted, count=d} : (i64[d], i64[d], i64[mod(k, 4)], i64[d], i64[])
  %3 = project %2 {result=0} : i64[d]
  %4 = neg %3 : i64[d]
  return %4
}
";
    let graph = parse_graph(text, &mut no_data).unwrap();
    let executable = tlc::compile_ir(&graph, &CompileOptions::default()).unwrap();
    for (zeros, expected) in [(0, vec![]), (1, vec![0i64, -1, -2]), (2, vec![0, -1]), (4, vec![])] {
        let x: Vec<i64> = (0..4).map(|i| i64::from(i >= zeros)).collect();
        let x = HostTensor::from_slice(&[4], &x).unwrap();
        let right = interpret(&graph, std::slice::from_ref(&x), &Options::default()).unwrap();
        assert_eq!(right[0].as_slice::<i64>(), Some(&expected[..]));
        assert_eq!(executable.run(&[(&x).into()]).unwrap()[0].to_host(), right[0]);
        let planned = tlc_ir::plan::interp::interpret(executable.plan(), None, &[x]).unwrap();
        assert_eq!(planned, right);
    }
}

/// So may it inside of a loop, and of a loop in that one.
#[test]
fn a_size_in_loops_that_grows_where_data_finds_less() {
    let text = "graph @rest(%x: i64[n]) where n in 0..=64, k upto n {
  %0 = call nonzero %x {count=k} : (i64[1, k], i64[])
  %1 = const 1 : i64[]
  %2 = expand %1 : i64[mod(k, 3) + 1]
  %3 = loop %2 {trip=2, carried=1, symbols=[n, k]} body @outer(%i: i64[], %a: i64[mod(k, 3) + 1]) where n in 0..=64, k in 0..=64 {
    %0 = call sort %a {axis=0, count=mod(k, 3) + 1} : (i64[mod(k, 3) + 1], i64[mod(k, 3) + 1])
    %1 = project %0 {result=0} : i64[mod(k, 3) + 1]
    %2 = loop %1 {trip=2, carried=1, symbols=[k]} body @inner(%j: i64[], %b: i64[mod(k, 3) + 1]) where k in 0..=64 {
      %0 = add %b, %b : i64[mod(k, 3) + 1]
      %1 = call sort %0 {axis=0, count=mod(k, 3) + 1} : (i64[mod(k, 3) + 1], i64[mod(k, 3) + 1])
      %2 = project %1 {result=0} : i64[mod(k, 3) + 1]
      return %2
    } : (i64[mod(k, 3) + 1])
    %3 = project %2 {result=0} : i64[mod(k, 3) + 1]
    return %3
  } : (i64[mod(k, 3) + 1])
  %4 = project %3 {result=0} : i64[mod(k, 3) + 1]
  %5 = project %0 {result=0} : i64[1, k]
  return %4, %5
}
";
    let graph = parse_graph(text, &mut no_data).unwrap();
    let executable = tlc::compile_ir(&graph, &CompileOptions::default()).unwrap();
    let printed = executable.plan().to_string();
    let read = parse_module(&printed, &mut no_data).unwrap_or_else(|e| panic!("{printed}\n{e:?}"));
    assert_eq!(read.plans[0].to_string(), printed);
    for n in [30, 64] {
        for found in [0, 1, 2, 3, 4, 5, 29, 30] {
            let x: Vec<i64> = (0..n).map(|i| i64::from(i < found)).collect();
            let x = HostTensor::from_slice(&[n as usize], &x).unwrap();
            let right = interpret(&graph, std::slice::from_ref(&x), &Options::default()).unwrap();
            assert_eq!(right[0].as_slice::<i64>(), Some(&vec![16; found as usize % 3 + 1][..]));
            assert_eq!(executable.run(&[(&x).into()]).unwrap()[0].to_host(), right[0]);
            let layout = executable.layout(&[(&x).into()]).unwrap();
            for placed in [None, Some(&layout)] {
                let planned =
                    tlc_ir::plan::interp::interpret(executable.plan(), placed, std::slice::from_ref(&x)).unwrap();
                assert_eq!(planned, right);
            }
        }
    }
}

#[test]
fn what_data_alone_decides_has_a_value_at_once() {
    let g = Graph::new("eval");
    // Neither sizes nor inputs that the value does not need matter.
    let n = g.symbol("n", 1..=4);
    g.input("unused", DType::F32, [&n]).nonzero();
    let x = g.constant([0.0f32, 3.0, -1.0, 0.0, 3.0, f32::NAN]);
    let places = x.nonzero();
    let found = places.eval().unwrap();
    assert_eq!(
        (found.shape(), found.as_slice()),
        (&[1, 4][..], Ok(&[1i64, 2, 4, 5][..]))
    );
    let unique = x.unique(None, true);
    let values = unique.values.slice(..3).eval().unwrap();
    assert_eq!(values.as_slice(), Ok(&[-1.0f32, 0.0, 3.0][..]));
    assert_eq!(unique.counts.eval().unwrap().as_slice(), Ok(&[1i64, 2, 2, 1][..]));
    assert_eq!(unique.first.eval().unwrap().as_slice(), Ok(&[2i64, 0, 1, 5][..]));
    assert_eq!(
        unique.inverse.eval().unwrap().as_slice(),
        Ok(&[1i64, 2, 0, 1, 2, 3][..])
    );
    // A size that follows from another one, beside a constant, and in a loop.
    let kept = x.take(&places.select_index(0, 0), 0).cast(DType::I32);
    let joined = concat(&[&kept.unique(None, false).values, &g.constant([7i32])], 0);
    assert_eq!(joined.eval().unwrap().as_slice(), Ok(&[3i32, -1, 0, 7][..]));
    let doubled = g.repeat(2).carry(&kept).record(|i| vec![&i.carried[0] * 2]).remove(0);
    assert_eq!(doubled.eval().unwrap().as_slice(), Ok(&[12i32, -4, 12, 0][..]));
    let boxes = g.constant([[[0.0f32, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [2.0, 2.0, 3.0, 3.0]]]);
    let scores = g.constant([[[0.5f32, 0.9, 0.7]]]);
    let (most, half) = (g.scalar(9, DType::I64), g.scalar(0.5, DType::F32));
    let taken = boxes.suppress(&scores, &most, &half, &g.scalar(0.1, DType::F32), false);
    assert_eq!(taken.eval().unwrap().as_slice(), Ok(&[0i64, 0, 1, 0, 0, 2][..]));
    // Of no elements, and none of them.
    let empty = g.zeros([0], DType::F32);
    assert_eq!(empty.nonzero().eval().unwrap().shape(), [1, 0]);
    assert_eq!(empty.unique(None, true).values.eval().unwrap().shape(), [0]);
    assert_eq!(g.zeros([2, 3], DType::I8).nonzero().eval().unwrap().shape(), [2, 0]);
    assert_eq!(g.scalar(2, DType::I8).nonzero().eval().unwrap().shape(), [0, 1]);
}

#[test]
fn a_loop_has_a_value_beside_sizes_that_it_does_not_use() {
    let g = Graph::new("eval");
    let n = g.symbol("n", 1..=4);
    let x = g.constant([1.0f32, 2.0]);
    let y = g.repeat(3).carry(&x).record(|i| vec![&i.carried[0] + 1.0]).remove(0);
    assert_eq!(y.eval().unwrap().as_slice(), Ok(&[4.0f32, 5.0][..]));
    for needs in [
        g.repeat(&n).carry(&x).record(|i| vec![&i.carried[0] + 1.0]).remove(0),
        g.repeat(3)
            .carry(&x)
            .record(|i| vec![&i.carried[0] + i.graph().ones(&n, DType::F32).sum(0)])
            .remove(0),
        g.ones(&n, DType::F32).nonzero(),
    ] {
        let error = needs.eval().unwrap_err().to_string();
        assert_eq!(
            error,
            "the value depends on the size `n`: compile the graph and give it one"
        );
    }
}

/// Norms have a derivative of their own, in a region: whatever decides their sizes.
#[test]
fn norms_of_what_data_picks() {
    let g = Graph::new("normalized");
    let n = g.symbol("n", 0..=64);
    let x = g.input("x", DType::F32, [n, 3.into()]);
    let rows = x.select_index(1, 0).gt(0.0).nonzero().select_index(0, 0);
    let picked = x.take(&rows, 0);
    g.output("layer", &picked.layer_norm(None, None, 1e-5));
    g.output("relu", &picked.relu());
    let (mean, var) = (g.zeros(3, DType::F32), g.ones(3, DType::F32));
    let (y, mean, _) = picked.batch_norm_train(&mean, &var, None, None, 0.1, 1e-5);
    g.output("batch", &y);
    g.output("mean", &mean);
    let d = tlc::grad(&(picked.layer_norm(None, None, 1e-5).exp().sum(..)), &[&x]);
    g.output("d", &d[0]);
    let x = [1.0f32, 2.0, 4.0, -1.0, 0.0, 3.0, 2.0, 2.5, -7.0, 0.5, 0.25, 8.0];
    let graph = g.finish().unwrap();
    for (inputs, picked) in [([f32s(&[4, 3], &x)], 3), ([f32s(&[1, 3], &[-1.0, 2.0, 3.0])], 0)] {
        let right = interpret(&graph, &inputs, &Options::default()).unwrap();
        assert_eq!(right[0].shape(), [picked, 3]);
        for threads in [1, 2] {
            for (found, right) in compiled(&g, threads).run(&given(&inputs)).unwrap().iter().zip(&right) {
                let found = found.to_host();
                assert_eq!(found.shape(), right.shape());
                for i in 0..right.len() {
                    let (v, of) = (found.get(i).as_f64(), right.get(i).as_f64());
                    assert!(
                        (v - of).abs() <= 1e-5 * of.abs().max(1.0) || v.is_nan() && of.is_nan(),
                        "{v} for {of}"
                    );
                }
            }
        }
    }
}
