//! Each instruction that the wide emitter writes, on random operands and those at which they go wrong: the evaluated processor beside the
//! machine's own, bit for bit, where the machine has it.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../../runtime/tests/guarded/mod.rs"]
mod guarded;
mod native;

use std::collections::{BTreeMap, BTreeSet};

use guarded::{Edge, Guarded};
use native::{Functions, Registers};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;
use tlc_x86sim::iced_x86::{Code, Encoder, Instruction, OpKind, Register};
use tlc_x86sim::{Fault, Flag, Machine, Permission, Region};

/// What an operand may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    Register(Class),
    Memory,
    Either(Class),
    /// A vector of indices.
    Lanes(Class),
    Immediate(OpKind),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// A general register of so many bytes.
    General(usize),
    /// A vector of so many bytes.
    Vector(usize),
    Mask,
}

/// An instruction's operands, and whether lanes may be masked, or have to be: of its name.
struct Form {
    code: Code,
    name: String,
    operands: Vec<Operand>,
    /// Whether it takes a mask, and whether it may make lanes zero.
    mask: Option<bool>,
}

fn class(name: &str) -> Option<(Class, &str)> {
    let classes = [
        ("xmm", Class::Vector(16)),
        ("ymm", Class::Vector(32)),
        ("zmm", Class::Vector(64)),
        ("kr", Class::Mask),
        ("k", Class::Mask),
        ("r64", Class::General(8)),
        ("r32", Class::General(4)),
        ("r16", Class::General(2)),
        ("r8", Class::General(1)),
    ];
    classes.iter().find_map(|(n, c)| Some((*c, name.strip_prefix(n)?)))
}

impl Form {
    fn of(code: Code) -> Form {
        let name = format!("{code:?}");
        let mut parts = name.split('_').peekable();
        if ["VEX", "EVEX"].contains(parts.peek().expect("a name")) {
            parts.next();
        }
        let mnemonic = parts.next().expect("a name");
        let (mut operands, mut mask) = (Vec::new(), None);
        for part in parts {
            let general = |bits: &str| Class::General(bits.parse::<usize>().expect("bits") / 8);
            operands.push(match part {
                "k1z" => {
                    mask = Some(true);
                    continue;
                }
                "k1" => {
                    mask = Some(false);
                    continue;
                }
                "er" | "sae" => continue,
                "imm8" if mnemonic == "And" => Operand::Immediate(OpKind::Immediate8to64),
                "imm8" => Operand::Immediate(OpKind::Immediate8),
                "imm32" => Operand::Immediate(OpKind::Immediate32to64),
                "imm64" => Operand::Immediate(OpKind::Immediate64),
                "vm32x" => Operand::Lanes(Class::Vector(16)),
                "vm32y" => Operand::Lanes(Class::Vector(32)),
                "vm32z" => Operand::Lanes(Class::Vector(64)),
                "m" | "m8" | "m32" | "m64" | "m128" | "m256" => Operand::Memory,
                "rm8" | "rm16" | "rm32" | "rm64" => Operand::Either(general(&part[2..])),
                _ => match class(part) {
                    Some((class, "")) => Operand::Register(class),
                    Some((class, _)) => Operand::Either(class),
                    None => panic!("{name}: {part}"),
                },
            });
        }
        Form {
            code,
            name,
            operands,
            mask,
        }
    }

    fn is_evex(&self) -> bool {
        self.name.starts_with("EVEX")
    }
}

/// Whether it goes elsewhere or moves the stack pointer, which kernels test.
fn is_control(code: Code) -> bool {
    let name = format!("{code:?}");
    ["J", "Call", "Ret", "Push", "Pop"].iter().any(|p| name.starts_with(p))
}

/// Which instructions this machine has.
struct Features {
    avx512: bool,
    avx2: bool,
    dots: bool,
    narrow_dots: bool,
    byte_tables: bool,
}

impl Features {
    fn detect() -> Features {
        Features {
            avx512: is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl"),
            avx2: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"),
            dots: is_x86_feature_detected!("avx512vnni"),
            narrow_dots: is_x86_feature_detected!("avxvnni"),
            byte_tables: is_x86_feature_detected!("avx512vbmi"),
        }
    }

