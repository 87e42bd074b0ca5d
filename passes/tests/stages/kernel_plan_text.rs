//! The laws of kernel and plan texts: what the compiler makes prints as text that parses back to the same, and no damage to
//! a text makes the parser or the verifiers fail otherwise than with an error.

use std::sync::Arc;

use tlc_ir::Graph;
use tlc_ir::kernel::Kernel;
use tlc_ir::kernel::verify::verify;
use tlc_ir::plan::Plan;
use tlc_ir::rng::Rng;
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::testgen::{GenOptions, random_graph};
use tlc_ir::text::{PrintOptions, parse_module, print_module, print_plan, verify_module};
use tlc_ir::text::{no_data, parse_bytes};
use tlc_passes::devices::{Devices, Place};
use tlc_passes::lower::lower;
use tlc_passes::{Compiled, Options, compile};

fn kernel_round_trip(kernel: &Kernel, what: &str) {
    let text = kernel.to_string();
    let module = parse_module(&text, &mut no_data).unwrap_or_else(|e| panic!("{what}: {}\n{text}", e[0]));
    assert_eq!(module.kernels.len(), 1, "{what}");
    assert_eq!(&module.kernels[0].1, kernel, "{what}:\n{text}\n{}", module.kernels[0].1);
}

fn plan_round_trip(plan: &Plan, what: &str) {
    for inline_elements in [usize::MAX, 2] {
        let printed = print_plan(
            plan,
            &PrintOptions {
                inline_elements,
                ..PrintOptions::default()
            },
        );
        let text = &printed.text;
        let module = parse_module(text, &mut |name, _, _| printed.external(name))
            .unwrap_or_else(|e| panic!("{what}: {}\n{text}", e[0]));
        assert_eq!(module.plans, std::slice::from_ref(plan), "{what}:\n{text}");
        assert_eq!(verify_module(&module, text), [], "{what}:\n{text}");
        let again = print_module(
            &module,
            &PrintOptions {
                inline_elements,
                ..PrintOptions::default()
            },
        );
        assert_eq!(*text, again.text, "{what}");
    }
}

/// Every kernel and plan on the way of a compiled graph; returns how many.
fn all_survive(graph: &Graph, compiled: &Compiled, what: &str) -> (usize, usize) {
    let mut kernels = 0;
    for cluster in &compiled.clusters.clusters {
        for nest in lower(
            &compiled.graph,
            cluster,
            &compiled.clusters.is_root,
            tlc_ir::Precision::Exact,
            None,
        ) {
            kernel_round_trip(&nest.kernel, &format!("{what}, naive"));
        }
    }
    for launch in &compiled.planned.launches {
        kernel_round_trip(&launch.scheduled, &format!("{what}, scheduled"));
    }
    for kernel in &compiled.planned.plan.kernels {
        kernel_round_trip(kernel, &format!("{what}, legalized"));
        kernels += 1;
    }
    let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let on_gpu =
        compile(graph, &Options::new(Devices::new(host, [gpu]))).unwrap_or_else(|e| panic!("{what}, for a GPU: {e}"));
    for kernel in &on_gpu.planned.plan.kernels {
        kernel_round_trip(kernel, &format!("{what}, for a GPU"));
        let errors = verify(kernel).errors;
        assert_eq!(errors, [], "{what}, for a GPU\n{kernel}");
    }
    plan_round_trip(&on_gpu.planned.plan, &format!("{what}, for a GPU"));
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let gpu = || Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let several = Options {
        place: Place::Scattered {
            seed: graph.len() as u64,
        },
        ..Options::new(Devices::new(host, [gpu(), gpu()]))
    };
    let on_several = compile(graph, &several).unwrap_or_else(|e| panic!("{what}, for two GPUs: {e}"));
    plan_round_trip(&on_several.planned.plan, &format!("{what}, for two GPUs"));
    plan_round_trip(&compiled.planned.plan, what);
    (kernels, compiled.planned.plan.steps.len())
}

