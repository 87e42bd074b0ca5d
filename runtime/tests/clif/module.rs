//! Batches of code: memory, errors, threads, text.

use tlc_codegen::CodegenError;
use tlc_codegen::clif::EmitText;
use tlc_ir::index::{IndexExpr, SymId, VarId};
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::target::EmitterId;
use tlc_ir::{DType, ScalarOp};
use tlc_runtime::cpu::jit::{self, Ahead, JitError, JitOptions};

use crate::build::*;

/// `y = f(x * k)` in blocks of `unroll` vectors of 4.
fn scale(k: f64, unroll: i64, op: Option<ScalarOp>) -> Kernel {
    let mut b = Builder::default();
    b.kernel.symbols.push((0, 1 << 40));
    let len = IndexExpr::from(SymId(0)) * c(4 * unroll);
    let x = b.param(DType::F32, len.clone(), Access::Read);
    let y = b.param(DType::F32, len, Access::Write);
    b.repeat(Bind::Parallel, IndexExpr::from(SymId(0)), |b, i| {
        b.repeat(Bind::Unroll, c(unroll), |b, u| {
            b.repeat(Bind::Lanes, c(4), |b, l| {
                let at = i * c(4 * unroll) + u * c(4) + l;
                let v = b.load(x, at.clone());
                let k = b.constant(DType::F32, k);
                let mut v = b.map(ScalarOp::Mul, &[v, k]);
                if let Some(op) = op {
                    v = b.map(op, &[v]);
                }
                b.store(y, at, v);
            });
        });
    });
    b.finish()
}

#[test]
fn equal_kernels_are_one_function_and_threads_do_not_matter() {
    let kernels: Vec<Kernel> = (0..12).map(|i| scale((i % 4) as f64, 4, None)).collect();
    let refs: Vec<&Kernel> = kernels.iter().collect();
    let mut texts = Vec::new();
    for threads in [1, 3] {
        let text = EmitText {
            listing: true,
            disasm: true,
        };
        let all = jit::compile(
            &refs,
            &JitOptions {
                threads,
                text,
                ..JitOptions::default()
            },
        )
        .unwrap();
        for (i, f) in all.iter().enumerate() {
            assert_eq!(f.function.address(), all[i % 4].function.address());
            let mut buffers = [f32_bytes((0..32).map(|v| v as f32)), vec![0; 128]];
            run_function(&f.function, &kernels[i], &mut buffers, &[2], None);
            assert_eq!(f32s(&buffers[1])[31], 31.0 * (i % 4) as f32);
        }
        texts.push(
            all.iter()
                .map(|f| (f.listing.clone(), f.disasm.clone()))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0][0].1.is_some());
}

/// Code that was begun while kernels were still decided on is that of the batch: of some of its kernels, of others, and of none.
#[test]
fn code_may_be_begun_before_it_is_known_what_is_loaded() {
    let kernels: Vec<Kernel> = (0..12).map(|i| scale((i % 6) as f64, 4, None)).collect();
    let emitter = EmitterId::default();
    let wanted: Vec<(&Kernel, EmitterId)> = kernels.iter().map(|k| (k, emitter)).collect();
    for (threads, begun) in [(1, 0), (2, 0), (2, 1), (2, 9), (4, 4), (4, 12)] {
        let ahead = Ahead::new(threads);
        assert_eq!(ahead.is_some(), threads > 1);
        if let Some(ahead) = &ahead {
            kernels[..begun].iter().for_each(|k| ahead.begin(k, emitter));
            // Decided, and then not needed.
            ahead.begin(&scale(100.0, 1, None), emitter);
        }
        let options = JitOptions {
            threads,
            ..JitOptions::default()
        };
        let all = jit::compile_with(ahead, &wanted, &options).unwrap();
        for (i, f) in all.iter().enumerate() {
            assert_eq!(f.function.address(), all[i % 6].function.address());
            let mut buffers = [f32_bytes((0..32).map(|v| v as f32)), vec![0; 128]];
            run_function(&f.function, &kernels[i], &mut buffers, &[2], None);
            assert_eq!(f32s(&buffers[1])[31], 31.0 * (i % 6) as f32);
        }
    }
    // A graph that fails to compile leaves what was begun.
    let ahead = Ahead::new(3).unwrap();
    kernels.iter().for_each(|k| ahead.begin(k, emitter));
}

