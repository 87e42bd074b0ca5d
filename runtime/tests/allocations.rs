//! What must not allocate when warm: a fork-join dispatch, taking a pooled buffer and returning it, and a call of an
//! executable into the caller's buffers.
//!
//! One test function, since the counter is the process's (a pool's workers count too).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the trait's contract.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(mut work: impl FnMut()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    work();
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

#[test]
fn warm_dispatches_buffers_and_calls_allocate_nothing() {
    warm_calls_allocate_nothing();
    let pool = Pool::new(3);
    let sum = AtomicU64::new(0);
    let dispatch = || {
        pool.parallel_for(100, 1, &|_, begin, _| {
            sum.fetch_add(begin, Ordering::Relaxed);
        })
        .unwrap();
    };
    dispatch();
    // The workers' own start (their names, their thread-locals) is not part of a dispatch.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(allocations_of(|| (0..1000).for_each(|_| dispatch())), 0);
    // Parked workers are woken without allocating, too.
    let parked = allocations_of(|| {
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            dispatch();
        }
    });
    assert_eq!(parked, 0);

    let buffers = BufferPool::with_limit(64 << 20);
    for bytes in [100, 1 << 20, 8 << 20] {
        drop(buffers.take(bytes).unwrap());
    }
    let fresh = buffers.stats().fresh;
    let warm = allocations_of(|| {
        for _ in 0..100 {
            for bytes in [100, 1 << 20, 8 << 20] {
                drop(buffers.take(bytes).unwrap());
            }
        }
    });
    assert_eq!(warm, 0);
    assert_eq!(buffers.stats().fresh, fresh, "a mapping of the system's counts as well");
}

/// A product and a softmax after an activation: row kernels with scratch, packed operands, an arena, a symbolic size;
/// a loop with a stacked result, a sort; with `constant`, also a value that is computed once per executable.
fn model(constant: bool) -> tlc_ir::Graph {
    let text = "graph @m(%x: f32[n, 96], %w: f32[n, 96], %b: f32[96], %p: f32[96, 96]) where n in 1..=4096 {
  %0 = mul %x, %w : f32[n, 96]
  %1 = expand %b : f32[n, 96]
  %2 = add %0, %1 : f32[n, 96]
  %3 = tanh %2 : f32[n, 96]
  %4 = reduce max %3 {axes=[1]} : f32[n]
  %5 = reshape %4 : f32[n, 1]
  %6 = expand %5 : f32[n, 96]
  %7 = sub %3, %6 : f32[n, 96]
  %8 = exp %7 : f32[n, 96]
  %9 = reduce add %8 {axes=[1]} : f32[n]
  %10 = reshape %9 : f32[n, 1]
  %11 = expand %10 : f32[n, 96]
  %12 = div %8, %11 : f32[n, 96]
  %13 = reduce add %3 {axes=[0]} : f32[96]
  %14 = einsum %12, %p {nk,km->nm} : f32[n, 96]
  %20 = loop %14, %p {trip=3, carried=1, stacks=[1], symbols=[n]} body @step(%i: i64[], %h: f32[k, 96], %q: f32[96, 96])
      where k in 1..=4096 {
    %0 = einsum %h, %q {ab,bc->ac} : f32[k, 96]
    %1 = tanh %0 : f32[k, 96]
    %2 = reduce add %1 {axes=[1]} : f32[k]
    return %1, %2
  } : (f32[n, 96], f32[n, 3])
  %21 = project %20 {result=0} : f32[n, 96]
  %22 = call sort %21 {axis=1, count=96, descending} : (f32[n, 96], i64[n, 96])
  %23 = project %22 {result=0} : f32[n, 96]
  return %23 as y, %13 as s
}
";
    // A table of 96 x 96 numbers, whose sums are computed once per executable.
    let sums = "  %15 = const opaque \"w\" : f32[96, 96]
  %16 = exp %15 : f32[96, 96]
  %17 = reduce add %16 {axes=[0]} : f32[96]
  %18 = add %13, %17 : f32[96]
  return %23 as y, %18 as s";
    let kept = text.replace("  return %23 as y, %13 as s", sums);
    let text = if constant { &kept } else { text };
    let mut data = |_: &str, dtype: tlc_ir::DType, shape: &[usize]| {
        tlc_ir::HostTensor::zeros(dtype, shape).map_err(|e| e.to_string())
    };
    tlc_ir::text::parse_graph(text, &mut data).expect("a valid graph")
}

fn warm_calls_allocate_nothing() {
    use std::sync::Arc;
    use tlc_ir::DType;
    use tlc_runtime::driver::{Executable, TensorView};

    let cpu = tlc_runtime::target::cpu(
        tlc_runtime::cpu::jit::emitters().expect("a known machine"),
        tlc_runtime::pool::default_threads(),
    );
    let options = tlc_passes::Options::new(cpu);
    let compiled = tlc_passes::compile(&model(false), &options).expect("it compiles");
    let kept = tlc_passes::compile(&model(true), &options).expect("it compiles");
    assert!(!kept.planned.plan.init.is_empty(), "the table's sums are kept");
    for (threads, compiled) in [(1, &compiled), (2, &compiled), (1, &kept), (2, &kept)] {
        let executable = Executable::new(
            compiled.planned.plan.clone(),
            Arc::new(Pool::new(threads)),
            BufferPool::new(),
            tlc_passes::memory::pack,
        )
        .expect("it loads");
        let data = vec![0x3f00_0000u32; 2048 * 96];
        let bytes: Vec<u8> = data.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut y = vec![0u64; 2048 * 96 / 2];
        let mut s = vec![0u64; 96 / 2];
        // Two sizes in turn: both bindings stay known.
        let shapes = [[2048usize, 96], [300, 96]];
        let mut call = |shape: &[usize; 2]| {
            let view = |shape, len: usize| TensorView {
                dtype: DType::F32,
                shape,
                data: &bytes[..4 * len],
            };
            let inputs = [
                view(shape, shape[0] * 96),
                view(shape, shape[0] * 96),
                view(&[96], 96),
                view(&[96, 96], 96 * 96),
            ];
            // SAFETY: any bytes are valid u8, and the views end before the buffers are used again.
            let as_bytes = |v: &mut Vec<u64>, len: usize| unsafe {
                std::slice::from_raw_parts_mut(v.as_mut_ptr().cast::<u8>(), len)
            };
            let mut outputs = [as_bytes(&mut y, shape[0] * 96 * 4), as_bytes(&mut s, 96 * 4)];
            executable.run_into(&inputs, &mut outputs).expect("it runs");
        };
        for _ in 0..20 {
            shapes.iter().for_each(&mut call);
        }
        let made = allocations_of(|| {
            for _ in 0..50 {
                shapes.iter().for_each(&mut call);
            }
        });
        assert_eq!(made, 0, "100 warm calls on {threads} threads");
    }
}