    fn have(&self, form: &Form) -> bool {
        match form.name.as_str() {
            n if n.starts_with("EVEX_Vpdpbusd") => self.avx512 && self.dots,
            n if n.starts_with("EVEX_Vpermt2b") => self.avx512 && self.byte_tables,
            n if n.starts_with("VEX_Vpdpbusd") => self.narrow_dots,
            n if n.starts_with("EVEX") || n.starts_with("VEX_K") => self.avx512,
            n if n.starts_with("VEX") => self.avx2,
            _ => self.avx2,
        }
    }
}

/// Memory that instructions read and write, in the middle of which addresses lie.
const BYTES: usize = 8192;
/// Where the code is that is evaluated.
const CODE: u64 = 0x40_0000;

const SINGLES: [u32; 40] = [
    0,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f00_0000,
    0xbf00_0000,
    0x3fc0_0000,
    0x4020_0000,
    0xc020_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7fc1_2345,
    0xffd5_4321,
    0x7f80_0001,
    0xff80_0001,
    0x7fa5_5555,
    0xffbf_ffff,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x807f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x4f00_0000,
    0x4eff_ffff,
    0xcf00_0000,
    0xcf00_0001,
    0x4f80_0000,
    0x4f7f_ffff,
    0x5f00_0000,
    0xdf00_0000,
    0x5f80_0000,
    0x477f_e000,
    0x477f_f000,
    0x3380_0000,
    0x3300_0001,
    0x3f7f_ffff,
];

/// A float of 64 bits at which operations go wrong.
fn double(rng: &mut Rng) -> u64 {
    let single = SINGLES[rng.below(SINGLES.len())];
    match rng.below(4) {
        0 => {
            let numbers = [
                1u64,
                1 << 63 | 1,
                0x000f_ffff_ffff_ffff,
                0x0010_0000_0000_0000,
                0x7fef_ffff_ffff_ffff,
                0xffef_ffff_ffff_ffff,
                0x7ff0_0000_0000_0000,
                0xfff0_0000_0000_0000,
                0x7ff0_0000_0000_0001,
                0xfff7_ffff_ffff_ffff,
                0x7ff8_0000_0000_0000,
                0xfff9_1234_5678_9abc,
                0x7ff4_0000_2000_0000,
                0x41df_ffff_ffc0_0000,
                0x41e0_0000_0000_0000,
                0x43e0_0000_0000_0000,
                0x43df_ffff_ffff_ffff,
                0xc3e0_0000_0000_0000,
                0xc3e0_0000_0000_0001,
                0x43f0_0000_0000_0000,
                0x43ef_ffff_ffff_ffff,
                0x41ef_ffff_ffff_ffff,
                0xbfef_ffff_ffff_ffff,
                0x36a0_0000_0000_0000,
                0x3690_0000_0000_0001,
                0x47ef_ffff_e000_0000,
                0x47ef_ffff_f000_0000,
                0x380f_ffff_f000_0000,
                0x4330_0000_0000_0001,
                0x4320_0000_0000_0001,
            ];
            numbers[rng.below(numbers.len())]
        }
        1 if single & 0x7fff_ffff <= 0x7f80_0000 => f64::from(f32::from_bits(single)).to_bits(),
        2 => (rng.unit() * 16.0 - 8.0).to_bits(),
        _ => rng.bits(),
    }
}

fn single(rng: &mut Rng) -> u32 {
    match rng.below(4) {
        0 | 1 => SINGLES[rng.below(SINGLES.len())],
        2 => ((rng.unit() * 16.0 - 8.0) as f32).to_bits(),
        _ => rng.bits() as u32,
    }
}

fn half(rng: &mut Rng) -> u16 {
    let numbers = [
        0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfdff, 0x7e00, 0xff55, 0x3c00,
    ];
    match rng.below(2) {
        0 => numbers[rng.below(numbers.len())],
        _ => rng.bits() as u16,
    }
}

fn integer(rng: &mut Rng) -> u64 {
    let numbers = [
        0,
        1,
        2,
        63,
        64,
        127,
        128,
        255,
        u64::MAX,
        1 << 63,
        (1 << 63) - 1,
        0xffff_ffff,
        0x8000_0000,
        0x7fff_ffff,
        0x8080_8080_8080_8080,
        0x7fff_8000_7f80_ff00,
        (1 << 53) + 1,
        0x7fff_ffff_ffff_fc01,
    ];
    match rng.below(3) {
        0 => numbers[rng.below(numbers.len())],
        1 => rng.range(-3, 66) as u64,
        _ => rng.bits(),
    }
}

