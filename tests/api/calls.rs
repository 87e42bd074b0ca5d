//! Inputs and outputs of calls.

use ndarray::{ArcArray2, Array1, Array2, Array3, Axis, Ix1, Ix2, IxDyn, arr0, array, s};
use tlc::{
    BuildError, CompileOptions, DType, Executable, Graph, HostTensor, Input, RunError, TensorView, inputs, outputs,
};

fn compiled(record: impl FnOnce(&Graph)) -> Executable {
    let g = Graph::new("test");
    record(&g);
    g.compile(&CompileOptions::default()).expect("it compiles")
}

/// `y = x`, computed.
fn same(dtype: DType, shape: &[usize]) -> Executable {
    compiled(|g| {
        let x = g.input("x", dtype, shape);
        g.output(
            "y",
            &x.reshape(shape.iter().rev().copied().collect::<Vec<_>>())
                .reshape(shape),
        );
    })
}

fn error(result: Result<tlc::Outputs, RunError>) -> String {
    result.expect_err("it is wrong").to_string()
}

#[test]
fn inputs_are_made_from_slices_vectors_scalars_and_arrays_of_any_strides() {
    let e = same(DType::I32, &[2, 3]);
    let rows = array![[1, 2, 3], [4, 5, 6]];
    let wide = array![[1, 9, 2, 9, 3, 9], [9, 9, 9, 9, 9, 9], [4, 9, 5, 9, 6, 9]];
    let fortran = Array2::from_shape_vec((3, 2), vec![1, 4, 2, 5, 3, 6])
        .unwrap()
        .reversed_axes();
    let shared: ArcArray2<i32> = rows.clone().into_shared();
    let flat = [1, 2, 3, 4, 5, 6];
    let vector = flat.to_vec();
    let host = HostTensor::from_slice(&[2, 3], &flat).unwrap();
    let upside_down = array![[6, 5, 4], [3, 2, 1]];
    let given: [Input<'_>; 16] = inputs![
        &flat,
        &flat[..],
        flat,
        flat.to_vec(),
        &vector,
        &[[1, 2, 3], [4, 5, 6]],
        [[1, 2, 3], [4, 5, 6]],
        &rows,
        rows.view(),
        rows.clone(),
        &shared,
        &fortran,
        fortran.clone(),
        wide.slice(s![..;2, ..;2]),
        upside_down.slice(s![..;-1, ..;-1]),
        &host,
    ];
    for input in given {
        let y = e
            .run(&[input.borrowed()])
            .unwrap_or_else(|error| panic!("{input:?}: {error}"));
        assert_eq!(y["y"].as_array::<i32, Ix2>().unwrap(), rows, "{input:?}");
        assert_eq!(input.to_host().unwrap().as_slice::<i32>().unwrap(), flat);
    }
    let last = rows.slice(s![1.., ..]);
    let y = e
        .run(&inputs![ndarray::concatenate![Axis(0), rows.slice(s![..1, ..]), last]])
        .unwrap();
    assert_eq!(y[0].as_slice::<i32>().unwrap(), flat);
}

#[test]
fn an_array_cut_out_of_its_memory_goes_in_as_what_it_is() {
    let mut cut = Array1::from_iter(0..10i64);
    cut.slice_collapse(s![3..7]);
    let e = same(DType::I64, &[4]);
    assert_eq!(
        e.run(&inputs![cut]).unwrap()[0].as_slice::<i64>().unwrap(),
        [3, 4, 5, 6]
    );
}

#[test]
fn an_array_that_is_borrowed_in_c_order_is_not_copied() {
    let (rows, flat) = (Array2::<f32>::zeros((4, 4)), vec![0f32; 16]);
    let columns = Array2::<f32>::zeros((4, 4)).reversed_axes();
    let bytes = |f: &mut dyn FnMut()| allocation_counter::measure(f).bytes_total;
    let in_place = bytes(&mut || drop(inputs![&rows, rows.view(), &flat, 1.0f32, rows.slice(s![1..3, ..])]));
    assert_eq!(in_place, 0);
    assert!(bytes(&mut || drop(inputs![&columns])) >= 64);
}

#[test]
fn scalars_and_rank_0_arrays_are_inputs_of_rank_0() {
    let e = compiled(|g| {
        let (a, b, c) = (
            g.input("a", DType::F64, ()),
            g.input("b", DType::F64, ()),
            g.input("c", DType::Bool, ()),
        );
        g.output("y", &c.select(&a + &b, -1.0));
    });
    let zero_d = arr0(0.5f64);
    for (b, expected) in [(true, 2.0), (false, -1.0)] {
        let y = e.run(&inputs![1.5, &zero_d, b]).unwrap();
        assert_eq!(y["y"].as_scalar::<f64>().unwrap(), expected);
        assert_eq!(y["y"].as_array::<f64, IxDyn>().unwrap().ndim(), 0);
    }
}

