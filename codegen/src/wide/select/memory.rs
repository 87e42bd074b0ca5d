//! Loads, stores and copies of blocks.
//!
//! Invariants:
//! - An access touches no byte but those of the elements that it is for.
//! - A bool is a byte; whatever is not 0 is true.

use iced_x86::Code;
use regalloc2::{Operand, RegClass};
use smallvec::SmallVec;
use tlc_ir::DType;

use super::masks::{Logic, Mask};
use super::{Arg, Form, Inst, Kind, Reg, Selector, Size, general, width};
use crate::error::{Result, unsupported};
use crate::flat::{Address, BlockCopy, Value};
use crate::host::RuntimeFunction;
use crate::wide::allocate::destroyed_by_calls;
use crate::wide::machine::Place;
use crate::wide::opcodes::{self, Codes};
use crate::wide::table::{is_consecutive, is_every_other, is_every_other_byte, is_reversed};

/// Loads, stores and permutations of two tables, by the bytes of an element.
pub(super) struct Moves {
    pub load: Codes,
    pub store: Codes,
    pub permute: Codes,
    pub blend: Codes,
}

pub(super) fn moves(bytes: usize) -> Moves {
    let (load, store, permute, blend) = match bytes {
        1 => (opcodes::LOAD_B, opcodes::STORE_B, opcodes::PERMT2_W, opcodes::BLEND_B),
        2 => (opcodes::LOAD_W, opcodes::STORE_W, opcodes::PERMT2_W, opcodes::BLEND_W),
        4 => (opcodes::LOAD_D, opcodes::STORE_D, opcodes::PERMT2_D, opcodes::BLEND_D),
        _ => (opcodes::LOAD_Q, opcodes::STORE_Q, opcodes::PERMT2_Q, opcodes::BLEND_Q),
    };
    Moves {
        load,
        store,
        permute,
        blend,
    }
}

/// The place so many bytes behind.
fn behind(place: Place, bytes: i32) -> Place {
    Place {
        displacement: place.displacement + bytes,
        ..place
    }
}

/// The numbers, in two vectors one behind the other, of elements that are loaded as two runs of as many as there are lanes, the second from
/// an element on.
fn picks(bytes: usize, offsets: &[u8], from: u32) -> Vec<usize> {
    let lanes = offsets.len();
    // Lanes of the register, which a narrow vector does not fill.
    let per = (16 << width(lanes as u32, 8 * bytes as u32)) / bytes;
    let pick = |element: usize| {
        if element < lanes {
            element
        } else {
            per + element - from as usize
        }
    };
    offsets.iter().map(|o| pick(usize::from(*o))).collect()
}

impl Selector<'_, '_> {
    pub(super) fn load(
        &mut self,
        dtype: DType,
        lanes: u32,
        a: &Address,
        offsets: &[u8],
        mask: Option<Value>,
    ) -> Result<(Form, Reg)> {
        let bytes = dtype.bytes();
        let most = offsets.iter().copied().max().unwrap_or(0);
        let span = i64::from(most) * bytes as i64;
        let place = self.place(a, span)?;
        if lanes == 1 {
            return match mask {
                None => Ok(self.load_scalar(dtype, place)),
                Some(_) => unsupported("a masked load of a scalar"),
            };
        }
        let (place, mask) = self.or_zeros(place, span, mask)?;
        if let Some(mask) = mask.filter(|_| !is_consecutive(offsets)) {
            return Ok((Form::Vector, self.load_apart_masked(bytes, place, offsets, mask)?));
        }
        let mask = mask.map(|m| self.mask(m, dtype.bits())).transpose()?;
        if !is_consecutive(offsets) {
            let v = if is_every_other_byte(dtype, offsets) {
                self.load_every_other(lanes, place)?
            } else if usize::from(most) >= 2 * offsets.len() {
                self.gather(bytes, place, offsets)
            } else {
                self.load_apart(bytes, place, offsets)?
            };
            return Ok((Form::Vector, v));
        }
        let v = self.load_lanes(bytes, lanes, place, mask)?;
        if dtype != DType::Bool {
            return Ok((Form::Vector, v));
        }
        let w = width(lanes, 8);
        Ok(self.common_bits(1, w, v, v).of_value())
    }

    /// Into the second cache: what is asked for is used a tile or more later, and the first has no room for it.
    pub(super) fn prefetch(&mut self, a: &Address) -> Result<()> {
        let place = self.place(a, 0)?;
        self.push(Inst::new(Code::Prefetcht1_m8, &[Arg::Memory(place)]));
        Ok(())
    }

