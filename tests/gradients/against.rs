//! Derivatives against central finite differences: by the interpreter, and the compiled graph against that. Forward mode is held to being
//! the transpose of what was compared so.

use tlc::ir::interp::{Options, interpret};
use tlc::ir::rng::Rng;
use tlc::{CompileOptions, DType, Graph, HostTensor, Tensor, compile_ir, jvp, vjp};

/// The distance of the two points of a difference from the middle.
const STEP: f64 = 1e-5;

/// How far a derivative may be off, beside 1 or its size.
const TOLERANCE: f64 = 1e-6;

/// An input: its extents, and the range that its elements are drawn from.
pub type Given<'a> = (&'a [usize], f64, f64);

/// Elements of an input, all different.
pub fn elements(given: &Given<'_>, seed: u64) -> Vec<f64> {
    let (shape, lo, hi) = given;
    let mut rng = Rng::new(seed);
    (0..shape.iter().product())
        .map(|_| lo + (hi - lo) * rng.unit())
        .collect()
}

/// A host tensor of f64.
pub fn host(shape: &[usize], data: &[f64]) -> HostTensor {
    HostTensor::from_slice(shape, data).expect("as many elements as the shape has")
}

/// Interprets a graph of f64 results.
pub fn interpreted(graph: &tlc::ir::Graph, inputs: &[HostTensor]) -> Vec<Vec<f64>> {
    let all = interpret(graph, inputs, &Options::default()).expect("the graph can be interpreted");
    let floats = |t: &HostTensor| (0..t.len()).map(|i| t.get(i).as_f64()).collect();
    all.iter().map(floats).collect()
}

/// Checks the derivatives of `f`, each of whose results gets a cotangent, by all inputs.
pub fn check(name: &str, given: &[Given<'_>], f: impl Fn(&Graph, &[Tensor]) -> Tensor) {
    let inputs: Vec<HostTensor> = (given.iter().enumerate())
        .map(|(k, g)| host(g.0, &elements(g, 7 + k as u64)))
        .collect();
    check_on(name, &inputs, f);
}

/// As [`check`], on inputs with these elements.
pub fn check_on(name: &str, inputs: &[HostTensor], f: impl Fn(&Graph, &[Tensor]) -> Tensor) {
    let g = Graph::new(name);
    let x: Vec<Tensor> = (inputs.iter().enumerate())
        .map(|(k, t)| g.input(&format!("x{k}"), DType::F64, t.shape()))
        .collect();
    let y = f(&g, &x);
    check_recorded(name, &g, &x, &y, inputs);
}

/// As [`check`], of a result that is recorded.
pub fn check_recorded(name: &str, g: &Graph, x: &[Tensor], y: &Tensor, inputs: &[HostTensor]) {
    let values = g.extract(&[("y", y)]).unwrap_or_else(|e| panic!("{name}: {e}"));
    let y0 = interpret(&values, inputs, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let weights = host(y0[0].shape(), &elements(&(y0[0].shape(), 0.5, 1.5), 99));
    let by: Vec<&Tensor> = x.iter().collect();
    let cotangent = g.constant(weights.clone()).expand(y.shape());
    let d = vjp(&[y], &[&cotangent], &by);
    for (d, x) in d.iter().zip(x) {
        assert_eq!(d.ty(), x.ty(), "{name}: the derivative has the type of what it is by");
    }
    let moves: Vec<HostTensor> = (inputs.iter().enumerate())
        .map(|(k, x)| host(x.shape(), &elements(&(x.shape(), -1.0, 1.0), 1000 + k as u64)))
        .collect();
    let tangents: Vec<Tensor> = (moves.iter().zip(x))
        .map(|(t, x)| g.constant(t.clone()).expand(x.shape()))
        .collect();
    let along = jvp(&[y], &by, &tangents.iter().collect::<Vec<_>>());
    assert_eq!(along[0].ty(), y.ty(), "{name}: the tangent has the type of its value");
    let names: Vec<String> = (0..=d.len()).map(|k| format!("d{k}")).collect();
    let outputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(d.iter().chain(&along)).collect();
    let gradient = g.extract(&outputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = interpreted(&gradient, inputs);

    let weighted = |y: &[f64]| -> f64 { y.iter().enumerate().map(|(i, y)| y * weights.get(i).as_f64()).sum() };
    let dot = |(d, t): (&Vec<f64>, &HostTensor)| -> f64 { (0..t.len()).map(|i| d[i] * t.get(i).as_f64()).sum() };
    let expected: f64 = found.iter().zip(&moves).map(dot).sum();
    let forwards = weighted(&found[inputs.len()]);
    assert!(
        (forwards - expected).abs() <= 1e-9 * (1.0 + expected.abs()),
        "{name}: {forwards} along a direction, by the gradient {expected}\n{gradient}"
    );
    let value = |inputs: &[HostTensor]| -> f64 { weighted(&interpreted(&values, inputs)[0]) };
    for (k, (x, found)) in inputs.iter().zip(&found).enumerate() {
        for (i, derivative) in found.iter().enumerate() {
            let moved = |by: f64| {
                let mut all = inputs.to_vec();
                let at = x.get(i).as_f64() + by;
                all[k].set(i, tlc::Scalar::from_f64(DType::F64, at));
                value(&all)
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            assert!(
                (derivative - expected).abs() <= TOLERANCE * (1.0 + expected.abs()),
                "{name}: d{k}[{i}] is {derivative}, by differences {expected}\n{gradient}"
            );
        }
    }
    let compiled = compile_ir(&gradient, &CompileOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
    let run = compiled.run(&given).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (k, expected) in found.iter().enumerate() {
        let run = run[k].as_slice::<f64>().expect("f64");
        for (i, (a, b)) in run.iter().zip(expected).enumerate() {
            assert!(
                (a - b).abs() <= 1e-9 * (1.0 + b.abs()) || (a.is_nan() && b.is_nan()),
                "{name}: compiled, d{k}[{i}] is {a}, interpreted {b}\n{gradient}"
            );
        }
    }
}
