//! Random graphs with states, several calls in a row on one state, against the interpreter: for it the graph's states are inputs and
//! outputs, which the host feeds back. What it is given before each call is what the state holds, so that each call is judged by itself.
//!
//! Here are the generator and its judge, in `judged.rs` the tests on the processor, and in `tests/cuda.rs` one on a GPU.
//! `TLC_SEEDS=from..to` runs other seeds than theirs, `TLC_SEED=n` runs one and prints its graph.

use tlc::ir::interp::{self, compare, interpret, interpret_with_bounds};
use tlc::ir::rng::Rng;
use tlc::ir::testgen::{random_tensor, seeds};
use tlc::{
    CompileOptions, DType, Device, Dim, Executable, Graph, HostTensor, Input, OutputMut, RunError, Specialize, State,
    Tensor, concat,
};

/// Types of states and inputs, each as often as it is listed.
const DTYPES: [DType; 14] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::I64,
    DType::I64,
    DType::F64,
    DType::I32,
    DType::Bool,
    DType::U8,
    DType::F16,
    DType::BF16,
    DType::U64,
    DType::F8E5M2,
];

/// How large values are.
#[derive(Clone, Copy)]
pub struct Size {
    /// Extents up to rank 2, each as often as it is listed.
    extents: &'static [usize],
    /// Those of more axes.
    low: &'static [usize],
    /// The most that a symbol is.
    symbol: i64,
    /// The most elements of a value.
    elements: i64,
}

/// Where most operations meet one another.
pub const SMALL: Size = Size {
    extents: &[1, 2, 3, 4, 5, 8, 17, 3, 4, 0],
    low: &[1, 2, 3, 4, 5],
    symbol: 6,
    elements: 600,
};

/// Enough for loops that are split among threads, tiles, and products of a library.
pub const LARGE: Size = Size {
    extents: &[64, 130, 257, 400, 33, 1, 1000, 128],
    low: &[2, 17, 32, 5],
    symbol: 90,
    elements: 70_000,
};

/// A graph in the making.
struct Recorder {
    size: Size,
    g: Graph,
    rng: Rng,
    symbols: Vec<Dim>,
    /// What operations may be applied to.
    pool: Vec<Tensor>,
    inputs: usize,
}

/// A graph with states, and what it takes to run it.
struct Case {
    g: Graph,
    /// The names of caches, which are appended to.
    caches: Vec<String>,
}

impl Recorder {
    fn pick(&mut self) -> Tensor {
        let at = self.rng.below(self.pool.len());
        // What was computed last is the deepest.
        let at = if self.rng.chance(1, 3) { self.pool.len() - 1 } else { at };
        self.pool[at].clone()
    }

    /// Elements of the largest case.
    fn elements(&self, t: &Tensor) -> i64 {
        let extent = |d: &Dim| d.as_const().unwrap_or(self.size.symbol).max(1);
        t.shape().iter().map(extent).product()
    }

    fn axis(&mut self, x: &Tensor) -> i64 {
        self.rng.below(x.rank()) as i64
    }

    fn shape(&mut self) -> Vec<Dim> {
        let rank = self.rng.pick(&[0, 1, 1, 2, 2, 2, 3, 4]);
        let extent = |r: &mut Recorder| match r.symbols.len() {
            n if n > 0 && r.rng.chance(1, 2) => r.symbols[r.rng.below(n)].clone(),
            _ => Dim::from(r.rng.pick(if rank > 2 { r.size.low } else { r.size.extents })),
        };
        (0..rank).map(|_| extent(self)).collect()
    }

    /// Places along an axis: some are there twice, some are outside.
    fn places(&mut self, x: &Tensor, axis: i64, known: bool) -> Tensor {
        let count = self.rng.below(5);
        let most = x.dim(axis).as_const().unwrap_or(3);
        let places: Vec<i64> = (0..count).map(|_| self.rng.range(-2, most + 1)).collect();
        let places = self.g.data(&places, &[count]);
        match self.rng.below(4) {
            2 if known => places.cast(DType::I32),
            3 if known => places,
            // Known only when it runs.
            _ => {
                self.inputs += 1;
                let by = self.g.input(&format!("by{}", self.inputs), DType::I64, ());
                places + by
            }
        }
    }

