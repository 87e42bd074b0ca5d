//! L-BFGS: its steps beside those of `tests/reference/lbfgs.py`, and minima with a line search beside closed forms.

use tlc::optim::{Groups, Lbfgs, Minimum, Optimizer};
use tlc::{CompileOptions, DType, Graph, State, Tensor, inputs};

const N: usize = 7;
const ROWS: usize = 9;

/// The quadratic of the script: `A^T A + I / 2`, row after row, and what it is less.
fn quadratic() -> (Vec<f64>, Vec<f64>) {
    let a = |i: usize, j: usize| (((7 * i + 3 * j) % 11) as f64 - 5.0) / 4.0;
    let h = |i: usize, j: usize| {
        let gram: f64 = (0..ROWS).map(|k| a(k, i) * a(k, j)).sum();
        gram + if i == j { 0.5 } else { 0.0 }
    };
    let all = (0..N * N).map(|k| h(k / N, k % N)).collect();
    (all, (0..N).map(|i| ((5 * i % 7) as f64 - 3.0) / 2.0).collect())
}

fn start() -> Vec<f64> {
    (0..N).map(|i| ((29 * i) % 17) as f64 / 8.0 - 1.0).collect()
}

/// `x^T H x / 2 - b x`.
fn loss_of(x: &Tensor) -> Tensor {
    let (h, b) = quadratic();
    let g = x.graph();
    let h = g.data(&h, &[N, N]);
    (h.matmul(x) * x).sum(..) * 0.5 - (g.data(&b, &[N]) * x).sum(..)
}

fn lines() -> impl Iterator<Item = (&'static str, usize, Vec<f64>)> {
    include_str!("../reference/lbfgs.txt").lines().map(|line| {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let number = words.next().unwrap().parse().unwrap();
        (name, number, words.map(|w| w.parse().unwrap()).collect())
    })
}

fn check(what: &str, found: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(near),
        "{what}: {found:?}, expected {expected:?}"
    );
}

/// The parameters are a matrix and a vector, which move as one.
#[test]
fn twenty_fixed_steps_are_those_of_torch() {
    let mut all = lines().peekable();
    let mut steps = 0;
    while let Some((text, _, _)) = all.peek() {
        let text = *text;
        let optimizer: Groups = text.parse().unwrap();
        let g = Graph::new("step");
        let (a, b) = (g.state("a", DType::F64, [2, 2]), g.state("b", DType::F64, [3]));
        let loss = loss_of(&tlc::concat(&[&a.flatten(), &b], 0));
        optimizer.minimize(&loss, &[("a", &a), ("b", &b)]);
        let step = g.compile(&CompileOptions::default()).unwrap();
        let first = start();
        let mut state = State::new();
        state.insert("a", [[first[0], first[1]], [first[2], first[3]]]).unwrap();
        state.insert("b", [first[4], first[5], first[6]]).unwrap();
        optimizer.prepare(&mut state, &["a", "b"]).unwrap();
        while let Some((_, number, expected)) = all.next_if(|(t, _, _)| *t == text) {
            step.run_with(&mut state, &inputs![]).unwrap();
            let mut found = state["a"].as_slice::<f64>().unwrap().to_vec();
            found.extend(state["b"].as_slice::<f64>().unwrap());
            check(&format!("{text}, step {number}"), &found, &expected);
            steps += 1;
        }
    }
    assert_eq!(steps, 100);
}

/// A parameter that belongs to another group moves as if it were alone.
#[test]
fn groups_are_vectors_of_their_own() {
    let optimizer: Groups = "lbfgs:lr=1,history=10; other*: history=3".parse().unwrap();
    let g = Graph::new("step");
    let (a, b) = (g.state("a", DType::F64, [N]), g.state("other", DType::F64, [N]));
    optimizer.minimize(&(loss_of(&a) + loss_of(&b)), &[("other", &b), ("a", &a)]);
    let step = g.compile(&CompileOptions::default()).unwrap();
    let mut state = State::new();
    state.insert("a", start()).unwrap();
    state.insert("other", start()).unwrap();
    optimizer.prepare(&mut state, &["a", "other"]).unwrap();
    let of = |text: &str| -> Vec<Vec<f64>> { lines().filter(|l| l.0 == text).map(|l| l.2).collect() };
    let (ten, three) = (of("lbfgs:lr=1,history=10"), of("lbfgs:lr=1,history=3"));
    for k in 0..20 {
        step.run_with(&mut state, &inputs![]).unwrap();
        check("ten pairs", state["a"].as_slice::<f64>().unwrap(), &ten[k]);
        check("three pairs", state["other"].as_slice::<f64>().unwrap(), &three[k]);
    }
}

