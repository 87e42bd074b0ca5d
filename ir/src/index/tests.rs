//! Normal forms and intervals against brute force.

use super::*;

#[test]
fn a_quotient_is_below_how_often_its_divisor_is_in_a_loop() {
    // v0 below 16*s0, v1 below s0*s1.
    let bounds = Loops(vec![c(16) * s(0), s(0) * s(1)]);
    let guarded = |e: IndexExpr| IndexExpr::max(&e, &c(1));
    for divisor in [s(0), guarded(s(0))] {
        let quotient = IndexExpr::floor_div(&v(0), &divisor);
        assert!(quotient.proves_less(&c(16), &bounds), "{quotient:?}");
        assert!(!quotient.proves_less(&c(15), &bounds), "{quotient:?}");
        let quotient = IndexExpr::floor_div(&v(1), &divisor);
        let place = quotient * c(7) + c(6);
        assert!(place.proves_less(&(s(1) * c(7)), &bounds), "{place:?}");
        assert!(!place.proves_less(&(s(1) * c(7) - c(1)), &bounds), "{place:?}");
    }
    let remainder = IndexExpr::modulo(&v(1), &guarded(s(0) * c(8)));
    let quotient = IndexExpr::floor_div(&remainder, &guarded(s(0)));
    assert!(quotient.proves_less(&c(8), &bounds));
    assert!(!quotient.proves_less(&c(7), &bounds));
    // Not a multiple of the divisor.
    let uneven = IndexExpr::floor_div(&v(0), &(s(0) * c(3)));
    assert!(!uneven.proves_less(&c(6), &bounds));
    // By a number that divides the iterations, however many these are: halves of 16*s0.
    let halves = IndexExpr::floor_div(&v(0), &c(2));
    assert!(halves.proves_less(&(s(0) * c(8)), &bounds));
    assert!(!halves.proves_less(&(s(0) * c(8) - c(1)), &bounds));
    let fifths = IndexExpr::floor_div(&v(0), &c(5));
    assert!(!fifths.proves_less(&(s(0) * c(3)), &bounds));
}

#[test]
fn a_divisor_with_symbols_is_taken_apart_where_the_rest_is_small() {
    // v0 below 128, v1 below s0, v2 below s1.
    let bounds = Loops(vec![c(128), s(0), s(1)]);
    let area = s(0) * s(1);
    let flat = v(0) * area.clone() + v(1) * s(1) + v(2);
    let group = area.clone() * c(16);
    assert_eq!(
        IndexExpr::floor_div(&flat, &group).simplify(&bounds),
        IndexExpr::floor_div(&v(0), &c(16))
    );
    assert_eq!(
        IndexExpr::modulo(&flat, &group).simplify(&bounds),
        IndexExpr::modulo(&v(0), &c(16)) * area + v(1) * s(1) + v(2)
    );
    // A place in a table of groups: the group is below 8, whatever the channel.
    let place = v(1) * c(8) + IndexExpr::floor_div(&v(0), &c(16));
    assert!(place.proves_less(&(s(0) * c(8)), &bounds));
    assert!(!place.proves_less(&(s(0) * c(8) - c(1)), &bounds));
    // The rest may be as large as the part: nothing is known.
    let far = v(0) * s(0) * s(1) + v(1) * s(1) + v(2) + c(1);
    assert!(matches!(
        IndexExpr::floor_div(&far, &group).simplify(&bounds),
        IndexExpr::Node(_)
    ));
    assert_ne!(
        IndexExpr::floor_div(&far, &group).simplify(&bounds),
        IndexExpr::floor_div(&v(0), &c(16))
    );
}

fn v(i: u32) -> IndexExpr {
    VarId(i).into()
}
fn s(i: u32) -> IndexExpr {
    SymId(i).into()
}
fn c(k: i64) -> IndexExpr {
    k.into()
}

