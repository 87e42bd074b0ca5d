//! What `tests/reference/optimizers.py` recorded, and its formulas.

use serde_json::Value;
use tlc::optim::Optimizer;
use tlc::{CompileOptions, DType, Executable, Graph, Input};

/// The whole recording.
pub fn recorded() -> Value {
    serde_json::from_str(include_str!("../reference/optimizers.json")).unwrap()
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Whole numbers: extents, steps.
pub fn counts(value: &Value) -> Vec<usize> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap() as usize)
        .collect()
}

/// The parameter before step 1.
pub fn first(n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 29) % 17) as f64 / 8.0 - 1.0).collect()
}

/// The gradient of step `t`.
pub fn gradient(n: usize, t: usize) -> Vec<f64> {
    (0..n)
        .map(|i| ((i * 37 + t * t * 13 + t * 11) % 101) as f64 / 50.0 - 0.8)
        .collect()
}

/// Checks numbers to a part of them, or of a thousandth.
pub fn close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (k, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1e-3),
            "{what}, number {k}: {a}, expected {b}"
        );
    }
}

/// A step of an optimizer on a parameter, compiled: `step`, `p`, `g` and the slots go in; the parameter and the slots come out.
pub fn step_of(optimizer: &Optimizer, dtype: DType, shape: &[usize]) -> Executable {
    let g = Graph::new("step");
    let step = g.input("step", DType::I64, ());
    let (p, d) = (g.input("p", dtype, shape), g.input("g", dtype, shape));
    let slots = optimizer.slots(dtype, &p.shape());
    let slots: Vec<_> = slots
        .iter()
        .map(|s| (s.name, g.input(s.name, s.dtype, s.shape.clone())))
        .collect();
    let (next, moved) = optimizer.update(&step, &p, &d, &slots.iter().map(|(_, t)| t).collect::<Vec<_>>());
    g.output("p", &next);
    moved.iter().zip(&slots).for_each(|(t, (name, _))| g.output(name, t));
    g.compile(&CompileOptions::default())
        .unwrap_or_else(|e| panic!("{optimizer}: {e}"))
}

/// What the slots of an optimizer are before step 1.
pub fn first_slots(optimizer: &Optimizer, dtype: DType, shape: &[usize]) -> Vec<Input<'static>> {
    let g = Graph::default();
    let shape: Vec<tlc::Dim> = shape.iter().map(|&n| n.into()).collect();
    let slots = optimizer.slots(dtype, &shape);
    slots.iter().map(|s| s.first_value(&g).eval().unwrap().into()).collect()
}
