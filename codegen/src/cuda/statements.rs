//! Statements as C++ statements.

use std::fmt::Write;

use tlc_ir::dtype::DType;
use tlc_ir::index::{Bounds, IndexExpr, SymId, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};

use super::index::{IndexWriter, Names, Width};
use super::scalar::{self, Helpers, literal, value_type};
use super::{CudaError, uses_word};

/// The finished parts of a function.
pub(super) struct Code {
    pub text: String,
    pub helpers: String,
}

/// Name of a memory: parameters `p`, registers `r`, a thread's arrays `a`, shared `shared`.
pub(super) fn memory_name(kernel: &Kernel, memory: Memory) -> String {
    match memory {
        Memory::Param(i) => format!("p{i}"),
        Memory::Scratch(i) => match kernel.scratch.get(i as usize).map(|s| s.scope) {
            Some(Scope::Shared) => format!("shared{i}"),
            Some(Scope::Cache | Scope::Thread) => format!("a{i}"),
            Some(Scope::Register | Scope::WarpFragment | Scope::BlockFragment) | None => format!("r{i}"),
        },
    }
}

/// Names of variables: a letter for what they are (block, thread, loop counter, clamped data) and a number in order of
/// appearance; none is the name of a type. With the width each was declared in.
struct Declared<'k> {
    kernel: &'k Kernel,
    vars: Vec<Option<(String, Width)>>,
}

impl Names for Declared<'_> {
    fn var(&self, var: u32) -> Option<(String, Width)> {
        self.vars.get(var as usize)?.clone()
    }
    fn symbol(&self, symbol: u32) -> (String, Width) {
        let width = Width::of(self.kernel.symbol(SymId(symbol)));
        match width {
            Width::Narrow => (format!("n{symbol}"), width),
            Width::Wide => (format!("s{symbol}"), width),
        }
    }
}

pub(super) struct Writer<'k> {
    kernel: &'k Kernel,
    block: i64,
    /// The block's number, and its declaration.
    block_line: (String, String),
    out: String,
    depth: usize,
    helpers: Helpers,
    declared: Declared<'k>,
    next_var: u32,
    /// What stands for each value: a name, or a literal.
    values: Vec<Option<String>>,
    next_value: u32,
    in_thread: bool,
    in_branch: bool,
}

impl<'k> Writer<'k> {
    pub(super) fn new(kernel: &'k Kernel, block: i64) -> Self {
        Writer {
            kernel,
            block,
            block_line: Default::default(),
            out: String::new(),
            depth: 1,
            helpers: Helpers::default(),
            declared: Declared {
                kernel,
                vars: vec![None; kernel.extents.len()],
            },
            next_var: 0,
            values: vec![None; kernel.values.len()],
            next_value: 0,
            in_thread: false,
            in_branch: false,
        }
    }

    pub(super) fn finish(mut self) -> Code {
        if self.out.contains("floor_div") || self.out.contains("floor_mod") {
            self.helpers.floor_division();
        }
        let (name, line) = &self.block_line;
        if uses_word(&self.out, name) {
            self.out.insert_str(0, line);
        }
        Code {
            helpers: self.helpers.text(),
            text: self.out,
        }
    }

    fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn open(&mut self, text: &str) {
        self.line(text);
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    /// Declares a variable's name and width.
    fn declare(&mut self, var: VarId, letter: char) -> (String, Width) {
        let range = IndexExpr::from(var).interval(self.kernel);
        let width = Width::of(range);
        let name = format!("{letter}{}", self.next_var);
        self.next_var += 1;
        if let Some(slot) = self.declared.vars.get_mut(var.0 as usize) {
            *slot = Some((name.clone(), width));
        }
        (name, width)
    }

    fn forget(&mut self, var: VarId) {
        if let Some(slot) = self.declared.vars.get_mut(var.0 as usize) {
            *slot = None;
        }
    }

    /// Declares the block's number.
    pub(super) fn open_block(&mut self, var: VarId) {
        let (name, width) = self.declare(var, 'b');
        self.block_line = (
            name.clone(),
            format!("    const {} {name} = blockIdx.x;\n", width.c_type()),
        );
    }

    fn index(&self, e: &IndexExpr) -> Result<(String, Width), CudaError> {
        IndexWriter {
            kernel: self.kernel,
            names: &self.declared,
        }
        .text(e)
    }

    fn index_in(&self, e: &IndexExpr, width: Width) -> Result<String, CudaError> {
        IndexWriter {
            kernel: self.kernel,
            names: &self.declared,
        }
        .in_width(e, width)
    }

    fn value(&self, v: ValueId) -> Result<String, CudaError> {
        self.values
            .get(v.0 as usize)
            .and_then(|v| v.clone())
            .ok_or(CudaError::UndefinedValue(v.0))
    }

    fn dtype(&self, v: ValueId) -> Result<DType, CudaError> {
        let known = self.kernel.values.get(v.0 as usize).copied();
        known.ok_or(CudaError::UndefinedValue(v.0))
    }

    /// An element of memory.
    fn place(&self, memory: Memory, index: &IndexExpr) -> Result<String, CudaError> {
        let name = memory_name(self.kernel, memory);
        if let Memory::Scratch(i) = memory {
            let s = self.kernel.scratch.get(i as usize);
            let s = s.ok_or_else(|| CudaError::Unsupported(format!("scratch {i}")))?;
            if s.scope == Scope::Register && s.len.is(1) {
                return Ok(name);
            }
        } else if let Memory::Param(i) = memory
            && i as usize >= self.kernel.params.len()
        {
            return Err(CudaError::Unsupported(format!("parameter {i}")));
        }
        Ok(format!("{name}[{}]", self.index(index)?.0))
    }

    pub(super) fn body(&mut self, body: &[Stmt]) -> Result<(), CudaError> {
        let mut clamped = Vec::new();
        for s in body {
            if let Stmt::Clamp { var, .. } = s {
                clamped.push(*var);
            }
            self.statement(s)?;
        }
        clamped.into_iter().for_each(|v| self.forget(v));
        Ok(())
    }

    fn statement(&mut self, s: &Stmt) -> Result<(), CudaError> {
        match s {
            Stmt::Let { value, op } => self.let_(*value, op),
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } => {
                let register = matches!(memory, Memory::Scratch(i)
                    if self.kernel.scratch.get(*i as usize).is_some_and(|s| s.scope == Scope::Register));
                if !self.in_thread && !register {
                    return Err(CudaError::EveryThread("a store to memory"));
                }
                let place = self.place(*memory, index)?;
                let value = self.value(*value)?;
                let store = format!("{place} = {value};");
                match mask {
                    Some(m) => {
                        let m = self.value(*m)?;
                        self.line(&format!("if ({m}) {store}"));
                    }
                    None => self.line(&store),
                }
                Ok(())
            }
            Stmt::Loop { var, bind, body } => self.loop_(*var, *bind, body),
            Stmt::If { cond, body } => {
                let cond = self.value(*cond)?;
                let outer = std::mem::replace(&mut self.in_branch, true);
                self.open(&format!("if ({cond}) {{"));
                self.body(body)?;
                self.close();
                self.in_branch = outer;
                Ok(())
            }
            Stmt::Clamp { var, value } => {
                let value = self.value(*value)?;
                let extent = super::extent(self.kernel, var.0);
                let limit = self.index_in(&(extent - IndexExpr::ONE), Width::Wide)?;
                let (name, width) = self.declare(*var, 'c');
                let t = width.c_type();
                self.helpers.clamp_index();
                self.line(&format!("const {t} {name} = ({t})clamp_index({value}, {limit});"));
                Ok(())
            }
            Stmt::Accumulate { .. } => Err(CudaError::NotLegal("accumulate".into())),
            Stmt::Contract(_) => Err(CudaError::NotLegal("contract".into())),
            Stmt::Collective(_) => Err(CudaError::Unsupported("a collective".into())),
            Stmt::Each { .. } => Err(CudaError::Unsupported("a fragment".into())),
            Stmt::CopyAsync(_) | Stmt::Wait(_) => Err(CudaError::Unsupported("a copy beside the threads".into())),
            Stmt::Barrier if self.in_thread => Err(CudaError::Misplaced {
                bind: Bind::Thread,
                place: "around a barrier",
            }),
            Stmt::Barrier if self.in_branch => Err(CudaError::Unsupported("a barrier in a branch".into())),
            Stmt::Barrier => {
                self.line("__syncthreads();");
                Ok(())
            }
        }
    }

