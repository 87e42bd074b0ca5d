//! Sizes that data decides in models: branches whose results differ in extents, and many parts of which each is as long as it likes.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Executable, HostTensor, Input, compile_ir};
use tlc_ir::interp::{Options, interpret};

use crate::proto::A::I;
use crate::proto::*;

struct Both {
    executables: [Executable; 2],
    graph: tlc_ir::Graph,
}

fn both(graph: Message) -> Both {
    let imported = import(&model(graph, vec![]), &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(imported.fixed.is_empty());
    let compiled = |threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        compile_ir(&imported.graph, &options).expect("it compiles")
    };
    let executables = [1, 2].map(compiled);
    Both {
        executables,
        graph: imported.graph,
    }
}

impl Both {
    /// Shapes and elements of the outputs, which the interpreter and programs agree about.
    fn run(&self, inputs: &[HostTensor]) -> Vec<(Vec<usize>, Vec<f32>)> {
        let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let wanted = interpret(&self.graph, inputs, &Options::default()).expect("it is interpreted");
        for executable in &self.executables {
            let found = executable.run(&given).expect("it runs");
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_eq!(found.shape(), wanted.shape());
                assert_eq!(
                    found.as_slice::<f32>().expect("f32"),
                    wanted.as_slice::<f32>().expect("f32")
                );
            }
        }
        let all = wanted.iter();
        all.map(|t| (t.shape().to_vec(), t.as_slice::<f32>().expect("f32").to_vec()))
            .collect()
    }
}

fn tensor(shape: &[usize], data: &[f32]) -> HostTensor {
    HostTensor::from_slice(shape, data).expect("a tensor")
}

fn branch(nodes: Vec<Message>, constants: Vec<Message>) -> Message {
    graph(nodes, constants, vec![], vec![result("r")])
}

fn chosen(then: Message, otherwise: Message) -> Message {
    node("If", "choose", &["c"], &["y"])
        .message(5, graph_attribute("then_branch", then))
        .message(5, graph_attribute("else_branch", otherwise))
}

/// What the exporter of PyTorch makes of boxes that are suppressed if there are any: an empty list if there are none.
#[test]
fn a_branch_that_is_empty_or_longer() {
    let empty = || branch(vec![op("Identity none -> r", &[])], vec![]);
    let positive = || {
        branch(
            vec![
                op("Greater x zero -> m", &[]),
                op("Compress x m -> r", &[("axis", I(0))]),
            ],
            vec![],
        )
    };
    for (then, otherwise, empty_if) in [(empty(), positive(), true), (positive(), empty(), false)] {
        let nodes = vec![
            op("ReduceMax x -> most", &[("keepdims", I(0))]),
            op("Less most zero -> c", &[]),
            chosen(then, otherwise),
            // A size that follows from it.
            op("Concat y y -> twice", &[("axis", I(0))]),
        ];
        let constants = vec![floats("zero", &[], &[0.0]), floats("none", &[0], &[])];
        let inputs = vec![value("x", FLOAT, &[D::Sym("n")])];
        let both = both(graph(nodes, constants, inputs, vec![result("y"), result("twice")]));
        for (data, positive) in [
            (&[1.0f32, -2.0, 3.0][..], &[1.0f32, 3.0][..]),
            (&[-1.0, -2.0], &[]),
            (&[5.0], &[5.0]),
            (&[0.0, -1.0, 2.0, 4.0], &[2.0, 4.0]),
        ] {
            let negative = data.iter().all(|v| *v < 0.0);
            let expected: &[f32] = if negative == empty_if { &[] } else { positive };
            let twice = [expected, expected].concat();
            let found = both.run(&[tensor(&[data.len()], data)]);
            assert_eq!(found[0], (vec![expected.len()], expected.to_vec()), "{data:?}");
            assert_eq!(found[1], (vec![twice.len()], twice), "{data:?}");
        }
    }
}

#[test]
fn branches_with_other_extents_of_several_axes() {
    // Two copies of the rows, or all but the last column.
    let rows = branch(vec![op("Concat x x -> r", &[("axis", I(0))])], vec![]);
    let columns = branch(
        vec![op("Slice x from to axes -> r", &[])],
        vec![
            ints("from", &[1], &[0]),
            ints("to", &[1], &[-1]),
            ints("axes", &[1], &[1]),
        ],
    );
    let nodes = vec![chosen(rows, columns)];
    let inputs = vec![value("c", BOOL, &[]), value("x", FLOAT, &[D::Sym("n"), D::N(3)])];
    let both = both(graph(nodes, vec![], inputs, vec![result("y")]));
    for n in [0, 1, 2, 5] {
        let data: Vec<f32> = (0..n * 3).map(|i| i as f32).collect();
        let given = |c: bool| {
            [
                HostTensor::from_slice(&[], &[c]).expect("a tensor"),
                tensor(&[n, 3], &data),
            ]
        };
        assert_eq!(
            both.run(&given(true))[0],
            (vec![2 * n, 3], [&data[..], &data[..]].concat())
        );
        let narrow: Vec<f32> = data.iter().copied().filter(|v| *v as usize % 3 < 2).collect();
        assert_eq!(both.run(&given(false))[0], (vec![n, 2], narrow));
    }
}

