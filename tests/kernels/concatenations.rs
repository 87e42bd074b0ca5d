//! Concatenations whose parts are computed where the whole has them: parts of every kind, read elsewhere, joined twice, joined again, empty,
//! of symbolic size, against the graph interpreter within its derived bounds; and how much a network's concatenations move.

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Pool, Tensor, compile_ir, concat};
use tlc_ir::interp::{self, compare, interpret, interpret_with_bounds};
use tlc_ir::plan::{Plan, Step, Storage};
use tlc_ir::text::{no_data, parse_graph};

/// Numbers that are no others' (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

fn data(shape: &[usize], seed: usize) -> HostTensor {
    let mut out = HostTensor::zeros(DType::F32, shape).expect("room");
    for i in 0..shape.iter().product() {
        let value = (((i + seed) * 37 + 11) % 101) as f64 / 50.0 - 1.0;
        out.set(i, tlc::Scalar::from_f64(DType::F32, value));
    }
    out
}

/// Runs a graph on one thread and two; returns its plan for one.
fn check(what: &str, graph: &tlc_ir::Graph, inputs: &[HostTensor]) -> Plan {
    let options = interp::Options::default();
    let exact = interpret(graph, inputs, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bounded = interpret_with_bounds(graph, inputs, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut plans = Vec::new();
    for threads in [1, 2] {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(graph, &options).unwrap_or_else(|e| panic!("{what}: {e}\n{graph}"));
        let given: Vec<_> = inputs.iter().map(Into::into).collect();
        // Twice: memory is used again.
        for _ in 0..2 {
            let found = executable.run(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
            for ((found, exact), bounded) in found.iter().zip(&exact).zip(&bounded) {
                let found = found.to_host();
                assert_eq!(found.shape(), exact.shape(), "{what}");
                compare(&found, bounded).unwrap_or_else(|e| panic!("{what}: {e}\n{graph}\n{}", executable.explain()));
            }
        }
        plans.push(executable.plan().clone());
    }
    plans.swap_remove(0)
}

fn parts(plan: &Plan) -> usize {
    plan.slots
        .iter()
        .filter(|s| matches!(s.storage, Storage::Part { .. }))
        .count()
}

fn copies(plan: &Plan) -> usize {
    plan.steps.iter().filter(|s| matches!(s, Step::Copy { .. })).count()
}

/// A network of random branches that are joined along channels, and again.
fn network(seed: u64, batch: usize, symbolic: bool) -> (tlc_ir::Graph, Vec<HostTensor>) {
    let mut rng = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let g = Graph::new("branches");
    let side = [3usize, 7, 8, 14][rng.below(4)];
    let width: Dim = if symbolic { g.symbol("w", 1..=64) } else { side.into() };
    let c = [3usize, 8, 16][rng.below(3)];
    let shape = [batch, c, side, side];
    let x = g.input("x", DType::F32, [Dim::from(batch), c.into(), side.into(), width]);
    let inputs = vec![data(&shape, 0)];
    let mut values = vec![(x, c)];
    let mut wholes = Vec::new();
    for round in 0..1 + rng.below(3) {
        let mut branches: Vec<(Tensor, usize)> = Vec::new();
        for _ in 0..2 + rng.below(3) {
            let (of, channels) = values[rng.below(values.len())].clone();
            let out = [1usize, 5, 16, 32][rng.below(4)];
            let weights = |k: usize| g.constant(data(&[out, channels, k, k], out + round));
            let branch = match rng.below(9) {
                0 | 1 => (of.conv2d(&weights(1), None, &Conv::default()), out),
                2 | 3 => (of.conv2d(&weights(3), None, &Conv::default().padding(1)).relu(), out),
                4 => (of.max_pool(&Pool::new(3).stride(1).padding(1)), channels),
                5 => (of.tanh(), channels),
                6 => (of.sum([1]).unsqueeze(1).tanh(), 1),
                7 => (of.clone(), channels),
                _ => (of.conv2d(&weights(1), None, &Conv::default()).tanh(), out),
            };
            if rng.below(5) == 0 {
                values.push(branch.clone());
            }
            if rng.below(8) == 0 {
                branches.push(branch.clone());
            }
            branches.push(branch);
        }
        let all: Vec<&Tensor> = branches.iter().map(|b| &b.0).collect();
        let whole = (concat(&all, 1), branches.iter().map(|b| b.1).sum());
        if rng.below(4) == 0 {
            g.output(&format!("part{round}"), &branches[0].0);
        }
        values.push(whole.clone());
        if rng.below(3) == 0 {
            values.push((whole.0.relu(), whole.1));
        }
        wholes.push(whole);
    }
    let (last, channels) = values.last().expect("the input at least").clone();
    match rng.below(4) {
        0 => g.output("y", &last),
        1 => g.output("y", &last.max_pool(&Pool::new(3).stride(1).padding(1))),
        _ => {
            g.output(
                "y",
                &last.conv2d(&g.constant(data(&[16, channels, 1, 1], 5)), None, &Conv::default()),
            );
        }
    }
    // What goes over all of a whole could be computed in its place.
    if rng.below(2) == 0 {
        g.output("same", &wholes[rng.below(wholes.len())].0.tanh());
    }
    if rng.below(3) == 0 {
        g.output("z", &wholes[rng.below(wholes.len())].0);
    }
    (g.finish().expect("a graph"), inputs)
}

#[test]
fn random_branches_that_are_joined_are_what_the_interpreter_says() {
    let (mut in_place, mut graphs) = (0, 0);
    for seed in 0..60 {
        let symbolic = seed % 3 == 2;
        let batch = if seed % 10 == 9 { 2 } else { 1 };
        let (graph, inputs) = network(seed, batch, symbolic);
        let plan = check(&format!("seed {seed}"), &graph, &inputs);
        in_place += parts(&plan);
        graphs += usize::from(parts(&plan) > 0);
        assert!(
            batch == 1 || parts(&plan) == 0,
            "ranges of several images do not lie together"
        );
    }
    assert!(graphs > 15 && in_place > 40, "{in_place} parts in {graphs} graphs");
}

/// Of what is joined, something else is computed element by element when nobody needs it any longer: that has memory of its own.
#[test]
fn what_parts_make_up_is_not_overwritten() {
    let g = Graph::new("scaled");
    let (x, tail) = (
        g.input("x", DType::F32, [1, 900, 10]),
        g.input("tail", DType::F32, [1, 5, 1]),
    );
    let weights = |n: usize| g.constant(data(&[n, 1], n));
    let whole = concat(&[&x.matmul(&weights(10)).matmul(&weights(1)), &tail], 1);
    g.output("y", &whole.matmul(&weights(1)));
    let inputs = [data(&[1, 900, 10], 0), data(&[1, 5, 1], 1)];
    let plan = check("scaled", &g.finish().expect("a graph"), &inputs);
    assert_eq!(parts(&plan), 2, "{plan}");
}

/// A fire module: a squeezed image, expanded in two ways, one behind the other.
#[test]
fn a_fire_module_copies_nothing() {
    let g = Graph::new("fire");
    let x = g.input("x", DType::F32, [1, 64, 28, 28]);
    let weights = |n: usize, c: usize, k: usize| g.constant(data(&[n, c, k, k], n + k));
    let squeezed = x.conv2d(&weights(16, 64, 1), None, &Conv::default()).relu();
    let one = squeezed.conv2d(&weights(64, 16, 1), None, &Conv::default()).relu();
    let three = squeezed
        .conv2d(&weights(64, 16, 3), None, &Conv::default().padding(1))
        .relu();
    let y = concat(&[&one, &three], 1).conv2d(&weights(16, 128, 1), None, &Conv::default());
    g.output("y", &y);
    let plan = check("fire", &g.finish().expect("a graph"), &[data(&[1, 64, 28, 28], 0)]);
    assert_eq!((parts(&plan), copies(&plan)), (2, 0), "{plan}");
    // Three steps of the branches, one behind them.
    assert!(plan.steps.len() <= 5, "{plan}");
}

/// Four layers of which each reads all that those before it made.
#[test]
fn a_dense_block_copies_nothing() {
    let g = Graph::new("dense");
    let x = g.input("x", DType::F32, [1, 32, 14, 14]);
    let weights = |n: usize, c: usize, k: usize| g.constant(data(&[n, c, k, k], n + c + k));
    let mut features = vec![x.conv2d(&weights(32, 32, 1), None, &Conv::default())];
    let mut channels = 32;
    for _ in 0..4 {
        let all: Vec<&Tensor> = features.iter().collect();
        let whole = if all.len() == 1 {
            all[0].clone()
        } else {
            concat(&all, 1)
        };
        let narrow = whole.conv2d(&weights(16, channels, 1), None, &Conv::default()).relu();
        features.push(narrow.conv2d(&weights(16, 16, 3), None, &Conv::default().padding(1)));
        channels += 16;
    }
    let all: Vec<&Tensor> = features.iter().collect();
    g.output(
        "y",
        &concat(&all, 1).conv2d(&weights(8, channels, 1), None, &Conv::default()),
    );
    let plan = check("dense", &g.finish().expect("a graph"), &[data(&[1, 32, 14, 14], 0)]);
    assert_eq!(copies(&plan), 0, "{plan}");
}

/// Of a size that nobody can tell to be positive, as that of a pool which rounds up may be, parts are not known to lie apart: they are copied.
#[test]
fn parts_of_a_size_that_nothing_is_known_of() {
    let size = "h, div(w - min(1, w - 3*div(w, 3)), 3) + 1";
    let text = format!(
        "graph @g(%x: f32[1, 2, h, w]) where h in 0..=2147483647, w in 0..=2147483647 {{
  %0 = pad %x {{lo=[0, 0, 0, 1], hi=[0, 0, 0, -min(1, w - 3*div(w, 3)) + 1], value=-inf}} : f32[1, 2, h, w - min(1, w - 3*div(w, 3)) + 2]
  %1 = window %0 {{axis=3, size=2, stride=3, dilation=1}} : f32[1, 2, {size}, 2]
  %2 = reduce max %1 {{axes=[4]}} : f32[1, 2, {size}]
  %3 = neg %2 : f32[1, 2, {size}]
  %4 = pad %2 {{lo=[0, 0, 0, 0], hi=[0, 4, 0, 0], value=0.0}} : f32[1, 6, {size}]
  %5 = pad %3 {{lo=[0, 2, 0, 0], hi=[0, 2, 0, 0], value=0.0}} : f32[1, 6, {size}]
  %6 = pad %2 {{lo=[0, 4, 0, 0], hi=[0, 0, 0, 0], value=0.0}} : f32[1, 6, {size}]
  %7 = const true : bool[]
  %8 = expand %7 : bool[1, 4, 1, 1]
  %9 = pad %8 {{lo=[0, 0, 0, 0], hi=[0, 2, 0, 0], value=false}} : bool[1, 6, 1, 1]
  %10 = expand %9 : bool[1, 6, {size}]
  %11 = select %10, %5, %6 : f32[1, 6, {size}]
  %12 = expand %7 : bool[1, 2, 1, 1]
  %13 = pad %12 {{lo=[0, 0, 0, 0], hi=[0, 4, 0, 0], value=false}} : bool[1, 6, 1, 1]
  %14 = expand %13 : bool[1, 6, {size}]
  %15 = select %14, %4, %11 : f32[1, 6, {size}]
  return %15 as y
}}"
    );
    let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    for (h, w) in [(3, 7), (1, 1), (4, 9), (2, 0), (0, 5), (17, 40)] {
        check(&format!("{h} by {w}"), &graph, &[data(&[1, 2, h, w], h)]);
    }
}

/// Parts of an image's channels, each computed in another way, that are brought together to the end: sizes known when compiled or not.
fn mixed(channels: usize, side: usize, behind: &str, symbolic: bool) -> tlc_ir::Graph {
    let g = Graph::new("mixed");
    let size = |name: &str, n: usize| if symbolic { g.symbol(name, 1..=64) } else { n.into() };
    let (n, h, w) = (size("n", 1), size("h", side), size("w", side + 3));
    let x = g.input("x", DType::F32, [n, channels.into(), h, w]);
    let part = channels / 4;
    let of = |k: usize| x.narrow(1, (k * part) as i64, part as i64);
    let depthwise = |k: usize, rows: usize, columns: usize| {
        let weights = g.constant(data(&[part, 1, rows, columns], k + rows));
        let (top, left) = (rows / 2, columns / 2);
        let conv = Conv::default().padding([top, left]).groups(part);
        of(k).conv2d(&weights, None, &conv)
    };
    let parts = [of(0), depthwise(1, 3, 3), depthwise(2, 1, 5).tanh(), depthwise(3, 5, 1)];
    let whole = concat(&[&parts[0], &parts[1], &parts[2], &parts[3]], 1);
    let y = match behind {
        "added" => whole.permute([0, 2, 3, 1]) + 1.0,
        "norm" => {
            let rows = whole.permute([0, 2, 3, 1]);
            let centered = &rows - rows.mean([3]).unsqueeze(3);
            let deviation = ((&centered * &centered).mean([3]) + 1e-5).sqrt().unsqueeze(3);
            centered / deviation
        }
        "tokens" => whole
            .relu()
            .reshape([whole.dim(0), whole.dim(1), whole.dim(2) * whole.dim(3)])
            .permute([0, 2, 1]),
        "product" => whole
            .permute([0, 2, 3, 1])
            .matmul(&g.constant(data(&[channels, 24], 3))),
        "turned" => whole.permute([0, 1, 3, 2]) * 2.0,
        _ => whole.permute([0, 2, 3, 1]).mean([1, 2]),
    };
    g.output("y", &y);
    g.finish().expect("a graph")
}

#[test]
fn what_is_joined_and_brought_to_the_end_is_what_the_interpreter_says() {
    for behind in ["added", "norm", "tokens", "product", "turned", "mean"] {
        for (channels, side) in [(16, 3), (32, 9), (96, 14)] {
            for symbolic in [false, true] {
                let graph = mixed(channels, side, behind, symbolic);
                let x = data(&[1, channels, side, side + 3], side);
                check(&format!("{behind} of {channels} by {side}, {symbolic}"), &graph, &[x]);
            }
        }
    }
}

/// Which part an element is of is asked once for a row, and not of each element where the channels are the last axis.
#[test]
fn what_is_joined_and_brought_to_the_end_is_moved_in_vectors() {
    for symbolic in [false, true] {
        let graph = mixed(96, 56, "added", symbolic);
        let options = CompileOptions {
            threads: Some(1),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).expect("it compiles");
        let text = executable.explain().to_string();
        let one_by_one = text.lines().filter(|l| l.contains("conditional per element"));
        assert!(!text.contains("avx512") || one_by_one.count() == 0, "{text}");
    }
}

/// Means over images of what is joined of padded parts: padding at all sides, of one part and of all, short rows and long ones.
#[test]
fn means_of_joined_and_padded_parts_are_what_the_interpreter_says() {
    for (n, channels, h, w) in [(1, 1, 3, 4), (2, 3, 7, 20), (1, 16, 5, 33), (1, 8, 30, 70)] {
        for symbolic in [false, true] {
            for kind in 0..4 {
                let g = Graph::new("means");
                let size = |name: &str, n: usize| if symbolic { g.symbol(name, 1..=128) } else { n.into() };
                let shape = [size("n", n), channels.into(), size("h", h), size("w", w)];
                let x = g.input("x", DType::F32, shape);
                let all = |t: &Tensor, top: i64, left: i64, bottom: i64, right: i64, value: f64| {
                    t.pad(&[(0, 0), (0, 0), (top, bottom), (left, right)], value)
                };
                let parts = match kind {
                    0 => vec![all(&x, 1, 1, 1, 1, 0.0), all(&x, 2, 0, 0, 2, 0.0)],
                    1 => vec![
                        all(&x, 0, 1, 0, 1, 1.5),
                        all(&x.tanh(), 0, 0, 0, 2, 0.0),
                        all(&x, 0, 2, 0, 0, 0.0),
                    ],
                    2 => vec![x.clone(), x.relu()],
                    _ => vec![
                        all(&x, 3, 0, 0, 5, 0.0),
                        all(&x, 0, 5, 3, 0, -1.0),
                        all(&x, 1, 2, 2, 3, 0.0),
                    ],
                };
                let parts: Vec<&Tensor> = parts.iter().collect();
                let whole = concat(&parts, 1);
                g.output("mean", &whole.mean([2, 3]));
                g.output("most", &whole.tanh().max([2, 3]));
                let graph = g.finish().expect("a graph");
                let x = data(&[n, channels, h, w], kind);
                check(&format!("{n} {channels} {h} {w} {symbolic} {kind}"), &graph, &[x]);
            }
        }
    }
}

/// Lists of boxes of many classes, put together and picked from: parts that are computed, views, constants, the same one twice, empty ones.
fn many_parts(parts: usize, length: usize, symbolic: bool) -> (tlc_ir::Graph, Vec<HostTensor>) {
    let g = Graph::new("many");
    let n: Dim = match symbolic {
        true => g.symbol("n", 0..=1 << 20),
        false => length.into(),
    };
    let x = g.input("x", DType::F32, [Dim::from(parts), n]);
    let places = g.input("places", DType::I64, [33]);
    let row = |k: usize| x.select_index(0, k as i64);
    let all: Vec<Tensor> = (0..parts)
        .map(|k| match k % 7 {
            0 => row(k),
            1 => g.constant(data(&[5], k)),
            2 => row(k - 1).exp(),
            3 => row(3).exp() * 2.0,
            4 => row(k).narrow(0, 0, 0),
            _ => row(k) * k as f32 + row(0),
        })
        .collect();
    let joined = concat(&all.iter().collect::<Vec<_>>(), 0);
    g.output("picked", &joined.take(&places, 0));
    let pairs = concat(
        &all.iter()
            .map(|t| t.reshape([-1, 1]))
            .collect::<Vec<_>>()
            .iter()
            .collect::<Vec<_>>(),
        0,
    );
    g.output("pairs", &(&pairs + pairs.take(&g.constant([0i64]), 0)));
    let total = joined.dim(0).as_const().unwrap_or(length as i64);
    let places: Vec<i64> = (0..33).map(|k| (k * 977) % total.max(1)).collect();
    let inputs = vec![
        data(&[parts, length], 3),
        HostTensor::from_slice(&[33], &places).expect("places"),
    ];
    (g.finish().expect("a graph"), inputs)
}

#[test]
fn many_parts_are_stored_one_by_one() {
    for (parts, length) in [(15, 900), (16, 900), (40, 300), (90, 300), (20, 8)] {
        for symbolic in [false, true] {
            let (graph, inputs) = many_parts(parts, length, symbolic);
            let plan = check(&format!("{parts} parts of {length}, {symbolic}"), &graph, &inputs);
            if !symbolic && parts >= 40 {
                assert!(self::parts(&plan) > parts / 2, "{} parts", self::parts(&plan));
            }
        }
    }
}

/// Rows put together of elements or of pieces, each computed in its own way of pieces of rows of two tensors.
fn rows_of_parts(seed: u64) -> (String, tlc_ir::Graph, Vec<HostTensor>) {
    let mut rng = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
    let g = Graph::new("rows");
    let rows = [1usize, 3, 63, 64, 65, 131, 700, 2049][rng.below(8)];
    let dtype = [
        DType::F32,
        DType::F32,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I8,
    ][rng.below(7)];
    // Elements, short pieces, and pieces of whole vectors.
    let kind = rng.below(4);
    let most = [1usize, 6, 60, 200][kind];
    let least = [1usize, 1, 16, 1][kind];
    let count = 2 + rng.below([15, 5, 8, 4][kind]);
    let symbolic = rng.below(4) == 0;
    let extent: Dim = if symbolic { g.symbol("n", 0..=4096) } else { rows.into() };
    let pitches = [most + rng.below(5), most + rng.below(20)];
    let given: Vec<Tensor> = (0..2)
        .map(|k| g.input(&format!("x{k}"), DType::F32, [extent.clone(), pitches[k].into()]))
        .collect();
    let inputs = (0..2).map(|k| data(&[rows, pitches[k]], k)).collect();
    let piece = |rng: &mut Random, width: usize| {
        let of = rng.below(2);
        let x = given[of].narrow(1, rng.below(pitches[of] - width + 1) as i64, width as i64);
        match dtype.is_float() {
            true => x.cast(dtype),
            false => (x * 40.0).cast(dtype),
        }
    };
    let pieces: Vec<Tensor> = (0..count)
        .map(|_| {
            let width = least + rng.below(most - least + 1);
            let (a, b) = (piece(&mut rng, width), piece(&mut rng, width));
            match rng.below(7) {
                0 => a,
                1 => a.clone() * &b + &a,
                2 => a.maximum(&b) - &b,
                3 if dtype.is_float() => a.sigmoid() + &b,
                4 => a.lt(&b).select(&b, &a),
                5 => -(a + &b),
                _ => a.clone() * &b - &b * &a + &a * &a,
            }
        })
        .collect();
    let all: Vec<&Tensor> = pieces.iter().collect();
    let whole = concat(&all, 1);
    match rng.below(4) {
        0 => g.output("y", &(&whole + &whole)),
        1 => {
            g.output("y", &whole);
            g.output("sums", &whole.cast(DType::F32).sum([1]));
        }
        _ => g.output("y", &whole),
    }
    let what = format!("{seed}: {rows} rows of {count} pieces of {dtype}");
    (what, g.finish().expect("a graph"), inputs)
}

#[test]
fn rows_of_parts_are_what_the_interpreter_says() {
    for seed in tlc_ir::testgen::seeds(0..160) {
        let (what, graph, inputs) = rows_of_parts(seed);
        check(&what, &graph, &inputs);
    }
}

/// Accesses that happen for some elements alone.
fn conditional(plan: &Plan) -> usize {
    let kernels = plan.kernels.iter();
    let accesses = kernels.flat_map(|k| k.statements().flat_map(|s| s.accesses()));
    accesses.filter(|a| a.is_conditional()).count()
}

/// Heads of several parts' channels, each with its pixels brought to the front: of parts that have whole heads, and of those that share one.
fn joined_heads(seed: u64) -> (String, tlc_ir::Graph, Vec<HostTensor>) {
    let mut rng = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
    let g = Graph::new("heads");
    let (size, pixels) = (
        [3usize, 8, 16, 33][rng.below(4)],
        [1usize, 17, 64, 196, 300][rng.below(5)],
    );
    let whole = rng.below(3) > 0;
    let count = 2 + rng.below(2);
    let mut channels: Vec<usize> = (0..count).map(|_| size * 3 * (1 + rng.below(4))).collect();
    if !whole {
        let moved = 1 + rng.below(channels[0] - 1);
        channels[0] -= moved;
        channels[1] += moved;
    }
    let dtype = [DType::F32, DType::F32, DType::F16, DType::I8][rng.below(4)];
    let symbolic = rng.below(4) == 0;
    let extent: Dim = if symbolic {
        g.symbol("n", 0..=512)
    } else {
        pixels.into()
    };
    let inputs: Vec<HostTensor> = channels.iter().map(|&c| data(&[1, c, pixels], c)).collect();
    let given: Vec<Tensor> = (0..count)
        .map(|k| {
            let x = g.input(
                &format!("x{k}"),
                DType::F32,
                [1.into(), channels[k].into(), extent.clone()],
            );
            if dtype.is_float() {
                x.cast(dtype)
            } else {
                (x * 40.0).cast(dtype)
            }
        })
        .collect();
    let heads = channels.iter().sum::<usize>() / (3 * size);
    let all: Vec<&Tensor> = given.iter().collect();
    let joined = concat(&all, 1).reshape([heads.into(), (3 * size).into(), extent]);
    for part in 0..3 {
        let x = joined.narrow(1, (part * size) as i64, size as i64).permute([0, 2, 1]);
        let x = match rng.below(3) {
            0 => x,
            1 => x.relu(),
            _ => &x * &x,
        };
        g.output(&format!("y{part}"), &x);
    }
    let what = format!("{seed}: {channels:?} channels, heads of 3 by {size}, {pixels} pixels of {dtype}");
    (what, g.finish().expect("a graph"), inputs)
}

#[test]
fn heads_of_joined_parts_are_what_the_interpreter_says() {
    for seed in tlc_ir::testgen::seeds(0..120) {
        let (what, graph, inputs) = joined_heads(seed);
        check(&what, &graph, &inputs);
    }
}

#[test]
fn nothing_asks_of_each_element_which_part_it_is_of() {
    if tlc_runtime::cpu::level::wide().is_none_or(|level| level.vector_bits() < 256) {
        println!("SKIP: at this level rows are not taken side by side");
        return;
    }
    // A product of quaternions, or nearly: a row has four elements, each of another formula.
    let g = Graph::new("rotation");
    let x = g.input("x", DType::F32, [5000, 4]);
    let at = |k: i64| x.narrow(1, k, 1);
    let (a, b) = (at(0) * at(2) - at(1) * at(3), at(0) * at(3) + at(1) * at(2));
    let (c, d) = (at(0) * at(1) + at(3), at(2) * at(3) - at(0));
    g.output("y", &concat(&[&a, &b, &c, &d], 1));
    let plan = check("rotation", &g.finish().expect("a graph"), &[data(&[5000, 4], 0)]);
    assert_eq!(conditional(&plan), 0, "{plan}");
    // Both signs of a value.
    let g = Graph::new("signs");
    let x = g.input("x", DType::F32, [40, 256]);
    g.output("y", &concat(&[&x.relu(), &(-&x).relu()], 1));
    let plan = check("signs", &g.finish().expect("a graph"), &[data(&[40, 256], 0)]);
    assert_eq!(conditional(&plan), 0, "{plan}");
    // Whole heads of each part, turned.
    let g = Graph::new("turned");
    let given: Vec<Tensor> = (0..2)
        .map(|k| g.input(&format!("x{k}"), DType::F32, [1, 192, 196]))
        .collect();
    let heads = concat(&[&given[0], &given[1]], 1).reshape([8, 48, 196]);
    for part in 0..2 {
        let turned = heads.narrow(1, 16 * part, 16).permute([0, 2, 1]);
        g.output(&format!("y{part}"), &turned.relu());
    }
    let given = [data(&[1, 192, 196], 0), data(&[1, 192, 196], 1)];
    let plan = check("turned", &g.finish().expect("a graph"), &given);
    assert_eq!(conditional(&plan), 0, "{plan}");
    // Large parts of one tensor are stored where the whole has them.
    let g = Graph::new("heads");
    let x = g.input("x", DType::F32, [4, 1200, 5]);
    let y = g.input("y", DType::F32, [4, 300, 5]);
    let flat = |t: &Tensor, n: i64| t.sigmoid().reshape([1, n]);
    g.output("z", &concat(&[&flat(&x, 24_000), &flat(&y, 6_000)], 1));
    let given = [data(&[4, 1200, 5], 0), data(&[4, 300, 5], 1)];
    let plan = check("heads", &g.finish().expect("a graph"), &given);
    assert_eq!((parts(&plan), copies(&plan)), (2, 0), "{plan}");
}
