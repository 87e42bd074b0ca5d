//! Slices, flips and rolls.
//!
//! A [`Slice`] says what is taken of one axis. Ranges of integers count from the end where negative, as in Python; unlike
//! Python, an end that leaves the axis is an error, not clipped. `x.slice((1.., ..-1, s(..).step(2), 3))` takes from the
//! second row on, all but the last column, every other layer, and element 3 of the fourth axis, which disappears; further
//! axes are taken whole.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use tlc_ir::IndexExpr;
use tlc_ir::graph::View;

use crate::dim::Dim;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};

/// What is taken of one axis: a range with a step, or one element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice {
    start: Option<IndexExpr>,
    stop: Option<IndexExpr>,
    step: i64,
    single: bool,
}

/// A slice from anything that is one: a range or an index.
pub fn s(slice: impl Into<Slice>) -> Slice {
    slice.into()
}

impl Slice {
    const ALL: Slice = Slice {
        start: None,
        stop: None,
        step: 1,
        single: false,
    };

    /// From `start` to, not including, `stop`, each a number or a size: what `start..stop` cannot say where only one of the
    /// two is a size. [`s!`](crate::s!) writes it so.
    pub fn between(start: impl Into<Dim>, stop: impl Into<Dim>) -> Slice {
        Slice::from(start.into()..stop.into())
    }

    /// As [`Slice::between`], with the last element.
    pub fn through(start: impl Into<Dim>, last: impl Into<Dim>) -> Slice {
        Slice::from(start.into()..=last.into())
    }

    /// From `start` down to, not including, `stop`.
    pub fn down(start: impl Into<Dim>, stop: impl Into<Dim>) -> Slice {
        Slice::from(start.into()..stop.into()).step(-1)
    }

    /// Every `step`-th element of the range. A negative step goes from `start` down to, not including, `stop`; open ends
    /// are then the last and the first element.
    pub fn step(mut self, step: i64) -> Slice {
        self.step = step;
        self
    }
}

/// Slices as an array: ranges whose ends may be a number and a size (`1..&w - 1`), with steps after a semicolon, and indices.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs, s};
///
/// let g = Graph::new("inner");
/// let w = g.symbol("w", 2..=100);
/// let x = g.input("x", DType::F32, (2, &w));
/// g.output("y", &x.slice(s![-1, 1..&w - 1]));
/// g.output("odd", &x.slice(s![.., 1..; 2]));
/// let inner = g.compile(&CompileOptions::default())?;
/// let outputs = inner.run(&inputs![&[[0.0f32; 5], [1.0, 2.0, 3.0, 4.0, 5.0]]])?;
/// assert_eq!(outputs["y"].as_slice::<f32>()?, [2.0, 3.0, 4.0]);
/// assert_eq!(outputs["odd"].as_slice::<f32>()?, [0.0, 0.0, 2.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! s {
    // The first brackets hold the slices that are complete, the next ones the tokens of the one being read.
    (@start [$($done:tt)*] []) => { [$($done)*] };
    (@start [$($done:tt)*] [$($at:tt)+]) => { [$($done)* $crate::Slice::from($($at)+)] };
    (@start [$($done:tt)*] [$($at:tt)+] , $($rest:tt)*) => {
        $crate::s!(@start [$($done)* $crate::Slice::from($($at)+),] [] $($rest)*)
    };
    (@start $done:tt $from:tt ..= $($rest:tt)*) => { $crate::s!(@stop through $done $from [] $($rest)*) };
    (@start $done:tt $from:tt .. $($rest:tt)*) => { $crate::s!(@stop between $done $from [] $($rest)*) };
    (@start $done:tt [$($from:tt)*] $next:tt $($rest:tt)*) => {
        $crate::s!(@start $done [$($from)* $next] $($rest)*)
    };
    (@stop $how:ident [$($done:tt)*] $from:tt $to:tt) => { [$($done)* $crate::s!(@range $how $from $to)] };
    (@stop $how:ident [$($done:tt)*] $from:tt $to:tt , $($rest:tt)*) => {
        $crate::s!(@start [$($done)* $crate::s!(@range $how $from $to),] [] $($rest)*)
    };
    (@stop $how:ident [$($done:tt)*] $from:tt $to:tt ; $step:expr) => {
        [$($done)* $crate::s!(@range $how $from $to).step($step)]
    };
    (@stop $how:ident [$($done:tt)*] $from:tt $to:tt ; $step:expr , $($rest:tt)*) => {
        $crate::s!(@start [$($done)* $crate::s!(@range $how $from $to).step($step),] [] $($rest)*)
    };
    (@stop $how:ident $done:tt $from:tt [$($to:tt)*] $next:tt $($rest:tt)*) => {
        $crate::s!(@stop $how $done $from [$($to)* $next] $($rest)*)
    };
    (@range between [] []) => { $crate::Slice::from(..) };
    (@range between [$($from:tt)+] []) => { $crate::Slice::from($crate::Dim::from($($from)+)..) };
    (@range between [] [$($to:tt)+]) => { $crate::Slice::from(..$crate::Dim::from($($to)+)) };
    (@range through [] [$($to:tt)+]) => { $crate::Slice::from(..=$crate::Dim::from($($to)+)) };
    (@range $how:ident [$($from:tt)+] [$($to:tt)+]) => { $crate::Slice::$how($($from)+, $($to)+) };
    ($($slices:tt)*) => { $crate::s!(@start [] [] $($slices)*) };
}