    fn loop_(&mut self, var: VarId, bind: Bind, body: &[Stmt]) -> Result<(), CudaError> {
        let extent = super::extent(self.kernel, var.0);
        match bind {
            Bind::Block => {
                return Err(CudaError::Misplaced {
                    bind,
                    place: "inside another loop",
                });
            }
            Bind::Parallel => {
                return Err(CudaError::Misplaced {
                    bind,
                    place: "in a GPU kernel",
                });
            }
            Bind::Warp => return Err(CudaError::Unsupported("a warp loop".into())),
            Bind::Thread if self.in_thread => {
                return Err(CudaError::Misplaced {
                    bind,
                    place: "inside another",
                });
            }
            Bind::Thread => {
                let all = extent.is(self.block);
                let limit = self.index(&extent)?.0;
                let (name, _) = self.declare(var, 't');
                self.in_thread = true;
                if all {
                    self.open("{");
                } else {
                    self.open(&format!("if ((int)threadIdx.x < {limit}) {{"));
                }
                self.line(&format!("const int {name} = threadIdx.x;"));
                self.body(body)?;
                self.close();
                self.in_thread = false;
                self.forget(var);
                return Ok(());
            }
            Bind::Serial | Bind::Unroll | Bind::Lanes | Bind::Copy | Bind::Stream => {}
        }
        if matches!(bind, Bind::Unroll | Bind::Lanes) {
            self.line("#pragma unroll");
        }
        let (limit, limit_width) = self.index(&extent)?;
        let (name, width) = self.declare(var, 'k');
        let t = if limit_width == Width::Wide { limit_width } else { width }.c_type();
        if let Some(Some(slot)) = self.declared.vars.get_mut(var.0 as usize) {
            slot.1 = if limit_width == Width::Wide { Width::Wide } else { width };
        }
        self.open(&format!("for ({t} {name} = 0; {name} < {limit}; ++{name}) {{"));
        self.body(body)?;
        self.close();
        self.forget(var);
        Ok(())
    }

    fn let_(&mut self, value: ValueId, op: &Op) -> Result<(), CudaError> {
        let dtype = self.dtype(value)?;
        let text = match op {
            Op::Const(c) => {
                // Literals stand for themselves.
                self.values[value.0 as usize] = Some(literal(*c));
                return Ok(());
            }
            Op::Index(e, to) => {
                let (text, width) = self.index(e)?;
                match (*to, width) {
                    (DType::I32, Width::Narrow) => text,
                    (to, Width::Narrow) => scalar::convert(&mut self.helpers, to, DType::I32, &format!("({text})"))?,
                    (to, Width::Wide) => scalar::convert(&mut self.helpers, to, DType::I64, &format!("({text})"))?,
                }
            }
            Op::Load { memory, index, mask } => {
                let place = self.place(*memory, index)?;
                let element = match dtype {
                    DType::Bool => format!("{place} != 0"),
                    _ => place,
                };
                match mask {
                    Some(m) => {
                        let zero = literal(dtype.zero());
                        format!("{} ? {element} : {zero}", self.value(*m)?)
                    }
                    None => element,
                }
            }
            Op::Map(op, args) => {
                let last = args.last().ok_or_else(|| CudaError::Unsupported(op.to_string()))?;
                let on = self.dtype(*last)?;
                let args: Result<Vec<String>, CudaError> = args.iter().map(|&a| self.value(a)).collect();
                scalar::map(&mut self.helpers, *op, on, &args?)?
            }
            Op::Convert(to, v) => {
                let (from, v) = (self.dtype(*v)?, self.value(*v)?);
                scalar::convert(&mut self.helpers, *to, from, &v)?
            }
            Op::Bitcast(to, v) => {
                let (from, v) = (self.dtype(*v)?, self.value(*v)?);
                scalar::bitcast(*to, from, &v)?
            }
        };
        let name = format!("v{}", self.next_value);
        self.next_value += 1;
        let mut line = String::new();
        let _ = write!(line, "const {} {name} = {text};", value_type(dtype));
        self.line(&line);
        self.values[value.0 as usize] = Some(name);
        Ok(())
    }
}
