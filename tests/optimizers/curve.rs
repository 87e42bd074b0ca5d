//! Fifty steps of a perceptron from the same weights as PyTorch.

use tlc::optim::{AdamW, Optimizer, clip};
use tlc::{CompileOptions, DType, Graph, Input, Tensor, grad};

use crate::reference::{numbers, recorded};

fn values(shape: &[usize], seed: usize, scale: f64) -> Vec<f32> {
    let n: usize = shape.iter().product();
    let value = |i: usize| (((i * 37 + seed * 11) % 101) as f64 / 50.0 - 1.0) * scale;
    (0..n).map(|i| value(i) as f32).collect()
}

#[test]
fn fifty_steps_follow_the_curve_of_pytorch() {
    let expected = numbers(&recorded()["curve"]);
    let shapes: [&[usize]; 4] = [&[6, 16], &[16], &[16, 3], &[3]];
    let optimizer = Optimizer::from(AdamW {
        lr: 0.02.into(),
        weight_decay: 0.1,
        ..AdamW::default()
    });
    let g = Graph::new("step");
    let number = g.input("step", DType::I64, ());
    let x = g.data(&values(&[24, 6], 1, 1.0), &[24, 6]);
    let y = g.data(&(0..24).map(|i| i * 7 % 3).collect::<Vec<i64>>(), &[24]);
    let names = ["w1", "b1", "w2", "b2"];
    let p: Vec<Tensor> = (0..4).map(|k| g.input(names[k], DType::F32, shapes[k])).collect();
    let loss = ((x.matmul(&p[0]) + &p[1]).relu().matmul(&p[2]) + &p[3]).cross_entropy(&y);
    let (d, _) = clip::by_global_norm(
        &grad(&loss, &p.iter().collect::<Vec<_>>()).iter().collect::<Vec<_>>(),
        0.5,
    );
    g.output("loss", &loss);
    for k in 0..4 {
        let slots = optimizer.slots(DType::F32, &p[k].shape());
        let slots = slots
            .iter()
            .map(|s| g.input(&format!("{}.{}", names[k], s.name), s.dtype, s.shape.clone()));
        let slots: Vec<Tensor> = slots.collect();
        let (next, slots) = optimizer.update(&number, &p[k], &d[k], &slots.iter().collect::<Vec<_>>());
        g.output(names[k], &next);
        slots
            .iter()
            .enumerate()
            .for_each(|(s, t)| g.output(&format!("{}.{s}", names[k]), t));
    }
    let train = g.compile(&CompileOptions::default()).unwrap();
    // In the order of the inputs: parameters, then the slots of each. So the outputs are in another order.
    let scales = [0.5, 0.1, 0.5, 0.1];
    let mut state: Vec<[Input; 3]> = (0..4)
        .map(|k| {
            let zeros = || Input::from(vec![0.0f32; shapes[k].iter().product()]);
            [values(shapes[k], k + 2, scales[k]).into(), zeros(), zeros()]
        })
        .collect();
    for (t, expected) in expected.iter().enumerate() {
        let results = {
            let of_slots = state.iter().flat_map(|s| &s[1..]);
            let mut given: Vec<Input> = vec![(t as i64 + 1).into()];
            given.extend(state.iter().map(|s| &s[0]).chain(of_slots).map(Input::from));
            train.run(&given).unwrap()
        };
        let mut results = results.into_vec().into_iter();
        let loss = results.next().unwrap().as_scalar::<f32>().unwrap();
        assert!(
            (f64::from(loss) - expected).abs() < 1e-4,
            "step {}: {loss}, expected {expected}",
            t + 1
        );
        let mut three = || std::array::from_fn(|_| results.next().unwrap().into());
        state = (0..4).map(|_| three()).collect();
    }
}
