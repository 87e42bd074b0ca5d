//! Where the process ends before its work: by a signal, or at a limit of the system. It leaves nothing half done, and says which.
#![cfg(unix)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{CHAIN, PRODUCT, Place, Ran, finish};

/// A model whose outputs have so many MiB each.
fn large(mebibytes: usize) -> Place {
    let p = Place::new();
    let n = mebibytes << 18;
    let text = format!(
        "graph @f(%x: f32[]) {{\n  %0 = expand %x : f32[{n}]\n  %1 = neg %0 : f32[{n}]\n  return %1 as a\n}}\n"
    );
    p.write("m.tlir", text);
    p.f32s("x.npy", &[], &[1.0]);
    p.write(
        "big.tlir",
        format!("graph @f(%x: f32[{n}]) {{\n  %0 = neg %x : f32[{n}]\n  return %0 as y\n}}\n"),
    );
    p
}

/// Waits until a file of the directory is being written.
fn writes(p: &Place, directory: &str, child: &mut Child) -> bool {
    let begun = |name: &String| {
        let size = std::fs::metadata(p.path(directory).join(name)).map(|m| m.len());
        name.ends_with(".tmp") && size.is_ok_and(|n| n > 0)
    };
    while child.try_wait().expect("a status").is_none() {
        if p.list(directory).iter().any(begun) {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn what_is_told_to_end_while_it_writes_leaves_nothing() {
    let p = large(384);
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let args = ["run", "m.tlir", "-i", "x=x.npy", "-o", "out", "--threads", "1"];
        let mut child = p
            .command(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        assert!(writes(&p, "out", &mut child), "it has ended");
        let told = Instant::now();
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let status = child.wait().expect("it ends");
        assert_eq!(
            (status.code(), p.path("out").exists()),
            (Some(code), false),
            "{signal}: {:?}",
            p.list("out")
        );
        // A guard against waiting for the whole write on a slow disk, no measurement.
        assert!(told.elapsed() < Duration::from_secs(20));
    }
}

/// Runs the binary under a limit of the shell's, as in `ulimit -v 100000`.
fn limited(p: &Place, limit: &str, args: &[&str]) -> Ran {
    let tlc = p.command(args);
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
        .arg(tlc.get_program())
        .args(tlc.get_args())
        .current_dir(p.path("."))
        .env("XDG_CACHE_HOME", p.path("."))
        .env_remove("TLC")
        .env_remove("RUST_BACKTRACE");
    finish(&mut command, b"")
}

#[test]
fn a_file_beyond_the_limit_of_its_size_is_a_resource_limit() {
    let p = large(1);
    let listed = p.list(".");
    let refused = |args: &[&str]| {
        // Blocks of 512 bytes.
        let ran = limited(&p, "-f 16", args);
        assert_eq!(ran.code, 5, "{args:?}: {}", ran.err);
        assert!(
            ran.first_error().contains("cannot be written: File too large"),
            "{}",
            ran.err
        );
        assert_eq!(p.list("."), listed, "{args:?}");
    };
    refused(&["run", "m.tlir", "-i", "x=x.npy", "-o", "out"]);
    refused(&["run", "m.tlir", "-i", "x=x.npy", "-o", "."]);
    p.f32s("v.npy", &[4096], &[0.5; 4096]);
    let listed = p.list(".");
    let ran = limited(&p, "-f 16", &["einsum", "i->i", "v.npy", "-o", "w.npy"]);
    assert_eq!((ran.code, p.list(".")), (5, listed), "{}", ran.err);
}

/// Whether a run that could not do its work ended as it should, and left nothing.
fn ends_well(p: &Place, ran: &Ran, listed: &[String], args: &[&str], kibibytes: u64) -> bool {
    let outputs = ["out", "y.npy", "t.tlir", "t.safetensors", "o.onnx"];
    if ran.code == 0 {
        for name in outputs {
            let path = p.path(name);
            let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
        }
        return true;
    }
    assert_eq!(
        ran.code, 5,
        "{args:?} in {kibibytes} KiB: code {}\nstdout:\n{}\nstderr:\n{}",
        ran.code, ran.out, ran.err
    );
    // Rust's library registers a destructor as each thread starts, before anything of the program runs there. Where the C library has
    // no memory for that it writes a line of its own and aborts: what the program says comes behind it.
    let said = ran
        .err
        .lines()
        .find(|l| !l.starts_with("Fatal glibc error: failed to register TLS destructor"));
    assert!(
        said.is_some_and(|l| l.starts_with("error: ")),
        "{args:?} in {kibibytes} KiB: {}",
        ran.err
    );
    assert_eq!(p.list("."), listed, "{args:?} in {kibibytes} KiB");
    false
}

#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_a_resource_limit_whatever_it_is_wanted_for() {
    let p = large(8);
    p.write("chain.tlir", CHAIN);
    p.write("product.tlir", PRODUCT);
    p.f32s("v.npy", &[500], &[0.5; 500]);
    let listed = p.list(".");
    let commands = [
        "run big.tlir -i x=random -o out --threads 2",
        "run product.tlir -i a=random -i b=ones -o out --threads 2",
        "import big.tlir -o t.tlir",
        "einsum i,j->ij v.npy v.npy -o y.npy",
        "explain chain.tlir",
        "verify chain.tlir --set n=9",
        "emit chain.tlir --what asm --format json",
        "bench chain.tlir --set n=9 --time 0.01",
    ];
    let under = |kibibytes: u64, args: &[&str]| limited(&p, &format!("-v {kibibytes}"), args);
    // The loader needs so much, and the standard library before the program begins: below, nothing of the program runs.
    let loads = |kibibytes: u64| matches!(under(kibibytes, &["--version"]).code, 0 | 5);
    let mut least = 4 << 10;
    while !loads(least) {
        least += 128;
    }
    for command in commands {
        let args = &command.split(' ').collect::<Vec<_>>()[..];
        let (mut limit, mut failed) = (least, 0);
        loop {
            let ran = under(limit, args);
            // The standard library needs a few pages for signals before the program begins.
            if ran.err.contains("failed to allocate an alternative stack") && limit < least + 256 {
                limit += 4;
                continue;
            }
            if ends_well(&p, &ran, &listed, args, limit) {
                break;
            }
            failed += 1;
            assert!(limit < 4 << 20, "{args:?} never has enough");
            // First page by page.
            limit += 4 + (limit - least) / 12;
        }
        assert!(failed > 2, "{args:?} ran in {least} KiB");
    }
}