    fn load_scalar(&mut self, dtype: DType, place: Place) -> (Form, Reg) {
        let m = [Arg::Memory(place)];
        match (dtype, dtype.bytes()) {
            (DType::F32, _) => (Form::Vector, self.vector_as(Code::EVEX_Vmovss_xmm_k1z_m32, Size::X, &m)),
            (DType::F64, _) => (Form::Vector, self.vector_as(Code::EVEX_Vmovsd_xmm_k1z_m64, Size::X, &m)),
            (DType::I32 | DType::U32, _) => (Form::Vector, self.vector_as(Code::EVEX_Vmovd_xmm_rm32, Size::X, &m)),
            (DType::Bool, _) => {
                let byte = self.int_op(Code::Movzx_r32_rm8, Size::D, &m);
                (Form::Int, self.nonzero(byte))
            }
            (d, 1) if d.is_signed_int() => (Form::Int, self.int_op(Code::Movsx_r64_rm8, Size::Q, &m)),
            (_, 1) => (Form::Int, self.int_op(Code::Movzx_r32_rm8, Size::D, &m)),
            (d, 2) if d.is_signed_int() => (Form::Int, self.int_op(Code::Movsx_r64_rm16, Size::Q, &m)),
            (_, 2) => (Form::Int, self.int_op(Code::Movzx_r32_rm16, Size::D, &m)),
            _ => (Form::Int, self.int_op(Code::Mov_r64_rm64, Size::Q, &m)),
        }
    }

    /// 1 where a general register is not 0.
    fn nonzero(&mut self, v: Reg) -> Reg {
        self.push(Inst::new(
            Code::Test_rm64_r64,
            &[Arg::Use(v, Size::Q), Arg::Use(v, Size::Q)],
        ));
        self.flag(Code::Setne_rm8)
    }

    /// A flag as 0 or 1, set by the instruction before.
    pub(super) fn flag(&mut self, code: Code) -> Reg {
        let low = self.int_op(code, Size::B, &[]);
        self.int_op(Code::Movzx_r32_rm8, Size::D, &[Arg::Use(low, Size::B)])
    }

    /// The mask of an access of so many lanes and bytes, if it needs one: where they do not fill a register, it leaves out the lanes
    /// beyond, for which a mask may hold anything.
    fn within(&mut self, mask: Option<Mask>, lanes: u32, bytes: u32) -> Option<Mask> {
        if bytes >= 16 {
            return mask;
        }
        let first = self.first_lanes(lanes, lanes, 8 * bytes / lanes);
        Some(match mask {
            None => first,
            Some(mask) => self.logic(Logic::And, mask, first, lanes),
        })
    }

    /// Neighbouring elements of that many bytes, those that a mask says, or all.
    fn load_lanes(&mut self, bytes: usize, lanes: u32, place: Place, mask: Option<Mask>) -> Result<Reg> {
        let all = lanes * bytes as u32;
        let w = width(lanes, 8 * bytes as u32);
        let m = [Arg::Memory(place)];
        if mask.is_none() {
            match all {
                8 => return Ok(self.vector_as(Code::EVEX_Vmovq_xmm_xmmm64, Size::X, &m)),
                4 => return Ok(self.vector_as(Code::EVEX_Vmovd_xmm_rm32, Size::X, &m)),
                2 if !self.has_mask_registers() => return Ok(self.load_two_bytes(place)),
                _ => {}
            }
        }
        let mask = self.within(mask, lanes, all);
        if let Some(mask) = mask.filter(|_| !self.has_mask_registers()) {
            return self.load_masked(bytes, w, place, mask);
        }
        let to = self.vector_reg();
        let load = Inst::new(moves(bytes).load[w], &[Arg::Def(to, Size::VECTORS[w]), m[0]]);
        self.push(match mask {
            Some(mask) => load.zeroing(mask.reg),
            None => load,
        });
        Ok(to)
    }

    /// Elements that lie anywhere near, each loaded by its lane.
    fn gather(&mut self, bytes: usize, place: Place, offsets: &[u8]) -> Reg {
        let lanes = offsets.len() as u32;
        let w = width(lanes, 8 * bytes as u32);
        let (each, index) = self.each_lane(bytes, place, offsets);
        let mask = self.first_lanes(lanes, lanes, 8 * bytes as u32);
        self.gather_masked(bytes, w, each, index, mask)
    }

