//! Products of matrices by the instructions of a warp, and copies to shared memory beside the threads.
//!
//! Invariants:
//! - The steps of the sum go in ascending order, 16 an instruction (8 of tf32), whatever the tile: what a sum comes to depends on its length and
//!   the dtype alone.
//! - Operands come in by `ldmatrix`, whose rows are 16 aligned bytes along whichever of its sides lies together in memory. Of elements of
//!   32 bits such a row is four, each of which goes to the thread that multiplies it; but the instruction does not turn them, so that those
//!   that lie together across the sum are loaded one by one.
//! - Operands of tf32 are f32 in memory and rounded as they come in.
//! - What threads hold as accumulators are, two tiles of 16 by 8 side by side, is what an instruction takes as a left operand of 16 by 16: a thread
//!   has the same elements of both. Of tf32, whose left operands are one such tile, a thread has others: there the steps that the instruction
//!   counts as `t` and `t + 4` are those of the columns `2 * t` and `2 * t + 1`, of the right operand as well.

use tlc_ir::target::WARP_THREADS;
use tlc_ir::{DType, Precision};

use super::CudaError;
use super::fragments::{HELD, tiles_of};
use super::table::{MATRIX_TILE, matrix_steps};
use super::write::{Writer, memory_name};
use crate::flat::{AsyncCopy, LeftOperand, MatrixOperand, Multiply};

/// Rows of the matrices that `ldmatrix` loads, four at a time.
const LOADED_ROWS: i64 = 8;
/// Bytes of each of these rows.
const LOADED_BYTES: i64 = 16;

/// Which operand is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// The right one, whose steps the instruction counts as a left one that threads hold has them.
    RightInPairs,
}

impl Writer<'_, '_> {
    /// What the threads of a warp multiply together.
    pub(super) fn multiply(&mut self, p: &Multiply) -> Result<(), CudaError> {
        let [rows, columns, steps] = p.extents;
        let unsupported = |what: &str| CudaError::Unsupported(what.into());
        let [down, across] = tiles_of([rows, columns]).ok_or_else(|| unsupported("a matrix of no whole tiles"))?;
        let dtype = self.flat.kernel.memory_dtype(p.right.first.memory);
        let step = matrix_steps(dtype);
        if across % 2 != 0 || steps % step != 0 {
            return Err(unsupported("a matrix of no whole pairs of tiles"));
        }
        let kind = match (dtype, p.precision) {
            (DType::F16, Precision::Exact) => "f16",
            (DType::BF16, Precision::Exact) => "bf16",
            (DType::F32, Precision::Tf32) => "tf32",
            _ => return Err(CudaError::Unsupported(format!("a matrix instruction for {dtype}"))),
        };
        let multiply = self.helpers.multiply_matrices(kind, step);
        let accumulators = memory_name(self.flat.kernel, p.dst);
        let at = |of: &MatrixOperand, side: i64| {
            let (across, along) = (of.across * side, of.along);
            format!("i * {across} + k * {along}")
        };
        self.open("{");
        let lane = format!("const int lane = threadIdx.x % {WARP_THREADS};");
        self.line(&lane);
        // Matrices of the left operand go down, then along the sum; those of the right one along the sum first.
        let left = match &p.left {
            LeftOperand::Shared(left) => {
                let load = self.rows_of(left, "left", Side::Left)?;
                format!("{load}(a[i], left + {});", at(left, MATRIX_TILE[0]))
            }
            LeftOperand::Held(memory) => {
                let held = memory_name(self.flat.kernel, *memory);
                let tile = format!("(i * {} + k / {})", steps / MATRIX_TILE[1], MATRIX_TILE[1]);
                let take = self.helpers.take_matrix(dtype);
                format!("{take}(a[i], {held} + {tile} * {HELD});")
            }
        };
        let pairs = matches!(p.left, LeftOperand::Held(_)) && dtype == DType::F32;
        let side = if pairs { Side::RightInPairs } else { Side::Right };
        let right = self.rows_of(&p.right, "right", side)?;
        self.line("#pragma unroll");
        self.open(&format!("for (int k = 0; k < {steps}; k += {step}) {{"));
        self.line(&format!("unsigned a[{down}][4], b[{across}][2];"));
        let each = |count: i64, by: i64| format!("for (int i = 0; i < {count}; i += {by})");
        self.line("#pragma unroll");
        self.line(&format!("{} {left}", each(down, 1)));
        self.line("#pragma unroll");
        let place = at(&p.right, MATRIX_TILE[1]);
        self.line(&format!("{} {right}(&b[i], right + {place});", each(across, 2)));
        self.line("#pragma unroll");
        self.line(&each(down, 1));
        self.line("#pragma unroll");
        self.line(&format!("for (int j = 0; j < {across}; ++j)"));
        self.depth_in(|w| {
            w.line(&format!(
                "{multiply}({accumulators} + (i * {across} + j) * {HELD}, a[i], b[j]);"
            ));
        });
        self.close();
        self.close();
        Ok(())
    }

