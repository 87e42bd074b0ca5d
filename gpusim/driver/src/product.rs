//! Products of matrices that a library computes on the device: done by the host, when it is their turn in a stream.

use half::{bf16, f16};

/// The type of elements, by its number among those of `cudaDataType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Element {
    F32,
    F64,
    F16,
    Bf16,
}

impl Element {
    pub(crate) fn of(number: u32) -> Option<Element> {
        match number {
            0 => Some(Element::F32),
            1 => Some(Element::F64),
            2 => Some(Element::F16),
            14 => Some(Element::Bf16),
            _ => None,
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        match self {
            Element::F32 => 4,
            Element::F64 => 8,
            Element::F16 | Element::Bf16 => 2,
        }
    }
}

/// A stack of matrices: strides in elements, none of them negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Matrix {
    pub(crate) address: u64,
    /// From row to row.
    pub(crate) down: u64,
    /// From column to column.
    pub(crate) across: u64,
    /// From matrix to matrix.
    pub(crate) stack: u64,
}

/// `result = f(left * right + bias)`, for each of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    pub(crate) element: Element,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Of a sum.
    pub(crate) terms: u64,
    pub(crate) batch: u64,
    pub(crate) left: Matrix,
    pub(crate) right: Matrix,
    pub(crate) result: Matrix,
    /// Where the elements lie that are added to each row, one a row.
    pub(crate) bias: Option<u64>,
    /// Whether what is below +0 becomes +0; NaN stays.
    pub(crate) rectified: bool,
    /// Where the library may leave anything, and how many bytes.
    pub(crate) workspace: (u64, u64),
}

/// Elements of a matrix, in memory that begins with its first one.
struct View<'m> {
    bytes: &'m [u8],
    element: Element,
    of: Matrix,
}

impl View<'_> {
    /// Elements of f16 and bf16 are f32 as well, and those of f32 are f64.
    fn get(&self, [matrix, row, column]: [u64; 3]) -> f64 {
        let number = matrix * self.of.stack + row * self.of.down + column * self.of.across;
        let at = (number * self.element.bytes()) as usize;
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            std::array::from_fn(|i| bytes[i])
        }
        let bytes = &self.bytes[at..];
        match self.element {
            Element::F32 => f32::from_le_bytes(array(bytes)).into(),
            Element::F64 => f64::from_le_bytes(array(bytes)),
            Element::F16 => f16::from_le_bytes(array(bytes)).into(),
            Element::Bf16 => bf16::from_le_bytes(array(bytes)).into(),
        }
    }
}

impl Product {
    /// The matrices, each with its rows and columns: the two factors, then the result.
    pub(crate) fn matrices(&self) -> [(Matrix, [u64; 2]); 3] {
        [
            (self.left, [self.rows, self.terms]),
            (self.right, [self.terms, self.columns]),
            (self.result, [self.rows, self.columns]),
        ]
    }

    /// The ranges of bytes that a matrix of so many rows and columns has; `None` where they have no addresses.
    pub(crate) fn ranges(&self, matrix: &Matrix, [rows, columns]: [u64; 2]) -> Option<Vec<(u64, u64)>> {
        let width = self.element.bytes();
        // Lines lie along the axis of the smaller stride.
        let [(short, line), (long, lines)] = match matrix.down <= matrix.across {
            true => [(matrix.down, rows), (matrix.across, columns)],
            false => [(matrix.across, columns), (matrix.down, rows)],
        };
        let end = |count: u64, stride: u64| (count - 1).checked_mul(stride);
        let last = [(self.batch, matrix.stack), (lines, long), (line, short)].map(|(count, stride)| end(count, stride));
        let last = last.into_iter().try_fold(0u64, |sum, e| sum.checked_add(e?))?;
        matrix.address.checked_add(last.checked_add(1)?.checked_mul(width)?)?;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for b in 0..self.batch {
            for l in 0..lines {
                let start = matrix.address + (b * matrix.stack + l * long) * width;
                let end = start + ((line - 1) * short + 1) * width;
                match ranges.last_mut() {
                    Some(before) if before.1 == start => before.1 = end,
                    _ => ranges.push((start, end)),
                }
            }
        }
        ranges.sort_unstable();
        ranges.dedup();
        Some(ranges)
    }

    /// The results, one matrix after the other, each by columns, as bytes. Sums are added up term by term, in f64 of f64 and in f32 of the others.
    /// The factors' bytes begin with their first elements, and the bias has none or one a row.
    pub(crate) fn compute(&self, [left, right, bias]: [&[u8]; 3]) -> Vec<u8> {
        let view = |bytes, of| View {
            bytes,
            element: self.element,
            of,
        };
        let (left, right) = (view(left, self.left), view(right, self.right));
        let lies = Matrix { down: 1, ..self.result };
        let bias = self.bias.map(|_| view(bias, lies));
        let mut out = Vec::new();
        for b in 0..self.batch {
            // Each term of a column of results after the other, so that the factors' elements are looked up once.
            let factor = |t: u64| (0..self.rows).map(move |i| [b, i, t]);
            let terms: Vec<Vec<f64>> = (0..self.terms)
                .map(|t| factor(t).map(|at| left.get(at)).collect())
                .collect();
            for j in 0..self.columns {
                let mut doubles = vec![0f64; self.rows as usize];
                let mut singles = vec![0f32; self.rows as usize];
                for (t, terms) in (0..).zip(&terms) {
                    let y = right.get([b, t, j]);
                    match self.element {
                        Element::F64 => doubles.iter_mut().zip(terms).for_each(|(sum, x)| *sum += x * y),
                        _ => singles
                            .iter_mut()
                            .zip(terms)
                            .for_each(|(sum, x)| *sum += *x as f32 * y as f32),
                    }
                }
                for (i, (double, single)) in (0..).zip(doubles.iter_mut().zip(&mut singles)) {
                    if let Some(bias) = &bias {
                        *double += bias.get([0, i, 0]);
                        *single += bias.get([0, i, 0]) as f32;
                    }
                    if self.rectified {
                        *double = if *double <= 0.0 { 0.0 } else { *double };
                        *single = if *single <= 0.0 { 0.0 } else { *single };
                    }
                }
                match self.element {
                    Element::F64 => doubles.iter().for_each(|v| out.extend(v.to_le_bytes())),
                    Element::F32 => singles.iter().for_each(|v| out.extend(v.to_le_bytes())),
                    Element::F16 => singles.iter().for_each(|v| out.extend(f16::from_f32(*v).to_le_bytes())),
                    Element::Bf16 => singles
                        .iter()
                        .for_each(|v| out.extend(bf16::from_f32(*v).to_le_bytes())),
                }
            }
        }
        out
    }
}
