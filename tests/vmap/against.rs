//! A batch against each of its examples alone.

use tlc::ir::interp::{Options, interpret};
use tlc::ir::rng::Rng;
use tlc::ir::testgen::random_tensor;
use tlc::{CompileOptions, DType, Graph, HostTensor, Tensor, Vmap, compile_ir};

/// An operand: the extents of an example, and the axis of examples or none.
pub type Given<'a> = (DType, &'a [usize], Option<usize>);

pub const EXAMPLES: usize = 3;

/// A tensor of one more axis, with those tensors along it.
pub fn stacked(all: &[HostTensor], axis: usize) -> HostTensor {
    let one = all[0].shape();
    let mut shape = one.to_vec();
    shape.insert(axis, all.len());
    let mut whole = HostTensor::zeros(all[0].dtype(), &shape).expect("a small tensor");
    let behind: usize = one[axis..].iter().product();
    for (e, t) in all.iter().enumerate() {
        for i in 0..t.len() {
            let (before, rest) = (i / behind.max(1), i % behind.max(1));
            whole.set((before * all.len() + e) * behind + rest, t.get(i));
        }
    }
    whole
}

/// One example of a tensor whose first axis is the batch's.
pub fn example(whole: &HostTensor, e: usize) -> HostTensor {
    let shape = &whole.shape()[1..];
    let mut one = HostTensor::zeros(whole.dtype(), shape).expect("a small tensor");
    let count = one.len();
    (0..count).for_each(|i| one.set(i, whole.get(e * count + i)));
    one
}

/// Whether two tensors are the same, but for the order of sums.
pub fn alike(a: &HostTensor, b: &HostTensor) -> bool {
    let near = |i: usize| {
        let (x, y) = (a.get(i), b.get(i));
        let tolerance = match a.dtype() {
            DType::F64 => 1e-12,
            DType::F32 => 1e-5,
            DType::F16 | DType::BF16 => 1e-2,
            _ => return x.bits() == y.bits(),
        };
        let (x, y) = (x.as_f64(), y.as_f64());
        x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * (1.0 + y.abs())
    };
    a.dtype() == b.dtype() && a.shape() == b.shape() && (0..a.len()).all(near)
}

/// Checks `f` over a batch of random examples.
pub fn check(name: &str, given: &[Given<'_>], f: impl Fn(&[Tensor]) -> Vec<Tensor>) {
    let mut rng = Rng::new(7);
    let mut data: Vec<Vec<HostTensor>> = vec![];
    for (dtype, shape, axis) in given {
        let count = if axis.is_some() { EXAMPLES } else { 1 };
        data.push((0..count).map(|_| random_tensor(&mut rng, *dtype, shape)).collect());
    }
    check_on(name, &data, &given.iter().map(|g| g.2).collect::<Vec<_>>(), f);
}

/// As [`check`], on these examples, one of an operand that all share.
pub fn check_on(name: &str, data: &[Vec<HostTensor>], axes: &[Option<usize>], f: impl Fn(&[Tensor]) -> Vec<Tensor>) {
    let one = Graph::new(name);
    let inputs: Vec<Tensor> = (data.iter().enumerate())
        .map(|(k, all)| one.input(&format!("x{k}"), all[0].dtype(), all[0].shape()))
        .collect();
    for (k, y) in f(&inputs).iter().enumerate() {
        one.output(&format!("y{k}"), y);
    }
    let one = one.finish().unwrap_or_else(|e| panic!("{name}: {e}"));

    let whole: Vec<HostTensor> = (data.iter().zip(axes))
        .map(|(all, axis)| axis.map_or_else(|| all[0].clone(), |axis| stacked(all, axis)))
        .collect();
    let g = Graph::new(name);
    let inputs: Vec<Tensor> = (whole.iter().enumerate())
        .map(|(k, t)| g.input(&format!("x{k}"), t.dtype(), t.shape()))
        .collect();
    let operands: Vec<(&Tensor, Option<i64>)> = (inputs.iter().zip(axes))
        .map(|(t, axis)| (t, axis.map(|a| a as i64)))
        .collect();
    for (k, y) in Vmap::new().shared_draws().map(&operands, &f).iter().enumerate() {
        g.output(&format!("y{k}"), y);
    }
    let batch = g.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = interpret(&batch, &whole, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}\n{batch}"));
    for e in 0..EXAMPLES {
        let own: Vec<HostTensor> = data.iter().map(|all| all[e.min(all.len() - 1)].clone()).collect();
        let expected = interpret(&one, &own, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let found = example(found, e);
            assert!(
                alike(&found, expected),
                "{name}: result {k} of example {e} is\n{found:?}, alone\n{expected:?}\n{batch}"
            );
        }
    }
    let compiled = compile_ir(&batch, &CompileOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let given: Vec<tlc::Input<'_>> = whole.iter().map(Into::into).collect();
    let run = compiled.run(&given).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (k, expected) in found.iter().enumerate() {
        let run = run[k].to_host();
        assert!(
            alike(&run, expected),
            "{name}: compiled, result {k} is {run:?}, interpreted {expected:?}"
        );
    }
}
