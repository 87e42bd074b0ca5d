//! GPU kernels by their serial meaning: interpreted, and run as machine code of the host.

use tlc_ir::kernel::Kernel;
use tlc_ir::kernel::interp::{KernelError, interpret};
use tlc_ir::kernel::verify::{Report, verify};
use tlc_ir::{DType, Scalar};

use crate::contract::{agreed, arguments, parse, tensors};

/// A kernel of which everything is proven.
fn proven(text: &str) -> Kernel {
    let kernel = parse(text);
    assert_eq!(verify(&kernel), Report::default(), "{text}");
    kernel
}

fn f32_of(values: &[Scalar]) -> Vec<f32> {
    values.iter().map(|v| v.as_f64() as f32).collect()
}

#[test]
fn a_copy_of_each_thread_lives_through_loops_and_barriers() {
    // Each thread keeps two elements, passes one through shared memory, and puts all three together.
    let kernel = proven(
        "\
kernel (p0: f32[256] read, p1: f32[128] write) {
  scratch r0: f32[2] thread
  scratch r1: f32[64] shared
  for i0 in 0..2 block {
    for i1 in 0..64 thread {
      %0: f32 = load p0[128*i0 + i1]
      %1: f32 = load p0[128*i0 + 64 + i1]
      store r0[0], %0
      store r0[1], %1
      store r1[i1], %0
    }
    barrier
    for i2 in 0..2 serial {
      for i3 in 0..64 thread {
        %2: f32 = load r0[1 - i2]
        %3: f32 = load r1[63 - i3]
        %4: f32 = mul %2, %3
        accumulate add r0[0] with %4
      }
    }
    for i4 in 0..64 thread {
      %5: f32 = load r0[0]
      store p1[64*i0 + i4], %5
    }
  }
}
",
    );
    let arguments = arguments(&kernel, &[], 3);
    let found = f32_of(&agreed(&kernel, &[], &arguments)[1]);
    let x = f32_of(&arguments[0]);
    for block in 0..2 {
        for t in 0..64 {
            let (own, second, other) = (x[128 * block + t], x[128 * block + 64 + t], x[128 * block + 63 - t]);
            let first = own + second * other;
            assert_eq!(found[64 * block + t], first + first * other, "block {block} thread {t}");
        }
    }
}

#[test]
fn a_copy_of_each_thread_is_undefined_in_the_next_block() {
    let text = "\
kernel (p0: f32[2] write) {
  scratch r0: f32[1] thread
  for i0 in 0..2 block {
    for i1 in 0..1 - i0 thread {
      %0: f32 = const 1.0
      store r0[0], %0
    }
    for i2 in 0..1 thread {
      %1: f32 = load r0[0]
      store p0[i0], %1
    }
  }
}
";
    let kernel = parse(text);
    let mut buffers = tensors(&kernel, &arguments(&kernel, &[], 1));
    let found = interpret(&kernel, &mut buffers, &[]);
    assert!(matches!(found, Err(KernelError::Undefined { .. })), "{found:?}");
}

/// Each thread's element of `p0`, a collective on it, and what each thread has then.
fn collective(dtype: &str, what: &str, group: &str, threads: i64) -> Kernel {
    let text = if group == "warp" {
        format!(
            "\
kernel (p0: {dtype}[{threads}*s0] read, p1: {dtype}[{threads}*s0] write) where s0 in 1..=4 {{
  scratch r0: {dtype}[3] thread
  for i0 in 0..s0 block {{
    for i1 in 0..{warps} warp {{
      for i2 in 0..32 thread {{
        %0: {dtype} = load p0[{threads}*i0 + 32*i1 + i2]
        store r0[1], %0
      }}
      {what} warp r0[1]
      for i3 in 0..32 thread {{
        %1: {dtype} = load r0[1]
        store p1[{threads}*i0 + 32*i1 + i3], %1
      }}
    }}
  }}
}}
",
            warps = threads / 32
        )
    } else {
        format!(
            "\
kernel (p0: {dtype}[{threads}*s0] read, p1: {dtype}[{threads}*s0] write) where s0 in 1..=4 {{
  scratch r0: {dtype}[3] thread
  for i0 in 0..s0 block {{
    for i1 in 0..{threads} thread {{
      %0: {dtype} = load p0[{threads}*i0 + i1]
      store r0[1], %0
    }}
    {what} block {threads} r0[1]
    for i2 in 0..{threads} thread {{
      %1: {dtype} = load r0[1]
      store p1[{threads}*i0 + i2], %1
    }}
  }}
}}
"
        )
    };
    proven(&text)
}

