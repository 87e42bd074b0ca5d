//! The meaning of a kernel: its nest executed by one thread, every loop serial, in program order.
//!
//! Invariants:
//! - The only loop that is not run iteration by iteration is a `Lanes` loop: each statement of its body runs for all lanes
//!   before the next statement starts. That is what a vector machine does, so a nest whose lanes depend on each other
//!   shows a wrong result here too. `If` inside one runs its body, for all lanes, when any lane's condition holds.
//! - An unmasked access outside its memory, a read of undefined scratch, of a `Write` parameter before its store, or of an
//!   element that another parallel iteration writes, is an error. Nothing panics on a kernel without structural errors
//!   ([`crate::kernel::verify`]); others are refused.
//! - Scalars compute exactly as [`ScalarOp::eval`] says, so operations without a polynomial form agree bitwise with
//!   generated code.

mod asynchronous;
mod collective;
mod contract;
mod fold;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::dtype::{DType, Scalar};
use crate::graph::Monoid;
use crate::index::{IndexExpr, VarId};
use crate::kernel::verify::{Violation, structure};
use crate::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use crate::scalar::{ScalarOp, compare};
use crate::target::WARP_THREADS;
use crate::tensor::HostTensor;

/// Why a kernel could not be run, or broke a rule while it ran.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The kernel breaks a structural invariant.
    #[error("invalid kernel: {0}")]
    Invalid(Violation),
    /// Not as many buffers as parameters.
    #[error("{expected} buffers expected, found {found}")]
    BufferCount {
        /// Parameters.
        expected: usize,
        /// Buffers given.
        found: usize,
    },
    /// A buffer holds other elements than the parameter says.
    #[error("buffer {param} holds {found_len} elements of {found}, expected {expected_len} of {expected}")]
    Buffer {
        /// Parameter number.
        param: usize,
        /// Element type of the parameter.
        expected: DType,
        /// Element type given.
        found: DType,
        /// Elements of the parameter.
        expected_len: i64,
        /// Elements given.
        found_len: usize,
    },
    /// Symbol values are missing, or outside their range.
    #[error("symbol values {found:?} do not fit the ranges {expected:?}")]
    Symbols {
        /// Declared ranges.
        expected: Vec<(i64, i64)>,
        /// Values given.
        found: Vec<i64>,
    },
    /// An index expression has no value: overflow, or a division by something not positive.
    #[error("index expression {0:?} has no value")]
    Index(IndexExpr),
    /// An extent or length differs among lanes or is out of any range.
    #[error("extent of i{} is not one number", .0.0)]
    Extent(VarId),
    /// An access that is not masked, outside its memory.
    #[error("{memory:?}[{index}] is outside 0..{len}")]
    OutOfBounds {
        /// The memory.
        memory: Memory,
        /// The element asked for.
        index: i64,
        /// Number of elements.
        len: usize,
    },
    /// A load of an element that nothing defined.
    #[error("{memory:?}[{index}] is read before it is written")]
    Undefined {
        /// The memory.
        memory: Memory,
        /// The element.
        index: i64,
    },
    /// An access to an element that a copy is under way to.
    #[error("{memory}[{index}] is accessed while a copy to it is under way")]
    Pending {
        /// The memory.
        memory: Memory,
        /// The element.
        index: i64,
    },
    /// Two parallel iterations touch one element, and one of them writes it.
    #[error("parallel iterations {first} and {second} both touch {memory:?}[{index}]")]
    Race {
        /// The memory.
        memory: Memory,
        /// The element.
        index: i64,
        /// An iteration.
        first: u32,
        /// Another.
        second: u32,
    },
    /// Scratch does not fit in memory's address range.
    #[error("scratch {0} is too large")]
    Scratch(usize),
}

/// Memory behind a kernel's parameters. Elements are addressed by parameter, so two parameters may share bytes.
pub trait Buffers {
    /// Number of buffers.
    fn count(&self) -> usize;
    /// Element type of a buffer.
    fn dtype(&self, param: usize) -> DType;
    /// Number of elements of a buffer.
    fn len(&self, param: usize) -> usize;
    /// An element inside the buffer.
    fn load(&self, param: usize, index: usize) -> Scalar;
    /// Writes an element inside the buffer.
    fn store(&mut self, param: usize, index: usize, value: Scalar);
}

struct Tensors<'a>(&'a mut [HostTensor]);

