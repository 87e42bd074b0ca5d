//! f32 and f64, against integers of 128 bits that are rounded bit by bit.

use crate::{COUNT, Random, run};

/// A comparison's name, and what it is of numbers.
type Comparison<'a> = (&'a str, &'a dyn Fn(f32, f32) -> bool);

/// An instruction's name, the function, the largest error as a power of two, and whether that is relative.
type Approximation = (&'static str, fn(f64) -> f64, f64, bool);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Even,
    Zero,
    Down,
    Up,
}

const MODES: [(&str, Mode); 4] = [
    ("rn", Mode::Even),
    ("rz", Mode::Zero),
    ("rm", Mode::Down),
    ("rp", Mode::Up),
];

/// `value * 2^exponent`, plus something less than a unit if `sticky`, to a number of `digits` bits: as an f64.
fn rounded(value: i128, exponent: i32, sticky: bool, digits: u32, mode: Mode) -> f64 {
    if value == 0 && !sticky {
        return 0.0;
    }
    let negative = value < 0;
    let magnitude = value.unsigned_abs();
    let length = 128 - magnitude.leading_zeros();
    let (kept, exponent) = if length <= digits && !sticky {
        (magnitude, exponent)
    } else {
        let drop = length - digits;
        let kept = magnitude >> drop;
        let below = magnitude & ((1 << drop) - 1);
        let half = 1_u128 << (drop - 1);
        let exact = below == 0 && !sticky;
        let up = match mode {
            Mode::Even => below > half || below == half && (sticky || kept & 1 == 1),
            Mode::Zero => false,
            Mode::Down => negative && !exact,
            Mode::Up => !negative && !exact,
        };
        (kept + u128::from(up), exponent + drop as i32)
    };
    let result = kept as f64 * 2_f64.powi(exponent);
    if negative { -result } else { result }
}

/// An f64 as an integer times a power of two.
fn parts(v: f64) -> (i128, i32) {
    let bits = v.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
    let magnitude = if exponent == 0 { fraction } else { fraction | 1 << 52 };
    let value = i128::from(magnitude);
    (if v < 0.0 { -value } else { value }, exponent.max(1) - 1075)
}

/// Numbers near 1, so that sums of products fit 128 bits.
fn near_one(random: &mut Random, digits: u32, spread: u64) -> f64 {
    let fraction = random.next() >> (64 - digits + 1) | 1 << (digits - 1);
    let exponent = random.below(2 * spread + 1) as i32 - spread as i32 - digits as i32 + 1;
    let v = fraction as f64 * 2_f64.powi(exponent);
    if random.below(2) == 0 { v } else { -v }
}

struct Kind {
    ty: &'static str,
    digits: u32,
    spread: u64,
}

const KINDS: [Kind; 2] = [
    Kind {
        ty: "f32",
        digits: 24,
        spread: 12,
    },
    Kind {
        ty: "f64",
        digits: 53,
        spread: 2,
    },
];

impl Kind {
    fn bits(&self, v: f64) -> u64 {
        if self.digits == 24 {
            u64::from((v as f32).to_bits())
        } else {
            v.to_bits()
        }
    }

    fn value(&self, bits: u64) -> f64 {
        if self.digits == 24 {
            f64::from(f32::from_bits(bits as u32))
        } else {
            f64::from_bits(bits)
        }
    }

    fn operands(&self, seed: u64) -> Vec<[f64; 3]> {
        let mut random = Random::new(seed);
        (0..COUNT)
            .map(|_| [0; 3].map(|_| near_one(&mut random, self.digits, self.spread)))
            .collect()
    }

    fn check(&self, instruction: &str, expected: &dyn Fn([f64; 3]) -> f64) {
        let operands = self.operands(3);
        let bits: Vec<[u64; 3]> = operands.iter().map(|o| o.map(|v| self.bits(v))).collect();
        let found = run(instruction, self.ty, [self.ty; 3], &bits);
        for (o, found) in operands.iter().zip(found) {
            let expected = expected(*o);
            assert_eq!(self.value(found), expected, "{instruction} of {o:?}");
        }
    }
}

