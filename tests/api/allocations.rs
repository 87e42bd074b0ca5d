//! A warm call into the caller's memory allocates nothing, whatever its inputs are made from; and what compiling allocates, which is work that can be counted.

use ndarray::{Array2, array};
use tlc::{CompileOptions, DType, Graph, Input, OutputMut, Specialize, State, inputs, outputs};

fn options() -> CompileOptions {
    CompileOptions {
        threads: Some(1),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    }
}

/// Allocations of the third call.
fn warm(mut call: impl FnMut()) -> u64 {
    call();
    call();
    allocation_counter::measure(call).count_total
}

#[test]
fn a_warm_call_with_slices_arrays_and_scalars_allocates_nothing() {
    let g = Graph::new("mixed");
    let n = g.symbol("n", 1..=100);
    let x = g.input("x", DType::F32, (&n, 2));
    let y = g.input("y", DType::F32, (&n, 2));
    let w = g.input("w", DType::F32, [2, 2]);
    let k = g.input("k", DType::F32, ());
    g.output("z", &((&x * &k + &y).matmul(&w)));
    g.output("m", &x.gt(&y));
    let e = g.compile(&options()).unwrap();
    let (x, y, w) = (
        [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0],
        Array2::<f32>::ones((3, 2)),
        [[1.0f32, 0.0], [0.0, 2.0]],
    );
    let (mut z, mut m) = (Array2::<f32>::zeros((3, 2)), [false; 6]);
    let mut call = || {
        e.run_into(&inputs![&x, y.view(), &w, 2.0f32], &mut outputs![&mut z, &mut m])
            .unwrap();
    };
    assert_eq!(warm(&mut call), 0);
    assert_eq!(z, array![[3.0, 10.0], [7.0, 18.0], [11.0, 26.0]]);
    assert_eq!(m, [false, true, true, true, true, true]);
}

#[test]
fn a_warm_call_with_a_hundred_inputs_without_shapes_allocates_nothing() {
    const COUNT: usize = 100;
    let g = Graph::new("many");
    let tensors: Vec<tlc::Tensor> = (0..COUNT)
        .map(|k| g.input(&format!("x{k}"), DType::F32, [2, 2]))
        .collect();
    let sum = tensors.iter().skip(1).fold(tensors[0].clone(), |sum, t| sum + t);
    g.output("sum", &sum);
    let e = g.compile(&options()).unwrap();
    let data: Vec<Vec<f32>> = (0..COUNT).map(|k| vec![k as f32; 4]).collect();
    let inputs: Vec<Input<'_>> = data.iter().map(Input::from).collect();
    let mut sum = [0f32; 4];
    let mut outputs = [OutputMut::from(&mut sum)];
    let count = warm(|| e.run_into(&inputs, &mut outputs).unwrap());
    drop(outputs);
    assert_eq!(count, 0);
    assert_eq!(sum, [4950.0; 4]);
}

/// On states, of fixed sizes and beside an input of a size that is a symbol, with and without versions for sizes that recur; and a cache
/// whose capacity is a symbol.
#[test]
fn a_warm_call_on_states_allocates_nothing() {
    for (count, symbolic) in [(3, false), (40, false), (300, false), (3, true), (40, true)] {
        for specialize in [Specialize::Never, Specialize::Recurring] {
            let g = Graph::new("steps");
            let n = if symbolic { g.symbol("n", 1..=100) } else { 8.into() };
            let x = g.input("x", DType::F32, [&n]);
            let sum = x.sum(..);
            for k in 0..count {
                let name = format!("s{k}");
                let state = g.state(&name, DType::F32, [4]);
                g.set(&name, &(&state * 0.5 + &sum));
            }
            g.output("sum", &sum);
            if symbolic {
                let m = g.symbol("m", 1..=100);
                g.cache("cache", DType::F32, [&m], 0).append(&sum.unsqueeze(0));
            }
            let options = CompileOptions {
                specialize,
                ..options()
            };
            let e = g.compile(&options).unwrap();
            let mut state = State::new();
            for k in 0..count {
                state.insert(&format!("s{k}"), [1.0f32; 4]).unwrap();
            }
            state.insert_cache("cache", DType::F32, &[64]).unwrap();
            let (x, mut sum) = ([0.125f32; 8], 0.0f32);
            let inputs = inputs![&x];
            let mut outputs = outputs![&mut sum];
            let allocated = warm(|| e.run_with_into(&mut state, &inputs, &mut outputs).unwrap());
            drop(outputs);
            assert_eq!(allocated, 0, "{count} states, symbolic {symbolic}, {specialize:?}");
            assert_eq!(sum, 1.0);
            assert_eq!(state["s0"].as_slice::<f32>(), Ok(&[1.875f32; 4][..]));
        }
    }
}

