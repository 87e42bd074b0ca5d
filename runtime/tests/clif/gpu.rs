//! GPU kernels by their serial meaning: interpreted, and run as machine code of the host.

use std::sync::Arc;

use tlc_codegen::cuda::CudaOptions;
use tlc_ir::kernel::interp::{KernelError, interpret};
use tlc_ir::kernel::verify::{Report, structure, verify};
use tlc_ir::kernel::{Kernel, Scope, Stmt};
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph, parse_module};
use tlc_ir::{DType, Scalar};
use tlc_passes::devices::Devices;
use tlc_passes::legalize::legalize;
use tlc_passes::{Options, compile};

use crate::build::Rng;
use crate::contract::{agreed, agreed_within, arguments, parse, tensors};

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
    let text = if group != "block" {
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
      {what} {group} r0[1]
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
    for part in [1, 2, 4, 8, 16, 32] {
        let kernel = collective("f32", "reduce add", &format!("part {part}"), 64);
        let arguments = arguments(&kernel, &[3], part);
        let found = f32_of(&agreed(&kernel, &[3], &arguments)[1]);
        let size = part as usize;
        for (x, found) in f32_of(&arguments[0]).chunks(size).zip(found.chunks(size)) {
            assert!(found.iter().all(|f| *f == tree(x)), "each {part} threads");
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
        ("part 4", 64),
        ("part 16", 32),
        ("block", 5),
        ("block", 33),
        ("block", 100),
        ("block", 256),
    ] {
        let kernel = collective("i64", "scan add", group, threads);
        let arguments = arguments(&kernel, &[2], 5);
        let found = agreed(&kernel, &[2], &arguments);
        let size = match group.strip_prefix("part ") {
            Some(part) => part.parse().expect("a number"),
            None if group == "warp" => 32,
            None => threads as usize,
        };
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
    for (group, size, threads) in [
        ("warp", 32, 96),
        ("part 8", 8, 32),
        ("part 1", 1, 32),
        ("block 70", 70, 70),
    ] {
        let group = group.split(' ').next().filter(|g| *g == "block").unwrap_or(group);
        let kernel = collective("i32", "shift max", group, threads);
        let arguments = arguments(&kernel, &[2], 8);
        let found = agreed(&kernel, &[2], &arguments);
        for (x, found) in arguments[0].chunks(size).zip(found[1].chunks(size)) {
            assert_eq!(found[0].as_i64(), i64::from(i32::MIN), "{group} of {threads}");
            assert_eq!(found[1..], x[..size - 1], "{group} of {threads}");
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

#[test]
fn a_copy_beside_the_threads_is_there_behind_its_wait_and_a_barrier() {
    let text = "\
kernel (p0: f32[256] read, p1: bool[2] read, p2: f32[256] write) {
  scratch r0: f32[128] shared
  for i0 in 0..2 block {
    for i1 in 0..32 thread {
      %0: bool = load p1[i0]
      copy_async i2 in 0..4 r0[4*i1 + i2] from p0[128*i0 + 4*i1 + i2] if %0
    }
    commit
    wait 0
    barrier
    for i3 in 0..128 thread {
      %1: f32 = load r0[127 - i3]
      store p2[128*i0 + i3], %1
    }
  }
}
";
    let kernel = proven(text);
    let mut arguments = arguments(&kernel, &[], 5);
    arguments[1] = vec![Scalar::from_bool(true), Scalar::from_bool(false)];
    let found = f32_of(&agreed(&kernel, &[], &arguments)[2]);
    let x = f32_of(&arguments[0]);
    for t in 0..128 {
        assert_eq!(found[t], x[127 - t]);
        // What a mask leaves out is zero.
        assert_eq!(found[128 + t], 0.0);
    }
    // The latest group is not waited for, or it is not closed: the text is wrong, and the interpreter refuses it as well.
    let broken = [("wait 0", "wait 1"), ("    commit\n", ""), ("    barrier\n", "")];
    for broken in broken.map(|(right, wrong)| text.replace(right, wrong)) {
        let kernel = parse(&broken);
        assert!(!verify(&kernel).errors.is_empty());
        let found = interpret(&kernel, &mut tensors(&kernel, &arguments), &[]);
        assert!(matches!(found, Err(KernelError::Invalid(_))), "{found:?}");
    }
}

#[test]
fn an_element_that_is_copied_to_twice_at_once_is_refused_when_it_runs() {
    let kernel = parse(
        "\
kernel (p0: f32[32] read) {
  scratch r0: f32[32] shared
  for i0 in 0..1 block {
    for i1 in 0..32 thread {
      copy_async i2 in 0..1 r0[i1] from p0[i1]
      copy_async i3 in 0..1 r0[i1] from p0[31 - i1]
    }
  }
}
",
    );
    let found = interpret(&kernel, &mut tensors(&kernel, &arguments(&kernel, &[], 1)), &[]);
    assert!(matches!(found, Err(KernelError::Pending { index: 0, .. })), "{found:?}");
}

#[test]
fn a_fragment_of_a_block_is_handed_to_its_owners() {
    for (operand, accumulator) in [("f32", "f32"), ("bf16", "f32"), ("i8", "i32")] {
        let kernel = proven(&format!(
            "\
kernel (p0: {operand}[16*s0] read, p1: {operand}[8*s0] read, p2: {accumulator}[128] write) where s0 in 0..=40 {{
  scratch r0: {accumulator}[128] block_fragment
  for i0 in 0..1 block {{
    each i1 in 0..16, i2 in 0..8 of r0 {{
      %0: {accumulator} = index 8*i1 - i2
      store r0[8*i1 + i2], %0
    }}
    contract i3 in 0..16, i4 in 0..8 over i5 in 0..s0 by 16 r0[8*i3 + i4] with p0[s0*i3 + i5], p1[s0*i4 + i5]
    each i6 in 0..16, i7 in 0..8 of r0 {{
      %1: {accumulator} = load r0[8*i6 + i7]
      store p2[16*i7 + i6], %1
    }}
    for i8 in 0..64 thread {{
    }}
  }}
}}
"
        ));
        for k in [0, 1, 17, 40] {
            let arguments = arguments(&kernel, &[k], 4);
            let found = agreed(&kernel, &[k], &arguments);
            for (m, n) in (0..16).flat_map(|m| (0..8).map(move |n| (m, n))) {
                let mut sum = (8 * m - n) as f64;
                for step in 0..k as usize {
                    let element = |p: usize, i: i64| arguments[p][i as usize * k as usize + step].as_f64();
                    let (a, b) = (element(0, m), element(1, n));
                    sum = match accumulator {
                        "f32" => f64::from((a as f32).mul_add(b as f32, sum as f32)),
                        _ => sum + a * b,
                    };
                }
                assert_eq!(found[2][(16 * n + m) as usize].as_f64(), sum, "{operand} {k} {m} {n}");
            }
        }
    }
}

#[test]
fn a_double_buffered_product_with_a_bias_is_what_loops_say() {
    let kernel = proven(include_str!("kernels/product.tlir"));
    for [rows, quads] in [[1, 1], [32, 4], [33, 5], [70, 9], [5, 0], [0, 3], [31, 12]] {
        let symbols = [rows, quads];
        let arguments = arguments(&kernel, &symbols, 11);
        let found = f32_of(&agreed(&kernel, &symbols, &arguments)[3]);
        let [a, b, bias] = [0, 1, 2].map(|p| f32_of(&arguments[p]));
        let k = 4 * quads as usize;
        for (i, found) in found.iter().enumerate() {
            let (row, column) = (i / 64, i % 64);
            let step = |sum: f32, k_at: usize| a[row * k + k_at].mul_add(b[64 * k_at + column], sum);
            let expected = (0..k).fold(0.0, step) + bias[column];
            assert_eq!(*found, expected, "{symbols:?} row {row} column {column}");
        }
    }
}

#[test]
fn a_double_buffered_product_without_one_of_its_barriers_or_waits_is_wrong() {
    let text = include_str!("kernels/product.tlir");
    let lines: Vec<&str> = text.lines().collect();
    let mut tried = 0;
    for (at, line) in lines.iter().enumerate() {
        let wrong: &[&str] = match line.trim() {
            "barrier" | "commit" => &[""],
            "wait 1" => &["", "wait 2"],
            _ => continue,
        };
        for wrong in wrong {
            let mut broken = lines.clone();
            broken[at] = wrong;
            let report = verify(&parse(&broken.join("\n")));
            assert!(!report.errors.is_empty(), "line {}: {line}, now `{wrong}`", at + 1);
            tried += 1;
        }
    }
    assert_eq!(tried, 11);
}

#[test]
fn attention_with_online_softmax_is_what_a_softmax_of_all_keys_says() {
    let kernel = proven(include_str!("kernels/attention.tlir"));
    for [queries, keys] in [[1, 1], [32, 32], [33, 40], [5, 97], [0, 3], [70, 64]] {
        let symbols = [queries, keys];
        let arguments = arguments(&kernel, &symbols, 13);
        let found = f32_of(&agreed_within(&kernel, &symbols, &arguments, 1e-5)[3]);
        let [q, k, v] = [0, 1, 2].map(|p| -> Vec<f64> { f32_of(&arguments[p]).into_iter().map(f64::from).collect() });
        for (row, found) in found.chunks(32).enumerate() {
            let score = |key: usize| -> f64 {
                let dot: f64 = (0..32).map(|d| q[32 * row + d] * k[32 * key + d]).sum();
                dot / 32f64.sqrt()
            };
            let scores: Vec<f64> = (0..keys as usize).map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for (d, found) in found.iter().enumerate() {
                let weighted = |(key, s): (usize, &f64)| (s - top).exp() * v[32 * key + d];
                let expected: f64 = scores.iter().enumerate().map(weighted).sum::<f64>() / total;
                let off = (f64::from(*found) - expected).abs();
                assert!(
                    off < 2e-5,
                    "{symbols:?} row {row} column {d}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn what_warps_multiply_runs_serially() {
    let plain = "graph @plain(%x: f16[n, 136], %y: f16[136, 40]) where n in 0..=100 {
       %0 = einsum %x, %y {ab,bc->ac; acc=f32} : f16[n, 40]
       return %0
     }";
    let turned = "graph @turned(%x: bf16[75, n], %y: bf16[75, 33], %r: f32[n, 33]) where n in 0..=100 {
       %0 = einsum %x, %y {ba,bc->ac; acc=f32} : f32[n, 33]
       %1 = add %0, %r : f32[n, 33]
       return %1
     }";
    for text in [plain, turned] {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
        let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        let compiled = compile(&graph, &Options::new(Devices::new(host, [gpu]))).unwrap_or_else(|e| panic!("{e}"));
        let [launch] = &compiled.planned.launches[..] else {
            panic!("several kernels of {text}")
        };
        let kernel = &*launch.scheduled;
        let fragments = kernel.scratch.iter().filter(|s| s.scope == Scope::WarpFragment);
        assert_eq!(fragments.count(), 1, "{kernel}");
        assert_eq!(verify(kernel).errors, [], "{kernel}");
        for n in [0, 1, 33, 64] {
            agreed(kernel, &[n], &arguments(kernel, &[n], 3));
        }
    }
}

#[test]
fn folds_of_rows_and_fragments_on_the_left_are_what_loops_say() {
    let kernel = proven(include_str!("kernels/fold.tlir"));
    let arguments = arguments(&kernel, &[], 17);
    let found = f32_of(&agreed(&kernel, &[], &arguments)[2]);
    let [a, b] = [0, 1].map(|p| -> Vec<f64> { f32_of(&arguments[p]).into_iter().map(f64::from).collect() });
    for (i, found) in found.iter().enumerate() {
        let (row, column) = (i / 16, i % 16);
        let of_row = &a[16 * row..16 * row + 16];
        let product: f64 = (0..16).map(|k| of_row[k] * b[16 * k + column]).sum();
        let expected = a[i] + of_row.iter().sum::<f64>() + product;
        let off = (f64::from(*found) - expected).abs();
        assert!(off < 1e-3, "{row} {column}: {found}, expected {expected}");
    }
}

#[test]
fn attention_by_warps_runs_serially() {
    let graph = |dtype: &str| {
        format!(
            "graph @a(%q: {dtype}[2, n, 40], %k: {dtype}[2, t, 40], %v: {dtype}[2, t, 24]) where n in 0..=80, t in 0..=150 {{
               %0 = einsum %q, %k {{abc,adc->abd}} : {dtype}[2, n, t]
               %1 = convert %0 : f32[2, n, t]
               %2 = reduce max %1 {{axes=[2]}} : f32[2, n]
               %3 = reshape %2 : f32[2, n, 1]
               %4 = expand %3 : f32[2, n, t]
               %5 = sub %1, %4 : f32[2, n, t]
               %6 = exp %5 : f32[2, n, t]
               %7 = reduce add %6 {{axes=[2]}} : f32[2, n]
               %8 = reshape %7 : f32[2, n, 1]
               %9 = expand %8 : f32[2, n, t]
               %10 = div %6, %9 : f32[2, n, t]
               %11 = convert %10 : {dtype}[2, n, t]
               %12 = einsum %11, %v {{abc,acd->abd}} : {dtype}[2, n, 24]
               return %12
             }}"
        )
    };
    for (dtype, tolerance) in [("f16", 2e-3), ("bf16", 2e-2)] {
        let graph = parse_graph(&graph(dtype), &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
        let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        let compiled = compile(&graph, &Options::new(Devices::new(host, [gpu]))).unwrap_or_else(|e| panic!("{e}"));
        let [launch] = &compiled.planned.launches[..] else {
            panic!("several kernels")
        };
        let kernel = &*launch.scheduled;
        let folds = kernel.statements().filter(|s| matches!(s, Stmt::FoldRows(_)));
        assert_eq!(folds.count(), 2, "{kernel}");
        assert_eq!(verify(kernel).errors, [], "{kernel}");
        for symbols in [[1, 1], [17, 5], [33, 64], [5, 65], [80, 150], [3, 0], [0, 3]] {
            agreed_within(kernel, &symbols, &arguments(kernel, &symbols, 3), tolerance);
        }
    }
}

#[test]
fn damage_to_a_text_is_an_error_or_judged() {
    let mut judged = 0;
    for text in [
        include_str!("kernels/product.tlir"),
        include_str!("kernels/attention.tlir"),
    ] {
        let words: Vec<&str> = text.split_inclusive(' ').collect();
        let mut rng = Rng(99);
        for _ in 0..250 {
            // A word is lost, or stands where another was.
            let mut broken = words.clone();
            let (at, from) = (rng.below(words.len()), rng.below(words.len()));
            match rng.below(2) {
                0 => drop(broken.remove(at)),
                _ => broken[at] = words[from],
            }
            let Ok(module) = parse_module(&broken.concat(), &mut no_data) else {
                continue;
            };
            for (_, mut kernel) in module.kernels {
                let right = structure(&kernel).is_empty();
                let symbols: Vec<i64> = kernel.symbols.iter().map(|s| s.0.max(3).min(s.1)).collect();
                let arguments = arguments(&kernel, &symbols, 1);
                let run = interpret(&kernel, &mut tensors(&kernel, &arguments), &symbols);
                assert!(right || matches!(run, Err(KernelError::Invalid(_))), "{run:?}");
                if right {
                    legalize(&mut kernel, &tlc_codegen::clif::emitter(true));
                    assert_eq!(structure(&kernel), [], "{kernel}");
                }
                judged += 1;
            }
        }
    }
    assert!(judged > 30, "{judged}");
}

#[test]
fn threads_contract_into_their_copies_in_cuda_and_what_is_missing_there_is_refused() {
    let text = "\
kernel (p0: f32[128] read, p1: f32[128] read, p2: f32[256] write) {
  scratch r0: f32[4] thread
  for i0 in 0..1 block {
    for i1 in 0..64 thread {
      %0: f32 = const 0.0
      for i2 in 0..4 unroll {
        store r0[i2], %0
      }
    }
    for i3 in 0..64 thread {
      contract i4 in 0..2, i5 in 0..2 over i6 in 0..8 by 8 r0[2*i4 + i5] with p0[8*(2*div(i3, 8) + i4) + i6], p1[16*i6 + 2*mod(i3, 8) + i5]
    }
    for i7 in 0..64 thread {
      for i8 in 0..4 unroll {
        %1: f32 = load r0[i8]
        store p2[16*(2*div(i7, 8) + div(i8, 2)) + 2*mod(i7, 8) + mod(i8, 2)], %1
      }
    }
  }
}
";
    let kernel = parse(text);
    agreed(&kernel, &[], &arguments(&kernel, &[], 2));
    let emitted = |mut kernel: Kernel| {
        legalize(&mut kernel, &tlc_codegen::cuda::emitter());
        tlc_codegen::cuda::emit(&kernel, "k", &CudaOptions::default())
    };
    let source = emitted(kernel).unwrap().source;
    assert!(source.contains("f32 a0[4];") && source.contains("fma"), "{source}");
    let source = emitted(parse(include_str!("kernels/product.tlir"))).unwrap().source;
    assert!(
        source.contains("cp.async.cg.shared.global") && source.contains("cp.async.wait_group 1;"),
        "{source}"
    );
    let refused = emitted(parse(include_str!("kernels/attention.tlir")))
        .unwrap_err()
        .to_string();
    assert!(!refused.contains('\n'), "{refused}");
}
