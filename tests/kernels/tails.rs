//! Elements that are left over by whole vectors: whatever computes them, a vector under a mask, a narrower one or one at a time, they have the bits
//! that they would have within a whole vector.

use tlc::ir::rng::Rng;
use tlc::ir::text::{no_data, parse_graph};
use tlc::ir::{DType, Scalar, ScalarOp};
use tlc::{CompileOptions, Executable, HostTensor, Input, compile_ir};
use tlc_runtime::cpu::level;

/// Elements of a row that no number of lanes divides.
const RAGGED: usize = 131;
/// Elements of one of which whole vectors are left, and two such vectors side by side.
const WHOLE: usize = 192;

/// An operation on `n` elements.
fn compiled(op: ScalarOp, operands: &[DType], result: DType, n: usize) -> Executable {
    let inputs: Vec<String> = (0..operands.len())
        .map(|k| format!("%x{k}: {}[{n}]", operands[k]))
        .collect();
    let names: Vec<String> = (0..operands.len()).map(|k| format!("%x{k}")).collect();
    let text = format!(
        "graph @f({}) {{\n  %0 = {op} {} : {result}[{n}]\n  return %0 as y\n}}",
        inputs.join(", "),
        names.join(", ")
    );
    let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?} in {text}"));
    let options = CompileOptions {
        threads: Some(1),
        ..CompileOptions::default()
    };
    compile_ir(&graph, &options).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// Bits of the values of a type, special ones first.
fn values(rng: &mut Rng, dtype: DType) -> Vec<u64> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.5,
        -3.5,
        1e-30,
        -1e30,
        88.7,
        -103.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let of = |v: f64| match dtype.is_float() {
        true => Scalar::from_f64(dtype, v),
        false => Scalar::from_i64(dtype, v.clamp(-1e9, 1e9) as i64),
    };
    let random = |rng: &mut Rng| match dtype {
        DType::Bool => Scalar::from_bool(rng.chance(1, 2)),
        d if d.is_float() && rng.chance(1, 2) => Scalar::from_f64(d, rng.unit() * 8.0 - 4.0),
        d if d.is_float() => {
            let magnitude = (rng.unit() * 60.0 - 30.0).exp2();
            Scalar::from_f64(d, if rng.chance(1, 2) { magnitude } else { -magnitude })
        }
        d => Scalar::from_bits(d, rng.bits()),
    };
    let mut all: Vec<u64> = match dtype {
        DType::Bool => Vec::new(),
        _ => special.into_iter().map(|v| of(v).bits()).collect(),
    };
    while all.len() < RAGGED {
        all.push(random(rng).bits());
    }
    // Special ones are met at both ends, by vectors and by what they leave.
    all.rotate_left(7);
    all
}

fn tensor(dtype: DType, bits: &[u64]) -> HostTensor {
    let bytes: Vec<u8> = bits
        .iter()
        .flat_map(|b| b.to_le_bytes()[..dtype.bytes()].to_vec())
        .collect();
    HostTensor::from_bytes(dtype, &[bits.len()], &bytes).expect("a tensor")
}

/// The results' bytes, with one NaN for all.
fn run(executable: &Executable, operands: &[(DType, &[u64])], result: DType) -> Vec<Vec<u8>> {
    let tensors: Vec<HostTensor> = operands.iter().map(|(d, bits)| tensor(*d, bits)).collect();
    let inputs: Vec<Input<'_>> = tensors.iter().map(Input::from).collect();
    let found = executable.run(&inputs).expect("it runs");
    let elements = found["y"].bytes().chunks(result.bytes());
    elements
        .map(|b| {
            let mut word = [0; 8];
            word[..b.len()].copy_from_slice(b);
            let nan = result.is_float() && Scalar::from_bits(result, u64::from_le_bytes(word)).as_f64().is_nan();
            if nan { b"NaN".to_vec() } else { b.to_vec() }
        })
        .collect()
}

#[test]
fn what_vectors_leave_over_has_the_bits_of_their_lanes() {
    let mut rng = Rng::new(11);
    let mut compared = 0;
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
        for &op in ScalarOp::ALL {
            let mut operands = vec![dtype; op.arity()];
            if op == ScalarOp::Select {
                operands[0] = DType::Bool;
            }
            let Ok(result) = op.result_dtype(&operands) else {
                continue;
            };
            let given: Vec<Vec<u64>> = operands.iter().map(|d| values(&mut rng, *d)).collect();
            let whole: Vec<Vec<u64>> = given
                .iter()
                .map(|g| g.iter().cycle().take(WHOLE).copied().collect())
                .collect();
            fn typed<'b>(operands: &[DType], bits: &'b [Vec<u64>]) -> Vec<(DType, &'b [u64])> {
                operands.iter().copied().zip(bits.iter().map(|b| &b[..])).collect()
            }
            let by_vectors = run(
                &compiled(op, &operands, result, WHOLE),
                &typed(&operands, &whole),
                result,
            );
            let ragged = run(
                &compiled(op, &operands, result, RAGGED),
                &typed(&operands, &given),
                result,
            );
            let single = compiled(op, &operands, result, 1);
            for k in 0..RAGGED {
                let at: Vec<Vec<u64>> = given.iter().map(|g| vec![g[k]]).collect();
                let alone = run(&single, &typed(&operands, &at), result).remove(0);
                let shown: Vec<Scalar> = operands
                    .iter()
                    .zip(&at)
                    .map(|(d, b)| Scalar::from_bits(*d, b[0]))
                    .collect();
                assert_eq!(ragged[k], by_vectors[k], "{op} of {dtype} at {k}: {shown:?}");
                assert_eq!(alone, by_vectors[k], "{op} of {dtype} alone, at {k}: {shown:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 20_000, "{compared}");
}

/// The same where this process makes kernels at another level.
#[test]
fn so_has_it_at_every_other_level() {
    let all = level::all()
        .iter()
        .map(|l| l.name())
        .chain([level::PORTABLE, level::SCALAR]);
    for other in all.filter(|name| *name != level::name()) {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "tails::what_vectors_leave_over_has_the_bits_of_their_lanes"])
            .env(level::VARIABLE, other)
            .output()
            .expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{other}: {printed}"
        );
    }
}
