//! Slots of an arena: what is beside them, before their birth's first write, and after their death.

use super::*;

const BYTES: u64 = 400;
const APART: u64 = 1024;

/// Announces what happens to a slot in a stream.
fn slot(stream: Handle, event: u32, address: u64, name: &std::ffi::CStr) {
    let slot = TlcSimSlot {
        address,
        bytes: BYTES,
        event,
        reserved: 0,
        name: name.as_ptr(),
    };
    // SAFETY: the pointers are ours.
    ok(unsafe { tlcSimSlots(stream, 1, &raw const slot) });
}

#[test]
fn what_is_done_outside_of_slots_is_named() {
    let runs = [
        "right",
        "unwritten",
        "past",
        "dead",
        "neighbour",
        "copy",
        "in place",
        "reborn",
    ]
    .map(|case| (case, &[] as &[(&str, &str)]));
    cases("slots::what_is_done_outside_of_slots_is_named", &runs, |case| {
        let p = Program::new();
        let a = stream();
        let arena = filled(&vec![7; 1024]);
        let (x, y) = (arena, arena + APART);
        slot(a, 0, x, c"input x");
        slot(a, 0, y, c"result y");
        let values = vec![3_u32; 100];
        // SAFETY: the ranges are ours.
        let bring = |at, words: usize| unsafe { cuMemcpyHtoDAsync_v2(at, values.as_ptr().cast(), words * 4, a) };
        let put = |at, index| p.launch("put", (1, 1), a, &[Arg::Address(at), Arg::Word(index), Arg::Word(1)]);
        let next = |to, from| {
            let arguments = [Arg::Address(to), Arg::Address(from), Arg::Word(100)];
            p.launch("next", (1, 128), a, &arguments)
        };
        let expected: &[&str] = match case {
            "right" => {
                ok(bring(x, 100));
                ok(next(y, x));
                slot(a, 2, x, c"");
                slot(a, 2, y, c"");
                &[]
            }
            "unwritten" => {
                ok(next(y, x));
                &["use of memory never written", "slot `input x`"]
            }
            "past" => {
                ok(put(y, 100));
                &["access out of bounds", "0 bytes past slot `result y`"]
            }
            "dead" => {
                ok(bring(x, 100));
                slot(a, 2, x, c"");
                ok(next(y, x));
                &["slot `input x`, which is dead"]
            }
            "neighbour" => {
                // From one slot into another that the launch has nothing to do with.
                ok(put(x, (APART / 4) as u32));
                &["slot `result y`, which no parameter of the launch points into"]
            }
            "copy" => {
                ok(bring(x + BYTES - 4, 2));
                &["cuMemcpyHtoDAsync", "0 bytes past slot `input x`"]
            }
            "in place" => {
                ok(bring(x, 100));
                slot(a, 1, x, c"x in place");
                ok(next(y, x));
                &[]
            }
            _ => {
                ok(bring(x, 100));
                slot(a, 2, x, c"");
                slot(a, 0, x + 4, c"later");
                ok(next(y, x + 4));
                &["use of memory never written", "slot `later`"]
            }
        };
        let done = cuStreamSynchronize(a);
        let report = report();
        if expected.is_empty() {
            ok(done);
            clean();
        } else {
            assert_eq!(done, CUDA_ERROR_ILLEGAL_ADDRESS);
            assert!(expected.iter().all(|e| report.contains(e)), "{report}");
        }
    });
}

#[test]
fn slots_are_captured() {
    cases(
        "slots::slots_are_captured",
        &[("right", &[]), ("broken", &[])],
        |case| {
            let p = Program::new();
            let a = stream();
            let arena = filled(&vec![7; 1024]);
            let (x, y) = (arena, arena + APART);
            let host = Pinned::new(&[3; 100]);
            let exec = graphs::captured(a, || {
                slot(a, 0, x, c"x");
                slot(a, 0, y, c"y");
                // SAFETY: the range is ours.
                ok(unsafe { cuMemcpyHtoDAsync_v2(x, host.at, host.bytes(), a) });
                if case == "broken" {
                    slot(a, 2, x, c"");
                }
                let arguments = [Arg::Address(y), Arg::Address(x), Arg::Word(100)];
                ok(p.launch("next", (1, 128), a, &arguments));
                if case != "broken" {
                    slot(a, 2, x, c"");
                }
                slot(a, 2, y, c"");
            });
            ok(cuGraphLaunch(exec, a));
            let mut done = cuStreamSynchronize(a);
            if case == "right" {
                ok(done);
                ok(cuGraphLaunch(exec, a));
                done = cuStreamSynchronize(a);
                ok(done);
                clean();
            } else {
                assert_eq!(done, CUDA_ERROR_ILLEGAL_ADDRESS);
                assert!(report().contains("slot `x`, which is dead"), "{}", report());
            }
        },
    );
}
