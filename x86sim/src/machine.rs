//! The processor's loop: decodes, executes, goes on; calls, and returns.

use std::collections::BTreeMap;
use std::rc::Rc;

use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register, RoundingControl,
};

use crate::fault::{Access, Fault, Refusal};
use crate::memory::{Memory, Permission, Region};
use crate::state::{Flag, Flags, Lane, State, Vector};

/// What the host does when code calls an address: it finds its arguments in registers and memory as the System V calling convention has them, and
/// leaves its result in `rax` or in the first lane of vector 0. All other registers that such a function may destroy are destroyed behind it.
pub type HostFunction<'h> = Box<dyn FnMut(&mut State, &mut Memory) -> Result<(), String> + 'h>;

/// Code and the constants behind it, at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// Address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// How much has run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Accesses to memory: vectors are one, or one a lane under a mask.
    pub accesses: u64,
}

/// Where a function that [`Machine::run`] runs returns to.
const RETURN: u64 = 0x5afe_0000_0000_0001;
/// The lowest address of the stack, and its size.
const STACK: u64 = 0x1000_0000_0000;
const STACK_BYTES: usize = 1 << 18;
/// General registers that a function gives back as it found them, in the System V calling convention.
const KEPT: [(usize, &str); 7] = [
    (3, "rbx"),
    (4, "rsp"),
    (5, "rbp"),
    (12, "r12"),
    (13, "r13"),
    (14, "r14"),
    (15, "r15"),
];
/// General registers that arguments are in.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// What is left in registers that mean nothing: as an address it is nowhere, as a float a signaling NaN.
const POISON: u64 = 0x7ff4_dead_7fa4_dead;

/// A processor with its memory.
pub struct Machine<'h> {
    /// Registers and flags.
    pub state: State,
    /// Memory: the code (to be read), the stack, and what the caller has added.
    pub memory: Memory,
    code: Code,
    /// Instructions by the offset of their first byte in the code, once they have run.
    decoded: Vec<Option<Rc<Instruction>>>,
    hosts: BTreeMap<u64, HostFunction<'h>>,
    limit: u64,
    counts: Counts,
}

/// Why an instruction cannot be executed; the loop adds which one it is.
pub(crate) enum Stop {
    Access(Access, u64, usize, Refusal),
    Unknown,
    Flag(Flag),
    Division,
    Stack(u64),
    Host(String),
}

pub(crate) type Step<T> = Result<T, Stop>;

/// What a step goes on with.
pub(crate) enum Next {
    Following,
    To(u64),
    Call(u64),
    Return,
}

fn text(inst: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_rip_relative_addresses(false);
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    let mut text = String::new();
    formatter.format(inst, &mut text);
    text
}

