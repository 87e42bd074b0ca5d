//! Faults that the environment asks for.

use super::*;

#[test]
fn an_allocation_finds_no_memory() {
    let fault: &[(&str, &str)] = &[("TLC_SIM_FAULT", "alloc:2")];
    cases("faults::an_allocation_finds_no_memory", &[("run", fault)], |_| {
        context();
        alloc(LEN);
        let mut at = 0;
        // SAFETY: the pointer is ours.
        unsafe {
            assert_eq!(cuMemAlloc_v2(&raw mut at, 4), CUDA_ERROR_OUT_OF_MEMORY);
            ok(cuMemAlloc_v2(&raw mut at, 4));
        }
    });
}

#[test]
fn a_launch_fails_and_the_error_stays() {
    let test = "faults::a_launch_fails_and_the_error_stays";
    let runs: [(&str, &[(&str, &str)]); 4] = [
        ("719", &[("TLC_SIM_FAULT", "launch:2")]),
        ("700", &[("TLC_SIM_FAULT", "illegal-address:2")]),
        ("214", &[("TLC_SIM_FAULT", "ecc:2")]),
        ("46", &[("TLC_SIM_FAULT", "device-lost:2")]),
    ];
    cases(test, &runs, |case| {
        let error: CUresult = case.parse().unwrap();
        let p = Program::new();
        let a = stream();
        let (from, to) = (filled(&counted()), alloc(LEN));
        ok(p.next(to, from, a));
        ok(cuStreamSynchronize(a));
        ok(p.next(to, from, a));
        assert_eq!(cuStreamSynchronize(a), error);
        // It stays, for every stream and for memory.
        assert_eq!(cuCtxSynchronize(), error);
        assert_eq!(cuMemFree_v2(to), error);
        let mut at = 0;
        // SAFETY: the pointer is ours, here and below.
        assert_eq!(unsafe { cuMemAlloc_v2(&raw mut at, 4) }, error);
        // A new context recovers where the device itself is whole.
        ok(cuDevicePrimaryCtxRelease_v2(0));
        let mut new = null_mut();
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        let retained = unsafe { cuDevicePrimaryCtxRetain(&raw mut new, 0) };
        if matches!(error, CUDA_ERROR_ECC_UNCORRECTABLE | CUDA_ERROR_DEVICE_UNAVAILABLE) {
            assert_eq!(retained, error);
        } else {
            ok(retained);
            let p = Program::new();
            let (from, to) = (filled(&counted()), alloc(LEN));
            ok(p.next(to, from, null_mut()));
            assert_eq!(read(to, LEN), plus(1));
        }
    });
}

#[test]
fn an_error_of_memory_in_the_middle_of_a_graph() {
    let fault: &[(&str, &str)] = &[("TLC_SIM_FAULT", "ecc:3")];
    cases(
        "faults::an_error_of_memory_in_the_middle_of_a_graph",
        &[("run", fault)],
        |_| {
            let p = Program::new();
            let a = stream();
            let (x, y) = (filled(&counted()), filled(&counted()));
            let exec = graphs::captured(a, || {
                ok(p.next(y, x, a));
                ok(p.next(x, y, a));
            });
            ok(cuGraphLaunch(exec, a));
            ok(cuStreamSynchronize(a));
            ok(cuGraphLaunch(exec, a));
            assert_eq!(cuStreamSynchronize(a), CUDA_ERROR_ECC_UNCORRECTABLE);
            assert_eq!(cuGraphLaunch(exec, a), CUDA_ERROR_ECC_UNCORRECTABLE);
        },
    );
}

/// The second device, for reading and writing.
static ACCESS: CUmemAccessDesc = CUmemAccessDesc {
    location: 1,
    device: 1,
    flags: 3,
};

/// Of a device's memory.
fn pool_of(device: i32) -> CUmemPoolProps {
    CUmemPoolProps {
        allocation: 1,
        handles: 0,
        location: 1,
        device,
        security: null_mut(),
        most: 0,
        rest: [0; 56],
    }
}

