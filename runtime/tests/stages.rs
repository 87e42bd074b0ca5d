//! Products on a simulated GPU whose operands are copied several blocks of steps ahead: the bits of two stages, one barrier a block of
//! steps, and a wait for one group too few is a race.

#[path = "cuda_graphs/mod.rs"]
#[allow(dead_code, reason = "shared with another test, which uses all of it")]
mod cuda_graphs;

use std::sync::Arc;

use tlc_codegen::cuda::{COMPILE_FLAGS, CudaKernel, CudaOptions, emit};
use tlc_gpusim::{Class, Device, FindingKind, Launch, Module, Options as Simulated, Report, Schedule};
use tlc_ir::kernel::{Access, Kernel, Stmt};
use tlc_ir::plan::Step;
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, Gpu, Multiprocessor};
use tlc_ir::testgen::random_tensor;
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{Graph, Precision};
use tlc_passes::devices::Devices;
use tlc_passes::{Options, compile};
use tlc_runtime::nvrtc::Nvrtc;

const ARCH: &str = "sm_80";

/// A product of operands of a type, whose sums are so long.
struct Product {
    dtype: &'static str,
    sizes: [i64; 3],
    precision: Precision,
    /// Blocks of steps of a sum.
    steps: u64,
    /// Stages where a multiprocessor has much shared memory.
    stages: u32,
}

const PRODUCTS: [Product; 5] = [
    Product {
        dtype: "f16",
        sizes: [32, 512, 32],
        precision: Precision::Exact,
        steps: 8,
        stages: 4,
    },
    // Not whole blocks, tiles that are not full.
    Product {
        dtype: "bf16",
        sizes: [24, 616, 40],
        precision: Precision::Exact,
        steps: 10,
        stages: 4,
    },
    Product {
        dtype: "f16",
        sizes: [64, 392, 64],
        precision: Precision::Exact,
        steps: 7,
        stages: 3,
    },
    // Threads add up.
    Product {
        dtype: "f32",
        sizes: [32, 144, 32],
        precision: Precision::Exact,
        steps: 9,
        stages: 4,
    },
    Product {
        dtype: "f32",
        sizes: [32, 256, 32],
        precision: Precision::Tf32,
        steps: 8,
        stages: 4,
    },
];

impl Product {
    fn graph(&self) -> Graph {
        let Product {
            dtype,
            sizes: [m, k, n],
            ..
        } = self;
        let text = format!(
            "graph @product(%x: {dtype}[{m}, {k}], %y: {dtype}[{k}, {n}]) {{
               %0 = einsum %x, %y {{ab,bc->ac; acc=f32}} : f32[{m}, {n}]
               return %0
             }}"
        );
        parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
    }

    /// Its kernel for a GPU with such multiprocessors.
    fn kernel(&self, multiprocessor: Multiprocessor) -> Kernel {
        let gpu = Gpu {
            products: None,
            multiprocessor,
            opt_in_shared_bytes: multiprocessor.shared_bytes - multiprocessor.reserved_bytes,
            ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
        };
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        let options = Options {
            precision: self.precision,
            ..Options::new(Devices::new(host, [gpu]))
        };
        let compiled = compile(&self.graph(), &options).expect("a plan");
        let plan = compiled.planned.plan;
        let launches: Vec<_> = plan.steps.iter().filter(|s| matches!(s, Step::Launch(_))).collect();
        let [Step::Launch(l)] = launches[..] else {
            panic!("one kernel: {launches:?}")
        };
        plan.kernels[l.kernel.0 as usize].clone()
    }
}

/// As many stages as a kernel has: one more than the most groups that a wait leaves under way, and the one that is used.
fn stages(kernel: &Kernel) -> u32 {
    let pending = kernel.statements().filter_map(|s| match s {
        Stmt::Wait(pending) => Some(*pending),
        _ => None,
    });
    pending.max().map_or(1, |n| n + 2)
}

/// A kernel in PTX.
fn text(nvrtc: &Nvrtc, kernel: &Kernel) -> (CudaKernel, String) {
    let options = CudaOptions {
        arch: ARCH.into(),
        ..CudaOptions::default()
    };
    let cuda = emit(kernel, "product", &options).expect("a text");
    let ptx = nvrtc.compile_to_ptx(&cuda.source, "product", "compute_80", &COMPILE_FLAGS);
    let ptx = ptx.unwrap_or_else(|e| panic!("{e}\n{}", cuda.source));
    (cuda, ptx)
}

/// What a launch on a simulated device did, and the bytes of its result.
fn run(kernel: &Kernel, cuda: &CudaKernel, ptx: &str, schedule: Schedule) -> (Report, Vec<u8>) {
    let module = Module::parse(ptx).unwrap_or_else(|e| panic!("{e}\n{ptx}"));
    let mut device = Device::default();
    let blocks = cuda.grid.as_const().expect("a known grid") as u32;
    let mut launch = Launch::new(blocks, cuda.block).shared(cuda.dynamic_shared_bytes);
    let mut rng = Rng::new(3);
    let mut result = (0, 0);
    for p in &kernel.params {
        let len = p.len.as_const().expect("a known length") as usize;
        let at = device.allocate((len * p.dtype.bytes()) as u64).expect("memory");
        match p.access {
            Access::Read => device
                .write(at, random_tensor(&mut rng, p.dtype, &[len]).bytes())
                .expect("an allocation"),
            _ => result = (at, len * p.dtype.bytes()),
        }
        launch = launch.arg(at);
    }
    let options = Simulated {
        schedule,
        seed: 1,
        ..Simulated::default()
    };
    let report = device.launch(&module, "product", &launch, &options).expect("a launch");
    let mut bytes = vec![0; result.1];
    device.read(result.0, &mut bytes).expect("an allocation");
    (report, bytes)
}