#[test]
fn a_text_says_it() {
    let optimizer: Optimizer = "lbfgs:lr=1,history=10".parse().unwrap();
    assert_eq!(
        optimizer.to_string(),
        "lbfgs:lr=1,history=10,tol_grad=0.0000001,tol_change=0.000000001"
    );
    let refused = |text: &str| text.parse::<Optimizer>().unwrap_err().to_string();
    assert_eq!(
        refused("lbfgs:history=0"),
        "lbfgs: `history=0`, expected a whole number of at least 1"
    );
}

/// `Σ 100 (x[i + 1] - x[i]²)² + (1 - x[i])²`, which is least, 0, where all are 1.
fn rosenbrock(x: &Tensor) -> Tensor {
    let (a, b) = (x.slice_axis(0, ..-1), x.slice_axis(0, 1..));
    (b - a.square()).square().sum(..) * 100.0 + (1.0 - a).square().sum(..)
}

struct Ended {
    point: Vec<f64>,
    loss: f64,
    gradients: Vec<f64>,
    iterations: i64,
    evaluations: i64,
    converged: bool,
}

fn ended(g: &Graph, found: &Minimum) -> Ended {
    let wide = |all: &[Tensor]| -> Vec<Tensor> { all.iter().map(|t| t.cast(DType::F64).flatten()).collect() };
    let joined = |all: &[Tensor]| tlc::concat(&wide(all).iter().collect::<Vec<_>>(), 0);
    g.output("point", &joined(&found.parameters));
    g.output("loss", &found.loss);
    g.output("gradients", &joined(&found.gradients));
    g.output("iterations", &found.iterations);
    g.output("evaluations", &found.evaluations);
    g.output("converged", &found.converged);
    let run = g.compile(&CompileOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let out = run.run(&inputs![]).unwrap();
    Ended {
        point: out["point"].as_slice().unwrap().to_vec(),
        loss: out["loss"].as_scalar().unwrap(),
        gradients: out["gradients"].as_slice().unwrap().to_vec(),
        iterations: out["iterations"].as_scalar().unwrap(),
        evaluations: out["evaluations"].as_scalar().unwrap(),
        converged: out["converged"].as_scalar().unwrap(),
    }
}

fn minimum(settings: &str, start: &[f64], evaluations: usize, f: impl Fn(&Tensor) -> Tensor) -> Ended {
    let Ok(Optimizer::Lbfgs(settings)) = settings.parse() else {
        panic!("{settings}");
    };
    let g = Graph::new("minimum");
    let x = g.data(start, &[start.len()]);
    let found = settings.minimum(&[&x], evaluations, |_, p| f(&p[0]));
    ended(&g, &found)
}

#[test]
fn rosenbrocks_valley_is_walked_to_its_end() {
    for (start, history) in [
        (vec![-1.2, 1.0], 10),
        (vec![-1.2, 1.0], 1),
        (vec![3.0, -4.0, 2.0, 0.5, -1.0], 5),
    ] {
        let it = minimum(
            &format!("lbfgs:history={history},tol_change=1e-12"),
            &start,
            400,
            rosenbrock,
        );
        assert!(
            it.converged && it.loss <= 1e-10,
            "{start:?}: {} after {}",
            it.loss,
            it.evaluations
        );
        assert!(it.point.iter().all(|x| (x - 1.0).abs() < 1e-4), "{:?}", it.point);
        assert!(it.iterations < it.evaluations && it.evaluations < 400);
    }
    // As few as others take: SciPy's L-BFGS-B takes 44 from this start.
    let it = minimum("lbfgs:history=10,tol_change=1e-12", &[-1.2, 1.0], 60, rosenbrock);
    assert!(it.loss <= 1e-10, "{}", it.loss);
}

#[test]
fn quadratics_end_where_their_gradient_is_zero() {
    let (h, b) = quadratic();
    // A line search sees a gradient `g` by what it changes the loss, about `g * g`; below `sqrt(2^-52)` that is no digit of it.
    let it = minimum("lbfgs:tol_change=0,tol_grad=2e-8", &start(), 100, loss_of);
    assert!(it.converged, "{}", it.evaluations);
    for i in 0..N {
        let left: f64 = (0..N).map(|j| h[i * N + j] * it.point[j]).sum::<f64>() - b[i];
        assert!(left.abs() <= 2.1e-8, "row {i}: {left}");
        assert!((left - it.gradients[i]).abs() <= 1e-12);
    }
}

/// Every point that a line search ends at satisfies both Wolfe conditions.
#[test]
fn lines_end_where_both_conditions_hold() {
    let value = |x: &[f64]| 100.0 * (x[1] - x[0] * x[0]).powi(2) + (1.0 - x[0]).powi(2);
    let slope = |x: &[f64]| {
        let c = x[1] - x[0] * x[0];
        [-400.0 * x[0] * c - 2.0 * (1.0 - x[0]), 200.0 * c]
    };
    let mut points: Vec<Vec<f64>> = vec![];
    for evaluations in 1..=40 {
        let it = minimum("lbfgs:history=6", &[-1.2, 1.0], evaluations, rosenbrock);
        assert!(it.evaluations as usize == evaluations || it.converged);
        assert!((it.loss - value(&it.point)).abs() <= 1e-12 * it.loss.max(1e-9));
        if points.last() != Some(&it.point) {
            points.push(it.point);
        }
    }
    assert!(points.len() > 20, "{points:?}");
    for pair in points.windows(2) {
        let step = [pair[1][0] - pair[0][0], pair[1][1] - pair[0][1]];
        let along = |g: [f64; 2]| g[0] * step[0] + g[1] * step[1];
        let (before, after) = (along(slope(&pair[0])), along(slope(&pair[1])));
        assert!(before < 0.0, "{pair:?}");
        assert!(
            value(&pair[1]) <= value(&pair[0]) + 1e-4 * before * (1.0 - 1e-9),
            "{pair:?}"
        );
        assert!(after.abs() <= 0.9 * before.abs() * (1.0 + 1e-9), "{pair:?}");
    }
}

/// `Σ a x - ln x` is least where `x = 1 / a`, and no number where an element is below zero, as those of the first trials are.
#[test]
fn a_loss_that_is_no_number_is_too_high() {
    let weights = [0.5, 3.0, 1e-2, 7.0];
    let it = minimum("lbfgs:lr=100,tol_change=0", &[2.0, 5.0, 0.1, 1.0], 300, |x| {
        (x * x.graph().constant(weights) - x.log()).sum(..)
    });
    assert!(it.converged, "{:?}", it.point);
    for (x, a) in it.point.iter().zip(weights) {
        assert!((x * a - 1.0).abs() < 1e-4, "{:?}", it.point);
    }
    // One that begins as no number stays where it is.
    let it = minimum("lbfgs", &[-1.0], 10, |x| x.log().sum(..));
    assert_eq!((&it.point[..], it.evaluations, it.converged), (&[-1.0][..], 1, false));
    assert!(it.loss.is_nan());
    // So does one that is at its end.
    let it = minimum("lbfgs", &[0.0], 10, |x| x.square().sum(..));
    assert_eq!((&it.point[..], it.evaluations, it.converged), (&[0.0][..], 1, true));
    // Nothing ends a loss without a minimum but the bound.
    let it = minimum("lbfgs", &[0.0], 30, |x| x.sum(..));
    assert_eq!((it.evaluations, it.converged), (30, false));
}

/// A loss over a matrix and a vector, of several dtypes, that reads a tensor of the graph around.
#[test]
fn tensors_are_captured_and_parameters_have_shapes() {
    for (dtype, near) in [(DType::F64, 1e-5), (DType::F32, 1e-2)] {
        let g = Graph::new("fit");
        let x = g.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]).cast(dtype);
        let y = g
            .constant([[1.0, -2.0], [4.0, 2.0], [4.0, -1.0], [5.0, -3.0]])
            .cast(dtype);
        let (w, b) = (g.zeros([2, 2], dtype), g.zeros(2, dtype));
        let found = Lbfgs::default().minimum(&[&w, &b], 100, |i, p| {
            (i.capture(&x).matmul(&p[0]) + &p[1] - i.capture(&y)).square().mean(..)
        });
        assert_eq!(found.parameters[0].dtype(), dtype);
        assert_eq!(found.parameters[0].const_shape(), Some(vec![2, 2]));
        let it = ended(&g, &found);
        assert!(it.converged);
        for (f, e) in it.point.iter().zip(LSTSQ) {
            assert!((f - e).abs() < near, "{dtype}: {:?}", it.point);
        }
    }
}