/// `a * b + c` as an integer and its exponent.
fn fused(a: f64, b: f64, c: f64) -> (i128, i32) {
    let ((a, ea), (b, eb), (c, ec)) = (parts(a), parts(b), parts(c));
    // Trailing zeros go, so that all fits.
    let reduce = |v: i128, e: i32| {
        let zeros = if v == 0 { 0 } else { v.trailing_zeros() };
        (v >> zeros, e + zeros as i32)
    };
    let ((a, ea), (b, eb), (c, ec)) = (reduce(a, ea), reduce(b, eb), reduce(c, ec));
    let (p, ep) = (a * b, ea + eb);
    if c == 0 {
        return (p, ep);
    }
    let e = ep.min(ec);
    ((p << (ep - e)) + (c << (ec - e)), e)
}

#[test]
fn sums_and_products_in_all_directions() {
    for kind in KINDS {
        let (ty, digits) = (kind.ty, kind.digits);
        for (name, mode) in MODES {
            let exact = move |(v, e): (i128, i32)| rounded(v, e, false, digits, mode);
            kind.check(&format!("add.{name}.{ty} %d, %a, %b;"), &|[a, b, _]| {
                exact(fused(a, 1.0, b))
            });
            kind.check(&format!("sub.{name}.{ty} %d, %a, %b;"), &|[a, b, _]| {
                exact(fused(a, 1.0, -b))
            });
            kind.check(&format!("mul.{name}.{ty} %d, %a, %b;"), &|[a, b, _]| {
                exact(fused(a, b, 0.0))
            });
            kind.check(&format!("fma.{name}.{ty} %d, %a, %b, %c;"), &|[a, b, c]| {
                exact(fused(a, b, c))
            });
        }
    }
}

#[test]
fn quotients_and_roots_in_all_directions() {
    for kind in KINDS {
        let (ty, digits) = (kind.ty, kind.digits);
        for (name, mode) in MODES {
            let divide = move |a: f64, b: f64| {
                let ((a, ea), (b, eb)) = (parts(a), parts(b));
                let shifted = a.unsigned_abs() << 70;
                let (q, r) = (shifted / b.unsigned_abs(), shifted % b.unsigned_abs());
                let q = if (a < 0) == (b < 0) { q as i128 } else { -(q as i128) };
                rounded(q, ea - eb - 70, r != 0, digits, mode)
            };
            kind.check(&format!("div.{name}.{ty} %d, %a, %b;"), &|[a, b, _]| divide(a, b));
            kind.check(&format!("rcp.{name}.{ty} %d, %a;"), &|[a, _, _]| divide(1.0, a));
            kind.check(&format!("abs.{ty} %d, %a; sqrt.{name}.{ty} %d, %d;"), &|[a, _, _]| {
                let (v, e) = parts(a.abs());
                let shift = 70 + (e.rem_euclid(2));
                let scaled = v.unsigned_abs() << shift;
                let root = scaled.isqrt();
                rounded(root as i128, (e - shift) / 2, root * root != scaled, digits, mode)
            });
        }
    }
}

fn singles() -> Vec<[u64; 3]> {
    let mut random = Random::new(9);
    let edges: [f32; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-40,
        0.5,
        1.5,
    ];
    let mut all: Vec<[u64; 3]> = Vec::new();
    for a in edges {
        for b in edges {
            all.push([a, b, edges[random.below(14) as usize]].map(|v| u64::from(v.to_bits())));
        }
    }
    all.extend((0..COUNT).map(|_| [0; 3].map(|_| random.next() & 0xffff_ffff)));
    all
}

fn check_single(instruction: &str, expected: &dyn Fn(f32, f32, f32) -> f32) {
    let operands = singles();
    let found = run(instruction, "f32", ["f32"; 3], &operands);
    for (o, found) in operands.iter().zip(found) {
        let [a, b, c] = o.map(|v| f32::from_bits(v as u32));
        let (found, expected) = (f32::from_bits(found as u32), expected(a, b, c));
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(
            same,
            "{instruction} of {a:e}, {b:e}, {c:e}: {found:e}, not {expected:e}"
        );
    }
}

