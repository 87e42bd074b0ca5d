//! Shape arithmetic that is carried symbolically: one graph, right for every size, and refused where a guard says so.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Executable, HostTensor, Input, compile_ir};

use crate::proto::A::I;
use crate::proto::*;

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
