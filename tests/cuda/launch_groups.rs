//! Independent launches that are one grid: random ones against the interpreter and against themselves one after another, and the updates of
//! an optimizer, counted.

use std::sync::Arc;

use serde_json::Value;
use tlc::optim::Groups;
use tlc::{
    CompileOptions, DType, Device, Executable, Graph, HostTensor, Input, Scalar, Specialize, State, Tensor, compile_ir,
    inputs,
};
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::plan::verify::{PlanReport, verify};
use tlc_ir::plan::{Plan, Step, Turn};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::random_tensor;
use tlc_ir::text::{no_data, parse_graph};
use tlc_runtime::cuda;
use tlc_runtime::driver::{Emitters, Load, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

use crate::child::simulated;
use crate::judged::{JUDGED, judges};
use crate::states::{compare_all, to_host, view};

#[test]
fn random_groups_have_the_same_bits_at_three_schedules() {
    let mut all: Vec<String> = Vec::new();
    for (schedule, seed) in crate::SCHEDULES {
        let mut settings = vec![("TLC_SIM_SCHEDULE", schedule), ("TLC_SIM_SEED", seed)];
        settings.extend((!all.is_empty()).then_some(JUDGED));
        let Some(printed) = simulated("launch_groups::children::random", &settings) else {
            return;
        };
        let grouped = printed.printed("grouped")[0].to_string();
        assert_ne!(grouped, "grouped 0", "no launches were grouped");
        all.push(printed.printed("hash").join("\n"));
    }
    assert!(all.iter().all(|a| *a == all[0]), "schedules differ: {all:?}");
}

#[test]
fn loops_of_one_iteration_more_inside_of_a_branch() {
    let Some(printed) = simulated("launch_groups::children::one_more", &[]) else {
        return;
    };
    let grouped = printed.printed("grouped");
    assert!(
        grouped.iter().any(|line| *line != "grouped 0"),
        "no launches were grouped"
    );
}

#[test]
fn the_updates_of_many_tensors_are_two_launches() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("counters");
    let path = file.to_str().expect("a path of text");
    let Some(_) = simulated("launch_groups::children::updates", &[("TLC_SIM_COUNTERS", path)]) else {
        return;
    };
    let text = std::fs::read_to_string(&file).expect("counters");
    let launches: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    // One step of three hundred tensors: what depends on the step's number alone, and the updates.
    let names: Vec<&str> = launches.iter().filter_map(|l| l["kernel"].as_str()).collect();
    assert_eq!(names.len(), launches.len(), "{launches:?}");
    assert!((1..=2).contains(&names.len()), "{names:?}");
    assert!(names.iter().any(|n| n.contains("group")), "{names:?}");
}

mod children {
    use super::*;

