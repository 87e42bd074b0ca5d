//! Attention: its values whatever heads, masks, sizes and threads, and that its scores are in no memory.

use tlc::verify::{Case, verify};
use tlc::{Attention, CompileOptions, DType, Executable, Graph, HostTensor, Tensor, compile_ir};
use tlc_ir::plan::{Step, Storage};

/// A small generator of numbers; the tests need the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// In -1..=1, now and then something special. Masks that are added are 0 or minus infinity, bools either.
    fn tensor(&mut self, dtype: DType, shape: &[usize], kind: Kind) -> HostTensor {
        let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];
        let count: usize = shape.iter().product();
        let mut number = || match kind {
            Kind::Special if self.below(60) == 0 => self.one_of(&specials),
            Kind::Mask if self.below(3) == 0 => f64::NEG_INFINITY,
            Kind::Mask => 0.0,
            _ => self.below(2001) as f64 / 1000.0 - 1.0,
        };
        let all: Vec<f64> = (0..count).map(|_| number()).collect();
        match dtype {
            DType::F64 => HostTensor::from_slice(shape, &all).unwrap(),
            DType::Bool => {
                HostTensor::from_slice(shape, &all.iter().map(|&x| x > -0.6).collect::<Vec<bool>>()).unwrap()
            }
            _ => HostTensor::from_slice(shape, &all.iter().map(|&x| x as f32).collect::<Vec<f32>>()).unwrap(),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Special,
    Mask,
}

fn options(threads: usize) -> CompileOptions {
    CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    }
}

/// Whether the scores pass from product to product in one step.
fn passes_on(e: &Executable) -> bool {
    let plan = e.plan();
    let behind = |s: &Step| matches!(s, Step::Gemm(g) if g.behind().is_some());
    let lines = plan.slots.iter().any(|s| s.storage == Storage::Lines);
    assert_eq!(plan.steps.iter().any(behind), lines);
    lines
}

/// Verifies a case on several numbers of threads, which `verify` compares with yet others.
#[track_caller]
fn holds(case: &Case, what: &str) {
    for threads in [1, 3] {
        let report = verify(case, &options(threads)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(report.is_right(), "{what}, {threads} threads: {}", findings.join("\n"));
    }
}

/// A case of what is recorded: `kinds` by the number of the input.
fn case(g: Graph, r: &mut Numbers, kinds: &dyn Fn(usize) -> Kind, symbols: &[(&str, i64)]) -> Case {
    let graph = g.finish().unwrap();
    let values: Vec<i64> = graph
        .symbols()
        .iter()
        .map(|s| symbols.iter().find(|(name, _)| *name == s.name).map_or(1, |v| v.1))
        .collect();
    let mut inputs = Vec::new();
    for (number, &i) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(i);
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|d| d.eval_symbols(&values).unwrap() as usize)
            .collect();
        inputs.push(r.tensor(ty.dtype, &shape, kinds(number)));
    }
    Case {
        graph,
        inputs,
        symbols: Vec::new(),
    }
}

/// Keys or values of fewer heads, each read by several.
fn repeated(x: &Tensor, [batch, heads, length, width]: [usize; 4], times: usize) -> Tensor {
    x.unsqueeze(2)
        .expand([batch, heads, times, length, width])
        .reshape([batch, heads * times, length, width])
}

