//! Steps of training of larger networks: what they launch, copy and allocate, and that threads change no bit.

use tlc::ir::plan::Step;
use tlc::optim::Groups;
use tlc::{Attention, CompileOptions, Conv, DType, Executable, Graph, HostTensor, Input, State, Tensor, s};

/// Numbers between -1 and 1 that go up and down.
fn wave(count: usize, scale: f32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 37 % 101) as f32 / 50.5 - 1.0) * scale)
        .collect()
}

/// A step of training, with what it is called with.
struct Training {
    step: Executable,
    state: State,
    inputs: Vec<HostTensor>,
}

impl Training {
    fn run(&mut self) {
        let inputs: Vec<Input<'_>> = self.inputs.iter().map(Input::from).collect();
        self.step.run_with(&mut self.state, &inputs).expect("it runs");
    }
}

/// Parameters and running statistics of a network that is being recorded.
struct Network {
    graph: Graph,
    all: Vec<(String, Vec<i64>, f32)>,
    tensors: Vec<Tensor>,
    statistics: Vec<(String, i64)>,
}

impl Network {
    fn new(name: &str) -> Network {
        Network {
            graph: Graph::new(name),
            all: vec![],
            tensors: vec![],
            statistics: vec![],
        }
    }

    fn parameter(&mut self, name: impl Into<String>, shape: &[i64], scale: f32) -> Tensor {
        let name = name.into();
        let t = self.graph.state(&name, DType::F32, shape);
        self.all.push((name, shape.to_vec(), scale));
        self.tensors.push(t.clone());
        t
    }

    fn normalized(&mut self, name: &str, x: &Tensor, channels: [i64; 2], size: i64, stride: usize) -> Tensor {
        let [inner, outer] = channels;
        let w = self.parameter(format!("{name}.w"), &[outer, inner, size, size], 0.2);
        let y = x.conv2d(&w, None, &Conv::new().stride(stride).padding(size as usize / 2));
        let scale = self.parameter(format!("{name}.scale"), &[outer], 0.0) + 1.0;
        let offset = self.parameter(format!("{name}.offset"), &[outer], 0.0);
        let [mean, var] = ["mean", "var"].map(|of| {
            let name = format!("{name}.{of}");
            self.statistics.push((name.clone(), outer));
            self.graph.state(&name, DType::F32, [outer])
        });
        let (y, new_mean, new_var) = y.batch_norm_train(&mean, &var, Some(&scale), Some(&offset), 0.1, 1e-5);
        self.graph.set(&format!("{name}.mean"), &new_mean);
        self.graph.set(&format!("{name}.var"), &new_var);
        y
    }

    fn learn(self, loss: &Tensor, threads: usize, inputs: Vec<HostTensor>) -> Training {
        let adam: Groups = "adam:lr=0.001".parse().expect("an optimizer");
        let names: Vec<&str> = self.all.iter().map(|(name, ..)| name.as_str()).collect();
        let named: Vec<(&str, &Tensor)> = names.iter().copied().zip(&self.tensors).collect();
        adam.minimize(loss, &named);
        self.graph.output("loss", loss);
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let step = self.graph.compile(&options).expect("it compiles");
        let mut state = State::new();
        let mut insert = |name: &str, shape: &[i64], values: &dyn Fn(usize) -> Vec<f32>| {
            let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
            let values = values(shape.iter().product());
            let array = ndarray::ArrayD::from_shape_vec(shape, values).expect("as many");
            state.insert(name, &array).expect("an entry");
        };
        for (name, shape, scale) in &self.all {
            insert(name, shape, &|count| wave(count, *scale));
        }
        for (name, channels) in &self.statistics {
            insert(name, &[*channels], &|count| vec![1.0; count]);
        }
        adam.prepare(&mut state, &names).expect("memory");
        Training { step, state, inputs }
    }
}

/// A residual network of two stages on images of 16 by 16.
fn images(threads: usize) -> Training {
    const SHAPE: [usize; 4] = [16, 3, 16, 16];
    let mut n = Network::new("images");
    let x = n.graph.input("x", DType::F32, SHAPE);
    let labels = n.graph.input("labels", DType::I64, [SHAPE[0]]);
    let mut h = n.normalized("stem", &x, [3, 16], 3, 1).relu();
    for (stage, [inner, outer]) in [[16, 16], [16, 32]].into_iter().enumerate() {
        let stride = stage + 1;
        let y = n
            .normalized(&format!("{stage}.a"), &h, [inner, outer], 3, stride)
            .relu();
        let y = n.normalized(&format!("{stage}.b"), &y, [outer, outer], 3, 1);
        if stride > 1 {
            h = n.normalized(&format!("{stage}.short"), &h, [inner, outer], 1, stride);
        }
        h = (h + y).relu();
    }
    let w = n.parameter("head.w", &[32, 10], 0.1);
    let b = n.parameter("head.b", &[10], 0.0);
    let loss = (h.mean([2, 3]).matmul(&w) + b).cross_entropy(&labels);
    let x = HostTensor::from_slice(&SHAPE, &wave(SHAPE.iter().product(), 1.0)).expect("as many");
    let labels: Vec<i64> = (0..16).map(|k| k * 7 % 10).collect();
    let labels = HostTensor::from_slice(&[16], &labels).expect("as many");
    n.learn(&loss, threads, vec![x, labels])
}

