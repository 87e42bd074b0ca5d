//! Which instructions compute what the lowered form says.
//!
//! Invariants:
//! - A value is in the forms that someone asked for: in a general register (indices, a bool as 0 or 1, an integer extended to 64 bits
//!   by its sign), in a vector register (lanes, a scalar as the first), or as a mask (`masks.rs`). A form is made of another where the
//!   value has its home, the block that defines it, so that it is seen from everywhere that the value is.
//! - Files but `masks.rs` and `avx2.rs` choose instructions that all levels have, or ask these two.
//! - Sums and addresses are made when they are asked for, in the innermost home of their terms.
//! - Constants in vectors are made at the entry, but for those of code that hardly ever runs, and of what stands behind a loop that needs
//!   most registers for itself or behind rows that are copied by a call: they are made there.

mod arithmetic;
mod avx2;
mod bytes;
mod control;
mod convert;
mod index;
mod lanes;
mod left;
mod lookup;
mod masks;
mod memory;
mod zeros;

use iced_x86::Code;
use regalloc2::{Operand, OperandConstraint, OperandKind, OperandPos, RegClass};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tlc_ir::kernel::{Memory, Scope};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::Level;
use super::machine::{Arg, Block, End, Inst, Kind, Machine, Place, Reg, Size, general};
use super::opcodes::{self, Codes};
use crate::code::{ARGS_BUFFERS, ARGS_SCRATCH, ARGS_SYMBOLS};
use crate::error::{Result, invalid, unsupported};
use crate::flat::{CounterUse, Flat, Item, Op, Value, counter_uses};

use index::Counter;
use masks::Mask;

/// The forms in which a value is there.
#[derive(Clone, Copy, Default, Debug)]
struct Forms {
    int: Option<Reg>,
    vector: Option<Reg>,
    /// By the bits of a lane: in a mask register or of 8, of 16, 32 and 64.
    masks: [Option<Reg>; 4],
    /// Where it was defined.
    home: Option<Block>,
}

impl Forms {
    fn slot(bits: u32) -> usize {
        (bits / 8).max(1).trailing_zeros() as usize
    }

    fn mask(&self, bits: u32) -> Option<Mask> {
        self.masks[Self::slot(bits)].map(|reg| Mask { reg, bits })
    }

    /// The first mask that there is. Levels with mask registers have no others.
    fn any_mask(&self, level: Level) -> Option<Mask> {
        match level.has_mask_registers() {
            true => self.mask(1),
            false => [8, 16, 32, 64].into_iter().find_map(|bits| self.mask(bits)),
        }
    }

    fn set_mask(&mut self, mask: Mask) {
        self.masks[Self::slot(mask.bits)] = Some(mask.reg);
    }
}

/// What a value is carried in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Int,
    Vector,
    /// A mask, by the bits that a lane has in the register.
    Mask(u32),
}

impl Form {
    const fn class(self) -> RegClass {
        match self {
            Form::Int => RegClass::Int,
            Form::Mask(1) => RegClass::Vector,
            Form::Vector | Form::Mask(_) => RegClass::Float,
        }
    }
}

/// A memory with the first terms of an address.
type PointerKey = (Memory, Terms);

/// Terms of an address, each with what it is times.
type Terms = SmallVec<[(Value, i64); 4]>;

/// An address of memory.
#[derive(Clone)]
struct Pointer {
    /// Its terms that are known in front of all loops.
    outside: Terms,
    register: Reg,
    home: Block,
}

/// Constants in vectors: by the bits of an element and how many those are.
type Constants = FxHashMap<(u64, u32), Reg>;

/// A piece of code that has its own constants in vectors.
struct OwnConstants {
    /// Where they are made: the rest of the piece sees this block.
    block: Block,
    known: Constants,
    /// Whether the piece hardly ever runs. Otherwise it is behind a loop that has most registers, or behind a call, through which nothing else
    /// shall live.
    rare: bool,
}

