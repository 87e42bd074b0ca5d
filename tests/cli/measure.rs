//! bench, profile, hwbench.

use super::support::{CHAIN, PRODUCT, Place};

#[test]
fn bench_saves_and_compares() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let args = ["bench", "m.tlir", "--set", "n=64", "--time", "0.05", "--threads", "1"];
    let ran = p.run(&[&args[..], &["--save", "base.json"]].concat()).code(0);
    assert!(
        ran.out.starts_with("@chain: median ") && ran.out.contains("x the limit"),
        "{}",
        ran.out
    );
    let text = std::fs::read_to_string(p.path("base.json")).unwrap();
    let mut saved: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(saved["schema"], 1);
    saved["median_ns"] = 1e12.into();
    p.write("slow.json", saved.to_string());
    saved["median_ns"] = 1e-3.into();
    p.write("fast.json", saved.to_string());
    let ran = p.run(&[&args[..], &["--against", "slow.json"]].concat()).code(0);
    assert!(ran.out.contains("x faster"), "{}", ran.out);
    let ran = p
        .run(&[&args[..], &["--against", "fast.json", "--format", "json"]].concat())
        .code(1);
    assert!(ran.json()["ratio"].as_f64().unwrap() > 1.0);
    assert!(
        ran.first_error().contains("x the saved time; expected at most 1.10x"),
        "{}",
        ran.err
    );
    p.write("other.json", "{}");
    p.run(&[&args[..], &["--against", "other.json"]].concat()).code(3);
    p.run(&[&args[..], &["--against", "none.json"]].concat()).code(3);
}

#[test]
fn bench_needs_sizes() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let ran = p.run(&["bench", "m.tlir", "--time", "0"]).code(2);
    assert!(ran.first_error().contains("expected --set n=N"), "{}", ran.err);
}

#[test]
fn profile_has_a_row_for_every_step() {
    let p = Place::new();
    p.write("m.tlir", PRODUCT);
    let ran = p.run(&["profile", "m.tlir", "--time", "0.05"]).code(0);
    assert!(
        ran.out.contains("library matmul") && ran.out.contains("kernel 0"),
        "{}",
        ran.out
    );
    let json = p
        .run(&["profile", "m.tlir", "--time", "0.05", "--format", "json"])
        .code(0)
        .json();
    let steps = json["steps"].as_array().unwrap();
    let share: f64 = steps.iter().map(|s| s["share"].as_f64().unwrap()).sum();
    assert!(steps.len() == 1 && (share - 1.0).abs() < 1e-6, "{json}");
    assert!(
        steps
            .iter()
            .all(|s| !s["advice"].as_str().unwrap().is_empty() && s["floor_ns"].is_number())
    );
}

#[test]
fn hwbench_is_kept_and_used() {
    let p = Place::new();
    let json = p
        .run(&["hwbench", "--quick", "--format", "json", "--threads", "1"])
        .code(0)
        .json();
    assert!(json["f32_flops_per_second"]["one_thread"].as_f64().unwrap() > 0.0);
    assert_eq!(p.list("tlc"), ["hwbench.json"]);
    let info = p.run(&["info", "--format", "json"]).code(0).json();
    assert_eq!(info["measured"], true);
    p.write("m.tlir", PRODUCT);
    let json = p.run(&["explain", "m.tlir", "--format", "json"]).code(0).json();
    assert_eq!(json["measured_machine"], true);
    // A broken file is as good as none.
    p.write("tlc/hwbench.json", "{");
    let json = p.run(&["explain", "m.tlir", "--format", "json"]).code(0).json();
    assert_eq!(json["measured_machine"], false);
}
