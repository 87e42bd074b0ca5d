//! Padding with an image's own elements: each element is the one that the mode names, for small and large sizes, known when compiled or not, of a given
//! image and of one that is computed, for whoever reads it.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Executable, HostTensor, Input, Specialize, compile_ir};
use tlc_ir::interp::{self, compare, interpret_with_bounds};

use crate::proto::*;

/// The place in `0..n` that a mode has for a place before, in or behind it.
fn place(mode: &str, at: i64, n: i64) -> usize {
    let place = match mode {
        "edge" => at.clamp(0, n - 1),
        "wrap" => at.rem_euclid(n),
        _ => {
            let period = (2 * (n - 1)).max(1);
            let m = at.rem_euclid(period);
            m.min(period - m)
        }
    };
    place as usize
}

fn image(shape: [usize; 4]) -> HostTensor {
    let elements: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|i| (i * 37 % 101) as f32 / 8.0 - 6.0)
        .collect();
    HostTensor::from_slice(&shape, &elements).expect("a tensor")
}

struct Padded {
    mode: &'static str,
    /// Rows and columns before, then behind.
    pads: [i64; 4],
    /// What reads the padded image `p`, and makes `y` of it.
    behind: Vec<Message>,
    /// Whether the image is computed.
    computed: bool,
    weights: Vec<Message>,
}