    /// Any value as one of that type.
    fn fit(&mut self, x: &Tensor, like: &Tensor) -> Tensor {
        let mut x = self.typed(x, like.dtype());
        if x.shape() == like.shape() {
            return x;
        }
        let fixed = |t: &Tensor| t.const_shape();
        if let (Some(from), Some(to)) = (fixed(&x), fixed(like))
            && from.len() == to.len()
            && self.rng.chance(3, 4)
        {
            for (axis, (&from, &to)) in from.iter().zip(&to).enumerate() {
                if from > to {
                    x = x.narrow(axis as i64, from - to, to);
                }
            }
            let now = fixed(&x).expect("fixed");
            let sides: Vec<(usize, usize)> = now.iter().zip(&to).map(|(n, t)| (0, t - n)).collect();
            return match x.dtype() {
                DType::Bool => x.cast(DType::I32).pad(&sides, 0).cast(DType::Bool),
                d if d.is_storage() => like.clone(),
                _ => x.pad(&sides, 1),
            };
        }
        if x.dtype().is_storage() {
            return like.clone();
        }
        let scalar = match x.dtype() {
            DType::Bool => x.any(..),
            d if d.is_float() => x.tanh().sum(..),
            _ => x.sum(..),
        };
        scalar.cast(like.dtype()).broadcast_to(like.shape())
    }

    fn typed(&mut self, x: &Tensor, dtype: DType) -> Tensor {
        match x.dtype() == dtype {
            true => x.clone(),
            false => x.cast(dtype),
        }
    }

    /// A value of a loop that carries it.
    fn looped(&mut self, x: &Tensor) -> Tensor {
        let other = self.pick();
        let other = self.fit(&other, x);
        let trips = self.rng.below(4);
        let how = self.rng.below(4);
        let rank = x.rank();
        let results = self.g.repeat(trips).carry(x).carry(&other).record(|i| {
            let (a, b) = (i.carried[0].clone(), i.carried[1].clone());
            let captured = i.capture(x);
            match how {
                0 => vec![b, a],
                1 if rank > 0 => vec![a.flip(0), b],
                2 if rank > 0 => {
                    let at = i.number.unsqueeze(0);
                    vec![a.scatter_set(0, &at, &b.take(&at, 0)), captured]
                }
                _ => vec![moderate(&a, &b), captured],
            }
        });
        results[0].clone()
    }

