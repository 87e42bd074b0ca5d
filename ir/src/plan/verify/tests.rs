use super::*;
use crate::graph::TensorType;
use crate::kernel::{Bind, Kernel, Memory, Op, Param, Stmt};
use crate::plan::Layout;
use crate::plan::{Arena, KernelId, PlanInput, PlanOutput, Slot};

/// `p1[i] = p0[i + shift]` over 4 elements.
fn copying(shift: i64) -> Kernel {
    let param = |access| Param {
        dtype: DType::F32,
        len: 4.into(),
        access,
    };
    let mut k = Kernel {
        params: vec![param(Access::Read), param(Access::Write)],
        ..Kernel::default()
    };
    let i = k.new_var((4 - shift).into());
    let x = k.new_value(DType::F32);
    k.body = vec![Stmt::Loop {
        var: i,
        bind: Bind::Serial,
        body: vec![
            Stmt::Let {
                value: x,
                op: Op::Load {
                    memory: Memory::Param(0),
                    index: IndexExpr::from(i) + shift.into(),
                    mask: None,
                },
            },
            Stmt::Store {
                memory: Memory::Param(1),
                index: i.into(),
                value: x,
                mask: None,
            },
        ],
    }];
    k
}

/// Input 0, then two arena slots, then the output, each a copy of the one before.
fn chain() -> Plan {
    let ty = TensorType::new(DType::F32, [4]);
    let slot = |name: &str, storage| Slot {
        name: name.into(),
        dtype: DType::F32,
        len: 4.into(),
        storage,
        device: DeviceId::HOST,
    };
    let step = |from: u32, to: u32| {
        Step::Launch(Launch {
            kernel: KernelId(0),
            args: vec![SlotId(from), SlotId(to)],
            symbols: vec![],
            work: Work::Chunks { grain: 1.into() },
            label: "copy".into(),
            bytes: 32.into(),
            flops: 0.into(),
        })
    };
    Plan {
        inputs: vec![PlanInput {
            name: "x".into(),
            ty: ty.clone(),
            slot: Some(SlotId(0)),
        }],
        outputs: vec![PlanOutput {
            name: "y".into(),
            ty,
            slot: SlotId(3),
        }],
        slots: vec![
            slot("x", Storage::Input(0)),
            slot("a", Storage::Arena),
            slot("b", Storage::Arena),
            slot("y", Storage::Output(0)),
        ],
        kernels: vec![copying(0)],
        steps: vec![step(0, 1), step(1, 2), step(2, 3)],
        ..Plan::default()
    }
}

fn rules(plan: &Plan) -> Vec<PlanRule> {
    verify(plan).errors.into_iter().map(|v| v.rule).collect()
}

#[test]
fn a_right_plan_passes() {
    assert_eq!(verify(&chain()), PlanReport::default());
}

#[test]
fn reads_come_after_writes_and_inputs_stay() {
    let mut p = chain();
    p.steps.swap(1, 2);
    assert_eq!(rules(&p), [PlanRule::Unwritten(SlotId(2))]);
    let mut p = chain();
    if let Step::Launch(l) = &mut p.steps[1] {
        l.args[1] = SlotId(0);
    }
    assert!(rules(&p).contains(&PlanRule::ReadOnly(SlotId(0))));
}

#[test]
fn in_place_needs_each_element_read_where_it_is_written() {
    let mut p = chain();
    p.slots[2].storage = Storage::Alias(SlotId(1));
    assert_eq!(verify(&p), PlanReport::default());
    p.kernels[0] = copying(1);
    assert_eq!(rules(&p), [PlanRule::NotInPlace(SlotId(1), SlotId(2))]);
}

#[test]
fn an_input_is_donated_to_an_output_that_begins_where_it_ends() {
    let mut p = chain();
    p.donations = vec![(0, 0)];
    assert_eq!(verify(&p), PlanReport::default());
    // Read again after the output was written.
    let again = p.steps[0].clone();
    p.steps.push(again);
    assert_eq!(rules(&p), [PlanRule::Donation(0, 0)]);
    // Written where it is read, but not element by element.
    p.steps.truncate(1);
    if let Step::Launch(l) = &mut p.steps[0] {
        l.args[1] = SlotId(3);
    }
    assert_eq!(verify(&p), PlanReport::default());
    p.kernels[0] = copying(1);
    assert_eq!(rules(&p), [PlanRule::Donation(0, 0)]);
}

#[test]
fn an_alias_does_not_overwrite_what_is_read_later() {
    let mut p = chain();
    p.slots[2].storage = Storage::Alias(SlotId(1));
    let again = p.steps[0].clone();
    p.steps.push(again);
    if let Step::Launch(l) = &mut p.steps[3] {
        l.args = vec![SlotId(1), SlotId(3)];
    }
    assert_eq!(rules(&p), [PlanRule::AliasLive(SlotId(1), SlotId(2))]);
}

