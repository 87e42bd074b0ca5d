//! The commands of the README, run as they stand there.

use std::path::Path;
use std::process::Command;

use crate::support::Place;

/// The blocks between fences, with the language behind the first fence.
fn blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let inside = text.split("\n```").skip(1).step_by(2);
    inside.filter_map(|block| block.split_once('\n'))
}

/// A block of commands as (command, what it prints).
fn commands(block: &str) -> Vec<(&str, String)> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => all.push((command, String::new())),
            (None, Some((_, printed))) => *printed += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    all
}

/// What is the same on every machine: how much memory threads work in is not.
fn portable(text: &str) -> String {
    let lines = text.lines().filter(|l| !l.starts_with("memory: "));
    lines.map(|l| format!("{l}\n")).collect()
}

#[cfg(unix)]
#[test]
fn commands_print_what_the_readme_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).expect("there is a README");
    let place = Place::new();
    let (_, graph) = blocks(&readme)
        .find(|(_, b)| b.starts_with("graph @fused("))
        .expect("a graph");
    std::fs::write(place.path("relu.tlir"), format!("{graph}\n")).expect("written");
    std::os::unix::fs::symlink(root.join("tests"), place.path("tests")).expect("a link");
    let binary = Path::new(env!("CARGO_BIN_EXE_tlc")).parent().expect("a folder");
    let path = std::env::join_paths(
        std::iter::once(binary.to_path_buf())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let mut run = 0;
    for (command, expected) in blocks(&readme).flat_map(|(_, b)| commands(b)) {
        let output = Command::new("sh")
            .args(["-c", &format!("{command} 2>&1")])
            .current_dir(place.path(""))
            .env("PATH", path.as_ref().expect("a path"))
            .env("XDG_CACHE_HOME", place.path("cache"))
            .output()
            .expect("a shell");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}: {printed}");
        assert_eq!(portable(&printed), portable(&expected), "{command}");
        run += 1;
    }
    assert!(run >= 6, "{run} commands");
}

/// The README's first command, as tests build it.
#[test]
fn the_main_example_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = Path::new(env!("CARGO_BIN_EXE_tlc"))
        .with_file_name("examples")
        .join("digits");
    if !example.is_file() {
        println!("SKIP the main example: it is not built; cargo test without --test builds it");
        return;
    }
    let output = Command::new(example).current_dir(root).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    let right = "accuracy on 360 held-out images: 0.9889 (356 right)";
    assert!(printed.contains(right), "{printed}");
}