    /// Records an operation.
    fn grow(&mut self) {
        let x = self.pick();
        let other = self.pick();
        let float = x.dtype().is_float();
        let counts = x.dtype() != DType::Bool && !x.dtype().is_storage();
        let y = match self.rng.below(25) {
            0 if counts => &x + self.rng.range(1, 3),
            1 if float => x.tanh(),
            2 if counts => {
                let other = self.fit(&other, &x);
                moderate(&x, &other)
            }
            3 | 4 if x.rank() > 0 => {
                let axis = self.axis(&x);
                x.flip(axis)
            }
            5 if x.rank() > 1 => {
                let (a, b) = (self.axis(&x), self.axis(&x));
                x.swap_axes(a, b)
            }
            6 if x.rank() > 1 => x.flatten(),
            7 | 8 if x.rank() > 0 => {
                let axis = self.axis(&x);
                match x.dim(axis).as_const() {
                    Some(n) => {
                        let start = self.rng.range(0, n);
                        let length = self.rng.range(0, n - start);
                        x.narrow(axis, start, length)
                    }
                    None => x.slice_axis(axis, tlc::s(..).step(2)),
                }
            }
            9 if x.rank() > 0 && counts => {
                let side = |r: &mut Recorder| (r.rng.below(2), r.rng.below(3));
                let sides: Vec<(usize, usize)> = (0..x.rank()).map(|_| side(self)).collect();
                x.pad(&sides, 2)
            }
            10 if x.rank() > 0 => {
                let axis = self.axis(&x);
                match self.rng.below(3) {
                    0 => concat(&[&x, &x.flip(axis)], axis),
                    // Moved on by one, as a window over a stream is.
                    _ => match x.dim(axis).as_const() {
                        Some(n) if n > 0 => {
                            let row = self.fit(&other, &x).narrow(axis, 0, 1);
                            concat(&[&x.narrow(axis, 1, n - 1), &row], axis)
                        }
                        _ => x.clone(),
                    },
                }
            }
            11 if x.rank() > 0 && counts => {
                let axis = self.axis(&x);
                match self.rng.chance(1, 2) || x.dim(axis).as_const() == Some(0) {
                    true => x.sum(axis),
                    false => x.max(tlc::keep(axis)),
                }
            }
            12 if x.rank() > 0 && counts => {
                let axis = self.axis(&x);
                let monoid = self.rng.pick(&[tlc::Monoid::Add, tlc::Monoid::Max]);
                let (exclusive, reverse) = (self.rng.chance(1, 2), self.rng.chance(1, 2));
                let scanned = x.scan(monoid, axis, exclusive, reverse);
                if float { scanned.tanh() } else { scanned }
            }
            13 | 24 if x.rank() == 2 && counts => {
                // Moderate for floats, whose errors would grow.
                let x = if float { &x * 0.1 } else { x };
                let other = self.fit(&other, &x);
                let product = match self.rng.below(3) {
                    0 => x.matmul(&x.t()),
                    1 => other.matmul(&x.t()).matmul(&x) + &x,
                    _ => x.matmul(&other.t()).matmul(&x) + &other,
                };
                if float { product.tanh() } else { product }
            }
            14 | 15 if x.rank() > 0 => {
                let axis = self.axis(&x);
                let places = self.places(&x, axis, false);
                x.take(&places, axis)
            }
            16..=19 if x.rank() > 0 && !x.dtype().is_storage() => {
                let axis = self.axis(&x);
                let places = self.places(&x, axis, true);
                let mut shape = x.shape();
                shape[axis as usize] = places.dim(0);
                let rows = self.g.zeros(shape, x.dtype());
                let rows = self.fit(&other, &rows);
                match counts && self.rng.chance(1, 2) {
                    true => x.scatter_add(axis, &places, &rows),
                    false => x.scatter_set(axis, &places, &rows),
                }
            }
            20 | 21 => self.looped(&x),
            22 if counts => {
                let other = self.fit(&other, &x);
                x.lt(&other).select(&other, &x)
            }
            23 if float && x.rank() > 0 && x.dim(-1).as_const() != Some(0) => x.softmax(-1),
            _ => x.copy(),
        };
        if self.elements(&y) <= self.size.elements && !y.is_poisoned() {
            self.pool.push(y);
        }
    }

    /// What a state is to become.
    fn update(&mut self, state: &Tensor) -> Tensor {
        let alike: Vec<Tensor> = self.pool.iter().filter(|t| t.ty() == state.ty()).cloned().collect();
        match self.rng.below(3) {
            0 => {
                let x = self.pick();
                self.fit(&x, state)
            }
            _ => alike[self.rng.below(alike.len())].clone(),
        }
    }
}

/// Of two values of one type a third, which does not grow from call to call.
fn moderate(a: &Tensor, b: &Tensor) -> Tensor {
    match a.dtype() {
        DType::Bool => a.logical_xor(b),
        d if d.is_float() => (a - b).tanh() + b.tanh(),
        d if d.is_storage() => b.clone(),
        _ => a * 3 + b,
    }
}

