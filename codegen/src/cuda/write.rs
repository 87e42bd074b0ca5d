//! The lowered form as C++ statements.
//!
//! Each computed value is a constant of the text; what a loop carries or an if decides is a variable, which goes on being that
//! of what it was before where nobody else needs it.

use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Scope, Stmt};
use tlc_ir::target::{GPU_ACCESS_BYTES, WARP_THREADS};
use tlc_ir::{DType, ScalarOp};

use super::index::Width;
use super::quads::Quads;
use super::scalar::{self, Helpers, literal, memory_type, value_type};
use super::tiles::{known_groups, threads_write};
use super::under_way::{self, UnderWay};
use super::uses::Uses;
use super::{CudaError, uses_word};
use crate::flat::{Address, Flat, If, Item, Loop, LoopKind, Op, Region, Value};

/// Types of a value that is rounded to 16 bits and computed with as what it was.
const ROUNDED: [DType; 3] = [DType::F32, DType::BF16, DType::F32];

/// Values from which on what each step of a loop writes is a tile of sums.
const TILE_OF_SUMS: usize = 8;
/// Steps up to which a loop over such a tile is written out by NVRTC.
const UNROLLED_STEPS: i64 = 16;
/// Iterations of a loop that waits for memory which are written out, so that their loads are under way together.
const LOADS_UNDER_WAY: i64 = 8;
/// Of loads of 16 bytes each beside a tile of sums so many: more of them leave the sums no registers.
const WIDE_LOADS_UNDER_WAY: i64 = 4;
/// Definitions of a loop's body, above which it is not one that waits for memory.
const MOST_UNROLLED: usize = 32;

/// The finished parts of a function.
pub(super) struct Code {
    pub text: String,
    pub helpers: String,
}

/// Name of a memory: parameters `p`, a thread's arrays `a`, shared `shared`.
pub(super) fn memory_name(kernel: &Kernel, memory: Memory) -> String {
    match memory {
        Memory::Param(i) => format!("p{i}"),
        Memory::Scratch(i) => match kernel.scratch.get(i as usize).map(|s| s.scope) {
            Some(Scope::Shared) => format!("shared{i}"),
            _ => format!("a{i}"),
        },
    }
}

/// Names are a letter for what is named (block, thread, loop counter, clamped data, index, variable, value) and a number in
/// order of appearance; none is the name of a type.
pub(super) struct Writer<'f, 'k> {
    pub flat: &'f Flat<'k>,
    pub uses: Uses,
    /// Threads of a block.
    threads: i64,
    /// What says in the text which block it is.
    block: &'static str,
    /// Whether the kernel is one of several that a block runs in turn.
    pub(super) in_turn: bool,
    out: String,
    depth: usize,
    pub(super) helpers: Helpers,
    names: Vec<Option<String>>,
    /// In which each index is computed.
    pub widths: Vec<Width>,
    next_index: u32,
    next_variable: u32,
    next_value: u32,
    in_thread: bool,
    in_warp: bool,
    /// Whether a wait leaves a group of copies under way, so that groups must be distinguished.
    pub groups: bool,
    /// The products of four warps that may still be under way.
    pub(super) under_way: Option<UnderWay>,
    /// Whether tiles are copied as a whole.
    pub(super) tiles: bool,
    /// The copies of tiles that are begun next.
    pub(super) tiles_noted: Vec<String>,
    /// Whether threads copy beside them.
    pub(super) threads_copy: bool,
    /// Whether threads may have written swizzled memory since their writes were closed.
    pub(super) open_writes: bool,
    /// Groups of copies that end behind the last copy of a thread to swizzled memory which has not been waited for.
    pub(super) copies_open: Option<u32>,
    /// How many groups of tiles are under way, if it is known wherever one waits.
    pub(super) groups_known: Option<u32>,
    /// The memories that tiles are copied to.
    pub(super) tile_memories: Vec<Memory>,
    /// Products that were begun in front of a barrier.
    begun_early: usize,
    /// Stores of threads that are done together.
    pub(super) quads: Quads,
    /// What says in the text which thread of a block it is.
    thread: String,
    /// Whether indices are divided by reciprocals. Threads that multiply compute few indices for each block of their sums, and have no registers to
    /// spare: of divisions the assembler chooses what it computes again, of products by reciprocals it keeps what several blocks need.
    pub(super) reciprocals: bool,
    /// Sizes that are at least 1 wherever the statements written now run: those of the loops around them.
    pub(super) positive: Vec<Value>,
    /// By value: whether it is integers of a byte or two that have a name together, and of which single ones are computed with.
    pub(super) computed_apart: Vec<bool>,
}