#[test]
fn launches_of_a_group_touch_their_own() {
    let mut p = chain();
    let launches = p.steps.drain(..2).map(|s| match s {
        Step::Launch(l) => l,
        _ => unreachable!(),
    });
    let group = Step::Group(launches.collect());
    p.steps.insert(0, group);
    assert!(rules(&p).contains(&PlanRule::GroupConflict(SlotId(1))));
}

#[test]
fn launches_of_a_sequence_read_what_earlier_ones_wrote() {
    let mut p = chain();
    let launches: Vec<Launch> = p.steps.drain(..2).flat_map(|s| s.launches().to_vec()).collect();
    p.steps.insert(0, Step::Sequence(launches.clone()));
    // The host has no sequences, but what the launches read and write is in order.
    let broken = |p: &Plan| -> Vec<PlanRule> {
        let mut all = rules(p);
        all.retain(|r| !matches!(r, PlanRule::Sequence(..)));
        all
    };
    assert_eq!(broken(&p), []);
    p.steps[0] = Step::Sequence(launches.into_iter().rev().collect());
    assert_eq!(broken(&p), [PlanRule::Unwritten(SlotId(1))]);
}

#[test]
fn live_slots_do_not_overlap() {
    let p = chain();
    let layout = |a, b| Layout {
        offsets: vec![None, Some(a), Some(b), None],
        arenas: smallvec::smallvec![Arena {
            bytes: 128,
            ..Arena::default()
        }],
        ..Layout::default()
    };
    assert!(verify_layout(&p, &layout(0, 64), &[]).is_empty());
    let found = verify_layout(&p, &layout(64, 64), &[]);
    assert_eq!(found[0].rule, PlanRule::Overlap(SlotId(1), SlotId(2)));
    assert_eq!(
        verify_layout(&p, &layout(0, 128), &[])[0].rule,
        PlanRule::Place(SlotId(2))
    );
}

#[test]
fn init_steps_fill_what_lives_as_long_as_the_executable() {
    // A constant is copied once; the copy is read at each call.
    let mut p = chain();
    p.constants = vec![crate::tensor::HostTensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap()];
    p.slots[0].storage = Storage::Constant(0);
    p.slots[1].storage = Storage::Persistent;
    p.init = vec![p.steps.remove(0)];
    assert_eq!(verify(&p), PlanReport::default());
    // A call's step may not write it, and the arena holds nothing between calls.
    let mut late = p.clone();
    late.steps.push(late.init[0].clone());
    assert_eq!(rules(&late), [PlanRule::Once(SlotId(1))]);
    let mut arena = p.clone();
    arena.slots[1].storage = Storage::Arena;
    assert!(rules(&arena).contains(&PlanRule::Once(SlotId(1))));
    // What depends on an input is not computed once.
    let mut input = p.clone();
    input.slots[0].storage = Storage::Input(0);
    assert!(rules(&input).contains(&PlanRule::Once(SlotId(0))));
    p.init.clear();
    assert_eq!(rules(&p), [PlanRule::Unwritten(SlotId(1))]);
}

#[test]
fn overlaps_in_the_arena_are_those_that_comparing_all_pairs_finds() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..4000 {
        let count = 2 + random(6) as usize;
        let placed: Vec<(usize, u64, u64, (usize, usize))> = (0..count)
            .map(|slot| {
                let (from, birth) = (64 * random(6), random(5) as usize);
                (slot, from, from + 64 * random(4), (birth, birth + random(3) as usize))
            })
            .collect();
        let mut pairs = Vec::new();
        for (i, a) in placed.iter().enumerate() {
            for b in &placed[i + 1..] {
                let filled = a.1 < a.2 && b.1 < b.2;
                let together = a.3.0 <= b.3.1 && b.3.0 <= a.3.1;
                if filled && together && a.1 < b.2 && b.1 < a.2 {
                    pairs.push(PlanRule::Overlap(SlotId(a.0 as u32), SlotId(b.0 as u32)));
                }
            }
        }
        let mut found = Vec::new();
        layout::overlaps(&placed, &mut |rule| found.push(rule));
        assert_eq!(found.is_empty(), pairs.is_empty(), "{placed:?}");
        assert!(found.iter().all(|f| pairs.contains(f)), "{placed:?}: {found:?}");
        match pairs.is_empty() {
            true => right += 1,
            false => wrong += 1,
        }
    }
    assert!(right > 200 && wrong > 200, "{right} right, {wrong} wrong");
}
