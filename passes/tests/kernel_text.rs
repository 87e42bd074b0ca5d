//! The law of kernel texts: what the compiler makes prints as text that parses back to the same kernel.

use tlc_ir::kernel::Kernel;
use tlc_ir::testgen::{GenOptions, Rng, random_graph};
use tlc_ir::text::{no_data, parse_module};
use tlc_passes::lower::lower;
use tlc_passes::{Options, compile};

fn round_trip(kernel: &Kernel, what: &str) {
    let text = kernel.to_string();
    let module = parse_module(&text, &mut no_data).unwrap_or_else(|e| panic!("{what}: {e:?}\n{text}"));
    assert_eq!(module.kernels.len(), 1, "{what}");
    assert_eq!(&module.kernels[0].1, kernel, "{what}:\n{text}\n{}", module.kernels[0].1);
}

#[test]
fn kernels_of_random_graphs_survive_their_text() {
    let mut kernels = 0;
    for seed in 0..150 {
        let options = GenOptions {
            strange: seed % 2 == 0,
            ..GenOptions::default()
        };
        let Ok(compiled) = compile(&random_graph(seed, &options), &Options::default()) else {
            continue;
        };
        for cluster in &compiled.clusters.clusters {
            for nest in lower(&compiled.graph, cluster, &compiled.clusters.is_root) {
                round_trip(&nest.kernel, &format!("seed {seed}, naive"));
            }
        }
        for launch in &compiled.planned.launches {
            round_trip(&launch.scheduled, &format!("seed {seed}, scheduled"));
        }
        for kernel in &compiled.planned.plan.kernels {
            round_trip(kernel, &format!("seed {seed}, legalized"));
            kernels += 1;
        }
    }
    assert!(kernels > 300, "{kernels} kernels");
}

#[test]
fn mutated_texts_do_not_panic() {
    let mut rng = Rng::new(7);
    for seed in 0..20 {
        let Ok(compiled) = compile(&random_graph(seed, &GenOptions::default()), &Options::default()) else {
            continue;
        };
        for kernel in compiled.planned.plan.kernels.iter().take(4) {
            let text: Vec<char> = kernel.to_string().chars().collect();
            for _ in 0..40 {
                let mut text = text.clone();
                for _ in 0..=rng.below(3) {
                    let (at, from) = (rng.below(text.len()), rng.below(text.len()));
                    match rng.below(3) {
                        0 => text[at] = text[from],
                        1 => drop(text.remove(at)),
                        _ => text.insert(at, text[from]),
                    }
                }
                let _ = parse_module(&text.into_iter().collect::<String>(), &mut no_data);
            }
        }
    }
}
