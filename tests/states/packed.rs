//! Frozen entries are packed for products once, by the first call that needs it, and results are the same bits.

use tlc::ir::interp::{self, compare, interpret_with_bounds};
use tlc::ir::rng::Rng;
use tlc::ir::testgen::seeds;
use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input, Specialize, State, Tensor};

/// More rows than any kernel of our own takes, so that the library multiplies.
const ROWS: usize = 96;

fn compiled(g: &Graph, threads: usize) -> Executable {
    let options = CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap_or_else(|e| panic!("{e}"))
}

fn random(rng: &mut Rng, dtype: DType, shape: &[usize], odd: bool) -> HostTensor {
    let count: usize = shape.iter().product();
    let mut value = || match rng.below(if odd { 40 } else { 1 << 30 }) {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => -0.0,
        _ => rng.range(-1000, 1000) as f64 / 250.0,
    };
    match dtype {
        DType::F64 => HostTensor::from_slice(shape, &(0..count).map(|_| value()).collect::<Vec<f64>>()),
        _ => HostTensor::from_slice(shape, &(0..count).map(|_| value() as f32).collect::<Vec<f32>>()),
    }
    .expect("a tensor")
}

/// `relu(x up) down + x`, with one matrix as it is and one transposed, and a count of the calls.
fn layer(width: usize, inner: usize) -> Graph {
    let g = Graph::new("layer");
    let x = g.input("x", DType::F32, [ROWS, width]);
    let up = g.state("up", DType::F32, [width, inner]);
    let down = g.state("down", DType::F32, [width, inner]);
    let count = g.state("count", DType::I64, ());
    g.set("count", &(&count + 1));
    g.output("y", &(x.matmul(&up).maximum(0.0).matmul(&down.t()) + &x));
    g
}

fn weights(width: usize, inner: usize, rng: &mut Rng) -> State {
    let mut state = State::new();
    for name in ["up", "down"] {
        let value = random(rng, DType::F32, &[width, inner], false);
        state.insert(name, &value).expect("an entry");
    }
    state
}

fn bits(e: &Executable, state: &mut State, x: &HostTensor) -> Vec<u8> {
    e.run_with(state, &[Input::from(x)]).expect("it runs")["y"]
        .bytes()
        .to_vec()
}

#[test]
fn eight_decoders_pack_each_of_their_weights_once() {
    let (width, inner) = (70, 130);
    let mut rng = Rng::new(1);
    let e = compiled(&layer(width, inner), 2);
    let mut plain = weights(width, inner, &mut rng);
    plain.insert("count", 0i64).expect("an entry");
    let x = random(&mut rng, DType::F32, &[ROWS, width], false);
    let expected = bits(&e, &mut plain, &x);
    let packed = |s: &State| ["up", "down"].map(|name| s[name].packed().0);
    assert_eq!(packed(&plain), [0, 0], "nothing is packed of what may change");
    let mut shared = State::new();
    for name in ["up", "down"] {
        shared
            .insert(name, plain[name].to_host().expect("it is fetched"))
            .expect("an entry");
    }
    shared.freeze(|_| true);
    let mut all: Vec<State> = (0..8).map(|_| shared.share()).collect();
    all.iter_mut().for_each(|s| s.insert("count", 0i64).expect("an entry"));
    // All at once, so that several want the first copy.
    std::thread::scope(|scope| {
        for state in &mut all {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(bits(&e, state, &x), expected)));
        }
    });
    assert_eq!(packed(&shared), [1, 1]);
    assert!(
        all.iter()
            .all(|s| packed(s) == [1, 1] && s["count"].as_scalar() == Ok(5i64))
    );
    // Whole panels of 16 to 64 elements for each step along the sum.
    for (name, [along, across]) in [("up", [width, inner]), ("down", [inner, width])] {
        let bytes = shared[name].packed().1;
        let least = along * across * 4;
        assert!(
            (least..=along * across.next_multiple_of(64) * 4).contains(&bytes),
            "{name}: {bytes}"
        );
    }
    // Another executable reads the same copies, for any number of rows.
    let g = Graph::new("other");
    let n = g.symbol("n", 1..=1000);
    let (x, up) = (
        g.input("x", DType::F32, (&n, width)),
        g.state("up", DType::F32, [width, inner]),
    );
    g.output("y", &x.matmul(&up));
    let other = compiled(&g, 1);
    for rows in [300, 200] {
        let x = random(&mut rng, DType::F32, &[rows, width], false);
        other.run_with(&mut all[0], &[Input::from(&x)]).expect("it runs");
    }
    assert_eq!(packed(&shared), [1, 1]);
}

