//! What a contraction order may change of an einsum's meaning, as `NodeKind::Einsum` states it, and that it changes nothing
//! else: the definition, term by term, against compiled code.

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Semiring, Tensor, einsum_over};
use tlc_ir::interp::{Options, interpret};

const INF: f32 = f32::INFINITY;

/// Contractions with sums that are taken early, and with three operands.
const EXPRESSIONS: [&str; 5] = ["i,j->", "ij,k->k", "ij,jk,kl->il", "i,ij,j->", "ij,jk,k->i"];

/// An einsum, whose definition the interpreter follows term by term, and what was compiled of it.
struct Contraction {
    graph: tlc_ir::Graph,
    executable: Executable,
}

impl Contraction {
    fn new(semiring: Semiring, expression: &str, operands: &[HostTensor]) -> Contraction {
        let g = Graph::new("einsum");
        let input = |(k, t): (usize, &HostTensor)| g.input(&format!("x{k}"), t.dtype(), t.shape());
        let inputs: Vec<Tensor> = operands.iter().enumerate().map(input).collect();
        g.output(
            "y",
            &einsum_over(semiring, expression, &inputs.iter().collect::<Vec<_>>()),
        );
        Contraction {
            graph: g.finish().unwrap(),
            executable: g.compile(&CompileOptions::default()).unwrap(),
        }
    }

    /// The results by definition, and of compiled code.
    fn run(&self, operands: &[HostTensor]) -> (Vec<f32>, Vec<f32>) {
        let right = interpret(&self.graph, operands, &Options::default()).unwrap();
        let arguments: Vec<_> = operands.iter().map(Into::into).collect();
        let found = self.executable.run(&arguments).unwrap();
        (
            right[0].as_slice().unwrap().to_vec(),
            found[0].as_slice().unwrap().to_vec(),
        )
    }
}

/// Operands for the expression, of extents 2 and 3 and of values picked from those given.
fn operands(expression: &str, seed: u64, values: &[f32]) -> Vec<HostTensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut pick = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[(state >> 33) as usize % values.len()]
    };
    let inputs = expression.split_once("->").unwrap().0;
    let tensor = |labels: &str| {
        let shape: Vec<usize> = labels.bytes().map(|l| 2 + (l as usize) % 2).collect();
        let data: Vec<f32> = (0..shape.iter().product()).map(|_| pick()).collect();
        HostTensor::from_slice(&shape, &data).unwrap()
    };
    inputs.split(',').map(tensor).collect()
}

/// Calls `f` with many small operands: the definition's results and those of compiled code.
fn each(semiring: Semiring, values: &[f32], mut f: impl FnMut(&[HostTensor], f32, f32)) {
    for expression in EXPRESSIONS {
        let contraction = Contraction::new(semiring, expression, &operands(expression, 0, values));
        let regrouped = !contraction.executable.decisions().paths.is_empty();
        assert_eq!(regrouped, semiring != Semiring::MaxMul, "{expression}");
        for seed in 1..200 {
            let operands = operands(expression, seed, values);
            let (right, found) = contraction.run(&operands);
            for (right, found) in right.iter().zip(&found) {
                f(&operands, *right, *found);
            }
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

#[test]
fn longest_and_shortest_paths_are_exact_where_there_may_be_none() {
    // What stands for no path, numbers, and NaN: 0.5 and 1 make sums that are exact.
    for (semiring, none) in [(Semiring::MaxAdd, -INF), (Semiring::MinAdd, INF)] {
        let mut nans = 0;
        each(
            semiring,
            &[none, none, -2.0, 0.5, 1.0, 3.0],
            |operands, right, found| {
                assert!(right == found, "{operands:?}: {found}, expected {right}");
            },
        );
        each(
            semiring,
            &[none, -2.0, 0.5, 1.0, 3.0, 7.0, 8.0, f32::NAN],
            |operands, right, found| {
                assert!(same(right, found), "{operands:?}: {found}, expected {right}");
                nans += u32::from(right.is_nan());
            },
        );
        assert!(nans > 50);
    }
}

#[test]
fn both_infinities_among_paths_give_nan_or_the_one_that_wins() {
    for (semiring, wins) in [(Semiring::MaxAdd, INF), (Semiring::MinAdd, -INF)] {
        let mut lost = 0;
        each(
            semiring,
            &[INF, -INF, -2.0, 0.5, 1.0, 3.0, 4.0, 5.0],
            |operands, right, found| {
                let permitted = same(right, found) || (right.is_nan() && found == wins);
                assert!(permitted, "{operands:?}: {found}, expected {right}");
                lost += u32::from(!same(right, found));
            },
        );
        assert!(lost > 0, "the licence is stated for nothing");
        // The example of the documentation, for max-add.
        let pair = [[wins, 1.0], [-wins, 1.0]].map(|v| HostTensor::from_slice(&[2], &v).unwrap());
        let (right, found) = Contraction::new(semiring, "i,j->", &pair).run(&pair);
        assert!(right[0].is_nan() && found[0] == wins, "{right:?} {found:?}");
    }
}

#[test]
fn sums_of_products_of_finite_operands_are_exact_and_infinities_stay_infinite_or_nan() {
    each(
        Semiring::AddMul,
        &[-2.0, 0.0, 0.5, 1.0, 3.0],
        |operands, right, found| {
            assert!(right == found, "{operands:?}: {found}, expected {right}");
        },
    );
    let (mut lost, mut nans) = (0, 0);
    each(
        Semiring::AddMul,
        &[INF, -INF, -2.0, 0.0, 0.5, 1.0, 3.0, 4.0, 5.0],
        |operands, right, found| {
            let permitted = right == found || (!right.is_finite() && !found.is_finite());
            assert!(permitted, "{operands:?}: {found}, expected {right}");
            lost += u32::from(!same(right, found));
        },
    );
    assert!(lost > 0, "the licence is stated for nothing");
    each(
        Semiring::AddMul,
        &[f32::NAN, -2.0, 0.0, 0.5, 1.0, 3.0, 4.0, 5.0],
        |operands, right, found| {
            assert!(same(right, found), "{operands:?}: {found}, expected {right}");
            nans += u32::from(right.is_nan());
        },
    );
    assert!(nans > 50);
}

#[test]
fn greatest_products_are_never_regrouped() {
    each(
        Semiring::MaxMul,
        &[INF, -INF, f32::NAN, -2.0, 0.0, 0.5, 1.0, 3.0, 4.0, 5.0],
        |operands, right, found| {
            assert!(same(right, found), "{operands:?}: {found}, expected {right}");
        },
    );
}

#[test]
fn a_sum_of_no_terms_is_the_identity_whatever_the_operands_hold() {
    let special = HostTensor::from_slice(&[3], &[INF, f32::NAN, -INF]).unwrap();
    let empty = HostTensor::zeros(DType::F32, &[3, 0]).unwrap();
    let table = [
        (Semiring::AddMul, 0.0),
        (Semiring::MaxAdd, -INF),
        (Semiring::MinAdd, INF),
        (Semiring::MaxMul, -INF),
    ];
    for (semiring, identity) in table {
        for (expression, all) in [
            ("i,ij->i", vec![&special, &empty]),
            ("i,jk->i", vec![&special, &empty]),
            ("i,i,ij->i", vec![&special, &special, &empty]),
            ("ij,i,ij->i", vec![&empty, &special, &empty]),
        ] {
            let all: Vec<HostTensor> = all.into_iter().cloned().collect();
            let (_, found) = Contraction::new(semiring, expression, &all).run(&all);
            assert_eq!(found, [identity; 3], "{expression} {semiring:?}");
        }
    }
}
