//! Shape arithmetic that is carried symbolically: one graph, right for every size, and refused where a guard says so.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Executable, HostTensor, Input, compile_ir};

use crate::proto::A::{I, T};
use crate::proto::*;

const DOUBLE: i64 = 11;

/// One compilation of nodes from `x` to `y`, with the constants.
fn compiled(nodes: Vec<Message>, constants: Vec<Message>, x: &[D]) -> Executable {
    let g = graph(
        nodes,
        constants,
        vec![value("x", FLOAT, x)],
        vec![value("y", FLOAT, &[])],
    );
    let imported = import(&model(g, vec![]), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(imported.fixed.is_empty());
    compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles")
}

/// The shape and elements of `y` for an `x` of 1, 2, 3, ...
fn run(executable: &Executable, shape: &[usize]) -> Result<(Vec<usize>, Vec<f32>), String> {
    let data: Vec<f32> = (1..=shape.iter().product()).map(|i: usize| i as f32).collect();
    let x = HostTensor::from_slice(shape, &data).expect("a tensor");
    let out = executable.run(&[Input::from(&x)]).map_err(|e| e.to_string())?;
    Ok((out[0].shape().to_vec(), out[0].as_slice::<f32>().expect("f32").to_vec()))
}

fn list(name: &str, data: &[i64]) -> Message {
    ints(name, &[data.len() as i64], data)
}

#[test]
fn padding_by_a_size_adds_or_takes_away() {
    // n - 3 before, nothing behind.
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Sub s three -> d", &[]),
        op("Concat d zero -> p", &[("axis", I(0))]),
        op("Pad x p -> y", &[]),
    ];
    let e = compiled(nodes, vec![list("three", &[3]), list("zero", &[0])], &[D::Sym("n")]);
    assert_eq!(run(&e, &[2]), Ok((vec![1], vec![2.0])));
    assert_eq!(run(&e, &[3]), Ok((vec![3], vec![1.0, 2.0, 3.0])));
    assert_eq!(run(&e, &[5]), Ok((vec![7], vec![0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0])));
}

#[test]
fn parts_of_sizes_are_sizes() {
    // A shape turned around, picked apart and put together, as ONNX Runtime writes several picks of one shape.
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Split s each -> a b c", &[]),
        op("Squeeze c first -> c0", &[]),
        op("Unsqueeze c0 first -> c1", &[]),
        op("Concat c1 a b -> t", &[("axis", I(0))]),
        op("Reshape x t -> y", &[]),
    ];
    let constants = vec![list("each", &[1, 1, 1]), list("first", &[0])];
    let e = compiled(nodes, constants, &[D::Sym("n"), D::Sym("m"), D::Sym("k")]);
    for [n, m, k] in [[2, 3, 4], [1, 5, 2]] {
        let numbers = (1..=n * m * k).map(|i| i as f32).collect();
        assert_eq!(run(&e, &[n, m, k]), Ok((vec![k, n, m], numbers)));
    }
}

/// Rows replaced in a batch of any size: exporters make the shape of the places to write to of the operand's, with one axis exchanged.
#[test]
fn a_shape_with_an_axis_exchanged_is_a_shape() {
    let nodes = |places: &str| {
        vec![
            op("Shape x -> s", &[]),
            op(&format!("ScatterElements s {places} one -> t"), &[]),
            op("Expand rows t -> r", &[]),
            op("Slice x zero one second -> v", &[]),
            op("ScatterElements x r v -> y", &[("axis", I(1))]),
        ]
    };
    let constants = vec![
        list("one", &[1]),
        list("zero", &[0]),
        list("second", &[1]),
        list("last", &[-1]),
        ints("rows", &[1, 1], &[2]),
    ];
    for places in ["second", "last"] {
        let e = compiled(nodes(places), constants.clone(), &[D::Sym("n"), D::N(3)]);
        for n in [0, 1, 2, 5] {
            let all = (0..n).flat_map(|i| [1, 2, 1].map(|k| (3 * i + k) as f32)).collect();
            assert_eq!(run(&e, &[n, 3]), Ok((vec![n, 3], all)), "{places}");
        }
    }
    // Which of two stays is not said, and sums are not carried: neither is a number.
    for (places, reduction) in [("twice", "none"), ("second", "add")] {
        let mut nodes = nodes(places);
        let updates = if places == "twice" { "ones" } else { "one" };
        nodes[1] = op(
            &format!("ScatterElements s {places} {updates} -> t"),
            &[("reduction", T(reduction))],
        );
        let mut constants = constants.clone();
        constants.extend([list("twice", &[1, 1]), list("ones", &[1, 1])]);
        let g = graph(
            nodes,
            constants,
            vec![value("x", FLOAT, &[D::Sym("n"), D::N(3)])],
            vec![value("y", FLOAT, &[])],
        );
        let error = import(&model(g, vec![]), &ImportOptions::default()).expect_err("it is refused");
        assert!(error.to_string().contains("which each call decides"), "{error}");
    }
}