struct Selector<'f, 'k> {
    level: Level,
    flat: &'f Flat<'k>,
    code: Machine,
    /// Where instructions go.
    here: Block,
    /// Whether the text of the code is asked for, and the number of the statement whose instructions are chosen, if it is.
    listing: bool,
    statement: u32,
    entry: Block,
    /// By block: when it was begun.
    begun: Vec<u32>,
    forms: Vec<Forms>,
    /// How often each value is used.
    uses: Vec<u32>,
    /// How many uses of a comparison are choices that an instruction makes by itself.
    compared: FxHashMap<Value, u32>,
    /// Loads of scalars that what uses them does.
    left_loads: FxHashSet<Value>,
    /// Whether there is an instruction for products of bytes.
    dots: bool,
    /// Products of bytes that the addition behind them computes.
    added_products: FxHashSet<Value>,
    /// Small integers as floats that are picked from tables.
    lookups: lookup::Lookups,
    /// Tables combined with a number, and the block that they were made in.
    combined_tables: FxHashMap<(Reg, ScalarOp, Value), (Reg, Block)>,
    /// Values rounded to bf16 that what converts them back makes by itself.
    rounded_back: FxHashSet<Value>,
    /// Values rounded to integers that what converts them to such rounds by itself.
    rounded_to_integers: FxHashSet<Value>,
    /// The bytes of words in 16 bits each, at even places and at odd ones, and whether by their sign.
    halves: FxHashMap<(Value, bool), [Reg; 2]>,
    counter_uses: FxHashMap<Value, CounterUse>,
    counters: FxHashMap<Value, Counter>,
    /// Addresses of memory with the first so many terms.
    pointers: FxHashMap<PointerKey, (Reg, Block)>,
    /// The last address that was made of those that share their terms in loops.
    nearest: FxHashMap<PointerKey, Pointer>,
    /// As those, the last one that was made in the block that it is needed in.
    beside: FxHashMap<PointerKey, Pointer>,
    /// Rows that are loaded from zeros.
    zeros: zeros::Zeros,
    /// Distances in bytes, as multiples of values that are known in front of all loops.
    distances: FxHashMap<(Value, i64), Reg>,
    /// Constants in vectors, by the bits of an element and how many those are.
    constants: Constants,
    /// The pieces around that have their own, outermost first.
    pieces: Vec<OwnConstants>,
    /// How many loops around carry so many vectors that few registers are left.
    full: u32,
    /// Other constants in registers.
    masks: FxHashMap<u64, Reg>,
    tables: FxHashMap<Vec<u8>, Reg>,
    /// Masks of the two loads from which every other element of so many bytes is picked, by the mask of the lanes.
    masks_apart: FxHashMap<(Value, usize), [Mask; 2]>,
    args: Reg,
    buffers: Option<Reg>,
    symbols: Option<Reg>,
    /// The part of the parallel loop that a call runs.
    range: (Reg, Reg),
    /// Whether something was written past the caches.
    streams: bool,
}

/// The width of so many elements of that many bits: 0 for 128 bits and less, 1 for 256, 2 for 512.
fn width(lanes: u32, bits: u32) -> usize {
    match lanes * bits {
        0..=128 => 0,
        129..=256 => 1,
        _ => 2,
    }
}