#[test]
fn single_edges() {
    check_single("add.f32 %d, %a, %b;", &|a, b, _| a + b);
    check_single("fma.rn.f32 %d, %a, %b, %c;", &|a, b, c| a.mul_add(b, c));
    check_single("div.rn.f32 %d, %a, %b;", &|a, b, _| a / b);
    check_single("sqrt.rn.f32 %d, %a;", &|a, _, _| a.sqrt());
    let least = |a: f32, b: f32| {
        if a.is_nan() {
            b
        } else if b.is_nan() || (a == b && a.is_sign_negative()) || a < b {
            a
        } else {
            b
        }
    };
    check_single("min.f32 %d, %a, %b;", &|a, b, _| least(a, b));
    check_single("max.f32 %d, %a, %b;", &|a, b, _| -least(-a, -b));
    check_single("min.NaN.f32 %d, %a, %b;", &|a, b, _| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else {
            least(a, b)
        }
    });
    check_single("max.NaN.f32 %d, %a, %b;", &|a, b, _| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else {
            -least(-a, -b)
        }
    });
    check_single("copysign.f32 %d, %a, %b;", &|a, b, _| b.copysign(a));
    let unit = |v: f32| if v > 0.0 { v.min(1.0) } else { 0.0 };
    check_single("add.sat.f32 %d, %a, %b;", &|a, b, _| unit(a + b));
    let flush = |v: f32| if v.is_subnormal() { 0_f32.copysign(v) } else { v };
    check_single("mul.ftz.f32 %d, %a, %b;", &|a, b, _| flush(flush(a) * flush(b)));
    check_single("cvt.rni.f32.f32 %d, %a;", &|a, _, _| a.round_ties_even());
    check_single("cvt.rzi.f32.f32 %d, %a;", &|a, _, _| a.trunc());
    check_single("cvt.rmi.f32.f32 %d, %a;", &|a, _, _| a.floor());
    check_single("cvt.rpi.f32.f32 %d, %a;", &|a, _, _| a.ceil());
    check_single("cvt.sat.f32.f32 %d, %a;", &|a, _, _| unit(a));
    // Overflow in directions: infinity outward, the largest number inward.
    check_single("mul.rz.f32 %d, %a, %a;", &|a, _, _| {
        let exact = f64::from(a) * f64::from(a);
        let near = exact as f32;
        if f64::from(near) > exact && !a.is_infinite() {
            near.next_down()
        } else {
            near
        }
    });
}

#[test]
fn comparisons() {
    let rules: [Comparison<'_>; 8] = [
        ("eq", &|a, b| a == b),
        ("ne", &|a, b| a != b && !a.is_nan() && !b.is_nan()),
        ("lt", &|a, b| a < b),
        ("geu", &|a, b| a.is_nan() || b.is_nan() || a >= b),
        ("neu", &|a, b| a != b),
        ("gt", &|a, b| a > b),
        ("num", &|a, b| !a.is_nan() && !b.is_nan()),
        ("nan", &|a, b| a.is_nan() || b.is_nan()),
    ];
    for (name, rule) in rules {
        let instruction = format!("setp.{name}.f32 %q, %a, %b; selp.f32 %d, 0f3F800000, 0f00000000, %q;");
        check_single(&instruction, &|a, b, _| if rule(a, b) { 1.0 } else { 0.0 });
    }
    for (name, rule) in [
        ("finite", f32::is_finite as fn(f32) -> bool),
        ("infinite", f32::is_infinite),
        ("notanumber", f32::is_nan),
        ("normal", f32::is_normal),
        ("subnormal", f32::is_subnormal),
    ] {
        let instruction = format!("testp.{name}.f32 %q, %a; selp.f32 %d, 0f3F800000, 0f00000000, %q;");
        check_single(&instruction, &|a, _, _| if rule(a) { 1.0 } else { 0.0 });
    }
}