/// Whether threads that copy beside them compute meanwhile what matrix instructions would, had they any for it.
fn computes_beside_copies(flat: &Flat<'_>, body: &Region) -> bool {
    let multiplies = |item: &Item| matches!(item, Item::Multiply(_));
    threads_write(flat, body).copies && !any_item(body, &multiplies)
}

/// Whether something holds of an item of a region, or of one inside of these.
fn any_item(body: &Region, of: &impl Fn(&Item) -> bool) -> bool {
    body.iter().any(|item| {
        of(item)
            || match item {
                Item::Loop(l) => any_item(&l.body, of),
                Item::If(i) => any_item(&i.then, of),
                _ => false,
            }
    })
}

impl<'f, 'k> Writer<'f, 'k> {
    /// `in_turn` says whether the kernel is one of several that a block runs in turn.
    pub(super) fn new(flat: &'f Flat<'k>, threads: i64, block: &'static str, in_turn: bool) -> Self {
        let mut tile_memories = Vec::new();
        under_way::tile_memories(&flat.body, &mut tile_memories);
        let mut writer = Writer {
            flat,
            uses: Uses::of(flat),
            threads,
            block,
            in_turn,
            out: String::new(),
            depth: 1,
            helpers: Helpers::default(),
            names: vec![None; flat.values.len()],
            widths: Vec::new(),
            next_index: 0,
            next_variable: 0,
            next_value: 0,
            in_thread: false,
            in_warp: false,
            under_way: None,
            tiles: !flat.matrices.is_empty(),
            tiles_noted: Vec::new(),
            threads_copy: threads_write(flat, &flat.body).copies,
            open_writes: false,
            copies_open: None,
            groups_known: known_groups(&flat.body, 0).map(|_| 0),
            tile_memories,
            begun_early: 0,
            quads: Quads::default(),
            thread: "threadIdx.x".into(),
            reciprocals: super::sums(flat.kernel).next().is_none(),
            positive: Vec::new(),
            computed_apart: super::apart::computed_apart(flat),
            groups: flat.kernel.statements().any(|s| matches!(s, Stmt::Wait(1..))),
        };
        for (i, info) in (0..).zip(&flat.values) {
            let width = writer.width_by_operands(Value(i));
            writer.widths.push(width);
            if info.lanes > 1 && matches!(info.op, Op::Map(..) | Op::Convert(_)) {
                writer.helpers.have_words(info.dtype);
                info.op.operands(|v| writer.helpers.have_words(flat.dtype(v)));
            }
        }
        writer
    }

    /// The text of the block loop.
    pub(super) fn kernel(mut self) -> Result<Code, CudaError> {
        for (i, info) in self.flat.values.iter().enumerate() {
            if let Op::Symbol(s) = info.op {
                let letter = match Width::of(info.range) {
                    Width::Narrow => 'n',
                    Width::Wide => 's',
                };
                self.names[i] = Some(format!("{letter}{s}"));
            }
        }
        for item in &self.flat.body {
            match item {
                Item::Loop(l) if l.kind == LoopKind::Block => self.block(l)?,
                // What does not change in any block.
                Item::Let(v) => self.let_(*v)?,
                _ => return Err(CudaError::NoBlockLoop),
            }
        }
        if self.out.contains("floor_div") || self.out.contains("floor_mod") {
            self.helpers.floor_division();
        }
        if self.out.contains("index_quotient(") || self.out.contains("index_remainder(") {
            self.helpers.reciprocals();
        }
        Ok(Code {
            helpers: self.helpers.text(),
            text: self.out,
        })
    }

    fn block(&mut self, l: &Loop) -> Result<(), CudaError> {
        let name = self.name_index(l.counter, 'b');
        let t = self.width(l.counter).c_type();
        let start = self.out.len();
        let made = self.barriers_made();
        self.out.push_str(&made);
        self.region(&l.body)?;
        self.end_group();
        if uses_word(&self.out, &name) {
            let line = format!("    const {t} {name} = {};\n", self.block);
            self.out.insert_str(start, &line);
        }
        Ok(())
    }

