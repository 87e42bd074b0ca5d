//! A warm call of an executable on a GPU allocates nothing on the host: what is counted are the allocations of this process, in one of its own
//! with a simulated device, whose library has an allocator of its own.

#[allow(dead_code, reason = "shared with another test, which uses all of it")]
#[path = "cuda/child.rs"]
mod child;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

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

#[test]
fn warm_calls_on_a_gpu_allocate_nothing_on_the_host() {
    child::simulated("children::warm", &[]);
}

mod children {
    use super::*;
    use tlc::{CompileOptions, Device, HostTensor, Input, OutputMut, Specialize, compile_ir};
    use tlc_ir::text::{no_data, parse_graph};

    #[test]
    #[ignore = "run by the test of this file, with a simulated device"]
    fn warm() {
        // A chain of small steps, independent ones, a loop and a product.
        let text = "graph @m(%x: f32[n, 96], %w: f32[n, 96], %p: f32[96, 96]) where n in 1..=4096 {
          %0 = mul %x, %w : f32[n, 96]
          %3 = tanh %0 : f32[n, 96]
          %13 = reduce add %3 {axes=[0]} : f32[96]
          %14 = einsum %3, %p {nk,km->nm} : f32[n, 96]
          %15 = reduce max %w {axes=[0]} : f32[96]
          %16 = add %13, %15 : f32[96]
          %20 = loop %14, %p {trip=3, carried=1, symbols=[n]} body @step(%i: i64[], %h: f32[k, 96], %q: f32[96, 96])
              where k in 1..=4096 {
            %0 = einsum %h, %q {ab,bc->ac} : f32[k, 96]
            %1 = tanh %0 : f32[k, 96]
            return %1
          } : (f32[n, 96])
          %21 = project %20 {result=0} : f32[n, 96]
          return %21 as y, %16 as s
        }";
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}"));
        let options = CompileOptions {
            device: Device::cuda(0),
            specialize: Specialize::Never,
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("an executable");
        let tensor = |rows: usize| HostTensor::from_slice(&[rows, 96], &vec![0.5f32; rows * 96]).expect("a tensor");
        let square = tensor(96);
        // Two sizes in turn: both stay known.
        let sizes = [64usize, 30].map(|rows| (rows, tensor(rows)));
        let mut y = vec![0f32; 64 * 96];
        let mut s = vec![0f32; 96];
        let mut call = |(rows, given): &(usize, HostTensor)| {
            let inputs = [Input::from(given), Input::from(given), Input::from(&square)];
            let mut outputs = [OutputMut::from(&mut y[..rows * 96]), OutputMut::from(&mut s[..])];
            executable.run_into(&inputs, &mut outputs).expect("it runs");
        };
        for _ in 0..8 {
            sizes.iter().for_each(&mut call);
        }
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for _ in 0..20 {
            sizes.iter().for_each(&mut call);
        }
        let made = ALLOCATIONS.load(Ordering::SeqCst) - before;
        assert_eq!(made, 0, "allocations of 40 warm calls");
    }
}