/// The sum of a tree over up to 32 elements, as a warp adds them.
fn tree(x: &[f32]) -> f32 {
    let mut x = x.to_vec();
    for half in [16, 8, 4, 2, 1] {
        for t in 0..half {
            if t + half < x.len() {
                x[t] += x[t + half];
            }
        }
    }
    x[0]
}

#[test]
fn sums_of_warps_and_blocks_are_trees() {
    for threads in [32, 64, 96] {
        let kernel = collective("f32", "reduce add", "warp", threads);
        let arguments = arguments(&kernel, &[3], threads as u64);
        let found = f32_of(&agreed(&kernel, &[3], &arguments)[1]);
        for (warp, x) in f32_of(&arguments[0]).chunks(32).enumerate() {
            assert!(
                found[32 * warp..][..32].iter().all(|f| *f == tree(x)),
                "{threads} threads, warp {warp}"
            );
        }
    }
    for threads in [1, 7, 32, 33, 70, 128, 1024] {
        let kernel = collective("f32", "reduce add", "block", threads);
        let arguments = arguments(&kernel, &[2], threads as u64);
        let found = f32_of(&agreed(&kernel, &[2], &arguments)[1]);
        let n = threads as usize;
        for (block, x) in f32_of(&arguments[0]).chunks(n).enumerate() {
            let warps: Vec<f32> = x.chunks(32).map(tree).collect();
            let expected = tree(&warps);
            assert!(
                found[n * block..][..n].iter().all(|f| *f == expected),
                "{threads} threads"
            );
        }
    }
}

#[test]
fn scans_and_broadcasts_reach_every_thread() {
    for (group, threads) in [
        ("warp", 32),
        ("warp", 96),
        ("block", 5),
        ("block", 33),
        ("block", 100),
        ("block", 256),
    ] {
        let kernel = collective("i64", "scan add", group, threads);
        let arguments = arguments(&kernel, &[2], 5);
        let found = agreed(&kernel, &[2], &arguments);
        let size = if group == "warp" { 32 } else { threads as usize };
        let parts = arguments[0].chunks(size).zip(found[1].chunks(size));
        for (x, found) in parts {
            let mut sum = 0i64;
            for (x, f) in x.iter().zip(found) {
                sum = sum.wrapping_add(x.as_i64());
                assert_eq!(f.as_i64(), sum, "{group} of {threads}");
            }
        }
        // Floats: interpreter and machine code agree on the bits.
        let kernel = collective("f32", "scan add", group, threads);
        agreed(&kernel, &[2], &crate::contract::arguments(&kernel, &[2], 6));
        let kernel = collective("bf16", "broadcast 3", group, threads);
        let arguments = crate::contract::arguments(&kernel, &[2], 7);
        let found = agreed(&kernel, &[2], &arguments);
        for (x, found) in arguments[0].chunks(size).zip(found[1].chunks(size)) {
            assert!(found.iter().all(|f| *f == x[3]), "{group} of {threads}");
        }
    }
    for what in ["reduce max", "reduce min", "reduce mul", "scan max"] {
        for dtype in ["f32", "bf16", "i32"] {
            let kernel = collective(dtype, what, "block", 70);
            agreed(&kernel, &[1], &arguments(&kernel, &[1], 8));
        }
    }
    let kernel = collective("bool", "reduce or", "warp", 64);
    let mut arguments = arguments(&kernel, &[1], 9);
    arguments[0] = (0..64).map(|i| Scalar::from_bool(i == 40)).collect();
    let found = agreed(&kernel, &[1], &arguments);
    assert!(found[1].iter().zip(0..64).all(|(f, i)| f.as_bool() == (i >= 32)));
    assert_eq!(found[1][0].dtype(), DType::Bool);
}