/// What `numpy.linalg.lstsq` finds: the weights, then the offsets.
const LSTSQ: [f64; 6] = [0.5, -2.5, 10.0 / 3.0, 4.0 / 3.0, 0.5, 0.5];

#[test]
fn what_is_no_minimization_is_refused() {
    let refused = |f: &dyn Fn(&Graph) -> Minimum| {
        let g = Graph::new("refused");
        let found = f(&g);
        assert!(found.parameters.iter().all(Tensor::is_poisoned) && found.loss.is_poisoned());
        let errors: Vec<String> = g.errors().iter().map(|e| e.to_string()).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    };
    let it = Lbfgs::default();
    let sum = |_: &tlc::Iteration, p: &[Tensor]| p[0].sum(..);
    let text = refused(&|g| it.minimum(&[&g.constant([1i64])], 10, sum));
    assert!(text.contains("i64[1]") && text.contains("floats"), "{text}");
    let text = refused(&|g| it.minimum(&[&g.constant([1.0])], 0, sum));
    assert!(text.contains("no evaluations"), "{text}");
    let text = refused(&|g| it.minimum(&[&g.constant([1.0])], 10, |_, p| p[0].clone()));
    assert!(text.contains("no float of rank 0"), "{text}");
    let text = refused(&|g| {
        let x = g.constant([1.0]);
        it.minimum(&[&x], 10, |_, _| x.sum(..))
    });
    assert!(text.contains("two graphs") || text.contains("another graph"), "{text}");
    let unsound = Lbfgs {
        history: 0,
        ..Lbfgs::default()
    };
    let text = refused(&|g| unsound.minimum(&[&g.constant([1.0])], 10, sum));
    assert!(text.contains("history = 0"), "{text}");
}