#[test]
fn conversions() {
    let operands = singles();
    let check = |instruction: &str, d: &str, expected: &dyn Fn(f32) -> u64| {
        let found = run(instruction, d, ["f32"; 3], &operands);
        for (o, found) in operands.iter().zip(found) {
            let a = f32::from_bits(o[0] as u32);
            assert_eq!(found, expected(a), "{instruction} of {a:e}");
        }
    };
    check("cvt.rzi.s32.f32 %d, %a;", "s32", &|a| u64::from(a as i32 as u32));
    check("cvt.rni.u32.f32 %d, %a;", "u32", &|a| {
        u64::from(a.round_ties_even() as u32)
    });
    check(
        "cvt.rmi.s32.f32 %d, %a;",
        "s32",
        &|a| u64::from(a.floor() as i32 as u32),
    );
    let wide = |a: f32| if a.is_nan() { 1 << 63 } else { a as i64 as u64 };
    check("cvt.rzi.s64.f32 %d, %a;", "s64", &wide);
    let number = "testp.number.f32 %q, %a; cvt.f64.f32 %d, %a; @!%q mov.b64 %d, 0;";
    check(number, "f64", &|a| if a.is_nan() { 0 } else { f64::from(a).to_bits() });
    let ints = crate::any_bits([64, 32, 32], 11);
    let found = run("cvt.rn.f32.s64 %d, %a;", "f32", ["u64", "u32", "u32"], &ints);
    for (o, found) in ints.iter().zip(found) {
        assert_eq!(f32::from_bits(found as u32), o[0] as i64 as f32);
    }
    let found = run("cvt.rn.f64.u64 %d, %a;", "f64", ["u64", "u32", "u32"], &ints);
    for (o, found) in ints.iter().zip(found) {
        assert_eq!(f64::from_bits(found), o[0] as f64);
    }
    for (name, mode) in MODES {
        let found = run(
            &format!("cvt.{name}.f32.u64 %d, %a;"),
            "f32",
            ["u64", "u32", "u32"],
            &ints,
        );
        for (o, found) in ints.iter().zip(found) {
            let expected = rounded(i128::from(o[0]), 0, false, 24, mode);
            assert_eq!(f64::from(f32::from_bits(found as u32)), expected);
        }
    }
}

#[test]
fn approximations() {
    // Relative errors that the PTX manual documents, as powers of two; sine and cosine are absolute on [-pi, pi].
    let rules: [Approximation; 8] = [
        ("ex2.approx.f32", f64::exp2, -22.0, true),
        ("lg2.approx.f32", f64::log2, -22.0, false),
        ("rcp.approx.f32", |x| 1.0 / x, -23.0, true),
        ("rsqrt.approx.f32", |x| 1.0 / x.sqrt(), -22.4, true),
        ("sqrt.approx.f32", f64::sqrt, -22.0, true),
        ("sin.approx.f32", f64::sin, -20.9, false),
        ("cos.approx.f32", f64::cos, -20.9, false),
        ("tanh.approx.f32", f64::tanh, -11.0, true),
    ];
    let mut random = Random::new(13);
    let operands: Vec<[u64; 3]> = (0..COUNT)
        .map(|_| [u64::from((random.below(3_000_000) as f32 / 1e6 + 1e-3).to_bits()), 0, 0])
        .collect();
    for (name, f, error, relative) in rules {
        let found = run(&format!("{name} %d, %a;"), "f32", ["f32"; 3], &operands);
        for (o, found) in operands.iter().zip(found) {
            let x = f64::from(f32::from_bits(o[0] as u32));
            let (found, expected) = (f64::from(f32::from_bits(found as u32)), f(x));
            let scale = if relative { expected.abs() } else { 1.0 };
            assert!(
                (found - expected).abs() <= scale * error.exp2(),
                "{name} of {x}: {found}, not {expected}"
            );
        }
    }
}