/// The code of a kernel, which multiplies bytes by the instruction for it if there are `dots`, with the statements that it is of if a `listing`
/// is asked for.
pub(super) fn select(flat: &Flat<'_>, level: Level, dots: bool, listing: bool) -> Result<Machine> {
    let mut code = Machine::new(level);
    let entry = code.block(false);
    code.order.push(entry);
    let mut regs = [0; 3].map(|_| code.reg(RegClass::Int));
    let mut enter = Inst::of(Kind::Entry, &[]);
    for (reg, fixed) in regs.iter_mut().zip([general::RDI, general::RSI, general::RDX]) {
        enter.fixed.push(Operand::reg_fixed_def(*reg, fixed));
    }
    code.data(entry).insts.push(enter);
    let [args, begin, end] = regs;
    let mut s = Selector {
        level,
        flat,
        code,
        here: entry,
        listing,
        statement: 0,
        entry,
        begun: vec![0],
        forms: vec![Forms::default(); flat.values.len()],
        uses: vec![0; flat.values.len()],
        compared: FxHashMap::default(),
        left_loads: FxHashSet::default(),
        dots,
        added_products: FxHashSet::default(),
        lookups: lookup::Lookups::default(),
        combined_tables: FxHashMap::default(),
        rounded_back: FxHashSet::default(),
        rounded_to_integers: FxHashSet::default(),
        halves: FxHashMap::default(),
        counter_uses: counter_uses(flat),
        counters: FxHashMap::default(),
        pointers: FxHashMap::default(),
        nearest: FxHashMap::default(),
        beside: FxHashMap::default(),
        distances: FxHashMap::default(),
        zeros: zeros::Zeros::default(),
        constants: FxHashMap::default(),
        pieces: Vec::new(),
        full: 0,
        masks: FxHashMap::default(),
        tables: FxHashMap::default(),
        masks_apart: FxHashMap::default(),
        args,
        buffers: None,
        symbols: None,
        range: (begin, end),
        streams: false,
    };
    s.count(&flat.body);
    s.left_loads = left::left_loads(flat, &s.uses);
    if s.has_mask_registers() {
        s.zeros = zeros::Zeros::of(flat, &s.uses);
    }
    s.added_products = bytes::added_products(flat, &s.uses);
    s.rounded_back = convert::rounded_back(flat, &s.uses);
    if s.has_mask_registers() {
        s.lookups = lookup::lookups(flat, &s.uses);
        s.rounded_to_integers = convert::rounded_to_integers(flat, &s.uses);
    }
    s.region(&flat.body)?;
    if s.streams {
        // Stores past the caches are ordered only by a fence, and what follows the kernel must see them.
        s.push(Inst::new(Code::Sfence, &[]));
    }
    let last = s.here;
    s.code.data(last).end = End::Return;
    Ok(s.code)
}

impl Selector<'_, '_> {
    /// Counts the uses of values.
    fn count(&mut self, body: &[Item]) {
        let mut uses = std::mem::take(&mut self.uses);
        let mut compared = std::mem::take(&mut self.compared);
        let mut one = |v: Value| uses[v.0 as usize] += 1;
        let mut chosen = |v: Value| *compared.entry(v).or_default() += 1;
        fn walk(flat: &Flat<'_>, body: &[Item], one: &mut dyn FnMut(Value), chosen: &mut dyn FnMut(Value)) {
            for item in body {
                match item {
                    Item::Let(v) => {
                        flat.op(*v).operands(&mut *one);
                        if let Some((comparison, _)) = arithmetic::chosen_extremum(flat, *v) {
                            chosen(comparison);
                        }
                    }
                    Item::Store {
                        address, value, mask, ..
                    } => {
                        address.parts().for_each(&mut *one);
                        one(*value);
                        mask.iter().copied().for_each(&mut *one);
                    }
                    Item::Copy(_) | Item::Barrier | Item::Collective { .. } => {}
                    Item::Prefetch(address) => address.parts().for_each(&mut *one),
                    Item::Multiply(_) | Item::CopyAsync(_) | Item::CopyTile(_) | Item::Commit | Item::Wait(_) => {}
                    Item::Loop(l) => {
                        one(l.extent);
                        for c in &l.carried {
                            one(c.initial);
                            one(c.next);
                        }
                        walk(flat, &l.body, one, chosen);
                    }
                    Item::If(i) => {
                        one(i.cond);
                        for m in &i.merges {
                            one(m.then);
                            one(m.otherwise);
                        }
                        walk(flat, &i.then, one, chosen);
                        walk(flat, &i.otherwise, one, chosen);
                    }
                }
            }
        }
        walk(self.flat, body, &mut one, &mut chosen);
        self.uses = uses;
        self.compared = compared;
    }

    fn begin(&mut self, block: Block) {
        self.code.order.push(block);
        let at = self.code.order.len() as u32;
        if self.begun.len() <= block.0 as usize {
            self.begun.resize(block.0 as usize + 1, 0);
        }
        self.begun[block.0 as usize] = at;
        self.here = block;
    }

