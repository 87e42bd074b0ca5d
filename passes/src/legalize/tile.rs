//! Contractions as tiles of vectors: columns in lanes, rows beside each other in registers.
//!
//! ```text
//! for k
//!   b[v] = right[k, v]                     a load for each vector of columns
//!   for each row                           copied out
//!     a = left[row, k]                     one element, for all lanes
//!     tile[row, v] = fma(a, b[v], tile[row, v])
//! ```
//! Invariants:
//! - Every element takes its products in ascending order of the sum, each by one fused multiply-add (of words, by a product and an addition), as the definition says: the
//!   results are the bits of the plain loops.
//! - A tile in registers stays there, so that contractions one after another into the same tile, in loops too, load and store
//!   nothing of it. One in memory is loaded before the sum and stored behind it.
//! - What exceeds the emitter's registers is cut into parts, each with a sum of its own.
//! - Columns that do not fill a vector are left out by masks, so that no element is read or written that the contraction does not.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Contract, ContractOperand, Kernel, Memory, Op, Range, Scope, Stmt, ValueId};
use tlc_ir::target::{Emitter, TileShape};
use tlc_ir::{DType, ScalarOp};

use super::Legalizer;
use crate::tree::store;

/// Parts of a tile from which on plain loops are taken: each is code of its own.
const MOST_PARTS: i64 = 32;
/// Steps of a sum that are copied out.
const SHORT_SUM: i64 = 4;
/// Statements of an element's way into a vector register and out of it, loops and masks included.
const MOVE: u64 = 20;
/// Statements that one condition is tested with.
const CONDITION: u64 = 7;
/// The fewest lanes that tiles have.
const FEWEST_LANES: u64 = 4;

/// The fewest rows that a part has where the tile has more.
const FEWEST_ROWS: u64 = 3;

/// A tile that an emitter takes in vectors.
#[derive(Clone, Copy)]
pub(super) struct VectorTile {
    shape: TileShape,
    rows: i64,
    columns: i64,
}

/// Rows and vectors that one sum is taken for.
#[derive(Clone, Copy)]
struct Part {
    row: i64,
    rows: i64,
    vector: i64,
    vectors: i64,
}

fn in_registers(kernel: &Kernel, memory: Memory) -> bool {
    matches!(memory, Memory::Scratch(s) if kernel.scratch[s as usize].scope == Scope::Register)
}

/// Statements that a contraction becomes as tiles of vectors, at most, once they are copied out.
pub(super) fn tile_statements(kernel: &Kernel, c: &Contract) -> u64 {
    let Some([m, n]) = c.tile(kernel) else { return 0 };
    let (m, vectors) = (m.max(0) as u64, (n.max(0) as u64).div_ceil(FEWEST_LANES));
    let conditions = |o: &ContractOperand| CONDITION * (o.ranges.len() as u64 + 1);
    let parts = MOST_PARTS as u64;
    let moved = m.saturating_mul(vectors).saturating_mul(MOVE);
    let rows = m.saturating_mul(3 + conditions(&c.left));
    // Rows of the right operand are loaded for each part that has them.
    let columns = vectors
        .saturating_mul(4 + conditions(&c.right))
        .saturating_mul(m / FEWEST_ROWS + 1);
    let step = m
        .saturating_mul(vectors)
        .saturating_mul(6)
        .saturating_add(rows)
        .saturating_add(columns);
    moved
        .saturating_add(step.saturating_mul(SHORT_SUM as u64))
        .saturating_add(8 * parts)
}

/// The tile that an emitter has for a contraction, if it has one.
pub(super) fn vector_tile(kernel: &Kernel, emitter: &Emitter, c: &Contract) -> Option<VectorTile> {
    let [rows, columns] = c.tile(kernel)?;
    let dtype = kernel.memory_dtype(c.dst);
    // Tiles of i32 are those of words.
    let multiplied = dtype.is_float() || c.words;
    if !multiplied || !c.operands().iter().all(|o| kernel.memory_dtype(o.memory) == dtype) {
        return None;
    }
    let shape = emitter.tile(dtype, columns)?;
    let one = |e: &IndexExpr| e.affine_in(c.n()).is_some_and(|(stride, _)| stride.is(1));
    if !one(&c.right.index) || !one(&c.dst_index) {
        return None;
    }
    let Memory::Scratch(scratch) = c.dst else { return None };
    match kernel.scratch[scratch as usize].scope {
        Scope::Cache => {}
        // Registers are whole vectors.
        Scope::Register => {
            let whole = |e: &IndexExpr| e.as_const().is_some_and(|n| n % shape.lanes == 0);
            let (_, rest) = c.dst_index.affine_in(c.n())?;
            let (row, first) = rest.affine_in(c.m())?;
            let length = whole(&kernel.scratch[scratch as usize].len);
            if columns % shape.lanes != 0 || !(length && whole(&row) && whole(&first)) {
                return None;
            }
        }
        Scope::Shared | Scope::WarpFragment | Scope::BlockFragment | Scope::Thread => return None,
    }
    let tile = VectorTile { shape, rows, columns };
    (tile.parts().len() as i64 <= MOST_PARTS).then_some(tile)
}

