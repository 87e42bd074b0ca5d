//! The walk over a kernel's statements.
//!
//! Invariants:
//! - `values` and `vars` hold what is bound on the current path; unrolled copies and outer scopes overwrite them, which is
//!   sound because definitions dominate uses.
//! - `memo` is a stack of scopes; an entry is only visible where its definition dominates.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, AbiParam, AliasRegionData, Block, BlockArg, Function, InstBuilder, MemFlagsData, Signature, UserFuncName,
    Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tlc_ir::kernel::{Bind, MAX_STATEMENTS, Memory, Op, Scope, Stmt, ValueId, visit};
use tlc_ir::scalar::ScalarOp;
use tlc_ir::{DType, IndexExpr, Kernel, Scalar, VarId};

use super::host::signature;
use super::index::{Term, VarState};
use super::loops::{LoopUse, loop_uses};
use super::registers::RegisterScratch;
use super::values::Val;
use crate::code::{ARGS_BUFFERS, ARGS_SCRATCH, ARGS_SYMBOLS};
use crate::error::{CodegenError, Result, invalid, unsupported};
use crate::flat::check;
use crate::host::HostFunction;

/// Parameters and scratch areas that a kernel may have.
const MEMORY_LIMIT: usize = 4096;
/// Iterations of a lanes loop.
const LANE_LIMIT: u32 = 64;

/// The lanes loop being translated.
#[derive(Clone, Copy)]
pub(super) struct LaneLoop {
    pub count: u32,
    /// The lane for which code is being emitted, while it is emitted lane by lane.
    pub current: Option<u32>,
}

/// What an instruction result stands for, so that it is emitted once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum MemoKey {
    Index(IndexExpr),
    Address(Memory, SmallVec<[(Term, i64); 4]>),
    /// A scalar in every lane; a bool is a mask there, and another value than the same bits of an integer.
    Splat(Value, ir::Type, bool),
    Const(Scalar, ir::Type),
}

/// A memory area that has an address.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub base: Value,
    pub flags: MemFlagsData,
}

pub(super) struct Translator<'k, 'b> {
    pub kernel: &'k Kernel,
    pub b: FunctionBuilder<'b>,
    /// Whether the target has 128-bit vectors whose first lane is the lowest address.
    pub vectors: bool,
    /// Whether the target is x64, where some operations have cheaper forms than their own.
    pub x64: bool,
    pub call_conv: CallConv,
    pub values: Vec<Option<Val>>,
    pub vars: Vec<VarState>,
    pub symbols: Vec<Value>,
    pub params: Vec<Area>,
    pub scratch: Vec<Option<Area>>,
    pub registers: Vec<Option<RegisterScratch>>,
    pub lanes: Option<LaneLoop>,
    pub uses: Vec<LoopUse>,
    pub memo: Vec<FxHashMap<MemoKey, Value>>,
    pub hosts: Vec<(HostFunction, ir::FuncRef)>,
    pub depth: u32,
    /// Whether something was written past the caches.
    pub streams: bool,
    range: (Value, Value),
    statements: u64,
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
    if kernel.params.len() + kernel.scratch.len() > MEMORY_LIMIT {
        return unsupported(format!(
            "more than {MEMORY_LIMIT} parameters and scratch areas (this kernel has {})",
            kernel.params.len() + kernel.scratch.len()
        ));
    }
    check::ids(kernel)?;
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
        kernel,
        b,
        vectors: has_vectors(isa),
        x64: isa.name() == "x64",
        call_conv,
        values: vec![None; kernel.values.len()],
        vars: vec![VarState::Unbound; kernel.extents.len()],
        symbols: Vec::new(),
        params: Vec::new(),
        scratch: Vec::new(),
        registers: Vec::new(),
        lanes: None,
        uses: loop_uses(kernel),
        memo: vec![FxHashMap::default()],
        hosts: Vec::new(),
        depth: 0,
        streams: false,
        range: (begin, end),
        statements: 0,
    };
    t.load_args(args)?;
    t.block(&kernel.body, true)?;
    if t.streams {
        // Streamed stores are ordered only by a fence, and what follows the kernel must see them.
        t.b.ins().fence();
    }
    t.b.ins().return_(&[]);
    t.b.seal_all_blocks();
    t.b.finalize(isa.frontend_config());
    Ok(func)
}

fn has_vectors(isa: &dyn TargetIsa) -> bool {
    match isa.name() {
        "aarch64" => true,
        // Before SSSE3 (2006) byte shuffles are calls.
        "x64" => isa.has_x86_pshufb_lowering(),
        "riscv64" => isa
            .isa_flags()
            .iter()
            .any(|f| f.name == "has_v" && f.as_bool() == Some(true)),
        _ => false,
    }
}

