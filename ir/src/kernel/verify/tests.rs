use smallvec::smallvec;

use super::*;
use crate::dtype::Scalar;
use crate::graph::Monoid;
use crate::index::SymId;
use crate::kernel::Param;
use crate::scalar::ScalarOp;

fn load(memory: Memory, index: impl Into<IndexExpr>) -> Op {
    Op::Load {
        memory,
        index: index.into(),
        mask: None,
    }
}

fn store(memory: Memory, index: impl Into<IndexExpr>, value: ValueId) -> Stmt {
    Stmt::Store {
        memory,
        index: index.into(),
        value,
        mask: None,
    }
}

fn param(dtype: DType, len: impl Into<IndexExpr>, access: Access) -> Param {
    Param {
        dtype,
        len: len.into(),
        access,
    }
}

/// `p1[i] = -p0[i]` for i in n, over params of length `len`.
fn negate(n: IndexExpr, len: IndexExpr, bind: Bind, symbols: Vec<(i64, i64)>) -> Kernel {
    let mut k = Kernel {
        params: vec![
            param(DType::F32, len.clone(), Access::Read),
            param(DType::F32, len, Access::Write),
        ],
        symbols,
        ..Kernel::default()
    };
    let i = k.new_var(n);
    let (x, y) = (k.new_value(DType::F32), k.new_value(DType::F32));
    k.body = vec![Stmt::Loop {
        var: i,
        bind,
        body: vec![
            Stmt::Let {
                value: x,
                op: load(Memory::Param(0), i),
            },
            Stmt::Let {
                value: y,
                op: Op::Map(ScalarOp::Neg, smallvec![x]),
            },
            store(Memory::Param(1), i, y),
        ],
    }];
    k
}

fn plain() -> Kernel {
    negate(8.into(), 8.into(), Bind::Serial, vec![])
}

fn inner(k: &mut Kernel) -> &mut Vec<Stmt> {
    match &mut k.body[0] {
        Stmt::Loop { body, .. } => body,
        _ => unreachable!(),
    }
}

fn rules(k: &Kernel) -> Vec<Rule> {
    verify(k).errors.into_iter().map(|v| v.rule).collect()
}

#[test]
fn a_right_kernel_passes() {
    // A warp is 32 threads of a block.
    for bind in Bind::ALL.into_iter().filter(|b| *b != Bind::Warp) {
        let mut k = negate(8.into(), 8.into(), bind, vec![]);
        if bind == Bind::Thread {
            // Threads are those of a block.
            let (var, body) = (k.new_var(IndexExpr::ONE), std::mem::take(&mut k.body));
            k.body = vec![Stmt::Loop {
                var,
                bind: Bind::Block,
                body,
            }];
        }
        if matches!(bind, Bind::Copy | Bind::Stream) {
            assert_eq!(rules(&k), [Rule::NotACopy(bind, VarId(0))]);
            inner(&mut k).remove(1);
            let Stmt::Store { value, .. } = &mut inner(&mut k)[1] else {
                unreachable!()
            };
            *value = ValueId(0);
        }
        assert_eq!(verify(&k), Report::default(), "{bind:?}");
    }
    let n = IndexExpr::from(SymId(0));
    for bind in [Bind::Serial, Bind::Parallel] {
        let k = negate(n.clone(), n.clone(), bind, vec![(0, 1000)]);
        assert_eq!(verify(&k), Report::default());
    }
}

#[test]
fn values_are_defined_once_and_before_use() {
    let mut k = plain();
    let again = inner(&mut k)[0].clone();
    inner(&mut k).insert(1, again);
    assert_eq!(rules(&k), [Rule::Redefined(ValueId(0))]);
    let mut k = plain();
    inner(&mut k).swap(0, 1);
    assert_eq!(rules(&k), [Rule::NotDefined(ValueId(0))]);
    let mut k = plain();
    let last = inner(&mut k).pop().unwrap();
    k.body.push(last);
    assert_eq!(rules(&k), [Rule::VariableScope(VarId(0)), Rule::NotDefined(ValueId(1))]);
}

#[test]
fn dtypes_are_exact() {
    let mut k = plain();
    k.values[1] = DType::F64;
    let found = rules(&k);
    assert!(
        matches!(&found[..], [Rule::Dtype { .. }, Rule::Dtype { .. }]),
        "{found:?}"
    );
    let mut k = plain();
    inner(&mut k)[1] = Stmt::Let {
        value: ValueId(1),
        op: Op::Map(ScalarOp::Shl, smallvec![ValueId(0), ValueId(0)]),
    };
    assert!(matches!(&rules(&k)[..], [Rule::Operands(_)]));
}

