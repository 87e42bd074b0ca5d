//! Models with symbolic extents against the same models with numbers: one compiled graph for every binding must give what a
//! graph compiled for that binding gives.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, DType, Executable, HostTensor, Input, compile_ir};

use crate::proto::*;
use A::{F, I, Is, T};
use Of::{Below, F32, Mask};

/// An input: name, kind of elements, extents by number or symbol.
type Operand = (&'static str, Of, &'static str);

/// What the elements of an input are.
#[derive(Clone, Copy)]
enum Of {
    /// Floats from -2 to 2.
    F32,
    /// Integers below a number.
    Below(i64),
    /// True every third time.
    Mask,
}

struct Case {
    name: &'static str,
    opset: i64,
    inputs: Vec<Operand>,
    constants: Vec<Message>,
    nodes: Vec<Message>,
    /// Bindings of the symbols `n`, `l` and `m`.
    bindings: Vec<[i64; 3]>,
    outputs: usize,
}

fn case(name: &'static str, opset: i64, inputs: &[Operand], constants: Vec<Message>, nodes: Vec<Message>) -> Case {
    Case {
        name,
        opset,
        inputs: inputs.to_vec(),
        constants,
        nodes,
        bindings: vec![[1, 5, 4], [3, 8, 6], [2, 13, 5], [4, 6, 9]],
        outputs: 1,
    }
}

impl Case {
    /// With `y` and `z` as outputs.
    fn two(mut self) -> Case {
        self.outputs = 2;
        self
    }

    fn bound(mut self, bindings: &[[i64; 3]]) -> Case {
        self.bindings = bindings.to_vec();
        self
    }
}

const SYMBOLS: [&str; 3] = ["n", "l", "m"];

fn extent(word: &str, binding: Option<[i64; 3]>) -> D {
    match (SYMBOLS.iter().position(|s| *s == word), binding) {
        (Some(i), Some(numbers)) => D::N(numbers[i]),
        (Some(i), None) => D::Sym(SYMBOLS[i]),
        (None, _) => D::N(word.parse().expect("an extent")),
    }
}

fn bytes(case: &Case, binding: Option<[i64; 3]>) -> Vec<u8> {
    let mut inputs = vec![];
    for (name, of, shape) in &case.inputs {
        let dims: Vec<D> = shape.split_whitespace().map(|w| extent(w, binding)).collect();
        let element = match of {
            F32 => FLOAT,
            Below(_) => INT64,
            Mask => BOOL,
        };
        inputs.push(value(name, element, &dims));
    }
    let outputs = ["y", "z"][..case.outputs].iter().map(|n| value(n, FLOAT, &[]));
    let g = graph(case.nodes.clone(), case.constants.clone(), inputs, outputs.collect());
    model_of(case.opset, g, vec![])
}

fn compiled(case: &Case, binding: Option<[i64; 3]>) -> Result<Executable, String> {
    let imported = import(&bytes(case, binding), &ImportOptions::default()).map_err(|e| e.to_string())?;
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    compile_ir(&imported.graph, &options).map_err(|e| e.to_string())
}

fn operands(case: &Case, binding: [i64; 3]) -> Vec<HostTensor> {
    let mut all = vec![];
    for (k, (_, of, shape)) in case.inputs.iter().enumerate() {
        let shape: Vec<usize> = shape
            .split_whitespace()
            .map(|w| match extent(w, Some(binding)) {
                D::N(n) => n as usize,
                D::Sym(_) => unreachable!("bound"),
            })
            .collect();
        let count: usize = shape.iter().product();
        let at = |i: usize| (i * 37 + k * 11) % 101;
        all.push(match of {
            F32 => {
                let data: Vec<f32> = (0..count).map(|i| at(i) as f32 / 25.0 - 2.0).collect();
                HostTensor::from_slice(&shape, &data)
            }
            Below(n) => {
                let data: Vec<i64> = (0..count).map(|i| at(i) as i64 % n).collect();
                HostTensor::from_slice(&shape, &data)
            }
            Mask => {
                let data: Vec<bool> = (0..count).map(|i| at(i) % 3 != 0).collect();
                HostTensor::from_bools(&shape, &data)
            }
        });
    }
    all.into_iter().map(|t| t.expect("a tensor")).collect()
}

