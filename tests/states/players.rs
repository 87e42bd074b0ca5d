//! Two optimizers in one graph, each with its own loss, parameters and states, beside NumPy (`players.py`).

use tlc::optim::Groups;
use tlc::{CompileOptions, DType, Executable, Graph, State, inputs};

fn players() -> (Groups, Groups) {
    let one: Groups = "adam:lr=0.1".parse().expect("an optimizer");
    let other: Groups = "sgd:lr=0.05,momentum=0.5".parse().expect("an optimizer");
    (one, other.named("critic"))
}

fn step() -> Executable {
    let (one, other) = players();
    let g = Graph::new("step");
    let (x, y) = (g.state("x", DType::F64, [3]), g.state("y", DType::F64, [2]));
    let m = g.constant([[1.0, -0.5], [0.25, 2.0], [-1.5, 0.75]]);
    let (c, d) = (g.constant([0.5, -1.0, 2.0]), g.constant([0.3, -0.2]));
    // No number in one player's loss alone.
    let noise = g.input("noise", DType::F64, ());
    let between = (m.matmul(&y) * &x).sum(..);
    let first = (&x - c).square().sum(..) + &between;
    let second = y.square().sum(..) * 0.5 - between + (d * &y).sum(..) + (&noise * y.sum(..) - &noise * y.sum(..));
    g.output("one", &one.minimize(&first, &[("x", &x)]));
    g.output("other", &other.minimize(&second, &[("y", &y)]));
    g.compile(&CompileOptions::default()).expect("it compiles")
}

fn fresh() -> State {
    let (one, other) = players();
    let mut state = State::new();
    state.insert("x", [0.0; 3]).expect("an entry");
    state.insert("y", [1.0; 2]).expect("an entry");
    one.prepare(&mut state, &["x"]).expect("memory");
    other.prepare(&mut state, &["y"]).expect("memory");
    state
}

#[test]
fn two_players_move_as_in_numpy() {
    let (step, mut state) = (step(), fresh());
    let mut lines = 0;
    for line in include_str!("players.txt").lines() {
        let numbers: Vec<f64> = line.split(' ').map(|w| w.parse().expect("a number")).collect();
        step.run_with(&mut state, &inputs![0.0]).expect("it runs");
        let found = [state["x"].as_slice::<f64>(), state["y"].as_slice::<f64>()];
        let found = found.map(|v| v.expect("numbers").to_vec()).concat();
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
        assert!(
            found.iter().zip(&numbers[1..]).all(near),
            "{found:?}, expected {numbers:?}"
        );
        lines += 1;
    }
    assert_eq!(lines, 30);
    let names: Vec<&str> = state.iter().map(|e| e.name()).collect();
    let all = [
        "x",
        "y",
        "optimizer.x.mean",
        "optimizer.x.square",
        "optimizer.steps",
        "critic.y.momentum",
        "critic.steps",
    ];
    assert!(
        names.len() == all.len() && all.iter().all(|n| names.contains(n)),
        "{names:?}"
    );
    assert_eq!(
        (players().0.steps(), players().1.steps()),
        (all[4].to_string(), all[6].to_string())
    );
}

/// One player's loss that is no number leaves that player as it was, and the other moves.
#[test]
fn each_player_steps_by_its_own_loss() {
    let (step, mut state) = (step(), fresh());
    step.run_with(&mut state, &inputs![0.0]).expect("it runs");
    let before: Vec<(String, Vec<u8>)> = state
        .iter()
        .map(|e| (e.name().to_string(), e.bytes().expect("here").to_vec()))
        .collect();
    let out = step.run_with(&mut state, &inputs![f64::NAN]).expect("it runs");
    assert_eq!(
        (out["one"].as_scalar(), out["other"].as_scalar()),
        (Ok(true), Ok(false))
    );
    for (name, bytes) in before {
        let own = name == "y" || name.starts_with("critic.");
        assert_eq!(state[&*name].bytes().expect("here") == bytes, own, "{name}");
    }
}

/// Two of one name have one state that both would set.
#[test]
fn two_optimizers_of_one_name_are_refused() {
    let one = players().0;
    let g = Graph::new("step");
    let (x, y) = (g.state("x", DType::F64, [3]), g.state("y", DType::F64, [3]));
    one.minimize(&x.square().sum(..), &[("x", &x)]);
    one.minimize(&y.square().sum(..), &[("y", &y)]);
    let text = g
        .compile(&CompileOptions::default())
        .expect_err("two names")
        .to_string();
    assert!(text.contains("the state `optimizer.steps` is set already"), "{text}");
    assert!(text.contains("Groups::named"), "{text}");
}
