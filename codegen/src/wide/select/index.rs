//! Index arithmetic and addresses.
//!
//! Invariants:
//! - Terms of an address are added outermost loop first, each where it is known, so that in a loop only what changes there is left.
//! - The counter of a loop is kept as the greatest common byte stride of the accesses, as itself, or both, and is added by the
//!   access itself: `[pointer + counter * {1, 2, 4, 8} + constant]`.
//! - Addresses that differ by a multiple of one value known before all loops, as those of rows of unknown length do, are each found from the one before.
//!   Otherwise what changes in a loop would be added to every one of them there, and each would need a register of its own.

use iced_x86::Code;
use regalloc2::Operand;
use smallvec::SmallVec;
use tlc_ir::kernel::Memory;

use super::{Arg, Block, Inst, Place, Pointer, PointerKey, Reg, Selector, Size, Terms, general};
use crate::error::{Result, invalid};
use crate::flat::{Address, Op, Value};
use crate::wide::machine::Base;

/// A loop's counter: itself, and multiplied by a unit, whichever are kept, and the block that has them.
#[derive(Clone, Copy)]
pub(super) struct Counter {
    pub plain: Option<Reg>,
    pub scaled: Option<(Reg, i64)>,
    pub home: Block,
}

impl Selector<'_, '_> {
    /// `v + n`.
    pub(super) fn plus(&mut self, v: Reg, n: i64) -> Reg {
        match i32::try_from(n) {
            Ok(0) => v,
            Ok(n) => self.int_op(Code::Lea_r64_m, Size::Q, &[Arg::Memory(Place::at(v, n))]),
            Err(_) => {
                let n = self.number(n);
                self.int_update(Code::Add_r64_rm64, v, &[Arg::Use(n, Size::Q)])
            }
        }
    }

    /// `v * k`.
    pub(super) fn times(&mut self, v: Reg, k: i64) -> Reg {
        match k {
            1 => v,
            k if k > 0 && k & (k - 1) == 0 => {
                self.int_update(Code::Shl_rm64_imm8, v, &[Arg::Imm8(k.trailing_zeros() as u8)])
            }
            k => match i32::try_from(k) {
                Ok(k) => self.int_op(
                    Code::Imul_r64_rm64_imm32,
                    Size::Q,
                    &[Arg::Use(v, Size::Q), Arg::Imm32(k)],
                ),
                Err(_) => {
                    let k = self.number(k);
                    self.int_update(Code::Imul_r64_rm64, v, &[Arg::Use(k, Size::Q)])
                }
            },
        }
    }

    /// `a + b * k`.
    fn plus_times(&mut self, a: Reg, b: Reg, k: i64) -> Reg {
        let (index, scale) = match k {
            1 | 2 | 4 | 8 => (b, k as u8),
            _ => (self.times(b, k), 1),
        };
        let place = Place {
            base: Base::Reg(a),
            index: Some((index, scale)),
            displacement: 0,
        };
        self.int_op(Code::Lea_r64_m, Size::Q, &[Arg::Memory(place)])
    }

    fn kept(&self, v: Value) -> Option<Counter> {
        match self.flat.op(v) {
            Op::Counter => self.counters.get(&v).copied(),
            _ => None,
        }
    }

    /// A counter as itself.
    pub(super) fn counter(&mut self, v: Value) -> Result<Reg> {
        if let Some(made) = self.forms[v.0 as usize].int {
            return Ok(made);
        }
        let Some(kept) = self.kept(v) else {
            return invalid(format!("%{} counts no loop around", v.0));
        };
        let made = match (kept.plain, kept.scaled) {
            (Some(plain), _) => plain,
            (None, Some((scaled, unit))) => self.at(kept.home, |s| {
                let unit = s.number(unit);
                s.divided(scaled, unit, false).0
            }),
            (None, None) => return invalid(format!("%{} is not kept", v.0)),
        };
        let forms = &mut self.forms[v.0 as usize];
        forms.int = Some(made);
        forms.home = Some(kept.home);
        Ok(made)
    }

    /// A term as it is kept, what it is kept times, and where it is known.
    fn term(&mut self, v: Value, k: i64) -> Result<(Reg, i64, Block)> {
        if let Some(Counter {
            scaled: Some((scaled, unit)),
            home,
            ..
        }) = self.kept(v)
            && k % unit == 0
        {
            return Ok((scaled, k / unit, home));
        }
        if let Some(n) = self.flat.number(v) {
            let entry = self.entry;
            return Ok((self.at(entry, |s| s.number(n)), k, entry));
        }
        let reg = self.int(v)?;
        Ok((reg, k, self.home(v)))
    }