impl<'h> Machine<'h> {
    /// A processor whose registers hold nothing of use, with a stack, the code, and at most so many instructions to run in all.
    ///
    /// # Errors
    /// The code as a region, if it does not fit beside the stack.
    pub fn new(code: Code, limit: u64) -> Result<Machine<'h>, Box<Region>> {
        let mut memory = Memory::new();
        memory.add(Region::new("the code", code.base, code.bytes.clone(), Permission::Read))?;
        memory.add(Region::new("the stack", STACK, vec![0; STACK_BYTES], Permission::Write))?;
        let mut machine = Machine {
            state: State::default(),
            memory,
            decoded: vec![None; code.bytes.len()],
            code,
            hosts: BTreeMap::new(),
            limit,
            counts: Counts::default(),
        };
        machine.state.general = [POISON; 16];
        machine.poison_vectors(0, 32);
        machine.state.masks = [POISON; 8];
        Ok(machine)
    }

    /// Has an address be a function of the host.
    pub fn host(&mut self, address: u64, function: HostFunction<'h>) {
        self.hosts.insert(address, function);
    }

    /// How much has run.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The instructions that have run, each once, in the order of their addresses.
    pub fn executed(&self) -> impl Iterator<Item = &Instruction> {
        self.decoded.iter().flatten().map(|i| &**i)
    }

    fn poison_vectors(&mut self, from: usize, to: usize) {
        for v in &mut self.state.vectors[from..to] {
            (0..8).for_each(|i| POISON.put(v, i));
        }
    }

    /// Calls the function at an address as the System V calling convention says, with integers as arguments, and runs it to its end.
    ///
    /// # Errors
    /// [`Fault`], also where it does not give back the registers that it has to, or leaves upper halves of vectors filled.
    ///
    /// # Panics
    /// With more than six arguments.
    pub fn call(&mut self, entry: u64, arguments: &[u64]) -> Result<(), Fault> {
        assert!(arguments.len() <= ARGUMENTS.len(), "arguments on the stack");
        for (number, value) in ARGUMENTS.into_iter().zip(arguments) {
            self.state.general[number] = *value;
        }
        self.state.general[4] = STACK + STACK_BYTES as u64 - 64;
        let before = self.state.general;
        self.run(entry)?;
        for (number, register) in KEPT {
            let (expected, found) = (before[number], self.state.general[number]);
            if expected != found {
                return Err(Fault::Convention {
                    register,
                    expected,
                    found,
                });
            }
        }
        match self.state.vectors[..16].iter().position(|v| v.0[16..] != [0; 48]) {
            Some(number) => Err(Fault::Upper(number)),
            None => Ok(()),
        }
    }

    /// Runs code from an address until it returns, with registers as they are, but for the stack pointer.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn run(&mut self, entry: u64) -> Result<(), Fault> {
        self.state.general[4] = STACK + STACK_BYTES as u64 - 64;
        let mut here = entry;
        let mut from = entry;
        self.push(RETURN).map_err(|stop| self.fault(entry, None, stop))?;
        loop {
            let inst = self.fetch(from, here)?;
            if self.counts.instructions >= self.limit {
                return Err(Fault::Limit { limit: self.limit });
            }
            self.counts.instructions += 1;
            let mut step = Execution {
                state: &mut self.state,
                memory: &mut self.memory,
                inst: &inst,
                accesses: &mut self.counts.accesses,
            };
            let next = step.execute().map_err(|stop| self.fault(here, Some(&inst), stop))?;
            from = here;
            here = match next {
                Next::Following => inst.next_ip(),
                Next::To(to) => to,
                Next::Call(to) => {
                    self.called(to, &inst)?;
                    inst.next_ip()
                }
                Next::Return => match self.pop().map_err(|stop| self.fault(here, Some(&inst), stop))? {
                    RETURN => return Ok(()),
                    to => to,
                },
            };
        }
    }

    fn fetch(&mut self, from: u64, at: u64) -> Result<Rc<Instruction>, Fault> {
        let offset = at.checked_sub(self.code.base).and_then(|o| usize::try_from(o).ok());
        let Some(offset) = offset.filter(|o| *o < self.decoded.len()) else {
            return Err(Fault::NoCode { from, to: at });
        };
        if let Some(inst) = &self.decoded[offset] {
            return Ok(inst.clone());
        }
        let mut decoder = Decoder::with_ip(64, &self.code.bytes[offset..], at, DecoderOptions::NONE);
        let inst = decoder.decode();
        if inst.is_invalid() {
            return Err(Fault::NoInstruction { at });
        }
        let inst = Rc::new(inst);
        self.decoded[offset] = Some(inst.clone());
        Ok(inst)
    }

    fn fault(&self, at: u64, inst: Option<&Instruction>, stop: Stop) -> Fault {
        let text = inst.map_or_else(|| "the call".into(), text);
        match stop {
            Stop::Access(access, address, bytes, why) => Fault::Access {
                at,
                text,
                access,
                address,
                bytes,
                why,
            },
            Stop::Unknown => Fault::Unknown {
                at,
                text,
                code: inst.map_or_else(String::new, |i| format!("{:?}", i.code())),
            },
            Stop::Flag(flag) => Fault::UndefinedFlag { at, text, flag },
            Stop::Division => Fault::Division { at, text },
            Stop::Stack(rsp) => Fault::Stack { at, text, rsp },
            Stop::Host(message) => Fault::Host { at, message },
        }
    }

    fn push(&mut self, value: u64) -> Step<()> {
        let rsp = self.state.general[4].wrapping_sub(8);
        self.state.general[4] = rsp;
        let refused = |why| Stop::Access(Access::Write, rsp, 8, why);
        self.memory.write(rsp, &value.to_le_bytes()).map_err(refused)
    }

    fn pop(&mut self) -> Step<u64> {
        let rsp = self.state.general[4];
        self.state.general[4] = rsp.wrapping_add(8);
        let mut bytes = [0; 8];
        let refused = |why| Stop::Access(Access::Read, rsp, 8, why);
        self.memory.read(rsp, &mut bytes).map_err(refused)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Calls a host function, and leaves nothing in the registers that it may destroy but its result.
    fn called(&mut self, to: u64, inst: &Instruction) -> Result<(), Fault> {
        let at = inst.ip();
        let rsp = self.state.general[4];
        if !rsp.is_multiple_of(16) {
            return Err(self.fault(at, Some(inst), Stop::Stack(rsp)));
        }
        let Some(mut function) = self.hosts.remove(&to) else {
            return Err(Fault::NoCode { from: at, to });
        };
        // Below the stack pointer the function may write what it likes.
        let refused = |m: &Self, stop| m.fault(at, Some(inst), stop);
        self.push(inst.next_ip()).map_err(|stop| refused(self, stop))?;
        let kept = self.state.general;
        let outcome = function(&mut self.state, &mut self.memory);
        self.hosts.insert(to, function);
        outcome.map_err(|message| refused(self, Stop::Host(message)))?;
        self.pop().map_err(|stop| refused(self, stop))?;
        let rax = self.state.general[0];
        self.state.general = [POISON; 16];
        self.state.general[0] = rax;
        for (number, _) in KEPT {
            self.state.general[number] = kept[number];
        }
        self.state.general[4] = rsp;
        let result = u64::get(&self.state.vectors[0], 0);
        self.poison_vectors(0, 32);
        result.put(&mut self.state.vectors[0], 0);
        self.state.masks = [POISON; 8];
        self.state.flags = Flags::default();
        Ok(())
    }
}

