//! The library of matrix products that a GPU may have, and which products it is given.

use std::fmt;
use std::str::FromStr;

use crate::dtype::DType;

/// What the library of matrix products of a host multiplies beside large matrices of f32 and f64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostProducts {
    /// Words of four bytes ([`crate::graph::Semiring::AddDot4`]).
    pub words: bool,
    /// bf16, which is added up in f32 and rounded once.
    pub halves: bool,
    /// Whether one row, or column, of bf16 by a matrix is among these.
    pub vectors: bool,
    /// Whether it begins a product of f32 or f64 as fast as a kernel begins, so that it is given those of few multiply-adds too.
    pub small: bool,
}

impl HostProducts {
    /// The fewest rows and columns of a product of words: of fewer most of a tile of a matrix is empty.
    const FEWEST_LINES: i64 = 8;
    /// The fewest words of its sums.
    const SHORTEST_SUM_OF_WORDS: i64 = 4;

    /// How many times as many multiply-adds of bf16 as of f32 the instructions of these products do in the same time: 2 where they are of pairs (118 and
    /// 59 thousand million a second, measured on Zen 4), 16 where they are of tiles (Intel Optimization Reference Manual, "Intel AMX").
    pub fn halves_gain(self) -> f64 {
        match (self.halves, self.vectors) {
            (false, _) => 1.0,
            (true, true) => 2.0,
            (true, false) => 16.0,
        }
    }

    /// Whether it computes a product of words, as far as extents are known.
    pub fn takes_words(self, rows: Option<i64>, columns: Option<i64>, sum: Option<i64>) -> bool {
        let at_least = |extent: Option<i64>, least: i64| extent.is_none_or(|n| n >= least);
        self.words
            && at_least(rows, Self::FEWEST_LINES)
            && at_least(columns, Self::FEWEST_LINES)
            && at_least(sum, Self::SHORTEST_SUM_OF_WORDS)
    }
}

/// A library that multiplies matrices on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProductLibrary {
    /// What it is given of the products that it can compute.
    pub share: LibraryShare,
    /// Whether it multiplies f16 and bf16 too, which it adds up in f32.
    pub narrow: bool,
    /// Bytes of memory that it is given to work in.
    pub workspace_bytes: u64,
}

/// Which products a library is given; kernels compute the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LibraryShare {
    /// All that it can compute.
    All,
    /// Large products that share no kernel with what is around them, or for which it is faster although other kernels then compute that.
    Plain {
        /// The least extent of rows, columns and sum.
        least_extent: i64,
        /// How much faster it is, where that was measured on such a device.
        gain: Option<LibraryGain>,
    },
}

/// What a library of products was measured to gain over kernels, in picoseconds for each million floating-point operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LibraryGain {
    /// Of elements of 16 bits.
    pub narrow: u32,
    /// Of wider ones.
    pub wide: u32,
    /// Of what is computed element by element behind a product, in femtoseconds for each operation: kernels that multiply have few threads for it.
    pub epilogue: u32,
}

impl LibraryGain {
    /// Seconds that it gains for so many floating-point operations on elements of a type.
    pub fn seconds(&self, dtype: DType, flops: f64) -> f64 {
        let picoseconds = if dtype.bytes() <= 2 { self.narrow } else { self.wide };
        f64::from(picoseconds) * 1e-18 * flops
    }

    /// Seconds that are gained where another kernel does so many operations behind a product, a function counting 40 of them.
    pub fn seconds_behind(&self, operations: f64) -> f64 {
        f64::from(self.epilogue) * 1e-15 * operations
    }
}

impl fmt::Display for LibraryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibraryShare::All => f.write_str("asked for"),
            LibraryShare::Plain {
                least_extent,
                gain: None,
            } => write!(
                f,
                "nothing else in its kernel and no extent below {least_extent}: taken to be faster, not measured"
            ),
            LibraryShare::Plain { least_extent, .. } => write!(
                f,
                "no extent below {least_extent}, and faster as measured than a kernel with what is around it"
            ),
        }
    }
}

impl ProductLibrary {
    /// Whether it multiplies elements of a type that are added up in another.
    pub fn multiplies(&self, dtype: DType, accumulator: DType) -> bool {
        match dtype {
            DType::F32 | DType::F64 => accumulator == dtype,
            DType::F16 | DType::BF16 => self.narrow && accumulator == DType::F32,
            _ => false,
        }
    }
}

/// What is to compute the matrix products of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[non_exhaustive]
pub enum Products {
    /// The library, where there is one, for what it is taken to be faster at ([`LibraryShare::Plain`]); else kernels.
    #[default]
    Auto,
    /// Kernels.
    Kernels,
    /// The library, for all that it can compute.
    Library,
}

impl Products {
    /// All of them.
    pub const ALL: [Products; 3] = [Products::Auto, Products::Kernels, Products::Library];

    /// What text calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Products::Auto => "auto",
            Products::Kernels => "kernels",
            Products::Library => "library",
        }
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no [`Products`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown way to multiply matrices `{0}`; expected auto, kernels or library")]
pub struct UnknownProducts(String);

impl FromStr for Products {
    type Err = UnknownProducts;

    fn from_str(text: &str) -> Result<Products, UnknownProducts> {
        let found = Products::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| UnknownProducts(text.into()))
    }
}
