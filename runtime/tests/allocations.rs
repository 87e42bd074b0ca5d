//! What must not allocate when warm: a fork-join dispatch, and taking a pooled buffer and returning it.
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
fn warm_dispatches_and_warm_buffers_allocate_nothing() {
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
