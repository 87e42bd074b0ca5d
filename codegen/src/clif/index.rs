//! Index expressions as 64-bit arithmetic.
//!
//! A sum is added up from its outermost part inwards, so that what an inner loop does not change is one value that Cranelift
//! hoists. Constant parts become load and store displacements.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use tlc_ir::DType;
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::kernel::Memory;

use super::{Result, Translator, Val, Var, clif_type, unsupported};

impl Translator<'_, '_> {
    /// The value of an index expression that does not vary over lanes.
    pub(super) fn index_value(&mut self, e: &IndexExpr) -> Result<Value> {
        let (parts, constant) = self.parts(e)?;
        let mut sum: Option<Value> = None;
        for (value, _) in parts {
            sum = Some(match sum {
                Some(s) => self.builder.ins().iadd(s, value),
                None => value,
            });
        }
        Ok(match sum {
            None => self.builder.ins().iconst(types::I64, constant),
            Some(s) if constant == 0 => s,
            Some(s) => self.builder.ins().iadd_imm_s(s, constant),
        })
    }

    /// The addends of an expression, outermost first, with the loop depth of each, and the constant part.
    fn parts(&mut self, e: &IndexExpr) -> Result<(Vec<(Value, u32)>, i64)> {
        let (terms, mut constant) = e.linear();
        let mut parts: Vec<(Value, u32)> = Vec::with_capacity(terms.len());
        for (term, coefficient) in terms {
            match self.term(&term)? {
                Term::Const(c) => constant = constant.wrapping_add(c.wrapping_mul(coefficient)),
                Term::Value(v, depth) => {
                    let scaled = self.scale(v, coefficient);
                    parts.push((scaled, depth));
                }
            }
        }
        parts.sort_by_key(|p| p.1);
        Ok((parts, constant))
    }

    fn scale(&mut self, v: Value, k: i64) -> Value {
        match k {
            1 => v,
            -1 => self.builder.ins().ineg(v),
            k if k > 0 && k.count_ones() == 1 => self.builder.ins().ishl_imm_s(v, k.trailing_zeros() as i64),
            k => self.builder.ins().imul_imm_s(v, k),
        }
    }

    fn term(&mut self, e: &IndexExpr) -> Result<Term> {
        let node = match e {
            IndexExpr::Const(c) => return Ok(Term::Const(*c)),
            IndexExpr::Node(n) => n,
        };
        Ok(match &**node {
            IndexNode::Sym(s) => match self.symbols.get(s.0 as usize) {
                Some(&v) => Term::Value(v, 0),
                None => return unsupported("an unknown symbol"),
            },
            IndexNode::Var(v) => match self.vars[v.0 as usize] {
                Some(Var::Const(c)) => Term::Const(c),
                Some(Var::Value(v, depth)) => Term::Value(v, depth),
                Some(Var::Lane) => return unsupported("an index that varies over lanes here"),
                None => return unsupported("a loop variable outside its loop"),
            },
            IndexNode::Sum { .. } => {
                let (parts, constant) = self.parts(e)?;
                if parts.is_empty() {
                    return Ok(Term::Const(constant));
                }
                let depth = parts.iter().map(|p| p.1).max().unwrap_or(0);
                let mut sum = None;
                for (v, _) in parts {
                    sum = Some(sum.map_or(v, |s| self.builder.ins().iadd(s, v)));
                }
                let sum = sum.expect("there is a part");
                Term::Value(
                    if constant == 0 {
                        sum
                    } else {
                        self.builder.ins().iadd_imm_s(sum, constant)
                    },
                    depth,
                )
            }
            IndexNode::Product(factors) => {
                let mut constant = 1i64;
                let mut parts = Vec::new();
                for f in factors {
                    match self.term(f)? {
                        Term::Const(c) => constant = constant.wrapping_mul(c),
                        Term::Value(v, depth) => parts.push((v, depth)),
                    }
                }
                parts.sort_by_key(|p| p.1);
                let depth = parts.last().map_or(0, |p| p.1);
                let mut product = None;
                for (v, _) in parts {
                    product = Some(product.map_or(v, |p| self.builder.ins().imul(p, v)));
                }
                match product {
                    None => Term::Const(constant),
                    Some(p) => Term::Value(self.scale(p, constant), depth),
                }
            }
            IndexNode::FloorDiv(a, b) | IndexNode::Mod(a, b) => {
                let quotient = matches!(&**node, IndexNode::FloorDiv(..));
                match (self.term(a)?, self.term(b)?) {
                    (Term::Const(x), Term::Const(y)) if y > 0 => {
                        Term::Const(if quotient { x.div_euclid(y) } else { x.rem_euclid(y) })
                    }
                    (x, y) => {
                        let nonnegative = a.interval(self.kernel).lo >= 0;
                        let (x, dx) = self.term_value(x);
                        let divisor = match y {
                            // The loop around runs over an empty extent, so nobody sees the value.
                            Term::Const(c) if c <= 0 => return Ok(Term::Const(0)),
                            Term::Const(c) => Divisor::Const(c),
                            Term::Value(v, d) => Divisor::Value(v, d),
                        };
                        self.divide(x, dx, divisor, quotient, nonnegative)
                    }
                }
            }
            IndexNode::Min(a, b) | IndexNode::Max(a, b) => {
                let smaller = matches!(&**node, IndexNode::Min(..));
                match (self.term(a)?, self.term(b)?) {
                    (Term::Const(x), Term::Const(y)) => Term::Const(if smaller { x.min(y) } else { x.max(y) }),
                    (x, y) => {
                        let ((x, dx), (y, dy)) = (self.term_value(x), self.term_value(y));
                        let v = if smaller {
                            self.builder.ins().smin(x, y)
                        } else {
                            self.builder.ins().smax(x, y)
                        };
                        Term::Value(v, dx.max(dy))
                    }
                }
            }
        })
    }