    /// The elements whose numbers behind an address are in lanes, those that a mask says, or all.
    pub(super) fn gather_indexed(
        &mut self,
        dtype: DType,
        lanes: u32,
        a: &Address,
        at: Value,
        mask: Option<Value>,
    ) -> Result<Reg> {
        let bytes = dtype.bytes();
        if bytes == 1 {
            return self.look_bytes_up(lanes, a, at, mask);
        }
        if !matches!(bytes, 4 | 8) {
            return unsupported(format!("a gather of elements of {bytes} bytes"));
        }
        let bits = 8 * bytes as u32;
        let w = width(lanes, bits);
        let place = self.place(a, 0)?;
        let at = self.vector(at)?;
        let each = self.each_of(bytes, place, at);
        // Numbers of 32 bits, in as many lanes as the elements' vector has; what is in those beyond is masked away.
        let count = (16u32 << w) / bytes as u32;
        let given = mask.map(|m| self.mask(m, bits)).transpose()?;
        let all = self.first_lanes(lanes, lanes, bits);
        let mask = match given {
            None => all,
            Some(given) if lanes == count => given,
            Some(given) => self.logic(Logic::And, given, all, lanes),
        };
        Ok(self.gather_masked(bytes, w, each, Size::VECTORS[width(count, 32)], mask))
    }

    /// The bytes of a table of 256 whose numbers are in lanes of 32 bits, those that a mask says, or all: picked from halves of the table, each two registers
    /// long, by the low seven bits of a number, the eighth of which says from which half. What is picked by the other bytes of a lane is dropped.
    fn look_bytes_up(&mut self, lanes: u32, a: &Address, at: Value, mask: Option<Value>) -> Result<Reg> {
        const REGISTER: i32 = 64;
        const WHOLE: usize = 2;
        let mask = mask.map(|m| self.mask(m, 32)).transpose()?;
        let place = self.place(a, i64::from(4 * REGISTER - 1))?;
        let at = self.vector(at)?;
        let of_half = |s: &mut Self, place: Place| {
            let first = s.vector_op(opcodes::LOAD_D, WHOLE, &[Arg::Memory(place)]);
            let args = [Arg::Use(at, Size::Z), Arg::Memory(behind(place, REGISTER))];
            s.vector_update(opcodes::PERMT2_B, WHOLE, first, &args)
        };
        let low = of_half(self, place);
        let high = of_half(self, behind(place, 2 * REGISTER));
        let highest = self.constant(0x80, 32);
        let of_high = self.common_bits(4, WHOLE, at, highest);
        let to = self.vector_reg();
        let args = [Arg::Def(to, Size::Z), Arg::Use(low, Size::Z), Arg::Use(high, Size::Z)];
        let mut blend = Inst::new(opcodes::BLEND_D[WHOLE], &args);
        blend.mask = Some((of_high.reg, false));
        self.push(blend);
        let bytes = self.vector_reg();
        let mut narrow = Inst::new(
            opcodes::NARROW_DB[WHOLE],
            &[Arg::Def(bytes, Size::X), Arg::Use(to, Size::Z)],
        );
        narrow.mask = mask.map(|m| (m.reg, true));
        self.push(narrow);
        debug_assert!(lanes <= 16);
        Ok(bytes)
    }

    /// Elements that lie anywhere, each loaded by its lane where the mask is true, else zero.
    fn gather_masked(&mut self, bytes: usize, w: usize, each: Place, index: Size, mask: Mask) -> Reg {
        if !self.has_mask_registers() {
            return self.gather_lanes(bytes, w, each, index, mask);
        }
        let codes = if bytes == 4 {
            opcodes::GATHER_D
        } else {
            opcodes::GATHER_Q
        };
        let zero = self.constant(0, 32);
        let (to, size) = (self.vector_reg(), Size::VECTORS[w]);
        let update = Arg::Update { from: zero, to, size };
        let mut inst = Inst::new(codes[w], &[update, Arg::Lanes(each, index)]);
        inst.mask = Some((mask.reg, false));
        inst.used_up = Some(self.mask_reg());
        self.push(inst);
        to
    }

    /// The memory of each lane, by numbers of elements in a vector.
    fn each_of(&mut self, bytes: usize, place: Place, numbers: Reg) -> Place {
        // The address itself has no room for another index.
        let base = match place.index {
            None => place,
            Some(_) => Place::at(self.int_op(Code::Lea_r64_m, Size::Q, &[Arg::Memory(place)]), 0),
        };
        Place {
            index: Some((numbers, bytes as u8)),
            ..base
        }
    }

