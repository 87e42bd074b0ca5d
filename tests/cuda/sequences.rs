//! Small launches that one block does in turn: random chains of them, against the interpreter, where every access is checked.

use tlc::{CompileOptions, Device, HostTensor, Scalar, compile_ir};
use tlc_ir::DType;
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::plan::Step;
use tlc_ir::text::{no_data, parse_graph};

use crate::child::simulated;
use crate::states::compare_all;

#[test]
fn chains_of_small_steps_are_one_launch() {
    for (schedule, seed) in crate::SCHEDULES {
        let settings = [("TLC_SIM_SCHEDULE", schedule), ("TLC_SIM_SEED", seed)];
        let Some(printed) = simulated("sequences::children::chains", &settings) else {
            return;
        };
        assert!(!printed.printed("sequence").is_empty(), "no launches were joined");
    }
}

mod children {
    use super::*;

    /// A generator of chains: a multiplicative congruence (Lehmer) is random enough.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, n: u64) -> usize {
            self.0 = self.0 * 48_271 % 2_147_483_647;
            (self.0 % n) as usize
        }
    }

    /// A graph of small steps over matrices of `n` by `n`, each of one of those before it.
    fn chain(n: usize, steps: usize, draw: &mut Draw) -> String {
        let mut text = format!("graph @chain(%x: f32[{n}, {n}], %w: f32[{n}, {n}], %i: i64[{n}]) {{\n");
        let (whole, row) = (format!("f32[{n}, {n}]"), format!("f32[{n}]"));
        let mut known = vec!["%x".to_string(), "%w".to_string()];
        for k in 0..steps {
            let mut any = || known[draw.below(known.len() as u64)].clone();
            let (a, b) = (any(), any());
            let last = known[known.len() - 1].clone();
            let lines = match draw.below(5) {
                0 | 1 => format!("%{k} = einsum {last}, {b} {{ab,bc->ac}} : {whole}\n"),
                2 => format!(
                    "%{k}s = reduce max {last} {{axes=[1]}} : {row}
                     %{k}r = reshape %{k}s : f32[{n}, 1]
                     %{k}e = expand %{k}r : {whole}
                     %{k} = sub {a}, %{k}e : {whole}\n"
                ),
                3 => format!(
                    "%{k}s = reduce add {last} {{axes=[0]}} : {row}
                     %{k}r = reshape %{k}s : f32[1, {n}]
                     %{k}e = expand %{k}r : {whole}
                     %{k} = mul {a}, %{k}e : {whole}\n"
                ),
                _ => format!(
                    "%{k}g = gather {last}, %i {{axes=[0]}} : {whole}
                     %{k} = min %{k}g, {b} : {whole}\n"
                ),
            };
            text += &lines;
            known.push(format!("%{k}"));
        }
        text + &format!("return %{}, %{}\n}}", steps - 1, steps / 2)
    }

    fn inputs(n: usize, round: usize) -> Vec<HostTensor> {
        let matrix = |which: usize| {
            let mut t = HostTensor::zeros(DType::F32, &[n, n]).expect("a tensor");
            for at in 0..n * n {
                let value = match (at + which + round) % 61 {
                    // Chains of products make NaN of infinities, and nothing else of NaN.
                    0 if round % 4 == 3 => f64::NAN,
                    1 if round % 4 == 3 => f64::INFINITY,
                    2 => -0.0,
                    k => (k as f64 - 30.0) / 256.0,
                };
                t.set(at, Scalar::from_f64(DType::F32, value));
            }
            t
        };
        let mut indices = HostTensor::zeros(DType::I64, &[n]).expect("a tensor");
        (0..n).for_each(|at| indices.set(at, Scalar::from_f64(DType::I64, ((at * 7 + round) % n) as f64)));
        vec![matrix(0), matrix(1), indices]
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn chains() {
        let mut draw = Draw(20_231);
        let mut launches = 0;
        for (round, n) in [1, 5, 16, 32, 33, 16, 7, 31].into_iter().enumerate() {
            let text = chain(n, 3 + draw.below(6), &mut draw);
            let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
            let inputs = inputs(n, round);
            let options = CompileOptions {
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let executable = compile_ir(&graph, &options).expect("an executable");
            for step in &executable.plan().steps {
                if let Step::Sequence(all) = step {
                    launches += all.len();
                }
            }
            let given: Vec<tlc::Input<'_>> = inputs.iter().map(Into::into).collect();
            let bounds = interpret_with_bounds(&graph, &inputs, &Options::default()).expect("bounds");
            let exact = interpret(&graph, &inputs, &Options::default()).expect("results");
            // Step by step, recorded, and given again.
            for call in 0..3 {
                let found = executable.run(&given).expect("results");
                let found: Vec<HostTensor> = found.iter().map(|f| f.to_host()).collect();
                let compared = compare_all(&found, &exact, &bounds);
                assert!(compared.is_ok(), "{text}\ncall {call}: {compared:?}");
            }
        }
        println!("sequence {launches}");
    }
}
