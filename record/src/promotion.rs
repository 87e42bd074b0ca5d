//! Operands of one operation brought to one dtype and one shape.
//!
//! **Tensors** promote to the least dtype that both have above them:
//!
//! - `bool` is below every number, every integer below every float;
//! - integers of one signedness: the wider. Signed with unsigned: the narrowest signed one that holds both, and `i64` where
//!   none does (`u64` with a signed integer), as in JAX's integer lattice; such a sum wraps;
//! - integer with float: that float; `f16` with `bf16`: `f32`; otherwise the wider float.
//!
//! **Rust scalars** are weak, as in JAX and PyTorch: they take the tensor's dtype and never widen it. A float beside a bool
//! or integer tensor makes both `f32`, an integer beside a bool tensor makes both `i64`. An integer that the tensor's
//! dtype cannot hold is an error. A [`tlc_ir::Scalar`] is not weak: it has a dtype and promotes like a tensor.
//!
//! **Functions that are float by nature** (`exp`, `/`, `mean`, …) turn bool and integer tensors to `f32` first.
//!
//! **Storage types** do not promote: beside any other dtype they are refused, and arithmetic refuses them. Convert them.
//!
//! **Shapes** broadcast as in NumPy: aligned at the right, an extent that is literally 1 repeats. A symbolic extent is never
//! taken for 1; two unequal extents that could be equal are assumed to be, which records a guard.

use std::fmt;

use tlc_ir::graph::{NodeKind, Shape};
use tlc_ir::{DType, IndexExpr, Scalar, ScalarOp};

use crate::graph::Graph;
use crate::graph::Tensor;
use crate::graph::scope::{Step, record, refuse_expecting};

/// The dtype that values of both dtypes convert to before they meet. Of a storage type and any other, the storage type,
/// which no operation that promotes takes.
pub fn promote(a: DType, b: DType) -> DType {
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    match (low, high) {
        _ if a == b => a,
        (_, storage) if storage.is_storage() => storage,
        (DType::Bool, d) => d,
        (DType::F16, DType::BF16) => DType::F32,
        // Declaration order is bool, signed, unsigned, floats, each by width.
        (l, h) if h.is_float() && l.is_float() => h,
        (_, h) if h.is_float() => h,
        (l, h) if l.is_signed_int() == h.is_signed_int() => h,
        (signed, unsigned) => {
            let wanted = signed.bits().max(2 * unsigned.bits());
            match wanted {
                16 => DType::I16,
                32 => DType::I32,
                _ => DType::I64,
            }
        }
    }
}

/// The dtype in which a function that is float by nature computes: floats themselves, f32 for the rest. A storage type stays,
/// to be refused.
pub(crate) fn float_of(dtype: DType) -> DType {
    match dtype.is_float() || dtype.is_storage() {
        true => dtype,
        false => DType::F32,
    }
}

/// An operand of an elementwise operation: a tensor or a scalar.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A tensor.
    Tensor(Tensor),
    /// A scalar that takes the other operand's dtype.
    Weak(Weak),
    /// A scalar with a dtype of its own.
    Scalar(Scalar),
}

/// A Rust scalar.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Weak {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
}

impl fmt::Display for Weak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weak::Bool(v) => write!(f, "{v}"),
            Weak::Int(v) => write!(f, "{v}"),
            Weak::Float(v) => write!(f, "{v:?}"),
        }
    }
}

impl Weak {
    /// The dtype of the result beside a tensor of `dtype`.
    fn beside(self, dtype: DType) -> DType {
        match self {
            Weak::Bool(_) => dtype,
            Weak::Int(_) if dtype == DType::Bool => DType::I64,
            Weak::Int(_) => dtype,
            Weak::Float(_) => float_of(dtype),
        }
    }