#[test]
fn kernels_and_plans_of_random_graphs_survive_their_text() {
    let (mut kernels, mut steps) = (0, 0);
    for seed in 0..150 {
        let options = GenOptions {
            strange: seed % 2 == 0,
            ..GenOptions::default()
        };
        let graph = random_graph(seed, &options);
        let Ok(compiled) = compile(
            &graph,
            &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
        ) else {
            continue;
        };
        let counts = all_survive(&graph, &compiled, &format!("seed {seed}"));
        (kernels, steps) = (kernels + counts.0, steps + counts.1);
    }
    assert!(kernels > 300 && steps > 300, "{kernels} kernels, {steps} steps");
}

#[test]
fn kernels_and_plans_over_symbols_survive_their_text() {
    let asked = std::env::var("TLC_SEEDS").ok().and_then(|s| {
        let (from, to) = s.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    for seed in asked.unwrap_or(0..60) {
        let case = crate::oracle::generate::graph(seed, 10, 4096, true);
        let compiled = compile(
            &case.graph,
            &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
        )
        .expect("compiles");
        all_survive(&case.graph, &compiled, &format!("symbolic seed {seed}"));
    }
}

/// The graph of a text, compiled, and everything on the way printed and read.
fn text_survives(text: &str, what: &str) -> Compiled {
    let graph = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{what}: {}", e[0]));
    let graph = &graph.graphs[0];
    let host = || Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let on_gpu = compile(graph, &Options::new(Devices::new(host(), [gpu]))).expect("compiles");
    let compiled = compile(graph, &Options::new(host())).expect("compiles");
    for made in [&on_gpu, &compiled] {
        for kernel in &made.planned.plan.kernels {
            kernel_round_trip(kernel, what);
        }
        plan_round_trip(&made.planned.plan, what);
    }
    compiled
}

#[test]
fn divisors_that_are_positive_where_loops_run_survive_their_text() {
    for (number, kept) in ["m - 1", "m - k", "m - div(m, 2)"].iter().enumerate() {
        let start = ["1", "k", "div(m, 2)"][number];
        let text = format!(
            "graph @g(%x: f32[n, m], %z: f32[k]) where n in 0..=9, m in 0..=9, k in 0..=9 {{
              %0 = slice %x {{start=[0, {start}]}} : f32[n, {kept}]
              %1 = reshape %0 : f32[n*({kept})]
              return %1 as y
            }}"
        );
        let compiled = text_survives(&text, kept);
        let text = compiled.planned.plan.kernels[0].to_string();
        assert!(text.contains("div("), "nothing is divided:\n{text}");
    }
}

#[test]
fn tensors_of_many_padded_axes_are_one_line_and_survive_their_text() {
    for rank in [5, 8, 24, 64] {
        let dims: Vec<String> = (0..rank).map(|k| format!("s{} + 1", k % 40)).collect();
        let ranges: Vec<String> = (0..rank.min(40)).map(|k| format!("s{k} in 0..=9")).collect();
        let (dims, ranges) = (dims.join(", "), ranges.join(", "));
        let text = format!("graph @g(%x: f32[{dims}]) where {ranges} {{ %0 = neg %x : f32[{dims}] return %0 as y }}");
        let compiled = text_survives(&text, &format!("rank {rank}"));
        let size = compiled.planned.plan.kernels[0].to_string().len();
        assert!(size < 2000 * rank, "rank {rank}: {size} bytes");
    }
}

#[test]
fn what_a_kernel_requires_of_its_symbols_excludes_examples() {
    let kernel = |requires: &str| {
        format!(
            "kernel(p0: f32[s0] read, p1: f32[s1] write) where s0 in 0..=9, s1 in 0..=9 {requires}{{
  for i0 in 0..s1 parallel {{
    %0: f32 = load p0[i0]
    store p1[i0], %0
  }}
}}
"
        )
    };
    let errors = |text: &str| {
        let module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        let printed = print_module(&module, &PrintOptions::default()).text;
        assert_eq!(text, printed);
        verify_module(&module, text).len()
    };
    assert_eq!(errors(&kernel("")), 1);
    assert_eq!(errors(&kernel("requires s0 - s1 not negative ")), 0);
    assert_eq!(errors(&kernel("requires s0 = s1 ")), 0);
    assert_eq!(errors(&kernel("requires -s0 + s1 not negative ")), 1);
}