/// NVRTC, or that it is not there.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load() {
        Ok(found) => Some(found),
        Err(e) => {
            assert!(!std::env::var("TLC_TEST_GPU").is_ok_and(|v| v == "required"), "{e}");
            println!("SKIP: {e}");
            None
        }
    }
}

/// A multiprocessor with shared memory for two stages alone.
fn small() -> Multiprocessor {
    Multiprocessor {
        shared_bytes: 4 << 10,
        ..Multiprocessor::of((8, 0))
    }
}

#[test]
fn more_stages_have_the_same_bits_and_as_many_barriers() {
    for product in &PRODUCTS {
        let (two, more) = (product.kernel(small()), product.kernel(Multiprocessor::of((9, 0))));
        assert_eq!((stages(&two), stages(&more)), (2, product.stages), "{two}\n{more}");
        let Some(nvrtc) = nvrtc() else { return };
        let run_all = |kernel: &Kernel| {
            let (cuda, ptx) = text(&nvrtc, kernel);
            let schedules = [Schedule::RoundRobin, Schedule::Adversarial];
            schedules.map(|s| {
                let (report, bytes) = run(kernel, &cuda, &ptx, s);
                assert!(report.is_clean(), "{:?} at {s:?}: {report}", product.sizes);
                (report, bytes)
            })
        };
        let (two, more) = (run_all(&two), run_all(&more));
        let all = [&two[0].1, &two[1].1, &more[0].1, &more[1].1];
        assert!(all.iter().all(|b| *b == all[0]), "{:?}", product.sizes);
        let (two, more) = (&two[0].0.counters, &more[0].0.counters);
        let blocks = more.barriers / product.steps;
        let copies = |c: &tlc_gpusim::Counters| c.warps_of(Class::Copy);
        println!(
            "{} {:?}: {} stages, {} barriers, {} sectors, instructions of lanes a block of steps {} (in two stages {}), {} groups and copies ({})",
            product.dtype,
            product.sizes,
            product.stages,
            more.barriers,
            more.global_loads.sectors,
            more.lane_instructions() / product.steps,
            two.lane_instructions() / product.steps,
            copies(more),
            copies(two),
        );
        // One barrier for each block of steps of each tile.
        assert_eq!(more.barriers, blocks * product.steps);
        assert_eq!(more.barriers, two.barriers);
        assert_eq!(more.global_loads.sectors, two.global_loads.sectors);
        assert_eq!((more.bank_conflicts, more.local_bytes), (0, 0));
        // Each block of steps is copied once.
        assert_eq!(more.global_loads.requests, two.global_loads.requests);
        // What is written out in front of the rounds and behind them computes its addresses again.
        assert!(more.lane_instructions() * 100 <= two.lane_instructions() * 125);
    }
}

#[test]
fn sums_in_stages_stay_in_registers_on_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let multiprocessor = Multiprocessor::of((9, 0));
    for product in &PRODUCTS[2..4] {
        let kernel = product.kernel(multiprocessor);
        for arch in ["sm_80", "sm_90a", "sm_100"] {
            let options = CudaOptions {
                arch: arch.into(),
                ..CudaOptions::default()
            };
            let cuda = emit(&kernel, "product", &options).expect("a text");
            let cubin = nvrtc.compile(&cuda.source, "product", arch, &COMPILE_FLAGS);
            let cubin = cubin.unwrap_or_else(|e| panic!("{e}\n{}", cuda.source));
            let registers = cubin.registers.expect("ptxas reports registers");
            let occupancy =
                multiprocessor.occupancy(cuda.block.into(), cuda.shared_bytes.into(), Some(registers.into()));
            println!(
                "{} {:?} {arch}: {registers} registers, {occupancy}",
                product.dtype, product.sizes
            );
            assert_eq!((cubin.spill_bytes, cubin.stack_bytes), (0, 0), "{}", cubin.log);
            assert!(occupancy.blocks >= 2, "{arch}: {registers} registers: {occupancy}");
        }
    }
}

#[test]
fn a_wait_that_leaves_one_group_more_is_a_race() {
    let Some(nvrtc) = nvrtc() else { return };
    let kernel = PRODUCTS[0].kernel(Multiprocessor::of((9, 0)));
    let (cuda, ptx) = text(&nvrtc, &kernel);
    const WAIT: &str = "cp.async.wait_group ";
    let ptx = ptx.replace("cp.async.wait_all", "cp.async.wait_group 0");
    let waits: Vec<usize> = ptx.match_indices(WAIT).map(|(at, _)| at + WAIT.len()).collect();
    assert!(waits.len() >= 4, "{ptx}");
    assert!(run(&kernel, &cuda, &ptx, Schedule::RoundRobin).0.is_clean());
    for at in waits {
        let pending: u32 = ptx[at..=at].parse().expect("a digit");
        let broken = format!("{}{}{}", &ptx[..at], pending + 1, &ptx[at + 1..]);
        let (report, _) = run(&kernel, &cuda, &broken, Schedule::RoundRobin);
        let race = report.findings.iter().any(|f| f.kind == FindingKind::Race);
        assert!(race, "a wait for all but {}: {report}", pending + 1);
    }
}
