//! Kernels to Cranelift functions.
//!
//! Invariants:
//! - The function is `extern "C" fn(args: *const Args, begin: i64, end: i64)` with the layout of [`abi`]. A parallel loop
//!   runs its variable through `begin..end`; a kernel without one ignores the range.
//! - A value inside a lanes loop is a 128-bit vector if it varies over the lanes, a scalar otherwise; scalars are
//!   broadcast where a vector needs them. A varying bool is a mask: an integer vector of all-ones and all-zeros lanes.
//! - What Cranelift cannot lower is refused here ([`CodegenError`]) before it is asked, so that nothing panics.
//! - Loads are not marked read-only: a launch may bind a read and a written parameter to one buffer when every element is
//!   read before it is overwritten, and that order must stay.

mod convert;
mod host;
mod index;
mod ops;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, AliasRegionData, BlockArg, Function, InstBuilder, MemFlagsData, Signature, Type, UserFuncName, Value,
    types,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Scalar};

pub use host::{HOST_FUNCTIONS, HostFunction};

/// Byte offsets of the argument block's fields, each 8 bytes wide.
pub mod abi {
    /// `buffers: *const *mut u8`, one pointer per parameter.
    pub const BUFFERS: i32 = 0;
    /// `symbols: *const i64`, one value per symbol.
    pub const SYMBOLS: i32 = 8;
    /// `scratch: *mut u8`, the thread's own cache scratch.
    pub const SCRATCH: i32 = 16;
}

/// Why a kernel cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodegenError {
    /// The kernel language has it, this emitter does not: a missing legalization.
    #[error("not supported by the CLIF emitter: {what}")]
    Unsupported {
        /// What.
        what: String,
    },
    /// Cranelift refused the function.
    #[error("cranelift: {message}")]
    Backend {
        /// What it said.
        message: String,
    },
}

type Result<T> = std::result::Result<T, CodegenError>;

fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(CodegenError::Unsupported { what: what.into() })
}

/// A kernel value in the function.
#[derive(Clone, Copy)]
enum Val {
    /// One value (the same for all lanes). Bools are i8 0 or 1; f16 and bf16 are their bits as i16.
    Scalar(Value),
    /// One value per lane; bools are masks.
    Vector(Value),
}

/// What a loop variable is at the moment.
#[derive(Clone, Copy)]
enum Var {
    Const(i64),
    Value(Value, u32),
    Lane,
}

/// The machine form of a register scratch.
enum Register {
    /// One variable per element.
    Elements(Vec<Variable>),
    /// One variable per vector of lanes.
    Vectors(Vec<Variable>, i64),
}

struct Translator<'a, 'b> {
    kernel: &'a Kernel,
    builder: FunctionBuilder<'b>,
    buffers: Vec<Value>,
    symbols: Vec<Value>,
    scratch: Vec<Option<Value>>,
    flags: Vec<MemFlagsData>,
    scratch_flags: MemFlagsData,
    registers: Vec<Option<Register>>,
    values: Vec<Option<Val>>,
    constants: Vec<Option<Scalar>>,
    vars: Vec<Option<Var>>,
    depth: u32,
    /// Lane count and variable of the lanes loop being translated.
    lanes: Option<(i64, VarId)>,
    range: (Value, Value),
    host: Vec<Option<cranelift_codegen::ir::FuncRef>>,
    has_fma: bool,
}

/// The scalar type that holds a dtype.
fn clif_type(dtype: DType) -> Type {
    match dtype {
        DType::Bool | DType::I8 | DType::U8 => types::I8,
        DType::I16 | DType::U16 | DType::F16 | DType::BF16 => types::I16,
        DType::I32 | DType::U32 => types::I32,
        DType::I64 | DType::U64 => types::I64,
        DType::F32 => types::F32,
        DType::F64 => types::F64,
    }
}

/// The signature of every kernel.
fn signature(call_conv: CallConv) -> Signature {
    let mut s = Signature::new(call_conv);
    for _ in 0..3 {
        s.params.push(AbiParam::new(types::I64));
    }
    s
}