#[test]
fn bools_go_in_and_come_out() {
    let e = compiled(|g| {
        let x = g.input("x", DType::Bool, [2, 2]);
        g.output("not", &x.logical_not());
    });
    let x = array![[true, false], [false, false]];
    let outputs = e.run(&inputs![&x]).unwrap();
    assert_eq!(outputs["not"].as_array::<bool, Ix2>().unwrap(), x.mapv(|b| !b));
    assert_eq!(outputs["not"].as_slice::<bool>().unwrap(), [false, true, true, true]);
    assert!(outputs["not"].as_slice::<u8>().is_err(), "they are not numbers");
    let (mut slice, mut columns) = ([true; 4], Array2::from_elem((2, 2), false).reversed_axes());
    e.run_into(&inputs![x.t()], &mut outputs![&mut slice]).unwrap();
    assert_eq!(slice, [false, true, true, true]);
    e.run_into(&inputs![&[true, true, false, false]], &mut outputs![&mut columns])
        .unwrap();
    assert_eq!(columns, array![[false, false], [true, true]]);
}

#[test]
fn bytes_that_are_no_bools_are_never_seen_as_bools() {
    let mut host = HostTensor::from_slice(&[2], &[true, false]).unwrap();
    assert_eq!(host.as_slice::<bool>(), Some(&[true, false][..]));
    host.bytes_mut()[1] = 7;
    assert_eq!(host.as_slice::<bool>(), None);
    assert!(host.as_mut_slice::<bool>().is_none());
}

#[test]
fn results_have_a_type_that_is_checked() {
    let e = same(DType::F32, &[2, 3]);
    let y = e.run(&inputs![&[1.0f32; 6]]).unwrap().remove(0);
    let text = |e: tlc::WrongType| e.to_string();
    assert_eq!(
        text(y.as_slice::<f64>().unwrap_err()),
        "output `y`: expected elements of f64, found f32[2, 3]"
    );
    assert_eq!(
        text(y.as_array::<f32, Ix1>().unwrap_err()),
        "output `y`: expected f32 of 1 axes, found f32[2, 3]"
    );
    assert_eq!(
        text(y.as_scalar::<f32>().unwrap_err()),
        "output `y`: expected one element of f32, found f32[2, 3]"
    );
    assert_eq!(y.as_array::<f32, IxDyn>().unwrap().shape(), [2, 3]);
}

#[test]
fn calls_write_slices_arrays_and_views_of_any_strides() {
    let e = same(DType::F32, &[2, 3]);
    let x = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let flat: Vec<f32> = x.iter().copied().collect();
    let (mut array, mut vector, mut fixed) = (Array2::<f32>::zeros((2, 3)), vec![0f32; 6], [0f32; 6]);
    let mut columns = Array2::<f32>::zeros((3, 2)).reversed_axes();
    let mut host = HostTensor::zeros(DType::F32, &[2, 3]).unwrap();
    e.run_into(&inputs![&x], &mut outputs![&mut array]).unwrap();
    e.run_into(&inputs![&x], &mut outputs![&mut vector]).unwrap();
    e.run_into(&inputs![&x], &mut outputs![&mut fixed]).unwrap();
    e.run_into(&inputs![&x], &mut outputs![&mut columns]).unwrap();
    e.run_into(&inputs![&x], &mut outputs![&mut host]).unwrap();
    assert_eq!((&array, &vector, &fixed[..]), (&x, &flat, &flat[..]));
    assert_eq!(columns, x);
    assert_eq!(host.as_slice::<f32>().unwrap(), flat);
    let mut cube = Array3::<f32>::from_elem((2, 3, 2), -1.0);
    e.run_into(&inputs![&x], &mut outputs![cube.index_axis_mut(Axis(2), 1)])
        .unwrap();
    assert_eq!(cube.index_axis(Axis(2), 1), x);
    assert!(cube.index_axis(Axis(2), 0).iter().all(|&v| v == -1.0));
    let scalar = compiled(|g| g.output("sum", &g.input("x", DType::F32, [2]).sum(0)));
    let mut sum = 0f32;
    scalar
        .run_into(&inputs![&[1.0f32, 2.0]], &mut outputs![&mut sum])
        .unwrap();
    assert_eq!(sum, 3.0);
}

