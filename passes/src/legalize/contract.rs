//! Contractions as plain loops, for emitters that have neither matrix instructions nor vector tiles ([`super::tile`]) for them.
//!
//! Every element takes its products in ascending order of the sum, as the definition says, so the results are the same bits.
//! A tile of registers is copied out inside one loop over the whole sum; any other is walked block by block.

use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Contract, ContractOperand, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::Support;
use tlc_ir::{DType, Precision, Scalar, ScalarOp};

use super::Legalizer;
use super::tile::{tile_statements, vector_tile};

/// Statements that one step of a contraction becomes, without those of its conversions and conditions: two loads, a load and a
/// store of the tile, a product that is added, a loop around it.
const STEP: u64 = 8;
/// Statements that test one condition.
const CONDITION: u64 = 8;

/// Statements that round one operand.
const ROUNDING: u64 = 10;

/// Whether the rows and columns of the tile are copied out.
fn in_registers(kernel: &Kernel, dst: Memory) -> bool {
    match dst {
        Memory::Scratch(s) => matches!(kernel.scratch[s as usize].scope, Scope::Register | Scope::Thread),
        Memory::Param(_) => false,
    }
}

/// Statements that a contraction becomes once its tile is copied out, at most.
pub(super) fn contract_statements(kernel: &Kernel, c: &Contract) -> u64 {
    let accumulator = kernel.memory_dtype(c.dst);
    let operand = |o: &ContractOperand| {
        let convert = super::convert_statements(kernel.memory_dtype(o.memory), accumulator);
        u64::from(convert) + CONDITION * o.ranges.len() as u64
    };
    let rounding = match c.precision {
        Precision::Exact => 0,
        _ => 2 * ROUNDING,
    };
    let step = STEP + rounding + operand(&c.left) + operand(&c.right);
    let copies = match c.tile(kernel) {
        Some([m, n]) if in_registers(kernel, c.dst) => {
            let (m, n) = (m.max(0) as u64, n.max(0) as u64);
            m.saturating_mul(n.saturating_add(1))
        }
        _ => 1,
    };
    let loops = step.saturating_mul(copies).saturating_add(4);
    match accumulator.is_float() || c.words {
        true => loops.max(tile_statements(kernel, c)),
        false => loops,
    }
}

