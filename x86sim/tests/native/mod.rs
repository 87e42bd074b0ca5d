//! One instruction on this machine's processor, between registers and memory that are given and taken.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use memmap2::{Mmap, MmapMut};
use tlc_x86sim::iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

/// What an instruction finds, and what it leaves.
#[repr(C, align(64))]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registers {
    /// All 32 where there is AVX-512, else the low halves of 16.
    pub vectors: [[u8; 64]; 32],
    pub masks: [u64; 8],
    /// By number; that of the stack pointer is not used.
    pub general: [u64; 16],
    pub flags: u64,
}

const MASKS: i64 = 32 * 64;
const GENERAL: i64 = MASKS + 64;
const FLAGS: i64 = GENERAL + 128;

fn general(number: usize) -> Register {
    Register::RAX + number as u32
}

struct Writer {
    encoder: Encoder,
    wide: bool,
}

impl Writer {
    fn push(&mut self, inst: Instruction) {
        self.encoder
            .encode(&inst, 0)
            .unwrap_or_else(|e| panic!("{e}: {inst:?}"));
    }

    fn two(&mut self, code: Code, a: Register, place: i64) {
        let place = MemoryOperand::with_base_displ(Register::RDI, place);
        self.push(Instruction::with2(code, a, place).expect("a load"));
    }

    fn store(&mut self, code: Code, place: i64, a: Register) {
        let place = MemoryOperand::with_base_displ(Register::RDI, place);
        self.push(Instruction::with2(code, place, a).expect("a store"));
    }

    fn one(&mut self, code: Code, a: Register) {
        self.push(Instruction::with1(code, a).expect("a register"));
    }

    fn vectors(&self) -> u32 {
        if self.wide { 32 } else { 16 }
    }

    /// Loads all registers from `rdi`, whose value stays at the top of the stack; that of `rdi` itself last.
    fn begin(&mut self) {
        for kept in [3, 5, 12, 13, 14, 15, 7] {
            self.one(Code::Push_r64, general(kept));
        }
        for v in 0..self.vectors() {
            match self.wide {
                true => self.two(
                    Code::EVEX_Vmovups_zmm_k1z_zmmm512,
                    Register::ZMM0 + v,
                    64 * i64::from(v),
                ),
                false => self.two(Code::VEX_Vmovups_ymm_ymmm256, Register::YMM0 + v, 64 * i64::from(v)),
            }
        }
        if self.wide {
            for k in 0..8u32 {
                self.two(Code::VEX_Kmovq_kr_km64, Register::K0 + k, MASKS + 8 * i64::from(k));
            }
        }
        let flags = MemoryOperand::with_base_displ(Register::RDI, FLAGS);
        self.push(Instruction::with1(Code::Push_rm64, flags).expect("a push"));
        self.push(Instruction::with(Code::Popfq));
        for r in (0..16).filter(|r| ![4, 7].contains(r)).chain([7]) {
            self.two(Code::Mov_r64_rm64, general(r), GENERAL + 8 * r as i64);
        }
    }

    fn end(&mut self) {
        let top = MemoryOperand::with_base(Register::RSP);
        self.push(Instruction::with2(Code::Xchg_rm64_r64, top, Register::RDI).expect("an exchange"));
        for r in (0..16).filter(|r| ![4, 7].contains(r)) {
            self.store(Code::Mov_rm64_r64, GENERAL + 8 * r as i64, general(r));
        }
        self.push(Instruction::with(Code::Pushfq));
        self.one(Code::Pop_r64, Register::RAX);
        self.store(Code::Mov_rm64_r64, FLAGS, Register::RAX);
        self.one(Code::Pop_r64, Register::RAX);
        self.store(Code::Mov_rm64_r64, GENERAL + 8 * 7, Register::RAX);
        for v in 0..self.vectors() {
            match self.wide {
                true => self.store(
                    Code::EVEX_Vmovups_zmmm512_k1z_zmm,
                    64 * i64::from(v),
                    Register::ZMM0 + v,
                ),
                false => self.store(Code::VEX_Vmovups_ymmm256_ymm, 64 * i64::from(v), Register::YMM0 + v),
            }
        }
        if self.wide {
            for k in 0..8u32 {
                self.store(Code::VEX_Kmovq_m64_kr, MASKS + 8 * i64::from(k), Register::K0 + k);
            }
        }
        self.push(Instruction::with(Code::VEX_Vzeroupper));
        for kept in [15, 14, 13, 12, 5, 3] {
            self.one(Code::Pop_r64, general(kept));
        }
        self.push(Instruction::with(Code::Retnq));
    }
}

/// Functions of one instruction each.
pub struct Functions {
    memory: Mmap,
    starts: Vec<usize>,
}

impl Functions {
    /// Of the bytes of instructions; `wide` where the processor has AVX-512.
    pub fn new(instructions: &[Vec<u8>], wide: bool) -> Functions {
        let part = |write: fn(&mut Writer)| {
            let mut writer = Writer {
                encoder: Encoder::new(64),
                wide,
            };
            write(&mut writer);
            writer.encoder.take_buffer()
        };
        let (begin, end) = (part(Writer::begin), part(Writer::end));
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for inst in instructions {
            starts.push(bytes.len());
            bytes.extend_from_slice(&begin);
            bytes.extend_from_slice(inst);
            bytes.extend_from_slice(&end);
        }
        let mut memory = MmapMut::map_anon(bytes.len().max(1)).expect("memory");
        memory[..bytes.len()].copy_from_slice(&bytes);
        let memory = memory.make_exec().expect("memory that may be executed");
        Functions { memory, starts }
    }

    /// Executes an instruction.
    ///
    /// # Safety
    /// The processor has it, it touches no memory but what is there to be touched, leaves the stack pointer alone and goes on behind itself.
    pub unsafe fn run(&self, which: usize, registers: &mut Registers) {
        let start = self.memory[self.starts[which]..].as_ptr();
        // SAFETY: a function of this signature was written there: it gives back what the calling convention says, and leaves the flags that
        // count in it as they are.
        let function = unsafe { std::mem::transmute::<*const u8, extern "C" fn(*mut Registers)>(start) };
        function(registers);
    }
}
