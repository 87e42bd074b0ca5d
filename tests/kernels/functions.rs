//! Elementary functions and activations over their whole range: denormals, huge arguments, infinities and NaN, on compiled
//! code and in the interpreter. All values of the narrow types against f64 formulas, samples of f32 and f64 against
//! `tests/reference/functions.py`, whose values are correctly rounded.

use serde_json::Value;
use tlc::{CompileOptions, DType, Graph, HostTensor, Scalar, Tensor};
use tlc_ir::interp::{Options, interpret};

/// How exact a function is.
#[derive(Clone, Copy, PartialEq)]
enum Exactness {
    /// One operation: within so many ulps, zeros with their sign.
    Ulps(f64),
    /// Several: within so many ulps, or off by less than 2^-120 (f32; f64: 2^-1012), where a factor may underflow.
    Composite(f64),
    /// The same, or off by at most that share of the argument and an ulp of 1: a sum in it cancels.
    Cancelling(f64),
}
use Exactness::*;

struct Function {
    name: &'static str,
    record: fn(&Tensor) -> Tensor,
    /// In f64, for arguments that are values of f16 or bf16.
    formula: fn(f64) -> f64,
    exactness: Exactness,
}

/// `f`, whose limit at -inf would be a product of zero and infinity.
fn zero_below(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    if x == f64::NEG_INFINITY { -0.0 } else { f(x) }
}

/// libm's takes some numbers below -1 for valid ones.
fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * u).exp())
}

fn softplus(x: f64) -> f64 {
    if x > 0.0 {
        x + (-x).exp().ln_1p()
    } else {
        x.exp().ln_1p()
    }
}

fn function(
    name: &'static str,
    record: fn(&Tensor) -> Tensor,
    formula: fn(f64) -> f64,
    exactness: Exactness,
) -> Function {
    Function {
        name,
        record,
        formula,
        exactness,
    }
}

fn functions() -> Vec<Function> {
    vec![
        function("asinh", |x| x.asinh(), libm::asinh, Ulps(3.0)),
        function("acosh", |x| x.acosh(), acosh, Ulps(3.0)),
        function("atanh", |x| x.atanh(), libm::atanh, Ulps(3.0)),
        function("sinh", |x| x.sinh(), libm::sinh, Ulps(3.0)),
        function("cosh", |x| x.cosh(), libm::cosh, Ulps(3.0)),
        function("tanh", |x| x.tanh(), libm::tanh, Ulps(3.0)),
        function("log1p", |x| x.log1p(), libm::log1p, Ulps(3.0)),
        function("expm1", |x| x.expm1(), libm::expm1, Ulps(3.0)),
        function("sigmoid", |x| x.sigmoid(), |x| 1.0 / (1.0 + (-x).exp()), Composite(3.0)),
        function(
            "silu",
            |x| x.silu(),
            |x| zero_below(x, |x| x / (1.0 + (-x).exp())),
            Composite(3.0),
        ),
        function("softplus", |x| x.softplus(), softplus, Composite(3.0)),
        function("log_sigmoid", |x| x.log_sigmoid(), |x| -softplus(-x), Composite(3.0)),
        function(
            "mish",
            |x| x.mish(),
            |x| zero_below(x, |x| x * softplus(x).tanh()),
            Composite(4.0),
        ),
        function(
            "softsign",
            |x| x.softsign(),
            |x| {
                if x.is_infinite() {
                    x.signum()
                } else {
                    x / (1.0 + x.abs())
                }
            },
            Composite(3.0),
        ),
        function(
            "elu",
            |x| x.elu(1.0),
            |x| if x > 0.0 { x } else { x.exp_m1() },
            Composite(3.0),
        ),
        function(
            "gelu",
            |x| x.gelu(),
            |x| zero_below(x, |x| 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)),
            Cancelling(3.0),
        ),
        function(
            "gelu_tanh",
            |x| x.gelu_tanh(),
            |x| zero_below(x, gelu_tanh),
            Cancelling(3.0),
        ),
        function(
            "hard_sigmoid",
            |x| x.hard_sigmoid(),
            |x| ((x + 3.0) / 6.0).clamp(0.0, 1.0),
            Composite(3.0),
        ),
        function(
            "hard_swish",
            |x| x.hard_swish(),
            |x| zero_below(x, |x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0)),
            Composite(3.0),
        ),
    ]
}

/// Stored bits of the significand, and the exponent of the smallest normal number.
fn format(dtype: DType) -> (i32, i32) {
    match dtype {
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F32 => (23, -126),
        _ => (52, -1022),
    }
}

