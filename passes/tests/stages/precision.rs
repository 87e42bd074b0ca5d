//! Products of f32 go by matrix instructions of tf32 where that is allowed, and only contractions do; functions are approximated where that is.

use std::sync::Arc;

use tlc_ir::kernel::{Kernel, Op, Stmt};
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{Precision, ScalarOp};
use tlc_passes::devices::Devices;
use tlc_passes::pipeline::Compiled;
use tlc_passes::planner::Planned;
use tlc_passes::{Options, compile};

/// What is made of a graph whose products may be so exact.
fn compiled(text: &str, precision: Precision) -> Compiled {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    // Kernels multiply what a library would.
    let gpu = Gpu {
        products: None,
        ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
    };
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let options = Options {
        precision,
        ..Options::new(Devices::new(host, [gpu]))
    };
    compile(&graph, &options).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The precisions of all contractions of a plan and of the bodies of its loops.
fn precisions(planned: &Planned) -> Vec<Precision> {
    let of = |k: &Kernel| -> Vec<Precision> {
        let contract = |s: &Stmt| match s {
            Stmt::Contract(c) => Some(c.precision),
            _ => None,
        };
        k.statements().filter_map(contract).collect()
    };
    let own = planned.launches.iter().flat_map(|l| of(&l.scheduled));
    own.chain(planned.bodies.iter().flat_map(|b| precisions(&b.planned)))
        .collect()
}

#[test]
fn contractions_of_f32_are_rounded_where_that_is_allowed_and_nothing_else_is() {
    let product = "graph @product(%x: f32[40, 72], %y: f32[72, 33]) {
       %0 = einsum %x, %y {ab,bc->ac} : f32[40, 33]
       return %0
     }";
    let used = |text: &str, precision| {
        let mut all = precisions(&compiled(text, precision).planned);
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(used(product, Precision::Tf32), [Precision::Tf32]);
    assert_eq!(used(product, Precision::Exact), [Precision::Exact]);
    // 16-bit floats are multiplied as they are, and whole numbers and f64 by threads.
    for (dtype, acc) in [("f16", "f32"), ("bf16", "f32"), ("f64", "f64"), ("i8", "i32")] {
        let text = product.replace("ab,bc->ac", &format!("ab,bc->ac; acc={acc}"));
        let text = text
            .replace("f32[", &format!("{dtype}["))
            .replace(&format!(": {dtype}[40, 33]"), &format!(": {acc}[40, 33]"));
        assert!(!used(&text, Precision::Tf32).contains(&Precision::Tf32), "{text}");
    }
    // A product and a sum that were recorded as such are no contraction.
    let apart = "graph @apart(%x: f32[40, 1, 72], %y: f32[1, 32, 72]) {
       %0 = expand %x : f32[40, 32, 72]
       %1 = expand %y : f32[40, 32, 72]
       %2 = mul %0, %1 : f32[40, 32, 72]
       %3 = reduce add %2 {axes=[2]} : f32[40, 32]
       return %3
     }";
    assert!(!used(apart, Precision::Tf32).contains(&Precision::Tf32));
}

#[test]
fn the_body_of_a_loop_is_as_exact_as_what_is_around() {
    let text = "graph @cell(%x: f32[3, 16, 64], %h: f32[16, 64], %w: f32[64, 64]) {
       %1 = loop %h, %x, %w {trip=3, carried=1, slices=[0], stacks=[0]} body @step(%i: i64[], %h: f32[16, 64], %x: f32[16, 64], %w: f32[64, 64]) {
         %0 = einsum %h, %w {ab,cb->ac} : f32[16, 64]
         %1 = add %0, %x : f32[16, 64]
         return %1, %1
       } : (f32[16, 64], f32[3, 16, 64])
       %2 = project %1 {result=0} : f32[16, 64]
       return %2
     }";
    for precision in Precision::ALL {
        let found = precisions(&compiled(text, precision).planned);
        assert!(
            !found.is_empty() && found.iter().all(|p| *p == precision.of_products()),
            "{found:?}"
        );
    }
}

#[test]
fn functions_of_gpus_are_approximated_where_that_is_allowed_and_others_never() {
    let text = "graph @functions(%x: f16[4096], %y: f64[4096]) {
       %0 = exp %x : f16[4096]
       %1 = tanh %x : f16[4096]
       %2 = div %0, %1 : f16[4096]
       %3 = sin %2 : f16[4096]
       %4 = exp %y : f64[4096]
       return %3, %4
     }";
    let used = |c: &Compiled| -> Vec<ScalarOp> {
        let approximated = |s: &Stmt| match s {
            Stmt::Let {
                op: Op::Approximate(op, _),
                ..
            } => Some(*op),
            _ => None,
        };
        let kernels = c.planned.plan.kernels.iter();
        kernels.flat_map(|k| k.statements().filter_map(approximated)).collect()
    };
    for precision in [Precision::Exact, Precision::Tf32] {
        assert_eq!(used(&compiled(text, precision)), []);
    }
    let mut fast = used(&compiled(text, Precision::Fast));
    fast.sort_unstable_by_key(|op| op.name());
    fast.dedup();
    assert_eq!(fast, [ScalarOp::Div, ScalarOp::Exp2]);
    // The host has no such instructions.
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let options = Options {
        precision: Precision::Fast,
        ..Options::new(Devices::new(host, []))
    };
    let graph = parse_graph(text, &mut no_data).expect("a graph");
    let there = compile(&graph, &options).expect("a plan");
    assert_eq!(used(&there), []);
}