    /// The later of two blocks that are both seen from here.
    fn inner(&self, a: Block, b: Block) -> Block {
        match self.begun[a.0 as usize] >= self.begun[b.0 as usize] {
            true => a,
            false => b,
        }
    }

    fn push(&mut self, mut inst: Inst) {
        let here = self.here;
        inst.statement = self.statement;
        self.code.data(here).insts.push(inst);
    }

    /// Runs `f` as if in another block, one that is seen from here.
    fn at<R>(&mut self, block: Block, f: impl FnOnce(&mut Self) -> R) -> R {
        let here = std::mem::replace(&mut self.here, block);
        let result = f(self);
        self.here = here;
        result
    }

    /// The number of the widest vectors among [`Size::VECTORS`].
    fn widest(&self) -> usize {
        width(1, self.level.vector_bits())
    }

    fn int_reg(&mut self) -> Reg {
        self.code.reg(RegClass::Int)
    }

    fn vector_reg(&mut self) -> Reg {
        self.code.reg(RegClass::Float)
    }

    fn mask_reg(&mut self) -> Reg {
        self.code.reg(RegClass::Vector)
    }

    /// An instruction that writes a general register.
    fn int_op(&mut self, code: Code, size: Size, args: &[Arg]) -> Reg {
        let to = self.int_reg();
        let mut all: SmallVec<[Arg; 4]> = SmallVec::from_slice(&[Arg::Def(to, size)]);
        all.extend_from_slice(args);
        self.push(Inst::new(code, &all));
        to
    }

    /// An instruction that updates a general register.
    fn int_update(&mut self, code: Code, from: Reg, args: &[Arg]) -> Reg {
        let to = self.int_reg();
        let mut all: SmallVec<[Arg; 4]> = SmallVec::from_slice(&[Arg::Update {
            from,
            to,
            size: Size::Q,
        }]);
        all.extend_from_slice(args);
        self.push(Inst::new(code, &all));
        to
    }

    /// An instruction that writes a vector of that width.
    fn vector_op(&mut self, codes: Codes, w: usize, args: &[Arg]) -> Reg {
        self.vector_as(codes[w], Size::VECTORS[w], args)
    }

    fn vector_as(&mut self, code: Code, size: Size, args: &[Arg]) -> Reg {
        let to = self.vector_reg();
        let mut all: SmallVec<[Arg; 4]> = SmallVec::from_slice(&[Arg::Def(to, size)]);
        all.extend_from_slice(args);
        self.push(Inst::new(code, &all));
        to
    }

    /// An instruction that updates a vector of that width.
    fn vector_update(&mut self, codes: Codes, w: usize, from: Reg, args: &[Arg]) -> Reg {
        let to = self.vector_reg();
        let size = Size::VECTORS[w];
        let mut all: SmallVec<[Arg; 4]> = SmallVec::from_slice(&[Arg::Update { from, to, size }]);
        all.extend_from_slice(args);
        self.push(Inst::new(codes[w], &all));
        to
    }

    /// An instruction that writes a mask.
    fn mask_op(&mut self, code: Code, args: &[Arg]) -> Reg {
        let to = self.mask_reg();
        let mut all: SmallVec<[Arg; 4]> = SmallVec::from_slice(&[Arg::Def(to, Size::K)]);
        all.extend_from_slice(args);
        self.push(Inst::new(code, &all));
        to
    }

    fn define(&mut self, v: Value, form: Form, reg: Reg) {
        let home = self.here;
        let forms = &mut self.forms[v.0 as usize];
        forms.home = Some(home);
        match form {
            Form::Int => forms.int = Some(reg),
            Form::Vector => forms.vector = Some(reg),
            Form::Mask(bits) => forms.set_mask(Mask { reg, bits }),
        }
    }

    /// The form in which a value comes from control.
    fn form_of(&self, v: Value) -> Form {
        let info = self.flat.info(v);
        match (info.dtype, info.lanes) {
            (DType::Bool, 1) => Form::Int,
            (DType::Bool, lanes) => Form::Mask(self.bits_of_lanes(lanes)),
            _ => Form::Vector,
        }
    }

