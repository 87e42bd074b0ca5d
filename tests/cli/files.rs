//! run: inputs, outputs, and what a failed run leaves behind.

use tlc::{DType, HostTensor};

use super::support::{CHAIN, Place, Ran, finish};

fn chain() -> Place {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    p.f32s("a.npy", &[2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    p.f32s("b.npy", &[2, 4], &[1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 2.0, 2.0]);
    p.f32s("c.npy", &[4], &[0.5, -9.0, 0.0, 1.0]);
    p
}

const INPUTS: [&str; 8] = [
    "run", "m.tlir", "--input", "a=a.npy", "--input", "b=b.npy", "--input", "c=c.npy",
];

fn run(p: &Place, more: &[&str]) -> Ran {
    p.run(&[&INPUTS[..], more].concat())
}

#[test]
fn outputs_are_written_under_their_names() {
    let p = chain();
    let ran = run(&p, &["--output-dir", "out/deep"]).code(0);
    assert_eq!(ran.out, "");
    assert_eq!(p.list("out/deep"), ["total.npy", "y.npy"]);
    let y = p.read("out/deep/y.npy");
    assert_eq!(y.shape(), [2, 4]);
    assert_eq!(y.as_slice::<f32>().unwrap(), [1.5, 0.0, 3.0, 5.0, 0.0, 0.0, 14.0, 17.0]);
    let total = p.read("out/deep/total.npy");
    assert_eq!(
        (total.shape(), total.as_slice::<f32>().unwrap()),
        (&[][..], &[40.5f32][..])
    );
    // Again, over the old ones.
    run(&p, &["--output-dir", "out/deep"]).code(0);
    assert_eq!(p.list("out/deep"), ["total.npy", "y.npy"]);
}

#[test]
fn without_a_directory_a_summary_is_printed() {
    let p = chain();
    let ran = run(&p, &[]).code(0);
    // What the run needs, printed before it.
    let summary = "memory: at most 208 B, inputs and outputs 208 B\ny: f32[2, 4]  min 0";
    assert!(ran.out.starts_with(summary), "{}", ran.out);
    assert!(
        ran.out.contains("total: f32[]") && ran.out.contains("40.5"),
        "{}",
        ran.out
    );
    let json = run(&p, &["--format", "json"]).code(0).json();
    assert_eq!(json["outputs"][0]["shape"], serde_json::json!([2, 4]));
    assert_eq!(json["outputs"][0]["max"], 17.0);
    assert_eq!(json["memory"]["arena_bytes"], 0);
    assert_eq!(json["outputs"][1]["first"], serde_json::json!([40.5]));
}

#[test]
fn inputs_can_be_made_up() {
    let p = chain();
    let made = [
        "run", "m.tlir", "--input", "a=random", "--input", "b=ones", "--input", "c=zeros", "--set", "n=3",
    ];
    let first = p.run(&made).code(0).out;
    assert_eq!(p.run(&made).code(0).out, first);
    let seeded = p.run(&[&made[..], &["--seed", "7"]].concat()).code(0);
    assert!(
        seeded.out.contains("\ny: f32[3, 4]") && seeded.out != first,
        "{}",
        seeded.out
    );
    // A file's shape gives the size of the others.
    let mixed = [
        "run", "m.tlir", "--input", "a=a.npy", "--input", "b=random", "--input", "c=c.npy",
    ];
    assert!(p.run(&mixed).code(0).out.contains("\ny: f32[2, 4]"));
    let ran = p
        .run(&[
            "run", "m.tlir", "--input", "a=random", "--input", "b=ones", "--input", "c=zeros",
        ])
        .code(2);
    assert!(
        ran.first_error().contains("expected --set n=N with N in 1..=1024"),
        "{}",
        ran.err
    );
}

#[test]
fn an_input_from_standard_input() {
    let p = chain();
    let bytes = std::fs::read(p.path("a.npy")).unwrap();
    let args = [
        "run", "m.tlir", "--input", "a=-", "--input", "b=b.npy", "--input", "c=c.npy",
    ];
    assert!(p.run_with(&args, &bytes).code(0).out.contains("40.5"));
}

#[test]
fn wrong_inputs_are_named_with_what_the_model_declares() {
    let p = chain();
    p.npy("f64.npy", &HostTensor::zeros(DType::F64, &[2, 4]).unwrap());
    p.f32s("short.npy", &[2, 3], &[0.0; 6]);
    p.f32s("other.npy", &[3, 4], &[0.0; 12]);
    let with_a = |a: &str| {
        p.run(&[
            "run", "m.tlir", "--input", a, "--input", "b=b.npy", "--input", "c=c.npy",
        ])
        .code(3)
    };
    let ran = with_a("z=a.npy");
    assert_eq!(
        ran.first_error(),
        "error: m.tlir: no input is named `z`; expected a: f32[n, 4], b: f32[n, 4], c: f32[4]"
    );
    let ran = with_a("a=f64.npy");
    assert_eq!(
        ran.first_error(),
        "error: f64.npy: wrong dtype for input `a`; expected f32[n, 4], found f64[2, 4]"
    );
    let ran = with_a("a=short.npy");
    assert_eq!(
        ran.first_error(),
        "error: short.npy: wrong shape for input `a`; expected f32[n, 4], found f32[2, 3]"
    );
    assert!(
        with_a("a=other.npy")
            .first_error()
            .starts_with("error: m.tlir: input `")
    );
    assert!(
        with_a("a=none.npy")
            .first_error()
            .starts_with("error: none.npy: cannot be read")
    );
    let ran = p.run(&["run", "m.tlir", "--input", "a=a.npy"]).code(3);
    assert!(
        ran.first_error()
            .contains("input `b` is missing; expected --input b=FILE.npy"),
        "{}",
        ran.err
    );
    p.run(&["run", "m.tlir", "--input", "a=a.npy", "--input", "a=a.npy"])
        .code(2);
    p.run(&["run", "m.tlir", "--input", "a"]).code(2);
    p.run(&["run"]).code(2);
}

#[test]
fn a_broken_npy_is_an_error_with_its_file() {
    let p = chain();
    let mut bytes = std::fs::read(p.path("a.npy")).unwrap();
    bytes.push(0);
    p.write("long.npy", &bytes);
    p.write("short.npy", &bytes[..bytes.len() - 5]);
    p.write("text.npy", "hello");
    for file in ["long", "short", "text"] {
        let a = format!("a={file}.npy");
        let args = [
            "run",
            "m.tlir",
            "--input",
            &a,
            "--input",
            "b=b.npy",
            "--input",
            "c=c.npy",
            "--output-dir",
            "out",
        ];
        let ran = p.run(&args).code(3);
        assert!(
            ran.first_error().starts_with(&format!("error: {file}.npy: ")),
            "{}",
            ran.err
        );
        assert!(ran.err.contains("expected"), "{}", ran.err);
        assert!(!p.path("out").exists());
    }
}

#[test]
fn an_unwritable_directory_leaves_nothing() {
    let p = chain();
    p.write("file", "");
    let ran = run(&p, &["--output-dir", "file/out"]).code(3);
    assert!(ran.first_error().starts_with("error: file"), "{}", ran.err);
    run(&p, &["--output-dir", "file"]).code(3);
    // No directory named `-` is made where standard output is meant.
    let ran = run(&p, &["--output-dir", "-"]).code(2);
    assert!(ran.first_error().contains("expected a directory"), "{}", ran.err);
    // A name that is taken by a directory: the other output goes again, and so does what was made for it.
    std::fs::create_dir_all(p.path("out/total.npy")).unwrap();
    run(&p, &["--output-dir", "out"]).code(3);
    assert_eq!(p.list("out"), ["total.npy"]);
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let p = chain();
    // A limit on file sizes stands for a full disk; the shell ignores the signal, so writes fail.
    let script = r#"trap '' XFSZ; ulimit -f 1; exec "$0" run big.tlir --input x=zeros --output-dir out/deep"#;
    p.write(
        "big.tlir",
        "graph @big(%x: f32[100000]) {\n  %0 = exp %x : f32[100000]\n  return %0 as y\n}\n",
    );
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_tlc")])
        .current_dir(p.path("."));
    let ran = finish(&mut command, b"").code(5);
    assert!(ran.first_error().contains("cannot be written"), "{}", ran.err);
    assert!(!p.path("out").exists(), "{:?}", p.list("out"));
}

#[test]
fn output_names_become_file_names() {
    let p = Place::new();
    let text =
        "graph @f(%x: f32[2]) {\n  %0 = exp %x : f32[2]\n  return %0 as \"a/b\", %0 as \"a b\", %0 as \"../up\"\n}\n";
    p.write("m.tlir", text);
    p.run(&["run", "m.tlir", "--input", "x=zeros", "--output-dir", "out"])
        .code(0);
    assert_eq!(p.list("out"), [".._up.npy", "output_0.npy", "output_1.npy"]);
    assert_eq!(p.list("."), ["m.tlir", "out"]);
}

#[test]
fn a_model_that_needs_too_much_memory_is_refused_before_it_runs() {
    let p = Place::new();
    p.write(
        "huge.tlir",
        "graph @f(%x: f32[n]) {\n  %0 = exp %x : f32[n]\n  return %0\n}\n",
    );
    let ran = p
        .run(&[
            "run",
            "huge.tlir",
            "--input",
            "x=zeros",
            "--set",
            "n=2000000000",
            "--max-memory",
            "1G",
        ])
        .code(5);
    assert!(
        ran.first_error()
            .contains("too much memory; expected at most 1.0 GiB, found"),
        "{}",
        ran.err
    );
    p.write(
        "vast.tlir",
        "graph @f() {\n  %0 = iota {axis=0} : f32[4000000000000000]\n  return %0\n}\n",
    );
    p.run(&["run", "vast.tlir"]).code(5);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_no_temporary_file() {
    let p = Place::new();
    // The input never comes, so nothing is written when the signal does.
    p.write(
        "m.tlir",
        "graph @f(%x: f32[2]) {\n  %0 = exp %x : f32[2]\n  return %0 as y\n}\n",
    );
    let mut child = p
        .command(&["run", "m.tlir", "--input", "x=-", "--output-dir", "out"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Waiting would close it, and its end would be an error of its own.
    let held = child.stdin.take();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let sent = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.is_ok_and(|s| s.success()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(p.list("."), ["m.tlir"]);
    drop(held);
}

/// The elements behind the header of an npy file, and the header's text.
fn raw(p: &Place, name: &str) -> (String, Vec<u8>) {
    let file = std::fs::read(p.path(name)).expect("the file is there");
    let end = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    (
        String::from_utf8_lossy(&file[10..end]).into_owned(),
        file[end..].to_vec(),
    )
}

#[test]
fn storage_types_travel_as_raw_bytes_in_files_and_streams() {
    let p = Place::new();
    p.write(
        "m.tlir",
        "graph @m(%x: f8e4m3fn[4], %w: i4[4], %h: bf16[2]) {\n  %0 = convert %x : f32[4]\n  %1 = convert %w : f32[4]\n  \
         %2 = mul %0, %1 : f32[4]\n  %3 = convert %2 : f8e5m2[4]\n  %4 = convert %2 : i2[4]\n  return %2 as f, %3 as y, %4 as i, %h as h\n}\n",
    );
    let bits = |dtype, all: &[u64]| {
        let mut t = HostTensor::zeros(dtype, &[all.len()]).expect("small");
        all.iter()
            .enumerate()
            .for_each(|(i, b)| t.set(i, tlc::Scalar::from_bits(dtype, *b)));
        t
    };
    // 1.0, -2.0, 448, NaN by 3, -1, -8, 1.
    let x = bits(DType::F8E4M3FN, &[0x38, 0xc0, 0x7e, 0x7f]);
    p.npy("w.npy", &bits(DType::I4, &[3, 0xf, 8, 1]));
    p.npy("h.npy", &bits(DType::BF16, &[0x3f80, 0xc000]));
    let mut stream = Vec::new();
    tlc_formats::npy::write(&x, &mut stream).expect("in memory");
    let args = [
        "run",
        "m.tlir",
        "--input",
        "x=-",
        "--input",
        "w=w.npy",
        "--input",
        "h=h.npy",
        "--output-dir",
        "out",
    ];
    p.run_with(&args, &stream).code(0);
    let f = p.read("out/f.npy");
    let f = f.as_slice::<f32>().expect("f32");
    assert_eq!(f[..3], [3.0, 2.0, -3584.0]);
    assert!(f[3].is_nan());
    let (header, y) = raw(&p, "out/y.npy");
    assert!(header.contains("'descr': '|V1'"), "{header}");
    // 3.0, 2.0, -3584, NaN.
    assert_eq!(y, [0x42, 0x40, 0xeb, 0x7e]);
    // Truncated, saturated, NaN is 0; one element a byte.
    assert_eq!(raw(&p, "out/i.npy").1, [1, 1, 2, 0]);
    let (header, h) = raw(&p, "out/h.npy");
    assert!(
        header.contains("'descr': '|V2'") && h == [0x80, 0x3f, 0, 0xc0],
        "{header}"
    );
    // What a model does not declare, nobody knows the meaning of.
    p.write("f.tlir", "graph @f(%x: u8[4]) {\n  return %x as y\n}\n");
    let ran = p.run_with(&["run", "f.tlir", "--input", "x=-"], &stream).code(4);
    assert!(
        ran.first_error().contains("raw one-byte elements"),
        "{}",
        ran.first_error()
    );
}