impl VectorTile {
    /// The parts that sums are taken for.
    fn parts(&self) -> Vec<Part> {
        let all = (self.columns + self.shape.lanes - 1) / self.shape.lanes;
        let cut = |whole: i64, most: i64| {
            // As even as possible.
            let count = (whole + most - 1) / most;
            (0..count.min(MOST_PARTS + 1)).map(move |i| (whole * i / count, whole * (i + 1) / count))
        };
        let rows: Vec<(i64, i64)> = cut(self.rows, self.shape.rows).collect();
        let mut parts = Vec::new();
        for (v, behind) in cut(all, self.shape.vectors) {
            let (vector, vectors) = (v, behind - v);
            parts.extend(rows.iter().map(|&(row, end)| Part {
                row,
                rows: end - row,
                vector,
                vectors,
            }));
        }
        parts
    }
}

/// An operand at other places of its variables.
fn moved(operand: &ContractOperand, places: &[(VarId, IndexExpr)]) -> ContractOperand {
    let put = |e: &IndexExpr| put(e, places);
    ContractOperand {
        memory: operand.memory,
        index: put(&operand.index),
        ranges: operand
            .ranges
            .iter()
            .map(|r| Range {
                index: put(&r.index),
                limit: put(&r.limit),
            })
            .collect(),
    }
}

fn put(e: &IndexExpr, places: &[(VarId, IndexExpr)]) -> IndexExpr {
    e.replace_vars(&mut |v| places.iter().find(|p| p.0 == v).map(|p| p.1.clone()))
}

