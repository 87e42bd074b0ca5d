//! Attention on a GPU is one kernel that gives what the graph means, whatever its masks, heads and sizes; and stays several kernels
//! where it must.

use crate::oracle::generate::Case;
use crate::oracle::stages::{check, gpu, gpu_alone};
use std::sync::Arc;

use tlc_ir::kernel::Access;
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{HostTensor, Scalar};
use tlc_passes::cluster::ClusterKind;
use tlc_passes::devices::Devices;
use tlc_passes::partition::AttentionForm;
use tlc_passes::pipeline::{Compiled, Options, Pipeline};
use tlc_passes::reason::{AttentionRefusal, FusionReason};

/// Sizes of an attention: batch and heads, queries, keys, and the lengths of their vectors and of values.
#[derive(Clone, Copy)]
struct Sizes<'a> {
    heads: &'a str,
    rows: &'a str,
    keys: &'a str,
    features: u32,
    width: u32,
}

/// The text of an attention: what is computed from the scores `%s` to `%x` is given, and so are further inputs.
fn text(sizes: Sizes<'_>, dtypes: [&str; 2], (inputs, symbols): (&str, &str), middle: &str, last: &str) -> String {
    let Sizes {
        heads: h,
        rows: s,
        keys: t,
        features: d,
        width: w,
    } = sizes;
    let [held, wide] = dtypes;
    let middle = middle.replace("SHAPE", &format!("{wide}[{h}, {s}, {t}]"));
    let middle = middle.replace("WIDE", wide);
    let middle = middle.replace("DIMS", &format!("[{h}, {s}, {t}]"));
    format!(
        "graph @attention(%q: {held}[{h}, {s}, {d}], %k: {held}[{h}, {t}, {d}], %v: {held}[{h}, {t}, {w}]{inputs}){symbols} {{
           %s = einsum %q, %k {{abc,adc->abd; acc={wide}}} : {wide}[{h}, {s}, {t}]
           {middle}
           %max = reduce max %x {{axes=[2]}} : {wide}[{h}, {s}]
           %max1 = reshape %max : {wide}[{h}, {s}, 1]
           %max2 = expand %max1 : {wide}[{h}, {s}, {t}]
           %away = sub %x, %max2 : {wide}[{h}, {s}, {t}]
           %power = exp %away : {wide}[{h}, {s}, {t}]
           %sum = reduce add %power {{axes=[2]}} : {wide}[{h}, {s}]
           %sum1 = reshape %sum : {wide}[{h}, {s}, 1]
           %sum2 = expand %sum1 : {wide}[{h}, {s}, {t}]
           %p = div %power, %sum2 : {wide}[{h}, {s}, {t}]
           %y = einsum %p, %v {{abd,adc->abc; acc={wide}}} : {held}[{h}, {s}, {w}]
           {last}
         }}"
    )
}

const SCALED: &str = "%c = const 0.25 : WIDE[]
   %c1 = expand %c : SHAPE
   %x = mul %s, %c1 : SHAPE";
/// A key behind the query is hidden.
const CAUSAL: &str = "%i = iota {axis=1} : i64DIMS
   %j = iota {axis=2} : i64DIMS
   %seen = le %j, %i : boolDIMS
   %low = const -inf : WIDE[]
   %low1 = expand %low : SHAPE
   %x = select %seen, %s, %low1 : SHAPE";
/// A mask that is added, and a cap.
const CAPPED: &str = "%c = const 0.5 : WIDE[]
   %c1 = expand %c : SHAPE
   %less = mul %s, %c1 : SHAPE
   %bent = tanh %less : SHAPE
   %m1 = expand %m : SHAPE
   %x = add %bent, %m1 : SHAPE";

/// A case with values between -2 and 2; masks are 0 or minus infinity.
fn case(text: &str, symbols: &[i64], tolerance: f64) -> Case {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let mut inputs = Vec::new();
    for (number, &i) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(i);
        let sizes = ty.shape.iter().map(|d| d.eval_symbols(symbols).unwrap() as usize);
        let mut x = HostTensor::zeros(ty.dtype, &sizes.collect::<Vec<_>>()).unwrap();
        for k in 0..x.len() {
            let value = match number {
                0..3 => ((k * 37 + 11 + number * 5) % 101) as f64 / 25.0 - 2.0,
                _ if k % 7 == 3 => f64::NEG_INFINITY,
                _ => 0.0,
            };
            x.set(k, Scalar::from_f64(x.dtype(), value));
        }
        inputs.push(x);
    }
    Case {
        tolerance: vec![Some(tolerance); graph.outputs().len()],
        graph,
        inputs,
        symbols: symbols.to_vec(),
    }
}

fn compiled(case: &Case) -> Compiled {
    check(case, &Pipeline::default(), gpu()).unwrap_or_else(|e| panic!("{e}"))
}

