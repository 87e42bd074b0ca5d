//! Programs of the driver, each in a process of its own with the environment that it wants.

mod accounting;
mod faults;
mod files;
mod graphs;
mod handles;
mod order;
mod slots;
mod tiles;

use std::ffi::{CString, c_void};
use std::process::Command;
use std::ptr::{null_mut, without_provenance_mut};

use tlc_gpusim_driver::*;

pub(crate) const PTX: &str = include_str!("kernels.ptx");

/// Runs a test's cases, each in a process of its own: its name, and what the environment holds for it.
pub(crate) fn cases(test: &str, cases: &[(&str, &[(&str, &str)])], body: impl Fn(&str)) {
    if let Ok(case) = std::env::var("TLC_TEST_CASE") {
        return body(&case);
    }
    for (case, environment) in cases {
        let ran = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env("TLC_TEST_CASE", case)
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(ran.status.success(), "{case} {environment:?}: {out}\n{err}");
        assert!(out.contains("1 passed"), "{test} is no test: {out}");
    }
}

/// Expects success.
#[track_caller]
pub(crate) fn ok(result: CUresult) {
    assert_eq!(result, CUDA_SUCCESS);
}

/// What a function writes to the address that it is given.
#[track_caller]
pub(crate) fn made<T: Default>(make: impl FnOnce(*mut T) -> CUresult) -> T {
    let mut value = T::default();
    ok(make(&raw mut value));
    value
}

/// The same of a handle.
#[track_caller]
pub(crate) fn handle(make: impl FnOnce(*mut Handle) -> CUresult) -> Handle {
    let mut value = null_mut();
    ok(make(&raw mut value));
    value
}

/// A number that no handle has.
pub(crate) fn wrong() -> Handle {
    without_provenance_mut(0xdead_0000)
}

/// Pinned memory of the host.
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    pub(crate) at: *mut c_void,
    len: usize,
}

impl Pinned {
    pub(crate) fn new(values: &[u32]) -> Pinned {
        let mut at = null_mut();
        // SAFETY: `at` is ours.
        ok(unsafe { cuMemHostAlloc(&raw mut at, values.len() * 4, 0) });
        let pinned = Pinned { at, len: values.len() };
        pinned.set(values);
        pinned
    }

    pub(crate) fn set(self, values: &[u32]) {
        assert_eq!(values.len(), self.len);
        for (i, &value) in values.iter().enumerate() {
            // SAFETY: the memory has as many words; devices may write at the same time, which a volatile access stands for.
            unsafe { self.at.cast::<u32>().add(i).write_volatile(value) };
        }
    }

    pub(crate) fn get(self) -> Vec<u32> {
        // SAFETY: as above.
        (0..self.len)
            .map(|i| unsafe { self.at.cast::<u32>().add(i).read_volatile() })
            .collect()
    }

    pub(crate) fn bytes(self) -> usize {
        self.len * 4
    }
}

/// A context with the module of the tests.
pub(crate) struct Program {
    pub(crate) module: Handle,
}

/// How many words the tests' buffers have.
pub(crate) const LEN: usize = 1000;

impl Program {
    pub(crate) fn new() -> Program {
        context();
        let text = CString::new(PTX).unwrap();
        // SAFETY: the pointers are ours, and the text ends with a zero byte.
        let module = handle(|to| unsafe { cuModuleLoadData(to, text.as_ptr().cast()) });
        Program { module }
    }

    pub(crate) fn function(&self, name: &str) -> Handle {
        let name = CString::new(name).unwrap();
        // SAFETY: as above.
        handle(|to| unsafe { cuModuleGetFunction(to, self.module, name.as_ptr()) })
    }

