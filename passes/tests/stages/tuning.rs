//! Every candidate of every choice that schedules make computes the same bits, judged by the interpreter of plans; what is pinned is what
//! is chosen, and nothing else changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use tlc_codegen::wide::{Level, emitter};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, Graph, HostTensor};
use tlc_passes::tuning::{Choice, KernelKey, Pin, Pins, Tunable};
use tlc_passes::{Compiled, Options, compile};

use crate::oracle::generate::graph as random_graph;

/// Two threads whose caches are so small that small images are large.
fn small_caches(level: Level) -> Cpu {
    Cpu {
        threads: 2,
        l1_bytes: 4 << 10,
        l2_bytes: 16 << 10,
        l3_bytes: 1 << 20,
        ..Cpu::modest(Arc::new(emitter(level)))
    }
}

fn compiled(graph: &Graph, cpu: &Cpu, pins: Option<Pins>) -> Compiled {
    let options = Options {
        pins: pins.map(Arc::new),
        ..Options::new(cpu.clone())
    };
    let compiled = compile(graph, &options).expect("it compiles");
    let report = tlc_ir::plan::verify::verify(&compiled.planned.plan);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    for kernel in &compiled.planned.plan.kernels {
        let report = tlc_ir::kernel::verify::verify(kernel);
        assert!(report.errors.is_empty(), "{:?}\n{kernel}", report.errors);
    }
    compiled
}

/// The choices of each kernel, each with its place among those about the same.
fn choices(of: &Compiled) -> Vec<(KernelKey, u32, Choice)> {
    let mut found: Vec<(KernelKey, u32, Choice)> = Vec::new();
    for launch in &of.planned.launches {
        let key = launch.key.expect("choices may be pinned");
        if found.iter().any(|(k, ..)| *k == key) {
            continue;
        }
        for choice in &launch.schedule.choices {
            let alike = found
                .iter()
                .filter(|(k, _, c)| (*k, c.tunable) == (key, choice.tunable));
            found.push((key, alike.count() as u32, choice.clone()));
        }
    }
    found
}

/// What a choice is in a compiled graph.
fn chosen(of: &Compiled, kernel: KernelKey, pin: Pin) -> Option<Choice> {
    let is = |(key, ordinal, c): &(KernelKey, u32, Choice)| {
        (*key, c.tunable, *ordinal) == (kernel, pin.tunable, pin.ordinal)
    };
    choices(of).into_iter().find(is).map(|(.., c)| c)
}

/// Pins each candidate of each choice of a graph, one at a time. Returns what choices were about.
fn check(what: &str, graph: &Graph, inputs: &[HostTensor], symbols: &[i64], cpu: &Cpu) -> BTreeSet<Tunable> {
    let run = |c: &Compiled, how: &str| {
        let outputs = interpret_bound(&c.planned.plan, None, inputs, symbols);
        outputs.unwrap_or_else(|e| panic!("{what}, {how}: {e}"))
    };
    let plain = compiled(graph, cpu, None);
    let open = compiled(graph, cpu, Some(Pins::default()));
    assert_eq!(
        plain.planned.plan.kernels, open.planned.plan.kernels,
        "{what}: noting choices changes kernels"
    );
    let expected = run(&open, "as calculated");
    let mut about = BTreeSet::new();
    for (key, ordinal, choice) in choices(&open) {
        assert!(
            !choice.pinned && choice.candidates.contains(&choice.value),
            "{what}: {choice:?}"
        );
        about.insert(choice.tunable);
        for &value in choice.candidates.iter().filter(|v| **v != choice.value) {
            let pin = Pin {
                tunable: choice.tunable,
                ordinal,
                value,
            };
            let mut pins = Pins::default();
            pins.set(key, vec![pin]);
            let made = compiled(graph, cpu, Some(pins));
            let is = chosen(&made, key, pin).map(|c| (c.value, c.pinned));
            assert_eq!(is, Some((value, true)), "{what}: {pin}");
            for (found, expected) in run(&made, &pin.to_string()).iter().zip(&expected) {
                assert_eq!(found.bytes(), expected.bytes(), "{what}: {pin} computes other bits");
            }
        }
    }
    about
}

fn parsed(text: &str) -> Graph {
    let module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    module.graphs.into_iter().next().expect("a graph")
}