/// On frozen entries, which the first call packs: no later one does, nor asks for memory.
#[test]
fn a_warm_call_on_packed_entries_allocates_nothing() {
    let g = Graph::new("layers");
    let x = g.input("x", DType::F32, [32, 64]);
    let mut y = x;
    for k in 0..4 {
        y = y.matmul(&g.state(&format!("w{k}"), DType::F32, [64, 64]).t()).relu();
    }
    g.output("y", &y);
    let e = g.compile(&options()).unwrap();
    let mut state = State::new();
    for k in 0..4 {
        state
            .insert(&format!("w{k}"), Array2::<f32>::from_elem((64, 64), 0.125))
            .unwrap();
    }
    state.freeze(|_| true);
    let (x, mut y) = (Array2::<f32>::ones((32, 64)), Array2::<f32>::zeros((32, 64)));
    let inputs = inputs![&x];
    let mut outputs = outputs![&mut y];
    let allocated = warm(|| e.run_with_into(&mut state, &inputs, &mut outputs).unwrap());
    drop(outputs);
    assert_eq!(allocated, 0);
    assert!(state.iter().all(|entry| entry.packed() == (1, 64 * 64 * 4)));
    assert_eq!(y[[31, 63]], 4096.0);
}

/// Layers that are added to what they take, each normalized, with a loss and its derivatives by all parameters.
fn layered(layers: usize) -> Graph {
    let g = Graph::new("layered");
    let mut h = g.input("x", DType::F32, [64, 96]);
    let mut parameters = Vec::new();
    for k in 0..layers {
        let w = g.input(&format!("w{k}"), DType::F32, [96, 96]);
        let b = g.input(&format!("b{k}"), DType::F32, [96]);
        h = &h + (h.layer_norm(None, None, 1e-5).matmul(&w) + &b).gelu_tanh();
        parameters.extend([w, b]);
    }
    let loss = h.square().reshape([-1]).sum(0);
    g.output("loss", &loss);
    let gradients = tlc::grad(&loss, &parameters.iter().collect::<Vec<_>>());
    for (k, d) in gradients.iter().enumerate() {
        g.output(&format!("d{k}"), d);
    }
    g
}

/// Times are noise and instructions are not to be had everywhere; allocations are a part of the work that can be counted.
#[test]
fn the_work_of_compiling_grows_with_the_layers_and_no_faster() {
    // What is made once in a process.
    layered(1).compile(&options()).unwrap();
    let of = [8, 16, 32, 64].map(|layers| {
        let g = layered(layers);
        let mut compiled = None;
        let counted = allocation_counter::measure(|| compiled = g.compile(&options()).ok());
        let compiled = compiled.unwrap();
        let planned = &compiled.decisions().planned;
        let mut nests: Vec<_> = planned
            .launches
            .iter()
            .map(|l| std::sync::Arc::as_ptr(&l.scheduled))
            .collect();
        let launches = nests.len();
        nests.sort();
        nests.dedup();
        let nodes = compiled.decisions().graph.len() as u64;
        (
            counted.count_total,
            nodes,
            launches,
            nests.len(),
            planned.plan.kernels.len(),
        )
    });
    // Allocations of each layer more.
    let [first, second, third] = [(1, 8), (2, 16), (3, 32)].map(|(k, more)| (of[k].0 - of[k - 1].0) / more);
    assert!(second * 20 <= first * 21 && third * 20 <= first * 21, "{of:?}");
    assert!(of[3].0 - of[0].0 <= 80 * (of[3].1 - of[0].1), "{of:?}");
    for (_, _, launches, nests, kernels) in of {
        // Layers are alike: what is scheduled and what is made into code does not grow with them.
        assert!(launches > 3 * nests, "{of:?}");
        assert_eq!((nests, kernels), (of[0].3, of[0].4), "{of:?}");
    }
}
