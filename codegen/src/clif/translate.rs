//! The walk over the lowered form.
//!
//! Invariants:
//! - Constants, sums and addresses are made where they are used, and again only where that use does not dominate: Cranelift
//!   moves them out of loops. Every other value is made where the lowered form has it.
//! - `memo` is a stack of scopes; an entry is only visible where its definition dominates.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{
    self, AbiParam, AliasRegionData, Function, InstBuilder, MemFlagsData, Signature, Type, UserFuncName, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use rustc_hash::FxHashMap;
use tlc_ir::kernel::{Memory, Scope};
use tlc_ir::{DType, Kernel, Scalar};

use super::address::Counter;
use super::host::signature;
use super::table::Machine;
use crate::code::{ARGS_BUFFERS, ARGS_SCRATCH, ARGS_SYMBOLS};
use crate::error::{CodegenError, Result, invalid, unsupported};
use crate::flat::{self, BlockCopy, CounterUse, Flat, Item, Op, counter_uses};
use crate::host::RuntimeFunction;

/// Parameters and scratch areas that a kernel may have.
const MEMORY_LIMIT: usize = 4096;

/// What an instruction result stands for, so that it is emitted once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum MemoKey {
    /// A sum.
    Index(flat::Value),
    /// Where the elements of an address without its constant begin.
    Base(Memory, Option<flat::Value>, Option<flat::Value>),
    /// A constant in all lanes.
    Const(Scalar, Type),
}

/// A memory area that has an address.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub base: Value,
    pub flags: MemFlagsData,
}

pub(super) struct Translator<'f, 'k, 'b> {
    pub flat: &'f Flat<'k>,
    pub b: FunctionBuilder<'b>,
    /// Whether the target is x64, where some operations have cheaper forms than their own.
    pub x64: bool,
    call_conv: CallConv,
    /// Lanes of the operation that is being emitted.
    pub lanes: u32,
    /// What stands for each value on the current path.
    pub made: Vec<Option<Value>>,
    pub counters: FxHashMap<flat::Value, Counter>,
    pub uses: FxHashMap<flat::Value, CounterUse>,
    symbols: Vec<Value>,
    params: Vec<Area>,
    scratch: Vec<Option<Area>>,
    pub memo: Vec<FxHashMap<MemoKey, Value>>,
    hosts: Vec<(RuntimeFunction, ir::FuncRef)>,
    /// Whether something was written past the caches.
    streams: bool,
    /// The part of the parallel loop that a call runs.
    pub range: (Value, Value),
}

/// The lowered form that the emitter takes.
pub(super) fn flatten<'k>(kernel: &'k Kernel, isa: &dyn TargetIsa) -> Result<Flat<'k>> {
    let found = kernel.params.len() + kernel.scratch.len();
    if found > MEMORY_LIMIT {
        return Err(CodegenError::TooMany {
            what: "parameters and scratch areas",
            found,
            limit: MEMORY_LIMIT,
        });
    }
    flat::flatten(kernel, &Machine::of(isa))
}

/// The Cranelift function of a kernel.
pub(super) fn translate(
    kernel: &Kernel,
    isa: &dyn TargetIsa,
    frontend: &mut FunctionBuilderContext,
) -> Result<Function> {
    if isa.pointer_type() != types::I64 {
        return unsupported("targets without 64-bit pointers");
    }
    let flat = flatten(kernel, isa)?;
    let call_conv = isa.default_call_conv();
    let mut signature = Signature::new(call_conv);
    signature.params.extend([AbiParam::new(types::I64); 3]);
    let mut func = Function::with_name_signature(UserFuncName::user(0, 0), signature);
    let mut b = FunctionBuilder::new(&mut func, frontend);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let (args, begin, end) = match *b.block_params(entry) {
        [args, begin, end] => (args, begin, end),
        _ => return invalid("function parameters"),
    };
    let mut t = Translator {
        flat: &flat,
        b,
        x64: isa.name() == "x64",
        call_conv,
        lanes: 1,
        made: vec![None; flat.values.len()],
        counters: FxHashMap::default(),
        uses: counter_uses(&flat),
        symbols: Vec::new(),
        params: Vec::new(),
        scratch: Vec::new(),
        memo: vec![FxHashMap::default()],
        hosts: Vec::new(),
        streams: false,
        range: (begin, end),
    };
    t.load_args(args)?;
    // What scratch areas are measured by comes first.
    let sizes = flat.body.iter().take_while(|i| t.is_size(i)).count();
    t.region(&flat.body[..sizes])?;
    t.scratch_areas(args)?;
    t.region(&flat.body[sizes..])?;
    if t.streams {
        // Streamed stores are ordered only by a fence, and what follows the kernel must see them.
        t.b.ins().fence();
    }
    t.b.ins().return_(&[]);
    t.b.seal_all_blocks();
    t.b.finalize(isa.frontend_config());
    Ok(func)
}

