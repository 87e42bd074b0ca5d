//! Which emitter makes a kernel, why, and that its schedule is one for it.

use crate::oracle::stages::{two_emitters, wide_emitter};
use tlc_ir::kernel::{Bind, Kernel, Memory, Stmt};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::{AccessKind, Cpu, CpuEmitter, EmitterId, Support};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{DType, HostTensor, ScalarOp};
use tlc_passes::emitters::{EmitterReason, Operation, choose};
use tlc_passes::planner::LaunchReport;
use tlc_passes::reason::FusionReason;
use tlc_passes::{Compiled, Options, compile};

const NARROW: EmitterId = EmitterId(0);
const WIDE: EmitterId = EmitterId(1);

fn compiled(text: &str, options: &Options) -> Compiled {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    compile(&graph, options).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn only(compiled: &Compiled) -> &LaunchReport {
    match &compiled.planned.launches[..] {
        [one] => one,
        all => panic!("{} launches", all.len()),
    }
}

/// The extents of a kernel's lanes loops.
fn lanes(kernel: &Kernel) -> Vec<i64> {
    let lanes = |s: &Stmt| match s {
        Stmt::Loop {
            var, bind: Bind::Lanes, ..
        } => kernel.extents[var.0 as usize].as_const(),
        _ => None,
    };
    kernel.statements().filter_map(lanes).collect()
}

fn chain(op: &str) -> String {
    format!(
        "graph @chain(%x: f32[4096]) {{
           %0 = mul %x, %x : f32[4096]
           %1 = {op} %0 : f32[4096]
           return %1
         }}"
    )
}

#[test]
fn the_wide_emitter_makes_what_it_has_all_of() {
    let made = compiled(&chain("exp"), &two_emitters());
    let l = only(&made);
    assert_eq!((l.emitter.emitter, l.emitter.name), (WIDE, "wide"));
    let (bits, others) = (512, 128);
    assert_eq!(l.emitter.reason, EmitterReason::Wider { bits, others });
    assert_eq!(l.schedule.inner, [Ok(16)]);
    assert!(lanes(&l.scheduled).iter().all(|n| *n == 16), "{}", l.scheduled);
    assert_eq!(made.planned.emitters, [WIDE]);
}

#[test]
fn a_kernel_with_an_operation_that_it_lacks_is_the_other_ones() {
    let made = compiled(&chain("tanh"), &two_emitters());
    let l = only(&made);
    assert_eq!((l.emitter.emitter, l.emitter.name), (NARROW, "clif"));
    let what = Operation::Map(ScalarOp::Tanh, DType::F32);
    assert_eq!(l.emitter.reason, EmitterReason::Lacks { name: "wide", what });
    assert_eq!(l.emitter.reason.to_string(), "wide lacks tanh of f32");
    assert_eq!(l.schedule.inner, [Ok(4)]);
    assert!(lanes(&l.scheduled).iter().all(|n| *n == 4), "{}", l.scheduled);
    assert_eq!(made.planned.emitters, [NARROW]);
}

#[test]
fn values_of_a_type_can_be_lacking_without_any_operation() {
    let text = "graph @turn(%x: f64[64, 64]) {
      %0 = permute %x {axes=[1, 0]} : f64[64, 64]
      return %0
    }";
    let made = compiled(text, &two_emitters());
    let what = Operation::Convert(DType::F64, DType::F64);
    assert_eq!(only(&made).emitter.reason, EmitterReason::Lacks { name: "wide", what });
    assert_eq!(what.to_string(), "values of f64");
}

#[test]
fn what_only_runs_lane_by_lane_is_left_to_who_is_faster_otherwise() {
    let slow = |rate: f64, e: tlc_ir::target::Emitter| CpuEmitter {
        vector_ops_per_second: rate,
        ..CpuEmitter::modest(e.into())
    };
    // Four times the width, at half the speed.
    let emitters = vec![slow(9e9, tlc_codegen::clif::emitter(true)), slow(4.5e9, wide_emitter())];
    let target = Cpu::with_emitters(emitters).into();
    let both = |op, on| [Operation::Map(op, on), Operation::Access(AccessKind::SideBySide)];
    let chosen = choose(&target, &both(ScalarOp::Exp, DType::F32).into_iter().collect());
    assert_eq!(chosen.emitter, WIDE);
    let chosen = choose(&target, &both(ScalarOp::Div, DType::I32).into_iter().collect());
    let what = Operation::Map(ScalarOp::Div, DType::I32);
    assert_eq!(chosen.emitter, NARROW);
    assert_eq!(chosen.reason, EmitterReason::LaneByLane { name: "wide", what });
}