impl Buffers for Tensors<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn dtype(&self, param: usize) -> DType {
        self.0[param].dtype()
    }
    fn len(&self, param: usize) -> usize {
        self.0[param].len()
    }
    fn load(&self, param: usize, index: usize) -> Scalar {
        self.0[param].get(index)
    }
    fn store(&mut self, param: usize, index: usize, value: Scalar) {
        self.0[param].set(index, value);
    }
}

/// Runs a kernel over one tensor per parameter (their shapes do not matter, only their lengths) and symbol values.
///
/// # Errors
/// [`KernelError`]: the arguments do not fit the kernel, or it breaks a rule while running. Buffers may then be partly
/// written.
pub fn interpret(kernel: &Kernel, buffers: &mut [HostTensor], symbols: &[i64]) -> Result<(), KernelError> {
    interpret_on(kernel, &mut Tensors(buffers), symbols)
}

/// Runs a kernel over any memory.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_on(kernel: &Kernel, buffers: &mut dyn Buffers, symbols: &[i64]) -> Result<(), KernelError> {
    if let Some(first) = structure(kernel).into_iter().next() {
        return Err(KernelError::Invalid(first));
    }
    if buffers.count() != kernel.params.len() {
        return Err(KernelError::BufferCount {
            expected: kernel.params.len(),
            found: buffers.count(),
        });
    }
    let in_range = symbols.len() == kernel.symbols.len()
        && symbols
            .iter()
            .zip(&kernel.symbols)
            .all(|(v, (lo, hi))| lo <= v && v <= hi);
    if !in_range {
        return Err(KernelError::Symbols {
            expected: kernel.symbols.clone(),
            found: symbols.to_vec(),
        });
    }
    let mut touched = Vec::new();
    for (i, p) in kernel.params.iter().enumerate() {
        let len = p
            .len
            .eval_symbols(symbols)
            .ok_or_else(|| KernelError::Index(p.len.clone()))?;
        if buffers.dtype(i) != p.dtype || i64::try_from(buffers.len(i)) != Ok(len) {
            return Err(KernelError::Buffer {
                param: i,
                expected: p.dtype,
                found: buffers.dtype(i),
                expected_len: len,
                found_len: buffers.len(i),
            });
        }
        let tracked = if p.access == Access::Read { 0 } else { buffers.len(i) };
        touched.push(vec![Touch::default(); tracked]);
    }
    let mut scratch = Vec::new();
    let mut lengths = Vec::new();
    for (i, s) in kernel.scratch.iter().enumerate() {
        let len = s
            .len
            .eval_symbols(symbols)
            .ok_or_else(|| KernelError::Index(s.len.clone()))?;
        // As many elements as all copies have together.
        let most: usize = match s.scope {
            Scope::Register | Scope::Cache | Scope::Shared | Scope::BlockFragment => 1 << 32,
            Scope::Thread | Scope::WarpFragment => 1 << 22,
        };
        let len = usize::try_from(len)
            .ok()
            .filter(|&n| n < most)
            .ok_or(KernelError::Scratch(i))?;
        lengths.push(len);
        scratch.push(vec![None; len]);
    }
    Machine {
        kernel,
        symbols,
        buffers,
        values: vec![SmallVec::new(); kernel.values.len()],
        vars: vec![SmallVec::new(); kernel.extents.len()],
        scratch,
        lengths,
        touched,
        lanes: 1,
        iteration: 0,
        warp: None,
        thread: 0,
        pending: FxHashMap::default(),
        committed: 0,
    }
    .block(&kernel.body)
}

/// Which parallel iterations touched an element: number + 1, or 0 for none.
#[derive(Clone, Copy, Default)]
struct Touch {
    writer: u32,
    reader: u32,
}

struct Machine<'a> {
    kernel: &'a Kernel,
    symbols: &'a [i64],
    buffers: &'a mut dyn Buffers,
    /// One element, or one per lane if defined in a lanes loop.
    values: Vec<SmallVec<[Scalar; 1]>>,
    vars: Vec<SmallVec<[i64; 1]>>,
    /// Of scope `Thread` the rows of the threads, one behind another, as far as there was one.
    scratch: Vec<Vec<Option<Scalar>>>,
    /// Number of elements of a scratch, of scope `Thread` of one thread's.
    lengths: Vec<usize>,
    touched: Vec<Vec<Touch>>,
    lanes: usize,
    iteration: u32,
    /// The warp whose loop runs.
    warp: Option<i64>,
    /// The thread of the block that runs.
    thread: usize,
    /// Elements of scratch that copies are under way to, with the group.
    pending: FxHashMap<(u32, usize), u64>,
    /// How many groups were committed.
    committed: u64,
}

