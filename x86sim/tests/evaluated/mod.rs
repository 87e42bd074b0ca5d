//! Kernels on the evaluated processor: every parameter lies alone and is as long as the kernel says, what is read may not be written, and what
//! is only written holds nothing before.

use tlc_codegen::clif::EmitText;
use tlc_codegen::code::{CompiledCode, RelocKind};
use tlc_codegen::wide::{Extensions, Generator, Level};
use tlc_codegen::{CodeGenerator, CodegenError, RuntimeFunction};
use tlc_ir::kernel::{Access, Kernel};
use tlc_ir::{DType, Scalar, ScalarOp};
use tlc_x86sim::{Code, Counts, Fault, HostFunction, Machine, Memory, Permission, Region, State, Vector, iced_x86};

/// Where code is loaded.
pub const CODE: u64 = 0x40_0000;
/// Where the tables of the calling convention are.
const TABLES: u64 = 0x1000_0000;
/// Where parameters begin: each has 16 GiB of its own.
const BUFFERS: u64 = 0x4000_0000_0000;
const APART: u64 = 1 << 34;
const SCRATCH: u64 = 0x2000_0000_0000;
/// Where host functions are said to be.
const HOSTS: u64 = 0x6000_0000_0000;

/// The code of a kernel for a processor with these instructions beside its level's.
///
/// # Errors
/// That the emitter lacks something.
pub fn code(kernel: &Kernel, level: Level, extensions: Extensions) -> Result<CompiledCode, CodegenError> {
    Generator::new(level, EmitText::default())
        .with_extensions(extensions)
        .emit(kernel)
}

/// What ran.
#[allow(dead_code, reason = "not every test that includes this asks for it")]
pub struct Ran {
    /// How much.
    pub counts: Counts,
    /// Each instruction that did, once, in the order of their addresses.
    pub instructions: Vec<iced_x86::Instruction>,
}

/// Runs code over parts of the kernel's range, one after another, of at most so many instructions, and puts what it wrote into the buffers.
///
/// # Errors
/// [`Fault`].
pub fn run(
    kernel: &Kernel,
    code: &CompiledCode,
    buffers: &mut [Vec<u8>],
    (symbols, parts): (&[i64], &[(i64, i64)]),
    limit: u64,
) -> Result<Ran, Fault> {
    let functions = RuntimeFunction::all();
    let mut bytes = code.bytes.clone();
    let mut hosts = Vec::new();
    for reloc in &code.relocs {
        assert_eq!(
            reloc.kind,
            RelocKind::Absolute8,
            "the only kind that the wide emitter writes"
        );
        let number = functions.iter().position(|f| *f == reloc.target).expect("a function");
        let address = HOSTS + 16 * number as u64;
        let at = reloc.offset as usize;
        bytes[at..at + 8].copy_from_slice(&address.wrapping_add_signed(reloc.addend).to_le_bytes());
        hosts.push((address, reloc.target));
    }
    let mut machine = Machine::new(Code { base: CODE, bytes }, limit).expect("places for code and stack");
    for (address, function) in hosts {
        machine.host(address, host(function));
    }
    let mut add = |region: Region| machine.memory.add(region).expect("places apart");
    let mut addresses = Vec::new();
    for (number, (param, bytes)) in kernel.params.iter().zip(buffers.iter()).enumerate() {
        // Aligned to an element and no more.
        let base = BUFFERS + number as u64 * APART + (param.dtype.bytes() * (1 + 2 * number)) as u64;
        addresses.extend(base.to_le_bytes());
        let permission = match param.access {
            Access::Read => Permission::Read,
            Access::Write => Permission::Write,
            Access::ReadWrite => Permission::ReadWrite,
        };
        add(Region::new(
            format!("parameter {number}"),
            base,
            bytes.clone(),
            permission,
        ));
    }
    let symbols_bytes = symbols.iter().flat_map(|s| s.to_le_bytes()).collect();
    let scratch = kernel.cache_scratch_bytes().eval_symbols(symbols).expect("a size") as usize;
    let tables = [TABLES + 0x10_0000, TABLES + 0x20_0000, SCRATCH];
    let arguments = tables.iter().flat_map(|a| a.to_le_bytes()).collect();
    add(Region::new("the arguments", TABLES, arguments, Permission::Read));
    add(Region::new(
        "the table of buffers",
        tables[0],
        addresses,
        Permission::Read,
    ));
    add(Region::new("the symbols", tables[1], symbols_bytes, Permission::Read));
    add(Region::new("the scratch", SCRATCH, vec![0; scratch], Permission::Write));
    for (begin, end) in parts {
        machine.call(CODE, &[TABLES, *begin as u64, *end as u64])?;
    }
    for (number, bytes) in buffers.iter_mut().enumerate() {
        let region = machine.memory.region(&format!("parameter {number}"));
        bytes.clone_from(&region.expect("it was added").bytes);
    }
    Ok(Ran {
        counts: machine.counts(),
        instructions: machine.executed().copied().collect(),
    })
}

