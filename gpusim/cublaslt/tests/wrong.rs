//! Products that are asked for wrongly, each found; and their right twin, which is not.
//!
//! The driver is loaded as programs load it: the library finds it in the process by its name.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;
use std::ptr::null_mut;

use tlc_gpusim_cublaslt::*;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Where a function of the driver that was loaded is.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the names end with a zero byte, and the driver is loaded under this one.
    let found = unsafe { dlsym(dlopen(c"libcuda.so.1".as_ptr(), 2 | 4), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// A call of a function of the driver that succeeds.
macro_rules! driver {
    ($name:literal, fn($($t:ty),*), $($argument:expr),*) => {{
        let found = symbol($name);
        // SAFETY: the function has this type, and what it is given is ours.
        let status = unsafe {
            let function = std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> u32>(found);
            function($($argument),*)
        };
        assert_eq!(status, 0, "{:?}", $name);
    }};
}

/// Loads the driver from where cargo builds it, and makes a context current.
fn start() {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libtlc_gpusim_driver.so");
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero byte, and initializers of the driver have no preconditions.
    let loaded = unsafe { dlopen(path.as_ptr(), 2) };
    assert!(!loaded.is_null(), "{path:?}");
    let mut context = null_mut();
    driver!(c"cuInit", fn(u32), 0);
    driver!(c"cuDevicePrimaryCtxRetain", fn(*mut Handle, i32), &raw mut context, 0);
    driver!(c"cuCtxSetCurrent", fn(Handle), context);
}

fn alloc(bytes: usize) -> u64 {
    let mut address = 0;
    driver!(c"cuMemAlloc_v2", fn(*mut u64, usize), &raw mut address, bytes);
    address
}

/// f32 values on the device.
fn filled(values: &[f32]) -> u64 {
    let bytes = size_of_val(values);
    let address = alloc(bytes);
    let from = values.as_ptr().cast();
    driver!(c"cuMemcpyHtoD_v2", fn(u64, *const c_void, usize), address, from, bytes);
    address
}

fn stream() -> Handle {
    let mut stream = null_mut();
    driver!(c"cuStreamCreate", fn(*mut Handle, u32), &raw mut stream, 1);
    stream
}

fn synchronize(stream: Handle) {
    driver!(c"cuStreamSynchronize", fn(Handle), stream);
}

/// Overwrites the first matrix.
fn fill(address: u64, stream: Handle) {
    driver!(c"cuMemsetD8Async", fn(u64, u8, usize, Handle), address, 0, 1024, stream);
}

/// What was found so far, as JSON.
fn report() -> String {
    let mut text = vec![0u8; 1 << 16];
    let mut needed = 0;
    let to = text.as_mut_ptr().cast();
    driver!(
        c"tlcSimReport",
        fn(*mut c_char, usize, *mut usize),
        to,
        text.len(),
        &raw mut needed
    );
    text.truncate(needed - 1);
    String::from_utf8(text).unwrap()
}

/// What a product of 8 by 32 and 32 by 4 is asked with; each test spoils one of it.
#[derive(Clone)]
struct Asked {
    /// Rows, columns and leading dimension of A, B and D.
    layouts: [(u64, u64, i64); 3],
    turned: [i32; 2],
    compute: u32,
    batch: [i32; 3],
    stack: i64,
    reductions: u32,
    alignment: u32,
    workspace: u64,
    /// Added to the addresses of A, B, D and of the workspace.
    off: [u64; 4],
    given_workspace: u64,
    factors: [f32; 2],
    /// Whether the algorithm is that of another product.
    foreign: bool,
}

impl Asked {
    fn right() -> Asked {
        Asked {
            layouts: [(8, 32, 8), (32, 4, 32), (8, 4, 8)],
            turned: [0; 2],
            compute: 68,
            batch: [1; 3],
            stack: 0,
            reductions: 0,
            alignment: 16,
            workspace: 4096,
            off: [0; 4],
            given_workspace: 4096,
            factors: [1.0, 0.0],
            foreign: false,
        }
    }

    /// Asks; returns the first status that is not success, and whether what was proposed splits sums.
    fn ask(&self, [a, b, d, workspace]: [u64; 4], stream: Handle) -> (u32, bool) {
        let (mut library, mut operation, mut preference) = (null_mut(), null_mut(), null_mut());
        let mut layouts = [null_mut(); 3];
        let mut statuses = Vec::new();
        let mut parts = 0u32;
        // SAFETY: the pointers are ours, here and below.
        unsafe {
            statuses.push(cublasLtCreate(&raw mut library));
            statuses.push(cublasLtMatmulDescCreate(&raw mut operation, self.compute, 0));
            for (attribute, turned) in [3, 4].into_iter().zip(&self.turned) {
                statuses.push(cublasLtMatmulDescSetAttribute(
                    operation,
                    attribute,
                    (&raw const *turned).cast(),
                    4,
                ));
            }
            for ((to, &(rows, columns, leading)), batch) in layouts.iter_mut().zip(&self.layouts).zip(&self.batch) {
                statuses.push(cublasLtMatrixLayoutCreate(to, 0, rows, columns, leading));
                statuses.push(cublasLtMatrixLayoutSetAttribute(*to, 5, (&raw const *batch).cast(), 4));
                statuses.push(cublasLtMatrixLayoutSetAttribute(
                    *to,
                    6,
                    (&raw const self.stack).cast(),
                    8,
                ));
            }
            statuses.push(cublasLtMatmulPreferenceCreate(&raw mut preference));
            let set = |attribute, value: *const c_void, bytes| {
                cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes)
            };
            statuses.push(set(1, (&raw const self.workspace).cast(), 8));
            statuses.push(set(3, (&raw const self.reductions).cast(), 4));
            for attribute in 5..=8 {
                statuses.push(set(attribute, (&raw const self.alignment).cast(), 4));
            }
            let (mut proposal, mut count) = (Proposal::default(), 0);
            let [of_a, of_b, of_d] = layouts;
            statuses.push(cublasLtMatmulAlgoGetHeuristic(
                library,
                operation,
                of_a,
                of_b,
                of_d,
                of_d,
                preference,
                1,
                &raw mut proposal,
                &raw mut count,
            ));
            let algorithm = (&raw const proposal).cast::<Algorithm>();
            if count == 1 {
                let mut written = 0;
                let to = (&raw mut parts).cast();
                statuses.push(cublasLtMatmulAlgoConfigGetAttribute(
                    algorithm,
                    2,
                    to,
                    4,
                    &raw mut written,
                ));
                if self.foreign {
                    // Of the transposed first matrix: what was proposed is for the one before.
                    let leading = &raw const self.stack;
                    statuses.push(cublasLtMatrixLayoutSetAttribute(of_a, 6, leading.cast(), 8));
                    let turned = 1i32;
                    statuses.push(cublasLtMatmulDescSetAttribute(
                        operation,
                        3,
                        (&raw const turned).cast(),
                        4,
                    ));
                }
                let [alpha, beta] = self.factors.each_ref().map(|f| (&raw const *f).cast::<c_void>());
                let at = |address: u64, off: u64| std::ptr::without_provenance_mut::<c_void>((address + off) as usize);
                let [off_a, off_b, off_d, off_workspace] = self.off;
                statuses.push(cublasLtMatmul(
                    library,
                    operation,
                    alpha,
                    at(a, off_a),
                    of_a,
                    at(b, off_b),
                    of_b,
                    beta,
                    at(d, off_d),
                    of_d,
                    at(d, off_d),
                    of_d,
                    algorithm,
                    at(workspace, off_workspace),
                    self.given_workspace as usize,
                    stream,
                ));
            }
            statuses.push(cublasLtMatmulPreferenceDestroy(preference));
            statuses.extend(layouts.map(|l| cublasLtMatrixLayoutDestroy(l)));
            statuses.push(cublasLtMatmulDescDestroy(operation));
            statuses.push(cublasLtDestroy(library));
        }
        (statuses.into_iter().find(|s| *s != 0).unwrap_or(0), parts > 1)
    }
}

/// Runs this test again, in a process whose findings do not end it.
fn again(test: &str) -> bool {
    if std::env::var("TLC_TEST_CASE").is_ok() {
        return true;
    }
    let ran = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("TLC_TEST_CASE", "1")
        .env("TLC_SIM_ON_FINDING", "continue")
        .output()
        .unwrap();
    let text = [ran.stdout, ran.stderr]
        .map(|t| String::from_utf8_lossy(&t).into_owned())
        .concat();
    assert!(ran.status.success() && text.contains("1 passed"), "{text}");
    false
}

const INVALID: u32 = 7;
const UNSUPPORTED: u32 = 15;

#[test]
fn without_a_driver_there_is_no_library() {
    if again("without_a_driver_there_is_no_library") {
        let mut library = null_mut();
        // SAFETY: the pointer is ours.
        assert_eq!(unsafe { cublasLtCreate(&raw mut library) }, 1);
    }
}

#[test]
fn wrong_products_are_refused() {
    if !again("wrong_products_are_refused") {
        return;
    }
    start();
    let counted = |n: usize| (0..n).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<f32>>();
    let (a, b) = (filled(&counted(512)), filled(&counted(256)));
    let (d, workspace) = (filled(&[0.0; 64]), filled(&[0.0; 2048]));
    let places = [a, b, d, workspace];
    let stream = stream();
    let right = Asked::right();
    assert_eq!(right.ask(places, stream), (0, false));
    synchronize(stream);
    let mut found = vec![0f32; 32];
    let to = found.as_mut_ptr().cast();
    driver!(c"cuMemcpyDtoH_v2", fn(*mut c_void, u64, usize), to, d, 128);
    let (x, y) = (counted(512), counted(256));
    for (at, value) in found.iter().enumerate() {
        let (row, column) = (at % 8, at / 8);
        let sum: f32 = (0..32).map(|t| x[t * 8 + row] * y[column * 32 + t]).sum();
        assert_eq!(*value, sum, "{row}, {column}");
    }
    assert!(report().contains("\"found\": 0"), "{}", report());
    type Spoil = fn(&mut Asked);
    let wrong: [(&str, Spoil, u32); 15] = [
        ("columns that overlap", |p| p.layouts[0].2 = 7, INVALID),
        ("another sum", |p| p.layouts[1] = (31, 4, 31), INVALID),
        ("another result", |p| p.layouts[2] = (8, 5, 8), INVALID),
        (
            "a matrix that is turned, and was not meant",
            |p| p.turned = [1, 0],
            INVALID,
        ),
        ("a matrix without elements", |p| p.layouts[1].1 = 0, INVALID),
        ("stacks of different heights", |p| p.batch = [2, 1, 2], INVALID),
        ("results that overlap", |p| (p.batch, p.stack) = ([2; 3], 16), INVALID),
        ("addresses that are less aligned", |p| p.off[0] = 4, INVALID),
        ("a result that is less aligned", |p| p.off[2] = 8, INVALID),
        ("less to work in", |p| p.given_workspace = 64, INVALID),
        ("a workspace that is not aligned", |p| p.off[3] = 16, INVALID),
        ("the algorithm of another product", |p| p.foreign = true, INVALID),
        ("a matrix beyond its allocation", |p| p.off[0] = 1920, 13),
        ("sums of f16", |p| p.compute = 64, UNSUPPORTED),
        ("a factor", |p| p.factors[0] = 2.0, UNSUPPORTED),
    ];
    for (what, spoil, status) in wrong {
        let mut asked = Asked::right();
        spoil(&mut asked);
        assert_eq!(asked.ask(places, stream).0, status, "{what}");
    }
    // Whoever does not say that sums are one is proposed parts of them.
    let splits = Asked {
        reductions: 7,
        ..Asked::right()
    };
    assert_eq!(splits.ask(places, stream), (0, true));
    synchronize(stream);
    assert_eq!(cublasLtMatmulDescDestroy(null_mut()), INVALID);
    assert!(report().contains("\"found\": 0"), "{}", report());
    orders(places, &right);
}

/// Operands that another stream still writes, bytes that nobody wrote, and memory to work in that two products share.
fn orders([a, b, d, workspace]: [u64; 4], right: &Asked) {
    let (one, two) = (stream(), stream());
    let found = |what: &str, times: usize| {
        synchronize(one);
        synchronize(two);
        let text = report();
        assert_eq!(text.matches(what).count(), times, "{what}: {text}");
    };
    fill(a, one);
    assert_eq!(right.ask([a, b, d, workspace], two).0, 0);
    found("\"kind\": \"unordered\"", 1);
    // In one stream they are in order.
    fill(a, two);
    assert_eq!(right.ask([a, b, d, workspace], two).0, 0);
    found("\"kind\": \"unordered\"", 1);
    let other = filled(&[0.0; 64]);
    assert_eq!(right.ask([a, b, d, workspace], one).0, 0);
    assert_eq!(right.ask([a, b, other, workspace], two).0, 0);
    synchronize(one);
    synchronize(two);
    assert!(report().matches("\"kind\": \"unordered\"").count() > 1, "{}", report());
    let fresh = alloc(4096);
    assert_eq!(right.ask([fresh, b, d, workspace], two).0, 0);
    synchronize(two);
    assert!(
        report().contains("it multiplies bytes that nobody wrote"),
        "{}",
        report()
    );
    assert_eq!(right.ask([0, b, d, workspace], two).0, INVALID);
}