    /// A sum, in the innermost home of its terms.
    pub(super) fn sum(&mut self, v: Value) -> Result<Reg> {
        if let Some(made) = self.forms[v.0 as usize].int {
            return Ok(made);
        }
        let Op::Sum { terms, constant } = self.flat.op(v) else {
            return invalid(format!("%{} is no sum", v.0));
        };
        let (made, home) = match terms.is_empty() {
            true => (self.at(self.entry, |s| s.number(*constant)), self.entry),
            false => {
                let (sum, home) = self.terms(terms)?;
                (self.at(home, |s| s.plus(sum, *constant)), home)
            }
        };
        let forms = &mut self.forms[v.0 as usize];
        forms.int = Some(made);
        forms.home = Some(home);
        Ok(made)
    }

    /// What terms add up to, and the innermost home of these, where that is.
    pub(super) fn terms(&mut self, terms: &[(Value, i64)]) -> Result<(Reg, Block)> {
        let (mut home, mut sum) = (self.entry, None);
        for (term, k) in terms {
            let (reg, k, at) = self.term(*term, *k)?;
            home = self.inner(home, at);
            sum = Some(self.at(home, |s| match sum {
                None => s.times(reg, k),
                Some(sum) => s.plus_times(sum, reg, k),
            }));
        }
        match sum {
            Some(sum) => Ok((sum, home)),
            None => invalid("a sum of nothing"),
        }
    }

    /// The address that the first terms of an access come to.
    fn pointer(&mut self, a: &Address, terms: &[(Value, i64)]) -> Result<(Reg, Block)> {
        let Some((&(term, k), before)) = terms.split_last() else {
            return self.area(a.memory);
        };
        let key = (a.memory, SmallVec::from_slice(terms));
        if let Some(known) = self.pointers.get(&key) {
            return Ok(*known);
        }
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        let shared = self.terms_in_loops(a.memory, terms)?;
        let near = match &shared {
            Some((in_loops, outside)) => self.pointer_near(in_loops, outside, bytes)?,
            None => None,
        };
        let made = match near {
            Some(made) => made,
            None => {
                let (base, home) = self.pointer(a, before)?;
                let (reg, k, at) = self.term(term, k.wrapping_mul(bytes))?;
                let home = self.inner(home, at);
                (self.at(home, |s| s.plus_times(base, reg, k)), home)
            }
        };
        if let Some((in_loops, outside)) = shared {
            let (register, home) = made;
            self.nearest.insert(
                in_loops,
                Pointer {
                    outside,
                    register,
                    home,
                },
            );
        }
        self.pointers.insert(key, made);
        Ok(made)
    }

    /// The terms of an address that change in loops, and the others. `None` if all sizes are known, as distances are constants then.
    fn terms_in_loops(&mut self, memory: Memory, terms: &[(Value, i64)]) -> Result<Option<(PointerKey, Terms)>> {
        if self.flat.kernel.symbols.is_empty() {
            return Ok(None);
        }
        let (mut inside, mut outside) = (Terms::new(), Terms::new());
        for &(v, k) in terms {
            match self.term(v, k)?.2 == self.entry {
                true => outside.push((v, k)),
                false => inside.push((v, k)),
            }
        }
        Ok((!inside.is_empty()).then_some(((memory, inside), outside)))
    }

    /// An address from the last one that was made with the same terms in loops, if it differs from that by a multiple of one value.
    fn pointer_near(
        &mut self,
        in_loops: &PointerKey,
        outside: &[(Value, i64)],
        bytes: i64,
    ) -> Result<Option<(Reg, Block)>> {
        let Some(near) = self.nearest.get(in_loops) else {
            return Ok(None);
        };
        let Pointer {
            outside: before,
            register,
            home,
        } = near.clone();
        let made = self.moved(register, home, &before, outside, bytes)?;
        Ok(made.map(|register| (register, home)))
    }

