//! Code is freed: compiling and dropping many kernels leaves the process as large as before. A process of its own, so that
//! no other test grows it.
#![cfg(target_os = "linux")]

use smallvec::smallvec;
use tlc_ir::index::IndexExpr;
use tlc_ir::kernel::{Access, Bind, Kernel, Memory, Op, Param, Stmt};
use tlc_ir::{DType, Scalar, ScalarOp};
use tlc_runtime::cpu::jit::{self, Args, JitOptions};

/// `y[i] = op(x[i] * k)` over 16 elements.
fn scale(k: f64, op: Option<ScalarOp>) -> Kernel {
    let mut kernel = Kernel::default();
    for access in [Access::Read, Access::Write] {
        kernel.params.push(Param {
            dtype: DType::F32,
            len: IndexExpr::Const(16),
            access,
        });
    }
    let (outer, lane) = (kernel.new_var(IndexExpr::Const(4)), kernel.new_var(IndexExpr::Const(4)));
    let index = IndexExpr::from(outer) * IndexExpr::Const(4) + lane.into();
    let mut body = Vec::new();
    let mut emit = |op| {
        let value = kernel.new_value(DType::F32);
        body.push(Stmt::Let { value, op });
        value
    };
    let x = emit(Op::Load {
        memory: Memory::Param(0),
        index: index.clone(),
        mask: None,
    });
    let k = emit(Op::Const(Scalar::from_f64(DType::F32, k)));
    let mut v = emit(Op::Map(ScalarOp::Mul, smallvec![x, k]));
    if let Some(op) = op {
        v = emit(Op::Map(op, smallvec![v]));
    }
    body.push(Stmt::Store {
        memory: Memory::Param(1),
        index,
        value: v,
        mask: None,
    });
    for (var, bind) in [(lane, Bind::Lanes), (outer, Bind::Serial)] {
        body = vec![Stmt::Loop { var, bind, body }];
    }
    kernel.body = body;
    kernel
}

fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn ten_thousand_dropped_kernels_leave_no_memory_behind() {
    let options = JitOptions {
        threads: 1,
        ..JitOptions::default()
    };
    let round = |from: usize, to: usize| {
        for i in from..to {
            let k = scale(i as f64, (i % 50 == 0).then_some(ScalarOp::Exp));
            let compiled = jit::compile(&[&k], &options).unwrap();
            let (mut x, mut y) = ([1f32; 16], [0f32; 16]);
            let buffers = [x.as_mut_ptr().cast::<u8>(), y.as_mut_ptr().cast()];
            let args = Args {
                buffers: buffers.as_ptr(),
                symbols: std::ptr::null(),
                scratch: std::ptr::null_mut(),
            };
            // SAFETY: two buffers of 16 elements, no symbols, no scratch.
            unsafe { compiled[0].function.call(&args, 0, 1) };
            let expected = if i % 50 == 0 {
                ScalarOp::Exp.eval_f64(&[i as f64, 0.0, 0.0]) as f32
            } else {
                i as f32
            };
            assert_eq!(y, [expected; 16]);
        }
    };
    round(0, 1000);
    let before = resident_pages();
    round(1000, 10_000);
    let after = resident_pages();
    // A leak of one page a kernel would be 9,000.
    assert!(after < before + 200, "resident pages grew from {before} to {after}");
}