/// A causal transformer of two layers on four sequences of 64 tokens.
fn tokens(threads: usize) -> Training {
    const SEQUENCES: i64 = 4;
    const LENGTH: i64 = 64;
    const WIDTH: i64 = 64;
    const HEADS: i64 = 4;
    const TOKENS: i64 = 96;
    let mut n = Network::new("tokens");
    let x = n.graph.input("x", DType::I64, [SEQUENCES, LENGTH]);
    let labels = n.graph.input("labels", DType::I64, [SEQUENCES, LENGTH]);
    let embed = n.parameter("embed", &[TOKENS, WIDTH], 0.5);
    let mut h = embed.take(&x, 0) + n.parameter("place", &[LENGTH, WIDTH], 0.5);
    for layer in 0..2 {
        let norm = |n: &mut Network, h: &Tensor, of: &str| {
            let weight = n.parameter(format!("{layer}.{of}.weight"), &[WIDTH], 0.0) + 1.0;
            let bias = n.parameter(format!("{layer}.{of}.bias"), &[WIDTH], 0.0);
            h.layer_norm(Some(&weight), Some(&bias), 1e-5)
        };
        let linear = |n: &mut Network, h: &Tensor, of: &str, inner: i64, outer: i64| {
            let weight = n.parameter(format!("{layer}.{of}.weight"), &[inner, outer], 0.1);
            let bias = n.parameter(format!("{layer}.{of}.bias"), &[outer], 0.0);
            h.matmul(&weight) + bias
        };
        let y = norm(&mut n, &h, "norm1");
        let heads = linear(&mut n, &y, "qkv", WIDTH, 3 * WIDTH);
        let heads = heads.reshape([SEQUENCES, LENGTH, 3, HEADS, WIDTH / HEADS]);
        let heads = heads.permute([2, 0, 3, 1, 4]);
        let [q, k, v] = [0, 1, 2].map(|part| heads.slice(s![part]));
        let seen = q.attention(&k, &v, &Attention::new().causal());
        let seen = seen.permute([0, 2, 1, 3]).reshape([SEQUENCES, LENGTH, WIDTH]);
        h += linear(&mut n, &seen, "out", WIDTH, WIDTH);
        let y = norm(&mut n, &h, "norm2");
        let up = linear(&mut n, &y, "up", WIDTH, 4 * WIDTH).gelu_tanh();
        h += linear(&mut n, &up, "down", 4 * WIDTH, WIDTH);
    }
    let head = n.parameter("head", &[WIDTH, TOKENS], 0.1);
    let loss = h
        .matmul(&head)
        .reshape([-1, TOKENS])
        .cross_entropy(&labels.reshape([-1]));
    let tokens = |k: i64| {
        let all: Vec<i64> = (0..SEQUENCES * LENGTH).map(|i| (i * 7 + k) % TOKENS).collect();
        HostTensor::from_slice(&[SEQUENCES as usize, LENGTH as usize], &all).expect("as many")
    };
    let inputs = vec![tokens(0), tokens(7)];
    n.learn(&loss, threads, inputs)
}

/// Compiles a step for so many threads.
type Make = fn(usize) -> Training;

const NETWORKS: [(&str, Make); 2] = [("images", images), ("tokens", tokens)];

/// The work of these steps is shared out, and what a thread does decides no bit.
#[test]
fn steps_have_the_same_bits_on_any_number_of_threads() {
    for (name, network) in NETWORKS {
        let trained = [1, 2, 3].map(|threads| {
            let mut training = network(threads);
            (0..4).for_each(|_| training.run());
            training.state
        });
        for (threads, other) in [(2, &trained[1]), (3, &trained[2])] {
            assert_eq!(trained[0].len(), other.len());
            for e in trained[0].iter() {
                let bytes = other[e.name()].bytes().expect("here");
                assert!(
                    e.bytes().expect("here") == bytes,
                    "{name}, {threads} threads: {}",
                    e.name()
                );
            }
        }
    }
}

/// With products, convolutions, derivatives and an optimizer.
#[test]
fn a_warm_step_allocates_nothing_and_copies_nothing() {
    for (name, network) in NETWORKS {
        for threads in [1, 2] {
            let Training {
                step,
                mut state,
                inputs,
            } = network(threads);
            let copies = step
                .plan()
                .steps
                .iter()
                .filter(|s| matches!(s, Step::Copy { .. }))
                .count();
            assert_eq!(copies, 0, "{name}:\n{}", step.plan());
            let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
            let mut loss = 0.0f32;
            let mut outputs = tlc::outputs![&mut loss];
            let mut call = || step.run_with_into(&mut state, &inputs, &mut outputs).expect("it runs");
            (0..2).for_each(|_| call());
            let allocated = allocation_counter::measure(call).count_total;
            assert_eq!(allocated, 0, "{name}, {threads} threads");
        }
    }
}

/// What a step launches beside library products: a change that makes it more is one to know of.
#[test]
fn steps_launch_few_kernels() {
    for ((name, network), most) in NETWORKS.into_iter().zip([63, 20]) {
        let training = network(1);
        let plan = training.step.plan();
        let kernels = plan.steps.iter().filter(|s| !matches!(s, Step::Gemm(_))).count();
        assert!(
            kernels <= most,
            "{name}: {kernels} kernels beside products, {most} before"
        );
    }
}
