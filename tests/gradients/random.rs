//! Random graphs of smooth operations, along random directions.

use std::sync::Arc;

use tlc::ir::graph::{NodeId, NodeKind};
use tlc::ir::interp::{Options, interpret};
use tlc::ir::rng::Rng;
use tlc::ir::testgen::{GenKind, GenOptions, random_case};
use tlc::ir::{Graph as IrGraph, ScalarOp};
use tlc::{CompileOptions, DType, Dim, Graph, HostTensor, Scalar, Tensor, checkpoint, compile_ir, grad, hvp, jvp};

const STEP: f64 = 1e-5;

fn options() -> GenOptions {
    use ScalarOp::*;
    let mut kinds: Vec<GenKind> = GenKind::all();
    kinds.extend([GenKind::Map; 6]);
    kinds.extend([GenKind::Input; 2]);
    GenOptions {
        max_nodes: 16,
        dtypes: vec![DType::F64],
        kinds,
        ops: vec![
            Neg, Exp, Sin, Cos, Tanh, Atan, Erf, Asinh, Add, Sub, Mul, Fma, Sqrt, Div,
        ],
        max_elements: 200,
        max_terms: 2000,
        control: false,
        guards: false,
        ..GenOptions::default()
    }
}

/// Whether small moves of the inputs move the results smoothly.
fn is_smooth(graph: &IrGraph) -> bool {
    graph.nodes().all(|(_, n)| match &n.kind {
        NodeKind::Bitcast(_) => n.ty.dtype != DType::F64,
        _ => true,
    })
}

/// The sum of the results that are f64.
fn total(graph: &IrGraph, inputs: &[HostTensor], case: &[(String, i64)]) -> Option<f64> {
    let options = Options {
        symbols: case.to_vec(),
        ..Options::default()
    };
    let all = interpret(graph, inputs, &options).ok()?;
    Some(all[0].get(0).as_f64())
}

/// Second derivatives of random graphs: `<u, H v> = <v, H u>`, and `H v` is what reverse mode over reverse mode says.
#[test]
fn second_derivatives_of_random_graphs() {
    let mut checked = 0;
    for seed in 0..150u64 {
        let case = random_case(
            seed,
            &GenOptions {
                control: true,
                ..options()
            },
        );
        if !is_smooth(&case.graph) {
            continue;
        }
        let g = Graph::from_ir(case.graph.clone());
        let floats = |ids: &mut dyn Iterator<Item = NodeId>| -> Vec<Tensor> {
            let all = ids.map(|id| g.tensor(id).expect("a value"));
            all.filter(|t| t.dtype() == DType::F64).collect()
        };
        let results = floats(&mut case.graph.outputs().iter().map(|o| o.node));
        let x = floats(&mut case.graph.inputs().iter().copied());
        let Some(loss) = results.iter().map(|y| y.tanh().sum(..)).reduce(|a, b| a + b) else {
            continue;
        };
        let by: Vec<&Tensor> = x.iter().collect();
        // Directions as inputs beside those that there are.
        let along = |name: &str| -> Vec<Tensor> {
            let input = |(k, x): (usize, &Tensor)| g.input(&format!("{name}{k}"), DType::F64, x.shape());
            x.iter().enumerate().map(input).collect()
        };
        let (u, v) = (along("u"), along("v"));
        let dot = |a: &[Tensor], b: &[Tensor]| -> Tensor {
            let terms = a.iter().zip(b).map(|(a, b)| (a * b).sum(..));
            terms.reduce(|a, b| a + b).unwrap_or_else(|| g.scalar(0.0, DType::F64))
        };
        let slope = grad(&loss, &by);
        if !g.errors().is_empty() {
            // A loop that nothing bounds.
            continue;
        }
        let product = |t: &[Tensor]| hvp(&loss, &by, &t.iter().collect::<Vec<_>>());
        let (hu, hv) = (product(&u), product(&v));
        let twice = grad(&dot(&slope, &v), &by);
        let sums = [dot(&u, &hv), dot(&v, &hu), dot(&u, &twice)];
        let outputs: Vec<(&str, &Tensor)> = ["uhv", "vhu", "twice"].into_iter().zip(&sums).collect();
        let graph = g
            .extract(&outputs)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.graph));
        let options = Options {
            symbols: (case.graph.symbols().iter().zip(&case.binding))
                .map(|(s, v)| (s.name.clone(), *v))
                .collect(),
            ..Options::default()
        };
        let mut data = case.input_data(seed);
        let mut rng = Rng::new(seed ^ 0x2d);
        let floats: Vec<HostTensor> = data.iter().filter(|t| t.dtype() == DType::F64).cloned().collect();
        for x in floats.iter().chain(&floats) {
            data.push(tlc::ir::testgen::random_tensor(&mut rng, DType::F64, x.shape()));
        }
        let found = interpret(&graph, &data, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        let [a, b, c] = [0, 1, 2].map(|k| found[k].get(0).as_f64());
        // Steep, or no number.
        if a.is_nan() || a.abs() >= 1e6 {
            continue;
        }
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-7 * (1.0 + a.abs());
        assert!(
            near(a, b) && near(a, c),
            "seed {seed}: {a}, {b} and {c}\n{}\n{graph}",
            case.graph
        );
        checked += 1;
    }
    assert!(checked >= 60, "{checked} checked");
}