    /// The scalar in that dtype.
    pub(crate) fn of(self, dtype: DType) -> Step<Scalar> {
        Ok(match self {
            Weak::Bool(v) => Scalar::from_i64(dtype, v as i64),
            Weak::Float(v) if dtype.is_storage() && !dtype.is_storage_float() => {
                return refuse_expecting(
                    format!("{v:?} beside the storage type {dtype}"),
                    "an integer (convert it first)",
                );
            }
            Weak::Float(v) => Scalar::from_f64(dtype, v),
            Weak::Int(v) => {
                let value = match (i64::try_from(v), u64::try_from(v)) {
                    (Ok(v), _) => Scalar::from_i64(dtype, v),
                    (_, Ok(v)) => Scalar::from_u64(dtype, v),
                    _ => Scalar::from_f64(dtype, v as f64),
                };
                let fits = match dtype {
                    d if d.is_signed_int() => value.as_i64() as i128 == v,
                    d if d.is_unsigned_int() => value.bits() as i128 == v,
                    d if d.is_storage() => value.as_f64() == v as f64,
                    _ => true,
                };
                if !fits {
                    let (lowest, highest) = (dtype.lowest(), dtype.highest());
                    return refuse_expecting(format!("{v} does not fit {dtype}"), format!("{lowest} to {highest}"));
                }
                value
            }
        })
    }
}

impl From<Tensor> for Operand {
    fn from(t: Tensor) -> Operand {
        Operand::Tensor(t)
    }
}
impl From<&Tensor> for Operand {
    fn from(t: &Tensor) -> Operand {
        Operand::Tensor(t.clone())
    }
}
impl From<Scalar> for Operand {
    fn from(s: Scalar) -> Operand {
        Operand::Scalar(s)
    }
}
impl From<bool> for Weak {
    fn from(v: bool) -> Weak {
        Weak::Bool(v)
    }
}

macro_rules! weak_from {
    ($variant:ident $as:ty: $($t:ty),*) => { $(
        impl From<$t> for Weak {
            fn from(v: $t) -> Weak {
                Weak::$variant(v as $as)
            }
        }
    )* };
}
weak_from!(Int i128: i8, i16, i32, i64, u8, u16, u32, u64, usize, isize);
weak_from!(Float f64: f32, f64);

impl From<half::f16> for Weak {
    fn from(v: half::f16) -> Weak {
        Weak::Float(v.to_f64())
    }
}
impl From<half::bf16> for Weak {
    fn from(v: half::bf16) -> Weak {
        Weak::Float(v.to_f64())
    }
}

macro_rules! operand_from {
    ($($t:ty),*) => { $(
        impl From<$t> for Operand {
            fn from(v: $t) -> Operand {
                Operand::Weak(v.into())
            }
        }
    )* };
}
operand_from!(
    bool,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    usize,
    isize,
    f32,
    f64,
    half::f16,
    half::bf16,
    Weak
);

impl Operand {
    fn tensor(&self) -> Option<&Tensor> {
        match self {
            Operand::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// Its dtype, if it has one of its own.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match self {
            Operand::Tensor(t) => Some(t.dtype()),
            Operand::Scalar(s) => Some(s.dtype()),
            Operand::Weak(_) => None,
        }
    }

    fn text(&self) -> Option<String> {
        match self {
            Operand::Tensor(_) => None,
            Operand::Scalar(s) => Some(format!("{} {s}", s.dtype())),
            Operand::Weak(w) => Some(w.to_string()),
        }
    }

    /// The operand as a tensor of that dtype.
    fn with_dtype(&self, graph: &Graph, dtype: DType) -> Step {
        match self {
            Operand::Tensor(t) => t.to(dtype),
            Operand::Scalar(s) => graph.node(NodeKind::Const(s.convert(dtype)), &[]),
            Operand::Weak(w) => graph.node(NodeKind::Const(w.of(dtype)?), &[]),
        }
    }
}

/// The dtype that all operands convert to; at least one has a dtype of its own.
pub(crate) fn common_dtype(operands: &[Operand]) -> DType {
    let strong = operands.iter().filter_map(Operand::dtype).reduce(promote);
    let strong = strong.unwrap_or(DType::F32);
    operands.iter().fold(strong, |d, o| match o {
        Operand::Weak(w) => w.beside(d),
        _ => d,
    })
}

