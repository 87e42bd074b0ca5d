//! What lanes do together, and memory.

use tlc_gpusim::{Device, Launch, Module, Options};

use crate::{COUNT, any_bits, run};

/// An operation's name, and what it makes of two operands' bits.
type Combination<'a> = (&'a str, &'a dyn Fn(u64, u64) -> u64);

fn check(instruction: &str, expected: &dyn Fn(&[[u64; 3]], usize) -> u64) {
    let operands = any_bits([32; 3], 4);
    let found = run(instruction, "u32", ["u32"; 3], &operands);
    for (i, found) in found.into_iter().enumerate() {
        let warp = &operands[i / 32 * 32..][..32];
        assert_eq!(
            found,
            expected(warp, i % 32) & 0xffff_ffff,
            "{instruction}, lane {} of {COUNT}",
            i % 32
        );
    }
}

#[test]
fn shuffles() {
    for by in [0_usize, 1, 5, 16, 31] {
        for (width, c) in [(32_usize, 0x1f_u64), (8, 0x181f), (16, 0x101f)] {
            let down = format!("shfl.sync.down.b32 %d|%q, %a, {by}, {c}, -1; @!%q add.u32 %d, %d, 1;");
            check(&down, &|w, l| {
                if l % width + by < width {
                    w[l + by][0]
                } else {
                    w[l][0] + 1
                }
            });
            let c_up = c & !0x1f;
            let up = format!("shfl.sync.up.b32 %d|%q, %a, {by}, {c_up}, -1; @!%q add.u32 %d, %d, 1;");
            check(&up, &|w, l| if l % width >= by { w[l - by][0] } else { w[l][0] + 1 });
            let butterfly = format!("shfl.sync.bfly.b32 %d|%q, %a, {by}, {c}, -1;");
            check(&butterfly, &|w, l| {
                if (l ^ by) < (l / width + 1) * width {
                    w[l ^ by][0]
                } else {
                    w[l][0]
                }
            });
            let index = format!("shfl.sync.idx.b32 %d, %a, {by}, {c}, -1;");
            check(&index, &|w, l| w[l / width * width + by % width][0]);
        }
    }
}

#[test]
fn votes_and_reductions() {
    let odd = "and.b32 %d, %a, 1; setp.eq.u32 %q, %d, 1;";
    check(&format!("{odd} vote.sync.ballot.b32 %d, %q, -1;"), &|w, _| {
        w.iter().enumerate().fold(0, |all, (i, o)| all | (o[0] & 1) << i)
    });
    check(
        &format!("{odd} vote.sync.any.pred %r, %q, -1; selp.u32 %d, 1, 0, %r;"),
        &|w, _| u64::from(w.iter().any(|o| o[0] & 1 == 1)),
    );
    check(
        &format!("{odd} vote.sync.all.pred %r, !%q, -1; selp.u32 %d, 1, 0, %r;"),
        &|w, _| u64::from(w.iter().all(|o| o[0] & 1 == 0)),
    );
    let reductions: [Combination<'_>; 6] = [
        ("add.u32", &|x, y| x + y),
        ("min.u32", &|x, y| x.min(y)),
        ("max.s32", &|x, y| (x as i32).max(y as i32) as u64),
        ("and.b32", &|x, y| x & y),
        ("or.b32", &|x, y| x | y),
        ("xor.b32", &|x, y| x ^ y),
    ];
    for (name, f) in reductions {
        check(&format!("redux.sync.{name} %d, %a, -1;"), &|w, _| {
            w.iter().map(|o| o[0]).reduce(f).unwrap()
        });
    }
    // Of the lanes of equal last bits, each group with its own mask.
    check(
        &format!("{odd} vote.sync.ballot.b32 %n, %q, -1; @!%q not.b32 %n, %n; redux.sync.add.u32 %d, %a, %n;"),
        &|w, l| w.iter().filter(|o| o[0] & 1 == w[l][0] & 1).map(|o| o[0]).sum(),
    );
    check("and.b32 %n, %a, 3; match.any.sync.b32 %d, %n, -1;", &|w, l| {
        w.iter()
            .enumerate()
            .filter(|(_, o)| o[0] & 3 == w[l][0] & 3)
            .fold(0, |all, (i, _)| all | 1 << i)
    });
    check("match.all.sync.b32 %d|%q, 5, -1;", &|_, _| 0xffff_ffff);
    check("activemask.b32 %d;", &|_, _| 0xffff_ffff);
    check("elect.sync %d|%q, -1; selp.u32 %d, 1, 0, %q;", &|_, l| {
        u64::from(l == 0)
    });
}