    pub(super) fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    pub(super) fn open(&mut self, text: &str) {
        self.line(text);
        self.depth += 1;
    }

    pub(super) fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    /// Writes what one statement holds.
    pub(super) fn depth_in(&mut self, write: impl FnOnce(&mut Self)) {
        self.depth += 1;
        write(self);
        self.depth -= 1;
    }

    pub(super) fn name(&self, v: Value) -> Option<&str> {
        self.names[v.0 as usize].as_deref()
    }

    fn name_index(&mut self, v: Value, letter: char) -> String {
        let name = format!("{letter}{}", self.next_index);
        self.next_index += 1;
        self.names[v.0 as usize] = Some(name.clone());
        name
    }

    /// A value as an operand.
    pub(super) fn value(&self, v: Value) -> String {
        if let Op::Const(c) = self.flat.op(v) {
            return literal(*c);
        }
        if self.flat.op(v).is_index() {
            return match self.index(v) {
                (text, Width::Narrow) => format!("(i64)({text})"),
                (text, Width::Wide) => format!("({text})"),
            };
        }
        let name = self.name(v).unwrap_or_default();
        match self.is_byte(v) {
            true => format!("({name} != 0)"),
            false => name.into(),
        }
    }

    /// Whether a bool is the byte that it was in memory, which is stored again as it is.
    fn is_byte(&self, v: Value) -> bool {
        let info = self.flat.info(v);
        info.dtype == DType::Bool && info.lanes == 1 && matches!(info.op, Op::Load { .. } | Op::Lane(..))
    }

    /// A value as it is stored.
    fn stored(&self, v: Value) -> String {
        match self.name(v) {
            Some(name) if self.is_byte(v) => name.into(),
            _ => self.value(v),
        }
    }

    pub(super) fn place(&self, a: &Address) -> String {
        format!("{}[{}]", memory_name(self.flat.kernel, a.memory), self.subscript(a))
    }

    fn region(&mut self, body: &[Item]) -> Result<(), CudaError> {
        let mut early = 0;
        for (i, item) in body.iter().enumerate() {
            if i < early {
                continue;
            }
            if let Some((n, barrier_behind)) = self.begins_early(&body[i..]) {
                early = i + n;
                self.begun_early += 1;
                self.begin_tiles(false);
                self.region(&body[i + 1..early])?;
                match barrier_behind {
                    true => {
                        self.end_group();
                        early += 1;
                    }
                    false => self.end_earlier_groups(),
                }
                self.barrier();
                continue;
            }
            self.end_group_for(item);
            if !matches!(item, Item::Let(_) | Item::CopyTile(_)) {
                self.begin_tiles(matches!(item, Item::Commit));
            }
            match item {
                Item::Let(v) => self.let_(*v)?,
                Item::Store {
                    address, value, mask, ..
                } => {
                    if !self.in_thread {
                        return Err(CudaError::EveryThread("a store to memory"));
                    }
                    if self.quads.has(*value) {
                        self.store_in_quad(address, *value);
                        continue;
                    }
                    let lanes = self.flat.info(*value).lanes;
                    let place = match lanes {
                        1 => self.place(address),
                        lanes => self.places(address, lanes),
                    };
                    let stored = match self.flat.op(*value) {
                        Op::Splat(_) if self.flat.is_placeless(*value) => self.packed(*value)?,
                        _ => self.stored(*value),
                    };
                    let store = format!("{place} = {stored};");
                    let guard = mask.map_or_else(String::new, |m| format!("if ({}) ", self.value(m)));
                    self.open_writes |= self.flat.kernel.is_swizzled(address.memory);
                    self.line(&format!("{guard}{store}"));
                }
                Item::Loop(l) => self.loop_(l)?,
                Item::If(i) => self.if_(i)?,
                Item::Collective { .. } if self.in_thread || !self.in_warp => {
                    return Err(CudaError::Misplaced {
                        bind: Bind::Warp,
                        place: "elsewhere than around a collective",
                    });
                }
                Item::Collective { kind, threads, address } => self.collective(*kind, *threads, address)?,
                Item::Barrier if self.in_thread || self.in_warp => {
                    return Err(CudaError::Misplaced {
                        bind: Bind::Thread,
                        place: "around a barrier",
                    });
                }
                Item::Barrier => self.barrier(),
                Item::Multiply(_) if self.in_thread || !self.in_warp => {
                    return Err(CudaError::Misplaced {
                        bind: Bind::Warp,
                        place: "elsewhere than around a product of matrices",
                    });
                }
                Item::Multiply(p) if p.right.swizzled.is_some() => self.multiply_in_groups(p)?,
                Item::Multiply(p) => self.multiply(p)?,
                Item::CopyAsync(_) if !self.in_thread => {
                    return Err(CudaError::EveryThread("a copy to shared memory"));
                }
                Item::CopyAsync(c) => {
                    if self.flat.kernel.is_swizzled(c.to.memory) {
                        self.open_writes = true;
                        self.copies_open = Some(0);
                    }
                    self.copy_async(c);
                }
                Item::CopyTile(_) if self.in_thread || self.in_warp => {
                    return Err(CudaError::Misplaced {
                        bind: Bind::Thread,
                        place: "around a copy of a tile",
                    });
                }
                Item::CopyTile(c) => self.copy_tile(c),
                Item::Commit => self.commit(),
                Item::Wait(pending) => self.wait(*pending),
                Item::Copy(_) => return Err(CudaError::Unsupported("a copy of a block".into())),
                Item::Prefetch(_) => return Err(CudaError::Unsupported("a prefetch".into())),
            }
        }
        self.begin_tiles(false);
        Ok(())
    }

