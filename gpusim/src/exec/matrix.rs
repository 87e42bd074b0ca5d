//! Matrix products of a warp, and loads and stores of their operands.

use super::access::{Here, Request, Spot, addresses, shifted};
use super::{Block, Machine};
use crate::arith::rounding::{BF16, F16, F32, Round, round, two_sum};
use crate::arith::{Lanes, low};
use crate::program::{Instr, Mma, MmaType, Op, Place};
use crate::race::Kind;
use crate::report::FindingKind;

impl Machine<'_> {
    pub(super) fn matrix(&mut self, block: &mut Block, here: Here, instr: &Instr, members: u32) {
        let frame = here.frame as usize;
        match &instr.op {
            Op::LoadMatrix { d, place, transposed } => self.load_matrix(block, here, d, *place, *transposed, members),
            Op::StoreMatrix { a, place, transposed } => self.store_matrix(block, here, a, *place, *transposed, members),
            Op::MoveMatrix { d, a } => {
                let values = *block.warps[here.at].frames[frame].reg(*a);
                let element = |row: usize, column: usize| values[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
                let result = std::array::from_fn(|lane| {
                    let (row, column) = (lane / 4, lane % 4 * 2);
                    element(column, row) | element(column + 1, row) << 16
                });
                block.warps[here.at].frames[frame].put(*d, members, &result);
            }
            Op::Mma(mma) => {
                let state = &mut block.warps[here.at].frames[frame];
                let of = |registers: &[u32]| registers.iter().map(|&r| *state.reg(r)).collect::<Vec<_>>();
                let result = product(mma, &of(&mma.a), &of(&mma.b), &of(&mma.c));
                for (&register, lanes) in mma.d.iter().zip(&result) {
                    state.put(register, members, lanes);
                }
            }
            _ => {}
        }
    }

    /// The rows of 16 bytes of matrices of 8 by 8: lane `8 * i + r` gives the address of row `r` of matrix `i`.
    fn load_matrix(&mut self, block: &mut Block, here: Here, d: &[u32], place: Place, transposed: bool, members: u32) {
        let bases = *block.warps[here.at].frames[here.frame as usize].reg(place.base);
        let mut request = Request::default();
        let mut results = vec![[0; 32]; d.len()];
        for (matrix, result) in results.iter_mut().enumerate() {
            let mut rows = [[0_u64; 8]; 8];
            for (row, elements) in rows.iter_mut().enumerate() {
                let lane = matrix * 8 + row;
                let address = addresses(&bases, place.offset, lane);
                let Some(spot) = self.spot(block, here, lane, (place.space, address), 16, false) else {
                    continue;
                };
                request.note(lane, spot, address, 16);
                self.check_race(block, here, lane, spot, 16, Kind::Read);
                for (i, element) in elements.iter_mut().enumerate() {
                    let (value, defined) = self.read(block, here, lane, shifted(spot, 2 * i), 2);
                    *element = value;
                    if !defined {
                        let detail = "nobody wrote these bytes".to_string();
                        self.wrong(
                            block,
                            here,
                            lane,
                            FindingKind::Unwritten,
                            ((place.space, address), 16),
                            detail,
                        );
                    }
                }
            }
            for (lane, value) in result.iter_mut().enumerate() {
                let (r, c) = (lane / 4, lane % 4 * 2);
                *value = if transposed {
                    rows[c][r] | rows[c + 1][r] << 16
                } else {
                    rows[r][c] | rows[r][c + 1] << 16
                };
            }
        }
        let state = &mut block.warps[here.at].frames[here.frame as usize];
        for (&register, lanes) in d.iter().zip(&results) {
            state.put(register, members, lanes);
        }
        self.count(&mut request, false);
    }

    fn store_matrix(
        &mut self,
        block: &mut Block,
        here: Here,
        a: &[u32],
        place: Place,
        transposed: bool,
        _members: u32,
    ) {
        let state = &block.warps[here.at].frames[here.frame as usize];
        let bases = *state.reg(place.base);
        let values: Vec<Lanes> = a.iter().map(|&r| *state.reg(r)).collect();
        let mut request = Request::default();
        for (matrix, values) in values.iter().enumerate() {
            for row in 0..8 {
                let lane = matrix * 8 + row;
                let address = addresses(&bases, place.offset, lane);
                let Some(spot) = self.spot(block, here, lane, (place.space, address), 16, true) else {
                    continue;
                };
                request.note(lane, spot, address, 16);
                self.check_race(block, here, lane, spot, 16, Kind::Write);
                for column in 0..8 {
                    let (r, c) = if transposed { (column, row) } else { (row, column) };
                    let value = values[r * 4 + c / 2] >> (16 * (c % 2)) & 0xffff;
                    let spot: Spot = shifted(spot, 2 * column);
                    self.write(block, here, lane, spot, 2, value);
                }
            }
        }
        self.progress = self.steps;
        self.count(&mut request, true);
    }
}