/// The shape that all shapes broadcast to.
pub(crate) fn broadcast_shape(graph: &Graph, shapes: &[&[IndexExpr]]) -> Step<Shape> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut result = Shape::from_elem(IndexExpr::ONE, rank);
    // As that of a first row: what it meets decides, of which it is repeated for each.
    let at_most_one = |d: &IndexExpr| graph.with_ir(|ir| d.interval(ir)).hi <= 1;
    for shape in shapes {
        let lead = rank - shape.len();
        for (axis, d) in shape.iter().enumerate() {
            let r = &mut result[lead + axis];
            if d.is(1) || d == r {
                continue;
            }
            if r.is(1) {
                *r = d.clone();
            } else if graph.differ(r, d) {
                let (a, b) = (graph.dim_text(r), graph.dim_text(d));
                return refuse_expecting(
                    format!(
                        "extents {a} and {b} of axis {} differ",
                        axis as i64 - shape.len() as i64
                    ),
                    "equal extents, or 1",
                );
            } else if r.as_const().is_none() && (d.as_const().is_some() || at_most_one(r) && !at_most_one(d)) {
                *r = d.clone();
            }
        }
    }
    Ok(result)
}

/// The tensors repeated to one shape.
pub(crate) fn broadcast(graph: &Graph, tensors: &[Tensor]) -> Step<Vec<Tensor>> {
    let shapes: Vec<&[IndexExpr]> = tensors.iter().map(|t| t.extents()).collect();
    let shape = broadcast_shape(graph, &shapes)?;
    tensors.iter().map(|t| t.expanded(&shape)).collect()
}

/// The operands as tensors of one shape and of the dtype that `dtype` makes of the common one.
pub(crate) fn unify(graph: &Graph, operands: &[Operand], dtype: impl FnOnce(DType) -> DType) -> Step<Vec<Tensor>> {
    let common = common_dtype(operands);
    let dtype = dtype(common);
    if let Some(found) = operands
        .iter()
        .filter_map(Operand::dtype)
        .find(|d| d.is_storage() && *d != dtype)
    {
        return refuse_expecting(
            format!("{found} is a storage type"),
            "a dtype that is computed in (convert it first)",
        );
    }
    if dtype.is_storage()
        && let Some(other) = operands.iter().filter_map(Operand::dtype).find(|d| *d != dtype)
    {
        return refuse_expecting(
            format!("{other} beside the storage type {dtype}"),
            "one dtype (convert it first)",
        );
    }
    let converted: Vec<Tensor> = operands
        .iter()
        .map(|o| o.with_dtype(graph, dtype))
        .collect::<Step<_>>()?;
    broadcast(graph, &converted)
}

/// Records an operation over tensors and scalars, of which at least one is a tensor.
#[track_caller]
pub(crate) fn elementwise(name: &str, operands: &[Operand], body: impl FnOnce(&Graph) -> Step) -> Tensor {
    let tensors: Vec<&Tensor> = operands.iter().filter_map(Operand::tensor).collect();
    let graph = tensors.first().expect("scalars alone belong to no graph").graph();
    let scalars: Vec<String> = operands.iter().filter_map(Operand::text).collect();
    record(graph, name, &tensors, &scalars, || body(graph), |p| p)
}

/// A two-operand operation after promotion (to `dtype` of the common dtype) and broadcasting.
#[track_caller]
pub(crate) fn binary(name: &str, a: Operand, b: Operand, dtype: fn(DType) -> DType, op: ScalarOp) -> Tensor {
    let operands = [a, b];
    elementwise(name, &operands, |graph| {
        let both = unify(graph, &operands, dtype)?;
        both[0].map2(op, &both[1])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_a_commutative_associative_join() {
        for a in DType::ALL {
            assert_eq!(promote(a, a), a);
            for b in DType::ALL {
                assert_eq!(promote(a, b), promote(b, a));
                for c in DType::ALL {
                    let (left, right) = (promote(promote(a, b), c), promote(a, promote(b, c)));
                    assert_eq!(left, right, "{a} {b} {c}");
                }
            }
        }
    }

    #[test]
    fn promotion_follows_the_documented_lattice() {
        use DType::*;
        let table = [
            (Bool, I8, I8),
            (Bool, F16, F16),
            (I8, U8, I16),
            (I32, U8, I32),
            (I8, U32, I64),
            (I64, U64, I64),
            (U8, U64, U64),
            (I64, F16, F16),
            (F16, BF16, F32),
            (F32, F64, F64),
            (BF16, F64, F64),
        ];
        for (a, b, want) in table {
            assert_eq!(promote(a, b), want, "{a} {b}");
        }
    }
}
