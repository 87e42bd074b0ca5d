//! What is allocated is accounted, and given back.

use super::*;

fn memory() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are ours, here and in what follows.
    ok(unsafe { cuMemGetInfo_v2(&raw mut free, &raw mut total) });
    (free, total)
}

#[test]
fn nothing_is_left_after_a_thousand_rounds() {
    cases(
        "accounting::nothing_is_left_after_a_thousand_rounds",
        &[("run", &[])],
        |_| {
            context();
            for _ in 0..1000 {
                let p = Program::new();
                let (a, done) = (stream(), event());
                let host = Pinned::new(&counted());
                let x = filled(&counted());
                // SAFETY: see above.
                let y = made(|to| unsafe { cuMemAllocAsync(to, LEN * 4, a) });
                ok(p.next(y, x, a));
                // SAFETY: the ranges are ours.
                ok(unsafe { cuMemcpyDtoHAsync_v2(host.at, y, host.bytes(), a) });
                ok(cuMemFreeAsync(y, a));
                ok(cuEventRecord(done, a));
                ok(cuEventSynchronize(done));
                assert_eq!(host.get(), plus(1));
                ok(cuEventDestroy_v2(done));
                ok(cuStreamDestroy_v2(a));
                ok(cuMemFree_v2(x));
                // SAFETY: nobody uses it any more.
                ok(unsafe { cuMemFreeHost(host.at) });
                ok(cuModuleUnload(p.module));
            }
            let held = ["device_bytes", "pinned_bytes", "handles"].map(reported);
            assert_eq!(held, [0, 0, 0], "{}", report());
            assert!(reported("device_peak_bytes") >= 8000);
            let (free, total) = memory();
            assert_eq!(free, total);
            clean();
        },
    );
}

#[test]
fn a_device_has_no_more_memory_than_it_has() {
    let small: &[(&str, &str)] = &[("TLC_SIM_DEVICE", "laptop-4gib")];
    let runs = [("small", small), ("large", &[])];
    cases("accounting::a_device_has_no_more_memory_than_it_has", &runs, |case| {
        context();
        let mut at = 0;
        // SAFETY: see above.
        let allocated = unsafe { cuMemAlloc_v2(&raw mut at, 100 << 30) };
        if case == "small" {
            assert_eq!(allocated, CUDA_ERROR_OUT_OF_MEMORY);
            assert_eq!(memory(), (4 << 30, 4 << 30));
        } else {
            // It takes of the host what is used of it.
            ok(allocated);
            let far = at + (99 << 30);
            ok(cuMemsetD8Async(far, 5, 8, null_mut()));
            assert_eq!(read(far, 2), [0x0505_0505; 2]);
            assert_eq!(memory().1 - memory().0, 100 << 30);
        }
    });
}

#[test]
fn a_device_may_have_no_pools() {
    let description = include_str!("../../devices/laptop-4gib.toml").replace("memory_pools = 1", "memory_pools = 0");
    let file = std::env::temp_dir().join(format!("tlc-gpusim-no-pools-{}.toml", std::process::id()));
    std::fs::write(&file, description).expect("a file");
    let plain: &[(&str, &str)] = &[("TLC_SIM_DEVICE", file.to_str().expect("a path of text"))];
    let runs = [("has", &[][..]), ("lacks", plain)];
    cases("accounting::a_device_may_have_no_pools", &runs, |case| {
        context();
        // SAFETY: the pointers are ours, here and below.
        let has = made(|to| unsafe { cuDeviceGetAttribute(to, 115, 0) });
        let mut pool = null_mut();
        // SAFETY: see above.
        let found = unsafe { cuDeviceGetDefaultMemPool(&raw mut pool, 0) };
        let mut at = 0;
        // SAFETY: see above.
        let allocated = unsafe { cuMemAllocAsync(&raw mut at, 64, null_mut()) };
        let expected = match case {
            "has" => (1, CUDA_SUCCESS, CUDA_SUCCESS),
            _ => (0, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED),
        };
        assert_eq!((has, found, allocated), expected);
    });
    let _ = std::fs::remove_file(&file);
}

#[test]
fn pools_keep_what_they_may() {
    cases("accounting::pools_keep_what_they_may", &[("run", &[])], |_| {
        context();
        let a = stream();
        let props = CUmemPoolProps {
            allocation: 1,
            handles: 0,
            location: 1,
            device: 0,
            security: null_mut(),
            most: 0,
            rest: [0; 56],
        };
        // SAFETY: the pointers are ours, here and below.
        let pool = handle(|to| unsafe { cuMemPoolCreate(to, &raw const props) });
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        let get = |which| made(|to: *mut u64| unsafe { cuMemPoolGetAttribute(pool, which, to.cast()) });
        let mut threshold = 1_u64 << 20;
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        ok(unsafe { cuMemPoolSetAttribute(pool, 4, (&raw mut threshold).cast()) });
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        let take = |bytes| made(|to| unsafe { cuMemAllocFromPoolAsync(to, bytes, pool, a) });
        let (x, y) = (take(1 << 19), take(1 << 20));
        assert_eq!([5, 6, 7, 8].map(get), [3 << 19; 4]);
        ok(cuMemFreeAsync(x, a));
        ok(cuMemFreeAsync(y, a));
        ok(cuStreamSynchronize(a));
        assert_eq!([5, 6, 7, 8].map(get), [1 << 20, 3 << 19, 0, 3 << 19]);
        let (free, total) = memory();
        assert_eq!(total - free, 1 << 20);
        take(1 << 20);
        assert_eq!([5, 7].map(get), [1 << 20; 2]);
        ok(cuMemPoolTrimTo(pool, 0));
        assert_eq!(get(5), 1 << 20);
        ok(cuMemPoolDestroy(pool));
        assert_eq!(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_HANDLE);
        // The default pool is not destroyed.
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        let default = handle(|to| unsafe { cuDeviceGetDefaultMemPool(to, 0) });
        assert_eq!(cuMemPoolDestroy(default), CUDA_ERROR_INVALID_VALUE);
        clean();
    });
}