/// Whether all is one kernel; says what was decided if it is not.
fn is_one(compiled: &Compiled) -> bool {
    let clusters = &compiled.clusters.clusters;
    let one =
        compiled.planned.launches.len() == 1 && clusters.iter().any(|c| matches!(c.kind, ClusterKind::Attention(_)));
    if !one {
        for d in compiled.clusters.ledger.entries() {
            println!("{:?} -> {:?}: {}", d.producer, d.consumer, d.reason);
        }
    }
    one
}

fn sizes<'a>(heads: &'a str, rows: &'a str, keys: &'a str, features: u32, width: u32) -> Sizes<'a> {
    Sizes {
        heads,
        rows,
        keys,
        features,
        width,
    }
}

#[test]
fn attention_is_one_kernel_whatever_its_sizes_types_and_masks() {
    let none = ("", "");
    let mask = (", %m: f32[1, 70, 45]", "");
    for (sizes, dtypes, more, middle, tolerance) in [
        (sizes("1", "64", "64", 16, 16), ["f32", "f32"], none, SCALED, 1e-5),
        (sizes("2", "33", "45", 20, 24), ["f32", "f32"], none, SCALED, 1e-5),
        (sizes("1", "70", "45", 20, 7), ["f32", "f32"], none, CAUSAL, 1e-5),
        (sizes("1", "70", "45", 5, 33), ["f32", "f32"], mask, CAPPED, 1e-5),
        (sizes("1", "16", "2", 128, 128), ["f32", "f32"], none, SCALED, 1e-5),
        (sizes("1", "33", "40", 16, 16), ["f64", "f64"], none, CAUSAL, 1e-12),
        (sizes("1", "20", "40", 16, 16), ["f16", "f32"], none, SCALED, 2e-3),
        (sizes("1", "20", "40", 16, 16), ["bf16", "f32"], none, CAUSAL, 2e-2),
    ] {
        let text = text(sizes, dtypes, more, middle, "return %y");
        assert!(is_one(&compiled(&case(&text, &[], tolerance))), "{text}");
    }
}

#[test]
fn weights_by_the_inverse_of_their_sum_are_an_attention() {
    let text = text(
        sizes("1", "20", "33", 8, 8),
        ["f32", "f32"],
        ("", ""),
        SCALED,
        "return %y",
    );
    let inverse = "%one = const 1.0 : f32[]
           %one1 = expand %one : f32[1, 20, 1]
           %part = div %one1, %sum1 : f32[1, 20, 1]
           %sum2 = expand %part : f32[1, 20, 33]
           %p = mul %power, %sum2 : f32[1, 20, 33]";
    let (begin, rest) = text.split_once("%sum2").expect("it divides");
    let (_, end) = rest.split_once("%sum2 : f32[1, 20, 33]").expect("it divides");
    assert!(is_one(&compiled(&case(&format!("{begin}{inverse}{end}"), &[], 1e-5))));
}

#[test]
fn attention_of_symbolic_and_empty_sizes_is_one_kernel() {
    let symbols = " where b in 0..=4, n in 0..=4096, m in 0..=4096";
    for values in [[2, 17, 33], [1, 64, 32], [0, 5, 5], [2, 0, 5], [2, 5, 0], [1, 1, 1]] {
        for middle in [SCALED, CAUSAL] {
            let text = text(
                sizes("b", "n", "m", 8, 8),
                ["f32", "f32"],
                ("", symbols),
                middle,
                "return %y",
            );
            assert!(is_one(&compiled(&case(&text, &values, 1e-5))), "{values:?}");
        }
    }
}

/// An axis that is known to be empty has no block, and none divides by its length.
#[test]
fn attention_of_nothing_is_nothing() {
    for (heads, rows, keys) in [("0", "20", "33"), ("2", "0", "33"), ("2", "20", "0"), ("0", "0", "0")] {
        for middle in [SCALED, CAUSAL] {
            let text = text(
                sizes(heads, rows, keys, 8, 8),
                ["f32", "f32"],
                ("", ""),
                middle,
                "return %y",
            );
            compiled(&case(&text, &[], 1e-5));
        }
    }
    for (a, b) in [(3, 0), (0, 3), (0, 0)] {
        let text = format!(
            "graph @empty(%q: f32[{a}, {b}, 20, 8], %k: f32[{a}, {b}, 33, 8], %v: f32[{a}, {b}, 33, 8]) {{
               %s = einsum %q, %k {{abcd,abed->abce}} : f32[{a}, {b}, 20, 33]
               %max = reduce max %s {{axes=[3]}} : f32[{a}, {b}, 20]
               %max1 = reshape %max : f32[{a}, {b}, 20, 1]
               %max2 = expand %max1 : f32[{a}, {b}, 20, 33]
               %away = sub %s, %max2 : f32[{a}, {b}, 20, 33]
               %power = exp %away : f32[{a}, {b}, 20, 33]
               %sum = reduce add %power {{axes=[3]}} : f32[{a}, {b}, 20]
               %sum1 = reshape %sum : f32[{a}, {b}, 20, 1]
               %sum2 = expand %sum1 : f32[{a}, {b}, 20, 33]
               %p = div %power, %sum2 : f32[{a}, {b}, 20, 33]
               %y = einsum %p, %v {{abcd,abde->abce}} : f32[{a}, {b}, 20, 8]
               return %y
             }}"
        );
        compiled(&case(&text, &[], 1e-5));
    }
}

