//! Extents and shapes as arguments.
//!
//! A [`Dim`] is a number or an expression over the symbols of one graph; a Dim of another graph has no meaning. Anything
//! that is [`IntoShape`] can be given where a shape is wanted: `5`, `[2, 3]`, `&[usize]`, `Vec<Dim>`, `()` for rank 0, and
//! tuples that mix numbers and symbols: `(&batch, 28, 28)`.

use std::ops::{Add, Div, Mul, Rem, Sub};

use tlc_ir::IndexExpr;
use tlc_ir::graph::Shape;

/// An extent: a number, a symbol, or an expression over them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dim(pub(crate) IndexExpr);

impl Dim {
    /// The number, if it is one.
    pub fn as_const(&self) -> Option<i64> {
        self.0.as_const()
    }

    /// The expression in the graph language.
    pub fn expr(&self) -> &IndexExpr {
        &self.0
    }

    /// The smaller of two.
    pub fn min(&self, other: impl Into<Dim>) -> Dim {
        Dim(IndexExpr::min(&self.0, &other.into().0))
    }

    /// The larger of two.
    pub fn max(&self, other: impl Into<Dim>) -> Dim {
        Dim(IndexExpr::max(&self.0, &other.into().0))
    }

    /// Rounded up to a whole number of `divisor`s, counted in them. `divisor` must be positive.
    pub fn div_ceil(&self, divisor: i64) -> Dim {
        Dim(self.0.ceil_div(divisor))
    }
}

impl From<IndexExpr> for Dim {
    fn from(e: IndexExpr) -> Dim {
        Dim(e)
    }
}

impl From<&Dim> for Dim {
    fn from(d: &Dim) -> Dim {
        d.clone()
    }
}

macro_rules! dim_from {
    ($($t:ty),*) => { $(
        impl From<$t> for Dim {
            fn from(v: $t) -> Dim {
                Dim(IndexExpr::Const(i64::try_from(v).unwrap_or(i64::MAX)))
            }
        }
        impl From<&$t> for Dim {
            fn from(v: &$t) -> Dim {
                Dim::from(*v)
            }
        }
    )* };
}
dim_from!(i32, i64, u32, u64, usize, isize);

macro_rules! dim_arithmetic {
    ($($trait:ident $method:ident $f:expr, $doc:literal;)*) => { $(
        #[doc = $doc]
        impl<T: Into<Dim>> $trait<T> for Dim {
            type Output = Dim;
            fn $method(self, other: T) -> Dim {
                (&self).$method(other)
            }
        }
        #[doc = $doc]
        impl<T: Into<Dim>> $trait<T> for &Dim {
            type Output = Dim;
            fn $method(self, other: T) -> Dim {
                let f: fn(&IndexExpr, &IndexExpr) -> IndexExpr = $f;
                Dim(f(&self.0, &other.into().0))
            }
        }
    )* };
}
dim_arithmetic! {
    Add add |a, b| a.clone() + b.clone(), "Sum.";
    Sub sub |a, b| a.clone() - b.clone(), "Difference.";
    Mul mul |a, b| a.clone() * b.clone(), "Product.";
    Div div IndexExpr::floor_div, "Quotient, floored; the divisor must be positive.";
    Rem rem IndexExpr::modulo, "Remainder of the floored quotient; the divisor must be positive.";
}

/// What can be given as a shape.
pub trait IntoShape {
    /// The extents, outermost first.
    fn into_shape(self) -> Shape;
}

impl IntoShape for () {
    fn into_shape(self) -> Shape {
        Shape::new()
    }
}

impl IntoShape for Shape {
    fn into_shape(self) -> Shape {
        self
    }
}

impl<T: Into<Dim>, const N: usize> IntoShape for [T; N] {
    fn into_shape(self) -> Shape {
        self.into_iter().map(|d| d.into().0).collect()
    }
}

impl<T: Into<Dim>> IntoShape for Vec<T> {
    fn into_shape(self) -> Shape {
        self.into_iter().map(|d| d.into().0).collect()
    }
}