    /// An address from the last one that was made here, or from the one that is known around the loops, with the same terms in these: each of many rows
    /// would take a register through the loop if it were kept, and be loaded from the stack as often as it is found here.
    fn pointer_beside(&mut self, a: &Address, terms: &[(Value, i64)]) -> Result<Option<Reg>> {
        // Distances are constants then.
        if self.flat.kernel.symbols.is_empty() {
            return Ok(None);
        }
        let here = self.here;
        let key = (a.memory, SmallVec::from_slice(terms));
        if self.pointers.contains_key(&key) {
            return Ok(None);
        }
        let Some((in_loops, outside)) = self.terms_in_loops(a.memory, terms)? else {
            return Ok(None);
        };
        let Some(first) = self.nearest.get(&in_loops).filter(|p| p.home != here) else {
            return Ok(None);
        };
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        let last = self.beside.get(&in_loops).filter(|p| p.home == here);
        let Pointer {
            outside: before,
            register,
            ..
        } = last.unwrap_or(first).clone();
        if before == outside {
            return Ok(Some(register));
        }
        let Some(register) = self.moved(register, here, &before, &outside, bytes)? else {
            return Ok(None);
        };
        let made = Pointer {
            outside,
            register,
            home: here,
        };
        self.beside.insert(in_loops, made);
        Ok(Some(register))
    }

    /// An address from another one with the same terms in loops, whose other terms are those `before`, if the two differ by a multiple of one value.
    fn moved(
        &mut self,
        register: Reg,
        home: Block,
        before: &[(Value, i64)],
        outside: &[(Value, i64)],
        bytes: i64,
    ) -> Result<Option<Reg>> {
        let mut apart = Terms::from_slice(outside);
        for &(v, k) in before {
            match apart.iter_mut().find(|(other, _)| *other == v) {
                Some((_, other)) => *other = other.wrapping_sub(k),
                None => apart.push((v, k.wrapping_neg())),
            }
        }
        apart.retain(|(_, k)| *k != 0);
        let [(v, k)] = apart[..] else { return Ok(None) };
        let k = k.wrapping_mul(bytes);
        let (distance, k) = match k {
            1 | 2 | 4 | 8 => (self.term(v, 1)?.0, k),
            _ => (self.distance(v, k)?, 1),
        };
        Ok(Some(self.at(home, |s| s.plus_times(register, distance, k))))
    }

    /// `v * k` in front of all loops, where `v` is known.
    fn distance(&mut self, v: Value, k: i64) -> Result<Reg> {
        if let Some(known) = self.distances.get(&(v, k)) {
            return Ok(*known);
        }
        let (reg, k_kept, _) = self.term(v, k)?;
        let entry = self.entry;
        let made = self.at(entry, |s| s.times(reg, k_kept));
        self.distances.insert((v, k), made);
        Ok(made)
    }

    /// The memory operand of an access, of which `span` bytes behind the first are addressed too.
    pub(super) fn place(&mut self, a: &Address, span: i64) -> Result<Place> {
        let bytes = self.flat.kernel.memory_dtype(a.memory).bytes() as i64;
        let terms = self.flat.terms(a);
        let mut index = None;
        let mut first = &terms[..];
        if let Some((&(term, k), before)) = terms.split_last()
            && let Some(kept) = self.kept(term)
        {
            let k = k.wrapping_mul(bytes);
            let scaled = kept
                .scaled
                .filter(|(_, unit)| k % unit == 0)
                .map(|(r, unit)| (r, k / unit));
            let plain = kept.plain.map(|r| (r, k));
            let fits = |o: &(Reg, i64)| matches!(o.1, 1 | 2 | 4 | 8);
            if let Some((reg, scale)) = scaled.filter(fits).or(plain.filter(fits)) {
                index = Some((reg, scale as u8));
                first = before;
            }
        }
        let base = match self.pointer_beside(a, first)? {
            Some(base) => base,
            None => self.pointer(a, first)?.0,
        };
        let offset = a.constant.wrapping_mul(bytes);
        let (base, displacement) = match (i32::try_from(offset), i32::try_from(offset.saturating_add(span))) {
            (Ok(offset), Ok(_)) => (base, offset),
            _ => (self.plus(base, offset), 0),
        };
        Ok(Place {
            base: Base::Reg(base),
            index,
            displacement,
        })
    }

    /// The address of an element in a general register.
    pub(super) fn address(&mut self, a: &Address) -> Result<Reg> {
        let place = self.place(a, 0)?;
        Ok(self.int_op(Code::Lea_r64_m, Size::Q, &[Arg::Memory(place)]))
    }