    /// Declares where a thread's row of the matrices of an operand begins; returns the function that loads them.
    fn rows_of(&mut self, o: &MatrixOperand, name: &str, side: Side) -> Result<String, CudaError> {
        let across_first = side == Side::Left;
        let dtype = self.flat.kernel.memory_dtype(o.first.memory);
        let row_elements = LOADED_BYTES / dtype.bytes() as i64;
        let aligned = |n: i64| n % row_elements == 0;
        // A row that `ldmatrix` reads goes along the sum, or across it and is turned.
        let turned = match (o.across, o.along) {
            (across, 1) if aligned(across) => false,
            (1, along) if aligned(along) => true,
            _ => return Err(CudaError::Unsupported("an operand whose rows lie apart".into())),
        };
        if !aligned(o.multiple) {
            return Err(CudaError::Unsupported("an operand that is not aligned".into()));
        }
        let place = self.place(&o.first);
        let element = super::scalar::memory_type(dtype);
        // A thread loads its four elements itself: the first, and those half an instruction further along either side.
        if turned && dtype.bytes() == 4 {
            let pitch = o.along;
            let (first, further) = match side {
                Side::RightInPairs => (2 * pitch, pitch),
                Side::Left | Side::Right => (pitch, row_elements * pitch),
            };
            self.line(&format!(
                "const {element}* {name} = &{place} + lane % {row_elements} * {first} + lane / {row_elements};"
            ));
            return Ok(self.helpers.load_elements(across_first, further));
        }
        if side == Side::RightInPairs {
            return Err(CudaError::Unsupported(
                "an operand of steps in pairs that lie together".into(),
            ));
        }
        // Four matrices: which of them a thread's row is of, and which row.
        let (row, second, third) = ("lane % 8", "lane / 8 % 2", "lane / 16");
        let (across, along) = match across_first {
            true => (second, third),
            false => (third, second),
        };
        let (pitch, row_of, part) = match turned {
            false => (o.across, across, along),
            true => (o.along, along, across),
        };
        self.line(&format!(
            "const {element}* {name} = &{place} + ({row} + {row_of} * {LOADED_ROWS}) * {pitch} + {part} * {row_elements};"
        ));
        Ok(self.helpers.load_matrices(turned, across_first, dtype == DType::F32))
    }

    /// A copy that runs beside the threads.
    pub(super) fn copy_async(&mut self, c: &AsyncCopy) {
        let bytes = c.elements * self.flat.kernel.memory_dtype(c.to.memory).bytes() as i64;
        // Launches in turn read the same weights, and what one of them wrote.
        let copy = self.helpers.copy_async(bytes, self.in_turn);
        let (to, from) = (self.place(&c.to), self.place(&c.from));
        let read = match c.mask {
            Some(mask) => format!("{} ? {bytes} : 0", self.value(mask)),
            None => bytes.to_string(),
        };
        self.line(&format!("{copy}(&{to}, &{from}, {read});"));
    }

    /// What was copied since the last one is a group. Where all waits are for all copies, they close the group themselves.
    pub(super) fn commit(&mut self) {
        self.copies_open = self.copies_open.map(|n| n + 1);
        if !self.groups || !self.threads_copy {
            return;
        }
        self.line("asm volatile(\"cp.async.commit_group;\" ::: \"memory\");");
    }

    /// A wait for all groups of copies but so many. One for all is written as such: it waits for copies of no group as well, and ptxas
    /// gives a product 14 registers less than for `wait_group 0` (13.0, `sm_100`).
    pub(super) fn wait(&mut self, pending: u32) {
        self.wait_for_tiles(pending);
        self.copies_open = self.copies_open.filter(|groups| *groups <= pending);
        if self.tiles && !self.threads_copy {
            return;
        }
        let wait = match pending {
            0 => "wait_all".into(),
            n => format!("wait_group {n}"),
        };
        self.line(&format!("asm volatile(\"cp.async.{wait};\" ::: \"memory\");"));
    }
}