    fn in_form(&mut self, v: Value, form: Form) -> Result<Reg> {
        match form {
            Form::Int => self.int(v),
            Form::Vector => self.vector(v),
            Form::Mask(bits) => Ok(self.mask(v, bits)?.reg),
        }
    }

    fn home(&self, v: Value) -> Block {
        self.forms[v.0 as usize].home.unwrap_or(self.entry)
    }

    /// An integer constant in a general register.
    fn number(&mut self, n: i64) -> Reg {
        match i32::try_from(n) {
            Ok(n) => self.int_op(Code::Mov_rm64_imm32, Size::Q, &[Arg::Imm32(n)]),
            Err(_) => self.int_op(Code::Mov_r64_imm64, Size::Q, &[Arg::Imm64(n)]),
        }
    }

    /// The bits of a constant of one element, extended as a general register holds it.
    fn extended(c: Scalar) -> i64 {
        match c.dtype() {
            DType::Bool => i64::from(c.as_bool()),
            d if d.is_signed_int() => c.as_i64(),
            _ => c.bits() as i64,
        }
    }

    /// A value in a general register.
    fn int(&mut self, v: Value) -> Result<Reg> {
        match self.flat.op(v) {
            Op::Const(c) => return Ok(self.number(Self::extended(*c))),
            Op::Undefined => return Ok(self.number(0)),
            Op::Symbol(i) => return self.symbol(v, *i),
            Op::Counter => return self.counter(v),
            Op::Sum { .. } => return self.sum(v),
            _ => {}
        }
        let forms = self.forms[v.0 as usize];
        if let Some(int) = forms.int {
            return Ok(int);
        }
        let home = self.home(v);
        if let Op::AnyLane(m) | Op::AllLanes(m) = self.flat.op(v) {
            let all = matches!(self.flat.op(v), Op::AllLanes(_));
            let made = self.at(home, |s| s.lanes_test(*m, all))?;
            self.forms[v.0 as usize].int = Some(made);
            return Ok(made);
        }
        let dtype = self.flat.dtype(v);
        let made = match (forms.vector, forms.any_mask(self.level)) {
            (Some(x), _) => self.at(home, |s| s.int_of_vector(x, dtype)),
            (_, Some(mask)) => self.at(home, |s| s.bool_of(mask)),
            _ if self.zeros.is_late(v) => {
                let (form, reg) = self.at(home, |s| match s.flat.op(v) {
                    Op::Map(op, args) => s.map(*op, v, args),
                    Op::Convert(a) => s.convert(*a, v),
                    _ => invalid(format!("%{} is not defined", v.0)),
                })?;
                self.at(home, |s| s.define(v, form, reg));
                return self.int(v);
            }
            _ => return invalid(format!("%{} is not defined", v.0)),
        };
        self.forms[v.0 as usize].int = Some(made);
        Ok(made)
    }

    fn int_of_vector(&mut self, x: Reg, dtype: DType) -> Reg {
        if dtype.bits() == 64 {
            return self.int_op(Code::EVEX_Vmovq_rm64_xmm, Size::Q, &[Arg::Use(x, Size::X)]);
        }
        let low = self.int_op(Code::EVEX_Vmovd_rm32_xmm, Size::D, &[Arg::Use(x, Size::X)]);
        self.extend(low, dtype)
    }

    /// The low bits of a general register extended to 64 by the sign of a type.
    fn extend(&mut self, low: Reg, dtype: DType) -> Reg {
        let (code, from, to) = match (dtype.bits(), dtype.is_signed_int()) {
            (8, true) => (Code::Movsx_r64_rm8, Size::B, Size::Q),
            (8, false) => (Code::Movzx_r32_rm8, Size::B, Size::D),
            (16, true) => (Code::Movsx_r64_rm16, Size::W, Size::Q),
            (16, false) => (Code::Movzx_r32_rm16, Size::W, Size::D),
            (32, true) => (Code::Movsxd_r64_rm32, Size::D, Size::Q),
            (32, false) => (Code::Mov_r32_rm32, Size::D, Size::D),
            _ => return low,
        };
        self.int_op(code, to, &[Arg::Use(low, from)])
    }

