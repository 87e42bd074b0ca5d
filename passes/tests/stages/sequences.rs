//! Which launches of a GPU one block does in turn.

use tlc_ir::plan::{DeviceId, Plan, Step};
use tlc_ir::text::no_data;

use crate::grids::plan_on;

fn plan_with(text: &str, limits: Vec<u64>) -> Plan {
    plan_on(text, 1, limits, DeviceId::HOST)
}

fn plan(text: &str) -> Plan {
    plan_with(text, Vec::new())
}

/// The launches of each step that has any.
fn launches(plan: &Plan) -> Vec<usize> {
    let all = plan.steps.iter().map(|s| s.launches().len());
    all.filter(|n| *n > 0).collect()
}

/// So many products of matrices of `n` by `n`, each with what the one before it leaves.
fn products(n: usize, count: usize) -> String {
    let of = format!("f32[{n}, {n}]");
    let mut text =
        format!("graph @products(%x: {of}, %w: {of}) {{\n%zero = const 0.0 : f32[]\n%zeros = expand %zero : {of}\n");
    let mut last = "%x".to_string();
    for k in 0..count {
        text += &format!("%p{k} = einsum {last}, %w {{ab,bc->ac}} : {of}\n%{k} = max %p{k}, %zeros : {of}\n");
        last = format!("%{k}");
    }
    text + &format!("return {last}\n}}")
}

#[test]
fn small_products_are_one_launch() {
    assert_eq!(launches(&plan(&products(32, 20))), [20]);
    // So many are as many as a kernel is given values of.
    let many = launches(&plan(&products(16, 150)));
    assert_eq!(many.iter().sum::<usize>(), 150);
    assert!(many.len() > 1 && many.iter().all(|n| *n <= 64), "{many:?}");
}

#[test]
fn what_gains_from_several_multiprocessors_stays_apart() {
    assert_eq!(launches(&plan(&products(512, 3))), [1, 1, 1]);
}

#[test]
fn small_launches_around_a_large_one_stay_on_their_sides() {
    let text = "graph @around(%x: f32[32, 32], %w: f32[32, 32], %big: f32[2048, 1024]) {
       %0 = einsum %x, %w {ab,bc->ac} : f32[32, 32]
       %1 = einsum %0, %w {ab,bc->ac} : f32[32, 32]
       %2 = reduce add %1 {axes=[0, 1]} : f32[]
       %3 = expand %2 : f32[2048, 1024]
       %4 = mul %big, %3 : f32[2048, 1024]
       %5 = reduce max %4 {axes=[0]} : f32[1024]
       %6 = slice %5 {start=[0], step=[1]} : f32[32]
       %7 = expand %6 : f32[32, 32]
       %8 = einsum %7, %w {ab,bc->ac} : f32[32, 32]
       %9 = einsum %8, %w {ab,bc->ac} : f32[32, 32]
       return %9, %4
     }";
    let plan = plan(text);
    let found = launches(&plan);
    assert!(
        found[0] >= 2 && found[found.len() - 1] >= 2 && found.len() >= 3,
        "{plan}"
    );
}

/// What a sequence touches lives longer, which a limit of memory may not allow for.
#[test]
fn under_a_limit_of_memory_launches_stay_apart() {
    let limited = plan_with(&products(32, 5), vec![u64::MAX, 1 << 30]);
    assert!(
        limited.steps.iter().all(|s| !matches!(s, Step::Sequence(_))),
        "{limited}"
    );
}

#[test]
fn sequences_are_read_as_they_are_printed() {
    let plan = plan(&products(32, 3));
    let module = tlc_ir::text::parse_module(&plan.to_string(), &mut no_data).expect("it is read");
    assert_eq!(module.to_string().trim(), plan.to_string().trim());
}
