//! Kernels that are broken once each: what is wrong is found, at every schedule, and their right twins give nothing.

use tlc_gpusim::{Argument, Finding, FindingKind, Launch, Module, Report, Schedule, SlotEvent, TensorMap};

use crate::{Bench, SCHEDULES, argument, matrix};

const BROKEN: &str = include_str!("../kernels/tiles_broken.sm_90a.ptx");
const RIGHT: &str = include_str!("../kernels/tiles_right.sm_90a.ptx");

/// Rows and columns of the tensor, whose tiles are 16 rows of all columns; bytes of room for four of them and the barriers.
const ROWS: usize = 64;
const COLUMNS: usize = 32;
const SHARED: u32 = 4 * 2048 + 64;

fn tensor(address: u64) -> TensorMap {
    let mut map = matrix(address, 4, (ROWS as u64, COLUMNS as u64), (16, COLUMNS as u32));
    map.swizzle = tlc_gpusim::Swizzle::None;
    map
}

fn run_with(
    text: &str,
    kernel: &str,
    (schedule, seed): (Schedule, u64),
    map: impl FnOnce(&mut Bench, u64) -> Argument,
) -> Report {
    let module = Module::parse(text).unwrap();
    let mut bench = Bench::new(schedule, seed);
    let address = bench.input(&[0; 4 * ROWS * COLUMNS]);
    let map = map(&mut bench, address);
    let out = bench.output(4 * 128);
    // Four warps where they multiply, or three of them read.
    let threads = if kernel.starts_with("product") || kernel == "freed_too_early" {
        128
    } else {
        64
    };
    // Of shared memory the kernel may be given more than it declares: the tile past the end is past it at once.
    let shared = if kernel == "past_the_end" { 4 * 2048 + 8 } else { SHARED };
    let launch = Launch::new(1, threads).shared(shared).arg(map).arg(out);
    bench.run(&module, kernel, &launch)
}

fn run(text: &str, kernel: &str, schedule: (Schedule, u64)) -> Report {
    let map = |_: &mut Bench, address: u64| {
        if kernel.starts_with("product") {
            return argument(&matrix(address, 2, (64, 64), (64, 64)));
        }
        argument(&tensor(address))
    };
    run_with(text, kernel, schedule, map)
}

/// What is found of a kernel at every schedule: of one of some kinds, and with words that say what it is.
fn check_any(kernel: &str, what: &[(FindingKind, &str)]) -> Finding {
    let mut first = None;
    for schedule in SCHEDULES {
        let right = run(RIGHT, kernel, schedule);
        assert!(right.is_clean(), "the right twin of {kernel} at {schedule:?}: {right}");
        let broken = run(BROKEN, kernel, schedule);
        let is_it = |f: &&Finding| {
            what.iter()
                .any(|(kind, words)| f.kind == *kind && f.detail.contains(words))
        };
        let found = broken.findings.iter().find(is_it).cloned();
        assert!(found.is_some(), "{kernel} at {schedule:?}: {broken}");
        first = first.or(found);
    }
    let found = first.unwrap();
    assert!(found.site.line > 0 && found.site.source.line > 0, "{found}");
    found
}

fn check(kernel: &str, kind: FindingKind, words: &str) -> Finding {
    check_any(kernel, &[(kind, words)])
}

use FindingKind::{AsyncCopy, Deadlock, Misaligned, OutOfBounds, Phase, Race, Unwritten, UseAfterFree};

#[test]
fn tiles_before_their_phase() {
    let found = check("read_before_phase", Race, "");
    assert!(found.other.is_some(), "{found}");
    check("waited_by_one", Race, "");
    check("waited_relaxed", Race, "");
}

#[test]
fn tiles_overwritten() {
    check("overwritten_by_copy", Race, "");
    check("overwritten_later", Race, "");
    check("freed_too_early", Race, "");
    check("overwritten_by_thread", Race, "");
    check("written_while_it_comes", Race, "");
}

#[test]
fn tiles_of_products() {
    check("product_under_way", Race, "");
    check("product_before_phase", Race, "");
}

