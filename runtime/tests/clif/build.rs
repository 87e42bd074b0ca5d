//! A small kernel builder, and a way to run kernels on byte buffers.

use std::sync::Arc;

use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::settings::Configurable;
use smallvec::SmallVec;
use tlc_codegen::wide::{Extensions, Level};
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Param, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};
use tlc_runtime::cpu::jit::{self, Args, JitError, JitOptions, KernelFn, LoadedKernel};
use tlc_runtime::cpu::level;

use crate::evaluated;

/// Builds a kernel statement by statement.
#[derive(Default)]
pub struct Builder {
    pub kernel: Kernel,
    body: Vec<Stmt>,
}

impl Builder {
    pub fn param(&mut self, dtype: DType, len: impl Into<IndexExpr>, access: Access) -> Memory {
        self.kernel.params.push(Param {
            dtype,
            len: len.into(),
            access,
        });
        Memory::Param(self.kernel.params.len() as u32 - 1)
    }

    pub fn push(&mut self, stmt: Stmt) {
        self.body.push(stmt);
    }

    pub fn op(&mut self, dtype: DType, op: Op) -> ValueId {
        let value = self.kernel.new_value(dtype);
        self.push(Stmt::Let { value, op });
        value
    }

    pub fn load(&mut self, memory: Memory, index: impl Into<IndexExpr>) -> ValueId {
        self.load_masked(memory, index, None)
    }

    pub fn load_masked(&mut self, memory: Memory, index: impl Into<IndexExpr>, mask: Option<ValueId>) -> ValueId {
        let dtype = self.kernel.memory_dtype(memory);
        let index = index.into();
        self.op(dtype, Op::Load { memory, index, mask })
    }

    pub fn store(&mut self, memory: Memory, index: impl Into<IndexExpr>, value: ValueId) {
        self.store_masked(memory, index, value, None);
    }

    pub fn store_masked(&mut self, memory: Memory, index: impl Into<IndexExpr>, value: ValueId, mask: Option<ValueId>) {
        let index = index.into();
        self.push(Stmt::Store {
            memory,
            index,
            value,
            mask,
        });
    }

    pub fn map(&mut self, op: ScalarOp, operands: &[ValueId]) -> ValueId {
        let dtypes: Vec<DType> = operands.iter().map(|v| self.kernel.dtype(*v)).collect();
        let dtype = op.result_dtype(&dtypes).unwrap();
        self.op(dtype, Op::Map(op, SmallVec::from_slice(operands)))
    }

    pub fn constant(&mut self, dtype: DType, v: f64) -> ValueId {
        self.op(dtype, Op::Const(Scalar::from_f64(dtype, v)))
    }

    pub fn convert(&mut self, to: DType, v: ValueId) -> ValueId {
        self.op(to, Op::Convert(to, v))
    }

    pub fn index(&mut self, e: impl Into<IndexExpr>, to: DType) -> ValueId {
        self.op(to, Op::Index(e.into(), to))
    }

    fn nested(&mut self, f: impl FnOnce(&mut Builder)) -> Vec<Stmt> {
        let outer = std::mem::take(&mut self.body);
        f(self);
        std::mem::replace(&mut self.body, outer)
    }

    pub fn repeat(&mut self, bind: Bind, extent: impl Into<IndexExpr>, f: impl FnOnce(&mut Builder, IndexExpr)) {
        let var = self.kernel.new_var(extent.into());
        let body = self.nested(|b| f(b, var.into()));
        self.push(Stmt::Loop { var, bind, body });
    }

    pub fn when(&mut self, cond: ValueId, f: impl FnOnce(&mut Builder)) {
        let body = self.nested(f);
        self.push(Stmt::If { cond, body });
    }

    pub fn clamp(&mut self, value: ValueId, extent: impl Into<IndexExpr>) -> VarId {
        let var = self.kernel.new_var(extent.into());
        self.push(Stmt::Clamp { var, value });
        var
    }

    pub fn finish(mut self) -> Kernel {
        self.kernel.body = std::mem::take(&mut self.body);
        self.kernel
    }
}

pub fn c(k: i64) -> IndexExpr {
    IndexExpr::Const(k)
}

pub fn compile(kernel: &Kernel) -> Result<KernelFn, JitError> {
    let options = JitOptions {
        threads: 1,
        ..JitOptions::default()
    };
    Ok(jit::compile(&[kernel], &options)?.remove(0).function)
}