    /// Notes a store, and stores all parts once they are there.
    fn store_in_quad(&mut self, address: &Address, value: Value) {
        let (name, place) = (self.value(value), self.place(address));
        if let Some((parts, first)) = self.quads.note(value, name, place) {
            let words = parts.map(|n| format!("*(unsigned*)&{n}")).join(", ");
            let store = self.helpers.store_quad();
            self.line(&format!("{store}(&{first}, {words});"));
        }
    }

    fn barrier(&mut self) {
        self.close_writes();
        self.line("__syncthreads();");
    }

    /// What a loop repeats. Where an iteration is there is at least one.
    fn iteration(&mut self, l: &Loop) -> Result<(), CudaError> {
        let known = self.positive.len();
        self.note_at_least(l.extent, 1);
        self.region(&l.body)?;
        self.positive.truncate(known);
        Ok(())
    }

    fn loop_(&mut self, l: &Loop) -> Result<(), CudaError> {
        let refused = |bind, place| Err(CudaError::Misplaced { bind, place });
        match l.kind {
            LoopKind::Serial => self.serial(l),
            LoopKind::Thread if self.in_thread => refused(Bind::Thread, "inside another"),
            LoopKind::Thread => {
                let name = self.name_index(l.counter, 't');
                self.in_thread = true;
                if self.in_warp {
                    self.open("{");
                    let start = self.out.len();
                    self.quads = Quads::of(&l.body, l.counter, self.flat);
                    self.iteration(l)?;
                    self.quads = Quads::default();
                    // Which thread it is may not matter to elements of a fragment.
                    if uses_word(&self.out[start..], &name) {
                        let indent = "    ".repeat(self.depth);
                        let line = format!("{indent}const int {name} = {} % {WARP_THREADS};\n", self.thread);
                        self.out.insert_str(start, &line);
                    }
                } else {
                    self.first_threads(l, 1);
                    self.line(&format!("const int {name} = {};", self.thread));
                    self.iteration(l)?;
                }
                self.close();
                self.in_thread = false;
                Ok(())
            }
            LoopKind::Warp if self.in_thread || self.in_warp => refused(Bind::Warp, "inside another"),
            LoopKind::Warp => {
                self.first_threads(l, WARP_THREADS);
                let name = self.name_index(l.counter, 'w');
                self.line(&format!("const int {name} = {} / {WARP_THREADS};", self.thread));
                self.in_warp = true;
                self.iteration(l)?;
                self.in_warp = false;
                if self.flat.number(l.extent) != Some(self.threads / WARP_THREADS) {
                    // Warps that do not come here have nothing to wait for.
                    self.end_group();
                }
                self.close();
                Ok(())
            }
            LoopKind::Block => refused(Bind::Block, "inside another loop"),
            LoopKind::Parallel => refused(Bind::Parallel, "in a GPU kernel"),
        }
    }

    /// What says in the text which thread of a block it is.
    pub(super) fn thread(&self) -> &str {
        &self.thread
    }