/// Random sums of quadratics and fourth powers, each convex with its minimum where all terms are zero.
#[test]
fn random_convex_losses_end_at_their_minimum() {
    let mut rng = tlc::ir::rng::Rng::new(7);
    for case in 0..12 {
        let n = 1 + case % 6;
        let mut number = |low: f64, high: f64| low + (high - low) * rng.unit();
        let at: Vec<f64> = (0..n).map(|_| number(-3.0, 3.0)).collect();
        let mix: Vec<f64> = (0..n * n).map(|_| number(-1.0, 1.0)).collect();
        let steep: Vec<f64> = (0..n).map(|_| 10f64.powf(number(-1.0, 2.0))).collect();
        let start: Vec<f64> = (0..n).map(|_| number(-5.0, 5.0)).collect();
        let settings = format!("lbfgs:history={},tol_change=0,tol_grad=1e-8", 1 + case % 7);
        let it = minimum(&settings, &start, 500, |x| {
            let g = x.graph();
            let away = x - g.data(&at, &[n]);
            let quadratic = (g.data(&steep, &[n]) * away.square()).sum(..);
            quadratic + g.data(&mix, &[n, n]).matmul(&away).powi(4).sum(..)
        });
        assert!(it.converged, "{settings} from {start:?}: {:?}", it.point);
        for (found, expected) in it.point.iter().zip(&at) {
            assert!((found - expected).abs() < 1e-6, "{:?}, expected {at:?}", it.point);
        }
    }
}

/// A pair whose squares are infinite in f32 is none: what it would leave behind (a scale of 0) made every later direction 0.
#[test]
fn lbfgs_goes_on_behind_a_gradient_whose_square_is_infinite() {
    let optimizer: Groups = "lbfgs:lr=0.1,history=4".parse().expect("an optimizer");
    let g = Graph::new("step");
    let (w, a) = (g.state("w", DType::F32, [4]), g.input("a", DType::F32, ()));
    optimizer.minimize(&(w.square().sum(..) * a * 0.5), &[("w", &w)]);
    let step = g.compile(&CompileOptions::default()).expect("it compiles");
    let mut state = State::new();
    state.insert("w", [3.0f32, -2.0, 5.0, 1.0]).expect("an entry");
    optimizer.prepare(&mut state, &["w"]).expect("memory");
    let mut call = |a: f32| {
        step.run_with(&mut state, &inputs![a]).expect("it runs");
        state["w"].as_slice::<f32>().expect("floats").to_vec()
    };
    call(1.0);
    let far = call(1e19);
    assert!(far.iter().all(|w| w.abs() > 1e16), "{far:?}");
    let back = (0..12).map(|_| call(1.0)).last().expect("a call");
    let nearer = |(a, b): (&f32, &f32)| b.abs() < a.abs() * 0.5;
    assert!(far.iter().zip(&back).all(nearer), "{far:?} {back:?}");
}