#[test]
fn quotients_of_what_is_negative_for_small_sizes_have_a_guard() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Sub s one -> d", &[]),
        op("Div d eight -> q", &[]),
        op("Add q one -> t", &[]),
        op("ConstantOfShape t -> y", &[]),
    ];
    let e = compiled(nodes, vec![list("one", &[1]), list("eight", &[8])], &[D::Sym("n")]);
    for (n, parts) in [(1, 1), (8, 1), (9, 2), (17, 3)] {
        assert_eq!(run(&e, &[n]), Ok((vec![parts], vec![0.0; parts])));
    }
    // Rounded toward zero the quotient of -1 is 0: it is refused, not floored.
    assert!(run(&e, &[0]).expect_err("a guard").contains("needs"));
}

#[test]
fn remainders_and_quotients_by_sizes_are_those_of_integers() {
    for (name, left) in [("Mod", [0, 1, 2, 1, 0, 5]), ("Div", [5, 2, 1, 1, 1, 0])] {
        let nodes = vec![
            op("Shape x -> s", &[]),
            op(&format!("{name} five s -> t"), &[]),
            op("ConstantOfShape t -> y", &[]),
        ];
        let e = compiled(nodes, vec![list("five", &[5])], &[D::Sym("n")]);
        for (n, left) in (1..).zip(left) {
            assert_eq!(run(&e, &[n]), Ok((vec![left], vec![0.0; left])), "{name} {n}");
        }
        assert!(run(&e, &[0]).is_err(), "a divisor of 0");
    }
}

#[test]
fn a_range_of_floats_counts_down_from_a_size() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Squeeze s -> n", &[]),
        op("Sub n one -> last", &[]),
        op("Cast last -> start", &[("to", I(1))]),
        op("Range start minus minus -> y", &[]),
    ];
    let constants = vec![ints("one", &[], &[1]), floats("minus", &[], &[-1.0])];
    let e = compiled(nodes, constants, &[D::Sym("n")]);
    assert_eq!(run(&e, &[4]), Ok((vec![4], vec![3.0, 2.0, 1.0, 0.0])));
    assert_eq!(run(&e, &[1]), Ok((vec![1], vec![0.0])));
    assert_eq!(run(&e, &[0]), Ok((vec![0], vec![])));
}

/// As PyTorch exports `arange(n, -n, -1)`.
#[test]
fn steps_down_from_a_size_to_its_negative_are_counted_in_floats() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Squeeze s -> n", &[]),
        op("Neg n -> end", &[]),
        op("Cast n -> from", &[("to", I(1))]),
        op("Cast end -> to", &[("to", I(1))]),
        op("Sub to from -> length", &[]),
        op("Div length minus -> steps", &[]),
        op("Ceil steps -> whole", &[]),
        op("Cast whole -> count", &[("to", I(7))]),
        op("Range zero count one -> k", &[]),
        op("Cast k -> y", &[("to", I(1))]),
    ];
    let constants = vec![
        ints("zero", &[], &[0]),
        ints("one", &[], &[1]),
        floats("minus", &[], &[-1.0]),
    ];
    let e = compiled(nodes, constants, &[D::Sym("n")]);
    for n in [1, 2, 5] {
        let numbers = (0..2 * n).map(|k| k as f32).collect();
        assert_eq!(run(&e, &[n]), Ok((vec![2 * n], numbers)));
    }
    // Nothing divided by -1 would be -0.
    assert!(run(&e, &[0]).is_err());
}

