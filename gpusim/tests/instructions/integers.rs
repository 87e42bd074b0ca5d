//! Integers and bits, against arithmetic of 128 bits.

use crate::{any_bits, run};

/// A comparison's name, and what it is of numbers.
type Comparison<'a> = (&'a str, &'a dyn Fn(i128, i128) -> bool);

type Rule<'a> = &'a dyn Fn(i128, i128, i128) -> i128;

fn width(ty: &str) -> usize {
    ty[1..].parse().unwrap()
}

fn value(bits: u64, ty: &str) -> i128 {
    let width = width(ty);
    let bits = i128::from(bits) & ((1 << width) - 1);
    if ty.starts_with('s') && bits >> (width - 1) != 0 {
        bits - (1 << width)
    } else {
        bits
    }
}

fn check(instruction: &str, d: &str, sources: [&str; 3], rule: Rule<'_>) {
    let operands = any_bits(sources.map(width), instruction.len() as u64);
    let found = run(instruction, d, sources, &operands);
    for (o, found) in operands.iter().zip(found) {
        let [a, b, c] = [0, 1, 2].map(|i| value(o[i], sources[i]));
        let mask = (1_i128 << width(d)) - 1;
        let expected = rule(a, b, c) & mask;
        assert_eq!(i128::from(found), expected, "{instruction} of {a}, {b}, {c}");
    }
}

#[test]
fn arithmetic() {
    for ty in ["u16", "s16", "u32", "s32", "u64", "s64"] {
        let three = [ty; 3];
        let bits = width(ty) as u32;
        let all = (1_i128 << bits) - 1;
        check(&format!("add.{ty} %d, %a, %b;"), ty, three, &|a, b, _| a + b);
        check(&format!("sub.{ty} %d, %a, %b;"), ty, three, &|a, b, _| a - b);
        check(&format!("mul.lo.{ty} %d, %a, %b;"), ty, three, &|a, b, _| {
            a.wrapping_mul(b)
        });
        check(&format!("mul.hi.{ty} %d, %a, %b;"), ty, three, &|a, b, _| {
            a.wrapping_mul(b) >> bits
        });
        check(&format!("mad.lo.{ty} %d, %a, %b, %c;"), ty, three, &|a, b, c| {
            a.wrapping_mul(b).wrapping_add(c)
        });
        check(&format!("mad.hi.{ty} %d, %a, %b, %c;"), ty, three, &|a, b, c| {
            (a.wrapping_mul(b) >> bits) + c
        });
        check(&format!("div.{ty} %d, %a, %b;"), ty, three, &|a, b, _| {
            if b == 0 { all } else { a / b }
        });
        check(&format!("rem.{ty} %d, %a, %b;"), ty, three, &|a, b, _| {
            if b == 0 { a } else { a % b }
        });
        check(&format!("min.{ty} %d, %a, %b;"), ty, three, &|a, b, _| a.min(b));
        check(&format!("max.{ty} %d, %a, %b;"), ty, three, &|a, b, _| a.max(b));
        check(&format!("sad.{ty} %d, %a, %b, %c;"), ty, three, &|a, b, c| {
            (a - b).abs() + c
        });
        let shifted = [ty, "u32", ty];
        check(&format!("shr.{ty} %d, %a, %b;"), ty, shifted, &|a, b, _| {
            a >> b.min(100)
        });
        let untyped = format!("b{bits}");
        check(&format!("shl.{untyped} %d, %a, %b;"), ty, shifted, &|a, b, _| {
            if b >= 64 { 0 } else { (a & all) << b }
        });
        check(&format!("and.{untyped} %d, %a, %b;"), ty, three, &|a, b, _| a & b);
        check(&format!("or.{untyped} %d, %a, %b;"), ty, three, &|a, b, _| a | b);
        check(&format!("xor.{untyped} %d, %a, %b;"), ty, three, &|a, b, _| a ^ b);
        check(&format!("not.{untyped} %d, %a;"), ty, three, &|a, _, _| !a);
        check(&format!("cnot.{untyped} %d, %a;"), ty, three, &|a, _, _| {
            i128::from(a == 0)
        });
        if ty.starts_with('s') {
            check(&format!("neg.{ty} %d, %a;"), ty, three, &|a, _, _| -a);
            check(&format!("abs.{ty} %d, %a;"), ty, three, &|a, _, _| a.abs());
        }
    }
}