    /// The memory of each lane, and the name of the vector that says which.
    fn each_lane(&mut self, bytes: usize, place: Place, offsets: &[u8]) -> (Place, Size) {
        let lanes = offsets.len() as u32;
        // Numbers of 32 bits, in as many lanes as the elements' vector has.
        let count = (16u32 << width(lanes, 8 * bytes as u32)) / bytes as u32;
        let table: Vec<u8> = (0..count as usize)
            .flat_map(|lane| offsets.get(lane).map_or(0, |o| u32::from(*o)).to_le_bytes())
            .collect();
        let w = width(count, 32);
        let index = self.table(table);
        (self.each_of(bytes, place, index), Size::VECTORS[w])
    }

    /// Every other byte, of which the last is the last that is loaded.
    fn load_every_other(&mut self, lanes: u32, place: Place) -> Result<Reg> {
        let within = self.first_lanes(2 * lanes - 1, 2 * lanes, 8);
        let words = self.load_lanes(1, 2 * lanes, place, Some(within))?;
        Ok(self.narrow(opcodes::NARROW_WB, width(lanes, 16), 1, words, None))
    }

    /// Elements that lie within the length of two vectors: picked from one load or two.
    fn load_apart(&mut self, bytes: usize, place: Place, offsets: &[u8]) -> Result<Reg> {
        let lanes = offsets.len() as u32;
        let most = u32::from(offsets.iter().copied().max().unwrap_or(0));
        let w = width(lanes, 8 * bytes as u32);
        let (low, high, from) = match most < lanes {
            true => {
                let mask = (most + 1 < lanes).then(|| self.first_lanes(most + 1, lanes, 8 * bytes as u32));
                let low = self.load_lanes(bytes, lanes, place, mask)?;
                (low, low, 0)
            }
            false => {
                let from = most + 1 - lanes;
                let low = self.load_lanes(bytes, lanes, place, None)?;
                let high = self.load_lanes(bytes, lanes, behind(place, (from as usize * bytes) as i32), None)?;
                (low, high, from)
            }
        };
        let elements = picks(bytes, offsets, from);
        if !self.has_mask_registers() {
            return Ok(self.picked(bytes, w, low, high, &elements));
        }
        Ok(self.permuted(bytes, w, [low, high], &elements))
    }

    /// As [`Self::load_apart`] of every other element, those that a mask says: each of the two loads has a mask of its own.
    fn load_apart_masked(&mut self, bytes: usize, place: Place, offsets: &[u8], mask: Value) -> Result<Reg> {
        let lanes = offsets.len() as u32;
        if lanes < 2 || !self.has_mask_registers() || !is_every_other(offsets) {
            return unsupported("a masked load of elements that lie apart");
        }
        let w = width(lanes, 8 * bytes as u32);
        let from = lanes - 1;
        let elements = picks(bytes, offsets, from);
        let masks = match self.masks_apart.get(&(mask, bytes)) {
            Some(masks) => *masks,
            None => {
                let whole = self.mask(mask, 8 * bytes as u32)?;
                let masks = self.at(self.home(mask), |s| s.masks_of_loads(bytes, lanes, whole, &elements));
                self.masks_apart.insert((mask, bytes), masks);
                masks
            }
        };
        let low = self.load_lanes(bytes, lanes, place, Some(masks[0]))?;
        let high = self.load_lanes(
            bytes,
            lanes,
            behind(place, (from as usize * bytes) as i32),
            Some(masks[1]),
        )?;
        Ok(self.permuted(bytes, w, [low, high], &elements))
    }

    /// The masks of two loads from which lanes pick those elements: an element has the mask of the lane that picks it.
    fn masks_of_loads(&mut self, bytes: usize, lanes: u32, mask: Mask, elements: &[usize]) -> [Mask; 2] {
        let w = width(lanes, 8 * bytes as u32);
        let per = (16 << w) / bytes;
        let all = self.constant(u64::MAX, 32);
        let lanes_on = self.select_or_zero(bytes, w, mask, all);
        [0, per].map(|first| {
            let lane_of = |element: usize| elements.iter().position(|e| *e == element);
            let lanes: Vec<Option<usize>> = (first..first + per).map(lane_of).collect();
            let from: Vec<usize> = lanes.iter().map(|lane| lane.unwrap_or(0)).collect();
            let spread = self.permuted(bytes, w, [lanes_on, lanes_on], &from);
            let picked = lanes
                .iter()
                .flat_map(|lane| std::iter::repeat_n(if lane.is_some() { 0xff } else { 0 }, bytes));
            let picked = self.table(picked.collect());
            self.common_bits(bytes, w, spread, picked)
        })
    }

