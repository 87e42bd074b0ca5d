//! Which launches of a GPU run beside others, in a second queue.

use tlc_ir::HostTensor;
use tlc_ir::interp;
use tlc_ir::plan::interp::interpret_shuffled;
use tlc_ir::plan::verify::{PlanRule, verify, verify_layout};
use tlc_ir::plan::{DeviceId, Layout, Plan, QueueId, SlotId, Step, Storage};
use tlc_ir::text::{no_data, parse_graph};
use tlc_passes::memory::pack;

use crate::grids::plan_on;

/// The second queue of kernels of one GPU, and those of two.
const SECOND: [QueueId; 3] = [QueueId(4), QueueId(7), QueueId(8)];

fn plan_with(text: &str, gpus: usize, limits: Vec<u64>) -> Plan {
    plan_on(text, gpus, limits, DeviceId(1))
}

fn plan(text: &str) -> Plan {
    plan_with(text, 1, Vec::new())
}

/// The steps of the second queue of kernels.
fn there(plan: &Plan) -> Vec<usize> {
    (0..plan.steps.len()).filter(|s| plan.beside(*s).is_some()).collect()
}

/// Chains of so many products by matrix instructions, which are no launches of a group, of `rows` rows by square matrices of `side`, each of an input of its own, added up at the end.
fn chains(lengths: &[usize], [rows, side]: [usize; 2]) -> String {
    let most = lengths.iter().max().copied().unwrap_or(0);
    let inputs = (0..lengths.len()).map(|k| format!("%x{k}: f16[{rows}, {side}]"));
    let weights = (0..most).map(|k| format!("%w{k}: f16[{side}, {side}]"));
    let all: Vec<String> = inputs.chain(weights).collect();
    let mut text = format!("graph @chains({}) {{\n", all.join(", "));
    let mut ends = Vec::new();
    for (k, &length) in lengths.iter().enumerate() {
        let mut last = format!("%x{k}");
        for n in 0..length {
            text += &format!("%c{k}s{n} = einsum {last}, %w{n} {{ab,bc->ac; acc=f32}} : f16[{rows}, {side}]\n");
            last = format!("%c{k}s{n}");
        }
        ends.push(last);
    }
    let mut sum = ends[0].clone();
    for (k, end) in ends.iter().enumerate().skip(1) {
        text += &format!("%sum{k} = add {sum}, {end} : f16[{rows}, {side}]\n");
        sum = format!("%sum{k}");
    }
    text + &format!("return {sum}\n}}")
}

#[test]
fn chains_of_small_launches_run_beside_each_other() {
    let two = plan(&chains(&[3, 3], [128, 256]));
    let second = there(&two);
    assert!((2..=3).contains(&second.len()), "{two}");
    assert!(second.iter().all(|&s| two.turns[s].queue == SECOND[0]), "{two}");
    // What adds both up waits for the one that is elsewhere; within a chain nothing waits.
    let waits: usize = two.turns.iter().map(|t| t.waits.len()).sum();
    assert!((1..=2).contains(&waits), "{two}");
    // The same lists of queues everywhere, and those of a plan that needs no more are as they were.
    assert_eq!(two.queues.len(), 5);
}

#[test]
fn one_chain_has_one_queue() {
    let one = plan(&chains(&[4], [128, 256]));
    assert_eq!((there(&one), one.queues.len()), (vec![], 4), "{one}");
}

#[test]
fn what_takes_no_longer_than_the_waits_stays() {
    let short = plan(&chains(&[3, 1], [32, 64]));
    assert_eq!((there(&short), short.queues.len()), (vec![], 4), "{short}");
}

#[test]
fn what_fills_the_device_has_no_other_beside_it() {
    let large = plan(&chains(&[3, 3], [4096, 1024]));
    assert_eq!((there(&large), large.queues.len()), (vec![], 4), "{large}");
}

#[test]
fn under_a_limit_of_memory_launches_stay_one_behind_another() {
    let limited = plan_with(&chains(&[3, 3], [128, 256]), 1, vec![u64::MAX, 1 << 30]);
    assert_eq!(there(&limited), [0usize; 0], "{limited}");
}

/// The values of slots of two chains are alive at once wherever steps of both may run at once.
fn apart(plan: &Plan, layout: &Layout) -> usize {
    let order = plan.order();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); plan.slots.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        step.visit_slots(&mut |s, _| users[plan.root(s).0 as usize].push(at), &plan.kernels);
    }
    let bytes = |s: usize| {
        let at = layout.offsets[s].expect("placed");
        let slot = &plan.slots[s];
        let len = slot.len.as_const().expect("known") as u64 * slot.dtype.bytes() as u64;
        at..at + len
    };
    let arena: Vec<usize> = (0..plan.slots.len())
        .filter(|&s| plan.slots[s].storage == Storage::Arena && !users[s].is_empty())
        .collect();
    let mut compared = 0;
    for (k, &a) in arena.iter().enumerate() {
        for &b in &arena[..k] {
            let all_before =
                |x: usize, y: usize| users[x].iter().all(|&p| users[y].iter().all(|&q| order.before(p, q)));
            if !all_before(a, b) && !all_before(b, a) {
                let (x, y) = (bytes(a), bytes(b));
                assert!(x.end <= y.start || y.end <= x.start, "{a} {b}\n{plan}");
                compared += 1;
            }
        }
    }
    compared
}

