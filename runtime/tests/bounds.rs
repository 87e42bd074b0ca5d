//! Random graphs whose inputs and outputs lie beside pages that nobody may touch: an access outside ends the process. Rows are wider
//! than vectors and end anywhere, so that what whole vectors leave over, windows, rows in lanes and what is gathered all come up.
//!
//! `TLC_SEEDS=from..to` runs other seeds; the file that `TLC_AT` names holds the one that is running.

#![cfg(target_os = "linux")]

mod guarded;

use std::sync::Arc;

use guarded::{Edge, Guarded};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::testgen::{Case, GenOptions, random_case, seeds};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{Graph, HostTensor};
use tlc_passes::{Options, compile};
use tlc_runtime::cpu::level;
use tlc_runtime::driver::{Executable, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

fn options(symbolic: bool) -> GenOptions {
    GenOptions {
        max_nodes: 10,
        max_elements: 4000,
        max_rank: 4,
        extents: vec![1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100],
        ranges: vec![(0, 40), (9, 17), (1, 65), (1, 4)],
        symbolic,
        guards: false,
        control: false,
        ..GenOptions::default()
    }
}

/// Every value that is of one tensor becomes an output, so that kernels read and write guarded memory alone.
fn show_all(case: &mut Case) {
    let nodes: Vec<_> = case.graph.nodes().map(|(id, _)| id).collect();
    let one = |id: &tlc_ir::NodeId| !case.graph.node(*id).kind.is_tuple();
    for (k, id) in nodes
        .into_iter()
        .filter(one)
        .collect::<Vec<_>>()
        .into_iter()
        .enumerate()
    {
        case.graph.add_output(&format!("shown{k}"), id);
    }
}

fn check(seed: u64) -> Result<(), String> {
    let mut case = random_case(seed, &options(seed % 3 == 2));
    if seed % 2 == 1 {
        show_all(&mut case);
    }
    if std::env::var("TLC_SEED").is_ok() {
        println!("{}", case.graph);
    }
    judge(
        &case.graph,
        &case.input_data(seed),
        &case.binding,
        1 + seed as usize % 2,
    )
}

/// Runs a graph beside closed pages, and compares what it computes.
fn judge(graph: &Graph, inputs: &[HostTensor], binding: &[i64], threads: usize) -> Result<(), String> {
    let cpu = tlc_runtime::target::cpu(
        tlc_runtime::cpu::jit::emitters().expect("a known machine"),
        tlc_runtime::pool::default_threads(),
    );
    let settings = Options {
        // Regrouped contractions would need the graph that was compiled to compare with.
        pipeline: "canonicalize,fold,cse,sink-layout,dce".parse().expect("passes"),
        ..Options::new(cpu)
    };
    let plan = compile(graph, &settings)
        .map_err(|e| format!("compile: {e}"))?
        .planned
        .plan;
    let names = graph.symbols().iter().map(|s| s.name.clone());
    let symbols: Vec<(String, i64)> = names.zip(binding.iter().copied()).collect();
    let pool = Arc::new(Pool::new(threads));
    let executable = Executable::new(plan, pool, BufferPool::new(), tlc_passes::memory::pack)
        .map_err(|e| format!("load: {e}"))?
        .with_symbols(symbols.clone());
    let meant = interp::Options {
        symbols,
        ..interp::Options::default()
    };
    let bounded = interpret_with_bounds(graph, inputs, &meant).map_err(|e| format!("interpreter: {e}"))?;
    for edge in [Edge::End, Edge::Start] {
        let copy = |t: &HostTensor| {
            let mut memory = Guarded::new(t.bytes().len(), edge);
            memory.as_mut_slice().copy_from_slice(t.bytes());
            memory
        };
        let memory: Vec<Guarded> = inputs.iter().map(copy).collect();
        let views: Vec<TensorView<'_>> = inputs
            .iter()
            .zip(&memory)
            .map(|(t, m)| TensorView {
                dtype: t.dtype(),
                shape: t.shape(),
                data: m.as_slice(),
            })
            .collect();
        let bytes = |b: &interp::Bounded| b.dtype.bytes() * b.shape.iter().product::<usize>();
        let mut outputs: Vec<Guarded> = bounded.iter().map(|b| Guarded::new(bytes(b), edge)).collect();
        let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Guarded::as_mut_slice).collect();
        executable
            .run_into(&views, &mut places)
            .map_err(|e| format!("run: {e}"))?;
        for (k, (memory, bounded)) in outputs.iter().zip(&bounded).enumerate() {
            let found = HostTensor::from_bytes(bounded.dtype, &bounded.shape, memory.as_slice()).expect("a result");
            compare(&found, bounded).map_err(|e| format!("output {k}, edge {edge:?}: {e}"))?;
        }
    }
    Ok(())
}

