//! Index arithmetic and addresses in bytes.
//!
//! Invariants:
//! - Terms are added outermost loop first, so that the parts which do not change in a loop are one value that Cranelift
//!   hoists, and the innermost counter is added last, where x86 folds it into the address.
//! - The constant part becomes the offset of the load or store.
//! - A counter is kept in the form that its loop uses: as the greatest common byte stride of the accesses, as itself, or
//!   both. So an access in the innermost loop is `[base + counter * {1, 2, 4, 8} + constant]` on x86.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{ConstantData, InstBuilder, Type, Value, types};

use super::translate::{MemoKey, Translator};
use crate::error::Result;
use crate::flat::{self, Address, Op};

/// A loop's counter: itself, and multiplied by a unit, whichever are kept.
#[derive(Clone, Copy)]
pub(super) struct Counter {
    pub plain: Option<Value>,
    pub scaled: Option<(Value, i64)>,
}

impl Translator<'_, '_, '_> {
    /// `v * k`.
    pub(super) fn by(&mut self, v: Value, k: i64) -> Value {
        if k == 1 { v } else { self.b.ins().imul_imm_s(v, k) }
    }

    fn times(&mut self, v: Value, k: i64) -> Value {
        match k {
            1 => v,
            k if k > 0 && k & (k - 1) == 0 => self.b.ins().ishl_imm_u(v, k.trailing_zeros() as i64),
            k => self.b.ins().imul_imm_s(v, k),
        }
    }

    /// `term * k`; a counter that is kept scaled is used where it divides.
    fn term_times(&mut self, term: flat::Value, mut k: i64) -> Value {
        let v = match self.kept(term) {
            Some(Counter {
                scaled: Some((v, unit)),
                ..
            }) if k % unit == 0 => {
                k /= unit;
                v
            }
            _ => self.value(term),
        };
        self.times(v, k)
    }

    /// How a counter is kept.
    fn kept(&self, v: flat::Value) -> Option<Counter> {
        match self.flat.op(v) {
            Op::Counter => self.counters.get(&v).copied(),
            _ => None,
        }
    }

    pub(super) fn counter(&mut self, v: flat::Value) -> Value {
        match self.kept(v) {
            Some(Counter { plain: Some(v), .. }) => v,
            Some(Counter {
                scaled: Some((v, unit)),
                ..
            }) => {
                let unit = self.int(types::I64, unit);
                self.b.ins().udiv(v, unit)
            }
            // The lowered form uses a counter in its loop only.
            _ => unreachable!("%{} counts no loop around", v.0),
        }
    }

    /// A sum, made here if no use before dominates.
    pub(super) fn sum(&mut self, v: flat::Value) -> Value {
        let key = MemoKey::Index(v);
        if let Some(made) = self.memo_get(&key) {
            return made;
        }
        let made = match self.flat.op(v) {
            Op::Sum { terms, constant } => {
                let mut sum = None;
                for (term, k) in terms {
                    let t = self.term_times(*term, *k);
                    sum = Some(match sum {
                        None => t,
                        Some(s) => self.b.ins().iadd(s, t),
                    });
                }
                match sum {
                    None => self.int(types::I64, *constant),
                    Some(s) => self.add_const(s, *constant),
                }
            }
            _ => self.value(v),
        };
        self.memo_put(key, made);
        made
    }

    /// An index times a constant.
    pub(super) fn scaled(&mut self, v: flat::Value, k: i64) -> Value {
        match self.flat.number(v) {
            Some(n) => self.int(types::I64, n.wrapping_mul(k)),
            None => {
                let v = self.value(v);
                self.times(v, k)
            }
        }
    }

    /// Where the elements of an address begin, without its constant.
    pub(super) fn base(&mut self, a: &Address) -> Result<Value> {
        let key = MemoKey::Base(a.memory, a.uniform, a.varying);
        if let Some(base) = self.memo_get(&key) {
            return Ok(base);
        }
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        let mut base = self.area(a.memory)?.base;
        for (term, k) in self.flat.terms(a) {
            let v = self.term_times(term, k.wrapping_mul(bytes));
            base = self.b.ins().iadd(base, v);
        }
        self.memo_put(key, base);
        Ok(base)
    }

    /// A base and an offset that fits the instruction, for an access of `span` bytes behind the first.
    pub(super) fn place(&mut self, a: &Address, span: i64) -> Result<(Value, i32)> {
        let base = self.base(a)?;
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        let offset = a.constant.wrapping_mul(bytes);
        Ok(
            match (i32::try_from(offset), i32::try_from(offset.saturating_add(span))) {
                (Ok(offset), Ok(_)) => (base, offset),
                _ => (self.add_const(base, offset), 0),
            },
        )
    }

    /// The address of an element.
    pub(super) fn pointer(&mut self, a: &Address) -> Result<Value> {
        let base = self.base(a)?;
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        Ok(match a.constant.wrapping_mul(bytes) {
            0 => base,
            offset => {
                let offset = self.b.ins().iconst(types::I64, offset);
                self.b.ins().iadd(base, offset)
            }
        })
    }

    /// The smaller or the larger of two indices.
    pub(super) fn extremum(&mut self, smaller: bool, a: Value, b: Value) -> Value {
        let cc = match smaller {
            true => IntCC::SignedLessThan,
            false => IntCC::SignedGreaterThan,
        };
        let c = self.b.ins().icmp(cc, a, b);
        self.b.ins().select(c, a, b)
    }

    fn power_of_two(&self, v: flat::Value) -> Option<i64> {
        self.flat.number(v).filter(|d| *d > 0 && d & (d - 1) == 0)
    }

    /// A divisor; one below 1 counts as 1.
    fn divisor(&mut self, v: flat::Value) -> Value {
        let d = self.value(v);
        if self.flat.info(v).range.lo >= 1 {
            return d;
        }
        let one = self.int(types::I64, 1);
        self.extremum(false, d, one)
    }

    /// 32-bit division is several times faster than 64-bit on most x86 machines.
    fn is_short(&self, a: flat::Value, b: flat::Value) -> bool {
        let most = |v| self.flat.info(v).range.hi;
        most(a) <= u32::MAX as i64 && most(b) <= u32::MAX as i64
    }

    pub(super) fn floor_div(&mut self, a: flat::Value, b: flat::Value) -> Value {
        let n = self.value(a);
        if let Some(d) = self.power_of_two(b) {
            return self.b.ins().sshr_imm_u(n, d.trailing_zeros() as i64);
        }
        let d = self.divisor(b);
        if self.flat.info(a).range.lo < 0 {
            let (q, r) = (self.b.ins().sdiv(n, d), self.b.ins().srem(n, d));
            let negative = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, r, 0);
            let less = self.b.ins().iadd_imm_s(q, -1);
            return self.b.ins().select(negative, less, q);
        }
        if !self.is_short(a, b) {
            return self.b.ins().udiv(n, d);
        }
        let (n, d) = (self.b.ins().ireduce(types::I32, n), self.b.ins().ireduce(types::I32, d));
        let q = self.b.ins().udiv(n, d);
        self.b.ins().uextend(types::I64, q)
    }

    pub(super) fn floor_mod(&mut self, a: flat::Value, b: flat::Value) -> Value {
        let n = self.value(a);
        if let Some(d) = self.power_of_two(b) {
            return self.b.ins().band_imm_s(n, d - 1);
        }
        let d = self.divisor(b);
        if self.flat.info(a).range.lo < 0 {
            let r = self.b.ins().srem(n, d);
            let negative = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, r, 0);
            let more = self.b.ins().iadd(r, d);
            return self.b.ins().select(negative, more, r);
        }
        if !self.is_short(a, b) {
            return self.b.ins().urem(n, d);
        }
        let (n, d) = (self.b.ins().ireduce(types::I32, n), self.b.ins().ireduce(types::I32, d));
        let r = self.b.ins().urem(n, d);
        self.b.ins().uextend(types::I64, r)
    }

    /// `0, step, 2 * step, ...` in the lanes of an integer type.
    pub(super) fn steps(&mut self, ty: Type, step: i64) -> Value {
        self.numbers(
            ty,
            (0..ty.lane_count() as i64).map(|lane| lane.wrapping_mul(step) as u64),
        )
    }

    /// Numbers, by their bits, as a vector of integers, whose further lanes are zero.
    pub(super) fn numbers(&mut self, ty: Type, numbers: impl Iterator<Item = u64>) -> Value {
        let bytes = (ty.lane_bits() / 8) as usize;
        let mut data: Vec<u8> = numbers.flat_map(|n| n.to_le_bytes()[..bytes].to_vec()).collect();
        data.resize(ty.bytes() as usize, 0);
        let handle = self.b.func.dfg.constants.insert(ConstantData::from(data));
        self.b.ins().vconst(ty, handle)
    }
}
