//! Means of a parameter over steps, which often serve better than its last value.

use tlc_ir::DType;

use crate::graph::Tensor;
use crate::graph::scope::{Step, record, refuse_expecting};

/// The mean of a parameter that forgets: `average + (1 - decay) * (parameter - average)`, and the parameter itself at step 1. The average has
/// the parameter's shape, and f32 or more.
///
/// # Errors
/// A decay outside 0 to 1, other shapes, a step that is no number without axes.
#[track_caller]
pub fn exponential(step: &Tensor, average: &Tensor, parameter: &Tensor, decay: f64) -> Tensor {
    let body = || {
        if !(0.0..=1.0).contains(&decay) {
            return refuse_expecting(format!("the decay {decay}"), "a number from 0 to 1");
        }
        let x = of_types(step, average, parameter)?;
        let moved = average + (&x - average) * (1.0 - decay);
        Ok(step.le(1).select(x, moved))
    };
    record(
        average.graph(),
        "exponential_average",
        &[step, average, parameter],
        &[format!("{decay}")],
        body,
        |p| p,
    )
}

/// The mean of a parameter over all steps so far (Izmailov et al., arXiv:1803.05407): `average + (parameter - average) / step`. `step` counts
/// the values that enter it, from 1.
///
/// ```
/// use tlc::{DType, Graph, optim::average};
///
/// let g = Graph::default();
/// let (second, average, w) = (g.scalar(2, DType::I64), g.constant([1.0f32]), g.constant([2.0f32]));
/// assert_eq!(average::equal(&second, &average, &w).eval()?.as_slice::<f32>()?, [1.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Other shapes, a step that is no number without axes.
#[track_caller]
pub fn equal(step: &Tensor, average: &Tensor, parameter: &Tensor) -> Tensor {
    let body = || {
        let x = of_types(step, average, parameter)?;
        Ok(average + (x - average) / step.to(DType::F64)?.to(average.dtype())?)
    };
    record(
        average.graph(),
        "equal_average",
        &[step, average, parameter],
        &[],
        body,
        |p| p,
    )
}

/// The parameter in the average's dtype.
fn of_types(step: &Tensor, average: &Tensor, parameter: &Tensor) -> Step {
    let differ = |(a, b): (&_, &_)| average.graph().differ(a, b);
    let shapes = average.rank() == parameter.rank() && !average.extents().iter().zip(parameter.extents()).any(differ);
    let floats = parameter.dtype().is_float() && average.dtype() == average.dtype().accumulator();
    if !shapes || !floats || !average.dtype().is_float() {
        return refuse_expecting(
            format!("an average {} of {}", average.type_text(), parameter.type_text()),
            "the parameter's shape, in f32 or f64",
        );
    }
    if step.rank() != 0 || !(step.dtype().is_int() || step.dtype().is_float()) {
        return refuse_expecting(format!("the step is {}", step.type_text()), "a number without axes");
    }
    parameter.to(average.dtype())
}