    /// Of each lane the element of two vectors that has that number.
    fn permuted(&mut self, bytes: usize, w: usize, [low, high]: [Reg; 2], elements: &[usize]) -> Reg {
        let per = (16 << w) / bytes;
        let index = (0..per)
            .flat_map(|lane| {
                let element = elements.get(lane).copied().unwrap_or(0) as u64;
                element.to_le_bytes().into_iter().take(bytes)
            })
            .collect();
        let index = self.table(index);
        let size = Size::VECTORS[w];
        let args = [Arg::Use(index, size), Arg::Use(high, size)];
        self.vector_update(moves(bytes).permute, w, low, &args)
    }

    pub(super) fn store(&mut self, a: &Address, offsets: &[u8], value: Value, mask: Option<Value>) -> Result<()> {
        let (dtype, lanes) = (self.flat.dtype(value), self.flat.info(value).lanes);
        let bytes = dtype.bytes();
        let most = offsets.iter().copied().max().unwrap_or(0);
        let place = self.place(a, i64::from(most) * bytes as i64)?;
        if lanes == 1 {
            return match mask {
                None => self.store_scalar(dtype, place, value),
                Some(_) => unsupported("a masked store of a scalar"),
            };
        }
        let mask = mask.map(|m| self.mask(m, dtype.bits())).transpose()?;
        let w = width(lanes, 8 * bytes as u32);
        let v = match dtype {
            DType::Bool => {
                let k = self.mask(value, 8)?;
                let one = self.constant(1, 8);
                self.select_or_zero(1, width(lanes, 8), k, one)
            }
            _ => self.vector(value)?,
        };
        if is_consecutive(offsets) {
            return self.store_lanes(bytes, lanes, place, v, mask);
        }
        if !is_reversed(offsets) {
            if mask.is_some() {
                return unsupported("a masked store of elements that lie apart");
            }
            let (each, index) = self.each_lane(bytes, place, offsets);
            let codes = if bytes == 4 {
                opcodes::SCATTER_D
            } else {
                opcodes::SCATTER_Q
            };
            let args = [Arg::Lanes(each, index), Arg::Use(v, Size::VECTORS[w])];
            let mut inst = Inst::new(codes[w], &args);
            inst.mask = Some((self.first_lanes(lanes, lanes, 8 * bytes as u32).reg, false));
            inst.used_up = Some(self.mask_reg());
            self.push(inst);
            return Ok(());
        }
        if mask.is_some() {
            return unsupported("a masked store of elements in reverse");
        }
        let per = (16u32 << w) / bytes as u32;
        if !self.has_mask_registers() {
            let reversed: Vec<usize> = (0..lanes as usize).rev().collect();
            let turned = self.picked(bytes, w, v, v, &reversed);
            return self.store_lanes(bytes, lanes, place, turned, None);
        }
        let index: Vec<u8> = (0..per)
            .flat_map(|lane| u64::from((lanes - 1).saturating_sub(lane)).to_le_bytes()[..bytes].to_vec())
            .collect();
        let index = self.table(index);
        let size = Size::VECTORS[w];
        let args = [Arg::Use(index, size), Arg::Use(v, size)];
        let turned = self.vector_update(moves(bytes).permute, w, v, &args);
        self.store_lanes(bytes, lanes, place, turned, None)
    }

    fn store_lanes(&mut self, bytes: usize, lanes: u32, place: Place, v: Reg, mask: Option<Mask>) -> Result<()> {
        let all = lanes * bytes as u32;
        let w = width(lanes, 8 * bytes as u32);
        let m = Arg::Memory(place);
        if mask.is_none() {
            let code = match all {
                8 => Some(Code::EVEX_Vmovq_xmmm64_xmm),
                4 => Some(Code::EVEX_Vmovd_rm32_xmm),
                _ => None,
            };
            if let Some(code) = code {
                self.push(Inst::new(code, &[m, Arg::Use(v, Size::X)]));
                return Ok(());
            }
            if all == 2 && !self.has_mask_registers() {
                let args = [m, Arg::Use(v, Size::X), Arg::Imm8(0)];
                self.push(Inst::new(Code::EVEX_Vpextrw_r32m16_xmm_imm8, &args));
                return Ok(());
            }
        }
        let mask = self.within(mask, lanes, all);
        if let Some(mask) = mask.filter(|_| !self.has_mask_registers()) {
            return self.store_masked(bytes, w, place, v, mask);
        }
        let store = Inst::new(moves(bytes).store[w], &[m, Arg::Use(v, Size::VECTORS[w])]);
        self.push(match mask {
            Some(mask) => store.masked(mask.reg),
            None => store,
        });
        Ok(())
    }

