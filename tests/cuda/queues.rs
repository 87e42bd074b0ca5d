//! Launches beside each other in two queues: random chains against the interpreter and against themselves in one queue, and a wait that is left
//! out, which the simulated device finds.

use std::sync::Arc;

use tlc::{CompileOptions, DType, Device, HostTensor, Input, Scalar, compile_ir};
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::plan::verify::{PlanReport, verify};
use tlc_ir::plan::{Plan, QueueId};
use tlc_ir::text::{no_data, parse_graph};
use tlc_runtime::cuda;
use tlc_runtime::driver::{Emitters, Executable, Load, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

use crate::child::{real, simulated, skip, with_findings};
use crate::judged::{JUDGED, judges};
use crate::states::{compare_all, to_host, view};

/// The first queue of kernels of a GPU, and its second one where there is one GPU.
const KERNELS: [QueueId; 2] = [QueueId(1), QueueId(4)];

#[test]
fn random_chains_have_the_same_bits_at_three_schedules() {
    let mut all: Vec<String> = Vec::new();
    for (schedule, seed) in crate::SCHEDULES {
        let mut settings = vec![("TLC_SIM_SCHEDULE", schedule), ("TLC_SIM_SEED", seed)];
        settings.extend((!all.is_empty()).then_some(JUDGED));
        let Some(printed) = simulated("queues::children::random", &settings) else {
            return;
        };
        let beside = printed.printed("beside")[0].to_string();
        assert_ne!(beside, "beside 0", "nothing ran beside anything");
        all.push(printed.printed("hash").join("\n"));
    }
    assert!(all.iter().all(|a| *a == all[0]), "schedules differ: {all:?}");
}

#[test]
fn a_wait_that_is_left_out_is_found() {
    if real() {
        return skip("a real GPU finds nothing");
    }
    simulated("queues::children::with_every_wait", &[]);
    for test in [
        "queues::children::without_a_wait",
        "queues::children::recorded_without_a_wait",
    ] {
        let Some((_, found)) = with_findings(test, &[]) else {
            return;
        };
        // Whether the reader comes before the writer, whose slot is not alive yet, or beside it, is left to the delays of streams.
        let early = found.contains("past slot") || found.contains("nobody wrote");
        assert!(early || found.contains("order"), "{test}: {found}");
    }
}

mod children {
    use super::*;

    /// A generator of graphs: a multiplicative congruence (Lehmer) is random enough.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0 * 48_271 % 2_147_483_647;
            (self.0 % n as u64) as usize
        }
    }

    /// Chains of products and norms, some of which read what another one left, and all of which meet.
    fn chains(draw: &mut Draw) -> (String, Vec<[usize; 2]>) {
        let (rows, side) = ([192, 256][draw.below(2)], [64, 96, 128][draw.below(3)]);
        let whole = format!("f16[{rows}, {side}]");
        let count = 2 + draw.below(2);
        let inputs: Vec<String> = (0..count).map(|k| format!("%x{k}: {whole}")).collect();
        let mut text = format!("graph @chains({}, %w: f16[{side}, {side}]) {{\n", inputs.join(", "));
        let mut ends: Vec<String> = Vec::new();
        for chain in 0..count {
            let mut last = format!("%x{chain}");
            if chain > 0 && draw.below(4) == 0 {
                last = ends[draw.below(ends.len())].clone();
            }
            for step in 0..2 + draw.below(3) {
                let name = format!("%c{chain}s{step}");
                text += &format!("{name}p = einsum {last}, %w {{ab,bc->ac; acc=f32}} : {whole}\n");
                text += &match draw.below(3) {
                    0 => format!(
                        "{name}s = reduce max {name}p {{axes=[0]}} : f16[{side}]
                         {name}r = reshape {name}s : f16[1, {side}]
                         {name}e = expand {name}r : {whole}
                         {name} = sub {name}p, {name}e : {whole}\n"
                    ),
                    1 => format!("{name} = tanh {name}p : {whole}\n"),
                    _ => format!("{name} = neg {name}p : {whole}\n"),
                };
                last = name;
            }
            ends.push(last);
        }
        let mut sum = ends[0].clone();
        for (k, end) in ends.iter().enumerate().skip(1) {
            text += &format!("%sum{k} = add {sum}, {end} : {whole}\n");
            sum = format!("%sum{k}");
        }
        let mut shapes = vec![[rows, side]; count];
        shapes.push([side, side]);
        (text + &format!("return {sum}, {}\n}}", ends[0]), shapes)
    }

    fn filled(shape: [usize; 2], which: usize) -> HostTensor {
        let mut t = HostTensor::zeros(DType::F16, &shape).expect("a tensor");
        for at in 0..shape[0] * shape[1] {
            let value = ((at * 7 + which * 5) % 61) as f64 - 30.0;
            t.set(at, Scalar::from_f64(DType::F16, value / 256.0));
        }
        t
    }

    fn loaded(plan: Plan) -> Executable {
        let load = Load {
            threads: Arc::new(Pool::new(1)),
            compiling: 1,
            ahead: None,
            buffers: BufferPool::new(),
            packer: tlc_passes::memory::pack_apart,
            emitters: Emitters::default(),
            devices: cuda::queued(&[cuda::open(0).expect("a device")]),
        };
        Executable::load(plan, load).expect("it loads")
    }

    fn options() -> CompileOptions {
        CompileOptions {
            device: Device::cuda(0),
            ..CompileOptions::default()
        }
    }

    fn beside(plan: &Plan) -> usize {
        (0..plan.steps.len()).filter(|s| plan.beside(*s).is_some()).count()
    }

    /// The same steps, all launches in one queue.
    fn in_one_queue(plan: &Plan) -> Plan {
        let mut one = plan.clone();
        let second = one.turns.iter_mut().filter(|t| t.queue == KERNELS[1]);
        second.for_each(|t| t.queue = KERNELS[0]);
        assert_eq!(verify(&one), PlanReport::default(), "{one}");
        one
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let mut draw = Draw(90_017);
        let mut there = 0;
        for _ in 0..4 {
            let (text, shapes) = chains(&mut draw);
            let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
            let inputs: Vec<HostTensor> = shapes.iter().enumerate().map(|(k, s)| filled(*s, k)).collect();
            let executable = compile_ir(&graph, &options()).expect("an executable");
            there += beside(executable.plan());
            let one = loaded(in_one_queue(executable.plan()));
            let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
            let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
            let expected = to_host(&one.run(&views).expect("results"));
            // Step by step, recorded, and given again.
            for call in 0..3 {
                let found = executable.run(&given).expect("results");
                let found: Vec<HostTensor> = found.iter().map(|f| f.to_host()).collect();
                for (f, e) in found.iter().zip(&expected) {
                    assert_eq!(f.bytes(), e.bytes(), "{text}\ncall {call}");
                }
            }
            if judges() {
                let bounds = interpret_with_bounds(&graph, &inputs, &Options::default()).expect("bounds");
                let exact = interpret(&graph, &inputs, &Options::default()).expect("results");
                let compared = compare_all(&expected, &exact, &bounds);
                assert!(compared.is_ok(), "{text}\n{compared:?}");
            }
            let bytes = expected.iter().flat_map(|t| t.bytes().iter());
            let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
            });
            println!("hash {hash:x}");
        }
        println!("beside {there}");
    }

    /// Two chains that meet, and where the second waits for the first, or that for it.
    fn meeting() -> (Plan, Vec<HostTensor>, usize) {
        let product =
            |name: &str, of: &str| format!("{name} = einsum {of}, %w {{ab,bc->ac; acc=f32}} : f16[192, 160]\n");
        let text = format!(
            "graph @meeting(%x: f16[192, 160], %y: f16[192, 160], %w: f16[160, 160]) {{
               {}{}{}{}{}{}
               %0 = add %c, %f : f16[192, 160]
               return %0
             }}",
            product("%a", "%x"),
            product("%b", "%a"),
            product("%c", "%b"),
            product("%d", "%y"),
            product("%e", "%d"),
            product("%f", "%e"),
        );
        let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
        let executable = compile_ir(&graph, &options()).expect("an executable");
        let plan = executable.plan().clone();
        assert!(beside(&plan) > 1, "{plan}");
        let between = |&step: &usize| {
            let turn = &plan.turns[step];
            let mut others = turn.waits.iter().map(|w| plan.turns[*w as usize].queue);
            KERNELS.contains(&turn.queue) && others.any(|q| KERNELS.contains(&q) && q != turn.queue)
        };
        let step = (0..plan.steps.len())
            .find(between)
            .expect("a wait of one queue for the other");
        let shapes = [[192, 160], [192, 160], [160, 160]];
        let inputs = shapes.iter().enumerate().map(|(k, s)| filled(*s, k)).collect();
        (plan, inputs, step)
    }

    /// Leaves out what a step waits for in the other queue of kernels.
    fn forgets(plan: &mut Plan, step: usize) {
        let queues: Vec<QueueId> = plan.turns.iter().map(|t| t.queue).collect();
        let waits = &mut plan.turns[step].waits;
        waits.retain(|w| !KERNELS.contains(&queues[*w as usize]));
        assert_ne!(verify(plan), PlanReport::default(), "{plan}");
    }

    fn calls(plan: Plan, inputs: &[HostTensor], count: usize) {
        let executable = loaded(plan);
        let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
        for _ in 0..count {
            // What is found may be an error of the call as well.
            let _ = executable.run(&views);
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn with_every_wait() {
        let (plan, inputs, _) = meeting();
        calls(plan, &inputs, 3);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn without_a_wait() {
        let (mut plan, inputs, step) = meeting();
        forgets(&mut plan, step);
        calls(plan, &inputs, 1);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn recorded_without_a_wait() {
        let (mut plan, inputs, step) = meeting();
        let right = loaded(plan.clone());
        let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
        right.run(&views).expect("results");
        forgets(&mut plan, step);
        calls(plan, &inputs, 3);
    }
}