/// One instruction with what it works on.
pub(crate) struct Execution<'m> {
    pub state: &'m mut State,
    pub memory: &'m mut Memory,
    pub inst: &'m Instruction,
    accesses: &'m mut u64,
}

impl Execution<'_> {
    fn execute(&mut self) -> Step<Next> {
        let inst = self.inst;
        let plain = !inst.is_broadcast()
            && inst.rounding_control() == RoundingControl::None
            && !inst.suppress_all_exceptions()
            && !inst.has_lock_prefix()
            && !inst.has_rep_prefix()
            && !inst.has_repne_prefix()
            && inst.segment_prefix() == Register::None;
        if !plain {
            return Err(Stop::Unknown);
        }
        match inst.mnemonic() {
            Mnemonic::INVALID => Err(Stop::Unknown),
            _ => match self.general()? {
                Some(next) => Ok(next),
                None => self.vector().map(|()| Next::Following),
            },
        }
    }

    pub(crate) fn load(&mut self, address: u64, into: &mut [u8]) -> Step<()> {
        *self.accesses += 1;
        let bytes = into.len();
        let refused = |why| Stop::Access(Access::Read, address, bytes, why);
        self.memory.read(address, into).map_err(refused)
    }

    pub(crate) fn store(&mut self, address: u64, from: &[u8]) -> Step<()> {
        *self.accesses += 1;
        let refused = |why| Stop::Access(Access::Write, address, from.len(), why);
        self.memory.write(address, from).map_err(refused)
    }

    /// Whether an operand is in memory.
    pub(crate) fn is_memory(&self, operand: u32) -> bool {
        self.inst.op_kind(operand) == OpKind::Memory
    }

    /// The address of the memory operand but for the index.
    pub(crate) fn base(&self) -> Step<u64> {
        let displacement = self.inst.memory_displacement64();
        match self.inst.memory_base() {
            // The displacement is the address.
            Register::RIP => Ok(displacement),
            Register::None => Ok(displacement),
            base if base.is_gpr64() => Ok(self.state.general[base.number()].wrapping_add(displacement)),
            _ => Err(Stop::Unknown),
        }
    }

    /// The address of the memory operand.
    pub(crate) fn address(&self) -> Step<u64> {
        let base = self.base()?;
        match self.inst.memory_index() {
            Register::None => Ok(base),
            index if index.is_gpr64() => {
                let scaled = self.state.general[index.number()].wrapping_mul(self.inst.memory_index_scale().into());
                Ok(base.wrapping_add(scaled))
            }
            _ => Err(Stop::Unknown),
        }
    }

    /// Reads a general register or memory of up to 64 bits, without sign.
    pub(crate) fn integer(&mut self, operand: u32) -> Step<u64> {
        match self.inst.op_kind(operand) {
            OpKind::Register => {
                let register = self.inst.op_register(operand);
                let whole = self.state.general[number(register)?];
                Ok(match register.size() {
                    8 => whole,
                    bytes => whole & ((1 << (8 * bytes)) - 1),
                })
            }
            OpKind::Memory => {
                let bytes = self.inst.memory_size().size();
                let address = self.address()?;
                let mut word = [0; 8];
                let into = word.get_mut(..bytes).ok_or(Stop::Unknown)?;
                self.load(address, into)?;
                Ok(u64::from_le_bytes(word))
            }
            _ => self.inst.try_immediate(operand).map_err(|_| Stop::Unknown),
        }
    }

    /// Writes a general register, all of it where it is named with 32 bits, or memory.
    pub(crate) fn put_integer(&mut self, operand: u32, value: u64) -> Step<()> {
        if self.is_memory(operand) {
            let bytes = self.inst.memory_size().size();
            let address = self.address()?;
            let word = value.to_le_bytes();
            return self.store(address, word.get(..bytes).ok_or(Stop::Unknown)?);
        }
        let register = self.inst.op_register(operand);
        let whole = &mut self.state.general[number(register)?];
        *whole = match register.size() {
            8 => value,
            4 => value & 0xffff_ffff,
            bytes => {
                let low = (1 << (8 * bytes)) - 1;
                *whole & !low | value & low
            }
        };
        Ok(())
    }

    pub(crate) fn imm8(&self) -> u8 {
        self.inst.immediate8()
    }
}

/// The number of a general register.
fn number(register: Register) -> Step<usize> {
    let high = [Register::AH, Register::CH, Register::DH, Register::BH];
    match register.is_gpr() && !high.contains(&register) {
        true => Ok(register.full_register().number()),
        false => Err(Stop::Unknown),
    }
}

/// A vector register's number.
pub(crate) fn vector_number(register: Register) -> Step<usize> {
    match register.is_vector_register() {
        true => Ok(register.full_register().number()),
        false => Err(Stop::Unknown),
    }
}

impl Execution<'_> {
    /// A vector register.
    pub(crate) fn register(&self, operand: u32) -> Step<Vector> {
        Ok(self.state.vectors[vector_number(self.inst.op_register(operand))?])
    }

    /// A mask register.
    pub(crate) fn mask_register(&self, operand: u32) -> Step<usize> {
        let register = self.inst.op_register(operand);
        match register.is_k() {
            true => Ok(register.number()),
            false => Err(Stop::Unknown),
        }
    }
}