impl From<[Slice; 1]> for Slice {
    fn from([slice]: [Slice; 1]) -> Slice {
        slice
    }
}

impl From<&Slice> for Slice {
    fn from(slice: &Slice) -> Slice {
        slice.clone()
    }
}

impl From<RangeFull> for Slice {
    fn from(_: RangeFull) -> Slice {
        Slice::ALL
    }
}

/// The index after `stop`; after -1 that is the end of the axis.
fn after(stop: Dim) -> Option<IndexExpr> {
    (!stop.0.is(-1)).then(|| stop.0 + IndexExpr::ONE)
}

macro_rules! slice_from {
    ($($t:ty),*) => { $(
        impl From<$t> for Slice {
            fn from(index: $t) -> Slice {
                Slice { start: Some(Dim::from(index).0), single: true, ..Slice::ALL }
            }
        }
        impl From<Range<$t>> for Slice {
            fn from(r: Range<$t>) -> Slice {
                Slice { start: Some(Dim::from(r.start).0), stop: Some(Dim::from(r.end).0), ..Slice::ALL }
            }
        }
        impl From<RangeInclusive<$t>> for Slice {
            fn from(r: RangeInclusive<$t>) -> Slice {
                let (start, end) = r.into_inner();
                Slice { start: Some(Dim::from(start).0), stop: after(end.into()), ..Slice::ALL }
            }
        }
        impl From<RangeFrom<$t>> for Slice {
            fn from(r: RangeFrom<$t>) -> Slice {
                Slice { start: Some(Dim::from(r.start).0), ..Slice::ALL }
            }
        }
        impl From<RangeTo<$t>> for Slice {
            fn from(r: RangeTo<$t>) -> Slice {
                Slice { stop: Some(Dim::from(r.end).0), ..Slice::ALL }
            }
        }
        impl From<RangeToInclusive<$t>> for Slice {
            fn from(r: RangeToInclusive<$t>) -> Slice {
                Slice { stop: after(r.end.into()), ..Slice::ALL }
            }
        }
    )* };
}
slice_from!(i32, i64, usize, Dim, &Dim);

/// What can be given as slices of the leading axes: one range, an array, a vector or a tuple of them.
pub trait IntoSlices {
    /// One slice per axis, outermost first.
    fn into_slices(self) -> Vec<Slice>;
}