impl<'k> Translator<'k, '_> {
    /// Loads every buffer pointer and symbol; those without a use vanish.
    fn load_args(&mut self, args: Value) -> Result<()> {
        let readonly = MemFlagsData::trusted().with_readonly();
        let buffers = self.b.ins().load(types::I64, readonly, args, ARGS_BUFFERS);
        for i in 0..self.kernel.params.len() {
            let flags = self.area_flags(i as u32, "param");
            let base = self.b.ins().load(types::I64, readonly, buffers, (i * 8) as i32);
            self.params.push(Area { base, flags });
        }
        if !self.kernel.symbols.is_empty() {
            let symbols = self.b.ins().load(types::I64, readonly, args, ARGS_SYMBOLS);
            for i in 0..self.kernel.symbols.len() {
                let at = i32::try_from(i * 8).or_else(|_| unsupported("more than 2^28 symbols"))?;
                let value = self.b.ins().load(types::I64, readonly, symbols, at);
                self.symbols.push(value);
            }
        }
        let cache = |s: &tlc_ir::kernel::Scratch| s.scope == Scope::Cache;
        let mut start = None;
        if self.kernel.scratch.iter().any(cache) {
            start = Some(self.b.ins().load(types::I64, readonly, args, ARGS_SCRATCH));
        }
        let (offsets, _) = self.kernel.scratch_offsets();
        for (i, s) in self.kernel.scratch.iter().enumerate() {
            let mut area = None;
            let mut registers = None;
            match (s.scope, start) {
                (Scope::Register, _) => registers = Some(self.declare_registers(i)?),
                (Scope::Cache, Some(start)) => {
                    let flags = self.area_flags((self.kernel.params.len() + i) as u32, "scratch");
                    let offset = self.eval(&offsets[i])?;
                    let base = self.b.ins().iadd(start, offset);
                    area = Some(Area { base, flags });
                }
                _ => return unsupported(format!("{} scratch", s.scope.name())),
            }
            self.scratch.push(area);
            self.registers.push(registers);
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

    fn count_statement(&mut self) -> Result<()> {
        self.statements += 1;
        if self.statements > MAX_STATEMENTS {
            return Err(CodegenError::TooLarge { limit: MAX_STATEMENTS });
        }
        Ok(())
    }

    /// Translates statements in order.
    pub(super) fn block(&mut self, body: &'k [Stmt], outermost: bool) -> Result<()> {
        for stmt in body {
            self.count_statement()?;
            match stmt {
                Stmt::Let { value, op } => {
                    let v = self.op(op, *value)?;
                    self.values[value.0 as usize] = Some(v);
                }
                Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                } => {
                    let v = self.value(*value)?;
                    let m = mask.map(|m| self.value(m)).transpose()?;
                    self.store(*memory, index, &v, m.as_ref())?;
                }
                Stmt::Loop { var, bind, body } => self.loop_stmt(*var, *bind, body, outermost)?,
                Stmt::If { cond, body } => {
                    let cond = self.value(*cond)?;
                    self.if_stmt(&cond, body)?;
                }
                Stmt::Clamp { var, value } => self.clamp(*var, *value)?,
                Stmt::Accumulate { monoid, state, values } => {
                    if self.accumulate_in_order(state) {
                        self.each_lane(|t| t.accumulate(*monoid, state, values))?;
                    } else {
                        self.accumulate(*monoid, state, values)?;
                    }
                }
                Stmt::Contract(_) => return unsupported("contractions that are not legalized"),
                Stmt::Collective(_) => return unsupported("collectives"),
                Stmt::Each { .. } => return unsupported("fragments"),
                Stmt::CopyAsync(_) | Stmt::Wait(_) => return unsupported("copies beside the threads"),
                Stmt::Barrier => return unsupported("barriers"),
            }
        }
        Ok(())
    }

    fn loop_stmt(&mut self, var: VarId, bind: Bind, body: &'k [Stmt], outermost: bool) -> Result<()> {
        let extent = &self.kernel.extents[var.0 as usize];
        match bind {
            Bind::Unroll => {
                let Some(n) = self.constant(extent)? else {
                    return invalid("an unrolled loop without constant extent");
                };
                // A clamped variable has another value in each copy, so what depends on it must not outlive the copy.
                let scoped = visit::walk(body).any(|s| matches!(s, Stmt::Clamp { .. }));
                for i in 0..n {
                    self.count_statement()?;
                    self.vars[var.0 as usize] = VarState::Const(i);
                    if scoped {
                        self.memo.push(FxHashMap::default());
                    }
                    self.block(body, false)?;
                    if scoped {
                        self.memo.pop();
                    }
                }
                Ok(())
            }
            Bind::Lanes => {
                let count = match self.constant(extent)? {
                    Some(n) if n <= LANE_LIMIT as i64 => n.max(0) as u32,
                    Some(n) => return unsupported(format!("a lanes loop of {n} iterations (at most {LANE_LIMIT})")),
                    None => return invalid("a lanes loop without constant extent"),
                };
                if self.lanes.is_some() {
                    return unsupported("nested lanes loops");
                }
                match count {
                    0 => return Ok(()),
                    1 => {
                        self.vars[var.0 as usize] = VarState::Const(0);
                        return self.block(body, false);
                    }
                    _ => {}
                }
                self.vars[var.0 as usize] = VarState::Lane;
                self.lanes = Some(LaneLoop { count, current: None });
                let scoped = visit::walk(body).any(|s| matches!(s, Stmt::Clamp { .. }));
                if scoped {
                    self.memo.push(FxHashMap::default());
                }
                self.block(body, false)?;
                if scoped {
                    self.memo.pop();
                }
                self.lanes = None;
                Ok(())
            }
            Bind::Serial | Bind::Parallel if self.lanes.is_some() => unsupported("a serial loop inside a lanes loop"),
            Bind::Serial => self.counted_loop(var, None, body),
            Bind::Parallel if outermost => self.counted_loop(var, Some(self.range), body),
            Bind::Parallel => invalid("a parallel loop that is not outermost"),
            Bind::Copy | Bind::Stream => self.copy_loop(var, bind, body),
            Bind::Block | Bind::Warp | Bind::Thread => unsupported(format!("{} loops", bind.name())),
        }
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

    fn if_stmt(&mut self, cond: &Val, body: &'k [Stmt]) -> Result<()> {
        let varies = cond.varies();
        let cond = match cond {
            Val::Const(c) if !c.as_bool() => return Ok(()),
            Val::Const(_) => return self.block(body, false),
            Val::Scalar(c) => *c,
            Val::Vector(mask) => self.any_lane(*mask),
            Val::Lanes(lanes) => {
                let mut any = lanes[0];
                for lane in &lanes[1..] {
                    any = self.b.ins().bor(any, *lane);
                }
                any
            }
        };
        let (then, after) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(cond, then, &[], after, &[]);
        self.enter(then);
        self.memo.push(FxHashMap::default());
        if varies {
            self.rare(cond, body, after)?;
        } else {
            self.block(body, false)?;
            self.b.ins().jump(after, &[]);
        }
        self.memo.pop();
        self.enter(after);
        Ok(())
    }

    /// What legalization put aside for a few lanes, and `cond`, which is not 0 here, sends here seldom: laid out away
    /// from the hot code, and as a loop of one turn, for constants leave the innermost loop that they are in and would
    /// else take registers of the hot one.
    fn rare(&mut self, cond: Value, body: &'k [Stmt], after: Block) -> Result<()> {
        let then = self.b.current_block();
        let once = self.b.create_block();
        self.b.ins().jump(once, &[]);
        self.b.switch_to_block(once);
        self.block(body, false)?;
        let again = self.b.ins().icmp_imm_s(IntCC::Equal, cond, 0);
        self.b.ins().brif(again, once, &[], after, &[]);
        self.b.seal_block(once);
        then.into_iter().chain([once]).for_each(|b| self.b.set_cold_block(b));
        Ok(())
    }

    /// Goes on in a block all of whose predecessors are known.
    pub(super) fn enter(&mut self, block: Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    /// `if cond { body } else { otherwise }` as a value; `body` must not change registers.
    pub(super) fn value_if(
        &mut self,
        cond: Value,
        otherwise: Value,
        body: impl FnOnce(&mut Self) -> Result<Value>,
    ) -> Result<Value> {
        let ty = self.type_of(otherwise);
        let (then, after) = (self.b.create_block(), self.b.create_block());
        let result = self.b.append_block_param(after, ty);
        self.b.ins().brif(cond, then, &[], after, &[BlockArg::Value(otherwise)]);
        self.enter(then);
        self.memo.push(FxHashMap::default());
        let value = body(self)?;
        self.memo.pop();
        self.b.ins().jump(after, &[BlockArg::Value(value)]);
        self.enter(after);
        Ok(result)
    }

    /// Runs `f` once per lane of the current lanes loop, with indices as that lane's.
    pub(super) fn each_lane(&mut self, mut f: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        for lane in 0..self.lanes.map_or(0, |l| l.count) {
            self.in_lane(lane, &mut f)?;
        }
        Ok(())
    }

    /// Runs `f` with indices and values as lane `lane`'s. Nothing that it memoizes is seen outside.
    pub(super) fn in_lane<R>(&mut self, lane: u32, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let Some(lanes) = &mut self.lanes else { return f(self) };
        let before = lanes.current.replace(lane);
        let result = f(self);
        if let Some(lanes) = &mut self.lanes {
            lanes.current = before;
        }
        result
    }

    /// The value of a defined id; in code for one lane, that lane's.
    pub(super) fn value(&mut self, id: ValueId) -> Result<Val> {
        let v = match self.values.get(id.0 as usize) {
            Some(Some(v)) => v.clone(),
            _ => return invalid(format!("value {} is used before its definition", id.0)),
        };
        match self.lanes {
            Some(LaneLoop {
                current: Some(lane), ..
            }) if v.varies() => Ok(Val::Scalar(self.scalar(&v, self.kernel.dtype(id), lane))),
            _ => Ok(v),
        }
    }

    fn op(&mut self, op: &Op, result: ValueId) -> Result<Val> {
        let dtype = self.kernel.dtype(result);
        match op {
            Op::Const(c) if c.dtype() == dtype => Ok(Val::Const(*c)),
            Op::Const(_) => invalid("a constant of another dtype than its value"),
            Op::Index(index, to) => self.index_value(index, *to),
            Op::Load { memory, index, mask } => {
                let mask = mask.map(|m| self.value(m)).transpose()?;
                self.load(*memory, index, mask.as_ref())
            }
            Op::Map(op, operands) => {
                let dtypes: SmallVec<[DType; 3]> = operands.iter().map(|v| self.kernel.dtype(*v)).collect();
                if op.result_dtype(&dtypes) != Ok(dtype) {
                    return invalid(format!("{op} on {dtypes:?} giving {dtype}"));
                }
                let vals = operands
                    .iter()
                    .map(|v| self.value(*v))
                    .collect::<Result<SmallVec<[Val; 3]>>>()?;
                self.map(*op, dtypes[dtypes.len() - 1], &vals)
            }
            Op::Convert(to, v) => {
                let from = self.kernel.dtype(*v);
                let v = self.value(*v)?;
                self.convert(from, *to, &v)
            }
            Op::Bitcast(to, v) => {
                let from = self.kernel.dtype(*v);
                let v = self.value(*v)?;
                self.bitcast_value(from, *to, &v)
            }
        }
    }

    /// A scalar operation on values whose last operand (and the result, but for comparisons) is of `dtype`.
    pub(super) fn map(&mut self, op: ScalarOp, dtype: DType, vals: &[Val]) -> Result<Val> {
        if (matches!(dtype, DType::F16 | DType::BF16) || dtype.is_storage()) && op != ScalarOp::Select {
            return unsupported(format!("{op} on {dtype} (legalize it)"));
        }
        let constants: Option<SmallVec<[Scalar; 3]>> = vals.iter().map(Val::constant).collect();
        if let Some(constants) = constants {
            return Ok(Val::Const(op.eval(&constants)));
        }
        let operand = |i: usize| {
            if op == ScalarOp::Select && i == 0 {
                DType::Bool
            } else {
                dtype
            }
        };
        let compares = matches!(op, ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le);
        if !vals.iter().any(Val::varies) {
            let args: SmallVec<[Value; 3]> = (0..vals.len()).map(|i| self.scalar(&vals[i], operand(i), 0)).collect();
            return Ok(Val::Scalar(self.scalar_op(op, dtype, vals, &args)?));
        }
        if let Some(v) = self.vector_op(op, dtype, vals)? {
            return Ok(Val::Vector(v));
        }
        let count = self.lanes.map_or(0, |l| l.count);
        let mut lanes = SmallVec::new();
        for lane in 0..count {
            let args: SmallVec<[Value; 3]> = (0..vals.len())
                .map(|i| self.scalar(&vals[i], operand(i), lane))
                .collect();
            lanes.push(self.scalar_op(op, dtype, vals, &args)?);
        }
        debug_assert!(compares || op.arity() == vals.len());
        Ok(Val::Lanes(lanes))
    }

    /// Calls a host function.
    pub(super) fn call_host(&mut self, function: HostFunction, args: &[Value]) -> Result<Value> {
        let call = self.call(function, args)?;
        let result = self.b.inst_results(call).first().copied();
        result.map_or_else(|| invalid("the result of a function without one"), Ok)
    }

    /// Calls a host function.
    pub(super) fn call(&mut self, function: HostFunction, args: &[Value]) -> Result<ir::Inst> {
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
