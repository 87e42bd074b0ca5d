//! Models moved between formats.

use std::collections::BTreeMap;

use crate::proto::*;
use crate::support::Place;

/// `y = relu(x W) + b`, W of 24 elements.
fn layer() -> Vec<u8> {
    let nodes = vec![
        node("MatMul", "product", &["x", "W"], &["p"]),
        node("Relu", "act", &["p"], &["a"]),
        node("Add", "shift", &["a", "b"], &["the y"]),
    ];
    let w: Vec<f32> = (0..24).map(|i| i as f32 / 8.0 - 1.0).collect();
    let weights = vec![floats("W", &[6, 4], &w), floats("b", &[4], &[1.0, -2.0, 3.0, 0.5])];
    let ty = |name, n| value(name, FLOAT, &[D::Sym("batch"), D::N(n)]);
    model(graph(nodes, weights, vec![ty("x", 6)], vec![ty("the y", 4)]), vec![])
}

const TEXT: &str = "graph @g(%x: f32[batch, 6]) where batch in 0..=2147483647 {
  %0 = const opaque \"W\" : f32[6, 4]
  %1 = const [1.0, -2.0, 3.0, 0.5] : f32[4] from \"b\"
  %2 = einsum %x, %0 {ab,bc->ac} : f32[batch, 4] from \"product\"
  %3 = const 0.0 : f32[] from \"act\"
  %4 = expand %3 : f32[batch, 4] from \"act\"
  %5 = le %2, %4 : bool[batch, 4] from \"act\"
  %6 = select %5, %4, %2 : f32[batch, 4] from \"act\"
  %7 = expand %1 : f32[batch, 4] from \"shift\"
  %8 = add %6, %7 : f32[batch, 4] from \"shift\"
  return %8 as \"the y\"
}
";

fn imported() -> Place {
    let p = Place::new();
    p.write("m.onnx", layer());
    p.f32s(
        "x.npy",
        &[2, 6],
        &[0.5, 1.0, -1.0, 2.0, 0.0, 3.0, 1.0, 1.0, -2.0, 0.25, 4.0, -1.0],
    );
    let ran = p.run(&["import", "m.onnx", "-o", "m.tlir"]).code(0);
    assert_eq!(ran.out, "");
    assert_eq!(ran.err, "wrote m.tlir\nwrote m.safetensors: 1 tensor, 96 B\n");
    p
}

#[test]
fn an_imported_model_is_text_with_its_weights_beside_it() {
    let p = imported();
    let text = std::fs::read_to_string(p.path("m.tlir")).expect("a text");
    let (id, text) = text.split_once('\n').expect("lines");
    let id = id.strip_prefix("// weights ").expect("the weights that it is for");
    assert_eq!((id.len(), text), (16, TEXT));
    let weights = std::fs::read(p.path("m.safetensors")).expect("weights");
    let weights = tlc_formats::safetensors::read(&weights).expect("safetensors");
    assert_eq!(weights.len(), 1);
    assert_eq!((weights[0].0.as_str(), weights[0].1.shape()), ("W", &[6usize, 4][..]));

    for model in ["m.onnx", "m.tlir"] {
        let out = format!("out-{}", &model[2..]);
        p.run(&["run", model, "-i", "x=x.npy", "-o", &out]).code(0);
    }
    assert_eq!(p.read("out-onnx/the_y.npy"), p.read("out-tlir/the_y.npy"));
    p.run(&["check", "m.tlir"]).code(0);
    p.run(&["fmt", "--check", "m.tlir"]).code(0);
    p.run(&["explain", "m.tlir"]).code(0);
    p.run(&["emit", "m.tlir", "--what", "plan"]).code(0);
    p.run(&["verify", "m.tlir", "--set", "batch=2"]).code(0);
    p.run(&["compare", "m.onnx", "m.tlir", "--set", "batch=2"]).code(0);
    p.run(&["reduce", "m.tlir", "--set", "batch=2"]).code(1);
    p.run(&["opt", "m.tlir"]).code(0);
    p.run(&["bench", "m.tlir", "--set", "batch=3", "--time", "0.01"])
        .code(0);
    // Nodes are named as in the model.
    let mut nan = vec![0.0f32; 12];
    nan[3] = f32::INFINITY;
    nan[4] = f32::NEG_INFINITY;
    p.f32s("inf.npy", &[2, 6], &nan);
    let ran = p.run(&["run", "m.tlir", "-i", "x=inf.npy", "--check-nan"]).code(1);
    assert!(ran.first_error().contains("'product'"), "{}", ran.err);
}

#[test]
fn formatting_keeps_weights_outside_and_comments() {
    let p = imported();
    let loose = TEXT.replace("  %2 = einsum %x, %0", "  // the layer\n  %2   = einsum   %x, %0");
    let loose = loose.replace("from \"product\"", "from   \"product\" // here");
    let line = weights_line(&p);
    p.write("m.tlir", format!("{line}\n{loose}"));
    p.run(&["fmt", "--check", "m.tlir"]).code(1);
    p.run(&["fmt", "m.tlir"]).code(0);
    let expected = TEXT
        .replace("  %2 = einsum", "  // the layer\n  %2 = einsum")
        .replace(" from \"product\"", " from \"product\" // here");
    let text = std::fs::read_to_string(p.path("m.tlir")).expect("a text");
    assert_eq!(text, format!("{line}\n{expected}"));
}

/// The line of `m.tlir` that says which weights are its.
fn weights_line(p: &Place) -> String {
    let text = std::fs::read_to_string(p.path("m.tlir")).expect("a text");
    text.lines().next().expect("a line").to_string()
}

