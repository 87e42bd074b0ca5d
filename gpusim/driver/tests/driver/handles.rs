//! Wrong handles, null pointers, modules that cannot be loaded, kernels that misbehave: an error each, and no crash.

use super::*;
use std::ffi::CStr;

#[test]
fn nothing_works_before_the_beginning() {
    cases("handles::nothing_works_before_the_beginning", &[("run", &[])], |_| {
        let mut n = 0;
        // SAFETY: the pointers are ours, here and in all that follows.
        assert_eq!(unsafe { cuDeviceGetCount(&raw mut n) }, CUDA_ERROR_NOT_INITIALIZED);
        assert_eq!(cuInit(1), CUDA_ERROR_INVALID_VALUE);
        ok(cuInit(0));
        let mut at = 0;
        // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
        assert_eq!(unsafe { cuMemAlloc_v2(&raw mut at, 4) }, CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(cuCtxSetCurrent(wrong()), CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    });
}

#[test]
fn wrong_handles_and_null_are_errors() {
    cases("handles::wrong_handles_and_null_are_errors", &[("run", &[])], |_| {
        let p = Program::new();
        let null = null_mut::<c_void>;
        let (at, mut n, mut h) = (alloc(4), 0, null());
        // SAFETY: see above.
        unsafe {
            assert_eq!(cuDeviceGet(null_mut(), 0), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuDeviceGet(&raw mut n, 1), CUDA_ERROR_INVALID_DEVICE);
            assert_eq!(cuDeviceGetName(null_mut(), 5, 0), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuDeviceGetAttribute(&raw mut n, 9999, 0), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuDevicePrimaryCtxRetain(null_mut(), 0), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuModuleLoadData(&raw mut h, null()), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuModuleUnload(wrong()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(
                cuModuleGetFunction(&raw mut h, wrong(), c"next".as_ptr()),
                CUDA_ERROR_INVALID_HANDLE
            );
            assert_eq!(
                cuModuleGetFunction(&raw mut h, p.module, c"other".as_ptr()),
                CUDA_ERROR_NOT_FOUND
            );
            assert_eq!(
                cuModuleGetFunction(&raw mut h, p.module, null_mut()),
                CUDA_ERROR_INVALID_VALUE
            );
            assert_eq!(cuMemAlloc_v2(null_mut(), 4), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemFree_v2(at + 4), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemFree_v2(12), CUDA_ERROR_INVALID_VALUE);
            ok(cuMemFree_v2(0));
            assert_eq!(cuMemFreeAsync(at + 4, null()), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemFreeHost(wrong()), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuStreamSynchronize(wrong()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(cuStreamDestroy_v2(null()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(cuStreamWaitEvent(null(), wrong(), 0), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(cuEventRecord(wrong(), null()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(cuEventQuery(wrong()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(cuGraphLaunch(wrong(), null()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(cuMemcpyHtoD_v2(at, null(), 4), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemcpyDtoD_v2(at, 8, 4), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemcpyHtoD_v2(at, (&raw const n).cast(), 17), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemsetD32Async(at, 0, 5, null()), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemsetD32Async(at + 2, 0, 1, null()), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(cuMemsetD32Async(at, 0, usize::MAX, null()), CUDA_ERROR_INVALID_VALUE);
            let f = p.function("next");
            let launch = |f, grid, block, shared, params| {
                cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, null(), params, null_mut())
            };
            assert_eq!(launch(wrong(), 1, 1, 0, null_mut()), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(launch(f, 1, 1, 0, null_mut()), CUDA_ERROR_INVALID_VALUE);
            let mut params = [null(); 3];
            assert_eq!(launch(f, 1, 1, 0, params.as_mut_ptr()), CUDA_ERROR_INVALID_VALUE);
            let stop = p.function("stop");
            for (grid, block, shared) in [(0, 1, 0), (1, 0, 0), (1, 1025, 0), (u32::MAX, 1, 0), (1, 1, 49_153)] {
                assert_eq!(launch(stop, grid, block, shared, null_mut()), CUDA_ERROR_INVALID_VALUE);
            }
            assert_eq!(tlcSimSlots(null(), 1, null_mut()), CUDA_ERROR_INVALID_VALUE);
        }
        ok(cuCtxSynchronize());
        clean();
    });
}

#[test]
fn what_cannot_be_loaded_says_why() {
    cases("handles::what_cannot_be_loaded_says_why", &[("run", &[])], |_| {
        context();
        let load = |image: &CStr| {
            let mut log = vec![0_u8; 200];
            let mut module = null_mut();
            let mut options = [5, 6];
            let mut values = [log.as_mut_ptr().cast(), without_provenance_mut::<c_void>(log.len())];
            // SAFETY: see above.
            let result = unsafe {
                let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
                cuModuleLoadDataEx(&raw mut module, image.as_ptr().cast(), 2, options, values)
            };
            log.truncate(values[1] as usize - 1);
            (result, String::from_utf8(log).unwrap())
        };
        let (binary, _) = load(c"\x7fELF\x02\x01");
        assert_eq!(binary, CUDA_ERROR_NO_BINARY_FOR_GPU);
        let text = PTX.replace("add.s32 %r7, %r6, 1;", "frobnicate.s32 %r7, %r6, 1;");
        let (unknown, why) = load(&CString::new(text).unwrap());
        assert_eq!(unknown, CUDA_ERROR_INVALID_PTX);
        assert!(why.contains("frobnicate"), "{why}");
        let (garbage, why) = load(c"int main() {}");
        assert!(garbage == CUDA_ERROR_INVALID_PTX && !why.is_empty(), "{garbage} {why}");
        for (target, expected) in [("sm_100", 209), ("sm_90a", 0), ("sm_80a", 209), ("sm_75", 0)] {
            let text = CString::new(PTX.replace("sm_80", target)).unwrap();
            assert_eq!(load(&text).0, expected, "{target}");
        }
        let newer = CString::new(PTX.replace(".version 8.0", ".version 9.7")).unwrap();
        assert_eq!(load(&newer).0, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    });
}

#[test]
fn kernels_that_misbehave_make_the_context_fail() {
    let quiet: &[(&str, &str)] = &[("TLC_SIM_CHECKS", "off")];
    let noted: &[(&str, &str)] = &[("TLC_SIM_ON_FINDING", "continue")];
    let runs = [
        ("race", &[] as &[(&str, &str)]),
        ("outside", &[]),
        ("trap", &[]),
        ("unwritten copy", &[]),
        ("freed", &[]),
        ("race unchecked", quiet),
        ("outside unchecked", quiet),
        ("race noted", noted),
    ];
    cases("handles::kernels_that_misbehave_make_the_context_fail", &runs, |case| {
        let p = Program::new();
        let a = stream();
        let at = alloc(4);
        let race = || p.launch("race", (1, 64), a, &[Arg::Address(at)]);
        let put = |index| p.launch("put", (1, 1), a, &[Arg::Address(at), Arg::Word(index), Arg::Word(1)]);
        let (done, expected, kind) = match case {
            "race" => (race(), CUDA_ERROR_ILLEGAL_ADDRESS, "race"),
            "outside" | "outside unchecked" => (put(4), CUDA_ERROR_ILLEGAL_ADDRESS, "access out of bounds"),
            "trap" => (p.launch("stop", (1, 1), a, &[]), CUDA_ERROR_LAUNCH_FAILED, "trap"),
            "unwritten copy" => {
                let host = Pinned::new(&[0; 4]);
                // SAFETY: the range is ours.
                let copied = unsafe { cuMemcpyDtoHAsync_v2(host.at, at, 16, a) };
                (copied, CUDA_ERROR_ILLEGAL_ADDRESS, "that nobody wrote")
            }
            "freed" => {
                ok(cuMemFree_v2(at));
                (put(0), CUDA_ERROR_ILLEGAL_ADDRESS, "use after free")
            }
            _ => (race(), CUDA_SUCCESS, if case == "race noted" { "race" } else { "" }),
        };
        ok(done);
        assert_eq!(cuStreamSynchronize(a), expected, "{}", report());
        assert_eq!(reported("found"), u64::from(!kind.is_empty()));
        assert!(report().contains(kind), "{}", report());
    });
}

#[test]
fn functions_say_what_they_need_and_may_be_given_more() {
    cases(
        "handles::functions_say_what_they_need_and_may_be_given_more",
        &[("run", &[])],
        |_| {
            let p = Program::new();
            let f = p.function("shared");
            assert_eq!(f, p.function("shared"));
            // SAFETY: see above.
            let get = |which| made(|to| unsafe { cuFuncGetAttribute(to, which, f) });
            assert_eq!([0, 1, 3, 5, 6, 8].map(get), [1024, 1024, 0, 80, 90, 47 << 10]);
            assert_eq!(cuFuncSetAttribute(f, 8, 227 << 10), CUDA_ERROR_INVALID_VALUE);
            let at = alloc(1);
            let mut params = [(&raw const at).cast_mut().cast()];
            let mut launch = |shared| unsafe {
                // SAFETY: there is a pointer for the parameter.
                let params = params.as_mut_ptr();
                cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, shared, null_mut(), params, null_mut())
            };
            assert_eq!(launch(100_000), CUDA_ERROR_INVALID_VALUE);
            ok(cuFuncSetAttribute(f, 8, 100_000));
            ok(launch(100_000));
            assert_eq!(read(at, 1), [5]);
            // SAFETY: see above.
            let blocks = |threads, shared| {
                // SAFETY: the pointers and ranges are ours, and texts end with a zero byte.
                made(|to| unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(to, f, threads, shared) })
            };
            assert_eq!([blocks(128, 0), blocks(1024, 0), blocks(128, 100_000)], [16, 2, 2]);
            clean();
        },
    );
}

#[test]
fn errors_have_names_and_entry_points_are_found_by_theirs() {
    let name = |result| {
        let mut text = std::ptr::null();
        // SAFETY: the text is a constant that a zero byte ends.
        unsafe {
            ok(cuGetErrorName(result, &raw mut text));
            CStr::from_ptr(text).to_str().unwrap()
        }
    };
    assert_eq!(name(700), "CUDA_ERROR_ILLEGAL_ADDRESS");
    let mut text = std::ptr::null();
    // SAFETY: the pointers are ours.
    unsafe {
        assert_eq!(cuGetErrorString(12_345, &raw mut text), CUDA_ERROR_INVALID_VALUE);
        let mut found = null_mut();
        ok(cuGetProcAddress_v2(
            c"cuMemAlloc".as_ptr(),
            &raw mut found,
            13_000,
            0,
            null_mut(),
        ));
        assert_eq!(found.cast_const(), cuMemAlloc_v2 as *const c_void);
        let mut state = 0;
        let missing = cuGetProcAddress_v2(c"cuTexRefCreate".as_ptr(), &raw mut found, 13_000, 0, &raw mut state);
        assert_eq!((missing, state, found.is_null()), (CUDA_ERROR_NOT_FOUND, 1, true));
    }
}