/// Bytes of elements of one type, of which the instruction may make something.
fn fill(rng: &mut Rng, name: &str, bytes: &mut [u8]) {
    let mut kinds = vec![0, 1];
    let named = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
    if named(&["ps", "ss"]) {
        kinds.extend([2, 2, 2, 2]);
    }
    if named(&["pd", "sd"]) {
        kinds.extend([3, 3, 3, 3]);
    }
    if named(&["ph2"]) {
        kinds.extend([4, 4, 4, 4]);
    }
    let kind = kinds[rng.below(kinds.len())];
    for part in bytes.chunks_mut(8) {
        let word = match kind {
            0 => rng.bits(),
            1 => integer(rng),
            2 => u64::from(single(rng)) | u64::from(single(rng)) << 32,
            3 => double(rng),
            _ => (0..4).fold(0, |w, _| w << 16 | u64::from(half(rng))),
        };
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
}

/// An instruction with what it works on.
struct Case {
    bytes: Vec<u8>,
    inst: Instruction,
    registers: Box<Registers>,
    memory: Vec<u8>,
    /// Whether it may reach beyond the end of the memory, where nobody may.
    at_edge: bool,
}

/// A vector register's number: of a gather all are different ones.
fn another(rng: &mut Rng, form: &Form, used: &mut BTreeSet<usize>) -> usize {
    let count = if form.is_evex() { 32 } else { 16 };
    let mut number = rng.below(count);
    while form.name.contains("gather") && !used.insert(number) {
        number = rng.below(count);
    }
    number
}

/// A case of a form, whose memory begins at an address.
fn case(form: &Form, rng: &mut Rng, start: u64) -> Case {
    let mut registers = Box::new(Registers {
        vectors: [[0; 64]; 32],
        masks: [0; 8],
        general: [0; 16],
        flags: 2,
    });
    let mut memory = vec![0; BYTES];
    fill(rng, &form.name, &mut memory);
    for v in &mut registers.vectors {
        fill(rng, &form.name, v);
    }
    for k in &mut registers.masks {
        *k = match rng.below(5) {
            0 => u64::MAX,
            1 => 0,
            2 => (1 << rng.below(33)) - 1,
            _ => rng.bits(),
        };
    }
    registers.general.iter_mut().for_each(|r| *r = integer(rng));
    for flag in Flag::ALL {
        registers.flags |= (rng.bits() >> 63) << flag.bit();
    }
    let mut inst = Instruction::default();
    inst.set_code(form.code);
    let (mut gathers, mut at_edge) = (false, false);
    let mut used = BTreeSet::new();
    for (at, operand) in (0..).zip(&form.operands) {
        let in_memory = match operand {
            Operand::Memory | Operand::Lanes(_) => true,
            Operand::Either(_) => rng.chance(1, 2),
            _ => false,
        };
        match operand {
            Operand::Immediate(kind) => {
                inst.set_op_kind(at, *kind);
                let value = integer(rng);
                match kind {
                    OpKind::Immediate8 => inst.set_immediate8(value as u8),
                    OpKind::Immediate8to64 => inst.set_immediate8to64(value as i8 as i64),
                    OpKind::Immediate32to64 => inst.set_immediate32to64(value as i32 as i64),
                    _ => inst.set_immediate64(value),
                }
            }
            _ if in_memory => {
                inst.set_op_kind(at, OpKind::Memory);
                let base = [0usize, 1, 3, 6, 8, 12, 13][rng.below(7)];
                let displacement = rng.range(-3, 3) * 64 + if rng.chance(1, 4) { rng.range(-100, 100) } else { 0 };
                let mut target = start + (BYTES / 2 + rng.below(32) * 4) as u64;
                if !form.name.contains("Vmovaps") && !matches!(operand, Operand::Lanes(_)) && rng.chance(1, 4) {
                    at_edge = true;
                    target = start + (BYTES - rng.below(70)) as u64;
                }
                inst.set_memory_base(Register::RAX + base as u32);
                inst.set_memory_displ_size(if displacement == 0 { 0 } else { 1 });
                inst.set_memory_displacement64(displacement as u64);
                let scale = 1 << rng.below(4);
                inst.set_memory_index_scale(scale);
                if let Operand::Lanes(Class::Vector(bytes)) = operand {
                    gathers = true;
                    let number = another(rng, form, &mut used);
                    let first = match bytes {
                        16 => Register::XMM0,
                        32 => Register::YMM0,
                        _ => Register::ZMM0,
                    };
                    inst.set_memory_index(first + number as u32);
                    for lane in registers.vectors[number].chunks_mut(4) {
                        lane.copy_from_slice(&(rng.range(-400, 400) as i32).to_le_bytes());
                    }
                } else if rng.chance(1, 3) {
                    let index = [2usize, 5, 9, 15].into_iter().find(|i| *i != base).expect("another");
                    inst.set_memory_index(Register::RAX + index as u32);
                    registers.general[index] = rng.range(-20, 20) as u64;
                    target = target.wrapping_sub(registers.general[index].wrapping_mul(scale.into()));
                } else {
                    inst.set_memory_index_scale(1);
                }
                registers.general[base] = target.wrapping_sub(displacement as u64);
                // Copies that ask for it are given an aligned place.
                if form.name.contains("Vmovaps") {
                    let index = match inst.memory_index() {
                        Register::None => 0,
                        r => registers.general[r.number()].wrapping_mul(scale.into()),
                    };
                    registers.general[base] -= target.wrapping_add(index) % 64;
                }
            }
            Operand::Register(class) | Operand::Either(class) => {
                inst.set_op_kind(at, OpKind::Register);
                let register = match class {
                    Class::Mask => Register::K0 + rng.below(8) as u32,
                    Class::Vector(bytes) => {
                        let first = match bytes {
                            16 => Register::XMM0,
                            32 => Register::YMM0,
                            _ => Register::ZMM0,
                        };
                        let number = another(rng, form, &mut used);
                        first + number as u32
                    }
                    Class::General(bytes) => {
                        let number = [0usize, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15][rng.below(15)];
                        let n = number as u32;
                        match bytes {
                            8 => Register::RAX + n,
                            4 => Register::EAX + n,
                            2 => Register::AX + n,
                            _ => match n {
                                0..4 => Register::AL + n,
                                4..8 => Register::SPL + (n - 4),
                                _ => Register::R8L + (n - 8),
                            },
                        }
                    }
                };
                inst.set_op_register(at, register);
            }
            Operand::Memory | Operand::Lanes(_) => unreachable!("in memory"),
        }
    }
    if let Some(zeroing) = form.mask
        && (gathers || rng.chance(2, 3))
    {
        inst.set_op_mask(Register::K1 + rng.below(7) as u32);
        let writes_memory = inst.op_kind(0) == OpKind::Memory;
        inst.set_zeroing_masking(zeroing && !gathers && !writes_memory && rng.chance(1, 2));
    }
    if form.name == "Div_rm64" && rng.chance(3, 4) {
        registers.general[2] = 0;
    }
    if form.name == "Idiv_rm64" && rng.chance(3, 4) {
        registers.general[2] = (registers.general[0] as i64 >> 63) as u64;
    }
    let mut encoder = Encoder::new(64);
    encoder
        .encode(&inst, 0)
        .unwrap_or_else(|e| panic!("{}: {e}", form.name));
    Case {
        bytes: encoder.take_buffer(),
        inst,
        registers,
        memory,
        at_edge,
    }
}

/// Executes a case on the evaluated processor: the registers and memory behind it, and which flags are defined.
fn evaluate(case: &Case, start: u64) -> Result<(Box<Registers>, Vec<u8>, u32), Fault> {
    let mut bytes = case.bytes.clone();
    bytes.push(0xc3);
    let code = tlc_x86sim::Code { base: CODE, bytes };
    let mut machine = Machine::new(code, 2).expect("places for code and stack");
    let region = Region::new("the memory", start, case.memory.clone(), Permission::ReadWrite);
    machine.memory.add(region).expect("a place");
    machine.state.general = case.registers.general;
    machine.state.masks = case.registers.masks;
    for (to, from) in machine.state.vectors.iter_mut().zip(&case.registers.vectors) {
        to.0 = *from;
    }
    for flag in Flag::ALL {
        machine
            .state
            .flags
            .put(flag, case.registers.flags >> flag.bit() & 1 != 0);
    }
    machine.run(CODE)?;
    let (flags, defined) = machine.state.flags.bits();
    let registers = Registers {
        vectors: machine.state.vectors.map(|v| v.0),
        masks: machine.state.masks,
        general: machine.state.general,
        flags: flags.into(),
    };
    let memory = machine.memory.region("the memory").expect("it was added").bytes.clone();
    Ok((Box::new(registers), memory, defined))
}

/// Where two states differ.
fn difference(one: &Registers, other: &Registers, defined: u32, wide: bool) -> Option<String> {
    if (one.flags ^ other.flags) & u64::from(defined) != 0 {
        return Some(format!(
            "flags {:#x}, not {:#x}, of {defined:#x}",
            one.flags, other.flags
        ));
    }
    for r in (0..16).filter(|r| *r != 4) {
        if one.general[r] != other.general[r] {
            return Some(format!(
                "general register {r}: {:#x}, not {:#x}",
                one.general[r], other.general[r]
            ));
        }
    }
    if let Some(k) = (0..8).find(|k| wide && one.masks[*k] != other.masks[*k]) {
        return Some(format!("k{k}: {:#x}, not {:#x}", one.masks[k], other.masks[k]));
    }
    let (count, bytes) = if wide { (32, 64) } else { (16, 32) };
    for v in 0..count {
        let (a, b) = (&one.vectors[v][..bytes], &other.vectors[v][..bytes]);
        if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
            let word = |v: &[u8]| u64::from_le_bytes(v[at / 8 * 8..at / 8 * 8 + 8].try_into().expect("8 bytes"));
            return Some(format!(
                "vector {v}, byte {at}: {:#018x}, not {:#018x}",
                word(a),
                word(b)
            ));
        }
    }
    None
}

