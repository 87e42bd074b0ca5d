//! Programs of several streams, each broken once and found, its correct twin clean; and that work is done later than asked.

use super::*;

const SEEDS: [&str; 3] = ["0", "1", "7"];

/// Runs a program right and broken at several seeds: right, its results are expected and nothing is found; broken, it is
/// found that two operations have no order, both are named, and the context fails.
fn both(test: &str, named: [&str; 2], program: impl Fn(&Program, bool)) {
    let right = SEEDS.map(|seed| [("TLC_SIM_SEED", seed)]);
    let mut runs: Vec<(&str, &[(&str, &str)])> = Vec::new();
    for environment in &right {
        runs.push(("right", environment));
        runs.push(("broken", environment));
    }
    cases(test, &runs, |case| {
        let p = Program::new();
        let broken = case == "broken";
        program(&p, broken);
        let done = cuCtxSynchronize();
        if broken {
            assert_eq!(done, CUDA_ERROR_ILLEGAL_ADDRESS, "{}", report());
            assert!(reported("unordered") >= 1, "{}", report());
            for name in named {
                assert!(report().contains(name), "{name}: {}", report());
            }
        } else {
            ok(done);
            clean();
        }
    });
}

#[test]
fn a_kernel_reads_what_another_stream_writes() {
    let named = ["launch of `next`", "launch of `slow`"];
    both(
        "order::a_kernel_reads_what_another_stream_writes",
        named,
        |p, broken| {
            let (a, b) = (stream(), stream());
            let (from, to) = (filled(&counted()), alloc(LEN));
            ok(p.launch("slow", (1, 1), a, &[Arg::Address(from), Arg::Word(2000)]));
            if !broken {
                after(b, a);
            }
            ok(p.next(to, from, b));
            if !broken {
                ok(cuStreamSynchronize(b));
                assert_eq!(read(to, 2), [2001, 2]);
            }
        },
    );
}

#[test]
fn a_kernel_reads_what_a_copy_brings() {
    let named = ["launch of `next`", "cuMemcpyHtoDAsync"];
    both("order::a_kernel_reads_what_a_copy_brings", named, |p, broken| {
        let (a, b) = (stream(), stream());
        let host = Pinned::new(&counted());
        let (from, to) = (filled(&plus(5)), alloc(LEN));
        // SAFETY: the ranges are ours and live until the end.
        ok(unsafe { cuMemcpyHtoDAsync_v2(from, host.at, host.bytes(), a) });
        if !broken {
            after(b, a);
        }
        ok(p.next(to, from, b));
        if !broken {
            ok(cuStreamSynchronize(b));
            assert_eq!(read(to, LEN), plus(1));
        }
    });
}

#[test]
fn a_copy_takes_what_a_kernel_writes() {
    let named = ["launch of `next`", "cuMemcpyDtoHAsync"];
    both("order::a_copy_takes_what_a_kernel_writes", named, |p, broken| {
        let (a, b) = (stream(), stream());
        let host = Pinned::new(&counted());
        let (from, to) = (filled(&counted()), filled(&counted()));
        ok(p.next(to, from, a));
        if !broken {
            after(b, a);
        }
        // SAFETY: the ranges are ours and live until the end.
        ok(unsafe { cuMemcpyDtoHAsync_v2(host.at, to, host.bytes(), b) });
        if !broken {
            ok(cuStreamSynchronize(b));
            assert_eq!(host.get(), plus(1));
        }
    });
}

#[test]
fn memory_is_used_before_its_allocation_is_ordered() {
    let named = ["launch of `next`", "cuMemAllocAsync"];
    both(
        "order::memory_is_used_before_its_allocation_is_ordered",
        named,
        |p, broken| {
            let (a, b) = (stream(), stream());
            let from = filled(&counted());
            // SAFETY: the pointer is ours.
            let to = made(|to| unsafe { cuMemAllocAsync(to, LEN * 4, a) });
            if !broken {
                after(b, a);
            }
            ok(p.next(to, from, b));
            if !broken {
                ok(cuMemFreeAsync(to, b));
            }
        },
    );
}