#[test]
fn accesses_that_are_made_at_once_take_less_time() {
    let gathers = |e: tlc_ir::target::Emitter| e.with_accesses(|_| Support::Native);
    let emitters = [
        tlc_codegen::clif::emitter(true),
        gathers(tlc_codegen::clif::emitter(true)),
    ];
    let target = Cpu::with_emitters(emitters.map(|e| CpuEmitter::modest(e.into())).into()).into();
    let chosen = choose(&target, &[Operation::Access(AccessKind::Apart)].into_iter().collect());
    assert_eq!((chosen.emitter, chosen.reason), (EmitterId(1), EmitterReason::Faster));
    let chosen = choose(
        &target,
        &[Operation::Access(AccessKind::SideBySide)].into_iter().collect(),
    );
    assert_eq!((chosen.emitter, chosen.reason), (EmitterId(0), EmitterReason::Faster));
}

#[test]
fn one_emitter_is_no_choice() {
    let options = Options::new(Cpu::modest(tlc_codegen::clif::emitter(true).into()));
    let made = compiled(&chain("exp"), &options);
    assert_eq!(only(&made).emitter.reason, EmitterReason::Only);
}

/// `y = exp(x)` is wanted and large, and `tanh(y)` is what the wide emitter lacks.
fn wanted_and_lost(elements: usize) -> String {
    let ty = format!("f32[{elements}]");
    format!(
        "graph @both(%x: {ty}) {{
           %0 = exp %x : {ty}
           %1 = exp %0 : {ty}
           %2 = tanh %1 : {ty}
           return %1, %2
         }}"
    )
}

#[test]
fn a_merge_that_would_lose_the_wide_emitter_counts_what_that_costs() {
    let large = compiled(&wanted_and_lost(1 << 20), &two_emitters());
    let emitters: Vec<EmitterId> = large.planned.launches.iter().map(|l| l.emitter.emitter).collect();
    assert_eq!(emitters, [WIDE, NARROW]);
    let refused = large.clusters.ledger.entries().iter().find_map(|d| match &d.reason {
        FusionReason::OtherEmitter {
            reason: EmitterReason::Lacks { name, what },
            lost_ns,
            saved_ns,
        } => Some((*name, *what, lost_ns > saved_ns)),
        _ => None,
    });
    let what = Operation::Map(ScalarOp::Tanh, DType::F32);
    assert_eq!(refused, Some(("wide", what, true)));
    // Another kernel would take longer than what is lost.
    let small = compiled(&wanted_and_lost(64), &two_emitters());
    assert_eq!(only(&small).emitter.emitter, NARROW);
}

#[test]
fn a_kernel_for_wide_vectors_has_the_meaning_of_one_for_narrow_ones() {
    let text = "graph @rows(%x: f32[9, 70]) {
      %0 = reduce max %x {axes=[1]} : f32[9]
      %1 = reshape %0 : f32[9, 1]
      %2 = expand %1 : f32[9, 70]
      %3 = sub %x, %2 : f32[9, 70]
      %4 = exp %3 : f32[9, 70]
      return %4
    }";
    let narrow = Options::new(Cpu::modest(tlc_codegen::clif::emitter(true).into()));
    let values: Vec<f32> = (0..630).map(|i| ((i * 37 + 11) % 101) as f32 / 25.0 - 2.0).collect();
    let input = HostTensor::from_slice(&[9, 70], &values).unwrap();
    let results = [two_emitters(), narrow].map(|options| {
        let made = compiled(text, &options);
        let plan = &made.planned.plan;
        assert!(tlc_ir::plan::verify::verify(plan).errors.is_empty());
        for kernel in &plan.kernels {
            assert!(tlc_ir::kernel::verify::verify(kernel).errors.is_empty(), "{kernel}");
        }
        let wide = only(&made).emitter.name == "wide";
        assert!(lanes(&only(&made).scheduled).contains(if wide { &16 } else { &4 }));
        interpret_bound(plan, None, std::slice::from_ref(&input), &[]).unwrap()
    });
    assert_eq!(results[0][0].bytes(), results[1][0].bytes());
}