/// Random graphs as checkpoints, loops and regions in them: gradients, tangents and second derivatives are those without, interpreted
/// and compiled.
#[test]
fn checkpoints_of_random_graphs() {
    let (mut checked, mut compiled) = (0, 0);
    for seed in 0..240u64 {
        let case = random_case(
            seed,
            &GenOptions {
                control: seed % 2 == 0,
                ..options()
            },
        );
        let g = Graph::from_ir(case.graph.clone());
        let value_of = |id: NodeId| g.tensor(id).expect("a value");
        let x: Vec<Tensor> = case.graph.inputs().iter().map(|&id| value_of(id)).collect();
        let plain: Vec<Tensor> = case.graph.outputs().iter().map(|o| value_of(o.node)).collect();
        let symbols: Vec<Dim> = (case.graph.symbols().iter())
            .map(|s| g.symbol(&s.name, s.lo..=s.hi))
            .collect();
        let body = Arc::new(case.graph.clone());
        let all: Vec<&Tensor> = x.iter().collect();
        let again = checkpoint(&all, |t| {
            let t: Vec<&Tensor> = t.iter().collect();
            t[0].graph().record_ir(&body, &symbols, &t)
        });
        let by: Vec<&Tensor> = all.iter().copied().filter(|t| t.dtype() == DType::F64).collect();
        let derivatives = |y: &[Tensor]| -> Vec<Tensor> {
            let floats = y.iter().filter(|t| t.dtype() == DType::F64);
            let loss = floats.map(|y| y.tanh().sum(..)).reduce(|a, b| a + b);
            let loss = loss.unwrap_or_else(|| g.scalar(0.0, DType::F64));
            let moves: Vec<Tensor> = by.iter().map(|x| x.cos()).collect();
            let moves: Vec<&Tensor> = moves.iter().collect();
            let mut found = grad(&loss, &by);
            found.extend(jvp(&[&loss], &by, &moves));
            found.extend(hvp(&loss, &by, &moves));
            found
        };
        if by.is_empty() {
            continue;
        }
        let (plain, again) = (derivatives(&plain), derivatives(&again));
        if let Some(e) = g.errors().first() {
            let known = ["nothing bounds its iterations", "bits of one dtype", "sizes", "size"];
            assert!(known.iter().any(|k| e.to_string().contains(k)), "seed {seed}: {e}");
            continue;
        }
        let names: Vec<String> = (0..2 * plain.len()).map(|k| format!("d{k}")).collect();
        let outputs: Vec<(&str, &Tensor)> = names
            .iter()
            .map(String::as_str)
            .zip(plain.iter().chain(&again))
            .collect();
        let graph = g
            .extract(&outputs)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.graph));
        let options = Options {
            symbols: (case.graph.symbols().iter().zip(&case.binding))
                .map(|(s, v)| (s.name.clone(), *v))
                .collect(),
            ..Options::default()
        };
        let data = case.input_data(seed);
        let equal = |what: &str, found: &dyn Fn(usize) -> Vec<f64>| {
            for k in 0..plain.len() {
                let (a, b) = (found(k), found(plain.len() + k));
                // Where it is steep, the order of sums shows.
                let size = a
                    .iter()
                    .fold(1.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
                let near =
                    |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * size || a == b || !a.is_finite() && !b.is_finite();
                assert!(
                    a.len() == b.len() && a.iter().zip(&b).all(near),
                    "seed {seed}, {what}, {k}: {a:?} without, {b:?} with\n{}\n{graph}",
                    case.graph
                );
            }
        };
        let found = interpret(&graph, &data, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        equal("interpreted", &|k| {
            (0..found[k].len()).map(|i| found[k].get(i).as_f64()).collect()
        });
        checked += 1;
        if seed % 6 == 0 {
            let run = compile_ir(&graph, &CompileOptions::default()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let given: Vec<tlc::Input<'_>> = data.iter().map(Into::into).collect();
            // It may have a size that no input has.
            if let Ok(run) = run.run(&given) {
                equal("compiled", &|k| run[k].as_slice::<f64>().expect("doubles").to_vec());
                compiled += 1;
            }
        }
    }
    assert!(
        checked >= 120 && compiled >= 15,
        "{checked} checked, {compiled} compiled"
    );
}

/// Any dtypes and operations: a tangent has the type of its value, and what it is made of fits.
#[test]
fn tangents_of_random_graphs_have_their_types() {
    let (mut checked, mut refused) = (0, 0);
    for seed in 0..600u64 {
        let case = random_case(
            seed,
            &GenOptions {
                max_nodes: 20,
                ..GenOptions::default()
            },
        );
        let g = Graph::from_ir(case.graph.clone());
        let floats = |ids: &mut dyn Iterator<Item = NodeId>| -> Vec<Tensor> {
            let all = ids.map(|id| g.tensor(id).expect("a value"));
            all.filter(|t| t.dtype().is_float()).collect()
        };
        let y = floats(&mut case.graph.outputs().iter().map(|o| o.node));
        let x = floats(&mut case.graph.inputs().iter().copied());
        if x.is_empty() || y.is_empty() {
            continue;
        }
        let (of, by): (Vec<&Tensor>, Vec<&Tensor>) = (y.iter().collect(), x.iter().collect());
        let t = jvp(&of, &by, &by);
        if let Some(e) = g.errors().first() {
            let text = e.to_string();
            assert!(
                text.contains("bits of one dtype read as another have none"),
                "seed {seed}: {text}\n{}",
                case.graph
            );
            refused += 1;
            continue;
        }
        for (t, y) in t.iter().zip(&y) {
            assert_eq!(t.ty(), y.ty(), "seed {seed}\n{}", case.graph);
        }
        let outputs: Vec<(String, &Tensor)> = t.iter().enumerate().map(|(k, t)| (format!("t{k}"), t)).collect();
        let outputs: Vec<(&str, &Tensor)> = outputs.iter().map(|(name, t)| (name.as_str(), *t)).collect();
        let graph = g.extract(&outputs).expect("no error");
        if seed % 10 == 0 {
            compile_ir(&graph, &CompileOptions::default()).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        }
        checked += 1;
    }
    assert!(checked >= 200 && refused <= 60, "{checked} checked, {refused} refused");
}

#[test]
fn random_graphs_along_random_directions() {
    let (mut checked, mut compiled) = (0, 0);
    for seed in 0..400u64 {
        let case = random_case(seed, &options());
        if !is_smooth(&case.graph) {
            continue;
        }
        let g = Graph::from_ir(case.graph.clone());
        let value_of = |id: NodeId| g.tensor(id).expect("a value");
        let floats: Vec<Tensor> = (case.graph.outputs().iter())
            .map(|o| value_of(o.node))
            .filter(|t| t.dtype() == DType::F64)
            .collect();
        let inputs: Vec<(usize, Tensor)> = (case.graph.inputs().iter().enumerate())
            .map(|(k, id): (usize, &NodeId)| (k, value_of(*id)))
            .filter(|(_, t)| t.dtype() == DType::F64)
            .collect();
        if floats.is_empty() || inputs.is_empty() {
            continue;
        }
        let mut loss = g.scalar(0.0, DType::F64);
        for y in &floats {
            loss += y.tanh().sum(..);
        }
        let by: Vec<&Tensor> = inputs.iter().map(|i| &i.1).collect();
        let d = grad(&loss, &by);
        let data = case.input_data(seed);
        let mut rng = Rng::new(seed ^ 0xd1ff);
        let directions: Vec<Vec<f64>> = (inputs.iter())
            .map(|(k, _)| (0..data[*k].len()).map(|_| rng.unit() * 2.0 - 1.0).collect())
            .collect();
        // As symbols allow, of the values' own types.
        let tangents: Vec<Tensor> = (inputs.iter().zip(&directions))
            .map(|((k, x), v)| {
                let t = HostTensor::from_slice(data[*k].shape(), v).expect("as many elements");
                g.constant(t).expand(x.shape())
            })
            .collect();
        let ahead = jvp(&[&loss], &by, &tangents.iter().collect::<Vec<_>>());
        let names: Vec<String> = (0..=d.len()).map(|k| format!("d{k}")).collect();
        let outputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(d.iter().chain(&ahead)).collect();
        let gradient = g
            .extract(&outputs)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.graph));
        let value = g.extract(&[("loss", &loss)]).unwrap();
        let symbols: Vec<(String, i64)> = (case.graph.symbols().iter().zip(&case.binding))
            .map(|(s, v)| (s.name.clone(), *v))
            .collect();
        let found = interpret(
            &gradient,
            &data,
            &Options {
                symbols: symbols.clone(),
                ..Options::default()
            },
        )
        .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{gradient}"));

        let moved = |by: f64| {
            let mut all = data.clone();
            for ((k, _), direction) in inputs.iter().zip(&directions) {
                for (i, v) in direction.iter().enumerate() {
                    let at = all[*k].get(i).as_f64() + by * v;
                    all[*k].set(i, Scalar::from_f64(DType::F64, at));
                }
            }
            total(&value, &all, &symbols)
        };
        let difference = |step: f64| Some((moved(step)? - moved(-step)?) / (2.0 * step));
        let (Some(expected), Some(coarse)) = (difference(STEP), difference(2.0 * STEP)) else {
            continue;
        };
        // At a corner, or where it is too steep, differences of two steps say two things: they say nothing.
        if !expected.is_finite() || (expected - coarse).abs() > 1e-7 * (1.0 + expected.abs()) {
            continue;
        }
        let along: f64 = (found.iter().zip(&directions))
            .map(|(d, v)| v.iter().enumerate().map(|(i, v)| v * d.get(i).as_f64()).sum::<f64>())
            .sum();
        assert!(
            (along - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
            "seed {seed}: {along} along a direction, by differences {expected}\n{}\n{gradient}",
            case.graph
        );
        let forwards = found[d.len()].get(0).as_f64();
        assert!(
            (forwards - expected).abs() <= 1e-6 * (1.0 + expected.abs())
                && (forwards - along).abs() <= 1e-8 * (1.0 + along.abs()),
            "seed {seed}: forwards {forwards} along a direction, backwards {along}, by differences {expected}\n{}\n{gradient}",
            case.graph
        );
        checked += 1;
        if seed % 8 == 0 {
            let run = compile_ir(&gradient, &CompileOptions::default()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let given: Vec<tlc::Input<'_>> = data.iter().map(Into::into).collect();
            let run = match run.run(&given) {
                Ok(run) => run,
                // A size that no input has.
                Err(_) => continue,
            };
            for (k, d) in found.iter().enumerate() {
                for (i, a) in run[k].as_slice::<f64>().unwrap().iter().enumerate() {
                    let b = d.get(i).as_f64();
                    let close = (a - b).abs() <= 1e-8 * (1.0 + b.abs());
                    assert!(
                        close || a.is_nan() && b.is_nan(),
                        "seed {seed}: d{k}[{i}] is {a}, interpreted {b}\n{gradient}"
                    );
                }
            }
            compiled += 1;
        }
    }
    assert!(
        checked >= 100 && compiled >= 10,
        "{checked} checked, {compiled} compiled"
    );
}