/// A sum over windows of padded images, which begin `stride` elements apart.
fn windows_apart([h, w]: [i64; 2], size: i64, stride: i64, (before, behind): (i64, i64)) -> Graph {
    let around = before + behind;
    let [rows, columns] = [h, w].map(|n| (n + around - size) / stride + 1);
    let text = format!(
        "graph @windows(%x: f32[1, 20, {h}, {w}], %k: f32[20, {size}, {size}]) {{
           %0 = pad %x {{lo=[0, 0, {before}, {before}], hi=[0, 0, {behind}, {behind}], value=0.0}} : f32[1, 20, {}, {}]
           %1 = window %0 {{axis=2, size={size}, stride={stride}}} : f32[1, 20, {rows}, {}, {size}]
           %2 = window %1 {{axis=3, size={size}, stride={stride}}} : f32[1, 20, {rows}, {columns}, {size}, {size}]
           %3 = einsum %2, %k {{abcdef,bef->abcd}} : f32[1, 20, {rows}, {columns}]
           return %3
         }}",
        h + around,
        w + around,
        w + around,
    );
    parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

/// Sums over windows of an image of three groups of eight channels, with so many results of each.
fn windows_of_groups([h, w]: [i64; 2], size: i64, stride: i64, results: i64) -> Graph {
    let [rows, columns] = [h, w].map(|n| (n - size) / stride + 1);
    let text = format!(
        "graph @groups(%x: f32[3, 8, {h}, {w}], %k: f32[3, {results}, 8, {size}, {size}]) {{
           %0 = window %x {{axis=2, size={size}, stride={stride}}} : f32[3, 8, {rows}, {w}, {size}]
           %1 = window %0 {{axis=3, size={size}, stride={stride}}} : f32[3, 8, {rows}, {columns}, {size}, {size}]
           %2 = einsum %1, %k {{abcdef,agbef->agcd}} : f32[3, {results}, {rows}, {columns}]
           return %2
         }}",
    );
    parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

/// The same at every other level of this machine, each in a process of its own.
#[test]
fn kernels_of_every_other_level_touch_nothing_beside_their_buffers() {
    let all = level::all().iter().map(|l| l.name()).chain([level::PORTABLE]);
    for name in all.filter(|name| *name != level::name()) {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "kernels_touch_nothing_beside_their_buffers"])
            .env(level::VARIABLE, name)
            .output()
            .expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{name}: {printed}"
        );
    }
}

#[test]
fn kernels_touch_nothing_beside_their_buffers() {
    let at = std::env::var_os("TLC_AT");
    let mut failures = Vec::new();
    for seed in seeds(0..150) {
        if let Some(at) = &at {
            std::fs::write(at, seed.to_string()).expect("the file that TLC_AT names can be written");
        }
        if let Err(e) = check(seed) {
            println!("seed {seed}: {e}");
            failures.push(format!("seed {seed}: {e}"));
        }
    }
    let values = |shape: &[usize]| {
        let count = shape.iter().product();
        let all: Vec<f32> = (0..count).map(|i| ((i * 37 + 11) % 101) as f32 / 25.0 - 2.0).collect();
        HostTensor::from_slice(shape, &all).expect("room")
    };
    for (side, size, stride, around) in [
        ([14, 14], 3, 2, (1, 1)),
        ([15, 33], 3, 2, (1, 1)),
        ([7, 70], 3, 2, (0, 1)),
        ([28, 29], 5, 2, (2, 2)),
        ([28, 28], 5, 2, (1, 2)),
        ([9, 16], 2, 2, (1, 0)),
        ([11, 40], 3, 3, (1, 1)),
    ] {
        let graph = windows_apart(side, size, stride, around);
        let size = size as usize;
        let inputs = [
            values(&[1, 20, side[0] as usize, side[1] as usize]),
            values(&[20, size, size]),
        ];
        if let Err(e) = judge(&graph, &inputs, &[], 1) {
            failures.push(format!("{side:?}, {size}, {stride}, {around:?}: {e}"));
        }
    }
    for (side, size, stride, results) in [
        ([9, 9], 3, 1, 8),
        ([16, 16], 3, 1, 4),
        ([15, 15], 3, 2, 8),
        ([12, 30], 3, 1, 12),
        ([11, 58], 3, 2, 5),
        ([7, 61], 5, 1, 24),
        ([14, 14], 3, 3, 8),
    ] {
        let graph = windows_of_groups(side, size, stride, results);
        let [h, w, size, results] = [side[0], side[1], size, results].map(|n| n as usize);
        let inputs = [values(&[3, 8, h, w]), values(&[3, results, 8, size, size])];
        if let Err(e) = judge(&graph, &inputs, &[], 1) {
            failures.push(format!("groups of {side:?}, {size}, {stride}, {results}: {e}"));
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