fn of_lane<T: Copy>(all: &[T], lane: usize) -> Option<T> {
    match all {
        [one] => Some(*one),
        _ => all.get(lane).copied(),
    }
}

impl Machine<'_> {
    fn value(&self, value: ValueId, lane: usize) -> Scalar {
        of_lane(&self.values[value.0 as usize], lane).expect("the structure check excludes undefined values")
    }

    fn index(&self, e: &IndexExpr, lane: usize) -> Result<i64, KernelError> {
        e.eval(self.symbols, &|v| of_lane(&self.vars[v.0 as usize], lane))
            .ok_or_else(|| KernelError::Index(e.clone()))
    }

    fn holds(&self, mask: Option<ValueId>, lane: usize) -> bool {
        mask.is_none_or(|m| self.value(m, lane).as_bool())
    }

    fn block(&mut self, body: &[Stmt]) -> Result<(), KernelError> {
        body.iter().try_for_each(|s| self.statement(s))
    }

    fn statement(&mut self, s: &Stmt) -> Result<(), KernelError> {
        match s {
            Stmt::Let { value, op } => {
                let mut result = SmallVec::with_capacity(self.lanes);
                for lane in 0..self.lanes {
                    result.push(self.op(op, lane)?);
                }
                self.values[value.0 as usize] = result;
            }
            Stmt::Store {
                memory,
                index,
                value,
                mask,
            } => {
                for lane in 0..self.lanes {
                    if self.holds(*mask, lane) {
                        let at = self.index(index, lane)?;
                        self.store(*memory, at, self.value(*value, lane))?;
                    }
                }
            }
            Stmt::Loop { var, bind, body } => self.repeat(*var, *bind, body)?,
            Stmt::If { cond, body } => {
                if (0..self.lanes).any(|lane| self.value(*cond, lane).as_bool()) {
                    self.block(body)?;
                }
            }
            Stmt::Clamp { var, value } => {
                let mut result = SmallVec::with_capacity(self.lanes);
                for lane in 0..self.lanes {
                    let extent = self.index(&self.kernel.extents[var.0 as usize], lane)?;
                    result.push(self.value(*value, lane).as_i64().min(extent - 1).max(0));
                }
                self.vars[var.0 as usize] = result;
            }
            Stmt::Accumulate { monoid, state, values } => {
                for lane in 0..self.lanes {
                    self.accumulate(*monoid, state, values, lane)?;
                }
            }
            Stmt::Contract(c) => self.contract(c)?,
            Stmt::Collective(c) => self.collective(c)?,
            Stmt::FoldRows(f) => self.fold_rows(f)?,
            Stmt::Each { vars, body, .. } => self.each(*vars, body)?,
            Stmt::CopyAsync(c) => self.copy_async(c)?,
            Stmt::Commit => self.committed += 1,
            Stmt::Wait(pending) => self.wait(*pending),
            Stmt::Prefetch { .. } | Stmt::Barrier => {}
        }
        Ok(())
    }

    fn repeat(&mut self, var: VarId, bind: Bind, body: &[Stmt]) -> Result<(), KernelError> {
        let extent = self.index(&self.kernel.extents[var.0 as usize], 0)?;
        for lane in 1..self.lanes {
            if self.index(&self.kernel.extents[var.0 as usize], lane)? != extent {
                return Err(KernelError::Extent(var));
            }
        }
        if bind == Bind::Lanes {
            let count = usize::try_from(extent).unwrap_or(0);
            if self.lanes != 1 || count > 4096 {
                return Err(KernelError::Extent(var));
            }
            if count > 0 {
                self.vars[var.0 as usize] = (0..extent).collect();
                self.lanes = count;
                self.block(body)?;
                self.lanes = 1;
            }
            return Ok(());
        }
        for i in 0..extent {
            self.vars[var.0 as usize] = smallvec::smallvec![i];
            match bind {
                Bind::Parallel | Bind::Block => {
                    self.iteration = u32::try_from(i).map_err(|_| KernelError::Extent(var))?;
                    self.scratch.iter_mut().for_each(|s| s.fill(None));
                    self.pending.clear();
                }
                Bind::Warp => self.warp = Some(i),
                Bind::Thread => {
                    let thread = self.warp.unwrap_or(0).saturating_mul(WARP_THREADS).saturating_add(i);
                    self.thread = usize::try_from(thread).map_err(|_| KernelError::Extent(var))?;
                }
                Bind::Serial | Bind::Unroll | Bind::Lanes | Bind::Copy | Bind::Stream => {}
            }
            self.block(body)?;
        }
        if bind == Bind::Warp {
            self.warp = None;
        }
        Ok(())
    }

    fn op(&mut self, op: &Op, lane: usize) -> Result<Scalar, KernelError> {
        Ok(match op {
            Op::Const(value) => *value,
            Op::Index(e, dtype) => Scalar::from_i64(*dtype, self.index(e, lane)?),
            Op::Load { memory, index, mask } => {
                if !self.holds(*mask, lane) {
                    return Ok(self.kernel.memory_dtype(*memory).zero());
                }
                let at = self.index(index, lane)?;
                self.load(*memory, at)?
            }
            // As exactly as the meaning is: what may be off need not be.
            Op::Map(op, args) | Op::Approximate(op, args) => {
                let args: SmallVec<[Scalar; 3]> = args.iter().map(|&a| self.value(a, lane)).collect();
                op.eval(&args)
            }
            Op::Convert(to, value) => self.value(*value, lane).convert(*to),
            Op::Bitcast(to, value) => Scalar::from_bits(*to, self.value(*value, lane).bits()),
            Op::ShortExp2(value) => {
                let x = f32::from_bits(self.value(*value, lane).bits() as u32);
                Scalar::from_bits(DType::F32, super::short_exp2(x).to_bits().into())
            }
            Op::Scale(operands) => {
                let [x, n] = operands.map(|v| f32::from_bits(self.value(v, lane).bits() as u32));
                Scalar::from_bits(DType::F32, super::scale(x, n).to_bits().into())
            }
        })
    }

    fn locate(&self, memory: Memory, index: i64) -> Result<usize, KernelError> {
        let len = match memory {
            Memory::Param(p) => self.buffers.len(p as usize),
            Memory::Scratch(s) => self.lengths[s as usize],
        };
        let at = usize::try_from(index).ok().filter(|&i| i < len);
        let at = at.ok_or(KernelError::OutOfBounds { memory, index, len })?;
        let Memory::Scratch(s) = memory else { return Ok(at) };
        if self.pending.contains_key(&(s, at)) {
            return Err(KernelError::Pending { memory, index });
        }
        Ok(match self.kernel.scratch[s as usize].scope {
            Scope::Thread => self.thread * len + at,
            Scope::WarpFragment => usize::try_from(self.warp.unwrap_or(0)).unwrap_or(0) * len + at,
            Scope::Register | Scope::Cache | Scope::Shared | Scope::BlockFragment => at,
        })
    }

    /// Each element of a fragment, row by row.
    fn each(&mut self, [m, n]: [VarId; 2], body: &[Stmt]) -> Result<(), KernelError> {
        let extent = |k: &Self, v: VarId| k.index(&k.kernel.extents[v.0 as usize], 0);
        let (rows, columns) = (extent(self, m)?, extent(self, n)?);
        for row in 0..rows {
            for column in 0..columns {
                self.set(m, row);
                self.set(n, column);
                self.block(body)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, memory: Memory, index: i64) -> Result<Scalar, KernelError> {
        let at = self.locate(memory, index)?;
        match memory {
            Memory::Scratch(s) => {
                let element = self.scratch[s as usize].get(at).copied().flatten();
                element.ok_or(KernelError::Undefined { memory, index })
            }
            Memory::Param(p) => {
                let access = self.kernel.params[p as usize].access;
                if access != Access::Read {
                    let me = self.iteration + 1;
                    let touch = &mut self.touched[p as usize][at];
                    match touch.writer {
                        0 if access == Access::Write => return Err(KernelError::Undefined { memory, index }),
                        w if w != 0 && w != me => return Err(race(memory, index, w, me)),
                        _ => touch.reader = me,
                    }
                }
                Ok(self.buffers.load(p as usize, at))
            }
        }
    }

    fn store(&mut self, memory: Memory, index: i64, value: Scalar) -> Result<(), KernelError> {
        let at = self.locate(memory, index)?;
        match memory {
            Memory::Scratch(s) => {
                let all = &mut self.scratch[s as usize];
                if at >= all.len() {
                    all.resize(at + 1, None);
                }
                all[at] = Some(value);
            }
            Memory::Param(p) => {
                let me = self.iteration + 1;
                let touch = &mut self.touched[p as usize][at];
                for other in [touch.writer, touch.reader] {
                    if other != 0 && other != me {
                        return Err(race(memory, index, other, me));
                    }
                }
                touch.writer = me;
                self.buffers.store(p as usize, at, value);
            }
        }
        Ok(())
    }

    fn accumulate(
        &mut self,
        monoid: Monoid,
        state: &[(Memory, IndexExpr)],
        values: &[ValueId],
        lane: usize,
    ) -> Result<(), KernelError> {
        let mut old: SmallVec<[Scalar; 2]> = SmallVec::new();
        let mut at: SmallVec<[i64; 2]> = SmallVec::new();
        for (memory, index) in state {
            let i = self.index(index, lane)?;
            at.push(i);
            old.push(self.load(*memory, i)?);
        }
        let new: SmallVec<[Scalar; 2]> = values.iter().map(|&v| self.value(v, lane)).collect();
        let result = match (&old[..], &new[..]) {
            ([sum], [left, right]) => smallvec::smallvec![ScalarOp::Fma.eval(&[*left, *right, *sum])],
            _ => combine(monoid, &old, &new),
        };
        for (((memory, _), i), value) in state.iter().zip(at).zip(result) {
            self.store(*memory, i, value)?;
        }
        Ok(())
    }
}

fn race(memory: Memory, index: i64, first: u32, second: u32) -> KernelError {
    KernelError::Race {
        memory,
        index,
        first: first - 1,
        second: second - 1,
    }
}

/// `old ⊕ new` of a monoid's states: one value, or for argmax and argmin the element and its index.
pub fn combine(monoid: Monoid, old: &[Scalar], new: &[Scalar]) -> SmallVec<[Scalar; 2]> {
    if !monoid.is_arg() {
        return smallvec::smallvec![monoid.combine().eval(&[old[0], new[0]])];
    }
    let nan = |s: Scalar| compare(s, s).is_none();
    let earlier = ScalarOp::Lt.eval(&[new[1], old[1]]).as_bool();
    let wins = match (nan(old[0]), nan(new[0])) {
        (true, true) => earlier,
        (true, false) => false,
        (false, true) => true,
        (false, false) => match compare(new[0], old[0]) {
            Some(std::cmp::Ordering::Equal) => earlier,
            Some(order) => order.is_gt() == (monoid == Monoid::ArgMax),
            None => false,
        },
    };
    if wins { new.into() } else { old.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Param;

    fn param(dtype: DType, len: i64, access: Access) -> Param {
        Param {
            dtype,
            len: len.into(),
            access,
        }
    }

    fn load(memory: Memory, index: IndexExpr) -> Op {
        Op::Load {
            memory,
            index,
            mask: None,
        }
    }

    /// `p1[i] = p0[i + offset] + p0[i + offset]` over `n` iterations.
    fn doubling(n: i64, offset: i64, bind: Bind) -> Kernel {
        let mut k = Kernel {
            params: vec![param(DType::F32, 4, Access::Read), param(DType::F32, 4, Access::Write)],
            ..Kernel::default()
        };
        let i = k.new_var(n.into());
        let (x, y) = (k.new_value(DType::F32), k.new_value(DType::F32));
        k.body = vec![Stmt::Loop {
            var: i,
            bind,
            body: vec![
                Stmt::Let {
                    value: x,
                    op: load(Memory::Param(0), IndexExpr::from(i) + offset.into()),
                },
                Stmt::Let {
                    value: y,
                    op: Op::Map(ScalarOp::Add, smallvec::smallvec![x, x]),
                },
                Stmt::Store {
                    memory: Memory::Param(1),
                    index: i.into(),
                    value: y,
                    mask: None,
                },
            ],
        }];
        k
    }

    fn buffers() -> Vec<HostTensor> {
        vec![
            HostTensor::from_slice(&[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap(),
            HostTensor::zeros(DType::F32, &[4]).unwrap(),
        ]
    }

    #[test]
    fn every_binding_gives_the_same_result() {
        // A warp is 32 threads of a block.
        for bind in Bind::ALL.into_iter().filter(|b| *b != Bind::Warp) {
            let (mut b, mut k) = (buffers(), doubling(4, 0, bind));
            let copies = matches!(bind, Bind::Copy | Bind::Stream);
            if copies {
                let Stmt::Loop { body, .. } = &mut k.body[0] else {
                    unreachable!()
                };
                let Stmt::Let { value: loaded, .. } = body[0] else {
                    unreachable!()
                };
                body.remove(1);
                let Stmt::Store { value, .. } = &mut body[1] else {
                    unreachable!()
                };
                *value = loaded;
            }
            if bind == Bind::Thread {
                // Threads are those of a block.
                let (var, body) = (k.new_var(IndexExpr::ONE), std::mem::take(&mut k.body));
                k.body = vec![Stmt::Loop {
                    var,
                    bind: Bind::Block,
                    body,
                }];
            }
            interpret(&k, &mut b, &[]).unwrap();
            let expected = if copies {
                [1.0, 2.0, 3.0, 4.0]
            } else {
                [2.0, 4.0, 6.0, 8.0]
            };
            assert_eq!(b[1].as_slice::<f32>().unwrap(), expected, "{bind:?}");
        }
    }

    #[test]
    fn an_access_outside_its_memory_is_an_error() {
        let e = interpret(&doubling(4, 1, Bind::Serial), &mut buffers(), &[]).unwrap_err();
        let expected = KernelError::OutOfBounds {
            memory: Memory::Param(0),
            index: 4,
            len: 4,
        };
        assert_eq!(e, expected);
    }

    #[test]
    fn undefined_scratch_is_not_read_and_does_not_outlive_a_parallel_iteration() {
        let mut k = Kernel {
            params: vec![param(DType::F32, 2, Access::Write)],
            ..Kernel::default()
        };
        let s = k.new_scratch(DType::F32, 1.into(), Scope::Register);
        let i = k.new_var(2.into());
        let (x, y) = (k.new_value(DType::F32), k.new_value(DType::F32));
        k.body = vec![Stmt::Loop {
            var: i,
            bind: Bind::Parallel,
            body: vec![
                Stmt::Let {
                    value: x,
                    op: load(s, 0.into()),
                },
                Stmt::Let {
                    value: y,
                    op: Op::Const(DType::F32.one()),
                },
                Stmt::Store {
                    memory: s,
                    index: 0.into(),
                    value: y,
                    mask: None,
                },
            ],
        }];
        let mut b = vec![HostTensor::zeros(DType::F32, &[2]).unwrap()];
        let undefined = |e| matches!(e, Err(KernelError::Undefined { .. }));
        assert!(undefined(interpret(&k, &mut b, &[])));
        // Storing first makes it defined; the second iteration must store again.
        if let Stmt::Loop { body, .. } = &mut k.body[0] {
            body.rotate_left(1);
        }
        interpret(&k, &mut b, &[]).unwrap();
    }

    #[test]
    fn parallel_iterations_that_write_one_element_race() {
        let mut k = doubling(4, 0, Bind::Parallel);
        if let Stmt::Loop { body, .. } = &mut k.body[0]
            && let Stmt::Store { index, .. } = &mut body[2]
        {
            *index = 0.into();
        }
        let e = interpret(&k, &mut buffers(), &[]).unwrap_err();
        assert!(
            matches!(
                e,
                KernelError::Race {
                    first: 0,
                    second: 1,
                    ..
                }
            ),
            "{e}"
        );
    }

    #[test]
    fn argmax_keeps_the_first_and_prefers_nan() {
        let f = |v: f64| Scalar::from_f64(DType::F32, v);
        let n = |v: i64| Scalar::from_i64(DType::I32, v);
        let at =
            |m, old: (f64, i64), new: (f64, i64)| combine(m, &[f(old.0), n(old.1)], &[f(new.0), n(new.1)])[1].as_i64();
        assert_eq!(at(Monoid::ArgMax, (1.0, 0), (2.0, 1)), 1);
        assert_eq!(at(Monoid::ArgMin, (1.0, 0), (2.0, 1)), 0);
        assert_eq!(at(Monoid::ArgMax, (1.0, 5), (1.0, 3)), 3);
        assert_eq!(at(Monoid::ArgMax, (f64::NAN, 2), (9.0, 1)), 2);
        assert_eq!(at(Monoid::ArgMin, (1.0, 0), (f64::NAN, 4)), 4);
        assert_eq!(at(Monoid::ArgMin, (f64::NAN, 3), (f64::NAN, 4)), 3);
    }
}