/// Translates a legalized kernel.
///
/// # Errors
/// [`CodegenError::Unsupported`] for what was not legalized.
pub fn translate(kernel: &Kernel, isa: &dyn TargetIsa, context: &mut FunctionBuilderContext) -> Result<Function> {
    let mut function = Function::with_name_signature(UserFuncName::default(), signature(isa.default_call_conv()));
    let builder = FunctionBuilder::new(&mut function, context);
    let placeholder = Value::from_u32(0);
    let mut t = Translator {
        kernel,
        builder,
        buffers: Vec::new(),
        symbols: Vec::new(),
        scratch: Vec::new(),
        flags: Vec::new(),
        scratch_flags: MemFlagsData::new().with_notrap(),
        registers: Vec::new(),
        values: vec![None; kernel.values.len()],
        constants: vec![None; kernel.values.len()],
        vars: vec![None; kernel.extents.len()],
        depth: 0,
        lanes: None,
        range: (placeholder, placeholder),
        host: vec![None; HOST_FUNCTIONS.len()],
        has_fma: has_fma(isa),
    };
    let outcome = t.function();
    if outcome.is_err() {
        // A half-built function is thrown away with its context.
        return outcome.map(|()| function);
    }
    t.builder.seal_all_blocks();
    t.builder.finalize(isa.frontend_config());
    Ok(function)
}

impl Translator<'_, '_> {
    fn function(&mut self) -> Result<()> {
        let entry = self.builder.create_block();
        self.builder.append_block_params_for_function_params(entry);
        self.builder.switch_to_block(entry);
        let params: Vec<Value> = self.builder.block_params(entry).to_vec();
        let args = params[0];
        self.range = (params[1], params[2]);
        let fixed = MemFlagsData::trusted().with_readonly().with_can_move();
        let load = |t: &mut Self, from: Value, at: i32| t.builder.ins().load(types::I64, fixed, from, at);
        let table = load(self, args, abi::BUFFERS);
        let symbols = load(self, args, abi::SYMBOLS);
        let scratch = load(self, args, abi::SCRATCH);
        for i in 0..self.kernel.params.len() {
            let base = load(self, table, 8 * i as i32);
            self.buffers.push(base);
            let region = self.builder.func.dfg.alias_regions.insert(AliasRegionData {
                user_id: i as u32,
                description: format!("param {i}").into(),
            });
            self.flags
                .push(MemFlagsData::new().with_notrap().with_alias_region(Some(region)));
        }
        for i in 0..self.kernel.symbols.len() {
            let value = load(self, symbols, 8 * i as i32);
            self.symbols.push(value);
        }
        let region = self.builder.func.dfg.alias_regions.insert(AliasRegionData {
            user_id: self.kernel.params.len() as u32,
            description: "scratch".into(),
        });
        self.scratch_flags = self.scratch_flags.with_alias_region(Some(region));
        let (offsets, _) = self.kernel.scratch_offsets();
        for (s, offset) in self.kernel.scratch.iter().zip(&offsets) {
            match s.scope {
                Scope::Cache => {
                    let at = self.index_value(offset)?;
                    let base = self.builder.ins().iadd(scratch, at);
                    self.scratch.push(Some(base));
                }
                Scope::Register => self.scratch.push(None),
                Scope::Shared => return unsupported("shared scratch"),
            }
        }
        self.declare_registers()?;
        let body = &self.kernel.body;
        self.block(body)?;
        self.builder.ins().return_(&[]);
        Ok(())
    }

    /// Gives register scratch its variables: vectors where a lanes loop walks it, single elements otherwise.
    fn declare_registers(&mut self) -> Result<()> {
        let mut lanes: Vec<Option<i64>> = vec![None; self.kernel.scratch.len()];
        find_lanes(self.kernel, &self.kernel.body, None, &mut lanes);
        for (s, lanes) in self.kernel.scratch.iter().zip(lanes) {
            if s.scope != Scope::Register {
                self.registers.push(None);
                continue;
            }
            let Some(len) = s.len.as_const().filter(|n| (0..=4096).contains(n)) else {
                return unsupported("register scratch of unknown length");
            };
            let scalar = clif_type(s.dtype);
            let register = match lanes {
                Some(l) if l > 1 && len % l == 0 => {
                    let ty = if s.dtype == DType::Bool {
                        mask_of_lanes(l)
                    } else {
                        scalar.by(l as u32)
                    };
                    let Some(ty) = ty.filter(|t| t.bits() == 128) else {
                        return unsupported(format!("{l} lanes of {}", s.dtype));
                    };
                    Register::Vectors((0..len / l).map(|_| self.builder.declare_var(ty)).collect(), l)
                }
                _ => Register::Elements((0..len).map(|_| self.builder.declare_var(scalar)).collect()),
            };
            // Every variable is defined once before any loop, so that no path reads an undefined one.
            match &register {
                Register::Elements(vars) => {
                    let zero = self.zero(scalar);
                    vars.iter().for_each(|&v| self.builder.def_var(v, zero));
                }
                Register::Vectors(vars, l) => {
                    let ty = if s.dtype == DType::Bool {
                        mask_of_lanes(*l)
                    } else {
                        scalar.by(*l as u32)
                    };
                    let ty = ty.unwrap_or(types::I8X16);
                    let zero = self.zero(ty.lane_type());
                    let zeros = self.builder.ins().splat(ty, zero);
                    vars.iter().for_each(|&v| self.builder.def_var(v, zeros));
                }
            }
            self.registers.push(Some(register));
        }
        Ok(())
    }