#[test]
fn a_replaced_entry_is_packed_again() {
    let (width, inner) = (64, 96);
    let mut rng = Rng::new(2);
    let e = compiled(&layer(width, inner), 1);
    let x = random(&mut rng, DType::F32, &[ROWS, width], false);
    let mut frozen = weights(width, inner, &mut rng);
    frozen.insert("count", 0i64).expect("an entry");
    frozen.freeze(|name| name != "count");
    bits(&e, &mut frozen, &x);
    for round in 0..3 {
        let new = random(&mut rng, DType::F32, &[width, inner], false);
        assert!(frozen.insert("down", &new).is_err());
        let kept = frozen.share();
        assert!(frozen.remove("down"));
        frozen.insert("down", &new).expect("an entry");
        let mut plain = State::new();
        for name in ["up", "down", "count"] {
            plain
                .insert(name, frozen[name].to_host().expect("it is fetched"))
                .expect("an entry");
        }
        let expected = bits(&e, &mut plain, &x);
        assert_eq!(
            bits(&e, &mut frozen, &x),
            expected,
            "before it is frozen, round {round}"
        );
        assert_eq!(frozen["down"].packed(), (0, 0));
        frozen.freeze(|name| name == "down");
        assert_eq!(bits(&e, &mut frozen, &x), expected, "round {round}");
        assert_eq!(frozen["down"].packed().0, 1);
        // The old one has its own, and the other matrix still one.
        assert_eq!((kept["down"].packed().0, frozen["up"].packed().0), (1, 1));
    }
    // Loaded entries are new.
    let path = std::env::temp_dir().join(format!("tlc-packed-{}.safetensors", std::process::id()));
    frozen.save(&path).expect("it is written");
    let loaded = State::open(&path);
    std::fs::remove_file(&path).expect("it was there");
    let mut loaded = loaded.expect("it is read");
    loaded.freeze(|name| name != "count");
    assert_eq!(loaded["up"].packed(), (0, 0));
    bits(&e, &mut loaded, &x);
    assert_eq!(loaded["up"].packed().0, 1);
}

#[test]
fn what_is_packed_is_said_and_stays_within_the_limit() {
    let (width, inner) = (128, 192);
    let mut rng = Rng::new(3);
    let g = layer(width, inner);
    let e = compiled(&g, 1);
    let x = random(&mut rng, DType::F32, &[ROWS, width], false);
    let mut state = weights(width, inner, &mut rng);
    state.insert("count", 0i64).expect("an entry");
    let plain = e.memory_with(&state, &[Input::from(&x)]).expect("it fits");
    assert_eq!(plain.packed, 0);
    state.freeze(|name| name != "count");
    let need = e.memory_with(&state, &[Input::from(&x)]).expect("it fits");
    let expected = bits(&e, &mut state, &x);
    let bytes = (state["up"].packed().1 + state["down"].packed().1) as u64;
    assert!(bytes > 0);
    assert_eq!((need.packed, need.total()), (bytes, plain.total() + bytes));
    let text = e.explain();
    for name in ["up", "down"] {
        assert!(
            text.contains(&format!("packed for products once if it is frozen: {name}, ")),
            "{text}"
        );
    }
    // Room for one of the two, for none, and for both.
    for (room, forms) in [(state["up"].packed().1 as u64, 1), (0, 0), (bytes, 2)] {
        let options = CompileOptions {
            threads: Some(1),
            max_memory_bytes: Some(plain.total() + room),
            ..CompileOptions::default()
        };
        let limited = g.compile(&options).expect("it compiles");
        let mut fresh = State::new();
        for entry in state.iter() {
            fresh
                .insert(entry.name(), entry.to_host().expect("it is fetched"))
                .expect("an entry");
        }
        fresh.freeze(|name| name != "count");
        let need = limited.memory_with(&fresh, &[Input::from(&x)]).expect("it fits");
        need.within(plain.total() + room).expect("the limit holds");
        assert_eq!(bits(&limited, &mut fresh, &x), expected);
        let found = fresh["up"].packed().0 + fresh["down"].packed().0;
        assert_eq!(
            (found, need.packed),
            (forms, (fresh["up"].packed().1 + fresh["down"].packed().1) as u64)
        );
    }
}

/// A slice whose size differs from call to call is another operand each time: copies do not pile up.
#[test]
fn copies_of_ever_new_slices_do_not_pile_up() {
    let g = Graph::new("slices");
    let n = g.symbol("n", 1..=128);
    let x = g.input("x", DType::F32, (ROWS, &n));
    let w = g.state("w", DType::F32, [80, 128]);
    g.output("y", &x.matmul(&w.narrow(1, 0, &n).t()));
    let e = compiled(&g, 1);
    let mut rng = Rng::new(4);
    let mut state = State::new();
    let value = random(&mut rng, DType::F32, &[80, 128], false);
    state.insert("w", &value).expect("an entry");
    let mut plain = State::new();
    plain.insert("w", &value).expect("an entry");
    state.freeze(|_| true);
    for n in 100..125 {
        let x = random(&mut rng, DType::F32, &[ROWS, n], false);
        assert_eq!(bits(&e, &mut state, &x), bits(&e, &mut plain, &x), "{n}");
    }
    let (count, bytes) = state["w"].packed();
    assert!(
        count > 1 && bytes <= 8 * 128 * 128 * 4,
        "{count} copies of {bytes} bytes"
    );
}