/// A text with a few characters taken out, put in or exchanged.
fn damaged(text: &[char], rng: &mut Rng) -> String {
    let mut text = text.to_vec();
    for _ in 0..=rng.below(3) {
        let (at, from) = (rng.below(text.len()), rng.below(text.len()));
        match rng.below(4) {
            0 => text[at] = text[from],
            1 => drop(text.remove(at)),
            2 => text.insert(at, text[from]),
            // A number becomes another.
            _ => {
                if let Some(n) = (at..text.len()).find(|&n| text[n].is_ascii_digit()) {
                    text[n] = char::from(b'0' + rng.below(10) as u8);
                }
            }
        }
    }
    text.into_iter().collect()
}

/// What a text is: with errors that have places, or something that prints to text that parses back to it.
fn judge(text: &str) -> bool {
    match parse_bytes(text.as_bytes(), &mut no_data) {
        Err(errors) => {
            assert!(!errors.is_empty());
            let ordered = errors.windows(2).all(|w| w[0].span.start <= w[1].span.start);
            assert!(ordered, "{errors:?}");
            false
        }
        Ok(module) => {
            for e in verify_module(&module, text) {
                assert!(e.span.end <= text.len() && e.position.line >= 1, "{e}");
            }
            let printed = print_module(&module, &PrintOptions::default()).text;
            let again = parse_module(&printed, &mut no_data).unwrap_or_else(|e| panic!("{}\n{printed}\n{text}", e[0]));
            assert_eq!(module.kernels, again.kernels, "{text}");
            assert_eq!(module.plans, again.plans, "{text}");
            true
        }
    }
}

#[test]
fn damaged_texts_are_errors_or_are_verified() {
    let mut rng = Rng::new(7);
    let (mut good, mut bad) = (0, 0);
    for seed in 0..40 {
        let Ok(compiled) = compile(
            &random_graph(seed, &GenOptions::default()),
            &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
        ) else {
            continue;
        };
        let kernels = compiled.planned.plan.kernels.iter().take(3).map(Kernel::to_string);
        let texts: Vec<String> = kernels.chain([compiled.planned.plan.to_string()]).collect();
        for text in texts.iter().filter(|t| t.len() < 6000) {
            let chars: Vec<char> = text.chars().collect();
            for _ in 0..25 {
                let damaged = damaged(&chars, &mut rng);
                match judge(&damaged) {
                    true => good += 1,
                    false => bad += 1,
                }
            }
            for _ in 0..5 {
                judge(&chars[..rng.below(chars.len())].iter().collect::<String>());
            }
        }
    }
    assert!(good > 100 && bad > 100, "{good} good, {bad} bad");
}

/// Where a view's operand is on another device, it is copied from there; no kernel without arguments stands for it.
#[test]
fn views_that_lie_where_their_operands_do_are_no_launches_anywhere() {
    let text = "graph @g(%x: f32[8]) {
      %0 = const 2 : u64[]
      %1 = random %0 {stream=0} : u32[1, 8]
      %2 = shr %1, %1 : u32[1, 8]
      %3 = reshape %1 : u32[1, 1, 8]
      %4 = call sort %3 {axis=2, count=8} : (u32[1, 1, 8], i64[1, 1, 8])
      %5 = project %4 {result=0} : u32[1, 1, 8]
      %6 = exp %x : f32[8]
      return %2 as a, %5 as b, %6 as c
    }";
    let graph = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}", e[0]));
    for seed in 0..40 {
        let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
        let gpu = || Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
        let options = Options {
            place: Place::Scattered { seed },
            ..Options::new(Devices::new(host, [gpu(), gpu()]))
        };
        let plan = compile(&graph.graphs[0], &options).expect("compiles").planned.plan;
        assert!(plan.launches().iter().all(|l| !l.args.is_empty()), "{plan}");
    }
}