/// As PyTorch exports `arange(n)` for opset 9: zeros of as many elements.
#[test]
fn a_size_as_a_float_less_nothing_is_the_size() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Cast s -> f", &[("to", I(1))]),
        op("Sub f zero -> length", &[]),
        op("Ceil length -> whole", &[]),
        op("Cast whole -> count", &[("to", I(7))]),
        op("ConstantOfShape count -> y", &[]),
    ];
    let e = compiled(nodes, vec![floats("zero", &[], &[0.0])], &[D::Sym("n")]);
    for n in [0, 1, 4] {
        assert_eq!(run(&e, &[n]), Ok((vec![n], vec![0.0; n])));
    }
}

/// Of a product of sizes that nothing bounds.
#[test]
fn numbers_that_a_size_is_taken_from_are_data() {
    let nodes = vec![
        op("Size x -> n", &[]),
        op("Max n four -> most", &[]),
        op("Sub three most -> d", &[]),
        op("Cast d -> y", &[("to", I(1))]),
    ];
    let constants = vec![ints("three", &[], &[3]), ints("four", &[], &[4])];
    let e = compiled(nodes, constants, &[D::Sym("a"), D::Sym("b"), D::N(3)]);
    assert_eq!(run(&e, &[1, 1, 3]), Ok((vec![], vec![-1.0])));
    assert_eq!(run(&e, &[2, 5, 3]), Ok((vec![], vec![-27.0])));
}

#[test]
fn a_triangle_starts_at_a_size() {
    for upper in [0, 1] {
        let nodes = vec![
            op("Shape x -> s", &[("start", I(1))]),
            op("Sub s three -> k", &[]),
            op("Trilu x k -> y", &[("upper", I(upper))]),
        ];
        let e = compiled(nodes, vec![list("three", &[3])], &[D::N(2), D::Sym("n")]);
        for n in [1, 2, 3, 5] {
            let keeps = |row: i64, column: i64| match upper {
                1 => column >= row + n - 3,
                _ => column <= row + n - 3,
            };
            let element = |i: i64| if keeps(i / n, i % n) { (i + 1) as f32 } else { 0.0 };
            let expected = (0..2 * n).map(element).collect();
            assert_eq!(
                run(&e, &[2, n as usize]),
                Ok((vec![2, n as usize], expected)),
                "{upper} {n}"
            );
        }
    }
}

#[test]
fn parts_of_shapes_end_at_the_largest_integer() {
    // [n, 2, 3] as [-1, 3], where 3 is what the shape ends with.
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Slice s last far -> t", &[]),
        op("Concat open t -> r", &[("axis", I(0))]),
        op("Reshape x r -> y", &[]),
    ];
    let constants = vec![list("last", &[-1]), list("far", &[i64::MAX]), list("open", &[-1])];
    let e = compiled(nodes, constants, &[D::Sym("n"), D::N(2), D::N(3)]);
    assert_eq!(run(&e, &[2, 2, 3]).expect("it runs").0, [4, 3]);
}