    /// A value in a vector register.
    fn vector(&mut self, v: Value) -> Result<Reg> {
        let info = self.flat.info(v);
        if let Some(c) = self.flat.constant(v) {
            return Ok(self.constant(c.bits(), info.dtype.bits()));
        }
        if self.flat.is_placeless(v) && !matches!(info.op, Op::Symbol(_)) {
            // Undefined, in one lane or all.
            return Ok(self.constant(0, 32));
        }
        let forms = self.forms[v.0 as usize];
        if let Some(vector) = forms.vector {
            return Ok(vector);
        }
        if info.lanes > 1 || info.dtype == DType::Bool {
            return invalid(format!("%{} is not in a vector", v.0));
        }
        let int = self.int(v)?;
        let home = self.home(v);
        let made = self.at(home, |s| {
            s.vector_as(Code::EVEX_Vmovq_xmm_rm64, Size::X, &[Arg::Use(int, Size::Q)])
        });
        self.forms[v.0 as usize].vector = Some(made);
        Ok(made)
    }

    /// An element in all lanes of the widest vector, of which narrower ones are a part.
    fn constant(&mut self, element: u64, bits: u32) -> Reg {
        // Wider elements of equal parts are the narrower ones.
        let mut key = (element & (u64::MAX >> (64 - bits)), bits);
        while key.1 < 32 {
            key = (key.0 | key.0 << key.1, key.1 * 2);
        }
        if key.1 == 64 && key.0 >> 32 == key.0 & 0xffff_ffff {
            key = (key.0 >> 32, 32);
        }
        // What is made further outside, in a block before the piece, has no part in it.
        let begun = |b: Block| self.begun.get(b.0 as usize).copied().unwrap_or(0);
        let here = begun(self.here);
        let inside = self.pieces.iter().take_while(|p| begun(p.block) <= here).count();
        let (mut at, mut known) = (self.entry, self.constants.get(&key));
        for piece in &self.pieces[..inside] {
            let outer = known.filter(|_| piece.rare);
            (at, known) = (piece.block, piece.known.get(&key).or(outer));
        }
        if let Some(reg) = known {
            return *reg;
        }
        let w = self.widest();
        let made = self.at(at, |s| match key {
            (0, _) => {
                let same = Arg::Same(Size::VECTORS[w]);
                s.vector_op(opcodes::XOR_D, w, &[same, same])
            }
            (element, bits) => {
                let bytes = element.to_le_bytes()[..bits as usize / 8].to_vec();
                let place = s.pooled(bytes);
                let codes = if bits == 64 {
                    opcodes::BROADCAST_Q
                } else {
                    opcodes::BROADCAST_D
                };
                s.vector_op(codes, w, &[Arg::Memory(place)])
            }
        });
        match inside {
            0 => self.constants.insert(key, made),
            n => self.pieces[n - 1].known.insert(key, made),
        };
        made
    }

    /// Constant bytes in memory.
    fn pooled(&mut self, bytes: Vec<u8>) -> Place {
        Place {
            base: super::machine::Base::Pool(self.code.constant(bytes)),
            index: None,
            displacement: 0,
        }
    }

    /// A whole vector of constant bytes, 16 to 64 of them.
    fn table(&mut self, bytes: Vec<u8>) -> Reg {
        if let Some(reg) = self.tables.get(&bytes) {
            return *reg;
        }
        let w = width(bytes.len() as u32, 8);
        let mut padded = bytes.clone();
        padded.resize(16 << w, 0);
        let entry = self.entry;
        let made = self.at(entry, |s| {
            let place = s.pooled(padded);
            s.vector_op(opcodes::LOAD_D, w, &[Arg::Memory(place)])
        });
        self.tables.insert(bytes, made);
        made
    }