#[test]
fn shared_memory_without_a_fence() {
    check("no_proxy_fence", AsyncCopy, "`fence.proxy.async`");
}

#[test]
fn barriers_that_did_not_begin() {
    check("not_initialized", Phase, "nobody initialized it");
    check("initialized_without_fence", AsyncCopy, "did not fence that");
    check_any(
        "initialized_without_barrier",
        &[(Race, ""), (Phase, "nobody initialized it")],
    );
    check("initialized_twice", Phase, "begins again");
    check_any("barrier_overwritten", &[(Phase, "written over the barrier")]);
}

#[test]
fn phases_mixed_up() {
    check_any("one_parity", &[(Race, ""), (Phase, "may mean either")]);
    check("two_behind", Phase, "may mean either");
    check("expected_too_late", Phase, "has not seen that phase 0 is complete");
    check("arrives_unaware", Phase, "has not seen");
    check("too_many_arrive", Phase, "3 arrivals in a phase that waits for 1");
}

#[test]
fn phases_that_never_complete() {
    let found = check("expected_too_much", Deadlock, "no thread makes progress");
    assert!(
        found.detail.contains("1 arrivals and 16 bytes are missing")
            || found.detail.contains("0 arrivals and 16 bytes")
    );
    check("expected_too_little", Deadlock, "-16 bytes are missing");
    check("too_few_arrive", Deadlock, "1 arrivals and 0 bytes are missing");
    check("long_wait", Deadlock, "no thread makes progress");
}