/// Runs a kernel over its whole range. The buffers are element-aligned only, and must have exactly the right length.
///
/// Runs the code of each of [`makers`], and that of the wide emitter on the evaluated processor, at levels too that this machine lacks; they must
/// agree bit for bit, but for which NaN it is.
pub fn run(kernel: &Kernel, buffers: &mut [Vec<u8>], symbols: &[i64]) {
    let before = buffers.to_vec();
    let mut on_silicon = Vec::new();
    for (i, maker) in makers().into_iter().enumerate() {
        let mut these = before.clone();
        let f = compile_all(&maker, &[kernel]).remove(0).function;
        run_function(&f, kernel, &mut these, symbols, None);
        for (p, (one, other)) in kernel.params.iter().zip(buffers.iter().zip(&these)).filter(|_| i > 0) {
            let (one, other) = (scalars(p.dtype, one), scalars(p.dtype, other));
            let differs = one.iter().zip(&other).position(|(a, b)| !same(*a, *b));
            assert_eq!(differs, None, "who makes the code differs\n{kernel}");
        }
        buffers.clone_from_slice(&these);
        if let Maker::Wide(level) = maker {
            on_silicon.push((level, these));
        }
    }
    for level in Level::ALL {
        // With the instruction for products of bytes or without, the bits are the same.
        let extensions = Extensions {
            dots: true,
            byte_tables: level == Level::Avx512,
        };
        let these = evaluate(kernel, (level, extensions), &before, symbols);
        for (p, (one, other)) in kernel.params.iter().zip(buffers.iter().zip(&these)) {
            let (one, other) = (scalars(p.dtype, one), scalars(p.dtype, other));
            let differs = one.iter().zip(&other).position(|(a, b)| !same(*a, *b));
            assert_eq!(differs, None, "{level:?} differs on the evaluated processor\n{kernel}");
        }
        for (_, found) in on_silicon.iter().filter(|(l, _)| *l == level) {
            assert!(
                *found == these,
                "{level:?} is not the processor's bit for bit\n{kernel}"
            );
        }
    }
}

/// What a kernel leaves in its buffers on the evaluated processor, of one with these instructions beside its level's.
pub fn evaluate(
    kernel: &Kernel,
    (level, extensions): (Level, Extensions),
    buffers: &[Vec<u8>],
    symbols: &[i64],
) -> Vec<Vec<u8>> {
    let mut these = buffers.to_vec();
    let code = evaluated::code(kernel, level, extensions).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let end = kernel.parallel_extent().eval_symbols(symbols).unwrap();
    let ran = evaluated::run(kernel, &code, &mut these, (symbols, &[(0, end)]), 1 << 28);
    ran.unwrap_or_else(|e| panic!("{level:?}: {e}\n{kernel}"));
    these
}

pub fn run_function(
    f: &KernelFn,
    kernel: &Kernel,
    buffers: &mut [Vec<u8>],
    symbols: &[i64],
    range: Option<(i64, i64)>,
) {
    assert_eq!(buffers.len(), kernel.params.len());
    // Each buffer ends where its allocation does and starts at an address that is a multiple of 8 but not of 16.
    let mut copies: Vec<(Vec<u64>, usize)> = Vec::new();
    for (p, b) in kernel.params.iter().zip(buffers.iter()) {
        let len = p.len.eval_symbols(symbols).unwrap() as usize * p.dtype.bytes();
        assert_eq!(b.len(), len, "buffer length");
        let mut copy = vec![0xa5a5_a5a5_a5a5_a5a5u64; len.div_ceil(8) + 4];
        let skip = if (copy.as_ptr() as usize).is_multiple_of(16) {
            1
        } else {
            2
        };
        // SAFETY: the destination has `len + 8` bytes behind `skip`.
        unsafe { std::ptr::copy_nonoverlapping(b.as_ptr(), copy.as_mut_ptr().add(skip).cast(), len) };
        copies.push((copy, skip));
    }
    // SAFETY: `skip` is inside the allocation.
    let pointers: Vec<*mut u8> = copies
        .iter_mut()
        .map(|(copy, skip)| unsafe { copy.as_mut_ptr().add(*skip).cast() })
        .collect();
    let scratch_bytes = kernel.cache_scratch_bytes().eval_symbols(symbols).unwrap() as usize;
    let mut scratch = vec![0u8; scratch_bytes + 64];
    let start = scratch.as_ptr().align_offset(64);
    let args = Args {
        buffers: pointers.as_ptr(),
        symbols: symbols.as_ptr(),
        scratch: scratch[start..].as_mut_ptr(),
    };
    let end = kernel.parallel_extent().eval_symbols(symbols).unwrap();
    let (begin, end) = range.unwrap_or((0, end));
    // SAFETY: the buffers have the lengths that the kernel states; nothing else uses them.
    unsafe { f.call(&args, begin, end) };
    for ((copy, skip), b) in copies.iter().zip(buffers.iter_mut()) {
        let bytes: Vec<u8> = copy.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let (before, rest) = bytes.split_at(skip * 8);
        let (inside, after) = rest.split_at(b.len());
        assert!(
            before.iter().chain(after).all(|x| *x == 0xa5),
            "the kernel wrote outside a buffer"
        );
        b.copy_from_slice(inside);
    }
}

/// Who makes code of kernels that all can take.
pub enum Maker {
    /// The portable emitter, for a processor of which this machine has all instructions.
    Portable(Arc<dyn TargetIsa>),
    /// The wide emitter at a level of this machine.
    Wide(Level),
    /// The same, with the instructions of the level alone.
    Level(Level),
}

