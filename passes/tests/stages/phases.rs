//! What phases of a row keep, of which columns tiles are made, and why not.

use std::sync::Arc;

use tlc_ir::index::VarId;
use tlc_ir::kernel::{Scope, Stmt, ValueId};
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph};
use tlc_passes::devices::Devices;
use tlc_passes::lower::{Form, lower};
use tlc_passes::reason::{FusionDecision, FusionReason};
use tlc_passes::schedule::{Directive, DirectiveRefusal, Schedule, ScheduleReason, apply};
use tlc_passes::{Compiled, Options, compile};

fn cpu() -> Devices {
    Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true))).into()
}

fn gpu(shared_bytes: i64) -> Devices {
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let gpu = Gpu::any(Arc::new(tlc_codegen::cuda::emitter()));
    let opt_in_shared_bytes = shared_bytes;
    Devices::new(
        host,
        [Gpu {
            shared_bytes,
            opt_in_shared_bytes,
            ..gpu
        }],
    )
}

/// A device of such a compute capability.
fn of_capability(capability: (i32, i32)) -> Devices {
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let opt_in_shared_bytes = Gpu::opt_in_of(capability);
    Devices::new(
        host,
        [Gpu {
            opt_in_shared_bytes,
            ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
        }],
    )
}

fn softmax(axis: usize, shape: [usize; 2]) -> String {
    let [rows, columns] = shape;
    let full = format!("f32[{rows}, {columns}]");
    let (sum, one) = match axis {
        0 => (format!("f32[{columns}]"), format!("f32[1, {columns}]")),
        _ => (format!("f32[{rows}]"), format!("f32[{rows}, 1]")),
    };
    format!(
        "graph @softmax(%x: {full}) {{
           %0 = reduce max %x {{axes=[{axis}]}} : {sum}
           %1 = reshape %0 : {one}
           %2 = expand %1 : {full}
           %3 = sub %x, %2 : {full}
           %4 = exp %3 : {full}
           %5 = reduce add %4 {{axes=[{axis}]}} : {sum}
           %6 = reshape %5 : {one}
           %7 = expand %6 : {full}
           %8 = div %4, %7 : {full}
           return %8
         }}"
    )
}

fn compiled(text: &str, devices: Devices) -> Compiled {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    compile(&graph, &Options::new(devices)).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The schedule of the only kernel, and the lengths of what it keeps in memory.
fn only(text: &str, devices: Devices) -> (Schedule, Vec<i64>) {
    let compiled = compiled(text, devices);
    let [launch] = &compiled.planned.launches[..] else {
        panic!("one kernel of {text}")
    };
    let kept = launch.scheduled.scratch.iter().filter(|s| s.scope == Scope::Cache);
    let lengths = kept.map(|s| s.len.as_const().expect("a constant length")).collect();
    ((*launch.schedule).clone(), lengths)
}

fn reasons(schedule: &Schedule) -> Vec<ScheduleReason> {
    let keeps = |d: &Directive| matches!(d, Directive::Keep { .. } | Directive::TileColumns { .. });
    let kept = schedule.applied.iter().filter(|a| keeps(&a.directive));
    kept.map(|a| a.reason).collect()
}

#[test]
fn a_row_keeps_its_exponentials() {
    let (schedule, kept) = only(&softmax(1, [64, 1000]), cpu());
    assert_eq!(reasons(&schedule), [ScheduleReason::ComputedOnce]);
    assert_eq!(kept, [1000]);
}

#[test]
fn a_tile_of_columns_keeps_what_lies_apart_as_well() {
    let (schedule, kept) = only(&softmax(0, [64, 1000]), cpu());
    let tile = ScheduleReason::ColumnTile { columns: 200 };
    assert_eq!(
        reasons(&schedule),
        [ScheduleReason::LoadedOnce, ScheduleReason::ComputedOnce, tile]
    );
    // Two accumulators, the elements and their exponentials.
    assert_eq!(kept, [200, 200, 64 * 200, 64 * 200]);
}

#[test]
fn columns_that_are_only_summed_keep_their_accumulators() {
    let text = "graph @sum(%x: f32[64, 1000]) {
      %0 = exp %x : f32[64, 1000]
      %1 = reduce add %0 {axes=[0]} : f32[1000]
      return %1
    }";
    let (schedule, kept) = only(text, cpu());
    assert_eq!(reasons(&schedule), [ScheduleReason::ColumnTile { columns: 1000 }]);
    assert_eq!(kept, [1000]);
}

#[test]
fn what_is_dear_and_the_same_in_all_rows_is_computed_once_a_column() {
    let text = "graph @variance(%x: f32[64, 1000]) {
      %0 = reduce add %x {axes=[0]} : f32[1000]
      %1 = const 64.0 : f32[]
      %2 = expand %1 : f32[1000]
      %3 = div %0, %2 : f32[1000]
      %4 = expand %3 : f32[64, 1000]
      %5 = sub %x, %4 : f32[64, 1000]
      %6 = mul %5, %5 : f32[64, 1000]
      %7 = reduce add %6 {axes=[0]} : f32[1000]
      return %7
    }";
    let (_, kept) = only(text, cpu());
    assert_eq!(kept, [1000, 1000, 1000], "two sums and the mean");
}