    /// A mask that is known, in a mask register.
    fn mask_constant(&mut self, bits: u64) -> Reg {
        if let Some(reg) = self.masks.get(&bits) {
            return *reg;
        }
        let entry = self.entry;
        let made = self.at(entry, |s| match bits {
            0 => s.mask_op(Code::VEX_Kxorq_kr_kr_kr, &[Arg::Same(Size::K), Arg::Same(Size::K)]),
            u64::MAX => s.mask_op(Code::VEX_Kxnorq_kr_kr_kr, &[Arg::Same(Size::K), Arg::Same(Size::K)]),
            bits => {
                let n = s.number(bits as i64);
                s.mask_op(Code::VEX_Kmovq_kr_r64, &[Arg::Use(n, Size::Q)])
            }
        });
        self.masks.insert(bits, made);
        made
    }

    /// An instruction that reads the calling convention's arguments, at the entry.
    fn entry_load(&mut self, base: Reg, offset: i32) -> Reg {
        let entry = self.entry;
        self.at(entry, |s| {
            s.int_op(Code::Mov_r64_rm64, Size::Q, &[Arg::Memory(Place::at(base, offset))])
        })
    }

    fn symbol(&mut self, v: Value, number: u32) -> Result<Reg> {
        if let Some(reg) = self.forms[v.0 as usize].int {
            return Ok(reg);
        }
        let args = self.args;
        let symbols = match self.symbols {
            Some(s) => s,
            None => {
                let s = self.entry_load(args, ARGS_SYMBOLS);
                self.symbols = Some(s);
                s
            }
        };
        let at = i32::try_from(i64::from(number) * 8).or_else(|_| unsupported("more than 2^28 symbols"))?;
        let reg = self.entry_load(symbols, at);
        let forms = &mut self.forms[v.0 as usize];
        forms.int = Some(reg);
        forms.home = Some(self.entry);
        Ok(reg)
    }

    /// Where a memory area begins.
    fn area(&mut self, memory: Memory) -> Result<(Reg, Block)> {
        let key = (memory, SmallVec::new());
        if let Some(known) = self.pointers.get(&key) {
            return Ok(*known);
        }
        let args = self.args;
        let entry = self.entry;
        let made = match memory {
            Memory::Param(i) => {
                let buffers = match self.buffers {
                    Some(b) => b,
                    None => {
                        let b = self.entry_load(args, ARGS_BUFFERS);
                        self.buffers = Some(b);
                        b
                    }
                };
                let at = i32::try_from(i64::from(i) * 8).or_else(|_| unsupported("more than 2^28 parameters"))?;
                (self.entry_load(buffers, at), entry)
            }
            Memory::Scratch(i) => {
                let scope = self.flat.kernel.scratch[i as usize].scope;
                let Some(at) = self.flat.scratch_at[i as usize].filter(|_| scope == Scope::Cache) else {
                    return invalid("access to memory without an address");
                };
                let start = self.entry_load(args, ARGS_SCRATCH);
                match self.flat.number(at) {
                    Some(0) => (start, entry),
                    Some(offset) => {
                        let reg = self.at(entry, |s| s.plus(start, offset));
                        (reg, entry)
                    }
                    None => {
                        let offset = self.int(at)?;
                        let home = self.home(at);
                        let add = |s: &mut Self| s.int_update(Code::Add_r64_rm64, start, &[Arg::Use(offset, Size::Q)]);
                        (self.at(home, add), home)
                    }
                }
            }
        };
        self.pointers.insert(key, made);
        Ok(made)
    }

    /// Emits what runs one after another.
    fn region(&mut self, body: &[Item]) -> Result<()> {
        let pieces = self.pieces.len();
        for item in body {
            let around = self.statement;
            if self.listing {
                self.code.statements.push(self.flat.statement(item));
                self.statement = self.code.statements.len() as u32;
            }
            match item {
                Item::Let(v) => self.let_(*v)?,
                Item::Store {
                    address,
                    offsets,
                    value,
                    mask,
                } => self.store(address, offsets, *value, *mask)?,
                Item::Copy(c) => self.copy(c)?,
                Item::Loop(l) => self.loop_(l)?,
                Item::If(i) => self.if_(i)?,
                Item::Barrier => return unsupported("barriers"),
                Item::Collective { .. } => return unsupported("collectives"),
                Item::Multiply(_) => return unsupported("matrix instructions"),
                Item::Prefetch(address) => self.prefetch(address)?,
                Item::CopyAsync(_) | Item::CopyTile(_) | Item::Commit | Item::Wait(_) => {
                    return unsupported("copies beside the threads");
                }
            }
            self.statement = around;
        }
        self.pieces.truncate(pieces);
        Ok(())
    }

