//! Whether a result lies within its bounds, and what to say where it does not.

use std::fmt;

use super::{Bounded, approx};
use crate::dtype::{DType, Scalar};
use crate::tensor::HostTensor;

/// Why a result is not a right implementation's.
#[derive(Clone, PartialEq, Debug)]
pub enum Mismatch {
    /// Another type than expected.
    Type {
        /// Expected dtype and extents.
        expected: (DType, Vec<usize>),
        /// Found dtype and extents.
        found: (DType, Vec<usize>),
    },
    /// Elements outside their bounds.
    Element {
        /// Index of the first.
        index: Vec<usize>,
        /// What was computed.
        actual: Scalar,
        /// The value, printed exactly.
        expected: String,
        /// The bound on the difference.
        error: f64,
        /// The sum of absolute terms.
        magnitude: f64,
        /// How many elements are outside.
        count: usize,
        /// How many there are.
        of: usize,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Type { expected, found } => write!(
                f,
                "found {}{:?}; expected {}{:?}",
                found.0, found.1, expected.0, expected.1
            ),
            Mismatch::Element {
                index,
                actual,
                expected,
                error,
                magnitude,
                count,
                of,
            } => {
                write!(f, "element {index:?} is {actual}; expected {expected}")?;
                if *error != 0.0 {
                    write!(
                        f,
                        " ± {error:e} (off by {:e}",
                        (actual.as_f64() - expected.parse().unwrap_or(f64::NAN)).abs()
                    )?;
                    write!(f, ", absolute terms {magnitude:e})")?;
                }
                write!(f, "; {count} of {of} elements are outside their bounds")
            }
        }
    }
}

impl std::error::Error for Mismatch {}

/// Whether `actual` may be the result of a right implementation. NaN equals NaN, an infinity itself, a zero any zero.
///
/// # Errors
/// [`Mismatch`], naming the first element outside its bounds.
pub fn compare(actual: &HostTensor, expected: &Bounded) -> Result<(), Mismatch> {
    if actual.dtype() != expected.dtype || actual.shape() != expected.shape {
        return Err(Mismatch::Type {
            expected: (expected.dtype, expected.shape.clone()),
            found: (actual.dtype(), actual.shape().to_vec()),
        });
    }
    let mut first = None;
    let mut count = 0;
    for i in 0..actual.len() {
        let (found, error) = (actual.get(i), expected.error[i]);
        if error == f64::INFINITY {
            continue;
        }
        let fits = match &expected.exact {
            Some(t) => t.get(i) == found,
            None => {
                let (a, v) = (found.as_f64(), expected.value[i]);
                let slack = if error == 0.0 {
                    0.0
                } else {
                    4.0 * approx::smallest(expected.dtype)
                };
                a == v || (a.is_nan() && v.is_nan()) || (a - v).abs() <= error + slack
            }
        };
        if !fits {
            count += 1;
            first = first.or(Some(i));
        }
    }
    let Some(at) = first else { return Ok(()) };
    let mut index = vec![0; expected.shape.len()];
    let mut rest = at;
    for (slot, d) in index.iter_mut().zip(&expected.shape).rev() {
        *slot = rest % d;
        rest /= d;
    }
    Err(Mismatch::Element {
        index,
        actual: actual.get(at),
        expected: match &expected.exact {
            Some(t) => t.get(at).to_string(),
            None => format!("{:?}", expected.value[at]),
        },
        error: expected.error[at],
        magnitude: expected.magnitude[at],
        count,
        of: actual.len(),
    })
}