fn run(executable: &Executable, operands: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let inputs: Vec<Input<'_>> = operands.iter().map(Input::from).collect();
    let found = executable.run(&inputs).map_err(|e| e.to_string())?;
    Ok(found.iter().map(|o| o.to_host()).collect())
}

/// Equal types and shapes; floats may differ by what the order of sums makes.
fn alike(a: &HostTensor, b: &HostTensor) -> bool {
    let close = |i: usize| match a.dtype() {
        DType::F32 => {
            let (x, y) = (a.get(i).as_f64(), b.get(i).as_f64());
            x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-5 * (1.0 + y.abs())
        }
        _ => a.get(i) == b.get(i),
    };
    a.dtype() == b.dtype() && a.shape() == b.shape() && (0..a.len()).all(close)
}

fn failures(case: &Case) -> Vec<String> {
    let name = case.name;
    let symbolic = match compiled(case, None) {
        Ok(e) => e,
        Err(e) => return vec![format!("{name}: symbolic: {e}")],
    };
    let mut wrong = vec![];
    for &binding in &case.bindings {
        let operands = operands(case, binding);
        let fixed = compiled(case, Some(binding)).and_then(|e| run(&e, &operands));
        match (run(&symbolic, &operands), fixed) {
            (Ok(a), Ok(b)) => {
                for (a, b) in a.iter().zip(&b).filter(|(a, b)| !alike(a, b)) {
                    wrong.push(format!("{name} {binding:?}: symbolic {a:?}, fixed {b:?}"));
                }
            }
            (a, b) => wrong.push(format!(
                "{name} {binding:?}: symbolic {:?}, fixed {:?}",
                a.err(),
                b.err()
            )),
        }
    }
    wrong
}