#[test]
fn memory_is_freed_while_another_stream_uses_it() {
    let named = ["launch of `next`", "cuMemFreeAsync"];
    both(
        "order::memory_is_freed_while_another_stream_uses_it",
        named,
        |p, broken| {
            let (a, b) = (stream(), stream());
            let from = filled(&counted());
            // SAFETY: the pointer is ours.
            let to = made(|to| unsafe { cuMemAllocAsync(to, LEN * 4, a) });
            ok(p.next(to, from, a));
            if !broken {
                after(b, a);
            }
            // What is freed before the kernel runs is found by the kernel's own accesses; so the kernel runs first here.
            while broken && reported("launches") == 0 {
                std::thread::yield_now();
            }
            ok(cuMemFreeAsync(to, b));
        },
    );
}

#[test]
fn staging_is_used_again_too_early() {
    let named = ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"];
    both("order::staging_is_used_again_too_early", named, |_, broken| {
        let (a, b) = (stream(), stream());
        let staging = Pinned::new(&counted());
        let (first, second) = (filled(&plus(3)), alloc(LEN));
        // SAFETY: the ranges are ours and live until the end.
        unsafe {
            ok(cuMemcpyDtoHAsync_v2(staging.at, first, staging.bytes(), a));
            if !broken {
                after(b, a);
            }
            ok(cuMemcpyHtoDAsync_v2(second, staging.at, staging.bytes(), b));
        }
        if !broken {
            ok(cuStreamSynchronize(b));
            assert_eq!(read(second, LEN), plus(3));
        }
    });
}

#[test]
fn a_stream_that_does_not_block_is_not_ordered_with_the_default_one() {
    let named = ["launch of `next`", "cuMemsetD32Async"];
    let test = "order::a_stream_that_does_not_block_is_not_ordered_with_the_default_one";
    both(test, named, |p, broken| {
        // SAFETY: the pointer is ours.
        let a = handle(|to| unsafe { cuStreamCreate(to, u32::from(broken)) });
        let (from, to) = (filled(&counted()), filled(&counted()));
        ok(cuMemsetD32Async(from, 6, LEN, a));
        ok(p.next(to, from, null_mut()));
        // Broken, what comes before may have been found already.
        let last = cuMemsetD32Async(to, 9, LEN / 2, a);
        if !broken {
            ok(last);
            assert_eq!(read(to, LEN)[LEN / 2 - 1..=LEN / 2], [9, 7]);
        }
    });
}

#[test]
fn pinned_memory_is_freed_before_the_copy_to_it_was_waited_for() {
    let named = ["cuMemFreeHost", "cuMemcpyDtoHAsync"];
    both(
        "order::pinned_memory_is_freed_before_the_copy_to_it_was_waited_for",
        named,
        |_, broken| {
            let a = stream();
            let host = Pinned::new(&counted());
            let from = filled(&plus(3));
            // SAFETY: the range is ours; the driver waits before it frees.
            unsafe {
                ok(cuMemcpyDtoHAsync_v2(host.at, from, host.bytes(), a));
                if !broken {
                    ok(cuStreamSynchronize(a));
                }
                ok(cuMemFreeHost(host.at));
            }
        },
    );
}