/// This machine's code generators and, on x86-64, one for processors with 128-bit vectors only and one for the oldest.
pub fn makers() -> Vec<Maker> {
    let mut all = vec![Maker::Portable(jit::host_isa().unwrap())];
    all.extend(level::all().iter().map(|level| Maker::Wide(*level)));
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        for features in [
            &["has_cmpxchg16b", "has_sse3", "has_ssse3", "has_sse41", "has_sse42"][..],
            &[],
        ] {
            let mut builder = cranelift_codegen::isa::lookup_by_name("x86_64-unknown-linux-gnu").unwrap();
            for f in features {
                builder.enable(f).unwrap();
            }
            let isa = builder.finish(tlc_codegen::clif::flags(true)).unwrap();
            all.push(Maker::Portable(isa));
        }
    }
    all
}

/// Compiles kernels.
pub fn compile_all(maker: &Maker, kernels: &[&Kernel]) -> Vec<LoadedKernel> {
    let options = JitOptions::default();
    match maker {
        // SAFETY: `makers` makes code for this machine or for the baseline that every x86-64 has.
        Maker::Portable(isa) => unsafe { jit::compile_with_isa(isa.clone(), kernels, &options) },
        Maker::Wide(level) => jit::compile_wide(*level, kernels, &options),
        Maker::Level(level) => {
            let level_alone = true;
            jit::compile_wide(*level, kernels, &JitOptions { level_alone, ..options })
        }
    }
    .unwrap()
}

/// Little-endian bytes of scalars.
pub fn bytes(values: &[Scalar]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|s| s.bits().to_le_bytes()[..s.dtype().bytes()].to_vec())
        .collect()
}

/// Scalars from bytes.
pub fn scalars(dtype: DType, bytes: &[u8]) -> Vec<Scalar> {
    bytes
        .chunks_exact(dtype.bytes())
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            Scalar::from_bits(dtype, u64::from_le_bytes(word))
        })
        .collect()
}

pub fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]))
        .collect()
}

pub fn i64_bytes(values: impl IntoIterator<Item = i64>) -> Vec<u8> {
    values.into_iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn i64s(bytes: &[u8]) -> Vec<i64> {
    scalars(DType::I64, bytes).iter().map(|s| s.as_i64()).collect()
}

/// A small xorshift generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Values at which operations go wrong.
pub fn edges(dtype: DType) -> Vec<Scalar> {
    let f = |v: f64| Scalar::from_f64(dtype, v);
    if dtype == DType::Bool {
        return vec![Scalar::from_bool(false), Scalar::from_bool(true)];
    }
    if dtype.is_float() {
        let top = |k| dtype.bits() - k;
        let mut all: Vec<Scalar> = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -2.5,
            3.0,
            0.1,
            127.5,
            -128.6,
            255.9,
            32768.0,
            65504.0,
            65520.0,
            2147483647.0,
            -2147483649.0,
            4294967296.0,
            9223372036854775807.0,
            -9.3e18,
            1.8446744073709552e19,
            1e-30,
            6e-8,
            3e-5,
            1e30,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ]
        .map(f)
        .to_vec();
        // The smallest denormal, a signaling NaN pattern, the largest finite number.
        all.push(Scalar::from_bits(dtype, 1));
        all.push(Scalar::from_bits(dtype, f(f64::INFINITY).bits() | 1 | 1u64 << top(1)));
        all.push(Scalar::from_bits(dtype, f(f64::INFINITY).bits() - 1));
        return all;
    }
    let mut all: Vec<Scalar> = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 100, -1, -2, -7, -64]
        .map(|v| Scalar::from_i64(dtype, v))
        .to_vec();
    all.extend([dtype.lowest(), dtype.highest()]);
    let one = Scalar::from_i64(dtype, 1);
    all.push(ScalarOp::Add.eval(&[dtype.lowest(), one]));
    all.push(ScalarOp::Sub.eval(&[dtype.highest(), one]));
    all.push(Scalar::from_i64(dtype, 0x5555_5555_5555_5555));
    all.push(Scalar::from_i64(dtype, 1 << 24 | 1));
    all.push(Scalar::from_i64(dtype, (1 << 53) + 1));
    all
}

/// An edge value, random bits or a moderate number.
pub fn random_scalar(rng: &mut Rng, dtype: DType, edges: &[Scalar]) -> Scalar {
    match rng.below(3) {
        0 => edges[rng.below(edges.len())],
        1 => Scalar::from_bits(
            dtype,
            if dtype == DType::Bool {
                rng.next() & 1
            } else {
                rng.next()
            },
        ),
        _ if dtype.is_float() => Scalar::from_f64(dtype, rng.float() as f64 * 8.0),
        _ => Scalar::from_i64(dtype, rng.below(40) as i64 - 20),
    }
}

/// Equal bits, or both NaN.
pub fn same(a: Scalar, b: Scalar) -> bool {
    a == b || a.is_nan() && b.is_nan()
}