impl<T> IntoShape for &[T]
where
    for<'a> &'a T: Into<Dim>,
{
    fn into_shape(self) -> Shape {
        self.iter().map(|d| d.into().0).collect()
    }
}

impl<T, const N: usize> IntoShape for &[T; N]
where
    for<'a> &'a T: Into<Dim>,
{
    fn into_shape(self) -> Shape {
        self.as_slice().into_shape()
    }
}

impl<T> IntoShape for &Vec<T>
where
    for<'a> &'a T: Into<Dim>,
{
    fn into_shape(self) -> Shape {
        self.as_slice().into_shape()
    }
}

macro_rules! shape_from_one {
    ($($t:ty),*) => { $(impl IntoShape for $t {
        fn into_shape(self) -> Shape {
            [self].into_shape()
        }
    })* };
}
shape_from_one!(Dim, &Dim, i32, i64, u32, u64, usize, isize);

macro_rules! shape_from_tuple {
    ($($($t:ident)+;)*) => { $(
        impl<$($t: Into<Dim>),+> IntoShape for ($($t,)+) {
            #[allow(non_snake_case)]
            fn into_shape(self) -> Shape {
                let ($($t,)+) = self;
                Shape::from_iter([$($t.into().0),+])
            }
        }
    )* };
}
shape_from_tuple! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

/// Axes to work on, counted from 0 or, when negative, from the end: `..` for all, `1`, `-1`, `[0, 2]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axes {
    list: Option<Vec<i64>>,
    keep: bool,
}

/// The same axes, kept with extent 1 by a reduction: `x.sum(keep(-1))` (NumPy's `keepdims=True`).
pub fn keep(axes: impl Into<Axes>) -> Axes {
    Axes {
        keep: true,
        ..axes.into()
    }
}

impl Axes {
    /// Whether a reduction keeps the axes with extent 1.
    pub fn keeps(&self) -> bool {
        self.keep
    }

    /// True for `..`.
    pub fn is_all(&self) -> bool {
        self.list.is_none()
    }

    /// The axes of a tensor of that rank, in the order given; `Err` is the first that does not exist or is given twice.
    pub(crate) fn resolve(&self, rank: usize) -> Result<Vec<usize>, (i64, bool)> {
        let Some(list) = &self.list else {
            return Ok((0..rank).collect());
        };
        let mut axes = Vec::with_capacity(list.len());
        for &a in list {
            let axis = resolve_axis(a, rank).ok_or((a, false))?;
            if axes.contains(&axis) {
                return Err((a, true));
            }
            axes.push(axis);
        }
        Ok(axes)
    }
}

/// An axis counted from 0, or `None` if there is no such axis.
#[doc(hidden)]
pub fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    let from_zero = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&from_zero).then_some(from_zero as usize)
}

impl From<std::ops::RangeFull> for Axes {
    fn from(_: std::ops::RangeFull) -> Axes {
        Axes {
            list: None,
            keep: false,
        }
    }
}

impl From<&Axes> for Axes {
    fn from(axes: &Axes) -> Axes {
        axes.clone()
    }
}

macro_rules! axes_from {
    ($($t:ty),*) => { $(
        impl From<$t> for Axes {
            fn from(axis: $t) -> Axes {
                Axes { list: Some(vec![axis as i64]), keep: false }
            }
        }
        impl<const N: usize> From<[$t; N]> for Axes {
            fn from(axes: [$t; N]) -> Axes {
                Axes { list: Some(axes.iter().map(|&a| a as i64).collect()), keep: false }
            }
        }
        impl From<&[$t]> for Axes {
            fn from(axes: &[$t]) -> Axes {
                Axes { list: Some(axes.iter().map(|&a| a as i64).collect()), keep: false }
            }
        }
        impl From<Vec<$t>> for Axes {
            fn from(axes: Vec<$t>) -> Axes {
                Axes::from(&axes[..])
            }
        }
    )* };
}
axes_from!(i32, i64, usize);