/// A 3 by 3 depthwise convolution with padding, over rows of that many pixels; `h` and `w` are symbols, or numbers.
fn depthwise(h: &str, w: &str, range: &str) -> String {
    let image = |h: &str, w: &str| format!("f32[2, 20, {h}, {w}]");
    let wider = |n: &str| match n.parse::<i64>() {
        Ok(n) => (n + 2).to_string(),
        Err(_) => format!("{n} + 2"),
    };
    let (plain, padded, w2) = (image(h, w), image(&wider(h), &wider(w)), wider(w));
    format!(
        "graph @depthwise(%x: {plain}, %k: f32[20, 3, 3]) {range} {{
           %0 = pad %x {{lo=[0, 0, 1, 1], hi=[0, 0, 1, 1], value=0.0}} : {padded}
           %1 = window %0 {{axis=2, size=3}} : f32[2, 20, {h}, {w2}, 3]
           %2 = window %1 {{axis=3, size=3}} : f32[2, 20, {h}, {w}, 3, 3]
           %3 = einsum %2, %k {{abcdef,bef->abcd}} : {plain}
           return %3
         }}"
    )
}

/// Loads of a kernel's first parameter that stand in no lanes loop.
fn loaded_one_by_one(body: &[Stmt]) -> usize {
    let own = |s: &Stmt| {
        let loads = |a: &tlc_ir::kernel::visit::MemoryAccess<'_>| {
            a.memory == Memory::Param(0) && a.effect == tlc_ir::kernel::visit::Effect::Load
        };
        s.accesses().filter(loads).count()
    };
    (body.iter())
        .filter(|s| !matches!(s, Stmt::Loop { bind: Bind::Lanes, .. }))
        .map(|s| own(s) + loaded_one_by_one(s.body()))
        .sum()
}

/// Where an emitter masks accesses, the edges of an image and what whole vectors leave over are lanes that do without some; rows that
/// are shorter than a vector too. No pixel is loaded alone, and each sum is that of the other emitter, bit for bit.
#[test]
fn windows_at_the_edges_of_an_image_are_masked_lanes() {
    let masking = wide_emitter().with_accesses(|_| Support::Native);
    let emitters = [tlc_codegen::clif::emitter(true), masking].map(|e| CpuEmitter::modest(e.into()));
    let masks = Options::new(Cpu::with_emitters(emitters.into()));
    let narrow = Options::new(Cpu::modest(tlc_codegen::clif::emitter(true).into()));
    let range = "where h in 0..=4096, w in 0..=4096";
    for (h, w, symbolic) in [
        (1, 4, false),
        (5, 7, false),
        (3, 14, false),
        (4, 16, false),
        (2, 37, false),
        (6, 56, false),
        (5, 7, true),
        (2, 37, true),
        (3, 32, true),
        (4, 1, true),
        (0, 5, true),
        (3, 0, true),
    ] {
        let text = match symbolic {
            true => depthwise("h", "w", range),
            false => depthwise(&h.to_string(), &w.to_string(), ""),
        };
        let values = |n: usize| -> Vec<f32> { (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 25.0 - 2.0).collect() };
        let image = HostTensor::from_slice(&[2, 20, h, w], &values(40 * h * w)).unwrap();
        let weights = HostTensor::from_slice(&[20, 3, 3], &values(180)).unwrap();
        let results = [&masks, &narrow].map(|options| {
            let made = compiled(&text, options);
            let plan = &made.planned.plan;
            for kernel in &plan.kernels {
                let report = tlc_ir::kernel::verify::verify(kernel);
                assert!(report.errors.is_empty(), "{:?}\n{kernel}", report.errors);
            }
            let launch = only(&made);
            if launch.emitter.name == "wide" {
                let text = launch.schedule.to_string();
                assert!(text.contains("masked") || text.contains("slide"), "{text}");
                assert_eq!(loaded_one_by_one(&launch.scheduled.body), 0, "{}", launch.scheduled);
            }
            let sizes: &[i64] = if symbolic { &[h as i64, w as i64] } else { &[] };
            interpret_bound(plan, None, &[image.clone(), weights.clone()], sizes).unwrap()
        });
        assert_eq!(
            results[0][0].bytes(),
            results[1][0].bytes(),
            "{h} by {w}, symbolic {symbolic}"
        );
    }
}
