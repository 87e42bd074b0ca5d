//! The emitter's table is true: what it has, it emits at that width, and what it has in lanes is not done lane by lane.

use tlc_codegen::clif::EmitText;
use tlc_codegen::wide::{self, Level};
use tlc_ir::kernel::{Access, Bind, Kernel, ValueId};
use tlc_ir::target::{Emitter, Support, Width};
use tlc_ir::{DType, ScalarOp};
use tlc_passes::legalize::legalize;
use tlc_runtime::cpu::jit;

use crate::build::*;

/// Vectors of the loop.
const N: i64 = 4;

/// One operation on `N` vectors of elements.
fn kernel(from: &[DType], to: DType, lanes: i64, f: impl Fn(&mut Builder, &[ValueId]) -> ValueId) -> Kernel {
    let mut b = Builder::default();
    let params: Vec<_> = from.iter().map(|d| b.param(*d, c(N * lanes), Access::Read)).collect();
    let out = b.param(to, c(N * lanes), Access::Write);
    b.repeat(Bind::Serial, c(N), |b, i| {
        b.repeat(Bind::Lanes, c(lanes), |b, l| {
            let at = i * c(lanes) + l;
            let values: Vec<_> = params.iter().map(|p| b.load(*p, at.clone())).collect();
            let v = f(b, &values);
            b.store(out, at, v);
        });
    });
    b.finish()
}

/// Lanes of the widest of some dtypes, as the scheduler counts them: 16-bit floats and storage types are computed by way of f32.
fn lanes(emitter: &Emitter, dtypes: &[DType]) -> i64 {
    let bits = |d: &DType| match d {
        DType::Bool => 8,
        DType::F16 | DType::BF16 => 32,
        d if d.is_storage() => 32,
        d => d.bits(),
    };
    let widest = dtypes.iter().map(bits).max().unwrap_or(8);
    i64::from(emitter.vector_bits / widest)
}

/// Emits a kernel; returns whether it takes its vectors apart or calls the host.
fn taken_apart(mut kernel: Kernel, emitter: &Emitter, what: &str) -> bool {
    legalize(&mut kernel, emitter);
    if let Some(level) = Level::ALL.into_iter().find(|l| l.name() == emitter.name) {
        let code = wide::compile(&kernel, level, EmitText::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let flat = wide::flatten(&kernel, level).unwrap_or_else(|e| panic!("{what}: {e}"));
        let text = flat.to_string();
        return text.contains("= pack ") || text.contains("= lane ") || !code.relocs.is_empty();
    }
    let isa = jit::host_isa().expect("a known machine");
    let function = tlc_codegen::clif::translate(&kernel, &*isa).unwrap_or_else(|e| panic!("{what}: {e}"));
    let text = function.to_string();
    // One is how the store of a result narrower than a register takes its part.
    text.matches("extractlane").count() > 1 || text.contains("call ")
}

/// The portable emitter of this machine, and the wide one at every level: it makes code wherever it runs, or not.
fn emitters() -> Vec<Emitter> {
    let mut all = vec![jit::emitter().expect("a known machine")];
    all.extend(Level::ALL.map(wide::emitter));
    all
}

#[test]
fn every_operation_in_the_table_is_emitted_as_it_says() {
    for emitter in emitters() {
        every_operation(&emitter);
    }
}

fn every_operation(emitter: &Emitter) {
    let mut vectors = 0;
    for &op in ScalarOp::ALL {
        for on in DType::ALL {
            let mut dtypes = vec![on; op.arity()];
            if op == ScalarOp::Select {
                dtypes[0] = DType::Bool;
            }
            let typed = op.result_dtype(&dtypes);
            assert_eq!(typed.is_ok(), op.takes(on), "{op} on {on}");
            let Ok(to) = typed else { continue };
            for width in Width::ALL {
                let what = format!("{op} on {on} ({width:?})");
                let support = emitter.map(op, on, width);
                assert_ne!(support, Support::Missing, "{what}");
                let count = if width == Width::Lanes {
                    lanes(emitter, &dtypes)
                } else {
                    1
                };
                // Shifts are by one amount in all lanes.
                let shift = matches!(op, ScalarOp::Shl | ScalarOp::Shr);
                let k = kernel(&dtypes, to, count, |b, v| match shift {
                    true => {
                        let one = b.op(on, tlc_ir::kernel::Op::Const(on.one()));
                        b.map(op, &[v[0], one])
                    }
                    false => b.map(op, v),
                });
                let apart = taken_apart(k, emitter, &what);
                if support.is_vector() {
                    assert!(!apart, "{what} is {support}, but runs lane by lane or calls the host");
                    vectors += u32::from(width == Width::Lanes);
                }
            }
        }
    }
    assert!(vectors > 200, "{vectors} operations in lanes");
}

#[test]
fn every_conversion_in_the_table_is_emitted_as_it_says() {
    for emitter in emitters() {
        every_conversion(&emitter);
    }
}

fn every_conversion(emitter: &Emitter) {
    for from in DType::ALL {
        for to in DType::ALL {
            for width in Width::ALL {
                let what = format!("{from} to {to} ({width:?})");
                let support = emitter.convert(from, to, width);
                assert_ne!(support, Support::Missing, "{what}");
                let count = if width == Width::Lanes {
                    lanes(emitter, &[from, to])
                } else {
                    1
                };
                let k = kernel(&[from], to, count, |b, v| b.convert(to, v[0]));
                let apart = taken_apart(k, emitter, &what);
                if support == Support::Native {
                    assert!(!apart, "{what} is {support}, but runs lane by lane or calls the host");
                }
            }
        }
    }
}