    /// Opens what the first threads of a block execute: so many for each iteration of a loop.
    fn first_threads(&mut self, l: &Loop, each: i64) {
        let all = self.flat.number(l.extent).and_then(|n| n.checked_mul(each));
        if all == Some(self.threads) {
            return self.open("{");
        }
        if let Some(cond) = self.is_first(l.extent, self.threads).filter(|_| each == 1) {
            return self.open(&format!("if ({cond}) {{"));
        }
        let limit = match (all, self.index(l.extent).0) {
            (Some(n), _) => n.to_string(),
            (None, limit) if each == 1 => limit,
            (None, limit) => format!("({limit}) * {each}"),
        };
        self.open(&format!("if ((int)threadIdx.x < {limit}) {{"));
    }

    /// Whether a loop is long and has little to do but to load and to store what was loaded: then several loads should be under way at once.
    fn waits_for_memory(&self, l: &Loop) -> bool {
        let long = self.flat.number(l.extent).is_some_and(|n| n >= 2 * LOADS_UNDER_WAY);
        let loads = |i: &Item| match i {
            Item::Let(v) => matches!(self.flat.values[v.0 as usize].op, Op::Load { .. }),
            _ => false,
        };
        let stores = l.body.iter().filter(|i| matches!(i, Item::Store { .. })).count();
        let simple = l.body.iter().all(|i| matches!(i, Item::Let(_) | Item::Store { .. }));
        let short = stores == 1 && l.body.len() <= MOST_UNROLLED;
        long && simple && short && l.carried.is_empty() && l.body.iter().any(loads)
    }

    /// Whether a loop loads as many bytes from global memory at once as there can be.
    fn loads_wide(&self, l: &Loop) -> bool {
        l.body.iter().any(|i| {
            let Item::Let(v) = i else { return false };
            let value = &self.flat.values[v.0 as usize];
            let bytes = i64::from(value.lanes) * value.dtype.bytes() as i64;
            matches!(&value.op, Op::Load { address, .. } if matches!(address.memory, Memory::Param(_)))
                && bytes >= GPU_ACCESS_BYTES
        })
    }

    /// How many iterations a loop has, of which the compiler does not see how it is computed: NVRTC 13.0 drops the negation of a condition that
    /// a loop of `n + 1` iterations inside of a branch branches on and chooses by (`k != 0 ? a[k] : 0`), for architectures before `compute_100`.
    fn limit(&mut self, l: &Loop) -> String {
        let (limit, width) = self.index(l.extent);
        if matches!(self.flat.op(l.extent), Op::Const(_) | Op::Symbol(_)) {
            return limit;
        }
        let opaque = self.helpers.opaque(width);
        let name = format!("e{}", self.next_index);
        self.next_index += 1;
        self.line(&format!("const {} {name} = {opaque}({limit});", width.c_type()));
        name
    }

    fn serial(&mut self, l: &Loop) -> Result<(), CudaError> {
        for c in &l.carried {
            self.variable(c.initial, c.outcome)?;
            self.names[c.inside.0 as usize] = self.names[c.outcome.0 as usize].clone();
        }
        let limit = self.limit(l);
        let name = self.name_index(l.counter, 'k');
        let t = self.width(l.counter).c_type();
        // A step of a tile of sums reads neighbours of what the next one does: together they are one access.
        let short = self.flat.number(l.extent).is_some_and(|n| n <= UNROLLED_STEPS);
        let own = |memory: Memory| match memory {
            Memory::Scratch(s) => self.flat.kernel.scratch[s as usize].scope != Scope::Shared,
            Memory::Param(_) => false,
        };
        let stores = l.body.iter();
        let stores = stores.filter(|i| matches!(i, Item::Store { address, .. } if own(address.memory)));
        if short && stores.count() >= TILE_OF_SUMS {
            match self.loads_wide(l) {
                true => self.line(&format!("#pragma unroll {WIDE_LOADS_UNDER_WAY}")),
                false => self.line("#pragma unroll"),
            }
        } else if self.waits_for_memory(l) {
            self.line(&format!("#pragma unroll {LOADS_UNDER_WAY}"));
        }
        self.open(&format!("for ({t} {name} = 0; {name} < {limit}; ++{name}) {{"));
        // What an iteration writes the next one may find open; there may be none.
        let open = (self.open_writes, self.copies_open);
        let writes = threads_write(self.flat, &l.body);
        self.open_writes |= writes.swizzled;
        if writes.swizzled_copies {
            self.copies_open = Some(0);
        }
        let before = self.under_way.take();
        let begin = (self.out.len(), self.names.clone(), self.begun_early);
        let state = (self.open_writes, self.copies_open);
        self.iteration(l)?;
        match before {
            // A product that is begun early goes on in the next iteration, which must know of it: the body is written again from the state at its
            // beginning. As many groups are under way there as at its end, and no copy of a tile is noted at either.
            None if self.begun_early > begin.2 && self.under_way.is_some() => {
                self.out.truncate(begin.0);
                self.names = begin.1;
                (self.open_writes, self.copies_open) = state;
                self.iteration(l)?;
            }
            before => {
                self.end_group();
                self.under_way = before;
            }
        }
        self.meet_open(open);
        self.assign(l.carried.iter().map(|c| (c.outcome, c.next)));
        self.close();
        if self.depth == 1 && computes_beside_copies(self.flat, &l.body) {
            self.ask_for_thread_again();
        }
        Ok(())
    }