#[test]
fn attention_is_right_whatever_its_heads_masks_and_sizes() {
    let mut r = Numbers(5);
    let (mut passed, mut all) = (0, 0);
    for round in 0..60 {
        let mut size = |of: &[usize]| r.one_of(of);
        let (s, t) = (
            size(&[0, 1, 2, 7, 16, 31, 65, 130]),
            size(&[1, 3, 16, 47, 64, 100, 193]),
        );
        let (d, w) = (size(&[1, 20, 32, 64]), size(&[1, 8, 24, 64]));
        let (batch, heads, times) = (size(&[1, 2]), size(&[1, 2, 3]), size(&[1, 1, 2]));
        let dtype = [DType::F32, DType::F32, DType::F64][round % 3];
        let g = Graph::new("attention");
        let of =
            |name: &str, heads: usize, length: usize, width: usize| g.input(name, dtype, [batch, heads, length, width]);
        let q = of("q", heads * times, s, d);
        let (k, v) = (of("k", heads, t, d), of("v", heads, t, w));
        let (k, v) = (
            repeated(&k, [batch, heads, t, d], times),
            repeated(&v, [batch, heads, t, w], times),
        );
        let mut options = Attention::new();
        if r.below(3) == 0 {
            options = options.causal();
        }
        match r.below(4) {
            0 => options = options.mask(&g.input("m", DType::Bool, [batch, 1, s, t])),
            1 => options = options.mask(&g.input("m", dtype, [1, 1, s, t])),
            2 => options = options.mask(&g.input("m", DType::Bool, [batch, 1, 1, t])),
            _ => {}
        }
        g.output("y", &q.attention(&k, &v, &options));
        let special = match r.below(3) {
            0 => Kind::Special,
            _ => Kind::Plain,
        };
        let case = case(g, &mut r, &|n| if n == 3 { Kind::Mask } else { special }, &[]);
        let what = format!("{batch} x {heads} x {times}, {s} to {t}, {d} and {w}, {dtype}");
        let e = compile_ir(&case.graph, &self::options(1)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let large = s >= 31 && t >= 47 && d >= 20 && w >= 24;
        assert!(passes_on(&e) || !large, "{what}\n{}", e.explain());
        passed += usize::from(large);
        all += 1;
        holds(&case, &what);
    }
    // Small ones are no products of the library.
    assert!(passed >= 6 && all == 60, "{passed} of {all}");
}

#[test]
fn rows_that_see_nothing_are_not_a_number_and_others_are_what_they_see() {
    let g = Graph::new("hidden");
    let of = |name: &str, length: usize| g.input(name, DType::F32, [2, length, 16]);
    let (q, k, v) = (of("q", 40), of("k", 50), of("v", 50));
    let mask = g.input("m", DType::Bool, [40, 50]);
    g.output("y", &q.attention(&k, &v, &Attention::new().mask(&mask)));
    let mut r = Numbers(8);
    let mut case = case(g, &mut r, &|_| Kind::Plain, &[]);
    // Row `i` sees keys below `i`: the first sees none.
    let seen: Vec<bool> = (0..40 * 50).map(|n| n % 50 < n / 50).collect();
    case.inputs[3] = HostTensor::from_slice(&[40, 50], &seen).unwrap();
    let e = compile_ir(&case.graph, &options(2)).unwrap();
    assert!(passes_on(&e), "{}", e.explain());
    let inputs: Vec<_> = case.inputs.iter().map(Into::into).collect();
    let outputs = e.run(&inputs).unwrap();
    let y: &[f32] = outputs[0].as_slice().unwrap();
    for (n, value) in y.iter().enumerate() {
        assert_eq!(value.is_nan(), n / 16 % 40 == 0, "element {n}");
    }
    // The second row sees one key: its value.
    let v: &[f32] = case.inputs[2].as_slice().unwrap();
    assert_eq!(y[16..32], v[..16]);
    holds(&case, "hidden");
}

#[test]
fn attention_of_symbolic_sizes_is_right_at_each_of_them() {
    let mut r = Numbers(21);
    for (b, s, t) in [(1, 1, 1), (2, 7, 64), (3, 130, 65), (2, 0, 4), (0, 5, 5), (1, 300, 200)] {
        let g = Graph::new("symbolic");
        let (bs, ss, ts) = (g.symbol("b", 0..=64), g.symbol("s", 0..=4096), g.symbol("t", 1..=4096));
        let q = g.input("q", DType::F32, (&bs, 3, &ss, 32));
        let k = g.input("k", DType::F32, (&bs, 3, &ts, 32));
        let v = g.input("v", DType::F32, (&bs, 3, &ts, 48));
        g.output("y", &q.attention(&k, &v, &Attention::new().causal()));
        let symbols = [("b", b), ("s", s), ("t", t)];
        let case = case(g, &mut r, &|_| Kind::Plain, &symbols);
        let e = compile_ir(&case.graph, &options(1)).unwrap();
        assert!(passes_on(&e), "{}", e.explain());
        let layout = tlc_passes::memory::pack(e.plan(), &[b, s, t]).unwrap();
        assert_eq!(layout.host().bytes, 0);
        holds(&case, &format!("{b}, {s}, {t}"));
    }
}

#[test]
fn long_sequences_take_no_memory_for_their_scores() {
    let g = Graph::new("long");
    let of = |name: &str| g.input(name, DType::F32, [1, 2, 256, 32]);
    let (q, k, v) = (of("q"), of("k"), of("v"));
    // The layout of tokens, as the next projection wants it.
    let y = q.attention(&k, &v, &Attention::new()).permute([0, 2, 1, 3]);
    g.output("y", &y.reshape([1, 256, 64]));
    let case = case(g, &mut Numbers(2), &|_| Kind::Plain, &[]);
    let e = compile_ir(&case.graph, &options(2)).unwrap();
    assert!(passes_on(&e), "{}", e.explain());
    let layout = e.decisions().planned.layout.as_ref().unwrap();
    // The scores would take 512 KiB.
    assert_eq!(layout.host().bytes, 0, "{}", e.explain());
    holds(&case, "long");
}

/// Why the rows of an attention's scores are not passed on, as `explain` says.
#[track_caller]
fn refused(threads: usize, record: impl FnOnce(&Graph), expected: &str) {
    let g = Graph::new("apart");
    record(&g);
    let e = g.compile(&options(threads)).unwrap_or_else(|e| panic!("{e}"));
    let text = e.explain();
    assert!(!passes_on(&e) && text.contains(expected), "expected {expected}\n{text}");
}

#[test]
fn what_is_passed_on_and_what_is_not_is_told() {
    let heads = |g: &Graph, name: &str, length: usize, width: usize| g.input(name, DType::F32, [4, length, width]);
    let plain = Attention::new();
    let g = Graph::new("told");
    let (q, k, v) = (heads(&g, "q", 64, 32), heads(&g, "k", 64, 32), heads(&g, "v", 64, 32));
    g.output("y", &q.attention(&k, &v, &plain));
    let text = g.compile(&options(1)).unwrap().explain();
    assert!(
        text.contains("passed on to the matrix product behind it in one step"),
        "{text}"
    );
    refused(
        1,
        |g| {
            let (q, k, v) = (heads(g, "q", 64, 32), heads(g, "k", 64, 32), heads(g, "v", 64, 32));
            let p = q.matmul(&k.t()).softmax(-1);
            g.output("p", &p);
            g.output("y", &p.matmul(&v));
        },
        "not passed on within a step: others need it",
    );
    refused(
        8,
        |g| {
            let (q, k, v) = (heads(g, "q", 16, 32), heads(g, "k", 64, 32), heads(g, "v", 64, 32));
            g.output("y", &q.attention(&k, &v, &plain));
        },
        "rows are too few for all threads",
    );
    refused(
        1,
        |g| {
            let x = g.input("x", DType::F32, [256, 1024]);
            let (w, v) = (
                g.input("w", DType::F32, [1024, 4096]),
                g.input("v", DType::F32, [4096, 1024]),
            );
            g.output("y", &x.matmul(&w).relu().matmul(&v));
        },
        "the right operands would be read again",
    );
}