#[test]
fn hidden_rows_infinities_and_nan_are_what_they_are_in_several_kernels() {
    let more = (", %m: f32[1, 18, 70]", "");
    let text = text(sizes("1", "18", "70", 4, 4), ["f32", "f32"], more, CAPPED, "return %y");
    for round in 0..8 {
        let mut case = case(&text, &[], 1e-5);
        let low = Scalar::from_f64(tlc_ir::DType::F32, f64::NEG_INFINITY);
        // A row that sees nothing, and one that sees nothing but the last keys.
        for k in 0..70 {
            case.inputs[3].set(70 + k, low);
            if k < 66 {
                case.inputs[3].set(140 + k, low);
            }
        }
        let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][round % 4];
        let (input, at) = (round % 3, 7 * round + 2);
        case.inputs[input].set(at, Scalar::from_f64(tlc_ir::DType::F32, special));
        assert!(is_one(&compiled(&case)), "{round}");
    }
}

#[test]
fn heads_that_share_keys_and_heads_in_rows_of_tokens_are_one_kernel() {
    let grouped = "graph @grouped(%q: f32[2, 40, 4, 8], %k: f32[2, 50, 2, 8], %v: f32[2, 50, 2, 8]) {
       %q0 = permute %q {axes=[0, 2, 1, 3]} : f32[2, 4, 40, 8]
       %k0 = permute %k {axes=[0, 2, 1, 3]} : f32[2, 2, 50, 8]
       %k1 = reshape %k0 : f32[2, 2, 1, 50, 8]
       %k2 = expand %k1 : f32[2, 2, 2, 50, 8]
       %k3 = reshape %k2 : f32[2, 4, 50, 8]
       %v0 = permute %v {axes=[0, 2, 1, 3]} : f32[2, 2, 50, 8]
       %v1 = reshape %v0 : f32[2, 2, 1, 50, 8]
       %v2 = expand %v1 : f32[2, 2, 2, 50, 8]
       %v3 = reshape %v2 : f32[2, 4, 50, 8]
       %s = einsum %q0, %k3 {abcd,abed->abce} : f32[2, 4, 40, 50]
       %max = reduce max %s {axes=[3]} : f32[2, 4, 40]
       %max1 = reshape %max : f32[2, 4, 40, 1]
       %max2 = expand %max1 : f32[2, 4, 40, 50]
       %away = sub %s, %max2 : f32[2, 4, 40, 50]
       %power = exp %away : f32[2, 4, 40, 50]
       %sum = reduce add %power {axes=[3]} : f32[2, 4, 40]
       %sum1 = reshape %sum : f32[2, 4, 40, 1]
       %sum2 = expand %sum1 : f32[2, 4, 40, 50]
       %p = div %power, %sum2 : f32[2, 4, 40, 50]
       %y = einsum %p, %v3 {abce,abed->abcd} : f32[2, 4, 40, 8]
       %y0 = permute %y {axes=[0, 2, 1, 3]} : f32[2, 40, 4, 8]
       %y1 = reshape %y0 : f32[2, 40, 32]
       return %y1
     }";
    // Where a library multiplies, keys of several heads are laid out for it before it is known that it will not be called.
    let compiled = check(&case(grouped, &[], 1e-5), &Pipeline::default(), gpu_alone());
    assert!(is_one(&compiled.unwrap_or_else(|e| panic!("{e}"))));
}

/// Why an attention is several kernels.
fn refusal(text: &str) -> AttentionRefusal {
    let compiled = compiled(&case(text, &[], 1e-4));
    assert!(!is_one(&compiled));
    let entries = compiled.clusters.ledger.entries().iter();
    let mut refusals = entries.filter_map(|d| match d.reason {
        FusionReason::NoAttention(refusal) => Some(refusal),
        _ => None,
    });
    refusals.next().expect("it is told")
}

#[test]
fn what_is_needed_elsewhere_or_too_small_stays_several_kernels() {
    let (one, types) = (sizes("2", "40", "40", 16, 16), ["f32", "f32"]);
    let of = |sizes, middle: &str, last: &str| refusal(&text(sizes, types, ("", ""), middle, last));
    assert_eq!(of(one, SCALED, "return %y, %p"), AttentionRefusal::Needed);
    assert_eq!(of(one, SCALED, "return %y, %s"), AttentionRefusal::Needed);
    let few = sizes("2", "3", "40", 16, 16);
    assert_eq!(of(few, SCALED, "return %y"), AttentionRefusal::FewRows { rows: 3 });
    let long = sizes("1", "16", "40", 300, 16);
    assert_eq!(of(long, SCALED, "return %y"), AttentionRefusal::Features);
}

