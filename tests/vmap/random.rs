//! Random graphs, loops, sorts and regions included: a batch of them against each example alone, by the interpreter.

use std::sync::Arc;

use tlc::ir::graph::NodeKind;
use tlc::ir::interp::{Options, interpret};
use tlc::ir::rng::Rng;
use tlc::ir::testgen::{GenKind, GenOptions, random_case, random_tensor};
use tlc::{CompileOptions, DType, Dim, Graph, HostTensor, Tensor, Vmap, compile_ir, grad, jvp};

use crate::against::{EXAMPLES, alike, example, stacked};

/// Checks a function of random graphs over a batch; `of` says what of the outputs and inputs is to be compared, if anything is. Returns
/// how many were checked, and how many of them with loops.
fn check(options: &GenOptions, seeds: u64, of: impl Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>) -> (usize, usize) {
    let (mut checked, mut looped) = (0, 0);
    for seed in 0..seeds {
        let case = random_case(seed, options);
        let graph = Arc::new(case.graph);
        let symbols: Vec<(String, i64)> = (graph.symbols().iter().zip(&case.binding))
            .map(|(s, v)| (s.name.clone(), *v))
            .collect();
        let run = |graph: &tlc::ir::Graph, data: &[HostTensor]| {
            let options = Options {
                symbols: symbols.clone(),
                ..Options::default()
            };
            interpret(graph, data, &options)
        };
        let declared = |g: &Graph| -> Vec<Dim> {
            let symbols = graph.symbols().iter();
            symbols.map(|s| g.symbol(&s.name, s.lo..=s.hi)).collect()
        };
        let function = |sizes: &[Dim], x: &[Tensor]| {
            let y = x[0].graph().record_ir(&graph, sizes, &x.iter().collect::<Vec<_>>());
            of(&y, x)
        };
        let mut rng = Rng::new(seed ^ 0xba7c4);
        let (g, one) = (Graph::new("batch"), Graph::new("one"));
        let sizes = declared(&g);
        let (mut whole, mut alone, mut inputs, mut own) = (vec![], vec![vec![]; EXAMPLES], vec![], vec![]);
        for (k, &id) in graph.inputs().iter().enumerate() {
            let ty = graph.ty(id);
            let extent = |d: &tlc::ir::IndexExpr| d.eval_symbols(&case.binding).expect("a number") as usize;
            let shape: Vec<usize> = ty.shape.iter().map(extent).collect();
            let differs = rng.chance(2, 3) || k == 0;
            let axis = rng.below(ty.rank() + 1);
            let all: Vec<HostTensor> = (0..EXAMPLES)
                .map(|_| random_tensor(&mut rng, ty.dtype, &shape))
                .collect();
            let mut of_all: Vec<Dim> = ty.shape.iter().map(|d| Dim::from(d.clone())).collect();
            own.push((format!("x{k}"), ty.dtype, of_all.clone()));
            if differs {
                of_all.insert(axis, EXAMPLES.into());
            }
            whole.push(if differs { stacked(&all, axis) } else { all[0].clone() });
            for (e, data) in alone.iter_mut().enumerate() {
                data.push(all[if differs { e } else { 0 }].clone());
            }
            inputs.push((
                g.input(&format!("x{k}"), ty.dtype, of_all),
                differs.then_some(axis as i64),
            ));
        }
        let sizes_alone = declared(&one);
        let own: Vec<Tensor> = own
            .into_iter()
            .map(|(name, dtype, shape)| one.input(&name, dtype, shape))
            .collect();
        let results = function(&sizes_alone, &own);
        if results.is_empty() || !one.errors().is_empty() {
            continue;
        }
        results
            .iter()
            .enumerate()
            .for_each(|(k, y)| one.output(&format!("y{k}"), y));
        let one = one.finish().expect("no error");

        let operands: Vec<(&Tensor, Option<i64>)> = inputs.iter().map(|(t, axis)| (t, *axis)).collect();
        let found = Vmap::new().shared_draws().map(&operands, |x| function(&sizes, x));
        found
            .iter()
            .enumerate()
            .for_each(|(k, y)| g.output(&format!("y{k}"), y));
        let batch = g.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{one}"));
        let Ok(found) = run(&batch, &whole) else {
            // A size that no input has; then the example alone does not run either.
            assert!(run(&one, &alone[0]).is_err(), "seed {seed}\n{one}\n{batch}");
            continue;
        };
        for (e, own) in alone.iter().enumerate() {
            let expected = run(&one, own).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let found = example(found, e);
                assert!(
                    alike(&found, expected),
                    "seed {seed}: result {k} of example {e} is\n{found:?}, alone\n{expected:?}\n{one}\n{batch}"
                );
            }
        }
        if options.dtypes == [DType::F64] && seed % 12 == 0 {
            let compiled =
                compile_ir(&batch, &CompileOptions::default()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let given: Vec<tlc::Input<'_>> = whole.iter().map(Into::into).collect();
            // A size that no input has.
            let Ok(run) = compiled.run(&given) else { continue };
            for (k, expected) in found.iter().enumerate() {
                let run = run[k].to_host();
                assert!(
                    alike(&run, expected),
                    "seed {seed}: compiled, result {k} is {run:?}, interpreted {expected:?}\n{batch}"
                );
            }
        }
        checked += 1;
        looped += usize::from(batch.nodes().any(|(_, n)| matches!(n.kind, NodeKind::Loop(_))));
    }
    (checked, looped)
}

fn small() -> GenOptions {
    GenOptions {
        max_nodes: 14,
        max_elements: 120,
        max_terms: 1000,
        guards: false,
        ..GenOptions::default()
    }
}

#[test]
fn values_of_random_graphs() {
    let (checked, looped) = check(&small(), 600, |y, _| y.to_vec());
    assert!(checked >= 500 && looped >= 60, "{checked} checked, {looped} with loops");
}

#[test]
fn derivatives_of_random_graphs() {
    use tlc::ir::ScalarOp::*;
    let mut options = GenOptions {
        dtypes: vec![DType::F64],
        ops: vec![Neg, Exp, Sin, Tanh, Add, Sub, Mul, Max, Fma, Select, Lt, Div],
        ..small()
    };
    options.kinds.extend([GenKind::Map; 4]);
    let floats = |all: &[Tensor]| -> Vec<Tensor> { all.iter().filter(|t| t.dtype() == DType::F64).cloned().collect() };
    let loss = |y: &[Tensor]| -> Option<Tensor> {
        let all = floats(y).into_iter().map(|y| y.tanh().sum(..));
        all.reduce(|a, b| a + b)
    };
    let (checked, looped) = check(&options, 400, |y, x| {
        let (by, Some(loss)) = (floats(x), loss(y)) else {
            return vec![];
        };
        grad(&loss, &by.iter().collect::<Vec<_>>())
    });
    assert!(checked >= 150 && looped >= 20, "{checked} checked, {looped} with loops");
    let (checked, looped) = check(&options, 400, |y, x| {
        let (of, by) = (floats(y), floats(x));
        let (of, by): (Vec<&Tensor>, Vec<&Tensor>) = (of.iter().collect(), by.iter().collect());
        jvp(&of, &by, &by)
    });
    assert!(checked >= 150 && looped >= 20, "{checked} checked, {looped} with loops");
}