    /// Has the thread ask anew which one it is: what it computed of that in front of a loop which needs all registers it would keep in memory for what is
    /// behind the loop.
    fn ask_for_thread_again(&mut self) {
        let asked = self.helpers.which_thread();
        self.thread = format!("thread{}", self.next_variable);
        self.next_variable += 1;
        self.line(&format!("const int {} = {asked}();", self.thread));
    }

    fn if_(&mut self, i: &If) -> Result<(), CudaError> {
        for m in &i.merges {
            self.variable(m.otherwise, m.outcome)?;
        }
        let cond = self.value(i.cond);
        let open = (self.open_writes, self.copies_open);
        self.open(&format!("if ({cond}) {{"));
        self.region(&i.then)?;
        self.end_group();
        self.meet_open(open);
        self.assign(i.merges.iter().map(|m| (m.outcome, m.then)));
        self.close();
        match i.otherwise.is_empty() {
            true => Ok(()),
            // Only where masks of lanes are written out.
            false => Err(CudaError::Unsupported("an if with two sides".into())),
        }
    }

    /// The variable of `outcome`, which begins as `before`.
    fn variable(&mut self, before: Value, outcome: Value) -> Result<(), CudaError> {
        let mutable = matches!(self.flat.op(before), Op::Carried | Op::Outcome);
        if mutable && self.uses.takes_over(before, outcome) {
            self.names[outcome.0 as usize] = self.names[before.0 as usize].clone();
            return Ok(());
        }
        let name = format!("r{}", self.next_variable);
        self.next_variable += 1;
        let (dtype, lanes) = (self.flat.dtype(outcome), self.flat.info(outcome).lanes);
        let t = match lanes {
            1 => value_type(dtype).into(),
            lanes => self.helpers.together(dtype, lanes),
        };
        let value = match self.flat.op(before) {
            Op::Undefined => None,
            Op::Splat(_) if self.flat.is_placeless(before) => Some(self.packed(before)?),
            _ => Some(self.value(before)),
        };
        match value {
            None => self.line(&format!("{t} {name};")),
            Some(value) => self.line(&format!("{t} {name} = {value};")),
        }
        self.names[outcome.0 as usize] = Some(name);
        Ok(())
    }

    /// Assigns to variables as if all at once.
    fn assign(&mut self, all: impl Iterator<Item = (Value, Value)>) {
        let pairs: Vec<(String, String, DType)> = all
            .map(|(to, from)| (self.value(to), self.value(from), self.flat.dtype(to)))
            .filter(|(to, from, _)| to != from && !from.is_empty())
            .collect();
        let read_later = |i: usize| pairs[i + 1..].iter().any(|p| p.1 == pairs[i].0);
        let clash = (0..pairs.len()).any(read_later);
        let mut sources = Vec::new();
        for (to, from, dtype) in &pairs {
            let mut source = from.clone();
            if clash && pairs.iter().any(|p| p.0 == *from) {
                source = format!("{to}_next");
                self.line(&format!("const {} {source} = {from};", value_type(*dtype)));
            }
            sources.push(source);
        }
        for ((to, ..), source) in pairs.iter().zip(sources) {
            self.line(&format!("{to} = {source};"));
        }
    }