impl Legalizer<'_> {
    /// Emits a contraction as tiles of vectors.
    pub(super) fn contract_in_vectors(&mut self, c: &Contract, tile: VectorTile) {
        if self.kernel.extents[c.k().0 as usize].is(0) {
            return;
        }
        for part in tile.parts() {
            self.part(c, &tile, part);
        }
    }

    fn part(&mut self, c: &Contract, tile: &VectorTile, part: Part) {
        let lanes = tile.shape.lanes;
        let dtype = self.kernel.memory_dtype(c.dst);
        let whole = |n: i64| IndexExpr::Const(n * lanes);
        let held = in_registers(self.kernel, c.dst);
        let own = (!held).then(|| {
            self.kernel
                .new_scratch(dtype, whole(part.rows * part.vectors), Scope::Register)
        });
        let loaded = self.kernel.new_scratch(dtype, whole(part.vectors), Scope::Register);
        // Where an element of the tile is while the sum is taken.
        let place = |row: &IndexExpr, v: i64, column: &IndexExpr, lane: VarId| match own {
            Some(own) => (
                own,
                (row.clone() * IndexExpr::Const(part.vectors) + v.into()) * lanes.into() + lane.into(),
            ),
            None => (c.dst, Self::tile_index(c, part, row, column)),
        };
        if let Some(own) = own {
            self.rows(part.rows, |l, row| {
                l.vectors(tile, part, |l, v, column, lane, mask| {
                    let (memory, index) = (c.dst, Self::tile_index(c, part, row, column));
                    let value = l.emit(Op::Load { memory, index, mask }, dtype);
                    let (_, index) = place(row, v, column, lane);
                    l.out.push(store(own, index, value, None));
                });
            });
        }
        let extent = self.kernel.extents[c.k().0 as usize].clone();
        let short = extent.as_const().is_some_and(|n| n <= SHORT_SUM);
        let k = self.kernel.new_var(extent);
        let step = self.inside(|l| {
            l.vectors(tile, part, |l, v, column, lane, mask| {
                let right = moved(&c.right, &[(c.k(), k.into()), (c.n(), column.clone())]);
                let value = l.tile_element(&right, mask);
                l.out
                    .push(store(loaded, IndexExpr::Const(v * lanes) + lane.into(), value, None));
            });
            l.rows(part.rows, |l, row| {
                let at = row.clone() + part.row.into();
                let left = moved(&c.left, &[(c.k(), k.into()), (c.m(), at)]);
                let left = l.tile_element(&left, None);
                l.vectors(tile, part, |l, v, column, lane, _| {
                    let load = |memory, index| Op::Load {
                        memory,
                        index,
                        mask: None,
                    };
                    let right = l.emit(load(loaded, IndexExpr::Const(v * lanes) + lane.into()), dtype);
                    let (memory, index) = place(row, v, column, lane);
                    let old = l.emit(load(memory, index.clone()), dtype);
                    let new = match c.words {
                        true => {
                            let made = l.emit(Op::Map(ScalarOp::Dot4, [left, right].into_iter().collect()), dtype);
                            l.emit(Op::Map(ScalarOp::Add, [old, made].into_iter().collect()), dtype)
                        }
                        false => l.emit(Op::Map(ScalarOp::Fma, [left, right, old].into_iter().collect()), dtype),
                    };
                    l.out.push(store(memory, index, new, None));
                });
            });
        });
        let bind = if short { Bind::Unroll } else { Bind::Serial };
        self.out.push(Stmt::Loop {
            var: k,
            bind,
            body: step,
        });
        if own.is_some() {
            self.rows(part.rows, |l, row| {
                l.vectors(tile, part, |l, v, column, lane, mask| {
                    let (memory, index) = place(row, v, column, lane);
                    let value = l.emit(
                        Op::Load {
                            memory,
                            index,
                            mask: None,
                        },
                        dtype,
                    );
                    let index = Self::tile_index(c, part, row, column);
                    l.out.push(store(c.dst, index, value, mask));
                });
            });
        }
    }

    fn tile_index(c: &Contract, part: Part, row: &IndexExpr, column: &IndexExpr) -> IndexExpr {
        let row = row.clone() + part.row.into();
        put(&c.dst_index, &[(c.m(), row), (c.n(), column.clone())])
    }

    /// Emits what `f` does for each of so many rows, copied out.
    fn rows(&mut self, rows: i64, f: impl FnOnce(&mut Self, &IndexExpr)) {
        let var = self.kernel.new_var(IndexExpr::Const(rows));
        let body = self.inside(|l| f(l, &var.into()));
        self.out.push(Stmt::Loop {
            var,
            bind: Bind::Unroll,
            body,
        });
    }

    /// Emits what `f` does for each vector of a part, in lanes: it gets the vector's number, the column, the lane's variable and
    /// which lanes there are, if not all.
    fn vectors(
        &mut self,
        tile: &VectorTile,
        part: Part,
        f: impl Fn(&mut Self, i64, &IndexExpr, VarId, Option<ValueId>),
    ) {
        let lanes = tile.shape.lanes;
        for v in 0..part.vectors {
            let first = (part.vector + v) * lanes;
            let lane = self.kernel.new_var(IndexExpr::Const(lanes));
            let body = self.inside(|l| {
                let left = tile.columns - first;
                let mask = (left < lanes).then(|| l.below(&lane.into(), &IndexExpr::Const(left)));
                f(l, v, &(IndexExpr::Const(first) + lane.into()), lane, mask);
            });
            self.out.push(Stmt::Loop {
                var: lane,
                bind: Bind::Lanes,
                body,
            });
        }
    }

    /// Emits `index < limit`, in 32 bits where both fit.
    fn below(&mut self, index: &IndexExpr, limit: &IndexExpr) -> ValueId {
        let dtype = self.narrow_index(&[index, limit]);
        let at = self.emit(Op::Index(index.clone(), dtype), dtype);
        let limit = self.emit(Op::Index(limit.clone(), dtype), dtype);
        self.map(ScalarOp::Lt, &[at, limit])
    }

    /// The narrower integer dtype that holds all the indices.
    fn narrow_index(&self, indices: &[&IndexExpr]) -> DType {
        let small = |e: &&IndexExpr| {
            let range = e.interval(self.kernel);
            range.lo >= i64::from(i32::MIN) && range.hi <= i64::from(i32::MAX)
        };
        match indices.iter().all(small) {
            true => DType::I32,
            false => DType::I64,
        }
    }

    /// Emits an operand's element, zero where a condition or the mask does not hold.
    fn tile_element(&mut self, operand: &ContractOperand, mut mask: Option<ValueId>) -> ValueId {
        for range in &operand.ranges {
            let mut tests = Vec::new();
            if !range.index.proves_nonnegative(self.kernel) {
                let dtype = self.narrow_index(&[&range.index]);
                let zero = self.emit(Op::Const(dtype.zero()), dtype);
                let at = self.emit(Op::Index(range.index.clone(), dtype), dtype);
                tests.push(self.map(ScalarOp::Le, &[zero, at]));
            }
            tests.push(self.below(&range.index, &range.limit));
            for test in tests {
                mask = Some(match mask {
                    Some(before) => self.map(ScalarOp::And, &[before, test]),
                    None => test,
                });
            }
        }
        let (memory, index) = (operand.memory, operand.index.clone());
        let dtype = self.kernel.memory_dtype(memory);
        self.emit(Op::Load { memory, index, mask }, dtype)
    }
}
