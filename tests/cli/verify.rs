//! verify, reduce, compare, and what `run` prints for people.

use tlc::HostTensor;

use crate::proto::*;
use crate::support::{CHAIN, PRODUCT, Place};

const LOG: &str = "graph @f(%x: f32[3], %w: f32[3]) {
  %0 = mul %x, %w : f32[3]
  %1 = log %0 : f32[3]
  %2 = exp %1 : f32[3]
  return %2 as y
}
";

#[test]
fn verify_says_what_it_compared() {
    let p = Place::new();
    p.write("chain.tlir", CHAIN);
    p.write("product.tlir", PRODUCT);
    let ran = p.run(&["verify", "chain.tlir", "--sym", "n=12"]).code(0);
    assert!(ran.out.starts_with("right: 1 step, 2 values, "), "{}", ran.out);
    let json = p
        .run(&["verify", "product.tlir", "--format", "json", "--threads", "2"])
        .code(0)
        .json();
    assert_eq!(json["right"], true);
    assert!(json["elements"].as_u64() >= Some(256 * 192), "{json}");
    p.run(&["verify", "chain.tlir"]).code(2);
    p.run(&["verify", "product.tlir", "--passes", "nonsense"]).code(2);
    p.run(&["verify", "none.tlir"]).code(3);
    p.run(&["verify", "product.tlir", "--max-memory", "64KiB"]).code(5);
    assert_eq!(p.list(".").iter().filter(|f| f.contains("reduced")).count(), 0);
}

#[test]
fn reduce_has_nothing_to_do_where_nothing_is_wrong() {
    let p = Place::new();
    p.write("product.tlir", PRODUCT);
    let ran = p.run(&["reduce", "product.tlir"]).code(1);
    assert!(ran.first_error().contains("nothing is wrong"), "{}", ran.err);
}

#[test]
fn compare_takes_two_models_or_two_settings() {
    let p = Place::new();
    p.write("a.tlir", LOG);
    p.write("b.tlir", LOG.replace("log %0", "sqrt %0"));
    let ran = p.run(&["compare", "a.tlir", "--b-passes", "", "-i", "x=ones"]).code(0);
    assert!(
        ran.out.starts_with("y: f32[3]: ") && ran.out.contains("within bounds"),
        "{}",
        ran.out
    );
    let ran = p
        .run(&["compare", "a.tlir", "--b-dtype", "f64", "-i", "x=ones", "-i", "w=ones"])
        .code(0);
    assert!(ran.out.contains("y: f32[3] and f64: equal"), "{}", ran.out);
    p.write("chain.tlir", CHAIN);
    let ran = p
        .run(&["compare", "chain.tlir", "--set", "n=50", "--b-dtype", "bf16"])
        .code(0);
    assert!(
        ran.out.contains("elements differ") && !ran.out.contains("outside"),
        "{}",
        ran.out
    );
    let ran = p
        .run(&["compare", "a.tlir", "b.tlir", "-i", "x=ones", "-i", "w=ones"])
        .code(1);
    assert!(
        ran.out.contains("outside bounds") || ran.out.contains("NaN"),
        "{}",
        ran.out
    );
    let json = p
        .run(&[
            "compare", "a.tlir", "b.tlir", "-i", "x=ones", "-i", "w=ones", "--format", "json",
        ])
        .code(1)
        .json();
    assert_eq!(
        (json["within"].as_bool(), json["outputs"][0]["name"].as_str()),
        (Some(false), Some("y"))
    );
    p.run(&["compare", "a.tlir", "--dtype", "i32"]).code(2);
}

#[test]
fn inputs_come_from_archives_by_key_or_by_their_name() {
    let p = Place::new();
    p.write("m.tlir", LOG);
    let one = |v: f32| HostTensor::from_slice(&[3], &[v; 3]).unwrap();
    let (x, w) = (one(2.0), one(4.0));
    let mut bytes = std::io::Cursor::new(Vec::new());
    tlc_formats::npz::write(
        [("x", &x), ("weights", &w)],
        tlc_formats::npz::Compression::Deflated,
        &mut bytes,
    )
    .unwrap();
    p.write("all.npz", bytes.into_inner());
    let ran = p
        .run(&["run", "m.tlir", "-i", "x=all.npz", "-i", "w=all.npz:weights"])
        .code(0);
    assert!(ran.out.contains("8.0"), "{}", ran.out);
    let ran = p.run(&["run", "m.tlir", "-i", "x=all.npz:z", "-i", "w=ones"]).code(3);
    assert!(ran.first_error().contains("weights"), "{}", ran.err);
    p.run(&["run", "m.tlir", "-i", "x=all.npz:", "-i", "w=ones"]).code(2);
}

#[test]
fn a_summary_counts_what_is_no_number_and_ranks_scores() {
    let p = Place::new();
    p.write("m.tlir", LOG);
    p.f32s("x.npy", &[3], &[1.0, -1.0, f32::INFINITY]);
    let ran = p.run(&["run", "m.tlir", "-i", "x=x.npy", "-i", "w=ones"]).code(0);
    assert!(
        ran.out.contains("1 nan") && ran.out.contains("1 infinite"),
        "{}",
        ran.out
    );
    p.f32s("x.npy", &[3], &[1.0, 9.0, 4.0]);
    let ran = p
        .run(&["run", "m.tlir", "-i", "x=x.npy", "-i", "w=ones", "--top", "2"])
        .code(0);
    assert!(
        ran.out.contains("row 0  1: 9") && ran.out.contains("   2: 4"),
        "{}",
        ran.out
    );
    let json = p
        .run(&[
            "run", "m.tlir", "-i", "x=x.npy", "-i", "w=ones", "--top", "1", "--format", "json",
        ])
        .code(0)
        .json();
    assert_eq!(json["outputs"][0]["top"][0][0]["index"], 1);
}

#[test]
fn the_first_nan_is_named_by_its_node_in_the_model() {
    let p = Place::new();
    let nodes = vec![
        node("Mul", "scale", &["x", "w"], &["s"]),
        node("Log", "layer.3/Log", &["s"], &["l"]),
        node("Tanh", "act", &["l"], &["y"]),
    ];
    let ty = |name| value(name, FLOAT, &[D::N(3)]);
    let weights = vec![floats("w", &[3], &[1.0, 1.0, -1.0])];
    p.write(
        "m.onnx",
        model(graph(nodes, weights, vec![ty("x")], vec![ty("y")]), vec![]),
    );
    p.run(&["run", "m.onnx", "-i", "x=zeros", "--check-nan"]).code(0);
    let ran = p.run(&["run", "m.onnx", "-i", "x=ones", "--check-nan"]).code(1);
    assert!(
        ran.first_error()
            .contains("the first NaN is made by %2 log 'layer.3/Log' of -1.0 at [2]"),
        "{}",
        ran.err
    );
    assert_eq!(ran.out, "");
    let ran = p.run(&["explain", "m.onnx"]).code(0);
    assert!(
        ran.out.contains("tanh 'act'") || ran.out.contains("'act'"),
        "{}",
        ran.out
    );
}
