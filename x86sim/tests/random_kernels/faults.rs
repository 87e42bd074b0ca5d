//! Wrong code: instructions of random kernels are changed as an emitter with a mistake would have written them, and it has to show.

use std::collections::BTreeMap;

use tlc_codegen::wide::{Extensions, Level};
use tlc_ir::rng::Rng;
use tlc_x86sim::Fault;
use tlc_x86sim::iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic as M, OpKind, Register};

use crate::evaluated::{self, CODE};
use crate::graphs::calls;
use crate::scalars;

/// A mistake: changes the bytes of an instruction, if it is one where it can be made.
struct Mistake {
    name: &'static str,
    make: fn(&Instruction, &mut [u8]) -> bool,
    /// How many of a hundred have to show at least. Some change nothing that matters, as a mask of lanes that all run.
    least: usize,
}

fn is_evex(bytes: &[u8]) -> bool {
    bytes[0] == 0x62
}

fn has_memory(inst: &Instruction) -> bool {
    inst.op_kinds().any(|k| k == OpKind::Memory)
}

fn is_move(inst: &Instruction) -> bool {
    matches!(
        inst.mnemonic(),
        M::Vmovdqu8 | M::Vmovdqu16 | M::Vmovdqu32 | M::Vmovdqu64 | M::Vmovdqu
    )
}

/// Whether it would be another instruction without its mask, or none.
fn needs_mask(inst: &Instruction) -> bool {
    matches!(
        inst.mnemonic(),
        M::Vgatherdps | M::Vgatherdpd | M::Vscatterdps | M::Vscatterdpd
    )
}

/// The place of the opcode of a vector instruction.
fn opcode(bytes: &[u8]) -> Option<usize> {
    match bytes[0] {
        0x62 => Some(4),
        0xc4 => Some(3),
        0xc5 => Some(2),
        _ => None,
    }
}

fn flip(bytes: &mut [u8], at: Option<usize>, bits: u8) -> bool {
    match at {
        Some(at) => {
            bytes[at] ^= bits;
            true
        }
        None => false,
    }
}

const MISTAKES: [Mistake; 12] = [
    Mistake {
        name: "a mask dropped",
        make: |inst, bytes| {
            let made = is_evex(bytes) && inst.op_mask() != Register::None && !needs_mask(inst);
            if made {
                bytes[3] &= 0x78;
            }
            made
        },
        least: 40,
    },
    Mistake {
        name: "a mask of signs dropped",
        make: |inst, bytes| {
            if !matches!(inst.mnemonic(), M::Vpmaskmovd | M::Vpmaskmovq) || bytes[0] != 0xc4 {
                return false;
            }
            // As `vmovdqu`.
            bytes[1] = bytes[1] & 0xe0 | 1;
            bytes[2] = bytes[2] & 4 | 0x78 | 2;
            bytes[3] = if bytes[3] == 0x8c { 0x6f } else { 0x7f };
            true
        },
        least: 30,
    },
    Mistake {
        name: "a displacement off by one vector",
        make: |inst, bytes| {
            let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
            let decoded = decoder.decode();
            let places = decoder.get_constant_offsets(&decoded);
            let at = places.displacement_offset();
            if !is_move(inst) || inst.memory_base() == Register::RIP || inst.memory_base() == Register::RSP {
                return false;
            }
            match (places.displacement_size(), is_evex(bytes)) {
                (1, true) => bytes[at] = bytes[at].wrapping_add(1),
                (1, false) => bytes[at] = bytes[at].wrapping_add(32),
                _ => return false,
            }
            true
        },
        least: 80,
    },
    Mistake {
        name: "64 bytes where 32 are",
        make: |inst, bytes| {
            let made = is_evex(bytes) && is_move(inst) && has_memory(inst) && bytes[3] >> 5 & 3 == 1;
            made && inst.op_mask() == Register::None && flip(bytes, Some(3), 0x60)
        },
        least: 50,
    },
    Mistake {
        name: "another rounding",
        make: |inst, bytes| {
            let rounds = [M::Vrndscaleps, M::Vrndscalepd, M::Vroundps, M::Vroundpd];
            let last = bytes.len() - 1;
            rounds.contains(&inst.mnemonic()) && flip(bytes, Some(last), 1)
        },
        // An exponent may be rounded either way, if what is left over is taken care of.
        least: 20,
    },
    Mistake {
        name: "operands of a multiply-add swapped",
        make: |inst, bytes| {
            let fused = [M::Vfmadd213ps, M::Vfmadd213pd, M::Vfmadd231ps, M::Vfmadd231pd];
            let at = opcode(bytes);
            fused.contains(&inst.mnemonic()) && flip(bytes, at, 0x10)
        },
        least: 50,
    },
    Mistake {
        name: "a comparison with the other kind of sign",
        make: |inst, bytes| {
            let of_signs = [
                M::Vpcmpb,
                M::Vpcmpw,
                M::Vpcmpd,
                M::Vpcmpq,
                M::Vpcmpub,
                M::Vpcmpuw,
                M::Vpcmpud,
                M::Vpcmpuq,
            ];
            of_signs.contains(&inst.mnemonic()) && flip(bytes, Some(4), 1)
        },
        least: 4,
    },
    Mistake {
        name: "another predicate",
        make: |inst, bytes| {
            let last = bytes.len() - 1;
            // Less or equal for less.
            let made = [M::Vcmpps, M::Vcmppd].contains(&inst.mnemonic()) && [1, 2, 0x11, 0x12].contains(&bytes[last]);
            made && flip(bytes, Some(last), 3)
        },
        least: 4,
    },
    Mistake {
        name: "zeros for signs",
        make: |inst, bytes| {
            let extends = [
                M::Vpmovsxbw,
                M::Vpmovsxbd,
                M::Vpmovsxbq,
                M::Vpmovsxwd,
                M::Vpmovsxwq,
                M::Vpmovsxdq,
            ];
            let at = opcode(bytes);
            extends.contains(&inst.mnemonic()) && flip(bytes, at, 0x10)
        },
        least: 10,
    },
    Mistake {
        name: "one iteration more",
        make: |inst, bytes| match inst.code() {
            // `jle` for `jl`, which a loop's end is.
            Code::Jl_rel32_64 if inst.near_branch64() < inst.ip() => flip(bytes, Some(1), 2),
            _ => false,
        },
        least: 60,
    },
    Mistake {
        name: "a register not given back",
        make: |inst, bytes| match (inst.code(), inst.op_register(0)) {
            // `pop rcx`.
            (Code::Pop_r64, Register::RBX) => flip(bytes, Some(0), 2),
            _ => false,
        },
        least: 90,
    },
    Mistake {
        name: "upper halves not emptied",
        make: |inst, bytes| {
            let made = inst.mnemonic() == M::Vzeroupper;
            if made {
                // `mov rax, rax`.
                bytes.copy_from_slice(&[0x48, 0x89, 0xc0]);
            }
            made
        },
        least: 80,
    },
];