/// The text of an attention as exporters of 16-bit models write it: scores are of that type, and the softmax is rounded to it.
fn exported(sizes: Sizes<'_>, dtype: &str, symbols: &str) -> String {
    let plain = text(sizes, [dtype, "f32"], ("", symbols), "SCALES", "return %y");
    let Sizes {
        heads: h,
        rows: s,
        keys: t,
        ..
    } = sizes;
    let shape = format!("[{h}, {s}, {t}]");
    let scaled = format!(
        "%c = const 0.25 : {dtype}[]
           %c1 = expand %c : {dtype}{shape}
           %scaled = mul %s, %c1 : {dtype}{shape}
           %x = convert %scaled : f32{shape}"
    );
    plain
        .replace(
            &format!("acc=f32}} : f32{shape}"),
            &format!("acc=f32}} : {dtype}{shape}"),
        )
        .replace("SCALES", &scaled)
        .replace(
            "%y = einsum %p",
            &format!("%r = convert %p : {dtype}{shape}\n           %y = einsum %r"),
        )
}

#[test]
fn attention_of_rounded_scores_and_weights_is_one_kernel_of_matrix_instructions() {
    for (sizes, dtype, tolerance) in [
        (sizes("1", "33", "45", 20, 24), "f16", 4e-3),
        (sizes("1", "4", "70", 8, 40), "f16", 4e-3),
        (sizes("1", "17", "3", 7, 5), "bf16", 3e-2),
        (sizes("2", "1", "70", 24, 16), "f16", 4e-3),
    ] {
        let text = exported(sizes, dtype, "");
        let compiled = compiled(&case(&text, &[], tolerance));
        assert!(is_one(&compiled), "{text}");
        let warps = |c: &tlc_passes::partition::Cluster| match &c.kind {
            ClusterKind::Attention(a) => matches!(a.form, AttentionForm::Warps(_)),
            _ => false,
        };
        assert_eq!(
            compiled.clusters.clusters.iter().any(warps),
            sizes.rows != "1",
            "{text}"
        );
    }
    let symbols = " where b in 0..=4, n in 0..=4096, m in 0..=4096";
    for values in [[1, 17, 33], [2, 0, 5], [2, 5, 0]] {
        let text = exported(sizes("b", "n", "m", 16, 16), "f16", symbols);
        assert!(is_one(&compiled(&case(&text, &values, 4e-3))), "{values:?}");
    }
}

#[test]
fn the_threads_of_a_block_share_the_keys_of_one_row() {
    let single = |compiled: &Compiled| {
        let row = |c: &tlc_passes::partition::Cluster| match &c.kind {
            ClusterKind::Attention(a) => matches!(a.form, AttentionForm::Row(_)),
            _ => false,
        };
        is_one(compiled) && compiled.clusters.clusters.iter().any(row)
    };
    let none = ("", "");
    let mask = (", %m: f32[1, 1, 45]", "");
    for (sizes, dtypes, more, middle, tolerance) in [
        (sizes("3", "1", "64", 16, 16), ["f32", "f32"], none, SCALED, 1e-5),
        (sizes("1", "1", "150", 20, 24), ["f32", "f32"], none, SCALED, 1e-5),
        (sizes("1", "1", "45", 5, 33), ["f32", "f32"], mask, CAPPED, 1e-5),
        (sizes("1", "1", "3", 16, 200), ["f32", "f32"], none, SCALED, 1e-5),
        (sizes("1", "1", "40", 7, 3), ["f64", "f64"], none, SCALED, 1e-12),
        (sizes("1", "1", "140", 32, 24), ["bf16", "f32"], none, SCALED, 2e-2),
    ] {
        let text = text(sizes, dtypes, more, middle, "return %y");
        assert!(single(&compiled(&case(&text, &[], tolerance))), "{text}");
    }
    let symbols = " where b in 0..=4, m in 0..=500";
    for values in [[2, 33], [1, 129], [2, 0], [0, 3]] {
        let text = text(
            sizes("b", "1", "m", 16, 16),
            ["f32", "f32"],
            ("", symbols),
            SCALED,
            "return %y",
        );
        assert!(single(&compiled(&case(&text, &values, 1e-5))), "{values:?}");
    }
}

/// The parts of the keys of each row that blocks share; `None` unless two kernels do it.
fn parts(compiled: &Compiled) -> Option<i64> {
    let of = |c: &tlc_passes::partition::Cluster| match &c.kind {
        ClusterKind::Attention(a) => match a.form {
            AttentionForm::Row(row) => Some(row.parts),
            _ => None,
        },
        _ => None,
    };
    let found = compiled.clusters.clusters.iter().find_map(of);
    found.filter(|n| *n > 1 && compiled.planned.launches.len() == 2)
}