    fn store_scalar(&mut self, dtype: DType, place: Place, value: Value) -> Result<()> {
        let m = Arg::Memory(place);
        let forms = self.forms[value.0 as usize];
        let in_int = dtype == DType::Bool || forms.int.is_some() && forms.vector.is_none();
        let inst = match (in_int, dtype.bytes()) {
            (true, bytes) => {
                let v = self.int(value)?;
                let (code, size) = match bytes {
                    1 => (Code::Mov_rm8_r8, Size::B),
                    2 => (Code::Mov_rm16_r16, Size::W),
                    4 => (Code::Mov_rm32_r32, Size::D),
                    _ => (Code::Mov_rm64_r64, Size::Q),
                };
                Inst::new(code, &[m, Arg::Use(v, size)])
            }
            (false, bytes) => {
                let v = Arg::Use(self.vector(value)?, Size::X);
                match bytes {
                    1 => Inst::new(Code::EVEX_Vpextrb_r32m8_xmm_imm8, &[m, v, Arg::Imm8(0)]),
                    2 => Inst::new(Code::EVEX_Vpextrw_r32m16_xmm_imm8, &[m, v, Arg::Imm8(0)]),
                    4 => Inst::new(Code::EVEX_Vmovd_rm32_xmm, &[m, v]),
                    _ => Inst::new(Code::EVEX_Vmovq_xmmm64_xmm, &[m, v]),
                }
            }
        };
        self.push(inst);
        Ok(())
    }

    /// A call of the host; returns what comes back in a register of that class.
    pub(super) fn call(
        &mut self,
        f: RuntimeFunction,
        args: &[(Reg, regalloc2::PReg)],
        result: Option<regalloc2::PReg>,
    ) -> Reg {
        self.code.calls = true;
        let address = self.int_reg();
        self.push(Inst::of(Kind::Address(f), &[Arg::Def(address, Size::Q)]));
        let mut call = Inst::of(Kind::Call, &[Arg::Use(address, Size::Q)]);
        for (reg, at) in args {
            call.fixed.push(Self::fixed_use(*reg, *at));
        }
        call.clobbers = destroyed_by_calls(self.level);
        let class = result.map_or(RegClass::Int, |r| r.class());
        let to = self.code.reg(class);
        if let Some(at) = result {
            call.fixed.push(Operand::reg_fixed_def(to, at));
            call.clobbers.remove(at);
        }
        self.push(call);
        to
    }

    pub(super) fn copy(&mut self, c: &BlockCopy) -> Result<()> {
        let bytes = self.flat.kernel.memory_dtype(c.to.memory).bytes() as i64;
        let (to, from) = (self.address(&c.to)?, self.address(&c.from)?);
        let mut pitches = SmallVec::<[Reg; 2]>::new();
        for pitch in [c.to_pitch, c.from_pitch] {
            let elements = self.int(pitch)?;
            pitches.push(self.times(elements, bytes));
        }
        let (rows, columns) = (self.int(c.rows)?, self.int(c.columns)?);
        let (element, columns) = match c.transposed {
            true => (bytes as u8, columns),
            // Rows are bytes.
            false => (1, self.times(columns, bytes)),
        };
        let function = RuntimeFunction::Copy {
            element,
            transposed: c.transposed,
            streaming: c.streaming,
        };
        let at = [
            general::RDI,
            general::RSI,
            general::RDX,
            general::RCX,
            general::R8,
            general::R9,
        ];
        let values = [to, pitches[0], from, pitches[1], rows, columns];
        let args: SmallVec<[(Reg, regalloc2::PReg); 6]> = values.into_iter().zip(at).collect();
        self.call(function, &args, None);
        self.streams |= c.streaming;
        // No vector would survive the call.
        self.own_constants(self.here, false);
        Ok(())
    }
}