/// Neither branch is known to be the longer one, and both differ along two axes.
#[test]
fn branches_of_which_data_decides_both_lengths() {
    let picked = |than: &str| {
        branch(
            vec![
                op("ReduceSum x second -> s", &[("keepdims", I(0))]),
                op(&format!("Greater s {than} -> m"), &[]),
                op("Compress x m -> r", &[("axis", I(0))]),
            ],
            vec![],
        )
    };
    let columns = || branch(vec![op("Slice x from to second -> r", &[])], vec![]);
    for (then, otherwise) in [
        (picked("zero"), picked("two")),
        (picked("two"), columns()),
        (columns(), picked("zero")),
    ] {
        let constants = vec![
            floats("zero", &[], &[0.0]),
            floats("two", &[], &[2.0]),
            ints("second", &[1], &[1]),
            ints("from", &[1], &[1]),
            ints("to", &[1], &[9]),
        ];
        let nodes = vec![
            op("ReduceMax x -> most", &[("keepdims", I(0))]),
            op("Less most two -> c", &[]),
            chosen(then, otherwise),
            op("ReduceSum y -> total", &[("keepdims", I(0))]),
        ];
        for rows in [D::N(5), D::Sym("n")] {
            let inputs = vec![value("x", FLOAT, &[rows, D::N(3)])];
            let results = vec![result("y"), result("total")];
            let both = both(graph(nodes.clone(), constants.clone(), inputs, results));
            let mut rng = tlc_ir::rng::Rng::new(4);
            for round in 0..12 {
                let most = [2, 5, 9][round % 3];
                let data: Vec<f32> = (0..15).map(|_| rng.below(most) as f32 - 1.0).collect();
                both.run(&[tensor(&[5, 3], &data)]);
            }
        }
    }
}

/// Boxes of each class, put together: as many sizes as there are classes.
#[test]
fn many_parts_as_long_as_data_decides() {
    const CLASSES: usize = 24;
    for columns in [D::N(7), D::Sym("m")] {
        let mut nodes = vec![];
        let (mut values, mut places) = (String::new(), String::new());
        for k in 0..CLASSES {
            nodes.extend([
                op(&format!("Gather x k{k} -> row{k}"), &[("axis", I(0))]),
                op(&format!("Greater row{k} zero -> m{k}"), &[]),
                op(&format!("NonZero m{k} -> n{k}"), &[]),
                op(&format!("Squeeze n{k} first -> i{k}"), &[]),
                op(&format!("Gather row{k} i{k} -> v{k}"), &[("axis", I(0))]),
                op(&format!("Cast i{k} -> p{k}"), &[("to", I(FLOAT))]),
            ]);
            values += &format!("v{k} ");
            places += &format!("p{k} ");
        }
        nodes.extend([
            op(&format!("Concat {values}-> values"), &[("axis", I(0))]),
            op(&format!("Concat {places}-> places"), &[("axis", I(0))]),
            // They are as long as each other.
            op("Add values places -> both", &[]),
            // What is computed of the length.
            op("Shape values -> length", &[]),
            op("Cast length -> count", &[("to", I(FLOAT))]),
            op("Gather values last -> end", &[("axis", I(0))]),
        ]);
        let mut constants: Vec<Message> = (0..CLASSES).map(|k| ints(&format!("k{k}"), &[], &[k as i64])).collect();
        constants.extend([
            floats("zero", &[], &[0.0]),
            ints("first", &[1], &[0]),
            ints("last", &[1], &[-1]),
        ]);
        let outputs = ["values", "both", "count", "end"].map(result);
        let inputs = vec![value("x", FLOAT, &[D::N(CLASSES as i64), columns])];
        let both = both(graph(nodes, constants, inputs, outputs.into()));
        let mut rng = tlc_ir::rng::Rng::new(9);
        for round in 0..6 {
            let data: Vec<f32> = (0..CLASSES * 7)
                .map(|i| match round {
                    0 => i as f32 + 1.0,
                    _ => rng.below(9) as f32 - 5.0 - (round == 1 && i < 160) as i32 as f32 * 9.0,
                })
                .collect();
            let kept: Vec<(f32, f32)> = (data.iter().enumerate().filter(|(_, v)| **v > 0.0))
                .map(|(i, v)| (*v, (i % 7) as f32))
                .collect();
            if kept.is_empty() {
                continue;
            }
            let found = both.run(&[tensor(&[CLASSES, 7], &data)]);
            let values: Vec<f32> = kept.iter().map(|k| k.0).collect();
            let sums: Vec<f32> = kept.iter().map(|k| k.0 + k.1).collect();
            assert_eq!(found[3].1, [values[values.len() - 1]]);
            assert_eq!(found[2].1, [values.len() as f32]);
            assert_eq!(found[1], (vec![kept.len()], sums));
            assert_eq!(found[0], (vec![kept.len()], values));
        }
    }
}