struct Loops(Vec<IndexExpr>);
impl Bounds for Loops {
    fn symbol(&self, _: SymId) -> Interval {
        Interval::new(0, 1 << 20)
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        self.0.get(var.0 as usize).cloned()
    }
}

#[test]
fn like_terms_collect_and_cancel() {
    assert_eq!(v(0) + v(1) - v(0), v(1));
    assert_eq!(
        (v(0) + c(2)) * (s(0) + c(3)),
        v(0) * s(0) + c(3) * v(0) + c(2) * s(0) + c(6)
    );
    assert_eq!(v(0) * s(0) - s(0) * v(0), c(0));
}

#[test]
fn flatten_then_unflatten_is_the_identity() {
    let bounds = Loops(vec![s(0), s(1)]);
    let flat = v(0) * s(1) + v(1);
    assert_eq!(IndexExpr::floor_div(&flat, &s(1)).simplify(&bounds), v(0));
    assert_eq!(IndexExpr::modulo(&flat, &s(1)).simplify(&bounds), v(1));
    let back = IndexExpr::floor_div(&v(0), &s(1)) * s(1) + IndexExpr::modulo(&v(0), &s(1));
    assert_eq!(back, v(0));
    // A group of channels seen as one axis and back: quotients and remainders by symbols under symbolic strides.
    let (row, column) = (IndexExpr::floor_div(&v(0), &s(1)), IndexExpr::modulo(&v(0), &s(1)));
    let (channel, row) = (IndexExpr::floor_div(&row, &s(0)), IndexExpr::modulo(&row, &s(0)));
    assert_eq!(channel * s(0) * s(1) + row * s(1) + column, v(0));
    let back = IndexExpr::floor_div(&v(0), &c(12)) * c(24) + IndexExpr::modulo(&v(0), &c(12)) * c(2);
    assert_eq!(back, v(0) * c(2));
}

#[test]
fn two_variables_become_one_where_they_count_through_both() {
    // Padded axes: v1 below s1 + 1, and an axis of s2 + 2 behind it.
    let (extent, behind) = (s(1) + c(1), s(2) + c(2));
    let flat = |e: IndexExpr| e.flattened(VarId(0), VarId(1), &extent, VarId(7));
    let line = |step: IndexExpr| (v(0) * extent.clone() + v(1)) * step;
    assert_eq!(
        flat(line(behind.clone()) + v(2) + c(3)),
        v(7) * behind.clone() + v(2) + c(3)
    );
    let place = IndexExpr::floor_div(&line(c(4)), &s(0)) + v(1);
    assert_eq!(flat(place), IndexExpr::floor_div(&(v(7) * c(4)), &s(0)) + v(1));
    // Another order, another extent, and what uses one of them.
    for other in [v(1) * behind.clone() + v(0), v(0) * behind + v(1), v(0) + c(1), v(1)] {
        assert_eq!(flat(other.clone()), other);
    }
}

#[test]
fn what_is_less_than_a_part_of_a_divisor_is_not_divided() {
    let bounds = Loops(vec![c(128), c(32), c(32), s(0)]);
    let element = v(0) * c(1024) + v(1) * c(32) + v(2);
    let group = IndexExpr::floor_div(&element, &c(16384));
    assert_eq!(group.simplify(&bounds), IndexExpr::floor_div(&v(0), &c(16)));
    let inside = IndexExpr::modulo(&element, &c(16384));
    let rest = v(1) * c(32) + v(2);
    assert_eq!(
        inside.simplify(&bounds),
        IndexExpr::modulo(&v(0), &c(16)) * c(1024) + rest
    );
    // What may be more stays.
    let open = IndexExpr::floor_div(&(v(0) * c(8) + v(3)), &c(16));
    assert_eq!(open.simplify(&bounds), open);
}