#[test]
fn a_matrix_of_sizes_is_turned_around_as_exporters_write_padding() {
    // Axes from the last, before and behind: (1, n), (0, 2).
    let nodes = vec![
        op("Shape x -> s", &[("start", I(0)), ("end", I(1))]),
        op("Concat one s zero two -> flat", &[("axis", I(0))]),
        op("Reshape flat pairs -> m", &[]),
        op("Slice m last low zero minus -> turned", &[]),
        op("Transpose turned -> t", &[]),
        op("Reshape t open -> p", &[]),
        op("Pad x p -> y", &[]),
    ];
    let constants = vec![
        list("zero", &[0]),
        list("one", &[1]),
        list("two", &[2]),
        list("pairs", &[-1, 2]),
        list("last", &[-1]),
        list("low", &[-i64::MAX]),
        list("minus", &[-1]),
        list("open", &[-1]),
    ];
    let e = compiled(nodes, constants, &[D::Sym("n"), D::N(2)]);
    let expected = vec![0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(run(&e, &[1, 2]), Ok((vec![3, 4], expected)));
    assert_eq!(run(&e, &[3, 2]).expect("it runs").0, [5, 6]);
}

/// Weights whose extents are symbols are taken to have those that the attributes say, and a call with others is refused.
#[test]
fn weights_of_symbolic_extents_have_those_that_the_operator_says() {
    let lstm = |dims: &[&[D]; 3]| {
        let attributes = [("hidden_size", I(2))];
        let inputs = ["x", "w", "r", "b"];
        let shapes = [&[D::N(3), D::N(1), D::N(1)], dims[0], dims[1], dims[2]];
        let inputs = inputs.iter().zip(shapes).map(|(name, dims)| value(name, FLOAT, dims));
        let g = graph(
            vec![op("LSTM x w r b -> y", &attributes)],
            vec![],
            inputs.collect(),
            vec![value("y", FLOAT, &[])],
        );
        let imported = import(&model(g, vec![]), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles")
    };
    let named: [&[D]; 3] = [
        &[D::Sym("a"), D::Sym("b"), D::Sym("c")],
        &[D::Sym("d"), D::Sym("e"), D::Sym("f")],
        &[D::Sym("g"), D::Sym("h")],
    ];
    let known: [&[D]; 3] = [
        &[D::N(1), D::N(8), D::N(1)],
        &[D::N(1), D::N(8), D::N(2)],
        &[D::N(1), D::N(16)],
    ];
    let run = |e: &Executable, rows: usize| {
        let shapes: [&[usize]; 4] = [&[3, 1, 1], &[1, rows, 1], &[1, rows, 2], &[1, 2 * rows]];
        let data = shapes.map(|shape| {
            let n = shape.iter().product::<usize>();
            let data: Vec<f32> = (0..n).map(|i| (i % 5) as f32 / 4.0 - 0.5).collect();
            HostTensor::from_slice(shape, &data).expect("a tensor")
        });
        let out = e.run(&data.each_ref().map(Input::from)).map_err(|e| e.to_string())?;
        Ok::<_, String>(out[0].as_slice::<f32>().expect("f32").to_vec())
    };
    let (named, known) = (lstm(&named), lstm(&known));
    assert_eq!(run(&named, 8), run(&known, 8));
    assert!(run(&named, 8).is_ok());
    assert!(run(&named, 12).is_err(), "rows of another hidden state");
}

#[test]
fn two_values_may_come_with_a_symbolic_extent_and_one_group_holds_all_channels() {
    let g = graph(
        vec![op("OneHot x depth v -> y", &[])],
        vec![list("depth", &[3])],
        vec![value("x", FLOAT, &[D::Sym("n")]), value("v", FLOAT, &[D::Sym("two")])],
        vec![value("y", FLOAT, &[])],
    );
    let imported = import(&model(g, vec![]), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let e = compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles");
    let tensor = |data: &[f32]| HostTensor::from_slice(&[data.len()], data).expect("a tensor");
    let (x, two, three) = (tensor(&[1.0, -1.0]), tensor(&[5.0, 7.0]), tensor(&[5.0, 6.0, 7.0]));
    let out = e.run(&[Input::from(&x), Input::from(&two)]).expect("it runs");
    assert_eq!(out[0].as_slice::<f32>().expect("f32"), [5.0, 7.0, 5.0, 5.0, 5.0, 7.0]);
    assert!(e.run(&[Input::from(&x), Input::from(&three)]).is_err());

    let nodes = vec![op("GroupNormalization x scale bias -> y", &[("num_groups", I(1))])];
    let constants = vec![floats("scale", &[2], &[1.0, 2.0]), floats("bias", &[2], &[0.0, 1.0])];
    let x = value("x", FLOAT, &[D::N(1), D::Sym("c"), D::Sym("w")]);
    let g = model_of(
        21,
        graph(nodes, constants, vec![x], vec![value("y", FLOAT, &[])]),
        vec![],
    );
    let imported = import(&g, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let e = compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles");
    let (shape, y) = run(&e, &[1, 2, 1]).expect("it runs");
    // 1 and 2 with mean 1.5 and deviation 0.5, but for epsilon.
    assert_eq!(shape, [1, 2, 1]);
    assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 3.0).abs() < 1e-4, "{y:?}");
}

/// A model that is right, but whose sizes must be known, is not an invalid one.
#[test]
fn sizes_that_must_be_numbers_are_unsupported_where_they_are_symbols() {
    let (n, x) = (|s| D::Sym(s), |dims: &[D]| vec![value("x", FLOAT, dims)]);
    let cases = [
        (op("Det x -> y", &[]), x(&[n("n"), n("m")])),
        (op("DFT x -> y", &[]), x(&[D::N(1), n("n"), n("m")])),
        (op("Col2Im x image block -> y", &[]), x(&[n("b"), n("c"), n("l")])),
    ];
    for (node, inputs) in cases {
        let constants = vec![list("image", &[4, 4]), list("block", &[2, 2])];
        let g = graph(vec![node], constants, inputs, vec![value("y", FLOAT, &[])]);
        let Err(refused) = import(&model_of(21, g, vec![]), &ImportOptions::default()) else {
            panic!("it is refused");
        };
        assert_eq!(refused.kind(), tlc_formats::ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains("symbolic"), "{refused}");
    }
}

/// ONNX has statistics of layers in f32 (or bf16) alone, whatever they are of.
#[test]
fn the_statistics_of_a_layer_of_f64_are_f32() {
    let x = value("x", DOUBLE, &[D::N(2), D::N(3)]);
    let s = value("s", DOUBLE, &[D::N(3)]);
    let results = ["y", "mean", "inverse"].map(|name| value(name, 0, &[]));
    let g = graph(
        vec![op("LayerNormalization x s -> y mean inverse", &[])],
        vec![],
        vec![x, s],
        results.to_vec(),
    );
    let imported = import(&model(g, vec![]), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let dtypes = imported.graph.outputs().iter().map(|o| imported.graph.ty(o.node).dtype);
    assert_eq!(
        dtypes.collect::<Vec<_>>(),
        [tlc::DType::F64, tlc::DType::F32, tlc::DType::F32]
    );
}

#[test]
fn the_least_the_greatest_and_the_sum_of_sizes_are_sizes() {
    // As exporters write `min(n, 3)` of the best: a reduction of a list.
    for (name, of) in [
        ("ReduceMin", (|n, m| n.min(m)) as fn(usize, usize) -> usize),
        ("ReduceMax", |n, m| n.max(m)),
        ("ReduceSum", |n, m| n + m),
    ] {
        let nodes = vec![
            op("Shape x -> s", &[]),
            op("Concat s three -> c", &[("axis", I(0))]),
            op(&format!("{name} c -> k"), &[]),
            op("Expand one k -> y", &[]),
        ];
        let constants = vec![list("three", &[3]), floats("one", &[], &[1.0])];
        let e = compiled(nodes, constants, &[D::Sym("n")]);
        for n in [0, 2, 3, 5] {
            let found = run(&e, &[n]).expect("it runs");
            assert_eq!(found, (vec![of(n, 3)], vec![1.0; of(n, 3)]), "{name} {n}");
        }
    }
    // Over no axes it is no reduction: the list stays one.
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("ReduceSum s -> k", &[("noop_with_empty_axes", I(1))]),
        op("Expand one k -> y", &[]),
    ];
    let e = compiled(nodes, vec![floats("one", &[], &[1.0])], &[D::N(2), D::N(3)]);
    assert_eq!(run(&e, &[2, 3]).expect("it runs").0, [2, 3]);
}

#[test]
fn as_many_of_the_best_are_taken_as_sizes_say() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Concat s three -> c", &[("axis", I(0))]),
        op("ReduceMin c -> k", &[]),
        op("TopK x k -> y places", &[]),
    ];
    let e = compiled(nodes, vec![list("three", &[3])], &[D::Sym("n")]);
    assert_eq!(run(&e, &[5]), Ok((vec![3], vec![5.0, 4.0, 3.0])));
    assert_eq!(run(&e, &[2]), Ok((vec![2], vec![2.0, 1.0])));
}

