//! Derivatives by constants: a number that the program makes is a variable of its own, whatever equal numbers operations are made of.

use tlc::{DType, Graph, Reduction, Tensor, grad, hessian, jvp};

fn values(t: &Tensor) -> Vec<f64> {
    t.eval().expect("it runs").as_slice::<f64>().expect("doubles").to_vec()
}

type Make = fn(&Graph) -> Tensor;

/// Every way to make two ones of one number.
const ONES: [(&str, Make); 7] = [
    ("scalar", |g| g.scalar(1.0, DType::F64).broadcast_to([2])),
    ("constant", |g| g.constant(1.0f64).broadcast_to([2])),
    ("array", |g| g.constant([1.0f64, 1.0])),
    ("full", |g| g.full(2, 1.0, DType::F64)),
    ("ones", |g| g.ones(2, DType::F64)),
    ("ones like", |g| g.zeros(2, DType::F64).ones_like()),
    ("initial", |g| tlc::init::ones().draw(&g.key(1), 2, DType::F64)),
];

#[test]
fn numbers_of_operations_are_no_variables() {
    for (name, make) in ONES {
        let g = Graph::new(name);
        let w = make(&g);
        let loss = (&w * 3.0 - 1.0).square().sum(..);
        assert_eq!(values(&grad(&loss, &[&w])[0]), [12.0; 2], "{name}");
        assert_eq!(values(&hessian(&loss, &w)), [18.0, 0.0, 0.0, 18.0], "{name}");
        let along = jvp(&[&loss], &[&w], &[&g.ones(2, DType::F64)]).remove(0);
        assert_eq!(values(&along), [24.0], "{name}");
        // An operation that is made of ones.
        let odds = &w / (1.0 - &w * 0.5);
        assert_eq!(values(&grad(&odds.sum(..), &[&w])[0]), [4.0; 2], "{name}");
        let d = grad(&w.binary_cross_entropy_with_logits(&w, Reduction::Sum), &[&w]).remove(0);
        let expected = 1.0 / (1.0 + (-1f64).exp()) - 2.0;
        values(&d)
            .iter()
            .for_each(|d| assert!((d - expected).abs() < 1e-14, "{name}: {d}"));
    }
}

/// The biases of two layers begin as equal zeros and are two parameters.
#[test]
fn equal_numbers_are_variables_of_their_own() {
    for (name, make) in ONES {
        let g = Graph::new(name);
        let (a, b) = (make(&g), make(&g));
        let loss = (&a * 3.0 + &b * 5.0).sum(..);
        let d = grad(&loss, &[&a, &b]);
        assert_eq!((values(&d[0]), values(&d[1])), (vec![3.0; 2], vec![5.0; 2]), "{name}");
    }
    let g = Graph::default();
    let (a, b) = (g.zeros(2, DType::F64), g.zeros(2, DType::F64));
    let d = grad(&(&a * &b + &b).sum(..), &[&a, &b]);
    assert_eq!((values(&d[0]), values(&d[1])), (vec![0.0; 2], vec![1.0; 2]));
}
