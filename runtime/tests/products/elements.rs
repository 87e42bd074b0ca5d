//! Elements of matrices, and what their products are.

use tlc_ir::DType;
use tlc_runtime::cpu::level;

/// Numbers that repeat after a long while.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -1..1.
    pub fn value(&mut self) -> f64 {
        self.next() as f64 / f64::from(1u32 << 30) - 1.0
    }
}

/// What matrices are of.
pub trait Element: Copy + Default + PartialEq + std::fmt::Debug {
    const DTYPE: DType;
    const UNIT: f64;
    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    fn bits(self) -> u64;
    /// What two elements make.
    fn product(self, other: Self) -> f64 {
        self.wide() * other.wide()
    }
    /// How far a sum of so many products may be off, of which all are `terms` without their signs.
    fn allowed(k: usize, _sum: f64, terms: f64) -> f64 {
        // Each of k multiply-adds and of the additions of blocks rounds once.
        (k + 2) as f64 * Self::UNIT * terms
    }
}

/// An element of bf16.
pub type Half = half::bf16;

impl Element for Half {
    const DTYPE: DType = DType::BF16;
    const UNIT: f64 = f32::EPSILON as f64;
    fn of(x: f64) -> Half {
        Half::from_f64(x)
    }
    fn wide(self) -> f64 {
        self.to_f64()
    }
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
    fn allowed(k: usize, sum: f64, terms: f64) -> f64 {
        (k + 4) as f64 * Self::UNIT * terms + sum.abs() / 256.0
    }
}

/// Four bytes, or a sum of what they make.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Word(i32);

impl Element for Word {
    const DTYPE: DType = DType::I32;
    const UNIT: f64 = 0.0;
    fn of(x: f64) -> Word {
        Word((x * f64::from(1u32 << 31)) as i32)
    }
    fn wide(self) -> f64 {
        self.0.into()
    }
    fn bits(self) -> u64 {
        self.0 as u64
    }
    fn product(self, other: Word) -> f64 {
        let bytes = self.0.to_le_bytes().into_iter().zip(other.0.to_le_bytes());
        bytes.map(|(x, y)| f64::from(x) * f64::from(y as i8)).sum()
    }
}

/// Whether this process multiplies words. Says so if not.
pub fn words() -> bool {
    let matrices = level::matrices();
    if let Err(why) = matrices {
        eprintln!("SKIP: no products of words: {why}");
    }
    matrices.is_ok()
}

/// Whether this process multiplies halves. Says so if not.
pub fn halves() -> bool {
    let by = level::halves();
    if by.is_none() {
        eprintln!("SKIP: no products of halves at {}", level::name());
    }
    by.is_some()
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    const UNIT: f64 = f32::EPSILON as f64;
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Element for f64 {
    const DTYPE: DType = DType::F64;
    const UNIT: f64 = f64::EPSILON;
    fn of(x: f64) -> f64 {
        x
    }
    fn wide(self) -> f64 {
        self
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}
