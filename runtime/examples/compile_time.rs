//! Compiles an elementwise kernel of 20 operations, unrolled 4 times over 4 lanes, and prints how long the stages take,
//! for several Cranelift settings. With argument `run`: how fast such kernels run in the first-level cache. With argument
//! `disasm [N]`: the code of one with N operations (3: `c = relu(a * b + 1)`).

use std::time::Instant;

use cranelift_codegen::settings::Configurable;
use smallvec::smallvec;
use tlc_codegen::clif::{self, Compiler, EmitText};
use tlc_ir::index::{IndexExpr, SymId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Param, Stmt};
use tlc_ir::{DType, Scalar, ScalarOp};
use tlc_runtime::cpu::jit::{self, Args, JitOptions};

/// `out = relu(a * b + 1 ...)` with `ops` operations, over `s0` blocks of 16 elements.
fn elementwise(ops: usize) -> Kernel {
    let mut k = Kernel {
        symbols: vec![(1, 1 << 40)],
        ..Kernel::default()
    };
    let blocks = IndexExpr::from(SymId(0));
    for access in [Access::Read, Access::Read, Access::Write] {
        k.params.push(Param {
            dtype: DType::F32,
            len: blocks.clone() * IndexExpr::from(16),
            access,
        });
    }
    let outer = k.new_var(blocks);
    let unroll = k.new_var(IndexExpr::from(4));
    let lane = k.new_var(IndexExpr::from(4));
    let index =
        IndexExpr::from(outer) * IndexExpr::from(16) + IndexExpr::from(unroll) * IndexExpr::from(4) + lane.into();
    let mut body = Vec::new();
    let mut emit = |k: &mut Kernel, op: Op| {
        let value = k.new_value(DType::F32);
        body.push(Stmt::Let { value, op });
        value
    };
    let load = |p| Op::Load {
        memory: Memory::Param(p),
        index: index.clone(),
        mask: None,
    };
    let (a, b) = (emit(&mut k, load(0)), emit(&mut k, load(1)));
    let mut v = emit(&mut k, Op::Map(ScalarOp::Mul, smallvec![a, b]));
    for i in 1..ops - 1 {
        let c = emit(&mut k, Op::Const(Scalar::from_f64(DType::F32, i as f64 * 0.25 + 1.0)));
        let op = [ScalarOp::Add, ScalarOp::Mul, ScalarOp::Sub][(i - 1) % 3];
        v = emit(&mut k, Op::Map(op, smallvec![v, if i % 4 == 3 { a } else { c }]));
    }
    let zero = emit(&mut k, Op::Const(DType::F32.zero()));
    v = emit(&mut k, Op::Map(ScalarOp::Max, smallvec![v, zero]));
    body.push(Stmt::Store {
        memory: Memory::Param(2),
        index,
        value: v,
        mask: None,
    });
    for (var, bind) in [(lane, Bind::Lanes), (unroll, Bind::Unroll), (outer, Bind::Parallel)] {
        body = vec![Stmt::Loop { var, bind, body }];
    }
    k.body = body;
    k
}

/// The lower decile of 200 runs in microseconds: on a busy machine the median measures the others.
fn decile(mut f: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// Nanoseconds for a vector of 4 elements when everything is in the first-level cache.
fn run_in_l1() -> Result<(), Box<dyn std::error::Error>> {
    const BLOCKS: usize = 128;
    for ops in [3, 10, 20] {
        let kernel = elementwise(ops);
        let function = jit::compile(&[&kernel], &JitOptions::default())?.remove(0).function;
        let mut buffers = vec![vec![1.0f32; BLOCKS * 16]; 3];
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr().cast()).collect();
        let symbols = [BLOCKS as i64];
        let args = Args {
            buffers: pointers.as_ptr(),
            symbols: symbols.as_ptr(),
            scratch: std::ptr::null_mut(),
        };
        let mut best = f64::INFINITY;
        for _ in 0..200 {
            let start = Instant::now();
            for _ in 0..100 {
                // SAFETY: three buffers of 16 * BLOCKS elements, as the kernel states; no scratch.
                unsafe { function.call(&args, 0, BLOCKS as i64) };
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!(
            "{ops} operations: {:.3} ns a vector",
            best * 1e9 / (100 * BLOCKS * 4) as f64
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("disasm") {
        let text = EmitText {
            listing: true,
            disasm: true,
        };
        let ops = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(3);
        let compiled = jit::compile(
            &[&elementwise(ops)],
            &JitOptions {
                threads: 1,
                text,
                ..JitOptions::default()
            },
        )?;
        println!("{}", compiled[0].listing.as_deref().unwrap_or_default());
        println!("{}", compiled[0].disasm.as_deref().unwrap_or_default());
        return Ok(());
    }
    if std::env::args().nth(1).as_deref() == Some("run") {
        return run_in_l1();
    }
    let kernel = elementwise(20);
    let mut compiler = Compiler::new();
    for (opt_level, regalloc, verifier) in [
        ("speed", "backtracking", "false"),
        ("none", "backtracking", "false"),
        ("speed_and_size", "backtracking", "false"),
        ("speed", "single_pass", "false"),
        ("none", "single_pass", "false"),
        ("speed", "backtracking", "true"),
    ] {
        let mut flags = cranelift_codegen::settings::builder();
        for (name, value) in [
            ("opt_level", opt_level),
            ("regalloc_algorithm", regalloc),
            ("enable_verifier", verifier),
            ("enable_probestack", "false"),
            ("unwind_info", "false"),
            ("enable_alias_analysis", "true"),
        ] {
            flags.set(name, value)?;
        }
        let isa = cranelift_native::builder()?.finish(cranelift_codegen::settings::Flags::new(flags))?;
        let translate = decile(|| {
            let _ = compiler.translate(&kernel, &*isa);
        });
        let compile = decile(|| {
            let _ = compiler.compile(&kernel, &*isa, EmitText::default());
        });
        let bytes = clif::compile(&kernel, &*isa, EmitText::default())?.bytes.len();
        println!(
            "opt {opt_level:14} regalloc {regalloc:12} verifier {verifier:5}: translate {translate:6.1} us, in all {compile:6.1} us, {bytes} bytes"
        );
    }
    let whole = decile(|| {
        let _ = jit::compile(
            &[&kernel],
            &JitOptions {
                threads: 1,
                ..JitOptions::default()
            },
        );
    });
    println!("compile, load and drop a batch of one: {whole:.1} us");
    Ok(())
}