#[test]
fn blocks_share_the_keys_of_a_row_where_one_a_row_would_leave_a_device_idle() {
    let none = ("", "");
    let mask = (", %m: f32[1, 1, 700]", "");
    // Of 108 multiprocessors, as many as there are for each row, of at least 128 keys.
    for (heads, keys, expected) in [
        ("3", "1024", Some(8)),
        ("1", "3000", Some(23)),
        ("40", "1024", Some(2)),
        ("55", "1024", None),
        ("1", "511", None),
    ] {
        let text = text(sizes(heads, "1", keys, 8, 8), ["f32", "f32"], none, SCALED, "return %y");
        let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let compiled = tlc_passes::compile(&graph, &gpu()).expect("it compiles");
        assert_eq!(parts(&compiled), expected, "{text}");
        let entries = compiled.clusters.ledger.entries();
        let reasons: Vec<String> = entries.iter().map(|d| d.reason.to_string()).collect();
        let said = reasons.iter().any(|r| r.contains("of 108 multiprocessors idle"));
        assert_eq!(said, expected.is_some(), "{reasons:?}");
    }
    for (sizes, dtypes, more, middle, tolerance, expected) in [
        (sizes("1", "1", "800", 12, 24), ["f32", "f32"], none, SCALED, 1e-5, 6),
        (sizes("1", "1", "700", 5, 33), ["f32", "f32"], mask, CAPPED, 1e-5, 5),
        (sizes("1", "1", "513", 7, 3), ["f64", "f64"], none, SCALED, 1e-12, 4),
        (sizes("2", "1", "520", 16, 8), ["bf16", "f32"], none, SCALED, 2e-2, 4),
    ] {
        let text = text(sizes, dtypes, more, middle, "return %y");
        assert_eq!(parts(&compiled(&case(&text, &[], tolerance))), Some(expected), "{text}");
    }
    let symbols = " where b in 0..=4, m in 0..=600";
    for values in [[2, 33], [1, 129], [2, 0], [0, 3], [1, 600]] {
        let sizes = sizes("b", "1", "m", 4, 4);
        let text = text(sizes, ["f32", "f32"], ("", symbols), SCALED, "return %y");
        assert_eq!(parts(&compiled(&case(&text, &values, 1e-5))), Some(4), "{values:?}");
    }
}

/// Keys that are hidden in whole parts, in all but one, and everywhere; and what is no finite number.
#[test]
fn parts_of_hidden_keys_and_infinities_are_what_they_are_in_several_kernels() {
    let more = (", %m: f32[1, 1, 800]", "");
    let text = text(sizes("1", "1", "800", 4, 2), ["f32", "f32"], more, CAPPED, "return %y");
    let number = |value: f64| Scalar::from_f64(tlc_ir::DType::F32, value);
    for (round, hidden) in [0..300, 300..800, 5..799, 0..800].into_iter().enumerate() {
        let mut case = case(&text, &[], 1e-5);
        for k in hidden {
            case.inputs[3].set(k, number(f64::NEG_INFINITY));
        }
        assert_eq!(parts(&compiled(&case)), Some(6));
        let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][round];
        case.inputs[round % 3].set(2, number(special));
        assert_eq!(parts(&compiled(&case)), Some(6));
    }
}

/// As ONNX has it: a maximum of minus infinity is taken to be 0, and a sum of 0 to be 1.
#[test]
fn rows_of_hidden_keys_may_be_zero() {
    let guarded = |rows: &str, keys: &str, held: &str| {
        let plain = text(
            sizes("1", rows, keys, 16, 16),
            [held, "f32"],
            (&format!(", %m: f32[1, {rows}, {keys}]"), ""),
            "%c = const 0.5 : WIDE[]
             %c1 = expand %c : SHAPE
             %less = mul %s, %c1 : SHAPE
             %x = add %less, %m : SHAPE",
            "return %y",
        );
        let of = |value: &str, number: &str, by: &str| {
            format!(
                "%{value}_of = const {number} : f32[]
                 %{value}_ofs = expand %{value}_of : f32[1, {rows}]
                 %{value}_by = const {by} : f32[]
                 %{value}_bys = expand %{value}_by : f32[1, {rows}]
                 %{value}_is = eq %{value}, %{value}_ofs : bool[1, {rows}]
                 %{value}_or = select %{value}_is, %{value}_bys, %{value} : f32[1, {rows}]"
            )
        };
        let with_maximum = plain.replace(
            "%max1 = reshape %max :",
            &format!("{}\n%max1 = reshape %max_or :", of("max", "-inf", "0.0")),
        );
        with_maximum.replace(
            "%sum1 = reshape %sum :",
            &format!("{}\n%sum1 = reshape %sum_or :", of("sum", "0.0", "1.0")),
        )
    };
    let low = Scalar::from_f64(tlc_ir::DType::F32, f64::NEG_INFINITY);
    for (rows, keys, held, tolerance) in [
        (20, 40, "f32", 1e-5),
        (20, 40, "f16", 2e-3),
        (1, 90, "f32", 1e-5),
        (1, 600, "f32", 1e-5),
    ] {
        let text = guarded(&rows.to_string(), &keys.to_string(), held);
        let mut case = case(&text, &[], tolerance);
        // The first row, which may be the only one.
        (0..keys).for_each(|k| case.inputs[3].set(k, low));
        let compiled = compiled(&case);
        assert!(is_one(&compiled) || parts(&compiled).is_some(), "{text}");
        let guards = |c: &tlc_passes::partition::Cluster| matches!(&c.kind, ClusterKind::Attention(a) if a.guarded);
        assert!(compiled.clusters.clusters.iter().any(guards));
    }
}

