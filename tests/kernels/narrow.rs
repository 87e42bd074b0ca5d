//! Storage types, compiled: every conversion against the recorded references and against the scalar semantics, and the
//! operations that know nothing of their meaning. Also integers to f64, which vectors convert by arithmetic on bits.

use tlc::{CompileOptions, Conversion, DType, Graph, HostTensor, Input, PowerRounding, Scalar, Tensor};
use tlc_ir::plan::Step;
use tlc_ir::rng::Rng;

fn tensor(values: &[Scalar]) -> HostTensor {
    let mut t = HostTensor::zeros(values[0].dtype(), &[values.len()]).expect("small");
    values.iter().enumerate().for_each(|(i, v)| t.set(i, *v));
    t
}

fn scalars(dtype: DType, hex: &str) -> Vec<Scalar> {
    let digits = dtype.bytes() * 2;
    let bits = |at: usize| u64::from_str_radix(&hex[at..at + digits], 16).expect("hex");
    (0..hex.len())
        .step_by(digits)
        .map(|at| Scalar::from_bits(dtype, bits(at)))
        .collect()
}

fn same(a: Scalar, b: Scalar) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// A function of one tensor.
type Function = Box<dyn Fn(&Tensor) -> Tensor>;

/// The results of functions of one input.
fn run(x: &HostTensor, of: &[Function]) -> Vec<HostTensor> {
    let g = Graph::new("narrow");
    let input = g.input("x", x.dtype(), x.shape());
    for (i, f) in of.iter().enumerate() {
        g.output(&format!("y{i}"), &f(&input));
    }
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    let executable = g.compile(&options).expect("compiles");
    let found = executable.run(&[Input::from(x)]).expect("runs");
    found.iter().map(|o| o.to_host()).collect()
}

#[test]
fn compiled_conversions_agree_with_ml_dtypes_and_onnx() {
    let table = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/ir/tests/narrow_cases.txt"))
        .expect("the recorded table");
    let mut operands = String::new();
    let mut count = 0;
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let dtype: DType = words[1].parse().expect("a dtype");
        if words[0] == "decode" {
            let every: Vec<Scalar> = (0..1u64 << dtype.value_bits())
                .map(|bits| Scalar::from_bits(dtype, bits))
                .collect();
            let found = run(&tensor(&every), &[Box::new(|x| x.cast(DType::F32))]);
            for (i, expected) in scalars(DType::F32, words[2]).into_iter().enumerate() {
                assert!(same(found[0].get(i), expected), "{}: {}", every[i], found[0].get(i));
            }
            continue;
        }
        let from: DType = words[3].parse().expect("a dtype");
        if words[4] != "=" {
            operands = words[4].to_string();
        }
        let rounding = match words[2] {
            r if r.starts_with("up") => PowerRounding::Up,
            r if r.starts_with("down") => PowerRounding::Down,
            _ => PowerRounding::Nearest,
        };
        let how = Conversion {
            saturate: !words[2].ends_with("unbounded"),
            rounding,
        };
        let values = scalars(from, &operands);
        let found = run(&tensor(&values), &[Box::new(move |x| x.cast_with(dtype, how))]);
        for (i, expected) in scalars(dtype, words[5]).into_iter().enumerate() {
            let y = found[0].get(i);
            assert!(
                same(y, expected),
                "{from} {} to {dtype}, {}: {y}, expected {expected}",
                values[i],
                words[2]
            );
            count += 1;
        }
    }
    assert!(count > 40_000, "{count} cases");
}

/// Every value of a storage type; of any other, values at which conversions go wrong, and others.
fn values(dtype: DType) -> Vec<Scalar> {
    if dtype.is_storage() {
        return (0..1 << dtype.value_bits())
            .map(|b| Scalar::from_bits(dtype, b))
            .collect();
    }
    let mut rng = Rng::new(5);
    let mut all: Vec<Scalar> = (0..600).map(|_| Scalar::from_bits(dtype, rng.bits())).collect();
    for k in -140..=66 {
        for m in [1.0, 1.0625, 1.125, 1.1875, 1.25, 1.5, 1.75, 1.875, 1.9375] {
            for v in [m * 2f64.powi(k), -m * 2f64.powi(k)] {
                let v = Scalar::from_f64(dtype, v);
                all.push(v);
                all.push(Scalar::from_bits(dtype, v.bits().wrapping_add(1)));
                all.push(Scalar::from_bits(dtype, v.bits().wrapping_sub(1)));
            }
        }
    }
    for v in [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        all.push(Scalar::from_f64(dtype, v));
    }
    all
}