#[test]
fn atomics() {
    // One lane after the other on a word of shared memory of its own block; the last lane of the warp reads it.
    let rules: [Combination<'_>; 8] = [
        ("add.u32", &|o, a| o + a),
        ("min.u32", &|o, a| o.min(a)),
        ("max.s32", &|o, a| (o as i32).max(a as i32) as u32 as u64),
        ("and.b32", &|o, a| o & a),
        ("or.b32", &|o, a| o | a),
        ("xor.b32", &|o, a| o ^ a),
        ("inc.u32", &|o, a| if o >= a { 0 } else { o + 1 }),
        ("dec.u32", &|o, a| if o == 0 || o > a { a } else { o - 1 }),
    ];
    for (name, f) in rules {
        let text = format!(
            "{{ .shared .align 4 .b8 s[512]; .reg .b64 %w; mov.u32 %n, %tid.x; mul.wide.u32 %w, %n, 4; mov.u64 %p, s;\n\
             add.s64 %w, %w, %p; st.shared.u32 [%w], %b; atom.shared.{name} %d, [%w], %a; atom.shared.{name} %d, [%w], %c;\n\
             ld.shared.u32 %n, [%w]; xor.b32 %d, %d, %n; }}"
        );
        check(&text, &|w, l| {
            let [a, b, c] = w[l];
            let first = f(b, a) & 0xffff_ffff;
            first ^ f(first, c) & 0xffff_ffff
        });
    }
    let swap = "{ .shared .align 4 .b8 s[512]; .reg .b64 %w; mov.u32 %n, %tid.x; mul.wide.u32 %w, %n, 4; mov.u64 %p, s;\n\
         add.s64 %w, %w, %p; st.shared.u32 [%w], %b; atom.shared.cas.b32 %d, [%w], %a, %c; ld.shared.u32 %d, [%w]; }";
    check(swap, &|w, l| if w[l][1] == w[l][0] { w[l][2] } else { w[l][1] });
}

#[test]
fn memory_of_all_spaces() {
    // Through generic addresses, in vectors and parts, with signs.
    let local = "{ .local .align 16 .b8 m[16]; .reg .b64 %w; mov.u64 %w, m; cvta.local.u64 %w, %w;\n\
         st.v4.b32 [%w], {%a, %b, %c, %a}; ld.s8 %d, [%w+3]; ld.v2.u16 {%n, _}, [%w+4]; add.u32 %d, %d, %n; }";
    let text = local.replace("ld.v2.u16 {%n, _}, [%w+4];", "ld.u16 %n, [%w+4];");
    check(&text, &|w, l| {
        ((w[l][0] as u32 as i32 >> 24) as u64).wrapping_add(w[l][1] & 0xffff)
    });
    let shared = "{ .shared .align 16 .b8 m[2048]; .reg .b64 %w; mov.u32 %n, %tid.x; mul.wide.u32 %w, %n, 16; mov.u64 %p, m;\n\
         add.s64 %w, %w, %p; cvta.shared.u64 %w, %w; isspacep.shared %q, %w; isspacep.global %r, %w;\n\
         st.v2.b32 [%w+8], {%b, %c}; ld.v2.b32 {%d, %n}, [%w+8]; sub.u32 %d, %d, %n; @!%q mov.u32 %d, 0; @%r mov.u32 %d, 1; }";
    check(shared, &|w, l| w[l][1].wrapping_sub(w[l][2]));
}

#[test]
fn vector_atomics() {
    // Each thread adds (1, 2, 3, 4) or pairs of them; what was there before the last comes back.
    let launch = |body: &str, initial: &[u8]| {
        let text = format!(
            ".version 8.1\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .b32 %i<5>; .reg .f32 %f<9>; \
             .reg .b64 %w;\nld.param.u64 %w, [p];\nmov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0f40400000; \
             mov.f32 %f4, 0f40800000; mov.b32 %i1, 0x40003C00; mov.b32 %i2, 0x44004200;\n{body}\nret;\n}}\n"
        );
        let module = Module::parse(&text).map_err(|e| e.to_string())?;
        let mut device = Device::default();
        let at = device.allocate(initial.len() as u64).unwrap();
        device.write(at, initial).unwrap();
        let launch = Launch::new(2, 32).arg(at);
        let report = device.launch(&module, "k", &launch, &Options::default()).unwrap();
        assert!(report.is_clean(), "{body}: {report}");
        assert_eq!(report.counters.global_atomics.bytes, 64 * initial.len() as u64);
        let mut bytes = vec![0; initial.len()];
        device.read(at, &mut bytes).unwrap();
        Ok::<_, String>(bytes)
    };
    let floats = |bytes: Vec<u8>| -> Vec<f32> {
        bytes
            .chunks_exact(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .collect()
    };
    let four = launch("red.global.add.v4.f32 [%w], {%f1, %f2, %f3, %f4};", &[0; 16]);
    assert_eq!(floats(four.unwrap()), [64.0, 128.0, 192.0, 256.0]);
    let two = launch("atom.global.add.v2.f32 {%f5, _}, [%w], {%f3, %f4};", &[0; 8]);
    assert_eq!(floats(two.unwrap()), [192.0, 256.0]);
    let halves = launch("red.relaxed.gpu.global.add.noftz.v2.f16x2 [%w], {%i1, %i2};", &[0; 8]);
    let halves: Vec<f32> = halves
        .unwrap()
        .chunks_exact(2)
        .map(|c| half::f16::from_le_bytes(c.try_into().unwrap()).to_f32())
        .collect();
    assert_eq!(halves, [64.0, 128.0, 192.0, 256.0]);
    for wrong in [
        "red.global.add.v8.f32 [%w], {%f1, %f2, %f3, %f4, %f1, %f2, %f3, %f4};",
        "red.global.add.v2.u32 [%w], {%i1, %i2};",
        "red.shared.add.v2.f32 [%w], {%f1, %f2};",
        "red.global.add.v4.f32 [%w], {%f1, %f2};",
    ] {
        assert!(launch(wrong, &[0; 16]).is_err(), "{wrong}");
    }
}
