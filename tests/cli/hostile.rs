//! Mutated and absurd inputs: an error with a documented exit code, never a panic, a hang or a file left behind.

use std::time::{Duration, Instant};

use super::support::{CHAIN, PRODUCT, Place};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(out.len());
        match random.below(5) {
            0 => out[at] = random.below(256) as u8,
            1 => drop(out.remove(at)),
            2 => out.insert(at, b"0123456789%@{}[](),=:\"-\n\xff"[random.below(25)]),
            3 => out.truncate(at),
            _ => {
                let (from, len) = (random.below(out.len()), random.below(24));
                let part = out[from..(from + len).min(out.len())].to_vec();
                out.splice(at..at, part);
            }
        }
        if out.is_empty() {
            out.push(b'g');
        }
    }
    out
}

/// How long each of the mutation tests runs.
const TIME: Duration = Duration::from_secs(10);

#[test]
fn mutated_models_end_with_a_documented_code() {
    let p = Place::new();
    let mut random = Random(1);
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        let text = mutate([CHAIN, PRODUCT][random.below(2)].as_bytes(), &mut random);
        p.write("m.tlir", &text);
        let command = ["explain", "check", "opt"][random.below(3)];
        let ran = p.run(&[command, "m.tlir", "--threads", "1"]);
        let shown = String::from_utf8_lossy(&text);
        assert!(
            [0, 1, 3, 4, 5].contains(&ran.code),
            "{command}: {}\n{shown}\n{}",
            ran.code,
            ran.err
        );
        if ran.code != 0 {
            assert!(ran.first_error().starts_with("error: m.tlir"), "{shown}\n{}", ran.err);
        }
    }
}

#[test]
fn mutated_data_ends_with_a_documented_code() {
    let p = Place::new();
    p.write(
        "m.tlir",
        "graph @f(%x: f32[n, m]) {\n  %0 = exp %x : f32[n, m]\n  return %0 as y\n}\n",
    );
    let path = p.f32s("x.npy", &[3, 5], &[0.5; 15]);
    let good = std::fs::read(path).unwrap();
    let mut random = Random(2);
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        p.write("x.npy", mutate(&good, &mut random));
        let _ = std::fs::remove_dir_all(p.path("out"));
        let ran = p.run(&[
            "run",
            "m.tlir",
            "--input",
            "x=x.npy",
            "--output-dir",
            "out",
            "--threads",
            "1",
        ]);
        assert!([0, 3, 4, 5].contains(&ran.code), "{}\n{}", ran.code, ran.err);
        if ran.code != 0 {
            assert!(ran.first_error().starts_with("error: "), "{}", ran.err);
            assert!(!p.path("out").exists());
        }
        assert_eq!(p.list(".").iter().filter(|f| f.contains("tmp")).count(), 0);
    }
}

#[test]
fn a_long_chain_compiles_without_overflowing_the_stack() {
    let p = Place::new();
    let n = 100_000;
    let mut text = String::from("graph @long(%x: f32[4]) {\n  %0 = neg %x : f32[4]\n");
    for i in 1..n {
        text += &format!("  %{i} = {} %{} : f32[4]\n", ["sin", "neg", "tanh"][i % 3], i - 1);
    }
    text += &format!("  return %{} as y\n}}\n", n - 1);
    p.write("m.tlir", text);
    p.run(&["check", "m.tlir"]).code(0);
    p.run(&["opt", "m.tlir", "--passes", "canonicalize,fold,cse,dce"])
        .code(0);
}

#[test]
fn an_endless_file_is_not_read_to_its_end() {
    if !std::path::Path::new("/dev/zero").exists() {
        return;
    }
    let p = Place::new();
    p.write("m.tlir", "graph @f(%x: f32[n]) {\n  return %x as y\n}\n");
    p.run(&["run", "m.tlir", "--input", "x=/dev/zero"]).code(3);
    let refused = p.run(&["run", "/dev/zero"]).code(3);
    assert!(refused.err.contains("byte 0 is 0"), "{}", refused.err);
}