impl Padded {
    fn compiled(&self, shape: [D; 4], threads: usize) -> (tlc_ir::Graph, Executable) {
        let [top, left, bottom, right] = self.pads;
        let image = if self.computed { "z" } else { "x" };
        let mut nodes = vec![
            op("Sigmoid x -> s", &[]),
            op("Mul x s -> z", &[]),
            op(&format!("Pad {image} pads -> p"), &[("mode", A::T(self.mode))]),
        ];
        nodes.extend(self.behind.iter().cloned());
        let mut given = vec![ints("pads", &[8], &[0, 0, top, left, 0, 0, bottom, right])];
        given.extend(self.weights.iter().cloned());
        let x = vec![value("x", FLOAT, &shape)];
        let bytes = model_of(19, graph(nodes, given, x, vec![value("y", FLOAT, &[])]), vec![]);
        let graph = import(&bytes, &ImportOptions::default())
            .unwrap_or_else(|e| panic!("{e}"))
            .graph;
        let options = CompileOptions {
            threads: Some(threads),
            specialize: Specialize::Never,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        (graph, executable)
    }
}

const MODES: [&str; 3] = ["edge", "wrap", "reflect"];
const PADS: [[i64; 4]; 7] = [
    [1, 1, 1, 1],
    [0, 3, 0, 3],
    [2, 0, 1, 0],
    [0, 2, 3, 0],
    [0, 12, 0, 9],
    [0, 40, 0, 40],
    [-1, 2, 1, -2],
];
const SHAPES: [[usize; 4]; 7] = [
    [1, 1, 1, 1],
    [1, 2, 2, 2],
    [1, 3, 3, 5],
    [2, 3, 4, 17],
    [1, 5, 9, 64],
    [3, 1, 2, 131],
    [1, 2, 50, 50],
];

fn dims(shape: [usize; 4]) -> [D; 4] {
    shape.map(|n| D::N(n as i64))
}

fn any() -> [D; 4] {
    [D::Sym("n"), D::Sym("c"), D::Sym("h"), D::Sym("w")]
}

#[test]
fn padding_of_every_mode_has_the_elements_that_it_names() {
    for mode in MODES {
        for pads in PADS {
            let padded = Padded {
                mode,
                pads,
                behind: vec![op("Identity p -> y", &[])],
                computed: false,
                weights: vec![],
            };
            let (_, of_any) = padded.compiled(any(), 1);
            for shape in SHAPES {
                let [n, c, h, w] = shape.map(|d| d as i64);
                // Of what negative padding leaves alone.
                let (rows, columns) = (h + pads[0] + pads[2], w + pads[1] + pads[3]);
                if h + pads[0].min(0) + pads[2].min(0) < 1 || w + pads[1].min(0) + pads[3].min(0) < 1 {
                    continue;
                }
                let negative = pads.iter().any(|p| *p < 0);
                if negative && mode == "wrap" {
                    continue;
                }
                let x = image(shape);
                let elements = x.as_slice::<f32>().expect("f32");
                let mut expected = Vec::new();
                for plane in 0..(n * c) as usize {
                    for row in 0..rows {
                        let r = place(mode, row - pads[0], h);
                        for column in 0..columns {
                            let k = place(mode, column - pads[1], w);
                            expected.push(elements[(plane * h as usize + r) * w as usize + k]);
                        }
                    }
                }
                let (_, fixed) = padded.compiled(dims(shape), 2);
                for (how, executable) in [("any sizes", &of_any), ("fixed", &fixed)] {
                    let out = executable.run(&[Input::from(&x)]).unwrap_or_else(|e| panic!("{e}"));
                    let found = out[0].to_host();
                    assert_eq!(
                        found.as_slice::<f32>(),
                        Some(&expected[..]),
                        "{mode} {pads:?} {shape:?} {how}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_reads_padding_of_a_computed_image_is_what_the_interpreter_says() {
    let weights = |shape: [i64; 4]| {
        let elements: Vec<f32> = (0..shape.iter().product::<i64>())
            .map(|i| (i * 29 % 23) as f32 / 16.0 - 0.7)
            .collect();
        vec![floats("v", &shape, &elements)]
    };
    let channels = 16;
    let readers = [
        (
            vec![op("AveragePool p -> y", &[("kernel_shape", A::Is(vec![3, 3]))])],
            vec![],
        ),
        (
            vec![op(
                "MaxPool p -> y",
                &[("kernel_shape", A::Is(vec![3, 3])), ("strides", A::Is(vec![2, 2]))],
            )],
            vec![],
        ),
        (
            vec![op("Conv p v -> y", &[("group", A::I(channels))])],
            weights([channels, 1, 3, 3]),
        ),
        (
            vec![op("Conv p v -> y", &[("group", A::I(channels))])],
            weights([channels, 1, 1, 7]),
        ),
        (vec![op("Conv p v -> y", &[])], weights([24, channels, 3, 3])),
        (vec![op("GlobalAveragePool p -> y", &[])], vec![]),
        (
            vec![op("Transpose p -> y", &[("perm", A::Is(vec![0, 2, 3, 1]))])],
            vec![],
        ),
    ];
    let pads = [[1, 3, 1, 3], [1, 1, 2, 0], [0, 6, 0, 6]];
    for (k, (behind, weights)) in readers.into_iter().enumerate() {
        for (mode, pads) in MODES.into_iter().zip(pads) {
            let padded = Padded {
                mode,
                pads,
                behind: behind.clone(),
                computed: true,
                weights: weights.clone(),
            };
            let shape_of = |c: usize, h: usize, w: usize| [1 + c % 2, channels as usize, h, w];
            let sizes = [D::Sym("n"), D::N(channels), D::Sym("h"), D::Sym("w")];
            let (_, of_any) = padded.compiled(sizes, 1);
            for shape in [shape_of(0, 7, 9), shape_of(1, 14, 40), shape_of(0, 8, 7)] {
                let (graph, fixed) = padded.compiled(dims(shape), 2);
                let x = image(shape);
                let options = interp::Options::default();
                let bounded =
                    interpret_with_bounds(&graph, std::slice::from_ref(&x), &options).unwrap_or_else(|e| panic!("{e}"));
                for (how, executable) in [("any sizes", &of_any), ("fixed", &fixed)] {
                    let out = executable.run(&[Input::from(&x)]).unwrap_or_else(|e| panic!("{e}"));
                    compare(&out[0].to_host(), &bounded[0]).unwrap_or_else(|e| {
                        panic!(
                            "reader {k}, {mode} {pads:?} {shape:?} {how}: {e}\n{}",
                            executable.explain()
                        )
                    });
                }
            }
        }
    }
}

/// Where most of a row is what it was, loads there are of neighbours, whatever the sizes are.
#[test]
fn rows_of_a_padded_image_are_loaded_in_vectors() {
    for mode in MODES {
        let padded = Padded {
            mode,
            pads: [0, 3, 0, 3],
            behind: vec![op("Identity p -> y", &[])],
            computed: true,
            weights: vec![],
        };
        for shape in [any(), dims([1, 64, 8, 200])] {
            let text = padded.compiled(shape, 1).1.explain().to_string();
            let mut loops = text.lines().filter(|l| l.contains("innermost loops:"));
            let has_lanes = text.contains("avx512") || text.contains("avx2");
            assert!(!has_lanes || loops.any(|l| l.contains(" lanes")), "{mode}\n{text}");
        }
    }
}
