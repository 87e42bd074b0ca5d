//! How values are combined: by reductions and scans, by contractions, by scatters.

use crate::dtype::{DType, Scalar};
use crate::scalar::ScalarOp;

/// An associative operation with an identity, along which tensors are reduced or scanned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Monoid {
    /// Sum; identity 0.
    Add,
    /// Product; identity 1.
    Mul,
    /// Maximum, NaN wins; identity the dtype's lowest.
    Max,
    /// Minimum, NaN wins; identity the dtype's highest.
    Min,
    /// Conjunction (bitwise on integers); identity all ones.
    And,
    /// Disjunction (bitwise on integers); identity 0.
    Or,
    /// Index of the maximum: the first wins, NaN wins. Result i64. No identity: the axis must not be empty.
    ArgMax,
    /// Index of the minimum: the first wins, NaN wins. Result i64. No identity: the axis must not be empty.
    ArgMin,
}

impl Monoid {
    /// Every monoid.
    pub const ALL: [Monoid; 8] = [
        Monoid::Add,
        Monoid::Mul,
        Monoid::Max,
        Monoid::Min,
        Monoid::And,
        Monoid::Or,
        Monoid::ArgMax,
        Monoid::ArgMin,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Monoid::Add => "add",
            Monoid::Mul => "mul",
            Monoid::Max => "max",
            Monoid::Min => "min",
            Monoid::And => "and",
            Monoid::Or => "or",
            Monoid::ArgMax => "argmax",
            Monoid::ArgMin => "argmin",
        }
    }

    /// The monoid of that name.
    pub fn from_name(name: &str) -> Option<Monoid> {
        Monoid::ALL.into_iter().find(|m| m.name() == name)
    }

    /// True for argmax and argmin, whose state is a value and an index.
    pub const fn is_arg(self) -> bool {
        matches!(self, Monoid::ArgMax | Monoid::ArgMin)
    }

    /// The scalar operation that combines two values; for argmax and argmin the one that picks the value.
    pub const fn combine(self) -> ScalarOp {
        match self {
            Monoid::Add => ScalarOp::Add,
            Monoid::Mul => ScalarOp::Mul,
            Monoid::Max | Monoid::ArgMax => ScalarOp::Max,
            Monoid::Min | Monoid::ArgMin => ScalarOp::Min,
            Monoid::And => ScalarOp::And,
            Monoid::Or => ScalarOp::Or,
        }
    }

    /// The neutral value (for argmax and argmin, of the value part).
    pub fn identity(self, dtype: DType) -> Scalar {
        match self {
            Monoid::Add | Monoid::Or => dtype.zero(),
            Monoid::Mul => dtype.one(),
            Monoid::Max | Monoid::ArgMax => dtype.lowest(),
            Monoid::Min | Monoid::ArgMin => dtype.highest(),
            Monoid::And => Scalar::from_bits(dtype, u64::MAX),
        }
    }
}

/// The two operations of an einsum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Semiring {
    /// Sums of products.
    AddMul,
    /// Maxima of sums (longest paths).
    MaxAdd,
    /// Minima of sums (shortest paths).
    MinAdd,
    /// Maxima of products.
    MaxMul,
    /// Disjunctions of conjunctions, on bool.
    OrAnd,
    /// Sums of what two words of four bytes each make, on i32 ([`ScalarOp::Dot4`]): four steps of a sum of products of bytes in one. Not
    /// commutative, and of two operands only.
    AddDot4,
}

impl Semiring {
    /// Every semiring.
    pub const ALL: [Semiring; 6] = [
        Semiring::AddMul,
        Semiring::MaxAdd,
        Semiring::MinAdd,
        Semiring::MaxMul,
        Semiring::OrAnd,
        Semiring::AddDot4,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Semiring::AddMul => "add-mul",
            Semiring::MaxAdd => "max-add",
            Semiring::MinAdd => "min-add",
            Semiring::MaxMul => "max-mul",
            Semiring::OrAnd => "or-and",
            Semiring::AddDot4 => "add-dot4",
        }
    }

    /// The semiring of that name.
    pub fn from_name(name: &str) -> Option<Semiring> {
        Semiring::ALL.into_iter().find(|s| s.name() == name)
    }

    /// How terms are summed.
    pub const fn sum(self) -> Monoid {
        match self {
            Semiring::AddMul | Semiring::AddDot4 => Monoid::Add,
            Semiring::MaxAdd | Semiring::MaxMul => Monoid::Max,
            Semiring::MinAdd => Monoid::Min,
            Semiring::OrAnd => Monoid::Or,
        }
    }

    /// How operands are multiplied.
    pub const fn product(self) -> ScalarOp {
        match self {
            Semiring::AddMul | Semiring::MaxMul => ScalarOp::Mul,
            Semiring::MaxAdd | Semiring::MinAdd => ScalarOp::Add,
            Semiring::OrAnd => ScalarOp::And,
            Semiring::AddDot4 => ScalarOp::Dot4,
        }
    }
}

/// How scatter combines an update with what is there. Updates apply in C order of the index space, out-of-range ones are
/// dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ScatterOp {
    /// Overwrite: the last update wins.
    Set,
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
}

impl ScatterOp {
    /// Every scatter operation.
    pub const ALL: [ScatterOp; 5] = [
        ScatterOp::Set,
        ScatterOp::Add,
        ScatterOp::Mul,
        ScatterOp::Max,
        ScatterOp::Min,
    ];

    /// The spelling in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            ScatterOp::Set => "set",
            ScatterOp::Add => "add",
            ScatterOp::Mul => "mul",
            ScatterOp::Max => "max",
            ScatterOp::Min => "min",
        }
    }

    /// The combining operation; `None` for `Set`.
    pub const fn combine(self) -> Option<ScalarOp> {
        match self {
            ScatterOp::Set => None,
            ScatterOp::Add => Some(ScalarOp::Add),
            ScatterOp::Mul => Some(ScalarOp::Mul),
            ScatterOp::Max => Some(ScalarOp::Max),
            ScatterOp::Min => Some(ScalarOp::Min),
        }
    }
}