    fn let_(&mut self, v: Value) -> Result<()> {
        let info = self.flat.info(v);
        let (dtype, lanes) = (info.dtype, info.lanes);
        if let Some(p) = self.lookups.of(v) {
            let (form, reg) = self.looked_up(p)?;
            self.define(v, form, reg);
            return Ok(());
        }
        let (form, reg) = match &info.op {
            // Made when it is asked for.
            Op::Sum { .. } => return Ok(()),
            Op::AnyLane(_) | Op::AllLanes(_) => {
                self.forms[v.0 as usize].home = Some(self.here);
                return Ok(());
            }
            Op::Map(..) | Op::Splat(_) | Op::Convert(_) if self.zeros.is_late(v) => {
                self.forms[v.0 as usize].home = Some(self.here);
                return Ok(());
            }
            // Every use makes it by itself.
            Op::Map(..) if self.compared.get(&v) == Some(&self.uses_of(v)) => return Ok(()),
            Op::Load { .. } if self.left_loads.contains(&v) => return Ok(()),
            Op::Map(..) if self.added_products.contains(&v) => return Ok(()),
            Op::Convert(_) if self.rounded_back.contains(&v) => return Ok(()),
            Op::Map(..) if self.rounded_to_integers.contains(&v) => return Ok(()),
            Op::Map(..) | Op::Convert(_) if self.lookups.is_inside(v) => return Ok(()),
            Op::Product(_)
            | Op::FloorDiv(..)
            | Op::FloorMod(..)
            | Op::Smaller(..)
            | Op::Larger(..)
            | Op::Clamp { .. } => (Form::Int, self.index_op(&info.op)?),
            Op::Load { address, offsets, mask } => self.load(dtype, lanes, address, offsets, *mask)?,
            Op::Gather { address, at, mask } => {
                let gathered = self.gather_indexed(dtype, lanes, address, *at, *mask)?;
                (Form::Vector, gathered)
            }
            Op::Map(op, args) => self.map(*op, v, args)?,
            Op::Unordered(a, b) => self.unordered(*a, *b)?,
            Op::Approximate(op, _) => return unsupported(format!("an approximate {op}")),
            Op::Scale(x, n) => (Form::Vector, self.scale(*x, *n)?),
            Op::Convert(a) => self.convert(*a, v)?,
            Op::Bitcast(a) => (Form::Vector, self.vector(*a)?),
            Op::Series { first, step } => (Form::Vector, self.series(*first, *step, dtype, lanes)?),
            Op::Splat(a) => self.splat(*a, dtype, lanes)?,
            Op::Pack(parts) => self.pack(parts, dtype, lanes)?,
            Op::Lane(a, lane) | Op::Part(a, lane) => self.lane(*a, *lane, lanes)?,
            Op::Insert(a, x, lane) => self.insert(*a, *x, *lane, dtype, lanes)?,
            Op::Interleave(a, b, how) => (Form::Vector, self.interleave(*a, *b, *how)?),
            Op::LaneBits(a) => (Form::Int, self.lane_bits(*a)?),
            Op::Bit(a, bit) => (Form::Int, self.bit(*a, *bit)?),
            Op::Symbol(_) | Op::Counter | Op::Carried | Op::Outcome | Op::Undefined | Op::Const(_) => {
                return invalid("a value without a computation");
            }
        };
        self.define(v, form, reg);
        Ok(())
    }

    /// Reads of operands in fixed registers.
    fn fixed_use(reg: Reg, at: regalloc2::PReg) -> Operand {
        Operand::new(
            reg,
            OperandConstraint::FixedReg(at),
            OperandKind::Use,
            OperandPos::Early,
        )
    }
}
