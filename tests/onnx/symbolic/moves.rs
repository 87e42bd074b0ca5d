//! Operators that move, make and pick elements, and the shape arithmetic that steers them.

use super::Of::{Below, F32, Mask};
use super::{case, check, i, numbers};
use crate::proto::A::{I, Is, T};
use crate::proto::*;

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
    let turned = |name, ends: [&str; 2], step| {
        let constants = vec![
            i("zero", &[0]),
            i("one", &[1]),
            i("two", &[2]),
            i("five", &[5]),
            i("axis", &[2]),
            i("step", &[step]),
        ];
        let mut nodes = vec![op("Shape x -> s", &[("start", I(2))])];
        nodes.extend(ends.map(|text| op(text, &[])));
        nodes.push(op("Slice x a b axis step -> y", &[]));
        let all = [0, 1, 2, 3, 4, 5, 6, 9];
        case(name, 15, &[x], constants, nodes).bound(&all.map(|l| [2, l, 1]))
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
        // From and to sizes, any of which may be below 0 and count from the end then.
        turned(
            "slice of all turned around",
            ["Sub s one -> a", "Sub zero five -> b"],
            -1,
        ),
        turned(
            "slice of all but the last turned around",
            ["Sub s two -> a", "Identity zero -> b"],
            -1,
        ),
        turned("slice down from a size", ["Sub s five -> a", "Sub five s -> b"], -2),
        turned("slice down to a size", ["Identity five -> a", "Sub s five -> b"], -3),
        turned("slice up from a size", ["Sub s five -> a", "Sub two s -> b"], 1),
        turned("slice up to a size", ["Sub two s -> a", "Sub s two -> b"], 2),
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

#[test]
fn shape_arithmetic() {
    let x = ("x", F32, "n 4 l");
    check(vec![
        case(
            "a start that may count from either side",
            15,
            &[x, ("w", F32, "m")],
            vec![i("two", &[2]), i("far", &[i64::MAX])],
            vec![
                op("Shape x -> s", &[("start", I(2))]),
                op("Shape w -> t", &[]),
                op("Sub s t -> d", &[]),
                op("Slice x d far two -> y", &[]),
            ],
        )
        .bound(&[[1, 5, 4], [2, 5, 7], [1, 6, 6], [2, 4, 9]]),
        case(
            "the last queries of a mask",
            15,
            &[("x", F32, "m m"), ("w", F32, "l")],
            vec![i("zero", &[0])],
            vec![
                op("Shape x -> s", &[("end", I(1))]),
                op("Shape w -> t", &[]),
                op("Sub s t -> d", &[]),
                op("Slice x d s zero -> y", &[]),
            ],
        )
        .bound(&[[1, 2, 4], [1, 4, 4], [1, 1, 9]]),
        case(
            "sizes in i32",
            13,
            &[x],
            vec![
                i("zero", &[0]),
                i("one", &[1]),
                i("three", &[3]),
                i("two", &[2]),
                i("half", &[2]),
            ],
            vec![
                op("Shape x -> s", &[]),
                op("Cast s -> t", &[("to", I(6))]),
                op("Slice t zero one -> b", &[]),
                op("Slice t two three -> e", &[]),
                op("Cast half -> h", &[("to", I(6))]),
                op("Concat b h h e -> r", &[("axis", I(0))]),
                op("Cast r -> u", &[("to", I(7))]),
                op("Reshape x u -> y", &[]),
            ],
        ),
        case(
            "expand where a shape says -1",
            13,
            &[("x", F32, "n 1 l")],
            vec![i("target", &[-1, 4, -1]), i("all", &[-1])],
            vec![
                op("Equal target all -> c", &[]),
                op("Shape x -> s", &[]),
                op("Where c s target -> t", &[]),
                op("Expand x t -> y", &[]),
            ],
        ),
        case(
            "a comparison that holds for every size",
            13,
            &[x],
            vec![i("zero", &[0]), i("flat", &[-1])],
            vec![
                op("Shape x -> s", &[]),
                op("ReduceProd s -> p", &[]),
                op("GreaterOrEqual p zero -> g", &[]),
                op("Where g p flat -> t", &[]),
                op("Reshape x t -> y", &[]),
            ],
        ),
        case(
            "padded to a multiple",
            13,
            &[x],
            vec![
                i("two", &[2]),
                i("three", &[3]),
                i("four", &[4]),
                i("none", &[0, 0, 0, 0, 0]),
            ],
            vec![
                op("Shape x -> s", &[]),
                op("Slice s two three -> l", &[]),
                op("Neg l -> m", &[]),
                op("Mod m four -> r", &[]),
                op("Concat none r -> p", &[("axis", I(0))]),
                op("Pad x p -> y", &[]),
            ],
        ),
    ]);
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
            "range between floats that are cast like a size",
            15,
            &[x],
            vec![numbers("zero", &[0.0]), numbers("two", &[2.0]), ints("one", &[], &[1])],
            vec![
                op("Shape x -> s", &[]),
                op("Gather s one -> l", &[]),
                op("Squeeze zero -> z", &[]),
                op("Squeeze two -> t", &[]),
                op("CastLike z l -> a", &[]),
                op("CastLike t l -> b", &[]),
                op("Range a l b -> y", &[]),
            ],
        ),
        case(
            "a size cast like a float and back",
            15,
            &[x],
            vec![ints("one", &[], &[1])],
            vec![
                op("Shape x -> s", &[]),
                op("CastLike s x -> f", &[]),
                op("CastLike f one -> i", &[]),
                op("Expand one i -> y", &[]),
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