impl<T: Into<Slice>, const N: usize> IntoSlices for [T; N] {
    fn into_slices(self) -> Vec<Slice> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<Slice>> IntoSlices for Vec<T> {
    fn into_slices(self) -> Vec<Slice> {
        self.into_iter().map(Into::into).collect()
    }
}

impl IntoSlices for &[Slice] {
    fn into_slices(self) -> Vec<Slice> {
        self.to_vec()
    }
}

macro_rules! one_slice {
    ($($t:ty),*) => { $(impl IntoSlices for $t {
        fn into_slices(self) -> Vec<Slice> {
            vec![self.into()]
        }
    })* };
}
one_slice!(Slice, RangeFull, i32, i64, usize, Dim);

macro_rules! one_range {
    ($($range:ident),*) => { $(impl<T> IntoSlices for $range<T> where Slice: From<$range<T>> {
        fn into_slices(self) -> Vec<Slice> {
            vec![self.into()]
        }
    })* };
}
one_range!(Range, RangeInclusive, RangeFrom, RangeTo, RangeToInclusive);

macro_rules! slices_from_tuple {
    ($($($t:ident)+;)*) => { $(
        impl<$($t: Into<Slice>),+> IntoSlices for ($($t,)+) {
            #[allow(non_snake_case)]
            fn into_slices(self) -> Vec<Slice> {
                let ($($t,)+) = self;
                vec![$($t.into()),+]
            }
        }
    )* };
}
slices_from_tuple! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

impl Tensor {
    /// Start, step and result extent of a slice of an axis.
    fn resolve(&self, axis: usize, slice: &Slice) -> Step<(IndexExpr, i64, IndexExpr)> {
        let extent = &self.extents()[axis];
        let from_end = |e: &IndexExpr| match e.as_const() {
            Some(c) if c < 0 => extent.clone() + IndexExpr::Const(c),
            _ => e.clone(),
        };
        if slice.single {
            let start = slice.start.as_ref().map_or(IndexExpr::ZERO, from_end);
            return Ok((start, 1, IndexExpr::ONE));
        }
        let step = slice.step;
        if step == 0 || step == i64::MIN {
            return refuse_expecting(format!("step {step} on axis {axis}"), "a step other than 0");
        }
        let last = extent.clone() - IndexExpr::ONE;
        let (first, span) = if step > 0 {
            let start = slice.start.as_ref().map_or(IndexExpr::ZERO, from_end);
            let stop = slice.stop.as_ref().map_or(extent.clone(), from_end);
            for end in [&start, &stop] {
                let beyond = self.graph().differ(&IndexExpr::max(end, extent), extent);
                let before = self
                    .graph()
                    .differ(&IndexExpr::min(end, &IndexExpr::ZERO), &IndexExpr::ZERO);
                if beyond || before {
                    return self.leaves(axis, &start, &stop);
                }
            }
            (start.clone(), stop - start)
        } else {
            let start = slice.start.as_ref().map_or(last, from_end);
            let stop = slice.stop.as_ref().map_or(IndexExpr::Const(-1), from_end);
            (start.clone(), start - stop)
        };
        let span = self.graph().simplify(&IndexExpr::max(&span, &IndexExpr::ZERO));
        Ok((first, step, span.ceil_div(step.abs())))
    }

    fn leaves<T>(&self, axis: usize, start: &IndexExpr, stop: &IndexExpr) -> Step<T> {
        let g = self.graph();
        let extent = g.dim_text(&self.extents()[axis]);
        let problem = format!(
            "{}..{} leaves axis {axis} of extent {extent}",
            g.dim_text(start),
            g.dim_text(stop)
        );
        refuse_expecting(problem, format!("ends from 0 to {extent}"))
    }

    pub(crate) fn sliced(&self, slices: &[(usize, Slice)]) -> Step {
        let mut start: Box<[IndexExpr]> = self.extents().iter().map(|_| IndexExpr::ZERO).collect();
        let mut step: Box<[i64]> = vec![1; self.rank()].into();
        let mut size: Box<[IndexExpr]> = self.extents().into();
        let mut gone = vec![];
        for (axis, slice) in slices {
            (start[*axis], step[*axis], size[*axis]) = self.resolve(*axis, slice)?;
            if slice.single {
                gone.push(*axis);
            }
        }
        let whole = size[..] == *self.extents() && start.iter().all(|s| s.is(0)) && step.iter().all(|&s| s == 1);
        let taken = match step.iter().all(|&s| s == 1) {
            true if whole => self.clone(),
            true => super::overlap::part(self, &start, &size)?,
            false => self.view(View::Slice { start, step, size })?,
        };
        taken.without(&gone)
    }