#[test]
fn every_pair_of_dtypes_converts_as_the_scalar_semantics_say() {
    for from in DType::ALL {
        let x = values(from);
        let to: Vec<DType> = DType::ALL
            .into_iter()
            .filter(|to| *to != from && (from.is_storage() || to.is_storage()))
            .collect();
        let casts: Vec<Function> = to
            .iter()
            .map(|&d| Box::new(move |x: &Tensor| x.cast(d)) as Function)
            .collect();
        for (y, to) in run(&tensor(&x), &casts).iter().zip(to) {
            for (i, v) in x.iter().enumerate() {
                let expected = v.convert(to);
                assert!(
                    same(y.get(i), expected),
                    "{from} {v} to {to}: {}, expected {expected}",
                    y.get(i)
                );
            }
        }
    }
}

#[test]
fn the_bits_of_one_dtype_are_those_of_another() {
    for from in DType::ALL.into_iter().filter(|d| d.bits() == 8) {
        let x: Vec<Scalar> = (0..256).map(|b| Scalar::from_bits(from, b)).collect();
        for to in DType::ALL.into_iter().filter(|d| d.bits() == 8) {
            let y = &run(&tensor(&x), &[Box::new(move |x| x.bitcast(to))])[0];
            for (i, v) in x.iter().enumerate() {
                assert_eq!(y.get(i), Scalar::from_bits(to, v.bits()), "{from} {v} as {to}");
            }
        }
    }
}

#[test]
fn a_dequantizing_chain_is_one_kernel() {
    let g = Graph::new("narrow");
    let x = g.input("x", DType::F8E4M3FN, (64, 128));
    let scale = g.input("scale", DType::F8E8M0FNU, (64, 1));
    let y = (x.cast(DType::F32) * scale.cast(DType::F32)).tanh().cast(DType::F8E5M2);
    g.output("y", &y);
    let executable = g.compile(&CompileOptions::default()).expect("compiles");
    let steps = &executable.plan().steps;
    assert!(matches!(steps[..], [Step::Launch(_)]), "{}", executable.explain());
}

#[test]
fn arithmetic_on_a_storage_type_is_refused_with_the_way_out() {
    let g = Graph::new("narrow");
    let x = g.input("x", DType::F8E4M3FN, 4);
    let i = g.input("i", DType::I4, 4);
    let refused = [
        &x + &x,
        &x + 1.0,
        x.exp(),
        x.floor(),
        x.is_finite(),
        x.abs(),
        i.mean(..),
        x.sum(..),
        i.max(..),
        x.lt(&x),
        x.matmul(&x),
        &i * &i,
        x.cumsum(0),
        x.select(&i, 1.0f32),
    ];
    let kept: Vec<usize> = (0..refused.len()).filter(|&i| !refused[i].is_poisoned()).collect();
    assert!(kept.is_empty(), "{kept:?} are taken");
    let errors = g.errors();
    assert_eq!(errors.len(), refused.len());
    for e in errors {
        assert!(e.to_string().contains("convert"), "{e}");
    }
}

#[test]
fn integers_of_up_to_32_bits_become_doubles_exactly_and_in_vectors() {
    for dtype in [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32] {
        let mut rng = Rng::new(7);
        let mask = u64::MAX >> (64 - dtype.bits());
        // The lowest, the highest, around zero and around the sign, then any; not a multiple of a vector.
        let edges = [0, 1, mask, mask >> 1, (mask >> 1) + 1, mask - 1];
        let bits = (0..1003).map(|i| match edges.get(i) {
            Some(bits) => *bits,
            None => rng.below(1 << 32) as u64 & mask,
        });
        let values: Vec<Scalar> = bits.map(|bits| Scalar::from_bits(dtype, bits)).collect();
        let g = Graph::new("doubles");
        let x = g.input("x", dtype, [values.len()]);
        g.output("y", &x.cast(DType::F64));
        let executable = g.compile(&CompileOptions::default()).expect("compiles");
        let inner = &executable.decisions().planned.launches[0].schedule.inner;
        assert!(inner.iter().all(Result::is_ok), "{dtype}: {inner:?}");
        let found = executable.run(&[Input::from(&tensor(&values))]).expect("runs")[0].to_host();
        for (i, v) in values.iter().enumerate() {
            assert_eq!(
                found.get(i),
                Scalar::from_f64(DType::F64, v.as_i64() as f64),
                "{dtype} {v}"
            );
        }
    }
}