fn low(v: &Vector) -> u64 {
    u64::from_le_bytes(v.0[..8].try_into().expect("8 bytes"))
}

/// What the host does for a function.
fn host(function: RuntimeFunction) -> HostFunction<'static> {
    match function {
        RuntimeFunction::Map(op, dtype) => Box::new(move |state: &mut State, _: &mut Memory| {
            let bits = [0, 1, 2].map(|i| low(&state.vectors[i]));
            let result = mapped(op, dtype, bits);
            state.vectors[0].0[..8].copy_from_slice(&result.to_le_bytes());
            Ok(())
        }),
        RuntimeFunction::Convert(from, to) => Box::new(move |state: &mut State, _: &mut Memory| {
            let converted = match from {
                DType::F64 => Scalar::from_f64(to, f64::from_bits(low(&state.vectors[0]))),
                DType::I64 => Scalar::from_i64(to, state.general[7] as i64),
                _ => Scalar::from_u64(to, state.general[7]),
            };
            // The result is the low half; the other means nothing.
            state.general[0] = 0xdead_beef << 32 | converted.bits();
            Ok(())
        }),
        RuntimeFunction::Copy {
            element, transposed, ..
        } => Box::new(move |state: &mut State, memory: &mut Memory| {
            let [to, to_pitch, from, from_pitch, rows, columns] = [7, 6, 2, 1, 8, 9].map(|r| state.general[r] as i64);
            copy(
                (to, to_pitch),
                (from, from_pitch),
                (rows, columns),
                (element.into(), transposed),
                memory,
            )
        }),
    }
}

/// An operation on f32 or f64, as the runtime has it.
fn mapped(op: ScalarOp, dtype: DType, bits: [u64; 3]) -> u64 {
    let arity = op.arity();
    match dtype {
        DType::F32 => {
            let x = bits.map(|b| f32::from_bits(b as u32));
            let result = match op {
                ScalarOp::Fma => x[0].mul_add(x[1], x[2]),
                _ => {
                    let mut wide = x.map(f64::from);
                    wide[arity..].fill(0.0);
                    op.eval_f64(&wide) as f32
                }
            };
            result.to_bits().into()
        }
        _ => {
            let mut x = bits.map(f64::from_bits);
            x[arity..].fill(0.0);
            op.eval_f64(&x).to_bits()
        }
    }
}

fn copy(
    (to, to_pitch): (i64, i64),
    (from, from_pitch): (i64, i64),
    (rows, columns): (i64, i64),
    (element, transposed): (i64, bool),
    memory: &mut Memory,
) -> Result<(), String> {
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..element as usize];
    for r in 0..rows {
        for c in 0..columns {
            let source = match transposed {
                true => from + c * from_pitch + r * element,
                false => from + r * from_pitch + c * element,
            };
            memory
                .read(source as u64, bytes)
                .map_err(|e| format!("a copy at {source:#x}: {e}"))?;
            let target = to + r * to_pitch + c * element;
            memory
                .write(target as u64, bytes)
                .map_err(|e| format!("a copy to {target:#x}: {e}"))?;
        }
    }
    Ok(())
}