    /// Index arithmetic but sums.
    pub(super) fn index_op(&mut self, op: &Op) -> Result<Reg> {
        match op {
            Op::Product(factors) => {
                let mut product = self.int(factors[0])?;
                for f in &factors[1..] {
                    let f = self.int(*f)?;
                    product = self.int_update(Code::Imul_r64_rm64, product, &[Arg::Use(f, Size::Q)]);
                }
                Ok(product)
            }
            Op::FloorDiv(a, b) => self.floored(*a, *b, true),
            Op::FloorMod(a, b) => self.floored(*a, *b, false),
            Op::Smaller(a, b) => {
                let (a, b) = (self.int(*a)?, self.int(*b)?);
                Ok(self.extremum(Code::Cmovg_r64_rm64, a, b))
            }
            Op::Larger(a, b) => {
                let (a, b) = (self.int(*a)?, self.int(*b)?);
                Ok(self.extremum(Code::Cmovl_r64_rm64, a, b))
            }
            Op::Clamp { data, last } => {
                let (data, last) = (self.int(*data)?, self.int(*last)?);
                let v = self.extremum(Code::Cmovg_r64_rm64, data, last);
                let zero = self.number(0);
                Ok(self.extremum(Code::Cmovl_r64_rm64, v, zero))
            }
            _ => invalid("no index"),
        }
    }

    /// `a`, or `b` where the comparison of the two says so.
    fn extremum(&mut self, code: Code, a: Reg, b: Reg) -> Reg {
        self.push(Inst::new(
            Code::Cmp_r64_rm64,
            &[Arg::Use(a, Size::Q), Arg::Use(b, Size::Q)],
        ));
        self.int_update(code, a, &[Arg::Use(b, Size::Q)])
    }

    /// Quotient and remainder; the divisor is not 0, and -1 only where nothing overflows.
    pub(super) fn divided(&mut self, n: Reg, d: Reg, signed: bool) -> (Reg, Reg) {
        let (quotient, remainder, high) = (self.int_reg(), self.int_reg(), self.int_reg());
        let (fill, code) = match signed {
            true => {
                let mut cqo = Inst::new(Code::Cqo, &[]);
                cqo.fixed.push(Self::fixed_use(n, general::RAX));
                cqo.fixed.push(Operand::reg_fixed_def(high, general::RDX));
                (cqo, Code::Idiv_rm64)
            }
            false => {
                let zero = Inst::new(Code::Xor_r32_rm32, &[Arg::Def(high, Size::D), Arg::Same(Size::D)]);
                (zero, Code::Div_rm64)
            }
        };
        self.push(fill);
        let mut div = Inst::new(code, &[Arg::Use(d, Size::Q)]);
        div.fixed.push(Self::fixed_use(n, general::RAX));
        div.fixed.push(Self::fixed_use(high, general::RDX));
        div.fixed.push(Operand::reg_fixed_def(quotient, general::RAX));
        div.fixed.push(Operand::reg_fixed_def(remainder, general::RDX));
        self.push(div);
        (quotient, remainder)
    }

    /// The floored quotient or the remainder to it; a divisor below 1 counts as 1.
    fn floored(&mut self, a: Value, b: Value, quotient: bool) -> Result<Reg> {
        let n = self.int(a)?;
        if let Some(d) = self.flat.number(b).filter(|d| *d > 0 && d & (d - 1) == 0) {
            return Ok(match (quotient, d) {
                (true, 1) => n,
                (true, d) => self.int_update(Code::Sar_rm64_imm8, n, &[Arg::Imm8(d.trailing_zeros() as u8)]),
                (false, d) => match i32::try_from(d - 1) {
                    Ok(mask) => self.int_update(Code::And_rm64_imm32, n, &[Arg::Imm32(mask)]),
                    Err(_) => {
                        let mask = self.number(d - 1);
                        self.int_update(Code::And_r64_rm64, n, &[Arg::Use(mask, Size::Q)])
                    }
                },
            });
        }
        let mut d = self.int(b)?;
        if self.flat.info(b).range.lo < 1 {
            let one = self.number(1);
            d = self.extremum(Code::Cmovl_r64_rm64, d, one);
        }
        if self.flat.info(a).range.lo >= 0 {
            let (q, r) = self.divided(n, d, false);
            return Ok(if quotient { q } else { r });
        }
        let (q, r) = self.divided(n, d, true);
        let adjusted = match quotient {
            true => self.plus(q, -1),
            false => self.plus_times(r, d, 1),
        };
        self.push(Inst::new(
            Code::Test_rm64_r64,
            &[Arg::Use(r, Size::Q), Arg::Use(r, Size::Q)],
        ));
        let plain = if quotient { q } else { r };
        Ok(self.int_update(Code::Cmovs_r64_rm64, plain, &[Arg::Use(adjusted, Size::Q)]))
    }
}