#[test]
fn wide_and_saturating() {
    for (ty, double) in [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")] {
        check(&format!("mul.wide.{ty} %d, %a, %b;"), double, [ty; 3], &|a, b, _| a * b);
        check(
            &format!("mad.wide.{ty} %d, %a, %b, %c;"),
            double,
            [ty, ty, double],
            &|a, b, c| a * b + c,
        );
    }
    let clamp = |v: i128| v.clamp(i128::from(i32::MIN), i128::from(i32::MAX));
    check("add.sat.s32 %d, %a, %b;", "s32", ["s32"; 3], &|a, b, _| clamp(a + b));
    check("sub.sat.s32 %d, %a, %b;", "s32", ["s32"; 3], &|a, b, _| clamp(a - b));
    check("mad.hi.sat.s32 %d, %a, %b, %c;", "s32", ["s32"; 3], &|a, b, c| {
        clamp(((a * b) >> 32) + c)
    });
    check("min.relu.s32 %d, %a, %b;", "s32", ["s32"; 3], &|a, b, _| {
        a.min(b).max(0)
    });
    check("mul24.lo.u32 %d, %a, %b;", "u32", ["u32"; 3], &|a, b, _| {
        (a & 0xff_ffff) * (b & 0xff_ffff)
    });
    check("mad24.hi.u32 %d, %a, %b, %c;", "u32", ["u32"; 3], &|a, b, c| {
        (((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16) + c
    });
    let s24 = |v: i128| ((v & 0xff_ffff) ^ 0x80_0000) - 0x80_0000;
    check("mul24.lo.s32 %d, %a, %b;", "s32", ["s32"; 3], &|a, b, _| {
        s24(a) * s24(b)
    });
}

#[test]
fn carries() {
    // A sum of two numbers of 64 bits out of halves.
    let three = ["u64"; 3];
    let halves = "{ .reg .b32 l, h, m, n; mov.b64 {l, h}, %a; mov.b64 {m, n}, %b;";
    let whole = "mov.b64 %d, {l, h}; }";
    check(
        &format!("{halves} add.cc.u32 l, l, m; addc.u32 h, h, n; {whole}"),
        "u64",
        three,
        &|a, b, _| a + b,
    );
    check(
        &format!("{halves} sub.cc.u32 l, l, m; subc.u32 h, h, n; {whole}"),
        "u64",
        three,
        &|a, b, _| a - b,
    );
    let mad = "mad.lo.cc.u32 l, l, m, n; madc.hi.u32 h, 5, m, h;";
    check(&format!("{halves} {mad} {whole}"), "u64", three, &|a, b, _| {
        let (l, h, m, n) = (a & 0xffff_ffff, a >> 32, b & 0xffff_ffff, b >> 32);
        let low = ((l * m) & 0xffff_ffff) + n;
        let high = ((5 * m) >> 32) + h + (low >> 32);
        (low & 0xffff_ffff) | ((high & 0xffff_ffff) << 32)
    });
}

#[test]
fn bits() {
    let u = ["u32"; 3];
    check("popc.b32 %d, %a;", "u32", u, &|a, _, _| i128::from(a.count_ones()));
    check("clz.b32 %d, %a;", "u32", u, &|a, _, _| {
        (0..32).take_while(|i| a >> (31 - i) & 1 == 0).count() as i128
    });
    check("clz.b64 %d, %a;", "u32", ["u64"; 3], &|a, _, _| {
        (0..64).take_while(|i| a >> (63 - i) & 1 == 0).count() as i128
    });
    check("brev.b32 %d, %a;", "u32", u, &|a, _, _| {
        (0..32).fold(0, |r, i| r | (a >> i & 1) << (31 - i))
    });
    check("brev.b64 %d, %a;", "u64", ["u64"; 3], &|a, _, _| {
        (0..64).fold(0, |r, i| r | (a >> i & 1) << (63 - i))
    });
    check("bfind.u32 %d, %a;", "u32", u, &|a, _, _| {
        (0..32).rev().find(|i| a >> i & 1 == 1).unwrap_or(-1)
    });
    check("bfind.s32 %d, %a;", "u32", ["s32"; 3], &|a, _, _| {
        let a = if a < 0 { !a } else { a };
        (0..32).rev().find(|i| a >> i & 1 == 1).unwrap_or(-1)
    });
    check("bfind.shiftamt.u32 %d, %a;", "u32", u, &|a, _, _| {
        (0..32).rev().find(|i| a >> i & 1 == 1).map_or(-1, |i| 31 - i)
    });
    for (ty, top) in [("u32", 31), ("s32", 31), ("u64", 63), ("s64", 63)] {
        check(
            &format!("bfe.{ty} %d, %a, %b, %c;"),
            ty,
            [ty, "u32", "u32"],
            &|a, b, c| {
                let (position, length) = (b & 0xff, c & 0xff);
                let last = (position + length - 1).min(top);
                let sign = if ty.starts_with('u') || length == 0 {
                    0
                } else {
                    a >> last & 1
                };
                (0..=top).fold(0, |r, i| {
                    let bit = if i < length && position + i <= top {
                        a >> (position + i) & 1
                    } else {
                        sign
                    };
                    r | bit << i
                })
            },
        );
    }
    for (position, length) in [(0, 8), (5, 11), (28, 9), (31, 1), (40, 3), (3, 0), (0, 32)] {
        check(
            &format!("bfi.b32 %d, %a, %b, {position}, {length};"),
            "u32",
            u,
            &|a, b, _| {
                (0..32).fold(0, |r, i| {
                    let inside = i >= position && i < position + length;
                    r | (if inside { a >> (i - position) } else { b >> i } & 1) << i
                })
            },
        );
    }
    for table in [0x80, 0x96, 0xe8, 0xca, 0x1b, 0xff] {
        check(&format!("lop3.b32 %d, %a, %b, %c, {table};"), "u32", u, &|a, b, c| {
            (0..32).fold(0, |r, i| {
                let row = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
                r | (table >> row & 1) << i
            })
        });
    }
    check("prmt.b32 %d, %a, %b, %c;", "u32", u, &|a, b, c| {
        let all = a | b << 32;
        (0..4).fold(0, |r, i| {
            let n = c >> (4 * i) & 15;
            let byte = all >> (8 * (n & 7)) & 0xff;
            let byte = if n & 8 != 0 { (byte >> 7) * 0xff } else { byte };
            r | byte << (8 * i)
        })
    });
    check("shf.l.wrap.b32 %d, %a, %b, %c;", "u32", u, &|a, b, c| {
        (b << 32 | a) << (c & 31) >> 32
    });
    check("shf.r.clamp.b32 %d, %a, %b, %c;", "u32", u, &|a, b, c| {
        (b << 32 | a) >> c.min(32)
    });
    let bytes = |v: i128, signed: bool| {
        (0..4).map(move |i| {
            let byte = v >> (8 * i) & 0xff;
            if signed && byte > 127 { byte - 256 } else { byte }
        })
    };
    check("dp4a.s32.u32 %d, %a, %b, %c;", "s32", u, &|a, b, c| {
        bytes(a, true).zip(bytes(b, false)).map(|(x, y)| x * y).sum::<i128>() + c
    });
    check("dp4a.s32.s32 %d, %a, %b, %c;", "s32", u, &|a, b, c| {
        bytes(a, true).zip(bytes(b, true)).map(|(x, y)| x * y).sum::<i128>() + c
    });
}

#[test]
fn comparisons_and_selections() {
    for ty in ["u16", "s16", "u32", "s32", "u64", "s64"] {
        let rules: [Comparison<'_>; 6] = [
            ("eq", &|a, b| a == b),
            ("ne", &|a, b| a != b),
            ("lt", &|a, b| a < b),
            ("le", &|a, b| a <= b),
            ("gt", &|a, b| a > b),
            ("ge", &|a, b| a >= b),
        ];
        for (name, rule) in rules {
            check(
                &format!("setp.{name}.{ty} %q, %a, %b; selp.b32 %d, 7, 9, %q;"),
                "u32",
                [ty; 3],
                &|a, b, _| {
                    if rule(a, b) { 7 } else { 9 }
                },
            );
        }
        check(
            &format!(
                "setp.eq.{ty} %q, %a, %c; setp.lt.and.{ty} %q|%r, %a, %b, !%q; selp.b32 %d, 1, 0, %q; @%r add.u32 %d, %d, 2;"
            ),
            "u32",
            [ty; 3],
            &|a, b, c| i128::from(a < b && a != c) + 2 * i128::from(a >= b && a != c),
        );
    }
    check(
        "slct.b32.s32 %d, %a, %b, %c;",
        "u32",
        ["u32", "u32", "s32"],
        &|a, b, c| if c >= 0 { a } else { b },
    );
    check("set.lt.u32.s32 %d, %a, %b;", "u32", ["s32"; 3], &|a, b, _| {
        if a < b { -1 } else { 0 }
    });
}

#[test]
fn conversions() {
    let types = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
    for from in types {
        for to in types {
            // Registers of at least 16 bits; a result with a sign fills its register.
            let register = |ty: &str| format!("b{}", width(ty).max(16));
            let source = register(from);
            let sources = [source.as_str(), "b32", "b32"];
            for saturate in [false, true] {
                let instruction = format!("cvt{}.{to}.{from} %d, %a;", if saturate { ".sat" } else { "" });
                let operands = any_bits([width(&source), 32, 32], 5);
                let found = run(&instruction, &register(to), sources, &operands);
                for (o, found) in operands.iter().zip(found) {
                    let mut v = value(o[0], from);
                    if saturate {
                        let bits = width(to);
                        let (least, most) = if to.starts_with('s') {
                            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
                        } else {
                            (0, (1 << bits) - 1)
                        };
                        v = v.clamp(least, most);
                    }
                    let v = value(v as u64, to) & ((1 << width(&register(to))) - 1);
                    assert_eq!(i128::from(found), v, "{instruction} of {:#x}", o[0]);
                }
            }
        }
    }
}