/// As exporters write an attention with a mask: weights that are not numbers, of rows that see nothing or whose scores are none, are zero. What
/// nothing times an infinite value is shows in the result.
#[test]
fn weights_that_are_not_numbers_may_be_zero() {
    let cleaned = |sizes: Sizes<'_>, held: &str, rounds: bool| {
        let (s, t) = (sizes.rows, sizes.keys);
        let more = format!(", %m: f32[1, {s}, {t}]");
        let middle = "%m1 = expand %m : SHAPE
             %x = add %s, %m1 : SHAPE";
        let (text, weights, dtype) = match rounds {
            true => (rounded(sizes, (&more, ""), middle).replace("bf16", held), "p16", held),
            false => (text(sizes, [held, "f32"], (&more, ""), middle, "return %y"), "p", "f32"),
        };
        text.replace(
            &format!("%y = einsum %{weights}, %v"),
            &format!(
                "%none = ne %{weights}, %{weights} : bool[1, {s}, {t}]
                 %zero = const 0.0 : {dtype}[]
                 %zeros = expand %zero : {dtype}[1, {s}, {t}]
                 %clean = select %none, %zeros, %{weights} : {dtype}[1, {s}, {t}]
                 %y = einsum %clean, %v"
            ),
        )
    };
    let f32 = |value: f64| Scalar::from_f64(tlc_ir::DType::F32, value);
    for (rows, keys, features, held, rounds, options) in [
        (20usize, 40usize, 16u32, "f32", false, gpu()),
        (20, 40, 16, "f16", true, gpu()),
        (20, 70, 16, "bf16", true, gpu()),
        (64, 130, 64, "f16", true, in_groups()),
        (64, 130, 64, "bf16", true, in_groups()),
        (1, 90, 16, "f32", false, gpu()),
        (1, 90, 16, "f16", true, gpu()),
        (1, 600, 16, "f32", false, gpu()),
    ] {
        let (s, t) = (rows.to_string(), keys.to_string());
        let text = cleaned(sizes("1", &s, &t, features, features), held, rounds);
        let tolerance = if held == "f32" { 1e-5 } else { 2e-2 };
        for (round, special) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
            let mut case = case(&text, &[], tolerance);
            let width = features as usize;
            // The first row sees nothing, or the only one; a later one has a score that is no number in its last tile.
            (0..keys * usize::from(round == 0)).for_each(|k| case.inputs[3].set(k, f32(f64::NEG_INFINITY)));
            let masked = rows / 2 * keys + keys - 1;
            case.inputs[3].set(masked, f32(special));
            // A query of another row, and a value that shows beside whatever weight.
            let dtype = case.inputs[0].dtype();
            case.inputs[0].set((rows - 1) * width + 3, Scalar::from_f64(dtype, special));
            if round == 1 {
                case.inputs[2].set(5 * width + 2, Scalar::from_f64(dtype, f64::NAN));
            }
            let compiled =
                check(&case, &Pipeline::default(), options.clone()).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert!(is_one(&compiled) || parts(&compiled).is_some(), "{text}");
            let cleans = |c: &tlc_passes::partition::Cluster| matches!(&c.kind, ClusterKind::Attention(a) if a.cleaned);
            assert!(compiled.clusters.clusters.iter().any(cleans));
        }
    }
}

/// The text of an attention whose weights are rounded before they are multiplied.
fn rounded(sizes: Sizes<'_>, more: (&str, &str), middle: &str) -> String {
    let text = text(sizes, ["bf16", "f32"], more, middle, "return %y");
    let (h, s, t) = (sizes.heads, sizes.rows, sizes.keys);
    text.replace(
        "%y = einsum %p, %v",
        &format!("%p16 = convert %p : bf16[{h}, {s}, {t}]\n           %y = einsum %p16, %v"),
    )
}