    fn term_value(&mut self, t: Term) -> (Value, u32) {
        match t {
            Term::Const(c) => (self.builder.ins().iconst(types::I64, c), 0),
            Term::Value(v, d) => (v, d),
        }
    }

    /// Floored division or modulo. A run-time divisor is made at least 1, so that hoisting the division out of a loop that
    /// does not run cannot trap.
    fn divide(&mut self, x: Value, depth: u32, divisor: Divisor, quotient: bool, nonnegative: bool) -> Term {
        let (y, dy) = match divisor {
            Divisor::Const(c) if c.count_ones() == 1 => {
                let v = if quotient {
                    self.builder.ins().sshr_imm_s(x, c.trailing_zeros() as i64)
                } else {
                    self.builder.ins().band_imm_s(x, c - 1)
                };
                return Term::Value(v, depth);
            }
            Divisor::Const(c) => (self.builder.ins().iconst(types::I64, c), 0),
            Divisor::Value(v, d) => {
                let one = self.builder.ins().iconst(types::I64, 1);
                (self.builder.ins().smax(v, one), d)
            }
        };
        let depth = depth.max(dy);
        if nonnegative {
            let v = if quotient {
                self.builder.ins().udiv(x, y)
            } else {
                self.builder.ins().urem(x, y)
            };
            return Term::Value(v, depth);
        }
        let rest = self.builder.ins().srem(x, y);
        let negative = self.builder.ins().sshr_imm_s(rest, 63);
        let v = if quotient {
            let q = self.builder.ins().sdiv(x, y);
            self.builder.ins().iadd(q, negative)
        } else {
            let fix = self.builder.ins().band(negative, y);
            self.builder.ins().iadd(rest, fix)
        };
        Term::Value(v, depth)
    }

    /// Base address, displacement and flags of an element.
    pub(super) fn address(
        &mut self,
        memory: Memory,
        index: &IndexExpr,
        dtype: DType,
    ) -> Result<(Value, i32, MemFlagsData)> {
        let (mut base, flags) = self.memory_base(memory)?;
        let size = dtype.bytes() as i64;
        let (parts, constant) = self.parts(index)?;
        let mut at = 0;
        while at < parts.len() {
            let depth = parts[at].1;
            let mut sum = parts[at].0;
            at += 1;
            while at < parts.len() && parts[at].1 == depth {
                sum = self.builder.ins().iadd(sum, parts[at].0);
                at += 1;
            }
            let bytes = self.scale(sum, size);
            base = self.builder.ins().iadd(base, bytes);
        }
        let displacement = constant.wrapping_mul(size);
        match i32::try_from(displacement) {
            Ok(d) => Ok((base, d, flags)),
            Err(_) => Ok((self.builder.ins().iadd_imm_s(base, displacement), 0, flags)),
        }
    }

    /// The value of an index expression as a dtype, one per lane where it varies.
    pub(super) fn index_as(&mut self, e: &IndexExpr, dtype: DType) -> Result<Val> {
        let lane = self.lanes.filter(|&(_, v)| e.uses(v));
        let Some((count, var)) = lane else {
            let v = self.index_value(e)?;
            return self.convert(Val::Scalar(v), DType::I64, dtype);
        };
        let affine = e.affine_in(var).and_then(|(c, rest)| Some((c.as_const()?, rest)));
        let vty = self.vector_type(dtype)?;
        if let Some((step, rest)) = affine
            && !dtype.is_float()
        {
            // first + step * lane, lane by lane.
            let first = self.index_value(&rest)?;
            let Val::Scalar(first) = self.convert(Val::Scalar(first), DType::I64, dtype)? else {
                return unsupported("a scalar that became a vector");
            };
            let base = self.builder.ins().splat(vty, first);
            let mut bytes = Vec::with_capacity(16);
            for l in 0..count {
                bytes.extend_from_slice(&(step.wrapping_mul(l)).to_le_bytes()[..dtype.bytes()]);
            }
            let data = self.builder.func.dfg.constants.insert(bytes.into());
            let steps = self.builder.ins().vconst(vty, data);
            return Ok(Val::Vector(self.builder.ins().iadd(base, steps)));
        }
        let zero = self.zero(clif_type(dtype));
        let mut vector = self.builder.ins().splat(vty, zero);
        for l in 0..count {
            let v = self.index_value(&super::at_lane(e, var, l))?;
            if let Val::Scalar(v) = self.convert(Val::Scalar(v), DType::I64, dtype)? {
                vector = self.builder.ins().insertlane(vector, v, l as u8);
            }
        }
        Ok(Val::Vector(vector))
    }
}

enum Term {
    Const(i64),
    Value(Value, u32),
}

enum Divisor {
    Const(i64),
    Value(Value, u32),
}