#[test]
fn bindings_are_where_they_belong() {
    let n = IndexExpr::from(SymId(0));
    let k = negate(n.clone(), n.clone(), Bind::Lanes, vec![(0, 100)]);
    assert_eq!(rules(&k), [Rule::ExtentNotConstant(Bind::Lanes, VarId(0))]);
    let mut k = negate(8.into(), 8.into(), Bind::Parallel, vec![]);
    k.body.push(Stmt::Barrier);
    assert_eq!(rules(&k), [Rule::ParallelPosition(VarId(0))]);
}

#[test]
fn accesses_outside_are_refuted_with_an_example() {
    let k = negate(9.into(), 8.into(), Bind::Serial, vec![]);
    let found = rules(&k);
    assert!(
        matches!(&found[0], Rule::OutOfBounds { memory: Memory::Param(0), example } if example.vars == [(VarId(0), 8)]),
        "{found:?}"
    );
    let (n, m) = (IndexExpr::from(SymId(0)), IndexExpr::from(SymId(1)));
    let k = negate(n, m, Bind::Serial, vec![(1, 100), (1, 100)]);
    assert_eq!(rules(&k).len(), 2);
}

#[test]
fn parameter_modes_are_respected() {
    let mut k = plain();
    k.params[1].access = Access::Read;
    assert!(matches!(&rules(&k)[..], [Rule::ParamAccess { param: 1, .. }]));
    let mut k = plain();
    k.params[0].access = Access::Write;
    assert!(matches!(&rules(&k)[..], [Rule::ParamAccess { param: 0, .. }]));
}

#[test]
fn parallel_iterations_write_apart() {
    let mut k = negate(8.into(), 8.into(), Bind::Parallel, vec![]);
    inner(&mut k)[2] = store(Memory::Param(1), 0, ValueId(1));
    assert!(matches!(&rules(&k)[..], [Rule::ParallelConflict { param: 1, .. }]));
    // Quotient and remainder, swapped: a transposition by one fused loop.
    let mut k = negate(1_000_000.into(), 1_000_000.into(), Bind::Parallel, vec![]);
    let v = IndexExpr::from(VarId(0));
    let thousand = IndexExpr::from(1000);
    let swapped = IndexExpr::modulo(&v, &thousand) * 1000.into() + IndexExpr::floor_div(&v, &thousand);
    inner(&mut k)[2] = store(Memory::Param(1), swapped, ValueId(1));
    assert_eq!(verify(&k), Report::default());
}

#[test]
fn registers_are_indexed_by_what_unrolling_makes_constant() {
    let mut k = Kernel::default();
    let r = k.new_scratch(DType::F32, 8.into(), Scope::Register);
    let (u, l) = (k.new_var(2.into()), k.new_var(4.into()));
    let one = k.new_value(DType::F32);
    let at = |c: i64| IndexExpr::from(u) * c.into() + l.into();
    let nest = |outer: Bind, c: i64| Stmt::Loop {
        var: u,
        bind: outer,
        body: vec![Stmt::Loop {
            var: l,
            bind: Bind::Lanes,
            body: vec![
                Stmt::Let {
                    value: one,
                    op: Op::Const(DType::F32.one()),
                },
                store(r, at(c), one),
            ],
        }],
    };
    k.body = vec![nest(Bind::Unroll, 4)];
    assert_eq!(verify(&k), Report::default());
    k.body = vec![nest(Bind::Serial, 4)];
    assert_eq!(rules(&k), [Rule::RegisterIndex { scratch: 0 }]);
    k.body = vec![nest(Bind::Unroll, 2)];
    assert_eq!(rules(&k), [Rule::RegisterIndex { scratch: 0 }]);
    // A lane's elements may lie apart from those of others, if a constant says how far.
    let mut across = |lane: IndexExpr| {
        k.body = vec![Stmt::Loop {
            var: l,
            bind: Bind::Lanes,
            body: vec![
                Stmt::Let {
                    value: one,
                    op: Op::Const(DType::F32.one()),
                },
                store(r, lane, one),
            ],
        }];
        rules(&k)
    };
    assert_eq!(across(IndexExpr::from(l) * 2.into() + 1.into()), []);
    // Two lanes at one element also collide.
    assert_eq!(
        across(IndexExpr::floor_div(&l.into(), &2.into())),
        [
            Rule::RegisterIndex { scratch: 0 },
            Rule::LanesCollide { lanes: l, memory: r }
        ]
    );
}