    /// A generator of graphs: a multiplicative congruence (Lehmer) is random enough.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, n: u64) -> usize {
            self.0 = self.0 * 48_271 % 2_147_483_647;
            (self.0 % n) as usize
        }
    }

    /// Branches over matrices of several sizes, each of up to three steps that are kernels of their own, some on a common input.
    fn branches(draw: &mut Draw) -> (String, Vec<[usize; 2]>) {
        let sizes: Vec<[usize; 2]> = (0..3).map(|_| [1 + draw.below(70), 1 + draw.below(300)]).collect();
        let inputs: Vec<[usize; 2]> = (0..4 + draw.below(5)).map(|_| sizes[draw.below(3)]).collect();
        let named: Vec<String> = inputs
            .iter()
            .enumerate()
            .map(|(k, [a, b])| format!("%x{k}: f32[{a}, {b}]"))
            .collect();
        let mut text = format!("graph @branches({}) {{\n", named.join(", "));
        let mut results = Vec::new();
        for branch in 0..6 + draw.below(10) {
            let of = draw.below(inputs.len() as u64);
            let [a, b] = inputs[of];
            let whole = format!("f32[{a}, {b}]");
            let mut last = format!("%x{of}");
            for step in 0..1 + draw.below(3) {
                let name = format!("%b{branch}s{step}");
                text += &match draw.below(5) {
                    0 => format!(
                        "{name}s = reduce max {last} {{axes=[1]}} : f32[{a}]
                         {name}r = reshape {name}s : f32[{a}, 1]
                         {name}e = expand {name}r : {whole}
                         {name} = sub {last}, {name}e : {whole}\n"
                    ),
                    1 => format!(
                        "{name}s = reduce add {last} {{axes=[0]}} : f32[{b}]
                         {name}r = reshape {name}s : f32[1, {b}]
                         {name}e = expand {name}r : {whole}
                         {name} = mul {last}, {name}e : {whole}\n"
                    ),
                    2 => format!("{name} = scan add {last} {{axis=1}} : {whole}\n"),
                    3 => format!(
                        "{name}p = permute {last} {{axes=[1, 0]}} : f32[{b}, {a}]
                         {name}q = scan max {name}p {{axis=1}} : f32[{b}, {a}]
                         {name} = permute {name}q {{axes=[1, 0]}} : {whole}\n"
                    ),
                    _ => format!("{name} = tanh {last} : {whole}\n"),
                };
                last = name;
            }
            results.push(last);
        }
        (text + &format!("return {}\n}}", results.join(", ")), inputs)
    }

    fn filled(shape: [usize; 2], which: usize, round: usize) -> HostTensor {
        let mut t = HostTensor::zeros(DType::F32, &shape).expect("a tensor");
        for at in 0..shape[0] * shape[1] {
            let value = match (at * 7 + which + round) % 61 {
                0 if round % 4 == 3 => f64::NAN,
                1 if round % 4 == 3 => f64::INFINITY,
                2 => -0.0,
                k => (k as f64 - 30.0) / 64.0,
            };
            t.set(at, Scalar::from_f64(DType::F32, value));
        }
        t
    }

    /// The same steps, each launch of a group one of its own.
    fn apart(plan: &Plan) -> Plan {
        let mut apart = plan.clone();
        (apart.steps, apart.turns) = (Vec::new(), Vec::new());
        // By step: the last of those that it becomes.
        let mut last: Vec<u32> = Vec::new();
        for (number, step) in plan.steps.iter().enumerate() {
            let parts: Vec<Step> = match step {
                Step::Group(all) => all.iter().cloned().map(Step::Launch).collect(),
                step => vec![step.clone()],
            };
            for part in parts {
                apart.steps.push(part);
                apart.turns.extend(plan.turns.get(number).map(|turn| Turn {
                    queue: turn.queue,
                    waits: turn.waits.iter().map(|&w| last[w as usize]).collect(),
                }));
            }
            last.push(apart.steps.len() as u32 - 1);
        }
        assert_eq!(verify(&apart), PlanReport::default(), "{apart}");
        apart
    }

    fn loaded(plan: Plan) -> tlc_runtime::driver::Executable {
        let load = Load {
            threads: Arc::new(Pool::new(1)),
            compiling: 1,
            ahead: None,
            buffers: BufferPool::new(),
            packer: tlc_passes::memory::pack_apart,
            emitters: Emitters::default(),
            devices: cuda::queued(&[cuda::open(0).expect("a device")]),
        };
        tlc_runtime::driver::Executable::load(plan, load).expect("it loads")
    }

    fn grouped(executable: &Executable) -> usize {
        let groups = executable.plan().steps.iter().filter(|s| matches!(s, Step::Group(_)));
        groups.map(|s| s.launches().len()).sum()
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let mut draw = Draw(77_003);
        let mut launches = 0;
        for round in 0..8 {
            let (text, shapes) = branches(&mut draw);
            let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
            let inputs: Vec<HostTensor> = (shapes.iter().enumerate()).map(|(k, s)| filled(*s, k, round)).collect();
            let options = CompileOptions {
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            launches += grouped(&executable);
            let one_by_one = loaded(apart(executable.plan()));
            let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
            let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
            let expected = to_host(&one_by_one.run(&views).expect("results"));
            // Step by step, recorded, and given again.
            for call in 0..3 {
                let found: Vec<HostTensor> = executable
                    .run(&given)
                    .expect("results")
                    .iter()
                    .map(|f| f.to_host())
                    .collect();
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
        println!("grouped {launches}");
    }

    /// Loops of one iteration more than a size, inside of the branches that a grid for several kernels has: padding of rows that a loop goes
    /// over, in front, behind and on both sides.
    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn one_more() {
        for (dtype, op) in [
            ("f16", "abs"),
            ("f32", "neg"),
            ("bf16", "sqrt"),
            ("i32", "abs"),
            ("f64", "exp"),
        ] {
            for (rows, padding) in [
                ("min(3, n)", [1, 0]),
                ("min(3, n)", [0, 1]),
                ("min(2, n)", [1, 2]),
                ("min(5, n)", [2, 1]),
                ("n", [1, 0]),
            ] {
                let [lo, hi] = padding;
                let padded = format!("{dtype}[{rows} + {}, 2]", lo + hi);
                let text = format!(
                    "graph @one_more(%x: {dtype}[{rows}, 2], %y: {dtype}[2, n]) where n in 0..=6 {{
                       %0 = {op} %x : {dtype}[{rows}, 2]
                       %1 = pad %0 {{lo=[{lo}, 0], hi=[{hi}, 0], value=0.0}} : {padded}
                       %2 = {op} %y : {dtype}[2, n]
                       return %1, %0, %2, %y as z
                     }}"
                );
                let text = if dtype == "i32" {
                    text.replace("value=0.0", "value=0")
                } else {
                    text
                };
                let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
                let options = CompileOptions {
                    device: Device::cuda(0),
                    specialize: Specialize::Never,
                    ..CompileOptions::default()
                };
                let executable = compile_ir(&graph, &options).expect("an executable");
                println!("grouped {}", grouped(&executable));
                let mut rng = Rng::new(5);
                for n in [0, 1, 2, 3, 6] {
                    let rows = match rows {
                        "n" => n,
                        least => n.min(least[4..5].parse().expect("a digit")),
                    };
                    let dtype = graph.ty(graph.inputs()[0]).dtype;
                    let inputs = [[rows, 2], [2, n]].map(|shape| random_tensor(&mut rng, dtype, &shape));
                    let found = executable.run(&inputs.each_ref().map(Into::into)).expect("results");
                    let found: Vec<HostTensor> = found.iter().map(|f| f.to_host()).collect();
                    let exact = interpret(&graph, &inputs, &Options::default()).expect("results");
                    let bounds = interpret_with_bounds(&graph, &inputs, &Options::default()).expect("bounds");
                    compare_all(&found, &exact, &bounds).unwrap_or_else(|e| panic!("{n}: {e}\n{text}"));
                }
            }
        }
    }

    /// A step of Adam of so many tensors, small and larger ones of several sizes. Gradients are states as well.
    fn step(tensors: usize, options: &CompileOptions) -> Executable {
        let names: Vec<String> = (0..tensors).map(|k| format!("p{k}")).collect();
        let g = Graph::new("adam");
        let p: Vec<Tensor> = (0..tensors)
            .map(|k| g.state(&names[k], DType::F32, [size(k)]))
            .collect();
        let d: Vec<Tensor> = (0..tensors)
            .map(|k| g.state(&format!("d{k}"), DType::F32, [size(k)]))
            .collect();
        let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&p).collect();
        let optimizer: Groups = "adam:lr=0.01".parse().expect("an optimizer");
        optimizer.step_if(&g.constant(true), &named, &d);
        g.compile(options).expect("compiles")
    }

    /// Biases and matrices.
    fn size(k: usize) -> i64 {
        [64, 4096, 256, 1000, 64, 3072, 192][k % 7]
    }

    fn state(tensors: usize) -> State {
        let mut state = State::new();
        let names: Vec<String> = (0..tensors).map(|k| format!("p{k}")).collect();
        for (k, name) in names.iter().enumerate() {
            let n = size(k) as usize;
            let values =
                |seed: usize| -> Vec<f32> { (0..n).map(|i| ((i * 13 + seed) % 29) as f32 / 16.0 - 0.75).collect() };
            state.insert(name, values(k)).expect("inserted");
            state.insert(&format!("d{k}"), values(k + 3)).expect("inserted");
        }
        let optimizer: Groups = "adam:lr=0.01".parse().expect("an optimizer");
        let named: Vec<&str> = names.iter().map(String::as_str).collect();
        optimizer.prepare(&mut state, &named).expect("prepared");
        state
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn updates() {
        const TENSORS: usize = 300;
        let options = CompileOptions {
            device: Device::cuda(0),
            ..CompileOptions::default()
        };
        let (here, there) = (step(TENSORS, &CompileOptions::default()), step(TENSORS, &options));
        let (mut on_host, mut on_device) = (state(TENSORS), state(TENSORS));
        here.run_with(&mut on_host, &inputs![]).expect("it runs");
        there.run_with(&mut on_device, &inputs![]).expect("it runs");
        for (f, e) in on_device.iter().zip(on_host.iter()) {
            let (f, name) = (f.to_host().expect("it is fetched"), e.name());
            assert_eq!(f.bytes(), e.to_host().expect("it is here").bytes(), "{name}");
        }
    }
}