#[test]
fn a_text_can_be_imported_again() {
    let p = imported();
    p.run(&["import", "m.tlir", "-o", "again.tlir"]).code(0);
    let read = |name: &str| std::fs::read(p.path(name)).expect("a file");
    assert_eq!(read("m.tlir"), read("again.tlir"));
    assert_eq!(read("m.safetensors"), read("again.safetensors"));
    // Onto itself, while it is mapped.
    p.run(&["import", "again.tlir", "-o", "again.tlir"]).code(0);
    assert_eq!(read("m.tlir"), read("again.tlir"));
    assert_eq!(read("m.safetensors"), read("again.safetensors"));
    let sized = p
        .run(&[
            "import", "m.onnx", "-o", "two.tlir", "--set", "batch=2", "--format", "json",
        ])
        .code(0);
    assert_eq!(
        (sized.json()["tensors"].as_i64(), sized.json()["bytes"].as_i64()),
        (Some(1), Some(96))
    );
    let two = read("two.tlir");
    let behind = two.iter().position(|&b| b == b'\n').expect("lines") + 1;
    assert!(two[behind..].starts_with(b"graph @g(%x: f32[2, 6]) {"));
}

#[test]
fn weights_that_do_not_fit_their_text_are_told_in_one_line() {
    let p = imported();
    let good = std::fs::read(p.path("m.safetensors")).expect("weights");
    let told = |reason: &str| {
        for args in [
            &["run", "m.tlir", "-i", "x=x.npy", "-o", "out"][..],
            &["explain", "m.tlir"],
            &["fmt", "m.tlir"],
        ] {
            let ran = p.run(args).code(3);
            let line = format!("error: m.tlir:3:14: no data for `W`: {reason}; expected data of f32[6, 4]");
            assert_eq!(ran.first_error(), line, "{args:?}");
            assert_eq!(ran.err.matches("error").count(), 1, "{}", ran.err);
            assert!(!p.path("out").exists());
        }
        p.run(&["check", "m.tlir"]).code(1);
    };
    let line = weights_line(&p);
    let id = line.strip_prefix("// weights ").expect("its number");
    let metadata = BTreeMap::from([("weights".to_string(), id.to_string())]);
    let with = |shape: &[usize], name: &str| {
        let data = vec![1.0f32; shape.iter().product()];
        let tensor = tlc::HostTensor::from_slice(shape, &data).expect("a tensor");
        let mut bytes = vec![];
        tlc_formats::safetensors::write([(name, &tensor)], &metadata, &mut bytes).expect("written");
        bytes
    };
    std::fs::remove_file(p.path("m.safetensors")).expect("removed");
    told("m.safetensors cannot be read: No such file or directory");
    std::fs::create_dir(p.path("m.safetensors")).expect("a folder");
    told("m.safetensors is not a file");
    std::fs::remove_dir(p.path("m.safetensors")).expect("removed");
    p.write("m.safetensors", &good[..good.len() - 1]);
    told(&format!(
        "m.safetensors: invalid safetensors: expected tensors that cover the file to its end, found a file of {} bytes \
         that they do not cover, or that they overrun",
        good.len() - 1
    ));
    p.write("m.safetensors", []);
    told("m.safetensors: invalid safetensors at byte 0: expected 8 bytes of header length, found a file of 0 bytes");
    p.write("m.safetensors", with(&[6, 4], "V"));
    told("m.safetensors has no tensor of that name");
    p.write("m.safetensors", with(&[4, 6], "W"));
    told("it is f32[4, 6] in m.safetensors");
    let half = tlc::HostTensor::zeros(tlc::DType::F16, &[6, 4]).expect("a tensor");
    let mut bytes = vec![];
    tlc_formats::safetensors::write([("W", &half)], &metadata, &mut bytes).expect("written");
    p.write("m.safetensors", bytes);
    told("it is f16[6, 4] in m.safetensors");
    #[cfg(unix)]
    {
        let elsewhere = Place::new();
        let target = elsewhere.write("w.safetensors", &good);
        std::fs::remove_file(p.path("m.safetensors")).expect("removed");
        std::os::unix::fs::symlink(target, p.path("m.safetensors")).expect("a link");
        told("m.safetensors leads out of the text's folder; expected a file inside it");
    }
    // Standard input has nothing beside it.
    let ran = p.run_with(&["explain", "-"], TEXT.as_bytes()).code(3);
    assert!(ran.first_error().contains("the text comes from no file"), "{}", ran.err);
}

#[test]
fn missing_weights_are_told_once() {
    let p = Place::new();
    let constant = |i: i32| format!("  %{i} = const opaque \"w{i}\" : f32[100]\n");
    let all: String = (0..50).map(constant).collect();
    p.write("m.tlir", format!("graph @f() {{\n{all}  return %0\n}}\n"));
    let ran = p.run(&["explain", "m.tlir"]).code(3);
    assert_eq!(ran.err.matches("error").count(), 1, "{}", ran.err);
}

#[test]
fn what_cannot_be_imported_or_written_leaves_nothing() {
    let p = Place::new();
    p.write("m.onnx", layer());
    let mut broken = layer();
    broken.truncate(broken.len() / 2);
    p.write("broken.onnx", broken);
    p.run(&["import", "broken.onnx", "-o", "b.tlir"]).code(3);
    p.run(&["import", "m.onnx", "-o", "m.onnx"]).code(2);
    p.run(&["import", "m.onnx", "-o", "missing/m.tlir"]).code(3);
    // The text cannot have its name, so the weights do not get theirs.
    std::fs::create_dir(p.path("dir.tlir")).expect("a folder");
    p.run(&["import", "m.onnx", "-o", "dir.tlir"]).code(3);
    assert_eq!(p.list("."), ["broken.onnx", "dir.tlir", "m.onnx"]);
}
