//! Which launches of a GPU are one grid.

use std::sync::Arc;

use tlc_ir::plan::verify::{PlanReport, PlanRule, verify};
use tlc_ir::plan::{DeviceId, Plan, Step};
use tlc_ir::target::{Cpu, Gpu};
use tlc_ir::text::{no_data, parse_graph};
use tlc_passes::devices::Devices;
use tlc_passes::{Options, compile};

fn plan_with(text: &str, limits: Vec<u64>) -> Plan {
    // Copies from the host would stand between launches.
    plan_on(text, 1, limits, DeviceId(1))
}

/// The plan of a graph for a processor and so many GPUs, verified.
pub fn plan_on(text: &str, gpus: usize, limits: Vec<u64>, caller: DeviceId) -> Plan {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
    let gpu = Gpu {
        products: None,
        ..Gpu::any(Arc::new(tlc_codegen::cuda::emitter()))
    };
    let host = Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)));
    let options = Options {
        arena_limits: limits,
        caller,
        ..Options::new(Devices::new(host, vec![gpu; gpus]))
    };
    let compiled = compile(&graph, &options).expect("it compiles");
    let planned = &compiled.planned;
    // Reports of launches go along with them.
    let kernels: Vec<_> = planned.plan.launches().iter().map(|l| l.kernel).collect();
    assert_eq!(planned.launches.iter().map(|l| l.kernel).collect::<Vec<_>>(), kernels);
    let plan = compiled.planned.plan;
    assert_eq!(verify(&plan), PlanReport::default(), "{plan}");
    Arc::unwrap_or_clone(plan)
}

fn plan(text: &str) -> Plan {
    plan_with(text, Vec::new())
}

/// The numbers of launches of the groups.
fn groups(plan: &Plan) -> Vec<usize> {
    let all = plan.steps.iter().filter(|s| matches!(s, Step::Group(_)));
    all.map(|s| s.launches().len()).collect()
}

/// So many rows of scans and sums of `n` elements, each of its own input: nothing that is one kernel by fusion.
fn branches(count: usize, shape: impl Fn(usize) -> [usize; 2]) -> String {
    let of = |k: usize| {
        let [a, b] = shape(k);
        format!("f32[{a}, {b}]")
    };
    let inputs: Vec<String> = (0..count).map(|k| format!("%x{k}: {}", of(k))).collect();
    let mut text = format!("graph @branches({}) {{\n", inputs.join(", "));
    for k in 0..count {
        text += &format!("%a{k} = sqrt %x{k} : {}\n", of(k));
    }
    let results: Vec<String> = (0..count).map(|k| format!("%a{k}")).collect();
    text + &format!("return {}\n}}", results.join(", "))
}

#[test]
fn independent_launches_are_one_grid() {
    let many = plan(&branches(40, |k| [64, 256 + 128 * (k % 3)]));
    assert_eq!(groups(&many), [40], "{many}");
    // Those of one kernel follow each other.
    let Some(Step::Group(all)) = many.steps.iter().find(|s| matches!(s, Step::Group(_))) else {
        panic!("{many}");
    };
    let changes = all.windows(2).filter(|p| p[0].kernel != p[1].kernel).count();
    assert_eq!(changes, 2, "{many}");
}

#[test]
fn what_the_caller_gives_is_copied_ahead_of_a_group() {
    let from_host = |text: &str| plan_on(text, 1, Vec::new(), DeviceId::HOST);
    let many = from_host(&branches(20, |k| [64, 256 + 128 * (k % 3)]));
    assert_eq!(groups(&many), [20], "{many}");
    let group = many.steps.iter().position(|s| matches!(s, Step::Group(_)));
    let is_copy = |s: &Step| matches!(s, Step::Copy { .. });
    assert!(many.steps[..group.expect("a group")].iter().all(is_copy), "{many}");
    // A megabyte and a half each: two groups have two of them ahead, the other one is alone.
    let larger = from_host(&branches(5, |_| [384, 1024]));
    assert_eq!(groups(&larger), [2, 2], "{larger}");
}

#[test]
fn a_group_has_so_many_kernels_and_values() {
    // Each of another size: sixteen kernels at most are compiled together.
    let sizes = plan(&branches(40, |k| [64, 256 + 4 * k]));
    assert_eq!(groups(&sizes), [16, 16, 8], "{sizes}");
    // Addresses of two buffers each, and half a value for blocks: 2.5 * 1638 is 4095.
    let values = plan(&branches(1700, |_| [64, 256]));
    assert_eq!(groups(&values), [1638, 62], "{values}");
}

#[test]
fn large_launches_and_those_that_write_much_stay_apart() {
    assert_eq!(groups(&plan(&branches(3, |_| [4096, 4096]))), [0usize; 0]);
    // A megabyte each: four of them in the arena at most. (Outputs are not there.)
    let text = "graph @much(%x: f32[512, 512], %y: f32[512, 512], %w: f32[512, 512]) {
       %a = sqrt %x : f32[512, 512]
       %b = sqrt %y : f32[512, 512]
       %c = sqrt %w : f32[512, 512]
       %0 = einsum %a, %b {ab,bc->ac} : f32[512, 512]
       %1 = einsum %0, %c {ab,bc->ac} : f32[512, 512]
       return %1, %0
     }";
    let much = plan(text);
    assert!(groups(&much).iter().sum::<usize>() <= 4, "{much}");
}

#[test]
fn what_depends_on_a_group_comes_behind_it() {
    let mut text = "graph @levels(%x: f32[256, 512], %y: f32[256, 512], %w: f32[256, 512]) {\n".to_string();
    let of = "f32[256, 512]";
    // Each level needs whole rows and columns of what is before it.
    for (k, x) in ["x", "y", "w"].into_iter().enumerate() {
        text += &format!(
            "%s{k} = reduce add %{x} {{axes=[1]}} : f32[256]
             %r{k} = reshape %s{k} : f32[256, 1]
             %e{k} = expand %r{k} : {of}
             %d{k} = sub %{x}, %e{k} : {of}
             %t{k} = reduce max %d{k} {{axes=[0]}} : f32[512]\n"
        );
    }
    text += "return %t0, %t1, %t2\n}";
    let levels = plan(&text);
    let found = groups(&levels);
    assert!(found.len() >= 2 && found.iter().all(|n| *n == 3), "{levels}");
}

#[test]
fn under_a_limit_of_memory_launches_stay_apart() {
    let limited = plan_with(&branches(5, |_| [64, 256]), vec![u64::MAX, 1 << 30]);
    assert_eq!(groups(&limited), [0usize; 0], "{limited}");
}

#[test]
fn groups_are_read_as_they_are_printed_and_are_not_too_large() {
    let mut plan = plan(&branches(6, |_| [64, 256]));
    let module = tlc_ir::text::parse_module(&plan.to_string(), &mut no_data).expect("it is read");
    assert_eq!(module.to_string().trim(), plan.to_string().trim());
    let group = plan.steps.iter_mut().find_map(|s| match s {
        Step::Group(all) => Some(all),
        _ => None,
    });
    let all = group.expect("a group");
    let first = all[0].clone();
    // Conflicts aside, it is given too many values.
    all.resize(2000, first);
    let broken = verify(&plan).errors.into_iter();
    assert!(broken.map(|e| e.rule).any(|r| matches!(r, PlanRule::GroupSize(..))));
}
