//! Sequences inside of models: what they hold is that of their tensors, and a model without them computes the same.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, Input, compile_ir};
use tlc_formats::ErrorKind;

use crate::proto::A::I;
use crate::proto::*;

fn of(nodes: Vec<Message>, constants: Vec<Message>, x: &[D]) -> Vec<u8> {
    let g = graph(nodes, constants, vec![value("x", FLOAT, x)], vec![result("y")]);
    model(g, vec![])
}

/// The shape and elements of `y` for an `x` of 1, 2, 3, ...
fn run(bytes: &[u8], shape: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let imported = import(bytes, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let executable = compile_ir(&imported.graph, &CompileOptions::default()).expect("it compiles");
    let data: Vec<f32> = (1..=shape.iter().product()).map(|i: usize| i as f32).collect();
    let x = HostTensor::from_slice(shape, &data).expect("a tensor");
    let out = executable.run(&[Input::from(&x)]).unwrap_or_else(|e| panic!("{e}"));
    (out[0].shape().to_vec(), out[0].as_slice::<f32>().expect("f32").to_vec())
}

fn number(name: &str, n: i64) -> Message {
    ints(name, &[], &[n])
}

#[test]
fn parts_of_an_axis_are_taken_by_position() {
    let nodes = |position: &str| {
        vec![
            op("SplitToSequence x sizes -> parts", &[("axis", I(1))]),
            op(&format!("SequenceAt parts {position} -> y"), &[]),
        ]
    };
    let constants = || {
        vec![
            ints("sizes", &[3], &[1, 2, 2]),
            number("first", 0),
            number("middle", 1),
            number("last", -1),
        ]
    };
    for rows in [D::N(2), D::Sym("n")] {
        let of = |position: &str, rows: &D| {
            let rows = match rows {
                D::N(n) => D::N(*n),
                D::Sym(s) => D::Sym(s),
            };
            of(nodes(position), constants(), &[rows, D::N(5)])
        };
        assert_eq!(run(&of("first", &rows), &[2, 5]), (vec![2, 1], vec![1.0, 6.0]));
        assert_eq!(
            run(&of("middle", &rows), &[2, 5]),
            (vec![2, 2], vec![2.0, 3.0, 7.0, 8.0])
        );
        assert_eq!(
            run(&of("last", &rows), &[2, 5]),
            (vec![2, 2], vec![4.0, 5.0, 9.0, 10.0])
        );
    }
}

#[test]
fn a_list_of_sizes_may_be_shape_arithmetic() {
    let nodes = vec![
        op("Shape x -> s", &[]),
        op("Div s two -> half", &[]),
        op("Sub s half -> rest", &[]),
        op("Concat half rest -> sizes", &[("axis", I(0))]),
        op("SplitToSequence x sizes -> parts", &[]),
        op("SequenceAt parts one -> y", &[]),
    ];
    let bytes = of(nodes, vec![ints("two", &[1], &[2]), number("one", 1)], &[D::Sym("n")]);
    assert_eq!(run(&bytes, &[5]), (vec![3], vec![3.0, 4.0, 5.0]));
    assert_eq!(run(&bytes, &[1]), (vec![1], vec![1.0]));
    assert_eq!(run(&bytes, &[0]), (vec![0], vec![]));
}

#[test]
fn single_elements_and_equal_parts_are_put_together_again() {
    let single = |keep: i64, new_axis: i64| {
        vec![
            op("SplitToSequence x -> parts", &[("axis", I(1)), ("keepdims", I(keep))]),
            op(
                "ConcatFromSequence parts -> y",
                &[("axis", I(0)), ("new_axis", I(new_axis))],
            ),
        ]
    };
    let x = || [D::N(2), D::N(3)];
    let columns = vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
    assert_eq!(
        run(&of(single(0, 1), vec![], &x()), &[2, 3]),
        (vec![3, 2], columns.clone())
    );
    assert_eq!(
        run(&of(single(0, 0), vec![], &x()), &[2, 3]),
        (vec![6], columns.clone())
    );
    assert_eq!(
        run(&of(single(1, 1), vec![], &x()), &[2, 3]),
        (vec![3, 2, 1], columns.clone())
    );
    assert_eq!(run(&of(single(1, 0), vec![], &x()), &[2, 3]), (vec![6, 1], columns));
    // Two parts of two, and the rest.
    let nodes = vec![
        op("SplitToSequence x two -> parts", &[("keepdims", I(0))]),
        op("SequenceLength parts -> l", &[]),
        op("SequenceAt parts two -> p", &[]),
        op("Cast l -> f", &[("to", I(1))]),
        op("Mul p f -> y", &[]),
    ];
    assert_eq!(
        run(&of(nodes, vec![number("two", 2)], &[D::N(5)]), &[5]),
        (vec![1], vec![15.0])
    );
}

#[test]
fn sequences_grow_and_shrink() {
    let grown = |rest: Vec<Message>| {
        let mut nodes = vec![
            op("Add x x -> a", &[]),
            op("Neg x -> b", &[]),
            op("SequenceConstruct x a -> s", &[]),
            op("SequenceInsert s b first -> t", &[]),
            op("Identity t -> u", &[]),
        ];
        nodes.extend(rest);
        nodes.push(op("ConcatFromSequence v -> y", &[("axis", I(-1))]));
        of(nodes, vec![number("first", 0), number("last", -1)], &[D::N(1)])
    };
    let found = |rest: Vec<Message>| run(&grown(rest), &[1]).1;
    assert_eq!(found(vec![op("Identity u -> v", &[])]), [-1.0, 1.0, 2.0]);
    assert_eq!(found(vec![op("SequenceInsert u a -> v", &[])]), [-1.0, 1.0, 2.0, 2.0]);
    assert_eq!(
        found(vec![op("SequenceInsert u a last -> v", &[])]),
        [-1.0, 1.0, 2.0, 2.0]
    );
    assert_eq!(
        found(vec![op("SequenceInsert u b last -> v", &[])]),
        [-1.0, 1.0, -1.0, 2.0]
    );
    assert_eq!(found(vec![op("SequenceErase u -> v", &[])]), [-1.0, 1.0]);
    assert_eq!(found(vec![op("SequenceErase u first -> v", &[])]), [1.0, 2.0]);
}

/// As PyTorch exports a list that a loop appends to.
fn appended(trip: i64) -> Vec<u8> {
    of(appending(true), vec![number("trip", trip)], &[D::Sym("n")])
}

/// The nodes of that, with `trip` as the trip count; the tensors are put together along a new axis, or along theirs.
fn appending(new: bool) -> Vec<Message> {
    let carried = Message::default().bytes(1, "list");
    let body = graph(
        vec![
            op("Cast number -> f", &[("to", I(1))]),
            op("Mul x f -> item", &[]),
            op("SequenceInsert list item -> longer", &[]),
            op("Identity go -> on", &[]),
        ],
        vec![],
        vec![value("number", INT64, &[]), value("go", BOOL, &[]), carried],
        vec![value("on", BOOL, &[]), result("longer")],
    );
    vec![
        op("SequenceEmpty -> none", &[]),
        op("Loop trip _ none -> all", &[]).message(5, graph_attribute("body", body)),
        op(
            "ConcatFromSequence all -> y",
            &[("axis", I(0)), ("new_axis", I(i64::from(new)))],
        ),
    ]
}

/// What scripted functions do with a list: as many iterations as rows, a state beside the list, and lists that hold something before.
#[test]
fn a_loop_of_any_length_appends_to_a_sequence() {
    let rows = |n: usize| -> Vec<f32> { (1..=2 * n).map(|i| i as f32).collect() };
    let per_row = |new: bool| {
        let mut nodes = vec![op("Shape x -> s", &[]), op("Gather s zero -> trip", &[("axis", I(0))])];
        nodes.extend(appending(new));
        of(nodes, vec![number("zero", 0)], &[D::Sym("n"), D::N(2)])
    };
    for n in [1usize, 2, 5, 200] {
        let times = |i: usize| rows(n).into_iter().map(move |v| v * i as f32);
        let all: Vec<f32> = (0..n).flat_map(times).collect();
        assert_eq!(run(&per_row(true), &[n, 2]), (vec![n, n, 2], all.clone()));
        assert_eq!(run(&per_row(false), &[n, 2]), (vec![n * n, 2], all));
    }
    // More than are recorded one by one.
    let all = (0..200).flat_map(|i| [0.0 + i as f32, 2.0 * i as f32]).collect();
    assert_eq!(run(&appended(200), &[2]), (vec![200, 2], all));
    // A list of rows, as `unbind` makes it, is as long as there are rows: each is added to the sum so far, and all sums are kept
    // behind zeros.
    let body = graph(
        vec![
            op("SequenceAt each number -> row", &[]),
            op("Add sum row -> more", &[]),
            op("SequenceInsert list more -> longer", &[]),
            op("Identity go -> on", &[]),
            op("Mul row row -> square", &[]),
        ],
        vec![],
        vec![
            value("number", INT64, &[]),
            value("go", BOOL, &[]),
            Message::default().bytes(1, "list"),
            value("sum", FLOAT, &[D::N(2)]),
        ],
        ["on", "longer", "more", "square"].map(result).to_vec(),
    );
    let nodes = |last: &str| {
        vec![
            op("SplitToSequence x -> each", &[("axis", I(0)), ("keepdims", I(0))]),
            op("SequenceLength each -> trip", &[]),
            op("SequenceConstruct zeros -> first", &[]),
            op("Loop trip _ first zeros -> sums total squares", &[]).message(5, graph_attribute("body", body.clone())),
            op("ConcatFromSequence sums -> kept", &[("axis", I(1)), ("new_axis", I(1))]),
            op("SequenceAt sums minus -> last", &[]),
            op(last, &[]),
        ]
    };
    let constants = || vec![floats("zeros", &[2], &[0.0, 0.0]), number("minus", -1)];
    for n in [1usize, 3, 130] {
        let x = rows(n);
        let mut sums = vec![[0.0f32; 2]];
        for row in x.chunks(2) {
            let before = sums[sums.len() - 1];
            sums.push([before[0] + row[0], before[1] + row[1]]);
        }
        let turned = [0, 1].map(|k| sums.iter().map(|s| s[k]).collect::<Vec<f32>>()).concat();
        let total = sums[n].to_vec();
        let squares = x.iter().map(|v| v * v).collect();
        let shape = [D::Sym("n"), D::N(2)];
        let of = |last: &str| of(nodes(last), constants(), &shape);
        assert_eq!(run(&of("Identity kept -> y"), &[n, 2]), (vec![2, n + 1], turned));
        assert_eq!(run(&of("Identity last -> y"), &[n, 2]), (vec![2], total.clone()));
        assert_eq!(run(&of("Identity total -> y"), &[n, 2]), (vec![2], total));
        assert_eq!(run(&of("Identity squares -> y"), &[n, 2]), (vec![n, 2], squares));
    }
}

/// A body that reads the list, or hands on another than it was given, needs its length.
#[test]
fn a_loop_that_reads_its_sequence_needs_a_known_trip_count() {
    let refused = |insert: &str, further: &str| {
        let body = graph(
            vec![
                op("Cast number -> f", &[("to", I(1))]),
                op("Mul x f -> item", &[]),
                op(insert, &[]),
                op(further, &[]),
                op("Identity go -> on", &[]),
            ],
            vec![],
            vec![
                value("number", INT64, &[]),
                value("go", BOOL, &[]),
                Message::default().bytes(1, "list"),
            ],
            vec![value("on", BOOL, &[]), result("longer"), result("further")],
        );
        let nodes = vec![
            op("Shape x -> s", &[]),
            op("Gather s zero -> trip", &[("axis", I(0))]),
            op("SequenceEmpty -> none", &[]),
            op("Loop trip _ none -> all others", &[]).message(5, graph_attribute("body", body)),
            op("ConcatFromSequence all -> y", &[("axis", I(0))]),
        ];
        let bytes = of(nodes, vec![number("zero", 0)], &[D::Sym("n")]);
        let e = import(&bytes, &ImportOptions::default()).expect_err("it is refused");
        assert!(e.kind() == ErrorKind::Unsupported, "{e}");
    };
    refused("SequenceInsert list item -> longer", "SequenceLength list -> further");
    refused("SequenceInsert list item -> longer", "SequenceLength longer -> further");
    refused("SequenceInsert list item at -> longer", "Identity item -> further");
    refused("SequenceErase list -> longer", "Identity item -> further");
}

#[test]
fn a_loop_appends_to_a_sequence() {
    assert_eq!(
        run(&appended(3), &[2]),
        (vec![3, 2], vec![0.0, 0.0, 1.0, 2.0, 2.0, 4.0])
    );
}

#[test]
fn a_branch_that_is_known_may_be_a_sequence() {
    let branch = |node: Message| graph(vec![node], vec![], vec![], vec![result("s")]);
    let nodes = vec![
        op("If yes -> both", &[])
            .message(
                5,
                graph_attribute("then_branch", branch(op("SequenceConstruct x x -> s", &[]))),
            )
            .message(
                5,
                graph_attribute("else_branch", branch(op("SequenceConstruct x -> s", &[]))),
            ),
        op("ConcatFromSequence both -> y", &[("axis", I(0))]),
    ];
    let yes = Message::default().int(2, BOOL).bytes(8, "yes").bytes(9, [1u8]);
    assert_eq!(run(&of(nodes, vec![yes], &[D::N(1)]), &[1]), (vec![2], vec![1.0, 1.0]));
}

#[test]
fn what_needs_more_than_the_import_knows_is_refused() {
    let refused = |bytes: Vec<u8>, kind: ErrorKind, expected: &str| {
        let e = import(&bytes, &ImportOptions::default()).expect_err("it is refused");
        assert!(e.kind() == kind && e.to_string().contains(expected), "{e}");
    };
    let nodes = |text: &str| {
        let mut nodes = vec![op("SplitToSequence x -> s", &[])];
        nodes.push(op(text, &[]));
        nodes
    };
    let constants = || vec![number("three", 3), number("zero", 0), ints("two", &[2], &[0, 1])];
    let of = |text: &str, n: D| of(nodes(text), constants(), &[n]);
    use ErrorKind::{Invalid, Limit, Unsupported};
    for (text, extent, kind, expected) in [
        (
            "Identity s -> y",
            D::N(3),
            Unsupported,
            "output 'y': a sequence; expected a tensor",
        ),
        ("Add s x -> y", D::N(3), Unsupported, "a sequence as an operand"),
        (
            "SequenceAt s three -> y",
            D::N(3),
            Invalid,
            "position 3; expected one of 3",
        ),
        ("SequenceAt s two -> y", D::N(3), Invalid, "2 positions; expected one"),
        ("SequenceAt x zero -> y", D::N(3), Invalid, "operand 0 is a tensor"),
        ("SequenceInsert s three -> y", D::N(3), Invalid, "no tensor of f32"),
        ("SequenceInsert s s -> y", D::N(3), Invalid, "no tensor of f32"),
        ("SequenceErase s -> y", D::Sym("n"), Unsupported, "depends on a size"),
        ("SequenceInsert s x -> y", D::Sym("n"), Unsupported, "depends on a size"),
        ("SequenceLength s -> y", D::N(1 << 30), Limit, "expected at most 4096"),
        ("SplitToSequence x zero -> y", D::N(3), Invalid, "parts of 0 elements"),
        ("SplitToSequence x two -> y", D::N(3), Invalid, ""),
        (
            "SplitToSequence s -> y",
            D::N(3),
            Unsupported,
            "a sequence as an operand",
        ),
    ] {
        refused(of(text, extent), kind, expected);
    }
    refused(appended(0), Invalid, "an empty sequence");
}

/// Iterations of a loop that has no trip count and counts by itself, as scripted functions are exported: their number is a constant.
#[test]
fn a_loop_that_counts_by_itself_has_as_many_iterations_as_it_counts() {
    for (until, compares) in [
        (4, "Less next until -> on"),
        (5, "Greater until next -> on"),
        (1, "Less next until -> on"),
    ] {
        // What is appended to a sequence, and what differs from iteration to iteration: parts that its number says.
        for appends in [true, false] {
            let mut body = vec![
                op("Reshape j list -> from", &[]),
                op("CastLike one from -> step", &[]),
                op("Add from step -> to", &[]),
                op("Slice x from to -> part", &[]),
                op("Add j one -> next", &[]),
                op(compares, &[]),
            ];
            body.push(match appends {
                true => op("SequenceInsert before part -> after", &[]),
                false => op("Add before part -> after", &[]),
            });
            let element = |name: &str| {
                if appends {
                    Message::default().bytes(1, name)
                } else {
                    value(name, FLOAT, &[])
                }
            };
            let body = graph(
                body,
                vec![],
                vec![
                    value("i", INT64, &[]),
                    value("go", BOOL, &[]),
                    value("j", INT64, &[]),
                    element("before"),
                ],
                vec![result("on"), result("next"), result("after")],
            );
            let begin = if appends { "empty" } else { "zero" };
            let repeat = node("Loop", "loop", &["", "yes", "start", begin], &["n", "all"]);
            let mut nodes = vec![repeat.message(5, graph_attribute("body", body))];
            if appends {
                nodes.insert(0, op("SequenceEmpty -> empty", &[]));
                nodes.push(op("ConcatFromSequence all -> y", &[("axis", I(0))]));
            } else {
                nodes.push(op("Identity all -> y", &[]));
            }
            let yes = Message::default().int(2, BOOL).bytes(8, "yes").bytes(9, [1u8]);
            let constants = vec![
                yes,
                number("start", 0),
                number("one", 1),
                number("until", until),
                ints("list", &[1], &[-1]),
                floats("zero", &[1], &[0.0]),
            ];
            let numbers: Vec<f32> = (1..=until).map(|i| i as f32).collect();
            for extent in [D::N(6), D::Sym("m")] {
                let bytes = of(nodes.clone(), constants.clone(), &[extent]);
                let expected = match appends {
                    true => (vec![numbers.len()], numbers.clone()),
                    false => (vec![1], vec![numbers.iter().sum()]),
                };
                assert_eq!(run(&bytes, &[6]), expected, "{until} {compares} {appends}");
            }
        }
    }
}
