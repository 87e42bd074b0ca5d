//! Plans that are broken on purpose: the simulated device names the slot.

use std::sync::Arc;

use tlc::{CompileOptions, DType, Device, Graph, TensorView};
use tlc_ir::index::IndexExpr;
use tlc_ir::plan::{Plan, SlotId, Step};
use tlc_runtime::cuda;
use tlc_runtime::driver::{Emitters, Executable, Load};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

use crate::child::{real, simulated, skip, with_findings};

#[test]
fn slots_are_announced_and_right_plans_keep_to_them() {
    simulated("slots::children::right", &[]);
}

#[test]
fn a_reader_of_a_slot_that_nobody_wrote_is_named() {
    found("slots::children::unwritten", "unwritten");
}

#[test]
fn a_store_beside_a_slot_is_named() {
    found("slots::children::beside", "beside");
}

/// Runs a broken plan: what is found names the slot that the test printed, and says which line of the kernel it was.
fn found(test: &str, kind: &str) {
    if real() {
        return skip("a real GPU finds nothing");
    }
    let Some((printed, found)) = with_findings(test, &[]) else {
        return;
    };
    let slot = printed.printed("expects").concat().replace("expects ", "");
    assert!(!slot.is_empty() && found.contains(&slot), "{kind}, {slot}: {found}");
    // And the line of the kernel's text, in which a parameter is accessed.
    let first: serde_json::Value = serde_json::from_str(found.lines().next().expect("a finding")).expect("JSON");
    let (file, text) = (first["site"]["file"].as_str(), first["site"]["text"].as_str());
    assert!(
        file.is_some_and(|f| f.starts_with("kernel") && f.ends_with(".cu")),
        "{found}"
    );
    assert!(text.is_some_and(|t| t.contains("p0[") || t.contains("p2[")), "{found}");
    assert!(first["site"]["line"].as_u64().is_some_and(|l| l > 0), "{found}");
}

/// `((x @ w) @ w) @ w`: three launches, too large for one block to do in turn, and what each writes. Their rows are not aligned: of vectors it is found later, without a slot, that
/// nobody wrote a value.
fn chain() -> (Plan, Vec<(usize, SlotId)>) {
    let g = Graph::new("chain");
    let (x, w) = (
        g.input("x", DType::F32, [131, 131]),
        g.input("w", DType::F32, [131, 131]),
    );
    g.output("y", &x.matmul(&w).exp().matmul(&w).exp().matmul(&w));
    let options = CompileOptions {
        device: Device::cuda(0),
        ..CompileOptions::default()
    };
    let plan = g.compile(&options).expect("it compiles").plan().clone();
    let mut launches = Vec::new();
    for (number, step) in plan.steps.iter().enumerate() {
        if let Step::Launch(l) = step {
            launches.push((number, *l.args.last().expect("what it writes")));
        }
    }
    assert_eq!(launches.len(), 3, "{plan}");
    (plan, launches)
}

/// Runs a plan as it is.
fn run(plan: Plan) -> Result<(), String> {
    let threads = Arc::new(Pool::new(1));
    let context = cuda::open(0).map_err(|e| e.to_string())?;
    let load = Load {
        threads,
        compiling: 1,
        ahead: None,
        buffers: BufferPool::new(),
        packer: tlc_passes::memory::pack_apart,
        emitters: Emitters::default(),
        devices: cuda::queued(&[context]),
    };
    let executable = Executable::load(plan, load).map_err(|e| e.to_string())?;
    let ones = vec![0u8; 131 * 131 * 4];
    let view = TensorView {
        dtype: DType::F32,
        shape: &[131, 131],
        data: &ones,
    };
    executable.run(&[view; 2]).map(drop).map_err(|e| e.to_string())
}

/// Has a launch read another slot in place of its first operand.
fn reads(plan: &mut Plan, step: usize, slot: SlotId) {
    if let Step::Launch(l) = &mut plan.steps[step] {
        l.args[0] = slot;
    }
    println!("\nexpects slot {}", slot.0);
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn right() {
        run(chain().0).expect("it runs");
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn unwritten() {
        let (mut plan, launches) = chain();
        // What the next one writes.
        reads(&mut plan, launches[0].0, launches[1].1);
        assert!(run(plan).is_err());
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn beside() {
        let (mut plan, launches) = chain();
        let slot = launches[0].1;
        // One element less than what the launch writes.
        let less = IndexExpr::Const(131 * 131 - 1);
        plan.slots[slot.0 as usize].len = less.clone();
        for step in &plan.steps {
            for l in step.launches() {
                let params = &mut plan.kernels[l.kernel.0 as usize].params;
                let bound = l.args.iter().zip(params).filter(|p| *p.0 == slot);
                bound.for_each(|p| p.1.len = less.clone());
            }
        }
        println!("\nexpects slot {}", slot.0);
        assert!(run(plan).is_err());
    }
}