#[test]
fn work_is_done_later_than_asked() {
    let seeds = ["1", "2", "3"].map(|seed| [("TLC_SIM_SEED", seed)]);
    let runs: Vec<(&str, &[(&str, &str)])> = seeds.iter().map(|s| ("run", s.as_slice())).collect();
    cases("order::work_is_done_later_than_asked", &runs, |_| {
        let p = Program::new();
        let a = stream();
        let (host, device) = (Pinned::new(&[1]), alloc(1));
        ok(p.launch("slow", (1, 1), a, &[Arg::Address(device), Arg::Word(100_000)]));
        // SAFETY: the range is ours.
        ok(unsafe { cuMemcpyDtoHAsync_v2(host.at, device, 4, a) });
        assert_eq!(host.get(), [1], "the copy cannot be done yet");
        assert_eq!(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
        ok(cuStreamSynchronize(a));
        assert_eq!(host.get(), [100_000]);
        clean();
    });
}

#[test]
fn events_measure_time_and_are_waited_for() {
    cases("order::events_measure_time_and_are_waited_for", &[("run", &[])], |_| {
        let p = Program::new();
        let a = stream();
        let at = alloc(1);
        // SAFETY: the pointers are ours, here and below.
        let (start, end) = unsafe { (handle(|to| cuEventCreate(to, 0)), handle(|to| cuEventCreate(to, 0))) };
        ok(cuEventRecord(start, a));
        ok(p.launch("slow", (1, 1), a, &[Arg::Address(at), Arg::Word(50_000)]));
        ok(cuEventRecord(end, a));
        assert_eq!(cuEventQuery(end), CUDA_ERROR_NOT_READY);
        ok(cuEventSynchronize(end));
        // SAFETY: as above.
        let time = made(|to: *mut f32| unsafe { cuEventElapsedTime(to, start, end) });
        assert!(time > 0.0 && time < 60_000.0, "{time}");
        let untimed = event();
        let mut time = 0.0;
        // SAFETY: as above.
        let refused = unsafe { cuEventElapsedTime_v2(&raw mut time, start, untimed) };
        assert_eq!(refused, CUDA_ERROR_INVALID_HANDLE);
        clean();
    });
}

#[test]
fn what_a_destroyed_stream_was_given_is_waited_for() {
    cases(
        "order::what_a_destroyed_stream_was_given_is_waited_for",
        &[("run", &[])],
        |_| {
            let p = Program::new();
            let a = stream();
            let at = alloc(1);
            ok(p.launch("slow", (1, 1), a, &[Arg::Address(at), Arg::Word(50_000)]));
            ok(cuStreamDestroy_v2(a));
            ok(cuCtxSynchronize());
            assert_eq!(read(at, 1), [50_000]);
            let b = stream();
            ok(p.launch("slow", (1, 1), b, &[Arg::Address(at), Arg::Word(50_000)]));
            ok(cuStreamDestroy_v2(b));
            ok(cuMemFree_v2(at));
            clean();
        },
    );
}

#[test]
fn threads_of_the_host_use_the_driver_at_once() {
    let seeds: [&[(&str, &str)]; 2] = [&[], &[("TLC_SIM_SEED", "5")]];
    let test = "order::threads_of_the_host_use_the_driver_at_once";
    cases(test, &seeds.map(|s| ("run", s)), |_| {
        let worker = |by: u32| {
            let p = Program::new();
            let a = stream();
            let (x, y) = (filled(&plus(by)), alloc(LEN));
            let host = Pinned::new(&counted());
            for round in 0..20 {
                ok(p.next(y, x, a));
                ok(p.next(x, y, a));
                // SAFETY: the ranges are ours.
                ok(unsafe { cuMemcpyDtoHAsync_v2(host.at, x, host.bytes(), a) });
                ok(cuStreamSynchronize(a));
                assert_eq!(host.get(), plus(by + 2 * (round + 1)));
            }
            ok(cuMemFree_v2(x));
            ok(cuMemFree_v2(y));
            // SAFETY: nobody uses it any more.
            ok(unsafe { cuMemFreeHost(host.at) });
            ok(cuModuleUnload(p.module));
            ok(cuStreamDestroy_v2(a));
        };
        std::thread::scope(|s| {
            for i in 0..4 {
                s.spawn(move || worker(100 * i));
            }
        });
        context();
        ok(cuCtxSynchronize());
        assert_eq!(reported("device_bytes"), 0);
        clean();
    });
}