    fn let_(&mut self, v: Value) -> Result<(), CudaError> {
        let info = self.flat.info(v);
        let dtype = info.dtype;
        if let Op::Clamp { data, last } = &info.op {
            let (data, last) = (self.value(*data), self.index_in(*last, Width::Wide));
            let name = self.name_index(v, 'c');
            let t = self.width(v).c_type();
            self.helpers.clamp_index();
            self.line(&format!("const {t} {name} = ({t})clamp_index({data}, {last});"));
            return Ok(());
        }
        if info.op.is_index() {
            if self.uses.needs_name(v) {
                let w = self.width(v);
                let text = self.definition(v, w);
                let name = self.name_index(v, 'x');
                self.line(&format!("const {} {name} = {text};", w.c_type()));
            }
            return Ok(());
        }
        let text = match &info.op {
            Op::Load {
                address, mask: None, ..
            } if info.lanes > 1 => {
                let place = self.places(address, info.lanes);
                let t = self.helpers.together(dtype, info.lanes);
                let name = self.name_value(v);
                match self.is_of_opaque_words(v) {
                    true => self.load_words(&name, &t, &place, info.lanes * dtype.bytes() as u32),
                    false => self.line(&format!("const {t} {name} = {place};")),
                }
                return Ok(());
            }
            Op::Load { address, mask, .. } if info.lanes == 1 => {
                let place = self.place(address);
                match mask {
                    Some(m) => format!("{} ? {place} : {}", self.value(*m), literal(dtype.zero())),
                    None => place,
                }
            }
            Op::Map(op, args) if info.lanes > 1 => {
                let name = self.words(v, *op, args)?;
                self.names[v.0 as usize] = Some(name);
                return Ok(());
            }
            Op::Convert(a) if info.lanes > 1 => {
                let name = self.converted_words(v, *a)?;
                self.names[v.0 as usize] = Some(name);
                return Ok(());
            }
            Op::Map(ScalarOp::And, args) if let Some(text) = self.is_below(args) => text,
            Op::Map(op, args) => {
                let on = args.last().map_or(dtype, |a| self.flat.dtype(*a));
                let args: Vec<String> = args.iter().map(|a| self.value(*a)).collect();
                scalar::map(&mut self.helpers, *op, on, &args)?
            }
            Op::Approximate(op, args) => {
                let args: Vec<String> = args.iter().map(|a| self.value(*a)).collect();
                scalar::approximate(&mut self.helpers, *op, &args)?
            }
            Op::Convert(a) if self.flat.op(*a).is_index() => match (dtype, self.index(*a)) {
                (DType::I32, (text, Width::Narrow)) => text,
                (to, (text, Width::Narrow)) => {
                    scalar::convert(&mut self.helpers, to, DType::I32, &format!("({text})"))?
                }
                (to, (text, Width::Wide)) => scalar::convert(&mut self.helpers, to, DType::I64, &format!("({text})"))?,
            },
            Op::Convert(a) => {
                let from = self.flat.dtype(*a);
                match *self.flat.op(*a) {
                    // A bf16 is the upper half of its f32: of a pair in one register each takes one instruction.
                    Op::Lane(of, lane) if [from, dtype] == [DType::BF16, DType::F32] && self.holds_pairs(of) => {
                        let pair = format!("*(const u32*)&{}.e[{}]", self.value(of), lane & !1);
                        match lane % 2 {
                            0 => format!("__uint_as_float({pair} << 16)"),
                            _ => format!("__uint_as_float({pair} & 0xffff0000u)"),
                        }
                    }
                    Op::Convert(whole) if [self.flat.dtype(whole), from, dtype] == ROUNDED => {
                        let x = self.value(whole);
                        scalar::rounded_to_bf16(&mut self.helpers, &x)
                    }
                    _ => {
                        let x = self.value(*a);
                        scalar::convert(&mut self.helpers, dtype, from, &x)?
                    }
                }
            }
            Op::Bitcast(a) => scalar::bitcast(dtype, self.flat.dtype(*a), &self.value(*a))?,
            Op::Lane(of, lane) if self.computed_apart[of.0 as usize] => self.part_of_word(*of, u32::from(*lane)),
            Op::Lane(of, lane) => format!("{}.e[{lane}]", self.value(*of)),
            Op::Pack(_) | Op::Splat(_) => {
                let name = self.packed(v)?;
                self.names[v.0 as usize] = Some(name);
                return Ok(());
            }
            // Vectors, which the table has not, and what control defines.
            _ => return Err(CudaError::Unsupported("a vector".into())),
        };
        let t = if self.is_byte(v) {
            memory_type(dtype)
        } else {
            value_type(dtype)
        };
        let name = self.name_value(v);
        self.line(&format!("const {t} {name} = {text};"));
        Ok(())
    }

