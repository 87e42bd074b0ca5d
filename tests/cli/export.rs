//! Models written as ONNX files.

use crate::support::{CHAIN, Place};

#[test]
fn an_exported_model_runs_like_its_text() {
    let p = Place::new();
    p.write("chain.tlir", CHAIN);
    let ran = p.run(&["export", "--onnx", "chain.tlir", "-o", "chain.onnx"]).code(0);
    assert_eq!(ran.out, "");
    assert_eq!(ran.err, "wrote chain.onnx: 4 nodes of opset 21, 20 B of constants\n");
    let values: Vec<f32> = (0..12).map(|i| i as f32 - 5.5).collect();
    p.f32s("a.npy", &[3, 4], &values);
    p.f32s("c.npy", &[4], &values[..4]);
    for model in ["chain.tlir", "chain.onnx"] {
        let out = &model[6..];
        p.run(&[
            "run", model, "-i", "a=a.npy", "-i", "b=a.npy", "-i", "c=c.npy", "-o", out,
        ])
        .code(0);
    }
    for name in ["y.npy", "total.npy"] {
        assert_eq!(p.read(&format!("tlir/{name}")), p.read(&format!("onnx/{name}")));
    }
    // And from the ONNX file itself, with a size fixed.
    let ran = p
        .run(&[
            "export",
            "chain.onnx",
            "-o",
            "three.onnx",
            "--set",
            "n=3",
            "--format",
            "json",
        ])
        .code(0);
    assert_eq!(
        (ran.json()["opset"].as_i64(), ran.json()["data"].is_null()),
        (Some(21), true)
    );
    p.run(&[
        "run",
        "three.onnx",
        "-i",
        "a=a.npy",
        "-i",
        "b=a.npy",
        "-i",
        "c=c.npy",
        "-o",
        "three",
    ])
    .code(0);
    assert_eq!(p.read("tlir/y.npy"), p.read("three/y.npy"));
}

#[test]
fn constants_can_lie_in_a_file_of_their_own() {
    let p = Place::new();
    let numbers: Vec<String> = (0..600).map(|i| format!("{i}.5")).collect();
    let text = format!(
        "graph @f(%x: f32[600]) {{\n  %0 = const [{}] : f32[600] from \"w\"\n  %1 = add %x, %0 : f32[600]\n  return %1 as y\n}}\n",
        numbers.join(", ")
    );
    p.write("m.tlir", &text);
    p.run(&["export", "m.tlir", "-o", "m.onnx", "--external-data"]).code(0);
    let data = |p: &Place| -> Vec<String> { p.list(".").into_iter().filter(|n| n.ends_with(".data")).collect() };
    let first = data(&p);
    assert_eq!((p.list(".").len(), first.len()), (3, 1));
    assert!(first[0].starts_with("m.onnx."), "{first:?}");
    assert_eq!(std::fs::metadata(p.path(&first[0])).expect("data").len(), 2400);
    assert!(std::fs::metadata(p.path("m.onnx")).expect("a model").len() < 400);
    p.run(&["compare", "m.tlir", "m.onnx"]).code(0);
    // Other data has another name, the same data the same; what the model no longer reads goes.
    let before = std::fs::read(p.path("m.onnx")).expect("a model");
    p.run(&["export", "m.onnx", "-o", "m.onnx", "--external-data"]).code(0);
    assert_eq!(data(&p), first);
    p.write("other.tlir", text.replace("[0.5,", "[7.5,"));
    p.run(&["export", "other.tlir", "-o", "m.onnx", "--external-data"])
        .code(0);
    let second = data(&p);
    assert!(second.len() == 1 && second != first, "{second:?}");
    p.run(&["compare", "other.tlir", "m.onnx"]).code(0);
    // A machine that stops before the model has its name leaves the one before, whose data is still there.
    p.run(&["export", "m.tlir", "-o", "m.onnx", "--external-data"]).code(0);
    assert_eq!(data(&p), first);
    p.run(&["export", "other.tlir", "-o", "stopped.onnx", "--external-data"])
        .code(0);
    let stopped = data(&p).into_iter().find(|n| n.starts_with("stopped")).expect("data");
    std::fs::rename(p.path(&stopped), p.path(&second[0])).expect("the data has its name");
    assert_eq!(std::fs::read(p.path("m.onnx")).expect("a model"), before);
    p.run(&["compare", "m.tlir", "m.onnx"]).code(0);
    p.run(&["export", "m.tlir", "-o", "m.onnx"]).code(0);
    assert_eq!(data(&p), second, "what no model names is left to people");
}

#[test]
fn what_onnx_cannot_say_leaves_nothing() {
    let p = Place::new();
    p.write(
        "m.tlir",
        "graph @f(%x: f32[4]) {\n  %0 = scan max %x {axis=0} : f32[4]\n  return %0 as y\n}\n",
    );
    let ran = p.run(&["export", "m.tlir", "-o", "m.onnx"]).code(4);
    assert_eq!(
        ran.first_error(),
        "error: m.tlir: %0 scan at 2:3: ONNX has no running max, only running sums and products"
    );
    p.run(&["export", "m.tlir", "-o", "m.tlir"]).code(2);
    p.run(&["export", "missing.tlir", "-o", "m.onnx"]).code(3);
    p.write("chain.tlir", CHAIN);
    p.run(&["export", "chain.tlir", "-o", "no/m.onnx"]).code(3);
    // The model cannot have its name, so its data does not get one.
    std::fs::create_dir(p.path("dir.onnx")).expect("a folder");
    p.run(&["export", "chain.tlir", "-o", "dir.onnx", "--external-data"])
        .code(3);
    assert_eq!(p.list("."), ["chain.tlir", "dir.onnx", "m.tlir"]);
}