#[test]
fn a_block_of_a_gpu_keeps_rows_that_it_can_share() {
    let text = softmax(1, [64, 1000]);
    let (schedule, _) = only(&text, gpu(48 << 10));
    assert_eq!(
        reasons(&schedule),
        [ScheduleReason::LoadedOnce, ScheduleReason::ComputedOnce]
    );
    let most = 4 << 10;
    let small = compiled(&text, gpu(most));
    let launch = &small.planned.launches[0];
    assert_eq!(reasons(&launch.schedule), []);
    let refused = launch
        .schedule
        .refused
        .iter()
        .find(|r| r.reason == ScheduleReason::ComputedOnce);
    let refusal = &refused.expect("the decision is on record").refusal;
    assert!(
        matches!(refusal, DirectiveRefusal::SharedBytes { bytes, most: m } if *m == most && bytes > m),
        "{refusal}"
    );
    for shared_bytes in [48 << 10, most] {
        for axis in [0, 1] {
            let compiled = compiled(&softmax(axis, [64, 1000]), gpu(shared_bytes));
            for kernel in &compiled.planned.plan.kernels {
                let grid = kernel.grid().expect("a kernel of a GPU");
                assert!(grid.shared_bytes <= shared_bytes, "{grid:?}\n{kernel}");
            }
        }
    }
}

/// Rows of 20,000 elements and their exponentials are 160 kB: a block has room for both, or for the rows, whose place the exponentials then take, or
/// for neither, and then each step reads them.
#[test]
fn a_block_keeps_long_rows_where_the_driver_gives_it_the_memory() {
    let kept = |columns, capability| {
        let compiled = compiled(&softmax(1, [8, columns]), of_capability(capability));
        let launches = &compiled.planned.launches;
        let grid = compiled.planned.plan.kernels[0].grid().expect("a kernel of a GPU");
        assert!(grid.shared_bytes <= Gpu::opt_in_of(capability), "{grid:?}");
        let long_rows = |d: &FusionDecision| matches!(d.reason, FusionReason::LongRows { .. });
        let said = compiled.clusters.ledger.entries().iter().any(long_rows);
        assert_eq!(launches.len() > 1, said, "the decision is on record");
        (launches.len(), reasons(&launches[0].schedule).len(), grid.threads)
    };
    assert_eq!(kept(20_000, (9, 0)), (1, 2, 1024));
    assert_eq!(kept(20_000, (8, 0)), (1, 2, 1024));
    assert_eq!(kept(20_000, (8, 9)), (1, 2, 1024));
    assert_eq!(kept(50_000, (9, 0)), (1, 2, 1024));
    assert!(kept(50_000, (8, 9)).0 > 1);
    assert!(kept(60_000, (9, 0)).0 > 1);
    // What a block has without asking is not asked for.
    assert_eq!(kept(5_000, (9, 0)), (1, 2, 256));
}

#[test]
fn what_does_not_apply_says_why() {
    let compiled = compiled(&softmax(1, [8, 100]), cpu());
    let nests = lower(
        &compiled.graph,
        &compiled.clusters.clusters[0],
        &compiled.clusters.is_root,
        tlc_ir::Precision::Exact,
        None,
    );
    let [nest] = &nests[..] else { panic!("one nest") };
    assert_eq!(nest.form, Form::Rows);
    let exponential = |s: &&Stmt| {
        use tlc_ir::kernel::Op;
        matches!(
            s,
            Stmt::Let {
                op: Op::Map(tlc_ir::ScalarOp::Exp, _),
                ..
            }
        )
    };
    let all: Vec<ValueId> = nest
        .kernel
        .statements()
        .filter(exponential)
        .filter_map(Stmt::defined_value)
        .collect();
    assert_eq!(all.len(), 2, "each phase computes what it needs");
    let Some([Stmt::Loop { body, .. }]) = Some(&nest.kernel.body[..]) else {
        panic!("one loop")
    };
    let phases: Vec<VarId> = body.iter().filter_map(|s| s.defined_vars().first().copied()).collect();
    let refused = |var, value| apply(&mut nest.kernel.clone(), &Directive::Keep { var, value }).unwrap_err();
    assert_eq!(refused(phases[0], all[0]), DirectiveRefusal::NoValue(phases[0], all[0]));
    assert_eq!(refused(phases[2], all[1]), DirectiveRefusal::NotComputedAgain(all[1]));
    assert_eq!(refused(VarId(99), all[0]), DirectiveRefusal::NoLoop(VarId(99)));
    let mut kernel = nest.kernel.clone();
    let (var, value) = (phases[1], all[0]);
    assert_eq!(apply(&mut kernel, &Directive::Keep { var, value }), Ok(vec![]));
    assert_eq!(kernel.statements().filter(exponential).count(), 1);
    // A loop over elements of one sum is no loop over columns.
    let tile = Directive::TileColumns {
        var: phases[1],
        width: 8,
    };
    assert_eq!(apply(&mut kernel, &tile), Err(DirectiveRefusal::Recurrence(phases[1])));
}
