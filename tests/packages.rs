//! The packages that are not of the workspace, and the compiler with its seeded faults, are built and tested as well, so that
//! `cargo test --workspace` tests everything.
//!
//! Each is a run of cargo that shares what is built with the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Cargo locks its directories; waiting here keeps its "blocking" notes out of the output.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where this test was built: `target`, unless it is told otherwise.
fn target() -> PathBuf {
    let built = std::env::current_exe().expect("a test has a file");
    let profile = built.ancestors().find(|p| p.ends_with("deps")).and_then(Path::parent);
    profile
        .and_then(Path::parent)
        .map_or_else(|| root().join("target"), Path::to_path_buf)
}

/// The crates of the workspace that another package has among its dependencies.
const CRATES: [&str; 8] = [
    "tlc",
    "tlc-codegen",
    "tlc-formats",
    "tlc-ir",
    "tlc-onnx",
    "tlc-passes",
    "tlc-record",
    "tlc-runtime",
];

/// Has other packages build the crates of the workspace without optimization, which would take minutes and which these tests
/// say nothing about.
fn unoptimized(command: &mut Command) {
    for name in CRATES {
        let setting = format!("profile.dev.package.{name}.opt-level=0");
        command.args(["--config", &setting]);
    }
}

/// Runs cargo, and returns what it printed.
fn cargo(folder: &Path, arguments: &[&str], target: &Path) -> String {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO"));
    // What cargo tells its tests is not meant for another cargo.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    if folder != root() {
        unoptimized(&mut command);
    }
    let output = command
        .arg("--target-dir")
        .arg(target)
        .current_dir(folder)
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {}: {text}", arguments.join(" "));
    println!("{text}");
    text
}

#[test]
fn a_program_that_depends_on_tlc_and_ndarray_alone_compiles_and_runs() {
    let text = cargo(&root().join("tests/user"), &["run"], &target());
    assert!(text.contains("done"));
}

#[test]
fn the_example_with_a_package_of_its_own_passes_its_tests() {
    let text = cargo(&root().join("examples/embed"), &["test"], &target());
    assert!(text.contains("test result: ok"));
}

/// The command that this test was built with, which tests after this one run: cargo puts the one with faults in its place.
struct Kept {
    command: PathBuf,
    aside: PathBuf,
}

impl Kept {
    fn new() -> Kept {
        let command = PathBuf::from(env!("CARGO_BIN_EXE_tlc"));
        let aside = command.with_extension("kept");
        std::fs::copy(&command, &aside).expect("copied");
        Kept { command, aside }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Not written into the file, which cargo shares with its own copy.
        std::fs::rename(&self.aside, &self.command).expect("put back");
    }
}

#[test]
fn decisions_that_are_wrong_on_purpose_are_found_and_named() {
    let _kept = Kept::new();
    // The whole workspace, so that crates without faults are those that are built already.
    let arguments = [
        "test",
        "--workspace",
        "--features",
        "tlc/seeded-faults",
        "--test",
        "seeded_faults",
    ];
    let text = cargo(root(), &arguments, &target());
    assert!(text.contains("test result: ok"));
}

/// The blocks of a language in the README, in their order.
fn blocks<'t>(readme: &'t str, language: &str) -> Vec<&'t str> {
    let fence = format!("\n```{language}\n");
    let rest = readme.split(fence.as_str()).skip(1);
    rest.map(|r| r.split("\n```").next().unwrap_or_default()).collect()
}

#[test]
fn the_programs_of_the_readme_compile_and_run_as_pasted() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("there is a README");
    let dependencies = blocks(&readme, "toml");
    let programs = blocks(&readme, "rust");
    assert_eq!(dependencies.len(), 1);
    assert!(programs.len() >= 2);
    let package = target().join("readme");
    let _ = std::fs::remove_dir_all(&package);
    std::fs::create_dir_all(package.join("src/bin")).expect("a folder");
    // The README has the repository beside the program's folder; the path is the one thing that is changed.
    assert!(dependencies[0].contains("path = \"../tlc\""));
    let dependencies = dependencies[0].replace("../tlc", &root().to_string_lossy());
    let manifest = "[workspace]\n[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
                    [profile.dev]\ndebug = false\n[profile.dev.package.\"*\"]\nopt-level = 2\ndebug = false\n\n";
    std::fs::write(package.join("Cargo.toml"), format!("{manifest}{dependencies}\n")).expect("written");
    // The versions that the workspace has.
    std::fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock")).expect("copied");
    for (k, program) in programs.iter().enumerate() {
        std::fs::write(package.join(format!("src/bin/program{k}.rs")), program).expect("written");
    }
    cargo(&package, &["build"], &target());
    for (k, program) in programs.iter().enumerate() {
        // A program that needs a file of the reader's compiles, and that is all.
        if !program.contains(".onnx") {
            let text = cargo(
                &package,
                &["run", "--quiet", "--bin", &format!("program{k}")],
                &target(),
            );
            let expected = blocks(&readme, "text").into_iter().nth(k).unwrap_or_default();
            assert!(
                text.starts_with(expected),
                "program {k} printed\n{text}\nexpected\n{expected}"
            );
        }
    }
}