#[test]
fn functions_outlive_their_batch_and_run_on_other_threads() {
    let (a, b) = (scale(2.0, 1, None), scale(3.0, 1, Some(ScalarOp::Sin)));
    let mut all = jit::compile(&[&a, &b], &JitOptions::default()).unwrap();
    let second = all.pop().unwrap().function;
    drop(all);
    let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..3)
            .map(|t| {
                let (f, b) = (second.clone(), &b);
                scope.spawn(move || {
                    let mut buffers = [f32_bytes([t as f32; 4]), vec![0; 16]];
                    run_function(&f, b, &mut buffers, &[1], None);
                    f32s(&buffers[1])
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    for (t, found) in results.iter().enumerate() {
        let expected = ScalarOp::Sin.eval_f64(&[3.0 * t as f64, 0.0, 0.0]) as f32;
        assert_eq!(found[0], expected);
    }
}

fn error_of(kernel: &Kernel) -> CodegenError {
    let good = scale(1.0, 1, None);
    match jit::compile(&[&good, kernel], &JitOptions::default()) {
        Err(JitError::Kernel { kernel: 1, source }) => source,
        other => panic!("expected an error of kernel 1, found {other:?}"),
    }
}

fn unsupported(kernel: &Kernel, what: &str) {
    let error = error_of(kernel);
    assert!(
        matches!(&error, CodegenError::Unsupported { what: w } if w.contains(what)),
        "{error}"
    );
}

fn invalid(kernel: &Kernel, what: &str) {
    let error = error_of(kernel);
    assert!(
        matches!(&error, CodegenError::Invalid { what: w } if w.contains(what)),
        "{error}"
    );
}

#[test]
fn what_is_not_supported_is_an_error() {
    let mut b = Builder::default();
    b.push(Stmt::Barrier);
    unsupported(&b.finish(), "barrier");

    for bind in [Bind::Block, Bind::Thread] {
        let mut b = Builder::default();
        b.repeat(bind, c(4), |_, _| {});
        unsupported(&b.finish(), bind.name());
    }

    let mut b = Builder::default();
    b.kernel.new_scratch(DType::F32, c(4), Scope::Shared);
    unsupported(&b.finish(), "shared");

    let mut b = Builder::default();
    b.repeat(Bind::Lanes, c(4), |b, _| b.repeat(Bind::Lanes, c(4), |_, _| {}));
    unsupported(&b.finish(), "nested lanes");

    let mut b = Builder::default();
    b.repeat(Bind::Lanes, c(65), |_, _| {});
    unsupported(&b.finish(), "65");

    let mut b = Builder::default();
    let r = b.kernel.new_scratch(DType::F32, c(4), Scope::Register);
    b.repeat(Bind::Serial, c(4), |b, i| {
        b.load(r, i);
    });
    unsupported(&b.finish(), "register index");

    let mut b = Builder::default();
    b.repeat(Bind::Unroll, c(1_000_000_000), |b, _| {
        b.constant(DType::F32, 1.0);
    });
    assert!(matches!(error_of(&b.finish()), CodegenError::TooLarge { .. }));
}

#[test]
fn what_breaks_the_language_is_an_error() {
    let mut b = Builder::default();
    let y = b.param(DType::F32, c(4), Access::Write);
    b.kernel.values.push(DType::F32);
    b.store(y, c(0), ValueId(0));
    invalid(&b.finish(), "before its definition");

    let mut b = Builder::default();
    let x = b.param(DType::F32, c(4), Access::Read);
    b.repeat(Bind::Serial, c(4), |_, _| {});
    b.load(x, VarId(0));
    // A loop variable of a finished loop is stale, one that never was bound is an error.
    let mut k = b.finish();
    k.body.remove(0);
    invalid(&k, "outside its loop");

    let mut b = Builder::default();
    b.repeat(Bind::Serial, c(4), |b, _| b.repeat(Bind::Parallel, c(4), |_, _| {}));
    invalid(&b.finish(), "parallel");

    let mut b = Builder::default();
    let r = b.kernel.new_scratch(DType::F32, c(4), Scope::Register);
    b.load(r, c(4));
    invalid(&b.finish(), "register index 4");

    let mut b = Builder::default();
    let a = b.constant(DType::F32, 1.0);
    b.op(DType::F64, Op::Map(ScalarOp::Neg, [a].into_iter().collect()));
    invalid(&b.finish(), "neg");

    let mut b = Builder::default();
    b.op(
        DType::F32,
        Op::Load {
            memory: Memory::Param(3),
            index: c(0),
            mask: None,
        },
    );
    invalid(&b.finish(), "parameter 3");

    let mut b = Builder::default();
    b.repeat(Bind::Unroll, c(1 << 40), |_, _| {});
    assert!(matches!(error_of(&b.finish()), CodegenError::TooLarge { .. }));
}

#[test]
fn the_code_of_a_small_kernel() {
    let text = EmitText {
        listing: true,
        disasm: false,
    };
    let compiled = jit::compile(
        &[&scale(2.0, 2, None)],
        &JitOptions {
            threads: 1,
            text,
            ..JitOptions::default()
        },
    )
    .unwrap();
    let expected = "\
block0(v0: i64, v1: i64, v2: i64):
    v3 = load.i64 notrap aligned readonly v0
    v4 = load.i64 notrap aligned readonly v3
    v5 = load.i64 notrap aligned readonly v3+8
    v6 = load.i64 notrap aligned readonly v0+8
    v7 = load.i64 notrap aligned readonly v6
    v8 = iconst.i64 32
    v9 = imul v1, v8  ; v8 = 32
    v10 = iconst.i64 32
    v11 = imul v2, v10  ; v10 = 32
    v12 = icmp slt v1, v2
    brif v12, block1(v9), block2

block1(v13: i64):
    v14 = iadd.i64 v4, v13
    v15 = load.f32x4 notrap region0 v14
    v16 = vconst.f32x4 const0
    v17 = fmul v15, v16  ; v16 = const0
    v18 = iadd.i64 v5, v13
    store notrap region1 v17, v18
    v19 = load.f32x4 notrap region0 v14+16
    v20 = fmul v19, v16  ; v16 = const0
    store notrap region1 v20, v18+16
    v21 = iconst.i64 32
    v22 = iadd v13, v21  ; v21 = 32
    v23 = icmp slt v22, v11
    brif v23, block1(v22), block2

block2:
    return
}";
    let clif = compiled[0].listing.as_deref().unwrap();
    let start = clif.find("block0").unwrap();
    assert_eq!(clif[start..].trim(), expected, "{clif}");
}