fn recorded(seed: u64, size: Size) -> Case {
    let mut rng = Rng::new(seed);
    let g = Graph::new("random");
    let symbols = match rng.chance(1, 2) {
        true => vec![g.symbol("n", 0..=size.symbol), g.symbol("m", 0..=size.symbol)],
        false => vec![],
    };
    let mut r = Recorder {
        size,
        g: g.clone(),
        rng,
        symbols,
        pool: Vec::new(),
        inputs: 0,
    };
    if !r.symbols.is_empty() {
        let bound = match r.rng.chance(1, 2) {
            true => g.input("sizes", DType::F32, r.symbols.clone()),
            false => g.state("sizes", DType::F32, r.symbols.clone()),
        };
        r.pool.push(bound);
    }
    let mut states: Vec<(String, Tensor)> = Vec::new();
    for k in 0..1 + r.rng.below(4) {
        let name = format!("s{k}");
        let state = match states.last() {
            // Of the type of another.
            Some((_, other)) if r.rng.chance(1, 2) => g.state(&name, other.dtype(), other.shape()),
            _ => {
                let (dtype, shape) = (r.rng.pick(&DTYPES), r.shape());
                g.state(&name, dtype, shape)
            }
        };
        if r.elements(&state) > size.elements {
            r.pool.push(state);
            continue;
        }
        r.pool.push(state.clone());
        states.push((name, state));
    }
    if r.rng.chance(1, 2) {
        let (dtype, shape) = (r.rng.pick(&DTYPES), r.shape());
        let x = g.input("x", dtype, shape);
        r.pool.push(x);
    }
    let mut caches = Vec::new();
    if r.rng.chance(1, 4) {
        let axis = r.rng.below(2) as i64;
        let dtype = r.rng.pick(&[DType::F32, DType::I64, DType::F16]);
        let cache = g.cache("cache", dtype, [8usize, 8], axis);
        let row = cache.values().narrow(axis, 0, r.rng.below(4));
        let x = r.pick();
        let rows = r.fit(&x, &row);
        let after = cache.append(&rows);
        r.pool
            .extend([cache.values(), after.values(), cache.length()].map(Tensor::clone));
        caches.push("cache".to_string());
    }
    for _ in 0..r.rng.below(9) {
        r.grow();
    }
    // The next has the value of this one.
    let rotate = r.rng.chance(1, 4);
    for k in 0..states.len() {
        let (name, state) = states[k].clone();
        let next = states[(k + 1) % states.len()].1.clone();
        let value = match rotate && next.ty() == state.ty() {
            true => next,
            false => r.update(&state),
        };
        match r.rng.below(6) {
            0 => {}
            1 => {
                let of = r.pick();
                let ok = match of.dtype() {
                    DType::Bool => of.any(..),
                    d if d.is_storage() => of.cast(DType::F32).sum(..).gt(0.0),
                    d if d.is_float() => of.sum(..).gt(0.0),
                    _ => of.sum(..).gt(2),
                };
                g.set_if(&ok, &name, &value);
            }
            _ => g.set(&name, &value),
        }
    }
    for k in 0..r.rng.below(3) {
        let value = r.pick();
        g.set(&format!("made{k}"), &value);
    }
    for k in 0..1 + r.rng.below(4) {
        let value = r.pick();
        g.output(&format!("o{k}"), &value);
    }
    Case { g, caches }
}

fn compiled(g: &Graph, threads: usize, specialize: Specialize, device: Device) -> Result<Executable, String> {
    let options = CompileOptions {
        threads: Some(threads),
        specialize,
        device,
        ..CompileOptions::default()
    };
    g.compile(&options).map_err(|e| format!("compile: {e}"))
}