impl Legalizer<'_> {
    /// Whether the emitter has no matrix instructions for it.
    pub(super) fn lacks(&self, c: &Contract) -> bool {
        let (Some(emitter), Some([m, n])) = (self.emitter, c.tile(self.kernel)) else {
            return true;
        };
        // There are no plain loops over what no thread is known to hold: such an emitter refuses the kernel.
        if let Memory::Scratch(s) = c.dst
            && matches!(
                self.kernel.scratch[s as usize].scope,
                Scope::WarpFragment | Scope::BlockFragment
            )
        {
            return false;
        }
        // Where there are blocks, matrix instructions are those of a warp: a thread has none.
        if emitter.has_blocks || c.words {
            return true;
        }
        let operands = c.operands().map(|o| self.kernel.memory_dtype(o.memory));
        let accumulator = self.kernel.memory_dtype(c.dst);
        emitter.contract(operands, accumulator, c.precision, [m, n, c.k_block]) != Support::Native
    }

    /// Emits a contraction as tiles of vectors or, where the emitter has none for it, as loops.
    pub(super) fn contract(&mut self, mut c: Contract) {
        if let Some(tile) = self.emitter.and_then(|e| vector_tile(self.kernel, e, &c)) {
            return self.contract_in_vectors(&c, tile);
        }
        let (m, n, k) = (c.m(), c.n(), c.k());
        if in_registers(self.kernel, c.dst) {
            let tile = self.inside(|l| {
                let left = l.multiplied(&c, &c.left);
                let row = l.inside(|l| l.step(&c, left));
                l.repeat(n, Bind::Unroll, row);
            });
            let tile = vec![looped(m, Bind::Unroll, tile)];
            return self.repeat(k, Bind::Serial, tile);
        }
        // One block needs no loop over blocks.
        let steps = self.kernel.extents[k.0 as usize].clone();
        let mut block = None;
        if steps.as_const().is_none_or(|steps| steps > c.k_block) {
            let length = IndexExpr::Const(c.k_block);
            let var = self.kernel.new_var(steps.ceil_div(c.k_block));
            let start = IndexExpr::from(var) * length.clone();
            self.kernel.extents[k.0 as usize] = IndexExpr::min(&length, &(steps - start.clone()));
            let at = start + k.into();
            let mut all = Stmt::Contract(Box::new(c));
            for e in all.indices_mut() {
                *e = e.replace_vars(&mut |v| (v == k).then(|| at.clone()));
            }
            let Stmt::Contract(moved) = all else { return };
            c = *moved;
            block = Some(var);
        }
        let step = self.inside(|l| {
            let left = l.multiplied(&c, &c.left);
            l.step(&c, left);
        });
        let tile = vec![looped(n, Bind::Serial, vec![looped(k, Bind::Serial, step)])];
        match block {
            Some(block) => self.repeat(block, Bind::Serial, vec![looped(m, Bind::Serial, tile)]),
            None => self.repeat(m, Bind::Serial, tile),
        }
    }

    fn repeat(&mut self, var: VarId, bind: Bind, body: Vec<Stmt>) {
        self.out.push(looped(var, bind, body));
    }

    /// The statements that `f` emits.
    pub(super) fn inside(&mut self, f: impl FnOnce(&mut Self)) -> Vec<Stmt> {
        let outer = std::mem::take(&mut self.out);
        f(self);
        std::mem::replace(&mut self.out, outer)
    }

    /// Emits one step, whose left element is computed.
    fn step(&mut self, c: &Contract, left: ValueId) {
        let accumulator = self.kernel.memory_dtype(c.dst);
        let right = self.multiplied(c, &c.right);
        if accumulator.is_float() {
            let (memory, index, mask) = (c.dst, c.dst_index.clone(), None);
            let old = self.emit(Op::Load { memory, index, mask }, accumulator);
            let value = self.map(ScalarOp::Fma, &[left, right, old]);
            let index = c.dst_index.clone();
            self.out.push(Stmt::Store {
                memory,
                index,
                value,
                mask: None,
            });
        } else {
            let op = if c.words { ScalarOp::Dot4 } else { ScalarOp::Mul };
            let product = self.map(op, &[left, right]);
            self.accumulate(Monoid::Add, &[(c.dst, c.dst_index.clone())], &[product]);
        }
    }

    /// Emits an operand's element as it is multiplied.
    fn multiplied(&mut self, c: &Contract, operand: &ContractOperand) -> ValueId {
        let value = self.operand(operand, self.kernel.memory_dtype(c.dst));
        match c.precision {
            Precision::Tf32 => self.as_tf32(value),
            _ => value,
        }
    }

    /// An f32 rounded to tf32, as [`tlc_ir::precision::to_tf32`] does.
    fn as_tf32(&mut self, value: ValueId) -> ValueId {
        let number = |l: &mut Self, n: i64| l.emit(Op::Const(Scalar::from_i64(DType::I32, n)), DType::I32);
        let bits = self.emit(Op::Bitcast(DType::I32, value), DType::I32);
        let (half, kept, exponent) = (number(self, 0x1000), number(self, !0x1fff), number(self, 0x7f80_0000));
        let moved = self.map(ScalarOp::Add, &[bits, half]);
        let moved = self.map(ScalarOp::And, &[moved, kept]);
        let rounded = self.emit(Op::Bitcast(DType::F32, moved), DType::F32);
        // Infinities and NaN stay as they are.
        let scale = self.map(ScalarOp::And, &[bits, exponent]);
        let finite = self.map(ScalarOp::Ne, &[scale, exponent]);
        self.map(ScalarOp::Select, &[finite, rounded, value])
    }

    /// Emits an operand's element, in the accumulator's dtype.
    fn operand(&mut self, operand: &ContractOperand, accumulator: DType) -> ValueId {
        let mut mask = None;
        let mut both = |l: &mut Self, test: ValueId| {
            mask = Some(match mask {
                Some(before) => l.map(ScalarOp::And, &[before, test]),
                None => test,
            });
        };
        for range in &operand.ranges {
            let at = self.emit(Op::Index(range.index.clone(), DType::I64), DType::I64);
            if !range.index.proves_nonnegative(self.kernel) {
                let zero = self.emit(Op::Const(DType::I64.zero()), DType::I64);
                let above = self.map(ScalarOp::Le, &[zero, at]);
                both(self, above);
            }
            let limit = self.emit(Op::Index(range.limit.clone(), DType::I64), DType::I64);
            let below = self.map(ScalarOp::Lt, &[at, limit]);
            both(self, below);
        }
        let (memory, index) = (operand.memory, operand.index.clone());
        let dtype = self.kernel.memory_dtype(memory);
        let value = self.emit(Op::Load { memory, index, mask }, dtype);
        if dtype == accumulator {
            return value;
        }
        let converted = self.kernel.new_value(accumulator);
        self.statement(Stmt::Let {
            value: converted,
            op: Op::Convert(accumulator, value),
        });
        let converted = self.of(converted);
        match mask {
            // The one dtype without a zero: what is not read is its smallest number.
            Some(mask) if dtype == DType::F8E8M0FNU => {
                let zero = self.emit(Op::Const(accumulator.zero()), accumulator);
                self.map(ScalarOp::Select, &[mask, converted, zero])
            }
            _ => converted,
        }
    }
}

fn looped(var: VarId, bind: Bind, body: Vec<Stmt>) -> Stmt {
    Stmt::Loop { var, bind, body }
}
