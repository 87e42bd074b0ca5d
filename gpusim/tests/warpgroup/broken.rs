//! Kernels that are broken once each: what is wrong is found, at every schedule, and their right twins give nothing.

use tlc_gpusim::{Finding, FindingKind, Launch, Module, Report, Schedule};

use crate::{Bench, SCHEDULES};

const BROKEN: &str = include_str!("../kernels/wgmma_broken.sm_90a.ptx");
const RIGHT: &str = include_str!("../kernels/wgmma_right.sm_90a.ptx");

fn run(text: &str, kernel: &str, (threads, shared): (u32, u32), (schedule, seed): (Schedule, u64)) -> Report {
    let module = Module::parse(text).unwrap();
    let mut bench = Bench::new(schedule, seed);
    let (a, b) = (bench.input(&[0; 2048]), bench.input(&[0; 256]));
    let c = bench.output(2048);
    let launch = Launch::new(1, threads).shared(shared).arg(a).arg(b).arg(c);
    bench.run(&module, kernel, &launch)
}

/// What is found of a kernel, which is the same at every schedule: of one kind, and with words that say what it is.
fn check_with(kernel: &str, shared: u32, kind: FindingKind, words: &str) -> Finding {
    let mut first = None;
    for schedule in SCHEDULES {
        let right = run(RIGHT, kernel, (128, shared), schedule);
        assert!(right.is_clean(), "the right twin at {schedule:?}: {right}");
        let broken = run(BROKEN, kernel, (128, shared), schedule);
        let is_it = |f: &&Finding| f.kind == kind && f.detail.contains(words);
        let found = broken.findings.iter().find(is_it).cloned();
        assert!(found.is_some(), "{kernel} at {schedule:?}: {broken}");
        first = first.or(found);
    }
    let found = first.unwrap();
    assert!(found.site.line > 0 && found.site.source.line > 0, "{found}");
    found
}

fn check(kernel: &str, kind: FindingKind, words: &str) -> Finding {
    check_with(kernel, 2304, kind, words)
}

use FindingKind::{AsyncProduct, Misaligned, OutOfBounds, Race, Unwritten, WarpMask};

#[test]
fn registers_before_the_wait() {
    let found = check("read_before_wait", AsyncProduct, "is read before a wait");
    assert!(found.other.is_some(), "{found}");
    check("wait_for_too_few", AsyncProduct, "is read before a wait");
    check("accumulator_written", AsyncProduct, "before a wait");
    check("operand_written", AsyncProduct, "before a wait");
    check("chain_of_two_shapes", AsyncProduct, "which uses it otherwise");
    check("result_as_operand", AsyncProduct, "which uses it otherwise");
}

#[test]
fn registers_without_a_fence() {
    check("no_fence", AsyncProduct, "there was no `wgmma.fence`");
    check("accumulator_after_fence", AsyncProduct, "after the last `wgmma.fence`");
    check("operand_after_fence", AsyncProduct, "after the last `wgmma.fence`");
    check("scaled_without_fence", AsyncProduct, "after the last `wgmma.fence`");
}

#[test]
fn shared_memory_without_a_fence() {
    check("no_proxy_fence", AsyncProduct, "`fence.proxy.async`");
    check("proxy_fence_behind_barrier", AsyncProduct, "`fence.proxy.async`");
    check("proxy_fence_before_copies_arrive", AsyncProduct, "`fence.proxy.async`");
    check("no_barrier", Race, "");
}

#[test]
fn shared_memory_overwritten() {
    check(
        "overwritten",
        Race,
        "thread 40 of the block wrote this before the warp waited",
    );
    check("overwritten_by_a_copy", Race, "");
    check("overwritten_without_barrier", Race, "");
}

#[test]
fn warps_apart() {
    check("three_warps", AsyncProduct, "");
    check("warps_differ", AsyncProduct, "another such instruction");
    check("lanes_elsewhere", WarpMask, "are elsewhere");
    check("descriptors_differ", AsyncProduct, "a different descriptor");
}

#[test]
fn blocks_of_less_than_four_warps() {
    for threads in [32, 96, 127] {
        let report = run(RIGHT, "no_fence", (threads, 2304), SCHEDULES[0]);
        let words = format!("the block has {threads} threads");
        assert!(report.findings.iter().any(|f| f.detail.contains(&words)), "{report}");
    }
    // The next four warps of 256 threads are whole, those of 224 are not.
    assert!(run(RIGHT, "read_before_wait", (256, 2304), SCHEDULES[0]).finished);
    let report = run(RIGHT, "no_fence", (224, 2304), SCHEDULES[0]);
    assert!(
        report.findings.iter().any(|f| f.detail.contains("has 224 threads")),
        "{report}"
    );
}

#[test]
fn products_that_nobody_waits_for() {
    check("never_waits", AsyncProduct, "nobody has waited");
    check("not_committed", AsyncProduct, "nobody has waited");
}

#[test]
fn descriptors() {
    check("past_the_end", OutOfBounds, "there are 2304 bytes");
    check("never_written", Unwritten, "");
    check_with("permuted_at_no_multiple", 16384, Misaligned, "multiple of 1024");
    check("unknown_layout", AsyncProduct, "the layout 2");
}

#[test]
fn of_one_architecture() {
    for target in ["sm_90", "sm_100a", "sm_80"] {
        let error = Module::parse(&RIGHT.replace("sm_90a", target)).unwrap_err();
        assert!(error.to_string().contains("of sm_90a alone"), "{error}");
    }
}

#[test]
fn forms_that_are_none() {
    let line = RIGHT.lines().find(|l| l.contains("mma_async")).unwrap();
    for (from, to) in [
        ("m64n8k16", "m64n12k16"),
        ("m64n8k16", "m64n264k16"),
        ("m64n8k16", "m64n8k8"),
        ("m64n8k16", "m64n16k16"),
        (".f32.bf16", ".f16.bf16"),
        (".bf16.bf16", ".bf16.f16"),
        (", p, 1, 1,", ", p, 2, 1,"),
        (", 0, 0;", ", 0, 2;"),
        (", 0, 0;", ", 0;"),
        (".aligned", ""),
    ] {
        let changed = line.replacen(from, to, 1);
        assert_ne!(changed, line, "{from}");
        assert!(Module::parse(&RIGHT.replacen(line, &changed, 1)).is_err(), "{changed}");
    }
}