#[test]
fn lanes_do_not_accumulate_into_one_element() {
    let mut k = Kernel::default();
    let r = k.new_scratch(DType::F32, 1.into(), Scope::Register);
    let l = k.new_var(4.into());
    let (zero, one) = (k.new_value(DType::F32), k.new_value(DType::F32));
    let constant = |value, c: Scalar| Stmt::Let {
        value,
        op: Op::Const(c),
    };
    k.body = vec![
        constant(zero, DType::F32.zero()),
        store(r, 0, zero),
        Stmt::Loop {
            var: l,
            bind: Bind::Lanes,
            body: vec![
                constant(one, DType::F32.one()),
                Stmt::Accumulate {
                    monoid: Monoid::Add,
                    state: smallvec![(r, IndexExpr::ZERO)],
                    values: smallvec![one],
                },
            ],
        },
    ];
    assert_eq!(rules(&k), [Rule::LanesCollide { lanes: l, memory: r }]);
}

#[test]
fn what_is_refuted_at_the_ends_of_loops_needs_no_proof() {
    let n = IndexExpr::from(SymId(0));
    let sizes = [vec![1], vec![7], vec![37]];
    for bind in [Bind::Serial, Bind::Parallel] {
        let right = negate(n.clone(), n.clone(), bind, vec![(0, 100)]);
        assert_eq!(refute(&right, &sizes), None);
        let short = negate(n.clone(), n.clone() - 1.into(), bind, vec![(1, 100)]);
        let found = refute(&short, &sizes).expect("the last element is outside");
        assert!(matches!(found.rule, Rule::OutOfBounds { .. }), "{found}");
        // Values under which nothing is launched refute nothing.
        let half = IndexExpr::floor_div(&n, &2.into());
        let other = negate(half.clone(), half, bind, vec![(0, 100)]);
        assert_eq!(refute(&other, &[]), None);
    }
    // Blocks of which the last is cut short: nothing is outside, and no two share an element.
    let mut k = negate(1000.into(), 1000.into(), Bind::Serial, vec![]);
    let block = k.new_var(IndexExpr::Const(4));
    let left = IndexExpr::min(
        &256.into(),
        &(IndexExpr::Const(1000) - IndexExpr::from(block) * 256.into()),
    );
    k.extents[0] = left;
    let at = IndexExpr::from(block) * 256.into() + VarId(0).into();
    let mut body = std::mem::take(&mut k.body);
    let Stmt::Loop { body: inner, .. } = &mut body[0] else {
        panic!("a loop")
    };
    for s in inner.iter_mut() {
        match s {
            Stmt::Let {
                op: Op::Load { index, .. },
                ..
            }
            | Stmt::Store { index, .. } => *index = at.clone(),
            _ => {}
        }
    }
    k.body = vec![Stmt::Loop {
        var: block,
        bind: Bind::Parallel,
        body,
    }];
    assert_eq!(refute(&k, &[vec![]]), None);
    assert_eq!(verify(&k), Report::default());
    // A block that goes too far leaves the buffer, or meets the next one.
    k.extents[0] = IndexExpr::Const(256);
    let found = refute(&k, &[vec![]]).expect("the last block is too long");
    assert!(matches!(found.rule, Rule::OutOfBounds { .. }), "{found}");
    k.params.iter_mut().for_each(|p| p.len = IndexExpr::Const(2000));
    k.extents[0] = IndexExpr::Const(257);
    let found = refute(&k, &[vec![]]).expect("blocks overlap");
    assert!(matches!(found.rule, Rule::ParallelConflict { .. }), "{found}");
}

#[test]
fn results_that_are_touched_alike_are_apart_alike_and_no_others_are() {
    let with_third = |at: IndexExpr| {
        let mut k = negate(8.into(), 8.into(), Bind::Parallel, vec![]);
        k.params.extend([(); 2].map(|()| param(DType::F32, 8, Access::Write)));
        inner(&mut k).push(store(Memory::Param(2), VarId(0), ValueId(1)));
        inner(&mut k).push(store(Memory::Param(3), at, ValueId(1)));
        k
    };
    let i = IndexExpr::from(VarId(0));
    assert_eq!(refute(&with_third(i.clone()), &[vec![]]), None);
    let found = refute(&with_third(IndexExpr::floor_div(&i, &2.into())), &[vec![]]);
    let found = found.expect("two iterations store to one element");
    assert!(matches!(found.rule, Rule::ParallelConflict { param: 3, .. }), "{found}");
}