#[test]
fn the_driver_and_the_devices_are_as_asked() {
    let runs: [(&str, &[(&str, &str)]); 5] = [
        ("old", &[("TLC_SIM_FAULT", "driver:12.4")]),
        ("two", &[("TLC_SIM_DEVICE", "a100,laptop-4gib")]),
        (
            "apart",
            &[("TLC_SIM_DEVICE", "a100,laptop-4gib"), ("TLC_SIM_PEERS", "off")],
        ),
        ("none", &[("CUDA_VISIBLE_DEVICES", "5")]),
        ("unknown", &[("TLC_SIM_DEVICE", "nosuch")]),
    ];
    cases("faults::the_driver_and_the_devices_are_as_asked", &runs, |case| {
        // SAFETY: the pointers are ours.
        let version = || made(|to| unsafe { cuDriverGetVersion(to) });
        match case {
            "old" => {
                context();
                assert_eq!(version(), 12_040);
                let text = CString::new(PTX.replace(".version 8.0", ".version 9.0")).unwrap();
                let mut module = null_mut();
                // SAFETY: as above, and the text ends with a zero byte.
                let loaded = unsafe { cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
                assert_eq!(loaded, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
            }
            "two" => {
                context();
                assert_eq!(version(), 13_000);
                // SAFETY: as above.
                unsafe {
                    assert_eq!(made(|to| cuDeviceGetCount(to)), 2);
                    assert_eq!(made(|to| cuDeviceTotalMem_v2(to, 1)), 4 << 30);
                    let shared = |device| made(|to| cuDeviceGetAttribute(to, 97, device));
                    assert_eq!((shared(0), shared(1)), (163 << 10, 99 << 10));
                    let other = handle(|to| cuDevicePrimaryCtxRetain(to, 1));
                    let first = handle(|to| cuCtxGetCurrent(to));
                    // From one device to the other.
                    let x = filled(&counted());
                    ok(cuCtxSetCurrent(other));
                    let y = alloc(LEN);
                    ok(cuMemcpyPeerAsync(y, other, x, first, LEN * 4, null_mut()));
                    assert_eq!(read(y, LEN), counted());
                    let swapped = cuMemcpyPeerAsync(y, first, x, other, LEN * 4, null_mut());
                    assert_eq!(swapped, CUDA_ERROR_INVALID_CONTEXT);
                    // Straight, for who has access.
                    let straight = |to, from| cuMemcpyDtoDAsync_v2(to, from, LEN * 4, null_mut());
                    assert_eq!(made(|to| cuDeviceCanAccessPeer(to, 1, 0)), 1);
                    assert_eq!(made(|to| cuDeviceCanAccessPeer(to, 1, 1)), 0);
                    assert_eq!(straight(y, x), CUDA_ERROR_INVALID_VALUE);
                    ok(cuCtxEnablePeerAccess(first, 0));
                    assert_eq!(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
                    assert_eq!(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_INVALID_CONTEXT);
                    ok(straight(y, x));
                    // The other way, for which the other device would have to have it.
                    ok(straight(x, y));
                    ok(cuCtxSynchronize());
                    ok(cuCtxSetCurrent(first));
                    assert_eq!(straight(x, y), CUDA_ERROR_INVALID_VALUE);
                    // What is of a pool has access of its own.
                    let props = pool_of(0);
                    let pool = handle(|to| cuMemPoolCreate(to, &raw const props));
                    let z = made(|to| cuMemAllocFromPoolAsync(to, LEN * 4, pool, null_mut()));
                    ok(straight(z, x));
                    ok(cuCtxSynchronize());
                    ok(cuCtxSetCurrent(other));
                    assert_eq!(straight(y, z), CUDA_ERROR_INVALID_VALUE);
                    ok(cuMemPoolSetAccess(pool, &raw const ACCESS, 1));
                    ok(straight(y, z));
                    ok(cuCtxSynchronize());
                    assert_eq!(read(y, LEN), counted());
                    ok(cuMemFreeAsync(z, null_mut()));
                    ok(cuCtxSynchronize());
                    ok(cuMemPoolDestroy(pool));
                }
                clean();
            }
            "apart" => {
                context();
                // SAFETY: as above.
                unsafe {
                    let other = handle(|to| cuDevicePrimaryCtxRetain(to, 1));
                    let first = handle(|to| cuCtxGetCurrent(to));
                    assert_eq!(made(|to| cuDeviceCanAccessPeer(to, 1, 0)), 0);
                    assert_eq!(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
                    let props = pool_of(0);
                    let pool = handle(|to| cuMemPoolCreate(to, &raw const props));
                    assert_eq!(
                        cuMemPoolSetAccess(pool, &raw const ACCESS, 1),
                        CUDA_ERROR_INVALID_DEVICE
                    );
                    ok(cuMemPoolDestroy(pool));
                    let x = filled(&counted());
                    ok(cuCtxSetCurrent(other));
                    let y = alloc(LEN);
                    ok(cuMemcpyPeerAsync(y, other, x, first, LEN * 4, null_mut()));
                    assert_eq!(read(y, LEN), counted());
                }
                clean();
            }
            "none" => assert_eq!(cuInit(0), CUDA_ERROR_NO_DEVICE),
            _ => assert_eq!(cuInit(0), CUDA_ERROR_INVALID_VALUE),
        }
    });
}