/// Values for the inputs of the graph that are not states, and a state with random values.
fn data(
    g: &tlc::ir::Graph,
    names: &[String],
    caches: &[String],
    sizes: &[i64],
    rng: &mut Rng,
) -> (Vec<HostTensor>, State) {
    let (mut inputs, mut state) = (Vec::new(), State::new());
    for &node in g.inputs() {
        let ty = g.ty(node);
        let extent = |d: &tlc::ir::IndexExpr| d.eval_symbols(sizes).expect("known") as usize;
        let shape: Vec<usize> = ty.shape.iter().map(extent).collect();
        let tlc::ir::NodeKind::Input { name, .. } = &g.node(node).kind else {
            unreachable!("an input")
        };
        let length = caches.iter().any(|c| *name == format!("{c}.length"));
        let tensor = match length {
            true => HostTensor::scalar(tlc::Scalar::from_i64(DType::I64, rng.range(0, 3))),
            false => random_tensor(rng, ty.dtype, &shape),
        };
        match names.contains(name) {
            true => state.insert(name, &tensor).expect("an entry"),
            false => inputs.push(tensor),
        }
    }
    (inputs, state)
}

/// Calls on the state of a case, of any of these executables in turn, each judged; the bytes of all that they made.
fn calls(case: &Case, executables: &[&Executable], sizes: &[i64], seed: u64) -> Result<Vec<Vec<u8>>, String> {
    let g = case.g.finish().map_err(|e| e.to_string())?;
    let names = case.g.state_names();
    let mut rng = Rng::new(seed ^ 0xca11);
    let (_, mut state) = data(&g, &names, &case.caches, sizes, &mut rng);
    let mut all = Vec::new();
    let mut turns = Rng::new(seed ^ 0x7025);
    for round in 0..if executables.len() > 1 { 8 } else { 4 } {
        let e = executables[turns.below(executables.len())];
        let (inputs, _) = data(&g, &names, &case.caches, sizes, &mut rng);
        let before: Vec<(String, HostTensor)> = state
            .iter()
            .map(|e| (e.name().to_string(), e.to_host().expect("memory")))
            .collect();
        let known = |name: &str| before.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let mut rest = inputs.iter();
        let mut given = Vec::new();
        for &node in g.inputs() {
            let tlc::ir::NodeKind::Input { name, .. } = &g.node(node).kind else {
                unreachable!("an input")
            };
            given.push(match names.contains(name) {
                true => known(name).ok_or("a state is missing")?,
                false => rest.next().ok_or("an input is missing")?.clone(),
            });
        }
        let symbols = g.symbols().iter().map(|s| s.name.clone());
        let options = interp::Options {
            symbols: symbols.zip(sizes.iter().copied()).collect(),
            ..interp::Options::default()
        };
        let exact = interpret(&g, &given, &options).map_err(|e| format!("interpreter: {e}"))?;
        let bounded = interpret_with_bounds(&g, &given, &options).map_err(|e| format!("interpreter: {e}"))?;
        let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        let full = case.caches.iter().any(|c| {
            let after = g.outputs().iter().position(|o| o.name == format!("{c}.length"));
            after.is_some_and(|k| exact[k].as_slice::<i64>().is_some_and(|n| n[0] > 8))
        });
        if round == 2 {
            // What calls do not set, products may pack once from here on.
            state.freeze(|name| !g.outputs().iter().any(|o| o.name == name));
        }
        let is_set = |name: &str| names.iter().any(|n| n == name);
        let results: Vec<usize> = (0..exact.len()).filter(|&k| !is_set(&g.outputs()[k].name)).collect();
        let outcome: Result<Vec<HostTensor>, RunError> = match round % 2 {
            0 => e
                .run_with(&mut state, &given)
                .map(|o| o.iter().map(|o| o.to_host()).collect()),
            _ => {
                let mut memory: Vec<HostTensor> = results
                    .iter()
                    .map(|&k| HostTensor::zeros(exact[k].dtype(), exact[k].shape()).expect("small"))
                    .collect();
                let mut places: Vec<OutputMut<'_>> = memory
                    .iter_mut()
                    .map(|t| OutputMut::bytes(t.dtype(), t.bytes_mut()))
                    .collect();
                let done = e.run_with_into(&mut state, &given, &mut places);
                drop(places);
                done.map(|()| memory)
            }
        };
        let found = match (outcome, full) {
            (Ok(found), false) => found,
            (Err(RunError::CacheFull { .. }), true) => {
                let same = state
                    .iter()
                    .zip(&before)
                    .all(|(e, (_, b))| e.bytes().is_ok_and(|e| e == b.bytes()));
                return if same {
                    Ok(all)
                } else {
                    Err("a refused call wrote".into())
                };
            }
            (Ok(_), true) => return Err(format!("call {round}: more than a cache holds")),
            (Err(e), _) => return Err(format!("call {round}: {e}")),
        };
        if state.is_torn() {
            return Err("it is torn".into());
        }
        let mut results = found.iter();
        for (k, o) in g.outputs().iter().enumerate() {
            let value = match is_set(&o.name) {
                true => state[o.name.as_str()].to_host().map_err(|e| e.to_string())?,
                false => results.next().ok_or("an output is missing")?.clone(),
            };
            if (value.dtype(), value.shape()) != (exact[k].dtype(), exact[k].shape()) {
                return Err(format!("call {round}: {} is {:?}", o.name, value.shape()));
            }
            compare(&value, &bounded[k]).map_err(|e| format!("call {round}: {}: {e}", o.name))?;
            all.push(value.bytes().to_vec());
        }
        // What is not set is as it was.
        for (name, value) in &before {
            if !g.outputs().iter().any(|o| o.name == *name) && state[name.as_str()].bytes().ok() != Some(value.bytes())
            {
                return Err(format!("call {round}: {name} was written"));
            }
        }
        e.wait_for_specializations();
    }
    Ok(all)
}