/// The best of each row, as many as elements are above 4 altogether, less one.
#[test]
fn as_many_of_the_best_are_taken_as_data_says() {
    for (largest, first) in [(1, [3.0f32, 2.0, 1.0]), (0, [1.0, 2.0, 3.0])] {
        let nodes = vec![
            op("Greater x four -> m", &[]),
            op("Cast m -> i", &[("to", I(INT64))]),
            op("ReduceSum i -> s", &[("keepdims", I(0))]),
            op("Sub s one -> k", &[]),
            op("TopK x k -> y places", &[("largest", I(largest))]),
        ];
        let constants = vec![floats("four", &[], &[4.0]), list("one", &[1])];
        let e = compiled(nodes, constants, &[D::Sym("n"), D::N(3)]);
        // None are above 4, which is one less than none; 2; more than a row has.
        for (rows, count) in [(1, 0), (2, 1), (3, 3)] {
            let expected: Vec<f32> = (0..rows)
                .flat_map(|r| first[..count].iter().map(move |v| v + 3.0 * r as f32))
                .collect();
            assert_eq!(
                run(&e, &[rows, 3]),
                Ok((vec![rows, count], expected)),
                "{largest} {rows}"
            );
        }
    }
}

/// A graph of `x: f32[n]` that makes a vector of as many zeros as the nodes say, from the float `f` that `n` is.
fn through_floats(nodes: &[&str]) -> Executable {
    through_floats_and(nodes, 1.0)
}

