//! What a product must be, and the algorithms that are proposed for it.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::description::{Layout, Operation, Preference};
use crate::refusal::Refusal;

/// `cublasLtMatmulAlgo_t`: first a number that ours have, then which product it is for, the alignments that it relies on (a byte of each matrix'
/// logarithm), its bytes to work in, the parts of a sum, and how they are added up.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Proposal {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) state: u32,
    pub(crate) waves: f32,
    pub(crate) reserved: [i32; 4],
}

/// What algorithms begin with.
const OURS: u64 = 0x746c_635f_6c74_0001;
/// Sums of more terms are split where that is allowed.
const LONG: u64 = 16;
/// What memory to work in is a multiple of.
const WORKSPACE_ALIGNMENT: u64 = 256;

/// A product by its descriptions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Problem {
    pub(crate) operation: Operation,
    /// A, B, C and D.
    pub(crate) layouts: [Layout; 4],
}

/// Rows and columns of a matrix as it is multiplied.
fn turned(layout: &Layout, is_turned: bool) -> [u64; 2] {
    match is_turned {
        true => [layout.columns, layout.rows],
        false => [layout.rows, layout.columns],
    }
}

impl Problem {
    /// Rows, columns and terms.
    ///
    /// # Errors
    /// If descriptions do not fit each other.
    pub(crate) fn extents(&self) -> Result<[u64; 3], Refusal> {
        let [a, b, c, d] = &self.layouts;
        let element = d.element;
        let sums = match element {
            0 | 2 | 14 => [68, 0],
            1 => [70, 1],
            _ => return Err(Refusal::Unsupported("elements that are not f32, f64, f16 or bf16")),
        };
        if [self.operation.compute, self.operation.scale] != sums {
            return Err(Refusal::Unsupported(
                "sums that are not added up in f32, or those of f64 in f64",
            ));
        }
        if element == 1 && self.operation.epilogue != 1 {
            return Err(Refusal::Unsupported("epilogues of f64"));
        }
        if [a, b, c].iter().any(|l| l.element != element) {
            return Err(Refusal::Unsupported("matrices of several types"));
        }
        if c != d {
            return Err(Refusal::Unsupported(
                "a result that lies otherwise than what it is added to",
            ));
        }
        for l in &self.layouts {
            let leading = u64::try_from(l.leading).map_err(|_| Refusal::Invalid("a negative leading dimension"))?;
            if l.rows == 0 || l.columns == 0 || leading < l.rows {
                return Err(Refusal::Invalid("a matrix without elements, or whose columns overlap"));
            }
            if l.batch < 1 || l.batch != d.batch || l.stack < 0 {
                return Err(Refusal::Invalid("stacks of different heights, or that go backwards"));
            }
        }
        let [[rows, terms], [same_terms, columns]] =
            [turned(a, self.operation.turned[0]), turned(b, self.operation.turned[1])];
        if terms != same_terms || [d.rows, d.columns] != [rows, columns] {
            return Err(Refusal::Invalid("matrices that do not fit each other"));
        }
        let matrix = d.leading.unsigned_abs() * (d.columns - 1) + d.rows;
        if d.batch > 1 && d.stack.unsigned_abs() < matrix {
            return Err(Refusal::Invalid("results that overlap"));
        }
        Ok([rows, columns, terms])
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// An algorithm that uses no more than it may.
    ///
    /// # Errors
    /// As [`Problem::extents`].
    pub(crate) fn propose(&self, may: &Preference) -> Result<Proposal, Refusal> {
        let [rows, columns, terms] = self.extents()?;
        if may.alignments.iter().any(|a| !a.is_power_of_two()) {
            return Err(Refusal::Invalid("an alignment that is not a power of two"));
        }
        let wanted = ((rows + columns) * 16).next_multiple_of(WORKSPACE_ALIGNMENT);
        let workspace = if wanted <= may.workspace_bytes { wanted } else { 0 };
        let splits = may.reductions != 0 && terms > LONG;
        let alignments =
            (may.alignments.iter().zip(0..)).fold(0, |all, (a, i)| all | u64::from(a.trailing_zeros()) << (8 * i));
        let [parts, reduction] = if splits { [4, 2] } else { [1, 0] };
        Ok(Proposal {
            algorithm: Algorithm {
                data: [OURS, self.fingerprint(), alignments, workspace, parts, reduction, 0, 0],
            },
            workspace_bytes: workspace as usize,
            ..Proposal::default()
        })
    }
}

impl Algorithm {
    /// Bytes to work in.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.data[3]
    }

    /// An attribute: parts of a sum (2), or how they are added up (3).
    pub(crate) fn attribute(&self, attribute: u32) -> Result<u32, Refusal> {
        match attribute {
            _ if self.data[0] != OURS => Err(Refusal::Invalid("an algorithm that was not proposed")),
            2 => Ok(self.data[4] as u32),
            3 => Ok(self.data[5] as u32),
            _ => Err(Refusal::Unsupported("another attribute of an algorithm")),
        }
    }

    /// Whether it may compute a product at these addresses, of A, B, C and D, with so much memory to work in there.
    pub(crate) fn fits(&self, problem: &Problem, addresses: [u64; 4], workspace: (u64, u64)) -> Result<(), Refusal> {
        if self.data[..2] != [OURS, problem.fingerprint()] {
            return Err(Refusal::Invalid("an algorithm that was proposed for another product"));
        }
        for (i, address) in addresses.into_iter().enumerate() {
            let logarithm = self.data[2] >> (8 * i) & 0xff;
            if address == 0 || !address.is_multiple_of(1 << logarithm) {
                return Err(Refusal::Invalid(
                    "an address that is null, or not as aligned as was said",
                ));
            }
        }
        let (at, bytes) = workspace;
        let needed = self.workspace_bytes();
        if bytes < needed || needed > 0 && (at == 0 || !at.is_multiple_of(WORKSPACE_ALIGNMENT)) {
            return Err(Refusal::Invalid(
                "too little memory to work in, or memory that is not aligned to 256 bytes",
            ));
        }
        Ok(())
    }
}