    fn zero(&mut self, ty: Type) -> Value {
        match ty {
            types::F32 => self.builder.ins().f32const(0.0),
            types::F64 => self.builder.ins().f64const(0.0),
            ty => self.builder.ins().iconst(ty, 0),
        }
    }

    fn block(&mut self, body: &[Stmt]) -> Result<()> {
        for s in body {
            self.statement(s)?;
        }
        Ok(())
    }

    fn statement(&mut self, s: &Stmt) -> Result<()> {
        match s {
            Stmt::Let { value, op } => {
                let v = self.op(*value, op)?;
                self.values[value.0 as usize] = Some(v);
                self.constants[value.0 as usize] = if let Op::Const(c) = op { Some(*c) } else { None };
                Ok(())
            }
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } => self.store(*memory, index, *value, *mask),
            Stmt::Loop { var, bind, body } => self.loop_statement(*var, *bind, body),
            Stmt::If { cond, body } => {
                let cond = match self.value(*cond)? {
                    Val::Scalar(c) => c,
                    Val::Vector(m) => self.builder.ins().vany_true(m),
                };
                let (then, after) = (self.builder.create_block(), self.builder.create_block());
                self.builder.ins().brif(cond, then, &[], after, &[]);
                self.builder.switch_to_block(then);
                self.block(body)?;
                self.builder.ins().jump(after, &[]);
                self.builder.switch_to_block(after);
                Ok(())
            }
            Stmt::Clamp { var, value } => {
                let Val::Scalar(v) = self.value(*value)? else {
                    return unsupported("a data index that varies over lanes");
                };
                let extent = &self.kernel.extents[var.0 as usize];
                let extent = self.index_value(extent)?;
                let last = self.builder.ins().iadd_imm_s(extent, -1);
                let low = self.builder.ins().smin(v, last);
                let zero = self.builder.ins().iconst(types::I64, 0);
                let clamped = self.builder.ins().smax(low, zero);
                self.vars[var.0 as usize] = Some(Var::Value(clamped, self.depth));
                Ok(())
            }
            Stmt::Accumulate { .. } => unsupported("accumulate"),
            Stmt::Barrier => unsupported("barrier"),
        }
    }

    fn loop_statement(&mut self, var: VarId, bind: Bind, body: &[Stmt]) -> Result<()> {
        let extent = self.kernel.extents[var.0 as usize].clone();
        match bind {
            Bind::Unroll => {
                let Some(n) = extent.as_const() else {
                    return unsupported("unrolling an unknown extent");
                };
                for i in 0..n {
                    self.vars[var.0 as usize] = Some(Var::Const(i));
                    self.block(body)?;
                }
                Ok(())
            }
            Bind::Lanes => {
                let Some(n) = extent.as_const() else {
                    return unsupported("lanes of an unknown extent");
                };
                if self.lanes.is_some() || !matches!(n, 1 | 2 | 4 | 8 | 16) {
                    return unsupported(format!("{n} lanes"));
                }
                if n == 1 {
                    self.vars[var.0 as usize] = Some(Var::Const(0));
                    return self.block(body);
                }
                self.lanes = Some((n, var));
                self.vars[var.0 as usize] = Some(Var::Lane);
                let done = self.block(body);
                self.lanes = None;
                done
            }
            Bind::Serial | Bind::Parallel => {
                let constant = extent.as_const();
                if bind == Bind::Serial && constant == Some(0) {
                    return Ok(());
                }
                if bind == Bind::Serial && constant == Some(1) {
                    self.vars[var.0 as usize] = Some(Var::Const(0));
                    return self.block(body);
                }
                let (start, end) = match bind {
                    Bind::Parallel => self.range,
                    _ => {
                        let zero = self.builder.ins().iconst(types::I64, 0);
                        (zero, self.index_value(&extent)?)
                    }
                };
                let (head, after) = (self.builder.create_block(), self.builder.create_block());
                let i = self.builder.append_block_param(head, types::I64);
                if bind == Bind::Serial && constant.is_some() {
                    self.builder.ins().jump(head, &[BlockArg::Value(start)]);
                } else {
                    let any = self.builder.ins().icmp(IntCC::SignedLessThan, start, end);
                    self.builder
                        .ins()
                        .brif(any, head, &[BlockArg::Value(start)], after, &[]);
                }
                self.builder.switch_to_block(head);
                self.depth += 1;
                self.vars[var.0 as usize] = Some(Var::Value(i, self.depth));
                self.block(body)?;
                self.depth -= 1;
                let next = self.builder.ins().iadd_imm_s(i, 1);
                let more = self.builder.ins().icmp(IntCC::SignedLessThan, next, end);
                self.builder
                    .ins()
                    .brif(more, head, &[BlockArg::Value(next)], after, &[]);
                self.builder.switch_to_block(after);
                Ok(())
            }
            Bind::Block | Bind::Thread => unsupported("GPU loops"),
        }
    }

    fn value(&self, v: ValueId) -> Result<Val> {
        match self.values[v.0 as usize] {
            Some(v) => Ok(v),
            None => unsupported("a value used before its definition"),
        }
    }

    /// The vector type of a dtype in the current lanes loop.
    fn vector_type(&self, dtype: DType) -> Result<Type> {
        let (lanes, _) = self.lanes.unwrap_or((1, VarId(0)));
        match clif_type(dtype).by(lanes as u32).filter(|t| t.bits() == 128) {
            Some(t) => Ok(t),
            None => unsupported(format!("{lanes} lanes of {dtype}")),
        }
    }

    /// The value in every lane.
    fn vector(&mut self, v: Val, dtype: DType) -> Result<Value> {
        match v {
            Val::Vector(x) => Ok(x),
            Val::Scalar(x) => {
                let ty = self.vector_type(dtype)?;
                Ok(self.builder.ins().splat(ty, x))
            }
        }
    }

    /// A uniform bool as a mask of lanes of the given type.
    fn mask(&mut self, v: Val, like: Type) -> Result<Value> {
        let ty = like.as_truthy();
        match v {
            Val::Scalar(c) => {
                let wide = if ty.lane_bits() > 8 {
                    self.builder.ins().uextend(ty.lane_type(), c)
                } else {
                    c
                };
                let ones = self.builder.ins().ineg(wide);
                Ok(self.builder.ins().splat(ty, ones))
            }
            Val::Vector(m) if self.builder.func.dfg.value_type(m) == ty => Ok(m),
            Val::Vector(_) => unsupported("masks of different widths"),
        }
    }

    fn memory_base(&self, memory: Memory) -> Result<(Value, MemFlagsData)> {
        match memory {
            Memory::Param(i) => Ok((self.buffers[i as usize], self.flags[i as usize])),
            Memory::Scratch(i) => match self.scratch[i as usize] {
                Some(base) => Ok((base, self.scratch_flags)),
                None => unsupported("the address of a register"),
            },
        }
    }

    /// Runs `then` where the condition holds; the results are `otherwise` elsewhere.
    fn conditional(
        &mut self,
        cond: Value,
        otherwise: Option<Value>,
        then: impl FnOnce(&mut Self) -> Result<Option<Value>>,
    ) -> Result<Option<Value>> {
        let (inside, after) = (self.builder.create_block(), self.builder.create_block());
        let merged = otherwise.map(|o| {
            let ty = self.builder.func.dfg.value_type(o);
            self.builder.append_block_param(after, ty)
        });
        let skip: Vec<BlockArg> = otherwise.into_iter().map(BlockArg::Value).collect();
        self.builder.ins().brif(cond, inside, &[], after, &skip);
        self.builder.switch_to_block(inside);
        let result = then(self)?;
        let args: Vec<BlockArg> = result.into_iter().map(BlockArg::Value).collect();
        self.builder.ins().jump(after, &args);
        self.builder.switch_to_block(after);
        Ok(merged)
    }

    fn load(&mut self, memory: Memory, index: &IndexExpr, mask: Option<ValueId>) -> Result<Val> {
        let dtype = self.kernel.memory_dtype(memory);
        if let Memory::Scratch(i) = memory
            && self.registers[i as usize].is_some()
        {
            return self.load_register(i as usize, index, dtype);
        }
        let ty = clif_type(dtype);
        let mask = mask.map(|m| self.value(m)).transpose()?;
        let lane = self.lanes;
        let varies = lane.is_some_and(|(_, v)| index.uses(v)) || matches!(mask, Some(Val::Vector(_)));
        if !varies {
            let cond = match mask {
                Some(Val::Scalar(c)) => Some(c),
                _ => None,
            };
            let Some(cond) = cond else {
                let (base, offset, flags) = self.address(memory, index, dtype)?;
                return Ok(Val::Scalar(self.builder.ins().load(ty, flags, base, offset)));
            };
            let zero = self.zero(ty);
            let index = index.clone();
            let merged = self.conditional(cond, Some(zero), |t| {
                let (base, offset, flags) = t.address(memory, &index, dtype)?;
                Ok(Some(t.builder.ins().load(ty, flags, base, offset)))
            })?;
            return Ok(Val::Scalar(merged.expect("a default was given")));
        }
        let (count, var) = lane.expect("only lanes vary");
        let unit = index.affine_in(var).is_some_and(|(c, _)| c.is(1));
        if unit && mask.is_none() && dtype != DType::Bool {
            let vty = self.vector_type(dtype)?;
            let (base, offset, flags) = self.address(memory, &at_lane(index, var, 0), dtype)?;
            return Ok(Val::Vector(self.builder.ins().load(vty, flags, base, offset)));
        }
        if dtype == DType::Bool {
            return self.load_mask(memory, index, mask);
        }
        let vty = self.vector_type(dtype)?;
        let zero = self.zero(ty);
        let mut vector = self.builder.ins().splat(vty, zero);
        for l in 0..count {
            let at = at_lane(index, var, l);
            let lane = match self.lane_condition(mask, l)? {
                None => {
                    let (base, offset, flags) = self.address(memory, &at, dtype)?;
                    self.builder.ins().load(ty, flags, base, offset)
                }
                Some(cond) => {
                    let zero = self.zero(ty);
                    self.conditional(cond, Some(zero), |t| {
                        let (base, offset, flags) = t.address(memory, &at, dtype)?;
                        Ok(Some(t.builder.ins().load(ty, flags, base, offset)))
                    })?
                    .expect("a default was given")
                }
            };
            vector = self.builder.ins().insertlane(vector, lane, l as u8);
        }
        Ok(Val::Vector(vector))
    }

    /// The bool of one lane of an optional mask.
    fn lane_condition(&mut self, mask: Option<Val>, lane: i64) -> Result<Option<Value>> {
        Ok(match mask {
            None => None,
            Some(Val::Scalar(c)) => Some(c),
            Some(Val::Vector(m)) => Some(self.builder.ins().extractlane(m, lane as u8)),
        })
    }

    /// Bools of memory as a mask as wide as the lanes.
    fn load_mask(&mut self, memory: Memory, index: &IndexExpr, mask: Option<Val>) -> Result<Val> {
        let (count, var) = self.lanes.expect("only in lanes");
        let wide = self.mask_type()?;
        let zero = self.zero(wide.lane_type());
        let mut vector = self.builder.ins().splat(wide, zero);
        let unit = index.affine_in(var).is_some_and(|(c, _)| c.is(1));
        if unit && mask.is_none() && count == 4 {
            // Four bytes at once, widened twice.
            let (base, offset, flags) = self.address(memory, &at_lane(index, var, 0), DType::Bool)?;
            let four = self.builder.ins().load(types::I32, flags, base, offset);
            let lanes = self.builder.ins().scalar_to_vector(types::I32X4, four);
            let bytes = self.bits_as(types::I8X16, lanes);
            let halves = self.builder.ins().uwiden_low(bytes);
            let words = self.builder.ins().uwiden_low(halves);
            let zeros = self.builder.ins().splat(types::I32X4, zero);
            return Ok(Val::Vector(self.builder.ins().icmp(IntCC::NotEqual, words, zeros)));
        }
        for l in 0..count {
            let at = at_lane(index, var, l);
            let cond = self.lane_condition(mask, l)?;
            let read = |t: &mut Self| {
                let (base, offset, flags) = t.address(memory, &at, DType::Bool)?;
                Ok(Some(t.builder.ins().load(types::I8, flags, base, offset)))
            };
            let byte = match cond {
                None => read(self)?,
                Some(c) => {
                    let zero = self.zero(types::I8);
                    self.conditional(c, Some(zero), read)?
                }
            };
            let byte = byte.expect("loads answer a value");
            let word = if wide.lane_bits() > 8 {
                self.builder.ins().uextend(wide.lane_type(), byte)
            } else {
                byte
            };
            let ones = self.builder.ins().ineg(word);
            vector = self.builder.ins().insertlane(vector, ones, l as u8);
        }
        Ok(Val::Vector(vector))
    }

    /// The mask type of the current lanes.
    fn mask_type(&self) -> Result<Type> {
        let (lanes, _) = self.lanes.unwrap_or((1, VarId(0)));
        match mask_of_lanes(lanes) {
            Some(ty) => Ok(ty),
            None => unsupported(format!("{lanes} lanes")),
        }
    }

    fn store(&mut self, memory: Memory, index: &IndexExpr, value: ValueId, mask: Option<ValueId>) -> Result<()> {
        let dtype = self.kernel.memory_dtype(memory);
        let value = self.value(value)?;
        if let Memory::Scratch(i) = memory
            && self.registers[i as usize].is_some()
        {
            return self.store_register(i as usize, index, value, dtype);
        }
        let mask = mask.map(|m| self.value(m)).transpose()?;
        let lane = self.lanes.filter(|&(_, v)| index.uses(v));
        let Some((count, var)) = lane else {
            let value = match value {
                Val::Scalar(v) => v,
                // All lanes store to one element: the last one stays.
                Val::Vector(v) => {
                    let last = self.lanes.map_or(0, |l| l.0 - 1);
                    self.lane_scalar(v, last, dtype)
                }
            };
            let cond = match mask {
                None => None,
                Some(Val::Scalar(c)) => Some(c),
                Some(Val::Vector(_)) => return unsupported("a store of one element masked by lane"),
            };
            return self.store_element(memory, index, value, cond, dtype);
        };
        let unit = index.affine_in(var).is_some_and(|(c, _)| c.is(1));
        if unit && mask.is_none() && dtype != DType::Bool {
            let vector = self.vector(value, dtype)?;
            let (base, offset, flags) = self.address(memory, &at_lane(index, var, 0), dtype)?;
            self.builder.ins().store(flags, vector, base, offset);
            return Ok(());
        }
        if unit && mask.is_none() && count == 4 {
            let like = self.mask_type()?;
            let m = self.mask(value, like)?;
            let halves = self.builder.ins().snarrow(m, m);
            let bytes = self.builder.ins().snarrow(halves, halves);
            let words = self.bits_as(types::I32X4, bytes);
            let four = self.builder.ins().extractlane(words, 0);
            let ones = self.builder.ins().band_imm_s(four, 0x0101_0101);
            let (base, offset, flags) = self.address(memory, &at_lane(index, var, 0), dtype)?;
            self.builder.ins().store(flags, ones, base, offset);
            return Ok(());
        }
        for l in 0..count {
            let element = match value {
                Val::Scalar(v) => v,
                Val::Vector(v) => self.lane_scalar(v, l, dtype),
            };
            let cond = self.lane_condition(mask, l)?;
            self.store_element(memory, &at_lane(index, var, l), element, cond, dtype)?;
        }
        Ok(())
    }

    /// One lane of a vector as a scalar of the dtype.
    fn lane_scalar(&mut self, vector: Value, lane: i64, dtype: DType) -> Value {
        let v = self.builder.ins().extractlane(vector, lane as u8);
        if dtype != DType::Bool {
            return v;
        }
        let narrow = if self.builder.func.dfg.value_type(v).bits() > 8 {
            self.builder.ins().ireduce(types::I8, v)
        } else {
            v
        };
        self.builder.ins().band_imm_s(narrow, 1)
    }

    fn store_element(
        &mut self,
        memory: Memory,
        index: &IndexExpr,
        value: Value,
        cond: Option<Value>,
        dtype: DType,
    ) -> Result<()> {
        let index = index.clone();
        let write = move |t: &mut Self| {
            let (base, offset, flags) = t.address(memory, &index, dtype)?;
            t.builder.ins().store(flags, value, base, offset);
            Ok(None)
        };
        match cond {
            None => write(self).map(|_| ()),
            Some(c) => self.conditional(c, None, write).map(|_| ()),
        }
    }

    /// The constant element a register access means, and whether it runs over the lanes.
    fn register_index(&mut self, index: &IndexExpr) -> Result<(i64, bool)> {
        let lane = self.lanes.map(|l| l.1);
        let over_lanes = lane.is_some_and(|v| index.uses(v));
        let vars = &self.vars;
        let known = |v: VarId| match vars[v.0 as usize] {
            Some(Var::Const(c)) => Some(c),
            Some(Var::Lane) => Some(0),
            _ => None,
        };
        match index.eval(&[], &known) {
            Some(at) => Ok((at, over_lanes)),
            None => unsupported("a register index that is not constant"),
        }
    }

    fn load_register(&mut self, scratch: usize, index: &IndexExpr, dtype: DType) -> Result<Val> {
        let (at, over_lanes) = self.register_index(index)?;
        let (variable, lane) = self.register_part(scratch, at, over_lanes, dtype)?;
        let whole = self.builder.use_var(variable);
        Ok(match lane {
            None if over_lanes => Val::Vector(whole),
            None => Val::Scalar(whole),
            Some(l) => Val::Scalar(self.lane_scalar(whole, l, dtype)),
        })
    }

    fn store_register(&mut self, scratch: usize, index: &IndexExpr, value: Val, dtype: DType) -> Result<()> {
        let (at, over_lanes) = self.register_index(index)?;
        let (variable, lane) = self.register_part(scratch, at, over_lanes, dtype)?;
        let new = match (value, lane) {
            (v, None) if over_lanes && dtype == DType::Bool => {
                let like = self.mask_type()?;
                self.mask(v, like)?
            }
            (v, None) if over_lanes => self.vector(v, dtype)?,
            (Val::Scalar(v), None) => v,
            (Val::Vector(v), None) => {
                let last = self.lanes.map_or(0, |l| l.0 - 1);
                self.lane_scalar(v, last, dtype)
            }
            (Val::Scalar(v), Some(l)) => {
                let whole = self.builder.use_var(variable);
                let lane = if dtype == DType::Bool {
                    let wide = self.builder.func.dfg.value_type(whole).lane_type();
                    let v = if wide.bits() > 8 {
                        self.builder.ins().uextend(wide, v)
                    } else {
                        v
                    };
                    self.builder.ins().ineg(v)
                } else {
                    v
                };
                self.builder.ins().insertlane(whole, lane, l as u8)
            }
            (Val::Vector(_), Some(_)) => return unsupported("a vector stored to one lane"),
        };
        self.builder.def_var(variable, new);
        Ok(())
    }

    /// The variable that holds an element (or vector of elements) of a register scratch, and the lane inside it.
    fn register_part(
        &self,
        scratch: usize,
        at: i64,
        over_lanes: bool,
        dtype: DType,
    ) -> Result<(Variable, Option<i64>)> {
        let Some(register) = &self.registers[scratch] else {
            return unsupported("register access to memory");
        };
        let out_of_range = || CodegenError::Unsupported {
            what: format!("register element {at} out of range"),
        };
        match register {
            Register::Vectors(vars, lanes) => {
                let part = usize::try_from(at / lanes)
                    .ok()
                    .and_then(|i| vars.get(i))
                    .ok_or_else(out_of_range)?;
                let lane = at % lanes;
                if over_lanes && (lane != 0 || self.lanes.is_some_and(|l| l.0 != *lanes)) {
                    return unsupported("a vector that straddles registers");
                }
                Ok((*part, (!over_lanes).then_some(lane)))
            }
            Register::Elements(_) if over_lanes => unsupported(format!("lanes of {dtype} in single registers")),
            Register::Elements(vars) => usize::try_from(at)
                .ok()
                .and_then(|i| vars.get(i))
                .map(|&v| (v, None))
                .ok_or_else(out_of_range),
        }
    }

    fn op(&mut self, value: ValueId, op: &Op) -> Result<Val> {
        let dtype = self.kernel.dtype(value);
        match op {
            Op::Const(c) => Ok(Val::Scalar(self.constant(*c))),
            Op::Index(e, to) => self.index_as(e, *to),
            Op::Load { memory, index, mask } => self.load(*memory, index, *mask),
            Op::Map(scalar, args) => self.map(*scalar, args, dtype),
            Op::Convert(to, from) => {
                let (v, on) = (self.value(*from)?, self.kernel.dtype(*from));
                self.convert(v, on, *to)
            }
            Op::Bitcast(to, from) => {
                let (v, on) = (self.value(*from)?, self.kernel.dtype(*from));
                if on.bits() != to.bits() || on == DType::Bool || *to == DType::Bool {
                    return unsupported(format!("bitcast of {on} to {to}"));
                }
                Ok(match v {
                    Val::Scalar(x) => Val::Scalar(self.bits_as(clif_type(*to), x)),
                    Val::Vector(x) => {
                        let ty = self.vector_type(*to)?;
                        Val::Vector(self.bits_as(ty, x))
                    }
                })
            }
        }
    }

    fn constant(&mut self, c: Scalar) -> Value {
        match c.dtype() {
            DType::F32 => {
                let bits = cranelift_codegen::ir::immediates::Ieee32::with_bits(c.bits() as u32);
                self.builder.ins().f32const(bits)
            }
            DType::F64 => {
                let bits = cranelift_codegen::ir::immediates::Ieee64::with_bits(c.bits());
                self.builder.ins().f64const(bits)
            }
            d => self.builder.ins().iconst(clif_type(d), c.bits() as i64),
        }
    }

    /// Reinterprets bits; nothing where the type is that already.
    fn bits_as(&mut self, ty: Type, v: Value) -> Value {
        let from = self.builder.func.dfg.value_type(v);
        if from == ty {
            return v;
        }
        let mut flags = MemFlagsData::new();
        if from.is_vector() || ty.is_vector() {
            flags.set_endianness(cranelift_codegen::ir::Endianness::Little);
        }
        self.builder.ins().bitcast(ty, flags, v)
    }

    /// True if the value is a constant that is not NaN.
    fn is_number(&self, v: ValueId) -> bool {
        self.constants[v.0 as usize].is_some_and(|c| !c.is_nan())
    }
}