#[test]
fn mistakes_show() {
    let mut found: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for seed in 0..250 {
        for level in Level::ALL {
            let calls = calls(seed, level).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let mut rng = Rng::new(seed);
            for call in &calls {
                let code = evaluated::code(&call.kernel, level, Extensions::default())
                    .unwrap_or_else(|e| panic!("{e}\n{}", call.kernel));
                let parts = call.parts(&mut rng);
                let mut right = call.buffers();
                let ran = evaluated::run(&call.kernel, &code, &mut right, (&call.symbols, &parts), crate::LIMIT);
                let ran = ran.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", call.kernel));
                for mistake in &MISTAKES {
                    let mut made: Vec<Vec<u8>> = Vec::new();
                    for inst in &ran.instructions {
                        let at = (inst.ip() - CODE) as usize;
                        let mut bytes = code.bytes.clone();
                        if (mistake.make)(inst, &mut bytes[at..at + inst.len()]) {
                            made.push(bytes);
                        }
                    }
                    if made.is_empty() {
                        continue;
                    }
                    let mut wrong = code.clone();
                    wrong.bytes = made.swap_remove(rng.below(made.len()));
                    let mut results = call.buffers();
                    let limit = 100 + 4 * ran.counts.instructions;
                    let ran = evaluated::run(&call.kernel, &wrong, &mut results, (&call.symbols, &parts), limit);
                    let shows = match ran {
                        Err(Fault::Unknown { text, .. }) => {
                            panic!("{}: makes {text}, which is not known", mistake.name)
                        }
                        Err(_) => true,
                        Ok(_) => call
                            .kernel
                            .params
                            .iter()
                            .zip(right.iter().zip(&results))
                            .any(|(p, (a, b))| {
                                let (a, b) = (scalars(p.dtype, a), scalars(p.dtype, b));
                                (0..a.len()).any(|i| {
                                    let (a, b) = (a.get(i), b.get(i));
                                    a != b && !(a.is_nan() && b.is_nan())
                                })
                            }),
                    };
                    let entry = found.entry(mistake.name).or_default();
                    entry.0 += usize::from(shows);
                    entry.1 += 1;
                }
            }
        }
    }
    for mistake in &MISTAKES {
        let (shown, made) = found.get(mistake.name).copied().unwrap_or_default();
        println!("{}: {shown} of {made} show", mistake.name);
        assert!(made > 0, "{} was never made", mistake.name);
        assert!(
            100 * shown >= mistake.least * made,
            "{}: {shown} of {made} show",
            mistake.name
        );
    }
}