/// The distance in ulps of the dtype at the exact value, which overflow is measured with as if exponents went on.
fn ulps(dtype: DType, got: f64, exact: f64) -> f64 {
    if got.is_nan() || exact.is_nan() {
        return if got.is_nan() == exact.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if got == exact || Scalar::from_f64(dtype, exact).as_f64() == got {
        return 0.0;
    }
    if exact.is_infinite() {
        return f64::INFINITY;
    }
    let (digits, least) = format(dtype);
    let exponent = match exact == 0.0 {
        true => least,
        false => libm::ilogb(exact).clamp(least, -least + 1),
    };
    let got = match got.is_infinite() {
        true => f64::from(-least + 2).exp2().copysign(got),
        false => got,
    };
    // Two factors: the ulp of a denormal has no reciprocal.
    (got - exact).abs() * f64::from(-exponent).exp2() * f64::from(digits).exp2()
}

fn check(f: &Function, dtype: DType, x: f64, got: f64, exact: f64, how: &str) {
    let wide = format(dtype.accumulator());
    let error = ulps(dtype, got, exact);
    let off = (got - exact).abs();
    let underflow = f64::from(wide.1 + 6 + 4 * i32::from(wide.0 == 52)).exp2();
    // A rounding of the wide type is on top of that to the narrow one.
    let rounding = if dtype == dtype.accumulator() {
        0.0
    } else {
        ulp_of_narrow(dtype, exact)
    };
    let right = match f.exactness {
        Ulps(bound) => error <= bound && (exact != 0.0 || got.is_sign_negative() == exact.is_sign_negative()),
        Composite(bound) => error <= bound || off <= underflow,
        Cancelling(bound) => {
            let share = x.abs() * f64::from(-wide.0).exp2();
            error <= bound || off <= underflow || off <= share + rounding
        }
    };
    assert!(
        right,
        "{}({x:e}) = {got:e}, expected {exact:e} ({dtype}, {how}): {error} ulp",
        f.name
    );
}

fn ulp_of_narrow(dtype: DType, exact: f64) -> f64 {
    let (digits, least) = format(dtype);
    let exponent = if exact == 0.0 {
        least
    } else {
        libm::ilogb(exact).max(least)
    };
    f64::from(exponent - digits).exp2()
}

/// The function's values at those arguments: compiled, and interpreted.
fn evaluated(f: &Function, xs: &HostTensor) -> [(&'static str, HostTensor); 2] {
    let g = Graph::new(f.name);
    let x = g.input("x", xs.dtype(), xs.shape());
    g.output("y", &(f.record)(&x));
    let found = g
        .compile(&CompileOptions::default())
        .unwrap()
        .run(&[xs.into()])
        .unwrap();
    let mut right = interpret(&g.finish().unwrap(), std::slice::from_ref(xs), &Options::default()).unwrap();
    [("compiled", found[0].to_host()), ("interpreted", right.remove(0))]
}

#[test]
fn all_values_of_the_narrow_types_are_right() {
    for dtype in [DType::F16, DType::BF16] {
        let mut xs = HostTensor::zeros(dtype, &[1 << 16]).unwrap();
        (0..1 << 16).for_each(|i| xs.set(i, Scalar::from_bits(dtype, i as u64)));
        for f in functions() {
            for (how, ys) in evaluated(&f, &xs) {
                for i in 0..xs.len() {
                    let x = xs.get(i).as_f64();
                    check(&f, dtype, x, ys.get(i).as_f64(), (f.formula)(x), how);
                }
            }
        }
    }
}

#[test]
fn samples_of_the_wide_types_are_as_correctly_rounded_ones() {
    let text = include_str!("../reference/functions.json");
    let all: Value = serde_json::from_str(text).unwrap();
    let numbers = |list: &Value| -> Vec<f64> {
        let of = |v: &Value| f64::from_bits(u64::from_str_radix(v.as_str().unwrap(), 16).unwrap());
        list.as_array().unwrap().iter().map(of).collect()
    };
    for dtype in [DType::F32, DType::F64] {
        let table = &all[dtype.name()];
        let arguments = numbers(&table["x"]);
        assert!(arguments.len() > 500);
        let mut xs = HostTensor::zeros(dtype, &[arguments.len()]).unwrap();
        (0..arguments.len()).for_each(|i| xs.set(i, Scalar::from_f64(dtype, arguments[i])));
        for f in functions() {
            let exact = numbers(&table[f.name]);
            for (how, ys) in evaluated(&f, &xs) {
                for (i, &exact) in exact.iter().enumerate() {
                    check(&f, dtype, arguments[i], ys.get(i).as_f64(), exact, how);
                }
            }
        }
    }
}