/// The same, with a number of choice.
fn through_floats_and(nodes: &[&str], scale: f32) -> Executable {
    let constants = [
        ("one", 1.0),
        ("two", 2.0),
        ("three", 3.0),
        ("five", 5.0),
        ("half", 0.5),
        ("scale", scale),
    ];
    let constants = constants.map(|(name, value)| floats(name, &[], &[value]));
    let mut all = vec![
        op("Shape x -> s", &[]),
        op("Gather s zero -> g", &[("axis", I(0))]),
        op("Cast g -> f", &[("to", I(FLOAT))]),
    ];
    all.extend(nodes.iter().map(|text| op(text, &[])));
    all.push(op("Cast t -> i", &[("to", I(INT64))]));
    all.push(op("Reshape i minus -> l", &[]));
    all.push(op("ConstantOfShape l -> y", &[]));
    let whole = [ints("zero", &[], &[0]), ints("minus", &[1], &[-1])];
    compiled(all, whole.into_iter().chain(constants).collect(), &[D::Sym("n")])
}

#[test]
fn quotients_in_floats_are_sizes_where_they_are_rounded() {
    type Case = (&'static [&'static str], fn(f32) -> f32);
    let cases: [Case; 8] = [
        (&["Div f two -> d", "Ceil d -> c", "Mul c two -> t"], |n| {
            (n / 2.0).ceil() * 2.0
        }),
        (&["Mul f half -> d", "Floor d -> t"], |n| (n * 0.5).floor()),
        (&["Div f three -> d", "Ceil d -> t"], |n| (n / 3.0).ceil()),
        (&["Div f three -> d", "Floor d -> t"], |n| (n / 3.0).floor()),
        (&["Div f two -> d", "Div d five -> e", "Ceil e -> t"], |n| {
            (n / 2.0 / 5.0).ceil()
        }),
        (&["Div f two -> d", "Add d three -> t"], |n| n / 2.0 + 3.0),
        (&["Mul f three -> m", "Sub m one -> d", "Div d two -> t"], |n| {
            (n * 3.0 - 1.0) / 2.0
        }),
        (&["Mul f two -> m", "Div m two -> t"], |n| n),
    ];
    for (nodes, expected) in cases {
        let e = through_floats(nodes);
        for n in [1usize, 2, 3, 4, 5, 6, 7, 9, 15, 16, 17, 29, 30, 31, 100, 1023] {
            let parts = expected(n as f32).trunc() as usize;
            assert_eq!(run(&e, &[n]), Ok((vec![parts], vec![0.0; parts])), "{nodes:?} at {n}");
        }
    }
}