fn check(seed: u64, size: Size, device: Device) -> Result<(), String> {
    let case = recorded(seed, size);
    if std::env::var("TLC_SEED").is_ok() {
        println!(
            "{}\n{:?}",
            case.g.finish().map_err(|e| e.to_string())?,
            case.g.state_names()
        );
    }
    let (one, three) = (
        compiled(&case.g, 1, Specialize::Never, device)?,
        compiled(&case.g, 3, Specialize::Never, device)?,
    );
    if std::env::var("TLC_SEED").is_ok() {
        println!("{}", one.plan());
    }
    // On another device, the processor takes turns with it.
    let here = match device {
        Device::Cpu => None,
        _ => Some(compiled(&case.g, 1, Specialize::Never, Device::cpu())?),
    };
    let symbols = case.g.finish().map_err(|e| e.to_string())?.symbols().len();
    let mut rng = Rng::new(seed ^ 0x51e5);
    for round in 0..if symbols > 0 { 3 } else { 1 } {
        let sizes: Vec<i64> = (0..symbols).map(|_| rng.range(0, size.symbol)).collect();
        let seed = seed + (round << 32);
        let of = |e: String| format!("sizes {sizes:?}: {e}");
        let alone = calls(&case, &[&one], &sizes, seed).map_err(of)?;
        let several = calls(&case, &[&three], &sizes, seed).map_err(of)?;
        if alone != several {
            return Err(of("one thread and three differ".into()));
        }
        if round == 0 && symbols > 0 {
            let special = compiled(&case.g, 1, Specialize::After(2), device)?;
            calls(&case, &[&special], &sizes, seed).map_err(|e| format!("specialized, {e}"))?;
        }
        if let Some(here) = &here {
            calls(&case, &[here, &one, &three], &sizes, seed).map_err(|e| format!("on both, {e}"))?;
        }
    }
    Ok(())
}

/// Judges the cases of seeds, those that `TLC_SEEDS` says or else these.
pub fn check_all(default: std::ops::Range<u64>, size: Size, device: Device) {
    let mut failures = Vec::new();
    for seed in seeds(default) {
        let outcome = std::panic::catch_unwind(|| check(seed, size, device));
        let failure = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(e)) => e,
            Err(p) => match p.downcast_ref::<String>() {
                Some(text) => format!("panic: {text}"),
                None => format!("panic: {:?}", p.downcast_ref::<&str>()),
            },
        };
        println!("seed {seed}: {failure}");
        failures.push(seed);
    }
    assert!(failures.is_empty(), "{} failures: {failures:?}", failures.len());
}