#[test]
fn instructions_compute_what_the_processor_does() {
    let features = Features::detect();
    let forms: Vec<Form> = (tlc_codegen::wide::instructions().filter(|c| !is_control(*c)))
        .map(Form::of)
        .collect();
    let lacking: Vec<&str> = forms
        .iter()
        .filter(|f| !features.have(f))
        .map(|f| f.name.as_str())
        .collect();
    if !lacking.is_empty() {
        println!(
            "SKIP {} instructions that this machine lacks, of {}: {}",
            lacking.len(),
            forms.len(),
            lacking.join(" ")
        );
    }
    let buffer = Guarded::new(BYTES, Edge::End);
    let start = buffer.start as u64;
    let mut failures: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (mut compared, mut divided, mut beyond, mut at_edge) = (0u64, 0u64, 0u64, 0u64);
    for seed in seeds(0..50) {
        let mut rng = Rng::new(seed);
        let cases: Vec<Case> = forms.iter().map(|f| case(f, &mut rng, start)).collect();
        let bytes: Vec<Vec<u8>> = cases.iter().map(|c| c.bytes.clone()).collect();
        let functions = Functions::new(&bytes, features.avx512);
        for (k, (form, case)) in forms.iter().zip(&cases).enumerate() {
            let mut fail = |what: String| failures.entry(&form.name).or_default().push(what);
            let (expected, expected_memory, defined) = match evaluate(case, start) {
                Ok(found) => found,
                Err(Fault::Division { .. }) => {
                    divided += 1;
                    continue;
                }
                // The processor would end this process.
                Err(Fault::Access { .. }) if case.at_edge => {
                    beyond += 1;
                    continue;
                }
                Err(e) => {
                    fail(e.to_string());
                    continue;
                }
            };
            if !features.have(form) {
                continue;
            }
            let mut found = case.registers.clone();
            // SAFETY: the buffer has so many bytes, and nothing else refers to it.
            let memory = unsafe {
                std::ptr::copy_nonoverlapping(case.memory.as_ptr(), start as *mut u8, BYTES);
                functions.run(k, &mut found);
                std::slice::from_raw_parts(start as *const u8, BYTES)
            };
            compared += 1;
            at_edge += u64::from(case.at_edge);
            if let Some(what) = difference(&found, &expected, defined, features.avx512) {
                fail(format!("seed {seed}: {}: the processor has {what}", case.inst));
            }
            if let Some(at) = memory.iter().zip(&expected_memory).position(|(a, b)| a != b) {
                fail(format!("seed {seed}: {}: memory differs at byte {at}", case.inst));
            }
        }
    }
    let lines: Vec<String> = failures
        .iter()
        .map(|(n, f)| format!("{n}: {} times; {}", f.len(), f[0]))
        .collect();
    println!(
        "{compared} compared, {at_edge} of them near the end of memory; {beyond} beyond it, {divided} divisions without a result"
    );
    assert!(
        failures.is_empty(),
        "{} instructions differ:\n{}",
        failures.len(),
        lines.join("\n")
    );
}