fn values(dtype: DType, shape: &[usize]) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).expect("room");
    for i in 0..out.len() {
        let value = ((i * 37 + 11) % 101) as f64 / 25.0 - 2.0;
        out.set(i, tlc_ir::Scalar::from_f64(dtype, value));
    }
    out
}

#[test]
fn candidates_of_windows_columns_and_moves_compute_the_same_bits() {
    let mut about = BTreeSet::new();
    let depthwise = |channels: usize, size: usize, [h, w]: [usize; 2]| {
        let (rows, columns) = (h + size - 1, w + size - 1);
        format!(
            "graph @depthwise(%x: f32[1, {channels}, {rows}, {columns}], %k: f32[{channels}, {size}, {size}]) {{
               %0 = window %x {{axis=2, size={size}}} : f32[1, {channels}, {h}, {columns}, {size}]
               %1 = window %0 {{axis=3, size={size}}} : f32[1, {channels}, {h}, {w}, {size}, {size}]
               %2 = einsum %1, %k {{abcdef,bef->abcd}} : f32[1, {channels}, {h}, {w}]
               return %2
             }}"
        )
    };
    let graphs = [
        &depthwise(4, 3, [12, 32]),
        // One by one, windows as large as these would be added up in another order.
        &depthwise(3, 7, [14, 34]),
        "graph @turned(%x: f32[70, 90]) {
           %0 = permute %x {axes=[1, 0]} : f32[90, 70]
           %1 = neg %0 : f32[90, 70]
           return %1
         }",
        "graph @columns(%x: f32[40, 300]) {
           %0 = reduce add %x {axes=[0]} : f32[300]
           return %0
         }",
        "graph @long(%x: f32[40000], %y: f32[40000]) {
           %0 = mul %x, %y : f32[40000]
           %1 = exp %0 : f32[40000]
           return %1
         }",
    ];
    for level in [Level::Avx512, Level::Avx2] {
        for text in graphs {
            let graph = parsed(text);
            let inputs: Vec<HostTensor> = (graph.inputs().iter())
                .map(|i| {
                    let ty = graph.ty(*i);
                    let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().expect("fixed") as usize).collect();
                    values(ty.dtype, &shape)
                })
                .collect();
            about.extend(check(&graph.name, &graph, &inputs, &[], &small_caches(level)));
        }
    }
    let expected = [
        Tunable::ThreadWork,
        Tunable::WindowRows,
        Tunable::BlockElements,
        Tunable::Vectors,
        Tunable::TransposedRows,
        Tunable::ColumnTile,
    ];
    for tunable in expected {
        assert!(about.contains(&tunable), "no choice of {tunable}: {about:?}");
    }
}

#[test]
fn candidates_of_random_graphs_compute_the_same_bits() {
    let mut about = BTreeSet::new();
    for seed in 0..60 {
        let case = random_graph(seed, 12, 4096, seed % 3 == 0);
        let cpu = small_caches(if seed % 2 == 0 { Level::Avx512 } else { Level::Avx2 });
        about.extend(check(
            &format!("seed {seed}"),
            &case.graph,
            &case.inputs,
            &case.symbols,
            &cpu,
        ));
    }
    assert!(about.len() >= 4, "{about:?}");
}

/// A key names a kernel by what it computes: not by where it is in the graph or what stands around it, but by sizes and threads.
#[test]
fn keys_name_kernels_wherever_they_are() {
    let keys = |text: &str, threads: usize| -> Vec<KernelKey> {
        let cpu = Cpu {
            threads,
            ..small_caches(Level::Avx512)
        };
        let made = compiled(&parsed(text), &cpu, Some(Pins::default()));
        made.planned.launches.iter().filter_map(|l| l.key).collect()
    };
    let alone = "graph @alone(%x: f32[5000]) { %0 = exp %x : f32[5000] return %0 }";
    let beside = "graph @beside(%a: f32[7, 9], %value: f32[5000]) {
                    %0 = reduce add %a {axes=[1]} : f32[7]
                    %1 = exp %value : f32[5000]
                    return %0, %1
                  }";
    let longer = "graph @alone(%x: f32[5001]) { %0 = exp %x : f32[5001] return %0 }";
    let of_alone = keys(alone, 2);
    assert_eq!((of_alone.len(), keys(beside, 2).len()), (1, 2));
    assert!(keys(beside, 2).contains(&of_alone[0]));
    assert_ne!(keys(longer, 2), of_alone);
    assert_ne!(keys(alone, 1), of_alone);
}