/// A random expression over two variables and a symbol, with the value it must have.
fn random(rng: &mut impl FnMut(u64) -> u64, depth: u32) -> IndexExpr {
    if depth == 0 {
        return match rng(4) {
            0 => v(0),
            1 => v(1),
            2 => s(0),
            _ => c(rng(9) as i64 - 2),
        };
    }
    let a = random(rng, depth - 1);
    let b = random(rng, depth - 1);
    let positive = c([1, 2, 3, 4, 5, 6, 12, 24][rng(8) as usize]);
    let divisor = match rng(4) {
        0 => s(0) + positive,
        1 => s(0) * positive + v(1) + c(1),
        _ => positive,
    };
    match rng(7) {
        0 => a + b,
        1 => a - b,
        2 => a * b,
        3 => IndexExpr::floor_div(&a, &divisor),
        4 => IndexExpr::modulo(&a, &divisor),
        5 => IndexExpr::min(&a, &b),
        _ => IndexExpr::max(&a, &b),
    }
}

#[test]
fn of_a_part_and_what_it_bounds_one_is_left() {
    let (a, b) = (s(0) - c(1), s(1));
    let (least, most) = (IndexExpr::min(&a, &b), IndexExpr::max(&a, &b));
    for part in [&a, &b] {
        assert_eq!(IndexExpr::max(part, &least), *part);
        assert_eq!(IndexExpr::min(&most, part), *part);
        assert_eq!(IndexExpr::min(part, &least), least);
        assert_eq!(IndexExpr::max(&most, part), most);
    }
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut rng = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    // Whatever is nested, the value stays.
    for _ in 0..2000 {
        let all: Vec<IndexExpr> = (0..3).map(|_| random(&mut rng, 1)).collect();
        let vars = |x: VarId| Some(3 + i64::from(x.0));
        let [x, y, z] = [0, 1, 2].map(|k: usize| all[k].eval(&[4], &vars).unwrap());
        let nested = IndexExpr::max(&IndexExpr::min(&all[0], &all[1]), &IndexExpr::min(&all[2], &all[0]));
        assert_eq!(nested.eval(&[4], &vars), Some(x.min(y).max(z.min(x))), "{all:?}");
        let nested = IndexExpr::min(&all[1], &IndexExpr::max(&all[1], &IndexExpr::max(&all[0], &all[2])));
        assert_eq!(nested.eval(&[4], &vars), Some(y.min(y.max(x.max(z)))), "{all:?}");
    }
}

#[test]
fn simplification_keeps_the_value_and_intervals_hold_it() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut rng = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let bounds = Loops(vec![c(5), c(7)]);
    for _ in 0..3000 {
        let depth = 1 + rng(4) as u32;
        let e = random(&mut rng, depth);
        let simple = e.simplify(&bounds);
        let range = e.interval(&bounds);
        let nonnegative = e.proves_nonnegative(&bounds);
        for i in 0..5 {
            for j in 0..7 {
                let vars = |x: VarId| Some(if x.0 == 0 { i } else { j });
                let value = e.eval(&[3], &vars).unwrap();
                assert_eq!(simple.eval(&[3], &vars), Some(value), "{e:?} -> {simple:?}");
                assert!(
                    range.lo <= value && value <= range.hi,
                    "{e:?} = {value} outside {range:?}"
                );
                assert!(!nonnegative || value >= 0, "{e:?} = {value} proven nonnegative");
            }
        }
    }
}