/// The element of A, B or C in a register of a lane, as the PTX manual places them: row and column.
pub(super) const fn a_place(ty: MmaType, lane: usize, element: usize) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    if matches!(ty, MmaType::TF32) {
        return (group + 8 * (element % 2), thread + 4 * (element / 2));
    }
    let row = group + 8 * (element / 2 % 2);
    (row, thread * 2 + element % 2 + 8 * (element / 4))
}

const fn b_place(mma: &Mma, lane: usize, element: usize) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    if matches!(mma.ty, MmaType::TF32) {
        return (thread + 4 * element, group);
    }
    (thread * 2 + element % 2 + 8 * (element / 2), group)
}

/// The number that the bits of an operand's element stand for.
pub(super) fn element(ty: MmaType, bits: u64) -> f64 {
    match ty {
        MmaType::F16 => F16.value(low(bits, 16)),
        MmaType::BF16 => BF16.value(low(bits, 16)),
        // Only the upper 19 bits of an f32 take part.
        MmaType::TF32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
    }
}

/// The sum of a start and a row times a column: the nearest f64, and what is missing.
///
/// Products are exact; the sum is taken in f64 in order of k and rounded once, where devices keep fewer bits in an order that is
/// not documented.
pub(super) fn total(start: f64, row: &[f64], column: &[f64]) -> (f64, f64) {
    let (mut sum, mut rest) = (start, 0.0);
    for (a, b) in row.iter().zip(column) {
        let (next, off) = two_sum(sum, a * b);
        sum = next;
        rest += off;
    }
    two_sum(sum, rest)
}

/// One product of 16 by k by 8.
fn product(mma: &Mma, a: &[Lanes], b: &[Lanes], c: &[Lanes]) -> Vec<Lanes> {
    let k = mma.k as usize;
    let per = if matches!(mma.ty, MmaType::TF32) { 1 } else { 2 };
    let mut left = vec![0.0; 16 * k];
    let mut right = vec![0.0; 8 * k];
    for lane in 0..32 {
        for element in 0..a.len() * per {
            let (row, column) = a_place(mma.ty, lane, element);
            left[row * k + column] = self::element(mma.ty, a[element / per][lane] >> (16 * (element % per)));
        }
        for element in 0..b.len() * per {
            let (row, column) = b_place(mma, lane, element);
            right[column * k + row] = self::element(mma.ty, b[element / per][lane] >> (16 * (element % per)));
        }
    }
    let mut result = vec![[0; 32]; mma.d.len()];
    for lane in 0..32 {
        for element in 0..4 {
            let (row, column) = (lane / 4 + 8 * (element / 2), lane % 4 * 2 + element % 2);
            let start = if mma.half_c {
                F16.value(low(c[element / 2][lane] >> (16 * (element % 2)), 16))
            } else {
                f64::from(f32::from_bits(c[element][lane] as u32))
            };
            let (sum, rest) = total(start, &left[row * k..][..k], &right[column * k..][..k]);
            if mma.half_d {
                result[element / 2][lane] |= round(sum, rest, F16, Round::Even) << (16 * (element % 2));
            } else {
                result[element][lane] = round(sum, rest, F32, Round::Even);
            }
        }
    }
    result
}