#[test]
fn chains_beside_each_other_have_no_bytes_in_common() {
    let mut compared = 0;
    for lengths in [[3, 3], [5, 4], [2, 7]] {
        let plan = plan(&chains(&lengths, [128, 256]));
        assert!(!there(&plan).is_empty(), "{plan}");
        let layout = pack(&plan, &[]).expect("a layout");
        assert!(verify_layout(&plan, &layout, &[]).is_empty());
        compared += apart(&plan, &layout);
    }
    assert!(compared > 10, "{compared}");
}

/// A wait that is left out, and values of two chains in one place: the verifier finds both.
#[test]
fn wrong_waits_and_places_are_found() {
    let right = plan(&chains(&[4, 4], [128, 256]));
    let mut found = 0;
    for (step, turn) in right.turns.iter().enumerate() {
        for k in 0..turn.waits.len() {
            let mut wrong = right.clone();
            wrong.turns[step].waits.remove(k);
            let report = verify(&wrong);
            assert!(
                report.errors.iter().any(|e| matches!(e.rule, PlanRule::Unordered(..))),
                "{wrong}"
            );
            found += 1;
        }
    }
    assert!(found > 0);
    let layout = pack(&right, &[]).expect("a layout");
    let written = |step: usize| {
        let mut slots = Vec::new();
        let mut note = |s: SlotId, writes: bool| {
            if writes && right.slots[s.0 as usize].storage == Storage::Arena {
                slots.push(s.0 as usize);
            }
        };
        right.steps[step].visit_slots(&mut note, &right.kernels);
        slots
    };
    let second = there(&right);
    let order = right.order();
    let of_first = (0..right.steps.len()).filter(|s| !second.contains(s) && !order.before(*s, second[0]));
    let one = of_first.flat_map(written).next().expect("a value of the first queue");
    let other = written(second[0])[0];
    assert_ne!(one, other);
    let mut wrong = layout;
    wrong.offsets[other] = wrong.offsets[one];
    assert!(!verify_layout(&right, &wrong, &[]).is_empty(), "{right}");
}

/// In the body of a loop as well, and the queues of all plans are the same.
#[test]
fn bodies_of_loops_have_the_same_queues() {
    let text = "graph @loop(%x: f16[128, 256], %y: f16[128, 256], %w: f16[256, 256]) {
       %0 = loop %x, %y, %w {trip=3, carried=2} body @step(%i: i64[], %x: f16[128, 256], %y: f16[128, 256], %w: f16[256, 256]) {
         %a = einsum %x, %w {ab,bc->ac; acc=f32} : f16[128, 256]
         %b = einsum %a, %w {ab,bc->ac; acc=f32} : f16[128, 256]
         %c = einsum %y, %w {ab,bc->ac; acc=f32} : f16[128, 256]
         %d = einsum %c, %w {ab,bc->ac; acc=f32} : f16[128, 256]
         return %b, %d
       } : (f16[128, 256], f16[128, 256])
       %1 = project %0 {result=0} : f16[128, 256]
       %2 = project %0 {result=1} : f16[128, 256]
       return %1, %2
     }";
    let plan = plan(text);
    let bodies: Vec<&Plan> = (plan.steps.iter())
        .filter_map(|s| match s {
            Step::Loop(l) => Some(&l.body),
            _ => None,
        })
        .collect();
    assert!(bodies.iter().any(|b| !there(b).is_empty()), "{plan}");
    assert!(bodies.iter().all(|b| b.queues == plan.queues), "{plan}");
}

/// Any order that queues and waits allow gives the values of the graph.
#[test]
fn every_order_has_the_same_values() {
    for lengths in [[3, 3], [2, 4]] {
        let text = chains(&lengths, [320, 64]);
        let graph = parse_graph(&text, &mut no_data).expect("a graph");
        let inputs: Vec<HostTensor> = (graph.inputs().iter().enumerate())
            .map(|(k, &i)| {
                let ty = graph.ty(i);
                let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().expect("known") as usize).collect();
                let mut t = HostTensor::zeros(ty.dtype, &shape).expect("a tensor");
                for at in 0..t.len() {
                    let value = match (at * 7 + k * 3) % 37 {
                        0 => 1.0,
                        1 => -1.0,
                        _ => 0.0,
                    };
                    t.set(at, tlc_ir::Scalar::from_f64(ty.dtype, value));
                }
                t
            })
            .collect();
        let expected = interp::interpret(&graph, &inputs, &interp::Options::default()).expect("values");
        let plan = plan(&text);
        assert!(!there(&plan).is_empty(), "{plan}");
        let layout = pack(&plan, &[]).expect("a layout");
        for seed in 0..2 {
            let found = interpret_shuffled(&plan, Some(&layout), &inputs, &[], seed).expect("values");
            // Small whole numbers: sums of their products are exact in any order.
            assert_eq!(found[0].bytes(), expected[0].bytes(), "{plan}");
        }
    }
}

/// Of two GPUs, each has its second queue behind the others.
#[test]
fn second_queues_are_behind_those_that_every_gpu_has() {
    let two = plan_with(&chains(&[3, 3], [128, 256]), 2, Vec::new());
    let of_gpus = there(&two).into_iter().map(|s| two.turns[s].queue);
    assert!(of_gpus.into_iter().all(|q| SECOND[1..].contains(&q)), "{two}");
}
