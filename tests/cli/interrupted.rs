//! Runs that share a folder, are killed, or get a signal to end: what has an output's name is whole.

use std::process::{Child, Stdio};
use std::time::Duration;

use super::proto::{D, FLOAT, floats, graph, model, node, value};
use super::support::Place;

/// Elements of each output: enough that writing them takes a while.
const N: usize = 1 << 20;

/// A model of four outputs, each full of one number.
fn place() -> Place {
    let p = Place::new();
    let mut text = format!("graph @f(%x: f32[]) {{\n  %0 = expand %x : f32[{N}]\n");
    for i in 1..=4 {
        text += &format!("  %{i} = {} %0 : f32[{N}]\n", ["neg", "abs", "floor", "ceil"][i - 1]);
    }
    text += "  return %1 as a, %2 as b, %3 as c, %4 as d\n}\n";
    p.write("m.tlir", text);
    p
}

fn start(p: &Place, x: f32) -> Child {
    let file = format!("{x}.npy");
    p.f32s(&file, &[], &[x]);
    let input = format!("x={file}");
    p.command(&[
        "run",
        "m.tlir",
        "--input",
        &input,
        "--output-dir",
        "out",
        "--threads",
        "1",
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .expect("it starts")
}

/// Checks that each output that is there is whole and of one run, and returns how many there are.
fn whole(p: &Place) -> usize {
    let names: Vec<String> = p.list("out").into_iter().filter(|n| !n.starts_with('.')).collect();
    for name in &names {
        let tensor = p.read(&format!("out/{name}"));
        let values = tensor.as_slice::<f32>().expect("f32");
        assert_eq!(values.len(), N);
        assert!(values.iter().all(|v| *v == values[0]), "{name} is of two runs");
    }
    names.len()
}

/// A model of one layer, whose weights are all `w`.
fn layer(w: f32) -> Vec<u8> {
    let nodes = vec![node("Add", "shift", &["x", "W"], &["y"])];
    let weights = vec![floats("W", &[1 << 18], &vec![w; 1 << 18])];
    let ty = |name| value(name, FLOAT, &[D::N(1 << 18)]);
    model(graph(nodes, weights, vec![ty("x")], vec![ty("y")]), vec![])
}

#[test]
fn an_import_that_is_killed_leaves_a_text_with_its_weights_or_one_that_is_refused() {
    let p = Place::new();
    for w in 0..2 {
        p.write(&format!("{w}.onnx"), layer(w as f32));
        p.run(&["import", &format!("{w}.onnx"), "-o", &format!("{w}.tlir")])
            .code(0);
    }
    let copy = |from: &str, to: &str| std::fs::copy(p.path(from), p.path(to)).map(|_| ()).expect("a copy");
    let result = || -> Option<f64> {
        let ran = p.run(&["run", "m.tlir", "-i", "x=zeros", "-o", "out"]);
        if ran.code == 0 {
            return Some(p.read("out/y.npy").get(77).as_f64());
        }
        let first = ran.first_error();
        assert!(
            ran.code == 3 && first.contains("has the weights of another text"),
            "{}",
            ran.err
        );
        None
    };
    // Between the two: new weights, and the text that was there before.
    copy("0.tlir", "m.tlir");
    copy("1.safetensors", "m.safetensors");
    assert_eq!(result(), None);
    p.run(&["import", "1.onnx", "-o", "m.tlir"]).code(0);
    assert_eq!(result(), Some(1.0));
    // And whenever it is killed.
    for step in 0..12u64 {
        let w = step % 2;
        let mut child = p
            .command(&["import", &format!("{w}.onnx"), "-o", "m.tlir"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(4 + 3 * step));
        let _ = child.kill();
        child.wait().expect("it ends");
        let text = std::fs::read(p.path("m.tlir")).expect("a text");
        let of = (0..2).find(|w| text == std::fs::read(p.path(&format!("{w}.tlir"))).expect("a text"));
        let of = of.expect("one of the two, whole");
        assert!(result().is_none_or(|y| y == f64::from(of)));
    }
}

/// A safetensors file without what its metadata says.
fn without_metadata(bytes: &[u8]) -> Vec<u8> {
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("a length")) as usize;
    let mut names: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    names
        .as_object_mut()
        .expect("an object")
        .remove("__metadata__")
        .expect("metadata");
    let text = names.to_string();
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out.extend(&bytes[8 + header..]);
    out
}

#[test]
fn a_text_and_weights_of_different_imports_never_load_together() {
    let p = Place::new();
    for w in 0..2 {
        p.write(&format!("{w}.onnx"), layer(w as f32));
        p.run(&["import", &format!("{w}.onnx"), "-o", &format!("{w}.tlir")])
            .code(0);
    }
    let text = std::fs::read_to_string(p.path("0.tlir")).expect("a text");
    let (line, rest) = text.split_once('\n').expect("lines");
    let weights = |w: usize| std::fs::read(p.path(&format!("{w}.safetensors"))).expect("weights");
    // Whether the two run, and if so, with the weights of the import that the text is of.
    let loads = |text: &str, weights: &[u8]| -> bool {
        p.write("m.tlir", text);
        p.write("m.safetensors", weights);
        let ran = p.run(&["run", "m.tlir", "-i", "x=zeros", "-o", "out"]);
        if ran.code == 0 {
            assert_eq!(p.read("out/y.npy").get(77).as_f64(), 0.0);
            return true;
        }
        assert!(
            ran.code == 3 && ran.first_error().contains("m.safetensors"),
            "{}",
            ran.err
        );
        for other in [&["check"][..], &["explain"], &["export", "-o", "m.onnx"], &["fmt"]] {
            let ran = p.run(&[other, &["m.tlir"]].concat());
            assert!(matches!(ran.code, 1 | 3), "{other:?}: {}", ran.err);
        }
        false
    };
    assert!(loads(&text, &weights(0)));
    assert!(!loads(&text, &weights(1)));
    // One side has lost its number: by a hand that edited the text, or a program that copied the tensors.
    assert!(!loads(rest, &weights(1)) && !loads(rest, &weights(0)));
    assert!(!loads(&text, &without_metadata(&weights(1))));
    // A comment above the line is no reason to forget it.
    let edited = format!("// mine\n\n{line}\n{rest}");
    assert!(loads(&edited, &weights(0)) && !loads(&edited, &weights(1)));
    // Canonical text keeps it, whatever goes.
    p.write("m.tlir", format!("// mine\n{text}"));
    p.write("m.safetensors", weights(0));
    for options in [&[][..], &["--drop-comments"]] {
        p.run(&[&["fmt", "m.tlir"], options].concat()).code(0);
        let kept = std::fs::read_to_string(p.path("m.tlir")).expect("a text");
        assert!(kept.contains(line), "{kept}");
        assert!(loads(&kept, &weights(0)) && !loads(&kept, &weights(1)));
        p.write("m.safetensors", weights(0));
    }
    // Where neither says anything, the names decide.
    assert!(loads(rest, &without_metadata(&weights(0))));
}

fn temporary(p: &Place) -> usize {
    p.list("out").iter().filter(|n| n.starts_with('.')).count()
}

#[test]
fn runs_in_one_folder_leave_whole_files_of_one_of_them() {
    let p = place();
    let mut running: Vec<Child> = (1..=6).map(|i| start(&p, i as f32)).collect();
    for child in &mut running {
        assert!(child.wait().expect("it ends").success());
        whole(&p);
    }
    assert_eq!((whole(&p), temporary(&p)), (4, 0));
}

#[test]
fn a_killed_run_leaves_no_part_of_an_output_under_its_name() {
    let p = place();
    for step in 0..12u64 {
        let mut child = start(&p, step as f32);
        std::thread::sleep(Duration::from_millis(10 + 12 * step));
        // It may have ended.
        let _ = child.kill();
        child.wait().expect("it ends");
        whole(&p);
    }
    // What was left behind is in nobody's way.
    assert!(start(&p, 0.5).wait().expect("it ends").success());
    assert_eq!(whole(&p), 4);
    assert_eq!(p.read("out/b.npy").get(0).as_f64(), 0.5);
}

#[cfg(unix)]
#[test]
fn a_run_that_is_told_to_end_takes_its_temporary_files_along() {
    let p = place();
    for step in 0..12u64 {
        let mut child = start(&p, step as f32);
        std::thread::sleep(Duration::from_millis(10 + 12 * step));
        let (signal, expected) = [("-INT", 130), ("-TERM", 143)][step as usize % 2];
        let _ = std::process::Command::new("kill")
            .args([signal, &child.id().to_string()])
            .stderr(Stdio::null())
            .status();
        let status = child.wait().expect("it ends");
        whole(&p);
        // Before the handler is set the signal itself ends it, and then nothing has been written.
        assert!(status.code().is_none_or(|c| c == 0 || c == expected), "{status}");
        assert_eq!(temporary(&p), 0, "{:?}", p.list("out"));
    }
}

#[cfg(unix)]
#[test]
fn the_exit_code_tells_which_signal_ended_a_run() {
    use std::os::unix::process::CommandExt;
    let p = Place::new();
    // It waits for a text that never comes. `nohup` has a hang-up ignored.
    let ended = |signal: &str, wait: u64, ignored: bool| {
        let mut command = p.command(&["check", "-"]);
        if ignored {
            let program = command.get_program().to_owned();
            command = std::process::Command::new("nohup");
            command.arg(program).args(["check", "-"]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(wait));
        let killed = std::process::Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(killed.expect("kill runs").success());
        std::thread::sleep(Duration::from_millis(100));
        // Where nothing has ended it, the end of its text does.
        drop(child.stdin.take());
        child.wait().expect("it ends").code()
    };
    // What ignores hang-ups starts programs that do, and these keep it so.
    let ignores = std::fs::read_to_string("/proc/self/status").is_ok_and(|text| {
        let ignored = text.lines().find_map(|l| l.strip_prefix("SigIgn:"));
        ignored.is_some_and(|bits| u64::from_str_radix(bits.trim(), 16).is_ok_and(|bits| bits & 1 == 1))
    });
    for (signal, expected) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        if signal == "-HUP" && ignores {
            continue;
        }
        // Before the handler is set the signal itself ends it, and then there is no code.
        let code = [50, 200, 1000, 5000]
            .iter()
            .find_map(|&wait| ended(signal, wait, false));
        assert_eq!(code, Some(expected), "{signal}");
    }
    let text_ended = ended("-HUP", 1000, true);
    assert!(text_ended.is_some_and(|c| c < 128), "{text_ended:?}");
}

/// The processes that were started to be watched, with files in a folder of this place.
#[cfg(target_os = "linux")]
fn watched(p: &Place) -> Vec<String> {
    let mark = format!("TLC_ISOLATED={}/", p.path("tmp").display()).into_bytes();
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let started = processes.filter(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment
            .split(|b| *b == 0)
            .any(|variable| variable.starts_with(&mark))
    });
    started
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Whenever the signal comes: before there is a folder, while the second process starts, or when it runs.
#[cfg(target_os = "linux")]
#[test]
fn a_verification_that_is_told_to_end_leaves_no_process_and_no_folder() {
    let p = Place::new();
    std::fs::create_dir(p.path("tmp")).expect("a folder");
    let mut text = String::from("graph @f(%x: f32[100, 100]) {\n  %0 = einsum %x, %x {ab,bc->ac} : f32[100, 100]\n");
    for i in 1..60 {
        text += &format!("  %{i} = einsum %{}, %x {{ab,bc->ac}} : f32[100, 100]\n", i - 1);
    }
    p.write("m.tlir", text + "  return %59 as y\n}\n");
    for step in 0..90u64 {
        let mut child = p
            .command(&["verify", "m.tlir"])
            .env("TMPDIR", p.path("tmp"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_micros(500 * (step % 30)));
        let _ = std::process::Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .stderr(Stdio::null())
            .status();
        let status = child.wait().expect("it ends");
        // Before the handler is set the signal itself ends it.
        assert!(status.code().is_none_or(|c| c == 143), "{status}");
        assert_eq!(watched(&p), Vec::<String>::new(), "{step}");
        assert_eq!(p.list("tmp"), Vec::<String>::new(), "{step}");
    }
}