/// True if the target has fused multiply-add as an instruction.
pub fn has_fma(isa: &dyn TargetIsa) -> bool {
    isa.name() != "x64"
        || isa
            .isa_flags()
            .iter()
            .any(|f| f.name == "has_fma" && f.as_bool() == Some(true))
}

/// The integer vector that holds a mask of so many lanes.
fn mask_of_lanes(lanes: i64) -> Option<Type> {
    match lanes {
        2 => Some(types::I64X2),
        4 => Some(types::I32X4),
        8 => Some(types::I16X8),
        16 => Some(types::I8X16),
        _ => None,
    }
}

/// An index at one lane.
fn at_lane(index: &IndexExpr, var: VarId, lane: i64) -> IndexExpr {
    index.replace_vars(&mut |v| (v == var).then_some(IndexExpr::Const(lane)))
}

/// For each scratch, the lanes of the loops that walk it.
fn find_lanes(kernel: &Kernel, body: &[Stmt], lanes: Option<(i64, VarId)>, out: &mut [Option<i64>]) {
    let mut see = |memory: &Memory, index: &IndexExpr| {
        if let (Memory::Scratch(i), Some((n, v))) = (memory, lanes)
            && index.uses(v)
        {
            out[*i as usize] = Some(n);
        }
    };
    for s in body {
        match s {
            Stmt::Let {
                op: Op::Load { memory, index, .. },
                ..
            }
            | Stmt::Store { memory, index, .. } => see(memory, index),
            _ => {}
        }
    }
    for s in body {
        match s {
            Stmt::Loop { var, bind, body } => {
                let inner = match bind {
                    Bind::Lanes => kernel.extents[var.0 as usize].as_const().map(|n| (n, *var)),
                    _ => lanes,
                };
                find_lanes(kernel, body, inner, out);
            }
            Stmt::If { body, .. } => find_lanes(kernel, body, lanes, out),
            _ => {}
        }
    }
}