/// The options of a device where four warps multiply together.
fn in_groups() -> Options {
    let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter_for("sm_90a")));
    Options::new(Devices::new(
        Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true))),
        [gpu],
    ))
}

/// What four warps do of an attention: whether they multiply together, and whether hidden keys are left out.
fn by_four_warps(compiled: &Compiled) -> [bool; 2] {
    let found = compiled.clusters.clusters.iter().find_map(|c| match &c.kind {
        ClusterKind::Attention(form) => match &form.form {
            AttentionForm::Warps(m) => Some([m.groups, form.horizon.is_some()]),
            _ => None,
        },
        _ => None,
    });
    found.expect("an attention by warps")
}

#[test]
fn four_warps_multiply_rows_of_swizzled_memory_together() {
    let none = ("", "");
    for (sizes, middle, expected) in [
        (sizes("1", "64", "130", 64, 64), SCALED, [true, false]),
        (sizes("2", "70", "40", 128, 64), CAUSAL, [true, false]),
        // Features that fill no row, and few rows.
        (sizes("1", "64", "40", 72, 64), SCALED, [false, false]),
        (sizes("1", "63", "40", 64, 64), SCALED, [false, false]),
        (sizes("1", "128", "385", 64, 64), CAUSAL, [true, true]),
        (sizes("1", "128", "384", 64, 64), CAUSAL, [true, false]),
        (sizes("1", "64", "200", 16, 16), CAUSAL, [false, true]),
    ] {
        let text = rounded(sizes, none, middle);
        let case = case(&text, &[], 2e-2);
        let compiled = check(&case, &Pipeline::default(), in_groups()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(by_four_warps(&compiled), expected, "{text}");
        assert_eq!(compiled.planned.launches.len(), 1 + usize::from(expected[1]), "{text}");
    }
}

#[test]
fn symbolic_lengths_of_four_warps_are_right() {
    let symbols = " where b in 0..=4, n in 0..=4096, m in 0..=4096";
    for values in [[1, 70, 131], [1, 1, 1], [2, 0, 5], [1, 3, 0], [1, 130, 64]] {
        let text = rounded(sizes("b", "n", "m", 64, 64), ("", symbols), CAUSAL);
        let case = case(&text, &values, 2e-2);
        let compiled = check(&case, &Pipeline::default(), in_groups()).unwrap_or_else(|e| panic!("{values:?}: {e}"));
        assert_eq!(by_four_warps(&compiled), [true, true], "{values:?}");
    }
}

/// As `CAUSAL`, where minus infinity is added to the score of a hidden key.
const ADDED: &str = "%i = iota {axis=1} : i64DIMS
   %j = iota {axis=2} : i64DIMS
   %seen = le %j, %i : boolDIMS
   %low = const -inf : WIDE[]
   %low1 = expand %low : SHAPE
   %none = const 0.0 : WIDE[]
   %none1 = expand %none : SHAPE
   %mask = select %seen, %none1, %low1 : SHAPE
   %x = add %s, %mask : SHAPE";

/// What a hidden key has is left out only where it cannot show: where a mask replaces its score, only values can.
#[test]
fn hidden_keys_of_wild_operands_are_what_they_are_in_several_kernels() {
    for (mask, looked_at) in [(CAUSAL, 1), (ADDED, 3)] {
        wild_operands_beside(mask, looked_at);
    }
    // Minus infinity in place of every score of a row, those that it sees too.
    let text = rounded(sizes("1", "70", "450", 64, 64), ("", ""), CAUSAL);
    let mut case = case(&text, &[], 2e-2);
    for k in 0..64 {
        case.inputs[0].set(7 * 64 + k, Scalar::from_f64(tlc_ir::DType::BF16, f64::NEG_INFINITY));
    }
    for k in 0..case.inputs[1].len() {
        case.inputs[1].set(k, Scalar::from_f64(tlc_ir::DType::BF16, 1.0 + (k % 7) as f64));
    }
    let compiled = check(&case, &Pipeline::default(), in_groups()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(by_four_warps(&compiled), [true, true]);
}

fn wild_operands_beside(mask: &str, looked_at: usize) {
    let text = rounded(sizes("1", "70", "450", 64, 64), ("", ""), mask);
    let dtype = tlc_ir::DType::BF16;
    let rounds = [[f64::NAN, f64::INFINITY, f64::NEG_INFINITY], [1e30, -3e38, 1e12]];
    for (round, wild) in rounds.into_iter().enumerate() {
        let mut case = case(&text, &[], 2e-2);
        // A query, and of keys and values one that every row is hidden from.
        for (place, (tensor, wild)) in case.inputs.iter_mut().zip(wild).enumerate() {
            let last = tensor.len() - 5 - 64 * (place + 3 * round);
            tensor.set(last, Scalar::from_f64(dtype, wild));
        }
        let compiled = check(&case, &Pipeline::default(), in_groups()).unwrap_or_else(|e| panic!("{wild:?}: {e}"));
        assert_eq!(by_four_warps(&compiled), [true, true], "{wild:?}");
        let first = &compiled.planned.launches[0].scheduled.params;
        let read = first.iter().filter(|p| p.access == Access::Read).count();
        assert_eq!(read, looked_at, "{wild:?}");
    }
}

/// Masks that hide other keys as well, or do not hide for certain, leave nothing out.
#[test]
fn only_masks_of_positions_have_a_horizon() {
    let with = |masked: &str| {
        let middle = format!(
            "%i = iota {{axis=1}} : i64DIMS
             %j = iota {{axis=2}} : i64DIMS
             %seen = le %j, %i : boolDIMS
             %low = const LOW : WIDE[]
             %low1 = expand %low : SHAPE
             {masked}"
        );
        move |low: &str, inputs: &str| {
            let middle = middle.replace("LOW", low);
            let text = rounded(sizes("1", "64", "400", 16, 16), (inputs, ""), &middle);
            let compiled = check(&case(&text, &[], 2e-2), &Pipeline::default(), in_groups());
            by_four_warps(&compiled.unwrap_or_else(|e| panic!("{text}: {e}")))[1]
        }
    };
    let chosen = with("%x = select %seen, %s, %low1 : SHAPE");
    assert!(chosen("-inf", ""));
    assert!(chosen("-3.4e38", ""));
    assert!(!chosen("-1e9", ""));
    assert!(!chosen("0.0", ""));
    let added = with(
        "%none = const 0.0 : WIDE[]
         %none1 = expand %none : SHAPE
         %mask = select %seen, %none1, %low1 : SHAPE
         %x = add %s, %mask : SHAPE",
    );
    assert!(added("-inf", ""));
    assert!(added("-3.4e38", ""));
    assert!(!added("-1e9", ""));
    let turned = with("%x = select %seen, %low1, %s : SHAPE");
    assert!(!turned("-inf", ""));
    let two = with(
        "%x0 = select %seen, %s, %low1 : SHAPE
         %x = add %x0, %m : SHAPE",
    );
    assert!(!two("-inf", ", %m: f32[1, 64, 400]"));
    let strict = with(
        "%hidden = lt %i, %j : boolDIMS
         %x = select %hidden, %low1, %s : SHAPE",
    );
    assert!(strict("-inf", ""));
    // The first row would see nothing.
    let none = with(
        "%hidden = le %i, %j : boolDIMS
         %x = select %hidden, %low1, %s : SHAPE",
    );
    assert!(!none("-inf", ""));
}

/// One comparison that is read at two places says two things of a row and a key: a band hides keys before a row as well.
#[test]
fn a_band_has_no_horizon() {
    let band = "%i = iota {axis=1} : i64DIMS
       %j = iota {axis=2} : i64DIMS
       %five = const 5 : i64[]
       %five1 = expand %five : i64DIMS
       %near = add %j, %five1 : i64DIMS
       %before = lt %near, %i : boolDIMS
       %behind = permute %before {axes=[0, 2, 1]} : boolDIMS
       %hidden = or %before, %behind : boolDIMS
       %low = const -inf : WIDE[]
       %low1 = expand %low : SHAPE
       %x = select %hidden, %low1, %s : SHAPE";
    let text = rounded(sizes("1", "400", "400", 16, 16), ("", ""), band);
    let compiled = check(&case(&text, &[], 2e-2), &Pipeline::default(), in_groups());
    let compiled = compiled.unwrap_or_else(|e| panic!("{e}"));
    assert!(!by_four_warps(&compiled)[1]);
}

/// Numbers of narrow types go round, and those near the end of 64 bits overflow.
#[test]
fn positions_that_go_round_have_no_horizon() {
    for (dtype, more, expected) in [
        ("i64", "0", true),
        ("i32", "0", true),
        ("i8", "0", false),
        ("i64", "1099511627776", true),
        ("i64", "9223372036854775807", false),
    ] {
        let middle = format!(
            "%i0 = iota {{axis=1}} : {dtype}DIMS
             %j = iota {{axis=2}} : {dtype}DIMS
             %more = const {more} : {dtype}[]
             %more1 = expand %more : {dtype}DIMS
             {}
             %seen = le %j, %i : boolDIMS
             %low = const -inf : WIDE[]
             %low1 = expand %low : SHAPE
             %x = select %seen, %s, %low1 : SHAPE",
            match dtype {
                "i64" => "%i = add %i0, %more1 : i64DIMS".to_string(),
                _ => format!("%i = iota {{axis=1}} : {dtype}DIMS"),
            }
        );
        let text = rounded(sizes("1", "64", "400", 16, 16), ("", ""), &middle);
        let compiled = check(&case(&text, &[], 2e-2), &Pipeline::default(), in_groups());
        let compiled = compiled.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(by_four_warps(&compiled)[1], expected, "{dtype} {more}");
    }
}
