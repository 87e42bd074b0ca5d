//! Registers of asynchronous products: who touches them while a product is under way, and which need a fence before one.
//!
//! Results are in their registers at once; what would read or write them before their time is found. Groups of products
//! have numbers from 1.

use super::access::Here;
use super::tile::Tile;
use super::{Block, Machine};
use crate::program::{Pc, Reg, Watched};
use crate::report::FindingKind;

/// A product that nobody has waited for.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) group: u32,
    pub(super) here: (u32, Pc),
    pub(super) time: u64,
    /// What it reads of shared memory: rows from one to another.
    pub(super) tiles: Vec<(Tile, usize, usize)>,
}

/// The asynchronous products of a warp.
#[derive(Debug, Default)]
pub(super) struct Flight {
    pub(super) issued: Vec<Issued>,
    /// The last group that was committed, and the last that was waited for.
    pub(super) committed: u32,
    pub(super) done: u32,
    /// When there was a `wgmma.fence`; 0 is never.
    pub(super) fenced: u64,
}

/// What products do with a register.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// When an instruction wrote it that is no product.
    written: u64,
    /// The last group that has it as an accumulator, or as a part of A.
    accumulator: u32,
    operand: u32,
    /// The columns of that product, and its instruction.
    n: u32,
    pc: Pc,
    /// It is a copy of a register of which that is said.
    is_copy: bool,
}

impl Watch {
    const fn is_in_flight(&self, done: u32) -> bool {
        self.accumulator > done || self.operand > done
    }

    /// Whether its value is not there yet, or not to be looked at.
    const fn hides(&self, done: u32) -> bool {
        self.accumulator > done || self.operand > done && !self.is_copy
    }
}

/// How a product uses a register.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Of a product of so many columns.
    Accumulator(u32),
    Operand,
}

impl Machine<'_> {
    /// Checks what an instruction that is no product does with registers of products.
    pub(super) fn check_watched(&mut self, block: &mut Block, here: Here, watched: &Watched) {
        if !self.options.synccheck {
            return;
        }
        let now = self.steps;
        let warp = &mut block.warps[here.at];
        let done = warp.flight.done;
        let frame = &mut warp.frames[here.frame as usize];
        frame.watch.resize(frame.regs.len(), Watch::default());
        let watch = &mut frame.watch;
        let mut wrong = None;
        for &register in &watched.reads {
            let state = watch[register as usize];
            if state.hides(done) {
                wrong = wrong.or(Some((state.pc, "read")));
            }
        }
        for &register in &watched.writes {
            let state = watch[register as usize];
            if state.is_in_flight(done) && !state.is_copy {
                wrong = wrong.or(Some((state.pc, "written")));
            }
            watch[register as usize] = Watch {
                written: now,
                ..Watch::default()
            };
        }
        if let Some((to, from)) = watched.copy {
            let (old, new) = (watch[to as usize], watch[from as usize]);
            if old.is_in_flight(done) && !old.is_copy && !new.is_in_flight(done) {
                wrong = wrong.or(Some((old.pc, "written")));
            }
            watch[to as usize] = Watch { is_copy: true, ..new };
        }
        if let Some((product, how)) = wrong {
            let detail = format!("a register of a product is {how} before a wait for it");
            self.misuse(block, here, product, detail);
        }
    }

    /// Notes that a product uses registers, and checks whether it may.
    pub(super) fn use_registers(&mut self, block: &mut Block, here: Here, registers: &[Reg], role: Role) {
        if !self.options.synccheck {
            return;
        }
        let warp = &mut block.warps[here.at];
        let (done, fenced, group) = (warp.flight.done, warp.flight.fenced, warp.flight.committed + 1);
        let frame = &mut warp.frames[here.frame as usize];
        frame.watch.resize(frame.regs.len(), Watch::default());
        let mut late = false;
        let mut wrong = None;
        for &register in registers {
            let state = &mut frame.watch[register as usize];
            late |= state.written > fenced;
            let clashes = match role {
                // A chain of products of one shape may add to the same registers.
                Role::Accumulator(n) => {
                    state.operand > done && !state.is_copy || state.accumulator > done && state.n != n
                }
                Role::Operand => state.accumulator > done,
            };
            if clashes {
                wrong = Some(state.pc);
            }
            let (accumulator, operand, n) = match role {
                Role::Accumulator(n) => (group, 0, n),
                Role::Operand => (0, group, 0),
            };
            *state = Watch {
                written: 0,
                accumulator,
                operand,
                n,
                pc: here.pc,
                is_copy: false,
            };
        }
        if late {
            let detail = "registers were written after the last `wgmma.fence`".to_string();
            self.misuse(block, here, here.pc, detail);
        }
        if let Some(product) = wrong {
            let detail = "a register belongs to another product under way, which uses it otherwise".to_string();
            self.misuse(block, here, product, detail);
        }
    }

    /// Reports a misuse of a product, and which product it is where it is another instruction.
    fn misuse(&mut self, block: &Block, here: Here, product: Pc, detail: String) {
        let site = self.site_of(block, here.at, here.frame, here.pc, 1);
        let other = (product != here.pc).then(|| self.site_of(block, here.at, here.frame, product, 1));
        self.found_with(FindingKind::AsyncProduct, site, None, 0, detail, other);
    }
}