    /// Whether a number is at least 0 and below a constant, as one comparison: NVRTC makes seven instructions of two that are of 64 bits.
    fn is_below(&self, both: &[Value]) -> Option<String> {
        let compared = |v: Value, with: ScalarOp| match self.flat.op(v) {
            Op::Map(op, args) if *op == with => args.first().copied().zip(args.get(1).copied()),
            _ => None,
        };
        let &[least, most] = both else { return None };
        let ((zero, x), (y, end)) = (compared(least, ScalarOp::Le)?, compared(most, ScalarOp::Lt)?);
        let wide = x == y && self.flat.dtype(x) == DType::I64 && self.name(x).is_some();
        let ends = self.flat.number(zero) == Some(0) && self.flat.number(end).is_some_and(|n| n >= 0);
        (wide && ends).then(|| format!("(unsigned long long){} < {}", self.value(x), self.value(end)))
    }

    /// Whether a value is neighbouring elements, an even number of them, which have a name together.
    fn holds_pairs(&self, v: Value) -> bool {
        self.flat.info(v).lanes.is_multiple_of(2) && self.name(v).is_some()
    }

    /// A name that nothing has.
    pub(super) fn new_name(&mut self) -> String {
        let name = format!("v{}", self.next_value);
        self.next_value += 1;
        name
    }

    fn name_value(&mut self, v: Value) -> String {
        let name = self.new_name();
        self.names[v.0 as usize] = Some(name.clone());
        name
    }

    /// Elements that are accessed together.
    fn places(&mut self, a: &Address, lanes: u32) -> String {
        let t = self.helpers.together(self.flat.kernel.memory_dtype(a.memory), lanes);
        let written = match a.memory {
            Memory::Param(i) => self.flat.kernel.params[i as usize].access != Access::Read,
            Memory::Scratch(_) => true,
        };
        let constant = if written { "" } else { "const " };
        let group = self.uses.goes_by_groups(a).then(|| self.group(a, i64::from(lanes)));
        match group.flatten() {
            Some(group) => format!("(({constant}{t}*){})[{group}]", memory_name(self.flat.kernel, a.memory)),
            None => format!("*({constant}{t}*)&{}", self.place(a)),
        }
    }

    /// Writes the lines that put scalars together for an access, and returns their name.
    fn packed(&mut self, v: Value) -> Result<String, CudaError> {
        let info = self.flat.info(v);
        let lanes: Vec<Value> = match &info.op {
            Op::Pack(lanes) => lanes.to_vec(),
            Op::Splat(of) => vec![*of; info.lanes as usize],
            _ => return Err(CudaError::Unsupported("a vector".into())),
        };
        let t = self.helpers.together(info.dtype, info.lanes);
        let name = self.new_name();
        self.line(&format!("{t} {name};"));
        for (n, pair) in lanes.chunks(2).enumerate() {
            let i = 2 * n;
            if let Some([low, high]) = self.rounded_together(info.dtype, pair) {
                let round = self.helpers.round_pair(info.dtype);
                self.line(&format!("*(u32*)&{name}.e[{i}] = {round}({low}, {high});"));
                continue;
            }
            for (i, lane) in (i..).zip(pair) {
                let element = self.stored(*lane);
                self.line(&format!("{name}.e[{i}] = {element};"));
            }
        }
        Ok(name)
    }

    /// The two f32 that a pair of 16-bit floats are rounded from, which one instruction does.
    fn rounded_together(&self, dtype: DType, pair: &[Value]) -> Option<[String; 2]> {
        let [low, high] = pair else { return None };
        let whole = |v: Value| match self.flat.op(v) {
            Op::Convert(from) if self.flat.dtype(*from) == DType::F32 && !self.flat.op(*from).is_index() => {
                Some(self.value(*from))
            }
            _ => None,
        };
        matches!(dtype, DType::F16 | DType::BF16).then_some(())?;
        Some([whole(*low)?, whole(*high)?])
    }
}
