//! `--packed`: weights in the order in which they are multiplied, in a file.

use std::fmt::Write;

use tlc::{DType, Graph, HostTensor, tlir};

use crate::support::Place;

/// A product with weights in a file beside the text.
fn model(p: &Place, name: &str, of: f32) {
    let g = Graph::new("layer");
    let x = g.input("x", DType::F32, [40, 300]);
    let w: Vec<f32> = (0..300 * 320).map(|i| of + (i * 37 % 101) as f32 / 64.0).collect();
    let w = g.constant(HostTensor::from_slice(&[320, 300], &w).expect("a tensor"));
    g.output("y", &x.matmul(&w.permute([1, 0])));
    let printed = tlir::print(&g.finish().expect("a graph"));
    let mut weights = Vec::new();
    tlir::write_weights(&printed, &mut weights).expect("writing to memory");
    p.write(&format!("{name}.tlir"), printed.text);
    p.write(&format!("{name}.safetensors"), weights);
}

#[test]
fn weights_are_packed_once_and_found_from_then_on() {
    let p = Place::new();
    model(&p, "m", 0.0);
    let run = |name: &str| {
        p.run(&[
            "run",
            &format!("{name}.tlir"),
            "-i",
            "x=random",
            "--packed",
            "m.packed",
            "-o",
            "out",
        ])
        .code(0)
    };
    let plain = p.run(&["run", "m.tlir", "-i", "x=random", "-o", "plain"]).code(0);
    assert!(!plain.err.contains("packed"), "{}", plain.err);
    let expected = p.read("plain/y.npy");
    let first = run("m");
    assert!(
        first.err.contains("wrote m.packed: 375.0 KiB of packed weights"),
        "{}",
        first.err
    );
    assert_eq!(p.read("out/y.npy"), expected);
    let bytes = std::fs::read(p.path("m.packed")).expect("it is there");
    let again = run("m");
    assert!(!again.err.contains("wrote m.packed"), "{}", again.err);
    assert_eq!(p.read("out/y.npy"), expected);

    // Another model takes the file's place; other commands read it alone.
    model(&p, "other", 2.0);
    p.run(&["bench", "other.tlir", "--time", "0.01", "--packed", "m.packed"])
        .code(0);
    p.run(&["verify", "other.tlir", "--packed", "m.packed"]).code(0);
    assert_eq!(
        std::fs::read(p.path("m.packed")).expect("it is there").len(),
        bytes.len()
    );
    let other = run("other");
    assert!(other.err.contains("wrote m.packed"), "{}", other.err);
    assert_ne!(p.read("out/y.npy"), expected);
    run("m");
    assert_eq!(p.read("out/y.npy"), expected);

    // Another level of instructions packs for itself, and is not mistaken.
    let mut command = p.command(&["run", "m.tlir", "-i", "x=random", "--packed", "m.packed", "-o", "sse"]);
    let status = command.env("TLC_CPU", "sse").output().expect("it runs");
    assert!(status.status.success());
    let sse = p.read("sse/y.npy");
    for (a, b) in sse
        .as_slice::<f32>()
        .unwrap()
        .iter()
        .zip(expected.as_slice::<f32>().unwrap())
    {
        assert!((a - b).abs() <= 1e-3, "{a} {b}");
    }
    run("m");
    assert_eq!(p.read("out/y.npy"), expected);
    let left: Vec<String> = p.list(".").into_iter().filter(|f| f.contains("tmp")).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn what_is_no_file_of_packed_weights_stays_as_it_is() {
    let p = Place::new();
    model(&p, "m", 0.0);
    let run = |packed: &str| p.run(&["run", "m.tlir", "-i", "x=ones", "--packed", packed, "-o", "out"]);
    for file in ["m.tlir", "m.safetensors"] {
        let before = std::fs::read(p.path(file)).expect("it is there");
        let ran = run(file).code(3);
        let expected = format!("error: {file}: no packed weights; expected a file that tlc wrote them to, or none");
        assert_eq!(ran.first_error(), expected);
        assert_eq!(std::fs::read(p.path(file)).expect("it is there"), before);
    }
    // What cannot be written is no reason to lose the results.
    assert!(p.list("out").is_empty(), "{:?}", p.list("out"));
    run("none/m.packed").code(3);
    assert_eq!(p.list("out"), ["y.npy"]);
    run(".").code(3);
    run("-").code(2);
    run("m.packed").code(0);
    let whole = std::fs::read(p.path("m.packed")).expect("it is there");
    p.write("cut.packed", &whole[..whole.len() - 64]);
    run("cut.packed").code(3);
    let mut text = String::new();
    for name in p.list(".") {
        writeln!(text, "{name}").expect("a string");
    }
    assert!(!text.contains(".tmp"), "{text}");
}
