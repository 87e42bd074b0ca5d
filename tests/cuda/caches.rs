//! What a second process finds compiled.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use tlc::{Attention, CompileOptions, DType, Device, Graph, Tensor};

use crate::child::simulated;

#[test]
fn a_second_process_compiles_no_kernel_of_an_encoder() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().to_str().expect("a path in UTF-8");
    let settings = [("TLC_CACHE", cache)];
    if simulated("caches::children::encoder_compiled", &settings).is_none() {
        return;
    }
    let first = files(folder.path());
    // Whatever is compiled is written there: all of it in the first process.
    assert!(!first.is_empty());
    simulated("caches::children::encoder_compiled", &settings);
    assert_eq!(files(folder.path()), first);
}

/// The files of a folder and of those in it, and when each was written.
fn files(folder: &Path) -> BTreeMap<String, SystemTime> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => {
                let written = path.metadata().and_then(|m| m.modified()).expect("a time");
                all.insert(path.display().to_string(), written);
            }
        }
    }
    all
}

mod children {
    use super::*;

    const LAYERS: usize = 12;
    const HEADS: i64 = 4;
    const WIDTH: i64 = 64;
    const TOKENS: i64 = 32;

    /// An encoder with weights as inputs.
    fn encoder() -> Graph {
        let g = Graph::new("encoder");
        let mut x = g.input("x", DType::F32, [TOKENS, WIDTH]);
        for layer in 0..LAYERS {
            let weight = |name: &str, shape: [i64; 2]| g.input(&format!("{name}{layer}"), DType::F32, shape);
            let bias = |name: &str, n: i64| g.input(&format!("{name}{layer}"), DType::F32, [n]);
            let heads = |t: &Tensor| t.reshape([TOKENS, HEADS, WIDTH / HEADS]).permute([1, 0, 2]);
            let [q, k, v] = ["q", "k", "v"]
                .map(|name| heads(&(x.matmul(&weight(name, [WIDTH, WIDTH])) + bias(&format!("b{name}"), WIDTH))));
            let seen = q.attention(&k, &v, &Attention::new());
            let seen = seen
                .permute([1, 0, 2])
                .reshape([TOKENS, WIDTH])
                .matmul(&weight("o", [WIDTH, WIDTH]));
            x = (&x + seen).layer_norm(Some(&bias("g1", WIDTH)), Some(&bias("c1", WIDTH)), 1e-5);
            let wide = (x.matmul(&weight("up", [WIDTH, 4 * WIDTH])) + bias("bup", 4 * WIDTH)).gelu();
            let narrow = wide.matmul(&weight("down", [4 * WIDTH, WIDTH]));
            x = (&x + narrow).layer_norm(Some(&bias("g2", WIDTH)), Some(&bias("c2", WIDTH)), 1e-5);
        }
        g.output("y", &x);
        g
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn encoder_compiled() {
        let options = CompileOptions {
            device: Device::cuda(0),
            ..CompileOptions::default()
        };
        encoder().compile(&options).expect("an executable");
    }
}