#[test]
fn memory_that_does_not_fit_a_result_is_refused_and_stays_as_it_was() {
    let e = same(DType::F32, &[2, 3]);
    let x = [1f32; 6];
    let (mut short, mut turned, mut other) = ([7f32; 5], Array2::<f32>::zeros((3, 2)), [0i32; 6]);
    let mut bools = [true; 6];
    let wrong = |mut outputs: [tlc::OutputMut<'_>; 1]| e.run_into(&inputs![&x], &mut outputs).unwrap_err().to_string();
    assert_eq!(
        wrong(outputs![&mut short]),
        "output `y`: expected 24 bytes aligned to 4, found 20"
    );
    assert_eq!(
        wrong(outputs![&mut turned]),
        "output `y`: expected an array of shape [2, 3], found [3, 2]"
    );
    assert_eq!(
        wrong(outputs![&mut other]),
        "output `y`: expected memory for f32, found i32"
    );
    assert_eq!(
        wrong(outputs![&mut bools]),
        "output `y`: expected memory for f32, found bool"
    );
    assert_eq!((short, bools), ([7.0; 5], [true; 6]));
}

#[test]
fn elements_without_a_shape_take_the_declared_one() {
    let e = compiled(|g| {
        let (n, m) = (g.symbol("n", 1..=100), g.symbol("m", 1..=100));
        let x = g.input("x", DType::F32, (&n, &m));
        let w = g.input("w", DType::F32, (&m, 2));
        let b = g.input("b", DType::F32, (3, &m * 2));
        g.output("y", &x.matmul(&w));
        g.output("z", &(&b * 2.0));
    });
    let (six, four, twelve) = ([1f32; 6], [1f32; 4], [1f32; 12]);
    let shapes = |inputs: &[Input<'_>]| {
        let outputs = e.run(inputs).map_err(|e| e.to_string())?;
        Ok::<_, String>((outputs[0].shape().to_vec(), outputs[1].shape().to_vec()))
    };
    let fits = Ok((vec![3, 2], vec![3, 4]));
    // One shape shows m, from which all others follow, wherever it stands.
    assert_eq!(shapes(&inputs![&six, &[[1f32; 2]; 2], &twelve]), fits);
    assert_eq!(shapes(&inputs![&[[1f32; 2]; 3], &four, &twelve]), fits);
    assert_eq!(
        shapes(&inputs![&six, &four, &twelve]),
        Err("input `x`: expected f32[n, m], whose extents do not follow from 6 elements".into())
    );
    assert_eq!(
        shapes(&inputs![&[1f32; 5], &[[1f32; 2]; 2], &twelve]),
        Err("input `x`: expected f32[n, m], whose extents do not follow from 5 elements".into())
    );
    assert_eq!(
        shapes(&inputs![&six, &[[1f32; 2]; 2], &six]),
        Err("input `b`: expected f32[3, 2*m], whose extents do not follow from 6 elements".into())
    );
    // An extent that is an expression is not solved for.
    let before = compiled(|g| {
        let m = g.symbol("m", 1..=100);
        g.output("y", &(g.input("b", DType::F32, (3, &m * 2)) * 2.0));
    });
    assert!(before.run(&inputs![&twelve]).is_err());
    // Sizes that the options give are known.
    let g = Graph::new("given");
    let (n, m) = (g.symbol("n", 1..=100), g.symbol("m", 1..=100));
    g.output("y", &(g.input("x", DType::F32, (&n, &m)) * 2.0));
    let options = CompileOptions {
        symbols: vec![("m".into(), 3)],
        ..CompileOptions::default()
    };
    assert_eq!(
        g.compile(&options).unwrap().run(&inputs![&six]).unwrap()[0].shape(),
        [2, 3]
    );
    // Zero rows are as many as there are elements; how many columns there are of none, nobody can tell.
    let e = compiled(|g| {
        let n = g.symbol("n", 0..=100);
        g.output("y", &(g.input("x", DType::F32, (&n, 2)) * 2.0));
        g.output("z", &(g.input("e", DType::F32, (0, &n)) * 2.0));
    });
    let none = [0f32; 0];
    assert_eq!(e.run(&inputs![&none, &none]).unwrap()[1].shape(), [0, 0]);
    assert!(e.run(&inputs![&[[0f32; 2]; 3], &none]).is_ok());
}

#[test]
fn inputs_and_outputs_have_names() {
    let e = compiled(|g| {
        let (a, b) = (g.input("a", DType::F32, [2]), g.input("b", DType::F32, [2]));
        g.output("quotient", &(&a / &b));
        g.output("difference", &(&a - &b));
    });
    let (a, b) = ([6f32, 8.0], [2f32, 4.0]);
    for outputs in [
        e.run_named(&inputs!["a" => &a, "b" => &b]).unwrap(),
        e.run_named(&inputs!["b" => &b, "a" => &a]).unwrap(),
        e.run(&inputs![&a, &b]).unwrap(),
    ] {
        assert_eq!(outputs["difference"].as_slice::<f32>().unwrap(), [4.0, 4.0]);
        assert_eq!(outputs["quotient"].as_slice::<f32>().unwrap(), [3.0, 2.0]);
        assert_eq!((outputs[1].name.as_str(), outputs.len()), ("difference", 2));
        assert!(outputs.named("sum").is_none());
    }
    assert_eq!(error(e.run_named(&inputs!["a" => &a])), "input `b` is missing");
    assert_eq!(
        error(e.run_named(&inputs!["a" => &a, "c" => &b])),
        "no input `c`; expected a, b"
    );
    assert_eq!(
        error(e.run_named(&inputs!["a" => &a, "b" => &b, "a" => &b])),
        "input `a` is given twice"
    );
    assert_eq!(error(e.run(&inputs![&a])), "the graph has 2 inputs, found 1");
    assert_eq!(error(e.run(&inputs![&a, &b, &b])), "the graph has 2 inputs, found 3");
    assert_eq!(
        error(e.run(&inputs![&a, &[2.0, 4.0]])),
        "input `b`: expected f32, found f64"
    );
}

#[test]
#[should_panic(expected = "no output `z`; expected y")]
fn a_name_that_no_result_has_panics_with_those_there_are() {
    let e = same(DType::F32, &[1]);
    let _ = &e.run(&inputs![&[1f32]]).unwrap()["z"];
}

#[test]
fn a_result_can_be_given_away_beside_other_inputs() {
    let e = compiled(|g| {
        let (state, gain) = (g.input("state", DType::F32, [2, 2]), g.input("gain", DType::F32, ()));
        g.output("next", &(&state * &gain));
    });
    let mut state = e.run(&inputs![&[1f32, 2.0, 3.0, 4.0], 2f32]).unwrap().remove(0);
    for _ in 0..3 {
        state = e.run_donating(inputs![state, 2f32]).unwrap().remove(0);
    }
    assert_eq!(state.as_slice::<f32>().unwrap(), [16.0, 32.0, 48.0, 64.0]);
    let y = e.run_donating(inputs![&[1f32; 4], 3f32]).unwrap();
    assert_eq!(y[0].as_slice::<f32>().unwrap(), [3.0; 4]);
}

#[test]
fn bytes_of_any_dtype_go_in_and_out() {
    let e = same(DType::BF16, &[2]);
    let x = [half::bf16::from_f32(1.5), half::bf16::from_f32(-2.0)];
    let view = TensorView {
        dtype: DType::BF16,
        shape: &[2],
        data: bytemuck::cast_slice(&x),
    };
    let y = e.run(&inputs![view]).unwrap();
    assert_eq!(y[0].as_slice::<half::bf16>().unwrap(), x);
    let y = e.run(&[Input::bytes(DType::BF16, &[2], y[0].bytes())]).unwrap();
    assert_eq!(y[0].as_slice::<half::bf16>().unwrap(), x);
    assert!(e.run(&[Input::bytes(DType::BF16, &[3], y[0].bytes())]).is_err());
    let mut words = [0u16; 2];
    let memory = tlc::OutputMut::bytes(DType::BF16, bytemuck::cast_slice_mut(&mut words));
    e.run_into(&inputs![&x], &mut [memory]).unwrap();
    assert_eq!(words, x.map(half::bf16::to_bits));
}

#[test]
fn an_executable_says_what_it_is_in_one_line() {
    let g = Graph::new("rows");
    let n = g.symbol("n", 1..=8);
    let x = g.input("x", DType::F32, (&n, 4));
    g.output("y", &x.sum(1));
    let e = g.compile(&CompileOptions::default()).unwrap();
    assert_eq!(
        format!("{e:?}"),
        "Executable(rows: (x: f32[n, 4]) -> (y: f32[n]), 1 kernel)"
    );
    let failed: Result<Executable, BuildError> = g.compile(&CompileOptions {
        passes: Some("nonsense".into()),
        ..CompileOptions::default()
    });
    assert!(failed.unwrap_err().to_string().contains("nonsense"));
}