    /// Launches a kernel of the tests; numbers of 8 bytes are addresses.
    pub(crate) fn launch(
        &self,
        name: &str,
        (blocks, threads): (u32, u32),
        stream: Handle,
        arguments: &[Arg],
    ) -> CUresult {
        let function = self.function(name);
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .map(|a| match a {
                Arg::Address(v) => (&raw const *v).cast_mut().cast(),
                Arg::Word(v) => (&raw const *v).cast_mut().cast(),
            })
            .collect();
        let params = pointers.as_mut_ptr();
        // SAFETY: there is a pointer for each parameter, to a value of its size.
        unsafe { cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, null_mut()) }
    }

    /// `to[i] = from[i] + 1`
    pub(crate) fn next(&self, to: u64, from: u64, stream: Handle) -> CUresult {
        let arguments = [Arg::Address(to), Arg::Address(from), Arg::Word(LEN as u32)];
        self.launch("next", (8, 128), stream, &arguments)
    }
}

pub(crate) enum Arg {
    Address(u64),
    Word(u32),
}

/// Makes the first device's context current.
pub(crate) fn context() {
    ok(cuInit(0));
    // SAFETY: the pointers are ours, here and in what follows.
    let context = handle(|to| unsafe { cuDevicePrimaryCtxRetain(to, 0) });
    ok(cuCtxSetCurrent(context));
}

pub(crate) fn alloc(words: usize) -> u64 {
    // SAFETY: the pointer is ours.
    made(|to| unsafe { cuMemAlloc_v2(to, words * 4) })
}

/// Device memory with values.
pub(crate) fn filled(values: &[u32]) -> u64 {
    let at = alloc(values.len());
    // SAFETY: the range is ours.
    ok(unsafe { cuMemcpyHtoD_v2(at, values.as_ptr().cast(), values.len() * 4) });
    at
}

pub(crate) fn read(at: u64, words: usize) -> Vec<u32> {
    let mut values = vec![0_u32; words];
    // SAFETY: the range is ours.
    ok(unsafe { cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), at, words * 4) });
    values
}

/// A stream that is not ordered with the default one.
pub(crate) fn stream() -> Handle {
    // SAFETY: the pointer is ours.
    handle(|to| unsafe { cuStreamCreate(to, 1) })
}

pub(crate) fn event() -> Handle {
    // SAFETY: the pointer is ours.
    handle(|to| unsafe { cuEventCreate(to, 2) })
}

/// Makes a stream wait for what another was given.
pub(crate) fn after(stream: Handle, other: Handle) {
    let event = event();
    ok(cuEventRecord(event, other));
    ok(cuStreamWaitEvent(stream, event, 0));
    ok(cuEventDestroy_v2(event));
}

pub(crate) fn report() -> String {
    let mut needed = 0;
    // SAFETY: the pointers are ours, and the buffer has what is needed; the calls count themselves, so there is room for more.
    unsafe {
        ok(tlcSimReport(null_mut(), 0, &raw mut needed));
        let mut text = vec![0_u8; needed + 64];
        ok(tlcSimReport(text.as_mut_ptr().cast(), text.len(), &raw mut needed));
        text.truncate(needed - 1);
        String::from_utf8(text).unwrap()
    }
}

/// A number of the report.
pub(crate) fn reported(key: &str) -> u64 {
    let report = report();
    let at = report.find(&format!("\"{key}\": ")).unwrap() + key.len() + 4;
    let digits: String = report[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Expects that nothing was found.
#[track_caller]
pub(crate) fn clean() {
    assert_eq!(reported("found"), 0, "{}", report());
}

pub(crate) fn counted() -> Vec<u32> {
    (0..LEN as u32).collect()
}

pub(crate) fn plus(by: u32) -> Vec<u32> {
    (0..LEN as u32).map(|i| i + by).collect()
}

#[test]
fn any_program_runs_through_the_library() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|p| p.status.success()) {
        eprintln!("SKIP through_ctypes: there is no python3");
        return;
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    // The library of this build, which cargo puts beside the folder of the tests; the script builds one where it is not there.
    let exe = std::env::current_exe().unwrap();
    let built = exe
        .ancestors()
        .take(4)
        .map(|folder| folder.join("libtlc_gpusim_driver.so"))
        .find(|file| file.exists());
    let mut command = Command::new("sh");
    command.arg(format!("{root}/tests/gpu/with-simulator")).args([
        "python3",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/through_ctypes.py"),
    ]);
    if let Some(built) = built {
        command.env("TLC_SIM_LIB", built);
    }
    let ran = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success() && out.contains("doubled 1000"), "{out}{err}");
}