impl Translator<'_, '_, '_> {
    /// Loads every buffer pointer and symbol; those without a use vanish.
    fn load_args(&mut self, args: Value) -> Result<()> {
        let kernel = self.flat.kernel;
        let readonly = MemFlagsData::trusted().with_readonly();
        let buffers = self.b.ins().load(types::I64, readonly, args, ARGS_BUFFERS);
        for i in 0..kernel.params.len() {
            let flags = self.area_flags(i as u32, "param");
            let base = self.b.ins().load(types::I64, readonly, buffers, (i * 8) as i32);
            self.params.push(Area { base, flags });
        }
        if !kernel.symbols.is_empty() {
            let symbols = self.b.ins().load(types::I64, readonly, args, ARGS_SYMBOLS);
            for i in 0..kernel.symbols.len() {
                let at = i32::try_from(i * 8).or_else(|_| unsupported("more than 2^28 symbols"))?;
                let value = self.b.ins().load(types::I64, readonly, symbols, at);
                self.symbols.push(value);
            }
        }
        Ok(())
    }

    /// Whether an item is arithmetic that needs no memory.
    fn is_size(&self, item: &Item) -> bool {
        matches!(item, Item::Let(v) if !matches!(self.flat.op(*v), Op::Load { .. }))
    }

    fn scratch_areas(&mut self, args: Value) -> Result<()> {
        let kernel = self.flat.kernel;
        let readonly = MemFlagsData::trusted().with_readonly();
        let mut start = None;
        if kernel.scratch.iter().any(|s| s.scope == Scope::Cache) {
            start = Some(self.b.ins().load(types::I64, readonly, args, ARGS_SCRATCH));
        }
        for i in 0..kernel.scratch.len() {
            let area = match (start, self.flat.scratch_at[i]) {
                (Some(start), Some(at)) => {
                    let flags = self.area_flags((kernel.params.len() + i) as u32, "scratch");
                    let offset = self.value(at);
                    let base = self.b.ins().iadd(start, offset);
                    Some(Area { base, flags })
                }
                _ => None,
            };
            self.scratch.push(area);
        }
        Ok(())
    }

    /// Memory flags with an alias region of their own.
    fn area_flags(&mut self, id: u32, what: &'static str) -> MemFlagsData {
        let region = self.b.func.dfg.alias_regions.insert(AliasRegionData {
            user_id: id,
            description: what.into(),
        });
        MemFlagsData::new().with_notrap().with_alias_region(Some(region))
    }

    /// The memory that has an address; an error for registers.
    pub(super) fn area(&self, memory: Memory) -> Result<Area> {
        let area = match memory {
            Memory::Param(i) => self.params.get(i as usize).copied(),
            Memory::Scratch(i) => self.scratch.get(i as usize).copied().flatten(),
        };
        area.map_or_else(|| invalid("access to memory without an address"), Ok)
    }

    /// What stands for a value.
    pub(super) fn value(&mut self, v: flat::Value) -> Value {
        match self.flat.op(v) {
            Op::Const(c) => self.constant_scalar(*c),
            Op::Symbol(s) => self.symbols[*s as usize],
            Op::Undefined => {
                let ty = self.type_for(v);
                self.zero(ty)
            }
            Op::Splat(s) if self.flat.is_placeless(v) => {
                let ty = self.type_for(v);
                match self.flat.constant(*s) {
                    Some(c) => self.constant_vector(c, ty),
                    None => self.zero(ty),
                }
            }
            Op::Counter => self.counter(v),
            Op::Sum { .. } => self.sum(v),
            // The lowered form defines values before their uses.
            _ => self.made[v.0 as usize].unwrap_or_else(|| unreachable!("%{} is not defined", v.0)),
        }
    }

    /// Emits what runs one after another.
    pub(super) fn region(&mut self, body: &[Item]) -> Result<()> {
        for item in body {
            match item {
                Item::Let(v) => self.let_(*v)?,
                Item::Store {
                    address,
                    offsets,
                    value,
                    mask: None,
                } => self.store(address, offsets, *value)?,
                Item::Store { mask: Some(_), .. } => return unsupported("a masked store"),
                Item::Copy(c) => self.copy(c)?,
                Item::Loop(l) => self.loop_(l)?,
                Item::If(i) => self.if_(i)?,
                Item::Barrier => return unsupported("barriers"),
                Item::Collective { .. } => return unsupported("collectives"),
                Item::Multiply(_) => return unsupported("matrix instructions"),
                Item::Prefetch(_) => return unsupported("prefetches"),
                Item::CopyAsync(_) | Item::CopyTile(_) | Item::Commit | Item::Wait(_) => {
                    return unsupported("copies beside the threads");
                }
            }
        }
        Ok(())
    }

    fn let_(&mut self, v: flat::Value) -> Result<()> {
        let info = self.flat.info(v);
        self.lanes = info.lanes;
        let (dtype, ty) = (info.dtype, self.type_for(v));
        let made = match &info.op {
            // Made where it is used.
            Op::Sum { .. } => return Ok(()),
            Op::Product(factors) => {
                let mut product = self.value(factors[0]);
                for f in &factors[1..] {
                    let f = self.value(*f);
                    product = self.b.ins().imul(product, f);
                }
                product
            }
            Op::FloorDiv(a, b) => self.floor_div(*a, *b),
            Op::FloorMod(a, b) => self.floor_mod(*a, *b),
            Op::Smaller(a, b) | Op::Larger(a, b) => {
                let smaller = matches!(info.op, Op::Smaller(..));
                let (a, b) = (self.value(*a), self.value(*b));
                self.extremum(smaller, a, b)
            }
            Op::Clamp { data, last } => {
                let (data, last) = (self.value(*data), self.value(*last));
                let v = self.extremum(true, data, last);
                let zero = self.int(types::I64, 0);
                self.extremum(false, v, zero)
            }
            Op::Series { first, step } => {
                let first = self.value(*first);
                let base = self.b.ins().splat(ty, first);
                let steps = self.steps(ty, *step);
                self.b.ins().iadd(base, steps)
            }
            Op::Load {
                address,
                offsets,
                mask: None,
            } => self.load(dtype, ty, address, offsets)?,
            Op::Load { mask: Some(_), .. } => return unsupported("a masked load"),
            Op::Map(op, args) => {
                let on = args.last().map_or(dtype, |a| self.flat.dtype(*a));
                match info.lanes {
                    1 => self.scalar_op(*op, on, args)?,
                    _ => match self.vector_op(*op, on, args) {
                        Some(made) => made,
                        None => return unsupported(format!("{op} on lanes of {on}")),
                    },
                }
            }
            Op::Approximate(op, _) => return unsupported(format!("an approximate {op}")),
            Op::Scale(x, n) => {
                let (x, n) = (self.value(*x), self.value(*n));
                match info.lanes {
                    1 => self.scale(x, n),
                    lanes => {
                        let mut scaled = x;
                        for lane in 0..lanes as u8 {
                            let (x, n) = (self.b.ins().extractlane(x, lane), self.b.ins().extractlane(n, lane));
                            let element = self.scale(x, n);
                            scaled = self.b.ins().insertlane(scaled, element, lane);
                        }
                        scaled
                    }
                }
            }
            Op::Unordered(a, b) => {
                let (a, b) = (self.value(*a), self.value(*b));
                let either = self.b.ins().fcmp(FloatCC::Unordered, a, b);
                if info.lanes == 1 { either } else { self.as_mask(either) }
            }
            Op::Convert(a) => {
                let from = self.flat.dtype(*a);
                let x = self.value(*a);
                match info.lanes {
                    1 => self.convert_scalar(from, dtype, x)?,
                    _ => match self.convert_vector(from, dtype, x) {
                        Some(made) => made,
                        None => return unsupported(format!("{from} to {dtype} in lanes")),
                    },
                }
            }
            Op::Bitcast(a) => {
                let x = self.value(*a);
                self.cast(ty, x)
            }
            Op::Splat(a) => {
                let x = self.value(*a);
                let element = self.lane_element(x, dtype, ty);
                self.b.ins().splat(ty, element)
            }
            Op::Pack(parts) if let Some(numbers) = self.flat.numbers(parts) => self.numbers(ty, numbers.into_iter()),
            Op::Pack(parts) => {
                let mut elements = Vec::with_capacity(parts.len());
                for p in parts {
                    let x = self.value(*p);
                    elements.push(self.lane_element(x, dtype, ty));
                }
                let mut packed = self.low_lane(elements[0], ty);
                for (i, element) in elements.into_iter().enumerate().skip(1) {
                    packed = self.b.ins().insertlane(packed, element, i as u8);
                }
                packed
            }
            Op::Lane(a, lane) => {
                let x = self.value(*a);
                let element = self.b.ins().extractlane(x, *lane);
                match dtype {
                    DType::Bool => {
                        let zero = self.int(self.type_of(element), 0);
                        self.b.ins().icmp(IntCC::NotEqual, element, zero)
                    }
                    _ => element,
                }
            }
            Op::Gather { .. } => return unsupported("gathered vectors"),
            Op::Part(..) => return unsupported("parts of vectors"),
            Op::Interleave(..) => return unsupported("interleaved vectors"),
            Op::Insert(a, x, lane) => {
                let (a, x) = (self.value(*a), self.value(*x));
                let element = self.lane_element(x, dtype, ty);
                self.b.ins().insertlane(a, element, *lane)
            }
            Op::AnyLane(a) => {
                let mask = self.value(*a);
                self.any_lane(mask)
            }
            Op::AllLanes(a) => {
                let mask = self.value(*a);
                self.b.ins().vall_true(mask)
            }
            Op::LaneBits(a) => {
                let mask = self.value(*a);
                self.b.ins().vhigh_bits(types::I32, mask)
            }
            Op::Bit(a, bit) => {
                let bits = self.value(*a);
                self.b.ins().band_imm_u(bits, 1i64 << bit)
            }
            Op::Symbol(_) | Op::Counter | Op::Carried | Op::Outcome | Op::Undefined | Op::Const(_) => {
                return invalid("a value without a computation");
            }
        };
        self.made[v.0 as usize] = Some(made);
        Ok(())
    }

    /// Whether a mask is set in any lane, as an integer that is not 0.
    fn any_lane(&mut self, mask: Value) -> Value {
        // x64 has one instruction for the sign bits of lanes, except 16-bit ones; `ptest` takes two operations.
        if self.x64 && self.type_of(mask).lane_bits() != 16 {
            self.b.ins().vhigh_bits(types::I32, mask)
        } else {
            self.b.ins().vany_true(mask)
        }
    }

    fn copy(&mut self, c: &BlockCopy) -> Result<()> {
        let bytes = self.flat.kernel.memory_dtype(c.to.memory).bytes() as i64;
        let function = RuntimeFunction::Copy {
            element: if c.transposed { bytes as u8 } else { 1 },
            transposed: c.transposed,
            streaming: c.streaming,
        };
        self.streams |= c.streaming;
        let to = self.pointer(&c.to)?;
        let to_pitch = self.scaled(c.to_pitch, bytes);
        let from = self.pointer(&c.from)?;
        let from_pitch = self.scaled(c.from_pitch, bytes);
        let rows = self.value(c.rows);
        let columns = self.scaled(c.columns, if c.transposed { 1 } else { bytes });
        self.call(function, &[to, to_pitch, from, from_pitch, rows, columns])?;
        Ok(())
    }

    /// Calls a host function.
    pub(super) fn call_host(&mut self, function: RuntimeFunction, args: &[Value]) -> Result<Value> {
        let call = self.call(function, args)?;
        let result = self.b.inst_results(call).first().copied();
        result.map_or_else(|| invalid("the result of a function without one"), Ok)
    }

    /// Calls a host function.
    pub(super) fn call(&mut self, function: RuntimeFunction, args: &[Value]) -> Result<ir::Inst> {
        let found = self.hosts.iter().find(|(f, _)| *f == function);
        let callee = match found {
            Some((_, callee)) => *callee,
            None => {
                let Some(index) = function.index() else {
                    return unsupported(function.name());
                };
                let signature = self.b.import_signature(signature(function, self.call_conv));
                let name = self
                    .b
                    .func
                    .declare_imported_user_function(ir::UserExternalName::new(0, index));
                let callee = self.b.import_function(ir::ExtFuncData {
                    name: ir::ExternalName::user(name),
                    signature,
                    colocated: false,
                    patchable: false,
                });
                self.hosts.push((function, callee));
                callee
            }
        };
        Ok(self.b.ins().call(callee, args))
    }
}