#[test]
fn volumes_of_many_padded_axes_stay_small_and_print_back() {
    let axes: Vec<IndexExpr> = (0..16)
        .map(|k| s(k) * c(2 + i64::from(k) % 3) + c(i64::from(k) % 5 + 1))
        .collect();
    let volume = IndexExpr::product(&axes);
    assert!(volume.size() < 1000, "{} nodes", volume.size());
    let values: Vec<i64> = (0..16).map(|k| k % 2).collect();
    let numbers = axes.iter().map(|d| d.eval_symbols(&values).expect("a number"));
    assert_eq!(volume.eval_symbols(&values), Some(numbers.product()));
    // Rebuilt from its parts it is the same.
    assert_eq!(volume.replace(&mut |_| None), volume);
    // Whatever the order, and with whatever is added, scaled or put in.
    for turn in 1..16 {
        let turned: Vec<IndexExpr> = axes[turn..].iter().chain(&axes[..turn]).cloned().collect();
        let other = IndexExpr::product(&turned);
        assert_eq!(
            other.eval_symbols(&values),
            volume.eval_symbols(&values),
            "turned by {turn}"
        );
        assert_eq!(other.replace(&mut |_| None), other, "turned by {turn}");
    }
    let offset = v(0) * volume.clone() + (v(1) + c(3)) * axes[0].clone() * volume.clone() + v(2);
    let (coefficient, rest) = offset.affine_in(VarId(0)).expect("affine");
    assert_eq!(coefficient, volume);
    assert!(rest.affine_in(VarId(1)).is_some());
    assert_eq!(offset.replace(&mut |_| None), offset);
    assert!((volume.clone() - volume.clone()).is(0));
    assert_eq!(IndexExpr::floor_div(&(volume.clone() * s(3)), &volume), s(3));
}

#[test]
fn products_of_random_sums_have_the_values_of_their_factors() {
    let mut rng = crate::rng::Rng::new(11);
    for _ in 0..300 {
        let mut sum = |terms: usize| {
            (0..terms).fold(c(rng.range(-3, 9)), |e, _| {
                let atom = match rng.chance(1, 4) {
                    true => v(rng.below(3) as u32),
                    false => s(rng.below(6) as u32),
                };
                e + atom * c(rng.range(-4, 6))
            })
        };
        let factors: Vec<IndexExpr> = (0..6).map(|k| sum(k % 4 + 1)).collect();
        let product = IndexExpr::product(&factors);
        let symbols = [1, 2, 0, 3, 1, 2];
        let vars = |v: VarId| Some(i64::from(v.0) + 1);
        let expected = factors
            .iter()
            .try_fold(1i64, |p, f| p.checked_mul(f.eval(&symbols, &vars)?));
        assert_eq!(product.eval(&symbols, &vars), expected, "{factors:?}");
        assert_eq!(product.replace(&mut |_| None), product, "{factors:?}");
    }
}

/// What is handed on without being put together again is what would have come of it.
#[test]
fn sums_in_normal_form_stay_what_they_are() {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut rng = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let again = |e: &IndexExpr| {
        let (terms, constant) = e.linear();
        IndexExpr::from_linear(terms, constant)
    };
    let mut sums = 0;
    for _ in 0..4000 {
        let depth = 1 + rng(4) as u32;
        let e = random(&mut rng, depth);
        sums += u32::from(e.linear().0.len() > 1);
        assert_eq!(again(&e), e);
        for k in [-3, -1, 2, 24] {
            let (terms, constant) = e.linear();
            let terms = terms.into_iter().map(|(t, a)| (t, a * k)).collect();
            assert_eq!(
                e.mul_const(k),
                IndexExpr::from_linear(terms, constant * k),
                "{e:?} times {k}"
            );
        }
        for var in [0, 1].map(VarId) {
            if let Some((coefficient, rest)) = e.affine_in(var) {
                assert_eq!(again(&rest), rest, "{e:?} without {var:?}");
                assert!(!rest.uses(var) && !coefficient.uses(var));
                assert_eq!(coefficient * var.into() + rest, e);
            }
        }
        let mut seen = [false; 2];
        e.visit_atoms(&mut |a| {
            if let IndexNode::Var(v) = a {
                seen[v.0 as usize] = true;
            }
        });
        assert_eq!([0, 1].map(|v| e.uses(VarId(v))), seen);
        assert_eq!(e.has_vars(), seen != [false; 2]);
    }
    assert!(sums > 1000, "{sums}");
}