/// Exporters of networks of doubles write a scale of 0.5 as a double, and round its product with a size as a float.
#[test]
fn quotients_stay_quotients_in_another_type_of_floats() {
    let to = |text: &str, to: i64| op(text, &[("to", I(to))]);
    type Case = (&'static str, f64, fn(usize) -> usize);
    let cases: [Case; 4] = [
        ("Mul", 0.5, |n| n / 2),
        ("Mul", 1.5, |n| 3 * n / 2),
        ("Div", 2.0, |n| n / 2),
        ("Div", 3.0, |n| n / 3),
    ];
    for (first, second) in [(FLOAT, DOUBLE), (DOUBLE, FLOAT)] {
        for (operator, number, expected) in cases {
            let nodes = vec![
                op("Shape x -> s", &[]),
                to("Cast s -> f", first),
                op(&format!("{operator} f by -> p"), &[]),
                to("Cast p -> q", second),
                op("Floor q -> w", &[]),
                to("Cast w -> t", INT64),
                op("ConstantOfShape t -> y", &[]),
            ];
            let by = match first {
                FLOAT => floats("by", &[1], &[number as f32]),
                _ => Message::default()
                    .int(1, 1)
                    .int(2, DOUBLE)
                    .bytes(8, "by")
                    .bytes(9, number.to_le_bytes()),
            };
            let e = compiled(nodes, vec![by], &[D::Sym("n")]);
            for n in [0, 1, 2, 3, 5, 6, 7, 30, 31, 1023] {
                let parts = expected(n);
                assert_eq!(
                    run(&e, &[n]),
                    Ok((vec![parts], vec![0.0; parts])),
                    "{operator} {number} at {n}"
                );
            }
        }
    }
}

/// The side of an image of so many tokens, as exporters write it, beside a batch of any size; of what is no square nobody knows a side.
#[test]
fn square_roots_of_known_sizes_are_sizes() {
    for root in ["Pow f half -> r", "Sqrt f -> r"] {
        let nodes = || {
            vec![
                op("Shape x -> s", &[]),
                op("Gather s zero -> n", &[("axis", I(0))]),
                op("Gather s one -> t", &[("axis", I(0))]),
                op("Cast t -> f", &[("to", I(FLOAT))]),
                op(root, &[]),
                op("Cast r -> i", &[("to", I(INT64))]),
                op("Concat n i i -> l", &[("axis", I(0))]),
                op("Reshape x l -> y", &[]),
            ]
        };
        let constants = || vec![list("zero", &[0]), list("one", &[1]), floats("half", &[], &[0.5])];
        let e = compiled(nodes(), constants(), &[D::Sym("n"), D::N(196)]);
        for n in [1, 3] {
            let (shape, data) = run(&e, &[n, 196]).expect("a square");
            assert_eq!(shape, [n, 14, 14]);
            assert!(data.iter().enumerate().all(|(i, v)| *v == (i + 1) as f32));
        }
        let g = graph(
            nodes(),
            constants(),
            vec![value("x", FLOAT, &[D::Sym("n"), D::N(195)])],
            vec![value("y", FLOAT, &[])],
        );
        let refused = import(&model(g, vec![]), &ImportOptions::default());
        assert!(refused.is_err_and(|e| e.to_string().contains("Reshape")));
    }
}

/// What padding cuts off of a transposed convolution is not computed, whatever the sizes: as many operations as for the sizes of a call.
#[test]
fn what_is_cut_off_of_transposed_convolutions_of_any_size_is_not_computed() {
    let weights: Vec<f32> = (0..8 * 16 * 9).map(|i| (i % 13) as f32 - 6.0).collect();
    let (pads, strides) = (A::Is(vec![1, 1, 1, 1]), A::Is(vec![2, 2]));
    let attributes = [
        ("pads", pads),
        ("strides", strides),
        ("output_padding", A::Is(vec![1, 1])),
    ];
    let [n, h, w] = [2, 6, 10];
    let [fixed, any] = [[D::N(n), D::N(h), D::N(w)], [D::Sym("n"), D::Sym("h"), D::Sym("w")]].map(|[n, h, w]| {
        let nodes = vec![op("ConvTranspose x w -> y", &attributes)];
        compiled(nodes, vec![floats("w", &[8, 16, 3, 3], &weights)], &[n, D::N(8), h, w])
    });
    let flops = |e: &Executable| -> i64 {
        let launches = e.plan().steps.iter().flat_map(|s| s.launches());
        launches.map(|l| l.flops.eval_symbols(&[n, h, w]).expect("sizes")).sum()
    };
    assert_eq!(flops(&fixed), flops(&any));
    let shape = [n, 8, h, w].map(|d| d as usize);
    assert_eq!(run(&fixed, &shape), run(&any, &shape));
}

#[test]
fn a_quotient_of_sizes_is_a_number_too() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Cast s -> f", &[("to", I(FLOAT))]),
        op("Div f three -> d", &[]),
        op("Mul x d -> y", &[]),
    ];
    let e = compiled(nodes, vec![floats("three", &[], &[3.0])], &[D::Sym("n")]);
    for n in [1usize, 2, 3, 7, 64] {
        let expected: Vec<f32> = (1..=n).map(|i| i as f32 * (n as f32 / 3.0)).collect();
        assert_eq!(run(&e, &[n]), Ok((vec![n], expected)));
    }
}