/// A product with a frozen operand on a random side, in a random order of storage.
fn product(rng: &mut Rng, g: &Graph) -> (DType, Vec<(String, Vec<usize>)>) {
    let dtype = [DType::F32, DType::F32, DType::F64][rng.below(3)];
    let extents = [1, 2, 3, 7, 16, 31, 33, 48, 63, 64, 65, 96, 100, 129, 200];
    let [m, k, n] = [0; 3].map(|_| extents[rng.below(extents.len())]);
    let batch: Vec<usize> = (0..rng.below(3)).map(|_| 1 + rng.below(3)).collect();
    let mut all = Vec::new();
    let mut operand = |name: &str, state: bool, rows: usize, columns: usize, rng: &mut Rng| -> Tensor {
        // Some axes of the batch are those of the other operand alone.
        let mut shape: Vec<usize> = match rng.chance(1, 2) {
            true => batch.clone(),
            false => batch.iter().map(|_| 1).collect(),
        };
        let turned = rng.chance(1, 2);
        // A part of a larger matrix, at times.
        let (more, first) = (rng.below(3), rng.below(2));
        let (rows, columns) = if turned { (columns, rows) } else { (rows, columns) };
        shape.extend([rows + first + more, columns]);
        all.push((name.to_string(), shape.clone()));
        let whole = match state {
            true => g.state(name, dtype, shape.clone()),
            false => g.input(name, dtype, shape.clone()),
        };
        let part = whole.narrow(-2, first as i64, rows as i64);
        if turned { part.t() } else { part }
    };
    let frozen = rng.below(3);
    let a = operand("a", frozen != 1, m, k, rng);
    let b = operand("b", frozen != 0, k, n, rng);
    let mut y = a.matmul(&b);
    if rng.chance(1, 3) {
        y = y.t();
    }
    if rng.chance(1, 2) {
        y = y.maximum(0.5) * 2.0;
    }
    g.output("y", &y);
    (dtype, all)
}

#[test]
fn random_products_over_frozen_entries_are_the_same_bits() {
    let mut packed = 0;
    for seed in seeds(0..300) {
        let mut rng = Rng::new(seed);
        let g = Graph::new("product");
        let (dtype, all) = product(&mut rng, &g);
        let graph = g.finish().expect("a graph");
        let odd = rng.chance(1, 3);
        let values: Vec<HostTensor> = all.iter().map(|(_, s)| random(&mut rng, dtype, s, odd)).collect();
        let names = g.state_names();
        let e = compiled(&g, 1 + rng.below(3));
        let (mut plain, mut inputs) = (State::new(), Vec::new());
        for ((name, _), value) in all.iter().zip(&values) {
            match names.contains(name) {
                true => plain.insert(name, value).expect("an entry"),
                false => inputs.push(Input::from(value)),
            }
        }
        let mut frozen = State::new();
        for entry in plain.iter() {
            frozen
                .insert(entry.name(), entry.to_host().expect("it is fetched"))
                .expect("an entry");
        }
        frozen.freeze(|_| true);
        let expected = e.run_with(&mut plain, &inputs).expect("it runs")["y"].to_host();
        let ordered: Vec<HostTensor> = graph
            .inputs()
            .iter()
            .map(|&node| {
                let tlc::ir::NodeKind::Input { name, .. } = &graph.node(node).kind else {
                    unreachable!("an input")
                };
                let at = all.iter().position(|(n, _)| n == name).expect("a name");
                values[at].clone()
            })
            .collect();
        let bounds = interpret_with_bounds(&graph, &ordered, &interp::Options::default()).expect("it is interpreted");
        compare(&expected, &bounds[0]).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        for _ in 0..2 {
            let found = e.run_with(&mut frozen, &inputs).expect("it runs")["y"].to_host();
            let (found, expected) = (found.bytes(), expected.bytes());
            assert!(found == expected, "seed {seed}: frozen or not differ\n{graph}");
        }
        packed += frozen.iter().map(|e| e.packed().0).sum::<usize>();
    }
    assert!(
        std::env::var("TLC_SEED").is_ok() || packed > 50,
        "only {packed} operands were packed"
    );
}