fn check(cases: Vec<Case>) {
    let wrong: Vec<String> = cases.iter().flat_map(failures).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn i(name: &str, data: &[i64]) -> Message {
    ints(name, &[data.len() as i64], data)
}

fn f(name: &str, dims: &[i64]) -> Message {
    let count: i64 = dims.iter().product();
    let data: Vec<f32> = (0..count).map(|i| ((i * 29) % 17) as f32 / 8.0 - 1.0).collect();
    floats(name, dims, &data)
}

fn numbers(name: &str, data: &[f32]) -> Message {
    floats(name, &[data.len() as i64], data)
}

#[test]
fn shapes() {
    let x = ("x", F32, "n 4 l");
    check(vec![
        case(
            "reshape 0 -1",
            14,
            &[x],
            vec![i("s", &[0, -1])],
            vec![op("Reshape x s -> y", &[])],
        ),
        case(
            "reshape -1 4",
            14,
            &[x],
            vec![i("s", &[-1, 4])],
            vec![op("Reshape x s -> y", &[])],
        ),
        case(
            "reshape 0 2 2 -1",
            14,
            &[x],
            vec![i("s", &[0, 2, 2, -1])],
            vec![op("Reshape x s -> y", &[])],
        ),
        case(
            "reshape -1",
            14,
            &[x],
            vec![i("s", &[-1])],
            vec![op("Reshape x s -> y", &[])],
        ),
        case(
            "reshape by shape",
            14,
            &[x],
            vec![i("two", &[2]), i("zero", &[0]), i("three", &[3]), i("heads", &[2, -1])],
            vec![
                op("Shape x -> s", &[]),
                op("Slice s zero two -> nc", &[]),
                op("Slice s two three -> len", &[]),
                op("Concat nc heads -> t", &[("axis", I(0))]),
                op("Slice s zero two -> unused", &[]),
                op("Mul len two -> l2", &[]),
                op("Div l2 two -> l1", &[]),
                op("Concat nc l1 -> t1", &[("axis", I(0))]),
                op("Reshape x t1 -> y", &[]),
            ],
        ),
        case(
            "flatten",
            13,
            &[x],
            vec![],
            vec![op("Flatten x -> y", &[("axis", I(2))])],
        ),
        case(
            "transpose",
            13,
            &[x],
            vec![],
            vec![op("Transpose x -> y", &[("perm", Is(vec![2, 0, 1]))])],
        ),
        case(
            "unsqueeze",
            13,
            &[x],
            vec![i("a", &[-1, 0])],
            vec![op("Unsqueeze x a -> y", &[])],
        ),
        case(
            "squeeze",
            13,
            &[("x", F32, "n 1 l")],
            vec![i("a", &[1])],
            vec![op("Squeeze x a -> y", &[])],
        ),
        case(
            "expand like another",
            13,
            &[("x", F32, "n 1 1"), ("w", F32, "4 l")],
            vec![],
            vec![op("Shape w -> s", &[]), op("Expand x s -> y", &[])],
        ),
        case(
            "tile by a size",
            13,
            &[x],
            vec![i("one", &[1]), i("zero", &[0])],
            vec![
                op("Shape x -> s", &[]),
                op("Gather s zero -> b", &[]),
                op("Concat one one b -> r", &[("axis", I(0))]),
                op("Tile x r -> y", &[]),
            ],
        ),
        case("size", 13, &[x], vec![], vec![op("Size x -> y", &[])]),
        case(
            "depth to space",
            13,
            &[("x", F32, "n 8 l m")],
            vec![],
            vec![op("DepthToSpace x -> y", &[("blocksize", I(2)), ("mode", T("CRD"))])],
        ),
        case(
            "space to depth",
            13,
            &[("x", F32, "n 3 l m")],
            vec![],
            vec![op("SpaceToDepth x -> y", &[("blocksize", I(2))])],
        )
        .bound(&[[1, 2, 4], [3, 8, 6]]),
        case(
            "trilu",
            14,
            &[x],
            vec![ints("k", &[], &[1])],
            vec![op("Trilu x k -> y", &[("upper", I(0))])],
        ),
    ]);
}

#[test]
fn parts_and_joins() {
    let x = ("x", F32, "n 4 l");
    let part = |name, starts: &[i64], ends: &[i64], axes: &[i64], steps: &[i64]| {
        case(
            name,
            13,
            &[x],
            vec![i("s", starts), i("e", ends), i("a", axes), i("t", steps)],
            vec![op("Slice x s e a t -> y", &[])],
        )
    };
    let far = i64::MAX;
    check(vec![
        part("slice from 1", &[1], &[far], &[2], &[1]),
        part("slice to -1", &[0], &[-1], &[2], &[1]),
        part("slice last", &[-1], &[far], &[2], &[1]),
        part("slice last three", &[-3], &[far], &[2], &[1]),
        part("slice every other", &[0], &[far], &[2], &[2]),
        part("slice reversed", &[-1], &[-far], &[2], &[-1]),
        part("slice reversed by 2", &[far], &[0], &[2], &[-2]),
        part("slice beyond", &[0], &[7], &[2], &[1]),
        part("slice two axes", &[0, 1], &[1, 4], &[0, 2], &[1, 1]),
        case(
            "slice by a computed end",
            13,
            &[x],
            vec![i("two", &[2]), i("zero", &[0]), i("one", &[1])],
            vec![
                op("Shape x -> s", &[("start", I(2))]),
                op("Sub s one -> e", &[]),
                op("Slice x zero e two -> y", &[]),
            ],
        )
        .at_opset(15),
        case(
            "slice by half",
            15,
            &[x],
            vec![i("two", &[2]), i("zero", &[0])],
            vec![
                op("Shape x -> s", &[("start", I(2))]),
                op("Div s two -> e", &[]),
                op("Slice x zero e two -> y", &[]),
            ],
        ),
        case(
            "concat",
            13,
            &[x, ("w", F32, "n 4 m")],
            vec![],
            vec![op("Concat x w x -> y", &[("axis", I(2))])],
        ),
        case(
            "concat of channels",
            13,
            &[x, ("w", F32, "n 2 l")],
            vec![],
            vec![op("Concat x w -> y", &[("axis", I(1))])],
        ),
        case(
            "split in halves",
            13,
            &[x],
            vec![],
            vec![op("Split x -> y z", &[("axis", I(2))])],
        )
        .two()
        .bound(&[[1, 4, 1], [2, 10, 1]]),
        case(
            "split unequally",
            18,
            &[x],
            vec![],
            vec![op("Split x -> y z", &[("axis", I(2)), ("num_outputs", I(2))])],
        )
        .two(),
        case(
            "split by sizes",
            13,
            &[x],
            vec![i("s", &[1, 3])],
            vec![op("Split x s -> y z", &[("axis", I(1))])],
        )
        .two(),
        case(
            "pad",
            13,
            &[x],
            vec![i("p", &[0, 1, 2, 0, 0, 3])],
            vec![op("Pad x p -> y", &[])],
        ),
        case(
            "pad negative",
            13,
            &[x],
            vec![i("p", &[0, 0, -1, 0, 0, 2])],
            vec![op("Pad x p -> y", &[])],
        ),
        case(
            "pad reflect",
            13,
            &[x],
            vec![i("p", &[0, 0, 2, 0, 0, 3])],
            vec![op("Pad x p -> y", &[("mode", T("reflect"))])],
        ),
        case(
            "pad edge",
            13,
            &[x],
            vec![i("p", &[0, 0, 2, 0, 0, 3])],
            vec![op("Pad x p -> y", &[("mode", T("edge"))])],
        ),
        case(
            "pad wrap",
            19,
            &[x],
            vec![i("p", &[0, 0, 2, 0, 0, 3])],
            vec![op("Pad x p -> y", &[("mode", T("wrap"))])],
        ),
        case(
            "center crop and pad",
            18,
            &[x],
            vec![i("s", &[7])],
            vec![op("CenterCropPad x s -> y", &[("axes", Is(vec![2]))])],
        ),
        case(
            "crop to another's size",
            18,
            &[x, ("w", F32, "m")],
            vec![],
            vec![
                op("Shape w -> s", &[]),
                op("CenterCropPad x s -> y", &[("axes", Is(vec![2]))]),
            ],
        ),
        case(
            "reverse sequence",
            10,
            &[("x", F32, "l n 3"), ("t", Below(5), "n")],
            vec![],
            vec![op("ReverseSequence x t -> y", &[])],
        ),
    ]);
}

impl Case {
    fn at_opset(mut self, opset: i64) -> Case {
        self.opset = opset;
        self
    }
}

#[test]
fn makers() {
    let x = ("x", F32, "n l");
    check(vec![
        case(
            "range",
            15,
            &[x],
            vec![ints("zero", &[], &[0]), ints("one", &[], &[1])],
            vec![
                op("Shape x -> s", &[]),
                op("Gather s one -> l", &[]),
                op("Range zero l one -> y", &[]),
            ],
        ),
        case(
            "range with a step",
            15,
            &[x],
            vec![ints("two", &[], &[2]), ints("three", &[], &[3]), ints("one", &[], &[1])],
            vec![
                op("Shape x -> s", &[]),
                op("Gather s one -> l", &[]),
                op("Range two l three -> y", &[]),
            ],
        ),
        case(
            "range down",
            15,
            &[x],
            vec![
                ints("zero", &[], &[0]),
                ints("down", &[], &[-2]),
                ints("one", &[], &[1]),
            ],
            vec![
                op("Shape x -> s", &[]),
                op("Gather s one -> l", &[]),
                op("Range l zero down -> y", &[]),
            ],
        ),
        case(
            "filled",
            9,
            &[x],
            vec![],
            vec![op("Shape x -> s", &[]), op("ConstantOfShape s -> y", &[])],
        ),
        case("eye like", 9, &[x], vec![], vec![op("EyeLike x -> y", &[("k", I(1))])]),
        case(
            "one hot",
            11,
            &[("x", Below(7), "n l")],
            vec![ints("d", &[], &[7]), numbers("v", &[0.5, 2.0])],
            vec![op("OneHot x d v -> y", &[("axis", I(1))])],
        ),
        case(
            "one hot by a size",
            11,
            &[("x", Below(4), "n"), ("w", F32, "l")],
            vec![numbers("v", &[0.0, 1.0])],
            vec![op("Size w -> d", &[]), op("OneHot x d v -> y", &[])],
        ),
        case(
            "where",
            9,
            &[("c", Mask, "n 1"), x],
            vec![numbers("zero", &[0.0])],
            vec![op("Where c x zero -> y", &[])],
        ),
        case(
            "hann",
            17,
            &[x],
            vec![],
            vec![op("Size x -> s", &[]), op("HannWindow s -> y", &[])],
        ),
        case(
            "hamming",
            17,
            &[x],
            vec![],
            vec![
                op("Size x -> s", &[]),
                op("HammingWindow s -> y", &[("periodic", I(0))]),
            ],
        ),
        case(
            "a size as data",
            13,
            &[x],
            vec![],
            vec![
                op("Shape x -> s", &[]),
                op("Cast s -> t", &[("to", I(1))]),
                op("ReduceProd t -> p", &[("keepdims", I(0))]),
                op("Div x p -> y", &[]),
            ],
        ),
    ]);
}

#[test]
fn indices() {
    let x = ("x", F32, "n l 3");
    check(vec![
        case(
            "gather rows",
            13,
            &[("w", F32, "7 3"), ("t", Below(7), "n l")],
            vec![],
            vec![op("Gather w t -> y", &[])],
        ),
        case(
            "gather from a symbolic axis",
            13,
            &[x],
            vec![i("t", &[0, -1, 2])],
            vec![op("Gather x t -> y", &[("axis", I(1))])],
        ),
        case(
            "gather elements",
            13,
            &[x, ("t", Below(3), "n l 2")],
            vec![],
            vec![op("GatherElements x t -> y", &[("axis", I(2))])],
        ),
        case(
            "gather nd",
            13,
            &[x, ("t", Below(4), "n m 1")],
            vec![],
            vec![op("GatherND x t -> y", &[("batch_dims", I(1))])],
        ),
        case(
            "scatter elements",
            18,
            &[x, ("t", Below(3), "n l 2"), ("u", F32, "n l 2")],
            vec![],
            vec![op(
                "ScatterElements x t u -> y",
                &[("axis", I(2)), ("reduction", T("add"))],
            )],
        ),
        case(
            "scatter nd",
            18,
            &[("x", F32, "5 3"), ("t", Below(5), "l 1"), ("u", F32, "l 3")],
            vec![],
            vec![op("ScatterND x t u -> y", &[("reduction", T("max"))])],
        ),
        case(
            "tensor scatter",
            24,
            &[("x", F32, "n 16 3"), ("u", F32, "n m 3"), ("t", Below(5), "n")],
            vec![],
            vec![op("TensorScatter x u t -> y", &[("axis", I(1))])],
        ),
        case(
            "n-grams",
            9,
            &[("x", Below(4), "n l")],
            vec![],
            vec![op(
                "TfIdfVectorizer x -> y",
                &[
                    ("mode", T("TF")),
                    ("min_gram_length", I(1)),
                    ("max_gram_length", I(2)),
                    ("max_skip_count", I(1)),
                    ("ngram_counts", Is(vec![0, 3])),
                    ("ngram_indexes", Is(vec![0, 1, 2, 4, 3])),
                    ("pool_int64s", Is(vec![0, 1, 3, 1, 2, 0, 3])),
                ],
            )],
        ),
    ]);
}

#[test]
fn reductions_and_normalizations() {
    let x = ("x", F32, "n 4 l m");
    let one =
        |name, opset, text: &str, attributes: &[(&str, A)]| case(name, opset, &[x], vec![], vec![op(text, attributes)]);
    let scaled = |name, opset, text: &str, attributes: &[(&str, A)]| {
        let constants = vec![
            f("s", &[4]),
            f("b", &[4]),
            f("c", &[4]),
            numbers("v", &[0.5, 1.0, 1.5, 2.0]),
        ];
        case(name, opset, &[x], constants, vec![op(text, attributes)])
    };
    check(vec![
        one("sum", 11, "ReduceSum x -> y", &[("axes", Is(vec![2, 3]))]),
        one(
            "mean",
            13,
            "ReduceMean x -> y",
            &[("axes", Is(vec![0, -1])), ("keepdims", I(0))],
        ),
        one("max of all", 13, "ReduceMax x -> y", &[]),
        one("log sum exp", 13, "ReduceLogSumExp x -> y", &[("axes", Is(vec![2]))]),
        one("arg max", 13, "ArgMax x -> y", &[("axis", I(2))]),
        one(
            "last arg max",
            13,
            "ArgMax x -> y",
            &[("axis", I(3)), ("select_last_index", I(1))],
        ),
        one("softmax", 13, "Softmax x -> y", &[("axis", I(2))]),
        one("softmax of old", 11, "Softmax x -> y", &[("axis", I(1))]),
        one("log softmax", 13, "LogSoftmax x -> y", &[("axis", I(3))]),
        one("hardmax", 13, "Hardmax x -> y", &[("axis", I(2))]),
        one("mean variance", 13, "MeanVarianceNormalization x -> y", &[]),
        one("lp norm", 1, "LpNormalization x -> y", &[("axis", I(2)), ("p", I(1))]).at_opset(17),
        one("lrn", 13, "LRN x -> y", &[("size", I(3))]),
        one("global average", 1, "GlobalAveragePool x -> y", &[]).at_opset(17),
        one("global max", 1, "GlobalMaxPool x -> y", &[]).at_opset(17),
        scaled("batch norm", 15, "BatchNormalization x s b c v -> y", &[]),
        scaled("instance norm", 6, "InstanceNormalization x s b -> y", &[]).at_opset(17),
        scaled(
            "group norm",
            21,
            "GroupNormalization x s b -> y",
            &[("num_groups", I(2))],
        ),
        case(
            "layer norm",
            17,
            &[("x", F32, "n l 6")],
            vec![f("s", &[6]), f("b", &[6])],
            vec![op("LayerNormalization x s b -> y", &[])],
        ),
        case(
            "rms norm",
            23,
            &[("x", F32, "n l 6")],
            vec![f("s", &[6])],
            vec![op("RMSNormalization x s -> y", &[])],
        ),
        case(
            "running sum",
            14,
            &[x],
            vec![ints("a", &[], &[2])],
            vec![op("CumSum x a -> y", &[("reverse", I(1)), ("exclusive", I(1))])],
        ),
        case(
            "loss",
            13,
            &[("x", F32, "n 5 l"), ("t", Below(5), "n l")],
            vec![],
            vec![op("SoftmaxCrossEntropyLoss x t -> y z", &[("ignore_index", I(2))])],
        )
        .two(),
        case(
            "quantize by channel",
            13,
            &[x],
            vec![numbers("s", &[0.1, 0.2, 0.3, 0.4])],
            vec![op("QuantizeLinear x s -> q", &[]), op("DequantizeLinear q s -> y", &[])],
        ),
    ]);
}

#[test]
fn products_and_attention() {
    let heads = |n: i64| vec![("q_num_heads", I(n)), ("kv_num_heads", I(n))];
    check(vec![
        case(
            "matmul",
            13,
            &[("x", F32, "n l 6"), ("w", F32, "n 6 m")],
            vec![],
            vec![op("MatMul x w -> y", &[])],
        ),
        case(
            "matmul with weights",
            13,
            &[("x", F32, "n l 6")],
            vec![f("w", &[6, 5])],
            vec![op("MatMul x w -> y", &[])],
        ),
        case(
            "gemm",
            13,
            &[("x", F32, "6 n")],
            vec![f("w", &[5, 6]), f("b", &[5])],
            vec![op(
                "Gemm x w b -> y",
                &[("transA", I(1)), ("transB", I(1)), ("alpha", F(0.5))],
            )],
        ),
        case(
            "einsum",
            13,
            &[("x", F32, "n l 6"), ("w", F32, "n m 6")],
            vec![],
            vec![op("Einsum x w -> y", &[("equation", T("bid,bjd->bij"))])],
        ),
        case(
            "attention",
            23,
            &[("q", F32, "n l 8"), ("k", F32, "n m 8"), ("v", F32, "n m 8")],
            vec![],
            vec![op("Attention q k v -> y", &heads(2))],
        ),
        case(
            "attention with a mask",
            23,
            &[
                ("q", F32, "n 2 l 4"),
                ("k", F32, "n 2 m 4"),
                ("v", F32, "n 2 m 3"),
                ("b", F32, "l m"),
            ],
            vec![],
            vec![op("Attention q k v b -> y", &[("softcap", F(2.0))])],
        ),
        case(
            "causal attention with a cache",
            23,
            &[
                ("q", F32, "n 4 l 4"),
                ("k", F32, "n 2 l 4"),
                ("v", F32, "n 2 l 4"),
                ("pk", F32, "n 2 m 4"),
                ("pv", F32, "n 2 m 4"),
            ],
            vec![],
            vec![op("Attention q k v _ pk pv -> y z", &[("is_causal", I(1))])],
        )
        .two(),
        case(
            "rotary",
            23,
            &[("x", F32, "n l 8"), ("p", Below(9), "n l")],
            vec![f("c", &[9, 2]), f("s", &[9, 2])],
            vec![op("RotaryEmbedding x c s p -> y", &[("num_heads", I(2))])],
        ),
        case(
            "linear attention",
            27,
            &[
                ("q", F32, "n l 8"),
                ("k", F32, "n l 4"),
                ("v", F32, "n l 6"),
                ("g", F32, "n l 4"),
            ],
            vec![],
            vec![
                op("Abs g -> a", &[]),
                op("Neg a -> d", &[]),
                op(
                    "LinearAttention q k v _ d -> y z",
                    &[
                        ("q_num_heads", I(4)),
                        ("kv_num_heads", I(2)),
                        ("update_rule", T("gated")),
                    ],
                ),
            ],
        )
        .two(),
        case(
            "causal convolution",
            27,
            &[("x", F32, "n 3 l")],
            vec![f("w", &[3, 1, 4]), f("b", &[3])],
            vec![op("CausalConvWithState x w b -> y z", &[("activation", T("silu"))])],
        )
        .two(),
        case(
            "dft",
            17,
            &[("x", F32, "n l 1")],
            vec![],
            vec![op("DFT x -> y", &[("onesided", I(1))])],
        ),
        case(
            "inverse dft",
            17,
            &[("x", F32, "n l 2")],
            vec![],
            vec![op("DFT x -> y", &[("inverse", I(1))])],
        ),
        case(
            "stft",
            17,
            &[("x", F32, "n l 1")],
            vec![ints("s", &[], &[2]), f("w", &[4])],
            vec![op("STFT x s w -> y", &[])],
        ),
        case("det", 11, &[("x", F32, "n l 3 3")], vec![], vec![op("Det x -> y", &[])]),
    ]);
}

#[test]
fn convolutions_and_pools() {
    let image = ("x", F32, "n 4 l m");
    let conv = |name, attributes: &[(&str, A)]| {
        let constants = vec![f("w", &[6, 4, 3, 3]), f("b", &[6])];
        case(name, 11, &[image], constants, vec![op("Conv x w b -> y", attributes)])
    };
    let turned = |name, attributes: &[(&str, A)]| {
        let constants = vec![f("w", &[4, 3, 3, 3]), f("b", &[3])];
        case(
            name,
            11,
            &[image],
            constants,
            vec![op("ConvTranspose x w b -> y", attributes)],
        )
    };
    let pool = |name, opset, text: &str, attributes: &[(&str, A)]| {
        let mut all = vec![("kernel_shape", Is(vec![3, 2]))];
        all.extend_from_slice(attributes);
        case(name, opset, &[image], vec![], vec![op(text, &all)])
    };
    let strides = |a, b| ("strides", Is(vec![a, b]));
    let pads = ("pads", Is(vec![1, 0, 1, 1]));
    check(vec![
        conv("conv", &[]),
        conv("conv padded", &[("pads", Is(vec![1, 1, 1, 1])), strides(2, 1)]),
        conv(
            "conv dilated",
            &[("pads", Is(vec![2, 2, 2, 2])), ("dilations", Is(vec![2, 2]))],
        ),
        conv("conv same", &[("auto_pad", T("SAME_UPPER")), strides(2, 2)]),
        conv("conv same lower", &[("auto_pad", T("SAME_LOWER")), strides(2, 3)]),
        turned("transposed", &[]),
        turned(
            "transposed by 2",
            &[
                strides(2, 2),
                ("pads", Is(vec![1, 1, 1, 1])),
                ("output_padding", Is(vec![1, 1])),
            ],
        ),
        turned("transposed same", &[strides(2, 2), ("auto_pad", T("SAME_UPPER"))]),
        pool("max pool", 12, "MaxPool x -> y z", &[strides(2, 2), pads.clone()]).two(),
        pool(
            "max pool ceil",
            12,
            "MaxPool x -> y z",
            &[strides(2, 2), ("ceil_mode", I(1))],
        )
        .two(),
        pool(
            "max pool by columns",
            12,
            "MaxPool x -> y z",
            &[strides(1, 2), ("storage_order", I(1))],
        )
        .two(),
        pool(
            "max pool same",
            12,
            "MaxPool x -> y",
            &[strides(2, 2), ("auto_pad", T("SAME_LOWER"))],
        ),
        pool("average pool", 19, "AveragePool x -> y", &[strides(2, 2), pads.clone()]),
        pool(
            "average pool ceil",
            19,
            "AveragePool x -> y",
            &[
                strides(2, 3),
                pads.clone(),
                ("ceil_mode", I(1)),
                ("count_include_pad", I(1)),
            ],
        ),
        pool("lp pool", 18, "LpPool x -> y", &[strides(2, 2)]),
        case(
            "unpooled",
            12,
            &[image],
            vec![],
            vec![
                op("MaxPool x -> p t", &[("kernel_shape", Is(vec![2, 2])), strides(2, 2)]),
                op("MaxUnpool p t -> y", &[("kernel_shape", Is(vec![2, 2])), strides(2, 2)]),
            ],
        ),
        case(
            "col2im",
            18,
            &[("x", F32, "n 12 12")],
            vec![i("s", &[5, 4]), i("b", &[2, 2])],
            vec![op("Col2Im x s b -> y", &[])],
        ),
        case(
            "deformed",
            19,
            &[("x", F32, "n 4 5 6"), ("o", F32, "n 8 4 5")],
            vec![f("w", &[3, 4, 2, 2])],
            vec![op("DeformConv x w o -> y", &[])],
        ),
        case(
            "regions",
            16,
            &[image, ("r", F32, "3 4"), ("t", Below(1), "3")],
            vec![],
            vec![op(
                "RoiAlign x r t -> y",
                &[
                    ("output_height", I(2)),
                    ("output_width", I(3)),
                    ("sampling_ratio", I(2)),
                ],
            )],
        ),
    ]);
}

#[test]
fn resampling() {
    let image = ("x", F32, "n 2 l m");
    let by = |name, scales: &[f32], attributes: &[(&str, A)]| {
        let constants = vec![numbers("s", scales)];
        case(name, 19, &[image], constants, vec![op("Resize x _ s -> y", attributes)])
    };
    let to = |name, attributes: &[(&str, A)]| {
        let mut all = vec![("axes", Is(vec![2, 3]))];
        all.extend_from_slice(attributes);
        case(
            name,
            19,
            &[image],
            vec![i("s", &[7, 5])],
            vec![op("Resize x _ _ s -> y", &all)],
        )
    };
    let linear = ("mode", T("linear"));
    let cubic = ("mode", T("cubic"));
    let place = |how| ("coordinate_transformation_mode", T(how));
    check(vec![
        by("nearest by 2", &[1.0, 1.0, 2.0, 2.0], &[]),
        by(
            "nearest by 2, asymmetric",
            &[1.0, 1.0, 2.0, 3.0],
            &[place("asymmetric"), ("nearest_mode", T("floor"))],
        ),
        by("nearest by 1.5", &[1.0, 1.0, 1.5, 0.6], &[("nearest_mode", T("ceil"))]),
        by("linear by 2", &[1.0, 1.0, 2.0, 2.0], std::slice::from_ref(&linear)),
        by(
            "linear by 0.6",
            &[1.0, 1.0, 0.6, 1.3],
            &[linear.clone(), place("half_pixel_symmetric")],
        ),
        by(
            "linear aligned",
            &[1.0, 1.0, 2.0, 1.5],
            &[linear.clone(), place("align_corners")],
        ),
        by(
            "cubic",
            &[1.0, 1.0, 1.7, 0.8],
            &[cubic.clone(), ("exclude_outside", I(1))],
        ),
        by(
            "antialias",
            &[1.0, 1.0, 0.6, 0.3],
            &[linear.clone(), ("antialias", I(1))],
        ),
        to("linear to a size", std::slice::from_ref(&linear)),
        to("cubic to a size", &[cubic, place("pytorch_half_pixel")]),
        case(
            "resize like another",
            19,
            &[image, ("w", F32, "m l")],
            vec![],
            vec![
                op("Shape w -> s", &[]),
                op("Resize x _ _ s -> y", &[("axes", Is(vec![2, 3])), linear.clone()]),
            ],
        ),
        case(
            "upsample",
            9,
            &[image],
            vec![numbers("s", &[1.0, 1.0, 2.0, 1.5])],
            vec![op("Upsample x s -> y", &[linear])],
        ),
        case(
            "grid sample",
            20,
            &[image, ("g", F32, "n l 3 2")],
            vec![],
            vec![op("GridSample x g -> y", &[("padding_mode", T("reflection"))])],
        ),
        case(
            "affine grid",
            20,
            &[("x", F32, "n 2 3"), image_like()],
            vec![],
            vec![op("Shape w -> s", &[]), op("AffineGrid x s -> y", &[])],
        ),
    ]);
}

fn image_like() -> Operand {
    ("w", F32, "n 2 l m")
}