    /// A part of the leading axes, one slice each; see [`Slice`]. An index removes its axis.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([[1i32, 2, 3], [4, 5, 6]]);
    /// assert_eq!(x.slice((.., 1..)).eval()?.as_slice::<i32>()?, [2, 3, 5, 6]);
    /// assert_eq!(x.slice(-1).eval()?.as_slice::<i32>()?, [4, 5, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// More slices than axes, an index or range that leaves its axis, a step of 0.
    #[track_caller]
    pub fn slice(&self, slices: impl IntoSlices) -> Tensor {
        let slices = slices.into_slices();
        op("slice", &[self], || {
            if slices.len() > self.rank() {
                let problem = format!("{} slices of a tensor of rank {}", slices.len(), self.rank());
                return refuse_expecting(problem, "at most one per axis");
            }
            self.sliced(&slices.into_iter().enumerate().collect::<Vec<_>>())
        })
    }

    /// A part of one axis.
    #[track_caller]
    pub fn slice_axis(&self, axis: i64, slice: impl Into<Slice>) -> Tensor {
        let slice = slice.into();
        op("slice_axis", &[self], || self.sliced(&[(self.axis(axis)?, slice)]))
    }

    /// One element of an axis, which disappears.
    #[track_caller]
    pub fn select_index(&self, axis: i64, index: impl Into<Dim>) -> Tensor {
        let index = index.into();
        op("select_index", &[self], || {
            self.sliced(&[(self.axis(axis)?, Slice::from(index))])
        })
    }

    /// `length` elements of an axis from `start` on.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2, 3, 4]);
    /// assert_eq!(x.narrow(0, 1, 2).eval()?.as_slice::<i32>()?, [2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A length below 0, a part that leaves its axis.
    #[track_caller]
    pub fn narrow(&self, axis: i64, start: impl Into<Dim>, length: impl Into<Dim>) -> Tensor {
        let (start, length) = (start.into(), length.into());
        op("narrow", &[self], || {
            // An end below 0 would be one from the end of the axis.
            if let Some(n @ ..0) = length.as_const() {
                return refuse_expecting(format!("{n} elements"), "0 or more");
            }
            let stop = &start + length;
            self.sliced(&[(self.axis(axis)?, Slice::from(start..stop))])
        })
    }

    /// The elements in reverse order along the axes.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2, 3]);
    /// assert_eq!(x.flip(0).eval()?.as_slice::<i32>()?, [3, 2, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn flip(&self, axes: impl Into<crate::dim::Axes>) -> Tensor {
        let axes = axes.into();
        op("flip", &[self], || {
            let list = self.axes(&axes)?;
            let reverse = Slice::ALL.step(-1);
            self.sliced(&list.into_iter().map(|a| (a, reverse.clone())).collect::<Vec<_>>())
        })
    }

    /// The elements moved by `shift` along an axis, those pushed out at the end coming back at the start.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([1i32, 2, 3]);
    /// assert_eq!(x.roll(1, 0).eval()?.as_slice::<i32>()?, [3, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An axis of symbolic extent.
    #[track_caller]
    pub fn roll(&self, shift: i64, axis: i64) -> Tensor {
        op("roll", &[self], || {
            let a = self.axis(axis)?;
            let n = self.const_extent(a)? as i64;
            if n == 0 || shift % n == 0 {
                return Ok(self.clone());
            }
            let cut = n - shift.rem_euclid(n);
            let (head, tail) = (self.sliced(&[(a, s(..cut))])?, self.sliced(&[(a, s(cut..))])?);
            Ok(super::join::concat(&[&tail, &head], axis))
        })
    }
}