#[test]
fn long_waits_are_no_deadlock() {
    for (schedule, seed) in SCHEDULES {
        let module = Module::parse(RIGHT).unwrap();
        let mut bench = Bench::new(schedule, seed);
        bench.options.patience = 20_000;
        let address = bench.input(&[0; 4 * ROWS * COLUMNS]);
        let out = bench.output(4 * 64);
        let launch = Launch::new(1, 64)
            .shared(SHARED)
            .arg(argument(&tensor(address)))
            .arg(out);
        let report = bench.run(&module, "long_wait", &launch);
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn tiles_where_they_cannot_be() {
    check("misaligned", Misaligned, "a multiple of 128 bytes");
    check("two_dimensions", AsyncCopy, "a place of 3 dimensions in a tensor of 2");
    check("nobody_waits", AsyncCopy, "nobody has waited");
    for schedule in SCHEDULES {
        let broken = run(BROKEN, "past_the_end", schedule);
        let is_it = |f: &Finding| f.kind == OutOfBounds && f.detail.contains("there are 8200 bytes");
        assert!(broken.findings.iter().any(is_it), "{broken}");
        let right = run(RIGHT, "past_the_end", schedule);
        assert!(right.is_clean(), "{right}");
    }
}

/// What is found of the right kernel with a map or memory that is not right.
fn check_map(map: impl Fn(&mut Bench, u64) -> Argument, kind: FindingKind, words: &str) {
    for schedule in SCHEDULES {
        let report = run_with(RIGHT, "waited_by_one", schedule, &map);
        let is_it = |f: &Finding| f.kind == kind && f.detail.contains(words);
        assert!(report.findings.iter().any(is_it), "{words}: {report}");
    }
}

#[test]
fn maps_that_are_none() {
    check_map(|_, _| Argument(vec![0; 128]), AsyncCopy, "never encoded");
    check_map(|_, _| Argument(vec![0x5a; 128]), AsyncCopy, "never encoded");
    for byte in [8, 20, 60, 88, 98, 99, 100, 119, 127] {
        let changed = move |_: &mut Bench, address: u64| {
            let mut bytes = tensor(address).encode().unwrap().to_vec();
            bytes[byte] ^= 1;
            Argument(bytes)
        };
        check_map(changed, AsyncCopy, "changed after it was encoded");
    }
    let short = |_: &mut Bench, address: u64| {
        let mut map = tensor(address);
        map.tile[0] = 16;
        map.swizzle = tlc_gpusim::Swizzle::Bytes128;
        argument(&map)
    };
    check_map(short, AsyncCopy, "is not simulated");
}

#[test]
fn maps_in_parameters_that_are_not_aligned() {
    let name = "waited_by_one_param_0";
    let declared = format!(".param .align 64 .b8 {name}[128]");
    assert!(RIGHT.contains(&declared));
    let moved = RIGHT.replacen(
        &declared,
        &format!(".param .u64 before,\n.param .align 8 .b8 {name}[128]"),
        1,
    );
    let module = Module::parse(&moved).unwrap();
    let mut bench = Bench::new(Schedule::RoundRobin, 0);
    let address = bench.input(&[0; 4 * ROWS * COLUMNS]);
    let out = bench.output(4 * 64);
    let launch = Launch::new(1, 64)
        .shared(SHARED)
        .arg(0_u64)
        .arg(argument(&tensor(address)))
        .arg(out);
    let report = bench.run(&module, "waited_by_one", &launch);
    let is_it = |f: &Finding| f.kind == Misaligned && f.detail.contains("a map must be at a multiple of 64 bytes");
    assert!(report.findings.iter().any(is_it), "{report}");
}

#[test]
fn memory_that_is_not_there() {
    check_map(
        |bench, address| {
            bench.device.free(address).unwrap();
            argument(&tensor(address))
        },
        UseAfterFree,
        "",
    );
    let larger = |_: &mut Bench, address: u64| {
        let mut map = tensor(address + 4 * (COLUMNS * (ROWS - 10)) as u64);
        map.sizes[1] = 11;
        argument(&map)
    };
    check_map(larger, OutOfBounds, "past an allocation");
    // A tensor of as many rows as there are: what of the tile is outside of it is zero.
    let inside = |_: &mut Bench, address: u64| {
        let mut map = tensor(address + 4 * (COLUMNS * (ROWS - 10)) as u64);
        map.sizes[1] = 10;
        argument(&map)
    };
    for schedule in SCHEDULES {
        let report = run_with(RIGHT, "waited_by_one", schedule, inside);
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn slots() {
    let with_slot = |rows: usize| {
        move |bench: &mut Bench, address: u64| {
            let bytes = (4 * COLUMNS * rows) as u64;
            bench.device.slot(SlotEvent::Adoption, address, bytes, "first").unwrap();
            argument(&tensor(address))
        }
    };
    check_map(with_slot(15), OutOfBounds, "past slot `first`");
    for schedule in SCHEDULES {
        let report = run_with(RIGHT, "waited_by_one", schedule, with_slot(16));
        assert!(report.is_clean(), "{report}");
    }
    let dead = |bench: &mut Bench, address: u64| {
        let argument = with_slot(16)(bench, address);
        let bytes = (4 * COLUMNS * 16) as u64;
        bench.device.slot(SlotEvent::Death, address, bytes, "first").unwrap();
        argument
    };
    check_map(dead, OutOfBounds, "which is dead");
}

#[test]
fn bytes_that_nobody_wrote() {
    let holes = |bench: &mut Bench, address: u64| {
        bench.device.forget(address + 4 * (5 * COLUMNS + 7) as u64, 2).unwrap();
        argument(&tensor(address))
    };
    // The copy itself is no use of them.
    check_map(holes, Unwritten, "nobody wrote these bytes");
    for schedule in SCHEDULES {
        let report = run_with(RIGHT, "nobody_waits", schedule, holes);
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn without_checks_it_runs_as_well() {
    let module = Module::parse(RIGHT).unwrap();
    for (schedule, seed) in SCHEDULES {
        let mut bench = Bench::new(schedule, seed);
        bench.options = tlc_gpusim::Options {
            schedule,
            seed,
            ..tlc_gpusim::Options::fast()
        };
        let address = bench.input(&1_f32.to_le_bytes().repeat(ROWS * COLUMNS));
        let out = bench.output(4 * 64);
        let launch = Launch::new(1, 64)
            .shared(SHARED)
            .arg(argument(&tensor(address)))
            .arg(out);
        let report = bench.run(&module, "overwritten_by_copy", &launch);
        assert!(report.is_clean(), "{report}");
        assert_eq!(bench.floats(out, 64), [48.0; 64]);
    }
}
