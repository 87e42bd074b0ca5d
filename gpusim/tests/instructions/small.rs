//! f16 and bf16, against the crate `half`.

use half::{bf16, f16};

use crate::{COUNT, Random, run};

fn operands(seed: u64) -> Vec<[u64; 3]> {
    let mut random = Random::new(seed);
    let edges = [
        0, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x7bff, 0x03ff, 0x3f80, 0x7f80, 0xff80, 0x7fc0,
    ];
    let mut one = || {
        if random.below(4) == 0 {
            edges[random.below(14) as usize]
        } else {
            random.next() & 0xffff
        }
    };
    (0..COUNT).map(|_| [one(), one(), one()]).collect()
}

/// Rounds to odd, so that a second rounding to fewer digits is as one: f64 has more than twice those of either type.
fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let other = sum - a;
    let rest = (a - (sum - other)) + (b - other);
    if rest == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    if (rest > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// The nearest of all numbers of 16 bits, found by trying those around a first guess.
fn nearest(v: f64, value: &dyn Fn(u16) -> f64, guess: u16) -> u16 {
    if v.is_nan() {
        return guess;
    }
    let candidates = (0..7_u16).map(|i| (guess & 0x7fff).saturating_sub(3).saturating_add(i) | guess & 0x8000);
    let largest = if value(0x7bff).is_finite() && value(0x7c00).is_infinite() {
        0x7bff
    } else {
        0x7f7f
    };
    let step = value(largest) - value(largest - 1);
    if v.abs() >= value(largest) + step / 2.0 {
        return (largest + 1) | if v < 0.0 { 0x8000 } else { 0 };
    }
    let finite = candidates.filter(|&c| value(c).is_finite());
    let distance = |c: u16| (value(c) - v).abs();
    finite
        .min_by(|&x, &y| distance(x).total_cmp(&distance(y)).then((x & 1).cmp(&(y & 1))))
        .unwrap_or(guess)
}

fn check(
    name: &str,
    ty: &str,
    value: &dyn Fn(u16) -> f64,
    guess: &dyn Fn(f64) -> u16,
    rule: &dyn Fn(f64, f64, f64) -> f64,
) {
    let operands = operands(1);
    let count = if name.contains("fma") {
        ", %b, %c"
    } else if name.contains("abs") || name.contains("neg") {
        ""
    } else {
        ", %b"
    };
    let found = run(&format!("{name}.{ty} %d, %a{count};"), ty, [ty; 3], &operands);
    for (o, found) in operands.iter().zip(found) {
        let [a, b, c] = o.map(|v| value(v as u16));
        let exact = rule(a, b, c);
        let expected = nearest(exact, value, guess(exact));
        let (x, y) = (value(found as u16), value(expected));
        assert!(
            x == y || x.is_nan() && y.is_nan(),
            "{name}.{ty} of {a}, {b}, {c}: {x}, not {y}"
        );
    }
}

#[test]
fn arithmetic() {
    let half: (&dyn Fn(u16) -> f64, &dyn Fn(f64) -> u16) =
        (&|v| f16::from_bits(v).to_f64(), &|v| f16::from_f32(v as f32).to_bits());
    let brain: (&dyn Fn(u16) -> f64, &dyn Fn(f64) -> u16) = (&|v| bf16::from_bits(v).to_f64(), &|v| {
        bf16::from_f32(v as f32).to_bits()
    });
    let pick = |a: f64, b: f64, least: bool| {
        if a.is_nan() {
            b
        } else if b.is_nan() || (a < b) == least {
            a
        } else {
            b
        }
    };
    for (ty, (value, guess)) in [("f16", half), ("bf16", brain)] {
        check("add.rn", ty, value, guess, &|a, b, _| odd_sum(a, b));
        check("sub.rn", ty, value, guess, &|a, b, _| odd_sum(a, -b));
        check("mul.rn", ty, value, guess, &|a, b, _| a * b);
        check("fma.rn", ty, value, guess, &|a, b, c| odd_sum(a * b, c));
        check("min", ty, value, guess, &|a, b, _| pick(a, b, true));
        check("max", ty, value, guess, &|a, b, _| pick(a, b, false));
        check("max.NaN", ty, value, guess, &|a, b, _| {
            if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
        });
        check("abs", ty, value, guess, &|a, _, _| a.abs());
        check("neg", ty, value, guess, &|a, _, _| -a);
        check("fma.rn.relu", ty, value, guess, &|a, b, c| {
            let v = odd_sum(a * b, c);
            if v.is_nan() { v } else { v.max(0.0) }
        });
    }
}

#[test]
fn pairs_are_two_of_them() {
    let one = operands(2);
    let both: Vec<[u64; 3]> = one
        .windows(2)
        .map(|w| [0, 1, 2].map(|i| w[0][i] | w[1][i] << 16))
        .collect();
    for ty in ["f16", "bf16"] {
        for name in ["add.rn", "mul.rn", "min", "max.NaN"] {
            let single = run(&format!("{name}.{ty} %d, %a, %b;"), ty, [ty; 3], &one);
            let pair = run(&format!("{name}.{ty}x2 %d, %a, %b;"), "b32", ["b32"; 3], &both);
            for (s, p) in single.windows(2).zip(pair) {
                assert_eq!(p, s[0] | s[1] << 16, "{name}.{ty}");
            }
        }
    }
}

#[test]
fn conversions() {
    let mut random = Random::new(3);
    let all: Vec<[u64; 3]> = (0..=0xffff_u64).step_by(7).map(|v| [v, 0, 0]).collect();
    for (o, found) in all
        .iter()
        .zip(run("cvt.f32.f16 %d, %a;", "f32", ["b16", "b32", "b32"], &all))
    {
        let (x, y) = (f32::from_bits(found as u32), f16::from_bits(o[0] as u16).to_f32());
        assert!(x == y || x.is_nan() && y.is_nan());
    }
    let wide: Vec<[u64; 3]> = (0..COUNT)
        .map(|i| {
            let bits = random.next() & 0xffff_ffff;
            // Exponents where f16 has numbers, too.
            [
                if i % 2 == 0 {
                    bits
                } else {
                    bits & 0x8fff_ffff | 0x3000_0000
                },
                random.next() & 0xffff_ffff,
                0,
            ]
        })
        .collect();
    let same = |x: f32, y: f32| x == y || x.is_nan() && y.is_nan();
    for (o, found) in wide.iter().zip(run("cvt.rn.f16.f32 %d, %a;", "b16", ["f32"; 3], &wide)) {
        let a = f32::from_bits(o[0] as u32);
        assert!(
            same(f16::from_bits(found as u16).to_f32(), f16::from_f32(a).to_f32()),
            "{a:e}"
        );
    }
    for (o, found) in wide
        .iter()
        .zip(run("cvt.rn.bf16.f32 %d, %a;", "b16", ["f32"; 3], &wide))
    {
        let a = f32::from_bits(o[0] as u32);
        assert!(
            same(bf16::from_bits(found as u16).to_f32(), bf16::from_f32(a).to_f32()),
            "{a:e}"
        );
    }
    for (o, found) in wide
        .iter()
        .zip(run("cvt.rn.bf16x2.f32 %d, %a, %b;", "b32", ["f32"; 3], &wide))
    {
        for (i, shift) in [(0, 16), (1, 0)] {
            let a = f32::from_bits(o[i] as u32);
            let found = bf16::from_bits((found >> shift) as u16);
            assert!(same(found.to_f32(), bf16::from_f32(a).to_f32()), "{a:e}");
        }
    }
    for (o, found) in wide
        .iter()
        .zip(run("cvt.rna.tf32.f32 %d, %a;", "b32", ["f32"; 3], &wide))
    {
        let a = o[0] as u32;
        if f32::from_bits(a).is_finite() {
            assert_eq!(found as u32, (a + 0x1000) & !0x1fff);
        }
    }
}