/// Sizes times numbers that are no fractions of a power of two, as `interpolate` with a scale of 1.3 has them written: the integers that floats give, for
/// every size up to some thousand and where products come closest to integers.
#[test]
fn products_of_sizes_with_any_number_are_sizes_where_they_are_rounded() {
    for factor in [
        1.3f32,
        0.7,
        1.1,
        2.7,
        1.0 / 3.0,
        0.1,
        1.5,
        2.25,
        0.9,
        3.3,
        1.7,
        0.01,
        33.3337,
        100.37,
        0.715_31,
    ] {
        for (nodes, rounded) in [
            (&["Mul f scale -> t"][..], f32::trunc as fn(f32) -> f32),
            (&["Mul scale f -> d", "Identity d -> e", "Floor e -> t"], f32::floor),
            (&["Mul f scale -> d", "Ceil d -> t"], f32::ceil),
        ] {
            let e = through_floats_and(nodes, factor);
            for n in (1..400).chain([630, 1260, 4095, 4096, 5040]) {
                let count = rounded(n as f32 * factor) as usize;
                let (shape, _) = run(&e, &[n]).unwrap_or_else(|e| panic!("{nodes:?} {factor} at {n}: {e}"));
                assert_eq!(shape, [count], "{nodes:?} {factor} at {n}");
            }
        }
    }
}

#[test]
fn a_product_of_sizes_is_a_number_too() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Cast s -> f", &[("to", I(FLOAT))]),
        op("Mul f scale -> d", &[]),
        op("Mul x d -> y", &[]),
    ];
    let e = compiled(nodes, vec![floats("scale", &[], &[1.3])], &[D::Sym("n")]);
    for n in [1usize, 2, 3, 7, 10, 64] {
        let expected: Vec<f32> = (1..=n).map(|i| i as f32 * (n as f32 * 1.3)).collect();
        assert_eq!(run(&e, &[n]), Ok((vec![n], expected)));
    }
}

/// As PyTorch and ONNX Runtime, which have no number a little below 0.7: ten elements become seven. One ninth of nine is one.
#[test]
fn a_scale_is_the_fraction_that_is_rounded_to_it() {
    let by = |scale: f32, x: D| {
        let how = [
            ("mode", T("nearest")),
            ("coordinate_transformation_mode", T("asymmetric")),
            ("nearest_mode", T("floor")),
        ];
        compiled(
            vec![op("Resize x _ s -> y", &how)],
            vec![floats("s", &[1], &[scale])],
            &[x],
        )
    };
    for (scale, extent, expected) in [
        (0.7f32, 10usize, 7usize),
        (0.7, 30, 21),
        (0.9, 20, 18),
        (1.4, 15, 21),
        (1.0 / 9.0, 9, 1),
        (2.0 / 3.0, 6, 4),
        (0.123_456_79, 100, 12),
        (2.5, 3, 7),
    ] {
        let fixed = run(&by(scale, D::N(extent as i64)), &[extent]).expect("it runs");
        assert_eq!(fixed.0, [expected], "{scale} of {extent}");
        assert_eq!(
            run(&by(scale, D::Sym("n")), &[extent]),
            Ok(fixed),
            "{scale} of {extent}"
        );
    }
    // 3 / 0.6 is 5, and not a little less.
    let (_, found) = run(&by(0.6, D::N(7)), &[7]).expect("it runs");
    assert_eq!(found, [1.0, 2.0, 4.0, 6.0]);
}

/// As `tile` is exported.
#[test]
fn the_magnitude_of_a_number_beside_sizes_is_a_size() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Abs less -> e", &[]),
        op("Concat e s -> t", &[("axis", I(0))]),
        op("Reshape x t -> y", &[]),
    ];
    let e = compiled(nodes, vec![list("less", &[-1])], &[D::Sym("n")]);
    assert_eq!(run(&e, &[3]), Ok((vec![1, 3], vec![1.0, 2.0, 3.0])));
}
